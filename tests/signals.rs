//! Interrupted runs: what they leave behind, what they print, and that the next run continues from there.

use crate::kit::{World, oracle, synctest, write_script};
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;

/// A rate so low that no run here finishes before it is interrupted.
const SLOWLY: &str = "--bwlimit=600";

/// A small file, a large file that replaces an old one, and an extra file.
fn large(w: &World) {
    w.source("a big*12000000").dest("big=old extra");
}

/// Returns whether the temporary file of the large file has content, in the destination or in the directory for delayed
/// updates.
fn under_way(world: &Path) -> bool {
    let dirs = ["dst", "dst/.~tmp~"].map(|dir| world.join(dir));
    dirs.iter()
        .filter_map(|dir| std::fs::read_dir(dir).ok())
        .flatten()
        .flatten()
        .any(|entry| {
            let grows = entry.metadata().is_ok_and(|meta| meta.len() > 0);
            grows && entry.file_name().as_encoded_bytes().starts_with(b".big.")
        })
}

fn overwritten(world: &Path) -> bool {
    std::fs::metadata(world.join("dst/big")).is_ok_and(|meta| meta.len() > 1000)
}

fn old_file_stays(w: &World) {
    assert_eq!(
        std::fs::read(w.tested().join("dst/big")).expect("the file existed"),
        b"old"
    );
}

/// Interrupts both programs and asserts that they leave the same names. The large file must be the last entry: what
/// other workers have finished by then is not deterministic.
fn leave_the_same(w: &World, options: &[&str], signal: Signal, ready: fn(&Path) -> bool) {
    let [wanted, got] = w.interrupt(options, signal, ready);
    assert_eq!(got, wanted, "the right one is rsync's");
}

fn resumes_with(w: &World, options: &[&str]) {
    w.no_dry_run().agree(options).exits(0);
}

macro_rules! stops_at {
    ($name:ident, $signal:ident) => {
        synctest!($name, |w: World| {
            large(&w);
            leave_the_same(&w, &["-a", SLOWLY], Signal::$signal, under_way);
            old_file_stays(&w);
            resumes_with(&w, &["-a", "--delete"]);
        });
    };
}

stops_at!(sigint_leaves_no_temporary_file, INT);
stops_at!(sigterm_leaves_no_temporary_file, TERM);
stops_at!(sighup_leaves_no_temporary_file, HUP);

synctest!(partial_keeps_the_incomplete_file, |w: World| {
    large(&w);
    leave_the_same(&w, &["-a", "--partial", SLOWLY], Signal::INT, under_way);
    assert!(overwritten(w.tested()));
    resumes_with(&w, &["-a"]);
});

synctest!(what_an_incomplete_file_replaces_is_backed_up, |w: World| {
    large(&w);
    w.dest("big=old").keep_dest();
    let old = |backup: &str| std::fs::read(w.tested().join(backup)).expect("the backup exists");
    for (options, backup) in [
        ("--partial", "dst/big~"),
        ("--partial --suffix=.old", "dst/big.old"),
        ("--partial --backup-dir=kept", "dst/kept/big"),
        ("--partial-dir=.", "dst/big~"),
        ("--inplace", "dst/big~"),
        ("--append", "dst/big~"),
    ] {
        w.restore_dest();
        let options: Vec<_> = options.split(' ').chain(["-ab", SLOWLY]).collect();
        leave_the_same(&w, &options, Signal::INT, |world| {
            under_way(world) || overwritten(world)
        });
        assert_eq!(old(backup), b"old", "{options:?}");
        assert!(overwritten(w.tested()), "{options:?}");
    }
    for options in [
        &["-ab", "--partial-dir=part"][..],
        &["-ab", "--partial", "--delay-updates"],
    ] {
        w.restore_dest();
        leave_the_same(&w, &[options, &[SLOWLY]].concat(), Signal::INT, |world| {
            under_way(world)
        });
        old_file_stays(&w);
    }
});

synctest!(
    without_perms_a_partial_file_gets_the_mode_of_the_file,
    |w: World| {
        w.source("a big*12000000%640").dest("big=old%664");
        leave_the_same(&w, &["-rt", "--partial", SLOWLY], Signal::INT, under_way);
        resumes_with(&w, &["-rt"]);
    }
);

synctest!(partial_dir_on_another_file_system, as root, |w: World| {
    large(&w);
    w.tree("part", "").mount_tmpfs("part", 16 << 20);
    let option = "--partial-dir={W}/part";
    leave_the_same(&w, &["-a", option, SLOWLY], Signal::INT, under_way);
    assert!(std::fs::metadata(w.tested().join("part/big")).is_ok_and(|meta| meta.len() > 0));
    old_file_stays(&w);
    resumes_with(&w, &["-a", option]);
});

synctest!(partial_dir_keeps_the_incomplete_file, |w: World| {
    large(&w);
    leave_the_same(
        &w,
        &["-a", "--partial-dir=.part", SLOWLY],
        Signal::TERM,
        under_way,
    );
    old_file_stays(&w);
    resumes_with(&w, &["-a", "--partial-dir=.part"]);
});

synctest!(inplace_keeps_written_data, |w: World| {
    large(&w);
    leave_the_same(&w, &["-a", "--inplace", SLOWLY], Signal::INT, overwritten);
    resumes_with(&w, &["-a", "--inplace"]);
});

synctest!(inplace_new_file_grows_under_its_final_name, |w: World| {
    w.only_local("over a network, a new file has a temporary name until it is complete");
    w.source("a big*12000000").dest("");
    // The incomplete file must be visible under its final name.
    let grows = |world: &Path| {
        std::fs::metadata(world.join("dst/big"))
            .is_ok_and(|meta| (1..12_000_000).contains(&meta.len()))
    };
    leave_the_same(&w, &["-a", "--inplace", SLOWLY], Signal::INT, grows);
});

synctest!(interrupted_run_deletes_nothing_afterwards, |w: World| {
    large(&w);
    for when in ["--delete-after", "--delete-delay"] {
        leave_the_same(&w, &["-a", when, SLOWLY], Signal::INT, under_way);
    }
    assert!(w.tested().join("dst/extra").exists());
});

synctest!(
    interrupted_delay_updates_resume_in_the_next_run,
    |w: World| {
        large(&w);
        w.dest("a=before");
        let argv = ["-a", "--delay-updates", SLOWLY];
        leave_the_same(&w, &argv, Signal::INT, under_way);
        old_file_stays(&w);
        resumes_with(&w, &["-a", "--delay-updates"]);
    }
);

synctest!(full_queue_does_not_delay_the_interrupt, |w: World| {
    // More directories than the queue holds, after files that keep every applier busy.
    let dirs: Vec<String> = (0..700).map(|n| format!("d{n}/x")).collect();
    let files: Vec<String> = (0..10).map(|n| format!("f{n}*6000000")).collect();
    w.source("big*6000000")
        .source(&files.join(" "))
        .source(&dirs.join(" "))
        .dest("big=old");
    let [_, left] = w.interrupt(&["-a", SLOWLY], Signal::INT, under_way);
    assert!(!left.iter().any(|path| path.contains("/.")), "{left:?}");
    old_file_stays(&w);
});

// Checks promptness without a clock: after the signal, a run makes only a few more calls, and none of them takes long,
// not even one step of a copy. The bounded lookahead of the scanner is included. A complete run would make many times
// more calls.
synctest!(interrupted_run_makes_few_further_calls, |w: World| {
    const FURTHER_CALLS: u64 = 4000;
    w.only_local("both ends would be blocked");
    let files: Vec<String> = (0..1500).map(|dir| format!("d{dir}/f")).collect();
    w.source(&files.join(" "));
    for at in [100, 1000, 5000, 10_000] {
        let output = w.interrupt_at_call(&["-a"], Signal::TERM, at, FURTHER_CALLS);
        assert_eq!(
            output.exit,
            20,
            "held at call {at}: {}",
            output.stderr.escape_ascii()
        );
    }
});

// The names of a list are examined one after the other before the copy begins.
synctest!(
    interrupt_ends_the_examination_of_listed_names,
    |w: World| {
        const FURTHER_CALLS: u64 = 500;
        let names: Vec<String> = (0..5000).map(|at| format!("none{at}\n")).collect();
        w.only_local("both ends would be blocked")
            .source("a")
            .file("list", names.concat());
        for at in [1000, 3000] {
            let options = ["-a", "--files-from=list", "--ignore-missing-args"];
            let output = w.interrupt_at_call(&options, Signal::TERM, at, FURTHER_CALLS);
            assert_eq!(
                output.exit,
                20,
                "held at call {at}: {}",
                output.stderr.escape_ascii()
            );
        }
    }
);

/// Runs a program on two files and sends it SIGVTALRM before it knows their names. Returns its standard output without the
/// rate, the time and the totals, and each line once: rsync's processes inherit a request and may print a name again.
fn asked_for_progress(program: &Path, options: &[String], operands: [&str; 2]) -> Vec<String> {
    let top = tempfile::tempdir_in(oracle::scratch()).unwrap();
    // The names can be written once the program has opened the fifo, so it is under way.
    let script = "mkdir src dst && echo text >src/a && echo longer >src/b && mkfifo names
        \"$@\" & exec 3>names
        kill -VTALRM $! && printf 'a\\nb\\n' >&3 && exec 3>&- && wait $!";
    let far = format!("far:{}/", top.path().display());
    let mut run = Command::new("bash");
    run.args(["-ec", script, "bash"]).arg(program);
    run.args(["-a", "--files-from=names", "--no-h"])
        .args(options);
    run.args(operands.map(|operand| operand.replace("far:", &far)));
    let output = run.current_dir(top.path()).output().unwrap();
    assert!(output.status.success(), "{}: {output:?}", program.display());

    let mut lines: Vec<String> = Vec::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        if line.starts_with("sent ") || line.starts_with("total size ") {
            continue;
        }
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if line.starts_with('\r') {
            words.drain(2..4);
        }
        // Whether all of the list has arrived by now is a matter of time.
        let line = words.join(" ").replace("ir-chk", "to-chk");
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

#[test]
fn a_request_for_progress_is_answered_as_by_rsync() {
    let far = tempfile::tempdir_in(oracle::scratch()).unwrap();
    let own = far.path().join("own");
    let stock = far.path().join("stock");
    let under_test = oracle::under_test().display();
    write_script(
        &own,
        &format!("#!/bin/sh\nshift 2\nexec {under_test} \"$@\"\n"),
    );
    let rsync = oracle::rsync().display();
    write_script(
        &stock,
        &format!("#!/bin/sh\nshift 2\nexec {rsync} \"$@\"\n"),
    );

    for operands in [["src/", "dst/"], ["src/", "far:dst/"], ["far:src/", "dst/"]] {
        for options in [&[][..], &["-v"], &["-i"], &["-q"], &["-n"], &["--progress"]] {
            let shell = |shell: &Path| format!("--rsh={}", shell.display());
            let with = |shell: &str| -> Vec<String> {
                let options = options.iter().map(ToString::to_string);
                std::iter::once(shell.to_owned()).chain(options).collect()
            };
            let wanted = asked_for_progress(oracle::rsync(), &with(&shell(&stock)), operands);
            for shell in [shell(&own), shell(&stock)] {
                let got = asked_for_progress(oracle::under_test(), &with(&shell), operands);
                if options == ["--progress"] {
                    assert_eq!(got.len(), wanted.len(), "{operands:?}: {got:?} {wanted:?}");
                    continue;
                }
                assert_eq!(got, wanted, "{operands:?} {options:?}");
            }
        }
    }
}

#[test]
fn a_request_for_progress_adds_an_object_to_json() {
    let got = asked_for_progress(
        oracle::under_test(),
        &["--json".to_owned()],
        ["src/", "dst/"],
    );
    let wanted = "{\"type\":\"progress\",\"path\":\"a\",\"done_bytes\":5,";
    assert!(got.iter().any(|line| line.starts_with(wanted)), "{got:?}");
}

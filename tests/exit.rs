//! Bad input and failures: the message, what the run does nevertheless, and the exit code.

use crate::kit::{World, oracle, report_skip, synctest};
use std::process::Command;

/// Declares a case with a command line that is rejected before anything is touched.
macro_rules! refuses {
    ($name:ident, $code:expr, $text:expr, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("a d/b").dest("old");
            w.once().no_dry_run().agree(&[$($option),+]).exits($code).warns($text);
        });
    };
}

refuses!(
    an_unknown_option,
    1,
    "rsync: --bogus: unknown option",
    ["-a", "--bogus"]
);
refuses!(an_unknown_letter, 1, "unknown option", ["-aG"]);
refuses!(
    an_abbreviated_option,
    1,
    "rsync: --arch: unknown option",
    ["--arch"]
);
refuses!(switch_with_an_argument, 1, "--archive", ["--archive=yes"]);
refuses!(
    a_bad_max_size,
    1,
    "--max-size=foo is invalid",
    ["-a", "--max-size=foo"]
);
refuses!(
    a_bad_min_size,
    1,
    "--min-size=1X is invalid",
    ["-a", "--min-size=1X"]
);
refuses!(
    a_bad_modify_window,
    1,
    "--modify-window=x: invalid numeric value",
    ["-a", "--modify-window=x"]
);
refuses!(
    a_bad_max_delete,
    1,
    "--max-delete=x: invalid numeric value",
    ["-a", "--delete", "--max-delete=x"]
);
refuses!(
    a_bad_timeout,
    1,
    "--timeout=x: invalid numeric value",
    ["-a", "--timeout=x"]
);
refuses!(
    a_bad_bwlimit,
    1,
    "--bwlimit=foo is invalid",
    ["-a", "--bwlimit=foo"]
);
refuses!(
    bwlimit_below_its_minimum,
    1,
    "--bwlimit=100b is too small",
    ["-a", "--bwlimit=100b"]
);
refuses!(
    a_bad_chmod,
    1,
    "Invalid argument passed to --chmod (zz)",
    ["-a", "--chmod=zz"]
);
refuses!(a_bad_octal_chmod, 1, "--chmod (999)", ["-a", "--chmod=999"]);
refuses!(
    a_bad_filter,
    1,
    "Unknown filter rule: bogus x",
    ["-a", "--filter=bogus x"]
);
refuses!(
    a_filter_without_its_pattern,
    1,
    "unexpected end of filter rule: - ",
    ["-a", "--filter=- "]
);
refuses!(
    unknown_kind_of_filter,
    1,
    "Unknown filter rule",
    ["-a", "--delete", "-f +"]
);
refuses!(
    missing_exclude_file,
    11,
    "failed to open exclude file nowhere: No such file",
    ["-a", "--exclude-from=nowhere"]
);
refuses!(
    missing_include_file,
    11,
    "failed to open include file nowhere",
    ["-a", "--include-from=nowhere"]
);
refuses!(
    missing_merge_file,
    11,
    "failed to open exclude file nowhere",
    ["-a", "-f. nowhere"]
);
refuses!(
    invalid_stop_at,
    1,
    "invalid --stop-at format: foo",
    ["-a", "--stop-at=foo"]
);
refuses!(
    invalid_stop_after,
    1,
    "invalid --stop-after value: x",
    ["-a", "--stop-after=x"]
);
refuses!(
    a_suffix_with_a_slash,
    1,
    "--suffix cannot contain slashes: a/b",
    ["-ab", "--suffix=a/b"]
);
refuses!(
    an_empty_suffix,
    1,
    "--suffix cannot be empty without a --backup-dir",
    ["-ab", "--suffix="]
);
refuses!(
    a_bad_outbuf,
    1,
    "Invalid --outbuf setting",
    ["-a", "--outbuf=z"]
);
refuses!(
    inplace_with_a_partial_dir,
    1,
    "--inplace cannot be used with --partial-dir",
    ["-a", "--inplace", "--partial-dir=x"]
);
refuses!(
    inplace_with_delay_updates,
    1,
    "cannot be used with",
    ["-a", "--inplace", "--delay-updates"]
);
refuses!(
    append_with_whole_file,
    1,
    "--append cannot be used with --whole-file",
    ["-a", "--append", "-W"]
);
refuses!(
    two_delete_timings,
    1,
    "You may not combine multiple --delete-WHEN options.",
    ["-a", "--delete-before", "--delete-after"]
);
refuses!(
    a_usermap_without_a_colon,
    1,
    "No colon found in --usermap: foo",
    ["-a", "--usermap=foo"]
);
refuses!(
    two_usermaps,
    1,
    "usermap",
    ["-a", "--usermap=1:2", "--chown=3"]
);
refuses!(
    an_unknown_checksum,
    4,
    "unknown checksum name",
    ["-ac", "--checksum-choice=crc"]
);
refuses!(
    an_unknown_checksum_of_two,
    4,
    "unknown checksum name: x",
    ["-a", "--cc=md5,x"]
);
refuses!(
    no_checksum_at_all,
    4,
    "unknown checksum name: ",
    ["-a", "--cc="]
);
refuses!(
    append_without_a_checksum,
    1,
    "--append cannot be used with --whole-file",
    ["-a", "--append", "--cc=none"]
);
refuses!(
    an_unknown_stderr_mode,
    1,
    "stderr",
    ["-a", "--stderr=nowhere"]
);
refuses!(
    an_unknown_debug_word,
    1,
    "nonsense",
    ["-a", "--debug=nonsense"]
);

synctest!(
    checksum_comparison_without_a_checksum_exits_4,
    |w: World| {
        w.not_pulled("rsync's client loses the connection before it prints the error");
        w.source("a").dest("");
        for options in [&["-ac", "--cc=none"], &["-ac", "--cc=md5,none"]] {
            // Each of rsync's processes reports its exit, in any order.
            w.once()
                .no_dry_run()
                .mask_with(|line| (!line.starts_with("rsync error:")).then(|| line.to_owned()));
            w.agree(options)
                .exits(4)
                .warns("Invalid checksum-choice for --checksum: none (0)");
        }
    }
);

synctest!(failed_checksum_negotiation_exits_4, |w: World| {
    w.source("a").dest("").env("RSYNC_CHECKSUM_LIST", "foo");
    w.once()
        .no_dry_run()
        .mask_with(|line| (!line.starts_with("rsync error:")).then(|| line.to_owned()));
    w.agree(&["-a"])
        .exits(4)
        .warns("Failed to negotiate a checksum choice.\n");
});

synctest!(an_option_without_its_argument, |w: World| {
    w.once()
        .no_dry_run()
        .agree_paths(&["-e"], &[""; 0])
        .exits(1)
        .warns("-e: missing argument");
});

synctest!(chown_to_an_unknown_name_is_a_warning, |w: World| {
    w.source("a").dest("");
    w.stderr_unordered()
        .agree(&["-ai", "--chown=nosuch:nosuch"])
        .exits(0)
        .warns("Unknown --usermap name on receiver: nosuch");
});

// ── operands ────────────────────────────────────────────────────────────────────────────────────
synctest!(
    missing_source_exits_23_and_the_rest_is_copied,
    |w: World| {
        w.source("a").dest("");
        w.agree_paths(&["-ai"], &["nowhere", "src/", "dst/"])
            .exits(23)
            .prints(">f+++++++++ a")
            .warns("link_stat \"{W}/nowhere\" failed");
    }
);

synctest!(a_missing_source_alone, |w: World| {
    w.dest("old");
    w.agree_paths(&["-ai", "--delete"], &["nowhere/", "dst/"])
        .exits(23);
});

synctest!(an_empty_directory_onto_a_file, |w: World| {
    w.tree("src/d", "").tree(".", "f");
    w.agree_paths(&["-ai"], &["src/d", "f"])
        .exits(3)
        .warns("cannot overwrite non-directory with a directory");
});

synctest!(several_missing_sources, |w: World| {
    w.source("a").dest("");
    w.agree_paths(&["-ai"], &["one", "src/two", "src/d/three", "dst/"])
        .exits(23);
});

synctest!(a_file_with_a_slash_is_no_directory, |w: World| {
    w.source("a").dest("");
    w.agree_paths(&["-ai"], &["src/a/", "dst/"]).exits(23);
});

synctest!(a_destination_below_a_file, |w: World| {
    w.source("a").tree(".", "f");
    w.agree_paths(&["-ai"], &["src/", "f/dst"]).warns("rsync");
});

synctest!(destination_with_a_missing_parent_exits_11, |w: World| {
    w.source("a");
    w.agree_paths(&["-ai"], &["src/", "no/such"])
        .exits(11)
        .warns("mkdir \"{W}/no/such\" failed: No such file or directory (2)");
});

synctest!(destination_that_cannot_be_created_exits_11, as user, |w: World| {
    w.source("a").build("shut", |t| drop(t.dir(".").owner(1, 1).mode(0o555)));
    w.agree_paths(&["-ai"], &["src/", "shut/dst"]).exits(11).warns("Permission denied (13)");
});

synctest!(a_destination_that_is_a_dangling_symlink, |w: World| {
    w.source("a").tree(".", "dst->nowhere");
    w.stderr_unordered().agree(&["-ai"]);
});

synctest!(a_destination_that_is_a_symlink_to_itself, |w: World| {
    w.source("a").tree(".", "dst->dst");
    w.stderr_unordered().agree(&["-ai"]);
});

// ── unreadable files and directories ────────────────────────────────────────────────────────────
synctest!(an_unreadable_file, as user, |w: World| {
    w.source("a z d/b").build("src", |t| drop(t.file("shut", "x").mode(0)));
    w.dest("").agree(&["-ai"]).exits(23).warns("send_files failed to open \"{W}/src/shut\": Permission denied (13)");
});

synctest!(counts_for_programs_leave_unreadable_files_out, as user, |w: World| {
    w.not_served("an rsync has no --json").source("a z d/b").build("src", |t| drop(t.file("shut", "x").mode(0)));
    w.dest("").alone(&["-a", "--json"]).exits(23).prints("\"transferred_files\":3,").prints("\"errors\":1,");
});

synctest!(stats_count_unreadable_files_at_the_sender, as user, |w: World| {
    w.source("a%0 b c%0 d").dest("c=old");
    w.agree(&["-a", "--stats"]).exits(23);
});

synctest!(an_unreadable_file_that_is_up_to_date, as user, |w: World| {
    w.source("a").build("src", |t| drop(t.file("shut", "x").mode(0)));
    w.build("dst", |t| drop(t.file("shut", "x").mode(0)));
    w.agree(&["-ai"]).exits(0);
});

synctest!(an_unreadable_file_under_checksums, as user, |w: World| {
    w.source("a").build("src", |t| drop(t.file("shut", "x").mode(0)));
    w.build("dst", |t| drop(t.file("shut", "x").mode(0)));
    w.stderr_unordered().agree(&["-aic"]);
});

synctest!(an_unreadable_directory, as user, |w: World| {
    w.source("a z d/b").build("src", |t| drop(t.dir("shut").mode(0)));
    w.dest("").agree(&["-ai"]).exits(23).warns("opendir \"{W}/src/shut\" failed: Permission denied (13)");
});

synctest!(a_directory_that_can_be_listed_but_not_entered, as user, |w: World| {
    w.build("src", |t| {
        t.file("half/x", "x");
        t.file("half/y", "y");
        t.dir("half").mode(0o644);
    });
    w.dest("").stderr_unordered().agree(&["-ai"]).exits(23);
});

synctest!(an_unreadable_directory_in_the_destination, as user, |w: World| {
    w.source("a d/b").build("dst", |t| drop(t.dir("d").owner(1, 1).mode(0)));
    w.stderr_unordered().agree(&["-rti"]).exits(23);
});

synctest!(a_directory_in_the_destination_that_may_be_entered_but_not_read, as user, |w: World| {
    w.source("a d/b d/c=new").build("dst", |t| {
        t.file("d/c", "old");
        t.dir("d").owner(1, 1).mode(0o733);
    });
    w.stderr_unordered().agree(&["-ri"]);
});

synctest!(unreadable_own_directory_in_the_destination, as user, |w: World| {
    w.source("a d/b").build("dst", |t| drop(t.dir("d").mode(0)));
    w.stderr_unordered().agree(&["-ai"]);
});

/// Drops the line that rsync's sender prints if its receiver exits before the sender has finished writing. Whether it
/// appears depends on the timing of the two processes.
fn without_the_pipe(line: &str) -> Option<String> {
    (!line.contains("write error: Broken pipe")).then(|| line.to_owned())
}

// ── full disk ───────────────────────────────────────────────────────────────────────────────────
synctest!(full_disk_keeps_complete_files, as root, |w: World| {
    w.source("a b big*3000000").dest("");
    w.mount_tmpfs("dst", 1 << 20);
    w.dest("old");
    w.stderr_unordered().mask_with(without_the_pipe).once().no_dry_run().agree(&["-ai"]).exits(11).warns("No space left on device (28)");
});

synctest!(failed_preallocation_is_a_warning, as root, |w: World| {
    w.build("src", |t| drop(t.sparse("hole", 4 << 20, &[(0, b"data")]))).dest("");
    w.mount_tmpfs("dst", 1 << 20);
    w.stderr_unordered().once().no_dry_run().agree(&["-aiS", "--preallocate"]).exits(0).warns("do_fallocate");
});

synctest!(a_full_disk_keeps_the_old_file, as root, |w: World| {
    w.source("big*3000000").dest("");
    w.mount_tmpfs("dst", 1 << 20);
    w.dest("big=old");
    w.stderr_unordered().mask_with(without_the_pipe).once().no_dry_run().agree(&["-ai"]).exits(11);
});

synctest!(a_read_only_file_system, as root, |w: World| {
    w.source("a=new d/b l->a").dest("");
    w.mount_tmpfs("dst", 1 << 20);
    w.dest("a=older gone");
    w.remount_read_only("dst");
    w.stderr_unordered().agree(&["-ai", "--delete"]).exits(23).warns("Read-only file system (30)");
});

// ── attributes that cannot be set ───────────────────────────────────────────────────────────────
synctest!(attributes_of_another_users_file_cannot_be_changed, as user, |w: World| {
    w.source("a%600@9").build("dst", |t| drop(t.file("a", "a\n").owner(1, 1).mode(0o644)));
    w.stderr_unordered().agree(&["-ai", "--size-only"]).exits(23).warns("Operation not permitted (1)");
});

synctest!(times_of_another_users_directory_cannot_be_set, as user, |w: World| {
    w.source("d/@9").build("dst", |t| drop(t.dir("d").owner(1, 1).mode(0o777)));
    w.stderr_unordered().agree(&["-ai"]).exits(23);
});

synctest!(long_name_gets_a_shortened_temporary_name, |w: World| {
    let name = "n".repeat(250);
    w.source(&format!("{name}=new {}=new", "m".repeat(248)))
        .dest(&format!("{name}=old!"));
    w.agree(&["-ai"]).exits(0);
});

synctest!(a_backup_name_that_is_too_long, |w: World| {
    let name = "n".repeat(255);
    w.source(&format!("{name}=new a"))
        .dest(&format!("{name}=old!"));
    w.stderr_unordered().agree(&["-aib"]);
});

#[test]
fn thread_limit_exits_22_or_the_run_succeeds() {
    use std::os::unix::process::CommandExt as _;
    const NAME: &str = "thread_limit_exits_22_or_the_run_succeeds";
    if !rustix::process::geteuid().is_root() {
        return report_skip(
            NAME,
            "only root can run a program as a user without other processes",
        );
    }
    // No other process runs as this user: the limit counts all threads of the user.
    const ALONE: u32 = 54_322;
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let (source, dest) = (dir.path().join("src"), dir.path().join("dst"));
    std::fs::create_dir(&source).expect("scratch can be written");
    std::fs::write(source.join("a"), "a").expect("scratch can be written");
    for path in [dir.path().to_owned(), source.clone(), source.join("a")] {
        std::os::unix::fs::chown(path, Some(ALONE), Some(ALONE))
            .expect("root can change the owner");
    }
    let mut ends = std::collections::BTreeSet::new();
    // Up to the number of threads of a run and beyond: two per processor, up to a bound, and a few more.
    for most in 1..=40 {
        // The timeout catches a run that waits for a thread that was never started.
        let mut command = Command::new("timeout");
        command.args([
            "--kill-after=1",
            "60",
            "prlimit",
            &format!("--nproc={most}"),
        ]);
        command
            .arg(oracle::under_test())
            .args(["-a", "--no-D"])
            .arg(source.join(""))
            .arg(&dest);
        let output = command
            .uid(ALONE)
            .gid(ALONE)
            .output()
            .expect("timeout and prlimit are installed");
        let end = output.status.code();
        assert!(
            matches!(end, Some(0 | 22)),
            "with {most} threads: {output:?}"
        );
        ends.insert(end);
    }
    assert!(
        ends.contains(&Some(0)) && ends.contains(&Some(22)),
        "{ends:?}"
    );
}

// ── precedence of exit codes ────────────────────────────────────────────────────────────────────
/// Runs with a source in a missing directory, which counts as vanished, and with the sources `more`.
fn vanished_and(w: World, more: &[&str]) {
    w.source("f d/g").dest("f/x").once().stderr_unordered();
    let paths = [&["src/./nope/x"], more, &["dst/"]].concat();
    w.agree_paths(&["-aR", "--delete-missing-args"], &paths);
}

synctest!(a_vanished_file_alone, |w: World| vanished_and(
    w,
    &["src/./d"]
));
synctest!(a_vanished_file_and_one_that_cannot_be_placed, |w: World| {
    vanished_and(w, &["src/./f"])
});

/// Runs a copy of a tree whose lines do not fit into its pipe. The reader closes the pipe after the first line, or before
/// the run. Returns the exit code, and whether all was copied.
fn copy_into_closed_pipe(
    program: &std::path::Path,
    options: &[&str],
    reads_a_line: bool,
) -> (Option<i32>, bool) {
    use std::io::Read as _;
    const FILES: usize = 400;
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    std::fs::create_dir(dir.path().join("src")).expect("scratch can be written");
    for n in 0..FILES {
        std::fs::write(
            dir.path()
                .join(format!("src/a-file-with-a-longer-name-{n}")),
            "x",
        )
        .expect("scratch can be written");
    }
    let (read, write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a descriptor is free");
    rustix::pipe::fcntl_setpipe_size(&write, 4096).expect("it is a pipe");
    let mut read = Some(std::fs::File::from(read)).filter(|_| reads_a_line);
    let mut command = Command::new(program);
    command
        .args(options)
        .args(["src/", "dst"])
        .current_dir(dir.path())
        .env("LC_ALL", "C");
    let child = command
        .stdin(std::process::Stdio::null())
        .stdout(write)
        .stderr(std::process::Stdio::null())
        .spawn();
    let mut child = child.expect("the program can be started");
    drop(command);
    let mut byte = [0];
    while let Some(read) = &mut read
        && read.read(&mut byte).expect("the pipe is open") == 1
        && byte != *b"\n"
    {}
    drop(read);
    let code = child.wait().expect("the program was started").code();
    let copied = std::fs::read_dir(dir.path().join("dst")).map_or(0, Iterator::count);
    (code, copied == FILES)
}

#[test]
fn closed_pipe_ends_only_runs_that_do_not_buffer_their_output() {
    for (outbuf, reads_a_line, code) in [
        ("--outbuf=B", true, 0),
        ("--outbuf=L", true, 0),
        ("--outbuf=N", true, 13),
        ("--outbuf=B", false, 0),
        ("--outbuf=L", false, 13),
    ] {
        for options in [
            &["-av", outbuf][..],
            &["-ai", outbuf, "--info=flist2"],
            &["-av", "--progress", outbuf],
        ] {
            let theirs = copy_into_closed_pipe(oracle::rsync(), options, reads_a_line);
            let ours = copy_into_closed_pipe(oracle::under_test(), options, reads_a_line);
            assert_eq!(
                [ours.0, theirs.0],
                [Some(code); 2],
                "{options:?} {reads_a_line}"
            );
            // On a busy machine, a run that ends may have copied all before it notices.
            assert!(ours.1 || code != 0, "{options:?} {reads_a_line}");
        }
    }
    assert_eq!(
        copy_into_closed_pipe(oracle::under_test(), &["-a", "--json"], true),
        (Some(0), true)
    );
}

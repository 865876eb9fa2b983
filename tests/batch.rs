//! Batch files: sparsync and rsync read what either of them has written.

use crate::kit::{OLD, TREE, World, oracle, synctest};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

const LOCAL: &str = "a batch file is read here";
/// The batch file, beside the twins.
const BATCH: &str = "../batch";

/// Runs a program in the world, which records a copy of `src/` to a copy of `dst/`. Neither changes.
fn record(w: &World, program: &Path, options: &[&str]) -> Output {
    let world = w.tested();
    let copied = Command::new("cp")
        .args(["-a", "dst", "../recorded"])
        .current_dir(world)
        .status()
        .unwrap();
    assert!(copied.success(), "the destination can be copied");
    let mut run = Command::new(program);
    run.args(options)
        .args(["src/", "../recorded/"])
        .current_dir(world)
        .env("LC_ALL", "C");
    let output = run.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{options:?}: {output:?}");
    std::fs::remove_dir_all(world.join("../recorded")).unwrap();
    output
}

/// Both programs read what each of them has written.
fn read_both_ways(w: &World, recorded: &[&str], read: &[&str]) {
    for option in ["--write-batch", "--only-write-batch"] {
        for program in [oracle::rsync(), oracle::under_test()] {
            record(
                w,
                program,
                &[recorded, &[&format!("{option}={BATCH}")]].concat(),
            );
            w.once().no_dry_run();
            w.agree_paths(
                &[read, &[&format!("--read-batch={BATCH}")]].concat(),
                &["dst/"],
            )
            .exits(0);
            w.restore_dest();
        }
    }
}

fn twins(w: &World) -> [std::path::PathBuf; 2] {
    let scratch = w
        .tested()
        .parent()
        .expect("a twin is in a scratch directory");
    ["oracle", "tested"].map(|name| scratch.join(name))
}

/// Creates `src` and `dst`, which is kept.
fn trees<'w>(w: &'w World, source: &str, dest: &str) -> &'w World {
    w.only_local(LOCAL).source(source).dest(dest).keep_dest()
}

synctest!(batch_of_each_protocol, |w: World| {
    trees(&w, TREE, OLD);
    for protocol in [30, 32] {
        read_both_ways(
            &w,
            &["-a", &format!("--protocol={protocol}")],
            &["-ai", "--delete-during"],
        );
    }
    // Before protocol 29, rsync has another order.
    for (protocol, options) in [(27, "-a"), (28, "-a"), (29, "-av"), (31, "-av")] {
        let written = format!("--write-batch={BATCH}");
        record(
            &w,
            oracle::rsync(),
            &["-a", "--no-W", &format!("--protocol={protocol}"), &written],
        );
        w.agree_paths(&[options, &format!("--read-batch={BATCH}")], &["dst/"])
            .exits(0);
        w.restore_dest();
    }
    w.agree_paths(
        &["-a", "--protocol=28", &format!("--read-batch={BATCH}")],
        &["dst/"],
    )
    .exits(2);
});

synctest!(batch_with_deltas_and_compression, |w: World| {
    trees(
        &w,
        "a*300000 b*90000 c d/e*5000",
        "a*250000@-4 b*80000@-9 d/",
    );
    read_both_ways(&w, &["-a"], &["-ai", "--stats"]);
    read_both_ways(&w, &["-az"], &["-aiz", "--stats"]);
    read_both_ways(&w, &["-a", "--inplace"], &["-ai", "--inplace"]);
    read_both_ways(&w, &["-a", "-B2000"], &["-aiv"]);
});

synctest!(sources_beside_a_batch_do_not_count, |w: World| {
    trees(&w, "a*3000 d/b", "a*2000@-4 d/").no_dry_run().once();
    let written = format!("--write-batch={BATCH}");
    record(&w, oracle::rsync(), &["-a", &written]);
    let read = format!("--read-batch={BATCH}");
    for sources in [
        &["src/"][..],
        &["far:none/"],
        &["none", "far:none", "rsync://far/none/"],
    ] {
        w.agree_paths(&["-ai", &read], &[sources, &["dst/"]].concat())
            .exits(0);
    }
});

synctest!(batch_with_similar_files, |w: World| {
    trees(&w, "report-2.txt*90000", "report-1.txt*80000@-9").once();
    let written = format!("--write-batch={BATCH}");
    record(&w, oracle::rsync(), &["-ay", &written]);
    w.agree_paths(&["-aiy", &format!("--read-batch={BATCH}")], &["dst/"])
        .exits(0);
});

// Decompressing needs the blocks of the basis.
synctest!(
    batch_with_compressed_deltas_against_alternate_trees,
    |w: World| {
        trees(&w, "a*300000 d/b*90000", "")
            .tree("alt", "a*250000@-4")
            .tree("other", "a*9@-4 d/b*80000@-9");
        let [alt, other] =
            ["alt", "other"].map(|name| format!("--copy-dest={}", w.tested().join(name).display()));
        let read = [
            "-aiz",
            "--zc=zlib",
            "--copy-dest=../alt",
            "--copy-dest={W}/other",
        ];
        read_both_ways(&w, &["-az", "--zc=zlib", "--no-W", &alt, &other], &read);
    }
);

synctest!(batch_over_clones, as root, |w: World| {
    trees(&w, "a*300000 d/b*90000 same", "").tree("fs", "").mount_image("fs", "btrfs");
    w.tree("fs/alt", "a*250000@-4 d/b*80000@-9 same");
    w.mask_with(crate::clone_dest::without_note).once().no_dry_run();
    let recorded = format!("--copy-dest={}", w.tested().join("fs/alt").display());
    for (n, program) in [oracle::rsync(), oracle::under_test()].into_iter().enumerate() {
        let written = format!("--write-batch={BATCH}");
        record(&w, program, &["-a", "--no-W", &recorded, &written]);
        let dest = format!("fs/dst{n}");
        w.tree(&dest, "");
        let read = format!("--read-batch={BATCH}");
        w.agree_paths(&["-ai", "--clone-dest=../alt", &read], &[&format!("{dest}/")])
            .exits(0);
        let [got, wanted] = [&dest, "src"].map(|name| w.tested().join(name).join("d/b"));
        assert!(std::fs::read(got).unwrap() == std::fs::read(wanted).unwrap());
    }
    // A batch has no option for that.
    w.alone(&["-a", "--clone-dest=../alt", "--write-batch=refused"]).exits(1);
    assert!(!w.tested().join("refused").exists());
});

synctest!(batch_of_appended_files, |w: World| {
    trees(&w, "a*5000 b*100 new", "a*3000@-4 b*100");
    read_both_ways(&w, &["-a", "--append"], &["-ai", "--append"]);
    read_both_ways(&w, &["-a", "--append-verify"], &["-ai", "--append-verify"]);
});

// How files are written is that of the batch, also if the command line that reads it says otherwise.
synctest!(batch_decides_how_files_are_written, |w: World| {
    trees(&w, "a*5000 b*100 new", "a*3000@-4 b*100");
    for (recorded, read) in [
        ("--append", "--append-verify"),
        ("--append-verify", "--append"),
        ("--append", "--inplace"),
        ("--append", "--delay-updates"),
        ("--inplace", "--delay-updates"),
        ("--inplace", "--partial-dir=parts"),
    ] {
        // --delay-updates needs the whole list first.
        read_both_ways(
            &w,
            &["-a", "--no-i-r", recorded],
            &["-ai", "--no-i-r", read],
        );
    }
});

synctest!(batch_with_hard_links_and_checksums, |w: World| {
    trees(&w, "a b==a d/c==a e f", "a@-5 e");
    read_both_ways(&w, &["-aH"], &["-aiH"]);
    read_both_ways(&w, &["-ac"], &["-aic"]);
});

// An rsync that reads a batch with hard links waits for the end of the list, and would wait forever if files come first.
synctest!(
    batch_with_hard_links_has_the_whole_list_first,
    |w: World| {
        const INC_RECURSE: u8 = 1;
        /// The last byte of the compatibility flags, which follow two numbers of four bytes.
        const FLAGS_AT: usize = 9;
        trees(&w, "a b==a d/c==a", "");
        for (options, is_whole) in [("-a", false), ("-aH", true)] {
            record(
                &w,
                oracle::under_test(),
                &[options, &format!("--write-batch={BATCH}")],
            );
            let batch = std::fs::read(w.tested().join(BATCH)).unwrap();
            assert_eq!(batch[FLAGS_AT] & INC_RECURSE == 0, is_whole, "{options}");
        }
    }
);

synctest!(batch_with_attributes, |w: World| {
    w.needs_xattrs();
    let value = |len: usize| "v".repeat(len);
    for (name, len) in [("src", 40), ("dst", 30)] {
        w.build(name, |t| {
            t.file("f", name)
                .xattr("user.a", value(len))
                .xattr("user.b", value(3));
            t.file("g", "same").xattr("user.long", value(900));
        });
    }
    trees(&w, "d/", "").once().no_dry_run();
    record(
        &w,
        oracle::rsync(),
        &["-aX", &format!("--write-batch={BATCH}")],
    );
    w.agree_paths(&["-aiX", &format!("--read-batch={BATCH}")], &["dst/"])
        .exits(0);
});

synctest!(options_follow_the_batch, |w: World| {
    trees(&w, TREE, OLD);
    let (written, read) = (
        format!("--write-batch={BATCH}"),
        format!("--read-batch={BATCH}"),
    );
    record(
        &w,
        oracle::rsync(),
        &["-az", "--no-inc-recursive", &written],
    );
    w.no_dry_run().once();
    w.agree_paths(&["-aHAXcv", "--inplace", &read], &["dst/"])
        .exits(0);
    w.restore_dest();
    w.agree_paths(&["-tpv", &read], &["dst/"]).exits(0);
    w.restore_dest();
    record(&w, oracle::rsync(), &["-a", &written]);
    for options in [
        ["-av", "--delete-after"],
        ["-av", "--no-inc-recursive"],
        ["-tv", "-p"],
    ] {
        w.agree_paths(&[&options[..], &[&read]].concat(), &["dst/"])
            .exits(1);
    }
});

synctest!(
    files_that_the_batch_lacks_or_the_destination_has,
    |w: World| {
        trees(&w, "a b*70000 c d/x e", "a b*69000@-4 c d/x e");
        let read = format!("--read-batch={BATCH}");
        record(
            &w,
            oracle::rsync(),
            &["-a", &format!("--write-batch={BATCH}")],
        );
        for twin in twins(&w) {
            std::fs::remove_file(twin.join("dst/c")).unwrap();
        }
        // rsync often waits forever after that.
        for options in ["-a", "-av"] {
            let run = Command::new(oracle::under_test())
                .args([options, &read, "dst/"])
                .current_dir(w.tested())
                .output();
            let run = run.unwrap();
            assert_eq!(run.status.code(), Some(23), "{run:?}");
            assert_eq!(
                String::from_utf8_lossy(&run.stderr)
                    .matches("(No batched update for \"c\")\n")
                    .count(),
                1
            );
            assert_eq!(
                std::fs::metadata(w.tested().join("dst/b")).unwrap().len(),
                70_000
            );
        }
    }
);

synctest!(batch_from_standard_input, |w: World| {
    trees(&w, TREE, OLD).once();
    record(
        &w,
        oracle::rsync(),
        &["-a", &format!("--write-batch={BATCH}")],
    );
    w.stdin(std::fs::read(w.tested().join(BATCH)).unwrap());
    w.agree_paths(&["-ai", "--read-batch=-"], &["dst/"])
        .exits(0);
});

/// Runs a shell script beside the world with `$1` as the program. The script must succeed.
fn script(w: &World, program: &Path, text: &str) -> Output {
    let output = Command::new("bash")
        .args(["-ec", text, "script"])
        .arg(program)
        .current_dir(w.tested())
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}: {output:?}");
    output
}

synctest!(batch_from_a_pipe_whose_writer_is_late, |w: World| {
    trees(&w, TREE, "").once();
    record(
        &w,
        oracle::rsync(),
        &["-a", &format!("--write-batch={BATCH}")],
    );
    // The writer begins when the reader has opened the fifo, and goes on when another fifo is opened.
    let late = "mkfifo batch.fifo; (cat ../batch >batch.fifo) & $1 -a --read-batch=batch.fifo new/ && wait";
    let substituted = "$1 -a --read-batch=<(cat ../batch) new/";
    let slow = "mkfifo go; { head -c 20 ../batch; read -r _ <go; tail -c +21 ../batch; } | \
        $1 -a --read-batch=/dev/stdin new/ & echo >go; wait $!";
    for text in [late, substituted, slow] {
        script(&w, oracle::under_test(), text);
        let same = Command::new("diff")
            .args(["-r", "src", "new"])
            .current_dir(w.tested())
            .output()
            .unwrap();
        assert!(same.status.success(), "{text}: {same:?}");
        script(&w, oracle::under_test(), "rm -r new");
    }
});

synctest!(batch_with_endless_data_behind_it, |w: World| {
    trees(&w, TREE, "").once();
    record(
        &w,
        oracle::rsync(),
        &["-a", &format!("--write-batch={BATCH}")],
    );
    // The reader leaves before the writer is done.
    let text = "{ cat ../batch && head -c 50000000 /dev/urandom; } | $1 -a --read-batch=- new/; \
        test ${PIPESTATUS[0]} = 141 && diff -r src new";
    script(&w, oracle::under_test(), text);
});

synctest!(batch_without_a_file_that_cannot_be_read, as user, |w: World| {
    trees(&w, "a closed z", "a").no_dry_run().once();
    w.build("src", |t| drop(t.file("closed", "secret").mode(0o000)));
    // Outside of the trees that are compared: the lists of both programs have another order.
    let open = w.tested().join("../open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    for protocol in ["--protocol=32", "--protocol=29"] {
        w.agree(&["-a", "--only-write-batch=../open/batch", protocol])
            .exits(23);
        for program in [oracle::rsync(), oracle::under_test()] {
            let text = "$1 -a --read-batch=../open/batch dst/ && exit 1; test $? = 23 && diff src/z dst/z";
            script(&w, program, text);
        }
        w.restore_dest();
    }
});

synctest!(batch_that_is_no_file, |w: World| {
    trees(&w, "a", "b").no_dry_run().once();
    for device in ["/dev/zero", "/dev/null", "/dev"] {
        let option = format!("--read-batch={device}");
        w.agree_paths(&["-a", &option], &["dst/"]).exits(11);
    }
    let refused = script(
        &w,
        oracle::under_test(),
        "$1 -a --read-batch=- dst/ </dev/zero || test $? = 2",
    );
    assert!(String::from_utf8_lossy(&refused.stderr).contains("protocol 0 is not supported"));
});

synctest!(batch_is_written_to_a_fifo, |w: World| {
    trees(&w, TREE, "").once();
    for program in [oracle::rsync(), oracle::under_test()] {
        let reads = format!(
            "rm -rf got new fifo*; mkfifo fifo; cat fifo >got & $1 -a --write-batch=fifo src/ new/; wait; diff -r src new; \
            {} -a --read-batch=got again/; diff -r src again; rm -r new again",
            oracle::rsync().display()
        );
        script(&w, program, &reads);
        script(
            &w,
            program,
            "ln -sf /dev/null null; $1 -a --write-batch=null src/ new/; diff -r src new; rm -r new",
        );
    }
});

synctest!(unreadable_batch, |w: World| {
    trees(&w, "a", "b").no_dry_run().once();
    for (name, bytes) in [("new", &b"\x9f\0\0\0\x21\0\0\0"[..]), ("short", b"\x9f\0")] {
        w.file(name, bytes);
    }
    w.agree_paths(&["-a", "--read-batch=none"], &["dst/"])
        .exits(11);
    w.agree_paths(&["-a", "--read-batch=new"], &["dst/"])
        .exits(2);
    w.agree_paths(&["-a", "--read-batch=new"], &["far:dst/"])
        .exits(1);
    w.agree_paths(&["-a", "--write-batch=none/x"], &["src/", "dst/"])
        .exits(3);
    w.alone(&["-a", "--read-batch=short"])
        .exits(12)
        .warns("sparsync: cannot read the batch file ");
    let refused = w.alone(&["-az", "--zc=zstd", "--write-batch=x"]).exits(4);
    refused.warns("Your --compress-choice value (zstd) was refused by the server.");
    w.alone(&["-a", "--cc=xxh3", "--write-batch=x"])
        .exits(4)
        .warns("--checksum-choice value (xxh3) was refused");
});

synctest!(batch_for_another_basis_leaves_the_file, |w: World| {
    trees(&w, "a*90000 b", "a*80000@-9 b@-5");
    record(
        &w,
        oracle::rsync(),
        &["-a", &format!("--write-batch={BATCH}")],
    );
    for (len, content) in [(80_000, "x"), (70_000, "y")] {
        let content = content.repeat(len);
        twins(&w)
            .iter()
            .for_each(|twin| std::fs::write(twin.join("dst/a"), &content).unwrap());
        let read = format!("--read-batch={BATCH}");
        let run = Command::new(oracle::under_test())
            .args(["-a", &read, "dst/"])
            .current_dir(w.tested())
            .output();
        let run = run.unwrap();
        let printed = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(23), "{printed}");
        assert!(
            printed.contains("(No batched update for \"a\")"),
            "{printed}"
        );
        assert_eq!(
            std::fs::read_to_string(w.tested().join("dst/a")).unwrap(),
            content
        );
    }
});

/// A damaged batch changes nothing, or what it describes, but nothing outside of the destination.
#[test]
fn damaged_batch_is_rejected() {
    let scratch = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let path = |name: &str| scratch.path().join(name);
    for dir in ["src/d", "dst", "empty"] {
        std::fs::create_dir_all(path(dir)).unwrap();
    }
    (0..4).for_each(|n| std::fs::write(path(&format!("src/d/f{n}")), [b'a' + n; 50]).unwrap());
    let run = |program: &Path, line: &str| {
        Command::new(program)
            .args(line.split(' '))
            .current_dir(scratch.path())
            .output()
            .unwrap()
    };
    assert!(
        run(oracle::rsync(), "-a --only-write-batch=batch src/ empty/")
            .status
            .success()
    );
    let whole = std::fs::read(path("batch")).unwrap();
    for len in (0..whole.len()).step_by(7) {
        std::fs::write(path("batch"), &whole[..len]).unwrap();
        let output = run(oracle::under_test(), "-a --read-batch=batch dst/");
        // Behind the statistics, nothing is needed.
        let code = output.status.code();
        assert!(
            code == Some(12) || len + 10 > whole.len(),
            "{len}: {output:?}"
        );
        assert!(
            code != Some(12) || std::fs::read_dir(path("dst")).unwrap().next().is_none(),
            "{len}"
        );
    }
    for at in (0..whole.len()).step_by(5) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x5a;
        std::fs::write(path("batch"), &bytes).unwrap();
        let output = run(
            oracle::under_test(),
            "-a --read-batch=batch --timeout=20 dst/",
        );
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code().is_some() && !printed.contains("panicked"),
            "{at}: {printed}"
        );
        let mut names: Vec<_> = std::fs::read_dir(scratch.path())
            .unwrap()
            .map(|it| it.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["batch", "batch.sh", "dst", "empty", "src"], "{at}");
        std::fs::remove_dir_all(path("dst")).unwrap();
        std::fs::create_dir(path("dst")).unwrap();
    }
}

synctest!(script_of_a_batch, |w: World| {
    trees(&w, TREE, OLD);
    let text = |program: &Path| {
        let written = format!("--write-batch={BATCH}");
        record(
            &w,
            program,
            &[
                "-av",
                "--exclude=x y",
                "-f",
                "P old",
                "--suffix=a'b",
                &written,
            ],
        );
        let text = std::fs::read_to_string(w.tested().join(format!("{BATCH}.sh"))).unwrap();
        text.replace(program.to_str().unwrap(), "rsync")
    };
    assert_eq!(text(oracle::under_test()), text(oracle::rsync()));
    let world = w.tested();
    let run = Command::new("sh")
        .args([&format!("{BATCH}.sh"), "dst/"])
        .current_dir(world)
        .output()
        .unwrap();
    assert!(
        run.status.success() && world.join("dst/d/x").exists(),
        "{run:?}"
    );
});

// Over a remote shell, with an rsync or a sparsync at the other end.
synctest!(batch_of_a_remote_copy, |w: World| {
    trees(&w, TREE, OLD).once();
    let shell = w.tested().join("../shell");
    crate::kit::write_script(&shell, "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
    let world = w.tested().to_str().unwrap().to_owned();
    let paths = [
        ("src/".to_owned(), format!("h:{world}/../far/")),
        (format!("h:{world}/src/"), "../far/".to_owned()),
    ];
    for far in [oracle::rsync(), oracle::under_test()] {
        for (option, (source, dest)) in ["--write-batch", "--only-write-batch"]
            .into_iter()
            .flat_map(|option| paths.iter().map(move |p| (option, p)))
        {
            let copied = Command::new("cp")
                .args(["-a", "dst", "../far"])
                .current_dir(&world)
                .status()
                .unwrap();
            assert!(copied.success());
            let mut run = Command::new(oracle::under_test());
            run.args([
                "-a",
                "-e",
                "../shell",
                &format!("--rsync-path={}", far.display()),
            ]);
            run.args([&format!("{option}={BATCH}"), source, dest])
                .current_dir(&world);
            let output = run.output().unwrap();
            assert_eq!(
                output.status.code(),
                Some(0),
                "{} {option} {source}: {output:?}",
                far.display()
            );
            let differs = Command::new("diff")
                .args(["-r", "dst", "../far"])
                .current_dir(&world)
                .output()
                .unwrap();
            assert_eq!(
                differs.status.success(),
                option == "--only-write-batch",
                "{option} {source}"
            );
            std::fs::remove_dir_all(w.tested().join("../far")).unwrap();
            w.agree_paths(&["-ai", &format!("--read-batch={BATCH}")], &["dst/"])
                .exits(0);
            w.restore_dest();
        }
    }
});

synctest!(batch_with_converted_names, |w: World| {
    trees(&w, "ä dö/ü dö/e/f l->ä", "x");
    read_both_ways(
        &w,
        &["-a", "--iconv=utf8,latin1"],
        &["-ai", "--iconv=latin1"],
    );
    for (recorded, read, how) in [
        (&["-a", "--iconv=utf8"][..], &["-ai"][..], "Please"),
        (&["-a"], &["-ai", "--iconv=utf8"], "Do not"),
    ] {
        let file = format!("--write-batch={BATCH}");
        record(&w, oracle::under_test(), &[recorded, &[&file]].concat());
        let source = format!("--read-batch={BATCH}");
        let read = [read, &[&source]].concat();
        w.once()
            .agree_paths(&read, &["dst/"])
            .exits(1)
            .warns(&format!("{how} specify the --iconv option"));
    }
});

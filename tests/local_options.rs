//! Options about a peer and about the process in copies between local paths.

use crate::kit::{Acl, OLD, TREE, World, synctest};

const LOCAL: &str = "with a peer these are about the connection";

synctest!(
    older_protocols_drop_fractions_and_delete_first,
    |w: World| {
        w.only_local(LOCAL).source(TREE).dest(OLD);
        for protocol in ["--protocol=30", "--protocol=29"] {
            w.agree(&["-ai", "--delete", "--stats", protocol]);
            w.agree(&["-ai", "--modify-window=-1", protocol]);
        }
    }
);

synctest!(older_protocols_show_no_checksums, |w: World| {
    w.only_local(LOCAL).source(TREE).dest(OLD).keep_dest();
    for options in ["-a", "-ac"] {
        w.restore_dest()
            .agree(&[options, "--out-format=%n [%C]", "--protocol=29"])
            .exits(0);
    }
});

synctest!(older_protocols_verify_what_they_append_to, |w: World| {
    for (protocol, dest) in [("--protocol=30", "dst30"), ("--protocol=29", "dst29")] {
        w.only_local(LOCAL)
            .source("f*70000")
            .tree(dest, "f=other")
            .once();
        w.agree_paths(
            &["-ai", "--append", protocol],
            &["src/", &format!("{dest}/")],
        );
    }
});

// The order of requests depends on the protocol, so no lines are printed.
synctest!(protocols_without_items, |w: World| {
    w.only_local(LOCAL)
        .source(TREE)
        .source("f*70000")
        .dest(OLD)
        .dest("f=other")
        .keep_dest()
        .once();
    w.needs_acls().needs_xattrs().build("src", |t| {
        t.file("attrs", "x").acl(&[
            Acl::Owner(6),
            Acl::User(1, 7),
            Acl::OwnGroup(4),
            Acl::Mask(7),
            Acl::Other(4),
        ]);
        t.file("attrs2", "x").xattr("user.a", "v");
    });
    for protocol in ["--protocol=28", "--protocol=27"] {
        for options in ["-aH", "-aHAX", "-ac", "-ab"] {
            w.restore_dest()
                .agree(&[options, "--delete", protocol])
                .exits(0);
        }
        for option in [
            "--append",
            "--delete-after",
            "--link-dest=../src",
            "--inplace",
            "--delay-updates",
        ] {
            w.restore_dest().agree(&["-a", option, protocol]).exits(0);
        }
    }
    w.restore_dest()
        .agree(&["-aU", "--delete", "--protocol=28"])
        .exits(0);
    // Between two rsyncs, this fails.
    w.restore_dest()
        .alone(&["-aU", "--delete", "--protocol=27"])
        .exits(0);
});

// rsync ends with exit 23, but keeps the backup as well.
synctest!(backup_of_a_file_that_is_sent_twice, |w: World| {
    w.only_local(LOCAL).source("f*300000").dest("f=other");
    w.alone(&["-a", "--append-verify", "-b", "--protocol=28"])
        .exits(0);
    assert_eq!(std::fs::read(w.tested().join("dst/f~")).unwrap(), b"other");
});

// rsync restores the content as well, but ends with exit 23.
synctest!(file_sent_twice_to_an_older_protocol, |w: World| {
    const EXITS_23: &str = "rsync does that as the receiver";
    w.not_with_server("it has no older protocols")
        .not_pushed_to_stock(EXITS_23)
        .not_served_pull(EXITS_23);
    let old: Vec<u8> = (0..50_000_u32).flat_map(u32::to_le_bytes).collect();
    w.file("dst/f", &old)
        .file("src/f", [&[b'x'; 150_000][..], &old, b"more"].concat())
        .keep_dest();
    for option in ["--append", "--append-verify", "--inplace"] {
        w.restore_dest()
            .alone(&["-a", option, "-b", "--protocol=28"])
            .exits(0);
        let read = |name: &str| std::fs::read(w.tested().join(name)).unwrap();
        assert!(
            read("dst/f") == read("src/f") && read("dst/f~") == old,
            "{option}"
        );
    }
});

synctest!(
    older_protocols_remove_files_with_fractions_of_seconds,
    |w: World| {
        w.no_dry_run();
        w.only_local(LOCAL);
        for protocol in ["28", "29", "30"] {
            let (from, dest) = (format!("src{protocol}"), format!("dst{protocol}/"));
            w.tree(&from, "a b d/x");
            w.agree_paths(
                &[
                    "-a",
                    "--remove-source-files",
                    &format!("--protocol={protocol}"),
                ],
                &[&format!("{from}/"), &dest],
            );
        }
    }
);

synctest!(copy_as_another_user, as root, |w: World| {
    w.only_local(LOCAL).source("a b d/c d/secret%600 closed/%700 closed/f").stderr_unordered().tree(".", "dst/%777");
    for user in ["nobody", "nobody:daemon", "65534:7", "0"] {
        w.agree(&["-ai", "--delete", &format!("--copy-as={user}")]);
    }
});

synctest!(invalid_user_to_copy_as, as root, |w: World| {
    w.only_local(LOCAL).source("a").dest("");
    for (user, message) in [
        ("nosuch", "Invalid copy-as user: nosuch"),
        ("nobody:nosuch", "Invalid copy-as group: nosuch"),
        ("", "Invalid copy-as user: "),
        (":7", "Invalid copy-as user: "),
        ("12345", "rsync: [sender] getpwuid failed: Success (0)"),
    ] {
        // rsync has two processes that report it, unless one ends the other.
        w.alone(&["-a", &format!("--copy-as={user}")]).exits(1).warns(message).warns("[sender=");
    }
});

synctest!(ordinary_user_cannot_copy_as_another, as user, |w: World| {
    w.only_local(LOCAL).source("a").dest("");
    w.mask_with(|line| (!line.contains("Receiver")).then(|| line.to_owned()));
    w.agree(&["-a", "--copy-as=daemon"]);
});

synctest!(options_of_the_receiver_alone, as root, |w: World| {
    w.only_local(LOCAL).source("a b%600 c->a d/e").no_dry_run();
    w.agree(&["-ai", "-M--fake-super"]);
    w.agree(&["-aiH", "--delete", "-M--fake-super", "--super", "--numeric-ids"]);
    w.agree(&["-ai", "-M--super", "--fake-super", "--list-only"]);
    w.dest(OLD).agree(&["-ai", "--delete", "--remote-option=--fake-super"]);
    w.alone(&["-a", "-M--bogus"]).warns("rsync: on remote machine: --bogus: unknown option");
    for option in ["--chmod=F600", "--append", "--append-verify"] {
        let name = option.split('=').next().unwrap();
        let words = format!("sparsync: --remote-option={name} is not supported by a server that receives");
        w.alone(&["-a", "--no-whole-file", &format!("-M{option}")]).exits(4).warns(&words);
    }
    let words = "sparsync: --remote-option=--only-write-batch is not supported by a server";
    w.alone(&["-a", "-M--only-write-batch=x"]).exits(4).warns(words);
});

synctest!(options_of_both_processes_of_a_local_copy, as root, |w: World| {
    w.only_local(LOCAL).build("src", |t| {
        t.file("a", "a").owner(5, 6);
        t.dir("d").owner(7, 8);
        t.symlink("l", "a").owner(5, 6);
        t.fifo("p");
    });
    w.build(".", |t| drop(t.symlink("link", "dst").owner(12345, 12345)));
    w.dest("").no_dry_run();
    let two_processes = ["--protocol=28", "--iconv=utf8,latin1", "-M--times"];
    for (n, process) in two_processes.into_iter().enumerate() {
        for (m, options) in [&["--fake-super"][..], &["--no-super"], &["--fake-super", "-M--super"]].into_iter().enumerate() {
            let dest = format!("{n}{m}/");
            w.agree_paths(&[&["-a", process], options].concat(), &["src/", &dest]).exits(0);
        }
        w.agree_paths(&["-a", process, "--insecure-links"], &["src/", "link/"]).exits(0);
    }
});

synctest!(remote_receiver_with_other_options_compares_unchanged_entries, as root, |w: World| {
    w.not_pulled("the receiver is the client").source("a d/b l->a").dest("a d/b l->a");
    for option in ["--chown=7:8", "--usermap=0:7", "--groupmap=*:8", "--ignore-times", "--munge-links"] {
        w.agree(&["-ai", &format!("-M{option}")]).exits(0);
    }
});

synctest!(options_that_only_the_receiver_has_or_lacks, |w: World| {
    w.not_pulled("the receiver is the client")
        .source("tool%755 d/new l->new same");
    w.dest("tool@-9 d/new=old@-9 l->old same").keep_dest();
    for options in [
        ["-a", "-M--no-times"],
        ["-r", "-M--times"],
        ["-aE", "-M--no-perms"],
    ] {
        w.restore_dest()
            .agree(&[&["-i"], &options[..]].concat())
            .exits(0);
    }
});

synctest!(copy_as_another_user_at_the_destination, as root, |w: World| {
    w.only_local(LOCAL).source("a b d/c").stderr_unordered().tree(".", "dst/%777").no_dry_run().once();
    w.agree(&["-ai", "--omit-dir-times", "--no-perms", "-M--copy-as=nobody"]);
    w.alone(&["-a", "-M--copy-as=nosuch"]).exits(1).warns("Invalid copy-as user: nosuch").warns("[Receiver=");
});

synctest!(copy_as_another_user_at_one_end, as root, |w: World| {
    w.source("a b d/c d/secret%600 closed/%700 closed/f").stderr_unordered().tree(".", "dst/%777").no_dry_run();
    w.agree(&["-a", "--omit-dir-times", "--no-perms", "--copy-as=nobody"]);
});

//! Lines that scripts parse: their stream, wording and order.

use crate::kit::{World, synctest};

synctest!(nothing_is_printed_without_v, as both, |w: World| {
    w.source("a d/b l->a").dest("old");
    w.agree(&["-a", "--delete"]).exits(0).never_prints("a");
});

synctest!(quiet_suppresses_notices, |w: World| {
    w.source("a l->a").dest("");
    w.agree(&["-rtvq"]).exits(0).never_prints("skipping");
});

synctest!(quiet_does_not_suppress_errors, |w: World| {
    w.source("a").dest("");
    w.agree_paths(&["-aq"], &["src/", "nowhere", "dst/"])
        .exits(23)
        .warns("link_stat");
});

synctest!(last_line_contains_the_exit_code, |w: World| {
    w.source("a").dest("");
    let text = "rsync error: some files/attrs were not transferred (see previous errors) (code 23)";
    w.agree_paths(&["-a"], &["src/", "nowhere", "dst/"])
        .exits(23)
        .warns(text);
});

synctest!(names_in_errors_are_escaped, |w: World| {
    w.not_pulled("a shell drops an escaped newline, and rsync escapes it so");
    w.source("a").dest("");
    w.agree_paths(&[&b"-a"[..]], &[&b"no\nwhere\xe9"[..], b"src/", b"dst/"])
        .exits(23)
        .warns("no\\#012where\\#351");
});

synctest!(names_in_errors_keep_high_bytes_on_request, |w: World| {
    w.not_pulled("rsync does not pass -8 to its server");
    w.source("a").dest("");
    w.agree_paths(&[&b"-a8"[..]], &[&b"no\nwhere\xe9"[..], b"src/", b"dst/"])
        .exits(23);
});

synctest!(file_in_the_way_of_a_directory, |w: World| {
    w.source("d/x").dest("d=file");
    w.agree(&["-av"]).exits(0);
});

synctest!(a_directory_in_the_way_of_a_file, |w: World| {
    w.source("a b").dest("a/x");
    w.agree(&["-av"])
        .exits(23)
        .prints("cannot delete non-empty directory")
        .warns("could not make way for");
});

synctest!(a_directory_in_the_way_of_a_symlink, |w: World| {
    w.source("a->b b").dest("a/x");
    w.agree(&["-av"]).exits(23);
});

synctest!(a_directory_in_the_way_of_a_fifo, |w: World| {
    w.source("a| b").dest("a/x");
    w.agree(&["-av"]).exits(23);
});

synctest!(a_dangling_symlink_that_is_followed, |w: World| {
    w.source("l->nowhere a").dest("");
    w.agree(&["-aL"])
        .exits(23)
        .warns("symlink has no referent: \"{W}/src/l\"");
});

synctest!(missing_name_in_files_from_exits_23, |w: World| {
    w.source("a").dest("").file("list", "nowhere\n");
    w.agree(&["-a", "--files-from=list"])
        .exits(23)
        .warns("link_stat \"{W}/src/nowhere\"");
});

synctest!(version_is_in_the_first_line, |w: World| {
    // Below the first line, each program prints its own text.
    w.mask_with(|line| line.starts_with("rsync  version ").then(|| line.to_owned()))
        .once()
        .no_dry_run();
    w.agree_paths(&["--version"], &[""; 0])
        .exits(0)
        .prints("protocol version 3");
});

synctest!(banners_of_several_modes, |w: World| {
    w.source("a d/b").dest("");
    for options in [
        &["-av", "--list-only"][..],
        &["-avn"],
        &["-av", "--delete-after"],
        &["-av", "-m"],
    ] {
        w.agree(options).exits(0);
    }
});

synctest!(
    created_destination_is_reported_with_each_output_option,
    |w: World| {
        w.source("a").no_dry_run().once();
        // The last one is not a valid escape: its modifiers are in the wrong order.
        let kinds = [
            "-v",
            "-i",
            "--out-format=%n",
            "--info=name",
            "--stats",
            "--out-format=%-5i",
            "--out-format=%5-i",
        ];
        for (n, option) in kinds.iter().enumerate() {
            w.agree_paths(&["-a", option], &["src/".to_owned(), format!("new{n}")])
                .exits(0);
        }
    }
);

// Unless the format itemizes, the receiver says what is up to date, and the sender does not repeat it.
synctest!(
    unchanged_entries_and_new_links_are_printed_once,
    |w: World| {
        w.source("a=after b c==b d/e").dest("a=before b c=b d/e");
        w.keep_dest();
        for options in [
            &["-avv", "--out-format=%n"][..],
            &["-avv", "--out-format=%o %n"],
            &["-avv", "--out-format=%i %n"],
            &["-avvH", "--out-format=%n%L"],
            &["-avvH"],
            &["-avH"],
        ] {
            w.restore_dest().agree(options).exits(0);
        }
    }
);

synctest!(dry_run_is_marked_in_the_summary, |w: World| {
    w.source("a").dest("");
    w.agree(&["-avn"]).prints("(DRY RUN)");
});

synctest!(removal_of_source_files_is_printed, |w: World| {
    w.source("a d/b").dest("");
    w.agree(&["-av", "--remove-source-files", "--info=remove"])
        .exits(0);
});

synctest!(io_error_is_reported_once, as user, |w: World| {
    w.source("a one/ two/").dest("old one/old two/old");
    w.build("src", |t| {
        t.dir("one").mode(0);
        t.dir("two").mode(0);
    });
    w.stderr_unordered().agree(&["-av", "--delete"]).exits(23).prints("IO error encountered -- skipping file deletion");
});

synctest!(max_delete_reports_skipped_deletions, |w: World| {
    w.source("a").dest("a b c d/e");
    w.agree(&["-av", "--delete", "--max-delete=1"])
        .exits(25)
        .warns("(code 25)");
});

synctest!(failed_append_verification_is_reported, |w: World| {
    w.source("a=0123456789").dest("a=XXXXX");
    w.stderr_unordered()
        .agree(&["-av", "--append-verify"])
        .warns("WARNING: a failed verification");
});

synctest!(environment_variables_set_the_partial_dir, |w: World| {
    w.source("a*9000")
        .dest(".part/a=half")
        .env("RSYNC_PARTIAL_DIR", ".part");
    w.agree(&["-ai", "--partial"]).exits(0);
});

//! The output of a run: itemized lines, verbosity, formats, statistics, progress, listings, logs.

use crate::kit::{World, synctest};

const TREE: &str = "a b=changed@5 d/x d/y/z=new! empty/ l->a m->b p| big*1234567";

/// A source with something for each kind of line, and a destination that has part of it.
fn partly(w: &World) {
    w.source(TREE)
        .dest("a b=change d/%700 d/y/z=old d/old l->b gone/in m->b p|");
}

macro_rules! prints {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            partly(&w);
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

// ── itemized ────────────────────────────────────────────────────────────────────────────────────
prints!(itemized_once, ["-ai"]);
prints!(itemized_twice_prints_unchanged_entries, ["-aii"]);
prints!(itemized_with_deletions, ["-ai", "--delete"]);
prints!(itemized_and_verbose, ["-aiv"]);
prints!(itemized_and_very_verbose, ["-aivv"]);
prints!(itemized_without_times, ["-rlpi"]);
prints!(itemized_with_checksums, ["-aic"]);
prints!(itemized_with_ignored_times, ["-aiI"]);
prints!(no_itemize_overrides_itemize, ["-ai", "--no-i"]);
prints!(itemized_and_quiet, ["-aiq"]);

synctest!(itemized_letters_for_every_attribute, as root, |w: World| {
    w.build("src", |t| {
        t.file("mode", "1").mode(0o600);
        t.file("user", "1").owner(7, 0);
        t.file("group", "1").owner(0, 7);
        t.file("time", "1").mtime(9);
        t.file("size", "111");
        t.file("all", "111").mode(0o600).owner(7, 7).mtime(9);
        t.dir("dir").mode(0o700).owner(7, 7).mtime(9);
        t.symlink("link", "mode").owner(7, 7).mtime(9);
        t.fifo("fifo").mode(0o600).mtime(9);
    });
    w.dest("mode=1 user=1 group=1 time=1 size=1 all=1 dir/ link->mode fifo|");
    w.agree(&["-ai"]).prints(".f...p..... mode").prints(">f.stpog... all");
});

// ── verbose ─────────────────────────────────────────────────────────────────────────────────────
prints!(verbose_once, ["-av"]);
prints!(verbose_twice, ["-avv"]);

// Only unchanged entries in the root: when rsync prints those lines varies.
synctest!(very_verbose_prints_unchanged_names_first, |w: World| {
    w.source("b d/e=new! d/f d/g=new! h/i j->b l| q z/y z/x=new! z/w z/v->y z/u| z/t/")
        .dest("b d/f d/g=old h/i j->b l| q z/y z/w=old@-4")
        .keep_dest()
        .stdout_in_order();
    let modes: [&[&str]; 5] = [
        &["-avv"],
        &["-aHvv"],
        &["-avv", "--no-inc-recursive"],
        &["-a", "--info=name2"],
        &["-avvc"],
    ];
    for options in modes {
        let agreed = w.restore_dest().agree(options);
        agreed.exits(0);
    }
    // Items of the format keep their place.
    w.restore_dest().agree(&["-avvi"]).exits(0);
});

prints!(verbose_with_deletions, ["-av", "--delete"]);
prints!(
    verbose_without_incremental_recursion,
    ["-av", "--no-inc-recursive"]
);
prints!(verbose_and_quiet, ["-avq"]);
prints!(no_verbose_overrides_verbose, ["-av", "--no-v"]);
prints!(info_name, ["-a", "--info=name"]);
prints!(info_name_twice, ["-a", "--info=name2"]);
prints!(
    info_copy_del_and_misc,
    ["-a", "--delete", "--info=copy,del,misc"]
);
prints!(info_skip, ["-av", "--info=skip", "--existing"]);
prints!(info_skip_twice, ["-a", "--info=skip2", "--ignore-existing"]);
prints!(info_flist, ["-a", "--info=flist"]);
prints!(info_flist_off, ["-av", "--info=flist0"]);
prints!(info_name_off_under_v, ["-av", "--info=name0"]);
prints!(info_nonreg_off, ["-rt", "--info=nonreg0"]);
prints!(info_stats, ["-a", "--info=stats"]);
prints!(info_stats_twice, ["-a", "--info=stats2"]);
prints!(info_none, ["-av", "--info=none"]);
prints!(info_symsafe, ["-a", "--safe-links", "--info=symsafe"]);
prints!(
    info_remove,
    ["-a", "--remove-source-files", "--info=remove"]
);
prints!(
    info_skip_twice_with_checksums,
    ["-ac", "--info=skip2", "--ignore-existing"]
);
prints!(
    info_backup_to_a_directory,
    ["-ab", "--backup-dir=../kept", "--delete", "--info=backup"]
);
prints!(info_backup, ["-ab", "--info=backup"]);
prints!(info_mount_is_quiet_without_mounts, ["-ax", "--info=mount2"]);

synctest!(verbose_with_a_new_destination, |w: World| {
    w.source("a d/x");
    w.agree(&["-av"]).prints("created directory dst");
});

synctest!(verbose_with_several_sources, |w: World| {
    w.source("a d/x").tree("two", "b").dest("");
    w.agree_paths(&["-av"], &["src", "two/", "dst"]).exits(0);
});

synctest!(verbose_with_nothing_to_do, |w: World| {
    w.source("a d/x").dest("a d/x");
    w.agree(&["-av"])
        .prints("sending incremental file list\n\nsent");
});

synctest!(info_help_is_a_list, |w: World| {
    w.once()
        .no_dry_run()
        .agree_paths(&["--info=help"], &[""; 0])
        .exits(0)
        .prints("PROGRESS");
});

synctest!(an_unknown_info_word, |w: World| {
    w.source("a").dest("");
    w.once()
        .agree(&["-a", "--info=nonsense"])
        .exits(1)
        .warns("nonsense");
});

// ── formats ─────────────────────────────────────────────────────────────────────────────────────
prints!(format_name_and_link, ["-a", "--out-format=%n%L"]);
prints!(
    format_itemize_and_more,
    ["-a", "--delete", "--out-format=%i|%o|%n|%L"]
);
prints!(
    format_without_itemize_has_plain_deletions,
    ["-a", "--delete", "--out-format=<%n>"]
);
prints!(
    format_length_and_permissions,
    ["-a", "--out-format=%l %B %n"]
);
prints!(
    format_with_widths,
    ["-a", "--out-format=[%10l][%-10l][%'l][%20n][%-20n]"]
);
prints!(
    format_with_digit_groups,
    ["-a", "--out-format=%'l %''l %'''l"]
);
prints!(format_times_of_files, ["-a", "--out-format=%M %n"]);
prints!(format_owner, ["-a", "--out-format=%U:%G %n"]);
synctest!(format_prints_mapped_owners, as root, |w: World| {
    w.source("a d/b l->a").dest("a=old");
    for map in ["--usermap=*:7", "--groupmap=*:8", "--chown=3:4"] {
        w.agree(&["-aI", map, "--out-format=%U:%G %n"]).exits(0);
        w.agree(&["-aI", map, "--out-format=%n"]).exits(0);
    }
});
synctest!(format_prints_owners_that_cannot_be_set, as user, |w: World| {
    w.source("a d/b l->a").dest("a=old");
    w.agree(&["-a", "--out-format=%U:%G %n"]).never_prints("4294967295");
    w.agree(&["-ai", "--usermap=*:7", "--out-format=%i %U:%G %n", "--ignore-times"]).exits(0);
});
prints!(format_path_of_the_sender, ["-a", "--out-format=%f"]);
synctest!(format_path_of_the_root, |w: World| {
    w.source("a d/b").agree(&["-a", "--out-format=%f"]).exits(0);
    w.build("src", |t| drop(t.dir(".").mtime(9)));
    for (source, dest) in [
        ("src/./", "1"),
        ("src", "2"),
        ("./src/", "3"),
        ("src/.", "4"),
        ("./src", "5"),
    ] {
        w.agree_paths(&["-a", "--out-format=%f"], &[source, dest])
            .exits(0);
    }
    for (source, dest) in [
        ("src//a", "6"),
        ("src/./a", "7"),
        ("{W}/./src//d/", "8"),
        ("src/../src/", "9"),
    ] {
        w.agree_paths(&["-a", "--out-format=%f"], &[source, dest])
            .exits(0);
    }
    // `./src/a` transfers the world itself as `.`. A destination created by the run would change its time meanwhile.
    w.build("10", |t| drop(t.dir(".").mtime(9)));
    w.agree_paths(&["-aR", "--out-format=%f"], &["src/./d", "./src/a", "10/"])
        .exits(0);
    for source in [
        "{W}/././src/a",
        "{W}/.///./src/a",
        "././src/a",
        "{W}/./src/./a",
    ] {
        w.agree_paths(&["-aR", "--out-format=%f"], &[source, "10/"])
            .exits(0);
    }
});
prints!(format_percent, ["-a", "--out-format=100%% %n"]);
prints!(
    format_of_daemons_is_empty,
    ["-a", "--out-format=[%a][%h][%m][%P][%u]%n"]
);
prints!(
    format_longest_width,
    [
        "-a",
        "--out-format=%00000000000000000000005n %-0000000000000000000005n"
    ]
);
prints!(
    format_width_too_long,
    [
        "-a",
        "--out-format=%000000000000000000000005n %-00000000000000000000005n"
    ]
);
prints!(format_unknown_letters, ["-a", "--out-format=%q %z %n"]);
synctest!(
    format_with_bytes_is_printed_after_the_transfer,
    |w: World| {
        partly(&w);
        w.only_local("%b counts bytes on the wire, which differ from rsync's");
        w.agree(&["-a", "--out-format=%b %n"]).exits(0);
    }
);
synctest!(format_digest_of_delayed_files, |w: World| {
    partly(&w);
    w.agree(&["-a", "--delay-updates", "--out-format=%C %n"])
        .exits(0);
});
synctest!(format_digest, |w: World| {
    partly(&w);
    w.only_local("with a basis, rsync counts its block sums in %c");
    w.agree(&["-a", "--out-format=%C %c %n"]).exits(0);
});
prints!(
    format_checksum_of_nothing_but_width,
    ["-a", "--no-p", "--out-format=%n"]
);
prints!(format_old_name, ["-a", "--log-format=%n"]);
prints!(format_empty, ["-a", "--out-format="]);
prints!(format_now, ["-a", "--out-format=%t %n"]);
prints!(format_with_v, ["-av", "--out-format=%n"]);
prints!(format_with_i_after_it, ["-a", "--out-format=%n!", "-i"]);

// ── statistics ──────────────────────────────────────────────────────────────────────────────────
prints!(statistics, ["-a", "--stats"]);
prints!(statistics_with_deletions, ["-a", "--stats", "--delete"]);
prints!(statistics_in_plain_digits, ["-a", "--stats", "--no-h"]);
prints!(statistics_in_units, ["-a", "--stats", "-h"]);
prints!(statistics_in_binary_units, ["-a", "--stats", "-hh"]);
prints!(statistics_with_v, ["-av", "--stats"]);
prints!(statistics_with_upper_h, ["-aH", "--stats", "-i"]);

synctest!(statistics_of_nothing, |w: World| {
    w.source("").dest("");
    w.agree(&["-a", "--stats"])
        .prints("Number of files: 1 (dir: 1)");
});

synctest!(sizes_at_unit_boundaries, |w: World| {
    w.source(
        "a*999 b*1000 c*1001 d*1023 e*1024 f*9999 g*10000 h*99999 i*100000 j*999999 k*1000000",
    )
    .dest("");
    w.agree(&["-a", "--out-format=%l|%'l|%''l|%'''l|%n"])
        .exits(0);
});

// ── progress ────────────────────────────────────────────────────────────────────────────────────
synctest!(progress_of_files, |w: World| {
    w.source("a b=text d/x big*300000").dest("a");
    w.agree(&["-a", "--progress", "--no-inc-recursive"])
        .prints("to-chk=");
});

synctest!(progress_with_partial_progress_option, |w: World| {
    w.source("a b=text").dest("");
    w.agree(&["-aP", "--no-inc-recursive"]).prints("to-chk=");
});

// In a local copy the list may still grow while the first files are copied. Between machines, copying waits for the
// first part of the list.
synctest!(incremental_list_progress_counts_per_directory, between machines, |w: World| {
    w.source("l->t t a/b/x a/b/z c/d/y c/s e/f g/").dest("t g/old c/");
    w.agree(&["-a", "--progress"]).prints("to-chk=");
});

synctest!(progress2_of_the_whole_run, |w: World| {
    w.source("a b=text d/x").dest("");
    w.agree(&["-a", "--info=progress2", "--no-inc-recursive"])
        .exits(0);
});

synctest!(progress_keeps_error_messages, |w: World| {
    w.source("a->nowhere big*3000000").dest("");
    // Which of the two it is depends on time: whether the end of the list was read when the line is printed.
    w.mask_with(|line| Some(line.replace("ir-chk=", "to-chk=")));
    w.no_dry_run()
        .agree(&["-aL", "--progress", "--bwlimit=100m"])
        .exits(23);
});

synctest!(progress_precedes_the_formatted_line, |w: World| {
    w.source("a= b=text").dest("");
    w.agree(&[
        "-a",
        "--progress",
        "--no-inc-recursive",
        "--out-format=%n %b",
    ])
    .exits(0);
});

synctest!(progress_and_itemize, |w: World| {
    w.source("a= b=text").dest("");
    w.agree(&["-ai", "--progress", "--no-inc-recursive"])
        .exits(0);
});

// ── lists ───────────────────────────────────────────────────────────────────────────────────────
macro_rules! lists {
    ($name:ident, [$($option:expr),+ $(,)?], [$($operand:expr),+]) => {
        synctest!($name, |w: World| {
            w.source(TREE).dest("kept");
            w.agree_paths(&[$($option),+], &[$($operand),+]).exits(0);
        });
    };
}

lists!(a_source_alone_is_listed, ["-a"], ["src/"]);
lists!(
    a_source_alone_is_listed_without_recursion,
    ["--no-r"],
    ["src/"]
);
lists!(a_directory_alone_is_one_line, ["-t"], ["src"]);
lists!(a_file_alone_is_listed, ["-t"], ["src/big"]);
lists!(
    list_only_with_a_destination,
    ["-a", "--list-only"],
    ["src/", "dst/"]
);
lists!(
    list_only_in_plain_digits,
    ["-a", "--list-only", "--no-h"],
    ["src/"]
);
lists!(list_only_in_units, ["-a", "--list-only", "-h"], ["src/"]);
lists!(
    list_only_without_links_has_no_targets,
    ["-r", "--list-only"],
    ["src/"]
);
lists!(
    list_only_respects_filter_rules,
    ["-a", "--list-only", "--exclude=d"],
    ["src/"]
);
lists!(list_only_very_verbose, ["-avv", "--list-only"], ["src/"]);
lists!(
    list_only_with_statistics,
    ["-a", "--list-only", "--stats"],
    ["src/"]
);
lists!(
    list_only_has_links_in_place,
    ["-aH", "--list-only"],
    ["src/"]
);
lists!(
    list_only_ignores_existing_and_max_size,
    ["-a", "--list-only", "--existing", "--max-size=3"],
    ["src/"]
);
lists!(
    list_only_with_an_impossible_destination,
    ["-a", "--list-only"],
    ["src/", "kept/no/where"]
);
lists!(list_only_verbose, ["-av", "--list-only"], ["src/"]);
lists!(list_only_with_itemize, ["-ai", "--list-only"], ["src/"]);

synctest!(list_only_of_all_kinds, as root, |w: World| {
    w.build("src", |t| {
        t.char_device("null", 1, 3).mode(0o6666);
        t.block_device("loop", 7, 200);
        t.file("sticky", "").mode(0o1777);
        t.file("set", "").mode(0o6644);
        t.socket("s");
    });
    w.agree_paths(&["-a", "--list-only"], &["src/"]).exits(0);
});

synctest!(list_only_of_a_missing_argument, |w: World| {
    w.source("a");
    w.agree_paths(
        &["-a", "--list-only", "--delete-missing-args"],
        &["src/a", "src/gone"],
    )
    .exits(0);
});

// ── names with odd bytes ────────────────────────────────────────────────────────────────────────
fn odd(w: &World) {
    w.build("src", |t| {
        t.file(b"caf\xe9", "1");
        t.file("caf\u{e9}", "2");
        t.file("new\nline", "3");
        t.file("tab\there", "4");
        t.file("back\\#012", "5");
        t.symlink("l", b"to\n\xe9");
    });
    w.build("dst", |t| drop(t.file(b"gone\xff\n", "6")));
}

macro_rules! escapes {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            odd(&w);
            w.agree(&[$($option),+]).exits(0);
        });
    };
}

escapes!(escaped_in_itemized_lines, ["-ai", "--delete"]);
escapes!(escaped_in_verbose_lines, ["-av", "--delete"]);
escapes!(eight_bit_output_keeps_high_bytes, ["-ai8", "--delete"]);
escapes!(escaped_in_formats, ["-a", "--out-format=%n|%f|%L"]);
escapes!(escaped_in_lists, ["-a", "--list-only"]);
escapes!(eight_bit_output_in_lists, ["-a8", "--list-only"]);

// ── logs ────────────────────────────────────────────────────────────────────────────────────────
macro_rules! logs {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, |w: World| {
            w.source("a b=changed@5 d/x l->a").dest("a b=change");
            w.once().no_dry_run().agree(&["--log-file=run.log", $($option),+]).exits(0);
        });
    };
}

logs!(log_file_of_a_silent_run, ["-a"]);
logs!(a_log_beside_itemized_lines, ["-ai"]);
logs!(a_log_with_a_format, ["-a", "--log-file-format=%o %n %l"]);
logs!(a_log_of_a_dry_run, ["-an"]);
logs!(a_log_when_quiet, ["-aq"]);
logs!(a_log_with_statistics, ["-a", "--stats"]);

synctest!(a_log_of_deletions, |w: World| {
    w.source("a").dest("a old");
    w.once()
        .no_dry_run()
        .agree(&["-a", "--delete", "--log-file=run.log"])
        .exits(0);
});

synctest!(log_file_at_the_server, between machines, |w: World| {
    w.source("a b=changed@5 d/x l->a").dest("a b=change old");
    let options = ["-a", "--delete", "-M--log-file=far.log", "-M--log-file-format=%i %n"];
    w.once().no_dry_run().agree(&options).exits(0);
});

synctest!(a_log_of_errors, |w: World| {
    w.not_with_stock("a missing argument shows only in the exit code of the remote shell");
    w.source("a").dest("");
    w.once()
        .no_dry_run()
        .agree_paths(&["-a", "--log-file=run.log"], &["src/", "nowhere", "dst/"])
        .exits(23);
});

synctest!(buffering_modes_change_nothing, |w: World| {
    partly(&w);
    for mode in ["--outbuf=N", "--outbuf=L", "--outbuf=B"] {
        w.agree(&["-ai", mode]).exits(0);
    }
});

synctest!(all_messages_to_stderr, |w: World| {
    w.source("a d/x").dest("");
    w.agree(&["-ai", "--stderr=all"]).exits(0);
});

synctest!(errors_through_the_client, |w: World| {
    w.source("a d/x").dest("");
    w.agree_paths(&["-ai", "--stderr=client"], &["src/", "nowhere", "dst/"])
        .exits(23);
});

/// Checksum choices: one name, two names, and names that are negotiated with the other side.
const CHECKSUMS: [&str; 10] = [
    "xxh128",
    "xxh3",
    "xxh64",
    "xxhash",
    "MD5",
    "md4",
    "sha1",
    "md5,sha1",
    "sha1,auto",
    "auto,auto",
];

fn sums(w: &World) {
    w.source("a e= l->a d/b*70000 same=x h hh=h");
}

/// Copies with a format that prints checksums, into a separate destination.
fn show_sums(w: &World, options: &[&str], number: usize) {
    let dest = format!("dst{number}");
    w.tree(&dest, "same=x d/b=old");
    w.agree_paths(
        &[options, &["--out-format=[%C] %i %n"]].concat(),
        &["src/", &format!("{dest}/")],
    )
    .exits(0);
}

synctest!(format_prints_digests_of_transferred_files, |w: World| {
    sums(&w);
    for (number, choice) in CHECKSUMS
        .iter()
        .chain(&["none", "none,md5", "md5,none"])
        .enumerate()
    {
        show_sums(w.once(), &["-aii", &format!("--cc={choice}")], number);
    }
});

synctest!(format_prints_digests_of_listed_files, |w: World| {
    sums(&w);
    for (number, choice) in CHECKSUMS.iter().chain(&["none,md5"]).enumerate() {
        show_sums(
            w.no_dry_run(),
            &["-aciiH", &format!("--cc={choice}")],
            number,
        );
    }
});

synctest!(dry_run_prints_digests_of_listed_files, |w: World| {
    w.only_local("the digest of a file that only the server has is not sent");
    sums(&w);
    for (number, choice) in ["auto", "sha1", "md5,xxh3"].iter().enumerate() {
        show_sums(&w, &["-naciiH", &format!("--cc={choice}")], number);
    }
});

synctest!(checksum_list_from_the_environment, |w: World| {
    sums(&w);
    for (number, list) in ["md5", "foo SHA1 md5", " ", "none", "xxh3 md4 & md4"]
        .iter()
        .enumerate()
    {
        show_sums(w.once().env("RSYNC_CHECKSUM_LIST", list), &["-a"], number);
    }
});

/// Names of one file at the destination whose sources are separate files.
fn shared(w: &World, source: &str) {
    w.source(source).dest("a=1@-9 b==a c==a d/e/f==a");
}

synctest!(a_second_name_of_a_changed_file_is_up_to_date, |w: World| {
    shared(&w, "a=1 b=1 c=1 d/e/f=1");
    w.agree(&["-iplrtc"]).exits(0);
});

synctest!(
    names_of_one_file_get_their_attributes_in_turn,
    |w: World| {
        shared(&w, "a=1@-5 b=1@-9 c=1@-5%600 d/e/f=1@-8");
        // Each run changes the file again; docs/DIFFERENCES.md has the exception.
        w.once().agree(&["-ai", "--size-only"]).exits(0);
    }
);

synctest!(
    changed_content_replaces_one_name_of_a_changed_file,
    |w: World| {
        shared(&w, "a=1@-5 b=2@-5 c=1@-9 d/e/f=2@-5%600");
        w.agree(&["-aic"]).exits(0);
    }
);

synctest!(
    names_of_one_file_with_unchanged_entries_printed,
    |w: World| {
        shared(&w, "a=1@-5 b=1@-5 c=1@-9 d/e/f=1");
        w.agree(&["-aiic", "--stats"]).exits(0);
    }
);

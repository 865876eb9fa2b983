//! Sessions with a stock rsync by its own protocol. These cases run both ways on every run of the tests; the routes
//! `stock-push` and `stock-pull` of `SPARSYNC_TEST_ROUTES` run all other cases, too.

use crate::filesfrom::pruned_of_names;
use crate::kit::{
    Acl, OLD, TREE, Tree, World, copies, oracle, report_skip, synctest, write_script,
};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

copies!(with stock, first_copy, TREE, "", ["-ai", "--stats"]);
copies!(with stock, update_with_deletion, TREE, OLD, ["-ai", "--delete"]);
copies!(with stock, deletion_before, TREE, OLD, ["-ai", "--delete-before"]);
copies!(with stock, deletion_after_with_delayed_updates, TREE, OLD, ["-ai", "--delete-after", "--delay-updates"]);
copies!(with stock, nothing_to_do, "a b d/x", "a b d/x", ["-aii"]);
copies!(with stock, delta_with_each_block_length, "f*700000", "f*650000@-4", ["-ai", "--no-whole-file", "-B2000"]);
copies!(with stock, delta_in_place, "f*300000 g*100", "f*250000@-4 g*900@-4", ["-ai", "--inplace"]);
copies!(with stock, delta_compressed_by_zlib, "f*700000", "f*650000@-4", ["-ai", "--no-whole-file", "--zc=zlib", "--stats"]);
copies!(with stock, appending_compressed_by_zlib, "a*50000 b*100 c*9000", "a*30000@-4 b*100", ["-ai", "--append", "--zc=zlib", "--stats"]);
copies!(with stock, verified_appending_by_zlib, "a*50000 b*100 c*9000", "a*30000@-4 b*100", ["-ai", "--append-verify", "--zc=zlib", "--stats"]);
copies!(with stock, compression_by_default, TREE, OLD, ["-aiz"]);
copies!(with stock, compression_by_lz4, TREE, OLD, ["-ai", "--zc=lz4"]);
copies!(with stock, compression_by_zlibx, TREE, OLD, ["-ai", "--zc=zlibx"]);
copies!(with stock, checksums, "a b*70000 c", "a=x b*70000 c", ["-aic"]);
copies!(with stock, checksums_by_md5, TREE, OLD, ["-aic", "--cc=md5"]);
copies!(with stock, option_for_the_remote_side_only, TREE, OLD, ["-ai", "-M--bwlimit=1000000", "-M--no-times"]);
// Two names are not negotiated, even if one of them is "auto".
copies!(with stock, checksums_by_auto_and_md5, TREE, OLD, ["-aic", "--cc=auto,md5"]);
copies!(with stock, checksums_by_twice_auto, TREE, OLD, ["-aic", "--cc=auto,auto"]);
copies!(with stock, appending, "a*5000 b*100", "a*3000@-4 b*100", ["-ai", "--append"]);
copies!(with stock, hard_links, "a b==a d/c==a e f", "a@-5 e", ["-aiH"]);
copies!(with stock, backups, TREE, OLD, ["-aib", "--delete", "--backup-dir=../old"]);
copies!(with stock, filters_with_deletion, "a.o a.c d/b.o d/b.c", "a.o old.o old.c d/x.o", ["-ai", "--delete", "--exclude=*.o"]);
copies!(with stock, modes_and_owners, "a%600 d%700/b", "a%644", ["-ai", "--chmod=g+r", "--chown=7:8"]);
copies!(with stock, names_only, TREE, OLD, ["-av", "--delete"]);
copies!(with stock, pruned_directories, "a d/x e/f/", "old", ["-aim", "--exclude=x", "--delete"]);

synctest!(listed_names, with stock, |w: World| {
    w.source(TREE).dest("old").file("list", "a\nd/x\n");
    w.agree(&["-ai", "--files-from=list"]);
});

/// Names whose first element is a dot, so that the list has the root, whose other entries are not extra.
pub fn names_below_a_dot(w: &World, version: &str) {
    w.source("a d/x")
        .dest("a@-5 extra d/extra src/a@-5 src/extra")
        .keep_dest();
    for text in ["./a\n./d/x\n", "./././a\nd/x\n"] {
        w.file("list", text);
        for list in ["--files-from=list", "--files-from=:list"] {
            w.agree(&["-aiR", version, "--delete", list])
                .exits(0)
                .prints("d/x");
            w.restore_dest();
        }
    }
    let named: [&[&str]; 4] = [
        &["./src/a", "./src/d"],
        &["./src/none"],
        &["--exclude=a", "./src/a"],
        &["./none/x", "./src/d"],
    ];
    for names in named {
        w.restore_dest();
        w.agree_paths(&["-aiR", version, "--delete"], &[names, &["dst/"]].concat())
            .prints("./");
    }
    for (from, to) in [("src/././a", "new/"), ("src/.//./d/x", "other/")] {
        w.agree_paths(&["-aiR", version], &[from, to])
            .exits(0)
            .prints("./");
    }
}

/// Directories that are named without their content, and other names in them. What is beside these is not extra.
pub fn partly_named_directories(w: &World, version: &str) {
    w.source("d/e/y d/x")
        .dest("d/e/extra d/extra d/x@-5 extra")
        .keep_dest();
    for list in [
        "d\nd/x\n",
        "d\nd/e/y\n",
        ".\nd\nd/x\n",
        "./\nd/e/\n",
        "d/\nd/e\nd/e/y\n",
    ] {
        w.restore_dest().file("list", list);
        w.agree(&["-ai", version, "--delete", "--files-from=list"])
            .exits(0)
            .prints("d/");
    }
    let named: [&[&str]; 3] = [
        &["src/./d", "src/./d/e/"],
        &["src/./d/", "src/./d/x"],
        &["src/./", "src/./d/x"],
    ];
    for names in named {
        w.restore_dest();
        w.agree_paths(&["-diR", version, "--delete"], &[names, &["dst/"]].concat())
            .exits(0)
            .prints("d/");
    }
}

// Also if the rules need not be sent.
synctest!(rules_that_an_old_protocol_lacks, with stock, |w: World| {
    w.source("a a.o .cvsignore=keep").dest("keep x b.o .cvsignore=keep .r=y y").keep_dest().once().no_dry_run();
    let rules = ["-p x", "-! x", ":C", "-C", "P x", "R x", "H x", "-s x", "-sr x", ": .r", ":e .r", ":- .r", ":s .r", ". rules"];
    let rules = rules.map(|rule| format!("-f{rule}"));
    for rule in rules.iter().map(String::as_str).chain(["-F", "-C"]) {
        for protocol in ["--protocol=28", "--protocol=29"] {
            for deletion in ["--no-delete", "--delete", "--delete-excluded"] {
                w.restore_dest().file("rules", "- x\n: .r\n").agree(&["-a", rule, protocol, deletion]);
            }
        }
    }
});

// rsync reports these, and goes on without them.
synctest!(rules_that_are_too_long_for_old_protocols, with stock, |w: World| {
    w.source("a").dest("b");
    for len in [4_095, 4_096, 16_000] {
        let list = format!("{}\n", "x".repeat(len));
        for option in ["--protocol=29", "--protocol=28", "--delete"] {
            w.file("list", &list).agree(&["-ai", option, "--exclude-from=list"]).exits(0);
        }
    }
});

synctest!(partly_named_directories_of_protocol_32, with stock, |w: World| partly_named_directories(&w, "--protocol=32"));
synctest!(partly_named_directories_of_protocol_29, with stock, |w: World| partly_named_directories(&w, "--protocol=29"));

synctest!(pruning_of_named_directories, with stock, |w: World| pruned_of_names(&w, "--protocol=32"));
synctest!(pruning_of_named_directories_of_protocol_29, with stock, |w: World| pruned_of_names(&w, "--protocol=29"));

/// The root, which only a dot implies, keeps its attributes.
pub fn root_that_is_not_implied(w: &World) {
    w.source("a d/x").dest("a@-5 extra src/a@-5");
    w.agree_paths(
        &["-aiR", "--no-implied-dirs"],
        &["./src/a", "./src/d/x", "dst/"],
    )
    .exits(0)
    .prints("src/a");
}

synctest!(root_without_implied_directories, with stock, |w: World| root_that_is_not_implied(&w));

synctest!(names_below_a_dot_of_protocol_32, with stock, |w: World| names_below_a_dot(&w, "--protocol=32"));
synctest!(names_below_a_dot_of_protocol_29, with stock, |w: World| names_below_a_dot(&w, "--protocol=29"));

// rsync lists about 1,000 entries ahead of those that are finished.
synctest!(many_unchanged_directories, with stock, |w: World| {
    for name in ["src", "dst"] {
        w.build(name, |t| {
            for dir in 0..60 {
                (0..30).for_each(|file| drop(t.file(format!("{dir}/d/{file}"), "same")));
            }
        });
    }
    w.once().no_dry_run().agree(&["-ai"]).exits(0);
});

synctest!(removed_sources, with stock, |w: World| {
    w.source("a b d/x").dest("b").no_dry_run().agree(&["-ai", "--remove-source-files"]);
});

synctest!(alternate_tree, with stock, |w: World| {
    w.source("a b d/x").tree("alt", "a d/x").agree(&["-ai", "--link-dest=../alt"]);
});

synctest!(unreadable_file, as user, with stock, |w: World| {
    w.source("a shut%0 z").agree(&["-ai"]).exits(23);
});

synctest!(path_longer_than_path_max_is_left_out, with stock, |w: World| {
    let deep = ["component".repeat(20).as_str(); 25].join("/");
    w.build("src", |t| drop(t.file(format!("{deep}/leaf"), "deep"))).dest("extra");
    w.no_dry_run().agree(&["-a", "--delete"]).exits(23).warns("filename overflows max-path len by ");
});

/// Values around the length from which the list has only digests.
pub fn attributes(w: &World) {
    let value = |letter: &str, len: usize| letter.repeat(len);
    w.needs_xattrs().source("d/").dest("d/ gone%600");
    w.build("src", |t| {
        t.dir(".").xattr("user.root", value("r", 40));
        t.file("new", "n")
            .xattr("user.short", value("s", 32))
            .xattr("user.long", value("l", 33));
        t.file("shares", "n")
            .xattr("user.short", value("s", 32))
            .xattr("user.long", value("l", 33));
        t.file("same", "x")
            .xattr("user.long", value("l", 900))
            .xattr("user.z", "z");
        t.file("content", "new content")
            .xattr("user.long", value("l", 900));
        t.file("changed", "x")
            .xattr("user.long", value("N", 900))
            .xattr("user.one", "1");
        t.file("again", "x")
            .xattr("user.long", value("N", 900))
            .xattr("user.one", "1");
        t.file("none", "x");
        t.dir("c").xattr("user.dir", value("c", 70));
        t.dir("c/below").xattr("user.dir", value("b", 70));
        t.file("c/f", "c").xattr("user.long", value("c", 70));
        t.dir("d").xattr("user.dir", value("d", 70));
        t.dir("d/new").xattr("user.dir", value("e", 70));
        t.file("d/new/f", "f")
            .xattr("user.empty", "")
            .xattr("user.long", value("f", 2000));
        t.symlink("link-with-attributes", "a");
    });
    w.build("dst", |t| {
        t.file("same", "x")
            .xattr("user.long", value("l", 900))
            .xattr("user.z", "z");
        t.file("content", "old").xattr("user.long", value("l", 900));
        t.file("changed", "x")
            .xattr("user.long", value("o", 900))
            .xattr("user.one", "1")
            .xattr("user.two", "2");
        t.file("again", "x").xattr("user.long", value("N", 900));
        t.file("none", "x").xattr("user.long", value("o", 900));
        t.file("gone", "x").xattr("user.long", value("o", 900));
    });
}

synctest!(extended_attributes, with stock, |w: World| {
    attributes(&w);
    w.agree(&["-aiX"]).exits(0);
});

synctest!(extended_attributes_in_a_whole_list, with stock, |w: World| {
    attributes(&w);
    w.agree(&["-aiXX", "--no-inc-recursive", "--delete", "--numeric-ids"]).exits(0);
});

synctest!(extended_attributes_of_links, with stock, |w: World| {
    w.needs_xattrs().source("").dest("h=old");
    w.build("src", |t| {
        t.file("h", "h").xattr("user.long", "h".repeat(50));
        t.hardlink("d/h", "h");
        t.symlink("l", "a").xattr("trusted.long", "t".repeat(50));
    });
    w.agree(&["-aiXH"]).exits(0);
});

synctest!(stored_attributes_of_the_super_user, with stock, |w: World| {
    attributes(&w);
    w.build("src", |t| drop(t.file("faked", "f").xattr("user.rsync.%stat", "100640 0,0 7:8")));
    w.agree(&["-aiX", "--fake-super"]).exits(0);
});

const ONE: &[Acl] = &[
    Acl::Owner(6),
    Acl::User(1, 4),
    Acl::OwnGroup(4),
    Acl::Mask(5),
    Acl::Other(4),
];
const MORE: &[Acl] = &[
    Acl::Owner(7),
    Acl::User(2, 6),
    Acl::OwnGroup(5),
    Acl::Group(3, 7),
    Acl::Group(60_000, 1),
    Acl::Mask(7),
    Acl::Other(0),
];

pub fn acls(w: &World) {
    w.needs_acls().source("plain d/").dest("plain d/ e/");
    w.build("src", |t| {
        t.dir(".").acl(MORE);
        ["a", "b", "changed", "same"]
            .into_iter()
            .for_each(|name| drop(t.file(name, "x").acl(ONE)));
        t.file("masked", "x")
            .acl(&[Acl::Owner(6), Acl::OwnGroup(6), Acl::Mask(4), Acl::Other(4)]);
        t.dir("d").acl(MORE).default_acl(ONE);
        t.dir("d/e")
            .acl(ONE)
            .default_acl(&[Acl::Owner(7), Acl::OwnGroup(5), Acl::Other(1)]);
        t.file("d/f", "f").acl(MORE);
        t.dir("e");
        t.symlink("link", "a");
    });
    w.build("dst", |t| {
        t.file("changed", "x").acl(MORE);
        t.file("same", "x").acl(ONE);
        t.file("plain", "plain").acl(ONE);
        t.dir("e").default_acl(MORE);
    });
}

synctest!(formats_of_transferred_files, with stock, |w: World| {
    w.not_pulled("the bytes of a receiver differ").source("a big*100000 same new*70000 empty*0 d/x");
    w.dest("big*90000@-5 same d/x@-4").keep_dest();
    for options in [&["-a"][..], &["-az"], &["-aW"], &["-aic"], &["-a", "--cc=md5"], &["-a", "--protocol=29"]] {
        w.restore_dest().agree(&[options, &["--out-format=%n %c %C", "--no-h"]].concat()).exits(0);
    }
    // The list has another digest than the transfer, or there is none.
    for options in [&["-aic", "--cc=md5,sha1"], &["-ai", "--cc=none"]] {
        w.restore_dest().agree(&[&options[..], &["--out-format=%n [%C]"]].concat()).exits(0);
    }
    w.restore_dest().agree(&["-a", "--out-format=%n %b %l"]).exits(0);
});

synctest!(formats_count_tokens_of_a_delta, with stock, |w: World| {
    w.source("big*100000 same new*70000 empty*0 d/x").dest("big*90000@-5 same d/x@-4").keep_dest();
    // What sparsync compresses is not as long as what rsync does.
    let compressions = if w.is_pulled() { &["--no-z", "--zc=zlib", "--zc=zlibx", "--zc=lz4", "--zc=zstd"][..] } else { &["--no-z"] };
    for compression in compressions {
        w.restore_dest().agree(&["-a", "--no-W", compression, "--out-format=%n %b %c"]).exits(0).prints("big ");
    }
});

// Only a mark shows a receiver by protocol 29 which directories have content.
synctest!(content_of_a_directory_and_of_the_root_by_protocol_29, with stock, |w: World| {
    w.source("f/g f/e/ a").dest("f/e/x").file("list", "f/\n.\n");
    w.agree(&["-aim", "--delete-after", "--protocol=29", "--files-from=list"]).exits(0).prints("*deleting   f/e/x");
});

/// How much of a file whose parts were swapped was sent, as `--stats` prints it. `basis`: where the old file is. Checks
/// that the new one arrives.
fn sent_of_swapped(
    (client, server): (&Path, &Path),
    is_pull: bool,
    basis: &str,
    options: &[&str],
) -> String {
    let top = tempfile::tempdir_in(oracle::scratch()).unwrap();
    let dir = |name: &str| top.path().join(name);
    let old: Vec<u8> = (0..100_000u32)
        .flat_map(|n| (n.wrapping_mul(n) >> 7).to_le_bytes())
        .collect();
    let new = [&old[200_000..], b"in between", &old[..300_000], b"end"].concat();
    for (path, content) in [
        ("src/file", &new),
        (basis, &old),
        ("src/other", &old),
        ("dst/other", &new),
    ] {
        std::fs::create_dir_all(dir(path).parent().unwrap()).unwrap();
        std::fs::write(dir(path), content).unwrap();
    }
    std::fs::hard_link(dir("src/file"), dir("src/name")).unwrap();
    write_script(&dir("shell"), "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
    let run = |program: &Path, args: &[&str]| {
        let output = Command::new(program)
            .args(args)
            .current_dir(top.path())
            .output()
            .unwrap();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{program:?} {args:?}: {output:?}"
        );
        for name in ["file", "other", "name"] {
            // A longer file is not appended to.
            if name == "other" && options.contains(&"--append-verify") {
                continue;
            }
            let [sent, came] =
                ["src", "dst"].map(|side| std::fs::read(dir(side).join(name)).unwrap());
            assert!(sent == came, "{program:?} {args:?}: {name}");
        }
        String::from_utf8(output.stdout).unwrap()
    };
    let path = format!("--rsync-path={}", server.display());
    let ends = if is_pull {
        ["h:src/", "dst"]
    } else {
        ["src/", "h:dst"]
    };
    let printed = run(
        client,
        &[&["-a", "--stats", "-e", "./shell", &path], options, &ends].concat(),
    );
    if dir("batch").exists() {
        for name in ["file", "other", "name"] {
            std::fs::remove_file(dir("dst").join(name)).unwrap();
        }
        std::fs::write(dir(basis), &old).unwrap();
        std::fs::write(dir("dst/other"), &new).unwrap();
        let other = if client == oracle::rsync() {
            oracle::under_test()
        } else {
            oracle::rsync()
        };
        let about_basis = ["--copy-dest=../base", "--fuzzy", "--inplace", "--backup"];
        let others = options
            .iter()
            .filter(|option| about_basis.contains(*option));
        run(
            other,
            &[
                &["-aH", "--read-batch=batch"],
                &others.copied().collect::<Vec<_>>()[..],
                &["dst/"],
            ]
            .concat(),
        );
    }
    printed
        .lines()
        .filter(|line| line.contains("Matched data") || line.contains("Literal"))
        .collect()
}

// Each block becomes history of the compression, long ones in several parts. A batch file is read by the other program.
#[test]
fn copies_compressed_by_zlib_are_deltas() {
    let (theirs, ours) = (oracle::rsync(), oracle::under_test());
    for (basis, options) in [
        ("dst/file", &["-B1000"][..]),
        ("dst/file", &["-B131072"]),
        ("dst/file", &["-B70000", "--protocol=30"]),
        ("dst/file", &["-B70000", "--protocol=29"]),
        ("dst/file", &["--protocol=27"]),
        ("dst/file", &["--write-batch=batch"]),
        ("dst/file", &["--inplace", "-B1000"]),
        ("dst/file", &["--backup"]),
        ("dst/file.1", &["--fuzzy"]),
        ("base/file", &["--link-dest=../base"]),
    ] {
        let options = [&["-H", "--zc=zlib"], options].concat();
        for is_pull in [false, true] {
            let expected = sent_of_swapped((theirs, theirs), is_pull, basis, &options);
            for ends in [(ours, theirs), (theirs, ours)] {
                let sent = sent_of_swapped(ends, is_pull, basis, &options);
                assert_eq!(sent, expected, "{ends:?}, {is_pull}, {options:?}");
            }
        }
    }
}

// Blocks of a file that the receiver updates in place are gone once something is written over them. A stock rsync
// updates partial files so, and a receiver of ours does not.
#[test]
fn blocks_are_used_until_they_are_overwritten() {
    let (theirs, ours) = (oracle::rsync(), oracle::under_test());
    let without_loss = sent_of_swapped((theirs, theirs), false, "dst/file", &[]);
    for (basis, options) in [
        ("dst/file", &["--partial-dir=pd"][..]),
        ("dst/pd/file", &["--partial-dir=pd"]),
        ("dst/pd/file", &["--partial-dir=pd", "--protocol=30"]),
        ("dst/pd/file", &["--partial-dir=pd", "--protocol=29"]),
        ("dst/file", &["--delay-updates"]),
        ("dst/.~tmp~/file", &["--delay-updates"]),
        ("base/file", &["--partial-dir=pd", "--copy-dest=../base"]),
        ("dst/file", &["--inplace"]),
        ("dst/file", &["--inplace", "--protocol=28"]),
        ("dst/file", &["--inplace", "--backup"]),
        (
            "dst/file",
            &["--inplace", "--backup-dir=bk", "--protocol=28"],
        ),
        (
            "base/file",
            &["--inplace", "--copy-dest=../none", "--copy-dest=../base"],
        ),
        ("dst/file.1", &["--inplace", "--fuzzy", "--protocol=29"]),
        ("base/file.1", &["--inplace", "-yy", "--link-dest=../base"]),
        ("base/file", &["--copy-dest=../base", "--write-batch=batch"]),
        ("dst/file.1", &["--fuzzy", "--write-batch=batch"]),
        (
            "dst/file",
            &["--inplace", "--backup", "--write-batch=batch"],
        ),
        ("dst/file", &["--append-verify"]),
        (
            "dst/file",
            &["--append-verify", "--backup", "--protocol=29"],
        ),
    ] {
        for (is_pull, sending, receiving) in [
            (false, (ours, theirs), (theirs, ours)),
            (true, (theirs, ours), (ours, theirs)),
        ] {
            let expected = sent_of_swapped((theirs, theirs), is_pull, basis, options);
            assert_eq!(
                sent_of_swapped(sending, is_pull, basis, options),
                expected,
                "{is_pull}, {options:?}"
            );
            let received = sent_of_swapped(receiving, is_pull, basis, options);
            let is_partial = ["--partial-dir=pd", "--delay-updates"].contains(&options[0]);
            let wanted = if is_partial { &without_loss } else { &expected };
            assert_eq!(&received, wanted, "received: {is_pull}, {options:?}");
        }
    }
}

// The client of an old protocol leaves as soon as it has the goodbye. The server must have sent everything before.
#[test]
fn server_reports_all_before_an_old_client_leaves() {
    for _ in 0..20 {
        let options = ["--append-verify", "--protocol=28"];
        sent_of_swapped(
            (oracle::rsync(), oracle::under_test()),
            false,
            "dst/file",
            &options,
        );
    }
}

// The sender sorts absolute names with their slash, and the receiver numbers them by that.
#[test]
fn absolute_and_relative_paths_of_one_pull() {
    let top = tempfile::tempdir_in(oracle::scratch()).unwrap();
    for (path, text) in [("s/a/b", "one"), ("s/!/d", "two"), ("s/~/d", "three")] {
        let path = top.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    write_script(
        &top.path().join("shell"),
        "#!/bin/sh\nshift\ncd /\nexec sh -c \"$*\"\n",
    );
    let path = format!("--rsync-path={}", oracle::rsync().display());
    let absolute = format!("h:{}/s/a", top.path().display());
    let relative = |name: &str| format!("h:{}/s/{name}", top.path().display()).replacen('/', "", 1);
    let text = |path: &str| std::fs::read_to_string(top.path().join("dst").join(path)).unwrap();
    for option in [
        "--protocol=32",
        "--no-inc-recursive",
        "--protocol=29",
        "--protocol=28",
    ] {
        let copied = |program: &Path, sources: &[String]| {
            let _ = std::fs::remove_dir_all(top.path().join("dst"));
            let mut run = Command::new(program);
            run.args(["-rRi", "-e", "./shell", &path, option, &absolute])
                .args(sources)
                .arg("dst");
            let output = run.current_dir(top.path()).output().unwrap();
            assert_eq!(
                output.status.code(),
                Some(0),
                "{program:?} {option}: {output:?}"
            );
            let mut lines: Vec<_> = String::from_utf8(output.stdout)
                .unwrap()
                .lines()
                .map(str::to_owned)
                .collect();
            lines.sort();
            lines
        };
        let marked = [relative("./!"), relative("./~")];
        assert_eq!(
            copied(oracle::under_test(), &marked),
            copied(oracle::rsync(), &marked),
            "{option}"
        );
        assert_eq!(text("!/d") + &text("~/d"), "twothree", "{option}");
        // rsync transfers the directories above twice.
        copied(oracle::under_test(), &[relative("!")]);
        let kept = top
            .path()
            .join("s")
            .strip_prefix("/")
            .unwrap()
            .display()
            .to_string();
        assert_eq!(
            text(&format!("{kept}/a/b")) + &text(&format!("{kept}/!/d")),
            "onetwo",
            "{option}"
        );
    }
}

// Some methods can be chosen only because the client offers all of rsync.
#[test]
fn negotiation_is_that_of_rsync() {
    let top = tempfile::tempdir_in(oracle::scratch()).unwrap();
    std::fs::create_dir(top.path().join("src")).unwrap();
    std::fs::write(top.path().join("src/file"), "text").unwrap();
    write_script(
        &top.path().join("shell"),
        "#!/bin/sh\nshift\nexec sh -c \"$*\" 2>/dev/null\n",
    );
    let path = format!("--rsync-path={}", oracle::rsync().display());
    for (methods, code, options) in [
        ("", 0, &["-z", "--debug=nstr"][..]),
        ("", 0, &["-z", "--debug=nstr2"]),
        ("", 0, &["--debug=nstr2", "--cc=auto,md5"]),
        ("", 0, &["-z", "--debug=nstr2", "--cc=md4", "--zl=-3"]),
        ("", 0, &["--debug=nstr2", "--zc=zlib"]),
        ("", 0, &["--debug=nstr2", "--zc=zlibx", "--zl=0"]),
        ("", 0, &["-z", "--debug=nstr2", "--protocol=29"]),
        ("", 0, &["-z", "--debug=nstr2", "--write-batch=batch"]),
        ("zlib", 0, &["-z", "--debug=nstr2"]),
        ("zstd lz4 zlibx zlib&zlib", 0, &["-z", "--debug=nstr"]),
        (" &zlib", 0, &["-z", "--debug=nstr2"]),
        ("zlib&zstd", 4, &["-z", "--debug=nstr2"]),
    ] {
        for operands in [["src/", "h:dst"], ["h:src/", "dst"]] {
            let printed = |program: &Path| {
                let mut run = Command::new(program);
                run.args(["-a", "-e", "./shell", &path])
                    .args(options)
                    .args(operands)
                    .current_dir(top.path());
                if !methods.is_empty() {
                    run.env("RSYNC_COMPRESS_LIST", methods);
                }
                let output = run.output().unwrap();
                let errors = String::from_utf8(output.stderr).unwrap();
                let errors = errors
                    .lines()
                    .filter(|line| !line.starts_with("rsync error: "))
                    .collect::<Vec<_>>();
                (
                    output.status.code(),
                    String::from_utf8(output.stdout).unwrap(),
                    errors.join("\n"),
                )
            };
            let expected = printed(oracle::rsync());
            assert_eq!(
                expected.0,
                Some(code),
                "{methods:?} {options:?}: {expected:?}"
            );
            assert_eq!(
                printed(oracle::under_test()),
                expected,
                "{methods:?} {options:?} {operands:?}"
            );
        }
    }
}

// The decoder reads the basis after its sums were sent, so it can find other blocks there, or none.
#[test]
fn basis_that_changes_under_a_pull_with_zlib_is_replaced() {
    for change in [
        ": >dst/file",
        "head -c 400000 /dev/zero >dst/file",
        "rm dst/file",
    ] {
        let top = tempfile::tempdir_in(oracle::scratch()).unwrap();
        let dir = |name: &str| top.path().join(name);
        let old: Vec<u8> = (0..100_000u32)
            .flat_map(|n| (n.wrapping_mul(n) >> 7).to_le_bytes())
            .collect();
        let new = [&old[300_000..], b"in between", &old[..200_000], b"end"].concat();
        for (name, content) in [("src/file", &new), ("dst/file", &old)] {
            std::fs::create_dir(dir(name).parent().unwrap()).unwrap();
            std::fs::write(dir(name), content).unwrap();
        }
        // Changes it after the first sums have passed.
        let then = format!("{{ dd bs=1 count=1500 status=none; {change}; exec cat; }} <&3 >pipe &");
        let serve = "exec 3<&0\nmkfifo pipe\nFIRST\nsh -c \"$*\" <pipe\nkill $! || :\n"
            .replace("FIRST", &then);
        write_script(&dir("shell"), &format!("#!/bin/sh\nshift\n{serve}"));
        let words = [
            "-a",
            "--zc=zlib",
            "-B1000",
            "--stats",
            "--no-h",
            "-e",
            "./shell",
            "h:src/",
            "dst",
        ];
        let output = Command::new(oracle::under_test())
            .args(words)
            .current_dir(top.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{change}: {output:?}");
        assert!(std::fs::read(dir("dst/file")).unwrap() == new, "{change}");
        let is_whole = String::from_utf8_lossy(&output.stdout).contains("Matched data: 0 bytes");
        assert!(is_whole, "{change}: {output:?}");
    }
}

synctest!(formats_of_listed_checksums, with stock, |w: World| {
    w.source("big*100000 same new*70000 empty*0 d/x").dest("big*90000@-5 same d/x@-4").keep_dest();
    for options in [&["-anc"][..], &["-anic", "--cc=md5"], &["-nc", "-r", "--protocol=29"], &["-aiic", "--cc=md5,sha1"]] {
        w.restore_dest().agree(&[options, &["--out-format=%n %C"]].concat()).exits(0).prints("big ");
    }
});

synctest!(formats_of_a_recorded_copy, with stock, |w: World| {
    w.source(TREE).dest(OLD).no_dry_run().keep_dest();
    for options in [&["-a"][..], &["-ac"], &["-a", "--protocol=30"], &["-aX"]] {
        let recorded = [options, &["--write-batch=../batch", "--out-format=%n %c %C"]].concat();
        w.restore_dest().agree(&recorded).exits(0);
    }
});

#[test]
fn root_of_the_file_system_with_its_path() {
    let top = tempfile::tempdir_in(oracle::scratch()).unwrap();
    let src = top.path().join("src");
    std::fs::create_dir(&src).unwrap();
    std::fs::write(src.join("file"), "text").unwrap();
    write_script(
        &top.path().join("shell"),
        "#!/bin/sh\nshift\nexec sh -c \"$*\"\n",
    );
    let above = top.path().ancestors().filter(|dir| dir.parent().is_some());
    let mut rules: Vec<_> = above
        .map(|dir| format!("--include={}/", dir.display()))
        .collect();
    rules.extend([
        format!("--include={}/***", src.display()),
        "--exclude=*".to_owned(),
    ]);
    let copy = top.path().join("copy");
    let (there, far) = (
        copy.join(src.strip_prefix("/").unwrap()).join("file"),
        format!("h:{}", copy.display()),
    );
    for (client, server) in [
        (oracle::rsync(), oracle::under_test()),
        (oracle::under_test(), oracle::rsync()),
    ] {
        for operands in [["/", &far], ["h:/", "copy"]] {
            for protocol in [32, 30, 29] {
                let mut run = Command::new(client);
                run.args([
                    "-aR",
                    "-e",
                    "./shell",
                    &format!("--rsync-path={}", server.display()),
                ])
                .args(&rules);
                run.arg(format!("--protocol={protocol}"))
                    .args(operands)
                    .current_dir(top.path());
                let output = run.output().unwrap();
                assert_eq!(
                    output.status.code(),
                    Some(0),
                    "{client:?} {operands:?} {protocol}: {output:?}"
                );
                assert_eq!(std::fs::read(&there).unwrap(), b"text");
                std::fs::remove_dir_all(&copy).unwrap();
            }
        }
    }
}

#[test]
fn backup_and_restore_by_backuppc() {
    const PROGRAM: &str = "/usr/libexec/backuppc-rsync/rsync_bpc";
    if !std::path::Path::new(PROGRAM).exists() {
        report_skip(
            "stock::backup_and_restore_by_backuppc",
            "backuppc-rsync is not installed",
        );
        return;
    }
    let top = tempfile::tempdir_in(oracle::scratch()).unwrap();
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(program)
            .args(args)
            .current_dir(top.path())
            .output()
            .unwrap();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{program} {args:?}: {output:?}"
        );
        String::from_utf8(output.stdout).unwrap()
    };
    write_script(
        &top.path().join("shell"),
        "#!/bin/sh\nshift\nexec sh -c \"$*\"\n",
    );
    run(
        "sh",
        &[
            "-c",
            "mkdir -p src/d && seq 99999 > src/a && ln src/a src/d/link && ln -s no src/l && touch -d 2001-01-01 src",
        ],
    );
    // Names of files in the pool are digests of contents and attributes.
    let pools = [oracle::rsync(), oracle::under_test()].map(|server| {
        run(
            "mkdir",
            &["-p", "store/pc/h/0", "store/cpool", "store/pool"],
        );
        let server = format!("--rsync-path={}", server.display());
        let mut args = [
            "top-dir=store",
            "host-name=h",
            "share-name=s",
            "bkup-num=0",
            "bkup-comp=3",
            "bkup-inode0=2",
        ]
        .map(|arg| format!("--bpc-{arg}"))
        .to_vec();
        args.extend(
            [
                "--bpc-bkup-prevnum=-1",
                "--bpc-bkup-prevcomp=-1",
                "--bpc-attrib-new",
            ]
            .map(str::to_owned),
        );
        args.extend(
            [
                "-aHz",
                "--super",
                "--numeric-ids",
                "-s",
                "--delete",
                "-e",
                "./shell",
                &server,
            ]
            .map(str::to_owned),
        );
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let (src, out) = (
            format!("h:{}/src/", top.path().display()),
            format!("h:{}/out/", top.path().display()),
        );
        run(PROGRAM, &[&args[..], &[&src, "/"]].concat());
        let pool = run("sh", &["-c", "find store/cpool -type f | sort"]);
        run(
            PROGRAM,
            &[&args[..], &["--bpc-bkup-merge=0/3/4", "/", &out]].concat(),
        );
        run("diff", &["-r", "--no-dereference", "src", "out"]);
        run("rm", &["-r", "store", "out"]);
        pool
    });
    assert!(pools[0].lines().count() > 2, "{}", pools[0]);
    assert_eq!(pools[0], pools[1]);
}

/// Runs a pull from an rsync. Returns the peak memory of the client, in KiB.
fn peak_of_pull(top: &Path, args: &[&str]) -> usize {
    // The shell ends before the client does.
    let shell = "#!/bin/sh\nshift\nsh -c \"$*\"\ncode=$?\ngrep VmHWM /proc/$PPID/status > peak\nexit $code\n";
    write_script(&top.join("shell"), shell);
    let mut client = Command::new(oracle::under_test());
    client
        .args(["-e", "./shell", "--rsync-path=rsync"])
        .args(args);
    let output = client.current_dir(top).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let peak = std::fs::read_to_string(top.join("peak")).unwrap();
    peak.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn rules_are_held_once() {
    const RULES: usize = 300_000;
    let top = tempfile::tempdir_in(oracle::scratch()).unwrap();
    let rules: String = (0..RULES)
        .map(|number| format!("/name-{number:07}\n"))
        .collect();
    std::fs::write(top.path().join("rules"), &rules).unwrap();
    let args = ["-a", "--include-from=rules", "h:rules", "copy"];
    let peak_kib = peak_of_pull(top.path(), &args);
    // The text, the rules, their compiled form, and what is sent; the program itself.
    let most_kib = (4 * rules.len() + RULES * 64) / 1024 + 16_000;
    assert!(peak_kib < most_kib, "{peak_kib} KiB of {most_kib}");
}

/// More files whose content is requested again than there are appliers, each in a batch of its own.
const REPEATED: usize = 12;
/// Their length. All of it differs.
const REPEATED_BYTES: usize = 1_050_000;

#[test]
fn content_behind_repeated_files_is_not_held_in_memory() {
    const NEW_BYTES: u64 = 8 << 20;
    const MOST_KIB: usize = 48 << 10;
    let top = tempfile::tempdir_in(oracle::scratch()).unwrap();
    let path = |name: String| top.path().join(name);
    for dir in ["src", "dst"] {
        std::fs::create_dir(path(dir.to_owned())).unwrap();
    }
    for n in 0..REPEATED {
        std::fs::write(path(format!("src/a{n}")), vec![b'x'; REPEATED_BYTES]).unwrap();
        std::fs::write(path(format!("dst/a{n}")), vec![b'y'; REPEATED_BYTES - 9]).unwrap();
        let new = std::fs::File::create(path(format!("src/b{n}"))).unwrap();
        new.set_len(NEW_BYTES).unwrap();
    }
    let args = ["-aS", "--append-verify", "h:src/", "dst"];
    let peak_kib = peak_of_pull(top.path(), &args);
    let compared = Command::new("diff")
        .args(["-r", "src", "dst"])
        .current_dir(top.path())
        .output()
        .unwrap();
    assert!(compared.status.success(), "{compared:?}");
    assert!(peak_kib < MOST_KIB, "{peak_kib} KiB of {MOST_KIB}");
}

/// Files that are requested again, some of which have other names, among new ones and other names of those. Where rsync
/// prints the other names depends on when it has the file.
pub fn repeated_files(w: &World, options: &[&str]) {
    let build = |tree: &Tree, is_source: bool| {
        for n in 0..REPEATED {
            let (letter, len_bytes) = if is_source {
                (b'x', REPEATED_BYTES)
            } else {
                (b'y', REPEATED_BYTES - 9)
            };
            let name = format!("a{n:02}");
            tree.file(&name, vec![letter; len_bytes]);
            if is_source {
                tree.hardlink(format!("b{n:02}"), &name);
                tree.hardlink(format!("d/{n:02}"), &name);
                tree.file(format!("c{n:02}"), vec![n as u8; REPEATED_BYTES]);
                tree.hardlink(format!("e{n:02}"), format!("c{n:02}"));
            } else if n % 2 == 1 {
                tree.file(format!("b{n:02}"), b"other");
                tree.file(format!("d/{n:02}"), vec![b'z'; len_bytes]);
            }
        }
    };
    w.build("src", |tree| build(tree, true));
    w.build("dst", |tree| build(tree, false));
    w.stderr_unordered().agree(options);
}

synctest!(repeated_files_with_other_names, with stock, |w: World| {
    repeated_files(&w, &["-aH", "--append-verify"]);
});

synctest!(repeated_files_are_backed_up, with stock, |w: World| {
    repeated_files(&w, &["-aHb", "--append-verify"]);
});

synctest!(repeated_files_without_links, with stock, |w: World| {
    repeated_files(&w, &["-ai", "--append-verify", "--delete-after"]);
});

synctest!(access_control_lists, with stock, |w: World| {
    acls(&w);
    w.agree(&["-aiA"]).exits(0);
});

synctest!(access_control_lists_in_a_whole_list, with stock, |w: World| {
    acls(&w);
    w.agree(&["-aiA", "--no-inc-recursive"]).exits(0);
});

synctest!(access_control_lists_with_numeric_ids, with stock, |w: World| {
    acls(&w);
    w.agree(&["-aiA", "--numeric-ids"]).exits(0);
});

synctest!(access_control_lists_without_owners, with stock, |w: World| {
    acls(&w);
    w.agree(&["-rltpiA"]).exits(0);
});

synctest!(access_control_lists_with_chmod, with stock, |w: World| {
    acls(&w);
    w.agree(&["-aiA", "--chmod=g-r,o+x"]).exits(0);
});

synctest!(appending_with_verification, with stock, |w: World| {
    w.source("a*5000 b=0123456789 c*200000 same").dest("a*3000@-4 b=XXXXX c*100000@-4 same");
    w.stderr_unordered().agree(&["-ai", "--append-verify"]).warns("WARNING: b failed verification");
});

synctest!(device_is_copied_as_a_file, as root, with stock, |w: World| {
    w.build("src", |t| drop(t.char_device("null", 1, 3))).dest("");
    // The copy gets the current second as its time, so a second run may find a difference.
    w.once().agree(&["-ai", "--copy-devices"]);
});

synctest!(file_is_written_to_a_device, as root, with stock, |w: World| {
    w.source("null=content").build("dst", |t| drop(t.char_device("null", 1, 3)));
    w.agree(&["-ai", "--write-devices"]);
});

copies!(with stock, compression_by_zlib, TREE, OLD, ["-ai", "--zc=zlib"]);

copies!(with stock, progress_of_files, "a*70000 b d/x e/", "d/x", ["-a", "--progress", "--no-i-r"]);
copies!(with stock, progress_before_the_formatted_line, "a b d/x", "d/x", ["-a", "--progress", "--no-i-r", "--out-format=%n %b"]);
copies!(with stock, progress_of_a_whole_list, "a*70000 b d/x", "b", ["-aiP", "--no-inc-recursive"]);
copies!(with stock, progress_of_deltas, "a*700000 b", "a*650000@-4 b", ["-av", "--progress", "--no-i-r", "--no-whole-file"]);

synctest!(progress_of_the_run, with stock, |w: World| {
    w.not_pulled("the receiver may show that the list is incomplete");
    w.source("a*70000 b d/x e").dest("e").agree(&["-a", "--info=progress2", "--no-i-r"]).exits(0);
});

/// Missing arguments before, after and between existing ones, and an extra entry.
pub fn missing_arguments(w: &World, options: &[&str]) {
    w.source("b k d/x e/y")
        .dest("a b@-9 c d/gone d/x l extra")
        .no_dry_run();
    let options = [&["-ai", "--delete-missing-args"], options].concat();
    let paths: &[&str] = match options.contains(&"-R") {
        true => &[
            "src/./a",
            "src/./b",
            "src/./d/gone",
            "src/./d/x",
            "src/./k",
            "src/./l",
            "src/./e",
            "dst/",
        ],
        false => &[
            "src/a", "src/b", "src/c", "src/d", "src/k", "src/l", "src/e/", "dst/",
        ],
    };
    w.agree_paths(&options, paths)
        .exits(0)
        .prints(if options.contains(&"-q") {
            ""
        } else {
            "*deleting   l"
        });
}

/// Missing arguments in missing directories, which rsync notices only without incremental recursion.
pub fn missing_parents(w: &World) {
    w.source("b")
        .dest("gone/q d/q")
        .file("list", "d/q\ngone/q\ngone/r\nb\n")
        .no_dry_run()
        .keep_dest();
    for more in [&[][..], &["-r"], &["-r", "--delete-before"]] {
        w.restore_dest()
            .agree(&[&["-ai", "--delete-missing-args", "--files-from=list"], more].concat())
            .exits(24);
    }
}

synctest!(missing_parents_of_missing_arguments, with stock, |w: World| missing_parents(&w));
synctest!(missing_arguments_piecewise, with stock, |w: World| missing_arguments(&w, &[]));
synctest!(missing_arguments_in_a_whole_list, with stock, |w: World| missing_arguments(&w, &["--no-i-r"]));
synctest!(missing_arguments_below, with stock, |w: World| missing_arguments(&w, &["-R"]));
synctest!(missing_arguments_with_attributes, with stock, |w: World| missing_arguments(&w, &["-HAXU", "--numeric-ids"]));
synctest!(missing_arguments_of_protocol_29, with stock, |w: World| missing_arguments(&w, &["--protocol=29", "-R"]));
synctest!(missing_arguments_of_protocol_27, with stock, |w: World| {
    w.not_pulled("the order of lines depends on time");
    missing_arguments(&w, &["--protocol=27", "-Hc", "-q"]);
});

synctest!(only_a_missing_argument, with stock, |w: World| {
    w.source("a").dest("gone");
    w.agree_paths(&["-ai", "--delete-missing-args"], &["src/gone", "dst/"]).prints("*deleting   gone");
    w.agree_paths(&["-ai", "--delete-missing-args"], &["src/gone", "dst/new"]);
});

copies!(with stock, checksums_by_sha1, "a*5000 b*70000 c", "a*4000@-4 b*70000 c=x", ["-aic", "--cc=sha1", "--no-whole-file"]);
copies!(with stock, checksums_by_two_names, TREE, OLD, ["-aic", "--cc=xxh64,sha1"]);
copies!(with stock, no_checksum, TREE, OLD, ["-ai", "--cc=none", "--no-whole-file"]);

synctest!(checksum_none_of_the_environment, with stock, |w: World| {
    w.source(TREE).dest(OLD).env("RSYNC_CHECKSUM_LIST", "none").agree(&["-ai"]);
});

synctest!(checksum_sha1_of_the_environment, with stock, |w: World| {
    w.source(TREE).dest(OLD).env("RSYNC_CHECKSUM_LIST", "sha1").agree(&["-aic"]);
});

// No shell expands wildcards or splits words.
synctest!(secluded_arguments, with stock, |w: World| {
    w.source("a b*70000").tree("with space", "x y*3 d/z").tree("$HOME", "q").dest("old").no_dry_run();
    let home = if w.is_pulled() { "$HO*" } else { "$HOME" };
    w.agree_paths(&["-ais", "--delete-after", "--suffix=a b"], &["src/", "with space", home, "dst/"]).exits(0);
    w.agree_paths(&["-ais", "--link-dest=../src"], &["src/", "missing*", "new d*r"]).exits(23);
    w.agree_paths(&["-ais", "--timeout=60", "--cc=md5", "--protocol=30"], &["src/a", "x*"]).exits(0);
});

synctest!(secluded_arguments_of_the_environment, with stock, |w: World| {
    w.source(TREE).file("li st", "a\nd/x\n").env("RSYNC_PROTECT_ARGS", "1");
    w.agree(&["-ai", "--files-from=li st", "-M--fake-super"]);
});

// The options of backups.
synctest!(complete_backup, with stock, |w: World| {
    w.needs_acls();
    attributes(&w);
    acls(&w);
    w.source(TREE).dest("extra old/x");
    w.build("src", |t| drop(t.hardlink("d/linked", "same")));
    w.agree(&["-aHAX", "--delete", "-i"]).exits(0);
});

synctest!(complete_backup_with_unchanged_entries, with stock, |w: World| {
    attributes(&w);
    w.needs_acls().source("p d/q");
    w.build("src", |t| {
        t.file("e", "e").acl(ONE);
        t.hardlink("d/linked", "same");
    });
    w.agree(&["-aHAX", "--delete", "-ii"]).exits(0);
});

/// Runs the program with these arguments and a remote program that is this shell script, in a new directory with the
/// source `src/a`.
fn run_against(
    script: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> (TempDir, Output) {
    let dir = tempfile::tempdir().unwrap();
    let shell = dir.path().join("shell");
    std::fs::create_dir(dir.path().join("src")).unwrap();
    std::fs::write(dir.path().join("src/a"), vec![b'a'; 300_000]).unwrap();
    write_script(&shell, &format!("#!/bin/sh\n{script}\n"));
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60"]).arg(oracle::under_test());
    command
        .arg("-e")
        .arg(&shell)
        .arg("--rsync-path=rsync")
        .args(arguments)
        .current_dir(dir.path());
    command
        .env("HOME", dir.path())
        .envs(environment.iter().copied())
        .stdin(Stdio::null());
    let output = command.output().expect("a program can be started");
    (dir, output)
}

/// Runs a pull whose remote program is this shell script.
fn pull_from(script: &str, options: &[&str]) -> Output {
    let (dir, output) = run_against(script, &[options, &["host:src/", "dst/"]].concat(), &[]);
    let left = std::fs::read_dir(dir.path().join("dst")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "a rejected peer leaves nothing");
    output
}

/// Asserts the exit code, and that the texts are printed.
fn assert_prints(output: &Output, code: i32, texts: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for text in texts {
        assert!(stderr.contains(text), "{text}: {stderr}");
    }
}

/// Ends what a peer sends, not what it receives.
const HANG_UP: &str = "exec >&-; cat >/dev/null";

#[test]
fn requested_version_is_announced() {
    let script = "printf '\\040\\000\\000\\000'; head -c 4 >version";
    let (dir, _) = run_against(script, &["-a", "--protocol=31", "host:src/", "dst/"], &[]);
    assert_eq!(
        std::fs::read(dir.path().join("version")).unwrap(),
        [31, 0, 0, 0]
    );
}

#[test]
fn lower_version_is_used_with_a_newer_server() {
    let rsync = oracle::rsync().display();
    let rest = "head -c 4 >/dev/null; printf '\\041\\000\\000\\000'; exec cat";
    let script = format!("shift 2; exec 3<&0; {rsync} \"$@\" <&3 | {{ {rest}; }}");
    for operands in [["src/", "host:dst/"], ["host:src/", "dst/"]] {
        let (dir, output) = run_against(&script, &[&["-a"], &operands[..]].concat(), &[]);
        assert_prints(&output, 0, &[]);
        assert_eq!(
            std::fs::read(dir.path().join("dst/a")).unwrap().len(),
            300_000
        );
    }
}

#[test]
fn sender_without_entries_is_sent_nothing_more() {
    // The handshake, and after version and rules of the client an empty list with empty lists of names.
    let handshake = "\\037\\000\\000\\000\\000\\001\\002\\003\\004";
    let list = "\\003\\000\\000\\007\\000\\000\\000";
    let script =
        format!("printf '{handshake}'; head -c 12 >rules; printf '{list}'; exec >&-; cat >rest");
    let (dir, output) = run_against(&script, &["-a", "host:src/", "dst/"], &[]);
    assert_prints(&output, 0, &[]);
    assert_eq!(std::fs::read(dir.path().join("rest")).unwrap(), b"");
}

#[test]
fn lost_connection_is_reported_by_the_role_of_this_end() {
    let (greeting, handshake) = (
        "\\037\\000\\000\\000",
        "\\037\\000\\000\\000\\000\\001\\002\\003\\004",
    );
    for (sent, bytes) in [(greeting, 4), (handshake, 9)] {
        let script = &format!("printf '{sent}'; {HANG_UP}");
        for (operands, role) in [
            (["src/", "host:dst/"], "sender"),
            (["host:src/", "dst/"], "Receiver"),
        ] {
            let (_, output) = run_against(script, &[&["-a"], &operands[..]].concat(), &[]);
            let closed = format!(
                "rsync: connection unexpectedly closed ({bytes} bytes received so far) [{role}]"
            );
            assert_prints(&output, 12, &[&closed, &format!("[{role}=3.5.0]")]);
        }
    }
}

#[test]
fn last_line_without_its_end_is_printed() {
    // The text of an error that concerns a file, without a newline, and the end of the stream.
    let output = hostile("\\004\\000\\000\\010half", HANG_UP);
    assert_prints(&output, 12, &["half\n"]);
}

#[test]
fn failure_at_the_sender_outweighs_vanished_files() {
    // After version and rules: the text of an error that concerns a file, an empty list, and that files vanished.
    let (error, vanished) = (
        "\\002\\000\\000\\010x\\n",
        "\\004\\000\\000\\035\\002\\000\\000\\000",
    );
    let (list, end) = (
        "\\003\\000\\000\\007\\000\\000\\000",
        "exec >&-; cat >/dev/null",
    );
    for (sent, code) in [
        ([error, vanished], 23),
        (["", vanished], 24),
        ([error, ""], 23),
    ] {
        let script = format!(
            "printf '{HANDSHAKE}'; head -c 12 >rules; printf '{}{list}'; {end}",
            sent.concat()
        );
        assert_prints(&pull_from(&script, &["-a"]), code, &[]);
    }
}

// A retry does not append, so the receiver sends the sums of what it has.
#[test]
fn appended_file_with_a_read_error_is_requested_again() {
    let rsync = oracle::rsync().display();
    let script = format!("mkdir dst; head -c 100000 src/a >dst/a; shift 2; exec {rsync} \"$@\"");
    let mut repaired = 0;
    for call in 1..200 {
        let fault = format!("{call}:EIO");
        let environment = [
            ("SPARSYNC_FAIL_AT", fault.as_str()),
            ("SPARSYNC_FAULT_LOG", "fault"),
        ];
        let (dir, output) = run_against(
            &script,
            &["-a", "--append", "src/", "host:dst/"],
            &environment,
        );
        let code = output.status.code();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            matches!(code, Some(0 | 23)),
            "call {call}: {code:?}, {stderr}"
        );
        if stderr.contains("read errors mapping") {
            let [sent, received] =
                ["src/a", "dst/a"].map(|path| std::fs::read(dir.path().join(path)).unwrap());
            // A file that was not even begun is not requested again.
            assert!(
                sent == received || received.len() == 100_000,
                "call {call}: {stderr}"
            );
            repaired += u32::from(sent == received);
        }
        if !dir.path().join("fault").exists() {
            break;
        }
    }
    assert!(repaired > 0, "no file was requested again");
}

/// The handshake of protocol 31 without algorithm lists (compatibility flags 0).
const HANDSHAKE: &str = "\\037\\000\\000\\000\\000\\001\\002\\003\\004";

/// After the handshake, the peer sends these bytes.
fn hostile(bytes: &str, then: &str) -> Output {
    pull_from(&format!("printf '{HANDSHAKE}{bytes}'; {then}"), &["-a"])
}

#[test]
fn hostile_sender_cannot_request_deletions() {
    // An entry without a mode: flags, name, size, time, mode, end. It has no uid and gid.
    let list = |name: &str| {
        format!(
            "\\026\\000\\000\\007\\030\\00{}{name}\\000\\000\\000\\000\\000\\000\\000\\000\\000\\000\\000\\000",
            name.len()
        )
    };
    for (options, name, what) in [
        (&["-r"][..], "a", "an entry with the mode 0"),
        (&["-r", "--delete-missing-args"], "..", "invalid path"),
        (&["-r", "--delete-missing-args"], ".", "is not a directory"),
    ] {
        let script = format!("printf '{HANDSHAKE}{}'; cat >/dev/null", list(name));
        let output = pull_from(&script, options);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && stderr.contains(what),
            "{name}: {:?}, {stderr}",
            output.status
        );
    }
    let script = format!("printf '{HANDSHAKE}{}'; cat >/dev/null", list("x"));
    let (dir, output) = run_against(
        &script,
        &["-r", "--delete-missing-args", "host:y", "host:z", "./"],
        &[],
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("unrequested") && dir.path().join("src/a").exists(),
        "{stderr}"
    );
}

#[test]
fn hostile_sender_is_rejected() {
    for (bytes, what) in [
        // An unknown tag.
        ("\\001\\000\\000\\143\\000", "unexpected tag"),
        // A path that climbs: flags 0x02, name "../x", size 0, time 0.
        (
            "\\020\\000\\000\\007\\032\\004../x\\000\\000\\000\\000\\000\\000\\000\\000\\000",
            "path",
        ),
        // A message with a length that its kind does not have.
        ("\\001\\000\\000\\155\\000", "message of kind 102"),
        // An empty file `a`, and then an item with attributes of it, which were not requested.
        (
            "\\026\\000\\000\\007\\001\\001a\\000\\000\\000\\000\\000\\000\\000\\244\\201\\000\\000\\000\\000\\000\\000\\000\\001\\000\\001",
            "attributes of 0 were not requested",
        ),
        // The peer gives up with exit code 0.
        (
            "\\004\\000\\000\\135\\000\\000\\000\\000",
            "error exit with code 0",
        ),
    ] {
        let begun = Instant::now();
        let output = hostile(bytes, "cat >/dev/null");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            begun.elapsed() < Duration::from_secs(50),
            "{bytes}: the peer was waited for"
        );
        assert!(!stderr.contains("panicked"), "{stderr}");
        let code = output.status.code().unwrap_or(-1);
        assert!(
            matches!(code, 2 | 4 | 12 | 22) && stderr.contains(what),
            "{bytes}: exit {code}, {stderr}"
        );
    }
}

synctest!(files_with_fractions_of_seconds_are_removed_by_older_protocols, with stock, |w: World| {
    w.source("a b d/x").no_dry_run().once().agree(&["-a", "--remove-source-files", "--protocol=30"]);
});

synctest!(merge_files_of_one_side_exclude_themselves, with stock, |w: World| {
    w.source("a sub/b x.o").file("src/.r", "- *.o\n").file("src/sub/.r", "- b\n");
    w.dest("old sub/x.o y.o").file("dst/.r", "- q\n").file("dst/sub/.r", "- q\n").keep_dest();
    for rule in ["--filter=:es .r", "--filter=:er .r", "--filter=:e .r"] {
        w.restore_dest().stderr_unordered().agree(&["-ai", "--delete", rule]).exits(0);
    }
    w.restore_dest().agree(&["-ai", "--delete", "--delete-excluded", "--filter=:es .r"]).exits(0);
});

synctest!(a_receiving_client_keeps_what_cvs_rules_exclude, with stock, |w: World| kept_by_cvs_rules(&w));
synctest!(
    a_receiving_client_keeps_what_cvs_rules_exclude_natively,
    |w: World| kept_by_cvs_rules(&w)
);

fn kept_by_cvs_rules(w: &World) {
    w.source("a d/x d/.cvsignore=*.txt")
        .dest("old x.o d/y.o d/.cvsignore=*.txt d/z.txt core/q")
        .keep_dest();
    for option in ["--delete", "--delete-after", "--exclude=a"] {
        w.restore_dest()
            .stderr_unordered()
            .agree(&["-aiC", "--delete-excluded", option]);
    }
}

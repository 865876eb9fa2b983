//! Sessions with a stock rsync by each version of its protocol, in each role that can be tested with it.

use crate::kit::{Acl, OLD, TREE, World, oracle, synctest, write_script};
use std::process::Command;

fn agree(w: &World, version: &str, options: &[&str]) {
    w.source(TREE)
        .source("h1 h2==h1 d/h3==h1 a-dir/x a.txt a0 !bang big*300000 d.x/y")
        .dest(OLD);
    w.dest("big*290000@-5 h1@-7")
        .file("list", "a\nd/x\nbig\nmissing\n");
    w.no_dry_run()
        .once()
        .agree(&[options, &[&format!("--protocol={version}")]].concat());
}

/// Declares a case for each set of options.
macro_rules! version {
    ($module:ident, $peer:ident, $version:literal, [$($name:ident: $options:expr),+ $(,)?]) => {
        mod $module {
            use super::*;
            $(synctest!($name, with $peer, |w: World| agree(&w, $version, &$options));)+
        }
    };
}

/// Declares the cases that every protocol has. `$letters`: further options. Before protocol 29, the order of the client's
/// two processes determines that of its lines, so it must not print any.
macro_rules! versions {
    ($peer:ident, $letters:literal: $($module:ident = $version:literal),+) => {
        $(version!($module, $peer, $version, [
            archive: [concat!("-a", $letters)],
            hard_links: [concat!("-aH", $letters), "--delete"],
            compression: [concat!("-az", $letters), "--no-whole-file"],
            checksums: [concat!("-ac", $letters), "--delete-after"],
            appending: [concat!("-a", $letters), "--append-verify"],
            relative: [concat!("-aR", $letters), "--delete"],
            listed_names: [concat!("-a", $letters), "--files-from=list", "--stats"],
            names_listed_there: [concat!("-a", $letters), "--files-from=:list", "--delete"],
        ]);)+
    };
}

versions!(stock, "": client_27 = "27", client_28 = "28");
versions!(stock, "i": client_29 = "29", client_30 = "30", client_31 = "31");
versions!(client, "": server_27 = "27", server_28 = "28");
versions!(client, "i": server_29 = "29", server_30 = "30");

/// Copies with each compression, and all attributes that the protocol has.
fn all_attributes(w: &World, version: &str, letters: &str) {
    w.source("a d/x h==a big*70000 e/")
        .dest("big*60000@-5 d/x=old gone")
        .keep_dest()
        .no_dry_run()
        .once();
    if letters.contains('X') {
        w.needs_acls().needs_xattrs();
        let acl = [
            Acl::Owner(6),
            Acl::User(1, 7),
            Acl::OwnGroup(4),
            Acl::Mask(7),
            Acl::Other(4),
        ];
        w.build("src", |t| {
            t.file("attrs", "x")
                .acl(&acl)
                .xattr("user.long", "v".repeat(50))
                .xattr("user.short", "v");
            t.dir("e")
                .acl(&acl)
                .default_acl(&acl)
                .xattr("user.long", "e".repeat(50));
        });
    }
    for compression in [
        "--no-z",
        "-z",
        "--zc=zlib",
        "--zc=zlibx",
        "--zc=lz4",
        "--zc=zstd",
    ] {
        let protocol = format!("--protocol={version}");
        w.restore_dest()
            .agree(&[
                letters,
                "--delete",
                "--no-whole-file",
                compression,
                &protocol,
            ])
            .exits(0);
    }
}

/// Declares a case for each version.
macro_rules! matrix {
    ($module:ident, $peer:ident: $($name:ident = $version:literal $letters:literal),+ $(,)?) => {
        mod $module {
            use super::*;
            $(synctest!($name, with $peer, |w: World| all_attributes(&w, $version, $letters));)+
        }
    };
}

matrix!(clients, stock: all_27 = "27" "-aH", all_28 = "28" "-aH", all_29 = "29" "-aiH");
matrix!(clients_with_attributes, stock: all_30 = "30" "-aiHAX", all_31 = "31" "-aiHAX", all_32 = "32" "-aiHAX");
matrix!(servers, client: all_27 = "27" "-aH", all_28 = "28" "-aH", all_29 = "29" "-aiH");
matrix!(servers_with_attributes, client: all_30 = "30" "-aiHAX", all_31 = "31" "-aiHAX", all_32 = "32" "-aiHAX");

/// Declares cases for single versions.
macro_rules! cases {
    ($($name:ident, $version:literal, |$w:ident| $case:expr);+ $(;)?) => {
        $(
            mod $name {
                use super::*;
                pub const VERSION: &str = concat!("--protocol=", $version);
                synctest!(client, as user, with stock, |$w: World| $case);
                synctest!(server, as user, with client, |$w: World| $case);
            }
        )+
    };
}

// Before protocol 30, a sender does not report which file it cannot read.
cases! {
    unreadable_27, "27", |w| unreadable(&w, VERSION);
    unreadable_28, "28", |w| unreadable(&w, VERSION);
    unreadable_29, "29", |w| unreadable(&w, VERSION);
    unreadable_30, "30", |w| unreadable(&w, VERSION);
}

fn unreadable(w: &World, version: &str) {
    w.source("shut%0 a b shut2%0 d/shut%0")
        .dest("old")
        .no_dry_run()
        .agree(&["-a", "--delete-after", version])
        .exits(23);
}

cases! {
    deletion_of_excluded_files_28, "28", |w| deletion_of_excluded_files(&w, VERSION);
    deletion_of_excluded_files_29, "29", |w| deletion_of_excluded_files(&w, VERSION);
}

fn deletion_of_excluded_files(w: &World, version: &str) {
    w.source("a x.o d/y")
        .dest("old x.o d/y.o")
        .agree(&["-a", "--delete-excluded", "--exclude=*.o", version])
        .exits(0);
}

synctest!(files_before_protocol_29_have_unknown_changes, with stock, |w: World| {
    w.not_pulled("the order of lines depends on time").source(TREE).dest(OLD).agree(&["-ai", "--protocol=28"]);
});

// Before protocol 30, entries are deleted first unless another time is chosen.
synctest!(time_of_deletion_depends_on_the_protocol, with stock, |w: World| {
    w.source(TREE).dest(OLD).agree(&["-ai", "--delete", "--protocol=29"]).prints("*deleting");
});

synctest!(options_of_later_protocols_are_rejected, with stock, |w: World| {
    w.source("a").no_dry_run().stderr_unordered();
    for option in ["-A", "-X", "-y", "-m", "--filter=:_.rules", "--filter=-p_x"] {
        let option = option.replace('_', " ");
        w.agree(&["-a", "--delete", "--protocol=28", &option]);
    }
});

// The kit compares only one end.
#[test]
fn both_ends_reject_options_of_later_protocols() {
    let top = tempfile::tempdir_in(oracle::scratch()).unwrap();
    std::fs::create_dir(top.path().join("src")).unwrap();
    write_script(
        &top.path().join("shell"),
        "#!/bin/sh\nshift\nexec sh -c \"$*\"\n",
    );
    for (client, server) in [
        (oracle::rsync(), oracle::under_test()),
        (oracle::under_test(), oracle::rsync()),
    ] {
        for option in ["-A", "-X", "-y", "-m"] {
            for operands in [["src/", "h:dst"], ["h:src/", "dst"]] {
                let mut run = Command::new(client);
                run.args(["-a", "--protocol=28", option, "-e", "./shell"])
                    .args(operands)
                    .current_dir(top.path());
                let output = run
                    .arg(format!("--rsync-path={}", server.display()))
                    .output()
                    .unwrap();
                assert_eq!(
                    output.status.code(),
                    Some(2),
                    "{client:?} {option} {operands:?}: {output:?}"
                );
            }
        }
    }
}

synctest!(rules_of_options_lose_what_older_protocols_lack, with stock, |w: World| {
    w.source("a d/x x.o").dest("d/old old old.o .pp/part d/.pp/x d/.~tmp~/x a~").keep_dest();
    for options in ["--partial-dir=.pp", "--delay-updates", "-C", "-C --partial-dir=d/.pp --exclude=a", "-b --suffix=.o"] {
        for protocol in ["--protocol=29", "--protocol=28"] {
            let options: Vec<_> = options.split(' ').chain(["-a", "--delete", protocol]).collect();
            w.restore_dest().agree(&options).exits(0);
        }
    }
});

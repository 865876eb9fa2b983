//! The server's end of copies of a stock rsync: rsync calls rsync in one twin and sparsync in the other. The routes
//! `served-push` and `served-pull` of `SPARSYNC_TEST_ROUTES` run all other cases, too.

use crate::filesfrom::pruned_of_names;
use crate::kit::{OLD, Route, TREE, World, copies, oracle, skip, synctest, write_script};
use crate::stock::{
    acls, attributes, missing_arguments, missing_parents, names_below_a_dot,
    partly_named_directories, repeated_files, root_that_is_not_implied,
};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

copies!(with client, first_copy, TREE, "", ["-ai", "--stats"]);
copies!(with client, update_with_deletion, TREE, OLD, ["-ai", "--delete"]);
copies!(with client, deletion_before, TREE, OLD, ["-ai", "--delete-before"]);
copies!(with client, deletion_after_with_delayed_updates, TREE, OLD, ["-ai", "--delete-after", "--delay-updates"]);
copies!(with client, nothing_to_do, "a b d/x", "a b d/x", ["-aii"]);
copies!(with client, delta_with_each_block_length, "f*700000", "f*650000@-4", ["-ai", "--no-whole-file", "-B2000"]);
copies!(with client, delta_in_place, "f*300000 g*100", "f*250000@-4 g*900@-4", ["-ai", "--inplace"]);
copies!(with client, compression_by_default, TREE, OLD, ["-aiz"]);
copies!(with client, compression_by_lz4, TREE, OLD, ["-ai", "--zc=lz4"]);
copies!(with client, compression_by_zlibx, TREE, OLD, ["-ai", "--zc=zlibx"]);
copies!(with client, compression_by_zlib, TREE, OLD, ["-aiz", "--zc=zlib"]);
copies!(with client, checksums, "a b*70000 c", "a=x b*70000 c", ["-aic"]);
copies!(with client, checksums_by_md5, TREE, OLD, ["-aic", "--cc=md5", "--checksum-seed=7"]);
copies!(with client, protocol_31, TREE, OLD, ["-ai", "--delete", "--protocol=31"]);
copies!(with client, appending, "a*5000 b*100", "a*3000@-4 b*100", ["-ai", "--append"]);
copies!(with client, hard_links, "a b==a d/c==a e f", "a@-5 e", ["-aiH", "--delete"]);
copies!(with client, backups, TREE, OLD, ["-aib", "--delete", "--backup-dir=../old"]);
copies!(with client, filters_with_deletion, "a.o a.c d/b.o d/b.c", "a.o old.o old.c d/x.o", ["-ai", "--delete", "--exclude=*.o"]);
copies!(with client, cvs_rules, "a.o a.c d/b.o d/b.c d/.cvsignore=b.c", "old.o old.c", ["-aiC", "--delete"]);
copies!(with client, names_only, TREE, OLD, ["-av", "--delete"]);
copies!(with client, pruned_directories, "a d/x e/f/", "old", ["-aim", "--exclude=x", "--delete"]);
copies!(with client, listing_at_once, TREE, OLD, ["-ai", "--no-inc-recursive"]);
copies!(with client, one_level, TREE, OLD, ["-dti"]);
copies!(with client, very_verbose, "a*5000 d/x", "a*4000@-4", ["-avv", "--no-whole-file"]);
copies!(with client, quick_timeout, TREE, OLD, ["-ai", "--timeout=20"]);

// The client sends the maps, but no owners.
synctest!(maps_of_owners_that_are_not_kept, with client, |w: World| {
    w.source("a b/c");
    w.agree(&["-ai", "--chown=7:8", "--no-o", "--no-g"]).exits(0);
});

// Only the receiver parses the maps. The client learns the exit code, and a sender ignores them.
synctest!(bad_maps_of_owners, with client, |w: World| {
    w.source("a").dest("old").keep_dest().once().no_dry_run();
    for map in ["--usermap=foo", "--groupmap=1:", "--chown=1-x:"] {
        for more in ["--delete", "--numeric-ids", "--no-o", "-M--log-file=/dev/null", "--protocol=29"] {
            w.agree(&["-a", map, more]);
        }
    }
    w.agree(&["-a", "--usermap=foo"]).exits(1).warns("No colon found in --usermap: foo");
    w.restore_dest().agree(&["-a", "-M--usermap=foo"]);
});

// Only a client has a standard output, and only a receiver makes backups.
synctest!(options_without_effect_at_a_server, with client, |w: World| {
    w.source("a").dest("").keep_dest().once().no_dry_run();
    for word in ["-M--outbuf=zz", "-M--outbuf="] {
        w.restore_dest().agree(&["-a", word]).exits(0);
    }
    if matches!(w.route(), Route::Pull(_)) {
        for word in ["-M--backup-dir=", "-M--backup-dir=.", "-M--suffix="] {
            w.restore_dest().agree(&["-a", "-M-b", word]).exits(0);
        }
    }
});

synctest!(copies_as_another_user, as root, with client, |w: World| {
    w.source("a b d/c").stderr_unordered().tree(".", "dst/%777").no_dry_run().once();
    w.agree(&["-ai", "--omit-dir-times", "--no-perms", "-M--copy-as=nobody"]);
    w.agree(&["-a", "-M--copy-as=nosuch"]);
    w.agree(&["-a", "-M--copy-as=nobody:nosuch"]);
});

// A newer client may have more of them.
synctest!(unknown_words_of_info_and_debug, with client, |w: World| {
    w.source("a d/b").dest("old").keep_dest().once().no_dry_run();
    for words in ["-M--info=nosuch,del", "-M--debug=nosuch3"] {
        w.restore_dest().agree(&["-a", "--delete", words]).exits(0);
    }
});

// Up to protocol 28, a client cannot send the rule for these files.
synctest!(cvsignore_files_of_a_receiver, with client, |w: World| {
    w.source("a").dest("keep extra b.o d/keep .cvsignore=keep").keep_dest().once().no_dry_run();
    for protocol in ["--protocol=28", "--protocol=29"] {
        for option in ["--delete", "--delete-excluded", "--delete-after", "--include=keep"] {
            w.restore_dest().agree(&["-aC", "--delete", protocol, option]).exits(0);
        }
    }
});

synctest!(extended_attributes, with client, |w: World| {
    attributes(&w);
    w.agree(&["-aiX"]).exits(0);
});

synctest!(extended_attributes_in_a_whole_list, with client, |w: World| {
    attributes(&w);
    w.agree(&["-aiXX", "--no-inc-recursive", "--delete", "--numeric-ids"]).exits(0);
});

synctest!(extended_attributes_of_protocol_30, with client, |w: World| {
    attributes(&w);
    w.agree(&["-aiX", "--protocol=30", "--no-whole-file", "--delete"]).exits(0);
});

synctest!(extended_attributes_in_place, with client, |w: World| {
    attributes(&w);
    w.agree(&["-aiX", "--inplace", "--no-whole-file"]).exits(0);
});

// A value is sent once for all entries with the same attributes, also for entries that an alternate tree has.
synctest!(extended_attributes_of_an_alternate_tree, with client, |w: World| {
    w.needs_xattrs().source("new");
    for name in ["src", "alt"] {
        w.build(name, |t| {
            t.file("same", "s").xattr("user.long", "s".repeat(50));
            t.file("data", name).xattr("user.long", "d".repeat(50));
            t.file("attr", "a").xattr("user.long", name.repeat(20)).xattr("user.same", "a".repeat(40));
            t.file("twin", "a").xattr("user.long", name.repeat(20)).xattr("user.same", "a".repeat(40));
        });
    }
    w.dest("").keep_dest();
    for option in ["--link-dest=../alt", "--copy-dest=../alt", "--compare-dest=../alt"] {
        w.restore_dest().agree(&["-aiX", option]).exits(0);
    }
});

synctest!(extended_attributes_of_fake_super, with client, |w: World| {
    attributes(&w);
    w.no_dry_run().agree(&["-aiX", "-M--fake-super"]).exits(0);
});

synctest!(extended_attributes_of_hard_links, with client, |w: World| {
    attributes(&w);
    w.build("src", |t| {
        t.file("h", "h").xattr("user.long", "h".repeat(50));
        t.hardlink("d/h", "h");
        t.symlink("l", "a").xattr("trusted.long", "t".repeat(50));
    });
    w.agree(&["-aiHX"]).exits(0);
});

synctest!(access_control_lists, with client, |w: World| {
    acls(&w);
    w.agree(&["-aiA"]).exits(0);
});

synctest!(listed_names, with client, |w: World| {
    w.source(TREE).dest("old").file("list", "a\nd/x\nmissing\n");
    w.agree(&["-ai", "--files-from=list"]).exits(23);
});

synctest!(names_listed_on_the_server, with client, |w: World| {
    w.source(TREE).dest("old").file("list", "a\n# b\nd/x\n");
    w.agree(&["-ai", "--files-from=:list"]);
});

synctest!(total_size_counts_a_file_once_that_several_arguments_name, with client, |w: World| {
    w.not_served_push("the client counts").source("d/e/x=1 d/y=22").dest("").file("list", "d/\nd/e/\nd/e/x\n");
    w.no_dry_run().alone(&["-ar", "--files-from=list", "--stats"]).prints("Total file size: 3 bytes");
});

synctest!(log_file, with client, |w: World| {
    w.source("a b=changed@5 c@9 d/x l->a m==a").dest("a b=change c=c@5 old").keep_dest().no_dry_run();
    for options in [&["-a"][..], &["-ai", "--delete"], &["-aii"], &["-aH"], &["-an"], &["-aq"], &["-avv", "--dry-run"]] {
        let options = [options, &["-M--log-file=far.log"]].concat();
        w.once().restore_dest().agree(&options).exits(0);
    }
});

synctest!(log_file_with_a_format, with client, |w: World| {
    w.source("a b=changed@5 d/x l->a big*90000").dest("a b=change old big*80000@-5").keep_dest().no_dry_run();
    for format in ["%o %n %l", "%i %n%L", "%n %b"] {
        let format = format!("-M--log-file-format={format}");
        w.once().restore_dest().agree(&["-a", "--delete", "-M--log-file=far.log", &format]).exits(0);
    }
});

synctest!(log_file_that_cannot_be_opened, with client, |w: World| {
    w.source("a").dest("").no_dry_run();
    w.once().agree(&["-a", "-M--log-file=none/far.log"]).exits(0).warns("[server] failed to open log-file none/far.log");
});

synctest!(errors_in_the_log_file, with client, |w: World| {
    w.source("a").dest("").no_dry_run();
    w.once().agree_paths(&["-a", "-M--log-file=far.log"], &["src/", "gone", "dst/"]).exits(23);
});

synctest!(several_sources, with client, |w: World| {
    w.source("a b d/x").tree("more", "a d/y c").no_dry_run();
    w.agree_paths(&["-ai"], &["src/", "more/", "src/d", "dst/"]);
});

synctest!(missing_sources, with client, |w: World| {
    w.source("a b").dest("old").no_dry_run();
    w.agree_paths(&["-ai", "--delete"], &["src/", "gone", "dst/"]).exits(23);
});

synctest!(relative_names, with client, |w: World| {
    w.source("a d/x d/y").no_dry_run();
    w.agree_paths(&["-aiR"], &["src/./d/x", "src/a", "dst/"]);
});

// rsync lists about 1,000 entries ahead of those that are finished.
synctest!(many_unchanged_directories, with client, |w: World| {
    for name in ["src", "dst"] {
        w.build(name, |t| {
            for dir in 0..60 {
                (0..30).for_each(|file| drop(t.file(format!("{dir}/d/{file}"), "same")));
            }
        });
    }
    w.once().no_dry_run().agree(&["-ai"]).exits(0);
});

// A list is open as long as a name in it waits for another one, and the client lists about 1,000 entries ahead of it.
synctest!(hard_link_names_around_a_long_directory, with client, |w: World| {
    let files = (0..1500).map(|n| format!("b/{n}")).chain((0..1200).map(|n| format!("c/{n}/f")));
    let unchanged = Vec::from_iter(files).join(" ");
    w.source(&format!("a/x b/y==a/x {unchanged}")).dest(&unchanged).no_dry_run();
    w.once().agree(&["-aiH"]).exits(0);
});

synctest!(removed_sources, with client, |w: World| {
    w.source("a b d/x").dest("b").no_dry_run().agree(&["-ai", "--remove-source-files"]);
});

synctest!(alternate_tree, with client, |w: World| {
    w.source("a b d/x").tree("alt", "a d/x").agree(&["-ai", "--link-dest=../alt"]);
});

synctest!(unreadable_file, as user, with client, |w: World| {
    w.source("a shut%0 z").dest("old").agree(&["-ai", "--delete"]).exits(23);
});

// With deletion during the run, the time at which the error arrives decides what is deleted.
synctest!(unreadable_directory, as user, with client, |w: World| {
    w.source("a z closed/%0").dest("old").agree(&["-ai", "--delete-after"]).exits(23);
});

synctest!(names_below_a_dot_of_protocol_32, with client, |w: World| names_below_a_dot(&w, "--protocol=32"));
synctest!(names_below_a_dot_of_protocol_29, with client, |w: World| names_below_a_dot(&w, "--protocol=29"));

synctest!(partly_named_directories_of_protocol_32, with client, |w: World| {
    partly_named_directories(&w, "--protocol=32");
});
synctest!(partly_named_directories_of_protocol_29, with client, |w: World| {
    partly_named_directories(&w, "--protocol=29");
});
synctest!(pruning_of_named_directories, with client, |w: World| pruned_of_names(&w, "--protocol=32"));
synctest!(pruning_of_named_directories_of_protocol_29, with client, |w: World| pruned_of_names(&w, "--protocol=29"));
synctest!(root_without_implied_directories, with client, |w: World| root_that_is_not_implied(&w));

synctest!(names_of_a_list_piecewise, with client, |w: World| {
    w.source("a d/x d/e/y z").dest("d/extra").file("list", "d\n./a\n");
    w.agree(&["-arv", "--delete", "--files-from=list"]).exits(0).prints("incremental file list\n");
});

synctest!(missing_parents_of_missing_arguments, with client, |w: World| missing_parents(&w));
synctest!(missing_arguments_piecewise, with client, |w: World| missing_arguments(&w, &[]));
synctest!(missing_arguments_in_a_whole_list, with client, |w: World| missing_arguments(&w, &["--no-i-r"]));
synctest!(missing_arguments_below, with client, |w: World| missing_arguments(&w, &["-R"]));
synctest!(missing_arguments_with_attributes, with client, |w: World| missing_arguments(&w, &["-HAU", "--numeric-ids"]));

synctest!(only_a_missing_argument, with client, |w: World| {
    w.source("a").dest("gone");
    w.agree_paths(&["-ai", "--delete-missing-args"], &["src/gone", "dst/"]).prints("*deleting   gone");
});

copies!(with client, checksums_by_sha1, "a*5000 b*70000 c", "a*4000@-4 b*70000 c=x", ["-aic", "--cc=sha1", "--no-whole-file"]);
copies!(with client, checksums_by_two_names, TREE, OLD, ["-aic", "--cc=xxh64,sha1"]);
copies!(with client, no_checksum, TREE, OLD, ["-ai", "--cc=none", "--no-whole-file"]);

synctest!(checksum_none_of_the_environment, with client, |w: World| {
    w.source(TREE).dest(OLD).env("RSYNC_CHECKSUM_LIST", "none").agree(&["-ai"]);
});

synctest!(checksum_sha1_of_the_environment, with client, |w: World| {
    w.source(TREE).dest(OLD).env("RSYNC_CHECKSUM_LIST", "sha1").agree(&["-aic"]);
});

// No shell expands wildcards or splits words.
synctest!(secluded_arguments, with client, |w: World| {
    w.source("a b*70000").tree("with space", "x y*3 d/z").tree("$HOME", "q").dest("old").no_dry_run();
    let home = if w.is_pulled() { "$HO*" } else { "$HOME" };
    w.agree_paths(&["-ais", "--delete-after", "--suffix=a b"], &["src/", "with space", home, "dst/"]).exits(0);
    w.agree_paths(&["-ais", "--link-dest=../src"], &["src/", "missing*", "new d*r"]).exits(23);
    w.agree_paths(&["-ais", "--timeout=60", "--cc=md5", "--protocol=30"], &["src/a", "x*"]).exits(0);
});

synctest!(secluded_arguments_of_the_environment, with client, |w: World| {
    w.source(TREE).file("li st", "a\nd/x\n").env("RSYNC_PROTECT_ARGS", "1");
    w.agree(&["-ai", "--files-from=li st"]);
});

synctest!(unknown_secluded_argument, with client, |w: World| {
    w.source("a").no_dry_run().once().agree(&["-as", "-M--bogus"]).warns("on remote machine: --bogus: unknown option");
});

synctest!(messages_of_the_server_through_the_client, with client, |w: World| {
    w.source("a b").no_dry_run();
    w.agree_paths(&["-ai", "--stderr=client"], &["src/", "gone", "dst/"]).exits(23);
});

synctest!(checksum_of_the_environment, with client, |w: World| {
    w.source(TREE).dest(OLD).env("RSYNC_CHECKSUM_LIST", "xxh64 md5").agree(&["-aic", "--out-format=%i %C %n"]);
});

synctest!(unknown_option_for_the_server, with client, |w: World| {
    w.source("a").no_dry_run().once().agree(&["-a", "-M--bogus"]).warns("on remote machine: --bogus: unknown option");
});

/// What a client does that has sent everything.
#[derive(PartialEq)]
enum Then {
    CloseConnection,
    WaitForServer,
}

/// The remote shell turns the reference to the last, short block into one to the first, once. The whole-file checksum
/// fails, and the content that the second attempt replaces is longer.
#[test]
fn replaced_content_in_place_leaves_no_end() {
    const SHELL: &str = r#"#!/bin/sh
shift
mkfifo pipe
exec 3<&0
perl -e '
    while (sysread(STDIN, $_, 65536)) {
        $n ||= s/(\xff{4})\xfe\xff\xff\xff/$1$1/ && open(F, ">changed");
        syswrite(STDOUT, $_);
    }' <&3 >pipe &
sh -c "$*" <pipe
code=$?
kill $!
exit $code
"#;
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let at = |name: &str| dir.path().join(name);
    for name in ["src", "dst"] {
        std::fs::create_dir(at(name)).unwrap();
        std::fs::write(
            at(name).join("f"),
            (0u8..130).flat_map(|n| [n; 10]).collect::<Vec<_>>(),
        )
        .unwrap();
    }
    std::fs::File::options()
        .append(true)
        .open(at("dst/f"))
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    write_script(&at("shell"), SHELL);
    let mut copy = Command::new("timeout");
    copy.args(["-s", "KILL", "60"]).arg(oracle::rsync()).args([
        "-av",
        "--inplace",
        "--no-whole-file",
        "-e./shell",
    ]);
    let copied = copy
        .arg(format!("--rsync-path={}", oracle::under_test().display()))
        .args(["src/", "host:dst"]);
    let copied = copied
        .current_dir(dir.path())
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&copied.stderr);
    assert!(
        copied.status.success() && text.contains("f failed verification -- update"),
        "{copied:?}"
    );
    assert!(at("changed").exists());
    assert!(
        std::fs::read(at("dst/f")).unwrap() == std::fs::read(at("src/f")).unwrap(),
        "other content"
    );
}

/// Runs the program as the server of a client that sends these bytes.
fn serve(options: &[&str], sent: &[u8], then: Then) -> Output {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    std::fs::create_dir(dir.path().join("src")).unwrap();
    std::fs::write(dir.path().join("src/a"), vec![b'a'; 300_000]).unwrap();
    let mut command = Command::new("timeout");
    command
        .args(["-s", "KILL", "60"])
        .arg(oracle::under_test())
        .arg("--server")
        .args(options);
    command.current_dir(dir.path()).env("LC_ALL", "C");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("a program can be started");
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    let mut stdout = child.stdout.take().expect("stdout is a pipe");
    let reading = std::thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
    // A server that rejects the client stops reading.
    let _ = stdin.write_all(sent);
    let stdin = Some(stdin).filter(|_| then == Then::WaitForServer);
    let output = child.wait_with_output().expect("a child can be waited for");
    drop(stdin);
    reading
        .join()
        .expect("reading does not panic")
        .expect("a pipe can be read");
    output
}

/// The version of a client without algorithm lists.
const VERSION: &[u8] = &[31, 0, 0, 0];
const SENDS: [&str; 4] = ["--sender", "-re.iLsfxCI", ".", "src/"];

/// Returns a frame of data.
fn data(bytes: &[u8]) -> Vec<u8> {
    [&(7 << 24 | bytes.len() as u32).to_le_bytes()[..], bytes].concat()
}

#[test]
fn hostile_client_is_rejected() {
    let rule = |text: &[u8]| [&(text.len() as u32).to_le_bytes()[..], text].concat();
    let no_rules = [0; 4];
    let item = |index: u8, flags: u16| [&[index][..], &flags.to_le_bytes()].concat();
    for (sent, what) in [
        (data(&(-1i32).to_le_bytes()), "the length of a filter rule"),
        (data(&6000i32.to_le_bytes()), "the length of a filter rule"),
        (
            data(&[rule(b"Q x"), no_rules.to_vec()].concat()),
            "invalid filter rule",
        ),
        (data(&rule(b". /etc/passwd")), "invalid filter rule"),
        // A message that only a receiver or only a daemon sends.
        (
            vec![4, 0, 0, 109, 0, 0, 0, 0],
            "message before the file list",
        ),
        (vec![0, 0, 0, 99], "unexpected tag"),
        // Requests: an unknown index, a directory, sums without end.
        (
            [data(&no_rules), data(&item(100, 0x8000)), data(&[0; 16])].concat(),
            "protocol error",
        ),
        (
            [data(&no_rules), data(&item(1, 0x8000)), data(&[0; 16])].concat(),
            "protocol error",
        ),
        (
            [data(&no_rules), data(&item(2, 0x8000)), data(&[0xff; 16])].concat(),
            "protocol error",
        ),
    ] {
        let output = serve(&SENDS, &[VERSION, &sent].concat(), Then::WaitForServer);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code().unwrap_or(-1);
        assert!(
            matches!(code, 2 | 12) && stderr.contains(what),
            "{sent:?}: exit {code}, {stderr}"
        );
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn hostile_client_that_sends_is_rejected() {
    let file = |name: &[u8]| [&listed(name)[..], &[0]].concat();
    let item = |index: u8| [&[index][..], &[0, 0x80], &[0; 16]].concat();
    for (sent, what) in [
        (data(&[0xff; 64]), "protocol error"),
        (data(&file(b"../x")), "protocol error"),
        (data(&file(b"a/../../x")), "protocol error"),
        (data(&file(b"no/such/parent")), "protocol error"),
        // Content and items that were not requested.
        (data(&[file(b"x"), item(100)].concat()), "protocol error"),
        // A message that only a receiver sends.
        (vec![4, 0, 0, 107, 0, 0, 0, 0], "protocol error"),
        (vec![0, 0, 0, 99], "protocol error"),
    ] {
        let output = serve(
            &["-re.LsfxCI", ".", "dst"],
            &[VERSION, &sent].concat(),
            Then::WaitForServer,
        );
        let stderr = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code().unwrap_or(-1);
        assert!(
            matches!(code, 2 | 12) && stderr.contains(what),
            "{sent:?}: exit {code}, {stderr}"
        );
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

/// Returns the entry of a file of 1 byte: flags, name, size, time, mode.
fn listed(name: &[u8]) -> Vec<u8> {
    let mode = 0o100_644_u32.to_le_bytes();
    [
        &[0x18, name.len() as u8][..],
        name,
        &[0, 1, 0],
        &[0; 4],
        &mode,
    ]
    .concat()
}

#[test]
fn hostile_extended_attributes_are_rejected() {
    let file = |xattrs: &[u8]| data(&[&listed(b"x")[..], xattrs, &[0]].concat());
    let long = |len: &[u8]| [&[0, 1, 7][..], len, b"user.a\0", &[0; 16]].concat();
    for (sent, what) in [
        // The number of a list that has not come.
        (file(&[5]), "the number of a list of attributes"),
        // Too many attributes, and too long ones.
        (
            file(&[0, 0xf0, 1, 0, 1, 0]),
            "the number of extended attributes",
        ),
        (
            file(&[0, 1, 0xe0, 0, 0, 1]),
            "the length of the name of an extended attribute",
        ),
        (
            file(&long(&[0xf0, 1, 0, 0, 8])),
            "the length of an extended attribute",
        ),
        // Values that were not requested.
        (
            [file(&long(&[33])), data(&[100, 0, 0x81])].concat(),
            "attributes of 99 were not requested",
        ),
    ] {
        let output = serve(
            &["-rXe.LsfxCI", ".", "dst"],
            &[VERSION, &sent].concat(),
            Then::WaitForServer,
        );
        let stderr = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code().unwrap_or(-1);
        assert!(
            matches!(code, 2 | 12) && stderr.contains(what),
            "{sent:?}: exit {code}, {stderr}"
        );
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn hostile_secluded_arguments_are_rejected() {
    for (sent, code, what) in [
        (vec![b'x'; (16 << 20) + 2], 2, "arguments are longer than"),
        (b"rsync\0".repeat(16_002), 2, "more than 16000 arguments"),
        (b"rsync\0--bogus\0\0".to_vec(), 1, "--bogus: unknown option"),
    ] {
        let output = serve(
            &["--sender", "-sre.iLsfxCI"],
            &[&sent, VERSION].concat(),
            Then::WaitForServer,
        );
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(code) && stderr.contains(what),
            "{:?}: {stderr}",
            output.status
        );
    }
}

#[test]
fn client_that_leaves_is_reported() {
    for sent in [
        &b""[..],
        &[31],
        VERSION,
        &[VERSION, &data(&[0; 4])].concat(),
    ] {
        let output = serve(&SENDS, sent, Then::CloseConnection);
        assert_eq!(
            output.status.code(),
            Some(12),
            "{sent:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn client_that_gives_up_decides_the_exit_code() {
    let gives_up = [&[4, 0, 0, 93][..], &20i32.to_le_bytes()].concat();
    for sent in [gives_up.clone(), [data(&[0; 4]), gives_up].concat()] {
        let output = serve(&SENDS, &[VERSION, &sent].concat(), Then::WaitForServer);
        assert_eq!(
            (output.status.code(), &output.stderr[..]),
            (Some(20), &b""[..]),
            "{sent:?}"
        );
    }
}

#[test]
fn client_of_a_newer_protocol_is_understood() {
    for (version, what) in [
        (33, "the length of a filter rule"),
        (40, "the length of a filter rule"),
        (41, "mismatch"),
    ] {
        let sent = [&[version, 0, 0, 0], &data(&[0xff; 4])[..]].concat();
        let output = serve(&SENDS, &sent, Then::WaitForServer);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(2) && stderr.contains(what),
            "{version}: {stderr}"
        );
    }
}

#[test]
fn client_of_an_old_protocol_is_rejected() {
    for version in [26, 19, -1i32] {
        let output = serve(&SENDS, &version.to_le_bytes(), Then::WaitForServer);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(
            stderr.contains("protocol version mismatch -- is your shell clean?"),
            "{stderr}"
        );
    }
}

/// Runs a pull of a client from the program, whose command line gets the words that rrsync inserts before the paths, in
/// a place without another rsync.
fn pull_confined(client: &Path, options: &[&str]) -> (tempfile::TempDir, Output) {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    for (path, content) in [
        ("src/a", "a"),
        ("src/d/x", "x"),
        ("src/d/.rules", "- x\n"),
        ("src/rules", "- x\n"),
        ("outer", "- x\n"),
    ] {
        std::fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
        std::fs::write(dir.path().join(path), content).unwrap();
    }
    let script = format!(
        "#!/bin/sh\nfor word; do shift; [ \"$word\" = . ] && set -- \"$@\" --confine-root=\"$PWD\"/src --; \
         set -- \"$@\" \"$word\"; done\nshift 2\nPATH=/nonexistent\nexec {} \"$@\"\n",
        oracle::under_test().display()
    );
    let shell = dir.path().join("shell");
    write_script(&shell, &script);
    let mut command = Command::new(client);
    let options = options
        .iter()
        .map(|option| option.replace("TOP", dir.path().to_str().unwrap()));
    command
        .arg("-e")
        .arg(&shell)
        .args(options)
        .args(["far:src/", "dst/"])
        .current_dir(dir.path());
    let output = command
        .stdin(Stdio::null())
        .output()
        .expect("a program can be started");
    (dir, output)
}

/// `--confine-root` concerns paths. Whether devices can be created depends on the user alone.
#[test]
fn devices_are_created_with_a_confined_root() {
    if !rustix::process::geteuid().is_root() {
        skip("needs root");
    }
    for program in [oracle::rsync(), oracle::under_test()] {
        let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
        let shell = dir.path().join("shell");
        write_script(&shell, "#!/bin/sh\nshift\nexec \"$@\"\n");
        for made in ["mkdir src dst", "mknod src/null c 1 3", "mkfifo src/p"] {
            let made = Command::new("sh")
                .args(["-ec", made])
                .current_dir(dir.path())
                .status();
            assert!(made.expect("a shell can be started").success());
        }
        let output = Command::new(oracle::rsync())
            .arg("-e")
            .arg(&shell)
            .arg(format!("--rsync-path={}", program.display()))
            .arg(format!(
                "-M--confine-root={}",
                dir.path().join("dst").display()
            ))
            .args(["-a", "src/", "far:dst/"])
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .output()
            .expect("a program can be started");
        assert_eq!(output.status.code(), Some(0), "{program:?}: {output:?}");
        let made = std::fs::symlink_metadata(dir.path().join("dst/null")).unwrap();
        assert!(made.file_type().is_char_device(), "{program:?}");
    }
}

#[test]
fn copy_behind_rrsync_is_served_without_an_rsync() {
    let (dir, output) = pull_confined(oracle::rsync(), &["-a", "--exclude=.rules"]);
    assert_eq!(
        (output.status.code(), &output.stderr[..]),
        (Some(0), &b""[..])
    );
    assert_eq!(std::fs::read(dir.path().join("dst/d/x")).unwrap(), b"x");
    // Files of rules apply within the directory, and count as missing outside of it.
    for client in [oracle::rsync(), oracle::under_test()] {
        for (option, is_hidden) in [
            ("--filter=: .rules", true),
            ("--filter=: ../rules", true),
            ("--filter=: TOP/outer", false),
            ("-C", false),
        ] {
            let (dir, output) = pull_confined(client, &["-a", option]);
            assert_eq!(
                (output.status.code(), &output.stderr[..]),
                (Some(0), &b""[..]),
                "{client:?} {option}"
            );
            assert_eq!(
                !dir.path().join("dst/d/x").exists(),
                is_hidden,
                "{client:?} {option}"
            );
        }
    }
}

/// A directory that a forced command serves, with the rest of the command line of rrsync and a descriptor.
#[test]
fn push_behind_rrsync_is_served_without_an_rsync() {
    for (line, path, content) in [
        ("-a src/ far:", "in/d/x", "x"),
        ("-a src/ far:@", "in/sub/d/x", "x"),
        ("-a src/ far:@/new", "in/sub/new/d/x", "x"),
        ("-a src/a far:@/b", "in/sub/b", "a"),
        ("-ab --backup-dir=@ src/ far:", "in/sub/a", "old"),
        ("-a --temp-dir=@ src/ far:", "in/a", "a"),
        ("-a --link-dest=@ src/ far:@/new", "in/sub/new/a", "a"),
        ("-a -M--log-file=@/log src/ far:", "in/a", "a"),
        ("-a --delete --filter=:_.rules src/ far:", "in/d/kept", "k"),
        // A symlink leads out of the directory.
        ("-ab --backup-dir=up src/ far:", "in/a", "old"),
        ("-a --link-dest=../up src/ far:@/new", "in/sub/new/a", "a"),
    ] {
        let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
        let files = [
            ("src/a", "a"),
            ("src/d/x", "x"),
            ("src/d/.rules", "P kept\n"),
            ("in/a", "old"),
            ("in/d/kept", "k"),
        ];
        for (path, content) in files.into_iter().chain([
            ("in/sub/f", "f"),
            ("out/rules", "- x\n"),
            ("in/d/gone", "g"),
        ]) {
            std::fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(path), content).unwrap();
        }
        std::fs::copy(
            dir.path().join("src/d/.rules"),
            dir.path().join("in/d/.rules"),
        )
        .unwrap();
        std::os::unix::fs::symlink("../out", dir.path().join("in/up")).unwrap();
        let script = format!(
            "#!/bin/bash\ncd in; exec 4<sub; args=(); for word; do [ \"$word\" = . ] && [ -z \"$seen\" ] && seen=1 && \
             args+=(--drop-D --confine-root=\"$PWD\" --); args+=(\"${{word/@//proc/self/fd/4}}\"); done\n\
             PATH=/nonexistent\nexec {} \"${{args[@]:2}}\"\n",
            oracle::under_test().display()
        );
        let shell = dir.path().join("shell");
        write_script(&shell, &script);
        let mut command = Command::new(oracle::rsync());
        command
            .args(["-e", "./shell"])
            .args(line.split(' '))
            .current_dir(dir.path());
        let output = command
            .stdin(Stdio::null())
            .output()
            .expect("a program can be started");
        let found = std::fs::read_to_string(dir.path().join(path)).ok();
        assert_eq!(found.as_deref(), Some(content), "{line}: {output:?}");
        let log = std::fs::read_to_string(dir.path().join("in/sub/log")).unwrap_or_default();
        assert_eq!(
            log.contains(">f"),
            line.contains("log-file"),
            "{line}: {log:?} {output:?}"
        );
        assert_eq!(
            std::fs::read_dir(dir.path().join("out")).unwrap().count(),
            1,
            "{line}: {output:?}"
        );
        let leads_out = line.contains("backup-dir=up");
        assert_eq!(output.status.success(), !leads_out, "{line}: {output:?}");
    }
}

/// Pushes twice by a protocol to a server that finds no rsync. Returns what the client printed, and the
/// files.
fn push_by_protocol(
    version: u8,
    server: &std::path::Path,
    options: &str,
    user: Option<u32>,
) -> (Vec<Output>, Vec<Option<String>>) {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let put = |path: &str, content: &str| {
        std::fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
        std::fs::write(dir.path().join(path), content).unwrap();
    };
    let long = "0123456789".repeat(5000);
    for (path, content) in [
        ("a", "a"),
        ("big", &format!("{long}new")),
        ("d/x", "x"),
        ("d/e/y", "y"),
        ("h", "h"),
        ("z", "z"),
    ] {
        put(&format!("src/{path}"), content);
    }
    std::fs::hard_link(dir.path().join("src/h"), dir.path().join("src/d/h")).unwrap();
    std::os::unix::fs::symlink("a", dir.path().join("src/l")).unwrap();
    for (path, content) in [("a", "old"), ("big", &long), ("d/gone", "g"), ("gone", "g")] {
        put(&format!("dst/{path}"), content);
    }
    if let Some(user) = user {
        for shut in ["h", "z", "d/x", "d/e/y"] {
            std::fs::set_permissions(
                dir.path().join("src").join(shut),
                std::fs::Permissions::from_mode(0o000),
            )
            .unwrap();
        }
        let all = [
            "",
            "src",
            "src/d",
            "src/d/e",
            "src/h",
            "src/z",
            "src/d/x",
            "src/d/e/y",
            "dst",
            "dst/d",
            "dst/a",
            "dst/big",
        ];
        all.iter().for_each(|path| {
            std::os::unix::fs::chown(dir.path().join(path), Some(user), None).unwrap()
        });
    }
    put("list", "d\nbig\n");
    // The current time would decide which times differ.
    for (tree, secs) in [("src", 2), ("dst", 1)] {
        for name in [
            "", "a", "big", "d", "d/x", "d/e", "d/e/y", "d/gone", "gone", "h", "z",
        ] {
            if let Ok(entry) = std::fs::File::open(dir.path().join(tree).join(name)) {
                entry
                    .set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(secs))
                    .unwrap();
            }
        }
    }
    let path = if server == oracle::under_test() {
        "PATH=/nonexistent"
    } else {
        ""
    };
    let script = format!(
        "#!/bin/sh\nshift 2\n{path} exec {} \"$@\"\n",
        server.display()
    );
    write_script(&dir.path().join("shell"), &script);
    let mut outputs = Vec::new();
    for _ in 0..2 {
        let mut command = Command::new(oracle::rsync());
        command
            .args(["-e", "./shell", &format!("--protocol={version}")])
            .args(options.split(' '))
            .args(["src/", "far:dst/"]);
        command
            .current_dir(dir.path())
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        if let Some(user) = user {
            std::os::unix::process::CommandExt::uid(&mut command, user);
        }
        let mut output = command.output().expect("a program can be started");
        let stderr =
            String::from_utf8_lossy(&output.stderr).replace(dir.path().to_str().unwrap(), "DIR");
        // Either name of a file may be requested.
        output.stderr = stderr.replace("src/d/h", "src/h").into_bytes();
        // With hard links or an old protocol, the order differs or depends on time.
        for printed in [&mut output.stdout, &mut output.stderr] {
            let mut lines: Vec<_> = printed.split_inclusive(|&byte| byte == b'\n').collect();
            lines.sort_unstable();
            *printed = lines.concat();
        }
        outputs.push(output);
    }
    let paths = [
        "a", "big", "d/x", "d/e/y", "d/h", "h", "z", "l", "gone", "d/gone", "a~",
    ];
    (
        outputs,
        paths
            .map(|path| std::fs::read_to_string(dir.path().join("dst").join(path)).ok())
            .into(),
    )
}

#[test]
fn push_by_protocol_29_is_served_without_an_rsync() {
    for options in [
        "-ai",
        "-aiH --delete",
        "-aiz --no-whole-file",
        "-ai --no-whole-file --inplace",
        "-aic --delete-after",
        "-aib",
        "-ain",
        "-ai --append",
        "-ai --remove-source-files",
        "-ai --files-from=:list",
        "-q -a",
    ] {
        let seen = [oracle::rsync(), oracle::under_test()]
            .map(|server| push_by_protocol(29, server, options, None));
        assert_eq!(seen[1], seen[0], "{options}");
    }
}

/// Before protocol 29, the server sends nothing but requests.
#[test]
fn push_by_protocols_without_items_is_served_without_an_rsync() {
    for options in [
        "-a",
        "-ai",
        "-aH --delete",
        "-aHz --no-whole-file --delete-after",
        "-a --no-whole-file --inplace",
        "-ac",
        "-ab",
        "-an --delete --info=name,del",
        "-aH --append",
        "-a --remove-source-files",
        "-aR --info=name",
    ] {
        for version in [27, 28] {
            let seen = [oracle::rsync(), oracle::under_test()]
                .map(|of| push_by_protocol(version, of, options, None));
            assert_eq!(seen[1], seen[0], "{version} {options}");
        }
    }
}

/// The client does not report which files it cannot read, and before protocol 29 nothing else makes it answer.
#[test]
fn push_of_unreadable_files_by_an_old_protocol_ends() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    const USER: u32 = 12_345;
    for (version, options) in [(29, "-ai"), (28, "-a"), (27, "-aH")] {
        let seen = [oracle::rsync(), oracle::under_test()]
            .map(|of| push_by_protocol(version, of, options, Some(USER)));
        assert_eq!(seen[1], seen[0], "{version}");
        assert_eq!(seen[1].0[0].status.code(), Some(23), "{:?}", seen[1]);
    }
}

synctest!(repeated_files_with_other_names, with client, |w: World| {
    repeated_files(&w, &["-aH", "--append-verify"]);
});

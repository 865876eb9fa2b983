//! Tests: what command lines resolve to, and which are rejected.

use crate::cli::{Copy, Invocation, Request, read};
use crate::error::Result;
use crate::exit::Exit;
use crate::options::{
    AltKind, Backup, CheckMode, FilesFrom, Info, Options, Recurse, RuleArg, When,
};
use std::ffi::{OsStr, OsString};

fn request(line: &str, vars: &[(&str, &str)]) -> Result<Request> {
    let words: Vec<OsString> = line
        .split_whitespace()
        .map(|word| if word == "''" { "" } else { word }.into())
        .collect();
    let vars = |name: &str| {
        vars.iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| OsString::from(value))
    };
    read(&Invocation {
        program: OsStr::new("sparsync"),
        args: &words,
        appended: &[],
        vars: &vars,
        now_unix_secs: 0,
        umask: 0o022,
        popt: b"",
    })
}

fn copy_with(line: &str, vars: &[(&str, &str)]) -> Copy {
    match request(&format!("{line} src dst"), vars) {
        Ok(Request::Copy(copy)) => *copy,
        other => panic!("{line}: {other:?}"),
    }
}

fn options(line: &str) -> Options {
    copy_with(line, &[]).options
}

fn refusal(line: &str) -> (u8, String, &'static str) {
    let error = request(line, &[]).expect_err(line);
    (
        error.exit.code(),
        String::from_utf8(error.message).unwrap(),
        error.role,
    )
}

#[test]
fn recursion_matches_rsync() {
    for (line, recurse) in [
        ("", Recurse::No),
        ("-r", Recurse::Full),
        ("-a", Recurse::Full),
        ("-a --no-r", Recurse::No),
        ("--no-r -a", Recurse::Full),
        ("-r --no-d", Recurse::Full),
        ("-d", Recurse::Dirs),
        ("--old-dirs", Recurse::Full),
        ("--old-dirs --no-d", Recurse::No),
        ("--old-dirs --no-r", Recurse::Full),
        ("--files-from=x", Recurse::Dirs),
        ("-a --files-from=x", Recurse::Dirs),
        ("-ar --files-from=x", Recurse::Full),
        ("--list-only", Recurse::Dirs),
        ("--files-from=x --no-d", Recurse::No),
        ("--list-only --no-d", Recurse::No),
    ] {
        assert_eq!(options(line).select.recurse, recurse, "{line}");
    }
    assert!(
        options("--files-from=x").select.relative
            && !options("--no-R --files-from=x").select.relative
    );
    assert_eq!(
        options("--files-from=-").select.files_from,
        Some(FilesFrom::Stdin)
    );
}

#[test]
fn implied_filter_rules_come_last() {
    let rules = |line: &str| -> Vec<String> {
        let text = |rule: RuleArg| match rule {
            RuleArg::Implied(text) => format!("implied {}", String::from_utf8(text).unwrap()),
            RuleArg::Exclude(text) => format!("exclude {}", String::from_utf8(text).unwrap()),
            RuleArg::Filter(text) => format!("filter {}", String::from_utf8(text).unwrap()),
            other => format!("{other:?}"),
        };
        options(line).select.rules.into_iter().map(text).collect()
    };
    assert_eq!(
        rules("-b -r --delete --old-dirs --partial-dir=pp/ -FFF --exclude=x"),
        [
            "filter : /.rsync-filter",
            "filter - .rsync-filter",
            "exclude x",
            "implied - /*/*",
            "implied P *~",
            "implied -p pp/"
        ]
    );
    assert_eq!(rules("-r -b --delete --suffix=.o"), ["implied P *.o"]);
    assert_eq!(
        rules("-r -b --delete --backup-dir=. --suffix=.o"),
        ["implied P *.o"]
    );
    assert_eq!(rules("-r -b --delete --backup-dir=bk"), [""; 0]);
    assert_eq!(rules("-r -b --delete-excluded"), [""; 0]);
    assert_eq!(rules("-b"), [""; 0]);
    assert_eq!(rules("--partial-dir=/pp"), [""; 0]);
    assert_eq!(rules("--delay-updates"), ["implied -p .~tmp~/"]);
}

#[test]
fn partial_dir_is_normalized_and_may_come_from_env() {
    let dir = |line: &str| {
        let place = copy_with(line, &[("RSYNC_PARTIAL_DIR", "env/")])
            .options
            .place;
        (
            place.partial,
            place.partial_dir.map(|dir| String::from_utf8(dir).unwrap()),
        )
    };
    let at = |dir: &str| (true, Some(dir.to_string()));
    assert_eq!(dir(""), (false, None));
    assert_eq!(dir("--partial"), at("env"));
    assert_eq!(dir("-P"), at("env"));
    assert_eq!(dir("--partial --inplace"), (true, None));
    assert_eq!(dir("--partial --append"), (true, None));
    assert_eq!(dir("--partial --delay-updates"), at(".~tmp~"));
    assert_eq!(dir("--partial-dir=./x/../y//z/ --no-partial"), at("y/z"));
    assert_eq!(dir("--partial-dir=../q"), at("../q"));
    assert_eq!(dir("--partial-dir=. --partial"), (true, None));
    assert_eq!(dir("--partial-dir=/a/../b"), at("/b"));
}

#[test]
fn delete_timing_matches_rsync() {
    for (line, when) in [
        ("-r", None),
        ("-r --delete", Some(When::During)),
        ("-r --del", Some(When::During)),
        ("-r --delete-before --delete", Some(When::Before)),
        ("-r --delete-after", Some(When::After)),
        ("-r --delete-delay", Some(When::Delay)),
        ("-r --delete-delay --del", Some(When::During)),
        ("-r --del --delete-delay", Some(When::Delay)),
        ("-d --delete-excluded", Some(When::During)),
    ] {
        assert_eq!(options(line).delete.when, when, "{line}");
    }
    assert_eq!(options("--max-delete=-5").delete.max, Some(0));
    assert_eq!(options("--max-delete=-2147483648").delete.max, None);
    assert_eq!(options("--max-delete=7").delete.max, Some(7));
}

#[test]
fn backup_options_imply_what_rsync_implies() {
    assert!(options("-b --no-O").preserve.omit_dir_times);
    assert!(!options("-b --backup-dir=x").preserve.omit_dir_times);
    let backup = |line: &str| options(line).place.backup.expect(line);
    assert_eq!(
        backup("-b"),
        Backup {
            dir: None,
            suffix: b"~".to_vec()
        }
    );
    assert_eq!(
        backup("--backup-dir=x/"),
        Backup {
            dir: Some(b"x/".to_vec()),
            suffix: Vec::new()
        }
    );
    assert_eq!(
        backup("--backup-dir=x --no-backup").dir,
        Some(b"x".to_vec())
    );
    assert_eq!(backup("--backup-dir=./ --suffix=~").dir, None);
    assert_eq!(options("--suffix=.b").place.backup, None);
}

#[test]
fn output_options_are_settled() {
    let output = |line: &str| options(line).output;
    let levels = |info: Info| (info.name, info.flist, info.progress, info.stats);
    assert_eq!(levels(output("").info), (0, 0, 0, 0));
    assert_eq!(levels(output("-v").info), (1, 1, 0, 1));
    assert_eq!(levels(output("-P").info), (1, 2, 1, 0));
    assert_eq!(levels(output("-vv --progress --stats").info), (2, 2, 1, 3));
    assert_eq!(levels(output("--info=progress2 -P").info), (1, 2, 2, 0));
    assert_eq!(levels(output("-P --info=none").info), (0, 0, 0, 0));
    assert_eq!(levels(output("--stats --info=stats0").info), (0, 0, 0, 0));
    assert_eq!(output("-i").out_format.as_deref(), Some(&b"%i %n%L"[..]));
    assert_eq!(output("-i --no-i").out_format, None);
    for (line, itemize) in [
        ("", 0),
        ("-i", 1),
        ("-ii", 2),
        ("-vv -i", 2),
        ("--out-format=%i", 1),
        ("--out-format=%10i", 1),
        ("--out-format=%n -ii", 0),
        ("--out-format=%5-i", 0),
        ("--out-format=%z%i", 1),
        ("--out-format=%%i", 0),
        ("-i --info=name2", 2),
    ] {
        assert_eq!(output(line).itemize, itemize, "{line}");
    }
    for (line, human) in [
        ("", 1),
        ("-h", 2),
        ("-hh", 3),
        ("-hhhh", 3),
        ("--no-h", 0),
        ("--no-h -h", 1),
        ("-hh --no-h -hh", 2),
    ] {
        assert_eq!(output(line).human, human, "{line}");
    }
    assert_eq!(output("-qv").verbose, 0);
    assert_eq!(output("--log-file=").log_file, None);
}

#[test]
fn strongest_check_mode_wins() {
    assert_eq!(options("-cI --size-only").check.mode, CheckMode::Digest);
    assert_eq!(options("-I --size-only").check.mode, CheckMode::SizeOnly);
    assert_eq!(options("-I").check.mode, CheckMode::IgnoreTimes);
    assert_eq!(
        options("-@-1").check.mode,
        CheckMode::Quick { window_secs: -1 }
    );
}

#[test]
fn each_owner_map_may_be_given_once() {
    let preserve = options("--chown=1:x --no-o").preserve;
    assert!(!preserve.owner && preserve.group);
    assert_eq!((preserve.usermap.len(), preserve.groupmap.len()), (1, 1));
    assert!(options("--chown=: --chown=").preserve.usermap.is_empty());
    for (line, message) in [
        (
            "--usermap=a:b --chown=c",
            "--chown conflicts with prior --usermap.",
        ),
        (
            "--chown=1:2 --usermap=3:4",
            "--usermap conflicts with prior --chown.",
        ),
        (
            "--groupmap=0:1 --groupmap=0:1",
            "You can only specify --groupmap once.",
        ),
        (
            "--chown=1 --chown=1",
            "You can only specify a user-affecting --chown once.",
        ),
    ] {
        assert_eq!(
            refusal(&format!("{line} s d")).1,
            format!("rsync: {message}")
        );
    }
}

#[test]
fn alternate_dirs_have_one_kind_and_at_most_20() {
    let alt = options("--link-dest=a --link-dest=b")
        .delta
        .alt_dest
        .unwrap();
    assert_eq!((alt.kind, alt.dirs.len()), (AltKind::Link, 2));
    assert_eq!(
        refusal("--compare-dest=a --link-dest=b s d").1,
        "rsync: ERROR: the --link-dest option conflicts with the --compare-dest option"
    );
    assert!(
        options(&"--copy-dest=x ".repeat(20))
            .delta
            .alt_dest
            .is_some()
    );
    assert_eq!(
        refusal(&format!("{} s d", "--copy-dest=x ".repeat(21))).1,
        "rsync: ERROR: at most 20 --copy-dest args may be specified"
    );
}

#[test]
fn option_conflicts_have_rsyncs_errors() {
    for (line, message) in [
        (
            "--delete",
            "--delete does not work without --recursive (-r) or --dirs (-d).",
        ),
        ("--suffix=a/b", "--suffix cannot contain slashes: a/b"),
        (
            "--suffix=",
            "--suffix cannot be empty without a --backup-dir",
        ),
        (
            "--backup-dir=.",
            "--suffix cannot be empty when --backup-dir is the same as the dest dir",
        ),
        (
            "--inplace --partial-dir=",
            "--inplace cannot be used with --partial-dir",
        ),
        (
            "--write-devices --delay-updates",
            "--inplace cannot be used with --delay-updates",
        ),
        (
            "--append --inplace --delay-updates",
            "--append cannot be used with --delay-updates",
        ),
        (
            "--append-verify -W",
            "--append cannot be used with --whole-file",
        ),
        (
            "-r --delete-before --del",
            "You may not combine multiple --delete-WHEN options.",
        ),
        ("--fake-super -XX", "--fake-super conflicts with -XX"),
        (
            "-s --old-args",
            "--secluded-args conflicts with --old-args.",
        ),
        (
            "--max-alloc=1",
            "--max-alloc=1 is too small (min: 1.00M or 0 for unlimited)",
        ),
        ("-N", "This rsync does not support --crtimes (-N)"),
        ("-M x", "Remote option must start with a dash: x"),
    ] {
        assert_eq!(
            refusal(&format!("{line} s d")),
            (1, format!("rsync: {message}"), "client")
        );
    }
    for (line, exit, message, role) in [
        (
            "-c --cc=md5,none s d",
            4,
            "Invalid checksum-choice for --checksum: none (0)",
            "sender",
        ),
        ("--cc=x s d", 4, "unknown checksum name: x", "client"),
        ("--zc=x s d", 4, "unknown compress name: x", "client"),
        (
            "--files-from=h:x s d",
            1,
            "--files-from cannot be remote when the transfer is local",
            "sender",
        ),
        ("'' d", 1, "Empty source arg specified.", "sender"),
        (
            "s ''",
            1,
            "Empty destination arg specified (use \".\" or see --old-args).",
            "sender",
        ),
        (
            "--usermap=x s d",
            1,
            "No colon found in --usermap: x",
            "Receiver",
        ),
        (
            "--password-file=x --contimeout=1 s d",
            1,
            "The --password-file option may only be used when accessing an rsync daemon.",
            "sender",
        ),
        (
            "--contimeout=1 s d",
            1,
            "The --contimeout option may only be used when connecting to an rsync daemon.",
            "sender",
        ),
        (
            "--protocol=33 s d",
            2,
            "--protocol must be no more than 32 on the Client.",
            "sender",
        ),
    ] {
        assert_eq!(refusal(line), (exit, message.to_string(), role));
    }
}

#[test]
fn unsupported_options_are_named() {
    let Ok(Request::Unsupported(error)) = request("--protocol=26 s d", &[]) else {
        panic!("it is not supported")
    };
    let parts = (
        error.exit,
        String::from_utf8(error.message).unwrap(),
        error.role,
    );
    let words = "sparsync: --protocol=26 is not supported";
    assert_eq!(parts, (Exit::Unsupported, words.to_string(), "client"));
    for line in [
        "-y --no-y",
        "-D --copy-devices --write-devices",
        "--no-W -W",
        "--iconv=-",
        "--iconv=x --no-iconv",
        "--protocol=31",
        "--protocol=29",
        "--copy-as=x",
        "-zz --zc=lz4 -e ssh -s --timeout=5 -4",
    ] {
        options(line);
    }
    let charsets = |line: &str, env: &str| {
        let copy = copy_with(line, &[("RSYNC_ICONV", env)]);
        let text = |name: Vec<u8>| String::from_utf8(name).unwrap();
        copy.options
            .connect
            .iconv
            .map(|iconv| (text(iconv.here), text(iconv.there)))
    };
    let pair = |here: &str, there: &str| Some((here.to_owned(), there.to_owned()));
    assert_eq!(charsets("--iconv=a,b", "x"), pair("a", "b"));
    assert_eq!(charsets("--iconv=a", ""), pair("a", "a"));
    assert_eq!(charsets("--iconv=", ""), pair("", ""));
    assert_eq!(charsets("", "x,"), pair("x", ""));
    for (line, env) in [("--no-iconv", "x"), ("--iconv=-", "x"), ("", ""), ("", "-")] {
        assert_eq!(charsets(line, env), None, "{line}");
    }
}

#[test]
fn operands_determine_the_request() {
    let is = |line: &str| request(line, &[]).unwrap();
    assert!(matches!(is("-h"), Request::Help));
    assert!(matches!(is("-vh"), Request::Help));
    assert!(matches!(is("--help --bogus"), Request::Help));
    assert!(matches!(is("-V"), Request::Version { json: false }));
    assert!(matches!(
        is("-VV --delete"),
        Request::Version { json: true }
    ));
    assert!(matches!(is("--info=help s d"), Request::Print(_)));
    assert!(matches!(is(""), Request::NoArgs { role: "client" }));
    assert!(matches!(is("-h -h"), Request::NoArgs { role: "Receiver" }));
    assert!(matches!(
        is("--files-from=x s"),
        Request::NoArgs { role: "client" }
    ));
    assert!(matches!(is("--bogus host:x"), Request::Unsupported(_)));
    assert!(matches!(
        is("--sender s d"),
        Request::NoArgs { role: "client" }
    ));
    assert_eq!(
        refusal("--bogus --no-detach").1.lines().next(),
        Some("Daemon option(s) used without --daemon.")
    );
    for line in ["host:x d", "s host::x", "-y host:x", "rsync://h/m"] {
        assert!(matches!(is(line), Request::Copy(_)), "{line}");
    }
    assert!(
        matches!(is("--daemon --bogus"), Request::Daemon(Err(_)))
            && matches!(is("--daemon"), Request::Daemon(Ok(_)))
    );
    let Request::ServeRsync(rsync) = is("--server --sender -e.Ls --bogus . a b") else {
        panic!("an rsync started it")
    };
    assert!(
        rsync.options.is_err_and(
            |error| error.message == b"rsync: on remote machine: --bogus: unknown option"
        )
    );
    let Request::ServeRsync(rsync) =
        is("--server --sender -re.Ls --checksum-seed=3 --confine-root=/x -- . a b")
    else {
        panic!("an rsync started it")
    };
    assert!(rsync.options.is_ok() && rsync.confine_root.is_some() && rsync.serve.sends);
    assert_eq!(
        (&rsync.capabilities[..], rsync.checksum_seed),
        (&b".Ls"[..], 3)
    );
    assert_eq!(rsync.serve.operands, [b"a", b"b"]);
    let Request::Copy(copy) = is("src") else {
        panic!("one operand is listed")
    };
    assert!(copy.options.select.list_only && copy.dest.is_none());
    assert_eq!(copy.options.select.recurse, Recurse::Dirs);
    let Request::Copy(copy) = is("--old-args s ''") else {
        panic!("--old-args allows it")
    };
    assert_eq!(copy.dest, Some(b".".to_vec()));
    assert!(matches!(is("--delete src"), Request::Copy(_)));
}

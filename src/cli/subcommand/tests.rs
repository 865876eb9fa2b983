//! Tests of the parsers of all subcommands.

use super::pages::ACTIONS;
use super::server::SERVER_OPTIONS;
use super::*;
use crate::digest::HashAlgorithm;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::os::unix::ffi::OsStringExt;

fn parsed(line: &str) -> Option<Result<Verb>> {
    let mut words = line.split_whitespace().map(OsString::from);
    let program = words.next().unwrap();
    read(&program, &words.collect::<Vec<_>>())
}

fn server(line: &str) -> ServerCommand {
    match parsed(&format!("sparsync server {line}")) {
        Some(Ok(Verb::Server(server))) => *server,
        other => panic!("{line}: {other:?}"),
    }
}

fn refused(line: &str) -> String {
    match parsed(&format!("/usr/bin/sparsync {line}")) {
        Some(Err(error)) if error.exit == crate::exit::Exit::Usage => {
            String::from_utf8(error.text()).unwrap()
        }
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn subcommand_must_be_the_first_word_of_sparsync() {
    for copy in [
        "sparsync ./server x",
        "sparsync -- server x",
        "sparsync -a server x",
        "rsync server start",
        "sparsync",
    ]
    .into_iter()
    .chain([
        "sparsync server v/",
        "sparsync server -a v/",
        "sparsync server host:v",
        "sparsync enroll v/",
    ])
    .chain([
        "sparsync help v/",
        "sparsync help sever/",
        "sparsync help v",
        "rsync help sever",
        "sparsync sewer v/",
        "sparsync enrol a b",
        "sparsync ./enrol box",
    ])
    .chain([
        "sparsync doctor v/",
        "sparsync doctor h:v",
        "sparsync -a doctor v",
        "sparsync ./doctor",
        "rsync doctor",
    ])
    .chain(["sparsync bench", "sparsync bench x", "rsync bench scan x"])
    {
        assert_eq!(parsed(copy), None, "{copy}");
    }
    assert!(parsed("/x/rsync enroll host").is_none());
    assert!(matches!(
        parsed("./sparsync server status"),
        Some(Ok(Verb::Server(_)))
    ));
    assert!(matches!(
        parsed("/x/rsync --sparsync server status"),
        Some(Ok(Verb::Server(_)))
    ));
    for (line, help) in [
        ("server --help", Some("server")),
        ("enroll -h", Some("enroll")),
        ("server start --help", Some("server start")),
    ]
    .into_iter()
    .chain([
        ("server session --help", Some("server")),
        ("server --now stop -h", Some("server stop")),
    ])
    .chain([
        ("help server grant", Some("server grant")),
        ("help server x", Some("server")),
    ])
    .chain([
        ("help", None),
        ("help server", Some("server")),
        ("help enroll", Some("enroll")),
    ])
    .chain([
        ("doctor --help", Some("doctor")),
        ("doctor h -h", Some("doctor")),
        ("help doctor", Some("doctor")),
    ]) {
        assert_eq!(
            parsed(&format!("sparsync {line}")),
            Some(Ok(Verb::Help(help))),
            "{line}"
        );
    }
}

#[test]
fn help_pages_list_every_option_and_an_example() {
    const INTERNAL: [&str; 5] = [
        "detached",
        "or-other-port",
        "ceiling",
        "too-large",
        "default-name",
    ];
    for action in ACTIONS
        .into_iter()
        .filter(|action| !["session", "pipe"].contains(action))
    {
        let page = pages::page(Some(&format!("server {action}")), String::new);
        assert!(
            pages::page(Some("server"), String::new).contains(&format!("\n  {action}")),
            "{action}"
        );
        assert!(
            page.contains(&format!("Usage: sparsync server {action}")),
            "{action}"
        );
        for (name, takers) in SERVER_OPTIONS {
            let is_listed = takers.contains(&action) && !INTERNAL.contains(&name);
            assert_eq!(
                page.contains(&format!("\n  --{name}")),
                is_listed,
                "{action}: {name}"
            );
        }
    }
    for (_, page) in PAGES {
        assert!(page.contains("\nEXAMPLES\n"), "{page}");
        assert!(page.lines().all(|line| line.len() <= 100), "{page}");
    }
}

/// The error for a command line that reads as a copy but was meant to be a subcommand.
fn mistake(line: &str) -> Option<String> {
    let words: Vec<_> = line.split_whitespace().map(OsString::from).collect();
    mistaken(&words[0], &words[1..]).map(|error| String::from_utf8(error.text()).unwrap())
}

#[test]
fn misspelled_subcommand_is_an_error_with_a_suggestion() {
    for (line, meant) in [
        ("sevrer start", "server start"),
        ("serve status", "server status"),
        ("server strat", "server start"),
        ("server statu", "server status"),
        ("server statu box", "server status"),
        ("server restat", "server restart"),
        ("status", "server status"),
        ("status box", "server status box"),
        ("enrol box", "enroll box"),
        ("enrolll me@box", "enroll me@box"),
        ("doctr", "doctor"),
        ("docter box", "doctor box"),
        ("benhc sync a b", "bench sync a b"),
        ("help sever", "help server"),
        ("help sever start", "help server"),
        ("help enrol", "help enroll"),
        ("help docter", "help doctor"),
        ("help restart", "help server restart"),
    ] {
        assert_eq!(parsed(&format!("sparsync {line}")), None, "{line}");
        let error = mistake(&format!("sparsync {line}")).expect(line);
        assert!(
            error.contains(&format!("hint: did you mean `sparsync {meant}`?")),
            "{error}"
        );
    }
}

#[test]
fn a_command_line_that_is_neither_command_nor_copy_is_explained() {
    for (line, words) in [
        ("server x", "no such subcommand `x`: expected start, stop"),
        ("server frobnicate box", "no such subcommand `frobnicate`"),
        ("server x box.example.org", "no such subcommand `x`"),
        (
            "server uninstall",
            "hint: to undo `server install`: `systemctl disable --now",
        ),
        (
            "enroll box:dst/",
            "invalid host `box:dst/`: expected HOST or USER@HOST\nhint: name only the host: `box`",
        ),
        ("enroll -n me@box:dst", "hint: name only the host: `me@box`"),
        ("doctor box:dst/", "hint: name only the host: `box`"),
        (
            "bench",
            "expected `scan PATH`, `sync SRC DST` or `hash PATH`",
        ),
        (
            "bench /srv",
            "expected `scan PATH`, `sync SRC DST` or `hash PATH`",
        ),
        (
            "help foo",
            "unknown command `help foo`\nhint: the commands are server, enroll, doctor, bench, check, hash, cache, plan, apply, explain, help",
        ),
    ] {
        let error = mistake(&format!("./sparsync {line}"))
            .or_else(|| parsed(&format!("sparsync {line}")).map(|_| refused(line)))
            .expect(line);
        assert!(error.contains(words), "{line}: {error}");
    }
}

#[test]
fn other_copies_are_no_mistakes() {
    for line in [
        "rsync server x",
        "rsync doctr",
        "sparsync ./server x",
        "sparsync server",
        "sparsync server -a x",
        "sparsync server x/",
        "sparsync server h:x",
        "sparsync server x y/",
        "sparsync server start",
        "sparsync server x.old",
        "sparsync servers x",
        "sparsync -a server x",
        "sparsync enroll x/",
        "sparsync bench x y",
        "sparsync help x/",
        "sparsync src dst",
        "sparsync start a b",
        "sparsync doctr box:x",
        "sparsync benches x",
    ] {
        assert_eq!(mistake(line), None, "{line}");
    }
}

#[test]
fn every_server_option_is_accepted() {
    for (name, takers) in SERVER_OPTIONS {
        let results = [name.to_owned(), format!("{name}=x")].map(|option| {
            let rest = ["sparsync", "server", takers[0]].map(OsString::from);
            read(
                &rest[0],
                &[&rest[1..], &[format!("--{option}").into()]].concat(),
            )
        });
        for read in results {
            let words =
                read.map(|read| read.map_err(|error| String::from_utf8(error.message).unwrap()));
            assert!(
                !matches!(words, Some(Err(words)) if words.contains("unknown option")),
                "{name}"
            );
        }
    }
}

fn starts(in_this_process: bool) -> impl Strategy<Value = Start> {
    let listen = prop_oneof![Just("::1".to_owned()), Just("192.0.2.1".to_owned())];
    let flags = any::<[bool; 3]>();
    let memory = option::of(MEMORY_MIN_BYTES..1 << 50);
    (flags, vec(listen, 0..3), option::of(any::<u16>()), memory).prop_map(
        move |(flags, listen, port, memory)| {
            let [foreground, detached, or_other_port] = flags.map(|flag| flag && in_this_process);
            Start {
                foreground,
                detached,
                listen,
                port,
                or_other_port,
                memory,
            }
        },
    )
}

fn actions() -> impl Strategy<Value = ServerAction> {
    let word = || prop_oneof!["[-=a-z :]{0,6}", "\\PC{0,6}"];
    let root = || prop_oneof!["/[-=a-z /]{0,6}", "/[^./]{0,6}"].prop_map(String::into_bytes);
    let flags = any::<[Option<bool>; 3]>();
    let owner = || option::of("[-a-z0-9]{1,3}(:[a-z0-9é_.-]{1,3})?");
    let rights = (
        vec(root(), 0..3),
        flags,
        option::of(word()),
        owner(),
        any::<[bool; 2]>(),
    );
    let rights = rights.prop_map(
        |(roots, [read_only, allow_setuid, no_munge], expires, owner, [no_expiry, no_owner])| {
            let (no_expiry, no_owner) =
                (no_expiry && expires.is_none(), no_owner && owner.is_none());
            Rights {
                roots,
                read_only,
                expires,
                no_expiry,
                allow_setuid,
                no_munge,
                owner,
                no_owner,
            }
        },
    );
    let names = (word(), option::of(word()), option::of(word()));
    let grants = (names, rights, option::of(starts(false)), any::<bool>());
    let grants = grants.prop_map(|((pin, name, default_name), rights, start, json)| {
        ServerAction::Grant(Box::new(NewGrant {
            pin,
            name,
            default_name,
            rights,
            start,
            json,
        }))
    });
    prop_oneof![
        starts(true).prop_map(ServerAction::Start),
        any::<bool>().prop_map(|now| ServerAction::Stop { now }),
        (starts(false), any::<bool>())
            .prop_map(|(start, now)| ServerAction::Restart { start, now }),
        any::<bool>().prop_map(|json| ServerAction::Status { json }),
        (any::<Option<bool>>(), any::<bool>(), starts(false)).prop_map(
            |(system, dry_run, start)| ServerAction::Install(Install {
                system,
                dry_run,
                start
            })
        ),
        any::<bool>().prop_map(|json| ServerAction::Grants { json }),
        Just(ServerAction::Pin),
        Just(ServerAction::Metrics),
        grants,
        (word(), any::<bool>())
            .prop_map(|(who, stop_unused)| ServerAction::Revoke { who, stop_unused }),
        (
            vec(root(), 1..3),
            any::<[bool; 4]>(),
            owner(),
            option::of(any::<u32>()),
            option::of(MEMORY_MIN_BYTES..1 << 50)
        )
            .prop_map(
                |(
                    roots,
                    [read_only, allow_setuid, no_munge, too_large],
                    owner,
                    ceiling,
                    memory,
                )| {
                    ServerAction::Session(Session {
                        roots,
                        read_only,
                        allow_setuid,
                        no_munge,
                        owner,
                        ceiling,
                        memory,
                        too_large,
                    })
                }
            ),
        (word(), word()).prop_map(|(address, pin)| ServerAction::Pipe { address, pin }),
    ]
}

proptest! {
    #[test]
    fn server_action_survives_formatting_and_parsing(action in actions()) {
        let words: Vec<_> = action.words().into_iter().map(OsString::from_vec).collect();
        let remote = ServerCommand { action, host: None };
        prop_assert_eq!(read(OsStr::new("sparsync"), &words), Some(Ok(Verb::Server(Box::new(remote)))), "{:?}", words);
    }
}

#[test]
fn server_arguments_are_parsed() {
    let local = |action| ServerCommand { action, host: None };
    assert_eq!(
        server("start"),
        local(ServerAction::Start(Start::default()))
    );
    let start = Start {
        port: Some(0),
        listen: vec!["::1".into()],
        foreground: true,
        memory: Some(4 << 30),
        ..Start::default()
    };
    assert_eq!(
        server("start --foreground --port 0 --listen=::1 --memory=4G"),
        local(ServerAction::Start(start))
    );
    assert_eq!(
        server("stop --now"),
        local(ServerAction::Stop { now: true })
    );
    assert_eq!(
        server("status --json"),
        local(ServerAction::Status { json: true })
    );
    assert_eq!(
        server("revoke laptop"),
        local(ServerAction::Revoke {
            who: "laptop".into(),
            stop_unused: false,
        })
    );
    let session = Session {
        roots: vec![b"/a".to_vec(), b"/b".to_vec()],
        read_only: true,
        allow_setuid: false,
        no_munge: false,
        owner: Some("u:g".into()),
        ceiling: Some(7),
        memory: None,
        too_large: false,
    };
    assert_eq!(
        server("session --root /a --root=/b --read-only --owner=u:g --ceiling 7"),
        local(ServerAction::Session(session))
    );
    let remote = server("revoke laptop u@host -e rsh --rsync-path=/x/sparsync");
    let reach = RemoteHost {
        host: "u@host".into(),
        shell: vec![b"rsh".to_vec()],
        program: Some(b"/x/sparsync".to_vec()),
    };
    assert_eq!(
        remote,
        ServerCommand {
            action: ServerAction::Revoke {
                who: "laptop".into(),
                stop_unused: false,
            },
            host: Some(reach)
        }
    );
    for (misspelled, meant) in [
        ("u@[::1]", "u@::1"),
        ("[fe80::1]", "fe80::1"),
        ("::1", "::1"),
        ("a@fe80::1%eth0", "a@fe80::1%eth0"),
    ] {
        assert_eq!(
            server(&format!("status {misspelled}"))
                .host
                .map(|reach| reach.host)
                .as_deref(),
            Some(meant)
        );
    }
    let ServerAction::Grant(grant) =
        server("grant SHA256:x --name n --root /a --expires 30d --start --port 7").action
    else {
        panic!("no grant")
    };
    assert_eq!(
        (grant.name.as_deref(), grant.rights.expires.as_deref()),
        (Some("n"), Some("30d"))
    );
    assert_eq!(grant.start.unwrap().port, Some(7));
}

#[test]
fn enroll_arguments_are_parsed() {
    let Some(Ok(Verb::Enroll(enroll))) = parsed(
        "sparsync enroll --root=/a --root /b --read-only --expires 2027-01-01 --name me --port 99 --no-start --install \
         -n -e rsh u@host",
    ) else {
        panic!("not read")
    };
    let Enroll::Host(host) = *enroll else {
        panic!("{enroll:?}")
    };
    assert_eq!(
        (host.rights.roots.len(), host.rights.read_only),
        (2, Some(true))
    );
    assert_eq!((host.port, host.start), (Some(99), false));
    assert!(
        host.install
            && host.dry_run
            && host.reach.host == "u@host"
            && host.name.as_deref() == Some("me")
    );
    assert_eq!(
        parsed("sparsync enroll --list --json"),
        Some(Ok(Verb::Enroll(Box::new(Enroll::List { json: true }))))
    );
    assert!(
        matches!(parsed("sparsync enroll --revoke h"), Some(Ok(Verb::Enroll(e))) if matches!(*e, Enroll::Revoke(_)))
    );
}

#[test]
fn doctor_arguments_are_parsed() {
    let Some(Ok(Verb::Doctor(doctor))) =
        parsed("sparsync doctor --json --path /mnt u@h -e rsh --rsync-path=x")
    else {
        panic!("not read")
    };
    let host = RemoteHost {
        host: "u@h".into(),
        shell: vec![b"rsh".to_vec()],
        program: Some(b"x".to_vec()),
    };
    assert_eq!(
        *doctor,
        Doctor {
            host: Some(host),
            path: Some(b"/mnt".to_vec()),
            json: true
        }
    );
    for (given, host) in [("::1", "::1"), ("[::1]", "::1")] {
        let Some(Ok(Verb::Doctor(doctor))) = parsed(&format!("sparsync doctor {given}")) else {
            panic!("{given}")
        };
        assert_eq!(doctor.host.map(|reach| reach.host).as_deref(), Some(host));
    }
}

#[test]
fn bench_arguments_are_parsed() {
    let bench = Bench {
        trees: BenchTrees::Given {
            source: b"a".to_vec(),
            dest: Some(b"b".to_vec()),
        },
        algorithms: Vec::new(),
        workers: None,
        repeats: 3,
        cold: true,
        json: true,
        svg: Some(b"c".to_vec()),
    };
    let line = "sparsync bench sync --repeat=3 a --cold b --json --svg c";
    assert_eq!(parsed(line), Some(Ok(Verb::Bench(Box::new(bench)))));
    let (workers, svg, shapes) = (Some(vec![1, 64]), None, vec![Shape::Deep, Shape::Many]);
    for (line, dir, are_copied) in [("scan x", Some(b"x".to_vec()), false), ("sync", None, true)] {
        let trees = BenchTrees::Created {
            shapes: shapes.clone(),
            dir,
            are_copied,
        };
        let bench = Bench {
            trees,
            algorithms: Vec::new(),
            workers: workers.clone(),
            repeats: 5,
            cold: false,
            json: false,
            svg: svg.clone(),
        };
        let line = format!("sparsync bench {line} --shape=deep,many --workers 1,64");
        assert_eq!(parsed(&line), Some(Ok(Verb::Bench(Box::new(bench)))));
    }
    let Some(Ok(Verb::Bench(bench))) = parsed("sparsync bench hash --algorithm=md5,xxh3 x") else {
        panic!("bench hash is no bench");
    };
    assert_eq!(bench.algorithms, [HashAlgorithm::Md5, HashAlgorithm::Xxh3]);
    assert_eq!(
        parsed("sparsync bench -h"),
        Some(Ok(Verb::Help(Some("bench"))))
    );
}

#[test]
fn argument_errors_name_the_cause_and_a_help_page() {
    for (line, words) in [
        ("server", "missing subcommand: start, stop"),
        ("server start --colour", "unknown option --colour"),
        ("server start --lisen=::", "did you mean `--listen`?"),
        ("enroll --instal box", "did you mean `--install`?"),
        ("enroll a:b", "name only the host: `a`"),
        ("server start -q", "unknown option -q"),
        ("server start --port", "missing value for --port"),
        ("server start --port=70000", "invalid --port value `70000`"),
        (
            "server start --memory=64",
            "`64`: expected a size of at least 64M",
        ),
        (
            "server start --memory=much",
            "invalid --memory value `much`",
        ),
        (
            "server start --ceiling=3",
            "--ceiling cannot be used with start",
        ),
        (
            "server start --listen host",
            "invalid --listen value `host`",
        ),
        (
            "server start --now",
            "--now cannot be used with start, only with stop, restart",
        ),
        ("server start a b", "unexpected argument `b`"),
        ("server start -e rsh", "-e and --rsync-path require a HOST"),
        ("server start --json=x", "--json"),
        ("server revoke", "revoke: missing a name or a fingerprint"),
        (
            "server grant x --expires 1d --no-expiry",
            "--expires cannot be used with --no-expiry",
        ),
        (
            "server grant x --owner=a --no-owner",
            "--owner cannot be used with --no-owner",
        ),
        (
            "server grant x --owner=a:",
            "invalid --owner value `a:`: expected USER or USER:GROUP",
        ),
        (
            "server grant x --name n --root a",
            "`a`: expected an absolute path",
        ),
        (
            "server grant x --name n --root /a/../b",
            "expected an absolute path",
        ),
        ("server session", "session: missing --root"),
        ("server session --root / host", "unexpected argument `host`"),
        ("server status -oProxyCommand=x", "unknown option -o"),
        ("server status @h", "invalid host `@h`"),
        ("server status h:", "without a colon"),
        ("server status h/x", "invalid host"),
        ("enroll", "missing HOST"),
        ("enroll a b", "unexpected argument `b`"),
        ("enroll u@-oProxyCommand=x", "expected HOST or USER@HOST"),
        ("server pin u@-x", "expected HOST or USER@HOST"),
        ("doctor u@[-x]", "expected HOST or USER@HOST"),
        ("enroll a:b", "without a colon"),
        ("enroll fe80::1%", "without a colon"),
        ("enroll --list a", "--list lists all hosts"),
        (
            "enroll --list --port 7",
            "--port cannot be used with --list",
        ),
        ("enroll --json -n a", "--json cannot be used with --dry-run"),
        (
            "enroll --json --revoke a",
            "--json cannot be used with --revoke",
        ),
        (
            "enroll --revoke a b",
            "--revoke=HOST names the host already",
        ),
        (
            "enroll --port 0 a",
            "invalid --port value `0`: expected a number from 1",
        ),
        ("enroll --root x a", "expected an absolute path"),
        ("enroll -- -oProxyCommand=x", "invalid host"),
        (
            "bench scan",
            "expected `scan PATH`, `sync SRC DST` or `hash PATH`",
        ),
        (
            "bench sync a",
            "expected `scan PATH`, `sync SRC DST` or `hash PATH`",
        ),
        ("bench scan a --repeat=0", "invalid --repeat value `0`"),
        (
            "bench scan a --workers=1,0",
            "invalid --workers value `1,0`: expected a list of numbers from 1 to 64",
        ),
        (
            "bench scan --shape=",
            "invalid --shape value ``: expected a list of many, large, deep, mixed",
        ),
        (
            "bench sync --shape=deep a b",
            "expected `--shape=LIST` with `scan`, `sync` or `hash`, and at most one directory",
        ),
        (
            "bench hash a --algorithm=crc",
            "invalid --algorithm value `crc`: expected a list of blake3, sha256",
        ),
        (
            "bench scan a --algorithm=md5",
            "--algorithm is only for `bench hash`",
        ),
        ("bench scan a -q", "unknown option -q"),
        ("doctor a b", "unexpected argument `b`"),
        ("doctor --colour", "unknown option --colour"),
        ("doctor -e rsh", "-e and --rsync-path require a HOST"),
        ("doctor --path", "missing value for --path"),
        ("doctor -- -oProxyCommand=x", "invalid host"),
    ] {
        let error = refused(line);
        assert!(error.contains(words), "{line}: {error}");
        assert!(
            error.starts_with("sparsync ")
                && (error.ends_with("--help`") || error.contains("hint: name only")),
            "{error}"
        );
    }
}

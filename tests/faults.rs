//! Kills the program at every system call: final names must hold complete files, and the next run finishes the job.
//!
//! Debug builds die at the n-th system call on files if `SPARSYNC_KILL_AT=n` is set (see `src/fs/hooks.rs`). After each
//! death the test checks the destination and repeats the run. Then all trees must be as the real rsync leaves them. A
//! killed run may leave temporary files, which their names identify; a completed run must not.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;

use crate::kit::server::Server;
use crate::kit::tree::Snapshot;
use crate::kit::{
    Lens, Output, Request, Surroundings, USUAL_UMASK, Who, diff, files, interrupt, is_temp, oracle,
    report_skip, run, snapshot, write_script,
};

/// A run that is killed: its options and the trees before it.
pub struct Trees {
    /// Options of both programs.
    pub options: &'static [&'static str],
    /// Creates `src`, and `dst` if the scene has one.
    pub build: fn(&Path),
    /// Suffixes of the names that may hold old content.
    pub backups: &'static [&'static str],
}

fn is_private(path: &Path) -> bool {
    let stat = std::fs::symlink_metadata(path).unwrap();
    stat.permissions().mode() & 0o077 == 0
}

const KILLED: i32 = 1000 + 9;
/// The variable that selects the call at which the process is killed.
const KILL: &str = "SPARSYNC_KILL_AT";
/// The variable for a kill after which unsynced data is lost.
const POWER_LOSS: &str = "SPARSYNC_POWER_LOSS_AT";
/// The variable for one after which unsynced names are lost as well.
const NAME_LOSS: &str = "SPARSYNC_NAME_LOSS_AT";

#[test]
fn first_copy_killed_at_every_call() {
    every_call(&Trees {
        options: &["-aH"],
        build: |top| source(&top.join("src"), 2),
        backups: &[],
    });
}

#[test]
fn update_without_delete_killed_at_every_call() {
    every_call(&Trees {
        options: &["-aH"],
        build: both,
        backups: &[],
    });
}

#[test]
fn update_with_delete_killed_at_every_call() {
    every_call(&Trees {
        options: &["-aH", "--delete"],
        build: both,
        backups: &[],
    });
}

#[test]
fn update_with_backups_killed_at_every_call() {
    every_call(&Trees {
        options: &["-aH", "--delete", "--backup"],
        build: both,
        backups: &["~"],
    });
}

#[test]
fn update_with_a_backup_dir_killed_at_every_call() {
    let options = &["-aH", "--delete", "--backup", "--backup-dir=../old"];
    every_call(&Trees {
        options,
        build: both,
        backups: &[],
    });
}

#[test]
fn few_files_in_a_large_directory_killed_at_every_call() {
    let build = |top: &Path| {
        let (src, dst) = (top.join("src"), top.join("dst"));
        write(&src.join("a"), "new", 9);
        write(&dst.join("a"), "old", 1);
        for n in 0..300 {
            write(&dst.join(format!("other{n}")), "old", 1);
        }
    };
    every_call(&Trees {
        options: &["-a"],
        build,
        backups: &[],
    });
}

/// The order of system calls decides what a power loss leaves: nothing may get a name before its data is on the disk.
/// The log of the calls stands for the disk.
#[test]
fn a_power_loss_under_fsync_leaves_no_unwritten_content_under_a_name() {
    let shell = "#!/bin/sh\nshift\nexec sh -c \"exec $*\"\n";
    let program = format!("--rsync-path={}", oracle::under_test().display());
    for options in [
        &["-aH", "--delete"][..],
        &["-a", "--no-whole-file"],
        &["-a", "--inplace"],
        &["-a", "--delay-updates"],
        &["-a", "--backup"],
        &["-a", "--partial-dir=.part"],
        &["-a", "--sparse", "--preallocate"],
    ] {
        for operands in [["src/", "dst/"], ["src/", "far:dst/"], ["far:src/", "dst/"]] {
            let stage = Stage::new(&Trees {
                options: &[],
                build: both,
                backups: &[],
            });
            stage.script("shell", shell);
            let words = [&["--rsh=./shell", &program, "--fsync"], options, &operands].concat();
            let log = stage.top.join("calls");
            let copied = stage.run_words(
                oracle::under_test(),
                &words,
                &[("SPARSYNC_CALL_LOG", log.display().to_string())],
            );
            let shown = format!(
                "{words:?}: {}: {}",
                copied.exit,
                copied.stderr.escape_ascii()
            );
            assert_eq!(copied.exit, 0, "{shown}");
            let Ok(calls) = std::fs::read_to_string(&log) else {
                return report_skip(
                    "faults",
                    "the program under test is a release build, which logs no calls",
                );
            };
            let mut unsynced = BTreeMap::new();
            let (mut named, mut synced) = (0, 0);
            for (at, line) in calls.lines().enumerate() {
                let (thread, call) = line.split_once(' ').expect("a thread and a call");
                match call {
                    "Write" | "CopyRange" | "Clone" | "Truncate" | "Allocate" => {
                        unsynced.insert(thread, at);
                    }
                    "FSync" => {
                        synced += 1;
                        unsynced.remove(thread);
                    }
                    "Link" | "Rename" => {
                        named += 1;
                        assert!(
                            !unsynced.contains_key(thread),
                            "call {at} gives a name too early: {shown}\n{calls}"
                        );
                    }
                    _ => {}
                }
            }
            assert!(
                unsynced.is_empty(),
                "{unsynced:?} are not synced: {shown}\n{calls}"
            );
            assert!(
                named >= 3 && synced >= 5,
                "{named} names, {synced} synced: {shown}\n{calls}"
            );
        }
    }
}

/// A power loss at each call: data that was not synced is lost, and names are not.
#[test]
fn power_lost_at_every_call_under_fsync() {
    for options in [
        &["-aH", "--delete", "--fsync"][..],
        &["-aH", "--no-whole-file", "--fsync"],
    ] {
        let scene = Trees {
            options,
            build: both,
            backups: &[],
        };
        let twin = twin(&scene);
        let mut n = 1;
        while die_at(&scene, &twin, (POWER_LOSS, n)) {
            n += 1;
        }
        if n == 1 {
            return report_skip(
                "faults",
                "the program under test is a release build, without SPARSYNC_POWER_LOSS_AT",
            );
        }
    }
}

/// A power loss at each call: the names given in directories that were not synced are lost as well.
#[test]
fn names_lost_at_every_call_under_fsync() {
    for (options, backups) in [
        (&["-aH", "--delete", "--fsync"][..], &[][..]),
        (&["-aH", "--backup", "--fsync"], &["~"]),
    ] {
        let scene = Trees {
            options,
            build: both,
            backups,
        };
        let twin = twin(&scene);
        let mut n = 1;
        while die_at(&scene, &twin, (NAME_LOSS, n)) {
            n += 1;
        }
    }
}

/// A source is removed only once the name of its copy is stored.
#[test]
fn lost_names_lose_no_content_of_removed_sources() {
    for options in [
        &["-a"][..],
        &["-a", "--delay-updates"],
        &["-a", "--inplace"],
    ] {
        let options = [options, &["--fsync", "--remove-source-files"]].concat();
        let scene = Trees {
            options: &[],
            build: both_without_hard_links,
            backups: &[],
        };
        for n in 1.. {
            let stage = Stage::new(&scene);
            let before = files(&stage.top.join("src"));
            let broken = stage.run(&options, Some((NAME_LOSS, n)));
            let trees = ["src", "dst"].map(|tree| files(&stage.top.join(tree)));
            for (path, content) in &before {
                let is_there = trees.iter().any(|tree| tree.get(path) == Some(content));
                assert!(
                    is_there,
                    "{options:?}, killed at call {n}: {} is lost",
                    path.display()
                );
            }
            if broken.exit != KILLED {
                assert_eq!(broken.exit, 0, "{}", broken.stderr.escape_ascii());
                break;
            }
        }
    }
}

/// The simulation of a power loss does lose data: without --fsync, a file gets its name before its data is stored.
#[test]
fn power_loss_without_fsync_leaves_empty_files() {
    let scene = Trees {
        options: &["-a"],
        build: both,
        backups: &[],
    };
    let loses = (1..).map_while(|n| {
        let stage = Stage::new(&scene);
        let killed = stage.run(scene.options, Some((POWER_LOSS, n))).exit == KILLED;
        let source = files(&stage.top.join("src"));
        let is_lost = |(path, content): (&PathBuf, &Vec<u8>)| {
            content.is_empty() && source.get(path).is_some_and(|content| !content.is_empty())
        };
        killed.then(|| files(&stage.top.join("dst")).iter().any(is_lost))
    });
    let losses: Vec<bool> = loses.collect();
    assert!(
        losses.is_empty() || losses.contains(&true),
        "of {} power losses, none lost data",
        losses.len()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn larger_run_killed_at_a_random_call(share in 0.0..1.0f64, delete: bool) {
        let build = |top: &Path| {
            for dir in 0..12 {
                for file in 0..25 {
                    let name = format!("d{dir}/s{}/f{file}", file % 3);
                    write(&top.join("src").join(&name), &format!("new {name}"), 9);
                    if (dir + file) % 3 != 0 {
                        write(&top.join("dst").join(&name), &format!("old {name}"), 1);
                        write(&top.join("dst").join(format!("{name}.gone")), "old", 1);
                    }
                }
            }
        };
        let options: &[&str] = if delete { &["-a", "--delete"] } else { &["-a"] };
        let scene = Trees { options, build, backups: &[] };
        let all = Stage::new(&scene).calls();
        die_at(&scene, &twin(&scene), (KILL, 1 + (all as f64 * share) as u64));
    }

    #[test]
    fn second_run_has_nothing_to_do(tree in tree(), dest in tree()) {
        let stage = Stage::empty();
        for (top, tree) in [("src", &tree), ("dst", &dest)] {
            std::fs::create_dir(stage.top.join(top)).expect("scratch can be written");
            for (at, (name, node)) in tree.iter().enumerate() {
                node.make(&stage.top.join(top).join(name), at as u64);
            }
        }
        stage.settle();
        // The drawn source may be empty, and then our own name refuses to empty the destination.
        let options = ["-aH", "--delete", "--no-delete-guard", "-i"];
        let first = stage.run(&options, None);
        prop_assert_eq!(first.exit, 0, "{}", first.stderr.escape_ascii());
        let second = stage.run(&options, None);
        prop_assert_eq!((second.exit, second.stdout.escape_ascii().to_string()), (0, String::new()));
        prop_assert_eq!(diff::trees(&stage.snapshot("src"), &stage.snapshot("dst")), None);
    }
}

/// Kills the program at the first call, the second, and so on, until a run has fewer calls.
#[track_caller]
fn every_call(scene: &Trees) {
    let mut n = 1;
    let twin = twin(scene);
    while die_at(scene, &twin, (KILL, n)) {
        n += 1;
    }
    if n == 1 {
        report_skip(
            "faults",
            "the program under test is a release build, without SPARSYNC_KILL_AT",
        );
    }
}

/// Returns what rsync leaves of the scene.
fn twin(scene: &Trees) -> Snapshot {
    let twin = Stage::new(scene);
    let by_rsync = twin.run_program(oracle::rsync(), scene.options, &[]);
    assert_eq!(by_rsync.exit, 0, "{}", by_rsync.stderr.escape_ascii());
    twin.snapshot("")
}

/// Runs the scene and kills the program at the n-th call. Returns `false` if the run ended before that call.
fn die_at(scene: &Trees, twin: &Snapshot, (how, n): (&str, u64)) -> bool {
    let stage = Stage::new(scene);
    let before = files(&stage.top.join("dst"));
    let broken = stage.run(scene.options, Some((how, n)));
    if broken.exit != KILLED {
        assert_eq!(broken.exit, 0, "{}", broken.stderr.escape_ascii());
        return false;
    }
    let new = files(&stage.top.join("src"));
    for (path, content) in files(&stage.top.join("dst")) {
        let name = path
            .file_name()
            .expect("a file has a name")
            .to_string_lossy();
        let original = scene
            .backups
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .map(|name| path.with_file_name(name));
        let old = before
            .get(&path)
            .or(original.and_then(|original| before.get(&original)));
        let is_whole = old == Some(&content) || new.get(&path) == Some(&content);
        assert!(
            is_whole || is_temp(&name),
            "killed at call {n}: {} is neither old nor new",
            path.display()
        );
        // It gets its mode before its name.
        let is_complete = is_whole || new.values().any(|whole| *whole == content);
        assert!(
            is_complete || is_private(&stage.top.join("dst").join(&path)),
            "killed at call {n}: others can read {}",
            path.display()
        );
    }
    let after = stage.run(scene.options, None);
    assert_eq!(
        after.exit,
        0,
        "killed at call {n}, then: {}",
        after.stderr.escape_ascii()
    );
    let differs = diff::trees(twin, &stage.snapshot(""));
    assert_eq!(
        differs, None,
        "killed at call {n}, run again: the trees are not as rsync leaves them"
    );
    true
}

/// A scratch directory with the trees of a scene.
pub struct Stage {
    /// The directory that holds `src` and `dst`.
    pub top: PathBuf,
    surroundings: Surroundings,
    /// Removes the directory on drop.
    _dir: tempfile::TempDir,
}

impl Stage {
    fn empty() -> Stage {
        let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
        let top = dir.path().to_owned();
        let surroundings = Surroundings {
            who: Who::Current,
            home: top.clone(),
            umask: USUAL_UMASK,
            stdin: Vec::new(),
            env: Vec::new(),
        };
        Stage {
            top,
            surroundings,
            _dir: dir,
        }
    }

    pub fn new(scene: &Trees) -> Stage {
        let stage = Stage::empty();
        (scene.build)(&stage.top);
        stage.settle();
        stage
    }

    /// Sets one time per tree on everything but files, so that trees built at different moments are equal.
    fn settle(&self) {
        for (tree, day) in [("src", 8), ("dst", 3)] {
            settle(&self.top.join(tree), day);
        }
    }

    fn run(&self, options: &[&str], kill_at: Option<(&str, u64)>) -> Output {
        let env: Vec<_> = kill_at
            .map(|(how, n)| (how, n.to_string()))
            .into_iter()
            .collect();
        self.run_program(oracle::under_test(), options, &env)
    }

    pub fn run_program(&self, program: &Path, options: &[&str], env: &[(&str, String)]) -> Output {
        self.run_words(program, &[options, &["src/", "dst/"]].concat(), env)
    }

    /// Runs a program with these arguments.
    pub fn run_words(&self, program: &Path, words: &[&str], env: &[(&str, String)]) -> Output {
        let surroundings = self.surroundings_with(env);
        run(program, &bytes(words), &self.top, &surroundings)
    }

    fn surroundings_with(&self, env: &[(&str, String)]) -> Surroundings {
        let env = env
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()));
        Surroundings {
            env: env.collect(),
            ..self.surroundings.clone()
        }
    }

    /// Runs a copy with a server of its own, and waits until its session has ended. `hooks`: of the client, and of the
    /// session.
    pub fn run_over(
        &self,
        transport: &str,
        words: &[&str],
        hooks: [&[(&str, String)]; 2],
    ) -> Output {
        let server = Server::with(
            &self.top,
            &[hooks[1], &[("SPARSYNC_FAULT_IN", "session".to_owned())]].concat(),
        );
        let (name, value) = server.variable();
        let transport = format!("--transport={transport}");
        let words = [&[&transport[..]], words].concat();
        let output = self.run_words(
            oracle::under_test(),
            &words,
            &[hooks[0], &[(&name, value)]].concat(),
        );
        server.rests();
        output
    }

    /// Runs the program under test with these arguments and interrupts it.
    pub fn interrupt(
        &self,
        words: &[&str],
        env: &[(&str, String)],
        request: &Request<'_>,
    ) -> Output {
        let program = oracle::under_test();
        let surroundings = self.surroundings_with(env);
        interrupt(program, &bytes(words), &self.top, &surroundings, request)
    }

    /// Writes an executable script.
    pub fn script(&self, name: &str, text: &str) {
        write_script(&self.top.join(name), text);
    }

    /// Returns the number of system calls on files of a complete run.
    fn calls(&self) -> u64 {
        let profile = self.run_program(
            oracle::under_test(),
            &["-a"],
            &[("SPARSYNC_PROFILE", "1".to_owned())],
        );
        let text = String::from_utf8_lossy(&profile.stderr).into_owned();
        text.lines()
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }

    /// Takes a snapshot of everything below `dir`. Trees are built with times in 1970, so later ones are "now".
    pub fn snapshot(&self, dir: &str) -> Snapshot {
        self.snapshot_by(dir, false)
    }

    /// Returns all trees. Names of one file count as such only within one of them.
    pub fn snapshot_without_links_between(&self) -> Snapshot {
        self.snapshot_by("", true)
    }

    fn snapshot_by(&self, dir: &str, links_within: bool) -> Snapshot {
        const YEAR_SECS: i64 = 365 * 86_400;
        let mut found = snapshot(
            &self.top.join(dir),
            Lens {
                blocks: false,
                atimes: false,
                links_within,
                now_secs: YEAR_SECS,
            },
        );
        // Where the simulation of a power loss puts what loses its name.
        found.retain(|path, _| !path.starts_with(b"lost-names"));
        found
    }
}

fn bytes(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// Writes a file and creates its parents; `time` is in days since 1970.
pub fn write(path: &Path, text: &str, time: u64) {
    std::fs::create_dir_all(path.parent().expect("it has a parent"))
        .expect("scratch can be written");
    std::fs::write(path, text).expect("scratch can be written");
    let file = std::fs::File::options()
        .append(true)
        .open(path)
        .expect("it was just written");
    file.set_modified(UNIX_EPOCH + Duration::from_secs(time * 86_400))
        .expect("its time can be set");
}

/// Gives everything from `path` down but files one time, in days since 1970.
fn settle(path: &Path, day: i64) {
    let Ok(meta) = path.symlink_metadata() else {
        return;
    };
    if meta.is_dir() {
        for entry in std::fs::read_dir(path).expect("scratch can be read") {
            settle(&entry.expect("scratch can be read").path(), day);
        }
    }
    if !meta.is_file() {
        let time = rustix::fs::Timespec {
            tv_sec: day * 86_400,
            tv_nsec: 0,
        };
        let times = rustix::fs::Timestamps {
            last_access: time,
            last_modification: time,
        };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).expect("its time can be set");
    }
}

/// Creates entries of each kind; `version` is part of the contents and the times.
fn source(src: &Path, version: u64) {
    let text = |name: &str| format!("{name} version {version}\n");
    write(&src.join("a"), &text("a"), version);
    write(&src.join("empty"), "", version);
    write(&src.join("large"), &text("large").repeat(20_000), version);
    write(&src.join("dir/b"), &text("b"), version);
    write(&src.join("dir/deep/c"), &text("c"), version);
    symlink(format!("to{version}"), src.join("dir/link")).expect("scratch supports symlinks");
    write(&src.join("first"), &text("group"), version);
    std::fs::hard_link(src.join("first"), src.join("second")).expect("scratch supports hard links");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        src.join("pipe"),
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .expect("scratch supports fifos");
}

/// Creates a source, and a destination with an older version of it and extra entries.
pub fn both(top: &Path) {
    source(&top.join("src"), 2);
    source(&top.join("dst"), 1);
    write(&top.join("dst/extra"), "extra", 1);
    write(&top.join("dst/gone/deep/x"), "x", 1);
    // Entries that change their kind.
    write(&top.join("src/was_link"), "a file now", 2);
    symlink("somewhere", top.join("dst/was_link")).expect("scratch supports symlinks");
    write(&top.join("dst/dir/was_file"), "a file once", 1);
    symlink("elsewhere", top.join("src/dir/was_file")).expect("scratch supports symlinks");
}

/// Without hard links, for copies that would not keep them.
fn both_without_hard_links(top: &Path) {
    both(top);
    for tree in ["src", "dst"] {
        std::fs::remove_file(top.join(tree).join("second")).expect("it was just created");
    }
}

/// An entry of a random tree.
#[derive(Clone, Debug)]
enum Node {
    File { text: String, mode: u32, time: u64 },
    Link { target: String },
    Fifo,
}

impl Node {
    fn make(&self, path: &Path, at: u64) {
        std::fs::create_dir_all(path.parent().expect("it has a parent"))
            .expect("scratch can be written");
        match self {
            Node::File { text, mode, time } => {
                write(path, text, *time);
                let mode = std::os::unix::fs::PermissionsExt::from_mode(*mode);
                std::fs::set_permissions(path, mode).expect("the test's own file");
                // Some files get a second name.
                if at.is_multiple_of(3) {
                    let name = path.file_name().expect("it has a name").to_string_lossy();
                    std::fs::hard_link(path, path.with_file_name(format!("{name}=")))
                        .expect("scratch supports hard links");
                }
            }
            Node::Link { target } => symlink(target, path).expect("scratch supports symlinks"),
            Node::Fifo => {
                rustix::fs::mknodat(
                    rustix::fs::CWD,
                    path,
                    rustix::fs::FileType::Fifo,
                    0o600.into(),
                    0,
                )
                .expect("scratch supports fifos");
            }
        }
    }
}

/// Generates trees as names and nodes. Directories never have the name of another entry, so every tree can be created.
fn tree() -> impl Strategy<Value = BTreeMap<String, Node>> {
    let node = prop_oneof![
        4 => ("a{0,3}", prop_oneof![Just(0o644), Just(0o600), Just(0o755), Just(0o4711)], 1..4u64)
            .prop_map(|(text, mode, time)| Node::File { text, mode, time }),
        1 => "[ab/.]{1,4}".prop_map(|target| Node::Link { target }),
        1 => Just(Node::Fifo),
    ];
    proptest::collection::btree_map("([DEÄ]/){0,3}[abc.~]{0,2}[xy]", node, 0..14)
}

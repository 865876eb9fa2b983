//! Unusual machines: an older rsync as the oracle, packages that `scripts/test` has to install, and processes with
//! fewer rights or resources than usual.

use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::kit::server::Server;
use crate::kit::tree::{Lens, snapshot};
use crate::kit::{diff, oracle, report_skip, write_script};

/// Writes an executable script in `dir`.
fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    write_script(&path, &format!("#!/bin/sh\n{text}\n"));
    path
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn older_oracle_is_reported_and_newer_cases_are_skipped() {
    const NEWER: [&str; 2] = [
        "links::keep_dirlinks_rejects_a_link_that_leads_outside",
        "place::relative_temp_dir_may_not_climb",
    ];
    const OTHER: &str = "copy::a_changed_file_is_updated";
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let real = oracle::rsync().display();
    let older = script(
        dir.path(),
        "older",
        &format!(
            "case $1 in --version) echo 'rsync  version 3.2.7  protocol version 31' ;; *) exec {real} \"$@\" ;; esac"
        ),
    );
    let skips = dir.path().join("skips");
    let mut tests = Command::new(std::env::current_exe().expect("this program has a path"));
    tests.args(["--exact", OTHER]).args(NEWER);
    tests
        .env("SPARSYNC_ORACLE", &older)
        .env("SPARSYNC_SKIPS", &skips)
        .env("SPARSYNC_TEST_ROUTES", "local");
    let output = tests.output().expect("the tests can be run once more");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success() && stdout.contains("3 passed"),
        "{stdout}{stderr}"
    );
    assert!(
        stderr.contains("3.2.7; OLDER than 3.5.0: cases for newer behaviour are skipped"),
        "{stderr}"
    );
    let skipped = std::fs::read_to_string(&skips).unwrap_or_default();
    for name in NEWER {
        let line =
            format!("skipped main::{name}: needs an rsync of 3.5.0 as the oracle, this is 3.2.7\n");
        assert!(
            skipped.contains(&line) && stderr.contains(&line),
            "{skipped}"
        );
    }
    assert_eq!(skipped.lines().count(), NEWER.len(), "{skipped}");
}

/// Runs `scripts/test` on a machine with the basic tools of a shell, a fake cargo and a fake apt-get. Returns the
/// output and the calls of both. The script also finds programs in /usr/sbin. The fake cargo ends with the lines `cargo`.
fn bare_machine(user: u32, cargo: &str) -> (Output, String) {
    const USUAL: [&str; 14] = [
        "sh", "dirname", "head", "mktemp", "chmod", "wc", "sort", "sed", "rm", "cat", "touch",
        "tee", "awk", "cut",
    ];
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let (bin, log) = (dir.path(), dir.path().join("log"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    for name in USUAL {
        let real = std::env::split_paths(&path)
            .map(|dir| dir.join(name))
            .find(|path| path.exists());
        symlink(real.expect("a standard tool is installed"), bin.join(name))
            .expect("scratch supports symlinks");
    }
    script(bin, "id", &format!("echo {user}"));
    script(
        bin,
        "cargo",
        &format!("echo \"cargo $*\" >>{}\n{cargo}", log.display()),
    );
    // No package can be installed before the package lists are updated.
    let updated = bin.join("updated");
    script(
        bin,
        "apt-get",
        &format!(
            "echo \"apt-get $*\" >>{}\ncase $1 in update) touch {updated} ;; install) [ -e {updated} ] ;; esac",
            log.display(),
            updated = updated.display()
        ),
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut run = Command::new(bin.join("sh"));
    run.arg(root.join("scripts/test")).arg("some::").env_clear();
    run.env("PATH", OsString::from(bin)).env("TMPDIR", bin);
    let output = run.output().expect("a shell can be started");
    (output, std::fs::read_to_string(&log).unwrap_or_default())
}

#[test]
fn missing_packages_are_installed_before_the_tests() {
    let (output, calls) = bare_machine(0, "");
    let message = text(&output.stdout);
    assert!(output.status.success(), "{message}{}", text(&output.stderr));
    let server = if Path::new("/usr/sbin/sshd").exists() {
        ""
    } else {
        " openssh-server"
    };
    let packages = format!("rsync{server} openssh-client acl attr mandoc b3sum xxhash zsh fish");
    let install = format!("apt-get install -y -q --no-install-recommends {packages}\n");
    assert!(
        message.contains(&format!(
            "this machine lacks {packages}; installing with apt-get\n"
        )),
        "{message}"
    );
    let tests = "cargo test --locked --no-fail-fast --all-targets some::\n";
    assert_eq!(calls, format!("apt-get update -q\n{install}{tests}"));
}

#[test]
fn tests_run_without_missing_packages_as_a_user() {
    let (output, calls) = bare_machine(1000, "");
    let message = text(&output.stdout);
    assert!(
        message.contains("and only root on Debian gets them installed from here"),
        "{message}"
    );
    assert_eq!(
        calls,
        "cargo test --locked --no-fail-fast --all-targets some::\n"
    );
}

/// A cargo whose first run reports a failed test, and whose runs of a single test end with `alone`.
fn failing_cargo(alone: u32) -> String {
    format!(
        "case \"$*\" in *--exact*) exit {alone} ;; esac\n\
         echo 'test area::law ... FAILED'; echo '---- area::law stdout ----'; echo 'left: 1'; exit 101"
    )
}

#[test]
fn test_that_passes_twice_alone_is_listed_and_does_not_fail_the_run() {
    let (output, calls) = bare_machine(1000, &failing_cargo(0));
    let message = text(&output.stdout);
    assert!(output.status.success(), "{message}");
    assert!(message.contains("twice alone: area::law\n"), "{message}");
    assert!(
        message.contains("area::law stdout ----\nleft: 1\n"),
        "{message}"
    );
    assert_eq!(calls.matches("-- --exact area::law\n").count(), 2);
}

#[test]
fn test_that_fails_again_fails_the_run() {
    let (output, _) = bare_machine(1000, &failing_cargo(101));
    let message = text(&output.stdout);
    assert_eq!(output.status.code(), Some(101), "{message}");
    assert!(message.ends_with("FAILED (exit 101)\n"), "{message}");
}

#[test]
fn tests_that_do_not_build_fail_the_run() {
    let (output, calls) = bare_machine(1000, "exit 101");
    assert_eq!(output.status.code(), Some(101));
    assert_eq!(calls.lines().count(), 1);
}

/// Runs `line` in a shell with rsync as `$0`, then with sparsync. Returns the exit codes and stderr.
fn both(dir: &Path, line: &str) -> [(Option<i32>, String); 2] {
    [
        (oracle::rsync(), "rsync"),
        (oracle::under_test(), "sparsync"),
    ]
    .map(|(program, name)| {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", line])
            .arg(program)
            .current_dir(dir)
            .env("OUT", name)
            .env("LC_ALL", "C");
        let output = shell.output().expect("a shell is installed");
        (output.status.code(), text(&output.stderr))
    })
}

#[test]
fn file_size_limit_exits_11() {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    std::fs::create_dir(dir.path().join("src")).unwrap();
    std::fs::write(dir.path().join("src/f"), vec![7; 64 << 10]).unwrap();
    for (code, message) in both(dir.path(), "ulimit -f 16; exec \"$0\" -a src/ $OUT/") {
        assert!(
            code == Some(11) && message.contains("File too large (27)"),
            "{code:?} {message}"
        );
    }
}

#[test]
fn removed_working_directory_exits_3_for_relative_paths() {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    std::fs::create_dir(dir.path().join("src")).unwrap();
    std::fs::write(dir.path().join("src/f"), "f").unwrap();
    let gone = "top=$PWD; mkdir gone.$OUT; cd gone.$OUT; rmdir ../gone.$OUT; exec \"$0\" -a";
    for operands in ["\"$top/src/\" to/", ". \"$top/$OUT\""] {
        for (code, message) in both(dir.path(), &format!("{gone} {operands}")) {
            assert!(
                code == Some(3) && message.contains("getcwd(): No such file or directory (2)"),
                "{code:?} {message}"
            );
        }
    }
    // rsync fails there even if no path depends on the working directory.
    let [_, (code, message)] = both(dir.path(), &format!("{gone} \"$top/src/\" \"$top/$OUT/\""));
    assert!(
        code == Some(0) && dir.path().join("sparsync/f").exists(),
        "{code:?} {message}"
    );
}

/// The deadline ends a run within a file too, by every route, and keeps what `--partial` keeps.
#[test]
fn stop_after_ends_a_run_within_a_file() {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    std::fs::create_dir(dir.path().join("src")).unwrap();
    std::fs::write(dir.path().join("src/f"), vec![7; 64 << 20]).unwrap();
    script(dir.path(), "shell", "shift; exec sh -c \"$*\"");
    let program = oracle::under_test().display();
    let far = format!("-e ./shell --rsync-path={program}");
    let ways = [
        ("here", "src/ here/".to_owned()),
        ("push", format!("{far} src/ h:$PWD/push/")),
        ("pull", format!("{far} h:$PWD/src/ pull/")),
    ];
    // The whole copy takes 32 s at this rate. The deadline leaves a busy machine time to begin.
    let ends = |(to, way): &(&str, String)| {
        let line = format!(
            "exec timeout -s KILL 60 {program} -a --partial --bwlimit=2000 --stop-after=1 {way}"
        );
        let mut run = Command::new("sh");
        run.args(["-c", &line])
            .current_dir(dir.path())
            .env("SPARSYNC_MINUTE_SECS", "6")
            .env("LC_ALL", "C");
        let output = run.output().expect("a shell is installed");
        let message = text(&output.stderr);
        assert!(
            output.status.code() == Some(30)
                && message.starts_with("stopping at requested limit\n"),
            "{to}: {message}"
        );
        let kept = std::fs::metadata(dir.path().join(to).join("f"))
            .expect("the partial file is kept")
            .len();
        assert!(kept > 0 && kept < 64 << 20, "{to}: {kept}");
    };
    std::thread::scope(|scope| {
        for way in &ways {
            scope.spawn(|| ends(way));
        }
    });
    // The deadline also ends the wait for a remote shell.
    script(dir.path(), "mute", "exec sleep 60");
    let mut run = Command::new(oracle::under_test());
    run.args(["-a", "-e", "./mute", "--stop-after=1", "src/", "h:x"])
        .current_dir(dir.path());
    let output = run
        .env("SPARSYNC_MINUTE_SECS", "1")
        .env("LC_ALL", "C")
        .output()
        .expect("it can be started");
    let message = text(&output.stderr);
    assert!(
        output.status.code() == Some(30) && message.starts_with("stopping at requested limit\n"),
        "{message}"
    );
}

#[test]
fn run_succeeds_with_few_open_files() {
    const DIRS: usize = 400;
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    for number in 0..DIRS {
        let sub = dir.path().join(format!("src/d{number}"));
        std::fs::create_dir_all(&sub).unwrap();
        std::fs::write(sub.join(format!("f{number}")), "f").unwrap();
    }
    script(dir.path(), "shell", "shift; exec sh -c \"$*\"");
    let far = "-e ./shell --rsync-path=$0";
    let ways = [
        "src/ $OUT.here/".to_owned(),
        format!("{far} src/ h:$PWD/$OUT.push/"),
        format!("{far} h:$PWD/src/ $OUT.pull/"),
    ];
    for way in ways {
        for (code, message) in both(dir.path(), &format!("ulimit -n 16; exec \"$0\" -a {way}")) {
            assert!(
                code == Some(0) && message.is_empty(),
                "{way}: {code:?} {message}"
            );
        }
    }
    let server = Server::with(dir.path(), &[]);
    for (transport, way, to) in [
        ("quic", "src/ far:by-quic/", "by-quic"),
        ("tls", "far:src/ by-tls/", "by-tls"),
    ] {
        let line = format!(
            "ulimit -n 16; exec {} -a --transport={transport} {way}",
            oracle::under_test().display()
        );
        let mut command = Command::new("sh");
        command
            .args(["-c", &line])
            .current_dir(dir.path())
            .envs([server.variable()]);
        let output = command.output().expect("sh can be started");
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{way}: {output:?}"
        );
        assert_eq!(
            std::fs::read_dir(dir.path().join(to)).unwrap().count(),
            DIRS,
            "{way}"
        );
    }
    // The directory of each argument stays open. The hard limit allows more of them than the soft limit of the shell.
    for way in ["$OUT.args/".to_owned(), format!("{far} h:$PWD/$OUT.far/")] {
        for (code, message) in both(
            dir.path(),
            &format!("ulimit -S -n 64; exec \"$0\" -a src/*/f* {way}"),
        ) {
            assert!(
                code == Some(0) && message.is_empty(),
                "{way}: {code:?} {message}"
            );
        }
    }
}

/// Creates a tree that is 40 directories deep. Each level also has a file, another name of the file above, and a small
/// directory that comes after the deep one.
fn deep_tree(top: &Path, content: &str) {
    let mut dir = top.to_owned();
    for _ in 0..40 {
        let below = dir.join("d");
        for sub in ["d", "z"] {
            std::fs::create_dir_all(dir.join(sub)).expect("scratch can be written");
        }
        std::fs::write(dir.join("f"), content).unwrap();
        std::fs::write(dir.join("z/f"), content).unwrap();
        std::fs::hard_link(dir.join("f"), below.join("g")).unwrap();
        dir = below;
    }
}

#[test]
fn deep_trees_need_no_open_files_for_each_level() {
    const OLD_SECS: i64 = 1_000_000_000;
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let path = |name: &str| dir.path().join(name);
    deep_tree(&path("src"), "new content");
    deep_tree(&path("old"), "old");
    deep_tree(&path("old/d/d/extra"), "extra");
    std::fs::create_dir(path("none")).unwrap();
    let mut touch = Command::new("find");
    touch
        .args([
            "src",
            "old",
            "-exec",
            "touch",
            "-h",
            "-d",
            &format!("@{OLD_SECS}"),
            "{}",
            "+",
        ])
        .current_dir(dir.path());
    assert!(touch.status().expect("there is a find").success());
    script(dir.path(), "shell", "shift; exec sh -c \"$*\"");
    let far = "-e ./shell --rsync-path=$0";
    let ways = [
        ("here", "src/ $OUT.here/".to_owned()),
        ("push", format!("{far} src/ h:$PWD/$OUT.push/")),
        ("pull", format!("{far} h:$PWD/src/ $OUT.pull/")),
    ];
    let cases = [
        ("-a", "none"),
        ("-aH", "none"),
        ("-aH --link-dest=$PWD/src", "none"),
        ("-aI --link-dest=$PWD/old", "none"),
        ("-an", "none"),
        ("-aH --delete", "old"),
        ("-aH --delete-before", "old"),
        ("-a --delete-after", "old"),
        ("-a --delete-delay", "old"),
        ("-ab --delete --backup-dir=$PWD/$OUT.backup", "old"),
    ];
    let lens = Lens {
        blocks: false,
        atimes: false,
        links_within: false,
        now_secs: OLD_SECS + 1,
    };
    for (options, before) in cases {
        for (to, way) in &ways {
            // rsync does need a file for each level of a tree that it sends. Backups need up to three more.
            let files = if options.contains("backup") { 20 } else { 16 };
            let limit =
                format!("exec 3>&- 4>&- 5>&- 6>&- 7>&-; [ $OUT = rsync ] || ulimit -n {files}");
            let clear = format!("rm -rf $OUT.{to} $OUT.backup; cp -a {before} $OUT.{to}");
            for (code, message) in both(
                dir.path(),
                &format!("{clear}; {limit}; exec \"$0\" {options} {way}"),
            ) {
                assert!(
                    code == Some(0) && message.is_empty(),
                    "{options} {way}: {code:?} {message}"
                );
            }
            let [wanted, got] =
                ["rsync", "sparsync"].map(|name| snapshot(&path(&format!("{name}.{to}")), lens));
            assert_eq!(diff::trees(&wanted, &got), None, "{options} {way}");
            if options.contains("backup") {
                let [wanted, got] = ["rsync", "sparsync"]
                    .map(|name| snapshot(&path(&format!("{name}.backup")), lens));
                assert_eq!(diff::trees(&wanted, &got), None, "{options} {way}");
            }
        }
    }
}

#[test]
fn hard_links_succeed_with_few_open_files() {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let all = dir.path().join("src/z");
    std::fs::create_dir_all(&all).unwrap();
    for number in 0..200 {
        let sub = dir.path().join(format!("src/d{number}"));
        std::fs::create_dir(&sub).unwrap();
        std::fs::write(sub.join("f"), "f").unwrap();
        std::fs::hard_link(sub.join("f"), all.join(format!("f{number}"))).unwrap();
    }
    script(dir.path(), "shell", "shift; exec sh -c \"$*\"");
    let far = "-e ./shell --rsync-path=$0";
    for (to, way) in [
        ("here", "src/ $OUT.here/".to_owned()),
        ("push", format!("{far} src/ h:$PWD/$OUT.push/")),
        ("pull", format!("{far} h:$PWD/src/ $OUT.pull/")),
    ] {
        for (code, message) in both(dir.path(), &format!("ulimit -n 40; exec \"$0\" -aH {way}")) {
            assert!(
                code == Some(0) && message.is_empty(),
                "{way}: {code:?} {message}"
            );
        }
        let inode = |name: String| {
            std::fs::metadata(dir.path().join(format!("sparsync.{to}/{name}")))
                .unwrap()
                .ino()
        };
        (0..200).for_each(|number| {
            assert_eq!(
                inode(format!("d{number}/f")),
                inode(format!("z/f{number}")),
                "{way}"
            )
        });
    }
}

/// Only `SPARSYNC_RSYNC` makes sparsync execute an rsync, and only for a run that it cannot do.
#[test]
fn installed_rsync_is_never_executed() {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let (top, ours, theirs) = (
        dir.path(),
        oracle::under_test().display(),
        crate::recipes::in_path(oracle::rsync()),
    );
    let theirs = theirs.display();
    std::fs::create_dir(top.join("bin")).unwrap();
    std::fs::create_dir(top.join("src")).unwrap();
    std::fs::write(top.join("src/f"), "text").unwrap();
    std::fs::write(top.join("list"), "f\n").unwrap();
    let ids = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let module = format!(
        "uid = {}\ngid = {}\nuse chroot = no\nread only = no\n[m]\npath = ",
        ids.0, ids.1
    );
    let module = format!("{module}{}\n", top.display());
    std::fs::write(top.join("conf"), module).unwrap();
    script(
        top,
        "bin/rsync",
        &format!("echo \"$*\" >>{}/called; exit 99", top.display()),
    );
    script(top, "sh", "shift; exec sh -c \"$*\"");
    let path = format!("{}/bin:{}", top.display(), std::env::var("PATH").unwrap());
    let run = |program: &dyn std::fmt::Display, line: &str, vars: &[(&str, &str)]| {
        let mut run = Command::new("/usr/bin/timeout");
        run.args(["-s", "KILL", "60", &program.to_string()])
            .args(line.split(' '))
            .current_dir(top)
            .env("PATH", &path);
        run.env_remove("SPARSYNC_RSYNC")
            .env_remove("SPARSYNC_HANDED_OVER")
            .envs(vars.iter().copied())
            .output()
            .unwrap()
    };
    let far =
        |peer: &dyn std::fmt::Display, line: &str| format!("-e ./sh --rsync-path={peer} {line}");
    let daemon =
        |peer: &dyn std::fmt::Display| format!("{peer} --daemon --config={}/conf", top.display());
    let connects = |program: &'static str, peer: &dyn std::fmt::Display, line: &str, exit| {
        (program, line.to_owned(), Some(daemon(peer)), exit)
    };
    let mut cases = vec![
        connects("ours", &theirs, "-a src/ h::m/a", 0),
        connects("ours", &theirs, "-a h::m/src/ b", 0),
    ];
    cases.extend([
        connects("theirs", &ours, "-a src/ h::m/c", 0),
        connects("theirs", &ours, "-a h::m/src/ e", 0),
    ]);
    cases.push(connects("theirs", &ours, "-a --protocol=28 src/ h::m/g", 0));
    for line in [
        "-a src/ l1",
        "-a --protocol=27 src/ l2",
        "-a --protocol=28 --delete src/ l3",
        "-a --iconv=utf8,latin1 src/ l4",
        "-a --write-batch=batch src/ l5",
        "-a --read-batch=batch l6",
        "-a -M--fake-super src/ l7",
        "--list-only src/",
    ] {
        cases.push(("ours", line.to_owned(), None, 0));
    }
    for line in [
        "-a src/ h:DST",
        "-a h:src/ DST",
        "-as src/ h:DST",
        "-a --files-from=:list src/ h:DST",
    ] {
        for version in ["27", "29", "32"] {
            let line = line.replace("DST", &format!("to{}", cases.len()));
            cases.push((
                "ours",
                far(&theirs, &format!("--protocol={version} {line}")),
                None,
                0,
            ));
            cases.push((
                "theirs",
                far(&ours, &format!("--protocol={version} {line}")),
                None,
                0,
            ));
        }
    }
    cases.push(("ours", "-a --protocol=26 src/ n1".to_owned(), None, 4));
    cases.push(("ours", far(&theirs, "-a --protocol=26 src/ h:n2"), None, 4));
    cases.push(("ours", far(&theirs, "-a --bogus src/ h:n3"), None, 1));
    for (program, line, connects, exit) in &cases {
        let program: &dyn std::fmt::Display = if *program == "ours" { &ours } else { &theirs };
        let vars = connects
            .as_deref()
            .map(|connects| ("RSYNC_CONNECT_PROG", connects));
        let output = run(program, line, vars.as_slice());
        assert_eq!(output.status.code(), Some(*exit), "{line}: {output:?}");
        assert!(!top.join("called").exists(), "{line}: an rsync was called");
    }
    let named = top.join("bin/rsync");
    let output = run(
        &ours,
        "-a --protocol=26 src/ n1",
        &[("SPARSYNC_RSYNC", named.to_str().unwrap())],
    );
    assert_eq!(output.status.code(), Some(99), "{output:?}");
    assert_eq!(
        std::fs::read_to_string(top.join("called")).unwrap(),
        "-a --protocol=26 src/ n1\n"
    );
}

/// With a low limit on processes, a copy uses the threads that it can start.
#[test]
fn local_copy_succeeds_with_two_threads() {
    const NAME: &str = "local_copy_succeeds_with_two_threads";
    // No other process on this machine has this user.
    const USER: u32 = 54_321;
    if !rustix::process::geteuid().is_root() {
        return report_skip(NAME, "only root can run a program as another user");
    }
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    for n in 0..50 {
        std::fs::create_dir_all(dir.path().join(format!("s/{n}"))).unwrap();
        std::fs::write(dir.path().join(format!("s/{n}/f")), n.to_string()).unwrap();
    }
    let run = |limit: u32, dest: &str| {
        let mut run = Command::new("prlimit");
        run.arg(format!("--nproc={limit}:{limit}"))
            .arg(oracle::under_test())
            .args(["-rt", "s/", dest]);
        run.uid(USER)
            .gid(USER)
            .current_dir(dir.path())
            .output()
            .unwrap()
    };
    let output = run(2, "d2/");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    for n in 0..50 {
        assert_eq!(
            std::fs::read(dir.path().join(format!("d2/{n}/f"))).unwrap(),
            n.to_string().into_bytes()
        );
    }
    let output = run(1, "d1/");
    assert!(
        output.status.code() == Some(22)
            && text(&output.stderr).contains("could not start a thread"),
        "{output:?}"
    );
}

/// Builds `s` below `top` and a script `shell` in place of ssh. Returns the operands of a local copy, a push and a pull.
fn few_files(top: &Path) -> [(&'static str, [String; 2]); 3] {
    std::fs::create_dir_all(top.join("s/d")).unwrap();
    for n in 0..40 {
        std::fs::write(top.join(format!("s/d/{n}")), vec![n; usize::from(n) * 4000]).unwrap();
    }
    std::fs::write(top.join("s/big"), vec![7; 3 << 20]).unwrap();
    script(top, "shell", "shift; exec sh -c \"exec $*\"");
    let far = |path: &str| format!("h:{}/{path}", top.display());
    [
        ("here", ["s/".to_owned(), "here/".to_owned()]),
        ("push", ["s/".to_owned(), far("push/")]),
        ("pull", [far("s/"), "pull/".to_owned()]),
    ]
}

/// Checks that a copy under a limit has succeeded or failed with a clear error, and that an unlimited one finishes it.
/// Returns whether it has succeeded.
fn ends_clearly(top: &Path, dest: &str, printed: &str, output: &Output, again: Command) -> bool {
    let mut again = again;
    let message = text(&output.stderr);
    // The remote shell may be what could not be started (12, 14), or may have lost its program (12).
    let is_clear =
        matches!(output.status.code(), Some(11 | 12 | 14 | 22)) && message.contains("rsync error");
    // The C library itself aborts if a thread gets no memory to register a destructor.
    let has_aborted =
        message.contains("Fatal glibc error: failed to register TLS destructor: out of memory");
    let has_panicked = message.contains("panicked");
    assert!(
        output.status.success() || is_clear && !has_panicked || has_aborted,
        "{printed}: {output:?}"
    );
    let is_same = || {
        let compared = Command::new("diff")
            .args(["-r", "s", dest])
            .current_dir(top)
            .output()
            .expect("there is a diff");
        assert!(
            compared.status.success(),
            "{printed}: {}",
            text(&compared.stdout)
        );
    };
    if output.status.success() {
        is_same();
    }
    let finished = again.output().unwrap();
    assert!(finished.status.success(), "{printed}, then: {finished:?}");
    is_same();
    std::fs::remove_dir_all(top.join(dest)).unwrap();
    output.status.success()
}

#[test]
fn little_address_space_is_enough_or_ends_a_copy_with_an_error() {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let ways = few_files(dir.path());
    let program = format!("--rsync-path={}", oracle::under_test().display());
    let copy = |limit_mib: Option<u64>, words: &[&str]| {
        let mut copy = Command::new("prlimit");
        copy.args(limit_mib.map(|mib| format!("--as={0}:{0}", mib << 20)));
        copy.arg(oracle::under_test())
            .args(words)
            .current_dir(dir.path())
            .env("LC_ALL", "C");
        copy
    };
    let starts = |mib: &u64| {
        copy(Some(*mib), &["--version"])
            .output()
            .unwrap()
            .status
            .success()
    };
    // Below this limit not even the libraries of the program can be loaded.
    let least_mib = (8..200).find(starts).expect("it starts somewhere");
    for (dest, [from, to]) in &ways {
        let words = ["-a", "-e", "./shell", &program, from, to];
        let mut succeeded = 0;
        for limit_mib in (least_mib..least_mib + 32)
            .step_by(4)
            .chain([least_mib + 200])
        {
            let output = copy(Some(limit_mib), &words).output().unwrap();
            let printed = format!("{dest} with {limit_mib} MiB");
            succeeded += u32::from(ends_clearly(
                dir.path(),
                dest,
                &printed,
                &output,
                copy(None, &words),
            ));
        }
        assert!(succeeded > 0, "{dest}");
    }
}

/// With a low limit on open files, names from many directories are copied: rsync has one of them open at a time.
#[test]
fn more_source_directories_than_open_files_are_copied() {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let top = dir.path();
    script(top, "shell", "shift; exec sh -c \"exec $*\"");
    let lines = |line: fn(u32) -> String| (0..150).map(line).collect::<Vec<_>>();
    for n in 0..150 {
        std::fs::create_dir_all(top.join(format!("s/{n}/d"))).unwrap();
        std::fs::write(top.join(format!("s/{n}/d/f{n}")), n.to_string()).unwrap();
    }
    std::fs::write(
        top.join("list"),
        lines(|n| format!("{n}/d/f{n}\n")).concat(),
    )
    .unwrap();
    let here = oracle::under_test().display().to_string();
    let arguments = lines(|n| format!("s/{n}/d/f{n}"));
    let contents = lines(|n| format!("s/{n}/d/"));
    let inside = lines(|n| format!("s/{n}/./d"));
    let listed = ["--no-R", "--files-from=list", "s"]
        .map(str::to_owned)
        .to_vec();
    let forms = [
        (&[][..], arguments),
        (&[], contents),
        (&["-R"], inside),
        (&[], listed),
    ];
    for (from, to, far) in [
        ("", "", ""),
        ("", "h:", &here),
        ("h:", "", &here),
        ("", "h:", "rsync"),
    ] {
        for (at, (options, sources)) in forms.iter().enumerate() {
            let dest = format!("d{}{at}", from.len() + to.len() + far.len());
            let mut copy = Command::new("prlimit");
            copy.args([
                "--nofile=100:100",
                &here,
                "-a",
                "-e",
                "./shell",
                "--no-inc-recursive",
            ]);
            copy.arg(format!("--rsync-path={far}")).args(*options);
            let path = |path: &String| match (from, path.starts_with('-')) {
                ("h:", false) => format!("h:{}/{path}", top.display()),
                _ => path.clone(),
            };
            copy.args(sources.iter().map(path)).arg(if to.is_empty() {
                dest.clone()
            } else {
                format!("h:{}/{dest}", top.display())
            });
            let output = copy.current_dir(top).env("LC_ALL", "C").output().unwrap();
            let printed = format!("{from}{to}{far} {options:?} {at}: {output:?}");
            assert!(
                output.status.success() && output.stderr.is_empty(),
                "{printed}"
            );
            let dir = if *options == ["-R"] {
                top.join(&dest).join("d")
            } else {
                top.join(&dest)
            };
            assert!(
                (0..150).all(|n: u32| std::fs::read_to_string(dir.join(format!("f{n}")))
                    .is_ok_and(|text| text == n.to_string())),
                "{printed}"
            );
        }
    }
}

#[test]
fn copies_without_getrandom() {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let number = if cfg!(target_arch = "x86_64") {
        318
    } else {
        278
    };
    for (dest, [from, to]) in few_files(dir.path()) {
        let program = oracle::under_test().display();
        let line = format!(
            "exec {} {program} -a -e ./shell --rsync-path={program} {from} {to}",
            crate::grants::without_call(number)
        );
        let output = Command::new("sh")
            .args(["-c", &line])
            .current_dir(dir.path())
            .output()
            .unwrap();
        if output.status.code() == Some(77) {
            return report_skip(
                "copies_without_getrandom",
                "perl cannot block a system call here",
            );
        }
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{dest}: {output:?}"
        );
    }
}

#[test]
fn few_processes_are_enough_or_end_a_copy_with_an_error() {
    const NAME: &str = "few_processes_are_enough_or_end_a_copy_with_an_error";
    // No other process on this machine has this user.
    const USER: u32 = 54_322;
    if !rustix::process::geteuid().is_root() {
        return report_skip(NAME, "only root can run a program as another user");
    }
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let ways = few_files(dir.path());
    let program = format!("--rsync-path={}", oracle::under_test().display());
    let copy = |limit: u64, words: &[&str]| {
        let mut copy = Command::new("prlimit");
        copy.arg(format!("--nproc={limit}:{limit}"))
            .arg(oracle::under_test())
            .args(words);
        copy.uid(USER)
            .gid(USER)
            .current_dir(dir.path())
            .env("LC_ALL", "C");
        copy
    };
    for (dest, [from, to]) in &ways {
        let words = ["-rt", "-e", "./shell", &program, from, to];
        let mut succeeded = 0;
        for limit in (1..20).step_by(2).chain([200]) {
            let output = copy(limit, &words).output().unwrap();
            let printed = format!("{dest} with {limit} processes");
            succeeded += u32::from(ends_clearly(
                dir.path(),
                dest,
                &printed,
                &output,
                copy(1000, &words),
            ));
        }
        assert!(succeeded > 0, "{dest}");
    }
}

#[test]
fn preallocated_zeros_of_sparse_files_are_freed() {
    // In memory and, usually, on a disk: file systems differ in what can be freed behind the end of a file.
    for scratch in [oracle::scratch(), Path::new(env!("CARGO_TARGET_TMPDIR"))] {
        let dir = tempfile::tempdir_in(scratch).expect("scratch can be written");
        std::fs::create_dir(dir.path().join("s")).unwrap();
        std::fs::write(
            dir.path().join("s/f"),
            [vec![0; 8 << 20], b"end".to_vec()].concat(),
        )
        .unwrap();
        let mut copy = Command::new(oracle::under_test());
        copy.args(["-aS", "--preallocate", "s/", "d/"])
            .current_dir(dir.path());
        assert!(copy.status().unwrap().success());
        let blocks = std::fs::metadata(dir.path().join("d/f")).unwrap().blocks();
        assert!(
            blocks * 512 < 1 << 20,
            "{}: {blocks} blocks",
            scratch.display()
        );
    }
}

/// Runs without /proc, as in a chroot.
#[test]
fn xattrs_and_acls_are_copied_without_proc() {
    let top = tempfile::tempdir_in(oracle::scratch()).unwrap();
    let make = "mkdir -p src/d && echo text >src/d/f && setfattr -n user.a -v b src/d/f && setfattr -n user.d -v e src/d && \
        setfacl -m u:$(id -u):r src/d/f && ln -s d/f src/l";
    let sh = |script: &str| {
        Command::new("sh")
            .args(["-ec", script])
            .current_dir(top.path())
            .output()
            .unwrap()
    };
    if !sh(make).status.success() || !sh("unshare -rm mount -t tmpfs none /proc").status.success() {
        return report_skip(
            "xattrs_and_acls_are_copied_without_proc",
            "attributes are not supported here, or /proc cannot be hidden",
        );
    }
    let program = oracle::under_test().display();
    let copies = || {
        let output = sh(&format!(
            "unshare -rm sh -c 'mount -t tmpfs none /proc && exec {program} -aAX src/ dst/'"
        ));
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
    };
    copies();
    let printed = |tree: &str| {
        let output = sh(&format!("cd {tree} && getfattr -d d d/f && getfacl d d/f"));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(printed("dst"), printed("src"));
    assert!(printed("dst").contains("user.a=\"b\""));
    sh("setfacl -b src/d/f && chmod 4750 src/d/f && chmod 700 src/d");
    copies();
    assert_eq!(printed("dst"), printed("src"));
}

/// Descriptors are readable by their names where root is unknown, as in a container without root.
#[test]
fn descriptors_are_named_in_a_user_namespace() {
    let name = "descriptors_are_named_in_a_user_namespace";
    let top = tempfile::tempdir_in(oracle::scratch()).unwrap();
    let user = 12345;
    let make = format!("mkdir src && echo >src/a && echo >src/b && chown -R {user}:{user} .");
    let made = Command::new("sh")
        .args(["-ec", &make])
        .current_dir(top.path())
        .status()
        .unwrap();
    let within = |script: &str| {
        Command::new("setpriv")
            .args([
                &format!("--reuid={user}"),
                &format!("--regid={user}"),
                "--clear-groups",
            ])
            .args(["unshare", "-Ur", "bash", "-ec", script, "bash"])
            .arg(oracle::under_test())
            .current_dir(top.path())
            .output()
            .unwrap()
    };
    if !made.success()
        || !within("test $(stat -c %u /proc/self) != 0")
            .status
            .success()
    {
        return report_skip(name, "an ordinary user cannot create a user namespace");
    }
    for options in [
        "--files-from=<(echo b)",
        "--exclude-from=<(echo a)",
        "--exclude-from=/dev/stdin",
        "--exclude-from=/proc/self/fd/0",
        "--filter='. /dev/fd/0'",
    ] {
        let input = if options.contains("filter") {
            "- a"
        } else {
            "a"
        };
        let script = format!("echo '{input}' | \"$1\" -a {options} src/ dst/; ls dst; rm -r dst");
        let output = within(&script);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed, "b\n", "{options}: {output:?}");
    }
    // A link of another user is still refused, although its owner looks like root.
    let planted = "ln -s /proc/self/fd/0 planted && chown -h 4242 planted";
    assert!(
        Command::new("sh")
            .args(["-ec", planted])
            .current_dir(top.path())
            .status()
            .unwrap()
            .success()
    );
    let output = within("echo a | \"$1\" -a --exclude-from=planted src/ dst/");
    assert_eq!(output.status.code(), Some(11), "{output:?}");
}

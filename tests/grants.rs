//! What a session of a server may access, whatever its client sends. A fake remote shell starts each session.

use crate::kit::{Scene, field_of, oracle, port_in, report_skip};
use landlock::{ABI, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _};
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A scene whose remote shell `shell` starts a session with a grant: `in/` is granted, `out/` is not; `src/` belongs to
/// the client.
struct Granted(Scene);

impl Granted {
    fn new(granted: &str) -> Granted {
        let scene = Scene::empty();
        for file in [
            "in/tree/f",
            "in/base/f",
            "out/secret",
            "out/tree/f",
            "src/new",
            "home/h",
        ] {
            scene.file(file, &format!("what {file} holds\n"));
        }
        scene
            .file("out/rules", "- *.secret\n")
            .file("out/list", "f\n");
        let program = oracle::under_test().display();
        let shell = format!("#!/bin/sh\ncd TOP/home\nexec {program} server session {granted}\n");
        scene.script("shell", &scene.placed(&shell));
        Granted(scene)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    /// Runs a client in the scene; `TOP` stands for the path of the scene.
    fn run(&self, line: &str) -> Output {
        let mut command = self.0.program(oracle::under_test());
        command
            .args(["-s", "-e", "./shell"])
            .args(self.0.words(line))
            .env("HOME", self.path("home"));
        command.output().expect("a program can be started")
    }

    /// Returns a listing of everything outside of the granted directory.
    fn outside(&self) -> String {
        let mut find = Command::new("find");
        find.args(["out", "home", "-printf", "%p %y %m %s %T@ %l\n"])
            .current_dir(self.0.top());
        let listed = find.output().unwrap();
        let mut lines: Vec<_> = String::from_utf8(listed.stdout)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines.join("\n")
    }

    fn succeeds(&self, line: &str) -> Output {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {output:?}");
        output
    }

    /// Checks that the run fails, changes nothing outside, and copies nothing from there.
    #[track_caller]
    fn is_kept_out(&self, line: &str) -> String {
        let before = self.outside();
        let output = self.run(line);
        assert!(!output.status.success(), "{line} succeeded: {output:?}");
        assert!(
            output.status.code().is_some_and(|code| code != 15),
            "{line}: {output:?}"
        );
        self.holds_nothing_of_outside(line, &before);
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    #[track_caller]
    fn holds_nothing_of_outside(&self, line: &str, before: &str) {
        assert_eq!(self.outside(), before, "{line}");
        let found = Command::new("grep")
            .args(["-rl", "what out/", "in", "got"])
            .current_dir(self.0.top())
            .output();
        let found = String::from_utf8(found.unwrap().stdout).unwrap();
        assert_eq!(found, "", "{line}: what is outside arrived");
    }
}

#[test]
fn session_copies_in_both_directions_within_its_roots() {
    let scene = Granted::new("--root TOP/in");
    scene.succeeds("-a host:TOP/in/tree/ got/");
    assert_eq!(
        std::fs::read(scene.path("got/f")).unwrap(),
        b"what in/tree/f holds\n"
    );
    scene.succeeds("-a src/ host:TOP/in/made/");
    scene.succeeds("-a --delete src/ host:TOP/in");
    assert_eq!(
        std::fs::read(scene.path("in/new")).unwrap(),
        b"what src/new holds\n"
    );
    assert!(!scene.path("in/tree").exists());
    scene.succeeds("-a --mkpath src/ host:TOP/in/a/b/c/");
    scene.succeeds("-a --backup --backup-dir=TOP/in/old --temp-dir=TOP/in src/ host:TOP/in/a/b/c/");
}

/// The kernel grants no new rights to a process that Landlock restricts, nor to its children.
#[test]
fn limited_session_is_restricted_by_the_kernel() {
    let can_restrict = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_write(ABI::V3))
        .and_then(Ruleset::create);
    if can_restrict.is_err() {
        report_skip(
            "grants::limited_session_is_restricted_by_the_kernel",
            "this kernel has no Landlock, or an old one",
        );
        return;
    }
    for (granted, is_restricted) in [
        ("--root TOP/in", true),
        ("--root TOP/in --read-only", true),
        ("--root / --read-only", true),
        ("--root /", false),
    ] {
        let scene = Granted::new(granted);
        let mut shell = Command::new(scene.path("shell"));
        let mut session = shell
            .env("HOME", scene.path("home"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // A session greets after it has been confined.
        let mut greeting = session.stdout.take().unwrap();
        greeting.read_exact(&mut [0]).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", session.id())).unwrap();
        drop(session.stdin.take());
        session.wait().unwrap();
        assert_eq!(
            status.contains("NoNewPrivs:\t1"),
            is_restricted,
            "{granted}"
        );
    }
}

#[test]
fn paths_outside_the_roots_are_not_accessed() {
    let scene = Granted::new("--root TOP/in");
    symlink("../out", scene.path("in/up")).unwrap();
    symlink(scene.path("out"), scene.path("in/abs")).unwrap();
    symlink("../out/secret", scene.path("in/tree/link")).unwrap();
    // A symlink that leads out behaves like a dangling symlink.
    let before = scene.outside();
    scene.succeeds("-ak host:TOP/in/ got/");
    scene.holds_nothing_of_outside("-ak", &before);
    assert!(scene.path("got/up").is_symlink() && scene.path("got/abs").is_symlink());
    std::fs::remove_dir_all(scene.path("got")).unwrap();
    std::fs::write(scene.path("list"), "secret\nf\n").unwrap();
    std::fs::write(
        scene.path("astray"),
        "up/secret\nabs/secret\n../out/secret\ntree/../../out/secret\n",
    )
    .unwrap();
    for line in [
        "-a --files-from=list host:TOP/out/ got/",
        "-a --files-from=list host:TOP/out/tree got/",
        "-a --files-from=list host:TOP/in/up/ got/",
        "-a --files-from=list host:TOP/in/../out got/",
        "-a --files-from=list --remove-source-files host:TOP/out/ got/",
        "-aL --files-from=astray host:TOP/in/ got/",
        "-a --files-from=astray --no-implied-dirs host:TOP/in/ got/",
        "-aR --files-from=astray --copy-unsafe-links host:TOP/in/ got/",
        "-a host:TOP/out/ got/",
        "-a host:TOP/out/secret got/",
        "-a host:TOP/in/../out/ got/",
        "-a host:TOP/in/up/ got/",
        "-a host:TOP/in/abs/ got/",
        "-aL host:TOP/in/up got/",
        "-aL host:TOP/in/tree/ got/",
        "-a --copy-unsafe-links host:TOP/in/tree/ got/",
        "-aR host:TOP/in/./up/secret got/",
        "-aR host:TOP/in/./../out/secret got/",
        "-a host:TOP/o*/s* got/",
        "-a host:h got/",
        "-a host:TOP/home/h got/",
        "-a host:../out/secret got/",
        "-a host:/proc/self/environ got/",
        "-a src/ host:TOP/out/",
        "-a src/ host:TOP/new/",
        "-a src/ host:TOP/in/../out/",
        "-a src/ host:TOP/in/up/",
        "-a src/ host:TOP/in/up/deeper/",
        "-a src/new host:TOP/in/abs/new",
        "-a --mkpath src/ host:TOP/other/a/b/",
        "-a --mkpath src/ host:TOP/in/up/a/b/",
        "-a src/ host:here/",
        "-a --delete src/ host:TOP/",
        "-a --delete src/ host:/",
    ] {
        let printed = scene.is_kept_out(line);
        // "No such file": as in rsync, leading `..` of a requested name are removed, and there is no `in/out`.
        let words = [
            "granted",
            "Permission denied",
            "symlink has no referent",
            "No such file",
            "found \"..\" dir",
        ];
        assert!(
            words.iter().any(|words| printed.contains(words)),
            "{line}: {printed}"
        );
    }
}

#[test]
fn option_directories_outside_the_roots_are_not_accessed() {
    let scene = Granted::new("--root TOP/in");
    let before = scene.outside();
    // A directory that is only a basis is reported as missing or rejected, and is never read.
    std::fs::copy(scene.path("out/tree/f"), scene.path("src/f")).unwrap();
    let at = std::fs::metadata(scene.path("out/tree/f"))
        .unwrap()
        .modified()
        .unwrap();
    std::fs::File::options()
        .write(true)
        .open(scene.path("src/f"))
        .unwrap()
        .set_modified(at)
        .unwrap();
    for option in [
        "--link-dest",
        "--copy-dest",
        "--clone-dest",
        "--compare-dest",
    ] {
        let output = scene.run(&format!(
            "-ai {option}=TOP/out/tree src/ host:TOP/in/made{option}/"
        ));
        let made = scene.path(&format!("in/made{option}/f"));
        assert!(
            made.exists(),
            "{option}: not sent over the link: {output:?}"
        );
        let printed = String::from_utf8_lossy(&output.stderr);
        let is_reported = printed.contains("out/tree: outside of the granted directories");
        assert!(
            output.status.code() == Some(23) && is_reported,
            "{option}: {output:?}"
        );
        use std::os::unix::fs::MetadataExt as _;
        assert_eq!(std::fs::metadata(made).unwrap().nlink(), 1, "{option}");
        assert_eq!(scene.outside(), before, "{option}");
    }
    std::fs::remove_file(scene.path("src/f")).unwrap();
    for dir in std::fs::read_dir(scene.path("in")).unwrap().flatten() {
        let _ = std::fs::remove_file(dir.path().join("f"));
    }
    for line in [
        "-a --temp-dir=TOP/out src/ host:TOP/in/",
        "-a --files-from=:TOP/out/list host:TOP/in/tree/ got/",
        "-a --files-from=host:TOP/out/list host:TOP/in/tree/ got/",
    ] {
        scene.is_kept_out(line);
    }
    // These runs do less than requested, or nothing, but never touch anything outside.
    std::fs::write(scene.path("in/new"), "older\n").unwrap();
    std::fs::write(scene.path("in/gone"), "older\n").unwrap();
    std::fs::write(scene.path("in/tree/.rules"), ". TOP/out/rules\n").unwrap();
    for line in [
        "-a --backup --backup-dir=TOP/out/old src/ host:TOP/in/",
        "-a --delete --backup --backup-dir=TOP/out/old src/ host:TOP/in/",
        "-a --backup --backup-dir=../out/old src/ host:TOP/in/",
        "-a --partial-dir=TOP/out src/ host:TOP/in/",
        "-a --partial-dir=../out src/ host:TOP/in/",
        "-a --delay-updates --partial-dir=TOP/out src/ host:TOP/in/",
        "-a -M--log-file=TOP/out/log src/ host:TOP/in/",
        "-a -M--partial-dir=TOP/out src/ host:TOP/in/",
        "-a -M--temp-dir=TOP/out src/ host:TOP/in/",
        "-a -M--files-from=TOP/out/list host:TOP/in/tree/ got/",
        "-a -f:_TOP/out/rules host:TOP/in/tree/ got/",
        "-a -f:_.rules host:TOP/in/tree/ got/",
    ] {
        scene.run(&line.replace("_", " "));
        scene.run(line);
        scene.holds_nothing_of_outside(line, &before);
        std::fs::write(
            scene.path("src/new"),
            format!("what src/new holds after {line}\n"),
        )
        .unwrap();
    }
}

#[test]
fn twins_of_new_files_are_within_the_roots() {
    use std::os::unix::fs::MetadataExt as _;
    let scene = Granted::new("--root TOP/in");
    // The client has what an earlier copy has under another name, and what only files outside have.
    for (name, original) in [("renamed", "in/base/f"), ("stolen", "out/secret")] {
        let original = scene.path(original);
        let made = scene.path("src").join(name);
        std::fs::copy(&original, &made).expect("scratch can be written");
        let at = std::fs::metadata(&original).and_then(|it| it.modified());
        std::fs::File::options()
            .write(true)
            .open(&made)
            .and_then(|file| file.set_modified(at?))
            .expect("scratch can be written");
    }
    for link in ["in/base/away", "in/made/away"] {
        let link = scene.path(link);
        std::fs::create_dir_all(link.parent().expect("it is below"))
            .expect("scratch can be written");
        symlink(scene.path("out"), link).expect("scratch can be written");
    }
    let before = scene.outside();
    for own in ["--detect-renamed", "--detect-renamed=quick"] {
        for tree in ["link", "copy", "clone", "compare"] {
            let to = format!("in/made/{tree}{own}");
            let output = scene.run(&format!(
                "-ai --info=rename {own} --{tree}-dest=TOP/in/base src/ host:TOP/{to}/"
            ));
            let printed = String::from_utf8_lossy(&output.stdout);
            let how = if tree == "link" { "linked" } else { "copied" };
            assert!(output.status.success(), "{own} {tree}: {output:?}");
            let line = format!("{how} {}/f => renamed", scene.path("in/base").display());
            assert!(printed.contains(&line), "{own} {tree}: {output:?}");
            assert!(!printed.contains("=> stolen"), "{own} {tree}: {output:?}");
            let stolen = std::fs::metadata(scene.path(&to).join("stolen"));
            assert_eq!(stolen.expect("it was sent").nlink(), 1, "{own} {tree}");
            assert_eq!(scene.outside(), before, "{own} {tree}");
        }
    }
}

#[test]
fn links_of_other_users_are_not_followed_within_a_root() {
    let scene = Granted::new("--root TOP/in");
    let printed = scene.is_kept_out("-a -M--insecure-links src/ host:TOP/in/tree/");
    assert!(
        printed.contains("--insecure-links is not supported"),
        "{printed}"
    );
    symlink("tree", scene.path("in/link")).unwrap();
    scene.succeeds("-a src/ host:TOP/in/link/");
    if std::os::unix::fs::lchown(scene.path("in/link"), Some(12345), None).is_err() {
        return report_skip(
            "grants::links_of_other_users",
            "only root can change the owner of links",
        );
    }
    for line in [
        "-a src/ host:TOP/in/link/",
        "-a -M--files-from=TOP/in/link/f host:TOP/in/tree/ got/",
    ] {
        let printed = scene.is_kept_out(line);
        assert!(
            printed.contains("refusing to follow a symlink owned by an untrusted user"),
            "{line}: {printed}"
        );
    }
}

#[test]
fn read_only_grant_permits_no_change() {
    for granted in ["--root TOP/in --read-only", "--root / --read-only"] {
        let scene = Granted::new(granted);
        let all = || {
            let mut found = Command::new("find");
            found
                .args(["in", "out", "-printf", "%p %y %m %s %T@ %C@\n"])
                .current_dir(scene.0.top());
            found.output().unwrap().stdout
        };
        let before = all();
        scene.succeeds("-a host:TOP/in/tree/ got/");
        scene.succeeds("host:TOP/in/");
        for line in [
            "-a src/ host:TOP/in/",
            "-a --delete src/ host:TOP/in/",
            "-an src/ host:TOP/in/",
            "-a --remove-source-files host:TOP/in/tree/ got/",
            "-a -M--remove-source-files host:TOP/in/tree/ got/",
            "-a --mkpath src/ host:TOP/in/a/b/",
        ] {
            let printed = scene.is_kept_out(line);
            assert!(
                printed.contains("the grant of this machine's key is read-only"),
                "{line}: {printed}"
            );
        }
        scene.run("-a -M--log-file=TOP/in/log host:TOP/in/tree/ got/");
        assert_eq!(all(), before, "{granted}");
    }
}

/// A device node that a client creates, or swaps in for a file that another of its sessions is about to open, gives
/// access to the whole disk.
#[test]
fn devices_are_not_created_within_a_root() {
    use std::os::unix::fs::FileTypeExt as _;
    let scene = Granted::new("--root TOP/in");
    for node in [
        &["f", "p"][..],
        &["zero", "c", "1", "5"],
        &["disk", "b", "7", "0"],
    ] {
        let made = Command::new("mknod")
            .args(node)
            .current_dir(scene.path("src"))
            .status()
            .expect("coreutils are installed");
        if !made.success() {
            return crate::kit::report_skip(
                "devices_are_not_created_within_a_root",
                "devices cannot be created here",
            );
        }
    }
    let output = scene.run("-a src/ host:TOP/in/");
    assert_eq!(output.status.code(), Some(23), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        printed.contains("mknod") && printed.contains("zero") && printed.contains("disk"),
        "{printed}"
    );
    assert!(
        std::fs::symlink_metadata(scene.path("in/f"))
            .unwrap()
            .file_type()
            .is_fifo()
            && scene.path("in/new").exists()
    );
    assert!(!scene.path("in/zero").exists() && !scene.path("in/disk").exists());
    // A grant of everything includes devices.
    let scene = Granted::new("--root /");
    let made = Command::new("mknod")
        .args(["zero", "c", "1", "5"])
        .current_dir(scene.path("src"))
        .status()
        .unwrap();
    assert!(made.success());
    scene.succeeds("-a src/ host:TOP/in/");
    assert!(
        std::fs::symlink_metadata(scene.path("in/zero"))
            .unwrap()
            .file_type()
            .is_char_device()
    );
}

/// The content of a device is below no directory, so only keys with access to everything may use it.
#[test]
fn devices_are_not_accessed_within_a_root() {
    let lines = [
        "-r --write-devices src/ host:TOP/in/",
        "-r --copy-devices host:TOP/in/ got/",
    ];
    let scene = Granted::new("--root TOP/in");
    for line in lines {
        let printed = scene.is_kept_out(line);
        assert!(
            printed.contains("is not permitted by a grant with --root"),
            "{line}: {printed}"
        );
        assert_eq!(scene.run(line).status.code(), Some(4), "{line}");
    }
    // Devices at the client are not restricted.
    scene.succeeds("-r --copy-devices src/ host:TOP/in/");
    scene.succeeds("-r --write-devices host:TOP/in/ got/");
    let scene = Granted::new("--root / --read-only");
    assert!(
        scene
            .is_kept_out(lines[0])
            .contains("the grant of this machine's key is read-only")
    );
    scene.succeeds(lines[1]);
    let scene = Granted::new("--root /");
    lines
        .into_iter()
        .for_each(|line| drop(scene.succeeds(line)));
}

#[test]
fn missing_root_is_reported() {
    let scene = Granted::new("--root TOP/none");
    let printed = scene.is_kept_out("-a host:TOP/in/ got/");
    assert!(
        printed.contains("cannot open any granted directory"),
        "{printed}"
    );
    // The client receives the error; the connection does not just break.
    assert_eq!(scene.run("-a src/ host:TOP/in/").status.code(), Some(3));
    let scene = Granted::new("--root /");
    scene.succeeds("-a host:TOP/in/tree/ got/");
    scene.succeeds("-a host:h host:./h got/");
    assert_eq!(
        std::fs::read(scene.path("got/h")).unwrap(),
        b"what home/h holds\n"
    );
    assert!(!scene.run("-a host: got/").status.success() || scene.path("got/h").exists());
}

/// Returns a command prefix that makes the system call with this number fail with ENOSYS.
pub fn without_call(number: u32) -> String {
    let prctl = if cfg!(target_arch = "x86_64") {
        157
    } else {
        167
    };
    // BPF: load the number of the call; if it is the given one, return ENOSYS; otherwise allow. PR_SET_NO_NEW_PRIVS,
    // PR_SET_SECCOMP.
    let script = format!(
        "my $f = pack(\"SCCL\" x 4, 0x20,0,0,0, 0x15,0,1,{number}, 6,0,0,0x50026, 6,0,0,0x7fff0000); \
         my $p = pack(\"S x6 P\", 4, $f); \
         syscall({prctl}, 38, 1, 0, 0, 0) == 0 && syscall({prctl}, 22, 2, $p) == 0 or exit 77; exec @ARGV"
    );
    format!("perl -e '{script}'")
}

/// The server rejects the session instead of serving it unconfined.
#[test]
fn kernel_without_openat2_rejects_limited_grants() {
    let scene = Granted::new("--root TOP/in");
    // `openat2` has this number on every architecture.
    let before = without_call(437);
    let sh = |line: &str| {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("exec {before} {line}")])
            .current_dir(scene.path(""))
            .stdin(Stdio::null());
        command
            .env("SPARSYNC_CONFIG_DIR", "config")
            .output()
            .unwrap()
    };
    if sh("true").status.code() != Some(0) {
        return report_skip(
            "grants::kernel_without_openat2",
            "perl cannot block a system call here",
        );
    }
    let shell = std::fs::read_to_string(scene.path("shell")).unwrap();
    std::fs::write(
        scene.path("shell"),
        shell.replace("exec ", &format!("exec {before} ")),
    )
    .unwrap();
    let printed = scene.is_kept_out("-a host:TOP/in/tree got/");
    assert!(
        printed.contains("openat2: Function not implemented (38)"),
        "{printed}"
    );
    let grant = "server grant SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0 --name x";
    let output = sh(&format!(
        "{} {grant} --root /home",
        oracle::under_test().display()
    ));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(4) && printed.contains("a grant without --root works"),
        "{printed}"
    );
    let output = sh(&format!("{} {grant}", oracle::under_test().display()));
    assert!(output.status.success(), "{output:?}");
}

/// A key that is limited to some directories cannot create files there that give access to more.
#[test]
fn files_within_a_root_get_no_privileged_attributes() {
    const NAME: &str = "files_within_a_root_get_no_privileged_attributes";
    if !rustix::process::geteuid().is_root() {
        return report_skip(NAME, "only root can create such files");
    }
    let scene = Scene::new();
    let sh = |line: &str| {
        let output = Command::new("sh")
            .args(["-ec", line])
            .current_dir(scene.path(""))
            .output()
            .unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    sh(
        "rm -rf src && mkdir -p src/d && echo text >src/d/tool && chmod 6755 src/d/tool && chmod 2755 src/d",
    );
    sh("ln -s /etc/passwd src/link && setfattr -n user.a -v b src/d/tool");
    if !Command::new("setfattr")
        .args(["-n", "security.test", "-v", "c", "src/d/tool"])
        .current_dir(scene.path(""))
        .status()
        .unwrap()
        .success()
    {
        return report_skip(
            NAME,
            "the scratch directory does not support security attributes",
        );
    }
    let copy = |line: &str| {
        let output = scene
            .command("client", &format!("--transport=quic -aX {line}"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    };
    let seen = |dir: &str| {
        sh(&format!(
            "cd {dir}; stat -c %a d d/tool; getfattr -m- d/tool | grep -c security || :; readlink link"
        ))
    };
    let as_it_is = "2755\n6755\n1\n/etc/passwd\n";
    assert_eq!(seen("src"), as_it_is);
    scene.enroll("--root TOP/in --root TOP/out");
    copy("src/ host:TOP/in/copy/");
    assert_eq!(
        seen("in/copy"),
        "2755\n755\n0\n/rsyncd-munged//etc/passwd\n"
    );
    assert!(sh("getfattr -m- in/copy/d/tool").contains("user.a"));
    // What is there already loses them too, whether or not its directory is listed.
    for dir in ["in/equal", "in/listed"] {
        sh(&format!("cp -a --preserve=all src {dir} && rm {dir}/link"));
    }
    sh("touch in/listed/d/more");
    copy("src/ host:TOP/in/equal/");
    copy("src/ host:TOP/in/listed/");
    assert_eq!(
        [seen("in/equal"), seen("in/listed")],
        [seen("in/copy"), seen("in/copy")]
    );
    // A second run does nothing, and a pull restores the symlink.
    let again = scene
        .command("client", "--transport=quic -aXi src/ host:TOP/in/copy/")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&again.stdout), "");
    copy("host:TOP/in/copy/ back/");
    assert_eq!(sh("readlink back/link"), "/etc/passwd\n");
    scene.enroll("--allow-setuid --no-munge");
    copy("src/ host:TOP/in/other/");
    assert_eq!(seen("in/other"), as_it_is);
}

/// What a key writes belongs to the owner of its grant, whatever the client requests.
#[test]
fn an_owner_gets_what_its_key_writes() {
    const NAME: &str = "an_owner_gets_what_its_key_writes";
    if !rustix::process::geteuid().is_root() {
        return report_skip(NAME, "only root can give files to others");
    }
    let scene = Scene::new();
    let sh = |line: &str| {
        let output = Command::new("sh")
            .args(["-ec", line])
            .current_dir(scene.path(""))
            .output()
            .unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    sh(
        "chmod 755 . && chown nobody:daemon in && rm in/f && mkdir src/d && echo x >src/d/tool && ln -s new src/link",
    );
    sh("chown -Rh 12345:12346 src && chmod 4755 src/d/tool && mkfifo src/pipe && chmod 2777 src/d");
    let others = || sh("find in ! '(' -user nobody -group daemon ')' -printf '%p %U:%G '");
    scene.enroll("--owner=nobody:daemon");
    for (line, code) in [
        ("-a src/ host:TOP/in/plain/", 0),
        ("-a --chown=root:root src/ host:TOP/in/mapped/", 0),
        ("-a --numeric-ids -M--super src/ host:TOP/in/super/", 23),
        ("-a --fake-super src/ host:TOP/in/fake/", 0),
        ("-a --inplace src/ host:TOP/in/plain/", 0),
        // What root keeps from the user stays out of reach.
        ("-a src/ host:TOP/out/", 23),
        ("-a host:TOP/server/identity.pem got/", 23),
    ] {
        let output = scene
            .command("client", &format!("--transport=quic {line}"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{line}: {output:?}");
        assert_eq!(others(), "", "{line}");
    }
    for dir in ["plain", "mapped", "super", "fake"] {
        assert!(scene.path("in").join(dir).join("d/tool").exists(), "{dir}");
    }
    assert!(!scene.path("out/new").exists() && !scene.path("got/identity.pem").exists());
    // Relative paths begin at the home directory of the owner, as at a login.
    let output = scene
        .command("client", "--transport=quic -a host:none got/")
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("link_stat \"/"),
        "{output:?}"
    );
    // The right stays until it is changed by name.
    let pin = field_of(&scene.well("grants --json"), "pin");
    let printed = scene.well(&format!("grant {pin} --read-only"));
    assert!(
        printed.contains("reads and writes / as nobody:daemon -> reads / as nobody:daemon"),
        "{printed}"
    );
    assert!(
        scene
            .well("grants --json")
            .contains(r#""owner":"nobody:daemon""#)
    );
    let printed = scene.well(&format!("grant {pin} --read-write --no-owner"));
    assert!(
        printed.contains("reads / as nobody:daemon -> reads and writes /\n"),
        "{printed}"
    );
    let output = scene
        .command("client", "--transport=quic -a src/ host:TOP/in/root/")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(sh("stat -c %u:%g in/root/d/tool"), "12345:12346\n");
}

/// A grant for a user that does not exist, or that the server cannot become, permits nothing.
#[test]
fn an_owner_that_no_session_can_be_is_refused() {
    const GRANT: &str = "server grant SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0 --name x";
    let scene = Scene::new();
    let refused = |command: &mut Command, code: i32, words: &str| {
        let output = command.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(code) && printed.contains(words),
            "{words}: {output:?}"
        );
    };
    let grant = |owner: &str| scene.command("server", &format!("{GRANT} --owner={owner}"));
    refused(
        &mut grant("no-such-user"),
        5,
        "cannot run sessions as no-such-user: no such user",
    );
    refused(
        &mut grant("root:no-such-group"),
        5,
        "cannot run sessions as root:no-such-group: no such group",
    );
    for owner in ["", ":daemon", "daemon:", "a:b:c"] {
        refused(&mut grant(owner), 1, "expected USER or USER:GROUP");
    }
    assert!(scene.well("grants").contains("no grants"));
    if !rustix::process::geteuid().is_root() {
        return report_skip(
            "an_owner_that_no_session_can_be",
            "only root can log in as others",
        );
    }
    // A user that was removed after the grant, or a grant that another program has written.
    scene.enroll("--owner=nobody");
    let list = scene.path("server/grants.toml");
    let text = std::fs::read_to_string(&list).unwrap();
    std::fs::write(&list, text.replace("\"nobody\"", "\"no-such-user\"")).unwrap();
    let copy = "--transport=quic -a src/ host:TOP/in/";
    refused(
        &mut scene.command("client", copy),
        5,
        "cannot run sessions as no-such-user: no such user",
    );
    assert!(!scene.path("in/new").exists());
    // An ordinary user can only name itself.
    use std::os::unix::process::CommandExt as _;
    home_of_nobody(&scene);
    let own = |line: &str| {
        let mut command = scene.command("nobody", line);
        command.uid(65534).gid(65534);
        command
    };
    refused(
        &mut own(&format!("{GRANT} --owner=daemon")),
        4,
        "only a server of root can run sessions as other users",
    );
    refused(
        &mut own(&format!("{GRANT} --owner=nobody:daemon")),
        4,
        "only a server of root",
    );
    let output = own(&format!("{GRANT} --owner=nobody")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Makes a configuration directory for the user nobody.
fn home_of_nobody(scene: &Scene) {
    std::fs::set_permissions(scene.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(scene.path("nobody")).unwrap();
    std::fs::set_permissions(scene.path("nobody"), std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(scene.path("nobody"), Some(65534), Some(65534)).unwrap();
}

/// A login of ssh has other rights than a grant, so a run that uses one in place of the other reports that.
#[test]
fn revoked_key_is_reported_if_ssh_copies() {
    let scene = Scene::new();
    scene.enroll("--root TOP/in");
    let copy = |words: &str| {
        let output = scene.copy_or_ask(&format!("{words} src/ host:TOP/in/"));
        assert_eq!(output.status.code(), Some(0), "{words}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(copy("-a"), "");
    scene.well("revoke laptop");
    let denied = "sparsync: host: using a remote shell: its server denies access: this machine's key has no grant there\n\
                  hint: request access with `sparsync enroll host`\n";
    // Each run asks the server again.
    for _ in 0..2 {
        assert_eq!(copy("-a"), denied);
    }
    assert_eq!(copy("-aq"), "");
}

/// If the server does not answer, ssh copies in its place, which is reported if its rights differ from the grant.
#[test]
fn ssh_in_place_of_a_limited_grant_is_reported() {
    let scene = Scene::new();
    scene.enroll("--root TOP/in");
    scene.well("stop --now");
    let copy = |words: &str| {
        let output = scene.copy_or_ask(&format!("{words} src/ host:TOP/in/"));
        assert_eq!(output.status.code(), Some(0), "{words}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let file = scene.path("client/hosts.toml");
    let hosts = std::fs::read_to_string(&file).unwrap();
    assert_eq!(copy("-a"), "");
    std::fs::write(&file, format!("{hosts}is_limited = true\n")).unwrap();
    let port = port_in(&hosts);
    let shell = "sparsync: host: using a remote shell: no connection to the server";
    let refused = format!(
        "{shell} at port {port}: connection refused\nhint: start the server with `sparsync server start host`\n"
    );
    assert_eq!(copy("-a"), refused);
    // The next run does not try the server, and prints why.
    let earlier = format!(
        "{shell} within the last ten minutes: port {port}: connection refused\n\
         hint: if `sparsync server status host` finds it running, the next run tries it again\n"
    );
    assert_eq!(copy("-a"), earlier);
    assert_eq!(copy("-avv").matches(&earlier).count(), 1);
    assert_eq!(copy("-aq"), "");
    // If ssh fails as well, both reasons are printed.
    std::fs::write(&file, hosts).unwrap();
    scene.script("ssh", "#!/bin/sh\n# also without BatchMode\nexit 255\n");
    let output = scene.copy_or_ask("-a src/ host:TOP/in/");
    let printed = String::from_utf8_lossy(&output.stderr);
    let words = format!(
        "sparsync: cannot reach host (127.0.0.1 port {port}): connection refused\nrsync: connection unexpectedly"
    );
    assert!(
        output.status.code() == Some(255) && printed.starts_with(&words),
        "{output:?}"
    );
}

/// The server of an enrolled host is one route to it; ssh, with its own permissions, is another.
#[test]
fn request_beyond_the_grant_falls_back_to_ssh() {
    let scene = Scene::new();
    scene.enroll("--root TOP/in");
    // If the server takes long to answer, the client starts a shell beside it, which may not ask for a password. Here it
    // would have to, so it neither wins nor counts.
    let asks = "#!/bin/sh\ncase $* in *BatchMode*) exit 255;; esac\n";
    let answers = std::fs::read_to_string(scene.path("ssh")).unwrap();
    scene.script("ssh", &answers.replace("#!/bin/sh\n", asks));
    let program = oracle::under_test().display().to_string();
    let (top, path) = (
        scene.path("").display().to_string(),
        std::env::var("PATH").unwrap(),
    );
    std::fs::write(scene.path("out/list"), "f\n").unwrap();
    // Returns the exit code, the number of sessions over ssh, and the output.
    let copy = |line: &str| {
        let mut copy = scene.command("client", &format!("--rsync-path={program} {line}"));
        let output = copy.env("PATH", format!("{top}:{path}")).output().unwrap();
        let sshed = std::fs::read_to_string(scene.path("sshed")).unwrap_or_default();
        let _ = std::fs::remove_file(scene.path("sshed"));
        let printed = [output.stdout, output.stderr].concat();
        (
            output.status.code().unwrap(),
            sshed.matches("--server").count(),
            String::from_utf8(printed).unwrap(),
        )
    };
    let goes = |line: &str, want: (i32, usize)| {
        let (code, sshed, printed) = copy(line);
        assert_eq!((code, sshed), want, "{line}: {printed}");
        printed
    };
    goes("-a host:TOP/in/ got", (0, 0));
    for line in [
        "-a host:TOP/out/ host:TOP/in/f got1",
        "-aR host:TOP/in/f got2",
        "-a --files-from=:TOP/out/list host:TOP/in got3",
        "-a src/ host:TOP/out/new/",
        "-a --exclude-from=out/list src/ host:TOP/new/",
        "-a --link-dest=TOP/out/new src/ host:TOP/in/linked/",
    ] {
        goes(line, (0, 1));
    }
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!(
        std::fs::metadata(scene.path("in/linked/new"))
            .unwrap()
            .nlink(),
        2
    );
    // The fallback prints no message twice and does not change errors that are unrelated to roots.
    let printed = goes("-avv src/ none host:TOP/out/again/", (23, 1));
    // On a busy machine, TLS may answer first.
    let is_reached = printed.contains("using QUIC") || printed.contains("using TLS");
    assert!(
        printed.contains("using a remote shell: its server denies access: \"") && is_reached,
        "{printed}"
    );
    assert_eq!(
        (
            printed.matches("link_stat").count(),
            printed.matches("sending incremental").count()
        ),
        (1, 1),
        "{printed}"
    );
    assert!(goes("-a host:TOP/in/none got4", (23, 0)).contains("No such file"));
    goes("-a host:TOP/in/ got5", (0, 0));
    for operand in [
        "--transport=quic host:",
        "--transport=tls host:",
        "sparsync://host",
    ] {
        let printed = goes(&format!("-a src/ {operand}TOP/out/none/"), (3, 0));
        assert!(
            printed.contains("copy over ssh, or grant more: `sparsync enroll --root"),
            "{printed}"
        );
    }
    let grants = std::fs::read_to_string(scene.path("server/grants.toml")).unwrap();
    std::fs::write(
        scene.path("server/grants.toml"),
        grants.replace("read_only = false", "read_only = true"),
    )
    .unwrap();
    goes("-a src/ host:TOP/in/", (0, 1));
    goes("-a --remove-source-files host:TOP/in/new got6", (0, 1));
    assert!(goes("-a --transport=quic src/ host:TOP/in/", (3, 0)).contains("copy over ssh"));
    scene.script("ssh", &format!("{asks}echo --server >>sshed\nexit 255\n"));
    let printed = goes("-a src/ host:TOP/in/none/", (255, 1));
    assert!(
        printed.contains("is read-only\n") && printed.contains("connection unexpectedly"),
        "{printed}"
    );
    assert!(!scene.path("out/none").exists() && !scene.path("in/none").exists());
}

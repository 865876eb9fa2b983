//! The remote shell: its command line, the program that answers at the other end, and failures there.

use crate::kit::{self, FAKE_SSH, Scene, World, oracle, synctest, until};
use std::ffi::{OsStr, OsString};
use std::ops::Deref;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A scene with programs that replace ssh, and a small source.
struct Shells(Scene);

impl Deref for Shells {
    type Target = Scene;

    fn deref(&self) -> &Scene {
        &self.0
    }
}

/// A script that writes its arguments to the file `words`, each terminated by a zero byte, and exits.
const RECORDER: &str = "#!/bin/sh\nprintf '%s\\0' \"$@\" > words\n";

impl Shells {
    fn new() -> Shells {
        let scene = Scene::empty();
        scene.script("rec", RECORDER);
        scene.file("src/a", "a\n").file("list", "a\n");
        std::fs::create_dir(scene.path("bin")).unwrap();
        scene.script("bin/ssh", RECORDER);
        // Called by this name, sparsync also calls the program at the other end `rsync`.
        std::os::unix::fs::symlink(oracle::under_test(), scene.path("rsync")).unwrap();
        Shells(scene)
    }

    /// Runs a program in the scene.
    fn run(&self, program: &Path, args: &[Vec<u8>], vars: &[(&str, &str)]) -> Output {
        let mut command = self.program(program);
        command
            .args(args.iter().map(|arg| OsStr::from_bytes(arg)))
            .envs(vars.iter().copied());
        command.output().expect("a program can be started")
    }

    /// Returns the arguments that a program passes to the remote shell.
    fn words(&self, program: &Path, args: &[Vec<u8>], vars: &[(&str, &str)]) -> Vec<Vec<u8>> {
        let _ = std::fs::remove_file(self.path("words"));
        let output = self.run(program, args, vars);
        let Ok(words) = std::fs::read(self.path("words")) else {
            panic!(
                "{args:?}: the shell was not started: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        };
        words.split(|&b| b == 0).map(<[u8]>::to_vec).collect()
    }

    /// Asserts that both programs pass the same arguments to the remote shell, except for the letter of sparsync, and
    /// that sparsync requests the whole list in a pull with `-H`.
    fn same_words(&self, args: &[Vec<u8>], vars: &[(&str, &str)]) {
        let mut wanted = self.words(oracle::rsync(), args, vars);
        if wanted.contains(&b"--sender".to_vec()) {
            for word in wanted
                .iter_mut()
                .filter(|word| word.starts_with(b"-") && word.ends_with(b"CIvu"))
            {
                let letters = String::from_utf8(std::mem::take(word)).expect("letters are ASCII");
                let is_whole = letters
                    .split("e.")
                    .next()
                    .is_some_and(|options| options.contains('H'));
                *word = if is_whole {
                    letters.replace("e.i", "e.")
                } else {
                    letters
                }
                .into_bytes();
            }
        }
        let mut got = self.words(&self.path("rsync"), args, vars);
        for word in got
            .iter_mut()
            .filter(|word| word.starts_with(b"-") && word.ends_with(b"CIvuY"))
        {
            word.pop();
        }
        let shown = |words: &[Vec<u8>]| {
            words
                .iter()
                .map(|word| word.escape_ascii().to_string())
                .collect::<Vec<_>>()
                .join("\n    ")
        };
        assert!(
            wanted == got,
            "{}\n  rsync:\n    {}\n  sparsync:\n    {}",
            shown(args).replace("\n    ", " "),
            shown(&wanted),
            shown(&got)
        );
    }

    /// Like [`Shells::same_words`], with arguments that are split at blanks.
    fn same_line(&self, line: &str, vars: &[(&str, &str)]) {
        self.same_words(&words(line), vars);
    }
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split_whitespace()
        .map(|word| word.as_bytes().to_vec())
        .collect()
}

/// Options that must reach the other end as rsync writes them, alone and in combination.
const OPTIONS: &str = "
    -a | -v | -vv | -vvvvvvvvvvvv | -q | -qv | -b | -u | -n | -ni | -l | -L | -k | -K | -KLk | -m | -O | -J | -y | -yy
    -yy --link-dest=x | -W | --no-W | -H | -o | -g | -D | --devices | --specials | -D --no-specials | -a --no-devices
    -t | -U | -UU | --open-noatime | -U --open-noatime | -p | -E | -pE | -A | -A --no-p | -A --no-A | -X | -XX | -XX --no-X
    -r | -c | -C | -I | -R | -d | -rd | -dd | -x | -xx | -S | -8 | -h | -F | -FF | -0 | -T tmp | --temp-dir= | -B 900 | -B1k
    -@3 | -@0 | -@-1 | --modify-window=-2 | --old-dirs | --list-only | --list-only -r | --no-r | -a --no-r
    -z | -zz | -zzz | -z --no-z | --no-z --zc=lz4 | --zc=lz4 --no-z | --zc=zstd --zl=9 | -z --zc=none | --zc=auto
    -z --zc=auto | --zc=zlib | --zc=zlibx | --old-compress | --new-compress --old-compress | -z --old-compress --zc=lz4
    --zc=zlib -zz | -z --compress-level=0 | --compress-level=-1 | -z --skip-compress=gz/jpg | --skip-compress=
    --compress-threads=2 -z | --msgs2stderr | --no-msgs2stderr | --stderr=all | --stderr=client -v | --stderr=errors
    -i | -ii | -vi | -vvi | -vvii | --out-format=%n | --out-format=%i | --out-format=%o | --out-format=%C | -v --out-format=%n
    --out-format= | -i --out-format=%n | -ii --out-format=%i | -qi | --log-file=log --log-file-format=%i
    -P | -vP | -qP | -P --info=name0 | --progress | --partial | --timeout=7 | --timeout=0 | --bwlimit=100 | --bwlimit=1m
    --bwlimit=0 | -b --backup-dir=x | --backup-dir=x --no-backup | -b --suffix=.o | -b --suffix=~ | --suffix=.o
    --suffix=~ --backup-dir=x | --suffix= --backup-dir=x | --cc=md5 | --cc=auto | --cc=xxh3,md5 | --cc=none | --checksum-seed=5
    -r --delete | -r --del | -r --delete-before | -r --delete-delay | -r --delete-after | -r --delete-excluded
    -r --delete-excluded --delete-after | -r --delete --delete-excluded --del | -r --del --delete-delay | -d --delete
    --max-delete=5 | --max-delete=0 | --max-delete=-9 | --max-delete=-2147483648 | --min-size=1k | --max-size=1.5mb-1
    --max-size=1m --min-size=2 | --force | --super | --no-super | --fake-super | --size-only | --stats | -vv --stats
    --max-alloc=2g | --delete-missing-args | --ignore-missing-args | --ignore-missing-args --delete-missing-args
    --partial-dir=.p | --partial --partial-dir=.p | --partial-dir=/x/ | --partial-dir=a//b/ | --delay-updates
    --delay-updates --partial-dir=.p | --partial --delay-updates | --inplace --partial | --ignore-errors
    -r --delete --ignore-errors | --copy-unsafe-links | --safe-links | --numeric-ids | --usermap=a:b | --groupmap=a:b
    --chown=a:b | --chown=a --numeric-ids | --usermap=0:1 --groupmap=0:1 --no-o | --ignore-existing | --existing
    --existing --ignore-existing | --ignore-non-existing | --fsync | --link-dest=../x --link-dest=/y | --compare-dest=x
    --copy-dest=x | --compare-dest=x -T z --mkpath --fsync | --append | --append-verify | --append --append | --inplace
    --append --inplace | --files-from=list | --files-from=- -0 | --files-from=list -0 --no-R | -a --files-from=list
    -ar --files-from=list | -R --no-implied-dirs | --no-implied-dirs | --write-devices | --remove-source-files
    --remove-sent-files | --copy-devices | --preallocate | --mkpath | -M--fake-super | -M--foo -M-x | -M--log-file=/x -v
    --chmod=u+x | --exclude=x | --filter=P_x | --munge-links | --no-inc-recursive -r | -a --no-i-r | -r --i-r | -rm
    -r --delete -m | --trust-sender | --insecure-links | --drop-D -D | --stop-after=3 | --no-blocking-io | --outbuf=L
    --sockopts=x | --port=22 | --address=1.2.3.4 | --no-motd | --protocol=31
    -aHAXSxz --numeric-ids --delete -vP | -avz --stats -h | -D --copy-devices --write-devices --preallocate --remove-source-files
    --info=name | --info=name2 | --info=name2 -i | --info=del,copy2,stats | --info=all | --info=all1 | --info=all4 | --info=none
    --info=all0,progress2 | --info=all,name0 | --info=all2,del0 | --info=all2,flist0 | --info=none,name | --info=progress2
    --info=backup,remove,skip,symsafe,mount,nonreg,misc,flist,copy | --info=stats0 | --stats --info=stats3 | -v --info=name0
    -v --info=copy | -vv --info=flist0,misc0 | --info=none --info=all | -M-v --info=del
    -s | -avs --delete -M--fake-super | -s --files-from=list
    --rsync-path=/opt/rsync | -6 | -4 -e./bin/ssh
";

#[test]
fn remote_command_line_matches_rsync() {
    let scene = Shells::new();
    let lines = OPTIONS
        .lines()
        .flat_map(|line| line.split(" | "))
        .map(str::trim)
        .filter(|line| !line.is_empty());
    for line in lines.chain([""]) {
        for operands in ["src/ host:d", "u@host:s :t d"] {
            scene.same_line(
                &format!("-e ./rec {line} {operands}").replace(
                    ":s :t d",
                    if line.contains("files-from") {
                        ":s d"
                    } else {
                        ":s :t d"
                    },
                ),
                &[],
            );
        }
    }
    scene.same_line("-e ./rec --files-from=:far host:s d", &[]);
    scene.same_line("-e ./rec --files-from=:far -0 --no-R host:s d", &[]);
    scene.same_line("-e ./rec --files-from=host:far -0 host:s d", &[]);
    scene.same_line("-e ./rec host:s", &[]);
    scene.same_line("-e ./rec -rvn host:s", &[]);
    for operands in [
        "a [host]:x",
        "a u@[::1]:x",
        "a u@x@host:x",
        "a @host:x",
        ":x a",
        "HOST: a",
        "host:a/./b//c d",
    ] {
        scene.same_line(&format!("-e ./rec {operands}"), &[]);
    }
}

#[test]
fn remote_shell_option_is_split_as_in_rsync() {
    let scene = Shells::new();
    let shells = [
        "./rec -p 22",
        "  ./rec   x ",
        "./rec 'a b' \"c'd\" 'e''f' g'h i'j \"k\"\"l\" m\\ n '' \"\"",
        "./bin/ssh -x",
        "./rec a\tb",
        "env -u X ./bin/ssh",
    ];
    for shell in shells {
        let args = |option: &str| words(&format!("{option} -6 src/ u@host:d"));
        let mut with_option = args("-e x");
        with_option[1] = shell.as_bytes().to_vec();
        scene.same_words(&with_option, &[]);
        scene.same_words(&args("-v"), &[("RSYNC_RSH", shell)]);
    }
    // The default is ssh, from the PATH.
    let path = format!(
        "{}:{}",
        scene.path("bin").display(),
        std::env::var("PATH").unwrap()
    );
    scene.same_line("-a4 src/ u@host:d", &[("PATH", &path)]);
    scene.same_line("-a --blocking-io host:d .", &[("PATH", &path)]);
}

#[test]
fn shell_metacharacters_are_escaped_as_in_rsync() {
    let scene = Shells::new();
    let names = [
        "a b", "a\\b", "a\\*b", "\\\\", "\\", "a\\[b", "[a\\]b]", "{a,b}", "-b", "-", "./-b",
        "/-b", "~", "~/", "~/x y", "~u", "~u/x", "~*", "a~", "a/~b", "./~b", "a:b", "a*?[x]",
        "$(x)", "`x`", "a\nb", "a\rb", "ä ö", "",
    ];
    let mut all: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
    // Every byte that a name may hold, 64 bytes per name.
    for bytes in (1..=u8::MAX).collect::<Vec<_>>().chunks(64) {
        all.push(bytes.iter().flat_map(|&byte| [b'x', byte, b'y']).collect());
    }
    let styles: [(&str, &[(&str, &str)]); 5] = [
        ("-a", &[]),
        ("--old-args", &[]),
        ("--old-args --old-args", &[]),
        ("-a", &[("RSYNC_OLD_ARGS", "1")]),
        ("-a", &[("RSYNC_PROTECT_ARGS", "1")]),
    ];
    for name in &all {
        let far = [b"host:", &name[..]].concat();
        for (style, vars) in styles {
            let with = |words_of: &str, more: &[&[u8]]| {
                let mut args = words(&format!("-e ./rec {style} {words_of}"));
                args.extend(more.iter().map(|word| word.to_vec()));
                args
            };
            scene.same_words(&with("", &[b"src/", &far]), vars);
            scene.same_words(&with("", &[&far, b"d"]), vars);
            if !name.contains(&b':') {
                let option = |start: &str| [start.as_bytes(), name].concat();
                scene.same_words(
                    &with(
                        "",
                        &[
                            &option("--temp-dir="),
                            &option("-M--x="),
                            b"src/",
                            b"host:d",
                        ],
                    ),
                    vars,
                );
            }
        }
        // A list cannot be read from standard input of the other machine.
        if name != b"-" {
            let list = [b"--files-from=:", &name[..]].concat();
            scene.same_words(
                &[words("-e ./rec -a"), vec![list], words("host:s d")].concat(),
                &[],
            );
        }
    }
}

#[test]
fn sparsync_falls_back_to_calling_remote_rsync() {
    let scene = Shells::new();
    let got = scene.words(oracle::under_test(), &words("-a -e ./rec src/ host:d"), &[]);
    let got: Vec<OsString> = got.into_iter().map(OsString::from_vec).collect();
    // These are the arguments of the last attempt, because the recorder never answers.
    assert_eq!(
        got[..5],
        ["host", "rsync", "--server", "-logDtpre.iLsfxCIvuY", "."]
    );
}

/// The command that starts sparsync, or rsync if sparsync is missing, in a single login.
const EITHER: &str = "sh -c 'p=sparsync; command -v $p >/dev/null 2>&1 || { p=$HOME/.local/bin/sparsync; [ -x \"$p\" ] || p=rsync; }; \
     exec \"$p\" \"$@\"' sh";

// ── the program at the other end ────────────────────────────────────────────────────────────────
impl Shells {
    /// Runs sparsync with a remote shell that parses its arguments like ssh and continues with `script`, in which `$*`
    /// is the remote command. Operands and further options come from `line`.
    fn shell(&self, script: &str, line: &str, vars: &[(&str, &str)]) -> Output {
        self.fake_shell("shell", script);
        self.run(
            oracle::under_test(),
            &words(&format!("-e ./shell {line}")),
            vars,
        )
    }

    /// Returns the option that selects sparsync as the program at the other end.
    fn ours(&self) -> String {
        format!("--rsync-path={}", oracle::under_test().display())
    }
}

/// Returns the exit code, and standard error as text.
fn ended(output: &Output) -> (Option<i32>, String) {
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[track_caller]
fn assert_ended(output: &Output, exit: i32, stderr: &[&str]) {
    let (code, text) = ended(output);
    assert_eq!(code, Some(exit), "{text}");
    for words in stderr {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
}

#[test]
fn push_and_pull_with_a_remote_sparsync() {
    let scene = Shells::new();
    let output = scene.shell(
        "exec sh -c \"$*\"",
        &format!("{} -a src/ far:dst", scene.ours()),
        &[],
    );
    assert_eq!(ended(&output), (Some(0), String::new()));
    assert_eq!(std::fs::read(scene.path("dst/a")).unwrap(), b"a\n");
    let output = scene.shell(
        "exec sh -c \"$*\"",
        &format!("{} -a far:src/ got", scene.ours()),
        &[],
    );
    assert_eq!(ended(&output), (Some(0), String::new()));
    assert_eq!(std::fs::read(scene.path("got/a")).unwrap(), b"a\n");
}

#[test]
fn login_noise_is_shown_and_harmless() {
    let scene = Shells::new();
    let line = format!("{} -a src/ far:dst", scene.ours());
    let output = scene.shell(
        "echo 'Welcome!'; printf 'no newline'; exec sh -c \"$*\"",
        &line,
        &[],
    );
    assert_eq!(ended(&output), (Some(0), "Welcome!\nno newline".to_owned()));
    assert!(scene.path("dst/a").exists());
}

#[test]
fn endless_login_noise_exits_2() {
    let scene = Shells::new();
    let output = scene.shell("exec yes 'a very talkative shell'", "-a src/ far:dst", &[]);
    assert_ended(
        &output,
        2,
        &[
            "a very talkative shell",
            "is your shell clean?",
            "protocol incompatibility (code 2)",
        ],
    );
    assert!(
        output.stderr.len() < 70_000,
        "{} bytes",
        output.stderr.len()
    );
    assert!(!scene.path("dst").exists());
}

#[test]
fn login_noise_before_a_failure_is_shown() {
    let scene = Shells::new();
    let output = scene.shell(
        "echo 'This account is closed.'; exit 1",
        "-a far:src/ dst",
        &[],
    );
    assert_ended(
        &output,
        12,
        &[
            "This account is closed.\n",
            "connection unexpectedly closed",
            "[Receiver=3.5.0]",
        ],
    );
}

#[test]
fn incompatible_version_names_the_older_end() {
    let scene = Shells::new();
    // Magic, a length of 43 bytes, versions 2 to 3, no features, a key of zeros, the name of the program, no guess.
    let zeros = "\\000".repeat(24);
    let magic = r"\325\377\251\000\361\216\376\001";
    let script = format!(
        r"printf '{magic}\053\000\002\000\003\000{zeros}\014\000sparsync 9.0\000'; exec cat > heard"
    );
    for line in ["-a src/ far:dst", "-a far:src/ dst"] {
        let output = scene.shell(&script, line, &[]);
        let words = "this program (sparsync 0.1.0) supports version 1, the peer (sparsync 9.0) supports versions 2 to 3\n\
                     hint: upgrade sparsync here\n";
        assert_ended(&output, 2, &[words, "protocol incompatibility (code 2)"]);
        assert!(!scene.path("dst").exists());
        // The client sent its greeting, so the other end can report the mismatch as well.
        assert!(
            std::fs::read(scene.path("heard"))
                .unwrap()
                .starts_with(&[32, 0, 0, 0, 0xd5, 0xff, 0xa9])
        );
    }
}

#[test]
fn remote_host_without_sparsync_runs_rsync() {
    let scene = Shells::new();
    let script = format!(
        "echo \"$1\" >> asked\n[ \"$1\" = rsync ] || exit 127\nshift\nexec {} \"$@\"",
        oracle::under_test().display()
    );
    let output = scene.shell(&script, "-a src/ far:dst", &[]);
    assert_eq!(ended(&output), (Some(0), String::new()));
    assert_eq!(
        std::fs::read_to_string(scene.path("asked")).unwrap(),
        format!("{EITHER}\nrsync\n")
    );
    assert!(scene.path("dst/a").exists());
}

/// Some options require rsync's own protocol, which sparsync speaks too.
#[test]
fn remote_host_without_rsync_needs_none() {
    let scene = Shells::new();
    std::fs::create_dir(scene.path("progs")).unwrap();
    std::os::unix::fs::symlink(oracle::under_test(), scene.path("progs/sparsync")).unwrap();
    std::os::unix::fs::symlink("/bin/sh", scene.path("progs/sh")).unwrap();
    std::fs::write(scene.path("names"), "a\n").unwrap();
    let script = "PATH=$PWD/progs\nexport PATH\nexec sh -c \"$*\"";
    let top = scene.path("").display().to_string();
    let list = format!("--files-from=:{top}/names");
    for option in [
        "-t",
        "--iconv=utf-8,latin1",
        "--write-batch=batch",
        "--protocol=29",
        "-M--log-file=log",
        &list,
    ] {
        for line in [
            format!("-r {option} src/ far:dst/"),
            format!("-r {option} far:{top}/src/ dst/"),
        ] {
            let output = scene.shell(script, &line, &[]);
            assert_eq!(ended(&output), (Some(0), String::new()), "{line}");
            assert!(scene.path("dst/a").exists(), "{line}");
            std::fs::remove_dir_all(scene.path("dst")).unwrap();
        }
    }
}

/// A sparsync that is installed as `rsync` asks for `rsync`.
#[test]
fn stock_rsync_of_a_program_named_rsync_needs_one_login() {
    let scene = Shells::new();
    std::fs::create_dir(scene.path("as")).unwrap();
    std::os::unix::fs::symlink(oracle::under_test(), scene.path("as/rsync")).unwrap();
    let script = format!("{FAKE_SSH}echo \"$1\" >> asked\nexec sh -c \"$*\"\n");
    scene.script("bin/ssh", &script);
    let path = format!(
        "{}:{}",
        scene.path("bin").display(),
        std::env::var("PATH").unwrap()
    );
    let config = scene.path("config").display().to_string();
    let vars = [("PATH", path.as_str()), ("SPARSYNC_CONFIG_DIR", &config)];
    for (line, asked) in [("far:src/ d1", 1), ("far:src/ d2", 2), ("src/ far:d3", 3)] {
        let output = scene.run(
            &scene.path("as/rsync"),
            &words(&format!("-a {line}")),
            &vars,
        );
        assert_eq!(ended(&output), (Some(0), String::new()), "{line}");
        assert_eq!(
            std::fs::read_to_string(scene.path("asked")).unwrap(),
            "rsync\n".repeat(asked),
            "{line}"
        );
    }
    assert!(
        ["d1/a", "d2/a", "d3/a"]
            .iter()
            .all(|path| scene.path(path).exists())
    );
    // The host may have a sparsync too, which this name asks for.
    let output = scene.run(oracle::under_test(), &words("-a far:src/ d4"), &vars);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        std::fs::read_to_string(scene.path("asked"))
            .unwrap()
            .contains(EITHER)
    );
}

#[test]
fn copy_works_without_a_usable_config_directory() {
    const USER: u32 = 12345;
    let scene = Shells::new();
    scene.fake_shell("shell", "exec \"$@\"");
    std::fs::set_permissions(scene.top(), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::create_dir(scene.path("theirs")).unwrap();
    std::fs::set_permissions(scene.path("theirs"), std::fs::Permissions::from_mode(0o700)).unwrap();
    let program = oracle::under_test().display().to_string();
    let copy = |name: &str, more: &[&str], set: &dyn Fn(&mut Command)| {
        let mut command = Command::new(oracle::under_test());
        command
            .args(["-rt", "-e", "./shell", "--rsync-path", &program])
            .args(more);
        command
            .args(["src/", &format!("far:{name}")])
            .current_dir(scene.top())
            .stdin(Stdio::null());
        command
            .env_remove("SPARSYNC_CONFIG_DIR")
            .env_remove("XDG_CONFIG_HOME")
            .env("LC_ALL", "C");
        set(&mut command);
        command.output().expect("a program can be started")
    };
    let below_a_file = scene.path("list/config");
    let output = copy("d1", &[], &|command| {
        _ = command.env("SPARSYNC_CONFIG_DIR", &below_a_file)
    });
    assert_eq!(
        (ended(&output), scene.path("d1/a").exists()),
        ((Some(0), String::new()), true)
    );
    // A transport that needs a key has no fallback.
    let output = copy("d2", &["--transport=tls"], &|command| {
        _ = command.env("SPARSYNC_CONFIG_DIR", &below_a_file)
    });
    assert_ended(
        &output,
        11,
        &["cannot read ", "list/config/hosts.toml: Not a directory"],
    );
    assert!(!scene.path("d2").exists());
    if rustix::process::geteuid().is_root() {
        let homes: [&dyn Fn(&mut Command); 2] = [
            &|command| _ = command.env_remove("HOME"),
            // As sudo leaves it: the home directory of another user.
            &|command| _ = command.env("HOME", scene.path("theirs")),
        ];
        for (nth, home) in homes.into_iter().enumerate() {
            let name = format!("d{}", 3 + nth);
            let output = copy(&name, &[], &|command| {
                command.uid(USER).gid(USER);
                home(command);
            });
            assert_eq!(
                (ended(&output), scene.path(&name).join("a").exists()),
                ((Some(0), String::new()), true)
            );
        }
    }
}

#[test]
fn rsync_path_is_the_only_program_tried() {
    let scene = Shells::new();
    let script = "echo \"$1\" >> asked\nexit 127";
    assert_ended(
        &scene.shell(script, "--rsync-path=other -a src/ far:dst", &[]),
        127,
        &[],
    );
    assert_eq!(
        std::fs::read_to_string(scene.path("asked")).unwrap(),
        "other\n"
    );
    let called = scene.run(
        &scene.path("rsync"),
        &words("-e ./shell -a src/ far:dst"),
        &[],
    );
    assert_ended(&called, 127, &["remote command not found (code 127)"]);
    assert_eq!(
        std::fs::read_to_string(scene.path("asked")).unwrap(),
        "other\nrsync\n"
    );
    let output = scene.shell(script, "-a src/ far:dst", &[]);
    assert_ended(&output, 127, &["remote command not found (code 127)"]);
    assert_eq!(
        std::fs::read_to_string(scene.path("asked")).unwrap(),
        format!("other\nrsync\n{EITHER}\nrsync\n")
    );
}

#[test]
fn remote_stock_rsync_gets_the_files() {
    let scene = Shells::new();
    std::fs::write(scene.path("names"), "a\n").unwrap();
    let output = scene.shell(
        "exec sh -c \"$*\"",
        "--rsync-path=rsync -aii src/ far:dst",
        &[],
    );
    assert_ended(&output, 0, &[]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.ends_with("<f+++++++++ a\n"), "{printed}");
    assert!(scene.path("dst/a").exists());
    let output = scene.shell(
        "echo Hello; exec sh -c \"$*\"",
        "--rsync-path=rsync -a src/ far:noisy",
        &[],
    );
    assert_eq!(
        (ended(&output), scene.path("noisy/a").exists()),
        ((Some(0), "Hello\n".into()), true)
    );
}

#[test]
fn secluded_arguments_reach_either_program() {
    // A stock rsync does not answer before it has them.
    for far in ["--rsync-path=rsync".to_owned(), Shells::new().ours()] {
        let scene = Shells::new();
        let run = |line: &str| scene.shell("exec sh -c \"$*\"", &format!("{far} -as {line}"), &[]);
        assert_eq!(
            ended(&run("src/ far:pushed")),
            (Some(0), String::new()),
            "{far}"
        );
        assert_eq!(
            ended(&run("far:src/ pulled")),
            (Some(0), String::new()),
            "{far}"
        );
        assert!(
            scene.path("pushed/a").exists() && scene.path("pulled/a").exists(),
            "{far}"
        );
    }
}

// ── the client's version ────────────────────────────────────────────────────────────────────────

/// What follows in a script starts `$*` only after four bytes have come, which it gets too: openrsync and the first
/// releases of rsync read the client's version before they send theirs.
const READS_FIRST: &str =
    "dd bs=1 count=4 status=none >four\n{ cat four; exec cat; } | exec sh -c \"$*\"";

#[test]
fn server_that_reads_first_gets_the_version() {
    for protocol in 27..=32 {
        let scene = Shells::new();
        let options = format!("--rsync-path=rsync --protocol={protocol} -a");
        for operands in ["src/ far:dst", "far:src/ got"] {
            let output = scene.shell(READS_FIRST, &format!("{options} {operands}"), &[]);
            assert_eq!(ended(&output), (Some(0), String::new()), "{protocol}");
            assert_eq!(
                std::fs::read(scene.path("four")).unwrap(),
                [protocol, 0, 0, 0]
            );
        }
        assert!(scene.path("dst/a").exists() && scene.path("got/a").exists());
    }
    // A sparsync skips the version, also behind secluded arguments.
    let scene = Shells::new();
    for (at, options) in ["-a", "-as"].into_iter().enumerate() {
        let line = format!("{} {options} src/ far:dst{at}", scene.ours());
        let output = scene.shell(READS_FIRST, &line, &[]);
        assert_eq!(ended(&output), (Some(0), String::new()));
        assert!(scene.path(&format!("dst{at}/a")).exists());
    }
}

#[test]
fn version_is_sent_once_behind_the_secluded_arguments() {
    let scene = Shells::new();
    for (options, first) in [
        ("-a", &b"\x20\0\0\0"[..]),
        ("-a --protocol=29", b"\x1d\0\0\0"),
        ("-as", b"rsync\0.\0dst\0\0\x20\0\0\0"),
    ] {
        // When the client finds that the peer has closed its side, it closes its own.
        let script = format!("head -c {} >heard\nexec >&-\ncat >more", first.len());
        let line = format!("--rsync-path=rsync {options} src/ far:dst");
        assert_ended(&scene.shell(&script, &line, &[]), 12, &[]);
        let heard = std::fs::read(scene.path("heard")).unwrap();
        assert_eq!((&heard[..], first), (first, &heard[..]), "{options}");
        assert_eq!(std::fs::read(scene.path("more")).unwrap(), b"", "{options}");
    }
}

/// The answer of an rsync is longer than its version, because it has the client's.
#[test]
fn noise_and_the_answer_of_an_rsync_may_come_in_one_piece() {
    let scene = Shells::new();
    let script = "{ echo Hello; sh -c \"$*\"; } | { dd bs=1 count=12 status=none >head; cat head; exec cat; }";
    let output = scene.shell(script, "--rsync-path=rsync -a src/ far:dst", &[]);
    assert_eq!(ended(&output), (Some(0), "Hello\n".to_owned()));
    assert!(scene.path("dst/a").exists());
}

impl Shells {
    /// Runs sparsync with the recorded server of a conversation in tests/captures, which answers as often as the
    /// recorded client has sent so many bytes. The source has the times and modes of the record.
    fn replay(&self, name: &str, line: &str) -> Output {
        let record = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
        let bytes = std::fs::read(record.join(name)).expect("the conversation was recorded");
        let (mut rest, mut script) = (&bytes[..], String::new());
        for at in 0.. {
            let Some((head, after)) = rest.split_first_chunk::<5>() else {
                break;
            };
            let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let (piece, after) = after.split_at(len);
            rest = after;
            if head[0] == b'C' {
                script += &format!("head -c {len} >/dev/null\n");
            } else {
                std::fs::write(self.path(&format!("piece{at}")), piece).unwrap();
                script += &format!("cat piece{at}\n");
            }
        }
        std::fs::create_dir(self.path("src/sub")).unwrap();
        std::fs::write(self.path("src/sub/b"), "in sub\n").unwrap();
        let times = "chmod 755 src src/sub; chmod 644 src/a src/sub/b; \
                     touch -d '2022-02-02 02:02:02Z' src/a src/sub/b src/sub src";
        let ended = Command::new("sh")
            .args(["-c", times])
            .current_dir(self.path(""))
            .status();
        assert!(ended.unwrap().success());
        self.shell(&script, line, &[])
    }
}

/// The server reports each file that is in its place, as an rsync does only under `--remove-source-files`.
#[test]
fn openrsync_may_report_files_that_are_not_removed() {
    let scene = Shells::new();
    let output = scene.replay(
        "push27-openrsync.cap",
        "--rsync-path=rsync -rt src/ far:dst",
    );
    assert_eq!(ended(&output), (Some(0), String::new()));
    assert!(scene.path("src/a").exists() && scene.path("src/sub/b").exists());
}

/// The server marks the first directory that leads to the argument, as if its content had been requested.
#[test]
fn openrsync_may_mark_directories_that_lead_to_an_argument() {
    for names in [
        "one/two/src",
        "one/t*/src",
        "--trust-sender one/two/src",
        "--old-args one/two/src",
    ] {
        let scene = Shells::new();
        std::fs::create_dir_all(scene.path("dst/one/kept")).unwrap();
        std::fs::create_dir_all(scene.path("dst/one/two/kept")).unwrap();
        let (options, name) = names.rsplit_once(' ').unwrap_or(("", names));
        let line = format!("--rsync-path=rsync -rtR --delete {options} far:{name} dst");
        let output = scene.replay("pull27-R-openrsync.cap", &line);
        assert_eq!(ended(&output), (Some(0), String::new()), "{names}");
        for (name, content) in [("a", "a\n"), ("sub/b", "in sub\n")] {
            let path = scene.path("dst/one/two/src").join(name);
            assert_eq!(std::fs::read_to_string(path).unwrap(), content);
        }
        for kept in ["dst/one/kept", "dst/one/two/kept"] {
            assert!(scene.path(kept).exists(), "{names}: {kept}");
        }
    }
}

#[test]
fn echo_of_the_version_is_no_answer() {
    let scene = Shells::new();
    for options in ["-a", "-as", "--rsync-path=rsync -a"] {
        let line = format!("{options} --timeout=1 src/ far:dst");
        let output = scene.shell("exec cat", &line, &[]);
        assert_ended(&output, 30, &["io timeout after 1 seconds"]);
    }
}

// The other end waits for an answer to its version.
#[test]
fn unknown_version_of_an_rsync_ends_the_run() {
    let scene = Shells::new();
    let words = ["protocol version mismatch -- is your shell clean?"];
    for greeting in ["c\\0\\0\\0", "motd\\n\\5\\0\\0\\0", "\\51\\0\\0\\0more"] {
        for line in [
            "-a src/ far:dst",
            "-as far:src/ dst",
            "--rsync-path=rsync -a src/ far:dst",
        ] {
            let script = format!("printf '{greeting}'; exec cat >/dev/null");
            assert_ended(&scene.shell(&script, line, &[]), 2, &words);
        }
    }
}

impl Shells {
    /// Creates a source with more directories than may be open at once, and runs a remote shell that continues with
    /// `script` only after the client has more than 100 files open.
    fn shell_after_prefetch(&self, script: &str, line: &str) -> Output {
        for n in 0..300 {
            std::fs::create_dir(self.path(&format!("src/d{n}"))).unwrap();
            std::fs::write(self.path(&format!("src/d{n}/f")), format!("{n}")).unwrap();
        }
        // `looked` marks that this has happened: a further remote shell finds fewer open files.
        let looked = "until [ -e looked ] || [ $(ls /proc/$PPID/fd | wc -l) -gt 100 ]; do :; done; : >looked";
        self.shell(&format!("{looked}\n{script}"), line, &[])
    }
}

#[test]
fn source_is_scanned_before_the_server_answers() {
    let scene = Shells::new();
    let line = format!("{} -a src/ far:dst", scene.ours());
    let output = scene.shell_after_prefetch("exec sh -c \"$*\"", &line);
    assert_eq!(ended(&output), (Some(0), String::new()));
    for n in 0..300 {
        assert_eq!(
            std::fs::read_to_string(scene.path(&format!("dst/d{n}/f"))).unwrap(),
            format!("{n}")
        );
    }
}

#[test]
fn destination_is_scanned_before_the_server_answers() {
    let scene = Shells::new();
    for n in 0..300 {
        std::fs::create_dir_all(scene.path(&format!("dst/d{n}"))).unwrap();
    }
    // Only scanning threads have this name.
    let looked = "until grep -q '^scan' /proc/$PPID/task/*/comm; do :; done 2>/dev/null";
    let output = scene.shell(
        &format!("{looked}\nexec sh -c \"$*\""),
        &format!("{} -a far:src/ dst", scene.ours()),
        &[],
    );
    assert_eq!(ended(&output), (Some(0), String::new()));
    assert_eq!(std::fs::read_to_string(scene.path("dst/a")).unwrap(), "a\n");
}

#[test]
fn problems_of_the_prefetch_are_reported_once() {
    let scene = Shells::new();
    std::os::unix::fs::symlink("nowhere", scene.path("src/d")).unwrap();
    let line = "--rsync-path=rsync -aL missing src/ far:";
    let got = scene.shell_after_prefetch("exec sh -c \"$*\"", &format!("{line}dst"));
    scene.fake_shell("shell", "exec sh -c \"$*\"");
    let wanted = scene.run(
        oracle::rsync(),
        &words(&format!("-e ./shell {line}other")),
        &[],
    );
    // A message of the remote process of the first, abandoned attempt may come first.
    assert!(
        ended(&got).1.ends_with(&ended(&wanted).1),
        "{}",
        ended(&got).1
    );
    for words in ["link_stat", "symlink has no referent"] {
        assert_ended(&got, 23, &[words]);
        assert_eq!(ended(&got).1.matches(words).count(), 1, "{}", ended(&got).1);
    }
    assert!(scene.path("dst/d299/f").exists());
}

#[test]
fn failed_shell_ends_the_source_prefetch() {
    let scene = Shells::new();
    let output = scene.shell_after_prefetch("exit 255", "-aL missing src/ far:dst");
    let (exit, text) = ended(&output);
    assert_eq!(exit, Some(255), "{text}");
    assert!(
        text.starts_with("rsync: connection unexpectedly closed")
            && text.contains("\nhint: the login must work first: `./shell far` shows the reason\n")
            && text.lines().count() == 3,
        "{text}"
    );
}

#[test]
fn standard_input_is_read_in_a_run_with_a_stock_rsync() {
    let scene = Shells::new();
    scene.fake_shell("shell", "exec sh -c \"$*\"");
    for (option, lets_through) in [
        ("--files-from=-", true),
        ("--exclude-from=-", false),
        ("--filter=._-", false),
    ] {
        let list = if option.starts_with("--filter") {
            "-_a"
        } else {
            "a"
        };
        let _ = std::fs::remove_dir_all(scene.path("dst"));
        let program = oracle::under_test().display();
        let line = format!(
            "echo {list} | {program} -e ./shell --rsync-path=rsync -a {option} src/ far:dst/"
        );
        let output = scene.run(Path::new("sh"), &words_of(&["-c", &line]), &[]);
        assert_ended(&output, 0, &[]);
        assert_eq!(scene.path("dst/a").exists(), lets_through, "{option}");
    }
}

#[test]
fn stock_peer_needs_no_local_rsync() {
    let scene = Shells::new();
    let rsync = Command::new("sh")
        .args(["-c", "command -v rsync"])
        .output()
        .unwrap();
    let rsync = String::from_utf8(rsync.stdout).unwrap();
    let line = |options: &str| format!("--rsync-path={} {options} src/ far:dst", rsync.trim());
    // `PATH` has a shell but no rsync.
    for name in ["sh", "timeout", "shell"] {
        let target = Path::new("/bin").join(name);
        let _ = std::os::unix::fs::symlink(target, scene.path("bin").join(name));
    }
    let path = scene.path("bin");
    let run = |options| {
        scene.shell(
            "exec sh -c \"$*\"",
            &line(options),
            &[("PATH", path.to_str().unwrap())],
        )
    };
    assert_ended(&run("-a --progress"), 0, &[]);
    assert!(scene.path("dst").exists());
}

#[test]
fn hand_over_never_calls_sparsync_itself() {
    let scene = Shells::new();
    for (name, target) in [
        ("sh", Path::new("/bin/sh")),
        ("timeout", Path::new("/bin/timeout")),
        ("rsync", oracle::under_test()),
    ] {
        std::os::unix::fs::symlink(target, scene.path("bin").join(name)).unwrap();
    }
    let path = scene.path("bin");
    let path = ("PATH", path.to_str().unwrap());
    let called =
        |args: &str, vars: &[(&str, &str)]| scene.run(&scene.path("bin/rsync"), &words(args), vars);
    // sparsync does not call itself endlessly, even if `SPARSYNC_RSYNC` names it.
    let ours = ("SPARSYNC_RSYNC", oracle::under_test().to_str().unwrap());
    for (vars, hint) in [
        (&[path][..], "runs that rsync instead"),
        (&[path, ours], "it is another sparsync"),
    ] {
        assert_ended(&called("-a --protocol=26 src/ got/", vars), 4, &[hint]);
    }
    // The program that `SPARSYNC_RSYNC` names gets the original arguments.
    let named = scene.path("rec");
    let vars = [path, ("SPARSYNC_RSYNC", named.to_str().unwrap())];
    for args in ["-a --protocol=26 src/ host:x", "--bogus host::module"] {
        assert_eq!(called(args, &vars).status.code(), Some(0), "{args}");
        let got = std::fs::read_to_string(scene.path("words")).expect("the program was started");
        assert_eq!(got.trim_end_matches('\0').replace('\0', " "), args);
    }
}

#[test]
fn stock_rsync_client_is_served() {
    let scene = Shells::new();
    scene.fake_shell("shell", "exec sh -c \"$*\"");
    for operands in ["src/ far:dst", "far:src/ got"] {
        let line = format!("-e ./shell {} -a {operands}", scene.ours());
        let output = scene.run(oracle::rsync(), &words(&line), &[]);
        assert_eq!(ended(&output), (Some(0), String::new()));
    }
    assert!(scene.path("dst/a").exists() && scene.path("got/a").exists());
}

// ── failures ────────────────────────────────────────────────────────────────────────────────────
#[test]
fn exit_code_of_the_shell_determines_the_exit_code() {
    let scene = Shells::new();
    // rsync exits with the larger of 12 and the exit code of the shell, if it gets that code in time.
    for (code, exit, words) in [
        (0, 12, "error in rsync protocol data stream"),
        (1, 12, "error in rsync protocol data stream"),
        (12, 12, "error in rsync protocol data stream"),
        (
            23,
            23,
            "some files/attrs were not transferred (see previous errors)",
        ),
        (100, 100, "unexplained error"),
        (124, 124, "remote shell failed"),
        (125, 125, "remote shell killed"),
        (126, 126, "remote command could not be run"),
        (127, 127, "remote command not found"),
        (255, 255, "unexplained error"),
    ] {
        for (operands, role) in [("src/ far:dst", "sender"), ("far:src/ dst", "Receiver")] {
            let output = scene.shell(&format!("exit {code}"), &format!("-a {operands}"), &[]);
            let hint = match code {
                255 => "hint: the login must work first: `./shell far` shows the reason\n",
                _ => "",
            };
            let stderr = format!(
                "rsync: connection unexpectedly closed (0 bytes received so far) [{role}]\n{hint}\
                 rsync error: {words} (code {exit}) at "
            );
            let (got, text) = ended(&output);
            assert!(
                got == Some(exit) && text.starts_with(&stderr),
                "exit {code}: {got:?}\n{text}"
            );
            assert!(text.ends_with(&format!(" [{role}=3.5.0]\n")), "{text}");
        }
    }
    let output = scene.shell("kill -KILL $$", "-a src/ far:dst", &[]);
    assert_ended(&output, 12, &["connection unexpectedly closed"]);
}

#[test]
fn client_waits_for_the_shell_to_exit() {
    // The shell has closed its streams by then, so only waiting for its exit shows that it has finished.
    let behind = "sh -c \"$*\"\nended=$?\nexec <&- >&- 2>&-\nfor n in 1 2 3 4 5 6 7 8; do sh -c :; done\n: >ended\nexit $ended\n";
    for line in ["-a far:src/ dst", "-a src/ far:dst", "-ain far:src/ dst"] {
        let scene = Shells::new();
        scene.fake_shell("shell", behind);
        let ours = scene.ours();
        for (program, path) in [(oracle::under_test(), ours.as_str()), (oracle::rsync(), "")] {
            let output = scene.run(program, &words(&format!("-e ./shell {path} {line}")), &[]);
            assert_ended(&output, 0, &[]);
            std::fs::remove_file(scene.path("ended"))
                .unwrap_or_else(|error| panic!("{line}: {program:?}: {error}"));
        }
    }
}

#[test]
fn shell_exit_code_overrides_that_of_the_server() {
    for end in ["exit 7", "exit 23", "exit 255", "kill -TERM $$"] {
        for line in [
            "-a far:src/ dst",
            "-a src/ far:dst",
            "-ain src/ far:dst",
            "-a src/ none far:dst",
            "-a far:src/ far:none dst",
        ] {
            let scene = Shells::new();
            scene.fake_shell("shell", &format!("sh -c \"$*\"\n{end}"));
            let ours = scene.ours();
            let codes = [(oracle::rsync(), ""), (oracle::under_test(), ours.as_str())].map(
                |(program, path)| {
                    let output =
                        scene.run(program, &words(&format!("-e ./shell {path} {line}")), &[]);
                    ended(&output).0
                },
            );
            assert_eq!(codes[1], codes[0], "{end}: {line}");
        }
    }
}

#[test]
fn abandoned_shell_gets_sigterm_and_may_clean_up() {
    let scene = Shells::new();
    // Like ssh at a password prompt, which has switched off the echo.
    let script = "trap 'echo on >echo; exit 1' TERM\nexec 3<&0\ncat <&3 >/dev/null 2>&- &\nwait";
    assert_ended(
        &scene.shell(script, "--timeout=1 -a src/ far:dst", &[]),
        30,
        &[],
    );
    assert_eq!(std::fs::read_to_string(scene.path("echo")).unwrap(), "on\n");
}

#[test]
fn a_shell_that_cannot_be_started() {
    let scene = Shells::new();
    std::fs::write(scene.path("text"), "no program").unwrap();
    for (shell, words) in [
        (
            "./nowhere",
            "rsync: [sender] Failed to exec ./nowhere: No such file or directory (2)\n",
        ),
        (
            "./text",
            "rsync: [sender] Failed to exec ./text: Permission denied (13)\n",
        ),
    ] {
        let output = scene.run(
            oracle::under_test(),
            &words_of(&["-a", "-e", shell, "src/", "far:dst"]),
            &[],
        );
        let last = "rsync error: error in IPC code (code 14) at pipe.c(85) [sender=3.5.0]\n";
        assert_eq!(ended(&output), (Some(14), [words, last].concat()));
    }
}

fn words_of(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

#[test]
fn silent_remote_shell_ends_with_the_timeout() {
    let scene = Shells::new();
    let line = "--timeout=1 -a src/ far:dst";
    let got = scene.shell("exec sleep 60", line, &[]);
    let wanted = scene.run(oracle::rsync(), &words(&format!("-e ./shell {line}")), &[]);
    let first = |output: &Output| {
        ended(output)
            .1
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(
        (got.status.code(), first(&got)),
        (wanted.status.code(), first(&wanted))
    );
    assert_eq!(got.status.code(), Some(30));
}

#[test]
fn connection_loss_at_any_byte_exits_12() {
    let scene = Shells::new();
    let big = vec![b'x'; 3_000_000];
    std::fs::write(scene.path("src/big"), &big).unwrap();
    for bytes in [1, 9, 40, 200, 5000, 100_000] {
        // Byte by byte, because `head` would wait for all of them before it passes any on.
        let cut = format!("dd bs=1 count={bytes} status=none");
        let to_far = format!("{cut} | sh -c \"$*\"");
        // The script itself must not hold the pipes open.
        let from_far = format!("exec 3<&0; sh -c \"$*\" <&3 | {cut} & exec <&- >&- 3<&-; wait");
        for (cut, operands) in [
            (&to_far, "src/ far:dst"),
            (&from_far, "src/ far:dst"),
            (&to_far, "far:src/ dst"),
            (&from_far, "far:src/ dst"),
        ] {
            let _ = std::fs::remove_dir_all(scene.path("dst"));
            let output = scene.shell(cut, &format!("{} -a {operands}", scene.ours()), &[]);
            let (exit, stderr) = ended(&output);
            // Only complete files may exist.
            for entry in std::fs::read_dir(scene.path("dst"))
                .into_iter()
                .flatten()
                .flatten()
            {
                let name = entry.file_name();
                assert!(name == "a" || name == "big", "{cut}: {name:?} is left");
                let wanted = std::fs::read(scene.path("src").join(&name)).unwrap();
                assert!(
                    std::fs::read(entry.path()).unwrap() == wanted,
                    "{cut}: {name:?} is incomplete"
                );
            }
            let is_done = scene.path("dst/big").exists() && exit == Some(0);
            assert!(
                is_done || exit == Some(12) && !stderr.is_empty(),
                "{cut}, {operands}: {exit:?}: {stderr}"
            );
        }
    }
}

#[test]
fn a_signal_ends_the_run_and_the_shell() {
    let scene = Shells::new();
    scene.script(
        "shell",
        "#!/bin/sh\necho $$ > pid.new\nmv pid.new pid\nexec sleep 60\n",
    );
    let mut command = Command::new(oracle::under_test());
    command.args(["-a", "-e", "./shell", "src/", "far:dst"]);
    let child = command
        .current_dir(scene.top())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until(|| scene.path("pid").exists());
    let shell = std::fs::read_to_string(scene.path("pid"))
        .unwrap()
        .trim()
        .to_owned();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_ended(
        &output,
        20,
        &["received SIGINT, SIGTERM, or SIGHUP (code 20)"],
    );
    assert!(
        !Path::new("/proc").join(shell).exists(),
        "the shell still runs"
    );
}

#[test]
fn failed_ssh_connection_exits_255() {
    let scene = Shells::new();
    let none = "ssh -F none -o BatchMode=yes -o ProxyCommand=false";
    std::fs::write(scene.path("none"), "").unwrap();
    let output = scene.run(
        oracle::under_test(),
        &words_of(&["-a", "-e", none, "src/", "far:dst"]),
        &[],
    );
    assert_ended(&output, 255, &["rsync error: unexplained error (code 255)"]);
}

// ── over a real ssh ─────────────────────────────────────────────────────────────────────────────
synctest!(first_copy_update_and_deletion_over_ssh, over ssh, |w: World| {
    w.source("a d/b*70000 l->a e/").dest("");
    w.agree(&["-avi"]).exits(0).prints("a");
    w.source("a=new d/c").dest("extra/x");
    w.agree(&["-ai", "--delete"]).exits(0).prints("deleting");
});

synctest!(names_with_shell_metacharacters, over ssh, |w: World| {
    for name in ["a b", "$x", "it's", "x;y", "a&b", "(c)", "~", "-n", "#d", "tab\there"] {
        w.build("src", |t| drop(t.file(name, "x")));
    }
    w.build("a 'b' $c", |t| drop(t.file("old", "x")));
    w.agree_paths(&["-ai"], &["src/", "a 'b' $c/"]).exits(0);
});

synctest!(wildcards_are_expanded_at_the_server, over ssh, |w: World| {
    w.source("a1 a2 b1 d/x").dest("");
    w.agree_paths(&["-ai"], &["src/a?", "src/[b-d]*", "dst/"]);
    w.agree_paths(&["-ais"], &["src/a?", "src/[b-d]*", "dst/"]);
});

synctest!(ssh_host_key_and_login_failures_exit_255, over ssh, |_: World| {
    let scene = Shells::new();
    // Not over the existing shared connection.
    let ssh = format!("{} -o ControlPath=none", kit::ssh());
    for (options, message) in [
        ("-o HostKeyAlias=stranger -o StrictHostKeyChecking=yes", "Host key verification failed."),
        ("-o IdentityFile=/dev/null -o IdentitiesOnly=yes -l nobody-at-all", "Permission denied"),
    ] {
        let shell = format!("{ssh} {options}");
        let output = scene.run(oracle::under_test(), &words_of(&["-a", "-e", &shell, "src/", "far:dst"]), &[]);
        assert_ended(&output, 255, &[message, "connection unexpectedly closed", "unexplained error (code 255)"]);
    }
});

synctest!(missing_remote_program_exits_127, over ssh, |_: World| {
    let scene = Shells::new();
    let line = words_of(&["-a", "-e", &kit::ssh(), "--rsync-path=no-such-program", "src/", "far:dst"]);
    assert_ended(&scene.run(oracle::under_test(), &line, &[]), 127, &["no-such-program", "(code 127)"]);
});

// ── the letter that identifies sparsync ─────────────────────────────────────────────────────────
#[test]
fn stock_rsync_ignores_the_capability_letter() {
    let scene = Shells::new();
    let letters = "command=$(echo \"$*\" | sed 's/ \\(-[a-zA-Z]*e[.][a-zA-Z]*\\)/ \\1Y/')";
    let script =
        format!("{FAKE_SSH}{letters}\necho \"$command\" >> asked\nexec sh -c \"$command\"\n");
    scene.script("shell", &script);
    for operands in ["src/ far:dst", "far:src/ got"] {
        let output = scene.run(
            oracle::rsync(),
            &words(&format!("-e ./shell -az {operands}")),
            &[],
        );
        assert_eq!(ended(&output), (Some(0), String::new()));
    }
    let requested = std::fs::read_to_string(scene.path("asked")).unwrap();
    assert!(
        requested.lines().count() == 2 && requested.lines().all(|line| line.contains("CIvuY . ")),
        "{requested}"
    );
    assert!(scene.path("dst/a").exists() && scene.path("got/a").exists());
}

synctest!(slow_peer_does_not_hit_the_timeout, between machines, |w: World| {
    w.build("src", |t| drop(t.file("slow", "x".repeat(60_000)))).dest("");
    // At this rate the transfer takes longer than the timeout.
    w.once().agree(&["-a", "--timeout=2", "--bwlimit=16"]).exits(0);
});

// ── forced commands ─────────────────────────────────────────────────────────────────────────────

/// Simulates an sshd with a forced command: it runs the command of a run with `fixed`, whatever the client requests.
fn forced(scene: &Shells, fixed: &str, line: &str) -> Output {
    let _ = std::fs::remove_file(scene.path("command"));
    scene.fake_shell("rec", "echo \"$*\" >command");
    scene.run(
        oracle::under_test(),
        &words(&format!("-e ./rec {} {fixed}", scene.ours())),
        &[],
    );
    let command = std::fs::read_to_string(scene.path("command")).expect("the shell was started");
    scene.shell(
        &format!("exec sh -c '{}'", command.trim()),
        &format!("{} {line}", scene.ours()),
        &[],
    )
}

/// Simulates rrsync, which runs only rsync and moves paths into a directory of its own.
#[test]
fn forced_command_may_rewrite_paths() {
    let scene = Shells::new();
    for dir in ["bin", "jail/up"] {
        std::fs::create_dir_all(scene.path(dir)).unwrap();
    }
    std::os::unix::fs::symlink(oracle::under_test(), scene.path("bin/rsync")).unwrap();
    assert!(
        Command::new("cp")
            .args(["-a", "src/.", "jail/up/"])
            .current_dir(scene.path(""))
            .status()
            .unwrap()
            .success()
    );
    let script = "echo \"$1\" >> asked
        case $* in rsync\\ *) ;; *) echo \"SSH_ORIGINAL_COMMAND does not run rsync\" >&2; exit 1 ;; esac
        command=$(echo \"$*\" | sed \"s, --[a-z]*-\\(d[a-z]*\\|from\\) /,&$PWD/jail/,; s, \\. /, . $PWD/jail/,\")
        exec sh -c \"$command\"";
    let path = format!(
        "{}:{}",
        scene.path("bin").display(),
        std::env::var("PATH").unwrap()
    );
    let copy = |line: &str| scene.shell(script, line, &[("PATH", path.as_str())]);
    assert_eq!(
        ended(&copy("-a --link-dest=/up src/ far:/new")),
        (Some(0), String::new())
    );
    // The error message of the rejected first attempt is not printed.
    assert_eq!(
        std::fs::read_to_string(scene.path("asked")).unwrap(),
        format!("{EITHER}\nrsync\n")
    );
    let inode = |path: &str| {
        std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(scene.path(path)).unwrap())
    };
    assert_eq!(
        inode("jail/new/a"),
        inode("jail/up/a"),
        "the file is linked to the one in the jail"
    );
    std::fs::write(scene.path("src/a"), "changed").unwrap();
    assert_eq!(
        ended(&copy("-a --backup --backup-dir=/old src/ far:/new")),
        (Some(0), String::new())
    );
    assert!(scene.path("jail/old/a").exists() && !Path::new("/old").exists());
    std::fs::write(scene.path("jail/list"), "a\n").unwrap();
    assert_eq!(
        ended(&copy("-r --files-from=:/list far:/up/ listed/")),
        (Some(0), String::new()),
        "the list is the one in the jail"
    );
    assert!(scene.path("listed/a").exists());
}

/// The attempt that a forced command rejects prints nothing.
#[test]
fn stock_rsync_behind_a_forced_command_prints_nothing_extra() {
    let scene = Shells::new();
    let script = "echo \"$1\" >> asked
        case $* in rsync\\ *) ;; *) echo \"SSH_ORIGINAL_COMMAND does not run rsync\" >&2; exit 1 ;; esac
        exec sh -c \"$*\"";
    assert_eq!(
        ended(&scene.shell(script, "-a src/ far:dst", &[])),
        (Some(0), String::new())
    );
    assert_eq!(
        std::fs::read_to_string(scene.path("asked")).unwrap(),
        format!("{EITHER}\nrsync\n")
    );
    assert!(scene.path("dst/a").exists());
    // The answer is remembered for this host and this remote shell, whose key may decide.
    scene.fake_shell("bin/ssh", script);
    let path = format!(
        "{}:{}",
        scene.path("bin").display(),
        std::env::var("PATH").unwrap()
    );
    let config = scene.path("config").display().to_string();
    for (key, asked) in [("one", 2), ("one", 1), ("two", 2), ("one", 1)] {
        std::fs::remove_file(scene.path("asked")).unwrap();
        let shell = format!("ssh -oIdentityFile={key}");
        let vars = [
            ("PATH", path.as_str()),
            ("SPARSYNC_CONFIG_DIR", &config),
            ("RSYNC_RSH", &shell),
        ];
        let output = scene.run(oracle::under_test(), &words("-a src/ far:dst"), &vars);
        assert_eq!(ended(&output), (Some(0), String::new()), "{key}");
        assert_eq!(
            std::fs::read_to_string(scene.path("asked"))
                .unwrap()
                .lines()
                .count(),
            asked,
            "{key}"
        );
    }
    // The command of a remote shell may contain a password.
    let cached = std::fs::read_to_string(scene.path("config/state/logins.toml")).unwrap();
    assert!(
        cached.contains("far by ") && !cached.contains("IdentityFile"),
        "{cached}"
    );
}

#[test]
fn remembered_program_that_is_gone_costs_a_login_only() {
    let scene = Shells::new();
    for (dir, name, program) in [
        ("stock", "rsync", oracle::rsync()),
        ("own", "sparsync", oracle::under_test()),
    ] {
        std::fs::create_dir(scene.path(dir)).unwrap();
        let path = std::env::var("PATH").unwrap();
        let script = format!("#!/bin/sh\nPATH={path} exec {} \"$@\"\n", program.display());
        scene.script(&format!("{dir}/{name}"), &script);
        std::os::unix::fs::symlink("/bin/sh", scene.path(dir).join("sh")).unwrap();
    }
    let config = scene.path("config").display().to_string();
    // First there is only a stock rsync, and then only a sparsync.
    for (dir, asked) in [
        ("stock", vec![EITHER]),
        ("stock", vec!["rsync"]),
        ("own", vec!["rsync", EITHER]),
    ] {
        let script = format!("{FAKE_SSH}echo \"$1\" >> asked\nPATH=$PWD/{dir} exec sh -c \"$*\"\n");
        scene.script("ssh", &script);
        let _ = std::fs::remove_file(scene.path("asked"));
        let _ = std::fs::remove_dir_all(scene.path("dst"));
        let vars = [("SPARSYNC_CONFIG_DIR", config.as_str())];
        let output = scene.run(
            oracle::under_test(),
            &words("-a -e ./ssh src/ far:dst"),
            &vars,
        );
        assert_eq!(ended(&output), (Some(0), String::new()), "{dir}");
        assert_eq!(
            std::fs::read_to_string(scene.path("asked")).unwrap(),
            asked.join("\n") + "\n",
            "{dir}"
        );
        assert!(scene.path("dst/a").exists());
    }
}

#[test]
fn session_beyond_the_forced_command_is_rejected() {
    let scene = Shells::new();
    for (fixed, line, word) in [
        ("-r src/ far:dst", "-r --delete src/ far:dst", "--delete"),
        ("-rt src/ far:dst", "-rtp src/ far:dst", "-p"),
        (
            "-r src/ far:dst",
            "-r --backup --backup-dir=/tmp src/ far:dst",
            "-b",
        ),
        (
            "-rb src/ far:dst",
            "-rb --backup-dir=b src/ far:dst",
            "--backup-dir",
        ),
        (
            "-r src/ far:dst",
            "-r -M--fake-super src/ far:dst",
            "--fake-super",
        ),
        ("-r far:src/ dst", "-rL far:src/ dst", "-L"),
        (
            "-r far:src/ dst",
            "-r --remove-source-files far:src/ dst",
            "--remove-source-files",
        ),
    ] {
        std::fs::create_dir_all(scene.path("dst")).unwrap();
        std::fs::write(scene.path("dst/extra"), "x").unwrap();
        let output = forced(&scene, fixed, line);
        let message = format!("request rejected: {word} is not on the command line of this server");
        assert_ended(&output, 2, &[&message]);
        assert!(
            scene.path("dst/extra").exists()
                && scene.path("src/a").exists()
                && !scene.path("x.log").exists()
        );
        assert!(!scene.path("dst/a").exists(), "{line}");
    }
    // A session may request less than the forced command permits. The other options of the command still apply.
    std::fs::write(scene.path("dst/a"), "old").unwrap();
    assert_ended(
        &forced(
            &scene,
            "-rtp -b --backup-dir=kept src/ far:dst",
            "-rt src/ far:dst",
        ),
        0,
        &[],
    );
    assert!(scene.path("dst/kept/a").exists() && scene.path("dst/extra").exists());
    assert_ended(
        &forced(
            &scene,
            "-rtp --delete src/ far:dst",
            "-rtp --delete src/ far:dst",
        ),
        0,
        &[],
    );
    assert!(scene.path("dst/a").exists() && !scene.path("dst/extra").exists());
}

/// A forced command can add options to those of a client. Each is carried out, has no effect, or is refused with the cause.
#[test]
fn forced_command_adds_options() {
    let scene = Shells::new();
    for dest in ["src/ far:dst", "far:src/ dst"] {
        for dry in ["-rn", "-r --dry-run"] {
            let _ = std::fs::remove_dir_all(scene.path("dst"));
            let output = forced(&scene, &format!("{dry} {dest}"), &format!("-r {dest}"));
            let words = "request rejected: --dry-run is on the command line of this server";
            assert_ended(
                &output,
                2,
                &[words, "hint: the server carries out only dry runs"],
            );
            assert!(!scene.path("dst/a").exists(), "{dest}");
        }
        for added in ADDED_OPTIONS.split_whitespace() {
            let _ = std::fs::remove_dir_all(scene.path("dst"));
            let output = forced(&scene, &format!("-r {added} {dest}"), &format!("-r {dest}"));
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(
                !errors.contains("protocol error"),
                "{added} {dest}: {errors}"
            );
            assert!(scene.path("src/a").exists(), "{added} {dest}");
            if output.status.success() {
                assert!(scene.path("dst/a").exists(), "{added} {dest}: {errors}");
            } else {
                assert!(
                    errors.contains("request rejected: "),
                    "{added} {dest}: {errors}"
                );
            }
        }
    }
}

const ADDED_OPTIONS: &str = "--remove-source-files -c -H -A -X -D -t -p -l -b -u -z -S -W -I -y -x -m -R -d -v -i \
    --inplace --delete --delete-after --delete-delay --partial --partial-dir=p --numeric-ids --fuzzy --size-only \
    --existing --detect-renamed --link-dest=/none --append --ignore-existing --delay-updates --no-whole-file --checksum-choice=md5 --bwlimit=1000 --timeout=30 --stats --fsync \
    --max-size=9 --chmod=F600 --copy-links --safe-links --munge-links --force --modify-window=1 --no-implied-dirs";

/// Scripts may read the errors of rsync.
#[test]
fn called_as_rsync_the_program_suggests_nothing() {
    let scene = Shells::new();
    std::fs::create_dir(scene.path("named")).unwrap();
    std::os::unix::fs::symlink(oracle::under_test(), scene.path("named/rsync")).unwrap();
    for line in [
        "-a --delet src/ dst",
        "-a --excludes=x src/ dst",
        "doctr",
        "help foo",
        "server statu",
    ] {
        let [ours, theirs] = [scene.path("named/rsync"), oracle::rsync().to_owned()]
            .map(|program| scene.run(&program, &words(line), &[]));
        let printed = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        let closing = |text: String| {
            text.lines()
                .map(|line| line.split(" at ").next().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(ours.status.code(), theirs.status.code(), "{line}");
        assert_eq!(closing(printed(&ours)), closing(printed(&theirs)), "{line}");
        assert_eq!(ours.stdout, theirs.stdout, "{line}");
    }
}

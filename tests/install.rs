//! What a package installs beside the program: man pages and completions, and the version that other programs read.

use crate::json::object;
use crate::kit::{oracle, report_skip, write_script};
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Runs sparsync and returns its output.
#[track_caller]
fn printed(args: &[&str]) -> String {
    let output = Command::new(oracle::under_test())
        .args(args)
        .output()
        .expect("the program can be started");
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{args:?}: {}",
        output.stderr.escape_ascii()
    );
    String::from_utf8(output.stdout).expect("the text is UTF-8")
}

/// Returns the completions for a shell, in a file with that name.
fn completions(shell: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let path = dir.path().join("sparsync");
    std::fs::write(&path, printed(&[&format!("--completions={shell}")]))
        .expect("scratch can be written");
    let path = path.to_str().expect("the path is UTF-8").to_owned();
    (dir, path)
}

/// Runs a program, with `HOME` in a new directory. `None` if it is not installed; the test is then skipped.
fn run(test: &str, program: &str, args: &[&str], input: &str) -> Option<String> {
    let home = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(&home)
        .env("HOME", home.path())
        .env_remove("XDG_CONFIG_HOME");
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            report_skip(
                &format!("install::{test}"),
                &format!("{program} is not installed"),
            );
            return None;
        }
        Err(error) => panic!("{program} cannot be started: {error}"),
    };
    // A program may end without reading its input, which breaks the pipe.
    let _ = child
        .stdin
        .take()
        .expect("stdin is a pipe")
        .write_all(input.as_bytes());
    let output = child.wait_with_output().expect("a child can be waited for");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.is_empty(),
        "{program} {args:?}: {}\n{text}{errors}",
        output.status
    );
    Some(text)
}

#[test]
fn man_pages_have_no_faults() {
    for page in [
        "--man",
        "--man=bench",
        "--man=doctor",
        "--man=enroll",
        "--man=server",
    ] {
        let page = printed(&[page]);
        let mandoc = |args: &[&str]| run("man_pages_have_no_faults", "mandoc", args, &page);
        let Some(faults) = mandoc(&["-Tlint", "-Wwarning"]) else {
            return;
        };
        assert_eq!(faults, "");
        assert!(mandoc(&["-Thtml"]).is_some_and(|shown| shown.contains("--help")));
    }
    assert_eq!(printed(&["--man"]), printed(&["--man=sparsync"]));
}

/// Words before the cursor, and proposals among the others there.
const QUERIES: [(&str, &[&str]); 16] = [
    ("--del", &["--del", "--delete", "--delete-after"]),
    ("-a --suff", &["--suffix"]),
    ("--transport=q", &["quic"]),
    ("--transport q", &["quic"]),
    ("--man=en", &["enroll"]),
    ("--info=prog", &["progress"]),
    ("enr", &["enroll"]),
    ("doctor --pa", &["--path"]),
    ("bench sc", &["scan"]),
    ("server re", &["restart", "revoke"]),
    ("server --p", &[]),
    ("server start --po", &["--port"]),
    ("server start box --po", &["--port"]),
    ("server stop --po", &[]),
    ("enroll --read", &["--read-only", "--read-write"]),
    ("help s", &["server"]),
];

/// Compares what a shell proposes with [`QUERIES`]. A proposal may have a description, or begin with the option.
#[track_caller]
fn compare(shell: &str, line: &str, wanted: &[&str], output: &str) {
    let proposals = output
        .lines()
        .map(|line| line.split('\t').next().unwrap_or_default());
    let proposals: Vec<_> = proposals
        .map(|word| word.strip_prefix("--transport=").unwrap_or(word))
        .collect();
    let proposals: Vec<_> = proposals
        .iter()
        .map(|word| word.strip_prefix("--info=").unwrap_or(word))
        .collect();
    let proposals: Vec<_> = proposals
        .iter()
        .map(|word| word.strip_prefix("--man=").unwrap_or(word))
        .collect();
    let proposals: Vec<_> = proposals
        .iter()
        .map(|word| word.trim_end_matches('='))
        .collect();
    for word in wanted {
        assert!(
            proposals.contains(word),
            "{shell}: {line}: {word} is not among {proposals:?}"
        );
    }
    assert_eq!(
        proposals.is_empty(),
        wanted.is_empty(),
        "{shell}: {line}: {proposals:?}"
    );
}

#[test]
fn bash_completes() {
    let (_dir, path) = completions("bash");
    run("bash_completes", "bash", &["-n", &path], "");
    // Splits a line as bash does, and prints what the function proposes for its last word.
    let complete = "source \"$1\"; line=\"sparsync $2\"; COMP_LINE=$line COMP_POINT=${#line}; COMP_WORDS=(${line//=/ = }); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); \
               _sparsync; printf '%s\\n' \"${COMPREPLY[@]}\" | sed '/^$/d'";
    for (line, wanted) in QUERIES {
        let Some(output) = run(
            "bash_completes",
            "bash",
            &["--norc", "-c", complete, "bash", &path, line],
            "",
        ) else {
            return;
        };
        compare("bash", line, wanted, &output);
    }
    let files = "source \"$1\"; touch 'a file'; COMP_WORDS=(sparsync -a a); COMP_CWORD=2; _sparsync; \
                 printf '%s\\n' \"${COMPREPLY[@]}\"; complete -p sparsync";
    let output = run(
        "bash_completes",
        "bash",
        &["--norc", "-c", files, "bash", &path],
        "",
    );
    assert_eq!(
        output.expect("bash is installed"),
        "a file\ncomplete -F _sparsync sparsync\n"
    );
}

/// A home directory with known hosts, and programs in `bin`: an ssh that reaches `box`, whose home is `there`.
fn known_hosts() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    for name in ["bin", "there/dst", ".ssh"] {
        std::fs::create_dir_all(dir.path().join(name)).expect("scratch can be written");
    }
    for (name, text) in [
        ("there/data", ""),
        ("there/dst/a file", ""),
        (
            ".ssh/config",
            "Host box *.example\n  HostName 192.0.2.1\nHost other\n",
        ),
        (
            ".ssh/known_hosts",
            "|1|hashed= ssh-ed25519 A\n[kn.own]:2222,192.0.2.9 ssh-ed25519 A\n",
        ),
    ] {
        std::fs::write(dir.path().join(name), text).expect("scratch can be written");
    }
    let ssh = "#!/bin/sh\nwhile [ $1 != -- ]; do asks=$asks$1; shift; done\n[ $2 = box ] || exit 255\n\
               case $asks in *-oBatchMode=yes*) ;; *) exit 255;; esac\ncd ~/there && exec sh -c \"$3\"\n";
    write_script(&dir.path().join("bin/ssh"), ssh);
    let program = dir.path().join("bin/sparsync");
    std::os::unix::fs::symlink(oracle::under_test(), program).expect("scratch can be written");
    dir
}

/// The word before the cursor, and what is proposed for it.
const REMOTE_QUERIES: [(&str, &[&str]); 7] = [
    ("-a box:d", &["box:data", "box:dst/"]),
    ("-a box:dst/a", &["box:dst/a file"]),
    ("-a box:none", &[]),
    ("-a other:d", &[]),
    ("-a bo", &["box:"]),
    ("-a me@kn", &["me@kn.own:"]),
    ("doctor o", &["other"]),
];

#[test]
fn bash_completes_hosts_and_their_names() {
    let (_dir, path) = completions("bash");
    let home = known_hosts();
    // bash splits words at some characters, and replaces only the last part.
    let complete = "export HOME=$3 PATH=$3/bin:$PATH; source \"$1\"; COMP_LINE=\"sparsync $2\"; COMP_POINT=${#COMP_LINE}; \
               line=${COMP_LINE//:/ : }; COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); word=${COMP_LINE##* }; \
               _sparsync; for reply in \"${COMPREPLY[@]}\"; do reply=${word%\"${COMP_WORDS[COMP_CWORD]}\"}$reply; \
               printf '%s\\n' \"${reply% }\" | sed 's/\\\\//g'; done";
    for (line, wanted) in REMOTE_QUERIES {
        let args = [
            "--norc",
            "-c",
            complete,
            "bash",
            &path,
            line,
            home_of(&home),
        ];
        let output = run("bash_completes_hosts_and_their_names", "bash", &args, "");
        let output = output.expect("bash is installed");
        assert_eq!(output.lines().collect::<Vec<_>>(), wanted, "{line}");
    }
}

fn home_of(home: &tempfile::TempDir) -> &str {
    home.path().to_str().expect("the path is UTF-8")
}

#[test]
fn fish_completes_hosts_and_their_names() {
    let (_dir, path) = completions("fish");
    let home = known_hosts();
    for (line, wanted) in REMOTE_QUERIES {
        let complete = format!(
            "set -x HOME {0}; set -x PATH {0}/bin $PATH; source {path}; complete -C 'sparsync {line}'",
            home_of(&home)
        );
        let args = ["--no-config", "-c", &complete];
        let Some(output) = run("fish_completes_hosts_and_their_names", "fish", &args, "") else {
            return;
        };
        // fish proposes words that contain the given one as well.
        let begins = |word: &&str| word.starts_with(line.rsplit(' ').next().unwrap_or_default());
        let words = output
            .lines()
            .map(|line| line.split('\t').next().unwrap_or_default());
        let words: Vec<_> = words
            .filter(begins)
            .map(|word| word.replace('\\', ""))
            .collect();
        assert_eq!(words, wanted, "{line}");
    }
}

/// `rsync` gets the completions only if it is this program.
#[test]
fn completions_apply_to_a_link_named_rsync() {
    let (_dir, path) = completions("bash");
    let home = known_hosts();
    let ask = "export PATH=$2/bin:$PATH; source \"$1\"; complete -p rsync 2>/dev/null; ln -s sparsync $2/bin/rsync; \
               hash -r; source \"$1\"; complete -p rsync; COMP_WORDS=(rsync ben) COMP_CWORD=1 COMP_LINE='rsync ben' COMP_POINT=9; \
               _sparsync; echo ${#COMPREPLY[@]}";
    let args = ["--norc", "-c", ask, "bash", &path, home_of(&home)];
    let output = run("completions_apply_to_a_link_named_rsync", "bash", &args, "");
    assert_eq!(
        output.expect("bash is installed"),
        "complete -F _sparsync rsync\n0\n"
    );
}

#[test]
fn fish_completes() {
    let (_dir, path) = completions("fish");
    if run("fish_completes", "fish", &["--no-execute", &path], "").is_none() {
        return;
    }
    for (line, wanted) in QUERIES {
        let complete = format!("source {path}; complete -C 'sparsync {line}'");
        let output = run(
            "fish_completes",
            "fish",
            &["--no-config", "-c", &complete],
            "",
        )
        .expect("fish is installed");
        compare("fish", line, wanted, &output);
    }
}

#[test]
fn zsh_loads_the_completions() {
    let (dir, path) = completions("zsh");
    if run("zsh_loads_the_completions", "zsh", &["-fn", &path], "").is_none() {
        return;
    }
    let load = format!(
        "autoload -U compinit; compinit -u -D; source {path}; print $+functions[_sparsync] $_comps[sparsync]"
    );
    let output = run("zsh_loads_the_completions", "zsh", &["-fc", &load], "");
    assert_eq!(output.as_deref(), Some("1 _sparsync\n"));
    // In a directory of `fpath`, the first line registers it.
    std::fs::rename(&path, dir.path().join("_sparsync")).expect("scratch can be written");
    let dir = dir.path().display();
    let load = format!(
        "fpath=({dir} $fpath); autoload -U compinit; compinit -u -D; print $_comps[sparsync]"
    );
    let output = run("zsh_loads_the_completions", "zsh", &["-fc", &load], "");
    assert_eq!(output.as_deref(), Some("_sparsync\n"));
}

/// The startup file of a zsh that writes what it proposes at the end of each line of `queries` to `proposals`.
const ZSH_QUERIES: &str = r##"cd ${ZDOTDIR}
autoload -U compinit
compinit -u -D
source ./sparsync
compadd() {
    local -a words
    # Calls that fill arrays propose nothing.
    if [[ ${@[1,(i)(-|--)]} == *-[OAD]* ]]; then builtin compadd "$@"; return; fi
    builtin compadd -A words "$@"
    (( $#words )) && print -rl -- $words >>proposals
    builtin compadd "$@"
}
zle -C propose complete-word _main_complete
zle-line-init() {
    local line
    for line in ${(f)"$(<queries)"}; do
        print -r -- "# $line" >>proposals
        BUFFER="sparsync $line" CURSOR=1000
        zle propose
    done
    exit
}
zle -N zle-line-init
"##;

#[test]
fn zsh_completes() {
    let (dir, path) = completions("zsh");
    if run("zsh_completes", "zsh", &["-fn", &path], "").is_none() {
        return;
    }
    let home = known_hosts();
    let lines: Vec<&str> = QUERIES
        .iter()
        .chain(&REMOTE_QUERIES)
        .map(|(line, _)| *line)
        .chain(["-a one"])
        .collect();
    for (name, text) in [
        (".zshrc", ZSH_QUERIES),
        ("queries", &lines.join("\n")),
        ("one file", ""),
    ] {
        std::fs::write(dir.path().join(name), text).expect("scratch can be written");
    }
    // zsh completes only in its line editor, which needs a terminal.
    let terminal = "zmodload zsh/zpty; export ZDOTDIR=$1; export HOME=$2 PATH=$2/bin:$PATH; zpty editor 'zsh -di'; while zpty -r editor text; do :; done";
    let dir = dir.path().display().to_string();
    run(
        "zsh_completes",
        "timeout",
        &["60", "zsh", "-fc", terminal, "zsh", &dir, home_of(&home)],
        "",
    );
    let output = std::fs::read_to_string(format!("{dir}/proposals")).expect("zsh has run");
    let mut sections = output.split("# ").skip(1);
    for (line, wanted) in QUERIES {
        let section = sections
            .next()
            .and_then(|section| section.strip_prefix(line));
        compare(
            "zsh",
            line,
            wanted,
            section.expect("zsh has answered").trim_start(),
        );
    }
    for (line, wanted) in REMOTE_QUERIES {
        let section = sections
            .next()
            .and_then(|section| section.strip_prefix(line));
        // zsh keeps what precedes a colon or `@`, and adds the last colon itself.
        let added = |word: &&'static str| word.trim_end_matches(':').rsplit([':', '@']).next();
        let wanted: Vec<&str> = wanted.iter().filter_map(added).collect();
        let mut got: Vec<String> = section
            .expect("zsh has answered")
            .trim()
            .lines()
            .map(|line| line.replace('\\', ""))
            .collect();
        // zsh sorts what it shows.
        got.sort();
        assert_eq!(got, wanted, "{line}");
    }
    assert_eq!(sections.next(), Some("-a one\none\\ file\n"));
}

/// The script works on a copy of the files that it changes, in a repository of its own.
#[test]
fn release_sets_the_version_and_the_date() {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::create_dir(dir.path().join("scripts")).expect("scratch can be written");
    for name in ["Cargo.toml", "Cargo.lock", "scripts/release"] {
        std::fs::copy(top.join(name), dir.path().join(name)).expect("scratch can be written");
    }
    std::fs::write(dir.path().join(".gitignore"), "/target\n").expect("scratch can be written");
    std::fs::write(
        dir.path().join("CHANGELOG.md"),
        "# Changelog\n\n## 9.8.7 (unreleased)\n\nText.\n\n## 0.0.1 (2026-01-01)\n",
    )
    .expect("scratch can be written");
    let sh = |script: &str| {
        let script = format!("export HOME=$PWD GIT_CONFIG_NOSYSTEM=1; {script}");
        let output = Command::new("sh")
            .args(["-ec", &script])
            .current_dir(dir.path())
            .output()
            .expect("a shell starts");
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8(text).expect("the text is UTF-8"),
        )
    };
    let name = "git config user.name x; git config user.email x@example.org";
    let (code, text) = sh(&format!(
        "git init -q; {name}; git add .; git commit -qm first"
    ));
    if code == Some(127) {
        return report_skip(
            "release_sets_the_version_and_the_date",
            "git is not installed",
        );
    }
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = sh("scripts/release --prepare 9.8.6");
    assert!(
        code == Some(1) && text.contains("begins with `## 9.8.7 (unreleased)`"),
        "{text}"
    );
    assert_eq!(
        sh("scripts/release --prepare 9.8.7"),
        (
            Some(0),
            "next: scripts/check, then scripts/release 9.8.7\n".into()
        )
    );
    let today = sh("date -u +%F").1;
    let diff = sh("git show --format= -U0 | grep '^[-+]'").1;
    let version = env!("CARGO_PKG_VERSION");
    let wanted = format!(
        "--- a/CHANGELOG.md\n+++ b/CHANGELOG.md\n-## 9.8.7 (unreleased)\n+## 9.8.7 ({})\n\
         --- a/Cargo.lock\n+++ b/Cargo.lock\n-version = \"{version}\"\n+version = \"9.8.7\"\n\
         --- a/Cargo.toml\n+++ b/Cargo.toml\n-version = \"{version}\"\n+version = \"9.8.7\"\n",
        today.trim()
    );
    assert_eq!(diff, wanted);
    let (code, text) = sh("scripts/release 9.8.7");
    let failed = "release: scripts/check has not passed on commit ";
    assert!(
        code == Some(1) && text.starts_with(failed) && text.lines().count() == 1,
        "{text}"
    );
    sh("mkdir target; git rev-parse HEAD >target/gate-passed");
    let (code, text) = sh("scripts/release --dry-run 9.8.7");
    assert!(
        code == Some(0)
            && text.starts_with("would run scripts/package\nwould create the tag v9.8.7 on "),
        "{text}"
    );
}

#[test]
fn the_version_is_json() {
    let output = Command::new(oracle::under_test())
        .args(["--version", "--json"])
        .output();
    let version = object("version", &output.expect("the program can be started"));
    assert_eq!(version["name"], "sparsync");
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(version["protocol_versions"], serde_json::json!([1]));
    assert_eq!(
        version["rsync"],
        serde_json::json!({ "version": "3.5.0", "protocol": 32 })
    );
    assert_eq!(version["capabilities"]["ACLs"], true);
    assert_eq!(version["methods"]["compression"][0], "zstd");
    assert_eq!(
        version["methods"]["transport"],
        serde_json::json!(["auto", "quic", "tls", "ssh"])
    );
    assert_eq!(
        printed(&["--json", "-V"]),
        printed(&["--version", "--json"])
    );
    let rsyncs: serde_json::Value = serde_json::from_str(&printed(&["-VV"])).expect("it is JSON");
    assert_eq!(
        (&rsyncs["program"], &rsyncs["capabilities"]),
        (&serde_json::json!("rsync"), &version["capabilities"])
    );
}

#[test]
fn texts_do_not_depend_on_the_name_of_the_program() {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let rsync = dir.path().join("rsync");
    std::os::unix::fs::symlink(oracle::under_test(), &rsync).expect("scratch can be written");
    for args in [
        &["--man"][..],
        &["--completions=zsh"],
        &["--version", "--json"],
    ] {
        let output = Command::new(&rsync)
            .args(args)
            .output()
            .expect("the program can be started");
        assert_eq!(String::from_utf8_lossy(&output.stdout), printed(args));
    }
}

#[test]
fn wrong_values_are_usage_errors() {
    for (args, message) in [
        (
            &["--man=x"][..],
            "sparsync: invalid --man value `x`: expected sparsync, apply, bench, cache, check, doctor, enroll, explain, hash, plan or server\n",
        ),
        (
            &["--completions=x"],
            "sparsync: invalid --completions value `x`: expected bash, zsh or fish\n",
        ),
        (
            &["--completions", "x", "src", "host:dst"],
            "sparsync: invalid --completions value `x`: ",
        ),
    ] {
        let output = Command::new(oracle::under_test())
            .args(args)
            .output()
            .expect("the program can be started");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && errors.starts_with(message),
            "{args:?}: {errors}"
        );
    }
}

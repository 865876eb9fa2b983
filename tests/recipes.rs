//! The transcripts of docs/GUIDE.md: each fenced block marked `console` is run in a directory of its own.
//!
//! A line that starts with `$ ` is a command; the lines after it are its whole output, where `...` stands for any text in
//! a line. `(exit N)` is its exit code, if that is not 0. Each host that ssh reaches is a directory, and `nas` has no
//! sparsync.

use crate::kit::{oracle, report_skip, write_script};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

const GUIDE: &str = include_str!("../docs/GUIDE.md");
/// How many recipes the guide has at least. A mistake in a marker must not leave them out.
const RECIPES_MIN: usize = 6;
/// What the host `nas` has.
const STOCK_PROGRAMS: [&str; 5] = ["sh", "rsync", "mkdir", "ls", "cat"];
const SSH: &str = "#!/bin/sh\n\
    while :; do case $1 in -l | -o | -p) shift 2 ;; -*) shift ;; *) break ;; esac; done\n\
    export HOME=\"$HOSTS/$1\" SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22'\n\
    [ \"$1\" != nas ] || PATH=$STOCK\n\
    shift\nmkdir -p \"$HOME\" && cd && exec sh -c \"$*\"\n";

/// A command of a transcript, with the output and exit code that the guide shows.
#[derive(Debug, Default)]
struct Step {
    command: String,
    output: Vec<String>,
    code: i32,
}

/// Returns the transcripts of a page, with the line at which each starts.
fn transcripts(page: &str) -> Vec<(usize, Vec<Step>)> {
    let mut found: Vec<(usize, Vec<Step>)> = Vec::new();
    let mut is_inside = false;
    for (at, line) in page.lines().enumerate() {
        match line {
            "```console" => {
                is_inside = true;
                found.push((at + 1, Vec::new()));
            }
            "```" => is_inside = false,
            line if is_inside => {
                let steps = &mut found.last_mut().expect("a block has begun").1;
                if let Some(command) = line.strip_prefix("$ ") {
                    steps.push(Step {
                        command: command.to_owned(),
                        ..Step::default()
                    });
                    continue;
                }
                let step = steps
                    .last_mut()
                    .unwrap_or_else(|| panic!("line {}: output before a command", at + 1));
                match line
                    .strip_prefix("(exit ")
                    .and_then(|rest| rest.strip_suffix(')'))
                {
                    Some(code) => step.code = code.parse().expect("a number"),
                    None => step.output.push(line.to_owned()),
                }
            }
            _ => {}
        }
    }
    found
}

/// Prepares the directory of a recipe: programs, and the files that the recipes copy.
fn scratch() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let top = dir.path();
    for sub in ["bin", "stock", "hosts", "home/data/photos", "home/site/css"] {
        std::fs::create_dir_all(top.join(sub)).expect("scratch can be written");
    }
    symlink(oracle::under_test(), top.join("bin/sparsync")).expect("scratch supports symlinks");
    write_script(&top.join("bin/ssh"), SSH);
    for program in STOCK_PROGRAMS {
        let path = if program == "rsync" {
            oracle::rsync()
        } else {
            Path::new(program)
        };
        symlink(in_path(path), top.join("stock").join(program)).expect("scratch supports symlinks");
    }
    for (name, text) in [
        ("data/notes", "notes\n"),
        ("data/photos/1.jpg", "one\n"),
        ("site/index.html", "page\n"),
        ("site/css/main.css", "style\n"),
    ] {
        let mut file =
            std::fs::File::create(top.join("home").join(name)).expect("scratch can be written");
        file.write_all(text.as_bytes())
            .expect("scratch can be written");
        // A file that a recipe changes must not have the same time by chance.
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000))
            .expect("the file is ours");
    }
    dir
}

pub fn in_path(program: &Path) -> PathBuf {
    let path = std::env::var_os("PATH").expect("a test has a PATH");
    let mut candidates = std::env::split_paths(&path).map(|dir| dir.join(program));
    candidates
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("{} is not in PATH", program.display()))
}

/// Runs the commands in one shell. Returns the output and exit code of each.
fn run(steps: &[Step]) -> Vec<(Vec<String>, i32)> {
    let dir = scratch();
    let top = dir.path();
    let mut script = "exec 2>&1\numask 022\n".to_owned();
    for step in steps {
        script += &format!("{}\nprintf '\\001%d\\n' $?\n", step.command);
    }
    let path = std::env::var("PATH").expect("a test has a PATH");
    let mut command = Command::new("timeout");
    command
        .args(["-s", "KILL", "90", "sh", "-c", &script])
        .current_dir(top.join("home"))
        .stdin(Stdio::null());
    command.env_remove("RSYNC_RSH");
    // The recipes of root must not change the grants of this machine.
    command.env("SPARSYNC_CONFIG_DIR", top.join("config"));
    command
        .env("PATH", format!("{}:{path}", top.join("bin").display()))
        .env("LC_ALL", "C.UTF-8");
    command
        .env("HOME", top.join("home"))
        .env("HOSTS", top.join("hosts"))
        .env("STOCK", top.join("stock"));
    let output = command.output().expect("a shell can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut results = Vec::new();
    let mut rest = &text[..];
    while let Some((printed, after)) = rest.split_once('\x01') {
        let (code, after) = after
            .split_once('\n')
            .expect("the shell printed a whole line");
        results.push((
            printed.lines().map(str::to_owned).collect(),
            code.parse().expect("a number"),
        ));
        rest = after;
    }
    results
}

/// Returns whether a line is as the guide shows it.
fn is_as_shown(line: &str, shown: &str) -> bool {
    let mut parts = shown.split("...");
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty()
}

#[test]
fn recipes_print_what_the_guide_shows() {
    let recipes = transcripts(GUIDE);
    assert!(
        recipes.len() >= RECIPES_MIN,
        "only {} transcripts",
        recipes.len()
    );
    let mut faults = String::new();
    for (line, steps) in recipes {
        let results = run(&steps);
        assert_eq!(
            results.len(),
            steps.len(),
            "line {line}: the shell ended early: {results:?}"
        );
        for (step, (output, code)) in steps.iter().zip(results) {
            let is_equal = output.len() == step.output.len()
                && output
                    .iter()
                    .zip(&step.output)
                    .all(|(line, shown)| is_as_shown(line, shown));
            if !is_equal || code != step.code {
                faults += &format!(
                    "\nline {line}: $ {}\n{}\n(exit {code})\n",
                    step.command,
                    output.join("\n")
                );
            }
        }
    }
    assert!(
        faults.is_empty(),
        "docs/GUIDE.md shows something else:{faults}"
    );
}

/// Runs the recipe for alternatives(8) with directories of its own in place of the system's.
#[test]
fn alternatives_select_sparsync_or_rsync() {
    let recipe = GUIDE
        .split("```sh\n")
        .find(|block| block.starts_with("dpkg-divert "));
    let recipe = recipe
        .and_then(|block| block.split("```").next())
        .expect("the guide has the recipe");
    let tools = ["dpkg-divert", "update-alternatives"];
    let path = std::env::var_os("PATH").expect("a test has a PATH");
    if let Some(tool) = tools
        .iter()
        .find(|tool| !std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()))
    {
        return report_skip(
            "alternatives_select_sparsync_or_rsync",
            &format!("{tool} is not installed"),
        );
    }
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let top = dir.path();
    for sub in ["bin", "links", "choices", "dpkg", "log"] {
        std::fs::create_dir(top.join(sub)).expect("scratch can be written");
    }
    std::fs::write(top.join("dpkg/status"), "").expect("scratch can be written");
    // In another process, as in `write_script`.
    let copied = Command::new("cp")
        .arg(in_path(oracle::rsync()))
        .arg(top.join("bin/rsync"))
        .status();
    assert!(copied.expect("cp can be started").success());
    symlink(oracle::under_test(), top.join("bin/sparsync")).expect("scratch supports symlinks");
    let shown = top.display();
    let script = recipe
        .replace("/usr/bin/", &format!("{shown}/bin/"))
        .replace("dpkg-divert ", &format!("dpkg-divert --admindir {shown}/dpkg "))
        .replace(
            "update-alternatives ",
            &format!(
                "update-alternatives --altdir {shown}/links --admindir {shown}/choices --log {shown}/log/alternatives "
            ),
        );
    let (install, select) = script
        .split_once("--config")
        .expect("the last command selects one");
    let (install, start) = install.rsplit_once('\n').expect("it has a line of its own");
    let sh = |script: &str| {
        let output = Command::new("sh")
            .args(["-ec", script])
            .output()
            .expect("a shell can be started");
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).expect("the text is UTF-8")
    };
    sh(install);
    let version = format!("{shown}/bin/rsync --version");
    assert!(sh(&version).contains("\nThis is sparsync "));
    assert!(!sh(&format!("{shown}/bin/rsync.stock --version")).contains("sparsync"));
    // The first choice in the list is the program with the lowest name.
    sh(&format!("echo 1 | {start}--config{select}"));
    assert!(!sh(&version).contains("sparsync"), "rsync was selected");
    sh(&format!("echo 0 | {start}--config{select}"));
    assert!(
        sh(&version).contains("sparsync"),
        "the choice is automatic again"
    );
}

#[test]
fn dots_stand_for_any_text_in_a_line() {
    for (line, shown, expected) in [
        ("abc", "abc", true),
        ("abcd", "abc", false),
        ("abcd", "a...d", true),
        ("abcd", "a...", true),
        ("abcd", "...c", false),
        ("a1b2c", "a...b...c", true),
        ("a1b2c", "a...x...c", false),
    ] {
        assert_eq!(is_as_shown(line, shown), expected, "{line} {shown}");
    }
}

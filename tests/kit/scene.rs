//! A scratch directory in which programs run: files and trees, scripts, remote shells, servers and daemons.
//!
//! `servers` has the servers of the program under test, `daemon` the daemons of both programs.

mod daemon;
mod servers;

use super::{Tree, oracle, spare_port, write_script};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

pub use daemon::Daemon;
pub use servers::{field_of, port_in};

/// The start of a remote shell that drops the options and the host of ssh, as sshd does, so that `$*` is the remote
/// command.
pub const FAKE_SSH: &str =
    "#!/bin/sh\nwhile :; do case $1 in -l) shift 2;; -*) shift;; *) break;; esac; done\nshift\n";

/// A scratch directory, the working directory of the programs that a test runs in it. Others may enter it. When it is
/// dropped, its server is stopped and it is removed.
pub struct Scene {
    dir: tempfile::TempDir,
    /// See [`Scene::port`].
    port: OnceLock<u16>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        if self.path("server").exists() {
            self.at("server", "stop --now");
        }
    }
}

impl Scene {
    /// Creates an empty directory.
    pub fn empty() -> Scene {
        let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
        // Processes of other users must reach it.
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).expect("chmod of the test's own directory");
        Scene {
            dir,
            port: OnceLock::new(),
        }
    }

    /// Creates a directory for a server and a client: `in/` is meant to be granted, `out/` not; `src/` belongs to the
    /// client, whose remote shell `ssh` writes its arguments to `sshed`.
    pub fn new() -> Scene {
        let scene = Scene::empty();
        for name in ["in/f", "out/f", "src/new"] {
            scene.file(name, &format!("what {name} holds\n"));
        }
        scene.script(
            "ssh",
            &(FAKE_SSH.replace("while", "echo \"$*\" >>sshed\nwhile") + "exec sh -c \"$*\"\n"),
        );
        scene
    }

    /// Returns the directory.
    pub fn top(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the path of an entry.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces `TOP` with the path of the directory.
    pub fn placed(&self, text: &str) -> String {
        text.replace(
            "TOP",
            self.dir.path().to_str().expect("scratch has a plain name"),
        )
    }

    /// Writes a file, and creates the directories that lead to it.
    pub fn file(&self, name: &str, text: &str) -> &Scene {
        let path = self.path(name);
        let parent = path.parent().expect("a file is in a directory");
        std::fs::create_dir_all(parent).expect("scratch can be written");
        std::fs::write(path, text).expect("scratch can be written");
        self
    }

    /// The same, with this mode.
    pub fn file_with_mode(&self, name: &str, text: &str, mode: u32) -> &Scene {
        self.file(name, text);
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(self.path(name), mode).expect("the test's own file");
        self
    }

    /// Returns the tree `name`, to which entries can be added; see `kit/build.rs`.
    pub fn tree(&self, name: &str) -> Tree {
        Tree::open(&[self.top().to_owned()], name.as_bytes())
    }

    /// Writes an executable script.
    pub fn script(&self, name: &str, text: &str) {
        write_script(&self.path(name), text);
    }

    /// Writes a remote shell, which drops the options and the host of ssh and continues with `script`. There, `$*` is
    /// the remote command: `exec sh -c "$*"` runs it.
    pub fn fake_shell(&self, name: &str, script: &str) {
        self.script(name, &format!("{FAKE_SSH}{script}\n"));
    }

    /// Runs a shell script in the directory, which must succeed, and returns its output.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let output = Command::new("sh")
            .args(["-ec", script])
            .current_dir(self.top())
            .output()
            .expect("a shell can be started");
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns a command that runs a program in the directory, without input and without the variables of rsync.
    pub fn program(&self, program: &Path) -> Command {
        // Shorter than the timeout for a silent peer: no test may depend on that timeout.
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "90"]).arg(program);
        command
            .current_dir(self.top())
            .stdin(Stdio::null())
            .envs([("LC_ALL", "C"), ("TZ", "UTC")])
            .env("HOME", self.top());
        for name in [
            "RSYNC_CONNECT_PROG",
            "RSYNC_OLD_ARGS",
            "RSYNC_PARTIAL_DIR",
            "RSYNC_PASSWORD",
            "RSYNC_PROTECT_ARGS",
            "RSYNC_RSH",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// Returns a sparsync command with the configuration `who`; `TOP` stands for the path of the scene, `PORT` for
    /// its port.
    pub fn command(&self, who: &str, line: &str) -> Command {
        let mut command = self.program(oracle::under_test());
        command
            .args(self.words(line))
            .env("SPARSYNC_CONFIG_DIR", who)
            .env_remove("XDG_CONFIG_HOME");
        command
    }

    /// Returns the words of a command line, with `TOP` and `PORT` replaced.
    pub fn words(&self, line: &str) -> Vec<String> {
        let placed = |word: &str| match word {
            "PORT" => self.port().to_string(),
            // The letters may occur in a fingerprint.
            _ if word.starts_with("SHA256:") => word.to_owned(),
            _ => self.placed(word),
        };
        line.split_whitespace().map(placed).collect()
    }

    /// Returns the port of the server, which is free at the start of the test, and after a stop.
    pub fn port(&self) -> u16 {
        *self.port.get_or_init(spare_port)
    }
}

/// Checks the exit code of a program, and that its output contains each of the words.
#[track_caller]
pub fn assert_output(output: &Output, code: i32, words: &[&str]) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(output.status.code(), Some(code), "{text}");
    words
        .iter()
        .for_each(|word| assert!(text.contains(word), "{word}: {text}"));
}

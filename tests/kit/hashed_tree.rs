//! A small tree for digests, and the programs that write and read manifests.

use super::run::USER;
use super::{oracle, report_skip};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A directory with a tree `t`.
pub struct HashedTree {
    dir: tempfile::TempDir,
}

impl HashedTree {
    /// Creates the tree with these files, each of which contains its name.
    pub fn new(names: &[&[u8]]) -> HashedTree {
        let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
        let tree = HashedTree { dir };
        std::fs::create_dir(tree.path("t")).expect("scratch can be written");
        for name in names {
            tree.write(name, name);
        }
        tree
    }

    /// Returns a path beside the tree.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file of the tree.
    pub fn write(&self, name: &[u8], content: &[u8]) {
        let path = self.path("t").join(OsStr::from_bytes(name));
        std::fs::create_dir_all(path.parent().expect("it has a parent"))
            .expect("scratch can be written");
        std::fs::write(path, content).expect("scratch can be written");
    }

    /// Returns a command in the directory.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(oracle::under_test());
        command
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .env("LC_ALL", "C.UTF-8");
        command
    }

    /// Runs sparsync in the directory as an ordinary user, whose access depends on modes.
    pub fn run_as_user(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        if rustix::process::geteuid().is_root() {
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(self.dir.path(), mode).expect("scratch can be changed");
            command.uid(USER).gid(USER);
        }
        command.output().expect("the program can be started")
    }

    /// Runs sparsync in the directory.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args)
            .output()
            .expect("the program can be started")
    }

    /// Runs sparsync, which must succeed without a message, and returns its output.
    #[track_caller]
    pub fn well(&self, args: &[&str]) -> Vec<u8> {
        let output = self.run(args);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{args:?}: {output:?}"
        );
        output.stdout
    }
}

/// Runs a program in a directory; `None` if this machine lacks it.
pub fn run_program(words: &[&str], args: &[&OsStr], dir: &Path) -> Option<Output> {
    let output = Command::new(words[0])
        .args(&words[1..])
        .args(args)
        .current_dir(dir)
        .output();
    match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            report_skip("hash", &format!("{} is not installed", words[0]));
            None
        }
        output => Some(output.expect("a program can be started")),
    }
}

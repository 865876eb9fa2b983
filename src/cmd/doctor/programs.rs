//! Checks the programs of this machine: sparsync itself, rsync and ssh.

use super::ask::{ask, words_of};
use super::doctor_check::DoctorCheck;
use crate::cmd::exec_rsync;
use crate::env::Env;
use crate::transport::shell::ShellExit;
use std::os::unix::ffi::OsStrExt as _;

pub(super) fn check(env: &Env) -> Vec<DoctorCheck> {
    let own = env.own_path().map_or_else(
        || "an unknown path".into(),
        |path| path.display().to_string(),
    );
    let called = env.program.to_string_lossy();
    let version = env!("CARGO_PKG_VERSION");
    let program = DoctorCheck::ok(
        "program",
        format!("sparsync {version} at {own}, called as {called}"),
    );
    // Without a name, none is used.
    let rsync = exec_rsync::named(env).map(|named| {
        match ask(env, &words_of(&[named.as_bytes(), b"--version"])) {
            Ok((ShellExit::Code(0), text)) => DoctorCheck::ok(
                "rsync",
                format!(
                    "{} at {}",
                    text.lines().next().unwrap_or_default(),
                    named.display()
                ),
            ),
            _ => DoctorCheck::warn(
                "rsync",
                format!("version unknown: {} --version failed", named.display()),
            ),
        }
    });
    let script = b"p=$(command -v ssh) || exit 0; echo \"$p\"; exec ssh -V 2>&1";
    let ssh = match ask(env, &words_of(&[b"sh", b"-c", script])) {
        Ok((ShellExit::Code(0), text)) if text.is_empty() => DoctorCheck::warn(
            "ssh",
            "not installed: hosts are reached only through their servers, or with -e",
        )
        .with_hint("install the package openssh-client"),
        Ok((ShellExit::Code(0), text)) => {
            let (path, version) = text
                .trim_end()
                .split_once('\n')
                .unwrap_or((text.trim_end(), "unknown version"));
            DoctorCheck::ok("ssh", format!("{version} at {path}"))
        }
        _ => DoctorCheck::warn("ssh", "version unknown: `ssh -V` failed"),
    };
    [Some(program), rsync, Some(ssh)]
        .into_iter()
        .flatten()
        .collect()
}

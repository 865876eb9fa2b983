//! Logs in through the remote shell, and checks the clock and the programs there.

use super::ask::{ANSWER_MAX, ask, words_of};
use super::doctor_check::{DoctorCheck, shown_errno};
use crate::cli::subcommand::RemoteHost;
use crate::cmd::enroll;
use crate::env::Env;
use crate::transport::shell::{self, SSH_FAILED, ShellExit};
use crate::work::clock;
use std::io;

/// A larger difference between two clocks is reported, in seconds: grants expire at different times then.
const CLOCK_DIFFERENCE_MAX_SECS: i64 = 60;
/// The remote side prints its time and the programs that it has. `$p` is the name of sparsync there.
const SCRIPT: &str = "echo; echo \"clock $(date +%s)\"; echo \"sparsync $(\"$p\" --version 2>/dev/null | sed -n 2p)\"; \
                      echo \"rsync $(rsync --version 2>/dev/null | sed -n 1p)\"";

/// What a login through the remote shell has found.
pub(super) struct SshLogin {
    pub(super) works: bool,
    ended: io::Result<ShellExit>,
    /// The difference to the clock there, in seconds.
    clock_ahead_secs: Option<i64>,
    /// The version of sparsync there.
    pub(super) ours: Option<String>,
    /// The first line of `rsync --version` there.
    rsync: Option<String>,
}

impl SshLogin {
    pub(super) fn probe(env: &Env, reach: &RemoteHost) -> SshLogin {
        let find = match &reach.program {
            Some(_) => "p=$1",
            None => enroll::FIND_SPARSYNC,
        };
        let script = format!("{find}; {SCRIPT}");
        let program = reach.program.clone().unwrap_or_default();
        let words = words_of(&[b"sh", b"-c", script.as_bytes(), b"sh", &program]);
        let (ended, output) = match ask(env, &shell::argv_of(&reach.shell, &reach.host, &words)) {
            Ok((ended, output)) => (Ok(ended), output),
            Err(error) => (Err(error), String::new()),
        };
        let works = matches!(ended, Ok(ShellExit::Code(code)) if code != SSH_FAILED);
        SshLogin {
            works,
            ended,
            ..SshLogin::read(&output, clock::now_unix().0)
        }
    }

    fn read(output: &str, now_secs: i64) -> SshLogin {
        let field = |name: &str| {
            let value = output
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value
                .map(str::trim)
                .filter(|value| !value.is_empty())
                .map(str::to_owned)
        };
        let ours = field("sparsync").and_then(|line| {
            Some(
                line.strip_prefix("This is sparsync ")?
                    .split(':')
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            )
        });
        let clock = field("clock").and_then(|secs| secs.parse::<i64>().ok());
        let clock_ahead_secs = clock.map(|secs| secs.saturating_sub(now_secs));
        SshLogin {
            works: false,
            ended: Ok(ShellExit::GivenUp),
            clock_ahead_secs,
            ours,
            rsync: field("rsync"),
        }
    }

    pub(super) fn checks(&self, reach: &RemoteHost) -> Vec<DoctorCheck> {
        let host = &reach.host;
        let argv = shell::argv_of(&reach.shell, host, &[]);
        let command = String::from_utf8_lossy(&argv.join(&b' ')).into_owned();
        let see = format!("run `{command}` to see the reason");
        let failed = |why: String| vec![DoctorCheck::fail("ssh login", why).with_hint(see.clone())];
        match &self.ended {
            Err(error) => {
                return failed(format!("cannot start `{command}`: {}", shown_errno(error)));
            }
            Ok(ShellExit::Killed) => return failed(format!("`{command}` was killed")),
            Ok(ShellExit::GivenUp) => {
                return failed(format!("no end within {} s", ANSWER_MAX.as_secs()));
            }
            Ok(ShellExit::Code(SSH_FAILED)) => {
                return failed("failed without asking for a password".into());
            }
            Ok(ShellExit::Code(_)) => {}
        }
        let Some(ahead) = self.clock_ahead_secs else {
            let finding = "works, but runs only a fixed command: the programs there are unknown";
            return vec![DoctorCheck::warn("ssh login", finding)];
        };
        let ours = self.ours.as_deref();
        let rsync = self.rsync.as_deref();
        let program = match (ours, rsync) {
            (Some(version), _) => DoctorCheck::ok("program there", format!("sparsync {version}")),
            (None, Some(rsync)) => {
                DoctorCheck::warn("program there", format!("{rsync}, no sparsync")).with_hint(
                    format!("`sparsync enroll --install {host}` copies this program there"),
                )
            }
            (None, None) => DoctorCheck::fail("program there", "neither sparsync nor rsync found")
                .with_hint(format!(
                    "`sparsync enroll --install {host}` copies this program there"
                )),
        };
        let clock = if ahead.abs() > CLOCK_DIFFERENCE_MAX_SECS {
            DoctorCheck::warn("clock there", format!("differs by {} s", ahead.abs()))
                .with_hint("set the clocks")
        } else {
            DoctorCheck::ok(
                "clock there",
                format!("the same within {CLOCK_DIFFERENCE_MAX_SECS} s"),
            )
        };
        vec![DoctorCheck::ok("ssh login", "works"), program, clock]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_of_a_host_is_read() {
        let login = SshLogin::read(
            "motd\n\nclock 1000\nsparsync This is sparsync 0.1.0: not rsync itself\nrsync \n",
            900,
        );
        assert_eq!(
            (login.clock_ahead_secs, login.ours.as_deref(), login.rsync),
            (Some(100), Some("0.1.0"), None)
        );
        let login = SshLogin::read(
            "clock 1\nsparsync Copyright (C)\nrsync rsync  version 3.5.0\n",
            1,
        );
        assert_eq!(
            (login.ours, login.rsync.as_deref()),
            (None, Some("rsync  version 3.5.0"))
        );
        assert_eq!(SshLogin::read("rsync\n", 1).clock_ahead_secs, None);
    }
}

//! The last line of a run that failed.

use crate::error::Error;
use crate::exit::Exit;

/// The version of rsync that the messages come from; scripts match the form of the line.
const VERSION: &str = "3.5.0";

/// Formats `rsync error: WORDS (code N) at FILE(LINE) [ROLE=VERSION]`, without newline; empty for success.
///
/// `FILE(LINE)` is the place in rsync 3.5.0 that most often exits with this code in this role. Also empty for a run
/// without a role: a stock rsync that ends a session prints the line itself.
pub fn error_line(exit: Exit, role: &str) -> Vec<u8> {
    let kind = match exit {
        _ if role.is_empty() => return Vec::new(),
        Exit::Ok => return Vec::new(),
        Exit::Vanished => "warning",
        _ => "error",
    };
    format!(
        "rsync {kind}: {} (code {}) at {} [{role}={VERSION}]",
        exit.words(),
        exit.code(),
        place(exit, role)
    )
    .into_bytes()
}

/// Returns the lines that report an error: its message, its hint, and the closing line. `role`: the one of this end.
pub fn error_lines(error: &Error, role: &'static str) -> Vec<Vec<u8>> {
    let role = error.clone().or_by(role).role;
    let hint = error.hint_line().map(String::into_bytes);
    let lines = error
        .message
        .split(|&byte| byte == b'\n')
        .map(<[u8]>::to_vec);
    let lines = lines.chain(hint).chain([error_line(error.exit, role)]);
    lines.filter(|line| !line.is_empty()).collect()
}

fn place(exit: Exit, role: &str) -> &'static str {
    match (exit, role) {
        (Exit::Usage, "Receiver") => "main.c(1056)",
        (Exit::FileIo, "client") => "exclude.c(1719)",
        (Exit::FileIo, "receiver") => "receiver.c(657)",
        (Exit::FileIo, "sender") => "io.c(1892)",
        (exit, _) => match exit {
            Exit::Ok | Exit::Terminated | Exit::Partial | Exit::Vanished | Exit::DelLimit => {
                "main.c(1394)"
            }
            Exit::Usage => "main.c(1886)",
            Exit::Protocol => "compat.c(625)",
            Exit::FileSelect => "main.c(777)",
            Exit::Unsupported => "checksum.c(157)",
            Exit::StartClient => "main.c(1871)",
            Exit::SocketIo => "clientserver.c(165)",
            Exit::FileIo => "main.c(808)",
            Exit::Stream
            | Exit::ShellFailed
            | Exit::ShellKilled
            | Exit::CmdNotRun
            | Exit::CmdNotFound
            | Exit::Other(_) => "io.c(285)",
            Exit::Message => "log.c(553)",
            Exit::Ipc => "pipe.c(85)",
            Exit::Crashed => "main.c(1660)",
            Exit::Signal => "rsync.c(874)",
            Exit::Malloc => "util2.c(80)",
            Exit::Timeout | Exit::ConTimeout => "io.c(927)",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_error_lines_match_rsync() {
        let cases = [
            (
                Exit::Usage,
                "client",
                "rsync error: syntax or usage error (code 1) at main.c(1886) [client=3.5.0]",
            ),
            (
                Exit::Usage,
                "Receiver",
                "rsync error: syntax or usage error (code 1) at main.c(1056) [Receiver=3.5.0]",
            ),
            (
                Exit::FileSelect,
                "Receiver",
                "rsync error: errors selecting input/output files, dirs (code 3) at main.c(777) [Receiver=3.5.0]",
            ),
            (
                Exit::Unsupported,
                "client",
                "rsync error: requested action not supported (code 4) at checksum.c(157) [client=3.5.0]",
            ),
            (
                Exit::FileIo,
                "Receiver",
                "rsync error: error in file IO (code 11) at main.c(808) [Receiver=3.5.0]",
            ),
            (
                Exit::FileIo,
                "client",
                "rsync error: error in file IO (code 11) at exclude.c(1719) [client=3.5.0]",
            ),
            (
                Exit::FileIo,
                "receiver",
                "rsync error: error in file IO (code 11) at receiver.c(657) [receiver=3.5.0]",
            ),
            (
                Exit::Message,
                "sender",
                "rsync error: errors with program diagnostics (code 13) at log.c(553) [sender=3.5.0]",
            ),
            (
                Exit::Signal,
                "sender",
                "rsync error: received SIGINT, SIGTERM, or SIGHUP (code 20) at rsync.c(874) [sender=3.5.0]",
            ),
            (
                Exit::Partial,
                "sender",
                "rsync error: some files/attrs were not transferred (see previous errors) (code 23) at main.c(1394) [sender=3.5.0]",
            ),
            (
                Exit::Vanished,
                "sender",
                "rsync warning: some files vanished before they could be transferred (code 24) at main.c(1394) [sender=3.5.0]",
            ),
            (
                Exit::Timeout,
                "sender",
                "rsync error: timeout in data send/receive (code 30) at io.c(927) [sender=3.5.0]",
            ),
            (
                Exit::DelLimit,
                "sender",
                "rsync error: the --max-delete limit stopped deletions (code 25) at main.c(1394) [sender=3.5.0]",
            ),
        ];
        for (exit, role, want) in cases {
            assert_eq!(String::from_utf8_lossy(&error_line(exit, role)), want);
        }
        assert!(error_line(Exit::Ok, "sender").is_empty());
    }
}

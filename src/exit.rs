//! The exit codes of rsync(1) and their messages.

/// How a run ended. The numbers are rsync's, because scripts depend on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Ok,
    /// Syntax or usage error.
    Usage,
    /// The peers have incompatible protocols.
    Protocol,
    /// Errors selecting input or output files or directories.
    FileSelect,
    /// The requested action is not supported.
    Unsupported,
    /// Error starting the client-server protocol.
    StartClient,
    /// Error in socket I/O.
    SocketIo,
    /// Error in file I/O.
    FileIo,
    /// Error in the protocol's data stream.
    Stream,
    /// Errors with program diagnostics.
    Message,
    /// Error in inter-process communication: a program could not be started.
    Ipc,
    /// A worker crashed.
    Crashed,
    /// A signal ended a process.
    Terminated,
    /// SIGINT, SIGTERM or SIGHUP.
    Signal,
    /// Memory could not be allocated.
    Malloc,
    /// Some files or attributes were not transferred.
    Partial,
    /// Some files vanished before they could be transferred.
    Vanished,
    /// `--max-delete` stopped deletions.
    DelLimit,
    /// Timeout, or `--stop-after` and `--stop-at`.
    Timeout,
    /// Timeout waiting for a daemon.
    ConTimeout,
    /// The remote shell failed.
    ShellFailed,
    /// The remote shell was killed.
    ShellKilled,
    /// The remote shell could not run the program.
    CmdNotRun,
    /// The remote shell did not find the program.
    CmdNotFound,
    /// A code without a message of rsync: of a remote shell, such as ssh's 255 when it cannot connect, or of a command that
    /// rsync does not have.
    Other(u8),
}

/// Every code that rsync(1) defines, with its number and rsync's message.
const MEANINGS: [(Exit, u8, &str); 24] = [
    (Exit::Ok, 0, "success"),
    (Exit::Usage, 1, "syntax or usage error"),
    (Exit::Protocol, 2, "protocol incompatibility"),
    (
        Exit::FileSelect,
        3,
        "errors selecting input/output files, dirs",
    ),
    (Exit::Unsupported, 4, "requested action not supported"),
    (
        Exit::StartClient,
        5,
        "error starting client-server protocol",
    ),
    (Exit::SocketIo, 10, "error in socket IO"),
    (Exit::FileIo, 11, "error in file IO"),
    (Exit::Stream, 12, "error in rsync protocol data stream"),
    (Exit::Message, 13, "errors with program diagnostics"),
    (Exit::Ipc, 14, "error in IPC code"),
    (Exit::Crashed, 15, "sibling process crashed"),
    (
        Exit::Terminated,
        16,
        "sibling process terminated abnormally",
    ),
    (Exit::Signal, 20, "received SIGINT, SIGTERM, or SIGHUP"),
    (Exit::Malloc, 22, "error allocating core memory buffers"),
    (
        Exit::Partial,
        23,
        "some files/attrs were not transferred (see previous errors)",
    ),
    (
        Exit::Vanished,
        24,
        "some files vanished before they could be transferred",
    ),
    (
        Exit::DelLimit,
        25,
        "the --max-delete limit stopped deletions",
    ),
    (Exit::Timeout, 30, "timeout in data send/receive"),
    (
        Exit::ConTimeout,
        35,
        "timeout waiting for daemon connection",
    ),
    (Exit::ShellFailed, 124, "remote shell failed"),
    (Exit::ShellKilled, 125, "remote shell killed"),
    (Exit::CmdNotRun, 126, "remote command could not be run"),
    (Exit::CmdNotFound, 127, "remote command not found"),
];

impl Exit {
    /// Returns the process exit code.
    pub fn code(self) -> u8 {
        match self {
            Exit::Other(code) => code,
            known => MEANINGS
                .iter()
                .find(|(exit, ..)| *exit == known)
                .map_or(0, |(_, code, _)| *code),
        }
    }

    /// Returns the exit for a code; `None` for a number that rsync(1) does not define.
    pub fn of_code(code: u8) -> Option<Exit> {
        MEANINGS
            .iter()
            .find(|(_, known, _)| *known == code)
            .map(|(exit, ..)| *exit)
    }

    /// Returns the numbers and messages of all codes that rsync(1) defines.
    pub fn meanings() -> impl Iterator<Item = (u8, &'static str)> {
        MEANINGS.iter().map(|&(_, code, words)| (code, words))
    }

    /// Returns rsync's message for this code, as in `rsync error: MESSAGE (code N)`.
    pub fn words(self) -> &'static str {
        MEANINGS
            .iter()
            .find(|(exit, ..)| *exit == self)
            .map_or("unexplained error", |(.., words)| words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_map_one_to_one() {
        for (exit, code, words) in MEANINGS {
            assert_eq!(
                (exit.code(), exit.words(), Exit::of_code(code)),
                (code, words, Some(exit))
            );
        }
        assert_eq!((Exit::of_code(255), Exit::Other(255).code()), (None, 255));
        assert_eq!(Exit::Other(255).words(), "unexplained error");
    }
}

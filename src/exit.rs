//! The exit codes of rsync(1) and the words that go with them.

/// How a run ended. The numbers are rsync's: scripts act on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Exit {
    /// Success.
    Ok = 0,
    /// Syntax or usage error.
    Usage = 1,
    /// The peers do not understand each other.
    Protocol = 2,
    /// Errors selecting input or output files or directories.
    FileSelect = 3,
    /// The requested action is not supported.
    Unsupported = 4,
    /// Error starting the client-server conversation.
    StartClient = 5,
    /// Error in socket I/O.
    SocketIo = 10,
    /// Error in file I/O.
    FileIo = 11,
    /// Error in the protocol's data stream.
    Stream = 12,
    /// Errors with program diagnostics.
    Message = 13,
    /// Error in inter-process communication: a program could not be started.
    Ipc = 14,
    /// A worker crashed.
    Crashed = 15,
    /// SIGINT, SIGTERM or SIGHUP.
    Signal = 20,
    /// Memory could not be had.
    Malloc = 22,
    /// Some files or attributes were not transferred.
    Partial = 23,
    /// Some files vanished before they could be transferred.
    Vanished = 24,
    /// `--max-delete` stopped deletions.
    DelLimit = 25,
    /// Timeout, or `--stop-after` and `--stop-at`.
    Timeout = 30,
    /// Timeout waiting for a daemon.
    ConTimeout = 35,
    /// The remote shell's program was not found.
    CmdNotFound = 127,
}

impl Exit {
    /// The process exit code.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The exit of a code; `None` for a number that rsync(1) does not have.
    pub fn of_code(code: u8) -> Option<Exit> {
        const ALL: [Exit; 20] = [
            Exit::Ok,
            Exit::Usage,
            Exit::Protocol,
            Exit::FileSelect,
            Exit::Unsupported,
            Exit::StartClient,
            Exit::SocketIo,
            Exit::FileIo,
            Exit::Stream,
            Exit::Message,
            Exit::Ipc,
            Exit::Crashed,
            Exit::Signal,
            Exit::Malloc,
            Exit::Partial,
            Exit::Vanished,
            Exit::DelLimit,
            Exit::Timeout,
            Exit::ConTimeout,
            Exit::CmdNotFound,
        ];
        ALL.into_iter().find(|exit| exit.code() == code)
    }

    /// rsync's sentence for this code, as in `rsync error: SENTENCE (code N)`.
    pub fn words(self) -> &'static str {
        match self {
            Exit::Ok => "success",
            Exit::Usage => "syntax or usage error",
            Exit::Protocol => "protocol incompatibility",
            Exit::FileSelect => "errors selecting input/output files, dirs",
            Exit::Unsupported => "requested action not supported",
            Exit::StartClient => "error starting client-server protocol",
            Exit::SocketIo => "error in socket IO",
            Exit::FileIo => "error in file IO",
            Exit::Stream => "error in rsync protocol data stream",
            Exit::Message => "errors with program diagnostics",
            Exit::Ipc => "error in IPC code",
            Exit::Crashed => "sibling process crashed",
            Exit::Signal => "received SIGINT, SIGTERM, or SIGHUP",
            Exit::Malloc => "error allocating core memory buffers",
            Exit::Partial => "some files/attrs were not transferred (see previous errors)",
            Exit::Vanished => "some files vanished before they could be transferred",
            Exit::DelLimit => "the --max-delete limit stopped deletions",
            Exit::Timeout => "timeout in data send/receive",
            Exit::ConTimeout => "timeout waiting for daemon connection",
            Exit::CmdNotFound => "remote command not found",
        }
    }
}

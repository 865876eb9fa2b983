//! How a peer is reached, and limits of rate and time.

use super::output::StopAt;

/// Which addresses are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `-4`
    Ipv4,
    /// `-6`
    Ipv6,
}

/// How the words of a command line come past the remote shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ArgStyle {
    /// What is special to a shell is escaped, but for wildcards in paths.
    #[default]
    Escaped,
    /// `--old-args`: paths are for the remote shell to split and expand.
    OldPaths,
    /// `--old-args` twice: so are the arguments of options.
    OldAll,
    /// `-s`: nothing but the letters stands on the command line.
    Secluded,
}

/// What shall carry a conversation to another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// The fastest that is to be had: a host that was enrolled is reached by QUIC, or TLS, or a remote shell; any other by a
    /// remote shell.
    #[default]
    Auto,
    /// QUIC and nothing else; a host that was not enrolled is asked through a remote shell to open a way for this run.
    Quic,
    /// TLS over TCP and nothing else.
    Tls,
    /// A remote shell.
    Shell,
}

/// How a peer is reached, and limits of rate and time.
#[derive(Debug, Clone, Default)]
pub struct Connect {
    /// `--transport`
    pub transport: Transport,
    /// Whether `-e` or `RSYNC_RSH` names a remote shell, which is then used.
    pub shell_was_said: bool,
    /// `-e` or `RSYNC_RSH`, cut into words; empty: ssh.
    pub shell: Vec<Vec<u8>>,
    /// `--rsync-path`: a text for the remote shell; `None`: the program is called as this one was.
    pub program: Option<Vec<u8>>,
    /// How words come past the remote shell.
    pub args: ArgStyle,
    /// `-4`, `-6`
    pub family: Option<Family>,
    /// `--trust-sender`: what a remote sender sends is not compared with what was asked for.
    pub trust_sender: bool,
    /// `--address`, for a daemon.
    pub address: Option<Vec<u8>>,
    /// `--port`, for a daemon; 0: not said.
    pub port: i32,
    /// `--max-alloc`: the most memory that the listing of one directory of the peer may take, in bytes; `None`: no
    /// limit.
    pub max_alloc_bytes: Option<u64>,
    /// `--timeout`: a peer that is silent for so long is given up; 0: never.
    pub timeout_secs: u32,
    /// `--contimeout`: a server that does not answer for so long is given up; 0: not said.
    pub contimeout_secs: u32,
    /// `--bwlimit`, in bytes a second; `None`: unlimited.
    pub bwlimit_bytes_per_sec: Option<u64>,
    /// `--stop-after`, `--stop-at`
    pub stop: Option<StopAt>,
}

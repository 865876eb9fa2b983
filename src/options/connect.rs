//! How to reach a peer, and limits of rate and time.

use super::output::StopAt;

/// The preferred address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `-4`
    Ipv4,
    /// `-6`
    Ipv6,
}

/// How command-line arguments are passed through the remote shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ArgStyle {
    /// Characters that are special to a shell are escaped, except wildcards in paths.
    #[default]
    Escaped,
    /// `--old-args`: the remote shell splits and expands paths.
    OldPaths,
    /// `--old-args` twice: it also splits and expands the arguments of options.
    OldAll,
    /// `-s`: only the option letters are on the command line.
    Secluded,
}

/// The transport that the user chooses for a session with another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// The fastest one available: QUIC, TLS or a remote shell for an enrolled host, a remote shell for any other.
    #[default]
    Auto,
    /// QUIC only. For a host that is not enrolled, the client requests an ephemeral server through a remote shell.
    Quic,
    /// TLS over TCP only.
    Tls,
    /// A remote shell.
    Shell,
}

/// The character sets of names, by the names of the C library; `.` or an empty name: that of the locale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Iconv {
    /// Of the names on this machine.
    pub here: Vec<u8>,
    /// Of the names on the other machine, which the server gets.
    pub there: Vec<u8>,
}

/// What only a conversation with a daemon needs.
#[derive(Debug, Clone, Default)]
pub struct DaemonOptions {
    /// `--password-file`
    pub password_file: Option<Vec<u8>>,
    /// `--early-input`, a file.
    pub early_input: Option<Vec<u8>>,
    /// `--sockopts`
    pub sockopts: Option<Vec<u8>>,
    /// `--no-motd`: the text that a daemon sends before it accepts a module is not printed.
    pub no_motd: bool,
}

/// The oldest protocol with fractions of seconds and counts of deletions.
const FRACTIONS_SINCE: u8 = 31;

impl Connect {
    /// Returns whether `--protocol` selects a version without fractions of seconds and counts of deletions.
    pub fn lacks_fractions(&self) -> bool {
        self.protocol
            .is_some_and(|protocol| protocol < FRACTIONS_SINCE)
    }
}

/// How to reach a peer, and limits of rate and time.
#[derive(Debug, Clone, Default)]
pub struct Connect {
    /// `--transport`
    pub transport: TransportChoice,
    /// Whether `-e` or `RSYNC_RSH` names a remote shell, which must then be used.
    pub shell_was_given: bool,
    /// `-e` or `RSYNC_RSH`, split into words; empty: ssh.
    pub shell: Vec<Vec<u8>>,
    /// `--rsync-path`, a text for the remote shell; `None`: the same name as this program was called by.
    pub program: Option<Vec<u8>>,
    /// How arguments are passed through the remote shell.
    pub args: ArgStyle,
    /// `-4`, `-6`
    pub family: Option<Family>,
    /// `--trust-sender`: entries from a remote sender are not checked against the request.
    pub trust_sender: bool,
    /// `--address`, for a daemon.
    pub address: Option<Vec<u8>>,
    /// `--port`, for a daemon; 0: not given.
    pub port: i32,
    /// `--protocol`: the newest version that a stock rsync is offered, or the one whose limits a local copy has; `None`:
    /// the newest one.
    pub protocol: Option<u8>,
    /// The other options for a daemon.
    pub daemon: DaemonOptions,
    /// `--max-alloc`: the most memory that the listing of one directory of the peer may take, in bytes; `None`: no
    /// limit.
    pub max_alloc_bytes: Option<u64>,
    /// `--timeout`: how long a peer may be silent before the run is given up; 0: no limit.
    pub timeout_secs: u32,
    /// `--contimeout`: how long a server may take to answer; 0: not given.
    pub contimeout_secs: u32,
    /// `--bwlimit`, in bytes per second; `None`: unlimited.
    pub bwlimit_bytes_per_sec: Option<u64>,
    /// `--iconv`: names are converted. `None`: they are not.
    pub iconv: Option<Iconv>,
    /// `-M--log-file`: the server writes a log, which it does only in rsync's own protocol.
    pub server_log: bool,
    /// `--stop-after`, `--stop-at`
    pub stop: Option<StopAt>,
}

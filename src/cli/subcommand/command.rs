//! What a subcommand requests, as values.

use crate::digest::HashAlgorithm;

/// The least memory that a server can be limited to, in bytes: enough for a few sessions.
pub const MEMORY_MIN_BYTES: u64 = 64 << 20;
/// The default port of a server, for both UDP and TCP.
pub const DEFAULT_PORT: u16 = 28792;

/// What a subcommand requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verb {
    /// `sparsync server ...`, here or on a host.
    Server(Box<ServerCommand>),
    /// `sparsync enroll ...`.
    Enroll(Box<Enroll>),
    /// `sparsync doctor ...`.
    Doctor(Box<Doctor>),
    /// `sparsync bench ...`.
    Bench(Box<Bench>),
    /// `sparsync hash ...`.
    Hash(Box<Hash>),
    /// `sparsync cache ...`.
    Cache(Box<Cache>),
    /// Prints the page of this name, exit 0. `None`: the help of the whole program.
    Help(Option<&'static str>),
}

/// An action on a server, here or on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCommand {
    pub action: ServerAction,
    /// The host; `None`: this machine.
    pub host: Option<RemoteHost>,
}

/// How a host is reached through a remote shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteHost {
    /// `[user@]host`, as the shell knows it.
    pub host: String,
    /// The command and arguments of `-e`; empty: ssh.
    pub shell: Vec<Vec<u8>>,
    /// The program on the host (`--rsync-path`); `None`: `sparsync`.
    pub program: Option<Vec<u8>>,
}

/// An action on a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAction {
    /// Starts the server, or reports that it runs.
    Start(Start),
    /// Stops the server, after its sessions have ended or at once.
    Stop {
        /// Without waiting for sessions.
        now: bool,
    },
    /// Stops and starts the server, with its old settings unless new ones are given.
    Restart {
        /// The new settings.
        start: Start,
        /// Without waiting for sessions.
        now: bool,
    },
    /// Prints the status.
    Status { json: bool },
    /// Prints metrics of the running server.
    Metrics,
    /// Writes a systemd unit.
    Install(Install),
    /// Lists the grants.
    Grants { json: bool },
    /// Prints the fingerprint of this user's key.
    Pin,
    /// Adds or changes the grant of a key.
    Grant(Box<NewGrant>),
    /// Removes grants.
    Revoke {
        /// A name or a pin.
        who: String,
        /// Stop the server if no grants are left.
        stop_unused: bool,
    },
    /// Runs one session on standard input and output. The server calls this itself.
    Session(Session),
    /// Forwards standard input and output to a server, as a remote shell for `-e`.
    Pipe {
        /// The IP address and port.
        address: String,
        /// The fingerprint of the key that the server must have.
        pin: String,
    },
}

/// How a server is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Start {
    /// Run in this process, for supervisors.
    pub foreground: bool,
    /// Run in this process, which was started for that: leave the terminal, and inform the starting process once the
    /// server listens.
    pub detached: bool,
    /// The addresses to listen on; empty: all addresses of this machine.
    pub listen: Vec<String>,
    /// The port for UDP and TCP. 0: a free one; `None`: the last one given, or [`DEFAULT_PORT`].
    pub port: Option<u16>,
    /// Choose another port if that one is in use.
    pub or_other_port: bool,
    /// The most memory that the server and its sessions may hold, in bytes; `None`: half of the machine's memory.
    pub memory: Option<u64>,
}

/// Which unit to write, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Install {
    /// `Some(true)`: for the whole machine; `Some(false)`: for the calling user; `None`: for the machine if that user
    /// is root.
    pub system: Option<bool>,
    /// Print the unit instead of writing it.
    pub dry_run: bool,
    /// The settings with which the unit starts the server.
    pub start: Start,
}

/// A key that gets a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewGrant {
    /// The key's fingerprint, as `SHA256:` and letters.
    pub pin: String,
    /// The name of the key's owner; `None`: unchanged.
    pub name: Option<String>,
    /// The name if the key has no grant yet.
    pub default_name: Option<String>,
    /// The changes to the key's rights.
    pub rights: Rights,
    /// Also start the server with these settings, if it does not run.
    pub start: Option<Start>,
    /// Answer in JSON.
    pub json: bool,
}

/// Changes to the rights of a key. Other rights stay unchanged; a new grant has no limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// The directories that the key may use; empty: unchanged, or all directories for a new grant.
    pub roots: Vec<Vec<u8>>,
    /// Whether the key may only read.
    pub read_only: Option<bool>,
    /// When the grant expires, as the user wrote it.
    pub expires: Option<String>,
    /// Remove the expiry.
    pub no_expiry: bool,
    /// Whether the key may create set-ID files and `security.` attributes below its roots.
    pub allow_setuid: Option<bool>,
    /// Whether a server run by root stores the key's symlinks unchanged, even those that lead out of the roots.
    pub no_munge: Option<bool>,
    /// `USER` or `USER:GROUP`, as which the sessions of the key run.
    pub owner: Option<String>,
    /// Remove the owner: sessions run as the user of the server.
    pub no_owner: bool,
}

/// Returns whether a text has the form of [`Rights::owner`].
pub fn is_owner(text: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && !name.contains(char::is_control);
    text.split(':').count() <= 2 && text.split(':').all(is_name)
}

/// The rights of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The directories that the session can access. Never empty.
    pub roots: Vec<Vec<u8>>,
    /// Whether it may only read.
    pub read_only: bool,
    /// See [`Rights::allow_setuid`].
    pub allow_setuid: bool,
    /// See [`Rights::no_munge`].
    pub no_munge: bool,
    /// See [`Rights::owner`]. `None`: the user of the server.
    pub owner: Option<String>,
    /// The inherited descriptor of the file that limits how far windows may grow; `None`: no limit.
    pub ceiling: Option<u32>,
    /// The most memory that the server and its sessions may hold together, in bytes.
    pub memory: Option<u64>,
    /// The client's last session held more memory than that: report this to the client.
    pub too_large: bool,
}

/// An action of `enroll`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enroll {
    /// Exchanges keys with a host.
    Host(EnrollHost),
    /// Lists the enrolled hosts.
    List { json: bool },
    /// Removes a host here, and this machine's key there.
    Revoke(RemoteHost),
}

/// A host to enroll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnrollHost {
    /// The host, and how a remote shell reaches it.
    pub reach: RemoteHost,
    /// The rights of this machine there.
    pub rights: Rights,
    /// The name of this machine there; `None`: unchanged, or `user@host` for a new grant.
    pub name: Option<String>,
    /// The port of the server there; `None`: the one that it has, the last one given, or [`DEFAULT_PORT`].
    pub port: Option<u16>,
    /// The addresses that the server there listens on; empty: all addresses.
    pub listen: Vec<String>,
    /// Start the server there, if it does not run.
    pub start: bool,
    /// Copy this program there, if it is missing.
    pub install: bool,
    /// Only print what would be done.
    pub dry_run: bool,
    /// Print the result as JSON.
    pub json: bool,
}

/// What `doctor` examines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doctor {
    /// The host to reach; `None`: only this machine.
    pub host: Option<RemoteHost>,
    /// The directory whose file system is examined; `None`: the working directory.
    pub path: Option<Vec<u8>>,
    /// Print one JSON object per check.
    pub json: bool,
}

/// What `bench` measures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bench {
    pub trees: BenchTrees,
    /// The hash functions of `bench hash`, each of which reads the trees; empty: they are listed or copied.
    pub algorithms: Vec<HashAlgorithm>,
    /// The numbers of workers; `None`: one, and that of a copy.
    pub workers: Option<Vec<usize>>,
    /// How many runs are measured for each row.
    pub repeats: usize,
    /// Also measure with empty caches.
    pub cold: bool,
    /// Print one JSON object per row.
    pub json: bool,
    /// Write a chart to this file.
    pub svg: Option<Vec<u8>>,
}

/// What `cache` does with the digests that `--checksum-cache` has stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// What is done.
    pub action: CacheAction,
    /// The directory of the digests; `None`: the usual one.
    pub dir: Option<Vec<u8>>,
}

/// See [`Cache`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheAction {
    /// Prints how many there are.
    Stat,
    /// Removes all.
    Clear,
    /// Reads all files of a tree and compares their contents with the digests.
    Verify {
        /// The directory, as it was named.
        tree: Vec<u8>,
        /// Show what was done so far.
        progress: bool,
        /// Trust the change times of any file system.
        force: bool,
        /// Print JSON objects.
        json: bool,
    },
}

/// The manifest that `hash` writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hash {
    /// The directory, as it was named.
    pub tree: Vec<u8>,
    pub algorithm: HashAlgorithm,
    /// The file for the manifest; `None`: standard output.
    pub output: Option<Vec<u8>>,
    /// The number of worker threads; `None`: that of a copy.
    pub workers: Option<usize>,
    /// Show what was done so far.
    pub progress: bool,
    /// Write one JSON object per file.
    pub json: bool,
}

/// The trees that `bench` lists, copies or reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BenchTrees {
    /// A tree that exists.
    Given {
        /// Its directory, without the last slash.
        source: Vec<u8>,
        /// The destination of `bench sync`; `None`: `bench scan` or `bench hash`.
        dest: Option<Vec<u8>>,
    },
    /// Trees that `bench` creates and removes.
    Created {
        /// Their shapes, one after the other.
        shapes: Vec<Shape>,
        /// The directory for them and their copies; `None`: a new temporary one.
        dir: Option<Vec<u8>>,
        /// Whether they are copied: `bench sync`.
        are_copied: bool,
    },
}

/// The shape of a tree that `bench` creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Many small files.
    Many,
    /// Few large files.
    Large,
    /// Directories in directories.
    Deep,
    /// Files of very different lengths.
    Mixed,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Shape; 4] = [Shape::Many, Shape::Large, Shape::Deep, Shape::Mixed];

    /// Returns the name for `--shape`.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Many => "many",
            Shape::Large => "large",
            Shape::Deep => "deep",
            Shape::Mixed => "mixed",
        }
    }
}

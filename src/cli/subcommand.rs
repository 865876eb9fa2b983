//! The subcommands `server`, `enroll`, `doctor` and `bench`: parses their arguments.
//!
//! A first argument is a subcommand only if the program was called by its own name, so that a script that calls it
//! `rsync` can copy a file named `server`. `./server` and `-- server` are always files. `server` is one too if no
//! action of a server follows.

mod bench;
mod doctor;
mod pages;

pub use bench::Bench;
pub use doctor::Doctor;

use super::value::{Given, shell, size};
use crate::error::{Error, Result};
use lexopt::Arg::{Long, Short, Value};
use std::ffi::{OsStr, OsString};
use std::net::Ipv6Addr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The least memory that a server can be limited to, in bytes: enough for a few sessions.
pub const MEMORY_MIN_BYTES: u64 = 64 << 20;
/// The default port of a server, for both UDP and TCP.
pub const DEFAULT_PORT: u16 = 28792;

/// What a subcommand requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verb {
    /// `sparsync server ...`, here or on a host.
    Server(Box<Server>),
    /// `sparsync enroll ...`.
    Enroll(Box<Enroll>),
    /// `sparsync doctor ...`.
    Doctor(Box<Doctor>),
    /// `sparsync bench ...`.
    Bench(Box<Bench>),
    /// Prints this page, exit 0.
    Help(Page),
}

/// Returns every subcommand that users need, such as `server start`, with its help.
pub fn help_pages() -> Vec<(String, &'static str)> {
    let actions = ACTIONS.into_iter().map(|action| (format!("server {action}"), pages::action(action)));
    let first =
        [("bench", pages::BENCH), ("doctor", pages::DOCTOR), ("enroll", pages::ENROLL), ("server", pages::SERVER)];
    let first = first.map(|(name, text)| (name.to_owned(), text));
    first.into_iter().chain(actions).filter(|(_, text)| !text.is_empty()).collect()
}

impl Page {
    /// Returns the text of the page. `all` creates the help of the whole program.
    pub fn text(self, all: impl FnOnce() -> String) -> String {
        match self {
            Page::All => all(),
            Page::Server => pages::SERVER.to_owned(),
            Page::Action(action) => pages::action(action).to_owned(),
            Page::Enroll => pages::ENROLL.to_owned(),
            Page::Doctor => pages::DOCTOR.to_owned(),
            Page::Bench => pages::BENCH.to_owned(),
        }
    }
}

/// An action on a server, here or on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The action.
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
    Status {
        /// As JSON.
        json: bool,
    },
    /// Prints metrics of the running server.
    Metrics,
    /// Writes a systemd unit.
    Install(Install),
    /// Lists the grants.
    Grants {
        /// As JSON.
        json: bool,
    },
    /// Prints the fingerprint of this user's key.
    Pin,
    /// Adds or changes the grant of a key.
    Grant(Box<NewGrant>),
    /// Removes grants.
    Revoke {
        /// A name or a pin.
        who: String,
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
    List {
        /// As JSON.
        json: bool,
    },
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

/// The actions of `server` that users need, as messages list them.
const SUBCOMMANDS: &str = "start, stop, restart, status, metrics, install, grants, grant, revoke or pin";

/// The actions of `server`. The last two are for programs.
const ACTIONS: [&str; 12] =
    ["start", "stop", "restart", "status", "metrics", "install", "grants", "grant", "revoke", "pin", "session", "pipe"];

/// Precedes a subcommand if the program has another name than its own. rsync knows no such option.
const VERB_FOLLOWS: &[u8] = b"--sparsync";

/// Returns the command line that makes a program of this name run a subcommand.
pub fn addressed(program: Vec<u8>, words: &[Vec<u8>]) -> Vec<Vec<u8>> {
    // The program may be the last of several words: `sudo sparsync`.
    let name = program.rsplit(|&b| b == b' ').next().unwrap_or_default();
    let marked = (!is_ours(name)).then(|| VERB_FOLLOWS.to_vec());
    std::iter::once(program).chain(marked).chain(words.iter().cloned()).collect()
}

fn is_ours(program: &[u8]) -> bool {
    crate::path::file_name(program).starts_with(b"sparsync")
}

/// A command line that is not a copy.
enum Recognized<'a> {
    /// `server`, with the arguments after it.
    Server(&'a [OsString]),
    /// `enroll`, with the arguments after it.
    Enroll(&'a [OsString]),
    /// `doctor`, with the arguments after it.
    Doctor(&'a [OsString]),
    /// `bench`, with the arguments after it.
    Bench(&'a [OsString]),
    /// A page of help.
    Help(Page),
    /// Probably a misspelling of this subcommand.
    Misspelled(String),
}

/// A page of help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// The help of the whole program.
    All,
    /// The help of `server`.
    Server,
    /// The help of this action of `server`.
    Action(&'static str),
    /// The help of `enroll`.
    Enroll,
    /// The help of `doctor`.
    Doctor,
    /// The help of `bench`.
    Bench,
}

/// Returns whether a command line is not a copy.
pub fn is_one(program: &OsStr, args: &[OsString]) -> bool {
    recognize(program, args).is_some()
}

/// Recognizes a command line that is not a copy; `None` if it is one.
fn recognize<'a>(program: &OsStr, args: &'a [OsString]) -> Option<Recognized<'a>> {
    let (is_marked, args) = match args.split_first() {
        Some((first, rest)) if first.as_bytes() == VERB_FOLLOWS => (true, rest),
        _ if is_ours(program.as_bytes()) => (false, args),
        _ => return None,
    };
    let (first, rest) = args.split_first()?;
    let first = first.to_str()?;
    let next = rest.first().and_then(|word| word.to_str());
    let is_path = |word: &str| word.contains(['/', ':', '.']);
    let action = rest.iter().filter_map(|word| word.to_str()).find(|word| !word.starts_with('-'));
    let is_action = action.is_some_and(|action| ACTIONS.contains(&action));
    match first {
        "server" => {
            let asks_help = next.is_none_or(|next| ["--help", "-h"].contains(&next));
            if is_marked || is_action || asks_help {
                return Some(Recognized::Server(rest));
            }
            let action = action.filter(|action| !is_path(action))?;
            let meant = ACTIONS.iter().find(|known| distance(action, known) <= 2)?;
            Some(Recognized::Misspelled(format!("server {meant}")))
        }
        "enroll" if is_marked || !next.is_some_and(|next| !next.starts_with('-') && next.contains('/')) => {
            Some(Recognized::Enroll(rest))
        }
        "doctor" if is_marked || !has_operand_of_copy(rest) => Some(Recognized::Doctor(rest)),
        "bench" if is_marked || next.is_some_and(|next| ["scan", "sync", "--help", "-h"].contains(&next)) => {
            Some(Recognized::Bench(rest))
        }
        "help" => match rest {
            [] => Some(Recognized::Help(Page::All)),
            [verb, action, ..] if verb == "server" => Some(Recognized::Help(page_of(action.to_str()))),
            [verb] if verb == "server" => Some(Recognized::Help(Page::Server)),
            [verb, ..] if verb == "enroll" => Some(Recognized::Help(Page::Enroll)),
            [verb, ..] if verb == "doctor" => Some(Recognized::Help(Page::Doctor)),
            [verb, ..] if verb == "bench" => Some(Recognized::Help(Page::Bench)),
            _ => None,
        },
        _ if is_path(first) || first.starts_with('-') => None,
        _ if is_action && distance(first, "server") <= 2 => {
            Some(Recognized::Misspelled(format!("server {}", action.unwrap_or_default())))
        }
        _ if distance(first, "enroll") <= 1 => {
            let host = next.filter(|next| rest.len() == 1 && !next.contains('/'))?;
            Some(Recognized::Misspelled(format!("enroll {host}")))
        }
        _ => None,
    }
}

/// Returns whether a word after `doctor` can only be an operand of a copy: a path, or a path on a host.
fn has_operand_of_copy(words: &[OsString]) -> bool {
    const WITH_VALUE: [&str; 4] = ["-e", "--rsh", "--path", "--rsync-path"];
    let mut is_value = false;
    words.iter().any(|word| {
        let bytes = word.as_bytes();
        let is_address = || word.to_str().is_some_and(|word| word.starts_with('[') || word.parse::<Ipv6Addr>().is_ok());
        let is_path = bytes.contains(&b'/') || bytes.contains(&b':') && !is_address();
        let is_operand = !is_value && !bytes.starts_with(b"-");
        is_value = !is_value && WITH_VALUE.iter().any(|option| word == option);
        is_operand && is_path
    })
}

/// Returns the error for `server` with a word that is none of its actions; `None` if the command line has another form. It
/// is a copy if there is a file named `server`.
pub fn unknown_action(program: &OsStr, args: &[OsString]) -> Option<Error> {
    let [server, action, rest @ ..] = args else { return None };
    let action = action.to_str().filter(|action| !action.starts_with('-') && !action.contains(['/', ':', '.']))?;
    let is_path = |word: &OsString| word.as_bytes().iter().any(|b| matches!(b, b'/' | b':'));
    if server != "server" || !is_ours(program.as_bytes()) || rest.iter().any(is_path) || is_one(program, args) {
        return None;
    }
    Some(no_such_action(&WordReader { verb: "server", parser: lexopt::Parser::from_args(rest) }, action))
}

fn no_such_action(words: &WordReader, action: &str) -> Error {
    words.wrong(&format!("no such subcommand `{action}`: expected {SUBCOMMANDS}"))
}

/// Returns whether a text has the form of [`Rights::owner`].
pub fn is_owner(text: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && !name.contains(char::is_control);
    text.split(':').count() <= 2 && text.split(':').all(is_name)
}

/// Returns the edit distance of two words, counting transpositions as one edit.
fn distance(word: &str, known: &str) -> usize {
    strsim::osa_distance(word, known)
}

/// Parses a command line that is not a copy; `None` if it is one.
pub fn read(program: &OsStr, args: &[OsString]) -> Option<Result<Verb>> {
    let words = |verb, rest: &[OsString]| WordReader { verb, parser: lexopt::Parser::from_args(rest.iter().cloned()) };
    Some(match recognize(program, args)? {
        Recognized::Server(rest) => server(&mut words("server", rest)),
        Recognized::Enroll(rest) => enroll(&mut words("enroll", rest)),
        Recognized::Doctor(rest) => doctor::read(&mut words("doctor", rest)),
        Recognized::Bench(rest) => bench::read(&mut words("bench", rest)),
        Recognized::Help(page) => Ok(Verb::Help(page)),
        Recognized::Misspelled(meant) => {
            let given: Vec<_> = args.iter().map(|word| word.to_string_lossy()).collect();
            let words = format!("sparsync: unknown command `{}`", given.join(" "));
            let hint =
                format!("did you mean `sparsync {meant}`? To copy a file of that name, use ./{}", given.first()?);
            Err(Error::usage(words).with_hint(hint))
        }
    })
}

impl ServerAction {
    /// Returns the command line that requests this action, from `server` on. Parsing it yields the same action.
    pub fn words(&self) -> Vec<Vec<u8>> {
        let mut line = CommandLine::default();
        match self {
            ServerAction::Start(start) => line.action("start").start(start),
            ServerAction::Stop { now } => line.action("stop").flag("now", *now),
            ServerAction::Restart { start, now } => line.action("restart").start(start).flag("now", *now),
            ServerAction::Status { json } => line.action("status").flag("json", *json),
            ServerAction::Metrics => line.action("metrics"),
            ServerAction::Install(Install { system, dry_run, start }) => {
                let [system, user] = [true, false].map(|is_system| *system == Some(is_system));
                line.action("install").start(start).flag("system", system).flag("user", user).flag("dry-run", *dry_run)
            }
            ServerAction::Grants { json } => line.action("grants").flag("json", *json),
            ServerAction::Pin => line.action("pin"),
            ServerAction::Grant(new) => {
                line.action("grant").operand(&new.pin).flag("json", new.json).values("name", &new.name);
                let Rights { roots, read_only, expires, no_expiry, allow_setuid, no_munge, owner, no_owner } =
                    &new.rights;
                line.flag("allow-setuid", *allow_setuid == Some(true))
                    .flag("strip-setuid", *allow_setuid == Some(false));
                line.flag("no-munge", *no_munge == Some(true)).flag("munge", *no_munge == Some(false));
                line.values("owner", owner).flag("no-owner", *no_owner);
                line.values("default-name", &new.default_name).values("root", roots);
                line.flag("read-only", *read_only == Some(true)).flag("read-write", *read_only == Some(false));
                line.values("expires", expires).flag("no-expiry", *no_expiry).flag("start", new.start.is_some());
                new.start.iter().fold(&mut line, |line, start| line.start(start))
            }
            ServerAction::Revoke { who } => line.action("revoke").operand(who),
            ServerAction::Session(Session {
                roots,
                read_only,
                allow_setuid,
                no_munge,
                owner,
                ceiling,
                memory,
                too_large,
            }) => {
                line.action("session").values("root", roots).flag("read-only", *read_only);
                line.flag("allow-setuid", *allow_setuid).flag("no-munge", *no_munge).values("owner", owner);
                line.values("ceiling", &ceiling.map(|number| number.to_string()));
                line.values("memory", &memory.map(|bytes| bytes.to_string())).flag("too-large", *too_large)
            }
            ServerAction::Pipe { address, pin } => line.action("pipe").operand(address).operand(pin),
        };
        line.words()
    }
}

/// Builds a command line.
#[derive(Default)]
struct CommandLine {
    action: &'static str,
    operands: Vec<Vec<u8>>,
    options: Vec<Vec<u8>>,
}

impl CommandLine {
    fn action(&mut self, action: &'static str) -> &mut CommandLine {
        self.action = action;
        self
    }

    fn operand(&mut self, operand: &str) -> &mut CommandLine {
        self.operands.push(operand.into());
        self
    }

    fn flag(&mut self, name: &str, is_on: bool) -> &mut CommandLine {
        self.options.extend(is_on.then(|| format!("--{name}").into_bytes()));
        self
    }

    fn value(&mut self, name: &str, value: &[u8]) -> &mut CommandLine {
        self.options.push([b"--", name.as_bytes(), b"=", value].concat());
        self
    }

    fn values<'a, V: AsRef<[u8]> + 'a>(
        &mut self,
        name: &str,
        values: impl IntoIterator<Item = &'a V>,
    ) -> &mut CommandLine {
        values.into_iter().fold(self, |line, value| line.value(name, value.as_ref()))
    }

    fn start(&mut self, start: &Start) -> &mut CommandLine {
        self.flag("foreground", start.foreground).flag("detached", start.detached).values("listen", &start.listen);
        self.values("port", &start.port.map(|port| port.to_string())).flag("or-other-port", start.or_other_port);
        self.values("memory", &start.memory.map(|bytes| bytes.to_string()))
    }

    fn words(self) -> Vec<Vec<u8>> {
        let begin = vec![b"server".to_vec(), self.action.into()];
        if self.operands.iter().any(|operand| operand.starts_with(b"-")) {
            return [begin, self.options, vec![b"--".to_vec()], self.operands].concat();
        }
        [begin, self.operands, self.options].concat()
    }
}

/// The arguments after a subcommand.
struct WordReader {
    verb: &'static str,
    parser: lexopt::Parser,
}

impl WordReader {
    fn wrong(&self, what: &str) -> Error {
        let verb = self.verb;
        Error::usage(format!("sparsync {verb}: {what}")).with_hint(format!("see `sparsync {verb} --help`"))
    }

    fn next(&mut self) -> Result<Option<lexopt::Arg<'_>>> {
        // The message of lexopt ("unexpected argument ...") becomes part of the error.
        let verb = self.verb;
        self.parser.next().map_err(|error| {
            Error::usage(format!("sparsync {verb}: {error}")).with_hint(format!("see `sparsync {verb} --help`"))
        })
    }

    fn value(&mut self, of: &str) -> Result<OsString> {
        self.parser.value().map_err(|_| self.wrong(&format!("missing value for {of}")))
    }

    fn text(&mut self, of: &str) -> Result<String> {
        let value = self.value(of)?;
        value.into_string().map_err(|_| self.wrong(&format!("the value of {of} is not UTF-8")))
    }

    fn port(&mut self, least: u16) -> Result<u16> {
        let text = self.text("--port")?;
        let port = text.parse().ok().filter(|port| *port >= least);
        port.ok_or_else(|| {
            self.wrong(&format!("invalid --port value `{text}`: expected a number from {least} to 65535"))
        })
    }

    fn memory(&mut self) -> Result<u64> {
        let text = self.text("--memory")?;
        let given = Given { value: text.as_bytes(), word: text.as_bytes() };
        let bytes = size::size(&given, "memory", b'b', &size::ANY).ok().filter(|&bytes| bytes >= MEMORY_MIN_BYTES);
        bytes.ok_or_else(|| {
            self.wrong(&format!("invalid --memory value `{text}`: expected a size of at least 64M, such as 4G"))
        })
    }

    /// The number of an open file.
    fn ceiling(&mut self) -> Result<u32> {
        let text = self.text("--ceiling")?;
        text.parse().map_err(|_| self.wrong(&format!("invalid --ceiling value `{text}`: expected a file descriptor")))
    }

    fn root(&mut self) -> Result<Vec<u8>> {
        let root = self.value("--root")?;
        let bytes = root.as_bytes();
        let climbs = bytes.split(|&b| b == b'/').any(|part| part == b"..");
        if bytes.first() != Some(&b'/') || climbs || root.to_str().is_none() {
            let shown = root.to_string_lossy();
            return Err(
                self.wrong(&format!("invalid --root value `{shown}`: expected an absolute path in UTF-8 without `..`"))
            );
        }
        Ok(root.into_vec())
    }

    fn listen(&mut self) -> Result<String> {
        let address = self.text("--listen")?;
        if address.parse::<std::net::IpAddr>().is_err() {
            let what = format!("invalid --listen value `{address}`: expected an IP address, without a port");
            return Err(self.wrong(&what));
        }
        Ok(address)
    }

    fn owner(&mut self) -> Result<String> {
        let owner = self.text("--owner")?;
        match is_owner(&owner) {
            true => Ok(owner),
            false => Err(self.wrong(&format!("invalid --owner value `{owner}`: expected USER or USER:GROUP"))),
        }
    }

    /// Parses one of the options for the rights of a key.
    fn rights(&mut self, name: &str, rights: &mut Rights) -> Result<()> {
        match name {
            "root" => rights.roots.push(self.root()?),
            "read-only" => rights.read_only = Some(true),
            "read-write" => rights.read_only = Some(false),
            "no-expiry" => rights.no_expiry = true,
            "allow-setuid" => rights.allow_setuid = Some(true),
            "strip-setuid" => rights.allow_setuid = Some(false),
            "no-munge" => rights.no_munge = Some(true),
            "munge" => rights.no_munge = Some(false),
            "owner" => rights.owner = Some(self.owner()?),
            "no-owner" => rights.no_owner = true,
            _ => rights.expires = Some(self.text("--expires")?),
        }
        if rights.no_expiry && rights.expires.is_some() {
            return Err(self.wrong("--expires cannot be used with --no-expiry"));
        }
        if rights.no_owner && rights.owner.is_some() {
            return Err(self.wrong("--owner cannot be used with --no-owner"));
        }
        Ok(())
    }

    fn shell(&mut self) -> Result<Vec<Vec<u8>>> {
        let text = self.value("-e")?;
        let words = shell::split(text.as_bytes())?;
        if words.is_empty() { Err(self.wrong("missing command for -e")) } else { Ok(words) }
    }

    /// Checks a host name, and returns it in the form that a remote shell expects.
    fn host(&self, word: &str) -> Result<String> {
        let (user, name) = word.rsplit_once('@').map_or((None, word), |(user, name)| (Some(user), name));
        // An address may have brackets, as it has before the colon of a path. ssh accepts it only without them.
        let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '/';
        if name.is_empty() || user == Some("") || word.starts_with('-') || !word.chars().all(is_plain) {
            return Err(self.wrong(&format!("invalid host `{word}`: expected HOST or USER@HOST")));
        }
        // A link-local address names its interface: fe80::1%eth0.
        let address = name.split_once('%').filter(|(_, interface)| !interface.is_empty()).map_or(name, |(ip, _)| ip);
        if name.ends_with(':') || name.contains(':') && address.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(self.wrong(&format!("invalid host `{word}`: expected HOST or USER@HOST, without a colon")));
        }
        Ok(user.map_or_else(|| name.to_owned(), |user| format!("{user}@{name}")))
    }
}

/// An argument that no longer borrows from the parser.
enum Argument {
    Long(String),
    Short(char),
    Value(OsString),
}

impl WordReader {
    fn word(&mut self) -> Result<Option<Argument>> {
        Ok(self.next()?.map(|arg| match arg {
            Long(name) => Argument::Long(name.to_owned()),
            Short(letter) => Argument::Short(letter),
            Value(value) => Argument::Value(value),
        }))
    }
}

/// All arguments after `server`. Which of them the action accepts is checked at the end.
#[derive(Default)]
struct ServerWords {
    operands: Vec<String>,
    given: Vec<&'static str>,
    start: Start,
    now: bool,
    json: bool,
    system: Option<bool>,
    dry_run: bool,
    name: Option<String>,
    default_name: Option<String>,
    rights: Rights,
    ceiling: Option<u32>,
    too_large: bool,
    starts: bool,
    shell: Vec<Vec<u8>>,
    program: Option<Vec<u8>>,
}

impl ServerWords {
    fn action(&self) -> Option<&str> {
        self.operands.first().map(String::as_str)
    }
}

/// Returns the help of this action of `server`; that of `server` if it has none of its own.
fn page_of(action: Option<&str>) -> Page {
    let known = ACTIONS.into_iter().find(|known| action == Some(known) && !pages::action(known).is_empty());
    known.map_or(Page::Server, Page::Action)
}

fn server(words: &mut WordReader) -> Result<Verb> {
    let mut got = ServerWords::default();
    while let Some(word) = words.word()? {
        let name = match word {
            Argument::Long(name) if name == "help" => return Ok(Verb::Help(page_of(got.action()))),
            Argument::Short('h') => return Ok(Verb::Help(page_of(got.action()))),
            Argument::Short('e') => "rsh".to_owned(),
            Argument::Short('n') => "dry-run".to_owned(),
            Argument::Short(letter) => return Err(words.wrong(&format!("unknown option -{letter}"))),
            Argument::Long(name) => name,
            Argument::Value(operand) => {
                let operand = operand.into_string().map_err(|_| words.wrong("an argument is not UTF-8"))?;
                got.operands.push(operand);
                continue;
            }
        };
        let known = SERVER_OPTIONS.iter().find(|(known, _)| **known == name);
        let Some((known, _)) = known else {
            return Err(words.wrong(&format!("unknown option --{name}")));
        };
        got.given.push(known);
        match *known {
            "foreground" => got.start.foreground = true,
            "detached" => got.start.detached = true,
            "listen" => got.start.listen.push(words.listen()?),
            "port" => got.start.port = Some(words.port(0)?),
            "or-other-port" => got.start.or_other_port = true,
            "memory" => got.start.memory = Some(words.memory()?),
            "ceiling" => got.ceiling = Some(words.ceiling()?),
            "too-large" => got.too_large = true,
            "now" => got.now = true,
            "json" => got.json = true,
            "system" => got.system = Some(true),
            "user" => got.system = Some(false),
            "dry-run" => got.dry_run = true,
            "name" => got.name = Some(words.text("--name")?),
            "default-name" => got.default_name = Some(words.text("--default-name")?),
            known if RIGHTS.contains(&known) => words.rights(known, &mut got.rights)?,
            "start" => got.starts = true,
            "rsh" => got.shell = words.shell()?,
            "rsync-path" => got.program = Some(words.value("--rsync-path")?.into_vec()),
            other => return Err(words.wrong(&format!("unknown option --{other}"))),
        }
    }
    settle_server(words, got)
}

/// The options for the rights of a key.
const RIGHTS: [&str; 11] = [
    "root",
    "read-only",
    "read-write",
    "expires",
    "no-expiry",
    "allow-setuid",
    "strip-setuid",
    "no-munge",
    "munge",
    "owner",
    "no-owner",
];

/// The actions that can run on a host.
const ON_A_HOST: [&str; 10] =
    ["start", "stop", "restart", "status", "metrics", "install", "grants", "grant", "revoke", "pin"];

/// The options of `server`, and the actions that accept them.
const SERVER_OPTIONS: [(&str, &[&str]); 29] = [
    ("foreground", &["start"]),
    ("detached", &["start"]),
    ("listen", &["start", "restart", "install", "grant"]),
    ("port", &["start", "restart", "install", "grant"]),
    ("or-other-port", &["start"]),
    ("memory", &["start", "restart", "install", "grant", "session"]),
    ("ceiling", &["session"]),
    ("too-large", &["session"]),
    ("now", &["stop", "restart"]),
    ("json", &["status", "grants", "grant"]),
    ("system", &["install"]),
    ("user", &["install"]),
    ("dry-run", &["install"]),
    ("name", &["grant"]),
    ("default-name", &["grant"]),
    ("root", &["grant", "session"]),
    ("read-only", &["grant", "session"]),
    ("read-write", &["grant"]),
    ("expires", &["grant"]),
    ("no-expiry", &["grant"]),
    ("allow-setuid", &["grant", "session"]),
    ("strip-setuid", &["grant"]),
    ("no-munge", &["grant", "session"]),
    ("munge", &["grant"]),
    ("owner", &["grant", "session"]),
    ("no-owner", &["grant"]),
    ("start", &["grant"]),
    ("rsh", &ON_A_HOST),
    ("rsync-path", &ON_A_HOST),
];

fn settle_server(words: &WordReader, got: ServerWords) -> Result<Verb> {
    let ServerWords { operands, given, start, now, json, system, dry_run, shell, program, .. } = got;
    let mut operands = operands.into_iter();
    let Some(action) = operands.next() else {
        return Err(words.wrong(&format!("missing subcommand: {SUBCOMMANDS}")));
    };
    if action == "grant" && !got.starts && start != Start::default() {
        return Err(words.wrong("--listen, --port and --memory require --start"));
    }
    let for_whom = |operands: &mut dyn Iterator<Item = String>, what: &str| {
        operands.next().ok_or_else(|| words.wrong(&format!("{action}: missing {what}")))
    };
    let settled = match action.as_str() {
        "start" => ServerAction::Start(start),
        "stop" => ServerAction::Stop { now },
        "restart" => ServerAction::Restart { start, now },
        "status" => ServerAction::Status { json },
        "metrics" => ServerAction::Metrics,
        "install" => ServerAction::Install(Install { system, dry_run, start }),
        "grants" => ServerAction::Grants { json },
        "pin" => ServerAction::Pin,
        "grant" => ServerAction::Grant(Box::new(NewGrant {
            pin: for_whom(&mut operands, "the fingerprint of a key, SHA256:...")?,
            name: got.name,
            default_name: got.default_name,
            rights: got.rights,
            start: got.starts.then_some(start),
            json,
        })),
        "revoke" => ServerAction::Revoke {
            who: for_whom(&mut operands, "a name or a fingerprint, as listed by `sparsync server grants`")?,
        },
        "pipe" => ServerAction::Pipe {
            address: for_whom(&mut operands, "the address of a server, such as 192.0.2.1:28792")?,
            pin: for_whom(&mut operands, "the fingerprint of the server's key, SHA256:...")?,
        },
        "session" if got.rights.roots.is_empty() => return Err(words.wrong("session: missing --root")),
        "session" => {
            let ServerWords { rights, ceiling, too_large, .. } = got;
            let [read_only, allow_setuid, no_munge] =
                [rights.read_only, rights.allow_setuid, rights.no_munge].map(|flag| flag == Some(true));
            let (roots, owner, memory) = (rights.roots, rights.owner, start.memory);
            ServerAction::Session(Session {
                roots,
                read_only,
                allow_setuid,
                no_munge,
                owner,
                ceiling,
                memory,
                too_large,
            })
        }
        other => return Err(no_such_action(words, other)),
    };
    for (name, takers) in SERVER_OPTIONS {
        if given.contains(&name) && !takers.contains(&action.as_str()) {
            return Err(words.wrong(&format!("--{name} cannot be used with {action}, only with {}", takers.join(", "))));
        }
    }
    if let (ServerAction::Session(_), Some(host)) = (&settled, operands.as_slice().first()) {
        return Err(words.wrong(&format!("unexpected argument `{host}`: session takes no host")));
    }
    let host = match operands.next() {
        Some(host) => Some(RemoteHost { host: words.host(&host)?, shell, program }),
        None if !shell.is_empty() || program.is_some() => {
            return Err(words.wrong("-e and --rsync-path require a HOST"));
        }
        None => None,
    };
    if let Some(extra) = operands.next() {
        return Err(words.wrong(&format!("unexpected argument `{extra}`")));
    }
    Ok(Verb::Server(Box::new(Server { action: settled, host })))
}

fn enroll(words: &mut WordReader) -> Result<Verb> {
    let (mut host, mut list, mut revoke, mut json) = (None::<String>, false, None::<String>, false);
    let mut given = Vec::new();
    let mut wanted = EnrollHost {
        reach: RemoteHost { host: String::new(), shell: Vec::new(), program: None },
        rights: Rights::default(),
        name: None,
        port: None,
        listen: Vec::new(),
        start: true,
        install: false,
        dry_run: false,
        json: false,
    };
    while let Some(word) = words.word()? {
        let name = match word {
            Argument::Short('h') => return Ok(Verb::Help(Page::Enroll)),
            Argument::Short('e') => "rsh".to_owned(),
            Argument::Short('n') => "dry-run".to_owned(),
            Argument::Short(letter) => return Err(words.wrong(&format!("unknown option -{letter}"))),
            Argument::Long(name) => name,
            Argument::Value(operand) => {
                let operand = operand.into_string().map_err(|_| words.wrong("the host is not UTF-8"))?;
                if let Some(first) = &host {
                    return Err(words.wrong(&format!("unexpected argument `{operand}`: the host is `{first}` already")));
                }
                host = Some(operand);
                continue;
            }
        };
        match name.as_str() {
            "help" => return Ok(Verb::Help(Page::Enroll)),
            "list" => list = true,
            "json" => json = true,
            "revoke" => revoke = Some(words.text("--revoke")?),
            "rsh" => wanted.reach.shell = words.shell()?,
            "rsync-path" => wanted.reach.program = Some(words.value("--rsync-path")?.into_vec()),
            known if RIGHTS.contains(&known) => words.rights(known, &mut wanted.rights)?,
            "name" => wanted.name = Some(words.text("--name")?),
            "port" => wanted.port = Some(words.port(1)?),
            "listen" => wanted.listen.push(words.listen()?),
            "no-start" => wanted.start = false,
            "install" => wanted.install = true,
            "dry-run" => wanted.dry_run = true,
            other => return Err(words.wrong(&format!("unknown option --{other}"))),
        }
        given.push(name);
    }
    if json && wanted.dry_run {
        return Err(words.wrong("--json cannot be used with --dry-run"));
    }
    wanted.json = json;
    let allowed: &[&str] = match (list, &revoke) {
        (true, Some(_)) => return Err(words.wrong("--list cannot be used with --revoke")),
        (true, None) => &["list", "json"],
        (false, Some(_)) => &["revoke", "rsh", "rsync-path"],
        (false, None) => &["rsh", "rsync-path", "name", "port", "listen", "no-start", "install", "dry-run", "json"],
    };
    let is_new = !list && revoke.is_none();
    let is_allowed = |name: &str| allowed.contains(&name) || is_new && RIGHTS.contains(&name);
    if let Some(odd) = given.iter().find(|name| !is_allowed(name)) {
        let why = if list { "cannot be used with --list" } else { "cannot be used with --revoke" };
        return Err(words.wrong(&format!("--{odd} {why}")));
    }
    let enroll = match (host, revoke) {
        (Some(host), _) if list => {
            return Err(words.wrong(&format!("unexpected argument `{host}`: --list lists all hosts")));
        }
        (Some(host), Some(_)) => {
            return Err(words.wrong(&format!("unexpected argument `{host}`: --revoke=HOST names the host already")));
        }
        (None, None) if list => Enroll::List { json },
        (None, Some(host)) => Enroll::Revoke(RemoteHost { host: words.host(&host)?, ..wanted.reach }),
        (Some(host), None) => {
            wanted.reach.host = words.host(&host)?;
            Enroll::Host(wanted)
        }
        (None, None) => return Err(words.wrong("missing HOST: expected HOST or USER@HOST, as for ssh")),
    };
    Ok(Verb::Enroll(Box::new(enroll)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    fn parsed(line: &str) -> Option<Result<Verb>> {
        let mut words = line.split_whitespace().map(OsString::from);
        let program = words.next().unwrap();
        read(&program, &words.collect::<Vec<_>>())
    }

    fn server(line: &str) -> Server {
        match parsed(&format!("sparsync server {line}")) {
            Some(Ok(Verb::Server(server))) => *server,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn refused(line: &str) -> String {
        match parsed(&format!("/usr/bin/sparsync {line}")) {
            Some(Err(error)) if error.exit == crate::exit::Exit::Usage => String::from_utf8(error.text()).unwrap(),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn subcommand_must_be_the_first_word_of_sparsync() {
        for copy in
            ["sparsync ./server x", "sparsync -- server x", "sparsync -a server x", "rsync server start", "sparsync"]
                .into_iter()
                .chain(["sparsync server v/", "sparsync server -a v/", "sparsync server host:v", "sparsync enroll v/"])
                .chain(["sparsync help v/", "sparsync sewer v/", "sparsync enrol a b", "sparsync ./enrol box"])
                .chain([
                    "sparsync doctor v/",
                    "sparsync doctor h:v",
                    "sparsync -a doctor v",
                    "sparsync ./doctor",
                    "rsync doctor",
                ])
                .chain(["sparsync bench", "sparsync bench x", "rsync bench scan x"])
        {
            assert_eq!(parsed(copy), None, "{copy}");
        }
        assert!(parsed("/x/rsync enroll host").is_none());
        assert!(matches!(parsed("./sparsync server status"), Some(Ok(Verb::Server(_)))));
        assert!(matches!(parsed("/x/rsync --sparsync server status"), Some(Ok(Verb::Server(_)))));
        for (line, help) in [
            ("server --help", Page::Server),
            ("enroll -h", Page::Enroll),
            ("server start --help", Page::Action("start")),
        ]
        .into_iter()
        .chain([("server session --help", Page::Server), ("server --now stop -h", Page::Action("stop"))])
        .chain([("help server grant", Page::Action("grant")), ("help server x", Page::Server)])
        .chain([("help", Page::All), ("help server", Page::Server), ("help enroll", Page::Enroll)])
        .chain([("doctor --help", Page::Doctor), ("doctor h -h", Page::Doctor), ("help doctor", Page::Doctor)])
        {
            assert_eq!(parsed(&format!("sparsync {line}")), Some(Ok(Verb::Help(help))), "{line}");
        }
    }

    #[test]
    fn help_pages_list_every_option_and_an_example() {
        const INTERNAL: [&str; 5] = ["detached", "or-other-port", "ceiling", "too-large", "default-name"];
        for action in ACTIONS.into_iter().filter(|action| !["session", "pipe"].contains(action)) {
            let page = pages::action(action);
            assert!(pages::SERVER.contains(&format!("\n  {action}")), "{action}");
            assert!(page.contains(&format!("Usage: sparsync server {action}")), "{action}");
            for (name, takers) in SERVER_OPTIONS {
                let is_listed = takers.contains(&action) && !INTERNAL.contains(&name);
                assert_eq!(page.contains(&format!("\n  --{name}")), is_listed, "{action}: {name}");
            }
        }
        let all = ACTIONS.into_iter().map(pages::action).filter(|page| !page.is_empty());
        for page in all.chain([pages::SERVER, pages::ENROLL, pages::DOCTOR, pages::BENCH]) {
            assert!(page.contains("\nEXAMPLES\n"), "{page}");
            assert!(page.lines().all(|line| line.len() <= 100), "{page}");
        }
    }

    #[test]
    fn misspelled_subcommand_is_an_error_with_a_suggestion() {
        for (line, meant) in [
            ("sevrer start", "server start"),
            ("serve status", "server status"),
            ("server strat", "server start"),
            ("server restat", "server restart"),
            ("enrol box", "enroll box"),
            ("enrolll me@box", "enroll me@box"),
        ] {
            let error = refused(line);
            assert!(error.contains(&format!("did you mean `sparsync {meant}`?")), "{error}");
        }
    }

    #[test]
    fn an_action_that_does_not_exist_is_reported_unless_it_may_be_a_path() {
        let unknown = |line: &str| {
            let words: Vec<_> = line.split_whitespace().map(OsString::from).collect();
            unknown_action(&words[0], &words[1..]).map(|error| String::from_utf8(error.message).unwrap())
        };
        for line in ["sparsync server x", "./sparsync server frobnicate box", "sparsync server x box.example.org"] {
            assert!(unknown(line).is_some_and(|error| error.contains(": no such subcommand `")), "{line}");
        }
        for line in
            ["rsync server x", "sparsync ./server x", "sparsync server", "sparsync server -a x", "sparsync server x/"]
                .into_iter()
                .chain([
                    "sparsync server h:x",
                    "sparsync server x y/",
                    "sparsync server start",
                    "sparsync server strat",
                ])
                .chain(["sparsync server x.old", "sparsync servers x", "sparsync -a server x"])
        {
            assert_eq!(unknown(line), None, "{line}");
        }
    }

    #[test]
    fn every_server_option_is_accepted() {
        for (name, takers) in SERVER_OPTIONS {
            let results = [name.to_owned(), format!("{name}=x")].map(|option| {
                let rest = ["sparsync", "server", takers[0]].map(OsString::from);
                read(&rest[0], &[&rest[1..], &[format!("--{option}").into()]].concat())
            });
            for read in results {
                let words = read.map(|read| read.map_err(|error| String::from_utf8(error.message).unwrap()));
                assert!(!matches!(words, Some(Err(words)) if words.contains("unknown option")), "{name}");
            }
        }
    }

    fn starts(in_this_process: bool) -> impl Strategy<Value = Start> {
        let listen = prop_oneof![Just("::1".to_owned()), Just("192.0.2.1".to_owned())];
        let flags = any::<[bool; 3]>();
        let memory = option::of(MEMORY_MIN_BYTES..1 << 50);
        (flags, vec(listen, 0..3), option::of(any::<u16>()), memory).prop_map(move |(flags, listen, port, memory)| {
            let [foreground, detached, or_other_port] = flags.map(|flag| flag && in_this_process);
            Start { foreground, detached, listen, port, or_other_port, memory }
        })
    }

    fn actions() -> impl Strategy<Value = ServerAction> {
        let word = || prop_oneof!["[-=a-z :]{0,6}", "\\PC{0,6}"];
        let root = || prop_oneof!["/[-=a-z /]{0,6}", "/[^./]{0,6}"].prop_map(String::into_bytes);
        let flags = any::<[Option<bool>; 3]>();
        let owner = || option::of("[-a-z0-9]{1,3}(:[a-z0-9é_.-]{1,3})?");
        let rights = (vec(root(), 0..3), flags, option::of(word()), owner(), any::<[bool; 2]>());
        let rights =
            rights.prop_map(|(roots, [read_only, allow_setuid, no_munge], expires, owner, [no_expiry, no_owner])| {
                let (no_expiry, no_owner) = (no_expiry && expires.is_none(), no_owner && owner.is_none());
                Rights { roots, read_only, expires, no_expiry, allow_setuid, no_munge, owner, no_owner }
            });
        let names = (word(), option::of(word()), option::of(word()));
        let grants = (names, rights, option::of(starts(false)), any::<bool>());
        let grants = grants.prop_map(|((pin, name, default_name), rights, start, json)| {
            ServerAction::Grant(Box::new(NewGrant { pin, name, default_name, rights, start, json }))
        });
        prop_oneof![
            starts(true).prop_map(ServerAction::Start),
            any::<bool>().prop_map(|now| ServerAction::Stop { now }),
            (starts(false), any::<bool>()).prop_map(|(start, now)| ServerAction::Restart { start, now }),
            any::<bool>().prop_map(|json| ServerAction::Status { json }),
            (any::<Option<bool>>(), any::<bool>(), starts(false))
                .prop_map(|(system, dry_run, start)| ServerAction::Install(Install { system, dry_run, start })),
            any::<bool>().prop_map(|json| ServerAction::Grants { json }),
            Just(ServerAction::Pin),
            Just(ServerAction::Metrics),
            grants,
            word().prop_map(|who| ServerAction::Revoke { who }),
            (
                vec(root(), 1..3),
                any::<[bool; 4]>(),
                owner(),
                option::of(any::<u32>()),
                option::of(MEMORY_MIN_BYTES..1 << 50)
            )
                .prop_map(
                    |(roots, [read_only, allow_setuid, no_munge, too_large], owner, ceiling, memory)| {
                        ServerAction::Session(Session {
                            roots,
                            read_only,
                            allow_setuid,
                            no_munge,
                            owner,
                            ceiling,
                            memory,
                            too_large,
                        })
                    }
                ),
            (word(), word()).prop_map(|(address, pin)| ServerAction::Pipe { address, pin }),
        ]
    }

    proptest! {
        #[test]
        fn server_action_survives_formatting_and_parsing(action in actions()) {
            let words: Vec<_> = action.words().into_iter().map(OsString::from_vec).collect();
            let remote = Server { action, host: None };
            prop_assert_eq!(read(OsStr::new("sparsync"), &words), Some(Ok(Verb::Server(Box::new(remote)))), "{:?}", words);
        }
    }

    #[test]
    fn server_arguments_are_parsed() {
        let local = |action| Server { action, host: None };
        assert_eq!(server("start"), local(ServerAction::Start(Start::default())));
        let start = Start {
            port: Some(0),
            listen: vec!["::1".into()],
            foreground: true,
            memory: Some(4 << 30),
            ..Start::default()
        };
        assert_eq!(server("start --foreground --port 0 --listen=::1 --memory=4G"), local(ServerAction::Start(start)));
        assert_eq!(server("stop --now"), local(ServerAction::Stop { now: true }));
        assert_eq!(server("status --json"), local(ServerAction::Status { json: true }));
        assert_eq!(server("revoke laptop"), local(ServerAction::Revoke { who: "laptop".into() }));
        let session = Session {
            roots: vec![b"/a".to_vec(), b"/b".to_vec()],
            read_only: true,
            allow_setuid: false,
            no_munge: false,
            owner: Some("u:g".into()),
            ceiling: Some(7),
            memory: None,
            too_large: false,
        };
        assert_eq!(
            server("session --root /a --root=/b --read-only --owner=u:g --ceiling 7"),
            local(ServerAction::Session(session))
        );
        let remote = server("revoke laptop u@host -e rsh --rsync-path=/x/sparsync");
        let reach =
            RemoteHost { host: "u@host".into(), shell: vec![b"rsh".to_vec()], program: Some(b"/x/sparsync".to_vec()) };
        assert_eq!(remote, Server { action: ServerAction::Revoke { who: "laptop".into() }, host: Some(reach) });
        for (misspelled, meant) in
            [("u@[::1]", "u@::1"), ("[fe80::1]", "fe80::1"), ("::1", "::1"), ("a@fe80::1%eth0", "a@fe80::1%eth0")]
        {
            assert_eq!(server(&format!("status {misspelled}")).host.map(|reach| reach.host).as_deref(), Some(meant));
        }
        let ServerAction::Grant(grant) =
            server("grant SHA256:x --name n --root /a --expires 30d --start --port 7").action
        else {
            panic!("no grant")
        };
        assert_eq!((grant.name.as_deref(), grant.rights.expires.as_deref()), (Some("n"), Some("30d")));
        assert_eq!(grant.start.unwrap().port, Some(7));
    }

    #[test]
    fn enroll_arguments_are_parsed() {
        let Some(Ok(Verb::Enroll(enroll))) = parsed(
            "sparsync enroll --root=/a --root /b --read-only --expires 2027-01-01 --name me --port 99 --no-start --install \
             -n -e rsh u@host",
        ) else {
            panic!("not read")
        };
        let Enroll::Host(host) = *enroll else { panic!("{enroll:?}") };
        assert_eq!((host.rights.roots.len(), host.rights.read_only), (2, Some(true)));
        assert_eq!((host.port, host.start), (Some(99), false));
        assert!(host.install && host.dry_run && host.reach.host == "u@host" && host.name.as_deref() == Some("me"));
        assert_eq!(
            parsed("sparsync enroll --list --json"),
            Some(Ok(Verb::Enroll(Box::new(Enroll::List { json: true }))))
        );
        assert!(
            matches!(parsed("sparsync enroll --revoke h"), Some(Ok(Verb::Enroll(e))) if matches!(*e, Enroll::Revoke(_)))
        );
    }

    #[test]
    fn doctor_arguments_are_parsed() {
        let Some(Ok(Verb::Doctor(doctor))) = parsed("sparsync doctor --json --path /mnt u@h -e rsh --rsync-path=x")
        else {
            panic!("not read")
        };
        let host = RemoteHost { host: "u@h".into(), shell: vec![b"rsh".to_vec()], program: Some(b"x".to_vec()) };
        assert_eq!(*doctor, Doctor { host: Some(host), path: Some(b"/mnt".to_vec()), json: true });
        for (given, host) in [("::1", "::1"), ("[::1]", "::1")] {
            let Some(Ok(Verb::Doctor(doctor))) = parsed(&format!("sparsync doctor {given}")) else { panic!("{given}") };
            assert_eq!(doctor.host.map(|reach| reach.host).as_deref(), Some(host));
        }
    }

    #[test]
    fn bench_arguments_are_parsed() {
        let bench = Bench { source: b"a".to_vec(), dest: Some(b"b".to_vec()), repeats: 3, cold: true, json: true };
        let line = "sparsync bench sync --repeat=3 a --cold b --json";
        assert_eq!(parsed(line), Some(Ok(Verb::Bench(Box::new(bench)))));
        assert_eq!(parsed("sparsync bench -h"), Some(Ok(Verb::Help(Page::Bench))));
    }

    #[test]
    fn argument_errors_name_the_cause_and_a_help_page() {
        for (line, words) in [
            ("server", "missing subcommand: start, stop"),
            ("server start --colour", "unknown option --colour"),
            ("server start -q", "unknown option -q"),
            ("server start --port", "missing value for --port"),
            ("server start --port=70000", "invalid --port value `70000`"),
            ("server start --memory=64", "`64`: expected a size of at least 64M"),
            ("server start --memory=much", "invalid --memory value `much`"),
            ("server start --ceiling=3", "--ceiling cannot be used with start"),
            ("server start --listen host", "invalid --listen value `host`"),
            ("server start --now", "--now cannot be used with start, only with stop, restart"),
            ("server start a b", "unexpected argument `b`"),
            ("server start -e rsh", "-e and --rsync-path require a HOST"),
            ("server start --json=x", "--json"),
            ("server revoke", "revoke: missing a name or a fingerprint"),
            ("server grant x --expires 1d --no-expiry", "--expires cannot be used with --no-expiry"),
            ("server grant x --owner=a --no-owner", "--owner cannot be used with --no-owner"),
            ("server grant x --owner=a:", "invalid --owner value `a:`: expected USER or USER:GROUP"),
            ("server grant x --name n --root a", "`a`: expected an absolute path"),
            ("server grant x --name n --root /a/../b", "expected an absolute path"),
            ("server session", "session: missing --root"),
            ("server session --root / host", "unexpected argument `host`"),
            ("server status -oProxyCommand=x", "unknown option -o"),
            ("server status @h", "invalid host `@h`"),
            ("server status h:", "without a colon"),
            ("server status h/x", "invalid host"),
            ("enroll", "missing HOST"),
            ("enroll a b", "unexpected argument `b`"),
            ("enroll a:b", "without a colon"),
            ("enroll fe80::1%", "without a colon"),
            ("enroll --list a", "--list lists all hosts"),
            ("enroll --list --port 7", "--port cannot be used with --list"),
            ("enroll --json -n a", "--json cannot be used with --dry-run"),
            ("enroll --json --revoke a", "--json cannot be used with --revoke"),
            ("enroll --revoke a b", "--revoke=HOST names the host already"),
            ("enroll --port 0 a", "invalid --port value `0`: expected a number from 1"),
            ("enroll --root x a", "expected an absolute path"),
            ("enroll -- -oProxyCommand=x", "invalid host"),
            ("bench scan", "expected `scan PATH` or `sync SRC DST`"),
            ("bench sync a", "expected `scan PATH` or `sync SRC DST`"),
            ("bench scan a --repeat=0", "invalid --repeat value `0`"),
            ("bench scan a -q", "unknown option -q"),
            ("doctor a b", "unexpected argument `b`"),
            ("doctor --colour", "unknown option --colour"),
            ("doctor -e rsh", "-e and --rsync-path require a HOST"),
            ("doctor --path", "missing value for --path"),
            ("doctor -- -oProxyCommand=x", "invalid host"),
        ] {
            let error = refused(line);
            assert!(error.contains(words), "{line}: {error}");
            assert!(error.starts_with("sparsync ") && error.ends_with("--help`"), "{error}");
        }
    }
}

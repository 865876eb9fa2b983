//! One connection of a daemon for stock clients: greeting and choice of a module; the parts decide on access, confine the
//! process, and run the session.
//!
//! It runs in a process of its own, with the connection as its standard input and output.

mod access;
mod arguments;
mod confinement;
mod hooks;
mod message_paths;
mod module_options;
mod peer;
mod request;

use self::hooks::PendingHooks;
use self::peer::DaemonPeer;
use crate::cli::daemon_args::DaemonArgs;
use crate::cmd::command_end::fail;
use crate::cmd::rsync_daemon::config_file::{read_config, variable};
use crate::cmd::rsync_daemon::connections::RequestReport;
use crate::cmd::rsync_daemon::hooks::HookVars;
use crate::cmd::rsync_daemon::log::DaemonLog;
use crate::cmd::rsync_daemon::policy::auth::AuthAccess;
use crate::cmd::rsync_daemon::policy::config::{Config, Module};
use crate::cmd::rsync_daemon::policy::module_path::ModulePath;
use crate::cmd::rsync_daemon::policy::params::{Param, Values};
use crate::env::Env;
use crate::exit::Exit;
use crate::filter::ModuleRules;
use crate::fs::charset::NameCharset;
use crate::fs::{sys, trusted_path};
use crate::options::LinkOwners;
use crate::proto::rsync::daemon::{
    BadGreeting, ClientLine, DaemonGreeting, DaemonLine, listing_line, read_line,
};
use crate::proto::rsync::decode_error::DecodeError;
use crate::proto::rsync::handshake::VERSIONS;
use crate::proto::rsync::number::ReadWire as _;
use crate::report::event::errno_words;
use crate::work::clock::Since;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a client may take for all that comes before the session, unless `timeout` is set.
const HANDSHAKE_SECS: u32 = 60;
/// How often a read checks whether the process must stop, in milliseconds.
const LOOK_MS: u32 = 500;
/// The most bytes of a MOTD file.
const MOTD_MAX_BYTES: usize = 1 << 20;

/// Why a connection ends before its session.
enum Refusal {
    /// The client gets this line.
    Line(Vec<u8>),
    /// The client violates the protocol.
    Violation(String),
    /// The client is gone, or has got all it asked for.
    Over,
}

impl From<DecodeError> for Refusal {
    fn from(error: DecodeError) -> Refusal {
        match error {
            DecodeError::Violation { cause, .. } => Refusal::Violation(cause),
            DecodeError::Io(_) => Refusal::Over,
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(_: io::Error) -> Refusal {
        Refusal::Over
    }
}

fn refuse<T>(words: impl AsRef<[u8]>) -> Result<T, Refusal> {
    Err(Refusal::Line([b"@ERROR: ", words.as_ref(), b"\n"].concat()))
}

/// Refuses a module that does not exist, or is hidden from the client.
fn refuse_unknown<T>(name: &[u8]) -> Result<T, Refusal> {
    refuse([b"Unknown module '", name, b"'"].concat())
}

/// The size of a read before the session.
const READ_BYTES: usize = 4 << 10;

/// Reads standard input until a deadline or a signal.
struct HandshakeReader {
    input: File,
    /// What was read and not used yet. In the end, it belongs to the session.
    buffer: io::Cursor<Vec<u8>>,
    since: Since,
    /// The time for all reads.
    limit: Duration,
    has_timed_out: bool,
    stop: Arc<AtomicBool>,
}

impl Read for HandshakeReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.buffer.read(into)?;
        if got > 0 || into.is_empty() {
            return Ok(got);
        }
        let mut bytes = vec![0; READ_BYTES];
        let count = self.receive(&mut bytes)?;
        bytes.truncate(count);
        self.buffer = io::Cursor::new(bytes);
        self.buffer.read(into)
    }
}

impl HandshakeReader {
    /// Sets the limit that a section of the configuration has.
    fn limit_by(&mut self, values: &Values) {
        let secs = match timeout_secs(values) {
            0 => HANDSHAKE_SECS,
            secs => secs,
        };
        self.limit = Duration::from_secs(secs.into());
    }

    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.limit.saturating_sub(self.since.elapsed());
            if left.is_zero() {
                self.has_timed_out = true;
                return Err(io::ErrorKind::TimedOut.into());
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            let millis = u32::try_from(left.as_millis())
                .unwrap_or(u32::MAX)
                .clamp(1, LOOK_MS);
            if sys::wait_readable(self.input.as_fd(), millis)? {
                let count = sys::receive(self.input.as_fd(), into)?;
                // On a pipe, this fails.
                let _ = sys::acknowledge_at_once(self.input.as_fd());
                return Ok(count);
            }
        }
    }
}

/// Returns the timeout that a section of the configuration sets; 0: none.
fn timeout_secs(values: &Values) -> u32 {
    u32::try_from(values.number(Param::Timeout)).unwrap_or(0)
}

/// Serves one connection. `report`: how the daemon learns that the client has sent its request.
pub fn run(env: &mut Env, args: &DaemonArgs, report: Option<RequestReport>) -> Exit {
    let config = match read_config(env, args) {
        Ok(config) => config,
        // The client sees the end of the connection. Under inetd, standard error is the connection, too.
        Err(error) if !args.by_shell => return error.exit,
        Err(error) => return fail(env, &error),
    };
    let vars = |name: &[u8]| variable(env, name);
    let log = DaemonLog::open(&config.globals, args.log_file.as_deref(), env.umask, &vars);
    for line in &config.complaints {
        log.put(line);
    }
    let streams = io::stdin().as_fd().try_clone_to_owned().and_then(|input| {
        Ok((
            File::from(input),
            File::from(io::stdout().as_fd().try_clone_to_owned()?),
        ))
    });
    let Ok((input, output)) = streams else {
        return Exit::SocketIo;
    };
    // A short message must not wait for the acknowledgement of the one before it. On a pipe, this fails.
    let _ = sys::send_at_once(output.as_fd());
    sys::share_memory_pools();
    let buffer = io::Cursor::default();
    let since = Since::now();
    let stop = env.stop.clone();
    let mut input = HandshakeReader {
        input,
        buffer,
        since,
        limit: Duration::ZERO,
        has_timed_out: false,
        stop,
    };
    input.limit_by(&config.globals);
    let mut connection = DaemonConnection {
        env,
        args,
        config: &config,
        log: Arc::new(log),
        input,
        output,
        hook_vars: Vec::new(),
        report,
        has_accepted: false,
    };
    match connection.converse() {
        Ok(exit) => exit,
        Err(Refusal::Over) if connection.input.has_timed_out => {
            connection
                .log
                .put(b"[Receiver] daemon handshake timeout -- exiting");
            connection
                .log
                .put(b"rsync error: timeout in data send/receive (code 30)");
            Exit::Timeout
        }
        Err(Refusal::Over) => Exit::Ok,
        Err(Refusal::Violation(cause)) => {
            let words = format!("protocol error: {cause}");
            connection.log.put(words.as_bytes());
            // Afterwards, the client does not expect lines any more.
            if !connection.has_accepted {
                // A client that is gone needs no reason.
                let _ = connection.send(format!("@ERROR: {words}\n").as_bytes());
            }
            Exit::Protocol
        }
        Err(Refusal::Line(line)) => {
            // A client that is gone needs no reason.
            let _ = connection.send(&line);
            Exit::StartClient
        }
    }
}

struct DaemonConnection<'a> {
    env: &'a mut Env,
    args: &'a DaemonArgs,
    config: &'a Config,
    log: Arc<DaemonLog>,
    input: HandshakeReader,
    output: File,
    /// The variables for programs and for the texts of parameters.
    hook_vars: HookVars,
    report: Option<RequestReport>,
    /// The client may use the module, and sends its arguments.
    has_accepted: bool,
}

/// An accepted module.
struct Accepted<'a> {
    module: &'a Module,
    peer: DaemonPeer,
    protocol: u8,
    user: Vec<u8>,
    read_only: bool,
    place: ModulePlace,
}

/// The place of a module, to which this process is confined.
struct ModulePlace {
    path: ModulePath,
    munges: bool,
    rules: Option<Arc<ModuleRules>>,
    hooks: PendingHooks,
    /// The conversion of names for clients that use `--iconv`.
    charset: Option<NameCharset>,
}

impl<'a> DaemonConnection<'a> {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes)
    }

    fn var(&self, name: &[u8]) -> Option<Vec<u8>> {
        let own = self
            .hook_vars
            .iter()
            .find(|(known, _)| known.as_bytes() == name);
        own.map(|(_, value)| value.clone())
            .or_else(|| variable(self.env, name))
    }

    fn text(&self, values: &Values, param: Param) -> Option<Vec<u8>> {
        values.text(param, &|name| self.var(name))
    }

    fn set_var(&mut self, name: &str, value: impl Into<Vec<u8>>) {
        self.hook_vars.retain(|(known, _)| known != name);
        self.hook_vars.push((name.to_owned(), value.into()));
    }

    fn converse(&mut self) -> Result<Exit, Refusal> {
        let config = self.config;
        let globals = &config.globals;
        let peer = self.peer()?;
        self.confine_daemon(globals)?;
        self.log
            .put(&[b"connect from ", &peer.shown()[..]].concat());
        let (theirs, protocol) = self.greet(globals)?;
        let mut early_input = Vec::new();
        let name = loop {
            let line = read_line(&mut self.input)?;
            match ClientLine::parse(&line) {
                Ok(ClientLine::List) => return self.list(&peer),
                Ok(ClientLine::Module(name)) => break name,
                Ok(ClientLine::EarlyInput(len)) if early_input.is_empty() => {
                    early_input = self.input.byte_vec(len)?
                }
                Ok(ClientLine::EarlyInput(_)) => return refuse("invalid early_input length"),
                Err(_) if line.starts_with(b"#early_input=") => {
                    return refuse("invalid early_input length");
                }
                Err(_) => return refuse([b"Unknown command '", &line[..], b"'"].concat()),
            }
        };
        let accepted = self.accept(&name, peer, &theirs, protocol, &early_input)?;
        self.send(&DaemonLine::Ok.line())?;
        self.has_accepted = true;
        self.serve(accepted)
    }

    /// Exchanges greetings. Returns the client's, and the protocol version.
    fn greet(&mut self, globals: &Values) -> Result<(DaemonGreeting, u8), Refusal> {
        let ours = DaemonGreeting::ours(*VERSIONS.end());
        let mut first = ours.line();
        if let Some(path) = self.text(globals, Param::MotdFile) {
            // A file that is missing is an empty one, as in rsync.
            let read = trusted_path::read_path(&path, MOTD_MAX_BYTES, LinkOwners::Trusted);
            if read.as_ref().is_err_and(trusted_path::is_refused) {
                self.log.put(trusted_path::REFUSAL);
            }
            first.extend(read.unwrap_or_default());
            first.push(b'\n');
        }
        self.send(&first)?;
        let line = read_line(&mut self.input)?;
        let theirs = match DaemonGreeting::parse(&line) {
            Ok(theirs) => theirs,
            Err(BadGreeting::NoSub) => {
                return refuse(
                    [b"your client omitted the subprotocol value: ", &line[..]].concat(),
                );
            }
            Err(BadGreeting::NoDigests) => {
                return refuse([b"your client omitted the digest name list: ", &line[..]].concat());
            }
            Err(BadGreeting::Other) => return refuse("protocol startup error"),
        };
        let protocol = ours.agree(&theirs);
        if !VERSIONS.contains(&protocol) {
            return refuse(format!(
                "protocol version mismatch -- is your client too old? ({protocol})"
            ));
        }
        Ok((theirs, protocol))
    }

    /// Sends the list of modules.
    fn list(&mut self, peer: &DaemonPeer) -> Result<Exit, Refusal> {
        self.log
            .put(&[b"module-list request from ", &peer.shown()[..]].concat());
        let config = self.config;
        let mut text = Vec::new();
        for module in config
            .modules
            .iter()
            .filter(|module| module.values.flag(Param::List))
        {
            let comment = self
                .text(&module.values, Param::Comment)
                .unwrap_or_default();
            text.extend(listing_line(&module.name, &comment));
        }
        text.extend(DaemonLine::Exit.line());
        self.send(&text)?;
        Ok(Exit::Ok)
    }

    /// Decides whether the client may use a module, and takes on the identity in which it is served.
    fn accept(
        &mut self,
        name: &[u8],
        mut peer: DaemonPeer,
        theirs: &DaemonGreeting,
        protocol: u8,
        early_input: &[u8],
    ) -> Result<Accepted<'a>, Refusal> {
        let config = self.config;
        let Some(module) = config.module(name) else {
            self.log.put(
                &[
                    b"unknown module '",
                    name,
                    b"' tried from ",
                    &peer.shown()[..],
                ]
                .concat(),
            );
            return refuse_unknown(name);
        };
        let values = &module.values;
        self.input.limit_by(values);
        self.set_var("RSYNC_MODULE_NAME", name);
        if values.flag(Param::ReverseLookup) {
            peer.look_up();
        }
        self.set_var("RSYNC_HOST_NAME", peer.host.name.clone());
        self.set_var("RSYNC_HOST_ADDR", peer.address.clone());
        if self.args.log_file.is_none()
            && values.raw(Param::LogFile) != config.globals.raw(Param::LogFile)
        {
            self.log = Arc::new(DaemonLog::open(values, None, self.env.umask, &|name| {
                self.var(name)
            }));
        }
        self.check_host(values, name, &peer)?;
        if !self.args.by_shell {
            self.log.put(
                &[
                    b"rsync allowed access on module ",
                    name,
                    b" from ",
                    &peer.shown()[..],
                ]
                .concat(),
            );
        }
        self.claim_connection(values)?;
        let (user, access) = self.authenticate(values, name, theirs, protocol, &peer)?;
        self.set_var("RSYNC_USER_NAME", user.clone());
        let read_only = match access {
            AuthAccess::Unchanged => values.flag(Param::ReadOnly),
            AuthAccess::ReadOnly => true,
            AuthAccess::ReadWrite => false,
        };
        let place = self.enter(module, early_input, read_only)?;
        Ok(Accepted {
            module,
            peer,
            protocol,
            user,
            read_only,
            place,
        })
    }
}

fn failed(what: &str, path: &[u8], error: &io::Error) -> Vec<u8> {
    [
        b"rsync: [Receiver] ",
        what.as_bytes(),
        b"(\"",
        path,
        b"\") failed: ",
        &errno_words(error)[..],
    ]
    .concat()
}

//! One connection of a daemon for stock clients: greeting, module, access, authentication, and then the session.
//!
//! It runs in a process of its own, with the connection as its standard input and output.

use super::input_files;
use super::rsyncd::{read_config, variable};
use super::rsyncd_hooks::{self, HookVars, PreXfer};
use super::rsyncd_log::DaemonLog;
use super::stock_server::{self, DaemonSide};
use crate::cli;
use crate::cli::daemon_args::DaemonArgs;
use crate::cli::server_args;
use crate::env::Env;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::{ModuleRules, Parsed, split_rules};
use crate::fs::{glob, ids, sandbox, sys};
use crate::options::{FilesFrom, LinkOwners, Options, PeerLinks, RemoveSource, RuleArg, StderrMode};
use crate::proto::rsync::daemon::{
    AuthDigest, BadGreeting, ClientLine, DaemonGreeting, DaemonLine, args_end, decode_args, listing_line,
    parse_credentials, read_line,
};
use crate::proto::rsync::decode_error::DecodeError;
use crate::proto::rsync::handshake::VERSIONS;
use crate::proto::rsync::number::ReadWire as _;
use crate::report::event::errno_words;
use crate::report::{Tally, final_error};
use crate::rsyncd::access::{self, ClientHost};
use crate::rsyncd::auth::{self, AuthAccess, AuthResponse, SecretsStat};
use crate::rsyncd::config::{Config, Module};
use crate::rsyncd::module_path::{self, ModulePath};
use crate::rsyncd::params::{Param, Values};
use crate::rsyncd::refuse::RefusedOptions;
use crate::session::stock::serve::DaemonTerms;
use crate::transport::link::Patience;
use crate::transport::stdio;
use crate::transport::{Link, daemon_socket};
use crate::work::clock::{self, Since};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a client may take for all that comes before the session.
const HANDSHAKE_MAX: Duration = Duration::from_secs(60);
/// The most bytes of a MOTD file.
const MOTD_MAX_BYTES: usize = 1 << 20;
/// The most bytes of a secrets file.
const SECRETS_MAX_BYTES: usize = 16 << 20;
/// The bytes of the lock file for each connection, as in rsync.
const LOCK_BYTES: i64 = 4;
/// The unprivileged user, and the names of its group, that serve clients if none are configured.
const NOBODY: &[u8] = b"nobody";
const NOBODY_GROUPS: [&[u8]; 2] = [b"nobody", b"nogroup"];
/// The longest header of the proxy protocol, without the addresses of version 2.
const PROXY_LINE_MAX_BYTES: usize = 107;

/// The parameters that are an error at start.
pub const UNSUPPORTED: [Param; 4] =
    [Param::NameConverter, Param::Charset, Param::IgnoreNonreadable, Param::TransferLogging];

/// Why a connection ends before its session.
enum Refusal {
    /// The client gets this line.
    Line(Vec<u8>),
    /// The client is gone, or has got all it asked for.
    Over,
}

impl From<DecodeError> for Refusal {
    fn from(_: DecodeError) -> Refusal {
        Refusal::Over
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

/// Reads standard input without a buffer, until a deadline: the session reads what comes later.
struct HandshakeReader {
    input: File,
    since: Since,
}

impl Read for HandshakeReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = HANDSHAKE_MAX.saturating_sub(self.since.elapsed());
        let millis = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        if millis == 0 || !sys::wait_readable(self.input.as_fd(), millis)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        sys::receive(self.input.as_fd(), into)
    }
}

/// A client.
struct Peer {
    host: ClientHost,
    /// The name for messages.
    name: Vec<u8>,
    /// The address for messages.
    address: Vec<u8>,
}

impl Peer {
    fn of(address: Option<IpAddr>, looks_up: bool) -> Peer {
        let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)).to_canonical();
        let mut peer = Peer {
            host: ClientHost { address, name: None },
            name: b"UNDETERMINED".to_vec(),
            address: address.to_string().into_bytes(),
        };
        if looks_up {
            peer.look_up();
        }
        peer
    }

    /// Finds the name of the address. A name that does not lead back to the address is not believed.
    fn look_up(&mut self) {
        if self.host.name.is_some() {
            return;
        }
        self.name = b"UNKNOWN".to_vec();
        if let Some(name) = sys::host_name_of(self.host.address)
            && forward(&name).contains(&self.host.address)
        {
            self.name.clone_from(&name);
            self.host.name = Some(name);
        }
    }

    /// `NAME (ADDRESS)`
    fn shown(&self) -> Vec<u8> {
        [&self.name[..], b" (", &self.address, b")"].concat()
    }
}

/// Looks up the addresses of a name.
fn forward(name: &[u8]) -> Vec<IpAddr> {
    let found = daemon_socket::addresses(&String::from_utf8_lossy(name), 0).unwrap_or_default();
    found.into_iter().map(|address| address.ip().to_canonical()).collect()
}

/// Serves one connection.
pub fn run(env: &mut Env, args: &DaemonArgs) -> Exit {
    let config = match read_config(env, args) {
        Ok(config) => config,
        Err(line) => {
            let log = DaemonLog::open(&Values::default(), args.log_file.as_deref(), env.umask, &|_| None);
            log.put(&line);
            // The client sees the end of the connection.
            let _ = env.stderr.write_all(&[&line[..], b"\n"].concat());
            return Exit::Usage;
        }
    };
    let vars = |name: &[u8]| variable(env, name);
    let log = DaemonLog::open(&config.globals, args.log_file.as_deref(), env.umask, &vars);
    config.complaints.iter().for_each(|line| log.put(line));
    let streams = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .and_then(|input| Ok((File::from(input), File::from(io::stdout().as_fd().try_clone_to_owned()?))));
    let Ok((input, output)) = streams else { return Exit::SocketIo };
    // A short message must not wait for the acknowledgement of the one before it. On a pipe, this fails.
    let _ = sys::send_at_once(output.as_fd());
    sys::share_memory_pools();
    let input = HandshakeReader { input, since: Since::now() };
    let mut connection = Connection { env, args, config: &config, log, input, output, hook_vars: Vec::new() };
    match connection.converse() {
        Ok(exit) => exit,
        Err(Refusal::Over) => Exit::Ok,
        Err(Refusal::Line(line)) => {
            // A client that is gone needs no reason.
            let _ = connection.send(&line);
            Exit::StartClient
        }
    }
}

struct Connection<'a> {
    env: &'a mut Env,
    args: &'a DaemonArgs,
    config: &'a Config,
    log: DaemonLog,
    input: HandshakeReader,
    output: File,
    /// The variables for programs and for the texts of parameters.
    hook_vars: HookVars,
}

/// An accepted module.
struct Accepted<'a> {
    module: &'a Module,
    peer: Peer,
    protocol: u8,
    user: Vec<u8>,
    read_only: bool,
    path: ModulePath,
    munges: bool,
    rules: Option<Arc<ModuleRules>>,
    pre_xfer: Option<PreXfer>,
}

impl<'a> Connection<'a> {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes)
    }

    fn var(&self, name: &[u8]) -> Option<Vec<u8>> {
        let own = self.hook_vars.iter().find(|(known, _)| known.as_bytes() == name);
        own.map(|(_, value)| value.clone()).or_else(|| variable(self.env, name))
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
        self.log.put(&[b"connect from ", &peer.shown()[..]].concat());
        let (theirs, protocol) = self.greet(globals)?;
        let mut early_input = Vec::new();
        let name = loop {
            let line = read_line(&mut self.input)?;
            match ClientLine::parse(&line) {
                Ok(ClientLine::List) => return self.list(&peer),
                Ok(ClientLine::Module(name)) => break name,
                Ok(ClientLine::EarlyInput(len)) if early_input.is_empty() => early_input = self.input.byte_vec(len)?,
                Ok(ClientLine::EarlyInput(_)) => return refuse("invalid early_input length"),
                Err(_) if line.starts_with(b"#early_input=") => return refuse("invalid early_input length"),
                Err(_) => return refuse([b"Unknown command '", &line[..], b"'"].concat()),
            }
        };
        let accepted = self.accept(&name, peer, (&theirs, protocol), &early_input)?;
        self.send(&DaemonLine::Ok.line())?;
        self.serve(accepted)
    }

    /// Finds out who connects.
    fn peer(&mut self) -> Result<Peer, Refusal> {
        let globals = &self.config.globals;
        let looks_up = globals.flag(Param::ReverseLookup);
        let socket = sys::peer_address(self.input.input.as_fd()).map(|address| address.ip());
        if self.args.by_shell {
            // As sshd and rshd describe the client.
            let ssh = self.env.var("SSH_CONNECTION").map(OsString::into_vec);
            let first = ssh.as_deref().and_then(|text| text.split(|&byte| byte == b' ').next());
            let address = first.and_then(|text| str::from_utf8(text).ok()?.parse().ok());
            return Ok(Peer::of(address.or(socket), looks_up && address.is_some()));
        }
        if !globals.flag(Param::ProxyProtocol) {
            return Ok(Peer::of(socket, looks_up));
        }
        let direct = Peer::of(socket, false);
        let hosts = self.text(globals, Param::ProxyProtocolHosts).unwrap_or_default();
        let is_proxy =
            !hosts.is_empty() && access::is_allowed(&direct.host, Some(&hosts), None, Some(&forward)) == Ok(true);
        if !is_proxy {
            self.log.put(&[b"proxy protocol header rejected from ", &direct.shown()[..]].concat());
            return Err(Refusal::Over);
        }
        let address = read_proxy_header(&mut self.input)?;
        Ok(Peer::of(address.or(socket), looks_up))
    }

    /// Carries out `daemon chroot`, `daemon gid` and `daemon uid`.
    fn confine_daemon(&mut self, globals: &Values) -> Result<(), Refusal> {
        if let Some(root) = self.text(globals, Param::DaemonChroot)
            && let Err(error) = sys::enter_root(&root)
        {
            self.log.put(&failed("daemon chroot", &root, &error));
            return Err(Refusal::Over);
        }
        let gid = self.text(globals, Param::DaemonGid);
        let uid = self.text(globals, Param::DaemonUid);
        let known = Ids::new();
        let gid = gid.map(|name| known.group(&name).ok_or(name)).transpose();
        let uid = uid.map(|name| known.user(&name).ok_or(name)).transpose();
        let (gid, uid) = match (gid, uid) {
            (Ok(gid), Ok(uid)) => (gid, uid),
            (Err(name), _) | (_, Err(name)) => {
                self.log.put(&[b"Invalid daemon uid or gid ", &name[..]].concat());
                return Err(Refusal::Over);
            }
        };
        sys::take_identity(uid, gid.as_slice()).map_err(|(what, error)| {
            self.log.put(&[b"daemon ", what.as_bytes(), b" failed: ", &errno_words(&error)[..]].concat());
            Refusal::Over
        })
    }

    /// Exchanges greetings. Returns the client's, and the protocol version.
    fn greet(&mut self, globals: &Values) -> Result<(DaemonGreeting, u8), Refusal> {
        let ours = DaemonGreeting::ours(*VERSIONS.end());
        let mut first = ours.line();
        if let Some(path) = self.text(globals, Param::MotdFile) {
            // A file that is missing is an empty one, as in rsync.
            first.extend(sys::read_path(&path, MOTD_MAX_BYTES).unwrap_or_default());
            first.push(b'\n');
        }
        self.send(&first)?;
        let line = read_line(&mut self.input)?;
        let theirs = match DaemonGreeting::parse(&line) {
            Ok(theirs) => theirs,
            Err(BadGreeting::NoSub) => {
                return refuse([b"your client omitted the subprotocol value: ", &line[..]].concat());
            }
            Err(BadGreeting::NoDigests) => {
                return refuse([b"your client omitted the digest name list: ", &line[..]].concat());
            }
            Err(BadGreeting::Other) => return refuse("protocol startup error"),
        };
        let protocol = ours.agree(&theirs);
        if !VERSIONS.contains(&protocol) {
            return refuse(format!("protocol version mismatch -- is your client too old? ({protocol})"));
        }
        Ok((theirs, protocol))
    }

    /// Sends the list of modules.
    fn list(&mut self, peer: &Peer) -> Result<Exit, Refusal> {
        self.log.put(&[b"module-list request from ", &peer.shown()[..]].concat());
        let config = self.config;
        let mut text = Vec::new();
        for module in config.modules.iter().filter(|module| module.values.flag(Param::List)) {
            let comment = self.text(&module.values, Param::Comment).unwrap_or_default();
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
        mut peer: Peer,
        (theirs, protocol): (&DaemonGreeting, u8),
        early_input: &[u8],
    ) -> Result<Accepted<'a>, Refusal> {
        let config = self.config;
        let unknown = || refuse([b"Unknown module '", name, b"'"].concat());
        let Some(module) = config.module(name) else {
            self.log.put(&[b"unknown module '", name, b"' tried from ", &peer.shown()[..]].concat());
            return unknown();
        };
        let values = &module.values;
        self.set_var("RSYNC_MODULE_NAME", name);
        if values.flag(Param::ReverseLookup) {
            peer.look_up();
        }
        self.set_var("RSYNC_HOST_NAME", peer.name.clone());
        self.set_var("RSYNC_HOST_ADDR", peer.address.clone());
        if self.args.log_file.is_none() && values.raw(Param::LogFile) != config.globals.raw(Param::LogFile) {
            self.log = DaemonLog::open(values, None, self.env.umask, &|name| self.var(name));
        }
        let (allow, deny) = (self.text(values, Param::HostsAllow), self.text(values, Param::HostsDeny));
        let lookup = values.flag(Param::ForwardLookup).then_some(&forward as access::ForwardLookup<'_>);
        let is_allowed =
            access::is_allowed(&peer.host, allow.as_deref(), deny.as_deref(), lookup).unwrap_or_else(|why| {
                self.log.put(&why);
                false
            });
        if !is_allowed {
            self.log.put(&[b"rsync denied on module ", name, b" from ", &peer.shown()[..]].concat());
            if !values.flag(Param::List) {
                return unknown();
            }
            return refuse([b"access denied to ", name, b" from ", &peer.shown()[..]].concat());
        }
        self.log.put(&[b"rsync allowed access on module ", name, b" from ", &peer.shown()[..]].concat());
        self.claim_connection(values)?;
        let (user, access) = self.authenticate(values, name, (theirs, protocol), &peer)?;
        self.set_var("RSYNC_USER_NAME", user.clone());
        let read_only = match access {
            AuthAccess::Unchanged => values.flag(Param::ReadOnly),
            AuthAccess::ReadOnly => true,
            AuthAccess::ReadWrite => false,
        };
        let identity = self.identity(values)?;
        let Some(path) = self.text(values, Param::Path) else {
            self.log.put(&[b"No path specified for module ", name].concat());
            return refuse("no path setting.");
        };
        if !path.starts_with(b"/") {
            self.log.put(&[b"the path of module ", name, b" is not absolute: ", &path[..]].concat());
            return refuse("no path setting.");
        }
        let wanted = values.optional_flag(Param::UseChroot);
        let must_chroot = wanted.unwrap_or(module_path::split_marker(&path).is_some());
        let tries_chroot = must_chroot || wanted.is_none() && sys::ids().0 == 0;
        let mut place = ModulePath::of(&path, tries_chroot);
        let shown_path = match &place.chroot {
            Some(root) if !place.is_whole_root() => crate::path::join(root, &place.dir[1..]),
            Some(root) => root.clone(),
            None => place.dir.clone(),
        };
        self.set_var("RSYNC_MODULE_PATH", shown_path);
        self.set_var("RSYNC_PID", std::process::id().to_string());
        let rules = self.read_rules(values)?;
        let pre_xfer = self.start_hooks(values, early_input)?;
        if let Some(root) = place.chroot.clone()
            && let Err(error) = sys::enter_root(&root)
        {
            self.log.put(&failed("chroot", &root, &error));
            if must_chroot || error.kind() == io::ErrorKind::NotFound {
                return refuse("chroot failed");
            }
            place = ModulePath::of(&path, false);
        }
        if let Err(error) = sys::change_dir(&place.dir) {
            self.log.put(&[b"rsync: [Receiver] chdir ", &place.dir[..], b" failed: ", &errno_words(&error)].concat());
            return refuse("chdir failed");
        }
        let munges = values.optional_flag(Param::MungeSymlinks).unwrap_or(!place.is_whole_root());
        let prefix = crate::plan::safelink::MUNGED;
        if munges && sys::stat_path(prefix, true).is_ok_and(|stat| stat.mode & 0o170_000 == 0o040_000) {
            self.log.put(&[b"Symlink munging is unsafe when a ", prefix, b" directory exists."].concat());
            return refuse("daemon security issue -- contact admin");
        }
        if let Some((uid, gids)) = identity
            && let Err((what, error)) = sys::take_identity(Some(uid), &gids)
        {
            self.log.put(&[b"rsync: [Receiver] ", what.as_bytes(), b" failed: ", &errno_words(&error)[..]].concat());
            return refuse(format!("{what} failed"));
        }
        let roots = if values.flag(Param::InsecureLinks) { b"/".to_vec() } else { place.dir.clone() };
        let rules = ModuleRules::new(rules, &place.dir).map(Arc::new);
        let hidden = rules
            .clone()
            .map(|rules| -> sandbox::HiddenPaths { Box::new(move |path, is_dir| rules.exclude(path, is_dir)) });
        if let Err(error) = sandbox::confine_module(&[roots], read_only, hidden) {
            self.log.put(&failed("openat2", &place.dir, &error));
            return refuse("chdir failed");
        }
        Ok(Accepted { module, peer, protocol, user, read_only, path: place, munges, rules, pre_xfer })
    }

    /// Reads the rules of a module.
    fn read_rules(&self, values: &Values) -> Result<Vec<Parsed>, Refusal> {
        let listed = |param: Param, of: fn(Vec<u8>) -> RuleArg| {
            let text = self.text(values, param).unwrap_or_default();
            split_rules(&text, param == Param::Filter).into_iter().map(of).collect::<Vec<_>>()
        };
        let file = |param: Param, of: fn(Vec<u8>) -> RuleArg| self.text(values, param).map(of).into_iter().collect();
        let args = [
            listed(Param::Filter, RuleArg::Filter),
            file(Param::IncludeFrom, RuleArg::IncludeFrom),
            listed(Param::Include, RuleArg::Include),
            file(Param::ExcludeFrom, RuleArg::ExcludeFrom),
            listed(Param::Exclude, RuleArg::Exclude),
        ];
        input_files::module_rules(self.env, &args.concat()).map_err(|error| {
            let lines = [error.message, final_error::error_line(error.exit, "Receiver")];
            lines.iter().for_each(|line| self.log.put(line));
            Refusal::Over
        })
    }

    /// Counts the connection for `max connections`.
    fn claim_connection(&self, values: &Values) -> Result<(), Refusal> {
        let max = values.number(Param::MaxConnections);
        let reached = || {
            self.log.put(format!("max connections ({max}) reached").as_bytes());
            refuse(format!("max connections ({max}) reached -- try again later"))
        };
        if max < 0 {
            return reached();
        }
        let Some(path) = self.text(values, Param::LockFile).filter(|_| max > 0) else { return Ok(()) };
        let opened = crate::fs::trusted_path::open_append(&path, 0o600, LinkOwners::Trusted);
        let file = match opened {
            Ok(file) => file,
            Err(error) => {
                let start = b"rsync: [Receiver] failed to open lock file ".as_slice();
                self.log.put(&[start, &path, b": ", &errno_words(&error)].concat());
                return refuse("failed to open lock file");
            }
        };
        for slot in 0..i64::from(max) {
            if sys::try_lock_range(file.as_fd(), slot * LOCK_BYTES, LOCK_BYTES)? {
                // The lock lasts as long as this process.
                std::mem::forget(file);
                return Ok(());
            }
        }
        reached()
    }

    /// Returns the user, empty without authentication, and its access.
    fn authenticate(
        &mut self,
        values: &Values,
        name: &[u8],
        (theirs, protocol): (&DaemonGreeting, u8),
        peer: &Peer,
    ) -> Result<(Vec<u8>, AuthAccess), Refusal> {
        let Some(users) = self.text(values, Param::AuthUsers) else { return Ok((Vec::new(), AuthAccess::Unchanged)) };
        let denied = |connection: &Self, user: Option<&[u8]>, why: &[u8]| {
            let by = user.map(|user| [b" for ".as_slice(), user].concat()).unwrap_or_default();
            let start = [b"auth failed on module ", name, b" from ", &peer.shown()[..]].concat();
            connection.log.put(&[&start[..], &by, b": ", why].concat());
            refuse([b"auth failed on module ", name].concat())
        };
        let ours = DaemonGreeting::ours(protocol).digests.unwrap_or_default();
        // Each side prefers its own first digest; all lists have the same order.
        let Some(digest) = AuthDigest::choose(Some(&ours), theirs.digests.as_deref(), protocol) else {
            return refuse([b"your client does not support one of our daemon-auth checksums: ", &ours[..]].concat());
        };
        if let Some(floor) = self.text(values, Param::AuthDigest)
            && let Err(why) = auth::check_digest(&floor, digest)
        {
            return denied(self, None, &why);
        }
        let challenge = digest.challenge(&sys::random::<32>());
        self.send(&DaemonLine::AuthRequired(challenge.clone()).line())?;
        let line = read_line(&mut self.input)?;
        let Some((user, response)) = parse_credentials(&line) else {
            return denied(self, None, b"invalid challenge response");
        };
        let rule = match auth::rule_of(&users, user, &ids::group_names_of) {
            Ok(rule) => rule,
            Err(why) => return denied(self, Some(user), &why),
        };
        let Some(file) = self.text(values, Param::SecretsFile) else {
            return denied(self, Some(user), b"no secrets file");
        };
        let read = sys::open_path(&file).and_then(|file| Ok((sys::fstat(file.as_fd())?, file)));
        let (stat, opened) = match read {
            Ok(read) => read,
            Err(error) => {
                let start = b"rsync: [Receiver] failed to open secrets file ".as_slice();
                self.log.put(&[start, &file, b": ", &errno_words(&error)].concat());
                return denied(self, Some(user), b"no secrets file");
            }
        };
        let strict = auth::check_strict(SecretsStat { mode: stat.mode, uid: stat.uid }, sys::ids().0 == 0);
        if let Err(why) = strict
            && values.flag(Param::StrictModes)
        {
            self.log.put(why.as_bytes());
            return denied(self, Some(user), b"ignoring secrets file");
        }
        let secrets = sys::read_to_end(opened.as_fd(), SECRETS_MAX_BYTES).unwrap_or_default();
        let answer = AuthResponse { user, digest, challenge: &challenge, response };
        if let Err(why) = answer.check(&secrets, rule.group.as_deref()) {
            return denied(self, Some(user), why.as_bytes());
        }
        Ok((user.to_vec(), rule.access))
    }

    /// Returns the user and the groups that serve the module; `None` if this process is not privileged.
    fn identity(&self, values: &Values) -> Result<Option<(u32, Vec<u32>)>, Refusal> {
        let known = Ids::new();
        let invalid = |what: &str, name: &[u8]| {
            self.log.put(&[b"Invalid ", what.as_bytes(), b" ", name].concat());
            refuse([b"invalid ", what.as_bytes(), b" ", name].concat())
        };
        let name = self.text(values, Param::Uid);
        let gid_list = self.text(values, Param::Gid);
        if sys::ids().0 != 0 {
            return Ok(None);
        }
        let user = name.as_deref().unwrap_or(NOBODY);
        let Some(uid) = known.user(user) else { return invalid("uid", user) };
        let Some(list) = gid_list else {
            let default = NOBODY_GROUPS.iter().find_map(|name| known.group(name));
            return default.map_or_else(|| invalid("gid", NOBODY), |gid| Ok(Some((uid, vec![gid]))));
        };
        let mut gids = Vec::new();
        for (index, element) in crate::rsyncd::list_elements(&list).enumerate() {
            match known.group(element) {
                _ if element == b"*" && index == 0 => {
                    let all = ids::group_ids_of(uid);
                    let Some(all) = all else { return invalid("gid", element) };
                    gids.extend(all);
                }
                Some(gid) => gids.push(gid),
                None => return invalid("gid", element),
            }
        }
        Ok(Some((uid, gids)))
    }

    /// Runs `early exec`, and starts the processes for the other programs.
    fn start_hooks(&mut self, values: &Values, early_input: &[u8]) -> Result<Option<PreXfer>, Refusal> {
        let raw = |param: Param| values.raw(param).filter(|_| self.env.var("RSYNC_NO_XFER_EXEC").is_none());
        let (early, pre, post) = (raw(Param::EarlyExec), raw(Param::PreXferExec), raw(Param::PostXferExec));
        let vars = self.hook_vars.clone();
        let command =
            |text: &[u8], vars: &HookVars| rsyncd_hooks::command(text, vars, &|name| variable(self.env, name));
        if let Some(text) = post {
            let started = command(&text, &vars).and_then(|command| {
                rsyncd_hooks::before_post_xfer(self.env, &command, &vars).map_err(|error| errno_words(&error))
            });
            if let Err(why) = started {
                self.log.put(&why);
                return refuse("post-xfer exec failed");
            }
        }
        if let Some(text) = early {
            let ran = command(&text, &vars).and_then(|command| {
                rsyncd_hooks::run(self.env, &command, &vars, early_input, false).map_err(|error| errno_words(&error))
            });
            let why = match ran {
                Ok((0, _)) => None,
                Ok((status, _)) => Some(format!("early exec returned failure ({status})").into_bytes()),
                Err(why) => Some(why),
            };
            if let Some(why) = why {
                self.log.put(&why);
                return refuse("early exec failed");
            }
        }
        let Some(text) = pre else { return Ok(None) };
        match PreXfer::start(self.env, &vars, &|vars| command(&text, vars)) {
            Ok(started) => Ok(Some(started)),
            Err(error) => {
                self.log.put(&failed("pre-xfer exec", &text, &error));
                refuse("pre-xfer exec failed")
            }
        }
    }

    /// Reads the arguments, and runs the session.
    fn serve(&mut self, accepted: Accepted<'_>) -> Result<Exit, Refusal> {
        let Accepted { module, peer, protocol, user, read_only, path, munges, rules, pre_xfer } = accepted;
        let (name, values) = (&module.name, &module.values);
        let mut words = decode_args(&mut self.input, args_end(protocol))?;
        if server_args::is_secluded(&words) {
            // The first one is the name of the program.
            let more = decode_args(&mut self.input, 0)?;
            server_args::take_secluded(&mut words);
            words.extend(more.into_iter().skip(1));
        }
        let words = Arguments::of(words, name, values.number(Param::MaxVerbosity));
        let line: Vec<_> = words.options.iter().chain([&b".".to_vec()]).cloned().map(OsString::from_vec).collect();
        let (umask, now) = (self.env.umask, clock::now_unix().0);
        let (mut request, given) = cli::read_stock_args(&line, umask, now, &|name| self.env.var(name));
        let sends = request.serve.sends;
        let by = if user.is_empty() { Vec::new() } else { [&user[..], b"@"].concat() };
        let direction: &[u8] = if sends { b"on" } else { b"to" };
        let requested = words.paths.join(&b' ');
        self.log.put(&[b"rsync ", direction, b" ", &requested, b" from ", &by, &peer.shown()].concat());
        request.serve.operands = words.paths_in(name);
        let refused = RefusedOptions::parse(
            &self.text(values, Param::RefuseOptions).unwrap_or_default(),
            sends,
            values.raw(Param::Charset).is_some(),
        );
        let unsupported = |words: String| Error::new(Exit::Unsupported, words);
        let before_capabilities = given.iter().position(|option| option.flag.long == "rsh").unwrap_or(given.len());
        if refused.first_of(&given[..before_capabilities]).is_some() {
            // As in rsync, the rest is not read.
            request.capabilities.clear();
        }
        let refused = refused
            .first_of(&given)
            .map(|option| unsupported(format!("rsync: The server is configured to refuse {option}")));
        let mut refusal = refused
            .or_else(|| request.options.as_ref().err().map(|error| Error { exit: Exit::Unsupported, ..error.clone() }));
        if let Some(pre_xfer) = pre_xfer {
            let failure = self.run_pre_xfer(pre_xfer, &words, &request.serve.operands, &requested);
            refusal = refusal.or(failure);
        }
        let mut options = request.options.as_ref().cloned().unwrap_or_default();
        if !sends {
            request.serve.operands.iter_mut().for_each(|dest| *dest = path.dest(dest));
        }
        let dest = request.serve.operands.first().filter(|_| !sends).cloned().unwrap_or_default();
        let announced = self.apply(values, (&path, &dest), munges, sends, &mut options);
        let refusal = refusal
            .or_else(|| access_error(values, read_only, sends, &options))
            .or_else(|| stock_server::lacking(&request));
        let begins = refusal.is_none();
        let refusal = refusal
            .or_else(|| rules.as_ref().and_then(|rules| path_error(rules, sends, &path, &request, &options)))
            .map(|error| error.by(stock_server::role_of(&request)));
        let begins = begins && refusal.as_ref().is_none_or(|error| !sends && error.exit != Exit::Unsupported);
        request.serve.operands = request.serve.operands.iter().flat_map(|path| glob::expand(path)).collect();
        let idle = Some(options.connect.timeout_secs).filter(|&secs| secs > 0);
        let idle = idle.map(|secs| Duration::from_secs(secs.into()));
        let patience = Patience { stop: self.env.stop.clone(), ..Patience::of_a_copy(idle) };
        let leaves = patience.beaten.clone();
        let link = self.env.handle_signals().and_then(|()| stdio::link(patience))?;
        let link = Link { leave: Some(Box::new(move || leaves.store(true, Ordering::Relaxed))), ..link };
        sys::lift_open_files(sys::OPEN_FILES_MAX);
        self.env.cwd.clone_from(&path.dir);
        let in_module = |line: Vec<u8>| in_module(line, &path.dir, name);
        let log = |line: &[u8]| self.log.put(line);
        if begins {
            log(if sends { b"building file list" } else { b"receiving file list" });
        }
        let terms = DaemonTerms { protocol, timeout_secs: announced, in_module: &in_module, log: &log };
        let side = DaemonSide { terms, rules, refusal };
        let mut tally = Tally::default();
        let ended = stock_server::serve_over(self.env, &request, &options, (link, Some(side)), &mut tally);
        Ok(ended.map_or_else(|error| error.exit, |()| tally.exit_of_server()))
    }

    /// Runs `pre-xfer exec`. Returns the error if it fails.
    fn run_pre_xfer(&self, pre_xfer: PreXfer, words: &Arguments, paths: &[Vec<u8>], request: &[u8]) -> Option<Error> {
        let dot = b".".to_vec();
        let all =
            std::iter::once(&b"rsyncd"[..]).chain(words.options.iter().chain([&dot]).chain(paths).map(Vec::as_slice));
        let mut vars: HookVars =
            all.enumerate().map(|(index, word)| (format!("RSYNC_ARG{index}"), word.to_vec())).collect();
        vars.push(("RSYNC_REQUEST".into(), request.to_vec()));
        let words = match pre_xfer.run(&vars) {
            Ok((0, _)) => return None,
            Ok((status, output)) => {
                let end = if output.is_empty() { Vec::new() } else { [b"\n", output.trim_ascii_end()].concat() };
                [
                    format!("pre-xfer exec returned failure ({status}){}", if end.is_empty() { "" } else { ":" })
                        .as_bytes(),
                    &end,
                ]
                .concat()
            }
            Err(error) => [b"pre-xfer exec failed: ".as_slice(), &errno_words(&error)].concat(),
        };
        Some(Error::new(Exit::Unsupported, words))
    }

    /// Applies the parameters of a module to the options of a client. Returns the timeout to announce.
    fn apply(
        &self,
        values: &Values,
        (path, dest): (&ModulePath, &[u8]),
        munges: bool,
        sends: bool,
        options: &mut Options,
    ) -> u32 {
        let most = cli::settle(&[verbosity(values.number(Param::MaxVerbosity))], &[], 0, 0).unwrap_or_default().output;
        options.output.info.limit(&most.info);
        options.output.debug.limit(&most.debug);
        options.output.stderr = StderrMode::Client;
        let preserve = &mut options.preserve;
        preserve.numeric_ids |= values.optional_flag(Param::NumericIds).unwrap_or(path.chroot.is_some());
        preserve.fake_super = values.flag(Param::FakeSuper);
        preserve.peer_links = match munges {
            true => PeerLinks::Munged,
            false if path.is_whole_root() => PeerLinks::AsSent,
            false => PeerLinks::Sanitized,
        };
        if values.flag(Param::InsecureLinks) {
            preserve.link_owners = LinkOwners::Anyone;
        }
        let chmod = if sends { Param::OutgoingChmod } else { Param::IncomingChmod };
        if let Some(text) = self.text(values, chmod) {
            // An invalid one is an error at start.
            preserve.chmod.extend(cli::value::chmod::parse(&text, self.env.umask).unwrap_or_default());
        }
        if let Some(noatime) = values.optional_flag(Param::OpenNoatime) {
            options.select.open_noatime = noatime;
        }
        options.delete.ignore_errors |= values.flag(Param::IgnoreErrors);
        if self.text(values, Param::DontCompress).is_some_and(|list| list == b"*") {
            options.delta.compress.level = Some(1);
        }
        let rate = self.args.bwlimit.as_deref().and_then(|text| str::from_utf8(text).ok()?.parse::<u64>().ok());
        if let Some(rate) = rate.filter(|&rate| rate > 0).map(|rate| rate * 1024) {
            let limit = &mut options.connect.bwlimit_bytes_per_sec;
            *limit = Some(limit.map_or(rate, |given| given.min(rate)));
        }
        if options.place.temp_dir.is_none() {
            options.place.temp_dir = self.text(values, Param::TempDir);
        }
        if !path.is_whole_root() {
            sanitize_options(options, &path.dir, dest);
        }
        let secs = u32::try_from(values.number(Param::Timeout)).unwrap_or(0);
        let timeout = &mut options.connect.timeout_secs;
        if secs > 0 && (*timeout == 0 || *timeout > secs) {
            *timeout = secs;
        }
        secs
    }
}

/// The option that requests this many levels of verbosity.
fn verbosity(levels: i32) -> Vec<u8> {
    let levels = usize::try_from(levels).unwrap_or(0).min(VERBOSITY_MAX);
    if levels == 0 { b"--no-verbose".to_vec() } else { [b"-".as_slice(), &b"v".repeat(levels)].concat() }
}

/// The most levels of verbosity.
const VERBOSITY_MAX: usize = 9;

/// Keeps the paths that options name in the module. `dest`: the destination, to which alternate directories are
/// relative.
fn sanitize_options(options: &mut Options, dir: &[u8], dest: &[u8]) {
    let place = &mut options.place;
    let backup = place.backup.as_mut().and_then(|backup| backup.dir.as_mut());
    let listed = match &mut options.select.files_from {
        Some(FilesFrom::File(path)) => Some(path),
        Some(FilesFrom::Far(_) | FilesFrom::Stdin) | None => None,
    };
    for path in [backup, place.temp_dir.as_mut(), place.partial_dir.as_mut(), listed].into_iter().flatten() {
        *path = module_path::option_path(path, dir, 0);
    }
    let depth = dest.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b".")).count();
    for path in options.delta.alt_dest.iter_mut().flat_map(|alt| &mut alt.dirs) {
        *path = module_path::option_path(path, dir, depth);
    }
}

/// Returns the error for a direction that the module does not permit.
fn access_error(values: &Values, read_only: bool, sends: bool, options: &Options) -> Option<Error> {
    let words = match sends {
        false if read_only => "ERROR: module is read only",
        true if values.flag(Param::WriteOnly) => "ERROR: module is write only",
        true if read_only && options.select.remove_source != RemoveSource::No => {
            "ERROR: --remove-source-files cannot be used with a read-only module"
        }
        _ => return None,
    };
    Some(Error::usage(words))
}

/// Returns the error for a path that the rules of the module exclude.
fn path_error(
    rules: &ModuleRules,
    sends: bool,
    module: &ModulePath,
    request: &cli::ServeStock,
    options: &Options,
) -> Option<Error> {
    const REJECTED: &str = "Your options have been rejected by the server.";
    let is_excluded = |path: &Vec<u8>| {
        rules.exclude(&crate::path::join(&module.dir, path), true)
            || path.starts_with(b"/") && rules.exclude(path, true)
    };
    let place = &options.place;
    let backup = place.backup.as_ref().and_then(|backup| backup.dir.as_ref());
    if backup.into_iter().chain(&place.temp_dir).any(is_excluded) {
        return Some(Error::new(Exit::Unsupported, format!("rsync: {REJECTED}")));
    }
    if options.delta.alt_dest.iter().flat_map(|alt| &alt.dirs).any(is_excluded) {
        return Some(Error::usage(REJECTED));
    }
    let dest = request.serve.operands.first().filter(|dest| !sends && sandbox::is_hidden(dest))?;
    let words = [b"ERROR: daemon has excluded destination \"".as_slice(), dest, b"\""].concat();
    Some(Error::new(Exit::FileSelect, words))
}

/// The arguments of a client.
struct Arguments {
    /// The options, without the dot that ends them.
    options: Vec<Vec<u8>>,
    /// The paths as the client wrote them, beginning with the module.
    paths: Vec<Vec<u8>>,
}

impl Arguments {
    fn of(words: Vec<Vec<u8>>, module: &[u8], max_verbosity: i32) -> Arguments {
        let line: Vec<_> = words.iter().cloned().map(OsString::from_vec).collect();
        let operands = cli::operands_of(&line);
        let mut words = words;
        let paths = words.split_off(words.len() - operands.min(words.len()));
        let mut options = words;
        for option in &mut options {
            if option.starts_with(b"--") {
                *option = unescaped(option);
            }
        }
        server_args::limit_verbosity(&mut options, usize::try_from(max_verbosity).unwrap_or(0));
        // The first path is a dot.
        let paths = paths.iter().skip(1).flat_map(|path| module_path::split_arg(path, module)).collect();
        Arguments { options, paths }
    }

    /// Returns the paths relative to the module.
    fn paths_in(&self, module: &[u8]) -> Vec<Vec<u8>> {
        self.paths.iter().map(|path| module_path::path_in_module(path, module)).collect()
    }
}

/// Removes the backslashes that protect an option from a shell.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut bytes = word.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => plain.extend(bytes.next()),
            byte => plain.push(byte),
        }
    }
    plain
}

/// Changes a message as a daemon prints it: paths begin at the module, whose name comes behind them.
fn in_module(line: Vec<u8>, dir: &[u8], module: &[u8]) -> Vec<u8> {
    let is_about_file = line.starts_with(b"rsync: [") || line.starts_with(b"file has vanished: ");
    let Some(begin) = line.iter().position(|&byte| byte == b'"').filter(|_| is_about_file) else { return line };
    let last = |end: &[u8]| line.windows(end.len()).rposition(|window| window == end);
    let ends = [&b"\" failed: "[..], b"\") failed: ", b"\": "];
    let Some(end) = ends.into_iter().find_map(last).or_else(|| line.len().checked_sub(1)) else {
        return line;
    };
    if end <= begin || line[end] != b'"' {
        return line;
    }
    let path = &line[begin + 1..end];
    let inner = match path.strip_prefix(dir) {
        _ if dir == b"/" => path,
        Some(rest) if rest.starts_with(b"/") => &rest[1..],
        Some(b"") => b".",
        _ => path,
    };
    [&line[..=begin], inner, b"\" (in ", module, b")", &line[end + 1..]].concat()
}

/// Finds users and groups by name or number.
struct Ids(ids::Ids);

impl Ids {
    fn new() -> Ids {
        Ids(ids::Ids::new())
    }

    fn user(&self, name: &[u8]) -> Option<u32> {
        number(name).or_else(|| self.0.user_id(name))
    }

    fn group(&self, name: &[u8]) -> Option<u32> {
        number(name).or_else(|| self.0.group_id(name))
    }
}

fn number(text: &[u8]) -> Option<u32> {
    str::from_utf8(text).ok()?.parse().ok()
}

fn failed(what: &str, path: &[u8], error: &io::Error) -> Vec<u8> {
    [b"rsync: [Receiver] ", what.as_bytes(), b"(\"", path, b"\") failed: ", &errno_words(error)[..]].concat()
}

/// Reads the header of the proxy protocol, version 1 or 2. Returns the address of the client; `None` if the proxy speaks
/// for itself.
fn read_proxy_header(input: &mut impl Read) -> Result<Option<IpAddr>, Refusal> {
    const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
    let first = input.byte()?;
    if first != SIGNATURE[0] {
        let mut line = vec![first];
        while !line.ends_with(b"\r\n") {
            if line.len() >= PROXY_LINE_MAX_BYTES {
                return Err(Refusal::Over);
            }
            line.push(input.byte()?);
        }
        let text = str::from_utf8(&line[..line.len() - 2]).map_err(|_| Refusal::Over)?;
        let words: Vec<_> = text.split(' ').collect();
        return match words[..] {
            ["PROXY", "UNKNOWN", ..] => Ok(None),
            ["PROXY", family @ ("TCP4" | "TCP6"), source, dest, from, to] => {
                let source: IpAddr = source.parse().map_err(|_| Refusal::Over)?;
                let is_valid = dest.parse::<IpAddr>().is_ok_and(|dest| dest.is_ipv4() == source.is_ipv4())
                    && [from, to].iter().all(|port| port.parse::<u16>().is_ok())
                    && source.is_ipv4() == (family == "TCP4");
                if is_valid { Ok(Some(source)) } else { Err(Refusal::Over) }
            }
            _ => Err(Refusal::Over),
        };
    }
    let rest = input.byte_vec(15)?;
    let len = usize::from(u16::from_be_bytes([rest[13], rest[14]]));
    if rest[..11] != SIGNATURE[1..] {
        return Err(Refusal::Over);
    }
    let body = input.byte_vec(len)?;
    match (rest[11], rest[12], &body[..]) {
        (0x20, ..) => Ok(None),
        (0x21, 0x11, [a, b, c, d, _, _, _, _, _, _, _, _]) => Ok(Some(Ipv4Addr::new(*a, *b, *c, *d).into())),
        (0x21, 0x21, body) if body.len() == 36 => {
            let source: [u8; 16] = body[..16].try_into().map_err(|_| Refusal::Over)?;
            Ok(Some(IpAddr::from(source)))
        }
        _ => Err(Refusal::Over),
    }
}

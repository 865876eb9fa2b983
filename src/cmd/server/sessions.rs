//! The server: accepts clients whose keys have a grant, and starts one process per session.
//!
//! Each session is its own process, so a crash, memory use, sandbox and forced end affect only that session. The
//! process is the same program that a remote shell starts. This one forwards bytes, enforces grants, and answers
//! control requests.

use super::control_socket::{self, Errors, Question, SessionStatus, Status};
use super::grant_check::GrantCheck;
use super::listen::{
    StartFailure, open, port_of, remember_addresses, remember_port, take_lock, with_addresses,
};
use super::log;
use super::memory_limit::Budget;
use super::proxy::{self, Bytes, LEAVING_MAX, ProxyEnd, RunKey, thread};
use super::sd_notify::Supervisor;
use crate::cli::subcommand::Start;
use crate::env::{self, Env};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::{ids, sys};
use crate::proto::PLACE_BYTES;
use crate::transport::net::server::{
    AcceptedClient, EVERYWHERE, Lasting, Listener, PROBE_ANSWER, Rejection, supported,
};
use crate::transport::net::server_limits::Limits;
use crate::transport::net::{HangUp, NetTransport, PeerQuestion};
use crate::trust::grants::{ENDED, Grant};
use crate::trust::identity::Identity;
use crate::trust::paths::Places;
use crate::trust::timestamp::Timestamp;
use crate::trust::{Pin, tls};
use crate::work::clock::{self, Since};
use parking_lot::Mutex;
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tracing::{error, info, warn};

/// How often grants, memory and requests to end are checked.
const TICK: Duration = Duration::from_millis(200);
/// How long a server that a signal ends waits for running sessions.
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// How long sessions have to inform their clients that the server was stopped.
const STOPPING_MAX: Duration = Duration::from_secs(2);
/// How long a draining server waits for clients that have not received everything after their sessions ended. Long
/// enough for several retransmissions, and no client that has vanished delays the server for longer.
const LAST_WORDS_MAX: Duration = Duration::from_secs(5);
/// How long a client whose session was too large can still learn that: it reconnects within seconds.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);
/// Written to standard output when a server in the background listens.
pub const READY: &[u8] = b"ready\n";

/// Fails if this program cannot start a copy of itself.
pub fn can_start_processes() -> Result<()> {
    if sys::has_proc() {
        return Ok(());
    }
    let words = "sparsync: cannot start the processes of sessions: /proc is not mounted";
    Err(Error::new(Exit::Unsupported, words).with_hint("run `mount -t proc proc /proc`"))
}

/// Runs the server until it is stopped.
pub fn run(
    env: &mut Env,
    places: &Places,
    start: &Start,
) -> std::result::Result<Exit, StartFailure> {
    if start.detached {
        env::leave_terminal();
    }
    // Sessions create files with the modes that a login shell's umask gives them.
    sys::set_umask(env.umask);
    // Each client takes several descriptors, and there may be hundreds of clients.
    sys::lift_open_files(sys::OPEN_FILES_MAX);
    sys::never_wait_for_descriptors();
    let errors = Arc::new(Errors::default());
    let readers = if start.detached {
        log::Readers::Log(places.clone())
    } else if log::is_journal(env.var("JOURNAL_STREAM").as_deref()) {
        log::Readers::Journal
    } else {
        log::Readers::Terminal
    };
    log::begin(readers, errors.clone());
    can_start_processes()?;
    let _lock = take_lock(places)?;
    let identity = Identity::load_or_make(places)?;
    env.handle_end_signals().map_err(|error| {
        Error::new(
            Exit::Ipc,
            format!("sparsync: cannot handle signals: {error}"),
        )
    })?;
    let door = Arc::new(GrantCheck::new(places, identity.pin)?);
    let admit = door.clone();
    let config = tls::server_config(&identity, Arc::new(move |pin: &Pin| admit.admits(pin)));
    let budget = Budget::new(start.memory).map_err(|error| cannot_share(&error))?;
    let limits = Limits {
        ceiling: budget.ceiling().clone(),
        ..Limits::default()
    };
    let lasting = Lasting(identity.secret_for("sparsync stateless resets"));
    let start = &with_addresses(places, start)?;
    let listener = open(&config, lasting, start, port_of(places, start), &limits)?;
    remember_port(places, start, listener.addresses());
    remember_addresses(places, start)?;
    let control = control_socket::listen(places, env.umask)?;
    let addresses = listener.addresses().to_vec();
    let shown: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    info!(
        "version {} listening on {} with key {}",
        env!("CARGO_PKG_VERSION"),
        shown.join(" and "),
        identity.pin
    );
    if supported(EVERYWHERE) != EVERYWHERE
        && addresses.iter().any(|at| at.ip() == supported(EVERYWHERE))
    {
        info!("this machine does not support IPv6; only IPv4 clients can connect");
    }
    let server = Arc::new(Daemon {
        door,
        budget,
        errors,
        addresses,
        since: Since::now(),
        sessions: Mutex::default(),
        next: AtomicU64::new(0),
        bytes: Bytes::default(),
        ended_ms: AtomicU64::new(0),
        drain: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        gives_way: AtomicBool::new(false),
        home: home(env),
        held: Mutex::default(),
        supervisor: if start.foreground {
            Supervisor::from_env(env)
        } else {
            Supervisor::none()
        },
        too_large: Mutex::default(),
    });
    let daemon = server.clone();
    thread("control")
        .spawn(move || daemon.answer(&control))
        .map_err(|error| no_thread(&error))?;
    if start.detached {
        notify_ready(env);
    }
    server.supervisor.ready();
    server.serve(&listener, &env.stop);
    info!("stopped");
    Ok(Exit::Ok)
}

/// Returns the directory in which logins of this user begin. systemd sets no HOME for root; relative paths must not
/// lead to `/` then.
fn home(env: &Env) -> OsString {
    let home = env.var("HOME").filter(|home| !home.is_empty());
    home.or_else(ids::own_home).unwrap_or_else(|| "/".into())
}

fn cannot_share(error: &io::Error) -> Error {
    Error::new(
        Exit::Ipc,
        format!("sparsync: cannot share the memory limit with sessions: {error}"),
    )
}

fn no_thread(error: &io::Error) -> Error {
    Error::new(
        Exit::Ipc,
        format!("sparsync: cannot start a server thread: {error}"),
    )
}

/// Informs the starting process that the server listens, and closes the pipe to it.
fn notify_ready(env: &mut Env) {
    // If the starting process is gone, the server runs all the same.
    let _ = env
        .stdout
        .write_all(READY)
        .and_then(|()| env.stdout.flush());
    env::leave_stdout();
}

/// Converts an IPv4 address of an IPv6 socket to its IPv4 form.
fn shown(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn now() -> Timestamp {
    Timestamp(clock::now_unix().0)
}

/// A running session.
struct RunningSession {
    number: u64,
    /// The run that it belongs to, known once the client has sent its greeting.
    run: Option<RunKey>,
    grant: Grant,
    address: SocketAddr,
    kind: String,
    since: Since,
    bytes: Arc<Bytes>,
    child: Arc<Mutex<Child>>,
    hang_up: HangUp,
    /// How often its client was asked whether it is still there.
    questions: u32,
}

impl RunningSession {
    fn end(&self, why: &str) {
        // It fails only if the process has been waited for.
        let _ = self.child.lock().kill();
        self.hang_up.now(why);
    }
}

struct Daemon {
    door: Arc<GrantCheck>,
    budget: Budget,
    errors: Arc<Errors>,
    addresses: Vec<SocketAddr>,
    since: Since,
    sessions: Mutex<Vec<RunningSession>>,
    /// The number of the next session, which is also how many there were.
    next: AtomicU64,
    /// The bytes of the sessions that have ended.
    bytes: Bytes,
    /// How long these sessions were connected, in milliseconds.
    ended_ms: AtomicU64,
    drain: AtomicBool,
    stop: AtomicBool,
    gives_way: AtomicBool,
    /// The working directory of sessions whose grant has no owner, the same as that of logins.
    home: OsString,
    /// Control connections that wait for the server to end.
    held: Mutex<Vec<UnixStream>>,
    /// The supervisor that started the server and wants its status.
    supervisor: Supervisor,
    /// The keys whose sessions ended because each alone exceeded the budget, and when. The next session of such a key
    /// is rejected with this reason, because it would exceed the budget again.
    too_large: Mutex<Vec<(Pin, Since)>>,
}

impl Daemon {
    fn serve(self: &Arc<Daemon>, listener: &Listener, signalled: &AtomicBool) {
        let mut draining = None;
        let mut quiet = None;
        let mut watched = Since::now();
        loop {
            match listener.accept(TICK) {
                Ok(Some(client)) => self.welcome(client),
                Ok(None) => {}
                Err(error) => {
                    error!("cannot accept clients: {error}");
                    return self.end_all("the server is shutting down");
                }
            }
            if watched.elapsed() >= TICK {
                self.watch();
                self.keep_budget();
                watched = Since::now();
            }
            if draining.is_none()
                && (self.drain.load(Ordering::Relaxed) || signalled.load(Ordering::Relaxed))
            {
                let by = if signalled.load(Ordering::Relaxed) {
                    "a signal"
                } else {
                    "`sparsync server`"
                };
                info!(
                    "shutdown requested by {by}: no new clients; running sessions: {}",
                    self.sessions.lock().len()
                );
                self.drain.store(true, Ordering::Relaxed);
                self.supervisor.ending();
                listener.drain();
                draining = Some(Since::now());
            }
            let is_late = signalled.load(Ordering::Relaxed)
                && draining.is_some_and(|since| since.elapsed() > DRAIN_MAX);
            if self.stop.load(Ordering::Relaxed) {
                return self.stop_all();
            }
            if self.gives_way.load(Ordering::Relaxed) || is_late {
                return self.end_all("the server is restarting");
            }
            // Clients that have not received everything stay connected a little longer than their sessions run.
            let is_quiet = draining.is_some() && self.sessions.lock().is_empty();
            if !is_quiet {
                quiet = None;
            } else if quiet.is_none() {
                quiet = Some(Since::now());
            }
            if quiet.is_some_and(|since| {
                listener.conversations() == 0 || since.elapsed() > LAST_WORDS_MAX
            }) {
                return;
            }
        }
    }

    fn end_all(&self, why: &str) {
        for session in self.sessions.lock().iter() {
            session.end(why);
        }
        self.wait_for_sessions(LEAVING_MAX);
    }

    /// Makes all sessions inform their clients that the server was stopped, then ends those that are still running.
    fn stop_all(&self) {
        for session in self.sessions.lock().iter() {
            // A session that has ended needs no signal.
            let _ = env::signal_session_to_stop(session.child.lock().id());
        }
        self.wait_for_sessions(STOPPING_MAX);
        self.end_all("the server was stopped");
    }

    fn wait_for_sessions(&self, limit: Duration) {
        let waits = Since::now();
        while !self.sessions.lock().is_empty() && waits.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the sessions whose grant was revoked, changed or has expired.
    fn watch(&self) {
        // Also without sessions: a revocation must be known before the list can become invalid.
        let sessions = self.sessions.lock();
        let (grants, _) = self.door.grants();
        for session in sessions.iter() {
            if grants.find(&session.grant.pin, now()) != Some(&session.grant) {
                warn!(
                    "session of {} from {} ended: its grant was revoked, changed or has expired",
                    session.grant.name, session.address
                );
                session.end(ENDED);
            }
        }
    }

    /// Shares the remaining memory among sessions, and ends the session that holds most if the budget is exceeded.
    fn keep_budget(&self) {
        let sessions = self.sessions.lock();
        let pids: Vec<_> = sessions
            .iter()
            .map(|session| session.child.lock().id())
            .collect();
        let kept = match self.budget.keep(&pids) {
            Ok(kept) => kept,
            Err(error) => {
                return error!("{}", String::from_utf8_lossy(&cannot_share(&error).message));
            }
        };
        let held = self.budget.held_bytes();
        let most = self.budget.bytes();
        if kept.is_newly_full {
            warn!(
                "no new clients: {} sessions use {held} of {most} bytes (--memory)",
                sessions.len()
            );
        }
        if let Some((ends, session)) = kept
            .ends
            .and_then(|ends| Some((ends, sessions.get(ends.at)?)))
        {
            let RunningSession {
                number,
                grant,
                address,
                ..
            } = session;
            let name = &grant.name;
            error!(
                "session {number} of {name} from {address} ended: it uses the most of {held} bytes, over --memory={most}"
            );
            if ends.is_alone_too_much {
                let mut too_large = self.too_large.lock();
                too_large
                    .retain(|(pin, since)| *pin != grant.pin && since.elapsed() < REPORTED_WITHIN);
                too_large.push((grant.pin, Since::now()));
            }
            session.end("the server has no memory left for this session");
        }
    }

    fn welcome(self: &Arc<Daemon>, client: AcceptedClient) {
        let server = self.clone();
        let address = shown(client.address);
        let hang_up = client.hang_up.clone();
        // One thread per client, because each blocks. The listener limits their number.
        if let Err(error) = thread(env::CLIENT_THREAD).spawn(move || server.host(client)) {
            error!("cannot start a session for {address}: {error}");
            hang_up.now(&Rejection::NoSession.to_string());
        }
    }

    /// Serves one client until it disconnects.
    fn host(&self, mut client: AcceptedClient) {
        let (grants, _) = self.door.grants();
        let Some(grant) = grants.find(&client.pin, now()).cloned() else {
            if client.pin == self.door.own {
                // A probe of this user checks whether the server runs.
                let _ = client.writer.write_all(PROBE_ANSWER);
                return client.wait_for_close();
            }
            return client.hang_up.now(ENDED);
        };
        let address = shown(client.address);
        let name = grant.name.clone();
        let kind = client.kind.to_string();
        let (child, ours) = match self.start_session(&grant) {
            Ok(started) => started,
            Err(error) => {
                error!("cannot start a session for {name} from {address}: {error}");
                return client.turn_away(Rejection::NoSession);
            }
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        info!("session {number} of {name} from {address} over {kind} started");
        let bytes = Arc::new(Bytes::default());
        let child = Arc::new(Mutex::new(child));
        let since = Since::now();
        let pin = grant.pin;
        self.sessions.lock().push(RunningSession {
            number,
            run: None,
            grant,
            address,
            kind,
            since,
            bytes: bytes.clone(),
            child: child.clone(),
            hang_up: client.hang_up.clone(),
            questions: 0,
        });
        let hang_up = client.hang_up.clone();
        // A panic in one session must not affect the others.
        let may_begin = |run| {
            let may_begin = self.replace_sessions(number, &pin, run);
            if may_begin {
                self.retire_lost_sessions(number, &pin, run);
            }
            may_begin
        };
        let ended = catch_unwind(AssertUnwindSafe(|| {
            proxy::carry(client, &ours, &bytes, may_begin)
        }));
        let ended = ended.unwrap_or(ProxyEnd::Never);
        let grace = match ended {
            ProxyEnd::ByItself => LEAVING_MAX,
            ProxyEnd::Never => Duration::ZERO,
        };
        let ended = proxy::leave(&child, grace);
        self.sessions
            .lock()
            .retain(|session| session.number != number);
        let from = bytes.from_client.load(Ordering::Relaxed);
        let to = bytes.to_client.load(Ordering::Relaxed);
        self.bytes.from_client.fetch_add(from, Ordering::Relaxed);
        self.bytes.to_client.fetch_add(to, Ordering::Relaxed);
        let lasted = since.elapsed();
        self.ended_ms.fetch_add(
            u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
        let secs = lasted.as_secs_f32();
        let moved = hang_up.moved_after();
        let moved = moved.map_or_else(String::new, |bytes| {
            format!(", over {} after {bytes} bytes", NetTransport::Tls)
        });
        if from == 0 {
            // Enrollment connects and sends nothing.
            return info!(
                "session {number} of {name} ended after {secs:.1} s: connection test only"
            );
        }
        info!(
            "session {number} of {name} ended after {secs:.1} s with {ended}: {from} bytes received, {to} sent{moved}"
        );
    }

    /// Ends the earlier sessions of the run that session `number` continues. Their client has lost them, and two
    /// attempts of one run must not change a tree at once. Returns `false` if this session must not begin, because a
    /// later one exists already or an earlier one does not end.
    fn replace_sessions(&self, number: u64, pin: &Pin, run: RunKey) -> bool {
        let mut sessions = self.sessions.lock();
        let is_of_run =
            |session: &RunningSession| session.grant.pin == *pin && session.run == Some(run);
        if sessions
            .iter()
            .any(|session| session.number > number && is_of_run(session))
        {
            return false;
        }
        if let Some(own) = sessions.iter_mut().find(|session| session.number == number) {
            own.run = Some(run);
        }
        let is_earlier = |session: &RunningSession| session.number < number && is_of_run(session);
        for session in sessions.iter().filter(|session| is_earlier(session)) {
            info!(
                "session {} ended: its client continues with session {number}",
                session.number
            );
            session.end("the client has reconnected");
        }
        drop(sessions);
        let waits = Since::now();
        while self.sessions.lock().iter().any(is_earlier) {
            if waits.elapsed() >= LEAVING_MAX {
                error!(
                    "cannot start session {number}: an earlier session of the same run does not end"
                );
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Ends the earlier sessions of this key that copy to the same place if their clients are gone, so that session
    /// `number` finds what they have received and nothing is locked. A client that is killed says nothing over QUIC, and
    /// its session would wait for it for 100 s. Sessions whose clients answer go on.
    fn retire_lost_sessions(&self, number: u64, pin: &Pin, run: RunKey) {
        let is_rival = |session: &RunningSession| {
            let is_of_place = |other: RunKey| other[..PLACE_BYTES] == run[..PLACE_BYTES];
            session.number < number
                && session.grant.pin == *pin
                && session.run.is_some_and(is_of_place)
        };
        let asked: Vec<(u64, PeerQuestion)> = {
            let mut sessions = self.sessions.lock();
            let rivals = sessions.iter_mut().filter(|session| is_rival(session));
            let ask = |session: &mut RunningSession| {
                session.questions += 1;
                let question = PeerQuestion::new(&session.hang_up, session.questions);
                (session.number, question)
            };
            rivals.map(ask).collect()
        };

        let waits = Since::now();
        let mut silent = asked;
        while !silent.is_empty() && waits.elapsed() < LEAVING_MAX {
            let running: Vec<u64> = self.sessions.lock().iter().map(|one| one.number).collect();
            silent.retain(|(number, question)| running.contains(number) && !question.is_answered());
            for (lost, question) in &silent {
                if question.is_overdue(waits.elapsed()) {
                    let sessions = self.sessions.lock();
                    if let Some(session) = sessions.iter().find(|one| one.number == *lost) {
                        info!(
                            "session {lost} ended: its client is gone, and session {number} copies to the same place"
                        );
                        session.end("the client did not answer");
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts the process of a session. Returns it with this end of the socket that is its standard input and output.
    fn start_session(&self, grant: &Grant) -> io::Result<(Child, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut words: Vec<OsString> = vec!["server".into(), "session".into()];
        for root in &grant.roots {
            words.extend(["--root".into(), OsString::from_vec(root.clone())]);
        }
        words.extend(
            grant
                .owner
                .iter()
                .map(|owner| format!("--owner={owner}").into()),
        );
        for (is_on, word) in [
            (grant.read_only, "--read-only"),
            (grant.allow_setuid, "--allow-setuid"),
            (grant.no_munge, "--no-munge"),
        ] {
            words.extend(is_on.then(|| word.into()));
        }
        words.push(format!("--memory={}", self.budget.bytes()).into());
        if self.was_too_large(&grant.pin) {
            words.push("--too-large".into());
        }
        words.extend(
            self.budget
                .ceiling()
                .number()
                .map(|number| format!("--ceiling={number}").into()),
        );
        let mut command = env::itself(&words);
        command
            .stdin(Stdio::from(OwnedFd::from(theirs.try_clone()?)))
            .stdout(Stdio::from(OwnedFd::from(theirs)));
        // If the owner does not exist, the session reports it.
        let account = grant
            .owner
            .as_ref()
            .and_then(|owner| ids::account(owner).ok());
        let home = account
            .filter(|account| account.uid != sys::ids().0)
            .map(|account| account.home);
        let home = home.as_ref().unwrap_or(&self.home);
        command.current_dir(home).env("HOME", home);
        // A signal from the terminal must reach only the server, which then lets its sessions end.
        command.process_group(0);
        let child = match command.spawn() {
            // A missing home directory must not prevent sessions.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                command.current_dir("/").spawn()?
            }
            other => other?,
        };
        Ok((child, ours))
    }

    /// Returns whether the last session of this key was too large and its client has not learned that yet.
    fn was_too_large(&self, pin: &Pin) -> bool {
        let mut too_large = self.too_large.lock();
        let at = too_large
            .iter()
            .position(|(known, since)| known == pin && since.elapsed() < REPORTED_WITHIN);
        at.is_some_and(|at| {
            too_large.swap_remove(at);
            true
        })
    }

    fn status(&self) -> Status {
        let sessions = self.sessions.lock();
        let count = |of: &dyn Fn(&Bytes) -> &AtomicU64| {
            let running: u64 = sessions
                .iter()
                .map(|session| of(&session.bytes).load(Ordering::Relaxed))
                .sum();
            of(&self.bytes).load(Ordering::Relaxed) + running
        };
        let statuses = sessions.iter().map(|session| SessionStatus {
            name: session.grant.name.clone(),
            address: session.address.to_string(),
            transport: match session.hang_up.moved_after() {
                Some(_) => NetTransport::Tls.to_string(),
                None => session.kind.clone(),
            },
            secs: session.since.elapsed().as_secs(),
            bytes_in: session.bytes.from_client.load(Ordering::Relaxed),
            bytes_out: session.bytes.to_client.load(Ordering::Relaxed),
        });
        let (errors_total, rejected_total) = self.errors.counts();
        Status {
            running: true,
            pid: std::process::id(),
            pin: Some(self.door.own),
            port: self.addresses.first().map_or(0, SocketAddr::port),
            addresses: self.addresses.iter().map(ToString::to_string).collect(),
            uptime_secs: self.since.elapsed().as_secs(),
            draining: self.drain.load(Ordering::Relaxed),
            supervised: self.supervisor.is_present(),
            memory_bytes: self.budget.held_bytes(),
            memory_max_bytes: self.budget.bytes(),
            sessions: statuses.collect(),
            sessions_total: self.next.load(Ordering::Relaxed),
            bytes_in: count(&|bytes| &bytes.from_client),
            bytes_out: count(&|bytes| &bytes.to_client),
            ended_sessions_ms: Some(self.ended_ms.load(Ordering::Relaxed)),
            errors_total: Some(errors_total),
            rejected_total: Some(rejected_total),
            errors: self.errors.all(),
            ..Status::down()
        }
    }

    /// Answers control requests, one after the other.
    fn answer(&self, control: &UnixListener) {
        loop {
            let stream = match control.accept() {
                Ok((stream, _)) => stream,
                Err(_) => {
                    // Most likely the process is out of file descriptors; sessions that end free some.
                    std::thread::sleep(TICK);
                    continue;
                }
            };
            let Some(question) = control_socket::read_question(&stream) else {
                continue;
            };
            control_socket::answer(&stream, &self.status());
            match question {
                Question::Status => continue,
                Question::Drain => self.drain.store(true, Ordering::Relaxed),
                Question::Stop => self.stop.store(true, Ordering::Relaxed),
                Question::GiveWay => self.gives_way.store(true, Ordering::Relaxed),
            }
            // The client reads to the end of the stream, which comes when this process ends.
            self.held.lock().push(stream);
        }
    }
}

//! `sparsync doctor`: checks what works on this machine and on the way to a host, and names the next step. Changes
//! nothing.

use crate::cli::subcommand::{Doctor, RemoteHost, ServerAction, Start};
use crate::cli::{self, Invocation, Request};
use crate::cmd::command_end::write_text;
use crate::cmd::copy::route::{self, RoutePlan};
use crate::cmd::copy::via_server;
use crate::cmd::server::{control_socket, listen, port_owner};
use crate::cmd::{enroll, exec_rsync, input_files};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::probe::{self, KernelCopy, ProcessLimit};
use crate::fs::root::Dir;
use crate::fs::{errno, sandbox, sys, trusted_path};
use crate::options::LinkOwners;
use crate::path::file_name;
use crate::report::event::errno_words;
use crate::report::json;
use crate::transport::link::Patience;
use crate::transport::net::{HangUp, Trouble};
use crate::transport::shell::{self, SSH_FAILED, Shell, ShellExit, Stderr};
use crate::trust::Pin;
use crate::trust::files::List as _;
use crate::trust::grants::{Grant, Grants};
use crate::trust::identity::Identity;
use crate::trust::paths::Places;
use crate::trust::peers::{Peer, Peers, Transport};
use crate::trust::timestamp::Timestamp;
use crate::work::clock::{self, Since};
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// How long a program or a login may take.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// The most output that is read from a program.
const ANSWER_MAX_BYTES: usize = 256 << 10;
/// Fewer open files than this make a copy process one directory after the other.
const OPEN_FILES_LEAST: u64 = 48;
/// A larger difference between two clocks is reported, in seconds: grants expire at different times then.
const CLOCK_DIFFERENCE_MAX_SECS: i64 = 60;
/// The size of datagrams that every path carries, with which the search begins.
const MTU_LEAST_BYTES: u16 = 1200;
/// How long the size of datagrams that a path carries may be searched.
const MTU_WAIT_MAX: Duration = Duration::from_secs(3);
/// How often its size is read meanwhile.
const MTU_LOOK: Duration = Duration::from_millis(50);
/// The search counts as finished after so many equal sizes.
const MTU_SETTLED_LOOKS: u32 = 10;
/// The remote side prints its time and the programs that it has. `$p` is the name of sparsync there.
const SCRIPT: &str = "echo; echo \"clock $(date +%s)\"; echo \"sparsync $(\"$p\" --version 2>/dev/null | sed -n 2p)\"; \
                      echo \"rsync $(rsync --version 2>/dev/null | sed -n 1p)\"";

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ok,
    /// A restriction: copies work, but not in every way.
    Warn,
    Fail,
}

struct DoctorCheck {
    name: &'static str,
    state: State,
    finding: String,
    hint: Option<String>,
}

impl DoctorCheck {
    fn ok(name: &'static str, finding: impl Into<String>) -> DoctorCheck {
        DoctorCheck {
            name,
            state: State::Ok,
            finding: finding.into(),
            hint: None,
        }
    }

    fn warn(name: &'static str, finding: impl Into<String>) -> DoctorCheck {
        DoctorCheck {
            state: State::Warn,
            ..DoctorCheck::ok(name, finding)
        }
    }

    fn fail(name: &'static str, finding: impl Into<String>) -> DoctorCheck {
        DoctorCheck {
            state: State::Fail,
            ..DoctorCheck::ok(name, finding)
        }
    }

    fn of_error(name: &'static str, error: &Error) -> DoctorCheck {
        let text = String::from_utf8_lossy(&error.message).replace('\n', ";");
        DoctorCheck {
            hint: error.hint.clone(),
            ..DoctorCheck::fail(name, text.strip_prefix("sparsync: ").unwrap_or(&text))
        }
    }

    fn with_hint(self, hint: impl Into<String>) -> DoctorCheck {
        DoctorCheck {
            hint: Some(hint.into()),
            ..self
        }
    }

    fn line(&self) -> String {
        let state = self.state.word();
        let hint = self
            .hint
            .iter()
            .map(|hint| format!("{:24}hint: {hint}\n", ""))
            .collect::<String>();
        format!("{state:<6}{:<18}{}\n{hint}", self.name, self.finding)
    }
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Warn => "warn",
            State::Fail => "fail",
        }
    }
}

/// Prints the checks as they are done.
struct Printer<'a> {
    env: &'a mut Env,
    json: bool,
    failed: bool,
}

impl Printer<'_> {
    fn print(&mut self, checks: Vec<DoctorCheck>) -> Result<()> {
        let mut text = Vec::new();
        for check in checks {
            self.failed |= check.state == State::Fail;
            let DoctorCheck {
                name,
                state,
                finding,
                hint,
            } = &check;
            if self.json {
                let line = json::CheckLine {
                    name,
                    state: state.word(),
                    finding,
                    hint: hint.as_deref(),
                };
                json::put(&mut text, &json::Line::Check(line));
            } else {
                text.extend(check.line().into_bytes());
            }
        }
        write_text(&mut self.env.stdout, &text)
    }
}

/// Runs the checks and returns 1 if one of them fails.
pub fn run(env: &mut Env, wanted: &Doctor) -> Result<Exit> {
    let places = Places::from_env(env);
    let mut printer = Printer {
        env,
        json: wanted.json,
        failed: false,
    };
    let checks = programs(printer.env);
    printer.print(checks)?;
    printer.print(places.as_ref().map_or_else(
        |error| vec![DoctorCheck::of_error("configuration", error)],
        files,
    ))?;
    if let Ok(places) = &places {
        printer.print(server(places))?;
    }
    printer.print(directory(wanted.path.as_deref().unwrap_or(b".")))?;
    let checks = process(printer.env);
    printer.print(checks)?;
    if let (Some(reach), Ok(places)) = (&wanted.host, &places) {
        host(&mut printer, places, reach)?;
    }
    Ok(if printer.failed {
        Exit::Other(1)
    } else {
        Exit::Ok
    })
}

/// Runs a program, and ends it after [`ANSWER_MAX`]. Its standard error is printed only if it fails.
fn ask(env: &Env, argv: &[Vec<u8>]) -> io::Result<(ShellExit, String)> {
    let mut shell = Shell::start(argv, env.umask, Stderr::Held)?;
    let patience = Patience {
        idle: Some(ANSWER_MAX),
        stop: env.stop.clone(),
        ..Patience::default()
    };
    let mut link = shell.link(&patience)?;
    drop(link.writer);
    let since = Since::now();
    let mut output = Vec::new();
    let mut piece = [0; 4096];
    while since.elapsed() < ANSWER_MAX && output.len() < ANSWER_MAX_BYTES {
        match link.reader.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(count) => output.extend_from_slice(&piece[..count]),
        }
    }
    drop(link.reader);
    let ended = shell.wait(Some(ANSWER_MAX.saturating_sub(since.elapsed())), &env.stop)?;
    if ended != ShellExit::Code(0) {
        shell.show_stderr();
    }
    Ok((ended, String::from_utf8_lossy(&output).into_owned()))
}

fn words_of(words: &[&[u8]]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.to_vec()).collect()
}

fn programs(env: &Env) -> Vec<DoctorCheck> {
    let own = env.own_path().map_or_else(
        || "an unknown path".into(),
        |path| path.display().to_string(),
    );
    let called = env.program.to_string_lossy();
    let version = env!("CARGO_PKG_VERSION");
    let program = DoctorCheck::ok(
        "program",
        format!("sparsync {version} at {own}, called as {called}"),
    );
    // Without a name, none is used.
    let rsync = exec_rsync::named(env).map(|named| {
        match ask(env, &words_of(&[named.as_bytes(), b"--version"])) {
            Ok((ShellExit::Code(0), text)) => DoctorCheck::ok(
                "rsync",
                format!(
                    "{} at {}",
                    text.lines().next().unwrap_or_default(),
                    named.display()
                ),
            ),
            _ => DoctorCheck::warn(
                "rsync",
                format!("version unknown: {} --version failed", named.display()),
            ),
        }
    });
    let script = b"p=$(command -v ssh) || exit 0; echo \"$p\"; exec ssh -V 2>&1";
    let ssh = match ask(env, &words_of(&[b"sh", b"-c", script])) {
        Ok((ShellExit::Code(0), text)) if text.is_empty() => DoctorCheck::warn(
            "ssh",
            "not installed: hosts are reached only through their servers, or with -e",
        )
        .with_hint("install the package openssh-client"),
        Ok((ShellExit::Code(0), text)) => {
            let (path, version) = text
                .trim_end()
                .split_once('\n')
                .unwrap_or((text.trim_end(), "unknown version"));
            DoctorCheck::ok("ssh", format!("{version} at {path}"))
        }
        _ => DoctorCheck::warn("ssh", "version unknown: `ssh -V` failed"),
    };
    [Some(program), rsync, Some(ssh)]
        .into_iter()
        .flatten()
        .collect()
}

/// Checks who can change a directory of keys and state.
fn private(name: &'static str, path: &Path) -> DoctorCheck {
    let shown = path.display();
    let stat = match errno::if_there(sys::stat_path(path.as_os_str().as_bytes(), true)) {
        Ok(None) => return DoctorCheck::ok(name, format!("{shown} does not exist yet")),
        Ok(Some(stat)) => stat,
        Err(error) => {
            return DoctorCheck::fail(
                name,
                format!("cannot examine {shown}: {}", shown_errno(&error)),
            );
        }
    };
    let me = sys::ids().0;
    let mode = stat.mode & 0o7777;
    let facts = format!("{shown}, owned by user {}, mode {mode:04o}", stat.uid);
    match (stat.uid == me || stat.uid == 0, mode & 0o022 == 0) {
        (false, _) => DoctorCheck::fail(name, facts).with_hint(format!("run `chown {me} {shown}`")),
        (true, false) => DoctorCheck::fail(name, format!("{facts}: other users can change it"))
            .with_hint(format!("run `chmod go-w {shown}`")),
        (true, true) => DoctorCheck::ok(name, facts),
    }
}

fn shown_errno(error: &io::Error) -> String {
    String::from_utf8_lossy(&errno_words(error)).into_owned()
}

fn now() -> Timestamp {
    Timestamp(clock::now_unix().0)
}

/// Checks the files of this user.
fn files(places: &Places) -> Vec<DoctorCheck> {
    let key = match Identity::load(places) {
        Ok(Some(identity)) => DoctorCheck::ok("key", identity.pin.to_string()),
        Ok(None) => DoctorCheck::ok(
            "key",
            "none yet: `sparsync enroll` and `sparsync server` create it",
        ),
        Err(error) => DoctorCheck::of_error("key", &error),
    };
    let hosts = match Peers::load(places) {
        Ok(peers) => DoctorCheck::ok("hosts", format!("{} enrolled", peers.hosts.len())),
        Err(error) => DoctorCheck::of_error("hosts", &error),
    };
    vec![
        private("configuration", &places.config),
        private("state", &places.state),
        key,
        hosts,
    ]
}

/// Checks the server of this user, and its grants.
fn server(places: &Places) -> Vec<DoctorCheck> {
    let grants = Grants::load(places);
    let has_grants = grants
        .as_ref()
        .is_ok_and(|grants| !grants.grants.is_empty());
    let own_version = env!("CARGO_PKG_VERSION");
    let status = control_socket::status(places);
    let is_up = !matches!(status, Ok(None));
    let running = match status {
        Err(error) => DoctorCheck::of_error("server", &error),
        Ok(Some(status)) => {
            let facts = format!(
                "sparsync {}, process {}, at {}, {} sessions",
                status.sparsync,
                status.pid,
                status.addresses.join(" and "),
                status.sessions.len()
            );
            if status.sparsync == own_version {
                DoctorCheck::ok("server", facts)
            } else {
                DoctorCheck::warn("server", facts)
                    .with_hint("`sparsync server restart` starts this version")
            }
        }
        Ok(None) => match listen::pid(places) {
            Some(pid) => DoctorCheck::fail(
                "server",
                format!("process {pid} runs but has no control socket"),
            )
            .with_hint("`sparsync server stop --now` kills it"),
            None if has_grants => DoctorCheck::warn("server", "not running, but keys have grants")
                .with_hint("start it with `sparsync server start`"),
            None => DoctorCheck::ok("server", "not running"),
        },
    };
    let grants = match grants {
        Err(error) => vec![DoctorCheck::of_error("grants", &error)],
        Ok(grants) if grants.grants.is_empty() => vec![DoctorCheck::ok("grants", "none")],
        Ok(grants) => grants
            .grants
            .iter()
            .map(|grant| granted("grant", grant, &grant.name))
            .collect(),
    };
    let port = listen::port_of(places, &Start::default());
    let is_in_use = port_owner::is_in_use(port);
    let port = if is_up || port == 0 {
        None
    } else if is_in_use {
        let in_use = format!("{port} is in use by {}", listen::holder_of(port));
        Some(
            DoctorCheck::warn("port", in_use)
                .with_hint("choose another one with `sparsync server start --port=PORT`"),
        )
    } else {
        Some(DoctorCheck::ok("port", format!("{port} is free")))
    };
    std::iter::once(running).chain(port).chain(grants).collect()
}

fn granted(name: &'static str, grant: &Grant, who: &str) -> DoctorCheck {
    let facts = format!("{who} {}", grant.rights(now()));
    if grant.stands(now()) {
        DoctorCheck::ok(name, facts)
    } else {
        DoctorCheck::warn(name, facts)
    }
}

/// Checks the kernel and the file system of a directory.
fn directory(path: &[u8]) -> Vec<DoctorCheck> {
    let confined = match sandbox::can_confine() {
        Ok(()) => DoctorCheck::ok("openat2", "supported"),
        Err(error) => {
            DoctorCheck::warn("openat2", format!("not available: {}", shown_errno(&error)))
                .with_hint("grants with --root need Linux 5.6, and a container must permit openat2")
        }
    };
    let shown = String::from_utf8_lossy(path).into_owned();
    let dir = match trusted_path::open_dir(path, LinkOwners::Trusted) {
        Ok(dir) => Dir::new(dir),
        Err(error) => {
            let finding = format!("cannot open {shown}: {}", shown_errno(&error));
            return vec![confined, DoctorCheck::fail("directory", finding)];
        }
    };
    let at =
        sys::path_of(dir.fd()).map_or(shown, |path| String::from_utf8_lossy(&path).into_owned());
    let mut checks = vec![confined];
    checks.extend(match probe::files_of(&dir) {
        Ok(support) => of_files(&at, support),
        Err(error) => {
            vec![
                DoctorCheck::warn(
                    "directory",
                    format!("{at}, not writable: {}", shown_errno(&error)),
                ),
                DoctorCheck::warn(
                    "new files",
                    "unknown: O_TMPFILE, reflinks, attributes and times need a writable directory",
                ),
            ]
        }
    });
    checks.push(match probe::has_acls(dir.fd()) {
        Ok(true) => DoctorCheck::ok("acls", "supported"),
        Ok(false) => DoctorCheck::warn("acls", "not supported by the file system: -A fails"),
        Err(error) => DoctorCheck::warn("acls", format!("unknown: {}", shown_errno(&error))),
    });
    checks.push(match probe::is_case_sensitive(dir.fd()) {
        Ok(Some(true)) => DoctorCheck::ok("case", "names are case-sensitive"),
        Ok(Some(false)) => {
            DoctorCheck::warn("case", "names are not case-sensitive: A and a are one file")
        }
        Ok(None) => DoctorCheck::ok("case", "unknown: no name there shows whether case matters"),
        Err(error) => DoctorCheck::warn("case", format!("unknown: {}", shown_errno(&error))),
    });
    checks.extend(match probe::space(dir.fd()) {
        Ok(space) => of_space(&space),
        Err(error) => vec![DoctorCheck::warn(
            "space",
            format!("unknown: {}", shown_errno(&error)),
        )],
    });
    checks
}

fn of_files(at: &str, support: probe::FileSupport) -> Vec<DoctorCheck> {
    let unnamed = if support.unnamed {
        DoctorCheck::ok("new files", "O_TMPFILE is supported")
    } else {
        DoctorCheck::ok(
            "new files",
            "O_TMPFILE is not supported: new files have temporary names",
        )
    };
    let copy = match support.copy {
        Ok(KernelCopy::Reflink) => {
            DoctorCheck::ok("kernel copy", "reflink: local copies share blocks")
        }
        Ok(KernelCopy::Range) => {
            DoctorCheck::ok("kernel copy", "copy_file_range, without reflinks")
        }
        Err(error) => DoctorCheck::warn(
            "kernel copy",
            format!("not available: {}", shown_errno(&error)),
        ),
    };
    let xattr = match support.xattr {
        Ok(()) => DoctorCheck::ok("xattrs", "supported"),
        Err(error) => DoctorCheck::warn(
            "xattrs",
            format!("cannot be set, so -X fails: {}", shown_errno(&error)),
        ),
    };
    let times = match support.time_step_nanos {
        Ok(step @ 1_000_000_000..) => DoctorCheck::warn(
            "times",
            format!("stored in steps of {} s", step / 1_000_000_000),
        )
        .with_hint("with --modify-window=1, times that differ by this step count as equal"),
        Ok(step) => DoctorCheck::ok("times", format!("stored in steps of {step} ns")),
        Err(error) => DoctorCheck::warn("times", format!("unknown: {}", shown_errno(&error))),
    };
    vec![
        DoctorCheck::ok("directory", format!("{at}, writable")),
        unnamed,
        copy,
        xattr,
        times,
    ]
}

fn of_space(space: &probe::Space) -> Vec<DoctorCheck> {
    let percent = |part: u64, whole: u64| {
        part.saturating_mul(100)
            .checked_div(whole)
            .unwrap_or_default()
    };
    let free = space.free_bytes;
    let total = space.total_bytes;
    let facts = format!(
        "{} of {} MiB free ({} %)",
        free >> 20,
        total >> 20,
        percent(free, total)
    );
    let bytes = match (space.is_read_only, free) {
        _ if total == 0 => DoctorCheck::ok("space", "unknown: the file system reports none"),
        (true, _) => DoctorCheck::warn("space", format!("{facts}, mounted read-only")),
        (false, 0) => DoctorCheck::fail("space", facts)
            .with_hint("free space there, or choose another directory"),
        (false, _) => DoctorCheck::ok("space", facts),
    };
    let free = space.free_inodes;
    let total = space.total_inodes;
    let inodes = match (total, free) {
        (0, _) => DoctorCheck::ok("inodes", "no fixed number"),
        (_, 0) => DoctorCheck::fail("inodes", format!("0 of {total} free"))
            .with_hint("remove files there"),
        _ => DoctorCheck::ok(
            "inodes",
            format!("{free} of {total} free ({} %)", percent(free, total)),
        ),
    };
    vec![bytes, inodes]
}

/// Checks the limits and the clock of this process.
fn process(env: &Env) -> Vec<DoctorCheck> {
    let shown = |limit: ProcessLimit, unit: &str| {
        let value = |value: Option<u64>| {
            value.map_or_else(|| "unlimited".into(), |value| format!("{value}{unit}"))
        };
        format!("{}, at most {}", value(limit.current), value(limit.maximum))
    };
    let [files, processes, memory] = probe::process_limits();
    let open = if files.current.is_some_and(|limit| limit < OPEN_FILES_LEAST) {
        DoctorCheck::warn(
            "open files",
            format!("{}: copies are slow", shown(files, "")),
        )
        .with_hint(format!("run `ulimit -n {OPEN_FILES_LEAST}` or more before"))
    } else {
        DoctorCheck::ok("open files", shown(files, ""))
    };
    let own = env
        .own_path()
        .and_then(|path| sys::stat_path(path.as_os_str().as_bytes(), true).ok());
    let clock = match own {
        Some(own) if own.mtime.secs > now().0 => DoctorCheck::fail(
            "clock",
            format!(
                "{}, before this program was installed ({})",
                now(),
                Timestamp(own.mtime.secs)
            ),
        )
        .with_hint("set the clock"),
        _ => DoctorCheck::ok("clock", now().to_string()),
    };
    vec![
        open,
        DoctorCheck::ok("processes", shown(processes, "")),
        DoctorCheck::ok("address space", shown(memory, " bytes")),
        clock,
    ]
}

/// Checks the ways to a host: ssh, then its server.
fn host(printer: &mut Printer<'_>, places: &Places, reach: &RemoteHost) -> Result<()> {
    let peers = Peers::load(places).unwrap_or_default();
    let known = peers.find(&reach.host);
    let copy = match settled(printer.env, reach) {
        Ok(copy) => copy,
        Err(error) => return printer.print(vec![DoctorCheck::of_error("route", &error)]),
    };
    let shell = without_questions(&copy.options.connect.shell);
    let reach = enroll::with_program(
        &RemoteHost {
            shell,
            ..reach.clone()
        },
        known,
    );
    let login = SshLogin::probe(printer.env, &reach);
    printer.print(login.checks(&reach))?;
    let facts = || {
        via_server::ssh_facts(&copy.options.connect.shell, &reach.host, printer.env.umask)
            .is_proxied
    };
    let plan = match &copy.far {
        Some(far) => route::plan(&far.operand, &copy.options, &peers, now(), &facts),
        None => Ok(RoutePlan::Shell(None)),
    };
    let identity = Identity::load(places);
    let enrolled = known.map_or_else(
        || {
            let check = DoctorCheck::warn("enrolled", "no: copies use ssh");
            // Enrolling needs the login.
            if login.works {
                check.with_hint(format!("run `sparsync enroll {}`", reach.host))
            } else {
                check
            }
        },
        |peer| {
            DoctorCheck::ok(
                "enrolled",
                format!(
                    "since {}, {} port {}",
                    peer.met,
                    peer.addresses.join(", "),
                    peer.port
                ),
            )
        },
    );
    printer.print(vec![enrolled])?;
    let mut reached = Vec::new();
    let mut failed = Vec::new();
    if let (Some(peer), Ok(Some(identity))) = (known, &identity) {
        for transport in [Transport::Quic, Transport::Tls] {
            let (check, trouble) = dialled(printer.env, identity, peer, transport);
            match trouble {
                None => reached.push(transport),
                Some(why) => failed.push((why.rank(), via_server::without_server(peer, &why))),
            }
            printer.print(vec![check])?;
        }
    }
    let failed = failed
        .into_iter()
        .max_by_key(|(rank, _)| *rank)
        .map(|(_, why)| why);
    printer.print(vec![route_check(plan, &reached, failed, login.works)])?;
    if let (Ok(Some(identity)), true, Some(_)) = (&identity, login.ours.is_some(), known) {
        let check = own_grant(printer.env, &reach, &identity.pin);
        printer.print(vec![check])?;
    }
    Ok(())
}

/// Returns the options with which a copy to this host would run: from the command line, variables and aliases.
fn settled(env: &Env, reach: &RemoteHost) -> Result<Box<cli::Copy>> {
    let (user, name) = reach
        .host
        .rsplit_once('@')
        .map_or((None, &*reach.host), |(user, name)| (Some(user), name));
    let name = if name.contains(':') {
        format!("[{name}]")
    } else {
        name.to_owned()
    };
    let operand = user.map_or_else(|| format!("{name}:."), |user| format!("{user}@{name}:."));
    let args: [OsString; 3] = ["-r".into(), operand.into(), ".".into()];
    let call = Invocation {
        program: OsStr::new("sparsync"),
        args: &args,
        appended: &[],
        vars: &|name: &str| env.var(name),
        now_unix_secs: clock::now_unix().0,
        umask: env.umask,
        popt: &input_files::popt_files(env),
    };
    let mut copy = match cli::read(&call)? {
        Request::Copy(copy) => copy,
        _ => {
            return Err(Error::usage(
                "sparsync: cannot determine the route: the aliases in ~/.popt change this command",
            ));
        }
    };
    let connect = &mut copy.options.connect;
    if !reach.shell.is_empty() {
        (connect.shell, connect.shell_was_given) = (reach.shell.clone(), true);
    }
    if reach.program.is_some() {
        connect.program.clone_from(&reach.program);
    }
    Ok(copy)
}

/// Returns the command of a remote shell that asks the user nothing, if it is ssh.
fn without_questions(shell: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut words = if shell.is_empty() {
        vec![b"ssh".to_vec()]
    } else {
        shell.to_vec()
    };
    if file_name(&words[0]) == b"ssh" {
        words.splice(
            1..1,
            words_of(&[b"-oBatchMode=yes", b"-oConnectTimeout=10"]),
        );
    }
    words
}

/// What a login through the remote shell has found.
struct SshLogin {
    works: bool,
    ended: io::Result<ShellExit>,
    /// The difference to the clock there, in seconds.
    clock_ahead_secs: Option<i64>,
    /// The version of sparsync there.
    ours: Option<String>,
    /// The first line of `rsync --version` there.
    rsync: Option<String>,
}

impl SshLogin {
    fn probe(env: &Env, reach: &RemoteHost) -> SshLogin {
        let find = match &reach.program {
            Some(_) => "p=$1",
            None => enroll::FIND_SPARSYNC,
        };
        let script = format!("{find}; {SCRIPT}");
        let program = reach.program.clone().unwrap_or_default();
        let words = words_of(&[b"sh", b"-c", script.as_bytes(), b"sh", &program]);
        let (ended, output) = match ask(env, &shell::argv_of(&reach.shell, &reach.host, &words)) {
            Ok((ended, output)) => (Ok(ended), output),
            Err(error) => (Err(error), String::new()),
        };
        let works = matches!(ended, Ok(ShellExit::Code(code)) if code != SSH_FAILED);
        SshLogin {
            works,
            ended,
            ..SshLogin::read(&output, clock::now_unix().0)
        }
    }

    fn read(output: &str, now_secs: i64) -> SshLogin {
        let field = |name: &str| {
            let value = output
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value
                .map(str::trim)
                .filter(|value| !value.is_empty())
                .map(str::to_owned)
        };
        let ours = field("sparsync").and_then(|line| {
            Some(
                line.strip_prefix("This is sparsync ")?
                    .split(':')
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            )
        });
        let clock = field("clock").and_then(|secs| secs.parse::<i64>().ok());
        let clock_ahead_secs = clock.map(|secs| secs.saturating_sub(now_secs));
        SshLogin {
            works: false,
            ended: Ok(ShellExit::GivenUp),
            clock_ahead_secs,
            ours,
            rsync: field("rsync"),
        }
    }

    fn checks(&self, reach: &RemoteHost) -> Vec<DoctorCheck> {
        let host = &reach.host;
        let argv = shell::argv_of(&reach.shell, host, &[]);
        let command = String::from_utf8_lossy(&argv.join(&b' ')).into_owned();
        let see = format!("run `{command}` to see the reason");
        let failed = |why: String| vec![DoctorCheck::fail("ssh login", why).with_hint(see.clone())];
        match &self.ended {
            Err(error) => {
                return failed(format!("cannot start `{command}`: {}", shown_errno(error)));
            }
            Ok(ShellExit::Killed) => return failed(format!("`{command}` was killed")),
            Ok(ShellExit::GivenUp) => {
                return failed(format!("no end within {} s", ANSWER_MAX.as_secs()));
            }
            Ok(ShellExit::Code(SSH_FAILED)) => {
                return failed("failed without asking for a password".into());
            }
            Ok(ShellExit::Code(_)) => {}
        }
        let Some(ahead) = self.clock_ahead_secs else {
            let finding = "works, but runs only a fixed command: the programs there are unknown";
            return vec![DoctorCheck::warn("ssh login", finding)];
        };
        let ours = self.ours.as_deref();
        let rsync = self.rsync.as_deref();
        let program = match (ours, rsync) {
            (Some(version), _) => DoctorCheck::ok("program there", format!("sparsync {version}")),
            (None, Some(rsync)) => {
                DoctorCheck::warn("program there", format!("{rsync}, no sparsync")).with_hint(
                    format!("`sparsync enroll --install {host}` copies this program there"),
                )
            }
            (None, None) => DoctorCheck::fail("program there", "neither sparsync nor rsync found")
                .with_hint(format!(
                    "`sparsync enroll --install {host}` copies this program there"
                )),
        };
        let clock = if ahead.abs() > CLOCK_DIFFERENCE_MAX_SECS {
            DoctorCheck::warn("clock there", format!("differs by {} s", ahead.abs()))
                .with_hint("set the clocks")
        } else {
            DoctorCheck::ok(
                "clock there",
                format!("the same within {CLOCK_DIFFERENCE_MAX_SECS} s"),
            )
        };
        vec![DoctorCheck::ok("ssh login", "works"), program, clock]
    }
}

/// Connects to the server of a host over one protocol. Also returns why that failed.
fn dialled(
    env: &Env,
    identity: &Identity,
    peer: &Peer,
    transport: Transport,
) -> (DoctorCheck, Option<Trouble>) {
    let name = if transport == Transport::Quic {
        "quic"
    } else {
        "tls"
    };
    let patience = Patience {
        idle: Some(ANSWER_MAX),
        stop: env.stop.clone(),
        ..Patience::default()
    };
    let dial = via_server::dial(identity, peer, patience, Default::default());
    match via_server::dial_all(peer, &[transport], &dial) {
        Ok(won) => {
            let datagrams = discovered_datagram_bytes(&won.hang_up)
                .map(|bytes| format!(", datagrams of {bytes} bytes"));
            let finding = format!(
                "reached at {}{}",
                won.address,
                datagrams.unwrap_or_default()
            );
            (DoctorCheck::ok(name, finding), None)
        }
        Err(why @ Trouble::WrongKey(_)) => {
            let hint = format!(
                "if its key was replaced: sparsync enroll --revoke {0} && sparsync enroll {0}",
                peer.name
            );
            (
                DoctorCheck::fail(name, why.to_string()).with_hint(hint),
                Some(why),
            )
        }
        Err(why) => {
            let hint = match why {
                Trouble::Broken(_) => format!(
                    "run `sparsync server status {}` to see its last errors",
                    peer.ssh
                ),
                _ => via_server::advice(peer, &why),
            };
            (
                DoctorCheck::warn(name, why.to_string()).with_hint(hint),
                Some(why),
            )
        }
    }
}

/// Returns the size of datagrams once QUIC has stopped finding larger ones; `None` for TLS.
fn discovered_datagram_bytes(connection: &HangUp) -> Option<u16> {
    let since = Since::now();
    let mut found = connection.datagram_bytes()?;
    let mut unchanged = 0;
    while (unchanged < MTU_SETTLED_LOOKS || found <= MTU_LEAST_BYTES)
        && since.elapsed() < MTU_WAIT_MAX
    {
        std::thread::sleep(MTU_LOOK);
        let now = connection.datagram_bytes()?;
        unchanged = if now == found { unchanged + 1 } else { 0 };
        found = now;
    }
    Some(found)
}

/// Returns the route that a copy takes, and why. `reached`: the transports by which the server was reached, and why others
/// failed.
fn route_check(
    plan: Result<RoutePlan>,
    reached: &[Transport],
    failed: Option<String>,
    ssh_works: bool,
) -> DoctorCheck {
    let failed = failed.unwrap_or_else(|| "no connection to the server".to_owned());
    let by_ssh = |why: &str| {
        if ssh_works {
            DoctorCheck::ok("route", format!("ssh: {why}"))
        } else {
            DoctorCheck::fail(
                "route",
                format!("none: {why}, and the ssh login does not work"),
            )
        }
    };
    // The host is enrolled, so its server should answer.
    let by_ssh_instead = |why: &str| {
        if ssh_works {
            DoctorCheck::warn("route", format!("ssh: {why}"))
        } else {
            by_ssh(why)
        }
    };
    match plan {
        Err(error) => DoctorCheck::of_error("route", &error),
        Ok(RoutePlan::Shell(why)) => by_ssh(why.unwrap_or("the host is not enrolled")),
        Ok(RoutePlan::ShellAfterTrouble(peer)) => by_ssh_instead(&route::earlier_trouble(&peer)),
        Ok(RoutePlan::EphemeralServer) => {
            if ssh_works {
                DoctorCheck::ok(
                    "route",
                    "QUIC to a server that ssh starts for each run: SPARSYNC_TRANSPORT is quic",
                )
            } else {
                DoctorCheck::fail("route", "none: ssh cannot start a server for the run")
            }
        }
        Ok(RoutePlan::Server {
            transports,
            or_shell,
            ..
        }) => match transports.iter().find(|kind| reached.contains(kind)) {
            Some(Transport::Quic) => {
                DoctorCheck::ok("route", "QUIC: the host is enrolled and its server answers")
            }
            Some(Transport::Tls) => {
                DoctorCheck::ok("route", "TLS: the host is enrolled and its server answers")
            }
            Some(Transport::Ssh) | None if or_shell => by_ssh_instead(&failed),
            Some(Transport::Ssh) | None => {
                DoctorCheck::fail("route", format!("none: {failed}, and ssh is not permitted"))
            }
        },
    }
}

/// A grant as `server grants --json` prints it.
#[derive(Deserialize)]
struct RemoteGrant {
    name: String,
    pin: Pin,
    roots: Vec<String>,
    read_only: bool,
    expires: Option<Timestamp>,
    allow_setuid: bool,
    no_munge: bool,
    owner: Option<String>,
}

/// Requests the grants of the host over ssh, and finds that of this machine's key.
fn own_grant(env: &Env, reach: &RemoteHost, pin: &Pin) -> DoctorCheck {
    let argv = enroll::argv(reach, &ServerAction::Grants { json: true }.words());
    let grants = match ask(env, &argv) {
        Ok((ShellExit::Code(0), text)) => serde_json::from_str::<Vec<RemoteGrant>>(text.trim()),
        _ => {
            return DoctorCheck::warn(
                "grant there",
                "unknown: `sparsync server grants` failed there",
            );
        }
    };
    let Ok(grants) = grants else {
        return DoctorCheck::warn(
            "grant there",
            "unknown: the sparsync there has another version",
        );
    };
    let Some(own) = grants.into_iter().find(|grant| grant.pin == *pin) else {
        return DoctorCheck::warn("grant there", "none for this machine's key")
            .with_hint(format!("run `sparsync enroll {}`", reach.host));
    };
    let RemoteGrant {
        name,
        pin,
        roots,
        read_only,
        expires,
        allow_setuid,
        no_munge,
        owner,
    } = own;
    let roots = roots.into_iter().map(String::into_bytes).collect();
    let grant = Grant {
        pin,
        name,
        roots,
        read_only,
        expires,
        allow_setuid,
        no_munge,
        owner,
    };
    let check = granted("grant there", &grant, "this machine");
    match check.state {
        State::Ok => check,
        State::Warn | State::Fail => {
            check.with_hint(format!("run `sparsync enroll --no-expiry {}`", reach.host))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_of_a_host_is_read() {
        let login = SshLogin::read(
            "motd\n\nclock 1000\nsparsync This is sparsync 0.1.0: not rsync itself\nrsync \n",
            900,
        );
        assert_eq!(
            (login.clock_ahead_secs, login.ours.as_deref(), login.rsync),
            (Some(100), Some("0.1.0"), None)
        );
        let login = SshLogin::read(
            "clock 1\nsparsync Copyright (C)\nrsync rsync  version 3.5.0\n",
            1,
        );
        assert_eq!(
            (login.ours, login.rsync.as_deref()),
            (None, Some("rsync  version 3.5.0"))
        );
        assert_eq!(SshLogin::read("rsync\n", 1).clock_ahead_secs, None);
    }

    #[test]
    fn route_is_the_first_reached_one() {
        let peer = Peer {
            name: "box".into(),
            ssh: "box".into(),
            addresses: vec!["192.0.2.1".into()],
            port: 1,
            pin: Pin([7; 32]),
            program: None,
            met: Timestamp(1),
            last_transport: None,
            last_until: None,
            last_trouble: None,
            is_limited: false,
        };
        let server = |or_shell| {
            Ok(RoutePlan::Server {
                peer: Box::new(peer.clone()),
                transports: vec![Transport::Quic, Transport::Tls],
                or_shell,
            })
        };
        for (plan, reached, ssh_works, state, begin) in [
            (
                server(true),
                &[Transport::Tls, Transport::Quic][..],
                true,
                State::Ok,
                "QUIC",
            ),
            (server(true), &[Transport::Tls], false, State::Ok, "TLS"),
            (server(true), &[], true, State::Warn, "ssh"),
            (server(true), &[], false, State::Fail, "none"),
            (server(false), &[], true, State::Fail, "none"),
            (
                Ok(RoutePlan::Shell(None)),
                &[],
                true,
                State::Ok,
                "ssh: the host is not enrolled",
            ),
            (
                Ok(RoutePlan::EphemeralServer),
                &[],
                false,
                State::Fail,
                "none",
            ),
        ] {
            let check = route_check(plan, reached, None, ssh_works);
            assert_eq!(
                (check.state, check.finding.starts_with(begin)),
                (state, true),
                "{}",
                check.finding
            );
        }
    }
}

//! Connects to a daemon by TCP, through an HTTP proxy, a program or a remote shell, and requests a module.

use super::remote_copy::RemoteCopy;
use crate::cli::server_args;
use crate::cmd::copy;
use crate::env::Env;
use crate::error::Error;
use crate::exit::Exit;
use crate::fs::{charset, sys, trusted_path};
use crate::options::{ArgStyle, Connect, StderrMode};
use crate::proto::greeting::{BEHIND_RSYNC_OLDEST, MAGIC};
use crate::proto::rsync::handshake::VERSIONS;
use crate::proto::rsync::limits::EARLY_INPUT_MAX_BYTES;
use crate::report::early_line;
use crate::report::escape::{self, Charset};
use crate::report::event::errno_words;
use crate::rsync;
use crate::rsync::daemon::{
    Credentials, DaemonTalk, DaemonUser, ModuleAnswer, path_args, split_path,
};
use crate::transport::Link;
use crate::transport::daemon_socket::{DaemonAddress, HttpProxy, program_command, start_program};
use crate::transport::shell::{self, Shell, ShellCall};
use std::io::{self, Read, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt;

/// The port if the user names none.
const PORT: u16 = 873;
/// The program at the other end of a remote shell.
const PROGRAM: &[u8] = b"rsync";
/// The most bytes of a password file.
const PASSWORD_FILE_MAX_BYTES: usize = 1 << 20;

/// A daemon that has accepted a module.
pub struct ReachedDaemon {
    /// The remote shell, if one leads to the daemon.
    pub shell: Option<Shell>,
    /// The stream, at the beginning of the session.
    pub link: Link,
    /// The protocol version that was agreed on with an rsync, or with a sparsync that serves this run as one. `None`: a
    /// sparsync begins a session in its own protocol.
    pub rsync_protocol: Option<u8>,
}

/// Connects to the daemon of a copy and requests the module. `None`: the daemon printed a list, such as that of its
/// modules, and nothing is left to do. `port`: see [`RemoteOperand::daemon`](crate::cli::RemoteOperand::daemon).
pub fn reach(side: &RemoteCopy, env: &mut Env, port: i32) -> Result<Option<ReachedDaemon>, Error> {
    let charset = Charset::for_locale(copy::utf8_locale(env), side.options.output.eight_bit);
    let mut client = DaemonClient { side, env, charset };
    client.reach(port).map_err(|error| {
        // A peer wrote parts of the message.
        let lines = error.message.split(|&byte| byte == b'\n').map(|line| {
            let mut escaped = Vec::new();
            escape::put(&mut escaped, line, charset);
            escaped
        });
        Error {
            message: lines.collect::<Vec<_>>().join(&b'\n'),
            role: side.role(),
            ..error
        }
    })
}

/// Connects to a daemon and prints its lines.
struct DaemonClient<'a> {
    side: &'a RemoteCopy,
    env: &'a mut Env,
    charset: Charset,
}

impl DaemonClient<'_> {
    fn reach(&mut self, port: i32) -> Result<Option<ReachedDaemon>, Error> {
        let side = self.side;
        let first = side.far_paths().first().map_or(&[][..], Vec::as_slice);
        if first.starts_with(b"/") {
            let words = "ERROR: The remote path must start with a module name not a /";
            return Err(Error::new(Exit::StartClient, words));
        }
        let module = split_path(first).0;
        if module.contains(&b'\n') {
            return Err(Error::usage(
                "sparsync: invalid module name: it contains a line break",
            ));
        }
        copy::handle_signals(self.env)?;
        let (shell, mut link) = if side.options.connect.shell.is_empty() {
            (None, self.connect(port)?)
        } else {
            let (shell, link) = self.start_shell(port)?;
            (Some(shell), link)
        };
        let mut talk = {
            let connect = &side.options.connect;
            let newest = connect.protocol.unwrap_or(*VERSIONS.end());
            DaemonTalk::begin(&mut link, side.role(), newest, connect.timeout_secs)?
        };
        let protocol = talk.protocol;
        let (args, secluded) = self.args(module);
        if let Some(line) = rsync::charset_line(&side.options, side.role()) {
            self.print_line(&line);
        }
        if side.options.output.debug.cmd > 0 {
            self.print_line(&shell::shown("sending daemon args", &args));
        }
        if let Some(path) = &side.options.connect.daemon.early_input {
            let input = self.early_input(path)?;
            if !input.is_empty() {
                talk.send_early_input(&input)?;
            }
        }
        Ok(match talk.ask(module, self)? {
            ModuleAnswer::Listed => None,
            ModuleAnswer::Accepted => {
                talk.send_args(&args)?;
                if let Some(secluded) = secluded {
                    let secluded: Vec<_> = secluded
                        .iter()
                        .map(|arg| charset::line_to_wire(arg).into_owned())
                        .collect();
                    talk.send_secluded_args(&secluded)?;
                }
                let may_be_native =
                    side.options.requires_rsync().is_none() && protocol >= BEHIND_RSYNC_OLDEST;
                let (is_native, link) = if may_be_native {
                    recognize(link)
                } else {
                    (false, link)
                };
                Some(ReachedDaemon {
                    shell,
                    link,
                    rsync_protocol: if is_native { None } else { Some(protocol) },
                })
            }
        })
    }

    /// Returns the port that the operand (`port`) or `--port` names.
    fn named_port(&self, port: i32) -> Option<i32> {
        [port, self.side.options.connect.port]
            .into_iter()
            .find(|&port| port > 0)
    }

    /// Connects by TCP, or to the program that replaces the connection.
    fn connect(&mut self, port: i32) -> Result<Link, Error> {
        let side = self.side;
        let connect = &side.options.connect;
        let named = self.named_port(port).unwrap_or_else(|| PORT.into());
        let host = &side.far.operand.host;
        let place = [host, format!(" port {named}").as_bytes()].concat();
        let patience = side.patience(self.env);
        let debug = side.options.output.debug;
        if let Some(command) = self.env.var("RSYNC_CONNECT_PROG") {
            if debug.connect > 0 {
                self.print_line(
                    &[
                        b"Using RSYNC_CONNECT_PROG instead of opening tcp connection to ",
                        &place[..],
                    ]
                    .concat(),
                );
            }
            let command = program_command(&command.into_vec(), host)?;
            if debug.cmd > 0 {
                self.print_line(&[b"Running socket program: \"", &command[..], b"\""].concat());
            }
            let shell = self.env.var("RSYNC_SHELL").unwrap_or_else(|| "sh".into());
            return start_program((&shell, &command), self.env.umask, &patience, side.role());
        }
        if debug.connect > 0 {
            self.print_line(&[b"opening tcp connection to ", &place[..]].concat());
        }
        let proxy = self
            .env
            .var("RSYNC_PROXY")
            .filter(|proxy| !proxy.is_empty());
        let proxy = proxy
            .map(|proxy| HttpProxy::parse(&proxy.into_vec()))
            .transpose()?;
        if let Some(HttpProxy { host, port, .. }) = &proxy
            && debug.connect > 0
        {
            self.print_line(&[b"connection via http proxy ", &host[..], b" port ", port].concat());
        }
        // As in rsync, a number that is too large wraps around.
        let port = named as u16;
        let proxy = proxy.as_ref();
        let role = side.role();
        let address = DaemonAddress {
            host,
            port,
            proxy,
            connect,
            role,
            patience: &patience,
        };
        address.connect(&mut |line| self.warn(line))
    }

    /// Starts the remote shell that leads to the daemon.
    fn start_shell(&mut self, port: i32) -> Result<(Shell, Link), Error> {
        let side = self.side;
        let connect = &Connect {
            args: ArgStyle::Escaped,
            ..side.options.connect.clone()
        };
        // A user that the command names logs in to the machine, and the user of the operand only to the module.
        let names_user = connect
            .shell
            .split_last()
            .is_some_and(|(_, words)| words.iter().any(|word| word == b"-l"));
        let user = if names_user {
            None
        } else {
            side.far.operand.user.as_deref()
        };
        let argv = ShellCall {
            is_quiet: false,
            connect,
            user,
            host: &side.far.operand.host,
            program: connect.program.as_deref().unwrap_or(PROGRAM),
            server_sends: false,
            words: &[b"--daemon".to_vec()],
            remote_words: &[],
            paths: &[],
        }
        .argv();
        if side.options.output.debug.cmd > 0 {
            self.print_line(&shell::shown("opening connection using", &argv));
        }
        let port = self.named_port(port).unwrap_or(0);
        let started = Shell::start_for_daemon(&argv, self.env.umask, port).and_then(|mut shell| {
            let link = shell.link(&side.patience(self.env))?;
            Ok((shell, link))
        });
        started.map_err(|error| {
            let start = format!("rsync: [{}] Failed to exec ", side.role()).into_bytes();
            Error::new(
                Exit::Ipc,
                [&start, &argv[0][..], b": ", &errno_words(&error)].concat(),
            )
        })
    }

    /// Returns the server's command line without the name of the program, and the arguments that are sent after it.
    fn args(&self, module: &[u8]) -> (Vec<Vec<u8>>, Option<Vec<Vec<u8>>>) {
        let side = self.side;
        let mut words = side.rsync_words();
        words.extend_from_slice(&side.far.remote_words);
        let mode = side.far.operand.server_sends.then(|| b"--sender".to_vec());
        let start = std::iter::once(b"--server".to_vec()).chain(mode);
        let splits = match side.options.connect.args {
            ArgStyle::OldPaths | ArgStyle::OldAll => true,
            ArgStyle::Escaped | ArgStyle::Secluded => false,
        };
        let paths = path_args(side.far_paths(), module, splits);
        let end = std::iter::once(b".".to_vec()).chain(paths);
        match side.options.connect.args {
            ArgStyle::Secluded => {
                let rest = words.split_off(server_args::unsecluded(&words));
                (
                    start.chain(words).collect(),
                    Some(rest.into_iter().chain(end).collect()),
                )
            }
            ArgStyle::OldAll => (start.chain(words).chain(end).collect(), None),
            ArgStyle::Escaped | ArgStyle::OldPaths => {
                let words = words.iter().map(|word| shell::escape_option(word));
                (start.chain(words).chain(end).collect(), None)
            }
        }
    }

    /// Reads the file of `--early-input`.
    fn early_input(&self, path: &[u8]) -> Result<Vec<u8>, Error> {
        let failed = |error: io::Error| {
            let words = match error.kind() {
                io::ErrorKind::FileTooLarge => [
                    path,
                    format!(" is > {EARLY_INPUT_MAX_BYTES} bytes.").as_bytes(),
                ]
                .concat(),
                _ => {
                    let start =
                        format!("rsync: [{}] failed to open ", self.side.role()).into_bytes();
                    [&start, path, b": ", &errno_words(&error)].concat()
                }
            };
            let lines = trusted_path::with_refusal(&error, words);
            Error::new(Exit::StartClient, lines)
        };
        let owners = self.side.options.preserve.link_owners;
        trusted_path::read_path(path, EARLY_INPUT_MAX_BYTES, owners).map_err(failed)
    }

    /// Returns the password: from `--password-file`, from the environment, or from the user.
    fn secret(&self) -> Result<Vec<u8>, Error> {
        if let Some(path) = &self.side.options.connect.daemon.password_file {
            return self.password_file(path);
        }
        if let Some(secret) = self.env.var("RSYNC_PASSWORD") {
            return Ok(secret.into_vec());
        }
        self.env
            .ask_secret("Password: ")
            .map_err(|error| match error.kind() {
                io::ErrorKind::ConnectionAborted => Error::new(Exit::Signal, ""),
                _ => Error::usage(
                    [
                        b"sparsync: cannot read the password: ",
                        &errno_words(&error)[..],
                    ]
                    .concat(),
                ),
            })
    }

    fn password_file(&self, path: &[u8]) -> Result<Vec<u8>, Error> {
        let unreadable =
            || Error::usage([b"ERROR: failed to read a password from ", path].concat());
        let text = if path == b"-" {
            self.env
                .read_secret_line(io::stdin().as_fd())
                .map_err(|error| match error.kind() {
                    io::ErrorKind::ConnectionAborted => Error::new(Exit::Signal, ""),
                    _ => unreadable(),
                })?
        } else {
            let owners = self.side.options.preserve.link_owners;
            let opened = trusted_path::open_file(path, owners)
                .and_then(|file| Ok((sys::fstat(file.as_fd())?, file)));
            let (stat, file) = opened.map_err(|error| {
                let start = format!(
                    "rsync: [{}] could not open password file ",
                    self.side.role()
                )
                .into_bytes();
                let line = [&start, path, b": ", &errno_words(&error)].concat();
                Error::usage(trusted_path::with_refusal(&error, line))
            })?;
            if stat.mode & 0o006 != 0 {
                return Err(Error::usage(
                    "ERROR: password file must not be other-accessible",
                ));
            }
            if sys::ids().0 == 0 && stat.uid != 0 {
                return Err(Error::usage(
                    "ERROR: password file must be owned by root when running as root",
                ));
            }
            sys::read_to_end(file.as_fd(), PASSWORD_FILE_MAX_BYTES).map_err(|_| unreadable())?
        };
        let lines = text.split(|byte| b"\r\n".contains(byte));
        lines
            .into_iter()
            .find(|line| !line.is_empty())
            .map(<[u8]>::to_vec)
            .ok_or_else(unreadable)
    }

    /// Prints a line of information.
    fn print_line(&mut self, line: &[u8]) {
        let output = &self.side.options.output;
        if !output.quiet {
            self.put(line, output.stderr == StderrMode::All);
        }
    }

    fn warn(&mut self, line: &[u8]) {
        self.put(line, true);
    }

    fn put(&mut self, line: &[u8], is_error: bool) {
        let out = if is_error {
            &mut self.env.stderr
        } else {
            &mut self.env.stdout
        };
        let mut text = Vec::new();
        if is_error {
            early_line::put_text(&mut text, line, self.charset);
        } else {
            early_line::put(&mut text, line, &self.side.options.output, self.charset);
        }
        // A lost line does not affect the copy.
        let _ = out.write_all(&text).and_then(|()| out.flush());
    }
}

/// Returns whether a sparsync answers, from the first bytes after the arguments. The returned link begins with them.
fn recognize(mut link: Link) -> (bool, Link) {
    let mut first = [0; MAGIC.len()];
    let mut len = 0;
    let mut failure = None;
    while len < first.len() && MAGIC.starts_with(&first[..len]) {
        match link.reader.read(&mut first[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    let seen = io::Cursor::new(first[..len].to_vec()).chain(FailedRead(failure));
    (
        first == MAGIC,
        Link {
            reader: Box::new(seen.chain(link.reader)),
            ..link
        },
    )
}

/// A stream that fails once with this error, if there is one.
struct FailedRead(Option<io::Error>);

impl Read for FailedRead {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

impl DaemonUser for DaemonClient<'_> {
    fn print(&mut self, line: &[u8]) {
        if !self.side.options.connect.daemon.no_motd {
            self.print_line(line);
        }
    }

    fn credentials(&mut self) -> Result<Credentials, Error> {
        let from_environment = || {
            ["USER", "LOGNAME"]
                .into_iter()
                .find_map(|name| self.env.var(name))
        };
        let named = self.side.far.operand.user.clone();
        let user = named
            .or_else(|| from_environment().map(OsStringExt::into_vec))
            .unwrap_or_else(|| b"nobody".to_vec());
        Ok(Credentials {
            user,
            secret: self.secret()?,
        })
    }
}

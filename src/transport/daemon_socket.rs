//! TCP connections to daemons: directly, through an HTTP proxy, or to a program that replaces the connection.

use super::Link;
use super::link::{BlockingWriter, Moved, Patience, PatientReader};
use super::shell;
use crate::error::Error;
use crate::exit::Exit;
use crate::fs::sys::{self, SocketOption};
use crate::options::{Connect, Family};
use crate::proto::rsync::daemon::{proxy_accepts, proxy_request, read_line};
use crate::proto::rsync::decode_error::DecodeError;
use crate::proto::rsync::limits::PROXY_HEADERS_MAX;
use crate::report::event::errno_words;
use crate::work::clock::Since;
use std::ffi::OsStr;
use std::io::{self, BufReader};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// An HTTP proxy, as `RSYNC_PROXY` names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpProxy {
    pub host: Vec<u8>,
    /// The text of the port.
    pub port: Vec<u8>,
    /// `user:password`
    credentials: Option<Vec<u8>>,
}

impl HttpProxy {
    /// Parses `[user:password@]host:port`.
    pub fn parse(text: &[u8]) -> Result<HttpProxy, Error> {
        let invalid = |form: &str| {
            Error::new(
                Exit::SocketIo,
                format!("invalid proxy specification: should be {form}"),
            )
        };
        let (credentials, place) = match text.iter().rposition(|&byte| byte == b'@') {
            Some(sign) if !text[..sign].contains(&b':') => {
                return Err(invalid("USER:PASS@HOST:PORT"));
            }
            Some(sign) => (Some(text[..sign].to_vec()), &text[sign + 1..]),
            None => (None, text),
        };
        let colon = place
            .iter()
            .rposition(|&byte| byte == b':')
            .ok_or_else(|| invalid("HOST:PORT"))?;
        Ok(HttpProxy {
            host: place[..colon].to_vec(),
            port: place[colon + 1..].to_vec(),
            credentials,
        })
    }
}

/// A daemon to connect to.
pub struct DaemonAddress<'a> {
    /// The host, as the user named it.
    pub host: &'a [u8],
    pub port: u16,
    /// The proxy to use.
    pub proxy: Option<&'a HttpProxy>,
    /// How to reach the host.
    pub connect: &'a Connect,
    /// The role of this process in messages.
    pub role: &'static str,
    /// When to stop.
    pub patience: &'a Patience,
}

impl DaemonAddress<'_> {
    /// Connects. `warn` prints a line about an option that does not take effect.
    pub fn connect(&self, warn: &mut dyn FnMut(&[u8])) -> Result<Link, Error> {
        let (host, port) = match self.proxy {
            Some(proxy) => (
                &proxy.host[..],
                proxy_port(proxy).map_err(|error| error.by(self.role))?,
            ),
            None => (self.host, self.port),
        };
        let socket = self
            .dial(host, port, warn)
            .map_err(|error| error.by(self.role))?;
        let mut link = link(socket, self.patience)
            .map_err(|error| self.failed("open the connection", &error))?;
        if let Some(proxy) = self.proxy {
            if self.host.iter().any(u8::is_ascii_control) {
                let words = "invalid control character in proxy CONNECT host";
                return Err(Error::new(Exit::SocketIo, words).by(self.role));
            }
            let request = proxy_request(self.host, self.port, proxy.credentials.as_deref());
            link.writer
                .write_all(&request)
                .map_err(|error| self.failed("write to proxy", &error))?;
            self.answer_of_proxy(&mut link)?;
        }
        Ok(link)
    }

    fn failed(&self, what: &str, error: &io::Error) -> Error {
        let exit = match error.kind() {
            io::ErrorKind::ConnectionAborted => return Error::new(Exit::Signal, "").by(self.role),
            io::ErrorKind::TimedOut => Exit::Timeout,
            _ => Exit::SocketIo,
        };
        let start = format!("rsync: [{}] failed to {what}: ", self.role).into_bytes();
        Error::new(exit, [&start[..], &errno_words(error)].concat()).by(self.role)
    }

    /// Connects to the first address of a host that accepts.
    fn dial(
        &self,
        host: &[u8],
        port: u16,
        warn: &mut dyn FnMut(&[u8]),
    ) -> Result<TcpStream, Error> {
        let since = Since::now();
        let limit = Some(self.connect.contimeout_secs)
            .filter(|&secs| secs > 0)
            .map(u64::from)
            .map(Duration::from_secs);
        let shown = String::from_utf8_lossy(host);
        let lookup = |why: &str| {
            Error::new(
                Exit::SocketIo,
                format!("rsync: getaddrinfo: {shown} {port}: {why}"),
            )
        };
        let mut addresses = addresses(&shown, port).map_err(|why| lookup(&why))?;
        if let Some(family) = self.connect.family {
            addresses.retain(|address| address.is_ipv6() == (family == Family::Ipv6));
        }
        if addresses.is_empty() {
            return Err(lookup(wrong_family(&shown)));
        }
        let is_late = || limit.is_some_and(|limit| since.elapsed() >= limit);
        // The timeout of `--timeout` does not apply yet, as in rsync.
        let patience = Patience {
            idle: None,
            ..self.patience.clone()
        };
        let check = || {
            if is_late() {
                Err(io::ErrorKind::TimedOut.into())
            } else {
                patience.check(Duration::ZERO)
            }
        };
        let mut lines = Vec::new();
        for address in addresses {
            let Some(socket) = self.socket(address, &mut lines)? else {
                continue;
            };
            self.set_options(&socket, warn);
            match sys::connect_tcp(socket.as_fd(), address, &check) {
                Ok(()) => return Ok(TcpStream::from(socket)),
                Err(_) if is_late() => return Err(Error::new(Exit::ConTimeout, "")),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
                    return Err(Error::new(Exit::Signal, ""));
                }
                Err(error) => {
                    let start = format!(
                        "rsync: [{}] failed to connect to {shown} ({}): ",
                        self.role,
                        address.ip()
                    );
                    lines.push([start.as_bytes(), &errno_words(&error)].concat());
                }
            }
        }
        Err(Error::new(Exit::SocketIo, lines.join(&b'\n')))
    }

    /// Creates a socket for an address; `None` if `--address` cannot be used with it.
    fn socket(
        &self,
        remote: SocketAddr,
        lines: &mut Vec<Vec<u8>>,
    ) -> Result<Option<OwnedFd>, Error> {
        let local = match &self.connect.address {
            None => None,
            Some(name) => {
                let name = String::from_utf8_lossy(name);
                let found = addresses(&name, 0).and_then(|found| {
                    let found = found
                        .into_iter()
                        .find(|local| local.is_ipv6() == remote.is_ipv6());
                    found.ok_or_else(|| wrong_family(&name).to_owned())
                });
                match found {
                    Ok(local) => Some(local.ip()),
                    Err(why) => {
                        lines.push(format!("rsync: getaddrinfo {name}: {why}").into_bytes());
                        return Ok(None);
                    }
                }
            }
        };
        match sys::tcp_socket(remote.is_ipv6(), local) {
            Ok(socket) => Ok(Some(socket)),
            // rsync does not say why it cannot use an address.
            Err(_) if local.is_some() => Ok(None),
            Err(error) => Err(self.failed("create a socket", &error)),
        }
    }

    /// Sets the options of `--sockopts`.
    fn set_options(&self, socket: &OwnedFd, warn: &mut dyn FnMut(&[u8])) {
        let Some(text) = &self.connect.daemon.sockopts else {
            return;
        };
        for word in text
            .split(|byte| b" \t,".contains(byte))
            .filter(|word| !word.is_empty())
        {
            let equals = word.iter().position(|&byte| byte == b'=');
            let name = &word[..equals.unwrap_or(word.len())];
            let value = equals.map(|at| &word[at + 1..]);
            let Some(option) = str::from_utf8(name).ok().and_then(SocketOption::named) else {
                warn(&[b"Unknown socket option ", name].concat());
                continue;
            };
            if option.implied.is_some() && value.is_some() {
                warn(&[b"syntax error -- ", name, b" does not take a value"].concat());
            }
            let number = |value: &[u8]| {
                str::from_utf8(value)
                    .ok()
                    .and_then(|value| value.parse().ok())
                    .unwrap_or(0)
            };
            if let Err(error) = option.set(socket.as_fd(), value.map_or(1, number)) {
                let start =
                    format!("rsync: [{}] failed to set socket option ", self.role).into_bytes();
                warn(&[&start, name, b": ", &errno_words(&error)].concat());
            }
        }
    }

    /// Reads what a proxy answers before it passes on bytes.
    fn answer_of_proxy(&self, link: &mut Link) -> Result<(), Error> {
        let mut line = || {
            read_line(&mut link.reader).map_err(|error| match error {
                DecodeError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let words = format!(
                        "rsync: [{}] failed to read from proxy: it closed the connection",
                        self.role
                    );
                    Error::new(Exit::SocketIo, words).by(self.role)
                }
                DecodeError::Io(error) => self.failed("read from proxy", &error),
                DecodeError::Violation { cause, .. } => self.bad_answer(cause.as_bytes()),
            })
        };
        let status = line()?;
        if !proxy_accepts(&status) {
            return Err(self.bad_answer(&status));
        }
        for _ in 0..PROXY_HEADERS_MAX {
            if line()?.is_empty() {
                return Ok(());
            }
        }
        Err(self.bad_answer(b"too many header lines"))
    }

    fn bad_answer(&self, what: &[u8]) -> Error {
        Error::new(
            Exit::SocketIo,
            [b"bad response from proxy -- ", what].concat(),
        )
        .by(self.role)
    }
}

fn proxy_port(proxy: &HttpProxy) -> Result<u16, Error> {
    let port = str::from_utf8(&proxy.port)
        .ok()
        .and_then(|port| port.parse().ok());
    port.ok_or_else(|| {
        let why = b": Servname not supported for ai_socktype";
        Error::new(
            Exit::SocketIo,
            [
                b"rsync: getaddrinfo: ",
                &proxy.host[..],
                b" ",
                &proxy.port,
                why,
            ]
            .concat(),
        )
    })
}

/// Looks up a host. The error is the cause, in the words of the C library.
pub fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found = (host, port).to_socket_addrs().map(Iterator::collect);
    found.map_err(|error| {
        let words = error.to_string();
        words
            .strip_prefix("failed to lookup address information: ")
            .unwrap_or(&words)
            .to_owned()
    })
}

/// Returns why a host that was found has no address of the wanted family, in the words of the C library.
fn wrong_family(host: &str) -> &'static str {
    let is_literal = host.parse::<IpAddr>().is_ok();
    if is_literal {
        "Address family for hostname not supported"
    } else {
        "Name or service not known"
    }
}

/// Starts the program that replaces the connection (`RSYNC_CONNECT_PROG`), with a socket as its standard input and
/// output. `%H` in it becomes the host.
pub fn start_program(
    (shell, command): (&OsStr, &[u8]),
    umask: u32,
    patience: &Patience,
    role: &'static str,
) -> Result<Link, Error> {
    let start = || {
        let (ours, theirs) = socket_pair()?;
        shell::start_on_socket(shell, command, theirs.into(), umask, Vec::new())?;
        link(ours, patience)
    };
    start().map_err(|error| {
        let words = format!("rsync: [{role}] failed to start the socket program: ").into_bytes();
        Error::new(Exit::SocketIo, [&words[..], &errno_words(&error)].concat()).by(role)
    })
}

/// Replaces `%H` and `%%` in the command of `RSYNC_CONNECT_PROG`.
pub fn program_command(command: &[u8], host: &[u8]) -> Result<Vec<u8>, Error> {
    let mut expanded = Vec::new();
    let mut rest = command;
    while let Some(percent) = rest.iter().position(|&byte| byte == b'%') {
        let (before, escape) = rest.split_at(percent);
        expanded.extend_from_slice(before);
        let len = match escape {
            [_, b'H', ..] => {
                // The program must not take the host for an option or for no argument, nor expand it.
                let begins_badly = host.first().is_none_or(|byte| b"-+~%".contains(byte));
                let is_plain =
                    |byte: &u8| byte.is_ascii_alphanumeric() || b".-_~:+%".contains(byte);
                if begins_badly || !host.iter().all(is_plain) {
                    return Err(Error::new(
                        Exit::SocketIo,
                        "unsafe host characters for RSYNC_CONNECT_PROG",
                    ));
                }
                expanded.extend([b"'", host, b"'"].concat());
                2
            }
            _ => {
                expanded.push(b'%');
                if escape.starts_with(b"%%") { 2 } else { 1 }
            }
        };
        rest = &escape[len..];
    }
    expanded.extend_from_slice(rest);
    Ok(expanded)
}

/// Returns two connected TCP sockets of this machine. A daemon asks its socket for the address of the peer.
fn socket_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    // Another process could connect first.
    loop {
        let (theirs, peer) = listener.accept()?;
        if peer == ours.local_addr()? {
            return Ok((ours, theirs));
        }
    }
}

/// The half of a connection that writes. When it is dropped, the peer sees the end of the stream.
struct WriteHalf(Arc<TcpStream>);

impl AsFd for WriteHalf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        // Fails only if the peer has closed the connection.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

/// The half of a connection that reads.
struct ReadHalf(Arc<TcpStream>);

impl AsFd for ReadHalf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn link(socket: TcpStream, patience: &Patience) -> io::Result<Link> {
    // Without it, small requests wait for acknowledgements.
    socket.set_nodelay(true)?;
    let socket = Arc::new(socket);
    let reader = PatientReader::new(ReadHalf(socket.clone()), patience.clone());
    Ok(Link {
        // Lines are read byte by byte.
        reader: Box::new(BufReader::new(reader)),
        writer: Box::new(BlockingWriter(WriteHalf(socket))),
        parting: patience.parting.clone(),
        leave: None,
        moved: Moved::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn proxies_are_parsed() {
        let parsed =
            |text: &str| HttpProxy::parse(text.as_bytes()).map_err(|error| error.to_string());
        let proxy = |host: &str, port: &str, credentials: Option<&str>| HttpProxy {
            host: host.into(),
            port: port.into(),
            credentials: credentials.map(Into::into),
        };
        assert_eq!(parsed("h:80"), Ok(proxy("h", "80", None)));
        assert_eq!(parsed("u:p@x@h:80"), Ok(proxy("h", "80", Some("u:p@x"))));
        assert!(parsed("h").is_err_and(|error| error.contains("HOST:PORT (code 10)")));
        assert!(
            parsed("u@h:80").is_err_and(|error| error.contains("USER:PASS@HOST:PORT (code 10)"))
        );
        assert!(proxy_port(&proxy("h", "99999", None)).is_err());
    }

    #[test]
    fn host_in_the_command_of_a_program_is_quoted() {
        let command =
            |command: &str, host: &str| program_command(command.as_bytes(), host.as_bytes());
        assert_eq!(
            command("a %H %% %x %", "h-1.2_~+%:").unwrap(),
            b"a 'h-1.2_~+%:' % %x %"
        );
        assert_eq!(command("a", "h;x").unwrap(), b"a");
        for host in [
            "h x", "h'", "h;", "h\\", "h\n", "h,", "h=", "h!", "h/", "", "-h", "+h", "~h", "%h",
        ] {
            assert_eq!(
                command("a %H", host).unwrap_err().exit,
                Exit::SocketIo,
                "{host}"
            );
        }
    }

    #[test]
    fn paired_sockets_pass_bytes_and_their_end() {
        let (ours, theirs) = socket_pair().unwrap();
        let [mut ours, mut theirs] =
            [ours, theirs].map(|socket| link(socket, &Patience::default()).unwrap());
        ours.writer.write_all(b"hello").unwrap();
        drop(ours.writer);
        let mut got = Vec::new();
        theirs.reader.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"hello");
        theirs.writer.write_all(b"bye").unwrap();
        drop(theirs.writer);
        got.clear();
        ours.reader.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"bye");
    }
}

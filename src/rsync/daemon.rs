//! The conversation with a daemon before a session: greetings, the module, authentication, arguments.
//!
//! The caller prints the lines of the daemon, and provides the password.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::proto::rsync::daemon::{
    AuthDigest, BadGreeting, DaemonGreeting, DaemonLine, args_end, encode_args, read_line,
    secluded_args,
};
use crate::proto::rsync::decode_error::DecodeError;
use crate::proto::rsync::handshake::{VERSION_MISMATCH, VERSIONS};
use crate::report::event::errno_words;
use crate::transport::Link;
use std::io::{self, ErrorKind};

/// The module and the path in it that `path` names, which begins with a module.
pub fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    let module_len = path
        .iter()
        .position(|&byte| byte == b'/')
        .unwrap_or(path.len());
    (
        &path[..module_len],
        path.get(module_len + 1..).unwrap_or_default(),
    )
}

/// Returns the arguments for a daemon after the options. `paths` begin with a module; `module`: that of the first one.
/// `splits`: a daemon may find several paths in one (`--old-args`).
pub fn path_args(paths: &[Vec<u8>], module: &[u8], splits: bool) -> Vec<Vec<u8>> {
    let separator = [b" ", module, b"/"].concat();
    let guarded = [b"[ ]", module, b"/"].concat();
    let arg = |path: &Vec<u8>| {
        let mut rest = if path.contains(&b'/') {
            path.clone()
        } else {
            [&path[..], b"/"].concat()
        };
        if splits {
            return rest;
        }
        // A daemon separates its arguments there.
        let mut arg = Vec::new();
        while let Some(at) = rest
            .windows(separator.len())
            .position(|window| window == separator)
        {
            arg.extend_from_slice(&rest[..at]);
            arg.extend_from_slice(&guarded);
            rest.drain(..at + separator.len());
        }
        arg.append(&mut rest);
        arg
    };
    paths.iter().map(arg).collect()
}

/// Returns the path that the sender sees for an argument of [`path_args`].
pub fn path_in_module(path: &[u8], module: &[u8]) -> Vec<u8> {
    match split_path(path) {
        (named, b"") if named == module => b"./".to_vec(),
        (named, rest) if named == module => rest.to_vec(),
        _ => path.to_vec(),
    }
}

/// The user and the password with which a client authenticates.
pub struct Credentials {
    pub user: Vec<u8>,
    /// The password.
    pub secret: Vec<u8>,
}

/// The user of a conversation.
pub trait DaemonUser {
    /// Prints a line of text of the daemon.
    fn print(&mut self, line: &[u8]);

    /// Returns the user and the password. Called if the daemon demands them.
    fn credentials(&mut self) -> Result<Credentials>;
}

/// The answer of a daemon that was asked for a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleAnswer {
    /// The module is accepted; the arguments come next.
    Accepted,
    /// A list was printed, and the conversation is over.
    Listed,
}

/// A conversation with a daemon.
pub struct DaemonTalk<'a> {
    link: &'a mut Link,
    /// The role of this process in messages.
    role: &'static str,
    /// See [`Connect::timeout_secs`](crate::options::Connect::timeout_secs).
    timeout_secs: u32,
    theirs: DaemonGreeting,
    /// The version that both ends agreed on.
    pub protocol: u8,
}

impl<'a> DaemonTalk<'a> {
    /// Exchanges greetings. `newest`: the protocol version to offer.
    pub fn begin(
        link: &'a mut Link,
        role: &'static str,
        newest: u8,
        timeout_secs: u32,
    ) -> Result<DaemonTalk<'a>> {
        let ours = DaemonGreeting::ours(newest);
        let theirs = DaemonGreeting {
            protocol: 0,
            sub: 0,
            digests: None,
        };
        let mut talk = DaemonTalk {
            link,
            role,
            timeout_secs,
            theirs,
            protocol: 0,
        };
        talk.send(&ours.line())?;
        let line = talk.line("did not see server greeting")?;
        talk.theirs = DaemonGreeting::parse(&line).map_err(|why| {
            let (start, end): (&[u8], &[u8]) = match why {
                BadGreeting::NoSub => (b"rsync: the server omitted the subprotocol value: ", b""),
                BadGreeting::NoDigests => {
                    (b"rsync: the server omitted the digest name list: ", b"")
                }
                BadGreeting::Other => (b"rsync: server sent \"", b"\" rather than greeting"),
            };
            Error::new(Exit::StartClient, [start, &line, end].concat()).by(role)
        })?;
        talk.protocol = ours.agree(&talk.theirs);
        if !VERSIONS.contains(&talk.protocol) {
            return Err(Error::new(Exit::Protocol, VERSION_MISMATCH).by(role));
        }
        Ok(talk)
    }

    /// Sends data for the daemon's `early exec`, which must be followed by a module.
    pub fn send_early_input(&mut self, data: &[u8]) -> Result<()> {
        self.send(&[format!("#early_input={}\n", data.len()).as_bytes(), data].concat())
    }

    /// Asks for a module, or for the list of modules with an empty name.
    pub fn ask(&mut self, module: &[u8], user: &mut dyn DaemonUser) -> Result<ModuleAnswer> {
        self.send(&[module, b"\n"].concat())?;
        let mut has_answered = false;
        loop {
            let line = self.line("didn't get server startup line")?;
            match DaemonLine::parse(&line) {
                DaemonLine::Text(text) => user.print(&text),
                DaemonLine::Ok => return Ok(ModuleAnswer::Accepted),
                DaemonLine::Exit => return Ok(ModuleAnswer::Listed),
                DaemonLine::Error(text) => {
                    return Err(Error::new(Exit::StartClient, text).by(self.role));
                }
                // Every answer helps to guess the password.
                DaemonLine::AuthRequired(_) if has_answered => {
                    let words = "sparsync: protocol error: second request for the password";
                    return Err(Error::new(Exit::Protocol, words).by(self.role));
                }
                DaemonLine::AuthRequired(challenge) => {
                    has_answered = true;
                    let digest = self.digest()?;
                    let Credentials { user: name, secret } = user.credentials()?;
                    self.send(
                        &[
                            &name[..],
                            b" ",
                            &digest.response(&secret, &challenge),
                            b"\n",
                        ]
                        .concat(),
                    )?;
                }
            }
        }
    }

    /// Sends the server's command line without the name of the program.
    pub fn send_args(&mut self, args: &[Vec<u8>]) -> Result<()> {
        let mut out = Vec::new();
        encode_args(
            args.iter().map(Vec::as_slice),
            args_end(self.protocol),
            &mut out,
        );
        self.send(&out)
    }

    /// Sends the arguments of `--secluded-args`, after the short options of [`DaemonTalk::send_args`].
    pub fn send_secluded_args(&mut self, args: &[Vec<u8>]) -> Result<()> {
        self.send(&secluded_args(args))
    }

    fn digest(&self) -> Result<AuthDigest> {
        let ours = DaemonGreeting::ours(self.protocol)
            .digests
            .unwrap_or_default();
        let theirs = self.theirs.digests.as_deref();
        AuthDigest::choose(Some(&ours), theirs, self.protocol).ok_or_else(|| {
            let start = b"Failed to negotiate a daemon auth checksum choice.\nServer list: ";
            let lists = [
                &start[..],
                theirs.unwrap_or_default(),
                b"\nClient list: ",
                &ours,
            ]
            .concat();
            Error::new(Exit::Unsupported, lists).by(self.role)
        })
    }

    /// Sends bytes. If the daemon has closed the connection, its earlier output explains the failure better.
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        match self
            .link
            .writer
            .write_all(bytes)
            .and_then(|()| self.link.writer.flush())
        {
            Err(error)
                if !matches!(
                    error.kind(),
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                ) =>
            {
                let what = format!("safe_write failed to write {} bytes", bytes.len());
                Err(self.failed(&what, &error))
            }
            _ => Ok(()),
        }
    }

    /// Reads a line. `missing`: what to print if the daemon ends the conversation instead.
    fn line(&mut self, missing: &str) -> Result<Vec<u8>> {
        read_line(&mut self.link.reader).map_err(|error| match error {
            DecodeError::Io(error) if error.kind() != ErrorKind::UnexpectedEof => {
                self.failed("safe_read failed to read 1 bytes", &error)
            }
            // A line that is too long has the same message in rsync.
            DecodeError::Io(_) | DecodeError::Violation { .. } => {
                Error::new(Exit::StartClient, format!("rsync: {missing}")).by(self.role)
            }
        })
    }

    fn failed(&self, what: &str, error: &io::Error) -> Error {
        let (exit, words) = match error.kind() {
            ErrorKind::ConnectionAborted => (Exit::Signal, Vec::new()),
            ErrorKind::TimedOut => {
                let words = format!(
                    "[{}] io timeout after {} seconds -- exiting",
                    self.role, self.timeout_secs
                );
                (Exit::Timeout, words.into_bytes())
            }
            _ => {
                let start = format!("rsync: [{}] {what}: ", self.role).into_bytes();
                (Exit::Stream, [&start[..], &errno_words(error)].concat())
            }
        };
        Error::new(exit, words).by(self.role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::rsync::handshake::VERSIONS;
    use crate::transport::link::{Moved, Parting};
    use parking_lot::Mutex;
    use proptest::prelude::*;
    use std::io::{Cursor, Write};
    use std::sync::Arc;

    /// What a client has written.
    #[derive(Clone, Default)]
    struct Sent(Arc<Mutex<Vec<u8>>>);

    impl Write for Sent {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The printed lines. Knows the password.
    #[derive(Default)]
    struct User(Vec<Vec<u8>>);

    impl DaemonUser for User {
        fn print(&mut self, line: &[u8]) {
            self.0.push(line.to_vec());
        }

        fn credentials(&mut self) -> Result<Credentials> {
            Ok(Credentials {
                user: b"joe".to_vec(),
                secret: b"secret".to_vec(),
            })
        }
    }

    /// The result of a conversation: its end, what was printed, and what was sent.
    type Talked = (Result<ModuleAnswer>, Vec<Vec<u8>>, Vec<u8>);

    /// Asks a daemon that sends these bytes for module `m`.
    fn talk(bytes: &[u8]) -> Talked {
        let sent = Sent::default();
        let mut link = Link {
            reader: Box::new(Cursor::new(bytes.to_vec())),
            writer: Box::new(sent.clone()),
            parting: Parting::default(),
            leave: None,
            moved: Moved::default(),
        };
        let mut user = User::default();
        let ended = DaemonTalk::begin(&mut link, "Receiver", *VERSIONS.end(), 0)
            .and_then(|mut talk| talk.ask(b"m", &mut user));
        let sent = sent.0.lock().clone();
        (ended, user.0, sent)
    }

    const GREETING: &[u8] = b"@RSYNCD: 32.0 sha512 sha256 sha1 md5 md4\n";

    #[test]
    fn module_is_asked_for_and_text_is_printed() {
        let (ended, printed, sent) = talk(&[GREETING, b"hello\r\n\n@RSYNCD: OK\n"].concat());
        assert_eq!(
            (ended.unwrap(), printed),
            (ModuleAnswer::Accepted, vec![b"hello".to_vec(), Vec::new()])
        );
        assert_eq!(sent, [GREETING, b"m\n"].concat());
        assert_eq!(
            talk(&[GREETING, b"@RSYNCD: EXIT\n"].concat()).0.unwrap(),
            ModuleAnswer::Listed
        );
    }

    #[test]
    fn every_digest_answers_a_challenge() {
        for (digest, name) in AuthDigest::ALL {
            let greeting = format!("@RSYNCD: 32.0 {name}\n@RSYNCD: AUTHREQD abc\n@RSYNCD: OK\n");
            let (ended, _, sent) = talk(greeting.as_bytes());
            assert_eq!(ended.unwrap(), ModuleAnswer::Accepted);
            let answer = [b"joe ", &digest.response(b"secret", b"abc")[..], b"\n"].concat();
            assert!(sent.ends_with(&answer), "{name}");
        }
        // Without a list, the version implies the digest.
        let (_, _, sent) = talk(b"@RSYNCD: 31.0\n@RSYNCD: AUTHREQD abc\n@RSYNCD: OK\n");
        assert!(
            sent.ends_with(&[&AuthDigest::Md5.response(b"secret", b"abc")[..], b"\n"].concat())
        );
    }

    #[test]
    fn unusable_daemons_have_rsyncs_errors() {
        let long = vec![b'x'; 6000];
        for (bytes, exit, words) in [
            (
                &b""[..],
                Exit::StartClient,
                "rsync: did not see server greeting",
            ),
            (
                b"@RSYNCD: 32",
                Exit::StartClient,
                "rsync: did not see server greeting",
            ),
            (
                &long,
                Exit::StartClient,
                "rsync: did not see server greeting",
            ),
            (
                b"foo\n",
                Exit::StartClient,
                "rsync: server sent \"foo\" rather than greeting",
            ),
            (
                b"@RSYNCD: 30\n",
                Exit::StartClient,
                "rsync: the server omitted the subprotocol value: @RSYNCD: 30",
            ),
            (
                b"@RSYNCD: 32.0\n",
                Exit::StartClient,
                "rsync: the server omitted the digest name list: @RSYNCD: 32.0",
            ),
            (
                b"@RSYNCD: 26.0\n",
                Exit::Protocol,
                "protocol version mismatch -- is your shell clean?\n(see the rsync manpage for an explanation)",
            ),
            (
                GREETING,
                Exit::StartClient,
                "rsync: didn't get server startup line",
            ),
            (
                &[GREETING, b"a\0b\n"].concat(),
                Exit::StartClient,
                "rsync: didn't get server startup line",
            ),
            (
                &[GREETING, &long].concat(),
                Exit::StartClient,
                "rsync: didn't get server startup line",
            ),
            (
                &[GREETING, b"@ERROR: no\n"].concat(),
                Exit::StartClient,
                "@ERROR: no",
            ),
            (
                &[GREETING, b"@RSYNCD: AUTHREQD x\n@RSYNCD: AUTHREQD y\n"].concat(),
                Exit::Protocol,
                "sparsync: protocol error: second request for the password",
            ),
            (
                b"@RSYNCD: 32.0 foo\n@RSYNCD: AUTHREQD x\n",
                Exit::Unsupported,
                "Failed to negotiate a daemon auth checksum choice.\nServer list: foo\nClient list: sha512 sha256 sha1 \
                 md5 md4",
            ),
        ] {
            let error = talk(bytes).0.unwrap_err();
            assert_eq!(
                (
                    error.exit,
                    String::from_utf8_lossy(&error.message).into_owned()
                ),
                (exit, words.to_owned())
            );
        }
    }

    #[test]
    fn paths_are_sent_and_seen_by_the_sender() {
        let paths = |paths: &[&str]| {
            paths
                .iter()
                .map(|path| path.as_bytes().to_vec())
                .collect::<Vec<_>>()
        };
        let sent = path_args(
            &paths(&["m", "m/", "m/a b", "m/x m/a m/b", "n"]),
            b"m",
            false,
        );
        assert_eq!(sent, paths(&["m/", "m/", "m/a b", "m/x[ ]m/a[ ]m/b", "n/"]));
        let split = path_args(&paths(&["m", "m/x m/a"]), b"m", true);
        assert_eq!(split, paths(&["m/", "m/x m/a"]));
        for (path, seen) in [
            ("m", "./"),
            ("m/", "./"),
            ("m/a/", "a/"),
            ("m//a", "/a"),
            ("n/a", "n/a"),
        ] {
            assert_eq!(
                path_in_module(path.as_bytes(), b"m"),
                seen.as_bytes(),
                "{path}"
            );
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_end_a_conversation(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = talk(&bytes);
            let _ = talk(&[GREETING, &bytes].concat());
        }
    }
}

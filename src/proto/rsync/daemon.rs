//! The start of a conversation with a daemon: lines, authentication, arguments.

use super::decode_error::{Result, checked, violation};
use super::limits::{
    DAEMON_ARGS_MAX, DAEMON_ARGS_MAX_BYTES, DAEMON_ARGS_SKIPPED_MAX_BYTES, DAEMON_LINE_MAX_BYTES,
    EARLY_INPUT_MAX_BYTES,
};
use super::number::ReadWire as _;
use crate::digest::FileDigest;
use crate::options::Checksum;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use std::io::Read;

/// What a line of the protocol begins with.
const PREFIX: &[u8] = b"@RSYNCD: ";
/// What a line with a fatal error begins with.
const ERROR_PREFIX: &[u8] = b"@ERROR";

/// Reads a line and returns it without its end. Ignores carriage returns.
pub fn read_line(input: &mut impl Read) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        match input.byte()? {
            b'\n' => return Ok(line),
            b'\r' => {}
            0 => return Err(violation("a line with a NUL")),
            _ if line.len() == DAEMON_LINE_MAX_BYTES => {
                return Err(violation("a line that is too long"));
            }
            byte => line.push(byte),
        }
    }
}

/// Why a line is not a valid greeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadGreeting {
    /// The sub-number is missing.
    NoSub,
    /// The list of digests is missing.
    NoDigests,
    /// It is another line.
    Other,
}

/// The first line of each side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonGreeting {
    /// The version.
    pub protocol: u8,
    /// The sub-number; 0 for a release.
    pub sub: u8,
    /// The names of digests for authentication, separated by blanks, in order of preference.
    pub digests: Option<Vec<u8>>,
}

impl DaemonGreeting {
    /// Returns the greeting of a release that supports all digests.
    pub fn ours(protocol: u8) -> DaemonGreeting {
        let names: Vec<_> = AuthDigest::ALL.iter().map(|(_, name)| *name).collect();
        DaemonGreeting {
            protocol,
            sub: 0,
            digests: Some(names.join(" ").into_bytes()),
        }
    }

    /// Returns the line, with its end.
    pub fn line(&self) -> Vec<u8> {
        let mut line = [PREFIX, format!("{}.{}", self.protocol, self.sub).as_bytes()].concat();
        if let Some(digests) = &self.digests {
            line.push(b' ');
            line.extend_from_slice(digests);
        }
        line.push(b'\n');
        line
    }

    /// Parses a line without its end. Sub-number and digests can be missing only before protocols 30 and 32.
    pub fn parse(line: &[u8]) -> std::result::Result<DaemonGreeting, BadGreeting> {
        let rest = line.strip_prefix(PREFIX).ok_or(BadGreeting::Other)?;
        let (version, digests) = match rest.iter().position(|&byte| byte == b' ') {
            Some(space) => (&rest[..space], Some(rest[space + 1..].to_vec())),
            None => (rest, None),
        };
        let (major, minor) = match version.iter().position(|&byte| byte == b'.') {
            Some(dot) => (&version[..dot], Some(&version[dot + 1..])),
            None => (version, None),
        };
        let number = |digits: &[u8]| {
            str::from_utf8(digits)
                .ok()
                .and_then(|digits| digits.parse::<u8>().ok())
        };
        let protocol = number(major).ok_or(BadGreeting::Other)?;
        let sub = match minor {
            Some(minor) => number(minor).ok_or(BadGreeting::Other)?,
            None if protocol >= 30 => return Err(BadGreeting::NoSub),
            None => 0,
        };
        if protocol > 31 && digests.is_none() {
            return Err(BadGreeting::NoDigests);
        }
        Ok(DaemonGreeting {
            protocol,
            sub,
            digests,
        })
    }

    /// Returns the version of a connection between two sides.
    pub fn agree(&self, other: &DaemonGreeting) -> u8 {
        let differs = self.protocol == other.protocol && self.sub != other.sub;
        self.protocol
            .min(other.protocol)
            .saturating_sub(u8::from(differs))
    }
}

/// A digest for authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthDigest {
    /// SHA-512
    Sha512,
    /// SHA-256
    Sha256,
    /// SHA-1
    Sha1,
    /// MD5
    Md5,
    /// MD4
    Md4,
    /// MD4 over four zero bytes and the text, as before protocol 30.
    OldMd4,
}

impl AuthDigest {
    /// All digests with names, in the order in which they must be offered.
    pub const ALL: [(AuthDigest, &'static str); 5] = [
        (AuthDigest::Sha512, "sha512"),
        (AuthDigest::Sha256, "sha256"),
        (AuthDigest::Sha1, "sha1"),
        (AuthDigest::Md5, "md5"),
        (AuthDigest::Md4, "md4"),
    ];

    /// Returns the first digest of the client that the daemon has too. A side without a list gets the digest that its
    /// version implies; `None` if the lists have nothing in common.
    pub fn choose(
        client: Option<&[u8]>,
        daemon: Option<&[u8]>,
        protocol: u8,
    ) -> Option<AuthDigest> {
        let names = |list: &[u8]| -> Vec<AuthDigest> {
            let known = |name: &[u8]| {
                Self::ALL
                    .iter()
                    .find(|(_, known)| name.eq_ignore_ascii_case(known.as_bytes()))
            };
            list.split(|&byte| byte == b' ')
                .filter_map(known)
                .map(|(digest, _)| *digest)
                .collect()
        };
        let (Some(client), Some(daemon)) = (client, daemon) else {
            return Some(if protocol >= 30 {
                AuthDigest::Md5
            } else {
                AuthDigest::OldMd4
            });
        };
        let of_daemon = names(daemon);
        names(client)
            .into_iter()
            .find(|digest| of_daemon.contains(digest))
    }

    fn hash(self, text: &[u8]) -> Vec<u8> {
        use ring::digest::{SHA256, SHA512, digest};
        let other = |checksum, seed| {
            let mut hasher = FileDigest::new(checksum, seed);
            hasher.update(text);
            hasher.finish()
        };
        match self {
            AuthDigest::Sha512 => digest(&SHA512, text).as_ref().to_vec(),
            AuthDigest::Sha256 => digest(&SHA256, text).as_ref().to_vec(),
            AuthDigest::Sha1 => other(Checksum::Sha1, None),
            AuthDigest::Md5 => other(Checksum::Md5, None),
            AuthDigest::Md4 => other(Checksum::Md4, None),
            AuthDigest::OldMd4 => other(Checksum::Md4, Some(0)),
        }
    }

    /// Returns a challenge made of unpredictable bytes.
    pub fn challenge(self, random: &[u8]) -> Vec<u8> {
        STANDARD_NO_PAD.encode(self.hash(random)).into_bytes()
    }

    /// Returns the response to a challenge.
    pub fn response(self, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        STANDARD_NO_PAD
            .encode(self.hash(&[secret, challenge].concat()))
            .into_bytes()
    }
}

/// A line of the daemon after the client has named a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DaemonLine {
    /// Text to print.
    Text(Vec<u8>),
    /// The user must authenticate; with the challenge.
    AuthRequired(Vec<u8>),
    /// The module is accepted; arguments follow.
    Ok,
    /// The end of a listing.
    Exit,
    /// The daemon refuses, with this line.
    Error(Vec<u8>),
}

impl DaemonLine {
    /// Parses a line without its end.
    pub fn parse(line: &[u8]) -> DaemonLine {
        match line.strip_prefix(PREFIX) {
            Some(b"OK") => DaemonLine::Ok,
            Some(b"EXIT") => DaemonLine::Exit,
            Some(rest) if rest.starts_with(b"AUTHREQD ") => {
                DaemonLine::AuthRequired(rest[9..].to_vec())
            }
            _ if line.starts_with(ERROR_PREFIX) => DaemonLine::Error(line.to_vec()),
            _ => DaemonLine::Text(line.to_vec()),
        }
    }

    /// Returns the line, with its end.
    pub fn line(&self) -> Vec<u8> {
        let mut line = match self {
            DaemonLine::Text(text) | DaemonLine::Error(text) => text.clone(),
            DaemonLine::AuthRequired(challenge) => [PREFIX, b"AUTHREQD ", challenge].concat(),
            DaemonLine::Ok => [PREFIX, b"OK"].concat(),
            DaemonLine::Exit => [PREFIX, b"EXIT"].concat(),
        };
        line.push(b'\n');
        line
    }
}

/// Returns a line of a module listing, with its end.
pub fn listing_line(module: &[u8], comment: &[u8]) -> Vec<u8> {
    const NAME_WIDTH: usize = 15;
    let padding = vec![b' '; NAME_WIDTH.saturating_sub(module.len())];
    [module, &padding, b"\t", comment, b"\n"].concat()
}

/// What a client sends instead of, or before, the name of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientLine {
    /// A request for the listing of modules.
    List,
    /// So many bytes follow, before the next line.
    EarlyInput(usize),
    /// The name of a module.
    Module(Vec<u8>),
}

impl ClientLine {
    /// Parses a line without its end.
    pub fn parse(line: &[u8]) -> Result<ClientLine> {
        match line {
            b"" | b"#list" => Ok(ClientLine::List),
            [b'#', command @ ..] => {
                let unknown =
                    || violation(format!("Unknown command '#{}'", command.escape_ascii()));
                let digits = command.strip_prefix(b"early_input=").ok_or_else(unknown)?;
                let len = str::from_utf8(digits)
                    .ok()
                    .and_then(|digits| digits.parse::<usize>().ok());
                let len = len.filter(|len| (1..=EARLY_INPUT_MAX_BYTES).contains(len));
                len.map(ClientLine::EarlyInput)
                    .ok_or_else(|| violation("invalid early_input length"))
            }
            module => Ok(ClientLine::Module(module.to_vec())),
        }
    }
}

/// Returns the request for a connection through an HTTP proxy. `credentials`: `user:password`.
pub fn proxy_request(host: &[u8], port: u16, credentials: Option<&[u8]>) -> Vec<u8> {
    let mut request = [
        b"CONNECT ",
        host,
        format!(":{port} HTTP/1.0\r\n").as_bytes(),
    ]
    .concat();
    if let Some(credentials) = credentials {
        let credentials = STANDARD.encode(credentials);
        request
            .extend_from_slice(format!("Proxy-Authorization: Basic {credentials}\r\n").as_bytes());
    }
    request.extend_from_slice(b"\r\n");
    request
}

/// Returns whether the first line of a proxy's answer accepts the connection: `HTTP/x.y 2xx`.
pub fn proxy_accepts(line: &[u8]) -> bool {
    let rest = line
        .strip_prefix(b"HTTP/")
        .map(|rest| rest.trim_ascii_start());
    let version_len = rest.and_then(|rest| rest.iter().position(|&byte| byte == b' '));
    let status = rest
        .zip(version_len)
        .map(|(rest, len)| rest[len..].trim_ascii_start());
    status.is_some_and(|status| status.starts_with(b"2"))
}

/// Splits the line with which a client authenticates into user and response.
pub fn parse_credentials(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = line.iter().position(|&byte| byte == b' ')?;
    Some((&line[..space], &line[space + 1..]))
}

/// How arguments end on the wire: with a newline in a daemon conversation before protocol 30, else with a NUL.
pub fn args_end(protocol: u8) -> u8 {
    if protocol >= 30 { 0 } else { b'\n' }
}

/// Encodes secluded arguments, which follow the name of the program.
pub fn secluded_args(args: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_args(
        std::iter::once(&b"rsync"[..]).chain(args.iter().map(Vec::as_slice)),
        0,
        &mut out,
    );
    out
}

/// Reads secluded arguments, without the name of the program.
pub fn decode_secluded_args(input: &mut impl Read) -> Result<Vec<Vec<u8>>> {
    Ok(decode_args(input, 0)?.into_iter().skip(1).collect())
}

/// Appends arguments. An empty argument ends the list, so that one is sent as `.`.
pub fn encode_args<'a>(args: impl IntoIterator<Item = &'a [u8]>, end: u8, out: &mut Vec<u8>) {
    for arg in args {
        out.extend_from_slice(if arg.is_empty() { b"." } else { arg });
        out.push(end);
    }
    out.push(end);
}

/// The arguments of a client.
#[derive(Debug, Default)]
pub struct ClientArgs {
    /// Those that are accepted.
    pub words: Vec<Vec<u8>>,
    /// Why the others were skipped.
    pub excess: Option<String>,
}

/// Reads arguments up to the empty one that ends them.
pub fn decode_args(input: &mut impl Read, end: u8) -> Result<Vec<Vec<u8>>> {
    let read = decode_client_args(input, end)?;
    match read.excess {
        Some(why) => Err(violation(why)),
        None => Ok(read.words),
    }
}

/// Reads arguments up to the empty one that ends them. Those that exceed a limit are skipped, so that the client can
/// learn why.
pub fn decode_client_args(input: &mut impl Read, end: u8) -> Result<ClientArgs> {
    let mut read = ClientArgs::default();
    let mut total = 0i64;
    let mut count = 0i64;
    loop {
        let mut arg = Vec::new();
        let mut is_empty = true;
        loop {
            let byte = input.byte()?;
            if byte == end {
                break;
            }
            is_empty = false;
            total += 1;
            checked(
                total,
                DAEMON_ARGS_SKIPPED_MAX_BYTES,
                "the length of all arguments",
            )?;
            if total > DAEMON_ARGS_MAX_BYTES as i64 {
                read.excess.get_or_insert_with(|| {
                    format!("the arguments are longer than {DAEMON_ARGS_MAX_BYTES} bytes")
                });
            }
            if read.excess.is_none() {
                arg.push(byte);
            }
        }
        if is_empty {
            return Ok(read);
        }
        count += 1;
        if count > DAEMON_ARGS_MAX as i64 {
            read.excess
                .get_or_insert_with(|| format!("there are more than {DAEMON_ARGS_MAX} arguments"));
        }
        if read.excess.is_none() {
            read.words.push(arg);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn greetings_are_parsed_and_written() {
        let line = b"@RSYNCD: 32.0 sha512 sha256 sha1 md5 md4";
        assert_eq!(
            DaemonGreeting::parse(line).unwrap(),
            DaemonGreeting::ours(32)
        );
        assert_eq!(DaemonGreeting::ours(32).line(), [&line[..], b"\n"].concat());
        let old = DaemonGreeting::parse(b"@RSYNCD: 27").unwrap();
        assert_eq!(
            old,
            DaemonGreeting {
                protocol: 27,
                sub: 0,
                digests: None
            }
        );
        let prerelease = DaemonGreeting {
            sub: 14,
            ..DaemonGreeting::ours(31)
        };
        assert_eq!(
            (
                prerelease.agree(&DaemonGreeting::ours(31)),
                prerelease.agree(&old)
            ),
            (30, 27)
        );
        for (wrong, why) in [
            ("@RSYNCD: 30", BadGreeting::NoSub),
            ("@RSYNCD: 32.0", BadGreeting::NoDigests),
            ("@RSYNCD: x", BadGreeting::Other),
            ("SSH-2.0", BadGreeting::Other),
            ("@RSYNCD: 300.0 md5", BadGreeting::Other),
        ] {
            assert_eq!(DaemonGreeting::parse(wrong.as_bytes()), Err(why), "{wrong}");
        }
    }

    #[test]
    fn secluded_arguments_follow_the_name_of_the_program() {
        let args = [b"--server".to_vec(), b"a b".to_vec(), b".".to_vec()];
        let bytes = secluded_args(&args);
        assert!(bytes.starts_with(b"rsync\0--server\0"));
        assert_eq!(decode_secluded_args(&mut &bytes[..]).unwrap(), args);
    }

    #[test]
    fn greetings_with_digests_need_them_from_protocol_32_on() {
        assert!(DaemonGreeting::parse(b"@RSYNCD: 31.0").is_ok());
        assert!(DaemonGreeting::parse(b"@RSYNCD: 32.0").is_err());
    }

    #[test]
    fn lines_are_read_without_their_ends() {
        let read = |text: &[u8]| read_line(&mut &text[..]).ok();
        assert_eq!(read(b"one\r\ntwo\n"), Some(b"one".to_vec()));
        assert_eq!(read(b"a\rb\n"), Some(b"ab".to_vec()));
        assert_eq!(read(b"a\0b\n"), None);
        assert_eq!(read(b"one"), None);
        let longest = [&[b'a'; DAEMON_LINE_MAX_BYTES][..], b"\n"].concat();
        assert_eq!(
            read(&longest).map(|line| line.len()),
            Some(DAEMON_LINE_MAX_BYTES)
        );
        assert_eq!(read(&[b"a", &longest[..]].concat()), None);
    }

    #[test]
    fn lines_of_a_daemon_are_told_apart() {
        for line in [
            DaemonLine::Text(b"@RSYNCD: AUTHREQ".to_vec()),
            DaemonLine::Text(b"welcome".to_vec()),
            DaemonLine::AuthRequired(b"challenge".to_vec()),
            DaemonLine::Ok,
            DaemonLine::Exit,
            DaemonLine::Error(b"@ERROR: no".to_vec()),
        ] {
            let bytes = line.line();
            assert_eq!(DaemonLine::parse(&bytes[..bytes.len() - 1]), line);
        }
    }

    #[test]
    fn arguments_beyond_a_limit_are_skipped() {
        let decoded = |args: &[&[u8]]| {
            let mut bytes = Vec::new();
            encode_args(args.iter().copied(), 0, &mut bytes);
            decode_client_args(&mut &bytes[..], 0)
        };
        let many = vec![&b"a"[..]; DAEMON_ARGS_MAX];
        let read = decoded(&many).unwrap();
        assert_eq!((read.words.len(), read.excess), (DAEMON_ARGS_MAX, None));
        let read = decoded(&[&many[..], &[b"b"]].concat()).unwrap();
        assert_eq!(read.words.len(), DAEMON_ARGS_MAX);
        assert!(read.excess.unwrap().starts_with("there are more than"));

        let longest = vec![b'a'; DAEMON_ARGS_MAX_BYTES - 1];
        let read = decoded(&[&longest, b"b", b"c"]).unwrap();
        assert_eq!(read.words.len(), 2);
        assert!(read.excess.unwrap().starts_with("the arguments are longer"));
    }

    #[test]
    fn digests_are_chosen_by_the_client() {
        let choose = |client: &str, daemon: &str| {
            AuthDigest::choose(Some(client.as_bytes()), Some(daemon.as_bytes()), 32)
        };
        assert_eq!(
            choose("sha256 md5", "sha512 sha256 md5"),
            Some(AuthDigest::Sha256)
        );
        assert_eq!(choose("md4", "md5"), None);
        assert_eq!(
            AuthDigest::choose(Some(b"md4"), None, 31),
            Some(AuthDigest::Md5)
        );
        assert_eq!(AuthDigest::choose(None, None, 29), Some(AuthDigest::OldMd4));
        let lengths = AuthDigest::ALL.map(|(digest, _)| digest.challenge(b"x").len());
        assert_eq!(lengths, [86, 43, 27, 22, 22]);
    }

    #[test]
    fn lines_of_a_client_are_parsed() {
        assert_eq!(ClientLine::parse(b"#list").unwrap(), ClientLine::List);
        assert_eq!(
            ClientLine::parse(b"#early_input=5120").unwrap(),
            ClientLine::EarlyInput(5120)
        );
        assert_eq!(
            ClientLine::parse(b"m").unwrap(),
            ClientLine::Module(b"m".to_vec())
        );
        for wrong in ["#early_input=0", "#early_input=5121", "#other"] {
            assert!(ClientLine::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert_eq!(
            parse_credentials(b"joe abc"),
            Some((&b"joe"[..], &b"abc"[..]))
        );
        assert_eq!(
            listing_line(b"m", b"test module"),
            b"m              \ttest module\n"
        );
    }

    #[test]
    fn proxies_are_asked_and_understood() {
        assert_eq!(
            proxy_request(b"h", 5, None),
            b"CONNECT h:5 HTTP/1.0\r\n\r\n"
        );
        let with = b"CONNECT h:5 HTTP/1.0\r\nProxy-Authorization: Basic dTpw\r\n\r\n";
        assert_eq!(proxy_request(b"h", 5, Some(b"u:p")), with);
        for line in ["HTTP/1.0 200 OK", "HTTP/1.1 299", "HTTP/1.0  200 OK"] {
            assert!(proxy_accepts(line.as_bytes()), "{line}");
        }
        for line in [
            "",
            "HTTP/1.0",
            "HTTP/1.0 ",
            "HTTP/1.0 403 2",
            "HTTP 200",
            "foo",
            "HTTP/200",
        ] {
            assert!(!proxy_accepts(line.as_bytes()), "{line}");
        }
    }

    proptest! {
        #[test]
        fn arguments_are_decoded_as_they_were_encoded(args in proptest::collection::vec("[^\0\n]{1,9}", 0..9), protocol in 27u8..33) {
            let mut out = Vec::new();
            encode_args(args.iter().map(|arg| arg.as_bytes()), args_end(protocol), &mut out);
            let decoded = decode_args(&mut &out[..], args_end(protocol)).unwrap();
            prop_assert_eq!(decoded, args.into_iter().map(String::into_bytes).collect::<Vec<_>>());
        }

        #[test]
        fn arbitrary_lines_are_parsed_or_rejected(line in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = DaemonGreeting::parse(&line);
            let _ = ClientLine::parse(&line);
            let _ = read_line(&mut &line[..]);
            prop_assert_eq!(DaemonLine::parse(&line).line(), [&line[..], b"\n"].concat());
        }
    }
}

//! The first bytes of a session: magic, greeting, version negotiation, and detection of other programs.

use super::limits::{GREETING_MAX_BYTES, GUESS_MAX_BYTES, NOISE_MAX_BYTES, PROGRAM_MAX_BYTES};
use super::message::Greeting;
use super::rsync::handshake::announced_version;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::path::RelPath;
use std::ops::RangeInclusive;

/// The bytes before a greeting.
///
/// None of them is printable, a newline, or another control byte used by terminals, and 0xff never occurs in UTF-8, so
/// a login shell does not print them. A stock rsync reads the first four bytes as a protocol version that it rejects.
pub const MAGIC: [u8; 8] = [0xd5, 0xff, 0xa9, 0x00, 0xf1, 0x8e, 0xfe, 0x01];

/// The oldest version of rsync's protocol that a client and a daemon can agree on before a session in this one.
pub const BEHIND_RSYNC_OLDEST: u8 = 31;

/// The protocol versions that this program supports.
pub const VERSIONS: RangeInclusive<u16> = 1..=1;

/// How many bytes at the start of a client's key name the place of its run: they are the same in all runs that copy to
/// the same place. The others are random.
pub const PLACE_BYTES: usize = 8;

/// The fixed part of a greeting after its length: two versions, features, key, length of the program name.
const FIXED_BYTES: usize = 2 + 2 + 8 + 16 + 2;

impl Greeting {
    /// Returns this program's greeting. The key must not be predictable.
    pub fn ours(key: [u8; 16]) -> Greeting {
        Greeting {
            oldest: *VERSIONS.start(),
            newest: *VERSIONS.end(),
            features: 0,
            key,
            program: concat!("sparsync ", env!("CARGO_PKG_VERSION")).into(),
            guess: None,
        }
    }
}

/// Appends magic and greeting. Truncates the program name at its limit; the guess must be within its own limit.
pub fn encode_greeting(greeting: &Greeting, out: &mut Vec<u8>) {
    let program = &greeting.program[..greeting.program.len().min(PROGRAM_MAX_BYTES)];
    let len = |len: usize| {
        u16::try_from(len)
            .expect("a greeting has at most GREETING_MAX_BYTES")
            .to_le_bytes()
    };
    let guess = match &greeting.guess {
        None => vec![0],
        Some(path) => [&[1], &len(path.as_bytes().len())[..], path.as_bytes()].concat(),
    };
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&len(FIXED_BYTES + program.len() + guess.len()));
    out.extend_from_slice(&greeting.oldest.to_le_bytes());
    out.extend_from_slice(&greeting.newest.to_le_bytes());
    out.extend_from_slice(&greeting.features.to_le_bytes());
    out.extend_from_slice(&greeting.key);
    out.extend_from_slice(&len(program.len()));
    out.extend_from_slice(program);
    out.extend_from_slice(&guess);
}

/// Decodes the greeting at the front of `input`, which begins with the magic, and returns it with the length of both.
/// `None` if it is incomplete.
///
/// Ignores what a later version may append.
pub fn decode_greeting(input: &[u8]) -> Result<Option<(Greeting, usize)>> {
    let seen = input.len().min(MAGIC.len());
    if input[..seen] != MAGIC[..seen] {
        return Err(refuse("it does not begin with the magic bytes"));
    }
    let Some((len, body)) = input[seen..].split_first_chunk::<2>() else {
        return Ok(None);
    };
    let len = usize::from(u16::from_le_bytes(*len));
    if !(FIXED_BYTES..=GREETING_MAX_BYTES).contains(&len) {
        return Err(refuse(&format!(
            "its length is {len} bytes, not {FIXED_BYTES} to {GREETING_MAX_BYTES}"
        )));
    }
    let Some(mut body) = body.get(..len) else {
        return Ok(None);
    };
    let mut next = |len: usize| {
        let (taken, rest) = body.split_at(len);
        body = rest;
        taken
    };
    let number = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
    let oldest = number(next(2));
    let newest = number(next(2));
    let features = u64::from_le_bytes(next(8).try_into().expect("eight bytes were taken"));
    let key = next(16).try_into().expect("sixteen bytes were taken");
    let program_len = usize::from(number(next(2)));
    if program_len > PROGRAM_MAX_BYTES {
        return Err(refuse(
            "the program's name is longer than PROGRAM_MAX_BYTES",
        ));
    }
    let Some((program, rest)) = body.split_at_checked(program_len) else {
        return Err(refuse("it ends inside the program's name"));
    };
    let guess = guess(rest)?;
    if oldest > newest {
        return Err(refuse(&format!(
            "its oldest version is {oldest} and its newest {newest}"
        )));
    }
    let greeting = Greeting {
        oldest,
        newest,
        features,
        key,
        program: program.to_vec(),
        guess,
    };
    Ok(Some((greeting, MAGIC.len() + 2 + len)))
}

/// Decodes the guess after the program name.
fn guess(rest: &[u8]) -> Result<Option<RelPath>> {
    let ends = || refuse("it ends inside the guess");
    let (&has_guess, rest) = rest.split_first().ok_or_else(ends)?;
    if has_guess == 0 {
        return Ok(None);
    }
    let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(ends)?;
    let len = usize::from(u16::from_le_bytes(*len));
    if len > GUESS_MAX_BYTES {
        return Err(refuse("the guess is longer than GUESS_MAX_BYTES"));
    }
    let path = RelPath::parse(rest.get(..len).ok_or_else(ends)?);
    path.map(Some)
        .map_err(|_| refuse("the guess is not a path inside of a tree"))
}

fn refuse(why: &str) -> Error {
    Error::new(
        Exit::Protocol,
        format!("sparsync: protocol error: invalid greeting: {why}"),
    )
}

/// Returns the version that both sides support: the smaller of the two newest.
///
/// Fails with exit code 2 and states which program is too old.
pub fn agree(ours: &Greeting, theirs: &Greeting) -> Result<u16> {
    let version = ours.newest.min(theirs.newest);
    if version >= ours.oldest.max(theirs.oldest) {
        return Ok(version);
    }
    let we_are_old = ours.newest < theirs.oldest;
    let supports = |who: &str, greeting: &Greeting| {
        let program = String::from_utf8_lossy(&greeting.program);
        // The name comes from the peer: control characters must not reach a terminal.
        let program: String = program.chars().filter(|c| !c.is_control()).collect();
        let versions = match (greeting.oldest, greeting.newest) {
            (oldest, newest) if oldest == newest => format!("version {oldest}"),
            (oldest, newest) => format!("versions {oldest} to {newest}"),
        };
        format!("{who} ({program}) supports {versions}")
    };
    let advice = if we_are_old {
        "upgrade sparsync here"
    } else {
        "upgrade sparsync there"
    };
    let local = supports("this program", ours);
    let remote = supports("the peer", theirs);
    let words = format!("sparsync: no common protocol version: {local}, {remote}");
    Err(Error::new(Exit::Protocol, words).with_hint(advice))
}

/// The result of examining the first bytes from a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sniffed {
    /// The magic follows so many bytes of noise; the greeting may be incomplete.
    Native {
        /// Length of the login shell's output before it.
        noise_len: usize,
    },
    /// A stock rsync greeted with its version, in four bytes after the noise, and has sent more.
    Rsync {
        /// Length of the login shell's output before it.
        noise_len: usize,
    },
    /// An rsync greeted with a version that no rsync has, such as the one of `-M--protocol=99`.
    UnknownVersion {
        /// Length of the login shell's output before it.
        noise_len: usize,
    },
    /// Not enough bytes to decide.
    NeedMore,
    /// Neither greeting was found, and none can follow: all bytes are noise.
    Hopeless,
}

/// Looks for a greeting in all bytes received so far. `at_end` means that no more will follow.
///
/// The client has sent its version of rsync's protocol, so an rsync sends more than its own version. A version alone
/// can be an echo of the client's.
pub fn sniff(bytes: &[u8], at_end: bool) -> Sniffed {
    let searched = &bytes[..bytes.len().min(NOISE_MAX_BYTES + MAGIC.len())];
    if let Some(noise_len) = searched
        .windows(MAGIC.len())
        .position(|window| window == MAGIC)
    {
        return Sniffed::Native { noise_len };
    }
    if let Some((noise_len, version, rest)) = version_in(searched) {
        let is_known = announced_version(version).is_some();
        // A sparsync does not answer with a version, so this needs no further bytes. The peer waits for ours now.
        if !is_known && version[1..] == [0; 3] {
            return Sniffed::UnknownVersion { noise_len };
        }
        if is_known && (at_end || !MAGIC.starts_with(rest)) {
            return Sniffed::Rsync { noise_len };
        }
    }
    if at_end || bytes.len() >= NOISE_MAX_BYTES + MAGIC.len() {
        Sniffed::Hopeless
    } else {
        Sniffed::NeedMore
    }
}

/// Returns the length of the noise before the version of a stock rsync, that version, and the bytes after it. The noise is
/// text, which has no NUL, so the first NUL belongs to the version.
fn version_in(bytes: &[u8]) -> Option<(usize, [u8; 4], &[u8])> {
    let noise_len = bytes.iter().position(|&byte| byte == 0)?.checked_sub(1)?;
    let (version, rest) = bytes[noise_len..].split_first_chunk::<4>()?;
    Some((noise_len, *version, rest))
}

//! The first bytes: magic and greeting, which version both speak, and what else may come instead.

use super::limits::{GREETING_MAX_BYTES, NAME_MAX_BYTES, NOISE_MAX_BYTES, PROGRAM_MAX_BYTES};
use super::message::{GUESSES, Greeting};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::path::RelPath;
use std::ops::RangeInclusive;

/// What stands before a greeting.
///
/// No byte of it is printable, a newline or another control byte that a terminal uses, and 0xff is in no UTF-8
/// text: a login shell does not say it. Read as the first four bytes of a stock rsync it is a version that
/// none accepts.
pub const MAGIC: [u8; 8] = [0xd5, 0xff, 0xa9, 0x00, 0xf1, 0x8e, 0xfe, 0x01];

/// The versions of the conversation that this program speaks.
pub const VERSIONS: RangeInclusive<u16> = 1..=1;

/// What this program can do beyond its version; see [`Greeting::features`].
pub const FEATURES: u64 = 0;

/// The versions that a stock rsync may greet with.
const RSYNC_VERSIONS: RangeInclusive<i32> = 20..=40;

/// The fixed part of a greeting behind its length: two versions, features, key, length of the program's name.
const FIXED_BYTES: usize = 2 + 2 + 8 + 16 + 2;

impl Greeting {
    /// What this program says, with a key that nobody could guess.
    pub fn ours(key: [u8; 16]) -> Greeting {
        Greeting {
            oldest: *VERSIONS.start(),
            newest: *VERSIONS.end(),
            features: FEATURES,
            key,
            program: concat!("sparsync ", env!("CARGO_PKG_VERSION")).into(),
            guess: None,
        }
    }
}

/// Appends magic and greeting. A program's name beyond its limit is cut off; a guess beyond its own must not be made.
pub fn encode_greeting(greeting: &Greeting, out: &mut Vec<u8>) {
    let program = &greeting.program[..greeting.program.len().min(PROGRAM_MAX_BYTES)];
    let len = |len: usize| u16::try_from(len).expect("a greeting has at most GREETING_MAX_BYTES").to_le_bytes();
    let guess = match &greeting.guess {
        _ if greeting.features & GUESSES == 0 => Vec::new(),
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

/// The greeting at the front of `input`, which begins at the magic, and the length of both; `None` while it is not
/// complete.
///
/// What a later program says behind all of this is passed over.
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
        return Err(refuse(&format!("it says to be {len} bytes long, not {FIXED_BYTES} to {GREETING_MAX_BYTES}")));
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
    let (oldest, newest) = (number(next(2)), number(next(2)));
    let features = u64::from_le_bytes(next(8).try_into().expect("eight bytes were taken"));
    let key = next(16).try_into().expect("sixteen bytes were taken");
    let program_len = usize::from(number(next(2)));
    if program_len > PROGRAM_MAX_BYTES {
        return Err(refuse("the program's name is longer than PROGRAM_MAX_BYTES"));
    }
    let Some((program, rest)) = body.split_at_checked(program_len) else {
        return Err(refuse("it ends inside the program's name"));
    };
    let guess = if features & GUESSES == 0 { None } else { guess(rest)? };
    if oldest > newest {
        return Err(refuse(&format!("its oldest version is {oldest} and its newest {newest}")));
    }
    let greeting = Greeting { oldest, newest, features, key, program: program.to_vec(), guess };
    Ok(Some((greeting, MAGIC.len() + 2 + len)))
}

/// The guess that stands behind the program's name.
fn guess(rest: &[u8]) -> Result<Option<RelPath>> {
    let ends = || refuse("it ends inside the guess");
    let (&is_there, rest) = rest.split_first().ok_or_else(ends)?;
    if is_there == 0 {
        return Ok(None);
    }
    let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(ends)?;
    let len = usize::from(u16::from_le_bytes(*len));
    if len > NAME_MAX_BYTES {
        return Err(refuse("the guess is longer than NAME_MAX_BYTES"));
    }
    let path = RelPath::parse(rest.get(..len).ok_or_else(ends)?);
    path.map(Some).map_err(|_| refuse("the guess is no path inside of a tree"))
}

fn refuse(why: &str) -> Error {
    Error::new(Exit::Protocol, format!("bad greeting: {why}"))
}

/// The version that both speak: the smaller of the two newest.
///
/// Errs with exit 2 and says which of the two programs is too old.
pub fn agree(ours: &Greeting, theirs: &Greeting) -> Result<u16> {
    let version = ours.newest.min(theirs.newest);
    if version >= ours.oldest.max(theirs.oldest) {
        return Ok(version);
    }
    let we_are_old = ours.newest < theirs.oldest;
    let told = |who: &str, greeting: &Greeting| {
        let program = String::from_utf8_lossy(&greeting.program);
        // The words are the peer's; what is no character must not reach a terminal.
        let program: String = program.chars().filter(|c| !c.is_control()).collect();
        let versions = match (greeting.oldest, greeting.newest) {
            (oldest, newest) if oldest == newest => format!("version {oldest}"),
            (oldest, newest) => format!("versions {oldest} to {newest}"),
        };
        format!("{who} ({program}) speaks {versions} of the protocol")
    };
    let advice = if we_are_old { "upgrade sparsync here" } else { "upgrade sparsync there" };
    let sentence = format!("{}, {}: {advice}", told("this program", ours), told("the peer", theirs));
    Err(Error::new(Exit::Protocol, sentence))
}

/// What the first bytes from a peer say of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sniffed {
    /// The magic stands behind so many bytes of noise; the greeting may not be complete.
    Native {
        /// What a login shell said before.
        noise_len: usize,
    },
    /// A stock rsync greeted with its version, in four bytes behind the noise.
    Rsync {
        /// 20 to 40.
        version: i32,
        /// What a login shell said before.
        noise_len: usize,
    },
    /// Nothing can be said yet.
    NeedMore,
    /// Neither was there, and neither will come: all of it is noise.
    Hopeless,
}

/// Looks for a greeting in all bytes that came so far; `at_end`: no more will come.
pub fn sniff(bytes: &[u8], at_end: bool) -> Sniffed {
    let version_at = |at: usize| {
        let bytes = bytes.get(at..)?.first_chunk::<4>()?;
        Some(i32::from_le_bytes(*bytes)).filter(|version| RSYNC_VERSIONS.contains(version))
    };
    if let Some(version) = version_at(0) {
        return Sniffed::Rsync { version, noise_len: 0 };
    }
    let searched = &bytes[..bytes.len().min(NOISE_MAX_BYTES + MAGIC.len())];
    if let Some(noise_len) = searched.windows(MAGIC.len()).position(|window| window == MAGIC) {
        return Sniffed::Native { noise_len };
    }
    // A stock rsync waits for an answer behind its version. Text has no NUL, so that noise does not look like one.
    let noise_len = bytes.len().saturating_sub(4);
    if noise_len <= NOISE_MAX_BYTES
        && let Some(version) = version_at(noise_len)
    {
        return Sniffed::Rsync { version, noise_len };
    }
    if at_end || bytes.len() >= NOISE_MAX_BYTES + MAGIC.len() { Sniffed::Hopeless } else { Sniffed::NeedMore }
}

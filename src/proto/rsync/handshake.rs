//! The start of a connection: version, capabilities, algorithm lists, checksum seed.

use super::decode_error::{Result, violation};
use super::number::{ReadWire as _, WriteWire as _};
use crate::options::Checksum;
use crate::options::algorithm::{Algorithm, list_of};
use std::io::Read;
use std::ops::RangeInclusive;

/// The protocol versions that this codec supports.
pub const VERSIONS: RangeInclusive<u8> = 27..=32;

/// rsync's message if the ends have no version in common, or if something else than an rsync answers.
pub const VERSION_MISMATCH: &str =
    "protocol version mismatch -- is your shell clean?\n(see the rsync manpage for an explanation)";
/// The versions that an rsync announces, of which the oldest are not supported.
const ANNOUNCED: RangeInclusive<i32> = 20..=40;

/// The versions that a peer may announce. What exceeds [`VERSIONS`] is lowered.
const PEER_VERSIONS: RangeInclusive<i32> = 27..=40;

/// Returns the newest version of an end as it is sent: the first four bytes of a connection.
pub fn version_bytes(newest: u8) -> [u8; 4] {
    i32::from(newest).to_le_bytes()
}

/// Returns the version that these bytes announce; `None` if they are no announcement of an rsync.
pub fn announced_version(bytes: [u8; 4]) -> Option<i32> {
    Some(i32::from_le_bytes(bytes)).filter(|version| ANNOUNCED.contains(version))
}

/// Returns the version of the connection: the smaller of the two. `peer` is the int that the peer sent.
pub fn choose_version(ours: u8, peer: i32) -> Result<u8> {
    match u8::try_from(peer) {
        Ok(version) if PEER_VERSIONS.contains(&peer) => Ok(version.min(ours)),
        _ => Err(violation(format!(
            "the peer announces version {peer}; is the shell of its account clean?"
        ))),
    }
}

/// A set of compatibility flags, decided by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompatFlags(pub u32);

impl CompatFlags {
    /// File lists are sent piecewise.
    pub const INC_RECURSE: CompatFlags = CompatFlags(1);
    /// The server can set the times of symlinks.
    pub const SYMLINK_TIMES: CompatFlags = CompatFlags(2);
    /// The text of symlinks is converted with `--iconv`.
    pub const SYMLINK_ICONV: CompatFlags = CompatFlags(4);
    /// The end marker of a list carries `io_error`.
    pub const SAFE_FLIST: CompatFlags = CompatFlags(8);
    /// Disables the shortcut for the extended attributes of hard links.
    pub const AVOID_XATTR_OPTIM: CompatFlags = CompatFlags(16);
    /// The md5 sum of a block begins with the seed.
    pub const CHKSUM_SEED_FIX: CompatFlags = CompatFlags(32);
    /// A basis in the partial directory is updated in place.
    pub const INPLACE_PARTIAL_DIR: CompatFlags = CompatFlags(64);
    /// Flags of list entries are varints, and algorithm lists are exchanged.
    pub const VARINT_FLIST_FLAGS: CompatFlags = CompatFlags(128);
    /// Id lists end with the name of id 0.
    pub const ID0_NAMES: CompatFlags = CompatFlags(256);

    /// Returns whether all flags of `other` are set.
    pub fn has(self, other: CompatFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Reads the server's flags.
    pub fn decode(input: &mut impl Read) -> Result<CompatFlags> {
        Ok(CompatFlags(input.varint()?.cast_unsigned()))
    }

    /// Appends the flags.
    pub fn encode(self, out: &mut Vec<u8>) {
        out.put_varint(self.0.cast_signed());
    }
}

/// The capability letters of a client, each with the flag that it permits the server to set.
const LETTERS: [(u8, CompatFlags); 9] = [
    (b'i', CompatFlags::INC_RECURSE),
    (b'L', CompatFlags::SYMLINK_TIMES),
    (b's', CompatFlags::SYMLINK_ICONV),
    (b'f', CompatFlags::SAFE_FLIST),
    (b'x', CompatFlags::AVOID_XATTR_OPTIM),
    (b'C', CompatFlags::CHKSUM_SEED_FIX),
    (b'I', CompatFlags::INPLACE_PARTIAL_DIR),
    (b'v', CompatFlags::VARINT_FLIST_FLAGS),
    (b'u', CompatFlags::ID0_NAMES),
];

/// The capability text of a client, which follows `e` in the bundle of letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Version and sub-number of a pre-release.
    pub prerelease: Option<(u8, u8)>,
    /// What the client permits.
    pub flags: CompatFlags,
}

impl Capabilities {
    /// Parses the text after `e`. Ignores letters of later versions.
    pub fn parse(text: &[u8]) -> Capabilities {
        let digits = text
            .iter()
            .position(|byte| !byte.is_ascii_digit() && *byte != b'.')
            .unwrap_or(text.len());
        let (version, letters) = text.split_at(digits);
        let number = |part: &[u8]| {
            str::from_utf8(part)
                .ok()
                .and_then(|digits| digits.parse().ok())
        };
        let dot = version.iter().position(|&byte| byte == b'.');
        let prerelease =
            dot.and_then(|dot| Some((number(&version[..dot])?, number(&version[dot + 1..])?)));
        let flags = LETTERS
            .iter()
            .filter(|(letter, _)| letters.contains(letter));
        Capabilities {
            prerelease,
            flags: CompatFlags(flags.fold(0, |all, (_, flag)| all | flag.0)),
        }
    }

    /// Returns the flags that a server sets which supports `ours`. Symlink times and conversion depend on the server
    /// alone.
    pub fn agree(self, ours: CompatFlags) -> CompatFlags {
        let of_server = CompatFlags(CompatFlags::SYMLINK_TIMES.0 | CompatFlags::SYMLINK_ICONV.0);
        CompatFlags(ours.0 & (self.flags.0 | of_server.0))
    }
}

/// Returns the algorithm list of one side. Every peer agrees only if the order is that of [`Algorithm::ALL`], so this
/// restores it; a client leaves out "none".
pub fn offer<A: Algorithm>(offered: &[A]) -> String {
    list_of(
        A::ALL
            .iter()
            .filter(|(known, _)| offered.contains(known))
            .map(|(_, name)| *name),
    )
}

/// Reads the algorithm list of the peer: its names, separated by blanks.
pub fn decode_offer(input: &mut impl Read) -> Result<Vec<u8>> {
    input.vstring()
}

/// Returns the first algorithm of the client that the server has too; `None`: they have none in common. A server calls
/// this with the client's list, a client with its own list as text, so that old and new peers choose the same.
pub fn choose<A: Algorithm>(client: &[u8], server: &[u8]) -> Option<A> {
    let names = |list: &[u8]| -> Vec<A> {
        list.split(|&byte| byte == b' ')
            .filter_map(A::named)
            .collect()
    };
    let of_server = names(server);
    names(client)
        .into_iter()
        .find(|algorithm| of_server.contains(algorithm))
}

/// Returns the checksum of a connection on which no lists were exchanged.
pub fn default_checksum(protocol: u8) -> Checksum {
    if protocol >= 30 {
        Checksum::Md5
    } else {
        Checksum::Md4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Compression;

    const CLIENT: &str = "xxh128 xxh3 xxh64 md5 md4 sha1";

    #[test]
    fn announced_versions_are_read_back() {
        assert_eq!(version_bytes(31), [31, 0, 0, 0]);
        assert_eq!(announced_version(version_bytes(31)), Some(31));
        assert_eq!(announced_version(*b"SSH-"), None);
    }

    #[test]
    fn the_version_is_the_smaller_one() {
        assert_eq!(choose_version(32, 40).unwrap(), 32);
        assert_eq!(choose_version(32, 29).unwrap(), 29);
        assert_eq!(choose_version(29, 31).unwrap(), 29);
        for strange in [26, 41, -1, 0x6f6c_6c65] {
            assert!(choose_version(32, strange).is_err(), "{strange}");
        }
    }

    #[test]
    fn capability_texts_are_parsed() {
        let stock = Capabilities::parse(b".iLsfxCIvu");
        assert_eq!((stock.flags, stock.prerelease), (CompatFlags(0x1ff), None));
        assert_eq!(
            Capabilities::parse(b".LsfxCIvu").agree(CompatFlags(0x1ff)),
            CompatFlags(0x1fe)
        );
        // Flags that old servers and clients agree on.
        assert_eq!(
            Capabilities::parse(b".iL").agree(CompatFlags(0x1ff)),
            CompatFlags(0x7)
        );
        assert_eq!(
            Capabilities::parse(b"").agree(CompatFlags(0x1ff)),
            CompatFlags(0x6)
        );
        let prerelease = Capabilities::parse(b"31.14iL");
        assert_eq!(
            (prerelease.prerelease, prerelease.flags),
            (Some((31, 14)), CompatFlags(3))
        );
    }

    #[test]
    fn offers_have_the_canonical_order() {
        assert_eq!(
            offer(&[Checksum::Md4, Checksum::Md5, Checksum::Xxh128]),
            "xxh128 md5 md4"
        );
        assert_eq!(
            decode_offer(&mut &b"\x0exxh128 md5 md4"[..]).unwrap(),
            b"xxh128 md5 md4"
        );
    }

    #[test]
    fn the_choice_follows_the_client() {
        let choice =
            |client: &str, server: &str| choose::<Checksum>(client.as_bytes(), server.as_bytes());
        assert_eq!(
            choice(CLIENT, "xxh128 xxh3 none").unwrap(),
            Checksum::Xxh128
        );
        assert_eq!(choice("md5 XXHash", "xxh64 none").unwrap(), Checksum::Xxh64);
        assert_eq!(choice("INVALID", "xxh64 none"), None);
        assert_eq!(
            choose::<Compression>(b"lz4 zlib", b"zstd lz4 zlib").unwrap(),
            Compression::Lz4
        );
    }
}

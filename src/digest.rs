//! Digests of file contents, of the compared attributes of a directory, and the checksum that rsync prints for `%C`.
//! The caller does the reading.

mod standard;

pub use self::standard::{HashAlgorithm, StandardHasher};

use crate::options::Checksum;
use std::io;
use twox_hash::{XxHash3_64, XxHash3_128, XxHash64};

/// Length of a content digest. A shorter one is followed by zeros. Only sha1 is as long.
pub const CONTENT_LEN_BYTES: usize = 20;

/// Length of our own content digests. BLAKE3 is truncated to it: a digest is only compared with one expected value, never
/// looked up among many.
pub const OWN_LEN_BYTES: usize = 16;

/// Length of a plain digest of a content: all of BLAKE3's, because it is kept, and compared in many sessions.
pub const PLAIN_LEN_BYTES: usize = 32;

/// The digest of a content that depends on nothing else: BLAKE3 without a key.
pub type PlainDigest = [u8; PLAIN_LEN_BYTES];

/// Computes a [`PlainDigest`] incrementally.
#[derive(Default)]
pub struct PlainHasher(blake3::Hasher);

impl PlainHasher {
    /// Adds the next bytes.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// Returns the digest of all bytes so far.
    pub fn finish(&self) -> PlainDigest {
        *self.0.finalize().as_bytes()
    }
}

/// Returns the plain digest of a complete content in memory.
pub fn plain(content: &[u8]) -> PlainDigest {
    *blake3::hash(content).as_bytes()
}

/// Length of a directory digest. 96 bits of a keyed digest are enough, because two directories are compared with each
/// other and never looked up among many.
pub const DIR_LEN_BYTES: usize = 12;

/// The hash function of a content digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum By {
    /// BLAKE3, which is collision resistant. For files rebuilt from blocks of a basis: short sums identify the blocks,
    /// so an attacker who knows the basis could craft blocks that match.
    #[default]
    Blake3,
    /// XXH3 with 128 bits, five times as fast. It detects only accidental changes. For files sent whole, where data and
    /// digest come from the same peer.
    Xxh3,
    /// A checksum that was negotiated with a stock rsync, as that sends it. Before protocol 30, a seed precedes the content.
    Negotiated(Checksum, Option<i32>),
}

impl By {
    /// Returns whether digests tell contents apart. They do not if no checksum was negotiated.
    pub fn tells_apart(self) -> bool {
        !matches!(self, By::Negotiated(Checksum::None, _))
    }
}

/// Computes the digest of a file's content incrementally.
#[derive(Clone)]
pub struct ContentHasher(Hasher);

#[derive(Clone)]
enum Hasher {
    Blake3(Box<blake3::Hasher>),
    Xxh3(Box<XxHash3_128>),
    Negotiated(Box<FileDigest>),
    /// A plain digest, hashed with a key.
    OfPlain(Box<blake3::Hasher>, [u8; 32]),
}

impl Hasher {
    fn negotiated(sum: Checksum, seed: Option<i32>) -> Hasher {
        Hasher::Negotiated(Box::new(FileDigest::new(sum, seed)))
    }
}

impl ContentHasher {
    /// Creates a hasher for an empty content.
    pub fn new(by: By) -> ContentHasher {
        ContentHasher(match by {
            By::Blake3 => Hasher::Blake3(Box::default()),
            By::Xxh3 => Hasher::Xxh3(Box::default()),
            By::Negotiated(sum, seed) => Hasher::negotiated(sum, seed),
        })
    }

    /// Adds the next bytes. How the content is split does not change the digest; pieces of 16 KiB or more are fastest.
    pub fn update(&mut self, piece: &[u8]) {
        match &mut self.0 {
            Hasher::Blake3(hasher) => _ = hasher.update(piece),
            Hasher::Xxh3(hasher) => hasher.write(piece),
            Hasher::Negotiated(hasher) => hasher.update(piece),
            Hasher::OfPlain(hasher, _) => _ = hasher.update(piece),
        }
    }

    /// Adds this many zeros.
    pub fn update_zeros(&mut self, len_bytes: u64) {
        static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
        let mut left_bytes = len_bytes;
        while left_bytes > 0 {
            let piece_bytes = left_bytes.min(ZEROS.len() as u64);
            self.update(&ZEROS[..piece_bytes as usize]);
            left_bytes -= piece_bytes;
        }
    }

    /// Returns the digest of all bytes so far.
    pub fn finish(&self) -> [u8; CONTENT_LEN_BYTES] {
        match &self.0 {
            Hasher::Blake3(hasher) => own(&hasher.finalize()),
            Hasher::Xxh3(hasher) => padded(&hasher.finish_128().to_be_bytes()),
            Hasher::Negotiated(hasher) => padded(&FileDigest::clone(hasher).finish()),
            Hasher::OfPlain(hasher, key) => of_plain(key, hasher.finalize().as_bytes()),
        }
    }
}

/// Computes a checksum of a whole file incrementally, as rsync sends it.
#[derive(Clone)]
pub struct FileDigest(RunningDigest);

#[derive(Clone)]
enum RunningDigest {
    Xxh128(Box<XxHash3_128>),
    Xxh3(Box<XxHash3_64>),
    Xxh64(XxHash64),
    Md5(md5::Md5),
    Md4(md4::Md4),
    Sha1(sha1::Sha1),
    None,
}

impl FileDigest {
    /// Creates a hasher for no bytes, or for a seed that precedes them.
    pub fn new(checksum: Checksum, seed: Option<i32>) -> FileDigest {
        let mut digest = FileDigest(match checksum {
            Checksum::Xxh128 => RunningDigest::Xxh128(Box::new(XxHash3_128::new())),
            Checksum::Xxh3 => RunningDigest::Xxh3(Box::new(XxHash3_64::new())),
            Checksum::Xxh64 => RunningDigest::Xxh64(XxHash64::default()),
            Checksum::Md5 => RunningDigest::Md5(md5::Md5::default()),
            Checksum::Md4 => RunningDigest::Md4(md4::Md4::default()),
            Checksum::Sha1 => RunningDigest::Sha1(sha1::Sha1::default()),
            Checksum::None => RunningDigest::None,
        });
        if let Some(seed) = seed {
            digest.update(&seed.to_le_bytes());
        }
        digest
    }

    /// Adds the next bytes of the file.
    pub fn update(&mut self, piece: &[u8]) {
        match &mut self.0 {
            RunningDigest::Xxh128(hasher) => hasher.write(piece),
            RunningDigest::Xxh3(hasher) => std::hash::Hasher::write(&mut **hasher, piece),
            RunningDigest::Xxh64(hasher) => std::hash::Hasher::write(hasher, piece),
            RunningDigest::Md5(hasher) => md5::Digest::update(hasher, piece),
            RunningDigest::Md4(hasher) => md5::Digest::update(hasher, piece),
            RunningDigest::Sha1(hasher) => md5::Digest::update(hasher, piece),
            RunningDigest::None => {}
        }
    }

    /// Returns the bytes on the wire.
    pub fn finish(self) -> Vec<u8> {
        match self.0 {
            RunningDigest::Xxh128(hasher) => hasher.finish_128().to_le_bytes().to_vec(),
            RunningDigest::Xxh3(hasher) => {
                std::hash::Hasher::finish(&*hasher).to_le_bytes().to_vec()
            }
            RunningDigest::Xxh64(hasher) => {
                std::hash::Hasher::finish(&hasher).to_le_bytes().to_vec()
            }
            RunningDigest::Md5(hasher) => md5::Digest::finalize(hasher).to_vec(),
            RunningDigest::Md4(hasher) => md5::Digest::finalize(hasher).to_vec(),
            RunningDigest::Sha1(hasher) => md5::Digest::finalize(hasher).to_vec(),
            RunningDigest::None => vec![0],
        }
    }
}

/// Returns the digest by which a stock rsync abbreviates the value of an extended attribute.
pub fn of_attribute(value: &[u8]) -> [u8; 16] {
    <md5::Md5 as md5::Digest>::digest(value).into()
}

/// Returns a checksum as a content digest.
pub fn padded(sum: &[u8]) -> [u8; CONTENT_LEN_BYTES] {
    std::array::from_fn(|at| sum.get(at).copied().unwrap_or(0))
}

/// The hash function for comparing file contents that both machines have. Both ends of a session use the same one.
#[derive(Clone)]
pub enum Comparison {
    /// XXH3 with 128 bits and a secret, made by [`Comparison::keyed`].
    Keyed(Secret),
    /// See [`By::Negotiated`].
    Negotiated(Checksum),
    /// A keyed hash of the plain digest, made by [`Comparison::keyed_plain`]. For ends that keep plain digests from
    /// session to session (`--checksum-cache`).
    OfPlain([u8; 32]),
}

/// The secret of keyed XXH3, different in each session. This is not a MAC. But an attacker who wants two contents to
/// collide has never seen a digest made with the secret: only the two machines exchange those.
#[derive(Clone)]
pub struct Secret {
    bytes: Box<[u8]>,
    /// Used for contents of up to 240 bytes, where XXH3 ignores the secret bytes.
    seed: u64,
}

/// Length of the secret that XXH3 is designed for.
const SECRET_LEN_BYTES: usize = 192;

impl Comparison {
    /// Returns keyed XXH3. The secret and the seed are derived from the session key with BLAKE3's extendable output.
    pub fn keyed(key: &[u8; 16]) -> Comparison {
        let mut stream = blake3::Hasher::new_keyed(&widened(key, OF_CONTENT)).finalize_xof();
        let mut bytes = [0; SECRET_LEN_BYTES];
        let mut seed = [0; 8];
        stream.fill(&mut bytes);
        stream.fill(&mut seed);
        Comparison::Keyed(Secret {
            bytes: bytes.into(),
            seed: u64::from_le_bytes(seed),
        })
    }

    /// Returns keyed hashes of plain digests, under a key that is derived from the session key.
    pub fn keyed_plain(key: &[u8; 16]) -> Comparison {
        Comparison::OfPlain(widened(key, OF_PLAIN))
    }

    /// Returns hashes of plain digests that are the same in each run: for plans, which are made in one and carried out in
    /// another.
    pub fn for_plans() -> Comparison {
        Comparison::local()
    }

    /// Returns hashes of plain digests for files that are all on this machine.
    pub fn local() -> Comparison {
        Comparison::keyed_plain(&[0; 16])
    }

    /// Returns the function from the plain digest of a content to its digest; `None` if that does not depend on the plain
    /// one.
    pub fn of_plain(&self) -> Option<impl Fn(&PlainDigest) -> [u8; CONTENT_LEN_BYTES]> {
        match self {
            Comparison::OfPlain(key) => Some(|plain: &PlainDigest| of_plain(key, plain)),
            Comparison::Keyed(_) | Comparison::Negotiated(_) => None,
        }
    }

    /// Returns whether the digest of a content depends on its plain digest.
    pub fn is_of_plain(&self) -> bool {
        matches!(self, Comparison::OfPlain(_))
    }

    /// Returns a hasher for a content that arrives in pieces.
    pub fn hasher(&self) -> ContentHasher {
        ContentHasher(match self {
            Comparison::OfPlain(key) => Hasher::OfPlain(Box::default(), *key),
            Comparison::Negotiated(sum) => Hasher::negotiated(*sum, None),
            Comparison::Keyed(Secret { bytes, seed }) => {
                let keyed = XxHash3_128::with_seed_and_secret(*seed, bytes.clone());
                Hasher::Xxh3(Box::new(keyed.expect("a secret is long enough")))
            }
        })
    }

    /// Returns the digest of a complete content in memory, equal to that of [`Comparison::hasher`].
    pub fn digest(&self, content: &[u8]) -> [u8; CONTENT_LEN_BYTES] {
        match self {
            Comparison::OfPlain(key) => of_plain(key, &plain(content)),
            Comparison::Negotiated(sum) => {
                let mut hasher = ContentHasher(Hasher::negotiated(*sum, None));
                hasher.update(content);
                hasher.finish()
            }
            Comparison::Keyed(Secret { bytes, seed }) => {
                let keyed = XxHash3_128::oneshot_with_seed_and_secret(*seed, bytes, content);
                padded(&keyed.expect("a secret is long enough").to_be_bytes())
            }
        }
    }
}

/// Returns the BLAKE3 digest of a complete content in memory, equal to that of [`ContentHasher`].
#[cfg(test)]
pub fn content(content: &[u8]) -> [u8; CONTENT_LEN_BYTES] {
    own(&blake3::hash(content))
}

/// Returns the [`By::Xxh3`] digest of a content that is sent in one message. For 1 KiB, where BLAKE3 cannot hash blocks
/// in parallel, BLAKE3 took a sixth of the time of both ends.
pub fn whole(content: &[u8]) -> [u8; CONTENT_LEN_BYTES] {
    padded(&XxHash3_128::oneshot(content).to_be_bytes())
}

/// Returns the digest of a content that is sent in one message.
pub fn whole_by(by: By, content: &[u8]) -> [u8; CONTENT_LEN_BYTES] {
    if by == By::Xxh3 {
        return whole(content);
    }
    let mut hasher = ContentHasher::new(by);
    hasher.update(content);
    hasher.finish()
}

/// Separates directory digests from name digests under the same key.
const OF_DIR: &[u8; 16] = b"sparsync-dir-v01";
/// Separates name digests from directory digests under the same key.
const OF_NAME: &[u8; 16] = b"sparsync-name-v1";
/// Separates the secret for contents from all digests under the same key.
const OF_CONTENT: &[u8; 16] = b"sparsync-data-v1";

/// Separates hashes of plain digests from all digests under the same key.
const OF_PLAIN: &[u8; 16] = b"sparsync-plain-1";

/// How much [`KeyedHasher`] buffers before it hashes. A directory entry is a handful of numbers, and calling BLAKE3 for
/// each of them is three times as slow (4,000 bytes: 12 µs in pieces of eight, 4 µs at once).
const GATHERED_BYTES: usize = 4096;

/// Computes the digest of a directory's entries under the session key, so that an attacker cannot craft two directories
/// that collide.
///
/// 100 entries of 40 bytes each take about 4 µs, a tenth of the time to stat them.
#[derive(Debug, Clone)]
pub struct KeyedHasher {
    hasher: blake3::Hasher,
    gathered: Vec<u8>,
}

impl KeyedHasher {
    /// Creates a hasher for no bytes.
    pub fn new(key: &[u8; 16]) -> KeyedHasher {
        let hasher = blake3::Hasher::new_keyed(&widened(key, OF_DIR));
        KeyedHasher {
            hasher,
            gathered: Vec::with_capacity(GATHERED_BYTES),
        }
    }

    /// Adds the next bytes. The digest does not cover where pieces begin and end: the caller adds lengths where they
    /// matter.
    pub fn update(&mut self, piece: &[u8]) {
        if self.gathered.len() + piece.len() > GATHERED_BYTES {
            self.hasher.update(&self.gathered);
            self.gathered.clear();
        }
        if piece.len() > GATHERED_BYTES {
            self.hasher.update(piece);
        } else {
            self.gathered.extend_from_slice(piece);
        }
    }

    /// Returns the digest of all bytes.
    pub fn finish(mut self) -> [u8; DIR_LEN_BYTES] {
        self.hasher.update(&self.gathered);
        cut(&self.hasher.finalize())
    }
}

/// Returns a short digest of a directory's name under the session key. Two names may collide. Takes 80 ns.
pub fn keyed_name(key: &[u8; 16], name: &[u8]) -> u32 {
    u32::from_le_bytes(cut(&blake3::keyed_hash(&widened(key, OF_NAME), name)))
}

/// Extends a session key to the 32 bytes of a BLAKE3 key, one for each purpose.
fn widened(key: &[u8; 16], purpose: &[u8; 16]) -> [u8; 32] {
    let mut wide = [0; 32];
    wide[..16].copy_from_slice(key);
    wide[16..].copy_from_slice(purpose);
    wide
}

/// Returns the keyed hash of a plain digest.
fn of_plain(key: &[u8; 32], plain: &PlainDigest) -> [u8; CONTENT_LEN_BYTES] {
    own(&blake3::keyed_hash(key, plain))
}

/// Returns a content digest of ours.
fn own(digest: &blake3::Hash) -> [u8; CONTENT_LEN_BYTES] {
    padded(&digest.as_bytes()[..OWN_LEN_BYTES])
}

/// Returns the first bytes of a digest.
fn cut<const LEN: usize>(digest: &blake3::Hash) -> [u8; LEN] {
    std::array::from_fn(|at| digest.as_bytes()[at])
}

/// How many bytes [`shown`] reads and hashes at a time.
const PIECE_BYTES: usize = 64 * 1024;

/// Returns the length of the checksum that `%C` prints; 0 if it prints none.
pub const fn shown_len_bytes(sum: Checksum) -> usize {
    match sum {
        Checksum::None => 0,
        Checksum::Xxh3 | Checksum::Xxh64 => 8,
        Checksum::Xxh128 | Checksum::Md5 | Checksum::Md4 => 16,
        Checksum::Sha1 => 20,
    }
}

/// Returns the checksum that `%C` prints for everything `read` returns until it returns 0; `None` for
/// [`Checksum::None`]. `read` fills the buffer from its start.
pub fn shown(
    sum: Checksum,
    mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
) -> io::Result<Option<Vec<u8>>> {
    if sum == Checksum::None {
        return Ok(None);
    }
    let mut hasher = FileDigest::new(sum, None);
    let mut piece = vec![0u8; PIECE_BYTES];
    loop {
        match read(&mut piece)? {
            0 => break,
            n => hasher.update(&piece[..n]),
        }
    }
    Ok(Some(in_shown_order(sum, hasher.finish())))
}

/// Returns a digest of a file list as `%C` prints it.
pub fn shown_of(sum: Checksum, digest: &[u8; CONTENT_LEN_BYTES]) -> Vec<u8> {
    in_shown_order(sum, digest[..shown_len_bytes(sum)].to_vec())
}

/// Returns a digest as it is sent in the order in which `%C` prints it.
pub fn in_shown_order(sum: Checksum, mut digest: Vec<u8>) -> Vec<u8> {
    match sum {
        // Sent as numbers, the lowest byte first.
        Checksum::Xxh128 | Checksum::Xxh3 | Checksum::Xxh64 => digest.reverse(),
        Checksum::Md5 | Checksum::Md4 | Checksum::Sha1 | Checksum::None => {}
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns a digest of ours, which the protocol transfers without the zeros behind it.
    fn own_hex(digest: [u8; CONTENT_LEN_BYTES]) -> String {
        assert_eq!(
            digest[OWN_LEN_BYTES..],
            [0; CONTENT_LEN_BYTES - OWN_LEN_BYTES]
        );
        hex(&digest[..OWN_LEN_BYTES])
    }

    #[test]
    fn printed_checksums_match_rsync() {
        for (sum, wanted) in [
            (Checksum::Xxh128, "6bba86c7e069f56d5a10b435f1c8e49c"),
            (Checksum::Xxh3, "99fc819aaba2462a"),
            (Checksum::Xxh64, "e4c191d091bd8853"),
            (Checksum::Md5, "b1946ac92492d2347c6235b4d2611184"),
            (Checksum::Md4, "63481c78ae04c201fa01ea9d2b1db56d"),
            (Checksum::Sha1, "f572d396fae9206628714fb2ce00f72e94f2258f"),
            (Checksum::None, ""),
        ] {
            let mut rest = &b"hello\n"[..];
            let digest = shown(sum, |piece| io::Read::read(&mut rest, piece))
                .unwrap()
                .unwrap_or_default();
            assert_eq!(
                (hex(&digest).as_str(), digest.len()),
                (wanted, shown_len_bytes(sum))
            );
        }
    }

    #[test]
    fn content_digest_is_the_truncated_blake3() {
        // The published test vectors for the empty input and "abc".
        assert_eq!(own_hex(content(b"")), "af1349b9f5f9a1a6a0404dea36dcc949");
        assert_eq!(own_hex(content(b"abc")), "6437b3ac38465133ffb63b75273a8db5");
    }

    #[test]
    fn whole_file_digest_is_xxh3() {
        assert_eq!(own_hex(whole(b"")), "99aa06d3014798d86001c324468d497f");
        assert_eq!(own_hex(whole(b"abc")), "06b05ab6733a618578af5f94892f3950");
        // XXH3 has a separate code path for long inputs.
        assert_eq!(
            own_hex(whole(&[7; 100_000])),
            "6e09cf516e366b7811b328c9d584c63b"
        );
    }

    #[test]
    fn content_digest_is_independent_of_chunking() {
        let bytes: Vec<u8> = (0..100_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
        for len in [1, 63, 1024, 5000, 100_000] {
            for (by, wanted) in [(By::Blake3, content(&bytes)), (By::Xxh3, whole(&bytes))] {
                let mut hasher = ContentHasher::new(by);
                bytes.chunks(len).for_each(|piece| hasher.update(piece));
                assert_eq!(hasher.finish(), wanted, "{by:?} in pieces of {len}");
            }
        }
    }

    #[test]
    fn keyed_digest_is_independent_of_chunking() {
        let bytes: Vec<u8> = (0..20_000u32).map(|n| ((n * 11) >> 2) as u8).collect();
        let digest = |len: usize| {
            let mut hasher = KeyedHasher::new(&[5; 16]);
            bytes.chunks(len).for_each(|piece| hasher.update(piece));
            hasher.finish()
        };
        for len in [
            7,
            GATHERED_BYTES - 1,
            GATHERED_BYTES,
            GATHERED_BYTES + 1,
            20_000,
        ] {
            assert_eq!(digest(len), digest(1), "in pieces of {len}");
        }
    }

    #[test]
    fn keyed_digests_depend_on_every_key_bit_and_purpose() {
        let of = |key: &[u8; 16]| {
            let mut hasher = KeyedHasher::new(key);
            hasher.update(b"name");
            hasher.finish()
        };
        for bit in 0..128 {
            let mut key = [0u8; 16];
            key[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of(&key), of(&[0; 16]));
            assert_ne!(keyed_name(&key, b"name"), keyed_name(&[0; 16], b"name"));
        }
        assert_ne!(
            of(&[0; 16])[..4],
            keyed_name(&[0; 16], b"name").to_le_bytes()
        );
    }

    #[test]
    fn comparison_digest_depends_on_key_but_not_chunking() {
        let bytes: Vec<u8> = (0..300_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
        let key = b"0123456789abcdef";
        let all = [
            Comparison::keyed(key),
            Comparison::keyed(b"0123456789abcdeg"),
        ];
        for len in [0, 1, 3, 8, 16, 17, 128, 129, 240, 241, 1024, 300_000] {
            let digests = all.each_ref().map(|comparison| {
                let mut hasher = comparison.hasher();
                bytes[..len]
                    .chunks(70_001)
                    .for_each(|piece| hasher.update(piece));
                assert_eq!(hasher.finish(), comparison.digest(&bytes[..len]), "{len}");
                hasher.finish()
            });
            assert_ne!(digests[0], digests[1], "{len}");
            assert_ne!(digests[0], whole(&bytes[..len]), "{len}");
        }
    }

    /// Peers of different versions must agree on these digests.
    #[test]
    fn keyed_digests_have_their_golden_values() {
        let keyed = Comparison::keyed(b"0123456789abcdef");
        assert_eq!(
            own_hex(keyed.digest(b"short")),
            "6e4f20ecfa31f6c92ac7113a30b739ba"
        );
        assert_eq!(
            own_hex(keyed.digest(&[7; 100_000])),
            "7a88214f19e23b451c252d9f0bc82bd3"
        );
        let mut hasher = KeyedHasher::new(b"0123456789abcdef");
        hasher.update(b"entries");
        assert_eq!(hex(&hasher.finish()), "8fa9f8fc3bf51f96ce57159e");
        assert_eq!(keyed_name(b"0123456789abcdef", b"name"), 3_242_272_063);
    }
}

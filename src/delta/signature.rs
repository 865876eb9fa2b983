//! The signature of a basis: its length and a tag for each block.

use parking_lot::Mutex;
use std::io;

use super::block::{
    HEADER_BYTES, TAG_MAX_BYTES, TAG_MIN_BYTES, blocks_max, covered_len, nearest, tag_len,
};
use super::rolling::Sum;

/// Reads at an offset of a file: fills the buffer from its start and returns the number of bytes, 0 at the end.
pub type ReadAt<'a> = dyn Fn(u64, &mut [u8]) -> io::Result<usize> + Sync + 'a;

/// How much of a basis is read at a time.
const PIECE_BYTES: usize = 512 << 10;

/// The upper bits of a block's sum. Bits that are not sent are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag(u64);

impl Tag {
    /// Returns the first `tag_len` bytes of this sum.
    #[inline]
    pub fn from_sum(sum: Sum, tag_len: usize) -> Tag {
        Tag(sum.bits() & u64::MAX << (64 - 8 * tag_len))
    }

    /// Returns the first 32 bits.
    pub fn first_bits(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The block tags of a basis. All blocks have the same length except the last, which is the remainder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    block_len: u32,
    covered_len: u64,
    tag_len: usize,
    tags: Vec<Tag>,
}

/// The reason why a peer's signature is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadSignature(pub &'static str);

impl std::fmt::Display for BadSignature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the blocks of a basis {}", self.0)
    }
}

impl std::error::Error for BadSignature {}

impl Signature {
    /// Reads a basis of `basis_len` bytes once, on up to `threads` threads, and computes the tags of its blocks.
    ///
    /// `block_len` is in bytes and should come from [`super::block_len`]; it is clamped to its limits. The part of the
    /// basis that does not fit into [`super::block::SIGNATURE_MAX_BYTES`] is left out. Returns the error of `read_at`,
    /// or `UnexpectedEof` if the basis is shorter than `basis_len`; the caller then sends the file without a basis.
    pub fn read(
        basis_len: u64,
        block_len: u32,
        threads: usize,
        read_at: &ReadAt<'_>,
    ) -> io::Result<Signature> {
        let block_len = nearest(block_len);
        let tag_len = tag_len(basis_len, block_len);
        let covered_len = covered_len(basis_len, block_len, tag_len);
        let mut tags = vec![Tag(0); covered_len.div_ceil(block_len.into()) as usize];

        // Interleaves the pieces, so that the file is read roughly from beginning to end.
        let blocks_at_once = (PIECE_BYTES / block_len as usize).max(1);
        let piece_len = (blocks_at_once * block_len as usize) as u64;
        let pieces = tags.chunks_mut(blocks_at_once);
        let threads = threads.clamp(1, pieces.len().max(1));
        let mut shares: Vec<Vec<(u64, &mut [Tag])>> = (0..threads).map(|_| Vec::new()).collect();
        for (at, piece) in pieces.enumerate() {
            shares[at % threads].push((at as u64 * piece_len, piece));
        }
        let take = |share: Vec<(u64, &mut [Tag])>| -> io::Result<()> {
            let mut buffer = vec![0; piece_len.min(covered_len) as usize];
            for (offset, tags) in share {
                let bytes = &mut buffer[..piece_len.min(covered_len - offset) as usize];
                if fill_at(read_at, offset, bytes)? < bytes.len() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                for (tag, block) in tags.iter_mut().zip(bytes.chunks(block_len as usize)) {
                    *tag = Tag::from_sum(Sum::from_bytes(block), tag_len);
                }
            }
            Ok(())
        };
        // Each thread takes the next share. If no thread can be started, this one processes all of them.
        let shares = Mutex::new(shares);
        let next = || shares.lock().pop();
        let take_all = || std::iter::from_fn(next).try_for_each(take);
        std::thread::scope(|scope| {
            let start = |_| {
                std::thread::Builder::new()
                    .spawn_scoped(scope, take_all)
                    .ok()
            };
            let others: Vec<_> = (1..threads).map_while(start).collect();
            let mut result = take_all();
            for other in others {
                result = result.and(
                    other
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                );
            }
            result
        })?;
        Ok(Signature {
            block_len,
            covered_len,
            tag_len,
            tags,
        })
    }

    /// Encodes the signature: block length (4 bytes), covered length (8), tag length (1), then the tags, most
    /// significant byte first. The lengths are little-endian. Never longer than [`super::block::SIGNATURE_MAX_BYTES`].
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.tags.len() * self.tag_len);
        bytes.extend_from_slice(&self.block_len.to_le_bytes());
        bytes.extend_from_slice(&self.covered_len.to_le_bytes());
        bytes.push(self.tag_len as u8);
        for tag in &self.tags {
            bytes.extend_from_slice(&tag.0.to_be_bytes()[..self.tag_len]);
        }
        bytes
    }

    /// Decodes the output of [`encode`](Signature::encode). This is the only entry point for a peer's signature; it
    /// allocates memory only in proportion to the input.
    pub fn decode(bytes: &[u8]) -> Result<Signature, BadSignature> {
        let (block_len, rest) = bytes.split_first_chunk().ok_or(BadSignature("end early"))?;
        let (covered_len, rest) = rest.split_first_chunk().ok_or(BadSignature("end early"))?;
        let (tag_len, tags) = rest.split_first().ok_or(BadSignature("end early"))?;
        let block_len = u32::from_le_bytes(*block_len);
        let covered_len = u64::from_le_bytes(*covered_len);
        let tag_len = usize::from(*tag_len);
        if block_len != nearest(block_len) {
            return Err(BadSignature("have an invalid block length"));
        }
        if !(TAG_MIN_BYTES..=TAG_MAX_BYTES).contains(&tag_len) {
            return Err(BadSignature("have an invalid tag length"));
        }
        let blocks = covered_len.div_ceil(block_len.into());
        if blocks > blocks_max(tag_len) {
            return Err(BadSignature("are too many"));
        }
        if tags.len() as u64 != blocks * tag_len as u64 {
            return Err(BadSignature("do not match its length"));
        }
        let tags = tags.chunks_exact(tag_len).map(|bytes| {
            let mut tag = [0; 8];
            tag[..tag_len].copy_from_slice(bytes);
            Tag(u64::from_be_bytes(tag))
        });
        Ok(Signature {
            block_len,
            covered_len,
            tag_len,
            tags: tags.collect(),
        })
    }

    /// Returns the length of every block but the last, in bytes.
    pub fn block_len(&self) -> u32 {
        self.block_len
    }

    /// Returns how much of the basis the blocks cover, from its beginning, in bytes: all of it up to 30 TiB.
    pub fn covered_len(&self) -> u64 {
        self.covered_len
    }

    /// Returns the length of an encoded tag, in bytes.
    pub fn tag_len(&self) -> usize {
        self.tag_len
    }

    /// Returns the tags of all blocks.
    pub fn tags(&self) -> &[Tag] {
        &self.tags
    }
}

/// Reads at `offset` until `buffer` is full or the file ends. Returns the number of bytes read.
pub fn fill_at(read_at: &ReadAt<'_>, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match read_at(offset + filled as u64, &mut buffer[filled..])? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(bytes: &[u8]) -> impl Fn(u64, &mut [u8]) -> io::Result<usize> + Sync {
        // At most 1,000 bytes at a time, so that callers must read repeatedly.
        |offset, buffer| {
            let rest = bytes.get(offset as usize..).unwrap_or_default();
            let len = rest.len().min(buffer.len()).min(1000);
            buffer[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        }
    }

    #[test]
    fn signature_is_independent_of_thread_count() {
        let basis: Vec<u8> = (0..3_000_001u32).map(|n| (n ^ (n >> 7)) as u8).collect();
        let alone = Signature::read(basis.len() as u64, 700, 1, &reader(&basis)).unwrap();
        for threads in [0, 2, 3, 100] {
            assert_eq!(
                Signature::read(basis.len() as u64, 700, threads, &reader(&basis)).unwrap(),
                alone
            );
        }
        assert_eq!(alone.tags().len(), basis.len().div_ceil(700));
    }

    #[test]
    fn basis_is_read_once_in_large_pieces() {
        let reads = Mutex::new(Vec::new());
        let read_at = |offset: u64, buffer: &mut [u8]| {
            reads.lock().push((offset, buffer.len()));
            Ok(buffer.len())
        };
        Signature::read(1_200_000, 700, 1, &read_at).unwrap();
        // 748 blocks fit half a mebibyte.
        let expected = [(0, 523_600), (523_600, 523_600), (1_047_200, 152_800)];
        assert_eq!(*reads.lock(), expected);
    }

    #[test]
    fn signature_of_the_maximum_length_is_decoded() {
        let most = blocks_max(TAG_MAX_BYTES);
        for (blocks, is_valid) in [(most, true), (most + 1, false)] {
            let mut bytes = 64u32.to_le_bytes().to_vec();
            bytes.extend_from_slice(&(blocks * 64).to_le_bytes());
            bytes.push(TAG_MAX_BYTES as u8);
            bytes.resize(HEADER_BYTES + blocks as usize * TAG_MAX_BYTES, 0);
            assert_eq!(Signature::decode(&bytes).is_ok(), is_valid, "{blocks}");
        }
    }

    #[test]
    fn truncated_basis_is_an_error() {
        let error = Signature::read(5000, 512, 2, &reader(&[1; 4999])).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn encoded_signature_has_its_golden_bytes() {
        // Words: fifteen times 0, then 1; fifteen times 0, then 2; 1, then 1 after zero padding.
        let mut basis = [0; 133];
        (basis[60], basis[124], basis[128], basis[132]) = (1, 2, 1, 1);
        let tags = [
            [0x9e, 0x37, 0x79, 0xb9, 0x7f], // the base
            [0x3c, 0x6e, 0xf3, 0x72, 0xfe], // twice the base
            [0x7d, 0x7b, 0xa6, 0xdc, 0x4d], // its square and itself
        ];
        let wanted = [
            &[64, 0, 0, 0][..],
            &[133, 0, 0, 0, 0, 0, 0, 0],
            &[5],
            tags.as_flattened(),
        ]
        .concat();
        assert_eq!(
            Signature::read(133, 64, 1, &reader(&basis))
                .unwrap()
                .encode(),
            wanted
        );
    }

    #[test]
    fn nothing_is_read_behind_a_full_buffer() {
        let reads = Mutex::new(Vec::new());
        let read_at = |offset: u64, buffer: &mut [u8]| {
            reads.lock().push((offset, buffer.len()));
            Ok(buffer.len().min(6))
        };
        assert_eq!(fill_at(&read_at, 100, &mut [0; 10]).unwrap(), 10);
        assert_eq!(*reads.lock(), [(100, 10), (106, 4)]);
    }

    #[test]
    fn empty_basis_has_no_blocks() {
        let signature = Signature::read(0, 512, 2, &reader(b"")).unwrap();
        assert_eq!(signature.tags(), []);
        assert_eq!(Signature::decode(&signature.encode()), Ok(signature));
    }

    #[test]
    fn malformed_signature_is_rejected() {
        let basis: Vec<u8> = (0..3000u32).map(|n| ((n * n) >> 3) as u8).collect();
        let good = Signature::read(3000, 512, 1, &reader(&basis))
            .unwrap()
            .encode();
        assert!(Signature::decode(&good).is_ok());
        let error = Signature::decode(&good[..3]).unwrap_err();
        assert_eq!(error.to_string(), "the blocks of a basis end early");
        for len in 0..good.len() {
            assert!(Signature::decode(&good[..len]).is_err(), "cut to {len}");
        }
        assert!(
            Signature::decode(&[&good[..], &[0]].concat()).is_err(),
            "one byte too many"
        );
        let with = |at: usize, bytes: &[u8]| {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            Signature::decode(&bad)
        };
        for block_len in [0, 1, 63, 511, 1024, (16 << 20) + 1, u32::MAX] {
            assert!(
                with(0, &block_len.to_le_bytes()).is_err(),
                "blocks of {block_len}"
            );
        }
        for covered_len in [0u64, 2560, 3073, 1 << 40, u64::MAX] {
            assert!(
                with(4, &covered_len.to_le_bytes()).is_err(),
                "{covered_len} bytes"
            );
        }
        for tag_len in [0, 1, 4, 6, 8, 9, 255] {
            assert!(with(12, &[tag_len]).is_err(), "tags of {tag_len}");
        }
    }
}

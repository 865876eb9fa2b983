//! How long the blocks of a basis are, and how long the tag of each.
//!
//! Short blocks find more; every block costs a tag that the receiver sends. A tag costs less here than elsewhere
//! because a match is believed for one of two reasons:
//!
//! * It lies where it was expected: behind the last match, at the same offset, or as far from the end. There are few
//!   such comparisons, so one tag needs few bits.
//! * Several blocks in a row match. There are as many comparisons as pairs of a position and a block, but the bits of
//!   all tags in the row count together.
//!
//! A wrong match does no harm but to the time: the digest of the whole content tells, and the file is sent again.

/// The longest encoded signature. Blocks grow so that none is longer.
pub const SIGNATURE_MAX_BYTES: usize = 15 << 20;

/// What an encoded signature has before its tags.
pub const HEADER_BYTES: usize = 13;

/// The shortest block. `--block-size` can ask for less than the program would choose.
pub const BLOCK_MIN_BYTES: u32 = 64;
/// The longest block. With [`SIGNATURE_MAX_BYTES`] this covers 30 TiB; what a basis has beyond is not looked at.
pub const BLOCK_MAX_BYTES: u32 = 16 << 20;

/// The shortest tag. The index looks at its first four bytes.
pub const TAG_MIN_BYTES: usize = 5;
/// The longest tag.
pub const TAG_MAX_BYTES: usize = 8;

/// The shortest block that the program chooses itself: half of rsync's shortest, in whole words.
const CHOSEN_MIN_BYTES: u32 = 348;
/// The longest block that the program chooses itself, as long as the signature stays within its limit.
const CHOSEN_MAX_BYTES: u32 = 128 * 1024;
/// Where blocks stop to grow with half of the square root of the length: the page of memory, of file systems and of
/// most databases.
const PAGE_BYTES: u64 = 4096;

/// A file may have a wrong match with a probability of one in two to the power of this.
const SAFETY_BITS: u32 = 20;
/// How many places a block can be expected at: see `scan`.
pub const EXPECTED_PLACES: usize = 4;

/// The length of a block in bytes, for a basis of `basis_len` bytes: a power of two (or 348 for short files), or what
/// `--block-size` asks for (`wished`; see [`nearest`]). In either case it is longer if the signature would be too long
/// otherwise.
///
/// rsync takes the square root of the length. Half of that finds at least what rsync finds, also where two blocks in a
/// row must match. From 64 MiB on, blocks stay at 4 KiB; from 1 GiB on, where a signature is a thousandth of the file, they
/// grow with the square root again. With 4 KiB changed here and there in 1 GiB, that is an eighth of rsync's literal
/// bytes.
pub fn block_len(basis_len: u64, wished: Option<u32>) -> u32 {
    let mut len = match wished {
        Some(wished) => nearest(wished),
        None => {
            let root = basis_len.isqrt();
            let fit = (root / 2).min(PAGE_BYTES).max(root / 8).max(1);
            let power = 1u64 << fit.ilog2();
            power.clamp(CHOSEN_MIN_BYTES.into(), CHOSEN_MAX_BYTES.into()) as u32
        }
    };
    while len < BLOCK_MAX_BYTES && !fits(basis_len, len) {
        len = len.saturating_mul(2).min(BLOCK_MAX_BYTES);
    }
    len
}

/// The nearest length that a block can have: a multiple of 4, so that it is whole words, within its limits.
pub fn nearest(block_len: u32) -> u32 {
    (block_len / 4 * 4).clamp(BLOCK_MIN_BYTES, BLOCK_MAX_BYTES)
}

/// Whether the signature of the whole basis stays within its limit.
fn fits(basis_len: u64, block_len: u32) -> bool {
    basis_len.div_ceil(block_len.into()) <= blocks_max(tag_len(basis_len, block_len))
}

/// How many blocks a signature can hold.
pub fn blocks_max(tag_len: usize) -> u64 {
    ((SIGNATURE_MAX_BYTES - HEADER_BYTES) / tag_len) as u64
}

/// How much of a basis a signature can cover, in bytes: all of it if `block_len` is from [`block_len`], but for lengths
/// beyond 30 TiB.
pub fn covered_len(basis_len: u64, block_len: u32, tag_len: usize) -> u64 {
    basis_len.min(blocks_max(tag_len).saturating_mul(block_len.into()))
}

/// The length of a tag in bytes.
///
/// One tag is enough for a block at an expected place. Where blocks are at most half as long as rsync's, two in a row are
/// asked for anywhere else; where they are not, one tag must do everywhere, or changes close to each other would cost
/// more than they cost rsync. The source is taken to be as long as the basis; if it is longer, see [`row_len`].
pub fn tag_len(basis_len: u64, block_len: u32) -> usize {
    let blocks = basis_len.div_ceil(block_len.into());
    let expected = SAFETY_BITS + bits(blocks.saturating_mul(EXPECTED_PLACES as u64));
    let anywhere = SAFETY_BITS + bits(blocks) + bits(basis_len);
    let needed = match u64::from(block_len) * 2 <= rsyncs_block_len(basis_len) {
        true => expected.max(anywhere.div_ceil(2)),
        false => expected.max(anywhere),
    };
    (needed.div_ceil(8) as usize).clamp(TAG_MIN_BYTES, TAG_MAX_BYTES)
}

/// How many blocks in a row must match where none was expected, in a source of `source_len` bytes: 1 to 3.
pub fn row_len(blocks: u64, tag_len: usize, source_len: u64) -> usize {
    let anywhere = SAFETY_BITS + bits(blocks) + bits(source_len);
    (anywhere as usize).div_ceil(tag_len * 8).max(1)
}

/// What rsync chooses, near enough, if it had no upper limit.
fn rsyncs_block_len(basis_len: u64) -> u64 {
    basis_len.isqrt().max(700)
}

/// The bits that it takes to number `count` things.
fn bits(count: u64) -> u32 {
    count.saturating_sub(1).checked_ilog2().map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fit_the_file() {
        for (basis_len, block) in [
            (0, 348),
            (1, 348),
            ((1 << 20) - 1, 348),
            (1 << 20, 512),
            (4 << 20, 1024),
            (16 << 20, 2048),
            (64 << 20, 4096),
            (1 << 30, 4096),
            (4 << 30, 8192),
            (64 << 30, 32 << 10),
            (1 << 40, 512 << 10),
            (1 << 50, BLOCK_MAX_BYTES),
            (i64::MAX as u64, BLOCK_MAX_BYTES),
            (u64::MAX, BLOCK_MAX_BYTES),
        ] {
            assert_eq!(block_len(basis_len, None), block, "{basis_len}");
        }
    }

    #[test]
    fn a_wish_is_granted_within_limits() {
        assert_eq!(block_len(1 << 20, Some(700)), 700);
        assert_eq!(block_len(1 << 20, Some(0)), BLOCK_MIN_BYTES);
        assert_eq!(block_len(1 << 20, Some(u32::MAX)), BLOCK_MAX_BYTES);
        assert_eq!(block_len(1 << 30, Some(1002)), 1000);
        // 64 GiB in blocks of 1,000 bytes would be a signature of 400 MB.
        assert_eq!(block_len(64 << 30, Some(1002)), 32_000);
    }

    #[test]
    fn no_signature_is_too_long() {
        for shift in 0..44 {
            for basis_len in [1u64 << shift, (1 << shift) + 1, (3 << shift) / 2] {
                for wished in [None, Some(64), Some(700), Some(131_072)] {
                    let block = block_len(basis_len, wished);
                    let bytes = basis_len.div_ceil(block.into()) * tag_len(basis_len, block) as u64;
                    assert!(bytes + HEADER_BYTES as u64 <= SIGNATURE_MAX_BYTES as u64, "{basis_len} {wished:?}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_not_covered() {
        assert_eq!(covered_len(1 << 40, block_len(1 << 40, None), 6), 1 << 40);
        let covered = covered_len(1 << 40, 64, 8);
        assert!(covered * 8 / 64 + HEADER_BYTES as u64 <= SIGNATURE_MAX_BYTES as u64);
        assert!((covered + 64) * 8 / 64 + HEADER_BYTES as u64 > SIGNATURE_MAX_BYTES as u64);
        assert!(covered_len(u64::MAX, BLOCK_MAX_BYTES, 8) >= 29 << 40);
    }

    #[test]
    fn tags_are_short() {
        for (basis_len, tag, row) in [(1u64, 5, 1), (100_000, 5, 2), (1 << 20, 5, 2), (64 << 20, 5, 2), (1 << 30, 5, 2)]
        {
            let block = block_len(basis_len, None);
            assert_eq!(tag_len(basis_len, block), tag, "{basis_len}");
            assert_eq!(row_len(basis_len.div_ceil(block.into()), tag, basis_len), row, "{basis_len}");
        }
        assert_eq!(row_len(3 << 20, TAG_MIN_BYTES, u64::MAX), 3);
    }
}

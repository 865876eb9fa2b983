//! Block length and tag length of a signature.
//!
//! Shorter blocks find more matches, but the receiver sends a tag for each block. Tags are shorter here than in other
//! implementations because a match is accepted in only two cases:
//!
//! * The block is at an expected offset: directly behind the last match, at the same offset, or at the same distance
//!   from the end. There are few such comparisons, so few bits suffice.
//! * Several blocks in a row match. Every pair of position and block is compared, but the bits of all tags in the row
//!   add up.
//!
//! A false match costs only time: the digest of the whole content detects it, and the file is sent again.

/// The maximum length of an encoded signature. Blocks are made longer to stay within it.
pub const SIGNATURE_MAX_BYTES: usize = 15 << 20;

/// The length of an encoded signature before its tags.
pub const HEADER_BYTES: usize = 13;

/// The minimum block length. `--block-size` can request shorter blocks than the automatic choice.
pub const BLOCK_MIN_BYTES: u32 = 64;
/// The maximum block length. With [`SIGNATURE_MAX_BYTES`] this covers 30 TiB; the rest of a longer basis is ignored.
pub const BLOCK_MAX_BYTES: u32 = 16 << 20;

/// The minimum tag length. The index needs the first four bytes.
pub const TAG_MIN_BYTES: usize = 5;
/// The maximum tag length.
pub const TAG_MAX_BYTES: usize = 8;

/// The minimum block length of the automatic choice: half of rsync's minimum, rounded to a multiple of 4.
const CHOSEN_MIN_BYTES: u32 = 348;
/// The maximum block length of the automatic choice, unless the signature would exceed its limit.
const CHOSEN_MAX_BYTES: u32 = 128 * 1024;
/// Above this length, blocks no longer grow with half the square root of the file length. It is the page size of
/// memory, file systems and most databases.
const PAGE_BYTES: u64 = 4096;

/// The accepted probability of a false match in a file is 1 in 2 to the power of this.
const SAFETY_BITS: u32 = 20;
/// The number of expected offsets of a block: see `scan`.
pub const EXPECTED_PLACES: usize = 4;

/// Returns the block length in bytes for a basis of `basis_len` bytes.
///
/// It is a power of two (348 for short files), or the length that `--block-size` requests (`wished`; see [`nearest`]).
/// It is doubled as long as the signature would exceed its limit.
///
/// rsync uses the square root of the file length. Half of that finds at least the same matches, even where two blocks
/// in a row must match. Blocks stay at 4 KiB from 64 MiB on. From 1 GiB on, where the signature is a thousandth of the
/// file, they grow with the square root again. With scattered 4 KiB changes in 1 GiB, this sends an eighth of rsync's
/// literal bytes.
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

/// Returns the nearest valid block length: a multiple of 4 (whole words) between the limits.
pub fn nearest(block_len: u32) -> u32 {
    (block_len / 4 * 4).clamp(BLOCK_MIN_BYTES, BLOCK_MAX_BYTES)
}

/// Returns whether the signature of the whole basis stays within its limit.
fn fits(basis_len: u64, block_len: u32) -> bool {
    basis_len.div_ceil(block_len.into()) <= blocks_max(tag_len(basis_len, block_len))
}

/// Returns the maximum number of blocks in a signature.
pub fn blocks_max(tag_len: usize) -> u64 {
    ((SIGNATURE_MAX_BYTES - HEADER_BYTES) / tag_len) as u64
}

/// Returns how many bytes of a basis a signature covers: all of them if `block_len` comes from [`block_len`] and the
/// basis is at most 30 TiB long.
pub fn covered_len(basis_len: u64, block_len: u32, tag_len: usize) -> u64 {
    basis_len.min(blocks_max(tag_len).saturating_mul(block_len.into()))
}

/// Returns the length of a tag in bytes.
///
/// A single tag is enough for a block at an expected offset. At any other offset, two blocks in a row must match if
/// blocks are at most half as long as rsync's. If they are longer, a single tag must be enough everywhere, because
/// changes close to each other would otherwise cost more than with rsync. The source is assumed to be as long as the
/// basis; [`row_len`] handles longer ones.
pub fn tag_len(basis_len: u64, block_len: u32) -> usize {
    let blocks = basis_len.div_ceil(block_len.into());
    let expected = SAFETY_BITS + bits(blocks.saturating_mul(EXPECTED_PLACES as u64));
    let anywhere = SAFETY_BITS + bits(blocks) + bits(basis_len);
    let needed = if u64::from(block_len) * 2 <= rsyncs_block_len(basis_len) {
        expected.max(anywhere.div_ceil(2))
    } else {
        expected.max(anywhere)
    };
    (needed.div_ceil(8) as usize).clamp(TAG_MIN_BYTES, TAG_MAX_BYTES)
}

/// Returns how many blocks in a row must match at an unexpected offset in a source of `source_len` bytes: 1 to 3.
pub fn row_len(blocks: u64, tag_len: usize, source_len: u64) -> usize {
    let anywhere = SAFETY_BITS + bits(blocks) + bits(source_len);
    (anywhere as usize).div_ceil(tag_len * 8).max(1)
}

/// Returns approximately the block length that rsync would choose without its upper limit.
fn rsyncs_block_len(basis_len: u64) -> u64 {
    basis_len.isqrt().max(700)
}

/// Returns the number of bits needed to number `count` items.
fn bits(count: u64) -> u32 {
    count
        .saturating_sub(1)
        .checked_ilog2()
        .map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_length_grows_with_the_basis() {
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
    fn items_are_numbered_with_as_few_bits_as_possible() {
        for (count, expected) in [
            (0, 0),
            (1, 0),
            (2, 1),
            (3, 2),
            (4, 2),
            (5, 3),
            (1 << 40, 40),
        ] {
            assert_eq!(bits(count), expected, "{count}");
        }
    }

    #[test]
    fn requested_block_length_is_clamped() {
        assert_eq!(block_len(1 << 20, Some(700)), 700);
        assert_eq!(block_len(1 << 20, Some(0)), BLOCK_MIN_BYTES);
        assert_eq!(block_len(1 << 20, Some(u32::MAX)), BLOCK_MAX_BYTES);
        assert_eq!(block_len(1 << 30, Some(1002)), 1000);
        // 64 GiB in blocks of 1,000 bytes would be a signature of 400 MB.
        assert_eq!(block_len(64 << 30, Some(1002)), 32_000);
    }

    #[test]
    fn signature_never_exceeds_its_maximum() {
        for shift in 0..44 {
            for basis_len in [1u64 << shift, (1 << shift) + 1, (3 << shift) / 2] {
                for wished in [None, Some(64), Some(700), Some(131_072)] {
                    let block = block_len(basis_len, wished);
                    let bytes = basis_len.div_ceil(block.into()) * tag_len(basis_len, block) as u64;
                    assert!(
                        bytes + HEADER_BYTES as u64 <= SIGNATURE_MAX_BYTES as u64,
                        "{basis_len} {wished:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn signature_covers_only_what_fits_its_maximum() {
        assert_eq!(covered_len(1 << 40, block_len(1 << 40, None), 6), 1 << 40);
        let covered = covered_len(1 << 40, 64, 8);
        assert!(covered * 8 / 64 + HEADER_BYTES as u64 <= SIGNATURE_MAX_BYTES as u64);
        assert!((covered + 64) * 8 / 64 + HEADER_BYTES as u64 > SIGNATURE_MAX_BYTES as u64);
        assert!(covered_len(u64::MAX, BLOCK_MAX_BYTES, 8) >= 29 << 40);
    }

    #[test]
    fn tag_and_row_lengths_are_minimal() {
        for (basis_len, tag, row) in [
            (1u64, 5, 1),
            (100_000, 5, 2),
            (1 << 20, 5, 2),
            (64 << 20, 5, 2),
            (1 << 30, 5, 2),
        ] {
            let block = block_len(basis_len, None);
            assert_eq!(tag_len(basis_len, block), tag, "{basis_len}");
            assert_eq!(
                row_len(basis_len.div_ceil(block.into()), tag, basis_len),
                row,
                "{basis_len}"
            );
        }
        assert_eq!(row_len(3 << 20, TAG_MIN_BYTES, u64::MAX), 3);
    }
}

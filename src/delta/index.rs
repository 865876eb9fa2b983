//! An index of the blocks of a signature by tag.

use super::block::row_len;
use super::rolling::Sum;
use super::signature::{Signature, Tag};

/// The size of each filter, in bits per block.
const FILTER_BITS_PER_BLOCK: usize = 32;

/// The bits that a block sets in its word of the first filter, indexed by the upper bits of its tag. Nearly all entries
/// have three bits set. A table lookup is faster than computing the shifts.
static TRIPLES: [u64; 1024] = {
    let mut triples = [0; 1024];
    let mut at = 0;
    while at < triples.len() {
        let random = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        triples[at] = 1 << (random >> 58) | 1 << (random >> 52 & 63) | 1 << (random >> 46 & 63);
        at += 1;
    }
    triples
};

/// Returns the entry of [`TRIPLES`] for these tag bits.
#[inline]
fn triple(first_bits: u32) -> u64 {
    TRIPLES[(first_bits >> 22) as usize]
}

/// The blocks of a signature by tag. Excludes the last block if it is shorter than the others.
#[derive(Debug)]
pub struct Index<'a> {
    signature: &'a Signature,
    /// The number of blocks of full length.
    full: usize,
    /// How many blocks in a row must match at an unexpected offset.
    row: usize,
    /// A Bloom filter: each block sets its [`triple`] in the word that the lower tag bits select. The length is a power
    /// of two.
    filter: Vec<u64>,
    /// A second filter with one bit per block, at a position independent of the first filter. Two tables, of which the
    /// second is rarely read, use less cache than one table with the same false-positive rate.
    second_filter: Vec<u64>,
    /// For each prefix of tag bits, the index in `sorted` of the first block with that prefix, and one final entry.
    starts: Vec<u32>,
    /// The right shift that turns the first 32 bits of a tag into an index into `starts`.
    starts_shift: u32,
    /// Block numbers, sorted by the tags of the block and of the following blocks (as many as a row has), then by
    /// number.
    sorted: Vec<u32>,
}

impl<'a> Index<'a> {
    /// Builds the index for a source of about `source_len` bytes.
    pub fn new(signature: &'a Signature, source_len: u64) -> Index<'a> {
        let tags = signature.tags();
        let full = (signature.covered_len() / u64::from(signature.block_len())) as usize;
        let row = row_len(tags.len() as u64, signature.tag_len(), source_len);
        let tags = &tags[..full];

        let filter_words = (full * FILTER_BITS_PER_BLOCK / 64)
            .next_power_of_two()
            .max(2);
        let mut filter = vec![0u64; filter_words];
        let mut second_filter = vec![0u64; filter_words];
        let starts_shift = 32 - full.next_power_of_two().max(2).ilog2();
        let mut starts = vec![0u32; (1 << (32 - starts_shift)) + 1];
        for tag in tags {
            let bits = tag.first_bits();
            filter[bits as usize & (filter_words - 1)] |= triple(bits);
            let (word, bit) = second_place(bits, filter_words);
            second_filter[word] |= 1 << bit;
            starts[(bits >> starts_shift) as usize] += 1;
        }
        let mut end = 0;
        for start in &mut starts {
            end += *start;
            *start = end;
        }
        // Each start is the end of its blocks here; filling backwards turns it into their start.
        let mut sorted = vec![0u32; full];
        for (block, tag) in tags.iter().enumerate().rev() {
            let start = &mut starts[(tag.first_bits() >> starts_shift) as usize];
            *start -= 1;
            sorted[*start as usize] = block as u32;
        }
        let row_of = |block: u32| &tags[block as usize..full.min(block as usize + row)];
        for bounds in starts.windows(2) {
            let same = &mut sorted[bounds[0] as usize..bounds[1] as usize];
            if same.len() > 1 {
                same.sort_unstable_by(|a, b| row_of(*a).cmp(row_of(*b)).then(a.cmp(b)));
            }
        }
        Index {
            signature,
            full,
            row,
            filter,
            second_filter,
            starts,
            starts_shift,
            sorted,
        }
    }

    /// Returns the signature that this index was built from.
    pub fn signature(&self) -> &'a Signature {
        self.signature
    }

    /// Returns how many blocks in a row must match at an unexpected offset; at least 1.
    pub fn row(&self) -> usize {
        self.row
    }

    /// Returns the number of blocks of full length.
    pub fn full_blocks(&self) -> usize {
        self.full
    }

    /// Returns whether a block may have this sum. About 1 in 300 sums that no block has is a false positive.
    #[inline]
    pub fn may_have(&self, sum: Sum) -> bool {
        let bits = (sum.bits() >> 32) as u32;
        // The length is a power of two, so this is a mask.
        let word = self.filter[bits as usize & (self.filter.len() - 1)];
        !word & triple(bits) == 0
    }

    /// Returns the blocks with this tag, as input for [`Index::narrow`].
    pub fn with_tag(&self, tag: Tag) -> &[u32] {
        let bits = tag.first_bits();
        // Rejects nearly all false positives before reading tables that may not be in the cache.
        if !self.may_have_tag(bits) {
            return &[];
        }
        let at = (bits >> self.starts_shift) as usize;
        let blocks = &self.sorted[self.starts[at] as usize..self.starts[at + 1] as usize];
        self.narrow(blocks, 0, tag)
    }

    /// Returns whether a block may have a tag that begins with these bits. At most 1 in 32 that no block has is a false
    /// positive, also among those that [`Index::may_have`] does not reject.
    fn may_have_tag(&self, first_bits: u32) -> bool {
        let (word, bit) = second_place(first_bits, self.second_filter.len());
        self.second_filter[word] >> bit & 1 == 1
    }

    /// Returns those of `blocks` whose `nth` follower has this tag; follower 0 is the block itself.
    ///
    /// Call it with `nth` = 1, 2, … on the result of the previous call. After a whole row, the remaining blocks are in
    /// order of their numbers.
    pub fn narrow<'b>(&self, blocks: &'b [u32], nth: usize, tag: Tag) -> &'b [u32] {
        // A block near the end may have no nth follower; such blocks sort first.
        let tag_of = |block: &u32| {
            self.signature.tags()[..self.full]
                .get(*block as usize + nth)
                .copied()
        };
        let from = blocks.partition_point(|block| tag_of(block) < Some(tag));
        let to = blocks.partition_point(|block| tag_of(block) <= Some(tag));
        &blocks[from..to]
    }
}

/// Returns the word and the bit of a tag in the second filter. `words` must be a power of two.
fn second_place(first_bits: u32, words: usize) -> (usize, u32) {
    let mixed = first_bits.wrapping_mul(0x9e37_79b1);
    (mixed as usize & (words - 1), mixed >> 26)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of one of many blocks that are all different.
    fn sum(number: u32) -> Sum {
        Sum::from_bytes(&number.to_le_bytes().repeat(16))
    }

    /// A search through new data costs little because the filters reject nearly all of it.
    #[test]
    fn filters_reject_nearly_all_sums_that_no_block_has() {
        const BLOCKS: u32 = 4096;
        let basis: Vec<u8> = (0..BLOCKS)
            .flat_map(|number| number.to_le_bytes().repeat(16))
            .collect();
        let read_at = |offset: u64, buffer: &mut [u8]| {
            buffer.copy_from_slice(&basis[offset as usize..][..buffer.len()]);
            Ok(buffer.len())
        };
        let signature = Signature::read(basis.len() as u64, 64, 1, &read_at).unwrap();
        let index = Index::new(&signature, basis.len() as u64);
        let in_first = |number: &u32| index.may_have(sum(*number));
        let in_second = |number: &u32| {
            let bits = Tag::from_sum(sum(*number), signature.tag_len()).first_bits();
            index.may_have_tag(bits)
        };

        assert_eq!((0..BLOCKS).filter(in_first).count(), BLOCKS as usize);
        assert_eq!((0..BLOCKS).filter(in_second).count(), BLOCKS as usize);

        let others = || BLOCKS..BLOCKS + 100_000;
        let first = others().filter(in_first).count();
        let second = others().filter(in_second).count();
        let both = others().filter(in_first).filter(in_second).count();
        assert!(first <= 100_000 / 300, "{first}");
        assert!(second <= 100_000 / 30, "{second}");
        assert!(both <= 10, "{both}");
    }
}

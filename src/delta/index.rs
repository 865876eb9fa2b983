//! The blocks of a signature, in an order in which they are found by their tags.

use super::block::row_len;
use super::rolling::Sum;
use super::signature::{Signature, Tag};

/// How many bits of each filter there are for a block.
const FILTER_BITS_PER_BLOCK: usize = 32;

/// The bits that a block sets in its word of the first filter, three nearly always, by the upper bits of its tag. To look
/// them up is faster than to shift them into place.
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

/// See [`TRIPLES`].
#[inline]
fn triple(first_bits: u32) -> u64 {
    TRIPLES[(first_bits >> 22) as usize]
}

/// The blocks of a signature by their tags. The last one is not among them if it is shorter than the others.
#[derive(Debug)]
pub struct Index<'a> {
    signature: &'a Signature,
    /// How many blocks have the full length.
    full: usize,
    /// How many blocks in a row must match where none was expected.
    row: usize,
    /// Words in which each block has set its [`triple`]: the lower ones of the first bits of its tag say which word. As
    /// many as a power of two.
    filter: Vec<u64>,
    /// One bit for each block, in a place that does not depend on where it has its three. Two tables of which the second
    /// is seldom asked take less of a cache than one that lets as little through.
    second_filter: Vec<u64>,
    /// Where the blocks whose tags begin with the same bits begin in `sorted`; one more at the end.
    starts: Vec<u32>,
    /// By how much the first 32 bits of a tag are shifted to be an index into `starts`.
    starts_shift: u32,
    /// The numbers of the blocks by their tags and those of the blocks behind them, as many as make a row; then by
    /// themselves.
    sorted: Vec<u32>,
}

impl<'a> Index<'a> {
    /// Makes it, to search a source of about `source_len` bytes.
    pub fn new(signature: &'a Signature, source_len: u64) -> Index<'a> {
        let tags = signature.tags();
        let full = (signature.covered_len() / u64::from(signature.block_len())) as usize;
        let row = row_len(tags.len() as u64, signature.tag_len(), source_len);
        let tags = &tags[..full];

        let filter_words = (full * FILTER_BITS_PER_BLOCK / 64).next_power_of_two().max(2);
        let (mut filter, mut second_filter) = (vec![0u64; filter_words], vec![0u64; filter_words]);
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
        // Each start is the end of its blocks now; filling in from behind makes it their start.
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
        Index { signature, full, row, filter, second_filter, starts, starts_shift, sorted }
    }

    /// The signature that it was made of.
    pub fn signature(&self) -> &'a Signature {
        self.signature
    }

    /// How many blocks in a row must match where none was expected; at least 1.
    pub fn row(&self) -> usize {
        self.row
    }

    /// How many blocks have the full length.
    pub fn full_blocks(&self) -> usize {
        self.full
    }

    /// Whether a block may have this sum. About one sum in 300 that no block has gets through.
    #[inline]
    pub fn may_have(&self, sum: Sum) -> bool {
        let bits = (sum.bits() >> 32) as u32;
        // The words are a power of two, so this is no more than a mask.
        let word = self.filter[bits as usize & (self.filter.len() - 1)];
        !word & triple(bits) == 0
    }

    /// The blocks with this tag: what [`Index::narrow`] goes on with.
    pub fn with_tag(&self, tag: Tag) -> &[u32] {
        let bits = tag.first_bits();
        // Nearly all chance ends here, before anything is looked at that may be in no cache.
        let (word, bit) = second_place(bits, self.second_filter.len());
        if self.second_filter[word] >> bit & 1 == 0 {
            return &[];
        }
        let at = (bits >> self.starts_shift) as usize;
        let blocks = &self.sorted[self.starts[at] as usize..self.starts[at + 1] as usize];
        self.narrow(blocks, 0, tag)
    }

    /// Those of the blocks whose `nth` follower has this tag; the 0th is the block itself. To be asked from 1 on, each
    /// time of what was left the last time; what is left is in order of the blocks' numbers when a whole row was asked.
    pub fn narrow<'b>(&self, blocks: &'b [u32], nth: usize, tag: Tag) -> &'b [u32] {
        // A block near the end may have no nth follower: it comes before those that have.
        let tag_of = |block: &u32| self.signature.tags()[..self.full].get(*block as usize + nth).copied();
        let from = blocks.partition_point(|block| tag_of(block) < Some(tag));
        let to = blocks.partition_point(|block| tag_of(block) <= Some(tag));
        &blocks[from..to]
    }
}

/// The word and the bit in the second filter of so many words, which are a power of two.
fn second_place(first_bits: u32, words: usize) -> (usize, u32) {
    let mixed = first_bits.wrapping_mul(0x9e37_79b1);
    (mixed as usize & (words - 1), mixed >> 26)
}

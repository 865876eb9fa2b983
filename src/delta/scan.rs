//! Finds the blocks of a basis in a stretch of the source that is in memory.

use super::block::EXPECTED_PLACES;
use super::index::Index;
use super::rolling::{Rolling, Sum};
use super::signature::Tag;

/// The initial credit, in bytes; see `BlockScanner::credit`.
const CREDIT_AT_FIRST_BYTES: i64 = 1 << 20;

/// A part of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A number of bytes that were not found in the basis.
    Literal(usize),
    /// A range of the basis: its offset and its length.
    Copy(u64, usize),
}

impl Part {
    /// Returns how many bytes of the source it covers.
    pub fn len(self) -> usize {
        match self {
            Part::Literal(len) | Part::Copy(_, len) => len,
        }
    }
}

/// A piece of the source.
#[derive(Debug, Clone, Copy)]
pub struct SourceRange<'a> {
    /// Its bytes, followed by those that a match may extend into: one row of blocks behind the last position to search,
    /// or fewer if the source ends there.
    pub bytes: &'a [u8],
    /// The offset of the first byte in the source.
    pub offset: u64,
    /// How many positions at the beginning to search; a match at one of them may end behind them.
    pub positions: usize,
}

/// Searches a source, stretch by stretch.
#[derive(Debug)]
pub struct BlockScanner<'a> {
    index: &'a Index<'a>,
    block_len: usize,
    /// Copies only blocks at or behind their destination offset: see [`super::search()`].
    in_place: bool,
    /// The shifts at which matches are expected, as basis offset minus source offset: the last two successful ones, the
    /// latest first; zero; and the one that aligns both ends.
    shifts: [i64; EXPECTED_PLACES],
    /// Where the last match ended in the basis.
    basis_end: u64,
    /// How many bytes may still be summed in vain.
    ///
    /// A tag that occurs at many positions but belongs to a block with different followers, such as a periodic source
    /// whose period the basis contains once, would cost the sum of a block per byte. So would a signature crafted for
    /// that. Without credit, blocks are found only at expected offsets.
    credit: i64,
    /// How much credit each scanned byte adds.
    credit_per_byte: i64,
}

/// A block found at a position.
#[derive(Debug, Clone, Copy)]
struct BlockMatch {
    block: usize,
    shift: i64,
}

impl<'a> BlockScanner<'a> {
    /// Creates a scanner for a source of about `source_len` bytes.
    pub fn new(index: &'a Index<'a>, source_len: u64, in_place: bool) -> BlockScanner<'a> {
        let signature = index.signature();
        // Lengths beyond i64 do not exist. A hint can have any value; a wrong shift just never matches.
        let at_the_end = signature.covered_len().wrapping_sub(source_len) as i64;
        // How many bytes are summed per byte because of chance tag matches: few in practice. The bound limits what a
        // malicious peer can cause.
        let by_chance = signature
            .covered_len()
            .checked_shr(8 * signature.tag_len() as u32)
            .unwrap_or(0)
            .min(40);
        BlockScanner {
            index,
            block_len: signature.block_len() as usize,
            in_place,
            shifts: [0, 0, 0, at_the_end],
            basis_end: 0,
            credit: CREDIT_AT_FIRST_BYTES,
            credit_per_byte: 2 + 2 * by_chance as i64,
        }
    }

    /// Appends the parts of the stretch, from its beginning to at least the last position to search. Returns the number
    /// of bytes covered; the next stretch begins behind them.
    pub fn scan(&mut self, range: SourceRange<'_>, parts: &mut Vec<Part>) -> usize {
        let mut at = 0;
        while at < range.positions {
            let found = match self.expected(range, at, None) {
                Some(found) => Some((at, found)),
                None => self.seek(range, at),
            };
            let (until, matched) = match found {
                Some((position, matched)) => (position, Some(matched)),
                None => (range.positions, None),
            };
            push(parts, Part::Literal(until - at));
            at = until;
            if let Some(matched) = matched {
                if let Some(skipped) = self.until_staying(range, at, matched.shift) {
                    push(parts, Part::Literal(skipped));
                    at += skipped;
                    continue;
                }
                at += self.take(matched, parts);
            }
        }
        at
    }

    /// Returns the block at this position, if it is expected here. `sum` is the sum of a full block here, if known.
    fn expected(&self, range: SourceRange<'_>, at: usize, sum: Option<Sum>) -> Option<BlockMatch> {
        let signature = self.index.signature();
        let mut full_tag = None;
        // A block that stays where it is need not be written.
        let staying = if self.in_place { Some(0) } else { None };
        for shift in staying
            .into_iter()
            .chain(self.shifts)
            .filter(|shift| !self.in_place || *shift >= 0)
        {
            let Some(basis_offset) = (range.offset + at as u64).checked_add_signed(shift) else {
                continue;
            };
            if basis_offset % self.block_len as u64 != 0 || basis_offset >= signature.covered_len()
            {
                continue;
            }
            let block = (basis_offset / self.block_len as u64) as usize;
            let len = self.len_of(block);
            let Some(bytes) = range.bytes.get(at..at + len) else {
                continue;
            };
            let tag = if len == self.block_len {
                *full_tag
                    .get_or_insert_with(|| self.tag(sum.unwrap_or_else(|| Sum::from_bytes(bytes))))
            } else {
                self.tag(Sum::from_bytes(bytes))
            };
            if tag == signature.tags()[block] {
                return Some(BlockMatch { block, shift });
            }
        }
        None
    }

    /// Returns how many bytes are before the next block that can stay where it is, instead of a match with this shift.
    /// Otherwise, a change among equal blocks, such as zeros, would move all that are behind it.
    fn until_staying(&self, range: SourceRange<'_>, at: usize, shift: i64) -> Option<usize> {
        if !self.in_place || shift == 0 {
            return None;
        }
        let position = range.offset + at as u64;
        let offset = position.next_multiple_of(self.block_len as u64);
        let skipped = (offset - position) as usize;
        let block = usize::try_from(offset / self.block_len as u64).ok()?;
        let bytes = range.bytes.get(at + skipped..)?.get(..self.block_len)?;
        let can_stay = skipped > 0
            && block < self.index.full_blocks()
            && self.tag(Sum::from_bytes(bytes)) == self.index.signature().tags()[block];
        if can_stay { Some(skipped) } else { None }
    }

    /// Returns the first position to search from `from` on at which a block is found, and the block.
    fn seek(&mut self, range: SourceRange<'_>, from: usize) -> Option<(usize, BlockMatch)> {
        if self.index.full_blocks() == 0 {
            return self.match_last_block(range, from);
        }
        let mut rolling = Rolling::new(range.bytes, self.block_len, from);
        let mut gone_past = from;
        let mut due = from;
        while let Some((at, sum)) = rolling.find(range.positions, |sum| self.index.may_have(sum)) {
            self.credit += (at - gone_past) as i64 * self.credit_per_byte;
            gone_past = at;
            if due < at {
                due = self.due(range, at);
            }
            let expected = if due == at {
                self.expected(range, at, Some(sum))
            } else {
                None
            };
            if let Some(found) = expected.or_else(|| self.anywhere(range, at, sum)) {
                return Some((at, found));
            }
            rolling.skip();
        }
        self.credit += range.positions.saturating_sub(gone_past) as i64 * self.credit_per_byte;
        self.match_last_block(range, from)
    }

    /// Returns the first position from `from` on at which a full block is expected.
    fn due(&self, range: SourceRange<'_>, from: usize) -> usize {
        let position = i128::from(range.offset) + from as i128;
        let to_the_next = |shift: i64| {
            (-(position + i128::from(shift))).rem_euclid(self.block_len as i128) as usize
        };
        from + self.shifts.map(to_the_next).into_iter().min().unwrap_or(0)
    }

    /// Finds a block at an unexpected offset. A whole row must match, see [`Index::row`].
    fn anywhere(&mut self, range: SourceRange<'_>, at: usize, sum: Sum) -> Option<BlockMatch> {
        if self.credit < 0 {
            return None;
        }
        let mut blocks = self.index.with_tag(self.tag(sum));
        for nth in 1..self.index.row() {
            if blocks.is_empty() {
                return None;
            }
            let bytes = range.bytes[at + nth * self.block_len..].get(..self.block_len)?;
            self.credit -= self.block_len as i64;
            blocks = self
                .index
                .narrow(blocks, nth, self.tag(Sum::from_bytes(bytes)));
        }
        let position = range.offset + at as u64;
        let from =
            |offset: u64| blocks.partition_point(|block| self.offset_of(*block as usize) < offset);
        let allowed = if self.in_place { from(position) } else { 0 };
        // Among identical blocks, prefers the next one behind the last match: what follows is more likely to match.
        let block = *blocks
            .get(allowed.max(from(self.basis_end)))
            .or(blocks.get(allowed))? as usize;
        self.credit += ((self.index.row() - 1) * self.block_len) as i64;
        Some(BlockMatch {
            block,
            shift: self.offset_of(block) as i64 - position as i64,
        })
    }

    /// Matches the last block at the end of the source, if it is shorter than the others and cannot be found by
    /// rolling. Where the source goes on, a whole row is behind the positions to search, and the block is never at one
    /// of them.
    fn match_last_block(&self, range: SourceRange<'_>, from: usize) -> Option<(usize, BlockMatch)> {
        let block = self.index.full_blocks();
        let tag = self.index.signature().tags().get(block)?;
        let at = range.bytes.len().checked_sub(self.len_of(block))?;
        let shift = self.offset_of(block) as i64 - (range.offset + at as u64) as i64;
        let is_searched = (from..range.positions).contains(&at);
        let is_allowed = !self.in_place || shift >= 0;
        if is_searched && is_allowed && self.tag(Sum::from_bytes(&range.bytes[at..])) == *tag {
            Some((at, BlockMatch { block, shift }))
        } else {
            None
        }
    }

    /// Appends a match and returns its length.
    fn take(&mut self, matched: BlockMatch, parts: &mut Vec<Part>) -> usize {
        let offset = self.offset_of(matched.block);
        let len = self.len_of(matched.block);
        if matched.shift != self.shifts[0] {
            self.shifts[1] = self.shifts[0];
            self.shifts[0] = matched.shift;
        }
        self.basis_end = offset + len as u64;
        push(parts, Part::Copy(offset, len));
        len
    }

    /// Returns the tag for this sum.
    fn tag(&self, sum: Sum) -> Tag {
        Tag::from_sum(sum, self.index.signature().tag_len())
    }

    /// Returns the offset of a block in the basis.
    fn offset_of(&self, block: usize) -> u64 {
        block as u64 * self.block_len as u64
    }

    /// Returns the length of a block.
    fn len_of(&self, block: usize) -> usize {
        (self.index.signature().covered_len() - self.offset_of(block)).min(self.block_len as u64)
            as usize
    }
}

/// Appends a part, or extends the last one if the part continues it.
fn push(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), part) {
        (_, Part::Literal(0)) => {}
        (Some(Part::Literal(before)), Part::Literal(len)) => *before += len,
        (Some(Part::Copy(offset, before)), Part::Copy(next, len))
            if *offset + *before as u64 == next =>
        {
            *before += len
        }
        _ => parts.push(part),
    }
}

#[cfg(test)]
mod tests {
    use super::super::signature::Signature;
    use super::*;

    const BLOCK: usize = 64;

    /// Bytes without equal blocks.
    fn noise(len: usize, seed: u32) -> Vec<u8> {
        let bytes = (0..len as u32).map(|at| at.wrapping_add(seed).wrapping_mul(0x9e37_79b1));
        bytes
            .map(|mixed| (mixed >> 24) as u8 ^ (mixed >> 11) as u8)
            .collect()
    }

    fn signature(basis: &[u8]) -> Signature {
        let read_at = |offset: u64, buffer: &mut [u8]| {
            let rest = &basis[offset as usize..];
            let len = rest.len().min(buffer.len());
            buffer[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        };
        Signature::read(basis.len() as u64, BLOCK as u32, 1, &read_at).unwrap()
    }

    /// A stretch of which each position with a whole block behind it is searched.
    fn range(bytes: &[u8], offset: u64) -> SourceRange<'_> {
        SourceRange {
            bytes,
            offset,
            positions: bytes.len() - BLOCK + 1,
        }
    }

    #[test]
    fn credit_grows_with_the_bytes_without_a_match() {
        let signature = signature(&noise(10 * BLOCK, 1));
        let index = Index::new(&signature, 1000);
        let mut scanner = BlockScanner::new(&index, 1000, false);
        // Some positions look like a block to the filters; none has one.
        let source = noise(20_000, 0x5000_0000);
        let range = range(&source, 0);
        let seeming = (0..range.positions)
            .filter(|at| index.may_have(Sum::from_bytes(&source[*at..at + BLOCK])));
        assert!(seeming.count() > 10);
        let before = scanner.credit;
        assert!(scanner.seek(range, 100).is_none());
        let scanned = (range.positions - 100) as i64;
        assert_eq!(scanner.credit - before, scanned * scanner.credit_per_byte);
        assert!(scanner.credit_per_byte > 1);
    }

    #[test]
    fn match_is_found_behind_unknown_bytes_for_the_credit_of_them() {
        let basis = noise(10 * BLOCK, 1);
        let signature = signature(&basis);
        let index = Index::new(&signature, 1000);
        let source = [&noise(99, 0x5000_0000)[..], &basis[3 * BLOCK..8 * BLOCK]].concat();
        let range = range(&source, 0);
        let find = |credit: i64, in_place: bool| {
            let mut scanner = BlockScanner::new(&index, source.len() as u64, in_place);
            scanner.shifts = [0; 4];
            scanner.credit = credit;
            let found = scanner.seek(range, 0);
            (found.map(|(at, found)| (at, found.block)), scanner)
        };
        let (found, scanner) = find(0, false);
        assert_eq!(found, Some((99, 3)));
        assert_eq!(scanner.credit, 99 * scanner.credit_per_byte);
        // Without credit, only blocks at expected offsets are found.
        let (found, _) = find(-1_000_000, false);
        assert_eq!(found, None);
        let (found, _) = find(-99 * scanner.credit_per_byte, false);
        assert_eq!(found, Some((99, 3)));
        // The next block comes when there is credit again.
        let (found, _) = find(-99 * scanner.credit_per_byte - 1, false);
        assert_eq!(found, Some((99 + BLOCK, 4)));
    }

    #[test]
    fn followers_are_summed_for_credit() {
        let basis = noise(10 * BLOCK, 1);
        let signature = signature(&basis);
        let index = Index::new(&signature, 1 << 50);
        assert!(index.row() > 1);
        let at_once = |source: &[u8]| {
            let mut scanner = BlockScanner::new(&index, 1 << 50, false);
            let before = scanner.credit;
            let sum = Sum::from_bytes(&source[..BLOCK]);
            let found = scanner.anywhere(range(source, 0), 0, sum);
            (found.map(|found| found.block), scanner.credit - before)
        };
        assert_eq!(at_once(&basis[3 * BLOCK..9 * BLOCK]), (Some(3), 0));
        let other = noise(6 * BLOCK, 0x5000_0000);
        let followed_by_other = [&basis[3 * BLOCK..4 * BLOCK], &other].concat();
        assert_eq!(at_once(&followed_by_other), (None, -(BLOCK as i64)));
    }

    #[test]
    fn equal_block_behind_the_last_match_is_preferred() {
        let block = noise(BLOCK, 1);
        let signature = signature(&block.repeat(6));
        let index = Index::new(&signature, 100);
        let mut scanner = BlockScanner::new(&index, 100, false);
        let mut parts = Vec::new();
        let taken = BlockMatch { block: 2, shift: 7 };
        assert_eq!(scanner.take(taken, &mut parts), BLOCK);
        assert_eq!(scanner.basis_end, 3 * BLOCK as u64);
        let sum = Sum::from_bytes(&block);
        let source = block.repeat(4);
        let found = scanner.anywhere(range(&source, 0), 0, sum);
        assert_eq!(found.map(|found| found.block), Some(3));
    }

    #[test]
    fn parts_that_continue_each_other_are_joined() {
        let mut parts = Vec::new();
        for part in [
            Part::Literal(0),
            Part::Literal(1),
            Part::Literal(2),
            Part::Copy(5, 10),
            Part::Literal(0),
            Part::Copy(15, 1),
            Part::Copy(15, 1),
            Part::Literal(4),
        ] {
            push(&mut parts, part);
        }
        let expected = [
            Part::Literal(3),
            Part::Copy(5, 11),
            Part::Copy(15, 1),
            Part::Literal(4),
        ];
        assert_eq!(parts, expected);
    }

    #[test]
    fn block_is_due_at_the_next_offset_of_any_shift() {
        let basis = noise(10 * BLOCK, 1);
        let signature = signature(&basis);
        let index = Index::new(&signature, 1000);
        let mut scanner = BlockScanner::new(&index, 1000, false);
        for (shifts, offset, from, expected) in [
            ([0, 0, 0, 0], 0, 0, 0),
            ([0, 0, 0, 0], 0, 1, 64),
            ([0, 0, 0, 0], 10, 5, 54),
            ([0, 0, 0, 3], 10, 5, 51),
            ([0, -20, 0, 0], 10, 5, 10),
            ([7, 7, 7, 7], 50, 7, 7),
        ] {
            scanner.shifts = shifts;
            let source = vec![0; 1000];
            let due = scanner.due(range(&source, offset), from);
            assert_eq!(due, expected, "{shifts:?} {offset} {from}");
        }
    }

    #[test]
    fn block_that_can_stay_is_preferred_in_place() {
        let basis = noise(10 * BLOCK, 1);
        let signature = signature(&basis);
        let index = Index::new(&signature, 1000);
        let staying = |in_place, at, shift| {
            let scanner = BlockScanner::new(&index, 1000, in_place);
            scanner.until_staying(range(&basis, 0), at, shift)
        };
        assert_eq!(staying(true, BLOCK + 1, 9), Some(BLOCK - 1));
        assert_eq!(staying(false, BLOCK + 1, 9), None);
        assert_eq!(staying(true, BLOCK + 1, 0), None);
        // The block itself is at its place.
        assert_eq!(staying(true, BLOCK, 9), None);
        let last = 9 * BLOCK - 1;
        assert_eq!(staying(true, last, 9), Some(1));
        assert_eq!(staying(true, last + 2, 9), None);
        // Another part of the source.
        let scanner = BlockScanner::new(&index, 1000, true);
        let moved = range(&basis[2 * BLOCK..], 2 * BLOCK as u64);
        assert_eq!(scanner.until_staying(moved, 1, 9), Some(BLOCK - 1));
        // The source is longer than the basis.
        let longer = [&basis[..], &basis].concat();
        let behind = scanner.until_staying(range(&longer, 0), 9 * BLOCK + 1, 9);
        assert_eq!(behind, None);
    }

    #[test]
    fn lone_block_is_found_where_it_is_expected() {
        let basis = noise(10 * BLOCK, 1);
        let signature = signature(&basis);
        // A lone block is enough for a short source. A long one may have the tag of a block by chance.
        for (source_len, row, elsewhere) in [(1, 1, Some((100, 3))), (1 << 50, 2, None)] {
            let index = Index::new(&signature, source_len);
            assert_eq!(index.row(), row);
            let seek = |at: usize| {
                let mut source = noise(1000, 0x5000_0000);
                source[at..at + BLOCK].copy_from_slice(&basis[3 * BLOCK..4 * BLOCK]);
                let mut scanner = BlockScanner::new(&index, source_len, false);
                let found = scanner.seek(range(&source, 0), 1);
                found.map(|(at, found)| (at, found.block))
            };
            assert_eq!(seek(3 * BLOCK), Some((3 * BLOCK, 3)));
            assert_eq!(seek(100), elsewhere);
        }
    }

    /// The last block is shorter, and begins like the first one.
    #[test]
    fn short_block_is_expected_where_a_full_one_seems_to_be() {
        let full = noise(BLOCK, 1);
        let signature = signature(&[&full[..], &full[..30]].concat());
        let index = Index::new(&signature, 1000);
        let source = full.repeat(3);
        let sum = Sum::from_bytes(&full);
        for (shift, sum, expected) in [
            (0, Some(sum), Some(0)),
            (0, None, Some(0)),
            (BLOCK as i64, Some(sum), Some(1)),
            (BLOCK as i64, None, Some(1)),
            (2 * BLOCK as i64, Some(sum), None),
        ] {
            let mut scanner = BlockScanner::new(&index, 1000, false);
            scanner.shifts = [shift; 4];
            let found = scanner.expected(range(&source, 0), 0, sum);
            assert_eq!(found.map(|found| found.block), expected, "{shift} {sum:?}");
        }
    }

    /// The last block is shorter than the others. It is 30 bytes long and at 640 in the basis.
    #[test]
    fn last_block_is_found_at_the_end_of_the_source() {
        let basis = noise(10 * BLOCK + 30, 1);
        let signature = signature(&basis);
        let index = Index::new(&signature, 1000);
        let at_the_end = |before: usize, from: usize, positions: usize, in_place: bool| {
            let source = [&noise(before, 0x5000_0000)[..], &basis[10 * BLOCK..]].concat();
            let range = SourceRange {
                bytes: &source,
                offset: 0,
                positions,
            };
            let scanner = BlockScanner::new(&index, 1000, in_place);
            let found = scanner.match_last_block(range, from);
            found.map(|(at, found)| (at, found.block, found.shift))
        };
        for (before, from, positions, in_place, expected) in [
            (100, 0, 130, false, Some((100, 10, 540))),
            (100, 100, 101, false, Some((100, 10, 540))),
            // Another part of the source has it.
            (100, 101, 130, false, None),
            (100, 0, 100, false, None),
            // In place, it moves only to the front.
            (100, 0, 130, true, Some((100, 10, 540))),
            (640, 0, 670, true, Some((640, 10, 0))),
            (641, 0, 671, true, None),
            (641, 0, 671, false, Some((641, 10, -1))),
        ] {
            let found = at_the_end(before, from, positions, in_place);
            assert_eq!(found, expected, "{before} {from} {positions} {in_place}");
        }
    }
}

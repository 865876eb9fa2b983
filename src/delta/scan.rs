//! Finds the blocks of a basis in a stretch of the source that is in memory.

use super::block::EXPECTED_PLACES;
use super::index::Index;
use super::rolling::{Rolling, Sum};
use super::signature::Tag;

/// How many bytes may be summed up in vain at first; see `Scanner::credit`.
const CREDIT_AT_FIRST_BYTES: i64 = 1 << 20;

/// What a part of the source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// So many bytes that the basis has not, as far as is known.
    Literal(usize),
    /// A range of the basis: where it begins, and its length.
    Copy(u64, usize),
}

impl Part {
    /// How many bytes of the source it is.
    pub fn len(self) -> usize {
        match self {
            Part::Literal(len) | Part::Copy(_, len) => len,
        }
    }
}

/// A piece of the source.
#[derive(Debug, Clone, Copy)]
pub struct Stretch<'a> {
    /// Its bytes, and those that a match may reach into: a row of blocks behind each position that counts.
    pub bytes: &'a [u8],
    /// Where the first of them is in the source.
    pub offset: u64,
    /// How many positions at its beginning count; a match that begins at one of them may end behind.
    pub positions: usize,
    /// Nothing follows in the source.
    pub is_end: bool,
}

/// Goes through a source, stretch by stretch.
#[derive(Debug)]
pub struct Scanner<'a> {
    index: &'a Index<'a>,
    block_len: usize,
    /// Only what lies at or behind its place in the source may be copied: see [`super::search()`].
    in_place: bool,
    /// Where matches are expected: how much further on in the basis than in the source. The last two that were of use,
    /// the latest first; none at all; and the one with which both end together.
    shifts: [i64; EXPECTED_PLACES],
    /// Where the last match ended in the basis.
    basis_end: u64,
    /// How many bytes may be summed up in vain. A tag that many positions have, and that belongs to a block whose
    /// followers differ, like a period in the source that the basis has once, would cost a block's sum for every byte; so
    /// would a signature that is made for it. Without credit, blocks are found only where they are expected.
    credit: i64,
    /// How much credit a byte brings that is gone past.
    credit_per_byte: i64,
}

/// A block that is at a position.
#[derive(Debug, Clone, Copy)]
struct Match {
    block: usize,
    shift: i64,
}

impl<'a> Scanner<'a> {
    /// For a source of about `source_len` bytes.
    pub fn new(index: &'a Index<'a>, source_len: u64, in_place: bool) -> Scanner<'a> {
        let signature = index.signature();
        // Lengths beyond i64 do not exist; a hint may say anything, and a wrong shift only matches nothing.
        let at_the_end = signature.covered_len().wrapping_sub(source_len) as i64;
        // So much is summed up for a byte because its tag is by chance that of a block: not much for what can be expected
        // in earnest, and a peer shall not ask for more.
        let by_chance = signature.covered_len().checked_shr(8 * signature.tag_len() as u32).unwrap_or(0).min(40);
        Scanner {
            index,
            block_len: signature.block_len() as usize,
            in_place,
            shifts: [0, 0, 0, at_the_end],
            basis_end: 0,
            credit: CREDIT_AT_FIRST_BYTES,
            credit_per_byte: 2 + 2 * by_chance as i64,
        }
    }

    /// Adds what the stretch is, from its beginning up to at least all positions that count. Returns how many bytes
    /// that is; the next stretch begins behind.
    pub fn scan(&mut self, stretch: Stretch<'_>, parts: &mut Vec<Part>) -> usize {
        let mut at = 0;
        while at < stretch.positions {
            let found = match self.expected(stretch, at, None) {
                Some(found) => Some((at, found)),
                None => self.seek(stretch, at),
            };
            let (until, matched) = match found {
                Some((position, matched)) => (position, Some(matched)),
                None => (stretch.positions, None),
            };
            push(parts, Part::Literal(until - at));
            at = until;
            if let Some(matched) = matched {
                at += self.take(matched, parts);
            }
        }
        at
    }

    /// The block that is at a position where one is expected. The sum is that of a full block here, where it is known.
    fn expected(&self, stretch: Stretch<'_>, at: usize, sum: Option<Sum>) -> Option<Match> {
        let signature = self.index.signature();
        let mut full_tag = None;
        for shift in self.shifts.into_iter().filter(|shift| !self.in_place || *shift >= 0) {
            let Some(basis_offset) = (stretch.offset + at as u64).checked_add_signed(shift) else { continue };
            if basis_offset % self.block_len as u64 != 0 || basis_offset >= signature.covered_len() {
                continue;
            }
            let block = (basis_offset / self.block_len as u64) as usize;
            let len = self.len_of(block);
            let Some(bytes) = stretch.bytes.get(at..at + len) else { continue };
            let tag = match len == self.block_len {
                true => *full_tag.get_or_insert_with(|| self.tag(sum.unwrap_or_else(|| Sum::of(bytes)))),
                false => self.tag(Sum::of(bytes)),
            };
            if tag == signature.tags()[block] {
                return Some(Match { block, shift });
            }
        }
        None
    }

    /// The first position from `from` on, of those that count, at which a block is found, and the block.
    fn seek(&mut self, stretch: Stretch<'_>, from: usize) -> Option<(usize, Match)> {
        if self.index.full_blocks() == 0 {
            return self.rest_at_the_end(stretch, from);
        }
        let mut rolling = Rolling::new(stretch.bytes, self.block_len, from);
        let (mut gone_past, mut due) = (from, from);
        while let Some((at, sum)) = rolling.find(stretch.positions, |sum| self.index.may_have(sum)) {
            self.credit += (at - gone_past) as i64 * self.credit_per_byte;
            gone_past = at;
            if due < at {
                due = self.due(stretch, at);
            }
            let expected = if due == at { self.expected(stretch, at, Some(sum)) } else { None };
            if let Some(found) = expected.or_else(|| self.anywhere(stretch, at, sum)) {
                return Some((at, found));
            }
            rolling.skip();
        }
        self.credit += stretch.positions.saturating_sub(gone_past) as i64 * self.credit_per_byte;
        self.rest_at_the_end(stretch, from)
    }

    /// The first position from `from` on at which a full block is expected.
    fn due(&self, stretch: Stretch<'_>, from: usize) -> usize {
        let here = i128::from(stretch.offset) + from as i128;
        let to_the_next = |shift: i64| (-(here + i128::from(shift))).rem_euclid(self.block_len as i128) as usize;
        from + self.shifts.map(to_the_next).into_iter().min().unwrap_or(0)
    }

    /// The block at a position where none is expected: a whole row must match, see [`Index::row`].
    fn anywhere(&mut self, stretch: Stretch<'_>, at: usize, sum: Sum) -> Option<Match> {
        if self.credit < 0 {
            return None;
        }
        let mut blocks = self.index.with_tag(self.tag(sum));
        for nth in 1..self.index.row() {
            if blocks.is_empty() {
                return None;
            }
            let bytes = stretch.bytes[at + nth * self.block_len..].get(..self.block_len)?;
            self.credit -= self.block_len as i64;
            blocks = self.index.narrow(blocks, nth, self.tag(Sum::of(bytes)));
        }
        let here = stretch.offset + at as u64;
        let from = |offset: u64| blocks.partition_point(|block| self.offset_of(*block as usize) < offset);
        let allowed = if self.in_place { from(here) } else { 0 };
        // Of blocks that are the same, the next one behind the last match: what follows is the more likely to match.
        let block = *blocks.get(allowed.max(from(self.basis_end))).or(blocks.get(allowed))? as usize;
        self.credit += ((self.index.row() - 1) * self.block_len) as i64;
        Some(Match { block, shift: self.offset_of(block) as i64 - here as i64 })
    }

    /// The last block at the end of the source, if it is shorter than the others: it cannot be found by rolling.
    fn rest_at_the_end(&self, stretch: Stretch<'_>, from: usize) -> Option<(usize, Match)> {
        let block = self.index.full_blocks();
        let tag = self.index.signature().tags().get(block)?;
        let at = stretch.bytes.len().checked_sub(self.len_of(block))?;
        let shift = self.offset_of(block) as i64 - (stretch.offset + at as u64) as i64;
        let counts = stretch.is_end && at >= from && at < stretch.positions && !(self.in_place && shift < 0);
        (counts && self.tag(Sum::of(&stretch.bytes[at..])) == *tag).then_some((at, Match { block, shift }))
    }

    /// Adds a match; returns its length.
    fn take(&mut self, matched: Match, parts: &mut Vec<Part>) -> usize {
        let (offset, len) = (self.offset_of(matched.block), self.len_of(matched.block));
        if matched.shift != self.shifts[0] {
            self.shifts[1] = self.shifts[0];
            self.shifts[0] = matched.shift;
        }
        self.basis_end = offset + len as u64;
        push(parts, Part::Copy(offset, len));
        len
    }

    /// The tag of what has this sum.
    fn tag(&self, sum: Sum) -> Tag {
        Tag::of(sum, self.index.signature().tag_len())
    }

    /// Where a block begins in the basis.
    fn offset_of(&self, block: usize) -> u64 {
        block as u64 * self.block_len as u64
    }

    /// How long a block is.
    fn len_of(&self, block: usize) -> usize {
        (self.index.signature().covered_len() - self.offset_of(block)).min(self.block_len as u64) as usize
    }
}

/// Adds a part to those before it, or to the last of them if it goes on where that ends.
fn push(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), part) {
        (_, Part::Literal(0)) => {}
        (Some(Part::Literal(before)), Part::Literal(len)) => *before += len,
        (Some(Part::Copy(offset, before)), Part::Copy(next, len)) if *offset + *before as u64 == next => *before += len,
        _ => parts.push(part),
    }
}

//! Finds the blocks of a basis in a file by their rolling and strong sums.

use super::block_sums::{RollingSum, Sums};
use super::decode_error::Result;
use super::item::{BlockSum, SumHead};
use crate::delta::Op;
use crate::digest::{CONTENT_LEN_BYTES, ContentHasher};
use std::collections::{HashMap, HashSet};
use std::io;

/// How much of the file is read at a time, at least.
const READ_BYTES: usize = 256 << 10;
/// The longest literal that is passed on at once.
const LITERAL_BYTES: usize = 32 << 10;

/// How many strong sums a search may compute for each length of a block that it has searched, and how many more.
///
/// Data that is found costs one, in place two. Files have few windows with the rolling sum of a block that they do not contain. But the peer chooses the sums of its
/// request: without a limit, a rolling sum that occurs everywhere, as in a file of equal bytes, would cost the strong sum
/// of a block for every byte.
const STRONG_SUMS_PER_BLOCK: u64 = 4;
const STRONG_SUMS_MORE: u64 = 64;

/// After how many blocks in a row that are copied to another place, although a block behind them could stay where it is,
/// the search goes on with the latter. Otherwise, a change among equal blocks, such as zeros, would move all that are
/// behind it. The bytes up to that block are sent, so short runs of equal blocks are moved.
const MOVED_IN_A_ROW: u32 = 16;

/// Takes a part of a file, with its bytes.
pub type Emit<'a> = dyn FnMut(Op<'_>, &[u8]) -> io::Result<()> + 'a;

/// The blocks of a basis, by their sums.
pub struct BlockIndex {
    head: SumHead,
    sums: Sums,
    blocks: Vec<BlockSum>,
    /// The numbers of the blocks, sorted by both sums, then by number. However many blocks a peer gives one rolling sum,
    /// one binary search finds the block with a strong sum.
    sorted: Vec<u32>,
    /// The rolling sums of all blocks.
    rolling_sums: HashSet<u32>,
    /// The low halves of all rolling sums: most positions of a file match none.
    is_used: Vec<bool>,
}

impl BlockIndex {
    /// Decodes a request: its head, and the sums of its blocks.
    pub fn decode(mut request: &[u8], sums: Sums, protocol: u8) -> Result<BlockIndex> {
        let head = SumHead::decode(&mut request, protocol)?;
        let count = u32::try_from(head.count).unwrap_or(0);
        let mut blocks = Vec::new();
        for _ in 0..count {
            blocks.push(BlockSum::decode(&mut request, &head)?);
        }
        let mut sorted: Vec<u32> = (0..count).collect();
        sorted.sort_unstable_by_key(|&number| (blocks[number as usize], number));
        let mut is_used = vec![false; 1 << 16];
        for block in &blocks {
            is_used[(block.rolling & 0xffff) as usize] = true;
        }
        let rolling_sums = blocks.iter().map(|block| block.rolling).collect();
        Ok(BlockIndex {
            head,
            sums,
            blocks,
            sorted,
            rolling_sums,
            is_used,
        })
    }

    /// Searches a file, and passes its parts in order to `emit`. `in_place`: the receiver writes
    /// over the basis, so only blocks that are still there may be used. Returns the digest of the whole file.
    pub fn search(
        &self,
        in_place: bool,
        read_at: &dyn Fn(u64, &mut [u8]) -> io::Result<usize>,
        emit: &mut Emit<'_>,
    ) -> io::Result<[u8; CONTENT_LEN_BYTES]> {
        self.search_counted(in_place, read_at, emit, &mut 0)
    }

    /// As [`BlockIndex::search`], also counts the strong sums that are computed.
    fn search_counted(
        &self,
        in_place: bool,
        read_at: &dyn Fn(u64, &mut [u8]) -> io::Result<usize>,
        emit: &mut Emit<'_>,
        strong_sums: &mut u64,
    ) -> io::Result<[u8; CONTENT_LEN_BYTES]> {
        let mut hasher = ContentHasher::new(self.sums.digested_by());
        let block_len = self.head.block_len_bytes.max(1) as usize;
        let mut buffer = Vec::new();
        // The file offset of the buffer's first byte; in the buffer, where the pending literal begins, and the window.
        let mut offset = 0u64;
        let mut literal = 0usize;
        let mut at = 0usize;
        let mut is_end = false;
        let mut rolling: Option<RollingSum> = None;
        // The block after the last match is the most likely next one.
        let mut expected = None;
        let mut moved_in_a_row = 0;
        let mut gone = in_place.then(|| Gone {
            before: 0,
            kept: vec![false; self.blocks.len()],
            kept_by_sum: HashMap::new(),
        });
        loop {
            // Behind a window, `until_staying` looks at one more block.
            if !is_end && buffer.len() - at <= 2 * block_len {
                emit_literal(&buffer[literal..at], emit)?;
                buffer.drain(..at);
                offset += at as u64;
                (literal, at) = (0, 0);
                let start = buffer.len();
                buffer.resize(start + READ_BYTES.max(block_len), 0);
                let got = read_at(offset + start as u64, &mut buffer[start..])?;
                buffer.truncate(start + got);
                hasher.update(&buffer[start..]);
                is_end = got == 0;
                continue;
            }
            let len = block_len.min(buffer.len() - at);
            if len == 0 || self.head.count == 0 {
                if is_end {
                    break;
                }
                at = buffer.len();
                continue;
            }
            let window = &buffer[at..at + len];
            let sum = *rolling.get_or_insert_with(|| RollingSum::new(window));
            let place = offset + at as u64;
            if let Some(gone) = &mut gone {
                gone.before = place;
            }
            let strong = self.strong_sum(sum.value(), window);
            *strong_sums += u64::from(strong.is_some());
            let found = strong.and_then(|sum| self.find(&sum, len, gone.as_ref(), expected));
            if let Some(number) = found {
                let (offset_bytes, _) = self.head.block(number).unwrap_or_default();
                if in_place && offset_bytes != place {
                    *strong_sums += 1;
                    let skipped = self.until_staying(&buffer[at..], place);
                    moved_in_a_row = skipped.map_or(0, |_| moved_in_a_row + 1);
                    if let Some(skipped) = skipped
                        && moved_in_a_row > MOVED_IN_A_ROW
                    {
                        moved_in_a_row = 0;
                        at += skipped;
                        rolling = None;
                        continue;
                    }
                }
                emit_literal(&buffer[literal..at], emit)?;
                emit(
                    Op::Copy {
                        offset_bytes,
                        len_bytes: len as u64,
                    },
                    window,
                )?;
                if let Some(gone) = &mut gone
                    && offset_bytes == place
                {
                    gone.keep(number, self.blocks[number as usize]);
                }
                at += len;
                literal = at;
                (rolling, expected) = (None, number.checked_add(1));
                continue;
            }
            let most = STRONG_SUMS_MORE + STRONG_SUMS_PER_BLOCK * (place / block_len as u64);
            if strong.is_some() && *strong_sums > most {
                // A block that begins inside this window is not found: its bytes are sent as they are.
                at += len;
                rolling = None;
            } else {
                let mut sum = sum;
                match buffer.get(at + len) {
                    Some(&appended) => sum.roll(buffer[at], appended),
                    // Behind the last full window only a shorter block can match.
                    None => sum.shrink(buffer[at]),
                }
                rolling = Some(sum);
                at += 1;
            }
            if at - literal >= LITERAL_BYTES {
                emit_literal(&buffer[literal..at], emit)?;
                literal = at;
            }
        }
        emit_literal(&buffer[literal..], emit)?;
        Ok(hasher.finish())
    }

    /// Returns how many bytes at this place of the file are before the next block that can stay where it is.
    fn until_staying(&self, bytes: &[u8], place: u64) -> Option<usize> {
        let block_len = u64::from(self.head.block_len_bytes.cast_unsigned()).max(1);
        let skipped = place.next_multiple_of(block_len) - place;
        if skipped == 0 {
            return None;
        }
        let number = usize::try_from((place + skipped) / block_len).ok()?;
        let block = self.blocks.get(number)?;
        let window = bytes.get(skipped as usize..)?.get(..block_len as usize)?;
        let is_same = RollingSum::new(window).value() == block.rolling
            && BlockSum::of_block(window, &self.head, &self.sums) == *block;
        if !is_same {
            return None;
        }
        Some(skipped as usize)
    }

    /// Returns both sums of a window of the file, if a block has its rolling sum.
    fn strong_sum(&self, rolling: u32, window: &[u8]) -> Option<BlockSum> {
        let may_match =
            self.is_used[(rolling & 0xffff) as usize] && self.rolling_sums.contains(&rolling);
        may_match.then(|| BlockSum {
            rolling,
            strong: BlockSum::strong_of(window, &self.head, &self.sums),
        })
    }

    /// Returns the block that equals a window of the file with these sums and this length.
    fn find(
        &self,
        sum: &BlockSum,
        len_bytes: usize,
        gone: Option<&Gone>,
        expected: Option<u32>,
    ) -> Option<u32> {
        let block_len = u64::from(self.head.block_len_bytes.cast_unsigned()).max(1);
        let is_same = |number: u32| {
            self.blocks.get(number as usize) == Some(sum)
                && self.head.block(number).is_some_and(|(offset, len)| {
                    len == len_bytes && gone.is_none_or(|gone| !gone.has(number, offset))
                })
        };
        // A block that stays where it is remains usable.
        let staying = gone
            .map(|gone| gone.before)
            .filter(|before| before.is_multiple_of(block_len))
            .and_then(|before| u32::try_from(before / block_len).ok());
        let kept = gone.and_then(|gone| gone.kept_by_sum.get(sum).copied());
        let preferred = [staying, expected, kept].into_iter().flatten();
        if let Some(number) = preferred.into_iter().find(|&number| is_same(number)) {
            return Some(number);
        }
        // Otherwise, the first block that has not been overwritten.
        let present = gone.map_or(0, |gone| gone.before.div_ceil(block_len));
        let first = self.sorted.partition_point(|&number| {
            (self.blocks[number as usize], u64::from(number)) < (*sum, present)
        });
        // The last block can be shorter, and a peer can give it the sums of a full one, or a full one its sums.
        let last = u32::try_from(self.blocks.len()).ok()?.checked_sub(1);
        let candidates = [self.sorted.get(first).copied(), last];
        candidates
            .into_iter()
            .flatten()
            .find(|&number| is_same(number))
    }
}

/// The blocks that a receiver has written over while it updates a file in place.
struct Gone {
    /// What has been written, in bytes.
    before: u64,
    /// The blocks that were written to their own place.
    kept: Vec<bool>,
    /// The first of these blocks with each sum.
    kept_by_sum: HashMap<BlockSum, u32>,
}

impl Gone {
    /// Records that a block was written to its own place.
    fn keep(&mut self, number: u32, sum: BlockSum) {
        self.kept[number as usize] = true;
        self.kept_by_sum.entry(sum).or_insert(number);
    }

    /// Whether a block at an offset has been overwritten.
    fn has(&self, number: u32, offset: u64) -> bool {
        offset < self.before && !self.kept[number as usize]
    }
}

fn emit_literal(literal: &[u8], emit: &mut Emit<'_>) -> io::Result<()> {
    literal
        .chunks(LITERAL_BYTES)
        .try_for_each(|piece| emit(Op::Data(piece), piece))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Checksum;
    use proptest::prelude::*;
    use std::cell::Cell;

    const SUMS: Sums = Sums {
        checksum: Checksum::Xxh128,
        seed: 7,
        is_seed_first: true,
        is_implied: false,
    };

    /// What a search of `new` for blocks of `old` found.
    struct Found {
        /// The file that the receiver makes of it.
        out: Vec<u8>,
        /// The lengths of all literals as they are passed on.
        literals: Vec<usize>,
        literal_bytes: usize,
        /// The bytes that are copied to another place.
        moved_bytes: usize,
        strong_sums: u64,
    }

    /// Searches `new` for blocks of `old`, and rebuilds it from the result. A read returns at most `read_max_bytes`.
    fn search_by_reads(
        old: &[u8],
        new: &[u8],
        block_len: u32,
        in_place: bool,
        read_max_bytes: usize,
    ) -> Found {
        let head = SumHead::of_basis(old.len() as u64, Some(block_len), &SUMS, 32, false).unwrap();
        let mut request = Vec::new();
        head.encode(&mut request);
        for block in old.chunks(block_len as usize) {
            BlockSum::of_block(block, &head, &SUMS).encode(&head, &mut request);
        }
        let index = BlockIndex::decode(&request, SUMS, 32).unwrap();
        let emitted_bytes = Cell::new(0);
        let read_at = |offset: u64, into: &mut [u8]| {
            // Memory is bounded: two blocks that were read before, and what one read adds.
            let held_bytes = offset as usize + into.len() - emitted_bytes.get();
            assert!(held_bytes <= READ_BYTES + 2 * block_len as usize);
            let rest = &new[(offset as usize).min(new.len())..];
            let len = rest.len().min(into.len()).min(read_max_bytes);
            into[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        };
        let mut found = Found {
            out: Vec::new(),
            literals: Vec::new(),
            literal_bytes: 0,
            moved_bytes: 0,
            strong_sums: 0,
        };
        let mut basis = old.to_vec();
        let mut emit = |op: Op<'_>, _: &[u8]| {
            let from = found.out.len();
            match op {
                Op::Data(data) => {
                    found.literals.push(data.len());
                    found.literal_bytes += data.len();
                    found.out.extend_from_slice(data);
                }
                Op::Copy {
                    offset_bytes,
                    len_bytes,
                } => {
                    if offset_bytes != from as u64 {
                        found.moved_bytes += len_bytes as usize;
                    }
                    let copied = &basis[offset_bytes as usize..][..len_bytes as usize];
                    found.out.extend_from_slice(copied);
                }
            }
            if in_place {
                basis.resize(basis.len().max(found.out.len()), 0);
                basis[from..found.out.len()].copy_from_slice(&found.out[from..]);
            }
            emitted_bytes.set(found.out.len());
            Ok(())
        };
        let digest = index.search_counted(in_place, &read_at, &mut emit, &mut found.strong_sums);
        let mut hasher = ContentHasher::new(SUMS.digested_by());
        hasher.update(new);
        assert_eq!(digest.unwrap(), hasher.finish());
        found
    }

    fn searched(old: &[u8], new: &[u8], block_len: u32, in_place: bool) -> Found {
        search_by_reads(old, new, block_len, in_place, usize::MAX)
    }

    /// Returns the rebuilt file with the count of literal bytes.
    fn rebuilt(old: &[u8], new: &[u8], block_len: u32, in_place: bool) -> (Vec<u8>, usize) {
        let found = searched(old, new, block_len, in_place);
        (found.out, found.literal_bytes)
    }

    /// Bytes without equal blocks.
    fn noise(len: u32) -> Vec<u8> {
        (0..len)
            .map(|n| n.wrapping_mul(0x9e37_79b1))
            .map(|mixed| (mixed >> 24) as u8 ^ (mixed >> 11) as u8)
            .collect()
    }

    /// A pair of files, by name.
    fn pair(name: &str, block_len: usize) -> (Vec<u8>, Vec<u8>) {
        let old = noise(100 * block_len as u32);
        let zeros = vec![0; 100 * block_len];
        // Like zeros to the rolling sum.
        let mut seeming = zeros.clone();
        for block in seeming[12 * block_len..].chunks_mut(block_len) {
            block[..3].copy_from_slice(&[1, 0xfe, 1]);
        }
        let mut changed = zeros.clone();
        changed[10 * block_len + 5] = 1;
        match name {
            "equal" => (old.clone(), old),
            "prefixed" => (old.clone(), [b"inserted", &old[..]].concat()),
            "cut" => (old.clone(), old[8..].to_vec()),
            "unknown" => (zeros, old),
            "no basis" => (Vec::new(), old),
            "zeros, one changed" => (zeros, changed),
            "zeros behind other data, one changed" => {
                let first = noise(block_len as u32);
                (
                    [&first[..], &zeros].concat(),
                    [&first[..], &changed].concat(),
                )
            }
            "zeros where blocks only seem to be" => (seeming, changed),
            _ => unreachable!(),
        }
    }

    /// The cost of a search in blocks of 700 bytes. The table has literal bytes, in how many pieces; bytes that are
    /// copied to another place; strong sums.
    #[test]
    fn search_costs_few_literal_bytes_and_strong_sums() {
        let cost = |name, in_place| {
            let (old, new) = pair(name, 700);
            let found = searched(&old, &new, 700, in_place);
            assert!(found.out == new, "{name}");
            (
                found.literal_bytes,
                found.literals.len(),
                found.moved_bytes,
                found.strong_sums,
            )
        };
        for (name, anew, in_place) in [
            ("equal", (0, 0, 0, 100), (0, 0, 0, 100)),
            // In place, what moves back has been overwritten.
            ("prefixed", (8, 1, 70_000, 100), (70_008, 4, 0, 100)),
            // Without its first bytes, the first block is sent. In place, a moved block is also compared with the one
            // that could stay.
            ("cut", (692, 1, 69_300, 99), (692, 1, 69_300, 198)),
            ("unknown", (70_000, 4, 0, 0), (70_000, 4, 0, 0)),
            ("no basis", (70_000, 3, 0, 0), (70_000, 3, 0, 0)),
            // The zeros behind the change move. The last ones are fewer than a block; they are tried at each length. In
            // place, the zeros stay again behind a few blocks that move.
            (
                "zeros, one changed",
                (700, 2, 62_300, 461),
                (700, 2, 11_200, 117),
            ),
            (
                "zeros behind other data, one changed",
                (700, 2, 62_300, 465),
                (700, 2, 11_200, 118),
            ),
            (
                "zeros where blocks only seem to be",
                (700, 2, 62_300, 461),
                (700, 2, 62_300, 461),
            ),
        ] {
            assert_eq!(cost(name, false), anew, "{name}");
            assert_eq!(cost(name, true), in_place, "{name}, in place");
        }
    }

    #[test]
    fn result_does_not_depend_on_how_much_a_read_returns() {
        for name in [
            "prefixed",
            "cut",
            "zeros, one changed",
            "zeros behind other data, one changed",
            "zeros where blocks only seem to be",
        ] {
            let (old, new) = pair(name, 40);
            for in_place in [false, true] {
                let cost = |read_max_bytes: usize| {
                    let found = search_by_reads(&old, &new, 40, in_place, read_max_bytes);
                    assert!(found.out == new, "{name}");
                    (found.literal_bytes, found.moved_bytes, found.strong_sums)
                };
                let whole = cost(usize::MAX);
                assert_eq!(cost(30), whole, "{name} {in_place}");
                assert_eq!(cost(100), whole, "{name} {in_place}");
            }
        }
    }

    #[test]
    fn digest_of_the_whole_file_is_returned() {
        let head = SumHead::of_basis(0, Some(700), &SUMS, 32, false).unwrap();
        let mut request = Vec::new();
        head.encode(&mut request);
        let index = BlockIndex::decode(&request, SUMS, 32).unwrap();
        let read_at = |offset: u64, into: &mut [u8]| {
            io::Read::read(&mut &b"content"[offset as usize..], into)
        };
        let digest = index.search(false, &read_at, &mut |_, _| Ok(()));
        let mut hasher = ContentHasher::new(SUMS.digested_by());
        hasher.update(b"content");
        assert_eq!(digest.unwrap(), hasher.finish());
    }

    #[test]
    fn long_literal_is_passed_on_in_pieces() {
        let found = searched(&[1; 7000], &noise(1_000_000), 700, false);
        assert_eq!(found.literal_bytes, 1_000_000);
        assert_eq!(found.literals.iter().max(), Some(&LITERAL_BYTES));
        // 31 would be enough, but a read may end within a piece.
        assert_eq!(found.literals.len(), 32);
    }

    #[test]
    fn equal_blocks_behind_a_change_stay_in_place() {
        let old = vec![0; 600_000];
        let mut new = old.clone();
        new[300_123..300_126].copy_from_slice(b"new");
        let found = searched(&old, &new, 700, true);
        assert!(found.out == new);
        // The bytes of one block: up to the change, and from the moved blocks to those that stay.
        assert_eq!(found.literal_bytes, 700);
        assert_eq!(found.moved_bytes, MOVED_IN_A_ROW as usize * 700);
    }

    /// Few bytes are sent although blocks of short runs of zeros could stay.
    #[test]
    fn short_runs_of_equal_blocks_are_moved() {
        let mut old = vec![0; 1 << 20];
        for (page, bytes) in old.chunks_exact_mut(4096).enumerate() {
            if page % 3 == 0 {
                bytes.fill(page as u8);
            }
        }
        let mut new = old.clone();
        new.remove(1000);
        let (out, literal_bytes) = rebuilt(&old, &new, 700, true);
        assert!(out == new && literal_bytes <= 700, "{literal_bytes}");
    }

    #[test]
    fn shifted_blocks_and_the_short_last_one_are_found() {
        let old = noise(600_000);
        let mut new = old.clone();
        new.splice(1000..1000, *b"inserted");
        let (out, literal_bytes) = rebuilt(&old, &new, 700, false);
        assert!(out == new && literal_bytes <= 700 + 8, "{literal_bytes}");
        assert_eq!(rebuilt(&old, &old, 700, false).1, 0);
        assert_eq!(rebuilt(&old, &old, 700, true).1, 0);
        assert_eq!(rebuilt(&[], &new, 700, false), (new.clone(), new.len()));
        let twice = [&old[..70_000], &old[..70_000]].concat();
        assert_eq!(
            rebuilt(&old[..70_000], &twice, 700, true).1,
            0,
            "a block that stays is used again"
        );
    }

    /// Searches `file` with a request of the peer's choice: each block has the rolling sum of one window of the file, and
    /// the strong sum of it only where `is_true` says so. Returns how many strong sums were computed.
    fn strong_sums(
        file: &[u8],
        block_len: usize,
        count: usize,
        in_place: bool,
        is_true: impl Fn(usize) -> bool,
    ) -> u64 {
        let basis_len_bytes = (count * block_len) as u64;
        let head =
            SumHead::of_basis(basis_len_bytes, Some(block_len as u32), &SUMS, 32, true).unwrap();
        let mut request = Vec::new();
        head.encode(&mut request);
        for number in 0..count {
            let start = number * 13 % (file.len() - block_len);
            let mut sum = BlockSum::of_block(&file[start..][..block_len], &head, &SUMS);
            if !is_true(number) {
                sum.strong[..8].copy_from_slice(&(number as u64).to_le_bytes());
            }
            sum.encode(&head, &mut request);
        }
        let index = BlockIndex::decode(&request, SUMS, 32).unwrap();
        let read_at = |offset: u64, into: &mut [u8]| {
            let rest = &file[(offset as usize).min(file.len())..];
            let len = rest.len().min(into.len());
            into[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        };
        let mut strong_sums = 0;
        let mut emit = |_: Op<'_>, _: &[u8]| Ok(());
        index
            .search_counted(in_place, &read_at, &mut emit, &mut strong_sums)
            .unwrap();
        strong_sums
    }

    #[test]
    fn a_peer_does_not_choose_the_cost() {
        let equal = vec![b'x'; 200_000];
        let periodic: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
        let block_len = 700;
        let blocks = (equal.len() / block_len) as u64;
        for (file, in_place, expected) in [
            (&equal, false, 285),
            (&equal, true, 567),
            (&periodic, false, 1201),
            (&periodic, true, 1201),
        ] {
            let never = strong_sums(file, block_len, 2_000, in_place, |_| false);
            // From then on, each length of a block adds four.
            let most = STRONG_SUMS_MORE + 1 + STRONG_SUMS_PER_BLOCK * (blocks - 1);
            assert_eq!(never, most);
            // What matches does not pay for what does not.
            let sometimes = strong_sums(file, block_len, 2_000, in_place, |it| it % 97 == 0);
            assert_eq!(sometimes, expected);
        }
    }

    #[test]
    fn blocks_are_found_behind_windows_that_only_seem_to_match() {
        let file: Vec<u8> = [vec![b'x'; 100_000], noise(100_000)].concat();
        let mut basis = file.clone();
        // The same rolling sum, but not the same block.
        for block in basis[..100_000].chunks_exact_mut(700) {
            block[..4].copy_from_slice(b"wyyw");
        }
        let (out, literal_bytes) = rebuilt(&basis, &file, 700, false);
        assert!(
            out == file && literal_bytes <= 100_000 + 2 * 700,
            "{literal_bytes}"
        );
    }

    proptest! {
        #[test]
        fn a_file_is_rebuilt(old in proptest::collection::vec(0u8..3, 0..400), new in proptest::collection::vec(0u8..3, 0..400), block_len in 1u32..40, in_place: bool) {
            prop_assert_eq!(rebuilt(&old, &new, block_len, in_place).0, new);
        }
    }
}

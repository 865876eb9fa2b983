//! Tests: properties of signature and search for arbitrary bytes, and what a change may cost.

use std::io;

use proptest::prelude::*;

use super::op_builder::RANGE_BYTES;
use super::search::SearchResult;
use super::search::{search_at_by, search_by};
use super::*;
use crate::digest;

/// The cost of sending a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    signature_bytes: usize,
    literal_bytes: u64,
    ops: usize,
}

/// Sends `source` to a receiver that has `basis`, in every supported way, and checks the result. Returns the cost of
/// searching the whole source on one thread.
#[track_caller]
fn check_delta(basis: &[u8], source: &[u8], block_len: u32, in_place: bool) -> Cost {
    let signature = Signature::read(basis.len() as u64, block_len, 2, &read_at(basis)).unwrap();
    let bytes = signature.encode();
    let signature = Signature::decode(&bytes).unwrap();
    let mut cost = None;
    let mut check = |how: &str, run: &mut dyn FnMut(&mut Receiver) -> io::Result<SearchResult>| {
        let mut receiver = Receiver::new(basis, in_place);
        let found = run(&mut receiver).unwrap();
        assert!(receiver.content() == source, "{how}: another content");
        assert_eq!(found.digest, digest::content(source), "{how}");
        assert_eq!(found.len_bytes, source.len() as u64, "{how}");
        assert_eq!(
            (found.literal_bytes, found.matched_bytes),
            (receiver.literal_bytes, receiver.matched_bytes),
            "{how}"
        );
        let this = Cost {
            signature_bytes: bytes.len(),
            literal_bytes: found.literal_bytes,
            ops: receiver.ops,
        };
        cost.get_or_insert(this);
        this
    };
    let len = source.len() as u64;
    let whole = check("at once", &mut |receiver| {
        let mut rest = source;
        search(
            &signature,
            len,
            in_place,
            &mut |piece| io::Read::read(&mut rest, piece),
            &mut |op| receiver.take(op),
        )
    });
    check(
        "in small windows, by small reads, with a wrong length",
        &mut |receiver| {
            let mut rest = source;
            let mut read = |piece: &mut [u8]| {
                let len = piece.len().min(100);
                io::Read::read(&mut rest, &mut piece[..len])
            };
            search_by(1, &signature, 0, in_place, &mut read, &mut |op| {
                receiver.take(op)
            })
        },
    );
    let segment = 8 * signature.block_len() as usize;
    for threads in [1, 3] {
        let parts = check("in segments", &mut |receiver| {
            search_at_by(
                segment,
                &signature,
                len,
                in_place,
                threads,
                &read_at(source),
                &mut |op| receiver.take(op),
            )
        });
        // A thread does not know the last matches of the others: moved data is found again a row later.
        let segments = (source.len() / segment + 1) as u64;
        let lost = parts.literal_bytes.saturating_sub(whole.literal_bytes);
        assert!(
            lost <= segments * 2 * u64::from(signature.block_len()),
            "{lost} bytes lost at borders"
        );
    }
    whole
}

fn read_at(bytes: &[u8]) -> impl Fn(u64, &mut [u8]) -> io::Result<usize> + Sync {
    |offset, buffer| {
        let mut rest = bytes.get(offset as usize..).unwrap_or_default();
        io::Read::read(&mut rest, buffer)
    }
}

/// Carries out ops and checks their invariants.
struct Receiver<'a> {
    basis: &'a [u8],
    /// With `in_place`, initially a copy of the basis.
    content: Vec<u8>,
    in_place: bool,
    at: usize,
    last_end: Option<u64>,
    last_range_may_go_on: bool,
    literal_bytes: u64,
    matched_bytes: u64,
    ops: usize,
}

impl<'a> Receiver<'a> {
    fn new(basis: &'a [u8], in_place: bool) -> Receiver<'a> {
        let content = if in_place { basis.to_vec() } else { Vec::new() };
        Receiver {
            basis,
            content,
            in_place,
            at: 0,
            last_end: None,
            last_range_may_go_on: false,
            literal_bytes: 0,
            matched_bytes: 0,
            ops: 0,
        }
    }

    fn take(&mut self, op: Op<'_>) -> io::Result<()> {
        self.ops += 1;
        let copied;
        let bytes = match op {
            Op::Data(bytes) => {
                assert!(
                    (1..=DATA_MAX_BYTES).contains(&bytes.len()),
                    "data of {} bytes",
                    bytes.len()
                );
                self.literal_bytes += bytes.len() as u64;
                self.last_end = None;
                bytes
            }
            Op::Copy {
                offset_bytes,
                len_bytes,
            } => {
                assert!(
                    self.last_range_may_go_on || self.last_end != Some(offset_bytes),
                    "two ranges that are one"
                );
                assert!(len_bytes > 0, "an empty range");
                assert!(
                    !self.in_place || offset_bytes >= self.at as u64,
                    "overwritten already"
                );
                self.matched_bytes += len_bytes;
                self.last_end = Some(offset_bytes + len_bytes);
                self.last_range_may_go_on = len_bytes >= RANGE_BYTES;
                let from = if self.in_place {
                    &self.content
                } else {
                    self.basis
                };
                copied = from[offset_bytes as usize..][..len_bytes as usize].to_vec();
                &copied
            }
        };
        let end = self.at + bytes.len();
        self.content.resize(self.content.len().max(end), 0);
        self.content[self.at..end].copy_from_slice(bytes);
        self.at = end;
        Ok(())
    }

    fn content(&self) -> &[u8] {
        &self.content[..self.at]
    }
}

/// Returns deterministic pseudorandom bytes for a seed.
fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let words = std::iter::repeat_with(|| next(&mut state).to_le_bytes()).take(len.div_ceil(8));
    let mut bytes: Vec<u8> = words.flatten().collect();
    bytes.truncate(len);
    bytes
}

/// Returns the next pseudorandom number.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A change to a file's content.
#[derive(Debug, Clone)]
enum Edit {
    Overwrite { at: usize, len: usize, seed: u64 },
    Insert { at: usize, len: usize, seed: u64 },
    Remove { at: usize, len: usize },
    Copy { from: usize, len: usize, to: usize },
}

impl Edit {
    fn apply(&self, content: &mut Vec<u8>) {
        let end = content.len();
        match *self {
            Edit::Overwrite { at, len, seed } => {
                let at = at.min(end);
                let len = len.min(end - at);
                content[at..at + len].copy_from_slice(&random(len, seed));
            }
            Edit::Insert { at, len, seed } => {
                content.splice(at.min(end)..at.min(end), random(len, seed));
            }
            Edit::Remove { at, len } => {
                content.drain(at.min(end)..(at + len).min(end));
            }
            Edit::Copy { from, len, to } => {
                let piece = content[from.min(end)..(from + len).min(end)].to_vec();
                content.splice(to.min(end)..to.min(end), piece);
            }
        }
    }
}

fn edit() -> impl Strategy<Value = Edit> {
    let (at, len) = (0..20_000usize, 0..3000usize);
    prop_oneof![
        (at.clone(), len.clone(), any::<u64>()).prop_map(|(at, len, seed)| Edit::Overwrite {
            at,
            len,
            seed
        }),
        (at.clone(), len.clone(), any::<u64>()).prop_map(|(at, len, seed)| Edit::Insert {
            at,
            len,
            seed
        }),
        (at.clone(), len.clone()).prop_map(|(at, len)| Edit::Remove { at, len }),
        (at.clone(), len, at).prop_map(|(from, len, to)| Edit::Copy { from, len, to }),
    ]
}

/// Generates content: random or highly repetitive.
fn content() -> impl Strategy<Value = Vec<u8>> {
    (
        0..20_000usize,
        any::<u64>(),
        prop_oneof![Just(0xffu8), Just(1), Just(0)],
        1..600usize,
    )
        .prop_map(|(len, seed, mask, period)| {
            let bytes = random(len, seed);
            let repeats = seed % 3 == 0;
            (0..len)
                .map(|at| bytes[if repeats { at % period } else { at }] & mask)
                .collect()
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn delta_of_an_edited_basis_restores_the_source(
        basis in content(),
        edits in proptest::collection::vec(edit(), 0..6),
        block_len in prop_oneof![64..700u32, Just(512)],
        in_place: bool,
    ) {
        let mut source = basis.clone();
        edits.iter().for_each(|edit| edit.apply(&mut source));
        check_delta(&basis, &source, block_len, in_place);
    }

    #[test]
    fn delta_of_an_unrelated_basis_restores_the_source(basis in content(), source in content(), in_place: bool) {
        check_delta(&basis, &source, 64, in_place);
    }

    #[test]
    fn signature_round_trips(basis in content(), block_len in 0..2000u32) {
        let signature = Signature::read(basis.len() as u64, block_len, 1, &read_at(&basis)).unwrap();
        prop_assert_eq!(Signature::decode(&signature.encode()), Ok(signature));
    }

    #[test]
    fn any_decoded_signature_can_be_searched(
        start in prop_oneof![Just(64u32), Just(512), any::<u32>()],
        covered in prop_oneof![0..5000u64, any::<u64>()],
        rest in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let bytes = [&start.to_le_bytes()[..], &covered.to_le_bytes(), &[5], &rest].concat();
        for bytes in [&bytes[..], &rest] {
            if let Ok(signature) = Signature::decode(bytes) {
                let source = random(3000, covered);
                let mut emitted = 0;
                search(&signature, 3000, false, &mut |piece| io::Read::read(&mut &source[emitted..], piece).inspect(|n| emitted += n), &mut |_| Ok(())).unwrap();
            }
        }
    }
}

/// A basis and a source derived from it.
type Change = (Vec<u8>, Vec<u8>);

fn overwritten(len: usize, unit: usize, is_aligned: bool) -> Change {
    let basis = random(len, 1);
    let (mut source, mut state) = (basis.clone(), 2);
    for _ in 0..len / 100 / unit {
        let any = next(&mut state) as usize;
        let at = if is_aligned {
            any % (len / unit) * unit
        } else {
            any % (len - unit)
        };
        source[at..at + unit].copy_from_slice(&random(unit, next(&mut state)));
    }
    (basis, source)
}

fn prefixed(len: usize) -> Change {
    let basis = random(len, 1);
    let source = [random(len / 1024, 3), basis.clone()].concat();
    (basis, source)
}

fn interspersed(len: usize, longest: usize) -> Change {
    let basis = random(len, 1);
    let (mut source, mut state) = (basis.clone(), 4);
    for _ in 0..100 {
        let at = next(&mut state) as usize % source.len();
        let len = 1 + next(&mut state) as usize % longest;
        source.splice(at..at, random(len, next(&mut state)));
    }
    (basis, source)
}

fn thinned(len: usize, longest: usize) -> Change {
    let basis = random(len, 1);
    let (mut source, mut state) = (basis.clone(), 4);
    for _ in 0..100 {
        let at = next(&mut state) as usize % (source.len() - 1000);
        let len = 1 + next(&mut state) as usize % longest;
        source.drain(at..at + len);
    }
    (basis, source)
}

/// Sends the source in the usual way only.
#[track_caller]
fn cost((basis, source): &Change, block_len: u32, in_place: bool) -> Cost {
    let signature = Signature::read(basis.len() as u64, block_len, 2, &read_at(basis)).unwrap();
    let signature_bytes = signature.encode().len();
    let mut receiver = Receiver::new(basis, in_place);
    let mut rest = &source[..];
    let mut read = |piece: &mut [u8]| io::Read::read(&mut rest, piece);
    let found = search(
        &signature,
        source.len() as u64,
        in_place,
        &mut read,
        &mut |op| receiver.take(op),
    )
    .unwrap();
    assert!(receiver.content() == source, "another content");
    Cost {
        signature_bytes,
        literal_bytes: found.literal_bytes,
        ops: receiver.ops,
    }
}

/// Files of 1 MiB, compared with what rsync 3.5.0 sends for the same bytes: `--no-whole-file --stats`, literal data and
/// bytes received. rsync uses blocks of 1 KiB, sparsync half of that.
#[test]
fn literal_data_is_at_most_that_of_rsync() {
    const LEN: usize = 1 << 20;
    let check = |what: &str, change: Change, literal_max: u64, rsyncs_literal: u64| {
        let cost = cost(&change, block_len(LEN as u64, None), false);
        assert!(cost.literal_bytes <= literal_max, "{what}: {cost:?}");
        assert!(literal_max <= rsyncs_literal, "{what}");
        assert_eq!(cost.signature_bytes, 10_253, "{what}; rsync's is 6,179");
    };
    check(
        "20 times 512 bytes overwritten",
        overwritten(LEN, 512, true),
        10_240,
        20_480,
    );
    check(
        "the same across block boundaries",
        overwritten(LEN, 512, false),
        20_480,
        33_792,
    );
    check("1 KiB prepended", prefixed(LEN), 1024, 1024);
    check(
        "100 insertions",
        interspersed(LEN, LEN / 200_000),
        53_558,
        98_614,
    );
    check("100 removals", thinned(LEN, LEN / 200_000), 53_448, 99_016);
    let basis = random(LEN, 1);
    check(
        "a third cut off",
        (basis.clone(), basis[..LEN * 2 / 3].to_vec()),
        170,
        682,
    );
    check(
        "a tenth appended",
        (basis.clone(), [&basis[..], &random(LEN / 10, 5)].concat()),
        104_857,
        104_857,
    );
    check(
        "halves swapped",
        (
            basis.clone(),
            [&basis[LEN / 2..], &basis[..LEN / 2]].concat(),
        ),
        0,
        0,
    );
    check(
        "nothing in common",
        (basis, random(LEN, 77)),
        1 << 20,
        1 << 20,
    );
}

/// The cases of 1 GiB, scaled down, compared with rsync using `--block-size=32768`, which it chooses for 1 GiB. At full
/// size, changes of 10.7 MB in pieces of 4 KiB cost rsync 82 MB; they cost sparsync 10.7 MB and a signature of 1.3 MB.
#[test]
fn delta_of_a_large_file_costs_a_third_of_rsyncs() {
    const LEN: usize = 4 << 20;
    let block_len = block_len(1 << 30, None);
    let check = |what: &str, change: Change, literal_max: u64, rsyncs_total: u64| {
        let cost = cost(&change, block_len, false);
        assert!(cost.literal_bytes <= literal_max, "{what}: {cost:?}");
        assert!(
            10 * (cost.literal_bytes + cost.signature_bytes as u64) <= 3 * rsyncs_total,
            "{what}: {cost:?}"
        );
    };
    check(
        "10 times 4 KiB overwritten",
        overwritten(LEN, 4096, true),
        40_960,
        295_715,
    );
    check(
        "the same across block boundaries",
        overwritten(LEN, 4096, false),
        81_920,
        328_483,
    );
    check(
        "100 insertions",
        interspersed(LEN, LEN / 200_000),
        394_236,
        2_197_279,
    );
    let blocks = (1 << 30) / u64::from(block_len);
    assert_eq!(
        blocks * block::tag_len(1 << 30, block_len) as u64,
        1_310_720,
        "rsync's is 229,426"
    );
}

#[test]
fn in_place_search_reuses_unwritten_blocks() {
    const LEN: usize = 1 << 20;
    let block_len = block_len(LEN as u64, None);
    assert_eq!(
        cost(&overwritten(LEN, 512, true), block_len, true).literal_bytes,
        10_240
    );
    assert!(cost(&thinned(LEN, 5), block_len, true).literal_bytes <= 53_448);
    // Everything moves back, over data that is still needed.
    let (basis, source) = prefixed(LEN);
    assert_eq!(
        cost(&(basis, source.clone()), block_len, true).literal_bytes,
        source.len() as u64
    );
}

#[test]
fn equal_blocks_behind_a_change_stay_in_place() {
    let basis = vec![0; 1 << 20];
    let mut source = basis.clone();
    source[500_123..500_126].copy_from_slice(b"new");
    let signature = Signature::read(basis.len() as u64, 512, 2, &read_at(&basis)).unwrap();
    let (mut rest, mut at) = (&source[..], 0);
    let mut read = |piece: &mut [u8]| io::Read::read(&mut rest, piece);
    let found = search(
        &signature,
        source.len() as u64,
        true,
        &mut read,
        &mut |op| {
            at += match op {
                Op::Data(bytes) => bytes.len() as u64,
                Op::Copy {
                    offset_bytes,
                    len_bytes,
                } => {
                    assert_eq!(offset_bytes, at, "moved");
                    len_bytes
                }
            };
            Ok(())
        },
    );
    assert!(found.unwrap().literal_bytes <= 512);
}

#[test]
fn edge_cases_of_basis_and_source() {
    let some = random(5000, 1);
    for in_place in [false, true] {
        for (basis, source) in [
            (&b""[..], &b""[..]),
            (b"", &some),
            (&some, b""),
            (&some[..1], &some[..1]),
            (&some[..100], &some[..200]),
            (&some[..200], &some[..100]),
            (&some[..512], &some[..512]),
            (&some[..512], &some),
            (&some[..513], &some),
            (&some, &some[512..]),
            (&some, &some[1..]),
            (&some, &some[4700..]),
        ] {
            check_delta(basis, source, 512, in_place);
        }
    }
    let literal =
        |basis: &[u8], source: &[u8]| check_delta(basis, source, 512, false).literal_bytes;
    assert_eq!(literal(&some, &some), 0);
    assert_eq!(literal(&some, &some[512..]), 0);
    assert_eq!(
        literal(&some, &some[4608..]),
        0,
        "the last block, alone and moved"
    );
    assert_eq!(
        literal(&some[..300], &[&random(77, 2), &some[..300]].concat()),
        77,
        "a basis shorter than a block"
    );
    assert_eq!(
        literal(&some[..300], &[&some[..300], &random(77, 2)[..]].concat()),
        77,
        "a short basis followed by more data"
    );
    assert_eq!(literal(&some, &[&some, &random(77, 2)[..]].concat()), 77);
}

#[test]
fn run_of_zeros_is_one_copy() {
    let basis = vec![0; 100_000];
    assert_eq!(
        check_delta(&basis, &basis, 512, true),
        Cost {
            signature_bytes: 1189,
            literal_bytes: 0,
            ops: 1
        }
    );
    let longer = check_delta(&basis, &vec![0; 150_000], 512, false);
    assert!(longer.literal_bytes < 512 && longer.ops <= 4, "{longer:?}");
    // Zeros that the basis does not have in a row: every position looks like one of its blocks.
    let mut lone = random(100_000, 1);
    lone.chunks_mut(512)
        .step_by(9)
        .for_each(|block| block.fill(0));
    check_delta(&lone, &vec![0; 60_000], 512, false);
}

#[test]
fn long_copy_is_emitted_in_pieces() {
    const LEN: u64 = 3 * RANGE_BYTES + 5000;
    let basis = random(LEN as usize, 1);
    let signature = Signature::read(LEN, 4096, 2, &read_at(&basis)).unwrap();
    let read_bytes = std::cell::Cell::new(0);
    let (mut emitted, mut lens) = (0, Vec::new());
    let mut read = |piece: &mut [u8]| {
        let len = io::Read::read(&mut &basis[read_bytes.get() as usize..], piece)?;
        read_bytes.set(read_bytes.get() + len as u64);
        Ok(len)
    };
    let mut emit = |op: Op<'_>| {
        let Op::Copy {
            offset_bytes,
            len_bytes,
        } = op
        else {
            panic!("expected only copies")
        };
        assert_eq!(offset_bytes, emitted);
        emitted += len_bytes;
        lens.push(len_bytes);
        // The search reads at most one window ahead of what it has emitted.
        assert!(
            read_bytes.get() <= emitted + (1 << 20),
            "{} bytes read, {emitted} told",
            read_bytes.get()
        );
        Ok(())
    };
    search(&signature, LEN, false, &mut read, &mut emit).unwrap();
    assert!(emitted == LEN && lens.len() >= 3, "{lens:?}");
    assert!(
        lens.iter().all(|len| *len < RANGE_BYTES + (1 << 20)),
        "{lens:?}"
    );
}

#[test]
fn search_stops_at_a_read_or_write_error() {
    let (basis, source) = overwritten(200_000, 512, true);
    let signature = Signature::read(basis.len() as u64, 512, 1, &read_at(&basis)).unwrap();
    let len = source.len() as u64;
    let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
    for good in [0, 1, 3] {
        let mut left = good;
        let mut read = |piece: &mut [u8]| {
            left -= 1;
            if left < 0 {
                Err(broken())
            } else {
                io::Read::read(&mut &source[..piece.len().min(9999)], piece)
            }
        };
        let error = search(&signature, len, false, &mut read, &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        let bad_from = good as u64 * 30_000;
        let read = |offset: u64, piece: &mut [u8]| match offset >= bad_from {
            true => Err(broken()),
            false => read_at(&source)(offset, piece),
        };
        let error = search_at_by(1, &signature, len, false, 3, &read, &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        let mut left = good;
        let mut emit = |_: Op<'_>| {
            left -= 1;
            if left < 0 { Err(broken()) } else { Ok(()) }
        };
        let error =
            search_at_by(1, &signature, len, false, 3, &read_at(&source), &mut emit).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}

#[test]
fn longer_sources_need_more_matching_blocks_in_a_row() {
    let basis = random(10_000, 1);
    let signature = Signature::read(10_000, 700, 1, &read_at(&basis)).unwrap();
    for source_len in [1, 10_000, 1 << 30, 1 << 50] {
        let index = super::index::Index::new(&signature, source_len);
        let expected = super::block::row_len(15, signature.tag_len(), source_len);
        assert_eq!(index.row(), expected, "{source_len}");
    }
    let longest = super::index::Index::new(&signature, 1 << 50);
    assert!(longest.row() > 1);
}

#[test]
fn truncated_source_is_searched_up_to_its_end() {
    let basis = random(100_000, 1);
    let signature = Signature::read(100_000, 512, 1, &read_at(&basis)).unwrap();
    for len in [0, 1, 4095, 4096, 4097, 50_000, 99_999] {
        let source = &basis[..len];
        let mut receiver = Receiver::new(&basis, false);
        let mut emit = |op: Op<'_>| receiver.take(op);
        let found = search_at_by(
            1,
            &signature,
            100_000,
            false,
            2,
            &read_at(source),
            &mut emit,
        )
        .unwrap();
        assert!(receiver.content() == source, "{len}");
        assert_eq!(
            (found.len_bytes, found.digest),
            (len as u64, digest::content(source))
        );
    }
}

//! Decoders of what a peer sends, by families: the fuzz targets in fuzz/ and a property test pass arbitrary bytes to them.

use super::rsync::attributes::{decode_xattr_answer, decode_xattr_request};
use super::rsync::batch::BatchHeader;
use super::rsync::block_sums::Sums;
use super::rsync::daemon::{
    ClientLine, DaemonGreeting, DaemonLine, decode_args, decode_secluded_args, parse_credentials,
    read_line,
};
use super::rsync::file_list::{ListDecoder, ListItem, ListOptions};
use super::rsync::filter_list::{self, WireRule};
use super::rsync::handshake::{Capabilities, CompatFlags, decode_offer};
use super::rsync::item::{BlockSum, ItemHead, SumHead};
use super::rsync::mux::{Demultiplexer, FrameHeader};
use super::rsync::number::NdxDecoder;
use super::rsync::search::BlockIndex;
use super::rsync::sort;
use super::rsync::stats::{DeletionCounts, Stats};
use super::rsync::tokens::{self, Token, TokenDecoder};
use super::{Dialect as _, Encoder as _, Joiner, Message, decode_greeting, native::Native, sniff};
use crate::options::{Checksum, Compression};
use std::io::Read as _;

/// Decodes arbitrary bytes. Panics if a decoder returns more than it has read.
pub type DecoderFamily = fn(&[u8]);

/// All families.
pub const FAMILIES: [(&str, DecoderFamily); 8] = [
    ("handshake", handshake),
    ("file_list", file_list),
    ("items", items),
    ("tokens", tokens),
    ("attributes", attributes),
    ("filters", filters),
    ("frames", frames),
    ("native", native),
];

/// How many tokens of one input are decoded: a few bytes can be a long run of blocks.
const TOKENS_MAX: usize = 10_000;

/// The start of a connection, with a daemon or without, and of a batch file.
pub fn handshake(bytes: &[u8]) {
    repeat(bytes, |input| CompatFlags::decode(input).ok().map(|_| 0));
    repeat(bytes, |input| {
        decode_offer(input).ok().map(|offer| offer.len())
    });
    repeat(bytes, |input| {
        BatchHeader::decode(input, 32).ok().map(|_| 0)
    });
    repeat(bytes, |input| decode_args(input, 0).ok().map(total));
    repeat(bytes, |input| decode_args(input, b'\n').ok().map(total));
    repeat(bytes, |input| decode_secluded_args(input).ok().map(total));
    repeat(bytes, |input| {
        let line = read_line(input).ok()?;
        let _ = (
            DaemonGreeting::parse(&line),
            DaemonLine::parse(&line),
            ClientLine::parse(&line),
        );
        let _ = (Capabilities::parse(&line), parse_credentials(&line));
        Some(line.len())
    });
}

/// File lists of any protocol, with any attributes. The first four bytes choose them.
pub fn file_list(bytes: &[u8]) {
    let Some(([protocol, compat, a, b], mut input)) = bytes.split_first_chunk() else {
        return;
    };
    let protocol = protocol_of(*protocol);
    let has = |bit: u32| u16::from_le_bytes([*a, *b]) >> bit & 1 == 1;
    let compat = CompatFlags(if protocol >= 30 {
        u32::from(*compat) | u32::from(has(0)) << 8
    } else {
        0
    });
    let options = ListOptions {
        protocol,
        compat,
        owners: has(1),
        groups: has(2),
        links: has(3),
        devices: has(4),
        specials: has(5),
        hard_links: has(6),
        atimes: has(7),
        crtimes: has(8) && protocol >= 30,
        acls: has(9) && protocol >= 30,
        xattrs: has(10) && protocol >= 30,
        numeric_ids: has(11),
        relative: has(12),
        digest_len_bytes: if has(13) { 16 } else { 0 },
        missing_args: has(14),
    };
    let mut decoder = ListDecoder::new(options);
    let mut entries = Vec::new();
    while let Ok(item) = decoder.next(&mut input) {
        match item {
            ListItem::Entry(entry) => entries.push(*entry),
            ListItem::End { .. } => {
                sort::sorted(&entries, protocol);
                entries.clear();
            }
        }
    }
}

/// Indices, items, sums of blocks, and statistics.
pub fn items(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else {
        return;
    };
    let protocol = protocol_of(*first);
    let mut indices = NdxDecoder::new(protocol);
    repeat(bytes, |input| indices.decode(input).ok().map(|_| 0));
    repeat(bytes, |input| {
        ItemHead::decode(input, protocol).ok().map(|_| 0)
    });
    repeat(bytes, |input| {
        Stats::decode(input, protocol).ok().map(|_| 0)
    });
    repeat(bytes, |input| DeletionCounts::decode(input).ok().map(|_| 0));
    repeat(bytes, |input| {
        let head = SumHead::decode(input, protocol).ok()?;
        BlockSum::decode(input, &head).ok().map(|_| 0)
    });
    let sums = Sums {
        checksum: Checksum::Md5,
        seed: 0,
        is_seed_first: true,
        is_implied: false,
    };
    let _ = BlockIndex::decode(bytes, sums, protocol);
}

/// Token streams. The first byte chooses the protocol and the compression.
pub fn tokens(bytes: &[u8]) {
    use Compression::{Lz4, No, Zlib, Zlibx, Zstd};
    let Some((first, mut input)) = bytes.split_first() else {
        return;
    };
    let method = [No, Lz4, Zstd, Zlibx, Zlib][usize::from(*first) % 5];
    let _ = tokens::skip(&mut &input[..], method != No);
    let Ok(mut decoder) = TokenDecoder::new(method, protocol_of(*first)) else {
        return;
    };
    for _ in 0..TOKENS_MAX {
        match decoder.next(&mut input) {
            Ok(Token::Block(number)) if decoder.see_block(&number.to_le_bytes()).is_ok() => {}
            Ok(Token::Literal(_) | Token::End) => {}
            Ok(Token::Block(_)) | Err(_) => return,
        }
    }
}

/// Requests for values of extended attributes, and their answers. Those in lists belong to [`file_list`].
pub fn attributes(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else {
        return;
    };
    let count = usize::from(*first);
    repeat(bytes, |input| {
        decode_xattr_request(input, count)
            .ok()
            .map(|numbers| numbers.len())
    });
    repeat(bytes, |input| {
        let values = decode_xattr_answer(input, count).ok()?;
        Some(values.iter().map(|(_, value)| value.len()).sum())
    });
}

/// Filter rules, and the names of `--files-from`.
pub fn filters(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else {
        return;
    };
    let protocol = protocol_of(*first);
    repeat(bytes, |input| {
        filter_list::decode(input, protocol)
            .ok()
            .map(|rules| rules.len())
    });
    repeat(bytes, |input| {
        filter_list::decode_names(input).ok().map(total)
    });
    let _ = WireRule::parse(bytes, protocol);
}

/// The frames that data and control messages share.
pub fn frames(bytes: &[u8]) {
    for header in bytes.as_chunks().0 {
        let _ = FrameHeader::decode(*header);
    }
    let mut input = Demultiplexer::new(bytes, |_| Ok(()));
    input.set_frames(true);
    let mut data = Vec::new();
    let _ = input.read_to_end(&mut data);
    assert!(
        data.len() <= bytes.len(),
        "{} bytes of {}",
        data.len(),
        bytes.len()
    );
}

/// The protocol between two sparsyncs: the greeting, messages, and listings in several messages.
pub fn native(bytes: &[u8]) {
    sniff(bytes, true);
    sniff(bytes, false);
    let _ = decode_greeting(bytes);
    let mut input = bytes;
    let mut joiner = Joiner::default();
    loop {
        let before = input.len();
        let Ok(Some(message)) = Native::new(1).decode(&mut input) else {
            return;
        };
        let mut frame = Vec::new();
        Native::new(1)
            .encode(&message, &mut frame)
            .expect("what was accepted can be sent");
        assert!(
            frame.len() <= before - input.len(),
            "it is never longer than what was accepted"
        );
        if matches!(message, Message::Dir(_) | Message::More { .. })
            && joiner.push(message).is_err()
        {
            return;
        }
    }
}

fn protocol_of(byte: u8) -> u8 {
    27 + byte / 5 % 6
}

fn total(list: Vec<Vec<u8>>) -> usize {
    list.iter().map(Vec::len).sum()
}

/// Decodes as long as the input lasts. `next` returns how many bytes its result has, or `None` if it was rejected.
fn repeat(bytes: &[u8], mut next: impl FnMut(&mut &[u8]) -> Option<usize>) {
    let mut input = bytes;
    let mut len_bytes = 0;
    loop {
        let before = input.len();
        let Some(more) = next(&mut input) else { break };
        len_bytes += more;
        if input.len() == before {
            break;
        }
    }
    assert!(
        len_bytes <= bytes.len(),
        "{len_bytes} bytes of {}",
        bytes.len()
    );
}

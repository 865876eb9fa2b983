//! Input of a hostile peer: every decoder decodes or rejects it, and what it returns is no longer than what it has read.

use crate::options::Checksum;
use crate::proto::rsync::attributes::{decode_xattr_answer, decode_xattr_request};
use crate::proto::rsync::batch::BatchHeader;
use crate::proto::rsync::block_sums::Sums;
use crate::proto::rsync::daemon::{
    ClientLine, DaemonGreeting, DaemonLine, decode_args, decode_secluded_args, parse_credentials, read_line,
};
use crate::proto::rsync::filter_list::{self, WireRule};
use crate::proto::rsync::handshake::{Capabilities, CompatFlags, decode_offer};
use crate::proto::rsync::item::{BlockSum, ItemHead, SumHead};
use crate::proto::rsync::mux::FrameHeader;
use crate::proto::rsync::number::NdxDecoder;
use crate::proto::rsync::search::BlockIndex;
use crate::proto::rsync::stats::{Deletions, Stats};
use proptest::collection::vec;
use proptest::prelude::*;

/// Bytes among which small numbers are frequent, so that lengths and counts are often valid.
fn input() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![3 => 0u8..4, 1 => any::<u8>(), 1 => b'!'..=b'~', 1 => Just(0xff)], 0..300)
}

/// Decodes as long as the input lasts. Returns how many bytes the results have.
fn repeat(mut input: &[u8], mut next: impl FnMut(&mut &[u8]) -> Option<usize>) -> usize {
    let mut len = 0;
    loop {
        let before = input.len();
        match next(&mut input) {
            Some(more) => len += more,
            None => return len,
        }
        if input.len() == before {
            return len;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn arbitrary_input_is_decoded_or_rejected(bytes in input(), protocol in 27u8..33, count in 0usize..4) {
        let total = |list: Vec<Vec<u8>>| list.iter().map(Vec::len).sum::<usize>();
        let sums = Sums { checksum: Checksum::Md5, seed: 0, is_seed_first: true, is_implied: false };
        let lens = [
            repeat(&bytes, |input| filter_list::decode(input, protocol).ok().map(|rules| rules.len())),
            repeat(&bytes, |input| filter_list::decode_names(input).ok().map(total)),
            repeat(&bytes, |input| decode_args(input, 0).ok().map(total)),
            repeat(&bytes, |input| decode_args(input, b'\n').ok().map(total)),
            repeat(&bytes, |input| decode_secluded_args(input).ok().map(total)),
            repeat(&bytes, |input| decode_offer(input).ok().map(|offer| offer.len())),
            repeat(&bytes, |input| decode_xattr_request(input, count).ok().map(|numbers| numbers.len())),
            repeat(&bytes, |input| {
                decode_xattr_answer(input, count).ok().map(|values| values.iter().map(|(_, value)| value.len()).sum())
            }),
            repeat(&bytes, |input| read_line(input).ok().map(|line| line.len())),
            repeat(&bytes, |input| CompatFlags::decode(input).ok().map(|_| 0)),
            repeat(&bytes, |input| Stats::decode(input, protocol).ok().map(|_| 0)),
            repeat(&bytes, |input| Deletions::decode(input).ok().map(|_| 0)),
            repeat(&bytes, |input| ItemHead::decode(input, protocol).ok().map(|_| 0)),
            repeat(&bytes, |input| {
                let head = SumHead::decode(input, protocol).ok()?;
                BlockSum::decode(input, &head).ok().map(|_| 0)
            }),
            repeat(&bytes, |input| BatchHeader::decode(input, 32).ok().map(|_| 0)),
        ];
        prop_assert!(lens.iter().all(|&len| len <= bytes.len()), "{lens:?} of {}", bytes.len());
        let mut indices = NdxDecoder::new(protocol);
        repeat(&bytes, |input| indices.decode(input).ok().map(|_| 0));
        for header in bytes.chunks_exact(4) {
            let _ = FrameHeader::decode(header.try_into().unwrap());
        }
        let _ = (BlockIndex::decode(&bytes, sums, protocol), WireRule::parse(&bytes, protocol));
        let _ = (DaemonGreeting::parse(&bytes), DaemonLine::parse(&bytes), ClientLine::parse(&bytes));
        let _ = (Capabilities::parse(&bytes), parse_credentials(&bytes));
    }
}

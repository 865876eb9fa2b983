//! Input of a hostile peer: every decoder decodes or rejects it, and what it returns is no longer than what it has read.

use crate::proto::fuzzing::FAMILIES;
use proptest::collection::vec;
use proptest::prelude::*;

/// Bytes among which small numbers are frequent, so that lengths and counts are often valid.
fn input() -> impl Strategy<Value = Vec<u8>> {
    let often_small = vec(
        prop_oneof![3 => 0u8..4, 1 => any::<u8>(), 1 => b'!'..=b'~', 1 => Just(0xff)],
        0..300,
    );
    let body = prop_oneof![3 => often_small, 1 => vec(any::<u8>(), 0..400)];
    // The first bytes choose options.
    (any::<[u8; 4]>(), body).prop_map(|(head, body)| [&head[..], &body].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn arbitrary_input_is_decoded_or_rejected(bytes in input()) {
        FAMILIES.iter().for_each(|(_, decode)| decode(&bytes));
    }
}

//! A rolling block sum: the block's 4-byte words are the digits of a number, modulo 2^64.
//!
//! Words instead of bytes need one multiplication per four bytes. Such a sum can only be rolled by four bytes, so four
//! sums are kept, one for each of the next four positions. They are independent of each other, so the processor
//! computes several at once.
//!
//! Only the upper bits are used, because in a product these depend on all lower bits. Unlike a sum of bytes and a sum
//! of sums, these sums do not cluster for text or small changes, so each bit counts in the error estimate.

/// The base of the digits. It is 5 modulo 8, so its powers have the longest possible period, and its bits look random.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number of bytes in a digit.
pub const WORD_BYTES: usize = 4;

/// The sum of a block or of a window of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum(u64);

impl Sum {
    /// Returns the sum of these bytes. An incomplete last word is padded with zeros.
    pub fn from_bytes(bytes: &[u8]) -> Sum {
        // Four interleaved sums, each of every fourth word, have shorter dependency chains than one.
        const BASE_4: u64 = BASE.wrapping_pow(4);
        let (groups, rest) = bytes.as_chunks::<{ 4 * WORD_BYTES }>();
        let mut sums = [0u64; 4];
        for group in groups {
            let (words, _) = group.as_chunks();
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum = sum.wrapping_mul(BASE_4).wrapping_add(digit(*word));
            }
        }
        // The last digit is multiplied too; otherwise its lower bits would not affect the upper bits of the sum.
        let append = |sum: u64, digit: u64| sum.wrapping_add(digit).wrapping_mul(BASE);
        let sum = sums.into_iter().fold(0, append);
        let (words, rest) = rest.as_chunks();
        let sum = words.iter().map(|word| digit(*word)).fold(sum, append);
        if rest.is_empty() {
            return Sum(sum);
        }
        let mut word = [0; WORD_BYTES];
        word[..rest.len()].copy_from_slice(rest);
        Sum(append(sum, digit(word)))
    }

    /// Returns all bits of the sum. The upper ones are the best distributed.
    #[inline]
    pub fn bits(self) -> u64 {
        self.0
    }
}

/// Returns the value of a word.
#[inline]
fn digit(word: [u8; WORD_BYTES]) -> u64 {
    u32::from_le_bytes(word).into()
}

/// The sums of the windows at a position and at the three positions after it.
#[derive(Debug)]
pub struct Rolling<'a> {
    bytes: &'a [u8],
    window_len: usize,
    /// The factor for the word that leaves the window.
    leaving: u64,
    at: usize,
    /// One more than the last position at which a window fits.
    end: usize,
    /// The sums for positions `at` to `at + 3`, each at the index of its position modulo 4.
    sums: [Sum; WORD_BYTES],
}

impl<'a> Rolling<'a> {
    /// Starts at position `from`. Windows are `window_len` bytes long, a multiple of [`WORD_BYTES`].
    pub fn new(bytes: &'a [u8], window_len: usize, from: usize) -> Rolling<'a> {
        debug_assert!(
            window_len.is_multiple_of(WORD_BYTES),
            "windows are whole words"
        );
        let end = (bytes.len() + 1).saturating_sub(window_len);
        let mut sums = [Sum::default(); WORD_BYTES];
        for at in from..end.min(from + WORD_BYTES) {
            sums[at % WORD_BYTES] = Sum::from_bytes(&bytes[at..at + window_len]);
        }
        let leaving = BASE.wrapping_pow((window_len / WORD_BYTES) as u32);
        Rolling {
            bytes,
            window_len,
            leaving,
            at: from,
            end,
            sums,
        }
    }

    /// Advances to the first position, from the current one on and below `before`, whose sum `matches`.
    ///
    /// Returns `None` if there is no such position or no further window fits. Call [`Rolling::skip`] to continue after
    /// a match.
    #[inline]
    pub fn find(&mut self, before: usize, matches: impl Fn(Sum) -> bool) -> Option<(usize, Sum)> {
        let end = self.end.min(before);
        while self.at < end {
            if self.at.is_multiple_of(WORD_BYTES) {
                self.leap(end, &matches);
            }
            let sum = self.sums[self.at % WORD_BYTES];
            if matches(sum) {
                return Some((self.at, sum));
            }
            self.skip();
        }
        None
    }

    /// Advances four positions at a time while none of them matches and at least four more follow.
    ///
    /// A search through new data spends all its time here. Testing all four sums before branching takes two thirds of
    /// the time of testing them one by one.
    #[inline]
    fn leap(&mut self, end: usize, matches: &impl Fn(Sum) -> bool) {
        const REACH: usize = 2 * WORD_BYTES - 1;
        let mut sums = self.sums;
        while self.at + 2 * WORD_BYTES <= end
            && !sums.iter().fold(false, |any, sum| any | matches(*sum))
        {
            // After this step, the last of the four windows ends where `entering` ends.
            let leaving: &[u8; REACH] = self.bytes[self.at..]
                .first_chunk()
                .expect("the window is there");
            let entering: &[u8; REACH] = self.bytes[self.at + self.window_len..]
                .first_chunk()
                .expect("the windows four positions on are there");
            for (nth, sum) in sums.iter_mut().enumerate() {
                *sum = self.rolled(*sum, word(leaving, nth), word(entering, nth));
            }
            self.at += WORD_BYTES;
        }
        self.sums = sums;
    }

    /// Advances by one position.
    pub fn skip(&mut self) {
        let sum = &self.sums[self.at % WORD_BYTES];
        // The sum is not needed if the window four bytes on does not fit.
        if self.at + WORD_BYTES < self.end {
            let leaves = word(self.bytes, self.at);
            let enters = word(self.bytes, self.at + self.window_len);
            self.sums[self.at % WORD_BYTES] = self.rolled(*sum, leaves, enters);
        }
        self.at += 1;
    }

    /// Returns the sum of the window four bytes on.
    #[inline]
    fn rolled(&self, sum: Sum, leaves: [u8; WORD_BYTES], enters: [u8; WORD_BYTES]) -> Sum {
        let left = digit(leaves).wrapping_mul(self.leaving);
        Sum(sum
            .0
            .wrapping_add(digit(enters))
            .wrapping_sub(left)
            .wrapping_mul(BASE))
    }
}

/// Returns the word at this position.
#[inline]
fn word(bytes: &[u8], at: usize) -> [u8; WORD_BYTES] {
    *bytes[at..]
        .first_chunk()
        .expect("the window is whole words")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(len: usize) -> Vec<u8> {
        let mut state = 1u64;
        let next = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..len).map(next).collect()
    }

    #[test]
    fn rolled_sum_equals_the_direct_sum() {
        let bytes = random(500);
        for (window, from) in [
            (64, 0),
            (64, 3),
            (128, 7),
            (488, 0),
            (488, 12),
            (496, 0),
            (504, 0),
        ] {
            let mut rolling = Rolling::new(&bytes, window, from);
            let mut positions = from..(bytes.len() + 1).saturating_sub(window);
            while let Some((at, sum)) = rolling.find(usize::MAX, |_| true) {
                assert_eq!(Some(at), positions.next());
                assert_eq!(
                    sum,
                    Sum::from_bytes(&bytes[at..at + window]),
                    "{window} at {at} from {from}"
                );
                rolling.skip();
            }
            assert_eq!(positions.next(), None, "{window} from {from}");
        }
    }

    #[test]
    fn find_stops_at_the_first_match_before_the_limit() {
        let bytes = random(3000);
        for wanted in 0..2900 {
            let sum = Sum::from_bytes(&bytes[wanted..wanted + 96]);
            let mut rolling = Rolling::new(&bytes, 96, wanted / 2);
            assert_eq!(
                rolling.find(2900, |other| other == sum),
                Some((wanted, sum))
            );
            let mut rolling = Rolling::new(&bytes, 96, wanted / 2);
            assert_eq!(
                rolling.find(wanted, |other| other == sum),
                None,
                "not before {wanted}"
            );
        }
    }

    /// Every byte affects the bits in use, wherever it is, even where two changes could cancel each other out.
    #[test]
    fn single_byte_changes_do_not_collide() {
        let bytes = random(4096);
        let mut sums = std::collections::HashMap::new();
        sums.insert(Sum::from_bytes(&bytes).bits() >> 32, "nothing".to_owned());
        let mut insert = |bytes: &[u8], what: String| {
            if let Some(other) = sums.insert(Sum::from_bytes(bytes).bits() >> 32, what.clone()) {
                panic!("{what} looks like {other}");
            }
        };
        for at in 0..4096 {
            let mut changed = bytes.clone();
            changed[at] ^= 0x80;
            insert(&changed, format!("a bit at {at}"));
            if at % 16 == 15 && at < 4096 - 512 {
                changed = bytes.clone();
                changed[at] = changed[at].wrapping_add(1);
                changed[at + 512] = changed[at + 512].wrapping_sub(1);
                insert(&changed, format!("one up at {at}, one down 512 on"));
            }
        }
    }

    /// Peers of different versions must agree on the sum.
    #[test]
    fn block_sum_has_its_golden_values() {
        assert_eq!(Sum::from_bytes(b"").bits(), 0);
        assert_eq!(
            Sum::from_bytes(&random(1003)).bits(),
            15_205_487_187_970_026_880
        );
    }
}

//! The checksums of rsync: rolling and strong sums of blocks, and digests of whole files.

use crate::digest::{self, By, FileDigest};
use crate::options::Checksum;
use twox_hash::{XxHash3_64, XxHash3_128, XxHash64};

/// The rolling sum of a block, which moves by one byte in constant time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RollingSum {
    sum: u32,
    weighted: u32,
    len: u32,
}

impl RollingSum {
    /// Computes the sum of a block.
    pub fn new(block: &[u8]) -> RollingSum {
        let mut sum = RollingSum::default();
        for &byte in block {
            sum.sum = sum.sum.wrapping_add(signed(byte));
            sum.weighted = sum.weighted.wrapping_add(sum.sum);
        }
        sum.len = block.len() as u32;
        sum
    }

    /// Moves the block by one byte: removes the first one, and appends another.
    pub fn roll(&mut self, removed: u8, appended: u8) {
        self.sum = self
            .sum
            .wrapping_add(signed(appended))
            .wrapping_sub(signed(removed));
        self.weighted = self
            .weighted
            .wrapping_add(self.sum)
            .wrapping_sub(self.len.wrapping_mul(signed(removed)));
    }

    /// Removes the first byte, at the end of a file.
    pub fn shrink(&mut self, removed: u8) {
        self.sum = self.sum.wrapping_sub(signed(removed));
        self.weighted = self
            .weighted
            .wrapping_sub(self.len.wrapping_mul(signed(removed)));
        self.len -= 1;
    }

    /// Returns the number on the wire.
    pub fn value(self) -> u32 {
        self.weighted << 16 | self.sum & 0xffff
    }
}

/// Returns a byte as rsync sums it: with a sign.
fn signed(byte: u8) -> u32 {
    i32::from(byte.cast_signed()).cast_unsigned()
}

/// The checksum algorithm of a connection with its seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sums {
    /// The algorithm.
    pub checksum: Checksum,
    /// The seed, which the server chose.
    pub seed: i32,
    /// Whether the md5 sum of a block begins with the seed: with
    /// [`CHKSUM_SEED_FIX`](super::handshake::CompatFlags::CHKSUM_SEED_FIX), or if the user named md5.
    pub is_seed_first: bool,
    /// Whether md4 was not chosen but is the algorithm of a protocol before 30.
    pub is_implied: bool,
}

impl Sums {
    /// Returns the length of the digest of a file.
    pub fn digest_len_bytes(&self) -> usize {
        digest_len_bytes(self.checksum)
    }

    /// Returns the greatest length of the strong sum of a block.
    pub fn strong_len_max_bytes(&self) -> usize {
        self.digest_len_bytes()
            .min(super::limits::STRONG_SUM_MAX_BYTES)
    }

    /// Returns the strong sum of a block, of which the first bytes are sent.
    pub fn block_sum(&self, block: &[u8]) -> Vec<u8> {
        let wide_seed = i64::from(self.seed).cast_unsigned();
        let seed = self.seed.to_le_bytes();
        let seed: &[u8] = if self.seed == 0 { &[] } else { &seed };
        match self.checksum {
            Checksum::Xxh128 => XxHash3_128::oneshot_with_seed(wide_seed, block)
                .to_le_bytes()
                .to_vec(),
            Checksum::Xxh3 => XxHash3_64::oneshot_with_seed(wide_seed, block)
                .to_le_bytes()
                .to_vec(),
            Checksum::Xxh64 => XxHash64::oneshot(wide_seed, block).to_le_bytes().to_vec(),
            checksum @ (Checksum::Md5 | Checksum::Md4 | Checksum::Sha1 | Checksum::None) => {
                let is_first =
                    self.is_seed_first && checksum == Checksum::Md5 || checksum == Checksum::Sha1;
                let mut hasher = FileDigest::new(checksum, None);
                let parts = if is_first {
                    [seed, block]
                } else {
                    [block, seed]
                };
                for part in parts {
                    hasher.update(part);
                }
                hasher.finish()
            }
        }
    }

    /// Returns how the content of a file is digested.
    pub fn digested_by(&self) -> By {
        let seed = if self.is_implied {
            Some(self.seed)
        } else {
            None
        };
        By::Negotiated(self.checksum, seed)
    }
}

/// Returns the length of the digest of a file.
pub fn digest_len_bytes(checksum: Checksum) -> usize {
    // Without a checksum, one byte is sent.
    digest::shown_len_bytes(checksum).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_are_summed_with_their_sign() {
        assert_eq!(RollingSum::new(&[1, 2]).value(), (1 + 3) << 16 | 3);
        assert_eq!(RollingSum::new(&[0xff]).value(), 0xffff_ffff);
    }

    #[test]
    fn seed_precedes_or_follows_the_block() {
        let hex = |checksum, is_seed_first| -> String {
            let sums = Sums {
                checksum,
                seed: i32::from_le_bytes(*b"seed"),
                is_seed_first,
                is_implied: false,
            };
            let sum = sums.block_sum(b"block");
            sum.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        // The digests of "seedblock" and "blockseed".
        let md5 = "69939a5fa4162b0f34dc3584f7e3caf1";
        assert_eq!(hex(Checksum::Md5, true), md5);
        let md5 = "0f798aa4eca0986e2cf8900a93002cfc";
        assert_eq!(hex(Checksum::Md5, false), md5);
        let sha1 = "ca4d0c62023e9e65faf5a724d0b41fc193f44d4f";
        assert_eq!(hex(Checksum::Sha1, true), sha1);
        assert_eq!(hex(Checksum::Sha1, false), sha1);
        assert_eq!(hex(Checksum::Md4, true), hex(Checksum::Md4, false));
    }

    proptest! {
        #[test]
        fn rolled_sum_equals_the_direct_sum(bytes in proptest::collection::vec(any::<u8>(), 2..200), len in 1usize..100) {
            let len = len.min(bytes.len() - 1);
            let mut sum = RollingSum::new(&bytes[..len]);
            for at in 0..bytes.len() - len {
                sum.roll(bytes[at], bytes[at + len]);
                prop_assert_eq!(sum, RollingSum::new(&bytes[at + 1..at + 1 + len]));
            }
            sum.shrink(bytes[bytes.len() - len]);
            prop_assert_eq!(sum, RollingSum::new(&bytes[bytes.len() - len + 1..]));
        }
    }
}

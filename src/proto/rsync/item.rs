//! Items: requests with the sums of a basis, and their answers.

use super::block_sums::Sums;
use super::decode_error::{Result, checked, violation};
use super::limits::{
    BLOCK_MAX_BYTES, BLOCKS_MAX, OLD_BLOCK_MAX_BYTES, PATH_MAX_BYTES, STRONG_SUM_MAX_BYTES,
};
use super::number::{ReadWire as _, WriteWire as _};
use std::io::Read;

/// The flags of an item: what differs, and what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ItemFlags(pub u16);

impl ItemFlags {
    /// The access time differs.
    pub const REPORT_ATIME: ItemFlags = ItemFlags(0x0001);
    /// The content differs; also a new link or device.
    pub const REPORT_CHANGE: ItemFlags = ItemFlags(0x0002);
    /// The size of a file differs; of a symlink, the time cannot be set.
    pub const REPORT_SIZE: ItemFlags = ItemFlags(0x0004);
    /// The modification time differs.
    pub const REPORT_TIME: ItemFlags = ItemFlags(0x0008);
    /// The permissions differ.
    pub const REPORT_PERMS: ItemFlags = ItemFlags(0x0010);
    /// The owner differs.
    pub const REPORT_OWNER: ItemFlags = ItemFlags(0x0020);
    /// The group differs.
    pub const REPORT_GROUP: ItemFlags = ItemFlags(0x0040);
    /// The ACL differs.
    pub const REPORT_ACL: ItemFlags = ItemFlags(0x0080);
    /// Extended attributes differ.
    pub const REPORT_XATTR: ItemFlags = ItemFlags(0x0100);
    /// The type of the basis follows.
    pub const BASIS_TYPE_FOLLOWS: ItemFlags = ItemFlags(0x0800);
    /// A name follows.
    pub const XNAME_FOLLOWS: ItemFlags = ItemFlags(0x1000);
    /// The entry is new.
    pub const IS_NEW: ItemFlags = ItemFlags(0x2000);
    /// The receiver changes the entry without data of the sender.
    pub const LOCAL_CHANGE: ItemFlags = ItemFlags(0x4000);
    /// Data of the sender is needed.
    pub const TRANSFER: ItemFlags = ItemFlags(0x8000);

    /// Returns whether all flags of `other` are set.
    pub fn has(self, other: ItemFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for ItemFlags {
    type Output = ItemFlags;

    fn bitor(self, other: ItemFlags) -> ItemFlags {
        ItemFlags(self.0 | other.0)
    }
}

/// The kind of file that serves as basis, as a number of the wire. Numbers below 0x80 are those of alternate
/// directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BasisType(pub u8);

impl BasisType {
    /// The destination file. It is not sent.
    pub const DESTINATION: BasisType = BasisType(0x80);
    /// The file in `--partial-dir`.
    pub const PARTIAL: BasisType = BasisType(0x81);
    /// The backup of the destination file, which is updated in place.
    pub const BACKUP: BasisType = BasisType(0x82);
    /// A similar file in the same directory. The next numbers are similar files in alternate directories.
    pub const FUZZY: BasisType = BasisType(0x83);
}

/// The fields of an item after its index, up to the attributes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ItemHead {
    /// The flags. The two flags for the fields below are set by the encoder.
    pub flags: ItemFlags,
    /// The basis; `None` for the destination file.
    pub basis: Option<BasisType>,
    /// The name of a similar basis, or of the first of a group of hard links; can be empty.
    pub name: Option<Vec<u8>>,
}

impl ItemHead {
    /// Appends the head. Before protocol 29 there is none: every item is a request.
    pub fn encode(&self, protocol: u8, out: &mut Vec<u8>) {
        if protocol < 29 {
            return;
        }
        let follow = ItemFlags::BASIS_TYPE_FOLLOWS.0 | ItemFlags::XNAME_FOLLOWS.0;
        let mut flags = self.flags.0 & !follow;
        flags |= self.basis.map_or(0, |_| ItemFlags::BASIS_TYPE_FOLLOWS.0);
        flags |= self.name.as_ref().map_or(0, |_| ItemFlags::XNAME_FOLLOWS.0);
        out.put_shortint(flags);
        if let Some(BasisType(number)) = self.basis {
            out.put(&[number]);
        }
        if let Some(name) = &self.name {
            out.put_vstring(name);
        }
    }

    /// Reads a head.
    pub fn decode(input: &mut impl Read, protocol: u8) -> Result<ItemHead> {
        if protocol < 29 {
            return Ok(ItemHead {
                flags: ItemFlags::TRANSFER,
                ..ItemHead::default()
            });
        }
        let flags = ItemFlags(input.shortint()?);
        let basis = if flags.has(ItemFlags::BASIS_TYPE_FOLLOWS) {
            Some(BasisType(input.byte()?))
        } else {
            None
        };
        let name = if flags.has(ItemFlags::XNAME_FOLLOWS) {
            let len = input.vstring_len()? as i64;
            let len = checked(len, PATH_MAX_BYTES, "the length of the name of an item")?;
            Some(input.byte_vec(len)?)
        } else {
            None
        };
        Ok(ItemHead { flags, basis, name })
    }

    /// Returns whether a request or answer for extended attributes follows, if the run preserves them and is no dry
    /// run. `has_shortcut`: protocol 31 or later without
    /// [`AVOID_XATTR_OPTIM`](super::handshake::CompatFlags::AVOID_XATTR_OPTIM).
    pub fn has_xattrs(&self, has_shortcut: bool) -> bool {
        let is_linked = self
            .flags
            .has(ItemFlags::XNAME_FOLLOWS | ItemFlags::LOCAL_CHANGE);
        self.flags.has(ItemFlags::REPORT_XATTR) && !(has_shortcut && is_linked)
    }
}

/// The head of the block sums of a basis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SumHead {
    /// The number of blocks.
    pub count: i32,
    /// The length of a block.
    pub block_len_bytes: i32,
    /// The length of the strong sum of a block.
    pub strong_len_bytes: i32,
    /// The length of the last block if it is shorter, else 0.
    pub remainder_bytes: i32,
}

impl SumHead {
    /// Returns the head for a basis of this length; empty if there is no basis. `block_len_bytes` is the value of
    /// `--block-size`. In a retry the strong sums are complete.
    pub fn of_basis(
        basis_len_bytes: u64,
        block_len_bytes: Option<u32>,
        sums: &Sums,
        protocol: u8,
        is_retry: bool,
    ) -> Result<SumHead> {
        if basis_len_bytes == 0 {
            return Ok(SumHead::default());
        }
        let block = block_len_bytes
            .map_or_else(|| block_len(basis_len_bytes, protocol), u64::from)
            .max(1);
        let block = block.min(block_max(protocol) as u64);
        let count = basis_len_bytes.div_ceil(block).cast_signed();
        let count = checked(
            count,
            BLOCKS_MAX as usize,
            "the number of blocks of a basis",
        )? as i32;
        let longest = sums.strong_len_max_bytes();
        let strong = if is_retry {
            longest
        } else {
            strong_len(basis_len_bytes, block, longest)
        };
        Ok(SumHead {
            count,
            block_len_bytes: block as i32,
            strong_len_bytes: strong as i32,
            remainder_bytes: (basis_len_bytes % block) as i32,
        })
    }

    /// Appends the head.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_int(self.count);
        out.put_int(self.block_len_bytes);
        out.put_int(self.strong_len_bytes);
        out.put_int(self.remainder_bytes);
    }

    /// Reads a head and checks its numbers.
    pub fn decode(input: &mut impl Read, protocol: u8) -> Result<SumHead> {
        let mut next = |max: i32, what: &str| -> Result<i32> {
            Ok(checked(i64::from(input.int()?), max as usize, what)? as i32)
        };
        let count = next(BLOCKS_MAX, "the number of blocks of a basis")?;
        let block_len_bytes = next(block_max(protocol), "the length of a block")?;
        let strong_len_bytes = next(STRONG_SUM_MAX_BYTES as i32, "the length of a strong sum")?;
        let remainder_bytes = next(block_len_bytes, "the length of the last block")?;
        if count > 0 && block_len_bytes == 0 {
            return Err(violation("blocks of no length"));
        }
        Ok(SumHead {
            count,
            block_len_bytes,
            strong_len_bytes,
            remainder_bytes,
        })
    }

    /// Returns the length of the sums that follow, all together.
    pub fn sums_len_bytes(&self) -> usize {
        let sum_len_bytes = size_of::<u32>() + self.strong_len_bytes.max(0) as usize;
        self.count.max(0) as usize * sum_len_bytes
    }

    /// Returns the length of the basis.
    pub fn basis_len_bytes(&self) -> u64 {
        let all = i64::from(self.count) * i64::from(self.block_len_bytes);
        let missing = match self.remainder_bytes {
            0 => 0,
            remainder => i64::from(self.block_len_bytes - remainder),
        };
        (all - missing).max(0).cast_unsigned()
    }

    /// Returns offset and length of a block; `None` if there is no such block.
    pub fn block(&self, number: u32) -> Option<(u64, usize)> {
        let last = u32::try_from(self.count).ok()?.checked_sub(1)?;
        if number > last {
            return None;
        }

        let is_short = number == last && self.remainder_bytes > 0;
        let len = if is_short {
            self.remainder_bytes
        } else {
            self.block_len_bytes
        };
        let offset = u64::from(number) * u64::from(self.block_len_bytes.cast_unsigned());
        Some((offset, len as usize))
    }
}

/// Returns the greatest length of a block.
pub fn block_max(protocol: u8) -> i32 {
    if protocol < 30 {
        OLD_BLOCK_MAX_BYTES
    } else {
        BLOCK_MAX_BYTES
    }
}

/// Returns the length of the blocks of a basis without `--block-size`.
fn block_len(basis_len_bytes: u64, protocol: u8) -> u64 {
    const SHORTEST: u64 = 700;
    match basis_len_bytes {
        ..=490_000 => SHORTEST,
        len => (len.isqrt() & !7).clamp(SHORTEST, block_max(protocol) as u64),
    }
}

/// Returns the length of the strong sum that makes a false match improbable.
fn strong_len(basis_len_bytes: u64, block_len_bytes: u64, longest: usize) -> usize {
    let bits = 10 + 2 * i64::from(basis_len_bytes.ilog2()) - i64::from(block_len_bytes.ilog2());
    (((bits + 1 - 32 + 7) / 8).max(2) as usize).min(longest)
}

/// The sums of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSum {
    /// The rolling sum.
    pub rolling: u32,
    /// The strong sum, of which as many bytes count as the head determines. The others are 0.
    pub strong: [u8; STRONG_SUM_MAX_BYTES],
}

impl BlockSum {
    /// Computes the sums of a block.
    pub fn of_block(block: &[u8], head: &SumHead, sums: &Sums) -> BlockSum {
        BlockSum {
            rolling: super::block_sums::RollingSum::new(block).value(),
            strong: BlockSum::strong_of(block, head, sums),
        }
    }

    /// Computes the strong sum of a block.
    pub fn strong_of(block: &[u8], head: &SumHead, sums: &Sums) -> [u8; STRONG_SUM_MAX_BYTES] {
        let sum = sums.block_sum(block);
        let len = sum
            .len()
            .min(head.strong_len_bytes.max(0) as usize)
            .min(STRONG_SUM_MAX_BYTES);
        let mut strong = [0; STRONG_SUM_MAX_BYTES];
        strong[..len].copy_from_slice(&sum[..len]);
        strong
    }

    /// Appends the sums.
    pub fn encode(&self, head: &SumHead, out: &mut Vec<u8>) {
        out.put_int(self.rolling.cast_signed());
        out.put(&self.strong[..head.strong_len_bytes as usize]);
    }

    /// Reads the sums of one block. The caller reads as many as the head counts.
    pub fn decode(input: &mut impl Read, head: &SumHead) -> Result<BlockSum> {
        let rolling = input.int()?.cast_unsigned();
        let mut strong = [0; STRONG_SUM_MAX_BYTES];
        input.read_exact(&mut strong[..head.strong_len_bytes as usize])?;
        Ok(BlockSum { rolling, strong })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Checksum;
    use proptest::prelude::*;

    const SUMS: Sums = Sums {
        checksum: Checksum::Xxh128,
        seed: 0,
        is_seed_first: true,
        is_implied: false,
    };

    #[test]
    fn heads_follow_the_length_of_the_basis() {
        let head = |len, protocol, is_retry| {
            let head = SumHead::of_basis(len, None, &SUMS, protocol, is_retry).unwrap();
            (
                head.count,
                head.block_len_bytes,
                head.strong_len_bytes,
                head.remainder_bytes,
            )
        };
        assert_eq!(head(0, 32, false), (0, 0, 0, 0));
        assert_eq!(head(70_000, 32, false), (100, 700, 2, 0));
        assert_eq!(head(70_001, 32, true), (101, 700, 16, 1));
        assert_eq!(head(490_001, 32, false), (701, 700, 2, 1));
        assert_eq!(head(500_000, 32, false), (711, 704, 2, 160));
        assert_eq!(head(1 << 25, 32, false), (5794, 5792, 3, 1376));
        assert_eq!(head(1 << 40, 32, false), (1 << 23, 1 << 17, 6, 0));
        assert_eq!(head(1 << 40, 29, false), (1 << 20, 1 << 20, 5, 0));
        let chosen = SumHead::of_basis(100, Some(32), &SUMS, 32, false).unwrap();
        assert_eq!(
            (
                chosen.count,
                chosen.remainder_bytes,
                chosen.basis_len_bytes()
            ),
            (4, 4, 100)
        );
        assert_eq!(
            (chosen.block(2), chosen.block(3), chosen.block(4)),
            (Some((64, 32)), Some((96, 4)), None)
        );
    }

    #[test]
    fn blocks_are_shorter_from_protocol_30_on() {
        assert_eq!(block_max(29), OLD_BLOCK_MAX_BYTES);
        assert_eq!(block_max(30), BLOCK_MAX_BYTES);
    }

    #[test]
    fn attributes_follow_unless_a_link_has_them() {
        let report = ItemFlags::REPORT_XATTR;
        let linked = ItemFlags::XNAME_FOLLOWS | ItemFlags::LOCAL_CHANGE;
        for (flags, has_shortcut, expected) in [
            (report, false, true),
            (report, true, true),
            (report | linked, false, true),
            (report | linked, true, false),
            (report | ItemFlags::LOCAL_CHANGE, true, true),
            (linked, false, false),
            (ItemFlags::LOCAL_CHANGE, false, false),
        ] {
            let head = ItemHead {
                flags,
                basis: None,
                name: None,
            };
            assert_eq!(head.has_xattrs(has_shortcut), expected, "{flags:?}");
        }
    }

    #[test]
    fn sums_take_four_bytes_and_the_strong_sum_each() {
        let head = SumHead::of_basis(70_001, None, &SUMS, 32, false).unwrap();
        assert_eq!((head.count, head.strong_len_bytes), (101, 2));
        assert_eq!(head.sums_len_bytes(), 606);
    }

    #[test]
    fn heads_beyond_a_limit_are_rejected() {
        for numbers in [
            [-1, 700, 2, 0],
            [1, 0, 2, 0],
            [1, (128 << 10) + 1, 2, 0],
            [1, 700, 17, 0],
            [1, 700, 2, 701],
        ] {
            let bytes: Vec<u8> = numbers.into_iter().flat_map(i32::to_le_bytes).collect();
            assert!(SumHead::decode(&mut &bytes[..], 32).is_err(), "{numbers:?}");
        }
    }

    proptest! {
        #[test]
        fn items_are_decoded_as_they_were_encoded(
            flags: u16, basis: Option<u8>, name in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300)),
            len in 0u64..1 << 40, protocol in 29u8..33,
        ) {
            let mut item = ItemHead { flags: ItemFlags(flags), basis: basis.map(BasisType), name };
            let head = SumHead::of_basis(len, None, &SUMS, protocol, false).unwrap();
            let mut out = Vec::new();
            item.encode(protocol, &mut out);
            head.encode(&mut out);
            prop_assert_eq!(head.basis_len_bytes(), len);
            let mut input = &out[..];
            let decoded = ItemHead::decode(&mut input, protocol).unwrap();
            item.flags = decoded.flags;
            prop_assert_eq!(decoded.flags.0 & !0x1800, flags & !0x1800);
            prop_assert_eq!(decoded, item);
            prop_assert_eq!(SumHead::decode(&mut input, protocol).unwrap(), head);
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..50), protocol in 27u8..33) {
            let _ = ItemHead::decode(&mut &bytes[..], protocol);
            if let Ok(head) = SumHead::decode(&mut &bytes[..], protocol) {
                let _ = BlockSum::decode(&mut &bytes[..], &head);
                let _ = (head.basis_len_bytes(), head.block(3), head.block(u32::MAX));
            }
        }
    }
}

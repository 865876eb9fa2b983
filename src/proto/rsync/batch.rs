//! The header of batch files. The data stream of the sender follows it.

use super::decode_error::{Result, violation};
use super::handshake::{CompatFlags, VERSIONS};
use super::number::{ReadWire as _, WriteWire as _};
use std::io::Read;

/// Options that a batch file records, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchOptions(pub u32);

impl BatchOptions {
    /// `-r`
    pub const RECURSE: BatchOptions = BatchOptions(1);
    /// `-o`
    pub const OWNERS: BatchOptions = BatchOptions(1 << 1);
    /// `-g`
    pub const GROUPS: BatchOptions = BatchOptions(1 << 2);
    /// `-l`
    pub const LINKS: BatchOptions = BatchOptions(1 << 3);
    /// `--devices`
    pub const DEVICES: BatchOptions = BatchOptions(1 << 4);
    /// `-H`
    pub const HARD_LINKS: BatchOptions = BatchOptions(1 << 5);
    /// `-c`
    pub const CHECKSUM: BatchOptions = BatchOptions(1 << 6);
    /// `-d`, which `-r` sets too.
    pub const DIRS: BatchOptions = BatchOptions(1 << 7);
    /// `-z`
    pub const COMPRESS: BatchOptions = BatchOptions(1 << 8);
    /// `--iconv`
    pub const ICONV: BatchOptions = BatchOptions(1 << 9);
    /// `-A`
    pub const ACLS: BatchOptions = BatchOptions(1 << 10);
    /// `-X`
    pub const XATTRS: BatchOptions = BatchOptions(1 << 11);
    /// `--inplace`
    pub const INPLACE: BatchOptions = BatchOptions(1 << 12);
    /// `--append`
    pub const APPEND: BatchOptions = BatchOptions(1 << 13);
    /// `--append-verify`
    pub const APPEND_VERIFY: BatchOptions = BatchOptions(1 << 14);

    /// Returns whether all options of `other` are recorded.
    pub fn has(self, other: BatchOptions) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether a file of this version records these options.
    pub fn is_in(self, protocol: u8) -> bool {
        self.valid_in(protocol) == self
    }

    /// Returns the options that a file of this version records.
    fn valid_in(self, protocol: u8) -> BatchOptions {
        let bits = match protocol {
            30.. => 15,
            29 => 9,
            _ => 7,
        };
        BatchOptions(self.0 & ((1 << bits) - 1))
    }
}

/// The header of a batch file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// The options of the run.
    pub options: BatchOptions,
    /// The version of the recorded connection.
    pub protocol: u8,
    /// The flags of the recorded connection, from protocol 30 on.
    pub compat: CompatFlags,
    /// The checksum seed.
    pub seed: i32,
}

impl BatchHeader {
    /// Appends the header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_int(self.options.valid_in(self.protocol).0.cast_signed());
        out.put_int(i32::from(self.protocol));
        if self.protocol >= 30 {
            self.compat.encode(out);
        }
        out.put_int(self.seed);
    }

    /// Reads the header. Fails if the version is not one of [`VERSIONS`], or newer than `newest`.
    pub fn decode(input: &mut impl Read, newest: u8) -> Result<BatchHeader> {
        let options = BatchOptions(input.int()?.cast_unsigned());
        let version = input.int()?;
        if version > i32::from(newest) {
            let cause = format!(
                "The protocol version in the batch file is too new ({version} > {newest})."
            );
            return Err(violation(cause));
        }
        let protocol = u8::try_from(version)
            .ok()
            .filter(|protocol| VERSIONS.contains(protocol));
        let protocol = protocol.ok_or_else(|| {
            violation(format!(
                "sparsync: cannot read the batch file: protocol {version} is not supported"
            ))
        })?;
        let compat = if protocol >= 30 {
            CompatFlags::decode(input)?
        } else {
            CompatFlags::default()
        };
        Ok(BatchHeader {
            options: options.valid_in(protocol),
            protocol,
            compat,
            seed: input.int()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_is_decoded_as_it_was_encoded(bits in 0u32..1 << 15, protocol in 27u8..33, flags in 0u32..512, seed: i32) {
            let compat = CompatFlags(if protocol >= 30 { flags } else { 0 });
            let header = BatchHeader { options: BatchOptions(bits).valid_in(protocol), protocol, compat, seed };
            let mut out = Vec::new();
            header.encode(&mut out);
            let mut input = &out[..];
            prop_assert_eq!(BatchHeader::decode(&mut input, 32).unwrap(), header);
            prop_assert!(input.is_empty());
        }
    }

    #[test]
    fn older_files_record_fewer_options() {
        for (option, protocol, is_recorded) in [
            (BatchOptions::CHECKSUM, 28, true),
            (BatchOptions::DIRS, 28, false),
            (BatchOptions::COMPRESS, 29, true),
            (BatchOptions::ICONV, 29, false),
            (BatchOptions::APPEND_VERIFY, 30, true),
        ] {
            assert_eq!(option.is_in(protocol), is_recorded, "{option:?} {protocol}");
        }
    }

    #[test]
    fn other_versions_are_rejected() {
        for version in [26, 33, -1] {
            let bytes = [0, version, 0, 0].map(i32::to_le_bytes).concat();
            assert!(
                BatchHeader::decode(&mut &bytes[..], 32).is_err(),
                "{version}"
            );
        }
    }
}

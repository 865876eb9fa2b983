//! The end of a run: statistics and deletion counts.

use super::decode_error::{Result, violation};
use super::limits::DELETIONS_MAX;
use super::number::{ReadWire as _, WriteWire as _};
use std::io::Read;

/// The statistics that a sending server reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// The bytes that the server read.
    pub read_bytes: i64,
    /// The bytes that the server wrote.
    pub written_bytes: i64,
    /// The total length of the files and symlinks of the lists.
    pub total_bytes: i64,
    /// How long the list took to build, from protocol 29 on.
    pub list_build_ms: i64,
    /// How long the list took to send, from protocol 29 on.
    pub list_send_ms: i64,
}

impl Stats {
    /// Appends the statistics.
    pub fn encode(&self, protocol: u8, out: &mut Vec<u8>) {
        let Stats {
            read_bytes,
            written_bytes,
            total_bytes,
            list_build_ms,
            list_send_ms,
        } = *self;
        let all = [
            read_bytes,
            written_bytes,
            total_bytes,
            list_build_ms,
            list_send_ms,
        ];
        let count = if protocol < 29 { 3 } else { 5 };
        for number in &all[..count] {
            out.put_varlong30(protocol, *number, 3);
        }
    }

    /// Reads the statistics.
    pub fn decode(input: &mut impl Read, protocol: u8) -> Result<Stats> {
        let mut next = || match input.varlong30(protocol, 3)? {
            number @ 0.. => Ok(number),
            number => Err(violation(format!("a statistic of {number}"))),
        };
        let read_bytes = next()?;
        let written_bytes = next()?;
        let total_bytes = next()?;
        let (list_build_ms, list_send_ms) = if protocol < 29 {
            (0, 0)
        } else {
            (next()?, next()?)
        };
        Ok(Stats {
            read_bytes,
            written_bytes,
            total_bytes,
            list_build_ms,
            list_send_ms,
        })
    }
}

/// How many entries were deleted, by type. Follows [`Ndx::Deletions`](super::number::Ndx::Deletions).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeletionCounts {
    /// Regular files.
    pub files: u32,
    /// Directories.
    pub dirs: u32,
    pub symlinks: u32,
    pub devices: u32,
    /// Fifos and sockets.
    pub specials: u32,
}

impl DeletionCounts {
    /// Appends the counts. Counts beyond the limit are sent as the limit.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let DeletionCounts {
            files,
            dirs,
            symlinks,
            devices,
            specials,
        } = *self;
        for count in [files, dirs, symlinks, devices, specials] {
            out.put_varint(count.min(DELETIONS_MAX.cast_unsigned()).cast_signed());
        }
    }

    /// Reads the counts.
    pub fn decode(input: &mut impl Read) -> Result<DeletionCounts> {
        let mut next = || {
            input
                .varint_in(DELETIONS_MAX as usize, "the number of deletions")
                .map(|count| count as u32)
        };
        Ok(DeletionCounts {
            files: next()?,
            dirs: next()?,
            symlinks: next()?,
            devices: next()?,
            specials: next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn statistics_are_decoded_as_they_were_encoded(numbers: [i64; 5], counts: [u32; 5], protocol in 29u8..33) {
            let [read_bytes, written_bytes, total_bytes, list_build_ms, list_send_ms] = numbers.map(|number| number & i64::MAX);
            let stats = Stats { read_bytes, written_bytes, total_bytes, list_build_ms, list_send_ms };
            let [files, dirs, symlinks, devices, specials] = counts.map(|count| count >> 4);
            let deletions = DeletionCounts { files, dirs, symlinks, devices, specials };
            let mut out = Vec::new();
            stats.encode(protocol, &mut out);
            deletions.encode(&mut out);
            let mut input = &out[..];
            prop_assert_eq!(Stats::decode(&mut input, protocol).unwrap(), stats);
            prop_assert_eq!(DeletionCounts::decode(&mut input).unwrap(), deletions);
            prop_assert!(input.is_empty());
        }
    }
}

//! The sums of blocks in a session with an rsync.

use super::error::undecodable;
use crate::apply::block_sums::{BlockSums, EmitPart, SearchedFile, SummedBasis};
use crate::digest::CONTENT_LEN_BYTES;
use crate::error::Result;
use crate::flist::Kind;
use crate::fs::sys;
use crate::proto::rsync::block_sums::Sums;
use crate::proto::rsync::item::{BlockSum, SumHead};
use crate::proto::rsync::search::BlockIndex;
use std::io;
use std::os::fd::BorrowedFd;

/// How much of a basis is read at a time, at least.
const SUMMED_BYTES: usize = 256 << 10;

/// The sums that rsync's protocol has for the blocks of a basis.
#[derive(Clone, Copy)]
pub struct RsyncBlockSums {
    /// The checksum with its seed.
    pub sums: Sums,
    /// The protocol version.
    pub protocol: u8,
}

impl BlockSums for RsyncBlockSums {
    fn of_basis(&self, basis: &SummedBasis<'_>) -> io::Result<Vec<u8>> {
        let head = SumHead::of_basis(
            basis.len_bytes,
            basis.block_len_bytes,
            &self.sums,
            self.protocol,
            basis.is_retry,
        );
        self.encode(&head.map_err(io::Error::other)?, basis.read_at)
    }

    fn find(
        &self,
        encoded: &[u8],
        file: &SearchedFile<'_>,
        emit: &mut EmitPart<'_>,
    ) -> Result<io::Result<[u8; CONTENT_LEN_BYTES]>> {
        let index = BlockIndex::decode(encoded, self.sums, self.protocol).map_err(undecodable)?;
        Ok(index.search(file.in_place, file.read_at, emit))
    }
}

impl RsyncBlockSums {
    /// Returns the sums of an open file; those of an empty one, if it is no regular file.
    pub fn of_file(&self, fd: BorrowedFd<'_>, block_len_bytes: Option<u32>) -> io::Result<Vec<u8>> {
        let stat = sys::fstat(fd)?;
        let len_bytes = if Kind::of_mode(stat.mode) == Some(Kind::File) {
            stat.len_bytes
        } else {
            0
        };
        self.of_basis(&SummedBasis {
            len_bytes,
            block_len_bytes,
            threads: 1,
            is_retry: false,
            read_at: &|offset, into| sys::pread(fd, into, offset),
        })
    }

    /// Returns the head and the sums of the blocks of a basis.
    fn encode(
        &self,
        head: &SumHead,
        read_at: &dyn Fn(u64, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        head.encode(&mut out);
        if head.count == 0 {
            return Ok(out);
        }
        let block_len = head.block_len_bytes as usize;
        let mut buffer = vec![0; SUMMED_BYTES.div_ceil(block_len) * block_len];
        let mut at = 0;
        let end = head.basis_len_bytes();
        while at < end {
            let left = usize::try_from(end - at).unwrap_or(usize::MAX);
            let len = buffer.len().min(left);
            let mut got = 0;
            while got < len {
                match read_at(at + got as u64, &mut buffer[got..len])? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    count => got += count,
                }
            }
            for block in buffer[..len].chunks(block_len) {
                BlockSum::of_block(block, head, &self.sums).encode(head, &mut out);
            }
            at += len as u64;
        }
        Ok(out)
    }
}

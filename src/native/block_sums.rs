//! The sums of blocks between two sparsyncs: signatures of the delta engine.

use crate::apply::block_sums::{BlockSums, EmitPart, SearchedFile, SummedBasis};
use crate::delta::{Op, Signature, block_len, search, search_at};
use crate::digest::CONTENT_LEN_BYTES;
use crate::error::Result;
use crate::session::connection::unexpected;
use std::io;

/// Files from this length on are searched by several threads.
const SEARCH_BY_SEVERAL_BYTES: u64 = 64 << 20;

/// The [`Signature`] of a basis.
pub struct Signatures;

impl BlockSums for Signatures {
    fn of_basis(&self, basis: &SummedBasis<'_>) -> io::Result<Vec<u8>> {
        let block_len = block_len(basis.len_bytes, basis.block_len_bytes);
        let signature = Signature::read(basis.len_bytes, block_len, basis.threads, basis.read_at)?;
        Ok(signature.encode())
    }

    fn find(
        &self,
        encoded: &[u8],
        file: &SearchedFile<'_>,
        emit: &mut EmitPart<'_>,
    ) -> Result<io::Result<[u8; CONTENT_LEN_BYTES]>> {
        let signature = Signature::decode(encoded).map_err(|bad| unexpected(&bad.to_string()))?;
        let SearchedFile {
            len_bytes,
            in_place,
            threads,
            read_at,
        } = *file;
        // The receiver has the bytes of a range.
        let mut emit = |op: Op<'_>| emit(op, &[]);
        let found = if len_bytes >= SEARCH_BY_SEVERAL_BYTES {
            search_at(&signature, len_bytes, in_place, threads, read_at, &mut emit)
        } else {
            let mut at = 0;
            let mut read = |into: &mut [u8]| {
                let got = read_at(at, into)?;
                at += got as u64;
                Ok(got)
            };
            search(&signature, len_bytes, in_place, &mut read, &mut emit)
        };
        Ok(found.map(|found| found.digest))
    }
}

//! Compression of what goes to a peer: the stream is cut into chunks, each sent as it is or squeezed by zstd, whichever is
//! better now.
//!
//! One zstd context serves the whole stream, so that what is alike in many small files is sent once. A chunk is a byte
//! that says which it is, the length of what follows in four bytes (little-endian), and that.

use crate::work::clock::Since;
use std::io::{self, Read, Write};
use zstd::stream::raw::{Decoder, Encoder, InBuffer, Operation, OutBuffer};

/// A chunk goes as it is.
const PLAIN: u8 = 0;
/// A chunk is the next part of the zstd stream.
const SQUEEZED: u8 = 1;
/// The head of a chunk: its kind and its length.
const HEAD_BYTES: usize = 5;
/// The most that one chunk carries, before it is squeezed.
pub const CHUNK_MAX_BYTES: usize = 256 << 10;
/// The most that a squeezed chunk may take: zstd adds little to what it cannot squeeze.
const SQUEEZED_MAX_BYTES: usize = CHUNK_MAX_BYTES + (CHUNK_MAX_BYTES >> 7) + 1024;
/// Up to this length a piece is copied behind its head.
const COPIED_MAX_BYTES: usize = 32 << 10;
/// The history that zstd may refer to, as a power of two: 4 MiB at either end.
const WINDOW_LOG: u32 = 22;
/// After a chunk that could not be squeezed so many bytes go as they are before the next attempt.
const PLAIN_AFTER_LOSS_BYTES: u64 = 4 << 20;
/// A link that takes fewer bytes than these in a second is slower than zstd at its cheapest level, also on a machine that
/// has other work. ssh alone, on two busy processors, takes more.
const SLOW_BYTES_PER_SEC: u64 = 16 << 20;
/// Before so much was written nothing is known of the link.
const KNOWN_AFTER_BYTES: u64 = 512 << 10;

/// When to squeeze.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Squeeze {
    /// Never.
    Never,
    /// Whatever can be squeezed, at this level of zstd.
    Always(i32),
    /// While the link is slower than the cheapest level.
    IfSlow,
}

/// Writes chunks.
pub struct Squeezer<W> {
    writer: W,
    when: Squeeze,
    encoder: Option<Encoder<'static>>,
    /// What the next chunk is put together in.
    chunk: Vec<u8>,
    /// Bytes that still go as they are after a loss.
    plain_bytes: u64,
    /// Bytes that the link took, and the microseconds that this took.
    taken: (u64, u128),
}

impl<W: Write> Squeezer<W> {
    /// Writes to `writer`.
    pub fn new(writer: W, when: Squeeze) -> Squeezer<W> {
        Squeezer { writer, when, encoder: None, chunk: Vec::new(), plain_bytes: 0, taken: (0, 0) }
    }

    fn level(&self) -> Option<i32> {
        match self.when {
            Squeeze::Never => None,
            _ if self.plain_bytes > 0 => None,
            Squeeze::Always(level) => Some(level),
            Squeeze::IfSlow => {
                let (bytes, micros) = self.taken;
                let rate = u128::from(bytes) * 1_000_000 / micros.max(1);
                (bytes >= KNOWN_AFTER_BYTES && rate < u128::from(SLOW_BYTES_PER_SEC)).then_some(1)
            }
        }
    }

    /// Squeezes a piece into the chunk; `false`: that would make it longer, or hardly shorter.
    fn squeeze(&mut self, piece: &[u8], level: i32) -> io::Result<bool> {
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            none => {
                let mut encoder = Encoder::new(level)?;
                encoder.set_parameter(zstd::stream::raw::CParameter::WindowLog(WINDOW_LOG))?;
                none.insert(encoder)
            }
        };
        self.chunk.resize(HEAD_BYTES + SQUEEZED_MAX_BYTES, 0);
        let mut input = InBuffer::around(piece);
        let mut output = OutBuffer::around(&mut self.chunk[HEAD_BYTES..]);
        while input.pos() < piece.len() {
            encoder.run(&mut input, &mut output)?;
        }
        while encoder.flush(&mut output)? > 0 {}
        let len = output.pos();
        self.chunk.truncate(HEAD_BYTES + len);
        Ok(len < piece.len() - piece.len() / 16)
    }

    fn put(&mut self, piece: &[u8]) -> io::Result<()> {
        self.chunk.clear();
        let mut kind = PLAIN;
        if let Some(level) = self.level() {
            kind = SQUEEZED;
            // What was squeezed is part of zstd's history and must go so, worth it or not.
            if !self.squeeze(piece, level)? {
                self.plain_bytes = PLAIN_AFTER_LOSS_BYTES;
            }
        } else {
            self.plain_bytes = self.plain_bytes.saturating_sub(piece.len() as u64);
            self.chunk.resize(HEAD_BYTES, 0);
        }
        // What goes as it is need not be copied, unless it is so short that a second write would cost more.
        let is_apart = kind == PLAIN && piece.len() > COPIED_MAX_BYTES;
        if kind == PLAIN && !is_apart {
            self.chunk.extend_from_slice(piece);
        }
        let len = if is_apart { piece.len() } else { self.chunk.len() - HEAD_BYTES };
        self.chunk[0] = kind;
        self.chunk[1..HEAD_BYTES].copy_from_slice(&(len as u32).to_le_bytes());
        let since = Since::now();
        self.writer.write_all(&self.chunk)?;
        if is_apart {
            self.writer.write_all(piece)?;
        }
        self.taken = (self.taken.0 + len as u64, self.taken.1 + since.elapsed().as_micros());
        // What counts is the link as it is now.
        if self.taken.0 >= 16 * KNOWN_AFTER_BYTES {
            self.taken = (self.taken.0 / 2, self.taken.1 / 2);
        }
        Ok(())
    }
}

impl<W: Write> Write for Squeezer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.chunks(CHUNK_MAX_BYTES) {
            self.put(piece)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Reads chunks.
pub struct Expander<R> {
    reader: R,
    decoder: Option<Decoder<'static>>,
    /// What is left of the chunk at hand, as it came.
    chunk: Vec<u8>,
    at: usize,
    kind: u8,
    /// zstd may have more of what it has read already.
    has_more: bool,
}

impl<R: Read> Expander<R> {
    /// Reads from `reader`.
    pub fn new(reader: R) -> Expander<R> {
        Expander { reader, decoder: None, chunk: Vec::new(), at: 0, kind: PLAIN, has_more: false }
    }

    /// Reads the next chunk; whether there is one.
    fn next_chunk(&mut self) -> io::Result<bool> {
        let mut head = [0; HEAD_BYTES];
        let mut filled = 0;
        while filled < HEAD_BYTES {
            match self.reader.read(&mut head[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => filled += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let max = match head[0] {
            PLAIN => CHUNK_MAX_BYTES,
            SQUEEZED => SQUEEZED_MAX_BYTES,
            kind => return Err(bad(&format!("a chunk of the unknown kind {kind}"))),
        };
        if len > max {
            return Err(bad(&format!("a chunk of {len} bytes")));
        }
        self.kind = head[0];
        // If it does not come, there is nothing at hand; whoever drains a broken stream reads on.
        let mut chunk = std::mem::take(&mut self.chunk);
        self.at = 0;
        chunk.resize(len, 0);
        self.reader.read_exact(&mut chunk)?;
        self.chunk = chunk;
        Ok(true)
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the peer sent {what}"))
}

impl<R: Read> Read for Expander<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            if self.at == self.chunk.len() && !self.has_more && !self.next_chunk()? {
                return Ok(0);
            }
            let rest = &self.chunk[self.at..];
            if self.kind == PLAIN {
                let got = rest.len().min(into.len());
                into[..got].copy_from_slice(&rest[..got]);
                self.at += got;
                if got > 0 {
                    return Ok(got);
                }
                continue;
            }
            let decoder = match &mut self.decoder {
                Some(decoder) => decoder,
                none => {
                    let mut decoder = Decoder::new()?;
                    decoder.set_parameter(zstd::stream::raw::DParameter::WindowLogMax(WINDOW_LOG))?;
                    none.insert(decoder)
                }
            };
            let mut input = InBuffer::around(rest);
            let mut output = OutBuffer::around(&mut *into);
            decoder.run(&mut input, &mut output).map_err(|error| bad(&format!("what zstd refuses ({error})")))?;
            let got = output.pos();
            self.at += input.pos();
            // A full buffer may mean that there was more to put into it.
            self.has_more = got == into.len();
            if got > 0 {
                return Ok(got);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn there_and_back(pieces: &[Vec<u8>], when: Squeeze) -> (Vec<u8>, usize) {
        let mut wire = Vec::new();
        let mut squeezer = Squeezer::new(&mut wire, when);
        pieces.iter().for_each(|piece| squeezer.write_all(piece).unwrap());
        let mut back = Vec::new();
        Expander::new(&wire[..]).read_to_end(&mut back).unwrap();
        (back, wire.len())
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(pieces in proptest::collection::vec(proptest::collection::vec(0u8..4, 0..5000), 0..20), level in 1..4) {
            for when in [Squeeze::Never, Squeeze::Always(level), Squeeze::IfSlow] {
                prop_assert_eq!(there_and_back(&pieces, when).0, pieces.concat());
            }
        }

        #[test]
        fn whatever_comes_is_expanded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0u8..3) {
            let mut chunk = vec![kind];
            chunk.extend((bytes.len() as u32).to_le_bytes());
            chunk.extend(&bytes);
            let mut back = Vec::new();
            let _ = Expander::new(&chunk[..]).read_to_end(&mut back);
        }
    }

    #[test]
    fn many_small_pieces_that_are_alike_become_short() {
        let pieces: Vec<Vec<u8>> = (0..200).map(|n| format!("{n} {}", "the same words ".repeat(60)).into()).collect();
        let (back, wire) = there_and_back(&pieces, Squeeze::Always(3));
        assert_eq!(back, pieces.concat());
        assert!(wire < back.len() / 20, "{wire} of {}", back.len());
    }

    #[test]
    fn what_cannot_be_squeezed_costs_next_to_nothing() {
        let pieces = vec![noise(CHUNK_MAX_BYTES); 20];
        let (back, wire) = there_and_back(&pieces, Squeeze::Always(3));
        assert_eq!(back, pieces.concat());
        assert!(wire < back.len() + 2048, "{wire} of {}", back.len());
    }

    #[test]
    fn chunks_that_lie_are_refused() {
        for chunk in
            [&b"\x02\0\0\0\0"[..], b"\0\xff\xff\xff\xff", b"\x01\xff\xff\xff\x7f", b"\0\x05\0\0\0abc", b"\0\x05"]
        {
            let mut back = Vec::new();
            assert!(Expander::new(chunk).read_to_end(&mut back).is_err(), "{chunk:?}");
        }
    }

    #[test]
    fn a_window_that_is_larger_than_agreed_is_refused() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
        encoder.set_parameter(zstd::stream::raw::CParameter::WindowLog(WINDOW_LOG + 5)).unwrap();
        // It must be needed to be said.
        (0..40).for_each(|_| encoder.write_all(&vec![7; 1 << 20]).unwrap());
        let stream = encoder.finish().unwrap();
        let chunk = [&[SQUEEZED], &(stream.len() as u32).to_le_bytes()[..], &stream].concat();
        let mut back = Vec::new();
        let refused = Expander::new(&chunk[..]).read_to_end(&mut back).unwrap_err();
        assert!(refused.to_string().contains("what zstd refuses") && back.is_empty(), "{refused}: {}", back.len());
    }
}

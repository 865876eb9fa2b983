//! Compression of the stream to a peer. The stream is cut into chunks, each sent plain or compressed, whichever is
//! currently better.
//!
//! One zstd or zlib context serves the whole stream, so that content shared by many small files is sent once; lz4
//! chunks stand alone. A chunk is one byte for its kind, the length of its data in four bytes (little-endian), and the
//! data.

use crate::work::clock::Since;
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress};
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zstd::stream::raw::{Decoder, Encoder, InBuffer, Operation, OutBuffer};

/// The chunk is not compressed.
const PLAIN: u8 = 0;
/// The chunk is the next part of the zstd stream.
const ZSTD: u8 = 1;
/// The chunk is an lz4 block.
const LZ4: u8 = 2;
/// The chunk is the next part of the zlib stream.
const ZLIB: u8 = 3;
/// The head of a chunk: kind and length.
const HEAD_BYTES: usize = 5;
/// The maximum length of the uncompressed data of a chunk.
pub const CHUNK_MAX_BYTES: usize = 256 << 10;
/// The maximum length of compressed data: no method expands incompressible data by more.
const SQUEEZED_MAX_BYTES: usize = CHUNK_MAX_BYTES + (CHUNK_MAX_BYTES >> 7) + 1024;
/// Plain pieces up to this length are copied behind their head, to be written in one call.
const COPIED_MAX_BYTES: usize = 32 << 10;
/// The zstd window, as a power of two: 4 MiB of memory at each end.
const WINDOW_LOG: u32 = 22;
/// After an incompressible chunk, this many bytes are sent plain before the next attempt.
const PLAIN_AFTER_LOSS_BYTES: u64 = 4 << 20;
/// Shorter pieces do not predict whether the following data is compressible: a few numbers never shrink.
const TELLING_BYTES: usize = 4 << 10;
/// A link with a lower throughput is slower than zstd at its cheapest level, even on a busy machine. ssh alone, on two
/// busy processors, is faster than this.
const SLOW_BYTES_PER_SEC: u64 = 16 << 20;
/// The throughput of the link is unknown until this much was written.
const KNOWN_AFTER_BYTES: u64 = 512 << 10;

/// The compression method and level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// A zstd level: -131,072 to 22 without 0.
    Zstd(i32),
    /// lz4, which has no levels.
    Lz4,
    /// A zlib level: 1 to 9.
    Zlib(u32),
}

/// When to compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionPolicy {
    /// Never.
    Never,
    /// All compressible data.
    Always(Method),
    /// While the link is slower than the cheapest level of zstd.
    IfSlow,
}

/// Set while the written data should be sent plain because it is already compressed (`--skip-compress`).
pub type AsItIs = Arc<AtomicBool>;

/// The state of a compressor.
enum Compressor {
    Zstd(Encoder<'static>),
    Lz4,
    Zlib(Compress),
}

impl Compressor {
    fn new(method: Method) -> io::Result<Compressor> {
        match method {
            Method::Zstd(level) => {
                let mut encoder = Encoder::new(level)?;
                encoder.set_parameter(zstd::stream::raw::CParameter::WindowLog(WINDOW_LOG))?;
                Ok(Compressor::Zstd(encoder))
            }
            Method::Lz4 => Ok(Compressor::Lz4),
            Method::Zlib(level) => Ok(Compressor::Zlib(Compress::new(
                flate2::Compression::new(level),
                false,
            ))),
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Compressor::Zstd(_) => ZSTD,
            Compressor::Lz4 => LZ4,
            Compressor::Zlib(_) => ZLIB,
        }
    }

    /// Returns whether later chunks can refer to this one, so that it must be sent compressed even if that is longer.
    fn remembers(&self) -> bool {
        !matches!(self, Compressor::Lz4)
    }

    /// Compresses all of `piece` into `out` and returns the length.
    fn compress(&mut self, piece: &[u8], out: &mut [u8]) -> io::Result<usize> {
        match self {
            Compressor::Zstd(encoder) => {
                let mut input = InBuffer::around(piece);
                let mut output = OutBuffer::around(out);
                while input.pos() < piece.len() {
                    encoder.run(&mut input, &mut output)?;
                }
                while encoder.flush(&mut output)? > 0 {}
                Ok(output.pos())
            }
            Compressor::Lz4 => lz4_flex::block::compress_into(piece, out).map_err(io::Error::other),
            Compressor::Zlib(encoder) => {
                let taken = encoder.total_in();
                let made = encoder.total_out();
                loop {
                    let at = (encoder.total_in() - taken) as usize;
                    let end = (encoder.total_out() - made) as usize;
                    let room = &mut out[end..];
                    let space = room.len();
                    encoder
                        .compress(&piece[at..], room, FlushCompress::Sync)
                        .map_err(io::Error::other)?;
                    let at = (encoder.total_in() - taken) as usize;
                    let now = (encoder.total_out() - made) as usize;
                    // The flush is complete once it leaves room in the output.
                    if at == piece.len() && now - end < space {
                        return Ok(now);
                    }
                    if now - end == space {
                        return Err(io::Error::other("compressed chunk too long"));
                    }
                }
            }
        }
    }
}

/// Writes a stream of chunks, compressed as [`CompressionPolicy`] says.
pub struct CompressingWriter<W> {
    writer: W,
    when: CompressionPolicy,
    compressor: Option<Compressor>,
    as_it_is: AsItIs,
    /// The buffer for the next chunk.
    chunk: Vec<u8>,
    /// The number of bytes still to be sent plain after an incompressible chunk.
    plain_bytes: u64,
    /// The number of bytes written to the link, and the microseconds that took.
    taken: (u64, u128),
}

impl<W: Write> CompressingWriter<W> {
    /// Writes to `writer`, without compression while `as_it_is` is set.
    pub fn new(writer: W, when: CompressionPolicy, as_it_is: AsItIs) -> CompressingWriter<W> {
        CompressingWriter {
            writer,
            when,
            compressor: None,
            as_it_is,
            chunk: Vec::new(),
            plain_bytes: 0,
            taken: (0, 0),
        }
    }

    /// Returns the method for the next piece; `None` to send it plain.
    fn method(&self) -> Option<Method> {
        match self.when {
            CompressionPolicy::Never => None,
            _ if self.plain_bytes > 0 => None,
            CompressionPolicy::Always(method) => Some(method),
            CompressionPolicy::IfSlow => {
                let (bytes, micros) = self.taken;
                let rate = u128::from(bytes) * 1_000_000 / micros.max(1);
                if bytes >= KNOWN_AFTER_BYTES && rate < u128::from(SLOW_BYTES_PER_SEC) {
                    Some(Method::Zstd(1))
                } else {
                    None
                }
            }
        }
    }

    /// Compresses a piece into `chunk` and returns the kind of the chunk.
    fn compress(&mut self, piece: &[u8], method: Method) -> io::Result<u8> {
        let compressor = match &mut self.compressor {
            Some(compressor) => compressor,
            none => none.insert(Compressor::new(method)?),
        };
        // lz4 requires more room than it uses.
        let room = SQUEEZED_MAX_BYTES.max(lz4_flex::block::get_maximum_output_size(piece.len()));
        self.chunk.resize(HEAD_BYTES + room, 0);
        let len = compressor.compress(piece, &mut self.chunk[HEAD_BYTES..])?;
        let is_loss = len >= piece.len() - piece.len() / 16;
        if is_loss && piece.len() >= TELLING_BYTES {
            self.plain_bytes = PLAIN_AFTER_LOSS_BYTES;
        }
        if is_loss && !compressor.remembers() {
            self.chunk.truncate(HEAD_BYTES);
            return Ok(PLAIN);
        }
        self.chunk.truncate(HEAD_BYTES + len);
        Ok(compressor.kind())
    }

    fn put(&mut self, piece: &[u8]) -> io::Result<()> {
        self.chunk.clear();
        let mut kind = PLAIN;
        if self.as_it_is.load(Ordering::Relaxed) {
            self.chunk.resize(HEAD_BYTES, 0);
        } else if let Some(method) = self.method() {
            kind = self.compress(piece, method)?;
        } else {
            self.plain_bytes = self.plain_bytes.saturating_sub(piece.len() as u64);
            self.chunk.resize(HEAD_BYTES, 0);
        }
        // Long plain data is written from where it is, without a copy.
        let is_apart = kind == PLAIN && piece.len() > COPIED_MAX_BYTES;
        if kind == PLAIN && !is_apart {
            self.chunk.extend_from_slice(piece);
        }
        let len = if is_apart {
            piece.len()
        } else {
            self.chunk.len() - HEAD_BYTES
        };
        self.chunk[0] = kind;
        self.chunk[1..HEAD_BYTES].copy_from_slice(&(len as u32).to_le_bytes());
        let since = Since::now();
        if is_apart {
            write_both(&mut self.writer, &self.chunk, piece)?
        } else {
            self.writer.write_all(&self.chunk)?
        }
        self.taken = (
            self.taken.0 + len as u64,
            self.taken.1 + since.elapsed().as_micros(),
        );
        // Halve both, so that the current throughput dominates.
        if self.taken.0 >= 16 * KNOWN_AFTER_BYTES {
            self.taken = (self.taken.0 / 2, self.taken.1 / 2);
        }
        Ok(())
    }
}

/// Writes both buffers, in one call if the writer supports it.
fn write_both(writer: &mut impl Write, head: &[u8], piece: &[u8]) -> io::Result<()> {
    let mut both = [IoSlice::new(head), IoSlice::new(piece)];
    let mut rest = &mut both[..];
    while !rest.is_empty() {
        match writer.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut rest, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl<W: Write> Write for CompressingWriter<W> {
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

/// The state of a decompressor.
enum Decompressor {
    Zstd(Decoder<'static>),
    Zlib(Decompress),
}

impl Decompressor {
    fn new(kind: u8) -> io::Result<Decompressor> {
        if kind == ZLIB {
            return Ok(Decompressor::Zlib(Decompress::new(false)));
        }
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(zstd::stream::raw::DParameter::WindowLogMax(WINDOW_LOG))?;
        Ok(Decompressor::Zstd(decoder))
    }

    fn kind(&self) -> u8 {
        match self {
            Decompressor::Zstd(_) => ZSTD,
            Decompressor::Zlib(_) => ZLIB,
        }
    }

    /// Decompresses as much as fits; returns the bytes consumed and the bytes produced.
    fn expand(&mut self, from: &[u8], into: &mut [u8]) -> io::Result<(usize, usize)> {
        match self {
            Decompressor::Zstd(decoder) => {
                let mut input = InBuffer::around(from);
                let mut output = OutBuffer::around(into);
                decoder
                    .run(&mut input, &mut output)
                    .map_err(|error| bad(&format!("invalid zstd data ({error})")))?;
                Ok((input.pos(), output.pos()))
            }
            Decompressor::Zlib(decoder) => {
                let taken = decoder.total_in();
                let made = decoder.total_out();
                decoder
                    .decompress(from, into, FlushDecompress::Sync)
                    .map_err(|error| bad(&format!("invalid zlib data ({error})")))?;
                Ok((
                    (decoder.total_in() - taken) as usize,
                    (decoder.total_out() - made) as usize,
                ))
            }
        }
    }
}

/// Reads a stream of chunks and decompresses it.
pub struct Expander<R> {
    reader: R,
    unpress: Option<Decompressor>,
    /// What is left to read of a plain chunk.
    plain_bytes: usize,
    /// A compressed chunk as received; for lz4, its decompressed data.
    chunk: Vec<u8>,
    at: usize,
    kind: u8,
    /// The decompressor may still hold output for input that it already consumed.
    has_more: bool,
}

impl<R: Read> Expander<R> {
    /// Reads from `reader`.
    pub fn new(reader: R) -> Expander<R> {
        Expander {
            reader,
            unpress: None,
            plain_bytes: 0,
            chunk: Vec::new(),
            at: 0,
            kind: PLAIN,
            has_more: false,
        }
    }

    /// Reads the next chunk; returns `false` at the end of the stream.
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
            ZSTD | LZ4 | ZLIB => SQUEEZED_MAX_BYTES,
            kind => return Err(bad(&format!("unknown chunk type {kind}"))),
        };
        if len > max {
            return Err(bad(&format!(
                "chunk of {len} bytes, at most {max} are allowed"
            )));
        }
        self.kind = head[0];
        if self.kind == PLAIN {
            self.plain_bytes = len;
            return Ok(true);
        }
        // If this fails, `chunk` stays empty: a caller that drains a broken stream reads on.
        let mut chunk = std::mem::take(&mut self.chunk);
        self.at = 0;
        chunk.resize(len, 0);
        self.reader.read_exact(&mut chunk)?;
        if self.kind == LZ4 {
            let mut whole = vec![0; CHUNK_MAX_BYTES];
            let len = lz4_flex::block::decompress_into(&chunk, &mut whole)
                .map_err(|error| bad(&format!("invalid lz4 data ({error})")))?;
            whole.truncate(len);
            chunk = whole;
        }
        self.chunk = chunk;
        Ok(true)
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("protocol error: {what}"),
    )
}

impl<R: Read> Read for Expander<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            if self.plain_bytes > 0 {
                let most = self.plain_bytes.min(into.len());
                let got = self.reader.read(&mut into[..most])?;
                self.plain_bytes -= got;
                return if got > 0 {
                    Ok(got)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
            if self.at == self.chunk.len() && !self.has_more && !self.next_chunk()? {
                return Ok(0);
            }
            let rest = &self.chunk[self.at..];
            if matches!(self.kind, PLAIN | LZ4) {
                let got = rest.len().min(into.len());
                into[..got].copy_from_slice(&rest[..got]);
                self.at += got;
                if got > 0 {
                    return Ok(got);
                }
                continue;
            }
            let unpress = match &mut self.unpress {
                Some(unpress) => unpress,
                none => none.insert(Decompressor::new(self.kind)?),
            };
            if unpress.kind() != self.kind {
                return Err(bad("chunks with different compression methods"));
            }
            let (taken, got) = unpress.expand(rest, into)?;
            if (taken, got) == (0, 0) && !rest.is_empty() {
                return Err(bad("data after the end of a compressed stream"));
            }
            self.at += taken;
            // A full buffer can mean that more output is pending.
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

    fn round_trip(pieces: &[Vec<u8>], when: CompressionPolicy) -> (Vec<u8>, usize) {
        let mut wire = Vec::new();
        let mut squeezer = CompressingWriter::new(&mut wire, when, AsItIs::default());
        pieces
            .iter()
            .for_each(|piece| squeezer.write_all(piece).unwrap());
        let mut back = Vec::new();
        Expander::new(&wire[..]).read_to_end(&mut back).unwrap();
        (back, wire.len())
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u64;
        let mut next = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn methods(level: u8) -> [Method; 3] {
        [
            Method::Zstd(level.into()),
            Method::Lz4,
            Method::Zlib(level.into()),
        ]
    }

    proptest! {
        #[test]
        fn compressed_stream_round_trips(pieces in proptest::collection::vec(proptest::collection::vec(0u8..4, 0..2000), 0..10), level in 1u8..4) {
            let always = methods(level).map(CompressionPolicy::Always);
            for when in always.into_iter().chain([CompressionPolicy::Never, CompressionPolicy::IfSlow]) {
                prop_assert_eq!(round_trip(&pieces, when).0, pieces.concat());
            }
        }

        #[test]
        fn expander_does_not_panic_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0u8..5) {
            let mut chunk = vec![kind];
            chunk.extend((bytes.len() as u32).to_le_bytes());
            chunk.extend(&bytes);
            let mut back = Vec::new();
            let _ = Expander::new(&chunk[..]).read_to_end(&mut back);
        }
    }

    #[test]
    fn similar_small_chunks_compress_well() {
        let pieces: Vec<Vec<u8>> = (0..200)
            .map(|n| format!("{n} {}", "the same words ".repeat(60)).into())
            .collect();
        for (method, part) in [
            (Method::Zstd(3), 20),
            (Method::Lz4, 12),
            (Method::Zlib(6), 20),
        ] {
            let (back, wire) = round_trip(&pieces, CompressionPolicy::Always(method));
            assert_eq!(back, pieces.concat());
            assert!(
                wire < back.len() / part,
                "{method:?}: {wire} of {}",
                back.len()
            );
        }
    }

    /// A text that each method compresses, each to a different length.
    fn counting() -> Vec<u8> {
        (0..20_000)
            .flat_map(|n| format!("{n}\n").into_bytes())
            .collect()
    }

    #[test]
    fn compressed_length_depends_on_method_and_level() {
        let text = counting();
        let len = |method| {
            round_trip(
                std::slice::from_ref(&text),
                CompressionPolicy::Always(method),
            )
            .1
        };
        let [zstd, lz4, zlib] = [Method::Zstd(3), Method::Lz4, Method::Zlib(6)].map(len);
        assert!(
            zstd < zlib && zlib < lz4 && lz4 < text.len() * 9 / 10,
            "{zstd} {zlib} {lz4} of {}",
            text.len()
        );
        assert!(len(Method::Zstd(-50)) > 2 * len(Method::Zstd(1)));
        assert!(len(Method::Zstd(22)) < len(Method::Zstd(1)));
        assert_ne!(len(Method::Zlib(1)), len(Method::Zlib(9)));
    }

    #[test]
    fn chunk_header_identifies_the_method() {
        for (method, kind) in [(Method::Zstd(3), 1), (Method::Lz4, 2), (Method::Zlib(6), 3)] {
            let mut wire = Vec::new();
            let as_it_is = AsItIs::default();
            let mut squeezer = CompressingWriter::new(
                &mut wire,
                CompressionPolicy::Always(method),
                as_it_is.clone(),
            );
            squeezer.write_all(&counting()).unwrap();
            as_it_is.store(true, Ordering::Relaxed);
            squeezer.write_all(b"as it is").unwrap();
            assert_eq!(wire[0], kind);
            assert!(wire.ends_with(b"\0\x08\0\0\0as it is"));
        }
    }

    #[test]
    fn incompressible_prefix_does_not_disable_compression() {
        for method in methods(3) {
            let (back, wire) =
                round_trip(&[noise(90), counting()], CompressionPolicy::Always(method));
            assert_eq!(back.len(), 90 + counting().len());
            assert!(
                wire < back.len() * 9 / 10,
                "{method:?}: {wire} of {}",
                back.len()
            );
        }
    }

    #[test]
    fn incompressible_data_has_little_overhead() {
        let pieces = vec![noise(CHUNK_MAX_BYTES); 20];
        for method in [methods(3), methods(9), methods(1)].concat() {
            let (back, wire) = round_trip(&pieces, CompressionPolicy::Always(method));
            assert_eq!(back, pieces.concat());
            assert!(
                wire < back.len() + 2048,
                "{method:?}: {wire} of {}",
                back.len()
            );
        }
    }

    #[test]
    fn chunk_that_expands_beyond_its_maximum_is_rejected() {
        // An lz4 block: one letter, repeated so often that the output exceeds a chunk.
        let mut chunk = vec![0x1f, b'x', 1, 0];
        chunk.extend([0xff; 1100]);
        chunk.extend([0, 0x50, 1, 2, 3, 4, 5]);
        let mut wire = vec![LZ4];
        wire.extend((chunk.len() as u32).to_le_bytes());
        wire.extend(&chunk);
        assert!(
            Expander::new(&wire[..])
                .read_to_end(&mut Vec::new())
                .is_err()
        );
    }

    #[test]
    fn second_method_or_end_of_stream_is_rejected() {
        let wire_of = |method| {
            let mut wire = Vec::new();
            CompressingWriter::new(
                &mut wire,
                CompressionPolicy::Always(method),
                AsItIs::default(),
            )
            .write_all(&counting())
            .unwrap();
            wire
        };
        let two = [wire_of(Method::Zstd(1)), wire_of(Method::Zlib(1))].concat();
        assert!(
            Expander::new(&two[..])
                .read_to_end(&mut Vec::new())
                .is_err()
        );
        // A zlib stream that ends, with bytes after it.
        let ended = b"\x03\x04\0\0\0\x03\0ab";
        assert!(
            Expander::new(&ended[..])
                .read_to_end(&mut Vec::new())
                .is_err()
        );
    }

    #[test]
    fn malformed_chunks_are_rejected() {
        for chunk in [
            &b"\x04\0\0\0\0"[..],
            b"\0\xff\xff\xff\xff",
            b"\x01\xff\xff\xff\x7f",
            b"\0\x05\0\0\0abc",
            b"\0\x05",
        ] {
            let mut back = Vec::new();
            assert!(
                Expander::new(chunk).read_to_end(&mut back).is_err(),
                "{chunk:?}"
            );
        }
    }

    #[test]
    fn zstd_window_above_the_limit_is_rejected() {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
        encoder
            .set_parameter(zstd::stream::raw::CParameter::WindowLog(WINDOW_LOG + 5))
            .unwrap();
        // The encoder only declares the window if the data needs it.
        (0..40).for_each(|_| encoder.write_all(&vec![7; 1 << 20]).unwrap());
        let stream = encoder.finish().unwrap();
        let chunk = [&[ZSTD], &(stream.len() as u32).to_le_bytes()[..], &stream].concat();
        let mut back = Vec::new();
        let refused = Expander::new(&chunk[..])
            .read_to_end(&mut back)
            .unwrap_err();
        assert!(
            refused.to_string().contains("invalid zstd data") && back.is_empty(),
            "{refused}: {}",
            back.len()
        );
    }
}

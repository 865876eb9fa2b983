//! Token streams: the data of files as literal bytes and blocks of the basis, plain or compressed.

use super::decode_error::{Result, broken_stream, violation};
use super::limits::{LITERAL_MAX_BYTES, PACKED_MAX_BYTES, ZSTD_WINDOW_LOG_MAX};
use super::number::{ReadWire as _, WriteWire as _};
use crate::options::Compression;
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress};
use std::io::Read;
use std::ops::Range;
use zstd::stream::raw::{
    CParameter, DParameter, Decoder as ZstdDecoder, Encoder as ZstdEncoder, InBuffer,
    Operation as _, OutBuffer,
};

/// The literal bytes of one plain token that we send.
const PLAIN_MAX_BYTES: usize = 32 << 10;
/// The literal bytes of one lz4 block that we send, so that it fits a data frame even if it does not shrink.
const LZ4_SENT_MAX_BYTES: usize = 16_000;
/// The blocks of one run: the first one and as many more as 16 bits count.
const RUN_MAX: u32 = 1 << 16;
/// A stored block of deflate is not longer.
const HISTORY_PIECE_MAX_BYTES: usize = u16::MAX as usize;
/// What a sync flush of deflate ends with. It is not sent.
const SYNC_MARK: [u8; 4] = [0, 0, 0xff, 0xff];

// The first byte of a compressed token.
const END: u8 = 0;
const LONG_BLOCK: u8 = 0x20;
const LONG_RUN: u8 = 0x21;
const DATA: u8 = 0x40;
const BLOCK: u8 = 0x80;
const RUN: u8 = 0xc0;

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// New data, at most [`LITERAL_MAX_BYTES`].
    Literal(Vec<u8>),
    /// A block of the basis.
    Block(u32),
    /// The end of the file.
    End,
}

/// Encodes the token streams of a connection.
pub struct TokenEncoder {
    method: Packer,
    /// The blocks that have not been written yet: the first one and their number.
    run: Option<(u32, u32)>,
    /// The last block of the last code.
    last: u32,
    /// Whether literals have been written since the last code.
    has_literals: bool,
}

enum Packer {
    Plain,
    Lz4,
    Zstd(Box<ZstdEncoder<'static>>),
    Deflate {
        deflate: Compress,
        has_history: bool,
        has_old_history: bool,
    },
}

impl TokenEncoder {
    /// Creates the encoder of a connection. The level is that of the method; `None` for its default.
    pub fn new(method: Compression, level: Option<i32>, protocol: u8) -> Result<TokenEncoder> {
        let deflate = |has_history| {
            let level = level
                .and_then(|level| u32::try_from(level).ok())
                .map_or(6, |level| level.min(9));
            let deflate = Compress::new(flate2::Compression::new(level), false);
            Packer::Deflate {
                deflate,
                has_history,
                has_old_history: protocol <= 30,
            }
        };
        let method = match method {
            Compression::No => Packer::Plain,
            Compression::Lz4 => Packer::Lz4,
            Compression::Auto | Compression::Zstd => {
                let mut encoder =
                    ZstdEncoder::new(level.unwrap_or(zstd::DEFAULT_COMPRESSION_LEVEL))?;
                // A higher level could demand a larger window than a decoder accepts.
                if level.is_some_and(|level| level > 19) {
                    encoder.set_parameter(CParameter::WindowLog(ZSTD_WINDOW_LOG_MAX))?;
                }
                Packer::Zstd(Box::new(encoder))
            }
            Compression::Zlibx => deflate(false),
            Compression::Zlib => deflate(true),
        };
        Ok(TokenEncoder {
            method,
            run: None,
            last: 0,
            has_literals: false,
        })
    }

    /// Appends literal data.
    pub fn literal(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.put_run(out);
        self.has_literals = true;
        match &mut self.method {
            Packer::Plain => {
                for piece in data.chunks(PLAIN_MAX_BYTES) {
                    out.put_int(piece.len() as i32);
                    out.put(piece);
                }
            }
            Packer::Lz4 => {
                for piece in data.chunks(LZ4_SENT_MAX_BYTES) {
                    put_packed(&lz4_flex::block::compress(piece), out);
                }
            }
            Packer::Zstd(encoder) => {
                let mut packed = Vec::new();
                let mut input = InBuffer::around(data);
                while input.pos() < data.len() {
                    grow(&mut packed, |output| Ok(encoder.run(&mut input, output)?))?;
                }
                put_packed(&packed, out);
            }
            Packer::Deflate { deflate, .. } => {
                let packed = run_deflate(deflate, data, FlushCompress::None)?;
                put_packed(&packed, out);
            }
        }
        Ok(())
    }

    /// Appends a block of the basis. `data` is its content, which becomes history for some methods.
    pub fn block(&mut self, number: u32, data: &[u8], out: &mut Vec<u8>) -> Result<()> {
        if matches!(self.method, Packer::Plain) {
            out.put_int(-1 - number.cast_signed());
            return Ok(());
        }
        self.flush(out)?;
        self.run = match self.run {
            Some((first, count)) if first.checked_add(count) == Some(number) && count < RUN_MAX => {
                Some((first, count + 1))
            }
            _ => {
                self.put_run(out);
                Some((number, 1))
            }
        };
        if let Packer::Deflate {
            deflate,
            has_history: true,
            has_old_history,
        } = &mut self.method
        {
            for piece in history_pieces(data.len(), *has_old_history) {
                run_deflate(deflate, &data[piece], FlushCompress::Sync)?;
            }
        }
        Ok(())
    }

    /// Appends the end of a file. The encoder is then ready for the next file.
    pub fn end(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if matches!(self.method, Packer::Plain) {
            out.put_int(0);
            return Ok(());
        }
        self.flush(out)?;
        self.put_run(out);
        out.put(&[END]);
        if let Packer::Deflate { deflate, .. } = &mut self.method {
            deflate.reset();
        }
        self.last = 0;
        Ok(())
    }

    /// Writes what a method still holds, so that all literals up to here can be decoded.
    fn flush(&mut self, out: &mut Vec<u8>) -> Result<()> {
        if !std::mem::take(&mut self.has_literals) {
            return Ok(());
        }
        match &mut self.method {
            Packer::Plain | Packer::Lz4 => {}
            Packer::Zstd(encoder) => {
                let mut packed = Vec::new();
                while grow(&mut packed, |output| Ok(encoder.flush(output)?))? > 0 {}
                put_packed(&packed, out);
            }
            Packer::Deflate { deflate, .. } => {
                let packed = run_deflate(deflate, b"", FlushCompress::Sync)?;
                put_packed(packed.strip_suffix(&SYNC_MARK).unwrap_or(&packed), out);
            }
        }
        Ok(())
    }

    /// Writes the code of the pending blocks.
    fn put_run(&mut self, out: &mut Vec<u8>) {
        let Some((first, count)) = self.run.take() else {
            return;
        };
        let step = first.wrapping_sub(self.last);
        let more = count - 1;
        match step {
            0..=63 => out.put(&[if more > 0 { RUN } else { BLOCK } | step as u8]),
            _ => {
                out.put(&[if more > 0 { LONG_RUN } else { LONG_BLOCK }]);
                out.put_int(first.cast_signed());
            }
        }
        if more > 0 {
            out.put_shortint(more as u16);
        }
        self.last = first + more;
    }
}

/// Appends compressed bytes as data frames.
fn put_packed(packed: &[u8], out: &mut Vec<u8>) {
    for piece in packed.chunks(PACKED_MAX_BYTES) {
        out.put(&[DATA | (piece.len() >> 8) as u8, piece.len() as u8]);
        out.put(piece);
    }
}

/// Lets a zstd stream append to a buffer, which has room for more output afterwards if the stream has. The room is not
/// zeroed first: that would cost more than the compression of a small file.
fn grow(
    buffer: &mut Vec<u8>,
    run: impl FnOnce(&mut OutBuffer<'_, Vec<u8>>) -> Result<usize>,
) -> Result<usize> {
    let begin = buffer.len();
    buffer.reserve_exact(LITERAL_MAX_BYTES);
    run(&mut OutBuffer::around_pos(buffer, begin))
}

/// Compresses all of `data`.
fn run_deflate(deflate: &mut Compress, data: &[u8], flush: FlushCompress) -> Result<Vec<u8>> {
    let mut packed = Vec::new();
    let begin = deflate.total_in();
    loop {
        packed.reserve(LITERAL_MAX_BYTES);
        let done = (deflate.total_in() - begin) as usize;
        let status = deflate.compress_vec(&data[done..], &mut packed, flush);
        status.map_err(|error| broken_stream(format!("cannot compress: {error}")))?;
        // Output that ends before its buffer is complete.
        if (deflate.total_in() - begin) as usize == data.len() && packed.len() < packed.capacity() {
            return Ok(packed);
        }
    }
}

/// Splits a block into the pieces that enter the history. Up to protocol 30, all pieces begin at the start of the block,
/// an old bug that both sides must share.
fn history_pieces(len: usize, has_old_history: bool) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(HISTORY_PIECE_MAX_BYTES).map(move |begin| {
        let end = len.min(begin + HISTORY_PIECE_MAX_BYTES);
        if has_old_history {
            0..end - begin
        } else {
            begin..end
        }
    })
}

/// Decodes the token streams of a connection.
pub struct TokenDecoder {
    method: Unpacker,
    /// The next block and the number of blocks that are left of a run.
    run: (u32, u32),
    /// The last block of the last code.
    last: u32,
    /// Compressed bytes of the current data frame, and how many have been used.
    packed: (Vec<u8>, usize),
    /// Bytes that are left of a plain literal token.
    plain_bytes: usize,
    /// Whether the method may hold more output than the last buffer had room for.
    has_more: bool,
    /// A token that was read before the literals that precede it were complete.
    next: Option<u8>,
    /// Whether literals have been decoded since the last code.
    has_literals: bool,
    /// See [`TokenDecoder::deferring`].
    defers: bool,
}

enum Unpacker {
    Plain,
    Lz4,
    Zstd(Box<ZstdDecoder<'static>>),
    Inflate {
        inflate: Decompress,
        has_history: bool,
        has_old_history: bool,
    },
}

impl TokenDecoder {
    /// Creates the decoder of a connection.
    pub fn new(method: Compression, protocol: u8) -> Result<TokenDecoder> {
        let inflate = |has_history| Unpacker::Inflate {
            inflate: Decompress::new(false),
            has_history,
            has_old_history: protocol <= 30,
        };
        let method = match method {
            Compression::No => Unpacker::Plain,
            Compression::Lz4 => Unpacker::Lz4,
            Compression::Auto | Compression::Zstd => {
                let mut decoder = ZstdDecoder::new()?;
                decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX))?;
                Unpacker::Zstd(Box::new(decoder))
            }
            Compression::Zlibx => inflate(false),
            Compression::Zlib => inflate(true),
        };
        Ok(TokenDecoder {
            method,
            run: (0, 0),
            last: 0,
            packed: (Vec::new(), 0),
            plain_bytes: 0,
            has_more: false,
            next: None,
            has_literals: false,
            defers: false,
        })
    }

    /// Returns the literals of `zlib` compressed, for a decoder that can read the basis: see [`TokenDecoder::unpack`].
    pub fn deferring(self) -> TokenDecoder {
        let defers = matches!(
            self.method,
            Unpacker::Inflate {
                has_history: true,
                ..
            }
        );
        TokenDecoder { defers, ..self }
    }

    /// Reads the next token. After a block, call [`TokenDecoder::see_block`] with its content.
    pub fn next(&mut self, input: &mut impl Read) -> Result<Token> {
        if matches!(self.method, Unpacker::Plain) {
            return self.next_plain(input);
        }
        loop {
            if self.run.1 > 0 {
                let number = self.run.0;
                self.run = (number.wrapping_add(1), self.run.1 - 1);
                return Ok(Token::Block(number));
            }
            let literal = if self.defers {
                std::mem::take(&mut self.packed.0)
            } else {
                self.unpacked()?
            };
            if !literal.is_empty() {
                return Ok(Token::Literal(literal));
            }
            let first = match self.next.take() {
                Some(first) => first,
                None => input.byte()?,
            };
            if first & RUN == DATA {
                let len = usize::from(first & 0x3f) << 8 | usize::from(input.byte()?);
                self.packed = (input.byte_vec(len)?, 0);
                self.has_literals = true;
                continue;
            }
            if std::mem::take(&mut self.has_literals)
                && matches!(self.method, Unpacker::Inflate { .. })
            {
                // The sender leaves out the mark, which can be followed by pending output.
                self.packed = (SYNC_MARK.to_vec(), 0);
                self.next = Some(first);
                continue;
            }
            if first == END {
                if let Unpacker::Inflate { inflate, .. } = &mut self.method {
                    inflate.reset(false);
                }
                self.last = 0;
                return Ok(Token::End);
            }
            let begin = match first {
                BLOCK.. => self.last.checked_add(u32::from(first & 0x3f)),
                LONG_BLOCK | LONG_RUN => u32::try_from(input.int()?).ok(),
                _ => return Err(broken_stream(format!("unknown token {first:#x}"))),
            };
            let has_more = first >= RUN || first == LONG_RUN;
            let more = if has_more {
                u32::from(input.shortint()?)
            } else {
                0
            };
            let begin = begin.filter(|begin| {
                begin
                    .checked_add(more)
                    .is_some_and(|last| last <= i32::MAX as u32)
            });
            let begin = begin.ok_or_else(|| violation("a block number of more than 31 bits"))?;
            self.last = begin + more;
            self.run = (begin, more + 1);
        }
    }

    fn next_plain(&mut self, input: &mut impl Read) -> Result<Token> {
        if self.plain_bytes == 0 {
            match input.int()? {
                0 => return Ok(Token::End),
                number @ ..0 => return Ok(Token::Block((-(number + 1)).cast_unsigned())),
                len => self.plain_bytes = len as usize,
            }
        }
        let literal = input.byte_vec(self.plain_bytes.min(PLAIN_MAX_BYTES))?;
        self.plain_bytes -= literal.len();
        Ok(Token::Literal(literal))
    }

    /// Adds the content of a block to the history, which `zlib` needs; the other methods ignore it.
    pub fn see_block(&mut self, data: &[u8]) -> Result<()> {
        self.history(data.len())
            .try_for_each(|piece| self.see(&data[piece]))
    }

    /// Returns which parts of a block of this length must be passed to [`TokenDecoder::see`], in order.
    pub fn history(&self, block_len: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let old = match self.method {
            Unpacker::Inflate {
                has_history: true,
                has_old_history,
                ..
            } => Some(has_old_history),
            _ => None,
        };
        old.into_iter()
            .flat_map(move |old| history_pieces(block_len, old))
    }

    /// Adds a part of a block to the history. See [`TokenDecoder::history`].
    pub fn see(&mut self, piece: &[u8]) -> Result<()> {
        let Unpacker::Inflate { inflate, .. } = &mut self.method else {
            return Ok(());
        };
        // A stored block: it yields its own content.
        let len = piece.len() as u16;
        let head = [&[0][..], &len.to_le_bytes(), &(!len).to_le_bytes()].concat();
        for mut rest in [&head[..], piece] {
            while !rest.is_empty() {
                let (used, _) = run_inflate(inflate, rest)?;
                rest = &rest[used..];
            }
        }
        Ok(())
    }

    /// Begins to decode literals of the file, which a decoder that defers has returned. Get the result from
    /// [`TokenDecoder::unpacked`] before anything else.
    pub fn unpack(&mut self, packed: Vec<u8>) {
        self.packed = (packed, 0);
    }

    /// Returns the next decoded literals, or nothing if all were returned.
    pub fn unpacked(&mut self) -> Result<Vec<u8>> {
        while self.packed.1 < self.packed.0.len() || self.has_more {
            let literal = self.unpack_some()?;
            if !literal.is_empty() {
                return Ok(literal);
            }
        }
        Ok(Vec::new())
    }

    /// Decodes a part of the current data frame.
    fn unpack_some(&mut self) -> Result<Vec<u8>> {
        let packed = &self.packed.0[self.packed.1..];
        let used = &mut self.packed.1;
        match &mut self.method {
            Unpacker::Plain => unreachable!("plain tokens have no data frames"),
            Unpacker::Lz4 => {
                *used += packed.len();
                let mut literal = vec![0; LITERAL_MAX_BYTES];
                let len = lz4_flex::block::decompress_into(packed, &mut literal)
                    .map_err(|error| broken_stream(format!("invalid lz4 data ({error})")))?;
                literal.truncate(len);
                Ok(literal)
            }
            Unpacker::Zstd(decoder) => {
                let (read, literal) = run_zstd(decoder, packed)?;
                *used += read;
                self.has_more = literal.len() >= LITERAL_MAX_BYTES;
                Ok(literal)
            }
            Unpacker::Inflate { inflate, .. } => {
                let (read, literal) = run_inflate(inflate, packed)?;
                *used += read;
                self.has_more = literal.len() >= LITERAL_MAX_BYTES;
                Ok(literal)
            }
        }
    }
}

/// Skips the tokens of a file without decoding its data. Returns whether there were blocks of the basis.
pub fn skip(input: &mut impl Read, is_compressed: bool) -> Result<bool> {
    let mut has_blocks = false;
    let pass = |input: &mut dyn Read, len_bytes: u64| -> Result<()> {
        let passed = std::io::copy(&mut input.take(len_bytes), &mut std::io::sink())?;
        if passed < len_bytes {
            Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into())
        } else {
            Ok(())
        }
    };
    loop {
        if !is_compressed {
            match input.int()? {
                0 => return Ok(has_blocks),
                ..0 => has_blocks = true,
                len => pass(input, u64::from(len.unsigned_abs()))?,
            }
            continue;
        }
        let first = input.byte()?;
        match first {
            END => return Ok(has_blocks),
            DATA..BLOCK => {
                let len = u64::from(first & 0x3f) << 8 | u64::from(input.byte()?);
                pass(input, len)?;
                continue;
            }
            BLOCK..RUN => {}
            RUN.. => pass(input, 2)?,
            LONG_BLOCK => pass(input, 4)?,
            LONG_RUN => pass(input, 6)?,
            _ => return Err(broken_stream(format!("unknown token {first:#x}"))),
        }
        has_blocks = true;
    }
}

/// Decodes as much as one buffer holds. Fails if nothing can be decoded any more.
fn run_inflate(inflate: &mut Decompress, packed: &[u8]) -> Result<(usize, Vec<u8>)> {
    let before = inflate.total_in();
    let mut literal = Vec::with_capacity(LITERAL_MAX_BYTES);
    let status = inflate.decompress_vec(packed, &mut literal, FlushDecompress::None);
    let status = status.map_err(|error| broken_stream(format!("invalid zlib data ({error})")))?;
    let used = (inflate.total_in() - before) as usize;
    let is_stuck = used == 0 && literal.is_empty() && !packed.is_empty();
    if status == flate2::Status::StreamEnd || is_stuck {
        return Err(broken_stream("data after the end of a compressed stream"));
    }
    Ok((used, literal))
}

/// Decodes as much as one buffer holds.
fn run_zstd(decoder: &mut ZstdDecoder<'static>, packed: &[u8]) -> Result<(usize, Vec<u8>)> {
    let mut literal = Vec::new();
    let mut input = InBuffer::around(packed);
    grow(&mut literal, |output| {
        decoder
            .run(&mut input, output)
            .map_err(|error| broken_stream(format!("invalid zstd data ({error})")))
    })?;
    if input.pos() == 0 && literal.is_empty() && !packed.is_empty() {
        return Err(broken_stream("zstd data that cannot be decoded"));
    }
    Ok((input.pos(), literal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_that_ends_too_early_is_not_skipped() {
        // Ten bytes are announced.
        for (is_compressed, head) in [(false, &[10, 0, 0, 0][..]), (true, &[DATA, 10])] {
            for (len, fits) in [(9, false), (10, true)] {
                let end = if is_compressed { vec![END] } else { vec![0; 4] };
                let whole = [head, &[1; 10], &end].concat();
                let bytes = if fits {
                    &whole[..]
                } else {
                    &whole[..head.len() + len]
                };
                let error = skip(&mut &bytes[..], is_compressed).err();
                assert_eq!(error.is_none(), fits, "{is_compressed}");
            }
        }
    }
}

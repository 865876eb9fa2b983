//! Numbers and strings of the wire, and the index coding with its state.

use super::decode_error::{Result, checked, violation};
use super::limits::{PREALLOCATED_MAX_BYTES, VSTRING_MAX_BYTES};
use std::io::{self, Read};

/// Reads the primitives of the wire from a blocking byte stream.
pub trait ReadWire: Read {
    /// Reads an array of bytes.
    fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN]> {
        let mut bytes = [0; LEN];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads one byte.
    fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads 16 bits.
    fn shortint(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads a signed 32-bit number.
    fn int(&mut self) -> Result<i32> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    /// Reads a 64-bit number in 4 or 12 bytes.
    fn longint(&mut self) -> Result<i64> {
        match self.int()? {
            -1 => Ok(i64::from_le_bytes(self.array()?)),
            small => Ok(i64::from(small)),
        }
    }

    /// Reads a 32-bit number in 1 to 5 bytes.
    fn varint(&mut self) -> Result<i32> {
        let first = self.byte()?;
        let extra = first.leading_ones().min(6) as usize;
        if extra > 4 {
            return Err(violation("a number of more than 32 bits"));
        }
        let mut bytes = [0; 5];
        self.read_exact(&mut bytes[..extra])?;
        bytes[extra] = first & (0xff >> (extra + 1));
        if bytes[4] != 0 {
            return Err(violation("a number of more than 32 bits"));
        }
        Ok(i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Reads a 64-bit number in `min` to 9 bytes.
    fn varlong(&mut self, min: usize) -> Result<i64> {
        let first = self.byte()?;
        let extra = first.leading_ones().min(6) as usize;
        let len = min - 1 + extra;
        let mut bytes = [0; 9];
        if len > 8 {
            return Err(violation("a number of more than 64 bits"));
        }
        self.read_exact(&mut bytes[..len])?;
        bytes[len] = match extra {
            0 => first,
            6 => first & 0x03,
            extra => first & (0xff >> (extra + 1)),
        };
        let (value, overflow) = bytes.split_first_chunk::<8>().expect("it has nine bytes");
        match overflow {
            [0] => Ok(i64::from_le_bytes(*value)),
            _ => Err(violation("a number of more than 64 bits")),
        }
    }

    /// Reads an int before protocol 30, else a varint.
    fn varint30(&mut self, protocol: u8) -> Result<i32> {
        if protocol < 30 {
            self.int()
        } else {
            self.varint()
        }
    }

    /// Reads a longint before protocol 30, else a varlong.
    fn varlong30(&mut self, protocol: u8, min: usize) -> Result<i64> {
        if protocol < 30 {
            self.longint()
        } else {
            self.varlong(min)
        }
    }

    /// Reads `len` bytes. The caller has compared the length with a limit. Memory grows as bytes arrive.
    fn byte_vec(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len.min(PREALLOCATED_MAX_BYTES));
        if len <= PREALLOCATED_MAX_BYTES {
            bytes.resize(len, 0);
            self.read_exact(&mut bytes)?;
        } else if self.take(len as u64).read_to_end(&mut bytes)? < len {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(bytes)
    }

    /// Reads a string with a length of one or two bytes.
    fn vstring(&mut self) -> Result<Vec<u8>> {
        let len = self.vstring_len()?;
        self.byte_vec(len)
    }

    /// Reads the length of such a string, at most [`VSTRING_MAX_BYTES`].
    fn vstring_len(&mut self) -> Result<usize> {
        let first = self.byte()?;
        Ok(match first & 0x80 {
            0 => usize::from(first),
            _ => usize::from(first & 0x7f) << 8 | usize::from(self.byte()?),
        })
    }

    /// Reads a string with a length of one byte.
    fn short_string(&mut self) -> Result<Vec<u8>> {
        let len = self.byte()?;
        self.byte_vec(usize::from(len))
    }

    /// Reads a number from `min` to `max`.
    fn varint_in(&mut self, max: usize, what: &str) -> Result<usize> {
        let value = self.varint()?;
        checked(i64::from(value), max, what)
    }
}

impl<R: Read> ReadWire for R {}

/// Appends the primitives of the wire.
pub trait WriteWire {
    /// Appends bytes as they are.
    fn put(&mut self, bytes: &[u8]);

    /// Appends 16 bits.
    fn put_shortint(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    /// Appends a signed 32-bit number.
    fn put_int(&mut self, value: i32) {
        self.put(&value.to_le_bytes());
    }

    /// Appends a 64-bit number in 4 or 12 bytes.
    fn put_longint(&mut self, value: i64) {
        match i32::try_from(value) {
            Ok(small @ 0..) => self.put_int(small),
            _ => {
                self.put(&[0xff; 4]);
                self.put(&value.to_le_bytes());
            }
        }
    }

    /// Appends a 32-bit number in 1 to 5 bytes.
    fn put_varint(&mut self, value: i32) {
        put_variable(self, &value.to_le_bytes(), 1);
    }

    /// Appends a 64-bit number in `min` to 9 bytes.
    fn put_varlong(&mut self, value: i64, min: usize) {
        put_variable(self, &value.to_le_bytes(), min);
    }

    /// Appends an int before protocol 30, else a varint.
    fn put_varint30(&mut self, protocol: u8, value: i32) {
        if protocol < 30 {
            self.put_int(value)
        } else {
            self.put_varint(value)
        }
    }

    /// Appends a longint before protocol 30, else a varlong.
    fn put_varlong30(&mut self, protocol: u8, value: i64, min: usize) {
        if protocol < 30 {
            self.put_longint(value)
        } else {
            self.put_varlong(value, min)
        }
    }

    /// Appends a string with a length of one or two bytes. Cuts what exceeds [`VSTRING_MAX_BYTES`].
    fn put_vstring(&mut self, text: &[u8]) {
        let text = &text[..text.len().min(VSTRING_MAX_BYTES)];
        match text.len() {
            len @ 0..=0x7f => self.put(&[len as u8]),
            len => self.put(&[0x80 | (len >> 8) as u8, len as u8]),
        }
        self.put(text);
    }

    /// Appends a string with a length of one byte. Cuts what exceeds 255 bytes.
    fn put_short_string(&mut self, text: &[u8]) {
        let text = &text[..text.len().min(255)];
        self.put(&[text.len() as u8]);
        self.put(text);
    }
}

impl WriteWire for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Appends a varint (`min` is 1) or varlong.
fn put_variable(out: &mut (impl WriteWire + ?Sized), bytes: &[u8], min: usize) {
    let used = bytes
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |last| last + 1);
    let len = used.max(min);
    // `ones(n)`: a byte that begins with n one-bits.
    let ones = |count: usize| !(0xffu16 >> count) as u8;
    let extra = len - min;
    let top = bytes[len - 1];
    // The first byte holds the top byte too if its value bits suffice.
    if u32::from(top) < 1 << (7 - extra) {
        out.put(&[ones(extra) | top]);
        out.put(&bytes[..len - 1]);
    } else {
        out.put(&[ones(extra + 1)]);
        out.put(&bytes[..len]);
    }
}

/// An index of the wire: of an entry, or one of the special values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ndx {
    /// The entry or directory with this index.
    Entry(i32),
    /// The end of a list of requests or of a phase.
    Done,
    /// No more file lists follow.
    ListsEnd,
    /// Deletion counts follow.
    Deletions,
    /// The list of this directory follows. Directories are counted from 0.
    List(i32),
}

/// The least directory of [`Ndx::List`], negated.
const LIST_OFFSET: i32 = -101;

impl Ndx {
    /// Returns the number on the wire.
    pub fn number(self) -> i32 {
        match self {
            Ndx::Entry(index) => index,
            Ndx::Done => -1,
            Ndx::ListsEnd => -2,
            Ndx::Deletions => -3,
            Ndx::List(dir) => LIST_OFFSET - dir,
        }
    }

    fn of_number(number: i32) -> Result<Ndx> {
        match number {
            0.. => Ok(Ndx::Entry(number)),
            -1 => Ok(Ndx::Done),
            -2 => Ok(Ndx::ListsEnd),
            -3 => Ok(Ndx::Deletions),
            ..=LIST_OFFSET => Ok(Ndx::List(LIST_OFFSET - number)),
            _ => Err(violation(format!("unknown index {number}"))),
        }
    }
}

/// The state of the index coding in one direction. It lasts for the whole connection.
#[derive(Debug, Clone)]
struct Memory {
    positive: i32,
    negative: i32,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            positive: -1,
            negative: 1,
        }
    }
}

/// Encodes the indices of one direction.
#[derive(Debug, Clone)]
pub struct NdxEncoder {
    protocol: u8,
    memory: Memory,
}

impl NdxEncoder {
    /// Creates the encoder of a new connection.
    pub fn new(protocol: u8) -> NdxEncoder {
        NdxEncoder {
            protocol,
            memory: Memory::default(),
        }
    }

    /// Appends an index.
    pub fn encode(&mut self, ndx: Ndx, out: &mut Vec<u8>) {
        let number = ndx.number();
        if self.protocol < 30 {
            return out.put_int(number);
        }
        let (magnitude, memory) = match number {
            -1 => return out.put(&[0]),
            0.. => (number, &mut self.memory.positive),
            _ => {
                out.put(&[0xff]);
                (-number, &mut self.memory.negative)
            }
        };
        let step = i64::from(magnitude) - i64::from(*memory);
        match step {
            1..=253 => out.put(&[step as u8]),
            0 | 254..=0x7fff => out.put(&[0xfe, (step >> 8) as u8, step as u8]),
            _ => {
                let bytes = magnitude.to_le_bytes();
                out.put(&[0xfe, bytes[3] | 0x80, bytes[0], bytes[1], bytes[2]]);
            }
        }
        *memory = magnitude;
    }
}

/// Decodes the indices of one direction.
#[derive(Debug, Clone)]
pub struct NdxDecoder {
    protocol: u8,
    memory: Memory,
}

impl NdxDecoder {
    /// Creates the decoder of a new connection.
    pub fn new(protocol: u8) -> NdxDecoder {
        NdxDecoder {
            protocol,
            memory: Memory::default(),
        }
    }

    /// Reads an index.
    pub fn decode(&mut self, input: &mut impl Read) -> Result<Ndx> {
        if self.protocol < 30 {
            return Ndx::of_number(input.int()?);
        }
        let (first, is_negative) = match input.byte()? {
            0 => return Ok(Ndx::Done),
            0xff => (input.byte()?, true),
            first => (first, false),
        };
        let memory = if is_negative {
            &mut self.memory.negative
        } else {
            &mut self.memory.positive
        };
        let step = |step: i32| {
            memory
                .checked_add(step)
                .ok_or_else(|| violation("an index of more than 31 bits"))
        };
        let value = match first {
            0xfe => match input.array::<2>()? {
                [high, low] if high >= 0x80 => {
                    let [mid, upper] = input.array::<2>()?;
                    i32::from_le_bytes([low, mid, upper, high & 0x7f])
                }
                [high, low] => step(i32::from(high) << 8 | i32::from(low))?,
            },
            0 | 0xff => return Err(violation("an index with an unknown prefix")),
            first => step(i32::from(first))?,
        };
        *memory = value;
        Ndx::of_number(if is_negative { -value } else { value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_have_the_bytes_of_the_specification() {
        for (value, wanted) in [
            (0, &[0][..]),
            (0x1ff, &[0x81, 0xff]),
            (200, &[0x80, 0xc8]),
            (-1, &[0xf0, 0xff, 0xff, 0xff, 0xff]),
        ] {
            let mut out = Vec::new();
            out.put_varint(value);
            assert_eq!(out, wanted, "{value}");
        }
        let varlong = |value, min| {
            let mut out = Vec::new();
            out.put_varlong(value, min);
            out
        };
        assert_eq!(varlong(3000, 3), [0, 0xb8, 0x0b]);
        assert_eq!(varlong(0x5fee_6600, 4), [0x5f, 0, 0x66, 0xee]);
        assert_eq!((varlong(-2, 4)[0], varlong(-2, 4).len()), (0xf8, 9));
    }

    #[test]
    fn numbers_that_are_too_large_are_rejected() {
        assert!((&[0xf8, 1, 1, 1, 1, 1][..]).varint().is_err());
        assert!((&[0xf1, 1, 1, 1, 1][..]).varint().is_err());
        assert!((&[0xfc; 12][..]).varlong(4).is_err());
        assert!((&[0xff; 12][..]).varlong(3).is_err());
        let mut near_the_end = NdxDecoder::new(32);
        assert!(
            near_the_end
                .decode(&mut &[0xfe, 0xff, 0xff, 0xff, 0xff][..])
                .is_ok()
        );
        assert!(near_the_end.decode(&mut &[1][..]).is_err());
    }

    #[test]
    fn memory_grows_only_as_bytes_arrive() {
        assert!(io::empty().byte_vec(usize::MAX >> 1).is_err());
    }

    #[test]
    fn bytes_are_read_up_to_their_length() {
        for len in [
            0,
            1,
            PREALLOCATED_MAX_BYTES - 1,
            PREALLOCATED_MAX_BYTES,
            PREALLOCATED_MAX_BYTES + 1,
        ] {
            let bytes = vec![7; len];
            let mut input = &[&bytes[..], b"rest"].concat()[..];
            assert_eq!(input.byte_vec(len).unwrap(), bytes);
            assert_eq!(input, b"rest");
            assert!((&bytes[..]).byte_vec(len + 1).is_err());
        }
    }

    #[test]
    fn lengths_of_strings_take_one_or_two_bytes() {
        let lengths = |text: &[u8]| {
            let mut out = Vec::new();
            out.put_vstring(text);
            let head = out.len() - (&out[..]).vstring().unwrap().len();
            out[..head].to_vec()
        };
        assert_eq!(lengths(&[7; 0x7f]), [0x7f]);
        assert_eq!(lengths(&[7; 0x80]), [0x80, 0x80]);
        assert_eq!(lengths(&[7; 0x1ff]), [0x81, 0xff]);
        assert_eq!(lengths(&[7; VSTRING_MAX_BYTES]), [0xff, 0xff]);
        assert_eq!(lengths(&[7; VSTRING_MAX_BYTES + 1]), [0xff, 0xff]);
        let mut short = Vec::new();
        short.put_short_string(&[7; 256]);
        assert_eq!(short, [&[255][..], &[7; 255]].concat());
        assert_eq!((&short[..]).short_string().unwrap(), [7; 255]);
    }

    #[test]
    fn indices_are_steps_from_their_predecessor() {
        for protocol in [29, 30] {
            let mut encoder = NdxEncoder::new(protocol);
            let mut decoder = NdxDecoder::new(protocol);
            for (ndx, bytes) in [
                (Ndx::Entry(0), &[1][..]),
                (Ndx::Entry(253), &[253]),
                (Ndx::Entry(507), &[0xfe, 0, 254]),
                (Ndx::Entry(507), &[0xfe, 0, 0]),
                (Ndx::Done, &[0]),
                (Ndx::Entry(33_274), &[0xfe, 0x7f, 0xff]),
                (Ndx::Entry(66_042), &[0xfe, 0x80, 0xfa, 1, 1]),
                (Ndx::Entry(66_041), &[0xfe, 0x80, 0xf9, 1, 1]),
                (Ndx::ListsEnd, &[0xff, 1]),
                (Ndx::Deletions, &[0xff, 1]),
                (Ndx::List(0), &[0xff, 98]),
                (Ndx::List(5), &[0xff, 5]),
                (Ndx::Entry(66_043), &[2]),
            ] {
                let mut out = Vec::new();
                encoder.encode(ndx, &mut out);
                if protocol >= 30 {
                    assert_eq!(out, bytes, "{ndx:?}");
                } else {
                    assert_eq!(out, ndx.number().to_le_bytes(), "{ndx:?}");
                }
                assert_eq!(decoder.decode(&mut &out[..]).unwrap(), ndx);
            }
        }
    }

    #[test]
    fn unknown_special_indices_are_rejected() {
        for (number, ndx) in [
            (-4, None),
            (-100, None),
            (-101, Some(Ndx::List(0))),
            (-102, Some(Ndx::List(1))),
        ] {
            let mut decoder = NdxDecoder::new(29);
            let decoded = decoder.decode(&mut &i32::to_le_bytes(number)[..]);
            assert_eq!(decoded.ok(), ndx, "{number}");
        }
    }

    fn ndx() -> impl Strategy<Value = Ndx> {
        prop_oneof![
            Just(Ndx::Done),
            Just(Ndx::ListsEnd),
            Just(Ndx::Deletions),
            (0..i32::MAX - 200).prop_map(Ndx::List),
            (0..2000).prop_map(Ndx::List),
            (0..=i32::MAX).prop_map(Ndx::Entry),
            (0..40_000).prop_map(Ndx::Entry),
        ]
    }

    proptest! {
        #[test]
        fn a_number_is_decoded_as_it_was_encoded(value: i64, shift in 0u32..64, min in 3usize..5, protocol in 27u8..33) {
            let value = value >> shift;
            let mut out = Vec::new();
            out.put_varint(value as i32);
            out.put_varlong(value, min);
            out.put_longint(value);
            out.put_varlong30(protocol, value, 3);
            out.put_varint30(protocol, value as i32);
            let mut input = &out[..];
            prop_assert_eq!(input.varint().unwrap(), value as i32);
            prop_assert_eq!(input.varlong(min).unwrap(), value);
            prop_assert_eq!(input.longint().unwrap(), value);
            prop_assert_eq!(input.varlong30(protocol, 3).unwrap(), value);
            prop_assert_eq!(input.varint30(protocol).unwrap(), value as i32);
            prop_assert!(input.is_empty());
        }

        #[test]
        fn indices_are_decoded_as_they_were_encoded(all in proptest::collection::vec(ndx(), 0..50), protocol in 27u8..33) {
            let mut encoder = NdxEncoder::new(protocol);
            let mut decoder = NdxDecoder::new(protocol);
            let mut out = Vec::new();
            all.iter().for_each(|&ndx| encoder.encode(ndx, &mut out));
            let mut input = &out[..];
            for ndx in all {
                prop_assert_eq!(decoder.decode(&mut input).unwrap(), ndx);
            }
            prop_assert!(input.is_empty());
        }

        #[test]
        fn strings_are_decoded_as_they_were_encoded(text in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut out = Vec::new();
            out.put_vstring(&text);
            prop_assert_eq!((&out[..]).vstring().unwrap(), text);
        }
    }
}

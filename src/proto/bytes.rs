//! The primitives of the native encoding: numbers, flags, byte strings, counted lists.
//!
//! Each has one function to write it and one to read it, and both check the same limits. So a peer accepts whatever the
//! other side writes, and an error is found where it was made.

use super::enum_values::Numbered;
use super::limits::{LINE_MAX_BYTES, NAME_MAX_BYTES, PATH_MAX_BYTES};
use crate::digest::{self, CONTENT_LEN_BYTES, OWN_LEN_BYTES};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::Time;
use crate::path::{BadPath, RelPath};
use std::fmt::Display;

/// The longest varint: 64 bits at seven bits per byte.
const VARINT_MAX_BYTES: usize = 10;

/// Nanoseconds per second.
const NANOS: u32 = 1_000_000_000;

/// Decodes the varint at the front of `bytes` and returns it with its length; `None` if it is incomplete.
///
/// Fails with the reason if it is not in the shortest form or exceeds 64 bits.
pub(super) fn varint_at(bytes: &[u8]) -> std::result::Result<Option<(u64, usize)>, &'static str> {
    let mut value = 0u64;
    for (at, &byte) in bytes.iter().take(VARINT_MAX_BYTES).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if at == VARINT_MAX_BYTES - 1 && byte > 1 {
            return Err("exceeds 64 bits");
        }
        value |= bits << (7 * at);
        if byte & 0x80 == 0 {
            if byte == 0 && at > 0 {
                return Err("is not encoded in its shortest form");
            }
            return Ok(Some((value, at + 1)));
        }
    }
    Ok(None)
}

/// Appends a varint: seven bits per byte, the lowest first.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

/// Returns the number of bytes that [`put_varint`] appends.
pub(super) fn varint_len(value: u64) -> usize {
    let bits = 64 - value.leading_zeros();
    bits.div_ceil(7).max(1) as usize
}

/// Maps signed to unsigned so that small absolute values stay small: 0, -1, 1, -2 … to 0, 1, 2, 3 …
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

/// Returns what is wrong with the name of an entry, if anything. A name must be one path element.
pub(super) fn fault_of_name(name: &[u8]) -> Option<&'static str> {
    match name {
        b"" => Some("is empty"),
        b"." | b".." => Some("is not a valid entry name (. or ..)"),
        name if name.contains(&b'/') => Some("contains a slash"),
        name if name.contains(&0) => Some("contains NUL"),
        name if name.len() > NAME_MAX_BYTES => Some("is longer than NAME_MAX_BYTES"),
        _ => None,
    }
}

/// Returns what is wrong with the name of a user or a group, if anything. It may have a slash, unlike that of an entry.
fn fault_of_id_name(name: &[u8]) -> Option<&'static str> {
    match name {
        b"" => Some("is empty"),
        name if name.contains(&0) => Some("contains NUL"),
        _ => None,
    }
}

/// Returns whether a message can have this name of a user or a group.
pub fn is_id_name(name: &[u8]) -> bool {
    name.len() <= NAME_MAX_BYTES && fault_of_id_name(name).is_none()
}

fn fault_of_path(bad: BadPath) -> &'static str {
    match bad {
        BadPath::Absolute => "is an absolute path",
        BadPath::Climbs => "climbs out of the tree (..)",
        BadPath::Malformed => "is not a normalized path (empty or . element, or NUL)",
    }
}

fn fault(message: &str, field: &str, why: impl Display) -> Error {
    Error::new(
        Exit::Protocol,
        format!("sparsync: protocol error: invalid message {message}: {field} {why}"),
    )
}

fn too_long(len: usize, max: usize) -> String {
    format!("is {len} bytes long, at most {max} are allowed")
}

fn too_many(count: u64, max: usize) -> String {
    format!("has the count {count}, at most {max} are allowed")
}

/// Writes the body of one message.
pub(super) struct Writer<'a> {
    /// The output; the body is appended to it.
    pub out: &'a mut Vec<u8>,
    /// The name of the message, for errors.
    message: &'static str,
}

impl<'a> Writer<'a> {
    pub fn new(message: &'static str, out: &'a mut Vec<u8>) -> Writer<'a> {
        Writer { out, message }
    }

    /// Creates an error about a field of this message.
    pub fn refuse(&self, field: &str, why: impl Display) -> Error {
        fault(self.message, field, why)
    }

    pub fn byte(&mut self, value: u8) {
        self.out.push(value);
    }

    pub fn number<T: Numbered>(&mut self, value: T) {
        self.out.push(value.number());
    }

    /// Writes up to eight flags in one byte, the first in the lowest bit.
    pub fn flags(&mut self, flags: &[bool]) {
        debug_assert!(flags.len() <= 8, "one byte holds eight flags");
        self.out.push(
            flags
                .iter()
                .rev()
                .fold(0, |byte, &flag| byte << 1 | u8::from(flag)),
        );
    }

    pub fn varint(&mut self, value: u64) {
        put_varint(self.out, value);
    }

    /// Writes a number that is only informative; values above `max` are written as `max`.
    pub fn amount(&mut self, value: u64, max: u64) {
        self.varint(value.min(max));
    }

    pub fn u32(&mut self, value: u32) {
        self.varint(u64::from(value));
    }

    pub fn signed(&mut self, value: i64) {
        self.varint(zigzag(value));
    }

    /// Writes bytes without a length: the reader knows it, or they fill the rest of the message.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub fn content_digest(&mut self, digest: &[u8; CONTENT_LEN_BYTES]) {
        self.raw(&digest[..OWN_LEN_BYTES]);
    }

    pub fn nanos(&mut self, field: &'static str, nanos: u32) -> Result<()> {
        if nanos >= NANOS {
            return Err(self.refuse(field, "has more nanoseconds than a second has"));
        }
        self.raw(&nanos.to_le_bytes());
        Ok(())
    }

    pub fn time(&mut self, field: &'static str, time: Time) -> Result<()> {
        self.signed(time.secs);
        self.nanos(field, time.nanos)
    }

    /// Writes a byte string with a length prefix.
    pub fn bytes(&mut self, field: &'static str, bytes: &[u8], max: usize) -> Result<()> {
        if bytes.len() > max {
            return Err(self.refuse(field, too_long(bytes.len(), max)));
        }
        self.varint(bytes.len() as u64);
        self.raw(bytes);
        Ok(())
    }

    /// Writes a line of text for the user. Truncates it at the limit: a long line must not end the run.
    pub fn line(&mut self, line: &[u8]) {
        let line = &line[..line.len().min(LINE_MAX_BYTES)];
        self.varint(line.len() as u64);
        self.raw(line);
    }

    /// Writes a path that is only shown to the user. Truncates it at the limit, as a line: what the destination has can
    /// have a longer path than any entry of the transfer.
    pub fn shown_path(&mut self, path: &[u8]) {
        let path = &path[..path.len().min(PATH_MAX_BYTES)];
        self.varint(path.len() as u64);
        self.raw(path);
    }

    pub fn path(&mut self, field: &'static str, path: &RelPath) -> Result<()> {
        self.bytes(field, path.as_bytes(), PATH_MAX_BYTES)
    }

    pub fn id_name(&mut self, field: &'static str, name: &[u8]) -> Result<()> {
        if let Some(why) = fault_of_id_name(name) {
            return Err(self.refuse(field, why));
        }
        self.bytes(field, name, NAME_MAX_BYTES)
    }

    /// Writes a list with a count prefix.
    pub fn many<'i, T>(
        &mut self,
        field: &'static str,
        items: &'i [T],
        max: usize,
        mut put: impl FnMut(&mut Self, &'i T) -> Result<()>,
    ) -> Result<()> {
        if items.len() > max {
            return Err(self.refuse(field, too_many(items.len() as u64, max)));
        }
        self.varint(items.len() as u64);
        items.iter().try_for_each(|item| put(self, item))
    }

    /// Writes byte strings with a count prefix.
    pub fn strings(
        &mut self,
        field: &'static str,
        items: &[Vec<u8>],
        max: usize,
        max_bytes: usize,
    ) -> Result<()> {
        self.many(field, items, max, |w, item| w.bytes(field, item, max_bytes))
    }
}

/// Reads the body of one message from front to back.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    /// The name of the message, for errors.
    message: &'static str,
}

impl<'a> Reader<'a> {
    pub fn new(message: &'static str, body: &'a [u8]) -> Reader<'a> {
        Reader {
            rest: body,
            message,
        }
    }

    /// Creates an error about a field of this message.
    pub fn refuse(&self, field: &str, why: impl Display) -> Error {
        fault(self.message, field, why)
    }

    fn cut_short(&self, field: &'static str) -> Error {
        self.refuse(field, "is truncated: the frame ends too early")
    }

    /// Checks that no bytes are left.
    pub fn end(self) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(self.refuse("frame", format_args!("has {left} trailing bytes"))),
        }
    }

    /// Returns the number of bytes left.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Reads `len` bytes. The caller must have checked `len` against a limit.
    pub fn raw(&mut self, field: &'static str, len: usize) -> Result<&'a [u8]> {
        let Some((bytes, rest)) = self.rest.split_at_checked(len) else {
            return Err(self.cut_short(field));
        };
        self.rest = rest;
        Ok(bytes)
    }

    pub fn content_digest(&mut self, field: &'static str) -> Result<[u8; CONTENT_LEN_BYTES]> {
        Ok(digest::padded(self.raw(field, OWN_LEN_BYTES)?))
    }

    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N]> {
        let Some((bytes, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.cut_short(field));
        };
        self.rest = rest;
        Ok(*bytes)
    }

    /// Reads the rest of the message.
    pub fn rest(&mut self, field: &'static str, max: usize) -> Result<&'a [u8]> {
        if self.rest.len() > max {
            return Err(self.refuse(field, too_long(self.rest.len(), max)));
        }
        Ok(std::mem::take(&mut self.rest))
    }

    pub fn byte(&mut self, field: &'static str) -> Result<u8> {
        Ok(self.array::<1>(field)?[0])
    }

    pub fn number<T: Numbered>(&mut self, field: &'static str) -> Result<T> {
        let number = self.byte(field)?;
        T::of_number(number).ok_or_else(|| self.unknown(field, number))
    }

    /// Creates an error about a number without a meaning.
    pub fn unknown(&self, field: &str, number: u8) -> Error {
        self.refuse(field, format_args!("has the unknown number {number}"))
    }

    pub fn flags<const N: usize>(&mut self, field: &'static str) -> Result<[bool; N]> {
        const { assert!(N <= 8, "one byte holds eight flags") };
        let byte = self.byte(field)?;
        if N < 8 && byte >> N != 0 {
            return Err(self.refuse(field, format_args!("has unknown bits ({byte:#04x})")));
        }
        Ok(std::array::from_fn(|bit| byte >> bit & 1 == 1))
    }

    pub fn varint(&mut self, field: &'static str) -> Result<u64> {
        match varint_at(self.rest) {
            Ok(Some((value, len))) => {
                self.rest = &self.rest[len..];
                Ok(value)
            }
            Ok(None) => Err(self.cut_short(field)),
            Err(why) => Err(self.refuse(field, why)),
        }
    }

    /// Reads a number and checks that it is at most `max`.
    pub fn varint_up_to(&mut self, field: &'static str, max: u64) -> Result<u64> {
        let value = self.varint(field)?;
        if value > max {
            return Err(self.refuse(field, format_args!("is {value}, at most {max} are allowed")));
        }
        Ok(value)
    }

    pub fn u32(&mut self, field: &'static str) -> Result<u32> {
        let value = self.varint(field)?;
        u32::try_from(value)
            .map_err(|_| self.refuse(field, format_args!("is {value}, which exceeds 32 bits")))
    }

    pub fn u16(&mut self, field: &'static str) -> Result<u16> {
        let value = self.varint(field)?;
        u16::try_from(value)
            .map_err(|_| self.refuse(field, format_args!("is {value}, which exceeds 16 bits")))
    }

    pub fn signed(&mut self, field: &'static str) -> Result<i64> {
        Ok(unzigzag(self.varint(field)?))
    }

    pub fn nanos(&mut self, field: &'static str) -> Result<u32> {
        let nanos = u32::from_le_bytes(self.array(field)?);
        if nanos >= NANOS {
            return Err(self.refuse(field, "has more nanoseconds than a second has"));
        }
        Ok(nanos)
    }

    pub fn time(&mut self, field: &'static str) -> Result<Time> {
        Ok(Time {
            secs: self.signed(field)?,
            nanos: self.nanos(field)?,
        })
    }

    /// Reads a length and checks that it is at most `max` and at most the number of bytes left.
    pub fn len(&mut self, field: &'static str, max: usize) -> Result<usize> {
        let len = self.varint(field)?;
        match usize::try_from(len) {
            Ok(len) if len <= max && len <= self.rest.len() => Ok(len),
            Ok(len) if len <= max => Err(self.cut_short(field)),
            _ => Err(self.refuse(
                field,
                format_args!("is {len} bytes long, at most {max} are allowed"),
            )),
        }
    }

    pub fn bytes(&mut self, field: &'static str, max: usize) -> Result<&'a [u8]> {
        let len = self.len(field, max)?;
        self.raw(field, len)
    }

    /// Reads a byte string into a new allocation.
    pub fn owned(&mut self, field: &'static str, max: usize) -> Result<Vec<u8>> {
        Ok(self.bytes(field, max)?.to_vec())
    }

    pub fn line(&mut self, field: &'static str) -> Result<Vec<u8>> {
        self.owned(field, LINE_MAX_BYTES)
    }

    /// Reads an optional value if its flag is set.
    pub fn when<T>(
        &mut self,
        is_present: bool,
        get: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        is_present.then(|| get(self)).transpose()
    }

    pub fn path(&mut self, field: &'static str) -> Result<RelPath> {
        let bytes = self.bytes(field, PATH_MAX_BYTES)?;
        RelPath::parse(bytes).map_err(|bad| self.refuse(field, fault_of_path(bad)))
    }

    pub fn id_name(&mut self, field: &'static str) -> Result<&'a [u8]> {
        let name = self.bytes(field, NAME_MAX_BYTES)?;
        match fault_of_id_name(name) {
            Some(why) => Err(self.refuse(field, why)),
            None => Ok(name),
        }
    }

    /// Reads the count of items of at least `min_bytes` each (not 0), and checks that so many can fit into the rest.
    pub fn count(&mut self, field: &'static str, max: usize, min_bytes: usize) -> Result<usize> {
        let count = self.varint(field)?;
        match usize::try_from(count) {
            Ok(count) if count <= max && count <= self.rest.len() / min_bytes => Ok(count),
            Ok(count) if count <= max => {
                let left = self.rest.len();
                Err(self.refuse(
                    field,
                    format_args!("has the count {count}, but only {left} bytes follow"),
                ))
            }
            _ => Err(self.refuse(field, too_many(count, max))),
        }
    }

    /// Reads a list with a count prefix.
    pub fn many<T>(
        &mut self,
        field: &'static str,
        max: usize,
        min_bytes: usize,
        mut get: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let count = self.count(field, max, min_bytes)?;
        // Items are larger in memory than on the wire, and a count can be false: allocate only in proportion to the
        // bytes left.
        let likely = count.min(self.rest.len() / size_of::<T>().max(1));
        let mut items = Vec::with_capacity(likely);
        for _ in 0..count {
            items.push(get(self)?);
        }
        Ok(items)
    }

    /// Reads byte strings with a count prefix.
    pub fn strings(
        &mut self,
        field: &'static str,
        max: usize,
        max_bytes: usize,
    ) -> Result<Vec<Vec<u8>>> {
        self.many(field, max, 1, |r| r.owned(field, max_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, value);
        out
    }

    #[test]
    fn varint_accepts_only_the_shortest_form() {
        assert_eq!(spelled(0), [0]);
        assert_eq!(spelled(127), [0x7f]);
        assert_eq!(spelled(128), [0x80, 0x01]);
        assert_eq!(
            spelled(u64::MAX),
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]
        );
        assert!(
            varint_at(&[0x80, 0x00])
                .unwrap_err()
                .contains("shortest form")
        );
        assert!(varint_at(&[0xff; 10]).unwrap_err().contains("64 bits"));
        assert!(varint_at(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02]).is_err());
        assert_eq!(varint_at(&[0xff; 9]), Ok(None));
        assert_eq!(varint_at(&[]), Ok(None));
    }

    #[test]
    fn count_is_limited_by_the_remaining_bytes() {
        let mut reader = Reader::new("Test", &[0xff, 0xff, 0x03, 1, 2, 3]);
        let error = reader.count("items", 1 << 20, 1).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("items has the count 65535, but only 3 bytes follow"),
            "{error}"
        );
        // Two bytes for each of the two items are not there.
        let mut reader = Reader::new("Test", &[2, 1, 2, 3]);
        assert!(reader.count("items", 9, 2).is_err());
        let mut reader = Reader::new("Test", &[2, 1, 2, 3, 4]);
        assert_eq!(reader.count("items", 9, 2).unwrap(), 2);
    }

    #[test]
    fn rest_of_a_message_may_have_the_greatest_length() {
        assert_eq!(Reader::new("Test", b"abc").rest("rest", 3).unwrap(), b"abc");
        assert!(Reader::new("Test", b"abc").rest("rest", 2).is_err());
    }

    proptest::proptest! {
        #[test]
        fn varint_and_zigzag_round_trip(value: u64, signed: i64) {
            let bytes = spelled(value);
            proptest::prop_assert_eq!(bytes.len(), varint_len(value));
            proptest::prop_assert_eq!(varint_at(&bytes), Ok(Some((value, bytes.len()))));
            proptest::prop_assert_eq!(unzigzag(zigzag(signed)), signed);
            for cut in 0..bytes.len() {
                proptest::prop_assert_eq!(varint_at(&bytes[..cut]), Ok(None));
            }
        }

        #[test]
        fn decoded_varint_encodes_to_the_same_bytes(bytes: Vec<u8>) {
            if let Ok(Some((value, len))) = varint_at(&bytes) {
                proptest::prop_assert_eq!(spelled(value), &bytes[..len]);
            }
        }
    }
}

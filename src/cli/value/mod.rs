//! Parsers of option arguments: sizes, numbers, modes, owners, times, names.
//!
//! Each parses bytes into a value, or returns rsync's error message. None depends on other options.

pub mod chmod;
pub mod ids;
pub mod names;
pub mod number;
pub mod shell;
pub mod size;
pub mod stop;
pub mod words;

use crate::error::Error;

/// An option's argument as given.
#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    /// The argument; empty for a switch.
    pub value: &'a [u8],
    /// The last argument of the command line that belongs to the option, for messages: `--timeout=x`, or `x`.
    pub word: &'a [u8],
}

/// Returns a usage error in rsync's form: `rsync: ` and the sentence.
pub fn refuse(sentence: impl AsRef<[u8]>) -> Error {
    let mut message = b"rsync: ".to_vec();
    message.extend_from_slice(&printable(sentence.as_ref()));
    Error::usage(message)
}

/// Formats bytes as rsync prints them in messages: control bytes and bytes that are not UTF-8 as `\#ooo`.
pub fn printable(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() && letter != '\t' && letter != '\n' {
                for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
                    push_octal(&mut out, byte);
                }
            } else {
                out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        for &byte in chunk.invalid() {
            push_octal(&mut out, byte);
        }
    }
    out
}

fn push_octal(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(format!("\\#{byte:03o}").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unprintable_bytes_are_escaped_in_messages() {
        assert_eq!(printable(b"--\xff\x01a"), b"--\\#377\\#001a");
        assert_eq!(printable("ä".as_bytes()), "ä".as_bytes());
    }
}

//! SIZE: `n[.n][BKMGTP][B or iB][+1 or -1]`.

use super::{Given, refuse};
use crate::error::{Error, Result};

/// A limit on a SIZE, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct SizeLimits {
    /// Smaller values are rejected, except 0.
    pub min: u64,
    /// The minimum as error messages show it.
    pub min_text: &'static str,
    /// Larger values are rejected.
    pub max: u64,
    /// The maximum as error messages show it; empty if they do not.
    pub max_text: &'static str,
}

/// No limits but those of the type.
pub const ANY: SizeLimits = SizeLimits {
    min: 0,
    min_text: "",
    max: i64::MAX as u64,
    max_text: "",
};

/// Parses the SIZE of the option `name` (without dashes). `unit` is the letter that a bare number implies.
pub fn size(given: &Given<'_>, name: &str, unit: u8, limits: &SizeLimits) -> Result<u64> {
    let refused = |why: &str| -> Error {
        let mut sentence = format!("--{name}=").into_bytes();
        sentence.extend_from_slice(given.value);
        sentence.extend_from_slice(why.as_bytes());
        refuse(sentence)
    };
    let too_large = || match limits.max_text {
        "" => refused(" is too large"),
        max => refused(&format!(" is too large (max: {max})")),
    };
    match parse(given.value, unit) {
        ParsedSize::Invalid => Err(refused(" is invalid")),
        ParsedSize::TooLarge => Err(too_large()),
        ParsedSize::Bytes(bytes) if bytes > limits.max => Err(too_large()),
        ParsedSize::Bytes(bytes) if bytes < limits.min && bytes != 0 => Err(refused(&format!(
            " is too small (min: {} or 0 for unlimited)",
            limits.min_text
        ))),
        ParsedSize::Bytes(bytes) => Ok(bytes),
    }
}

enum ParsedSize {
    Invalid,
    TooLarge,
    Bytes(u64),
}

fn parse(text: &[u8], unit: u8) -> ParsedSize {
    if text.is_empty() {
        return ParsedSize::Bytes(0);
    }
    if let Some(rest) = text.strip_prefix(b"-") {
        // C reads the number first: a negative one is too large, whatever follows it.
        return if split_number(rest).0 > 0.0 {
            ParsedSize::TooLarge
        } else {
            ParsedSize::Invalid
        };
    }
    let (number, mut rest) = split_number(text);
    if rest.len() == text.len() {
        return ParsedSize::Invalid;
    }
    let letter = match rest.first().map(u8::to_ascii_lowercase) {
        Some(letter @ (b'b' | b'k' | b'm' | b'g' | b't' | b'p')) => {
            rest = &rest[1..];
            letter
        }
        None | Some(b'+' | b'-') => unit,
        Some(_) => return ParsedSize::Invalid,
    };
    let power = match letter {
        b'k' => 1,
        b'm' => 2,
        b'g' => 3,
        b't' => 4,
        b'p' => 5,
        _ => 0,
    };
    let base: u64 = match rest {
        [b'b' | b'B', tail @ ..] => {
            rest = tail;
            1000
        }
        [b'i' | b'I', b'b' | b'B', tail @ ..] => {
            rest = tail;
            1024
        }
        _ => 1024,
    };
    let step: i64 = match rest {
        b"" => 0,
        b"+1" => 1,
        b"-1" => -1,
        _ => return ParsedSize::Invalid,
    };
    let factor = base.pow(power);
    // A double, truncated: sizes from 2^53 on lose their last digits, as in rsync.
    let bytes = number * factor as f64;
    if bytes >= i64::MAX as f64 {
        return ParsedSize::TooLarge;
    }
    match u64::try_from(bytes as i64 + step) {
        Ok(bytes) => ParsedSize::Bytes(bytes),
        Err(_) => ParsedSize::TooLarge,
    }
}

/// Splits off the leading number: digits with at most one dot. Returns it and the rest.
fn split_number(text: &[u8]) -> (f64, &[u8]) {
    let mut length = text.iter().take_while(|b| b.is_ascii_digit()).count();
    if text.get(length) == Some(&b'.') {
        length += 1 + text[length + 1..]
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .count();
    }
    let (number, rest) = text.split_at(length);
    let number = String::from_utf8_lossy(number);
    // With a leading 0, all of "", ".", "2." and ".5" are numbers.
    (format!("0{number}").parse().unwrap_or(0.0), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> std::result::Result<u64, String> {
        size(
            &Given {
                value: text.as_bytes(),
                word: b"",
            },
            "max-size",
            b'b',
            &ANY,
        )
        .map_err(|e| String::from_utf8(e.message).unwrap())
    }

    #[test]
    fn parsed_sizes_match_rsync() {
        for (text, bytes) in [
            ("", 0),
            ("0", 0),
            ("1b", 1),
            ("1k", 1024),
            ("1kb", 1000),
            ("1KiB", 1024),
            ("1.5mb-1", 1_499_999),
            ("1.5m", 1_572_864),
            (".5k+1", 513),
            ("0.3", 0),
            ("1.9999999k", 2047),
            ("0.1g", 107_374_182),
            ("1.1p", 1_238_489_897_526_886),
            ("2.", 2),
            (".", 0),
            ("1.1b+1", 2),
            ("0.001kb", 1),
            ("1.23456789012345t", 1_357_421_750_469),
            ("1+1", 2),
            ("1-1", 0),
            ("1bb", 1),
            ("9007199254740993", 9_007_199_254_740_992),
        ] {
            assert_eq!(read(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_have_rsyncs_errors() {
        for text in [
            "x", "1x", "1+2", "1e", "1.x", "1kk", "1ki", "1k+", " 1", "+1", "1,5k", "1.5.5k",
            "0x10", "1K+1x", "-", "-0", "-x",
        ] {
            assert_eq!(
                read(text),
                Err(format!("rsync: --max-size={text} is invalid"))
            );
        }
        for text in [
            "-1",
            "-1x",
            "0-1",
            "9999999p",
            "8192p-1",
            "9223372036854775807",
            "99999999999999999999",
        ] {
            assert_eq!(
                read(text),
                Err(format!("rsync: --max-size={text} is too large"))
            );
        }
    }
}

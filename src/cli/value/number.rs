//! Whole numbers as popt reads them: decimal, hexadecimal with `0x`, octal with `0`, an optional sign. Empty text is 0.

use super::{Given, refuse};
use crate::error::Result;

/// Parses the argument of an option that takes a 32-bit number.
pub fn int(given: &Given<'_>) -> Result<i32> {
    let number = match strtol(given.value) {
        Some(number) => number,
        None => return Err(refuse([given.word, b": invalid numeric value"].concat())),
    };
    i32::try_from(number)
        .map_err(|_| refuse([given.word, b": number too large or too small"].concat()))
}

/// Parses a number as C's `strtol` with base 0. The number must be the whole text. Saturates far outside 32 bits.
fn strtol(text: &[u8]) -> Option<i64> {
    let start = text
        .iter()
        .position(|b| !b" \t\n\x0b\x0c\r".contains(b))
        .unwrap_or(text.len());
    let text = &text[start..];
    if text.is_empty() {
        return Some(0);
    }
    let (negative, digits) = match text[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (base, digits) = match digits {
        [b'0', b'x' | b'X', rest @ ..] if rest.first().is_some_and(u8::is_ascii_hexdigit) => {
            (16, rest)
        }
        [b'0', rest @ ..] if !rest.is_empty() => (8, rest),
        _ => (10, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let mut value: i64 = 0;
    for &digit in digits {
        let digit = char::from(digit).to_digit(base)?;
        value = value
            .saturating_mul(i64::from(base))
            .saturating_add(i64::from(digit));
    }
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<i32> {
        int(&Given {
            value: text.as_bytes(),
            word: b"--timeout=..",
        })
        .ok()
    }

    #[test]
    fn integers_parse_as_in_popt() {
        assert_eq!(read(""), Some(0));
        assert_eq!(read(" 3"), Some(3));
        assert_eq!(read("+3"), Some(3));
        assert_eq!(read("-5"), Some(-5));
        assert_eq!(read("010"), Some(8));
        assert_eq!(read("0x10"), Some(16));
        assert_eq!(read("0"), Some(0));
        for bad in [
            "x",
            "1x",
            "1.5",
            "-",
            "08",
            "0x",
            "2147483648",
            "99999999999999999999",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn invalid_number_error_quotes_the_argument() {
        let error = int(&Given {
            value: b"x",
            word: b"-@x",
        })
        .unwrap_err();
        assert_eq!(error.message, b"rsync: -@x: invalid numeric value");
    }
}

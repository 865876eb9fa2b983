//! Manifests: a line with the digest and the path of each file, as b3sum, sha256sum, md5sum and xxhsum write them. Pure.
//!
//! These programs represent unusual names in different ways. b3sum and those of coreutils put a backslash before a line
//! in which characters are escaped; xxhsum escapes nothing. b3sum escapes newlines and backslashes, coreutils also carriage
//! returns. b3sum requires UTF-8, and rejects U+FFFD, which stands for bytes that are not UTF-8.

use crate::digest::HashAlgorithm;

/// Returns why the format of an algorithm's manifests cannot represent a path; `None` if it can.
pub fn unrepresentable(algorithm: HashAlgorithm, path: &[u8]) -> Option<&'static str> {
    match algorithm {
        HashAlgorithm::Blake3 => match std::str::from_utf8(path) {
            Err(_) => Some("b3sum's format requires UTF-8"),
            Ok(text) if text.contains('\u{fffd}') => Some("b3sum rejects the character U+FFFD"),
            Ok(_) => None,
        },
        HashAlgorithm::Xxh128 | HashAlgorithm::Xxh3 | HashAlgorithm::Xxh64 => {
            if path.contains(&b'\n') {
                Some("xxhsum's format cannot represent a newline")
            } else {
                None
            }
        }
        HashAlgorithm::Sha256 | HashAlgorithm::Sha1 | HashAlgorithm::Md5 => None,
    }
}

/// Appends the line of a file, whose path the format can represent.
pub fn put_line(out: &mut Vec<u8>, algorithm: HashAlgorithm, digest: &[u8], path: &[u8]) {
    let escaped: &[u8] = match algorithm {
        HashAlgorithm::Blake3 => b"\\\n",
        HashAlgorithm::Sha256 | HashAlgorithm::Sha1 | HashAlgorithm::Md5 => b"\\\n\r",
        HashAlgorithm::Xxh128 | HashAlgorithm::Xxh3 | HashAlgorithm::Xxh64 => b"",
    };
    let is_escaped = path.iter().any(|byte| escaped.contains(byte));

    if is_escaped {
        out.push(b'\\');
    }
    put_hex(out, digest);
    out.extend_from_slice(b"  ");
    for &byte in path {
        match byte {
            b'\\' if is_escaped => out.extend_from_slice(b"\\\\"),
            b'\n' if is_escaped => out.extend_from_slice(b"\\n"),
            b'\r' if is_escaped && escaped.contains(&b'\r') => out.extend_from_slice(b"\\r"),
            other => out.push(other),
        }
    }
    out.push(b'\n');
}

/// Appends a digest in hexadecimal digits.
pub fn put_hex(out: &mut Vec<u8>, digest: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in digest {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(algorithm: HashAlgorithm, path: &[u8]) -> Vec<u8> {
        let mut line = Vec::new();
        put_line(&mut line, algorithm, &[0xa5; 4], path);
        line
    }

    #[test]
    fn each_format_escapes_as_its_program() {
        for (algorithm, path, wanted) in [
            (
                HashAlgorithm::Blake3,
                &b"a\\b\nc\rd"[..],
                &b"a\\\\b\\nc\rd"[..],
            ),
            (HashAlgorithm::Sha256, b"a\\b\nc\rd", b"a\\\\b\\nc\\rd"),
            (HashAlgorithm::Md5, b"c\rd", b"c\\rd"),
            (HashAlgorithm::Xxh128, b"a\\b\rd", b"a\\b\rd"),
            (HashAlgorithm::Blake3, b"c\rd", b"c\rd"),
            (HashAlgorithm::Sha256, b" *a\xff", b" *a\xff"),
        ] {
            let line = line_of(algorithm, path);
            let is_escaped = path != wanted;
            assert_eq!(line.starts_with(b"\\"), is_escaped, "{algorithm:?}");
            let tail = [b"a5  ", wanted, b"\n"].concat();
            assert!(
                line.ends_with(&tail),
                "{algorithm:?}: {}",
                line.escape_ascii()
            );
        }
    }

    #[test]
    fn what_a_format_cannot_represent_is_known() {
        for (algorithm, path, is_possible) in [
            (HashAlgorithm::Blake3, &b"\xff"[..], false),
            (HashAlgorithm::Blake3, "\u{fffd}".as_bytes(), false),
            (HashAlgorithm::Blake3, b"a\nb", true),
            (HashAlgorithm::Sha256, b"a\n\xff", true),
            (HashAlgorithm::Xxh128, b"a\nb", false),
            (HashAlgorithm::Xxh128, b"\xff", true),
        ] {
            let why = unrepresentable(algorithm, path);
            assert_eq!(why.is_none(), is_possible, "{algorithm:?}: {why:?}");
        }
    }
}

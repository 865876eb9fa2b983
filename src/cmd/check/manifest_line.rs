//! The lines of manifests that b3sum, sha256sum, md5sum and xxhsum write, also with `--tag`. Pure.

use crate::digest::HashAlgorithm;
use crate::path::{BadPath, RelPath};

/// A line of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestLine {
    pub path: RelPath,
    pub digest: Vec<u8>,
    /// The algorithm that the line names (`--tag`); `None`: one whose digests are as long.
    pub named: Option<HashAlgorithm>,
}

/// Parses a line, without its newline. Returns `None` for an empty line and for a comment, and the reason if the line is
/// wrong.
pub fn parse_line(line: &[u8]) -> Result<Option<ManifestLine>, String> {
    if line.is_empty() || line[0] == b'#' {
        return Ok(None);
    }
    let (is_escaped, text) = match line.strip_prefix(b"\\") {
        Some(text) => (true, text),
        None => (false, line),
    };
    let (named, digest, name) = match tagged(text) {
        Some((algorithm, name, digits)) => (Some(algorithm), digits, name),
        None => {
            let digits_end = text
                .iter()
                .position(|byte| !byte.is_ascii_hexdigit())
                .unwrap_or(text.len());
            let (digits, rest) = text.split_at(digits_end);
            // The asterisk marks what was read in binary mode, which is the same here.
            let name = rest
                .strip_prefix(b"  ")
                .or_else(|| rest.strip_prefix(b" *"))
                .ok_or("expected a digest, two blanks and a path")?;
            (None, digits, name)
        }
    };

    let digest = from_hex(digest).ok_or("the digest is not a number in hexadecimal digits")?;
    if candidates(named, digest.len()).next().is_none() {
        return Err(match named {
            Some(algorithm) => format!(
                "a digest of {} has {} digits, not {}",
                algorithm.name(),
                2 * algorithm.len_bytes(),
                2 * digest.len()
            ),
            None => format!("no known digest has {} digits", 2 * digest.len()),
        });
    }
    let name = if is_escaped {
        unescaped(name)?
    } else {
        name.to_vec()
    };
    Ok(Some(ManifestLine {
        path: path_of(&name)?,
        digest,
        named,
    }))
}

/// Returns the algorithms that a digest can be of: the one that its line names, or all with digests of this length.
pub fn candidates(
    named: Option<HashAlgorithm>,
    len_bytes: usize,
) -> impl Iterator<Item = HashAlgorithm> {
    HashAlgorithm::ALL.into_iter().filter(move |&algorithm| {
        algorithm.len_bytes() == len_bytes && named.is_none_or(|named| named == algorithm)
    })
}

/// Splits a line of the form `SHA256 (name) = digits`.
fn tagged(text: &[u8]) -> Option<(HashAlgorithm, &[u8], &[u8])> {
    let algorithm = HashAlgorithm::ALL
        .into_iter()
        .find(|algorithm| starts_with_tag(text, algorithm.name()))?;
    let rest = &text[algorithm.name().len() + 2..];
    let end = rest.windows(4).rposition(|part| part == b") = ")?;
    Some((algorithm, &rest[..end], &rest[end + 4..]))
}

fn starts_with_tag(text: &[u8], name: &str) -> bool {
    let tag = format!("{} (", name.to_ascii_uppercase());
    text.starts_with(tag.as_bytes())
}

fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    if digits.is_empty() || !digits.len().is_multiple_of(2) {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16);
    digits
        .chunks(2)
        .map(|pair| Some((value(pair[0])? << 4 | value(pair[1])?) as u8))
        .collect()
}

fn unescaped(name: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.iter();
    while let Some(&byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'\\') => bytes.push(b'\\'),
            Some(b'n') => bytes.push(b'\n'),
            Some(b'r') => bytes.push(b'\r'),
            _ => return Err("expected `\\\\`, `\\n` or `\\r` after a backslash".to_owned()),
        }
    }
    Ok(bytes)
}

/// Returns the path that a name stands for. `find . | xargs sha256sum` writes `./` before each name.
fn path_of(name: &[u8]) -> Result<RelPath, String> {
    let mut rest = name;
    while let Some(after) = rest.strip_prefix(b"./") {
        rest = after;
    }
    if rest.is_empty() {
        return Err("the path is missing".to_owned());
    }
    RelPath::parse(rest).map_err(|bad| {
        let why = match bad {
            BadPath::Absolute => "the path is absolute",
            BadPath::Climbs => "the path contains `..`",
            BadPath::Malformed => "the path contains an empty element, `.`, or a NUL byte",
        };
        why.to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::hash::manifest::{put_line, unrepresentable};
    use proptest::prelude::*;

    fn line_of(algorithm: HashAlgorithm, path: &[u8]) -> Vec<u8> {
        let mut line = Vec::new();
        put_line(
            &mut line,
            algorithm,
            &[0xa5; 32][..algorithm.len_bytes()],
            path,
        );
        line
    }

    #[test]
    fn lines_of_all_programs_are_read() {
        let md5 = "0cc175b9c0f1b6a831c399e269772661";
        let sha256 = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
        for (line, path, named) in [
            (format!("{md5}  a b"), &b"a b"[..], None),
            (format!("{md5} *./a"), b"a", None),
            (format!("{sha256}   a"), b" a", None),
            (format!("\\{md5}  a\\n\\\\\\r"), b"a\n\\\r", None),
            (format!("{}  a", md5.to_uppercase()), b"a", None),
            (
                format!("SHA256 (a) = b) = {sha256}"),
                b"a) = b",
                Some(HashAlgorithm::Sha256),
            ),
            (
                format!("\\MD5 (a\\nb) = {md5}"),
                b"a\nb",
                Some(HashAlgorithm::Md5),
            ),
            (
                format!("XXH128 (a\\b) = {md5}"),
                b"a\\b",
                Some(HashAlgorithm::Xxh128),
            ),
        ] {
            let read = parse_line(line.as_bytes()).expect(&line).expect(&line);
            assert_eq!((read.path.as_bytes(), read.named), (path, named), "{line}");
        }
        assert_eq!(parse_line(b""), Ok(None));
        assert_eq!(parse_line(b"# made by hand"), Ok(None));
        assert_eq!(
            candidates(None, 32).collect::<Vec<_>>(),
            [HashAlgorithm::Blake3, HashAlgorithm::Sha256]
        );
    }

    #[test]
    fn wrong_lines_name_the_reason() {
        let md5 = "0cc175b9c0f1b6a831c399e269772661";
        for (line, reason) in [
            ("no digest".to_owned(), "expected a digest"),
            (format!("{md5} a"), "expected a digest"),
            (md5.to_owned(), "expected a digest"),
            ("  a".to_owned(), "not a number"),
            ("abc  a".to_owned(), "not a number"),
            ("abcd  a".to_owned(), "no known digest has 4 digits"),
            (format!("SHA256 (a) = {md5}"), "has 64 digits, not 32"),
            ("MD5 (a) = xy".to_owned(), "not a number"),
            (format!("{md5}  "), "the path is missing"),
            (format!("{md5}  ./"), "the path is missing"),
            (format!("{md5}  /etc/passwd"), "the path is absolute"),
            (format!("{md5}  a/../../b"), "contains `..`"),
            (format!("{md5}  .//etc/passwd"), "the path is absolute"),
            (format!("{md5}  a//b"), "an empty element"),
            (format!("\\{md5}  a\\x"), "after a backslash"),
            (format!("\\{md5}  a\\"), "after a backslash"),
        ] {
            let error = parse_line(line.as_bytes()).expect_err(&line);
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_written_line_is_read_as_it_was_meant(
            algorithm in proptest::sample::select(HashAlgorithm::OF_MANIFESTS.to_vec()),
            path in "([a\\\\\n\r \u{e9}*#.]{1,4}/){0,2}[a\\\\\n\r \u{e9}*#.]{1,4}",
        ) {
            let parts_are_names = path.split('/').all(|part| part != "." && part != "..");
            prop_assume!(parts_are_names && unrepresentable(algorithm, path.as_bytes()).is_none());
            let line = line_of(algorithm, path.as_bytes());
            prop_assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
            let read = parse_line(&line[..line.len() - 1]).unwrap().unwrap();
            prop_assert_eq!(read.path.as_bytes(), path.as_bytes());
            prop_assert_eq!(read.digest, vec![0xa5; algorithm.len_bytes()]);
        }

        #[test]
        fn any_line_is_read_or_rejected(line in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(Some(read)) = parse_line(&line) {
                prop_assert!(!read.path.is_root());
            }
        }
    }
}

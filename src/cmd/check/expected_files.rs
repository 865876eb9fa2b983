//! A manifest in memory: the files that a tree should have, in the order of the bytes of their paths.

use super::manifest_line::{self, candidates};
use crate::digest::HashAlgorithm;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::path::RelPath;
use crate::report::event::errno_words;
use std::io::{self, BufRead, Read as _};

/// The longest line that is read. Paths are shorter, also with each byte escaped.
const LINE_MAX_BYTES: u64 = 1 << 20;
/// The length of the longest digests.
const DIGEST_MAX_BYTES: usize = 32;

/// A file that the manifest lists.
#[derive(Debug, Clone)]
pub struct ExpectedFile {
    pub path: RelPath,
    /// The digest, followed by zeros.
    digest: [u8; DIGEST_MAX_BYTES],
    digest_len: u8,
    named: Option<HashAlgorithm>,
    line: u64,
}

impl ExpectedFile {
    /// Returns the digest.
    pub fn digest(&self) -> &[u8] {
        &self.digest[..usize::from(self.digest_len)]
    }

    /// Returns the algorithms that the digest can be of.
    pub fn algorithms(&self, only: Option<HashAlgorithm>) -> Vec<HashAlgorithm> {
        candidates(self.named.or(only), usize::from(self.digest_len)).collect()
    }
}

/// Reads a manifest to its end, and sorts it. `shown`: its name in messages. `only`: the algorithm that the user named.
pub fn read(
    from: impl io::Read,
    shown: &[u8],
    only: Option<HashAlgorithm>,
) -> Result<Vec<ExpectedFile>> {
    let mut from = io::BufReader::new(from);
    let mut files: Vec<ExpectedFile> = Vec::new();
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let read = from
            .by_ref()
            .take(LINE_MAX_BYTES)
            .read_until(b'\n', &mut text);
        match read {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                let start = b"sparsync: cannot read the manifest ".as_slice();
                let message = [start, shown, b": ", &errno_words(&error)].concat();
                return Err(Error::new(Exit::FileSelect, message));
            }
        }
        let is_whole = text.pop_if(|byte| *byte == b'\n').is_some();
        if !is_whole && text.len() as u64 == LINE_MAX_BYTES {
            return Err(wrong(shown, line, "it is too long"));
        }
        files.extend(expected(&text, line, only).map_err(|why| wrong(shown, line, &why))?);
    }

    // The first line of a path comes first.
    files.sort_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
    let contradiction = files
        .windows(2)
        .find(|pair| pair[0].path == pair[1].path && pair[0].digest() != pair[1].digest());
    if let Some([first, second]) = contradiction {
        let why = format!(
            "it has another digest than line {} for the same path",
            first.line
        );
        return Err(wrong(shown, second.line, &why));
    }
    files.dedup_by(|a, b| a.path == b.path);
    Ok(files)
}

/// Parses a line; `None` if it is empty or a comment.
fn expected(
    text: &[u8],
    line: u64,
    only: Option<HashAlgorithm>,
) -> std::result::Result<Option<ExpectedFile>, String> {
    let Some(parsed) = manifest_line::parse_line(text)? else {
        return Ok(None);
    };
    if let Some(only) = only
        && !candidates(parsed.named, parsed.digest.len()).any(|algorithm| algorithm == only)
    {
        return Err(format!("it is not of {}", only.name()));
    }
    let mut digest = [0; DIGEST_MAX_BYTES];
    digest[..parsed.digest.len()].copy_from_slice(&parsed.digest);
    Ok(Some(ExpectedFile {
        path: parsed.path,
        digest,
        digest_len: parsed.digest.len() as u8,
        named: parsed.named,
        line,
    }))
}

fn wrong(shown: &[u8], line: u64, why: &str) -> Error {
    let start = format!("sparsync: cannot use line {line} of the manifest ");
    Error::usage([start.as_bytes(), shown, b": ", why.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMS: [&str; 2] = [
        "0cc175b9c0f1b6a831c399e269772661",
        "92eb5ffee6ae2fec3ad71c777531578f",
    ];

    fn paths(text: &str) -> std::result::Result<Vec<String>, String> {
        let files = read(text.as_bytes(), b"m", None);
        let shown = |file: &ExpectedFile| String::from_utf8(file.path.as_bytes().to_vec()).unwrap();
        files
            .map(|files| files.iter().map(shown).collect())
            .map_err(|error| String::from_utf8(error.message).unwrap())
    }

    #[test]
    fn files_are_sorted_by_the_bytes_of_their_paths() {
        let [sum, _] = SUMS;
        let text = format!("# made\n{sum}  a/b\n\n{sum}  a.c\n{sum}  a/b\n{sum}  A");
        assert_eq!(paths(&text).unwrap(), ["A", "a.c", "a/b"]);
        assert_eq!(paths("").unwrap(), [""; 0]);
    }

    #[test]
    fn a_wrong_line_is_named() {
        let [sum, other] = SUMS;
        for (text, line, why) in [
            (format!("{sum}  a\nnonsense\n"), 2, "expected a digest"),
            (format!("{sum}  a\n{sum}  ../b"), 2, "contains `..`"),
            (
                format!("{sum}  a\n{sum}  b\n{other}  a\n"),
                3,
                "another digest than line 1 for the same path",
            ),
            (
                format!("{sum}  {}", "x".repeat(LINE_MAX_BYTES as usize)),
                1,
                "it is too long",
            ),
        ] {
            let error = paths(&text).unwrap_err();
            let start = format!("sparsync: cannot use line {line} of the manifest m: ");
            assert!(error.starts_with(&start) && error.contains(why), "{error}");
        }
        let error = read(
            format!("{sum}  a").as_bytes(),
            b"m",
            Some(HashAlgorithm::Sha256),
        );
        let error = String::from_utf8(error.unwrap_err().message).unwrap();
        assert!(error.ends_with("m: it is not of sha256"), "{error}");
    }
}

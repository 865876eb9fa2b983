//! Compression in the words of both protocols: its levels, rsync's line about it, and the files that are left out.

use crate::options::Compression;
use crate::options::algorithm::Algorithm as _;

/// Returns the zstd level that rsync uses for a requested level; 0 means the default.
pub fn zstd_level(level: Option<i32>) -> i32 {
    const USUAL: i32 = 3;
    const LEVELS: std::ops::RangeInclusive<i32> = -131_072..=22;
    match level {
        None | Some(0) => USUAL,
        Some(level) => level.clamp(*LEVELS.start(), *LEVELS.end()),
    }
}

/// Returns the zlib level that rsync uses for a requested level; -1 means the default, 0 no compression.
pub fn zlib_level(level: Option<i32>) -> u32 {
    const USUAL: u32 = 6;
    match level {
        None | Some(-1) => USUAL,
        Some(0) => 0,
        Some(level) => level.clamp(1, 9).unsigned_abs(),
    }
}

/// Returns rsync's line about the chosen method (`--debug=nstr`); `None` if rsync prints none.
pub fn line(
    given: Option<Compression>,
    settled: Option<Compression>,
    level: Option<i32>,
) -> Option<String> {
    let (name, level) = match settled? {
        Compression::No => ("none", level?),
        method @ (Compression::Auto | Compression::Zstd) => (method.name(), zstd_level(level)),
        Compression::Lz4 => ("lz4", 0),
        Compression::Zlibx | Compression::Zlib if zlib_level(level) == 0 => ("none", 0),
        method @ (Compression::Zlibx | Compression::Zlib) => {
            (method.name(), zlib_level(level) as i32)
        }
    };
    let how = if given == Some(Compression::Auto) {
        "negotiated "
    } else {
        ""
    };
    Some(format!("Client {how}compress: {name} (level {level})"))
}

/// Whether a file of this name is sent uncompressed because its suffix matches `--skip-compress`. The match ignores
/// case; letters in brackets stand for one of them.
pub fn is_left_out(name: &[u8], suffixes: &[Vec<u8>]) -> bool {
    let Some(dot) = name.iter().rposition(|&byte| byte == b'.') else {
        return false;
    };
    suffixes
        .iter()
        .any(|suffix| is_suffix(&name[dot + 1..], suffix))
}

fn is_suffix(mut found: &[u8], mut suffix: &[u8]) -> bool {
    while let Some((&first, rest)) = suffix.split_first() {
        let Some((&letter, behind)) = found.split_first() else {
            return false;
        };
        let class_len = (first == b'[')
            .then(|| rest.iter().position(|&byte| byte == b']'))
            .flatten();
        let letters = class_len.map_or(&suffix[..1], |len| &rest[..len]);
        if !letters
            .iter()
            .any(|byte| byte.eq_ignore_ascii_case(&letter))
        {
            return false;
        }
        (found, suffix) = (behind, class_len.map_or(rest, |len| &rest[len + 1..]));
    }
    found.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skip_compress_suffixes_are_matched() {
        let list = ["gz", "mp[34]", "7z"].map(|suffix| suffix.as_bytes().to_vec());
        for name in ["a.gz", "a.tar.GZ", ".mp3", "x.mp4", "a.7Z"] {
            assert!(is_left_out(name.as_bytes(), &list), "{name}");
        }
        for name in ["gz", "a.gz.txt", "a.mp5", "a.mp", "a.mp34", "a.", "agz"] {
            assert!(!is_left_out(name.as_bytes(), &list), "{name}");
        }
    }
}

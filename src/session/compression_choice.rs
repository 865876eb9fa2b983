//! Selects the compression of a session: the method that the user requests and both ends support, and its level.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::options::algorithm::Algorithm as _;
use crate::options::{Compress, Compression};
use crate::proto::message::{TAKES_LZ4, TAKES_ZLIB, TAKES_ZLIBX, TAKES_ZSTD};
use crate::transport::compression::{CompressionPolicy, Method};

/// The methods that have a feature bit, in rsync's order of preference.
const METHODS: [(Compression, u64); 4] = [
    (Compression::Zstd, TAKES_ZSTD),
    (Compression::Lz4, TAKES_LZ4),
    (Compression::Zlibx, TAKES_ZLIBX),
    (Compression::Zlib, TAKES_ZLIB),
];

/// Returns the feature bits of an end that accepts the methods in `list`; `None` means all methods.
pub fn features(list: Option<&[Compression]>) -> u64 {
    let is_taken = |method| list.is_none_or(|list| list.contains(method));
    METHODS
        .iter()
        .filter(|(method, _)| is_taken(method))
        .fold(0, |bits, (_, bit)| bits | bit)
}

/// Whether a peer with these feature bits accepts a method.
fn takes(features: u64, method: Compression) -> bool {
    match METHODS.iter().find(|(named, _)| *named == method) {
        // `none`, which every peer accepts.
        None => true,
        Some((_, bit)) => features & bit != 0,
    }
}

/// Negotiates the method between this client and a server with the feature bits `theirs`.
pub fn agree(compress: &Compress, theirs: u64) -> Result<Option<Compression>> {
    compress
        .agree(&|method| takes(theirs, method))
        .map_err(|words| Error::new(Exit::Unsupported, words))
}

/// Returns how a sender compresses for a receiver with the feature bits `theirs`. `choice` is the negotiated method. If
/// the receiver does not accept it, the fallback is zstd.
pub fn compression_policy(
    choice: Option<Compression>,
    level: Option<i32>,
    theirs: u64,
) -> CompressionPolicy {
    let zstd = |level| CompressionPolicy::Always(Method::Zstd(zstd_level(level)));
    match choice {
        None if takes(theirs, Compression::Zstd) => CompressionPolicy::IfSlow,
        None | Some(Compression::No) => CompressionPolicy::Never,
        Some(Compression::Auto | Compression::Zstd) => zstd(level),
        Some(method) if !takes(theirs, method) => zstd(level),
        Some(Compression::Lz4) => CompressionPolicy::Always(Method::Lz4),
        Some(Compression::Zlibx | Compression::Zlib) => match zlib_level(level) {
            0 => CompressionPolicy::Never,
            level => CompressionPolicy::Always(Method::Zlib(level)),
        },
    }
}

/// Returns the zstd level that rsync uses for a requested level; 0 means the default.
fn zstd_level(level: Option<i32>) -> i32 {
    const USUAL: i32 = 3;
    const LEVELS: std::ops::RangeInclusive<i32> = -131_072..=22;
    match level {
        None | Some(0) => USUAL,
        Some(level) => level.clamp(*LEVELS.start(), *LEVELS.end()),
    }
}

/// Returns the zlib level that rsync uses for a requested level; -1 means the default, 0 no compression.
fn zlib_level(level: Option<i32>) -> u32 {
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

    const ALL: u64 = TAKES_ZSTD | TAKES_LZ4 | TAKES_ZLIBX | TAKES_ZLIB;

    fn requested(choice: Compression, list: Option<&[Compression]>) -> Compress {
        Compress {
            choice: Some(choice),
            list: list.map(<[_]>::to_vec),
            ..Compress::default()
        }
    }

    #[test]
    fn features_advertise_the_compress_list() {
        assert_eq!(features(None), ALL);
        assert_eq!(
            features(Some(&[Compression::Zlib, Compression::No])),
            TAKES_ZLIB
        );
    }

    #[test]
    fn first_common_compression_is_chosen() {
        use Compression::{Auto, Lz4, No, Zlib, Zlibx, Zstd};
        let lists: [(Option<&[Compression]>, u64, Compression); 5] = [
            (None, ALL, Zstd),
            (Some(&[Zlib, Lz4]), ALL, Zlib),
            (None, features(Some(&[Zlib, Lz4])), Lz4),
            (Some(&[Zstd, Zlibx]), features(Some(&[Zlib, Zlibx])), Zlibx),
            (Some(&[No]), ALL, No),
        ];
        for (ours, theirs, expected) in lists {
            assert_eq!(
                agree(&requested(Auto, ours), theirs).unwrap(),
                Some(expected),
                "{ours:?}"
            );
        }
        let error = agree(&requested(Auto, Some(&[Zlib])), features(Some(&[Lz4]))).unwrap_err();
        let words = "Failed to negotiate a compress choice.\nServer list: lz4\nClient list: zlib";
        assert_eq!(
            (error.exit, error.message),
            (Exit::Unsupported, words.into())
        );
        assert!(agree(&requested(Auto, Some(&[])), ALL).is_err());
    }

    #[test]
    fn unsupported_compression_of_the_peer_is_an_error() {
        let error = agree(
            &requested(Compression::Lz4, None),
            features(Some(&[Compression::Zlib])),
        )
        .unwrap_err();
        let words = "Your --compress-choice value (lz4) was refused by the server.";
        assert_eq!(
            (error.exit, error.message),
            (Exit::Unsupported, words.into())
        );
        assert_eq!(
            agree(&requested(Compression::No, None), 0).unwrap(),
            Some(Compression::No)
        );
    }

    #[test]
    fn receiver_that_does_not_accept_the_choice_gets_zstd() {
        let only_zstd = features(Some(&[Compression::Zstd]));
        for choice in [
            Compression::Lz4,
            Compression::Zlib,
            Compression::Zlibx,
            Compression::Zstd,
            Compression::Auto,
        ] {
            assert_eq!(
                compression_policy(Some(choice), None, only_zstd),
                CompressionPolicy::Always(Method::Zstd(3)),
                "{choice:?}"
            );
        }
        assert_eq!(
            compression_policy(None, None, only_zstd),
            CompressionPolicy::IfSlow
        );
        assert_eq!(
            compression_policy(None, None, features(Some(&[Compression::Lz4]))),
            CompressionPolicy::Never
        );
    }

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

    #[test]
    fn compression_levels_match_rsync() {
        // Output of rsync 3.5.0 with --debug=nstr.
        for (choice, level, expected) in [
            (
                Compression::Auto,
                None,
                "negotiated compress: zstd (level 3)",
            ),
            (Compression::Zstd, Some(0), "compress: zstd (level 3)"),
            (Compression::Zstd, Some(23), "compress: zstd (level 22)"),
            (Compression::Zstd, Some(-1), "compress: zstd (level -1)"),
            (
                Compression::Zstd,
                Some(-200_000),
                "compress: zstd (level -131072)",
            ),
            (Compression::Zlib, None, "compress: zlib (level 6)"),
            (Compression::Zlib, Some(-1), "compress: zlib (level 6)"),
            (Compression::Zlib, Some(-5), "compress: zlib (level 1)"),
            (Compression::Zlib, Some(0), "compress: none (level 0)"),
            (Compression::Zlibx, Some(10), "compress: zlibx (level 9)"),
            (Compression::Lz4, Some(9), "compress: lz4 (level 0)"),
        ] {
            let settled = agree(&requested(choice, None), ALL).unwrap();
            assert_eq!(
                line(Some(choice), settled, level),
                Some(format!("Client {expected}"))
            );
        }
        assert_eq!(
            line(Some(Compression::No), Some(Compression::No), None),
            None
        );
        let expected = "Client compress: none (level 3)";
        assert_eq!(
            line(Some(Compression::No), Some(Compression::No), Some(3)).as_deref(),
            Some(expected)
        );
        assert_eq!(
            compression_policy(Some(Compression::Zlib), Some(0), ALL),
            CompressionPolicy::Never
        );
        assert_eq!(
            compression_policy(Some(Compression::Zlib), Some(99), ALL),
            CompressionPolicy::Always(Method::Zlib(9))
        );
        assert_eq!(
            compression_policy(Some(Compression::Zlibx), None, ALL),
            CompressionPolicy::Always(Method::Zlib(6))
        );
        assert_eq!(
            compression_policy(Some(Compression::Lz4), Some(3), ALL),
            CompressionPolicy::Always(Method::Lz4)
        );
        assert_eq!(
            compression_policy(Some(Compression::Zstd), Some(99), ALL),
            CompressionPolicy::Always(Method::Zstd(22))
        );
    }
}

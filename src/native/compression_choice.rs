//! Selects the compression of a session: the method that the user requests and both ends support, and its level.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::options::{Compress, Compression};
use crate::proto::message::{TAKES_LZ4, TAKES_ZLIB, TAKES_ZLIBX, TAKES_ZSTD};
use crate::session::compression::{zlib_level, zstd_level};
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::compression::line;

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

//! The names of checksums and compression methods, in options, environment variables and the lists of rsync's protocol.

use super::{Checksum, Compression};

/// A checksum or a compression method.
pub trait Algorithm: Copy + PartialEq + 'static {
    /// All algorithms with their names, in rsync's order of preference.
    const ALL: &'static [(Self, &'static str)];

    /// Returns the algorithm with a name. The case of letters does not matter.
    fn named(name: &[u8]) -> Option<Self> {
        let name = if name.eq_ignore_ascii_case(b"xxhash") {
            b"xxh64"
        } else {
            name
        };
        let found = Self::ALL
            .iter()
            .find(|(_, known)| known.as_bytes().eq_ignore_ascii_case(name));
        found.map(|(algorithm, _)| *algorithm)
    }

    /// Returns the name of the algorithm; `auto` if it is still to be negotiated.
    fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(known, _)| *known == self)
            .map_or("auto", |(_, name)| name)
    }
}

/// Returns names as a list of rsync's protocol and messages. An empty list is `INVALID`, as in rsync.
pub fn list_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    if names.is_empty() {
        "INVALID".to_owned()
    } else {
        names.join(" ")
    }
}

/// Returns rsync's message for lists that have nothing in common. `what`: `checksum` or `compress`.
pub fn no_common(what: &str, server: &str, client: &str) -> String {
    format!("Failed to negotiate a {what} choice.\nServer list: {server}\nClient list: {client}")
}

impl Algorithm for Checksum {
    const ALL: &'static [(Checksum, &'static str)] = &[
        (Checksum::Xxh128, "xxh128"),
        (Checksum::Xxh3, "xxh3"),
        (Checksum::Xxh64, "xxh64"),
        (Checksum::Md5, "md5"),
        (Checksum::Md4, "md4"),
        (Checksum::Sha1, "sha1"),
        (Checksum::None, "none"),
    ];
}

impl Algorithm for Compression {
    const ALL: &'static [(Compression, &'static str)] = &[
        (Compression::Zstd, "zstd"),
        (Compression::Lz4, "lz4"),
        (Compression::Zlibx, "zlibx"),
        (Compression::Zlib, "zlib"),
        (Compression::No, "none"),
    ];
}

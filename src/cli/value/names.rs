//! The names of checksums and compression methods that rsync knows.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::options::algorithm::{Algorithm as _, list_of, no_common};
use crate::options::{Checksum, Checksums, Compression};

/// The arguments of `--checksum-choice`. `xxhash` is an older name of `xxh64`.
pub const CHECKSUM_NAMES: [&str; 8] = [
    "xxh128", "xxh3", "xxh64", "xxhash", "md5", "md4", "sha1", "none",
];

/// Returns the names of checksums as `--version` lists them. An alias of the name before it is in parentheses.
pub fn all_checksums() -> Vec<String> {
    let shown = |name: &str| {
        if name == "xxhash" {
            format!("({name})")
        } else {
            name.to_owned()
        }
    };
    CHECKSUM_NAMES.into_iter().map(shown).collect()
}

/// Returns the names of compression methods as `--version` lists them.
pub fn all_compressions() -> Vec<String> {
    Compression::ALL
        .iter()
        .map(|(_, name)| (*name).to_owned())
        .collect()
}

/// Parses `--checksum-choice`: one name for transfer and comparison, or one for each. `None`: `auto`, so the ends
/// negotiate.
pub fn checksums(text: &[u8]) -> Result<Option<Checksums>> {
    const AUTO: &[u8] = b"auto";
    // A leading comma is part of the name.
    let (transfer, listed) = match text.iter().position(|&b| b == b',') {
        Some(comma) if comma > 0 => (&text[..comma], &text[comma + 1..]),
        _ => (text, text),
    };
    if transfer.eq_ignore_ascii_case(AUTO) && listed.eq_ignore_ascii_case(AUTO) {
        return Ok(None);
    }
    // Two names are not negotiated, so rsync replaces `auto` with MD5, which every peer supports.
    let named = |name: &[u8]| match Checksum::named(name) {
        Some(sum) => Ok(sum),
        None if name.eq_ignore_ascii_case(AUTO) => Ok(Checksum::Md5),
        None => Err(unknown(name, "checksum")),
    };
    Ok(Some(Checksums {
        transfer: named(transfer)?,
        listed: named(listed)?,
    }))
}

/// Returns the checksum that RSYNC_CHECKSUM_LIST selects: the first one of the client's list that the server's list
/// has, too. The server's list follows an `&`; without it both ends use the same list.
///
/// `Ok(None)` if the list is empty. Fails with rsync's error if the lists have no checksum in common.
pub fn checksum_list(text: &[u8]) -> Result<Option<Checksum>> {
    if text.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let [client, server] = known_checksums(text);
    match client
        .iter()
        .find(|(_, sum)| server.iter().any(|(_, other)| other == sum))
    {
        Some(&(_, sum)) => Ok(Some(sum)),
        None => {
            let [server, client] =
                [&server, &client].map(|list| list_of(list.iter().map(|(name, _)| *name)));
            Err(Error::new(Exit::Unsupported, no_common("checksum", &server, &client)).by("sender"))
        }
    }
}

/// Returns the checksums that `RSYNC_CHECKSUM_LIST` permits to a server; `None` if it is empty.
pub fn server_checksums(text: &[u8]) -> Option<Vec<Checksum>> {
    let [_, server] = known_checksums(text);
    let is_empty = text.iter().all(u8::is_ascii_whitespace);
    (!is_empty).then(|| server.into_iter().map(|(_, sum)| sum).collect())
}

/// Returns the known names of each end in `RSYNC_CHECKSUM_LIST`: the client's, then the server's.
fn known_checksums(text: &[u8]) -> [Vec<(&'static str, Checksum)>; 2] {
    let (client, server) = match text.iter().position(|&b| b == b'&') {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, text),
    };
    [client, server].map(|list| {
        let words = list.split(u8::is_ascii_whitespace);
        words
            .filter_map(|word| {
                CHECKSUM_NAMES
                    .into_iter()
                    .find(|name| word.eq_ignore_ascii_case(name.as_bytes()))
            })
            .filter_map(|name| Some((name, Checksum::named(name.as_bytes())?)))
            .collect()
    })
}

/// The arguments of `--compress-choice`.
pub const COMPRESSION_NAMES: [&str; 6] = ["auto", "zstd", "lz4", "zlibx", "zlib", "none"];

/// Checks `--compress-choice`.
pub fn compress(text: &[u8]) -> Result<()> {
    let is_known = COMPRESSION_NAMES
        .iter()
        .any(|known| text.eq_ignore_ascii_case(known.as_bytes()));
    if is_known {
        Ok(())
    } else {
        Err(unknown(text, "compress"))
    }
}

/// The end of a copy that reads `RSYNC_COMPRESS_LIST`: the client uses the part before `&`, the server the part after
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The process that the user started.
    Client,
    /// The other process.
    Server,
}

/// Returns the methods in `RSYNC_COMPRESS_LIST`, the best first; `None` if it is empty. Unknown names are ignored, as
/// in rsync.
pub fn compress_list(text: &[u8], end: End) -> Option<Vec<Compression>> {
    let mut parts = text.splitn(2, |&byte| byte == b'&');
    let client = parts.next().unwrap_or_default();
    let part = match end {
        End::Client => client,
        End::Server => parts.next().unwrap_or(client),
    };
    let mut names = part
        .split(u8::is_ascii_whitespace)
        .filter(|name| !name.is_empty())
        .peekable();
    names.peek()?;
    let mut list: Vec<Compression> = Vec::new();
    for method in names.filter_map(Compression::named) {
        if !list.contains(&method) {
            list.push(method);
        }
    }
    Some(list)
}

fn unknown(name: &[u8], what: &str) -> Error {
    let mut message = format!("unknown {what} name: ").into_bytes();
    message.extend_from_slice(&super::printable(name));
    Error::new(Exit::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compress_list_has_a_part_for_each_end() {
        use Compression::{Lz4, No, Zlib, Zlibx, Zstd};
        let both =
            |text: &str| [End::Client, End::Server].map(|end| compress_list(text.as_bytes(), end));
        assert_eq!(both(""), [None, None]);
        assert_eq!(
            both("zlib lz4"),
            [Some(vec![Zlib, Lz4]), Some(vec![Zlib, Lz4])]
        );
        assert_eq!(
            both("ZLIBX none & zstd"),
            [Some(vec![Zlibx, No]), Some(vec![Zstd])]
        );
        assert_eq!(both("lz4&"), [Some(vec![Lz4]), None]);
        assert_eq!(both("&lz4 lz4 brotli"), [None, Some(vec![Lz4])]);
        assert_eq!(both("brotli"), [Some(vec![]), Some(vec![])]);
    }

    #[test]
    fn checksum_and_compress_names_are_checked() {
        let both = |transfer, listed| Some(Checksums { transfer, listed });
        let read = |text: &str| {
            checksums(text.as_bytes()).map_err(|error| String::from_utf8(error.message).unwrap())
        };
        assert_eq!(read("MD5"), Ok(both(Checksum::Md5, Checksum::Md5)));
        assert_eq!(read("md5,none"), Ok(both(Checksum::Md5, Checksum::None)));
        assert_eq!((read("auto"), read("Auto,auto")), (Ok(None), Ok(None)));
        assert_eq!(
            read("auto,xxhash"),
            Ok(both(Checksum::Md5, Checksum::Xxh64))
        );
        for (text, name) in [
            ("", ""),
            (",md5", ",md5"),
            ("md5,", ""),
            ("md5,sha1,x", "sha1,x"),
            ("x,md5", "x"),
        ] {
            assert_eq!(read(text), Err(format!("unknown checksum name: {name}")));
        }
        assert_eq!(
            compress(b"").unwrap_err().message,
            b"unknown compress name: "
        );
        assert_eq!(compress(b"x").unwrap_err().exit, Exit::Unsupported);
    }
    #[test]
    fn checksum_list_is_negotiated() {
        let read = |text: &str| checksum_list(text.as_bytes()).map_err(|error| error.message);
        assert_eq!((read(""), read("  ")), (Ok(None), Ok(None)));
        assert_eq!(read("foo MD4 md5"), Ok(Some(Checksum::Md4)));
        assert_eq!(read("sha1 md5 & xxh3 md5"), Ok(Some(Checksum::Md5)));
        assert_eq!(
            server_checksums(b"sha1 & xxh3 md5 x"),
            Some(vec![Checksum::Xxh3, Checksum::Md5])
        );
        assert_eq!(
            (server_checksums(b" "), server_checksums(b"x")),
            (None, Some(Vec::new()))
        );
        let failed = |lists: &str| {
            Err(format!("Failed to negotiate a checksum choice.\n{lists}").into_bytes())
        };
        assert_eq!(
            read("md5,md4"),
            failed("Server list: INVALID\nClient list: INVALID")
        );
        assert_eq!(
            read("sha1 & md5 xxhash"),
            failed("Server list: md5 xxhash\nClient list: sha1")
        );
    }
}

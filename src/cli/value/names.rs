//! Names of checksums and compressors that rsync knows.

use crate::error::{Error, Result};
use crate::exit::Exit;

/// What a `--checksum-choice` means for a local copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChecksumChoice {
    /// `none` for the transfer: files are copied whole.
    pub no_transfer_sum: bool,
    /// `none` for the comparison: `--checksum` cannot work.
    pub no_file_sum: bool,
}

/// Reads `--checksum-choice`: one name for transfer and comparison, or one for each.
pub fn checksum(text: &[u8]) -> Result<ChecksumChoice> {
    const NAMES: [&str; 9] = ["auto", "xxh128", "xxh3", "xxh64", "xxhash", "md5", "md4", "sha1", "none"];
    // A comma in front is part of the name.
    let (transfer, file) = match text.iter().position(|&b| b == b',') {
        Some(comma) if comma > 0 => (&text[..comma], &text[comma + 1..]),
        _ => (text, text),
    };
    known(transfer, &NAMES, "checksum")?;
    known(file, &NAMES, "checksum")?;
    let none = |name: &[u8]| name.eq_ignore_ascii_case(b"none");
    Ok(ChecksumChoice { no_transfer_sum: none(transfer), no_file_sum: none(file) })
}

/// Checks `--compress-choice`.
pub fn compress(text: &[u8]) -> Result<()> {
    known(text, &["auto", "zstd", "lz4", "zlibx", "zlib", "none"], "compress")
}

fn known(name: &[u8], names: &[&str], what: &str) -> Result<()> {
    if names.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes())) {
        return Ok(());
    }
    let mut message = format!("unknown {what} name: ").into_bytes();
    message.extend_from_slice(&crate::cli::flag::printable(name));
    Err(Error::new(Exit::Unsupported, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(checksum(b"MD5").is_ok());
        assert_eq!(checksum(b"md5,none").unwrap(), ChecksumChoice { no_transfer_sum: false, no_file_sum: true });
        assert_eq!(checksum(b",md5").unwrap_err().message, b"unknown checksum name: ,md5");
        assert_eq!(checksum(b"md5,sha1,x").unwrap_err().message, b"unknown checksum name: sha1,x");
        assert_eq!(compress(b"").unwrap_err().message, b"unknown compress name: ");
        assert_eq!(compress(b"x").unwrap_err().exit, Exit::Unsupported);
    }
}

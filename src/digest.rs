//! Content digests: for now the one that rsync shows as `%C`.

use std::io;

/// How much is read and hashed at a time.
const PIECE_BYTES: usize = 64 * 1024;

/// The digest that `%C` shows, of all that `read` hands out until it says 0: XXH128, as rsync chooses for
/// itself. `read` fills the piece from its start.
pub fn shown(mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<[u8; 16]> {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    let mut piece = vec![0u8; PIECE_BYTES];
    loop {
        match read(&mut piece)? {
            0 => return Ok(hasher.digest128().to_be_bytes()),
            n => hasher.update(&piece[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_what_rsync_shows() {
        let mut rest = &b"hello\n"[..];
        let digest = shown(|piece| io::Read::read(&mut rest, piece)).unwrap();
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "6bba86c7e069f56d5a10b435f1c8e49c");
    }
}

//! Content digests: blake3 to compare by, and the one that rsync shows.

use std::io;

/// The digest of a file's content.
pub type Digest = [u8; 32];

/// How much is read and hashed at a time.
const PIECE_BYTES: usize = 256 * 1024;

/// Digests all that `read` hands out, until it says 0. `read` fills the piece from its start.
pub fn of(read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<Digest> {
    let mut hasher = blake3::Hasher::new();
    each_piece(read, |piece| drop(hasher.update(piece)))?;
    Ok(*hasher.finalize().as_bytes())
}

/// The digest that `%C` shows, of all that `read` hands out: XXH128, as rsync chooses for itself.
pub fn shown(read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<[u8; 16]> {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    each_piece(read, |piece| hasher.update(piece))?;
    Ok(hasher.digest128().to_be_bytes())
}

fn each_piece(mut read: impl FnMut(&mut [u8]) -> io::Result<usize>, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut piece = vec![0u8; PIECE_BYTES];
    loop {
        match read(&mut piece)? {
            0 => return Ok(()),
            n => take(&piece[..n]),
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

    #[test]
    fn the_pieces_do_not_matter() {
        let content: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
        let whole = *blake3::hash(&content).as_bytes();
        for step in [1000, 4096, PIECE_BYTES] {
            let mut rest = &content[..];
            let digest = of(|piece| {
                let n = rest.len().min(step).min(piece.len());
                piece[..n].copy_from_slice(&rest[..n]);
                rest = &rest[n..];
                Ok(n)
            });
            assert_eq!(digest.unwrap(), whole);
        }
    }
}

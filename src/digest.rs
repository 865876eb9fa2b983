//! Content digests: blake3.

use std::io;

/// The digest of a file's content.
pub type Digest = [u8; 32];

/// How much is read and hashed at a time.
const PIECE_BYTES: usize = 256 * 1024;

/// Digests all that `read` hands out, until it says 0. `read` fills the piece from its start.
pub fn of(mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<Digest> {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0u8; PIECE_BYTES];
    loop {
        match read(&mut piece)? {
            0 => return Ok(*hasher.finalize().as_bytes()),
            n => hasher.update(&piece[..n]),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

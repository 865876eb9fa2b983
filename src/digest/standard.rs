//! The hash functions of manifests, with the digests that the usual programs print: b3sum, sha256sum, md5sum, xxhsum.

use super::{FileDigest, in_shown_order};
use crate::options::Checksum;

/// A hash function with its standard digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashAlgorithm {
    Blake3,
    Sha256,
    Md5,
    Xxh128,
}

impl HashAlgorithm {
    /// Those of the manifests that are written, in the order of the help.
    pub const OF_MANIFESTS: [HashAlgorithm; 4] = [
        HashAlgorithm::Blake3,
        HashAlgorithm::Sha256,
        HashAlgorithm::Md5,
        HashAlgorithm::Xxh128,
    ];

    /// Returns its name in options.
    pub fn name(self) -> &'static str {
        match self {
            HashAlgorithm::Blake3 => "blake3",
            HashAlgorithm::Sha256 => "sha256",
            HashAlgorithm::Md5 => "md5",
            HashAlgorithm::Xxh128 => "xxh128",
        }
    }
}

/// Computes a standard digest incrementally.
pub struct StandardHasher(StandardState);

enum StandardState {
    Blake3(Box<blake3::Hasher>),
    Sha256(Box<ring::digest::Context>),
    /// A function that rsync has too.
    OfRsync(Checksum, Box<FileDigest>),
}

impl StandardHasher {
    /// Creates a hasher for an empty content.
    pub fn new(algorithm: HashAlgorithm) -> StandardHasher {
        let of_rsync = |sum| StandardState::OfRsync(sum, Box::new(FileDigest::new(sum, None)));
        StandardHasher(match algorithm {
            HashAlgorithm::Blake3 => StandardState::Blake3(Box::default()),
            HashAlgorithm::Sha256 => {
                StandardState::Sha256(Box::new(ring::digest::Context::new(&ring::digest::SHA256)))
            }
            HashAlgorithm::Md5 => of_rsync(Checksum::Md5),
            HashAlgorithm::Xxh128 => of_rsync(Checksum::Xxh128),
        })
    }

    /// Adds the next bytes.
    pub fn update(&mut self, piece: &[u8]) {
        match &mut self.0 {
            StandardState::Blake3(hasher) => _ = hasher.update(piece),
            StandardState::Sha256(context) => context.update(piece),
            StandardState::OfRsync(_, digest) => digest.update(piece),
        }
    }

    /// Returns the digest of all bytes, in the order in which it is printed.
    pub fn finish(self) -> Vec<u8> {
        match self.0 {
            StandardState::Blake3(hasher) => hasher.finalize().as_bytes().to_vec(),
            StandardState::Sha256(context) => context.finish().as_ref().to_vec(),
            StandardState::OfRsync(sum, digest) => in_shown_order(sum, digest.finish()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_usual_programs() {
        // Of "a", as b3sum, sha256sum, md5sum and xxhsum -H2 print them.
        for (algorithm, wanted) in [
            (
                HashAlgorithm::Blake3,
                "17762fddd969a453925d65717ac3eea21320b66b54342fde15128d6caf21215f",
            ),
            (
                HashAlgorithm::Sha256,
                "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
            ),
            (HashAlgorithm::Md5, "0cc175b9c0f1b6a831c399e269772661"),
            (HashAlgorithm::Xxh128, "a96faf705af16834e6c632b61e964e1f"),
        ] {
            let mut hasher = StandardHasher::new(algorithm);
            hasher.update(b"");
            hasher.update(b"a");
            let digest = hasher.finish();
            let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, wanted, "{algorithm:?}");
        }
    }
}

//! The hash functions of manifests, with the digests that the usual programs print: b3sum, sha256sum, md5sum, xxhsum.

use super::{FileDigest, in_shown_order};
use crate::options::Checksum;

/// A hash function with its standard digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashAlgorithm {
    Blake3,
    Sha256,
    Sha1,
    Md5,
    Xxh128,
    Xxh3,
    Xxh64,
}

impl HashAlgorithm {
    /// Those of the manifests that are written, in the order of the help.
    pub const OF_MANIFESTS: [HashAlgorithm; 4] = [
        HashAlgorithm::Blake3,
        HashAlgorithm::Sha256,
        HashAlgorithm::Md5,
        HashAlgorithm::Xxh128,
    ];

    /// All of them. Those with digests of the same length are in the order in which `check` tries them.
    pub const ALL: [HashAlgorithm; 7] = [
        HashAlgorithm::Blake3,
        HashAlgorithm::Sha256,
        HashAlgorithm::Sha1,
        HashAlgorithm::Md5,
        HashAlgorithm::Xxh128,
        HashAlgorithm::Xxh64,
        HashAlgorithm::Xxh3,
    ];

    /// Returns its name in options.
    pub fn name(self) -> &'static str {
        match self {
            HashAlgorithm::Blake3 => "blake3",
            HashAlgorithm::Sha256 => "sha256",
            HashAlgorithm::Sha1 => "sha1",
            HashAlgorithm::Md5 => "md5",
            HashAlgorithm::Xxh128 => "xxh128",
            HashAlgorithm::Xxh3 => "xxh3",
            HashAlgorithm::Xxh64 => "xxh64",
        }
    }

    /// Returns the length of its digests.
    pub fn len_bytes(self) -> usize {
        match self {
            HashAlgorithm::Blake3 | HashAlgorithm::Sha256 => 32,
            HashAlgorithm::Sha1 => 20,
            HashAlgorithm::Md5 | HashAlgorithm::Xxh128 => 16,
            HashAlgorithm::Xxh3 | HashAlgorithm::Xxh64 => 8,
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
            HashAlgorithm::Sha1 => of_rsync(Checksum::Sha1),
            HashAlgorithm::Md5 => of_rsync(Checksum::Md5),
            HashAlgorithm::Xxh128 => of_rsync(Checksum::Xxh128),
            HashAlgorithm::Xxh3 => of_rsync(Checksum::Xxh3),
            HashAlgorithm::Xxh64 => of_rsync(Checksum::Xxh64),
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
        // Of "a", as b3sum, sha256sum, sha1sum, md5sum, xxhsum -H2, -H3 and -H1 print them.
        for (algorithm, wanted) in [
            (
                HashAlgorithm::Blake3,
                "17762fddd969a453925d65717ac3eea21320b66b54342fde15128d6caf21215f",
            ),
            (
                HashAlgorithm::Sha256,
                "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
            ),
            (
                HashAlgorithm::Sha1,
                "86f7e437faa5a7fce15d1ddcb9eaeaea377667b8",
            ),
            (HashAlgorithm::Md5, "0cc175b9c0f1b6a831c399e269772661"),
            (HashAlgorithm::Xxh128, "a96faf705af16834e6c632b61e964e1f"),
            (HashAlgorithm::Xxh3, "e6c632b61e964e1f"),
            (HashAlgorithm::Xxh64, "d24ec4f1a98c6e5b"),
        ] {
            let mut hasher = StandardHasher::new(algorithm);
            hasher.update(b"");
            hasher.update(b"a");
            let digest = hasher.finish();
            let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(
                (hex.as_str(), digest.len()),
                (wanted, algorithm.len_bytes()),
                "{algorithm:?}"
            );
        }
    }
}

//! The record of a directory: the digests of its files, and its encoding.
//!
//! The files are in the order of their inodes, and each takes the same number of bytes. So a record is searched as it was
//! stored: what a run reads of 20,000 unchanged files need not be decoded.

use super::DirKey;
use crate::digest::{OWN_LEN_BYTES, PLAIN_LEN_BYTES, PlainDigest, whole};
use crate::flist::Time;
use crate::fs::sys::FileVersion;
use std::collections::BTreeMap;

/// The first bytes of a record. Another version of the format has others.
const MAGIC: &[u8; 16] = b"sparsync-sums-02";

/// How many digests a record has at most, so that a damaged or foreign file cannot fill the memory.
const FILES_MAX: usize = 4_000_000;

/// The length of the version of a file.
const VERSION_BYTES: usize = 8 + 8 + 12 + 12 + 1 + 12;

/// The length of a version with the digest of its content.
const FILE_BYTES: usize = VERSION_BYTES + PLAIN_LEN_BYTES;

/// The length of the part before the files: the format, the directory, the number of files.
const HEAD_BYTES: usize = MAGIC.len() + 8 + 8 + 4;

/// The length of the digest of the record. It shows what was torn, not what was forged.
const SEAL_BYTES: usize = OWN_LEN_BYTES;

/// The maximum length of an encoded record.
pub const RECORD_MAX_BYTES: usize = HEAD_BYTES + FILES_MAX * FILE_BYTES + SEAL_BYTES;

/// An encoded file.
type FileBytes = [u8; FILE_BYTES];

/// The digests of the files of a directory.
///
/// The invariant: `is_used` has an item for each file in `stored`. A file in `added` takes the place of the one in `stored`
/// with the same inode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DigestRecord {
    /// The files that were in the store, in the order of their inodes.
    stored: Vec<u8>,
    /// This run has used them.
    is_used: Vec<bool>,
    /// The one after the file that was found last. Files that a copy has created have their inodes in the order of their
    /// names, in which a run asks for them.
    next: usize,
    /// The files that this run has added, by their inodes.
    added: BTreeMap<u64, FileBytes>,
}

impl DigestRecord {
    /// Returns the number of digests.
    pub fn len(&self) -> usize {
        self.is_used.len() + self.added.len()
    }

    /// Returns the digest of exactly this version of a file.
    pub fn find(&mut self, version: &FileVersion) -> Option<PlainDigest> {
        let wanted = version_bytes(version);
        if let Some(file) = self.added.get(&version.ino) {
            return digest_of(file, &wanted);
        }
        let at = self.position(version.ino)?;
        self.next = at + 1;
        let digest = digest_of(self.stored_file(at), &wanted)?;
        self.is_used[at] = true;
        Some(digest)
    }

    /// Adds a file, in place of an earlier version of it. Returns whether there is one more in memory.
    pub fn put(&mut self, version: &FileVersion, digest: &PlainDigest) -> bool {
        let mut file = [0; FILE_BYTES];
        let (head, tail) = file.split_at_mut(VERSION_BYTES);
        head.copy_from_slice(&version_bytes(version));
        tail.copy_from_slice(digest);
        self.added.insert(version.ino, file).is_none()
    }

    fn stored_file(&self, at: usize) -> &[u8] {
        &self.stored[at * FILE_BYTES..][..FILE_BYTES]
    }

    /// Returns the position of a file among those that were in the store.
    fn position(&self, ino: u64) -> Option<usize> {
        if self.next < self.is_used.len() && ino_of(self.stored_file(self.next)) == ino {
            return Some(self.next);
        }

        let mut low = 0;
        let mut high = self.is_used.len();
        let mut next = self.likely_position(ino);
        while low < high {
            let found = ino_of(self.stored_file(next));
            if found == ino {
                return Some(next);
            }
            if found < ino {
                low = next + 1;
            } else {
                high = next;
            }
            next = low + (high - low) / 2;
        }
        None
    }

    /// Returns the position that a file has if the inodes are a row of numbers without gaps, as those of files that were
    /// created one after the other often are. Less than the number of files, unless there are none.
    fn likely_position(&self, ino: u64) -> usize {
        let count = self.is_used.len();
        if count == 0 {
            return 0;
        }
        let from_first = ino.saturating_sub(ino_of(self.stored_file(0)));
        from_first.min(count as u64 - 1) as usize
    }

    /// Returns the bytes to store. Of the files that this run has not used, as many are left out as make the record more
    /// than twice as long: they may be gone.
    pub fn encode(&self, dir: DirKey) -> Vec<u8> {
        let used = self.added.len() + self.is_used.iter().filter(|is_used| **is_used).count();
        let mut unused_left = used + 64;
        let mut body = Vec::new();
        let mut added = self.added.iter().peekable();
        for at in 0..self.is_used.len() {
            let file = self.stored_file(at);
            let ino = ino_of(file);
            while let Some((_, before)) = added.next_if(|(added, _)| **added < ino) {
                body.extend_from_slice(before);
            }
            if self.added.contains_key(&ino) {
                continue;
            }
            if !self.is_used[at] {
                if unused_left == 0 {
                    continue;
                }
                unused_left -= 1;
            }
            body.extend_from_slice(file);
        }
        for (_, file) in added {
            body.extend_from_slice(file);
        }
        body.truncate(FILES_MAX * FILE_BYTES);

        let mut out = Vec::with_capacity(HEAD_BYTES + body.len() + SEAL_BYTES);
        out.extend_from_slice(&head(dir));
        out.extend_from_slice(&((body.len() / FILE_BYTES) as u32).to_le_bytes());
        out.extend_from_slice(&body);
        let seal = seal(&out);
        out.extend_from_slice(&seal);
        out
    }

    /// Returns the record of a directory. `None`: these bytes are not exactly what was stored for it.
    pub fn decode(mut bytes: Vec<u8>, dir: DirKey) -> Option<DigestRecord> {
        let (content, stored_seal) =
            bytes.split_at_checked(bytes.len().checked_sub(SEAL_BYTES)?)?;
        let expected = head(dir);
        let (found, rest) = content.split_at_checked(expected.len())?;
        let (count, files) = rest.split_first_chunk()?;
        let count = u32::from_le_bytes(*count) as usize;
        if found != expected
            || count > FILES_MAX
            || files.len() != count * FILE_BYTES
            || seal(content) != stored_seal
        {
            return None;
        }
        bytes.truncate(bytes.len() - SEAL_BYTES);
        bytes.drain(..HEAD_BYTES);
        Some(DigestRecord {
            stored: bytes,
            is_used: vec![false; count],
            next: 0,
            added: BTreeMap::new(),
        })
    }
}

/// Returns how many files a record of this length has.
pub fn files_in(record_bytes: u64) -> u64 {
    let others = (HEAD_BYTES + SEAL_BYTES) as u64;
    record_bytes.saturating_sub(others) / FILE_BYTES as u64
}

/// Returns the first bytes of the record of a directory.
fn head(dir: DirKey) -> [u8; HEAD_BYTES - 4] {
    let mut head = [0; HEAD_BYTES - 4];
    head[..16].copy_from_slice(MAGIC);
    head[16..24].copy_from_slice(&dir.0.to_le_bytes());
    head[24..].copy_from_slice(&dir.1.to_le_bytes());
    head
}

fn seal(content: &[u8]) -> [u8; SEAL_BYTES] {
    let digest = whole(content);
    std::array::from_fn(|at| digest[at])
}

fn ino_of(file: &[u8]) -> u64 {
    let ino = file.first_chunk().copied().unwrap_or_default();
    u64::from_le_bytes(ino)
}

/// Returns the digest of an encoded file, if it is this version.
fn digest_of(file: &[u8], wanted: &[u8; VERSION_BYTES]) -> Option<PlainDigest> {
    let digest = file.strip_prefix(wanted)?;
    digest.try_into().ok()
}

fn version_bytes(version: &FileVersion) -> [u8; VERSION_BYTES] {
    let FileVersion {
        is_file: _,
        // That of the directory.
        dev: _,
        ino,
        len_bytes,
        mtime,
        ctime,
        btime,
    } = *version;
    let mut out = [0; VERSION_BYTES];
    out[..8].copy_from_slice(&ino.to_le_bytes());
    out[8..16].copy_from_slice(&len_bytes.to_le_bytes());
    put_time(&mut out[16..28], mtime);
    put_time(&mut out[28..40], ctime);
    out[40] = u8::from(btime.is_some());
    put_time(&mut out[41..], btime.unwrap_or_default());
    out
}

fn put_time(out: &mut [u8], time: Time) {
    let Time { secs, nanos } = time;
    out[..8].copy_from_slice(&secs.to_le_bytes());
    out[8..].copy_from_slice(&nanos.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIR: DirKey = (64_769, 12);

    type File = (FileVersion, PlainDigest);

    fn time() -> impl Strategy<Value = Time> {
        (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Time { secs, nanos })
    }

    fn file() -> impl Strategy<Value = File> {
        let times = (time(), time(), proptest::option::of(time()));
        // Few inodes, so that some files take the place of others.
        let ino = prop_oneof![0..30_u64, any::<u64>()];
        (ino, any::<u64>(), times, any::<PlainDigest>()).prop_map(
            |(ino, len_bytes, (mtime, ctime, btime), digest)| {
                let version = FileVersion {
                    is_file: true,
                    dev: DIR.0,
                    ino,
                    len_bytes,
                    mtime,
                    ctime,
                    btime,
                };
                (version, digest)
            },
        )
    }

    fn record(files: &[File]) -> DigestRecord {
        let mut record = DigestRecord::default();
        for (version, digest) in files {
            record.put(version, digest);
        }
        record
    }

    proptest! {
        // Some files are stored, others are added to them, and all are stored again.
        #[test]
        fn last_version_of_each_file_is_found(
            first in proptest::collection::vec(file(), 0..20),
            second in proptest::collection::vec(file(), 0..20),
        ) {
            let mut stored = DigestRecord::decode(record(&first).encode(DIR), DIR).unwrap();
            for (version, digest) in &second {
                stored.put(version, digest);
            }
            let mut read = DigestRecord::decode(stored.encode(DIR), DIR).unwrap();
            let all = [&first[..], &second[..]].concat();
            for (at, (version, digest)) in all.iter().enumerate() {
                let is_last = all[at + 1..].iter().all(|(later, _)| later.ino != version.ino);
                let expected = if is_last { Some(*digest) } else { None };
                let is_replaced_by_same = !is_last && all.iter().filter(|(other, _)| other == version).count() > 1;
                prop_assume!(!is_replaced_by_same);
                prop_assert_eq!(stored.find(version), expected);
                prop_assert_eq!(read.find(version), expected);
            }
        }

        #[test]
        fn damaged_record_is_missing(
            files in proptest::collection::vec(file(), 0..5),
            at in any::<prop::sample::Index>(),
            flip in 1..=255_u8,
            cut in any::<prop::sample::Index>(),
        ) {
            let stored = record(&files).encode(DIR);
            let mut changed = stored.clone();
            *at.get_mut(&mut changed) ^= flip;
            let shortened = stored[..cut.index(stored.len())].to_vec();
            prop_assert_eq!(DigestRecord::decode(changed, DIR), None);
            prop_assert_eq!(DigestRecord::decode(shortened, DIR), None);
            prop_assert_eq!(DigestRecord::decode([&stored[..], b"x"].concat(), DIR), None);
        }

        #[test]
        fn any_bytes_are_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(DigestRecord::decode(bytes, DIR), None);
        }

        // Files in any order and with any bytes, under a valid seal: a search ends, and finds nothing that is not there.
        #[test]
        fn sealed_nonsense_is_searched_in_vain(
            numbers in proptest::collection::vec(0..30_u64, 0..40),
            wanted in file(),
        ) {
            let mut sealed = head(DIR).to_vec();
            sealed.extend_from_slice(&(numbers.len() as u32).to_le_bytes());
            for ino in &numbers {
                let mut nonsense = [0xa5; FILE_BYTES];
                nonsense[..8].copy_from_slice(&ino.to_le_bytes());
                sealed.extend_from_slice(&nonsense);
            }
            sealed.extend_from_slice(&seal(&sealed.clone()));
            let mut record = DigestRecord::decode(sealed, DIR).unwrap();
            prop_assert_eq!(record.find(&wanted.0), None);
            record.put(&wanted.0, &wanted.1);
            prop_assert_eq!(record.find(&wanted.0), Some(wanted.1));
            let mut again = DigestRecord::decode(record.encode(DIR), DIR).unwrap();
            let found = again.find(&wanted.0);
            prop_assert!(found.is_none() || found == Some(wanted.1));
        }

        #[test]
        fn only_the_same_version_is_found((version, digest) in file(), other in time()) {
            let mut added = record(&[(version, digest)]);
            let mut stored = DigestRecord::decode(added.encode(DIR), DIR).unwrap();
            prop_assert_eq!(added.find(&version), Some(digest));
            prop_assert_eq!(stored.find(&version), Some(digest));
            for changed in [
                FileVersion { ctime: other, ..version },
                FileVersion { mtime: other, ..version },
                FileVersion { btime: Some(other), ..version },
                FileVersion { btime: None, ..version },
                FileVersion { len_bytes: version.len_bytes ^ 1, ..version },
                FileVersion { ino: version.ino ^ 1, ..version },
            ] {
                if changed != version {
                    prop_assert_eq!(added.find(&changed), None);
                    prop_assert_eq!(stored.find(&changed), None);
                }
            }
        }
    }

    #[test]
    fn record_of_another_directory_is_missing() {
        let stored = DigestRecord::default().encode(DIR);
        assert!(DigestRecord::decode(stored.clone(), DIR).is_some());
        assert_eq!(DigestRecord::decode(stored.clone(), (DIR.0, 13)), None);
        assert_eq!(DigestRecord::decode(stored, (1, DIR.1)), None);
    }

    #[test]
    fn files_that_are_not_seen_any_more_are_dropped() {
        let at = |ino| {
            let version = FileVersion {
                is_file: true,
                dev: DIR.0,
                ino,
                len_bytes: 1,
                mtime: Time { secs: 1, nanos: 1 },
                ctime: Time { secs: 1, nanos: 1 },
                btime: None,
            };
            (version, [7; PLAIN_LEN_BYTES])
        };
        let all: Vec<_> = (0..1000).map(at).collect();
        let mut record = DigestRecord::decode(record(&all).encode(DIR), DIR).unwrap();
        for (version, _) in &all[990..] {
            record.find(version).unwrap();
        }
        let mut kept = DigestRecord::decode(record.encode(DIR), DIR).unwrap();
        assert_eq!(kept.len(), 10 + 10 + 64);
        assert!(
            all[990..]
                .iter()
                .all(|(version, _)| kept.find(version).is_some())
        );
    }
}

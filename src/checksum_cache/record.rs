//! The record of a directory: the digests of its files, and its encoding.

use super::DirKey;
use crate::digest::{PLAIN_LEN_BYTES, PlainDigest, plain};
use crate::flist::Time;
use crate::fs::sys::FileVersion;
use std::collections::BTreeMap;

/// The first bytes of a record. Another version of the format has others.
const MAGIC: &[u8; 16] = b"sparsync-sums-01";

/// How many digests a record has at most, so that a damaged or foreign file cannot fill the memory.
const FILES_MAX: usize = 4_000_000;

/// The length of a digest with its file.
const FILE_BYTES: usize = 8 + 8 + 12 + 12 + 1 + 12 + PLAIN_LEN_BYTES;

/// The length of the part before the files: the format, the directory, the number of files.
const HEAD_BYTES: usize = MAGIC.len() + 8 + 8 + 4;

/// The maximum length of an encoded record.
pub const RECORD_MAX_BYTES: usize = HEAD_BYTES + FILES_MAX * FILE_BYTES + PLAIN_LEN_BYTES;

/// A file and the digest of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedFile {
    /// The file, with the attributes that it had before its content was read.
    pub version: FileVersion,
    /// The digest of that content.
    pub digest: PlainDigest,
}

/// The digests of the files of a directory, by their inodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DigestRecord {
    files: BTreeMap<u64, KnownDigest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KnownDigest {
    file: CachedFile,
    /// This run has used or computed it.
    is_used: bool,
}

impl DigestRecord {
    /// Returns the number of digests.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the digest of exactly this version of a file.
    pub fn find(&mut self, version: &FileVersion) -> Option<PlainDigest> {
        let known = self.files.get_mut(&version.ino)?;
        if known.file.version != *version {
            return None;
        }
        known.is_used = true;
        Some(known.file.digest)
    }

    /// Adds a file, in place of an earlier version of it. Returns whether there is one more.
    pub fn put(&mut self, file: CachedFile) -> bool {
        let known = KnownDigest {
            file,
            is_used: true,
        };
        self.files.insert(file.version.ino, known).is_none()
    }

    /// Returns the bytes to store. Of the files that this run has not used, as many are left out as make the record more
    /// than twice as long: they may be gone.
    pub fn encode(&self, dir: DirKey) -> Vec<u8> {
        let used = self.files.values().filter(|known| known.is_used).count();
        let mut unused_left = used + 64;
        let mut body = Vec::new();
        let mut count: u32 = 0;
        for known in self.files.values().take(FILES_MAX) {
            if !known.is_used {
                if unused_left == 0 {
                    continue;
                }
                unused_left -= 1;
            }
            put_file(&mut body, &known.file);
            count += 1;
        }

        let mut out = Vec::with_capacity(HEAD_BYTES + body.len() + PLAIN_LEN_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&dir.0.to_le_bytes());
        out.extend_from_slice(&dir.1.to_le_bytes());
        out.extend_from_slice(&count.to_le_bytes());
        out.extend_from_slice(&body);
        let digest = plain(&out);
        out.extend_from_slice(&digest);
        out
    }

    /// Returns the record of a directory. `None`: these bytes are not exactly what was stored for it.
    pub fn decode(bytes: &[u8], dir: DirKey) -> Option<DigestRecord> {
        let (content, digest) =
            bytes.split_at_checked(bytes.len().checked_sub(PLAIN_LEN_BYTES)?)?;
        if plain(content) != digest {
            return None;
        }
        let (head, mut rest) = content.split_at_checked(HEAD_BYTES)?;
        let mut expected = MAGIC.to_vec();
        expected.extend_from_slice(&dir.0.to_le_bytes());
        expected.extend_from_slice(&dir.1.to_le_bytes());
        let (named, count) = head.split_at(expected.len());
        let count = u32::from_le_bytes(count.try_into().ok()?) as usize;
        if named != expected || count > FILES_MAX || rest.len() != count * FILE_BYTES {
            return None;
        }
        let mut record = DigestRecord::default();
        while let Some((file, behind)) = rest.split_at_checked(FILE_BYTES) {
            let file = get_file(file, dir.0)?;
            let known = KnownDigest {
                file,
                is_used: false,
            };
            record.files.insert(file.version.ino, known);
            rest = behind;
        }
        Some(record)
    }

    /// Returns the files.
    #[cfg(test)]
    fn files(&self) -> impl Iterator<Item = CachedFile> + '_ {
        self.files.values().map(|known| known.file)
    }
}

fn put_file(out: &mut Vec<u8>, file: &CachedFile) {
    let FileVersion {
        is_file: _,
        // That of the directory.
        dev: _,
        ino,
        len_bytes,
        mtime,
        ctime,
        btime,
    } = file.version;
    out.extend_from_slice(&ino.to_le_bytes());
    out.extend_from_slice(&len_bytes.to_le_bytes());
    put_time(out, mtime);
    put_time(out, ctime);
    out.push(u8::from(btime.is_some()));
    put_time(out, btime.unwrap_or(Time { secs: 0, nanos: 0 }));
    out.extend_from_slice(&file.digest);
}

fn put_time(out: &mut Vec<u8>, time: Time) {
    out.extend_from_slice(&time.secs.to_le_bytes());
    out.extend_from_slice(&time.nanos.to_le_bytes());
}

fn get_file(mut bytes: &[u8], dev: u64) -> Option<CachedFile> {
    let ino = get_u64(&mut bytes)?;
    let len_bytes = get_u64(&mut bytes)?;
    let mtime = get_time(&mut bytes)?;
    let ctime = get_time(&mut bytes)?;
    let has_btime = take::<1>(&mut bytes)?[0] == 1;
    let btime = get_time(&mut bytes)?;
    let digest = take::<PLAIN_LEN_BYTES>(&mut bytes)?;
    let version = FileVersion {
        is_file: true,
        dev,
        ino,
        len_bytes,
        mtime,
        ctime,
        btime: if has_btime { Some(btime) } else { None },
    };
    Some(CachedFile { version, digest })
}

fn get_u64(bytes: &mut &[u8]) -> Option<u64> {
    take::<8>(bytes).map(u64::from_le_bytes)
}

fn get_time(bytes: &mut &[u8]) -> Option<Time> {
    let secs = i64::from_le_bytes(take::<8>(bytes)?);
    let nanos = u32::from_le_bytes(take::<4>(bytes)?);
    Some(Time { secs, nanos })
}

fn take<const LEN: usize>(bytes: &mut &[u8]) -> Option<[u8; LEN]> {
    let (taken, rest) = bytes.split_first_chunk::<LEN>()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIR: DirKey = (64_769, 12);

    fn time() -> impl Strategy<Value = Time> {
        (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Time { secs, nanos })
    }

    fn file() -> impl Strategy<Value = CachedFile> {
        let times = (time(), time(), proptest::option::of(time()));
        (any::<u64>(), any::<u64>(), times, any::<PlainDigest>()).prop_map(
            |(ino, len_bytes, (mtime, ctime, btime), digest)| CachedFile {
                version: FileVersion {
                    is_file: true,
                    dev: DIR.0,
                    ino,
                    len_bytes,
                    mtime,
                    ctime,
                    btime,
                },
                digest,
            },
        )
    }

    fn record(files: &[CachedFile]) -> DigestRecord {
        let mut record = DigestRecord::default();
        for file in files {
            record.put(*file);
        }
        record
    }

    proptest! {
        #[test]
        fn decoding_returns_what_was_stored(files in proptest::collection::vec(file(), 0..20)) {
            let stored = record(&files);
            let read = DigestRecord::decode(&stored.encode(DIR), DIR).unwrap();
            prop_assert!(stored.files().eq(read.files()));
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
            prop_assert_eq!(DigestRecord::decode(&changed, DIR), None);
            prop_assert_eq!(DigestRecord::decode(&stored[..cut.index(stored.len())], DIR), None);
            prop_assert_eq!(DigestRecord::decode(&[&stored[..], b"x"].concat(), DIR), None);
        }

        #[test]
        fn any_bytes_are_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(DigestRecord::decode(&bytes, DIR), None);
        }

        #[test]
        fn only_the_same_version_is_found(file in file(), other in time()) {
            let mut record = record(&[file]);
            prop_assert_eq!(record.find(&file.version), Some(file.digest));
            for changed in [
                FileVersion { ctime: other, ..file.version },
                FileVersion { mtime: other, ..file.version },
                FileVersion { btime: Some(other), ..file.version },
                FileVersion { len_bytes: file.version.len_bytes ^ 1, ..file.version },
                FileVersion { dev: 1, ..file.version },
                FileVersion { ino: file.version.ino ^ 1, ..file.version },
            ] {
                prop_assume!(changed != file.version);
                prop_assert_eq!(record.find(&changed), None);
            }
        }
    }

    #[test]
    fn record_of_another_directory_is_missing() {
        let stored = DigestRecord::default().encode(DIR);
        assert!(DigestRecord::decode(&stored, DIR).is_some());
        assert_eq!(DigestRecord::decode(&stored, (DIR.0, 13)), None);
        assert_eq!(DigestRecord::decode(&stored, (1, DIR.1)), None);
    }

    #[test]
    fn files_that_are_not_seen_any_more_are_dropped() {
        let at = |ino| CachedFile {
            version: FileVersion {
                is_file: true,
                dev: DIR.0,
                ino,
                len_bytes: 1,
                mtime: Time { secs: 1, nanos: 1 },
                ctime: Time { secs: 1, nanos: 1 },
                btime: None,
            },
            digest: [7; PLAIN_LEN_BYTES],
        };
        let all: Vec<_> = (0..1000).map(at).collect();
        let mut record = DigestRecord::decode(&record(&all).encode(DIR), DIR).unwrap();
        for file in &all[990..] {
            record.find(&file.version).unwrap();
        }
        let kept = DigestRecord::decode(&record.encode(DIR), DIR).unwrap();
        assert_eq!(kept.len(), 10 + 10 + 64);
        assert!(
            all[990..]
                .iter()
                .all(|file| kept.files.contains_key(&file.version.ino))
        );
    }
}

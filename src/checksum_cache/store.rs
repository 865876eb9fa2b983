//! The records on disk: a directory with a file for each record.
//!
//! Each file is replaced as a whole, so a killed process leaves an old record, a new one, or a temporary file that the next
//! one for the same name removes. Runs at the same time do not wait for each other: the last one to store a record wins,
//! and what the other has found out is found out again.

use super::DirKey;
use super::record::{DigestRecord, RECORD_MAX_BYTES, files_in};
use crate::fs::compare::read_until;
use crate::fs::root::Dir;
use crate::fs::temp_name::{is_temp_name, name_of_temp};
use crate::fs::write::Pending;
use crate::fs::{
    errno, read, sandbox, sys,
    trusted_path::{self, NewDirMode},
};
use crate::options::LinkOwners;
use crate::work::clock;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The store is shrunk if its files have more bytes than this, counted in blocks of 4 KiB.
const STORE_MAX_BYTES: u64 = 512 << 20;
/// The smallest space that a file takes.
const BLOCK_BYTES: u64 = 4096;
/// A record that was not used for this long is marked as used now, so that it does not count as old.
const MARK_AFTER_SECS: i64 = 24 * 60 * 60;

/// What a store contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stored {
    /// The number of records: one for each directory.
    pub records: u64,
    /// The number of digests in them.
    pub digests: u64,
    /// The length of all records.
    pub bytes: u64,
}

/// An open store.
pub struct Store {
    dir: Dir,
}

impl Store {
    /// Opens the directory of a store, and creates it if it is missing. Rejects one that other users could write to: their
    /// records would decide which files are copied.
    pub fn open(path: &[u8]) -> io::Result<Store> {
        match Store::open_existing(path)? {
            Some(store) => Ok(store),
            None => trusted_path::make_dirs(path, NewDirMode::Private, LinkOwners::Trusted)
                .and_then(Store::new),
        }
    }

    /// Opens the directory of a store, if it is there.
    pub fn open_existing(path: &[u8]) -> io::Result<Option<Store>> {
        let opened = trusted_path::open_dir(path, LinkOwners::Trusted);
        errno::if_there(opened)?.map(Store::new).transpose()
    }

    fn new(opened: OwnedFd) -> io::Result<Store> {
        let stat = sys::fstat(opened.as_fd())?;
        if stat.uid != sys::ids().0 || stat.mode & 0o022 != 0 {
            let words = "other users own the directory or can write to it";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, words));
        }
        Ok(Store {
            dir: Dir::new(opened),
        })
    }

    /// Returns the directory of the store.
    pub fn dir_fd(&self) -> BorrowedFd<'_> {
        self.dir.fd()
    }

    /// Returns the record of a directory; `None`: there is none, or none that can be used.
    pub fn get(&self, dir: DirKey) -> Option<DigestRecord> {
        let name = file_name(dir);
        let file = sys::open_read(self.dir.fd(), &name, false, false).ok()?;
        let stat = sys::fstat(file.as_fd()).ok()?;
        let len_bytes = usize::try_from(stat.len_bytes).ok()?;
        if len_bytes > RECORD_MAX_BYTES {
            return None;
        }
        let mut bytes = vec![0; len_bytes];
        if read_until(file.as_fd(), &mut bytes, 0).ok()? < len_bytes {
            return None;
        }
        let record = DigestRecord::decode(bytes, dir)?;
        if stat.mtime.secs < clock::now_unix().0 - MARK_AFTER_SECS {
            // An old mark only makes it go earlier.
            let _ = sys::utimes(file.as_fd(), b"", None, Some(now()));
        }
        Some(record)
    }

    /// Replaces the record of a directory.
    pub fn put(&self, dir: DirKey, record: &DigestRecord) -> io::Result<()> {
        if sandbox::of_process().is_some_and(|reach| reach.may_write().is_err()) {
            // The session of a read-only grant writes nothing at all.
            return Ok(());
        }
        let name = file_name(dir);
        let pending = Pending::begin(&self.dir, &name, 0o600, true, None)?;
        sys::write_all(pending.fd(), &record.encode(dir))?;
        pending.place(&self.dir, &name)
    }

    /// Counts what is stored.
    pub fn stored(&self) -> io::Result<Stored> {
        let mut stored = Stored::default();
        let names = read::typed_names(&self.dir)?;
        for entry in &names.entries {
            let name = names.name(entry);
            if !is_record(name) {
                continue;
            }
            // Another run may have removed it.
            if let Ok(stat) = sys::stat(self.dir.fd(), name, false) {
                stored.records += 1;
                stored.digests += files_in(stat.len_bytes);
                stored.bytes += stat.len_bytes;
            }
        }
        Ok(stored)
    }

    /// Removes all records, and what killed runs have left of others. Returns the number of records.
    pub fn clear(&self) -> io::Result<u64> {
        let mut removed = 0;
        let names = read::typed_names(&self.dir)?;
        for entry in &names.entries {
            let name = names.name(entry);
            let is_unfinished = is_temp_name(name) && name_of_temp(name).is_some_and(is_record);
            // The user may have named a directory with other files.
            if !is_record(name) && !is_unfinished {
                continue;
            }
            if errno::if_there(sys::unlink(self.dir.fd(), name))?.is_some() {
                removed += u64::from(is_record(name));
            }
        }
        Ok(removed)
    }

    /// Removes the records that were not used for the longest time, if the store is too large.
    pub fn shrink(&self) -> io::Result<()> {
        self.shrink_to(STORE_MAX_BYTES)
    }

    fn shrink_to(&self, max_bytes: u64) -> io::Result<()> {
        let mut files = Vec::new();
        let mut total_bytes = 0;
        let names = read::typed_names(&self.dir)?;
        for entry in &names.entries {
            let name = names.name(entry);
            if !is_record(name) {
                // The user may have named a directory with other files.
                continue;
            }
            // Another run may have removed it.
            if let Ok(stat) = sys::stat(self.dir.fd(), name, false) {
                let bytes = stat.len_bytes.next_multiple_of(BLOCK_BYTES);
                total_bytes += bytes;
                files.push((stat.mtime, bytes, name));
            }
        }
        if total_bytes <= max_bytes {
            return Ok(());
        }

        files.sort();
        for (_, bytes, name) in files {
            // A tenth is left free, so that not every run has to do this.
            if total_bytes <= max_bytes - max_bytes / 10 {
                break;
            }
            match sys::unlink(self.dir.fd(), name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => total_bytes -= bytes,
            }
        }
        Ok(())
    }
}

fn now() -> crate::flist::Time {
    let (secs, nanos) = clock::now_unix();
    crate::flist::Time { secs, nanos }
}

/// Returns whether a file has the name of a record. Temporary ones are removed when the record is stored again.
fn is_record(name: &[u8]) -> bool {
    let Some(numbers) = name.strip_suffix(b".sums") else {
        return false;
    };
    let mut parts = 0;
    for part in numbers.split(|&byte| byte == b'-') {
        parts += 1;
        if part.is_empty() || !part.iter().all(u8::is_ascii_hexdigit) {
            return false;
        }
    }
    parts == 2
}

/// Returns the name of the file with the record of a directory.
fn file_name(dir: DirKey) -> Vec<u8> {
    format!("{:x}-{:x}.sums", dir.0, dir.1).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_records_go_first() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("a/store");
        let store = Store::open(path.as_os_str().as_encoded_bytes()).unwrap();
        for ino in 0..20 {
            store.put((1, ino), &DigestRecord::default()).unwrap();
            let file = std::fs::File::open(path.join(format!("1-{ino:x}.sums"))).unwrap();
            let age = std::time::Duration::from_secs(1_000_000 + ino);
            file.set_modified(std::time::UNIX_EPOCH + age).unwrap();
        }
        // Other files are not counted and stay.
        for name in [
            "letter",
            "photos-2024.sums",
            "a-b-c.sums",
            "1-z.sums",
            "-.sums",
        ] {
            let file = std::fs::File::create(path.join(name)).unwrap();
            file.set_len(1 << 30).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        store.shrink_to(20 * BLOCK_BYTES).unwrap();
        assert!(store.get((1, 0)).is_some());

        // It was used now, so the next one is the oldest.
        store.shrink_to(19 * BLOCK_BYTES).unwrap();
        assert!(store.get((1, 0)).is_some());
        assert!(store.get((1, 1)).is_none());
        assert!(store.get((1, 3)).is_none());
        assert!(store.get((1, 4)).is_some());
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 17 + 5);
    }

    #[test]
    fn clearing_leaves_other_files() {
        let top = tempfile::tempdir().unwrap();
        let store = Store::open(top.path().as_os_str().as_encoded_bytes()).unwrap();
        store.put((1, 2), &DigestRecord::default()).unwrap();
        store.put((1, 3), &DigestRecord::default()).unwrap();
        assert_eq!(store.stored().unwrap().records, 2);
        let temp = |name: &[u8]| String::from_utf8(crate::fs::temp_name::temp_name(name)).unwrap();
        let others = ["letter".to_owned(), temp(b"letter")];
        for name in others.iter().chain(&[temp(b"1-4.sums")]) {
            std::fs::write(top.path().join(name), "").unwrap();
        }
        assert_eq!(store.clear().unwrap(), 2);
        assert_eq!(store.stored().unwrap(), Stored::default());
        assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 2);
    }

    #[test]
    fn store_that_others_can_change_is_rejected() {
        use std::os::unix::fs::PermissionsExt;
        let top = tempfile::tempdir().unwrap();
        let mode = std::fs::Permissions::from_mode(0o770);
        std::fs::set_permissions(top.path(), mode).unwrap();
        assert!(Store::open(top.path().as_os_str().as_encoded_bytes()).is_err());
    }
}

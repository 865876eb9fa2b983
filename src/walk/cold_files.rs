//! Has the kernel read small source files that are not in its cache, before they are read one after the other.
//!
//! A disk does many reads at a time, but a thread that reads small files waits for each of them.

use crate::flist::Kind;
use crate::fs::sys;
use crate::options::Select;
use crate::walk::ComparedSource;
use std::os::fd::AsFd as _;

/// How many files are read ahead at most.
pub const COLD_FILES_MAX: usize = 64;
/// Up to this length a file is small. The kernel itself reads longer ones ahead.
const SMALL_MAX_BYTES: u64 = 128 << 10;
/// From this many small files on, checking the cache saves time.
const FILES_MIN: usize = 8;

/// Starts to read the small files among these, if the last of them is not in the cache. Errors are left to the real
/// reads.
pub fn read_ahead<'a>(
    files: impl DoubleEndedIterator<Item = ComparedSource<'a>> + Clone,
    select: &Select,
) {
    let small = files.filter(|file| {
        file.entry.kind() == Kind::File && (1..=SMALL_MAX_BYTES).contains(&file.entry.len_bytes)
    });
    if small.clone().nth(FILES_MIN - 1).is_none() {
        return;
    }
    let open = |file: ComparedSource<'_>| file.place?.open_file(file.name, select).ok();
    if small
        .clone()
        .next_back()
        .and_then(open)
        .is_some_and(|file| !sys::is_cached(file.as_fd()))
    {
        for file in small.filter_map(open) {
            let _ = sys::will_read(file.as_fd());
        }
    }
}

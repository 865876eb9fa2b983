//! Determines which files are read before they are matched, because they can be equal to others.

use super::{NeededFile, OldFile, TwinCandidates};
use crate::flist::Time;
use std::collections::HashMap;

/// If there are more files of one length, only those are read whose times are equal, too.
const READ_MAX: usize = 8;

/// The indices of files that are worth reading, ascending.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WorthReading {
    pub new: Vec<u32>,
    pub candidates: Vec<u32>,
}

/// A file by what is known of it before it is read.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct UnreadFile {
    len_bytes: u64,
    mtime_secs: i64,
    mtime_nanos: u32,
    /// Its index.
    at: u32,
}

impl UnreadFile {
    fn new(at: u32, len_bytes: u64, mtime: Time) -> UnreadFile {
        UnreadFile {
            len_bytes,
            mtime_secs: mtime.secs,
            mtime_nanos: mtime.nanos,
            at,
        }
    }

    /// Returns how many of these files, which have one length and are sorted, have its time.
    fn count_in(&self, sorted: &[UnreadFile]) -> usize {
        let time = (self.mtime_secs, self.mtime_nanos);
        let start = sorted.partition_point(|file| (file.mtime_secs, file.mtime_nanos) < time);
        sorted[start..].partition_point(|file| (file.mtime_secs, file.mtime_nanos) == time)
    }
}

/// Returns which files can be equal to each other: needed files to candidates, except to those that they replace, and new
/// files to other new files.
pub fn worth_reading<'a>(
    new: impl Iterator<Item = NeededFile<'a>>,
    candidates: &TwinCandidates,
) -> WorthReading {
    // Sorted lists, because tables would take several times the memory.
    let mut all_new = Vec::new();
    let mut replaced = HashMap::new();
    for (at, file) in (0..).zip(new) {
        all_new.push(UnreadFile::new(at, file.len_bytes, file.mtime));
        if let OldFile::Replaced(candidate) = file.old {
            replaced.insert(at, candidate);
        }
    }
    all_new.sort_unstable();
    let mut all_candidates = Vec::with_capacity(candidates.files.len());
    for (at, file) in (0..).zip(&candidates.files) {
        all_candidates.push(UnreadFile::new(at, file.len_bytes, file.mtime()));
    }
    all_candidates.sort_unstable();

    let mut worth = WorthReading::default();
    let mut rest = &all_candidates[..];
    for new in all_new.chunk_by(|one, other| one.len_bytes == other.len_bytes) {
        let len_bytes = new[0].len_bytes;
        rest = &rest[rest.partition_point(|file| file.len_bytes < len_bytes)..];
        let candidates = &rest[..rest.partition_point(|file| file.len_bytes == len_bytes)];

        let replaces = |file: &UnreadFile, candidate: &UnreadFile| {
            replaced.get(&file.at) == Some(&Some(candidate.at))
        };
        let are_many_candidates = candidates.len() > READ_MAX;
        for candidate in candidates {
            let is_like_any = if are_many_candidates {
                candidate.count_in(new) > 0
            } else {
                new.len() > 1 || !replaces(&new[0], candidate)
            };
            if is_like_any {
                worth.candidates.push(candidate.at);
            }
        }
        // More than one of the new files can have the same content.
        let are_many_new = new.len() > READ_MAX;
        let is_new = |file: &UnreadFile| !replaced.contains_key(&file.at);
        let new_count = new.iter().filter(|file| is_new(file)).count();
        for file in new {
            let has_candidate = if are_many_candidates {
                file.count_in(candidates) > 0
            } else {
                candidates
                    .iter()
                    .any(|candidate| !replaces(file, candidate))
            };
            let has_other = if are_many_new {
                file.count_in(new) > 1
            } else {
                new_count > 1
            };
            let has_other = has_other && is_new(file);
            if has_candidate || has_other {
                worth.new.push(file.at);
            }
        }
    }
    worth.new.sort_unstable();
    worth.candidates.sort_unstable();
    worth
}

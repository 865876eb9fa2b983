//! Decides whether two regular files are equal without opening them.
//!
//! Reading and hashing are left to the caller. No clock, no I/O.

use crate::flist::{Entry, Time};
use crate::options::{Check, CheckMode};

/// What metadata shows about two files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sameness {
    /// They count as equal.
    Same,
    /// They differ.
    Differs,
    /// Only a comparison of their contents can decide.
    AskDigest,
}

/// Compares two regular files without opening either.
pub fn quick_check(source: &Entry, dest: &Entry, check: &Check) -> Sameness {
    if source.len_bytes != dest.len_bytes {
        return Sameness::Differs;
    }
    let same = match check.mode {
        CheckMode::IgnoreTimes => false,
        CheckMode::SizeOnly => true,
        CheckMode::Digest => return Sameness::AskDigest,
        CheckMode::Quick { window_secs } => same_time(source.mtime, dest.mtime, window_secs),
    };
    if same {
        Sameness::Same
    } else {
        Sameness::Differs
    }
}

/// Returns whether two times count as equal.
///
/// A negative window compares nanoseconds, a window of 0 compares seconds, and a positive window is the largest
/// difference allowed, in seconds.
pub fn same_time(a: Time, b: Time, window_secs: i64) -> bool {
    match window_secs {
        ..=0 => examined_time(a, window_secs) == examined_time(b, window_secs),
        1.. => a.secs.abs_diff(b.secs) <= window_secs.unsigned_abs(),
    }
}

/// Returns the part of a time that is compared under a window of at most 0.
pub fn examined_time(time: Time, window_secs: i64) -> Time {
    if window_secs < 0 {
        time
    } else {
        Time { nanos: 0, ..time }
    }
}

/// Returns whether `--update` keeps the destination's file: it is newer than the source's, or older by less than the
/// window. A negative window compares nanoseconds, which rsync ignores here.
pub fn is_spared(dest: Time, source: Time, window_secs: i64) -> bool {
    match window_secs {
        ..0 => dest > source,
        _ => dest.secs.saturating_add(window_secs) > source.secs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64, nanos: u32) -> Time {
        Time { secs, nanos }
    }

    #[test]
    fn same_time_respects_the_modify_window() {
        assert!(same_time(at(5, 1), at(5, 999), 0));
        assert!(!same_time(at(5, 999_999_999), at(6, 0), 0));
        assert!(!same_time(at(5, 1), at(5, 2), -1));
        assert!(same_time(at(5, 1), at(5, 1), -1));
        assert!(same_time(at(5, 0), at(7, 0), 2) && !same_time(at(5, 0), at(8, 0), 2));
        assert!(
            same_time(at(i64::MIN, 0), at(i64::MIN, 5), 1)
                && !same_time(at(i64::MIN, 0), at(i64::MAX, 5), 1)
        );
    }

    #[test]
    fn update_skips_newer_files_and_those_within_the_window() {
        assert!(
            is_spared(at(2, 0), at(1, 9), 0)
                && !is_spared(at(1, 9), at(1, 0), 0)
                && !is_spared(at(1, 0), at(2, 0), 0)
        );
        assert!(is_spared(at(1, 0), at(49, 0), 49) && !is_spared(at(1, 0), at(50, 0), 49));
        assert!(is_spared(at(1, 2), at(1, 1), -1) && !is_spared(at(1, 1), at(1, 1), -1));
    }
}

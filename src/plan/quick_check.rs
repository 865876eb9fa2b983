//! Decides whether two regular files are the same without opening them.
//!
//! Reading and hashing are the caller's. No clock, no I/O.

use crate::flist::{Entry, Time};
use crate::options::{Check, CheckMode};

/// What stat can tell of two files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sameness {
    /// They count as the same.
    Same,
    /// They differ.
    Differs,
    /// Only their contents can tell.
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
    if same { Sameness::Same } else { Sameness::Differs }
}

/// Whether two times count as equal: to the nanosecond with a window below 0, to the second with 0,
/// else no further apart than the window.
pub fn same_time(a: Time, b: Time, window_secs: i64) -> bool {
    match window_secs {
        ..0 => a == b,
        0 => a.secs == b.secs,
        1.. => a.secs.abs_diff(b.secs) <= window_secs.unsigned_abs(),
    }
}

/// Whether `a` is later than `b` by more than the window.
pub fn is_later(a: Time, b: Time, window_secs: i64) -> bool {
    match window_secs {
        ..0 => a > b,
        _ => a.secs > b.secs && a.secs.abs_diff(b.secs) > window_secs.unsigned_abs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64, nanos: u32) -> Time {
        Time { secs, nanos }
    }

    #[test]
    fn windows() {
        assert!(same_time(at(5, 1), at(5, 999), 0));
        assert!(!same_time(at(5, 999_999_999), at(6, 0), 0));
        assert!(!same_time(at(5, 1), at(5, 2), -1));
        assert!(same_time(at(5, 1), at(5, 1), -1));
        assert!(same_time(at(5, 0), at(7, 0), 2) && !same_time(at(5, 0), at(8, 0), 2));
        assert!(same_time(at(i64::MIN, 0), at(i64::MIN, 5), 1) && !same_time(at(i64::MIN, 0), at(i64::MAX, 5), 1));
    }

    #[test]
    fn later_is_never_also_the_same() {
        for window in [-1, 0, 1, 5] {
            for (a, b) in [(at(1, 0), at(1, 1)), (at(1, 0), at(2, 0)), (at(0, 0), at(9, 0)), (at(3, 3), at(3, 3))] {
                assert!(!(is_later(a, b, window) && same_time(a, b, window)));
                assert!(!(is_later(a, b, window) && is_later(b, a, window)));
            }
        }
    }
}

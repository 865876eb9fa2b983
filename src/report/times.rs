//! Local times in rsync's format: `2026/11/21 00:46:53`.

use crate::zone;
use jiff::tz::{Offset, TimeZone};
use std::io::Write;

/// The width of a time in rsync's output. For years beyond 9999 the seconds are cut off.
const WIDTH: usize = 19;

/// Formats seconds since 1970 as local times.
#[derive(Debug)]
pub struct LocalTimes {
    /// `None`: the local zone, read when the first time is printed.
    zone: Option<TimeZone>,
    /// The last result: entries of a tree often have the same second, log lines nearly always.
    last: (i64, u8),
    text: Vec<u8>,
}

impl LocalTimes {
    /// Creates a formatter for the local zone, which is read when needed.
    pub fn local() -> LocalTimes {
        LocalTimes {
            zone: None,
            last: (0, 0),
            text: Vec::new(),
        }
    }

    /// Creates a formatter for a zone.
    pub fn new(zone: TimeZone) -> LocalTimes {
        LocalTimes {
            zone: Some(zone),
            ..LocalTimes::local()
        }
    }

    /// Appends `YYYY/MM/DD HH:MM:SS` with `between` instead of the blank (`%M` has a dash).
    pub fn put(&mut self, out: &mut Vec<u8>, secs: i64, between: u8) {
        if self.text.is_empty() || self.last != (secs, between) {
            self.last = (secs, between);
            self.text.clear();
            let local = secs.saturating_add(self.offset_secs(secs));
            let (year, month, day) = civil(local.div_euclid(86400));
            let of_day = local.rem_euclid(86400);
            let hour = of_day / 3600;
            let minute = of_day / 60 % 60;
            let second = of_day % 60;
            _ = write!(
                self.text,
                "{year:4}/{month:02}/{day:02}{}{hour:02}:{minute:02}:{second:02}",
                char::from(between)
            );
            self.text.truncate(WIDTH);
        }
        out.extend_from_slice(&self.text);
    }

    /// Returns the zone's offset from UTC in seconds. Times beyond jiff's range use the offset at its limit.
    fn offset_secs(&mut self, secs: i64) -> i64 {
        let zone = self.zone.get_or_insert_with(zone::local);
        let first = jiff::Timestamp::MIN;
        let last = jiff::Timestamp::MAX;
        let within = secs.clamp(first.as_second(), last.as_second());
        let offset =
            jiff::Timestamp::from_second(within).map_or(Offset::UTC, |time| zone.to_offset(time));
        i64::from(offset.seconds())
    }
}

/// Returns year, month and day for a number of days since 1970 (in the proleptic Gregorian calendar).
fn civil(days: i64) -> (i64, i64, i64) {
    // Counted from March 1 of year 0, so that a leap day ends its year; 400 years have 146,097 days.
    let from_march = days + 719_468;
    let era = from_march.div_euclid(146_097);
    let of_era = from_march.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(zone: &str, secs: i64) -> String {
        let zone = TimeZone::get(zone).unwrap_or_else(|_| TimeZone::posix(zone).expect("a zone"));
        let mut out = Vec::new();
        LocalTimes::new(zone).put(&mut out, secs, b' ');
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn local_times_match_rsync() {
        const NEW: i64 = 16_725_225_600;
        const OLD: i64 = -2_177_452_800;
        const YEAR_1: i64 = -62_135_596_800;
        const YEAR_12345: i64 = 327_403_382_400;
        let cases = [
            ("UTC", NEW, "2500/01/01 00:00:00"),
            ("UTC", -1, "1969/12/31 23:59:59"),
            ("UTC", OLD, "1901/01/01 00:00:00"),
            ("UTC", YEAR_1, "   1/01/01 00:00:00"),
            ("UTC", YEAR_12345, "12345/01/01 00:00:0"),
            ("UTC", 99_999_999_999_999, "3170843/11/07 09:46"),
            ("America/New_York", NEW, "2499/12/31 19:00:00"),
            ("America/New_York", YEAR_1, "   0/12/31 19:03:58"),
            ("America/New_York", YEAR_12345, "12344/12/31 19:00:0"),
            ("Asia/Kathmandu", NEW, "2500/01/01 05:45:00"),
            ("Asia/Kathmandu", OLD, "1901/01/01 05:41:16"),
            ("Asia/Kathmandu", -1, "1970/01/01 05:29:59"),
            ("EST5EDT", YEAR_1, "   0/12/31 19:00:00"),
            ("<+03>-3", OLD, "1901/01/01 03:00:00"),
        ];
        for (zone, secs, want) in cases {
            // New York before 1883 and EST5EDT differ between zone databases; the other cases must agree.
            if zone == "EST5EDT" && TimeZone::get(zone).is_ok() {
                continue;
            }
            assert_eq!(at(zone, secs), want, "{zone} {secs}");
        }
    }

    #[test]
    fn cached_time_depends_on_seconds_and_separator() {
        let mut times = LocalTimes::new(TimeZone::UTC);
        let mut out = Vec::new();
        times.put(&mut out, 0, b' ');
        times.put(&mut out, 0, b'-');
        times.put(&mut out, 1, b'-');
        assert_eq!(
            out,
            b"1970/01/01 00:00:001970/01/01-00:00:001970/01/01-00:00:01"
        );
    }

    proptest! {
        #[test]
        fn civil_dates_match_jiff(secs in -377_705_023_201i64..253_402_207_200) {
            let time = jiff::Timestamp::from_second(secs).expect("in range").to_zoned(TimeZone::UTC);
            let (year, month, day) = civil(secs.div_euclid(86400));
            prop_assert_eq!(
                (year, month, day),
                (i64::from(time.year()), i64::from(time.month()), i64::from(time.day()))
            );
        }

        #[test]
        fn time_format_does_not_panic(secs: i64) {
            LocalTimes::new(TimeZone::UTC).put(&mut Vec::new(), secs, b' ');
        }
    }
}

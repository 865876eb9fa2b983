//! A timestamp in a form that users can write and read.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Seconds since 1970. Written in UTC, as in `2026-12-31T18:00:00Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub struct Timestamp(pub i64);

/// A timestamp in a file: in quotes, or as a TOML date.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a date such as \"2026-12-31\" (until its end, in UTC) or \"2026-12-31T18:00:00Z\""
)]
enum Written {
    Text(String),
    Date(toml::value::Datetime),
}

impl TryFrom<Written> for Timestamp {
    type Error = String;

    fn try_from(written: Written) -> Result<Timestamp, String> {
        match written {
            Written::Text(text) => Timestamp::try_from(text),
            Written::Date(date) => Timestamp::try_from(date.to_string()),
        }
    }
}

const DAY_SECS: i64 = 24 * 60 * 60;
/// The maximum number of days or hours ahead; larger values are rejected.
const AHEAD_MAX: i64 = 100_000;

impl Timestamp {
    /// Parses user input: a date (its end, in UTC), a date with time and zone, or a duration from `now` on: `30d`,
    /// `12h`.
    pub fn read(text: &str, now: Timestamp) -> Result<Timestamp, String> {
        let ahead = [('d', DAY_SECS), ('h', 60 * 60)]
            .into_iter()
            .find_map(|(unit, unit_secs)| {
                let count: i64 = text.strip_suffix(unit)?.parse().ok()?;
                if (1..=AHEAD_MAX).contains(&count) {
                    Some(Timestamp(now.0 + count * unit_secs))
                } else {
                    None
                }
            });
        let read = ahead.map_or_else(|| Timestamp::try_from(text.to_owned()), Ok);
        read.map_err(|bad| format!("{bad} or 30d or 12h from now"))
    }
}

impl TryFrom<String> for Timestamp {
    type Error = String;

    fn try_from(text: String) -> Result<Timestamp, String> {
        if let Ok(moment) = text.parse::<jiff::Timestamp>() {
            return Ok(Timestamp(moment.as_second()));
        }
        let is_date = text.len() == 10 && text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
        let date = if is_date {
            text.parse::<jiff::civil::Date>().ok()
        } else {
            None
        };
        let Some(date) = date else {
            return Err(format!(
                "invalid date `{text}`: expected 2026-12-31 (until its end, in UTC) or 2026-12-31T18:00:00Z"
            ));
        };
        // The end of the last days of the year 9999 is later than what can be written and read again.
        let latest = jiff::Timestamp::MAX.as_second();
        let begin = date.to_zoned(jiff::tz::TimeZone::UTC);
        let begin = begin.map_or(latest, |begin| begin.timestamp().as_second());
        Ok(Timestamp(latest.min(begin + DAY_SECS)))
    }
}

impl From<Timestamp> for String {
    fn from(moment: Timestamp) -> String {
        moment.to_string()
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_second(self.0) {
            Ok(moment) => write!(f, "{moment}"),
            Err(_) => write!(f, "{} seconds after 1970", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_in_toml_may_be_quoted() {
        #[derive(Debug, Deserialize)]
        struct Holder {
            at: Timestamp,
        }
        for written in [
            "\"1970-01-01\"",
            "1970-01-01",
            "\"1970-01-02T00:00:00Z\"",
            "1970-01-02 01:00:00+01:00",
        ] {
            let holder: Holder = toml::from_str(&format!("at = {written}\n")).unwrap();
            assert_eq!(holder.at, Timestamp(DAY_SECS), "{written}");
        }
        for bad in ["5", "\"soon\"", "[]", "12:00:00", "1970-01-02T00:00:00"] {
            let error = toml::from_str::<Holder>(&format!("at = {bad}\n")).unwrap_err();
            assert!(
                error.message().contains("2026-12-31T18:00:00Z"),
                "{bad}: {error}"
            );
        }
    }

    #[test]
    fn timestamp_parses_dates_and_durations() {
        let now = Timestamp(1_000_000_000);
        for (text, secs) in [
            ("2001-09-09T01:46:40Z", 1_000_000_000),
            ("2001-09-09T03:46:40+02:00", 1_000_000_000),
            ("1970-01-01", DAY_SECS),
            ("2d", 1_000_000_000 + 2 * DAY_SECS),
            ("12h", 1_000_000_000 + 12 * 3600),
        ] {
            assert_eq!(Timestamp::read(text, now), Ok(Timestamp(secs)), "{text}");
        }
        for bad in [
            "",
            "d",
            "0d",
            "-1d",
            "1.5d",
            "99999999999999999999d",
            "tomorrow",
            "2026-13-01",
            "2026-12-31 18:00",
        ] {
            assert!(Timestamp::read(bad, now).is_err(), "{bad}");
        }
        assert_eq!(Timestamp::try_from(now.to_string()), Ok(now));
    }

    #[test]
    fn last_dates_can_be_written_and_read_again() {
        for text in ["9999-12-29", "9999-12-30", "9999-12-31"] {
            let read = Timestamp::read(text, Timestamp(0)).unwrap();
            assert_eq!(Timestamp::try_from(read.to_string()), Ok(read), "{text}");
        }
    }
}

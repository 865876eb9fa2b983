//! `--stop-after` and `--stop-at`.

use super::refuse;
use crate::error::Result;
use crate::zone;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// Parses the minutes of `--stop-after`. Only leading digits count; the rest is ignored.
pub fn after(text: &[u8]) -> Result<u64> {
    let trimmed = text.trim_ascii_start();
    let trimmed = trimmed.strip_prefix(b"+").unwrap_or(trimmed);
    let digits = trimmed.iter().take_while(|b| b.is_ascii_digit()).count();
    match std::str::from_utf8(&trimmed[..digits])
        .ok()
        .and_then(|digits| digits.parse::<i64>().ok())
    {
        Some(minutes) if minutes > 0 => Ok(minutes.unsigned_abs()),
        _ => Err(refuse([b"invalid --stop-after value: ", text].concat())),
    }
}

/// Parses the time of `--stop-at` in the local time zone. Returns seconds since 1970.
///
/// Formats: `[[y-]m-]d`, `[[y-]m-]dTh:m`, `h:m` or `:m`. Omitted parts are chosen so that the time is the next one.
pub fn at(text: &[u8], now_unix_secs: i64) -> Result<i64> {
    at_in(text, now_unix_secs, &zone::local())
}

fn at_in(text: &[u8], now_unix_secs: i64, zone: &TimeZone) -> Result<i64> {
    let refused = || refuse([b"invalid --stop-at format: ", text].concat());
    let moment = parse(text).ok_or_else(refused)?;
    let now = Timestamp::from_second(now_unix_secs).map_err(|_| refused())?;
    let now = zone.to_datetime(now);
    let secs = |time: DateTime| zone.to_timestamp(time).ok().map(|time| time.as_second());
    let next = |times: &mut dyn Iterator<Item = Option<DateTime>>| {
        times
            .flatten()
            .filter_map(secs)
            .find(|&time| time > now_unix_secs)
    };
    let StopTime {
        year,
        month,
        day,
        hour,
        minute,
    } = moment;
    let time = jiff::civil::time(hour.unwrap_or(0), minute, 0, 0);
    let found = match (year, month, day, hour) {
        (Some(year), Some(month), Some(day), _) => {
            let mut year = year;
            if year < 100 {
                year += i64::from(now.year()) / 100 * 100;
                if year < i64::from(now.year()) {
                    year += 100;
                }
            }
            // A day past the end of its month counts on into the next one, as in C.
            let year = i16::try_from(year).unwrap_or(9998).min(9998);
            let date = Date::new(year, month, 1)
                .ok()
                .map(|date| date.saturating_add((i64::from(day) - 1).days()));
            let time = date
                .map(|date| date.to_datetime(time))
                .and_then(secs)
                .ok_or_else(refused)?;
            if time <= now_unix_secs {
                return Err(refuse(
                    [b"--stop-at time is not in the future: ", text].concat(),
                ));
            }
            Some(time)
        }
        (_, Some(month), Some(day), _) => next(&mut (0..9).map(|ahead| {
            Some(
                Date::new(now.year() + ahead, month, day)
                    .ok()?
                    .to_datetime(time),
            )
        })),
        (_, _, Some(day), _) => next(&mut (0..13).map(|ahead| {
            let month = now
                .date()
                .first_of_month()
                .saturating_add(i64::from(ahead).months());
            Some(
                Date::new(month.year(), month.month(), day)
                    .ok()?
                    .to_datetime(time),
            )
        })),
        (_, _, _, Some(_)) => next(&mut (0..3).map(|ahead| {
            Some(
                now.date()
                    .saturating_add(i64::from(ahead).days())
                    .to_datetime(time),
            )
        })),
        _ => {
            let hour = now.date().at(now.hour(), minute, 0, 0);
            next(&mut (0..3).map(|ahead| Some(hour.saturating_add(i64::from(ahead).hours()))))
        }
    };
    found.ok_or_else(refused)
}

struct StopTime {
    year: Option<i64>,
    month: Option<i8>,
    day: Option<i8>,
    hour: Option<i8>,
    minute: i8,
}

fn parse(text: &[u8]) -> Option<StopTime> {
    let text = std::str::from_utf8(text).ok()?;
    let (date, time) = match text.split_once(['T', 't']) {
        Some((date, time)) => (date, Some(time)),
        None if text.contains(':') => ("", Some(text)),
        None => (text, None),
    };
    let number = |text: &str, from: i64, to: i64| -> Option<i64> {
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        text.parse()
            .ok()
            .filter(|number| (from..=to).contains(number))
    };
    let small =
        |text: &str, from: i64, to: i64| number(text, from, to).and_then(|n| i8::try_from(n).ok());
    let mut moment = StopTime {
        year: None,
        month: None,
        day: None,
        hour: None,
        minute: 0,
    };
    if date.is_empty() && time.is_none_or(str::is_empty) {
        return None;
    }
    if !date.is_empty() {
        let parts: Vec<&str> = date.split(['-', '/']).collect();
        let (year, month, day) = match parts[..] {
            [day] => (None, None, day),
            [month, day] => (None, Some(month), day),
            [year, month, day] => (Some(year), Some(month), day),
            _ => return None,
        };
        moment.day = Some(small(day, 1, 31)?);
        if let Some(month) = month {
            moment.month = Some(small(month, 1, 12)?);
        }
        if let Some(year) = year {
            moment.year = Some(number(year, 0, 99_999)?);
        } else if month.is_some() {
            // 29 February is valid in some years, 31 April in none.
            Date::new(2000, moment.month?, moment.day?).ok()?;
        }
    }
    if let Some(time) = time.filter(|time| !time.is_empty()) {
        let (hour, minute) = time.split_once(':')?;
        // A time without an hour is valid only without a `T`.
        if !hour.is_empty() || text.contains(['T', 't']) {
            moment.hour = Some(small(hour, 0, 23)?);
        }
        moment.minute = small(minute, 0, 59)?;
    }
    Some(moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-21 00:56:14 UTC
    const NOW: i64 = 1_795_222_574;

    fn parsed(text: &str) -> std::result::Result<String, String> {
        let secs = at_in(text.as_bytes(), NOW, &TimeZone::UTC)
            .map_err(|e| String::from_utf8(e.message).unwrap())?;
        Ok(TimeZone::UTC
            .to_datetime(Timestamp::from_second(secs).unwrap())
            .strftime("%Y-%m-%dT%H:%M")
            .to_string())
    }

    #[test]
    fn stop_at_completes_to_the_next_matching_time() {
        for (text, time) in [
            ("2099-12-31T23:59", "2099-12-31T23:59"),
            ("99-1-1t1:1", "2099-01-01T01:01"),
            ("3-4-5", "2103-04-05T00:00"),
            ("26-12-31", "2026-12-31T00:00"),
            ("12-31", "2026-12-31T00:00"),
            ("11/20", "2027-11-20T00:00"),
            ("11-21", "2027-11-21T00:00"),
            ("22", "2026-11-22T00:00"),
            ("1", "2026-12-01T00:00"),
            ("31", "2026-12-31T00:00"),
            ("12:00", "2026-11-21T12:00"),
            ("0:30", "2026-11-22T00:30"),
            ("T0:30", "2026-11-22T00:30"),
            (":30", "2026-11-21T01:30"),
            (":59", "2026-11-21T00:59"),
            ("2099-02-30", "2099-03-02T00:00"),
            ("12T", "2026-12-12T00:00"),
        ] {
            assert_eq!(parsed(text), Ok(time.into()), "{text}");
        }
    }

    #[test]
    fn invalid_stop_times_have_rsyncs_errors() {
        for text in [
            "",
            "x",
            "2099",
            "99",
            "31T1",
            "T",
            "0",
            "13-1",
            "2-31",
            "24:00",
            "1:60",
            "1:1:1",
            "01:",
            "-1",
            "1--1",
            "1-1-",
            "T:5",
            "12T:5",
            "T1",
            "5:5x",
            " 5:5",
            "+5:5",
            "2099-13-01",
            "2099/12/31T1",
            "2099-12-31T10:00:00",
            ":60",
        ] {
            assert_eq!(
                parsed(text),
                Err(format!("rsync: invalid --stop-at format: {text}"))
            );
        }
        for text in [
            "2020-01-01",
            "26-1-1",
            "126-1-1",
            "2026-11-21",
            "2026-11-21T00:56",
        ] {
            assert_eq!(
                parsed(text),
                Err(format!(
                    "rsync: --stop-at time is not in the future: {text}"
                ))
            );
        }
    }

    #[test]
    fn stop_after_reads_leading_digits() {
        assert_eq!(after(b"5").unwrap(), 5);
        assert_eq!(after(b" +5m").unwrap(), 5);
        for bad in ["", "0", "-1", "x", "0x5", "99999999999999999999999"] {
            assert_eq!(
                after(bad.as_bytes()).unwrap_err().message,
                format!("rsync: invalid --stop-after value: {bad}").as_bytes()
            );
        }
    }
}

//! The local time zone, found as the C library finds it. Reads only the zone in use, not the whole database.

#![allow(
    clippy::disallowed_methods,
    reason = "messages need times before fs is set up, and fs depends on reports"
)]

use jiff::tz::TimeZone;
use std::io::Read as _;

/// The system's own zone.
const SYSTEM_ZONE: &str = "/etc/localtime";
/// The directory of named zones.
const ZONES_DIR: &str = "/usr/share/zoneinfo";
/// The maximum number of bytes read from a zone file. The largest in use has about 4000.
const ZONE_MAX_BYTES: u64 = 1 << 20;

/// Returns the zone of `TZ`, which is a name, path or POSIX string, or else the system's zone. UTC if it cannot be
/// read.
pub fn local() -> TimeZone {
    from_tz(std::env::var("TZ").ok().as_deref())
}

fn from_tz(tz: Option<&str>) -> TimeZone {
    let found = match tz.map(|tz| tz.strip_prefix(':').unwrap_or(tz)) {
        None => read(SYSTEM_ZONE),
        Some(path) if path.starts_with('/') => read(path),
        Some(name) => read(&format!("{ZONES_DIR}/{name}")).or_else(|| TimeZone::posix(name).ok()),
    };
    found.unwrap_or(TimeZone::UTC)
}

fn read(path: &str) -> Option<TimeZone> {
    let mut data = Vec::new();
    std::fs::File::open(path)
        .ok()?
        .take(ZONE_MAX_BYTES)
        .read_to_end(&mut data)
        .ok()?;
    TimeZone::tzif(path, &data).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn ahead_secs(tz: &str) -> i32 {
        from_tz(Some(tz))
            .to_offset(Timestamp::from_second(1_700_000_000).unwrap())
            .seconds()
    }

    #[test]
    fn zone_is_a_name_or_a_posix_rule() {
        assert_eq!(ahead_secs("EST5EDT,M3.2.0,M11.1.0"), -5 * 3600);
        assert_eq!(ahead_secs("<+0530>-5:30"), 5 * 3600 + 1800);
        if !std::path::Path::new("/usr/share/zoneinfo/Asia/Tokyo").exists() {
            return;
        }
        assert_eq!(ahead_secs("Asia/Tokyo"), 9 * 3600);
        assert_eq!(ahead_secs(":Asia/Tokyo"), 9 * 3600);
        assert_eq!(ahead_secs("/usr/share/zoneinfo/Asia/Tokyo"), 9 * 3600);
    }

    #[test]
    fn unreadable_zone_is_utc() {
        for tz in [
            "",
            "No/Such",
            "/dev/null",
            "/no/such/file",
            "/usr/share/zoneinfo",
        ] {
            assert_eq!(ahead_secs(tz), 0, "{tz}");
        }
    }
}

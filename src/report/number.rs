//! Numbers in rsync's formats: plain, in groups of three digits, or in units of 1000 or 1024.
//!
//! Levels are those of `Output::human`: 0 plain, 1 digit groups, 2 units of 1000, 3 and more units of 1024. Numbers
//! below one unit are written as digit groups at levels 2 and 3.

use std::io::Write;

/// Suffixes of the units; larger numbers stay in the last one (`9223.37P`).
const UNITS: &[u8] = b"KMGTP";

/// Appends a whole number.
pub fn put_int(out: &mut Vec<u8>, value: i64, level: u8) {
    match in_units(value as f64, value.unsigned_abs() as f64, level) {
        Some((scaled, unit)) => {
            _ = write!(out, "{scaled:.2}");
            out.push(unit);
        }
        None if level == 0 => _ = write!(out, "{value}"),
        None => {
            if value < 0 {
                out.push(b'-');
            }
            put_grouped(out, value.unsigned_abs());
        }
    }
}

/// Appends a length or count; see [`put_int`]. Numbers above `i64::MAX` are written as `i64::MAX`.
pub fn put_count(out: &mut Vec<u8>, value: u64, level: u8) {
    put_int(out, i64::try_from(value).unwrap_or(i64::MAX), level);
}

/// Appends a fraction with two decimals, as for `bytes/sec`.
pub fn put_fraction(out: &mut Vec<u8>, value: f64, level: u8) {
    match in_units(value, value.abs(), level) {
        Some((scaled, unit)) => {
            _ = write!(out, "{scaled:.2}");
            out.push(unit);
        }
        None => put_fraction_grouped(out, value, level > 0),
    }
}

/// Appends a fraction with two decimals that never uses units, as for `speedup`.
pub fn put_fraction_grouped(out: &mut Vec<u8>, value: f64, grouped: bool) {
    let start = out.len();
    _ = write!(out, "{value:.2}");
    if !grouped {
        return;
    }
    let digits_at = start + usize::from(out[start] == b'-');
    let Some(point) = out[digits_at..].iter().position(|&b| b == b'.') else {
        return;
    };
    // From the right, so that earlier positions stay valid.
    let mut at = digits_at + point;
    while at > digits_at + 3 {
        at -= 3;
        out.insert(at, b',');
    }
}

/// Returns the value in its unit and the unit's suffix, if the level has units and the value reaches one.
fn in_units(value: f64, size: f64, level: u8) -> Option<(f64, u8)> {
    let unit = match level {
        0 | 1 => return None,
        2 => 1000.0,
        _ => 1024.0,
    };
    if size < unit {
        return None;
    }
    let mut scaled = value / unit;
    let mut at = 0;
    while scaled.abs() >= unit && at + 1 < UNITS.len() {
        scaled /= unit;
        at += 1;
    }
    Some((scaled, UNITS[at]))
}

fn put_grouped(out: &mut Vec<u8>, value: u64) {
    // 20 digits and 6 commas.
    let mut buf = [0u8; 26];
    let mut at = buf.len();
    let mut rest = value;
    let mut digits = 0;
    loop {
        if digits > 0 && digits % 3 == 0 {
            at -= 1;
            buf[at] = b',';
        }
        at -= 1;
        buf[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        digits += 1;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&buf[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn int(value: i64, level: u8) -> String {
        let mut out = Vec::new();
        put_int(&mut out, value, level);
        String::from_utf8(out).expect("digits")
    }

    fn fraction(value: f64, level: u8) -> String {
        let mut out = Vec::new();
        put_fraction(&mut out, value, level);
        String::from_utf8(out).expect("digits")
    }

    /// Output of `rsync -rn --out-format="%l %'l %''l %'''l"` for files of these lengths.
    const ORACLE: &str = "\
0 0 0 0
999 999 999 999
1000 1,000 1.00K 1,000
1005 1,005 1.00K 1,005
1006 1,006 1.01K 1,006
1015 1,015 1.01K 1,015
1023 1,023 1.02K 1,023
1024 1,024 1.02K 1.00K
1025 1,025 1.02K 1.00K
1030 1,030 1.03K 1.01K
9995 9,995 9.99K 9.76K
9999 9,999 10.00K 9.76K
999994 999,994 999.99K 976.56K
999995 999,995 1000.00K 976.56K
999999 999,999 1000.00K 976.56K
1000000 1,000,000 1.00M 976.56K
1004999 1,004,999 1.00M 981.44K
1005000 1,005,000 1.00M 981.45K
1048575 1,048,575 1.05M 1024.00K
1048576 1,048,576 1.05M 1.00M
999995000 999,995,000 1000.00M 953.67M
1073741823 1,073,741,823 1.07G 1024.00M
1099511627775 1,099,511,627,775 1.10T 1024.00G
1125899906842623 1,125,899,906,842,623 1.13P 1024.00T
1125899906842624 1,125,899,906,842,624 1.13P 1.00P
999999999999999999 999,999,999,999,999,999 1000.00P 888.18P
1152921504606846976 1,152,921,504,606,846,976 1152.92P 1024.00P
9223372036854775807 9,223,372,036,854,775,807 9223.37P 8192.00P";

    #[test]
    fn integers_match_rsync() {
        for line in ORACLE.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let value: i64 = words[0].parse().expect("a number");
            for level in 0..4u8 {
                assert_eq!(
                    int(value, level),
                    words[usize::from(level)],
                    "{value} at level {level}"
                );
            }
        }
    }

    #[test]
    fn negative_numbers_keep_their_sign() {
        assert_eq!(int(-1234567, 1), "-1,234,567");
        assert_eq!(int(-1234567, 2), "-1.23M");
        assert_eq!(int(i64::MIN, 1), "-9,223,372,036,854,775,808");
        assert_eq!(int(-1, 3), "-1");
    }

    #[test]
    fn fractions_match_rsync() {
        // sent 123,487,121 bytes  received 60 bytes  246,974,362.00 bytes/sec
        assert_eq!(fraction(246974362.0, 0), "246974362.00");
        assert_eq!(fraction(246974362.0, 1), "246,974,362.00");
        assert_eq!(fraction(246974362.0, 2), "246.97M");
        assert_eq!(fraction(246974362.0, 3), "235.53M");
        assert_eq!(fraction(388.0, 2), "388.00");
        assert_eq!(fraction(1714905.4285, 1), "1,714,905.43");
        assert_eq!(fraction(-1234.5, 1), "-1,234.50");
        assert_eq!(fraction(999.0, 1), "999.00");
    }

    proptest! {
        #[test]
        fn grouped_integer_is_the_plain_one_with_commas(value: i64) {
            let grouped = int(value, 1);
            prop_assert_eq!(grouped.replace(',', ""), int(value, 0));
            let mut parts = grouped.trim_start_matches('-').split(',');
            prop_assert!((1..=3).contains(&parts.next().map_or(0, str::len)));
            prop_assert!(parts.all(|part| part.len() == 3));
        }

        #[test]
        fn grouped_fraction_is_the_plain_one_with_commas(value in -1e15f64..1e15) {
            prop_assert_eq!(fraction(value, 1).replace(',', ""), fraction(value, 0));
        }

        #[test]
        fn number_formats_do_not_panic(value: f64, whole: u64, level: u8) {
            let mut out = Vec::new();
            put_fraction(&mut out, value, level);
            put_count(&mut out, whole, level);
        }
    }
}

//! The lines of `--list-only`: `-rw-r--r--      1,234,567 2026/11/20 09:01:10 big.bin`.

use super::event::Item;
use super::number::put_count;
use super::times::LocalTimes;
use crate::flist::{Kind, entry::S_IFMT};

/// The form of the lines.
#[derive(Debug, Clone, Copy)]
pub struct ListStyle {
    /// `Output::human`
    pub human: u8,
    /// `-U`: a column for the access time.
    pub atimes: bool,
}

/// Appends the line of an entry, not escaped and without newline.
pub fn put_entry(out: &mut Vec<u8>, item: &Item, style: ListStyle, times: &mut LocalTimes) {
    out.extend_from_slice(&permissions(item.mode));
    out.push(b' ');
    let width = size_width(style);
    let start = out.len();
    put_count(
        out,
        if has_len(item.kind) {
            item.len_bytes
        } else {
            0
        },
        style.human,
    );
    let len = out.len() - start;
    if len < width {
        out.resize(start + width, b' ');
        out[start..].rotate_right(width - len);
    }
    out.push(b' ');
    times.put(out, item.mtime.secs, b' ');
    out.push(b' ');
    if style.atimes {
        // rsync does not record access times of directories.
        match item.atime {
            Some(atime) if item.kind != Kind::Dir => times.put(out, atime.secs, b' '),
            Some(_) | None => out.extend_from_slice(&[b' '; 19]),
        }
        out.push(b' ');
    }
    out.extend_from_slice(&item.name);
    if let Some(target) = &item.target {
        out.extend_from_slice(b" -> ");
        out.extend_from_slice(target);
    }
}

/// Appends the line of an argument that does not exist (`--delete-missing-args`).
pub fn put_missing(out: &mut Vec<u8>, name: &[u8], style: ListStyle) {
    // As wide as mode, size and times together.
    let width = 11 + size_width(style) + 21 + if style.atimes { 20 } else { 0 };
    let start = out.len();
    out.extend_from_slice(b"*missing");
    out.resize(start + width, b' ');
    out.extend_from_slice(name);
}

fn size_width(style: ListStyle) -> usize {
    if style.human == 0 { 11 } else { 14 }
}

fn has_len(kind: Kind) -> bool {
    match kind {
        Kind::File | Kind::Dir | Kind::Symlink => true,
        Kind::Device | Kind::Special => false,
    }
}

/// Returns a mode as ten characters: `-rwsr-xr-t`. The first is a dash if the type bits are unknown.
pub fn permissions(mode: u32) -> [u8; 10] {
    let mut text = *b"-rwxrwxrwx";
    for (at, letter) in text.iter_mut().enumerate().skip(1) {
        if mode & (0o400 >> (at - 1)) == 0 {
            *letter = b'-';
        }
    }
    for (bit, at, letter) in [(0o4000, 3, b's'), (0o2000, 6, b's'), (0o1000, 9, b't')] {
        if mode & bit != 0 {
            text[at] = if text[at] == b'x' {
                letter
            } else {
                letter.to_ascii_uppercase()
            };
        }
    }
    text[0] = match mode & S_IFMT {
        0o040000 => b'd',
        0o120000 => b'l',
        0o020000 => b'c',
        0o060000 => b'b',
        0o010000 => b'p',
        0o140000 => b's',
        _ => b'-',
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flist::Time;
    use crate::report::format::tests::{item, link};
    use jiff::tz::TimeZone;

    const THEN: Time = Time {
        secs: 1_795_222_404,
        nanos: 0,
    };

    fn line(item: &Item, human: u8, atimes: bool) -> String {
        let mut out = Vec::new();
        put_entry(
            &mut out,
            item,
            ListStyle { human, atimes },
            &mut LocalTimes::new(TimeZone::UTC),
        );
        String::from_utf8(out).expect("UTF-8")
    }

    fn entry(name: &str, mode: u32, len_bytes: u64) -> Item {
        let kind = Kind::of_mode(mode).expect("a kind");
        Item {
            mode,
            len_bytes,
            kind,
            mtime: THEN,
            atime: Some(THEN),
            ..item(name)
        }
    }

    #[test]
    fn list_lines_match_rsync() {
        let cases = [
            (
                entry(".", 0o040755, 320),
                1,
                "drwxr-xr-x            320 2026/11/21 00:53:24 .",
            ),
            (
                entry("a", 0o107777, 2),
                1,
                "-rwsrwsrwt              2 2026/11/21 00:53:24 a",
            ),
            (
                entry("big", 0o020644, 0),
                1,
                "crw-r--r--              0 2026/11/21 00:53:24 big",
            ),
            (
                entry("blk", 0o060644, 0),
                1,
                "brw-r--r--              0 2026/11/21 00:53:24 blk",
            ),
            (
                entry("h", 0o100644, 123_456_789_012_345),
                1,
                "-rw-r--r-- 123,456,789,012,345 2026/11/21 00:53:24 h",
            ),
            (
                entry("p", 0o010644, 0),
                1,
                "prw-r--r--              0 2026/11/21 00:53:24 p",
            ),
            (
                entry("sock", 0o140755, 0),
                1,
                "srwxr-xr-x              0 2026/11/21 00:53:24 sock",
            ),
            (
                entry("d", 0o047000, 60),
                1,
                "d--S--S--T             60 2026/11/21 00:53:24 d",
            ),
            (
                entry("h", 0o100644, 123_456_789_012_345),
                2,
                "-rw-r--r--        123.46T 2026/11/21 00:53:24 h",
            ),
            (
                entry("s", 0o040755, 320),
                0,
                "drwxr-xr-x         320 2026/11/21 00:53:24 s",
            ),
            (
                Item {
                    mtime: THEN,
                    len_bytes: 2,
                    ..link("l")
                },
                1,
                "lrwxrwxrwx              2 2026/11/21 00:53:24 l -> tgt",
            ),
        ];
        for (item, human, want) in cases {
            assert_eq!(line(&item, human, false), want);
        }
    }

    #[test]
    fn atimes_add_a_column() {
        assert_eq!(
            line(&entry(".", 0o040755, 320), 1, true),
            "drwxr-xr-x            320 2026/11/21 00:53:24                     ."
        );
        assert_eq!(
            line(&entry("a", 0o107777, 2), 1, true),
            "-rwsrwsrwt              2 2026/11/21 00:53:24 2026/11/21 00:53:24 a"
        );
    }

    #[test]
    fn missing_argument_lines_match_rsync() {
        let cases = [
            (
                1,
                false,
                "*missing                                      nope",
            ),
            (
                1,
                true,
                "*missing                                                          nope",
            ),
            (0, false, "*missing                                   nope"),
        ];
        for (human, atimes, want) in cases {
            let mut out = Vec::new();
            put_missing(&mut out, b"nope", ListStyle { human, atimes });
            assert_eq!(String::from_utf8_lossy(&out), want);
        }
    }
}

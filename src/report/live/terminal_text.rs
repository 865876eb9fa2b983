//! Numbers, times and names as the live display shows them, and how much room they take on a terminal.

use crate::report::escape::{self, Charset};
use crate::report::number::put_int;
use unicode_width::UnicodeWidthChar;

/// Returns a size in units of 1000.
pub(super) fn size(bytes: u64) -> String {
    number(bytes, 2)
}

pub(super) fn grouped(count: u64) -> String {
    number(count, 1)
}

fn number(value: u64, level: u8) -> String {
    let mut out = Vec::new();
    put_int(&mut out, i64::try_from(value).unwrap_or(i64::MAX), level);
    String::from_utf8_lossy(&out).into_owned()
}

/// Returns a duration as `1:02:03` or `2:03`.
pub(super) fn clock(secs: u64) -> String {
    match secs / 3600 {
        0 => format!("{}:{:02}", secs / 60, secs % 60),
        hours => format!("{hours}:{:02}:{:02}", secs / 60 % 60, secs % 60),
    }
}

/// Returns the end of a path, escaped, in at most `room` columns.
pub(super) fn ending(path: &[u8], room: usize, charset: Charset) -> String {
    let path = escaped(path, charset);
    if width(&path) <= room {
        return path;
    }
    let kept = room.saturating_sub(3);
    let mut columns = 0;
    let mut start = path.len();
    for (at, char) in path.char_indices().rev() {
        columns += columns_of(char);
        if columns > kept {
            break;
        }
        start = at;
    }
    // A mark whose letter has no room would end up on the dots.
    let is_mark = |char| columns_of(char) == 0;
    format!("...{}", path[start..].trim_start_matches(is_mark))
}

pub(super) fn escaped(text: &[u8], charset: Charset) -> String {
    let mut escaped = Vec::new();
    escape::put(&mut escaped, text, charset);
    String::from_utf8_lossy(&escaped).replace(char::is_control, "?")
}

/// Returns the beginning of a line, in at most `width` columns.
pub(super) fn cut(line: &str, width: usize) -> String {
    let line = line.replace(char::is_control, "?");
    let mut columns = 0;
    let fits = |char: &char| {
        columns += columns_of(*char);
        columns <= width
    };
    line.chars().take_while(fits).collect()
}

/// Returns how many columns a text takes on a terminal. Terminals disagree about sequences that join characters into one
/// picture, so each character counts by itself: such a line is cut too early, never too late.
pub fn width(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

/// Returns how many rows a line takes on a terminal of this width that wraps it.
pub fn rows(line: &str, columns: usize) -> usize {
    let mut rows = 1;
    let mut column = 0;
    for char in line.chars() {
        let wide = columns_of(char);
        if column + wide > columns && column > 0 {
            rows += 1;
            column = 0;
        }
        column += wide;
    }
    rows
}

fn columns_of(char: char) -> usize {
    char.width().unwrap_or(0)
}

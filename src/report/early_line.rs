//! A line for standard output that a run prints before it has a reporter.

use super::escape::{self, Charset};
use super::json;
use crate::options::Output;

/// Appends the line: as text, or as a note under `--json`.
pub fn put(out: &mut Vec<u8>, line: &[u8], output: &Output, charset: Charset) {
    if output.json {
        json::put(out, &json::note(line));
    } else {
        put_text(out, line, charset);
    }
}

/// Appends the line as text, which is what standard error gets.
pub fn put_text(out: &mut Vec<u8>, line: &[u8], charset: Charset) {
    escape::put(out, line, charset);
    out.push(b'\n');
}

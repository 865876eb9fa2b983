//! The messages about rejected bytes of a peer, compared with their golden file.

use super::{decoded, golden, golden_file, greetings, refusals};
use crate::error::Error;
use crate::proto::limits::NAME_MAX_BYTES;
use std::cell::RefCell;
use std::collections::BTreeSet;

thread_local! {
    /// The messages that were made in this thread.
    static MADE: RefCell<BTreeSet<String>> = RefCell::default();
}

/// Records a message, with `N` in place of numbers and `TEXT` in place of a peer's text.
pub fn record(message: &str) {
    const AROUND_TEXT: [(&str, &str); 3] = [
        ("invalid path in a file list: ", "TEXT"),
        ("invalid filter rule: ", "TEXT"),
        ("Unknown command '#", "TEXT'"),
    ];
    let end = AROUND_TEXT
        .iter()
        .find_map(|(words, text)| Some((message.find(words)? + words.len(), *text)));
    let (mut rest, text) = end.map_or((message, ""), |(end, text)| (&message[..end], text));
    let mut masked = String::new();
    while let Some(first) = rest.chars().next() {
        let number = rest.trim_start_matches('-').trim_start_matches("0x");
        let number = number.trim_start_matches(|c: char| {
            c.is_ascii_digit() || rest.starts_with("0x") && c.is_ascii_hexdigit()
        });
        let is_number = number.len() < rest.len()
            && rest[..rest.len() - number.len()].contains(|c: char| c.is_ascii_digit());
        masked.push(if is_number { 'N' } else { first });
        rest = if is_number {
            number
        } else {
            &rest[first.len_utf8()..]
        };
    }
    let long = "a".repeat(NAME_MAX_BYTES);
    let masked = (masked + text).replace(&long, "TEXT");
    MADE.with_borrow_mut(|made| made.extend(masked.lines().map(|line| format!("! {line}"))));
}

/// Records an error and its hint.
pub fn record_error(error: &Error) {
    record(&String::from_utf8_lossy(&error.text()));
}

/// Returns the messages that were made in this thread, below a title.
pub fn section(title: &str) -> String {
    let lines: Vec<String> = MADE.take().into_iter().collect();
    format!("{title}\n\n{}\n", lines.join("\n"))
}

#[test]
fn messages_about_rejected_bytes_are_in_the_golden_file() {
    refusals::ALL.iter().for_each(|test| test());
    greetings::ALL.iter().for_each(|test| test());
    // Each field is missing in a frame that ends early.
    for (_, _, hex) in golden::table() {
        let frame = golden::bytes(&hex);
        for len in 0..frame.len() - 2 {
            let cut = refusals::framed(frame[0], &frame[2..2 + len]);
            decoded(&cut).err().iter().for_each(record_error);
        }
    }
    let title = "# Errors of the protocol between two sparsyncs; N is a number";
    golden_file::compare("protocol", &section(title));
}

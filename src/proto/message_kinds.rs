//! The message kinds: number, name, longest frame.

use super::limits::WHOLE_MAX_BYTES;
use super::limits::{DATA_MAX_BYTES, FRAME_MAX_BYTES, OPENING_MAX_BYTES, REPORT_MAX_BYTES, SHORT_MAX_BYTES};
use super::message::{Class, Message};

pub(super) const SETUP: u8 = 1;
pub(super) const ROOTS: u8 = 2;
pub(super) const DIGESTS: u8 = 3;
pub(super) const DIR: u8 = 4;
pub(super) const MORE: u8 = 5;
pub(super) const DIRS_END: u8 = 6;
pub(super) const WANT: u8 = 7;
pub(super) const DONE: u8 = 8;
pub(super) const PLACED: u8 = 9;
pub(super) const WANTS_END: u8 = 10;
pub(super) const WHOLE: u8 = 11;
pub(super) const BEGIN: u8 = 12;
pub(super) const DATA: u8 = 13;
pub(super) const COPY: u8 = 14;
pub(super) const END: u8 = 15;
pub(super) const UNSENT: u8 = 16;
pub(super) const EVENT: u8 = 17;
pub(super) const GRANT: u8 = 18;
pub(super) const PING: u8 = 19;
pub(super) const FAIL: u8 = 20;
pub(super) const BYE: u8 = 21;
pub(super) const MEET: u8 = 22;
pub(super) const BLOCKED: u8 = 23;
pub(super) const VERDICT: u8 = 24;

/// The properties of a message kind that are known before its body is read.
pub(super) struct Row {
    /// The number on the wire.
    pub number: u8,
    /// The name in error messages.
    pub name: &'static str,
    /// The longest body in bytes.
    pub max_bytes: usize,
}

const fn row(number: u8, name: &'static str, max_bytes: usize) -> Row {
    Row { number, name, max_bytes }
}

/// The bytes of a data frame besides the data: file, lane, digest.
const AROUND_DATA_BYTES: usize = 64;

/// All kinds, by number.
pub(super) const ROWS: [Row; 24] = [
    row(SETUP, "Setup", OPENING_MAX_BYTES),
    row(ROOTS, "Roots", OPENING_MAX_BYTES),
    row(DIGESTS, "Digests", FRAME_MAX_BYTES),
    row(DIR, "Dir", FRAME_MAX_BYTES),
    row(MORE, "More", FRAME_MAX_BYTES),
    row(DIRS_END, "DirsEnd", SHORT_MAX_BYTES),
    row(WANT, "Want", FRAME_MAX_BYTES),
    row(DONE, "Done", SHORT_MAX_BYTES),
    row(PLACED, "Placed", SHORT_MAX_BYTES),
    row(WANTS_END, "WantsEnd", SHORT_MAX_BYTES),
    row(WHOLE, "Whole", WHOLE_MAX_BYTES + AROUND_DATA_BYTES),
    row(BEGIN, "Begin", SHORT_MAX_BYTES),
    row(DATA, "Data", DATA_MAX_BYTES + AROUND_DATA_BYTES),
    row(COPY, "Copy", SHORT_MAX_BYTES),
    row(END, "End", SHORT_MAX_BYTES),
    row(UNSENT, "Unsent", REPORT_MAX_BYTES),
    row(EVENT, "Event", REPORT_MAX_BYTES),
    row(GRANT, "Grant", SHORT_MAX_BYTES),
    row(PING, "Ping", SHORT_MAX_BYTES),
    row(FAIL, "Fail", REPORT_MAX_BYTES),
    row(BYE, "Bye", SHORT_MAX_BYTES),
    row(MEET, "Meet", SHORT_MAX_BYTES),
    row(BLOCKED, "Blocked", SHORT_MAX_BYTES),
    row(VERDICT, "Verdict", REPORT_MAX_BYTES),
];

/// Returns the row of a number; `None` for a kind that does not exist.
pub(super) fn row_of(number: u8) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.number == number)
}

/// Returns the number of a message's kind.
pub(super) fn number_of(message: &Message) -> u8 {
    match message {
        Message::Setup(_) => SETUP,
        Message::Roots(_) => ROOTS,
        Message::Digests(_) => DIGESTS,
        Message::Dir(_) => DIR,
        Message::More { .. } => MORE,
        Message::DirsEnd(_) => DIRS_END,
        Message::Want { .. } => WANT,
        Message::Done(_) => DONE,
        Message::Placed(_) => PLACED,
        Message::WantsEnd(_) => WANTS_END,
        Message::Whole { .. } => WHOLE,
        Message::Begin { .. } => BEGIN,
        Message::Data { .. } => DATA,
        Message::Copy { .. } => COPY,
        Message::End { .. } => END,
        Message::Unsent { .. } => UNSENT,
        Message::Event(_) => EVENT,
        Message::Grant { .. } => GRANT,
        Message::Ping => PING,
        Message::Fail { .. } => FAIL,
        Message::Bye(_) => BYE,
        Message::Meet(_) => MEET,
        Message::Blocked(_) => BLOCKED,
        Message::Verdict { .. } => VERDICT,
    }
}

/// Returns the name of a message's kind, for error messages.
pub fn name_of(message: &Message) -> &'static str {
    row_of(number_of(message)).map_or("?", |row| row.name)
}

/// Returns the window that the whole frame of a message counts against; `None` if it can always be sent.
pub fn class_of(message: &Message) -> Option<Class> {
    match message {
        Message::Digests(_) => Some(Class::Digests),
        Message::Dir(_) | Message::More { .. } | Message::DirsEnd(_) => Some(Class::Dirs),
        Message::Want { .. } | Message::Done(_) | Message::Placed(_) => Some(Class::Wants),
        Message::Event(_) => Some(Class::Events),
        Message::Whole { lane, .. }
        | Message::Begin { lane, .. }
        | Message::Data { lane, .. }
        | Message::Copy { lane, .. }
        | Message::End { lane, .. }
        | Message::Unsent { lane, .. } => Some(Class::of(*lane)),
        // These are few and sent once, or must get through when every window is used up.
        Message::Setup(_) | Message::Roots(_) | Message::WantsEnd(_) | Message::Bye(_) => None,
        Message::Verdict { .. } => None,
        Message::Grant { .. } | Message::Ping | Message::Fail { .. } | Message::Meet(_) | Message::Blocked(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_numbers_are_contiguous_from_1() {
        for (place, row) in ROWS.iter().enumerate() {
            assert_eq!(usize::from(row.number), place + 1, "{}", row.name);
        }
    }
}

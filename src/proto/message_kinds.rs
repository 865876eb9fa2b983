//! The message kinds: number, name, longest frame.

use super::limits::WHOLE_MAX_BYTES;
use super::limits::{
    DATA_MAX_BYTES, FRAME_MAX_BYTES, OPENING_MAX_BYTES, REPORT_MAX_BYTES, SHORT_MAX_BYTES,
};
use super::message::{Class, Message};

/// The properties of a message kind that are known before its body is read.
pub(super) struct Row {
    /// The number on the wire.
    pub number: u8,
    /// The name in error messages.
    pub name: &'static str,
    /// The longest body in bytes.
    pub max_bytes: usize,
}

/// The bytes of a data frame besides the data: file, lane, digest.
const AROUND_DATA_BYTES: usize = 64;

/// Defines the kinds: a constant, its number, the message, and its longest body. The compiler rejects a message without a
/// kind.
macro_rules! kinds {
    ($($kind:ident = $number:literal $message:ident $max_bytes:expr;)*) => {
        $(pub(super) const $kind: u8 = $number;)*

        /// All kinds, by number.
        pub(super) const ROWS: &[Row] =
            &[$(Row { number: $number, name: stringify!($message), max_bytes: $max_bytes },)*];

        /// Returns the number of a message's kind.
        pub(super) fn number_of(message: &Message) -> u8 {
            match message {
                $(Message::$message { .. } => $number,)*
            }
        }
    };
}

kinds! {
    SETUP = 1 Setup OPENING_MAX_BYTES;
    ROOTS = 2 Roots OPENING_MAX_BYTES;
    DIGESTS = 3 Digests FRAME_MAX_BYTES;
    DIR = 4 Dir FRAME_MAX_BYTES;
    MORE = 5 More FRAME_MAX_BYTES;
    DIRS_END = 6 DirsEnd SHORT_MAX_BYTES;
    WANT = 7 Want FRAME_MAX_BYTES;
    DONE = 8 Done SHORT_MAX_BYTES;
    PLACED = 9 Placed SHORT_MAX_BYTES;
    WANTS_END = 10 WantsEnd SHORT_MAX_BYTES;
    WHOLE = 11 Whole WHOLE_MAX_BYTES + AROUND_DATA_BYTES;
    BEGIN = 12 Begin SHORT_MAX_BYTES;
    DATA = 13 Data DATA_MAX_BYTES + AROUND_DATA_BYTES;
    COPY = 14 Copy SHORT_MAX_BYTES;
    END = 15 End SHORT_MAX_BYTES;
    UNSENT = 16 Unsent REPORT_MAX_BYTES;
    EVENT = 17 Event FRAME_MAX_BYTES;
    GRANT = 18 Grant SHORT_MAX_BYTES;
    PING = 19 Ping SHORT_MAX_BYTES;
    FAIL = 20 Fail REPORT_MAX_BYTES;
    BYE = 21 Bye SHORT_MAX_BYTES;
    MEET = 22 Meet SHORT_MAX_BYTES;
    BLOCKED = 23 Blocked SHORT_MAX_BYTES;
    VERDICT = 24 Verdict REPORT_MAX_BYTES;
    WANT_DIGEST = 25 WantDigest SHORT_MAX_BYTES;
    FILE_DIGEST = 26 FileDigest SHORT_MAX_BYTES;
    PLAN = 27 Plan FRAME_MAX_BYTES;
    TOTALS = 28 Totals SHORT_MAX_BYTES;
}

/// Returns the row of a number; `None` for a kind that does not exist.
pub(super) fn row_of(number: u8) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.number == number)
}

/// Returns the name of a message's kind, for error messages.
pub fn name_of(message: &Message) -> &'static str {
    row_of(number_of(message)).map_or("?", |row| row.name)
}

/// Returns the window that the whole frame of a message counts against; `None` if it can always be sent.
pub fn class_of(message: &Message) -> Option<Class> {
    match message {
        Message::Digests(_) => Some(Class::Digests),
        Message::Dir(_) | Message::More { .. } | Message::DirsEnd(_) | Message::Plan(_) => {
            Some(Class::Dirs)
        }
        Message::Want { .. } | Message::WantDigest(_) | Message::Done(_) | Message::Placed(_) => {
            Some(Class::Wants)
        }
        Message::FileDigest { .. } => Some(Class::Requested),
        Message::Event(_) => Some(Class::Events),
        Message::Whole { lane, .. }
        | Message::Begin { lane, .. }
        | Message::Data { lane, .. }
        | Message::Copy { lane, .. }
        | Message::End { lane, .. }
        | Message::Unsent { lane, .. } => Some(Class::for_lane(*lane)),
        // These are few and sent once, or must get through when every window is used up.
        Message::Setup(_) | Message::Roots(_) | Message::WantsEnd(_) | Message::Bye(_) => None,
        Message::Verdict { .. } => None,
        // It is consumed at once, and a sender makes a few in a second.
        Message::Totals(_) => None,
        Message::Grant { .. }
        | Message::Ping
        | Message::Fail { .. }
        | Message::Meet(_)
        | Message::Blocked(_) => None,
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

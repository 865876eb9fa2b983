//! One entry of the option table: names, argument, help, support, and effect.
//!
//! The table is in `flags/`. The parser and the texts of `doc` are made from it. What one option implies for
//! another is in `resolve`.

use super::args::Args;
use crate::error::{Error, Result};

/// Whether an option takes an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arity {
    /// `--delete`
    Switch,
    /// `--suffix=SUFFIX`; holds the placeholder that help shows.
    Value(&'static str),
    /// `--man` or `--man=PAGE`; holds the placeholder.
    Optional(&'static str),
}

/// How this version supports an option in a local copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// Same as rsync.
    Yes,
    /// Supported in copies by remote shell. Has no effect on a local copy, as in rsync.
    OverSsh,
    /// Accepted without effect: for daemons only, or not needed here.
    NoEffect,
    /// Accepted by the parser; the installed rsync does the run. Without one, the run ends with exit code 4 and names the
    /// option.
    NotYet,
    /// Rejected, as by rsync on Linux.
    Refused,
    /// Hands the whole run over to the installed rsync.
    Handover,
}

/// Which side an option concerns if one of the trees is on another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagScope {
    /// Both sides: the option is sent to the server.
    Both,
    /// Only the side that has it on its command line. Includes filter rules: the server receives them in parsed form.
    Here,
}

/// An option's argument as given.
#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    /// The argument; empty for a switch.
    pub value: &'a [u8],
    /// The last argument of the command line that belongs to the option, for messages: `--timeout=x`, or `x`.
    pub word: &'a [u8],
}

/// Records an option in the command line.
pub type Set = fn(&mut Args, &Given<'_>) -> Result<()>;

/// One option.
pub struct Flag {
    /// The long name without dashes; empty if there is only a letter.
    pub long: &'static str,
    /// Other long names with the same meaning.
    pub aliases: &'static [&'static str],
    /// The letter.
    pub short: Option<char>,
    /// Names, without dashes, that revoke it.
    pub negations: &'static [&'static str],
    /// Whether it takes an argument.
    pub arity: Arity,
    /// One line for `--help`.
    pub help: &'static str,
    /// The help line of the first negation; empty if it gets none.
    pub help_off: &'static str,
    /// What the manual adds to the help line; may be empty.
    pub man: &'static str,
    /// Words that a shell proposes for the argument; may be empty.
    pub words: &'static [&'static str],
    /// How far it is supported.
    pub support: Support,
    /// Which side it concerns.
    pub reach: FlagScope,
    /// Records it.
    pub set: Set,
    /// Records one of its negations.
    pub unset: fn(&mut Args),
}

impl Flag {
    /// A switch without names, from which the switches of the table are made.
    pub const SWITCH: Flag = Flag {
        long: "",
        aliases: &[],
        short: None,
        negations: &[],
        arity: Arity::Switch,
        help: "",
        help_off: "",
        man: "",
        words: &[],
        support: Support::Yes,
        reach: FlagScope::Both,
        set: |_, _| Ok(()),
        unset: |_| {},
    };

    /// Returns the option's name in lists: `--delete`, or `-F`.
    #[cfg(test)]
    pub fn shown(&self) -> String {
        match self.short {
            Some(short) if self.long.is_empty() => format!("-{short}"),
            _ => format!("--{}", self.long),
        }
    }
}

/// Whether an option was given or revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By its name or an alias.
    On,
    /// By a negation.
    Off,
}

/// Finds a long name, without dashes.
pub fn by_long(name: &str) -> Option<(&'static Flag, Way)> {
    if name.is_empty() {
        return None;
    }
    super::flags::all().find_map(|flag| {
        if flag.long == name || flag.aliases.contains(&name) {
            Some((flag, Way::On))
        } else if flag.negations.contains(&name) {
            Some((flag, Way::Off))
        } else {
            None
        }
    })
}

/// Finds a letter.
pub fn by_short(letter: char) -> Option<&'static Flag> {
    super::flags::all().find(|flag| flag.short == Some(letter))
}

/// Returns a usage error in rsync's form: `rsync: ` and the sentence.
pub fn refuse(sentence: impl AsRef<[u8]>) -> Error {
    let mut message = b"rsync: ".to_vec();
    message.extend_from_slice(&printable(sentence.as_ref()));
    Error::usage(message)
}

/// Formats bytes as rsync prints them in messages: control bytes and bytes that are not UTF-8 as `\#ooo`.
pub fn printable(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() && letter != '\t' && letter != '\n' {
                let mut buffer = [0; 4];
                letter.encode_utf8(&mut buffer).bytes().for_each(|b| push_octal(&mut out, b));
            } else {
                out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        chunk.invalid().iter().for_each(|&b| push_octal(&mut out, b));
    }
    out
}

fn push_octal(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(format!("\\#{byte:03o}").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_show_what_cannot_be_printed() {
        assert_eq!(printable(b"--\xff\x01a"), b"--\\#377\\#001a");
        assert_eq!(printable("ä".as_bytes()), "ä".as_bytes());
    }

    #[test]
    fn every_name_leads_to_its_flag() {
        for flag in super::super::flags::all() {
            if !flag.long.is_empty() {
                assert!(matches!(by_long(flag.long), Some((found, Way::On)) if std::ptr::eq(found, flag)));
            }
            for name in flag.aliases {
                assert!(matches!(by_long(name), Some((found, Way::On)) if std::ptr::eq(found, flag)), "{name}");
            }
            for name in flag.negations {
                assert!(matches!(by_long(name), Some((found, Way::Off)) if std::ptr::eq(found, flag)), "{name}");
            }
            if let Some(letter) = flag.short {
                assert!(std::ptr::eq(by_short(letter).expect("listed"), flag), "-{letter}");
            }
        }
    }

    #[test]
    fn no_name_is_listed_twice() {
        let mut names: Vec<String> = Vec::new();
        for flag in super::super::flags::all() {
            if !flag.long.is_empty() {
                names.push(flag.long.into());
            }
            names.extend(flag.aliases.iter().chain(flag.negations).map(|name| name.to_string()));
            names.extend(flag.short.map(|letter| format!("-{letter}")));
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

//! One command-line option, said once: names, argument, help, support, and what it sets.
//!
//! The table is in `flags/`; the parser, `--help` and docs/OPTIONS.md are made from it. What one option
//! implies for another is not here but in `resolve`.

use super::args::Args;
use crate::error::{Error, Result};

/// Whether an option takes an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arity {
    /// `--delete`
    Switch,
    /// `--suffix=SUFFIX`; holds the word that help shows.
    Value(&'static str),
}

/// How far this version carries an option out on a local copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// As rsync.
    Yes,
    /// Copies by a remote shell obey it; it changes nothing on a local copy, in rsync either.
    OverSsh,
    /// Accepted; it changes nothing: it is for daemons, or for what is not needed here.
    NoEffect,
    /// Accepted by the parser; the run ends with exit 4 and names it.
    NotYet,
    /// rsync on Linux refuses it, and so does this program.
    Refused,
    /// Hands the whole run to the installed rsync.
    Handover,
}

/// Whom an option concerns when one of the trees is on another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Both sides: it is among the words that the server is told.
    Both,
    /// The side whose command line it stands on. Rules are among these: the server is told them as they were read.
    Here,
}

/// An option's argument as it was given.
#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    /// The argument; empty for a switch.
    pub value: &'a [u8],
    /// The last word of the command line that belongs to it, for messages: `--timeout=x`, or `x`.
    pub word: &'a [u8],
}

/// What an option does to the command line as said.
pub type Set = fn(&mut Args, &Given<'_>) -> Result<()>;

/// One option.
pub struct Flag {
    /// Long name without dashes; empty when there is only a letter.
    pub long: &'static str,
    /// Other long names with the same meaning.
    pub aliases: &'static [&'static str],
    /// The letter.
    pub short: Option<char>,
    /// Names, without dashes, that take it back.
    pub negations: &'static [&'static str],
    /// Whether it takes an argument.
    pub arity: Arity,
    /// One line for `--help`.
    pub help: &'static str,
    /// Whether the first negation gets a help line of its own, and its text.
    pub help_off: &'static str,
    /// What a reader of the manual needs besides the help line; may be empty.
    #[cfg_attr(not(test), allow(dead_code, reason = "docs/OPTIONS.md is written by a test"))]
    pub man: &'static str,
    /// How far it is carried out.
    pub support: Support,
    /// Whom it concerns.
    pub reach: Reach,
    /// Records it.
    pub set: Set,
    /// Records one of its negations.
    pub unset: fn(&mut Args),
}

impl Flag {
    /// A switch without names; every switch of the table starts from it.
    pub const SWITCH: Flag = Flag {
        long: "",
        aliases: &[],
        short: None,
        negations: &[],
        arity: Arity::Switch,
        help: "",
        help_off: "",
        man: "",
        support: Support::Yes,
        reach: Reach::Both,
        set: |_, _| Ok(()),
        unset: |_| {},
    };

    /// How the option is named in lists: `--delete`, or `-F`.
    #[cfg(test)]
    pub fn shown(&self) -> String {
        match self.short {
            Some(short) if self.long.is_empty() => format!("-{short}"),
            _ => format!("--{}", self.long),
        }
    }
}

/// Which way an option was said.
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

/// A usage error in rsync's form: `rsync: ` and the sentence.
pub fn refuse(sentence: impl AsRef<[u8]>) -> Error {
    let mut message = b"rsync: ".to_vec();
    message.extend_from_slice(&printable(sentence.as_ref()));
    Error::usage(message)
}

/// Bytes as rsync prints them in a message: control bytes and bytes that are not UTF-8 as `\#ooo`.
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

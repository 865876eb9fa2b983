//! One entry of the option table: names, argument, help, support, and effect.
//!
//! The table is in `flags/`. The parser and the texts of `doc` are made from it. What one option implies for
//! another is in `resolve`.

use super::args::Args;
use super::value::Given;
use crate::error::Result;

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
    /// Rejected, as by rsync on Linux.
    Refused,
    /// For servers and daemons.
    ServerSide,
}

/// Which side an option concerns if one of the trees is on another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagScope {
    /// Both sides: the option is sent to the server.
    Both,
    /// Only the side that has it on its command line. Includes filter rules: the server receives them in parsed form.
    Local,
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

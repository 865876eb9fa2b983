//! One entry of the option table: names, argument, help, support, and effect.
//!
//! The table is in `flags/`. The parser and the texts of `doc` are made from it. What one option implies for
//! another is in `resolve`.

use super::args::Args;
use super::value::{Given, number};
use crate::error::Result;
use crate::options::RuleArg;

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
    /// Only in a session: a client requests it of its server. It has no effect on a command line.
    InSession,
}

impl Support {
    /// Returns whether help, man pages and completions show such an option.
    pub fn is_for_users(self) -> bool {
        !matches!(self, Support::ServerSide | Support::InSession)
    }
}

/// Whether an option was given or revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polarity {
    /// By its name or an alias.
    On,
    /// By a negation.
    Off,
}

/// Which side an option concerns if one of the trees is on another machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagScope {
    /// Both sides: the option is sent to the server.
    Both,
    /// Only the side that has it on its command line. Includes filter rules: the server receives them in parsed form.
    Local,
}

/// A field of the command line as given.
pub type Field<T> = fn(&mut Args) -> &mut T;

/// What an option records in the command line. A negation has no effect unless described here.
#[derive(Clone, Copy)]
pub enum Effect {
    /// Sets this switch. A negation clears it.
    Switch(Field<bool>),
    /// Sets these switches. A negation clears them.
    Switches(&'static [Field<bool>]),
    /// Sets a switch that has another default in some cases. A negation clears it.
    Choice(Field<Option<bool>>),
    /// Counts how often the option is given. A negation begins again with 0.
    Count(Field<u8>),
    /// Keeps the argument.
    Text(Field<Option<Vec<u8>>>),
    /// Keeps the argument, a number. A negation removes it.
    Number(Field<Option<i32>>),
    /// Adds the argument to the filter rules.
    Rule(fn(Vec<u8>) -> RuleArg),
    /// Calls this function.
    Set(fn(&mut Args)),
    /// Calls the first function. A negation calls the second one.
    Either(fn(&mut Args), fn(&mut Args)),
    /// Calls this function with the argument.
    Argument(fn(&mut Args, &Given<'_>) -> Result<()>),
    /// Calls the first function with the argument. A negation calls the second one.
    Revocable(fn(&mut Args, &Given<'_>) -> Result<()>, fn(&mut Args)),
}

impl Effect {
    /// Records that the option was given, or revoked.
    pub fn record(self, args: &mut Args, polarity: Polarity, given: &Given<'_>) -> Result<()> {
        let on = polarity == Polarity::On;
        match self {
            Effect::Text(_) | Effect::Rule(_) | Effect::Set(_) | Effect::Argument(_) if !on => {}
            Effect::Switch(field) => *field(args) = on,
            Effect::Switches(fields) => {
                for field in fields {
                    *field(args) = on;
                }
            }
            Effect::Choice(field) => *field(args) = Some(on),
            Effect::Count(field) => {
                *field(args) = if on { field(args).saturating_add(1) } else { 0 }
            }
            Effect::Text(field) => *field(args) = Some(given.value.to_vec()),
            Effect::Number(field) => {
                *field(args) = if on { Some(number::int(given)?) } else { None }
            }
            Effect::Rule(rule) => args.select.rules.push(rule(given.value.to_vec())),
            Effect::Set(set) => set(args),
            Effect::Either(set, unset) => {
                if on {
                    set(args)
                } else {
                    unset(args)
                }
            }
            Effect::Argument(set) => return set(args, given),
            Effect::Revocable(set, unset) => {
                if on {
                    return set(args, given);
                } else {
                    unset(args)
                }
            }
        }
        Ok(())
    }
}

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
    /// What it records.
    pub effect: Effect,
}

impl Flag {
    /// Creates a switch that concerns both sides and records nothing. The name is empty if there is only a letter.
    pub const fn switch(long: &'static str, help: &'static str) -> Flag {
        Flag {
            long,
            aliases: &[],
            short: None,
            negations: &[],
            arity: Arity::Switch,
            help,
            help_off: "",
            man: "",
            words: &[],
            support: Support::Yes,
            reach: FlagScope::Both,
            effect: Effect::Set(|_| {}),
        }
    }

    /// Creates an option with an argument. `placeholder` stands for it in help.
    pub const fn value(long: &'static str, placeholder: &'static str, help: &'static str) -> Flag {
        Flag {
            arity: Arity::Value(placeholder),
            ..Flag::switch(long, help)
        }
    }

    /// Creates an option that may have an argument.
    pub const fn optional(
        long: &'static str,
        placeholder: &'static str,
        help: &'static str,
    ) -> Flag {
        Flag {
            arity: Arity::Optional(placeholder),
            ..Flag::switch(long, help)
        }
    }

    /// Sets [`Flag::effect`].
    pub const fn effect(self, effect: Effect) -> Flag {
        Flag { effect, ..self }
    }

    /// Makes it an option for reaching a peer. It has no effect on a local copy, and the peer does not need it.
    pub const fn connection(self) -> Flag {
        self.local().support(Support::OverSsh)
    }

    /// Makes it an option of a server or a daemon.
    pub const fn server_side(self) -> Flag {
        self.local().support(Support::ServerSide)
    }

    /// Makes it concern only this side.
    pub const fn local(self) -> Flag {
        Flag {
            reach: FlagScope::Local,
            ..self
        }
    }

    /// Sets [`Flag::aliases`].
    pub const fn aliases(self, aliases: &'static [&'static str]) -> Flag {
        Flag { aliases, ..self }
    }

    /// Sets [`Flag::short`].
    pub const fn short(self, letter: char) -> Flag {
        Flag {
            short: Some(letter),
            ..self
        }
    }

    /// Sets [`Flag::negations`].
    pub const fn negations(self, negations: &'static [&'static str]) -> Flag {
        Flag { negations, ..self }
    }

    /// Sets [`Flag::help_off`].
    pub const fn help_off(self, help_off: &'static str) -> Flag {
        Flag { help_off, ..self }
    }

    /// Sets [`Flag::man`].
    pub const fn man(self, man: &'static str) -> Flag {
        Flag { man, ..self }
    }

    /// Sets [`Flag::words`].
    pub const fn words(self, words: &'static [&'static str]) -> Flag {
        Flag { words, ..self }
    }

    /// Sets [`Flag::support`].
    pub const fn support(self, support: Support) -> Flag {
        Flag { support, ..self }
    }

    /// Returns the option's name in lists: `--delete`, or `-F`.
    #[cfg(test)]
    pub fn shown(&self) -> String {
        match self.short {
            Some(short) if self.long.is_empty() => format!("-{short}"),
            _ => format!("--{}", self.long),
        }
    }
}

//! The commands and options that completions propose.

use crate::cli::flag::Arity;

/// A command with its options.
pub struct Command {
    /// The words after `sparsync`; empty for a copy.
    pub name: String,
    /// One line.
    pub help: String,
    pub options: Vec<OptionEntry>,
}

impl Command {
    /// Returns the action of a server; `None` for other commands.
    pub fn action(&self) -> Option<&str> {
        self.name.strip_prefix("server ")
    }
}

/// An option.
pub struct OptionEntry {
    /// The long names, without dashes. May be empty if there is a letter.
    pub long: Vec<&'static str>,
    /// The letter.
    pub short: Option<char>,
    /// Whether it takes an argument.
    pub arity: Arity,
    /// What the argument can be.
    pub argument: ArgumentKind,
    /// One statement.
    pub help: String,
}

/// What the argument of an option can be.
pub enum ArgumentKind {
    /// Any text.
    Any,
    /// A path of a file.
    File,
    /// A path of a directory.
    Dir,
    /// A machine.
    Host,
    /// One of these words.
    Words(Vec<String>),
}

/// Returns text in single quotes, for bash and zsh.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn quotes_inside_quotes_are_escaped() {
        assert_eq!(quoted("rsync's"), "'rsync'\\''s'");
    }
}

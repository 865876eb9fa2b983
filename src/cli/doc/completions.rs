//! Completions for shells: the commands, their options, and what an argument can be.

mod bash;
mod command;
mod fish;
mod zsh;

use self::command::{ArgumentKind, Command, OptionEntry};
use super::help_page::HelpPage;
use crate::cli::args::CompletionShell;
use crate::cli::flag::{Arity, Flag};
use crate::cli::{flags, subcommand};

/// Prints the hosts of the ssh configuration, those of known_hosts that are not hashed, and the enrolled ones. A script for
/// a POSIX shell without single quotes, because the scripts put it between them.
const HOSTS: &str = r##"{
    cat ~/.ssh/config ~/.ssh/config.d/* /etc/ssh/ssh_config | {
        set -f
        while read -r word rest; do
            case $word in [Hh]ost) for name in $rest; do echo "$name"; done ;; esac
        done
    }
    cat ~/.ssh/known_hosts /etc/ssh/ssh_known_hosts | while read -r names rest; do
        case $names in "" | "|"* | "@"* | "#"*) continue ;; esac
        IFS=,
        for name in $names; do name=${name#"["} && echo "${name%"]:"*}"; done
        unset IFS
    done
    sparsync enroll --list | while read -r name pin rest; do
        case $pin in SHA256:*) echo "$name" ;; esac
    done
} 2>/dev/null | while read -r name; do
    case $name in *["*?!"]*) ;; *) echo "$name" ;; esac
done | sort -u"##;

/// The beginning of a command that lists names on a host, each with its directory and a `/` after directories. It never
/// asks for a password. After it come the host and a quoted command of the other machine, [`LIST_THERE`] and a pattern.
const LIST: &str = "timeout 5 ssh -oBatchMode=yes -oConnectTimeout=3 --";
const LIST_THERE: &str = "ls -1adLp --";

/// Returns the script that defines the completions in a shell.
pub fn completions(shell: CompletionShell) -> String {
    let script = match shell {
        CompletionShell::Bash => bash::script(&commands()),
        CompletionShell::Zsh => zsh::script(&commands()),
        CompletionShell::Fish => fish::script(&commands()),
    };
    script
        .replace("@HOSTS@", HOSTS)
        .replace("@LIST@", LIST)
        .replace("@LIST_THERE@", LIST_THERE)
}

/// Returns all commands: first the copy, then the subcommands.
fn commands() -> Vec<Command> {
    let copy = flags::all()
        .filter(|flag| flag.support.is_for_users())
        .flat_map(of_flag)
        .collect();
    let copy = Command {
        name: String::new(),
        help: String::new(),
        options: copy,
    };
    let others = subcommand::PAGES.into_iter().map(|(name, text)| {
        let page = HelpPage::parse(text);
        Command {
            name: name.to_owned(),
            help: short(page.summary),
            options: page.options().map(of_entry).collect(),
        }
    });
    std::iter::once(copy).chain(others).collect()
}

/// Returns an option of a copy, and the first of its negations.
fn of_flag(flag: &'static Flag) -> Vec<OptionEntry> {
    let (Arity::Value(placeholder) | Arity::Optional(placeholder)) = flag.arity else {
        return with_negation(flag, ArgumentKind::Any);
    };
    let lower = |word: &&str| {
        if word.bytes().all(|b| b.is_ascii_uppercase()) {
            word.to_lowercase()
        } else {
            (*word).to_owned()
        }
    };
    let words: Vec<_> = flag.words.iter().map(lower).collect();
    with_negation(
        flag,
        if words.is_empty() {
            argument(placeholder)
        } else {
            ArgumentKind::Words(words)
        },
    )
}

fn with_negation(flag: &'static Flag, argument: ArgumentKind) -> Vec<OptionEntry> {
    let names = std::iter::once(flag.long).chain(flag.aliases.iter().copied());
    let long = names.filter(|name| !name.is_empty()).collect();
    let on = OptionEntry {
        long,
        short: flag.short,
        arity: flag.arity,
        argument,
        help: flag.help.to_owned(),
    };
    let off = flag.negations.first().map(|&name| OptionEntry {
        long: vec![name],
        short: None,
        arity: Arity::Switch,
        argument: ArgumentKind::Any,
        help: if flag.help_off.is_empty() {
            format!("turn off --{}", flag.long)
        } else {
            flag.help_off.to_owned()
        },
    });
    std::iter::once(on).chain(off).collect()
}

/// Returns an option of a subcommand: `--rsh=COMMAND, -e`.
fn of_entry((names, help): (&'static str, &str)) -> OptionEntry {
    let mut entry = OptionEntry {
        long: Vec::new(),
        short: None,
        arity: Arity::Switch,
        argument: ArgumentKind::Any,
        help: short(help),
    };
    for name in names.split(", ") {
        match (name.strip_prefix("--"), name.strip_prefix('-')) {
            (Some(long), _) => {
                let (long, value) = long
                    .split_once('=')
                    .map_or((long, None), |(long, value)| (long, Some(value)));
                entry.long.push(long);
                if let Some(value) = value {
                    entry.arity = Arity::Value(value);
                    entry.argument = argument(value);
                }
            }
            (None, Some(letter)) => entry.short = letter.chars().next(),
            (None, None) => {}
        }
    }
    entry
}

/// Returns what a placeholder stands for.
fn argument(placeholder: &str) -> ArgumentKind {
    match placeholder {
        "FILE" => ArgumentKind::File,
        "DIR" => ArgumentKind::Dir,
        "HOST" => ArgumentKind::Host,
        _ => ArgumentKind::Any,
    }
}

/// Returns the first statement of a description.
fn short(help: &str) -> String {
    let end = ["; ", ": ", ". "]
        .iter()
        .filter_map(|mark| help.find(mark))
        .filter(|&at| at > 10)
        .min();
    help[..end.unwrap_or(help.len())]
        .trim_end_matches('.')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{OsStr, OsString};

    #[test]
    fn subcommands_read_the_options_that_are_proposed() {
        for command in commands().into_iter().filter(|command| {
            !["", "apply", "check", "explain", "plan"].contains(&command.name.as_str())
        }) {
            assert!(
                command.name == "server" || command.options.len() >= 3,
                "{}",
                command.name
            );
            let names = command
                .options
                .iter()
                .flat_map(|option| &option.long)
                .map(|name| format!("--{name}"));
            let letters = command
                .options
                .iter()
                .filter_map(|option| option.short)
                .map(|letter| format!("-{letter}"));
            for option in names.chain(letters) {
                let words = ["--sparsync"]
                    .into_iter()
                    .chain(command.name.split(' '))
                    .chain([option.as_str()]);
                let words = words.map(OsString::from).collect::<Vec<_>>();
                let read = subcommand::read(OsStr::new("sparsync"), &words);
                let error = read
                    .expect("it is a subcommand")
                    .err()
                    .map(|error| error.message)
                    .unwrap_or_default();
                let error = String::from_utf8(error).unwrap();
                assert!(
                    !error.contains("unknown option"),
                    "{}: {error}",
                    command.name
                );
            }
        }
    }

    #[test]
    fn a_description_is_one_statement() {
        assert_eq!(short("stop the server; then more"), "stop the server");
        assert_eq!(
            short("with HOST: the remote shell"),
            "with HOST: the remote shell"
        );
        assert_eq!(short("Remove a grant. Sessions end."), "Remove a grant");
    }
}

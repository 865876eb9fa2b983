//! The text of `--help`.

use super::version::version_text;
use crate::cli::flag::{Arity, Flag};
use crate::cli::flags;

/// The width of the column of names.
const NAMES_WIDTH: usize = 24;

/// Returns a short overview of the program. Printed if a command line names nothing to copy.
pub fn overview() -> String {
    OVERVIEW.to_owned()
}

const OVERVIEW: &str = "\
sparsync copies and mirrors trees of files. It accepts rsync's options and is faster.

Copy:
  sparsync -a SRC/ DEST/                  on this machine
  sparsync -a SRC/ [USER@]HOST:DEST/      over ssh; over QUIC or TLS once HOST is enrolled
  sparsync -a [USER@]HOST:SRC/ DEST/      in the other direction
  sparsync -a --delete SRC/ HOST:DEST/    delete what SRC does not have; with -n, only print it
  sparsync -a --ui SRC/ DEST/             show on the terminal what is done, and what is left

Set up the fast route:
  sparsync enroll HOST                    exchange keys with HOST over ssh and start the server there
  sparsync server status                  show the server of this account

Examine:
  sparsync check SRC/ DEST/               compare content and attributes, without copying
  sparsync plan SRC/ DEST/ -o FILE        record what a copy would do; apply FILE: do exactly that
  sparsync explain PATH -- ...            say why a copy transfers, skips, deletes or keeps PATH
  sparsync hash TREE                      write a manifest, which b3sum --check and sparsync check read
  sparsync cache verify TREE              find files that a disk has changed, by digests of --checksum-cache
  sparsync doctor [HOST]                  check this machine, and the ways to HOST
  sparsync bench scan PATH                measure how fast a tree is listed; sync: copied

Help:
  sparsync --help                         all options
  sparsync help COMMAND                   one command: server, enroll, doctor, bench, check, hash, cache ...
";

/// Returns the text that `--help` prints: the overview, the forms of a copy, and every option.
pub fn help_text() -> String {
    let mut out = overview();
    out.push('\n');
    out.push_str(&usage_text());
    out.push_str("\nOptions\n");
    for flag in flags::all().filter(|flag| flag.support.is_for_users()) {
        push(&mut out, &names(flag), flag.help);
        for alias in flag.aliases {
            push(
                &mut out,
                &format!("--{alias}"),
                &format!("same as --{}", flag.long),
            );
        }
        if let [first, others @ ..] = flag.negations
            && !flag.help_off.is_empty()
        {
            push(&mut out, &format!("--{first}"), flag.help_off);
            for other in others {
                push(
                    &mut out,
                    &format!("--{other}"),
                    &format!("same as --{first}"),
                );
            }
        }
        if flag.long == "outbuf" {
            push(
                &mut out,
                "--no-OPTION",
                "disable OPTION, also if another option implies it (--no-D)",
            );
        }
    }
    out.push_str("\nUse \"rsync --daemon --help\" for the options of a daemon.\n");
    out.push_str("Use \"sparsync --man | man -l -\" for the manual.\n\n");
    out.push_str(&version_text());
    out
}

/// The operands of a copy.
pub const OPERANDS: [&str; 7] = [
    "SRC [SRC]... DEST",
    "SRC [SRC]... [USER@]HOST:DEST",
    "SRC [SRC]... [USER@]HOST::DEST",
    "SRC [SRC]... rsync://[USER@]HOST[:PORT]/DEST",
    "[USER@]HOST:SRC [DEST]",
    "[USER@]HOST::SRC [DEST]",
    "rsync://[USER@]HOST[:PORT]/SRC [DEST]",
];

/// Returns the ways to call the program.
pub fn usage_text() -> String {
    let mut out = String::new();
    for (at, operands) in OPERANDS.into_iter().enumerate() {
        let before = if at == 0 { "Usage:" } else { "  or  " };
        out.push_str(&format!("{before} sparsync [OPTION]... {operands}\n"));
    }
    out.push_str("The other machine needs sparsync, rsync, or an rsync daemon.\n");
    out
}

fn push(out: &mut String, names: &str, help: &str) {
    out.push_str(&format!("{names:<NAMES_WIDTH$} {help}\n"));
}

/// Returns the names of an option: `--suffix=SUFFIX`, `--verbose, -v`.
pub fn names(flag: &Flag) -> String {
    let value = match flag.arity {
        Arity::Switch => String::new(),
        Arity::Value(word) => format!("={word}"),
        Arity::Optional(word) => format!("[={word}]"),
    };
    let mut names = Vec::new();
    if !flag.long.is_empty() {
        names.push(format!("--{}{value}", flag.long));
    }
    names.extend(flag.short.map(|letter| format!("-{letter}")));
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_lists_options_that_other_programs_search_for() {
        let help = help_text();
        for word in [
            "--old-args",
            "no-motd",
            "contimeout",
            "--protect-args",
            "--secluded-args",
            "--iconv",
            "--mkpath",
        ] {
            assert!(help.contains(word), "{word}");
        }
        assert!(help.contains("\n--no-whole-file          copy only"));
        assert!(help.contains("\n-P                       same as --partial --progress\n"));
    }

    #[test]
    fn overview_is_short_and_lists_the_subcommands() {
        assert!(overview().lines().count() <= 25);
        assert!(
            ["enroll HOST", "server status", "HOST:DEST", "--help"]
                .iter()
                .all(|word| overview().contains(word))
        );
        let help = help_text();
        assert!(help.find("enroll HOST") < help.find("Options\n"));
    }

    #[test]
    fn help_line_of_each_option_is_short() {
        for flag in flags::all() {
            assert!(!flag.help.is_empty(), "{}", flag.shown());
        }
        assert!(help_text().lines().all(|line| line.len() <= 110));
        assert!(flags::all().all(|flag| names(flag).len() <= NAMES_WIDTH));
    }
}

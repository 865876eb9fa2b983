//! `refuse options`: the options that a client must not send.

use crate::cli::flag::{Flag, Polarity};
use crate::cli::flags;
use crate::cli::parse::GivenOption;
use crate::filter::name_matches;
use std::collections::BTreeSet;

/// The options that wildcards do not match.
const NOT_WILD: [&str; 16] = [
    "server",
    "rsh",
    "e",
    "out-format",
    "log-format",
    "sender",
    "dry-run",
    "n",
    "seclude-args",
    "protect-args",
    "s",
    "from0",
    "0",
    "iconv",
    "no-iconv",
    "checksum-seed",
];
/// What `-a` stands for.
const ARCHIVE: [&str; 8] = ["r", "d", "l", "p", "t", "g", "o", "D"];
/// What `-P` stands for.
const PROGRESS: [&str; 2] = ["partial", "progress"];
/// Refused in any case.
const NEVER: [&str; 3] = ["log-file", "log-file-format", "insecure-links"];

/// The refused options, by all of their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedOptions {
    names: BTreeSet<String>,
    sends: bool,
}

/// The names of one meaning of an option: given, or revoked.
fn names_of(flag: &Flag, is_on: bool) -> Vec<String> {
    if !is_on {
        return flag
            .negations
            .iter()
            .map(|name| (*name).to_owned())
            .collect();
    }
    let long = (!flag.long.is_empty()).then(|| flag.long.to_owned());
    let aliases = flag.aliases.iter().map(|name| (*name).to_owned());
    long.into_iter()
        .chain(aliases)
        .chain(flag.short.map(String::from))
        .collect()
}

impl RefusedOptions {
    /// Parses the list. `sends`: this end sends. `has_charset`: the module has a character set for `--iconv`.
    pub fn parse(list: &[u8], sends: bool, has_charset: bool) -> RefusedOptions {
        let mut refused = RefusedOptions {
            names: BTreeSet::new(),
            sends,
        };
        refused.put("copy-devices", true);
        refused.put("write-devices", true);
        if !has_charset {
            refused.put("iconv", true);
        }
        for element in list
            .split(u8::is_ascii_whitespace)
            .filter(|element| !element.is_empty())
        {
            let (element, is_refused) = match element.strip_prefix(b"!") {
                Some(rest) => (rest, false),
                None => (element, true),
            };
            let name = String::from_utf8_lossy(element).into_owned();
            if name == "a" || name == "archive" {
                for implied in ARCHIVE {
                    refused.put(implied, is_refused);
                }
            }
            if element.iter().any(|byte| b"*?[".contains(byte)) {
                refused.put_wild(element, is_refused);
            } else {
                refused.put(&name, is_refused);
            }
        }
        for name in NEVER {
            refused.put(name, true);
        }
        refused
    }

    /// Refuses or accepts an option by one of its names.
    fn put(&mut self, name: &str, is_refused: bool) {
        for flag in flags::all() {
            for names in [names_of(flag, true), names_of(flag, false)] {
                if names.iter().any(|known| known == name) {
                    self.put_all(names, is_refused);
                }
            }
        }
    }

    fn put_wild(&mut self, pattern: &[u8], is_refused: bool) {
        for flag in flags::all() {
            for names in [names_of(flag, true), names_of(flag, false)] {
                let is_vital = names
                    .iter()
                    .any(|name| NOT_WILD.contains(&name.as_str()) || name == "write-devices");
                if !is_vital
                    && names
                        .iter()
                        .any(|name| name_matches(pattern, name.as_bytes()))
                {
                    self.put_all(names, is_refused);
                }
            }
        }
    }

    fn put_all(&mut self, names: Vec<String>, is_refused: bool) {
        for name in names {
            if is_refused {
                self.names.insert(name)
            } else {
                self.names.remove(&name)
            };
        }
    }

    /// Returns the first refused option of a command line, as rsync shows it.
    pub fn first_of(&self, given: &[GivenOption]) -> Option<String> {
        given.iter().find_map(|option| {
            let is_on = !matches!(option.polarity, Polarity::Off);
            let names = names_of(option.flag, is_on);
            let named = names
                .iter()
                .find(|name| self.names.contains(*name))
                .map(|_| shown(option, &names));
            named.or_else(|| self.implied_by(option, is_on))
        })
    }

    /// Returns the first refused option of those that another one stands for.
    fn first_implied(&self, implied: &[&str]) -> Option<String> {
        let name = implied.iter().find(|name| self.names.contains(**name))?;
        let is_it = |flag: &&Flag| names_of(flag, true).iter().any(|known| known == name);
        let flag = flags::all().find(is_it)?;
        Some(long_and_short(&names_of(flag, true)))
    }

    /// Returns the refused option that another one implies.
    fn implied_by(&self, option: &GivenOption, is_on: bool) -> Option<String> {
        let refuses = |name: &str| self.names.contains(name).then(|| format!("--{name}"));
        if !is_on {
            return None;
        }
        match option.flag.long {
            "archive" => self.first_implied(&ARCHIVE),
            "" if option.flag.short == Some('P') => self.first_implied(&PROGRESS),
            "delete" if self.names.contains("delete-during") => refuses("delete-before"),
            "remove-source-files" if self.sends => refuses("delete"),
            long if long.starts_with("delete-") => refuses("delete"),
            "clone-dest" => refuses("copy-dest"),
            "compress-choice" if option.value.eq_ignore_ascii_case(b"none") => None,
            "compress-choice" | "new-compress" | "old-compress" => {
                refuses("compress").map(|name| format!("{name} (-z)"))
            }
            _ => None,
        }
    }
}

/// Shows an option as rsync does: `--checksum (-c)`, but another name for it as the client has spelled it.
fn shown(option: &GivenOption, names: &[String]) -> String {
    match &option.spelling {
        Some(name) if *name != option.flag.long => format!("--{name}"),
        Some(_) | None => long_and_short(names),
    }
}

fn long_and_short(names: &[String]) -> String {
    let long = names.iter().find(|name| name.len() > 1);
    let short = names.iter().find(|name| name.len() == 1);
    match (long, short) {
        (Some(long), Some(short)) => format!("--{long} (-{short})"),
        (Some(long), None) => format!("--{long}"),
        (None, short) => format!("-{}", short.map_or("", String::as_str)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Args;
    use crate::cli::parse::walk;

    fn refused(list: &str, line: &str, sends: bool) -> Option<String> {
        let words: Vec<_> = line.split(' ').map(Into::into).collect();
        RefusedOptions::parse(list.as_bytes(), sends, false)
            .first_of(&walk(&words, &[], Args::default()).given)
    }

    #[test]
    fn refused_options_are_named_as_in_rsync() {
        let usual = "--server --sender -logDtpre.iLsfxCIvu";
        for (list, line, name) in [
            ("c delete", "-ogDtprce.iLs", Some("--checksum (-c)")),
            ("c delete", usual, None),
            ("delete", "-r --delete-during", Some("--delete")),
            ("delete-*", "-r --delete", Some("--delete-before")),
            ("delete-during", "-r --del", Some("--del")),
            ("compress-choice", "-r --zc=lz4", Some("--zc")),
            ("no-whole-file", "-r --no-W", Some("--no-W")),
            ("whole-file", "-r -W", Some("--whole-file (-W)")),
            ("times", "--archive", Some("--times (-t)")),
            ("times", "-a", Some("--times (-t)")),
            ("compress", "-a", None),
            ("partial", "-rP", Some("--partial")),
            ("progress", "-rP", Some("--progress")),
            (
                "delete-* !delete-during",
                "-r --delete-after",
                Some("--delete-after"),
            ),
            ("delete-* !delete-during", "-r --delete-during", None),
            ("* !a !v", usual, None),
            ("* !a !v", "-vlogDtprze.iLs", Some("--compress (-z)")),
            ("* !a !v !compress*", "-vlogDtprze.iLs", None),
            ("*", usual, Some("--links (-l)")),
            ("a", "-re.iLs", Some("--recursive (-r)")),
            ("no-iconv", "-r --no-iconv", Some("--no-iconv")),
            ("", "-r --copy-devices", Some("--copy-devices")),
            ("!copy-devices", "-r --copy-devices", None),
            ("", "-r --iconv=utf8", Some("--iconv")),
            ("", "-r --log-file=x", Some("--log-file")),
            ("!log-file", "-r --log-file=x", Some("--log-file")),
            ("", "-r --insecure-links", Some("--insecure-links")),
            (
                "compress",
                "-r --compress-choice=lz4",
                Some("--compress (-z)"),
            ),
            ("devices", usual, None),
            ("*", "-n", None),
            ("dry-run", "-n", Some("--dry-run (-n)")),
        ] {
            assert_eq!(refused(list, line, true).as_deref(), name, "{list}: {line}");
        }
        assert_eq!(
            refused("delete", "-r --remove-source-files", true).as_deref(),
            Some("--delete")
        );
        assert_eq!(refused("delete", "-r --remove-source-files", false), None);
    }
}

//! The rules that a daemon has for a module: what they exclude does not exist for its clients.

use super::chain::Chain;
use super::compiled_rules::{ChainOptions, clean, join};
use super::parse::{Complaint, parse_filter};
use super::rule::{Parsed, Rule, Side, Sides, Verdict};

/// The rules of a module. They apply to every path in it, whatever a client transfers.
#[derive(Debug)]
pub struct ModuleRules {
    chain: Chain,
    /// The absolute path of the module, without a trailing slash.
    dir: Vec<u8>,
}

impl ModuleRules {
    /// Returns the rules of the module at `dir`; `None` if there are none. As in rsync, which reads them as a receiver,
    /// rules for the sender alone have no effect, those for the receiver are like others, and per-directory files are not
    /// read.
    pub fn new(parsed: Vec<Parsed>, dir: &[u8]) -> Option<ModuleRules> {
        let applied = |parsed: Parsed| match parsed {
            Parsed::Rule(rule) if rule.sides == Sides::Sender => None,
            Parsed::Rule(rule) => Some(Parsed::Rule(Rule {
                sides: Sides::Unsaid,
                ..rule
            })),
            Parsed::Cvs(_) | Parsed::Clear => Some(parsed),
            Parsed::Merge(_) | Parsed::Nothing | Parsed::TooLong(_) => None,
        };
        let parsed = parsed.into_iter().filter_map(applied);
        let dir = clean(dir);
        let chain = Chain::new(
            parsed,
            ChainOptions {
                root_abs: dir.clone(),
                module_abs: dir.clone(),
                ..ChainOptions::default()
            },
        );
        if chain.is_empty() {
            return None;
        }
        Some(ModuleRules { chain, dir })
    }

    /// Returns whether the rules exclude an absolute path, or a directory that leads to it. A path outside of the module
    /// is not excluded.
    pub fn exclude(&self, path: &[u8], is_dir: bool) -> bool {
        let path = clean(path);
        let Some(inner) = path
            .strip_prefix(&self.dir[..])
            .and_then(|rest| rest.strip_prefix(b"/"))
        else {
            return false;
        };
        let excludes = |path: &[u8], is_dir: bool| {
            self.chain.verdict(Side::Sender, path, is_dir) != Verdict::Include
        };
        let leads = inner
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .map(|(at, _)| &inner[..at]);
        leads.into_iter().any(|dir| excludes(dir, true)) || excludes(inner, is_dir)
    }

    /// As [`exclude`](Self::exclude), for a path in a directory.
    pub(super) fn exclude_in(&self, dir: &[u8], path: &[u8], is_dir: bool) -> bool {
        self.exclude(&join(dir, path), is_dir)
    }
}

/// Splits the rules of a parameter, which are separated by blanks: `- *.bak + /x`. With `has_names`, they are complete
/// filter rules, otherwise patterns with an optional `-` or `+` before them. The text from an invalid rule on is one rule,
/// because rsync's message contains all of it.
pub fn split_rules(text: &[u8], has_names: bool) -> Vec<Vec<u8>> {
    let mut rules: Vec<Vec<u8>> = Vec::new();
    let mut lacks_more = false;
    let mut rest = text.trim_ascii_start();
    while !rest.is_empty() {
        let len = rest
            .iter()
            .position(u8::is_ascii_whitespace)
            .unwrap_or(rest.len());
        let (word, after) = rest.split_at(len);
        match rules.last_mut() {
            Some(rule) if lacks_more => {
                rule.push(b' ');
                rule.extend_from_slice(word);
                lacks_more = false;
            }
            _ => {
                let complaint = match parse_filter(word) {
                    Err(bad) if has_names => Some(bad.complaint),
                    Ok(_) | Err(_) => None,
                };
                lacks_more = match complaint {
                    Some(Complaint::UnexpectedEnd) => true,
                    Some(_) => {
                        rules.push(rest.to_vec());
                        break;
                    }
                    None => !has_names && matches!(word, b"-" | b"+"),
                };
                rules.push(word.to_vec());
            }
        }
        rest = after.trim_ascii_start();
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::super::parse_exclude;
    use super::*;

    fn rules(lines: &[&str], dir: &str) -> Option<ModuleRules> {
        ModuleRules::new(
            lines
                .iter()
                .map(|line| parse_filter(line.as_bytes()).unwrap())
                .collect(),
            dir.as_bytes(),
        )
    }

    #[test]
    fn paths_below_excluded_directories_are_excluded() {
        let found = rules(
            &["+ /keep.bak", "- *.bak", "- secret/", "- /top"],
            "/mod/./",
        )
        .unwrap();
        for (path, is_dir, expected) in [
            ("/mod/a", false, false),
            ("/mod/keep.bak", false, false),
            ("/mod/d/keep.bak", false, true),
            ("/mod/secret", true, true),
            ("/mod/secret", false, false),
            ("/mod/secret/x/y", false, true),
            ("/mod/d//./secret/x", false, true),
            ("/mod/d/../secret/x", false, true),
            ("/mod/top", false, true),
            ("/mod/d/top", false, false),
            ("/mod", true, false),
            ("/module/top", false, false),
            ("/other/x.bak", false, false),
        ] {
            assert_eq!(found.exclude(path.as_bytes(), is_dir), expected, "{path}");
        }
        let found = rules(&["- top"], "/").unwrap();
        assert!(found.exclude(b"/top/x", false) && !found.exclude(b"/x", false));
        assert!(rules(&[], "/").is_none() && rules(&["hide x", ": .rules"], "/").is_none());
    }

    #[test]
    fn rules_of_a_parameter_are_split_at_blanks() {
        for (text, has_names, expected) in [
            ("- *.bak  - /secret", true, &["- *.bak", "- /secret"][..]),
            (
                "exclude *.bak, merge,w /x + y",
                true,
                &["exclude *.bak,", "merge,w /x", "+ y"],
            ),
            ("-_x ! -C +", true, &["-_x", "!", "-C", "+"]),
            ("- secret + b *.bak", false, &["- secret", "+ b", "*.bak"]),
            ("- a bogus  x y", true, &["- a", "bogus  x y"]),
            ("! b", false, &["!", "b"]),
            ("*.bak /x", false, &["*.bak", "/x"]),
            ("", false, &[]),
        ] {
            let split: Vec<_> = split_rules(text.as_bytes(), has_names)
                .into_iter()
                .map(|rule| String::from_utf8(rule).unwrap())
                .collect();
            assert_eq!(split, expected, "{text}");
        }
        assert!(
            split_rules(b"! b", false)
                .iter()
                .all(|rule| parse_exclude(rule).is_ok())
        );
    }
}

//! Says where a filter rule comes from.

use crate::cmd::input_files::InputFiles;
use crate::filter::{self, FoundRule, Parsed, Rule, RulePlace, Side};
use crate::options::{Options, RuleArg};
use std::sync::Arc;

/// The rules of the run, with their options and files.
pub struct RuleTexts<'a> {
    pub rules: &'a InputFiles,
    pub options: &'a Options,
}

impl RuleTexts<'_> {
    /// Returns how a rule is named: its text, and its option, or its file and line.
    pub fn name(&self, side: Side, found: &FoundRule) -> Vec<u8> {
        match &found.place {
            RulePlace::Dir { file, line } => [format!("line {line} of ").as_bytes(), file].concat(),
            RulePlace::Cvs => [&quoted(&found.pattern)[..], b" of -C"].concat(),
            RulePlace::Run => match self.origin(side, found) {
                Some(origin) => [&quoted(&found.pattern)[..], b" (", &origin, b")"].concat(),
                None => quoted(&found.pattern),
            },
        }
    }

    /// Returns the option that a rule of the command line comes from, or its file and line.
    fn origin(&self, side: Side, found: &FoundRule) -> Option<Vec<u8>> {
        let parsed = &self.rules.parsed;
        let cleared = parsed
            .iter()
            .rposition(|parsed| matches!(parsed, Parsed::Clear))
            .map_or(0, |at| at + 1);
        // Of two rules that are the same, the first one decides.
        let is_it = |rule: &Rule| {
            rule.include == found.include
                && rule.absolute == found.absolute
                && rule.negate == found.negate
                && rule.perishable == found.perishable
                && !rule.xattr
                && rule.pattern[..] == found.pattern[..]
                && rule.sides.cover(side, self.options.delete.excluded)
        };
        let (at, rule) = (cleared..parsed.len()).find_map(|at| match &parsed[at] {
            Parsed::Rule(rule) if is_it(rule) => Some((at, rule)),
            _ => None,
        })?;
        let whole = rule.pattern.whole();
        let file = self
            .rules
            .files
            .iter()
            .find(|file| Arc::ptr_eq(&file.text, whole));
        if let Some(file) = file {
            let line = filter::line_of_pattern(&rule.pattern, self.options.select.from0);
            return Some([format!("line {line} of ").as_bytes(), &file.name].concat());
        }
        if self.options.select.cvs_exclude && at >= parsed.len() - self.cvs_len() {
            return Some(b"-C".to_vec());
        }
        let args = &self.options.select.rules;
        args.iter().find_map(|arg| {
            let (option, text, parsed) = match arg {
                RuleArg::Filter(text) => (&b"--filter="[..], text, filter::parse_filter(text)),
                RuleArg::Exclude(text) => (&b"--exclude="[..], text, filter::parse_exclude(text)),
                RuleArg::Include(text) => (&b"--include="[..], text, filter::parse_include(text)),
                RuleArg::Implied(text) => (&b"implied: "[..], text, filter::parse_filter(text)),
                RuleArg::ExcludeFrom(_) | RuleArg::IncludeFrom(_) => return None,
            };
            match parsed {
                Ok(Parsed::Rule(given)) if given == *rule => Some([option, text].concat()),
                _ => None,
            }
        })
    }

    /// Returns how many rules the option `-C` has added at the end.
    fn cvs_len(&self) -> usize {
        let InputFiles {
            cvs_home, cvs_env, ..
        } = self.rules;
        filter::cvs_rules(cvs_home.as_deref(), cvs_env.as_deref()).len()
    }
}

fn quoted(pattern: &[u8]) -> Vec<u8> {
    [b"`", pattern, b"`"].concat()
}

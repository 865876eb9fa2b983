//! The verdicts of a chain: whether an entry or an extended attribute takes part, and which rule decides that.

use super::Chain;
use crate::filter::compiled_rules::{Compiled, OF_CVS, RuleBlock};
use crate::filter::pattern::CandidatePath;
use crate::filter::rule::{FoundRule, RulePlace, Side, Verdict};

/// The rule that decided a verdict, for `--debug=FILTER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    pub include: bool,
    /// The pattern as rsync prints it, e.g. `*.o [global CVS]`; hidden if it comes from a file.
    pub text: Vec<u8>,
}

impl Chain {
    /// Returns whether an entry takes part.
    ///
    /// The root of the transfer always does.
    pub fn verdict(&self, side: Side, path: &[u8], is_dir: bool) -> Verdict {
        if self.module_excludes(path, is_dir) {
            return Verdict::Exclude { perishable: false };
        }
        verdict_of(self.first(side, path, is_dir, false))
    }

    /// Returns the verdict inside a directory that is being deleted, where perishable rules are ignored.
    pub fn verdict_in_deleted_dir(&self, side: Side, path: &[u8], is_dir: bool) -> Verdict {
        if self.module_excludes(path, is_dir) {
            return Verdict::Exclude { perishable: false };
        }
        verdict_of(self.first(side, path, is_dir, true))
    }

    /// Returns whether the rules of the module exclude an entry, which then takes no part on either side.
    pub fn module_excludes(&self, path: &[u8], is_dir: bool) -> bool {
        let options = &self.0.options;
        options
            .module
            .as_ref()
            .is_some_and(|module| module.exclude_in(&options.root_abs, path, is_dir))
    }

    /// Returns the rule that decides [`Chain::verdict`], if one matches; for `--debug=FILTER`.
    pub fn first_match(&self, side: Side, path: &[u8], is_dir: bool) -> Option<Match> {
        self.first(side, path, is_dir, false).map(|(block, at)| {
            let found = &block.rules[at];
            let shown: &[u8] = if found.from_file {
                b"<rule from a file read earlier>"
            } else {
                &found.text
            };
            Match {
                include: found.include,
                text: [shown, &block.source].concat(),
            }
        })
    }

    /// Returns the rule that decides about an entry, and where it was read; `None`: no rule does, or one of a module,
    /// which is a secret. `in_deleted_dir`: see [`Chain::verdict_in_deleted_dir`].
    pub fn deciding_rule(
        &self,
        side: Side,
        path: &[u8],
        is_dir: bool,
        in_deleted_dir: bool,
    ) -> Option<FoundRule> {
        if self.module_excludes(path, is_dir) {
            return None;
        }
        let (block, at) = self.first(side, path, is_dir, in_deleted_dir)?;
        let found = &block.rules[at];
        let place = match &block.file {
            Some(file) => RulePlace::Dir {
                file: file.to_vec(),
                line: block.lines[at],
            },
            None if *block.source == *OF_CVS => RulePlace::Cvs,
            None => RulePlace::Run,
        };
        let pattern = match place {
            RulePlace::Dir { .. } => Vec::new(),
            RulePlace::Run | RulePlace::Cvs => found.text.to_vec(),
        };
        Some(FoundRule {
            include: found.include,
            absolute: found.absolute,
            negate: found.negate,
            perishable: found.perishable,
            pattern,
            place,
        })
    }

    /// Returns whether an entry takes part. With `prints_rules` (`--debug=FILTER`), adds a note about the rule that
    /// matched.
    pub fn includes(
        &self,
        prints_rules: bool,
        side: Side,
        path: &[u8],
        is_dir: bool,
        notes: &mut Vec<Vec<u8>>,
    ) -> bool {
        if prints_rules && let Some(found) = self.first_match(side, path, is_dir) {
            let words: &[u8] = match (side, found.include) {
                (Side::Sender, true) => b"[sender] showing ",
                (Side::Sender, false) => b"[sender] hiding ",
                (Side::Receiver, true) => b"[generator] risking ",
                (Side::Receiver, false) => b"[generator] protecting ",
            };
            let what: &[u8] = if is_dir { b"directory " } else { b"file " };
            notes.push([words, what, path, b" because of pattern ", &found.text].concat());
        }
        self.verdict(side, path, is_dir) == Verdict::Include
    }

    /// Returns the first rule that matches: its block, and its index there.
    fn first(
        &self,
        side: Side,
        path: &[u8],
        is_dir: bool,
        in_deleted_dir: bool,
    ) -> Option<(&RuleBlock, usize)> {
        let rules = &self.0.rules;
        if rules.is_empty() || path.is_empty() {
            return None;
        }
        let options = &self.0.options;
        let subject = CandidatePath::new(path, is_dir, options.seen(&options.root_abs));
        let applies = |rule: &Compiled| {
            rule.covers(side)
                && !rule.xattr
                && !(in_deleted_dir && rule.perishable)
                && rule.matches(&subject)
        };
        rules.iter().find_map(|block| {
            let at = block.rules.iter().position(applies)?;
            Some((&**block, at))
        })
    }

    /// Returns whether an extended attribute takes part; `None` if no rule is about attributes, so that the default of
    /// `--xattrs` applies.
    pub fn xattr_verdict(&self, side: Side, name: &[u8]) -> Option<bool> {
        if !self.0.has_xattr {
            return None;
        }
        let subject = CandidatePath::new(name, false, b"");
        let rules = self.0.rules.iter().flat_map(|block| &block.rules);
        let found = rules
            .filter(|found| found.xattr && found.covers(side))
            .find(|found| found.matches(&subject));
        Some(found.is_none_or(|found| found.include))
    }
}

fn verdict_of(found: Option<(&RuleBlock, usize)>) -> Verdict {
    match found.map(|(block, at)| &block.rules[at]) {
        Some(found) if !found.include => Verdict::Exclude {
            perishable: found.perishable,
        },
        Some(_) | None => Verdict::Include,
    }
}

//! Include, exclude, protect and hide: which entries take part, on which side, and by which rule.
//!
//! This module is pure and reads no files. The caller passes the text of rules and merge files, and [`Chain::verdict`]
//! returns their effect on one path. Paths are bytes relative to the root of the transfer, joined by `/`, without a
//! slash at either end. The root itself is empty.
//!
//! [`parse_filter`] and its siblings turn text into [`Parsed`]. The caller replaces every [`Parsed::Merge`] that is not
//! per-directory with the rules that [`parse_merge`] reads from its file. [`Chain::new`] takes the resulting list, and
//! [`Chain::enter`] follows the walk from directory to directory.
//!
//! The behaviour is that of rsync 3.5.0, as described in FILTER RULES in its manual. Where the manual is silent, the
//! program decides; the tests in this folder record those cases.

mod chain;
mod compiled_rules;
mod module_rules;
mod parse;
mod pattern;
mod rule;
mod run_rules;

pub use chain::Chain;
#[cfg(test)]
use compiled_rules::GROUP_DEPTH_MAX;
pub use compiled_rules::{ChainOptions, MERGE_DEPTH_MAX, too_deep};
pub use module_rules::{ModuleRules, split_rules};
pub use parse::{
    BadRule, cvs_globals, cvs_rules, cvs_too_long, line_of_pattern, parse_exclude, parse_filter,
    parse_from, parse_include, parse_merge,
};
pub use pattern::{class_len, has_wildcard, name_matches};
pub use rule::{
    Cvs, FoundRule, Merge, MergeFormat, Parsed, Rule, RulePlace, Side, Sides, Text, Verdict,
};
pub use run_rules::Rules;

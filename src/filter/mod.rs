//! Include, exclude, protect and hide: which entries take part, on which side, and who says so.
//!
//! Pure: no file is read here. The caller hands in the text of rules and of merge files and is
//! told, by [`Chain::verdict`], what they mean for one path. Paths are bytes relative to the root
//! of the transfer, joined by `/`, with no slash at either end; the root itself is empty.
//!
//! The way through: [`parse_filter`] and its sisters turn text into [`Parsed`]; the caller replaces
//! every [`Parsed::Merge`] that is not per-directory by what [`parse_merge`] makes of its file;
//! [`Chain::new`] takes the list; [`Chain::enter`] follows the walk from directory to directory.
//! Behaviour is that of rsync 3.5.0 as its manual tells it in FILTER RULES, and where that is
//! silent, as the program does it; the tests of this folder hold the cases.

mod build;
mod parse;
mod pattern;
mod rule;
mod set;

// The whole interface; a name without a user yet is no mistake.
#[allow(unused_imports)]
pub use build::{ChainOptions, FilterError, ReadMerge};
#[allow(unused_imports)]
pub use parse::{BadRule, Complaint, cvs_rules, parse_exclude, parse_filter, parse_from, parse_include, parse_merge};
pub use pattern::{has_wildcard, name_matches};
#[allow(unused_imports)]
pub use rule::{Cvs, Merge, MergeFormat, Parsed, Rule, Side, Sides, Verdict};
#[allow(unused_imports)]
pub use set::{Chain, Match, Rules};

//! The table of options, one file per policy.

use super::flag::Flag;

pub mod check;
pub mod connect;
pub mod delete;
pub mod delta;
pub mod output;
pub mod own;
pub mod place;
pub mod preserve;
pub mod select;

/// The options by subject, in the order of `--help`.
pub static GROUPS: [(&str, &[Flag]); 9] = [
    ("Output", output::FLAGS),
    ("Selection of entries", select::FLAGS),
    ("Comparison", check::FLAGS),
    ("Attributes", preserve::FLAGS),
    ("Deletion", delete::FLAGS),
    ("Writing files", place::FLAGS),
    ("Deltas, alternate destinations and compression", delta::FLAGS),
    ("Connections and limits", connect::FLAGS),
    ("Options that rsync does not have", own::FLAGS),
];

/// Every option, in the order of `--help`.
pub fn all() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().flat_map(|(_, flags)| flags.iter())
}

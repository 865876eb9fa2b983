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

/// Every option, in the order of `--help`.
pub fn all() -> impl Iterator<Item = &'static Flag> {
    [
        output::FLAGS,
        select::FLAGS,
        check::FLAGS,
        preserve::FLAGS,
        delete::FLAGS,
        place::FLAGS,
        delta::FLAGS,
        connect::FLAGS,
        own::FLAGS,
    ]
    .into_iter()
    .flatten()
}

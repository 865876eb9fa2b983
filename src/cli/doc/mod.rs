//! Texts made from the table of options: help, version, man pages, shell completions, docs/OPTIONS.md.

mod completions;
mod help;
mod help_page;
mod man;
#[cfg(test)]
mod markdown;
mod version;

pub use completions::completions;
pub use help::{help_text, overview};
pub use man::man_page;
pub use version::{rsync_version_json, version_json, version_text};

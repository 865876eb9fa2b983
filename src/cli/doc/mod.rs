//! Texts made from the table of options: help, version, man pages, shell completions, docs/OPTIONS.md.

mod completions;
mod help;
mod help_page;
mod man;
#[cfg(test)]
mod markdown;
mod version;

pub use completions::{Shell, completions};
pub use help::{help_text, overview};
pub use man::{ManPage, man_page};
pub use version::{rsync_version_json, version_json, version_text};

/// The release of rsync whose command line and behavior this program matches.
pub const RSYNC_VERSION: &str = "3.5.0";
/// The protocol version of that release.
pub const RSYNC_PROTOCOL: u32 = 32;

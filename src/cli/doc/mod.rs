//! The table written out: help, version, docs/OPTIONS.md.

mod help;
#[cfg(test)]
mod markdown;
mod version;

pub use help::{help_text, overview};
pub use version::{version_json, version_text};

/// The release of rsync whose command line and behaviour this program has.
pub const RSYNC_VERSION: &str = "3.5.0";
/// The protocol of that release.
pub const RSYNC_PROTOCOL: u32 = 32;

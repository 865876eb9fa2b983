//! The configuration of an rsync daemon, and the decisions that follow from it: access, authentication, refused options.
//!
//! Pure: the caller reads files, looks up names, and runs programs.

pub mod access;
pub mod auth;
pub mod config;
pub mod module_path;
pub mod params;
pub mod refuse;

/// Splits a list at blanks and commas. A list that begins with a comma is split only at commas, so that its elements may
/// contain blanks.
pub fn list_elements(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let only_commas = text.trim_ascii_start().starts_with(b",");
    let is_end = move |byte: &u8| *byte == b',' || !only_commas && byte.is_ascii_whitespace();
    text.split(is_end)
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

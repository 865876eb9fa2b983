//! Environment variables that apply where the command line gives no value.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Looks up an environment variable.
pub type Vars<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The environment variables, read by type.
#[derive(Clone, Copy)]
pub(super) struct Environment<'a>(pub(super) Vars<'a>);

impl Environment<'_> {
    /// Returns the bytes of a variable; `None` if it is not set.
    pub(super) fn text(self, name: &str) -> Option<Vec<u8>> {
        (self.0)(name).map(OsString::into_vec)
    }

    /// Returns the number in a variable; 0 if it is not set or not a number.
    pub(super) fn number(self, name: &str) -> i64 {
        (self.0)(name)
            .and_then(|value| value.to_str().and_then(|text| text.trim().parse().ok()))
            .unwrap_or(0)
    }
}

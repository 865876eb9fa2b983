//! What variables of the environment say where the command line says nothing.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// How a variable of the environment is read.
pub type Vars<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The variables, by the kind of value that they hold.
#[derive(Clone, Copy)]
pub(super) struct Environment<'a>(pub(super) Vars<'a>);

impl Environment<'_> {
    /// A variable's bytes; `None`: it is not set.
    pub(super) fn text(self, name: &str) -> Option<Vec<u8>> {
        (self.0)(name).map(OsString::into_vec)
    }

    /// The number that a variable holds; 0 where it holds none.
    pub(super) fn number(self, name: &str) -> i64 {
        (self.0)(name).and_then(|value| value.to_str().and_then(|text| text.trim().parse().ok())).unwrap_or(0)
    }
}

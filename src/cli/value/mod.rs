//! Parsers of option arguments: sizes, numbers, modes, owners, times, names.
//!
//! Each parses bytes into a value, or returns rsync's error message. None depends on other options.

pub mod chmod;
pub mod ids;
pub mod names;
pub mod number;
pub mod shell;
pub mod size;
pub mod stop;
pub mod words;

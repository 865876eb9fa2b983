//! The grammars of option arguments: sizes, numbers, modes, owners, times, words.
//!
//! Each reads bytes and gives a value or the words of rsync's refusal; none looks at other options.

pub mod chmod;
pub mod ids;
pub mod names;
pub mod number;
pub mod shell;
pub mod size;
pub mod stop;
pub mod words;

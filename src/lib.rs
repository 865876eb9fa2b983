//! The library behind the program `sparsync`. The page below is docs/ARCHITECTURE.md.
//!
#![doc = include_str!("../docs/ARCHITECTURE.md")]
// Unit tests build their scratch trees with std; see clippy.toml.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod exit;

mod error;
mod path;
mod zone;

pub mod options;

pub mod flist;

mod digest;
mod filter;

mod delta;
mod plan;

pub mod report;

mod proto;
#[cfg(fuzzing)]
#[doc(hidden)]
pub use proto::fuzzing;

mod cli;
mod fs;
mod work;

mod checksum_cache;

pub mod env;

mod trust;

mod transport;

mod walk;

mod apply;

mod local;

mod session;

mod native;

mod rsync;

pub mod cmd;

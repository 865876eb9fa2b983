//! sparsync.
pub mod exit;

mod error;
mod path;

pub mod options;

pub mod flist;

mod digest;
mod filter;
mod plan;

pub mod report;

mod cli;
mod fs;
mod work;

pub mod env;

mod role;

pub mod cmd;

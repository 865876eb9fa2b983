//! The only code that accesses files: system calls, and operations built on them.

#[cfg(debug_assertions)]
mod hooks;
pub mod sandbox;
pub mod sys;

pub mod trusted_path;

pub mod acl;
pub mod charset;
pub mod compare;
pub mod copy;
pub mod errno;
pub mod fake_super;
pub mod glob;
pub mod ids;
pub mod probe;
pub mod read;
pub mod root;
pub mod source_reader;
pub mod write;
pub mod xattr;

//! The file list: what is known of the entries of one directory.

pub mod entry;
pub mod join;
pub mod order;

pub use entry::{DirList, Entry, Extra, Inode, Kind, Time, Xattr, Xattrs};

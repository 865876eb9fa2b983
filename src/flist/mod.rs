//! The file list: the entries of one directory and their attributes.

pub mod abbreviated;
pub mod entry;
pub mod join;
pub mod order;

pub use entry::{DirList, Entry, Extra, Inode, Kind, Time, Xattr, Xattrs};

//! The file list: the entries of one directory and their attributes.

pub mod abbreviated;
pub mod entry;
pub mod join;
pub mod order;

pub use entry::{DirId, DirList, Entry, Extra, FileId, Inode, Kind, Time, Xattr, Xattrs};

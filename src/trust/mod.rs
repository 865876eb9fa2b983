//! Identity and permissions of peers: keys, known hosts, grants. Does not open connections.

pub mod pin;

pub mod place;

pub mod remarks;

pub mod files;

pub mod moment;

pub mod identity;

pub mod peers;

pub mod logins;

pub mod grants;

pub mod introduction;

pub mod tls;

pub use pin::Pin;

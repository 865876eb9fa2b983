//! Identity and permissions of peers: keys, known hosts, grants. Does not open connections.

pub mod pin;

pub mod paths;

pub mod toml_edit;

pub mod files;

pub mod timestamp;

pub mod identity;

pub mod peers;

pub mod logins;

pub mod notices;

pub mod grants;

pub mod enroll_reply;

pub mod tls;

pub use pin::Pin;

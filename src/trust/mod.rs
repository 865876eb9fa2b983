//! Who a peer is and what it may do: keys, known hosts, grants. Nothing is dialled or served here.

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

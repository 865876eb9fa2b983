//! The roles of a run: sender, receiver and generator, and the parts that they are made of.

pub mod scan;

pub mod terms;

pub mod apply;

pub mod generator;

pub mod source;

pub mod destination;

pub mod receiving;

pub mod local;

pub mod window;

pub mod line;

pub mod seen;

pub mod survey;

pub mod sight;

pub mod ahead;

pub mod request;

pub mod codec;

pub mod opening;

pub mod sender;

pub mod receiver;

pub mod silence;

pub mod session;

#[cfg(test)]
mod tests;

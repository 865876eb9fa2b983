//! Batch files: the options that they record, how they are written, and how they are played.

pub mod player;
pub mod recorded_options;
pub mod recorder;

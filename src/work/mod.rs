//! Threads, queues and rate limits, independent of files and syncing.

pub mod clock;
pub mod latch;
pub mod on_drop;
pub mod order;
pub mod ordered_pool;
pub mod parallel;
pub mod queue;
pub mod thread;
pub mod throttle;

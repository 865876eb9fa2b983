//! Fails a test that hangs.

use std::sync::mpsc;
use std::time::Duration;

/// The time limit of a session. Only one that hangs takes so long: a session over a link that buffers one byte takes
/// seconds, or more than a minute on a machine with ten times as many threads as processors.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Runs a test on a thread of its own, and fails if it hangs.
pub fn in_time(test: impl FnOnce() + Send + 'static) {
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        test();
        tx.send(())
    });
    rx.recv_timeout(LIMIT).expect("it ends");
}

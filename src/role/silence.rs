//! Whoever watches the progress of a copy over a network hears when nothing goes to and fro.

use crate::proto::limits::DATA_MAX_BYTES;
use crate::work::clock::Since;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// After so long it is told: longer than a lost datagram, or a move to another address, takes.
const TOLD_AFTER: Duration = Duration::from_secs(5);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(250);

/// After how long a silence is told of a copy that is held to a rate: between two pieces nothing goes.
pub fn told_after(bytes_per_sec: Option<u64>) -> Duration {
    let piece_secs = bytes_per_sec.map_or(0, |rate| DATA_MAX_BYTES as u64 / rate);
    TOLD_AFTER + Duration::from_secs(piece_secs)
}

/// Calls `tell` once each time that no byte was said or heard for so long, until whoever could say that it is `over` is gone.
pub fn watch(traffic: &[AtomicU64; 2], long: Duration, over: Receiver<()>, tell: impl Fn()) {
    let bytes = || [0, 1].map(|way: usize| traffic[way].load(Ordering::Relaxed));
    let (mut last, mut since, mut is_told) = (bytes(), Since::now(), false);
    while over.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        let now = bytes();
        if now != last {
            (last, since, is_told) = (now, Since::now(), false);
        } else if !is_told && since.elapsed() >= long {
            is_told = true;
            tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_pause_of_a_slow_copy_is_no_silence() {
        assert_eq!([None, Some(10 << 20)].map(told_after), [TOLD_AFTER; 2]);
        assert!(told_after(Some(1024)) > TOLD_AFTER + Duration::from_secs(DATA_MAX_BYTES as u64 / 1025));
    }

    #[test]
    fn each_silence_is_told_once() {
        let traffic = [0, 1].map(AtomicU64::new);
        let (going, over) = channel();
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            let traffic = &traffic;
            scope.spawn(move || watch(traffic, Duration::ZERO, over, || tell.send(()).unwrap()));
            for way in [0, 1] {
                told.recv().unwrap();
                assert!(told.try_recv().is_err(), "it lasts");
                traffic[way].fetch_add(1, Ordering::Relaxed);
            }
            told.recv().unwrap();
            drop(going);
        });
        assert!(told.try_recv().is_err());
    }
}

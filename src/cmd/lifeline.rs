//! A remote shell that is held while the session it brought about takes place elsewhere: by it each end learns that the
//! other one is gone.

use crate::transport::Link;
use crate::transport::net::HangUp;
use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A peer that is not heard for so long after the remote shell has ended is gone, too. More than a client takes to find
/// another way: [`crate::transport::net::limits::QUIET`].
const UNHEARD: Duration = Duration::from_secs(10);

/// A remote shell's link, held until this is dropped: the other end sees that.
pub struct Lifeline {
    state: Arc<State>,
    /// The other end reads its end when this is gone.
    _writer: Box<dyn Write + Send>,
}

#[derive(Default)]
struct State {
    /// It ended before there was a peer to guard.
    cut: Arc<AtomicBool>,
    peer: Mutex<Option<HangUp>>,
}

impl Lifeline {
    /// Holds a link of which nothing more is expected than its end.
    pub fn hold(link: Link) -> Lifeline {
        let Link { mut reader, writer, .. } = link;
        let state = Arc::new(State::default());
        let seen = state.clone();
        std::thread::spawn(move || {
            wait_for_end(&mut *reader);
            seen.end();
        });
        Lifeline { state, _writer: writer }
    }

    /// Set when it ends before [`Lifeline::guard`], and never after that.
    pub fn cut(&self) -> Arc<AtomicBool> {
        self.state.cut.clone()
    }

    /// From now on its end means to look whether this peer is still heard, as QUIC may find a way where the shell's
    /// connection is lost. False: it has ended already.
    pub fn guard(&self, peer: HangUp) -> bool {
        let mut guarded = self.state.peer.lock().unwrap_or_else(PoisonError::into_inner);
        let is_there = !self.state.cut.load(Ordering::Relaxed);
        *guarded = Some(peer).filter(|_| is_there);
        is_there
    }
}

impl State {
    fn end(&self) {
        let guarded = self.peer.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(peer) = guarded.clone() else {
            return self.cut.store(true, Ordering::Relaxed);
        };
        drop(guarded);
        while let Some(before) = peer.heard() {
            std::thread::sleep(UNHEARD);
            if peer.heard() == Some(before) {
                return peer.now("the remote shell has ended, and nothing is heard any more");
            }
        }
    }
}

fn wait_for_end(reader: &mut dyn Read) {
    loop {
        match reader.read(&mut [0; 4096]) {
            Ok(0) => return,
            // Nothing that is said here means anything, and silence is no trouble.
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::pipe;

    #[test]
    fn it_is_cut_when_the_other_end_is_gone_and_not_by_words() {
        let (mut near, far) = pipe::pair(64);
        let lifeline = Lifeline::hold(far);
        near.writer.write_all(b"hello").unwrap();
        assert!(!lifeline.cut().load(Ordering::Relaxed));
        drop(near);
        while !lifeline.cut().load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_other_end_sees_that_it_is_let_go() {
        let (mut near, far) = pipe::pair(64);
        drop(Lifeline::hold(far));
        assert_eq!(near.reader.read(&mut [0]).unwrap(), 0);
    }
}

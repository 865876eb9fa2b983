//! Holds the remote shell that started a session which now uses another connection. Through the shell each end learns
//! that the other one is gone.

use crate::transport::Link;
use crate::transport::net::HangUp;
use parking_lot::Mutex;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A peer that sends nothing for this long after the remote shell has ended is gone as well. Longer than a client needs
/// to move to another path: [`crate::transport::net::limits::QUIET`].
const UNHEARD: Duration = Duration::from_secs(10);

/// The link of a remote shell, held until this is dropped. The other end sees the drop as the end of its input.
pub struct ShellKeepalive {
    state: Arc<KeepaliveState>,
    /// The other end reads the end of its input when this is dropped.
    _writer: Box<dyn Write + Send>,
}

#[derive(Default)]
struct KeepaliveState {
    /// The shell ended before there was a peer to guard.
    cut: Arc<AtomicBool>,
    peer: Mutex<Option<HangUp>>,
}

impl ShellKeepalive {
    /// Holds a link on which nothing more is expected but its end.
    pub fn hold(link: Link) -> ShellKeepalive {
        let Link {
            mut reader, writer, ..
        } = link;
        let state = Arc::new(KeepaliveState::default());
        let seen = state.clone();
        std::thread::spawn(move || {
            wait_for_end(&mut *reader);
            seen.end();
        });
        ShellKeepalive {
            state,
            _writer: writer,
        }
    }

    /// Returns a flag that is set if the shell ends before [`ShellKeepalive::guard`] is called, and never later.
    pub fn cut(&self) -> Arc<AtomicBool> {
        self.state.cut.clone()
    }

    /// From now on, the end of the shell starts a check whether this peer still sends anything: QUIC may find another
    /// path after the shell's connection is lost. Returns `false` if the shell has ended already.
    pub fn guard(&self, peer: HangUp) -> bool {
        let mut guarded = self.state.peer.lock();
        let is_present = !self.state.cut.load(Ordering::Relaxed);
        *guarded = if is_present { Some(peer) } else { None };
        is_present
    }
}

impl KeepaliveState {
    fn end(&self) {
        let guarded = self.peer.lock();
        let Some(peer) = guarded.clone() else {
            return self.cut.store(true, Ordering::Relaxed);
        };
        drop(guarded);
        while let Some(before) = peer.received_datagrams() {
            std::thread::sleep(UNHEARD);
            if peer.received_datagrams() == Some(before) {
                return peer.now("the remote shell has ended and the client is silent");
            }
        }
    }
}

fn wait_for_end(reader: &mut dyn Read) {
    loop {
        match reader.read(&mut [0; 4096]) {
            Ok(0) => return,
            // Bytes on this link have no meaning, and a pause is not an error.
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
    fn lifeline_is_cut_by_a_closed_peer_but_not_by_data() {
        let (mut near, far) = pipe::pair(64);
        let keepalive = ShellKeepalive::hold(far);
        near.writer.write_all(b"hello").unwrap();
        assert!(!keepalive.cut().load(Ordering::Relaxed));
        drop(near);
        while !keepalive.cut().load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn dropping_the_lifeline_closes_it_for_the_peer() {
        let (mut near, far) = pipe::pair(64);
        drop(ShellKeepalive::hold(far));
        assert_eq!(near.reader.read(&mut [0]).unwrap(), 0);
    }
}

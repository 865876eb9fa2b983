//! Writes the output buffer of a connection: gathers what is sent, and sends keepalives.

use super::profile::Wait;
use super::{Connection, ConnectionState, WireOutput};
use crate::error::Error;
use crate::exit::Exit;
use crate::fs::sys::{self, WorkObserver};
use crate::transport::link::Parting;
use crate::work::clock::Since;
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How much memory the buffer keeps.
const KEPT_BYTES: usize = 2 << 20;
/// How long after a write the writer gathers messages before the next write.
const GATHERING: Duration = Duration::from_micros(300);

impl<O: WireOutput> Connection<O> {
    /// Writes what is sent until [`Connection::end`] or an error. An error begins `parting`, which ends the wait for answers.
    /// Sends a keepalive after `quiet_for` without anything else if this process has worked meanwhile.
    pub fn write(
        &self,
        mut writer: Box<dyn Write + Send>,
        quiet_for: Option<Duration>,
        parting: &Parting,
    ) {
        let mut out = Vec::new();
        loop {
            let mut state = self.state.lock();
            loop {
                let ConnectionState {
                    output,
                    buffer,
                    ending,
                    ..
                } = &mut *state;
                // Nothing follows the last message.
                if !*ending {
                    output.windows(buffer);
                }
                if !state.buffer.is_empty() || state.ending {
                    break;
                }
                // More messages are likely, and waking this thread for the first of them would cost more than writing it.
                let rest = GATHERING.saturating_sub(state.last_write.elapsed());
                if !rest.is_zero() && state.shut.is_none() {
                    self.to_write.wait_for(&mut state, rest);
                    continue;
                }
                state.writer_sleeps = true;
                let adopted_secs =
                    Some(self.adopted_secs.load(Ordering::Relaxed)).filter(|&secs| secs > 0);
                let adopted = adopted_secs.map(|secs| Duration::from_secs(secs.into()) / 3);
                match quiet_for.into_iter().chain(adopted).min() {
                    None => self.to_write.wait(&mut state),
                    Some(quiet_for) => {
                        self.to_write.wait_for(&mut state, quiet_for);
                        let is_quiet =
                            state.buffer.is_empty() && state.last_write.elapsed() >= quiet_for;
                        // Two idle ends must not keep each other alive.
                        if is_quiet && sys::has_worked(WorkObserver::Writer) {
                            let ConnectionState { output, buffer, .. } = &mut *state;
                            output.keepalive(buffer);
                        }
                    }
                }
                state.writer_sleeps = false;
            }
            // Right after a write more messages are likely, so a burst is sent in few writes. A message after a pause
            // is sent at once.
            loop {
                let rest = GATHERING.saturating_sub(state.last_write.elapsed());
                let is_enough =
                    state.buffer.len() >= O::GATHERED_BYTES || state.ending || state.shut.is_some();
                if is_enough || rest.is_zero() {
                    break;
                }
                self.to_write.wait_for(&mut state, rest);
            }
            let over = state.buffer.is_empty();
            std::mem::swap(&mut state.buffer, &mut out);
            let as_it_is = std::mem::take(&mut state.as_it_is);
            drop(state);
            if over {
                return;
            }
            self.room.notify_all();
            let waits = Since::now();
            let written = self
                .write_out(&mut *writer, &out, &as_it_is)
                .and_then(|()| writer.flush());
            self.note_wait(Wait::Writing, waits);
            if let Err(error) = written {
                let is_hang_up = matches!(
                    error.kind(),
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                );
                let message =
                    format!("sparsync: connection unexpectedly closed (writing: {error})");
                let error = Error::new(Exit::Stream, message);
                let mut state = self.state.lock();
                state.has_stopped_reading = true;
                state.write_error = Some(error.clone());
                state.has_hung_up = is_hang_up;
                drop(state);
                self.shut(error);
                return parting.begin();
            }
            self.traffic
                .sent
                .fetch_add(out.len() as u64, Ordering::Relaxed);
            out.clear();
            out.shrink_to(KEPT_BYTES);
            let mut state = self.state.lock();
            state.last_write = Since::now();
            if state.buffer.is_empty() {
                // Senders that are slower than the link need only one buffer.
                std::mem::swap(&mut state.buffer, &mut out);
            }
        }
    }

    /// Writes `out`. The ranges in `as_it_is` are not worth compressing.
    fn write_out(
        &self,
        writer: &mut dyn Write,
        out: &[u8],
        as_it_is: &[Range<usize>],
    ) -> std::io::Result<()> {
        let mut at = 0;
        for range in as_it_is {
            writer.write_all(&out[at..range.start])?;
            self.as_it_is.store(true, Ordering::Relaxed);
            let written = writer.write_all(&out[range.clone()]);
            self.as_it_is.store(false, Ordering::Relaxed);
            written?;
            at = range.end;
        }
        writer.write_all(&out[at..])
    }
}

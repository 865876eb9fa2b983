//! Plugs our congestion control into quinn: passes quinn's events and times to [`super::congestion`].

use super::congestion::Control;
use quinn::congestion::{Controller, ControllerFactory};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Congestion control by the delivery rate of a path.
pub struct ByRate;

impl ControllerFactory for ByRate {
    fn build(self: Arc<ByRate>, now: Instant, mtu_bytes: u16) -> Box<dyn Controller> {
        Box::new(Path { control: Control::new(mtu_bytes.into()), began: now, ends: Arc::default() })
    }
}

/// Lets the imminent close of a connection be sent. Otherwise quinn holds it back behind a full window, and once closed
/// it processes no acknowledgements that would open the window.
pub fn allow_close(connection: &quinn::Connection) {
    if let Ok(path) = connection.congestion_state().into_any().downcast::<Path>() {
        path.ends.store(true, Ordering::Relaxed);
    }
}

/// A path, and when it began.
#[derive(Clone)]
struct Path {
    control: Control,
    began: Instant,
    /// Only the close of the connection is still sent.
    ends: Arc<AtomicBool>,
}

/// Room for any datagram.
const WIDE_BYTES: u64 = 1 << 40;

impl Path {
    fn moment(&self, when: Instant) -> Duration {
        when.saturating_duration_since(self.began)
    }
}

impl Controller for Path {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last: u64) {
        self.control.sent(self.moment(now), bytes);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, _limited: bool, _rtt: &quinn_proto::RttEstimator) {
        self.control.acknowledged(self.moment(now), self.moment(sent), bytes);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, limited: bool, _largest: Option<u64>) {
        self.control.all_acknowledged(self.moment(now), in_flight, limited);
    }

    fn on_congestion_event(&mut self, _now: Instant, _sent: Instant, persists: bool, lost_bytes: u64) {
        self.control.lost(lost_bytes, persists);
    }

    fn on_mtu_update(&mut self, mtu_bytes: u16) {
        self.control.resize(mtu_bytes.into());
    }

    fn window(&self) -> u64 {
        if self.ends.load(Ordering::Relaxed) { WIDE_BYTES } else { self.control.window_bytes() }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.control.initial_bytes()
    }

    fn into_any(self: Box<Path>) -> Box<dyn Any> {
        self
    }
}

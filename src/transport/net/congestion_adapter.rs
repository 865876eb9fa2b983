//! Plugs our congestion control into quinn: passes quinn's events and times to [`super::congestion`].

use super::congestion::CongestionControl;
use quinn::congestion::{Controller, ControllerFactory};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Congestion control by the delivery rate of a path.
pub struct ByRate;

impl ControllerFactory for ByRate {
    fn build(self: Arc<ByRate>, now: Instant, mtu_bytes: u16) -> Box<dyn Controller> {
        let mtu_bytes = mtu_bytes.into();
        Box::new(Path {
            control: CongestionControl::new(mtu_bytes),
            began: now,
            mtu_bytes,
            allowance: Arc::default(),
        })
    }
}

/// Lets the imminent close of a connection be sent. Otherwise quinn holds it back behind a full window, and once closed
/// it processes no acknowledgements that would open the window.
pub fn allow_close(connection: &quinn::Connection) {
    if let Some(path) = path_of(connection) {
        path.allowance.ends.store(true, Ordering::Relaxed);
    }
}

/// Lets a few datagrams pass if the window is full of lost ones.
///
/// Losses are only detected once something else is acknowledged. Without this, a full window would stay silent until
/// QUIC retransmits, which it does ever more rarely.
pub fn allow_more(connection: &quinn::Connection) {
    if let Some(Path {
        mtu_bytes,
        allowance,
        ..
    }) = path_of(connection).as_deref()
    {
        let floor_bytes = allowance.out_bytes.load(Ordering::Relaxed) + DATAGRAMS * mtu_bytes;
        allowance.floor_bytes.store(floor_bytes, Ordering::Relaxed);
    }
}

/// How many datagrams may pass then: enough for a partly filled one and at least one full one.
const DATAGRAMS: u64 = 3;

fn path_of(connection: &quinn::Connection) -> Option<Box<Path>> {
    connection.congestion_state().into_any().downcast().ok()
}

/// A path, and when it began.
#[derive(Clone)]
struct Path {
    control: CongestionControl,
    began: Instant,
    mtu_bytes: u64,
    allowance: Arc<Allowance>,
}

/// What may be sent regardless of the window.
#[derive(Default)]
struct Allowance {
    /// Only the close of the connection is still sent.
    ends: AtomicBool,
    /// Bytes in flight.
    out_bytes: AtomicU64,
    /// This many bytes may be in flight; 0 once something was acknowledged after [`allow_more`].
    floor_bytes: AtomicU64,
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
        self.allowance.out_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.control.sent(self.moment(now), bytes);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        _limited: bool,
        _rtt: &quinn_proto::RttEstimator,
    ) {
        self.allowance.floor_bytes.store(0, Ordering::Relaxed);
        self.control
            .acknowledged(self.moment(now), self.moment(sent), bytes);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, limited: bool, _largest: Option<u64>) {
        self.allowance.out_bytes.store(in_flight, Ordering::Relaxed);
        self.control
            .all_acknowledged(self.moment(now), in_flight, limited);
    }

    fn on_congestion_event(
        &mut self,
        _now: Instant,
        _sent: Instant,
        persists: bool,
        lost_bytes: u64,
    ) {
        self.control.lost(lost_bytes, persists);
    }

    fn on_mtu_update(&mut self, mtu_bytes: u16) {
        self.mtu_bytes = mtu_bytes.into();
        self.control.resize(self.mtu_bytes);
    }

    fn window(&self) -> u64 {
        let floor_bytes = self.allowance.floor_bytes.load(Ordering::Relaxed);
        if self.allowance.ends.load(Ordering::Relaxed) {
            WIDE_BYTES
        } else {
            self.control.window_bytes().max(floor_bytes)
        }
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

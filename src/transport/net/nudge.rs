//! Lets datagrams pass a congestion window that is full of lost ones.

use super::congestion_adapter;
use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Lets a few datagrams pass when the window is full of lost ones.
///
/// Losses are only detected once something else is acknowledged. Without this, a full window would stay silent until
/// QUIC retransmits, which it does ever more rarely.
#[derive(Clone, Default)]
pub struct Nudge(Arc<MigrationShared>);

#[derive(Default)]
struct MigrationShared {
    /// This many bytes may be in flight regardless of the window; 0 once something was acknowledged after the last
    /// nudge.
    floor_bytes: AtomicU64,
    /// Bytes in flight.
    out_bytes: AtomicU64,
    mtu_bytes: AtomicU64,
}

/// How many datagrams each nudge lets pass: enough for a partly filled one and at least one full one.
const DATAGRAMS: u64 = 3;

impl Nudge {
    /// Lets the next datagrams pass.
    pub fn allow_more(&self) {
        let more = DATAGRAMS * self.0.mtu_bytes.load(Ordering::Relaxed);
        self.0.floor_bytes.store(self.0.out_bytes.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }
}

impl ControllerFactory for Nudge {
    fn build(self: Arc<Nudge>, now: Instant, mtu_bytes: u16) -> Box<dyn Controller> {
        self.0.mtu_bytes.store(mtu_bytes.into(), Ordering::Relaxed);
        let inner = Arc::new(congestion_adapter::ByRate).build(now, mtu_bytes);
        Box::new(Nudged { inner, shared: self.0.clone() })
    }
}

/// Our congestion control, with the extra allowance of a nudge.
struct Nudged {
    inner: Box<dyn Controller>,
    shared: Arc<MigrationShared>,
}

impl Controller for Nudged {
    fn on_sent(&mut self, now: Instant, bytes: u64, last: u64) {
        self.shared.out_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.inner.on_sent(now, bytes, last);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, limited: bool, rtt: &quinn_proto::RttEstimator) {
        self.shared.floor_bytes.store(0, Ordering::Relaxed);
        self.inner.on_ack(now, sent, bytes, limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, limited: bool, largest: Option<u64>) {
        self.shared.out_bytes.store(in_flight, Ordering::Relaxed);
        self.inner.on_end_acks(now, in_flight, limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persists: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, persists, lost_bytes);
    }

    fn on_mtu_update(&mut self, mtu_bytes: u16) {
        self.shared.mtu_bytes.store(mtu_bytes.into(), Ordering::Relaxed);
        self.inner.on_mtu_update(mtu_bytes);
    }

    fn window(&self) -> u64 {
        self.inner.window().max(self.shared.floor_bytes.load(Ordering::Relaxed))
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Nudged { inner: self.inner.clone_box(), shared: self.shared.clone() })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Nudged>) -> Box<dyn Any> {
        self.inner.into_any()
    }
}

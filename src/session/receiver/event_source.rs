//! The events that a server has sent to its client, which receives.

use crate::report::event::Event;

/// The events that a server has sent to its client, in either protocol.
pub trait EventSource: Sync {
    /// Waits for an event. Returns `false` if there will be no more.
    fn await_event(&self) -> bool;
    /// Reports those that have arrived.
    fn relay_events(&self, report: &mut dyn FnMut(&Event));
}

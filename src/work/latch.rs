//! A latch: threads wait until it is opened, once and for good.

use parking_lot::{Condvar, Mutex};

/// A latch that is closed until [`Gate::open`] is called.
#[derive(Debug, Default)]
pub struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    /// Opens the gate: all present and future waits return.
    pub fn open(&self) {
        *self.is_open.lock() = true;
        self.changed.notify_all();
    }

    /// Returns whether the gate is open.
    pub fn is_open(&self) -> bool {
        *self.is_open.lock()
    }

    /// Blocks until the gate is open.
    pub fn wait(&self) {
        let mut is_open = self.is_open.lock();
        while !*is_open {
            self.changed.wait(&mut is_open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_blocks_until_the_latch_is_open() {
        let gate = Gate::default();
        std::thread::scope(|scope| {
            let early = scope.spawn(|| gate.wait());
            gate.open();
            assert!(early.join().is_ok());
        });
        gate.wait();
    }
}

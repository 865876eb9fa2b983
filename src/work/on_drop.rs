//! Calls a function at the end of a scope, even after a panic, so that no other thread waits forever.

/// Calls its function when it is dropped.
pub struct OnDrop<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

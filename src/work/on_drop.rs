//! Calls a function at the end of a scope, however that ends: threads that a panic leaves waiting would never be joined.

/// Calls its function when it is dropped.
pub struct OnDrop<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

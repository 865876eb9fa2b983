//! A bounded queue between threads.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;

/// A bounded queue. Senders block while it is full, receivers while it is empty.
pub struct Queue<T> {
    state: Mutex<QueueState<T>>,
    room: Condvar,
    work: Condvar,
    bound: usize,
}

struct QueueState<T> {
    items: VecDeque<T>,
    closed: bool,
}

impl<T> Queue<T> {
    /// Creates an empty queue for at most `bound` items.
    pub fn new(bound: usize) -> Queue<T> {
        let state = QueueState {
            items: VecDeque::new(),
            closed: false,
        };
        Queue {
            state: Mutex::new(state),
            room: Condvar::new(),
            work: Condvar::new(),
            bound,
        }
    }

    /// Adds an item. Blocks while the queue is full, and returns the item if the queue is closed.
    pub fn push(&self, item: T) -> Result<(), T> {
        let mut state = self.state.lock();
        while state.items.len() >= self.bound && !state.closed {
            self.room.wait(&mut state);
        }
        if state.closed {
            return Err(item);
        }
        state.items.push_back(item);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Removes the oldest item. Blocks while the queue is empty, and returns `None` once it is closed and empty.
    pub fn pop(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                drop(state);
                self.room.notify_one();
                return Some(item);
            }
            if state.closed {
                return None;
            }
            self.work.wait(&mut state);
        }
    }

    /// Closes the queue for new items. Receivers still get the remaining ones.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.room.notify_all();
        self.work.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::on_drop::OnDrop;

    #[test]
    fn queue_is_bounded_and_delivers_each_item_once() {
        let queue = Queue::new(3);
        let sum = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while let Some(n) = queue.pop() {
                        sum.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
                    }
                });
            }
            let _close = OnDrop(|| queue.close());
            for n in 1..=1000 {
                queue.push(n).unwrap();
                assert!(queue.state.lock().items.len() <= 3);
            }
        });
        assert_eq!(sum.into_inner(), 500_500);
        assert_eq!(queue.push(1), Err(1));
    }
}

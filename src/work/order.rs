//! Restores the order of results that worker threads finish out of order.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;

/// Passes values to a consumer in the order of their numbers, regardless of the order in which they arrive.
pub struct InOrder<T, C> {
    state: Mutex<OrderState<T, C>>,
    moved: Condvar,
}

struct OrderState<T, C> {
    next: u64,
    early: BTreeMap<u64, T>,
    consumer: C,
}

impl<T, C: FnMut(T)> InOrder<T, C> {
    /// Starts at number 0.
    pub fn new(consumer: C) -> InOrder<T, C> {
        InOrder {
            state: Mutex::new(OrderState {
                next: 0,
                early: BTreeMap::new(),
                consumer,
            }),
            moved: Condvar::new(),
        }
    }

    /// Adds the value for a number. If it is that number's turn, the consumer receives it and all values that waited
    /// for it.
    pub fn put(&self, number: u64, value: T) {
        let mut state = self.state.lock();
        if number != state.next {
            state.early.insert(number, value);
            return;
        }
        let OrderState {
            next,
            early,
            consumer,
        } = &mut *state;
        let mut value = Some(value);
        while let Some(due) = value {
            consumer(due);
            *next += 1;
            value = early.remove(next);
        }
        drop(state);
        self.moved.notify_all();
    }

    /// Takes a value for the consumer if it is this number's turn, without ending the turn. Returns whether it is.
    pub fn put_early(&self, number: u64, value: &mut T) -> bool
    where
        T: Default,
    {
        let mut state = self.state.lock();
        let is_its_turn = number == state.next;
        if is_its_turn {
            (state.consumer)(std::mem::take(value));
        }
        is_its_turn
    }

    /// Passes a value without a number to the consumer at once.
    pub fn put_now(&self, value: T) {
        (self.state.lock().consumer)(value);
    }

    /// Passes the remaining values to the consumer, in order, although numbers before them never arrived.
    pub fn finish(self) {
        let OrderState {
            early,
            mut consumer,
            ..
        } = self.state.into_inner();
        for value in early.into_values() {
            consumer(value);
        }
    }

    /// Blocks until at most `behind` numbers before `number` are missing. This bounds the number of buffered values.
    pub fn wait_for(&self, number: u64, behind: u64) {
        let mut state = self.state.lock();
        while state.next + behind < number {
            self.moved.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finish_releases_items_behind_a_gap() {
        let mut seen = Vec::new();
        let order = InOrder::new(|n| seen.push(n));
        [0, 5, 3].into_iter().for_each(|n| order.put(n, n));
        order.finish();
        assert_eq!(seen, [0, 3, 5]);
    }

    proptest::proptest! {
        #[test]
        fn items_are_released_in_numeric_order(mut numbers in proptest::collection::vec(0u64..1, 0..60), seed: u64) {
            for (at, n) in numbers.iter_mut().enumerate() {
                *n = at as u64;
            }
            let mut random = seed;
            for at in (1..numbers.len()).rev() {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                numbers.swap(at, (random >> 33) as usize % (at + 1));
            }
            let seen = std::cell::RefCell::new(Vec::new());
            let order = InOrder::new(|n| seen.borrow_mut().push(n));
            for &n in &numbers {
                order.put(n, n);
            }
            proptest::prop_assert_eq!(seen.into_inner(), (0..numbers.len() as u64).collect::<Vec<_>>());
        }
    }
}

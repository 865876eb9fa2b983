//! Works on many items on several threads, and passes the results on in the order of the items.

use super::on_drop::OnDrop;
use super::order::InOrder;
use super::queue::Queue;
use super::thread;
use crate::error::Result;

/// How many items wait for a thread at most.
pub const WAITING_MAX: usize = 128;
/// How many results wait for the result of an item before them, so that one long item does not stop the other threads.
const EARLY_MAX: u64 = 16 * 1024;

/// Calls `work` for each item on up to `threads` threads, and `take` with the results in order. `produce` runs on this
/// thread, and gets the function that adds an item; `waiting_max` items wait for a thread.
pub fn run<T: Send, R: Send>(
    threads: usize,
    waiting_max: usize,
    produce: impl FnOnce(&mut dyn FnMut(T)) -> Result<()>,
    work: impl Fn(T) -> R + Sync,
    take: impl FnMut(R) + Send,
) -> Result<()> {
    let queue = Queue::new(waiting_max);
    let order = InOrder::new(take);
    std::thread::scope(|scope| {
        let _close = OnDrop(|| queue.close());
        for number in 0..threads.max(1) {
            let started = thread::spawn(scope, &format!("worker {number}"), || {
                while let Some((at, item)) = queue.pop() {
                    order.put(at, work(item));
                }
            });
            // One thread is enough to continue.
            if number == 0 {
                started?;
            }
        }
        let mut count = 0;
        produce(&mut |item| {
            order.wait_for(count, EARLY_MAX);
            // It is closed only behind this loop.
            let _ = queue.push((count, item));
            count += 1;
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_a_long_item_does_not_stop_the_others() {
        // The first item ends only after the last one.
        let (done, last) = std::sync::mpsc::channel();
        let (done, last) = (parking_lot::Mutex::new(done), parking_lot::Mutex::new(last));
        let count = 3 * WAITING_MAX as u64;
        let mut results = Vec::new();
        let produce = |add: &mut dyn FnMut(u64)| {
            for item in 0..count {
                add(item);
            }
            Ok(())
        };
        let work = |item| {
            if item == 0 {
                return last.lock().recv().unwrap();
            }
            if item == count - 1 {
                done.lock().send(0).unwrap();
            }
            item
        };
        run(2, WAITING_MAX, produce, work, |result| results.push(result)).unwrap();
        assert_eq!(results, (0..count).collect::<Vec<_>>());
    }

    #[test]
    fn an_error_of_the_producer_ends_the_run_after_its_items() {
        let mut results = Vec::new();
        let produce = |add: &mut dyn FnMut(u8)| {
            add(7);
            Err(crate::error::Error::usage("enough"))
        };
        let ended = run(4, 1, produce, |item| item, |result| results.push(result));
        assert!(ended.is_err());
        assert_eq!(results, [7]);
    }
}

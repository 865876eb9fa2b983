//! One piece of work over many items, on several threads where it pays.

use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Fewer items than this are not worth a thread.
const WORTH_A_THREAD: usize = 4096;

/// How many items callers with many of them hand over at a time, so that the results that are kept do
/// not grow with the items.
pub const BLOCK: usize = 16 * 1024;

/// What `look` says of every item, in order, found out by up to `threads` threads.
pub fn map<T: Sync, R: Send>(items: &[T], threads: usize, look: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if threads < 2 || items.len() < WORTH_A_THREAD {
        return items.iter().map(look).collect();
    }
    let look = &look;
    std::thread::scope(|scope| {
        let mut parts = items.chunks(items.len().div_ceil(threads));
        let mine = parts.next().unwrap_or(&[]);
        let look_at = move |part: &[T]| part.iter().map(look).collect::<Vec<R>>();
        // If a thread cannot be started, this one takes its part.
        let others: Vec<_> =
            parts.map(|part| (part, thread::Builder::new().spawn_scoped(scope, move || look_at(part)).ok())).collect();
        let mut results = look_at(mine);
        for (part, thread) in others {
            match thread.map(thread::ScopedJoinHandle::join) {
                None => results.extend(look_at(part)),
                Some(Ok(part)) => results.extend(part),
                Some(Err(panic)) => std::panic::resume_unwind(panic),
            }
        }
        results
    })
}

/// Fewer bytes than this are read and digested before a thread for them has begun.
const WORTH_A_THREAD_BYTES: u64 = 4 << 20;
/// So are fewer files, however short.
const WORTH_A_THREAD_FILES: usize = 256;

/// How many of these threads pay where files of these lengths, in bytes, are to be read.
pub fn threads_for(lens_bytes: impl Iterator<Item = u64>, threads: usize) -> usize {
    if lens_bytes.fold(0, u64::saturating_add) < WORTH_A_THREAD_BYTES { 1 } else { threads }
}

/// How many of these threads pay where so many files are to be read of which nobody knows how long they are.
pub fn threads_for_files(files: usize, threads: usize) -> usize {
    if files < WORTH_A_THREAD_FILES { 1 } else { threads }
}

/// What `work` makes of every item, in order, found out by up to `threads` threads, of which each takes one after the other:
/// for items that are work enough, and not alike.
pub fn share<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = threads.min(items.len());
    if threads < 2 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let take_turns = || {
        let take = || {
            let at = next.fetch_add(1, Ordering::Relaxed);
            Some((at, work(items.get(at)?)))
        };
        iter::from_fn(take).collect::<Vec<(usize, R)>>()
    };
    let mut results = thread::scope(|scope| {
        // One that is not to be had is done without.
        let helpers = (1..threads).map_while(|_| thread::Builder::new().spawn_scoped(scope, take_turns).ok());
        let helpers: Vec<_> = helpers.collect();
        let mut results = take_turns();
        for helper in helpers {
            match helper.join() {
                Ok(part) => results.extend(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        results
    });
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_whatever_their_number() {
        for (len, threads) in [(0, 2), (1, 4), (WORTH_A_THREAD, 1), (WORTH_A_THREAD, 3), (BLOCK + 5, 2), (BLOCK, 7)] {
            let items: Vec<usize> = (0..len).collect();
            assert_eq!(map(&items, threads, |n| n * 2), items.iter().map(|n| n * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn threads_are_for_many_bytes_however_they_are_cut() {
        assert_eq!(threads_for([WORTH_A_THREAD_BYTES - 1].into_iter(), 2), 1);
        assert_eq!(threads_for([1, WORTH_A_THREAD_BYTES - 1].into_iter(), 2), 2);
        assert_eq!(threads_for([u64::MAX, u64::MAX].into_iter(), 2), 2);
    }

    #[test]
    fn shared_results_come_in_order_whoever_had_them() {
        let items: Vec<usize> = (0..1000).collect();
        for threads in [1, 2, 7, 2000] {
            assert_eq!(share(&items, threads, |n| n * 2), items.iter().map(|n| n * 2).collect::<Vec<_>>());
            assert!(share(&items[..0], threads, |n| n * 2).is_empty());
        }
    }

    #[test]
    fn the_next_item_is_taken_while_another_is_long() {
        // The first is done only once all others are.
        let (done, all_others) = std::sync::mpsc::channel();
        let (done, all_others) = (std::sync::Mutex::new(done), std::sync::Mutex::new(all_others));
        let results = share(&[0, 1, 2, 3], 2, |&item| match item {
            0 => (0..3).map(|_| all_others.lock().unwrap().recv().unwrap()).sum(),
            item => {
                done.lock().unwrap().send(item).unwrap();
                item
            }
        });
        assert_eq!(results, [6, 1, 2, 3]);
    }
}

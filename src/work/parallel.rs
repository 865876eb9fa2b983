//! Maps a function over many items, on several threads if that is faster.

use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Starting threads does not pay for fewer items than this.
const WORTH_A_THREAD: usize = 4096;

/// How many items a caller should pass at a time if it has many, so that the buffered results do not grow with their
/// number.
pub const BLOCK: usize = 16 * 1024;

/// Returns the result of `look` for every item, in order. Gives each of up to `threads` threads one contiguous part.
pub fn map<T: Sync, R: Send>(items: &[T], threads: usize, look: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if threads < 2 || items.len() < WORTH_A_THREAD {
        return items.iter().map(look).collect();
    }
    let look = &look;
    std::thread::scope(|scope| {
        let mut parts = items.chunks(items.len().div_ceil(threads));
        let mine = parts.next().unwrap_or(&[]);
        let look_at = move |part: &[T]| part.iter().map(look).collect::<Vec<R>>();
        // If a thread cannot be started, this thread does its part.
        let others: Vec<_> = parts
            .map(|part| {
                (
                    part,
                    thread::Builder::new()
                        .spawn_scoped(scope, move || look_at(part))
                        .ok(),
                )
            })
            .collect();
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

/// Fewer bytes than this are read and hashed before a new thread has started.
const WORTH_A_THREAD_BYTES: u64 = 4 << 20;
/// The same for the number of files, however short.
const WORTH_A_THREAD_FILES: usize = 256;

/// Returns how many of `threads` are worth using to read files of these lengths, in bytes.
pub fn threads_for(lens_bytes: impl Iterator<Item = u64>, threads: usize) -> usize {
    if lens_bytes.fold(0, u64::saturating_add) < WORTH_A_THREAD_BYTES {
        1
    } else {
        threads
    }
}

/// Returns how many of `threads` are worth using to read so many files of unknown length.
pub fn threads_for_files(files: usize, threads: usize) -> usize {
    if files < WORTH_A_THREAD_FILES {
        1
    } else {
        threads
    }
}

/// Returns the result of `work` for every item, in order. Up to `threads` threads fetch one item after the other, which
/// suits items that are expensive and of different cost.
pub fn share<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
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
        // Continue with fewer threads if one cannot be started.
        let helpers =
            (1..threads).map_while(|_| thread::Builder::new().spawn_scoped(scope, take_turns).ok());
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
    fn map_returns_results_in_order() {
        for (len, threads) in [
            (0, 2),
            (1, 4),
            (WORTH_A_THREAD, 1),
            (WORTH_A_THREAD, 3),
            (BLOCK + 5, 2),
            (BLOCK, 7),
        ] {
            let items: Vec<usize> = (0..len).collect();
            assert_eq!(
                map(&items, threads, |n| n * 2),
                items.iter().map(|n| n * 2).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn thread_count_depends_on_total_bytes() {
        assert_eq!(threads_for([WORTH_A_THREAD_BYTES - 1].into_iter(), 2), 1);
        assert_eq!(threads_for([1, WORTH_A_THREAD_BYTES - 1].into_iter(), 2), 2);
        assert_eq!(threads_for([u64::MAX, u64::MAX].into_iter(), 2), 2);
    }

    #[test]
    fn share_returns_results_in_order() {
        let items: Vec<usize> = (0..1000).collect();
        for threads in [1, 2, 7, 2000] {
            assert_eq!(
                share(&items, threads, |n| n * 2),
                items.iter().map(|n| n * 2).collect::<Vec<_>>()
            );
            assert!(share(&items[..0], threads, |n| n * 2).is_empty());
        }
    }

    #[test]
    fn long_item_does_not_block_the_next() {
        // The first item finishes only after all others.
        let (done, all_others) = std::sync::mpsc::channel();
        let (done, all_others) = (
            parking_lot::Mutex::new(done),
            parking_lot::Mutex::new(all_others),
        );
        let results = share(&[0, 1, 2, 3], 2, |&item| match item {
            0 => (0..3).map(|_| all_others.lock().recv().unwrap()).sum(),
            item => {
                done.lock().send(item).unwrap();
                item
            }
        });
        assert_eq!(results, [6, 1, 2, 3]);
    }
}

//! One piece of work over many items, on several threads where it pays.

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
        let others: Vec<_> = parts.map(|part| scope.spawn(move || part.iter().map(look).collect::<Vec<R>>())).collect();
        let mut results: Vec<R> = mine.iter().map(look).collect();
        for other in others {
            match other.join() {
                Ok(part) => results.extend(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        results
    })
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
}

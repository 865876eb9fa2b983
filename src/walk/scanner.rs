//! Lists directories on worker threads, a bounded number ahead of the consumer, which takes the results in order.

use crate::fs::sys;
use crate::report::progress::ListTotal;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};

/// Identifies the result of one task in [`Scanner::take`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(u64);

impl TaskId {
    /// A placeholder for a task number that is not assigned yet.
    pub const NONE: TaskId = TaskId(u64::MAX);

    /// Returns the task number with this number.
    pub fn new(number: u64) -> TaskId {
        TaskId(number)
    }
}

/// How many results may be ready and not yet taken. Each may hold two descriptors, see [`OPEN_PARTS`].
const DIRS_AHEAD_MAX: usize = 128;
/// At most one ready directory per this many files that the process may have open. Each may hold two descriptors.
const OPEN_PARTS: usize = 8;
/// How many entries the ready results may have together, so that memory does not grow with the tree.
const ENTRIES_AHEAD_MAX: usize = 40_000;
/// [`DIRS_AHEAD_MAX`] before the consumer starts. Results beyond that one hold no descriptors and take about 400 bytes
/// each.
const DIRS_EARLY_MAX: usize = 20_000;
/// [`ENTRIES_AHEAD_MAX`] before the consumer starts. At about 80 bytes each, the same memory as a receiver keeps for
/// its prescan.
const ENTRIES_EARLY_MAX: usize = 200_000;

/// How a [`Scanner`] processes directories.
pub trait Look: Sync {
    /// One directory to process.
    type Task: Send;
    /// The result for one directory.
    type Found: Send;
    /// Processes one directory. Also returns the tasks of its subdirectories, in order.
    fn look(&self, task: Self::Task) -> (Self::Found, Vec<Self::Task>);
    /// Returns the places in a result for the task numbers of those tasks, in the same order.
    fn task_ids<'f>(&self, found: &'f mut Self::Found) -> impl Iterator<Item = &'f mut TaskId>;
    /// Closes the descriptors of a result, because more results are held than a process may have files open.
    fn park(&self, found: &mut Self::Found);
    /// Returns how many entries the result keeps in memory, and how many source entries were listed and their total
    /// bytes.
    fn size(&self, found: &Self::Found) -> (usize, (u64, u64));
}

/// Processes directories ahead of the consumer, which takes the results in order.
pub struct Scanner<L: Look> {
    walk: L,
    state: Mutex<ScannerState<L>>,
    /// Signalled when there is work and room for its result, or when the scanner is closed.
    work: Condvar,
    /// Signalled when a result is ready that a consumer waits for.
    made: Condvar,
    unbounded: bool,
    /// How many ready results may hold descriptors.
    held_max: usize,
}

struct ScannerState<L: Look> {
    /// The consumer has not started yet.
    is_early: bool,
    next: u64,
    /// Tasks not begun. The one needed first is last in the vector.
    waiting: Vec<(TaskId, L::Task)>,
    ready: HashMap<TaskId, L::Found>,
    ready_entries: usize,
    /// How many tasks are in progress.
    begun: usize,
    /// Tasks in progress whose results are no longer needed.
    forgotten: HashSet<TaskId>,
    /// The task numbers that a consumer waits for.
    awaited: Vec<TaskId>,
    /// How many workers wait for work.
    idle: usize,
    /// Set when the room runs out, until half of it is free again. Meanwhile no worker begins a task; the consumer only
    /// makes a result that it needs now. Waking a worker for every result taken would cost more than listing a small
    /// directory.
    is_full: bool,
    /// Entries in the results so far, and their bytes.
    listed: (u64, u64),
    closed: bool,
}

impl<L: Look> Scanner<L> {
    /// Creates a scanner without tasks. If `unbounded`, all results are made at once and held, for options that need
    /// the whole list first.
    pub fn new(walk: L, unbounded: bool) -> Scanner<L> {
        let state = ScannerState {
            is_early: false,
            next: 0,
            waiting: Vec::new(),
            ready: HashMap::new(),
            ready_entries: 0,
            begun: 0,
            forgotten: HashSet::new(),
            awaited: Vec::new(),
            idle: 0,
            is_full: false,
            listed: (0, 0),
            closed: false,
        };
        let held_max = if unbounded {
            0
        } else {
            sys::share_of_open_files(OPEN_PARTS, DIRS_AHEAD_MAX)
        };
        Scanner {
            walk,
            state: Mutex::new(state),
            work: Condvar::new(),
            made: Condvar::new(),
            unbounded,
            held_max,
        }
    }

    /// Creates a scanner without tasks whose larger limits apply until [`Scanner::end_early`].
    pub fn early(walk: L) -> Scanner<L> {
        let scanner = Scanner::new(walk, false);
        scanner.state.lock().is_early = true;
        scanner
    }

    /// Applies the normal limits from now on. Ready results are kept.
    pub fn end_early(&self) {
        self.state.lock().is_early = false;
    }

    /// Returns the [`Look`] that processes the directories.
    pub fn walk(&self) -> &L {
        &self.walk
    }

    /// Adds the first task.
    pub fn start(&self, task: L::Task) -> TaskId {
        let mut state = self.state.lock();
        let task_id = TaskId(state.next);
        state.next += 1;
        state.waiting.push((task_id, task));
        self.wake(&state, 1);
        task_id
    }

    /// Adds the tasks of a result that was made elsewhere, and stores their task numbers in it.
    pub fn add(&self, found: &mut L::Found, tasks: Vec<L::Task>) {
        let mut state = self.state.lock();
        self.wake(&state, tasks.len());
        self.queue_tasks(&mut state, found, tasks);
    }

    /// Runs a worker until [`Scanner::close`].
    pub fn work(&self) {
        let mut state = self.state.lock();
        while !state.closed {
            let parks = state.ready.len() >= self.held_max;
            let Some((task_id, task)) = state.next_task(self.unbounded) else {
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let (mut plan, tasks) = self.walk.look(task);
            if parks {
                self.walk.park(&mut plan);
            }
            state = self.state.lock();
            if state.forgotten.remove(&task_id) {
                state.begun -= 1;
                continue;
            }
            // This worker begins one of them itself.
            self.wake(&state, tasks.len().saturating_sub(1));
            let plan = self.put_down(&mut state, plan, tasks);
            state.ready_entries += self.walk.size(&plan).0;
            state.ready.insert(task_id, plan);
            if state.awaited.contains(&task_id) {
                self.made.notify_all();
            }
        }
    }

    /// Takes a result. Makes it on this thread if no worker has begun it.
    pub fn take(&self, task_id: TaskId) -> L::Found {
        let mut state = self.state.lock();
        loop {
            if let Some(plan) = state.ready.remove(&task_id) {
                state.ready_entries -= self.walk.size(&plan).0;
                if state.has_room_again() {
                    self.wake(&state, usize::MAX);
                }
                return plan;
            }
            if let Some(at) = state
                .waiting
                .iter()
                .rposition(|(waiting, _)| *waiting == task_id)
            {
                let (_, task) = state.waiting.remove(at);
                state.begun += 1;
                drop(state);
                let (mut plan, tasks) = self.walk.look(task);
                if self.unbounded {
                    self.walk.park(&mut plan);
                }
                let mut state = self.state.lock();
                self.wake(&state, tasks.len());
                return self.put_down(&mut state, plan, tasks);
            }
            state.awaited.push(task_id);
            self.made.wait(&mut state);
            state.awaited.retain(|awaited| *awaited != task_id);
        }
    }

    /// Drops these results and everything below them. Tasks not begun are removed. No other thread may be taking any of
    /// them.
    pub fn forget(&self, task_ids: Vec<TaskId>) {
        let mut state = self.state.lock();
        let mut unmade = HashSet::new();
        let mut left = task_ids;
        while let Some(task_id) = left.pop() {
            let Some(mut plan) = state.ready.remove(&task_id) else {
                unmade.insert(task_id);
                continue;
            };
            state.ready_entries -= self.walk.size(&plan).0;
            left.extend(self.walk.task_ids(&mut plan).map(|below| *below));
        }
        state.waiting.retain(|(task_id, _)| !unmade.remove(task_id));
        state.forgotten.extend(unmade);
        if state.has_room_again() {
            self.wake(&state, usize::MAX);
        }
    }

    /// Wakes at most one idle worker per new task.
    fn wake(&self, state: &ScannerState<L>, tasks: usize) {
        let count = if state.is_full {
            0
        } else {
            tasks.min(state.idle)
        };
        if count == state.idle {
            self.work.notify_all();
        } else {
            for _ in 0..count {
                self.work.notify_one();
            }
        }
    }

    /// Returns the length of the list so far. The root is missing, because no result contains it.
    pub fn listed(&self) -> ListTotal {
        let state = self.state.lock();
        let (entries, bytes) = state.listed;
        ListTotal {
            entries,
            bytes,
            complete: state.waiting.is_empty() && state.begun == 0,
        }
    }

    /// Returns whether all results are made at once and held.
    pub fn is_unbounded(&self) -> bool {
        self.unbounded
    }

    /// Ends the workers.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_all();
    }

    /// Queues the tasks of a result, first task on top, and stores their task numbers in it.
    fn queue_tasks(&self, state: &mut ScannerState<L>, found: &mut L::Found, tasks: Vec<L::Task>) {
        let first = state.next;
        state.next += tasks.len() as u64;
        let mut numbers = first..state.next;
        for (place, number) in self.walk.task_ids(found).zip(numbers.by_ref()) {
            *place = TaskId(number);
        }
        debug_assert!(numbers.is_empty(), "each task has its place");
        let numbered = tasks
            .into_iter()
            .enumerate()
            .rev()
            .map(|(at, task)| (TaskId(first + at as u64), task));
        state.waiting.extend(numbered);
    }

    /// Ends a task that was begun.
    fn put_down(
        &self,
        state: &mut ScannerState<L>,
        mut found: L::Found,
        tasks: Vec<L::Task>,
    ) -> L::Found {
        self.queue_tasks(state, &mut found, tasks);
        state.begun -= 1;
        let (_, (entries, bytes)) = self.walk.size(&found);
        state.listed.0 += entries;
        state.listed.1 += bytes;
        found
    }
}

impl<L: Look> ScannerState<L> {
    /// Returns the next task for a worker, or `None` if there is no task or no room for its result.
    fn next_task(&mut self, unbounded: bool) -> Option<(TaskId, L::Task)> {
        let (dirs_max, entries_max) = if self.is_early {
            (DIRS_EARLY_MAX, ENTRIES_EARLY_MAX)
        } else {
            (DIRS_AHEAD_MAX, ENTRIES_AHEAD_MAX)
        };
        self.is_full |=
            !unbounded && (self.ready.len() >= dirs_max || self.ready_entries >= entries_max);
        let task = if self.is_full {
            None
        } else {
            self.waiting.pop()
        };
        self.begun += usize::from(task.is_some());
        task
    }

    /// Returns whether enough results were taken since the scanner was full, and then marks it as not full.
    fn has_room_again(&mut self) -> bool {
        let has_room =
            self.ready.len() <= DIRS_AHEAD_MAX / 2 && self.ready_entries < ENTRIES_AHEAD_MAX;
        self.is_full && has_room && {
            self.is_full = false;
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A tree without files. A directory of depth d has `wide` directories of depth d + 1, down to depth `deep`.
    struct Tree {
        wide: usize,
        deep: usize,
        /// Entries per directory.
        entries: usize,
        most_ready: AtomicUsize,
    }

    struct Dir {
        depth: usize,
        subs: Vec<TaskId>,
        entries: usize,
        is_parked: bool,
    }

    impl Look for Tree {
        type Task = usize;
        type Found = Dir;

        fn look(&self, depth: usize) -> (Dir, Vec<usize>) {
            let subs = if depth < self.deep { self.wide } else { 0 };
            let dir = Dir {
                depth,
                subs: vec![TaskId::NONE; subs],
                entries: self.entries,
                is_parked: false,
            };
            (dir, vec![depth + 1; subs])
        }

        fn task_ids<'f>(&self, dir: &'f mut Dir) -> impl Iterator<Item = &'f mut TaskId> {
            dir.subs.iter_mut()
        }

        fn park(&self, dir: &mut Dir) {
            dir.is_parked = true;
        }

        fn size(&self, dir: &Dir) -> (usize, (u64, u64)) {
            (dir.entries, (1, 10))
        }
    }

    /// Takes a directory and everything below it. Returns the number of directories.
    fn take_all(scanner: &Scanner<Tree>, task_id: TaskId, depth: usize) -> usize {
        let ready = scanner.state.lock().ready.len();
        scanner
            .walk()
            .most_ready
            .fetch_max(ready, Ordering::Relaxed);
        let dir = scanner.take(task_id);
        assert_eq!(dir.depth, depth);
        assert!(
            !scanner.is_unbounded() || dir.is_parked,
            "what is held holds no descriptors"
        );
        1 + dir
            .subs
            .into_iter()
            .map(|sub| take_all(scanner, sub, depth + 1))
            .sum::<usize>()
    }

    /// Takes a whole tree with this many workers. If `early`, the workers first run ahead until there is no more room.
    fn run(
        tree: Tree,
        workers: usize,
        (unbounded, early): (bool, bool),
    ) -> (usize, usize, ListTotal) {
        let scanner = if early {
            Scanner::early(tree)
        } else {
            Scanner::new(tree, unbounded)
        };
        let taken = std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| scanner.work());
            }
            let root = scanner.start(0);
            if early {
                while !scanner.listed().complete {
                    std::thread::yield_now();
                }
                scanner.end_early();
            }
            let taken = take_all(&scanner, root, 0);
            scanner.close();
            taken
        });
        (
            taken,
            scanner.walk().most_ready.load(Ordering::Relaxed),
            scanner.listed(),
        )
    }

    fn tree(wide: usize, deep: usize, entries: usize) -> Tree {
        Tree {
            wide,
            deep,
            entries,
            most_ready: AtomicUsize::new(0),
        }
    }

    #[test]
    fn all_directories_are_scanned_with_any_number_of_workers() {
        for workers in [0, 1, 2, 5] {
            for (wide, deep, entries, all) in [
                (0, 0, 1, 1),
                (1, 300, 1, 301),
                (3000, 1, 1, 3001),
                (7, 4, 1, 2801),
                (40, 2, 15_000, 1641),
            ] {
                let (taken, most_ready, listed) =
                    run(tree(wide, deep, entries), workers, (false, false));
                let total = ListTotal {
                    entries: all as u64,
                    bytes: 10 * all as u64,
                    complete: true,
                };
                assert_eq!((taken, listed), (all, total), "{wide} {deep} {workers}");
                // Each worker may have one more in progress when the room runs out.
                assert!(
                    most_ready <= DIRS_AHEAD_MAX + workers,
                    "{most_ready} are ready: {wide} {deep} {workers}"
                );
                let entries_ready = most_ready * entries;
                assert!(
                    entries_ready <= ENTRIES_AHEAD_MAX + (workers + 1) * entries,
                    "{entries_ready} {workers}"
                );
            }
        }
    }

    #[test]
    fn prefetched_results_are_taken_like_others() {
        let (taken, most_ready, _) = run(tree(3000, 1, 1), 2, (false, true));
        assert_eq!((taken, most_ready), (3001, 3001));
        let (taken, most_ready, _) = run(tree(9, 3, 1), 3, (true, false));
        assert!(taken == 820 && most_ready <= 820, "{taken} {most_ready}");
    }

    /// The workers fill the room and then sleep until half of it is free: waking one for each directory taken would
    /// cost more than a small directory.
    #[test]
    fn workers_sleep_until_half_of_the_room_is_free() {
        let scanner = Scanner::new(tree(3000, 1, 1), false);
        let all: Vec<TaskId> = {
            let root = scanner.start(0);
            scanner.take(root).subs
        };
        let begin = || {
            scanner
                .state
                .lock()
                .next_task(false)
                .map(|(task_id, _)| task_id)
        };
        let made = |task_id: TaskId| {
            let mut state = scanner.state.lock();
            let (dir, tasks) = scanner.walk().look(1);
            let dir = scanner.put_down(&mut state, dir, tasks);
            state.ready_entries += 1;
            state.ready.insert(task_id, dir);
        };
        for task_id in &all[..DIRS_AHEAD_MAX] {
            assert_eq!(begin(), Some(*task_id));
            made(*task_id);
        }
        assert_eq!(begin(), None, "the lookahead is full");
        for task_id in &all[..DIRS_AHEAD_MAX / 2 - 1] {
            scanner.take(*task_id);
            assert_eq!(begin(), None, "less than half of the lookahead is free");
        }
        scanner.take(all[DIRS_AHEAD_MAX / 2 - 1]);
        assert_eq!(begin(), Some(all[DIRS_AHEAD_MAX]));
    }

    /// Whether a result was ready, in progress or not begun: nothing of it or below it remains.
    #[test]
    fn forgotten_directories_leave_no_state() {
        for workers in [0, 1, 4] {
            for early in [false, true] {
                let scanner = if early {
                    Scanner::early(tree(60, 2, 3))
                } else {
                    Scanner::new(tree(60, 2, 3), false)
                };
                std::thread::scope(|scope| {
                    for _ in 0..workers {
                        scope.spawn(|| scanner.work());
                    }
                    let root = scanner.start(0);
                    let mut subs = scanner.take(root).subs;
                    let mut first = scanner.take(subs.remove(0)).subs;
                    scanner.forget(first.split_off(20));
                    let last = subs.pop().expect("the tree has 60 directories");
                    scanner.forget(subs);
                    assert_eq!(
                        first
                            .into_iter()
                            .map(|sub| take_all(&scanner, sub, 2))
                            .sum::<usize>(),
                        20
                    );
                    assert_eq!(take_all(&scanner, last, 1), 61);
                    scanner.close();
                });
                let state = scanner.state.lock();
                let left = (
                    state.waiting.len(),
                    state.ready.len(),
                    state.ready_entries,
                    state.begun,
                );
                assert_eq!(
                    (left, state.forgotten.len()),
                    ((0, 0, 0, 0), 0),
                    "{workers} workers, early: {early}"
                );
            }
        }
    }
}

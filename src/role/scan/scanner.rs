//! A bounded number of directories looked at ahead of whoever takes them in order, by threads that are woken seldom.

use crate::fs::sys;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Condvar, Mutex, PoisonError};

/// The name under which a task's plan is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

impl Ticket {
    /// Stands where a ticket will be.
    pub const NONE: Ticket = Ticket(u64::MAX);

    /// The ticket of a number.
    pub fn of(number: u64) -> Ticket {
        Ticket(number)
    }
}

/// How many directories may be planned and not yet taken; each may hold two descriptors, see [`OPEN_PARTS`].
const DIRS_AHEAD_MAX: usize = 128;
/// One in so many of the files that the process may have open is a directory that is planned, twice.
const OPEN_PARTS: usize = 8;
/// How many entries they may have between them, so that memory does not grow with the tree.
const ENTRIES_AHEAD_MAX: usize = 40_000;
/// As [`DIRS_AHEAD_MAX`] while nobody takes any yet; those beyond that hold no descriptors, and about 400 bytes each.
const DIRS_EARLY_MAX: usize = 20_000;
/// As [`ENTRIES_AHEAD_MAX`] while nobody takes any yet: at about 80 bytes each, as much as a receiver keeps of what it saw.
const ENTRIES_EARLY_MAX: usize = 200_000;

/// What a scanner makes of directories.
pub trait Look: Sync {
    /// One directory to be looked at.
    type Task: Send;
    /// What was found.
    type Found: Send;
    /// Looks at one directory; the tasks of those in it are returned in order.
    fn look(&self, task: Self::Task) -> (Self::Found, Vec<Self::Task>);
    /// Gives what was found the tickets of those tasks, in the same order.
    fn number(&self, found: &mut Self::Found, tickets: &mut dyn Iterator<Item = Ticket>);
    /// The tickets of the directories in what was found.
    fn below(&self, found: &Self::Found) -> Vec<Ticket>;
    /// Lets go of descriptors, because more is held than a process may have open.
    fn park(&self, found: &mut Self::Found);
    /// How many entries it keeps in memory, and of the source: how many were listed, and their bytes.
    fn size(&self, found: &Self::Found) -> (usize, (u64, u64));
}

/// Looks at directories ahead of whoever takes them in order.
pub struct Scanner<L: Look> {
    walk: L,
    state: Mutex<State<L>>,
    /// There is work and room for what comes of it, or an end.
    work: Condvar,
    /// A plan that somebody waits for was made.
    made: Condvar,
    unbounded: bool,
    /// So many of the plans may hold descriptors.
    held_max: usize,
}

struct State<L: Look> {
    /// Nobody takes any plans yet.
    is_early: bool,
    next: u64,
    /// Not begun; the one that is needed first is on top.
    waiting: Vec<(Ticket, L::Task)>,
    ready: HashMap<Ticket, L::Found>,
    ready_entries: usize,
    /// Plans under way.
    begun: usize,
    /// Those of them that nobody wants any more.
    forgotten: HashSet<Ticket>,
    /// The plans that somebody waits for.
    awaited: Vec<Ticket>,
    /// Workers that wait.
    idle: usize,
    /// There was no room, and there is not enough of it again: nobody begins a plan but who needs it now. Waking a worker
    /// for each plan that is taken would cost more than the plan of a small directory.
    is_full: bool,
    /// Entries of the plans made, and their bytes.
    listed: (u64, u64),
    closed: bool,
}

impl<L: Look> Scanner<L> {
    /// A scanner without tasks. `unbounded`: all plans are made at once and held, for options that need
    /// the whole list first.
    pub fn new(walk: L, unbounded: bool) -> Scanner<L> {
        let state = State {
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
        let held_max = if unbounded { 0 } else { sys::share_of_open_files(OPEN_PARTS, DIRS_AHEAD_MAX) };
        Scanner { walk, state: Mutex::new(state), work: Condvar::new(), made: Condvar::new(), unbounded, held_max }
    }

    /// A scanner without tasks that may go further ahead, until [`Scanner::end_early`].
    pub fn early(walk: L) -> Scanner<L> {
        let scanner = Scanner::new(walk, false);
        scanner.lock().is_early = true;
        scanner
    }

    /// From now on plans are taken. What was made of them stays.
    pub fn end_early(&self) {
        self.lock().is_early = false;
    }

    /// What the plans are made from.
    pub fn walk(&self) -> &L {
        &self.walk
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the first task down.
    pub fn start(&self, task: L::Task) -> Ticket {
        let mut state = self.lock();
        let ticket = Ticket(state.next);
        state.next += 1;
        state.waiting.push((ticket, task));
        self.wake(&state, 1);
        ticket
    }

    /// Puts down the tasks of what was found elsewhere, and gives it their tickets.
    pub fn add(&self, found: &mut L::Found, tasks: Vec<L::Task>) {
        let mut state = self.lock();
        self.wake(&state, tasks.len());
        self.walk.number(found, &mut state.line_up(tasks).map(Ticket));
    }

    /// Works until [`Scanner::close`].
    pub fn work(&self) {
        let mut state = self.lock();
        while !state.closed {
            let parks = state.ready.len() >= self.held_max;
            let Some((ticket, task)) = state.next_task(self.unbounded) else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let (mut plan, tasks) = self.walk.look(task);
            if parks {
                self.walk.park(&mut plan);
            }
            state = self.lock();
            if state.forgotten.remove(&ticket) {
                state.begun -= 1;
                continue;
            }
            // One of them is for this worker.
            self.wake(&state, tasks.len().saturating_sub(1));
            let plan = self.put_down(&mut state, plan, tasks);
            state.ready_entries += self.walk.size(&plan).0;
            state.ready.insert(ticket, plan);
            if state.awaited.contains(&ticket) {
                self.made.notify_all();
            }
        }
    }

    /// Takes a plan, making it here and now if nobody has begun it.
    pub fn take(&self, ticket: Ticket) -> L::Found {
        let mut state = self.lock();
        loop {
            if let Some(plan) = state.ready.remove(&ticket) {
                state.ready_entries -= self.walk.size(&plan).0;
                if state.has_room_again() {
                    self.wake(&state, usize::MAX);
                }
                return plan;
            }
            if let Some(at) = state.waiting.iter().rposition(|(waiting, _)| *waiting == ticket) {
                let (_, task) = state.waiting.remove(at);
                state.begun += 1;
                drop(state);
                let (mut plan, tasks) = self.walk.look(task);
                if self.unbounded {
                    self.walk.park(&mut plan);
                }
                let mut state = self.lock();
                self.wake(&state, tasks.len());
                return self.put_down(&mut state, plan, tasks);
            }
            state.awaited.push(ticket);
            state = self.made.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.awaited.retain(|awaited| *awaited != ticket);
        }
    }

    /// Nobody will take these plans, nor what is below them: what is not begun will not be. None of them is being taken.
    pub fn forget(&self, tickets: Vec<Ticket>) {
        let mut state = self.lock();
        let mut unmade = HashSet::new();
        let mut left = tickets;
        while let Some(ticket) = left.pop() {
            let Some(plan) = state.ready.remove(&ticket) else {
                unmade.insert(ticket);
                continue;
            };
            state.ready_entries -= self.walk.size(&plan).0;
            left.extend(self.walk.below(&plan));
        }
        state.waiting.retain(|(ticket, _)| !unmade.remove(ticket));
        state.forgotten.extend(unmade);
        if state.has_room_again() {
            self.wake(&state, usize::MAX);
        }
    }

    /// Wakes as many workers as there are new tasks for.
    fn wake(&self, state: &State<L>, tasks: usize) {
        match tasks.min(state.idle) {
            _ if state.is_full => {}
            0 => {}
            count if count == state.idle => self.work.notify_all(),
            count => (0..count).for_each(|_| self.work.notify_one()),
        }
    }

    /// The list as far as it is known: entries, bytes, and whether that is all. Without what no plan
    /// names: the root.
    pub fn listed(&self) -> (u64, u64, bool) {
        let state = self.lock();
        (state.listed.0, state.listed.1, state.waiting.is_empty() && state.begun == 0)
    }

    /// Whether all plans are made at once and held.
    pub fn is_unbounded(&self) -> bool {
        self.unbounded
    }

    /// Lets the workers go.
    pub fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
    }

    /// Puts the tasks of what was found down, the first on top, and gives it their tickets.
    fn put_down(&self, state: &mut State<L>, mut found: L::Found, tasks: Vec<L::Task>) -> L::Found {
        let mut tickets = state.line_up(tasks).map(Ticket);
        self.walk.number(&mut found, &mut tickets);
        debug_assert_eq!(tickets.next(), None, "each task has its ticket");
        state.begun -= 1;
        let (_, (entries, bytes)) = self.walk.size(&found);
        state.listed.0 += entries;
        state.listed.1 += bytes;
        found
    }
}

impl<L: Look> State<L> {
    /// Puts tasks down, the first on top; the numbers of their tickets.
    fn line_up(&mut self, tasks: Vec<L::Task>) -> Range<u64> {
        let first = self.next;
        self.next += tasks.len() as u64;
        let numbered = tasks.into_iter().enumerate().rev().map(|(at, task)| (Ticket(first + at as u64), task));
        self.waiting.extend(numbered);
        first..self.next
    }

    /// The next task for a worker, if there is one and room for what comes of it.
    fn next_task(&mut self, unbounded: bool) -> Option<(Ticket, L::Task)> {
        let (dirs_max, entries_max) = match self.is_early {
            true => (DIRS_EARLY_MAX, ENTRIES_EARLY_MAX),
            false => (DIRS_AHEAD_MAX, ENTRIES_AHEAD_MAX),
        };
        self.is_full |= !unbounded && (self.ready.len() >= dirs_max || self.ready_entries >= entries_max);
        let task = if self.is_full { None } else { self.waiting.pop() };
        self.begun += usize::from(task.is_some());
        task
    }

    /// Whether enough was taken since there was no room.
    fn has_room_again(&mut self) -> bool {
        let has_room = self.ready.len() <= DIRS_AHEAD_MAX / 2 && self.ready_entries < ENTRIES_AHEAD_MAX;
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

    /// A tree without files: a directory of depth d has `wide` directories of depth d + 1, down to `deep`.
    struct Tree {
        wide: usize,
        deep: usize,
        /// Of each directory; the first of each level has none.
        entries: usize,
        most_ready: AtomicUsize,
    }

    struct Dir {
        depth: usize,
        subs: Vec<Ticket>,
        entries: usize,
        is_parked: bool,
    }

    impl Look for Tree {
        type Task = usize;
        type Found = Dir;

        fn look(&self, depth: usize) -> (Dir, Vec<usize>) {
            let subs = if depth < self.deep { self.wide } else { 0 };
            let dir = Dir { depth, subs: vec![Ticket::NONE; subs], entries: self.entries, is_parked: false };
            (dir, vec![depth + 1; subs])
        }

        fn number(&self, dir: &mut Dir, tickets: &mut dyn Iterator<Item = Ticket>) {
            dir.subs.iter_mut().for_each(|sub| *sub = tickets.next().expect("a ticket for each"));
        }

        fn below(&self, dir: &Dir) -> Vec<Ticket> {
            dir.subs.clone()
        }

        fn park(&self, dir: &mut Dir) {
            dir.is_parked = true;
        }

        fn size(&self, dir: &Dir) -> (usize, (u64, u64)) {
            (dir.entries, (1, 10))
        }
    }

    /// Takes a directory and all below it; how many.
    fn take_all(scanner: &Scanner<Tree>, ticket: Ticket, depth: usize) -> usize {
        let ready = scanner.lock().ready.len();
        scanner.walk().most_ready.fetch_max(ready, Ordering::Relaxed);
        let dir = scanner.take(ticket);
        assert_eq!(dir.depth, depth);
        assert!(!scanner.is_unbounded() || dir.is_parked, "what is held holds no descriptors");
        1 + dir.subs.into_iter().map(|sub| take_all(scanner, sub, depth + 1)).sum::<usize>()
    }

    /// Takes a whole tree with so many workers, and lets them look ahead first until there is no room if `early`.
    fn run(tree: Tree, workers: usize, (unbounded, early): (bool, bool)) -> (usize, usize, (u64, u64, bool)) {
        let scanner = if early { Scanner::early(tree) } else { Scanner::new(tree, unbounded) };
        let taken = std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| scanner.work());
            }
            let root = scanner.start(0);
            if early {
                while !scanner.listed().2 {
                    std::thread::yield_now();
                }
                scanner.end_early();
            }
            let taken = take_all(&scanner, root, 0);
            scanner.close();
            taken
        });
        (taken, scanner.walk().most_ready.load(Ordering::Relaxed), scanner.listed())
    }

    fn tree(wide: usize, deep: usize, entries: usize) -> Tree {
        Tree { wide, deep, entries, most_ready: AtomicUsize::new(0) }
    }

    #[test]
    fn all_is_taken_whatever_the_number_of_workers_and_the_shape() {
        for workers in [0, 1, 2, 5] {
            for (wide, deep, entries, all) in
                [(0, 0, 1, 1), (1, 300, 1, 301), (3000, 1, 1, 3001), (7, 4, 1, 2801), (40, 2, 15_000, 1641)]
            {
                let (taken, most_ready, listed) = run(tree(wide, deep, entries), workers, (false, false));
                assert_eq!((taken, listed), (all, (all as u64, 10 * all as u64, true)), "{wide} {deep} {workers}");
                // Each worker may have one more under way when there is no more room.
                assert!(most_ready <= DIRS_AHEAD_MAX + workers, "{most_ready} are ready: {wide} {deep} {workers}");
                let entries_ready = most_ready * entries;
                assert!(entries_ready <= ENTRIES_AHEAD_MAX + (workers + 1) * entries, "{entries_ready} {workers}");
            }
        }
    }

    #[test]
    fn what_was_found_early_is_taken_like_the_rest() {
        let (taken, most_ready, _) = run(tree(3000, 1, 1), 2, (false, true));
        assert_eq!((taken, most_ready), (3001, 3001));
        let (taken, most_ready, _) = run(tree(9, 3, 1), 3, (true, false));
        assert!(taken == 820 && most_ready <= 820, "{taken} {most_ready}");
    }

    /// The workers fill the room, and sleep until half of it is free: waking one for each that is taken would cost more
    /// than a small directory.
    #[test]
    fn workers_are_not_woken_for_each_that_is_taken() {
        let scanner = Scanner::new(tree(3000, 1, 1), false);
        let all: Vec<Ticket> = {
            let root = scanner.start(0);
            scanner.take(root).subs
        };
        let begin = || scanner.lock().next_task(false).map(|(ticket, _)| ticket);
        let made = |ticket: Ticket| {
            let mut state = scanner.lock();
            let (dir, tasks) = scanner.walk().look(1);
            let dir = scanner.put_down(&mut state, dir, tasks);
            state.ready_entries += 1;
            state.ready.insert(ticket, dir);
        };
        for ticket in &all[..DIRS_AHEAD_MAX] {
            assert_eq!(begin(), Some(*ticket));
            made(*ticket);
        }
        assert_eq!(begin(), None, "there is no room");
        for ticket in &all[..DIRS_AHEAD_MAX / 2 - 1] {
            scanner.take(*ticket);
            assert_eq!(begin(), None, "there is not enough room yet");
        }
        scanner.take(all[DIRS_AHEAD_MAX / 2 - 1]);
        assert_eq!(begin(), Some(all[DIRS_AHEAD_MAX]));
    }

    /// Whether it was made, is being made or is yet to be made: of what is forgotten nothing stays, nor of what is below it.
    #[test]
    fn what_is_forgotten_leaves_nothing_behind() {
        for workers in [0, 1, 4] {
            for early in [false, true] {
                let scanner = if early { Scanner::early(tree(60, 2, 3)) } else { Scanner::new(tree(60, 2, 3), false) };
                std::thread::scope(|scope| {
                    for _ in 0..workers {
                        scope.spawn(|| scanner.work());
                    }
                    let root = scanner.start(0);
                    let mut subs = scanner.take(root).subs;
                    let mut first = scanner.take(subs.remove(0)).subs;
                    scanner.forget(first.split_off(20));
                    let last = subs.pop().expect("there are 60");
                    scanner.forget(subs);
                    assert_eq!(first.into_iter().map(|sub| take_all(&scanner, sub, 2)).sum::<usize>(), 20);
                    assert_eq!(take_all(&scanner, last, 1), 61);
                    scanner.close();
                });
                let state = scanner.lock();
                let left = (state.waiting.len(), state.ready.len(), state.ready_entries, state.begun);
                assert_eq!((left, state.forgotten.len()), ((0, 0, 0, 0), 0), "{workers} workers, early: {early}");
            }
        }
    }
}

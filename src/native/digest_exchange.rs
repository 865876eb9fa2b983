//! The survey: digests of the destination's directories in the order in which the receiver sends them. The first ones
//! may be sent before the sender has listed its arguments.

use crate::digest;
use crate::filter::Chain;
use crate::flist::DirList;
use crate::fs::read::Names;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::path::RelPath;
use crate::proto::message::DIGEST_LEN_BYTES;
use crate::proto::{DestDirState, DirListing, Message};
use crate::walk::TaskId;
use crate::work::clock::Since;
use parking_lot::Mutex;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The scan result for a directory of the destination.
pub struct ScannedDir {
    /// What to send about it.
    pub seen: DestDirState,
    /// The task numbers of its subdirectories, in order.
    pub task_ids: Vec<TaskId>,
    /// Its entries, if all were examined.
    pub list: Option<(RelPath, DirList)>,
    /// Set for a large directory, which is examined further when its turn comes.
    pub half: Option<Box<Half>>,
}

impl ScannedDir {
    /// Creates a result without entries.
    pub fn bare(seen: DestDirState) -> ScannedDir {
        ScannedDir {
            seen,
            task_ids: Vec::new(),
            list: None,
            half: None,
        }
    }
}

/// A directory of which some names are listed and the first of these are examined.
pub struct Half {
    pub path: RelPath,
    /// The rules in force in it.
    pub chain: Chain,
    /// The open directory, read as far as its names were listed; `None` if it was closed and must be listed again.
    pub dir: Option<Dir>,
    /// The names listed so far.
    pub names: Names,
    /// Whether these are all names.
    pub is_listed: bool,
    /// The entries examined so far, in the order of the names.
    pub list: DirList,
}

/// The results of a scan of the destination, taken in order.
pub trait ScanResults: Sync {
    /// Takes the result for a directory. Scans it now if no worker has started on it.
    fn take(&self, task_id: TaskId) -> ScannedDir;
    /// Lists the names of a directory until `enough` returns `true`.
    fn list(&self, half: &mut Half, enough: &dyn Fn() -> bool);
    /// Examines the entries of a directory. Returns `Err` if `enough` returned `true` before the end.
    fn go_on(&self, half: Box<Half>, enough: &dyn Fn() -> bool) -> Result<ScannedDir, Box<Half>>;
    /// Returns the result for a directory that is not examined further. `has_none`: the sender has no directories in
    /// it.
    fn cut(&self, half: Box<Half>, has_none: bool) -> ScannedDir;
    /// Discards these directories and everything below them. None of them will be taken.
    fn forget(&self, task_ids: Vec<TaskId>);
    /// Ends the prefetch phase: from now on results are taken.
    fn end_early(&self);
    /// Ends the worker threads.
    fn close(&self);
}

/// The position of the survey of one directory of the transfer, in the preorder of the destination's tree.
#[derive(Default)]
pub struct Survey {
    /// The key for the hashes of directory names.
    key: [u8; 16],
    /// The first directory, if the survey has not begun.
    first: Option<TaskId>,
    /// The directories that lead to the current position, outermost first.
    levels: Vec<Level>,
    /// The directory that is being scanned.
    now: Option<Now>,
    /// The task numbers of directories that need not be scanned.
    needless: Vec<TaskId>,
    /// A step that was put back and comes next.
    back: Option<SurveyStep>,
}

/// A directory that is being scanned.
#[derive(Default)]
struct Now {
    /// The hash of its name.
    name: u32,
    /// The sender lacks it.
    is_needless: bool,
    /// Its path, if it is large.
    path: Option<RelPath>,
    /// The subdirectories that the sender has, if it has listed this directory.
    has: Option<HashSet<u32>>,
    /// Set when the sender's listings show that no digest is needed.
    is_settled: Arc<AtomicBool>,
}

/// A directory whose digest was sent and whose subdirectories are next.
struct Level {
    path: RelPath,
    /// The hash of its name.
    name: u32,
    /// The name hashes and task numbers of the subdirectories that are left, the next one last. Those that the sender lacks
    /// have no task number.
    left: Vec<(u32, TaskId)>,
}

impl Level {
    /// Moves the task numbers of directories that are not needed to `needless`.
    fn drop_tickets(&mut self, needless: &mut Vec<TaskId>, is_needed: impl Fn(u32) -> bool) {
        for (_, task_id) in self
            .left
            .iter_mut()
            .filter(|(name, task_id)| *task_id != TaskId::NONE && !is_needed(*name))
        {
            needless.push(std::mem::replace(task_id, TaskId::NONE));
        }
    }
}

/// The next step of a survey.
pub enum SurveyStep {
    /// Take this result and pass it to [`Survey::took`].
    Take(TaskId),
    /// Examine this directory further and pass the result to [`Survey::took`].
    GoOn(Box<Half>),
    /// Send this.
    Send(DestDirState),
}

impl Survey {
    /// Creates a survey that begins with this directory. `key` is that of directory digests.
    pub fn new(first: TaskId, key: [u8; 16]) -> Survey {
        Survey {
            first: Some(first),
            key,
            ..Survey::default()
        }
    }

    /// Returns the next step; `None` if the survey is complete.
    pub fn begin(&mut self) -> Option<SurveyStep> {
        if let Some(next) = self.back.take() {
            return Some(next);
        }
        if let Some(first) = self.first.take() {
            self.now = Some(Now::default());
            return Some(SurveyStep::Take(first));
        }
        loop {
            match self.levels.last_mut()?.left.pop() {
                Some((_, TaskId::NONE)) => return Some(SurveyStep::Send(DestDirState::Absent)),
                Some((name, task_id)) => {
                    self.now = Some(Now {
                        name,
                        ..Now::default()
                    });
                    return Some(SurveyStep::Take(task_id));
                }
                None => _ = self.levels.pop(),
            }
        }
    }

    /// Returns the next step for a directory that was taken or examined further. `keep` gets its entries, if all were
    /// examined.
    pub fn took(
        &mut self,
        found: ScannedDir,
        keep: &mut dyn FnMut(RelPath, DirList),
    ) -> SurveyStep {
        let mut now = self.now.take().unwrap_or_default();
        if now.is_needless {
            self.needless.extend(found.task_ids);
            return SurveyStep::Send(DestDirState::Absent);
        }
        let ScannedDir {
            seen,
            task_ids,
            list,
            half,
        } = found;
        if let Some(half) = half {
            now.path = Some(half.path.clone());
            self.now = Some(now);
            return SurveyStep::GoOn(half);
        }
        let is_empty = list.as_ref().is_some_and(|(_, list)| list.is_empty());
        // Everything is copied into an empty destination. If it is sent as absent, the files arrive without a request.
        let lacks_all = self.levels.is_empty()
            && is_empty
            && matches!(
                seen,
                DestDirState::Dir {
                    digest: Some(_),
                    ..
                }
            );
        let path = now
            .path
            .or_else(|| list.as_ref().map(|(path, _)| path.clone()));
        if let (Some(path), DestDirState::Dir { children, .. }) = (path, &seen) {
            let left = children.iter().copied().zip(task_ids).rev().collect();
            let mut level = Level {
                path,
                name: now.name,
                left,
            };
            if let Some(has) = now.has {
                level.drop_tickets(&mut self.needless, |name| has.contains(&name));
            }
            self.levels.push(level);
        }
        if let Some((path, list)) = list {
            keep(path, list);
        }
        SurveyStep::Send(if lacks_all {
            DestDirState::Absent
        } else {
            seen
        })
    }

    /// Whether the sender is known to have no subdirectories in the directory that is being scanned.
    pub fn has_none(&self) -> bool {
        self.now
            .as_ref()
            .is_some_and(|now| now.is_needless || now.has.as_ref().is_some_and(HashSet::is_empty))
    }

    /// Returns a flag that is set when the digest of the directory being scanned is not needed any more.
    pub fn is_settled(&self) -> Arc<AtomicBool> {
        self.now
            .as_ref()
            .map(|now| now.is_settled.clone())
            .unwrap_or_default()
    }

    /// Puts back a step that could not be completed. It comes next again.
    pub fn put_back(&mut self, next: SurveyStep) {
        self.back = Some(next);
    }

    /// Handles a listing of the sender. Subdirectories that the sender lacks are then sent as absent and need not be
    /// scanned; see [`Survey::needless`].
    pub fn handle_listing(&mut self, listing: &DirListing) {
        if listing.is_named {
            return;
        }
        let has = || -> HashSet<u32> {
            let dirs = listing.list.entries.iter().filter(|entry| entry.is_dir());
            dirs.map(|dir| digest::keyed_name(&self.key, listing.list.name(dir)))
                .collect()
        };
        if let Some(now) = self
            .now
            .as_mut()
            .filter(|now| now.path.as_ref() == Some(&listing.path))
        {
            now.has = Some(has());
            now.is_settled.store(true, Ordering::Relaxed);
        }
        let Some(at) = self
            .levels
            .iter()
            .position(|level| level.path == listing.path)
        else {
            return;
        };
        let has = has();
        let (above, below) = self.levels.split_at_mut(at + 1);
        above[at].drop_tickets(&mut self.needless, |name| has.contains(&name));
        let next = below
            .first()
            .map(|level| level.name)
            .or(self.now.as_ref().map(|now| now.name));
        if next.is_some_and(|next| !has.contains(&next)) {
            for level in below {
                level.drop_tickets(&mut self.needless, |_| false);
            }
            if let Some(now) = &mut self.now {
                now.is_needless = true;
                now.is_settled.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Takes the task numbers of directories that need not be scanned any more.
    pub fn needless(&mut self) -> Vec<TaskId> {
        std::mem::take(&mut self.needless)
    }

    /// Returns the shortest valid end of the survey: everything that is left is absent.
    pub fn cut_short(self) -> Vec<DestDirState> {
        let left = usize::from(self.first.is_some())
            + self
                .levels
                .iter()
                .map(|level| level.left.len())
                .sum::<usize>();
        let back = self.back.map(|next| match next {
            SurveyStep::Send(seen) => seen,
            SurveyStep::Take(_) | SurveyStep::GoOn(_) => DestDirState::Absent,
        });
        back.into_iter()
            .chain(std::iter::repeat_n(DestDirState::Absent, left))
            .collect()
    }
}

/// The listings of directories that were scanned for digests, in the order of the walk. If the sender lists such a
/// directory, it need not be scanned again.
#[derive(Default)]
pub struct ScannedLists {
    lists: VecDeque<(RelPath, DirList)>,
    entries: usize,
}

/// The maximum number of entries that are kept, at about 80 bytes each. Further directories are scanned again.
const SEEN_ENTRIES_MAX: usize = 200_000;

impl ScannedLists {
    /// Keeps a listing, if there is room.
    pub fn keep(&mut self, path: RelPath, list: DirList) {
        if self.entries + list.len() <= SEEN_ENTRIES_MAX {
            self.entries += list.len();
            self.lists.push_back((path, list));
        }
    }

    /// Returns the path of the first listing.
    pub fn first(&self) -> Option<&RelPath> {
        self.lists.front().map(|(path, _)| path)
    }

    /// Takes the first listing.
    pub fn pop(&mut self) -> Option<DirList> {
        let (_, list) = self.lists.pop_front()?;
        self.entries -= list.len();
        Some(list)
    }
}

/// The maximum size of the digests sent before the sender has listed its arguments: some 1,800 directories.
pub const PREDICTED_MAX_BYTES: usize = 32 << 10;

/// The first digests of a survey, collected until they are sent.
pub struct PredictedDigests {
    state: Mutex<PredictedState>,
    /// The destination as given, and its device and inode when it was opened. `None`: it did not exist.
    dest: (Vec<u8>, Option<(u64, u64)>),
    begun: Since,
    good_for: Duration,
}

enum PredictedState {
    /// The digests so far, and an upper bound of their encoded size.
    Growing(Vec<DestDirState>, usize),
    /// The digests to send; `None` if they are out of date.
    Closed(Option<Vec<DestDirState>>),
}

impl PredictedDigests {
    /// Creates an empty collection. It is valid for `good_for`, and while `dest` is still the same directory.
    pub fn new(dest: (Vec<u8>, Option<(u64, u64)>), good_for: Duration) -> PredictedDigests {
        let state = Mutex::new(PredictedState::Growing(Vec::new(), 0));
        PredictedDigests {
            state,
            dest,
            begun: Since::now(),
            good_for,
        }
    }

    /// Whether digests can still be added.
    pub fn is_open(&self) -> bool {
        matches!(*self.state.lock(), PredictedState::Growing(..))
    }

    /// Returns the number of directories.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        match &*self.state.lock() {
            PredictedState::Growing(all, _) => all.len(),
            PredictedState::Closed(digests) => digests.as_ref().map_or(0, Vec::len),
        }
    }

    /// Adds the next directory. If there is no room or the collection is closed, returns it as the error. The caller
    /// must not add more then.
    pub fn push(&self, seen: DestDirState) -> Result<(), DestDirState> {
        match &mut *self.state.lock() {
            PredictedState::Growing(all, len_bytes)
                if *len_bytes + most_bytes(&seen) <= PREDICTED_MAX_BYTES =>
            {
                *len_bytes += most_bytes(&seen);
                all.push(seen);
                return Ok(());
            }
            PredictedState::Growing(..) | PredictedState::Closed(_) => {}
        }
        Err(seen)
    }

    /// Closes the collection and returns the digests to send, the same on every call. `None` if they are too old or the
    /// destination has changed.
    pub fn close(&self) -> Option<Vec<DestDirState>> {
        let mut state = self.state.lock();
        if let PredictedState::Growing(all, _) = &mut *state {
            let is_good = self.begun.elapsed() <= self.good_for && self.is_unchanged();
            *state = PredictedState::Closed(is_good.then(|| std::mem::take(all)));
        }
        match &*state {
            PredictedState::Closed(digests) => digests.clone(),
            PredictedState::Growing(..) => None,
        }
    }

    /// As [`PredictedDigests::close`], as a message if there are any digests.
    pub fn digests_message(&self) -> Option<Message> {
        self.close()
            .filter(|digests| !digests.is_empty())
            .map(Message::Digests)
    }

    /// Whether the destination is still the same directory. If it did not exist before, it may exist now: reporting it
    /// as absent only makes the sender send more.
    fn is_unchanged(&self) -> bool {
        let (dest, was) = &self.dest;
        let is = || {
            sys::stat_path(dest, true)
                .ok()
                .map(|stat| (stat.dev, stat.ino))
        };
        was.is_none() || *was == is()
    }
}

/// Returns the maximum encoded size of an item.
fn most_bytes(seen: &DestDirState) -> usize {
    match seen {
        DestDirState::Absent => 1,
        DestDirState::Large(_) => 1 + COUNT_BYTES,
        DestDirState::Dir { children, .. } => {
            1 + DIGEST_LEN_BYTES + COUNT_BYTES + 4 * children.len()
        }
    }
}

/// The maximum encoded size of a count.
const COUNT_BYTES: usize = 10;

/// What a sender knows of a survey before it has listed its arguments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known {
    /// The first digests of the directory that was guessed.
    pub beginning: bool,
}

/// What remains to be sent if a survey was begun before the sender listed its arguments.
#[derive(Default)]
pub struct Rest<'m> {
    /// Items to send first.
    pub first: Vec<DestDirState>,
    /// The survey to continue after that.
    pub survey: Survey,
    /// The scan that the survey uses; `None` if there is nothing to continue.
    pub results: Option<&'m dyn ScanResults>,
    /// How many of the directories that the sender requests are complete then.
    pub passed: usize,
    /// The listings kept so far.
    pub kept: ScannedLists,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{ChainOptions, Rules, Side};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const KEY: [u8; 16] = [7; 16];

    /// A tree of directories with one file each. A task number is the index of a directory.
    struct Tree {
        dirs: Vec<String>,
        taken: Mutex<BTreeSet<u64>>,
        /// The directory that counts as large.
        large: &'static str,
        /// The result for the large directory.
        half: Mutex<Option<ScannedDir>>,
    }

    impl Tree {
        fn of(dirs: &[&str]) -> Tree {
            let dirs = dirs.iter().map(|dir| dir.to_string()).collect();
            Tree {
                dirs,
                taken: Mutex::default(),
                large: "none",
                half: Mutex::default(),
            }
        }

        fn below<'t>(&'t self, path: &'t str) -> impl Iterator<Item = u64> + 't {
            let is_in = move |dir: &str| {
                !dir.is_empty() && dir.rsplit_once('/').map_or("", |(parent, _)| parent) == path
            };
            self.dirs
                .iter()
                .zip(0..)
                .filter(move |(dir, _)| is_in(dir))
                .map(|(_, at)| at)
        }

        fn name(&self, at: u64) -> &[u8] {
            let dir = &self.dirs[at as usize];
            dir.rsplit_once('/')
                .map_or(&dir[..], |(_, name)| name)
                .as_bytes()
        }

        fn taken(&self) -> Vec<&str> {
            let taken = self.taken.lock();
            taken
                .iter()
                .map(|&at| self.dirs[at as usize].as_str())
                .collect()
        }

        /// Returns the sender's listing of a directory in which it has these subdirectories.
        fn listing(&self, path: &str, has: impl Fn(u64) -> bool) -> DirListing {
            let mut listing = DirListing {
                path: RelPath::parse(path.as_bytes()).unwrap(),
                ..DirListing::default()
            };
            Arc::make_mut(&mut listing.list).push_name(b"file", false);
            self.below(path)
                .filter(|&at| has(at))
                .for_each(|at| Arc::make_mut(&mut listing.list).push_name(self.name(at), true));
            Arc::make_mut(&mut listing.list).push_name(b"new", true);
            listing
        }
    }

    impl ScanResults for Tree {
        fn take(&self, task_id: TaskId) -> ScannedDir {
            let at = (0..).find(|&at| TaskId::new(at) == task_id).unwrap();
            assert!(self.taken.lock().insert(at), "once");
            let path = &self.dirs[at as usize];
            let children = self
                .below(path)
                .map(|at| digest::keyed_name(&KEY, self.name(at)))
                .collect();
            let mut list = DirList::default();
            list.push_name(b"file", false);
            let list = Some((RelPath::parse(path.as_bytes()).unwrap(), list));
            let task_ids = self.below(path).map(TaskId::new).collect();
            let found = ScannedDir {
                seen: DestDirState::Dir {
                    digest: Some([1; DIGEST_LEN_BYTES]),
                    children,
                },
                task_ids,
                list,
                half: None,
            };
            if *path != self.large {
                return found;
            }
            let path = RelPath::parse(path.as_bytes()).unwrap();
            let chain = Rules::new(Vec::new(), ChainOptions::default()).chain(Side::Receiver, b"");
            let names = Names::default();
            let half = Half {
                path,
                chain,
                dir: None,
                names,
                is_listed: true,
                list: DirList::default(),
            };
            *self.half.lock() = Some(found);
            ScannedDir {
                half: Some(Box::new(half)),
                ..ScannedDir::bare(DestDirState::Large(9))
            }
        }

        fn list(&self, _half: &mut Half, _enough: &dyn Fn() -> bool) {}

        fn go_on(
            &self,
            half: Box<Half>,
            enough: &dyn Fn() -> bool,
        ) -> Result<ScannedDir, Box<Half>> {
            if enough() {
                Err(half)
            } else {
                Ok(self.half.lock().take().unwrap())
            }
        }

        fn cut(&self, _half: Box<Half>, _has_none: bool) -> ScannedDir {
            let found = self.half.lock().take().unwrap();
            let DestDirState::Dir { children, .. } = found.seen else {
                panic!("it is a directory")
            };
            ScannedDir {
                seen: DestDirState::Dir {
                    digest: None,
                    children,
                },
                list: None,
                ..found
            }
        }

        fn forget(&self, _tickets: Vec<TaskId>) {}

        fn end_early(&self) {}

        fn close(&self) {}
    }

    /// Returns the number of items if they form a complete survey.
    fn survey_len(digests: &[DestDirState]) -> Option<usize> {
        let mut open: usize = 1;
        for seen in digests {
            open = open.checked_sub(1).expect("nothing follows the end");
            if let DestDirState::Dir { children, .. } = seen {
                open += children.len();
            }
        }
        (open == 0).then_some(digests.len())
    }

    /// Returns the next item. While the large directory is examined, the sender sends the listing `listing`.
    fn next(
        survey: &mut Survey,
        tree: &Tree,
        listing: Option<&DirListing>,
    ) -> Option<DestDirState> {
        let mut next = survey.begin()?;
        loop {
            let found = match next {
                SurveyStep::Send(seen) => return Some(seen),
                SurveyStep::Take(task_id) => tree.take(task_id),
                SurveyStep::GoOn(half) => {
                    let is_settled = survey.is_settled();
                    listing
                        .iter()
                        .for_each(|listing| survey.handle_listing(listing));
                    let found = tree.go_on(half, &|| is_settled.load(Ordering::Relaxed));
                    found.unwrap_or_else(|half| tree.cut(half, survey.has_none()))
                }
            };
            next = survey.took(found, &mut |_, _| ());
        }
    }

    const DIRS: [&str; 12] = [
        "", "a", "a/b", "a/b/c", "a/d", "e", "e/f", "e/f/g", "e/f/h", "e/i", "j", "j/k",
    ];

    /// Sends `steps` items, then receives the listing of the sender's root, which has the directories `has`, and then
    /// sends the rest.
    fn cut(steps: usize, has: &[&str]) -> (Vec<DestDirState>, Tree, Vec<TaskId>) {
        let tree = Tree::of(&DIRS);
        let mut survey = Survey::new(TaskId::new(0), KEY);
        let mut digests: Vec<DestDirState> = (0..steps)
            .map_while(|_| next(&mut survey, &tree, None))
            .collect();
        survey.handle_listing(&tree.listing("", |at| has.contains(&DIRS[at as usize])));
        let needless = survey.needless();
        digests.extend(std::iter::from_fn(|| next(&mut survey, &tree, None)));
        (digests, tree, needless)
    }

    #[test]
    fn survey_skips_directories_that_the_sender_lacks() {
        let (digests, tree, needless) = cut(1, &["e"]);
        assert_eq!(tree.taken(), ["", "e", "e/f", "e/f/g", "e/f/h", "e/i"]);
        assert_eq!(
            (survey_len(&digests), digests[1].clone(), digests[7].clone()),
            (Some(8), DestDirState::Absent, DestDirState::Absent)
        );
        assert_eq!(needless, [TaskId::new(10), TaskId::new(1)]);
        // A directory that turns out not to be needed halfway is cut short.
        let (digests, tree, needless) = cut(3, &["e"]);
        assert_eq!(
            tree.taken(),
            ["", "a", "a/b", "e", "e/f", "e/f/g", "e/f/h", "e/i"]
        );
        assert_eq!(survey_len(&digests), Some(11));
        assert_eq!(needless, [TaskId::new(10), TaskId::new(4), TaskId::new(3)]);
    }

    #[test]
    fn directory_being_scanned_may_become_needless() {
        let tree = Tree::of(&DIRS);
        let mut survey = Survey::new(TaskId::new(0), KEY);
        next(&mut survey, &tree, None).unwrap();
        let Some(SurveyStep::Take(task_id)) = survey.begin() else {
            panic!("the survey continues")
        };
        survey.handle_listing(&tree.listing("", |_| false));
        let seen = survey.took(tree.take(task_id), &mut |_, _| panic!("not needed"));
        assert!(matches!(seen, SurveyStep::Send(DestDirState::Absent)));
        assert_eq!(survey.needless().len(), 2 + 2);
        let rest: Vec<DestDirState> =
            std::iter::from_fn(|| next(&mut survey, &tree, None)).collect();
        assert_eq!(rest, [DestDirState::Absent, DestDirState::Absent]);
    }

    /// Returns the directories scanned in a tree whose large directory follows `before` others, and whether the large
    /// one is digested. With `has`, the sender lists it during the scan, with this subdirectory in it.
    fn seen_with(large: &'static str, before: usize, has: Option<&str>) -> (Vec<String>, bool) {
        let tree = Tree {
            large,
            ..Tree::of(&DIRS)
        };
        let mut survey = Survey::new(TaskId::new(0), KEY);
        (0..before).for_each(|_| _ = next(&mut survey, &tree, None));
        let listing = has.map(|has| tree.listing(large, |at| tree.name(at) == has.as_bytes()));
        let seen = next(&mut survey, &tree, listing.as_ref());
        while next(&mut survey, &tree, None).is_some() {}
        let taken = tree.taken().into_iter().map(str::to_owned).collect();
        (
            taken,
            matches!(
                seen,
                Some(DestDirState::Dir {
                    digest: Some(_),
                    ..
                })
            ),
        )
    }

    #[test]
    fn large_directory_is_scanned_unless_its_listing_arrives() {
        let names = |dirs: &[&str]| dirs.iter().map(|dir| dir.to_string()).collect::<Vec<_>>();
        assert_eq!(seen_with("", 0, None), (names(&DIRS), true));
        assert_eq!(
            seen_with("", 0, Some("j")),
            (names(&["", "j", "j/k"]), false)
        );
        assert_eq!(seen_with("e", 5, None), (names(&DIRS), true));
        let without = |missing: &str| {
            names(&DIRS)
                .into_iter()
                .filter(|dir| dir != missing)
                .collect::<Vec<_>>()
        };
        assert_eq!(seen_with("e", 5, Some("f")), (without("e/i"), false));
    }

    #[test]
    fn listing_of_named_arguments_prunes_nothing() {
        let tree = Tree::of(&DIRS);
        let mut survey = Survey::new(TaskId::new(0), KEY);
        next(&mut survey, &tree, None).unwrap();
        survey.handle_listing(&DirListing {
            is_named: true,
            ..tree.listing("", |_| false)
        });
        assert_eq!(survey.needless(), []);
    }

    proptest! {
        #[test]
        fn survey_completes_wherever_a_listing_cuts_it(steps in 1usize..14, has in prop::collection::btree_set(0usize..12, 0..12)) {
            let has: Vec<&str> = has.into_iter().map(|at| DIRS[at]).collect();
            let (digests, tree, needless) = cut(steps, &has);
            prop_assert_eq!(survey_len(&digests), Some(digests.len()));
            // All that the sender has at the top level was scanned completely.
            let top = |dir: &str| dir.split('/').next().unwrap().to_owned();
            let taken: BTreeSet<&str> = tree.taken().into_iter().collect();
            for dir in DIRS.iter().filter(|dir| dir.is_empty() || has.contains(&top(dir).as_str())) {
                prop_assert!(taken.contains(dir), "{dir}");
            }
            // Every other directory was scanned before, or is known not to be needed, or lies below one that is not
            // needed.
            let needless: BTreeMap<&str, ()> =
                DIRS.iter().zip(0..).filter(|(_, at)| needless.contains(&TaskId::new(*at))).map(|(dir, _)| (*dir, ())).collect();
            let is_needless = |dir: &str| needless.keys().any(|above| dir == *above || dir.starts_with(&format!("{above}/")));
            for dir in DIRS {
                prop_assert!(taken.contains(dir) != is_needless(dir), "{dir}");
            }
        }
    }
}

//! What a receiver says of its destination, directory by directory; and the beginning of that, which may be said before the
//! sender has said what it sends.

use super::scan::Ticket;
use crate::digest;
use crate::flist::DirList;
use crate::fs::sys;
use crate::path::RelPath;
use crate::proto::message::DIGEST_LEN_BYTES;
use crate::proto::{Message, Seen, Told};
use crate::work::clock::Since;
use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What was seen of a directory of the destination.
pub struct SeenDir {
    /// What is told of it.
    pub seen: Seen,
    /// Those of the directories in it, in order.
    pub tickets: Vec<Ticket>,
    /// Its entries, if they can be told.
    pub list: Option<(RelPath, DirList)>,
}

/// What is seen of a destination, in the order in which it is taken.
pub trait Sights: Sync {
    /// Takes what was seen of a directory, looking at it here and now if nobody has begun.
    fn take(&self, ticket: Ticket) -> SeenDir;
    /// Nobody will take these, nor what is below them.
    fn forget(&self, tickets: Vec<Ticket>);
    /// From now on it is taken.
    fn end_early(&self);
    /// How many entries were seen by now.
    #[cfg(test)]
    fn seen(&self) -> u64;
    /// Lets the workers go.
    fn close(&self);
}

/// How far a directory of the transfer was told, in the preorder of the destination's tree.
#[derive(Default)]
pub struct Survey {
    /// The key of the names of directories.
    key: [u8; 16],
    /// Not begun.
    first: Option<Ticket>,
    /// Those that lead to where it is, each in the one before.
    levels: Vec<Level>,
    /// The name of the directory that is being looked at.
    now: Option<u32>,
    /// The sender does not have it.
    now_is_needless: bool,
    /// What need not be looked at.
    needless: Vec<Ticket>,
    /// It was taken and not told.
    back: Option<Seen>,
}

/// A directory that was told, while those in it are.
struct Level {
    path: RelPath,
    /// As its parent names it.
    name: u32,
    /// The directories in it that were not begun, with their names; the next is the last. Those that the sender does not have
    /// have no tickets.
    left: Vec<(u32, Ticket)>,
}

impl Level {
    /// Leaves only those that are needed their tickets, and adds the others to `needless`.
    fn drop_tickets(&mut self, needless: &mut Vec<Ticket>, is_needed: impl Fn(u32) -> bool) {
        for (_, ticket) in self.left.iter_mut().filter(|(name, ticket)| *ticket != Ticket::NONE && !is_needed(*name)) {
            needless.push(std::mem::replace(ticket, Ticket::NONE));
        }
    }
}

/// What comes next in a survey.
pub enum Next {
    /// This is to be taken, and handed to [`Survey::took`].
    Take(Ticket),
    /// This is to be told.
    Tell(Seen),
}

impl Survey {
    /// Of which nothing was told; `key`: that of directory digests.
    pub fn of(first: Ticket, key: [u8; 16]) -> Survey {
        Survey { first: Some(first), key, ..Survey::default() }
    }

    /// What comes next; `None`: all was told.
    pub fn begin(&mut self) -> Option<Next> {
        if let Some(seen) = self.back.take() {
            return Some(Next::Tell(seen));
        }
        if let Some(first) = self.first.take() {
            self.now = Some(0);
            return Some(Next::Take(first));
        }
        loop {
            match self.levels.last_mut()?.left.pop() {
                Some((_, Ticket::NONE)) => return Some(Next::Tell(Seen::Absent)),
                Some((name, ticket)) => {
                    self.now = Some(name);
                    return Some(Next::Take(ticket));
                }
                None => _ = self.levels.pop(),
            }
        }
    }

    /// What is to be told of a directory that was taken. `keep` gets its entries, if they can be told.
    pub fn took(&mut self, found: SeenDir, keep: &mut dyn FnMut(RelPath, DirList)) -> Seen {
        let SeenDir { seen, tickets, list } = found;
        let name = self.now.take().unwrap_or_default();
        if std::mem::take(&mut self.now_is_needless) {
            self.needless.extend(tickets);
            return Seen::Absent;
        }
        let Some((path, list)) = list else { return seen };
        let is_first = self.levels.is_empty();
        // Into a directory that was just made for it everything is copied: it comes with its data, unasked.
        let lacks_all = is_first && list.is_empty() && matches!(seen, Seen::Dir { digest: Some(_), .. });
        if let Seen::Dir { children, .. } = &seen {
            let left = children.iter().copied().zip(tickets).rev().collect();
            self.levels.push(Level { path: path.clone(), name, left });
        }
        keep(path, list);
        if lacks_all { Seen::Absent } else { seen }
    }

    /// What is to be told of the next directory, looking at it if need be; `None`: all was told.
    pub fn next(&mut self, sights: &dyn Sights, keep: &mut dyn FnMut(RelPath, DirList)) -> Option<Seen> {
        Some(match self.begin()? {
            Next::Take(ticket) => self.took(sights.take(ticket), keep),
            Next::Tell(seen) => seen,
        })
    }

    /// Takes something back that could not be told; it is the next again.
    pub fn put_back(&mut self, seen: Seen) {
        self.back = Some(seen);
    }

    /// The sender told a directory: of those in it that it does not have nobody wants to know anything, and as few words as
    /// there can be are said of them. See [`Survey::needless`].
    pub fn heed(&mut self, told: &Told) {
        let Some(at) = self.levels.iter().position(|level| level.path == told.path && !told.is_named) else { return };
        let dirs = told.list.entries.iter().filter(|entry| entry.is_dir());
        let has: HashSet<u32> = dirs.map(|dir| digest::keyed_name(&self.key, told.list.name(dir))).collect();
        let (above, below) = self.levels.split_at_mut(at + 1);
        above[at].drop_tickets(&mut self.needless, |name| has.contains(&name));
        let next = below.first().map(|level| level.name).or(self.now);
        if next.is_some_and(|next| !has.contains(&next)) {
            below.iter_mut().for_each(|level| level.drop_tickets(&mut self.needless, |_| false));
            self.now_is_needless = self.now.is_some();
        }
    }

    /// What need not be looked at, of which nobody was told.
    pub fn needless(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.needless)
    }

    /// What ends it in few words, if nobody wants to know the rest: nothing is there.
    pub fn cut_short(self) -> Vec<Seen> {
        let left = usize::from(self.first.is_some()) + self.levels.iter().map(|level| level.left.len()).sum::<usize>();
        self.back.into_iter().chain(std::iter::repeat_n(Seen::Absent, left)).collect()
    }
}

/// What was seen of directories for their digests, kept in the order of the walk in case the sender tells them: then
/// they need not be looked at again.
#[derive(Default)]
pub struct SeenLists {
    lists: VecDeque<(RelPath, DirList)>,
    entries: usize,
}

/// So many entries are kept, at about 80 bytes each; directories beyond are looked at again.
const SEEN_ENTRIES_MAX: usize = 200_000;

impl SeenLists {
    /// Keeps a directory, if there is room.
    pub fn keep(&mut self, path: RelPath, list: DirList) {
        if self.entries + list.len() <= SEEN_ENTRIES_MAX {
            self.entries += list.len();
            self.lists.push_back((path, list));
        }
    }

    /// The path of the first one.
    pub fn first(&self) -> Option<&RelPath> {
        self.lists.front().map(|(path, _)| path)
    }

    /// Takes the first one.
    pub fn pop(&mut self) -> Option<DirList> {
        let (_, list) = self.lists.pop_front()?;
        self.entries -= list.len();
        Some(list)
    }
}

/// The most that is said of a destination before the sender has said what it sends: some 1,800 directories.
pub const FORETOLD_MAX_BYTES: usize = 32 << 10;

/// The beginning of a survey, until the time comes to say it.
pub struct Foretold {
    state: Mutex<ForetoldState>,
    /// The destination, as given, and what it was when it was opened: device and inode. `None`: it was not there.
    dest: (Vec<u8>, Option<(u64, u64)>),
    begun: Since,
    good_for: Duration,
}

enum ForetoldState {
    /// So much of it, which takes so many bytes.
    Growing(Vec<Seen>, usize),
    /// What may be said; `None`: it is no good any more.
    Closed(Option<Vec<Seen>>),
}

impl Foretold {
    /// With nothing in it. It is good for so long, and while that destination is what it was.
    pub fn of(dest: (Vec<u8>, Option<(u64, u64)>), good_for: Duration) -> Foretold {
        let state = Mutex::new(ForetoldState::Growing(Vec::new(), 0));
        Foretold { state, dest, begun: Since::now(), good_for }
    }

    fn lock(&self) -> MutexGuard<'_, ForetoldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has not been said.
    pub fn is_open(&self) -> bool {
        matches!(*self.lock(), ForetoldState::Growing(..))
    }

    /// Of how many directories it tells.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        match &*self.lock() {
            ForetoldState::Growing(all, _) => all.len(),
            ForetoldState::Closed(said) => said.as_ref().map_or(0, Vec::len),
        }
    }

    /// Adds the next directory. One for which there is no room, or that comes too late, is handed back, and nothing follows it.
    pub fn push(&self, seen: Seen) -> Result<(), Seen> {
        match &mut *self.lock() {
            ForetoldState::Growing(all, len_bytes) if *len_bytes + most_bytes(&seen) <= FORETOLD_MAX_BYTES => {
                *len_bytes += most_bytes(&seen);
                all.push(seen);
                return Ok(());
            }
            ForetoldState::Growing(..) | ForetoldState::Closed(_) => {}
        }
        Err(seen)
    }

    /// What may be said: the same whenever it is asked for. `None`: nothing, it was seen too long ago, or elsewhere.
    pub fn close(&self) -> Option<Vec<Seen>> {
        let mut state = self.lock();
        if let ForetoldState::Growing(all, _) = &mut *state {
            let is_good = self.begun.elapsed() <= self.good_for && self.is_there();
            *state = ForetoldState::Closed(is_good.then(|| std::mem::take(all)));
        }
        match &*state {
            ForetoldState::Closed(said) => said.clone(),
            ForetoldState::Growing(..) => None,
        }
    }

    /// The same as a message, if there is anything to be said.
    pub fn said(&self) -> Option<Message> {
        self.close().filter(|said| !said.is_empty()).map(Message::Digests)
    }

    /// Whether the destination is what it was. One that was made since has what it has: that nothing is there only brings more.
    fn is_there(&self) -> bool {
        let (dest, was) = &self.dest;
        let is = || sys::stat_path(dest, true).ok().map(|stat| (stat.dev, stat.ino));
        was.is_none() || *was == is()
    }
}

/// How many bytes it takes to tell of a directory, at most.
fn most_bytes(seen: &Seen) -> usize {
    match seen {
        Seen::Absent => 1,
        Seen::Dir { children, .. } => 1 + DIGEST_LEN_BYTES + COUNT_BYTES + 4 * children.len(),
    }
}

/// How many bytes a count of directories takes.
const COUNT_BYTES: usize = 10;

/// What a sender knows of a survey before it has said what it sends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known {
    /// Which directory it is of, so that it passes it over if that is not what it sends.
    pub guess: bool,
    /// The beginning.
    pub beginning: bool,
}

/// What is to be said of a destination of which a survey was begun before the sender said what it sends.
#[derive(Default)]
pub struct Rest<'m> {
    /// This first.
    pub first: Vec<Seen>,
    /// Then what is left of this.
    pub survey: Survey,
    /// By which it goes on; `None`: there is none.
    pub sights: Option<&'m dyn Sights>,
    /// Of so many of the directories that the sender asks for it then has all.
    pub passed: usize,
    /// What was seen already.
    pub kept: SeenLists,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const KEY: [u8; 16] = [7; 16];

    /// Directories by their paths, each with one file; a ticket is a place among them.
    struct Tree {
        dirs: Vec<String>,
        taken: Mutex<BTreeSet<u64>>,
    }

    impl Tree {
        fn of(dirs: &[&str]) -> Tree {
            Tree { dirs: dirs.iter().map(|dir| dir.to_string()).collect(), taken: Mutex::default() }
        }

        fn below<'t>(&'t self, path: &'t str) -> impl Iterator<Item = u64> + 't {
            let is_in =
                move |dir: &str| !dir.is_empty() && dir.rsplit_once('/').map_or("", |(parent, _)| parent) == path;
            self.dirs.iter().zip(0..).filter(move |(dir, _)| is_in(dir)).map(|(_, at)| at)
        }

        fn name(&self, at: u64) -> &[u8] {
            let dir = &self.dirs[at as usize];
            dir.rsplit_once('/').map_or(&dir[..], |(_, name)| name).as_bytes()
        }

        fn taken(&self) -> Vec<&str> {
            let taken = self.taken.lock().unwrap();
            taken.iter().map(|&at| self.dirs[at as usize].as_str()).collect()
        }

        /// What a sender tells of a directory in which it has these.
        fn told(&self, path: &str, has: impl Fn(u64) -> bool) -> Told {
            let mut told = Told { path: RelPath::parse(path.as_bytes()).unwrap(), ..Told::default() };
            told.list.push_name(b"file", false);
            self.below(path).filter(|&at| has(at)).for_each(|at| told.list.push_name(self.name(at), true));
            told.list.push_name(b"new", true);
            told
        }
    }

    impl Sights for Tree {
        fn take(&self, ticket: Ticket) -> SeenDir {
            let at = (0..).find(|&at| Ticket::of(at) == ticket).unwrap();
            assert!(self.taken.lock().unwrap().insert(at), "once");
            let path = &self.dirs[at as usize];
            let children = self.below(path).map(|at| digest::keyed_name(&KEY, self.name(at))).collect();
            let mut list = DirList::default();
            list.push_name(b"file", false);
            let list = Some((RelPath::parse(path.as_bytes()).unwrap(), list));
            let tickets = self.below(path).map(Ticket::of).collect();
            SeenDir { seen: Seen::Dir { digest: Some([1; DIGEST_LEN_BYTES]), children }, tickets, list }
        }

        fn forget(&self, _tickets: Vec<Ticket>) {}

        fn end_early(&self) {}

        fn seen(&self) -> u64 {
            0
        }

        fn close(&self) {}
    }

    /// How many directories are told by these words, if they come to an end there.
    fn told_by(said: &[Seen]) -> Option<usize> {
        let mut open: usize = 1;
        for seen in said {
            open = open.checked_sub(1).expect("nothing comes behind the end");
            if let Seen::Dir { children, .. } = seen {
                open += children.len();
            }
        }
        (open == 0).then_some(said.len())
    }

    const DIRS: [&str; 12] = ["", "a", "a/b", "a/b/c", "a/d", "e", "e/f", "e/f/g", "e/f/h", "e/i", "j", "j/k"];

    /// Has the sender tell its root, in which it has the directories `has`, after so many steps; the rest of what is said.
    fn cut(steps: usize, has: &[&str]) -> (Vec<Seen>, Tree, Vec<Ticket>) {
        let tree = Tree::of(&DIRS);
        let mut survey = Survey::of(Ticket::of(0), KEY);
        let keep = &mut |_, _| ();
        let mut said: Vec<Seen> = (0..steps).map_while(|_| survey.next(&tree, keep)).collect();
        survey.heed(&tree.told("", |at| has.contains(&DIRS[at as usize])));
        let needless = survey.needless();
        said.extend(std::iter::from_fn(|| survey.next(&tree, keep)));
        (said, tree, needless)
    }

    #[test]
    fn what_the_sender_does_not_have_is_not_looked_at() {
        let (said, tree, needless) = cut(1, &["e"]);
        assert_eq!(tree.taken(), ["", "e", "e/f", "e/f/g", "e/f/h", "e/i"]);
        assert_eq!((told_by(&said), said[1].clone(), said[7].clone()), (Some(8), Seen::Absent, Seen::Absent));
        assert_eq!(needless, [Ticket::of(10), Ticket::of(1)]);
        // In the midst of what is needless it is cut short.
        let (said, tree, needless) = cut(3, &["e"]);
        assert_eq!(tree.taken(), ["", "a", "a/b", "e", "e/f", "e/f/g", "e/f/h", "e/i"]);
        assert_eq!(told_by(&said), Some(11));
        assert_eq!(needless, [Ticket::of(10), Ticket::of(4), Ticket::of(3)]);
    }

    #[test]
    fn what_is_being_looked_at_may_be_needless() {
        let tree = Tree::of(&DIRS);
        let mut survey = Survey::of(Ticket::of(0), KEY);
        survey.next(&tree, &mut |_, _| ()).unwrap();
        let Some(Next::Take(ticket)) = survey.begin() else { panic!("there is more") };
        survey.heed(&tree.told("", |_| false));
        let seen = survey.took(tree.take(ticket), &mut |_, _| panic!("nobody needs it"));
        assert_eq!((seen, survey.needless().len()), (Seen::Absent, 2 + 2));
        let rest: Vec<Seen> = std::iter::from_fn(|| survey.next(&tree, &mut |_, _| ())).collect();
        assert_eq!(rest, [Seen::Absent, Seen::Absent]);
    }

    #[test]
    fn what_arguments_name_leaves_the_rest_to_be_told() {
        let tree = Tree::of(&DIRS);
        let mut survey = Survey::of(Ticket::of(0), KEY);
        survey.next(&tree, &mut |_, _| ()).unwrap();
        survey.heed(&Told { is_named: true, ..tree.told("", |_| false) });
        assert_eq!(survey.needless(), []);
    }

    proptest! {
        #[test]
        fn whenever_it_is_cut_it_comes_to_its_end(steps in 1usize..14, has in prop::collection::btree_set(0usize..12, 0..12)) {
            let has: Vec<&str> = has.into_iter().map(|at| DIRS[at]).collect();
            let (said, tree, needless) = cut(steps, &has);
            prop_assert_eq!(told_by(&said), Some(said.len()));
            // All that the sender has at the top was looked at, to the bottom.
            let top = |dir: &str| dir.split('/').next().unwrap().to_owned();
            let taken: BTreeSet<&str> = tree.taken().into_iter().collect();
            for dir in DIRS.iter().filter(|dir| dir.is_empty() || has.contains(&top(dir).as_str())) {
                prop_assert!(taken.contains(dir), "{dir}");
            }
            // Of the others each was looked at before, or is known to be needless, or lies below such a one.
            let needless: BTreeMap<&str, ()> =
                DIRS.iter().zip(0..).filter(|(_, at)| needless.contains(&Ticket::of(*at))).map(|(dir, _)| (*dir, ())).collect();
            let is_needless = |dir: &str| needless.keys().any(|above| dir == *above || dir.starts_with(&format!("{above}/")));
            for dir in DIRS {
                prop_assert!(taken.contains(dir) != is_needless(dir), "{dir}");
            }
        }
    }
}

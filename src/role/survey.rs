//! What a receiver says of its destination, directory by directory; and the beginning of that, which may be said before the
//! sender has said what it sends.

use super::scan::Ticket;
use crate::flist::DirList;
use crate::fs::sys;
use crate::path::RelPath;
use crate::proto::message::DIGEST_LEN_BYTES;
use crate::proto::{Message, Seen};
use crate::work::clock::Since;
use std::collections::VecDeque;
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
    /// What comes next is on top.
    stack: Vec<Ticket>,
    is_begun: bool,
    /// It was taken and not told.
    back: Option<Seen>,
}

impl Survey {
    /// Of which nothing was told.
    pub fn of(first: Ticket) -> Survey {
        Survey { stack: vec![first], is_begun: false, back: None }
    }

    /// What is to be told of the next directory; `None`: all was told. `keep` gets its entries, if they can be told.
    pub fn next(&mut self, sights: &dyn Sights, keep: &mut dyn FnMut(RelPath, DirList)) -> Option<Seen> {
        if let Some(seen) = self.back.take() {
            return Some(seen);
        }
        let found = sights.take(self.stack.pop()?);
        self.stack.extend(found.tickets.iter().rev());
        let is_first = !std::mem::replace(&mut self.is_begun, true);
        let is_empty = found.list.as_ref().is_some_and(|(_, list)| list.is_empty());
        if let Some((path, list)) = found.list {
            keep(path, list);
        }
        // Into a directory that was just made for it everything is copied: it comes with its data, unasked.
        let lacks_all = is_first && is_empty && matches!(found.seen, Seen::Dir { digest: Some(_), .. });
        Some(if lacks_all { Seen::Absent } else { found.seen })
    }

    /// Takes something back that could not be told; it is the next again.
    pub fn put_back(&mut self, seen: Seen) {
        self.back = Some(seen);
    }

    /// What ends it in few words, if nobody wants to know the rest: nothing is there.
    pub fn cut_short(self) -> Vec<Seen> {
        self.back.into_iter().chain(self.stack.into_iter().map(|_| Seen::Absent)).collect()
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
    /// Then this.
    pub survey: Option<(&'m dyn Sights, Survey)>,
    /// Of so many of the directories that the sender asks for it then has all.
    pub passed: usize,
    /// What was seen already.
    pub kept: SeenLists,
}

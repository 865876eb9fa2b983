//! What a receiver sees of its destination for the digests by which directories are compared: a bounded way ahead of
//! whoever tells them.
//!
//! A client that receives begins before there is a peer, while it still connects. What it is to look at it guesses from
//! its arguments; where the guess was wrong nothing is lost but the look.

use super::scan::{Look, Scanner, Ticket, enter_dir};
use super::seen::Digester;
use super::source;
use super::terms::Terms;
use crate::digest;
use crate::error::Error;
use crate::filter::{Chain, Side, Verdict};
use crate::flist::{DirList, Entry};
use crate::fs::ids::Ids;
use crate::fs::operator;
use crate::fs::read::{Names, Wanted};
use crate::fs::root::{Dir, Root};
use crate::fs::sys::{self, Follow};
use crate::options::{LinkOwners, Options};
use crate::path::RelPath;
use crate::proto::Seen;
use crate::work::clock::Since;
use crate::work::parallel;
use crate::work::thread::spawn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A destination, as it is looked at for its own sake.
pub struct Sight<'a> {
    /// Its top; `None` when it does not exist (dry run).
    pub root: Option<&'a Root>,
    /// What is read of each entry.
    pub wanted: Wanted<'a>,
    /// Whose symlinks lead to files of rules.
    pub link_owners: LinkOwners,
    /// How many threads may look at one large directory.
    pub threads: usize,
    /// Set when nobody wants to know any more.
    pub is_over: Option<&'a AtomicBool>,
}

impl Sight<'_> {
    /// Looks at a directory: its entries, and the rules in force in it; `chain`: those in its parent. `None`: there is no
    /// such directory; an inner one: its entries cannot be told.
    fn see(&self, path: &RelPath, chain: &Chain) -> Option<(Option<DirList>, Chain)> {
        let root = self.root?;
        let dir = match root.open_dir(path) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Some((None, chain.clone())),
            Err(_) => return None,
        };
        let mut chain = chain.clone();
        if chain.has_per_dir() {
            // What is to be told of it is told when it is decided about.
            match enter_dir(&chain, &dir, path, ("generator", self.link_owners)) {
                Ok((entered, _)) => chain = entered,
                Err(_) => return Some((None, chain)),
            }
        }
        let mut names = Names::default();
        if names.list(&dir).is_err() {
            return Some((None, chain));
        }
        let mut list = DirList::default();
        list.reserve(names.items.len(), names.len_bytes());
        for block in names.items.chunks(parallel::BLOCK) {
            if self.is_over.is_some_and(|is_over| is_over.load(Ordering::Relaxed)) {
                return Some((None, chain));
            }
            let looks = parallel::map(block, self.threads, |&item| sys::stat(dir.fd(), names.name(item), false));
            for (&item, looked) in block.iter().zip(looks) {
                let Ok(stat) = looked else { return Some((None, chain)) };
                let name = names.name(item);
                let entry = list.push(name, &stat);
                let path = || path.join(name).as_bytes().to_vec();
                let full = || root.full(&path());
                if self.wanted.complete_dest(entry, &stat, (&dir, name), &full, &path).is_err() {
                    return Some((None, chain));
                }
            }
        }
        list.sort();
        Some((Some(list), chain))
    }
}

/// Looks at directories of a destination for their digests.
pub struct SeenLook<'a> {
    /// Where.
    pub sight: Sight<'a>,
    /// What makes the digests.
    pub digester: Digester<'a>,
}

/// What was seen of a directory of the destination.
pub struct SeenDir {
    /// What is told of it.
    pub seen: Seen,
    /// Those of the directories in it, in order.
    pub tickets: Vec<Ticket>,
    /// Its entries, if they can be told.
    pub list: Option<(RelPath, DirList)>,
}

impl SeenLook<'_> {
    /// Whether there may be left-overs of interrupted files, for which its files must be compared one by one.
    fn may_hold_partials(&self, list: &DirList) -> bool {
        let partial_dir = self.digester.options.place.partial_dir.as_ref();
        partial_dir.is_some_and(|holder| holder.contains(&b'/') || list.find(holder).is_some())
    }
}

impl Look for SeenLook<'_> {
    type Task = (RelPath, Chain);
    type Found = SeenDir;

    fn look(&self, (path, chain): (RelPath, Chain)) -> (SeenDir, Vec<(RelPath, Chain)>) {
        let bare = |seen| (SeenDir { seen, tickets: Vec::new(), list: None }, Vec::new());
        let Some((list, chain)) = self.sight.see(&path, &chain) else { return bare(Seen::Absent) };
        let Some(list) = list else { return bare(Seen::Dir { digest: None, children: Vec::new() }) };
        let takes_part = |entry: &Entry| {
            let full = || path.join(list.name(entry));
            chain.is_empty() || chain.verdict(Side::Receiver, full().as_bytes(), entry.is_dir()) == Verdict::Include
        };
        let key = &self.digester.key;
        let digest = self.digester.digest(&path, &list, &takes_part).filter(|_| !self.may_hold_partials(&list));
        let dirs = list.entries.iter().filter(|entry| entry.is_dir() && takes_part(entry));
        let (children, tasks): (Vec<u32>, Vec<_>) = dirs
            .map(|entry| list.name(entry))
            .map(|name| (digest::keyed_name(key, name), (path.join(name), chain.clone())))
            .unzip();
        let tickets = vec![Ticket::NONE; tasks.len()];
        (SeenDir { seen: Seen::Dir { digest, children }, tickets, list: Some((path, list)) }, tasks)
    }

    fn number(&self, found: &mut SeenDir, tickets: &mut dyn Iterator<Item = Ticket>) {
        for (mine, ticket) in found.tickets.iter_mut().zip(tickets) {
            *mine = ticket;
        }
    }

    fn park(&self, _found: &mut SeenDir) {}

    fn size(&self, found: &SeenDir) -> (usize, (u64, u64)) {
        let entries = found.list.as_ref().map_or(0, |(_, list)| list.len());
        (entries, (entries as u64, 0))
    }
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

impl<L: Look<Task = (RelPath, Chain), Found = SeenDir>> Sights for Scanner<L> {
    fn take(&self, ticket: Ticket) -> SeenDir {
        Scanner::take(self, ticket)
    }

    fn end_early(&self) {
        Scanner::end_early(self);
    }

    #[cfg(test)]
    fn seen(&self) -> u64 {
        self.listed().0
    }

    fn close(&self) {
        Scanner::close(self);
    }
}

/// A destination that is to be looked at before there is a peer.
pub struct Guess<'a> {
    /// The terms.
    pub terms: Terms<'a>,
    /// The destination, as given.
    pub dest: &'a [u8],
    /// The one directory whose content the peer will have compared, it is thought.
    pub whole: RelPath,
    /// The key of directory digests.
    pub key: [u8; 16],
    /// So long it may be told.
    pub good_for: Duration,
}

/// What an argument that is at a peer will be called in the transfer, if it is a directory; `None`: only the peer knows.
pub fn guessed_name(argument: &[u8], options: &Options) -> Option<RelPath> {
    let is_known = !options.select.relative && !argument.iter().any(|byte| b"*?[\\~$`'\"".contains(byte));
    let name = crate::path::file_name(argument);
    match name {
        _ if !is_known => None,
        // As rsync takes them: what is in them is copied.
        b"" | b"." => Some(RelPath::root()),
        b".." => None,
        name => RelPath::parse(name).ok(),
    }
}

impl Guess<'_> {
    /// Looks at the destination on threads of its own while `body` runs; without, if there is nothing that could be looked
    /// at. An error: there are no threads to be had.
    pub fn look<R>(&self, body: impl FnOnce(Option<Glance<'_>>) -> R) -> Result<R, Error> {
        let options = self.terms.options;
        let owners = options.preserve.link_owners;
        // What is wrong with it is told when it is looked at for the session.
        let Ok(fd) = operator::open_dir(self.dest, owners) else { return Ok(body(None)) };
        let path = source::absolute(self.terms.cwd, self.dest);
        let root = Root::new(Dir::new(fd), path.clone(), Follow::Never);
        let (ids, is_over) = (Ids::new(), AtomicBool::new(false));
        let is_super = options.preserve.super_user.unwrap_or(sys::ids().0 == 0) || options.preserve.fake_super;
        self.terms.with_wanted(&options.preserve, &|_| {}, |wanted| {
            let look = SeenLook {
                sight: Sight {
                    root: Some(&root),
                    wanted: wanted(),
                    link_owners: owners,
                    threads: self.terms.threads,
                    is_over: Some(&is_over),
                },
                digester: Digester { key: self.key, options, owners: is_super, ids: &ids },
            };
            let scanner = &Scanner::early(look);
            let first = scanner.start((self.whole.clone(), self.terms.rules.chain(Side::Receiver, &path)));
            std::thread::scope(|scope| {
                let glance =
                    Glance { guess: self, root: &root, first, begun: Since::now(), is_over: &is_over, sights: scanner };
                for _ in 0..self.terms.threads {
                    spawn(scope, "scan", || scanner.work())?;
                }
                Ok(body(Some(glance)))
            })
        })
    }
}

/// A destination that is being looked at, until this is dropped.
pub struct Glance<'l> {
    guess: &'l Guess<'l>,
    root: &'l Root,
    /// The directory that is told first.
    first: Ticket,
    begun: Since,
    is_over: &'l AtomicBool,
    sights: &'l dyn Sights,
}

impl Glance<'_> {
    /// The key of its digests.
    pub fn key(&self) -> [u8; 16] {
        self.guess.key
    }

    /// How many entries were seen by now.
    #[cfg(test)]
    pub fn seen(&self) -> u64 {
        self.sights.seen()
    }

    /// What was seen, and the directory to be told first, if these directories of this destination are those that were looked
    /// at, and not too long ago: somebody takes it from now on.
    pub fn meet(&self, root: Option<&Root>, whole: &[RelPath]) -> Option<(&dyn Sights, Ticket)> {
        let same = |root: &Root| {
            let looked_at = [root, self.root].map(|root| sys::fstat(root.dir().fd()).map(|stat| (stat.dev, stat.ino)));
            matches!(looked_at, [Ok(there), Ok(here)] if there == here) && root.path == self.root.path
        };
        let is_fresh = self.begun.elapsed() <= self.guess.good_for;
        let fits = is_fresh && *whole == [self.guess.whole.clone()] && root.is_some_and(same);
        fits.then(|| {
            self.sights.end_early();
            (self.sights, self.first)
        })
    }
}

impl Drop for Glance<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.sights.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_argument_will_be_called_is_guessed_only_where_it_is_plain() {
        let guessed = |argument: &str, relative| {
            let mut options = Options::default();
            options.select.relative = relative;
            guessed_name(argument.as_bytes(), &options).map(|path| String::from_utf8(path.as_bytes().to_vec()).unwrap())
        };
        for (argument, name) in [("dir/", ""), ("/a/dir/.", ""), ("", ""), (".", ""), ("/a/dir", "dir"), ("dir", "dir")]
        {
            assert_eq!(guessed(argument, false).as_deref(), Some(name), "{argument}");
            assert_eq!(guessed(argument, true), None, "{argument}");
        }
        for argument in ["a*", "a/..", "..", "~/a", "$HOME", "[a]/b", "a\\ b"] {
            assert_eq!(guessed(argument, false), None, "{argument}");
        }
    }
}

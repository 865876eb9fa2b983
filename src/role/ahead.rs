//! What a sender looks at in the source: a bounded way ahead of whoever tells a peer of it.
//!
//! A client that sends begins before there is a peer, while it still connects. Nothing is told or changed here, so
//! nothing is lost if nobody asks for it: what was found waits for [`Looking::meet`], trouble included.

use super::scan::source::{Contents, SourceWalk};
use super::scan::{Listed, Look, Scanner, SourceTask, Ticket};
use super::seen::{Digester, can_compare};
use super::sight::Glance;
use super::source::{Gathered, Gatherer};
use super::terms::Terms;
use crate::digest::Comparison;
use crate::error::Error;
use crate::exit::Exit;
use crate::flist::Entry;
use crate::fs::ids::Ids;
use crate::options::CheckMode;
use crate::proto::message::DIGEST_LEN_BYTES;
use crate::proto::unfit;
use crate::report::event::{Problem, Wants, Weight};
use crate::work::clock::Since;
use crate::work::thread::spawn;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// What was looked at longer ago, before there was a peer, is looked at again: while somebody is asked for a password he
/// may change what is to be copied.
pub const EARLY_IS_GOOD_FOR: Duration = Duration::from_secs(5);

/// A source to be looked at.
pub struct Aim<'a> {
    /// The terms.
    pub terms: Terms<'a>,
    /// The source arguments, as given.
    pub arguments: &'a [Vec<u8>],
    /// What `--files-from` lists.
    pub listed: Option<&'a [Vec<u8>]>,
    /// The key of directory digests.
    pub key: [u8; 16],
    /// By what contents are digested that the peer will compare; `None`: that is not known yet, and none are.
    pub compared_by: Option<&'a Comparison>,
    /// For whom.
    pub audience: Audience,
    /// There is no peer yet: the audience is a guess, and more is kept. So long it may be told.
    pub early: Option<Duration>,
}

/// What of a peer, and of what a client wants to be told, matters for a look at the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Audience {
    /// Digests of directories are compared.
    pub compares: bool,
    /// The receiver may give entries away, so that owners are compared.
    pub is_super: bool,
}

impl<'a> Aim<'a> {
    /// For a peer that is not known yet. `is_super`: as far as can be guessed. A wrong guess costs the digests of what
    /// was looked at by then.
    pub fn early(terms: Terms<'a>, arguments: &'a [Vec<u8>], key: [u8; 16], is_super: bool) -> Aim<'a> {
        let audience = Audience { compares: can_compare(terms.options, Wants::default()), is_super };
        Aim { terms, arguments, listed: None, key, compared_by: None, audience, early: Some(EARLY_IS_GOOD_FOR) }
    }

    /// Looks at the source on threads of its own while `body` runs; an error if there are none to be had.
    pub fn look<R>(&self, body: impl FnOnce(Looking<'_>) -> R) -> Result<R, Error> {
        let options = self.terms.options;
        let (ids, is_over, is_unheard) = (Ids::new(), AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
        let compared_by = self.compared_by.filter(|_| options.check.mode == CheckMode::Digest);
        self.terms.with_wanted(&options.preserve, &|_| {}, |wanted| {
            let walk = SourceWalk {
                contents: compared_by.map(|by| Contents { by, is_unheard: &is_unheard }),
                is_over: Some(&is_over),
                ..self.terms.source_walk(wanted())
            };
            let digester = Digester { key: self.key, options, owners: false, ids: &ids };
            let look = SourceLook { walk, digester, audience: Mutex::new(self.audience) };
            look.set_audience(self.audience);
            let scanner = if self.early.is_some() { Scanner::early(look) } else { Scanner::new(look, false) };
            let scanner = &scanner;
            std::thread::scope(|scope| {
                let (tell, gathered) = mpsc::channel();
                let (begun, good_for) = (Since::now(), self.early);
                let looking = Looking {
                    scanner,
                    gathered,
                    start: RefCell::default(),
                    is_over: &is_over,
                    is_unheard: is_unheard.clone(),
                    begun,
                    good_for,
                };
                let mut gather = Some(move || {
                    let found = Gatherer::new(&self.terms).all(self.arguments, self.listed);
                    let start = found.map(|gathered| Start {
                        top: gathered.top_entry(&scanner.walk().walk.wanted),
                        root: scanner.start(gathered.task(None)),
                        gathered,
                    });
                    // If nobody takes it there is nobody who would look on.
                    let _ = tell.send(start);
                });
                for _ in 0..self.terms.threads {
                    let gather = gather.take();
                    spawn(scope, "scan", move || {
                        gather.into_iter().for_each(|gather| gather());
                        scanner.work();
                    })?;
                }
                Ok(body(looking))
            })
        })
    }
}

/// What a client looks at while it still connects.
pub enum Early<'l> {
    /// The source, which it sends.
    Source(Box<Looking<'l>>),
    /// The destination, to which it receives.
    Dest(Glance<'l>),
}

impl<'l> Early<'l> {
    /// The source, if it is that.
    pub fn source(&self) -> Option<&Looking<'l>> {
        match self {
            Early::Source(looking) => Some(looking),
            Early::Dest(_) => None,
        }
    }

    /// The destination, if it is that.
    pub fn dest(&self) -> Option<&Glance<'l>> {
        match self {
            Early::Source(_) => None,
            Early::Dest(glance) => Some(glance),
        }
    }
}

/// What the arguments came to.
pub struct Start {
    /// All of it.
    pub gathered: Gathered,
    /// The entry of the directory whose content is the transfer's root.
    pub top: Option<Entry>,
    /// The first directory.
    pub root: Ticket,
}

/// A source that is being looked at, until this is dropped.
pub struct Looking<'l> {
    scanner: &'l Scanner<SourceLook<'l>>,
    gathered: mpsc::Receiver<Result<Start, Error>>,
    /// It came, and nobody has taken it.
    start: RefCell<Option<Result<Start, Error>>>,
    is_over: &'l AtomicBool,
    is_unheard: Arc<AtomicBool>,
    begun: Since,
    good_for: Option<Duration>,
}

impl Looking<'_> {
    /// Whoever sets this has nobody any more to tell digests of contents. Lists go on being whole: a part of one, told as
    /// all of it, would have things deleted.
    pub fn is_unheard(&self) -> Arc<AtomicBool> {
        self.is_unheard.clone()
    }

    /// The names of this side.
    pub fn ids(&self) -> &Ids {
        self.scanner.walk().digester.ids
    }

    /// How many entries were found by now.
    #[cfg(test)]
    pub fn found(&self) -> u64 {
        self.scanner.listed().0
    }

    /// Whether what was found so far may still be told.
    pub fn is_fresh(&self) -> bool {
        self.good_for.is_none_or(|good_for| self.begun.elapsed() <= good_for)
    }

    /// From now on somebody takes what is found, in order, for this audience.
    pub fn meet(&self, audience: Audience) {
        self.scanner.walk().set_audience(audience);
        self.scanner.end_early();
    }

    /// Waits for what the arguments came to, which can be had once.
    pub fn start(&self) -> Result<Start, Error> {
        let start = self.start.take().map_or_else(|| self.gathered.recv(), Ok);
        start.unwrap_or_else(|_| Err(Error::new(Exit::Crashed, "sparsync: a worker crashed")))
    }

    /// Looks at what the arguments came to, before anybody takes it. `None`: nobody can, and will learn why.
    pub fn peek<R>(&self, look: impl FnOnce(&Start) -> R) -> Option<R> {
        let mut start = self.start.borrow_mut();
        if start.is_none() {
            *start = self.gathered.recv().ok();
        }
        start.as_ref()?.as_ref().ok().map(look)
    }

    /// Takes what was found in a directory, with the digest that its audience would compare.
    pub fn take(&self, ticket: Ticket) -> Found {
        let look = self.scanner.walk();
        let mut found = self.scanner.take(ticket);
        if found.audience != look.audience() {
            look.put_digest(&mut found);
        }
        found
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.is_unheard.store(true, Ordering::Relaxed);
        self.scanner.close();
    }
}

/// A directory of the source, looked at.
pub struct Found {
    /// What is in it.
    pub listed: Listed,
    /// Its digest; `None`: none is compared, or something in it must be told.
    pub digest: Option<[u8; DIGEST_LEN_BYTES]>,
    /// Those of the walked directories in it, in order.
    pub tickets: Vec<(u32, Ticket)>,
    /// Its places are closed; see [`super::scan::Place::reopened`].
    pub is_parked: bool,
    /// For whom the digest is.
    audience: Audience,
}

/// Looks at directories of the source.
struct SourceLook<'a> {
    walk: SourceWalk<'a>,
    /// Whether it heeds owners the audience says.
    digester: Digester<'a>,
    audience: Mutex<Audience>,
}

impl SourceLook<'_> {
    fn audience(&self) -> Audience {
        *self.audience.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_audience(&self, audience: Audience) {
        // Where owners are not kept, nobody's say in them matters.
        let is_super = audience.is_super && self.digester.options.preserve.owner;
        *self.audience.lock().unwrap_or_else(PoisonError::into_inner) = Audience { is_super, ..audience };
    }

    fn put_digest(&self, found: &mut Found) {
        found.audience = self.audience();
        let Audience { compares, is_super } = found.audience;
        let listed = &found.listed;
        // What is to be told of it must be told.
        let is_silent =
            listed.problems.is_empty() && listed.notes.is_empty() && listed.fatal.is_none() && !listed.is_named;
        let digester = Digester { owners: is_super, ..self.digester };
        found.digest = match compares && is_silent {
            true => digester.digest(&listed.path, &listed.source, &|_| true),
            false => None,
        };
    }
}

impl Look for SourceLook<'_> {
    type Task = SourceTask;
    type Found = Found;

    fn look(&self, task: SourceTask) -> (Found, Vec<SourceTask>) {
        let (mut listed, mut tasks) = self.walk.list(task);
        leave_out_unfit(&mut listed, &mut tasks);
        let (at, tasks): (Vec<u32>, Vec<SourceTask>) = tasks.into_iter().unzip();
        let tickets = at.into_iter().map(|at| (at, Ticket::NONE)).collect();
        let mut found = Found { listed, digest: None, tickets, is_parked: false, audience: self.audience() };
        self.put_digest(&mut found);
        (found, tasks)
    }

    fn number(&self, found: &mut Found, tickets: &mut dyn Iterator<Item = Ticket>) {
        for ((_, mine), ticket) in found.tickets.iter_mut().zip(tickets) {
            *mine = ticket;
        }
    }

    fn below(&self, found: &Found) -> Vec<Ticket> {
        found.tickets.iter().map(|&(_, ticket)| ticket).collect()
    }

    fn park(&self, found: &mut Found) {
        for place in found.listed.places.iter_mut().flatten() {
            *place = place.parked();
        }
        found.is_parked = true;
    }

    fn size(&self, found: &Found) -> (usize, (u64, u64)) {
        let tally = &found.listed.tally;
        (found.listed.source.len(), (tally.listed.total(), tally.total_bytes))
    }
}

/// Leaves out entries that cannot be told to a peer, and says so. `tasks`: those of its directories, by entry.
fn leave_out_unfit(listed: &mut Listed, tasks: &mut Vec<(u32, SourceTask)>) {
    if listed.source.entries.iter().all(|entry| unfit(entry).is_none()) {
        return;
    }
    let whole = std::mem::take(&mut listed.source);
    let mut subs = std::mem::take(&mut listed.subs).into_iter();
    let mut old_tasks = std::mem::take(tasks).into_iter().peekable();
    for (at, entry) in (0..).zip(&whole.entries) {
        let name = whole.name(entry);
        let sub = if entry.is_dir() { subs.next() } else { None };
        let task = old_tasks.next_if(|(of, _)| *of == at);
        if let Some(why) = unfit(entry) {
            let path = listed.path.join(name);
            let line = [b"sparsync: skipping \"", path.as_bytes(), b"\": ", why.as_bytes()].concat();
            // As what cannot be read: the destination keeps what it has.
            listed.problems.push(Problem::said(line, Weight::SourceError));
            continue;
        }
        tasks.extend(task.map(|(_, task)| (listed.source.len() as u32, task)));
        listed.subs.extend(sub);
        listed.source.push_entry(name, entry.clone());
    }
}

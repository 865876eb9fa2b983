//! The receiving half of a run: decides and applies, wherever the source is.

use super::apply::remove::BackupDir;
use super::apply::{self, Context, Outcome, TempDir, Wire, file};
use super::destination::Destination;
use super::generator::{Appliers, Batch, Generator, Plans, Top};
use super::scan::Compare;
use super::scan::alternate::Alternate;
use super::scan::dest::{DestWalk, resumes};
use super::source;
use super::terms::Terms;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::Side;
use crate::flist::{Entry, Kind};
use crate::fs::acl;
use crate::fs::copy::Abilities;
use crate::fs::errno;
use crate::fs::ids;
use crate::fs::operator;
use crate::fs::read::Wanted;
use crate::fs::root::{Dir, Root};
use crate::fs::sys::{self, Follow};
use crate::options::{Options, RemoveSource, When};
use crate::path::{self, RelPath};
use crate::plan::idmap::{Class, IdMapper, Names, Powers};
use crate::plan::{NO_ID, Policy};
use crate::report::event::{Event, Problem, Wants, Weight};
use crate::report::tally::Tally;
use crate::work::order::InOrder;
use crate::work::queue::{CloseOnDrop, Queue};
use crate::work::throttle::Throttle;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Batches that wait for an applier; each holds at most 64 steps or one large file, and two descriptors: see [`OPEN_PARTS`].
const BATCHES_WAITING: usize = 32;
/// One in so many of the files that the process may have open is a batch that waits, twice.
const OPEN_PARTS: usize = 16;
/// Batches that may be done before their turn to be told comes; bounds what is kept for later.
const BATCHES_EARLY: u64 = 256;

/// What a receiver is told of, in list order.
pub trait Listener: Send {
    /// Takes one event.
    fn tell(&mut self, event: &Event);
    /// Nobody can be told any more, so the run shall end, with this.
    fn deaf(&self) -> Option<Exit>;
}

/// Where the source's lists come from.
pub trait Origin {
    /// Makes of a way to look at the destination the plans of directories. `whole_list_first`: all are made before the
    /// first is carried out.
    fn plans<'w>(&'w self, walk: DestWalk<'w>, whole_list_first: bool) -> Result<Box<dyn Plans + 'w>, Error>;
}

/// A receiver at work.
pub struct Receiving<'a> {
    /// The terms.
    pub terms: Terms<'a>,
    /// Nothing is written, entries are listed.
    pub list_only: bool,
    /// Where to.
    pub to: &'a Destination,
    /// What is told.
    pub wants: Wants,
    /// The names that both sides know.
    pub names: &'a (dyn Names + Sync),
    /// Compares contents under `-c`.
    pub compare: &'a Compare<'a>,
    /// The peer who has the source, if it is not on this machine.
    pub wire: Option<&'a dyn Wire>,
    /// See [`Context::tells_when_open`].
    pub tells_when_open: bool,
}

/// What the sources came to, as far as the receiver must know before it begins.
pub struct Start {
    /// The directory whose content is the transfer's root: its entry, as the source told it.
    pub top: Option<Entry>,
    /// See [`Top::shown`].
    pub top_shown: Option<Vec<u8>>,
    /// Names that the destination shall lose.
    pub missing: Vec<RelPath>,
    /// An argument could not be read.
    pub has_failed: bool,
    /// What is copied into the source would be found there and copied again, without end.
    pub reaches_source: bool,
}

impl<'a> Receiving<'a> {
    /// Runs to the end.
    pub fn run(
        &self,
        start: Start,
        origin: &dyn Origin,
        listener: &mut dyn Listener,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let options = self.terms.options;
        let is_super = options.preserve.super_user.unwrap_or(sys::ids().0 == 0);
        let mut preserve = options.preserve.clone();
        // The client is the one that was told; the receiver of a local copy does not munge.
        let munges = self.wire.is_some() && preserve.munge_links;
        preserve.munge_links = false;
        // A listing has each name where it belongs.
        preserve.hard_links &= !self.list_only;
        let own_groups = ids::own_groups();
        let (mapper, unknown) = IdMapper::new(&preserve, self.names);
        for name in unknown {
            listener.tell(&Event::Problem(Problem::said(name.line(), Weight::Warning)));
        }
        // What may not be given away is not compared; it is told as the source has it.
        preserve.owner &= is_super || preserve.fake_super;
        let policy = Policy {
            append: options.place.append.is_some(),
            check: options.check,
            max_size_bytes: options.select.max_size_bytes,
            min_size_bytes: options.select.min_size_bytes,
            may_make_devices: is_super || preserve.fake_super,
            same_acls: |wanted, have| acl::same_access(wanted.0, have.0) && acl::same_default(wanted.1, have.1),
            list_only: self.list_only,
            preserve,
        };
        let policy = &policy;
        let maps = policy.preserve.owner || policy.preserve.group;
        // A client that receives tells of what it was told in its own terms.
        let tells_as_sender = self.wants.paths && !self.tells_when_open;
        let map = |entry: &mut Entry| {
            if munges && entry.kind() == Kind::Symlink {
                entry.extra_mut().target = Some(crate::plan::safelink::munge(entry.target()).into());
            }
            if !maps {
                return;
            }
            if let Some(extra) = &mut entry.extra {
                for acl in [&mut extra.acl, &mut extra.default_acl].into_iter().flatten() {
                    let map = |class| {
                        let mapper = &mapper;
                        move |id| mapper.map_in_acl(class, id, self.names)
                    };
                    *acl = acl::map_ids(acl, map(Class::User), map(Class::Group));
                }
            }
            let powers = Powers { is_super: is_super || policy.preserve.fake_super, groups: &own_groups };
            let told = (entry.uid, entry.gid);
            let (uid, gid) = mapper.wanted(entry.uid, entry.gid, powers, self.names);
            (entry.uid, entry.gid) = (uid.unwrap_or(entry.uid), gid.unwrap_or(NO_ID));
            if tells_as_sender && (entry.uid, entry.gid) != told {
                entry.extra_mut().told_ids = Some(told);
            }
        };
        self.terms.with_wanted(&policy.preserve, &map, |wanted| {
            self.run_with(start, policy, is_super, (wanted(), &wanted()), origin, listener, tally)
        })
    }

    #[allow(clippy::too_many_arguments, reason = "one caller, which made them")]
    fn run_with(
        &self,
        start: Start,
        policy: &Policy,
        is_super: bool,
        (wanted, for_backups): (Wanted<'_>, &Wanted<'_>),
        origin: &dyn Origin,
        listener: &mut dyn Listener,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let (options, stop, to) = (self.terms.options, self.terms.stop, self.to);
        let receiver_chain = self.terms.rules.chain(Side::Receiver, &to.path);
        let alternates = self.alternates(listener);
        let wants = self.wants;
        let walk = DestWalk {
            policy: policy.clone(),
            wanted,
            tells_rules: options.output.debug.filter >= 1,
            dest: to.root.as_ref(),
            delete: options.delete.when.is_some(),
            deletes_later: options.delete.when == Some(When::After),
            receiver_chain: &receiver_chain,
            unchanged: wants.unchanged
                || wants.progress
                || options.select.remove_source != RemoveSource::No
                || policy.preserve.hard_links,
            threads: self.terms.threads,
            is_dry: options.dry_run,
            alternates: &alternates,
            alt_kind: options.delta.alt_dest.as_ref().map(|alt| alt.kind),
            keep_dirlinks: policy.preserve.keep_dirlinks,
            compare: self.compare,
            resumes: &|len_bytes| resumes(options, self.wire.is_some(), len_bytes),
        };
        let whole_list_first = needs_whole_list(options, wants) || start.reaches_source;
        let top = start.top.map(|mut entry| {
            walk.wanted.adopt(&mut entry);
            let there = to.root.as_ref().filter(|_| !to.is_new).and_then(|root| {
                let mut stat = sys::fstat(root.dir().fd()).ok()?;
                if let Some(before) = to.mode_before {
                    stat.mode = stat.mode & !0o7777 | before;
                }
                let mut list = crate::flist::DirList::default();
                let there = list.push(b".", &stat);
                let full = || root.path.clone();
                let _ = walk.wanted.complete_dest(there, &stat, (root.dir(), b"."), &full, &|| b".".to_vec());
                list.entries.pop()
            });
            Top { source: entry, there, shown: start.top_shown }
        });
        let plans = origin.plans(walk, whole_list_first)?;
        let plans = &*plans;
        let opening = self.opening();
        let backup = self.backup_dir()?;
        let temp_dir = self.temp_dir()?;
        let abilities = Abilities::default();
        let delayed = Mutex::new(Vec::new());
        let rate = options.connect.bwlimit_bytes_per_sec.filter(|_| self.wire.is_none());
        let throttle = rate.map(|rate| Throttle::new(rate, stop));
        let throttle_call = throttle.as_ref().map(|throttle| move |bytes: u64| throttle.wait(bytes));
        let again = Mutex::new(Vec::new());
        let chosen = apply::similar::Chosen::default();
        let late = Arc::new(apply::late::LateNotes::default());
        let context = Context {
            late: &late,
            again: &again,
            options,
            policy,
            dest: to.root.as_ref(),
            dest_path: &to.path,
            wanted: for_backups,
            backup: backup.as_ref(),
            temp_dir: temp_dir.as_ref(),
            threads: self.terms.threads,
            umask: self.terms.umask,
            is_super,
            abilities: &abilities,
            stop,
            wants,
            throttle: throttle_call.as_ref().map(|call| call as &(dyn Fn(u64) + Sync)),
            compare: self.compare,
            alternates: &alternates,
            chosen: &chosen,
            delayed: &delayed,
            wire: self.wire,
            tells_when_open: self.tells_when_open,
            outlives_loss: self.terms.outlives_loss,
        };
        let queue: Queue<Batch> = Queue::new(sys::share_of_open_files(OPEN_PARTS, BATCHES_WAITING));
        let total = Mutex::new(std::mem::take(tally));
        let fatal: Mutex<Option<Error>> = Mutex::new(None);
        let deaf = Mutex::new(None);
        let order = InOrder::new(|events: Vec<Event>| {
            for event in &events {
                total.lock().unwrap_or_else(PoisonError::into_inner).event(event);
                listener.tell(event);
            }
            if let Some(exit) = listener.deaf() {
                deaf.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(exit);
                stop.store(true, Ordering::Relaxed);
            }
        });
        let done = |number: u64, out: Outcome<'_>| {
            total.lock().unwrap_or_else(PoisonError::into_inner).merge(&out.tally);
            if let Some(error) = out.fatal {
                if let Some(wire) = self.wire {
                    wire.give_up(&error);
                }
                fatal.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                // Now that it is known why, or others would say that they stop.
                stop.store(true, Ordering::Relaxed);
            }
            order.put(number, out.events);
        };
        let deadline = self.terms.stop_at_unix_secs;
        let out_of_time = || deadline.is_some_and(|at| crate::work::clock::now_unix().0 >= at);
        let pace = |number: u64| order.wait_for(number, BATCHES_EARLY);
        let barrier = |number: u64| order.wait_for(number, 0);
        let ended = std::thread::scope(|scope| {
            for _ in 0..self.terms.threads {
                std::thread::Builder::new()
                    .name("scan".into())
                    .spawn_scoped(scope, || plans.work())
                    .map_err(no_thread)?;
            }
            let _plans = CloseOnEnd(plans);
            {
                let _close = CloseOnDrop(&queue);
                for _ in 0..self.terms.threads {
                    let work = || {
                        let mut hands = file::Hands::default();
                        while let Some(batch) = queue.pop() {
                            let number = batch.number;
                            let live = |events: &mut Vec<Event>| match order.put_early(number, std::mem::take(events)) {
                                None => true,
                                Some(back) => {
                                    *events = back;
                                    false
                                }
                            };
                            let mut out = Outcome { live: Some(&live), ..Outcome::default() };
                            batch.carry_out(&context, &mut hands, &mut out);
                            done(number, out);
                        }
                    };
                    std::thread::Builder::new().name("apply".into()).spawn_scoped(scope, work).map_err(no_thread)?;
                }
                let source_failed = || total.lock().unwrap_or_else(PoisonError::into_inner).source_errors > 0;
                let appliers =
                    Appliers { queue: &queue, pace: &pace, barrier: &barrier, source_failed: &source_failed };
                let mut generator = Generator::new(plans, &context, appliers, &out_of_time);
                if start.has_failed {
                    generator.source_failed();
                }
                // One that is alone goes under the name that it would have got.
                let renamed = to.renamed.as_ref().filter(|_| !start.missing.is_empty());
                let renamed: Option<Vec<_>> = renamed.map(|new| RelPath::parse(new).into_iter().collect());
                let missing = renamed.as_ref().unwrap_or(&start.missing);
                let ran = generator.run(top, whole_list_first, missing, opening);
                let ended = ran.and_then(|()| generator.finish());
                if let (Err(error), Some(wire)) = (&ended, self.wire) {
                    wire.give_up(error);
                }
                ended
            }
        });
        // A run that fails leaves gaps; what was done behind them was done.
        order.finish();
        let mut sum = total.into_inner().unwrap_or_else(PoisonError::into_inner);
        for problem in std::mem::take(&mut *late.problems.lock().unwrap_or_else(PoisonError::into_inner)) {
            sum.problem(problem.weight);
            listener.tell(&Event::Problem(problem));
        }
        *tally = sum;
        let fatal = fatal.into_inner().unwrap_or_else(PoisonError::into_inner);
        let deaf = deaf.into_inner().unwrap_or_else(PoisonError::into_inner);
        // That a run stops because nobody hears it is not what stopped it.
        if let Some(error) = fatal.filter(|error| deaf.is_none() || error.exit != Exit::Signal) {
            return Err(error);
        }
        if let Some(exit) = deaf {
            return Err(Error::new(exit, "").by("sender"));
        }
        let ended = ended?;
        context.go_on()?;
        tally.delete_limit_reached = ended.held_back > 0;
        Ok(())
    }

    /// What is told before the first entry.
    fn opening(&self) -> Vec<Event> {
        let (to, options) = (self.to, self.terms.options);
        let output = &options.output;
        let made = to.made.iter().filter(|_| output.created_dir).cloned();
        let delta: &[u8] = match options.delta.whole_file {
            Some(false) => b"delta-transmission enabled",
            None if self.wire.is_some() || options.place.append.is_some() => b"delta-transmission enabled",
            Some(true) | None => b"delta-transmission disabled for local transfer or --whole-file",
        };
        let backup_dir = options.place.backup.as_ref().and_then(|backup| backup.dir.as_deref());
        let backup_dir = backup_dir.filter(|_| output.info.backup >= 1 && !self.list_only).map(|dir| {
            let is_new = sys::stat_path(&source::absolute(&to.path, dir), true).is_err();
            [if is_new { &b"(new) "[..] } else { b"" }, b"backup_dir is ", dir].concat()
        });
        let delta = (output.debug.flist >= 1 && !output.quiet).then(|| delta.to_vec());
        made.chain(backup_dir).chain(delta).map(Event::Note).collect()
    }

    /// The path of a directory that an option names from the destination. Where that is missing (dry run), nothing but
    /// its name can lead out of it.
    fn named_path(&self, dir: &[u8]) -> Vec<u8> {
        let (mut top, mut rest) = (self.to.path.as_slice(), dir);
        while let Some(above) = rest.strip_prefix(b"../")
            && sys::stat_path(top, true).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        {
            (top, rest) = (path::split_parent(top).0, above);
        }
        source::absolute(top, rest)
    }

    /// Opens the alternate trees; one that does not exist is told and left out.
    fn alternates(&self, listener: &mut dyn Listener) -> Vec<Alternate> {
        let Some(alt) = &self.terms.options.delta.alt_dest else { return Vec::new() };
        let owners = self.terms.options.preserve.link_owners;
        let mut found = Vec::new();
        for dir in &alt.dirs {
            let path = self.named_path(dir);
            let opened = operator::open_dir(&path, owners);
            let is_refused = opened.as_ref().is_err_and(operator::is_refused);
            // Whether it is there is told all the same.
            let there = if is_refused { is_dir(&path).map(|()| None) } else { opened.map(Some) };
            let root = match there {
                Ok(fd) => fd.map(|fd| Root::new(Dir::new(fd), path, Follow::Never)),
                Err(error) => {
                    let option = match alt.kind {
                        crate::options::AltKind::Compare => "--compare-dest",
                        crate::options::AltKind::Copy => "--copy-dest",
                        crate::options::AltKind::Link => "--link-dest",
                    };
                    let what =
                        if error.kind() == io::ErrorKind::NotADirectory { "is not a dir" } else { "does not exist" };
                    let given = if dir.starts_with(b"/") { dir.clone() } else { path::join(&self.to.path, dir) };
                    let line = [format!("{option} arg {what}: ").as_bytes(), &given].concat();
                    listener.tell(&Event::Problem(Problem::said(line, Weight::Warning)));
                    None
                }
            };
            if root.is_some() || is_refused {
                found.push(Alternate { root, owners });
            }
        }
        found
    }

    fn backup_dir(&self) -> Result<Option<BackupDir>, Error> {
        let Some(dir) = self.terms.options.place.backup.as_ref().and_then(|backup| backup.dir.as_ref()) else {
            return Ok(None);
        };
        let path = source::absolute(&self.to.path, dir);
        match sys::stat_path(&path, true) {
            Ok(stat) if Kind::of_mode(stat.mode) != Some(Kind::Dir) => {
                let line = [b"The backup-dir is not a directory: ", dir.as_slice()].concat();
                Err(Error::new(Exit::Usage, line).by("Receiver"))
            }
            _ => Ok(Some(BackupDir::new(path, 0o777 & !self.terms.umask, self.terms.options.preserve.link_owners))),
        }
    }

    fn temp_dir(&self) -> Result<Option<TempDir>, Error> {
        let Some(dir) = self.terms.options.place.temp_dir.as_ref() else { return Ok(None) };
        let path = source::absolute(&self.to.path, dir);
        let opened = match operator::open_dir(&path, self.terms.options.preserve.link_owners) {
            Err(error) if operator::is_refused(&error) => is_dir(&path).map(|()| TempDir::Refused),
            opened => opened.map(|fd| TempDir::Open(Dir::new(fd))),
        };
        match opened {
            Ok(temp_dir) if !dir.is_empty() => Ok(Some(temp_dir)),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                Err(Error::usage([b"The temp-dir is not a directory: ", dir.as_slice()].concat()).by("Receiver"))
            }
            _ => Err(Error::usage([b"The temp-dir does not exist: ", dir.as_slice()].concat()).by("Receiver")),
        }
    }
}

/// Errs unless a path leads to a directory, through whatever symlinks.
fn is_dir(path: &[u8]) -> io::Result<()> {
    match Kind::of_mode(sys::stat_path(path, true)?.mode) {
        Some(Kind::Dir) => Ok(()),
        _ => Err(errno::not_a_directory()),
    }
}

/// Whether everything must be known before anything is done.
pub fn needs_whole_list(options: &Options, wants: Wants) -> bool {
    options.preserve.hard_links
        || options.select.prune_empty_dirs
        || wants.whole_list
        || matches!(options.delete.when, Some(When::Before | When::After))
        // What cannot be read anywhere stops all deletion then.
        || options.delete.when == Some(When::During) && options.select.no_inc_recursive
}

struct CloseOnEnd<'a>(&'a dyn Plans);

impl Drop for CloseOnEnd<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Starts a thread of a scope.
pub fn spawn<'s, 'e>(
    scope: &'s std::thread::Scope<'s, 'e>,
    name: &str,
    work: impl FnOnce() + Send + 's,
) -> Result<(), Error> {
    let builder = std::thread::Builder::new().name(name.into());
    builder.spawn_scoped(scope, work).map(|_| ()).map_err(no_thread)
}

/// A thread could not be started.
pub fn no_thread(error: io::Error) -> Error {
    Error::new(Exit::Malloc, format!("rsync: could not start a thread: {error}"))
}

//! Both trees are here: walks them, decides, applies; nothing is ever told to a peer.

use super::apply::remove::BackupDir;
use super::apply::{self, Context, Outcome, file};
use super::generator::{Batch, Generator};
use super::scan::alternate::Alternate;
use super::scan::{Scanner, There, Walk};
use super::source::{self, Gathered, Gatherer};
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::{Rules, Side, Verdict};
use crate::flist::{DirList, Entry, Kind};
use crate::fs::acl;
use crate::fs::compare::same_bytes;
use crate::fs::copy::Abilities;
use crate::fs::ids::{self, Ids};
use crate::fs::read::Wanted;
use crate::fs::root::{Dir, Root};
use crate::fs::sys::{self, Follow};
use crate::fs::xattr::{Who, XattrPolicy};
use crate::options::{Options, Recurse, RemoveSource, When};
use crate::path;
use crate::plan::idmap::{Class, IdMapper, Names, Powers};
use crate::plan::{self, NO_ID, Policy};
use crate::report::event::{Event, Problem, Voice, Weight};
use crate::report::tally::Tally;
use crate::report::{Reporter, TextReporter};
use crate::work::clock::Since;
use crate::work::order::InOrder;
use crate::work::queue::{CloseOnDrop, Queue};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A copy between two trees on this machine.
pub struct Local<'a> {
    /// The settled options.
    pub options: &'a Options,
    /// The source arguments as given.
    pub sources: Vec<Vec<u8>>,
    /// The destination as given; `None`: list only.
    pub dest: Option<Vec<u8>>,
    /// What `--files-from` lists.
    pub listed: Option<Vec<Vec<u8>>>,
    /// The rules of the command line.
    pub rules: Rules,
    /// The working directory, absolute.
    pub cwd: &'a [u8],
    /// The umask the process had.
    pub umask: u32,
    /// Set when the run shall stop (a signal).
    pub stop: &'a AtomicBool,
    /// How many threads may work at once.
    pub threads: usize,
    /// Seconds since 1970 at which the run stops by itself.
    pub stop_at_unix_secs: Option<i64>,
}

/// Batches that wait for an applier; each holds at most 64 steps or one large file.
const BATCHES_WAITING: usize = 32;
/// Batches that may be done before their turn to be told comes; bounds what is kept for later.
const BATCHES_EARLY: u64 = 256;

/// What the destination turned out to be.
struct Destination {
    /// Its top; `None` where it does not exist (dry run).
    root: Option<Root>,
    /// Its absolute path, for messages.
    path: Vec<u8>,
    /// The one entry's new name.
    renamed: Option<Vec<u8>>,
    /// It was not there before.
    is_new: bool,
    /// Lines about directories that were made for it.
    made: Vec<Vec<u8>>,
}

impl Local<'_> {
    /// Copies. Trouble with single entries is told and counted in the tally; an error ends the run.
    pub fn run(&self, reporter: &mut TextReporter, tally: &mut Tally) -> Result<(), Error> {
        let mut gatherer = Gatherer::new(&self.options.select, self.cwd, &self.rules);
        match &self.listed {
            Some(names) => gatherer.listed(&self.sources[0], names)?,
            None => {
                for source in &self.sources {
                    gatherer.argument(source)?;
                }
            }
        }
        let gathered = gatherer.finish();
        reporter.banner();
        for problem in &gathered.problems {
            tally.problem(problem.weight);
            reporter.tell(&Event::Problem(problem.clone()));
        }
        for note in &gathered.notes {
            reporter.tell(&Event::Note(note.clone()));
        }
        if gathered.found == 0 && gathered.missing.is_empty() {
            return Ok(());
        }
        let destination = self.destination(&gathered)?;
        self.sync(&gathered, &destination, reporter, tally)
    }

    /// Finds or makes the destination.
    fn destination(&self, gathered: &Gathered) -> Result<Destination, Error> {
        let Some(arg) = &self.dest else {
            return Ok(Destination { root: None, path: Vec::new(), renamed: None, is_new: false, made: Vec::new() });
        };
        let full = source::absolute(self.cwd, arg);
        let arg: &[u8] = if arg.is_empty() { b"." } else { arg };
        let file_error = |what: &str, path: &[u8], error: &io::Error| {
            let problem = Problem::failed(Voice::MainReceiver, what, path, error);
            Error::new(Exit::FileIo, problem.line).by("Receiver")
        };
        let follow = if self.options.preserve.keep_dirlinks { Follow::Inside } else { Follow::Never };
        let open = |path: &[u8], full: Vec<u8>| -> Result<Root, Error> {
            let fd = sys::open_dir_path(path).map_err(|error| {
                let problem = Problem::failed(Voice::MainReceiver, "change_dir#1", &full, &error);
                Error::new(Exit::FileSelect, problem.line).by("Receiver")
            })?;
            Ok(Root::new(Dir::new(fd), full, follow))
        };
        let lone_dir = gathered.lone_dir.as_deref().filter(|dir| self.is_bare(dir));
        match sys::stat_path(arg, true) {
            Ok(stat) if Kind::of_mode(stat.mode) == Some(Kind::Dir) => {
                let root = open(arg, full.clone())?;
                return Ok(Destination {
                    root: Some(root),
                    path: full,
                    renamed: None,
                    is_new: false,
                    made: Vec::new(),
                });
            }
            Ok(_) if lone_dir.is_some() => {
                let line = "ERROR: cannot overwrite non-directory with a directory";
                return Err(Error::new(Exit::FileSelect, line).by("Receiver"));
            }
            Ok(_) if gathered.single.is_none() => {
                let line = "ERROR: destination must be a directory when copying more than 1 file";
                return Err(Error::new(Exit::FileSelect, line).by("Receiver"));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let shown = if arg.ends_with(b"/") { [&full, &b"/"[..]].concat() } else { full };
                let mut line = b"rsync: [Receiver] ERROR: cannot stat destination \"".to_vec();
                line.extend_from_slice(&shown);
                line.extend_from_slice(b"\": ");
                line.extend_from_slice(&crate::report::event::errno_words(&error));
                return Err(Error::new(Exit::FileSelect, line).by("Receiver"));
            }
            _ => {}
        }
        let trailing = arg.ends_with(b"/");
        let trimmed_end = arg.iter().rposition(|&b| b != b'/').map_or(arg.len(), |at| at + 1);
        let arg = &arg[..trimmed_end];
        // A list of one entry gets the destination as its name.
        let is_one = !trailing && (gathered.single.is_some() || lone_dir.is_some());
        let parent: &[u8] = match path::split_parent(arg).0 {
            b"" if arg.starts_with(b"/") => b"/",
            b"" => b".",
            parent => parent,
        };
        let mut made = Vec::new();
        if self.options.place.mkpath {
            let wanted = if is_one { parent } else { arg };
            let count = self.make_path(wanted).map_err(|error| file_error("mkdir", &full, &error))?;
            if count > 0 {
                let what = if count == 1 { "directory" } else { "directories" };
                made.push([format!("created {count} {what} for ").as_bytes(), wanted].concat());
            }
        }
        if is_one {
            let parent_full = source::absolute(self.cwd, parent);
            let there = sys::stat_path(parent, true);
            let root = match there {
                Ok(_) => Some(open(parent, parent_full.clone())?),
                Err(_) if self.options.dry_run && self.options.place.mkpath => None,
                Err(error) => {
                    let problem = Problem::failed(Voice::MainReceiver, "change_dir#3", &parent_full, &error);
                    return Err(Error::new(Exit::FileSelect, problem.line).by("Receiver"));
                }
            };
            if gathered.top.is_none() {
                let renamed = Some(path::file_name(arg).to_vec());
                return Ok(Destination { root, path: parent_full, renamed, is_new: false, made });
            }
        }
        let exists = self.options.place.mkpath && !is_one && !self.options.dry_run;
        if !self.options.dry_run
            && !exists
            && let Err(error) = sys::mkdir_path(arg, 0o777 & !self.umask)
        {
            return Err(file_error("mkdir", &full, &error));
        }
        if !exists && !is_one {
            made.push([b"created directory ", arg].concat());
        }
        let root = if self.options.dry_run { None } else { Some(open(arg, full.clone())?) };
        Ok(Destination { root, path: full, renamed: None, is_new: !exists, made })
    }

    /// What is told before the first entry.
    fn opening(&self, to: &Destination) -> Vec<Event> {
        let output = &self.options.output;
        let made = to.made.iter().filter(|_| output.created_dir).cloned();
        let delta: &[u8] = match self.options.delta.whole_file {
            Some(false) => b"delta-transmission enabled",
            Some(true) | None => b"delta-transmission disabled for local transfer or --whole-file",
        };
        let backup_dir = self.options.place.backup.as_ref().and_then(|backup| backup.dir.as_deref());
        let backup_dir = backup_dir.filter(|_| output.info.backup >= 1 && self.dest.is_some()).map(|dir| {
            let is_new = sys::stat_path(&source::absolute(&to.path, dir), true).is_err();
            [if is_new { &b"(new) "[..] } else { b"" }, b"backup_dir is ", dir].concat()
        });
        let delta = (output.debug.flist >= 1 && !output.quiet).then(|| delta.to_vec());
        made.chain(backup_dir).chain(delta).map(Event::Note).collect()
    }

    /// Makes a directory with those above it (`--mkpath`), or finds out what would be made; how many were missing.
    fn make_path(&self, path: &[u8]) -> io::Result<usize> {
        match sys::stat_path(path, true) {
            Ok(_) => return Ok(0),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => {}
        }
        let parent = path::split_parent(path).0;
        let above = if parent.is_empty() { 0 } else { self.make_path(parent)? };
        if !self.options.dry_run {
            sys::mkdir_path(path, 0o777 & !self.umask)?;
        }
        Ok(above + 1)
    }

    /// Whether a directory of the source has no entry that takes part.
    fn is_bare(&self, dir: &[u8]) -> bool {
        use std::os::fd::AsFd;
        if self.options.select.recurse != Recurse::Full {
            return !dir.ends_with(b"/");
        }
        let Ok(fd) = sys::open_dir_path(dir) else { return true };
        if self.options.select.open_noatime {
            let _ = sys::spare_atime(fd.as_fd());
        }
        let (root, inside): (&[u8], &[u8]) =
            if dir.ends_with(b"/") { (dir, b"") } else { (path::split_parent(dir).0, path::file_name(dir)) };
        let chain = self.rules.chain(Side::Sender, &source::absolute(self.cwd, root));
        let mut any = false;
        let listed = sys::list(fd.as_fd(), |entry| {
            let name = path::join(inside, entry.name);
            any |= chain.verdict(Side::Sender, &name, entry.is_dir.unwrap_or(false)) == Verdict::Include;
        });
        listed.is_ok() && !any
    }

    fn sync(
        &self,
        gathered: &Gathered,
        to: &Destination,
        reporter: &mut TextReporter,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let options = self.options;
        let ids = sys::ids();
        let is_super = options.preserve.super_user.unwrap_or(ids.0 == 0);
        let mut preserve = options.preserve.clone();
        // The sender is the one that was told; the receiver of a local copy does not munge.
        preserve.munge_links = false;
        // A listing has each name where it belongs.
        preserve.hard_links &= self.dest.is_some();
        let accounts = Accounts { ids: Ids::new() };
        let own_groups = ids::own_groups();
        let (mapper, unknown) = IdMapper::new(&preserve, &accounts);
        for name in unknown {
            reporter.tell(&Event::Problem(Problem::said(name.line(), Weight::Warning)));
        }
        let policy = Policy {
            append: options.place.append.is_some(),
            check: options.check,
            max_size_bytes: options.select.max_size_bytes,
            min_size_bytes: options.select.min_size_bytes,
            may_make_devices: is_super || preserve.fake_super,
            same_acls: |wanted, have| acl::same_access(wanted.0, have.0) && acl::same_default(wanted.1, have.1),
            list_only: self.dest.is_none(),
            preserve,
        };
        let policy = &policy;
        let maps = policy.preserve.owner || policy.preserve.group;
        let (mapper_ref, accounts_ref) = (&mapper, &accounts);
        let shape = |entry: &mut Entry| {
            if !policy.preserve.chmod.is_empty() && entry.kind() != Kind::Symlink {
                entry.mode = plan::chmod::apply(entry.mode, entry.is_dir(), &policy.preserve.chmod);
            }
            if !maps {
                return;
            }
            if let Some(extra) = &mut entry.extra {
                for acl in [&mut extra.acl, &mut extra.default_acl].into_iter().flatten() {
                    let map = |class| move |id| mapper_ref.map_in_acl(class, id, accounts_ref);
                    *acl = acl::map_ids(acl, map(Class::User), map(Class::Group));
                }
            }
            let powers = Powers { is_super: is_super || policy.preserve.fake_super, groups: &own_groups };
            let (uid, gid) = mapper.wanted(entry.uid, entry.gid, powers, &accounts);
            (entry.uid, entry.gid) = (uid.unwrap_or(NO_ID), gid.unwrap_or(NO_ID));
        };
        let who = match (policy.preserve.fake_super, ids.0) {
            (true, _) => Who::Fake,
            (false, 0) => Who::Root,
            (false, _) => Who::User,
        };
        let receiver_chain = self.rules.chain(Side::Receiver, &to.path);
        let attribute_rules = [Side::Sender, Side::Receiver].map(|side| self.rules.chain(side, b""));
        let has_rules = attribute_rules[0].xattr_verdict(Side::Sender, b"").is_some();
        let sender_rules = |name: &[u8]| attribute_rules[0].xattr_verdict(Side::Sender, name).unwrap_or(true);
        let receiver_rules = |name: &[u8]| attribute_rules[1].xattr_verdict(Side::Receiver, name).unwrap_or(true);
        let wanted = Wanted {
            hard_links: policy.preserve.hard_links,
            atimes: policy.preserve.atimes,
            xattrs: (policy.preserve.xattrs > 0).then_some((
                XattrPolicy::sender(who, policy.preserve.xattrs, has_rules.then_some(&sender_rules)),
                XattrPolicy::receiver(who, has_rules.then_some(&receiver_rules)),
            )),
            acls: policy.preserve.acls,
            fake_super: policy.preserve.fake_super,
            shape: &shape,
        };
        let dest_dir = to.path.as_slice();
        let alternates = self.alternates(dest_dir, reporter);
        let compare = |source: (&Dir, &[u8]), dest: (&Dir, &[u8])| same_content(source, dest, self.stop);
        let wants = reporter.wants();
        let walk = Walk {
            policy: policy.clone(),
            wanted,
            copy_links: options.select.copy_links,
            copy_unsafe_links: options.select.copy_unsafe_links,
            tells_unsafe: options.select.copy_unsafe_links
                && !options.select.copy_links
                && options.output.info.symsafe >= 1,
            tells_rules: options.output.debug.filter >= 1,
            unmunge_links: options.preserve.munge_links,
            copy_dirlinks: options.select.copy_dirlinks,
            open_noatime: options.select.open_noatime,
            one_file_system: options.select.one_file_system,
            dest: to.root.as_ref(),
            delete: options.delete.when.is_some(),
            receiver_chain: &receiver_chain,
            unchanged: wants.unchanged
                || wants.progress
                || options.select.remove_source != RemoveSource::No
                || policy.preserve.hard_links,
            threads: self.threads,
            is_dry: options.dry_run,
            alternates: &alternates,
            alt_kind: options.delta.alt_dest.as_ref().map(|alt| alt.kind),
            keep_dirlinks: policy.preserve.keep_dirlinks,
            compare: &compare,
        };
        let whole_list_first = policy.preserve.hard_links
            || options.select.prune_empty_dirs
            || wants.whole_list
            || matches!(options.delete.when, Some(When::Before | When::After))
            // What is copied into the source would be found there and copied again, without end.
            || to.root.as_ref().is_some_and(|root| gathered.reaches(root.dir()));
        let scanner = Scanner::new(walk, whole_list_first);
        let there = if to.root.is_some() { There::Present } else { There::Absent };
        let task = gathered.task(there, receiver_chain.clone(), to.renamed.as_deref());
        let top = gathered.top.as_ref().map(|(stat, base)| {
            let mut list = DirList::default();
            let entry = list.push(b".", stat);
            let full = || base.root.path.clone();
            let _ =
                scanner.walk().wanted.complete_source(entry, stat, (base.root.dir(), b"."), &full, &|| b".".to_vec());
            let entry = list.entries.pop().expect("pushed above");
            let there = to.root.as_ref().filter(|_| !to.is_new).and_then(|root| {
                let stat = sys::fstat(root.dir().fd()).ok()?;
                let mut list = DirList::default();
                let there = list.push(b".", &stat);
                let full = || root.path.clone();
                let _ = scanner.walk().wanted.complete_dest(there, &stat, (root.dir(), b"."), &full, &|| b".".to_vec());
                list.entries.pop()
            });
            (entry, there)
        });
        let opening = self.opening(to);
        let backup = self.backup_dir(&to.path)?;
        let temp_dir = self.temp_dir(to)?;
        let abilities = Abilities::default();
        let delayed = Mutex::new(Vec::new());
        let throttle = options.connect.bwlimit_bytes_per_sec.map(|rate| Throttle::new(rate, self.stop));
        let throttle_call = throttle.as_ref().map(|throttle| move |bytes: u64| throttle.wait(bytes));
        let again = Mutex::new(Vec::new());
        let late = Arc::new(apply::late::LateNotes::default());
        let context = Context {
            late: &late,
            again: &again,
            options,
            policy,
            dest: to.root.as_ref(),
            dest_path: &to.path,
            backup: backup.as_ref(),
            temp_dir: temp_dir.as_ref(),
            umask: self.umask,
            is_super,
            abilities: &abilities,
            stop: self.stop,
            wants,
            throttle: throttle_call.as_ref().map(|call| call as &(dyn Fn(u64) + Sync)),
            compare: &compare,
            delayed: &delayed,
        };
        let queue: Queue<Batch> = Queue::new(BATCHES_WAITING);
        let total = Mutex::new(std::mem::take(tally));
        let fatal: Mutex<Option<Error>> = Mutex::new(None);
        let order = InOrder::new(|events: Vec<Event>| {
            for event in &events {
                total.lock().unwrap_or_else(PoisonError::into_inner).event(event);
                reporter.tell(event);
            }
            if reporter.lines_are_lost() {
                self.stop.store(true, Ordering::Relaxed);
            }
        });
        let done = |number: u64, out: Outcome<'_>| {
            total.lock().unwrap_or_else(PoisonError::into_inner).merge(&out.tally);
            if let Some(error) = out.fatal {
                self.stop.store(true, Ordering::Relaxed);
                fatal.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            order.put(number, out.events);
        };
        let deadline = self.stop_at_unix_secs;
        let out_of_time = || deadline.is_some_and(|at| crate::work::clock::now_unix().0 >= at);
        let pace = |number: u64| order.wait_for(number, BATCHES_EARLY);
        let barrier = |number: u64| order.wait_for(number, 0);
        let appliers = self.threads;
        let ended = std::thread::scope(|scope| {
            for _ in 0..self.threads {
                std::thread::Builder::new()
                    .name("scan".into())
                    .spawn_scoped(scope, || scanner.work())
                    .map_err(no_thread)?;
            }
            let _scanner = CloseScanner(&scanner);
            let mut workers = Vec::new();
            {
                let _close = CloseOnDrop(&queue);
                for _ in 0..appliers {
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
                    workers.push(
                        std::thread::Builder::new()
                            .name("apply".into())
                            .spawn_scoped(scope, work)
                            .map_err(no_thread)?,
                    );
                }
                let mut generator =
                    Generator::new(&scanner, &context, &queue, &pace, &barrier, &out_of_time, late.clone());
                if options.select.one_file_system > 0
                    && let Some(Ok(stat)) = to.root.as_ref().map(|root| sys::fstat(root.dir().fd()))
                {
                    generator.stay_on(stat.dev);
                }
                let ticket = scanner.start(task);
                generator.run(ticket, top, whole_list_first, &gathered.missing, opening)?;
                generator.finish()
            }
        });
        drop(order);
        let mut sum = total.into_inner().unwrap_or_else(PoisonError::into_inner);
        for problem in std::mem::take(&mut *late.problems.lock().unwrap_or_else(PoisonError::into_inner)) {
            sum.problem(problem.weight);
            reporter.tell(&Event::Problem(problem));
        }
        *tally = sum;
        if let Some(error) = fatal.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        if reporter.lines_are_lost() {
            return Err(Error::new(Exit::Message, "").by("sender"));
        }
        let ended = ended?;
        context.go_on()?;
        tally.delete_limit_reached = ended.held_back > 0;
        Ok(())
    }

    /// Opens the alternate trees; one that does not exist is told and left out.
    fn alternates(&self, dest: &[u8], reporter: &mut TextReporter) -> Vec<Alternate> {
        let Some(alt) = &self.options.delta.alt_dest else { return Vec::new() };
        let mut found = Vec::new();
        for dir in &alt.dirs {
            let path = source::absolute(dest, dir);
            match sys::open_dir_path(&path) {
                Ok(fd) => found.push(Alternate { root: Root::new(Dir::new(fd), path, Follow::Never) }),
                Err(error) => {
                    let option = match alt.kind {
                        crate::options::AltKind::Compare => "--compare-dest",
                        crate::options::AltKind::Copy => "--copy-dest",
                        crate::options::AltKind::Link => "--link-dest",
                    };
                    let what =
                        if error.kind() == io::ErrorKind::NotADirectory { "is not a dir" } else { "does not exist" };
                    let given = if dir.starts_with(b"/") { dir.clone() } else { path::join(dest, dir) };
                    let line = [format!("{option} arg {what}: ").as_bytes(), &given].concat();
                    reporter.tell(&Event::Problem(Problem::said(line, Weight::Warning)));
                }
            }
        }
        found
    }

    fn backup_dir(&self, dest: &[u8]) -> Result<Option<BackupDir>, Error> {
        let Some(dir) = self.options.place.backup.as_ref().and_then(|backup| backup.dir.as_ref()) else {
            return Ok(None);
        };
        let path = source::absolute(dest, dir);
        match sys::stat_path(&path, true) {
            Ok(stat) if Kind::of_mode(stat.mode) != Some(Kind::Dir) => {
                let line = [b"The backup-dir is not a directory: ", dir.as_slice()].concat();
                Err(Error::new(Exit::Usage, line).by("Receiver"))
            }
            _ => Ok(Some(BackupDir::new(path, 0o777 & !self.umask))),
        }
    }

    fn temp_dir(&self, to: &Destination) -> Result<Option<Dir>, Error> {
        let Some(dir) = self.options.place.temp_dir.as_ref() else { return Ok(None) };
        match sys::open_dir_path(&source::absolute(&to.path, dir)) {
            Ok(fd) if !dir.is_empty() => Ok(Some(Dir::new(fd))),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                Err(Error::usage([b"The temp-dir is not a directory: ", dir.as_slice()].concat()).by("Receiver"))
            }
            _ => Err(Error::usage([b"The temp-dir does not exist: ", dir.as_slice()].concat()).by("Receiver")),
        }
    }
}

/// The names of users and groups of this machine, which is both sides.
struct Accounts {
    ids: Ids,
}

impl Names for Accounts {
    fn source_name(&self, class: Class, id: u32) -> Option<Vec<u8>> {
        let name = match class {
            Class::User => self.ids.user_name(id),
            Class::Group => self.ids.group_name(id),
        };
        name.map(|name| name.to_vec())
    }

    fn dest_name(&self, class: Class, id: u32) -> Option<Vec<u8>> {
        self.source_name(class, id)
    }

    fn dest_id(&self, class: Class, name: &[u8]) -> Option<u32> {
        match class {
            Class::User => self.ids.user_id(name),
            Class::Group => self.ids.group_id(name),
        }
    }
}

struct CloseScanner<'a, 'b>(&'a Scanner<'b>);

impl Drop for CloseScanner<'_, '_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn no_thread(error: io::Error) -> Error {
    Error::new(Exit::Malloc, format!("rsync: could not start a thread: {error}"))
}

/// Compares two files of one length as `--checksum` asks; fails if the run is being stopped.
fn same_content(source: (&Dir, &[u8]), dest: (&Dir, &[u8]), stop: &AtomicBool) -> io::Result<bool> {
    use std::os::fd::AsFd;
    let open = |(dir, name): (&Dir, &[u8])| sys::open_read(dir.fd(), name, true, false);
    let (source, dest) = match (open(source), open(dest)) {
        // What nobody may read on either side rsync takes to be the same.
        (Err(_), Err(_)) => return Ok(true),
        (source, dest) => (source?, dest?),
    };
    let len_bytes = sys::fstat(source.as_fd())?.len_bytes;
    Ok(sys::fstat(dest.as_fd())?.len_bytes == len_bytes && same_bytes(source.as_fd(), dest.as_fd(), len_bytes, stop)?)
}

/// Holds the bytes that are copied to a rate.
struct Throttle<'a> {
    bytes_per_sec: u64,
    state: Mutex<(u64, Since)>,
    stop: &'a AtomicBool,
}

/// The longest pause at a time, so that a signal is heard.
const PAUSE_MAX_MS: u64 = 200;

impl Throttle<'_> {
    fn new(bytes_per_sec: u64, stop: &AtomicBool) -> Throttle<'_> {
        Throttle { bytes_per_sec, state: Mutex::new((0, Since::now())), stop }
    }

    /// Waits until so many more bytes fit the rate.
    fn wait(&self, bytes: u64) {
        let due_ms = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 += bytes;
            (u128::from(state.0) * 1000 / u128::from(self.bytes_per_sec), state.1)
        };
        while !self.stop.load(Ordering::Relaxed) {
            let behind = due_ms.0.saturating_sub(due_ms.1.elapsed().as_millis()) as u64;
            if behind == 0 {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(behind.min(PAUSE_MAX_MS)));
        }
    }
}

//! Lists one directory of the source at a time, as the filter rules and the options allow.

mod contents;
mod origins;
mod rules_in_dir;

pub use self::contents::Contents;
use self::contents::ListedDigest;
use self::origins::{drop_duplicates, is_named, leave_out_further, repeated_dirs, times_of};
use self::rules_in_dir::RulesInDir;
use crate::filter::{Chain, Side};
use crate::flist::entry::Stat;
use crate::flist::{Kind, Time};
use crate::fs::compare::SHORT_BYTES;
use crate::fs::read::{EntryAt, Incomplete, ListedName, Names, Wanted};
use crate::fs::root::Dir;
use crate::fs::sys::FileVersion;
use crate::fs::{charset, errno, sys};
use crate::options::{LinkOwners, Select};
use crate::path::RelPath;
use crate::plan::explained::Fact;
use crate::plan::safelink;
use crate::report::event::{ErrorRole, Problem, Weight, strerror};
use crate::report::explainer::Explainer;
use crate::walk::dir_plan::{
    ListedDir, OPEN_PLACES_MAX, unreadable_attribute, unreadable_or_fatal,
};
use crate::walk::dir_rules::enter_dir;
use crate::walk::source_dir::SourceDir;
use crate::walk::source_task::{Listing, NamedContent, NamedEntry, Node, Origin, SourceTask};
use crate::work::clock::now_unix;
use crate::work::parallel;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A name of a source directory, and its name in the transfer.
struct NamedSource<'a> {
    place: &'a SourceDir,
    name: &'a [u8],
    called: &'a [u8],
    /// The origin of `place`, and its index.
    origin: &'a Origin,
    index: u16,
}

/// The result of examining one name.
struct ExaminedSource {
    stat: Stat,
    /// The value of a symlink.
    target: Option<Vec<u8>>,
    /// The digest of the content, if it is wanted and the file is short.
    digest: Option<ListedDigest>,
}

/// Returns the attributes of what the symlink `name` in `dir` leads to, if the options follow it although they do not
/// follow all. `path`: that of `dir` below the root of the transfer; `target`: the value of the symlink.
pub fn stat_followed(
    select: &Select,
    dir: &Dir,
    name: &[u8],
    path: &RelPath,
    target: &[u8],
) -> io::Result<Option<Stat>> {
    if select.copy_unsafe_links && safelink::is_unsafe(target, path.join(name).as_bytes()) {
        return sys::stat(dir.fd(), name, true).map(Some);
    }
    if !select.copy_dirlinks {
        return Ok(None);
    }
    match sys::stat(dir.fd(), name, true) {
        Ok(stat) => Ok(Some(stat).filter(|stat| Kind::of_mode(stat.mode) == Some(Kind::Dir))),
        Err(error) if errno::is_unreachable(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How the source is listed. Shared by all workers.
pub struct SourceWalk<'a> {
    /// Which attributes are read of each entry.
    pub wanted: Wanted<'a>,
    /// Which entries take part.
    pub select: &'a Select,
    /// `-l`: send the value of symlinks.
    pub links: bool,
    /// Print a line for each symlink that `--copy-unsafe-links` replaces.
    pub reports_unsafe: bool,
    /// Print which rule matched (`--debug=FILTER`).
    pub reports_rules: bool,
    /// Whose symlinks may lead to per-directory rule files.
    pub link_owners: LinkOwners,
    /// How to digest the content of each file: `-c` with a peer or with digests of earlier runs.
    pub contents: Option<Contents<'a>>,
    /// How many threads may list one large directory.
    pub threads: usize,
    /// Set when the results are no longer needed. A large directory is then abandoned halfway.
    pub is_over: Option<&'a AtomicBool>,
    /// The device and inode number of a directory that this run has created for its destination. It may be inside the
    /// source, which does not include it: rsync lists the source before that.
    pub left_out: Option<(u64, u64)>,
    /// Collects what is found out about the paths of `sparsync explain`.
    pub explainer: Option<&'a Explainer>,
}

impl SourceWalk<'_> {
    /// Lists one directory. Returns the tasks of its subdirectories in order, each with the index of its entry.
    pub fn list(&self, task: SourceTask) -> (ListedDir, Vec<(u32, SourceTask)>) {
        let mut found = ListedDir::default();
        found.listing.path = task.path.clone();
        if self.contents.as_ref().is_some_and(Contents::are_kept) {
            Arc::make_mut(&mut found.listing.list).hold_digests();
        }
        found.lacks_digests = self.contents.as_ref().is_some_and(|it| !it.may_be_read());
        let mut origins = task.origins;
        found.listing.is_named = is_named(&origins);
        found.listing.may_delete = !found.listing.is_named;
        leave_out_further(&mut origins, &mut found);
        let are_many = origins.len() > OPEN_PLACES_MAX;
        for (index, origin) in origins.iter_mut().enumerate() {
            self.list_origin(&mut found, index as u16, origin, task.node.as_deref());
            if are_many && let Some(Some(place)) = found.places.last_mut() {
                *place = place.closed();
            }
        }
        Arc::make_mut(&mut found.listing.list).sort();
        // An entry that several sources have counts once for each of them, as in rsync's list.
        for entry in &found.listing.list.entries {
            let name = found.listing.list.name(entry);
            let times = times_of(&origins, name, entry);
            for _ in 0..times {
                found.tally.list(entry.kind(), entry.len_bytes, name.len());
            }
        }
        let repeated = repeated_dirs(&found.listing.list, &origins);
        // With one origin, a name has two kinds if it was listed twice and replaced meanwhile.
        if origins.len() > 1 || found.listing.list.twin().is_some() {
            drop_duplicates(Arc::make_mut(&mut found.listing.list), &origins);
        }
        if let Some(contents) = &self.contents {
            self.digest_if(&mut found, contents, &|entry| entry.len_bytes > SHORT_BYTES);
        }
        let tasks = self.tasks_below(&mut found, &origins, task.node.as_deref(), &repeated);
        (found, tasks)
    }

    fn list_origin(
        &self,
        found: &mut ListedDir,
        index: u16,
        origin: &mut Origin,
        node: Option<&Node>,
    ) {
        let root = &origin.base.root;
        let opened = match origin.listing {
            Listing::All { .. } => root.open_dir(&origin.path),
            // Named entries can be reached even if the directory cannot be listed.
            Listing::Named(_) => root.open_dir_to_search(&origin.path),
        };
        let wants_device = self.select.one_file_system > 0
            && origin.dev.is_none()
            && matches!(origin.listing, Listing::All { .. });
        let opened = opened.and_then(|dir| {
            if wants_device {
                origin.dev = Some(sys::fstat(dir.fd())?.dev);
            }
            Ok(dir)
        });
        let dir = match opened {
            Ok(dir) => dir,
            Err(error) => {
                let full = origin.base.root.full(origin.path.as_bytes());
                found.listing.problems.push(match error.kind() {
                    io::ErrorKind::NotFound => vanished(&full),
                    _ => Problem::failed(ErrorRole::Sender, "opendir", &full, &error)
                        .weighing(Weight::SourceError),
                });
                found.places.push(None);
                // The content of a vanished directory is unknown. An unreadable one counts as empty; whether anything
                // is deleted after such an error is decided for the whole run.
                found.listing.may_delete &= error.kind() != io::ErrorKind::NotFound;
                return;
            }
        };
        if self.select.open_noatime {
            // If this is not permitted, the directory is read anyway.
            let _ = sys::spare_atime(dir.fd());
        }
        let place = SourceDir::new(dir.clone(), origin.base.clone(), origin.path.clone());
        let is_entered = match origin.listing {
            Listing::All { .. } => true,
            // Only if rsync would list one directory after the other during the copy do per-directory rules apply to the
            // entries that arguments name in a directory; otherwise see [`crate::walk::source_args`].
            Listing::Named(_) => !self.select.no_inc_recursive && !found.listing.path.is_root(),
        };
        if is_entered && origin.chain.has_per_dir() {
            match enter_dir(
                &origin.chain,
                &dir,
                &found.listing.path,
                "sender",
                self.link_owners,
            ) {
                Ok((chain, refusals)) => {
                    found.listing.problems.extend(refusals);
                    origin.chain = chain;
                }
                Err(error) => {
                    found.fatal.get_or_insert(error);
                    found.listing.may_delete = false;
                }
            }
            if let Listing::Named(names) = &origin.listing {
                origin.listing = Listing::Named(Arc::new(self.still_named(
                    found,
                    names,
                    &place,
                    &origin.chain,
                    node,
                )));
            }
        }
        match &origin.listing {
            Listing::All { .. } => self.list_all(found, index, &place, origin),
            Listing::Named(names) => {
                let names = names.clone();
                for named in names.iter() {
                    let name = named.renamed.as_deref().unwrap_or(&named.name);
                    if named.renamed.is_some() {
                        found.listing.renamed_from = Some(named.name.clone());
                    }
                    let examined =
                        self.examine(&place, &named.name, &found.listing.path, named.followed);
                    self.add(
                        found,
                        &NamedSource {
                            place: &place,
                            name: &named.name,
                            called: name,
                            index,
                            origin,
                        },
                        examined,
                    );
                }
            }
        }
        found.places.push(Some(place));
    }

    /// Returns the named entries of a directory that its rules include. An excluded directory stays as an implied one
    /// if other names are below it (`node`).
    fn still_named(
        &self,
        found: &mut ListedDir,
        names: &[NamedEntry],
        place: &SourceDir,
        chain: &Chain,
        node: Option<&Node>,
    ) -> Vec<NamedEntry> {
        let mut taken = Vec::with_capacity(names.len());
        for named in names {
            let path = found.listing.path.join(&named.name);
            let is_dir = || match self.stat_following(
                place,
                &named.name,
                &found.listing.path,
                named.followed,
            ) {
                Ok((stat, _)) => Kind::of_mode(stat.mode) == Some(Kind::Dir),
                Err(_) => false,
            };
            if let Some(explainer) = self.explainer
                && !named.implied
            {
                explainer.add_rule(chain, Side::Sender, &path, is_dir(), false);
            }
            let is_excluded = !named.implied
                && !chain.includes(
                    self.reports_rules,
                    Side::Sender,
                    path.as_bytes(),
                    is_dir(),
                    &mut found.listing.notes,
                );
            let leads_on = || node.is_some_and(|node| node.children.contains_key(&named.name));
            if !is_excluded {
                taken.push(named.clone());
            } else if leads_on() {
                taken.push(NamedEntry {
                    content: NamedContent::None,
                    content_arguments: Vec::new(),
                    implied: true,
                    ..named.clone()
                });
            }
        }
        taken
    }

    /// Adds all names of a directory that the rules include.
    fn list_all(&self, found: &mut ListedDir, index: u16, place: &SourceDir, origin: &Origin) {
        let mut names = Names::default();
        let listed = place.dir().and_then(|dir| names.list(&dir));
        let is_listed = listed.is_ok();
        if let Err(error) = listed {
            found.listing.problems.push(not_listed(place, &error));
        }
        if let Some(explainer) = self.explainer
            && is_listed
        {
            let dir = &found.listing.path;
            self.explain(explainer, dir, place, &origin.chain, &names);
        }

        let dir = found.listing.path.clone();
        let mut rules = RulesInDir::new(&origin.chain, self.select, self.reports_rules, &dir);
        rules.drop_excluded(&mut names, &mut found.listing.notes);
        // A name that is examined shows that the directory can be searched. Without one, this has to be asked: the result
        // would be the same, but a directory that cannot be searched stops deletions.
        if is_listed && names.items.is_empty() {
            found.listing.problems.extend(not_searchable(place));
        }
        Arc::make_mut(&mut found.listing.list).reserve(names.items.len(), names.len_bytes());

        for block in names.items.chunks(parallel::BLOCK) {
            if self
                .is_over
                .is_some_and(|is_over| is_over.load(Ordering::Relaxed))
            {
                return;
            }
            let examine =
                |&listed: &ListedName| self.examine(place, names.name(listed), &dir, false);
            let results = match self.contents {
                None => parallel::map(block, self.threads, examine),
                Some(_) => parallel::share(
                    block,
                    parallel::threads_for_files(block.len(), self.threads),
                    examine,
                ),
            };
            for (&listed, examined) in block.iter().zip(results) {
                let name = names.name(listed);
                if examined.is_err() && rules.may_exclude(listed, name, &mut found.listing.notes) {
                    continue;
                }
                if self.is_left_out(place, name, &examined) {
                    continue;
                }
                let problems = found.listing.problems.len();
                let source = NamedSource {
                    place,
                    name,
                    called: name,
                    index,
                    origin,
                };
                let is_added = self.add(found, &source, examined);
                if found.listing.problems.len() > problems
                    && let Some(problem) = not_searchable(place)
                {
                    // One line is printed for all names.
                    found.listing.problems.truncate(problems);
                    found.listing.problems.push(problem);
                    return;
                }
                if is_added {
                    rules.drop_added(listed, name, &mut found.listing);
                }
            }
        }
    }

    /// Returns whether a name that was examined takes no part for other reasons than a rule: it is the directory that this
    /// run has created for its destination, or it cannot be read and need not be.
    fn is_left_out(
        &self,
        place: &SourceDir,
        name: &[u8],
        examined: &io::Result<ExaminedSource>,
    ) -> bool {
        let Ok(ExaminedSource { stat, .. }) = examined else {
            return false;
        };
        if self.left_out == Some((stat.dev, stat.ino)) {
            return true;
        }
        // A symlink that is sent as one can always be read.
        if !self.select.ignore_unreadable || Kind::of_mode(stat.mode) == Some(Kind::Symlink) {
            return false;
        }
        !place.dir().is_ok_and(|dir| sys::may_read(dir.fd(), name))
    }

    /// Collects what the listing of a directory and the rules say about the names to explain.
    fn explain(
        &self,
        explainer: &Explainer,
        dir: &RelPath,
        place: &SourceDir,
        chain: &Chain,
        names: &Names,
    ) {
        for name in explainer.names_in(dir) {
            let path = dir.join(name);
            let listed = names.items.iter().find(|&&it| names.name(it) == name);
            let is_dir = match listed.and_then(|listed| listed.is_dir) {
                Some(true) => true,
                // A symlink may stand for a directory.
                Some(false) | None => self
                    .stat_following(place, name, dir, false)
                    .is_ok_and(|(stat, _)| Kind::of_mode(stat.mode) == Some(Kind::Dir)),
            };
            if listed.is_none() || chain.module_excludes(path.as_bytes(), is_dir) {
                explainer.add(&path, Fact::Absent(Side::Sender));
            } else {
                explainer.add_rule(chain, Side::Sender, &path, is_dir, false);
            }
        }
    }

    /// Adds a name that was examined, under its name in the transfer. Returns whether it was added.
    fn add(
        &self,
        found: &mut ListedDir,
        source: &NamedSource<'_>,
        examined: io::Result<ExaminedSource>,
    ) -> bool {
        let NamedSource {
            place,
            name,
            called,
            index,
            origin,
        } = *source;
        if self.reports_unsafe {
            note_unsafe_link(found, place, name);
        }
        let opened = examined.and_then(|examined| Ok((examined, place.dir()?)));
        let (examined, dir) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let is_named = matches!(origin.listing, Listing::Named(_));
                let problem = self.stat_problem(place, name, is_named, &error);
                found.listing.problems.push(problem);
                return false;
            }
        };
        let ExaminedSource {
            stat,
            target,
            digest,
        } = examined;
        let path = found.listing.path.join(called);
        if let Err(problem) = check_charset(place, name, path.as_bytes(), target.as_deref()) {
            found.listing.problems.push(problem);
            return false;
        }
        let is_mount_point = Self::is_mount_point(origin, &stat);
        if is_mount_point {
            if let Some(explainer) = self.explainer {
                explainer.add(&path, Fact::MountPoint);
            }
            // With `-xx`, a mount point takes no part, except where subdirectories are only listed (`-d`).
            let walks_subdirs = matches!(origin.listing, Listing::All { below: true, .. });
            if self.select.one_file_system > 1 && walks_subdirs {
                return false;
            }
        }

        let entry = Arc::make_mut(&mut found.listing.list).push(called, &stat);
        entry.origin = index;
        if is_mount_point {
            entry.extra_mut().is_mount_point = true;
        }
        if let Some(target) = target {
            entry.extra_mut().target = Some(target.into());
        }
        let at = EntryAt {
            dir: &dir,
            name,
            stat: &stat,
            full: &|| place.full(name),
            path: &|| path.as_bytes().to_vec(),
        };
        let completed = self.wanted.complete_source(entry, &at);
        if self.select.copy_devices && entry.kind() == Kind::Device {
            // An entry that represents a device (`--fake-super`) is a file with its own content.
            let stored = Stat {
                mode: entry.mode,
                uid: entry.uid,
                gid: entry.gid,
                ..stat
            };
            entry.set_stat(&stored.as_file(stat.len_bytes, now()));
            entry.extra_mut().rdev = 0;
        }
        // An entry that represents another kind (`--fake-super`) has no digest.
        if let Some(digest) = digest
            && entry.kind() == Kind::File
        {
            let list = Arc::make_mut(&mut found.listing.list);
            digest.add_to(list, list.len() - 1);
        }
        match completed {
            Ok(None) => true,
            Ok(Some((text, error))) => {
                let incomplete = Incomplete::Failed(text, error);
                let problem = unreadable_attribute("sender", incomplete, Weight::Failed);
                found.listing.problems.push(problem);
                true
            }
            Err(incomplete) => {
                match unreadable_or_fatal("sender", incomplete, Weight::SourceError) {
                    Ok(problem) => found.listing.problems.push(problem),
                    Err(error) => _ = found.fatal.get_or_insert(error),
                }
                Arc::make_mut(&mut found.listing.list).entries.pop();
                false
            }
        }
    }

    /// Returns whether `-x` stops the walk at this entry.
    fn is_mount_point(origin: &Origin, stat: &Stat) -> bool {
        Kind::of_mode(stat.mode) == Some(Kind::Dir) && origin.dev.is_some_and(|dev| dev != stat.dev)
    }

    /// Examines one name, and follows symlinks if the options require it.
    fn examine(
        &self,
        place: &SourceDir,
        name: &[u8],
        dir: &RelPath,
        followed: bool,
    ) -> io::Result<ExaminedSource> {
        let (mut stat, target) = self.stat_following(place, name, dir, followed)?;
        if self.select.copy_devices && Kind::of_mode(stat.mode) == Some(Kind::Device) {
            stat = self.content_of_device(place, name, followed, stat);
        }
        let is_short =
            stat.len_bytes <= SHORT_BYTES && Kind::of_mode(stat.mode) == Some(Kind::File);
        let digest = match &self.contents {
            // A file that cannot be read has no digest.
            Some(contents) if is_short => {
                let version = if contents.are_kept() {
                    Some(FileVersion::from_stat(&stat))
                } else {
                    None
                };
                self.digest(place, name, stat.len_bytes, version, contents)
                    .ok()
            }
            _ => None,
        };
        Ok(ExaminedSource {
            stat,
            target,
            digest,
        })
    }

    /// Returns the attributes of a name, or of what it leads to if the options require that, and the value of a
    /// symlink.
    fn stat_following(
        &self,
        place: &SourceDir,
        name: &[u8],
        dir: &RelPath,
        followed: bool,
    ) -> io::Result<(Stat, Option<Vec<u8>>)> {
        let open = place.dir()?;
        let follows = self.select.copy_links || followed;
        let keeps_digests = self.contents.as_ref().is_some_and(Contents::are_kept);
        let mut stat = if keeps_digests {
            sys::stat_with_birth(open.fd(), name, follows)?
        } else {
            sys::stat(open.fd(), name, follows)?
        };
        if Kind::of_mode(stat.mode) != Some(Kind::Symlink) {
            return Ok((stat, None));
        }
        let target = sys::read_link(open.fd(), name)?;
        if let Some(followed) = stat_followed(self.select, &open, name, dir, &target)? {
            return Ok((followed, None));
        }
        // The length of the value as stored here, whatever value is sent.
        stat.len_bytes = target.len() as u64;
        let target = if self.links { Some(target) } else { None };
        Ok((stat, target))
    }

    fn stat_problem(
        &self,
        place: &SourceDir,
        name: &[u8],
        named: bool,
        error: &io::Error,
    ) -> Problem {
        let full = place.full(name);
        if error.kind() == io::ErrorKind::NotFound {
            if place
                .dir()
                .is_ok_and(|dir| sys::stat(dir.fd(), name, false).is_ok())
            {
                let line = [b"symlink has no referent: \"", full.as_slice(), b"\""].concat();
                return Problem::new(line, Weight::SourceError);
            }
            if !named {
                return vanished(&full);
            }
            // A missing argument gives exit code 23, but does not stop deletions.
            return Problem::failed(ErrorRole::Sender, "link_stat", &full, error);
        }
        // Of a symlink that is followed because of its target, the argument itself was examined before.
        let is_examined = || {
            place
                .dir()
                .is_ok_and(|dir| sys::stat(dir.fd(), name, false).is_ok())
        };
        if named && (self.select.copy_links || !is_examined()) {
            return Problem::failed(ErrorRole::Sender, "link_stat", &full, error)
                .weighing(Weight::SourceError);
        }
        let words = crate::report::event::errno_words(error);
        let line = [
            b"rsync: [sender] readlink_stat(\"",
            &full[..],
            b"\") failed: ",
            &words,
        ]
        .concat();
        Problem::new(line, Weight::SourceError)
    }
}

/// Notes that a symlink that leads out of the transfer is copied as what it leads to (`--copy-unsafe-links`).
fn note_unsafe_link(found: &mut ListedDir, place: &SourceDir, name: &[u8]) {
    let target = place.dir().and_then(|dir| sys::read_link(dir.fd(), name));
    let Ok(target) = target else {
        return;
    };
    let link = found.listing.path.join(name);
    if safelink::is_unsafe(&target, link.as_bytes()) {
        let start = b"copying unsafe symlink \"".as_slice();
        let note = [start, link.as_bytes(), b"\" -> \"", &target, b"\""].concat();
        found.listing.notes.push(note);
    }
}

/// Returns the problem of a directory that cannot be listed.
fn not_listed(place: &SourceDir, error: &io::Error) -> Problem {
    let problem = if errno::may_not_be_listed(error) {
        // The directory of an argument was opened for search only. rsync would fail to open it for listing.
        let full = place.full(b".");
        Problem::failed(ErrorRole::Sender, "opendir", &full, &errno::denied())
    } else {
        Problem::failed(ErrorRole::Sender, "readdir", &place.full(b""), error)
    };
    problem.weighing(Weight::SourceError)
}

/// Returns the problem of a directory that can be listed but not searched.
fn not_searchable(place: &SourceDir) -> Option<Problem> {
    let searched = place.dir().and_then(|dir| sys::stat(dir.fd(), b".", false));
    let problem = |error| Problem::failed(ErrorRole::Sender, "opendir", &place.full(b""), &error);
    Some(problem(searched.err()?).weighing(Weight::SourceError))
}

/// The modification time reported for a device's content: now, because the real one is unknown.
fn now() -> Time {
    Time {
        secs: now_unix().0,
        nanos: 0,
    }
}

fn vanished(full: &[u8]) -> Problem {
    Problem::new(
        [b"file has vanished: \"", full, b"\""].concat(),
        Weight::Vanished,
    )
}

/// Fails if the peer cannot get a name or the value of a symlink, because it is not in the character set of this machine.
fn check_charset(
    place: &SourceDir,
    name: &[u8],
    path: &[u8],
    target: Option<&[u8]>,
) -> Result<(), Problem> {
    let Some(charset) = charset::of_names() else {
        return Ok(());
    };
    let problem = |what: &[&[u8]], error: &io::Error| {
        let line = [
            b"[sender] cannot convert ",
            &what.concat()[..],
            b" (",
            &strerror(error),
            b")",
        ]
        .concat();
        Problem::new(line, Weight::SourceError)
    };
    if let Some(Err(error)) = target.map(|target| charset.encode_target(target)) {
        return Err(problem(
            &[b"symlink data for: \"", &place.full(name), b"\""],
            &error,
        ));
    }
    charset
        .encode(path)
        .map(drop)
        .map_err(|error| problem(&[b"filename: ", path], &error))
}

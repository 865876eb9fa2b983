//! Carries out the step of one entry that is no directory.

use super::attrs::{self, Has, Subject};
use super::{Context, Outcome, Spot, backup, delayed, file, leaving};
use crate::flist::{Entry, Kind};
use crate::fs::root::Dir;
use crate::fs::{errno, sys, write};
use crate::options::{AltKind, CheckMode};
use crate::path::RelPath;
use crate::plan::{self, Action, Changes, InTheWay, Reason};
use crate::proto::FileId;
use crate::report::event::{Event, Item, Problem, Update, Voice, Weight};
use crate::role::scan::alternate::Hit;
use crate::role::scan::{DirPlan, NONE, Original, Place, Step};
use crate::work::gate::Gate;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One entry under work, with all that is known of it.
pub struct Job<'a> {
    /// Its directory's plan.
    pub plan: &'a DirPlan,
    /// What shall be done.
    pub step: Step,
    /// Its directory at the destination.
    pub spot: &'a Spot,
    /// Its own path.
    pub path: crate::path::RelPath,
}

impl<'a> Job<'a> {
    /// The job of a step of a plan.
    pub fn new(plan: &'a DirPlan, step: Step, spot: &'a Spot) -> Job<'a> {
        let path = spot.path.join(plan.source.name(&plan.source.entries[step.source as usize]));
        Job { plan, step, spot, path }
    }

    /// The entry of the source.
    pub fn source(&self) -> &'a Entry {
        &self.plan.source.entries[self.step.source as usize]
    }

    /// Its name at the destination.
    pub fn name(&self) -> &'a [u8] {
        self.plan.source.name(self.source())
    }

    /// The destination's entry, if it is of the same kind.
    pub fn dest(&self) -> Option<&'a Entry> {
        let there = self.any_dest()?;
        (there.kind() == self.source().kind()).then_some(there)
    }

    /// The destination's entry, whatever it is.
    pub fn any_dest(&self) -> Option<&'a Entry> {
        (self.step.dest != NONE).then(|| &self.plan.dest.entries[self.step.dest as usize])
    }

    /// What an alternate tree has for it.
    pub fn hit(&self) -> Option<&'a Hit> {
        self.plan.hits.get(&self.step.source)
    }

    /// Whether something that is no directory has its name at the destination.
    pub fn replaces(&self) -> bool {
        self.step.dest != NONE && self.step.decision.in_the_way != InTheWay::Dir
    }

    /// Where its source lies.
    pub fn place(&self) -> Option<&'a Place> {
        self.plan.place_of(self.source())
    }

    /// The same for a comparison of contents.
    pub fn original(&self) -> Original<'a> {
        Original { entry: self.source(), place: self.place(), name: self.source_name() }
    }

    /// Its number at the peer who has the source; `None`: the source is here.
    pub fn file_id(&self) -> Option<FileId> {
        self.plan.teller.as_ref().map(|teller| FileId { dir: teller.id, entry: self.step.source })
    }

    /// Its name at the source, which a single renamed argument does not share.
    pub fn source_name(&self) -> &'a [u8] {
        self.plan.renamed_from.as_deref().unwrap_or(self.name())
    }

    /// The path by which it is told of: the source's, also where the destination calls it otherwise.
    pub fn told_path(&self) -> &[u8] {
        self.plan.renamed_from.as_deref().unwrap_or(self.path.as_bytes())
    }

    /// What is told of it.
    pub fn item(&self, context: &Context<'_>, update: Update, changes: Changes) -> Box<Item> {
        let mut item = item_of(self.plan, self.source(), self.told_path(), self.source_name(), update, changes);
        let lists_digests = context.options.check.mode == CheckMode::Digest;
        if lists_digests && context.wants.digest && item.kind == Kind::File {
            item.digest = self.listed_digest(context);
        }
        item
    }

    /// The digest that rsync's list has of it under `-c`. Of a peer's file it is that of ours, where ours is the same.
    fn listed_digest(&self, context: &Context<'_>) -> Option<Vec<u8>> {
        let select = &context.options.select;
        let follow = select.copy_links || select.copy_unsafe_links;
        let opened = match self.place() {
            Some(place) => sys::open_read(place.dir.fd(), self.source_name(), follow, select.open_noatime),
            None if matches!(self.step.decision.action, Action::Keep | Action::Adjust(_)) || !context.is_dry() => {
                sys::open_read(self.spot.dir.as_ref()?.fd(), self.name(), false, false)
            }
            None => return None,
        };
        let file = opened.ok()?;
        context.shown_digest(file.as_fd())
    }
}

/// What is told of an entry.
pub fn item_of(
    plan: &DirPlan,
    source: &Entry,
    path: &[u8],
    source_name: &[u8],
    update: Update,
    changes: Changes,
) -> Box<Item> {
    let target = source.extra.as_ref().and_then(|extra| extra.target.as_deref()).map(<[u8]>::to_vec);
    let (uid, gid) = source.extra.as_ref().and_then(|extra| extra.told_ids).unwrap_or((source.uid, source.gid));
    Box::new(Item {
        name: if path.is_empty() { b".".to_vec() } else { path.to_vec() },
        sender_path: plan.shown(source, source_name).unwrap_or_else(|| path.to_vec()),
        kind: source.kind(),
        update,
        changes,
        target,
        linked_to: None,
        mode: source.mode,
        uid,
        gid,
        mtime: source.mtime,
        atime: source.extra.as_ref().and_then(|extra| extra.atime),
        len_bytes: source.len_bytes,
        moved_bytes: 0,
        digest: None,
        transfer: false,
    })
}

/// Carries out one step.
///
/// Whether the destination has the entry now.
pub fn perform(context: &Context<'_>, hands: &mut file::Hands, job: &Job<'_>, out: &mut Outcome<'_>) -> bool {
    checked(context, out);
    let is_there = carry_out(context, hands, job, out);
    if is_there {
        leaving::let_source_go(context, job, out);
    }
    is_there
}

/// Whether the destination has the entry now.
fn carry_out(context: &Context<'_>, hands: &mut file::Hands, job: &Job<'_>, out: &mut Outcome<'_>) -> bool {
    match job.step.decision.action {
        Action::Refuse(reason) => {
            refuse(context, job, reason, out);
            false
        }
        Action::Keep => keep(context, job, out),
        Action::Adjust(changes) => adjust(context, job, changes, out),
        Action::Create(changes) => create(context, job, changes, out),
        Action::Transfer(changes) => file::transfer(context, hands, job, changes, out),
        Action::Copy(changes) => copy(context, hands, job, changes, out),
        Action::Link => link(context, hands, job, out),
        Action::Elsewhere => vacate(context, job, out),
        Action::AskDigest => unreachable!("the scanner answers AskDigest before a step is made"),
    }
}

/// One more entry is looked at.
fn checked(context: &Context<'_>, out: &mut Outcome<'_>) {
    if context.wants.progress {
        out.events.push(Event::Checked(1));
    }
}

fn refuse(context: &Context<'_>, job: &Job<'_>, reason: Reason, out: &mut Outcome<'_>) {
    let info = &context.options.output.info;
    // Of what the destination has or lacks it is told by the name that it has there.
    let name = match reason {
        Reason::NotExisting | Reason::Exists | Reason::Newer => job.path.as_bytes(),
        Reason::TooLarge | Reason::TooSmall | Reason::NonRegular => job.told_path(),
        Reason::UnsafeLink | Reason::NothingToAppend | Reason::InTheWay => job.told_path(),
    };
    let quoted = |before: &str, after: &str| [before.as_bytes(), name, after.as_bytes()].concat();
    let line = match reason {
        Reason::NotExisting if info.skip >= 1 => {
            let what = if job.source().is_dir() { "directory" } else { "file" };
            quoted(&format!("not creating new {what} \""), "\"")
        }
        Reason::Exists if info.skip >= 2 => quoted("", &format!(" exists ({})", difference(context, job))),
        Reason::Exists if info.skip >= 1 => quoted("", " exists"),
        Reason::Newer if info.skip >= 1 => quoted("", " is newer"),
        Reason::TooLarge if info.skip >= 1 => quoted("", " is over max-size"),
        Reason::TooSmall if info.skip >= 1 => quoted("", " is under min-size"),
        Reason::NonRegular if info.nonreg >= 1 => quoted("skipping non-regular file \"", "\""),
        Reason::UnsafeLink if context.options.output.unsafe_links => {
            [b"ignoring unsafe symlink \"", name, b"\" -> \"", job.source().target(), b"\""].concat()
        }
        _ => return,
    };
    out.events.push(Event::Note(line));
}

/// How an entry that exists differs, in rsync's words.
fn difference(context: &Context<'_>, job: &Job<'_>) -> &'static str {
    let compare = |there: &Entry| {
        let dir = job.spot.dir.as_ref()?;
        (there.len_bytes == job.source().len_bytes)
            .then(|| (context.compare)(job.original(), (dir, job.name())).unwrap_or(false))
    };
    let Some(there) = job.dest() else { return "type change" };
    let mut action = plan::fate(job.source(), Some(there), None, context.policy).action;
    if action == Action::AskDigest {
        action = plan::fate(job.source(), Some(there), Some(compare(there).unwrap_or(false)), context.policy).action;
    }
    match action {
        Action::Keep => "uptodate",
        Action::Adjust(_) => "attr change",
        Action::Create(_)
        | Action::Transfer(_)
        | Action::AskDigest
        | Action::Refuse(_)
        | Action::Link
        | Action::Copy(_)
        | Action::Elsewhere => {
            if context.policy.check.mode == CheckMode::Digest {
                "sum change"
            } else {
                "file change"
            }
        }
    }
}

fn keep(context: &Context<'_>, job: &Job<'_>, out: &mut Outcome<'_>) -> bool {
    if context.wants.unchanged {
        out.events.push(Event::Item(job.item(context, Update::Attrs, Changes::NONE)));
    }
    true
}

fn adjust(context: &Context<'_>, job: &Job<'_>, changes: Changes, out: &mut Outcome<'_>) -> bool {
    let have = job.dest().expect("attributes are adjusted where there is an entry of the same kind");
    if context.wants.items {
        let told = if context.is_dry() { changes } else { seen_at_the_end(context, job, have, changes) };
        out.events.push(Event::Item(job.item(context, Update::Attrs, told)));
    }
    if context.is_dry() {
        return false;
    }
    let Some(dir) = &job.spot.dir else { return false };
    let mut problems = Vec::new();
    let full = || context.full(job.path.as_bytes());
    let subject =
        Subject { fd: dir.fd(), name: job.name(), full: &full, path: job.path.as_bytes(), voice: Voice::Generator };
    attrs::finish(
        context,
        subject,
        job.source(),
        Has::of(have, changes),
        file::wanted_mode(context, job),
        &mut problems,
    );
    out.events.extend(problems.into_iter().map(Event::Problem));
    true
}

/// What is told of changed attributes in a real run, which is not always what changes: rsync looks at a file
/// again once it has set owner or ACL, and compares with that. A new owner clears the set-id bits, an ACL sets
/// the others; see `tests/attrs.rs`.
fn seen_at_the_end(context: &Context<'_>, job: &Job<'_>, have: &Entry, changes: Changes) -> Changes {
    if job.source().kind() != Kind::File {
        return changes;
    }
    let wanted = file::wanted_mode(context, job);
    let mut mode = have.mode & 0o7777;
    let mut told = changes;
    if changes.any(Changes::OWNER | Changes::GROUP) && mode & 0o6000 != 0 {
        mode &= if mode & 0o010 != 0 { 0o1777 } else { 0o3777 };
        told = told.without(Changes::OWNER | Changes::GROUP);
    }
    if changes.has(Changes::ACL) {
        mode = mode & 0o7000 | wanted & 0o777;
    }
    match context.policy.preserve.perms {
        true => told.without(Changes::PERMS).with(Changes::PERMS, mode != wanted & 0o7777),
        false => told,
    }
}

/// Makes a symlink, a device, a fifo or a socket.
fn create(context: &Context<'_>, job: &Job<'_>, changes: Changes, out: &mut Outcome<'_>) -> bool {
    let told = |out: &mut Outcome| {
        if changes.has(Changes::NEW) {
            out.tally.created.add(job.source().kind());
        }
        if context.wants.line_for(changes) {
            out.events.push(Event::Item(job.item(context, Update::Local, changes)));
        }
    };
    if context.is_dry() {
        if let (true, Some(dir)) = (job.replaces(), &job.spot.dir) {
            backup::tell_backup(context, dir, &job.path, &mut out.events);
        }
        told(out);
        return false;
    }
    let Some(dir) = &job.spot.dir else { return false };
    if job.replaces()
        && let Err(problem) = backup::back_up(context, Voice::Generator, dir, &job.path, &mut out.events)
    {
        out.events.push(Event::Problem(problem));
        return false;
    }
    match make_node(context, job, dir) {
        Ok(()) => {
            job.spot.last.touch();
            told(out);
            let mut problems = Vec::new();
            let full = || context.full(job.path.as_bytes());
            let subject = Subject {
                fd: dir.fd(),
                name: job.name(),
                full: &full,
                path: job.path.as_bytes(),
                voice: Voice::Generator,
            };
            attrs::finish(
                context,
                subject,
                job.source(),
                Has::default(),
                file::wanted_mode(context, job),
                &mut problems,
            );
            out.events.extend(problems.into_iter().map(Event::Problem));
            true
        }
        Err(error) => {
            let full = context.full(job.path.as_bytes());
            let problem = if job.source().kind() == Kind::Symlink {
                let mut line = b"rsync: [generator] symlink \"".to_vec();
                line.extend_from_slice(&full);
                line.extend_from_slice(b"\" -> \"");
                line.extend_from_slice(job.source().target());
                line.extend_from_slice(b"\" failed: ");
                line.extend_from_slice(&crate::report::event::errno_words(&error));
                Problem::said(line, Weight::Failed)
            } else {
                Problem::failed(Voice::Generator, "mknod", &full, &error)
            };
            out.events.push(Event::Problem(problem));
            false
        }
    }
}

/// Makes the thing itself: in place where nothing is, else beside and then over the old one.
fn make_node(context: &Context<'_>, job: &Job<'_>, dir: &Dir) -> io::Result<()> {
    let source = job.source();
    let make = |name: &[u8]| -> io::Result<()> {
        if context.policy.preserve.fake_super {
            let fd = sys::create(dir.fd(), name, 0o600)?;
            if source.kind() == Kind::Symlink {
                use std::os::fd::AsFd;
                sys::write_all(fd.as_fd(), source.target())?;
            }
            return Ok(());
        }
        match source.kind() {
            Kind::Symlink => sys::symlink(source.target(), dir.fd(), name),
            _ => sys::mknod(dir.fd(), name, source.mode, source.extra.as_ref().map_or(0, |extra| extra.rdev)),
        }
    };
    // One call makes the real thing; what stands for it under --fake-super may be half of it for a while.
    if !job.replaces() && !context.policy.preserve.fake_super {
        match make(job.name()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other,
        }
    }
    write::put_over(dir, job.name(), make)
}

/// Makes from an alternate tree's what could not be linked, or shall not be; where that cannot be had any
/// more, from the source.
fn copy(
    context: &Context<'_>,
    hands: &mut file::Hands,
    job: &Job<'_>,
    changes: Changes,
    out: &mut Outcome<'_>,
) -> bool {
    if job.source().kind() != Kind::File {
        return create(context, job, changes, out);
    }
    let copied = job.hit().and_then(|hit| file::copy_from(context, hands, job, &hit.dir, changes, out));
    copied.unwrap_or_else(|| file::transfer(context, hands, job, Changes::NEW, out))
}

/// Links an entry of an alternate tree; where that cannot be, copies it.
fn link(context: &Context<'_>, hands: &mut file::Hands, job: &Job<'_>, out: &mut Outcome<'_>) -> bool {
    if !context.is_dry() {
        let Some(dir) = &job.spot.dir else { return false };
        let Some(hit) = job.hit() else { return copy(context, hands, job, Changes::NEW, out) };
        job.spot.last.touch();
        if !spare_other_data(context, job, dir, out) {
            return false;
        }
        match link_over(&hit.dir, job.name(), dir, job.name(), job.replaces()) {
            Ok(()) => {}
            Err(error) if errno::cannot_link(&error) => return copy(context, hands, job, Changes::NONE, out),
            Err(error) => {
                let full = context.full(job.path.as_bytes());
                out.events.push(Event::Problem(Problem::failed(Voice::Generator, "link", &full, &error)));
                return false;
            }
        }
    }
    if context.wants.unchanged {
        out.events.push(Event::Item(job.item(context, Update::HardLink, Changes::NONE)));
    }
    true
}

/// Backs up what gives way to an alternate tree's entry, unless its data is the same; `false`: it failed, and
/// why was told. rsync makes no backup here, and what was there is lost in spite of `--backup`.
fn spare_other_data(context: &Context<'_>, job: &Job<'_>, dir: &Dir, out: &mut Outcome<'_>) -> bool {
    let fate = plan::fate(job.source(), job.any_dest(), None, context.policy).action;
    let is_same = !job.replaces() || matches!(fate, Action::Keep | Action::Adjust(_));
    if is_same {
        return true;
    }
    let backed_up = backup::back_up(context, Voice::Generator, dir, &job.path, &mut out.events);
    backed_up.map_err(|problem| out.events.push(Event::Problem(problem))).is_ok()
}

/// Removes what the destination need not have because an alternate tree has it.
fn vacate(context: &Context<'_>, job: &Job<'_>, out: &mut Outcome<'_>) -> bool {
    let full = || context.full(job.path.as_bytes());
    if let (true, false, Some(dir)) = (job.replaces(), context.is_dry(), &job.spot.dir) {
        job.spot.last.touch();
        if !spare_other_data(context, job, dir, out) {
            return false;
        }
        match sys::unlink(dir.fd(), job.name()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                out.events.push(Event::Problem(Problem::failed(Voice::Generator, "unlink", &full(), &error)));
                return false;
            }
            _ => {}
        }
    }
    keep(context, job, out)
}

/// Makes a second name of an entry, over whatever has that name.
pub fn link_over(from: &Dir, old: &[u8], to: &Dir, new: &[u8], replaces: bool) -> io::Result<()> {
    if !replaces {
        match sys::link(from.fd(), old, to.fd(), new) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other,
        }
    }
    write::link_over(from, old, to, new)
}

/// The name of a hard-link group that is placed first.
pub struct Leader {
    spot: Arc<Spot>,
    path: RelPath,
    /// What the destination had under its name before.
    dest_inode: Option<(u64, u64)>,
    /// The alternate entry that it is made from.
    hit_inode: Option<(u64, u64)>,
    /// It is complete and waits for its name.
    is_delayed: AtomicBool,
    /// Its content did not come: what has its name is not what the source has.
    is_stale: AtomicBool,
    /// Opened when it is placed, or will never be.
    pub is_placed: Gate,
}

impl Leader {
    /// The leader that a job places.
    pub fn new(job: &Job<'_>, spot: Arc<Spot>) -> Leader {
        let (dest_inode, hit_inode) = (dest_inode(job), hit_inode(job));
        let no = || AtomicBool::new(false);
        let path = job.path.clone();
        Leader { spot, path, dest_inode, hit_inode, is_delayed: no(), is_stale: no(), is_placed: Gate::default() }
    }
}

/// Carries out the step of the name that leads.
pub fn lead(context: &Context<'_>, hands: &mut file::Hands, job: &Job<'_>, leader: &Leader, out: &mut Outcome<'_>) {
    let is_there = perform(context, hands, job, out);
    leader.is_stale.store(!is_there && matches!(job.step.decision.action, Action::Transfer(_)), Ordering::Relaxed);
    let is_delayed = context.options.place.delay_updates && delayed::is_delayed(context, &job.path);
    leader.is_delayed.store(is_delayed, Ordering::Relaxed);
}

/// What the destination has under a name, if that has several.
fn dest_inode(job: &Job<'_>) -> Option<(u64, u64)> {
    job.dest()?.inode.as_ref().map(|inode| (inode.dev, inode.ino))
}

fn hit_inode(job: &Job<'_>) -> Option<(u64, u64)> {
    let hit = job.hit().filter(|_| job.step.decision.action == Action::Link)?;
    inode(&hit.dir, job.name())
}

fn inode(dir: &Dir, name: &[u8]) -> Option<(u64, u64)> {
    sys::stat(dir.fd(), name, false).ok().map(|stat| (stat.dev, stat.ino))
}

/// Makes an entry a hard link to one that was placed before.
pub fn follow(context: &Context<'_>, hands: &mut file::Hands, job: &Job<'_>, leader: &Leader, out: &mut Outcome<'_>) {
    checked(context, out);
    if follow_leader(context, hands, job, leader, out) {
        leaving::let_source_go(context, job, out);
    }
}

/// Whether the destination has the entry now.
fn follow_leader(
    context: &Context<'_>,
    hands: &mut file::Hands,
    job: &Job<'_>,
    leader: &Leader,
    out: &mut Outcome<'_>,
) -> bool {
    // Names that an alternate tree has joined are as good as names that were joined here.
    let joined_elsewhere = job.any_dest().is_none() && leader.hit_inode.is_some() && hit_inode(job) == leader.hit_inode;
    let alternates = context.options.delta.alt_dest.as_ref().map(|alt| alt.kind);
    let changes = match job.step.decision.action {
        Action::Refuse(reason) => {
            refuse(context, job, reason, out);
            return false;
        }
        _ if joined_elsewhere => Changes::NONE,
        Action::Copy(changes) if alternates == Some(AltKind::Copy) => changes,
        // An alternate tree's namesake does not count otherwise for a name that follows.
        _ => match plan::fate(job.source(), job.any_dest(), Some(true), context.policy).action {
            // Its own content is not looked at.
            Action::Transfer(changes) | Action::Create(changes) => changes.without(Changes::CHECKSUM),
            Action::Adjust(changes) => changes,
            Action::Keep | Action::AskDigest | Action::Refuse(_) => Changes::NONE,
            Action::Link | Action::Copy(_) | Action::Elsewhere => Changes::NONE,
        },
    };
    let (leader_dir, leader_path) = (&leader.spot.dir, &leader.path);
    let told = |out: &mut Outcome<'_>, changes: Changes, is_linked: bool| {
        if (is_linked || joined_elsewhere) && changes.is_none() && !context.wants.unchanged {
            return;
        }
        if changes.has(Changes::NEW) {
            out.tally.created.add(job.source().kind());
        }
        if context.wants.items {
            let mut item = job.item(context, Update::HardLink, changes);
            item.linked_to = (!is_linked).then(|| leader_path.as_bytes().to_vec());
            out.events.push(Event::Item(item));
        }
    };
    if context.is_dry() {
        let linked = dest_inode(job).is_some_and(|inode| Some(inode) == leader.dest_inode);
        told(out, changes, linked);
        return false;
    }
    let (Some(dir), Some(leader_dir)) = (&job.spot.dir, leader_dir) else { return false };
    let failed = |error: &io::Error| {
        let mut line = b"rsync: [generator] link \"".to_vec();
        line.extend_from_slice(&context.full(job.path.as_bytes()));
        line.extend_from_slice(b"\" => ");
        line.extend_from_slice(leader_path.as_bytes());
        line.extend_from_slice(b" failed: ");
        line.extend_from_slice(&crate::report::event::errno_words(error));
        Event::Problem(Problem::said(line, Weight::Failed))
    };
    if leader.is_delayed.load(Ordering::Relaxed) {
        job.spot.last.touch();
        match delayed::stage_link(context, job, dir, (leader_dir, leader_path.name())) {
            Ok(()) => told(out, changes, false),
            Err(error) => out.events.push(failed(&error)),
        }
        // Its source goes when it has its name.
        return false;
    }
    let of_leader = || inode(leader_dir, leader_path.name());
    let Some(of_leader) = (!leader.is_stale.load(Ordering::Relaxed)).then(of_leader).flatten() else {
        // The leader could not be had; perhaps this name of it can.
        return carry_out(context, hands, job, out);
    };
    if job.replaces() && inode(dir, job.name()) == Some(of_leader) {
        told(out, Changes::NONE, true);
        return true;
    }
    job.spot.last.touch();
    if job.replaces()
        && let Err(problem) = backup::back_up(context, Voice::Generator, dir, &job.path, &mut out.events)
    {
        out.events.push(Event::Problem(problem));
        return false;
    }
    match link_over(leader_dir, leader_path.name(), dir, job.name(), job.replaces()) {
        Ok(()) => {
            told(out, changes, false);
            true
        }
        Err(error) => {
            out.events.push(failed(&error));
            false
        }
    }
}

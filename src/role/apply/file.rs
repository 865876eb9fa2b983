//! Brings the content of a file under its final name.

use super::attrs::{self, Has, Subject};
use super::content::{Content, Poured, Spilt, Vessel, basis_file, pour};
use super::entry::{Job, link_over};
use super::late::{self, DelayedFile};
use super::similar::Similar;
use super::{Context, Outcome, TempDir, refusal, remove};
use crate::error::Error;
use crate::exit::Exit;
use crate::flist::{Kind, Time};
use crate::fs::compare::same_bytes;
use crate::fs::copy::{Copier, CopyError, Manner};
use crate::fs::errno;
use crate::fs::operator;
use crate::fs::root::Dir;
use crate::fs::sys::{self, Follow};
use crate::fs::write::Pending;
use crate::options::{Append, RemoveSource};
use crate::path::RelPath;
use crate::plan::{Action, Changes, InTheWay, chmod, keeps_time};
use crate::proto::FileId;
use crate::proto::limits::content_max_bytes;
use crate::report::event::{Event, Problem, Update, Voice, Weight};
use crate::role::scan::Place;
use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A file of this length is told of before its data moves, if it is its turn.
const LIVE_BYTES: u64 = 1 << 20;

/// What one thread works with.
#[derive(Default)]
pub struct Hands {
    buffer: Vec<u8>,
}

/// The permission bits that an entry shall have at the destination.
pub fn wanted_mode(context: &Context<'_>, job: &Job<'_>) -> u32 {
    // A file that was transferred as an update of an alternate tree's is that one's next version.
    let updated = || job.hit().filter(|_| matches!(job.step.decision.action, Action::Transfer(_))).map(|hit| hit.mode);
    // For rsync's receiver, a file that it cannot read is none.
    let counts = || context.policy.preserve.perms || cannot_read_old(context, job).is_none();
    let existing = job.dest().filter(|_| counts()).map(|there| there.mode).or_else(updated);
    let parent = chmod::Parent { default_acl_mode: job.spot.default_acl_mode(), setgid: false };
    chmod::dest_mode(job.source().mode, existing, &context.mode_rule(), parent)
}

/// Why the file that is about to be replaced cannot be read, if that is so.
fn cannot_read_old(context: &Context<'_>, job: &Job<'_>) -> Option<io::Error> {
    const READABLE: u32 = 0o444;
    let is_transfer = matches!(job.step.decision.action, Action::Transfer(_));
    // What all may read need not be tried.
    job.dest().filter(|there| is_transfer && !context.is_super && there.mode & READABLE != READABLE)?;
    let opened = sys::open_read(job.spot.dir.as_ref()?.fd(), job.name(), false, false);
    opened.err().filter(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// How a transfer of a file ended, short of the run's end.
enum Failure {
    /// Told, and the entry is left.
    Told(Event),
    /// Nothing more to tell: it was told, or the run is being stopped.
    Stopped,
    /// The run cannot go on.
    Fatal(Error),
}

impl Failure {
    /// Whether the peer is gone.
    fn is_loss(&self) -> bool {
        matches!(self, Failure::Fatal(error) if matches!(error.exit, Exit::Stream | Exit::Timeout))
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure::Told(Event::Problem(problem))
    }
}

/// Copies a file's content from the source to its place.
///
/// Whether the destination has it now.
pub fn transfer(
    context: &Context<'_>,
    hands: &mut Hands,
    job: &Job<'_>,
    mut changes: Changes,
    out: &mut Outcome<'_>,
) -> bool {
    if !context.is_dry()
        && context.finds_differences()
        && let Some(error) = cannot_read_old(context, job)
    {
        // Without what it differs from it is as good as new.
        let full = context.full(job.path.as_bytes());
        let words = crate::report::event::errno_words(&error);
        let start = b"rsync: [generator] failed to open \"";
        let line = [start.as_slice(), &full, b"\", continuing: ", &words].concat();
        out.events.push(Event::Problem(Problem::said(line, Weight::Warning)));
        changes = Changes::NEW;
    }
    let similar = context.chosen.take(&job.path);
    out.events.extend(similar.as_ref().and_then(|similar| similar.line(context, job)).map(Event::Note));
    let mut item = job.item(context, Update::Received, changes);
    item.transfer = true;
    if context.is_dry() {
        count(out, job, changes, 0);
        if let (InTheWay::Other, Some(dir)) = (job.step.decision.in_the_way, &job.spot.dir) {
            remove::tell_backup(context, dir, &job.path, &mut out.events);
        }
        if context.wants.items {
            out.events.push(Event::Item(item));
        }
        return false;
    }
    let mut content = match open_content(context, job) {
        Ok(content) => content,
        Err(failure) => return not_sent(context, job, changes, failure, out),
    };
    if let Content::Stream { incoming, .. } = &mut content {
        match incoming.refusal() {
            Ok(None) => {}
            Ok(Some(problem)) => return not_sent(context, job, changes, problem.into(), out),
            Err(error) => return failed(Failure::Fatal(error), out),
        }
    }
    out.begun.clear();
    if context.wants.items && !context.wants.after_transfer {
        out.begun.push(Event::Item(item.clone()));
    }
    if context.wants.begin {
        out.begun.push(Event::Begin(item.name.clone()));
    }
    if !context.tells_when_open {
        tell_begun(job, out);
    }
    match place_content(context, hands, job, (&mut content, similar.as_ref()), out) {
        Ok(poured) => {
            let len_bytes = job.source().len_bytes;
            count(out, job, changes, poured.literal_bytes);
            out.tally.matched_bytes += poured.matched_bytes;
            if context.wants.progress {
                out.events.push(Event::Progress { done_bytes: len_bytes, len_bytes });
            }
            if context.wants.items && context.wants.after_transfer {
                item.moved_bytes = moved_bytes(poured.literal_bytes, context.tells_when_open);
                if context.wants.digest {
                    item.digest = digest_of(context, &content, job);
                }
                out.events.push(Event::Item(item));
            }
            true
        }
        Err(failure) => failed(failure, out),
    }
}

/// Tells that a file is under work.
fn tell_begun(job: &Job<'_>, out: &mut Outcome<'_>) {
    let begun = std::mem::take(&mut out.begun);
    out.events.extend(begun);
    if let Some(live) = out.live.filter(|_| job.source().len_bytes >= LIVE_BYTES) {
        live(&mut out.events);
    }
}

/// Counts a file that is transferred.
fn count(out: &mut Outcome<'_>, job: &Job<'_>, changes: Changes, literal_bytes: u64) {
    out.tally.transfer(job.source().len_bytes, literal_bytes);
    if changes.has(Changes::NEW) {
        out.tally.created.add(Kind::File);
    }
}

/// Tells that the source's file cannot be read. A client that has the sources counts it all the same: rsync's sender
/// counts what it sets out to send.
fn not_sent(context: &Context<'_>, job: &Job<'_>, changes: Changes, failure: Failure, out: &mut Outcome<'_>) -> bool {
    if !context.tells_when_open && !matches!(failure, Failure::Fatal(_) | Failure::Stopped) {
        count(out, job, changes, 0);
    }
    failed(failure, out)
}

/// Tells of a failure; the destination does not have the file.
fn failed(failure: Failure, out: &mut Outcome<'_>) -> bool {
    match failure {
        Failure::Told(event) => out.events.push(event),
        Failure::Stopped => {}
        Failure::Fatal(error) => out.fatal = Some(error),
    }
    false
}

/// Opens what shall be copied, here or at a peer.
fn open_content<'c>(context: &Context<'c>, job: &Job<'_>) -> Result<Content<'c>, Failure> {
    if let (Some(wire), Some(file)) = (context.wire, job.file_id()) {
        let comes_unasked = job.plan.teller.as_ref().is_some_and(|teller| teller.with_data);
        let incoming = wire.open(file, comes_unasked).map_err(Failure::Fatal)?;
        return Ok(Content::Stream { wire, file, incoming });
    }
    let Some(place) = job.place() else { return Err(Failure::Stopped) };
    let noatime = context.options.select.open_noatime;
    let follow = context.options.select.copy_links || context.options.select.copy_unsafe_links;
    sys::open_read(place.dir.fd(), job.source_name(), follow, noatime)
        .map(Content::File)
        .map_err(|error| cannot_open(&place.full(job.source_name()), &error).into())
}

/// The source's file cannot be opened.
pub fn cannot_open(full: &[u8], error: &io::Error) -> Problem {
    if error.kind() == io::ErrorKind::NotFound {
        return Problem::said([b"file has vanished: \"", full, b"\""].concat(), Weight::Vanished);
    }
    let mut line = b"rsync: [sender] send_files failed to open \"".to_vec();
    line.extend_from_slice(full);
    line.extend_from_slice(b"\": ");
    line.extend_from_slice(&crate::report::event::errno_words(error));
    Problem::said(line, Weight::SourceError)
}

/// What rsync's sender would have sent for a file of so many literal bytes: a header of 20 bytes, the
/// data in tokens of up to 32 KiB with four bytes of length each, an empty token, and a digest of 16.
fn moved_bytes(literal_bytes: u64, is_received: bool) -> u64 {
    // Its receiver does not count what the header says of the entry.
    literal_bytes + 4 * literal_bytes.div_ceil(32 * 1024) + if is_received { 36 } else { 39 }
}

/// The digest that `%C` shows; `None` if the file cannot be read again.
fn digest_of(context: &Context<'_>, content: &Content<'_>, job: &Job<'_>) -> Option<Vec<u8>> {
    let placed;
    let file = match content {
        Content::File(fd) => fd.as_fd(),
        Content::Stream { .. } => {
            placed = sys::open_read(job.spot.dir.as_ref()?.fd(), job.name(), false, false).ok()?;
            placed.as_fd()
        }
    };
    sys::seek_to(file, 0).ok()?;
    context.shown_digest(file)
}

/// An entry of the source that `--remove-source-files` removes once it arrived.
pub enum Leaving {
    /// It lies on this machine.
    Here(Original),
    /// A peer has it and is told. The peer's copy of its directory is held until then.
    There(FileId, #[allow(dead_code, reason = "it is held, not read")] Option<Arc<dyn Any + Send + Sync>>),
}

impl Leaving {
    /// The same without its descriptor, for what must wait in numbers.
    fn parked(self) -> Leaving {
        match self {
            Leaving::Here(entry) => Leaving::Here(Original { place: entry.place.parked(), is_parked: true, ..entry }),
            there @ Leaving::There(..) => there,
        }
    }

    /// Removes it, or has it removed. `arrived`: what is at the destination.
    pub fn go(&self, context: &Context<'_>, arrived: (&Dir, &[u8]), out: &mut Vec<Event>) {
        match (self, context.wire) {
            (Leaving::Here(entry), _) => entry.go(context.options.output.info.remove, Some(arrived), out),
            (Leaving::There(file, _), Some(wire)) => {
                // A lost connection is met by whoever uses it next.
                let _ = wire.placed(*file);
            }
            (Leaving::There(..), None) => unreachable!("what a peer has came over a wire"),
        }
    }
}

/// An entry of the source on this machine, as it was when it was listed.
pub struct Original {
    /// Its directory.
    pub place: Place,
    /// Its name there.
    pub name: Vec<u8>,
    /// Its path in the transfer.
    pub path: RelPath,
    /// What it is.
    pub kind: Kind,
    /// Its length and time.
    pub was: (u64, Time),
    /// It is the file that a symlink of its name leads to (`-L`).
    pub followed: bool,
    /// Its directory is to be opened anew.
    pub is_parked: bool,
}

impl Original {
    /// Removes it, if it is still what arrived, and not itself what is at the destination (`arrived`). `tells`: the level
    /// of `--info=remove`.
    pub fn go(&self, tells: u8, arrived: Option<(&Dir, &[u8])>, events: &mut Vec<Event>) {
        let skipped = |why: &str, path: &[u8]| {
            let line = [b"ERROR: Skipping sender remove ", why.as_bytes(), path].concat();
            Event::Problem(Problem::said(line, Weight::Failed))
        };
        let failed = |what: &str, error: &io::Error| {
            Event::Problem(Problem::failed(Voice::Sender, what, &self.place.full(&self.name), error))
        };
        let place = match self.is_parked {
            true => match self.place.reopened() {
                Ok(place) => place,
                Err(error) => return events.push(failed("sender failed to re-lstat", &error)),
            },
            false => self.place.clone(),
        };
        match sys::stat(place.dir.fd(), &self.name, self.followed) {
            Ok(now) if self.kind == Kind::File && (now.len_bytes, now.mtime) != self.was => {
                return events.push(skipped("for changed file: ", self.path.as_bytes()));
            }
            Ok(now) => {
                let there = arrived.and_then(|(dir, name)| sys::stat(dir.fd(), name, false).ok());
                if there.is_some_and(|there| (there.dev, there.ino) == (now.dev, now.ino)) {
                    return events.push(skipped("of destination file: ", self.path.as_bytes()));
                }
            }
            Err(error) => return events.push(failed("sender failed to re-lstat", &error)),
        }
        match sys::unlink(place.dir.fd(), &self.name) {
            Ok(()) if tells >= 1 => {
                events.push(Event::Note([b"sender removed ", self.path.as_bytes()].concat()));
            }
            Ok(()) => {}
            Err(error) => events.push(failed("sender failed to remove", &error)),
        }
    }
}

/// What `--remove-source-files` removes of an entry.
fn leaving(context: &Context<'_>, job: &Job<'_>) -> Option<Leaving> {
    let source = job.source();
    let asked = match (context.options.select.remove_source, job.step.decision.action) {
        (RemoveSource::No, _) => false,
        (RemoveSource::All, _) => true,
        (RemoveSource::Sent, Action::Transfer(_)) => true,
        (RemoveSource::Sent, Action::Create(_)) => source.kind() == Kind::Symlink,
        (RemoveSource::Sent, Action::Keep | Action::Adjust(_) | Action::AskDigest | Action::Refuse(_)) => false,
        (RemoveSource::Sent, Action::Link | Action::Copy(_) | Action::Elsewhere) => false,
    };
    if !asked || context.is_dry() {
        return None;
    }
    if let Some(file) = job.file_id() {
        let hold = job.plan.teller.as_ref().and_then(|teller| teller.hold.clone());
        return Some(Leaving::There(file, hold));
    }
    let place = job.place()?;
    Some(Leaving::Here(Original {
        is_parked: false,
        place: place.clone(),
        name: job.source_name().to_vec(),
        path: job.path.clone(),
        kind: source.kind(),
        was: (source.len_bytes, source.mtime),
        followed: context.options.select.copy_links,
    }))
}

/// Removes the source of an entry that arrived, if the options say so and it has its name already.
pub fn let_source_go(context: &Context<'_>, job: &Job<'_>, out: &mut Outcome<'_>) {
    let may_wait = matches!(job.step.decision.action, Action::Transfer(_) | Action::Copy(_) | Action::Link);
    let waits = context.options.place.delay_updates && may_wait && late::is_delayed(context, &job.path);
    if !waits && let (Some(leaving), Some(dir)) = (leaving(context, job), &job.spot.dir) {
        leaving.go(context, (dir, job.name()), &mut out.events);
    }
}

/// Makes the file from what a directory of an alternate tree has, with the source's attributes, and says whether it is
/// there now; `None`: it could not be read.
pub fn copy_from(
    context: &Context<'_>,
    hands: &mut Hands,
    job: &Job<'_>,
    holder: &Dir,
    changes: Changes,
    out: &mut Outcome<'_>,
) -> Option<bool> {
    if !context.is_dry() {
        let from = sys::open_read(holder.fd(), job.name(), false, false).ok()?;
        let mut content = Content::File(from);
        let placed = quietly(out, |out| place_content(context, hands, job, (&mut content, None), out));
        match placed {
            Ok(_) => {}
            Err(Failure::Told(event)) => {
                out.events.push(event);
                return Some(false);
            }
            Err(Failure::Stopped) => return Some(false),
            Err(Failure::Fatal(error)) => {
                out.fatal = Some(error);
                return Some(false);
            }
        }
    }
    if context.wants.line_for(changes) {
        out.events.push(Event::Item(job.item(context, Update::Local, changes)));
    }
    Some(true)
}

/// Does something of which no progress is shown, because no data of the source moves.
fn quietly<'a, T>(out: &mut Outcome<'a>, work: impl FnOnce(&mut Outcome<'a>) -> T) -> T {
    let live = out.live.take();
    let done = work(out);
    out.live = live;
    done
}

/// Copies content and gives it its name and attributes, in the manner that the options ask for.
fn place_content(
    context: &Context<'_>,
    hands: &mut Hands,
    job: &Job<'_>,
    (content, similar): (&mut Content<'_>, Option<&Similar>),
    out: &mut Outcome<'_>,
) -> Result<Poured, Failure> {
    let Some(dir) = &job.spot.dir else { return Err(Failure::Stopped) };
    let place = &context.options.place;
    if place.inplace && job.dest().is_some() {
        return overwrite(context, hands, job, dir, content, out);
    }
    let mode = wanted_mode(context, job);
    if let Some(temp_dir) = place.temp_dir.as_ref().filter(|dir| climbs(dir)) {
        let name = [job.name(), b".XXXXXX"].concat();
        let shown = context.full(&crate::path::join(temp_dir, &name));
        let error = errno::invalid();
        return Err(Problem::failed(Voice::Receiver, "mkstemp", &shown, &error).into());
    }
    let temp_dir = match context.temp_dir {
        None => None,
        Some(TempDir::Open(temp_dir)) => Some(temp_dir),
        Some(TempDir::Refused) => {
            let name = [job.name(), b".XXXXXX"].concat();
            let temp = crate::path::join(place.temp_dir.as_deref().unwrap_or_default(), &name);
            let shown = if temp.starts_with(b"/") { temp } else { context.full(&temp) };
            out.events.push(refusal());
            return Err(Problem::failed(Voice::Receiver, "mkstemp", &shown, &operator::refused()).into());
        }
    };
    let staging = staging_dir(context, job, dir)?;
    let stays = place.inplace || place.append.is_some();
    let staged = staging.as_ref().or(temp_dir.filter(|temp_dir| !stays && is_near(temp_dir, dir)));
    // Before what a crash left makes way for its successor.
    let basis = match content {
        Content::Stream { .. } => basis_file(context, job, dir, similar),
        Content::File(_) => None,
    };
    let is_named = job.replaces() || context.resumes(job.source().len_bytes);
    let pending = Pending::begin(dir, job.name(), mode & 0o777, is_named, staged).map_err(|error| {
        let name = crate::fs::write::temp_name(job.name());
        let shown = context.full(job.spot.path.join(&name).as_bytes());
        Failure::from(Problem::failed(Voice::Receiver, "mkstemp", &shown, &error))
    })?;
    tell_begun(job, out);
    job.spot.last.touch();
    if place.preallocate && job.source().len_bytes > 0 {
        let _ = sys::allocate(pending.fd(), job.source().len_bytes);
    }
    let vessel = Vessel {
        to: pending.fd(),
        start_bytes: 0,
        basis: basis.as_ref().map(|(fd, _)| fd.as_fd()),
        in_place: false,
        sparse: place.sparse,
        fresh: true,
        max_bytes: content_max_bytes(job.source().len_bytes),
        threads: context.threads,
    };
    let bytes = match fill(context, hands, job, content, vessel, out) {
        Ok(bytes) => bytes,
        Err(failure) => {
            if context.outlives_loss && is_named && failure.is_loss() {
                pending.leave();
            } else {
                keep_partial(context, job, dir, pending);
            }
            return Err(failure);
        }
    };
    if pending.has_name() {
        // What writes later has no unnamed files. Nothing may be replaced by what turns out not to have been written.
        sys::settle(pending.fd()).map_err(|error| io_failed(context, job, "close", &error))?;
    }
    let sure_of_mode = pending.has_its_mode() && job.spot.default_acl().is_none() && mode & 0o7000 == 0;
    let has = Has {
        ids: if context.temp_dir.is_none() { job.spot.new_ids(pending.fd()) } else { None },
        mode: sure_of_mode.then_some(mode),
        acls: job.spot.default_acl().is_none().then_some((b"", b"")),
        ..Has::default()
    };
    let mut problems = Vec::new();
    let full = || context.full(job.spot.path.join(&crate::fs::write::temp_name(job.name())).as_bytes());
    let subject =
        Subject { fd: pending.fd(), name: b"", full: &full, path: job.path.as_bytes(), voice: Voice::Receiver };
    if !attrs::finish(context, subject, job.source(), has, mode, &mut problems) {
        // It belongs to somebody for whom it was not meant, so it stays as private as rsync's temp files are.
        let _ = sys::fchmod(pending.fd(), 0o600);
    }
    out.events.extend(problems.into_iter().map(Event::Problem));
    if place.fsync {
        sys::fsync(pending.fd()).map_err(|error| io_failed(context, job, "fsync", &error))?;
    }
    if let (Some(staging), true) = (&staging, place.delay_updates) {
        pending.place(staging, job.name()).map_err(|error| rename_failed(context, job, &error))?;
        delay(context, job);
        if place.partial_dir.as_deref() != Some(context.staging_name()) {
            forget_partial(context, job, dir);
        }
        return Ok(bytes);
    }
    if job.replaces() {
        remove::back_up(context, Voice::Receiver, dir, &job.path, &mut out.events).map_err(no_backup)?;
    }
    pending.place(dir, job.name()).map_err(|error| rename_failed(context, job, &error))?;
    forget_partial(context, job, dir);
    Ok(bytes)
}

/// Whether a relative path may lead out of the directory where it begins; rsync refuses such a `--temp-dir`.
fn climbs(path: &[u8]) -> bool {
    !path.starts_with(b"/") && path.split(|&b| b == b'/').any(|part| part == b"..")
}

/// Whether a file can be renamed from one directory into the other. From another file system it would have to
/// be copied once more, and would be seen half-written, so its temp file is made where it belongs instead.
fn is_near(temp_dir: &Dir, dir: &Dir) -> bool {
    matches!((sys::fstat(temp_dir.fd()), sys::fstat(dir.fd())), (Ok(temp), Ok(here)) if temp.dev == here.dev)
}

/// Lets a file that is complete in its staging directory wait for its name.
fn delay(context: &Context<'_>, job: &Job<'_>) {
    let delayed = DelayedFile {
        path: job.path.clone(),
        last: job.spot.last.clone(),
        replaces: job.replaces() || context.options.place.inplace,
        leaving: leaving(context, job).map(Leaving::parked),
    };
    context.delayed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(delayed);
}

/// Stages one more name of a file that waits for its own.
pub fn stage_link(context: &Context<'_>, job: &Job<'_>, dir: &Dir, leader: (&Dir, &[u8])) -> io::Result<()> {
    let from = open_or_make(context, leader.0, context.staging_name())?;
    let to = open_or_make(context, dir, context.staging_name())?;
    link_over(&from, leader.1, &to, job.name(), true)?;
    delay(context, job);
    Ok(())
}

fn rename_failed(context: &Context<'_>, job: &Job<'_>, error: &io::Error) -> Failure {
    let temp = context.full(job.spot.path.join(&crate::fs::write::temp_name(job.name())).as_bytes());
    let mut line = b"rsync: [receiver] rename \"".to_vec();
    line.extend_from_slice(&temp);
    line.extend_from_slice(b"\" -> \"");
    line.extend_from_slice(job.path.as_bytes());
    line.extend_from_slice(b"\": ");
    line.extend_from_slice(&crate::report::event::errno_words(error));
    Problem::said(line, Weight::Failed).into()
}

/// Where a file waits under its own name: `--delay-updates`.
fn staging_dir(context: &Context<'_>, job: &Job<'_>, dir: &Dir) -> Result<Option<Dir>, Failure> {
    let place = &context.options.place;
    if !place.delay_updates {
        return Ok(None);
    }
    open_or_make(context, dir, context.staging_name()).map(Some).map_err(|error| {
        let full = context.full(job.spot.path.join(context.staging_name()).as_bytes());
        Failure::from(Problem::failed(Voice::Receiver, "mkdir", &full, &error))
    })
}

/// Opens a directory for unfinished files; what has its name and is no directory gives way.
pub(super) fn open_or_make(context: &Context<'_>, dir: &Dir, name: &[u8]) -> io::Result<Dir> {
    if name.starts_with(b"/") {
        return Ok(Dir::new(operator::make_dir(name, 0o700, context.options.preserve.link_owners)?));
    }
    match sys::mkdir(dir.fd(), name, 0o700) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if Kind::of_mode(sys::stat(dir.fd(), name, false)?.mode) != Some(Kind::Dir) {
                sys::unlink(dir.fd(), name)?;
                sys::mkdir(dir.fd(), name, 0o700)?;
            }
        }
        made => made?,
    }
    open_partial(context, dir, name)
}

/// Opens a directory for unfinished files. One that a symlink of an untrusted user hides is as if it were not there;
/// rsync ends with "got a block match with no basis file".
pub fn open_partial(context: &Context<'_>, dir: &Dir, name: &[u8]) -> io::Result<Dir> {
    Ok(Dir::new(match name.starts_with(b"/") {
        true => operator::open_dir(name, context.options.preserve.link_owners)?,
        false => sys::open_dir(dir.fd(), name, Follow::Never)?,
    }))
}

/// Keeps what there is of an interrupted file, if the options ask for it.
fn keep_partial(context: &Context<'_>, job: &Job<'_>, dir: &Dir, pending: Pending) {
    let place = &context.options.place;
    if place.inplace && !place.partial {
        // Written where it belongs: what there is stays there.
        let _ = pending.place(dir, job.name());
        return;
    }
    if !place.partial {
        return;
    }
    // The epoch as its time makes the next quick check see a difference.
    let epoch = Some(Time::default());
    match &place.partial_dir {
        None => {
            let _ = sys::utimes(pending.fd(), b"", None, epoch);
            let _ = pending.place(dir, job.name());
        }
        Some(name) => {
            if let Ok(partial_dir) = open_or_make(context, dir, name) {
                let _ = pending.place(&partial_dir, job.name());
            }
        }
    }
}

/// Removes what an earlier run had kept of a file that is complete now.
fn forget_partial(context: &Context<'_>, job: &Job<'_>, dir: &Dir) {
    let Some(name) = &context.options.place.partial_dir else { return };
    if let Ok(partial_dir) = open_partial(context, dir, name)
        && sys::unlink(partial_dir.fd(), job.name()).is_ok()
        && !name.starts_with(b"/")
    {
        let _ = sys::rmdir(dir.fd(), name);
    }
}

/// Writes into the destination's own file.
fn overwrite(
    context: &Context<'_>,
    hands: &mut Hands,
    job: &Job<'_>,
    dir: &Dir,
    content: &mut Content<'_>,
    out: &mut Outcome<'_>,
) -> Result<Poured, Failure> {
    let there = job.dest().expect("asked before");
    let full = || context.full(job.path.as_bytes());
    // What rsync takes for missing it does not keep either.
    let counts = !context.finds_differences() || cannot_read_old(context, job).is_none();
    if context.options.place.backup.is_some() && counts {
        // The file itself must stay, so its content is copied away.
        remove::copy_away(context, dir, &job.path, &mut out.events).map_err(no_backup)?;
    }
    let mode = wanted_mode(context, job);
    let (to, opened_up) = open_for_writing(dir, job.name(), there.mode)
        .map_err(|error| Failure::from(Problem::failed(Voice::Receiver, "open", &full(), &error)))?;
    tell_begun(job, out);
    let mut start = 0;
    if let Some(append) = context.options.place.append {
        start = there.len_bytes;
        let begins_otherwise = match content {
            Content::File(from) => {
                append == Append::Verify && !same_bytes(from.as_fd(), to.as_fd(), start, context.stop).unwrap_or(false)
            }
            Content::Stream { incoming, .. } => incoming.begins_otherwise().map_err(Failure::Fatal)?,
        };
        if begins_otherwise {
            if context.stopped() {
                return Err(Failure::Stopped);
            }
            let line =
                [b"WARNING: ", job.path.as_bytes(), b" failed verification -- update retained (will try again)."]
                    .concat();
            out.events.push(Event::Problem(Problem::said(line, Weight::Warning)));
            tell_again(context, job);
            start = 0;
            if let Content::Stream { wire, file, incoming } = content {
                *incoming = wire.again(*file).map_err(Failure::Fatal)?;
            }
        }
    }
    if let Content::File(from) = content {
        let moved = sys::seek_to(from.as_fd(), start).and_then(|()| sys::seek_to(to.as_fd(), start));
        moved.map_err(|error| Failure::from(Problem::failed(Voice::Receiver, "lseek", &full(), &error)))?;
    }
    let mut poured = Poured::default();
    if start < job.source().len_bytes || start == 0 || matches!(content, Content::Stream { .. }) {
        let basis = Some(to.as_fd()).filter(|_| context.options.place.append.is_none());
        let vessel = Vessel {
            to: to.as_fd(),
            start_bytes: start,
            basis,
            in_place: true,
            sparse: context.options.place.sparse,
            fresh: false,
            max_bytes: content_max_bytes(job.source().len_bytes),
            threads: context.threads,
        };
        poured = fill(context, hands, job, content, vessel, out)?;
    }
    let end = start + poured.literal_bytes + poured.matched_bytes;
    // Where nothing had to be written, this gives it the time of now, as if it had been.
    let is_unwritten = poured.literal_bytes == 0 && !keeps_time(Kind::File, &context.policy.preserve);
    if (is_unwritten || sys::fstat(to.as_fd()).is_ok_and(|stat| stat.len_bytes > end))
        && let Err(error) = sys::truncate(to.as_fd(), end)
    {
        return Err(Problem::failed(Voice::Receiver, "ftruncate", &full(), &error).into());
    }
    // Before it has the time of its source, by which the next run would take it for the same.
    sys::settle(to.as_fd()).map_err(|error| io_failed(context, job, "close", &error))?;
    if context.options.place.fsync {
        sys::fsync(to.as_fd()).map_err(|error| io_failed(context, job, "fsync", &error))?;
    }
    let mut problems = Vec::new();
    let subject = Subject { fd: to.as_fd(), name: b"", full: &full, path: job.path.as_bytes(), voice: Voice::Receiver };
    let mut has = Has::of(there, Changes::TIME | Changes::ATIME);
    has.mode = has.mode.filter(|_| !opened_up);
    attrs::finish(context, subject, job.source(), has, mode, &mut problems);
    out.events.extend(problems.into_iter().map(Event::Problem));
    Ok(poured)
}

/// Notes that a file is transferred a second time, because the first did not succeed: told at the end.
fn tell_again(context: &Context<'_>, job: &Job<'_>) {
    if context.wants.items {
        // The first attempt would have left it with the time of now.
        let changes = attrs::left_as_new(context, job.source());
        let mut item = job.item(context, Update::Received, changes);
        item.transfer = true;
        let mut again = context.again.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        again.push((job.path.clone(), Event::Item(item)));
    }
}

/// Opens a file for writing in place, making it writable first where its mode forbids that to its owner;
/// whether that was done.
fn open_for_writing(dir: &Dir, name: &[u8], mode: u32) -> io::Result<(OwnedFd, bool)> {
    match sys::open_write(dir.fd(), name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && mode & 0o200 == 0 => {
            sys::chmod(dir.fd(), name, mode | 0o600)?;
            Ok((sys::open_write(dir.fd(), name)?, true))
        }
        other => Ok((other?, false)),
    }
}

/// A file without its backup ends the run, as it does with rsync: nothing may be lost that was to be kept.
fn no_backup(problem: Problem) -> Failure {
    Failure::Fatal(Error::new(Exit::FileIo, problem.line).by("receiver"))
}

/// Fills a file with content; what a peer sends is checked, and asked for once more if it is not right.
fn fill(
    context: &Context<'_>,
    hands: &mut Hands,
    job: &Job<'_>,
    content: &mut Content<'_>,
    vessel: Vessel<'_>,
    out: &mut Outcome<'_>,
) -> Result<Poured, Failure> {
    let (wire, file, incoming) = match content {
        Content::File(from) => return fill_from_here(context, hands, job, from.as_fd(), vessel, out),
        Content::Stream { wire, file, incoming } => (*wire, *file, incoming),
    };
    let mut poured = pour(&mut **incoming, vessel, &mut stepper(context, job, out));
    if matches!(poured, Err(Spilt::Mismatch)) && !context.stopped() {
        tell_mismatch(job, true, &mut out.events);
        *incoming = wire.again(file).map_err(Failure::Fatal)?;
        if vessel.fresh {
            sys::truncate(vessel.to, 0).map_err(|error| write_failed(context, job, &error))?;
        }
        let vessel = Vessel { basis: None, start_bytes: 0, ..vessel };
        poured = pour(&mut **incoming, vessel, &mut stepper(context, job, out));
    }
    poured.map_err(|spilt| match spilt {
        Spilt::Unsent(problem) => problem.into(),
        Spilt::Mismatch | Spilt::OtherBeginning => {
            tell_mismatch(job, false, &mut out.events);
            Failure::Stopped
        }
        Spilt::Write(error) => write_failed(context, job, &error),
        Spilt::Lost(error) => Failure::Fatal(error),
        Spilt::Stopped => Failure::Stopped,
    })
}

/// Called with the bytes of each step: keeps the rate, tells of progress, and says whether to go on.
fn stepper<'s>(context: &'s Context<'_>, job: &Job<'_>, out: &'s mut Outcome<'_>) -> impl FnMut(u64) -> bool + 's {
    let len_bytes = job.source().len_bytes;
    let mut done = 0;
    let (events, live) = (&mut out.events, out.live);
    move |bytes| {
        if let Some(wait) = context.throttle {
            wait(bytes);
        }
        done += bytes;
        if let (Some(live), true) = (live, context.wants.progress && done < len_bytes) {
            events.push(Event::Progress { done_bytes: done, len_bytes });
            if !live(events) {
                events.pop();
            }
        }
        !context.stopped()
    }
}

fn fill_from_here(
    context: &Context<'_>,
    hands: &mut Hands,
    job: &Job<'_>,
    from: BorrowedFd<'_>,
    vessel: Vessel<'_>,
    out: &mut Outcome<'_>,
) -> Result<Poured, Failure> {
    let len_bytes = job.source().len_bytes;
    let (sparse, by_hand) = (vessel.sparse, context.throttle.is_some());
    let manner = Manner { len_bytes, sparse, by_hand, fresh: vessel.fresh };
    let mut step = stepper(context, job, out);
    let mut copier = Copier::new(std::mem::take(&mut hands.buffer), &context.abilities, &mut step);
    let copied = match vessel.basis {
        Some(basis) if vessel.in_place && context.finds_differences() => copier
            .copy_changed(from, basis, sparse)
            .map(|changed| Poured { literal_bytes: changed.written_bytes, matched_bytes: changed.same_bytes }),
        _ => copier.copy(from, vessel.to, manner).map(|bytes| Poured { literal_bytes: bytes, matched_bytes: 0 }),
    };
    hands.buffer = copier.into_buffer();
    if let Ok(poured) = copied
        && poured.literal_bytes + poured.matched_bytes != len_bytes
        && sys::fstat(from).is_ok_and(|stat| Kind::of_mode(stat.mode) != Some(Kind::File))
    {
        // Something else took the file's name since it was listed; an empty fifo would pass for an empty file.
        let full = job.place().map(|place| place.full(job.source_name())).unwrap_or_default();
        let line = [b"rsync: [sender] no longer a regular file: \"", full.as_slice(), b"\""].concat();
        return Err(Problem::said(line, Weight::Failed).into());
    }
    copied.map_err(|error| copy_failed(context, job, error))
}

/// What came is not what the source has: tried once more, or given up.
fn tell_mismatch(job: &Job<'_>, will_try_again: bool, events: &mut Vec<Event>) {
    let (start, end, weight): (&[u8], &[u8], _) = match will_try_again {
        true => (b"WARNING: ", b" failed verification -- update discarded (will try again).", Weight::Warning),
        false => (b"ERROR: ", b" failed verification -- update discarded.", Weight::Failed),
    };
    events.push(Event::Problem(Problem::said([start, job.path.as_bytes(), end].concat(), weight)));
}

fn copy_failed(context: &Context<'_>, job: &Job<'_>, error: CopyError) -> Failure {
    match error {
        CopyError::Stopped => Failure::Stopped,
        CopyError::Read(error) => {
            let full = job.place().map(|place| place.full(job.source_name())).unwrap_or_default();
            let mut line = b"rsync: [sender] read errors mapping \"".to_vec();
            line.extend_from_slice(&full);
            line.extend_from_slice(b"\": ");
            line.extend_from_slice(&crate::report::event::errno_words(&error));
            Problem::said(line, Weight::SourceError).into()
        }
        CopyError::Write(error) => write_failed(context, job, &error),
    }
}

fn write_failed(context: &Context<'_>, job: &Job<'_>, error: &io::Error) -> Failure {
    io_failed(context, job, "write", error)
}

/// The medium does not take a file, so the run ends.
fn io_failed(context: &Context<'_>, job: &Job<'_>, what: &str, error: &io::Error) -> Failure {
    let mut line = format!("rsync: [receiver] {what} failed on \"").into_bytes();
    line.extend_from_slice(&context.full(job.path.as_bytes()));
    line.extend_from_slice(b"\": ");
    line.extend_from_slice(&crate::report::event::errno_words(error));
    Failure::Fatal(Error::new(Exit::FileIo, line).by("receiver"))
}

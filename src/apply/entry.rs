//! Carries out the step of one entry that is not a directory.

use crate::apply::attributes::Has;
use crate::apply::job::Job;
use crate::apply::{Context, Outcome, attributes, backup, file, remove_source};
use crate::flist::{Entry, Kind};
use crate::fs::root::Dir;
use crate::fs::{errno, replace, sys, xattr};
use crate::options::CheckMode;
use crate::plan::{self, Action, Changes, Reason, Subject};
use crate::report::event::{ErrorRole, Event, Problem, Update, Weight};
use crate::walk::ComparedDest;
use std::io;
use std::os::fd::AsFd;

/// Carries out one step, and then removes the source if the options require it. Returns whether the destination has the
/// entry now.
pub fn perform(job: &Job<'_>, out: &mut Outcome<'_>) -> bool {
    checked(job.context, out);
    let exists = carry_out(job, out);
    let action = job.step.decision.action;
    let changed = &job.context.changed;
    changed.note(job.source().kind(), action, &job.dest_dir.path, job.name());
    if exists {
        remove_source::remove_sent_source(job, out);
    }
    exists
}

/// Carries out one step. Returns whether the destination has the entry now.
pub(super) fn carry_out(job: &Job<'_>, out: &mut Outcome<'_>) -> bool {
    match job.step.decision.action {
        Action::Refuse(reason) => {
            refuse(job, reason, out);
            false
        }
        Action::Keep => keep(job, out),
        Action::Adjust(changes) => adjust(job, changes, out),
        Action::Create(changes) => create(job, changes, out),
        Action::Transfer(changes) => file::transfer(job, changes, out),
        Action::Copy(changes) => copy(job, changes, out),
        Action::Link => link(job, out),
        Action::Elsewhere => vacate(job, out),
        Action::AskDigest => unreachable!("the scanner answers AskDigest before a step is made"),
    }
}

/// Reports that one more entry was checked (`--progress`).
pub(super) fn checked(context: &Context<'_>, out: &mut Outcome<'_>) {
    if context.wants.progress {
        out.events.push(Event::Checked(1));
    }
}

/// Follows an error about a directory that is left alone.
pub(super) const SKIPPED_CONTENT: &str = "*** Skipping any contents from this failed directory ***";

/// Returns the messages about an entry that the rules of a module exclude.
pub(super) fn refused_by_module(name: &[u8], is_dir: bool) -> impl Iterator<Item = Event> {
    let what = if is_dir { "directory" } else { "file" };
    let line = [
        format!("ERROR: daemon refused to receive {what} \"").as_bytes(),
        name,
        b"\"",
    ]
    .concat();
    let skipped = is_dir.then(|| Problem::new(SKIPPED_CONTENT, Weight::Warning));
    std::iter::once(Problem::new(line, Weight::Failed))
        .chain(skipped)
        .map(Event::Problem)
}

pub(super) fn refuse(job: &Job<'_>, reason: Reason, out: &mut Outcome<'_>) {
    let info = &job.context.options.output.info;
    // Reasons that concern the destination use the name there.
    let name = match reason {
        Reason::NotExisting | Reason::Exists | Reason::Newer => job.path.as_bytes(),
        Reason::TooLarge | Reason::TooSmall | Reason::NonRegular => job.reported_path(),
        Reason::UnsafeLink | Reason::NothingToAppend | Reason::InTheWay | Reason::Unknown => {
            job.reported_path()
        }
        Reason::Forbidden | Reason::NotPlanned => job.reported_path(),
    };
    let quoted = |before: &str, after: &str| [before.as_bytes(), name, after.as_bytes()].concat();
    if reason == Reason::Forbidden {
        out.events
            .extend(refused_by_module(name, job.source().is_dir()));
        return;
    }
    let line = match reason {
        Reason::NotExisting if info.skip >= 1 => {
            let what = if job.source().is_dir() {
                "directory"
            } else {
                "file"
            };
            quoted(&format!("not creating new {what} \""), "\"")
        }
        Reason::Exists if info.skip >= 2 => quoted("", &format!(" exists ({})", difference(job))),
        Reason::Exists if info.skip >= 1 => quoted("", " exists"),
        Reason::Newer if info.skip >= 1 => quoted("", " is newer"),
        Reason::TooLarge if info.skip >= 1 => quoted("", " is over max-size"),
        Reason::TooSmall if info.skip >= 1 => quoted("", " is under min-size"),
        Reason::NonRegular if info.nonreg >= 1 => quoted("skipping non-regular file \"", "\""),
        Reason::UnsafeLink if job.context.options.output.unsafe_links => [
            b"ignoring unsafe symlink \"",
            name,
            b"\" -> \"",
            job.source().target(),
            b"\"",
        ]
        .concat(),
        _ => return,
    };
    out.events.push(Event::Note(line));
}

/// Returns how an existing entry differs, in rsync's words.
fn difference(job: &Job<'_>) -> &'static str {
    let compare = |existing: &Entry| {
        if existing.len_bytes != job.source().len_bytes {
            return None;
        }
        let dest = ComparedDest {
            dir: job.dest_dir.dir.as_ref()?,
            name: job.name(),
            version: None,
        };
        Some((job.context.compare)(job.original(), dest).unwrap_or(false))
    };
    let Some(existing) = job.dest() else {
        return "type change";
    };
    let decide = |same| {
        plan::decide(
            job.source(),
            Some(existing),
            same,
            Subject::Included,
            job.context.policy,
        )
        .action
    };
    let mut action = decide(None);
    if action == Action::AskDigest {
        action = decide(Some(compare(existing).unwrap_or(false)));
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
            if job.context.policy.check.mode == CheckMode::Digest {
                "sum change"
            } else {
                "file change"
            }
        }
    }
}

fn keep(job: &Job<'_>, out: &mut Outcome<'_>) -> bool {
    if job.context.wants.unchanged {
        out.events
            .push(Event::Item(job.item(Update::Attrs, Changes::NONE)));
    }
    true
}

fn adjust(job: &Job<'_>, changes: Changes, out: &mut Outcome<'_>) -> bool {
    let have = job
        .dest()
        .expect("attributes are adjusted where there is an entry of the same kind");
    if job.context.wants.line_for(changes) {
        let shown = if job.context.is_dry() {
            changes
        } else {
            reported_changes(job, have, changes)
        };
        out.events.push(Event::Item(job.item(Update::Attrs, shown)));
    }
    if job.context.is_dry() {
        return false;
    }
    let Some(dir) = &job.dest_dir.dir else {
        return false;
    };
    if job.leaves_attributes {
        return true;
    }
    let times = plan::times_to_set(job.source(), have, changes, job.context.policy);
    set_attributes(job, dir, Has::from_entry(have, times), out);
    true
}

/// Gives an entry the attributes of the source, and reports what failed.
fn set_attributes(job: &Job<'_>, dir: &Dir, has: Has<'_>, out: &mut Outcome<'_>) {
    if !job.await_xattrs(out) {
        return;
    }
    let has = Has {
        local: job.local_values(),
        ..has
    };
    let full = || job.full();
    let target = job.target((dir.fd(), job.name()), &full, ErrorRole::Generator);
    attributes::finish(
        job.context,
        target,
        job.source(),
        has,
        job.wanted_mode(),
        &mut out.events,
    );
}

/// Returns the attribute changes that a real run reports. rsync examines a file again after setting owner or ACL and
/// compares with that: a new owner clears the set-ID bits and capabilities, an ACL sets the other bits; see
/// `tests/attrs.rs`.
fn reported_changes(job: &Job<'_>, have: &Entry, changes: Changes) -> Changes {
    // --fake-super sets neither: it stores them.
    if job.source().kind() != Kind::File || job.context.policy.preserve.fake_super {
        return changes;
    }
    let wanted = job.wanted_mode();
    let mut mode = have.mode & 0o7777;
    let has_capabilities = |entry: &Entry| xattr::find(entry.xattrs(), xattr::CAPABILITY).is_some();
    let loses_capabilities = changes.any(Changes::OWNER | Changes::GROUP)
        && has_capabilities(have)
        && has_capabilities(job.source());
    let mut reported = changes.with(Changes::XATTR, loses_capabilities);
    if changes.any(Changes::OWNER | Changes::GROUP) && mode & 0o6000 != 0 {
        mode &= if mode & 0o010 != 0 { 0o1777 } else { 0o3777 };
        reported = reported.without(Changes::OWNER | Changes::GROUP);
    }
    if changes.has(Changes::ACL) {
        mode = mode & 0o7000 | wanted & 0o777;
    }
    if !job.context.policy.preserve.perms {
        return reported;
    }
    reported
        .without(Changes::PERMS)
        .with(Changes::PERMS, mode != wanted & 0o7777)
}

/// Creates a symlink, a device, a fifo or a socket.
fn create(job: &Job<'_>, changes: Changes, out: &mut Outcome<'_>) -> bool {
    let report_creation = |out: &mut Outcome| {
        if changes.has(Changes::NEW) {
            out.tally.created.add(job.source().kind());
        }
        if job.context.wants.line_for(changes) {
            out.events
                .push(Event::Item(job.item(Update::Local, changes)));
        }
    };
    if job.context.is_dry() {
        if let (true, Some(dir)) = (job.replaces(), &job.dest_dir.dir) {
            backup::report_backup(job.context, dir, &job.path, &mut out.events);
        }
        report_creation(out);
        return false;
    }
    let Some(dir) = &job.dest_dir.dir else {
        return false;
    };
    if let Err(problem) = backup::back_up_replaced(
        job.context,
        ErrorRole::Generator,
        dir,
        &job.path,
        job.replaces(),
        &mut out.events,
    ) {
        out.events.push(Event::Problem(problem));
        return false;
    }
    match make_node(job, dir) {
        Ok(()) => {
            job.dest_dir.last.touch();
            report_creation(out);
            set_attributes(job, dir, Has::default(), out);
            true
        }
        Err(error) => {
            let full = job.full();
            let problem = if job.source().kind() == Kind::Symlink {
                let target = job.source().target();
                let words = crate::report::event::errno_words(&error);
                let start = b"rsync: [generator] symlink \"";
                let line = [
                    start,
                    &full[..],
                    b"\" -> \"",
                    target,
                    b"\" failed: ",
                    &words,
                ]
                .concat();
                Problem::new(line, Weight::Failed)
            } else {
                Problem::failed(ErrorRole::Generator, "mknod", &full, &error)
            };
            out.events.push(Event::Problem(problem));
            false
        }
    }
}

/// Creates the node: directly if its name is free, otherwise under another name and then over the old entry.
fn make_node(job: &Job<'_>, dir: &Dir) -> io::Result<()> {
    let source = job.source();
    let make = |name: &[u8]| -> io::Result<()> {
        if job.context.policy.preserve.fake_super {
            let fd = sys::create(dir.fd(), name, 0o600)?;
            if source.kind() == Kind::Symlink {
                sys::write_all(fd.as_fd(), source.target())?;
            }
            return Ok(());
        }
        match source.kind() {
            Kind::Symlink => sys::symlink(source.target(), dir.fd(), name),
            _ => sys::mknod(
                dir.fd(),
                name,
                source.mode & !job.context.process.umask,
                source.extra.as_ref().map_or(0, |extra| extra.rdev),
            ),
        }
    };
    // One call creates the real node. Its replacement under --fake-super could be seen incomplete.
    if !job.replaces() && !job.context.policy.preserve.fake_super {
        match make(job.name()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other,
        }
    }
    replace::put_over(dir, job.name(), make)
}

/// Copies an entry of an alternate tree under `--copy-dest`, or because it could not be linked. If it is gone, the
/// source is used.
fn copy(job: &Job<'_>, changes: Changes, out: &mut Outcome<'_>) -> bool {
    if job.source().kind() != Kind::File {
        return create(job, changes, out);
    }
    let copied = job
        .hit()
        .and_then(|hit| file::copy_from(job, &hit.dir, changes, out));
    copied.unwrap_or_else(|| file::transfer(job, Changes::NEW, out))
}

/// Links an entry of an alternate tree, or copies it if it cannot be linked.
fn link(job: &Job<'_>, out: &mut Outcome<'_>) -> bool {
    if !job.context.is_dry() {
        let Some(dir) = &job.dest_dir.dir else {
            return false;
        };
        let Some(hit) = job.hit() else {
            return copy(job, Changes::NEW, out);
        };
        job.dest_dir.last.touch();
        if !back_up_other_data(job, dir, out) {
            return false;
        }
        match replace::link(&hit.dir, job.name(), dir, job.name(), job.replaces()) {
            Ok(()) => {}
            Err(error) if errno::cannot_link(&error) => return copy(job, Changes::NONE, out),
            Err(error) => {
                let full = job.full();
                out.events.push(Event::Problem(Problem::failed(
                    ErrorRole::Generator,
                    "link",
                    &full,
                    &error,
                )));
                return false;
            }
        }
    }
    if job.context.wants.unchanged {
        out.events
            .push(Event::Item(job.item(Update::HardLink, Changes::NONE)));
    }
    true
}

/// Backs up what an alternate tree's entry replaces, unless its data is the same. `false`: this failed and was
/// reported. rsync makes no backup here, and the old file is lost in spite of `--backup`.
fn back_up_other_data(job: &Job<'_>, dir: &Dir, out: &mut Outcome<'_>) -> bool {
    let is_kept = if job.replaces() {
        backup::has_same_data(job.source(), job.any_dest(), job.context.policy)
    } else {
        !backup::is_backup(job.context, &job.path)
    };
    if is_kept {
        return true;
    }
    let backed_up = backup::back_up(
        job.context,
        ErrorRole::Generator,
        dir,
        &job.path,
        &mut out.events,
    );
    backed_up
        .map_err(|problem| out.events.push(Event::Problem(problem)))
        .is_ok()
}

/// Removes an entry that the destination does not need because an alternate tree has it.
fn vacate(job: &Job<'_>, out: &mut Outcome<'_>) -> bool {
    let full = || job.full();
    if let (true, false, Some(dir)) = (job.replaces(), job.context.is_dry(), &job.dest_dir.dir) {
        job.dest_dir.last.touch();
        if !back_up_other_data(job, dir, out) {
            return false;
        }
        match sys::unlink(dir.fd(), job.name()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                out.events.push(Event::Problem(Problem::failed(
                    ErrorRole::Generator,
                    "unlink",
                    &full(),
                    &error,
                )));
                return false;
            }
            _ => {}
        }
    }
    keep(job, out)
}

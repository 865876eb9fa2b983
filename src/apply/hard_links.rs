//! Hard links (`-H`): places the leading name of a file, and links the other names to it.

use crate::apply::entry::{carry_out, checked, perform, refuse};
use crate::apply::job::Job;
use crate::apply::{ApplierState, Context, DestDir, Outcome, backup, delayed, remove_source};
use crate::fs::root::Dir;
use crate::fs::{errno, replace, sys};
use crate::options::AltKind;
use crate::path::RelPath;
use crate::plan::explained::Fact;
use crate::plan::{self, Action, Changes, Policy, Reason, Subject, unkept_time};
use crate::report::event::{ErrorRole, Event, Problem, Update, Weight};
use crate::work::latch::Gate;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The name of a hard-link group that is placed first.
#[derive(Default)]
pub struct Leader {
    /// The directory that it is placed in; `None` once that is closed, see [`Leader::leave`].
    dest_dir: Mutex<Option<Arc<DestDir>>>,
    pub path: RelPath,
    /// In a dry run, the inode that has its name at the destination.
    dest_inode: Option<(u64, u64)>,
    /// The inode of the alternate tree's entry that it is made from.
    hit_inode: Option<(u64, u64)>,
    /// It is complete and waits for its final name.
    is_delayed: AtomicBool,
    /// Its content was not transferred: the entry under its name is not the source's.
    is_stale: AtomicBool,
    /// Opened when it is placed or has failed.
    pub is_placed: Gate,
}

impl Leader {
    /// Creates the leader that a job places. In a dry run, followers are compared with the destination's entry.
    pub fn new(job: &Job<'_>, dest_dir: Arc<DestDir>) -> Leader {
        let dest_inode = if job.context.is_dry() {
            dest_inode(job)
        } else {
            None
        };
        Leader {
            dest_dir: Mutex::new(Some(dest_dir)),
            dest_inode,
            hit_inode: hit_inode(job),
            path: job.path.clone(),
            ..Leader::default()
        }
    }

    /// Closes the directory of a placed leader: more leaders are remembered than directories can be open.
    fn leave(&self) {
        let mut dest_dir = self.dest_dir.lock();
        // It can be opened again by its path, unless its final mode will prevent that.
        *dest_dir = dest_dir.take().filter(|dest_dir| dest_dir.last.shuts());
    }

    /// Returns what must be remembered of a placed leader besides its path. `None`: more than [`PlacedLeader`] is needed.
    pub fn rest(&mut self) -> Option<PlacedLeader> {
        let is_left = self.dest_dir.get_mut().is_none();
        let is_bare = is_left && self.dest_inode.is_none() && self.hit_inode.is_none();
        let is_delayed = *self.is_delayed.get_mut();
        let is_stale = *self.is_stale.get_mut();
        if !is_bare {
            return None;
        }
        Some(PlacedLeader {
            is_delayed,
            is_stale,
        })
    }

    /// Restores a placed leader.
    pub fn left(path: RelPath, left: PlacedLeader) -> Leader {
        let is_delayed = left.is_delayed.into();
        let is_stale = left.is_stale.into();
        let leader = Leader {
            path,
            is_delayed,
            is_stale,
            ..Leader::default()
        };
        leader.is_placed.open();
        leader
    }

    /// Returns its directory.
    fn dir(&self, context: &Context<'_>, applier: &mut ApplierState) -> io::Result<Option<Dir>> {
        let dest_dir = self.dest_dir.lock().clone();
        match (dest_dir, context.dest) {
            (Some(dest_dir), _) => Ok(dest_dir.dir.clone()),
            (None, Some(root)) => applier
                .dir_of_leader(root, self.path.parent().unwrap_or_default())
                .map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// What is remembered of a placed leader, besides its path.
#[derive(Debug, Clone, Copy)]
pub struct PlacedLeader {
    /// See [`Leader`].
    is_delayed: bool,
    /// See [`Leader`].
    is_stale: bool,
}

/// Carries out the step of the leading name.
pub fn lead(job: &Job<'_>, leader: &Leader, out: &mut Outcome<'_>) {
    let exists = perform(job, out);
    leader.is_stale.store(
        !exists && matches!(job.step.decision.action, Action::Transfer(_)),
        Ordering::Relaxed,
    );
    let is_delayed =
        job.context.options.place.delay_updates && delayed::is_delayed(job.context, &job.path);
    leader.is_delayed.store(is_delayed, Ordering::Relaxed);
    leader.leave();
}

/// Returns the inode that the destination has under a name, if it has several names.
fn dest_inode(job: &Job<'_>) -> Option<(u64, u64)> {
    job.dest()?
        .inode
        .as_ref()
        .map(|inode| (inode.dev, inode.ino))
}

fn hit_inode(job: &Job<'_>) -> Option<(u64, u64)> {
    if job.step.decision.action != Action::Link {
        return None;
    }
    let hit = job.hit()?;
    inode(&hit.dir, job.name()).ok().flatten()
}

/// Returns device and inode of an entry, or `None` if it does not exist.
fn inode(dir: &Dir, name: &[u8]) -> io::Result<Option<(u64, u64)>> {
    let stat = errno::if_there(sys::stat(dir.fd(), name, false))?;
    Ok(stat.map(|stat| (stat.dev, stat.ino)))
}

/// Makes an entry a hard link to one that was placed before. `has_waited`: the entry comes before its leader in the list.
pub fn follow(job: &Job<'_>, leader: &Leader, has_waited: bool, out: &mut Outcome<'_>) {
    checked(job.context, out);
    // Names that are hard links of each other in an alternate tree count as linked here.
    let joined_elsewhere = job.any_dest().is_none()
        && leader.hit_inode.is_some()
        && hit_inode(job) == leader.hit_inode;
    let follower = Follower {
        job,
        leader,
        joined_elsewhere,
        // rsync removes what is in the way of a name when it comes to that name. If the leader is not known by then, the
        // name is new when it is linked.
        is_removed_before: has_waited && !job.context.is_dry(),
    };
    let has_it = match follower.changes() {
        Err(reason) => {
            refuse(job, reason, out);
            false
        }
        Ok(changes) if job.context.is_dry() => {
            let is_linked = dest_inode(job).is_some_and(|inode| Some(inode) == leader.dest_inode);
            follower.report(changes, is_linked, out);
            false
        }
        Ok(changes) => follower.act(changes, out),
    };
    if has_it {
        remove_source::remove_sent_source(job, out);
    }
}

/// A name that becomes a hard link to its leader.
struct Follower<'f> {
    job: &'f Job<'f>,
    leader: &'f Leader,
    /// An alternate tree has both names as one file.
    joined_elsewhere: bool,
    /// An entry of another kind under this name counts as removed before the link is made, so the link is new.
    is_removed_before: bool,
}

impl Follower<'_> {
    /// Returns the changes to report. `Err`: the entry is left alone.
    fn changes(&self) -> Result<Changes, Reason> {
        let job = self.job;
        let alternates = job
            .context
            .options
            .delta
            .alt_dest
            .as_ref()
            .map(|alt| alt.kind);
        Ok(match job.step.decision.action {
            // A link replaces the file, whatever its length.
            Action::Refuse(reason) if reason != Reason::NothingToAppend => return Err(reason),
            _ if self.joined_elsewhere => Changes::NONE,
            Action::Copy(changes) if alternates == Some(AltKind::Copy) => changes,
            // Otherwise the alternate tree's entry does not count for a follower.
            _ => match plan::decide(
                job.source(),
                job.any_dest(),
                Some(true),
                Subject::Included,
                &self.policy(),
            )
            .action
            {
                Action::Transfer(changes) | Action::Create(changes)
                    if changes.has(Changes::NEW) && !self.is_removed_before =>
                {
                    let replaced = job.any_dest();
                    replaced.map_or(changes, |other| {
                        plan::changes_by_link(job.source(), other, job.context.policy)
                    })
                }
                // Its own content is not compared.
                Action::Transfer(changes) | Action::Create(changes) => {
                    changes.without(Changes::CHECKSUM)
                }
                Action::Adjust(changes) => changes,
                Action::Keep | Action::AskDigest | Action::Refuse(_) => Changes::NONE,
                Action::Link | Action::Copy(_) | Action::Elsewhere => Changes::NONE,
            },
        })
    }

    /// Returns how a name is compared that gets a link: nothing is appended to it.
    fn policy(&self) -> Cow<'_, Policy> {
        let policy = self.job.context.policy;
        if policy.append {
            Cow::Owned(Policy {
                append: false,
                ..policy.clone()
            })
        } else {
            Cow::Borrowed(policy)
        }
    }

    /// Reports the link. `is_linked`: the names were linked before.
    fn report(&self, changes: Changes, is_linked: bool, out: &mut Outcome<'_>) {
        let Follower {
            job,
            leader,
            joined_elsewhere,
            is_removed_before: _,
        } = self;
        let context = job.context;
        if let Some(explainer) = context.process.explainer {
            explainer.add(&job.path, Fact::Linked(leader.path.as_bytes().to_vec()));
        }
        if (is_linked || *joined_elsewhere) && changes.is_none() && !context.wants.unchanged {
            return;
        }
        let unkept = unkept_time(job.source().kind(), &context.policy.preserve);
        let changes = if is_linked { changes } else { changes | unkept };
        if changes.has(Changes::NEW) {
            out.tally.created.add(job.source().kind());
        }
        if context.wants.items {
            let mut item = job.item(Update::HardLink, changes);
            item.linked_to = (!is_linked).then(|| leader.path.as_bytes().to_vec());
            out.events.push(Event::Item(item));
        }
    }

    /// Returns the message of rsync's generator for a link that failed.
    fn failed(&self, error: &io::Error) -> Event {
        let full = self.job.full();
        let leader = self.leader.path.as_bytes();
        let words = crate::report::event::errno_words(error);
        let line = [
            b"rsync: [generator] link \"",
            &full[..],
            b"\" => ",
            leader,
            b" failed: ",
            &words,
        ]
        .concat();
        Event::Problem(Problem::new(line, Weight::Failed))
    }

    /// Links the name. Returns whether the destination has the entry now.
    fn act(&self, changes: Changes, out: &mut Outcome<'_>) -> bool {
        let Follower { job, leader, .. } = self;
        let context = job.context;
        let Some(dir) = &job.dest_dir.dir else {
            return false;
        };
        let leader_dir = match leader.dir(context, out.applier) {
            Ok(Some(leader_dir)) => leader_dir,
            Ok(None) => return false,
            Err(error) => {
                out.events.push(self.failed(&error));
                return false;
            }
        };
        let of_leader = (&leader_dir, leader.path.name());
        if leader.is_delayed.load(Ordering::Relaxed) {
            job.dest_dir.last.touch();
            context.changed.note_path(&job.path);
            self.linked(delayed::stage_link(job, dir, of_leader), changes, out);
            // Its source is removed once it has its final name.
            return false;
        }
        let is_stale = leader.is_stale.load(Ordering::Relaxed);
        let leader_inode = if is_stale {
            Ok(None)
        } else {
            inode(&leader_dir, leader.path.name())
        };
        let own_inode = if job.replaces() {
            inode(dir, job.name())
        } else {
            Ok(None)
        };
        match (leader_inode, own_inode) {
            // The leader was not transferred. Perhaps the source of this name can be.
            (Ok(None), Ok(_)) if !context.may_await_answers() => return false,
            (Ok(None), Ok(_)) => {
                context.want_xattrs(job.file_id(), job.source(), &job.local_values());
                return carry_out(job, out);
            }
            (Ok(leader), Ok(own)) if leader == own => {
                self.report(Changes::NONE, true, out);
                return true;
            }
            (Ok(_), Ok(_)) => {}
            (Err(error), _) | (_, Err(error)) => {
                out.events.push(self.failed(&error));
                return false;
            }
        }
        job.dest_dir.last.touch();
        // The link gives the file a new ctime under all its names.
        context.changed.note_path(&job.path);
        context.changed.note_path(&leader.path);
        if let Err(problem) = backup::back_up_replaced(
            context,
            ErrorRole::Generator,
            dir,
            &job.path,
            job.replaces(),
            &mut out.events,
        ) {
            out.events.push(Event::Problem(problem));
            return false;
        }
        self.linked(
            replace::link(
                &leader_dir,
                leader.path.name(),
                dir,
                job.name(),
                job.replaces(),
            ),
            changes,
            out,
        )
    }

    /// Reports the result of linking. Returns whether it succeeded.
    fn linked(&self, result: io::Result<()>, changes: Changes, out: &mut Outcome<'_>) -> bool {
        match &result {
            Ok(()) => self.report(changes, false, out),
            Err(error) => out.events.push(self.failed(error)),
        }
        result.is_ok()
    }
}

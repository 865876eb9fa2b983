//! One entry in progress, with everything that is known about it.

use crate::apply::abbreviated::LocalValues;
use crate::apply::attributes::AttributeTarget;
use crate::apply::twins::{Reuse, Twin};
use crate::apply::{Context, DestDir, Outcome};
use crate::digest::{self, Comparison};
use crate::flist::entry::Stat;
use crate::flist::{Entry, Kind};
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::fs::temp_name::temp_name;
use crate::fs::xattr::At;
use crate::options::{CheckMode, RemoveSource};
use crate::plan::{Action, Changes, InTheWay, NO_ID, chmod};
use crate::proto::FileId;
use crate::report::event::{ErrorRole, Item, Update};
use crate::walk::alternate::Hit;
use crate::walk::{ComparedSource, DirPlan, NONE, SourceDir, Step};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One entry in progress, with everything that is known about it.
pub struct Job<'a> {
    pub context: &'a Context<'a>,
    /// Its directory's plan.
    pub plan: &'a DirPlan,
    pub step: Step,
    /// Its directory at the destination.
    pub dest_dir: &'a DestDir,
    /// Its own path.
    pub path: crate::path::RelPath,
    /// The destination's entry, if it was examined again after the plan was made.
    pub existing_now: Option<&'a Entry>,
    /// The device and inode of the source file that was opened, for `--remove-source-files`.
    pub opened: Cell<Option<(u64, u64)>>,
    /// Changes of attributes are only reported: the content of another name is written into the same file, which gets
    /// the attributes of that name.
    pub leaves_attributes: bool,
}

impl<'a> Job<'a> {
    /// Creates the job for a step of a plan.
    pub fn new(
        context: &'a Context<'a>,
        plan: &'a DirPlan,
        step: Step,
        dest_dir: &'a DestDir,
    ) -> Job<'a> {
        let path = dest_dir.path.join(plan.name_of(&step));
        Job {
            context,
            plan,
            step,
            dest_dir,
            path,
            existing_now: None,
            opened: Cell::new(None),
            leaves_attributes: false,
        }
    }

    /// Returns the entry of the source.
    pub fn source(&self) -> &'a Entry {
        self.plan.source_of(&self.step)
    }

    /// Returns its name at the destination.
    pub fn name(&self) -> &'a [u8] {
        self.plan.found.listing.list.name(self.source())
    }

    /// Returns the destination's entry if it stands for the source's.
    pub fn dest(&self) -> Option<&'a Entry> {
        self.any_dest()
            .filter(|existing| existing.stands_for(self.source().kind()))
    }

    /// Returns the destination's entry, whatever it is.
    pub fn any_dest(&self) -> Option<&'a Entry> {
        self.existing_now.or_else(|| {
            (self.step.dest != NONE)
                .then(|| &self.plan.found.dest.list.entries[self.step.dest as usize])
        })
    }

    /// Returns what an alternate tree has for it.
    pub fn hit(&self) -> Option<&'a Hit> {
        self.plan.decided().hits.get(&self.step.source)
    }

    /// Returns the file of the destination whose content it takes, if what it replaces is still as it was found.
    pub fn twin(&self) -> Option<Twin> {
        self.any_twin().filter(|twin| twin.reuse != Reuse::Basis)
    }

    /// Returns the file of the destination that is probably equal to it, and the basis of its content.
    pub fn twin_as_basis(&self) -> Option<Twin> {
        self.any_twin().filter(|twin| twin.reuse == Reuse::Basis)
    }

    /// Returns its twin, whatever is done with that, if what it replaces is still as it was found.
    pub fn any_twin(&self) -> Option<Twin> {
        if self.existing_now.is_none() && self.is_transferred() {
            self.context.twins.of(self.plan, &self.step)
        } else {
            None
        }
    }

    /// Returns where values of its extended attributes may be on this machine.
    pub fn local_values(&self) -> LocalValues<'a> {
        let alternate = self.hit().map(|hit| At::Name {
            dir: hit.dir.fd(),
            name: self.name(),
        });
        LocalValues {
            dest: self.any_dest(),
            alternate,
        }
    }

    /// Returns whether a non-directory has its name at the destination.
    pub fn replaces(&self) -> bool {
        self.step.dest != NONE && self.step.decision.in_the_way != InTheWay::Dir
    }

    /// Returns the directory of its source.
    pub fn place(&self) -> Option<&'a SourceDir> {
        self.plan.place_of(self.source())
    }

    /// Opens its source on this machine.
    pub fn open_source(&self, place: &SourceDir) -> io::Result<OwnedFd> {
        let select = &self.context.options.select;
        let file = place.open_file(self.source_name(), select)?;
        if select.remove_source != RemoveSource::No {
            let stat = sys::fstat(file.as_fd())?;
            self.opened.set(Some((stat.dev, stat.ino)));
        }
        Ok(file)
    }

    /// Returns its source for a comparison of contents.
    pub fn original(&self) -> ComparedSource<'a> {
        self.plan.found.original(self.source())
    }

    /// Returns its number at the peer that has the source, or `None` if the source is here.
    pub fn file_id(&self) -> Option<FileId> {
        self.plan.found.sender_dir.as_ref().map(|_| FileId {
            dir: self.plan.found.listing.id,
            entry: self.step.source,
        })
    }

    /// Returns its name at the source, which differs from the one here for a single renamed argument.
    pub fn source_name(&self) -> &'a [u8] {
        self.plan.found.source_name(self.source())
    }

    /// Returns the path under which it is reported: the source's, even if the destination's name differs.
    pub fn reported_path(&self) -> &[u8] {
        self.plan
            .found
            .listing
            .renamed_from
            .as_deref()
            .unwrap_or(self.path.as_bytes())
    }

    /// Returns it as a target of attributes, given its file and an empty name, or its directory and its name. `full`:
    /// its path for messages.
    pub fn target<'t>(
        &'t self,
        (fd, name): (BorrowedFd<'t>, &'t [u8]),
        full: &'t dyn Fn() -> Vec<u8>,
        role: ErrorRole,
    ) -> AttributeTarget<'t> {
        AttributeTarget {
            fd,
            name,
            full,
            path: self.path.as_bytes(),
            role,
        }
    }

    /// Returns its absolute path at the destination, for messages.
    pub fn full(&self) -> Vec<u8> {
        self.context.full(self.path.as_bytes())
    }

    /// Returns the absolute path of its temporary file, for messages.
    pub fn temp_full(&self) -> Vec<u8> {
        self.context
            .full(self.dest_dir.path.join(&temp_name(self.name())).as_bytes())
    }

    /// Returns the permission bits that it must have at the destination.
    pub fn wanted_mode(&self) -> u32 {
        // A file transferred as an update of an alternate tree's file takes over that file's mode.
        let updated = || match self.hit() {
            Some(hit) if self.is_transferred() => Some(hit.mode),
            _ => None,
        };
        // rsync's receiver treats a file that it cannot read as missing.
        let counts = || self.context.policy.preserve.perms || self.cannot_read_dest().is_none();
        let existing = match self.dest() {
            Some(entry) if counts() => Some(entry.mode),
            _ => updated(),
        };
        let parent = chmod::Parent {
            default_acl_mode: self.dest_dir.default_acl_mode(),
            setgid: false,
        };
        chmod::dest_mode(
            self.source().mode,
            existing,
            &self.context.mode_rule(),
            parent,
        )
    }

    /// Returns the error if the file to be replaced cannot be read.
    pub fn cannot_read_dest(&self) -> Option<io::Error> {
        const READABLE: u32 = 0o444;
        // If all may read it, it need not be tried.
        self.dest().filter(|entry| {
            self.is_transferred() && !self.context.is_super && entry.mode & READABLE != READABLE
        })?;
        let opened = sys::open_read(self.dest_dir.dir.as_ref()?.fd(), self.name(), false, false);
        opened
            .err()
            .filter(|error| error.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Returns whether a file of the same file system has the owner and group of one that is created in its
    /// directory, `dir`, as far as these are not set.
    pub fn gets_ids_of_new_file(&self, dir: &Dir, stat: &Stat) -> io::Result<bool> {
        let preserve = &self.context.policy.preserve;
        let source = self.source();
        let inherited = self.dest_dir.inherited(dir)?;
        let sets_owner = preserve.owner && source.uid != NO_ID;
        let sets_group = preserve.group && source.gid != NO_ID;
        let has_owner = sets_owner || stat.uid == inherited.uid;
        let has_group = sets_group || Some(stat.gid) == inherited.gid;
        Ok(inherited.dev == stat.dev && has_owner && has_group)
    }

    fn is_transferred(&self) -> bool {
        self.transferred().is_some()
    }

    /// Returns the changes of a file whose content is transferred.
    pub fn transferred(&self) -> Option<Changes> {
        match self.step.decision.action {
            Action::Transfer(changes) => Some(changes),
            Action::Keep
            | Action::Adjust(_)
            | Action::Create(_)
            | Action::Copy(_)
            | Action::Link
            | Action::Elsewhere
            | Action::AskDigest
            | Action::Refuse(_) => None,
        }
    }

    /// Reports events at once and waits for values of extended attributes that were requested with the item of the
    /// entry. `false`: the run ends.
    pub fn await_xattrs(&self, out: &mut Outcome<'_>) -> bool {
        let is_awaited = self.source().has_abbreviated() && self.context.has_values_with_items();
        if let (Some(live), true) = (out.live, is_awaited) {
            live(&mut out.events);
        }
        match self.context.await_xattrs(self.file_id(), self.source()) {
            Ok(()) => true,
            Err(error) => {
                out.fatal = Some(error);
                false
            }
        }
    }

    /// Returns the item that reports it.
    pub fn item(&self, update: Update, changes: Changes) -> Box<Item> {
        let sender_path = || match self.plan.shown(self.source(), self.source_name()) {
            Some(path) => path,
            None => self.reported_path().to_vec(),
        };
        let sender_path = if self.context.wants.paths {
            sender_path()
        } else {
            Vec::new()
        };
        let mut item = item_of(
            self.source(),
            self.reported_path(),
            sender_path,
            update,
            changes,
        );
        item.file = self.file_id();
        let lists_digests = self.context.options.check.mode == CheckMode::Digest;
        if lists_digests && self.context.wants.digest && item.kind == Kind::File {
            item.digest = self.listed_digest();
        }
        item
    }

    /// Returns the item of a file whose content is transferred.
    pub fn transfer_item(&self, changes: Changes) -> Box<Item> {
        let mut item = self.item(Update::Received, changes);
        item.transfer = true;
        item
    }

    /// Returns the digest that rsync's list has of the file under `-c`. The file of another sparsync is not here, so its
    /// copy is used if that is equal.
    fn listed_digest(&self) -> Option<Vec<u8>> {
        let compared_by = self.context.facts().map(|facts| &facts.compared_by);
        if let Some(Comparison::Negotiated(sum)) = compared_by {
            return self
                .source()
                .extra
                .as_ref()?
                .digest
                .map(|digest| digest::shown_of(*sum, &digest));
        }
        let opened = match self.place() {
            Some(place) => place.open_file(self.source_name(), &self.context.options.select),
            None if matches!(self.step.decision.action, Action::Keep | Action::Adjust(_))
                || !self.context.is_dry() =>
            {
                sys::open_read(self.dest_dir.dir.as_ref()?.fd(), self.name(), false, false)
            }
            None => return None,
        };
        let file = opened.ok()?;
        self.context
            .shown_digest(file.as_fd(), self.source().len_bytes)
    }
}

/// Returns the item that reports an entry.
pub fn item_of(
    source: &Entry,
    path: &[u8],
    sender_path: Vec<u8>,
    update: Update,
    changes: Changes,
) -> Box<Item> {
    let extra = source.extra.as_ref();
    let target = extra
        .and_then(|extra| extra.target.as_deref())
        .map(<[u8]>::to_vec);
    let source_target = extra
        .and_then(|extra| extra.source_target.as_deref())
        .map(<[u8]>::to_vec);
    let (uid, gid) = extra
        .and_then(|extra| extra.source_ids)
        .unwrap_or((source.uid, source.gid));
    Box::new(Item {
        name: if path.is_empty() {
            b".".to_vec()
        } else {
            path.to_vec()
        },
        sender_path,
        kind: source.kind(),
        update,
        changes,
        target,
        source_target,
        linked_to: None,
        mode: source.mode,
        uid,
        gid,
        mtime: source.mtime,
        atime: source.extra.as_ref().and_then(|extra| extra.atime),
        len_bytes: source.len_bytes,
        moved_bytes: 0,
        sums_bytes: 0,
        digest: None,
        transfer: false,
        file: None,
    })
}

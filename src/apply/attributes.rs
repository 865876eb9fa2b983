//! Sets owner, group, attributes, times, ACL and mode of an entry, in the order that the kernel needs.
//!
//! The owner comes first, because changing it clears the set-ID bits. The mode comes after the ACL, whose mask it is. A
//! process that may not set the times may not set what follows them either; as in rsync, only the times are reported.

use crate::apply::Context;
use crate::apply::abbreviated::LocalValues;
use crate::flist::abbreviated::AbbreviatedValue;
use crate::flist::entry::{S_IFMT, Stat};
use crate::flist::{Entry, Kind, Time, Xattr, Xattrs};
use crate::fs::acl::{self, Which};
use crate::fs::fake_super::{self, FakeStat};
use crate::fs::xattr::{self, At};
use crate::fs::{errno, sys};
use crate::plan::{Changes, Compared, NO_ID, TimesToSet, keeps_atime, keeps_time};
use crate::report::event::{ErrorRole, Event, Problem, Weight, errno_words};
use std::io;
use std::os::fd::BorrowedFd;

/// What an entry has now, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub struct Has<'a> {
    /// Owner and group.
    pub ids: Option<(u32, u32)>,
    /// Permission bits; `None`: always set them.
    pub mode: Option<u32>,
    /// Which times are set now.
    pub times: TimesToSet,
    /// Its content was written, so the kernel may have taken set-ID bits and file capabilities away.
    pub is_rewritten: bool,
    /// Extended attributes.
    pub xattrs: &'a [Xattr],
    /// Where abbreviated values of the source may be.
    pub local: LocalValues<'a>,
    /// Its access and default ACL, if they were read. Empty means none.
    pub acls: Option<(&'a [u8], &'a [u8])>,
}

impl Default for Has<'_> {
    /// Nothing is known: everything is set.
    fn default() -> Self {
        Has {
            ids: None,
            mode: None,
            times: TimesToSet::Both,
            is_rewritten: false,
            xattrs: &[],
            local: LocalValues::default(),
            acls: None,
        }
    }
}

impl Has<'_> {
    /// Returns what an examined entry has. `times`: which of them are set.
    pub fn from_entry(entry: &Entry, times: TimesToSet) -> Has<'_> {
        Has {
            ids: Some((entry.uid, entry.gid)),
            mode: Some(entry.mode),
            times,
            is_rewritten: false,
            xattrs: entry.xattrs(),
            local: LocalValues {
                dest: Some(entry),
                alternate: None,
            },
            acls: Some(entry.acls()),
        }
    }
}

/// The entry whose attributes are set.
#[derive(Clone, Copy)]
pub struct AttributeTarget<'a> {
    /// The open file itself if `name` is empty, otherwise its directory.
    pub fd: BorrowedFd<'a>,
    /// One path element, or empty.
    pub name: &'a [u8],
    /// Its absolute path, for messages.
    pub full: &'a dyn Fn() -> Vec<u8>,
    /// Its path in the transfer, for messages.
    pub path: &'a [u8],
    /// The role that messages name.
    pub role: ErrorRole,
}

impl<'a> AttributeTarget<'a> {
    fn at(&self) -> At<'a> {
        match self.name {
            b"" => At::Fd(self.fd),
            name => At::Name { dir: self.fd, name },
        }
    }

    fn stat(&self) -> io::Result<Stat> {
        match self.name {
            b"" => sys::fstat(self.fd),
            name => sys::stat(self.fd, name, false),
        }
    }
}

/// Gives an entry those attributes of the source that are preserved. `mode`: the permission bits to set. Problems are
/// added to `events`.
///
/// Returns `false` if the owner could not be set; then nothing else was. If the times cannot be set, the attributes
/// after them are not set either.
pub fn finish(
    context: &Context<'_>,
    subject: AttributeTarget<'_>,
    source: &Entry,
    has: Has<'_>,
    mode: u32,
    events: &mut Vec<Event>,
) -> bool {
    let mut touch = Touch {
        context,
        subject,
        source,
        events,
    };
    let owner_changes = if context.policy.preserve.fake_super {
        touch.fake(mode);
        false
    } else {
        let Ok(changed) = touch.owner(has.ids) else {
            return false;
        };
        changed
    };
    let has_lost_privileges = owner_changes || has.is_rewritten;
    let mode_is_right = context.policy.preserve.fake_super
        || has.mode.is_some_and(|has| has & 0o7777 == mode & 0o7777)
            && !(has_lost_privileges && mode & 0o6000 != 0);
    if has_lost_privileges && xattr::find(has.xattrs, xattr::CAPABILITY).is_some() {
        let left = xattr::without(has.xattrs, xattr::CAPABILITY);
        touch.xattrs(Has {
            xattrs: &left,
            ..has
        });
    } else {
        touch.xattrs(has);
    }
    if !touch.times(has.times) {
        return true;
    }
    let mode_is_right = touch.acls(has.acls, mode) && mode_is_right;
    if source.kind() != Kind::Symlink && !mode_is_right {
        touch.mode(mode);
    }
    true
}

struct Touch<'a, 'b> {
    context: &'a Context<'b>,
    subject: AttributeTarget<'a>,
    source: &'a Entry,
    events: &'a mut Vec<Event>,
}

impl Touch<'_, '_> {
    fn report(&mut self, line: Vec<u8>) {
        self.events
            .push(Event::Problem(Problem::new(line, Weight::Failed)));
    }

    /// `rsync: [role] WHAT: WORDS (ERRNO)`
    fn failed(&mut self, role: ErrorRole, what: &[u8], error: &io::Error) {
        let line = [
            b"rsync: [",
            role.word().as_bytes(),
            b"] ",
            what,
            b": ",
            &errno_words(error),
        ]
        .concat();
        self.report(line);
    }

    fn quoted(&self, before: &str, after: &str) -> Vec<u8> {
        [
            before.as_bytes(),
            b" \"",
            &(self.subject.full)(),
            b"\"",
            after.as_bytes(),
        ]
        .concat()
    }

    /// Sets owner and group if they differ. Returns whether anything was set. On an error the caller must not set the
    /// other attributes, because the entry has the wrong owner.
    fn owner(&mut self, has: Option<(u32, u32)>) -> Result<bool, ()> {
        let preserve = &self.context.policy.preserve;
        if self.context.is_super {
            let ids = [
                ("uid", preserve.owner, self.source.uid),
                ("gid", preserve.group, self.source.gid),
            ];
            for (what, _, _) in ids
                .into_iter()
                .filter(|&(_, is_kept, id)| is_kept && id == NO_ID)
            {
                let line = self.quoted(&format!("{what} {NO_ID} (-1) is impossible to set on"), "");
                self.report(line);
            }
        }
        let differs = |wanted: u32, has: Option<u32>| {
            if wanted == NO_ID || Some(wanted) == has {
                None
            } else {
                Some(wanted)
            }
        };
        let uid = if preserve.owner {
            differs(self.source.uid, has.map(|ids| ids.0))
        } else {
            None
        };
        let gid = if preserve.group {
            differs(self.source.gid, has.map(|ids| ids.1))
        } else {
            None
        };
        if uid.is_none() && gid.is_none() {
            return Ok(false);
        }
        if let Err(error) = sys::chown(self.subject.fd, self.subject.name, uid, gid) {
            let what = self.quoted(if uid.is_some() { "chown" } else { "chgrp" }, " failed");
            self.failed(self.subject.role, &what, &error);
            return Err(());
        }
        Ok(true)
    }

    fn xattrs(&mut self, has: Has<'_>) {
        if self.context.policy.preserve.xattrs == 0 {
            return;
        }
        let completed = self
            .source
            .has_abbreviated()
            .then(|| self.completed(has.local));
        let wanted = completed.as_deref().unwrap_or(self.source.xattrs());
        if let Err(errors) = xattr::apply(self.subject.at(), wanted, has.xattrs) {
            let full = (self.subject.full)();
            for error in errors {
                let what = error.text(&full, self.source.kind() == Kind::Symlink);
                self.failed(ErrorRole::Receiver, &what, &error.error);
            }
        }
    }

    /// Returns the attributes of the source with all values. A value that the sender has not sent is reported.
    fn completed(&mut self, local: LocalValues<'_>) -> Xattrs {
        let mut complete = Xattrs::new();
        for (name, value) in self.source.xattrs() {
            let value = match AbbreviatedValue::decode(value) {
                None => Some(value.clone()),
                Some(wanted) => local
                    .find(name, &wanted)
                    .or_else(|| Some(self.context.peer?.xattr(&wanted)?[..].into())),
            };
            match value {
                Some(value) => complete.push((name.clone(), value)),
                None => {
                    let start = b"Missing abbreviated xattr value, ".as_slice();
                    let line = [start, name, b", for ", &(self.subject.full)()].concat();
                    self.report(line);
                }
            }
        }
        complete
    }

    /// Sets the ACLs if they differ. Returns `false` if the mode must be set afterwards.
    fn acls(&mut self, has: Option<(&[u8], &[u8])>, mode: u32) -> bool {
        let preserve = &self.context.policy.preserve;
        if !Compared::for_kind(self.source.kind(), preserve).acls {
            return true;
        }
        let (access, default) = self.source.acls();
        let at = self.subject.at();
        let same = has.is_some_and(|has| (self.context.policy.same_acls)((access, default), has));
        if same {
            return true;
        }
        if preserve.fake_super {
            let kept = fake_super::store_acl(at, Which::Access, access)
                .and_then(|()| fake_super::store_acl(at, Which::Default, default));
            if let Err(error) = kept {
                self.failed(ErrorRole::Receiver, b"set_acl", &error);
            }
            return true;
        }
        // A new file may have inherited an ACL that the source does not have.
        let set = if has.is_none_or(|has| !acl::same_access(access, has.0)) {
            acl::apply_access(at, access, mode)
        } else {
            Ok(())
        };
        let set = set.and_then(|()| {
            let is_dir = self.source.is_dir();
            if is_dir && has.is_none_or(|has| !acl::same_default(default, has.1)) {
                acl::apply_default(at, default)
            } else {
                Ok(())
            }
        });
        if let Err(error) = set {
            // A file system without ACLs has none to remove.
            if !errno::is_unsupported(&error.error) || !access.is_empty() || !default.is_empty() {
                let what = error.text(self.subject.path, false);
                self.failed(self.subject.role, &what, &error.error);
            }
        }
        false
    }

    fn mode(&mut self, mode: u32) {
        if let Err(error) = sys::chmod(self.subject.fd, self.subject.name, mode) {
            let what = self.quoted("failed to set permissions on", "");
            self.failed(self.subject.role, &what, &error);
        }
    }

    /// Returns `false` if they could not be set.
    fn times(&mut self, to_set: TimesToSet) -> bool {
        let preserve = &self.context.policy.preserve;
        let sets_mtime = match to_set {
            TimesToSet::Neither => return true,
            TimesToSet::AccessTime => false,
            TimesToSet::Both => true,
        };
        let compared = Compared::for_kind(self.source.kind(), preserve);
        // rsync has created a regular file here, so it sets the time in spite of --omit-link-times.
        let is_faked = preserve.fake_super && preserve.times && self.source.kind() == Kind::Symlink;
        let mtime = if sets_mtime && (compared.mtime || is_faked) {
            Some(self.source.mtime)
        } else {
            None
        };
        let accessed = match &self.source.extra {
            Some(extra) if keeps_atime(self.source.kind(), preserve) => extra.atime,
            _ => None,
        };
        // rsync keeps access times in whole seconds.
        let atime = accessed.map(|time| Time { nanos: 0, ..time });
        if mtime.is_none() && atime.is_none() {
            return true;
        }
        let set = sys::utimes(self.subject.fd, self.subject.name, atime, mtime);
        if let Err(error) = &set {
            let what = self.quoted("failed to set times on", "");
            self.failed(self.subject.role, &what, error);
        }
        set.is_ok()
    }

    /// `--fake-super`: stores in an extended attribute what the file itself must not or cannot have.
    fn fake(&mut self, mode: u32) {
        let wanted = FakeStat {
            mode: self.source.mode & S_IFMT | mode & 0o7777,
            rdev: self.source.extra.as_ref().map_or(0, |extra| extra.rdev),
            uid: self.source.uid,
            gid: self.source.gid,
        };
        let preserve = &self.context.policy.preserve;
        let done = self
            .subject
            .stat()
            .map_err(fake_super::FakeError::Read)
            .and_then(|real| {
                if Kind::of_mode(real.mode) == Some(Kind::Symlink) {
                    // A symlink to a directory (`-K`), which cannot have such an attribute.
                    return Ok(false);
                }
                let (has, _) = fake_super::stat_with_fake(self.subject.at(), real)?;
                let id = |is_kept: bool, id: u32, has: u32| {
                    if is_kept && id != NO_ID { id } else { has }
                };
                let uid = id(preserve.owner, wanted.uid, has.uid);
                let gid = id(preserve.group, wanted.gid, has.gid);
                let wanted = FakeStat { uid, gid, ..wanted };
                fake_super::store(self.subject.at(), &wanted, &real)
            });
        if let Err(error) = done {
            let line = error.text(&(self.subject.full)());
            match error.error() {
                Some(error) => self.failed(self.subject.role, &line, &error),
                None => self.report(line),
            }
        }
    }
}

/// Returns the change that a file still needs right after its data was written: its time.
pub fn left_as_new(context: &Context<'_>, source: &Entry) -> Changes {
    Changes::NONE.with(
        Changes::TIME,
        keeps_time(source.kind(), &context.policy.preserve),
    )
}

//! Extended attributes of one file: which are visible, how they are transferred, and how they are set and removed.
//!
//! Implements rsync's rules for showing, hiding and renaming attributes (`-X`, `-XX`, `--fake-super`, `x` filter
//! rules). The caller chooses the policy. ACLs are in [`super::acl`], rsync's own `user.rsync.%stat` in
//! [`super::fake_super`].

use super::{acl, fake_super, sys};
use crate::flist::{Xattr, Xattrs};
use rustix::fd::BorrowedFd;
use std::io;

/// The file whose attributes are read or set. Symlinks are never followed.
#[derive(Debug, Clone, Copy)]
pub enum At<'a> {
    /// An open file or directory. If a directory was opened with `O_PATH`, attributes can be read but not set.
    Fd(BorrowedFd<'a>),
    /// A name in an open directory. Older kernels have no `*xattrat` calls, so access goes through `/proc/self/fd`.
    /// Without /proc, the call is made from within the directory.
    Name {
        /// The directory.
        dir: BorrowedFd<'a>,
        /// One path element, not empty.
        name: &'a [u8],
    },
}

impl At<'_> {
    fn by_path<T: Send>(
        dir: BorrowedFd<'_>,
        name: &[u8],
        call: impl FnOnce(&[u8]) -> io::Result<T> + Send,
    ) -> io::Result<T> {
        if !sys::has_proc() {
            return sys::within(dir, || call(name));
        }
        let mut path = sys::proc_fd(dir);
        path.push(b'/');
        path.extend_from_slice(name);
        call(&path)
    }

    /// Returns the value of an attribute; `None` if it does not or cannot exist.
    pub fn get(&self, attr: &[u8]) -> io::Result<Option<Vec<u8>>> {
        match *self {
            At::Fd(fd) => match sys::fgetxattr(fd, attr) {
                Err(error) if is_to_search(&error) => {
                    Self::by_path(fd, b".", |path| sys::lgetxattr(path, attr))
                }
                got => got,
            },
            At::Name { dir, name } => Self::by_path(dir, name, |path| sys::lgetxattr(path, attr)),
        }
    }

    /// Sets an attribute, whether or not it exists.
    pub fn set(&self, attr: &[u8], value: &[u8]) -> io::Result<()> {
        match *self {
            At::Fd(fd) => sys::fsetxattr(fd, attr, value),
            At::Name { dir, name } => {
                Self::by_path(dir, name, |path| sys::lsetxattr(path, attr, value))
            }
        }
    }

    /// Removes an attribute. Succeeds if it does not exist.
    pub fn remove(&self, attr: &[u8]) -> io::Result<()> {
        let removed = match *self {
            At::Fd(fd) => sys::fremovexattr(fd, attr),
            At::Name { dir, name } => {
                Self::by_path(dir, name, |path| sys::lremovexattr(path, attr))
            }
        };
        match removed {
            Err(error) if error.raw_os_error() == Some(libc::ENODATA) => Ok(()),
            other => other,
        }
    }

    /// Gives the owner write permission, which `user.*` attributes require. Returns the previous mode; `None` if that
    /// did not help.
    fn open_up(&self) -> Option<u32> {
        let mode = match *self {
            At::Fd(fd) => sys::fstat(fd),
            At::Name { dir, name } => sys::stat(dir, name, false),
        }
        .ok()?
        .mode;
        if mode & 0o200 == 0 && self.chmod(mode | 0o200).is_ok() {
            Some(mode)
        } else {
            None
        }
    }

    fn chmod(&self, mode: u32) -> io::Result<()> {
        match *self {
            At::Fd(fd) => sys::fchmod(fd, mode & 0o7777),
            At::Name { dir, name } => sys::chmod(dir, name, mode & 0o7777),
        }
    }

    /// Returns the names of all attributes, each terminated by NUL.
    pub fn names(&self) -> io::Result<Option<Vec<u8>>> {
        match *self {
            At::Fd(fd) => match sys::flistxattr(fd) {
                Err(error) if is_to_search(&error) => Self::by_path(fd, b".", sys::llistxattr),
                names => names,
            },
            At::Name { dir, name } => Self::by_path(dir, name, sys::llistxattr),
        }
    }
}

/// Returns whether a call failed because the descriptor was opened with `O_PATH`.
fn is_to_search(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBADF)
}

/// The privileges with which attributes are read and set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The super-user: every namespace except `system.*`, with unchanged names.
    Root,
    /// Any other user: `user.*`. Received attributes of other namespaces are dropped, as in rsync.
    User,
    /// `--fake-super`: `user.*` is written, where `user.rsync.NAME` represents `NAME`. A source shows what root would
    /// see.
    Fake,
}

/// Decides by name whether an attribute takes part.
pub type XattrRules<'a> = &'a (dyn Fn(&[u8]) -> bool + Sync);

/// Which attributes of the files on one side take part, and under which names.
#[derive(Clone, Copy)]
pub struct XattrPolicy<'a> {
    who: Who,
    /// Only `user.*` takes part.
    only_user: bool,
    hidden: HiddenXattrs,
    rules: Option<XattrRules<'a>>,
}

/// Which of rsync's own attributes (`user.rsync.%…`) take no part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HiddenXattrs {
    None,
    /// Those in which `--fake-super` stores what it manages itself.
    Managed,
    All,
}

/// The prefix of rsync's own attributes.
const OWN: &[u8] = b"user.rsync.%";
const STORED: &[u8] = b"user.rsync.";
/// What `--fake-super` sets and removes itself.
const MANAGED: [&[u8]; 3] = [fake_super::STAT, acl::FAKE_ACCESS, acl::FAKE_DEFAULT];

impl<'a> XattrPolicy<'a> {
    /// Returns the policy for reading the source. rsync's own attributes (`user.rsync.%…`) are hidden unless `level` is
    /// 2 (`-XX`). `rules` are the `x` filter rules for the sender. They replace the namespace rule, so unless a rule
    /// excludes them, even `system.*` attributes are shown, as in rsync.
    pub fn sender(who: Who, level: u8, rules: Option<XattrRules<'a>>) -> Self {
        XattrPolicy {
            who,
            only_user: who == Who::User,
            hidden: if level > 1 && who != Who::Fake {
                HiddenXattrs::None
            } else {
                HiddenXattrs::All
            },
            rules,
        }
    }

    /// Returns the policy for the destination. rsync's own attributes are visible here even with a single `-X`, so that
    /// leftover ones are removed, but those that `--fake-super` manages.
    pub fn receiver(who: Who, rules: Option<XattrRules<'a>>) -> Self {
        XattrPolicy {
            who,
            only_user: who != Who::Root,
            hidden: match who {
                Who::Fake => HiddenXattrs::Managed,
                Who::Root | Who::User => HiddenXattrs::None,
            },
            rules,
        }
    }

    /// Returns whether an attribute with this name on disk takes part.
    pub fn shows(&self, name: &[u8]) -> bool {
        let allowed = match self.rules {
            Some(rules) => rules(name),
            None if self.only_user => name.starts_with(b"user."),
            None => !name.starts_with(b"system."),
        };
        let is_hidden = match self.hidden {
            HiddenXattrs::None => false,
            HiddenXattrs::Managed => MANAGED.contains(&name),
            HiddenXattrs::All => name.starts_with(OWN),
        };
        allowed && !is_hidden
    }

    /// Converts attributes from [`read_listed`] into the form that is sent: under `--fake-super`, stored names become
    /// the real ones. A stored attribute replaces a real one of the same name.
    pub fn in_sent_form(&self, mut local: Xattrs) -> Xattrs {
        if self.who != Who::Fake {
            return local;
        }
        let real_name = |stored: &[u8]| -> Option<Box<[u8]>> {
            let real = stored.strip_prefix(STORED)?;
            (!real.is_empty()).then(|| real.into())
        };
        let represented: Vec<Box<[u8]>> = local
            .iter()
            .filter_map(|(name, _)| real_name(name))
            .collect();
        local.retain(|(name, _)| !represented.contains(name));
        for (name, _) in &mut local {
            if let Some(real) = real_name(name) {
                *name = real;
            }
        }
        local.sort();
        local
    }

    /// Converts received attributes into the form that this side stores: filtered by its rules, renamed where only
    /// `user.*` may be written, and sorted. The result is compared with [`read_listed`] of the destination.
    pub fn stored(&self, sent: &Xattrs) -> Xattrs {
        let mut local: Xattrs = sent
            .iter()
            .filter(|(name, _)| self.rules.is_none_or(|rules| rules(name)))
            .filter(|(name, _)| self.who != Who::User || name.starts_with(b"user."))
            .map(|(name, value)| match self.who {
                Who::Fake if !name.starts_with(b"user.") => {
                    ([STORED, name].concat().into_boxed_slice(), value.clone())
                }
                Who::Root | Who::User | Who::Fake => (name.clone(), value.clone()),
            })
            .collect();
        local.sort();
        local.dedup_by(|later, earlier| later.0 == earlier.0);
        local
    }
}

/// An attribute could not be read. rsync's sender omits the whole entry and then deletes nothing (exit 23).
#[derive(Debug)]
pub struct ReadError {
    /// The attribute; `None` if the list of names could not be read.
    pub attr: Option<Box<[u8]>>,
    /// The cause.
    pub error: io::Error,
}

impl ReadError {
    /// Returns rsync's text between `rsync: [sender] ` and `: Permission denied (13)`.
    pub fn text(&self, full_path: &[u8]) -> Vec<u8> {
        match &self.attr {
            Some(attr) => [
                b"get_xattr_data: lgetxattr(\"",
                full_path,
                b"\",\"",
                attr,
                b"\",0) failed",
            ]
            .concat(),
            None => [
                b"get_xattr_names: llistxattr(\"",
                full_path,
                b"\",1024) failed",
            ]
            .concat(),
        }
    }
}

/// Reads the attributes that the policy shows, under their names on disk, sorted by name.
///
/// Returns none if the file system does not support attributes. Omits attributes that disappear between listing and
/// reading.
#[cfg(test)]
pub fn read(at: At<'_>, policy: &XattrPolicy<'_>) -> Result<Xattrs, ReadError> {
    let names = at
        .names()
        .map_err(|error| ReadError { attr: None, error })?
        .unwrap_or_default();
    read_listed(at, &names, policy)
}

/// Reads the attributes that the policy shows, given the result of [`At::names`].
pub fn read_listed(
    at: At<'_>,
    names: &[u8],
    policy: &XattrPolicy<'_>,
) -> Result<Xattrs, ReadError> {
    let mut found = Xattrs::new();
    for name in names
        .split(|&b| b == 0)
        .filter(|n| !n.is_empty() && policy.shows(n))
    {
        match at.get(name) {
            Ok(Some(value)) => found.push((name.into(), value.into())),
            Ok(None) => {}
            Err(error) => {
                return Err(ReadError {
                    attr: Some(name.into()),
                    error,
                });
            }
        }
    }
    found.sort();
    Ok(found)
}

/// An attribute could not be set or removed. It is counted (exit 23), and the remaining ones are still processed.
#[derive(Debug)]
pub struct SetError {
    /// Whether it should have been removed.
    pub removing: bool,
    /// The attribute.
    pub attr: Box<[u8]>,
    /// The cause.
    pub error: io::Error,
}

impl SetError {
    /// Returns rsync's text between `rsync: [receiver] ` and `: Operation not supported (95)`. For a file that is being
    /// transferred, rsync prints the temp file.
    pub fn text(&self, full_path: &[u8], is_symlink: bool) -> Vec<u8> {
        let letter: &[u8] = if is_symlink { b"l" } else { b"f" };
        let call: &[u8] = if self.removing {
            b"removexattr"
        } else {
            b"setxattr"
        };
        [
            b"rsync_xal_set: ",
            letter,
            call,
            b"(\"",
            full_path,
            b"\",\"",
            &self.attr,
            b"\") failed",
        ]
        .concat()
    }
}

/// The attribute that holds the capabilities of a file. The kernel removes it if the file is written or gets another
/// owner.
pub const CAPABILITY: &[u8] = b"security.capability";

/// Returns the value of an attribute in a sorted list.
pub fn find<'a>(list: &'a [Xattr], name: &[u8]) -> Option<&'a [u8]> {
    let at = list.binary_search_by(|(listed, _)| listed.as_ref().cmp(name));
    at.ok().map(|at| list[at].1.as_ref())
}

/// Returns a list without an attribute.
pub fn without(list: &[Xattr], name: &[u8]) -> Xattrs {
    let others = list.iter().filter(|(listed, _)| listed.as_ref() != name);
    others.cloned().collect()
}

/// Sets the attributes that differ and removes the extra ones. Continues after errors.
///
/// Both lists are sorted and in the form on disk: `wanted` from [`XattrPolicy::stored`], `have` from [`read_listed`].
/// Hidden attributes are in neither and remain. If the owner has no write permission, it is granted temporarily, as in
/// rsync.
pub fn apply(at: At<'_>, wanted: &[Xattr], have: &[Xattr]) -> Result<(), Vec<SetError>> {
    let mut errors = Vec::new();
    let mut mode_before = None;
    let mut insist = |call: &dyn Fn() -> io::Result<()>| match call() {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) && mode_before.is_none() => {
            mode_before = at.open_up();
            if mode_before.is_some() {
                call()
            } else {
                Err(error)
            }
        }
        other => other,
    };
    for (name, value) in wanted {
        let same = find(have, name) == Some(value.as_ref());
        if !same && let Err(error) = insist(&|| at.set(name, value)) {
            errors.push(SetError {
                removing: false,
                attr: name.clone(),
                error,
            });
        }
    }
    for (name, _) in have.iter().filter(|(name, _)| find(wanted, name).is_none()) {
        if let Err(error) = insist(&|| at.remove(name)) {
            errors.push(SetError {
                removing: true,
                attr: name.clone(),
                error,
            });
        }
    }
    if let Some(mode) = mode_before {
        // Failure is harmless: only the owner's write permission is too much, and the caller sets the final mode after
        // this.
        let _ = at.chmod(mode);
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::fs::File;

    /// Returns a directory whose file system supports user attributes. If there is none, prints that the test is
    /// skipped.
    #[allow(clippy::print_stderr)]
    pub fn scratch() -> Option<tempfile::TempDir> {
        for base in ["/dev/shm".into(), std::env::temp_dir()] {
            let Ok(dir) = tempfile::tempdir_in(base) else {
                continue;
            };
            let fd = File::open(dir.path()).unwrap();
            if sys::fsetxattr(fd.as_fd(), b"user.sparsync.test", b"1").is_ok() {
                sys::fremovexattr(fd.as_fd(), b"user.sparsync.test").unwrap();
                return Some(dir);
            }
        }
        eprintln!("skipped: no directory here takes user.* attributes");
        None
    }

    fn list(pairs: &[(&str, &str)]) -> Xattrs {
        let mut all: Xattrs = pairs
            .iter()
            .map(|(n, v)| (n.as_bytes().into(), v.as_bytes().into()))
            .collect();
        all.sort();
        all
    }

    fn shown(policy: &XattrPolicy<'_>) -> Vec<&'static str> {
        [
            "user.a",
            "user.rsync.%stat",
            "user.rsync.foo",
            "trusted.t",
            "system.posix_acl_access",
        ]
        .into_iter()
        .filter(|n| policy.shows(n.as_bytes()))
        .collect()
    }

    #[test]
    fn visible_xattr_names_match_rsync() {
        let plain = ["user.a", "user.rsync.foo", "trusted.t"];
        assert_eq!(shown(&XattrPolicy::sender(Who::Root, 1, None)), plain);
        let all = ["user.a", "user.rsync.%stat", "user.rsync.foo", "trusted.t"];
        assert_eq!(shown(&XattrPolicy::sender(Who::Root, 2, None)), all);
        assert_eq!(shown(&XattrPolicy::receiver(Who::Root, None)), all);
        assert_eq!(
            shown(&XattrPolicy::sender(Who::User, 1, None)),
            ["user.a", "user.rsync.foo"]
        );
        assert_eq!(
            shown(&XattrPolicy::receiver(Who::Fake, None)),
            ["user.a", "user.rsync.foo"]
        );
        let rules = |name: &[u8]| name != b"user.a";
        let ruled = XattrPolicy::sender(Who::Root, 1, Some(&rules));
        assert_eq!(
            shown(&ruled),
            ["user.rsync.foo", "trusted.t", "system.posix_acl_access"]
        );
    }

    #[test]
    fn fake_super_prefixes_other_namespaces() {
        let fake = XattrPolicy::receiver(Who::Fake, None);
        let real = list(&[("security.s", "1"), ("trusted.t", "2"), ("user.a", "3")]);
        let disk = list(&[
            ("user.a", "3"),
            ("user.rsync.security.s", "1"),
            ("user.rsync.trusted.t", "2"),
        ]);
        assert_eq!(fake.stored(&real), disk);
        assert_eq!(
            XattrPolicy::sender(Who::Fake, 1, None).in_sent_form(disk.clone()),
            real
        );
        assert_eq!(
            XattrPolicy::sender(Who::Root, 1, None).in_sent_form(disk.clone()),
            disk
        );
        let rules = |name: &[u8]| !name.starts_with(b"security.");
        let ruled = XattrPolicy::receiver(Who::Fake, Some(&rules)).stored(&real);
        assert_eq!(
            ruled,
            list(&[("user.a", "3"), ("user.rsync.trusted.t", "2")])
        );
    }

    #[test]
    fn apply_sets_and_removes_only_visible_xattrs() {
        let Some(dir) = scratch() else { return };
        let file = File::create(dir.path().join("f")).unwrap();
        let opened_dir = File::open(dir.path()).unwrap();
        let (at, named) = (
            At::Fd(file.as_fd()),
            At::Name {
                dir: opened_dir.as_fd(),
                name: b"f",
            },
        );
        for (name, value) in [
            ("user.old", "1"),
            ("user.same", "2"),
            ("user.new", "x"),
            ("user.rsync.%stat", "s"),
        ] {
            named.set(name.as_bytes(), value.as_bytes()).unwrap();
        }
        let policy = XattrPolicy::receiver(Who::Fake, None);
        let wanted = list(&[
            ("user.same", "2"),
            ("user.new", ""),
            ("user.empty", ""),
            ("user.big", &"b".repeat(2000)),
        ]);
        apply(at, &wanted, &read(at, &policy).unwrap()).unwrap();
        assert_eq!(read(at, &policy).unwrap(), wanted);
        assert_eq!(read(named, &policy).unwrap(), wanted);
        assert_eq!(named.get(b"user.rsync.%stat").unwrap().unwrap(), b"s");
        let plain = XattrPolicy::receiver(Who::User, None);
        apply(named, &wanted, &read(named, &plain).unwrap()).unwrap();
        assert_eq!(at.get(b"user.rsync.%stat").unwrap(), None);
    }

    /// As root, this only shows that nothing breaks. As a user, it shows that the mode is changed and restored.
    #[test]
    fn read_only_file_gets_its_xattrs() {
        use std::os::unix::fs::PermissionsExt;
        let Some(dir) = scratch() else { return };
        let file = File::create(dir.path().join("f")).unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(0o444))
            .unwrap();
        let opened_dir = File::open(dir.path()).unwrap();
        let policy = XattrPolicy::receiver(Who::User, None);
        for (at, value) in [
            (At::Fd(file.as_fd()), "1"),
            (
                At::Name {
                    dir: opened_dir.as_fd(),
                    name: b"f",
                },
                "2",
            ),
        ] {
            let wanted = list(&[("user.a", value), ("user.b", value)]);
            apply(at, &wanted, &read(at, &policy).unwrap()).unwrap();
            assert_eq!(read(at, &policy).unwrap(), wanted);
            assert_eq!(
                file.metadata().unwrap().permissions().mode() & 0o7777,
                0o444
            );
        }
    }

    #[test]
    fn xattr_errors_have_rsyncs_text_and_are_all_reported() {
        let Some(dir) = scratch() else { return };
        std::os::unix::fs::symlink("nowhere", dir.path().join("l")).unwrap();
        let opened_dir = File::open(dir.path()).unwrap();
        let at = At::Name {
            dir: opened_dir.as_fd(),
            name: b"l",
        };
        assert_eq!(
            read(at, &XattrPolicy::receiver(Who::User, None)).unwrap(),
            Xattrs::new()
        );
        let errors = apply(
            at,
            &list(&[("user.a", "1"), ("user.b", "1")]),
            &Xattrs::new(),
        )
        .unwrap_err();
        let texts: Vec<_> = errors
            .iter()
            .map(|e| String::from_utf8(e.text(b"/d/l", true)).unwrap())
            .collect();
        assert_eq!(
            texts,
            [
                r#"rsync_xal_set: lsetxattr("/d/l","user.a") failed"#,
                r#"rsync_xal_set: lsetxattr("/d/l","user.b") failed"#
            ]
        );
        let read = ReadError {
            attr: Some(b"user.a".as_slice().into()),
            error: io::ErrorKind::Other.into(),
        };
        assert_eq!(
            read.text(b"/s/./f"),
            br#"get_xattr_data: lgetxattr("/s/./f","user.a",0) failed"#
        );
    }
}

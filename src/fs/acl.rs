//! POSIX ACLs in the format of Linux extended attributes, and their comparison.
//!
//! The rest of the program holds ACLs (`Extra::acl`) in canonical form: empty if there is nothing beyond the mode,
//! otherwise the kernel's format with named entries sorted by id. If an ACL has a mask, the group bits of the mode
//! *are* the mask. So `-p` compares and sets the mode, and this module handles the rest of the ACL.

use super::xattr::At;
use std::io;

/// The attribute that holds the access ACL.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute that holds the default ACL, which new entries of a directory inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// The `--fake-super` attribute that holds an access ACL.
pub const FAKE_ACCESS: &[u8] = b"user.rsync.%aacl";
/// The `--fake-super` attribute that holds a default ACL.
pub const FAKE_DEFAULT: &[u8] = b"user.rsync.%dacl";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

/// An ACL. Permissions are 0 to 7, as the digits of a mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    /// The owner's permissions.
    pub owner: u8,
    /// The owning group's permissions, before the mask.
    pub group: u8,
    /// The upper limit for everyone except owner and others.
    pub mask: Option<u8>,
    /// The permissions of all others.
    pub other: u8,
    /// Named users, sorted by id.
    pub users: Vec<(u32, u8)>,
    /// Named groups, sorted by id.
    pub groups: Vec<(u32, u8)>,
}

/// Bytes that are not an ACL in a known format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadAcl;

impl From<BadAcl> for io::Error {
    fn from(_: BadAcl) -> io::Error {
        io::Error::from_raw_os_error(libc::EINVAL)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes were cut"))
}

impl Acl {
    /// Parses the kernel's format; `None` if it contains no entries.
    pub fn parse(bytes: &[u8]) -> Result<Option<Acl>, BadAcl> {
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.len() < 4 || u32_at(bytes, 0) != VERSION || !(bytes.len() - 4).is_multiple_of(8) {
            return Err(BadAcl);
        }
        if bytes.len() == 4 {
            return Ok(None);
        }
        let mut owner = None;
        let mut group = None;
        let mut mask = None;
        let mut other = None;
        let mut users = Vec::new();
        let mut groups = Vec::new();
        for entry in bytes[4..].chunks_exact(8) {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            let perm = u16::from_le_bytes([entry[2], entry[3]]);
            let perm = u8::try_from(perm).ok().filter(|p| *p <= 7).ok_or(BadAcl)?;
            let id = u32_at(entry, 4);
            let once = match tag {
                USER_OBJ => &mut owner,
                GROUP_OBJ => &mut group,
                MASK => &mut mask,
                OTHER => &mut other,
                USER => {
                    users.push((id, perm));
                    continue;
                }
                GROUP => {
                    groups.push((id, perm));
                    continue;
                }
                _ => return Err(BadAcl),
            };
            if once.replace(perm).is_some() {
                return Err(BadAcl);
            }
        }
        if mask.is_none() && !(users.is_empty() && groups.is_empty()) {
            return Err(BadAcl);
        }
        users.sort_by_key(|(id, _)| *id);
        groups.sort_by_key(|(id, _)| *id);
        let (Some(owner), Some(group), Some(other)) = (owner, group, other) else {
            return Err(BadAcl);
        };
        Ok(Some(Acl {
            owner,
            group,
            mask,
            other,
            users,
            groups,
        }))
    }

    /// Encodes the ACL in the kernel's format.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        let mut put = |tag: u16, perm: u8, id: u32| {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&u16::from(perm).to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        };
        put(USER_OBJ, self.owner, NO_ID);
        for &(id, perm) in &self.users {
            put(USER, perm, id);
        }
        put(GROUP_OBJ, self.group, NO_ID);
        for &(id, perm) in &self.groups {
            put(GROUP, perm, id);
        }
        if let Some(mask) = self.mask {
            put(MASK, mask, NO_ID);
        }
        put(OTHER, self.other, NO_ID);
        out
    }

    /// Returns the ACL that corresponds to the permission bits of a mode.
    pub fn of_mode(mode: u32) -> Acl {
        Acl {
            owner: digit(mode, 6),
            group: digit(mode, 3),
            mask: None,
            other: digit(mode, 0),
            users: Vec::new(),
            groups: Vec::new(),
        }
    }

    /// Returns whether a mode can represent the whole ACL.
    pub fn is_minimal(&self) -> bool {
        self.mask.is_none()
    }

    /// Returns the permission bits of a file with this ACL. The mask replaces the group bits.
    pub fn mode(&self) -> u32 {
        u32::from(self.owner) << 6
            | u32::from(self.mask.unwrap_or(self.group)) << 3
            | u32::from(self.other)
    }

    /// Returns the same entries with owner, others and mask (group, if there is no mask) taken from the mode.
    pub fn with_mode(mut self, mode: u32) -> Acl {
        self.owner = digit(mode, 6);
        self.other = digit(mode, 0);
        match &mut self.mask {
            Some(mask) => *mask = digit(mode, 3),
            None => self.group = digit(mode, 3),
        }
        self
    }

    /// Returns the same ACL with mapped ids. If two ids map to one, both entries remain, as in rsync.
    pub fn map_ids(
        mut self,
        mut user: impl FnMut(u32) -> u32,
        mut group: impl FnMut(u32) -> u32,
    ) -> Acl {
        for (id, _) in &mut self.users {
            *id = user(*id);
        }
        for (id, _) in &mut self.groups {
            *id = group(*id);
        }
        self.users.sort_by_key(|(id, _)| *id);
        self.groups.sort_by_key(|(id, _)| *id);
        self
    }
}

fn digit(mode: u32, shift: u32) -> u8 {
    (mode >> shift & 7) as u8
}

/// Both ACLs of a file or directory in canonical form; empty means none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Acls {
    /// The access ACL, beyond the mode.
    pub access: Box<[u8]>,
    /// The default ACL, which new entries of this directory inherit.
    pub default: Box<[u8]>,
}

/// The kind of an ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The ACL that controls access.
    Access,
    /// The ACL that is inherited.
    Default,
}

/// An ACL could not be read or set.
#[derive(Debug)]
pub struct AclError {
    /// Whether the error occurred while setting it.
    pub setting: bool,
    /// The kind of the ACL.
    pub which: Which,
    /// The cause.
    pub error: io::Error,
}

impl AclError {
    /// Returns rsync's text between `rsync: [generator] ` and `: Operation not supported (95)`. The path is relative to
    /// the top of the transfer, as in rsync. `sender` is true for an entry of the source.
    pub fn text(&self, path: &[u8], sender: bool) -> Vec<u8> {
        let call: &[u8] = match (self.setting, sender) {
            (true, _) => b"set_acl: xacl_set(",
            (false, false) => b"get_acl: xacl_get(",
            (false, true) => b"get_acl: sys_acl_get_file(",
        };
        let which: &[u8] = match self.which {
            Which::Access => b"ACL_TYPE_ACCESS",
            Which::Default => b"ACL_TYPE_DEFAULT",
        };
        [call, path, b", ", which, b")"].concat()
    }
}

/// Reads the access ACL, and the default ACL of a directory. Must not be called for symlinks, which have no ACLs.
pub fn read(at: At<'_>, is_dir: bool) -> Result<Acls, AclError> {
    let get = |name: &[u8], which: Which| -> Result<Option<Acl>, AclError> {
        let failed = |error: io::Error| AclError {
            setting: false,
            which,
            error,
        };
        match at.get(name).map_err(failed)? {
            Some(bytes) => Acl::parse(&bytes).map_err(|bad| failed(bad.into())),
            None => Ok(None),
        }
    };
    let access = get(ACCESS, Which::Access)?.filter(|acl| !acl.is_minimal());
    let default = if is_dir {
        get(DEFAULT, Which::Default)?
    } else {
        None
    };
    Ok(Acls {
        access: canonical(access.as_ref()),
        default: canonical(default.as_ref()),
    })
}

/// Stands for a stored ACL of the destination that cannot be decoded, in place of a canonical form. It is not the same
/// as any ACL, nor as none.
pub const CORRUPT: &[u8] = b"corrupt";

/// Returns the canonical form of an ACL.
pub fn canonical(acl: Option<&Acl>) -> Box<[u8]> {
    acl.map(Acl::encode).unwrap_or_default().into()
}

fn known(bytes: &[u8]) -> Option<Acl> {
    Acl::parse(bytes).ok().flatten()
}

/// Returns whether the access ACL of the destination is as wanted, ignoring the bits that belong to the mode.
///
/// Differences in owner, others and mask (group, if neither has a mask) are differences of the mode: itemize shows `p`
/// for those and `a` for the rest. `wanted` is in canonical form; `have` is, too, or is [`CORRUPT`].
pub fn same_access(wanted: &[u8], have: &[u8]) -> bool {
    if have == CORRUPT {
        return false;
    }
    match (known(wanted), known(have)) {
        (Some(a), Some(b)) => {
            a.mask.is_some() == b.mask.is_some()
                && (a.mask.is_none() || a.group == b.group)
                && a.users == b.users
                && a.groups == b.groups
        }
        (None, Some(one)) | (Some(one), None) => one.is_minimal(),
        (None, None) => true,
    }
}

/// Returns whether the default ACL of the destination has the same entries as the wanted one. `wanted` is in canonical
/// form; `have` is, too, or is [`CORRUPT`].
pub fn same_default(wanted: &[u8], have: &[u8]) -> bool {
    have != CORRUPT && known(wanted) == known(have)
}

/// Maps the named users and groups of an ACL in canonical form.
pub fn map_ids(
    bytes: &[u8],
    user: impl FnMut(u32) -> u32,
    group: impl FnMut(u32) -> u32,
) -> Box<[u8]> {
    canonical(known(bytes).map(|acl| acl.map_ids(user, group)).as_ref())
}

/// Returns the named users and groups of an ACL in canonical form: whether it is a group, and its id.
pub fn named_ids(bytes: &[u8]) -> Vec<(bool, u32)> {
    let Some(Acl { users, groups, .. }) = known(bytes) else {
        return Vec::new();
    };
    let ids = |is_group: bool| move |(id, _): (u32, u8)| (is_group, id);
    users
        .into_iter()
        .map(ids(false))
        .chain(groups.into_iter().map(ids(true)))
        .collect()
}

/// Returns the permission bits that a new entry in a directory with this default ACL may have, instead of `!umask`;
/// `None` if there is no default ACL, so that the umask applies.
pub fn default_mode(default: &[u8]) -> Option<u32> {
    known(default).map(|acl| acl.mode())
}

/// Returns the mode with which to create a directory so that it gets what mkdir(1) would give it. `default_mode`: see
/// [`default_mode`], for the directory around it.
///
/// The umask of this process is 0, so it is applied here, except below a default ACL, where the kernel ignores umasks.
pub fn mode_of_new_dir(default_mode: Option<u32>, umask: u32) -> u32 {
    default_mode.unwrap_or(!umask) & 0o777
}

/// Sets the access ACL `wanted`, adapted to `mode`. If it is empty, sets only the mode.
///
/// rsync's order is chown, attributes, times, ACL, chmod, rename. Call chmod after this, because it does not set the
/// bits above 0777.
pub fn apply_access(at: At<'_>, wanted: &[u8], mode: u32) -> Result<(), AclError> {
    let acl = known(wanted).map_or_else(|| Acl::of_mode(mode), |acl| acl.with_mode(mode));
    at.set(ACCESS, &acl.encode()).map_err(|error| AclError {
        setting: true,
        which: Which::Access,
        error,
    })
}

/// Sets or removes the default ACL of a directory.
pub fn apply_default(at: At<'_>, wanted: &[u8]) -> Result<(), AclError> {
    let done = if wanted.is_empty() {
        at.remove(DEFAULT)
    } else {
        at.set(DEFAULT, wanted)
    };
    done.map_err(|error| AclError {
        setting: true,
        which: Which::Default,
        error,
    })
}

/// Marks a missing value in the `--fake-super` format.
const FAKE_NONE: u32 = 0x80;
/// Marks a named user among the named entries in that format.
const FAKE_USER: u32 = 1 << 31;

/// Encodes an ACL in the `--fake-super` format: little-endian words for owner, group, mask and others, then id and
/// permissions of each named entry.
///
/// Permissions that the mode of the file holds are omitted from an access ACL. An empty ACL has only missing values.
pub fn to_fake(canonical: &[u8], which: Which) -> Vec<u8> {
    let acl = known(canonical);
    let [owner, group, mask, other] = match (&acl, which) {
        (None, _) => [FAKE_NONE; 4],
        (Some(acl), Which::Access) => {
            let mask = acl.mask.map_or(FAKE_NONE, u32::from);
            let group = if acl.mask.is_none_or(|m| m == acl.group) {
                FAKE_NONE
            } else {
                u32::from(acl.group)
            };
            [FAKE_NONE, group, mask, FAKE_NONE]
        }
        (Some(acl), Which::Default) => [
            acl.owner.into(),
            acl.group.into(),
            acl.mask.map_or(FAKE_NONE, u32::from),
            acl.other.into(),
        ],
    };
    let mut words = vec![owner, group, mask, other];
    for acl in acl.iter() {
        words.extend(
            acl.users
                .iter()
                .flat_map(|&(id, perm)| [id, u32::from(perm) | FAKE_USER]),
        );
        words.extend(
            acl.groups
                .iter()
                .flat_map(|&(id, perm)| [id, u32::from(perm)]),
        );
    }
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Parses an ACL in the `--fake-super` format. `mode` is the mode stored next to it. The result is in canonical form.
pub fn from_fake(bytes: &[u8], which: Which, mode: u32) -> Result<Box<[u8]>, BadAcl> {
    if bytes.len() < 16 || !bytes.len().is_multiple_of(8) {
        return Err(BadAcl);
    }
    let perms_at = |at: usize| match u32_at(bytes, at) {
        FAKE_NONE => Ok(None),
        perm @ 0..=7 => Ok(Some(perm as u8)),
        _ => Err(BadAcl),
    };
    let owner = perms_at(0)?;
    let group = perms_at(4)?;
    let mask = perms_at(8)?;
    let other = perms_at(12)?;
    let mut users = Vec::new();
    let mut groups = Vec::new();
    for entry in bytes[16..].chunks_exact(8) {
        let id = u32_at(entry, 0);
        let access = u32_at(entry, 4);
        let perm = u8::try_from(access & !FAKE_USER)
            .ok()
            .filter(|p| *p <= 7)
            .ok_or(BadAcl)?;
        if access & FAKE_USER != 0 {
            &mut users
        } else {
            &mut groups
        }
        .push((id, perm));
    }
    let named = !(users.is_empty() && groups.is_empty());
    users.sort_by_key(|(id, _)| *id);
    groups.sort_by_key(|(id, _)| *id);
    let nothing = !named && mask.is_none();
    let acl = match which {
        Which::Access if nothing => None,
        Which::Access => Some(Acl {
            owner: digit(mode, 6),
            group: group.or(mask).unwrap_or(digit(mode, 3)),
            mask: Some(digit(mode, 3)),
            other: digit(mode, 0),
            users,
            groups,
        }),
        Which::Default => match (owner, group, other) {
            (None, None, None) if nothing => None,
            (Some(owner), Some(group), Some(other)) if mask.is_some() || !named => Some(Acl {
                owner,
                group,
                mask,
                other,
                users,
                groups,
            }),
            _ => return Err(BadAcl),
        },
    };
    Ok(canonical(acl.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    fn acl(
        owner: u8,
        group: u8,
        mask: Option<u8>,
        other: u8,
        users: &[(u32, u8)],
        groups: &[(u32, u8)],
    ) -> Acl {
        Acl {
            owner,
            group,
            mask,
            other,
            users: users.to_vec(),
            groups: groups.to_vec(),
        }
    }

    fn any_acl() -> impl Strategy<Value = Acl> {
        let named = || proptest::collection::vec((any::<u32>(), 0u8..8), 0..5);
        (
            0u8..8,
            0u8..8,
            proptest::option::of(0u8..8),
            0u8..8,
            named(),
            named(),
        )
            .prop_map(|(owner, group, mask, other, users, groups)| {
                let named = !(users.is_empty() && groups.is_empty());
                let mask = mask.or(named.then_some(7));
                Acl {
                    owner,
                    group,
                    mask,
                    other,
                    users,
                    groups,
                }
                .map_ids(|id| id, |id| id)
            })
    }

    proptest! {
        #[test]
        fn acl_encoding_round_trips(acl in any_acl()) {
            prop_assert_eq!(Acl::parse(&acl.encode()), Ok(Some(acl)));
        }

        #[test]
        fn acl_parsers_do_not_panic_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Acl::parse(&bytes);
            let _ = from_fake(&bytes, Which::Access, 0o644);
            let _ = from_fake(&bytes, Which::Default, 0o644);
        }

        #[test]
        fn fake_super_acl_round_trips(acl in any_acl()) {
            let bytes = canonical(Some(&acl));
            let back = from_fake(&to_fake(&bytes, Which::Default), Which::Default, 0);
            prop_assert_eq!(back, Ok(bytes));
            let access = canonical(Some(&acl).filter(|a| !a.is_minimal()));
            let back = from_fake(&to_fake(&access, Which::Access), Which::Access, acl.mode());
            prop_assert_eq!(back, Ok(access));
        }
    }

    #[test]
    fn fake_super_acl_has_rsyncs_format() {
        // setfacl -m u:5:rwx,g:6:r,m::rx on a file with g::r.
        let mixed = canonical(Some(&acl(6, 4, Some(5), 4, &[(5, 7)], &[(6, 4)])));
        let hex = |bytes: Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(
            hex(to_fake(&mixed, Which::Access)),
            "8000000004000000050000008000000005000000070000800600000004000000"
        );
        let same = canonical(Some(&acl(7, 5, Some(5), 5, &[(5, 1)], &[])));
        assert_eq!(
            hex(to_fake(&same, Which::Access)),
            "800000008000000005000000800000000500000001000080"
        );
        let inherited = canonical(Some(&acl(7, 5, Some(5), 5, &[(5, 5)], &[])));
        assert_eq!(
            hex(to_fake(&inherited, Which::Default)),
            "070000000500000005000000050000000500000005000080"
        );
        assert_eq!(
            hex(to_fake(b"", Which::Access)),
            "80000000800000008000000080000000"
        );
    }

    #[test]
    fn acl_comparison_ignores_entries_of_the_mode() {
        let base = acl(6, 4, Some(7), 4, &[(5, 7)], &[]);
        let bytes = |acl: &Acl| acl.encode();
        assert!(same_access(
            &bytes(&base),
            &bytes(&base.clone().with_mode(0o751))
        ));
        assert!(!same_access(
            &bytes(&base),
            &bytes(&Acl {
                group: 5,
                ..base.clone()
            })
        ));
        assert!(!same_access(&bytes(&base), b""));
        // A mask without named entries is an ACL of its own.
        assert!(!same_access(&bytes(&acl(6, 4, Some(4), 4, &[], &[])), b""));
        assert!(same_access(&bytes(&Acl::of_mode(0o644)), b""));
        assert!(!same_default(&bytes(&Acl::of_mode(0o644)), b""));
        assert!(!same_default(
            &bytes(&base),
            &bytes(&base.clone().with_mode(0o751))
        ));
    }

    #[test]
    fn default_acl_determines_the_mode_of_new_files() {
        assert_eq!(
            default_mode(&acl(7, 4, None, 0, &[], &[]).encode()),
            Some(0o740)
        );
        assert_eq!(
            default_mode(&acl(5, 5, Some(7), 2, &[(5, 7)], &[]).encode()),
            Some(0o572)
        );
        assert_eq!(default_mode(b""), None);
    }

    #[test]
    fn mapped_acl_ids_are_sorted_again() {
        let before = acl(6, 4, Some(7), 4, &[(5, 7), (9, 1)], &[(6, 4)]).encode();
        let after = map_ids(&before, |id| if id == 5 { 100 } else { id }, |id| id + 1);
        assert_eq!(
            &*after,
            acl(6, 4, Some(7), 4, &[(9, 1), (100, 7)], &[(7, 4)]).encode()
        );
        assert_eq!(&*map_ids(b"", |id| id, |id| id), b"");
        assert_eq!(named_ids(&before), [(false, 5), (false, 9), (true, 6)]);
        assert_eq!(named_ids(b""), []);
    }

    #[allow(clippy::print_stderr)]
    #[test]
    fn acls_are_set_and_removed_on_disk() {
        let Some(dir) = crate::fs::xattr::tests::scratch() else {
            return;
        };
        let opened_dir = std::fs::File::open(dir.path()).unwrap();
        let at = At::Fd(opened_dir.as_fd());
        let wanted = acl(7, 5, Some(7), 1, &[(5, 7)], &[]).encode();
        match apply_default(at, &wanted) {
            Err(e) if e.error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                return eprintln!("skipped: no ACLs here");
            }
            other => other.unwrap(),
        }
        apply_access(at, &wanted, 0o750).unwrap();
        let found = read(at, true).unwrap();
        assert_eq!(&*found.default, wanted);
        assert_eq!(
            &*found.access,
            acl(7, 5, Some(5), 0, &[(5, 7)], &[]).encode()
        );
        assert_eq!(
            opened_dir.metadata().unwrap().permissions().mode() & 0o777,
            0o750
        );
        apply_default(at, b"").unwrap();
        apply_default(at, b"").unwrap();
        apply_access(at, b"", 0o705).unwrap();
        assert_eq!(read(at, true).unwrap(), Acls::default());
        assert_eq!(
            opened_dir.metadata().unwrap().permissions().mode() & 0o777,
            0o705
        );
    }

    #[test]
    fn acl_errors_have_rsyncs_text() {
        let error = |setting, which| AclError {
            setting,
            which,
            error: io::ErrorKind::Other.into(),
        };
        assert_eq!(
            error(true, Which::Default).text(b"dir", false),
            b"set_acl: xacl_set(dir, ACL_TYPE_DEFAULT)"
        );
        assert_eq!(
            error(false, Which::Access).text(b".", true),
            b"get_acl: sys_acl_get_file(., ACL_TYPE_ACCESS)"
        );
        assert_eq!(
            error(false, Which::Access).text(b".", false),
            b"get_acl: xacl_get(., ACL_TYPE_ACCESS)"
        );
    }
}

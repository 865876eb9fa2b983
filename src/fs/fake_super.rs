//! `--fake-super`: stores what only a super-user could set in `user.rsync.%stat`, an attribute of the file.
//!
//! Devices, fifos, sockets and symlinks are stored as regular files; a symlink's target is the content. Names of other
//! attributes are in [`super::xattr`], ACLs in [`super::acl`].

use super::acl::{self, Acls, BadAcl, Which};
use super::sys;
use super::xattr::At;
use crate::flist::entry::{S_IFMT, Stat};
use rustix::fs::{major, makedev, minor};
use std::io;

/// The attribute that holds mode, device number, owner and group.
pub const STAT: &[u8] = b"user.rsync.%stat";

const S_IFDIR: u32 = 0o040000;

/// The decoded attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FakeStat {
    /// Type and permission bits.
    pub mode: u32,
    /// A device's number, as returned by stat; 0 for others.
    pub rdev: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl FakeStat {
    /// Parses e.g. `100644 0,0 5:6`; `None` if it is corrupt. As tolerant as rsync: accepts blanks before a number and
    /// trailing text, and numbers wrap.
    pub fn parse(bytes: &[u8]) -> Option<FakeStat> {
        let mut rest = bytes;
        let mode = number(&mut rest, 8)?;
        let major = number(&mut rest, 10)?;
        rest = rest.strip_prefix(b",")?;
        let minor = number(&mut rest, 10)?;
        let uid = number(&mut rest, 10)?;
        rest = rest.strip_prefix(b":")?;
        let gid = number(&mut rest, 10)?;
        let mode = mode & 0o177777;
        Some(FakeStat {
            mode,
            rdev: if is_device(mode) {
                makedev(major, minor)
            } else {
                0
            },
            uid,
            gid,
        })
    }

    /// Encodes the attribute.
    pub fn encode(&self) -> Vec<u8> {
        let rdev = if is_device(self.mode) { self.rdev } else { 0 };
        format!(
            "{:o} {},{} {}:{}",
            self.mode,
            major(rdev),
            minor(rdev),
            self.uid,
            self.gid
        )
        .into_bytes()
    }
}

fn number(rest: &mut &[u8], radix: u32) -> Option<u32> {
    let mut bytes = rest.trim_ascii_start();
    let negative = bytes.first() == Some(&b'-');
    if matches!(bytes.first(), Some(b'-' | b'+')) {
        bytes = &bytes[1..];
    }
    let len = bytes
        .iter()
        .take_while(|&&b| char::from(b).is_digit(radix))
        .count();
    if len == 0 {
        return None;
    }
    let value = bytes[..len].iter().fold(0u32, |value, &b| {
        value
            .wrapping_mul(radix)
            .wrapping_add(char::from(b).to_digit(radix).expect("a digit was counted"))
    });
    *rest = &bytes[len..];
    Some(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

fn is_device(mode: u32) -> bool {
    matches!(mode & S_IFMT, 0o020000 | 0o060000)
}

/// The attribute could not be read, parsed or written.
#[derive(Debug)]
pub enum FakeError {
    /// The value is invalid. rsync ends the run (exit 11).
    Corrupt(Vec<u8>),
    /// Reported and counted (exit 23). The entry keeps the attributes from stat.
    Read(io::Error),
    /// Reported and counted (exit 23).
    Write(io::Error),
    /// The file's own mode could not be set: `failed to set permissions on "PATH"`, counted (exit 23).
    Chmod(io::Error),
}

impl FakeError {
    /// Returns the message: for [`FakeError::Corrupt`] the whole line, otherwise rsync's text between `rsync: [sender]
    /// ` and `: Permission denied (13)`.
    pub fn text(&self, full_path: &[u8]) -> Vec<u8> {
        match self {
            FakeError::Corrupt(value) => [
                b"Corrupt ",
                STAT,
                b" xattr attached to \"",
                full_path,
                b"\": \"",
                value,
                b"\"",
            ]
            .concat(),
            FakeError::Read(_) => {
                [b"failed to read xattr ", STAT, b" for \"", full_path, b"\""].concat()
            }
            FakeError::Write(_) => [
                b"failed to write xattr ",
                STAT,
                b" for \"",
                full_path,
                b"\"",
            ]
            .concat(),
            FakeError::Chmod(_) => [b"failed to set permissions on \"", full_path, b"\""].concat(),
        }
    }

    /// Returns the error of the system call, if there was one.
    pub fn error(self) -> Option<io::Error> {
        match self {
            FakeError::Corrupt(_) => None,
            FakeError::Read(error) | FakeError::Write(error) | FakeError::Chmod(error) => {
                Some(error)
            }
        }
    }
}

/// Returns the effective attributes under `--fake-super`, on either side: the stored values if there are any. The
/// second value is whether [`store`] would change nothing if given these attributes.
///
/// Length and times are those of the file, so a symlink's length is correct. Stored values are used unchecked, even if
/// they specify another type than the file has. The caller must reject a mode without a type.
pub fn stat_with_fake(at: At<'_>, real: Stat) -> Result<(Stat, bool), FakeError> {
    // Only these can have user attributes. A real device, fifo or symlink represents itself.
    if !matches!(real.mode & S_IFMT, 0o100000 | S_IFDIR) {
        return Ok((real, true));
    }
    let on_disk =
        |mode: u32| real.mode & S_IFMT | mode_on_disk(mode, real.mode & S_IFMT == S_IFDIR);
    let Some(value) = at.get(STAT).map_err(FakeError::Read)? else {
        return Ok((real, on_disk(real.mode) == real.mode));
    };
    let Some(FakeStat {
        mode,
        rdev,
        uid,
        gid,
    }) = FakeStat::parse(&value)
    else {
        return Err(FakeError::Corrupt(value));
    };
    let says_nothing = (mode, uid, gid) == (real.mode, real.uid, real.gid);
    Ok((
        Stat {
            mode,
            rdev,
            uid,
            gid,
            ..real
        },
        on_disk(mode) == real.mode && !says_nothing,
    ))
}

/// Returns the permission bits of the file itself: without special bits, and with sufficient permissions for the owner.
pub fn mode_on_disk(mode: u32, is_dir: bool) -> u32 {
    mode & 0o777 | if is_dir { 0o700 } else { 0o600 }
}

/// Makes a file or directory count as `wanted`: sets its own mode and stores the rest in the attribute, or removes the
/// attribute if the file itself has all values.
///
/// `wanted` is what [`stat_with_fake`] should return afterwards; `real` is the result of stat, without stored values.
/// Never changes owner and group of the file. Returns whether anything was changed.
pub fn store(at: At<'_>, wanted: &FakeStat, real: &Stat) -> Result<bool, FakeError> {
    let mut changed = false;
    let on_disk = real.mode & S_IFMT | mode_on_disk(wanted.mode, real.mode & S_IFMT == S_IFDIR);
    if on_disk != real.mode {
        match at {
            At::Fd(fd) => sys::fchmod(fd, on_disk & 0o7777),
            At::Name { dir, name } => sys::chmod(dir, name, on_disk & 0o7777),
        }
        .map_err(FakeError::Chmod)?;
        changed = true;
    }
    let kept = at.get(STAT).map_err(FakeError::Read)?;
    if wanted.mode == on_disk && (wanted.uid, wanted.gid) == (real.uid, real.gid) {
        if kept.is_some() {
            at.remove(STAT).map_err(FakeError::Write)?;
            changed = true;
        }
        return Ok(changed);
    }
    let value = wanted.encode();
    if kept.as_deref() != Some(value.as_slice()) {
        at.set(STAT, &value).map_err(FakeError::Write)?;
        changed = true;
    }
    Ok(changed)
}

/// Reads the stored ACLs of a file at the source; `mode` is that of [`stat_with_fake`]. Ignores the file's own ACLs. A
/// corrupt value is an error.
pub fn read_acls(at: At<'_>, mode: u32) -> io::Result<Acls> {
    read_acls_by(at, mode, |parsed| Ok(parsed?))
}

/// Reads the stored ACLs of a file at the destination, as [`read_acls`]. A corrupt value differs from every ACL, so the
/// run replaces it, as rsync does.
pub fn read_acls_to_replace(at: At<'_>, mode: u32) -> io::Result<Acls> {
    read_acls_by(at, mode, |parsed| {
        Ok(parsed.unwrap_or_else(|BadAcl| acl::CORRUPT.into()))
    })
}

fn read_acls_by(
    at: At<'_>,
    mode: u32,
    settle: impl Fn(Result<Box<[u8]>, BadAcl>) -> io::Result<Box<[u8]>>,
) -> io::Result<Acls> {
    let get = |name: &[u8], which: Which| -> io::Result<Box<[u8]>> {
        match at.get(name)? {
            Some(bytes) => settle(acl::from_fake(&bytes, which, mode)),
            None => Ok(Box::default()),
        }
    };
    let access = get(acl::FAKE_ACCESS, Which::Access)?;
    let default = if mode & S_IFMT == S_IFDIR {
        get(acl::FAKE_DEFAULT, Which::Default)?
    } else {
        Box::default()
    };
    Ok(Acls { access, default })
}

/// Stores an ACL of a file (canonical, or empty for none). As in rsync, an access ACL that is removed leaves a value
/// without entries, and a default ACL leaves nothing.
pub fn store_acl(at: At<'_>, which: Which, wanted: &[u8]) -> io::Result<()> {
    let name = match which {
        Which::Access => acl::FAKE_ACCESS,
        Which::Default => acl::FAKE_DEFAULT,
    };
    if !wanted.is_empty() {
        return at.set(name, &acl::to_fake(wanted, which));
    }
    match which {
        Which::Default => at.remove(name),
        Which::Access if at.get(name)?.is_some() => at.set(name, &acl::to_fake(b"", which)),
        Which::Access => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::xattr::tests::scratch;
    use proptest::prelude::*;
    use rustix::fd::AsFd;
    use std::fs::File;

    proptest! {
        #[test]
        fn fake_stat_round_trips(mode in 0u32..0o200000, number in any::<(u16, u16)>(), uid: u32, gid: u32) {
            let rdev = if is_device(mode) { makedev(number.0.into(), number.1.into()) } else { 0 };
            let stat = FakeStat { mode, rdev, uid, gid };
            prop_assert_eq!(FakeStat::parse(&stat.encode()), Some(stat));
        }

        #[test]
        fn fake_stat_parser_does_not_panic(text in "[0-9 ,:x+-]{0,40}") {
            let _ = FakeStat::parse(text.as_bytes());
        }
    }

    #[test]
    fn fake_stat_has_rsyncs_format() {
        let device = FakeStat {
            mode: 0o020644,
            rdev: makedev(1, 3),
            uid: 0,
            gid: 7,
        };
        assert_eq!(device.encode(), b"20644 1,3 0:7");
        for good in [
            "100600 0,0 5:6",
            " 100600  0, 0 5:6 x",
            "100600 0,0 5:6x",
            "1100600 0,0 5:6",
            "100600 1,3 5:6",
        ] {
            let stat = FakeStat {
                mode: 0o100600,
                rdev: 0,
                uid: 5,
                gid: 6,
            };
            assert_eq!(FakeStat::parse(good.as_bytes()), Some(stat), "{good}");
        }
        assert_eq!(FakeStat::parse(b"100600 0,0 -1:6").unwrap().uid, u32::MAX);
        assert_eq!(FakeStat::parse(b"100600 0,0 4294967297:6").unwrap().uid, 1);
        for bad in [
            "",
            "x",
            "100600",
            "100600 0,0",
            "100600 0,0 5",
            "100800 0,0 1:6",
            "100600 0 0 5:6",
        ] {
            assert_eq!(FakeStat::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn mode_on_disk_keeps_owner_access() {
        for (mode, file, dir) in [
            (0, 0o600, 0o700),
            (0o4755, 0o755, 0o755),
            (0o444, 0o644, 0o744),
            (0o070, 0o670, 0o770),
        ] {
            assert_eq!(
                (mode_on_disk(mode, false), mode_on_disk(mode, true)),
                (file, dir),
                "{mode:o}"
            );
        }
    }

    #[test]
    fn stored_fake_stat_replaces_the_real_one() {
        let Some(dir) = scratch() else { return };
        let file = File::create(dir.path().join("f")).unwrap();
        let opened_dir = File::open(dir.path()).unwrap();
        let named = At::Name {
            dir: opened_dir.as_fd(),
            name: b"f",
        };
        for at in [At::Fd(file.as_fd()), named] {
            let real = || sys::fstat(file.as_fd()).unwrap();
            let (uid, gid) = (real().uid, real().gid);
            let kinds = [
                FakeStat {
                    mode: 0o060440,
                    rdev: makedev(8, 300),
                    uid: 5,
                    gid: 6,
                },
                FakeStat {
                    mode: 0o120777,
                    rdev: 0,
                    uid,
                    gid,
                },
                FakeStat {
                    mode: 0o104755,
                    rdev: 0,
                    uid,
                    gid,
                },
                FakeStat {
                    mode: 0o100600,
                    rdev: 0,
                    uid: 77,
                    gid,
                },
            ];
            for wanted in kinds {
                assert!(store(at, &wanted, &real()).unwrap());
                assert!(!store(at, &wanted, &real()).unwrap());
                let (counts, is_settled) = stat_with_fake(at, real()).unwrap();
                assert!(is_settled);
                assert_eq!(
                    (counts.mode, counts.rdev, counts.uid, counts.gid),
                    (wanted.mode, wanted.rdev, wanted.uid, wanted.gid)
                );
                assert_eq!(real().mode, 0o100000 | mode_on_disk(wanted.mode, false));
            }
            assert!(
                store(
                    at,
                    &FakeStat {
                        mode: 0o100640,
                        rdev: 0,
                        uid,
                        gid
                    },
                    &real()
                )
                .unwrap()
            );
            assert_eq!(at.get(STAT).unwrap(), None);
            assert_eq!(real().mode, 0o100640);
            at.set(STAT, b"100600 oops").unwrap();
            let error = stat_with_fake(at, real()).unwrap_err();
            assert_eq!(
                error.text(b"/d/f"),
                br#"Corrupt user.rsync.%stat xattr attached to "/d/f": "100600 oops""#
            );
        }
    }

    #[test]
    fn fake_super_stores_acls_in_attributes() {
        let Some(dir) = scratch() else { return };
        let opened_dir = File::open(dir.path()).unwrap();
        let at = At::Fd(opened_dir.as_fd());
        let users = vec![(5, 7)];
        let acl = acl::Acl {
            owner: 7,
            group: 5,
            mask: Some(1),
            other: 0,
            users,
            groups: Vec::new(),
        }
        .encode();
        store_acl(at, Which::Access, &acl).unwrap();
        store_acl(at, Which::Default, &acl).unwrap();
        let found = read_acls(at, 0o040710).unwrap();
        assert_eq!((&*found.access, &*found.default), (&*acl, &*acl));
        store_acl(at, Which::Access, b"").unwrap();
        store_acl(at, Which::Default, b"").unwrap();
        assert_eq!(read_acls(at, 0o040710).unwrap(), Acls::default());
    }
}

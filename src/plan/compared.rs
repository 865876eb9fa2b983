//! Which attributes of an entry are compared. Decisions, directory digests and `apply` follow it.

use super::Changes;
use crate::flist::Kind;
use crate::options::Preserve;

/// The attributes that count for entries of one kind, besides what makes their content.
///
/// Users destructure it completely, so that a new attribute does not compile until each of them handles it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compared {
    /// Permission bits.
    pub perms: Perms,
    /// Modification time. The quick check of a file compares it regardless.
    pub mtime: bool,
    pub owner: bool,
    pub group: bool,
    /// Access time, in whole seconds.
    pub atime: bool,
    /// Access and default ACL.
    pub acls: bool,
    /// Extended attributes.
    pub xattrs: bool,
}

/// Which permission bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Perms {
    /// None.
    Ignored,
    /// Whether a file is executable at all (`-E`).
    Executability,
    /// All, including set-ID and sticky bits (`-p`).
    All,
}

impl Perms {
    /// Returns the same bits for any two modes that count as equal.
    pub fn of(self, mode: u32) -> u32 {
        match self {
            Perms::Ignored => 0,
            Perms::Executability if mode & 0o111 == 0 => 0,
            Perms::Executability => 0o111,
            Perms::All => mode & 0o7777,
        }
    }
}

impl Compared {
    /// Returns the attributes that count for entries of a kind.
    pub fn for_kind(kind: Kind, preserve: &Preserve) -> Compared {
        Compared {
            perms: match kind {
                Kind::Symlink => Perms::Ignored,
                _ if preserve.perms => Perms::All,
                Kind::File if preserve.executability => Perms::Executability,
                Kind::File | Kind::Dir | Kind::Device | Kind::Special => Perms::Ignored,
            },
            mtime: keeps_time(kind, preserve),
            owner: preserve.owner,
            group: preserve.group,
            // That of a symlink is kept, but a difference alone is not a change: reading a link moves its time.
            atime: keeps_atime(kind, preserve) && kind != Kind::Symlink,
            acls: preserve.acls && kind != Kind::Symlink,
            xattrs: preserve.xattrs > 0,
        }
    }
}

/// Returns whether entries of a kind get the access time of the source. rsync never sets that of a directory.
pub fn keeps_atime(kind: Kind, preserve: &Preserve) -> bool {
    preserve.atimes && kind != Kind::Dir
}

/// Returns what is shown of the time of an entry that is written but does not get the source's modification time.
///
/// rsync shows `t` for what `--omit-link-times` and `--omit-dir-times` leave, and `T` without `--times`.
pub fn unkept_time(kind: Kind, preserve: &Preserve) -> Changes {
    let shown = if preserve.times {
        Changes::TIME
    } else {
        Changes::TIME_NOW
    };
    Changes::NONE.with(shown, !keeps_time(kind, preserve))
}

/// Returns whether an entry of this kind gets the source's modification time.
pub fn keeps_time(kind: Kind, preserve: &Preserve) -> bool {
    preserve.times
        && match kind {
            Kind::Dir => !preserve.omit_dir_times,
            Kind::Symlink => !preserve.omit_link_times,
            Kind::File | Kind::Device | Kind::Special => true,
        }
}

//! The permission bits of a destination entry: `--chmod` applied to the source's mode, then the rules for `-p`, `-E`,
//! or neither.

use crate::flist::entry::S_IFMT;
use crate::options::ModeChange;

const PERMS: u32 = 0o7777;
const SETGID: u32 = 0o2000;

/// Applies `--chmod` to a source's mode; the type bits stay. Must not be called for symlinks, which rsync leaves alone.
pub fn apply(mode: u32, is_dir: bool, changes: &[ModeChange]) -> u32 {
    let mut now = mode & PERMS;
    for change in changes
        .iter()
        .filter(|c| if is_dir { c.dirs } else { c.files })
    {
        let copied = match change.copy_from_shift {
            Some(shift) => (((now >> shift) & 7) * change.copy_to) & change.copy_mask,
            None => 0,
        };
        now &= !change.and;
        if change.copy_removes {
            now &= !copied;
        } else {
            now |= copied;
        }
        now |= change.or;
        // X depends on the mode before the first change: `a-x,+X` restores an execute bit.
        if is_dir || mode & 0o111 != 0 {
            now |= change.or_x;
        }
    }
    mode & S_IFMT | now & PERMS
}

/// The options that determine the mode of a destination entry.
#[derive(Debug, Clone, Copy, Default)]
pub struct ModeRule<'a> {
    /// `-p`
    pub perms: bool,
    /// `-E`; no effect under `-p`.
    pub executability: bool,
    /// The process's umask, in effect for new entries.
    pub umask: u32,
    /// What the receiver changes in the mode of every entry; no effect under `-p`.
    pub required: &'a [ModeChange],
}

/// What a new entry inherits from the directory that receives it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Parent {
    /// The bits that its default ACL allows, instead of the umask; see `fs::acl::default_mode`.
    pub default_acl_mode: Option<u32>,
    /// Whether it has the setgid bit, which new directories inherit.
    pub setgid: bool,
}

/// Returns the permission bits (0 to 07777) that the destination entry should have.
///
/// `src_mode` is the source's mode after [`apply`], with its type bits. `existing` is the mode of the entry to update,
/// or `None` for a new entry, including one that replaces an entry of another kind. Must not be called for symlinks.
pub fn dest_mode(src_mode: u32, existing: Option<u32>, rule: &ModeRule<'_>, parent: Parent) -> u32 {
    if rule.perms {
        return src_mode & PERMS;
    }
    let is_dir = src_mode & S_IFMT == 0o040000;
    let mode = match existing {
        Some(mode) if rule.executability && src_mode & S_IFMT == 0o100000 => {
            executable_as(src_mode, mode & PERMS)
        }
        Some(mode) => mode & PERMS,
        None => {
            let allowed = parent.default_acl_mode.unwrap_or(!rule.umask) & 0o777;
            let inherited = if parent.setgid && is_dir { SETGID } else { 0 };
            src_mode & allowed | inherited
        }
    };
    apply(mode, is_dir, rule.required)
}

/// Applies `-E`: changes the mode only if exactly one of the two is executable.
fn executable_as(src_mode: u32, mode: u32) -> u32 {
    match (src_mode & 0o111 != 0, mode & 0o111 != 0) {
        (true, false) => mode | (mode & 0o444) >> 2,
        (false, true) => mode & !0o111,
        (true, true) | (false, false) => mode,
    }
}

/// Returns the mode in which a receiver that is not super-user leaves a directory.
///
/// Such a receiver makes each directory it works in accessible (`u+rwx`). At the end, rsync 3.5.0 reverts that only for
/// directories that their owner may not write. So a directory with 0644 ends as 0744, with or without `-p`, even if it
/// existed before; 0500 ends as 0500. Super-users do not need this.
pub fn dir_mode_left_by_user(mode: u32) -> u32 {
    if mode & 0o200 != 0 {
        mode | 0o700
    } else {
        mode
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: ModeChange = ModeChange {
        dirs: true,
        files: true,
        and: 0,
        or: 0,
        or_x: 0,
        copy_from_shift: None,
        copy_to: 0,
        copy_mask: 0o777,
        copy_removes: false,
    };

    fn on_file(mode: u32, changes: &[ModeChange]) -> u32 {
        apply(0o100000 | mode, false, changes) & PERMS
    }

    #[test]
    fn conditional_x_reads_the_original_mode() {
        let minus_x = ModeChange { and: 0o111, ..NONE };
        let plus_x = ModeChange {
            or_x: 0o111,
            ..NONE
        };
        assert_eq!(on_file(0o754, &[minus_x, plus_x]), 0o755);
        assert_eq!(on_file(0o644, &[minus_x, plus_x]), 0o644);
        assert_eq!(apply(0o040644, true, &[minus_x, plus_x]), 0o040755);
        let u_is_x = ModeChange {
            and: 0o700,
            or_x: 0o100,
            ..NONE
        };
        assert_eq!(
            [0o644, 0o4755, 0o1070].map(|m| on_file(m, &[u_is_x])),
            [0o044, 0o4155, 0o1170]
        );
    }

    #[test]
    fn class_copies_read_the_current_mode() {
        let copy = |shift, to: u32| ModeChange {
            copy_from_shift: Some(shift),
            copy_to: to,
            and: to * 7,
            ..NONE
        };
        let g_u = copy(6, 0o010);
        let u_g = ModeChange {
            and: 0o4700,
            ..copy(3, 0o100)
        };
        assert_eq!(
            [0o644, 0o754, 0o4755].map(|m| on_file(m, &[g_u])),
            [0o664, 0o774, 0o4775]
        );
        assert_eq!(
            [0o644, 0o754, 0o4755].map(|m| on_file(m, &[u_g, g_u])),
            [0o444, 0o554, 0o555]
        );
        let u_minus_g = ModeChange {
            copy_from_shift: Some(3),
            copy_to: 0o100,
            copy_removes: true,
            ..NONE
        };
        assert_eq!(
            [0o644, 0o754, 0o4755].map(|m| on_file(m, &[u_minus_g])),
            [0o244, 0o254, 0o4255]
        );
        let plus_u = ModeChange {
            copy_from_shift: Some(6),
            copy_to: 0o111,
            copy_mask: 0o755,
            ..NONE
        };
        assert_eq!(on_file(0o600, &[plus_u]), 0o644);
    }

    #[test]
    fn chmod_distinguishes_directories_and_files() {
        let changes = [
            ModeChange {
                files: false,
                and: PERMS,
                or: 0o2775,
                ..NONE
            },
            ModeChange {
                dirs: false,
                and: PERMS,
                or: 0o664,
                ..NONE
            },
        ];
        assert_eq!(apply(0o040700, true, &changes), 0o042775);
        assert_eq!(apply(0o100700, false, &changes), 0o100664);
        assert_eq!(apply(0o020700, false, &changes), 0o020664);
    }

    /// Source modes of the tables below, which are results of rsync 3.5.0.
    const SRC: [u32; 13] = [
        0o0, 0o400, 0o644, 0o755, 0o4755, 0o2755, 0o2644, 0o1777, 0o6711, 0o070, 0o111, 0o200,
        0o501,
    ];

    fn row(kind: u32, existing: Option<u32>, rule: ModeRule, parent: Parent) -> [u32; 13] {
        SRC.map(|mode| dest_mode(kind | mode, existing.map(|m| kind | m), &rule, parent))
    }

    #[test]
    fn new_entries_get_the_mode_without_umask_and_special_bits() {
        let rule = |umask| ModeRule {
            umask,
            ..ModeRule::default()
        };
        let plain = Parent::default();
        let seen = [
            0, 0o400, 0o644, 0o755, 0o755, 0o755, 0o644, 0o755, 0o711, 0o50, 0o111, 0o200, 0o501,
        ];
        let seen_077 = [
            0, 0o400, 0o600, 0o700, 0o700, 0o700, 0o600, 0o700, 0o700, 0, 0o100, 0o200, 0o500,
        ];
        for kind in [0o100000, 0o040000, 0o010000] {
            assert_eq!(row(kind, None, rule(0o022), plain), seen);
            assert_eq!(row(kind, None, rule(0o077), plain), seen_077);
            assert_eq!(
                row(
                    kind,
                    None,
                    ModeRule {
                        executability: true,
                        ..rule(0o022)
                    },
                    plain
                ),
                seen
            );
        }
        let below_setgid = Parent {
            setgid: true,
            ..plain
        };
        assert_eq!(row(0o100000, None, rule(0o022), below_setgid), seen);
        assert_eq!(
            row(0o040000, None, rule(0o022), below_setgid),
            seen.map(|m| m | 0o2000)
        );
        assert_eq!(
            row(
                0o040000,
                None,
                ModeRule {
                    perms: true,
                    ..rule(0o022)
                },
                below_setgid
            ),
            SRC
        );
    }

    #[test]
    fn default_acl_determines_the_mode_of_new_files() {
        let parent = Parent {
            default_acl_mode: Some(0o572),
            setgid: false,
        };
        let rule = ModeRule {
            umask: 0o022,
            ..ModeRule::default()
        };
        let new = |mode: u32| dest_mode(0o100000 | mode, None, &rule, parent);
        assert_eq!([0o644, 0o777, 0o4666].map(new), [0o440, 0o572, 0o462]);
    }

    #[test]
    fn existing_entries_keep_their_mode_except_with_executability() {
        let keep = ModeRule {
            umask: 0o022,
            ..ModeRule::default()
        };
        let exec = ModeRule {
            executability: true,
            ..keep
        };
        let plain = Parent::default();
        for mode in [0o640, 0o4711, 0o111, 0o6640, 0o1700, 0o2000] {
            assert_eq!(row(0o100000, Some(mode), keep, plain), [mode; 13]);
            assert_eq!(row(0o040000, Some(mode), exec, plain), [mode; 13]);
            assert_eq!(row(0o010000, Some(mode), exec, plain), [mode; 13]);
            assert_eq!(
                row(
                    0o100000,
                    Some(mode),
                    ModeRule {
                        perms: true,
                        ..exec
                    },
                    plain
                ),
                SRC
            );
        }
        for (mode, plain_src, executable_src) in [
            (0o640, 0o640, 0o750),
            (0o4711, 0o4600, 0o4711),
            (0o111, 0, 0o111),
            (0o6640, 0o6640, 0o6750),
            (0o1700, 0o1600, 0o1700),
            (0o2000, 0o2000, 0o2000),
            (0o744, 0o644, 0o744),
            (0o4644, 0o4644, 0o4755),
        ] {
            let expected = SRC.map(|src| {
                if src & 0o111 != 0 {
                    executable_src
                } else {
                    plain_src
                }
            });
            assert_eq!(row(0o100000, Some(mode), exec, plain), expected, "{mode:o}");
        }
    }

    #[test]
    fn unprivileged_run_leaves_writable_directories_accessible() {
        let seen = [
            (0, 0),
            (0o200, 0o700),
            (0o300, 0o700),
            (0o400, 0o400),
            (0o644, 0o744),
            (0o500, 0o500),
        ];
        for (mode, left) in seen {
            assert_eq!(dir_mode_left_by_user(mode), left, "{mode:o}");
        }
    }
}

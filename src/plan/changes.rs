//! The attributes of an entry that differ: what itemize shows and apply acts on.

/// A set of differences between the source entry and the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes(u16);

/// How output shows one difference.
pub struct ShownChange {
    change: Changes,
    /// The name in `--json`.
    pub name: &'static str,
    /// The column of itemized output, from 0.
    pub column: usize,
    /// The letter in that column.
    pub letter: u8,
}

/// Every difference that output shows. New entries are shown in a different form.
const SHOWN: [ShownChange; 10] = [
    ShownChange {
        change: Changes::CHECKSUM,
        name: "content",
        column: 2,
        letter: b'c',
    },
    ShownChange {
        change: Changes::SIZE,
        name: "size",
        column: 3,
        letter: b's',
    },
    ShownChange {
        change: Changes::TIME,
        name: "mtime",
        column: 4,
        letter: b't',
    },
    ShownChange {
        change: Changes::TIME_NOW,
        name: "mtime_now",
        column: 4,
        letter: b'T',
    },
    ShownChange {
        change: Changes::PERMS,
        name: "permissions",
        column: 5,
        letter: b'p',
    },
    ShownChange {
        change: Changes::OWNER,
        name: "owner",
        column: 6,
        letter: b'o',
    },
    ShownChange {
        change: Changes::GROUP,
        name: "group",
        column: 7,
        letter: b'g',
    },
    ShownChange {
        change: Changes::ATIME,
        name: "atime",
        column: 8,
        letter: b'u',
    },
    ShownChange {
        change: Changes::ACL,
        name: "acl",
        column: 9,
        letter: b'a',
    },
    ShownChange {
        change: Changes::XATTR,
        name: "xattrs",
        column: 10,
        letter: b'x',
    },
];

impl Changes {
    /// Nothing differs.
    pub const NONE: Changes = Changes(0);
    /// The content (under `-c`), a symlink's target, or a device's number.
    pub const CHECKSUM: Changes = Changes(1);
    /// The length.
    pub const SIZE: Changes = Changes(1 << 1);
    /// The modification time, which will be set.
    pub const TIME: Changes = Changes(1 << 2);
    /// The modification time, which will be the time of the transfer (`T`).
    pub const TIME_NOW: Changes = Changes(1 << 3);
    /// Permissions.
    pub const PERMS: Changes = Changes(1 << 4);
    /// Owner.
    pub const OWNER: Changes = Changes(1 << 5);
    /// Group.
    pub const GROUP: Changes = Changes(1 << 6);
    /// Access time.
    pub const ATIME: Changes = Changes(1 << 7);
    /// ACL.
    pub const ACL: Changes = Changes(1 << 8);
    /// Extended attributes.
    pub const XATTR: Changes = Changes(1 << 9);
    /// The destination has no such entry.
    pub const NEW: Changes = Changes(1 << 10);

    /// It is unknown what differs: the entry was transferred by rsync's protocol before version 29.
    pub const UNKNOWN: Changes = Changes(1 << 15);

    /// Returns the set as a number. The bits never change, because they are sent over the wire.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Returns the set for such a number; `None` if it has an unknown bit.
    pub fn from_bits(bits: u16) -> Option<Changes> {
        if bits >= Changes::NEW.0 << 1 {
            return None;
        }
        Some(Changes(bits))
    }

    /// Returns the differences that output shows, in the order of the columns.
    pub fn shown(self) -> impl Iterator<Item = &'static ShownChange> {
        SHOWN.iter().filter(move |shown| self.has(shown.change))
    }

    /// Returns whether the set contains all of `other`.
    pub fn has(self, other: Changes) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether the set contains any of `other`.
    pub fn any(self, other: Changes) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether the set is empty.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns the union with `other` if `when` is true, else the set itself.
    pub fn with(self, other: Changes, when: bool) -> Changes {
        if when { self | other } else { self }
    }

    /// Returns the set as an end shows it that has or lacks `--times`: a changed time is `t` or `T`.
    pub fn with_times(self, keeps_times: bool) -> Changes {
        let times = Changes::TIME | Changes::TIME_NOW;
        let shown = if keeps_times {
            Changes::TIME
        } else {
            Changes::TIME_NOW
        };
        self.without(times).with(shown, self.any(times))
    }

    /// Returns the set without `other`.
    pub fn without(self, other: Changes) -> Changes {
        Changes(self.0 & !other.0)
    }
}

impl std::ops::BitOr for Changes {
    type Output = Changes;

    fn bitor(self, other: Changes) -> Changes {
        Changes(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for Changes {
    fn bitor_assign(&mut self, other: Changes) {
        self.0 |= other.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each difference, in the order of the bits. They are sent over the wire.
    const ALL: [Changes; 11] = [
        Changes::CHECKSUM,
        Changes::SIZE,
        Changes::TIME,
        Changes::TIME_NOW,
        Changes::PERMS,
        Changes::OWNER,
        Changes::GROUP,
        Changes::ATIME,
        Changes::ACL,
        Changes::XATTR,
        Changes::NEW,
    ];

    /// Returns the letters of itemized output.
    fn letters(changes: Changes) -> String {
        changes
            .shown()
            .map(|shown| char::from(shown.letter))
            .collect()
    }

    #[test]
    fn bits_are_those_of_the_wire() {
        for (at, change) in ALL.into_iter().enumerate() {
            assert_eq!(change.bits(), 1 << at);
            assert_eq!(Changes::from_bits(1 << at), Some(change));
        }
        let all = ALL.into_iter().fold(Changes::NONE, |all, one| all | one);
        assert_eq!(Changes::from_bits(all.bits()), Some(all));
        assert_eq!(Changes::from_bits(all.bits() + 1), None);
        assert_eq!(Changes::from_bits(Changes::UNKNOWN.bits()), None);
    }

    #[test]
    fn each_difference_has_a_letter_except_a_new_entry() {
        let mut shown = Changes::NONE;
        for change in ALL {
            shown |= change;
        }
        assert_eq!(letters(shown), "cstTpoguax");
        assert_eq!(letters(Changes::NEW), "");
        assert_eq!(letters(Changes::SIZE | Changes::OWNER), "so");
    }

    #[test]
    fn time_is_shown_as_the_end_keeps_it() {
        for time in [Changes::TIME, Changes::TIME_NOW] {
            assert_eq!(letters((time | Changes::SIZE).with_times(true)), "st");
            assert_eq!(letters((time | Changes::SIZE).with_times(false)), "sT");
        }
        assert_eq!(letters(Changes::SIZE.with_times(false)), "s");
    }

    #[test]
    fn sets_are_compared_as_a_whole_or_in_part() {
        let both = Changes::SIZE | Changes::TIME;
        assert!(both.has(Changes::SIZE) && !Changes::SIZE.has(both));
        assert!(Changes::SIZE.any(both) && !Changes::PERMS.any(both));
        assert!(Changes::NONE.is_none() && !both.is_none());
        assert_eq!(both.without(Changes::SIZE), Changes::TIME);
        assert_eq!(both.without(Changes::PERMS), both);
        assert_eq!(Changes::SIZE.with(Changes::TIME, true), both);
        assert_eq!(Changes::SIZE.with(Changes::TIME, false), Changes::SIZE);
    }
}

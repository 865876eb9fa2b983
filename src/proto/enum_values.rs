//! The numbers of enum values on the wire. They never change; new ones are appended.

use super::limits::ROLES;
use super::message::{Class, Lane};
use crate::exit::Exit;
use crate::filter::{MergeFormat, Side, Sides};
use crate::flist::Kind;
use crate::plan::explained::Fate;
use crate::plan::{InTheWay, Reason};
use crate::report::event::{ReusedBy, Update, Weight};

/// A value that is encoded as one byte.
pub(super) trait Numbered: Sized {
    /// Returns the number of the value.
    fn number(self) -> u8;
    /// Returns the value of a number; `None` if the number is unknown.
    fn of_number(number: u8) -> Option<Self>;
}

/// Implements both directions from one table. The compiler rejects duplicate numbers and missing values.
macro_rules! numbers {
    ($type:ty { $($value:path = $number:literal,)+ }) => {
        impl Numbered for $type {
            fn number(self) -> u8 {
                match self {
                    $($value => $number,)+
                }
            }

            fn of_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some($value),)+
                    _ => None,
                }
            }
        }
    };
}

numbers!(Lane { Lane::Unrequested = 0, Lane::Requested = 1, Lane::Again = 2, });

numbers!(Class {
    Class::Digests = 0,
    Class::Dirs = 1,
    Class::Wants = 2,
    Class::Events = 3,
    Class::Unrequested = 4,
    Class::Requested = 5,
    Class::Again = 6,
});

numbers!(Kind { Kind::File = 0, Kind::Dir = 1, Kind::Symlink = 2, Kind::Device = 3, Kind::Special = 4, });

numbers!(Update {
    Update::Received = 0,
    Update::Sent = 1,
    Update::Local = 2,
    Update::HardLink = 3,
    Update::Attrs = 4,
});

numbers!(Weight { Weight::SourceError = 0, Weight::Failed = 1, Weight::Vanished = 2, Weight::Warning = 3, });

numbers!(ReusedBy { ReusedBy::Copy = 0, ReusedBy::Rename = 1, ReusedBy::Link = 2, });

numbers!(Sides { Sides::Unsaid = 0, Sides::Sender = 1, Sides::Receiver = 2, Sides::Both = 3, });

numbers!(MergeFormat {
    MergeFormat::Rules = 0,
    MergeFormat::Excludes = 1,
    MergeFormat::Includes = 2,
    MergeFormat::Cvs = 3,
});

numbers!(Side { Side::Sender = 0, Side::Receiver = 1, });

numbers!(InTheWay { InTheWay::Nothing = 0, InTheWay::Other = 1, InTheWay::Dir = 2, });

numbers!(Fate {
    Fate::NotRequested = 0,
    Fate::NotCompared = 1,
    Fate::Protected = 2,
    Fate::Doomed = 3,
    Fate::Deleted = 4,
    Fate::LimitReached = 5,
    Fate::OtherFileSystem = 6,
    Fate::NotEmpty = 7,
});

numbers!(Reason {
    Reason::NotExisting = 0,
    Reason::Exists = 1,
    Reason::Newer = 2,
    Reason::TooLarge = 3,
    Reason::TooSmall = 4,
    Reason::NonRegular = 5,
    Reason::UnsafeLink = 6,
    Reason::Forbidden = 7,
    Reason::NothingToAppend = 8,
    Reason::InTheWay = 9,
    Reason::Unknown = 10,
    Reason::NotPlanned = 11,
});

impl Numbered for Exit {
    /// The exit code itself: rsync's codes are as stable as ours.
    fn number(self) -> u8 {
        self.code()
    }

    fn of_number(number: u8) -> Option<Self> {
        Exit::of_code(number)
    }
}

/// A role that a closing line can name; its number is its index in [`ROLES`].
pub(super) struct Role(pub &'static str);

impl Numbered for Role {
    /// Unknown roles are encoded as the first one.
    fn number(self) -> u8 {
        let place = ROLES.iter().position(|role| *role == self.0).unwrap_or(0);
        u8::try_from(place).expect("there are five roles")
    }

    fn of_number(number: u8) -> Option<Self> {
        ROLES.get(usize::from(number)).map(|role| Role(role))
    }
}

/// The states of a destination directory in [`super::Message::Digests`].
pub(super) mod seen {
    pub const ABSENT: u8 = 0;
    /// A directory without a digest: the sender must send its listing.
    pub const UNCOMPARED: u8 = 1;
    pub const DIGEST: u8 = 2;
    pub const LARGE: u8 = 3;
}

/// The kinds of basis in [`super::Message::Want`].
pub(super) mod basis {
    pub const NONE: u8 = 0;
    pub const BLOCKS: u8 = 1;
    pub const PREFIX: u8 = 2;
    pub const VERIFIED_PREFIX: u8 = 3;
}

/// The kinds of filter rules.
pub(super) mod rule {
    pub const RULE: u8 = 0;
    pub const CLEAR: u8 = 1;
    pub const MERGE: u8 = 2;
    pub const CVS: u8 = 3;
    pub const NOTHING: u8 = 4;
}

/// The kinds of events.
pub(super) mod event {
    pub const ITEM: u8 = 0;
    pub const DELETED: u8 = 1;
    pub const NOTE: u8 = 2;
    pub const PROBLEM: u8 = 3;
    pub const MISSING: u8 = 4;
    pub const LISTED: u8 = 5;
    pub const CHECKED: u8 = 6;
    pub const BEGIN: u8 = 7;
    pub const PROGRESS: u8 = 8;
    pub const SOURCE_CHANGED: u8 = 9;
    pub const REUSED: u8 = 10;
    pub const VERIFIED: u8 = 11;
    pub const PLANNED: u8 = 12;
    pub const EXPLAINED: u8 = 13;
}

/// The facts that explain a path.
pub(super) mod fact {
    pub const RULE: u8 = 0;
    pub const ABSENT: u8 = 1;
    pub const AT_DEST: u8 = 2;
    pub const MOUNT_POINT: u8 = 3;
    pub const NOT_ENTERED: u8 = 4;
    pub const DECIDED: u8 = 5;
    pub const PRUNED: u8 = 6;
    pub const NO_ROOM: u8 = 7;
    pub const LINKED: u8 = 8;
    pub const EXTRA: u8 = 9;
}

/// The outcomes of decisions that explain a path.
pub(super) mod outcome {
    pub const KEEP: u8 = 0;
    pub const ADJUST: u8 = 1;
    pub const CREATE: u8 = 2;
    pub const TRANSFER: u8 = 3;
    pub const LINK_ALTERNATE: u8 = 4;
    pub const COPY_ALTERNATE: u8 = 5;
    pub const ELSEWHERE: u8 = 6;
    pub const REFUSE: u8 = 7;
}

/// The places of rules that explain a path.
pub(super) mod place {
    pub const RUN: u8 = 0;
    pub const CVS: u8 = 1;
    pub const DIR: u8 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enum_numbers_round_trip() {
        for number in 0..=u8::MAX {
            for back in [
                Lane::of_number(number).map(Numbered::number),
                Class::of_number(number).map(Numbered::number),
                Kind::of_number(number).map(Numbered::number),
                Update::of_number(number).map(Numbered::number),
                Weight::of_number(number).map(Numbered::number),
                Sides::of_number(number).map(Numbered::number),
                MergeFormat::of_number(number).map(Numbered::number),
                Exit::of_number(number).map(Numbered::number),
                Role::of_number(number).map(Numbered::number),
                Side::of_number(number).map(Numbered::number),
                InTheWay::of_number(number).map(Numbered::number),
                Fate::of_number(number).map(Numbered::number),
                Reason::of_number(number).map(Numbered::number),
            ] {
                assert!(
                    back.is_none_or(|back| back == number),
                    "{number} decodes to {back:?}"
                );
            }
        }
    }

    #[test]
    fn class_number_is_its_index() {
        for (place, class) in Class::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(class.number()), place);
        }
    }
}

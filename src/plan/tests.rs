//! The table of decisions, as rsync makes them: one entry of the source, what the destination has, and what follows.

use super::*;
use crate::flist::Time;
use crate::flist::abbreviated::AbbreviatedValue;
use crate::flist::entry::{Extra, Stat};
use crate::options::ModeChange;
use crate::plan::compared::Perms;
use std::sync::Arc;

/// The policy of `-a` by the super-user.
pub(super) fn archive() -> Policy {
    Policy {
        check: Check::default(),
        preserve: Preserve {
            links: true,
            perms: true,
            owner: true,
            group: true,
            times: true,
            devices: true,
            specials: true,
            ..Preserve::default()
        },
        append: false,
        max_size_bytes: None,
        min_size_bytes: None,
        list_only: false,
        may_make_devices: true,
        same_acls: |one, other| one == other,
    }
}

/// The policy of `-a` with another comparison of files.
fn archive_with(check: Check) -> Policy {
    Policy { check, ..archive() }
}

/// The policy of `-a` with other attributes.
fn archive_but(change: impl Fn(&mut Preserve)) -> Policy {
    let mut policy = archive();
    change(&mut policy.preserve);
    policy
}

/// The policy of `-r`: no attribute is kept.
fn recursive() -> Policy {
    Policy {
        preserve: Preserve::default(),
        ..archive()
    }
}

fn compared_by(mode: CheckMode) -> Policy {
    archive_with(Check {
        mode,
        ..Check::default()
    })
}

fn entry(mode: u32) -> Entry {
    let time = Time { secs: 5, nanos: 7 };
    Entry::from_stat(&Stat {
        mode,
        uid: 1,
        gid: 2,
        mtime: time,
        len_bytes: 10,
        ..Stat::default()
    })
}

fn file() -> Entry {
    entry(0o100_644)
}

fn dir() -> Entry {
    entry(0o040_755)
}

fn fifo() -> Entry {
    entry(0o010_644)
}

fn socket() -> Entry {
    entry(0o140_644)
}

fn symlink(target: &str) -> Entry {
    let mut link = entry(0o120_777);
    link.extra_mut().target = Some(target.as_bytes().into());
    link
}

/// A character device with this number.
fn device(rdev: u64) -> Entry {
    let mut device = entry(0o020_644);
    device.extra_mut().rdev = rdev;
    device
}

/// One entry of each kind.
fn each_kind() -> [Entry; 5] {
    [file(), dir(), symlink("a"), device(3), fifo()]
}

/// Returns an entry that differs from another one in some attributes.
fn but(entry: &Entry, change: impl Fn(&mut Entry)) -> Entry {
    let mut other = entry.clone();
    change(&mut other);
    other
}

fn at(secs: i64) -> impl Fn(&mut Entry) {
    move |entry| entry.mtime = Time { secs, nanos: 7 }
}

/// Returns what is done about an entry that no argument of this function excludes.
fn action(source: &Entry, dest: &Entry, policy: &Policy) -> Action {
    decide(source, Some(dest), None, Subject::Entry, policy).action
}

fn action_without_dest(source: &Entry, policy: &Policy) -> Action {
    decide(source, None, None, Subject::Entry, policy).action
}

#[test]
fn equal_entries_stay() {
    for entry in each_kind() {
        let decision = decide(&entry, Some(&entry), None, Subject::Entry, &archive());
        assert_eq!(decision, Decision::keep(), "{entry:?}");
    }
}

#[test]
fn missing_entries_are_made() {
    for entry in each_kind() {
        let expected = match entry.kind() {
            Kind::File => Action::Transfer(Changes::NEW),
            _ => Action::Create(Changes::NEW),
        };
        let decision = decide(&entry, None, None, Subject::Entry, &archive());
        assert_eq!(decision, Decision::new(expected));
    }
}

#[test]
fn entry_of_another_kind_is_in_the_way() {
    for source in each_kind() {
        for dest in each_kind() {
            if source.kind() == dest.kind() {
                continue;
            }
            let decision = decide(&source, Some(&dest), None, Subject::Entry, &archive());
            let expected = if dest.is_dir() {
                InTheWay::Dir
            } else {
                InTheWay::Other
            };
            assert_eq!(decision.in_the_way, expected, "{source:?} for {dest:?}");
            assert!(decision.action.is_new(), "{source:?} for {dest:?}");
        }
    }
}

#[test]
fn device_that_takes_content_stands_for_a_file() {
    let dest = but(&device(3), |dest| dest.extra_mut().takes_content = true);
    let decision = decide(&file(), Some(&dest), None, Subject::Entry, &archive());
    assert_eq!(decision.in_the_way, InTheWay::Nothing);
    let decision = decide(&symlink("a"), Some(&dest), None, Subject::Entry, &archive());
    assert_eq!(decision.in_the_way, InTheWay::Other);
}

#[test]
fn each_attribute_is_compared_if_it_is_kept() {
    let with_atime = |secs: i64, nanos: u32| {
        but(&file(), |entry| {
            entry.extra_mut().atime = Some(Time { secs, nanos });
        })
    };
    let with_acl = |acl: &str| {
        but(&file(), |entry| {
            entry.extra_mut().acl = Some(acl.as_bytes().into());
        })
    };
    let with_attribute = |value: &str| {
        but(&file(), |entry| {
            let attribute = (b"user.a"[..].into(), value.as_bytes().into());
            entry.extra_mut().xattrs = Some(Arc::new(vec![attribute]));
        })
    };
    let kept = archive_but(|preserve| {
        preserve.atimes = true;
        preserve.acls = true;
        preserve.xattrs = 1;
    });
    for (source, change) in [
        (but(&file(), |it| it.mode = 0o100_600), Changes::PERMS),
        (but(&file(), |it| it.mode = 0o104_644), Changes::PERMS),
        (but(&file(), |it| it.mode = 0o100_755), Changes::PERMS),
        (but(&file(), |it| it.uid = 9), Changes::OWNER),
        (but(&file(), |it| it.gid = 9), Changes::GROUP),
        (with_atime(5, 0), Changes::ATIME),
        (with_acl("a"), Changes::ACL),
        (with_attribute("v"), Changes::XATTR),
    ] {
        let found = action(&source, &file(), &kept);
        assert_eq!(found, Action::Adjust(change), "{source:?}");
        let found = action(&source, &file(), &recursive_with_times());
        assert_eq!(found, Action::Keep, "{source:?}");
    }
    // rsync keeps access times in whole seconds.
    let found = action(&with_atime(5, 1), &with_atime(5, 2), &kept);
    assert_eq!(found, Action::Keep);
}

/// The policy of `-rt`.
fn recursive_with_times() -> Policy {
    let mut policy = recursive();
    policy.preserve.times = true;
    policy.preserve.links = true;
    policy
}

#[test]
fn times_count_for_the_kinds_that_keep_them() {
    let older = |entry: &Entry| but(entry, at(4));
    let omitted = archive_but(|preserve| {
        preserve.omit_dir_times = true;
        preserve.omit_link_times = true;
    });
    for source in [dir(), symlink("a"), device(3), fifo()] {
        let found = action(&source, &older(&source), &archive());
        assert_eq!(found, Action::Adjust(Changes::TIME), "{source:?}");
        let untimed = archive_but(|preserve| preserve.times = false);
        let found = action(&source, &older(&source), &untimed);
        assert_eq!(found, Action::Keep, "{source:?}");
        let found = action(&source, &older(&source), &omitted);
        let expected = match source.kind() {
            Kind::Dir | Kind::Symlink => Action::Keep,
            _ => Action::Adjust(Changes::TIME),
        };
        assert_eq!(found, expected, "{source:?}");
    }
}

#[test]
fn executability_is_compared_as_a_whole() {
    let policy = Policy {
        preserve: Preserve {
            executability: true,
            times: true,
            ..Preserve::default()
        },
        ..archive()
    };
    let with_mode = |mode: u32| entry(0o100_000 | mode);
    let found = action(&with_mode(0o744), &with_mode(0o644), &policy);
    assert_eq!(found, Action::Adjust(Changes::PERMS));
    let found = action(&with_mode(0o744), &with_mode(0o655), &policy);
    assert_eq!(found, Action::Keep);
    assert_eq!(Perms::Executability.of(0o100_644), 0);
    assert_eq!(Perms::Executability.of(0o100_010), 0o111);
    // Only that of files.
    let other = but(&dir(), |dir| dir.mode = 0o040_644);
    assert_eq!(action(&dir(), &other, &policy), Action::Keep);
}

#[test]
fn symlinks_have_no_modes_and_no_acls() {
    let policy = archive_but(|preserve| preserve.acls = true);
    let other = but(&symlink("a"), |link| {
        link.mode = 0o120_755;
        link.extra_mut().acl = Some(b"a"[..].into());
    });
    assert_eq!(action(&symlink("a"), &other, &policy), Action::Keep);
}

#[test]
fn ids_that_cannot_be_set_do_not_differ() {
    let source = but(&file(), |file| file.uid = NO_ID);
    let by_a_user = Policy {
        may_make_devices: false,
        ..archive()
    };
    assert_eq!(action(&source, &file(), &by_a_user), Action::Keep);
    // The super-user asked for that number, which no file has.
    let differs = Action::Adjust(Changes::OWNER);
    assert_eq!(action(&source, &file(), &archive()), differs);
    let fake = archive_but(|preserve| preserve.fake_super = true);
    assert_eq!(action(&source, &file(), &fake), Action::Keep);
}

#[test]
fn quick_check_compares_length_and_time() {
    let longer = but(&file(), |file| file.len_bytes = 11);
    let found = action(&longer, &file(), &archive());
    assert_eq!(found, Action::Transfer(Changes::SIZE));
    let newer = but(&file(), at(6));
    let found = action(&newer, &file(), &archive());
    assert_eq!(found, Action::Transfer(Changes::TIME));

    let by_size = compared_by(CheckMode::SizeOnly);
    let found = action(&newer, &file(), &by_size);
    assert_eq!(found, Action::Adjust(Changes::TIME));
    let always = compared_by(CheckMode::IgnoreTimes);
    let found = action(&file(), &file(), &always);
    assert_eq!(found, Action::Transfer(Changes::NONE));
}

#[test]
fn checksums_are_asked_for_only_if_the_lengths_are_equal() {
    let policy = compared_by(CheckMode::Digest);
    let decide_by =
        |same: Option<bool>| decide(&file(), Some(&file()), same, Subject::Entry, &policy).action;
    assert_eq!(decide_by(None), Action::AskDigest);
    assert_eq!(decide_by(Some(true)), Action::Keep);
    let differs = Action::Transfer(Changes::CHECKSUM);
    assert_eq!(decide_by(Some(false)), differs);
    let longer = but(&file(), |file| file.len_bytes = 11);
    let found = action(&longer, &file(), &policy);
    let differs = Action::Transfer(Changes::CHECKSUM | Changes::SIZE);
    assert_eq!(found, differs);
}

#[test]
fn transferred_file_without_kept_time_shows_the_time_of_the_transfer() {
    let longer = but(&file(), |file| file.len_bytes = 11);
    let found = action(&longer, &file(), &recursive());
    assert_eq!(found, Action::Transfer(Changes::SIZE | Changes::TIME_NOW));
}

#[test]
fn symlink_with_another_target_is_made_again() {
    let found = action(&symlink("b"), &symlink("a"), &archive());
    assert_eq!(found, Action::Create(Changes::CHECKSUM));
    let unowned = but(&symlink("b"), |link| link.uid = 9);
    let found = action(&unowned, &symlink("a"), &archive());
    let differs = Action::Create(Changes::CHECKSUM | Changes::OWNER);
    assert_eq!(found, differs);
}

#[test]
fn device_with_another_number_or_type_is_made_again() {
    let again = Action::Create(Changes::CHECKSUM);
    assert_eq!(action(&device(4), &device(3), &archive()), again);
    let block = but(&device(3), |device| device.mode = 0o060_644);
    assert_eq!(action(&block, &device(3), &archive()), again);
    assert_eq!(action(&socket(), &fifo(), &archive()), again);
}

#[test]
fn excluded_kinds_are_left_alone() {
    let left = Action::Refuse(Reason::NonRegular);
    let none = recursive();
    let unprivileged = Policy {
        may_make_devices: false,
        ..archive()
    };
    let dropped = archive_but(|preserve| preserve.drop_devices = true);
    let made = Action::Create(Changes::NEW);
    for (source, policy, expected) in [
        (symlink("a"), &none, left),
        (device(3), &none, left),
        (fifo(), &none, left),
        (device(3), &unprivileged, left),
        (fifo(), &unprivileged, made),
        (device(3), &dropped, left),
        (fifo(), &dropped, left),
        (dir(), &none, made),
    ] {
        let found = action_without_dest(&source, policy);
        assert_eq!(found, expected, "{source:?}");
    }
}

#[test]
fn what_no_option_excludes_is_not_refused() {
    for source in each_kind() {
        let decision = decide(&source, None, None, Subject::Included, &recursive());
        assert!(decision.action.is_new(), "{source:?}");
    }
}

#[test]
fn rules_of_a_module_come_first() {
    for source in each_kind() {
        let decision = decide(&source, None, None, Subject::Forbidden, &archive());
        assert_eq!(decision.action, Action::Refuse(Reason::Forbidden));
    }
}

#[test]
fn only_symlinks_are_unsafe() {
    let decide_as_unsafe =
        |source: &Entry| decide(source, None, None, Subject::UnsafeLink, &archive()).action;
    let refused = Action::Refuse(Reason::UnsafeLink);
    assert_eq!(decide_as_unsafe(&symlink("/a")), refused);
    assert!(decide_as_unsafe(&file()).is_new());
}

#[test]
fn existing_and_ignore_existing() {
    let existing = archive_with(Check {
        existing_only: true,
        ..Check::default()
    });
    let ignore = archive_with(Check {
        ignore_existing: true,
        ..Check::default()
    });
    for source in each_kind() {
        let missing = Action::Refuse(Reason::NotExisting);
        assert_eq!(action_without_dest(&source, &existing), missing);
        let other = but(&source, |other| other.uid = 9);
        let differs = Action::Adjust(Changes::OWNER);
        assert_eq!(action(&source, &other, &existing), differs);

        assert!(action_without_dest(&source, &ignore).is_new());
        let expected = if source.is_dir() {
            differs
        } else {
            Action::Refuse(Reason::Exists)
        };
        assert_eq!(action(&source, &other, &ignore), expected);
    }
    // A directory in place of a file, or a file in place of a directory, exists as well.
    let exists = Action::Refuse(Reason::Exists);
    assert_eq!(action(&file(), &dir(), &ignore), exists);
    assert_eq!(action(&dir(), &file(), &ignore), exists);
}

#[test]
fn update_spares_newer_files() {
    let update = archive_with(Check {
        update: true,
        ..Check::default()
    });
    let newer = but(&file(), at(6));
    let older = but(&file(), at(4));
    let spared = Action::Refuse(Reason::Newer);
    assert_eq!(action(&file(), &newer, &update), spared);
    let transferred = Action::Transfer(Changes::TIME);
    assert_eq!(action(&file(), &older, &update), transferred);
    assert_eq!(action(&file(), &newer, &archive()), transferred);
    // Only files are spared.
    let newer = but(&symlink("a"), at(6));
    let found = action(&symlink("b"), &newer, &update);
    let replaced = Action::Create(Changes::CHECKSUM | Changes::TIME);
    assert_eq!(found, replaced);
    assert!(action(&file(), &newer, &update).is_new());
}

#[test]
fn sizes_are_bounded_on_both_sides() {
    let bounded = |min: Option<u64>, max: Option<u64>| Policy {
        min_size_bytes: min,
        max_size_bytes: max,
        ..archive()
    };
    let new = Action::Transfer(Changes::NEW);
    for (min, max, expected) in [
        (Some(10), Some(10), new),
        (Some(11), None, Action::Refuse(Reason::TooSmall)),
        (None, Some(9), Action::Refuse(Reason::TooLarge)),
    ] {
        assert_eq!(action_without_dest(&file(), &bounded(min, max)), expected);
    }
    // Only those of files.
    assert!(action_without_dest(&dir(), &bounded(Some(11), Some(9))).is_new());
}

#[test]
fn append_needs_a_longer_source() {
    let append = Policy {
        append: true,
        ..archive()
    };
    let shorter = but(&file(), |file| file.len_bytes = 9);
    let longer = but(&file(), |file| file.len_bytes = 11);
    let newer = but(&file(), at(6));
    let nothing = Action::Refuse(Reason::NothingToAppend);
    assert_eq!(action(&file(), &longer, &append), nothing);
    assert_eq!(action(&newer, &file(), &append), nothing);
    assert_eq!(action(&file(), &file(), &append), Action::Keep);
    let appended = Action::Transfer(Changes::SIZE);
    assert_eq!(action(&file(), &shorter, &append), appended);
}

#[test]
fn list_changes_nothing() {
    let list = Policy {
        list_only: true,
        ..archive()
    };
    assert_eq!(action_without_dest(&file(), &list), Action::Keep);
    assert_eq!(action(&file(), &dir(), &list), Action::Keep);
}

#[test]
fn entry_may_have_to_be_written_although_nothing_differs() {
    let unsettled = but(&file(), |file| file.extra_mut().is_unsettled = true);
    let found = action(&file(), &unsettled, &archive());
    assert_eq!(found, Action::Adjust(Changes::NONE));

    // F600
    let only_the_owner = ModeChange {
        dirs: false,
        files: true,
        and: 0o7777,
        or: 0o600,
        or_x: 0,
        copy_from_shift: None,
        copy_to: 0,
        copy_mask: 0,
        copy_removes: false,
    };
    let required = archive_but(|preserve| {
        preserve.perms = false;
        preserve.required_modes = vec![only_the_owner];
    });
    let found = action(&file(), &file(), &required);
    assert_eq!(found, Action::Adjust(Changes::NONE));
    let done = but(&file(), |file| file.mode = 0o100_600);
    assert_eq!(action(&done, &done, &required), Action::Keep);
    let link = symlink("a");
    assert_eq!(action(&link, &link, &required), Action::Keep);
}

#[test]
fn exact_time_is_set_with_checksums_and_attributes() {
    let fraction = but(&file(), |file| file.mtime.nanos = 8);
    let times =
        |changes: Changes, policy: &Policy| times_to_set(&file(), &fraction, changes, policy);
    let by_digest = compared_by(CheckMode::Digest);
    assert_eq!(times(Changes::NONE, &archive()), TimesToSet::Neither);
    assert_eq!(times(Changes::PERMS, &archive()), TimesToSet::Neither);
    assert_eq!(times(Changes::TIME, &archive()), TimesToSet::Both);
    assert_eq!(times(Changes::XATTR, &archive()), TimesToSet::Both);
    assert_eq!(times(Changes::NONE, &by_digest), TimesToSet::Both);
    assert_eq!(times(Changes::ATIME, &archive()), TimesToSet::AccessTime);
    let same = times_to_set(&file(), &file(), Changes::NONE, &by_digest);
    assert_eq!(same, TimesToSet::Neither);
    let mut untimed = by_digest;
    untimed.preserve.times = false;
    assert_eq!(times(Changes::NONE, &untimed), TimesToSet::Neither);
}

#[test]
fn access_time_of_a_symlink_is_set_but_not_compared() {
    let policy = archive_but(|preserve| preserve.atimes = true);
    let accessed = |secs: i64| {
        but(&symlink("a"), |link| {
            link.extra_mut().atime = Some(Time { secs, nanos: 0 });
        })
    };
    let times = |policy: &Policy| times_to_set(&accessed(1), &accessed(2), Changes::NONE, policy);
    assert_eq!(times(&policy), TimesToSet::AccessTime);
    assert_eq!(times(&archive()), TimesToSet::Neither);
    let found = action(&accessed(1), &accessed(2), &policy);
    assert_eq!(found, Action::Adjust(Changes::NONE));
}

#[test]
fn abbreviated_attributes_are_compared_by_digest() {
    let with = |value: &[u8], has_abbreviated: bool| {
        but(&file(), |file| {
            let attribute = (b"user.a"[..].into(), value.into());
            file.extra = Some(Box::new(Extra {
                xattrs: Some(Arc::new(vec![attribute])),
                has_abbreviated,
                ..Extra::default()
            }));
        })
    };
    let policy = archive_but(|preserve| preserve.xattrs = 1);
    let value = [b'v'; 40];
    let abbreviated = AbbreviatedValue {
        len_bytes: 40,
        digest: digest::of_attribute(&value),
        list: 1,
        number: 1,
    };
    let source = with(&abbreviated.encode(), true);
    assert_eq!(action(&source, &with(&value, false), &policy), Action::Keep);
    let differs = Action::Adjust(Changes::XATTR);
    let other = with(&[b'w'; 40], false);
    assert_eq!(action(&source, &other, &policy), differs);
    assert_eq!(action(&source, &file(), &policy), differs);
    // Beside it, a short value has been sent in full.
    let and_short = |entry: &Entry, short: &[u8]| {
        but(entry, |entry| {
            let xattrs = entry.extra_mut().xattrs.as_mut().expect("has one");
            let attribute = (b"user.b"[..].into(), short.into());
            Arc::make_mut(xattrs).push(attribute);
        })
    };
    let dest = with(&value, false);
    let both = and_short(&source, b"s");
    let found = action(&both, &and_short(&dest, b"s"), &policy);
    assert_eq!(found, Action::Keep);
    let found = action(&both, &and_short(&dest, b"t"), &policy);
    assert_eq!(found, differs);
    assert_eq!(action(&both, &dest, &policy), differs);
    let found = action(&source, &and_short(&dest, b"s"), &policy);
    assert_eq!(found, differs);
    assert!(is_abbreviation(&abbreviated, &value));
    assert!(!is_abbreviation(&abbreviated, &value[1..]));
}

#[test]
fn link_in_place_of_another_kind_is_compared_with_it() {
    let replaced = but(&symlink("a"), |link| {
        link.mode = 0o120_777;
        link.len_bytes = 1;
    });
    let found = changes_by_link(&file(), &replaced, &archive());
    assert_eq!(found, Changes::SIZE | Changes::PERMS);
    let same = but(&fifo(), |fifo| fifo.len_bytes = 10);
    assert_eq!(changes_by_link(&file(), &same, &archive()), Changes::NONE);
    // The length of other kinds does not count.
    let found = changes_by_link(&fifo(), &but(&file(), |it| it.len_bytes = 1), &archive());
    assert_eq!(found, Changes::NONE);
}

mod alternates {
    //! What an entry of an alternate tree changes.
    use super::*;
    use crate::options::AltKind;
    use crate::plan::alternate::{Candidate, Similarity, Use, decide as decide_again, may_use};

    const KINDS: [AltKind; 3] = [AltKind::Link, AltKind::Copy, AltKind::Compare];

    fn new_entry(source: &Entry) -> Decision {
        decide(source, None, None, Subject::Entry, &archive())
    }

    #[test]
    fn new_entries_may_use_any_of_their_kind() {
        for source in each_kind() {
            for kind in KINDS {
                let found = may_use(&source, None, new_entry(&source), kind, &archive());
                assert_eq!(found, Use::Any, "{source:?}");
            }
        }
    }

    #[test]
    fn existing_file_is_replaced_only_by_the_very_thing() {
        for source in each_kind() {
            let decision = decide(&source, Some(&source), None, Subject::Entry, &archive());
            for kind in KINDS {
                let found = may_use(&source, Some(&source), decision, kind, &archive());
                let expected = match (source.kind(), kind) {
                    (Kind::File, AltKind::Link | AltKind::Compare) => Use::VeryThing,
                    _ => Use::Nothing,
                };
                assert_eq!(found, expected, "{source:?}");
            }
        }
    }

    #[test]
    fn refused_entries_use_nothing() {
        for (reason, expected) in [
            (Reason::TooLarge, Use::Nothing),
            (Reason::NothingToAppend, Use::VeryThing),
        ] {
            let decision = Decision::new(Action::Refuse(reason));
            let found = may_use(&file(), Some(&file()), decision, AltKind::Link, &archive());
            assert_eq!(found, expected);
        }
        let list = Policy {
            list_only: true,
            ..archive()
        };
        let found = may_use(&file(), None, new_entry(&file()), AltKind::Link, &list);
        assert_eq!(found, Use::Nothing);
    }

    #[test]
    fn candidates_are_rated_by_what_would_be_done() {
        let rated = |action: Action| {
            let candidate = Candidate::for_action(action)?;
            Some((candidate.similarity, candidate.changes))
        };
        let perms = Changes::PERMS;
        for (action, expected) in [
            (Action::Keep, Some((Similarity::All, Changes::NONE))),
            (
                Action::Adjust(Changes::NONE),
                Some((Similarity::All, Changes::NONE)),
            ),
            (Action::Adjust(perms), Some((Similarity::Data, perms))),
            (Action::Transfer(perms), Some((Similarity::Kind, perms))),
            (Action::Create(perms), Some((Similarity::Kind, perms))),
            (Action::Transfer(Changes::NEW), None),
            (Action::Create(Changes::NEW), None),
            (Action::Refuse(Reason::TooLarge), None),
            (Action::Link, None),
        ] {
            assert_eq!(rated(action), expected, "{action:?}");
        }
        assert!(Similarity::All > Similarity::Data && Similarity::Data > Similarity::Kind);
    }

    /// Returns what is done about a new entry if a tree has one that is this similar, of which the mode differs.
    fn again(source: &Entry, similarity: Similarity, kind: AltKind, policy: &Policy) -> Action {
        let found = Candidate {
            similarity,
            changes: Changes::PERMS,
        };
        decide_again(source, new_entry(source), found, kind, policy).action
    }

    #[test]
    fn identical_files_are_linked_copied_or_left_out() {
        for (kind, expected) in [
            (AltKind::Link, Action::Link),
            (AltKind::Copy, Action::Copy(Changes::PERMS)),
            (AltKind::Compare, Action::Elsewhere),
        ] {
            let found = again(&file(), Similarity::All, kind, &archive());
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn files_with_other_attributes_are_copied_and_others_are_a_basis() {
        let untimed = archive_but(|preserve| preserve.times = false);
        for kind in KINDS {
            let found = again(&file(), Similarity::Data, kind, &archive());
            assert_eq!(found, Action::Copy(Changes::PERMS));
            let found = again(&file(), Similarity::Data, kind, &untimed);
            assert_eq!(found, Action::Copy(Changes::PERMS | Changes::TIME_NOW));
            let found = again(&file(), Similarity::Kind, kind, &archive());
            assert_eq!(found, Action::Transfer(Changes::PERMS));
        }
    }

    #[test]
    fn directories_are_always_made() {
        for kind in KINDS {
            let found = again(&dir(), Similarity::All, kind, &archive());
            assert_eq!(found, Action::Create(Changes::NONE));
            for similarity in [Similarity::Data, Similarity::Kind] {
                let found = again(&dir(), similarity, kind, &archive());
                assert_eq!(found, Action::Create(Changes::PERMS));
            }
        }
    }

    #[test]
    fn other_kinds_are_linked_or_made() {
        for source in [symlink("a"), device(3), fifo()] {
            let found = again(&source, Similarity::All, AltKind::Link, &archive());
            assert_eq!(found, Action::Link);
            let found = again(&source, Similarity::All, AltKind::Compare, &archive());
            assert_eq!(found, Action::Elsewhere);
            let found = again(&source, Similarity::All, AltKind::Copy, &archive());
            assert_eq!(found, Action::Create(Changes::PERMS));
            for kind in KINDS {
                let found = again(&source, Similarity::Data, kind, &archive());
                let expected = Action::Create(Changes::PERMS | Changes::CHECKSUM);
                assert_eq!(found, expected);
                let found = again(&source, Similarity::Kind, kind, &archive());
                assert_eq!(found, Action::Create(Changes::PERMS));
            }
        }
    }

    #[test]
    fn what_is_in_the_way_stays_there() {
        let decision = decide(&file(), Some(&dir()), None, Subject::Entry, &archive());
        let found = Candidate {
            similarity: Similarity::All,
            changes: Changes::NONE,
        };
        let again = decide_again(&file(), decision, found, AltKind::Link, &archive());
        assert_eq!(again.action, Action::Link);
        assert_eq!(again.in_the_way, InTheWay::Dir);
    }
}

mod backups_of_plans {
    use super::*;
    use crate::plan::planned::{
        BackupPlace, ChangedEnd, EntryNow, EntryState, PlannedAction, PlannedBackup, PlannedVerdict,
    };

    fn with_size(len_bytes: u64) -> Entry {
        but(&file(), |file| file.len_bytes = len_bytes)
    }

    /// Returns the state of a file that only its length tells from others.
    fn sized(len_bytes: u64) -> EntryState {
        EntryState::found(&with_size(len_bytes))
    }

    /// The replacement of a file of 1 byte by one of 10. `older`: the backup before.
    fn replacement(older: Option<EntryState>) -> PlannedAction {
        let decision = decide(
            &file(),
            Some(&with_size(1)),
            None,
            Subject::Entry,
            &archive(),
        );
        let action = PlannedAction::of_decision(
            b"a".to_vec(),
            &file(),
            Some(&with_size(1)),
            decision,
            &archive(),
        );
        PlannedAction {
            backup: Some(PlannedBackup {
                path: b"a~".to_vec(),
                before: older,
            }),
            ..action.unwrap()
        }
    }

    #[test]
    fn only_what_the_plan_knows_makes_way() {
        let dest = with_size(1);
        let dir = EntryState::found(&entry(0o040_755));
        for (older, place, end) in [
            (None, BackupPlace::Free, None),
            (Some(sized(7)), BackupPlace::Free, None),
            (Some(sized(7)), BackupPlace::Taken(sized(7)), None),
            // An interrupted run has made it.
            (Some(sized(7)), BackupPlace::Itself, None),
            (Some(sized(7)), BackupPlace::Taken(sized(1)), None),
            (None, BackupPlace::Taken(sized(1)), None),
            (None, BackupPlace::Taken(sized(7)), Some(ChangedEnd::Backup)),
            (
                Some(sized(7)),
                BackupPlace::Taken(sized(8)),
                Some(ChangedEnd::Backup),
            ),
            (
                Some(dir.clone()),
                BackupPlace::Taken(dir),
                Some(ChangedEnd::Backup),
            ),
            (None, BackupPlace::Blocked, Some(ChangedEnd::Backup)),
        ] {
            let found = replacement(older.clone()).no_backup(Some(&dest), &place);
            assert_eq!(found, end, "{older:?}, {place:?}");
        }
    }

    #[test]
    fn what_is_gone_must_have_become_the_backup() {
        let action = replacement(None);
        let now = EntryNow {
            source: &file(),
            dest: None,
            decision: decide(&file(), None, None, Subject::Entry, &archive()),
            policy: &archive(),
            given: &[],
        };
        let verdict = action.verdict(&now);
        assert_eq!(verdict, PlannedVerdict::Act);
        let moved = BackupPlace::Taken(sized(1));
        assert_eq!(action.no_backup(None, &moved), None);
        for place in [BackupPlace::Free, BackupPlace::Taken(sized(7))] {
            assert_eq!(action.no_backup(None, &place), Some(ChangedEnd::Dest));
        }
        let without = PlannedAction {
            backup: None,
            ..action
        };
        let verdict = without.verdict(&now);
        assert_eq!(verdict, PlannedVerdict::Left(ChangedEnd::Dest));
    }
}

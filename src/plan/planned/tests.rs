//! What a stored plan records, and what is done about its actions when either end has changed since.

use super::*;
use crate::flist::entry::Stat;
use crate::plan::Reason;
use std::sync::Arc;

/// The policy of `-aX` by the super-user.
fn archive() -> Policy {
    let of_archive = crate::plan::tests::archive();
    Policy {
        preserve: Preserve {
            xattrs: 1,
            ..of_archive.preserve
        },
        ..of_archive
    }
}

fn entry(mode: u32) -> Entry {
    Entry::from_stat(&Stat {
        mode,
        uid: 1,
        gid: 2,
        mtime: at(5),
        len_bytes: 10,
        ..Stat::default()
    })
}

fn at(secs: i64) -> Time {
    Time { secs, nanos: 0 }
}

fn file() -> Entry {
    entry(0o100_644)
}

fn dir() -> Entry {
    entry(0o040_755)
}

fn symlink(target: &str) -> Entry {
    but(&entry(0o120_777), |it| {
        it.extra_mut().target = Some(target.as_bytes().into());
    })
}

fn device(rdev: u64) -> Entry {
    but(&entry(0o020_644), |it| it.extra_mut().rdev = rdev)
}

/// Returns an entry that differs from another one.
fn but(entry: &Entry, change: impl Fn(&mut Entry)) -> Entry {
    let mut other = entry.clone();
    change(&mut other);
    other
}

fn with_attribute(value: &str) -> impl Fn(&mut Entry) {
    let value = value.to_owned();
    move |entry| {
        let attribute = (b"user.a"[..].into(), value.as_bytes().into());
        entry.extra_mut().xattrs = Some(Arc::new(vec![attribute]));
    }
}

fn changed_at(secs: i64) -> impl Fn(&mut Entry) {
    move |entry| entry.extra_mut().ctime = Some(at(secs))
}

fn decided(source: &Entry, dest: Option<&Entry>) -> Decision {
    decide(source, dest, None, Subject::Entry, &archive())
}

/// Returns the action that a plan records for these entries.
fn planned(source: &Entry, dest: Option<&Entry>) -> PlannedAction {
    let decision = decided(source, dest);
    PlannedAction::of_decision(b"a".to_vec(), source, dest, decision, &archive()).unwrap()
}

/// Returns what is done about an action if the destination has become this.
fn verdict(action: &PlannedAction, source: &Entry, dest: Option<&Entry>) -> PlannedVerdict {
    action.verdict(&now(source, dest, decided(source, dest), &archive()))
}

/// Returns what the ends have, if no other action gives anything to the entry.
fn now<'e>(
    source: &'e Entry,
    dest: Option<&'e Entry>,
    decision: Decision,
    policy: &'e Policy,
) -> EntryNow<'e> {
    EntryNow {
        source,
        dest,
        decision,
        policy,
        given: &[],
    }
}

const LEFT: PlannedVerdict = PlannedVerdict::Left(ChangedEnd::Dest);
const SOURCE_CHANGED: PlannedVerdict = PlannedVerdict::Left(ChangedEnd::Source);

#[test]
fn decisions_that_change_something_are_actions() {
    let changes = Changes::PERMS;
    for (action, has_dest, expected) in [
        (
            Action::Adjust(changes),
            true,
            Some((PlannedAct::Adjust, changes)),
        ),
        (
            Action::Create(changes),
            false,
            Some((PlannedAct::Create, changes)),
        ),
        (
            Action::Transfer(changes),
            true,
            Some((PlannedAct::Transfer, changes)),
        ),
        (
            Action::Copy(changes),
            true,
            Some((PlannedAct::Copy, changes)),
        ),
        (Action::Link, true, Some((PlannedAct::Link, Changes::NONE))),
        (
            Action::Elsewhere,
            true,
            Some((PlannedAct::Vacate, Changes::NONE)),
        ),
        (Action::Elsewhere, false, None),
        (Action::Keep, true, None),
        (Action::Refuse(Reason::Exists), true, None),
    ] {
        assert_eq!(PlannedAct::of(action, has_dest), expected, "{action:?}");
    }
}

#[test]
fn recorded_state_is_that_which_counts_for_the_kind() {
    let found = EntryState::found(&file());
    assert_eq!(found.len_bytes, Some(10));
    assert_eq!(found.mtime, Some(at(5)));
    assert_eq!((found.target, found.rdev), (None, None));
    let found = EntryState::found(&dir());
    assert_eq!((found.len_bytes, found.mtime), (None, None));
    let found = EntryState::found(&symlink("b"));
    assert_eq!(found.target, Some(b"b".to_vec()));
    assert_eq!((found.len_bytes, found.rdev), (None, None));
    let found = EntryState::found(&device(7));
    assert_eq!((found.target, found.rdev), (None, Some(7)));
}

#[test]
fn attributes_are_recorded_in_order() {
    let names = |entry: &Entry| -> Vec<Vec<u8>> {
        let found = EntryState::found(entry);
        found.attributes.into_iter().map(|it| it.name).collect()
    };
    assert!(names(&file()).is_empty());
    let entry = but(&file(), |it| {
        with_attribute("1")(it);
        it.extra_mut().acl = Some(b"acl"[..].into());
        it.extra_mut().default_acl = Some(b""[..].into());
    });
    assert_eq!(names(&entry), [ACL_NAMES[0], b"user.a"]);
    let state = |value: &str| EntryState::found(&but(&file(), with_attribute(value)));
    assert_eq!(state("1"), state("1"));
    assert_ne!(state("1"), state("2"));
}

#[test]
fn only_preserved_attributes_are_wanted() {
    let wanted = EntryState::wanted(&but(&file(), changed_at(9)), &archive());
    assert_eq!(wanted.mode, 0o100_644);
    assert_eq!((wanted.uid, wanted.gid), (Some(1), Some(2)));
    assert_eq!((wanted.mtime, wanted.ctime), (Some(at(5)), None));
    let unset = but(&file(), |it| it.uid = NO_ID);
    assert_eq!(EntryState::wanted(&unset, &archive()).uid, None);
    let recursive = Policy {
        preserve: Preserve::default(),
        ..archive()
    };
    let wanted = EntryState::wanted(&file(), &recursive);
    assert_eq!(wanted.mode, S_IFREG);
    assert_eq!((wanted.uid, wanted.gid, wanted.mtime), (None, None, None));
}

/// The type of a file in a mode.
const S_IFREG: u32 = 0o100_000;

#[test]
fn time_of_the_last_change_counts_if_both_have_it() {
    let with = |ctime: Option<i64>| EntryState {
        ctime: ctime.map(at),
        ..EntryState::found(&file())
    };
    assert!(with(Some(1)).is_recorded(&with(Some(1))));
    assert!(with(None).is_recorded(&with(Some(1))));
    assert!(with(Some(1)).is_recorded(&with(None)));
    assert!(!with(Some(1)).is_recorded(&with(Some(2))));
    let other = EntryState {
        uid: Some(9),
        ..with(Some(1))
    };
    assert!(!other.is_recorded(&with(Some(1))));
}

#[test]
fn content_is_the_same_with_other_attributes() {
    let same = |one: &Entry, other: &Entry| {
        EntryState::found(one).has_content_of(&EntryState::found(other))
    };
    assert!(same(&file(), &but(&file(), |it| it.mode = 0o100_600)));
    assert!(same(&file(), &but(&file(), |it| it.uid = 9)));
    assert!(!same(&file(), &but(&file(), |it| it.len_bytes = 11)));
    assert!(!same(&symlink("a"), &symlink("b")));
    assert!(!same(&device(1), &device(2)));
    let fifo = entry(0o010_644);
    let socket = entry(0o140_644);
    assert!(!same(&fifo, &socket));
}

#[test]
fn transfer_is_done_once() {
    let source = but(&file(), |it| it.mtime = at(8));
    let before = but(&file(), changed_at(1));
    let action = planned(&source, Some(&before));
    assert_eq!(action.act, PlannedAct::Transfer);
    assert_eq!(action.kind(), Kind::File);
    assert_eq!(
        verdict(&action, &source, Some(&before)),
        PlannedVerdict::Act
    );
    assert_eq!(
        verdict(&action, &source, Some(&source)),
        PlannedVerdict::Done
    );
    for changed in [
        but(&before, |it| it.len_bytes = 11),
        but(&before, |it| it.mtime = at(6)),
        but(&before, changed_at(2)),
        // An attribute that the source does not have either.
        but(&before, |it| it.uid = 9),
    ] {
        assert_eq!(verdict(&action, &source, Some(&changed)), LEFT);
    }
    assert_eq!(verdict(&action, &source, None), LEFT);
    let newer = but(&source, |it| it.mtime = at(9));
    assert_eq!(verdict(&action, &newer, Some(&before)), SOURCE_CHANGED);
    let of_several = PlannedAction {
        links: Some(HardLinks {
            first: b"a".to_vec(),
            names: NameSet::default(),
            taken: NameSet::default(),
        }),
        ..action
    };
    assert_eq!(verdict(&of_several, &source, Some(&before)), SOURCE_CHANGED);
}

#[test]
fn new_entry_is_made_where_there_is_none() {
    let action = planned(&file(), None);
    assert_eq!(verdict(&action, &file(), None), PlannedVerdict::Act);
    let other = but(&file(), |it| it.len_bytes = 11);
    assert_eq!(verdict(&action, &file(), Some(&other)), LEFT);
    // An interrupted run has removed what was in the way.
    let action = planned(&file(), Some(&dir()));
    assert_eq!(verdict(&action, &file(), None), PlannedVerdict::Act);
    assert_eq!(verdict(&action, &file(), Some(&dir())), PlannedVerdict::Act);
}

#[test]
fn created_entry_that_lacks_attributes_is_finished() {
    let action = planned(&dir(), None);
    let begun = but(&dir(), |it| it.mode = 0o040_700);
    assert_eq!(verdict(&action, &dir(), Some(&begun)), PlannedVerdict::Act);
    // Files get their names complete.
    let action = planned(&file(), None);
    let begun = but(&file(), |it| it.mode = 0o100_600);
    assert_eq!(verdict(&action, &file(), Some(&begun)), LEFT);
}

#[test]
fn attributes_that_an_interrupted_run_has_set_are_no_change() {
    let source = but(&file(), |it| {
        it.mode = 0o100_600;
        it.uid = 3;
        it.gid = 4;
        it.mtime = at(5);
        with_attribute("new")(it);
    });
    let before = but(&file(), |it| {
        it.mode = 0o104_755;
        with_attribute("old")(it);
        changed_at(1)(it);
    });
    let action = planned(&source, Some(&before));
    assert_eq!(action.act, PlannedAct::Adjust);
    let verdict_if = |change: fn(&mut Entry)| {
        let found = but(&before, |it| {
            changed_at(2)(it);
            change(it);
        });
        verdict(&action, &source, Some(&found))
    };
    let set: [fn(&mut Entry); 5] = [
        |it| it.mode = 0o100_600,
        |it| it.uid = 3,
        |it| it.gid = 4,
        with_new_attribute,
        // The kernel takes the set-ID bits away with the owner.
        |it| {
            it.uid = 3;
            it.mode = 0o100_755;
        },
    ];
    for (number, change) in set.into_iter().enumerate() {
        assert_eq!(verdict_if(change), PlannedVerdict::Act, "set {number}");
    }
    let changed: [fn(&mut Entry); 9] = [
        |_| {},
        |it| it.mode = 0o100_640,
        |it| it.mode = 0o100_755,
        |it| it.uid = 9,
        |it| it.gid = 9,
        |it| it.mtime = at(6),
        |it| with_attribute("other")(it),
        |it| it.extra_mut().xattrs = None,
        |it| {
            it.uid = 3;
            it.gid = 9;
        },
    ];
    for (number, change) in changed.into_iter().enumerate() {
        assert_eq!(verdict_if(change), LEFT, "change {number}");
    }
}

fn with_new_attribute(entry: &mut Entry) {
    with_attribute("new")(entry);
}

#[test]
fn time_that_an_interrupted_run_has_set_is_no_change() {
    let source = but(&symlink("a"), |it| {
        it.uid = 3;
        it.mtime = at(8);
    });
    let action = planned(&source, Some(&symlink("a")));
    assert_eq!(action.act, PlannedAct::Adjust);
    let found = but(&symlink("a"), |it| it.mtime = at(8));
    assert_eq!(verdict(&action, &source, Some(&found)), PlannedVerdict::Act);
    let found = but(&symlink("a"), |it| it.mtime = at(7));
    assert_eq!(verdict(&action, &source, Some(&found)), LEFT);
}

#[test]
fn file_that_an_alternate_tree_has_is_removed_once() {
    let elsewhere = Decision {
        action: Action::Elsewhere,
        in_the_way: crate::plan::InTheWay::Nothing,
    };
    let policy = archive();
    let record = |dest| {
        PlannedAction::of_decision(b"a".to_vec(), &file(), dest, elsewhere, &policy).unwrap()
    };
    let old = but(&file(), |it| it.len_bytes = 9);
    let action = record(Some(&old));
    let verdict = |dest| action.verdict(&now(&file(), dest, elsewhere, &policy));
    assert_eq!(verdict(Some(&old)), PlannedVerdict::Act);
    assert_eq!(verdict(None), PlannedVerdict::Done);
    let changed = but(&file(), |it| it.len_bytes = 8);
    assert_eq!(verdict(Some(&changed)), LEFT);
    let transfer = planned(&file(), Some(&old));
    let verdict = transfer.verdict(&now(&file(), None, elsewhere, &policy));
    assert_eq!(verdict, LEFT);
}

#[test]
fn done_is_judged_by_size_and_time() {
    let old = but(&file(), |it| it.len_bytes = 9);
    let mut policy = archive();
    policy.check.mode = CheckMode::IgnoreTimes;
    policy.preserve.atimes = true;
    let decision = |dest| decide(&file(), Some(dest), Some(false), Subject::Entry, &policy);
    let action =
        PlannedAction::of_decision(b"a".to_vec(), &file(), Some(&old), decision(&old), &policy);
    // Reading it has moved its access time.
    let read = but(&file(), |it| it.extra_mut().atime = Some(at(99)));
    let verdict = action
        .unwrap()
        .verdict(&now(&file(), Some(&read), decision(&read), &policy));
    assert_eq!(verdict, PlannedVerdict::Done);

    // Under -c, only the content tells.
    policy.check.mode = CheckMode::Digest;
    assert!(!is_done(&file(), Some(&file()), &policy));
    // The time of a directory is not judged.
    let later = but(&dir(), |it| it.mtime = at(9));
    assert!(is_done(&dir(), Some(&later), &archive()));
    assert!(!is_done(&file(), None, &archive()));
    assert!(!is_done(&file(), Some(&dir()), &archive()));
    assert!(!is_done(
        &dir(),
        Some(&but(&dir(), |it| it.uid = 9)),
        &archive()
    ));
}

#[test]
fn names_of_a_file_are_placed_or_as_before() {
    let policy = archive();
    let links = Some(HardLinks {
        first: b"a".to_vec(),
        names: NameSet::default(),
        taken: NameSet::default(),
    });
    let state = |before: Option<&Entry>, dest: Option<&Entry>| {
        let decision = decided(&file(), dest);
        let link = PlannedAction::of_link(
            b"b".to_vec(),
            &file(),
            before,
            decided(&file(), before),
            &policy,
        );
        let link = PlannedAction {
            links: links.clone(),
            ..link
        };
        assert_eq!(link.act, PlannedAct::HardLink);
        state_of_name(Some(&link), &now(&file(), dest, decision, &policy))
    };
    let old = but(&file(), |it| it.len_bytes = 9);
    let other = but(&file(), |it| it.len_bytes = 8);
    let changed = NameState::Changed(ChangedEnd::Dest);
    assert_eq!(state(None, None), NameState::Before);
    assert_eq!(state(None, Some(&old)), changed);
    assert_eq!(state(None, Some(&file())), NameState::Placed);
    assert_eq!(state(Some(&old), Some(&old)), NameState::Before);
    assert_eq!(state(Some(&old), Some(&other)), changed);
    assert_eq!(state(Some(&old), None), changed);
    assert_eq!(state(Some(&dir()), None), NameState::Before);

    let unplanned = |dest: Option<&Entry>, decision| {
        state_of_name(None, &now(&file(), dest, decision, &policy))
    };
    assert_eq!(unplanned(None, Decision::keep()), NameState::Placed);
    assert_eq!(unplanned(None, decided(&file(), None)), changed);
    let transfer = decided(&file(), Some(&old));
    assert_eq!(unplanned(Some(&file()), transfer), NameState::Placed);
    assert_eq!(unplanned(Some(&old), transfer), changed);

    // The source has one name now, or other content.
    let single = planned(&file(), None);
    let changed = NameState::Changed(ChangedEnd::Source);
    let decision = decided(&file(), None);
    assert_eq!(
        state_of_name(Some(&single), &now(&file(), None, decision, &policy)),
        changed
    );
    let several = PlannedAction { links, ..single };
    assert_eq!(
        state_of_name(Some(&several), &now(&file(), None, decision, &policy)),
        NameState::Before
    );
    assert_eq!(
        state_of_name(Some(&several), &now(&other, None, decision, &policy)),
        changed
    );
}

#[test]
fn only_what_was_found_is_deleted() {
    let verdict = |before: &Entry, found: &Entry| {
        let deletion = PlannedAction::of_deletion(b"a".to_vec(), before);
        deletion.verdict_of_deletion(found, &[], &archive())
    };
    assert_eq!(verdict(&file(), &file()), PlannedVerdict::Act);
    assert_eq!(verdict(&file(), &but(&file(), |it| it.uid = 9)), LEFT);
    // A directory is made writable before it is emptied.
    let closed = but(&dir(), |it| it.mode = 0o040_555);
    assert_eq!(verdict(&closed, &dir()), PlannedVerdict::Act);
    assert_eq!(
        verdict(&closed, &but(&dir(), |it| it.mode = 0o040_777)),
        LEFT
    );
    assert_eq!(verdict(&closed, &but(&dir(), |it| it.uid = 9)), LEFT);
    let closed = but(&file(), |it| it.mode = 0o100_444);
    assert_eq!(verdict(&closed, &file()), LEFT);
    let root = PlannedAction::of_new_root(0o755);
    assert_eq!(root.verdict_of_deletion(&dir(), &[], &archive()), LEFT);
    assert_eq!(root.after.map(|after| after.mode), Some(0o040_755));
}

#[test]
fn a_twin_may_have_some_attributes_of_its_heir() {
    let policy = archive();
    let single = but(&file(), changed_at(7));
    let before = EntryState::found(&single);
    let new = but(&file(), |it| {
        it.mode = 0o100_600;
        it.uid = 8;
        it.mtime = at(6);
    });
    let given = [EntryState::wanted(&new, &policy)];
    let later = |change: &dyn Fn(&mut Entry)| but(&but(&single, changed_at(9)), change);
    let is_usable = |found: &Entry, given: &[_]| is_usable(found, &before, given, &policy);
    assert!(is_usable(&single, &[]));
    for (found, is_begun) in [
        (later(&|it| it.mode = 0o100_600), true),
        (later(&|it| it.uid = 8), true),
        (later(&|it| it.mtime = at(6)), true),
        // Nothing shows that this run has changed it.
        (later(&|_| ()), false),
        (later(&|it| it.mode = 0o100_666), false),
        (later(&|it| it.len_bytes = 11), false),
        (later(&|it| it.mtime = at(8)), false),
    ] {
        assert_eq!(is_usable(&found, &given), is_begun, "{found:?}");
        assert!(!is_usable(&found, &[]), "{found:?}");
        let deletion = PlannedAction::of_deletion(b"a".to_vec(), &single);
        let verdict = deletion.verdict_of_deletion(&found, &given, &policy);
        assert_eq!(verdict == PlannedVerdict::Act, is_begun, "{found:?}");
    }

    // An access time leaves no other trace.
    let touched = later(&|_| ());
    let with_access_times = Policy {
        preserve: Preserve {
            atimes: true,
            ..policy.preserve.clone()
        },
        ..policy
    };
    assert!(super::is_usable(
        &touched,
        &before,
        &given,
        &with_access_times
    ));
    assert!(!super::is_usable(
        &touched,
        &before,
        &[],
        &with_access_times
    ));
}

#[test]
fn set_of_names_depends_on_their_order() {
    let set = |names: [&[u8]; 2]| {
        let mut set = NameSet::default();
        for name in names {
            set.add(name);
        }
        set
    };
    assert_eq!(set([b"a", b"b"]), set([b"a", b"b"]));
    assert_ne!(set([b"a", b"b"]), set([b"b", b"a"]));
    assert_eq!(set([b"a", b"b"]).count, 2);
    assert_eq!(short_digest(&[b"a", b"b"]), short_digest(&[b"ab"]));
}

#[test]
fn other_names_of_a_file_may_have_got_their_attributes() {
    let policy = archive();
    let before = but(&file(), |it| it.mode = 0o100_644);
    let with_mode = |mode: u32| but(&before, move |it| it.mode = mode);
    // Two other names of the file get these attributes.
    let given = [
        EntryState::wanted(&with_mode(0o100_600), &policy),
        EntryState::wanted(&but(&before, |it| it.uid = 8), &policy),
    ];
    let source = with_mode(0o100_640);
    let adjusted = planned(&source, Some(&before));
    let deletion = PlannedAction::of_deletion(b"b".to_vec(), &before);
    for (found, is_acted_on) in [
        (before.clone(), true),
        (with_mode(0o100_600), true),
        (but(&with_mode(0o100_600), |it| it.uid = 8), true),
        (with_mode(0o100_666), false),
        (but(&with_mode(0o100_600), |it| it.uid = 9), false),
        (but(&with_mode(0o100_600), |it| it.len_bytes = 11), false),
        (but(&with_mode(0o100_600), |it| it.mtime = at(8)), false),
    ] {
        let now = EntryNow {
            given: &given,
            ..now(
                &source,
                Some(&found),
                decided(&source, Some(&before)),
                &policy,
            )
        };
        let is_adjusted = adjusted.verdict(&now) == PlannedVerdict::Act;
        assert_eq!(is_adjusted, is_acted_on, "{found:?}");
        let verdict = deletion.verdict_of_deletion(&found, &given, &policy);
        assert_eq!(verdict == PlannedVerdict::Act, is_acted_on, "{found:?}");
    }
}

#[test]
fn only_whether_it_is_executable_may_be_given() {
    let mut policy = archive();
    policy.preserve.perms = false;
    policy.preserve.executability = true;
    let executable = but(&file(), |it| it.mode = 0o100_700);
    let given = [EntryState::wanted(&executable, &policy)];
    let before = but(&file(), |it| it.mode = 0o100_640);
    let deletion = PlannedAction::of_deletion(b"b".to_vec(), &before);
    for (mode, verdict) in [(0o100_750, PlannedVerdict::Act), (0o100_600, LEFT)] {
        let found = but(&before, |it| it.mode = mode);
        assert_eq!(
            deletion.verdict_of_deletion(&found, &given, &policy),
            verdict
        );
    }
}

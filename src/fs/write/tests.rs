//! Tests: files get their final name complete, and leave nothing else.

use super::*;
use crate::fs::leftover::{Leftover, leftover};
use crate::fs::replace::link_over;
use crate::fs::temp_name::temp_name;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

fn open(path: &std::path::Path) -> Dir {
    Dir::new(sys::open_dir_path(path.as_os_str().as_bytes()).unwrap())
}

#[test]
fn chowned_unnamed_file_is_placed_without_link_permission() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use std::os::unix::fs::MetadataExt;
    // Affects only this thread.
    let mut held = capabilities(None).unwrap();
    if sys::ids().0 != 0 || !held.effective.contains(CapabilitySet::CHOWN) {
        return;
    }
    held.effective = CapabilitySet::CHOWN;
    let scratch = tempfile::tempdir().unwrap();
    let dir = open(scratch.path());
    let pending = Pending::begin(&dir, b"f", 0o600, false, None).unwrap();
    if pending.has_name() {
        return;
    }
    set_capabilities(None, held).unwrap();
    sys::chown(pending.fd(), b"", Some(7), Some(8)).unwrap();
    pending.place(&dir, b"f").unwrap();
    let names: Vec<_> = std::fs::read_dir(scratch.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    let meta = std::fs::metadata(scratch.path().join("f")).unwrap();
    assert_eq!((names, meta.uid(), meta.gid()), (vec!["f".into()], 7, 8));
}

#[test]
fn stale_temp_file_is_replaced() {
    let top = tempfile::tempdir().unwrap();
    let dir = open(top.path());
    let temp = std::ffi::OsString::from_vec(temp_name(b"f"));
    let names_in_dir = || {
        std::fs::read_dir(top.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
    };
    std::fs::write(top.path().join(&temp), "half").unwrap();
    let pending = Pending::begin(&dir, b"f", 0o644, true, None).unwrap();
    assert_eq!(
        names_in_dir().collect::<Vec<_>>(),
        std::slice::from_ref(&temp)
    );
    let other = Pending::begin(&dir, b"f", 0o644, true, None).unwrap();
    assert_eq!(names_in_dir().count(), 2, "a locked temporary file is kept");
    drop((pending, other));

    std::os::unix::fs::symlink("nowhere", top.path().join(&temp)).unwrap();
    put_over(&dir, b"f", |temp| sys::symlink(b"x", dir.fd(), temp)).unwrap();
    link_over(&dir, b"f", &dir, b"g").unwrap();
    link_over(&dir, b"f", &dir, b"g").unwrap();
    let mut names: Vec<_> = names_in_dir().collect();
    names.sort();
    assert_eq!(names, ["f", "g"]);
}

#[test]
fn dropped_pending_file_leaves_nothing() {
    let top = tempfile::tempdir().unwrap();
    let dir = open(top.path());
    for replaces in [false, true] {
        drop(Pending::begin(&dir, b"f", 0o644, replaces, None).unwrap());
        assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 0);
    }
}

#[test]
fn place_replaces_an_existing_file() {
    let top = tempfile::tempdir().unwrap();
    let dir = open(top.path());
    for replaces in [false, true] {
        let pending = Pending::begin(&dir, b"f", 0o644, replaces, None).unwrap();
        sys::write_all(pending.fd(), b"new").unwrap();
        std::fs::write(top.path().join("f"), "old").unwrap();
        pending.place(&dir, b"f").unwrap();
        assert_eq!(std::fs::read(top.path().join("f")).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 1);
    }
}

/// Returns the time of the directory, which removing an entry must not change.
fn mtime(dir: &Dir) -> Time {
    sys::fstat(dir.fd()).unwrap().mtime
}

#[test]
fn leave_keeps_the_partial_file_unless_superseded() {
    let top = tempfile::tempdir().unwrap();
    let dir = open(top.path());
    let names = || {
        std::fs::read_dir(top.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect::<Vec<_>>()
    };
    let left_over = std::ffi::OsString::from_vec(temp_name(b"f"));
    // The file is not complete: the next run continues with this part.
    let pending = Pending::begin(&dir, b"f", 0o600, true, None).unwrap();
    pending.leave(&dir, b"f");
    assert_eq!(names(), std::slice::from_ref(&left_over));
    let pending = Pending::begin(&dir, b"f", 0o600, true, None).unwrap();
    std::fs::write(top.path().join("f"), "finished").unwrap();
    let before = Time { secs: 7, nanos: 0 };
    sys::utimes(dir.fd(), b"", None, Some(before)).unwrap();
    pending.leave(&dir, b"f");
    assert_eq!((names(), mtime(&dir)), (vec!["f".into()], before));
}

#[test]
fn partial_file_never_replaces_a_newer_file() {
    for is_named in [true, false] {
        for is_finished in [false, true] {
            let top = tempfile::tempdir().unwrap();
            let dir = open(top.path());
            let pending = Pending::begin(&dir, b"f", 0o600, is_named, None).unwrap();
            sys::write_all(pending.fd(), b"part").unwrap();
            if is_finished {
                std::fs::write(top.path().join("f"), "finished").unwrap();
            }
            pending.place_new(&dir, b"f").unwrap();
            let wanted = if is_finished { "finished" } else { "part" };
            let got = std::fs::read_to_string(top.path().join("f")).unwrap();
            assert_eq!(
                (got.as_str(), std::fs::read_dir(top.path()).unwrap().count()),
                (wanted, 1)
            );
        }
    }
}

#[test]
fn file_that_was_replaced_since_is_superseded() {
    let top = tempfile::tempdir().unwrap();
    let dir = open(top.path());
    std::fs::write(top.path().join("f"), "old").unwrap();
    // The clock of file times advances in steps.
    while sys::birth(Pending::begin(&dir, b"x", 0o600, true, None).unwrap().fd()).unwrap()
        <= sys::changed(dir.fd(), b"f").ok()
    {
        std::thread::yield_now();
    }
    let pending = Pending::begin(&dir, b"f", 0o600, true, None).unwrap();
    assert!(!is_superseded(pending.birth(), &dir, b"f"));
    std::fs::write(top.path().join("f"), "finished").unwrap();
    assert!(is_superseded(pending.birth(), &dir, b"f"));
}

#[test]
fn place_removes_stale_temp_files_of_other_runs() {
    let top = tempfile::tempdir().unwrap();
    let dir = open(top.path());
    let first = Pending::begin(&dir, b"f", 0o600, true, None).unwrap();
    let second = Pending::begin(&dir, b"f", 0o600, true, None).unwrap();
    // The first run was killed, which releases its lock.
    sys::unlock(first.fd()).unwrap();
    second.place(&dir, b"f").unwrap();
    assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 1);
}

#[test]
fn temp_file_is_own_only_if_no_other_run_takes_it_for_a_leftover() {
    let top = tempfile::tempdir().unwrap();
    let dir = open(top.path());
    let create = || sys::create(dir.fd(), b"t", 0o600).unwrap();
    let new = create();
    let other = sys::open_read(dir.fd(), b"t", false, false).unwrap();
    assert!(sys::try_lock(other.as_fd()).unwrap() && !is_own(&new).unwrap());
    drop(other);
    assert!(is_own(&new).unwrap());
    sys::unlink(dir.fd(), b"t").unwrap();
    assert!(!is_own(&new).unwrap());
}

#[test]
fn locked_temp_file_is_not_stale() {
    let top = tempfile::tempdir().unwrap();
    let dir = open(top.path());
    let pending = Pending::begin(&dir, b"f", 0o600, true, None).unwrap();
    let name = pending.temp_name.clone().unwrap();
    assert_eq!(leftover(&dir, &name), Leftover::InUse);
    drop(pending);
    std::fs::write(top.path().join(std::ffi::OsStr::from_bytes(&name)), "").unwrap();
    assert_eq!(leftover(&dir, &name), Leftover::Stale);
}

//! The second barrier around a confined process: the kernel refuses changes outside of its directories, whatever the
//! process does.
//!
//! [`super::sandbox`] checks each path in the process itself. If it has an error, or if an attacker runs code in the
//! process, Landlock still holds. It refuses to create, write, shorten, rename, link and remove; reading stays possible,
//! because a session needs accounts and time zones of the machine. Attributes are beyond Landlock.

use landlock::{
    ABI, AccessFs, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr, RulesetCreatedAttr,
};
use std::io;
use std::os::fd::BorrowedFd;

/// The rights that are refused elsewhere. With an older interface than this one (Linux 6.2), the kernel would refuse links
/// and renames between two directories everywhere, or could not refuse to shorten files.
const NEEDED: ABI = ABI::V3;

/// Has the kernel refuse each change outside of these directories: to this thread and to all threads and processes that it
/// starts later, for ever. Fails, and refuses nothing, if the kernel cannot do all of that.
pub fn refuse_changes_outside(dirs: &[BorrowedFd<'_>]) -> io::Result<()> {
    let changes = AccessFs::from_write(NEEDED);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(changes)
        .and_then(Ruleset::create)
        .map_err(io::Error::other)?;
    for dir in dirs {
        rules = rules
            .add_rule(PathBeneath::new(dir, changes))
            .map_err(io::Error::other)?;
    }
    rules.restrict_self().map_err(io::Error::other)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::io::ErrorKind::PermissionDenied;
    use std::os::fd::AsFd;

    #[test]
    #[allow(clippy::print_stderr)]
    fn changes_outside_of_the_directories_are_refused() {
        let top = tempfile::tempdir().unwrap();
        let inside = top.path().join("inside");
        let outside = top.path().join("outside");
        for dir in [&inside, &outside] {
            fs::create_dir(dir).unwrap();
            fs::create_dir(dir.join("sub")).unwrap();
            fs::write(dir.join("f"), "content").unwrap();
        }
        // Only this thread is restricted.
        let restricted = || {
            let dir = File::open(&inside).unwrap();
            if let Err(error) = refuse_changes_outside(&[dir.as_fd()]) {
                eprintln!("skipped: this kernel has no Landlock: {error}");
                return;
            }
            fs::write(inside.join("sub/new"), "").unwrap();
            fs::rename(inside.join("sub/new"), inside.join("moved")).unwrap();
            fs::hard_link(inside.join("moved"), inside.join("sub/linked")).unwrap();
            fs::remove_file(inside.join("f")).unwrap();

            let refused = |done: io::Result<()>| done.unwrap_err().kind() == PermissionDenied;
            assert!(refused(fs::write(outside.join("new"), "")));
            assert!(refused(fs::write(outside.join("f"), "")));
            assert!(refused(fs::remove_file(outside.join("f"))));
            assert!(refused(fs::remove_dir(outside.join("sub"))));
            assert!(fs::rename(inside.join("moved"), outside.join("moved")).is_err());
            assert!(fs::hard_link(inside.join("moved"), outside.join("moved")).is_err());
            assert_eq!(fs::read(outside.join("f")).unwrap(), b"content");
        };
        std::thread::scope(|scope| scope.spawn(restricted).join().unwrap());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 2);
    }
}

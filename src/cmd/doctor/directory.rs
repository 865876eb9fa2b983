//! Checks what the kernel and the file system of a directory support, and how much space is left.

use super::doctor_check::{DoctorCheck, shown_errno};
use crate::fs::probe::{self, KernelCopy};
use crate::fs::root::Dir;
use crate::fs::{sandbox, sys, trusted_path};
use crate::options::LinkOwners;

/// Checks the kernel and the file system of a directory.
pub(super) fn check(path: &[u8]) -> Vec<DoctorCheck> {
    let confined = match sandbox::can_confine() {
        Ok(()) => DoctorCheck::ok("openat2", "supported"),
        Err(error) => {
            DoctorCheck::warn("openat2", format!("not available: {}", shown_errno(&error)))
                .with_hint("grants with --root need Linux 5.6, and a container must permit openat2")
        }
    };
    let shown = String::from_utf8_lossy(path).into_owned();
    let dir = match trusted_path::open_dir(path, LinkOwners::Trusted) {
        Ok(dir) => Dir::new(dir),
        Err(error) => {
            let finding = format!("cannot open {shown}: {}", shown_errno(&error));
            return vec![confined, DoctorCheck::fail("directory", finding)];
        }
    };
    let at =
        sys::path_of(dir.fd()).map_or(shown, |path| String::from_utf8_lossy(&path).into_owned());
    let mut checks = vec![confined];
    checks.extend(match probe::files_of(&dir) {
        Ok(support) => of_files(&at, support),
        Err(error) => {
            vec![
                DoctorCheck::warn(
                    "directory",
                    format!("{at}, not writable: {}", shown_errno(&error)),
                ),
                DoctorCheck::warn(
                    "new files",
                    "unknown: O_TMPFILE, reflinks, attributes and times need a writable directory",
                ),
            ]
        }
    });
    checks.push(match probe::has_acls(dir.fd()) {
        Ok(true) => DoctorCheck::ok("acls", "supported"),
        Ok(false) => DoctorCheck::warn("acls", "not supported by the file system: -A fails"),
        Err(error) => DoctorCheck::warn("acls", format!("unknown: {}", shown_errno(&error))),
    });
    checks.push(match probe::is_case_sensitive(dir.fd()) {
        Ok(Some(true)) => DoctorCheck::ok("case", "names are case-sensitive"),
        Ok(Some(false)) => {
            DoctorCheck::warn("case", "names are not case-sensitive: A and a are one file")
        }
        Ok(None) => DoctorCheck::ok("case", "unknown: no name there shows whether case matters"),
        Err(error) => DoctorCheck::warn("case", format!("unknown: {}", shown_errno(&error))),
    });
    checks.extend(match probe::space(dir.fd()) {
        Ok(space) => of_space(&space),
        Err(error) => vec![DoctorCheck::warn(
            "space",
            format!("unknown: {}", shown_errno(&error)),
        )],
    });
    checks
}

fn of_files(at: &str, support: probe::FileSupport) -> Vec<DoctorCheck> {
    let unnamed = if support.unnamed {
        DoctorCheck::ok("new files", "O_TMPFILE is supported")
    } else {
        DoctorCheck::ok(
            "new files",
            "O_TMPFILE is not supported: new files have temporary names",
        )
    };
    let copy = match support.copy {
        Ok(KernelCopy::Reflink) => {
            DoctorCheck::ok("kernel copy", "reflink: local copies share blocks")
        }
        Ok(KernelCopy::Range) => {
            DoctorCheck::ok("kernel copy", "copy_file_range, without reflinks")
        }
        Err(error) => DoctorCheck::warn(
            "kernel copy",
            format!("not available: {}", shown_errno(&error)),
        ),
    };
    let xattr = match support.xattr {
        Ok(()) => DoctorCheck::ok("xattrs", "supported"),
        Err(error) => DoctorCheck::warn(
            "xattrs",
            format!("cannot be set, so -X fails: {}", shown_errno(&error)),
        ),
    };
    let times = match support.time_step_nanos {
        Ok(step @ 1_000_000_000..) => DoctorCheck::warn(
            "times",
            format!("stored in steps of {} s", step / 1_000_000_000),
        )
        .with_hint("with --modify-window=1, times that differ by this step count as equal"),
        Ok(step) => DoctorCheck::ok("times", format!("stored in steps of {step} ns")),
        Err(error) => DoctorCheck::warn("times", format!("unknown: {}", shown_errno(&error))),
    };
    vec![
        DoctorCheck::ok("directory", format!("{at}, writable")),
        unnamed,
        copy,
        xattr,
        times,
    ]
}

fn of_space(space: &probe::Space) -> Vec<DoctorCheck> {
    let percent = |part: u64, whole: u64| {
        part.saturating_mul(100)
            .checked_div(whole)
            .unwrap_or_default()
    };
    let free = space.free_bytes;
    let total = space.total_bytes;
    let facts = format!(
        "{} of {} MiB free ({} %)",
        free >> 20,
        total >> 20,
        percent(free, total)
    );
    let bytes = match (space.is_read_only, free) {
        _ if total == 0 => DoctorCheck::ok("space", "unknown: the file system reports none"),
        (true, _) => DoctorCheck::warn("space", format!("{facts}, mounted read-only")),
        (false, 0) => DoctorCheck::fail("space", facts)
            .with_hint("free space there, or choose another directory"),
        (false, _) => DoctorCheck::ok("space", facts),
    };
    let free = space.free_inodes;
    let total = space.total_inodes;
    let inodes = match (total, free) {
        (0, _) => DoctorCheck::ok("inodes", "no fixed number"),
        (_, 0) => DoctorCheck::fail("inodes", format!("0 of {total} free"))
            .with_hint("remove files there"),
        _ => DoctorCheck::ok(
            "inodes",
            format!("{free} of {total} free ({} %)", percent(free, total)),
        ),
    };
    vec![bytes, inodes]
}

//! Checks the limits and the clock of this process.

use super::doctor_check::DoctorCheck;
use crate::env::Env;
use crate::fs::probe::{self, ProcessLimit};
use crate::fs::sys;
use crate::trust::timestamp::Timestamp;
use crate::work::clock;
use std::os::unix::ffi::OsStrExt as _;

/// Fewer open files than this make a copy process one directory after the other.
const OPEN_FILES_LEAST: u64 = 48;

pub(super) fn check(env: &Env) -> Vec<DoctorCheck> {
    let shown = |limit: ProcessLimit, unit: &str| {
        let value = |value: Option<u64>| {
            value.map_or_else(|| "unlimited".into(), |value| format!("{value}{unit}"))
        };
        format!("{}, at most {}", value(limit.current), value(limit.maximum))
    };
    let [files, processes, memory] = probe::process_limits();
    let open = if files.current.is_some_and(|limit| limit < OPEN_FILES_LEAST) {
        DoctorCheck::warn(
            "open files",
            format!("{}: copies are slow", shown(files, "")),
        )
        .with_hint(format!("run `ulimit -n {OPEN_FILES_LEAST}` or more before"))
    } else {
        DoctorCheck::ok("open files", shown(files, ""))
    };
    let own = env
        .own_path()
        .and_then(|path| sys::stat_path(path.as_os_str().as_bytes(), true).ok());
    let clock = match own {
        Some(own) if own.mtime.secs > now().0 => DoctorCheck::fail(
            "clock",
            format!(
                "{}, before this program was installed ({})",
                now(),
                Timestamp(own.mtime.secs)
            ),
        )
        .with_hint("set the clock"),
        _ => DoctorCheck::ok("clock", now().to_string()),
    };
    vec![
        open,
        DoctorCheck::ok("processes", shown(processes, "")),
        DoctorCheck::ok("address space", shown(memory, " bytes")),
        clock,
    ]
}

pub(super) fn now() -> Timestamp {
    Timestamp(clock::now_unix().0)
}

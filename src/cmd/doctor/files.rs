//! Checks the files of this user: keys, state and enrolled hosts.

use super::doctor_check::{DoctorCheck, shown_errno};
use crate::fs::{errno, sys};
use crate::trust::files::List as _;
use crate::trust::identity::Identity;
use crate::trust::paths::Places;
use crate::trust::peers::Peers;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Checks the files of this user.
pub(super) fn check(places: &Places) -> Vec<DoctorCheck> {
    let key = match Identity::load(places) {
        Ok(Some(identity)) => DoctorCheck::ok("key", identity.pin.to_string()),
        Ok(None) => DoctorCheck::ok(
            "key",
            "none yet: `sparsync enroll` and `sparsync server` create it",
        ),
        Err(error) => DoctorCheck::of_error("key", &error),
    };
    let hosts = match Peers::load(places) {
        Ok(peers) => DoctorCheck::ok("hosts", format!("{} enrolled", peers.hosts.len())),
        Err(error) => DoctorCheck::of_error("hosts", &error),
    };
    vec![
        private("configuration", &places.config),
        private("state", &places.state),
        key,
        hosts,
    ]
}

/// Checks who can change a directory of keys and state.
fn private(name: &'static str, path: &Path) -> DoctorCheck {
    let shown = path.display();
    let stat = match errno::if_there(sys::stat_path(path.as_os_str().as_bytes(), true)) {
        Ok(None) => return DoctorCheck::ok(name, format!("{shown} does not exist yet")),
        Ok(Some(stat)) => stat,
        Err(error) => {
            return DoctorCheck::fail(
                name,
                format!("cannot examine {shown}: {}", shown_errno(&error)),
            );
        }
    };
    let me = sys::ids().0;
    let mode = stat.mode & 0o7777;
    let facts = format!("{shown}, owned by user {}, mode {mode:04o}", stat.uid);
    match (stat.uid == me || stat.uid == 0, mode & 0o022 == 0) {
        (false, _) => DoctorCheck::fail(name, facts).with_hint(format!("run `chown {me} {shown}`")),
        (true, false) => DoctorCheck::fail(name, format!("{facts}: other users can change it"))
            .with_hint(format!("run `chmod go-w {shown}`")),
        (true, true) => DoctorCheck::ok(name, facts),
    }
}

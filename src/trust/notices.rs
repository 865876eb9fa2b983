//! Which hosts were reported to the user lately, so that a notice is printed once a day.

use super::files::{CACHE_WAIT_MAX, List, renew};
use super::paths::Places;
use super::timestamp::Timestamp;
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// A host, and until when its notice is not repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notice {
    /// The name of the host.
    pub host: String,
    /// When the notice is due again.
    pub until: Timestamp,
}

/// The hosts, the latest notice last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notices {
    /// No two have the same host.
    #[serde(default, rename = "notice")]
    pub notices: Vec<Notice>,
}

/// How long a notice is not repeated.
const QUIET_SECS: i64 = 24 * 60 * 60;
/// The maximum number of entries.
const NOTICES_MAX: usize = 256;

impl Notices {
    /// Returns whether the notice about a host is due, and records that it is printed now. It is not due if that cannot
    /// be recorded: it would be printed in every run.
    pub fn is_due(places: &Places, host: &str, now: Timestamp) -> bool {
        let places = places.only_state();
        let notices = Notices::load(&places).unwrap_or_default().notices;
        let is_known = |notice: &Notice| notice.host == host && now < notice.until;
        if notices.iter().any(is_known) {
            return false;
        }
        let recorded = Notices::change(&places, |list| {
            let latest = Notice {
                host: host.to_owned(),
                until: Timestamp(now.0 + QUIET_SECS),
            };
            let is_kept = |notice: &Notice| notice.host != host && now < notice.until;
            renew(&mut list.notices, NOTICES_MAX, is_kept, Some(latest));
        });
        recorded.is_ok()
    }
}

impl List for Notices {
    const FILE: &str = "notices.toml";
    const HEAD: &str =
        "# Which notices were printed lately. This file can be deleted at any time.\n\n";
    const ID: &str = "host";
    const WAIT_MAX: Duration = CACHE_WAIT_MAX;

    fn check(&self, _path: &Path) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notice_about_a_host_is_due_once_a_day() {
        let top = tempfile::tempdir().unwrap();
        let places = Places {
            config: top.path().join("config"),
            state: top.path().join("state"),
        };
        let is_due = |host: &str, now| Notices::is_due(&places, host, Timestamp(now));
        assert!(is_due("a", 0));
        assert!(!is_due("a", QUIET_SECS - 1));
        assert!(is_due("b", 1), "each host has its own");
        assert!(is_due("a", QUIET_SECS));
        for n in 0..NOTICES_MAX {
            assert!(is_due(&format!("host{n}"), QUIET_SECS));
        }
        let stored = Notices::load(&places.only_state()).unwrap().notices;
        assert_eq!(stored.len(), NOTICES_MAX);
        assert!(!places.config.exists(), "they are no configuration");
    }
}

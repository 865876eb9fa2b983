//! Which clients a server admits: those whose keys have a grant.

use super::log;
use crate::error::{Error, Result};
use crate::trust::Pin;
use crate::trust::files::CachedList;
use crate::trust::grants::{Grants, KeyStatus};
use crate::trust::paths::Places;
use crate::trust::timestamp::Timestamp;
use crate::work::clock::{self, Since};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, info, warn};

/// Decides which clients are admitted.
pub struct GrantCheck {
    grants: CachedList<Grants>,
    /// The last list that could be read.
    last_good: Mutex<Arc<Grants>>,
    /// The key of this server.
    pub own: Pin,
    rejected: Mutex<RejectedClients>,
}

impl GrantCheck {
    /// Fails if the list of grants cannot be read.
    pub fn new(places: &Places, own: Pin) -> Result<GrantCheck> {
        let grants = CachedList::new(places);
        let last_good = Mutex::new(grants.get()?);
        Ok(GrantCheck {
            grants,
            last_good,
            own,
            rejected: Mutex::default(),
        })
    }

    /// Returns whether a key is admitted. Called for every connection, so a new grant takes effect at once.
    pub fn admits(&self, pin: &Pin) -> bool {
        if *pin == self.own {
            return true;
        }
        let (grants, mistake) = self.grants();
        // One client counts once against the limit of the log.
        let mut unlogged = None;
        if let Some(mistake) = mistake
            && unlogged.insert(self.log_unknown_client()).is_some()
        {
            let why = String::from_utf8_lossy(&mistake.message);
            error!(
                "grants not reloaded, the previous ones stay in force: {}",
                why.trim_start_matches("sparsync: ")
            );
        }
        let words = match grants.standing(pin, Timestamp(clock::now_unix().0)) {
            KeyStatus::Granted(_) => return true,
            KeyStatus::Expired(grant) => {
                format!("client rejected: the grant of {} has expired", grant.name)
            }
            KeyStatus::Unknown => format!("client rejected: unknown key {pin}"),
        };
        match unlogged.unwrap_or_else(|| self.log_unknown_client()) {
            Some(0) => warn!(target: log::REJECTED_CLIENTS, "{words}"),
            Some(unlogged_before) => {
                warn!(target: log::REJECTED_CLIENTS, "{words} ({unlogged_before} more rejected before)")
            }
            None => {}
        }
        false
    }

    /// Returns the grants in force, and the error if the file cannot be read. In that case the last readable list stays
    /// in force, with its revocations and expiry dates.
    pub fn grants(&self) -> (Arc<Grants>, Option<Error>) {
        let mut last_good = self.last_good.lock();
        let mistake = match self.grants.get() {
            Ok(grants) => {
                if *last_good != grants {
                    info!("grants reloaded");
                }
                *last_good = grants;
                None
            }
            Err(error) => Some(error),
        };
        (last_good.clone(), mistake)
    }

    fn log_unknown_client(&self) -> Option<u64> {
        self.rejected.lock().one_more()
    }
}

/// Limits the log lines about rejected clients: anyone can connect.
#[derive(Default)]
struct RejectedClients {
    since: Option<Since>,
    logged: u32,
    unlogged: u64,
}

impl RejectedClients {
    /// How many are logged one by one within [`RejectedClients::WHILE`].
    const LOGGED_MAX: u32 = 16;
    const WHILE: Duration = Duration::from_secs(60);

    /// Counts a rejected client. Returns how many before it were not logged; `None` if this one must not be logged
    /// either.
    fn one_more(&mut self) -> Option<u64> {
        if self
            .since
            .is_none_or(|since| since.elapsed() >= RejectedClients::WHILE)
        {
            (self.since, self.logged) = (Some(Since::now()), 0);
        }
        if self.logged == RejectedClients::LOGGED_MAX {
            self.unlogged += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_about_unknown_clients_are_limited() {
        let mut rejected = RejectedClients::default();
        let logged = (0..1000).filter(|_| rejected.one_more().is_some()).count();
        assert_eq!(logged, RejectedClients::LOGGED_MAX as usize);
        rejected.since = None;
        assert_eq!(
            rejected.one_more(),
            Some(1000 - u64::from(RejectedClients::LOGGED_MAX))
        );
        assert_eq!(rejected.one_more(), Some(0));
    }
}

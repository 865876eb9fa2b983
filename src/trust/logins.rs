//! A cache of which program answers ssh on hosts that were not enrolled, so that a copy needs one login.

use super::files::{CACHE_WAIT_MAX, List, renew};
use super::paths::Places;
use super::timestamp::Timestamp;
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// The program that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answers {
    /// A stock rsync; there is no sparsync.
    Rsync,
    /// A stock rsync that was asked for by its name: there may be a sparsync too.
    RsyncByName,
    /// A sparsync behind a forced command such as rrsync, which accepts `rsync --server` only.
    ForcedCommand,
}

/// A host and its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The host as ssh gets it, with `user@` if the operand has one, and with a digest of the remote shell if it was given.
    pub host: String,
    /// The program that answered.
    pub answers: Answers,
    /// When the entry expires.
    pub until: Timestamp,
}

/// The hosts, the most recent answer last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logins {
    /// The entries. No two have the same host.
    #[serde(default, rename = "login")]
    pub logins: Vec<Login>,
}

/// The lifetime of an entry. A sparsync that is installed later is found after this time.
const KEPT_SECS: i64 = 24 * 60 * 60;
/// The maximum number of entries.
const LOGINS_MAX: usize = 256;

impl Logins {
    /// Returns the program that answered at a host; `None`: unknown or expired, or the file cannot be read.
    pub fn recall(places: &Places, host: &str, now: Timestamp) -> Option<Answers> {
        let logins = Logins::load(&places.only_state())
            .unwrap_or_default()
            .logins;
        logins
            .into_iter()
            .find(|login| login.host == host && now < login.until)
            .map(|login| login.answers)
    }

    /// Stores an answer; `None` removes the host.
    pub fn remember(
        places: &Places,
        host: &str,
        answers: Option<Answers>,
        now: Timestamp,
    ) -> Result<()> {
        Logins::change(&places.only_state(), |list| {
            let latest = answers.map(|answers| Login {
                host: host.to_owned(),
                answers,
                until: Timestamp(now.0 + KEPT_SECS),
            });
            let is_kept = |login: &Login| login.host != host && now < login.until;
            renew(&mut list.logins, LOGINS_MAX, is_kept, latest);
        })
    }
}

impl List for Logins {
    const FILE: &str = "logins.toml";
    const HEAD: &str = "# A cache of which program answers ssh on each host. This file can be deleted at any time.\n\n";
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
    fn login_answers_are_cached_for_a_day() {
        let top = tempfile::tempdir().unwrap();
        let places = Places {
            config: top.path().join("config"),
            state: top.path().join("state"),
        };
        let remember = |host: &str, answers, now| {
            Logins::remember(&places, host, answers, Timestamp(now)).unwrap()
        };
        assert_eq!(Logins::recall(&places, "a", Timestamp(0)), None);
        remember("a", Some(Answers::Rsync), 0);
        remember("u@a", Some(Answers::ForcedCommand), 10);
        assert_eq!(
            Logins::recall(&places, "a", Timestamp(KEPT_SECS - 1)),
            Some(Answers::Rsync)
        );
        assert_eq!(Logins::recall(&places, "a", Timestamp(KEPT_SECS)), None);
        assert_eq!(
            Logins::recall(&places, "u@a", Timestamp(KEPT_SECS)),
            Some(Answers::ForcedCommand)
        );
        remember("u@a", None, 20);
        assert_eq!(Logins::recall(&places, "u@a", Timestamp(20)), None);
        assert!(
            !places.config.exists(),
            "the cache is not in the configuration"
        );
    }

    /// A process that holds the lock can be stopped. Copies go on.
    #[test]
    fn answer_is_not_cached_if_another_process_holds_the_lock() {
        let top = tempfile::tempdir().unwrap();
        let places = Places {
            config: top.path().to_owned(),
            state: top.path().to_owned(),
        };
        let remember = || Logins::remember(&places, "a", Some(Answers::Rsync), Timestamp(0));
        let held = std::fs::File::create(top.path().join(".lock")).unwrap();
        held.lock().unwrap();
        let error = remember().unwrap_err();
        let words = "another process holds the lock";
        assert!(
            String::from_utf8_lossy(&error.message).contains(words),
            "{error}"
        );
        assert_eq!(Logins::recall(&places, "a", Timestamp(0)), None);
        held.unlock().unwrap();
        remember().unwrap();
        assert_eq!(
            Logins::recall(&places, "a", Timestamp(0)),
            Some(Answers::Rsync)
        );
    }

    #[test]
    fn number_of_cached_logins_is_limited() {
        let top = tempfile::tempdir().unwrap();
        let places = Places {
            config: top.path().to_owned(),
            state: top.path().to_owned(),
        };
        let login = |n: usize| Login {
            host: n.to_string(),
            answers: Answers::Rsync,
            until: Timestamp(100),
        };
        let many = Logins {
            logins: (0..LOGINS_MAX).map(login).collect(),
        };
        Logins::change(&places, |list| *list = many).unwrap();
        Logins::remember(&places, "new", Some(Answers::Rsync), Timestamp(1)).unwrap();
        let logins = Logins::load(&places).unwrap().logins;
        assert_eq!(
            (
                logins.len(),
                &*logins[0].host,
                &*logins[LOGINS_MAX - 1].host
            ),
            (LOGINS_MAX, "1", "new")
        );
    }
}

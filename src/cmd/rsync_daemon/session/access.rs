//! Who may use a module: hosts, the number of connections, and authentication.

use super::peer::{DaemonPeer, forward};
use super::{DaemonConnection, Refusal, refuse, refuse_unknown};
use crate::cmd::rsync_daemon::policy::access;
use crate::cmd::rsync_daemon::policy::auth::{self, AuthAccess, AuthResponse, SecretsStat};
use crate::cmd::rsync_daemon::policy::params::{Param, Values};
use crate::fs::{ids, sys, trusted_path};
use crate::options::LinkOwners;
use crate::proto::rsync::daemon::{
    AuthDigest, DaemonGreeting, DaemonLine, parse_credentials, read_line,
};
use crate::report::event::errno_words;
use crate::work::clock::Since;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The most bytes of a secrets file.
const SECRETS_MAX_BYTES: usize = 16 << 20;

/// How long it takes from the answer of a client to the report that the authentication has failed.
const FAILURE_TAKES: Duration = Duration::from_millis(100);

/// The bytes of the lock file for each connection, as in rsync.
const LOCK_BYTES: i64 = 4;

impl DaemonConnection<'_> {
    /// Checks `hosts allow` and `hosts deny`.
    pub(super) fn check_host(
        &self,
        values: &Values,
        name: &[u8],
        peer: &DaemonPeer,
    ) -> Result<(), Refusal> {
        let allow = self.text(values, Param::HostsAllow);
        let deny = self.text(values, Param::HostsDeny);
        let lookup: Option<access::ForwardLookup<'_>> = if values.flag(Param::ForwardLookup) {
            Some(&forward)
        } else {
            None
        };
        if !access::is_allowed(
            &peer.host,
            allow.as_deref(),
            deny.as_deref(),
            lookup,
            &|line| self.log.put(line),
        ) {
            self.log.put(
                &[
                    b"rsync denied on module ",
                    name,
                    b" from ",
                    &peer.shown()[..],
                ]
                .concat(),
            );
            if !values.flag(Param::List) {
                return refuse_unknown(name);
            }
            return refuse([b"access denied to ", name, b" from ", &peer.shown()[..]].concat());
        }
        Ok(())
    }

    /// Counts the connection for `max connections`.
    pub(super) fn claim_connection(&self, values: &Values) -> Result<(), Refusal> {
        let max = values.number(Param::MaxConnections);
        let reached = || {
            self.log
                .put(format!("max connections ({max}) reached").as_bytes());
            refuse(format!(
                "max connections ({max}) reached -- try again later"
            ))
        };
        if max < 0 {
            return reached();
        }
        if max == 0 {
            return Ok(());
        }
        let Some(path) = self.text(values, Param::LockFile) else {
            return Ok(());
        };
        let opened = trusted_path::open_lock(&path, 0o600, LinkOwners::Trusted);
        let file = match opened {
            Ok(file) => file,
            Err(error) => {
                let start = b"rsync: [Receiver] failed to open lock file ".as_slice();
                self.log
                    .put(&[start, &path, b": ", &errno_words(&error)].concat());
                return refuse("failed to open lock file");
            }
        };
        for slot in 0..i64::from(max) {
            if sys::try_lock_range(file.as_fd(), slot * LOCK_BYTES, LOCK_BYTES)? {
                // The lock lasts as long as this process.
                std::mem::forget(file);
                return Ok(());
            }
        }
        reached()
    }

    /// Returns the user, empty without authentication, and its access.
    pub(super) fn authenticate(
        &mut self,
        values: &Values,
        name: &[u8],
        theirs: &DaemonGreeting,
        protocol: u8,
        peer: &DaemonPeer,
    ) -> Result<(Vec<u8>, AuthAccess), Refusal> {
        let Some(users) = self.text(values, Param::AuthUsers) else {
            return Ok((Vec::new(), AuthAccess::Unchanged));
        };
        let mut answered = Since::now();
        let denied = |connection: &Self, answered: Since, user: Option<&[u8]>, why: &[u8]| {
            let by = user
                .map(|user| [b" for ".as_slice(), user].concat())
                .unwrap_or_default();
            let start = [
                b"auth failed on module ",
                name,
                b" from ",
                &peer.shown()[..],
            ]
            .concat();
            connection.log.put(&[&start[..], &by, b": ", why].concat());
            // The time shows neither which users there are nor which rules they have.
            std::thread::sleep(FAILURE_TAKES.saturating_sub(answered.elapsed()));
            refuse([b"auth failed on module ", name].concat())
        };
        let ours = DaemonGreeting::ours(protocol).digests.unwrap_or_default();
        // Each side prefers its own first digest; all lists have the same order.
        let Some(digest) = AuthDigest::choose(Some(&ours), theirs.digests.as_deref(), protocol)
        else {
            return refuse(
                [
                    b"your client does not support one of our daemon-auth checksums: ",
                    &ours[..],
                ]
                .concat(),
            );
        };
        if let Some(floor) = self.text(values, Param::AuthDigest)
            && let Err(why) = auth::check_digest(&floor, digest)
        {
            return denied(self, answered, None, &why);
        }
        let challenge = digest.challenge(&sys::random::<32>());
        self.send(&DaemonLine::AuthRequired(challenge.clone()).line())?;
        let line = match read_line(&mut self.input) {
            Err(error) if self.input.has_timed_out || self.env.stop.load(Ordering::Relaxed) => {
                return Err(error.into());
            }
            // A client that leaves has failed, too: the log shows attempts.
            line => line.unwrap_or_default(),
        };
        answered = Since::now();
        let Some((user, response)) = parse_credentials(&line) else {
            return denied(self, answered, None, b"invalid challenge response");
        };
        let rule = match auth::rule_of(&users, user, &ids::group_names_of) {
            Ok(rule) => rule,
            Err(why) => return denied(self, answered, Some(user), &why),
        };
        let Some(file) = self.text(values, Param::SecretsFile) else {
            return denied(self, answered, Some(user), b"no secrets file");
        };
        let read = trusted_path::open_regular(&file, LinkOwners::Trusted)
            .and_then(|file| Ok((sys::fstat(file.as_fd())?, file)));
        let (stat, opened) = match read {
            Ok(read) => read,
            Err(error) if trusted_path::is_refused(&error) => {
                self.log.put(trusted_path::REFUSAL);
                return denied(self, answered, Some(user), b"no secrets file");
            }
            Err(error) => {
                let start = b"rsync: [Receiver] failed to open secrets file ".as_slice();
                self.log
                    .put(&[start, &file, b": ", &errno_words(&error)].concat());
                return denied(self, answered, Some(user), b"no secrets file");
            }
        };
        let strict = auth::check_strict(
            SecretsStat {
                mode: stat.mode,
                uid: stat.uid,
            },
            sys::ids().0 == 0,
        );
        if let Err(why) = strict
            && values.flag(Param::StrictModes)
        {
            self.log.put(why.as_bytes());
            return denied(self, answered, Some(user), b"ignoring secrets file");
        }
        let secrets = sys::read_to_end(opened.as_fd(), SECRETS_MAX_BYTES).unwrap_or_default();
        let answer = AuthResponse {
            user,
            digest,
            challenge: &challenge,
            response,
        };
        if let Err(why) = answer.check(&secrets, rule.group.as_deref()) {
            return denied(self, answered, Some(user), why.as_bytes());
        }
        Ok((user.to_vec(), rule.access))
    }
}

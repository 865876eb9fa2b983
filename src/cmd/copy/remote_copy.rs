//! What is known of a copy to or from another machine before it runs: what the command line says.

use super::batch::WrittenBatch;
use super::route;
use crate::cli::subcommand::is_ours;
use crate::cli::{Far, RemoteOperand, server_args};
use crate::digest;
use crate::env::Env;
use crate::options::Options;
use crate::proto::PLACE_BYTES;
use crate::rsync::{self, daemon};
use crate::transport::link::Patience;
use crate::trust::notices::Notices;
use crate::trust::paths::Places;
use crate::trust::peers::Peer;
use crate::trust::timestamp::Timestamp;
use crate::walk::arg_path::rooted;
use crate::work::clock;
use parking_lot::Mutex;
use std::io::Write;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

/// A remote copy as the command line describes it.
pub struct RemoteCopy {
    /// The settled options.
    pub options: Options,
    /// The operands before the last one.
    pub sources: Vec<Vec<u8>>,
    /// The last operand; `None` in a listing.
    pub dest: Option<Vec<u8>>,
    /// The remote operand.
    pub far: Far,
    /// See [`Client::key`](crate::native::client::NativeClient::key).
    pub key: [u8; 16],
    /// The chosen route, with the reason for it; `None`: a remote shell, because the host is not enrolled.
    pub route: Mutex<Option<String>>,
    /// The batch file that this run writes.
    pub written: Option<WrittenBatch>,
}

impl RemoteCopy {
    /// Returns the role of this process, under the name that rsync's client uses before it forks.
    pub fn role(&self) -> &'static str {
        RemoteOperand::role(Some(&self.far.operand))
    }

    /// Sets the part of the key that is the same in all runs that copy to the same place.
    pub fn name_place(&mut self, env: &Env) {
        let mut place = self.far_paths().join(&0);
        if self.far.operand.server_sends {
            place.extend([&[0], &env.cwd[..], &[0]].concat());
            place.extend(self.dest.as_deref().unwrap_or_default());
        }
        self.key[..PLACE_BYTES].copy_from_slice(&digest::whole(&place)[..PLACE_BYTES]);
    }

    /// Returns the operands that are on the other machine.
    pub fn far_paths(&self) -> &[Vec<u8>] {
        if self.far.operand.server_sends {
            &self.sources
        } else {
            self.dest.as_slice()
        }
    }

    /// Returns the timeouts of this run's links.
    pub fn patience(&self, env: &Env) -> Patience {
        let secs = u64::from(self.options.connect.timeout_secs);
        let idle = (secs > 0).then(|| Duration::from_secs(secs));
        Patience {
            stop: env.stop.clone(),
            ..Patience::of_a_copy(idle)
        }
    }

    /// Returns whether the source is only listed.
    pub fn lists_only(&self) -> bool {
        self.dest.is_none() || self.options.select.list_only
    }

    /// Records the chosen route and the reason for it, and prints both under `-vv`.
    pub fn print_route(&self, env: &mut Env, route: &str) {
        *self.route.lock() = Some(route.to_owned());
        if self.prints_route() {
            // A lost notice does not affect the copy.
            let _ = writeln!(
                env.stderr,
                "sparsync: {}: using {route}",
                route::named(&self.far.operand)
            );
        }
    }

    /// Records that a remote shell replaces the server. Prints this with the reason and advice under `-vv`, and also if the
    /// copy may then do more than its grant permits. On a terminal, `sparsync` prints a short form once a day: the run
    /// works, but not as it was set up.
    pub fn print_fallback(&self, env: &mut Env, peer: &Peer, why: &str, hint: &str) {
        let route = format!("a remote shell: {why}");
        let host = route::named(&self.far.operand);
        let is_quiet = self.options.output.quiet;
        if self.prints_route() || peer.is_limited && !is_quiet {
            // A lost notice does not affect the copy.
            let _ = writeln!(env.stderr, "sparsync: {host}: using {route}\nhint: {hint}");
        } else if !is_quiet && env.stderr_is_tty && is_ours(env.program.as_bytes()) {
            let now = Timestamp(clock::now_unix().0);
            if Places::from_env(env).is_ok_and(|places| Notices::is_due(&places, &peer.name, now)) {
                let advice = format!("for advice run `sparsync doctor {host}`");
                let _ = writeln!(env.stderr, "sparsync: {host}: using {route}; {advice}");
            }
        }
        *self.route.lock() = Some(route);
    }

    /// Records that the server denies access, so that a remote shell is the route. Prints this with the reason unless the run
    /// is quiet, because over ssh the copy may do more than its grant permits.
    pub fn print_denied(&self, env: &mut Env, why: &str) {
        let host = route::named(&self.far.operand);
        *self.route.lock() = Some("a remote shell: its server denies access".to_owned());
        if !self.options.output.quiet {
            // A lost notice does not affect the copy.
            let _ = writeln!(
                env.stderr,
                "sparsync: {host}: using a remote shell: its server denies access: {why}"
            );
        }
    }

    /// Returns the options of the server for a session in rsync's protocol.
    pub fn rsync_words(&self) -> Vec<Vec<u8>> {
        let mut words = self.far.server_words.clone();
        // With an absolute and a relative path, the sender may have one directory in its list as two.
        let absolute = rooted(&self.sources).len();
        let is_mixed = absolute > 0 && absolute < self.sources.len();
        let is_mixed = is_mixed && self.far.operand.server_sends && self.options.select.relative;
        let takes_whole =
            is_mixed || rsync::needs_whole_list(&self.options, self.far.operand.server_sends);
        if takes_whole && let Some(letters) = words.first_mut() {
            server_args::take_list_whole(letters);
        }
        words
    }

    /// Returns the source arguments as a stock sender sees them: without the module of a daemon.
    pub fn sources_at_sender(&self) -> Vec<Vec<u8>> {
        if self.far.operand.daemon.is_none() || !self.far.operand.server_sends {
            return self.sources.clone();
        }
        let Some(first) = self.sources.first() else {
            return Vec::new();
        };
        let module = daemon::split_path(first).0;
        self.sources
            .iter()
            .map(|path| daemon::path_in_module(path, module))
            .collect()
    }

    /// Returns whether the chosen route is printed.
    pub fn prints_route(&self) -> bool {
        let output = &self.options.output;
        output.verbose >= 2 && !output.quiet
    }
}

//! A copy between this machine and another one: the client's end.
//!
//! The other machine is reached through a remote shell or a sparsync server ([`route`](super::route) decides). If sparsync answers,
//! the two run a native session. If a stock rsync answers, this program runs the session in rsync's protocol.

mod client_end;
mod converse;
mod open;
mod prefetch;
mod reach;
mod session_transport;

use self::open::{OpenedLink, OpenedSession};
use self::reach::{Reached, ReachedProgram};
use self::session_transport::SessionTransport;
use super::remote_copy::RemoteCopy;
use super::via_daemon::ReachedDaemon;
use super::{batch, live_display, via_daemon};
use crate::cli;
use crate::cmd::command_end::fail;
use crate::cmd::{command_end, copy};
use crate::digest::Comparison;
use crate::env::Env;
use crate::error::Error;
use crate::exit::Exit;
use crate::fs::{charset, sys};
use crate::native::dest_prescan::Guess;
use crate::native::dir_digest::SourceDigester;
use crate::native::early_scan::EarlyScan;
use crate::native::shortcuts::Shortcuts;
use crate::options::{ArgStyle, Batch};
use crate::proto::rsync::batch::BatchHeader;
use crate::report::event::Wants;
use crate::rsync::batch::player::BatchFile;
use crate::session::source_prefetch::{EARLY_IS_GOOD_FOR, ListingDigester, PrefetchParams};
use crate::walk::run_context::{Process, RunContext};
use crate::work::clock::Since;
use parking_lot::Mutex;

/// Runs a copy between this machine and another one.
pub fn run(env: &mut Env, wanted: cli::Copy) -> Exit {
    let since = Since::now();
    let cli::Copy {
        mut options,
        sources,
        dest,
        far,
        guard: _,
    } = wanted;
    live_display::settle(env, &mut options, dest.is_none());
    copy::settle_checksum_cache(env, &mut options);
    let opened = match options.batch.clone() {
        Some(Batch::Read(name)) => {
            batch::open(env, &name, &mut options).map(|batch| (Some(batch), None))
        }
        Some(Batch::Write { path, only }) => {
            batch::create(env, &path, only, &options).map(|batch| (None, Some(batch)))
        }
        None => Ok((None, None)),
    };
    let (batch, written) = match opened {
        Ok(opened) => opened,
        Err(error) => return fail(env, &error),
    };
    let Some(far) = far else {
        return fail(
            env,
            &Error::new(
                Exit::Crashed,
                "sparsync: internal error: remote copy without a remote host",
            ),
        );
    };
    // The remote shell inherits this limit, and some programs walk through every descriptor that they could have open.
    sys::lift_open_files(OPEN_FILES_BESIDE_SHELL);
    let role = cli::RemoteOperand::role(Some(&far.operand));
    if let Err(error) = copy::set_charset(&options, role) {
        return fail(env, &error);
    }
    if let Some(charset) = charset::of_names()
        && options.connect.args == ArgStyle::Secluded
    {
        charset.convert_lists();
    }
    let mut near = RemoteCopy {
        options,
        sources,
        dest,
        far,
        key: sys::random(),
        route: Mutex::default(),
        written,
    };
    near.name_place(env);
    if let Some(batch) = batch {
        return near.copy_from_batch(env, batch, since);
    }
    if let Some(port) = near.far.operand.daemon {
        if near.far.operand.server_sends {
            // A sender prints the matches. A daemon usually forbids that.
            near.options.output.debug.deltasum = 0;
        }
        return near.copy_with_daemon(env, port, since);
    }
    let Some(rules) = near.prefetch_rules(env) else {
        return near.copy(env, None, since);
    };
    let cwd = env.cwd.clone();
    let stop = env.stop.clone();
    let stop_requested = env.stop_requested.clone();
    let checksum_cache = env.checksum_cache.clone();
    let explainer = env.explainer.clone();
    let run_context = RunContext {
        options: &near.options,
        rules: &rules,
        process: Process {
            cwd: &cwd,
            umask: env.umask,
            stop: &stop,
            threads: copy::threads(),
            checksum_cache: Some(&checksum_cache),
            stored: None,
            explainer: explainer.as_deref(),
        },
        repeats: false,
        interrupted: &stop_requested,
        gauge: None,
    };
    let key = near.key;
    let ended = match near.guess(env) {
        None if near.far.operand.server_sends => Ok(near.copy(env, None, since)),
        None => {
            let compared_by = Comparison::keyed_plain(&key);
            let digester = SourceDigester {
                key,
                options: &near.options,
            };
            let compares = Shortcuts::for_run(&near.options, Wants::default()).compare;
            let digester: Option<&dyn ListingDigester> =
                if compares { Some(&digester) } else { None };
            let is_super = near.is_likely_super();
            let params = PrefetchParams {
                // Those of a sparsync at the other end.
                compared_by: Some(&compared_by),
                ..PrefetchParams::early(run_context, &near.sources, digester, is_super)
            };
            params
                .look(|prefetch| near.copy(env, Some(EarlyScan::Source(Box::new(prefetch))), since))
        }
        Some((whole, dest)) => {
            let guess = Guess {
                run_context,
                dest,
                whole,
                key,
                good_for: EARLY_IS_GOOD_FOR,
            };
            guess.look(|prescan| near.copy(env, prescan.map(EarlyScan::Dest), since))
        }
    };
    ended.unwrap_or_else(|error| fail(env, &error))
}

/// The most files that a run may have open beside a remote shell. Each directory that holds an argument takes one.
const OPEN_FILES_BESIDE_SHELL: u64 = 1 << 16;

impl RemoteCopy {
    /// Runs the copy. `early`: the prefetch of the local tree, if one is running.
    fn copy(&self, env: &mut Env, early: Option<EarlyScan<'_>>, since: Since) -> Exit {
        if let Err(error) = copy::start_deadline(env, &self.options) {
            return fail(env, &error);
        }
        let mut prepared = None;
        let reached = self.reach(env, &mut prepared, early.as_ref());
        match reached.and_then(|reached| self.begin(env, reached, prepared, early.as_ref())) {
            Ok(begun) => self.converse(env, begun, early, since),
            Err(error) => fail(env, &error),
        }
    }

    /// Copies with a daemon, or prints the list of its modules. `port`: see [`RemoteOperand::daemon`](cli::RemoteOperand::daemon).
    fn copy_with_daemon(&self, env: &mut Env, port: i32, since: Since) -> Exit {
        let prepared = copy::start_deadline(env, &self.options)
            .and_then(|()| copy::prepare(env, &self.options, self.far.operand.server_sends));
        let reached =
            prepared.and_then(|prepared| Ok((prepared, via_daemon::reach(self, env, port)?)));
        match reached {
            Ok((
                prepared,
                Some(ReachedDaemon {
                    shell,
                    link,
                    rsync_protocol,
                }),
            )) => {
                let transport = shell.map_or(SessionTransport::Daemon, SessionTransport::Shell);
                let rsync = rsync_protocol.map(|protocol| ReachedProgram::Rsync(Some(protocol)));
                let reached = Reached {
                    transport,
                    link,
                    program: rsync.unwrap_or(ReachedProgram::Native(None)),
                };
                let (transport, opened) = self.open(env, reached, &prepared, None);
                self.converse(
                    env,
                    OpenedSession {
                        transport,
                        prepared,
                        opened,
                    },
                    None,
                    since,
                )
            }
            Ok((_, None)) => {
                command_end::put_end(env, b"", Exit::Ok, self.role());
                Exit::Ok
            }
            Err(error) => fail(env, &error),
        }
    }

    /// Copies from a batch file.
    fn copy_from_batch(
        &self,
        env: &mut Env,
        batch: (BatchFile, BatchHeader),
        since: Since,
    ) -> Exit {
        let prepared = copy::start_deadline(env, &self.options).and_then(|()| {
            copy::handle_signals(env)?;
            let prepared = copy::prepare(env, &self.options, false)?;
            copy::copy_as(&self.options, self.role())?;
            Ok(prepared)
        });
        match prepared {
            Ok(prepared) => {
                let opened = OpenedLink::Batch(Box::new(batch));
                self.converse(
                    env,
                    OpenedSession {
                        transport: SessionTransport::Batch,
                        prepared,
                        opened,
                    },
                    None,
                    since,
                )
            }
            Err(error) => fail(env, &error.by(self.role())),
        }
    }
}

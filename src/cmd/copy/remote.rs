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
use crate::filter::Rules;
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
    match prepare_and_copy(env, wanted) {
        Ok(exit) => exit,
        Err(error) => fail(env, &error),
    }
}

fn prepare_and_copy(env: &mut Env, wanted: cli::Copy) -> Result<Exit, Error> {
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
    let mut read_batch = None;
    let mut written_batch = None;
    match options.batch.clone() {
        Some(Batch::Read(name)) => read_batch = Some(batch::open(env, &name, &mut options)?),
        Some(Batch::Write { path, only }) => {
            written_batch = Some(batch::create(env, &path, only, &options)?);
        }
        None => {}
    }
    let Some(far) = far else {
        let words = "sparsync: internal error: remote copy without a remote host";
        return Err(Error::new(Exit::Crashed, words));
    };
    // The remote shell inherits this limit, and some programs walk through every descriptor that they could have open.
    sys::lift_open_files(OPEN_FILES_BESIDE_SHELL);
    let role = cli::RemoteOperand::role(Some(&far.operand));
    copy::set_charset(&options, role)?;
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
        written: written_batch,
    };
    near.name_place(env);
    if let Some(batch) = read_batch {
        return Ok(near.copy_from_batch(env, batch, since));
    }
    if let Some(port) = near.far.operand.daemon {
        if near.far.operand.server_sends {
            // A sender prints the matches. A daemon usually forbids that.
            near.options.output.debug.deltasum = 0;
        }
        return Ok(near.copy_with_daemon(env, port, since));
    }
    match near.prefetch_rules(env) {
        Some(rules) => near.copy_with_early_scan(env, &rules, since),
        None => Ok(near.copy(env, None, since)),
    }
}

/// The most files that a run may have open beside a remote shell. Each directory that holds an argument takes one.
const OPEN_FILES_BESIDE_SHELL: u64 = 1 << 16;

impl RemoteCopy {
    /// Runs the copy, and scans the tree on this machine while the client still connects.
    fn copy_with_early_scan(
        &self,
        env: &mut Env,
        rules: &Rules,
        since: Since,
    ) -> Result<Exit, Error> {
        let cwd = env.cwd.clone();
        let stop = env.stop.clone();
        let stop_requested = env.stop_requested.clone();
        let checksum_cache = env.checksum_cache.clone();
        let explainer = env.explainer.clone();
        let run_context = RunContext {
            options: &self.options,
            rules,
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
        let key = self.key;
        if self.far.operand.server_sends {
            let Some((whole, dest)) = self.guess(env) else {
                return Ok(self.copy(env, None, since));
            };
            let guess = Guess {
                run_context,
                dest,
                whole,
                key,
                good_for: EARLY_IS_GOOD_FOR,
            };
            return guess
                .with_prescan(|prescan| self.copy(env, prescan.map(EarlyScan::Dest), since));
        }

        let compared_by = Comparison::keyed_plain(&key);
        let digester = SourceDigester {
            key,
            options: &self.options,
        };
        let compares = Shortcuts::for_run(&self.options, Wants::default()).compare;
        let digester: Option<&dyn ListingDigester> = if compares { Some(&digester) } else { None };
        let is_super = self.is_likely_super();
        let params = PrefetchParams {
            // Those of a sparsync at the other end.
            compared_by: Some(&compared_by),
            ..PrefetchParams::early(run_context, &self.sources, digester, is_super)
        };
        params.with_prefetch(|prefetch| {
            self.copy(env, Some(EarlyScan::Source(Box::new(prefetch))), since)
        })
    }

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

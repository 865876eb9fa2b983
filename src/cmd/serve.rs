//! The far end of a copy: a client of ours speaks on standard input and hears standard output.

use super::{copy, fail, rules};
use crate::cli;
use crate::env::Env;
use crate::error::Error;
use crate::exit::Exit;
use crate::fs::{glob, sys};
use crate::options::FilesFrom;
use crate::proto::Setup;
use crate::role::session::{self, Settled};
use crate::role::source::listed_names;
use crate::transport::link::{Parting, Patience};
use crate::transport::stdio;
use crate::work::clock;
use std::io;
use std::time::Duration;

/// Serves one client to its end.
pub fn run(env: &mut Env, asked: cli::Serve) -> Exit {
    let secs = u64::from(asked.timeout_secs);
    let idle = (secs > 0).then(|| Duration::from_secs(secs));
    let patience = Patience { idle, stop: env.stop.clone(), parting: Parting::default() };
    let link = match env.hear_signals().and_then(|()| stdio::link(patience)) {
        Ok(link) => link,
        Err(error) => return fail(env, &cannot_serve(&error)),
    };
    sys::share_memory_pools();
    sys::lift_open_files();
    let settle = |setup: &Setup| settle(setup, &asked, env);
    session::serve(link, &env.cwd, env.umask, &env.stop, copy::threads(), &settle)
}

fn cannot_serve(error: &io::Error) -> Error {
    Error::new(Exit::Ipc, format!("sparsync: cannot speak to the client: {error}"))
}

/// Makes of a client's words what they mean here, if its command line asked for the same: somebody may have approved
/// that (a forced command), and nobody the session.
fn settle(setup: &Setup, asked: &cli::Serve, env: &Env) -> Result<Settled, Error> {
    let refuse = |words: &str| Err(Error::new(Exit::Protocol, format!("sparsync: the session asks for {words}")));
    if setup.server_sends != asked.sends {
        return refuse("the other direction than the command line of this server");
    }
    if !setup.operands.is_empty() && !asked.operands.is_empty() {
        return refuse("other paths than the command line of this server");
    }
    let options = cli::settle(&setup.words, &setup.remote_words, env.umask, clock::now_unix().0)?;
    let read =
        rules::Read { parsed: setup.rules.clone(), cvs_home: setup.cvs_home.clone(), cvs_env: setup.cvs_env.clone() };
    let rules = read.rules(&options);
    let operands = match setup.operands.as_slice() {
        // A listing has a destination on the command line alone.
        _ if options.select.list_only && !asked.sends => Vec::new(),
        [] => asked.operands.clone(),
        // No shell has seen these.
        operands => operands.iter().flat_map(|path| glob::expand(path)).collect(),
    };
    let listed = match (&setup.listed, &options.select.files_from) {
        (Some(listed), _) => Some(listed.clone()),
        (None, Some(from @ FilesFrom::File(_))) => {
            Some(listed_names(&rules::files_from(env, from)?, options.select.from0, true))
        }
        (None, _) => None,
    };
    Ok(Settled { options, rules, operands, listed })
}

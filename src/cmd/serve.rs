//! The far end of a copy: a client of ours speaks on standard input and hears standard output.

use super::{copy, fail, rules};
use crate::cli;
use crate::env::Env;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::Rules;
use crate::fs::sys;
use crate::options::Options;
use crate::proto::Setup;
use crate::role::session;
use crate::transport::link::Patience;
use crate::transport::stdio;
use crate::work::clock;
use std::io;
use std::time::Duration;

/// Serves one client to its end.
pub fn run(env: &mut Env, asked: cli::Serve) -> Exit {
    let secs = u64::from(asked.timeout_secs);
    let patience = Patience { idle: (secs > 0).then(|| Duration::from_secs(secs)), stop: env.stop.clone() };
    let link = match env.hear_signals().and_then(|()| stdio::link(patience)) {
        Ok(link) => link,
        Err(error) => return fail(env, &cannot_serve(&error)),
    };
    sys::share_memory_pools();
    sys::lift_open_files();
    let settle = |setup: &Setup| settle(setup, asked.sends, env.umask);
    session::serve(link, &env.cwd, env.umask, &env.stop, copy::threads(), asked.operands.clone(), &settle)
}

fn cannot_serve(error: &io::Error) -> Error {
    Error::new(Exit::Ipc, format!("sparsync: cannot speak to the client: {error}"))
}

/// Makes options and rules of what a client asks for, if its command line asked for the same.
fn settle(setup: &Setup, sends: bool, umask: u32) -> Result<(Options, Rules), Error> {
    if setup.server_sends != sends {
        // The command line may have been approved by somebody (a forced command); the session was not.
        let words = "sparsync: the session asks for the other direction than the command line of this server";
        return Err(Error::new(Exit::Protocol, words));
    }
    let options = cli::settle(&setup.words, &setup.remote_words, umask, clock::now_unix().0)?;
    let read =
        rules::Read { parsed: setup.rules.clone(), cvs_home: setup.cvs_home.clone(), cvs_env: setup.cvs_env.clone() };
    let rules = read.rules(&options);
    Ok((options, rules))
}

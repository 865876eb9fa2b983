//! Entry points of the program: reads the command line and runs the command that it names.

mod control_socket;
mod copy;
mod daemon;
mod enroll;
mod ephemeral_server;
mod exec_rsync;
mod input_files;
mod memory_limit;
mod port_owner;
mod proxy;
mod reconnect;
mod remote;
mod route;
mod sd_notify;
mod server_cli;
mod server_log;
mod server_session;
mod shell_keepalive;
mod systemd_unit;
mod via_ephemeral;
mod via_server;
mod via_shell;

use crate::cli::subcommand::{self, Verb};
use crate::cli::{self, Invocation, Request};
use crate::env::Env;
use crate::error::Error;
use crate::exit::Exit;
use crate::report::event::errno_words;
use crate::report::final_error;
use crate::work::clock;
use std::io::Write;

/// The most files that a process may have open if it starts no program of the user.
const OPEN_FILES_MAX: u64 = 1 << 20;

/// Runs the command line and returns the exit code. All output has been written when it returns.
pub fn run(env: &mut Env) -> Exit {
    env.outlive_file_limits();
    let popt = input_files::popt_files(env);
    let vars = |name: &str| env.var(name);
    let args = env.args.clone();
    let program = env.program.clone();
    let call = Invocation {
        program: &program,
        args: &args,
        vars: &vars,
        now_unix_secs: clock::now_unix().0,
        umask: env.umask,
        popt: &popt,
        native_shell: remote::is_native(env),
    };
    let ended = match cli::read(&call) {
        Ok(Request::Copy(wanted)) => match &env.no_cwd {
            Some(error) if wanted.names_from_here() => {
                let words = [b"rsync: [Receiver] getcwd(): ".as_slice(), &errno_words(error)].concat();
                Err(Error::new(Exit::FileSelect, words).by("Receiver"))
            }
            _ if wanted.far.is_some() => return remote::run(env, *wanted),
            _ => return copy::run(env, *wanted),
        },
        Ok(Request::Verb(Verb::Help(page))) => say(&mut env.stdout, page.text(cli::help_text).as_bytes()),
        Ok(Request::Verb(Verb::Server(server))) => return server_cli::run(env, *server),
        Ok(Request::Verb(Verb::Enroll(wanted))) => enroll::run(env, &wanted),
        Ok(Request::Help) => say(&mut env.stdout, cli::help_text().as_bytes()),
        Ok(Request::Version { json: true }) => say(&mut env.stdout, cli::rsync_version_json().as_bytes()),
        Ok(Request::Version { json: false }) => say(&mut env.stdout, cli::version_text().as_bytes()),
        Ok(Request::Print(text)) => say(&mut env.stdout, text.as_bytes()),
        Ok(Request::Serve(asked)) => return server_session::run(env, asked),
        Ok(Request::Handover(error)) => exec_rsync::run(env).map_err(|none| match error {
            // The installed rsync could do what is not supported here: add the hint that none was found.
            Some(error) => Error { hint: none.hint, ..error },
            None => none,
        }),
        Ok(Request::NoArgs { role }) => {
            let _ = env.stderr.write_all(cli::overview().as_bytes());
            Err(Error::usage("").by(role))
        }
        Err(error) => Err(error),
    };
    match ended {
        Ok(()) => Exit::Ok,
        Err(error) => fail(env, &error),
    }
}

fn say(out: &mut dyn Write, text: &[u8]) -> Result<(), Error> {
    out.write_all(text).and_then(|()| out.flush()).map_err(|error| {
        let words = errno_words(&error);
        Error::new(Exit::FileIo, [b"rsync: could not write to standard output: ".as_slice(), &words].concat())
    })
}

/// Returns the error of a run that the deadline of `--stop-after` or `--stop-at` has stopped, in place of that of a signal;
/// `None` if the deadline has not passed.
fn by_deadline(env: &Env) -> Option<Error> {
    let is_over = env.timed_out.load(std::sync::atomic::Ordering::SeqCst);
    is_over.then(|| Error::new(Exit::Timeout, "stopping at requested limit").by("sender"))
}

/// Prints the error that ended the run, followed by rsync's closing line. Subcommands print no closing line: rsync has
/// none of them.
fn fail(env: &mut Env, error: &Error) -> Exit {
    let by_deadline = by_deadline(env).filter(|_| error.exit == Exit::Signal);
    let error = by_deadline.as_ref().unwrap_or(error);
    let mut text = error.message.clone();
    if !text.is_empty() && !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    text.extend(error.hint_line().into_iter().flat_map(|line| format!("{line}\n").into_bytes()));
    if !subcommand::is_one(&env.program, &env.args) {
        text.extend_from_slice(&final_error::error_line(error.exit, error.role));
    }
    if !text.is_empty() && !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    let _ = env.stderr.write_all(&text);
    error.exit
}

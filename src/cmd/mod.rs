//! Entry points of the program: reads the command line and runs the command that it names.

mod bench;
mod cache;
mod check;
mod command_end;
mod copy;
mod dir_counts;
mod doctor;
mod enroll;
mod exec_rsync;
mod explain;
mod hash;
mod input_files;
mod metrics_file;
mod new_file;
mod plan;
mod remote_side;
mod rsync_daemon;
mod server;
mod shell_keepalive;

use self::command_end::{fail, write_text};
use self::copy::failed_list::FailedList;
use self::copy::guard::deletions::{COUNT_DELETIONS, COUNTING};
use self::metrics_file::MetricsFile;
use self::remote_side::{rsync_client, sparsync_client};
use crate::cli::subcommand::{self, Verb};
use crate::cli::{self, Invocation, Request};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::sys;
use crate::options::Options;
use crate::options::output::Ui;
use crate::report::event::errno_words;
use crate::work::clock::{self, Since};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// Runs the command line and returns the exit code. All output has been written when it returns.
pub fn run(env: &mut Env) -> Exit {
    env.outlive_signals();
    let counts_deletions = env.args.first().is_some_and(|word| word == COUNT_DELETIONS);
    if counts_deletions {
        env.args.remove(0);
    }
    let popt = input_files::popt_files(env);
    let args = env.args.clone();
    let program = env.program.clone();
    // A file of that name is copied, as by rsync.
    if let Some(error) = subcommand::mistaken(&program, &args)
        && let Some(first) = args.first()
        && sys::stat_path(first.as_bytes(), false)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    {
        // The exit code reports the error as well.
        let _ = env
            .stderr
            .write_all(&[error.text(), b"\n".to_vec()].concat());
        return error.exit;
    }
    if let Some((verb, error)) = subcommand::shadowed_file(&program, &args)
        && sys::stat_path(verb.as_bytes(), false).is_ok()
    {
        return check::exit_of(fail(env, &error), verb);
    }
    let appended: &[&str] = if counts_deletions { &COUNTING } else { &[] };
    let ended = match read(env, &popt, appended) {
        Ok(Request::Copy(wanted)) => match &env.no_cwd {
            Some(error) if wanted.has_relative_local_path() => {
                let words = [
                    b"rsync: [Receiver] getcwd(): ".as_slice(),
                    &errno_words(error),
                ]
                .concat();
                Err(Error::new(Exit::FileSelect, words).by("Receiver"))
            }
            _ if counts_deletions => return count_deletions(env, *wanted),
            _ => return run_guarded(env, &popt, *wanted),
        },
        Ok(Request::Verb(Verb::Help(page))) => write_text(
            &mut env.stdout,
            cli::subcommand::page(page, cli::help_text).as_bytes(),
        ),
        Ok(Request::Verb(Verb::Server(server))) => return server::run(env, *server),
        Ok(Request::Verb(Verb::Doctor(wanted))) => match doctor::run(env, &wanted) {
            Ok(exit) => return exit,
            Err(error) => Err(error),
        },
        Ok(Request::Verb(Verb::Bench(wanted))) => match bench::run(env, &wanted) {
            Ok(exit) => return exit,
            Err(error) => Err(error),
        },
        Ok(Request::Verb(Verb::Hash(wanted))) => match hash::run(env, &wanted) {
            Ok(exit) => return exit,
            Err(error) => Err(error),
        },
        Ok(Request::Verb(Verb::Cache(wanted))) => match cache::run(env, &wanted) {
            Ok(exit) => return exit,
            Err(error) => Err(error),
        },
        Ok(Request::Verb(Verb::Enroll(wanted))) => enroll::run(env, &wanted),
        Ok(Request::Check(request)) => return check::run(env, request),
        Ok(Request::Plan(request)) => return plan::run(env, request),
        Ok(Request::Apply(request)) => return plan::apply(env, &request),
        Ok(Request::Explain(request)) => {
            return check::exit_of(explain::run(env, request, &run_copy), "explain");
        }
        Ok(Request::Help) => write_text(&mut env.stdout, cli::help_text().as_bytes()),
        Ok(Request::Version { json: true }) => {
            write_text(&mut env.stdout, cli::rsync_version_json().as_bytes())
        }
        Ok(Request::Version { json: false }) => {
            write_text(&mut env.stdout, cli::version_text().as_bytes())
        }
        Ok(Request::Print(text)) => write_text(&mut env.stdout, text.as_bytes()),
        Ok(Request::Serve(serve)) => return sparsync_client::run(env, serve),
        Ok(Request::ServeRsync(request)) => return rsync_client::run(env, *request),
        Ok(Request::Daemon(args)) => return rsync_daemon::run(env, args),
        Ok(Request::Unsupported(error)) => Err(exec_rsync::run_instead(env, error)),
        Ok(Request::NoArgs { role }) => {
            // The exit code reports the error as well.
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

/// Reads the command line of this process. `appended`: options that take effect after those of the user.
fn read(env: &Env, popt: &[u8], appended: &[&str]) -> Result<Request> {
    let vars = |name: &str| env.var(name);
    let appended: Vec<OsString> = appended.iter().map(OsString::from).collect();
    cli::read(&Invocation {
        program: &env.program,
        args: &env.args,
        appended: &appended,
        vars: &vars,
        now_unix_secs: clock::now_unix().0,
        umask: env.umask,
        popt,
    })
}

/// Runs a copy for another process of this program, which reads the counts. Other files and streams stay untouched.
fn count_deletions(env: &mut Env, mut wanted: cli::Copy) -> Exit {
    let output = &mut wanted.options.output;
    output.log_file = None;
    output.metrics_file = None;
    output.failed_list = None;
    output.ui = Ui::Off;
    run_copy(env, wanted)
}

/// Runs a copy if everything holds that must hold before it changes anything.
fn run_guarded(env: &mut Env, popt: &[u8], wanted: cli::Copy) -> Exit {
    let admitted = match copy::guard::admit(env, &wanted) {
        Ok(admitted) => admitted,
        Err(error) => return fail(env, &error),
    };
    let own_max = wanted.options.delete.max.unwrap_or(u64::MAX);
    let wanted = match admitted.deletions_max {
        // rsync's option holds 32 bits. No run deletes more.
        Some(max) if max < own_max && max <= i32::MAX as u64 => {
            match read(env, popt, &[&format!("--max-delete={max}")]) {
                Ok(Request::Copy(bounded)) => *bounded,
                Ok(_) => unreachable!("the same command line is the same kind of request"),
                Err(error) => return fail(env, &error),
            }
        }
        Some(_) | None => wanted,
    };
    let exit = run_copy(env, wanted);
    drop(admitted.lock);
    exit
}

/// Runs a copy, and writes its metrics and the list of what failed if they are requested.
fn run_copy(env: &mut Env, wanted: cli::Copy) -> Exit {
    let since = Since::now();
    let Options {
        output, preserve, ..
    } = &wanted.options;
    let file = output.metrics_file.clone().map(|path| MetricsFile {
        path,
        owners: preserve.link_owners,
    });
    let failed_list = FailedList::of(&wanted.options);
    let mut exit = if wanted.far.is_some() {
        copy::remote::run(env, wanted)
    } else {
        copy::run(env, wanted)
    };
    let failed_paths = env.failed_paths.lock().take();
    if let (Some(list), Some(paths)) = (failed_list, failed_paths) {
        exit = list.write(env, &paths, exit);
    }
    if let Some(file) = file {
        file.write(env, exit, since);
    }
    exit
}

/// Runs a test in a process of its own, which calls this function again. Returns `true` there, and `false` once that
/// process has passed the test. `name`: the full name of the test.
#[cfg(test)]
fn is_test_alone(name: &str) -> bool {
    const ALONE: &str = "SPARSYNC_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("a running program has a path");
    let output = std::process::Command::new(program)
        .args(["--exact", name])
        .env(ALONE, "1")
        .output();
    let output = output.expect("a program that runs can be started again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
    false
}

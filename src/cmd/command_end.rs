//! The end of a command: its output, or the error that ended it, also before it began.

use crate::cli::{Copy, subcommand};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::report::event::{Weight, errno_words};
use crate::report::{final_error, json};
use serde::Serialize;
use std::io::Write;
use std::sync::atomic::Ordering;

/// Fails if a run has relative paths, and there is no working directory.
pub fn check_cwd(env: &Env, copy: &Copy) -> Result<()> {
    match &env.no_cwd {
        Some(error) if copy.has_relative_local_path() => {
            let words = [
                b"rsync: [Receiver] getcwd(): ".as_slice(),
                &errno_words(error),
            ];
            Err(Error::new(Exit::FileSelect, words.concat()))
        }
        Some(_) | None => Ok(()),
    }
}

/// Prints what the user has asked for.
pub fn write_text(out: &mut dyn Write, text: &[u8]) -> Result<()> {
    out.write_all(text)
        .and_then(|()| out.flush())
        .map_err(|error| {
            let words = errno_words(&error);
            Error::new(
                Exit::FileIo,
                [
                    b"rsync: could not write to standard output: ".as_slice(),
                    &words,
                ]
                .concat(),
            )
        })
}

/// Returns the error of a run that the deadline of `--stop-after` or `--stop-at` has stopped, in place of that of a signal;
/// `None` if the deadline has not passed.
pub fn by_deadline(env: &Env) -> Option<Error> {
    let is_over = env.timed_out.load(Ordering::SeqCst);
    is_over.then(|| Error::new(Exit::Timeout, "stopping at requested limit").by("sender"))
}

/// Prints the error that ended the run, followed by rsync's closing line. Subcommands print no closing line: rsync has
/// none of them.
pub fn fail(env: &mut Env, error: &Error) -> Exit {
    let by_deadline = by_deadline(env);
    let error = match &by_deadline {
        Some(by_deadline) if error.exit == Exit::Signal => by_deadline,
        Some(_) | None => error,
    };
    let mut text = error.message.clone();
    if !text.is_empty() && !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    text.extend(
        error
            .hint_line()
            .into_iter()
            .flat_map(|line| format!("{line}\n").into_bytes()),
    );
    if !subcommand::is_one(&env.program, &env.args) {
        text.extend_from_slice(&final_error::error_line(error.exit, error.role));
    }
    if !text.is_empty() && !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    // The exit code reports the error as well.
    let _ = env.stderr.write_all(&text);
    put_end(env, &error.message, error.exit, error.role);
    error.exit
}

/// Under `--json`, prints each line of `message` as a problem, and the end of a run that had no reporter.
pub fn put_end(env: &mut Env, message: &[u8], exit: Exit, role: &str) {
    if !prints_json(env) {
        return;
    }
    let closing = if subcommand::is_one(&env.program, &env.args) {
        Vec::new()
    } else {
        final_error::error_line(exit, role)
    };
    let mut text = Vec::new();
    for line in message
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        json::put(&mut text, &json::problem(line, Weight::Failed));
    }
    json::put(&mut text, &json::end(exit, &closing));
    // The exit code reports the error as well.
    let _ = env.stdout.write_all(&text);
}

/// Returns whether a run prints JSON. Looks at the words, because the command line may be invalid.
pub fn prints_json(env: &Env) -> bool {
    let has_option = env
        .args
        .iter()
        .take_while(|word| *word != "--")
        .any(|word| word == "--json");
    let is_check = subcommand::check_words(&env.program, &env.args).is_some();
    has_option && (is_check || !subcommand::is_one(&env.program, &env.args))
}

/// Prints a line to standard output.
pub fn print_line(env: &mut Env, line: &str) -> Result<()> {
    write_text(&mut env.stdout, format!("{line}\n").as_bytes())
}

/// Encodes a value as JSON.
pub fn to_json(value: &impl Serialize) -> Result<String> {
    json::text_of(value).map_err(|error| {
        Error::new(
            Exit::Crashed,
            format!("sparsync: cannot encode JSON: {error}"),
        )
    })
}

//! `sparsync check`: compares two trees, or a tree with a manifest.

mod expected_files;
mod manifest_check;
mod manifest_line;

use super::command_end::fail;
use super::run_copy;
use crate::cli::check_command::CheckRequest;
use crate::env::Env;
use crate::exit::Exit;
use crate::report::comparison::WRONG_USAGE;

/// Runs the comparison.
pub fn run(env: &mut Env, request: CheckRequest) -> Exit {
    match request {
        CheckRequest::Manifest(wanted) => match manifest_check::run(env, &wanted) {
            Ok(exit) => exit,
            Err(mut error) => {
                error.exit = exit_of(error.exit, "check");
                fail(env, &error)
            }
        },
        CheckRequest::Trees(dry_run) => exit_of(run_copy(env, *dry_run), "check"),
    }
}

/// Returns the exit code of a command that ended with this one of rsync's: under `check` and `cache`, 1 stands for
/// differences, and `explain` is like them.
pub fn exit_of(exit: Exit, verb: &str) -> Exit {
    if ["check", "cache", "explain"].contains(&verb) && exit == Exit::Usage {
        WRONG_USAGE
    } else {
        exit
    }
}

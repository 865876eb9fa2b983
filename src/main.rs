//! The entry point: creates an `Env` for the process, runs the command and returns its exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    sparsync::env::end_on_panic();
    let mut env = sparsync::env::Env::of_process();
    ExitCode::from(sparsync::cmd::run(&mut env).code())
}

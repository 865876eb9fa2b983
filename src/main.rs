//! The program: makes an `Env` of the process, runs the command, returns its exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    sparsync::env::end_on_panic();
    let mut env = sparsync::env::Env::of_process();
    ExitCode::from(sparsync::cmd::run(&mut env).code())
}

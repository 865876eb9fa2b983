//! Runs a program that must end in time, and returns what it prints.

use crate::env::Env;
use crate::transport::link::Patience;
use crate::transport::shell::{Shell, ShellExit, Stderr};
use crate::work::clock::Since;
use std::io::{self, Read as _};
use std::time::Duration;

/// How long a program or a login may take.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(20);
/// The most output that is read from a program.
const ANSWER_MAX_BYTES: usize = 256 << 10;

/// Runs a program, and ends it after [`ANSWER_MAX`]. Its standard error is printed only if it fails.
pub(super) fn ask(env: &Env, argv: &[Vec<u8>]) -> io::Result<(ShellExit, String)> {
    let mut shell = Shell::start(argv, env.umask, Stderr::Held)?;
    let patience = Patience {
        idle: Some(ANSWER_MAX),
        stop: env.stop.clone(),
        ..Patience::default()
    };
    let mut link = shell.link(&patience)?;
    drop(link.writer);
    let since = Since::now();
    let mut output = Vec::new();
    let mut piece = [0; 4096];
    while since.elapsed() < ANSWER_MAX && output.len() < ANSWER_MAX_BYTES {
        match link.reader.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(count) => output.extend_from_slice(&piece[..count]),
        }
    }
    drop(link.reader);
    let ended = shell.wait(Some(ANSWER_MAX.saturating_sub(since.elapsed())), &env.stop)?;
    if ended != ShellExit::Code(0) {
        shell.show_stderr();
    }
    Ok((ended, String::from_utf8_lossy(&output).into_owned()))
}

pub(super) fn words_of(words: &[&[u8]]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.to_vec()).collect()
}

//! Replaces this process with the rsync that `SPARSYNC_RSYNC` names, for a run that sparsync cannot do.

use super::{command_end, metrics_file};
use crate::env::Env;
use crate::error::Error;
use crate::report::event::errno_words;
use std::ffi::OsString;

/// The variable that names an rsync. Without it, no installed rsync is executed.
const NAMED: &str = "SPARSYNC_RSYNC";
/// The options with a file that only sparsync writes.
const OWN_FILES: [&str; 2] = ["--metrics-file", "--failed-list"];
/// Set for the rsync that takes a run over. A sparsync that finds it was started, directly or not, by another sparsync.
const HANDED_OVER: &str = "SPARSYNC_HANDED_OVER";

/// Returns the rsync that the user has named for runs that sparsync cannot do.
pub fn named(env: &Env) -> Option<OsString> {
    env.var(NAMED).filter(|named| !named.is_empty())
}

/// Replaces this process with the named rsync, which gets the original arguments. Returns the error of the run if that
/// fails, or if none is named.
pub fn run_instead(env: &Env, error: Error) -> Error {
    let Some(named) = named(env) else {
        return error;
    };
    let why = if command_end::prints_json(env) {
        "rsync has no --json".to_owned()
    } else if let Some(option) = metrics_file::requested(env, &OWN_FILES) {
        format!("rsync has no {option}")
    } else if env.var(HANDED_OVER).is_some() {
        "it is another sparsync".to_owned()
    } else {
        let error = env.become_program(&named, &rsyncs_own(&env.args), (HANDED_OVER, "1"));
        String::from_utf8_lossy(&errno_words(&error)).into_owned()
    };
    error.with_hint(format!(
        "cannot run the rsync that {NAMED} names: {}: {why}",
        named.display()
    ))
}

/// Removes `--transport` and `--ui`, which rsync does not know. rsync reaches the peer in its own way.
fn rsyncs_own(args: &[OsString]) -> Vec<OsString> {
    let mut own = Vec::new();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.as_encoded_bytes() {
            b"--" => {
                own.push(word.clone());
                own.extend(words.cloned());
                break;
            }
            b"--transport" => drop(words.next()),
            b"--ui" | b"--no-ui" | b"--ui=plain" => {}
            bytes if bytes.starts_with(b"--transport=") => {}
            _ => own.push(word.clone()),
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_option_is_removed_for_rsync() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (given, left) in [
            ("-a --transport=quic src host:dst", "-a src host:dst"),
            ("-a --transport tls src host:dst", "-a src host:dst"),
            (
                "-a --transport=ssh -- --transport=x host:dst",
                "-a -- --transport=x host:dst",
            ),
            ("-av src host::dst", "-av src host::dst"),
        ] {
            assert_eq!(rsyncs_own(&words(given)), words(left), "{given}");
        }
    }
}

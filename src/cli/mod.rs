//! The command line: words to values. Nothing is opened, looked up or decided here.
//!
//! `flags/` is the table of options, `parse` walks the words, `resolve` settles what they mean
//! together, `doc/` writes the table out. Files that options name are the caller's to read.

pub mod args;
pub mod doc;
pub mod flag;
pub mod flags;
pub mod operand;
pub mod parse;
pub mod resolve;
pub mod value;

pub use doc::{help_text, version_json, version_text};
pub use operand::Operand;

use crate::error::Result;
use crate::options::Options;
use args::{Args, Tell};
use std::ffi::{OsStr, OsString};

/// How the program was called, and what of the process its meaning may depend on.
pub struct Call<'a> {
    /// The program's name as called: the first word of argv. Called as `rsync` there are no verbs.
    #[allow(dead_code, reason = "read once there are verbs")]
    pub program: &'a OsStr,
    /// The words behind it.
    pub args: &'a [OsString],
    /// A variable of the environment.
    pub vars: &'a dyn Fn(&str) -> Option<OsString>,
    /// Now, in seconds since 1970: `--stop-at` is measured from here.
    pub now_unix_secs: i64,
    /// The umask of the process: `--chmod=+w` means what it allows.
    pub umask: u32,
    /// The texts of /etc/popt and ~/.popt, one after the other; empty when there are none.
    pub popt: &'a [u8],
}

/// What a command line asks for.
#[derive(Debug)]
pub enum Request {
    /// A copy between local paths, or a listing of them.
    Copy(Box<Copy>),
    /// [`help_text`] on standard output, exit 0.
    Help,
    /// [`version_text`] or [`version_json`] on standard output, exit 0.
    Version {
        /// As JSON: `--version` was said twice.
        json: bool,
    },
    /// This text on standard output, exit 0: `--info=help`, `--debug=help`.
    Print(String),
    /// The installed rsync does it, with the words as given: a remote operand, a server, a daemon.
    Handover,
    /// The operands make no copy: [`help_text`] on standard error, exit 1 with the closing line of a
    /// usage error.
    NoArgs {
        /// The role in the closing line: rsync without any operand has become a `Receiver`.
        role: &'static str,
    },
}

/// A copy that was asked for.
#[derive(Debug)]
pub struct Copy {
    /// The settled options.
    pub options: Options,
    /// What is copied or listed; at least one, none of them remote.
    pub sources: Vec<Operand>,
    /// Where to; `None`: the sources are listed.
    pub dest: Option<Operand>,
}

/// Reads a command line.
///
/// An error is in rsync's words where it has them, and carries its exit code; the caller adds the
/// closing line `rsync error: …`.
pub fn read(call: &Call<'_>) -> Result<Request> {
    let aliases = parse::aliases(call.popt);
    let args = Args { umask: call.umask, now_unix_secs: call.now_unix_secs, ..Args::default() };
    let walked = parse::walk(call.args, &aliases, args);
    let Args { tell, version, handover, .. } = walked.args;
    if handover {
        return Ok(Request::Handover);
    }
    match tell {
        Some(Tell::Help) => return Ok(Request::Help),
        Some(Tell::InfoHelp) => return Ok(Request::Print(value::words::info_help())),
        Some(Tell::DebugHelp) => return Ok(Request::Print(value::words::debug_help())),
        None if version > 0 && walked.error.is_none() => {
            return Ok(Request::Version { json: version > 1 });
        }
        None => {}
    }
    // A mistake beside a remote operand is rsync's to tell: it may know more options than we do.
    if walked.operands.iter().any(Operand::is_remote) {
        return Ok(Request::Handover);
    }
    if let Some(error) = walked.error {
        return Err(error);
    }
    if parse::lone_help(call.args, &walked.args) {
        return Ok(Request::Help);
    }
    let role = if walked.operands.is_empty() && !call.args.is_empty() { "Receiver" } else { "client" };
    match resolve::resolve(walked.args, walked.operands, call.vars)? {
        Some(resolve::Resolved { options, sources, dest }) => {
            Ok(Request::Copy(Box::new(Copy { options, sources, dest })))
        }
        None => Ok(Request::NoArgs { role }),
    }
}

//! A copy between two machines: the near end and the far end of one conversation.
#![allow(dead_code, reason = "the conversation comes next")]

use crate::error::Error;
use crate::exit::Exit;
use crate::filter::Rules;
use crate::options::Options;
use crate::proto::Setup;
use crate::report::{Tally, TextReporter};
use crate::transport::Link;
use std::sync::atomic::AtomicBool;

/// The near end: the process that the user started.
pub struct Near<'a> {
    /// The settled options.
    pub options: &'a Options,
    /// What the far end is asked for.
    pub setup: Setup,
    /// The source arguments as given, if this end sends.
    pub sources: Vec<Vec<u8>>,
    /// The destination as given, if this end receives; `None`: list only.
    pub dest: Option<Vec<u8>>,
    /// The rules of the command line.
    pub rules: Rules,
    /// What `--files-from` lists.
    pub listed: Option<Vec<Vec<u8>>>,
    /// The working directory, absolute.
    pub cwd: &'a [u8],
    /// The umask the process had.
    pub umask: u32,
    /// Set when the run shall stop (a signal).
    pub stop: &'a AtomicBool,
    /// How many threads may work at once.
    pub threads: usize,
    /// Seconds since 1970 at which the run stops by itself.
    pub stop_at_unix_secs: Option<i64>,
}

impl Near<'_> {
    /// Copies. Trouble with single entries is told and counted in the tally; an error ends the run.
    pub fn run(&self, link: Link, _reporter: &mut TextReporter, _tally: &mut Tally) -> Result<(), Error> {
        drop(link);
        Err(not_yet())
    }
}

/// Makes options and rules of what a client asks for, or refuses it.
pub type Settle<'a> = dyn Fn(&Setup) -> Result<(Options, Rules), Error> + 'a;

/// The far end.
pub fn serve(
    link: Link,
    _cwd: &[u8],
    _umask: u32,
    _stop: &AtomicBool,
    _threads: usize,
    _operands: Vec<Vec<u8>>,
    _settle: &Settle<'_>,
) -> Exit {
    drop(link);
    not_yet().exit
}

fn not_yet() -> Error {
    Error::new(Exit::Unsupported, "sparsync: a copy between two machines is not supported yet")
}

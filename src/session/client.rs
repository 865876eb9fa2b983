//! The client's end of a session, in any protocol: what the user of this process requested.

use crate::filter::Rules;
use crate::options::Options;
use crate::proto::Setup;
use crate::report::Gauge;
use crate::session::response_validation::ResponseValidator;
use crate::walk::run_context::{Process, RunContext};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The client: the process that the user started, and what it copies in any protocol.
pub struct Client<'a> {
    /// The settled options.
    pub options: &'a Options,
    /// The request to the other end.
    pub setup: Setup,
    /// The source arguments as given, on whichever machine they are.
    pub sources: Vec<Vec<u8>>,
    /// The destination as given, if the client receives; `None`: list only.
    pub dest: Option<Vec<u8>>,
    /// The rules of the command line.
    pub rules: Rules,
    /// The names listed by `--files-from`, if the client sends.
    pub listed: Option<Vec<Vec<u8>>>,
    pub process: Process<'a>,
    /// See [`RunContext::repeats`].
    pub repeats: bool,
    /// See [`RunContext::interrupted`].
    pub interrupted: &'a AtomicBool,
    /// The connection goes over the network without a shell. A user who watches the progress is informed if no data
    /// arrives.
    pub is_net: bool,
    /// Both trees are on this machine, so what the server receives is not sent to another one.
    pub is_local: bool,
    /// See [`RunContext::gauge`].
    pub gauge: Option<&'a Arc<Gauge>>,
}

impl Client<'_> {
    /// Returns the context of the run.
    pub fn run_context(&self) -> RunContext<'_> {
        RunContext {
            options: self.options,
            rules: &self.rules,
            process: self.process,
            repeats: self.repeats,
            interrupted: self.interrupted,
            gauge: self.gauge,
        }
    }

    /// Returns what the server may send.
    pub fn validator(&self, run_context: &RunContext<'_>) -> ResponseValidator {
        let listed = self.setup.listed.as_deref();
        ResponseValidator::for_request(
            run_context,
            &self.sources,
            listed,
            !self.setup.remote_words.is_empty(),
        )
    }
}

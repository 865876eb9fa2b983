//! The log of a daemon that serves a module.

use crate::error::Error;
use crate::flist::Kind;
use crate::options::{CreatedDir, Output};
use crate::report::event::{Item, Problem, Update};
use crate::report::line_filter::{Choice, LineKind};
use crate::report::{PutLine, final_error, format};

/// The log of a daemon that serves a module.
pub struct ModuleLog {
    /// Changes a line about files as a daemon prints it, with paths in the module.
    pub in_module: Box<dyn Fn(Vec<u8>) -> Vec<u8> + Send + Sync>,
    /// Adds a line to the log.
    pub put: PutLine,
}

impl ModuleLog {
    /// Logs a problem. Returns it as the client gets it.
    pub fn problem(&self, problem: Problem) -> Problem {
        let line = (self.in_module)(problem.line);
        (self.put)(&line);
        Problem { line, ..problem }
    }

    /// Logs the error that ends a session. `role`: the one of this end.
    pub fn end(&self, error: &Error, role: &'static str) {
        for line in final_error::error_lines(error, role) {
            (self.put)(&(self.in_module)(line));
        }
    }
}

/// Returns the line about an entry in the log of a server that receives. As in rsync, `-v` of the client decides, and files
/// are not logged. `output`: that of the server.
pub fn logged_name(item: &Item, output: &Output) -> Option<Vec<u8>> {
    // A format and `--progress` imply names, but not in the log.
    let is_named = output.info.name >= 1 && output.created_dir == CreatedDir::Always;
    let logs_names = is_named && (output.verbose >= 1 || output.out_format.is_none());
    let is_logged = logs_names
        && (item.kind != Kind::File || item.update == Update::HardLink)
        && Choice::from_output(output, false).line(item) == LineKind::Full;
    is_logged.then(|| format::name_and_link(item))
}

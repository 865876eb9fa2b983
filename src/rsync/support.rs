//! Which options require a whole list of a run with a stock rsync.

use crate::options::select::MissingArgs;
use crate::options::{Batch, Options, Select};

/// Returns whether a list must not be sent piecewise, although the protocol permits it. `receives`: this end receives.
pub fn needs_whole_list(options: &Options, receives: bool) -> bool {
    let Select {
        missing_args,
        relative,
        ..
    } = &options.select;
    // The names of a file are looked for ahead, and a stock rsync would list no more before earlier files have arrived.
    // An rsync that reads a batch waits for the end of the list, and does not read on for it.
    let looks_ahead = options.preserve.hard_links
        && (receives || matches!(options.batch, Some(Batch::Write { .. })));
    // The order of converted names can differ from that in which the sender lists directories.
    let converts = receives && options.connect.iconv.is_some();
    // What is deleted must be known at the beginning, also below the first list.
    // Which files are new, and which are not needed any more, must be known before the first one is requested.
    let finds_renamed = receives && options.delta.detect_renamed.is_some();
    looks_ahead || converts || finds_renamed || *missing_args == MissingArgs::Delete && *relative
}

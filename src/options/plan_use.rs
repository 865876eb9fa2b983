//! What a run has to do with a stored plan.

use super::{Options, RemoveSource};

/// Whether the actions of a run are recorded as a plan, or are those of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlanUse {
    /// Neither.
    #[default]
    Free,
    /// `sparsync plan`: a dry run whose actions are recorded.
    Record,
    /// `sparsync apply`: only the actions of a plan are carried out.
    Replay,
}

/// Returns the first of the options whose effect no plan records. A client does not send them with a plan, but a forced
/// command can have them.
pub fn unrecorded(options: &Options) -> Option<&'static str> {
    let Options {
        select,
        preserve,
        place,
        delete,
        ..
    } = options;
    let given = [
        (preserve.keep_dirlinks, "--keep-dirlinks"),
        (preserve.write_devices, "--write-devices"),
        (
            place.suffix_beside().is_some() && delete.excluded,
            "--delete-excluded with --backup",
        ),
        // It implies the next one.
        (place.append.is_some(), "--append"),
        (place.inplace, "--inplace"),
        (place.partial && place.partial_dir.is_none(), "--partial"),
        (
            select.remove_source != RemoveSource::No,
            "--remove-source-files",
        ),
        (select.copy_devices, "--copy-devices"),
        (options.connect.iconv.is_some(), "--iconv"),
    ];
    let first = given.into_iter().find(|(is_given, _)| *is_given);
    first.map(|(_, option)| option)
}

/// Returns the first of the options that differ from those of a client because of the command line of its server, and of which
/// the plan records something else. `requested`: those of the client alone.
pub fn unrequested(options: &Options, requested: &Options) -> Option<&'static str> {
    if options.place.backup != requested.place.backup {
        Some("--backup")
    } else if options.delta.detect_renamed != requested.delta.detect_renamed {
        Some("--detect-renamed")
    } else {
        None
    }
}

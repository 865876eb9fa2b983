//! Options that decide when two entries count as the same.

use crate::cli::flag::{Effect, Flag, Support};
use crate::cli::value::names;

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag::switch("checksum", "compare files by checksum instead of size and time")
        .short('c')
        .negations(&["no-checksum", "no-c"])
        .effect(Effect::Switch(|args| &mut args.checksum)),
    Flag::switch("size-only", "skip files of equal size").effect(Effect::Switch(|args| &mut args.size_only)),
    Flag::switch("ignore-times", "copy files even if size and time match")
        .short('I')
        .effect(Effect::Switch(|args| &mut args.ignore_times)),
    Flag::value(
        "modify-window",
        "NUM",
        "treat times that differ by up to NUM seconds as equal; -1 compares nanoseconds",
    )
    .short('@')
    .effect(Effect::Number(|args| &mut args.modify_window_secs)),
    Flag::switch("update", "skip files that are newer at the destination")
        .short('u')
        .effect(Effect::Switch(|args| &mut args.check.update))
        .man(
            "With --hard-links, a newer destination file stays as it is, even if its source is a hard link to \
             another file. rsync 3.5.0 replaces it by a link to the older file.",
        ),
    Flag::switch("existing", "skip creating new files at the destination")
        .aliases(&["ignore-non-existing"])
        .effect(Effect::Switch(|args| &mut args.check.existing_only)),
    Flag::switch("ignore-existing", "skip files that exist at the destination")
        .effect(Effect::Switch(|args| &mut args.check.ignore_existing))
        .man(
            "If the destination has another kind of entry in place of a source directory, the directory and its \
             content are skipped. rsync 3.5.0 tries to enter it and ends with exit 23.",
        ),
    Flag::value("checksum-choice", "STR", "select the checksum that --out-format=%C prints")
        .aliases(&["cc"])
        .words(&names::CHECKSUM_NAMES)
        .effect(Effect::Text(|args| &mut args.checksum_choice))
        .man(
            "If two names are given, the second selects the checksum of the file list, which is printed under \
             --checksum. sparsync compares file contents with its own digest, whatever is selected. \
             RSYNC_CHECKSUM_LIST sets the default.",
        ),
    Flag::value("checksum-seed", "NUM", "set the checksum seed")
        .effect(Effect::Number(|args| &mut args.checksum_seed))
        .support(Support::NoEffect),
];

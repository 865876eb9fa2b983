//! Options that decide when two entries count as the same.

use crate::cli::flag::{Arity, Effect, Flag, Support};
use crate::cli::value::names;

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "checksum",
        short: Some('c'),
        negations: &["no-checksum", "no-c"],
        help: "compare files by checksum instead of size and time",
        effect: Effect::Switch(|args| &mut args.checksum),
        ..Flag::SWITCH
    },
    Flag {
        long: "size-only",
        help: "skip files of equal size",
        effect: Effect::Switch(|args| &mut args.size_only),
        ..Flag::SWITCH
    },
    Flag {
        long: "ignore-times",
        short: Some('I'),
        help: "copy files even if size and time match",
        effect: Effect::Switch(|args| &mut args.ignore_times),
        ..Flag::SWITCH
    },
    Flag {
        long: "modify-window",
        short: Some('@'),
        arity: Arity::Value("NUM"),
        help: "treat times that differ by up to NUM seconds as equal; -1 compares nanoseconds",
        effect: Effect::Number(|args| &mut args.modify_window_secs),
        ..Flag::SWITCH
    },
    Flag {
        long: "update",
        short: Some('u'),
        help: "skip files that are newer at the destination",
        man: "With --hard-links, a newer destination file stays as it is, even if its source is a hard link to \
              another file. rsync 3.5.0 replaces it by a link to the older file.",
        effect: Effect::Switch(|args| &mut args.check.update),
        ..Flag::SWITCH
    },
    Flag {
        long: "existing",
        aliases: &["ignore-non-existing"],
        help: "skip creating new files at the destination",
        effect: Effect::Switch(|args| &mut args.check.existing_only),
        ..Flag::SWITCH
    },
    Flag {
        long: "ignore-existing",
        help: "skip files that exist at the destination",
        man: "If the destination has another kind of entry in place of a source directory, the directory and its \
              content are skipped. rsync 3.5.0 tries to enter it and ends with exit 23.",
        effect: Effect::Switch(|args| &mut args.check.ignore_existing),
        ..Flag::SWITCH
    },
    Flag {
        long: "checksum-choice",
        aliases: &["cc"],
        arity: Arity::Value("STR"),
        help: "select the checksum that --out-format=%C prints",
        words: &names::CHECKSUM_NAMES,
        man: "If two names are given, the second selects the checksum of the file list, which is printed under \
              --checksum. sparsync compares file contents with its own digest, whatever is selected. \
              RSYNC_CHECKSUM_LIST sets the default.",
        effect: Effect::Text(|args| &mut args.checksum_choice),
        ..Flag::SWITCH
    },
    Flag {
        long: "checksum-seed",
        arity: Arity::Value("NUM"),
        help: "set the checksum seed",
        support: Support::NoEffect,
        effect: Effect::Number(|args| &mut args.checksum_seed),
        ..Flag::SWITCH
    },
];

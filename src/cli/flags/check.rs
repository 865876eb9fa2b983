//! Options that decide when two entries count as the same.

use crate::cli::flag::{Arity, Flag, Support};
use crate::cli::value::{names, number};

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "checksum",
        short: Some('c'),
        negations: &["no-checksum", "no-c"],
        help: "compare content, not size and time",
        set: |args, _| {
            args.checksum = true;
            Ok(())
        },
        unset: |args| args.checksum = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "size-only",
        help: "skip files of equal size",
        set: |args, _| {
            args.size_only = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "ignore-times",
        short: Some('I'),
        help: "copy files even if size and time are equal",
        set: |args, _| {
            args.ignore_times = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "modify-window",
        short: Some('@'),
        arity: Arity::Value("NUM"),
        help: "times that differ by NUM seconds are equal; below 0 compares nanoseconds",
        set: |args, given| {
            args.modify_window_secs = Some(i64::from(number::int(given)?));
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "update",
        short: Some('u'),
        help: "skip files that are newer at the destination",
        man: "With --hard-links a newer name of a group stays as it is; rsync 3.5.0 makes it one more link to the file that \
              is older.",
        set: |args, _| {
            args.update = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "existing",
        aliases: &["ignore-non-existing"],
        help: "skip files that the destination does not have",
        set: |args, _| {
            args.existing = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "ignore-existing",
        help: "skip files that exist at the destination",
        man: "A directory whose name something else has there is left out with all in it; rsync 3.5.0 tries to go into it, \
              and ends with exit 23.",
        set: |args, _| {
            args.ignore_existing = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "checksum-choice",
        aliases: &["cc"],
        arity: Arity::Value("STR"),
        help: "choose the checksum that --out-format=%C shows",
        words: &names::CHECKSUM_NAMES,
        man: "Of two names the second is that of the list, which is shown under --checksum. Whether contents are the \
              same is found out with a digest of our own, whatever is chosen. RSYNC_CHECKSUM_LIST chooses, too.",
        set: |args, given| {
            args.checksum_choice = Some(given.value.to_vec());
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "checksum-seed",
        arity: Arity::Value("NUM"),
        help: "set the seed of checksums",
        support: Support::NoEffect,
        set: |args, given| {
            args.checksum_seed = Some(number::int(given)?);
            Ok(())
        },
        ..Flag::SWITCH
    },
];

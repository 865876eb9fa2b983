//! Options that decide which extra entries are deleted, and when.

use crate::cli::flag::{Arity, Flag};
use crate::cli::value::number;

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "delete",
        help: "delete entries that the source does not have",
        man: "Only directories that are copied whole lose their extras. Needs -r or -d.",
        set: |args, _| {
            args.delete.any = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "delete-before",
        help: "delete before anything is copied",
        set: |args, _| {
            args.delete.any = true;
            args.delete.before = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "delete-during",
        aliases: &["del"],
        help: "delete while directories are copied (the default)",
        set: |args, _| {
            args.delete.any = true;
            args.delete.during = true;
            args.delete.delay = false;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "delete-delay",
        help: "find what to delete while copying, delete at the end",
        set: |args, _| {
            args.delete.any = true;
            args.delete.during = true;
            args.delete.delay = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "delete-after",
        help: "find what to delete and delete it at the end",
        set: |args, _| {
            args.delete.any = true;
            args.delete.after = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "delete-excluded",
        help: "delete excluded entries, too",
        set: |args, _| {
            args.delete.any = true;
            args.delete.excluded = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "ignore-errors",
        negations: &["no-ignore-errors"],
        help: "delete even if there are I/O errors",
        set: |args, _| {
            args.ignore_errors = true;
            Ok(())
        },
        unset: |args| args.ignore_errors = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "force",
        negations: &["no-force"],
        help: "replace a non-empty directory by a file if needed",
        set: |args, _| {
            args.force = true;
            Ok(())
        },
        unset: |args| args.force = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "max-delete",
        arity: Arity::Value("NUM"),
        help: "delete at most NUM entries",
        man: "The rest stays, and the run ends with exit 25.",
        set: |args, given| {
            args.max_delete = Some(number::int(given)?);
            Ok(())
        },
        ..Flag::SWITCH
    },
];

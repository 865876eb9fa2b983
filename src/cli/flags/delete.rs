//! Options that decide which extra entries are deleted, and when.

use crate::cli::flag::{Arity, Flag};
use crate::cli::value::number;

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "delete",
        help: "delete destination entries that the source does not have",
        man: "Deletes only in directories whose whole content is copied. Requires -r or -d.",
        set: |args, _| {
            args.delete.any = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "delete-before",
        help: "delete before the copy",
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
        help: "delete during the copy (the default)",
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
        help: "find extra entries during the copy, delete them afterwards",
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
        help: "find and delete extra entries after the copy",
        set: |args, _| {
            args.delete.any = true;
            args.delete.after = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "delete-excluded",
        help: "also delete excluded entries",
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
        help: "delete even after I/O errors",
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
        help: "delete a non-empty directory if a file replaces it",
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
        man: "If more entries would be deleted, they are kept and the run ends with exit 25.",
        set: |args, given| {
            args.max_delete = Some(number::int(given)?);
            Ok(())
        },
        ..Flag::SWITCH
    },
];

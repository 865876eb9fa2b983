//! Options that decide which extra entries are deleted, and when.

use crate::cli::flag::{Arity, Effect, Flag};

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "delete",
        help: "delete destination entries that the source does not have",
        man: "Deletes only in directories whose whole content is copied. Requires -r or -d.",
        effect: Effect::Switch(|args| &mut args.delete.any),
        ..Flag::SWITCH
    },
    Flag {
        long: "delete-before",
        help: "delete before the copy",
        effect: Effect::Switches(&[|args| &mut args.delete.any, |args| &mut args.delete.before]),
        ..Flag::SWITCH
    },
    Flag {
        long: "delete-during",
        aliases: &["del"],
        help: "delete during the copy (the default)",
        effect: Effect::Set(|args| {
            args.delete.any = true;
            args.delete.during = true;
            args.delete.delay = false;
        }),
        ..Flag::SWITCH
    },
    Flag {
        long: "delete-delay",
        help: "find extra entries during the copy, delete them afterwards",
        effect: Effect::Set(|args| {
            args.delete.any = true;
            args.delete.during = true;
            args.delete.delay = true;
        }),
        ..Flag::SWITCH
    },
    Flag {
        long: "delete-after",
        help: "find and delete extra entries after the copy",
        effect: Effect::Switches(&[|args| &mut args.delete.any, |args| &mut args.delete.after]),
        ..Flag::SWITCH
    },
    Flag {
        long: "delete-excluded",
        help: "also delete excluded entries",
        effect: Effect::Switches(&[|args| &mut args.delete.any, |args| &mut args.delete.excluded]),
        ..Flag::SWITCH
    },
    Flag {
        long: "ignore-errors",
        negations: &["no-ignore-errors"],
        help: "delete even after I/O errors",
        effect: Effect::Switch(|args| &mut args.ignore_errors),
        ..Flag::SWITCH
    },
    Flag {
        long: "force",
        negations: &["no-force"],
        help: "delete a non-empty directory if a file replaces it",
        effect: Effect::Switch(|args| &mut args.force),
        ..Flag::SWITCH
    },
    Flag {
        long: "max-delete",
        arity: Arity::Value("NUM"),
        help: "delete at most NUM entries",
        man: "If more entries would be deleted, they are kept and the run ends with exit 25.",
        effect: Effect::Number(|args| &mut args.max_delete),
        ..Flag::SWITCH
    },
];

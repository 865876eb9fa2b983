//! Options that decide which extra entries are deleted, and when.

use crate::cli::flag::{Effect, Flag};

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag::switch(
        "delete",
        "delete destination entries that the source does not have",
    )
    .effect(Effect::Switch(|args| &mut args.delete.any))
    .man("Deletes only in directories whose whole content is copied. Requires -r or -d."),
    Flag::switch("delete-before", "delete before the copy").effect(Effect::Switches(&[
        |args| &mut args.delete.any,
        |args| &mut args.delete.before,
    ])),
    Flag::switch("delete-during", "delete during the copy (the default)")
        .aliases(&["del"])
        .effect(Effect::Set(|args| {
            args.delete.any = true;
            args.delete.during = true;
            args.delete.delay = false;
        })),
    Flag::switch(
        "delete-delay",
        "find extra entries during the copy, delete them afterwards",
    )
    .effect(Effect::Set(|args| {
        args.delete.any = true;
        args.delete.during = true;
        args.delete.delay = true;
    })),
    Flag::switch(
        "delete-after",
        "find and delete extra entries after the copy",
    )
    .effect(Effect::Switches(&[
        |args| &mut args.delete.any,
        |args| &mut args.delete.after,
    ])),
    Flag::switch("delete-excluded", "also delete excluded entries").effect(Effect::Switches(&[
        |args| &mut args.delete.any,
        |args| &mut args.delete.excluded,
    ])),
    Flag::switch("ignore-errors", "delete even after I/O errors")
        .negations(&["no-ignore-errors"])
        .effect(Effect::Switch(|args| &mut args.ignore_errors)),
    Flag::switch(
        "force",
        "delete a non-empty directory if a file replaces it",
    )
    .negations(&["no-force"])
    .effect(Effect::Switch(|args| &mut args.force)),
    Flag::value("max-delete", "NUM", "delete at most NUM entries")
        .effect(Effect::Number(|args| &mut args.max_delete))
        .man("If more entries would be deleted, they are kept and the run ends with exit 25."),
];

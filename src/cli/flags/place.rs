//! Options that decide how bytes are written at the destination.

use crate::cli::flag::{Arity, Effect, Flag};

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "inplace",
        negations: &["no-inplace"],
        help: "update destination files in place",
        effect: Effect::Switch(|args| &mut args.place.inplace),
        ..Flag::SWITCH
    },
    Flag {
        long: "append",
        negations: &["no-append"],
        help: "append data to destination files that are shorter than the source",
        man: "With --sparse, rsync 3.5.0 replaces existing data by a hole; sparsync writes the whole file again.",
        effect: Effect::Either(
            |args| {
                // A server gets it twice for --append-verify.
                args.append = if args.server { args.append.saturating_add(1) } else { 1 };
            },
            |args| args.append = 0,
        ),
        ..Flag::SWITCH
    },
    Flag {
        long: "append-verify",
        help: "like --append, but verify the existing data",
        effect: Effect::Set(|args| args.append = 2),
        ..Flag::SWITCH
    },
    Flag {
        long: "partial",
        negations: &["no-partial"],
        help: "keep partially transferred files",
        effect: Effect::Switch(|args| &mut args.place.partial),
        ..Flag::SWITCH
    },
    Flag {
        long: "partial-dir",
        arity: Arity::Value("DIR"),
        help: "keep partially transferred files in DIR",
        man: "RSYNC_PARTIAL_DIR sets the directory for --partial.",
        effect: Effect::Text(|args| &mut args.partial_dir),
        ..Flag::SWITCH
    },
    Flag {
        long: "delay-updates",
        negations: &["no-delay-updates"],
        help: "rename all updated files into place at the end",
        effect: Effect::Switch(|args| &mut args.place.delay_updates),
        ..Flag::SWITCH
    },
    Flag {
        long: "temp-dir",
        short: Some('T'),
        arity: Arity::Value("DIR"),
        help: "create temporary files in DIR",
        effect: Effect::Text(|args| &mut args.place.temp_dir),
        ..Flag::SWITCH
    },
    Flag {
        long: "backup",
        short: Some('b'),
        negations: &["no-backup"],
        help: "back up replaced and deleted files",
        man: "Also backs up files that --link-dest or --compare-dest replaces or removes; rsync 3.5.0 does not. As in \
              rsync, symlinks that --safe-links would skip are not backed up.",
        effect: Effect::Switch(|args| &mut args.backup),
        ..Flag::SWITCH
    },
    Flag {
        long: "backup-dir",
        arity: Arity::Value("DIR"),
        help: "store backups in DIR (implies --backup)",
        effect: Effect::Text(|args| &mut args.backup_dir),
        ..Flag::SWITCH
    },
    Flag {
        long: "suffix",
        arity: Arity::Value("SUFFIX"),
        help: "set the backup suffix (default ~ without --backup-dir)",
        effect: Effect::Text(|args| &mut args.suffix),
        ..Flag::SWITCH
    },
    Flag {
        long: "sparse",
        short: Some('S'),
        negations: &["no-sparse", "no-S"],
        help: "turn sequences of zeros into holes",
        effect: Effect::Switch(|args| &mut args.place.sparse),
        ..Flag::SWITCH
    },
    Flag {
        long: "preallocate",
        help: "allocate the space of files before writing them",
        effect: Effect::Switch(|args| &mut args.place.preallocate),
        ..Flag::SWITCH
    },
    Flag {
        long: "fsync",
        help: "sync every file to disk before it is renamed into place",
        effect: Effect::Switch(|args| &mut args.place.fsync),
        ..Flag::SWITCH
    },
    Flag {
        long: "mkpath",
        negations: &["no-mkpath"],
        help: "create missing directories of the destination path",
        effect: Effect::Switch(|args| &mut args.place.mkpath),
        ..Flag::SWITCH
    },
];

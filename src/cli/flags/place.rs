//! Options that decide how bytes are written at the destination.

use crate::cli::flag::{Arity, Flag};

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "inplace",
        negations: &["no-inplace"],
        help: "update destination files in place",
        set: |args, _| {
            args.inplace = true;
            Ok(())
        },
        unset: |args| args.inplace = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "append",
        negations: &["no-append"],
        help: "append data to destination files that are shorter than the source",
        man: "With --sparse, rsync 3.5.0 replaces existing data by a hole; sparsync writes the whole file again.",
        set: |args, _| {
            // A server gets it twice for --append-verify.
            args.append = if args.server { args.append.saturating_add(1) } else { 1 };
            Ok(())
        },
        unset: |args| args.append = 0,
        ..Flag::SWITCH
    },
    Flag {
        long: "append-verify",
        help: "like --append, but verify the existing data",
        set: |args, _| {
            args.append = 2;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "partial",
        negations: &["no-partial"],
        help: "keep partially transferred files",
        set: |args, _| {
            args.partial = true;
            Ok(())
        },
        unset: |args| args.partial = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "partial-dir",
        arity: Arity::Value("DIR"),
        help: "keep partially transferred files in DIR",
        man: "RSYNC_PARTIAL_DIR sets the directory for --partial.",
        set: |args, given| {
            args.partial_dir = Some(given.value.to_vec());
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "delay-updates",
        negations: &["no-delay-updates"],
        help: "rename all updated files into place at the end",
        set: |args, _| {
            args.delay_updates = true;
            Ok(())
        },
        unset: |args| args.delay_updates = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "temp-dir",
        short: Some('T'),
        arity: Arity::Value("DIR"),
        help: "create temporary files in DIR",
        set: |args, given| {
            args.temp_dir = Some(given.value.to_vec());
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "backup",
        short: Some('b'),
        negations: &["no-backup"],
        help: "back up replaced and deleted files",
        man: "Also backs up files that --link-dest or --compare-dest replaces or removes; rsync 3.5.0 does not. As in \
              rsync, symlinks that --safe-links would skip are not backed up.",
        set: |args, _| {
            args.backup = true;
            Ok(())
        },
        unset: |args| args.backup = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "backup-dir",
        arity: Arity::Value("DIR"),
        help: "store backups in DIR (implies --backup)",
        set: |args, given| {
            args.backup_dir = Some(given.value.to_vec());
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "suffix",
        arity: Arity::Value("SUFFIX"),
        help: "set the backup suffix (default ~ without --backup-dir)",
        set: |args, given| {
            args.suffix = Some(given.value.to_vec());
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "sparse",
        short: Some('S'),
        negations: &["no-sparse", "no-S"],
        help: "turn sequences of zeros into holes",
        set: |args, _| {
            args.sparse = true;
            Ok(())
        },
        unset: |args| args.sparse = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "preallocate",
        help: "allocate the space of files before writing them",
        set: |args, _| {
            args.preallocate = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "fsync",
        help: "sync every file to disk before it is renamed into place",
        set: |args, _| {
            args.fsync = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "mkpath",
        negations: &["no-mkpath"],
        help: "create missing directories of the destination path",
        set: |args, _| {
            args.mkpath = true;
            Ok(())
        },
        unset: |args| args.mkpath = false,
        ..Flag::SWITCH
    },
];

//! Options that decide how bytes are written at the destination.

use crate::cli::flag::{Effect, Flag};

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag::switch("inplace", "update destination files in place")
        .negations(&["no-inplace"])
        .effect(Effect::Switch(|args| &mut args.place.inplace)),
    Flag::switch("append", "append data to destination files that are shorter than the source")
        .negations(&["no-append"])
        .effect(Effect::Either(
            |args| {
                // A server gets it twice for --append-verify.
                args.append = if args.server { args.append.saturating_add(1) } else { 1 };
            },
            |args| args.append = 0,
        ))
        .man("With --sparse, rsync 3.5.0 replaces existing data by a hole; sparsync writes the whole file again."),
    Flag::switch("append-verify", "like --append, but verify the existing data")
        .effect(Effect::Set(|args| args.append = 2)),
    Flag::switch("partial", "keep partially transferred files")
        .negations(&["no-partial"])
        .effect(Effect::Switch(|args| &mut args.place.partial)),
    Flag::value("partial-dir", "DIR", "keep partially transferred files in DIR")
        .effect(Effect::Text(|args| &mut args.partial_dir))
        .man("RSYNC_PARTIAL_DIR sets the directory for --partial."),
    Flag::switch("delay-updates", "rename all updated files into place at the end")
        .negations(&["no-delay-updates"])
        .effect(Effect::Switch(|args| &mut args.place.delay_updates)),
    Flag::value("temp-dir", "DIR", "create temporary files in DIR")
        .short('T')
        .effect(Effect::Text(|args| &mut args.place.temp_dir)),
    Flag::switch("backup", "back up replaced and deleted files")
        .short('b')
        .negations(&["no-backup"])
        .effect(Effect::Switch(|args| &mut args.backup))
        .man(
            "Also backs up files that --link-dest or --compare-dest replaces or removes; rsync 3.5.0 does not. As in \
             rsync, symlinks that --safe-links would skip are not backed up.",
        ),
    Flag::value("backup-dir", "DIR", "store backups in DIR (implies --backup)")
        .effect(Effect::Text(|args| &mut args.backup_dir)),
    Flag::value("suffix", "SUFFIX", "set the backup suffix (default ~ without --backup-dir)")
        .effect(Effect::Text(|args| &mut args.suffix)),
    Flag::switch("sparse", "turn sequences of zeros into holes")
        .short('S')
        .negations(&["no-sparse", "no-S"])
        .effect(Effect::Switch(|args| &mut args.place.sparse)),
    Flag::switch("preallocate", "allocate the space of files before writing them")
        .effect(Effect::Switch(|args| &mut args.place.preallocate)),
    Flag::switch("fsync", "sync every file to disk before it is renamed into place")
        .effect(Effect::Switch(|args| &mut args.place.fsync)),
    Flag::switch("mkpath", "create missing directories of the destination path")
        .negations(&["no-mkpath"])
        .effect(Effect::Switch(|args| &mut args.place.mkpath)),
];

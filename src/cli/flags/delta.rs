//! Options for whole files, deltas, alternate bases, compression and batches.

use crate::cli::args::Args;
use crate::cli::flag::{Effect, Flag, Support};
use crate::cli::value::{names, number, refuse, size};
use crate::error::Result;
use crate::options::{AltDest, AltKind};

/// Adds an alternate destination. `by_clone`: by `--clone-dest`.
pub fn add_alt(args: &mut Args, kind: AltKind, by_clone: bool, dir: &[u8]) -> Result<()> {
    const MAX_DIRS: usize = 20;
    let name = AltDest::option_of(kind, by_clone);
    let prior = args
        .alt_kind
        .map(|prior| AltDest::option_of(prior, args.alt_by_clone));
    if let Some(prior) = prior.filter(|&prior| prior != name) {
        return Err(refuse(format!(
            "ERROR: the {name} option conflicts with the {prior} option"
        )));
    }
    if args.alt_dirs.len() >= MAX_DIRS {
        return Err(refuse(format!(
            "ERROR: at most {MAX_DIRS} {name} args may be specified"
        )));
    }
    args.alt_kind = Some(kind);
    args.alt_by_clone = by_clone;
    args.alt_dirs.push(dir.to_vec());
    Ok(())
}

fn choose_compression(args: &mut Args, name: &[u8]) {
    args.compress_choice = Some(name.to_vec());
    args.no_compress = false;
}

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag::switch("whole-file", "copy whole files without the delta algorithm (the default between local trees)")
        .short('W')
        .negations(&["no-whole-file", "no-W"])
        .effect(Effect::Choice(|args| &mut args.whole_file))
        .help_off("copy only the changed parts of files")
        .man(
            "Between local trees, the negation has an effect with --inplace: unchanged blocks are not written again, \
             so they stay shared with snapshots of the file system.",
        ),
    Flag::value("block-size", "SIZE", "set the block size of the delta algorithm")
        .short('B')
        .effect(Effect::Argument(|args, given| {
            let limits = size::SizeLimits { min: 0, min_text: "", max: 1 << 17, max_text: "128.00K" };
            args.block_size = size::size(given, "block-size", b'b', &limits)?;
            Ok(())
        }))
        .support(Support::OverSsh),
    Flag::switch("fuzzy", "use a similar file as the basis if the destination lacks the file")
        .short('y')
        .negations(&["no-fuzzy", "no-y"])
        .effect(Effect::Count(|args| &mut args.fuzzy))
        .man(
            "Between machines, a file that the destination lacks is sent as the differences from a basis file in the \
             same directory: one of equal size and time, or else the one with the most similar name. If given twice, \
             the directories of --compare-dest, --copy-dest, --clone-dest and --link-dest are searched, too. Files that are \
             deleted before or during the copy cannot be used; --delete-after and --delete-delay keep them until the \
             end.",
        ),
    Flag::value("compare-dest", "DIR", "skip files that are identical in DIR")
        .effect(Effect::Argument(|args, given| add_alt(args, AltKind::Compare, false, given.value))),
    Flag::value("copy-dest", "DIR", "copy files from DIR if they are identical there")
        .effect(Effect::Argument(|args, given| add_alt(args, AltKind::Copy, false, given.value))),
    Flag::value("link-dest", "DIR", "hard-link files to DIR if they are identical there")
        .effect(Effect::Argument(|args, given| add_alt(args, AltKind::Link, false, given.value))),
    Flag::switch("compress", "compress file data during the transfer")
        .short('z')
        .negations(&["no-compress", "no-z"])
        .effect(Effect::Either(
            |args| {
                args.compress = args.compress.saturating_add(1);
                args.no_compress = false;
            },
            |args| {
                args.compress = 0;
                args.compress_choice = None;
                args.no_compress = true;
            },
        ))
        .support(Support::OverSsh)
        .man(
            "Has an effect only between machines. Without this option, sparsync compresses lightly on slow links; \
             --no-compress prevents that.",
        ),
    Flag::switch("old-compress", "same as --compress-choice=zlib")
        .effect(Effect::Set(|args| {
            choose_compression(args, b"zlib");
        }))
        .support(Support::OverSsh),
    Flag::switch("new-compress", "same as --compress-choice=zlibx")
        .effect(Effect::Set(|args| {
            choose_compression(args, b"zlibx");
        }))
        .support(Support::OverSsh),
    Flag::value("compress-choice", "STR", "select the compression method")
        .aliases(&["zc"])
        .words(&names::COMPRESSION_NAMES)
        .effect(Effect::Argument(|args, given| {
            choose_compression(args, given.value);
            Ok(())
        }))
        .support(Support::OverSsh)
        .man(
            "The methods are zstd, lz4, zlibx, zlib and none. `auto` selects the first method that both ends \
             support; RSYNC_COMPRESS_LIST lists the candidates, the preferred one first. Both ends must support the \
             method: if RSYNC_COMPRESS_LIST there excludes it, the run ends with exit 4.",
        ),
    Flag::value("compress-level", "NUM", "set the compression level")
        .aliases(&["zl"])
        .effect(Effect::Number(|args| &mut args.compress_level))
        .support(Support::OverSsh)
        .man(
            "Levels are -131072 to 22 for zstd (0 means 3), and 1 to 9 for zlib and zlibx (0 means no compression, \
             -1 means 6). Other values are replaced by the nearest level. lz4 has no levels. The option implies \
             --compress.",
        ),
    Flag::value("compress-threads", "NUM", "set the number of compression threads")
        .aliases(&["zt"])
        .effect(Effect::Argument(|_, given| number::int(given).map(|_| ())))
        .local()
        .support(Support::NoEffect),
    Flag::value("skip-compress", "LIST", "do not compress files with these suffixes")
        .effect(Effect::Text(|args| &mut args.skip_compress))
        .support(Support::OverSsh)
        .man(
            "LIST has suffixes without dots, separated by slashes; brackets match one of the letters in them. Files \
             with these suffixes are sent uncompressed (rsync compresses them nevertheless). By default no file is \
             skipped by its suffix, but data that does not shrink is sent uncompressed.",
        ),
    Flag::value("write-batch", "FILE", "copy, and write the changes to the batch FILE")
        .effect(Effect::Argument(|args, given| {
            args.batch = given.value.to_vec();
            args.write_batch = true;
            Ok(())
        }))
        .local(),
    Flag::value("only-write-batch", "FILE", "write the batch FILE without changing the destination")
        .effect(Effect::Argument(|args, given| {
            args.batch = given.value.to_vec();
            args.only_write_batch = true;
            Ok(())
        }))
        .local(),
    Flag::value("read-batch", "FILE", "apply the changes of the batch FILE")
        .effect(Effect::Argument(|args, given| {
            args.batch = given.value.to_vec();
            args.read_batch = true;
            Ok(())
        }))
        .local(),
];

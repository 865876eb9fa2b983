//! Options for whole files, deltas, alternate bases, compression and batches.

use crate::cli::args::Args;
use crate::cli::flag::{Arity, Effect, Flag, Support};
use crate::cli::value::{names, number, refuse, size};
use crate::error::Result;
use crate::options::AltKind;

/// Returns rsync's option name for a kind of alternate destination.
pub fn alt_name(kind: AltKind) -> &'static str {
    match kind {
        AltKind::Compare => "--compare-dest",
        AltKind::Copy => "--copy-dest",
        AltKind::Link => "--link-dest",
    }
}

fn add_alt(args: &mut Args, kind: AltKind, dir: &[u8]) -> Result<()> {
    const MAX_DIRS: usize = 20;
    let name = alt_name(kind);
    if let Some(prior) = args.alt_kind.filter(|&prior| prior != kind) {
        let prior = alt_name(prior);
        return Err(refuse(format!("ERROR: the {name} option conflicts with the {prior} option")));
    }
    if args.alt_dirs.len() >= MAX_DIRS {
        return Err(refuse(format!("ERROR: at most {MAX_DIRS} {name} args may be specified")));
    }
    args.alt_kind = Some(kind);
    args.alt_dirs.push(dir.to_vec());
    Ok(())
}

fn choose_compression(args: &mut Args, name: &[u8]) {
    args.compress_choice = Some(name.to_vec());
    args.no_compress = false;
}

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "whole-file",
        short: Some('W'),
        negations: &["no-whole-file", "no-W"],
        help: "copy whole files without the delta algorithm (the default between local trees)",
        help_off: "copy only the changed parts of files",
        man: "Between local trees, the negation has an effect with --inplace: unchanged blocks are not written again, \
              so they stay shared with snapshots of the file system.",
        effect: Effect::Choice(|args| &mut args.whole_file),
        ..Flag::SWITCH
    },
    Flag {
        long: "block-size",
        short: Some('B'),
        arity: Arity::Value("SIZE"),
        help: "set the block size of the delta algorithm",
        support: Support::OverSsh,
        effect: Effect::Argument(|args, given| {
            let limits = size::SizeLimits { min: 0, min_text: "", max: 1 << 17, max_text: "128.00K" };
            args.block_size = size::size(given, "block-size", b'b', &limits)?;
            Ok(())
        }),
        ..Flag::SWITCH
    },
    Flag {
        long: "fuzzy",
        short: Some('y'),
        negations: &["no-fuzzy", "no-y"],
        help: "use a similar file as the basis if the destination lacks the file",
        man: "Between machines, a file that the destination lacks is sent as the differences from a basis file in the \
              same directory: one of equal size and time, or else the one with the most similar name. If given twice, \
              the directories of --compare-dest, --copy-dest and --link-dest are searched, too. Files that are \
              deleted before or during the copy cannot be used; --delete-after and --delete-delay keep them until the \
              end.",
        effect: Effect::Count(|args| &mut args.fuzzy),
        ..Flag::SWITCH
    },
    Flag {
        long: "compare-dest",
        arity: Arity::Value("DIR"),
        help: "skip files that are identical in DIR",
        effect: Effect::Argument(|args, given| add_alt(args, AltKind::Compare, given.value)),
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-dest",
        arity: Arity::Value("DIR"),
        help: "copy files from DIR if they are identical there",
        effect: Effect::Argument(|args, given| add_alt(args, AltKind::Copy, given.value)),
        ..Flag::SWITCH
    },
    Flag {
        long: "link-dest",
        arity: Arity::Value("DIR"),
        help: "hard-link files to DIR if they are identical there",
        effect: Effect::Argument(|args, given| add_alt(args, AltKind::Link, given.value)),
        ..Flag::SWITCH
    },
    Flag {
        long: "compress",
        short: Some('z'),
        negations: &["no-compress", "no-z"],
        help: "compress file data during the transfer",
        man: "Has an effect only between machines. Without this option, sparsync compresses lightly on slow links; \
              --no-compress prevents that.",
        support: Support::OverSsh,
        effect: Effect::Either(
            |args| {
                args.compress = args.compress.saturating_add(1);
                args.no_compress = false;
            },
            |args| {
                args.compress = 0;
                args.compress_choice = None;
                args.no_compress = true;
            },
        ),
        ..Flag::SWITCH
    },
    Flag {
        long: "old-compress",
        help: "same as --compress-choice=zlib",
        support: Support::OverSsh,
        effect: Effect::Set(|args| {
            choose_compression(args, b"zlib");
        }),
        ..Flag::SWITCH
    },
    Flag {
        long: "new-compress",
        help: "same as --compress-choice=zlibx",
        support: Support::OverSsh,
        effect: Effect::Set(|args| {
            choose_compression(args, b"zlibx");
        }),
        ..Flag::SWITCH
    },
    Flag {
        long: "compress-choice",
        aliases: &["zc"],
        arity: Arity::Value("STR"),
        help: "select the compression method",
        words: &names::COMPRESSION_NAMES,
        man: "The methods are zstd, lz4, zlibx, zlib and none. `auto` selects the first method that both ends \
              support; RSYNC_COMPRESS_LIST lists the candidates, the preferred one first. Both ends must support the \
              method: if RSYNC_COMPRESS_LIST there excludes it, the run ends with exit 4.",
        support: Support::OverSsh,
        effect: Effect::Argument(|args, given| {
            choose_compression(args, given.value);
            Ok(())
        }),
        ..Flag::SWITCH
    },
    Flag {
        long: "compress-level",
        aliases: &["zl"],
        arity: Arity::Value("NUM"),
        help: "set the compression level",
        man: "Levels are -131072 to 22 for zstd (0 means 3), and 1 to 9 for zlib and zlibx (0 means no compression, \
              -1 means 6). Other values are replaced by the nearest level. lz4 has no levels. The option implies \
              --compress.",
        support: Support::OverSsh,
        effect: Effect::Number(|args| &mut args.compress_level),
        ..Flag::SWITCH
    },
    Flag {
        long: "compress-threads",
        aliases: &["zt"],
        arity: Arity::Value("NUM"),
        help: "set the number of compression threads",
        support: Support::NoEffect,
        effect: Effect::Argument(|_, given| number::int(given).map(|_| ())),
        ..Flag::LOCAL
    },
    Flag {
        long: "skip-compress",
        arity: Arity::Value("LIST"),
        help: "do not compress files with these suffixes",
        man: "LIST has suffixes without dots, separated by slashes; brackets match one of the letters in them. Files \
              with these suffixes are sent uncompressed (rsync compresses them nevertheless). By default no file is \
              skipped by its suffix, but data that does not shrink is sent uncompressed.",
        support: Support::OverSsh,
        effect: Effect::Text(|args| &mut args.skip_compress),
        ..Flag::SWITCH
    },
    Flag {
        long: "write-batch",
        arity: Arity::Value("FILE"),
        help: "copy, and write the changes to the batch FILE",
        effect: Effect::Argument(|args, given| {
            args.batch = given.value.to_vec();
            args.write_batch = true;
            Ok(())
        }),
        ..Flag::LOCAL
    },
    Flag {
        long: "only-write-batch",
        arity: Arity::Value("FILE"),
        help: "write the batch FILE without changing the destination",
        effect: Effect::Argument(|args, given| {
            args.batch = given.value.to_vec();
            args.only_write_batch = true;
            Ok(())
        }),
        ..Flag::LOCAL
    },
    Flag {
        long: "read-batch",
        arity: Arity::Value("FILE"),
        help: "apply the changes of the batch FILE",
        effect: Effect::Argument(|args, given| {
            args.batch = given.value.to_vec();
            args.read_batch = true;
            Ok(())
        }),
        ..Flag::LOCAL
    },
];

//! Options for whole files, deltas, alternate bases, compression and batches.

use crate::cli::args::Args;
use crate::cli::flag::{Arity, Flag, FlagScope, Support};
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
        help: "copy files whole (the default between local trees)",
        help_off: "copy only what changed inside of files",
        man: "Between local trees the negation matters with --inplace: then blocks that are the same are not written \
              again, and go on sharing their place with those of a snapshot.",
        set: |args, _| {
            args.whole_file = Some(true);
            Ok(())
        },
        unset: |args| args.whole_file = Some(false),
        ..Flag::SWITCH
    },
    Flag {
        long: "block-size",
        short: Some('B'),
        arity: Arity::Value("SIZE"),
        help: "set the block size of the delta algorithm",
        support: Support::OverSsh,
        set: |args, given| {
            let limits = size::SizeLimits { min: 0, min_text: "", max: 1 << 17, max_text: "128.00K" };
            args.block_size = size::size(given, "block-size", b'b', &limits)?;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "fuzzy",
        short: Some('y'),
        negations: &["no-fuzzy", "no-y"],
        help: "start from a file with a similar name",
        man: "Between machines, a file that the destination does not have is sent as what differs from one in the same \
              directory that has its length and time, or else the most similar name. Said twice, the directories of \
              --compare-dest and its kin are searched, too. What is deleted before or during the copy cannot serve; \
              --delete-after and --delete-delay leave it until then.",
        set: |args, _| {
            args.fuzzy = args.fuzzy.saturating_add(1);
            Ok(())
        },
        unset: |args| args.fuzzy = 0,
        ..Flag::SWITCH
    },
    Flag {
        long: "compare-dest",
        arity: Arity::Value("DIR"),
        help: "leave out files that DIR has",
        set: |args, given| add_alt(args, AltKind::Compare, given.value),
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-dest",
        arity: Arity::Value("DIR"),
        help: "copy files from DIR if they are the same there",
        set: |args, given| add_alt(args, AltKind::Copy, given.value),
        ..Flag::SWITCH
    },
    Flag {
        long: "link-dest",
        arity: Arity::Value("DIR"),
        help: "hard-link files from DIR if they are the same there",
        set: |args, given| add_alt(args, AltKind::Link, given.value),
        ..Flag::SWITCH
    },
    Flag {
        long: "compress",
        short: Some('z'),
        negations: &["no-compress", "no-z"],
        help: "compress file data on the way",
        man: "Between machines. Without it what is sent over a slow link is compressed lightly; --no-compress forbids that.",
        support: Support::OverSsh,
        set: |args, _| {
            args.compress = args.compress.saturating_add(1);
            args.no_compress = false;
            Ok(())
        },
        unset: |args| {
            args.compress = 0;
            args.compress_choice = None;
            args.no_compress = true;
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "old-compress",
        help: "same as --compress-choice=zlib",
        support: Support::OverSsh,
        set: |args, _| {
            choose_compression(args, b"zlib");
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "new-compress",
        help: "same as --compress-choice=zlibx",
        support: Support::OverSsh,
        set: |args, _| {
            choose_compression(args, b"zlibx");
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "compress-choice",
        aliases: &["zc"],
        arity: Arity::Value("STR"),
        help: "choose the compression",
        words: &names::COMPRESSION_NAMES,
        man: "zstd, lz4, zlibx, zlib, none, or auto: the first that both ends have; RSYNC_COMPRESS_LIST names those that \
              come into question, the best first. Both ends must know the method: a sparsync of before lz4 and zlib at \
              the far end ends the run with exit 4.",
        support: Support::OverSsh,
        set: |args, given| {
            choose_compression(args, given.value);
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "compress-level",
        aliases: &["zl"],
        arity: Arity::Value("NUM"),
        help: "set the level of compression",
        man: "-131072 to 22 with zstd (0 is 3), 1 to 9 with zlib and zlibx (0 is no compression, -1 is 6); what is beyond \
              is brought to the nearest. lz4 has none. A level alone asks for compression.",
        support: Support::OverSsh,
        set: |args, given| {
            args.compress_level = Some(number::int(given)?);
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "compress-threads",
        aliases: &["zt"],
        arity: Arity::Value("NUM"),
        help: "set the threads of compression",
        support: Support::NoEffect,
        reach: FlagScope::Here,
        set: |_, given| number::int(given).map(|_| ()),
        ..Flag::SWITCH
    },
    Flag {
        long: "skip-compress",
        arity: Arity::Value("LIST"),
        help: "leave files with these suffixes uncompressed",
        man: "Suffixes without dots, between slashes; letters in brackets stand for one of them. Their content goes as it \
              is (rsync compresses it all the same). Without the option nothing is left out by its name, but what turns \
              out not to shrink goes as it is.",
        support: Support::OverSsh,
        set: |args, given| {
            args.skip_compress = Some(given.value.to_vec());
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "write-batch",
        arity: Arity::Value("FILE"),
        help: "copy, and write the update to the batch FILE",
        support: Support::NotYet,
        set: |args, _| {
            args.write_batch = true;
            Ok(())
        },
        reach: FlagScope::Here,
        ..Flag::SWITCH
    },
    Flag {
        long: "only-write-batch",
        arity: Arity::Value("FILE"),
        help: "write the batch FILE without copying",
        support: Support::NotYet,
        set: |args, _| {
            args.only_write_batch = true;
            Ok(())
        },
        reach: FlagScope::Here,
        ..Flag::SWITCH
    },
    Flag {
        long: "read-batch",
        arity: Arity::Value("FILE"),
        help: "apply the batch FILE",
        support: Support::NotYet,
        set: |args, _| {
            args.read_batch = true;
            Ok(())
        },
        reach: FlagScope::Here,
        ..Flag::SWITCH
    },
];

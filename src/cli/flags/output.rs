//! Options that decide what is printed.

use crate::cli::args::PrintRequest;
use crate::cli::flag::{Arity, Flag, FlagScope, Support};
use crate::cli::value::{refuse, words};
use crate::options::{Outbuf, StderrMode};

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "verbose",
        short: Some('v'),
        negations: &["no-verbose", "no-v"],
        help: "print more details; repeat for more",
        man: "Each -v enables groups of --info and --debug flags; see --info=help.",
        set: |args, _| {
            args.verbose = args.verbose.saturating_add(1);
            Ok(())
        },
        unset: |args| args.verbose = 0,
        ..Flag::SWITCH
    },
    Flag {
        long: "info",
        arity: Arity::Value("FLAGS"),
        help: "select informational messages (list: --info=help)",
        words: &words::INFO_NAMES,
        man: "These flags override what -v, -i, --stats and --progress imply.",
        set: |args, given| {
            if words::info(given.value, &mut args.info)? == words::WordsArgument::Help {
                args.print = Some(PrintRequest::InfoHelp);
            }
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "debug",
        arity: Arity::Value("FLAGS"),
        help: "select debug messages (list: --debug=help)",
        words: &words::DEBUG_NAMES,
        man: "Every flag of rsync is accepted. In a local copy, flags about the protocol print nothing. These \
              messages are never printed: `removing duplicate name`, `deleting in`, and the one that the rules of -C \
              are global.",
        set: |args, given| {
            if words::debug(given.value, &mut args.debug)? == words::WordsArgument::Help {
                args.print = Some(PrintRequest::DebugHelp);
            }
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "stderr",
        arity: Arity::Value("e|a|c"),
        help: "set the stderr mode: errors, all or client",
        words: &["errors", "all", "client"],
        man: "If stderr is closed, its messages are discarded; rsync 3.5.0 ends with exit 13.",
        set: |args, given| {
            let begins = |word: &str| !given.value.is_empty() && word.as_bytes().starts_with(given.value);
            args.stderr = if begins("errors") {
                StderrMode::Errors
            } else if begins("all") {
                StderrMode::All
            } else if begins("client") {
                StderrMode::Client
            } else {
                let why = b"\" is not one of errors, all, or client";
                return Err(refuse([b"--stderr mode \"", given.value, why].concat()));
            };
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "msgs2stderr",
        negations: &["no-msgs2stderr"],
        help: "same as --stderr=all",
        man: "The negation is --stderr=client.",
        set: |args, _| {
            args.stderr = StderrMode::All;
            Ok(())
        },
        unset: |args| args.stderr = StderrMode::Client,
        ..Flag::SWITCH
    },
    Flag {
        long: "quiet",
        short: Some('q'),
        help: "print no messages except errors",
        set: |args, _| {
            args.quiet = args.quiet.saturating_add(1);
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "no-motd",
        negations: &["motd"],
        help: "do not print the daemon's message of the day",
        support: Support::OverSsh,
        reach: FlagScope::Local,
        set: |args, _| {
            args.daemon_options.no_motd = true;
            Ok(())
        },
        unset: |args| args.daemon_options.no_motd = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "outbuf",
        arity: Arity::Value("N|L|B"),
        help: "set the buffering of standard output: none, line or block",
        words: &["N", "L", "B"],
        set: |args, given| {
            args.outbuf = Some(match given.value.first().map(u8::to_ascii_uppercase) {
                Some(b'N' | b'U') => Outbuf::None,
                Some(b'L') => Outbuf::Line,
                Some(b'B' | b'F') => Outbuf::Block,
                _ => return Err(refuse("Invalid --outbuf setting -- specify N, L, or B.")),
            });
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "stats",
        help: "print statistics at the end",
        man: "The memory statistics that rsync prints with -vv or --info=stats3 are not available.",
        set: |args, _| {
            args.stats = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "8-bit-output",
        short: Some('8'),
        negations: &["no-8-bit-output", "no-8"],
        help: "print bytes above 127 in names unescaped",
        set: |args, _| {
            args.eight_bit = true;
            Ok(())
        },
        unset: |args| args.eight_bit = false,
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "human-readable",
        short: Some('h'),
        negations: &["no-human-readable", "no-h"],
        help: "print numbers with units of 1000; -hh: units of 1024",
        man: "Without -h, digits are grouped; with --no-h, they are not.",
        set: |args, _| {
            args.human = args.human.saturating_add(1);
            Ok(())
        },
        unset: |args| args.human = -1,
        ..Flag::SWITCH
    },
    Flag {
        long: "progress",
        negations: &["no-progress"],
        help: "show the progress of each file",
        set: |args, _| {
            args.progress = true;
            Ok(())
        },
        unset: |args| args.progress = false,
        ..Flag::SWITCH
    },
    Flag {
        short: Some('P'),
        help: "same as --partial --progress",
        set: |args, _| {
            args.progress = true;
            args.partial = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "itemize-changes",
        short: Some('i'),
        negations: &["no-itemize-changes", "no-i"],
        help: "print the changes of each entry; -ii: also unchanged entries",
        set: |args, _| {
            args.itemize = args.itemize.saturating_add(1);
            Ok(())
        },
        unset: |args| args.itemize = 0,
        ..Flag::SWITCH
    },
    Flag {
        long: "out-format",
        aliases: &["log-format"],
        arity: Arity::Value("FORMAT"),
        help: "print a line in FORMAT for each entry",
        man: "%n is the name, %i the itemized changes, %l the length, %L the target of a link; see rsync(1). %B is \
              the mode of the source, also in a pull without -p.",
        set: |args, given| {
            args.out_format = Some(given.value.to_vec());
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "log-file",
        arity: Arity::Value("FILE"),
        help: "log the changes to FILE",
        set: |args, given| {
            args.log_file = Some(given.value.to_vec());
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "log-file-format",
        arity: Arity::Value("FMT"),
        help: "log a line in FMT for each entry (default %i %n%L)",
        set: |args, given| {
            args.log_file_format = Some(given.value.to_vec());
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "dry-run",
        short: Some('n'),
        help: "print what would be done without changing anything",
        set: |args, _| {
            args.dry_run = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "list-only",
        help: "list the sources instead of copying them",
        man: "A single source without a destination implies this option.",
        set: |args, _| {
            args.list_only = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "version",
        short: Some('V'),
        help: "print version and capabilities; -VV: as JSON",
        set: |args, _| {
            args.version += 1;
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "help",
        help: "print this help (as does -h alone)",
        set: |args, _| {
            args.print = Some(PrintRequest::Help);
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
];

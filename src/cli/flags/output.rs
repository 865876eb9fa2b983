//! Options that decide what is printed.

use crate::cli::args::PrintRequest;
use crate::cli::flag::{Arity, Effect, Flag, Support};
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
        effect: Effect::Count(|args| &mut args.verbose),
        ..Flag::SWITCH
    },
    Flag {
        long: "info",
        arity: Arity::Value("FLAGS"),
        help: "select informational messages (list: --info=help)",
        words: &words::INFO_NAMES,
        man: "These flags override what -v, -i, --stats and --progress imply.",
        effect: Effect::Argument(|args, given| {
            if words::info(given.value, &mut args.info)? == words::WordsArgument::Help {
                args.print = Some(PrintRequest::InfoHelp);
            }
            Ok(())
        }),
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
        effect: Effect::Argument(|args, given| {
            if words::debug(given.value, &mut args.debug)? == words::WordsArgument::Help {
                args.print = Some(PrintRequest::DebugHelp);
            }
            Ok(())
        }),
        ..Flag::SWITCH
    },
    Flag {
        long: "stderr",
        arity: Arity::Value("e|a|c"),
        help: "set the stderr mode: errors, all or client",
        words: &["errors", "all", "client"],
        man: "If stderr is closed, its messages are discarded; rsync 3.5.0 ends with exit 13.",
        effect: Effect::Argument(|args, given| {
            let begins = |word: &str| !given.value.is_empty() && word.as_bytes().starts_with(given.value);
            args.output.stderr = if begins("errors") {
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
        }),
        ..Flag::SWITCH
    },
    Flag {
        long: "msgs2stderr",
        negations: &["no-msgs2stderr"],
        help: "same as --stderr=all",
        man: "The negation is --stderr=client.",
        effect: Effect::Either(
            |args| args.output.stderr = StderrMode::All,
            |args| args.output.stderr = StderrMode::Client,
        ),
        ..Flag::SWITCH
    },
    Flag {
        long: "quiet",
        short: Some('q'),
        help: "print no messages except errors",
        effect: Effect::Count(|args| &mut args.quiet),
        ..Flag::SWITCH
    },
    Flag {
        long: "no-motd",
        negations: &["motd"],
        help: "do not print the daemon's message of the day",
        support: Support::OverSsh,
        effect: Effect::Switch(|args| &mut args.connect.daemon.no_motd),
        ..Flag::LOCAL
    },
    Flag {
        long: "outbuf",
        arity: Arity::Value("N|L|B"),
        help: "set the buffering of standard output: none, line or block",
        words: &["N", "L", "B"],
        effect: Effect::Argument(|args, given| {
            args.output.outbuf = Some(match given.value.first().map(u8::to_ascii_uppercase) {
                Some(b'N' | b'U') => Outbuf::None,
                Some(b'L') => Outbuf::Line,
                Some(b'B' | b'F') => Outbuf::Block,
                _ => return Err(refuse("Invalid --outbuf setting -- specify N, L, or B.")),
            });
            Ok(())
        }),
        ..Flag::LOCAL
    },
    Flag {
        long: "stats",
        help: "print statistics at the end",
        man: "The memory statistics that rsync prints with -vv or --info=stats3 are not available.",
        effect: Effect::Switch(|args| &mut args.stats),
        ..Flag::SWITCH
    },
    Flag {
        long: "8-bit-output",
        short: Some('8'),
        negations: &["no-8-bit-output", "no-8"],
        help: "print bytes above 127 in names unescaped",
        effect: Effect::Switch(|args| &mut args.output.eight_bit),
        ..Flag::LOCAL
    },
    Flag {
        long: "human-readable",
        short: Some('h'),
        negations: &["no-human-readable", "no-h"],
        help: "print numbers with units of 1000; -hh: units of 1024",
        man: "Without -h, digits are grouped; with --no-h, they are not.",
        effect: Effect::Either(|args| args.human = args.human.saturating_add(1), |args| args.human = -1),
        ..Flag::SWITCH
    },
    Flag {
        long: "progress",
        negations: &["no-progress"],
        help: "show the progress of each file",
        effect: Effect::Switch(|args| &mut args.output.progress),
        ..Flag::SWITCH
    },
    Flag {
        short: Some('P'),
        help: "same as --partial --progress",
        effect: Effect::Switches(&[|args| &mut args.output.progress, |args| &mut args.place.partial]),
        ..Flag::SWITCH
    },
    Flag {
        long: "itemize-changes",
        short: Some('i'),
        negations: &["no-itemize-changes", "no-i"],
        help: "print the changes of each entry; -ii: also unchanged entries",
        effect: Effect::Count(|args| &mut args.itemize),
        ..Flag::SWITCH
    },
    Flag {
        long: "out-format",
        aliases: &["log-format"],
        arity: Arity::Value("FORMAT"),
        help: "print a line in FORMAT for each entry",
        man: "%n is the name, %i the itemized changes, %l the length, %L the target of a link; see rsync(1). %B is \
              the mode of the source, also in a pull without -p.",
        effect: Effect::Text(|args| &mut args.out_format),
        ..Flag::SWITCH
    },
    Flag {
        long: "log-file",
        arity: Arity::Value("FILE"),
        help: "log the changes to FILE",
        effect: Effect::Text(|args| &mut args.log_file),
        ..Flag::LOCAL
    },
    Flag {
        long: "log-file-format",
        arity: Arity::Value("FMT"),
        help: "log a line in FMT for each entry (default %i %n%L)",
        effect: Effect::Text(|args| &mut args.log_file_format),
        ..Flag::LOCAL
    },
    Flag {
        long: "dry-run",
        short: Some('n'),
        help: "print what would be done without changing anything",
        effect: Effect::Switch(|args| &mut args.dry_run),
        ..Flag::SWITCH
    },
    Flag {
        long: "list-only",
        help: "list the sources instead of copying them",
        man: "A single source without a destination implies this option.",
        effect: Effect::Switch(|args| &mut args.select.list_only),
        ..Flag::SWITCH
    },
    Flag {
        long: "version",
        short: Some('V'),
        help: "print version and capabilities; -VV: as JSON",
        effect: Effect::Count(|args| &mut args.version),
        ..Flag::LOCAL
    },
    Flag {
        long: "help",
        help: "print this help (as does -h alone)",
        effect: Effect::Set(|args| args.print = Some(PrintRequest::Help)),
        ..Flag::LOCAL
    },
];

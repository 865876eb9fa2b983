//! Options that decide what is printed.

use crate::cli::args::PrintRequest;
use crate::cli::flag::{Effect, Flag, Support};
use crate::cli::value::{refuse, words};
use crate::options::{Outbuf, StderrMode};

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag::switch("verbose", "print more details; repeat for more")
        .short('v')
        .negations(&["no-verbose", "no-v"])
        .effect(Effect::Count(|args| &mut args.verbose))
        .man("Each -v enables groups of --info and --debug flags; see --info=help."),
    Flag::value("info", "FLAGS", "select informational messages (list: --info=help)")
        .words(&words::INFO_NAMES)
        .effect(Effect::Argument(|args, given| {
            let read = if args.server {
                words::info_of_client
            } else {
                words::info
            };
            if read(given.value, &mut args.info)? == words::WordsArgument::Help {
                args.print = Some(PrintRequest::InfoHelp);
            }
            Ok(())
        }))
        .man("These flags override what -v, -i, --stats and --progress imply."),
    Flag::value("debug", "FLAGS", "select debug messages (list: --debug=help)")
        .words(&words::DEBUG_NAMES)
        .effect(Effect::Argument(|args, given| {
            let read = if args.server {
                words::debug_of_client
            } else {
                words::debug
            };
            if read(given.value, &mut args.debug)? == words::WordsArgument::Help {
                args.print = Some(PrintRequest::DebugHelp);
            }
            Ok(())
        }))
        .man(
            "Every flag of rsync is accepted. In a local copy, flags about the protocol print nothing. These \
             messages are never printed: `removing duplicate name`, `deleting in`, and the one that the rules of -C \
             are global.",
        ),
    Flag::value("stderr", "e|a|c", "set the stderr mode: errors, all or client")
        .words(&["errors", "all", "client"])
        .effect(Effect::Argument(|args, given| {
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
        }))
        .man("If stderr is closed, its messages are discarded; rsync 3.5.0 ends with exit 13."),
    Flag::switch("msgs2stderr", "same as --stderr=all")
        .negations(&["no-msgs2stderr"])
        .effect(Effect::Either(
            |args| args.output.stderr = StderrMode::All,
            |args| args.output.stderr = StderrMode::Client,
        ))
        .man("The negation is --stderr=client."),
    Flag::switch("quiet", "print no messages except errors").short('q').effect(Effect::Count(|args| &mut args.quiet)),
    Flag::switch("no-motd", "do not print the daemon's message of the day")
        .negations(&["motd"])
        .effect(Effect::Switch(|args| &mut args.connect.daemon.no_motd))
        .local()
        .support(Support::OverSsh),
    Flag::value("outbuf", "N|L|B", "set the buffering of standard output: none, line or block")
        .words(&["N", "L", "B"])
        .effect(Effect::Argument(|args, given| {
            args.output.outbuf = Some(match given.value.first().map(u8::to_ascii_uppercase) {
                Some(b'N' | b'U') => Outbuf::None,
                Some(b'L') => Outbuf::Line,
                Some(b'B' | b'F') => Outbuf::Block,
                // A server has no standard output of its own.
                _ if args.server => return Ok(()),
                _ => return Err(refuse("Invalid --outbuf setting -- specify N, L, or B.")),
            });
            Ok(())
        }))
        .local(),
    Flag::switch("stats", "print statistics at the end")
        .effect(Effect::Switch(|args| &mut args.stats))
        .man("The memory statistics that rsync prints with -vv or --info=stats3 are not available."),
    Flag::switch("8-bit-output", "print bytes above 127 in names unescaped")
        .short('8')
        .negations(&["no-8-bit-output", "no-8"])
        .effect(Effect::Switch(|args| &mut args.output.eight_bit))
        .local(),
    Flag::switch("human-readable", "print numbers with units of 1000; -hh: units of 1024")
        .short('h')
        .negations(&["no-human-readable", "no-h"])
        .effect(Effect::Either(|args| args.human = args.human.saturating_add(1), |args| args.human = -1))
        .man("Without -h, digits are grouped; with --no-h, they are not."),
    Flag::switch("progress", "show the progress of each file")
        .negations(&["no-progress"])
        .effect(Effect::Switch(|args| &mut args.output.progress))
        .man("Without it, SIGVTALRM to the process that the user started prints the next file that has been copied and one \
              line of progress, except with -q."),
    Flag::switch("", "same as --partial --progress")
        .short('P')
        .effect(Effect::Switches(&[|args| &mut args.output.progress, |args| &mut args.place.partial])),
    Flag::switch("itemize-changes", "print the changes of each entry; -ii: also unchanged entries")
        .short('i')
        .negations(&["no-itemize-changes", "no-i"])
        .effect(Effect::Count(|args| &mut args.itemize)),
    Flag::value("out-format", "FORMAT", "print a line in FORMAT for each entry")
        .aliases(&["log-format"])
        .effect(Effect::Text(|args| &mut args.out_format))
        .man(
            "%n is the name, %i the itemized changes, %l the length, %L the target of a link; see rsync(1). %B is \
             the mode of the source, also in a pull without -p.",
        ),
    Flag::value("log-file", "FILE", "log the changes to FILE").effect(Effect::Text(|args| &mut args.log_file)).local(),
    Flag::value("log-file-format", "FMT", "log a line in FMT for each entry (default %i %n%L)")
        .effect(Effect::Text(|args| &mut args.log_file_format))
        .local(),
    Flag::switch("dry-run", "print what would be done without changing anything")
        .short('n')
        .effect(Effect::Switch(|args| &mut args.dry_run)),
    Flag::switch("list-only", "list the sources instead of copying them")
        .effect(Effect::Switch(|args| &mut args.select.list_only))
        .man("A single source without a destination implies this option."),
    Flag::switch("version", "print version and capabilities; -VV: as JSON")
        .short('V')
        .effect(Effect::Count(|args| &mut args.version))
        .local(),
    Flag::switch("help", "print this help (as does -h alone)")
        .effect(Effect::Set(|args| args.print = Some(PrintRequest::Help)))
        .local(),
];

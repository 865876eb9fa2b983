//! Options for reaching a peer, and limits of rate, time and memory.

use crate::cli::flag::{Arity, Effect, Flag, Support};
use crate::cli::value::{Given, refuse, size, stop};
use crate::options::connect::Family;
use crate::options::output::StopAt;

/// An option of a server or a daemon.
const SERVER_SIDE: Flag = Flag { support: Support::ServerSide, ..Flag::LOCAL };

/// An option for reaching a peer. It has no effect on a local copy, and the peer does not need it.
const WAY: Flag = Flag { support: Support::OverSsh, ..Flag::LOCAL };

/// An option for reaching a peer that takes a text.
const WAY_TEXT: Flag = Flag { arity: Arity::Value("STR"), ..WAY };

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "rsh",
        short: Some('e'),
        arity: Arity::Value("COMMAND"),
        help: "use COMMAND as the remote shell",
        effect: Effect::Text(|args| &mut args.rsh),
        ..WAY_TEXT
    },
    Flag {
        long: "rsync-path",
        arity: Arity::Value("PROGRAM"),
        help: "the program to run on the remote machine",
        effect: Effect::Text(|args| &mut args.connect.program),
        ..WAY_TEXT
    },
    Flag {
        long: "remote-option",
        short: Some('M'),
        arity: Arity::Value("OPT"),
        help: "send OPT to the remote side only",
        effect: Effect::Argument(|args, given| {
            if !given.value.starts_with(b"-") {
                return Err(refuse([b"Remote option must start with a dash: ", given.value].concat()));
            }
            args.remote_options.push(given.value.to_vec());
            Ok(())
        }),
        ..Flag::LOCAL
    },
    Flag {
        long: "old-args",
        negations: &["no-old-args"],
        help: "let the remote shell split arguments, as rsync did before 3.2.4",
        man: "An empty destination means the current directory.",
        effect: Effect::Either(
            |args| args.old_args = Some(args.old_args.unwrap_or(0).saturating_add(1)),
            |args| args.old_args = Some(0),
        ),
        ..WAY
    },
    Flag {
        long: "secluded-args",
        aliases: &["protect-args"],
        short: Some('s'),
        negations: &["no-secluded-args", "no-protect-args", "no-s"],
        help: "send file names over the connection instead of the remote command line",
        effect: Effect::Choice(|args| &mut args.secluded_args),
        ..WAY
    },
    Flag {
        long: "trust-sender",
        help: "trust the file list of a remote sender",
        man: "Does not check that the sender sends only requested files. Paths that lead out of the destination are \
              rejected in any case.",
        effect: Effect::Switch(|args| &mut args.connect.trust_sender),
        ..WAY
    },
    Flag {
        long: "address",
        arity: Arity::Value("ADDRESS"),
        help: "the local address to use for a daemon",
        effect: Effect::Text(|args| &mut args.connect.address),
        ..WAY
    },
    Flag {
        long: "port",
        arity: Arity::Value("PORT"),
        help: "the port of a daemon",
        effect: Effect::Number(|args| &mut args.port),
        ..WAY
    },
    Flag {
        long: "sockopts",
        arity: Arity::Value("OPTIONS"),
        help: "socket options for a daemon connection",
        effect: Effect::Text(|args| &mut args.connect.daemon.sockopts),
        ..WAY
    },
    Flag {
        long: "password-file",
        arity: Arity::Value("FILE"),
        help: "read the daemon password from FILE (an error without a daemon)",
        effect: Effect::Text(|args| &mut args.connect.daemon.password_file),
        ..WAY
    },
    Flag {
        long: "early-input",
        arity: Arity::Value("FILE"),
        help: "send FILE to the early exec program of a daemon",
        effect: Effect::Text(|args| &mut args.connect.daemon.early_input),
        ..WAY
    },
    Flag {
        long: "blocking-io",
        negations: &["no-blocking-io"],
        help: "use blocking I/O for the remote shell",
        man: "Blocking I/O is always used.",
        support: Support::NoEffect,
        ..WAY
    },
    Flag {
        long: "ipv4",
        short: Some('4'),
        help: "prefer IPv4",
        effect: Effect::Set(|args| args.connect.family = Some(Family::Ipv4)),
        ..WAY
    },
    Flag {
        long: "ipv6",
        short: Some('6'),
        help: "prefer IPv6",
        effect: Effect::Set(|args| args.connect.family = Some(Family::Ipv6)),
        ..WAY
    },
    Flag {
        long: "timeout",
        arity: Arity::Value("SECONDS"),
        negations: &["no-timeout"],
        help: "set the I/O timeout in SECONDS",
        support: Support::OverSsh,
        effect: Effect::Number(|args| &mut args.timeout),
        ..Flag::SWITCH
    },
    Flag {
        long: "contimeout",
        arity: Arity::Value("SECONDS"),
        negations: &["no-contimeout"],
        help: "set the connection timeout of a server in SECONDS",
        effect: Effect::Number(|args| &mut args.contimeout),
        support: Support::Yes,
        ..WAY
    },
    Flag {
        long: "bwlimit",
        arity: Arity::Value("RATE"),
        negations: &["no-bwlimit"],
        help: "limit the bandwidth to RATE KiB per second",
        man: "RATE is a SIZE (see --max-size), in KiB if it has no unit. It is rounded to whole KiB.",
        effect: Effect::Revocable(
            |args, given| {
                let limits = size::SizeLimits { min: 512, min_text: "512", ..size::ANY };
                let bytes = size::size(given, "bwlimit", b'k', &limits)?;
                args.connect.bwlimit_bytes_per_sec =
                    Some(bytes.saturating_add(512) / 1024 * 1024).filter(|&bytes| bytes > 0);
                Ok(())
            },
            |args| args.connect.bwlimit_bytes_per_sec = None,
        ),
        ..Flag::SWITCH
    },
    Flag {
        long: "stop-after",
        aliases: &["time-limit"],
        arity: Arity::Value("MINS"),
        help: "stop the run after MINS minutes",
        effect: Effect::Argument(|args, given| {
            args.connect.stop = Some(StopAt::AfterMinutes(stop::after(given.value)?));
            Ok(())
        }),
        ..Flag::LOCAL
    },
    Flag {
        long: "stop-at",
        arity: Arity::Value("y-m-dTh:m"),
        help: "stop the run at this time (y-m-dTh:m)",
        man: "The date or its first parts can be omitted; the option then selects the next matching time.",
        effect: Effect::Argument(|args, given| {
            args.connect.stop = Some(StopAt::AtUnixSecs(stop::at(given.value, args.now_unix_secs)?));
            Ok(())
        }),
        ..Flag::LOCAL
    },
    Flag {
        long: "max-alloc",
        arity: Arity::Value("SIZE"),
        help: "limit the memory for the listing of one directory from a peer",
        man: "The default is 1G; 0 means no limit. If a listing exceeds the limit, the run ends with exit 22.",
        effect: Effect::Text(|args| &mut args.max_alloc),
        support: Support::OverSsh,
        ..Flag::SWITCH
    },
    Flag {
        long: "protocol",
        arity: Arity::Value("NUM"),
        help: "use an older version of rsync's protocol",
        man: "31 and 32 have the same effect. With a version before 31, only rsync's protocol is used, over a remote shell or \
              with a daemon. A version before 27 is not supported.",
        effect: Effect::Number(|args| &mut args.protocol),
        ..WAY
    },
    Flag {
        long: "server",
        help: "run as the server of a client",
        effect: Effect::Switch(|args| &mut args.server),
        ..SERVER_SIDE
    },
    Flag {
        long: "sender",
        help: "with --server: act as the sender",
        effect: Effect::Switch(|args| &mut args.sender),
        ..SERVER_SIDE
    },
    Flag {
        long: "daemon",
        help: "run as a daemon for rsync clients",
        effect: Effect::Switch(|args| &mut args.daemon),
        ..SERVER_SIDE
    },
    Flag {
        long: "config",
        arity: Arity::Value("FILE"),
        help: "with --daemon: read the configuration from FILE",
        ..SERVER_SIDE
    },
    Flag {
        long: "dparam",
        arity: Arity::Value("OVERRIDE"),
        help: "with --daemon: override a global parameter",
        ..SERVER_SIDE
    },
    Flag { long: "detach", negations: &["no-detach"], help: "with --daemon: detach from the terminal", ..SERVER_SIDE },
];

/// Parses a `--max-alloc`, which may also come from RSYNC_MAX_ALLOC, in bytes; `None`: no limit. rsync checks
/// it after all options.
pub fn max_alloc_bytes(value: &[u8]) -> crate::error::Result<Option<u64>> {
    let limits = size::SizeLimits { min: 1 << 20, min_text: "1.00M", ..size::ANY };
    let bytes = size::size(&Given { value, word: value }, "max-alloc", b'b', &limits)?;
    Ok((bytes > 0).then_some(bytes))
}

//! Options for reaching a peer, and limits of rate, time and memory.

use crate::cli::flag::{Arity, Flag, FlagScope, Support};
use crate::cli::value::{Given, number, refuse, size, stop};
use crate::options::connect::Family;
use crate::options::output::StopAt;

/// An option of a server or a daemon.
const SERVER_SIDE: Flag = Flag {
    support: Support::ServerSide,
    reach: FlagScope::Local,
    set: |args, _| {
        args.is_server_side = true;
        Ok(())
    },
    unset: |args| args.is_server_side = true,
    ..Flag::SWITCH
};

/// An option for reaching a peer. It has no effect on a local copy, and the peer does not need it.
const WAY: Flag = Flag { support: Support::OverSsh, reach: FlagScope::Local, ..Flag::SWITCH };

/// An option for reaching a peer that takes a text.
const WAY_TEXT: Flag = Flag { arity: Arity::Value("STR"), ..WAY };

/// An option for reaching a daemon. It has no effect on other copies.
const DAEMON_WAY: Flag = WAY;

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "rsh",
        short: Some('e'),
        arity: Arity::Value("COMMAND"),
        help: "use COMMAND as the remote shell",
        set: |args, given| {
            args.rsh = Some(given.value.to_vec());
            Ok(())
        },
        ..WAY_TEXT
    },
    Flag {
        long: "rsync-path",
        arity: Arity::Value("PROGRAM"),
        help: "the program to run on the remote machine",
        set: |args, given| {
            args.rsync_path = Some(given.value.to_vec());
            Ok(())
        },
        ..WAY_TEXT
    },
    Flag {
        long: "remote-option",
        short: Some('M'),
        arity: Arity::Value("OPT"),
        help: "send OPT to the remote side only",
        reach: FlagScope::Local,
        set: |args, given| {
            if !given.value.starts_with(b"-") {
                return Err(refuse([b"Remote option must start with a dash: ", given.value].concat()));
            }
            args.remote_options.push(given.value.to_vec());
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "old-args",
        negations: &["no-old-args"],
        help: "let the remote shell split arguments, as rsync did before 3.2.4",
        man: "An empty destination means the current directory.",
        set: |args, _| {
            args.old_args = Some(args.old_args.unwrap_or(0).saturating_add(1));
            Ok(())
        },
        unset: |args| args.old_args = Some(0),
        ..WAY
    },
    Flag {
        long: "secluded-args",
        aliases: &["protect-args"],
        short: Some('s'),
        negations: &["no-secluded-args", "no-protect-args", "no-s"],
        help: "send file names over the connection instead of the remote command line",
        set: |args, _| {
            args.secluded_args = Some(true);
            Ok(())
        },
        unset: |args| args.secluded_args = Some(false),
        ..WAY
    },
    Flag {
        long: "trust-sender",
        help: "trust the file list of a remote sender",
        man: "Does not check that the sender sends only requested files. Paths that lead out of the destination are \
              rejected in any case.",
        set: |args, _| {
            args.trust_sender = true;
            Ok(())
        },
        ..WAY
    },
    Flag {
        long: "address",
        arity: Arity::Value("ADDRESS"),
        help: "the local address to use for a daemon",
        set: |args, given| {
            args.address = Some(given.value.to_vec());
            Ok(())
        },
        ..DAEMON_WAY
    },
    Flag {
        long: "port",
        arity: Arity::Value("PORT"),
        help: "the port of a daemon",
        set: |args, given| {
            args.port = number::int(given)?;
            Ok(())
        },
        ..DAEMON_WAY
    },
    Flag {
        long: "sockopts",
        arity: Arity::Value("OPTIONS"),
        help: "socket options for a daemon connection",
        set: |args, given| {
            args.daemon_options.sockopts = Some(given.value.to_vec());
            Ok(())
        },
        ..DAEMON_WAY
    },
    Flag {
        long: "password-file",
        arity: Arity::Value("FILE"),
        help: "read the daemon password from FILE (an error without a daemon)",
        set: |args, given| {
            args.daemon_options.password_file = Some(given.value.to_vec());
            Ok(())
        },
        ..DAEMON_WAY
    },
    Flag {
        long: "early-input",
        arity: Arity::Value("FILE"),
        help: "send FILE to the early exec program of a daemon",
        set: |args, given| {
            args.daemon_options.early_input = Some(given.value.to_vec());
            Ok(())
        },
        ..DAEMON_WAY
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
        set: |args, _| {
            args.family = Some(Family::Ipv4);
            Ok(())
        },
        ..WAY
    },
    Flag {
        long: "ipv6",
        short: Some('6'),
        help: "prefer IPv6",
        set: |args, _| {
            args.family = Some(Family::Ipv6);
            Ok(())
        },
        ..WAY
    },
    Flag {
        long: "timeout",
        arity: Arity::Value("SECONDS"),
        negations: &["no-timeout"],
        help: "set the I/O timeout in SECONDS",
        support: Support::OverSsh,
        set: |args, given| {
            args.timeout = number::int(given)?;
            Ok(())
        },
        unset: |args| args.timeout = 0,
        ..Flag::SWITCH
    },
    Flag {
        long: "contimeout",
        arity: Arity::Value("SECONDS"),
        negations: &["no-contimeout"],
        help: "set the connection timeout of a server in SECONDS",
        set: |args, given| {
            args.contimeout = number::int(given)?;
            Ok(())
        },
        unset: |args| args.contimeout = 0,
        support: Support::Yes,
        ..WAY
    },
    Flag {
        long: "bwlimit",
        arity: Arity::Value("RATE"),
        negations: &["no-bwlimit"],
        help: "limit the bandwidth to RATE KiB per second",
        man: "RATE is a SIZE (see --max-size), in KiB if it has no unit. It is rounded to whole KiB.",
        set: |args, given| {
            let limits = size::SizeLimits { min: 512, min_text: "512", ..size::ANY };
            let bytes = size::size(given, "bwlimit", b'k', &limits)?;
            args.bwlimit = Some(bytes.saturating_add(512) / 1024 * 1024).filter(|&bytes| bytes > 0);
            Ok(())
        },
        unset: |args| args.bwlimit = None,
        ..Flag::SWITCH
    },
    Flag {
        long: "stop-after",
        aliases: &["time-limit"],
        arity: Arity::Value("MINS"),
        help: "stop the run after MINS minutes",
        set: |args, given| {
            args.stop = Some(StopAt::AfterMinutes(stop::after(given.value)?));
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "stop-at",
        arity: Arity::Value("y-m-dTh:m"),
        help: "stop the run at this time (y-m-dTh:m)",
        man: "The date or its first parts can be omitted; the option then selects the next matching time.",
        set: |args, given| {
            args.stop = Some(StopAt::AtUnixSecs(stop::at(given.value, args.now_unix_secs)?));
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "max-alloc",
        arity: Arity::Value("SIZE"),
        help: "limit the memory for the listing of one directory from a peer",
        man: "The default is 1G; 0 means no limit. If a listing exceeds the limit, the run ends with exit 22.",
        set: |args, given| {
            args.max_alloc = Some(given.value.to_vec());
            Ok(())
        },
        support: Support::OverSsh,
        ..Flag::SWITCH
    },
    Flag {
        long: "protocol",
        arity: Arity::Value("NUM"),
        help: "use an older version of rsync's protocol",
        man: "31 and 32 have the same effect. With a version before 31, only rsync's protocol is used, over a remote shell or \
              with a daemon. A version before 27 is not supported.",
        set: |args, given| {
            args.protocol = Some(number::int(given)?);
            Ok(())
        },
        ..WAY
    },
    Flag {
        long: "server",
        help: "run as the server of a client",
        set: |args, _| {
            args.server = true;
            args.is_server_side = true;
            Ok(())
        },
        ..SERVER_SIDE
    },
    Flag {
        long: "sender",
        help: "with --server: act as the sender",
        set: |args, _| {
            args.sender = true;
            args.is_server_side = true;
            Ok(())
        },
        ..SERVER_SIDE
    },
    Flag {
        long: "daemon",
        help: "run as a daemon for rsync clients",
        set: |args, _| {
            args.daemon = true;
            args.is_server_side = true;
            Ok(())
        },
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

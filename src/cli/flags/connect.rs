//! Options about how a peer is reached, and limits of rate, time and memory.

use crate::cli::flag::{Arity, Flag, Given, Support, refuse};
use crate::cli::value::{number, size, stop};
use crate::options::output::StopAt;

/// An option that hands the run over to the installed rsync.
const HANDOVER: Flag = Flag {
    support: Support::Handover,
    set: |args, _| {
        args.handover = true;
        Ok(())
    },
    unset: |args| args.handover = true,
    ..Flag::SWITCH
};

/// An option about a peer; a local copy has none.
const IDLE: Flag = Flag { support: Support::NoEffect, ..Flag::SWITCH };

/// An option about a peer that takes a text.
const IDLE_TEXT: Flag = Flag { arity: Arity::Value("STR"), ..IDLE };

/// An option about a peer that takes a number.
const IDLE_NUMBER: Flag = Flag { arity: Arity::Value("NUM"), set: |_, given| number::int(given).map(|_| ()), ..IDLE };

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag { long: "rsh", short: Some('e'), arity: Arity::Value("COMMAND"), help: "the remote shell", ..IDLE_TEXT },
    Flag {
        long: "rsync-path",
        arity: Arity::Value("PROGRAM"),
        help: "the rsync to run on the remote machine",
        ..IDLE_TEXT
    },
    Flag {
        long: "remote-option",
        short: Some('M'),
        arity: Arity::Value("OPT"),
        help: "give OPT to the other side only",
        man: "A local copy of rsync's gives it to the receiving process; not carried out yet there.",
        support: Support::NotYet,
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
        help: "let the remote shell split arguments, as rsync before 3.2.4",
        man: "An empty destination means the current directory.",
        set: |args, _| {
            args.old_args = Some(args.old_args.unwrap_or(0).saturating_add(1));
            Ok(())
        },
        unset: |args| args.old_args = Some(0),
        ..IDLE
    },
    Flag {
        long: "secluded-args",
        aliases: &["protect-args"],
        short: Some('s'),
        negations: &["no-secluded-args", "no-protect-args", "no-s"],
        help: "send arguments over the connection",
        set: |args, _| {
            args.secluded_args = Some(true);
            Ok(())
        },
        unset: |args| args.secluded_args = Some(false),
        ..IDLE
    },
    Flag { long: "trust-sender", help: "do not check the remote sender's list", ..IDLE },
    Flag { long: "address", arity: Arity::Value("ADDRESS"), help: "the local address towards a daemon", ..IDLE_TEXT },
    Flag { long: "port", arity: Arity::Value("PORT"), help: "the port of a daemon", ..IDLE_NUMBER },
    Flag {
        long: "sockopts",
        arity: Arity::Value("OPTIONS"),
        help: "options of the socket towards a daemon",
        ..IDLE_TEXT
    },
    Flag {
        long: "password-file",
        arity: Arity::Value("FILE"),
        help: "read the password for a daemon from FILE (an error without one)",
        set: |args, _| {
            args.password_file = true;
            Ok(())
        },
        ..IDLE
    },
    Flag { long: "early-input", arity: Arity::Value("FILE"), help: "send FILE to a daemon's early exec", ..IDLE_TEXT },
    Flag {
        long: "blocking-io",
        negations: &["no-blocking-io"],
        help: "use blocking I/O towards the remote shell",
        ..IDLE
    },
    Flag { long: "ipv4", short: Some('4'), help: "prefer IPv4", ..IDLE },
    Flag { long: "ipv6", short: Some('6'), help: "prefer IPv6", ..IDLE },
    Flag {
        long: "timeout",
        arity: Arity::Value("SECONDS"),
        negations: &["no-timeout"],
        help: "give up when a peer is silent for so long",
        ..IDLE_NUMBER
    },
    Flag {
        long: "contimeout",
        arity: Arity::Value("SECONDS"),
        negations: &["no-contimeout"],
        help: "give up when a daemon cannot be reached for so long (an error without one)",
        set: |args, given| {
            args.contimeout = number::int(given)?;
            Ok(())
        },
        unset: |args| args.contimeout = 0,
        ..IDLE
    },
    Flag {
        long: "bwlimit",
        arity: Arity::Value("RATE"),
        negations: &["no-bwlimit"],
        help: "copy at most RATE KiB a second",
        man: "RATE is a SIZE (see --max-size) in KiB unless it has a letter; rounded to whole KiB.",
        set: |args, given| {
            let limits = size::Limits { min: 512, min_text: "512", ..size::ANY };
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
        help: "stop after so many minutes",
        set: |args, given| {
            args.stop = Some(StopAt::AfterMinutes(stop::after(given.value)?));
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "stop-at",
        arity: Arity::Value("y-m-dTh:m"),
        help: "stop at this time",
        man: "The date or its first parts may be left out: the next such time is meant.",
        set: |args, given| {
            args.stop = Some(StopAt::AtUnixSecs(stop::at(given.value, args.now_unix_secs)?));
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "max-alloc",
        arity: Arity::Value("SIZE"),
        help: "limit a single allocation (checked, not needed here)",
        set: |args, given| {
            args.max_alloc = Some(given.value.to_vec());
            Ok(())
        },
        ..IDLE
    },
    Flag {
        long: "protocol",
        arity: Arity::Value("NUM"),
        help: "use an older protocol",
        man: "31 and 32 are the same on a local copy; older ones are not carried out yet.",
        set: |args, given| {
            args.protocol = Some(number::int(given)?);
            Ok(())
        },
        ..IDLE
    },
    Flag { long: "server", help: "serve an rsync client (by the installed rsync)", ..HANDOVER },
    Flag { long: "sender", help: "with --server: send", ..HANDOVER },
    Flag { long: "daemon", help: "run as daemon (by the installed rsync)", ..HANDOVER },
    Flag { long: "config", arity: Arity::Value("FILE"), help: "with --daemon: its configuration", ..HANDOVER },
    Flag { long: "dparam", arity: Arity::Value("OVERRIDE"), help: "with --daemon: a parameter", ..HANDOVER },
    Flag { long: "detach", negations: &["no-detach"], help: "with --daemon: leave the terminal", ..HANDOVER },
];

/// Checks a `--max-alloc`, which may also come from RSYNC_MAX_ALLOC; rsync does so after all options.
pub fn check_max_alloc(value: &[u8]) -> crate::error::Result<()> {
    let limits = size::Limits { min: 1 << 20, min_text: "1.00M", ..size::ANY };
    size::size(&Given { value, word: value }, "max-alloc", b'b', &limits).map(|_| ())
}

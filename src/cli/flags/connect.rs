//! Options for reaching a peer, and limits of rate, time and memory.

use crate::cli::flag::{Effect, Flag, Support};
use crate::cli::value::{Given, refuse, size, stop};
use crate::options::connect::Family;
use crate::options::output::StopAt;

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag::value("rsh", "COMMAND", "use COMMAND as the remote shell")
        .short('e')
        .effect(Effect::Text(|args| &mut args.rsh))
        .connection(),
    Flag::value("rsync-path", "PROGRAM", "the program to run on the remote machine")
        .effect(Effect::Text(|args| &mut args.connect.program))
        .connection(),
    Flag::value("remote-option", "OPT", "send OPT to the remote side only")
        .short('M')
        .effect(Effect::Argument(|args, given| {
            if !given.value.starts_with(b"-") {
                return Err(refuse([b"Remote option must start with a dash: ", given.value].concat()));
            }
            args.remote_options.push(given.value.to_vec());
            Ok(())
        }))
        .local(),
    Flag::switch("old-args", "let the remote shell split arguments, as rsync did before 3.2.4")
        .negations(&["no-old-args"])
        .effect(Effect::Either(
            |args| args.old_args = Some(args.old_args.unwrap_or(0).saturating_add(1)),
            |args| args.old_args = Some(0),
        ))
        .connection()
        .man("An empty destination means the current directory. Over QUIC and TLS no shell splits anything: arguments in \
              which a shell would change more than wildcards are copied over ssh, or refused if the route was given."),
    Flag::switch("secluded-args", "send file names over the connection instead of the remote command line")
        .short('s')
        .aliases(&["protect-args"])
        .negations(&["no-secluded-args", "no-protect-args", "no-s"])
        .effect(Effect::Choice(|args| &mut args.secluded_args))
        .connection(),
    Flag::switch("trust-sender", "trust the file list of a remote sender")
        .effect(Effect::Switch(|args| &mut args.connect.trust_sender))
        .connection()
        .man("Does not check that the sender sends only requested files. Paths that lead out of the destination are \
              rejected in any case."),
    Flag::value("address", "ADDRESS", "the local address to use for a daemon")
        .effect(Effect::Text(|args| &mut args.connect.address))
        .connection(),
    Flag::value("port", "PORT", "the port of a daemon")
        .effect(Effect::Number(|args| &mut args.port))
        .connection(),
    Flag::value("sockopts", "OPTIONS", "socket options for a daemon connection")
        .effect(Effect::Text(|args| &mut args.connect.daemon.sockopts))
        .connection(),
    Flag::value("password-file", "FILE", "read the daemon password from FILE (an error without a daemon)")
        .effect(Effect::Text(|args| &mut args.connect.daemon.password_file))
        .connection(),
    Flag::value("early-input", "FILE", "send FILE to the early exec program of a daemon")
        .effect(Effect::Text(|args| &mut args.connect.daemon.early_input))
        .connection(),
    Flag::switch("blocking-io", "use blocking I/O for the remote shell")
        .negations(&["no-blocking-io"])
        .connection()
        .support(Support::NoEffect)
        .man("Blocking I/O is always used."),
    Flag::switch("ipv4", "prefer IPv4")
        .short('4')
        .effect(Effect::Set(|args| args.connect.family = Some(Family::Ipv4)))
        .connection(),
    Flag::switch("ipv6", "prefer IPv6")
        .short('6')
        .effect(Effect::Set(|args| args.connect.family = Some(Family::Ipv6)))
        .connection(),
    Flag::value("timeout", "SECONDS", "set the I/O timeout in SECONDS")
        .negations(&["no-timeout"])
        .effect(Effect::Number(|args| &mut args.timeout))
        .support(Support::OverSsh),
    Flag::value("contimeout", "SECONDS", "set the connection timeout of a server in SECONDS")
        .negations(&["no-contimeout"])
        .effect(Effect::Number(|args| &mut args.contimeout))
        .connection()
        .support(Support::Yes),
    Flag::value("bwlimit", "RATE", "limit the bandwidth to RATE KiB per second")
        .negations(&["no-bwlimit"])
        .effect(Effect::Revocable(
            |args, given| {
                let limits = size::SizeLimits { min: 512, min_text: "512", ..size::ANY };
                let bytes = size::size(given, "bwlimit", b'k', &limits)?;
                args.connect.bwlimit_bytes_per_sec =
                    Some(bytes.saturating_add(512) / 1024 * 1024).filter(|&bytes| bytes > 0);
                Ok(())
            },
            |args| args.connect.bwlimit_bytes_per_sec = None,
        ))
        .man("RATE is a SIZE (see --max-size), in KiB if it has no unit. It is rounded to whole KiB."),
    Flag::value("stop-after", "MINS", "stop the run after MINS minutes")
        .aliases(&["time-limit"])
        .effect(Effect::Argument(|args, given| {
            args.connect.stop = Some(StopAt::AfterMinutes(stop::after(given.value)?));
            Ok(())
        }))
        .local(),
    Flag::value("stop-at", "y-m-dTh:m", "stop the run at this time (y-m-dTh:m)")
        .effect(Effect::Argument(|args, given| {
            args.connect.stop = Some(StopAt::AtUnixSecs(stop::at(given.value, args.now_unix_secs)?));
            Ok(())
        }))
        .local()
        .man("The date or its first parts can be omitted; the option then selects the next matching time."),
    Flag::value("max-alloc", "SIZE", "limit the memory for the listing of one directory from a peer")
        .effect(Effect::Text(|args| &mut args.max_alloc))
        .support(Support::OverSsh)
        .man("The default is 1G; 0 means no limit. If a listing exceeds the limit, the run ends with exit 22."),
    Flag::value("protocol", "NUM", "use an older version of rsync's protocol")
        .effect(Effect::Number(|args| &mut args.protocol))
        .connection()
        .man("31 and 32 have the same effect. With a version before 31, only rsync's protocol is used, over a remote shell or \
              with a daemon. A version before 27 is not supported."),
    Flag::switch("server", "run as the server of a client")
        .effect(Effect::Switch(|args| &mut args.server))
        .server_side(),
    Flag::switch("sender", "with --server: act as the sender")
        .effect(Effect::Switch(|args| &mut args.sender))
        .server_side(),
    Flag::switch("daemon", "run as a daemon for rsync clients")
        .effect(Effect::Switch(|args| &mut args.daemon))
        .server_side(),
    Flag::value("config", "FILE", "with --daemon: read the configuration from FILE")
        .server_side(),
    Flag::value("dparam", "OVERRIDE", "with --daemon: override a global parameter")
        .server_side(),
    Flag::switch("detach", "with --daemon: detach from the terminal").negations(&["no-detach"]).server_side(),
];

/// Parses a `--max-alloc`, which may also come from RSYNC_MAX_ALLOC, in bytes; `None`: no limit. rsync checks
/// it after all options.
pub fn max_alloc_bytes(value: &[u8]) -> crate::error::Result<Option<u64>> {
    let limits = size::SizeLimits {
        min: 1 << 20,
        min_text: "1.00M",
        ..size::ANY
    };
    let bytes = size::size(&Given { value, word: value }, "max-alloc", b'b', &limits)?;
    Ok(if bytes > 0 { Some(bytes) } else { None })
}

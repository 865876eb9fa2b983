//! Options that rsync does not have.

use crate::cli::args::{ManPage, Shell, Tell};
use crate::cli::flag::{Arity, Flag, FlagScope, Support};
use crate::error::Error;
use crate::options::connect::Transport;

/// The arguments of `--transport`.
pub const TRANSPORTS: [&str; 4] = ["auto", "quic", "tls", "ssh"];

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "transport",
        arity: Arity::Value("WAY"),
        help: "reach the other machine by auto, quic, tls or ssh",
        man: "rsync has no such option. By default, an enrolled host is reached over QUIC, or over TLS if UDP is blocked, \
              or over ssh, also for paths outside of its grant; any other host over ssh. With `quic`, a host that is not \
              enrolled starts a server for this run, over ssh. On a short path without loss, a bulk transfer that began over \
              QUIC continues over TLS, but not with `--transport=quic`. `-e` and RSYNC_RSH select the remote shell unless \
              this option is given. SPARSYNC_TRANSPORT sets the default for all runs. Runs that are handed over to the \
              installed rsync ignore all of these.",
        words: &TRANSPORTS,
        support: Support::OverSsh,
        reach: FlagScope::Here,
        set: |args, given| {
            let said = transport(given.value, "--transport");
            args.errs_in_ours |= said.is_err();
            args.transport = Some(said?);
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "json",
        help: "with --version: print JSON",
        man: "The keys are those of sparsync; -VV prints rsync's.",
        set: |args, _| {
            args.json = true;
            Ok(())
        },
        reach: FlagScope::Here,
        ..Flag::SWITCH
    },
    Flag {
        long: "man",
        arity: Arity::Optional("PAGE"),
        help: "print a man page: of sparsync, enroll or server",
        man: "In roff: `sparsync --man | man -l -` shows it.",
        words: &["sparsync", "enroll", "server"],
        set: |args, given| {
            args.tell = Some(Tell::Man(match given.value {
                b"" | b"sparsync" => ManPage::Sparsync,
                b"enroll" => ManPage::Enroll,
                b"server" => ManPage::Server,
                other => {
                    args.errs_in_ours = true;
                    let other = other.escape_ascii();
                    let words = format!("sparsync: invalid --man value `{other}`: expected sparsync, enroll or server");
                    return Err(Error::usage(words));
                }
            }));
            Ok(())
        },
        reach: FlagScope::Here,
        ..Flag::SWITCH
    },
    Flag {
        long: "completions",
        arity: Arity::Value("SHELL"),
        help: "print the completions for bash, zsh or fish",
        words: &["bash", "zsh", "fish"],
        set: |args, given| {
            args.tell = Some(Tell::Completions(match given.value {
                b"bash" => Shell::Bash,
                b"zsh" => Shell::Zsh,
                b"fish" => Shell::Fish,
                other => {
                    args.errs_in_ours = true;
                    let other = other.escape_ascii();
                    let words = format!("sparsync: invalid --completions value `{other}`: expected bash, zsh or fish");
                    return Err(Error::usage(words));
                }
            }));
            Ok(())
        },
        reach: FlagScope::Here,
        ..Flag::SWITCH
    },
];

/// Parses the name of a transport. `said_by`: the option or variable that it comes from.
pub fn transport(name: &[u8], said_by: &str) -> crate::error::Result<Transport> {
    Ok(match name {
        b"auto" => Transport::Auto,
        b"quic" => Transport::Quic,
        b"tls" => Transport::Tls,
        b"ssh" => Transport::Shell,
        _ => {
            let words =
                format!("sparsync: invalid {said_by} value `{}`: expected auto, quic, tls or ssh", name.escape_ascii());
            return Err(Error::usage(words));
        }
    })
}

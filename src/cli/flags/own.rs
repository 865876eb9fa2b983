//! Options that rsync does not have.

use crate::cli::flag::{Arity, Flag, Reach, Support};
use crate::error::Error;
use crate::options::connect::Transport;

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[Flag {
    long: "transport",
    arity: Arity::Value("WAY"),
    help: "reach the other machine by auto, quic, tls or ssh",
    man: "rsync has no such option. A host that was enrolled is reached by QUIC, or by TLS where UDP does not pass, or by \
          ssh, also what lies outside of what its server grants; any other by ssh, or with `quic` by a server that its end of ssh opens for this run alone. Over a short way on which nothing is lost, bulk that began by QUIC goes on by TLS, but not \
          with `--transport=quic`. With `-e` or RSYNC_RSH it is the remote shell unless this says otherwise. \
          SPARSYNC_TRANSPORT says it for all runs. What is left to the installed rsync goes its way, whatever is said here.",
    support: Support::OverSsh,
    reach: Reach::Here,
    set: |args, given| {
        let said = transport(given.value, "--transport");
        args.errs_in_ours |= said.is_err();
        args.transport = Some(said?);
        Ok(())
    },
    ..Flag::SWITCH
}];

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

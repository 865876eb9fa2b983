//! Options that rsync does not have.

use crate::cli::args::{CompletionShell, MAN_PAGES, PrintRequest};
use crate::cli::flag::{Effect, Flag, Support};
use crate::error::Error;
use crate::options::connect::Transport;

/// The arguments of `--transport`.
pub const TRANSPORTS: [&str; 4] = ["auto", "quic", "tls", "ssh"];

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag::value("transport", "WAY", "select the transport: auto, quic, tls or ssh")
        .words(&TRANSPORTS)
        .effect(Effect::Argument(|args, given| {
            let transport = transport(given.value, "--transport");
            args.own_option_is_invalid |= transport.is_err();
            args.transport = Some(transport?);
            Ok(())
        }))
        .local()
        .support(Support::OverSsh)
        .man("rsync has no such option. By default, sparsync reaches an enrolled host over QUIC, over TLS if UDP is \
              blocked, or over ssh otherwise. ssh is also used for paths outside the grant of an enrolled host, and \
              for any other host. With `quic`, sparsync uses ssh to start a server for this run on a host that is not \
              enrolled. On a short path without loss, a bulk transfer that began over QUIC continues over TLS, but \
              not with `--transport=quic`. `-e` and RSYNC_RSH select the remote shell as the transport unless this \
              option is given. SPARSYNC_TRANSPORT sets the default for all runs."),
    Flag::switch("json", "print one JSON object per event, or for --version")
        .effect(Effect::Switch(|args| &mut args.json))
        .local()
        .man("Each line of standard output is an object: a change with the columns of -i, a listed entry, a deletion, a \
              problem, a note, the progress (with --progress or --info=progress2), a summary, and at last the exit code. \
              docs/json-schema.json describes them. Problems are also printed on standard error. -ii reports \
              unchanged entries too. With --version, the keys differ from rsync's, which -VV prints."),
    Flag::value("metrics-file", "FILE", "write metrics of the run to FILE at its end")
        .effect(Effect::Text(|args| &mut args.output.metrics_file))
        .local()
        .man("The text format is that of OpenMetrics and Prometheus. node_exporter's textfile collector reads FILE if its \
              name ends in .prom. FILE is replaced as a whole, also if the run fails, except for a mistake on the command \
              line. A FILE that cannot be written is reported and does not change the exit code."),
    Flag::switch("ui", "show a live display of the run on a terminal")
        .effect(Effect::Switch(|args| &mut args.output.ui))
        .local()
        .man("The display shows the files and bytes done, the rate, the remaining time once the whole source is listed, \
              the largest files in progress, and the route. A summary of three lines remains. Lines of -v and errors \
              appear above the display, which replaces the lines of --progress and --info=progress2. Unless standard \
              output and standard error are terminals, and with -q, --json or --list-only, the option has no effect. \
              With -n, the summary describes what would be done. SPARSYNC_UI=1 sets the option for all runs."),
    Flag::optional("man", "PAGE", "print the man page of sparsync or a command")
        .words(&MAN_PAGES)
        .effect(Effect::Argument(|args, given| {
            let wanted = if given.value.is_empty() { b"sparsync" } else { given.value };
            let Some(page) = MAN_PAGES.into_iter().find(|page| page.as_bytes() == wanted) else {
                args.own_option_is_invalid = true;
                let other = wanted.escape_ascii();
                let words = format!(
                    "sparsync: invalid --man value `{other}`: expected sparsync, bench, doctor, enroll, hash or server"
                );
                return Err(Error::usage(words));
            };
            args.print = Some(PrintRequest::Man(page));
            Ok(())
        }))
        .local()
        .man("The page is in roff format. `sparsync --man | man -l -` displays it."),
    Flag::value("completions", "SHELL", "print shell completions for bash, zsh or fish")
        .words(&["bash", "zsh", "fish"])
        .effect(Effect::Argument(|args, given| {
            args.print = Some(PrintRequest::Completions(match given.value {
                b"bash" => CompletionShell::Bash,
                b"zsh" => CompletionShell::Zsh,
                b"fish" => CompletionShell::Fish,
                other => {
                    args.own_option_is_invalid = true;
                    let other = other.escape_ascii();
                    let words = format!("sparsync: invalid --completions value `{other}`: expected bash, zsh or fish");
                    return Err(Error::usage(words));
                }
            }));
            Ok(())
        }))
        .local(),
];

/// Parses the name of a transport. `given_by`: the option or variable that it comes from.
pub fn transport(name: &[u8], given_by: &str) -> crate::error::Result<Transport> {
    Ok(match name {
        b"auto" => Transport::Auto,
        b"quic" => Transport::Quic,
        b"tls" => Transport::Tls,
        b"ssh" => Transport::Shell,
        _ => {
            let words = format!(
                "sparsync: invalid {given_by} value `{}`: expected auto, quic, tls or ssh",
                name.escape_ascii()
            );
            return Err(Error::usage(words));
        }
    })
}

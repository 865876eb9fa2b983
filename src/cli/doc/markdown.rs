//! The text of docs/OPTIONS.md. Its test checks the file; `scripts/options` writes it.

use crate::cli::flag::{Arity, Support};
use crate::cli::flags;

/// Returns the text of docs/OPTIONS.md.
pub fn options_markdown() -> String {
    let mut out = String::from(
        "# Options\n\n\
         sparsync accepts every option of rsync 3.5.0. The last column shows how far it supports the option:\n\n\
         - **yes**: as in rsync, in a local copy and over ssh.\n\
         - **over ssh**: as in rsync over ssh or with a daemon; in a local copy it has no effect, as in rsync.\n\
         - **no effect**: accepted, without effect.\n\
         - **refused**: rejected, as by rsync on Linux.\n\
         - **server**: for the server's end, which clients start, and for daemons.\n\n\
         rsync does not have the options from `--transport` on.\n\n\
         | option | also | argument | what it does | support |\n|---|---|---|---|---|\n",
    );
    for flag in flags::all() {
        let mut also: Vec<String> = flag
            .aliases
            .iter()
            .map(|name| format!("`--{name}`"))
            .collect();
        if !flag.long.is_empty() {
            also.extend(flag.short.map(|letter| format!("`-{letter}`")));
        }
        also.extend(flag.negations.iter().map(|name| format!("`--{name}`")));
        let argument = match flag.arity {
            Arity::Switch => String::new(),
            Arity::Value(word) | Arity::Optional(word) => format!("`{}`", word.replace('|', "\\|")),
        };
        let support = match flag.support {
            Support::Yes => "yes",
            Support::OverSsh => "over ssh",
            Support::NoEffect => "no effect",
            Support::Refused => "refused",
            Support::ServerSide => "server",
            Support::InSession => "between sparsyncs",
        };
        let man = if flag.man.is_empty() {
            String::new()
        } else {
            format!(" {}", flag.man)
        };
        let help = format!("{}.{man}", flag.help).replace('|', "\\|");
        out.push_str(&format!(
            "| `{}` | {} | {argument} | {help} | {support} |\n",
            flag.shown(),
            also.join(" ")
        ));
    }
    out.push_str(
        "\n`scripts/options` generates this page from the table in `src/cli/flags/`; do not edit it.\n",
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `scripts/options` sets SPARSYNC_BLESS to rewrite the file.
    #[test]
    fn options_md_matches_the_option_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/OPTIONS.md");
        let text = options_markdown();
        if std::env::var_os("SPARSYNC_BLESS").is_some() {
            std::fs::write(path, &text).expect("docs/OPTIONS.md can be written");
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            found == text,
            "docs/OPTIONS.md does not match the option table: run scripts/options"
        );
    }
}

//! Settles the output: the levels of `-v`, `--info` and `--debug`, formats, and how `--progress` changes them.

use super::environment::Environment;
use crate::cli::args::Args;
use crate::cli::value::words;
use crate::options::output::Ui;
use crate::options::{CreatedDir, LogFile, Output};
use crate::report::format::Format;

/// Settles the output policy.
pub(super) fn output(args: &Args, env: Environment<'_>) -> Output {
    let quiet = args.quiet > 0;
    let verbose = if quiet { 0 } else { args.verbose };
    let mut more = String::new();
    let mut add = |words: &str| {
        more.push_str(words);
        more.push(',');
    };
    if args.output.progress {
        add("FLIST2,NAME,PROGRESS");
    }
    if args.stats {
        add(if verbose > 1 { "STATS3" } else { "STATS2" });
    }
    if args.itemize > 0 || args.out_format.is_some() {
        add("NAME");
    }
    let info = words::settle_info(verbose, &more, &args.info);
    let given = args.out_format.as_deref().map(Format::parse);
    // Names printed by --progress count, unless a format replaces them.
    let shows_names =
        args.output.progress && given.as_ref().is_none_or(Format::needs_after_transfer);
    let is_named = |by_progress| {
        words::settle_info(verbose, if by_progress { "NAME" } else { "" }, &args.info).name > 0
    };
    let unsafe_links =
        is_named(args.output.progress && args.out_format.is_none() && args.itemize == 0);
    let default_format = || Format::DEFAULT.to_vec();
    let has_i = given.as_ref().map_or(args.itemize > 0, Format::has_itemize);
    Output {
        verbose,
        quiet,
        counts_like_rsync: info.stats >= 2,
        info,
        debug: words::settle_debug(verbose, &args.debug),
        // `-ii --out-format=%n` prints nothing about unchanged entries; `-vv -i` does.
        itemize: if !has_i {
            0
        } else if args.itemize > 1 || info.name > 1 {
            2
        } else {
            1
        },
        created_dir: if has_i || is_named(false) {
            CreatedDir::Always
        } else if is_named(shows_names) {
            CreatedDir::AtClient
        } else {
            CreatedDir::Never
        },
        unsafe_links,
        out_format: args
            .out_format
            .clone()
            .or_else(|| (args.itemize > 0).then(default_format)),
        log_file: args
            .log_file
            .clone()
            .filter(|path| !path.is_empty())
            .map(|path| LogFile {
                path,
                format: args.log_file_format.clone().unwrap_or_else(default_format),
            }),
        metrics_file: args
            .output
            .metrics_file
            .clone()
            .filter(|path| !path.is_empty()),
        failed_list: args
            .output
            .failed_list
            .clone()
            .filter(|path| !path.is_empty()),
        human: args.human.saturating_add(1).clamp(0, 3).unsigned_abs(),
        json: args.json,
        ui: match (args.output.ui, env.text("SPARSYNC_UI").as_deref()) {
            (Ui::Unasked, Some(b"1")) => Ui::Live,
            (Ui::Unasked, Some(b"plain")) => Ui::Plain,
            (Ui::Unasked, Some(b"0")) => Ui::Off,
            (given, _) => given,
        },
        ..args.output.clone()
    }
}

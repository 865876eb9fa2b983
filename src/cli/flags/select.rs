//! Options that decide which entries take part.

use crate::cli::args::{Dirs, Recursion};
use crate::cli::flag::{Arity, Effect, Flag};
use crate::cli::value::size;
use crate::options::RuleArg;

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "archive",
        short: Some('a'),
        help: "same as -rlptgoD (without -A, -X, -U, -N, -H)",
        effect: Effect::Set(|args| {
            if args.recursion == Recursion::No {
                args.recursion = Recursion::ByArchive;
            }
            args.preserve.links = true;
            args.preserve.perms = true;
            args.preserve.times = true;
            args.preserve.group = true;
            args.preserve.owner = true;
            args.preserve.devices = true;
            args.preserve.specials = true;
        }),
        ..Flag::SWITCH
    },
    Flag {
        long: "recursive",
        short: Some('r'),
        negations: &["no-recursive", "no-r"],
        help: "copy directories recursively",
        man: "An empty directory that can be listed but not entered is no error; rsync 3.5.0 ends with exit 23.",
        effect: Effect::Either(|args| args.recursion = Recursion::Yes, |args| args.recursion = Recursion::No),
        ..Flag::SWITCH
    },
    Flag {
        long: "inc-recursive",
        aliases: &["i-r"],
        negations: &["no-inc-recursive", "no-i-r"],
        help: "list directories while files are copied (the default)",
        help_off: "send the whole file list first",
        man: "In a local copy, only the text of the banner differs.",
        effect: Effect::Choice(|args| &mut args.inc_recursive),
        ..Flag::SWITCH
    },
    Flag {
        long: "dirs",
        short: Some('d'),
        negations: &["no-dirs", "no-d"],
        help: "copy directories without their content",
        effect: Effect::Either(|args| args.dirs = Dirs::Yes, |args| args.dirs = Dirs::No),
        ..Flag::SWITCH
    },
    Flag {
        long: "old-dirs",
        aliases: &["old-d"],
        help: "like --dirs, for very old peers: -r --exclude='/*/*'",
        effect: Effect::Set(|args| args.dirs = Dirs::Old),
        ..Flag::SWITCH
    },
    Flag {
        long: "relative",
        short: Some('R'),
        negations: &["no-relative", "no-R"],
        help: "use the full source path below the destination",
        man: "A /./ in the path marks the beginning of the part that is used.",
        effect: Effect::Choice(|args| &mut args.relative),
        ..Flag::SWITCH
    },
    Flag {
        long: "no-implied-dirs",
        aliases: &["no-i-d"],
        negations: &["implied-dirs", "i-d"],
        help: "with -R, do not set attributes of implied directories",
        effect: Effect::Switch(|args| &mut args.select.no_implied_dirs),
        ..Flag::SWITCH
    },
    Flag {
        long: "one-file-system",
        short: Some('x'),
        negations: &["no-one-file-system", "no-x"],
        help: "do not cross file system boundaries; -xx omits mount points",
        man: "Each source argument has its own file system, and so has deletion at the destination. For an argument \
              below another argument, the file system of the outer one counts.",
        effect: Effect::Count(|args| &mut args.select.one_file_system),
        ..Flag::SWITCH
    },
    Flag {
        long: "files-from",
        arity: Arity::Value("FILE"),
        help: "read the list of source files from FILE (-: standard input)",
        man: "Implies -R and -d; -a no longer implies -r. If the list is on the receiving machine, only rsync's protocol is \
              used.",
        effect: Effect::Text(|args| &mut args.files_from),
        ..Flag::LOCAL
    },
    Flag {
        long: "from0",
        short: Some('0'),
        negations: &["no-from0"],
        help: "names and rules in files are separated by NUL bytes",
        effect: Effect::Switch(|args| &mut args.select.from0),
        ..Flag::SWITCH
    },
    Flag {
        long: "exclude",
        arity: Arity::Value("PATTERN"),
        help: "exclude entries that match PATTERN",
        effect: Effect::Rule(RuleArg::Exclude),
        ..Flag::LOCAL
    },
    Flag {
        long: "exclude-from",
        arity: Arity::Value("FILE"),
        help: "read exclude patterns from FILE",
        effect: Effect::Rule(RuleArg::ExcludeFrom),
        ..Flag::LOCAL
    },
    Flag {
        long: "include",
        arity: Arity::Value("PATTERN"),
        help: "do not exclude entries that match PATTERN",
        effect: Effect::Rule(RuleArg::Include),
        ..Flag::LOCAL
    },
    Flag {
        long: "include-from",
        arity: Arity::Value("FILE"),
        help: "read include patterns from FILE",
        effect: Effect::Rule(RuleArg::IncludeFrom),
        ..Flag::LOCAL
    },
    Flag {
        long: "filter",
        short: Some('f'),
        arity: Arity::Value("RULE"),
        help: "add one filter rule",
        man: "If there are several sources, each uses the rule files of its own top directory. With incremental \
              recursion, rsync 3.5.0 uses those of the first source for all.",
        effect: Effect::Rule(RuleArg::Filter),
        ..Flag::LOCAL
    },
    Flag {
        short: Some('F'),
        help: "read rules from .rsync-filter in each directory; -FF: also exclude these files",
        man: "-F means --filter='dir-merge /.rsync-filter'; the second -F adds --filter='exclude .rsync-filter'.",
        effect: Effect::Set(|args| {
            args.per_dir_filter += 1;
            match args.per_dir_filter {
                1 => args.select.rules.push(RuleArg::Filter(b": /.rsync-filter".to_vec())),
                2 => args.select.rules.push(RuleArg::Filter(b"- .rsync-filter".to_vec())),
                _ => {}
            }
        }),
        ..Flag::LOCAL
    },
    Flag {
        long: "cvs-exclude",
        short: Some('C'),
        help: "exclude the files that CVS ignores",
        effect: Effect::Switch(|args| &mut args.select.cvs_exclude),
        ..Flag::SWITCH
    },
    Flag {
        long: "max-size",
        arity: Arity::Value("SIZE"),
        help: "skip files larger than SIZE",
        man: "SIZE is a number with an optional unit: B, K, M, G, T or P (powers of 1024), or KB, MB etc. (powers of \
              1000). A trailing +1 or -1 adjusts it by one byte.",
        effect: Effect::Argument(|args, given| {
            args.select.max_size_bytes = Some(size::size(given, "max-size", b'b', &size::ANY)?);
            Ok(())
        }),
        ..Flag::SWITCH
    },
    Flag {
        long: "min-size",
        arity: Arity::Value("SIZE"),
        help: "skip files smaller than SIZE",
        effect: Effect::Argument(|args, given| {
            args.select.min_size_bytes = Some(size::size(given, "min-size", b'b', &size::ANY)?);
            Ok(())
        }),
        ..Flag::SWITCH
    },
    Flag {
        long: "prune-empty-dirs",
        short: Some('m'),
        negations: &["no-prune-empty-dirs", "no-m"],
        help: "skip directories without any files below them",
        effect: Effect::Switch(|args| &mut args.select.prune_empty_dirs),
        ..Flag::SWITCH
    },
    Flag {
        long: "ignore-missing-args",
        help: "ignore sources that do not exist",
        effect: Effect::Switch(|args| &mut args.ignore_missing_args),
        ..Flag::SWITCH
    },
    Flag {
        long: "delete-missing-args",
        help: "delete destination entries of missing source arguments",
        effect: Effect::Switch(|args| &mut args.delete_missing_args),
        ..Flag::SWITCH
    },
    Flag {
        long: "remove-source-files",
        help: "remove source files (not directories) after the copy",
        effect: Effect::Set(|args| args.remove_source_files = Some("remove-source-files")),
        ..Flag::SWITCH
    },
    Flag {
        long: "remove-sent-files",
        help: "same as --remove-source-files",
        effect: Effect::Set(|args| args.remove_source_files = Some("remove-sent-files")),
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-links",
        short: Some('L'),
        help: "copy the targets of symlinks instead of the symlinks",
        effect: Effect::Switch(|args| &mut args.select.copy_links),
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-unsafe-links",
        help: "copy the targets of symlinks that point outside the tree",
        effect: Effect::Switch(|args| &mut args.select.copy_unsafe_links),
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-dirlinks",
        short: Some('k'),
        help: "treat symlinks to directories in the source as directories",
        effect: Effect::Switch(|args| &mut args.select.copy_dirlinks),
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-devices",
        help: "copy the content of devices as files",
        man: "The modification time of a device is the current time, so it is copied in each run. Nothing is copied \
              from devices without a length, such as /dev/zero. A server rejects the option for keys that are limited \
              to some directories (--root).",
        effect: Effect::Switch(|args| &mut args.select.copy_devices),
        ..Flag::SWITCH
    },
    Flag {
        long: "open-noatime",
        negations: &["no-open-noatime"],
        help: "do not change access times when reading the source",
        effect: Effect::Switch(|args| &mut args.select.open_noatime),
        ..Flag::SWITCH
    },
    Flag {
        long: "qsort",
        help: "use qsort for the file list (same effect as --no-inc-recursive)",
        effect: Effect::Switch(|args| &mut args.qsort),
        ..Flag::SWITCH
    },
    Flag {
        long: "confine-root",
        arity: Arity::Value("DIR"),
        help: "reject paths in options that lead out of DIR",
        effect: Effect::Text(|args| &mut args.confine_root),
        ..Flag::LOCAL
    },
    Flag {
        long: "iconv",
        negations: &["no-iconv"],
        arity: Arity::Value("CONVERT_SPEC"),
        help: "convert the character set of names",
        man: "--iconv=- and --no-iconv disable the conversion. RSYNC_ICONV sets the default.",
        effect: Effect::Revocable(
            |args, given| {
                args.iconv = Some(given.value.to_vec());
                Ok(())
            },
            |args| args.iconv = Some(b"-".to_vec()),
        ),
        ..Flag::LOCAL
    },
];

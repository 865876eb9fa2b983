//! Options that decide which entries take part.

use crate::cli::args::{Dirs, Recursion};
use crate::cli::flag::{Arity, Flag, FlagScope};
use crate::cli::value::size;
use crate::options::RuleArg;

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "archive",
        short: Some('a'),
        help: "same as -rlptgoD (without -A, -X, -U, -N, -H)",
        set: |args, _| {
            if args.recursion == Recursion::No {
                args.recursion = Recursion::ByArchive;
            }
            args.links = true;
            args.perms = true;
            args.times = true;
            args.group = true;
            args.owner = true;
            args.devices = true;
            args.specials = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "recursive",
        short: Some('r'),
        negations: &["no-recursive", "no-r"],
        help: "copy directories recursively",
        man: "An empty directory that can be listed but not entered is no error; rsync 3.5.0 ends with exit 23.",
        set: |args, _| {
            args.recursion = Recursion::Yes;
            Ok(())
        },
        unset: |args| args.recursion = Recursion::No,
        ..Flag::SWITCH
    },
    Flag {
        long: "inc-recursive",
        aliases: &["i-r"],
        negations: &["no-inc-recursive", "no-i-r"],
        help: "list directories while files are copied (the default)",
        help_off: "send the whole file list first",
        man: "In a local copy, only the text of the banner differs.",
        set: |args, _| {
            args.inc_recursive = Some(true);
            Ok(())
        },
        unset: |args| args.inc_recursive = Some(false),
        ..Flag::SWITCH
    },
    Flag {
        long: "dirs",
        short: Some('d'),
        negations: &["no-dirs", "no-d"],
        help: "copy directories without their content",
        set: |args, _| {
            args.dirs = Dirs::Yes;
            Ok(())
        },
        unset: |args| args.dirs = Dirs::No,
        ..Flag::SWITCH
    },
    Flag {
        long: "old-dirs",
        aliases: &["old-d"],
        help: "like --dirs, for very old peers: -r --exclude='/*/*'",
        set: |args, _| {
            args.dirs = Dirs::Old;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "relative",
        short: Some('R'),
        negations: &["no-relative", "no-R"],
        help: "use the full source path below the destination",
        man: "A /./ in the path marks the beginning of the part that is used.",
        set: |args, _| {
            args.relative = Some(true);
            Ok(())
        },
        unset: |args| args.relative = Some(false),
        ..Flag::SWITCH
    },
    Flag {
        long: "no-implied-dirs",
        aliases: &["no-i-d"],
        negations: &["implied-dirs", "i-d"],
        help: "with -R, do not set attributes of implied directories",
        set: |args, _| {
            args.no_implied_dirs = true;
            Ok(())
        },
        unset: |args| args.no_implied_dirs = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "one-file-system",
        short: Some('x'),
        negations: &["no-one-file-system", "no-x"],
        help: "do not cross file system boundaries; -xx omits mount points",
        man: "Each source argument has its own file system, and so has deletion at the destination. For an argument \
              below another argument, the file system of the outer one counts.",
        set: |args, _| {
            args.one_file_system = args.one_file_system.saturating_add(1);
            Ok(())
        },
        unset: |args| args.one_file_system = 0,
        ..Flag::SWITCH
    },
    Flag {
        long: "files-from",
        arity: Arity::Value("FILE"),
        help: "read the list of source files from FILE (-: standard input)",
        man: "Implies -R and -d; -a no longer implies -r. If the list is on the receiving machine, only rsync's protocol is \
              used.",
        set: |args, given| {
            args.files_from = Some(given.value.to_vec());
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "from0",
        short: Some('0'),
        negations: &["no-from0"],
        help: "names and rules in files are separated by NUL bytes",
        set: |args, _| {
            args.from0 = true;
            Ok(())
        },
        unset: |args| args.from0 = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "exclude",
        arity: Arity::Value("PATTERN"),
        help: "exclude entries that match PATTERN",
        set: |args, given| {
            args.rules.push(RuleArg::Exclude(given.value.to_vec()));
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "exclude-from",
        arity: Arity::Value("FILE"),
        help: "read exclude patterns from FILE",
        set: |args, given| {
            args.rules.push(RuleArg::ExcludeFrom(given.value.to_vec()));
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "include",
        arity: Arity::Value("PATTERN"),
        help: "do not exclude entries that match PATTERN",
        set: |args, given| {
            args.rules.push(RuleArg::Include(given.value.to_vec()));
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "include-from",
        arity: Arity::Value("FILE"),
        help: "read include patterns from FILE",
        set: |args, given| {
            args.rules.push(RuleArg::IncludeFrom(given.value.to_vec()));
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "filter",
        short: Some('f'),
        arity: Arity::Value("RULE"),
        help: "add one filter rule",
        man: "If there are several sources, each uses the rule files of its own top directory. With incremental \
              recursion, rsync 3.5.0 uses those of the first source for all.",
        set: |args, given| {
            args.rules.push(RuleArg::Filter(given.value.to_vec()));
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        short: Some('F'),
        help: "read rules from .rsync-filter in each directory; -FF: also exclude these files",
        man: "-F means --filter='dir-merge /.rsync-filter'; the second -F adds --filter='exclude .rsync-filter'.",
        set: |args, _| {
            args.per_dir_filter += 1;
            match args.per_dir_filter {
                1 => args.rules.push(RuleArg::Filter(b": /.rsync-filter".to_vec())),
                2 => args.rules.push(RuleArg::Filter(b"- .rsync-filter".to_vec())),
                _ => {}
            }
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "cvs-exclude",
        short: Some('C'),
        help: "exclude the files that CVS ignores",
        set: |args, _| {
            args.cvs_exclude = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "max-size",
        arity: Arity::Value("SIZE"),
        help: "skip files larger than SIZE",
        man: "SIZE is a number with an optional unit: B, K, M, G, T or P (powers of 1024), or KB, MB etc. (powers of \
              1000). A trailing +1 or -1 adjusts it by one byte.",
        set: |args, given| {
            args.max_size = Some(size::size(given, "max-size", b'b', &size::ANY)?);
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "min-size",
        arity: Arity::Value("SIZE"),
        help: "skip files smaller than SIZE",
        set: |args, given| {
            args.min_size = Some(size::size(given, "min-size", b'b', &size::ANY)?);
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "prune-empty-dirs",
        short: Some('m'),
        negations: &["no-prune-empty-dirs", "no-m"],
        help: "skip directories without any files below them",
        set: |args, _| {
            args.prune_empty_dirs = true;
            Ok(())
        },
        unset: |args| args.prune_empty_dirs = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "ignore-missing-args",
        help: "ignore sources that do not exist",
        set: |args, _| {
            args.ignore_missing_args = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "delete-missing-args",
        help: "delete destination entries of missing source arguments",
        set: |args, _| {
            args.delete_missing_args = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "remove-source-files",
        help: "remove source files (not directories) after the copy",
        set: |args, _| {
            args.remove_source_files = Some("remove-source-files");
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "remove-sent-files",
        help: "same as --remove-source-files",
        set: |args, _| {
            args.remove_source_files = Some("remove-sent-files");
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-links",
        short: Some('L'),
        help: "copy the targets of symlinks instead of the symlinks",
        set: |args, _| {
            args.copy_links = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-unsafe-links",
        help: "copy the targets of symlinks that point outside the tree",
        set: |args, _| {
            args.copy_unsafe_links = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-dirlinks",
        short: Some('k'),
        help: "treat symlinks to directories in the source as directories",
        set: |args, _| {
            args.copy_dirlinks = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-devices",
        help: "copy the content of devices as files",
        man: "The modification time of a device is the current time, so it is copied in each run. Nothing is copied \
              from devices without a length, such as /dev/zero. A server rejects the option for keys that are limited \
              to some directories (--root).",
        set: |args, _| {
            args.copy_devices = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "open-noatime",
        negations: &["no-open-noatime"],
        help: "do not change access times when reading the source",
        set: |args, _| {
            args.open_noatime = true;
            Ok(())
        },
        unset: |args| args.open_noatime = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "qsort",
        help: "use qsort for the file list (same effect as --no-inc-recursive)",
        set: |args, _| {
            args.qsort = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "confine-root",
        arity: Arity::Value("DIR"),
        help: "reject paths in options that lead out of DIR",
        set: |args, given| {
            args.confine_root = Some(given.value.to_vec());
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "iconv",
        negations: &["no-iconv"],
        arity: Arity::Value("CONVERT_SPEC"),
        help: "convert the character set of names",
        man: "--iconv=- and --no-iconv disable the conversion. RSYNC_ICONV sets the default.",
        set: |args, given| {
            args.iconv = Some(given.value.to_vec());
            Ok(())
        },
        unset: |args| args.iconv = Some(b"-".to_vec()),
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
];

//! Options that decide which entries take part.

use crate::cli::args::{Dirs, Recursion};
use crate::cli::flag::{Arity, Flag, FlagScope, Support};
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
        help: "descend into directories",
        man: "An empty directory that can be listed but not entered is not an error; rsync 3.5.0 exits with 23.",
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
        help: "walk the tree while files are copied (the default)",
        help_off: "send the whole file list first",
        man: "On a local copy only the words of the banner differ.",
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
        help: "copy directories without descending into them",
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
        help: "the same for very old peers: -r --exclude='/*/*'",
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
        help: "keep the source path as given below the destination",
        man: "A /./ in the path marks where the kept part begins.",
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
        help: "with -R, leave the attributes of leading directories alone",
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
        help: "stay on the file system of the source; -xx omits mount points",
        man: "Each argument has its own, and so has deletion at the destination; of an argument within another it is the outer one's.",
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
        help: "copy what FILE names (- is standard input)",
        man: "Implies -R and -d; -a no longer implies -r. With a list at the receiving machine the run is the installed \
              rsync's.",
        set: |args, given| {
            args.files_from = Some(given.value.to_vec());
            Ok(())
        },
        reach: FlagScope::Here,
        ..Flag::SWITCH
    },
    Flag {
        long: "from0",
        short: Some('0'),
        negations: &["no-from0"],
        help: "names and rules in files end with a NUL byte",
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
        help: "leave out entries that match PATTERN",
        set: |args, given| {
            args.rules.push(RuleArg::Exclude(given.value.to_vec()));
            Ok(())
        },
        reach: FlagScope::Here,
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
        reach: FlagScope::Here,
        ..Flag::SWITCH
    },
    Flag {
        long: "include",
        arity: Arity::Value("PATTERN"),
        help: "do not leave out entries that match PATTERN",
        set: |args, given| {
            args.rules.push(RuleArg::Include(given.value.to_vec()));
            Ok(())
        },
        reach: FlagScope::Here,
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
        reach: FlagScope::Here,
        ..Flag::SWITCH
    },
    Flag {
        long: "filter",
        short: Some('f'),
        arity: Arity::Value("RULE"),
        help: "add one filter rule",
        man: "Of several sources each has the rules of its own top; with incremental recursion rsync 3.5.0 lets those of \
              the first one hold for all.",
        set: |args, given| {
            args.rules.push(RuleArg::Filter(given.value.to_vec()));
            Ok(())
        },
        reach: FlagScope::Here,
        ..Flag::SWITCH
    },
    Flag {
        short: Some('F'),
        help: "read rules from .rsync-filter in each directory; -FF hides those files",
        man: "Once: --filter='dir-merge /.rsync-filter'. Twice: also --filter='exclude .rsync-filter'.",
        set: |args, _| {
            args.per_dir_filter += 1;
            match args.per_dir_filter {
                1 => args.rules.push(RuleArg::Filter(b": /.rsync-filter".to_vec())),
                2 => args.rules.push(RuleArg::Filter(b"- .rsync-filter".to_vec())),
                _ => {}
            }
            Ok(())
        },
        reach: FlagScope::Here,
        ..Flag::SWITCH
    },
    Flag {
        long: "cvs-exclude",
        short: Some('C'),
        help: "exclude files as CVS does",
        set: |args, _| {
            args.cvs_exclude = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "max-size",
        arity: Arity::Value("SIZE"),
        help: "do not copy files larger than SIZE",
        man: "SIZE is a number with B, K, M, G, T or P (1024), KB and so on (1000), and +1 or -1 behind it.",
        set: |args, given| {
            args.max_size = Some(size::size(given, "max-size", b'b', &size::ANY)?);
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "min-size",
        arity: Arity::Value("SIZE"),
        help: "do not copy files smaller than SIZE",
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
        help: "leave out directories without any file below them",
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
        help: "delete at the destination what does not exist at the source",
        set: |args, _| {
            args.delete_missing_args = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "remove-source-files",
        help: "remove source files (not directories) once they are copied",
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
        help: "copy what symlinks point to",
        set: |args, _| {
            args.copy_links = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-unsafe-links",
        help: "copy what symlinks that leave the tree point to",
        set: |args, _| {
            args.copy_unsafe_links = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-dirlinks",
        short: Some('k'),
        help: "treat symlinks to directories as directories",
        set: |args, _| {
            args.copy_dirlinks = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-devices",
        help: "copy the content of devices as files",
        man: "A device counts as changed now, so that it is copied each time; of what has no length, such as /dev/zero, \
              nothing is copied. A server refuses it to keys that reach some directories only (--root).",
        set: |args, _| {
            args.copy_devices = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "open-noatime",
        negations: &["no-open-noatime"],
        help: "leave access times of the sources alone when reading",
        set: |args, _| {
            args.open_noatime = true;
            Ok(())
        },
        unset: |args| args.open_noatime = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "qsort",
        help: "use qsort for the file list (no effect but that of --no-inc-recursive)",
        set: |args, _| {
            args.qsort = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "confine-root",
        arity: Arity::Value("DIR"),
        help: "refuse paths in options that lead out of DIR",
        support: Support::NotYet,
        set: |args, given| {
            args.confine_root = Some(given.value.to_vec());
            Ok(())
        },
        reach: FlagScope::Here,
        ..Flag::SWITCH
    },
    Flag {
        long: "iconv",
        negations: &["no-iconv"],
        arity: Arity::Value("CONVERT_SPEC"),
        help: "convert the character set of names",
        man: "--iconv=- and --no-iconv turn it off. RSYNC_ICONV sets the default.",
        support: Support::NotYet,
        set: |args, given| {
            args.iconv = Some(given.value.to_vec());
            Ok(())
        },
        unset: |args| args.iconv = Some(b"-".to_vec()),
        reach: FlagScope::Here,
        ..Flag::SWITCH
    },
];

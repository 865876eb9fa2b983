//! Options that decide which entries take part.

use crate::cli::args::{Dirs, Recursion};
use crate::cli::flag::{Effect, Flag};
use crate::cli::value::size;
use crate::options::RuleArg;

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag::switch("archive", "same as -rlptgoD (without -A, -X, -U, -N, -H)")
        .short('a')
        .effect(Effect::Set(|args| {
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
        })),
    Flag::switch("recursive", "copy directories recursively")
        .short('r')
        .negations(&["no-recursive", "no-r"])
        .effect(Effect::Either(|args| args.recursion = Recursion::Yes, |args| args.recursion = Recursion::No))
        .man("An empty directory that can be listed but not entered is no error; rsync 3.5.0 ends with exit 23."),
    Flag::switch("inc-recursive", "list directories while files are copied (the default)")
        .aliases(&["i-r"])
        .negations(&["no-inc-recursive", "no-i-r"])
        .effect(Effect::Choice(|args| &mut args.inc_recursive))
        .help_off("send the whole file list first")
        .man("In a local copy, only the text of the banner differs."),
    Flag::switch("dirs", "copy directories without their content")
        .short('d')
        .negations(&["no-dirs", "no-d"])
        .effect(Effect::Either(|args| args.dirs = Dirs::Yes, |args| args.dirs = Dirs::No)),
    Flag::switch("old-dirs", "like --dirs, for very old peers: -r --exclude='/*/*'")
        .aliases(&["old-d"])
        .effect(Effect::Set(|args| args.dirs = Dirs::Old)),
    Flag::switch("relative", "use the full source path below the destination")
        .short('R')
        .negations(&["no-relative", "no-R"])
        .effect(Effect::Choice(|args| &mut args.relative))
        .man("A /./ in the path marks the beginning of the part that is used."),
    Flag::switch("no-implied-dirs", "with -R, do not set attributes of implied directories")
        .aliases(&["no-i-d"])
        .negations(&["implied-dirs", "i-d"])
        .effect(Effect::Switch(|args| &mut args.select.no_implied_dirs)),
    Flag::switch("one-file-system", "do not cross file system boundaries; -xx omits mount points")
        .short('x')
        .negations(&["no-one-file-system", "no-x"])
        .effect(Effect::Count(|args| &mut args.select.one_file_system))
        .man("Each source argument has its own file system, and so has deletion at the destination. For an argument \
              below another argument, the file system of the outer one counts."),
    Flag::value("files-from", "FILE", "read the list of source files from FILE (-: standard input)")
        .effect(Effect::Text(|args| &mut args.files_from))
        .local()
        .man("Implies -R and -d; -a no longer implies -r. If the list is on the receiving machine, only rsync's protocol is \
              used."),
    Flag::switch("from0", "names and rules in files are separated by NUL bytes")
        .short('0')
        .negations(&["no-from0"])
        .effect(Effect::Switch(|args| &mut args.select.from0)),
    Flag::value("exclude", "PATTERN", "exclude entries that match PATTERN")
        .effect(Effect::Rule(RuleArg::Exclude))
        .local(),
    Flag::value("exclude-from", "FILE", "read exclude patterns from FILE")
        .effect(Effect::Rule(RuleArg::ExcludeFrom))
        .local(),
    Flag::value("include", "PATTERN", "do not exclude entries that match PATTERN")
        .effect(Effect::Rule(RuleArg::Include))
        .local(),
    Flag::value("include-from", "FILE", "read include patterns from FILE")
        .effect(Effect::Rule(RuleArg::IncludeFrom))
        .local(),
    Flag::value("filter", "RULE", "add one filter rule")
        .short('f')
        .effect(Effect::Rule(RuleArg::Filter))
        .local()
        .man("If there are several sources, each uses the rule files of its own top directory. With incremental \
              recursion, rsync 3.5.0 uses those of the first source for all."),
    Flag::switch("", "read rules from .rsync-filter in each directory; -FF: also exclude these files")
        .short('F')
        .effect(Effect::Set(|args| {
            args.per_dir_filter += 1;
            match args.per_dir_filter {
                1 => args.select.rules.push(RuleArg::Filter(b": /.rsync-filter".to_vec())),
                2 => args.select.rules.push(RuleArg::Filter(b"- .rsync-filter".to_vec())),
                _ => {}
            }
        }))
        .local()
        .man("-F means --filter='dir-merge /.rsync-filter'; the second -F adds --filter='exclude .rsync-filter'."),
    Flag::switch("cvs-exclude", "exclude the files that CVS ignores")
        .short('C')
        .effect(Effect::Switch(|args| &mut args.select.cvs_exclude)),
    Flag::value("max-size", "SIZE", "skip files larger than SIZE")
        .effect(Effect::Argument(|args, given| {
            args.select.max_size_bytes = Some(size::size(given, "max-size", b'b', &size::ANY)?);
            Ok(())
        }))
        .man("SIZE is a number with an optional unit: B, K, M, G, T or P (powers of 1024), or KB, MB etc. (powers of \
              1000). A trailing +1 or -1 adjusts it by one byte."),
    Flag::value("min-size", "SIZE", "skip files smaller than SIZE")
        .effect(Effect::Argument(|args, given| {
            args.select.min_size_bytes = Some(size::size(given, "min-size", b'b', &size::ANY)?);
            Ok(())
        })),
    Flag::switch("prune-empty-dirs", "skip directories without any files below them")
        .short('m')
        .negations(&["no-prune-empty-dirs", "no-m"])
        .effect(Effect::Switch(|args| &mut args.select.prune_empty_dirs)),
    Flag::switch("ignore-missing-args", "ignore sources that do not exist")
        .effect(Effect::Switch(|args| &mut args.ignore_missing_args)),
    Flag::switch("delete-missing-args", "delete destination entries of missing source arguments")
        .effect(Effect::Switch(|args| &mut args.delete_missing_args)),
    Flag::switch("remove-source-files", "remove source files (not directories) after the copy")
        .effect(Effect::Set(|args| args.remove_source_files = Some("remove-source-files"))),
    Flag::switch("remove-sent-files", "same as --remove-source-files")
        .effect(Effect::Set(|args| args.remove_source_files = Some("remove-sent-files"))),
    Flag::switch("copy-links", "copy the targets of symlinks instead of the symlinks")
        .short('L')
        .effect(Effect::Switch(|args| &mut args.select.copy_links)),
    Flag::switch("copy-unsafe-links", "copy the targets of symlinks that point outside the tree")
        .effect(Effect::Switch(|args| &mut args.select.copy_unsafe_links)),
    Flag::switch("copy-dirlinks", "treat symlinks to directories in the source as directories")
        .short('k')
        .effect(Effect::Switch(|args| &mut args.select.copy_dirlinks)),
    Flag::switch("copy-devices", "copy the content of devices as files")
        .effect(Effect::Switch(|args| &mut args.select.copy_devices))
        .man("The modification time of a device is the current time, so it is copied in each run. Nothing is copied \
              from devices without a length, such as /dev/zero. A server rejects the option for keys that are limited \
              to some directories (--root)."),
    Flag::switch("open-noatime", "do not change access times when reading the source")
        .negations(&["no-open-noatime"])
        .effect(Effect::Switch(|args| &mut args.select.open_noatime)),
    Flag::switch("qsort", "use qsort for the file list (same effect as --no-inc-recursive)")
        .effect(Effect::Switch(|args| &mut args.qsort)),
    Flag::value("confine-root", "DIR", "reject paths in options that lead out of DIR")
        .effect(Effect::Text(|args| &mut args.confine_root))
        .local(),
    Flag::value("iconv", "CONVERT_SPEC", "convert the character set of names")
        .negations(&["no-iconv"])
        .effect(Effect::Revocable(
            |args, given| {
                args.iconv = Some(given.value.to_vec());
                Ok(())
            },
            |args| args.iconv = Some(b"-".to_vec()),
        ))
        .local()
        .man("--iconv=- and --no-iconv disable the conversion. RSYNC_ICONV sets the default."),
];

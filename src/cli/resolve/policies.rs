//! Settles each policy except output, one function each, with the implications between options.

use super::Settled;
use super::environment::Environment;
use crate::cli::args::{Args, Dirs, GivenMap, Recursion};
use crate::cli::flags;
use crate::cli::value::{ids, refuse};
use crate::error::Result;
use crate::options::algorithm::Algorithm as _;
use crate::options::select::MissingArgs;
use crate::options::{
    AltDest, Append, ArgStyle, Backup, Batch, Check, CheckMode, Checksums, Compress, Compression,
    Connect, Delete, Delta, FilesFrom, Iconv, IdMap, LinkOwners, Place, Preserve, Recurse,
    RemoveSource, RuleArg, Select, When,
};

/// rsync's default of `--max-alloc`.
const MAX_ALLOC_BYTES: u64 = 1 << 30;

pub(super) fn check(args: &Args, sums: Option<Checksums>) -> Check {
    let window_secs = i64::from(args.modify_window_secs.unwrap_or(0));
    // The order of precedence is rsync's.
    let mode = if args.checksum {
        CheckMode::Digest
    } else if args.size_only {
        CheckMode::SizeOnly
    } else if args.ignore_times {
        CheckMode::IgnoreTimes
    } else {
        CheckMode::Quick { window_secs }
    };
    Check {
        mode,
        sums: sums.unwrap_or_default(),
        window_secs,
        ..args.check
    }
}

/// Returns the maps of owners and of groups.
pub(super) fn id_maps(args: &Args) -> Result<(Vec<IdMap>, Vec<IdMap>)> {
    let map = |given: &Option<GivenMap>, name| -> Result<Vec<IdMap>> {
        given
            .as_ref()
            .map_or(Ok(Vec::new()), |given| ids::parse(&given.text, name))
    };
    let usermap = map(&args.usermap, "usermap")?;
    let groupmap = map(&args.groupmap, "groupmap")?;
    Ok((usermap, groupmap))
}

pub(super) fn preserve(args: &Args, backup: Option<&Backup>) -> Result<Preserve> {
    let (usermap, groupmap) = id_maps(args)?;
    let given = &args.preserve;
    Ok(Preserve {
        executability: given.executability && !given.perms,
        atimes: args.atimes > 0,
        // A backup beside a file changes the directory's time anyway.
        omit_dir_times: given.omit_dir_times || backup.is_some_and(|backup| backup.dir.is_none()),
        usermap,
        groupmap,
        link_owners: if args.insecure_links {
            LinkOwners::Anyone
        } else {
            LinkOwners::Trusted
        },
        ..given.clone()
    })
}

/// The first protocol with incremental recursion.
const INCREMENTAL_SINCE: i32 = 30;

/// Returns whether `--protocol` selects a version without incremental recursion. It deletes before the copy, unless the
/// options say otherwise, and always verifies appended files.
fn is_old(args: &Args) -> bool {
    args.protocol
        .is_some_and(|protocol| protocol < INCREMENTAL_SINCE)
}

pub(super) fn delete(args: &Args) -> Delete {
    let delete = &args.delete;
    let when = match delete {
        _ if !delete.any => None,
        _ if delete.before => Some(When::Before),
        _ if delete.after => Some(When::After),
        _ if delete.delay => Some(When::Delay),
        _ if is_old(args) && !delete.during => Some(When::Before),
        _ => Some(When::During),
    };
    Delete {
        when,
        is_default_time: !(delete.before || delete.after || delete.delay || delete.during),
        excluded: delete.excluded,
        // Negative numbers mean 0, except the lowest one, which means no limit in rsync.
        max: args
            .max_delete
            .filter(|&max| max != i32::MIN)
            .map(|max| u64::try_from(max).unwrap_or(0)),
        // Depends on the operands.
        refuses_empty_source: false,
        force: args.force,
        ignore_errors: args.ignore_errors,
    }
}

pub(super) fn place(args: &Args, settled: Settled) -> Place {
    let Settled {
        partial_dir,
        backup,
        inplace,
        ..
    } = settled;
    Place {
        inplace,
        append: match args.append {
            0 => None,
            1 if !is_old(args) => Some(Append::Trust),
            _ => Some(Append::Verify),
        },
        partial: args.place.partial || args.partial_dir.is_some() || partial_dir.is_some(),
        partial_dir,
        backup,
        ..args.place.clone()
    }
}

/// The directory for unfinished files under `--delay-updates`.
const DELAY_DIR: &[u8] = b".~tmp~";

/// Returns the directory for unfinished files, cleaned; `None` if they keep their own names.
pub(super) fn partial_dir(args: &Args, env: Environment<'_>) -> Option<Vec<u8>> {
    let given = match &args.partial_dir {
        Some(dir) => Some(dir.clone()),
        None if args.place.delay_updates => Some(DELAY_DIR.to_vec()),
        None if args.place.partial
            && !args.place.inplace
            && args.append == 0
            && !args.preserve.write_devices =>
        {
            env.text("RSYNC_PARTIAL_DIR")
        }
        None => None,
    };
    let dir = given
        .map(|dir| clean(&dir))
        .filter(|dir| !dir.is_empty() && dir != b".");
    match dir {
        None if args.place.delay_updates => Some(DELAY_DIR.to_vec()),
        dir => dir,
    }
}

/// Removes `.` elements, doubled slashes, a trailing slash, and `x/..` pairs. Returns `.` instead of an empty path.
fn clean(path: &[u8]) -> Vec<u8> {
    let absolute = path.starts_with(b"/");
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|&b| b == b'/') {
        match part {
            b"" | b"." => {}
            b".." if parts.last().is_some_and(|&last| last != b"..") => {
                parts.pop();
            }
            b".." if absolute => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join(&b'/');
    match (absolute, joined.is_empty()) {
        (true, _) => [b"/", &joined[..]].concat(),
        (false, true) => b".".to_vec(),
        (false, false) => joined,
    }
}

pub(super) fn backup(args: &Args) -> Result<Option<Backup>> {
    let dir = args.backup_dir.clone();
    let suffix = args.suffix.clone().unwrap_or_else(|| {
        if dir.is_some() {
            Vec::new()
        } else {
            b"~".to_vec()
        }
    });
    if suffix.contains(&b'/') {
        return Err(refuse(
            [b"--suffix cannot contain slashes: ", &suffix[..]].concat(),
        ));
    }
    let beside = dir.as_ref().is_none_or(|dir| is_relative(dir));
    if suffix.is_empty() && beside {
        if args.server && args.sender {
            // A sender makes no backups.
            return Ok(None);
        }
        return Err(refuse(match dir {
            None => "--suffix cannot be empty without a --backup-dir",
            Some(_) => "--suffix cannot be empty when --backup-dir is the same as the dest dir",
        }));
    }
    if !args.backup && dir.is_none() {
        return Ok(None);
    }
    Ok(Some(Backup {
        dir: if beside { None } else { dir },
        suffix,
    }))
}

/// Returns whether a path means the directory itself: it is empty or has only `.` elements.
fn is_relative(path: &[u8]) -> bool {
    !path.starts_with(b"/")
        && path
            .split(|&b| b == b'/')
            .all(|part| matches!(part, b"" | b"."))
}

pub(super) fn select(
    args: &Args,
    files_from: Option<FilesFrom>,
    list_only: bool,
    settled: &Settled,
) -> Select {
    let recurse = recurse(args, list_only);
    let mut select = args.select.clone();
    if args.dirs == Dirs::Old {
        select.rules.push(RuleArg::Implied(b"- /*/*".to_vec()));
    }
    if let Some(backup) = settled
        .backup
        .as_ref()
        .filter(|backup| backup.dir.is_none() && args.delete.any && !args.delete.excluded)
    {
        select
            .rules
            .push(RuleArg::Implied([b"P *", &backup.suffix[..]].concat()));
    }
    select
        .rules
        .extend(Place::partials_rule(settled.partial_dir.as_deref()).map(RuleArg::Implied));
    Select {
        recurse,
        relative: args.relative.unwrap_or(files_from.is_some()),
        one_file_system: args.select.one_file_system.min(2),
        no_inc_recursive: no_inc_recursive(args, recurse),
        files_from,
        missing_args: match (args.delete_missing_args, args.ignore_missing_args) {
            (true, _) => MissingArgs::Delete,
            (false, true) => MissingArgs::Ignore,
            (false, false) => MissingArgs::Fail,
        },
        list_only,
        remove_source: match args.remove_source_files {
            None => RemoveSource::No,
            Some("remove-sent-files") => RemoveSource::Sent,
            Some(_) => RemoveSource::All,
        },
        ..select
    }
}

/// Returns how deep the tree is walked. `list_only` may also follow from a missing destination.
pub(super) fn recurse(args: &Args, list_only: bool) -> Recurse {
    let full = match args.recursion {
        Recursion::No => false,
        Recursion::ByArchive => args.files_from.is_none(),
        Recursion::Yes => true,
    };
    match args.dirs {
        _ if full => Recurse::Full,
        Dirs::Old => Recurse::Full,
        Dirs::Yes => Recurse::Dirs,
        Dirs::Unsaid if list_only || args.files_from.is_some() => Recurse::Dirs,
        Dirs::Unsaid | Dirs::No => Recurse::No,
    }
}

/// Returns whether the whole file list is built before the copy begins.
fn no_inc_recursive(args: &Args, recurse: Recurse) -> bool {
    recurse != Recurse::Full
        || args.inc_recursive == Some(false)
        || args.qsort
        || is_old(args)
        // At a receiving server, see `rsync::needs_whole_list`.
        || args.server && !args.sender && args.iconv.as_ref().is_some_and(|spec| spec != b"-")
        || args.delete.before
        || args.delete.after
        || args.place.delay_updates
        || args.select.prune_empty_dirs
}

pub(super) fn batch(args: &Args) -> Option<Batch> {
    if args.read_batch {
        return Some(Batch::Read(args.batch.clone()));
    }
    // What changes nothing is not recorded.
    let is_written =
        (args.write_batch || args.only_write_batch) && !args.dry_run && !args.select.list_only;
    is_written.then(|| Batch::Write {
        path: args.batch.clone(),
        only: args.only_write_batch,
    })
}

pub(super) fn delta(args: &Args, whole_file: Option<bool>) -> Delta {
    let choice = match args
        .compress_choice
        .as_deref()
        .filter(|choice| !choice.eq_ignore_ascii_case(b"auto"))
    {
        None => match args.compress {
            // A level requests compression, even after --no-compress.
            0 if args.compress_level.is_some() => Some(Compression::Auto),
            0 if args.no_compress => Some(Compression::No),
            0 => None,
            1 => Some(Compression::Auto),
            _ => Some(Compression::Zlibx),
        },
        // Unknown names were rejected before.
        Some(choice) => Compression::named(choice),
    };
    let suffixes = |list: &Vec<u8>| {
        list.split(|&b| b == b'/')
            .filter(|s| !s.is_empty())
            .map(<[u8]>::to_vec)
            .collect()
    };
    Delta {
        whole_file,
        block_size_bytes: args.block_size,
        fuzzy: args.fuzzy.min(2),
        alt_dest: args.alt_kind.map(|kind| AltDest {
            kind,
            by_clone: args.alt_by_clone,
            dirs: args.alt_dirs.clone(),
            shown_as_given: false,
        }),
        compress: Compress {
            choice,
            level: args.compress_level,
            list: None,
            skip: args.skip_compress.as_ref().map(suffixes),
        },
        detect_renamed: args.detect_renamed,
    }
}

/// `--max-alloc`, else `RSYNC_MAX_ALLOC`.
pub(super) fn max_alloc_bytes(args: &Args, env: Environment<'_>) -> Result<Option<u64>> {
    match args
        .max_alloc
        .clone()
        .or_else(|| env.text("RSYNC_MAX_ALLOC"))
    {
        Some(value) => flags::connect::max_alloc_bytes(&value),
        None => Ok(Some(MAX_ALLOC_BYTES)),
    }
}

/// Returns the value of `--timeout` or `--contimeout`; 0: no limit.
pub fn seconds(given: Option<i32>) -> u32 {
    given.and_then(|secs| u32::try_from(secs).ok()).unwrap_or(0)
}

pub(super) fn connect(args: &Args, env: Environment<'_>) -> Connect {
    Connect {
        port: args.port.unwrap_or(0),
        protocol: args
            .protocol
            .and_then(|protocol| u8::try_from(protocol).ok()),
        // A value that is wrong was refused before.
        max_alloc_bytes: max_alloc_bytes(args, env).unwrap_or(Some(MAX_ALLOC_BYTES)),
        timeout_secs: seconds(args.timeout),
        contimeout_secs: seconds(args.contimeout),
        iconv: iconv(args, env),
        server_log: args
            .remote_options
            .iter()
            .any(|option| option == b"--log-file" || option.starts_with(b"--log-file=")),
        ..args.connect.clone()
    }
}

/// Returns the character sets of `--iconv` or `RSYNC_ICONV`; `None`: no conversion.
pub fn iconv(args: &Args, env: Environment<'_>) -> Option<Iconv> {
    let from_env = || {
        env.text("RSYNC_ICONV")
            .filter(|spec| !spec.is_empty() && !args.server)
    };
    let spec = args
        .iconv
        .clone()
        .or_else(from_env)
        .filter(|spec| spec != b"-")?;
    let (here, there) = match spec.iter().position(|&byte| byte == b',') {
        Some(at) => (&spec[..at], &spec[at + 1..]),
        None => (&spec[..], &spec[..]),
    };
    // A server gets only its own, but takes the same spelling.
    let here = if args.server { there } else { here };
    Some(Iconv {
        here: here.to_vec(),
        there: there.to_vec(),
    })
}

/// Returns how often `--old-args` counts, from the command line or the environment.
pub(super) fn old_args(args: &Args, env: Environment<'_>) -> u8 {
    match args.old_args {
        Some(count) => count,
        None if args.secluded_args == Some(true) => 0,
        None => u8::try_from(env.number("RSYNC_OLD_ARGS").clamp(0, 2)).unwrap_or(0),
    }
}

pub(super) fn arg_style(args: &Args, env: Environment<'_>) -> ArgStyle {
    let secluded = args
        .secluded_args
        .unwrap_or_else(|| env.number("RSYNC_PROTECT_ARGS") > 0);
    match old_args(args, env) {
        0 if secluded => ArgStyle::Secluded,
        0 => ArgStyle::Escaped,
        1 => ArgStyle::OldPaths,
        _ => ArgStyle::OldAll,
    }
}

//! From the command line as said to the settled options: what implies what, what excludes what.

use super::args::{Args, Dirs, MapSaid, Recursion};
use super::far::{self, Peer, Placed};
use super::flag::{printable, refuse};
use super::flags;
use super::operand::Operand;
use super::value::{ids, names, shell, words};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::options::select::MissingArgs;
use crate::options::{
    AltDest, Append, ArgStyle, Backup, Check, CheckMode, Checksum, Checksums, Compress, Compression, Connect, Delete,
    Delta, FilesFrom, IdMap, LinkOwners, LogFile, Options, Output, Place, Preserve, Recurse, RemoveSource, RuleArg,
    Select, Transport, When,
};
use std::ffi::OsString;

/// How a variable of the environment is read.
pub type Vars<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Where unfinished files wait under `--delay-updates`.
const DELAY_DIR: &[u8] = b".~tmp~";

/// What a copy was asked for, once nothing speaks against it.
#[derive(Debug)]
pub struct Resolved {
    /// The settled options.
    pub options: Options,
    /// The sources; none are empty.
    pub sources: Vec<Vec<u8>>,
    /// The destination; `None` when the sources are only listed.
    pub dest: Option<Vec<u8>>,
    /// The other machine, if one is named.
    pub peer: Option<Peer>,
}

/// Settles the options of a copy.
///
/// The order of the checks is rsync's: of two mistakes it tells the same one.
pub fn resolve(args: &mut Args, operands: Vec<Operand>, vars: Vars<'_>) -> Result<Option<Resolved>> {
    // A lone operand is listed, which names directories even without -r or -d.
    let lists = args.list_only || operands.len() < 2;
    let writing = check_early(args, lists, vars)?;

    let wants = if args.files_from.is_some() { 2..=2 } else { 1..=usize::MAX };
    if !wants.contains(&operands.len()) {
        return Ok(None);
    }
    let Placed { sources, dest, peer } = far::place(operands)?;
    let list_only = args.list_only || dest.is_none();
    let role = Peer::role(peer.as_ref());
    let files_from = args.files_from.clone().map(|name| far::files_from(name, peer.as_ref())).transpose()?;
    check_operands(args, &sources, role)?;
    settle_sums(args, vars)?;
    let dest = match dest {
        Some(dest) if dest.is_empty() && !list_only => {
            // Before 3.2.4 an empty destination was the current directory.
            if old_args(args, vars) == 0 {
                let why = "Empty destination arg specified (use \".\" or see --old-args).";
                return Err(Error::usage(why).by(role));
            }
            Some(b".".to_vec())
        }
        dest => dest,
    };
    if peer.is_none() {
        not_yet(args, vars, false)?;
    }
    let mut connect = connect(args);
    if let Some(peer) = &peer {
        let shell = args.rsh.clone().or_else(|| vars("RSYNC_RSH").map(bytes)).unwrap_or_default();
        connect.transport = match (args.transport, vars("SPARSYNC_TRANSPORT").map(bytes)) {
            (Some(said), _) => said,
            (None, Some(name)) => flags::own::transport(&name).map_err(|error| error.by(Peer::role(Some(peer))))?,
            (None, None) => Transport::Auto,
        };
        connect.shell = shell::split(&shell).map_err(|error| error.by(Peer::role(Some(peer))))?;
        // `-e ssh` stands in scripts for no other reason than that rsync once needed it.
        connect.shell_was_said = !connect.shell.is_empty() && connect.shell != [b"ssh"];
        connect.args = arg_style(args, vars);
    }
    let mut options = options(args, writing, files_from, list_only, connect)?;
    let listed = vars("RSYNC_COMPRESS_LIST").map(bytes).unwrap_or_default();
    let compress = &mut options.delta.compress;
    compress.list = names::compress_list(&listed, names::End::Client);
    if peer.is_none() {
        // Nothing is compressed then, but a choice that is none ends the run as it does with rsync.
        let there = names::compress_list(&listed, names::End::Server);
        let takes = |method| there.as_ref().is_none_or(|there| there.contains(&method));
        let refused = |words: String| Error::new(Exit::Unsupported, words).by("sender");
        compress.agree(&takes).map_err(refused)?;
    }
    Ok(Some(Resolved { options, sources, dest, peer }))
}

/// Settles what checksums are shown, once nothing else speaks against the run.
fn settle_sums(args: &mut Args, vars: Vars<'_>) -> Result<()> {
    if args.sums.is_none()
        && let Some(list) = vars("RSYNC_CHECKSUM_LIST")
    {
        let agreed = names::checksum_list(&bytes(list))?;
        args.sums = agreed.map(|sum| Checksums { transfer: sum, listed: sum });
    }
    let sums = args.sums.unwrap_or_default();
    if args.checksum && sums.listed == Checksum::None {
        let message = "Invalid checksum-choice for --checksum: none (0)";
        return Err(Error::new(Exit::Unsupported, message).by("sender"));
    }
    whole_without_sum(args);
    Ok(())
}

/// Without a checksum a delta could not be verified.
fn whole_without_sum(args: &mut Args) {
    if args.sums.is_some_and(|sums| sums.transfer == Checksum::None) {
        args.whole_file = Some(true);
    }
}

/// Settles the options that a client sent: its words, which come without operands.
pub fn resolve_for_server(args: &mut Args) -> Result<Options> {
    let none = |_: &str| None;
    let writing = check_early(args, args.list_only, &none)?;
    settle_sums(args, &none)?;
    let files_from = args.files_from.clone().map(|name| match &name[..] {
        b"-" => FilesFrom::Stdin,
        _ => FilesFrom::File(name),
    });
    let list_only = args.list_only;
    options(args, writing, files_from, list_only, connect(args))
}

/// How files are written, as far as options must be compared for it.
struct Writing {
    partial_dir: Option<Vec<u8>>,
    backup: Option<Backup>,
    inplace: bool,
}

/// What rsync finds out before it looks at the operands.
fn check_early(args: &mut Args, lists: bool, vars: Vars<'_>) -> Result<Writing> {
    check_limits(args, lists, vars)?;
    let partial_dir = partial_dir(args, vars);
    let backup = backup(args)?;
    Ok(Writing { partial_dir, backup, inplace: check_writing(args)? })
}

fn options(
    args: &Args,
    writing: Writing,
    files_from: Option<FilesFrom>,
    list_only: bool,
    connect: Connect,
) -> Result<Options> {
    let Writing { partial_dir, backup, inplace } = writing;
    Ok(Options {
        check: check(args),
        preserve: preserve(args, backup.as_ref())?,
        delete: delete(args),
        place: place(args, partial_dir.clone(), backup.clone(), inplace),
        delta: delta(args),
        connect,
        dry_run: args.dry_run,
        output: output(args),
        select: select(args, files_from, list_only, partial_dir.as_deref(), backup.as_ref()),
    })
}

fn delta(args: &Args) -> Delta {
    let choice = match args.compress_choice.as_deref().filter(|choice| !choice.eq_ignore_ascii_case(b"auto")) {
        None => match args.compress {
            // A level asks for it, even behind --no-compress.
            0 if args.compress_level.is_some() => Some(Compression::Auto),
            0 => args.no_compress.then_some(Compression::No),
            1 => Some(Compression::Auto),
            _ => Some(Compression::Zlibx),
        },
        // Unknown names were refused before.
        Some(choice) => names::compression(choice),
    };
    let suffixes = |list: &Vec<u8>| list.split(|&b| b == b'/').filter(|s| !s.is_empty()).map(<[u8]>::to_vec).collect();
    Delta {
        whole_file: args.whole_file,
        block_size_bytes: args.block_size,
        fuzzy: args.fuzzy.min(2),
        alt_dest: args.alt_kind.map(|kind| AltDest { kind, dirs: args.alt_dirs.clone() }),
        compress: Compress {
            choice,
            level: args.compress_level,
            list: None,
            skip: args.skip_compress.as_ref().map(suffixes),
        },
    }
}

fn connect(args: &Args) -> Connect {
    Connect {
        transport: Transport::Auto,
        shell_was_said: false,
        shell: Vec::new(),
        program: args.rsync_path.clone(),
        args: ArgStyle::Escaped,
        family: args.family,
        trust_sender: args.trust_sender,
        address: args.address.clone(),
        port: args.port,
        timeout_secs: u32::try_from(args.timeout).unwrap_or(0),
        bwlimit_bytes_per_sec: args.bwlimit,
        stop: args.stop,
    }
}

/// How often `--old-args` counts: said, or in the environment.
fn old_args(args: &Args, vars: Vars<'_>) -> u8 {
    match args.old_args {
        Some(count) => count,
        None if args.secluded_args == Some(true) => 0,
        None => u8::try_from(number_of(vars, "RSYNC_OLD_ARGS").clamp(0, 2)).unwrap_or(0),
    }
}

fn arg_style(args: &Args, vars: Vars<'_>) -> ArgStyle {
    let secluded = args.secluded_args.unwrap_or_else(|| number_of(vars, "RSYNC_PROTECT_ARGS") > 0);
    match old_args(args, vars) {
        0 if secluded => ArgStyle::Secluded,
        0 => ArgStyle::Escaped,
        1 => ArgStyle::OldPaths,
        _ => ArgStyle::OldAll,
    }
}

/// Mistakes that rsync finds while or right after it reads the options.
fn check_limits(args: &mut Args, list_only: bool, vars: Vars<'_>) -> Result<()> {
    if let Some(value) = args.max_alloc.clone().or_else(|| vars("RSYNC_MAX_ALLOC").map(bytes)) {
        flags::connect::check_max_alloc(&value)?;
    }
    if args.old_args.is_some_and(|count| count > 0) && args.secluded_args == Some(true) {
        return Err(refuse("--secluded-args conflicts with --old-args."));
    }
    if let Some(choice) = &args.checksum_choice {
        args.sums = names::checksums(choice)?;
        whole_without_sum(args);
    }
    if let Some(choice) = &args.compress_choice {
        names::compress(choice)?;
    }
    if args.fake_super && args.xattrs > 1 {
        return Err(refuse("--fake-super conflicts with -XX"));
    }
    if args.read_batch {
        if args.write_batch || args.only_write_batch {
            return Err(refuse("--write-batch and --read-batch can not be used together"));
        }
        if args.files_from.is_some() {
            return Err(refuse("--read-batch cannot be used with --files-from"));
        }
    }
    if let Some(name) = args.remove_source_files.filter(|_| args.read_batch) {
        return Err(refuse(format!("--read-batch cannot be used with --{name}")));
    }
    let delete = &args.delete;
    if [delete.before, delete.during, delete.after].into_iter().filter(|&said| said).count() > 1 {
        return Err(refuse("You may not combine multiple --delete-WHEN options."));
    }
    if args.delete.any && recurse(args, list_only) == Recurse::No {
        return Err(refuse("--delete does not work without --recursive (-r) or --dirs (-d)."));
    }
    if args.confine_root.as_ref().is_some_and(|root| !root.starts_with(b"/")) {
        return Err(refuse("--confine-root must be an absolute path"));
    }
    Ok(())
}

/// How far the tree is walked. `list_only` may also be inferred from a missing destination.
fn recurse(args: &Args, list_only: bool) -> Recurse {
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

/// The directory of interrupted files, cleaned; `None` when they stay under their names.
fn partial_dir(args: &Args, vars: Vars<'_>) -> Option<Vec<u8>> {
    let said = match &args.partial_dir {
        Some(dir) => Some(dir.clone()),
        None if args.delay_updates => Some(DELAY_DIR.to_vec()),
        None if args.partial && !args.inplace && args.append == 0 && !args.write_devices => {
            vars("RSYNC_PARTIAL_DIR").map(bytes)
        }
        None => None,
    };
    let dir = said.map(|dir| clean(&dir)).filter(|dir| !dir.is_empty() && dir != b".");
    match dir {
        None if args.delay_updates => Some(DELAY_DIR.to_vec()),
        dir => dir,
    }
}

fn backup(args: &Args) -> Result<Option<Backup>> {
    let dir = args.backup_dir.clone();
    let suffix = args.suffix.clone().unwrap_or_else(|| if dir.is_some() { Vec::new() } else { b"~".to_vec() });
    if suffix.contains(&b'/') {
        return Err(refuse([b"--suffix cannot contain slashes: ", &suffix[..]].concat()));
    }
    let beside = dir.as_ref().is_none_or(|dir| is_here(dir));
    if suffix.is_empty() && beside {
        return Err(refuse(match dir {
            None => "--suffix cannot be empty without a --backup-dir",
            Some(_) => "--suffix cannot be empty when --backup-dir is the same as the dest dir",
        }));
    }
    if !args.backup && dir.is_none() {
        return Ok(None);
    }
    Ok(Some(Backup { dir: dir.filter(|_| !beside), suffix }))
}

/// Whether files are written in place.
fn check_writing(args: &Args) -> Result<bool> {
    let inplace = args.inplace || args.append > 0 || args.write_devices;
    if args.append > 0 && args.whole_file == Some(true) {
        return Err(refuse("--append cannot be used with --whole-file"));
    }
    if inplace {
        let name = if args.append > 0 { "append" } else { "inplace" };
        let other = if args.delay_updates {
            "delay-updates"
        } else if args.partial_dir.is_some() {
            "partial-dir"
        } else {
            return Ok(true);
        };
        return Err(refuse(format!("--{name} cannot be used with --{other}")));
    }
    Ok(false)
}

/// Mistakes that rsync finds once it knows where the operands are, and that none is a daemon's.
fn check_operands(args: &Args, sources: &[Vec<u8>], role: &'static str) -> Result<()> {
    if sources.iter().any(Vec::is_empty) {
        return Err(Error::usage("Empty source arg specified.").by(role));
    }
    let daemon_only = if args.password_file {
        "The --password-file option may only be used when accessing an rsync daemon."
    } else if args.contimeout != 0 {
        "The --contimeout option may only be used when connecting to an rsync daemon."
    } else {
        return Ok(());
    };
    Err(Error::usage(daemon_only).by(role))
}

/// What this version does not carry out ends the run before anything is touched; `far`: between two machines.
pub fn not_yet(args: &Args, vars: Vars<'_>, far: bool) -> Result<()> {
    let iconv = args.iconv.clone().or_else(|| vars("RSYNC_ICONV").map(bytes));
    const PROTOCOLS: std::ops::RangeInclusive<i32> = 20..=32;
    if let Some(protocol) = args.protocol {
        if protocol > *PROTOCOLS.end() {
            let message = format!("--protocol must be no more than {} on the Client.", PROTOCOLS.end());
            return Err(Error::new(Exit::Protocol, message).by("sender"));
        }
        if protocol < *PROTOCOLS.start() {
            let message =
                "protocol version mismatch -- is your shell clean?\n(see the rsync manpage for an explanation)";
            return Err(Error::new(Exit::Protocol, message).by("sender"));
        }
    }
    let option = if args.read_batch {
        "--read-batch".to_string()
    } else if args.only_write_batch {
        "--only-write-batch".to_string()
    } else if args.write_batch {
        "--write-batch".to_string()
    } else if args.copy_as.is_some() {
        "--copy-as".to_string()
    } else if args.confine_root.is_some() {
        "--confine-root".to_string()
    } else if args.copy_devices {
        "--copy-devices".to_string()
    } else if args.write_devices {
        "--write-devices".to_string()
    } else if iconv.as_deref().is_some_and(|spec| !matches!(spec, b"" | b"-")) {
        if args.iconv.is_some() { "--iconv".to_string() } else { "--iconv (from RSYNC_ICONV)".to_string() }
    } else if let Some(option) = args.remote_options.first().filter(|_| !far) {
        let option = printable(option);
        format!("--remote-option={} on a local copy", String::from_utf8_lossy(&option))
    } else if args.remote_options.iter().any(|option| option == b"--log-file" || option.starts_with(b"--log-file=")) {
        "--remote-option=--log-file".to_string()
    } else if let Some(protocol) = args.protocol.filter(|&protocol| protocol < 31) {
        format!("--protocol={protocol}{}", if far { "" } else { " on a local copy" })
    } else {
        return Ok(());
    };
    Err(Error::new(Exit::Unsupported, format!("sparsync: {option} is not supported yet")))
}

fn check(args: &Args) -> Check {
    let window_secs = args.modify_window_secs.unwrap_or(0);
    // rsync asks in this order.
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
        sums: args.sums.unwrap_or_default(),
        window_secs,
        update: args.update,
        existing_only: args.existing,
        ignore_existing: args.ignore_existing,
    }
}

fn preserve(args: &Args, backup: Option<&Backup>) -> Result<Preserve> {
    let map = |said: &Option<MapSaid>, name| -> Result<Vec<IdMap>> {
        said.as_ref().map_or(Ok(Vec::new()), |said| ids::parse(&said.text, name))
    };
    Ok(Preserve {
        links: args.links,
        perms: args.perms,
        executability: args.executability && !args.perms,
        owner: args.owner,
        group: args.group,
        times: args.times,
        atimes: args.atimes > 0,
        // Making a backup beside a file changes its directory's time anyhow.
        omit_dir_times: args.omit_dir_times || backup.is_some_and(|backup| backup.dir.is_none()),
        omit_link_times: args.omit_link_times,
        devices: args.devices,
        specials: args.specials,
        drop_devices: args.drop_devices,
        write_devices: args.write_devices,
        hard_links: args.hard_links,
        acls: args.acls,
        xattrs: args.xattrs,
        chmod: args.chmod.clone(),
        numeric_ids: args.numeric_ids,
        usermap: map(&args.usermap, "usermap")?,
        groupmap: map(&args.groupmap, "groupmap")?,
        super_user: args.super_user,
        fake_super: args.fake_super,
        safe_links: args.safe_links,
        munge_links: args.munge_links,
        keep_dirlinks: args.keep_dirlinks,
        link_owners: if args.insecure_links { LinkOwners::Anyone } else { LinkOwners::Trusted },
    })
}

fn delete(args: &Args) -> Delete {
    let said = &args.delete;
    let when = match said {
        _ if !said.any => None,
        _ if said.before => Some(When::Before),
        _ if said.after => Some(When::After),
        _ if said.delay => Some(When::Delay),
        _ => Some(When::During),
    };
    Delete {
        when,
        excluded: said.excluded,
        // Below 0 means 0, but the lowest number is rsync's word for no limit.
        max: args.max_delete.filter(|&max| max != i32::MIN).map(|max| u64::try_from(max).unwrap_or(0)),
        force: args.force,
        ignore_errors: args.ignore_errors,
    }
}

fn place(args: &Args, partial_dir: Option<Vec<u8>>, backup: Option<Backup>, inplace: bool) -> Place {
    Place {
        inplace,
        append: match args.append {
            0 => None,
            1 => Some(Append::Trust),
            _ => Some(Append::Verify),
        },
        partial: args.partial || args.partial_dir.is_some() || partial_dir.is_some(),
        partial_dir,
        temp_dir: args.temp_dir.clone(),
        delay_updates: args.delay_updates,
        backup,
        sparse: args.sparse,
        preallocate: args.preallocate,
        fsync: args.fsync,
        mkpath: args.mkpath,
    }
}

fn output(args: &Args) -> Output {
    let quiet = args.quiet > 0;
    let verbose = if quiet { 0 } else { args.verbose };
    let mut more = String::new();
    let mut add = |words: &str| {
        more.push_str(words);
        more.push(',');
    };
    if args.progress {
        add("FLIST2,NAME,PROGRESS");
    }
    if args.stats {
        add(if verbose > 1 { "STATS3" } else { "STATS2" });
    }
    if args.itemize > 0 || args.out_format.is_some() {
        add("NAME");
    }
    let info = words::settle_info(verbose, &more, &args.info);
    let said = |letters: &[u8]| args.out_format.as_deref().is_some_and(|f| letters.iter().any(|&l| has_escape(f, l)));
    // Names told by --progress count unless a format stands in their place.
    let shows_names = args.progress && (args.out_format.is_none() || said(b"bcC"));
    let named = words::settle_info(verbose, if shows_names { "NAME" } else { "" }, &args.info).name > 0;
    let progress_names = args.progress && args.out_format.is_none() && args.itemize == 0;
    let unsafe_links = words::settle_info(verbose, if progress_names { "NAME" } else { "" }, &args.info).name > 0;
    let default_format = || b"%i %n%L".to_vec();
    let out_format = match &args.out_format {
        Some(format) => Some(format.clone()),
        None if args.itemize > 0 => Some(default_format()),
        None => None,
    };
    let has_i = out_format.as_deref().is_some_and(|format| has_escape(format, b'i'));
    Output {
        verbose,
        quiet,
        info,
        debug: words::settle_debug(verbose, &args.debug),
        // `-ii --out-format=%n` stays silent about unchanged entries; `-vv -i` does not.
        itemize: match has_i {
            true if args.itemize > 1 || info.name > 1 => 2,
            true => 1,
            false => 0,
        },
        created_dir: has_i || named,
        unsafe_links,
        out_format,
        log_file: args
            .log_file
            .clone()
            .filter(|path| !path.is_empty())
            .map(|path| LogFile { path, format: args.log_file_format.clone().unwrap_or_else(default_format) }),
        human: args.human.saturating_add(1).clamp(0, 3).unsigned_abs(),
        eight_bit: args.eight_bit,
        outbuf: args.outbuf,
        stderr: args.stderr,
        progress: args.progress,
    }
}

/// Whether a format has the escape `%i`, with flags or a width between.
pub fn has_escape(format: &[u8], letter: u8) -> bool {
    let mut bytes = format.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            continue;
        }
        while bytes.next_if(|b| b.is_ascii_digit() || *b == b'-' || *b == b'\'').is_some() {}
        if bytes.next() == Some(letter) {
            return true;
        }
    }
    false
}

fn select(
    args: &Args,
    files_from: Option<FilesFrom>,
    list_only: bool,
    partial_dir: Option<&[u8]>,
    backup: Option<&Backup>,
) -> Select {
    let recurse = recurse(args, list_only);
    let mut rules = args.rules.clone();
    if args.dirs == Dirs::Old {
        rules.push(RuleArg::Implied(b"- /*/*".to_vec()));
    }
    if let Some(backup) = backup.filter(|backup| backup.dir.is_none() && args.delete.any && !args.delete.excluded) {
        rules.push(RuleArg::Implied([b"P *", &backup.suffix[..]].concat()));
    }
    if let Some(dir) = partial_dir.filter(|dir| !dir.starts_with(b"/")) {
        rules.push(RuleArg::Implied([b"-p ", dir].concat()));
    }
    Select {
        recurse,
        relative: args.relative.unwrap_or(files_from.is_some()),
        no_implied_dirs: args.no_implied_dirs,
        one_file_system: args.one_file_system.min(2),
        copy_links: args.copy_links,
        copy_unsafe_links: args.copy_unsafe_links,
        copy_dirlinks: args.copy_dirlinks,
        max_size_bytes: args.max_size,
        min_size_bytes: args.min_size,
        prune_empty_dirs: args.prune_empty_dirs,
        no_inc_recursive: no_inc_recursive(args, recurse),
        files_from,
        from0: args.from0,
        missing_args: match (args.delete_missing_args, args.ignore_missing_args) {
            (true, _) => MissingArgs::Delete,
            (false, true) => MissingArgs::Ignore,
            (false, false) => MissingArgs::Fail,
        },
        rules,
        cvs_exclude: args.cvs_exclude,
        list_only,
        remove_source: match args.remove_source_files {
            None => RemoveSource::No,
            Some("remove-sent-files") => RemoveSource::Sent,
            Some(_) => RemoveSource::All,
        },
        copy_devices: args.copy_devices,
        open_noatime: args.open_noatime,
    }
}

/// Whether the list is told whole before the copy begins.
fn no_inc_recursive(args: &Args, recurse: Recurse) -> bool {
    recurse != Recurse::Full
        || args.inc_recursive == Some(false)
        || args.qsort
        || args.delete.before
        || args.delete.after
        || args.delay_updates
        || args.prune_empty_dirs
}

/// Whether a path is the directory itself: empty, or nothing but `.` elements.
fn is_here(path: &[u8]) -> bool {
    !path.starts_with(b"/") && path.split(|&b| b == b'/').all(|part| matches!(part, b"" | b"."))
}

/// A path without `.` elements, doubled slashes and a slash at the end; `x/..` goes. Empty is `.`.
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

/// The number that a variable holds; 0 where it holds none.
fn number_of(vars: Vars<'_>, name: &str) -> i64 {
    vars(name).and_then(|value| value.to_str().and_then(|text| text.trim().parse().ok())).unwrap_or(0)
}

fn bytes(value: OsString) -> Vec<u8> {
    std::os::unix::ffi::OsStringExt::into_vec(value)
}

#[cfg(test)]
mod tests {
    use super::super::{Call, Copy, Request, read};
    use super::*;
    use crate::options::{AltKind, Info};
    use std::ffi::OsStr;

    fn request(line: &str, vars: &[(&str, &str)]) -> Result<Request> {
        let words: Vec<OsString> =
            line.split_whitespace().map(|word| if word == "''" { "" } else { word }.into()).collect();
        let vars = |name: &str| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        read(&Call {
            program: OsStr::new("sparsync"),
            args: &words,
            vars: &vars,
            now_unix_secs: 0,
            umask: 0o022,
            popt: b"",
            native_shell: false,
        })
    }

    fn copy_with(line: &str, vars: &[(&str, &str)]) -> Copy {
        match request(&format!("{line} src dst"), vars) {
            Ok(Request::Copy(copy)) => *copy,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn options(line: &str) -> Options {
        copy_with(line, &[]).options
    }

    fn refusal(line: &str) -> (u8, String, &'static str) {
        let error = request(line, &[]).expect_err(line);
        (error.exit.code(), String::from_utf8(error.message).unwrap(), error.role)
    }

    #[test]
    fn recursion_is_what_rsync_makes_of_it() {
        for (line, recurse) in [
            ("", Recurse::No),
            ("-r", Recurse::Full),
            ("-a", Recurse::Full),
            ("-a --no-r", Recurse::No),
            ("--no-r -a", Recurse::Full),
            ("-r --no-d", Recurse::Full),
            ("-d", Recurse::Dirs),
            ("--old-dirs", Recurse::Full),
            ("--old-dirs --no-d", Recurse::No),
            ("--old-dirs --no-r", Recurse::Full),
            ("--files-from=x", Recurse::Dirs),
            ("-a --files-from=x", Recurse::Dirs),
            ("-ar --files-from=x", Recurse::Full),
            ("--list-only", Recurse::Dirs),
            ("--files-from=x --no-d", Recurse::No),
            ("--list-only --no-d", Recurse::No),
        ] {
            assert_eq!(options(line).select.recurse, recurse, "{line}");
        }
        assert!(options("--files-from=x").select.relative && !options("--no-R --files-from=x").select.relative);
        assert_eq!(options("--files-from=-").select.files_from, Some(FilesFrom::Stdin));
    }

    #[test]
    fn rules_that_options_imply_come_last() {
        let rules = |line: &str| -> Vec<String> {
            let text = |rule: RuleArg| match rule {
                RuleArg::Implied(text) => format!("implied {}", String::from_utf8(text).unwrap()),
                RuleArg::Exclude(text) => format!("exclude {}", String::from_utf8(text).unwrap()),
                RuleArg::Filter(text) => format!("filter {}", String::from_utf8(text).unwrap()),
                other => format!("{other:?}"),
            };
            options(line).select.rules.into_iter().map(text).collect()
        };
        assert_eq!(
            rules("-b -r --delete --old-dirs --partial-dir=pp/ -FFF --exclude=x"),
            [
                "filter : /.rsync-filter",
                "filter - .rsync-filter",
                "exclude x",
                "implied - /*/*",
                "implied P *~",
                "implied -p pp"
            ]
        );
        assert_eq!(rules("-r -b --delete --suffix=.o"), ["implied P *.o"]);
        assert_eq!(rules("-r -b --delete --backup-dir=. --suffix=.o"), ["implied P *.o"]);
        assert_eq!(rules("-r -b --delete --backup-dir=bk"), [""; 0]);
        assert_eq!(rules("-r -b --delete-excluded"), [""; 0]);
        assert_eq!(rules("-b"), [""; 0]);
        assert_eq!(rules("--partial-dir=/pp"), [""; 0]);
        assert_eq!(rules("--delay-updates"), ["implied -p .~tmp~"]);
    }

    #[test]
    fn the_partial_directory_is_cleaned_and_may_come_from_the_environment() {
        let dir = |line: &str| {
            let place = copy_with(line, &[("RSYNC_PARTIAL_DIR", "env/")]).options.place;
            (place.partial, place.partial_dir.map(|dir| String::from_utf8(dir).unwrap()))
        };
        let at = |dir: &str| (true, Some(dir.to_string()));
        assert_eq!(dir(""), (false, None));
        assert_eq!(dir("--partial"), at("env"));
        assert_eq!(dir("-P"), at("env"));
        assert_eq!(dir("--partial --inplace"), (true, None));
        assert_eq!(dir("--partial --append"), (true, None));
        assert_eq!(dir("--partial --delay-updates"), at(".~tmp~"));
        assert_eq!(dir("--partial-dir=./x/../y//z/ --no-partial"), at("y/z"));
        assert_eq!(dir("--partial-dir=../q"), at("../q"));
        assert_eq!(dir("--partial-dir=. --partial"), (true, None));
        assert_eq!(dir("--partial-dir=/a/../b"), at("/b"));
    }

    #[test]
    fn deletion_has_one_time() {
        for (line, when) in [
            ("-r", None),
            ("-r --delete", Some(When::During)),
            ("-r --del", Some(When::During)),
            ("-r --delete-before --delete", Some(When::Before)),
            ("-r --delete-after", Some(When::After)),
            ("-r --delete-delay", Some(When::Delay)),
            ("-r --delete-delay --del", Some(When::During)),
            ("-r --del --delete-delay", Some(When::Delay)),
            ("-d --delete-excluded", Some(When::During)),
        ] {
            assert_eq!(options(line).delete.when, when, "{line}");
        }
        assert_eq!(options("--max-delete=-5").delete.max, Some(0));
        assert_eq!(options("--max-delete=-2147483648").delete.max, None);
        assert_eq!(options("--max-delete=7").delete.max, Some(7));
    }

    #[test]
    fn backups_imply_what_rsync_implies() {
        assert!(options("-b --no-O").preserve.omit_dir_times);
        assert!(!options("-b --backup-dir=x").preserve.omit_dir_times);
        let backup = |line: &str| options(line).place.backup.expect(line);
        assert_eq!(backup("-b"), Backup { dir: None, suffix: b"~".to_vec() });
        assert_eq!(backup("--backup-dir=x/"), Backup { dir: Some(b"x/".to_vec()), suffix: Vec::new() });
        assert_eq!(backup("--backup-dir=x --no-backup").dir, Some(b"x".to_vec()));
        assert_eq!(backup("--backup-dir=./ --suffix=~").dir, None);
        assert_eq!(options("--suffix=.b").place.backup, None);
    }

    #[test]
    fn what_is_told_is_settled() {
        let output = |line: &str| options(line).output;
        let told = |info: Info| (info.name, info.flist, info.progress, info.stats);
        assert_eq!(told(output("").info), (0, 0, 0, 0));
        assert_eq!(told(output("-v").info), (1, 1, 0, 1));
        assert_eq!(told(output("-P").info), (1, 2, 1, 0));
        assert_eq!(told(output("-vv --progress --stats").info), (2, 2, 1, 3));
        assert_eq!(told(output("--info=progress2 -P").info), (1, 2, 2, 0));
        assert_eq!(told(output("-P --info=none").info), (0, 0, 0, 0));
        assert_eq!(told(output("--stats --info=stats0").info), (0, 0, 0, 0));
        assert_eq!(output("-i").out_format.as_deref(), Some(&b"%i %n%L"[..]));
        assert_eq!(output("-i --no-i").out_format, None);
        for (line, itemize) in [
            ("", 0),
            ("-i", 1),
            ("-ii", 2),
            ("-vv -i", 2),
            ("--out-format=%i", 1),
            ("--out-format=%10i", 1),
            ("--out-format=%n -ii", 0),
            ("--out-format=%%i", 0),
            ("-i --info=name2", 2),
        ] {
            assert_eq!(output(line).itemize, itemize, "{line}");
        }
        for (line, human) in
            [("", 1), ("-h", 2), ("-hh", 3), ("-hhhh", 3), ("--no-h", 0), ("--no-h -h", 1), ("-hh --no-h -hh", 2)]
        {
            assert_eq!(output(line).human, human, "{line}");
        }
        assert_eq!(output("-qv").verbose, 0);
        assert_eq!(output("--log-file=").log_file, None);
    }

    #[test]
    fn the_strongest_check_counts() {
        assert_eq!(options("-cI --size-only").check.mode, CheckMode::Digest);
        assert_eq!(options("-I --size-only").check.mode, CheckMode::SizeOnly);
        assert_eq!(options("-I").check.mode, CheckMode::IgnoreTimes);
        assert_eq!(options("-@-1").check.mode, CheckMode::Quick { window_secs: -1 });
    }

    #[test]
    fn owners_are_mapped_once() {
        let preserve = options("--chown=1:x --no-o").preserve;
        assert!(!preserve.owner && preserve.group);
        assert_eq!((preserve.usermap.len(), preserve.groupmap.len()), (1, 1));
        assert!(options("--chown=: --chown=").preserve.usermap.is_empty());
        for (line, message) in [
            ("--usermap=a:b --chown=c", "--chown conflicts with prior --usermap."),
            ("--chown=1:2 --usermap=3:4", "--usermap conflicts with prior --chown."),
            ("--groupmap=0:1 --groupmap=0:1", "You can only specify --groupmap once."),
            ("--chown=1 --chown=1", "You can only specify a user-affecting --chown once."),
        ] {
            assert_eq!(refusal(&format!("{line} s d")).1, format!("rsync: {message}"));
        }
    }

    #[test]
    fn alternate_trees_are_of_one_kind_and_at_most_20() {
        let alt = options("--link-dest=a --link-dest=b").delta.alt_dest.unwrap();
        assert_eq!((alt.kind, alt.dirs.len()), (AltKind::Link, 2));
        assert_eq!(
            refusal("--compare-dest=a --link-dest=b s d").1,
            "rsync: ERROR: the --link-dest option conflicts with the --compare-dest option"
        );
        assert!(options(&"--copy-dest=x ".repeat(20)).delta.alt_dest.is_some());
        assert_eq!(
            refusal(&format!("{} s d", "--copy-dest=x ".repeat(21))).1,
            "rsync: ERROR: at most 20 --copy-dest args may be specified"
        );
    }

    #[test]
    fn contradictions_have_rsyncs_words() {
        for (line, message) in [
            ("--delete", "--delete does not work without --recursive (-r) or --dirs (-d)."),
            ("--suffix=a/b", "--suffix cannot contain slashes: a/b"),
            ("--suffix=", "--suffix cannot be empty without a --backup-dir"),
            ("--backup-dir=.", "--suffix cannot be empty when --backup-dir is the same as the dest dir"),
            ("--inplace --partial-dir=", "--inplace cannot be used with --partial-dir"),
            ("--write-devices --delay-updates", "--inplace cannot be used with --delay-updates"),
            ("--append --inplace --delay-updates", "--append cannot be used with --delay-updates"),
            ("--append-verify -W", "--append cannot be used with --whole-file"),
            ("-r --delete-before --del", "You may not combine multiple --delete-WHEN options."),
            ("--fake-super -XX", "--fake-super conflicts with -XX"),
            ("-s --old-args", "--secluded-args conflicts with --old-args."),
            ("--max-alloc=1", "--max-alloc=1 is too small (min: 1.00M or 0 for unlimited)"),
            ("-N", "This rsync does not support --crtimes (-N)"),
            ("-M x", "Remote option must start with a dash: x"),
        ] {
            assert_eq!(refusal(&format!("{line} s d")), (1, format!("rsync: {message}"), "client"));
        }
        for (line, exit, message, role) in [
            ("-c --cc=md5,none s d", 4, "Invalid checksum-choice for --checksum: none (0)", "sender"),
            ("--cc=x s d", 4, "unknown checksum name: x", "client"),
            ("--zc=x s d", 4, "unknown compress name: x", "client"),
            ("--files-from=h:x s d", 1, "--files-from cannot be remote when the transfer is local", "sender"),
            ("'' d", 1, "Empty source arg specified.", "sender"),
            ("s ''", 1, "Empty destination arg specified (use \".\" or see --old-args).", "sender"),
            ("--usermap=x s d", 1, "No colon found in --usermap: x", "Receiver"),
            (
                "--password-file=x --contimeout=1 s d",
                1,
                "The --password-file option may only be used when accessing an rsync daemon.",
                "sender",
            ),
            (
                "--contimeout=1 s d",
                1,
                "The --contimeout option may only be used when connecting to an rsync daemon.",
                "sender",
            ),
            ("--protocol=33 s d", 2, "--protocol must be no more than 32 on the Client.", "sender"),
        ] {
            assert_eq!(refusal(line), (exit, message.to_string(), role));
        }
    }

    #[test]
    fn what_is_not_carried_out_names_itself_and_exits_4() {
        for (line, name) in [
            ("--read-batch=x", "--read-batch"),
            ("--write-batch=x", "--write-batch"),
            ("--only-write-batch=x", "--only-write-batch"),
            ("--copy-as=x", "--copy-as"),
            ("--confine-root=/x", "--confine-root"),
            ("--copy-devices", "--copy-devices"),
            ("-D --write-devices", "--write-devices"),
            ("--iconv=utf8", "--iconv"),
            ("-M--fake-super", "--remote-option=--fake-super on a local copy"),
            ("--protocol=29", "--protocol=29 on a local copy"),
        ] {
            assert_eq!(
                refusal(&format!("{line} s d")),
                (4, format!("sparsync: {name} is not supported yet"), "client")
            );
        }
        for line in [
            "-y --no-y",
            "--write-devices --no-write-devices",
            "--no-W -W",
            "--iconv=-",
            "--iconv=x --no-iconv",
            "--protocol=31",
            "-zz --zc=lz4 -e ssh -s --timeout=5 -4",
        ] {
            options(line);
        }
        let error = request("s d", &[("RSYNC_ICONV", "utf8")]).unwrap_err();
        assert_eq!(error.exit, Exit::Unsupported);
        copy_with("--no-iconv", &[("RSYNC_ICONV", "utf8")]);
    }

    #[test]
    fn the_operands_choose_the_request() {
        let is = |line: &str| request(line, &[]).unwrap();
        assert!(matches!(is("-h"), Request::Help));
        assert!(matches!(is("-vh"), Request::Help));
        assert!(matches!(is("--help --bogus"), Request::Help));
        assert!(matches!(is("-V"), Request::Version { json: false }));
        assert!(matches!(is("-VV --delete"), Request::Version { json: true }));
        assert!(matches!(is("--info=help s d"), Request::Print(_)));
        assert!(matches!(is(""), Request::NoArgs { role: "client" }));
        assert!(matches!(is("-h -h"), Request::NoArgs { role: "Receiver" }));
        assert!(matches!(is("--files-from=x s"), Request::NoArgs { role: "client" }));
        for line in [
            "host:x d",
            "s host::x",
            "--bogus host:x",
            "-y host:x",
            "--server",
            "--daemon --bogus",
            "--bogus --no-detach",
            "rsync://h/m",
        ] {
            assert!(matches!(is(line), Request::Handover(_)), "{line}");
        }
        let Request::Copy(copy) = is("src") else { panic!("one operand is listed") };
        assert!(copy.options.select.list_only && copy.dest.is_none());
        assert_eq!(copy.options.select.recurse, Recurse::Dirs);
        let Request::Copy(copy) = is("--old-args s ''") else { panic!("--old-args allows it") };
        assert_eq!(copy.dest, Some(b".".to_vec()));
        assert!(matches!(is("--delete src"), Request::Copy(_)));
    }
}

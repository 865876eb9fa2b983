//! Conflicts between options, and unsupported options: each check in rsync's order and rsync's words.

use super::environment::Environment;
use super::policies::{self, recurse};
use crate::cli::args::Args;
use crate::cli::remote_args::RemoteOperand;
use crate::cli::value::{names, refuse};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::options::algorithm::Algorithm as _;
use crate::options::select::MissingArgs;
use crate::options::{
    Batch, CheckMode, Checksums, Compression, DetectRenamed, Options, Recurse, Verify,
};
use crate::proto::rsync::handshake::VERSION_MISMATCH;
use std::ops::RangeInclusive;

/// Checks what rsync checks while it reads the options or right after. Returns the choice of `--checksum-choice`.
pub(super) fn check_limits(
    args: &Args,
    list_only: bool,
    env: Environment<'_>,
) -> Result<Option<Checksums>> {
    policies::max_alloc_bytes(args, env)?;
    if args.old_args.is_some_and(|count| count > 0) && args.secluded_args == Some(true) {
        return Err(refuse("--secluded-args conflicts with --old-args."));
    }
    let sums = args
        .checksum_choice
        .as_deref()
        .map(names::checksums)
        .transpose()?
        .flatten();
    if let Some(choice) = &args.compress_choice {
        names::compress(choice)?;
    }
    if args.preserve.fake_super && args.preserve.xattrs > 1 {
        return Err(refuse("--fake-super conflicts with -XX"));
    }
    if args.read_batch {
        if args.write_batch || args.only_write_batch {
            return Err(refuse(
                "--write-batch and --read-batch can not be used together",
            ));
        }
        if args.files_from.is_some() {
            return Err(refuse("--read-batch cannot be used with --files-from"));
        }
    }
    if args.read_batch
        && let Some(name) = args.remove_source_files
    {
        return Err(refuse(format!("--read-batch cannot be used with --{name}")));
    }
    let delete = &args.delete;
    if [delete.before, delete.during, delete.after]
        .into_iter()
        .filter(|&given| given)
        .count()
        > 1
    {
        return Err(refuse(
            "You may not combine multiple --delete-WHEN options.",
        ));
    }
    if args.delete.any && recurse(args, list_only) == Recurse::No {
        return Err(refuse(
            "--delete does not work without --recursive (-r) or --dirs (-d).",
        ));
    }
    if args
        .confine_root
        .as_ref()
        .is_some_and(|root| !root.starts_with(b"/"))
    {
        return Err(refuse("--confine-root must be an absolute path"));
    }
    if args.confine_root.is_some() && args.insecure_links {
        return Err(refuse(
            "--insecure-links cannot be combined with --confine-root",
        ));
    }
    Ok(sums)
}

/// Returns whether files are written in place. Fails if another option forbids that.
pub(super) fn check_writing(args: &Args, whole_file: Option<bool>) -> Result<bool> {
    let inplace = args.place.inplace || args.append > 0 || args.preserve.write_devices;
    if args.append > 0 && whole_file == Some(true) {
        return Err(refuse("--append cannot be used with --whole-file"));
    }
    if inplace {
        let name = if args.append > 0 { "append" } else { "inplace" };
        let other = if args.place.delay_updates {
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

/// Checks what rsync checks once it has sorted the operands. `peer`: the other machine.
pub(super) fn check_operands(
    args: &Args,
    sources: &[Vec<u8>],
    peer: Option<&RemoteOperand>,
) -> Result<()> {
    let role = RemoteOperand::role(peer);
    let is_daemon = peer.is_some_and(|peer| peer.daemon.is_some());
    // Without a module, a daemon lists its modules.
    let may_be_empty = is_daemon && peer.is_some_and(|peer| peer.server_sends);
    if !may_be_empty && sources.iter().any(Vec::is_empty) {
        return Err(Error::usage("Empty source arg specified.").by(role));
    }
    // Connecting to a sparsync server has a timeout, as with a daemon.
    let connects =
        peer.is_some_and(|peer| peer.server.is_some()) || is_daemon && args.rsh.is_none();
    let daemon_only = if args.connect.daemon.password_file.is_some() && !is_daemon {
        "The --password-file option may only be used when accessing an rsync daemon."
    } else if args.contimeout.is_some_and(|secs| secs != 0) && !connects {
        "The --contimeout option may only be used when connecting to an rsync daemon."
    } else {
        return Ok(());
    };
    Err(Error::usage(daemon_only).by(role))
}

/// Rejects algorithms that a batch file cannot record: it does not name them.
pub(super) fn check_batch(args: &Args, options: &Options) -> Result<()> {
    if !matches!(options.batch, Some(Batch::Write { .. })) {
        return Ok(());
    }
    let is_md5 = |name: &[u8]| {
        [&b"auto"[..], b"md5"]
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known))
    };
    let sum = args
        .checksum_choice
        .as_deref()
        .filter(|choice| !choice.split(|&byte| byte == b',').all(is_md5));
    let is_other = |method: &Compression| {
        matches!(
            method,
            Compression::Zstd | Compression::Lz4 | Compression::Zlibx
        )
    };
    let method = options.delta.compress.choice.filter(is_other);
    let (option, name) = match (sum, method) {
        (Some(sum), _) => (
            "--checksum-choice",
            String::from_utf8_lossy(sum).into_owned(),
        ),
        (None, Some(method)) => ("--compress-choice", method.name().to_owned()),
        (None, None) => return Ok(()),
    };
    let words = format!("Your {option} value ({name}) was refused by the server.");
    Err(Error::new(Exit::Unsupported, words).by("sender"))
}

/// Rejects what `--detect-renamed` cannot be used with: options under which equal times do not stand for equal content, unless
/// contents are compared, under which what is deleted depends on when it is deleted, and which record what a peer sends.
pub(super) fn check_renamed(args: &Args, options: &Options) -> Result<()> {
    let Some(how) = options.delta.detect_renamed else {
        return Ok(());
    };
    let trusts_times = how != DetectRenamed::Content;
    let batch = match options.batch {
        Some(Batch::Write { .. }) => "--write-batch",
        Some(Batch::Read(_)) => "--read-batch",
        None => "",
    };
    let given = [
        (trusts_times && args.checksum, "--checksum"),
        (
            trusts_times && options.check.mode == CheckMode::IgnoreTimes,
            "--ignore-times",
        ),
        (options.preserve.keep_dirlinks, "--keep-dirlinks"),
        (
            options.select.missing_args == MissingArgs::Delete,
            "--delete-missing-args",
        ),
        (options.connect.server_log, "--remote-option=--log-file"),
        (!batch.is_empty(), batch),
    ];
    match given.into_iter().find(|(is_given, _)| *is_given) {
        None => Ok(()),
        Some((_, option)) => Err(Error::usage(format!(
            "sparsync: --detect-renamed cannot be used with {option}"
        ))),
    }
}

/// Rejects a batch of a run with `--clone-dest`, which an rsync that reads it does not have.
pub(super) fn check_clones(options: &Options) -> Result<()> {
    let alternates = options.delta.alt_dest.as_ref();
    let clones = alternates.is_some_and(|alt| alt.by_clone);
    if clones && matches!(options.batch, Some(Batch::Write { .. })) {
        let words = "sparsync: --clone-dest cannot be used with --write-batch";
        return Err(Error::usage(words));
    }
    Ok(())
}

/// Rejects what `--verify` cannot be used with: devices, which need not be readable again, and runs of which the receiver
/// or the source is not there.
pub(super) fn check_verify(options: &Options) -> Result<()> {
    let rereads_source = match options.place.verify {
        None => return Ok(()),
        Some(Verify::Written) => false,
        Some(Verify::WrittenAndSource) => true,
    };
    let writes_batch = matches!(options.batch, Some(Batch::Write { .. }));
    let reads_batch = matches!(options.batch, Some(Batch::Read(_)));
    let given = [
        (
            options.preserve.write_devices,
            "--verify",
            "--write-devices",
        ),
        (writes_batch, "--verify", "--write-batch"),
        (
            rereads_source && options.select.copy_devices,
            "--verify=source",
            "--copy-devices",
        ),
        (
            rereads_source && reads_batch,
            "--verify=source",
            "--read-batch",
        ),
    ];
    match given.into_iter().find(|(is_given, ..)| *is_given) {
        None => Ok(()),
        Some((_, own, other)) => Err(Error::usage(format!(
            "sparsync: {own} cannot be used with {other}"
        ))),
    }
}

/// The oldest version of rsync's protocol that sparsync speaks.
const OLDEST_PROTOCOL: i32 = 27;
/// The versions that rsync accepts in `--protocol`.
const PROTOCOLS: RangeInclusive<i32> = 20..=32;

/// Rejects a protocol version that rsync itself rejects.
pub fn check_protocol(args: &Args) -> Result<()> {
    let message = match args.protocol {
        Some(protocol) if protocol > *PROTOCOLS.end() => {
            format!(
                "--protocol must be no more than {} on the Client.",
                PROTOCOLS.end()
            )
        }
        Some(protocol) if protocol < *PROTOCOLS.start() => VERSION_MISMATCH.to_string(),
        Some(_) | None => return Ok(()),
    };
    Err(Error::new(Exit::Protocol, message).by("sender"))
}

/// Returns the first unsupported option.
pub(super) fn unsupported(args: &Args) -> Option<String> {
    let protocol = args
        .protocol
        .filter(|&protocol| protocol < OLDEST_PROTOCOL)?;
    Some(format!("--protocol={protocol}"))
}

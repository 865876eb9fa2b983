//! Turns the command line as given into settled options: implications between options, and conflicts.
//!
//! Checks are made in rsync's order, so that of two errors the same one is reported.

mod contradictions;
mod environment;
mod output;
mod policies;
#[cfg(test)]
mod tests;

pub use self::contradictions::check_protocol;
use self::environment::Environment;
pub use self::environment::Vars;
pub use self::policies::seconds;
use super::args::Args;
use super::flags;
use super::operand::Operand;
use super::remote_args::{self, PlacedOperands, RemoteOperand};
use super::value::{names, shell};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::options::{
    Backup, CacheChoice, Checksum, Checksums, Compress, Connect, FilesFrom, Options, PlanUse,
    TransportChoice,
};

/// A valid copy.
#[derive(Debug)]
pub struct Resolved {
    /// The settled options.
    pub options: Options,
    /// The checksums that `--checksum-choice` or `RSYNC_CHECKSUM_LIST` chose; `None`: neither was given.
    pub sums: Option<Checksums>,
    /// The sources; none is empty.
    pub sources: Vec<Vec<u8>>,
    /// The destination; `None` lists the sources.
    pub dest: Option<Vec<u8>>,
    /// The other machine, if one is named.
    pub peer: Option<RemoteOperand>,
}

/// Values that several policies depend on.
struct Settled {
    /// The directory for unfinished files; `None`: they keep their own names.
    partial_dir: Option<Vec<u8>>,
    backup: Option<Backup>,
    /// `None`: no choice was made.
    sums: Option<Checksums>,
    inplace: bool,
    whole_file: Option<bool>,
}

/// Settles the options of a copy; `None` if the operands make no copy.
pub fn resolve(args: &Args, operands: Vec<Operand>, vars: Vars<'_>) -> Result<Option<Resolved>> {
    let env = Environment(vars);
    // A lone operand is listed, and a listing includes directories even without -r or -d.
    let lists = args.select.list_only || operands.len() < 2 && !args.read_batch;
    let mut settled = settle_early(args, lists, env)?;
    let wants = if args.files_from.is_some() {
        2..=2
    } else {
        1..=usize::MAX
    };
    if !wants.contains(&operands.len()) {
        return Ok(None);
    }
    let PlacedOperands {
        sources,
        dest,
        peer,
    } = if args.read_batch {
        remote_args::place_beside_batch(operands)?
    } else {
        remote_args::place(operands)?
    };
    let list_only = args.select.list_only || dest.is_none();
    let role = RemoteOperand::role(peer.as_ref());
    let files_from = args
        .files_from
        .clone()
        .map(|name| remote_args::files_from(name, peer.as_ref()))
        .transpose()?;
    contradictions::check_operands(args, &sources, peer.as_ref())?;
    settled.settle_sums(args, env)?;
    let dest = match dest {
        Some(dest)
            if dest.is_empty()
                && !list_only
                && !peer.as_ref().is_some_and(RemoteOperand::has_daemon_dest) =>
        {
            // Before 3.2.4 an empty destination was the current directory.
            if policies::old_args(args, env) == 0 {
                let why = "Empty destination arg specified (use \".\" or see --old-args).";
                return Err(Error::usage(why).by(role));
            }
            Some(b".".to_vec())
        }
        dest => dest,
    };
    let connect = match &peer {
        Some(peer) => reach(args, env, peer)?,
        None => {
            check_protocol(args)?;
            policies::connect(args, env)
        }
    };
    let sums = settled.sums;
    let mut options = options(args, settled, files_from, list_only, connect, env)?;
    settle_compression(&mut options.delta.compress, env, peer.is_some())?;
    contradictions::check_batch(args, &options)?;
    contradictions::check_renamed(args, &options)?;
    contradictions::check_clones(&options)?;
    contradictions::check_verify(&options)?;
    Ok(Some(Resolved {
        options,
        sums,
        sources,
        dest,
        peer,
    }))
}

/// Settles the options that a client sent. They come without operands.
pub fn resolve_for_server(args: &Args) -> Result<Options> {
    let env = Environment(&|_| None);
    let mut settled = settle_early(args, args.select.list_only, env)?;
    settled.settle_sums(args, env)?;
    let files_from = args.files_from.clone().map(|name| match &name[..] {
        b"-" => FilesFrom::Stdin,
        _ => FilesFrom::File(name),
    });
    options(
        args,
        settled,
        files_from,
        args.select.list_only,
        Connect {
            args: policies::arg_style(args, env),
            ..policies::connect(args, env)
        },
        env,
    )
}

/// Checks the maps of owners and groups.
pub fn check_id_maps(args: &Args) -> Result<()> {
    policies::id_maps(args).map(drop)
}

/// Returns whether names are converted.
pub fn converts_names(args: &Args, vars: Vars<'_>) -> bool {
    policies::iconv(args, Environment(vars)).is_some()
}

/// Returns how much memory this end lets the listing of one directory take, whatever its peer requests, in bytes; `None`:
/// no limit.
pub fn own_max_alloc_bytes(vars: Vars<'_>) -> Option<u64> {
    policies::connect(&Args::default(), Environment(vars)).max_alloc_bytes
}

/// Returns whether `--protocol` selects a version whose receiver sends nothing but requests. Such a version has no `-A` and
/// `-X`, which rsync permits only within a machine.
pub fn lacks_items(args: &Args) -> bool {
    args.protocol.is_some_and(|protocol| protocol < 29)
        && !args.preserve.acls
        && args.preserve.xattrs == 0
}

/// Returns the error that names the first unsupported option.
pub fn unsupported(args: &Args) -> Option<Error> {
    let option = contradictions::unsupported(args)?;
    let error = Error::new(
        Exit::Unsupported,
        format!("sparsync: {option} is not supported"),
    );
    Some(error.with_hint("SPARSYNC_RSYNC=PROGRAM runs that rsync instead"))
}

/// Settles what rsync checks before it looks at the operands.
fn settle_early(args: &Args, lists: bool, env: Environment<'_>) -> Result<Settled> {
    let sums = contradictions::check_limits(args, lists, env)?;
    let partial_dir = policies::partial_dir(args, env);
    let backup = policies::backup(args)?;
    let whole_file = whole_file(args, sums);
    let inplace = contradictions::check_writing(args, whole_file)?;
    Ok(Settled {
        partial_dir,
        backup,
        sums,
        inplace,
        whole_file,
    })
}

impl Settled {
    /// Settles the checksums. rsync does this last, after all other checks.
    fn settle_sums(&mut self, args: &Args, env: Environment<'_>) -> Result<()> {
        if self.sums.is_none()
            && let Some(list) = env.text("RSYNC_CHECKSUM_LIST")
        {
            let agreed = names::checksum_list(&list)?;
            self.sums = agreed.map(|sum| Checksums {
                transfer: sum,
                listed: sum,
            });
        }
        // A receiving server leaves the error to its client, which has the same options.
        let is_sender = args.sender || !args.server;
        if is_sender && args.checksum && self.sums.unwrap_or_default().listed == Checksum::None {
            let message = "Invalid checksum-choice for --checksum: none (0)";
            return Err(Error::new(Exit::Unsupported, message).by("sender"));
        }
        self.whole_file = whole_file(args, self.sums);
        Ok(())
    }
}

/// Returns whether files are sent whole, if that is settled. Without a checksum a delta could not be verified.
fn whole_file(args: &Args, sums: Option<Checksums>) -> Option<bool> {
    if sums.is_some_and(|sums| sums.transfer == Checksum::None) {
        Some(true)
    } else {
        args.whole_file
    }
}

/// Settles how a peer is reached.
fn reach(args: &Args, env: Environment<'_>, peer: &RemoteOperand) -> Result<Connect> {
    let role = RemoteOperand::role(Some(peer));
    // A daemon is reached through a remote shell only if the command line names one.
    let shell = match &args.rsh {
        Some(shell) => shell.clone(),
        None if peer.daemon.is_none() => env.text("RSYNC_RSH").unwrap_or_default(),
        None => Vec::new(),
    };
    let transport = match (args.transport, env.text("SPARSYNC_TRANSPORT")) {
        (Some(given), _) => given,
        (None, Some(name)) => {
            flags::own::transport(&name, "SPARSYNC_TRANSPORT").map_err(|error| error.by(role))?
        }
        (None, None) => TransportChoice::Auto,
    };
    if peer.daemon.is_some() && !shell.is_empty() && peer.host.starts_with(b"-") {
        return Err(remote_args::invalid_host().by(role));
    }
    let shell = shell::split(&shell).map_err(|error| error.by(role))?;
    let shell_was_given = !shell.is_empty();
    let style = policies::arg_style(args, env);
    Ok(Connect {
        transport,
        shell,
        shell_was_given,
        args: style,
        ..policies::connect(args, env)
    })
}

/// Restricts the compressions that a session may agree on to those in `RSYNC_COMPRESS_LIST`.
fn settle_compression(compress: &mut Compress, env: Environment<'_>, has_peer: bool) -> Result<()> {
    let listed = env.text("RSYNC_COMPRESS_LIST").unwrap_or_default();
    compress.list = names::compress_list(&listed, names::End::Client);
    if !has_peer {
        // A local copy compresses nothing, but an invalid choice ends the run, as in rsync.
        let theirs = names::compress_list(&listed, names::End::Server);
        let takes = |method| {
            theirs
                .as_ref()
                .is_none_or(|theirs| theirs.contains(&method))
        };
        let refused = |words: String| Error::new(Exit::Unsupported, words).by("sender");
        compress.agree(&takes).map_err(refused)?;
    }
    Ok(())
}

fn options(
    args: &Args,
    settled: Settled,
    files_from: Option<FilesFrom>,
    list_only: bool,
    connect: Connect,
    env: Environment<'_>,
) -> Result<Options> {
    Ok(Options {
        check: policies::check(args, settled.sums),
        preserve: policies::preserve(args, settled.backup.as_ref())?,
        delete: policies::delete(args),
        delta: policies::delta(args, settled.whole_file),
        connect,
        dry_run: args.dry_run,
        plan_use: if args.replay_plan {
            PlanUse::Replay
        } else {
            PlanUse::Free
        },
        explained: args.explained.clone(),
        batch: policies::batch(args),
        copy_as: args.copy_as.clone(),
        confine_root: args.confine_root.clone(),
        checksum_cache: checksum_cache(args),
        output: output::output(args, env),
        select: policies::select(args, files_from, list_only, &settled),
        place: policies::place(args, settled),
    })
}

/// Returns what `--checksum-cache` and `--checksum-cache-force` choose together.
fn checksum_cache(args: &Args) -> Option<CacheChoice> {
    let choice = args.checksum_cache.clone()?;
    Some(CacheChoice {
        force: args.checksum_cache_force,
        ..choice
    })
}

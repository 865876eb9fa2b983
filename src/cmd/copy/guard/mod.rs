//! What must hold before a run may change anything: mounts, a source that is not empty, a bound on deletions, a lock.

pub mod deletions;
mod run_lock;

use self::deletions::Counted;
use self::run_lock::RunLock;
use crate::cli::Copy;
use crate::cli::plan_command::GuardedRun;
use crate::cmd::dir_counts;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::{sys, trusted_path};
use crate::options::select::MissingArgs;
use crate::options::{DeleteGuard, LinkOwners, SMALL_DEST_ENTRIES};
use crate::report::event::errno_words;

/// A run that may begin.
pub struct Admitted {
    /// How many entries it may delete; `None`: the guard sets no bound.
    pub deletions_max: Option<u64>,
    /// Held until the run has ended.
    pub lock: Option<RunLock>,
}

/// Checks everything that must hold before the run changes anything. The error says what does not hold.
///
/// The lock comes first: what the checks find must still be true when this run begins.
pub fn admit(env: &mut Env, wanted: &Copy) -> Result<Admitted> {
    let guard = &wanted.guard;
    for path in &guard.mounts {
        require_mount(path)?;
    }
    let lock = match guard.lock {
        Some(lock) => Some(RunLock::take(env, wanted, lock)?),
        None => None,
    };

    Ok(Admitted {
        deletions_max: deletions_max(env, wanted)?,
        lock,
    })
}

/// As [`admit`], for a run that a verb is about. Deletions are counted by another process, which gets the command line of
/// [`Env`], so that is the one of the run meanwhile.
pub fn admit_described(env: &mut Env, run: &GuardedRun) -> Result<()> {
    let words = run.words.iter().map(|word| os_str(word).to_owned());
    let args = std::mem::replace(&mut env.args, words.collect());
    let program = std::mem::replace(&mut env.program, "sparsync".into());
    let admitted = admit(env, &run.copy);
    env.args = args;
    env.program = program;
    admitted.map(drop)
}

/// Returns how many entries the run may delete; `None`: the guard sets no bound.
fn deletions_max(env: &mut Env, wanted: &Copy) -> Result<Option<u64>> {
    let guard = &wanted.guard;
    let deletes = wanted.options.delete.when.is_some()
        || wanted.options.select.missing_args == MissingArgs::Delete;
    let bound = if deletes {
        guard.delete
    } else {
        DeleteGuard::Off
    };
    if bound == DeleteGuard::Off && !guard.fail_if_empty {
        return Ok(None);
    }

    let source = SourceState::examine(wanted);
    if guard.fail_if_empty && source == SourceState::Empty {
        return Err(source_is_empty(wanted));
    }
    let is_counted = match bound {
        DeleteGuard::Off => guard.fail_if_empty && source == SourceState::Remote,
        // The default guard applies without an option, so it does not refuse a run that cannot be counted.
        DeleteGuard::EmptySource => {
            source == SourceState::Empty && deletions::check_countable(wanted).is_ok()
        }
        DeleteGuard::Entries(_) | DeleteGuard::Percent(_) => true,
    };
    if !is_counted {
        return Ok(None);
    }

    let counted = deletions::count(env, wanted)?;
    let lists_nothing = counted.list_is_empty() && wanted.options.select.lists_all();
    if guard.fail_if_empty && lists_nothing {
        return Err(source_is_empty(wanted));
    }
    let (most, reason) = match bound {
        DeleteGuard::Off => return Ok(None),
        DeleteGuard::EmptySource => {
            let is_large = counted.entries_below_dest() > SMALL_DEST_ENTRIES;
            // A destination that grows in between is not emptied either.
            let most = if is_large { 0 } else { SMALL_DEST_ENTRIES };
            (most, "but the source has none".to_owned())
        }
        DeleteGuard::Entries(most) => (most, format!("more than {most}")),
        DeleteGuard::Percent(percent) => {
            let most = counted.dest_entries().saturating_mul(percent.into()) / 100;
            (most, format!("more than {percent}% ({most})"))
        }
    };
    if counted.deleted > most {
        let is_empty = source == SourceState::Empty || lists_nothing;
        return Err(too_many(wanted, &counted, is_empty, &reason));
    }
    Ok(Some(most))
}

/// What is known about the source before the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourceState {
    /// All source arguments are local directories without entries.
    Empty,
    /// There is something, or an error that the run will report.
    HasEntries,
    /// Only the other end knows.
    Remote,
}

impl SourceState {
    fn examine(wanted: &Copy) -> SourceState {
        if wanted
            .far
            .as_ref()
            .is_some_and(|far| far.operand.server_sends)
        {
            return SourceState::Remote;
        }
        let are_empty = wanted
            .sources
            .iter()
            .all(|source| sys::is_empty_dir(source).unwrap_or(false));
        if are_empty {
            SourceState::Empty
        } else {
            SourceState::HasEntries
        }
    }
}

/// Returns the error of a run whose source has no entries.
fn source_is_empty(wanted: &Copy) -> Error {
    let shown = wanted.sources.join(&b' ');
    let line = [
        b"sparsync: the source is empty: ",
        &shown[..],
        b": nothing was changed (--fail-if-empty)",
    ]
    .concat();
    let error = Error::new(Exit::FileSelect, line);
    match unmounted(wanted) {
        Some(cause) => error.with_hint(cause),
        None => error,
    }
}

/// Returns the error of a run that would delete too many entries. `is_empty`: the source is; `reason`: what is too many
/// about them.
fn too_many(wanted: &Copy, counted: &Counted, is_empty: bool, reason: &str) -> Error {
    let mut line = format!(
        "sparsync: {} of {} entries would be deleted, {reason}: nothing was changed (--delete-guard)",
        counted.deleted,
        counted.dest_entries(),
    );
    for (dir, deleted) in counted.largest() {
        line += &match dir {
            dir_counts::ROOT => format!("\n    {deleted} in the destination itself"),
            _ => format!("\n    {deleted} in {}/", dir.escape_ascii()),
        };
    }
    let cause = match unmounted(wanted) {
        Some(cause) => format!("{cause}; "),
        None if is_empty => "the source is empty; ".to_owned(),
        None => String::new(),
    };
    Error::new(Exit::DelLimit, line).with_hint(format!(
        "{cause}to delete them, use --delete-guard={} or --no-delete-guard",
        counted.deleted
    ))
}

/// Returns a sentence about a source that is a mount point of /etc/fstab on which nothing is mounted.
fn unmounted(wanted: &Copy) -> Option<String> {
    if wanted
        .far
        .as_ref()
        .is_some_and(|far| far.operand.server_sends)
    {
        return None;
    }
    let fstab =
        trusted_path::read_path(b"/etc/fstab", FSTAB_MAX_BYTES, LinkOwners::Trusted).ok()?;
    let source = wanted.sources.iter().find(|source| {
        let wanted_place = sys::identity(os_str(source));
        wanted_place.is_some()
            && mount_points(&fstab).any(|point| sys::identity(os_str(&point)) == wanted_place)
            && !sys::is_mount_point(source).unwrap_or(true)
    })?;
    Some(format!(
        "{} is a mount point in /etc/fstab, and nothing is mounted there",
        source.escape_ascii()
    ))
}

/// The maximum length of /etc/fstab that is read.
const FSTAB_MAX_BYTES: usize = 1 << 20;

/// Returns the mount points of a text in the format of fstab(5).
fn mount_points(fstab: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    fstab.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line
            .split(u8::is_ascii_whitespace)
            .filter(|field| !field.is_empty());
        let device = fields.next()?;
        let point = fields.next()?;
        if device.starts_with(b"#") || !point.starts_with(b"/") {
            return None;
        }
        Some(unescape_octal(point))
    })
}

/// Replaces the escapes of fstab(5), such as `\040` for a blank.
fn unescape_octal(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', more @ ..] if first == b'\\' => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = more;
            }
            _ => {
                plain.push(first);
                rest = after;
            }
        }
    }
    plain
}

/// Fails unless a file system is mounted on a directory.
fn require_mount(path: &[u8]) -> Result<()> {
    let start = [b"sparsync: --require-mount: ", path].concat();
    match sys::is_mount_point(path) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let line = [
                &start[..],
                b": nothing is mounted there: nothing was changed",
            ]
            .concat();
            let hint = format!("run `mount {}` first", path.escape_ascii());
            Err(Error::new(Exit::FileSelect, line).with_hint(hint))
        }
        Err(error) => {
            let line = [&start[..], b": ", &errno_words(&error)].concat();
            Err(Error::new(Exit::FileSelect, line))
        }
    }
}

fn os_str(path: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_the_second_fields_of_fstab() {
        let text = b"# /dev/sda1 /no ext4\n\n/dev/sda2 / ext4 rw 0 1\nUUID=1\t/mnt/my\\040disk  auto\nswap none swap\n/dev/sdc";
        let found: Vec<_> = mount_points(text).collect();
        assert_eq!(found, [b"/".to_vec(), b"/mnt/my disk".to_vec()]);
    }

    #[test]
    fn only_complete_octal_escapes_are_replaced() {
        assert_eq!(unescape_octal(br"a\134b\04\9\777"), br"a\b\04\9\777");
    }
}

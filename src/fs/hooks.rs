//! Hooks of debug builds: they count calls and, controlled by environment variables, make one of them fail.
//!
//! `SPARSYNC_PROFILE=1` prints the counts. At the n-th call the process
//!
//! - kills itself (`SPARSYNC_KILL_AT=n`) or panics (`SPARSYNC_PANIC_AT=n`),
//! - loses what it has written to files without a sync, and kills itself (`SPARSYNC_POWER_LOSS_AT=n`), or also the names
//!   given in directories without a sync (`SPARSYNC_NAME_LOSS_AT=n`),
//! - fails the call (`SPARSYNC_FAIL_AT=n:EIO`) or limits it to one byte (`n:SHORT`), and appends the call's name to
//!   the file `SPARSYNC_FAULT_LOG`,
//! - blocks each thread that makes this or a later call until a test writes to a fifo (`SPARSYNC_HOLD_AT=n:path`).
//!
//! `SPARSYNC_FAULT_IN=session` limits this to the session processes of a server, `SPARSYNC_FAULT_IN=server` to the server,
//! whose calls then count from its first client on, `SPARSYNC_FAULT_IN=tmpfile` to the calls from the first one of this
//! name on. `SPARSYNC_CALL_LOG=path` appends the thread and the name of each call to this file.
//! `SPARSYNC_PANIC_AT_CLIENT=path` panics in the network thread of a server when a client connects and that file exists.
//! `SPARSYNC_MINUTE_SECS=n` shortens the minutes of long waits. `SPARSYNC_TWIN_ENTRIES=n` limits how many entries
//! `--detect-renamed` looks at.
//! `SPARSYNC_REFUSE=linkat:EPERM,openat2:ENOSYS` has the kernel refuse calls always; `sys/refused_calls.rs` has the names.
//! `SPARSYNC_FAIL_LINK_AT=n:EIO` fails the n-th use of a pipe to the peer. `SPARSYNC_LINK_BYTES=n` and
//! `SPARSYNC_DATAGRAM_BYTES=n` limit the capacity of a link and the size of a datagram. `SPARSYNC_UNTYPED=1` omits
//! types from listings, `SPARSYNC_LISTED_TWICE=1` lists each name twice. `SPARSYNC_SPOIL_WRITE=text` changes a byte of
//! each write to a file that has this text in its data, and `SPARSYNC_SPOIL_REREAD=text` one of the data of a source that
//! is read again.

#![allow(
    clippy::disallowed_methods,
    reason = "only this file knows the variables of the hooks"
)]

use super::sys::Call;
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// The names of the calls, in the order of [`Call`].
const NAMES: [&str; Call::Advise as usize + 1] = [
    "open",
    "opendir",
    "create",
    "tmpfile",
    "stat",
    "fstat",
    "getdents",
    "readlink",
    "read",
    "write",
    "copy_range",
    "clone",
    "seek",
    "truncate",
    "allocate",
    "fsync",
    "link",
    "rename",
    "unlink",
    "rmdir",
    "mkdir",
    "symlink",
    "mknod",
    "chmod",
    "chown",
    "utimes",
    "lock",
    "close",
    "xattr_get",
    "xattr_set",
    "advise",
];
static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
static ALL: AtomicU64 = AtomicU64::new(0);
static HELD: OnceLock<()> = OnceLock::new();
/// Whether this server has had a client.
static HAS_CLIENTS: AtomicBool = AtomicBool::new(false);

/// The action at the n-th call.
enum Fault {
    Kill,
    Panic,
    /// The threads wait for a write to this fifo.
    Hold(String),
    /// The call fails.
    Fail(Errno),
    /// The call reads or writes one byte.
    Short,
}

const ERRORS: [(&str, Errno); 13] = [
    ("EIO", Errno::IO),
    ("ENOSPC", Errno::NOSPC),
    ("EACCES", Errno::ACCESS),
    ("EMFILE", Errno::MFILE),
    ("ENOMEM", Errno::NOMEM),
    ("EINTR", Errno::INTR),
    ("EAGAIN", Errno::AGAIN),
    ("EPERM", Errno::PERM),
    ("ENOSYS", Errno::NOSYS),
    ("EOPNOTSUPP", Errno::OPNOTSUPP),
    ("EINVAL", Errno::INVAL),
    ("EXDEV", Errno::XDEV),
    ("ETXTBSY", Errno::TXTBSY),
];

thread_local! {
    static IS_SHORT: Cell<bool> = const { Cell::new(false) };
}

fn var(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number(name: &str) -> Option<u64> {
    var(name)?.parse().ok()
}

/// Returns the two parts of `n:what`.
fn number_and(name: &str) -> Option<(u64, String)> {
    let value = var(name)?;
    let (at, what) = value.split_once(':')?;
    Some((at.parse().ok()?, what.to_owned()))
}

fn errno_of(name: &str) -> Option<Errno> {
    ERRORS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, errno)| *errno)
}

fn read_faults() -> Vec<(u64, Fault)> {
    let fail =
        |(at, error): (u64, String)| (at, errno_of(&error).map_or(Fault::Short, Fault::Fail));
    let faults = [
        number("SPARSYNC_KILL_AT").map(|at| (at, Fault::Kill)),
        number(POWER_LOSS).map(|at| (at, Fault::Kill)),
        number(NAME_LOSS).map(|at| (at, Fault::Kill)),
        number("SPARSYNC_PANIC_AT").map(|at| (at, Fault::Panic)),
        number_and("SPARSYNC_HOLD_AT").map(|(at, fifo)| (at, Fault::Hold(fifo))),
        number_and("SPARSYNC_FAIL_AT").map(fail),
    ];
    faults.into_iter().flatten().collect()
}

/// Returns whether the calls of this process count now: see `SPARSYNC_FAULT_IN`.
fn is_counted() -> bool {
    static PROCESS: OnceLock<Option<String>> = OnceLock::new();
    match PROCESS.get_or_init(|| var("SPARSYNC_FAULT_IN")).as_deref() {
        None => true,
        Some("server") => HAS_CLIENTS.load(Relaxed),
        Some(word) => {
            static IS_IT: OnceLock<bool> = OnceLock::new();
            match NAMES.iter().position(|name| *name == word) {
                Some(call) => COUNTS[call].load(Relaxed) > 0,
                None => *IS_IT.get_or_init(|| std::env::args().any(|argument| argument == word)),
            }
        }
    }
}

/// Appends a call to the file that the environment names, in one write: other processes may append to it too.
fn log_call(call: Call) {
    use std::io::Write as _;
    static LOG: OnceLock<Option<std::fs::File>> = OnceLock::new();
    let open = || {
        std::fs::File::options()
            .create(true)
            .append(true)
            .open(var("SPARSYNC_CALL_LOG")?)
            .ok()
    };
    if let Some(mut log) = LOG.get_or_init(open).as_ref() {
        let line = format!(
            "{}.{:?} {call:?}\n",
            std::process::id(),
            std::thread::current().id()
        );
        // A test that reads the log fails then.
        let _ = log.write_all(line.as_bytes());
    }
}

/// Counts a call and carries out the faults that are due.
pub fn enter(call: Call) -> Result<(), Errno> {
    static FAULTS: OnceLock<Vec<(u64, Fault)>> = OnceLock::new();
    // A thread that went on could name a file that was emptied between its sync and the record of that.
    while HAS_NO_POWER.load(SeqCst) {
        std::thread::park();
    }
    COUNTS[call as usize].fetch_add(1, Relaxed);
    log_call(call);
    if !is_counted() {
        return Ok(());
    }
    let nth = ALL.fetch_add(1, Relaxed) + 1;
    for (at, fault) in FAULTS.get_or_init(read_faults) {
        match fault {
            Fault::Hold(fifo) if nth >= *at => {
                HELD.get_or_init(|| drop(std::fs::read(fifo)));
            }
            _ if nth != *at => {}
            Fault::Hold(_) => {}
            Fault::Kill => {
                HAS_NO_POWER.store(true, SeqCst);
                for file in UNSYNCED.lock().values() {
                    // A file that is gone cannot lose its data.
                    let _ = file.set_len(0);
                }
                for name in UNSYNCED_NAMES.lock().iter().rev() {
                    name.lose();
                }
                // A process may always signal itself.
                let _ = rustix::process::kill_process(
                    rustix::process::getpid(),
                    rustix::process::Signal::KILL,
                );
            }
            Fault::Panic => panic!("SPARSYNC_PANIC_AT"),
            Fault::Fail(errno) => {
                log_fault(&format!("{nth} {call:?}"));
                return Err(*errno);
            }
            Fault::Short => {
                log_fault(&format!("{nth} {call:?}"));
                IS_SHORT.set(true);
            }
        }
    }
    Ok(())
}

/// The variable that makes a process lose its unsynced data.
const POWER_LOSS: &str = "SPARSYNC_POWER_LOSS_AT";
/// Whether the process has lost its unsynced data, and is about to be killed.
static HAS_NO_POWER: AtomicBool = AtomicBool::new(false);
/// The files with unsynced data, by device and inode, if [`POWER_LOSS`] is set.
static UNSYNCED: parking_lot::Mutex<BTreeMap<(u64, u64), std::fs::File>> =
    parking_lot::Mutex::new(BTreeMap::new());

/// Records that a file has data which a power loss would lose, or that it has none any more, or that the names in a
/// directory are stored. Names count as stored at once unless [`NAME_LOSS`] is set: the worst case for data.
pub fn note_data(fd: BorrowedFd<'_>, is_synced: bool) {
    static LOSES: OnceLock<bool> = OnceLock::new();
    if !*LOSES.get_or_init(|| var(POWER_LOSS).is_some() || var(NAME_LOSS).is_some()) {
        return;
    }
    let file = fd.try_clone_to_owned().map(std::fs::File::from);
    let Ok((file, stat)) = file.and_then(|file| file.metadata().map(|stat| (file, stat))) else {
        return;
    };
    let id = (stat.dev(), stat.ino());
    if is_synced && stat.is_dir() {
        UNSYNCED_NAMES.lock().retain(|name| name.dir_id != id);
    } else if is_synced {
        UNSYNCED.lock().remove(&id);
    } else if stat.is_file() {
        UNSYNCED.lock().insert(id, file);
    }
}

/// The variable that makes a process lose unsynced names as well.
const NAME_LOSS: &str = "SPARSYNC_NAME_LOSS_AT";
/// What unsynced names stood for before, in the order of the changes, if [`NAME_LOSS`] is set.
static UNSYNCED_NAMES: parking_lot::Mutex<Vec<UnsyncedName>> = parking_lot::Mutex::new(Vec::new());

/// Where [`NAME_LOSS`] keeps what had the names, as hard links: in the working directory.
const KEPT: &str = "lost-names";

/// A name that was given or moved away since the last sync of its directory.
struct UnsyncedName {
    dir: OwnedFd,
    dir_id: (u64, u64),
    name: Vec<u8>,
    /// Another name of what had it; `None` if there was nothing.
    kept: Option<PathBuf>,
}

impl UnsyncedName {
    /// Restores what the name stood for. The test sees what could not be restored.
    fn lose(&self) {
        let path = path_in(self.dir.as_fd(), &self.name);
        let _ = std::fs::remove_file(&path);
        if let Some(kept) = &self.kept {
            let _ = std::fs::rename(kept, &path);
        }
    }
}

fn path_in(dir: BorrowedFd<'_>, name: &[u8]) -> PathBuf {
    Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(OsStr::from_bytes(name))
}

/// Records what a name stands for, before it is given or moved away. Directories are not lost.
pub fn note_name(dir: BorrowedFd<'_>, name: &[u8]) {
    static LOSES: OnceLock<bool> = OnceLock::new();
    if !*LOSES.get_or_init(|| var(NAME_LOSS).is_some() && std::fs::create_dir_all(KEPT).is_ok()) {
        return;
    }
    let Ok((dir, stat)) = dir.try_clone_to_owned().and_then(|dir| {
        let stat = std::fs::File::from(dir.try_clone()?).metadata()?;
        Ok((dir, stat))
    }) else {
        return;
    };
    let path = path_in(dir.as_fd(), name);
    let dir_id = (stat.dev(), stat.ino());
    let mut names = UNSYNCED_NAMES.lock();
    if names
        .iter()
        .any(|known| (known.dir_id, &known.name[..]) == (dir_id, name))
    {
        return;
    }
    let kept = match std::fs::symlink_metadata(&path) {
        Ok(stat) if stat.is_dir() => return,
        Ok(_) => {
            static COUNT: AtomicU64 = AtomicU64::new(0);
            let kept = Path::new(KEPT).join(COUNT.fetch_add(1, Relaxed).to_string());
            if std::fs::hard_link(&path, &kept).is_err() {
                return;
            }
            Some(kept)
        }
        Err(_) => None,
    };
    names.push(UnsyncedName {
        dir,
        dir_id,
        name: name.to_vec(),
        kept,
    });
}

/// Returns the names of the calls that the kernel must refuse, with the errors; see `SPARSYNC_REFUSE`.
pub fn refused_calls() -> Vec<(String, Errno)> {
    let mut refused = Vec::new();
    for word in var("SPARSYNC_REFUSE").unwrap_or_default().split(',') {
        if let Some((call, error)) = word.split_once(':') {
            let errno = errno_of(error).expect("SPARSYNC_REFUSE names a known error");
            refused.push((call.to_owned(), errno));
        }
    }
    refused
}

/// Counts a use of a pipe to the peer, and fails the one given in the environment.
pub fn enter_link() -> Result<(), Errno> {
    static FAULT: OnceLock<Option<(u64, Errno)>> = OnceLock::new();
    static USES: AtomicU64 = AtomicU64::new(0);
    let read_fault = || {
        number_and("SPARSYNC_FAIL_LINK_AT").and_then(|(at, error)| Some((at, errno_of(&error)?)))
    };
    let nth = USES.fetch_add(1, Relaxed) + 1;
    match FAULT.get_or_init(read_fault) {
        Some((at, errno)) if *at == nth => {
            log_fault(&format!("{nth} link"));
            Err(*errno)
        }
        _ => Ok(()),
    }
}

/// Begins to count the calls of a server. Panics if the file that the environment names exists when a client connects.
/// Removes it, so this happens once.
pub fn enter_client() {
    HAS_CLIENTS.store(true, Relaxed);
    let is_due =
        var("SPARSYNC_PANIC_AT_CLIENT").is_some_and(|file| std::fs::remove_file(file).is_ok());
    assert!(!is_due, "SPARSYNC_PANIC_AT_CLIENT");
}

/// Returns how many seconds a minute of a long wait has; `None`: 60.
pub fn minute_secs() -> Option<u64> {
    number("SPARSYNC_MINUTE_SECS")
}

/// Returns how many entries `--detect-renamed` looks at; `None`: as many as without hooks.
pub fn twin_entries_max() -> Option<usize> {
    usize::try_from(number("SPARSYNC_TWIN_ENTRIES")?).ok()
}

/// Records the failed call for the test.
fn log_fault(line: &str) {
    use std::io::Write as _;
    if let Some(log) = var("SPARSYNC_FAULT_LOG") {
        let file = std::fs::File::options().create(true).append(true).open(log);
        // The test finds nothing in the file and fails.
        let _ = file.and_then(|mut file| writeln!(file, "{line}"));
    }
}

/// Returns how many of `len_bytes` the current call may read or write.
pub fn granted(len_bytes: usize) -> usize {
    if IS_SHORT.replace(false) {
        len_bytes.min(1)
    } else {
        len_bytes
    }
}

/// Returns what is really written in place of `bytes`; see `SPARSYNC_SPOIL_WRITE`.
pub fn spoiled_write(bytes: &[u8]) -> Option<Vec<u8>> {
    static TEXT: OnceLock<Option<String>> = OnceLock::new();
    let at = find_text(bytes, TEXT.get_or_init(|| var("SPARSYNC_SPOIL_WRITE")))?;
    let mut spoiled = bytes.to_vec();
    spoiled[at] ^= 1;
    Some(spoiled)
}

/// Changes what was read again of a source; see `SPARSYNC_SPOIL_REREAD`.
pub fn spoil_reread(bytes: &mut [u8]) {
    static TEXT: OnceLock<Option<String>> = OnceLock::new();
    if let Some(at) = find_text(bytes, TEXT.get_or_init(|| var("SPARSYNC_SPOIL_REREAD"))) {
        bytes[at] ^= 1;
    }
}

/// Returns where the text of a variable is in these bytes.
fn find_text(bytes: &[u8], text: &Option<String>) -> Option<usize> {
    let text = text.as_deref()?.as_bytes();
    bytes.windows(text.len()).position(|part| part == text)
}

/// Returns the capacity of a link in each direction, in bytes; `None` if it is not limited.
pub fn link_bytes() -> Option<usize> {
    var("SPARSYNC_LINK_BYTES")?.parse().ok()
}

/// Returns whether listings omit the types of entries, as on some file systems.
pub fn hides_types() -> bool {
    static HIDES: OnceLock<bool> = OnceLock::new();
    *HIDES.get_or_init(|| var("SPARSYNC_UNTYPED").is_some())
}

/// Returns whether listings have each name twice, as on some file systems while a directory changes.
pub fn lists_twice() -> bool {
    static TWICE: OnceLock<bool> = OnceLock::new();
    *TWICE.get_or_init(|| var("SPARSYNC_LISTED_TWICE").is_some())
}

/// Returns the maximum size of a datagram in bytes; `None` if only the path limits it.
pub fn datagram_bytes() -> Option<u16> {
    var("SPARSYNC_DATAGRAM_BYTES")?.parse().ok()
}

/// Returns the calls made so far, with their counts.
pub fn counts() -> Vec<(String, u64)> {
    let counts = NAMES
        .iter()
        .zip(&COUNTS)
        .map(|(name, count)| (name.to_string(), count.load(Relaxed)));
    counts.filter(|(_, count)| *count > 0).collect()
}

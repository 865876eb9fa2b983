//! System calls on files, one function each, in one place that can count them and make them fail.
//!
//! Debug builds count the calls and let tests fail them (`hooks.rs`); release builds contain none of that. Names are
//! bytes. A name of one element never leaves its directory, because symlinks are not followed unless a function says
//! so.

mod attributes;
mod charset;
mod content;
mod entries;
mod memory;
mod network;
mod open;
mod proc_dir;
mod process;
#[cfg(debug_assertions)]
mod refused_calls;
mod stat;

pub use self::attributes::*;
pub use self::charset::*;
pub use self::content::*;
pub use self::entries::*;
pub use self::memory::*;
pub use self::network::*;
pub use self::open::*;
pub use self::proc_dir::*;
pub use self::process::*;
pub use self::stat::*;

#[cfg(debug_assertions)]
use super::hooks;
use super::sandbox::{self, PermittedName};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// The calls that are counted, under their kernel names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum Call {
    Open,
    OpenDir,
    Create,
    TmpFile,
    Stat,
    FStat,
    GetDents,
    ReadLink,
    Read,
    Write,
    CopyRange,
    Clone,
    Seek,
    Truncate,
    Allocate,
    FSync,
    Link,
    Rename,
    Unlink,
    RmDir,
    MkDir,
    Symlink,
    MkNod,
    Chmod,
    Chown,
    Utimes,
    Lock,
    Close,
    XattrGet,
    XattrSet,
    Advise,
}

/// Returns how often each call was made so far; empty in release builds.
pub fn counts() -> Vec<(String, u64)> {
    #[cfg(debug_assertions)]
    return hooks::counts();
    #[cfg(not(debug_assertions))]
    Vec::new()
}

/// Has the kernel refuse the calls that a test of debug builds names: `SPARSYNC_REFUSE`. Call it before there are threads.
pub fn refuse_calls() {
    #[cfg(debug_assertions)]
    refused_calls::refuse_calls();
}

/// Counts a call. Fails if a test requests it.
#[inline(always)]
pub(super) fn enter(call: Call) -> rustix::io::Result<()> {
    #[cfg(debug_assertions)]
    return hooks::enter(call);
    #[cfg(not(debug_assertions))]
    {
        // Only hooks of debug builds read it.
        let _ = call;
        Ok(())
    }
}

/// Counts a use of a pipe to the peer. Fails if a test requests it.
#[inline(always)]
fn enter_link() -> rustix::io::Result<()> {
    #[cfg(debug_assertions)]
    return hooks::enter_link();
    #[cfg(not(debug_assertions))]
    Ok(())
}

/// Returns how many of `len_bytes` the current call may read or write: all, unless a test requests fewer.
#[inline(always)]
fn granted(len_bytes: usize) -> usize {
    #[cfg(debug_assertions)]
    return hooks::granted(len_bytes);
    #[cfg(not(debug_assertions))]
    len_bytes
}

/// A consumer of [`has_worked`].
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub enum WorkObserver {
    /// The writer, which sends the peer a keepalive after work.
    Writer = 1,
    /// The reader, which does not time out after work.
    Reader = 2,
}

/// The observers that have not seen the last work, one bit each. Any work sets all of them.
static UNSEEN_WORK: AtomicU8 = AtomicU8::new(0);

/// Records that this process is working and not only waiting for its peer.
#[inline]
pub fn note_work() {
    const ALL: u8 = WorkObserver::Writer as u8 | WorkObserver::Reader as u8;
    // Read first: a cache line that all threads write to slows each of them down.
    if UNSEEN_WORK.load(Relaxed) != ALL {
        UNSEEN_WORK.store(ALL, Relaxed);
    }
}

/// How many threads are in a call that writes back all data of a file. Such a call can take minutes on a slow disk.
static WRITING_BACK: AtomicU32 = AtomicU32::new(0);

/// A call that writes back all data of a file. It counts as work until it ends.
struct WriteBack;

impl WriteBack {
    fn begin() -> WriteBack {
        WRITING_BACK.fetch_add(1, Relaxed);
        WriteBack
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        WRITING_BACK.fetch_sub(1, Relaxed);
        note_work();
    }
}

/// Returns whether this process has worked since the observer's last call.
pub fn has_worked(observer: WorkObserver) -> bool {
    let unseen = UNSEEN_WORK.fetch_and(!(observer as u8), Relaxed) & observer as u8 != 0;
    unseen || WRITING_BACK.load(Relaxed) > 0
}

/// Makes a call, and repeats it if a signal interrupts it. If no file descriptor is free, waits for other threads to
/// close some: the limit on open files is no property of a file.
#[inline]
fn attempt<T>(call: Call, mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    note_work();
    let mut waited = Duration::ZERO;
    loop {
        match enter(call).map_err(io::Error::from).and_then(|()| make()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if lacks_descriptors(&error) && wait_for_descriptor(&mut waited) => {}
            other => {
                if !waited.is_zero() && other.is_ok() {
                    NO_DESCRIPTOR_WAIT.store(false, Relaxed);
                }
                return other;
            }
        }
    }
}

/// Makes a call that changes the data of a file.
#[inline]
fn change<T>(call: Call, fd: BorrowedFd<'_>, make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let made = attempt(call, make);
    #[cfg(debug_assertions)]
    hooks::note_data(fd, false);
    let _ = fd;
    made
}

/// Records names that are about to change, for simulated power losses. Only for tests in debug builds.
#[inline(always)]
fn note_names<const N: usize>(names: [(BorrowedFd<'_>, &[u8]); N]) {
    #[cfg(debug_assertions)]
    for (dir, name) in names {
        hooks::note_name(dir, name);
    }
    let _ = names;
}

/// Returns whether this process or the machine has no free file descriptor.
pub fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Waits a moment for a free file descriptor. Returns `false` once that took [`DESCRIPTOR_WAIT_MAX`] in vain: then all
/// threads probably wait for each other, and no call waits any more until one that waited has succeeded.
#[cold]
fn wait_for_descriptor(waited: &mut Duration) -> bool {
    if *waited >= DESCRIPTOR_WAIT_MAX {
        NO_DESCRIPTOR_WAIT.store(true, Relaxed);
    }
    if NO_DESCRIPTOR_WAIT.load(Relaxed) {
        return false;
    }
    std::thread::sleep(DESCRIPTOR_WAIT);
    *waited += DESCRIPTOR_WAIT;
    true
}

/// From now on, no call of this process waits for a free file descriptor. For a server, which has clients to answer.
pub fn never_wait_for_descriptors() {
    NO_DESCRIPTOR_WAIT.store(true, Relaxed);
}

/// The pause between two attempts to get a file descriptor.
const DESCRIPTOR_WAIT: Duration = Duration::from_millis(1);

/// How long a call waits for a file descriptor.
const DESCRIPTOR_WAIT_MAX: Duration = Duration::from_secs(3);

/// Whether calls no longer wait for a free file descriptor.
static NO_DESCRIPTOR_WAIT: AtomicBool = AtomicBool::new(false);

/// Returns whether listings must omit types, as on some file systems. Only for tests in debug builds.
#[inline(always)]
fn hides_types() -> bool {
    #[cfg(debug_assertions)]
    return hooks::hides_types();
    #[cfg(not(debug_assertions))]
    false
}

/// Returns whether listings must have each name twice. Only for tests in debug builds.
#[inline(always)]
fn lists_twice() -> bool {
    #[cfg(debug_assertions)]
    return hooks::lists_twice();
    #[cfg(not(debug_assertions))]
    false
}

/// Resolves a name in `dir`. If this process is confined, checks names that could lead further; see [`sandbox`].
fn spot<'a>(dir: BorrowedFd<'a>, name: &'a [u8]) -> io::Result<PermittedName<'a>> {
    match sandbox::of_process() {
        Some(reach) => reach.spot(dir, name),
        None => Ok(PermittedName::plain(dir, name)),
    }
}

/// Opens a name. Follows symlinks as far as this process has access.
pub(super) fn open_through(
    dir: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    match sandbox::of_process() {
        Some(reach) => reach.open(dir, name, flags, mode),
        None => Ok(fs::openat(dir, name, flags, mode)?),
    }
}

/// Fails if this process must not change anything.
pub(super) fn may_write() -> io::Result<()> {
    sandbox::of_process().map_or(Ok(()), sandbox::Sandbox::may_write)
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => continue,
            other => return Ok(other?),
        }
    }
}

/// Returns the capacity of the link between client and server in a test of debug builds: `SPARSYNC_LINK_BYTES`.
pub fn narrow_link_bytes() -> Option<usize> {
    #[cfg(debug_assertions)]
    return hooks::link_bytes();
    #[cfg(not(debug_assertions))]
    None
}

/// Returns how many seconds a minute of a long wait has: 60, unless a test of debug builds wants fewer.
pub fn minute_secs() -> u64 {
    #[cfg(debug_assertions)]
    return hooks::minute_secs().unwrap_or(60);
    #[cfg(not(debug_assertions))]
    60
}

/// Returns how many entries a search for equal files looks at, if a test of debug builds limits that (`--detect-renamed`).
pub fn twin_entries_max() -> Option<usize> {
    #[cfg(debug_assertions)]
    return hooks::twin_entries_max();
    #[cfg(not(debug_assertions))]
    None
}

/// Counts a client that connects to a server, so that a test of debug builds can make the network thread panic.
pub fn count_client() {
    #[cfg(debug_assertions)]
    hooks::enter_client();
}

/// Returns the longest datagram to probe in a test of debug builds, in bytes: `SPARSYNC_DATAGRAM_BYTES`. A test peer
/// may simulate a slow path, which probes would congest.
pub fn longest_datagram_bytes() -> Option<u16> {
    #[cfg(debug_assertions)]
    return hooks::datagram_bytes();
    #[cfg(not(debug_assertions))]
    None
}

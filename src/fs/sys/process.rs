//! This process and its machine: user, umask, limits, names, random numbers.

use super::{list, open_dir_path};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::Mode;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Returns cryptographically secure random bytes.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let into = &mut bytes[filled..];
        // A sandbox may forbid the call.
        let got = rustix::rand::getrandom(&mut *into, rustix::rand::GetRandomFlags::empty())
            .or_else(|_| super::read(urandom()?.as_fd(), into));
        filled += got.expect("every system has random numbers");
    }
    bytes
}

fn urandom() -> io::Result<OwnedFd> {
    use rustix::fs::{self, Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(fs::open(c"/dev/urandom", flags, Mode::empty())?)
}

/// Signals that follow the first one within this time belong to it: `timeout` signals its command and then the group of
/// processes to which that belongs, and a terminal that is closed signals its foreground group as its shell does.
const SAME_EVENT_MS: u64 = 500;

/// Makes the process exit with `status` when one of these signals comes after an earlier one, and not because of the same
/// event.
#[allow(unsafe_code)]
pub fn exit_at_later_signal(signals: &[i32], status: i32) -> io::Result<()> {
    // When the first one came, in milliseconds since the start of the machine; 0: none has come.
    let first_ms = Arc::new(AtomicU64::new(0));
    for &signal in signals {
        let first_ms = first_ms.clone();
        let exit_if_later = move || {
            let now_ms = uptime_ms();
            let first = first_ms.compare_exchange(0, now_ms, Ordering::SeqCst, Ordering::SeqCst);
            if first.is_err_and(|first| now_ms.saturating_sub(first) >= SAME_EVENT_MS) {
                signal_hook::low_level::exit(status);
            }
        };
        // SAFETY: the handler reads a clock, uses an atomic number and exits, all of which are safe in a handler.
        unsafe { signal_hook::low_level::register(signal, exit_if_later) }?;
    }
    Ok(())
}

/// Returns the time since the start of the machine, in milliseconds, at least 1.
fn uptime_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let ms = now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000;
    ms.max(1)
}

/// Returns the effective user and group of this process.
pub fn ids() -> (u32, u32) {
    (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    )
}

/// Makes this process run as this user with these groups, for good. The first group is the primary one, and a user
/// without groups keeps none. On failure, returns the call that failed.
#[allow(unsafe_code)]
pub fn become_user(uid: u32, groups: &[u32]) -> Result<(), (&'static str, io::Error)> {
    // These functions of the C library change all threads. The system calls would change only the calling one.
    let check = |name, done: libc::c_int| {
        if done == 0 {
            Ok(())
        } else {
            Err((name, io::Error::last_os_error()))
        }
    };
    let gid = groups.first().copied().unwrap_or(uid);
    // SAFETY: these functions take numbers, and an array that outlives the call together with its length.
    unsafe {
        check("setgid", libc::setgid(gid))?;
        check("setgroups", libc::setgroups(groups.len(), groups.as_ptr()))?;
        check("setuid", libc::setuid(uid))
    }
}

/// Sets the groups of this process, the first of which is its own, and then the user. Call it before any thread is
/// started, as [`become_user`]. `None`: the user stays.
pub fn take_identity(uid: Option<u32>, gids: &[u32]) -> Result<(), (&'static str, io::Error)> {
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let gids: Vec<_> = gids.iter().map(|&gid| Gid::from_raw(gid)).collect();
    if let Some(&gid) = gids.first() {
        set_thread_res_gid(gid, gid, gid).map_err(|error| ("setgid", error.into()))?;
        set_thread_groups(&gids).map_err(|error| ("setgroups", error.into()))?;
    }
    if let Some(uid) = uid.map(Uid::from_raw) {
        set_thread_res_uid(uid, uid, uid).map_err(|error| ("setuid", error.into()))?;
    }
    Ok(())
}

/// Makes a directory the root of this process, and its working directory.
pub fn enter_root(path: &[u8]) -> io::Result<()> {
    super::proc_dir::leave_proc();
    rustix::process::chroot(path)?;
    Ok(rustix::process::chdir("/")?)
}

/// Changes the working directory of this process.
pub fn change_dir(path: &[u8]) -> io::Result<()> {
    Ok(rustix::process::chdir(path)?)
}

/// Changes the working directory of this process to an open directory.
pub fn change_to_dir(dir: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::process::fchdir(dir)?)
}

/// Continues in two processes: returns the other process in the first one, and `None` in the new one.
///
/// Fails if this process has more than one thread: the new one would lack those that may hold locks.
#[allow(unsafe_code)]
pub fn fork() -> io::Result<Option<u32>> {
    let mut threads = 0;
    list(open_dir_path(b"/proc/self/task")?.as_fd(), |_| threads += 1)?;
    if threads != 1 {
        return Err(io::Error::other("this process has several threads"));
    }
    // SAFETY: there is one thread, so no lock is held by another one that the new process lacks.
    match unsafe { libc::fork() } {
        0 => Ok(None),
        pid if pid > 0 => Ok(Some(pid.unsigned_abs())),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits for a process of [`fork`], and returns its raw status; `None` after a timeout or a signal.
pub fn wait_for(pid: u32, millis: u32) -> io::Result<Option<i32>> {
    use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => drop(super::wait_readable(process.as_fd(), millis)?),
        // Linux before 5.3.
        Err(_) => std::thread::sleep(Duration::from_millis(millis.into())),
    }
    Ok(waitpid(Some(pid), WaitOptions::NOHANG)?.map(|(_, status)| status.as_raw()))
}

/// Collects the child processes that have ended.
pub fn collect_ended() -> impl Iterator<Item = u32> {
    let ended = || rustix::process::wait(rustix::process::WaitOptions::NOHANG);
    std::iter::from_fn(move || ended().ok().flatten())
        .map(|(pid, _)| pid.as_raw_nonzero().get().cast_unsigned())
}

/// Makes the system keep ended child processes until they are collected, also if the program that started this one
/// ignores SIGCHLD.
#[allow(unsafe_code)]
pub fn keep_ended_children() {
    // SAFETY: the default action calls no function of this process. It fails only for numbers of no signal.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Reads the umask and sets it to 0, so that files get exactly the requested modes. Call it once, before threads start.
pub fn take_umask() -> u32 {
    rustix::process::umask(Mode::empty()).as_raw_mode()
}

/// The most files that a process may have open if it starts no program of the user.
pub const OPEN_FILES_MAX: u64 = 1 << 20;

/// Raises the limit on open files to the system's maximum, but at most to `most`. Child processes inherit it, and some
/// iterate over all possible descriptors.
pub fn lift_open_files(most: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let Some(now) = limit.current else { return };
    let lifted = limit
        .maximum
        .map_or(most, |maximum| maximum.min(most))
        .max(now);
    // Raising the current limit to at most the maximum is always permitted.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(lifted),
            ..limit
        },
    );
}

/// Returns how many files this process may have open.
pub fn open_files_max() -> u64 {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Marks inherited descriptors other than the standard streams as close-on-exec. Otherwise, child processes of a
/// long-lived server would keep other programs' locks and pipes open.
#[allow(unsafe_code)]
pub fn keep_inherited_files() -> io::Result<()> {
    let dir = open_dir_path(b"/proc/self/fd")?;
    let mut inherited = Vec::new();
    list(dir.as_fd(), |file| {
        let number = std::str::from_utf8(file.name)
            .ok()
            .and_then(|name| name.parse::<i32>().ok());
        inherited.extend(number.filter(|&number| number > 2));
    })?;
    for number in inherited {
        // SAFETY: the descriptor was open a moment ago and is only marked. If another thread closed it, this fails or
        // marks a file that must be marked anyway.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        // Fails only if the descriptor is closed by now.
        let _ = rustix::io::fcntl_setfd(file, rustix::io::FdFlags::CLOEXEC);
    }
    Ok(())
}

/// How many open files a run needs if it does one thing after the other.
const OPEN_FILES_NEEDED: usize = 32;

/// Returns the limit on open files, without those that every run needs, divided by `parts`, and at most `most`.
pub fn share_of_open_files(parts: usize, most: usize) -> usize {
    use rustix::process::{Resource, getrlimit};
    let now = getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |now| usize::try_from(now).unwrap_or(usize::MAX));
    (now.saturating_sub(OPEN_FILES_NEEDED) / parts).min(most)
}

/// Returns the processor time of this process: in the program, and in the kernel.
#[allow(unsafe_code)]
pub fn processor_time() -> [Duration; 2] {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes a whole `rusage`, of which all bits are valid, into memory of that size.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    [usage.ru_utime, usage.ru_stime].map(|time| {
        Duration::from_secs(time.tv_sec.unsigned_abs())
            + Duration::from_micros(time.tv_usec.unsigned_abs())
    })
}

/// Returns the memory of this machine in bytes.
pub fn machine_memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// Returns the size of a memory page in bytes.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// Makes the kernel kill this process when the thread that started it ends. A session whose server was killed must not
/// continue to change files next to a session of the next server. A change of the user cancels it.
pub fn end_with_parent() {
    // Fails only for an invalid signal.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

/// Limits the memory of this process, at most to the system's limit.
pub fn limit_memory(bytes: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Data).maximum;
    let bytes = maximum.map_or(bytes, |maximum| maximum.min(bytes));
    // Lowering a limit is always permitted.
    let _ = setrlimit(
        Resource::Data,
        Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        },
    );
}

/// Sets the umask, for a program that replaces this one.
pub fn set_umask(umask: u32) {
    rustix::process::umask(Mode::from_raw_mode(umask));
}

/// Returns the name of this machine.
pub fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Returns the system and the machine type, as printed by `uname -s -m`.
pub fn system_and_machine() -> String {
    let names = rustix::system::uname();
    format!(
        "{} {}",
        names.sysname().to_string_lossy(),
        names.machine().to_string_lossy()
    )
}

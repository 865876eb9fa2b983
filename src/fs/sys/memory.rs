//! The memory allocator.

use crate::exit::Exit;
use std::alloc::{GlobalAlloc, Layout, System};

/// Allocations up to this length come from an arena. Pieces of files have a quarter of it; otherwise, each would be
/// mapped and unmapped by the kernel, page by page.
#[cfg(target_env = "gnu")]
const POOLED_MAX_BYTES: libc::c_int = 1 << 20;

/// How much unused memory an arena keeps. With less, the pieces in flight would make it shrink and grow all the time.
#[cfg(target_env = "gnu")]
const POOL_KEEPS_BYTES: libc::c_int = 8 << 20;

/// Keeps memory use from growing with the number of threads. Memory is often freed by another thread than allocated it,
/// and each arena of the C library keeps its maximum. With two arenas, memory does not move back and forth to the
/// kernel either.
#[allow(unsafe_code)]
pub fn share_memory_pools() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only sets numbers in the allocator. It is called before any thread is started.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_MMAP_THRESHOLD, POOLED_MAX_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, POOL_KEEPS_BYTES);
    }
}

/// Uses one memory pool for all threads, for a process that hardly allocates in parallel and of which there can be many.
/// Must be called before any thread is started.
#[allow(unsafe_code)]
pub fn use_one_memory_pool() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only sets a number in the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns unused memory to the kernel, including memory between blocks that are in use.
#[allow(unsafe_code)]
pub fn trim_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes the allocator's own locks and does not access memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The system's allocator. Without memory it ends the process as rsync does, where Rust would abort it.
struct ExitingAllocator;

#[global_allocator]
static ALLOCATOR: ExitingAllocator = ExitingAllocator;

// SAFETY: every call goes to the system's allocator unchanged; a null result never returns.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for ExitingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the same contract.
        not_null(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the same contract.
        not_null(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len_bytes: usize) -> *mut u8 {
        // SAFETY: the caller keeps the same contract.
        not_null(unsafe { System.realloc(at, layout, len_bytes) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the same contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[inline(always)]
fn not_null(at: *mut u8) -> *mut u8 {
    if at.is_null() { out_of_memory() } else { at }
}

/// Ends the process without allocating. Temporary files stay; the next run removes them, as after a kill.
#[cold]
#[allow(unsafe_code)]
pub fn out_of_memory() -> ! {
    const WORDS: &[u8] =
        b"sparsync: out of memory\nrsync error: error allocating core memory buffers (code 22)\n";
    // The exit code reports the error as well.
    let _ = rustix::io::write(rustix::stdio::stderr(), WORDS);
    // SAFETY: _exit runs no code of this process.
    unsafe { libc::_exit(Exit::Malloc.code().into()) }
}

//! The memory limit of a server and all of its sessions together.
//!
//! Most memory of a session is data that its client has sent and that is not written yet. The flow-control windows
//! bound it: they grow on long paths and fill on slow disks. So the unused part of the budget is shared: each session's
//! windows may grow to an equal part of it, but never below their initial size. When little is left, new clients are
//! rejected. When more is held than the budget allows, the session that holds most is ended, whatever it holds it for.

use crate::cli::subcommand::MEMORY_MIN_BYTES;
use crate::fs::sys;
use crate::transport::window_limit::Ceiling;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The default budget is this fraction (1/n) of the memory of the machine or the control group.
const PART_OF_MACHINE: u64 = 2;
/// The windows of a session that may grow: one of QUIC in this process, and two of the protocol in the session's
/// process.
const WINDOWS: u64 = 3;
/// This fraction (1/n) of the budget is reserved for running sessions: windows do not grow into it, and new clients are
/// rejected.
const KEPT_PART: u64 = 4;

/// The memory budget of a server.
pub struct Budget {
    bytes: u64,
    ceiling: Ceiling,
    held_bytes: AtomicU64,
    is_full: AtomicBool,
}

/// The consequences of a check.
pub struct BudgetCheck {
    /// Whether new clients are rejected from now on.
    pub is_newly_full: bool,
    /// The session that must end, of those that were passed in.
    pub ends: Option<SessionToEnd>,
}

/// A session that must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionToEnd {
    /// Its index in the slice that was passed in.
    pub at: usize,
    /// Whether it would exceed the budget even if it were the only session.
    pub is_alone_too_much: bool,
}

/// What follows from the memory that is held.
#[derive(Debug, PartialEq, Eq)]
struct BudgetDecision {
    /// The memory that the server and its sessions hold, in bytes.
    held_bytes: u64,
    /// How far each window may grow. 0 also rejects new clients.
    window_bytes: u64,
    /// The session that must end.
    ends: Option<SessionToEnd>,
}

impl Budget {
    /// Creates the budget of a server. `given`: the bytes that `--memory` gives; `None`: the default.
    pub fn new(given: Option<u64>) -> io::Result<Budget> {
        let bytes =
            given.unwrap_or_else(|| (memory_bytes() / PART_OF_MACHINE).max(MEMORY_MIN_BYTES));
        let budget = Budget {
            bytes,
            ceiling: Ceiling::shared()?,
            held_bytes: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
        };
        budget.keep(&[])?;
        Ok(budget)
    }

    /// Returns the budget in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the limit to which windows may grow at this moment.
    pub fn ceiling(&self) -> &Ceiling {
        &self.ceiling
    }

    /// Returns the bytes that were held at the last check.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Measures what this process and the session processes hold, and shares what is left.
    pub fn keep(&self, sessions: &[u32]) -> io::Result<BudgetCheck> {
        let held: Vec<_> = sessions
            .iter()
            .map(|pid| held_bytes(&pid.to_string()))
            .collect();
        let mut settled = settle(self.bytes, held_bytes("self"), &held);
        if settled.window_bytes == 0 {
            // Memory of ended sessions that the allocator still keeps must not cause rejections.
            sys::trim_memory();
            settled = settle(self.bytes, held_bytes("self"), &held);
        }
        self.ceiling.set(settled.window_bytes)?;
        self.held_bytes.store(settled.held_bytes, Ordering::Relaxed);
        let is_full = settled.window_bytes == 0;
        Ok(BudgetCheck {
            is_newly_full: !self.is_full.swap(is_full, Ordering::Relaxed) && is_full,
            ends: settled.ends,
        })
    }
}

fn settle(budget: u64, own: u64, sessions: &[u64]) -> BudgetDecision {
    let held = sessions.iter().sum::<u64>() + own;
    let left = (budget - budget / KEPT_PART).saturating_sub(held);
    let count = sessions.len() as u64;
    let most = (0..sessions.len()).max_by_key(|&at| sessions[at]);
    BudgetDecision {
        held_bytes: held,
        // Without sessions no memory will be freed later, so 0 would reject new clients forever.
        window_bytes: if count > 0 {
            left / (WINDOWS * count)
        } else {
            (left / WINDOWS).max(1)
        },
        ends: match most {
            Some(at) if held > budget => Some(SessionToEnd {
                at,
                is_alone_too_much: own.saturating_add(sessions[at]) > budget,
            }),
            Some(_) | None => None,
        },
    }
}

/// Returns the memory that is private to a process (resident, without file-backed pages), in bytes; 0 if it has ended.
fn held_bytes(pid: &str) -> u64 {
    let text =
        sys::read_kernel_file(format!("/proc/{pid}/statm").as_bytes(), 4096).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut pages = text
        .split(' ')
        .skip(1)
        .map_while(|number| number.parse::<u64>().ok());
    let resident = pages.next().unwrap_or(0);
    let of_files = pages.next().unwrap_or(0);
    resident.saturating_sub(of_files) * sys::page_bytes()
}

/// Returns the memory that this process can use: that of the machine, or the lowest limit of its control groups.
fn memory_bytes() -> u64 {
    let text = sys::read_kernel_file(b"/proc/self/cgroup", 64 << 10).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let group = text
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap_or("/");
    let limits = std::path::Path::new(group).ancestors().filter_map(|group| {
        let path = format!("/sys/fs/cgroup{}/memory.max", group.display());
        String::from_utf8(sys::read_kernel_file(path.as_bytes(), 64).ok()?)
            .ok()?
            .trim()
            .parse()
            .ok()
    });
    limits.fold(sys::machine_memory_bytes(), u64::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::limits::{INITIAL_WINDOWS, WINDOWS_MAX};
    use crate::transport::net::limits::{WINDOW_BYTES, WINDOW_MAX_BYTES};

    const MIB: u64 = 1 << 20;

    #[test]
    fn free_budget_is_divided_among_windows() {
        let settled = settle(4096 * MIB, 72 * MIB, &[100 * MIB; 2]);
        let meant = BudgetDecision {
            held_bytes: 272 * MIB,
            window_bytes: 2800 * MIB / 6,
            ends: None,
        };
        assert_eq!(settled, meant);
        assert_eq!(settle(4096 * MIB, 0, &[]).window_bytes, 1024 * MIB);
        let alone = settle(64 * MIB, 60 * MIB, &[]);
        assert_eq!((alone.window_bytes, alone.ends), (1, None));
    }

    #[test]
    fn low_memory_rejects_clients_then_ends_the_largest_session() {
        let held = [20 * MIB, 50 * MIB, 4 * MIB];
        let full = settle(104 * MIB, 5 * MIB, &held);
        assert_eq!((full.window_bytes, full.ends), (0, None));
        assert_eq!(settle(108 * MIB, 5 * MIB, &held).window_bytes, 2 * MIB / 9);
        assert_eq!(settle(79 * MIB, 5 * MIB, &held).ends, None);
        let ends = |is_alone_too_much| {
            Some(SessionToEnd {
                at: 1,
                is_alone_too_much,
            })
        };
        assert_eq!(settle(78 * MIB, 5 * MIB, &held).ends, ends(false));
        assert_eq!(settle(54 * MIB, 5 * MIB, &held).ends, ends(true));
    }

    /// Whatever the pattern of arrivals, and even if every session fills its windows at once, the growth stays within
    /// the budget.
    #[test]
    fn full_windows_stay_within_the_budget() {
        let (first, longest) = (u64::from(WINDOW_BYTES), u64::from(WINDOW_MAX_BYTES));
        assert_eq!(INITIAL_WINDOWS.iter().max(), Some(&first));
        assert_eq!(
            WINDOWS_MAX
                .iter()
                .filter(|&&bytes| bytes == longest)
                .count()
                + 1,
            WINDOWS as usize
        );
        for (budget, at_once) in [
            (64, 1),
            (512, 1),
            (512, 64),
            (6 << 10, 1),
            (6 << 10, 7),
            (12 << 10, 64),
        ] {
            let budget = budget * MIB;
            let (mut own, mut held, mut grew) = (0, Vec::new(), 0);
            while held.len() < 256 {
                held.resize(held.len() + at_once, 0);
                let settled = settle(budget, own, &held);
                let window = settled.window_bytes.clamp(first, longest);
                // New sessions fill their windows; earlier ones keep what they hold.
                for session in held.iter_mut().rev().take(at_once) {
                    (own, *session) = (own + window, (WINDOWS - 1) * window);
                    grew += WINDOWS * (window - first);
                }
            }
            assert!(
                grew <= budget,
                "{at_once} at once: {} MiB of {}",
                grew / MIB,
                budget / MIB
            );
        }
    }

    /// What the tests beside this one allocate and free would count here.
    #[test]
    fn held_bytes_includes_allocated_memory() {
        if !crate::cmd::is_test_alone(
            "cmd::server::memory_limit::tests::held_bytes_includes_allocated_memory",
        ) {
            return;
        }
        let before = held_bytes("self");
        let more = vec![1u8; 64 << 20];
        let after = held_bytes("self");
        assert!(
            after >= before + (60 << 20),
            "{before}, {after}, {}",
            more.len()
        );
        assert_eq!(held_bytes("0"), 0);
        assert!(
            memory_bytes() >= MEMORY_MIN_BYTES && memory_bytes() <= sys::machine_memory_bytes()
        );
    }
}

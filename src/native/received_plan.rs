//! The plan that a client sends to a receiver at the server, before anything else (`sparsync apply`).

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::native::connection::NativeConnection;
use crate::plan::planned::{EntryState, PlannedAction, SharedFile, StoredPlan};
use crate::proto::limits::{PLAN_MAX_BYTES, PLAN_PIECE_BYTES};
use crate::proto::{Message, PlanPiece};
use crate::report::plan_line::{self, PlanLine};
use crate::session::connection::unexpected;
use crate::walk::plan_store::{FRAME_BYTES, Frames, PlanStore, compressed};
use crate::walk::replay;
use parking_lot::Mutex;
use std::io;
use std::sync::OnceLock;

/// Roughly the length of an encoded action without its paths, in bytes.
const ABOUT_BYTES: usize = 384;

/// A plan that arrives in pieces. The thread that reads adds to it until it is complete. That is before the roots of the
/// transfer come, so all of them are there when the first one is looked for.
///
/// Memory: at most [`PLAN_MAX_BYTES`], or less if the user limits allocations.
#[derive(Default)]
pub struct ReceivedPlan {
    arriving: Mutex<Arriving>,
    complete: OnceLock<(PlanStore<MemoryFrames>, bool)>,
    /// `--max-alloc`
    max_alloc_bytes: Option<u64>,
}

/// Compressed frames in memory.
#[derive(Default)]
struct MemoryFrames(Vec<Vec<u8>>);

impl Frames for MemoryFrames {
    fn read(&self, at: usize) -> io::Result<Vec<u8>> {
        Ok(self.0[at].clone())
    }
}

struct Arriving {
    store: PlanStore<MemoryFrames>,
    compressed_bytes: usize,
}

impl Default for Arriving {
    fn default() -> Arriving {
        Arriving {
            store: PlanStore::new(MemoryFrames::default()),
            compressed_bytes: 0,
        }
    }
}

impl Arriving {
    /// Stores the lines of the actions from this one on.
    fn end_frame(&mut self, first: u32, text: &[u8]) -> Result<()> {
        let frame = compressed(text).map_err(|error| replay::unreadable(&error))?;
        self.compressed_bytes += frame.len();
        self.store.frames.0.push(frame);
        self.store.end_frame(first);
        Ok(())
    }
}

impl std::fmt::Debug for ReceivedPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a received plan")
    }
}

impl ReceivedPlan {
    /// Returns a plan of which nothing has come yet.
    pub fn new(max_alloc_bytes: Option<u64>) -> ReceivedPlan {
        ReceivedPlan {
            max_alloc_bytes,
            ..ReceivedPlan::default()
        }
    }

    /// Returns whether all pieces have come.
    pub fn is_complete(&self) -> bool {
        self.complete.get().is_some()
    }

    /// Adds a piece.
    pub fn add(&self, piece: &PlanPiece) -> Result<()> {
        if self.is_complete() {
            return Err(unexpected("plan after its end"));
        }
        let mut arriving = self.arriving.lock();
        let arriving = &mut *arriving;
        // The peer decides how long a piece is. What is decompressed at once must not depend on that.
        let mut first = arriving.store.count();
        let mut text = Vec::new();
        for action in &piece.actions {
            plan_line::put(&mut text, &PlanLine::Action(Box::new(action.clone())));
            arriving
                .store
                .add(action)
                .ok_or_else(|| unexpected("plan with too many actions"))?;
            if text.len() >= FRAME_BYTES {
                arriving.end_frame(first, &text)?;
                first = arriving.store.count();
                text.clear();
            }
        }
        if !text.is_empty() {
            arriving.end_frame(first, &text)?;
        }
        let held_bytes = arriving.compressed_bytes + arriving.store.indexed_bytes();
        let asked_bytes = self.max_alloc_bytes.unwrap_or(u64::MAX);
        let max_bytes = asked_bytes.min(PLAN_MAX_BYTES as u64);
        if held_bytes as u64 > max_bytes {
            return Err(too_long(max_bytes));
        }
        if piece.is_last {
            let mut store = std::mem::take(arriving).store;
            store.seal();
            let _ = self.complete.set((store, piece.creates_dest));
        }
        Ok(())
    }

    /// Returns the complete plan.
    fn store(&self) -> io::Result<&PlanStore<MemoryFrames>> {
        let complete = self.complete.get();
        let missing = || io::Error::other("it has not come");
        Ok(&complete.ok_or_else(missing)?.0)
    }
}

impl StoredPlan for ReceivedPlan {
    fn action(&self, path: &[u8], is_deletion: bool) -> io::Result<Option<(u32, PlannedAction)>> {
        self.store()?.action(path, is_deletion)
    }

    fn given_to(&self, file: SharedFile) -> io::Result<Vec<EntryState>> {
        self.store()?.given_to(file)
    }

    fn settle(&self, number: u32) {
        if let Ok(store) = self.store() {
            store.settle(number);
        }
    }

    fn unsettled(&self, each: &mut dyn FnMut(PlannedAction) -> io::Result<()>) -> io::Result<()> {
        self.store()?.unsettled(each)
    }

    fn each(&self, each: &mut dyn FnMut(PlannedAction) -> io::Result<()>) -> io::Result<()> {
        self.store()?.each(each)
    }

    /// The client does not send those that it leaves out.
    fn leaves_deletions(&self) -> bool {
        false
    }

    fn creates_dest(&self) -> bool {
        self.complete.get().is_some_and(|(_, creates)| *creates)
    }
}

/// Sends a plan to the receiver.
pub fn send_plan(connection: &NativeConnection, plan: &dyn StoredPlan) -> Result<()> {
    let mut piece = PlanPiece {
        creates_dest: plan.creates_dest(),
        ..PlanPiece::default()
    };
    let mut piece_bytes = 0;
    let mut failure = None;
    let read = plan.each(&mut |action| {
        if plan.leaves_deletions() && action.after.is_none() {
            return Ok(());
        }
        let first_bytes = action.links.as_ref().map_or(0, |links| links.first.len());
        piece_bytes += ABOUT_BYTES + action.path.len() + first_bytes;
        piece.actions.push(action);
        if piece_bytes < PLAN_PIECE_BYTES {
            return Ok(());
        }
        piece_bytes = 0;
        let actions = std::mem::take(&mut piece.actions);
        let full = PlanPiece {
            actions,
            ..piece.clone()
        };
        if let Err(error) = connection.send(&Message::Plan(full)) {
            failure = Some(error);
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    });
    if let Some(error) = failure {
        return Err(error);
    }
    read.map_err(|error| replay::unreadable(&error))?;
    piece.is_last = true;
    connection.send(&Message::Plan(piece))
}

fn too_long(max_bytes: u64) -> Error {
    let words = format!("sparsync: the plan takes more than {max_bytes} bytes of memory");
    Error::new(Exit::Malloc, words)
        .with_hint("make plans of parts of the tree, or apply a plan of a pull at the destination")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_piece_becomes_short_frames() {
        let action = |number: usize| PlannedAction {
            path: format!("{number}-{}", "x".repeat(1_000)).into_bytes(),
            ..PlannedAction::of_new_root(0o755)
        };
        let plan = ReceivedPlan::default();
        plan.add(&PlanPiece {
            actions: (0..1_000).map(action).collect(),
            creates_dest: false,
            is_last: true,
        })
        .unwrap();
        // A million bytes of paths.
        assert!(plan.store().unwrap().frames.0.len() >= 1_000_000 / FRAME_BYTES);
        for number in 0..1_000 {
            let wanted = action(number);
            let (found_at, found) = plan.action(&wanted.path, false).unwrap().unwrap();
            assert_eq!((found_at as usize, found.path), (number, wanted.path));
        }
    }
}

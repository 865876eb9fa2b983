//! The actions of a stored plan, found by their paths: an index in memory, and the actions in compressed frames.

use crate::plan::planned::{EntryState, PlannedAct, PlannedAction, SharedFile};
use crate::report::plan_line::{self, PlanLine};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufRead, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How many bytes of lines are compressed together. A reader decompresses as many to find one action.
pub const FRAME_BYTES: usize = 128 << 10;
/// The maximum length of a frame, without compression: the first line of a plan has the whole command line.
pub const FRAME_MAX_BYTES: usize = 64 << 20;
/// The level of the compression: a fast one, because the lines are alike.
const LEVEL: i32 = 3;
/// How many frames are kept after they were read. Several threads look for actions, each in the order of the run.
const FRAMES_KEPT: usize = 16;
/// The memory that the index takes for each action, in bytes.
const INDEXED_BYTES: usize = 17;
/// The memory that the index takes besides for each action that gives a state to a file with several names.
const GIVEN_BYTES: usize = 24;

/// Where the compressed frames of a plan are.
pub trait Frames: Send + Sync {
    /// Returns a frame by its number, still compressed.
    fn read(&self, at: usize) -> io::Result<Vec<u8>>;
}

/// The actions of a stored plan.
///
/// Memory: [`PlanStore::indexed_bytes`], and [`FRAMES_KEPT`] frames.
pub struct PlanStore<F> {
    pub frames: F,
    /// The number of the first action of each frame with actions.
    firsts: Vec<u32>,
    /// The hash of each action's path and its number, in order.
    by_path: Vec<(u64, u32)>,
    /// Of the actions that give states to files with several names: the hashes of file and state, and the number. In order,
    /// and each state once.
    given: Vec<(u64, u64, u32)>,
    hashes: RandomState,
    /// Whether each action has got its verdict.
    settled: Vec<AtomicBool>,
    kept: Mutex<VecDeque<(usize, Arc<Vec<PlannedAction>>)>>,
}

impl<F> PlanStore<F> {
    /// Returns a store without actions.
    pub fn new(frames: F) -> PlanStore<F> {
        PlanStore {
            frames,
            firsts: Vec::new(),
            by_path: Vec::new(),
            given: Vec::new(),
            hashes: RandomState::new(),
            settled: Vec::new(),
            kept: Mutex::default(),
        }
    }

    /// Adds an action in the order of the plan. `None`: there are too many.
    pub fn add(&mut self, action: &PlannedAction) -> Option<()> {
        let number = u32::try_from(self.settled.len()).ok()?;
        let is_deletion = action.act == PlannedAct::Delete;
        let hash = self.hashes.hash_one((&action.path[..], is_deletion));
        self.by_path.push((hash, number));
        if let Some((file, state)) = action.given_state() {
            let [file, state] = [self.hashes.hash_one(file), self.hashes.hash_one(state)];
            self.given.push((file, state, number));
        }
        self.settled.push(AtomicBool::new(false));
        Some(())
    }

    /// Notes that the actions from this one on are in a frame of their own, the last one that `frames` has.
    pub fn end_frame(&mut self, first: u32) {
        self.firsts.push(first);
    }

    /// Returns the number of actions.
    pub fn count(&self) -> u32 {
        // See `add`.
        self.settled.len() as u32
    }

    /// Returns the memory that the index takes.
    pub fn indexed_bytes(&self) -> usize {
        self.settled.len() * INDEXED_BYTES + self.given.len() * GIVEN_BYTES
    }

    /// Prepares the index. No action is added after this.
    pub fn seal(&mut self) {
        self.by_path.sort_unstable();
        self.given.sort_unstable();
        self.given.dedup_by_key(|(file, state, _)| (*file, *state));
    }

    /// Records that an action has got its verdict.
    pub fn settle(&self, number: u32) {
        if let Some(settled) = self.settled.get(number as usize) {
            settled.store(true, Ordering::Relaxed);
        }
    }
}

impl<F: Frames> PlanStore<F> {
    /// Returns the action for a path, with its number.
    pub fn action(
        &self,
        path: &[u8],
        is_deletion: bool,
    ) -> io::Result<Option<(u32, PlannedAction)>> {
        let hash = self.hashes.hash_one((path, is_deletion));
        let start = self.by_path.partition_point(|(known, _)| *known < hash);
        for (known, number) in &self.by_path[start..] {
            if *known != hash {
                break;
            }
            let action = self.numbered(*number)?;
            if action.path == path && (action.act == PlannedAct::Delete) == is_deletion {
                return Ok(Some((*number, action)));
            }
        }
        Ok(None)
    }

    /// Returns the states that actions give to a file with several names, each of them once.
    pub fn given_to(&self, file: SharedFile) -> io::Result<Vec<EntryState>> {
        let hash = self.hashes.hash_one(file);
        let start = self.given.partition_point(|(known, ..)| *known < hash);
        let mut states = Vec::new();
        for (known, _, number) in &self.given[start..] {
            if *known != hash {
                break;
            }
            let action = self.numbered(*number)?;
            if let Some((known, state)) = action.given_state()
                && known == file
            {
                states.push(state.clone());
            }
        }
        Ok(states)
    }

    /// Calls a function with each action that has got no verdict, until it fails.
    pub fn unsettled(
        &self,
        each: &mut dyn FnMut(PlannedAction) -> io::Result<()>,
    ) -> io::Result<()> {
        for (number, settled) in (0u32..).zip(&self.settled) {
            if !settled.load(Ordering::Relaxed) {
                each(self.numbered(number)?)?;
            }
        }
        Ok(())
    }

    /// Calls a function with each action in order, until it fails.
    pub fn each(&self, each: &mut dyn FnMut(PlannedAction) -> io::Result<()>) -> io::Result<()> {
        for number in 0..self.count() {
            each(self.numbered(number)?)?;
        }
        Ok(())
    }

    /// Returns an action by its number.
    fn numbered(&self, number: u32) -> io::Result<PlannedAction> {
        let at = self.firsts.partition_point(|first| *first <= number) - 1;
        let actions = self.frame(at)?;
        let place = (number - self.firsts[at]) as usize;
        actions.get(place).cloned().ok_or_else(changed)
    }

    /// Returns the actions of a frame.
    fn frame(&self, at: usize) -> io::Result<Arc<Vec<PlannedAction>>> {
        let mut kept = self.kept.lock();
        if let Some(place) = kept.iter().position(|(known, _)| *known == at)
            && let Some(known) = kept.remove(place)
        {
            let actions = known.1.clone();
            kept.push_back(known);
            return Ok(actions);
        }
        drop(kept);
        let compressed = self.frames.read(at)?;
        let text = next_frame(&mut &compressed[..])?.unwrap_or_default();
        let mut actions = Vec::new();
        for line in text.split(|byte| *byte == b'\n') {
            match plan_line::parse(line) {
                Ok(PlanLine::Action(action)) => actions.push(*action),
                Ok(PlanLine::Header(_) | PlanLine::Outcome(_) | PlanLine::End { .. }) => {}
                Err(_) if line.is_empty() => {}
                Err(_) => return Err(changed()),
            }
        }
        let actions = Arc::new(actions);
        let mut kept = self.kept.lock();
        if kept.len() >= FRAMES_KEPT {
            kept.pop_front();
        }
        kept.push_back((at, actions.clone()));
        Ok(actions)
    }
}

/// Compresses a frame.
pub fn compressed(text: &[u8]) -> io::Result<Vec<u8>> {
    zstd::bulk::compress(text, LEVEL)
}

/// Reads and decompresses the next frame; `None` at the end.
pub fn next_frame(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    if reader.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut decoder = zstd::stream::read::Decoder::with_buffer(reader)?.single_frame();
    let mut text = Vec::new();
    let limit = FRAME_MAX_BYTES as u64 + 1;
    decoder.by_ref().take(limit).read_to_end(&mut text)?;
    if text.len() > FRAME_MAX_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Some(text))
}

/// Returns the error of a plan that is another one than when it was checked.
pub fn changed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it has changed")
}

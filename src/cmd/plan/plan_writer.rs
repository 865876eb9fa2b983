//! Writes a plan: JSON Lines in frames of zstd, each of which can be read by itself.

use crate::cmd::new_file::{NewFile, file_error};
use crate::digest::{HashAlgorithm, StandardHasher};
use crate::error::{Error, Result};
use crate::plan::planned::{PlanGap, PlannedAction};
use crate::report::plan_line::{self, PlanHeader, PlanLine};
use crate::walk::plan_store::{FRAME_BYTES, compressed};
use std::io;

/// The permission bits of a plan, which holds the names of files.
const MODE: u32 = 0o600;
/// A plan that is written.
pub struct PlanWriter {
    file: NewFile,
    /// The lines that are not yet compressed.
    frame: Vec<u8>,
    /// Of all lines so far.
    hasher: StandardHasher,
    actions: u64,
    /// The first error. Nothing is written after it.
    failure: Option<io::Error>,
}

impl PlanWriter {
    /// Begins a plan, which will replace a regular file of this name.
    pub fn create(path: &[u8], header: PlanHeader) -> Result<PlanWriter> {
        let file = NewFile::create(path, MODE).map_err(|error| failed(path, &error))?;
        let mut writer = PlanWriter {
            file,
            frame: Vec::with_capacity(FRAME_BYTES),
            hasher: StandardHasher::new(HashAlgorithm::Blake3),
            actions: 0,
            failure: None,
        };
        writer.put(&PlanLine::Header(header));
        // So that the first line can be read without any other.
        writer.end_frame();
        Ok(writer)
    }

    /// Adds an action.
    pub fn action(&mut self, action: &PlannedAction) {
        self.actions += 1;
        self.put(&PlanLine::Action(Box::new(action.clone())));
        if self.frame.len() >= FRAME_BYTES {
            self.end_frame();
        }
    }

    fn put(&mut self, line: &PlanLine) {
        let start = self.frame.len();
        plan_line::put(&mut self.frame, line);
        self.hasher.update(&self.frame[start..]);
    }

    fn end_frame(&mut self) {
        if self.failure.is_none() && !self.frame.is_empty() {
            let written = compressed(&self.frame).and_then(|frame| self.file.write_all(&frame));
            self.failure = written.err();
        }
        self.frame.clear();
    }

    /// Completes the plan, and gives it its name. `gap`: what it lacks.
    pub fn finish(mut self, gap: Option<PlanGap>) -> Result<()> {
        self.end_frame();
        self.put(&PlanLine::Outcome(gap));
        let hasher =
            std::mem::replace(&mut self.hasher, StandardHasher::new(HashAlgorithm::Blake3));
        let digest: String = hasher
            .finish()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let actions = self.actions;
        self.put(&PlanLine::End { actions, digest });
        self.end_frame();
        let placed = match self.failure.take() {
            Some(error) => Err(error),
            None => self.file.place(),
        };
        placed.map_err(|error| failed(self.file.path(), &error))
    }
}

fn failed(path: &[u8], error: &io::Error) -> Error {
    file_error("cannot write the plan to ", path, error)
}

//! A directory on the way from the root to the one that is being processed, and when its descriptors are closed.

use crate::apply::DestDir;
use crate::fs::root::{Dir, ParkedDir, Root};
use crate::walk::DirPlan;
use std::io;
use std::sync::Arc;

/// A directory whose subdirectories are being processed.
pub(super) struct Frame {
    pub(super) plan: Arc<DirPlan>,
    pub(super) dest_dir: Arc<DestDir>,
    /// The index of the next subdirectory.
    pub(super) next: usize,
    /// If `false`, nothing is to be done in the directory itself, but possibly below it.
    pub(super) has_plan: bool,
    /// The plan is a copy for the subdirectories, because appliers share the original and its descriptors.
    pub(super) is_copy: bool,
    /// Its closed directory at the destination.
    pub(super) parked: Option<ParkedDir>,
}

impl Frame {
    /// Creates the frame of a directory whose own entries are done.
    pub(super) fn new(plan: Arc<DirPlan>, dest_dir: Arc<DestDir>, has_plan: bool) -> Frame {
        let lists_in_turn = plan
            .found
            .sender_dir
            .as_ref()
            .is_some_and(|sender_dir| sender_dir.lists_in_turn);
        let mut frame = Frame {
            plan,
            dest_dir,
            next: 0,
            has_plan,
            is_copy: false,
            parked: None,
        };
        if lists_in_turn && !frame.plan.decided().subdirs.is_empty() {
            // The directory is finished before those below it, which could wait for that.
            frame.close_sources();
        }
        frame
    }

    /// Closes its descriptors. Those that appliers share are closed when they are done.
    pub(super) fn park(&mut self) {
        if let Some(Ok(parked)) = self
            .dest_dir
            .dir
            .as_ref()
            .map(|dir| dir.parked(self.dest_dir.path.clone()))
        {
            self.parked = Some(parked);
            self.set_dir(None);
        }
        self.close_sources();
    }

    pub(super) fn close_sources(&mut self) {
        if !std::mem::replace(&mut self.is_copy, true) {
            self.plan = Arc::new(self.plan.for_subdirs());
        }
    }

    fn set_dir(&mut self, dir: Option<Dir>) {
        self.dest_dir = Arc::new(DestDir::new(
            self.dest_dir.path.clone(),
            dir,
            self.dest_dir.last.clone(),
        ));
    }

    /// Opens the directory again if it was closed.
    pub(super) fn reopen_dirs(&mut self, dest: Option<&Root>) -> io::Result<()> {
        if let Some((parked, dest)) = self.parked.as_ref().zip(dest) {
            let dir = dest.reopen_dir(parked)?;
            self.set_dir(Some(dir));
            self.parked = None;
        }
        Ok(())
    }
}

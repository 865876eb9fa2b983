//! Reads a plan. All of it is checked before anything of it is used; then single actions are found by their paths.

use crate::cmd::new_file::file_error;
use crate::digest::{HashAlgorithm, StandardHasher};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::{sys, trusted_path};
use crate::options::LinkOwners;
use crate::plan::planned::{PlannedAct, PlannedAction, StoredPlan};
use crate::report::plan_line::{self, PlanHeader, PlanLine};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, BufReader, Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The maximum length of a frame, without compression: the first line has the whole command line.
const FRAME_MAX_BYTES: usize = 64 << 20;
/// How many frames are kept after they were read. Several threads look for actions, each in the order of the run.
const FRAMES_KEPT: usize = 16;

/// A plan that was checked.
///
/// Memory: 17 bytes for each action, and [`FRAMES_KEPT`] frames.
pub struct PlanFile {
    path: Vec<u8>,
    file: File,
    pub header: PlanHeader,
    /// In the order of the file.
    frames: Vec<FrameAt>,
    /// The hash of each action's path and its number, in order.
    by_path: Vec<(u64, u32)>,
    /// Whether each action has got its verdict.
    settled: Vec<AtomicBool>,
    kept: Mutex<VecDeque<(usize, Arc<Vec<PlannedAction>>)>>,
    /// `--without-deletions`
    pub leaves_deletions: bool,
}

/// A frame with actions.
#[derive(Debug, Clone, Copy)]
struct FrameAt {
    at: u64,
    compressed_bytes: u64,
    /// The number of its first action.
    first: u32,
}

impl std::fmt::Debug for PlanFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path.escape_ascii())
    }
}

impl PlanFile {
    /// Opens a plan and checks all of it. `each` is called with every action.
    pub fn open(path: &[u8], mut each: impl FnMut(&PlannedAction)) -> Result<PlanFile> {
        let opened = trusted_path::open_regular(path, LinkOwners::Trusted);
        let file = File::from(opened.map_err(|error| unreadable(path, &error))?);
        let shared = file.try_clone().map_err(|error| unreadable(path, &error))?;
        let mut reader = BufReader::new(shared);
        let mut plan = None::<PlanFile>;
        let mut file = Some(file);
        let mut hasher = StandardHasher::new(HashAlgorithm::Blake3);
        let mut end = None;
        loop {
            let at = position(path, &mut reader)?;
            let Some(text) = next_frame(&mut reader).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => refused(path, "it is truncated"),
                io::ErrorKind::InvalidData | io::ErrorKind::Other => {
                    refused(path, "it is no plan, or it is damaged")
                }
                _ => unreadable(path, &error),
            })?
            else {
                break;
            };
            let compressed_bytes = position(path, &mut reader)? - at;
            let Some(lines) = text.strip_suffix(b"\n") else {
                return Err(refused(path, "it is no plan, or it is damaged"));
            };
            let first = plan.as_ref().map_or(0, PlanFile::count);
            for line in lines.split(|byte| *byte == b'\n') {
                let parsed = plan_line::parse(line).map_err(|reason| refused(path, &reason))?;
                match (parsed, &mut plan) {
                    _ if end.is_some() => return Err(refused(path, "something follows its end")),
                    (PlanLine::Header(header), None) => {
                        plan = file.take().map(|file| PlanFile::new(path, file, header));
                    }
                    (PlanLine::Action(action), Some(plan)) => {
                        each(&action);
                        plan.add(&action)
                            .ok_or_else(|| refused(path, "it has too many actions"))?;
                    }
                    (PlanLine::End { actions, digest }, Some(plan)) => {
                        end = Some((actions == u64::from(plan.count()), digest));
                        continue;
                    }
                    _ => return Err(refused(path, "its lines are not in the order of a plan")),
                }
                hasher.update(line);
                hasher.update(b"\n");
            }
            if let Some(plan) = &mut plan
                && plan.count() > first
            {
                plan.frames.push(FrameAt {
                    at,
                    compressed_bytes,
                    first,
                });
            }
        }
        let (Some(mut plan), Some((is_complete, digest))) = (plan, end) else {
            return Err(refused(path, "it is truncated"));
        };
        let found: String = hasher
            .finish()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        if !is_complete || digest != found {
            return Err(refused(
                path,
                "it was changed after it was made: the digest in its last line is another one",
            ));
        }
        plan.by_path.sort_unstable();
        Ok(plan)
    }

    fn new(path: &[u8], file: File, header: PlanHeader) -> PlanFile {
        PlanFile {
            path: path.to_vec(),
            file,
            header,
            frames: Vec::new(),
            by_path: Vec::new(),
            settled: Vec::new(),
            kept: Mutex::default(),
            leaves_deletions: false,
        }
    }

    /// Adds an action in the order of the file. `None`: there are too many.
    fn add(&mut self, action: &PlannedAction) -> Option<()> {
        let number = u32::try_from(self.settled.len()).ok()?;
        let is_deletion = action.act == PlannedAct::Delete;
        self.by_path
            .push((hash_of(&action.path, is_deletion), number));
        self.settled.push(AtomicBool::new(false));
        Some(())
    }

    /// Returns the number of actions.
    pub fn count(&self) -> u32 {
        // See `add`.
        self.settled.len() as u32
    }

    /// Calls a function with each line, as it is in the plan.
    pub fn each_line(&self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut file = self.file.try_clone()?;
        file.rewind()?;
        let mut reader = BufReader::new(file);
        while let Some(text) = next_frame(&mut reader)? {
            for line in text.split_inclusive(|byte| *byte == b'\n') {
                each(line)?;
            }
        }
        Ok(())
    }

    /// Calls a function with each action.
    pub fn each_action(
        &self,
        mut each: impl FnMut(&PlannedAction) -> io::Result<()>,
    ) -> io::Result<()> {
        self.each_line(|line| {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            match plan_line::parse(line) {
                Ok(PlanLine::Action(action)) => each(&action),
                Ok(PlanLine::Header(_) | PlanLine::End { .. }) => Ok(()),
                Err(_) => Err(changed()),
            }
        })
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
        let actions = Arc::new(self.read_frame(self.frames[at])?);
        let mut kept = self.kept.lock();
        if kept.len() >= FRAMES_KEPT {
            kept.pop_front();
        }
        kept.push_back((at, actions.clone()));
        Ok(actions)
    }

    fn read_frame(&self, frame: FrameAt) -> io::Result<Vec<PlannedAction>> {
        let len_bytes = usize::try_from(frame.compressed_bytes).map_err(|_| changed())?;
        let mut compressed = vec![0; len_bytes];
        sys::pread_exact(self.file.as_fd(), &mut compressed, frame.at)?;
        let mut text = Vec::new();
        let mut decoder = zstd::stream::read::Decoder::with_buffer(&compressed[..])?;
        decoder
            .by_ref()
            .take(FRAME_MAX_BYTES as u64)
            .read_to_end(&mut text)?;
        let mut actions = Vec::new();
        for line in text.split(|byte| *byte == b'\n') {
            match plan_line::parse(line) {
                Ok(PlanLine::Action(action)) => actions.push(action),
                Ok(PlanLine::Header(_) | PlanLine::End { .. }) => {}
                Err(_) if line.is_empty() => {}
                Err(_) => return Err(changed()),
            }
        }
        Ok(actions)
    }

    /// Returns an action by its number.
    fn numbered(&self, number: u32) -> io::Result<PlannedAction> {
        let at = self.frames.partition_point(|frame| frame.first <= number) - 1;
        let actions = self.frame(at)?;
        let place = (number - self.frames[at].first) as usize;
        actions.get(place).cloned().ok_or_else(changed)
    }
}

impl StoredPlan for PlanFile {
    fn action(&self, path: &[u8], is_deletion: bool) -> io::Result<Option<(u32, PlannedAction)>> {
        let hash = hash_of(path, is_deletion);
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

    fn settle(&self, number: u32) {
        if let Some(settled) = self.settled.get(number as usize) {
            settled.store(true, Ordering::Relaxed);
        }
    }

    fn unsettled(&self, each: &mut dyn FnMut(PlannedAction) -> io::Result<()>) -> io::Result<()> {
        for (number, settled) in (0u32..).zip(&self.settled) {
            if !settled.load(Ordering::Relaxed) {
                each(self.numbered(number)?)?;
            }
        }
        Ok(())
    }

    fn leaves_deletions(&self) -> bool {
        self.leaves_deletions
    }
}

fn hash_of(path: &[u8], is_deletion: bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    is_deletion.hash(&mut hasher);
    hasher.finish()
}

fn position(path: &[u8], reader: &mut BufReader<File>) -> Result<u64> {
    reader
        .stream_position()
        .map_err(|error| unreadable(path, &error))
}

/// Reads the next frame; `None` at the end.
fn next_frame(reader: &mut BufReader<File>) -> io::Result<Option<Vec<u8>>> {
    use std::io::BufRead as _;
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
fn changed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it has changed")
}

fn refused(path: &[u8], reason: &str) -> Error {
    let start = b"sparsync: the plan ".as_slice();
    let line = [start, path, b" is refused: ", reason.as_bytes()].concat();
    Error::new(Exit::FileIo, line)
}

/// Returns the error of a plan that cannot be read.
pub fn unreadable(path: &[u8], error: &io::Error) -> Error {
    file_error("cannot read the plan ", path, error)
}

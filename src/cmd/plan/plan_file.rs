//! Reads a plan. All of it is checked before anything of it is used; then single actions are found by their paths.

use crate::cmd::new_file::file_error;
use crate::digest::{HashAlgorithm, StandardHasher};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::{sys, trusted_path};
use crate::options::LinkOwners;
use crate::plan::planned::{EntryState, PlanGap, PlannedAction, SharedFile, StoredPlan};
use crate::report::plan_line::{self, PlanHeader, PlanLine};
use crate::walk::plan_store::{Frames, PlanStore, changed, next_frame};
use std::fs::File;
use std::io::{self, BufReader, Seek as _};
use std::os::fd::AsFd as _;

/// A plan that was checked.
pub struct PlanFile {
    path: Vec<u8>,
    pub header: PlanHeader,
    /// What it lacks of the run.
    pub gap: Option<PlanGap>,
    store: PlanStore<FileFrames>,
    /// `--without-deletions`
    pub leaves_deletions: bool,
    /// See [`StoredPlan::creates_dest`].
    pub creates_dest: bool,
}

/// The frames of a plan in its file.
struct FileFrames {
    file: File,
    /// Of each frame with actions, where it begins and how many bytes it has.
    places: Vec<(u64, u64)>,
}

impl Frames for FileFrames {
    fn read(&self, at: usize) -> io::Result<Vec<u8>> {
        let (start, len_bytes) = self.places[at];
        let len_bytes = usize::try_from(len_bytes).map_err(|_| changed())?;
        let mut compressed = vec![0; len_bytes];
        sys::pread_exact(self.file.as_fd(), &mut compressed, start)?;
        Ok(compressed)
    }
}

impl std::fmt::Debug for PlanFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path.escape_ascii())
    }
}

impl PlanFile {
    /// Opens a plan and checks all of it. `each` is called with every action.
    pub fn open(path: &[u8], each: impl FnMut(&PlannedAction)) -> Result<PlanFile> {
        PlanFile::read(path, open_file(path)?, each)
    }

    /// Opens a plan that is carried out, and checks all of it. Fails if other users own it or can change it: it has the
    /// command line of the run, with the remote shell.
    pub fn open_to_apply(path: &[u8]) -> Result<PlanFile> {
        let file = open_file(path)?;
        // The user who redirects standard input has chosen the file.
        if path != b"/dev/stdin" {
            check_owner(path, &file)?;
        }
        PlanFile::read(path, file, |_| ())
    }

    fn read(path: &[u8], file: File, mut each: impl FnMut(&PlannedAction)) -> Result<PlanFile> {
        let shared = file.try_clone().map_err(|error| unreadable(path, &error))?;
        let mut reader = BufReader::new(shared);
        let mut plan = None::<PlanFile>;
        let mut file = Some(file);
        let mut hasher = StandardHasher::new(HashAlgorithm::Blake3);
        let mut has_outcome = false;
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
            let first = plan.as_ref().map_or(0, |plan| plan.store.count());
            for line in lines.split(|byte| *byte == b'\n') {
                let parsed = plan_line::parse(line).map_err(|reason| refused(path, &reason))?;
                match (parsed, &mut plan) {
                    _ if end.is_some() => return Err(refused(path, "something follows its end")),
                    (PlanLine::Header(header), None) => {
                        plan = file.take().map(|file| PlanFile::new(path, file, header));
                    }
                    (PlanLine::Action(action), Some(plan)) if !has_outcome => {
                        each(&action);
                        plan.store
                            .add(&action)
                            .ok_or_else(|| refused(path, "it has too many actions"))?;
                    }
                    (PlanLine::Outcome(gap), Some(plan)) if !has_outcome => {
                        has_outcome = true;
                        plan.gap = gap;
                    }
                    (PlanLine::End { actions, digest }, Some(plan)) if has_outcome => {
                        end = Some((actions == u64::from(plan.store.count()), digest));
                        continue;
                    }
                    _ => return Err(refused(path, "its lines are not in the order of a plan")),
                }
                hasher.update(line);
                hasher.update(b"\n");
            }
            if let Some(plan) = &mut plan
                && plan.store.count() > first
            {
                plan.store.frames.places.push((at, compressed_bytes));
                plan.store.end_frame(first);
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
        plan.store.seal();
        Ok(plan)
    }

    fn new(path: &[u8], file: File, header: PlanHeader) -> PlanFile {
        let frames = FileFrames {
            file,
            places: Vec::new(),
        };
        PlanFile {
            path: path.to_vec(),
            header,
            gap: None,
            store: PlanStore::new(frames),
            leaves_deletions: false,
            creates_dest: false,
        }
    }

    /// Calls a function with each line, as it is in the plan.
    pub fn each_line(&self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut file = self.store.frames.file.try_clone()?;
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
        mut each: impl FnMut(PlannedAction) -> io::Result<()>,
    ) -> io::Result<()> {
        self.each_line(|line| {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            match plan_line::parse(line) {
                Ok(PlanLine::Action(action)) => each(*action),
                Ok(PlanLine::Header(_) | PlanLine::Outcome(_) | PlanLine::End { .. }) => Ok(()),
                Err(_) => Err(changed()),
            }
        })
    }
}

impl StoredPlan for PlanFile {
    fn action(&self, path: &[u8], is_deletion: bool) -> io::Result<Option<(u32, PlannedAction)>> {
        self.store.action(path, is_deletion)
    }

    fn given_to(&self, file: SharedFile) -> io::Result<Vec<EntryState>> {
        self.store.given_to(file)
    }

    fn settle(&self, number: u32) {
        self.store.settle(number);
    }

    fn unsettled(&self, each: &mut dyn FnMut(PlannedAction) -> io::Result<()>) -> io::Result<()> {
        self.store.unsettled(each)
    }

    fn each(&self, each: &mut dyn FnMut(PlannedAction) -> io::Result<()>) -> io::Result<()> {
        self.each_action(each)
    }

    fn leaves_deletions(&self) -> bool {
        self.leaves_deletions
    }

    fn creates_dest(&self) -> bool {
        self.creates_dest
    }
}

fn open_file(path: &[u8]) -> Result<File> {
    trusted_path::open_regular(path, LinkOwners::Trusted)
        .map(File::from)
        .map_err(|error| unreadable(path, &error))
}

/// Fails if another user than root and that of this process owns a plan or can write to it.
fn check_owner(path: &[u8], file: &File) -> Result<()> {
    let stat = sys::fstat(file.as_fd()).map_err(|error| unreadable(path, &error))?;
    let me = sys::ids().0;
    let is_mine = stat.uid == me || stat.uid == 0;
    let (reason, repair) = if !is_mine {
        (
            format!("it is owned by user {}", stat.uid),
            format!("chown {me}"),
        )
    } else if stat.mode & 0o022 != 0 {
        (
            "other users can change it".to_owned(),
            "chmod go-w".to_owned(),
        )
    } else {
        return Ok(());
    };
    let hint = format!(
        "run `{repair}` on it, and read it with `sparsync plan --show` before you apply it"
    );
    Err(refused(path, &reason).with_hint(hint))
}

fn position(path: &[u8], reader: &mut BufReader<File>) -> Result<u64> {
    reader
        .stream_position()
        .map_err(|error| unreadable(path, &error))
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

//! Content that waits on the disk of the destination: it has no room in memory, and the peer must not be slowed down.

use crate::apply::ContentPiece;
use crate::fs::overflow_file::OverflowFile;
use crate::fs::root::Dir;
use parking_lot::Mutex;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;

/// Of what the file has a temp name for a moment, where there are no files without a name.
const NAME: &[u8] = b"sparsync-content";
/// A stored piece begins with its kind and two numbers: the length of the data that follow and 0, or a range of the basis.
const HEAD_LEN: usize = 17;
const DATA: u8 = 0;
const COPY: u8 = 1;

/// Pieces of content in a file. Those that are stored one after the other form one range.
#[derive(Default)]
pub(super) struct SetAside {
    /// Where the file is created; unset if nothing is written.
    dir: OnceLock<Dir>,
    /// Created by the first piece.
    file: Mutex<Option<OverflowFile>>,
}

impl SetAside {
    /// Permits that the file is created in a directory.
    pub(super) fn permit(&self, dir: &Dir) {
        self.dir.get_or_init(|| dir.clone());
    }

    /// Stores a piece that is not the last one of its file. Returns where it is.
    pub(super) fn store(&self, piece: &ContentPiece) -> io::Result<Range<u64>> {
        let (kind, numbers, data) = match piece {
            ContentPiece::Data(data) => (DATA, [data.len() as u64, 0], &data[..]),
            ContentPiece::Copy {
                offset_bytes,
                len_bytes,
            } => (COPY, [*offset_bytes, *len_bytes], &[][..]),
            ContentPiece::Whole(..) | ContentPiece::End(_) | ContentPiece::Unsent(_) => {
                return Err(io::ErrorKind::Unsupported.into());
            }
        };
        let mut stored = Vec::with_capacity(HEAD_LEN + data.len());
        stored.push(kind);
        stored.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
        stored.extend(data);
        let mut file = self.file.lock();
        let file = match &mut *file {
            Some(file) => file,
            none => {
                let dir = self.dir.get().ok_or(io::ErrorKind::Unsupported)?;
                none.insert(OverflowFile::create(dir, NAME)?)
            }
        };
        file.append(&stored)
    }

    /// Takes the first piece of a range. Returns what is left of the range.
    pub(super) fn take(&self, range: Range<u64>) -> io::Result<(ContentPiece, Range<u64>)> {
        let mut file = self.file.lock();
        let file = file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let mut head = [0; HEAD_LEN];
        file.read(&mut head, range.start)?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let mut end = range.start + HEAD_LEN as u64;
        let piece = if head[0] == COPY {
            ContentPiece::Copy {
                offset_bytes: number(1),
                len_bytes: number(9),
            }
        } else {
            let len_bytes = number(1);
            let mut data = vec![0; len_bytes as usize];
            file.read(&mut data, end)?;
            end += len_bytes;
            ContentPiece::Data(data)
        };
        file.release(range.start..end);
        Ok((piece, end..range.end))
    }

    /// Drops all pieces of a range.
    pub(super) fn drop_range(&self, range: Range<u64>) {
        if let Some(file) = self.file.lock().as_mut() {
            file.release(range);
        }
    }

    /// Returns how many bytes are stored.
    #[cfg(test)]
    pub(super) fn stored_bytes(&self) -> u64 {
        self.file
            .lock()
            .as_ref()
            .map_or(0, OverflowFile::held_bytes)
    }
}

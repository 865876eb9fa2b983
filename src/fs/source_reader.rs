//! Reads a file of the source that other processes may change meanwhile.

use super::errno;
use super::sys::{self, LastChange};
use rustix::fd::{AsFd, BorrowedFd};
use std::io;
use std::sync::OnceLock;

/// An open file of the source, which is sent with the length that it had when it was opened.
///
/// A file that has grown since ends there. One that has become shorter cannot be read to that end, which is an error: what
/// was read so far is a part of the old file, and must not pass for a copy. Some files have a false length that does not
/// change, such as those in `/proc` (0) and in `/sys` (4096): they are read to where they end. All of this is decided
/// only if a read returns another length than expected, so an unchanged file costs no further call.
///
/// Several threads may read different parts.
pub struct SourceReader<F> {
    file: F,
    /// The length when it was opened.
    len_bytes: u64,
    /// The file is not read any further than this.
    max_bytes: u64,
    /// How the content turned out to end, once that is known.
    ending: OnceLock<ContentEnd>,
}

/// How the content of a file ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentEnd {
    /// At the length that was reported when the file was opened.
    AtLen,
    /// Elsewhere, although that length has not changed: it is false.
    Elsewhere,
}

impl<F: AsFd> SourceReader<F> {
    /// Creates a reader of a regular file that has this length now. More than `max_bytes` are not read.
    pub fn of_file(file: F, len_bytes: u64, max_bytes: u64) -> SourceReader<F> {
        let ending = match len_bytes {
            // Only reading shows whether a file of this length is empty.
            0 => OnceLock::from(ContentEnd::Elsewhere),
            _ => OnceLock::new(),
        };
        SourceReader {
            file,
            len_bytes,
            max_bytes,
            ending,
        }
    }

    /// Creates a reader of a device, which is read up to this length. More than `max_bytes` are not read.
    pub fn of_device(file: F, len_bytes: u64, max_bytes: u64) -> SourceReader<F> {
        SourceReader {
            file,
            len_bytes,
            max_bytes,
            ending: OnceLock::from(ContentEnd::AtLen),
        }
    }

    /// Returns the file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the length that the file had when it was opened.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Returns the length of a buffer for everything behind an offset, with the byte that would show that the file is
    /// longer than expected.
    pub fn room_from(&self, offset: u64) -> u64 {
        let stop = match self.ending.get() {
            None => self.len_bytes.saturating_add(1),
            Some(ContentEnd::AtLen) => self.len_bytes,
            Some(ContentEnd::Elsewhere) => u64::MAX,
        };
        stop.min(self.max_bytes).saturating_sub(offset)
    }

    /// Reads at an offset. Returns 0 at the end. Fails if the file has become shorter than it was when it was opened, and
    /// if it is longer than may be read.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let room = self.room_from(offset).min(into.len() as u64) as usize;
        if room == 0 {
            return self.end_at(offset);
        }
        let got = pread_or_read(self.file(), &mut into[..room], offset)?;
        if got == 0 {
            return self.end_at(offset);
        }
        if self.ending.get().is_some() {
            return Ok(got);
        }
        let end = offset + got as u64;
        if end > self.len_bytes {
            if self.len_now()? == self.len_bytes {
                self.ending.get_or_init(|| ContentEnd::Elsewhere);
                return Ok(got);
            }
            self.ending.get_or_init(|| ContentEnd::AtLen);
            return Ok(self.len_bytes.saturating_sub(offset) as usize);
        }
        if end == self.len_bytes && got < room {
            self.ending.get_or_init(|| ContentEnd::AtLen);
        }
        Ok(got)
    }

    /// Reads at an offset until the buffer is full or the file ends. Returns the number of bytes read.
    pub fn fill_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            match self.read_at(offset + filled as u64, &mut into[filled..])? {
                0 => break,
                got => filled += got,
            }
        }
        Ok(filled)
    }

    /// Checks that the content may end at an offset, where nothing was found. Returns 0.
    pub fn end_at(&self, offset: u64) -> io::Result<usize> {
        let is_false = self.has_false_len();
        if offset >= self.max_bytes && (is_false || self.len_bytes > self.max_bytes) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if is_false || offset == self.len_bytes {
            return Ok(0);
        }
        let len_stays = self.len_now()? == self.len_bytes;
        // A file that was cut off and then grew to the same length has data here.
        let ends_here = len_stays && pread_or_read(self.file(), &mut [0], offset)? == 0;
        if !ends_here || offset > self.len_bytes {
            return Err(errno::no_data());
        }
        self.distrust_len();
        Ok(0)
    }

    /// Fails if the file is shorter now than it was when it was opened.
    pub fn check_len(&self) -> io::Result<()> {
        if self.len_now()? < self.len_bytes {
            return Err(errno::no_data());
        }
        Ok(())
    }

    /// Returns whether the length is known to be false.
    pub fn has_false_len(&self) -> bool {
        self.ending.get() == Some(&ContentEnd::Elsewhere)
    }

    /// Notes that the length is false: it has not changed, but is not the length of what was read.
    pub fn distrust_len(&self) {
        self.ending.get_or_init(|| ContentEnd::Elsewhere);
    }

    fn len_now(&self) -> io::Result<u64> {
        sys::len_now(self.file())
    }
}

/// The state of a file of the source before its content is read.
#[derive(Debug)]
pub struct SourceWatch {
    before: LastChange,
}

impl SourceWatch {
    /// Begins to watch an open file. Returns `None` for a device, which has no content of its own.
    pub fn begin(file: BorrowedFd<'_>) -> Option<SourceWatch> {
        let before = sys::last_change(file).ok()?;
        if before.is_of_regular_file {
            Some(SourceWatch { before })
        } else {
            None
        }
    }

    /// Returns whether the content or the attributes have been changed since. A change within the resolution of the
    /// file system's times, some milliseconds, is not seen.
    pub fn has_changed(&self, file: BorrowedFd<'_>) -> bool {
        sys::last_change(file).is_ok_and(|now| now != self.before)
    }
}

/// Reads at an offset, or at the current position of files that cannot seek.
fn pread_or_read(file: BorrowedFd<'_>, into: &mut [u8], offset: u64) -> io::Result<usize> {
    match sys::pread(file, into, offset) {
        Err(error) if error.kind() == io::ErrorKind::NotSeekable => sys::read(file, into),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write as _;

    /// Reads everything in pieces of this length, and calls `between` after the first one.
    fn read_with(
        source: &SourceReader<&File>,
        piece_len: usize,
        between: impl FnOnce(),
    ) -> io::Result<Vec<u8>> {
        let mut piece = vec![0; piece_len];
        let mut content = Vec::new();
        let mut between = Some(between);
        loop {
            let got = source.read_at(content.len() as u64, &mut piece)?;
            if got == 0 {
                return Ok(content);
            }
            content.extend_from_slice(&piece[..got]);
            if let Some(between) = between.take() {
                between();
            }
        }
    }

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    fn opened(file: &File) -> SourceReader<&File> {
        SourceReader::of_file(file, file.metadata().unwrap().len(), u64::MAX)
    }

    #[test]
    fn content_ends_at_the_length_at_opening() {
        let content: Vec<u8> = (0..100).collect();
        for piece_len in [1, 30, 50, 99, 100, 101, 200] {
            let file = file(&content);
            let got = read_with(&opened(&file), piece_len, || {}).unwrap();
            assert_eq!(got, content, "{piece_len}");

            let grows = || (&file).write_all(b"more").unwrap();
            let source = opened(&file);
            let got = read_with(&source, piece_len, grows).unwrap();
            assert_eq!(got, content, "{piece_len}");
            assert!(!source.has_false_len());
        }
    }

    #[test]
    fn file_that_becomes_shorter_cannot_be_read_to_its_end() {
        for (piece_len, len) in [(30, 0), (30, 10), (30, 30), (30, 60), (30, 99), (99, 0)] {
            let file = file(&[7; 100]);
            let error = read_with(&opened(&file), piece_len, || file.set_len(len).unwrap());
            let error = error.expect_err("it is shorter");
            assert_eq!(
                error.raw_os_error(),
                Some(libc::ENODATA),
                "{piece_len}, {len}"
            );
        }
        // It has the old length again when that is checked, but other content.
        let file = file(&[7; 100]);
        let source = opened(&file);
        file.set_len(30).unwrap();
        assert_eq!(source.fill_at(0, &mut [0; 30]).unwrap(), 30);
        file.set_len(100).unwrap();
        assert!(source.end_at(30).is_err());
    }

    #[test]
    fn offset_behind_the_end_is_an_error() {
        let file = file(&[7; 100]);
        assert!(opened(&file).read_at(101, &mut [0; 10]).is_err());
        assert_eq!(opened(&file).read_at(100, &mut [0; 10]).unwrap(), 0);
    }

    #[test]
    fn files_with_a_false_length_are_read_to_their_end() {
        for path in ["/proc/cpuinfo", "/proc/sys/kernel/osrelease"] {
            let file = File::open(path).unwrap();
            let source = opened(&file);
            let wanted = std::fs::read(path).unwrap();
            assert_eq!(source.len_bytes(), 0);
            assert_eq!(read_with(&source, 64, || {}).unwrap(), wanted);
        }
        let path = "/sys/kernel/profiling";
        if let (Ok(file), Ok(wanted)) = (File::open(path), std::fs::read(path)) {
            let source = opened(&file);
            assert!(source.len_bytes() > wanted.len() as u64);
            assert_eq!(read_with(&source, 64, || {}).unwrap(), wanted);
        }
    }

    #[test]
    fn no_more_than_the_limit_is_read() {
        let file = file(&[7; 100]);
        let source = SourceReader::of_file(&file, 100, 50);
        let error = read_with(&source, 30, || {}).expect_err("it is too long");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        let endless = File::open("/dev/zero").unwrap();
        let source = SourceReader::of_device(&endless, 100, 1000);
        assert_eq!(read_with(&source, 30, || {}).unwrap(), [0; 100]);
        let source = SourceReader::of_file(&endless, 0, 1000);
        assert!(read_with(&source, 30, || {}).is_err());
    }
}

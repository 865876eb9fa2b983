//! Records the stream of a sender in a batch file.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::options::Options;
use crate::proto::rsync::batch::BatchHeader;
use crate::report::event::errno_words;
use crate::rsync::batch::recorded_options;
use crate::rsync::session_terms::RsyncTerms;
use parking_lot::Mutex;
use std::fs::File;
use std::io::{BufWriter, Write};

/// A batch file that is written.
pub struct BatchRecorder {
    file: Mutex<BufWriter<File>>,
    /// Its path, for messages.
    path: Vec<u8>,
    /// Content goes only to the file.
    pub is_only: bool,
    /// Why the file cannot be written.
    failed: Mutex<Option<Error>>,
}

impl BatchRecorder {
    /// Records in an empty file. `is_only`: `--only-write-batch`.
    pub fn new(file: File, path: Vec<u8>, is_only: bool) -> BatchRecorder {
        BatchRecorder {
            file: Mutex::new(BufWriter::new(file)),
            path,
            is_only,
            failed: Mutex::default(),
        }
    }

    /// Writes the header.
    pub(in crate::rsync) fn begin(&self, terms: &RsyncTerms, options: &Options) -> Result<()> {
        let RsyncTerms {
            protocol,
            flags: compat,
            sums,
            ..
        } = *terms;
        let header = BatchHeader {
            options: recorded_options::recorded(options),
            protocol,
            compat,
            seed: sums.seed,
        };
        let mut out = Vec::new();
        header.encode(&mut out);
        self.record(&out)
    }

    /// Appends data of the sender.
    pub fn record(&self, data: &[u8]) -> Result<()> {
        self.checked(|file| file.write_all(data))
    }

    /// Writes what is buffered.
    pub(in crate::rsync) fn end(&self) -> Result<()> {
        self.checked(BufWriter::flush)
    }

    fn checked(
        &self,
        write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
    ) -> Result<()> {
        write(&mut self.file.lock()).map_err(|error| {
            let start = b"sparsync: cannot write the batch file ".as_slice();
            let error = Error::new(
                Exit::FileIo,
                [start, &self.path, b": ", &errno_words(&error)].concat(),
            );
            self.failed.lock().get_or_insert(error).clone()
        })
    }

    /// Returns the error of a session: that of the file if there is one.
    pub(in crate::rsync) fn cause_of(&self, error: Error) -> Error {
        self.failed.lock().take().unwrap_or(error)
    }
}

//! Batch files: opens the one that a run reads and takes over its options, or creates the one that a run writes, with the
//! script that reads it.

use crate::cli::batch_script;
use crate::cmd::input_files::InputFiles;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::filter::{self, Parsed};
use crate::flist::Kind;
use crate::fs::root::Dir;
use crate::fs::{sys, trusted_path, unnamed_file};
use crate::options::{LinkOwners, Options};
use crate::proto::rsync::batch::BatchHeader;
use crate::proto::rsync::decode_error::DecodeError;
use crate::proto::rsync::handshake::VERSIONS;
use crate::report::early_line;
use crate::report::escape::Charset;
use crate::report::event::errno_words;
use crate::rsync::batch::player::{BatchFile, not_copied};
use crate::rsync::batch::recorded_options;
use crate::rsync::batch::recorder::BatchRecorder;
use crate::walk::arg_path;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt};
use std::sync::Arc;

/// Where a batch that cannot be read twice is copied to, unless `TMPDIR` names another directory.
const TEMP_DIR: &[u8] = b"/tmp";

/// Opens the batch file that a run reads, and reads its header. Changes the options to those of the file, and prints
/// which ones under `-v`.
pub fn open(env: &mut Env, name: &[u8], options: &mut Options) -> Result<(BatchFile, BatchHeader)> {
    let newest = options.connect.protocol.unwrap_or(*VERSIONS.end());
    let mut file = open_file(env, name, options)?;
    let header = BatchHeader::decode(&mut file, newest);
    if let Some(error) = file.copy_failure() {
        return Err(error);
    }
    let header = header.map_err(|error| unreadable(env, name, error))?;
    let mut lines = Vec::new();
    let taken = recorded_options::take_over(&header, options, &mut lines);
    if options.output.verbose > 0 && !options.output.quiet {
        let charset = Charset::for_locale(super::utf8_locale(env), options.output.eight_bit);
        let mut text = Vec::new();
        for line in &lines {
            early_line::put(&mut text, line.as_bytes(), &options.output, charset);
        }
        // A lost notice does not affect the copy.
        let _ = env
            .stdout
            .write_all(&text)
            .and_then(|()| env.stdout.flush());
    }
    taken.map(|()| (file, header))
}

fn unreadable(env: &Env, name: &[u8], error: DecodeError) -> Error {
    let shown = String::from_utf8_lossy(&arg_path::absolute(&env.cwd, name)).into_owned();
    let (exit, cause) = match error {
        DecodeError::Violation { exit, cause } => return Error::new(exit, cause).by("Receiver"),
        DecodeError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            (Exit::Stream, "the file is too short".to_owned())
        }
        DecodeError::Io(error) => (
            Exit::FileIo,
            String::from_utf8_lossy(&errno_words(&error)).into_owned(),
        ),
    };
    Error::new(
        exit,
        format!("sparsync: cannot read the batch file {shown}: {cause}"),
    )
    .by("Receiver")
}

/// Opens a batch file. What cannot be read twice is copied while it is read.
fn open_file(env: &Env, name: &[u8], options: &Options) -> Result<BatchFile> {
    let is_stdin = name == b"-";
    let opened = if is_stdin {
        io::stdin().as_fd().try_clone_to_owned()
    } else {
        trusted_path::open_file(name, options.preserve.link_owners)
    };
    let not_opened = |error: io::Error| not_opened(env, name, &error, Exit::FileIo);
    let fd = opened.map_err(not_opened)?;
    if !is_stdin {
        match Kind::of_mode(sys::fstat(fd.as_fd()).map_err(not_opened)?.mode) {
            Some(Kind::File) => return Ok(BatchFile::new(fd, 0)),
            // Of special files, only a fifo can be opened.
            Some(Kind::Special) => {}
            Some(Kind::Dir | Kind::Symlink | Kind::Device) | None => {
                let start = b"Batch file \"".as_slice();
                let end = b"\" is neither a regular file nor a FIFO";
                let shown = arg_path::absolute(&env.cwd, name);
                let line = [start, &shown, end].concat();
                return Err(Error::new(Exit::FileIo, line).by("Receiver"));
            }
        }
    }
    let dir = env
        .var("TMPDIR")
        .map_or_else(|| TEMP_DIR.to_vec(), OsStringExt::into_vec);
    let to = temp_file(&dir).map_err(|error| not_copied(&dir, &error))?;
    Ok(BatchFile::of_stream(File::from(fd), to, dir))
}

/// Creates a file without a name.
fn temp_file(dir: &[u8]) -> io::Result<OwnedFd> {
    let dir = Dir::new(trusted_path::open_dir_to_search(dir, LinkOwners::Trusted)?);
    let (file, _) = unnamed_file::create_unnamed(&dir, b"sparsync-batch")?;
    Ok(file)
}

/// A batch file that a run writes.
pub struct WrittenBatch {
    /// Writes the file.
    pub recorder: Arc<BatchRecorder>,
    script: OwnedFd,
    /// The path of the script, for messages.
    path: Vec<u8>,
}

/// What the name of the script ends with.
const SCRIPT_SUFFIX: &[u8] = b".sh";

/// Creates a batch file and its script, both empty.
pub fn create(env: &Env, name: &[u8], is_only: bool, options: &Options) -> Result<WrittenBatch> {
    let create = |name: &[u8], mode: u32| {
        let opened =
            trusted_path::open_append(name, mode & !env.umask, options.preserve.link_owners);
        opened
            .and_then(emptied)
            .map_err(|error| not_opened(env, name, &error, Exit::FileSelect))
    };
    let path = [name, SCRIPT_SUFFIX].concat();
    let script = create(&path, 0o700)?;
    let file = File::from(create(name, 0o600)?);
    let recorder = BatchRecorder::new(file, arg_path::absolute(&env.cwd, name), is_only);
    Ok(WrittenBatch {
        recorder: Arc::new(recorder),
        script,
        path,
    })
}

/// Removes the content of a file that was opened for writing. A fifo or a device has none to remove.
fn emptied(fd: OwnedFd) -> io::Result<OwnedFd> {
    if Kind::of_mode(sys::fstat(fd.as_fd())?.mode) == Some(Kind::File) {
        sys::truncate(fd.as_fd(), 0)?;
    }
    Ok(fd)
}

impl WrittenBatch {
    /// Writes the script. The rules of `-C` are not in it, because its options have that.
    pub fn put_script(
        &self,
        env: &Env,
        options: &Options,
        dest: Option<&[u8]>,
        rules: &InputFiles,
    ) -> Result<()> {
        let mut parsed = &rules.parsed[..];
        if options.select.cvs_exclude {
            let of_cvs =
                filter::cvs_rules(rules.cvs_home.as_deref(), rules.cvs_env.as_deref()).len();
            parsed = &parsed[..parsed.len().saturating_sub(of_cvs)];
        }
        let is_rule = |parsed: &&Parsed| {
            !matches!(parsed, Parsed::Nothing | Parsed::TooLong(_) | Parsed::Clear)
        };
        let rules: Vec<_> = parsed.iter().filter(is_rule).map(Parsed::text).collect();
        if rules.iter().any(|rule| rule.contains(&b'\n')) {
            let words =
                "cannot write a filter rule containing a newline to the batch replay script";
            return Err(Error::usage(words).by("sender"));
        }
        let words: Vec<_> = env
            .args
            .iter()
            .map(|word| word.as_bytes().to_vec())
            .collect();
        let protocol = options.connect.protocol.unwrap_or(*VERSIONS.end());
        let program = env.program.as_bytes();
        let text =
            batch_script::script(program, &words, dest.unwrap_or_default(), &rules, protocol);
        sys::write_all(self.script.as_fd(), &text).map_err(|error| {
            let start = b"sparsync: cannot write the script ".as_slice();
            Error::new(
                Exit::FileIo,
                [start, &self.path, b": ", &errno_words(&error)].concat(),
            )
        })
    }
}

/// Returns the error for a batch file that cannot be opened.
fn not_opened(env: &Env, name: &[u8], error: &io::Error, exit: Exit) -> Error {
    let shown = arg_path::absolute(&env.cwd, name);
    let line = [
        b"rsync: [Receiver] Batch file \"",
        &shown[..],
        b"\" open error: ",
        &errno_words(error),
    ]
    .concat();
    Error::new(exit, trusted_path::with_refusal(error, line)).by("Receiver")
}

//! Carries out what was decided, below the destination's root and through open directories only.
//!
//! Whoever calls knows why; here it does not matter whether a run is a mirror or a backup.

pub mod attrs;
pub mod backup;
pub mod content;
pub mod delayed;
mod digesting;
pub mod entry;
pub mod file;
pub mod late;
pub mod leaving;
pub mod links;
pub mod partial;
pub mod remove;
pub mod similar;

use crate::digest::{By, Comparison};
use crate::error::Error;
use crate::exit::Exit;
use crate::fs::copy::Abilities;
use crate::fs::read::Wanted;
use crate::fs::root::{Dir, Root};
use crate::fs::{acl, errno, operator, sys};
use crate::options::Options;
use crate::path::RelPath;
use crate::plan::{Policy, chmod};
use crate::proto::{Basis, ContentDigest, FileId};
use crate::report::event::{Event, Problem, Weight};
use crate::report::format::Format;
use crate::report::tally::Tally;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

/// What everyone who writes must know. Shared by all appliers.
pub struct Context<'a> {
    /// The settled options.
    pub options: &'a Options,
    /// What decisions were made by, for the attributes that are kept.
    pub policy: &'a Policy,
    /// The destination's top; `None` in a listing, and in a dry run that would make it.
    pub dest: Option<&'a Root>,
    /// The destination's path, for messages.
    pub dest_path: &'a [u8],
    /// What is asked of what lies at the destination.
    pub wanted: &'a Wanted<'a>,
    /// Where `--backup-dir` leads.
    pub backup: Option<&'a backup::BackupDir>,
    /// Where `--temp-dir` leads.
    pub temp_dir: Option<&'a TempDir>,
    /// How many threads may work on one file.
    pub threads: usize,
    /// The umask the process had when it started.
    pub umask: u32,
    /// It may do what only a super-user may.
    pub is_super: bool,
    /// What the file systems have turned out not to do.
    pub abilities: Abilities,
    /// The run is being stopped.
    pub stop: &'a AtomicBool,
    /// A line for each entry is wanted.
    pub wants: crate::report::Wants,
    /// Waits as `--bwlimit` says after so many bytes.
    pub throttle: Option<&'a (dyn Fn(u64) + Sync)>,
    /// Compares contents under `-c`: source directory and name, destination's.
    pub compare: &'a crate::role::scan::Compare<'a>,
    /// Files that were transferred a second time, by path: told at the end.
    pub again: Mutex<Vec<(RelPath, Event)>>,
    /// What the last touches share.
    pub late: Arc<late::LateNotes>,
    /// The peer who has the source, if it is not on this machine.
    pub wire: Option<&'a dyn Wire>,
    /// A file is told of once it is open for writing, as rsync's client does when it receives.
    pub tells_when_open: bool,
    /// Alternate destinations.
    pub alternates: &'a [crate::role::scan::alternate::Alternate],
    /// Similar files that new ones begin with.
    pub chosen: similar::Chosen,
    /// Files whose names wait for the end (`--delay-updates`).
    pub delayed: Mutex<Vec<delayed::DelayedFile>>,
}

/// What is told each time that a path of the options would lead through a symlink of an untrusted user.
pub fn refusal() -> Event {
    Event::Problem(Problem::said(operator::REFUSAL, Weight::Warning))
}

/// Where `--temp-dir` leads.
pub enum TempDir {
    /// To this directory.
    Open(Dir),
    /// Nowhere: a symlink of an untrusted user is on the way, which each file is told that would be made there.
    Refused,
}

impl Context<'_> {
    /// What the modes of new entries depend on.
    pub fn mode_rule(&self) -> chmod::ModeRule {
        let preserve = &self.policy.preserve;
        chmod::ModeRule { perms: preserve.perms, executability: preserve.executability, umask: self.umask }
    }

    /// Whether nothing may be changed.
    pub fn is_dry(&self) -> bool {
        self.options.dry_run || self.policy.list_only
    }

    /// The absolute path of something at the destination, for messages.
    pub fn full(&self, path: &[u8]) -> Vec<u8> {
        crate::path::join(self.dest_path, path)
    }

    /// The directory in each directory where `--delay-updates` keeps files until the end.
    pub fn staging_name(&self) -> &[u8] {
        // One place for all directories would mix up files of one name.
        self.options.place.partial_dir.as_deref().filter(|dir| !dir.starts_with(b"/")).unwrap_or(b".~tmp~")
    }

    /// An error if the run is being stopped.
    pub fn go_on(&self) -> Result<(), Error> {
        if self.stopped() { Err(Error::new(Exit::Signal, "").by("sender")) } else { Ok(()) }
    }

    /// Whether files are brought up to date by what differs in them.
    pub fn finds_differences(&self) -> bool {
        self.options.delta.whole_file.map_or(self.wire.is_some(), |whole| !whole)
    }

    /// Whether what a crash leaves of a file of this length shall be gone on with.
    pub fn resumes(&self, len_bytes: u64) -> bool {
        crate::role::scan::dest::resumes(self.options, self.wire.is_some(), len_bytes)
    }

    /// Whether a repeated transfer is reported: as in rsync, only if names or changes are printed.
    pub fn tells_retries(&self) -> bool {
        let output = &self.options.output;
        match &output.out_format {
            Some(format) => output.verbose >= 1 || Format::parse(format).has_itemize(),
            None => output.info.name >= 1 || output.itemize > 0,
        }
    }

    /// Whether the run is being stopped.
    pub fn stopped(&self) -> bool {
        self.stop.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Whether the run is being stopped, or has lost its peer: what takes long is not worth going on with.
    pub fn is_over(&self) -> bool {
        self.stopped() || self.wire.is_some_and(Wire::is_silent)
    }

    /// The digest that `%C` shows, of what is left to read of a file, or of `len_bytes` where devices take part, which need
    /// not have an end; `None` if it cannot be read, or the run is over.
    fn shown_digest(&self, file: BorrowedFd<'_>, len_bytes: u64) -> Option<Vec<u8>> {
        let is_bounded = self.options.select.copy_devices || self.options.preserve.write_devices;
        let mut left_bytes = if is_bounded { len_bytes } else { u64::MAX };
        let read = |piece: &mut [u8]| {
            if self.is_over() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let want = usize::try_from(left_bytes).map_or(piece.len(), |left| left.min(piece.len()));
            let got = sys::read(file, &mut piece[..want])?;
            left_bytes -= got as u64;
            Ok(got)
        };
        crate::digest::shown(self.options.check.shown_sum(), read).ok().flatten()
    }
}

/// A peer who has the source: its files' content is asked for and comes as a stream.
pub trait Wire: Sync {
    /// Asks for the content of a file; what comes is taken in the order of asking, see [`crate::proto::Lane`].
    fn want(&self, file: FileId, basis: Basis) -> Result<(), Error>;
    /// Takes the content of a file that was asked for, or comes unasked, or is asked for with this.
    fn open(&self, file: FileId, comes_unasked: bool) -> Result<Box<dyn Incoming + '_>, Error>;
    /// Asks for the content of a file once more, without a basis, because what came was not right.
    fn again(&self, file: FileId) -> Result<Box<dyn Incoming + '_>, Error>;
    /// The content of a file that comes unasked is not needed.
    fn decline(&self, file: FileId);
    /// The run ends with an error: nobody need wait for what comes any more.
    fn give_up(&self, error: &Error);
    /// Nothing will come any more.
    fn is_silent(&self) -> bool;
    /// How the connection was lost; `None`: it was not, or the user asked the run to stop.
    fn loss(&self) -> Option<Loss>;
    /// By what contents are compared that both ends have.
    fn compared_by(&self) -> &Comparison;
    /// A file has its name: `--remove-source-files`.
    fn placed(&self, file: FileId) -> Result<(), Error>;
}

/// What follows the loss of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The run ends.
    Final,
    /// The client repeats the run, so nothing unfinished may have its final name.
    Repeated,
}

/// The content of one file as it comes.
pub trait Incoming {
    /// Waits for the first piece: whether the sender's file does not begin as the receiver said ([`Piece::Unsent`] without
    /// a problem).
    fn begins_otherwise(&mut self) -> Result<bool, Error>;
    /// Waits for the first piece: why the file does not come, if it does not.
    fn refusal(&mut self) -> Result<Option<Problem>, Error>;
    /// By what the content is digested, unless it comes whole in one piece.
    fn digested_by(&self) -> By;
    /// The next piece; an error: the connection is lost.
    fn next(&mut self) -> Result<Piece, Error>;
}

/// A piece of a file's content.
#[derive(Debug)]
pub enum Piece {
    /// The next bytes.
    Data(Vec<u8>),
    /// The next bytes are these of the basis.
    Copy {
        /// Where they begin in the basis.
        offset_bytes: u64,
        /// How many.
        len_bytes: u64,
    },
    /// All of it, and its [`crate::digest::whole`]; nothing came before and nothing follows.
    Whole(Vec<u8>, ContentDigest),
    /// That was all; the digest of the whole.
    End(ContentDigest),
    /// It does not come, or not to its end, and why; `None`: its beginning is not what was said.
    Unsent(Option<Problem>),
}

impl Piece {
    /// Whether nothing of the file follows.
    pub fn is_last(&self) -> bool {
        matches!(self, Piece::Whole(..) | Piece::End(_) | Piece::Unsent(_))
    }
}

/// A directory of the destination in which work is done.
pub struct Spot {
    /// Its path.
    pub path: RelPath,
    /// Open; `None` in a dry run where it does not exist.
    pub dir: Option<Dir>,
    /// Its last touch, when all work in and below it is done.
    pub last: Arc<late::LastTouch>,
    new_ids: OnceLock<Option<(u32, u32)>>,
    default_acl: OnceLock<Option<Vec<u8>>>,
}

impl Spot {
    /// A place to work in.
    pub fn new(path: RelPath, dir: Option<Dir>, last: Arc<late::LastTouch>) -> Spot {
        Spot { path, dir, last, new_ids: OnceLock::new(), default_acl: OnceLock::new() }
    }

    /// Owner and group of files that are made here; found out with the first one, because directories
    /// and mounts may pass their group on.
    pub fn new_ids(&self, first: BorrowedFd<'_>) -> Option<(u32, u32)> {
        *self.new_ids.get_or_init(|| sys::fstat(first).ok().map(|stat| (stat.uid, stat.gid)))
    }

    /// The default ACL, which new files inherit; empty if it cannot be read.
    pub fn default_acl(&self) -> Option<&[u8]> {
        let read = || match sys::fgetxattr(self.dir.as_ref()?.fd(), acl::DEFAULT) {
            Ok(acl) => acl,
            Err(error) => (!errno::is_unsupported(&error)).then(Vec::new),
        };
        self.default_acl.get_or_init(read).as_deref()
    }

    /// What the directory gives directories that are made in it.
    pub fn passes_on(&self) -> chmod::Parent {
        let setgid = self.dir.as_ref().and_then(|dir| sys::fstat(dir.fd()).ok()).is_some_and(|s| s.mode & 0o2000 != 0);
        chmod::Parent { default_acl_mode: self.default_acl_mode(), setgid }
    }

    /// The permission bits that the default ACL lets files have.
    pub fn default_acl_mode(&self) -> Option<u32> {
        self.default_acl().and_then(acl::default_mode)
    }
}

/// Tells events at once if it is their turn, and empties the list then; `false`: it is not.
pub type Live<'a> = &'a dyn Fn(&mut Vec<Event>) -> bool;

/// What came of a piece of work: told in list order, added up in any.
#[derive(Default)]
pub struct Outcome<'a> {
    /// In order.
    pub events: Vec<Event>,
    /// Counts.
    pub tally: Tally,
    /// The run cannot go on.
    pub fatal: Option<crate::error::Error>,
    /// For what must be seen while it happens.
    pub live: Option<Live<'a>>,
    /// Told once the file under work is open for writing; not at all if it never is.
    pub begun: Vec<Event>,
}

//! What the destination argument turns out to be: found, or made.

use super::source;
use super::terms::Terms;
use crate::error::Error;
use crate::exit::Exit;
use crate::flist::Kind;
use crate::fs::errno;
use crate::fs::operator;
use crate::fs::root::{Dir, Root};
use crate::fs::sys::{self, Follow};
use crate::options::LinkOwners;
use crate::path;
use crate::report::event::{Problem, Voice};
use std::io;

/// What of the sources the destination's meaning depends on.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The arguments came to nothing at all. The destination is found or made nevertheless, as if for one file.
    pub is_empty: bool,
    /// The name of the one entry that the list consists of, if it is one and no directory.
    pub single: Option<Vec<u8>>,
    /// The one argument is a directory, and whether nothing is in it.
    pub lone_dir_is_bare: Option<bool>,
    /// The content of a directory is the transfer's root.
    pub has_top: bool,
}

/// What the destination turned out to be.
pub struct Destination {
    /// Its top; `None` where it does not exist (dry run).
    pub root: Option<Root>,
    /// Its absolute path, for messages.
    pub path: Vec<u8>,
    /// The one entry's new name.
    pub renamed: Option<Vec<u8>>,
    /// Its permission bits, where it had to be opened up for its owner.
    pub mode_before: Option<u32>,
    /// It was not there before.
    pub is_new: bool,
    /// Lines about directories that were made for it.
    pub made: Vec<Vec<u8>>,
}

impl Destination {
    /// Finds or makes the destination.
    pub fn find(terms: &Terms<'_>, dest: Option<&[u8]>, facts: &Facts) -> Result<Destination, Error> {
        let Some(arg) = dest else {
            return Ok(Destination {
                root: None,
                path: Vec::new(),
                renamed: None,
                mode_before: None,
                is_new: false,
                made: Vec::new(),
            });
        };
        let full = source::absolute(terms.cwd, arg);
        let arg: &[u8] = if arg.is_empty() { b"." } else { arg };
        let file_error = |what: &str, path: &[u8], error: &io::Error| {
            let problem = Problem::failed(Voice::MainReceiver, what, path, error);
            Error::new(Exit::FileIo, problem.line).by("Receiver")
        };
        let follow = if terms.options.preserve.keep_dirlinks { Follow::Inside } else { Follow::Never };
        let owners = terms.options.preserve.link_owners;
        // rsync numbers the places where it enters a directory.
        let cannot_enter = |place: &str, full: &[u8], error: &io::Error| {
            let problem = Problem::failed(Voice::MainReceiver, place, full, error);
            Error::new(Exit::FileSelect, operator::with_refusal(error, problem.line)).by("Receiver")
        };
        let open = |path: &[u8], full: Vec<u8>, place: &str| -> Result<Root, Error> {
            let fd = operator::open_dir(path, owners).map_err(|error| cannot_enter(place, &full, &error))?;
            Ok(Root::new(Dir::new(fd), full, follow))
        };
        let lone_dir_is_bare = facts.lone_dir_is_bare == Some(true);
        match sys::stat_path(arg, true) {
            Ok(stat) if Kind::of_mode(stat.mode) == Some(Kind::Dir) => {
                let opens_up = facts.has_top && !terms.options.dry_run;
                let (dir, mode_before) = enter(arg, stat.mode, opens_up, owners).map_err(|error| {
                    // Told as it was given, with its slash.
                    let given = if arg.ends_with(b"/") { [&full, &b"/"[..]].concat() } else { full.clone() };
                    cannot_enter("change_dir#1", &given, &error)
                })?;
                return Ok(Destination {
                    root: Some(Root::new(dir, full.clone(), follow)),
                    path: full,
                    renamed: None,
                    mode_before,
                    is_new: false,
                    made: Vec::new(),
                });
            }
            Ok(_) if lone_dir_is_bare => {
                let line = "ERROR: cannot overwrite non-directory with a directory";
                return Err(Error::new(Exit::FileSelect, line).by("Receiver"));
            }
            Ok(_) if facts.single.is_none() && !facts.is_empty => {
                let line = "ERROR: destination must be a directory when copying more than 1 file";
                return Err(Error::new(Exit::FileSelect, line).by("Receiver"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotADirectory && terms.options.place.mkpath => {
                let shown = if arg.ends_with(b"/") { [&full, &b"/"[..]].concat() } else { full };
                let is_one = !arg.ends_with(b"/") && (facts.single.is_some() || lone_dir_is_bare || facts.is_empty);
                return Err(file_error("mkdir", &shown, &cannot_make_below(terms, &shown, is_one)));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let shown = if arg.ends_with(b"/") { [&full, &b"/"[..]].concat() } else { full };
                let mut line = b"rsync: [Receiver] ERROR: cannot stat destination \"".to_vec();
                line.extend_from_slice(&shown);
                line.extend_from_slice(b"\": ");
                line.extend_from_slice(&crate::report::event::errno_words(&error));
                return Err(Error::new(Exit::FileSelect, line).by("Receiver"));
            }
            _ => {}
        }
        let trailing = arg.ends_with(b"/");
        let trimmed_end = arg.iter().rposition(|&b| b != b'/').map_or(arg.len(), |at| at + 1);
        let arg = &arg[..trimmed_end];
        // A list of one entry gets the destination as its name.
        let is_one = !trailing && (facts.single.is_some() || lone_dir_is_bare || facts.is_empty);
        let parent: &[u8] = match path::split_parent(arg).0 {
            b"" if arg.starts_with(b"/") => b"/",
            b"" => b".",
            parent => parent,
        };
        let mut made = Vec::new();
        if terms.options.place.mkpath {
            let wanted = if is_one { parent } else { arg };
            let count = make_path(terms, wanted).map_err(|error| file_error("mkdir", &full, &error))?;
            if count > 0 {
                let what = if count == 1 { "directory" } else { "directories" };
                made.push([format!("created {count} {what} for ").as_bytes(), wanted].concat());
            }
        }
        if is_one {
            let parent_full = source::absolute(terms.cwd, parent);
            let there = sys::stat_path(parent, true);
            let root = match there {
                Ok(_) => Some(open(parent, parent_full.clone(), "change_dir#3")?),
                Err(_) if terms.options.dry_run && terms.options.place.mkpath => None,
                Err(error) => return Err(cannot_enter("change_dir#3", &parent_full, &error)),
            };
            if !facts.has_top {
                let renamed = Some(path::file_name(arg).to_vec());
                return Ok(Destination { root, path: parent_full, renamed, mode_before: None, is_new: false, made });
            }
        }
        let exists = terms.options.place.mkpath && !is_one && !terms.options.dry_run;
        if !terms.options.dry_run
            && !exists
            && let Err(error) = sys::mkdir_path(arg, 0o777 & !terms.umask)
        {
            return Err(file_error("mkdir", &full, &error));
        }
        if !exists && !is_one {
            made.push([b"created directory ", arg].concat());
        }
        let root = if terms.options.dry_run { None } else { Some(open(arg, full.clone(), "change_dir#2")?) };
        Ok(Destination { root, path: full, renamed: None, mode_before: None, is_new: !exists, made })
    }
}

/// Enters the directory that is the destination. One that its owner may enter and not list is opened up where that is
/// wanted, and its mode before returned; else it is opened for what can be done in it by name.
fn enter(path: &[u8], mode: u32, opens_up: bool, owners: LinkOwners) -> io::Result<(Dir, Option<u32>)> {
    let mode = mode & 0o7777;
    let open = |path: &[u8]| operator::open_dir(path, owners);
    let dir = source::enter_by(path, &open, &|path| operator::open_dir_to_search(path, owners))?;
    if opens_up
        && mode & 0o400 == 0
        && open(path).is_err()
        && sys::chmod(dir.fd(), b".", mode | 0o700).is_ok()
        && let Ok(fd) = open(path)
    {
        return Ok((Dir::new(fd), Some(mode)));
    }
    Ok((dir, None))
}

/// Why no path can be made below something that is no directory, in the kernel's words as rsync comes to hear them: they
/// depend on how much of it is missing.
fn cannot_make_below(terms: &Terms<'_>, path: &[u8], is_one: bool) -> io::Error {
    let mut there = path;
    let mut missing = 0usize;
    while sys::stat_path(there, true).is_err() && !there.is_empty() {
        let trimmed = there.strip_suffix(b"/");
        there = trimmed.unwrap_or_else(|| path::split_parent(there).0);
        missing += usize::from(trimmed.is_none());
    }
    match missing - usize::from(is_one && missing > 0) {
        _ if terms.options.dry_run => errno::not_a_directory(),
        0 => errno::exists(),
        1 => errno::not_a_directory(),
        _ => errno::outside(),
    }
}

/// Makes a directory with those above it (`--mkpath`), or finds out what would be made; how many were missing.
fn make_path(terms: &Terms<'_>, path: &[u8]) -> io::Result<usize> {
    match sys::stat_path(path, true) {
        Ok(_) => return Ok(0),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Err(_) => {}
    }
    let parent = path::split_parent(path).0;
    let above = if parent.is_empty() { 0 } else { make_path(terms, parent)? };
    if !terms.options.dry_run {
        sys::mkdir_path(path, 0o777 & !terms.umask)?;
    }
    Ok(above + 1)
}

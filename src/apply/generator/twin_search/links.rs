//! Which files of alternate trees can be linked.

use super::TwinSearch;
use crate::flist::Kind;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::walk::DirPlan;
use std::collections::HashSet;
use std::io;

/// Which files must not be linked, because the destination has a name of them, or gets one. Another one would make files
/// that are not linked at the source names of one file.
#[derive(Default)]
pub(super) struct LinkSearch {
    /// The lengths of the files that matter.
    pub(super) lens_bytes: HashSet<u64>,
    /// Device and inode of those of the destination.
    pub(super) has_name: HashSet<(u64, u64)>,
}

impl TwinSearch<'_> {
    /// Has files of alternate trees copied instead of linked.
    pub(in crate::apply::generator) fn never_link(&mut self) {
        self.links = None;
    }

    /// Notes the files of which the destination has a name in this directory, or gets one from an alternate tree, in this run
    /// or a later one.
    pub(super) fn note_names(&mut self, plan: &DirPlan) {
        let Some(links) = &mut self.links else {
            return;
        };
        let path = &plan.found.listing.path;
        let source = &plan.found.listing.list;
        let mut noted = Ok(());
        for alternate in self.context.alternates {
            let of_source = source.entries.iter().filter(|entry| {
                entry.kind() == Kind::File && links.lens_bytes.contains(&entry.len_bytes)
            });
            let names: Vec<_> = of_source
                .map(|entry| (source.name(entry), Some(entry.len_bytes)))
                .collect();
            let opened = || alternate.open_dir(path);
            noted = noted.and_then(|()| note_files(opened, &names, &mut links.has_name));
        }

        let list = &plan.found.dest.list;
        let mut names = Vec::new();
        for entry in &list.entries {
            // The attributes of an entry that the source lacks are not known.
            let may_matter = entry.len_bytes == 0 || links.lens_bytes.contains(&entry.len_bytes);
            if entry.kind() == Kind::File && may_matter {
                names.push((list.name(entry), None));
            }
        }
        if let Some(dest) = self.context.dest {
            let opened = || dest.open_dir_to_search(path);
            noted = noted.and_then(|()| note_files(opened, &names, &mut links.has_name));
        }
        if noted.is_err() {
            self.never_link();
        }
        self.limit_names();
    }

    /// Has files copied instead of linked if the destination has names of too many.
    pub(super) fn limit_names(&mut self) {
        let is_full = |links: &LinkSearch| links.has_name.len() > self.new_max;
        if self.links.as_ref().is_some_and(is_full) {
            self.never_link();
            self.is_cut = true;
        }
    }

    /// Notes which candidates can be linked.
    pub(super) fn permit_links(&mut self) {
        let Some(links) = &self.links else { return };
        // The destination may have a name of any file.
        if self.is_cut {
            return;
        }
        self.found
            .permit_links(|inode| !links.has_name.contains(&inode));
    }
}

/// Adds device and inode of the files with these names in a directory, and with these lengths, to a set. Does nothing if
/// there is none.
fn note_files(
    opened: impl FnOnce() -> io::Result<Dir>,
    names: &[(&[u8], Option<u64>)],
    inodes: &mut HashSet<(u64, u64)>,
) -> io::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let dir = match opened() {
        Ok(dir) => dir,
        Err(error) if is_missing(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    for (name, len_bytes) in names {
        let stat = match sys::stat(dir.fd(), name, false) {
            Ok(stat) => stat,
            Err(error) if is_missing(&error) => continue,
            Err(error) => return Err(error),
        };
        if len_bytes.is_none_or(|len_bytes| len_bytes == stat.len_bytes) {
            inodes.insert((stat.dev, stat.ino));
        }
    }
    Ok(())
}

/// Returns whether a path leads to nothing.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

//! The result of gathering the source arguments: the tree of named entries, and facts about the list.

use crate::error::Result;
use crate::filter::{Side, Verdict};
use crate::flist::entry::Stat;
use crate::flist::{Entry, Kind};
use crate::fs::read::{EntryAt, Incomplete, Wanted};
use crate::fs::root::Dir;
use crate::fs::sys::{self, Follow};
use crate::path::{self, RelPath};
use crate::report::event::{ErrorRole, Problem, Weight};
use crate::report::tally::Tally;
use crate::walk::arg_path::trim_slashes;
use crate::walk::dir_plan::{unreadable_attribute, unreadable_or_fatal};
use crate::walk::dir_rules::enter_dir;
use crate::walk::run_context::RunContext;
use crate::walk::source_dir::Base;
use crate::walk::source_task::{Listing, NamedContent, NamedEntry, Node, Origin, SourceTask};
use std::sync::Arc;

/// The result of gathering the arguments.
#[derive(Default)]
pub struct Gathered {
    /// The tree of named entries, from the transfer's root.
    pub node: Arc<Node>,
    /// The directory whose content is the root, with its stat data.
    pub top: Option<(Stat, Arc<Base>)>,
    /// `top` is only implied, and gets no attributes (`--no-implied-dirs`): only some lists have it; see [`Gathered::sends_top`].
    pub top_is_bare: bool,
    /// How many more directories have their content as the root. Each counts in the list.
    pub tops_more: u64,
    /// How long the arguments took to be examined, in milliseconds; at least 1, as with rsync.
    pub listing_ms: u64,
    /// Problems that are reported first.
    pub problems: Vec<Problem>,
    /// Lines for stdout.
    pub notes: Vec<Vec<u8>>,
    /// The name of the only entry, if the list is one entry and that is not a directory. This includes a missing one
    /// that is to be deleted (`--delete-missing-args`). A destination that is not a directory is then its new name.
    pub single: Option<Vec<u8>>,
    /// The only argument, if it is a directory, and nothing above it is listed. If the directory is empty, the list has
    /// one entry, too.
    pub lone_dir: Option<LoneDir>,
    /// The directories that are copied completely, each relative to its base.
    pub whole: Vec<(Arc<Base>, RelPath)>,
    /// Names to delete at the destination (`--delete-missing-args`).
    pub missing: Vec<RelPath>,
    /// How many arguments were found.
    pub found: usize,
}

impl Gathered {
    /// Returns the task of the root.
    pub fn task(&self, renamed: Option<&[u8]>) -> SourceTask {
        let origins = self
            .node
            .origins
            .iter()
            .map(|origin| Origin {
                listing: match (renamed, &origin.listing) {
                    (Some(new), Listing::Named(names)) => Listing::Named(Arc::new(
                        // A directory is renamed only if it is known to be empty.
                        names
                            .iter()
                            .map(|named| NamedEntry {
                                renamed: Some(new.to_vec()),
                                content: NamedContent::None,
                                ..named.clone()
                            })
                            .collect(),
                    )),
                    (_, listing) => listing.clone(),
                },
                ..origin.clone()
            })
            .collect();
        SourceTask {
            path: RelPath::root(),
            origins,
            node: Some(self.node.clone()),
        }
    }

    /// Whether the receiver gets the transfer's root. `lists_bare_top`: also one that gets no attributes.
    pub fn sends_top(&self, lists_bare_top: bool) -> bool {
        self.top.is_some() && (lists_bare_top || !self.top_is_bare)
    }

    /// Returns the entry of the directory whose content is the transfer's root, as the source has it; `None` if there
    /// is none, or if it cannot be read completely, which adds to `problems`.
    pub fn top_entry(
        &self,
        wanted: Wanted<'_>,
        problems: &mut Vec<Problem>,
    ) -> Result<Option<Entry>> {
        let Some((stat, base)) = &self.top else {
            return Ok(None);
        };
        let root = match base.root.open() {
            Ok(root) => root,
            Err(error) => {
                let problem =
                    Problem::failed(ErrorRole::Sender, "opendir", base.root.path(), &error);
                problems.push(problem.weighing(Weight::SourceError));
                return Ok(None);
            }
        };
        let mut entry = Entry::from_stat(stat);
        let full = || base.root.full(b".");
        let path = || b".".to_vec();
        let at = EntryAt {
            dir: root.dir(),
            name: b".",
            stat,
            full: &full,
            path: &path,
        };
        match wanted.complete_source(&mut entry, &at) {
            Ok(None) => Ok(Some(entry)),
            Ok(Some((text, error))) => {
                let incomplete = Incomplete::Failed(text, error);
                problems.push(unreadable_attribute("sender", incomplete, Weight::Failed));
                Ok(Some(entry))
            }
            Err(incomplete) => {
                let weight = Weight::SourceError;
                problems.push(unreadable_or_fatal("sender", incomplete, weight)?);
                Ok(None)
            }
        }
    }

    /// Counts the list entries that are in no directory: missing arguments, and the roots beyond the first. The generator
    /// counts the first one.
    pub fn count(&self, tally: &mut Tally, lists_bare_top: bool) {
        let is_top_missing = self.top.is_some() && !self.sends_top(lists_bare_top);
        for _ in 0..self.tops_more + u64::from(is_top_missing) {
            tally.list(Kind::Dir, 0, 1);
        }
        for name in &self.missing {
            tally.list(Kind::File, 0, name.as_bytes().len());
        }
        tally.list_generation_ms += self.listing_ms;
    }

    /// Whether a directory lies inside one that is copied completely.
    pub fn reaches(&self, dest: &Dir) -> bool {
        let Ok(dest) = sys::path_of(dest.fd()) else {
            return false;
        };
        let mut known: Option<(&Arc<Base>, Vec<u8>)> = None;
        self.whole.iter().any(|(base, path)| {
            let is_known = known
                .as_ref()
                .is_some_and(|(other, _)| Arc::ptr_eq(other, base));
            if !is_known {
                known = Some((
                    base,
                    base.root
                        .open()
                        .and_then(|root| sys::path_of(root.dir().fd()))
                        .unwrap_or_default(),
                ));
            }
            let above = known
                .as_ref()
                .map_or_else(Vec::new, |(_, top)| path::join(top, path.as_bytes()));
            dest.strip_prefix(trim_slashes(&above))
                .is_some_and(|rest| rest.starts_with(b"/") && rest.len() > 1)
        })
    }
}

/// The only entry of the arguments, if it is a directory.
#[derive(Debug)]
pub struct LoneDir {
    pub(super) base: Arc<Base>,
    /// Its path below `base`; the root if only its content is named.
    pub(super) path: RelPath,
    /// Its content takes part.
    pub(super) has_content: bool,
}

impl LoneDir {
    /// Returns whether nothing in the directory takes part.
    pub fn is_bare(&self, run_context: &RunContext<'_>) -> bool {
        if !self.has_content {
            return true;
        }
        // A descriptor of its own, because listings go on from the current position.
        let name: &[u8] = if self.path.is_root() {
            b"."
        } else {
            self.path.as_bytes()
        };
        let opened = self
            .base
            .root
            .open()
            .and_then(|root| sys::open_dir(root.dir().fd(), name, Follow::Anywhere));
        let Ok(dir) = opened.map(Dir::new) else {
            return true;
        };
        if run_context.options.select.open_noatime {
            // If this is not permitted, the directory is read anyway.
            let _ = sys::spare_atime(dir.fd());
        }
        // Problems with merge files are reported when the directory is listed.
        let entered = enter_dir(
            &self.base.chain,
            &dir,
            &self.path,
            "sender",
            run_context.options.preserve.link_owners,
        );
        let Ok((chain, _)) = entered else {
            return false;
        };
        let looks = |name: &[u8]| {
            sys::stat(dir.fd(), name, false)
                .ok()
                .and_then(|stat| Kind::of_mode(stat.mode))
        };
        let mut any = false;
        let listed = sys::list(dir.fd(), |entry| {
            let is_dir = entry
                .is_dir
                .unwrap_or_else(|| looks(entry.name) == Some(Kind::Dir));
            let path = self.path.join(entry.name);
            any |= chain.verdict(Side::Sender, path.as_bytes(), is_dir) == Verdict::Include;
        });
        listed.is_ok() && !any
    }
}

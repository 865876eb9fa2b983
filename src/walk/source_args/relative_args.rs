//! Gathers arguments under `-R`: a path is kept from its beginning or behind the first `/./`.
//!
//! All arguments form one tree, and what an argument adds depends on those before it, as in rsync, which keeps its place
//! between two arguments. So arguments are handled in the order of the command line, and three facts pass from one to
//! the next:
//!
//! - `led`: the directories that led to the argument before. Those that it shares with this one are not listed again.
//! - `entered`: the directory whose rules are in force. An argument is checked against the rules of the directory that
//!   was entered last, and only then are the directories that lead to it entered. The other order would apply rules that
//!   rsync has not read yet.
//! - `has_implied_top`: whether the attributes of the root were added. The first argument that implies the root decides.
//!
//! A directory that only leads to an argument is implied: it has attributes, but of its content only what the arguments
//! name takes part.

use super::Gatherer;
use super::gathered::LoneDir;
use super::node_builder::NodeBuilder;
use crate::error::{Error, Result};
use crate::flist::Kind;
use crate::flist::entry::Stat;
use crate::fs::sys::Follow;
use crate::fs::{errno, sandbox, sys, trusted_path};
use crate::options::Recurse;
use crate::options::select::MissingArgs;
use crate::path::RelPath;
use crate::report::event::{Problem, Weight};
use crate::walk::arg_path::{clean, implies_root, split_kept, trim_slashes};
use crate::walk::dir_rules::enter_dir;
use crate::walk::source_dir::Base;
use crate::walk::source_task::{NamedContent, NamedEntry};
use std::io;
use std::sync::Arc;

/// How many elements the path of an argument may have. It bounds the stack and the memory of the tree of arguments. rsync
/// accepts no path with more than 4,096 bytes, and so no more elements than these.
const ELEMENTS_MAX: usize = 2048;

impl Gatherer<'_> {
    /// Adds an argument under `-R`, which is kept from its beginning or behind the first `/./`.
    pub(super) fn relative(&mut self, arg: &[u8]) -> Result<()> {
        let (base_arg, rest) = split_kept(arg);
        if rest.split(|&b| b == b'/').any(|part| part == b"..") {
            let line = [b"found \"..\" dir in relative path: ", rest].concat();
            return Err(Error::usage(line).by("sender"));
        }
        let (parts, content) = clean(rest);
        let Some(base) = self.base_or_report(base_arg, trim_slashes(base_arg)) else {
            return Ok(());
        };
        self.imply_top(&base, rest);
        self.insert(&base, &parts, content)
    }

    /// Adds the root's own attributes, if the part of a name that `-R` keeps is the first to imply them. Rules apply to
    /// this root as to an entry with the name `.`.
    pub(super) fn imply_top(&mut self, base: &Arc<Base>, kept: &[u8]) {
        if !implies_root(kept) || self.has_implied_top {
            return;
        }
        if !self.includes(base, b".", true) {
            return;
        }
        self.has_implied_top = true;
        if !self.skips_dir(b".") {
            let is_first = self.out.top.is_none();
            self.top(
                base.root
                    .open()
                    .and_then(|root| sys::fstat(root.dir().fd())),
                base,
            );
            // The protocol cannot express a root without attributes before 30.
            let protocol = self.run_context.options.connect.protocol;
            self.out.top_is_bare =
                is_first && self.select.no_implied_dirs && protocol.is_none_or(|it| it >= 30);
        }
    }

    /// Adds the path `parts` below a base to the tree.
    pub(super) fn insert(
        &mut self,
        base: &Arc<Base>,
        parts: &[Vec<u8>],
        content: bool,
    ) -> Result<()> {
        let Some((_, leading)) = parts.split_last() else {
            if !self.skips_dir(b".") {
                self.add_content(
                    base,
                    base.root
                        .open()
                        .and_then(|root| sys::fstat(root.dir().fd())),
                );
            }
            return Ok(());
        };
        if parts.len() > ELEMENTS_MAX {
            let whole = base.root.full(&parts.join(&b'/'));
            self.cannot_stat(&whole, &errno::too_long());
            return Ok(());
        }
        match self.examine(base, parts, content) {
            Ok((stat, followed)) => self.add_entry(base, parts, &stat, content, followed),
            Err(error) => {
                self.add_missing(base, (leading, &parts.join(&b'/')), &error);
                Ok(())
            }
        }
    }

    /// Examines the entry of an argument, which is followed if it stands for content. Also returns whether it was:
    /// a symlink that does not lead to a directory stands for itself, even if its argument ends in a slash.
    fn examine(&self, base: &Base, parts: &[Vec<u8>], content: bool) -> io::Result<(Stat, bool)> {
        let path = parts.join(&b'/');
        let itself = |stat| (stat, false);
        let path = RelPath::parse(&path).map_err(|_| io::ErrorKind::InvalidInput)?;
        if sandbox::is_hidden(&base.root.full(path.as_bytes())) {
            return Err(errno::gone());
        }
        let dir = base
            .root
            .open_dir_to_search(&path.parent().unwrap_or_default())?;
        if content
            && self.follow_below_base() == Follow::Trusted
            && let Err(error) = base.root.open_dir_to_search(&path)
            && trusted_path::is_refused(&error)
        {
            return Err(error);
        }
        let found = sys::stat(dir.fd(), path.name(), self.select.copy_links || content);
        if !content {
            return found.map(itself);
        }
        let may_lead_on = match &found {
            Ok(stat) => Kind::of_mode(stat.mode) == Some(Kind::Dir),
            // As in rsync, a symlink in a list must not form a loop, except in a module or if some are followed.
            Err(error) if errno::leads_outside(error) => {
                self.select.files_from.is_some() && !self.follows_links() && !sandbox::is_module()
            }
            Err(error) => {
                !errno::is_unreachable(error) && error.kind() != io::ErrorKind::InvalidFilename
            }
        };
        let found = found.map(|stat| (stat, true));
        if self.select.copy_links || may_lead_on {
            return found;
        }
        sys::stat(dir.fd(), path.name(), false)
            .map(itself)
            .or(found)
    }

    /// Handles an argument that cannot be examined: a missing one as the options require.
    fn add_missing(
        &mut self,
        base: &Arc<Base>,
        (leading, whole): (&[Vec<u8>], &[u8]),
        error: &io::Error,
    ) {
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        match self.select.missing_args {
            MissingArgs::Ignore if is_missing => {}
            MissingArgs::Delete if is_missing => {
                let is_listed = self.imply_existing(base, leading);
                if is_listed && let Ok(missing) = RelPath::parse(whole) {
                    self.out.missing.push(missing);
                }
                // Alone in the list and in no directory, the name stands for the destination, like that of a file.
                if leading.is_empty() {
                    self.entries += 1;
                    self.out.single = Some(whole.to_vec());
                } else if is_listed {
                    self.entries += 2;
                }
            }
            _ => self.cannot_stat(&base.root.full(whole), error),
        }
    }

    /// Adds an entry that was examined, if the rules include it. `content`: its argument stands for its content.
    pub(super) fn add_entry(
        &mut self,
        base: &Arc<Base>,
        parts: &[Vec<u8>],
        stat: &Stat,
        content: bool,
        followed: bool,
    ) -> Result<()> {
        let Some((last, leading)) = parts.split_last() else {
            return Ok(());
        };
        let whole = parts.join(&b'/');
        let parent = leading.join(&b'/');
        let is_listed_as_dir =
            RelPath::parse(&parent).is_ok_and(|dir| self.is_listed_as_dir(stat, base, &dir, last));
        let is_dir = is_listed_as_dir && !self.is_only_unsafe(stat);
        if !self.includes(base, &whole, is_dir) {
            return Ok(());
        }
        if is_dir && self.skips_dir(&whole) {
            return Ok(());
        }
        self.enter_leading(base, leading)?;
        let is_link = Kind::of_mode(stat.mode) == Some(Kind::Symlink);
        let stays_link = is_link && !self.select.copy_dirlinks && !self.select.copy_unsafe_links;
        let what = match self.select.recurse {
            // Another argument may continue behind the symlink, which makes it a directory.
            _ if stays_link => NamedContent::None,
            Recurse::Full => NamedContent::Full,
            _ if content => NamedContent::Shallow,
            _ => NamedContent::None,
        };
        let rules = self.entered.as_ref().map(|(_, chain)| chain.clone());
        let named = NamedEntry {
            rules,
            ..NamedEntry::of_argument(self.argument, last, what, followed)
        };
        let (node, dir) = self.imply(base, leading);
        node.name(base, &dir, named);
        if is_dir && what == NamedContent::Full {
            self.out.whole.push((base.clone(), dir.join(last)));
        }
        self.found(if is_listed_as_dir || !leading.is_empty() {
            None
        } else {
            Some(last)
        });
        if is_listed_as_dir && leading.is_empty() && !self.has_implied_top {
            let has_content = what != NamedContent::None;
            self.out.lone_dir = Some(LoneDir {
                base: base.clone(),
                path: dir.join(last),
                has_content,
            });
        }
        Ok(())
    }

    /// Adds the content of a base. `stat`: the attributes of its directory.
    pub(super) fn add_content(&mut self, base: &Arc<Base>, stat: io::Result<Stat>) {
        let top = match &self.entered {
            Some((_, chain)) => Arc::new(Base {
                chain: chain.clone(),
                ..(**base).clone()
            }),
            None => base.clone(),
        };
        let recurses = self.select.recurse == Recurse::Full;
        self.tree.whole(&top, recurses, self.argument);
        if recurses {
            self.out.whole.push((base.clone(), RelPath::root()));
        }
        self.top(stat, base);
        self.found(None);
        self.out.lone_dir = Some(LoneDir {
            base: top,
            path: RelPath::root(),
            has_content: true,
        });
    }

    /// Returns whether a directory is skipped for lack of recursion, and reports that.
    pub(super) fn skips_dir(&mut self, path: &[u8]) -> bool {
        let skips = self.select.recurse == Recurse::No;
        self.out
            .notes
            .extend(skips.then(|| [b"skipping directory ", path].concat()));
        skips
    }

    /// Enters the directories that lead to an argument, unless they are above those entered last. As in rsync without
    /// incremental recursion, an argument is checked before that, against the rules of the directory entered last.
    fn enter_leading(&mut self, base: &Arc<Base>, leading: &[Vec<u8>]) -> Result<()> {
        let is_inside = self
            .entered
            .as_ref()
            .map_or(leading.is_empty(), |(dir, _)| dir.starts_with(leading));
        if is_inside || !self.select.no_inc_recursive || !base.chain.has_per_dir() {
            return Ok(());
        }
        let is_first =
            self.entered.is_none() && self.out.whole.is_empty() && self.tree.all.is_empty();
        let mut chain = if is_first {
            base.chain.clone()
        } else {
            base.chain.for_further_source()
        };
        let mut path = RelPath::root();
        for part in leading {
            path = path.join(part);
            // What cannot be opened has no rules; that is reported when it is listed.
            if let Ok(dir) = base.root.open_dir_to_search(&path) {
                let (rules, refusals) = enter_dir(
                    &chain,
                    &dir,
                    &path,
                    "sender",
                    self.run_context.options.preserve.link_owners,
                )?;
                chain = rules;
                self.out.problems.extend(refusals);
            }
        }
        self.entered = Some((leading.to_vec(), chain));
        Ok(())
    }

    /// Adds the directories that lead to an argument. As in rsync, those that the previous argument did not share are
    /// listed again; with incremental recursion only the topmost one is.
    fn imply(&mut self, base: &Arc<Base>, leading: &[Vec<u8>]) -> (&mut NodeBuilder, RelPath) {
        let is_whole = self.select.no_inc_recursive;
        let shared = match &self.led {
            Some((before, parts)) if is_whole || Arc::ptr_eq(before, base) => {
                let shared = parts
                    .iter()
                    .zip(leading)
                    .take_while(|(a, b)| a == b)
                    .count();
                // rsync compares as far as the last common slash.
                let is_prefix = shared == parts.len() && shared < leading.len();
                shared.saturating_sub(usize::from(is_whole && is_prefix))
            }
            _ => 0,
        };
        if shared < leading.len() {
            self.led = Some((base.clone(), leading.to_vec()));
        }
        let counts =
            |depth, is_known: bool| !is_known || depth >= shared && (depth == 0 || is_whole);
        self.tree.imply(base, self.argument, leading, counts)
    }

    /// Adds the existing directories above a missing argument. Returns `false` if the argument takes no part: with
    /// incremental recursion, rsync lists it in a directory that is missing itself. See `tests/delete.rs`.
    fn imply_existing(&mut self, base: &Arc<Base>, leading: &[Vec<u8>]) -> bool {
        let existing = (1..=leading.len()).take_while(|&len| {
            let dir = RelPath::parse(&leading[..len].join(&b'/'));
            dir.is_ok_and(|dir| base.root.open_dir_to_search(&dir).is_ok())
        });
        let existing = existing.count();
        if !self.select.no_implied_dirs {
            self.imply(base, &leading[..existing]);
            self.entries += if existing > 0 { 2 } else { 0 };
        }
        for len in existing + 1..=leading.len() {
            let dir = leading[..len].join(&b'/');
            let line = [b"file has vanished: \"", &base.root.full(&dir)[..], b"\""].concat();
            if !self.select.no_inc_recursive {
                self.out.problems.push(Problem::new(line, Weight::Vanished));
                return false;
            }
            if self.absent.insert(dir) {
                self.out.problems.push(Problem::new(line, Weight::Vanished));
            }
        }
        true
    }
}

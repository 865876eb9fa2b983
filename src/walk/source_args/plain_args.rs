//! Gathers arguments without `-R`: only the last element of a path is kept.

use super::Gatherer;
use super::gathered::LoneDir;
use crate::error::Error;
use crate::filter::Side;
use crate::flist::Kind;
use crate::fs::sys;
use crate::options::Recurse;
use crate::options::select::MissingArgs;
use crate::path::{self, RelPath};
use crate::report::event::{ErrorRole, Problem, Weight};
use crate::walk::arg_path::{resolved, trim_slashes};
use crate::walk::source_task::{NamedContent, NamedEntry};
use std::io;

impl Gatherer<'_> {
    /// Adds an argument without `-R`.
    pub(super) fn plain(&mut self, arg: &[u8]) -> Result<(), Error> {
        let (parent, name) = path::split_parent(arg);
        if matches!(name, b"" | b"." | b"..") {
            let dir = if name == b"" && !parent.is_empty() { parent } else { arg };
            return self.content_of(if arg == b"/" { b"/" } else { dir });
        }
        let parent: &[u8] = if parent.is_empty() && arg.starts_with(b"/") { b"/" } else { parent };
        let followed = self.select.copy_links;
        let stat = match sys::stat_path(arg, followed) {
            Ok(stat) => stat,
            Err(error) => return self.missing_argument(arg, name, &error),
        };
        let Some(base) = self.base_or_report(parent, trim_slashes(parent)) else { return Ok(()) };
        let is_listed_as_dir = self.is_listed_as_dir(&stat, &base, &RelPath::root(), name);
        let is_dir = is_listed_as_dir && !self.is_only_unsafe(&stat);
        if !base.chain.includes(self.reports_rules, Side::Sender, name, is_dir, &mut self.out.notes) {
            return Ok(());
        }
        if is_dir && self.select.recurse == Recurse::No {
            self.out.notes.push([b"skipping directory ", name].concat());
            return Ok(());
        }
        let content = if self.select.recurse == Recurse::Full { NamedContent::Full } else { NamedContent::None };
        self.tree.name(&base, &RelPath::root(), NamedEntry::of_argument(self.argument, name, content, false));
        let path = RelPath::root().join(name);
        if is_dir && content == NamedContent::Full {
            self.out.whole.push((base.clone(), path.clone()));
        }
        self.found(if is_listed_as_dir { None } else { Some(name) });
        self.out.lone_dir =
            is_listed_as_dir.then_some(LoneDir { base, path, has_content: content == NamedContent::Full });
        Ok(())
    }

    /// Adds an argument that stands for the content of a directory.
    fn content_of(&mut self, dir: &[u8]) -> Result<(), Error> {
        let itself = dir.strip_suffix(b"/.").unwrap_or(dir);
        let stat = match sys::stat_path(dir, true) {
            Ok(stat) => stat,
            Err(error) => return self.cannot_enter(itself, &error),
        };
        if Kind::of_mode(stat.mode) != Some(Kind::Dir) {
            return self.cannot_enter(itself, &crate::fs::errno::not_a_directory());
        }
        if self.select.recurse == Recurse::No {
            self.out.notes.push(b"skipping directory .".to_vec());
            return Ok(());
        }
        let Some(base) = self.base_or_report(dir, trim_slashes(dir)) else { return Ok(()) };
        self.tree.whole(&base, self.select.recurse == Recurse::Full, self.argument);
        if self.select.recurse == Recurse::Full {
            self.out.whole.push((base.clone(), RelPath::root()));
        }
        self.top(Ok(stat), &base);
        self.found(None);
        self.out.lone_dir = Some(LoneDir { base, path: RelPath::root(), has_content: true });
        Ok(())
    }

    fn missing_argument(&mut self, arg: &[u8], name: &[u8], error: &io::Error) -> Result<(), Error> {
        let parent = path::split_parent(arg).0;
        if !parent.is_empty()
            && let Err(error) = sys::stat_path(&path::join(parent, b"."), true)
        {
            return self.cannot_enter(parent, &error);
        }
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        match self.select.missing_args {
            MissingArgs::Ignore if is_missing => return Ok(()),
            MissingArgs::Delete if is_missing => {
                self.out.missing.extend(RelPath::parse(name));
                self.entries += 1;
                self.out.single = Some(name.to_vec());
                return Ok(());
            }
            _ => {}
        }
        // A missing argument alone does not stop deletions.
        let weight = if is_missing { Weight::Failed } else { Weight::SourceError };
        let full = resolved(self.cwd, arg);
        self.out.problems.push(Problem::failed(ErrorRole::Sender, "link_stat", &full, error).weighing(weight));
        Ok(())
    }
}

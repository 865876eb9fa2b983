//! Gathers arguments without `-R`: only the last element of a path is kept.

use super::Gatherer;
use crate::error::Result;
use crate::flist::Kind;
use crate::fs::sys;
use crate::options::select::MissingArgs;
use crate::path::{self, RelPath};
use crate::walk::arg_path::{resolved, trim_slashes};
use std::io;

impl Gatherer<'_> {
    /// Adds an argument without `-R`.
    pub(super) fn plain(&mut self, arg: &[u8]) -> Result<()> {
        let (parent, name) = path::split_parent(arg);
        if matches!(name, b"" | b"." | b"..") {
            let dir = if name == b"" && !parent.is_empty() {
                parent
            } else {
                arg
            };
            return self.content_of(if arg == b"/" { b"/" } else { dir });
        }
        let parent: &[u8] = if parent.is_empty() && arg.starts_with(b"/") {
            b"/"
        } else {
            parent
        };
        let followed = self.select.copy_links;
        let stat = match sys::stat_path(arg, followed) {
            Ok(stat) => stat,
            Err(error) => return self.missing_argument(arg, name, &error),
        };
        let Some(base) = self.base_or_report(parent, trim_slashes(parent)) else {
            return Ok(());
        };
        self.add_entry(&base, &[name.to_vec()], &stat, false, false)
    }

    /// Adds an argument that stands for the content of a directory.
    fn content_of(&mut self, dir: &[u8]) -> Result<()> {
        let itself = dir.strip_suffix(b"/.").unwrap_or(dir);
        let stat = match sys::stat_path(dir, true) {
            Ok(stat) => stat,
            Err(error) => return self.cannot_enter(itself, &error),
        };
        if Kind::of_mode(stat.mode) != Some(Kind::Dir) {
            return self.cannot_enter(itself, &crate::fs::errno::not_a_directory());
        }
        if self.skips_dir(b".") {
            return Ok(());
        }
        let Some(base) = self.base_or_report(dir, trim_slashes(dir)) else {
            return Ok(());
        };
        self.add_content(&base, Ok(stat));
        Ok(())
    }

    fn missing_argument(&mut self, arg: &[u8], name: &[u8], error: &io::Error) -> Result<()> {
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
        self.cannot_stat(&resolved(self.run_context.process.cwd, arg), error);
        Ok(())
    }
}

//! Gathers the names listed by `--files-from`.

use super::Gatherer;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::{sys, trusted_path};
use crate::path;
use crate::report::event::{ErrorRole, Problem, Weight};
use crate::walk::arg_path::{absolute, clean, find_marker, resolved, trim_slashes};
use crate::walk::source_dir::enter;
use std::io;
use std::os::fd::AsFd as _;

impl Gatherer<'_> {
    /// Adds the names listed by `--files-from`, which are relative to `base_arg`.
    pub(super) fn listed(&mut self, base_arg: &[u8], names: &[Vec<u8>]) -> Result<()> {
        let shown = trim_slashes(base_arg).to_vec();
        // Without this directory there is nothing to copy. The error shows it as it was given.
        let cannot_enter = |error: io::Error| {
            let slash: &[u8] = if base_arg.len() > 1 && base_arg.ends_with(b"/") {
                b"/"
            } else {
                b""
            };
            let full = [&absolute(self.run_context.process.cwd, base_arg)[..], slash].concat();
            let problem = Problem::failed(ErrorRole::Sender, "change_dir", &full, &error);
            Error::new(Exit::FileSelect, problem.line).by("sender")
        };
        enter(if base_arg.is_empty() { b"." } else { base_arg }).map_err(cannot_enter)?;
        self.unshown = shown.clone();
        let base = self.base(base_arg, &shown)?;
        for name in names {
            self.go_on()?;
            self.argument += 1;
            let (cleaned, content) = clean(name);
            if trusted_path::is_confined()
                && !self.follows_links()
                && let Err(error) = check_listed(base_arg, &cleaned, content)
            {
                let dot: &[u8] = if content && !self.select.relative {
                    b"/."
                } else {
                    b""
                };
                let full = resolved(
                    self.run_context.process.cwd,
                    &path::join(base_arg, &cleaned.join(&b'/')),
                );
                let full = [&full, dot].concat();
                let problem = Problem::failed(ErrorRole::Sender, "link_stat", &full, &error);
                self.out
                    .problems
                    .push(problem.weighing(Weight::SourceError));
                continue;
            }
            if self.select.relative {
                let (inner, rest) = match find_marker(name) {
                    Some(at) => (&name[..at], &name[at + 3..]),
                    None => (&b""[..], name.as_slice()),
                };
                if inner.is_empty() {
                    self.imply_top(&base, rest);
                    self.insert(&base, &cleaned, content)?;
                } else {
                    let shown = path::join(&shown, inner);
                    let inner = path::join(base_arg, &clean(inner).0.join(&b'/'));
                    if let Some(inner_base) = self.base_or_report(&inner, &shown) {
                        let (cleaned, content) = clean(rest);
                        self.imply_top(&inner_base, rest);
                        self.insert(&inner_base, &cleaned, content)?;
                    }
                }
                continue;
            }
            // Without -R only the last element of the name is kept.
            let joined = path::join(base_arg, &cleaned.join(&b'/'));
            let arg = if content {
                path::join(&joined, b".")
            } else {
                joined
            };
            self.plain(&arg)?;
        }
        Ok(())
    }
}

/// Fails if a name of `--files-from` leads out of the directory of `--confine-root`. `content`: the name stands for the
/// content of a directory.
fn check_listed(base: &[u8], parts: &[Vec<u8>], content: bool) -> io::Result<()> {
    let kept = if content {
        parts.len()
    } else {
        parts.len().saturating_sub(1)
    };
    let dir = path::join(base, &parts[..kept].join(&b'/'));
    match sys::open_dir_path_to_search(if dir.is_empty() { b"." } else { &dir }) {
        // Anything else is found out later.
        Err(_) => Ok(()),
        Ok(fd) => trusted_path::check_inside(fd.as_fd()),
    }
}

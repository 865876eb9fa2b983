//! `--failed-list`: writes the paths that a run could not transfer, at its end.

use crate::cmd::metrics_file;
use crate::env::Env;
use crate::exit::Exit;
use crate::fs::trusted_path;
use crate::options::{LinkOwners, Options};
use crate::path;
use crate::report::event::errno_words;
use crate::report::failed_paths::{FailedPaths, FailedRoot};
use crate::walk::arg_path::{clean, split_kept};
use std::io::Write as _;

/// The list of a run.
pub struct FailedList {
    file: Vec<u8>,
    from0: bool,
    owners: LinkOwners,
}

/// Which of the operands are on another machine, where a relative path starts from a directory that only it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FarSide {
    /// Both trees are on this machine.
    Neither,
    /// The sources.
    Source,
    /// The destination.
    Dest,
}

impl FailedList {
    /// Returns the list that the options request.
    pub fn of(options: &Options) -> Option<FailedList> {
        let file = options.output.failed_list.clone()?;
        Some(FailedList {
            file,
            from0: options.select.from0,
            owners: options.preserve.link_owners,
        })
    }

    /// Replaces the file. Returns the exit code of the run: a list that is missing is an error.
    pub fn write(&self, env: &mut Env, paths: &FailedPaths, exit: Exit) -> Exit {
        let (text, unlisted) = paths.text(self.from0);
        let mut put_line = |line: &[u8]| {
            // There is no other place for this message.
            let _ = env.stderr.write_all(&[line, b"\n"].concat());
        };
        for (problems, cause) in [
            (
                unlisted.deletions,
                "entries that were not deleted are not listed",
            ),
            (
                unlisted.newlines,
                "names with a newline or carriage return cannot be in a list of lines\nhint: use --from0",
            ),
            (unlisted.unnamed, "no path of the transfer can be listed"),
        ] {
            let file = self.file.escape_ascii();
            match problems {
                0 => {}
                1 => put_line(format!("sparsync: 1 problem is not in {file}: {cause}").as_bytes()),
                2.. => put_line(
                    format!("sparsync: {problems} problems are not in {file}: {cause}").as_bytes(),
                ),
            }
        }
        if paths.lacks_peer && exit == Exit::Partial {
            let file = self.file.escape_ascii();
            put_line(format!("sparsync: {file} lacks what the rsync at the other end reports\nhint: add --stderr=client").as_bytes());
        }
        let umask = 0o077;
        match metrics_file::put(&self.file, self.owners, &text, umask) {
            Ok(()) => exit,
            Err(error) => {
                let start = [b"sparsync: cannot write ", &self.file[..], b": "].concat();
                let line = [start, errno_words(&error)].concat();
                put_line(&trusted_path::with_refusal(&error, line));
                if exit == Exit::Ok { Exit::FileIo } else { exit }
            }
        }
    }
}

/// Returns an empty list of the paths of a transfer, whose places have these names in messages.
pub fn paths(
    env: &Env,
    options: &Options,
    far_side: FarSide,
    sources: &[Vec<u8>],
    dest: Option<&[u8]>,
) -> FailedPaths {
    let place = |operand: &[u8], is_far: bool| {
        let is_relative = !operand.starts_with(b"/");
        let full = if is_relative && !is_far {
            path::join(&env.cwd, operand)
        } else {
            operand.to_vec()
        };
        (clean(&full).0, is_relative && is_far)
    };
    let mut roots = Vec::new();
    for source in sources {
        let relative = if options.select.files_from.is_some() {
            Vec::new()
        } else if options.select.relative {
            let (_, kept) = split_kept(source);
            clean(kept).0
        } else {
            let (mut parts, is_content) = clean(source);
            let name = if is_content { None } else { parts.pop() };
            Vec::from_iter(name)
        };
        let (at, is_anywhere) = place(source, far_side == FarSide::Source);
        roots.push(FailedRoot {
            at,
            is_anywhere,
            relative,
        });
    }
    let dest = dest.map(|dest| {
        let (at, is_anywhere) = place(dest, far_side == FarSide::Dest);
        FailedRoot {
            at,
            is_anywhere,
            relative: Vec::new(),
        }
    });
    FailedPaths::new(roots, dest)
}

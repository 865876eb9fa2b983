//! Finds the paths in the transfer that a PATH of `sparsync explain` may stand for.

use crate::cli::Copy;
use crate::cli::operand::Operand;
use crate::path::{self, RelPath};
use crate::walk::arg_path::find_marker;

/// Where the operands of a copy are in its transfer.
pub struct TransferPaths {
    /// What is taken off a path below an operand, sources first.
    bases: Vec<OperandBase>,
    cwd: Vec<u8>,
    /// The name of the only entry, if the destination is its new name.
    renamed: Option<(MachinePath, Vec<u8>)>,
}

/// What a PATH may stand for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathReading {
    /// It is not below an operand.
    Outside,
    /// This path in the transfer.
    One(RelPath),
    /// Two paths in the transfer: one because it is below an operand, and one because `-i` prints it so.
    Either { below: RelPath, listed: RelPath },
}

impl PathReading {
    /// Returns the paths in the transfer.
    pub fn paths(&self) -> Vec<RelPath> {
        match self {
            PathReading::Outside => Vec::new(),
            PathReading::One(path) => vec![path.clone()],
            PathReading::Either { below, listed } => vec![below.clone(), listed.clone()],
        }
    }
}

/// A path on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MachinePath {
    /// The text before the path, such as `host:`; empty: this machine.
    machine: Vec<u8>,
    /// Without `.`, `..` and empty elements. It begins with a slash if it is absolute.
    path: Vec<u8>,
}

/// The directory that an operand makes a part of the transfer.
struct OperandBase {
    root: MachinePath,
    /// The part of the transfer below it; empty: all.
    part: Vec<u8>,
}

impl TransferPaths {
    /// Examines the operands of a copy as given. `cwd`: the working directory.
    pub fn new(copy: &Copy, operands: &[Vec<u8>], cwd: &[u8]) -> TransferPaths {
        let mut machine = Vec::new();
        let mut places = Vec::new();
        for operand in operands {
            let place = place_of(operand, cwd);
            // `:path` is on the machine of the operand before.
            if !place.machine.is_empty() && !operand.starts_with(b":") {
                machine = place.machine.clone();
            }
            let machine = if place.machine.is_empty() {
                Vec::new()
            } else {
                machine.clone()
            };
            places.push((operand, MachinePath { machine, ..place }));
        }
        let dest = places.pop();
        let is_listed = copy.options.select.files_from.is_some();
        let relative = copy.options.select.relative && !is_listed;
        let mut bases = Vec::new();
        for (operand, place) in &places {
            bases.push(if is_listed || !relative && stands_for_content(operand) {
                OperandBase {
                    root: place.clone(),
                    part: Vec::new(),
                }
            } else if relative {
                relative_base(operand, place, cwd)
            } else {
                let (parent, name) = path::split_parent(&place.path);
                let is_absolute = place.path.starts_with(b"/");
                let parent: &[u8] = if parent.is_empty() && is_absolute {
                    b"/"
                } else {
                    parent
                };
                OperandBase {
                    root: MachinePath {
                        path: parent.to_vec(),
                        ..place.clone()
                    },
                    part: name.to_vec(),
                }
            });
        }
        let single = match &places[..] {
            [(operand, place)] if !stands_for_content(operand) && !relative && !is_listed => {
                Some(path::file_name(&place.path).to_vec())
            }
            _ => None,
        };
        let is_new_name = |dest: &MachinePath, operand: &[u8]| {
            !operand.ends_with(b"/")
                && dest.machine.is_empty()
                && !crate::fs::sys::stat_path(&dest.path, true).is_ok_and(|stat| {
                    crate::flist::Kind::of_mode(stat.mode) == Some(crate::flist::Kind::Dir)
                })
        };
        let mut renamed = None;
        if let Some((operand, dest)) = dest {
            if let Some(single) = single
                && is_new_name(&dest, operand)
            {
                renamed = Some((dest.clone(), single));
            }
            bases.push(OperandBase {
                root: dest,
                part: Vec::new(),
            });
        }
        TransferPaths {
            bases,
            cwd: cwd.to_vec(),
            renamed,
        }
    }

    /// Returns what a path may stand for. One that begins with `./` is a path in the transfer only if it is not below an
    /// operand.
    pub fn find(&self, given: &[u8]) -> PathReading {
        let place = place_of(given, &self.cwd);
        if let Some((dest, single)) = &self.renamed
            && *dest == place
        {
            return RelPath::parse(single).map_or(PathReading::Outside, PathReading::One);
        }
        let below = self.below_operand(&place);
        let listed = self.listed(given, &place);
        match (below, listed) {
            (Some(below), Some(listed)) if below != listed && !given.starts_with(b"./") => {
                PathReading::Either { below, listed }
            }
            (Some(path), _) | (None, Some(path)) => PathReading::One(path),
            (None, None) => PathReading::Outside,
        }
    }

    /// Returns the path in the transfer of an entry below an operand.
    fn below_operand(&self, place: &MachinePath) -> Option<RelPath> {
        for base in &self.bases {
            if base.root.machine != place.machine {
                continue;
            }
            let Some(rest) = below(&place.path, &base.root.path) else {
                continue;
            };
            let is_in_part = base.part.is_empty() || below(rest, &base.part).is_some();
            if is_in_part && let Ok(path) = RelPath::parse(rest) {
                return Some(path);
            }
        }
        None
    }

    /// Returns the path in the transfer that `-i` prints like this.
    fn listed(&self, given: &[u8], place: &MachinePath) -> Option<RelPath> {
        // A name with a colon looks like a path on another machine.
        let is_elsewhere = !place.machine.is_empty()
            && self
                .bases
                .iter()
                .any(|base| base.root.machine == place.machine);
        if is_elsewhere || given.starts_with(b"/") || path::climbs(given) {
            return None;
        }
        let cleaned = path::without_climbing(given);
        RelPath::parse(cleaned.strip_prefix(b"/").unwrap_or(&cleaned)).ok()
    }
}

/// Returns what `-R` makes of a source argument.
fn relative_base(operand: &[u8], place: &MachinePath, cwd: &[u8]) -> OperandBase {
    let written = match Operand::parse(operand) {
        Operand::Local(path) => path,
        Operand::Remote(remote) => remote.path,
    };
    let root = match find_marker(&written) {
        Some(at) if place.machine.is_empty() => place_of(&written[..at.max(1)], cwd).path,
        Some(at) => normal(&written[..at.max(1)]),
        None if written.starts_with(b"/") => b"/".to_vec(),
        None if place.machine.is_empty() => path::without_climbing(cwd),
        None => Vec::new(),
    };
    let part = below(&place.path, &root).unwrap_or_default().to_vec();
    OperandBase {
        root: MachinePath {
            machine: place.machine.clone(),
            path: root,
        },
        part,
    }
}

/// Returns whether a source argument stands for the content of a directory.
fn stands_for_content(operand: &[u8]) -> bool {
    let path = match Operand::parse(operand) {
        Operand::Local(path) => path,
        Operand::Remote(remote) => remote.path,
    };
    matches!(path::file_name(&path), b"" | b"." | b"..")
}

fn place_of(word: &[u8], cwd: &[u8]) -> MachinePath {
    match Operand::parse(word) {
        Operand::Local(local) => MachinePath {
            machine: Vec::new(),
            path: path::without_climbing(&if local.starts_with(b"/") {
                local
            } else {
                path::join(cwd, &local)
            }),
        },
        Operand::Remote(remote) => MachinePath {
            machine: word[..word.len() - remote.path.len()].to_vec(),
            path: normal(&remote.path),
        },
    }
}

/// Returns a path without `.`, `..` and empty elements.
fn normal(written: &[u8]) -> Vec<u8> {
    let cleaned = path::without_climbing(written);
    if written.starts_with(b"/") {
        return cleaned;
    }
    cleaned.strip_prefix(b"/").unwrap_or(&cleaned).to_vec()
}

/// Returns what follows `dir` in a path; `None`: it is not below it, nor the same.
fn below<'p>(path: &'p [u8], dir: &[u8]) -> Option<&'p [u8]> {
    let dir = dir.strip_suffix(b"/").unwrap_or(dir);
    let rest = path.strip_prefix(dir)?;
    if rest.is_empty() || dir.is_empty() && !path.starts_with(b"/") {
        return Some(rest);
    }
    rest.strip_prefix(b"/")
}

//! The summary of a plan: its counts, and the directories with the most bytes, renames and deletions.

use crate::cmd::dir_counts::{self, DirCounts};
use crate::flist::Kind;
use crate::plan::planned::{PlanGap, PlannedAct, PlannedAction, PlannedTwin, TwinUse};
use crate::report::escape::{self, Charset};
use crate::report::number::put_count;
use crate::report::plan_line::{self, PlanHeader};

/// The counts of a plan.
#[derive(Debug, Default)]
pub struct PlanSummary {
    created: u64,
    transferred: u64,
    transferred_bytes: u64,
    adjusted: u64,
    linked: u64,
    from_alternates: u64,
    backed_up: u64,
    renamed: u64,
    from_twins: u64,
    deleted: u64,
    bytes_by_dir: DirCounts,
    /// By the old and the new directory, see [`NEW_DIR`].
    renames_by_dirs: DirCounts,
    deletions_by_dir: DirCounts,
}

/// Stands between the old and the new directory of renamed files. No path has it.
const NEW_DIR: u8 = 0;

impl PlanSummary {
    /// Counts an action.
    pub fn add(&mut self, action: &PlannedAction) {
        if action.heir.is_some() {
            // Nothing is lost. The new file counts.
            return;
        }
        if let Some(twin) = &action.twin {
            self.add_twin(action, twin);
            return;
        }
        if action.backup.is_some() {
            self.backed_up += 1;
        }
        match action.act {
            PlannedAct::Create => self.created += 1,
            PlannedAct::Transfer => {
                let len_bytes = action.after.as_ref().and_then(|after| after.len_bytes);
                let len_bytes = len_bytes.unwrap_or(0);
                self.transferred += 1;
                self.transferred_bytes = self.transferred_bytes.saturating_add(len_bytes);
                self.bytes_by_dir.add(parent(&action.path), len_bytes);
            }
            PlannedAct::Adjust => self.adjusted += 1,
            PlannedAct::HardLink => self.linked += 1,
            PlannedAct::Link | PlannedAct::Copy => self.from_alternates += 1,
            PlannedAct::Vacate | PlannedAct::Delete => {
                self.deleted += 1;
                self.deletions_by_dir.add(parent(&action.path), 1);
            }
        }
    }

    /// Counts a new file that takes the content of another one.
    fn add_twin(&mut self, action: &PlannedAction, twin: &PlannedTwin) {
        match twin {
            PlannedTwin::Found {
                twin_use: TwinUse::Renamed,
                path,
                ..
            } => {
                self.renamed += 1;
                let mut dirs = parent(path).to_vec();
                dirs.push(NEW_DIR);
                dirs.extend_from_slice(parent(&action.path));
                self.renames_by_dirs.add(&dirs, 1);
            }
            PlannedTwin::Found { .. } | PlannedTwin::New { .. } => self.from_twins += 1,
        }
    }

    /// Returns the lines. `gap`: what the plan lacks.
    pub fn text(&self, header: &PlanHeader, gap: Option<PlanGap>) -> Vec<u8> {
        let mut out = Vec::new();
        let command = header.options.iter().chain(&header.operands);
        let command: Vec<_> = command.map(Vec::as_slice).collect();
        put_line(
            &mut out,
            &[b"plan: ".as_slice(), &command.join(&b' ')].concat(),
        );
        if header.operands.iter().any(|path| !path.starts_with(b"/")) {
            put_line(&mut out, &[b"in: ".as_slice(), &header.cwd].concat());
        }
        let mut line = Vec::new();
        let parts = [
            (self.created, " created, "),
            (self.transferred, " transferred ("),
            (self.transferred_bytes, " bytes), "),
            (self.adjusted, " with other attributes, "),
        ];
        for (number, words) in parts {
            put_count(&mut line, number, 1);
            line.extend_from_slice(words.as_bytes());
        }
        let rarer = [
            (self.renamed, " renamed, "),
            (self.from_twins, " with the content of other files, "),
            (self.linked, " hard links, "),
            (self.from_alternates, " from other trees, "),
            (self.backed_up, " backups, "),
        ];
        for (number, words) in rarer {
            if number > 0 {
                put_count(&mut line, number, 1);
                line.extend_from_slice(words.as_bytes());
            }
        }
        put_count(&mut line, self.deleted, 1);
        line.extend_from_slice(b" deleted");
        put_line(&mut out, &line);
        if let Some(gap) = gap {
            let reason = gap.reason();
            let exit = gap.exit().code();
            let line = format!("incomplete: {reason} (exit {exit})");
            put_line(&mut out, line.as_bytes());
        }
        put_largest(&mut out, b"most bytes:", &self.bytes_by_dir);
        put_largest(&mut out, b"most renames:", &self.renames_by_dirs);
        put_largest(&mut out, b"most deletions:", &self.deletions_by_dir);
        out
    }
}

/// Returns the line of an action, in the form of `-i`.
pub fn action_line(action: &PlannedAction) -> Vec<u8> {
    let mut line = plan_line::columns(action);
    line.push(b' ');
    line.extend_from_slice(&action.path);
    if action.kind() == Kind::Dir {
        line.push(b'/');
    }
    let target = action
        .after
        .as_ref()
        .and_then(|after| after.target.as_ref());
    if let Some(target) = target {
        line.extend_from_slice(b" -> ");
        line.extend_from_slice(target);
    }
    if let (PlannedAct::HardLink, Some(links)) = (action.act, &action.links) {
        line.extend_from_slice(b" => ");
        line.extend_from_slice(&links.first);
    }
    if let Some(twin) = &action.twin {
        line.extend_from_slice(&words_of(twin));
    }
    if let Some(heir) = &action.heir {
        line.extend_from_slice(&[b" (renamed to ", &heir[..], b")"].concat());
    }
    let mut out = Vec::new();
    put_line(&mut out, &line);
    out
}

/// Returns where a new file gets its content.
fn words_of(twin: &PlannedTwin) -> Vec<u8> {
    let (what, tree) = match twin {
        PlannedTwin::Found { twin_use, tree, .. } => (twin_use.name(), *tree),
        PlannedTwin::New { .. } => (TwinUse::Copied.name(), None),
    };
    let mut words = format!(" ({what} from ").into_bytes();
    words.extend_from_slice(twin.path());
    if let Some(tree) = tree {
        let number = u64::from(tree) + 1;
        words.extend_from_slice(format!(" in alternate tree {number}").as_bytes());
    }
    words.push(b')');
    words
}

fn put_line(out: &mut Vec<u8>, line: &[u8]) {
    escape::put(out, line, Charset::for_locale(true, false));
    out.push(b'\n');
}

/// Returns the directory that contains a path.
fn parent(path: &[u8]) -> &[u8] {
    match crate::path::split_parent(path).0 {
        b"" => dir_counts::ROOT,
        dir => dir,
    }
}

fn put_largest(out: &mut Vec<u8>, title: &[u8], by_dir: &DirCounts) {
    let dirs = by_dir.largest();
    if dirs.is_empty() {
        return;
    }
    put_line(out, title);
    for (dir, count) in dirs {
        let mut line = b"    ".to_vec();
        put_count(&mut line, count, 1);
        let mut parts = dir.split(|byte| *byte == NEW_DIR);
        let dir = parts.next().unwrap_or_default();
        match parts.next() {
            None => put_dir(&mut line, b" in ", dir),
            Some(new) if new == dir => put_dir(&mut line, b" within ", dir),
            Some(new) => {
                put_dir(&mut line, b" from ", dir);
                put_dir(&mut line, b" to ", new);
            }
        }
        put_line(out, &line);
    }
}

/// Appends words and a directory.
fn put_dir(line: &mut Vec<u8>, words: &[u8], dir: &[u8]) {
    line.extend_from_slice(words);
    if dir == dir_counts::ROOT {
        line.extend_from_slice(b"the destination itself");
    } else {
        line.extend_from_slice(dir);
        line.push(b'/');
    }
}

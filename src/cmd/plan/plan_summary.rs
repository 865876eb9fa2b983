//! The summary of a plan: its counts, the directories with the most bytes, and those with the most deletions.

use crate::flist::Kind;
use crate::plan::planned::{PlannedAct, PlannedAction};
use crate::report::escape::{self, Charset};
use crate::report::number::put_count;
use crate::report::plan_line::{self, PlanHeader};
use std::collections::HashMap;

/// The maximum number of directories that are counted apart. The entries of others count for the root.
const DIRS_MAX: usize = 100_000;
/// How many directories are shown.
const DIRS_SHOWN: usize = 3;

/// The counts of a plan.
#[derive(Debug, Default)]
pub struct PlanSummary {
    created: u64,
    transferred: u64,
    transferred_bytes: u64,
    adjusted: u64,
    from_alternates: u64,
    deleted: u64,
    bytes_by_dir: HashMap<Vec<u8>, u64>,
    deletions_by_dir: HashMap<Vec<u8>, u64>,
}

impl PlanSummary {
    /// Counts an action.
    pub fn add(&mut self, action: &PlannedAction) {
        match action.act {
            PlannedAct::Create => self.created += 1,
            PlannedAct::Transfer => {
                let len_bytes = action.after.as_ref().and_then(|after| after.len_bytes);
                let len_bytes = len_bytes.unwrap_or(0);
                self.transferred += 1;
                self.transferred_bytes = self.transferred_bytes.saturating_add(len_bytes);
                count(&mut self.bytes_by_dir, &action.path, len_bytes);
            }
            PlannedAct::Adjust => self.adjusted += 1,
            PlannedAct::Link | PlannedAct::Copy => self.from_alternates += 1,
            PlannedAct::Delete => {
                self.deleted += 1;
                count(&mut self.deletions_by_dir, &action.path, 1);
            }
        }
    }

    /// Returns the lines.
    pub fn text(&self, header: &PlanHeader) -> Vec<u8> {
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
        if self.from_alternates > 0 {
            put_count(&mut line, self.from_alternates, 1);
            line.extend_from_slice(b" from other trees, ");
        }
        put_count(&mut line, self.deleted, 1);
        line.extend_from_slice(b" deleted");
        put_line(&mut out, &line);
        put_largest(&mut out, b"most bytes:", &self.bytes_by_dir);
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
    let mut out = Vec::new();
    put_line(&mut out, &line);
    out
}

fn put_line(out: &mut Vec<u8>, line: &[u8]) {
    escape::put(out, line, Charset::for_locale(true, false));
    out.push(b'\n');
}

/// Adds to the count of the directory that contains a path.
fn count(by_dir: &mut HashMap<Vec<u8>, u64>, path: &[u8], add: u64) {
    let (dir, _) = crate::path::split_parent(path);
    if let Some(count) = by_dir.get_mut(dir) {
        *count = count.saturating_add(add);
        return;
    }
    let is_full = by_dir.len() >= DIRS_MAX;
    let counted = if is_full { b"" } else { dir };
    let count = by_dir.entry(counted.to_vec()).or_default();
    *count = count.saturating_add(add);
}

fn put_largest(out: &mut Vec<u8>, title: &[u8], by_dir: &HashMap<Vec<u8>, u64>) {
    let mut dirs: Vec<_> = by_dir.iter().filter(|(_, count)| **count > 0).collect();
    if dirs.is_empty() {
        return;
    }
    dirs.sort_unstable_by(|(dir, count), (other, more)| more.cmp(count).then(dir.cmp(other)));
    put_line(out, title);
    for (dir, count) in dirs.into_iter().take(DIRS_SHOWN) {
        let mut line = b"    ".to_vec();
        put_count(&mut line, *count, 1);
        line.extend_from_slice(b" in ");
        if dir.is_empty() {
            line.extend_from_slice(b"the destination itself");
        } else {
            line.extend_from_slice(dir);
            line.push(b'/');
        }
        put_line(out, &line);
    }
}

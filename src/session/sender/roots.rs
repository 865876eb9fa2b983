//! The first message of a sender, about the source arguments, and what it keeps of that.

use crate::flist::{DirList, Entry};
use crate::fs::acl;
use crate::fs::ids::Ids;
use crate::path::RelPath;
use crate::plan::idmap::IdClass;
use crate::proto::limits::LINES_MAX;
use crate::proto::{IdName, Roots, is_id_name};
use crate::report::event::{Problem, Weight};
use crate::session::source_prefetch::PrefetchStart;
use crate::walk::run_context::RunContext;
use crate::walk::source_args::Gathered;
use std::cmp::Ordering;
use std::collections::HashSet;

/// How much of [`Roots`], which cannot be split, problems and notes may take each.
const TROUBLE_MAX_BYTES: usize = 8 << 20;

/// Returns how many lines fit into [`Roots`].
fn fit_into_roots<T>(lines: &[T], len_bytes: impl Fn(&T) -> usize) -> usize {
    let mut left_bytes = TROUBLE_MAX_BYTES;
    let fits = |line: &&T| {
        left_bytes = left_bytes.saturating_sub(len_bytes(line));
        left_bytes > 0
    };
    lines.iter().take(LINES_MAX).take_while(fits).count()
}

/// Problems with arguments, and lines for stdout.
pub(super) type ArgumentProblems = (Vec<Problem>, Vec<Vec<u8>>);

/// Returns the problems and notes that go into [`Roots`], and those that do not fit.
fn trouble(gathered: &Gathered) -> (ArgumentProblems, ArgumentProblems) {
    let mut problems = gathered.problems.clone();
    let mut notes = gathered.notes.clone();
    let fit = |problems: &[Problem]| fit_into_roots(problems, |problem| problem.line.len());
    if fit(&problems) < problems.len() {
        // The receiver must know a problem that stops deletions before it begins.
        problems.sort_by_key(|problem| problem.weight != Weight::SourceError);
    }
    let more_problems = problems.split_off(fit(&problems));
    let more_notes = notes.split_off(fit_into_roots(&notes, Vec::len));
    ((problems, notes), (more_problems, more_notes))
}

/// What the sender keeps of the [`Roots`] that it sent.
pub struct SentRoots {
    /// The directories whose digests the receiver sends.
    pub(super) whole: Vec<RelPath>,
    /// The ids whose names were sent.
    pub(super) named: HashSet<(bool, u32)>,
    /// How many of the problems sent are failures. The receiver includes them in its counts.
    pub(super) failed: u64,
    /// The problems and notes that did not fit.
    pub(super) more: ArgumentProblems,
}

impl SentRoots {
    /// Moves the problems and notes of `roots` here, so that this end reports them, except what the receiver reports
    /// itself.
    pub(super) fn take_trouble_of(&mut self, roots: &mut Roots) {
        let (problems, notes) = &mut self.more;
        problems.splice(0..0, std::mem::take(&mut roots.problems));
        problems.retain(|problem| !problem.is_absent_parent());
        notes.splice(0..0, std::mem::take(&mut roots.notes));
        self.failed = 0;
    }
}

/// Returns the message about the source arguments, and what to keep of it. `compares`: the receiver reports what it
/// has of the directories. `lists_bare_top`: see [`DestFacts`](super::DestFacts).
pub fn sent_roots(
    run_context: &RunContext<'_>,
    compares: bool,
    lists_bare_top: bool,
    start: &PrefetchStart,
    ids: &Ids,
) -> (Roots, SentRoots) {
    let PrefetchStart { gathered, top, .. } = start;
    let mut named = SentNames {
        ids,
        sent: HashSet::new(),
        is_on: !run_context.options.preserve.numeric_ids,
    };
    let whole = if compares {
        fully_walked_paths(gathered)
    } else {
        Vec::new()
    };
    let mut ids = Vec::new();
    let top = match top {
        Some(entry) if gathered.sends_top(lists_bare_top) => {
            named.name(entry, &mut ids);
            let mut list = DirList::default();
            list.push_entry(b".", entry.clone());
            Some(list)
        }
        _ => None,
    };
    let ((problems, notes), more) = trouble(gathered);
    let failed = problems
        .iter()
        .filter(|problem| problem.weight == Weight::Failed)
        .count() as u64;
    let roots = Roots {
        found: gathered.found as u64,
        single: gathered.single.clone(),
        lone_dir_is_bare: gathered
            .lone_dir
            .as_ref()
            .map(|dir| dir.is_bare(run_context)),
        top,
        top_shown: gathered
            .top
            .as_ref()
            .map(|(_, base)| base.shown.clone())
            .unwrap_or_default(),
        missing: gathered.missing.clone(),
        whole: whole.clone(),
        problems,
        notes,
        ids,
    };
    (
        roots,
        SentRoots {
            whole,
            named: named.sent,
            failed,
            more,
        },
    )
}

/// The ids whose names were sent to the receiver.
pub(super) struct SentNames<'a> {
    /// The names of the ids.
    pub(super) ids: &'a Ids,
    /// Which names were sent: of a group or user, and its number.
    pub(super) sent: HashSet<(bool, u32)>,
    /// Names are sent at all.
    pub(super) is_on: bool,
}

impl SentNames<'_> {
    /// Adds the names of an entry's ids, also of those in its ACLs, once each.
    pub(super) fn name(&mut self, entry: &Entry, names: &mut Vec<IdName>) {
        let (access, default) = entry.acls();
        let in_acls = [access, default].into_iter().flat_map(acl::named_ids);
        for (is_group, id) in [(false, entry.uid), (true, entry.gid)]
            .into_iter()
            .chain(in_acls)
        {
            if !self.is_on || !self.sent.insert((is_group, id)) {
                continue;
            }
            // The number alone counts for an id whose name is broken.
            if let Some(name) = self.ids.name(IdClass::new(is_group), id)
                && is_id_name(&name)
            {
                names.push(IdName {
                    is_group,
                    id,
                    name: name.to_vec(),
                });
            }
        }
    }
}

/// Returns the directories that are walked completely, in the order of the walk. None is below another.
fn fully_walked_paths(gathered: &Gathered) -> Vec<RelPath> {
    let mut paths: Vec<RelPath> = gathered
        .whole
        .iter()
        .map(|(_, path)| path.clone())
        .collect();
    paths.sort_by(compare_walked);
    paths.dedup_by(|later, earlier| later == earlier || is_below(later, earlier));
    paths
}

/// Whether a path lies below another.
pub fn is_below(path: &RelPath, above: &RelPath) -> bool {
    let rest = path.as_bytes().strip_prefix(above.as_bytes());
    rest.is_some_and(|rest| !rest.is_empty() && (above.is_root() || rest[0] == b'/'))
}

/// Compares directories by the order of the walk: parents before children, siblings as in a list.
pub fn compare_walked(a: &RelPath, b: &RelPath) -> Ordering {
    let parts = |path: &'_ RelPath| -> Vec<Vec<u8>> {
        path.as_bytes()
            .split(|&b| b == b'/')
            .filter(|part| !part.is_empty())
            .map(<[u8]>::to_vec)
            .collect()
    };
    let a = parts(a);
    let b = parts(b);
    for (one, other) in a.iter().zip(&b) {
        match crate::flist::order::compare((one, true), (other, true)) {
            Ordering::Equal => {}
            order => return order,
        }
    }
    a.len().cmp(&b.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flist::entry::Stat;
    use crate::proto::{Encoder, Message, Native};

    #[test]
    fn ids_whose_names_no_message_can_have_are_not_named() {
        let long = vec![b'n'; 2000];
        let named = [(1, &b"one"[..]), (2, b""), (3, &long), (4, b"with/slash")];
        let users = named.map(|(id, name)| (id, Some(name.into())));
        let groups = [(0, None)];
        let ids = Ids::knowing([users.to_vec(), groups.to_vec()], Default::default());
        let mut names = SentNames {
            ids: &ids,
            sent: HashSet::new(),
            is_on: true,
        };
        let mut sent = Vec::new();
        for (uid, _) in named {
            let entry = Entry::from_stat(&Stat {
                uid,
                ..Stat::default()
            });
            names.name(&entry, &mut sent);
        }
        let sent: Vec<_> = sent.iter().map(|name| &name.name[..]).collect();
        assert_eq!(sent, [&b"one"[..], b"with/slash"]);
    }

    #[test]
    fn roots_fit_one_message_despite_many_problems() {
        for (count, len_bytes) in [
            (3, 10),
            (LINES_MAX + 1, 10),
            (LINES_MAX, 1024),
            (100, 256 << 10),
        ] {
            let notes = vec![vec![b'x'; len_bytes]; count];
            let problems: Vec<Problem> = notes
                .iter()
                .map(|line| Problem::new(line.clone(), Weight::Failed))
                .collect();
            let mut roots = Roots {
                problems,
                notes,
                ..Roots::default()
            };
            let whole =
                Native::new(1).encode(&Message::Roots(Box::new(roots.clone())), &mut Vec::new());
            assert_eq!(whole.is_ok(), count <= LINES_MAX, "{count} of {len_bytes}");
            roots
                .problems
                .truncate(fit_into_roots(&roots.problems, |problem| {
                    problem.line.len()
                }));
            roots.notes.truncate(fit_into_roots(&roots.notes, Vec::len));
            assert!(roots.notes.len() >= count.min(2000) / 4);
            Native::new(1)
                .encode(&Message::Roots(Box::new(roots)), &mut Vec::new())
                .unwrap();
        }
    }
}

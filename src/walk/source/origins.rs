//! The subdirectories of a listing: which are walked, and from which source directories they come.

use super::SourceWalk;
use crate::filter::{Side, Verdict};
use crate::flist::{DirList, Entry, Kind};
use crate::fs::errno;
use crate::proto::SubdirFlags;
use crate::report::event::{Problem, Weight};
use crate::walk::dir_plan::ListedDir;
use crate::walk::source_task::{Listing, NamedContent, NamedEntry, Node, Origin, SourceTask};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

impl SourceWalk<'_> {
    /// Returns the tasks of the subdirectories, and records in `found.listing.subs` how each is walked.
    pub(super) fn tasks_below(
        &self,
        found: &mut ListedDir,
        origins: &[Origin],
        node: Option<&Node>,
        repeated: &HashSet<Vec<u8>>,
    ) -> Vec<(u32, SourceTask)> {
        let mut tasks = Vec::new();
        let mut problems = Vec::new();
        // rsync also reads per-directory rule files above the first directory of a run, and only above that one.
        let mut is_first = found.listing.path.is_root() && found.listing.is_named;
        for at in 0..found.listing.list.len() {
            let entry = &found.listing.list.entries[at];
            if !entry.is_dir() {
                continue;
            }
            let name = found.listing.list.name(entry);
            let (mut below, is_implied) =
                self.origins_below(found, origins, node, entry, &mut problems);
            let is_named = is_named(&below);
            let is_repeated = repeated.contains(name);
            found.listing.subs.push(SubdirFlags {
                is_walked: !below.is_empty(),
                is_implied,
                is_named,
                is_repeated,
            });
            if below.is_empty() {
                continue;
            }
            if found.listing.path.is_root() {
                for origin in below.iter_mut().skip(usize::from(is_first)) {
                    origin.chain = origin.chain.for_further_source();
                }
                is_first = false;
            }
            let path = found.listing.path.join(name);
            let node = node.and_then(|node| node.children.get(name).cloned());
            tasks.push((
                at as u32,
                SourceTask {
                    path,
                    origins: below,
                    node,
                },
            ));
        }
        found.listing.problems.append(&mut problems);
        tasks
    }

    /// Returns the origins of the entries in a subdirectory, and whether the subdirectory is only implied by `-R`.
    fn origins_below(
        &self,
        found: &ListedDir,
        origins: &[Origin],
        node: Option<&Node>,
        entry: &Entry,
        problems: &mut Vec<Problem>,
    ) -> (Vec<Origin>, bool) {
        let name = found.listing.list.name(entry);
        let mut below = Vec::new();
        let mut implied = true;
        for (index, origin) in origins.iter().enumerate() {
            let Some(place) = &found.places[index] else {
                continue;
            };
            let (content, followed, source_name, arguments, chain) = match &origin.listing {
                Listing::All { below, arguments } => {
                    // With several origins the entry may come from another one, and the rules of this one may exclude
                    // it.
                    let is_excluded = || {
                        let verdict = origin.chain.verdict(
                            Side::Sender,
                            found.listing.path.join(name).as_bytes(),
                            true,
                        );
                        !origin.chain.is_empty() && verdict != Verdict::Include
                    };
                    if origins.len() > 1 && is_excluded() {
                        continue;
                    }
                    implied &= origins.len() > 1
                        && self
                            .examine(place, name, &found.listing.path, false)
                            .is_err();
                    let content = if *below {
                        NamedContent::Full
                    } else {
                        NamedContent::None
                    };
                    (content, false, name, arguments.clone(), &origin.chain)
                }
                Listing::Named(names) => {
                    let Some(named) = find_named(names, name) else {
                        continue;
                    };
                    implied &= named.implied;
                    let chain = named.rules.as_ref().unwrap_or(&origin.chain);
                    let arguments = named.content_arguments.as_slice().into();
                    (
                        named.content,
                        named.followed,
                        named.name.as_slice(),
                        arguments,
                        chain,
                    )
                }
            };
            // With one origin the entry comes from it. With several, each is examined.
            let is_entered = || match origins.len() {
                1 => Ok(!entry
                    .extra
                    .as_ref()
                    .is_some_and(|extra| extra.is_mount_point)),
                _ => self
                    .stat_following(place, source_name, &found.listing.path, followed)
                    .map(|(stat, _)| {
                        Kind::of_mode(stat.mode) == Some(Kind::Dir)
                            && !Self::is_mount_point(origin, &stat)
                    }),
            };
            if content == NamedContent::None {
                continue;
            }
            match is_entered() {
                Ok(true) => {}
                Err(error) if !errno::is_unreachable(&error) => {
                    problems.push(self.stat_problem(place, source_name, false, &error));
                    continue;
                }
                Ok(false) | Err(_) => continue,
            }
            below.push(Origin {
                base: origin.base.clone(),
                path: origin.path.join(source_name),
                listing: Listing::All {
                    below: content == NamedContent::Full,
                    arguments,
                },
                chain: chain.clone(),
                dev: origin.dev,
            });
        }
        if let Some(node) = node.and_then(|node| node.children.get(name)) {
            below.extend(node.origins.iter().map(|named| {
                let entered = origins
                    .iter()
                    .find(|origin| Arc::ptr_eq(&origin.base, &named.base));
                Origin {
                    chain: entered.unwrap_or(named).chain.clone(),
                    ..named.clone()
                }
            }));
        }
        if !self.select.no_inc_recursive {
            leave_out_repeated(&mut below);
        }
        (below, implied)
    }
}

/// Leaves out what rsync does not list if it recurses incrementally: as long as the first directory follows itself in the
/// list, every second one.
fn leave_out_repeated(below: &mut Vec<Origin>) {
    let arguments_of = |origin: &Origin| match &origin.listing {
        Listing::All { arguments, .. } => arguments.clone(),
        Listing::Named(_) => Arc::default(),
    };
    if let [origin] = &below[..]
        && arguments_of(origin).len() <= 1
    {
        return;
    }
    let by_argument =
        |origin: &&Origin| arguments_of(origin).first().copied().unwrap_or(usize::MAX);
    let Some(first) = below.iter().min_by_key(by_argument) else {
        return;
    };
    let base = first.base.clone();
    let path = first.path.clone();
    let is_first = |origin: &Origin| Arc::ptr_eq(&origin.base, &base) && origin.path == path;
    let end = below
        .iter()
        .filter(|origin| !is_first(origin))
        .map(|origin| by_argument(&origin))
        .min();
    let follows = |argument: usize| end.is_none_or(|end| argument < end);
    let repeated = below
        .iter()
        .filter(|origin| is_first(origin))
        .map(arguments_of);
    let repeated: usize = repeated
        .map(|arguments| arguments.iter().filter(|&&it| follows(it)).count())
        .sum();
    let mut left = repeated.div_ceil(2);
    below.retain_mut(|origin| {
        let is_first = is_first(origin);
        let Listing::All { arguments, .. } = &mut origin.listing else {
            return true;
        };
        let mut is_listed = |argument: usize| {
            let is_left_out = is_first && follows(argument) && left == 0;
            left -= usize::from(is_first && follows(argument) && !is_left_out);
            !is_left_out
        };
        *arguments = arguments
            .iter()
            .copied()
            .filter(|&argument| is_listed(argument))
            .collect();
        !arguments.is_empty()
    });
}

/// Returns the entry that is called `name` in the transfer. A renamed entry is the only one.
fn find_named<'a>(names: &'a [NamedEntry], name: &[u8]) -> Option<&'a NamedEntry> {
    let called = |named: &NamedEntry| named.renamed.as_deref().unwrap_or(&named.name).cmp(name);
    names.binary_search_by(called).ok().map(|at| &names[at])
}

/// Returns how often rsync's list has an entry because of its origin.
pub(super) fn times_of(origins: &[Origin], name: &[u8], entry: &Entry) -> u64 {
    match &origins[entry.origin as usize].listing {
        Listing::All { arguments, .. } => arguments.len() as u64,
        Listing::Named(names) => find_named(names, name).map_or(1, |named| named.times),
    }
}

/// Returns whether no origin lists its whole content.
pub(super) fn is_named(origins: &[Origin]) -> bool {
    !origins
        .iter()
        .any(|origin| matches!(origin.listing, Listing::All { .. }))
}

/// How many source directories may make up one directory of the transfer: as many as [`Entry::origin`] can number.
const ORIGINS_MAX: usize = 1 << 16;

/// Drops the origins beyond the maximum and reports it: an entry must not be read from another directory than its own.
pub(super) fn leave_out_further(origins: &mut Vec<Origin>, found: &mut ListedDir) {
    if origins.len() > ORIGINS_MAX {
        let line = format!(
            "sparsync: skipping {} source directories: more than {ORIGINS_MAX} merge into one: copy them in several runs",
            origins.len() - ORIGINS_MAX
        );
        found
            .listing
            .problems
            .push(Problem::new(line.into_bytes(), Weight::SourceError));
        found.listing.may_delete = false;
        origins.truncate(ORIGINS_MAX);
    }
}

/// Returns the names of the directories that rsync's list has more than once.
pub(super) fn repeated_dirs(list: &DirList, origins: &[Origin]) -> HashSet<Vec<u8>> {
    if let [
        Origin {
            listing: Listing::All { arguments, .. },
            ..
        },
    ] = origins
        && arguments.len() == 1
    {
        return HashSet::new();
    }
    let mut times: HashMap<&[u8], u64> = HashMap::new();
    for entry in list.entries.iter().filter(|entry| entry.is_dir()) {
        *times.entry(list.name(entry)).or_default() += times_of(origins, list.name(entry), entry);
    }
    times
        .into_iter()
        .filter(|(_, times)| *times > 1)
        .map(|(name, _)| name.to_vec())
        .collect()
}

/// Keeps the entry of the first argument of each name. A directory wins over any other kind, because it may have
/// content.
pub(super) fn drop_duplicates(list: &mut DirList, origins: &[Origin]) {
    let dirs: HashSet<&[u8]> = list
        .entries
        .iter()
        .filter(|e| e.is_dir())
        .map(|e| list.name(e))
        .collect();
    let argument = |entry: &Entry| match &origins[entry.origin as usize].listing {
        Listing::All { arguments, .. } => arguments.first().copied().unwrap_or(0),
        Listing::Named(names) => {
            find_named(names, list.name(entry)).map_or(0, |named| named.argument)
        }
    };
    let same = |a: &Entry, b: &Entry| a.is_dir() == b.is_dir() && list.name(a) == list.name(b);
    let mut keep = vec![false; list.len()];
    let mut from = 0;
    for entries in list.entries.chunk_by(same) {
        let first = (0..entries.len())
            .min_by_key(|&at| argument(&entries[at]))
            .unwrap_or(0);
        keep[from + first] = entries[0].is_dir() || !dirs.contains(list.name(&entries[0]));
        from += entries.len();
    }
    let mut keep = keep.into_iter();
    list.entries.retain(|_| keep.next().unwrap_or(true));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{ChainOptions, Rules};
    use crate::fs::root::{Dir, Root};
    use crate::fs::sys::{self, Follow};
    use crate::path::RelPath;
    use crate::walk::source_dir::{Base, BaseRoot};

    fn origin(listing: Listing) -> Origin {
        let chain = Rules::new(Vec::new(), ChainOptions::default()).chain(Side::Sender, b"/");
        let root = BaseRoot::Open(Root::new(
            Dir::new(sys::open_dir_path(b"/").unwrap()),
            b"/".to_vec(),
            Follow::Never,
        ));
        let base = Arc::new(Base {
            root,
            shown: Vec::new(),
            chain: chain.clone(),
        });
        Origin {
            base,
            path: RelPath::root(),
            listing,
            chain,
            dev: None,
        }
    }

    #[test]
    fn origins_beyond_the_maximum_are_skipped() {
        let listing = Listing::Named(Arc::new(Vec::new()));
        let mut origins = vec![origin(listing); ORIGINS_MAX];
        let mut found = ListedDir::default();
        found.listing.may_delete = true;
        leave_out_further(&mut origins, &mut found);
        assert!(found.listing.problems.is_empty() && found.listing.may_delete);
        origins.extend_from_within(..3);
        leave_out_further(&mut origins, &mut found);
        assert_eq!(
            (
                origins.len(),
                found.listing.problems.len(),
                found.listing.may_delete
            ),
            (ORIGINS_MAX, 1, false)
        );
        assert!(
            found.listing.problems[0]
                .line
                .starts_with(b"sparsync: skipping 3 source directories")
        );
    }
}

//! Finds the files of the destination, and of alternate trees, whose content new files take: `--detect-renamed`.

use crate::digest::CONTENT_LEN_BYTES;
use crate::flist::Time;
use crate::path::RelPath;
use std::collections::{HashMap, HashSet};

/// When a file counts as equal to a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Criterion {
    /// It has the same length and digest.
    Digest,
    /// It has the same length. It is only the basis of the new one.
    Length,
    /// It has the same length, time and name.
    Moved,
    /// It has the same length and time.
    Quick,
}

/// A regular file that the destination lacks.
#[derive(Debug, Clone)]
pub struct AbsentFile {
    pub path: RelPath,
    pub len_bytes: u64,
    pub mtime: Time,
    /// The digest of its content, if it is known.
    pub digest: Option<[u8; CONTENT_LEN_BYTES]>,
    /// It may get its content by renaming another file, and need not have it before the end of the run.
    pub may_be_renamed: bool,
    /// It may be copied from another new file at the end of the run.
    pub may_be_late: bool,
    /// It may be another name of a file of an alternate tree.
    pub may_be_linked: bool,
}

/// A regular file of the destination, which keeps its content until the run deletes it, if it does, or of an alternate
/// tree.
#[derive(Debug, Clone)]
pub struct TwinCandidate {
    /// The index of the alternate tree; `None`: it is at the destination.
    pub tree: Option<usize>,
    /// Its path there.
    pub path: RelPath,
    /// Device and inode.
    pub inode: (u64, u64),
    pub len_bytes: u64,
    pub mtime: Time,
    /// The digest of its content, if it is known.
    pub digest: Option<[u8; CONTENT_LEN_BYTES]>,
    /// The run will probably delete it.
    pub is_extra: bool,
    /// It has no other name either, so it can be renamed.
    pub is_left_over: bool,
    /// It is in a tree of `--link-dest`, and the destination has no name of it.
    pub is_linkable: bool,
}

/// The file whose content a new file takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TwinMatch {
    /// The candidate with this index is renamed.
    Renamed(usize),
    /// The candidate with this index gets another name, if all attributes are equal. Otherwise it is copied.
    Linked(usize),
    /// The candidate with this index is copied.
    Copied(usize),
    /// The new file with this index is copied at the end of the run.
    CopiedFromNew(usize),
}

/// How many candidates are compared with a new file to find the nearest one.
const COMPARED_MAX: usize = 64;

/// If there are more files of one length, only those are read whose times are equal, too.
const READ_MAX: usize = 8;

/// What two files that count as equal have in common, as far as it matters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    len_bytes: u64,
    mtime: Option<Time>,
    name: Option<&'a [u8]>,
    digest: Option<&'a [u8; CONTENT_LEN_BYTES]>,
}

impl<'a> Key<'a> {
    /// Returns what is known of a file before its content is read. Files that count as equal have the same.
    pub fn before_reading(
        criterion: Criterion,
        name: &'a [u8],
        len_bytes: u64,
        mtime: Time,
    ) -> Key<'a> {
        let (mtime, name) = match criterion {
            Criterion::Digest | Criterion::Length => (None, None),
            Criterion::Moved => (Some(mtime), Some(name)),
            Criterion::Quick => (Some(mtime), None),
        };
        Key {
            len_bytes,
            mtime,
            name,
            digest: None,
        }
    }

    /// Returns the key of a file, or `None` if it needs a digest that is not known.
    fn new(
        criterion: Criterion,
        name: &'a [u8],
        (len_bytes, mtime): (u64, Time),
        digest: Option<&'a [u8; CONTENT_LEN_BYTES]>,
    ) -> Option<Key<'a>> {
        let key = Key::before_reading(criterion, name, len_bytes, mtime);
        match criterion {
            Criterion::Digest => Some(Key {
                digest: Some(digest?),
                ..key
            }),
            Criterion::Length | Criterion::Moved | Criterion::Quick => Some(key),
        }
    }
}

impl AbsentFile {
    fn key(&self, criterion: Criterion) -> Option<Key<'_>> {
        Key::new(
            criterion,
            self.path.name(),
            (self.len_bytes, self.mtime),
            self.digest.as_ref(),
        )
    }
}

impl TwinCandidate {
    fn key(&self, criterion: Criterion) -> Option<Key<'_>> {
        Key::new(
            criterion,
            self.path.name(),
            (self.len_bytes, self.mtime),
            self.digest.as_ref(),
        )
    }
}

/// The indices of files that are worth reading, ascending.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WorthReading {
    pub new: Vec<usize>,
    pub candidates: Vec<usize>,
}

/// The files of one length.
#[derive(Default)]
struct SameLength {
    new: Vec<usize>,
    candidates: Vec<usize>,
}

/// Returns which files can be equal to each other: new files to candidates, and new files to other new files.
pub fn worth_reading(new: &[AbsentFile], candidates: &[TwinCandidate]) -> WorthReading {
    let mut by_len: HashMap<u64, SameLength> = HashMap::new();
    for (at, file) in new.iter().enumerate() {
        by_len.entry(file.len_bytes).or_default().new.push(at);
    }
    for (at, candidate) in candidates.iter().enumerate() {
        if let Some(same) = by_len.get_mut(&candidate.len_bytes) {
            same.candidates.push(at);
        }
    }

    let mut worth = WorthReading::default();
    for same in by_len.into_values() {
        let is_many = same.candidates.len() > READ_MAX;
        let new_times: HashSet<Time> = same.new.iter().map(|&at| new[at].mtime).collect();
        let mut times = HashSet::new();
        for &at in &same.candidates {
            if !is_many || new_times.contains(&candidates[at].mtime) {
                worth.candidates.push(at);
                times.insert(candidates[at].mtime);
            }
        }
        let has_candidates = !times.is_empty();

        // More than one of them can have the same content.
        let are_many = same.new.len() > READ_MAX;
        let mut counts: HashMap<Time, usize> = HashMap::new();
        for &at in &same.new {
            *counts.entry(new[at].mtime).or_default() += 1;
        }
        for &at in &same.new {
            let mtime = new[at].mtime;
            let has_candidate = has_candidates && (!is_many || times.contains(&mtime));
            let has_other = same.new.len() > 1 && (!are_many || counts[&mtime] > 1);
            if has_candidate || has_other {
                worth.new.push(at);
            }
        }
    }
    worth.new.sort_unstable();
    worth.candidates.sort_unstable();
    worth
}

/// The candidates with one key.
#[derive(Default)]
struct Equal {
    /// Those that can still be renamed. The one with the smallest path is the last one.
    left_over: Vec<usize>,
    /// The others, the one with the smallest path first. Those that will be renamed can be copied before.
    others: Vec<usize>,
    /// Those of `others` that can still be linked. The one with the smallest path is the last one.
    linkable: Vec<usize>,
}

/// Finds a candidate for each new file, in the order of `new`. Each candidate is renamed once at most, and gets one new
/// name at most, so that new files never become names of one file. With [`Criterion::Digest`], a new file without a
/// candidate is copied from the first equal one of `new`, if there is one.
///
/// What can be renamed is preferred, because that copies nothing; then what can be linked; then the same name, then the
/// nearest path, then the destination, then the smallest path. The order of the candidates does not matter.
pub fn matches(
    criterion: Criterion,
    new: &[AbsentFile],
    candidates: &[TwinCandidate],
) -> Vec<Option<TwinMatch>> {
    let mut by_key: HashMap<Key, Equal> = HashMap::new();
    for (at, candidate) in candidates.iter().enumerate() {
        let Some(key) = candidate.key(criterion) else {
            continue;
        };
        let equal = by_key.entry(key).or_default();
        if candidate.is_left_over {
            equal.left_over.push(at);
        } else {
            equal.others.push(at);
        }
        if candidate.is_linkable {
            equal.linkable.push(at);
        }
    }
    let place = |at: usize| {
        let TwinCandidate { path, tree, .. } = &candidates[at];
        (path.as_bytes(), *tree)
    };
    for equal in by_key.values_mut() {
        equal.others.sort_by_key(|&at| place(at));
        for last_first in [&mut equal.left_over, &mut equal.linkable] {
            last_first.sort_by(|&one, &other| place(other).cmp(&place(one)));
        }
    }

    let mut found = Vec::with_capacity(new.len());
    let mut first: HashMap<Key, usize> = HashMap::new();
    let mut linked = HashSet::new();
    for (at, file) in new.iter().enumerate() {
        let Some(key) = file.key(criterion) else {
            found.push(None);
            continue;
        };
        let mut choice = by_key
            .get_mut(&key)
            .and_then(|equal| equal.choose(criterion, file, candidates, &mut linked));
        if choice.is_none() && criterion == Criterion::Digest {
            let original = *first.entry(key).or_insert(at);
            if original != at && file.may_be_late {
                choice = Some(TwinMatch::CopiedFromNew(original));
            }
        }
        found.push(choice);
    }
    found
}

impl Equal {
    fn choose(
        &mut self,
        criterion: Criterion,
        file: &AbsentFile,
        candidates: &[TwinCandidate],
        linked: &mut HashSet<(u64, u64)>,
    ) -> Option<TwinMatch> {
        let rank = |at: usize| {
            let candidate = &candidates[at];
            // A basis is more likely to be the right one if it has the same time.
            let is_less_likely = criterion == Criterion::Length && candidate.mtime != file.mtime;
            let path = &candidate.path;
            let nearness = distance(path, &file.path);
            (is_less_likely, nearness, candidate.tree, path.as_bytes())
        };
        let nearest = |among: &mut dyn Iterator<Item = usize>| {
            among
                .take(COMPARED_MAX)
                .min_by(|&one, &other| rank(one).cmp(&rank(other)))
        };

        let left_over = nearest(&mut self.left_over.iter().rev().copied());
        if let Some(candidate) = left_over
            && file.may_be_renamed
        {
            take_near_end(&mut self.left_over, candidate);
            self.others.push(candidate);
            return Some(TwinMatch::Renamed(candidate));
        }
        while file.may_be_linked
            && let Some(at) = nearest(&mut self.linkable.iter().rev().copied())
        {
            take_near_end(&mut self.linkable, at);
            // Otherwise it got one through another of its names.
            if linked.insert(candidates[at].inode) {
                return Some(TwinMatch::Linked(at));
            }
        }
        let other = nearest(&mut self.others.iter().copied());
        let candidate = nearest(&mut other.into_iter().chain(left_over))?;
        Some(TwinMatch::Copied(candidate))
    }
}

/// Removes a candidate that is one of the last [`COMPARED_MAX`].
fn take_near_end(candidates: &mut Vec<usize>, candidate: usize) {
    if let Some(at) = candidates.iter().rposition(|&it| it == candidate) {
        candidates.remove(at);
    }
}

/// Returns how far two files are from each other: whether their names differ, and how many directories one must leave
/// and enter to get from one to the other.
fn distance(one: &RelPath, other: &RelPath) -> (bool, usize) {
    let dirs = |path: &RelPath| path.parent().unwrap_or_default().as_bytes().to_vec();
    let one_dirs = dirs(one);
    let other_dirs = dirs(other);
    let elements = |dirs: &[u8]| {
        dirs.split(|&byte| byte == b'/')
            .filter(|it| !it.is_empty())
            .count()
    };
    let common = one_dirs
        .split(|&byte| byte == b'/')
        .zip(other_dirs.split(|&byte| byte == b'/'))
        .take_while(|(a, b)| a == b && !a.is_empty())
        .count();
    let steps = elements(&one_dirs) + elements(&other_dirs) - 2 * common;
    (one.name() != other.name(), steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    fn time(secs: i64, nanos: u32) -> Time {
        Time { secs, nanos }
    }

    fn new_file(text: &str, len_bytes: u64) -> AbsentFile {
        AbsentFile {
            path: path(text),
            len_bytes,
            mtime: time(5, 6),
            digest: None,
            may_be_renamed: true,
            may_be_late: true,
            may_be_linked: true,
        }
    }

    fn candidate(text: &str, len_bytes: u64, is_left_over: bool) -> TwinCandidate {
        TwinCandidate {
            tree: None,
            path: path(text),
            inode: (1, text.len() as u64),
            len_bytes,
            mtime: time(5, 6),
            digest: None,
            is_extra: is_left_over,
            is_left_over,
            is_linkable: false,
        }
    }

    fn in_tree(text: &str, ino: u64) -> TwinCandidate {
        TwinCandidate {
            tree: Some(0),
            inode: (2, ino),
            is_linkable: true,
            ..candidate(text, 3, false)
        }
    }

    fn renamed(candidate: usize) -> Option<TwinMatch> {
        Some(TwinMatch::Renamed(candidate))
    }

    fn copied(candidate: usize) -> Option<TwinMatch> {
        Some(TwinMatch::Copied(candidate))
    }

    #[test]
    fn files_of_equal_size_time_and_name_match() {
        let new = [new_file("n/a", 3), new_file("n/b", 3)];
        let candidates = [candidate("o/a", 3, true)];
        assert_eq!(
            matches(Criterion::Moved, &new, &candidates),
            [renamed(0), None]
        );
        // With `quick`, the second one takes the content before the first one takes the file.
        assert_eq!(
            matches(Criterion::Quick, &new, &candidates),
            [renamed(0), copied(0)]
        );
    }

    #[test]
    fn fractions_of_times_count() {
        let new = [AbsentFile {
            mtime: time(5, 7),
            ..new_file("n/a", 3)
        }];
        let candidates = [candidate("o/a", 3, true)];
        assert_eq!(matches(Criterion::Quick, &new, &candidates), [None]);
    }

    #[test]
    fn leftovers_come_before_near_files() {
        let new = [
            new_file("d/e/a", 3),
            new_file("d/e/f/a", 3),
            new_file("g/a", 3),
        ];
        let candidates = [
            candidate("d/a", 3, false),
            candidate("x/a", 3, true),
            candidate("d/e/x/a", 3, true),
        ];
        assert_eq!(
            matches(Criterion::Moved, &new, &candidates),
            [renamed(2), renamed(1), copied(0)]
        );
    }

    #[test]
    fn each_file_of_a_tree_gets_one_new_name() {
        let new = [
            new_file("n/a", 3),
            new_file("n/b/a", 3),
            new_file("n/c/a", 3),
            AbsentFile {
                may_be_linked: false,
                ..new_file("n/d/a", 3)
            },
        ];
        // The first two are names of one file.
        let candidates = [
            in_tree("o/a", 1),
            in_tree("o/b/a", 1),
            in_tree("p/q/r/a", 2),
            candidate("s/a", 3, false),
        ];
        assert_eq!(
            matches(Criterion::Moved, &new, &candidates),
            [
                Some(TwinMatch::Linked(0)),
                Some(TwinMatch::Linked(2)),
                copied(3),
                copied(3)
            ]
        );
        // A rename also needs no blocks, and leaves the tree alone.
        let candidates = [in_tree("o/a", 1), candidate("s/a", 3, true)];
        assert_eq!(
            matches(Criterion::Moved, &new[..2], &candidates),
            [renamed(1), Some(TwinMatch::Linked(0))]
        );
    }

    #[test]
    fn file_that_must_not_be_renamed_is_copied() {
        let new = [AbsentFile {
            may_be_renamed: false,
            ..new_file("n/a", 3)
        }];
        let candidates = [candidate("o/a", 3, true)];
        assert_eq!(matches(Criterion::Moved, &new, &candidates), [copied(0)]);
    }

    fn any_path() -> impl Strategy<Value = RelPath> {
        let element = prop::sample::select(vec!["a", "b", "c"]);
        prop::collection::vec(element, 1..4).prop_map(|elements| path(&elements.join("/")))
    }

    fn with_digest(file: AbsentFile, byte: u8) -> AbsentFile {
        AbsentFile {
            digest: Some([byte; CONTENT_LEN_BYTES]),
            ..file
        }
    }

    #[test]
    fn equal_new_files_are_copied_from_the_first() {
        let new = [
            with_digest(new_file("a", 3), 1),
            with_digest(new_file("b", 3), 2),
            with_digest(new_file("c", 3), 1),
            AbsentFile {
                may_be_late: false,
                ..with_digest(new_file("d", 3), 1)
            },
            new_file("e", 3),
            with_digest(new_file("f", 3), 3),
        ];
        let equal = TwinCandidate {
            digest: Some([3; CONTENT_LEN_BYTES]),
            ..candidate("x", 3, false)
        };
        let unread = candidate("y", 3, true);
        assert_eq!(
            matches(Criterion::Digest, &new, &[unread, equal]),
            [
                None,
                None,
                Some(TwinMatch::CopiedFromNew(0)),
                None,
                None,
                copied(1)
            ]
        );
    }

    #[test]
    fn of_many_files_of_one_length_only_those_with_equal_times_are_read() {
        let of_len = |len_bytes, secs| AbsentFile {
            mtime: time(secs, 0),
            ..new_file(&format!("n{len_bytes}-{secs}"), len_bytes)
        };
        let candidate_of = |len_bytes, secs: i64| TwinCandidate {
            mtime: time(secs, 0),
            ..candidate(&format!("o{len_bytes}-{secs}"), len_bytes, true)
        };
        // A file without another of its length, two that can be equal to each other, and one that has a candidate.
        let new = [of_len(1, 1), of_len(2, 1), of_len(2, 2), of_len(3, 1)];
        let candidates = [candidate_of(3, 7), candidate_of(4, 1)];
        let worth = worth_reading(&new, &candidates);
        assert_eq!((worth.new, worth.candidates), (vec![1, 2, 3], vec![0]));

        let few: Vec<_> = (0..8).map(|secs| candidate_of(1, secs)).collect();
        let worth = worth_reading(&[of_len(1, 3)], &few);
        assert_eq!((worth.new.len(), worth.candidates.len()), (1, 8));
        let many: Vec<_> = (0..9).map(|secs| candidate_of(1, secs)).collect();
        let worth = worth_reading(&[of_len(1, 3), of_len(2, 1)], &many);
        assert_eq!((worth.new, worth.candidates), (vec![0], vec![3]));
        let worth = worth_reading(&[of_len(1, 9)], &many);
        assert_eq!(worth, WorthReading::default());

        let many: Vec<_> = (0..9).map(|at| of_len(1, at / 2)).collect();
        assert_eq!(worth_reading(&many, &[]).new, (0..8).collect::<Vec<_>>());
    }

    fn any_new() -> impl Strategy<Value = AbsentFile> {
        (any_path(), 1..3_u64, 0..2_u32, any::<bool>()).prop_map(
            |(path, len_bytes, nanos, may_be_renamed)| AbsentFile {
                path,
                len_bytes,
                mtime: time(0, nanos),
                digest: None,
                may_be_renamed,
                may_be_late: true,
                may_be_linked: true,
            },
        )
    }

    fn any_candidate() -> impl Strategy<Value = TwinCandidate> {
        (any_path(), 1..3_u64, 0..2_u32, any::<bool>()).prop_map(
            |(path, len_bytes, nanos, is_left_over)| TwinCandidate {
                tree: None,
                path,
                inode: (0, 0),
                len_bytes,
                mtime: time(0, nanos),
                digest: None,
                is_extra: is_left_over,
                is_left_over,
                is_linkable: false,
            },
        )
    }

    proptest! {
        /// A new file has a match if and only if there is an equal candidate, which is renamed once at most, and only
        /// if both permit that.
        #[test]
        fn matches_are_equal_files(
            new in prop::collection::vec(any_new(), 0..12),
            candidates in prop::collection::vec(any_candidate(), 0..12),
            is_quick in any::<bool>(),
        ) {
            let mut candidates = candidates;
            candidates.sort_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
            candidates.dedup_by(|a, b| a.path == b.path);
            let how = if is_quick { Criterion::Quick } else { Criterion::Moved };

            let found = matches(how, &new, &candidates);
            let mut renamed = Vec::new();
            for (file, found) in new.iter().zip(&found) {
                let has_equal = candidates.iter().any(|it| it.key(how) == file.key(how));
                prop_assert_eq!(found.is_some(), has_equal);
                let Some(found) = found else { continue };
                let (TwinMatch::Renamed(at) | TwinMatch::Copied(at)) = *found else {
                    panic!("a candidate was expected");
                };
                let candidate = &candidates[at];
                prop_assert_eq!(candidate.key(how), file.key(how));
                if *found == TwinMatch::Renamed(at) {
                    prop_assert!(file.may_be_renamed && candidate.is_left_over);
                    prop_assert!(!renamed.contains(&at));
                    renamed.push(at);
                }
            }
        }
    }
}

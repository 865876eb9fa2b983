//! Finds the files of the destination, and of alternate trees, whose content new files take: `--detect-renamed`.

use crate::digest::CONTENT_LEN_BYTES;
use crate::flist::Time;
use crate::path::{RelPath, split_parent};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

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

/// The digest of the content of a file.
pub type Digest = [u8; CONTENT_LEN_BYTES];

/// A regular file that the destination lacks, or has with another content.
#[derive(Debug, Clone, Copy)]
pub struct NeededFile<'a> {
    pub dir: &'a RelPath,
    pub name: &'a [u8],
    pub len_bytes: u64,
    pub mtime: Time,
    /// The digest of its content, if it is known.
    pub digest: Option<&'a Digest>,
    /// It may get its content by renaming another file, and need not have it before the end of the run.
    pub may_be_renamed: bool,
    /// It may be copied from another new file at the end of the run.
    pub may_be_late: bool,
    /// It may be another name of a file of an alternate tree.
    pub may_be_linked: bool,
    /// It may take the content of a file that the run changes, if that waits until it has its name.
    pub may_be_awaited: bool,
    /// What it replaces.
    pub old: OldFile,
}

/// What the destination has under the name of a file that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldFile {
    /// Nothing.
    Missing,
    /// A file with another content; its index, if it is a candidate.
    Replaced(Option<u32>),
}

/// What the run does with a file of the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TwinFate {
    /// It keeps its content.
    Stays,
    /// It gets another content.
    Changes,
    /// It is probably deleted, and has other names.
    Extra,
    /// It is probably deleted, and has no other name, so it can be renamed.
    LeftOver,
}

impl TwinFate {
    /// Returns whether the run will probably delete the file.
    pub fn is_extra(self) -> bool {
        match self {
            TwinFate::Extra | TwinFate::LeftOver => true,
            TwinFate::Stays | TwinFate::Changes => false,
        }
    }
}

/// A regular file of the destination or of an alternate tree.
#[derive(Debug, Clone, Copy)]
pub struct TwinCandidate<'a> {
    /// The index of the alternate tree; `None`: it is at the destination.
    pub tree: Option<usize>,
    /// Its directory there.
    pub dir: &'a RelPath,
    pub name: &'a [u8],
    /// Device and inode.
    pub inode: (u64, u64),
    pub len_bytes: u64,
    pub mtime: Time,
    /// The digest of its content, if it is known.
    pub digest: Option<&'a Digest>,
    pub fate: TwinFate,
    /// It is in a tree of `--link-dest`, and the destination has no name of it.
    pub is_linkable: bool,
}

/// The candidates of a run. There can be many, so each takes little memory: those of one directory share its path.
#[derive(Debug, Default)]
pub struct TwinCandidates {
    dirs: Vec<CandidateDir>,
    /// The names, one after the other.
    names: Vec<u8>,
    files: Vec<CandidateFile>,
    /// By the index of the file; empty if no digest is known.
    digests: Vec<Option<Digest>>,
}

/// A directory with candidates.
#[derive(Debug)]
struct CandidateDir {
    tree: Option<usize>,
    path: RelPath,
    /// The device of its files.
    dev: u64,
}

/// What is stored of a candidate. The order and the types of the fields leave no gaps.
#[derive(Debug)]
struct CandidateFile {
    ino: u64,
    len_bytes: u64,
    mtime_secs: i64,
    mtime_nanos: u32,
    /// Where its name begins.
    name_at: u32,
    /// The index of its directory.
    dir: u32,
    name_len_bytes: u8,
    fate: TwinFate,
    is_linkable: bool,
}

impl CandidateFile {
    fn name<'a>(&self, names: &'a [u8]) -> &'a [u8] {
        let start = self.name_at as usize;
        &names[start..start + usize::from(self.name_len_bytes)]
    }

    fn mtime(&self) -> Time {
        Time {
            secs: self.mtime_secs,
            nanos: self.mtime_nanos,
        }
    }
}

impl TwinCandidates {
    /// Adds a candidate. One whose name is longer than names are, or of which there are too many, is left out.
    pub fn push(&mut self, file: &TwinCandidate<'_>) {
        let Ok(name_len_bytes) = u8::try_from(file.name.len()) else {
            return;
        };
        let Ok(name_at) = u32::try_from(self.names.len()) else {
            return;
        };
        if u32::try_from(self.files.len()).is_err() {
            return;
        }
        let (dev, ino) = file.inode;
        let is_in_last = self
            .dirs
            .last()
            .is_some_and(|last| (last.tree, last.dev, &last.path) == (file.tree, dev, file.dir));
        if !is_in_last {
            self.dirs.push(CandidateDir {
                tree: file.tree,
                path: file.dir.clone(),
                dev,
            });
        }
        self.names.extend_from_slice(file.name);
        self.files.push(CandidateFile {
            ino,
            len_bytes: file.len_bytes,
            mtime_secs: file.mtime.secs,
            mtime_nanos: file.mtime.nanos,
            name_at,
            // There are not more directories than files.
            dir: (self.dirs.len() - 1) as u32,
            name_len_bytes,
            fate: file.fate,
            is_linkable: file.is_linkable,
        });
    }

    /// Returns how many there are.
    pub fn count(&self) -> u32 {
        self.files.len() as u32
    }

    /// Returns the candidate with this index.
    pub fn get(&self, at: u32) -> TwinCandidate<'_> {
        let file = &self.files[at as usize];
        let dir = &self.dirs[file.dir as usize];
        let digest = self.digests.get(at as usize);
        TwinCandidate {
            tree: dir.tree,
            dir: &dir.path,
            name: file.name(&self.names),
            inode: (dir.dev, file.ino),
            len_bytes: file.len_bytes,
            mtime: file.mtime(),
            digest: digest.and_then(Option::as_ref),
            fate: file.fate,
            is_linkable: file.is_linkable,
        }
    }

    /// Returns all, in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = TwinCandidate<'_>> {
        (0..self.count()).map(|at| self.get(at))
    }

    /// Sorts them, so that [`TwinCandidates::find`] finds each. Their indices change, and digests must not be known yet.
    pub fn sort(&mut self) {
        let TwinCandidates {
            dirs, names, files, ..
        } = self;
        let place = |file: &CandidateFile| {
            let dir = &dirs[file.dir as usize];
            (dir.tree, dir.path.as_bytes())
        };
        files.sort_unstable_by(|one, other| {
            let by_dir = if one.dir == other.dir {
                Ordering::Equal
            } else {
                place(one).cmp(&place(other))
            };
            by_dir.then_with(|| one.name(names).cmp(other.name(names)))
        });
        files.shrink_to_fit();
        names.shrink_to_fit();
    }

    /// Returns the index of a file of the destination, if it is a candidate. They must be sorted.
    pub fn find(&self, path: &RelPath) -> Option<u32> {
        self.find_in(None, path)
    }

    /// Returns the index of a file of an alternate tree, or of the destination, if it is a candidate. They must be sorted.
    pub fn find_in(&self, tree: Option<usize>, path: &RelPath) -> Option<u32> {
        let (dir, name) = split_parent(path.as_bytes());
        let found = self.files.binary_search_by(|file| {
            let its_dir = &self.dirs[file.dir as usize];
            (
                its_dir.tree,
                its_dir.path.as_bytes(),
                file.name(&self.names),
            )
                .cmp(&(tree, dir, name))
        });
        Some(found.ok()? as u32)
    }

    /// Sets the digest of a candidate.
    pub fn set_digest(&mut self, at: u32, digest: Option<Digest>) {
        self.digests.resize(self.files.len(), None);
        self.digests[at as usize] = digest;
    }

    /// Forgets the digests.
    pub fn forget_digests(&mut self) {
        self.digests = Vec::new();
    }

    /// Notes which files of alternate trees can be linked, by their devices and inodes.
    pub fn permit_links(&mut self, may_be_linked: impl Fn((u64, u64)) -> bool) {
        for file in &mut self.files {
            let dir = &self.dirs[file.dir as usize];
            file.is_linkable = dir.tree.is_some() && may_be_linked((dir.dev, file.ino));
        }
    }
}

/// The file whose content a new file takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TwinMatch {
    /// The candidate with this index is renamed.
    Renamed(u32),
    /// The candidate with this index gets another name, if all attributes are equal. Otherwise it is copied.
    Linked(u32),
    /// The candidate with this index is copied.
    Copied(u32),
    /// The new file with this index is copied at the end of the run.
    CopiedFromNew(u32),
}

/// How many candidates are compared with a new file to find the nearest one.
const COMPARED_MAX: usize = 64;

/// If there are more files of one length, only those are read whose times are equal, too.
const READ_MAX: usize = 8;

/// What two files that count as equal have in common, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key<'a> {
    len_bytes: u64,
    mtime: Option<Time>,
    name: Option<&'a [u8]>,
    digest: Option<&'a Digest>,
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
        digest: Option<&'a Digest>,
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

impl<'a> NeededFile<'a> {
    fn key(&self, criterion: Criterion) -> Option<Key<'a>> {
        let attributes = (self.len_bytes, self.mtime);
        Key::new(criterion, self.name, attributes, self.digest)
    }
}

impl<'a> TwinCandidate<'a> {
    /// Returns its path.
    pub fn path(&self) -> RelPath {
        self.dir.join(self.name)
    }

    fn key(&self, criterion: Criterion) -> Option<Key<'a>> {
        let attributes = (self.len_bytes, self.mtime);
        Key::new(criterion, self.name, attributes, self.digest)
    }

    /// Compares by the bytes of the paths.
    fn compare_paths(&self, other: &TwinCandidate<'_>) -> Ordering {
        if self.dir == other.dir {
            return self.name.cmp(other.name);
        }
        self.path().cmp(&other.path())
    }
}

/// The indices of files that are worth reading, ascending.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WorthReading {
    pub new: Vec<u32>,
    pub candidates: Vec<u32>,
}

/// A file by what is known of it before it is read.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct UnreadFile {
    len_bytes: u64,
    mtime_secs: i64,
    mtime_nanos: u32,
    /// Its index.
    at: u32,
}

impl UnreadFile {
    fn new(at: u32, len_bytes: u64, mtime: Time) -> UnreadFile {
        UnreadFile {
            len_bytes,
            mtime_secs: mtime.secs,
            mtime_nanos: mtime.nanos,
            at,
        }
    }

    /// Returns how many of these files, which have one length and are sorted, have its time.
    fn count_in(&self, sorted: &[UnreadFile]) -> usize {
        let time = (self.mtime_secs, self.mtime_nanos);
        let start = sorted.partition_point(|file| (file.mtime_secs, file.mtime_nanos) < time);
        sorted[start..].partition_point(|file| (file.mtime_secs, file.mtime_nanos) == time)
    }
}

/// Returns which files can be equal to each other: needed files to candidates, except to those that they replace, and new
/// files to other new files.
pub fn worth_reading<'a>(
    new: impl Iterator<Item = NeededFile<'a>>,
    candidates: &TwinCandidates,
) -> WorthReading {
    // Sorted lists, because tables would take several times the memory.
    let mut all_new = Vec::new();
    let mut replaced = HashMap::new();
    for (at, file) in (0..).zip(new) {
        all_new.push(UnreadFile::new(at, file.len_bytes, file.mtime));
        if let OldFile::Replaced(candidate) = file.old {
            replaced.insert(at, candidate);
        }
    }
    all_new.sort_unstable();
    let mut all_candidates = Vec::with_capacity(candidates.files.len());
    for (at, file) in (0..).zip(&candidates.files) {
        all_candidates.push(UnreadFile::new(at, file.len_bytes, file.mtime()));
    }
    all_candidates.sort_unstable();

    let mut worth = WorthReading::default();
    let mut rest = &all_candidates[..];
    for new in all_new.chunk_by(|one, other| one.len_bytes == other.len_bytes) {
        let len_bytes = new[0].len_bytes;
        rest = &rest[rest.partition_point(|file| file.len_bytes < len_bytes)..];
        let candidates = &rest[..rest.partition_point(|file| file.len_bytes == len_bytes)];

        let replaces = |file: &UnreadFile, candidate: &UnreadFile| {
            replaced.get(&file.at) == Some(&Some(candidate.at))
        };
        let are_many_candidates = candidates.len() > READ_MAX;
        for candidate in candidates {
            let is_like_any = if are_many_candidates {
                candidate.count_in(new) > 0
            } else {
                new.len() > 1 || !replaces(&new[0], candidate)
            };
            if is_like_any {
                worth.candidates.push(candidate.at);
            }
        }
        // More than one of the new files can have the same content.
        let are_many_new = new.len() > READ_MAX;
        let is_new = |file: &UnreadFile| !replaced.contains_key(&file.at);
        let new_count = new.iter().filter(|file| is_new(file)).count();
        for file in new {
            let has_candidate = if are_many_candidates {
                file.count_in(candidates) > 0
            } else {
                candidates
                    .iter()
                    .any(|candidate| !replaces(file, candidate))
            };
            let has_other = if are_many_new {
                file.count_in(new) > 1
            } else {
                new_count > 1
            };
            let has_other = has_other && is_new(file);
            if has_candidate || has_other {
                worth.new.push(file.at);
            }
        }
    }
    worth.new.sort_unstable();
    worth.candidates.sort_unstable();
    worth
}

/// Candidates from which some are taken.
struct Stock<'a> {
    criterion: Criterion,
    candidates: &'a TwinCandidates,
    /// Sorted by their keys. Of those with one key, first come those that cannot be taken, sorted by their paths, then
    /// those that were taken, then those that are left, sorted by their paths. A table of the keys would take several
    /// times the memory.
    order: Vec<u32>,
    /// By the index of the candidate.
    is_left: Vec<bool>,
}

/// Candidates with one key: where they are in the order of a stock.
struct Equal {
    gone: Range<usize>,
    left: Range<usize>,
}

impl<'a> Stock<'a> {
    /// Creates a stock of the candidates that `is_in` accepts. `is_left`: it can be taken.
    fn new(
        criterion: Criterion,
        candidates: &'a TwinCandidates,
        is_in: impl Fn(&TwinCandidate<'_>) -> bool,
        is_left: impl Fn(&TwinCandidate<'_>) -> bool,
    ) -> Stock<'a> {
        let mut order = Vec::new();
        for (at, candidate) in (0..).zip(candidates.iter()) {
            if candidate.key(criterion).is_some() && is_in(&candidate) {
                order.push(at);
            }
        }
        order.sort_unstable_by(|&one, &other| {
            let one = candidates.get(one);
            let other = candidates.get(other);
            one.key(criterion)
                .cmp(&other.key(criterion))
                .then_with(|| is_left(&one).cmp(&is_left(&other)))
                .then_with(|| one.compare_paths(&other))
                .then_with(|| one.tree.cmp(&other.tree))
        });
        let is_left = candidates.iter().map(|candidate| is_left(&candidate));
        Stock {
            criterion,
            candidates,
            order,
            is_left: is_left.collect(),
        }
    }

    /// Returns the candidates with a key.
    fn equal(&self, key: Key<'_>) -> Equal {
        let key_of = |at: u32| self.candidates.get(at).key(self.criterion);
        let start = self.order.partition_point(|&at| key_of(at) < Some(key));
        let count = self.order[start..].partition_point(|&at| key_of(at) == Some(key));
        let end = start + count;
        let gone_count = self.order[start..end].partition_point(|&at| !self.is_left[at as usize]);
        let left_start = start + gone_count;
        Equal {
            gone: start..left_start,
            left: left_start..end,
        }
    }

    /// Takes a candidate that is one of the first [`COMPARED_MAX`] of those that are left.
    fn take(&mut self, candidate: u32, left: Range<usize>) {
        let left = &mut self.order[left];
        if let Some(at) = left.iter().position(|&it| it == candidate) {
            left[..=at].rotate_right(1);
            self.is_left[candidate as usize] = false;
        }
    }
}

/// Finds a candidate for each file that is needed, in the order in which they are given. Each candidate is renamed once at
/// most, and gets one new name at most, so that new files never become names of one file. With [`Criterion::Digest`], a new
/// file without a candidate is copied from the first equal one that was given, if there is one.
///
/// What can be renamed is preferred, because that copies nothing; then what can be linked; then what stays, because its
/// content is not held; then the same name, then the nearest path, then the destination, then the smallest path. The order
/// of the candidates does not matter.
pub struct Matcher<'a> {
    criterion: Criterion,
    candidates: &'a TwinCandidates,
    /// All. Those that are renamed are taken. They can be copied before.
    all: Stock<'a>,
    /// Those that can be linked, which are taken then.
    linkable: Stock<'a>,
    /// Device and inode of those that were linked.
    linked: HashSet<(u64, u64)>,
    /// The first of the new files without a candidate, by the digest. Contents of different lengths have different ones.
    first: HashMap<&'a Digest, u32>,
}

impl<'a> Matcher<'a> {
    /// Creates it for these candidates.
    pub fn new(criterion: Criterion, candidates: &'a TwinCandidates) -> Matcher<'a> {
        let is_linkable = |candidate: &TwinCandidate<'_>| candidate.is_linkable;
        let is_left_over = |candidate: &TwinCandidate<'_>| candidate.fate == TwinFate::LeftOver;
        Matcher {
            criterion,
            candidates,
            all: Stock::new(criterion, candidates, |_| true, is_left_over),
            linkable: Stock::new(criterion, candidates, is_linkable, is_linkable),
            linked: HashSet::new(),
            first: HashMap::new(),
        }
    }

    /// Returns the match of the next new file, which has the index `at`.
    pub fn next(&mut self, at: u32, file: &NeededFile<'a>) -> Option<TwinMatch> {
        let key = file.key(self.criterion)?;
        let choice = self.choose(key, file);
        // Others have no digest.
        let is_new = file.old == OldFile::Missing;
        if choice.is_some() || self.criterion != Criterion::Digest || !is_new {
            return choice;
        }
        let original = *self.first.entry(file.digest?).or_insert(at);
        if original != at && file.may_be_late {
            Some(TwinMatch::CopiedFromNew(original))
        } else {
            None
        }
    }

    fn choose(&mut self, key: Key<'_>, file: &NeededFile<'_>) -> Option<TwinMatch> {
        let equal = self.all.equal(key);
        let left_over = self.nearest(file, &self.all.order[equal.left.clone()]);
        if let Some(candidate) = left_over
            && file.may_be_renamed
        {
            self.all.take(candidate, equal.left);
            return Some(TwinMatch::Renamed(candidate));
        }
        if file.may_be_linked
            && let Some(at) = self.take_linkable(key, file)
        {
            return Some(TwinMatch::Linked(at));
        }
        let other = self.nearest(file, &self.all.order[equal.gone]);
        let both: Vec<u32> = other.into_iter().chain(left_over).collect();
        Some(TwinMatch::Copied(self.nearest(file, &both)?))
    }

    /// Takes the nearest candidate that can be linked and has no new name yet.
    fn take_linkable(&mut self, key: Key<'_>, file: &NeededFile<'_>) -> Option<u32> {
        loop {
            let left = self.linkable.equal(key).left;
            let at = self.nearest(file, &self.linkable.order[left.clone()])?;
            self.linkable.take(at, left);
            // Otherwise it got one through another of its names.
            if self.linked.insert(self.candidates.get(at).inode) {
                return Some(at);
            }
        }
    }

    /// Returns whether a file may take the content of a candidate.
    fn may_take(&self, file: &NeededFile<'_>, at: u32) -> bool {
        let is_its_own = file.old == OldFile::Replaced(Some(at));
        let changes = self.candidates.get(at).fate == TwinFate::Changes;
        !is_its_own && (file.may_be_awaited || !changes)
    }

    /// Returns the nearest one of the first few of these candidates.
    fn nearest(&self, file: &NeededFile<'_>, among: &[u32]) -> Option<u32> {
        let rank = |candidate: &TwinCandidate<'_>| {
            // A basis is more likely to be the right one if it has the same time.
            let is_less_likely =
                self.criterion == Criterion::Length && candidate.mtime != file.mtime;
            let changes = candidate.fate == TwinFate::Changes;
            let has_other_name = candidate.name != file.name;
            let steps = distance(candidate.dir, file.dir);
            (
                is_less_likely,
                changes,
                has_other_name,
                steps,
                candidate.tree,
            )
        };
        let compared = among.iter().copied().take(COMPARED_MAX);
        let compared = compared.filter(|&at| self.may_take(file, at));
        compared.min_by(|&one, &other| {
            let one = self.candidates.get(one);
            let other = self.candidates.get(other);
            rank(&one)
                .cmp(&rank(&other))
                .then_with(|| one.compare_paths(&other))
        })
    }
}

/// Returns how many directories one must leave and enter to get from one to the other.
fn distance(one: &RelPath, other: &RelPath) -> usize {
    let one_elements = one.as_bytes().split(|&byte| byte == b'/');
    let other_elements = other.as_bytes().split(|&byte| byte == b'/');
    let common = one_elements
        .zip(other_elements)
        .take_while(|(a, b)| a == b && !a.is_empty())
        .count();
    one.depth() + other.depth() - 2 * common
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

    /// A new file of a test.
    #[derive(Debug, Clone)]
    struct NewFile {
        dir: RelPath,
        path: RelPath,
        digest: Option<Digest>,
        /// The rest.
        file: NeededFile<'static>,
    }

    /// A candidate of a test.
    #[derive(Debug, Clone)]
    struct Old {
        dir: RelPath,
        path: RelPath,
        digest: Option<Digest>,
        /// The rest.
        file: TwinCandidate<'static>,
    }

    /// Returns what stands for a directory that is set later.
    fn no_dir() -> &'static RelPath {
        static ROOT: std::sync::OnceLock<RelPath> = std::sync::OnceLock::new();
        ROOT.get_or_init(RelPath::root)
    }

    impl NewFile {
        fn get(&self) -> NeededFile<'_> {
            NeededFile {
                dir: &self.dir,
                name: self.path.name(),
                digest: self.digest.as_ref(),
                ..self.file
            }
        }
    }

    impl Old {
        fn get(&self) -> TwinCandidate<'_> {
            TwinCandidate {
                dir: &self.dir,
                name: self.path.name(),
                digest: self.digest.as_ref(),
                ..self.file
            }
        }
    }

    fn new_file(text: &str, len_bytes: u64) -> NewFile {
        let path = path(text);
        NewFile {
            dir: path.parent().unwrap(),
            path,
            digest: None,
            file: NeededFile {
                dir: no_dir(),
                name: b"",
                len_bytes,
                mtime: time(5, 6),
                digest: None,
                may_be_renamed: true,
                may_be_late: true,
                may_be_linked: true,
                may_be_awaited: true,
                old: OldFile::Missing,
            },
        }
    }

    fn candidate(text: &str, len_bytes: u64, is_left_over: bool) -> Old {
        let path = path(text);
        Old {
            dir: path.parent().unwrap(),
            path,
            digest: None,
            file: TwinCandidate {
                tree: None,
                dir: no_dir(),
                name: b"",
                inode: (1, text.len() as u64),
                len_bytes,
                mtime: time(5, 6),
                digest: None,
                fate: if is_left_over {
                    TwinFate::LeftOver
                } else {
                    TwinFate::Stays
                },
                is_linkable: false,
            },
        }
    }

    fn in_tree(text: &str, ino: u64) -> Old {
        let mut old = candidate(text, 3, false);
        old.file.tree = Some(0);
        old.file.inode = (2, ino);
        old.file.is_linkable = true;
        old
    }

    fn all(candidates: &[Old]) -> TwinCandidates {
        let mut all = TwinCandidates::default();
        for old in candidates {
            all.push(&old.get());
        }
        for (at, old) in (0..).zip(candidates) {
            if old.digest.is_some() {
                all.set_digest(at, old.digest);
            }
        }
        all
    }

    fn matches(
        criterion: Criterion,
        new: &[NewFile],
        candidates: &[Old],
    ) -> Vec<Option<TwinMatch>> {
        let candidates = all(candidates);
        let mut matcher = Matcher::new(criterion, &candidates);
        let files = (0..).zip(new);
        files
            .map(|(at, file)| matcher.next(at, &file.get()))
            .collect()
    }

    fn worth(new: &[NewFile], candidates: &[Old]) -> WorthReading {
        worth_reading(new.iter().map(NewFile::get), &all(candidates))
    }

    fn not_renamed(mut new: NewFile) -> NewFile {
        new.file.may_be_renamed = false;
        new
    }

    fn not_linked(mut new: NewFile) -> NewFile {
        new.file.may_be_linked = false;
        new
    }

    fn not_late(mut new: NewFile) -> NewFile {
        new.file.may_be_late = false;
        new
    }

    fn renamed(candidate: u32) -> Option<TwinMatch> {
        Some(TwinMatch::Renamed(candidate))
    }

    fn copied(candidate: u32) -> Option<TwinMatch> {
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
        let mut new = [new_file("n/a", 3)];
        new[0].file.mtime = time(5, 7);
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
    fn nearest_file_is_copied() {
        let nearest = |criterion, new: &str, old: [Old; 2]| {
            matches(criterion, &[not_linked(new_file(new, 3))], &old)
        };
        let old = |text: &str| candidate(text, 3, false);
        let at_other_time = |text: &str| {
            let mut old = old(text);
            old.file.mtime = time(9, 0);
            old
        };
        // The fewest directories between them.
        let found = nearest(Criterion::Moved, "x/e/a", [old("d/a"), old("x/a")]);
        assert_eq!(found, [copied(1)]);
        // The same name, although it is further.
        let found = nearest(Criterion::Quick, "c/n", [old("c/m"), old("z/n")]);
        assert_eq!(found, [copied(1)]);
        // The same time, if that is not a condition.
        let found = nearest(Criterion::Length, "c/x", [at_other_time("a/x"), old("b/x")]);
        assert_eq!(found, [copied(1)]);
        // Else the first path.
        let found = nearest(Criterion::Moved, "c/x", [old("b/x"), old("a/x")]);
        assert_eq!(found, [copied(1)]);
    }

    #[test]
    fn digests_are_forgotten() {
        let old = Old {
            digest: Some([1; CONTENT_LEN_BYTES]),
            ..candidate("o/a", 3, true)
        };
        let mut candidates = all(&[old]);
        assert!(candidates.get(0).digest.is_some());
        candidates.forget_digests();
        assert!(candidates.get(0).digest.is_none());
    }

    #[test]
    fn only_files_of_trees_can_be_linked() {
        let mut candidates = all(&[
            in_tree("o/a", 1),
            in_tree("o/b", 2),
            candidate("s/a", 3, false),
        ]);
        candidates.permit_links(|inode| inode != (2, 2));
        let linkable: Vec<_> = candidates.iter().map(|file| file.is_linkable).collect();
        assert_eq!(linkable, [true, false, false]);
    }

    #[test]
    fn each_file_of_a_tree_gets_one_new_name() {
        let new = [
            new_file("n/a", 3),
            new_file("n/b/a", 3),
            new_file("n/c/a", 3),
            not_linked(new_file("n/d/a", 3)),
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
        let new = [not_renamed(new_file("n/a", 3))];
        let candidates = [candidate("o/a", 3, true)];
        assert_eq!(matches(Criterion::Moved, &new, &candidates), [copied(0)]);
    }

    fn any_path() -> impl Strategy<Value = RelPath> {
        let element = prop::sample::select(vec!["a", "b", "c"]);
        prop::collection::vec(element, 1..4).prop_map(|elements| path(&elements.join("/")))
    }

    fn with_digest(file: NewFile, byte: u8) -> NewFile {
        NewFile {
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
            not_late(with_digest(new_file("d", 3), 1)),
            new_file("e", 3),
            with_digest(new_file("f", 3), 3),
        ];
        let equal = Old {
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
        let of_len = |len_bytes, secs| {
            let mut new = new_file(&format!("n{len_bytes}-{secs}"), len_bytes);
            new.file.mtime = time(secs, 0);
            new
        };
        let candidate_of = |len_bytes, secs: i64| {
            let mut old = candidate(&format!("o{len_bytes}-{secs}"), len_bytes, true);
            old.file.mtime = time(secs, 0);
            old
        };
        // A file without another of its length, two that can be equal to each other, and one that has a candidate.
        let new = [of_len(1, 1), of_len(2, 1), of_len(2, 2), of_len(3, 1)];
        let candidates = [candidate_of(3, 7), candidate_of(4, 1)];
        let found = worth(&new, &candidates);
        assert_eq!((found.new, found.candidates), (vec![1, 2, 3], vec![0]));

        let few: Vec<_> = (0..8).map(|secs| candidate_of(1, secs)).collect();
        let found = worth(&[of_len(1, 3)], &few);
        assert_eq!((found.new.len(), found.candidates.len()), (1, 8));
        let many: Vec<_> = (0..9).map(|secs| candidate_of(1, secs)).collect();
        let found = worth(&[of_len(1, 3), of_len(2, 1)], &many);
        assert_eq!((found.new, found.candidates), (vec![0], vec![3]));
        let found = worth(&[of_len(1, 9)], &many);
        assert_eq!(found, WorthReading::default());

        let few: Vec<_> = (0..8).map(|secs| of_len(1, secs)).collect();
        assert_eq!(worth(&few, &[]).new, (0..8).collect::<Vec<_>>());
        let many: Vec<_> = (0..9).map(|at| of_len(1, at / 2)).collect();
        assert_eq!(worth(&many, &[]).new, (0..8).collect::<Vec<_>>());
    }

    fn replacing(text: &str, old: Option<u32>) -> NewFile {
        let mut new = not_renamed(not_late(not_linked(new_file(text, 3))));
        new.file.old = OldFile::Replaced(old);
        new
    }

    fn changing(text: &str) -> Old {
        let mut old = candidate(text, 3, false);
        old.file.fate = TwinFate::Changes;
        old
    }

    #[test]
    fn swapped_files_take_the_content_of_each_other() {
        let new = [replacing("x/f", Some(0)), replacing("y/f", Some(1))];
        let candidates = [changing("x/f"), changing("y/f")];
        let found = matches(Criterion::Moved, &new, &candidates);
        assert_eq!(found, [copied(1), copied(0)]);

        // A file is no twin of its successor.
        let found = matches(Criterion::Moved, &new[..1], &candidates[..1]);
        assert_eq!(found, [None]);
        // What stays is preferred, although it is further away.
        let candidates = [
            changing("x/f"),
            changing("y/f"),
            candidate("a/b/f", 3, false),
        ];
        let found = matches(Criterion::Moved, &new[..1], &candidates);
        assert_eq!(found, [copied(2)]);
        // The names of one file are placed at different times.
        let mut linked = replacing("x/f", Some(0));
        linked.file.may_be_awaited = false;
        let found = matches(Criterion::Moved, &[linked], &candidates[..2]);
        assert_eq!(found, [None]);
    }

    #[test]
    fn changed_files_are_only_read_if_others_can_be_equal() {
        let candidates = [changing("a"), changing("b")];
        let found = worth(&[replacing("a", Some(0))], &candidates[..1]);
        assert_eq!(found, WorthReading::default());
        let found = worth(&[replacing("a", Some(0))], &candidates);
        assert_eq!((found.new, found.candidates), (vec![0], vec![1]));
        let found = worth(&[replacing("c", None), replacing("d", None)], &[]);
        assert_eq!(found, WorthReading::default());
        let found = worth(&[replacing("c", None), new_file("d", 3)], &[]);
        assert_eq!(found, WorthReading::default());
        let found = worth(
            &[replacing("a", Some(0)), new_file("d", 3)],
            &candidates[..1],
        );
        assert_eq!((found.new, found.candidates), (vec![1], vec![0]));
    }

    fn any_new() -> impl Strategy<Value = NewFile> {
        (any_path(), 1..3_u64, 0..2_u32, any::<bool>()).prop_map(
            |(path, len_bytes, nanos, may_be_renamed)| {
                let mut new = new_file(std::str::from_utf8(path.as_bytes()).unwrap(), len_bytes);
                new.file.mtime = time(0, nanos);
                new.file.may_be_renamed = may_be_renamed;
                new
            },
        )
    }

    fn any_candidate() -> impl Strategy<Value = Old> {
        (any_path(), 1..3_u64, 0..2_u32, any::<bool>()).prop_map(
            |(path, len_bytes, nanos, is_left_over)| {
                let text = std::str::from_utf8(path.as_bytes()).unwrap();
                let mut old = candidate(text, len_bytes, is_left_over);
                old.file.mtime = time(0, nanos);
                old
            },
        )
    }

    #[test]
    fn sorted_candidates_are_found_by_their_paths() {
        let mut all = all(&[
            in_tree("b/a", 1),
            candidate("b/c", 3, false),
            candidate("a", 3, false),
            candidate("b/a", 3, false),
            candidate("a-b/c", 3, false),
            in_tree("d", 2),
        ]);
        all.sort();
        for text in ["a", "a-b/c", "b/a", "b/c"] {
            let at = all.find(&path(text)).unwrap();
            let found = all.get(at);
            assert_eq!((found.tree, found.path()), (None, path(text)));
        }
        for text in ["d", "b", "b/b", "a/c"] {
            assert_eq!(all.find(&path(text)), None, "{text}");
        }
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
                let has_equal = candidates.iter().any(|it| it.get().key(how) == file.get().key(how));
                prop_assert_eq!(found.is_some(), has_equal);
                let Some(found) = found else { continue };
                let (TwinMatch::Renamed(at) | TwinMatch::Copied(at)) = *found else {
                    panic!("a candidate was expected");
                };
                let candidate = candidates[at as usize].get();
                prop_assert_eq!(candidate.key(how), file.get().key(how));
                if *found == TwinMatch::Renamed(at) {
                    prop_assert!(file.file.may_be_renamed && candidate.fate == TwinFate::LeftOver);
                    prop_assert!(!renamed.contains(&at));
                    renamed.push(at);
                }
            }
        }
    }
}

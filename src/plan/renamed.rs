//! Finds the files of the destination whose content new files take: `--detect-renamed`.

use crate::flist::Time;
use crate::options::DetectRenamed;
use crate::path::RelPath;
use std::collections::{BTreeMap, HashMap};

/// A regular file that the destination lacks.
#[derive(Debug, Clone)]
pub struct AbsentFile {
    pub path: RelPath,
    pub len_bytes: u64,
    pub mtime: Time,
    /// It may get its content by renaming another file, and need not have it before the end of the run.
    pub may_be_renamed: bool,
}

/// A regular file of the destination, which keeps its content until the run deletes it, if it does.
#[derive(Debug, Clone)]
pub struct TwinCandidate {
    pub path: RelPath,
    pub len_bytes: u64,
    pub mtime: Time,
    /// The run will probably delete it, and it has no other name.
    pub is_left_over: bool,
}

/// The candidate whose content a new file takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TwinMatch {
    /// Its index.
    pub candidate: usize,
    /// It is renamed. Otherwise it is copied.
    pub is_renamed: bool,
}

/// How many candidates are compared with a new file to find the nearest one.
const COMPARED_MAX: usize = 64;

/// What two files that count as equal have in common. The name is empty if it does not matter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u64, Time, Vec<u8>);

impl Key {
    /// Returns the key of a file with this path.
    pub fn new(how: DetectRenamed, path: &RelPath, len_bytes: u64, mtime: Time) -> Key {
        let name = match how {
            DetectRenamed::Moved => path.name().to_vec(),
            DetectRenamed::Quick => Vec::new(),
        };
        Key(len_bytes, mtime, name)
    }
}

/// The candidates with one key.
#[derive(Default)]
struct Equal {
    /// Those that can still be renamed.
    left_over: BTreeMap<Vec<u8>, usize>,
    /// The others. Those that will be renamed can be copied before.
    others: Vec<usize>,
}

/// Finds a candidate for each new file, in the order of `new`. Each candidate is renamed once at most.
///
/// What can be renamed is preferred, because that copies nothing; then the same name, then the nearest path, then the
/// smallest one. The order of the candidates does not matter.
pub fn matches(
    how: DetectRenamed,
    new: &[AbsentFile],
    candidates: &[TwinCandidate],
) -> Vec<Option<TwinMatch>> {
    let mut by_key: HashMap<Key, Equal> = HashMap::new();
    for (at, candidate) in candidates.iter().enumerate() {
        let key = Key::new(how, &candidate.path, candidate.len_bytes, candidate.mtime);
        let equal = by_key.entry(key).or_default();
        if candidate.is_left_over {
            equal
                .left_over
                .insert(candidate.path.as_bytes().to_vec(), at);
        } else {
            equal.others.push(at);
        }
    }
    for equal in by_key.values_mut() {
        equal
            .others
            .sort_by_key(|&at| candidates[at].path.as_bytes());
    }

    let mut found = Vec::with_capacity(new.len());
    for file in new {
        let key = Key::new(how, &file.path, file.len_bytes, file.mtime);
        let choice = by_key
            .get_mut(&key)
            .and_then(|equal| equal.choose(file, candidates));
        found.push(choice);
    }
    found
}

impl Equal {
    fn choose(&mut self, file: &AbsentFile, candidates: &[TwinCandidate]) -> Option<TwinMatch> {
        let rank = |at: usize| {
            let path = &candidates[at].path;
            (distance(path, &file.path), path.as_bytes())
        };
        let nearest = |among: &mut dyn Iterator<Item = usize>| {
            among
                .take(COMPARED_MAX)
                .min_by(|&one, &other| rank(one).cmp(&rank(other)))
        };

        let left_over = nearest(&mut self.left_over.values().copied());
        if let Some(candidate) = left_over
            && file.may_be_renamed
        {
            self.left_over.remove(candidates[candidate].path.as_bytes());
            self.others.push(candidate);
            return Some(TwinMatch {
                candidate,
                is_renamed: true,
            });
        }
        let other = nearest(&mut self.others.iter().copied());
        let candidate = nearest(&mut other.into_iter().chain(left_over))?;
        Some(TwinMatch {
            candidate,
            is_renamed: false,
        })
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
            may_be_renamed: true,
        }
    }

    fn candidate(text: &str, len_bytes: u64, is_left_over: bool) -> TwinCandidate {
        TwinCandidate {
            path: path(text),
            len_bytes,
            mtime: time(5, 6),
            is_left_over,
        }
    }

    fn renamed(candidate: usize) -> Option<TwinMatch> {
        Some(TwinMatch {
            candidate,
            is_renamed: true,
        })
    }

    fn copied(candidate: usize) -> Option<TwinMatch> {
        Some(TwinMatch {
            candidate,
            is_renamed: false,
        })
    }

    #[test]
    fn files_of_equal_size_time_and_name_match() {
        let new = [new_file("n/a", 3), new_file("n/b", 3)];
        let candidates = [candidate("o/a", 3, true)];
        assert_eq!(
            matches(DetectRenamed::Moved, &new, &candidates),
            [renamed(0), None]
        );
        // With `quick`, the second one takes the content before the first one takes the file.
        assert_eq!(
            matches(DetectRenamed::Quick, &new, &candidates),
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
        assert_eq!(matches(DetectRenamed::Quick, &new, &candidates), [None]);
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
            matches(DetectRenamed::Moved, &new, &candidates),
            [renamed(2), renamed(1), copied(0)]
        );
    }

    #[test]
    fn file_that_must_not_be_renamed_is_copied() {
        let new = [AbsentFile {
            may_be_renamed: false,
            ..new_file("n/a", 3)
        }];
        let candidates = [candidate("o/a", 3, true)];
        assert_eq!(
            matches(DetectRenamed::Moved, &new, &candidates),
            [copied(0)]
        );
    }

    fn any_path() -> impl Strategy<Value = RelPath> {
        let element = prop::sample::select(vec!["a", "b", "c"]);
        prop::collection::vec(element, 1..4).prop_map(|elements| path(&elements.join("/")))
    }

    fn any_new() -> impl Strategy<Value = AbsentFile> {
        (any_path(), 1..3_u64, 0..2_u32, any::<bool>()).prop_map(
            |(path, len_bytes, nanos, may_be_renamed)| AbsentFile {
                path,
                len_bytes,
                mtime: time(0, nanos),
                may_be_renamed,
            },
        )
    }

    fn any_candidate() -> impl Strategy<Value = TwinCandidate> {
        (any_path(), 1..3_u64, 0..2_u32, any::<bool>()).prop_map(
            |(path, len_bytes, nanos, is_left_over)| TwinCandidate {
                path,
                len_bytes,
                mtime: time(0, nanos),
                is_left_over,
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
            let how = if is_quick { DetectRenamed::Quick } else { DetectRenamed::Moved };
            let key_of_new = |file: &AbsentFile| Key::new(how, &file.path, file.len_bytes, file.mtime);
            let key_of = |file: &TwinCandidate| Key::new(how, &file.path, file.len_bytes, file.mtime);

            let found = matches(how, &new, &candidates);
            let mut renamed = Vec::new();
            for (file, found) in new.iter().zip(&found) {
                let has_equal = candidates.iter().any(|it| key_of(it) == key_of_new(file));
                prop_assert_eq!(found.is_some(), has_equal);
                let Some(found) = found else { continue };
                let candidate = &candidates[found.candidate];
                prop_assert_eq!(key_of(candidate), key_of_new(file));
                if found.is_renamed {
                    prop_assert!(file.may_be_renamed && candidate.is_left_over);
                    prop_assert!(!renamed.contains(&found.candidate));
                    renamed.push(found.candidate);
                }
            }
        }
    }
}

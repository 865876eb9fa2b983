//! Tests: which files count as equal, and which of them is preferred.

use super::worth_reading::WorthReading;
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

fn matches(criterion: Criterion, new: &[NewFile], candidates: &[Old]) -> Vec<Option<TwinMatch>> {
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

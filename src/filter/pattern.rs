//! Patterns with rsync's semantics: anchored or not, with `*`, `?`, `[...]`, `**` and `/***`.
//!
//! A pattern is compiled once into the cheapest sufficient test, for most a comparison of bytes. Matching allocates memory
//! only for patterns that match the absolute path.

mod class;
mod glob;
#[cfg(test)]
mod tests;

use self::glob::Glob;
pub use self::glob::{class_len, has_wildcard, name_matches};
use std::cell::OnceCell;
use std::ops::Range;

/// Longer patterns match nothing, because no path is longer.
pub(super) const PATTERN_MAX_BYTES: usize = 4095;

/// The path to be matched.
pub(super) struct CandidatePath<'a> {
    path: &'a [u8],
    name: &'a [u8],
    is_dir: bool,
    root_abs: &'a [u8],
    absolute: OnceCell<Vec<u8>>,
}

impl<'a> CandidatePath<'a> {
    /// Creates the path of an entry. `root_abs` is the absolute path of the root without a trailing slash.
    pub(super) fn new(path: &'a [u8], is_dir: bool, root_abs: &'a [u8]) -> CandidatePath<'a> {
        let name_at = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        CandidatePath {
            path,
            name: &path[name_at..],
            is_dir,
            root_abs,
            absolute: OnceCell::new(),
        }
    }

    /// Returns the absolute path without its leading slash.
    fn absolute(&self) -> &[u8] {
        self.absolute.get_or_init(|| {
            let mut out = self
                .root_abs
                .strip_prefix(b"/")
                .unwrap_or(self.root_abs)
                .to_vec();
            if !out.is_empty() {
                out.push(b'/');
            }
            out.extend_from_slice(self.path);
            out
        })
    }
}

/// The directory where a pattern with a leading slash is anchored.
#[derive(Clone, Copy)]
pub(super) struct Anchor<'a> {
    /// The absolute path of the root of the transfer, without a trailing slash.
    pub root_abs: &'a [u8],
    /// The absolute path of the merge file's directory, in the same form; the root for global rules.
    pub base_abs: &'a [u8],
    /// The pattern matches absolute paths (modifier `/`), so the base is ignored.
    pub absolute: bool,
}

/// A compiled pattern. It refers to a text that is kept beside it, because there can be millions of patterns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    test: Test,
    /// The part of the text that the test uses.
    from: u16,
    len: u16,
    /// Some of the bits below.
    flags: u8,
}

/// The pattern matches directories only.
const DIR_ONLY: u8 = 1;

/// It is compared with the absolute path.
const ON_ABSOLUTE: u8 = 2;

/// A `*` follows a `**`. Backtracking could be expensive then, so all alternatives are followed at once.
const BRANCHING: u8 = 4;

/// It ends in `***`. A directory is then matched as if its name ended in a slash.
const TRIPLE: u8 = 8;

#[derive(Clone, Copy, Debug)]
enum Test {
    Never,
    /// `*`
    Always,
    /// `foo`
    Name,
    /// `*.o`
    NameEnds,
    /// `foo*`
    NameStarts,
    /// `/foo/bar`
    Path,
    /// `foo/bar`
    PathEnds,
    /// `/foo/**`
    Below,
    /// `/foo/***`
    Within,
    /// Everything else.
    Glob(Scope),
}

/// Which part of the path a general pattern must cover.
#[derive(Clone, Copy, Debug)]
enum Scope {
    /// The last component.
    Name,
    /// The whole path.
    Whole,
    /// This many trailing components.
    Tail(u16),
    /// From the start of any component to the end.
    AnyTail,
}

impl Pattern {
    /// Compiles the pattern of a rule. Returns the text to which it refers if that is not `text`.
    pub(super) fn compile(text: &[u8], anchor: Anchor<'_>) -> (Pattern, Option<Vec<u8>>) {
        let (stem, dir_only) = match text {
            [head @ .., b'/'] => (head, DIR_ONLY),
            _ => (text, 0),
        };
        if stem.len() > PATTERN_MAX_BYTES {
            return (Pattern::NEVER, None);
        }
        let flags = dir_only | if stem.ends_with(b"***") { TRIPLE } else { 0 };
        if !stem.starts_with(b"/") {
            let flags = flags | if anchor.absolute { ON_ABSOLUTE } else { 0 };
            let (test, part) = Test::floating(stem);
            return (Pattern::for_test(test, (stem, 0), part, flags), None);
        }
        // rsync prepends the merge file's directory to the pattern and treats the result as one pattern, so a directory
        // named `d*` acts as a wildcard. Do the same.
        let joined = (!anchor.absolute && !anchor.base_abs.is_empty())
            .then(|| [anchor.base_abs, stem].concat());
        let full = joined.as_deref().unwrap_or(stem);
        let wild = has_wildcard(full);
        let below_root = full
            .strip_prefix(anchor.root_abs)
            .and_then(|t| t.strip_prefix(b"/"));
        let root_is_plain =
            !(has_wildcard(anchor.root_abs) || (wild && anchor.root_abs.contains(&b'\\')));
        let (tail, on_absolute) = match below_root {
            Some(tail) if root_is_plain => (tail, 0),
            None if !wild => return (Pattern::NEVER, None),
            Some(_) | None => (full.strip_prefix(b"/").unwrap_or(full), ON_ABSOLUTE),
        };
        let (test, part) = Test::anchored(tail);
        let pattern = Pattern::for_test(
            test,
            (tail, full.len() - tail.len()),
            part,
            flags | on_absolute,
        );
        (pattern, joined)
    }

    /// Compiles the pattern of a global rule. It is anchored at the root of the transfer, whose own name is not a
    /// pattern. It refers to `text`.
    pub(super) fn compile_global(text: &[u8], root_abs: &[u8], absolute: bool) -> Pattern {
        let root_abs = if absolute { root_abs } else { b"" };
        Pattern::compile(
            text,
            Anchor {
                root_abs,
                base_abs: b"",
                absolute,
            },
        )
        .0
    }

    const NEVER: Pattern = Pattern {
        test: Test::Never,
        from: 0,
        len: 0,
        flags: 0,
    };

    /// Returns the pattern of a test that uses a part of `text`, which begins at `at` in the text that is kept.
    fn for_test(test: Test, (text, at): (&[u8], usize), part: Range<usize>, flags: u8) -> Pattern {
        let branching = match test {
            Test::Glob(_) => match Glob::is_branching(&text[part.clone()]) {
                Some(true) => BRANCHING,
                Some(false) => 0,
                None => return Pattern::NEVER,
            },
            _ => 0,
        };
        match (u16::try_from(at + part.start), u16::try_from(part.len())) {
            (Ok(from), Ok(len)) => Pattern {
                test,
                from,
                len,
                flags: flags | branching,
            },
            // No path is that long.
            _ => Pattern::NEVER,
        }
    }

    /// Returns whether the pattern matches. `text` is that to which it refers.
    pub(super) fn matches(&self, text: &[u8], subject: &CandidatePath<'_>) -> bool {
        if self.flags & DIR_ONLY != 0 && !subject.is_dir {
            return false;
        }
        let part = &text[usize::from(self.from)..][..usize::from(self.len)];
        let path = || {
            if self.flags & ON_ABSOLUTE != 0 {
                subject.absolute()
            } else {
                subject.path
            }
        };
        let glob = || Glob {
            text: part,
            branching: self.flags & BRANCHING != 0,
            triple: self.flags & TRIPLE != 0,
        };
        match self.test {
            Test::Never => false,
            Test::Always => true,
            // One byte distinguishes most names, and comparing it costs less than a call.
            Test::Name => subject.name.first() == part.first() && subject.name == part,
            Test::NameEnds => subject.name.last() == part.last() && subject.name.ends_with(part),
            Test::NameStarts => {
                subject.name.first() == part.first() && subject.name.starts_with(part)
            }
            Test::Path => path() == part,
            Test::PathEnds => match path().strip_suffix(part) {
                Some(head) => matches!(head, [] | [.., b'/']),
                None => false,
            },
            Test::Below => is_below(path(), part),
            Test::Within => is_below(path(), part) || (subject.is_dir && path() == part),
            Test::Glob(Scope::Name) => glob().covers(subject.name, subject.is_dir),
            Test::Glob(Scope::Whole) => glob().covers(path(), subject.is_dir),
            Test::Glob(Scope::Tail(count)) => tail(path(), usize::from(count))
                .is_some_and(|tail| glob().covers(tail, subject.is_dir)),
            Test::Glob(Scope::AnyTail) => glob().covers_tail(path(), subject.is_dir),
        }
    }
}

impl Test {
    /// Returns the test for a pattern without a leading slash, and the part of `text` that it uses.
    fn floating(text: &[u8]) -> (Test, Range<usize>) {
        let slashes = text.iter().filter(|&&b| b == b'/').count();
        let whole = 0..text.len();
        if !has_wildcard(text) {
            return (
                if slashes == 0 {
                    Test::Name
                } else {
                    Test::PathEnds
                },
                whole,
            );
        }
        if contains_double(text) {
            return (Test::Glob(Scope::AnyTail), whole);
        }
        if slashes > 0 {
            // At most the length of a pattern, see [`PATTERN_MAX_BYTES`].
            return (Test::Glob(Scope::Tail(slashes as u16 + 1)), whole);
        }
        match text {
            b"*" => (Test::Always, whole),
            [b'*', end @ ..] if is_literal(end) => (Test::NameEnds, 1..text.len()),
            [start @ .., b'*'] if is_literal(start) => (Test::NameStarts, 0..start.len()),
            _ => (Test::Glob(Scope::Name), whole),
        }
    }

    /// Returns the test for a pattern whose leading slash has been removed, and the part of `text` that it uses.
    fn anchored(text: &[u8]) -> (Test, Range<usize>) {
        let whole = 0..text.len();
        if !has_wildcard(text) {
            return (Test::Path, whole);
        }
        match text {
            [dir @ .., b'/', b'*', b'*', b'*'] if is_literal(dir) => (Test::Within, 0..dir.len()),
            [dir @ .., b'/', b'*', b'*'] if is_literal(dir) => (Test::Below, 0..dir.len()),
            _ => (Test::Glob(Scope::Whole), whole),
        }
    }
}

fn is_literal(text: &[u8]) -> bool {
    !has_wildcard(text) && !text.contains(&b'\\')
}

fn contains_double(text: &[u8]) -> bool {
    text.windows(2).any(|pair| pair == b"**")
}

fn is_below(path: &[u8], dir: &[u8]) -> bool {
    path.len() > dir.len() && path[dir.len()] == b'/' && path.starts_with(dir)
}

/// Returns the last `count` components of `path`; `None` if it has fewer.
fn tail(path: &[u8], count: usize) -> Option<&[u8]> {
    let mut slashes = path
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, b)| **b == b'/')
        .map(|(at, _)| at);
    if let Some(at) = slashes.nth(count - 1) {
        return Some(&path[at + 1..]);
    }
    let components = path.iter().filter(|&&b| b == b'/').count() + 1;
    if components == count {
        Some(path)
    } else {
        None
    }
}

//! Patterns with rsync's semantics: anchored or not, with `*`, `?`, `[...]`, `**` and `/***`.
//!
//! A pattern is compiled once into the cheapest sufficient test, for most a comparison of bytes. The general matcher
//! takes at worst time proportional to pattern length times path length. Matching allocates memory only for patterns
//! that match the absolute path.

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
    /// Creates a subject. `root_abs` is the absolute path of the root without a trailing slash.
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

    /// Returns the same for a pattern whose leading slash has been removed.
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

/// Returns whether a pattern matches the whole of a name: that of a user, a host, an option or an entry. A pattern without
/// wildcards is the name itself. Slashes have no meaning here, other than that `*` does not match them.
pub fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    if !has_wildcard(pattern) {
        return pattern == name;
    }
    let Some(branching) = Glob::is_branching(pattern) else {
        return false;
    };
    let glob = Glob {
        text: pattern,
        branching,
        triple: false,
    };
    glob.covers(name, false)
}

/// Returns whether a pattern contains a wildcard. Only then is a backslash an escape; otherwise the pattern is literal.
pub fn has_wildcard(text: &[u8]) -> bool {
    text.iter().any(|b| matches!(b, b'*' | b'?' | b'['))
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

/// A set of bytes.
type ByteSet = [u64; 4];

fn holds(set: &ByteSet, byte: u8) -> bool {
    set[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
}

fn insert(set: &mut ByteSet, byte: u8) {
    set[usize::from(byte >> 6)] |= 1 << (byte & 63);
}

/// A part of a pattern.
#[derive(Clone, Copy, Debug)]
enum PatternPart {
    Byte(u8),
    /// `?`
    Any,
    /// `*`
    Star,
    /// `**` and longer
    Stars,
    /// `[...]`
    Class(ByteSet),
}

impl PatternPart {
    /// Returns whether the token matches this byte; `false` for stars.
    fn takes(self, byte: u8) -> bool {
        match self {
            PatternPart::Byte(b) => b == byte,
            PatternPart::Any => byte != b'/',
            PatternPart::Class(set) => byte != b'/' && holds(&set, byte),
            PatternPart::Star | PatternPart::Stars => false,
        }
    }
}

/// A pattern with wildcards. It is read as it is matched, because compiled ones take several times the memory.
#[derive(Clone, Copy, Debug)]
struct Glob<'a> {
    text: &'a [u8],
    /// See [`BRANCHING`].
    branching: bool,
    /// See [`TRIPLE`].
    triple: bool,
}

/// One bit for each position in the longest pattern, and one for its end.
const STATE_WORDS: usize = PATTERN_MAX_BYTES.div_ceil(64);

impl Glob<'_> {
    /// Returns whether a `*` follows a `**` in a pattern; `None` if it cannot match anything, e.g. because of an unclosed
    /// bracket.
    fn is_branching(text: &[u8]) -> Option<bool> {
        if text.len() >= STATE_WORDS * 64 {
            return None;
        }
        let glob = Glob {
            text,
            branching: false,
            triple: false,
        };
        let mut at = 0;
        let mut has_double = false;
        let mut is_branching = false;
        while at < text.len() {
            let (token, next) = glob.token(at)?;
            has_double |= matches!(token, PatternPart::Stars);
            is_branching |= has_double && matches!(token, PatternPart::Star);
            at = next;
        }
        Some(is_branching)
    }

    /// Returns the token at this position, and the position of the next one. `None` at the end, or if it is malformed.
    fn token(&self, at: usize) -> Option<(PatternPart, usize)> {
        let rest = self.text.get(at..)?;
        Some(match *rest.first()? {
            b'*' => match rest.iter().take_while(|&&b| b == b'*').count() {
                1 => (PatternPart::Star, at + 1),
                run => (PatternPart::Stars, at + run),
            },
            b'?' => (PatternPart::Any, at + 1),
            b'[' => {
                let mut next = at + 1;
                (PatternPart::Class(parse_class(self.text, &mut next)?), next)
            }
            b'\\' => (PatternPart::Byte(*rest.get(1)?), at + 2),
            byte => (PatternPart::Byte(byte), at + 1),
        })
    }

    /// Returns whether the pattern matches the whole of `text`.
    fn covers(&self, text: &[u8], is_dir: bool) -> bool {
        let slash = self.triple && is_dir;
        if self.branching || slash {
            self.follow(0, text, slash, false)
        } else {
            self.walk(0, text)
        }
    }

    /// Returns whether the pattern matches `text` from the start of some component to the end.
    fn covers_tail(&self, text: &[u8], is_dir: bool) -> bool {
        let slash = self.triple && is_dir;
        let first = self.token(0);
        // A leading `**/` also matches at the root.
        let skip = match first {
            Some((PatternPart::Stars, second)) => match self.token(second) {
                Some((PatternPart::Byte(b'/'), third)) => Some(third),
                _ => None,
            },
            _ => None,
        };
        if let Some(from) = skip
            && (if self.branching || slash {
                self.follow(from, text, slash, false)
            } else {
                self.walk(from, text)
            })
        {
            return true;
        }
        if self.branching || slash {
            return self.follow(0, text, slash, true);
        }
        if matches!(first, Some((PatternPart::Stars, _))) {
            return self.walk(0, text);
        }
        let starts = text
            .iter()
            .enumerate()
            .filter(|(_, b)| **b == b'/')
            .map(|(at, _)| at + 1);
        std::iter::once(0)
            .chain(starts)
            .any(|start| self.walk(0, &text[start..]))
    }

    /// Matches by backtracking to the last `*`, then to the last `**`.
    ///
    /// This is sufficient: an earlier star could only match more of what a later star can match, too.
    fn walk(&self, from: usize, text: &[u8]) -> bool {
        let mut token_at = from;
        let mut text_at = 0;
        let mut star: Option<(usize, usize)> = None;
        let mut stars: Option<(usize, usize)> = None;
        loop {
            match self.token(token_at) {
                Some((PatternPart::Star, next)) => {
                    token_at = next;
                    star = Some((token_at, text_at));
                    continue;
                }
                Some((PatternPart::Stars, next)) => {
                    token_at = next;
                    if token_at == self.text.len() {
                        return true;
                    }
                    stars = Some((token_at, text_at));
                    star = None;
                    continue;
                }
                Some((token, next)) if text.get(text_at).is_some_and(|&b| token.takes(b)) => {
                    token_at = next;
                    text_at += 1;
                    continue;
                }
                None if text_at == text.len() => return true,
                Some(_) | None => {}
            }
            if let Some((resume, at)) = star
                && text.get(at).is_some_and(|&b| b != b'/')
            {
                star = Some((resume, at + 1));
                (token_at, text_at) = (resume, at + 1);
            } else if let Some((resume, at)) = stars
                && let Some(next) = self.next_start(resume, text, at + 1)
            {
                stars = Some((resume, next));
                star = None;
                (token_at, text_at) = (resume, next);
            } else {
                return false;
            }
        }
    }

    /// Returns the first position from `at` on where the token after a `**` can match; `None` if there is none.
    fn next_start(&self, resume: usize, text: &[u8], at: usize) -> Option<usize> {
        let rest = text.get(at..)?;
        match self.token(resume)?.0 {
            PatternPart::Byte(wanted) => Some(at + rest.iter().position(|b| *b == wanted)?),
            PatternPart::Any | PatternPart::Class(_) | PatternPart::Star | PatternPart::Stars => {
                Some(at)
            }
        }
    }

    /// Matches by following all alternatives at once, with one bit for each position where the next token may begin.
    ///
    /// With `slash`, the text has an additional slash at its end. With `restart`, the pattern may start at any
    /// component.
    fn follow(&self, from: usize, text: &[u8], slash: bool, restart: bool) -> bool {
        let words = self.text.len() / 64 + 1;
        let mut buffers = ([0u64; STATE_WORDS], [0u64; STATE_WORDS]);
        let mut now = &mut buffers.0[..words];
        let mut next = &mut buffers.1[..words];
        self.add(now, from);
        let end: &[u8] = if slash { b"/" } else { b"" };
        for (at, &byte) in text.iter().chain(end).enumerate() {
            next.fill(0);
            let mut alive = false;
            for (word, &bits) in now.iter().enumerate() {
                let mut bits = bits;
                while bits != 0 {
                    let state = word * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    match self.token(state) {
                        Some((PatternPart::Stars, _)) => self.add(next, state),
                        Some((PatternPart::Star, _)) if byte != b'/' => self.add(next, state),
                        Some((token, after)) if token.takes(byte) => self.add(next, after),
                        Some(_) | None => continue,
                    }
                    alive = true;
                }
            }
            // The additional slash starts no component.
            if restart && byte == b'/' && at < text.len() {
                self.add(next, from);
                alive = true;
            }
            if !alive && !restart {
                return false;
            }
            std::mem::swap(&mut now, &mut next);
        }
        now[self.text.len() / 64] >> (self.text.len() % 64) & 1 == 1
    }

    /// Adds a state, and the states after stars that can match nothing.
    fn add(&self, states: &mut [u64], state: usize) {
        let mut state = state;
        loop {
            states[state / 64] |= 1 << (state % 64);
            match self.token(state) {
                Some((PatternPart::Star | PatternPart::Stars, next)) => state = next,
                Some((PatternPart::Byte(_) | PatternPart::Any | PatternPart::Class(_), _))
                | None => return,
            }
        }
    }
}

/// Parses a class. `at` moves from after its `[` to after its `]`. `None` if the class is malformed.
fn parse_class(text: &[u8], at: &mut usize) -> Option<ByteSet> {
    let mut set = ByteSet::default();
    let negated = matches!(text.get(*at), Some(b'!' | b'^'));
    *at += usize::from(negated);
    let mut previous: Option<u8> = None;
    let mut first = true;
    loop {
        let byte = *text.get(*at)?;
        *at += 1;
        match byte {
            b']' if !first => break,
            b'[' if text.get(*at) == Some(&b':') => {
                let name_at = *at + 1;
                let length = text[name_at..].iter().position(|&b| b == b']')?;
                if length > 0 && text[name_at + length - 1] == b':' {
                    let name = &text[name_at..name_at + length - 1];
                    for byte in (0..=u8::MAX).filter(posix_class(name)?) {
                        insert(&mut set, byte);
                    }
                    *at = name_at + length + 1;
                    previous = None;
                } else {
                    // Without a closing `:]`, the bracket is literal.
                    insert(&mut set, b'[');
                    previous = Some(b'[');
                }
            }
            b'-' if previous.is_some() && text.get(*at).is_some_and(|&b| b != b']') => {
                let mut last = text[*at];
                *at += 1;
                if last == b'\\' {
                    last = *text.get(*at)?;
                    *at += 1;
                }
                for byte in previous?..=last {
                    insert(&mut set, byte);
                }
                previous = None;
            }
            b'\\' => {
                let escaped = *text.get(*at)?;
                *at += 1;
                insert(&mut set, escaped);
                previous = Some(escaped);
            }
            _ => {
                insert(&mut set, byte);
                previous = Some(byte);
            }
        }
        first = false;
    }
    if negated {
        set = set.map(|word| !word);
    }
    Some(set)
}

/// Returns the test for a class such as `[:alpha:]` in the C locale.
fn posix_class(name: &[u8]) -> Option<fn(&u8) -> bool> {
    Some(match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |b| matches!(b, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |b| matches!(b, b' '..=b'~'),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |b| b.is_ascii_whitespace() || *b == 0x0b,
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A pattern with its text.
    struct Whole(Pattern, Vec<u8>);

    fn global(text: &str) -> Whole {
        Whole(
            Pattern::compile_global(text.as_bytes(), b"/r", false),
            text.as_bytes().to_vec(),
        )
    }

    fn hits(Whole(pattern, text): &Whole, path: &str) -> bool {
        let (path, is_dir) = match path.strip_suffix('/') {
            Some(dir) => (dir, true),
            None => (path, false),
        };
        pattern.matches(text, &CandidatePath::new(path.as_bytes(), is_dir, b"/r"))
    }

    #[test]
    fn pattern_matches_agree_with_rsync() {
        // Directories end in a slash. All results are from rsync 3.5.0 --debug=FILTER.
        for (pattern, yes, no) in [
            ("foo", "foo a/foo foo/", "foobar a/xfoo foo/x"),
            ("/foo", "foo foo/", "a/foo"),
            ("foo/", "foo/ a/foo/", "foo a/foo"),
            ("foo/bar", "foo/bar a/foo/bar", "xfoo/bar foo/bar/x bar"),
            ("*.o", "a.o .o x/a.o", "a.oo o"),
            ("a*", "a ab x/ab", "ba a/b"),
            ("*", "a a/b c/", ""),
            ("a?b", "axb c/a-b", "ab a/b"),
            ("*/b", "a/b x/a/b", "b"),
            ("/*/*", "a/b", "a a/b/c"),
            ("a*/b", "a/b x/ab/b", "a/x/b"),
            ("**/b", "b a/b a/c/b", "xb"),
            ("**/**/x", "a/x a/b/x", "x"),
            ("/**/x", "a/x a/b/x", "x"),
            ("***/x", "x a/x", "ax"),
            ("/***/x", "a/x", "x"),
            ("**b", "b a/b ab a/xb", "b/a"),
            ("a**", "a ab a/b b/a/c x/ab", "ba b/ca"),
            ("a/**", "a/b c/a/b a/b/c", "a a/"),
            ("/a/**", "a/b a/b/c", "a a/ b/a/c ab/c"),
            ("/a/***", "a/ a/b a/b/c", "a ab/c b/a/ b/a/c"),
            ("a/***", "a/ a/b b/a/ b/a/c", "a b/a ba/"),
            ("**/a/***", "a/ a/b x/a/ x/a/b", "a b/ x/a"),
            ("[[:]", "[ :", "a ]"),
            ("[a-\\c]", "a b c", "d - \\"),
            ("[\\]a]", "] a", "\\ b"),
            ("/**", "a a/ a/b", ""),
            ("/***", "a a/ a/b", ""),
            ("/a*/**", "ab/x a/y", "ab ab/ b/x"),
            ("/a*/***", "a/ ab/ ab/x", "ab b/ b/x"),
            ("a/***/", "a/ a/b/ c/a/b/", "a a/b"),
            ("*/***", "a/ a/b", "a"),
            ("b***", "b b/ ba a/b/c", "a ab"),
            ("a**/x", "a/x ab/x c/a/b/x", "ax"),
            ("/a**/b*c", "a/bc ax/y/bxc", "a/b/c b/bc"),
            ("a[/]b", "", "a/b ab"),
            ("a[!x]b", "ayb", "axb a/b ab"),
            ("a[]-]b", "a]b a-b", "axb"),
            ("a[^]a]b", "axb", "a]b aab"),
            ("[[:alpha:]]1", "a1 Z1", "11 _1"),
            ("[[:foo:]]", "", "a : f"),
            ("[b-a]", "b", "a c"),
            ("[", "", "["),
            ("a\\b", "a\\b", "ab"),
            ("a\\*b", "a*b", "axb a\\*b"),
            ("a\\b*", "ab abc", "a\\b"),
            ("a*\\", "", "a a\\"),
            ("a//", "", "a/ a"),
            ("//a", "", "a"),
            ("//**", "", "a a/b"),
            ("//***", "", "a/ a/b"),
            ("/", "", "a a/"),
        ] {
            let compiled = global(pattern);
            for path in yes.split_whitespace() {
                assert!(hits(&compiled, path), "{pattern} misses {path}");
            }
            for path in no.split_whitespace() {
                assert!(!hits(&compiled, path), "{pattern} hits {path}");
            }
        }
    }

    #[test]
    fn anchored_patterns_are_relative_to_their_merge_file() {
        let at = |base: &[u8], text: &[u8]| {
            let anchor = Anchor {
                root_abs: b"/x/r",
                base_abs: base,
                absolute: false,
            };
            let (pattern, joined) = Pattern::compile(text, anchor);
            Whole(pattern, joined.unwrap_or_else(|| text.to_vec()))
        };
        assert!(hits(&at(b"/x/r/d", b"/a*"), "d/ab"));
        assert!(!hits(&at(b"/x/r/d", b"/a*"), "ab"));
        assert!(
            hits(&at(b"/x", b"/r/a"), "a"),
            "patterns of a file above the root match inside it"
        );
        assert!(!hits(&at(b"/x", b"/a"), "a"));
        assert!(hits(&at(b"/x/r/d*", b"/a"), "d*/a"));
        assert!(
            !hits(&at(b"/x/r/[d]", b"/a"), "[d]/a"),
            "the directory name is treated as a pattern"
        );
    }

    #[test]
    fn absolute_patterns_match_the_full_path() {
        let at = |text: &[u8]| Whole(Pattern::compile_global(text, b"/r", true), text.to_vec());
        assert!(hits(&at(b"/r/a"), "a"));
        assert!(!hits(&at(b"/a"), "a"));
        assert!(hits(&at(b"r/a"), "a"));
        assert!(hits(&at(b"/*/a"), "a"));
        assert!(hits(&at(b"a"), "b/a"));
    }

    #[test]
    fn root_is_no_pattern_but_hides_escapes_of_a_rule_file() {
        let at = |root_abs: &'static [u8], base_abs: &[u8], text: &[u8]| {
            let anchor = Anchor {
                root_abs,
                base_abs,
                absolute: false,
            };
            let (pattern, joined) = Pattern::compile(text, anchor);
            let text = joined.unwrap_or_else(|| text.to_vec());
            move |path: &[u8]| pattern.matches(&text, &CandidatePath::new(path, false, root_abs))
        };
        // A root with a wildcard in its name is part of the pattern, and does not match itself.
        assert!(!at(b"/r[1]", b"/r[1]/d", b"/a")(b"d/a"));
        assert!(at(b"/r*", b"/r*/d", b"/a")(b"d/a"));
        // A backslash is an escape if the pattern has a wildcard.
        assert!(!at(b"/r\\1", b"/r\\1/d", b"/a*")(b"d/a"));
        assert!(at(b"/r\\1", b"/r\\1/d", b"/a")(b"d/a"));
        assert!(at(b"/r", b"/r/d", b"/a*")(b"d/a"));
    }

    #[test]
    fn pattern_that_is_longer_than_any_path_matches_nothing() {
        let longest = "a".repeat(PATTERN_MAX_BYTES);
        assert!(hits(&global(&longest), &longest));
        let longer = "a".repeat(PATTERN_MAX_BYTES + 1);
        assert!(!hits(&global(&longer), &longer));
        let glob = format!("{}?", "a".repeat(200));
        assert!(hits(&global(&glob), &"a".repeat(201)));
        // Two words of states, exactly.
        let branching = format!("**{}*b", "a".repeat(124));
        assert!(hits(
            &global(&branching),
            &format!("x/{}xb", "a".repeat(124))
        ));
        assert!(!hits(
            &global(&branching),
            &format!("x/{}xb", "a".repeat(123))
        ));
    }

    #[test]
    fn classes_have_the_members_of_the_c_locale() {
        for (name, count, samples) in [
            ("alnum", 62, "azAZ09"),
            ("alpha", 52, "azAZ"),
            ("blank", 2, " \t"),
            ("cntrl", 33, "\0\x1f\x7f"),
            ("digit", 10, "09"),
            ("graph", 94, "!~"),
            ("lower", 26, "az"),
            ("print", 95, " ~"),
            ("punct", 32, "!/:@[`{~"),
            ("space", 6, " \t\n\x0b\x0c\r"),
            ("upper", 26, "AZ"),
            ("xdigit", 22, "09afAF"),
        ] {
            let class = posix_class(name.as_bytes()).unwrap();
            assert_eq!((0..=u8::MAX).filter(class).count(), count, "{name}");
            assert!(samples.bytes().all(|byte| class(&byte)), "{name}");
        }
    }

    #[test]
    fn names_match_as_a_whole() {
        assert!(name_matches(b"[[:alpha:]_]*[!0-9]", b"_x9y"));
        assert!(name_matches(b"[]a]*\\**", b"]x*y"));
        assert!(name_matches(b"a\\b", b"a\\b"));
        assert!(name_matches(b"*", b""));
        assert!(!name_matches(b"/a*", b"ab"));
        assert!(!name_matches(b"a*/", b"ab"));
        assert!(!name_matches(b"*", b"a/b"));
        for broken in [
            "[",
            "[a",
            "[a-",
            "[[:",
            "[\\",
            "[a-\\",
            "*\\",
            "[[:none:]z]",
        ] {
            assert!(!name_matches(broken.as_bytes(), b"z"), "{broken}");
        }
        assert!(!name_matches(&b"*a".repeat(2000), &b"a".repeat(1999)));
    }

    #[test]
    fn many_stars_match_in_bounded_time() {
        let text = "a".repeat(4000);
        for pattern in [
            "*a*a*a*a*a*a*a*a*b",
            "**a*a*a*a*a*a*a*a*b",
            "a**a**a**a**a**a**b",
        ] {
            assert!(!hits(&global(pattern), &text), "{pattern}");
        }
    }

    /// Matches with the general matcher only. The specialized tests must agree with it.
    fn in_general(text: &[u8], path: &[u8], is_dir: bool) -> bool {
        let (text, dir_only) = match text {
            [head @ .., b'/'] if !head.is_empty() => (head, DIR_ONLY),
            _ => (text, 0),
        };
        let triple = if text.ends_with(b"***") { TRIPLE } else { 0 };
        let escaped: Vec<u8> = if has_wildcard(text) {
            text.to_vec()
        } else {
            text.iter()
                .flat_map(|&b| if b == b'\\' { vec![b, b] } else { vec![b] })
                .collect()
        };
        let (scope, core) = match escaped.strip_prefix(b"/") {
            Some(core) => (Scope::Whole, core),
            None if contains_double(&escaped) => (Scope::AnyTail, &escaped[..]),
            None if escaped.contains(&b'/') => (
                Scope::Tail(1 + escaped.iter().filter(|&&b| b == b'/').count() as u16),
                &escaped[..],
            ),
            None => (Scope::Name, &escaped[..]),
        };
        let pattern = Pattern::for_test(
            Test::Glob(scope),
            (core, 0),
            0..core.len(),
            dir_only | triple,
        );
        pattern.matches(core, &CandidatePath::new(path, is_dir, b""))
    }

    proptest! {
        #[test]
        fn literal_pattern_matches_itself(path in "[a-z.\\\\ ]{1,6}(/[a-z.\\\\ ]{1,6}){0,3}") {
            prop_assert!(hits(&global(&path), &path));
            let (below, anchored, dir) =
                (format!("x/{path}"), format!("/{path}"), format!("{path}/"));
            prop_assert!(hits(&global(&anchored), &path));
            prop_assert!(hits(&global(&dir), &dir));
            prop_assert!(hits(&global(&path), &below));
        }

        #[test]
        fn fast_paths_agree_with_the_general_matcher(
            text in "[ab/*?\\\\\\]\\[!-]{1,8}",
            path in "[ab*]{1,3}(/[ab\\[-]{1,3}){0,3}",
            is_dir: bool,
        ) {
            let quick = Pattern::compile_global(text.as_bytes(), b"", false)
                .matches(text.as_bytes(), &CandidatePath::new(path.as_bytes(), is_dir, b""));
            prop_assert_eq!(quick, in_general(text.as_bytes(), path.as_bytes(), is_dir));
        }

        #[test]
        fn backtracking_agrees_with_exhaustive_search(
            text in "[ab/*?]{1,10}",
            path in "[ab]{1,4}(/[ab]{1,4}){0,3}",
        ) {
            if let Some(branching) = Glob::is_branching(text.as_bytes()) {
                let glob = Glob { text: text.as_bytes(), branching, triple: false };
                let path = path.as_bytes();
                prop_assert_eq!(glob.walk(0, path), glob.follow(0, path, false, false));
            }
        }

        #[test]
        fn any_bytes_compile_as_a_pattern(text in proptest::collection::vec(any::<u8>(), 0..40), path: Vec<u8>) {
            let _ = Pattern::compile_global(&text, b"/r", false)
                .matches(&text, &CandidatePath::new(&path, true, b"/r"));
        }
    }
}

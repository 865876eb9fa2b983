//! Patterns with rsync's semantics: anchored or not, with `*`, `?`, `[...]`, `**` and `/***`.
//!
//! A pattern is compiled once into the cheapest sufficient test, for most a comparison of bytes. The general matcher
//! takes at worst time proportional to pattern length times path length. Matching allocates memory only for patterns
//! that match the absolute path.

use std::cell::OnceCell;

/// Longer patterns match nothing, because no path is longer.
pub(super) const PATTERN_MAX_BYTES: usize = 4095;

/// The path to be matched.
pub(super) struct Subject<'a> {
    path: &'a [u8],
    name: &'a [u8],
    is_dir: bool,
    root_abs: &'a [u8],
    absolute: OnceCell<Vec<u8>>,
}

impl<'a> Subject<'a> {
    /// Creates a subject. `root_abs` is the absolute path of the root without a trailing slash.
    pub(super) fn new(path: &'a [u8], is_dir: bool, root_abs: &'a [u8]) -> Subject<'a> {
        let name_at = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        Subject { path, name: &path[name_at..], is_dir, root_abs, absolute: OnceCell::new() }
    }

    /// Returns the absolute path without its leading slash.
    fn absolute(&self) -> &[u8] {
        self.absolute.get_or_init(|| {
            let mut out = self.root_abs.strip_prefix(b"/").unwrap_or(self.root_abs).to_vec();
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

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    test: Test,
    dir_only: bool,
    on_absolute: bool,
}

#[derive(Debug)]
enum Test {
    Never,
    /// `*`
    Always,
    /// `foo`
    Name(Box<[u8]>),
    /// `*.o`
    NameEnds(Box<[u8]>),
    /// `foo*`
    NameStarts(Box<[u8]>),
    /// `/foo/bar`
    Path(Box<[u8]>),
    /// `foo/bar`
    PathEnds(Box<[u8]>),
    /// `/foo/**`
    Below(Box<[u8]>),
    /// `/foo/***`
    Within(Box<[u8]>),
    /// Everything else.
    Glob(Scope, Box<Glob>),
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
    /// Compiles the pattern of a rule.
    pub(super) fn compile(text: &[u8], anchor: Anchor<'_>) -> Pattern {
        let (text, dir_only) = match text {
            [head @ .., b'/'] if !head.is_empty() => (head, true),
            _ => (text, false),
        };
        let triple = text.ends_with(b"***");
        let mut pattern = Pattern { test: Test::Never, dir_only, on_absolute: false };
        if text.len() > PATTERN_MAX_BYTES {
            return pattern;
        }
        if !text.starts_with(b"/") {
            pattern.on_absolute = anchor.absolute;
            pattern.test = Test::floating(text, triple);
            return pattern;
        }
        // rsync prepends the merge file's directory to the pattern and treats the result as one pattern, so a directory
        // named `d*` acts as a wildcard. Do the same.
        let mut full = Vec::new();
        if !anchor.absolute {
            full.extend_from_slice(anchor.base_abs);
        }
        full.extend_from_slice(text);
        let wild = has_wildcard(&full);
        let below_root = full.strip_prefix(anchor.root_abs).and_then(|t| t.strip_prefix(b"/"));
        let root_is_plain = !(has_wildcard(anchor.root_abs) || (wild && anchor.root_abs.contains(&b'\\')));
        match below_root {
            Some(tail) if root_is_plain => pattern.test = Test::anchored(tail, triple),
            None if !wild => {}
            Some(_) | None => {
                pattern.on_absolute = true;
                pattern.test = Test::anchored(full.strip_prefix(b"/").unwrap_or(&full), triple);
            }
        }
        pattern
    }

    /// Compiles the pattern of a global rule. It is anchored at the root of the transfer, whose own name is not a
    /// pattern.
    pub(super) fn compile_global(text: &[u8], root_abs: &[u8], absolute: bool) -> Pattern {
        let root_abs = if absolute { root_abs } else { b"" };
        Pattern::compile(text, Anchor { root_abs, base_abs: root_abs, absolute })
    }

    /// Returns whether the pattern matches.
    pub(super) fn matches(&self, subject: &Subject<'_>) -> bool {
        if self.dir_only && !subject.is_dir {
            return false;
        }
        let path = || if self.on_absolute { subject.absolute() } else { subject.path };
        match &self.test {
            Test::Never => false,
            Test::Always => true,
            // One byte distinguishes most names, and comparing it costs less than a call.
            Test::Name(name) => subject.name.first() == name.first() && subject.name == &**name,
            Test::NameEnds(end) => subject.name.last() == end.last() && subject.name.ends_with(end),
            Test::NameStarts(start) => subject.name.first() == start.first() && subject.name.starts_with(start),
            Test::Path(whole) => path() == &**whole,
            Test::PathEnds(end) => match path().strip_suffix(&**end) {
                Some(head) => matches!(head, [] | [.., b'/']),
                None => false,
            },
            Test::Below(dir) => is_below(path(), dir),
            Test::Within(dir) => is_below(path(), dir) || (subject.is_dir && path() == &**dir),
            Test::Glob(Scope::Name, glob) => glob.covers(subject.name, subject.is_dir),
            Test::Glob(Scope::Whole, glob) => glob.covers(path(), subject.is_dir),
            Test::Glob(Scope::Tail(count), glob) => {
                tail(path(), usize::from(*count)).is_some_and(|tail| glob.covers(tail, subject.is_dir))
            }
            Test::Glob(Scope::AnyTail, glob) => glob.covers_tail(path(), subject.is_dir),
        }
    }
}

impl Test {
    /// Compiles a pattern without a leading slash.
    fn floating(text: &[u8], triple: bool) -> Test {
        let slashes = text.iter().filter(|&&b| b == b'/').count();
        if !has_wildcard(text) {
            let make = if slashes == 0 { Test::Name } else { Test::PathEnds };
            return make(text.into());
        }
        if contains_double(text) {
            return Test::glob(Scope::AnyTail, text, triple);
        }
        if slashes > 0 {
            // At most the length of a pattern, see [`PATTERN_MAX_BYTES`].
            return Test::glob(Scope::Tail(slashes as u16 + 1), text, triple);
        }
        match text {
            b"*" => Test::Always,
            [b'*', end @ ..] if is_literal(end) => Test::NameEnds(end.into()),
            [start @ .., b'*'] if is_literal(start) => Test::NameStarts(start.into()),
            _ => Test::glob(Scope::Name, text, triple),
        }
    }

    /// Compiles a pattern whose leading slash has been removed.
    fn anchored(text: &[u8], triple: bool) -> Test {
        if !has_wildcard(text) {
            return Test::Path(text.into());
        }
        let literal = |dir: &[u8]| !dir.is_empty() && is_literal(dir);
        match text {
            [dir @ .., b'/', b'*', b'*', b'*'] if triple && literal(dir) => Test::Within(dir.into()),
            [dir @ .., b'/', b'*', b'*'] if literal(dir) => Test::Below(dir.into()),
            _ => Test::glob(Scope::Whole, text, triple),
        }
    }

    fn glob(scope: Scope, text: &[u8], triple: bool) -> Test {
        match Glob::compile(text, triple) {
            Some(glob) => Test::Glob(scope, Box::new(glob)),
            None => Test::Never,
        }
    }
}

/// Returns whether a name matches a pattern with wildcards. Neither may contain a slash.
pub fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    Pattern::compile_global(pattern, b"", false).matches(&Subject::new(name, false, b""))
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
    let mut slashes = path.iter().enumerate().rev().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
    match slashes.nth(count - 1) {
        Some(at) => Some(&path[at + 1..]),
        None => (path.iter().filter(|&&b| b == b'/').count() + 1 == count).then_some(path),
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

/// A part of a pattern. There is one for almost each byte, and there can be millions of patterns, so it is small.
#[derive(Debug)]
enum Token {
    Byte(u8),
    /// `?`
    Any,
    /// `*`
    Star,
    /// `**` and longer
    Stars,
    /// `[...]`, by its number in [`Glob::classes`].
    Class(u16),
}

/// A pattern with wildcards.
#[derive(Debug)]
struct Glob {
    tokens: Box<[Token]>,
    classes: Box<[ByteSet]>,
    /// Whether a `*` follows a `**`. Backtracking could be expensive then, so all alternatives are followed at once.
    branching: bool,
    /// Whether the pattern ends in `***`. A directory is then matched as if its name ended in a slash.
    triple: bool,
}

/// One bit for each position in the longest pattern, and one for its end.
const STATE_WORDS: usize = PATTERN_MAX_BYTES.div_ceil(64);

impl Glob {
    /// Compiles a pattern; `None` if it cannot match anything, e.g. because of an unclosed bracket.
    fn compile(text: &[u8], triple: bool) -> Option<Glob> {
        let (mut tokens, mut classes) = (Vec::new(), Vec::new());
        let mut at = 0;
        while let Some(&byte) = text.get(at) {
            at += 1;
            tokens.push(match byte {
                b'*' => {
                    let run = text[at..].iter().take_while(|&&b| b == b'*').count();
                    at += run;
                    if run == 0 { Token::Star } else { Token::Stars }
                }
                b'?' => Token::Any,
                b'[' => {
                    classes.push(parse_class(text, &mut at)?);
                    Token::Class(u16::try_from(classes.len() - 1).ok()?)
                }
                b'\\' => {
                    let escaped = *text.get(at)?;
                    at += 1;
                    Token::Byte(escaped)
                }
                _ => Token::Byte(byte),
            });
        }
        if tokens.len() >= STATE_WORDS * 64 {
            return None;
        }
        let first_double = tokens.iter().position(|t| matches!(t, Token::Stars));
        let last_single = tokens.iter().rposition(|t| matches!(t, Token::Star));
        let branching = first_double.zip(last_single).is_some_and(|(double, star)| double < star);
        Some(Glob { tokens: tokens.into(), classes: classes.into(), branching, triple })
    }

    /// Returns whether a token matches this byte; `false` for stars.
    fn takes(&self, token: &Token, byte: u8) -> bool {
        match token {
            Token::Byte(b) => *b == byte,
            Token::Any => byte != b'/',
            Token::Class(number) => byte != b'/' && holds(&self.classes[usize::from(*number)], byte),
            Token::Star | Token::Stars => false,
        }
    }

    /// Returns whether the pattern matches the whole of `text`.
    fn covers(&self, text: &[u8], is_dir: bool) -> bool {
        let slash = self.triple && is_dir;
        if self.branching || slash { self.follow(0, text, slash, false) } else { self.walk(0, text) }
    }

    /// Returns whether the pattern matches `text` from the start of some component to the end.
    fn covers_tail(&self, text: &[u8], is_dir: bool) -> bool {
        let slash = self.triple && is_dir;
        // A leading `**/` also matches at the root.
        let skip = match &self.tokens[..] {
            [Token::Stars, Token::Byte(b'/'), ..] => Some(2),
            _ => None,
        };
        if let Some(from) = skip
            && (if self.branching || slash { self.follow(from, text, slash, false) } else { self.walk(from, text) })
        {
            return true;
        }
        if self.branching || slash {
            return self.follow(0, text, slash, true);
        }
        if matches!(self.tokens.first(), Some(Token::Stars)) {
            return self.walk(0, text);
        }
        let starts = text.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at + 1);
        std::iter::once(0).chain(starts).any(|start| self.walk(0, &text[start..]))
    }

    /// Matches by backtracking to the last `*`, then to the last `**`.
    ///
    /// This is sufficient: an earlier star could only match more of what a later star can match, too.
    fn walk(&self, from: usize, text: &[u8]) -> bool {
        let tokens = &self.tokens[from..];
        let (mut token_at, mut text_at) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        let mut stars: Option<(usize, usize)> = None;
        loop {
            match tokens.get(token_at) {
                Some(Token::Star) => {
                    token_at += 1;
                    star = Some((token_at, text_at));
                    continue;
                }
                Some(Token::Stars) => {
                    token_at += 1;
                    if token_at == tokens.len() {
                        return true;
                    }
                    stars = Some((token_at, text_at));
                    star = None;
                    continue;
                }
                Some(token) if text.get(text_at).is_some_and(|&b| self.takes(token, b)) => {
                    token_at += 1;
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
                && let Some(next) = next_start(&tokens[resume], text, at + 1)
            {
                stars = Some((resume, next));
                star = None;
                (token_at, text_at) = (resume, next);
            } else {
                return false;
            }
        }
    }

    /// Matches by following all alternatives at once, with one bit for each token that may come next.
    ///
    /// With `slash`, the text has an additional slash at its end. With `restart`, the pattern may start at any
    /// component.
    fn follow(&self, from: usize, text: &[u8], slash: bool, restart: bool) -> bool {
        let tokens = &self.tokens[from..];
        let words = tokens.len() / 64 + 1;
        let mut buffers = ([0u64; STATE_WORDS], [0u64; STATE_WORDS]);
        let (mut now, mut next) = (&mut buffers.0[..words], &mut buffers.1[..words]);
        add(tokens, now, 0);
        for (at, &byte) in text.iter().chain(slash.then_some(&b'/')).enumerate() {
            next.fill(0);
            let mut alive = false;
            for (word, &bits) in now.iter().enumerate() {
                let mut bits = bits;
                while bits != 0 {
                    let state = word * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    match tokens.get(state) {
                        Some(Token::Stars) => add(tokens, next, state),
                        Some(Token::Star) if byte != b'/' => add(tokens, next, state),
                        Some(token) if self.takes(token, byte) => add(tokens, next, state + 1),
                        Some(_) | None => continue,
                    }
                    alive = true;
                }
            }
            // The additional slash starts no component.
            if restart && byte == b'/' && at < text.len() {
                add(tokens, next, 0);
                alive = true;
            }
            if !alive && !restart {
                return false;
            }
            std::mem::swap(&mut now, &mut next);
        }
        now[tokens.len() / 64] >> (tokens.len() % 64) & 1 == 1
    }
}

/// Returns the first position from `at` on where the token after a `**` can match; `None` if there is none.
fn next_start(token: &Token, text: &[u8], at: usize) -> Option<usize> {
    match token {
        Token::Byte(wanted) => Some(at + text.get(at..)?.iter().position(|b| b == wanted)?),
        Token::Any | Token::Class(_) | Token::Star | Token::Stars => (at <= text.len()).then_some(at),
    }
}

/// Adds a state, and the states after stars that can match nothing.
fn add(tokens: &[Token], states: &mut [u64], state: usize) {
    let mut state = state;
    loop {
        states[state / 64] |= 1 << (state % 64);
        match tokens.get(state) {
            Some(Token::Star | Token::Stars) => state += 1,
            Some(Token::Byte(_) | Token::Any | Token::Class(_)) | None => return,
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
                    (0..=u8::MAX).filter(posix_class(name)?).for_each(|b| insert(&mut set, b));
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
                (previous?..=last).for_each(|b| insert(&mut set, b));
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

    fn global(text: &str) -> Pattern {
        Pattern::compile_global(text.as_bytes(), b"/r", false)
    }

    fn hits(pattern: &Pattern, path: &str) -> bool {
        let (path, is_dir) = match path.strip_suffix('/') {
            Some(dir) => (dir, true),
            None => (path, false),
        };
        pattern.matches(&Subject::new(path.as_bytes(), is_dir, b"/r"))
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
            let anchor = Anchor { root_abs: b"/x/r", base_abs: base, absolute: false };
            Pattern::compile(text, anchor)
        };
        assert!(hits(&at(b"/x/r/d", b"/a*"), "d/ab"));
        assert!(!hits(&at(b"/x/r/d", b"/a*"), "ab"));
        assert!(hits(&at(b"/x", b"/r/a"), "a"), "patterns of a file above the root match inside it");
        assert!(!hits(&at(b"/x", b"/a"), "a"));
        assert!(hits(&at(b"/x/r/d*", b"/a"), "d*/a"));
        assert!(!hits(&at(b"/x/r/[d]", b"/a"), "[d]/a"), "the directory name is treated as a pattern");
    }

    #[test]
    fn absolute_patterns_match_the_full_path() {
        let at = |text: &[u8]| Pattern::compile_global(text, b"/r", true);
        assert!(hits(&at(b"/r/a"), "a"));
        assert!(!hits(&at(b"/a"), "a"));
        assert!(hits(&at(b"r/a"), "a"));
        assert!(hits(&at(b"/*/a"), "a"));
        assert!(hits(&at(b"a"), "b/a"));
    }

    #[test]
    fn many_stars_match_in_bounded_time() {
        let text = "a".repeat(4000);
        for pattern in ["*a*a*a*a*a*a*a*a*b", "**a*a*a*a*a*a*a*a*b", "a**a**a**a**a**a**b"] {
            assert!(!hits(&global(pattern), &text), "{pattern}");
        }
    }

    /// Matches with the general matcher only. The specialized tests must agree with it.
    fn in_general(text: &[u8], path: &[u8], is_dir: bool) -> bool {
        let (text, dir_only) = match text {
            [head @ .., b'/'] if !head.is_empty() => (head, true),
            _ => (text, false),
        };
        let triple = text.ends_with(b"***");
        let escaped: Vec<u8> = if has_wildcard(text) {
            text.to_vec()
        } else {
            text.iter().flat_map(|&b| if b == b'\\' { vec![b, b] } else { vec![b] }).collect()
        };
        let (scope, core) = match escaped.strip_prefix(b"/") {
            Some(core) => (Scope::Whole, core),
            None if contains_double(&escaped) => (Scope::AnyTail, &escaped[..]),
            None if escaped.contains(&b'/') => {
                (Scope::Tail(1 + escaped.iter().filter(|&&b| b == b'/').count() as u16), &escaped[..])
            }
            None => (Scope::Name, &escaped[..]),
        };
        let test = Test::glob(scope, core, triple);
        Pattern { test, dir_only, on_absolute: false }.matches(&Subject::new(path, is_dir, b""))
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
                .matches(&Subject::new(path.as_bytes(), is_dir, b""));
            prop_assert_eq!(quick, in_general(text.as_bytes(), path.as_bytes(), is_dir));
        }

        #[test]
        fn backtracking_agrees_with_exhaustive_search(
            text in "[ab/*?]{1,10}",
            path in "[ab]{1,4}(/[ab]{1,4}){0,3}",
        ) {
            if let Some(glob) = Glob::compile(text.as_bytes(), false) {
                let path = path.as_bytes();
                prop_assert_eq!(glob.walk(0, path), glob.follow(0, path, false, false));
            }
        }

        #[test]
        fn any_bytes_compile_as_a_pattern(text in proptest::collection::vec(any::<u8>(), 0..40), path: Vec<u8>) {
            let _ = Pattern::compile_global(&text, b"/r", false)
                .matches(&Subject::new(&path, true, b"/r"));
        }
    }
}

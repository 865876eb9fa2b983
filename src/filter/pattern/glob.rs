//! The general matcher, for patterns with wildcards. It takes at worst time proportional to pattern length times path
//! length.

use super::PATTERN_MAX_BYTES;
use super::class::{ByteSet, holds, parse_class};

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

/// Returns the length of the class that a pattern begins with, such as `[a-z]`; `None` if its bracket is not closed.
pub fn class_len(pattern: &[u8]) -> Option<usize> {
    if !pattern.starts_with(b"[") {
        return None;
    }
    let mut len = 1;
    parse_class(pattern, &mut len)?;
    Some(len)
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
    /// Returns whether the part matches this byte; `false` for stars.
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
pub(super) struct Glob<'a> {
    pub(super) text: &'a [u8],
    /// See [`BRANCHING`](super::BRANCHING).
    pub(super) branching: bool,
    /// See [`TRIPLE`](super::TRIPLE).
    pub(super) triple: bool,
}

/// One bit for each position in the longest pattern, and one for its end.
const STATE_WORDS: usize = PATTERN_MAX_BYTES.div_ceil(64);

impl Glob<'_> {
    /// Returns whether a `*` follows a `**` in a pattern; `None` if it cannot match anything, e.g. because of an unclosed
    /// bracket.
    pub(super) fn is_branching(text: &[u8]) -> Option<bool> {
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
            let (part, next) = glob.part(at)?;
            has_double |= matches!(part, PatternPart::Stars);
            is_branching |= has_double && matches!(part, PatternPart::Star);
            at = next;
        }
        Some(is_branching)
    }

    /// Returns the part at this position, and the position of the next one. `None` at the end, or if it is malformed.
    fn part(&self, at: usize) -> Option<(PatternPart, usize)> {
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
    pub(super) fn covers(&self, text: &[u8], is_dir: bool) -> bool {
        let slash = self.triple && is_dir;
        if self.branching || slash {
            self.follow(0, text, slash, false)
        } else {
            self.walk(0, text)
        }
    }

    /// Returns whether the pattern matches `text` from the start of some component to the end.
    pub(super) fn covers_tail(&self, text: &[u8], is_dir: bool) -> bool {
        let slash = self.triple && is_dir;
        let first = self.part(0);
        // A leading `**/` also matches at the root.
        let skip = match first {
            Some((PatternPart::Stars, second)) => match self.part(second) {
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
        let mut part_at = from;
        let mut text_at = 0;
        let mut star: Option<(usize, usize)> = None;
        let mut stars: Option<(usize, usize)> = None;
        loop {
            match self.part(part_at) {
                Some((PatternPart::Star, next)) => {
                    part_at = next;
                    star = Some((part_at, text_at));
                    continue;
                }
                Some((PatternPart::Stars, next)) => {
                    part_at = next;
                    if part_at == self.text.len() {
                        return true;
                    }
                    stars = Some((part_at, text_at));
                    star = None;
                    continue;
                }
                Some((part, next)) if text.get(text_at).is_some_and(|&b| part.takes(b)) => {
                    part_at = next;
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
                (part_at, text_at) = (resume, at + 1);
            } else if let Some((resume, at)) = stars
                && let Some(next) = self.next_start(resume, text, at + 1)
            {
                stars = Some((resume, next));
                star = None;
                (part_at, text_at) = (resume, next);
            } else {
                return false;
            }
        }
    }

    /// Returns the first position from `at` on where the part after a `**` can match; `None` if there is none.
    fn next_start(&self, resume: usize, text: &[u8], at: usize) -> Option<usize> {
        let rest = text.get(at..)?;
        match self.part(resume)?.0 {
            PatternPart::Byte(wanted) => Some(at + rest.iter().position(|b| *b == wanted)?),
            PatternPart::Any | PatternPart::Class(_) | PatternPart::Star | PatternPart::Stars => {
                Some(at)
            }
        }
    }

    /// Matches by following all alternatives at once, with one bit for each position where the next part may begin.
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
                    match self.part(state) {
                        Some((PatternPart::Stars, _)) => self.add(next, state),
                        Some((PatternPart::Star, _)) if byte != b'/' => self.add(next, state),
                        Some((part, after)) if part.takes(byte) => self.add(next, after),
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
            match self.part(state) {
                Some((PatternPart::Star | PatternPart::Stars, next)) => state = next,
                Some((PatternPart::Byte(_) | PatternPart::Any | PatternPart::Class(_), _))
                | None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn pattern_branches_if_a_star_follows_a_double_star() {
        for (text, expected) in [
            ("**a*", Some(true)),
            ("*a**b*c", Some(true)),
            ("**a*b**", Some(true)),
            ("*a**", Some(false)),
            ("*", Some(false)),
            ("**", Some(false)),
            ("**a[*]", Some(false)),
            ("**a\\*", Some(false)),
            ("[**]a*", Some(false)),
            ("a?", Some(false)),
            ("**a*[", None),
            ("a\\", None),
        ] {
            assert_eq!(Glob::is_branching(text.as_bytes()), expected, "{text}");
        }
        let longest = "a".repeat(STATE_WORDS * 64 - 1);
        assert_eq!(Glob::is_branching(longest.as_bytes()), Some(false));
        assert_eq!(Glob::is_branching(format!("{longest}a").as_bytes()), None);
    }

    proptest! {
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
    }
}

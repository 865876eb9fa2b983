//! Finds the most similar basis file for a new one: `--fuzzy`.
//!
//! The choice is rsync's, so that the same data is transferred. The distance between names is derived from the output
//! of `--debug=fuzzy2`. Listing and opening files are left to the caller.

use super::quick_check::same_time;
use crate::flist::Time;
use std::collections::HashMap;

/// The cost of inserting, removing or replacing one byte. The byte's value, or the difference of two, is added as a
/// fraction, so that among names at the same distance the one with the closer bytes wins.
const UNIT: u32 = 1 << 16;
/// Names at a greater distance have nothing in common.
const FURTHEST: u32 = 25 * UNIT;
/// The weight of a difference in the suffix.
const SUFFIX_WEIGHT: u32 = 10;
/// The maximum number of byte pairs to compare for one directory, a few seconds' worth. Beyond it, files are matched by
/// length and time only: many new names in a huge directory would take too long.
const PAIRS_MAX: u64 = 1 << 31;

/// A possible basis file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FuzzyCandidate {
    /// The file name.
    pub name: Box<[u8]>,
    /// The length. Empty files are never chosen.
    pub len_bytes: u64,
    /// The modification time.
    pub mtime: Time,
}

/// The files to choose from.
#[derive(Debug)]
pub struct Candidates {
    files: Vec<FuzzyCandidate>,
    by_len: HashMap<u64, Vec<u32>>,
    pairs_left: u64,
}

impl Candidates {
    /// Creates the set. The order of `files` decides between equals.
    pub fn new(files: Vec<FuzzyCandidate>) -> Candidates {
        let mut by_len: HashMap<u64, Vec<u32>> = HashMap::new();
        for (at, file) in files
            .iter()
            .enumerate()
            .filter(|(_, file)| file.len_bytes > 0)
        {
            by_len.entry(file.len_bytes).or_default().push(at as u32);
        }
        Candidates {
            files,
            by_len,
            pairs_left: PAIRS_MAX,
        }
    }

    /// Returns the index of the file most similar to one of this name, length and time.
    ///
    /// Prefers the first file of the same length and time, which is the file itself under an older name; then the last
    /// of those with the closest name. Returns `None` if no name is close enough. `window_secs` is as in [`same_time`].
    pub fn choose(
        &mut self,
        name: &[u8],
        len_bytes: u64,
        mtime: Time,
        window_secs: i64,
    ) -> Option<usize> {
        let same_len = self
            .by_len
            .get(&len_bytes)
            .into_iter()
            .flatten()
            .map(|&at| at as usize);
        let mut same = same_len.filter(|&at| same_time(self.files[at].mtime, mtime, window_secs));
        same.next().or_else(|| self.nearest(name))
    }

    /// Returns the name of the file at this index.
    pub fn name(&self, at: usize) -> &[u8] {
        &self.files[at].name
    }

    fn nearest(&mut self, name: &[u8]) -> Option<usize> {
        let name_suffix = suffix(name);
        let mut nearest = None;
        let mut least = FURTHEST;
        for (at, file) in self
            .files
            .iter()
            .enumerate()
            .filter(|(_, file)| file.len_bytes > 0)
        {
            let pairs = (name.len() * file.name.len()) as u64;
            let Some(left) = self.pairs_left.checked_sub(pairs) else {
                break;
            };
            // Names whose lengths differ by more are skipped, at no cost.
            if (name.len().abs_diff(file.name.len()) as u32).saturating_mul(UNIT) > least {
                continue;
            }
            self.pairs_left = left;
            let far = distance(name, &file.name, least)
                .and_then(|far| {
                    Some(far + SUFFIX_WEIGHT * distance(name_suffix, suffix(&file.name), least)?)
                })
                .filter(|&far| far <= least);
            if let Some(far) = far {
                (nearest, least) = (Some(at), far);
            }
        }
        nearest
    }
}

/// Returns the distance between two names; `None` if it is greater than `limit`.
///
/// Replacing a byte costs [`UNIT`] plus the difference of the two. Inserting or removing one costs [`UNIT`] plus its
/// value; the value is not added in front of the other name's first byte.
fn distance(a: &[u8], b: &[u8], limit: u32) -> Option<u32> {
    if a.is_empty() || b.is_empty() {
        let sum = a.iter().chain(b).map(|&byte| UNIT + u32::from(byte)).sum();
        return if sum <= limit { Some(sum) } else { None };
    }
    let mut above: Vec<u32> = (0..=b.len() as u32).map(|at| at * UNIT).collect();
    for (line, &mine) in a.iter().enumerate() {
        let mut diagonal = above[0];
        above[0] = (line as u32 + 1) * UNIT;
        let mut nearest = above[0];
        for (at, &theirs) in b.iter().enumerate() {
            let change = if mine == theirs {
                0
            } else {
                UNIT + u32::from(mine.abs_diff(theirs))
            };
            let removed = above[at + 1] + UNIT + u32::from(mine);
            let inserted = above[at] + UNIT + u32::from(theirs);
            let best = (diagonal + change).min(removed).min(inserted);
            diagonal = std::mem::replace(&mut above[at + 1], best);
            nearest = nearest.min(best);
        }
        if nearest > limit {
            return None;
        }
    }
    above.last().copied().filter(|&far| far <= limit)
}

/// Returns the suffix of a file name, from its last dot on.
///
/// Skips backup suffixes. Also skips numbers, unless there is no other suffix. Dots at the front do not start a suffix.
fn suffix(name: &[u8]) -> &[u8] {
    let front = name.iter().take_while(|&&byte| byte == b'.').count();
    let body = name.strip_suffix(b"~").unwrap_or(name);
    let is_number = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let mut number: &[u8] = b"";
    let mut end = body.len();
    while let Some(dot) = body[..end]
        .iter()
        .rposition(|&byte| byte == b'.')
        .filter(|&dot| dot >= front)
    {
        let found = &body[dot..end];
        let is_backup = if body.len() < name.len() {
            // rsync does not recognize numbers of two and three digits as backup suffixes.
            end == body.len()
                && !matches!(found.len(), 4 | 5)
                && found.strip_prefix(b".~").is_some_and(is_number)
        } else {
            end == name.len() && matches!(found, b".bak" | b".old" | b".orig")
        };
        if is_number(&found[1..]) {
            number = found;
        } else if !is_backup {
            return found;
        }
        end = dot;
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the distance between two names in rsync's notation.
    fn far(a: &str, b: &str) -> String {
        let apart = |a, b| distance(a, b, u32::MAX).expect("without a limit");
        let a = a.as_bytes();
        let b = b.as_bytes();
        let far = apart(a, b) + SUFFIX_WEIGHT * apart(suffix(a), suffix(b));
        format!("{}.{:05}", far / UNIT, far % UNIT)
    }

    #[test]
    fn name_distances_match_rsync() {
        // Output of rsync 3.5.0 with --debug=fuzzy2.
        let expected = "hello ello 1.00000 | hello llo 2.00000 | hello 1hello 1.00000 | hello 12hello 2.00000 | \
            hello xello 1.00016 | ello hello 1.00000 | hello heo 2.00216 | hello hxexlo 2.00132 | abcdef fedcba 6.00018 | \
            a.txt b.verylongsuffixhere 188.17810 | a.txt a.t1 22.02057 | a.txt a.1 33.03333 | a.txt a.~1~ 43.04071 | \
            a.txt a.txt.~1~ 4.00347 | a.txt a.txt.1 2.00095 | a.txt a.txt.tmp 24.00533 | a.txt a.txt.orig 5.00479 | \
            a.txt a.txt.bak 4.00348 | a.txt a.txt.rej 34.00677 | a.txt a.txt~ 1.00126 | a.txt a.txt~~ 12.01512 | \
            a.txt .a.txt 1.00000 | a.txt ..a 44.04189 | a.txt .txt 41.03980 | .txt a.txt 41.03980 | \
            .bashrc .bashrd 1.00001 | a.123456 a.12345 11.00594 | a-1.2.tar.gz a-1.3.tar.gz 1.00001 | \
            foo.BAK foo 44.02772 | a. a.. 1.00046 | a.bak.old a.orig.bak 47.01516 | a.1.2.3 a.b.2.3 11.00539 | \
            a.x.~12~ a.y.~12~ 1.00001 | libfoo.so.1.2 libfoo.so.1.3 1.00001 | x.aa.old x.bb.old 22.00022 | \
            x.aa.old~ x.bb.old~ 2.00002 | x.aa.~3~ x.bb.~3~ 22.00022 | x.aa~ x.bb~ 22.00022 | x.aa.ORIG x.bb.ORIG 2.00002 | \
            x.aa.7.bak x.bb.7.bak 22.00022 | .aa .bb 2.00002 | ..x.aa ..x.bb 22.00022 | x.aa. x.bb. 2.00002 | \
            x.aa.~1 x.bb.~1 2.00002 | x.aa.1~ x.bb.1~ 22.00022 | x.aa.~a~ x.bb.~a~ 2.00002 | a.bak a 4.00107 | \
            x.1.2 x.1.3 1.00001 | x.1.2 x.3.2 11.00022 | x.1.2 x 24.01141 | x.1.2 x.1 2.00096 | a. a 11.00506 | \
            a.~ a 12.00632 | a.~1~ a 4.00347 | a.1~ a 23.01171 | a.bak.1 a.old.1 33.00341 | a.bak.1 a 46.03682 | \
            a.~~ a 23.02018 | a.old~ a 45.04141 | a.txt.~1~.bak a.txt 38.01605 | a.txt.1.2.3 a.txt 6.00288 | \
            a.txt..1 a.txt 33.03661 | a.txt.1.orig a.txt 7.00574 | a.txt.bak~ a.txt 35.00974 | .a.1 .a 22.01045 | \
            1.2 1 22.01056 | .1 .2 1.00001 | a.txt.-1 a.txt 33.02720 | é.txt e.txt 2.00068 | aab aba 2.00002 | \
            kitten sitting 3.00115 | a.txt.~1~~ a.txt 35.01383 | x.aa.1.~2~ x.bb.1.~2~ 22.00022 | \
            x.aa.~2~.1 x.bb.~2~.1 2.00002 | a.x.~3~ a.y.~3~ 11.00011 | a.x.~123~ a.y.~123~ 1.00001 | \
            a.xxx.~1234~ a.yyy.~1234~ 33.00033 | a.x.123~ a.y.123~ 11.00011";
        for line in expected.split(" | ") {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(far(words[0], words[1]), words[2], "{line}");
        }
    }

    fn file(spec: &str) -> FuzzyCandidate {
        let mut parts = spec.split(':');
        let name = parts.next().unwrap_or_default().as_bytes().into();
        let mut number = |fallback: i64| {
            parts
                .next()
                .map_or(fallback, |part| part.parse().expect("a number"))
        };
        let len_bytes = number(50) as u64;
        FuzzyCandidate {
            name,
            len_bytes,
            mtime: Time {
                secs: number(7),
                nanos: 0,
            },
        }
    }

    /// Returns the file chosen from these for a file of 100 bytes and time 9.
    fn chosen<'a>(name: &str, among: &'a str) -> Option<&'a str> {
        let mut candidates = Candidates::new(among.split(' ').map(file).collect());
        let at = candidates.choose(name.as_bytes(), 100, Time { secs: 9, nanos: 5 }, 0);
        at.map(|at| {
            among
                .split(' ')
                .nth(at)
                .and_then(|spec| spec.split(':').next())
                .expect("one of them")
        })
    }

    #[test]
    fn candidates_are_named_by_their_index() {
        let candidates = Candidates::new(["a", "b"].map(file).to_vec());
        assert_eq!(candidates.name(1), b"b");
    }

    #[test]
    fn chosen_basis_matches_rsync() {
        for (name, among, expected) in [
            (
                "abc.txt",
                "abc abc-1.txt abc.doc abc.txt.old abcd.txt abd.txt bca.txt xabc.txt zzz.txt",
                Some("xabc.txt"),
            ),
            (
                "abc",
                ".abc~ abc.bak abc.old abc.orig abc.tgz abc~",
                Some("abc~"),
            ),
            // Among equals, the last.
            ("c", "b d", Some("d")),
            ("abc", "ab ab~ abcd a", Some("ab~")),
            // The same length and time beat any name; of these, the first.
            ("abc", "abd zzz:100:9 zzy:100:9", Some("zzz")),
            ("abc", "abd zzz:100:8 zzy:99:9", Some("abd")),
            // Empty files are never chosen.
            ("abc", "abd:0:9", None),
            // Too different.
            ("1234567890123456789012345x", "x", Some("x")),
            ("x1234567890123456789012345", "x", None),
            ("12345678901234567890123456x", "x", None),
            (
                "xxxxxxxxxxxxxxxxxxxxxxxxx",
                "yyyyyyyyyyyyyyyyyyyyyyyyy",
                None,
            ),
            ("a.txt", "a.1 a.txt.rej", None),
        ] {
            assert_eq!(chosen(name, among), expected, "{name} among {among}");
        }
    }

    #[test]
    fn fuzzy_match_respects_the_modify_window() {
        let name = &[b'n'; 40];
        let among = || Candidates::new(vec![file("q:100:12")]);
        assert_eq!(
            among().choose(name, 100, Time { secs: 9, nanos: 0 }, 0),
            None
        );
        assert_eq!(
            among().choose(name, 100, Time { secs: 9, nanos: 0 }, 3),
            Some(0)
        );
    }

    #[test]
    fn number_of_name_comparisons_is_limited() {
        let name = "n".repeat(255);
        let files = (0..2_000)
            .map(|n| file(&format!("{}{n:04}", &name[4..])))
            .collect();
        let mut candidates = Candidates::new(files);
        candidates.pairs_left = 255 * 255 * 100;
        assert_eq!(
            candidates.choose(name.as_bytes(), 1, Time::default(), 0),
            Some(99)
        );
        assert_eq!(
            candidates.choose(name.as_bytes(), 1, Time::default(), 0),
            None
        );
        // A file of the same length and time is still found.
        assert_eq!(
            candidates.choose(name.as_bytes(), 50, Time { secs: 7, nanos: 0 }, 0),
            Some(0)
        );
    }

    proptest! {
        #[test]
        fn distance_limit_only_cuts_off_larger_distances(a in "[a-c.~1]{0,12}", b in "[a-c.~1]{0,12}", limit in 0u32..20) {
            let a = a.as_bytes();
            let b = b.as_bytes();
            let limit = limit * UNIT;
            let far = distance(a, b, u32::MAX);
            prop_assert_eq!(distance(a, b, limit), far.filter(|&far| far <= limit));
        }
    }
}

//! Tests: what patterns match, as rsync shows it, and that specialized tests agree with the general matcher.

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
        ("[a-\\c-e]", "a b c - e", "d \\"),
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
    fn any_bytes_compile_as_a_pattern(text in proptest::collection::vec(any::<u8>(), 0..40), path: Vec<u8>) {
        let _ = Pattern::compile_global(&text, b"/r", false)
            .matches(&text, &CandidatePath::new(&path, true, b"/r"));
    }
}

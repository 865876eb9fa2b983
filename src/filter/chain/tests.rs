//! Tests: verdicts, and the rules of files as a walk enters directories.

use super::*;
use crate::exit::Exit;
use crate::filter::{
    GROUP_DEPTH_MAX, MERGE_DEPTH_MAX, ModuleRules, Parsed, RulePlace, Rules, Side, Verdict,
    parse_exclude, parse_filter, parse_merge,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Merge files by name: absolute, or relative to the root `/r`.
type Files = BTreeMap<&'static str, &'static str>;

fn chain(rules: &[&str]) -> Chain {
    let options = ChainOptions {
        root_abs: b"/r".to_vec(),
        ..ChainOptions::default()
    };
    with_options(rules, options)
}

fn with_options(rules: &[&str], options: ChainOptions) -> Chain {
    let rules = rules
        .iter()
        .map(|rule| parse_filter(rule.as_bytes()).unwrap());
    Chain::new(rules, options)
}

fn try_enter(chain: &Chain, dir: &str, files: &Files) -> Result<Chain, FilterError> {
    let entered = chain.enter(dir.as_bytes(), &mut |name| {
        let name = std::str::from_utf8(name).unwrap();
        let path = if name.starts_with('/') {
            name.strip_prefix("/r/").unwrap_or(name).to_owned()
        } else if dir.is_empty() {
            name.to_owned()
        } else {
            format!("{dir}/{name}")
        };
        Ok(files.get(&path[..]).map(|text| text.as_bytes().to_vec()))
    });
    entered.map(|(chain, _)| chain)
}

/// Enters the directories from the root down to `dir`.
fn at(rules: &[&str], files: &Files, dir: &str) -> Chain {
    let mut chain = try_enter(&chain(rules), "", files).unwrap();
    let ends = dir.match_indices('/').map(|(at, _)| at).chain([dir.len()]);
    for end in ends.filter(|&end| end > 0) {
        chain = try_enter(&chain, &dir[..end], files).unwrap();
    }
    chain
}

fn hides(chain: &Chain, path: &str) -> bool {
    chain.verdict(Side::Sender, path.as_bytes(), false) != Verdict::Include
}

#[test]
fn first_matching_rule_wins() {
    let chain = chain(&["+ a.o", "- *.o", "-! */", "- d"]);
    assert!(!hides(&chain, "x/a.o"));
    assert!(hides(&chain, "b.o"));
    assert!(hides(&chain, "plain"));
    assert_eq!(
        chain.verdict(Side::Sender, b"d", true),
        Verdict::Exclude { perishable: false }
    );
    assert_eq!(chain.verdict(Side::Sender, b"", true), Verdict::Include);
    let all = self::chain(&["- *"]);
    assert_eq!(all.verdict(Side::Sender, b"", true), Verdict::Include);
}

#[test]
fn attributes_have_their_own_rules() {
    let chain = chain(&["- user.a", "-xr user.b", "+x user.c", "-x user.*"]);
    let takes = |name: &str| chain.xattr_verdict(Side::Sender, name.as_bytes());
    assert_eq!(takes("user.c"), Some(true));
    assert_eq!(takes("user.d"), Some(false));
    assert_eq!(takes("security.x"), Some(true));
    let only = self::chain(&["- user.a", "-xr user.b", "-xs user.c"]);
    for (name, expected) in [("user.a", true), ("user.b", true), ("user.c", false)] {
        let found = only.xattr_verdict(Side::Sender, name.as_bytes());
        assert_eq!(found, Some(expected), "{name}");
    }
    assert_eq!(
        self::chain(&["- user.a"]).xattr_verdict(Side::Sender, b"user.a"),
        None
    );
}

#[test]
fn each_side_has_its_own_rules() {
    let chain = chain(&["P a", "H b", "- c", "R c"]);
    let protected = |path: &[u8]| chain.verdict(Side::Receiver, path, false);
    let exclude = Verdict::Exclude { perishable: false };
    assert!(!hides(&chain, "a") && hides(&chain, "b") && hides(&chain, "c"));
    assert_eq!(
        [protected(b"a"), protected(b"b")],
        [exclude, Verdict::Include]
    );
    assert_eq!(protected(b"c"), exclude);
    let options = ChainOptions {
        delete_excluded: true,
        ..ChainOptions::default()
    };
    let chain = with_options(&["- a", "-r b", "-sr c"], options);
    let protected = |path: &[u8]| chain.verdict(Side::Receiver, path, false);
    assert_eq!(
        [protected(b"a"), protected(b"b")],
        [Verdict::Include, exclude]
    );
    assert_eq!(protected(b"c"), exclude);
}

#[test]
fn perishable_rules_do_not_apply_in_a_deleted_directory() {
    let chain = chain(&["-p a", "+p b", "- b", "-p c", "- c"]);
    let in_deleted_dir = |path: &[u8]| chain.verdict_in_deleted_dir(Side::Receiver, path, false);
    let perishable = Verdict::Exclude { perishable: true };
    assert_eq!(chain.verdict(Side::Receiver, b"a", false), perishable);
    assert_eq!(in_deleted_dir(b"a"), Verdict::Include);
    assert_eq!(in_deleted_dir(b"b"), Verdict::Exclude { perishable: false });
    assert_eq!(in_deleted_dir(b"c"), Verdict::Exclude { perishable: false });
}

#[test]
fn clear_removes_preceding_rules() {
    let chain = chain(&["- a", ": .r", "!", "- b"]);
    assert!(!hides(&chain, "a") && hides(&chain, "b") && !chain.has_per_dir());
}

/// Whether the rules of the module exclude `other` and nothing else.
fn entered_excludes(chain: &Chain) -> bool {
    chain.module_excludes(b"d/other", false) && !chain.module_excludes(b"d/a", false)
}

#[test]
fn module_hides_rule_files() {
    let files = Files::from([("d/.r", "- a\n. /r/more"), ("more", "- b")]);
    let inside = |module_rule: &str| {
        let parsed = vec![parse_filter(module_rule.as_bytes()).unwrap()];
        let options = ChainOptions {
            root_abs: b"/r".to_vec(),
            module: ModuleRules::new(parsed, b"/r").map(Arc::new),
            ..ChainOptions::default()
        };
        let chain = with_options(&[": .r"], options);
        assert!(chain.has_module_rules());
        try_enter(&chain, "d", &files)
    };
    let entered = inside("- other").unwrap();
    assert!(hides(&entered, "d/a") && hides(&entered, "d/b"));
    // A per-directory file is optional, and one that a rule names must exist.
    let entered = inside("- .r").unwrap();
    assert!(!hides(&entered, "d/a") && !hides(&entered, "d/b"));
    assert!(inside("- /more").is_err());
    assert!(entered_excludes(&inside("- other").unwrap()));
    assert!(!chain(&["- a"]).has_module_rules());
}

#[test]
fn parents_are_scanned_for_the_first_source_only() {
    let files = Files::from([("/.r", "- a"), ("d/.r", "- b")]);
    let first = chain(&[": /.r"]);
    let entered = try_enter(&first, "d", &files).unwrap();
    assert!(hides(&entered, "d/a") && hides(&entered, "d/b"));
    let further = first.for_further_source();
    let entered = try_enter(&further, "d", &files).unwrap();
    assert!(!hides(&entered, "d/a") && hides(&entered, "d/b"));
    // One that was entered, or has no such files, needs no change.
    assert!(further.for_further_source().same(&further));
    let plain = chain(&["- a"]);
    assert!(plain.for_further_source().same(&plain));
}

#[test]
fn fixed_rules_precede_those_that_depend_on_the_tree() {
    let fixed = |lines: &[&str]| {
        let parsed = lines
            .iter()
            .map(|line| parse_filter(line.as_bytes()).unwrap());
        let parsed: Vec<Parsed> = parsed.collect();
        Rules::new(parsed, ChainOptions::default()).fixed()
    };
    for dependent in [": .r", "-/ /r/x"] {
        let chain = fixed(&["- a", dependent, "- b"]);
        assert!(hides(&chain, "a") && !hides(&chain, "b"), "{dependent}");
        // A rule that clears the list takes those before it away, too.
        let chain = fixed(&["- a", dependent, "!", "- b"]);
        assert!(!hides(&chain, "a") && !hides(&chain, "b"), "{dependent}");
    }
    let chain = fixed(&["- a", "- b"]);
    assert!(hides(&chain, "a") && hides(&chain, "b"));
}

#[test]
fn chain_of_a_tree_has_its_root_and_side() {
    let parsed = vec![
        parse_filter(b"-/ /r/x").unwrap(),
        parse_filter(b"- c").unwrap(),
    ];
    let rules = Rules::new(parsed, ChainOptions::default());
    assert!(hides(&rules.chain(Side::Sender, b"/r/"), "x"));
    assert!(!hides(&rules.chain(Side::Sender, b"/other"), "x"));
    // In a file, a group of the other side does not take its name.
    let files = Files::from([(".r", ":r .q\n: .q"), (".q", "- a")]);
    let parsed = vec![parse_filter(b": .r").unwrap()];
    let rules = Rules::new(parsed, ChainOptions::default());
    for (side, is_hidden) in [(Side::Sender, true), (Side::Receiver, false)] {
        let chain = rules.chain(side, b"/r");
        let entered = try_enter(&chain, "", &files).unwrap();
        assert_eq!(hides(&entered, "a"), is_hidden);
    }
}

#[test]
fn deeper_rule_files_come_first_within_their_group() {
    let files = Files::from([
        (".r", "- a\n- b"),
        ("d/.r", "+ a\n- /c"),
        (".q", "- z\n+ b"),
    ]);
    let rules = ["+ d/b", ": .r", ": .q", "- c"];
    let root = at(&rules, &files, "");
    assert!(hides(&root, "a") && hides(&root, "b") && hides(&root, "c"));
    let inside = at(&rules, &files, "d");
    assert!(!hides(&inside, "d/a"), "the deeper file comes first");
    assert!(
        !hides(&inside, "d/b"),
        "an earlier rule comes before the group"
    );
    assert!(hides(&inside, "d/c") && hides(&inside, "d/z"));
    assert!(
        hides(&at(&rules, &files, "d/e"), "d/e/c"),
        "the last rule excludes it"
    );
    assert!(
        !hides(&at(&rules[..3], &files, "d/e"), "d/e/c"),
        "an anchored rule does not apply in a subdirectory"
    );
}

#[test]
fn clear_in_a_file_removes_only_its_group() {
    let files = Files::from([(".r", "- a"), (".q", "- q"), ("d/.r", "- b\n!\n- c")]);
    let inside = at(&[": .r", ": .q"], &files, "d");
    assert!(!hides(&inside, "d/a") && !hides(&inside, "d/b"));
    assert!(hides(&inside, "d/c") && hides(&inside, "d/q"));
    let files = Files::from([(".r", "- a"), ("d/.r", "!")]);
    let inside = at(&[": .r"], &files, "d");
    assert!(!hides(&inside, "d/a"));
}

#[test]
fn clear_in_a_file_lets_a_later_rule_name_the_same_file() {
    let files = Files::from([(".r", ": .q\n!\n: .q"), ("d/.q", "- x")]);
    assert!(hides(&at(&[": .r"], &files, "d"), "d/x"));
    // A name that was not cleared keeps its first group.
    let files = Files::from([(".r", ": .q\n: .q"), (".q", "- x\n- y")]);
    let root = at(&[": .r"], &files, "");
    assert!(hides(&root, "x"));
    // A group of another file keeps its name, and its place behind a rule that includes the file.
    let files = Files::from([("d/.r", "!\n: .q"), ("d/.q", "- x")]);
    assert!(!hides(&at(&[": .r", "+ x", ": .q"], &files, "d"), "d/x"));
}

#[test]
fn directory_without_a_rule_file_shares_the_rules_of_its_parent() {
    let files = Files::from([(".r", "- a")]);
    let root = at(&[": .r"], &files, "");
    assert!(try_enter(&root, "d", &files).unwrap().same(&root));
}

#[test]
fn no_inherit_rules_apply_to_their_directory_only() {
    let files = Files::from([(".r", "- a\n: .q"), ("d/.q", "- b"), (".q", "- c")]);
    let root = at(&[":n .r"], &files, "");
    assert!(hides(&root, "a") && hides(&root, "c"));
    let inside = at(&[":n .r"], &files, "d");
    assert!(!hides(&inside, "d/a") && !hides(&inside, "d/b") && !hides(&inside, "d/c"));
}

#[test]
fn rule_file_can_add_a_per_directory_file() {
    let files = Files::from([
        (".q", "- a"),
        ("d/.r", ": .q\n- c\n: .r"),
        ("d/.q", "- b"),
        ("d/e/.q", "- e"),
        ("x/.q", "- b"),
    ]);
    let inside = at(&[": .r"], &files, "d");
    assert!(hides(&inside, "d/b") && hides(&inside, "d/c") && !hides(&inside, "d/a"));
    let deeper = at(&[": .r"], &files, "d/e");
    assert!(hides(&deeper, "d/e/b") && hides(&deeper, "d/e/e") && hides(&deeper, "d/e/c"));
    assert!(!hides(&at(&[": .r"], &files, "x"), "x/b"));
}

#[test]
fn nested_merge_file_is_read_from_the_root() {
    let files = Files::from([("d/.r", ". more\n- c"), ("more", "- b\n- /d/a\n- /x")]);
    let inside = at(&[": .r"], &files, "d");
    assert!(hides(&inside, "d/b") && hides(&inside, "d/a") && !hides(&inside, "d/x"));
    // Rules behind it belong to the directory again.
    let files = Files::from([("d/.r", ". more\n. more\n- /x"), ("more", "- b")]);
    let inside = at(&[": .r"], &files, "d");
    assert!(hides(&inside, "d/x") && !hides(&inside, "x"));
    let many = ". more\n".repeat(40);
    let files = Files::from([("d/.r", &*many.leak()), ("more", "- b")]);
    assert!(hides(&at(&[": .r"], &files, "d"), "d/b"));
    let files = Files::from([("d/.r", "-/ /r/d/x")]);
    assert!(hides(&at(&[": .r"], &files, "d"), "d/x"));
    let files = Files::from([("d/.r", ". gone")]);
    let bad = try_enter(&chain(&[": .r"]), "d", &files).unwrap_err();
    assert_eq!(
        String::from_utf8_lossy(&bad.message("sender")),
        "failed to open exclude file <rule from /r/d/.r line 1>"
    );
    assert_eq!(bad.exit(), Exit::FileIo);
    let files = Files::from([("d/.r", ". d/.r")]);
    let bad = try_enter(&chain(&[": .r"]), "d", &files).unwrap_err();
    assert_eq!(bad.exit(), Exit::FileIo);
    let message = bad.message("sender");
    let start =
        b"[sender] merge-file include depth limit (32) exceeded at <rule from a file named at";
    assert!(message.starts_with(start) && message.ends_with(b" /r/d/.r line 1>"));
}

#[test]
fn depth_of_files_that_open_each_other_is_limited() {
    let enter = |depth: usize| {
        let mut files = Files::new();
        for at in 1..depth {
            let text = format!(": .r{}", at + 1);
            files.insert(format!("d/.r{at}").leak(), text.leak());
        }
        files.insert(format!("d/.r{depth}").leak(), "- x");
        try_enter(&chain(&[": .r1"]), "d", &files)
    };
    assert!(hides(&enter(GROUP_DEPTH_MAX + 1).unwrap(), "d/x"));
    let bad = enter(GROUP_DEPTH_MAX + 2).unwrap_err();
    let message = bad.message("sender");
    let expected = b"[sender] merge-file include depth limit (128) exceeded at <rule from d/.r130>";
    assert_eq!(
        message.escape_ascii().to_string(),
        expected.escape_ascii().to_string()
    );
}

#[test]
fn number_of_included_files_is_limited() {
    // Each level includes the next one twice.
    let enter = |levels: usize| {
        let mut files = Files::from([("d/.r", ". m1")]);
        for at in 1..levels {
            let text = format!(". m{next}\n. m{next}", next = at + 1);
            files.insert(format!("m{at}").leak(), text.leak());
        }
        files.insert(format!("m{levels}").leak(), "- x");
        try_enter(&chain(&[": .r"]), "d", &files)
    };
    assert!(hides(&enter(12).unwrap(), "d/x"));
    let bad = enter(13).unwrap_err();
    let message = String::from_utf8(bad.message("sender")).unwrap();
    let start = "sparsync: [sender] merge file limit (4096) exceeded at <rule from ";
    assert!(message.starts_with(start), "{message}");
    assert_eq!(bad.exit(), Exit::FileIo);
}

#[test]
fn depth_of_nested_merge_files_is_limited() {
    let enter = |depth: usize| {
        let mut files = Files::from([("d/.r", ". m1")]);
        for at in 1..depth {
            let text = format!(". m{}", at + 1);
            files.insert(format!("m{at}").leak(), text.leak());
        }
        files.insert(format!("m{depth}").leak(), "- x");
        try_enter(&chain(&[": .r"]), "d", &files)
    };
    assert!(hides(&enter(MERGE_DEPTH_MAX - 2).unwrap(), "d/x"));
    assert!(enter(MERGE_DEPTH_MAX - 1).is_ok());
    assert!(enter(MERGE_DEPTH_MAX).is_err());
}

#[test]
fn rule_errors_name_file_and_line() {
    let files = Files::from([("d/.r", "- c\nsecret")]);
    let bad = try_enter(&chain(&[": .r"]), "d", &files).unwrap_err();
    assert_eq!(
        String::from_utf8_lossy(&bad.message("sender")),
        "Unknown filter rule: <rule from /r/d/.r line 2>"
    );
    assert_eq!(bad.exit(), Exit::Usage);
    let files = Files::from([(".r", ": .q"), (".q", "secret")]);
    let bad = try_enter(&chain(&[": .r"]), "", &files).unwrap_err();
    assert_eq!(
        String::from_utf8_lossy(&bad.message("sender")),
        "Unknown filter rule: <rule from a file read earlier>"
    );
}

#[test]
fn rule_files_of_parents_are_read_once_and_first() {
    let files = Files::from([("/.r", "- t\n- /r/u\n- r/v\n+ w"), ("d/.r", "- w")]);
    for rule in [": /.r", ": ../.r", ": ../../.r"] {
        let root = try_enter(&chain(&[rule]), "", &files).unwrap();
        assert!(
            hides(&root, "t") && hides(&root, "u") && !hides(&root, "d/u"),
            "{rule}"
        );
        assert!(!hides(&root, "v"), "anchors above the root do not match");
        let inside = try_enter(&root, "d", &files).unwrap();
        assert!(hides(&inside, "d/t") && hides(&inside, "d/w"), "{rule}");
    }
    // For a first directory below the root, the root is a parent.
    let files = Files::from([(".r", "- /d/a")]);
    assert!(hides(
        &try_enter(&chain(&[": /.r"]), "d", &files).unwrap(),
        "d/a"
    ));
    assert!(!hides(
        &try_enter(&chain(&[": .r"]), "d", &files).unwrap(),
        "d/a"
    ));
    assert!(!hides(
        &try_enter(&chain(&[": sub/.r"]), "d", &files).unwrap(),
        "d/a"
    ));
    let further = chain(&[": /.r"]).for_further_source();
    assert!(!hides(&try_enter(&further, "d", &files).unwrap(), "d/a"));
}

#[test]
fn per_dir_rule_for_the_other_side_is_ignored_in_a_file() {
    let files = Files::from([(".r", ":r .q\n: .q"), (".q", "- a")]);
    let side = |side| {
        let options = ChainOptions {
            root_abs: b"/r".to_vec(),
            side,
            ..Default::default()
        };
        try_enter(&with_options(&[": .r"], options), "", &files).unwrap()
    };
    assert!(
        hides(&side(Some(Side::Sender)), "a"),
        "the second rule opens the group"
    );
    assert!(
        !hides(&side(Some(Side::Receiver)), "a"),
        "the first rule opens the group"
    );
    let files = Files::from([(".r", ". q"), ("q", "P a")]);
    assert!(
        hides(&at(&[": .r"], &files, ""), "a"),
        "a named file's rules hold for both"
    );
}

#[test]
fn second_per_dir_rule_of_the_same_name_is_ignored() {
    let files = Files::from([(".r", "- a")]);
    let root = at(&[":s .r", ": ./.r/"], &files, "");
    assert!(hides(&root, "a"));
    assert_eq!(root.verdict(Side::Receiver, b"a", false), Verdict::Include);
}

#[test]
fn e_modifier_excludes_the_rule_file() {
    let files = Files::from([(".r", "+ .r\n- a")]);
    let root = at(&[":e .r"], &files, "");
    assert!(hides(&root, ".r") && hides(&root, "d/.r") && hides(&root, "a"));
}

#[test]
fn cvs_rules_apply_at_their_position() {
    let options = ChainOptions {
        cvs_env: Some(b"w".to_vec()),
        ..ChainOptions::default()
    };
    let chain = with_options(&["+ a.o", "-C", "+ b.o"], options.clone());
    assert!(!hides(&chain, "a.o") && hides(&chain, "b.o") && hides(&chain, "w"));
    assert_eq!(
        chain.verdict(Side::Receiver, b"b.o", false),
        Verdict::Exclude { perishable: true }
    );
    let found = chain.first_match(Side::Sender, b"b.o", false).unwrap();
    assert_eq!(
        (found.include, &found.text[..]),
        (false, &b"*.o [global CVS]"[..])
    );
    assert!(
        !hides(&with_options(&["+C", "-C", "- w"], options), "w"),
        "the first CVS rule determines the form"
    );
}

#[test]
fn directory_without_a_rule_file_shares_the_chain() {
    let files = Files::from([("d/.r", "- a")]);
    let root = at(&[": .r", "- b"], &files, "");
    assert!(root.same(&try_enter(&root, "x", &files).unwrap()));
    assert!(!root.same(&try_enter(&root, "d", &files).unwrap()));
    let plain = chain(&["- b"]);
    assert!(plain.same(&try_enter(&plain, "d", &files).unwrap()));
    assert!(chain(&["- b", "!", ""]).is_empty());
}

#[test]
fn xattr_rules_apply_only_to_xattr_names() {
    assert_eq!(
        chain(&["- user.a"]).xattr_verdict(Side::Sender, b"user.a"),
        None
    );
    let chain = chain(&["-x user.a*", "+x user.*", "-xr *", "-x! user.*"]);
    let passes = |side, name: &[u8]| chain.xattr_verdict(side, name);
    assert_eq!(passes(Side::Sender, b"user.ab"), Some(false));
    assert_eq!(passes(Side::Sender, b"user.b"), Some(true));
    assert_eq!(passes(Side::Receiver, b"trusted.b"), Some(false));
    assert_eq!(passes(Side::Sender, b"trusted.b"), Some(false));
    assert!(!hides(&chain, "user.a"));
}

#[test]
fn debug_output_hides_rules_read_from_files() {
    let files = Files::from([(".r", "- a\n: .q"), (".q", "- b")]);
    let root = at(&["- c", ": .r"], &files, "");
    let text = |path: &[u8]| {
        String::from_utf8(root.first_match(Side::Sender, path, false).unwrap().text).unwrap()
    };
    assert_eq!(text(b"c"), "c");
    assert_eq!(text(b"a"), "<rule from a file read earlier> [per-dir .r]");
    assert_eq!(
        text(b"b"),
        "<rule from a file read earlier> [per-dir <rule from /r/.r line 2>]"
    );
}

// A rule file that excludes another one is the place of that rule, too.
#[test]
fn debug_output_hides_names_of_files_that_are_read_from_files() {
    let files = Files::from([(".r", ":e .q\n.e inc"), ("inc", "- zz")]);
    let root = at(&[":e .r"], &files, "");
    let text = |path: &[u8]| {
        let found = root.first_match(Side::Sender, path, false).unwrap();
        String::from_utf8(found.text).unwrap()
    };
    assert_eq!(text(b".r"), ".r");
    for path in [&b".q"[..], b"inc"] {
        assert_eq!(text(path), "<rule from a file read earlier> [per-dir .r]");
    }
    assert_eq!(
        place_of(&root, b".q"),
        Some((".r".to_owned(), 1)),
        "with its line"
    );
}

/// Returns the file and line of the rule that decides about a file.
fn place_of(chain: &Chain, path: &[u8]) -> Option<(String, u32)> {
    match chain.deciding_rule(Side::Sender, path, false, false)?.place {
        RulePlace::Dir { file, line } => Some((String::from_utf8(file).unwrap(), line)),
        RulePlace::Run | RulePlace::Cvs => None,
    }
}

// The user who names a file for the run knows the names of the files that it names.
#[test]
fn files_that_a_file_of_the_run_names_are_shown_by_their_names() {
    let Ok(Parsed::Merge(merge)) = parse_filter(b". rules") else {
        panic!("it is a merge rule");
    };
    let rules = parse_merge(b": .q", &merge, false).unwrap();
    let options = ChainOptions {
        root_abs: b"/r".to_vec(),
        ..ChainOptions::default()
    };
    let files = Files::from([(".q", "- b")]);
    let root = try_enter(&Chain::new(rules, options), "", &files).unwrap();
    assert_eq!(place_of(&root, b"b"), Some((".q".to_owned(), 1)));
}

#[test]
fn xattr_rules_of_files_have_no_base() {
    let files = Files::from([("d/.r", "-x /user.a\n-x user.b")]);
    let inside = at(&[": .r"], &files, "d");
    for (name, is_copied) in [("user.a", false), ("user.b", false), ("user.c", true)] {
        let verdict = inside.xattr_verdict(Side::Sender, name.as_bytes());
        assert_eq!(verdict, Some(is_copied), "{name}");
    }
}

#[test]
fn deciding_rule_has_its_place_and_keeps_the_text_of_files_secret() {
    let files = Files::from([
        (".r", "# c\n\n- a\n: .q"),
        ("d/.r", "- /secret\n. more"),
        ("more", "- m"),
        (".q", "- b"),
        ("/.s", "x\n y"),
    ]);
    let rules = ["- c", ": .r", ":w- /.s", "-C"];
    let inside = at(&rules, &files, "d");
    let place = |path: &[u8]| {
        let rule = inside
            .deciding_rule(Side::Sender, path, false, false)
            .unwrap();
        (String::from_utf8(rule.pattern).unwrap(), rule.place)
    };
    let dir = |file: &str, line| {
        let file = file.as_bytes().to_vec();
        (String::new(), RulePlace::Dir { file, line })
    };
    assert_eq!(place(b"d/c"), ("c".to_owned(), RulePlace::Run));
    assert_eq!(place(b"d/a"), dir(".r", 3));
    assert_eq!(place(b"d/secret"), dir("d/.r", 1));
    assert_eq!(place(b"d/m"), dir("a file named at /r/d/.r line 2", 1));
    assert_eq!(place(b"d/b"), dir("a file named at /r/.r line 4", 1));
    assert_eq!(place(b"d/y"), dir("../.s", 2));
    assert_eq!(place(b"d/x.o"), ("*.o".to_owned(), RulePlace::Cvs));
    assert_eq!(
        inside.deciding_rule(Side::Sender, b"d/z", false, false),
        None
    );
}

proptest! {
    #[test]
    fn any_merge_file_text_is_parsed_or_rejected(
        texts in proptest::collection::vec("[-+.:!HPRC /*a.\n#]{0,30}", 3),
        rule in "[:](,)?[-+/Cenwsrp]{0,3} (\\.\\./|/)?a",
    ) {
        let Ok(parsed) = parse_filter(rule.as_bytes()) else { return Ok(()) };
        let options = ChainOptions { root_abs: b"/r/s".to_vec(), ..ChainOptions::default() };
        let mut chain = Chain::new(vec![parsed, parse_exclude(b"x").unwrap()], options);
        for dir in [&b""[..], b"d", b"d/e"] {
            let mut texts = texts.iter().cycle();
            let entered = chain.enter(dir, &mut |name| {
                Ok((name.len() % 3 != 1).then(|| texts.next().unwrap().clone().into_bytes()))
            });
            match entered {
                Ok((entered, _)) => chain = entered,
                Err(bad) => {
                    prop_assert!(!bad.message("sender").is_empty());
                    break;
                }
            }
            let _ = chain.verdict(Side::Sender, b"d/e/a", false);
        }
    }
}

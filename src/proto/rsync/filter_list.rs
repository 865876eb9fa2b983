//! The filter list, which the client sends to the server, and the names of `--files-from`.

use super::decode_error::{Result, checked, unsupported, violation};
use super::limits::{
    LISTED_NAMES_MAX_BYTES, PATH_MAX_BYTES, RULE_MAX_BYTES, RULES_MAX, RULES_MAX_BYTES,
};
use super::number::{ReadWire as _, WriteWire as _};
use std::io::Read;

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleKind {
    /// `-`
    Exclude,
    /// `+`
    Include,
    /// `:`, a merge file in each directory. The pattern is its name.
    DirMerge,
}

/// One rule of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireRule {
    /// What the rule does.
    pub kind: RuleKind,
    /// The modifiers: a subset of [`MODIFIERS`], in that order.
    pub modifiers: Vec<u8>,
    /// The pattern. It ends in `/` if it matches only directories.
    pub pattern: Vec<u8>,
}

/// The modifiers that a rule can have, in the order in which rsync sends them.
pub const MODIFIERS: &[u8] = b"/!Cnw-+exsrp";

impl WireRule {
    /// Returns the text of the rule for this protocol.
    ///
    /// Fails for rules that exist only from protocol 29 on. Before, the side of a rule is lost; `p` exists from
    /// protocol 30 on and is left out before.
    pub fn text(&self, protocol: u8) -> Result<Vec<u8>> {
        let prefix = match self.kind {
            RuleKind::Exclude => b'-',
            RuleKind::Include => b'+',
            RuleKind::DirMerge => b':',
        };
        let mut text = Vec::with_capacity(self.pattern.len() + self.modifiers.len() + 2);
        if protocol >= 29 {
            text.push(prefix);
            text.extend(MODIFIERS.iter().filter(|&&letter| {
                self.modifiers.contains(&letter) && (letter != b'p' || protocol >= 30)
            }));
            text.push(b' ');
        } else {
            if self.kind == RuleKind::DirMerge
                || self.modifiers.iter().any(|letter| !b"srp".contains(letter))
            {
                return Err(unsupported("filter rules are too modern for remote rsync."));
            }
            let is_ambiguous = self.pattern.starts_with(b"- ") || self.pattern.starts_with(b"+ ");
            if self.kind == RuleKind::Include || is_ambiguous {
                text.extend_from_slice(&[prefix, b' ']);
            }
        }
        text.extend_from_slice(&self.pattern);
        Ok(text)
    }

    /// Parses the text of a rule.
    pub fn parse(text: &[u8], protocol: u8) -> Result<WireRule> {
        let invalid = || violation(format!("invalid filter rule: {}", text.escape_ascii()));
        let kind = match text.first() {
            Some(b'-') => RuleKind::Exclude,
            Some(b'+') => RuleKind::Include,
            Some(b':') if protocol >= 29 => RuleKind::DirMerge,
            _ if protocol < 29 => RuleKind::Exclude,
            _ => return Err(invalid()),
        };
        if protocol < 29 {
            let has_prefix = text.starts_with(b"- ") || text.starts_with(b"+ ");
            let (kind, pattern) = if has_prefix {
                (kind, &text[2..])
            } else {
                (RuleKind::Exclude, text)
            };
            return Ok(WireRule {
                kind,
                modifiers: Vec::new(),
                pattern: pattern.to_vec(),
            });
        }
        let space = text
            .iter()
            .position(|&byte| byte == b' ')
            .ok_or_else(invalid)?;
        let modifiers = &text[1..space];
        let pattern = &text[space + 1..];
        if modifiers.iter().any(|letter| !MODIFIERS.contains(letter)) {
            return Err(invalid());
        }
        Ok(WireRule {
            kind,
            modifiers: modifiers.to_vec(),
            pattern: pattern.to_vec(),
        })
    }
}

/// Appends a rule of a filter list. Fails if the protocol does not have it, or if it is too long.
pub fn encode_rule(rule: &WireRule, protocol: u8, out: &mut Vec<u8>) -> Result<()> {
    let text = rule.text(protocol)?;
    let len = checked(
        text.len() as i64,
        RULE_MAX_BYTES,
        "the length of a filter rule",
    )?;
    if len > 0 {
        out.put_int(len as i32);
        out.put(&text);
    }
    Ok(())
}

/// Appends the end of a filter list.
pub fn encode_rules_end(out: &mut Vec<u8>) {
    out.put_int(0);
}

/// Reads a filter list.
pub fn decode(input: &mut impl Read, protocol: u8) -> Result<Vec<WireRule>> {
    let mut rules = Vec::new();
    let mut all_len = 0;
    loop {
        let len = checked(
            i64::from(input.int()?),
            RULE_MAX_BYTES,
            "the length of a filter rule",
        )?;
        if len == 0 {
            return Ok(rules);
        }
        all_len = checked(
            (all_len + len) as i64,
            RULES_MAX_BYTES,
            "the length of all filter rules",
        )?;
        checked(
            rules.len() as i64 + 1,
            RULES_MAX,
            "the number of filter rules",
        )?;
        rules.push(WireRule::parse(&input.byte_vec(len)?, protocol)?);
    }
}

/// Appends one name of `--files-from`. Line ends of the file have been removed; an empty name is left out.
pub fn encode_name(name: &[u8], out: &mut Vec<u8>) {
    if !name.is_empty() {
        out.put(name);
        out.put(b"\0");
    }
}

/// Appends the end of the names of `--files-from`.
pub fn encode_names_end(out: &mut Vec<u8>) {
    out.put(b"\0");
}

/// Reads the next name of `--files-from`; `None` at the end.
pub fn decode_name(input: &mut impl Read) -> Result<Option<Vec<u8>>> {
    let mut name = Vec::new();
    loop {
        match input.byte()? {
            0 if name.is_empty() => return Ok(None),
            0 => return Ok(Some(name)),
            _ if name.len() == PATH_MAX_BYTES => {
                return Err(violation("a name of --files-from is too long"));
            }
            byte => name.push(byte),
        }
    }
}

/// The memory that a name takes besides its bytes: its place in the list, and what the allocator adds.
const NAME_COST_BYTES: usize = size_of::<Vec<u8>>() + 32;

/// Reads all names of `--files-from`.
pub fn decode_names(input: &mut impl Read) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let mut all_len = 0;
    while let Some(name) = decode_name(input)? {
        let len = all_len + name.len() + NAME_COST_BYTES;
        all_len = checked(
            len as i64,
            LISTED_NAMES_MAX_BYTES,
            "the length of the list of --files-from",
        )?;
        names.push(name);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_without_end_are_rejected() {
        let mut rule = Vec::new();
        rule.put_int(5000);
        rule.put(b"- ");
        rule.put(&[b'x'; 4998]);
        let error = decode(
            &mut EndlessInput {
                piece: &rule,
                at: 0,
            },
            32,
        )
        .unwrap_err();
        assert!(
            format!("{error:?}").contains("the length of all filter rules"),
            "{error:?}"
        );
    }

    /// Repeats some bytes without end.
    struct EndlessInput<'a> {
        piece: &'a [u8],
        at: usize,
    }

    impl Read for EndlessInput<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let rest = &self.piece[self.at..];
            let len = rest.len().min(into.len());
            into[..len].copy_from_slice(&rest[..len]);
            self.at = (self.at + len) % self.piece.len();
            Ok(len)
        }
    }

    #[test]
    fn listed_names_are_at_most_as_long_as_a_path() {
        let name = |len| [&vec![b'a'; len][..], b"\0"].concat();
        let longest = decode_name(&mut &name(PATH_MAX_BYTES)[..]).unwrap();
        assert_eq!(longest.map(|name| name.len()), Some(PATH_MAX_BYTES));
        assert!(decode_name(&mut &name(PATH_MAX_BYTES + 1)[..]).is_err());
    }

    #[test]
    fn rules_of_old_protocols_have_no_modifiers() {
        assert_eq!(WireRule::parse(b"-p x", 29).unwrap().modifiers, b"p");
        assert_eq!(WireRule::parse(b"-p x", 28).unwrap().pattern, b"-p x");
        assert!(WireRule::parse(b"x y", 29).is_err());
        assert_eq!(WireRule::parse(b"x y", 28).unwrap().pattern, b"x y");
    }

    #[test]
    fn empty_rule_is_not_the_end() {
        let empty = WireRule::parse(b"", 28).unwrap();
        let mut out = Vec::new();
        encode_rule(&empty, 28, &mut out).unwrap();
        assert_eq!(out, b"");
    }

    #[test]
    fn listed_names_end_with_an_empty_one() {
        assert_eq!(
            decode_names(&mut &b"a\0d/b\0\0rest"[..]).unwrap(),
            [b"a".to_vec(), b"d/b".to_vec()]
        );
        assert!(decode_names(&mut &b"a\0b"[..]).is_err());
    }

    fn rule(text: &[u8]) -> WireRule {
        WireRule::parse(text, 32).unwrap()
    }

    #[test]
    fn rules_that_rsync_sends_are_parsed_and_written() {
        for text in [
            "- *.o",
            "+ /sub/",
            "-! x*",
            ":n- .rules",
            ": .rsync-filter",
            "-p tmp/",
            "-/ /abs",
            "-r *~",
            "-x user.foo",
            "+s a",
            "-sr b",
            "-C ",
            ":C .cvsignore",
            "- a b ",
        ] {
            assert_eq!(rule(text.as_bytes()).text(32).unwrap(), text.as_bytes());
        }
    }

    #[test]
    fn old_peers_get_bare_patterns() {
        for (text, wanted) in [
            ("- *.o", "*.o"),
            ("+ /sub/", "+ /sub/"),
            ("- + x", "- + x"),
            ("-s a", "a"),
            ("+r b", "+ b"),
        ] {
            let old = rule(text.as_bytes()).text(28).unwrap();
            assert_eq!(old, wanted.as_bytes());
            assert_eq!(
                WireRule::parse(&old, 28).unwrap().pattern,
                rule(text.as_bytes()).pattern
            );
        }
        assert_eq!(rule(b"-p a").text(29).unwrap(), b"- a");
        for modern in ["-! a", ": .rsync-filter", "-C "] {
            assert!(rule(modern.as_bytes()).text(28).is_err(), "{modern}");
        }
    }

    #[test]
    fn names_end_with_an_empty_one() {
        let mut out = Vec::new();
        for name in [&b"a.txt"[..], b"", b"sub/deep/"] {
            encode_name(name, &mut out);
        }
        encode_names_end(&mut out);
        assert_eq!(out, b"a.txt\0sub/deep/\0\0");
        let mut input = &out[..];
        let names: Vec<_> = std::iter::from_fn(|| decode_name(&mut input).unwrap()).collect();
        assert_eq!(names, [&b"a.txt"[..], b"sub/deep/"]);
        assert!(decode_name(&mut &[b'x'; 5000][..]).is_err());
    }

    proptest! {
        #[test]
        fn a_list_is_decoded_as_it_was_encoded(
            parts in proptest::collection::vec((0usize..3, proptest::sample::subsequence(MODIFIERS, 0..5), "[a-z/ *+-]{1,20}"), 0..10),
        ) {
            let kinds = [RuleKind::Exclude, RuleKind::Include, RuleKind::DirMerge];
            let rules: Vec<_> = parts.into_iter().map(|(kind, modifiers, pattern)| WireRule {
                kind: kinds[kind], modifiers, pattern: pattern.into_bytes(),
            }).collect();
            let mut out = Vec::new();
            rules.iter().for_each(|rule| encode_rule(rule, 32, &mut out).unwrap());
            encode_rules_end(&mut out);
            prop_assert_eq!(decode(&mut &out[..], 32).unwrap(), rules);
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..100), protocol in 27u8..33) {
            let _ = decode(&mut &bytes[..], protocol);
            let _ = WireRule::parse(&bytes, protocol);
        }
    }
}

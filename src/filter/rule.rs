//! Types of the filter rules: a rule, a merge file, the sides that they apply to, and a verdict.
//!
//! Only values. `parse` creates them from text, `set` applies them.

use std::sync::Arc;

/// The longest pattern of a rule, and the longest name of a merge file, as in rsync.
pub const PATTERN_MAX_BYTES: usize = 4095;

/// The side of the transfer for which a rule is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The side that builds the file list: an exclude hides the entry.
    Sender,
    /// The side that deletes: an exclude protects the entry.
    Receiver,
}

/// The result of the rules for one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The entry takes part: no rule matches, or the first matching rule is an include.
    Include,
    /// The entry is hidden (sender) or protected (receiver).
    Exclude {
        /// The matching rule is ignored inside a directory that is being deleted; use
        /// [`Chain::verdict_in_deleted_dir`](super::Chain::verdict_in_deleted_dir) there.
        perishable: bool,
    },
}

/// The rule that decides about an entry, and where it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRule {
    /// See [`Rule::include`].
    pub include: bool,
    /// See [`Rule::absolute`].
    pub absolute: bool,
    /// See [`Rule::negate`].
    pub negate: bool,
    /// See [`Rule::perishable`].
    pub perishable: bool,
    /// The pattern as written. Empty for a rule of a file in the tree: the user of a server may not be permitted to read
    /// that file.
    pub pattern: Vec<u8>,
    pub place: RulePlace,
}

/// Where a rule was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulePlace {
    /// On the command line, or in a file that it names.
    Run,
    /// It is one of the patterns that a rule `-C` stands for.
    Cvs,
    /// In a file of the tree that is read for its directory.
    Dir {
        /// Its path, relative to the root of the transfer. `../` leads above it. Only its place if a file names it.
        file: Vec<u8>,
        /// The number of the line, from 1.
        line: u32,
    },
}

/// The sides to which a rule or merge file applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sides {
    /// Not specified: both, or only the sender under `--delete-excluded`.
    #[default]
    Unsaid,
    /// `s`, `H`, `S`.
    Sender,
    /// `r`, `P`, `R`.
    Receiver,
    /// `s` and `r`, both specified.
    Both,
}

impl Sides {
    /// Returns whether the rule applies to `side`.
    pub fn cover(self, side: Side, delete_excluded: bool) -> bool {
        match (self, side) {
            (Sides::Unsaid, Side::Receiver) => !delete_excluded,
            (Sides::Unsaid | Sides::Both, _)
            | (Sides::Sender, Side::Sender)
            | (Sides::Receiver, Side::Receiver) => true,
            (Sides::Sender, Side::Receiver) | (Sides::Receiver, Side::Sender) => false,
        }
    }

    /// Adds `side` to the specified sides.
    pub(super) fn with(self, side: Side) -> Sides {
        match (self, side) {
            (Sides::Unsaid | Sides::Sender, Side::Sender) => Sides::Sender,
            (Sides::Unsaid | Sides::Receiver, Side::Receiver) => Sides::Receiver,
            (Sides::Sender | Sides::Both, Side::Receiver)
            | (Sides::Receiver | Sides::Both, Side::Sender) => Sides::Both,
        }
    }

    fn letters(self) -> &'static [u8] {
        match self {
            Sides::Unsaid => b"",
            Sides::Sender => b"s",
            Sides::Receiver => b"r",
            Sides::Both => b"sr",
        }
    }
}

/// An include or exclude rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Include (`+`, `S`, `R`) rather than exclude (`-`, `H`, `P`).
    pub include: bool,
    /// The sides that it applies to.
    pub sides: Sides,
    /// `/`: match against the absolute path of the entry.
    pub absolute: bool,
    /// `!`: applies where the pattern does not match.
    pub negate: bool,
    /// `p`: ignored inside a directory that is being deleted.
    pub perishable: bool,
    /// `x`: applies to names of extended attributes, not of files.
    pub xattr: bool,
    /// The pattern as written, with its leading and trailing slashes.
    pub pattern: Text,
    /// Whether it was read from a file. Debug output hides the pattern then.
    pub from_file: bool,
}

/// The text of a pattern. All rules of a file share its text, because there can be millions of them.
#[derive(Clone, Default)]
pub struct Text {
    buffer: Arc<Vec<u8>>,
    from: u32,
    len: u32,
}

impl Text {
    /// Returns `part`, which is a slice of `buffer`.
    pub(super) fn part_of(buffer: &Arc<Vec<u8>>, part: &[u8]) -> Text {
        let from = (part.as_ptr() as usize).wrapping_sub(buffer.as_ptr() as usize);
        let is_there = buffer
            .get(from..)
            .is_some_and(|rest| rest.starts_with(part));
        match (u32::try_from(from), u32::try_from(part.len())) {
            (Ok(from), Ok(len)) if is_there => Text {
                buffer: Arc::clone(buffer),
                from,
                len,
            },
            // Beyond 4 GiB.
            _ => part.into(),
        }
    }

    /// Returns the text that it is a part of. All rules of a file share theirs.
    pub fn whole(&self) -> &Arc<Vec<u8>> {
        &self.buffer
    }

    /// Returns where it begins in [`Text::whole`].
    pub(super) fn offset(&self) -> usize {
        self.from as usize
    }

    /// Makes the patterns of these rules share one text.
    pub fn share(rules: &mut [Parsed]) {
        let pattern = |parsed: &Parsed| {
            if let Parsed::Rule(rule) = parsed {
                Some(rule.pattern.clone())
            } else {
                None
            }
        };
        let texts: Vec<Text> = rules.iter().filter_map(pattern).collect();
        let buffer = Arc::new(
            texts
                .iter()
                .flat_map(|text| &text[..])
                .copied()
                .collect::<Vec<u8>>(),
        );
        let mut from = 0;
        for parsed in rules {
            if let Parsed::Rule(rule) = parsed {
                let end = from + rule.pattern.len();
                rule.pattern = Text::part_of(&buffer, &buffer[from..end]);
                from = end;
            }
        }
    }
}

impl std::ops::Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.from as usize..][..self.len as usize]
    }
}

impl From<Vec<u8>> for Text {
    /// Keeps at most 4 GiB. No pattern is that long; see [`PATTERN_MAX_BYTES`](super::pattern::PATTERN_MAX_BYTES).
    fn from(text: Vec<u8>) -> Text {
        let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
        Text {
            buffer: Arc::new(text),
            from: 0,
            len,
        }
    }
}

impl From<&[u8]> for Text {
    fn from(text: &[u8]) -> Text {
        text.to_vec().into()
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.escape_ascii().to_string())
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Text {}

impl std::hash::Hash for Text {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self[..].hash(state);
    }
}

/// How the lines or words of a merge file are parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MergeFormat {
    /// Each is a complete filter rule.
    #[default]
    Rules,
    /// `-`: each is the pattern of an exclude.
    Excludes,
    /// `+`: each is the pattern of an include.
    Includes,
    /// `C`: each word is the pattern of an exclude; `!` clears; not inherited.
    Cvs,
}

/// A file of rules: read once (`.`) or in each directory (`:`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Merge {
    /// The name as written. If per-directory, each directory is searched for its last component; the part before
    /// it names the directory where the scan of parents begins.
    pub name: Vec<u8>,
    /// `:` instead of `.`.
    pub per_dir: bool,
    /// How its text is parsed.
    pub format: MergeFormat,
    /// `n`: its rules apply only in its own directory. Set by `C`.
    pub no_inherit: bool,
    /// `w`: its text is split at white space and has no comments. Set by `C`.
    pub word_split: bool,
    /// `e`: the file itself is excluded. [`parse_merge`](super::parse_merge) or [`Chain`](super::Chain) adds that rule.
    pub exclude_itself: bool,
    /// The sides that its rules apply to. If specified, the rules must not specify their own.
    pub sides: Sides,
    /// `/` for all its rules.
    pub absolute: bool,
    /// `p` for all its rules.
    pub perishable: bool,
    /// `x`: accepted, but has no effect on its rules, as in rsync.
    pub xattr: bool,
    /// Where the rule appeared if it came from a file, e.g. `rules line 3`; `None` if it was an argument. Set by the
    /// parser. rsync never prints text from a file, so messages identify a file named in a file by this.
    pub named_at: Option<Vec<u8>>,
}

impl Merge {
    /// Returns the message for a file that could not be opened; the run ends with exit code 11.
    ///
    /// The second value is whether rsync adds `: ` and the system's message, e.g. `No such file or directory (2)`, and
    /// the prefix `rsync: [client] `. It does so only for a file that was named in an argument.
    pub fn open_failure(&self) -> (Vec<u8>, bool) {
        let kind = if self.format == MergeFormat::Includes {
            "include"
        } else {
            "exclude"
        };
        let mut words = format!("failed to open {kind} file ").into_bytes();
        match &self.named_at {
            Some(place) => {
                words.extend_from_slice(b"<rule from ");
                words.extend_from_slice(place);
                words.push(b'>');
            }
            None => words.extend_from_slice(&self.name),
        }
        (words, self.named_at.is_none())
    }

    /// Returns the last component of the name, which is looked up in each directory.
    pub fn file_name(&self) -> &[u8] {
        let (_, name) = split_name(&self.name);
        name
    }

    /// Returns the rule for the modifier `e`. `sides` are those of the file that contains the merge rule, not those of
    /// the merge rule itself.
    pub(super) fn own_exclude(&self, sides: Sides) -> Option<Rule> {
        self.exclude_itself.then(|| Rule {
            sides,
            pattern: self.file_name().into(),
            from_file: self.named_at.is_some(),
            ..Rule::default()
        })
    }

    /// Returns the directory part of the name with its slash; empty if there is none.
    pub(super) fn parent_part(&self) -> &[u8] {
        let (parent, _) = split_name(&self.name);
        parent
    }
}

/// Splits a merge name into its directory, with the slash, and its last component.
fn split_name(name: &[u8]) -> (&[u8], &[u8]) {
    let name = match name {
        [head @ .., b'/'] if !head.is_empty() => head,
        _ => name,
    };
    let cut = name.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    name.split_at(cut)
}

/// The `-C` rule, a placeholder for the global CVS excludes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cvs {
    /// `+C`: they are includes instead.
    pub include: bool,
    /// The sides that they apply to.
    pub sides: Sides,
    /// `/` for all of them.
    pub absolute: bool,
    /// `!` for all of them.
    pub negate: bool,
    /// `p` for all of them; the built-in ones are always perishable.
    pub perishable: bool,
    /// Whether it was read from a file. Debug output hides the patterns then.
    pub from_file: bool,
}

/// The result of parsing one piece of rule text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Parsed {
    /// An include or exclude.
    Rule(Rule),
    /// `!`: clears the list so far.
    Clear,
    /// A file of further rules. In a box, because there can be millions of rules, but not of files.
    Merge(Box<Merge>),
    /// The global CVS excludes.
    Cvs(Cvs),
    /// The text was empty, which is allowed and has no effect.
    Nothing,
    /// Its pattern, or the name of its file, has more than [`PATTERN_MAX_BYTES`]. As in rsync, it has no effect but a
    /// warning, which this holds. In a box, as files are.
    TooLong(Box<[u8]>),
}

impl Parsed {
    /// Returns the rules that a sender needs: of a merge file that concerns only the receiver, the exclusion of that file.
    pub fn for_sender(rules: &Arc<Vec<Parsed>>) -> Arc<Vec<Parsed>> {
        let is_receivers =
            |rule: &Parsed| matches!(rule, Parsed::Merge(merge) if merge.sides == Sides::Receiver);
        if !rules.iter().any(is_receivers) {
            return rules.clone();
        }
        let needed = rules.iter().filter_map(|rule| match rule {
            Parsed::Merge(merge) if merge.sides == Sides::Receiver => {
                merge.own_exclude(Sides::Unsaid).map(Parsed::Rule)
            }
            other => Some(other.clone()),
        });
        Arc::new(needed.collect())
    }

    /// Formats the rule for a server that sends; `None` if it concerns only the receiver. Under `--delete-excluded`, a
    /// rule without sides applies to the sender.
    pub fn text_for_sender(&self, deletes_excluded: bool) -> Option<Vec<u8>> {
        let sides = match self {
            Parsed::Rule(rule) => rule.sides,
            Parsed::Merge(merge) => merge.sides,
            Parsed::Cvs(cvs) => cvs.sides,
            Parsed::Clear | Parsed::Nothing | Parsed::TooLong(_) => return None,
        };
        match (self, sides) {
            (Parsed::Merge(merge), Sides::Receiver) => merge
                .own_exclude(Sides::Unsaid)
                .map(|own| Parsed::Rule(own).text()),
            (_, Sides::Receiver) => None,
            (Parsed::Rule(rule), Sides::Unsaid) if deletes_excluded => Some(
                Parsed::Rule(Rule {
                    sides: Sides::Sender,
                    ..rule.clone()
                })
                .text(),
            ),
            _ => Some(self.text()),
        }
    }

    /// Formats the rule for a server that receives; `None` if it concerns only the sender, as a rule without sides does
    /// under `--delete-excluded`.
    pub fn text_for_receiver(&self, deletes_excluded: bool) -> Option<Vec<u8>> {
        match self {
            Parsed::Merge(merge) if merge.sides == Sides::Sender => {
                if deletes_excluded {
                    return None;
                }
                let own = merge.own_exclude(Sides::Unsaid)?;
                Some(Parsed::Rule(own).text())
            }
            // The lines of such a file cannot specify sides.
            Parsed::Merge(merge)
                if deletes_excluded
                    && merge.format != MergeFormat::Rules
                    && merge.sides == Sides::Unsaid =>
            {
                None
            }
            // The rule that excludes the file itself has no sides.
            Parsed::Merge(merge) if deletes_excluded && merge.exclude_itself => Some(
                Parsed::Merge(Box::new(Merge {
                    exclude_itself: false,
                    ..(**merge).clone()
                }))
                .text(),
            ),
            Parsed::Rule(Rule {
                sides: Sides::Sender,
                ..
            })
            | Parsed::Cvs(Cvs {
                sides: Sides::Sender,
                ..
            })
            | Parsed::Clear
            | Parsed::Nothing
            | Parsed::TooLong(_) => None,
            Parsed::Rule(Rule {
                sides: Sides::Unsaid,
                ..
            })
            | Parsed::Cvs(Cvs {
                sides: Sides::Unsaid,
                ..
            }) if deletes_excluded => None,
            _ => Some(self.text()),
        }
    }

    /// Formats the rule as rsync does in debug output and for a peer, e.g. `-rp foo`.
    ///
    /// Parsing it with [`parse_filter`](super::parse_filter) gives an equal value.
    pub fn text(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |when: bool, letter: u8| {
            if when {
                out.push(letter);
            }
        };
        match self {
            Parsed::Rule(rule) => {
                put(true, if rule.include { b'+' } else { b'-' });
                put(rule.absolute, b'/');
                put(rule.negate, b'!');
                put(rule.xattr, b'x');
                for &letter in rule.sides.letters() {
                    put(true, letter);
                }
                put(rule.perishable, b'p');
                put(true, b' ');
                out.extend_from_slice(&rule.pattern);
            }
            Parsed::Clear => put(true, b'!'),
            Parsed::Merge(merge) => {
                let cvs = merge.format == MergeFormat::Cvs;
                put(true, if merge.per_dir { b':' } else { b'.' });
                put(merge.absolute, b'/');
                put(cvs, b'C');
                put(merge.no_inherit && !cvs, b'n');
                put(merge.word_split && !cvs, b'w');
                put(merge.format == MergeFormat::Excludes, b'-');
                put(merge.format == MergeFormat::Includes, b'+');
                put(merge.exclude_itself, b'e');
                put(merge.xattr, b'x');
                for &letter in merge.sides.letters() {
                    put(true, letter);
                }
                put(merge.perishable, b'p');
                put(true, b' ');
                out.extend_from_slice(&merge.name);
            }
            Parsed::Cvs(cvs) => {
                put(true, if cvs.include { b'+' } else { b'-' });
                put(cvs.absolute, b'/');
                put(cvs.negate, b'!');
                put(true, b'C');
                for &letter in cvs.sides.letters() {
                    put(true, letter);
                }
                put(cvs.perishable, b'p');
                put(true, b' ');
            }
            Parsed::Nothing | Parsed::TooLong(_) => {}
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_cover_the_given_sides() {
        assert!(Sides::Unsaid.cover(Side::Receiver, false));
        assert!(!Sides::Unsaid.cover(Side::Receiver, true));
        assert!(Sides::Both.cover(Side::Receiver, true));
        assert!(!Sides::Receiver.cover(Side::Sender, false));
        assert_eq!(
            Sides::Unsaid.with(Side::Sender).with(Side::Receiver),
            Sides::Both
        );
    }

    #[test]
    fn rules_with_a_shared_text_stay_equal() {
        let rule = |pattern: &[u8]| {
            Parsed::Rule(Rule {
                pattern: pattern.into(),
                ..Rule::default()
            })
        };
        let rules = [rule(b"a"), Parsed::Clear, rule(b""), rule(b"bcd")];
        let mut shared = rules.clone();
        Text::share(&mut shared);
        assert_eq!(shared, rules);
        assert_ne!(rule(b"a"), rule(b"b"));
        let [Parsed::Rule(first), _, _, Parsed::Rule(last)] = &shared else {
            panic!("{shared:?}")
        };
        assert!(Arc::ptr_eq(&first.pattern.buffer, &last.pattern.buffer));
    }

    #[test]
    fn text_from_elsewhere_is_copied() {
        let one = Arc::new(b"one".to_vec());
        let other = Arc::new(b"other".to_vec());
        assert_eq!(Text::part_of(&one, &other)[..], other[..]);
        assert_eq!(Text::part_of(&other, &one)[..], one[..]);
        let part = Text::part_of(&other, &other[2..]);
        assert!(part[..] == other[2..] && part.offset() == 2);
    }

    fn parsed(text: &str) -> Parsed {
        crate::filter::parse_filter(text.as_bytes()).unwrap()
    }

    fn shown(text: Option<Vec<u8>>) -> Option<String> {
        text.map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn server_that_sends_gets_the_rules_for_senders() {
        for (rule, plain, deleting_excluded) in [
            ("- a", Some("- a"), Some("-s a")),
            ("+ a", Some("+ a"), Some("+s a")),
            ("H a", Some("-s a"), Some("-s a")),
            ("P a", None, None),
            ("-C", Some("-C "), Some("-C ")),
            ("-rC", None, None),
            (": .r", Some(": .r"), Some(": .r")),
            (":r .r", None, None),
            (":re .r", Some("- .r"), Some("- .r")),
            (":se .r", Some(":es .r"), Some(":es .r")),
            ("!", None, None),
            ("", None, None),
        ] {
            let text = |excluded| shown(parsed(rule).text_for_sender(excluded));
            assert_eq!(text(false).as_deref(), plain, "{rule}");
            assert_eq!(text(true).as_deref(), deleting_excluded, "{rule}");
        }
    }

    #[test]
    fn server_that_receives_gets_the_rules_for_receivers() {
        for (rule, plain, deleting_excluded) in [
            ("- a", Some("- a"), None),
            ("-sr a", Some("-sr a"), Some("-sr a")),
            ("H a", None, None),
            ("P a", Some("-r a"), Some("-r a")),
            ("-C", Some("-C "), None),
            ("-rC", Some("-Cr "), Some("-Cr ")),
            ("-sC", None, None),
            (": .r", Some(": .r"), Some(": .r")),
            (":e .r", Some(":e .r"), Some(": .r")),
            (":- .r", Some(":- .r"), None),
            (":-r .r", Some(":-r .r"), Some(":-r .r")),
            (":s .r", None, None),
            (":se .r", Some("- .r"), None),
            ("!", None, None),
            ("", None, None),
        ] {
            let text = |excluded| shown(parsed(rule).text_for_receiver(excluded));
            assert_eq!(text(false).as_deref(), plain, "{rule}");
            assert_eq!(text(true).as_deref(), deleting_excluded, "{rule}");
        }
    }

    #[test]
    fn sender_reads_no_merge_files_of_the_receiver() {
        let rules = Arc::new([": .r", ":r .q", ":re .p", "- a"].map(parsed).to_vec());
        let needed: Vec<_> = Parsed::for_sender(&rules)
            .iter()
            .map(|rule| shown(Some(rule.text())).unwrap())
            .collect();
        assert_eq!(needed, [": .r", "- .p", "- a"]);
        let common = Arc::new([": .r", ":s .q"].map(parsed).to_vec());
        assert_eq!(Parsed::for_sender(&common), common);
    }

    #[test]
    fn merge_file_that_excludes_itself_does_so_on_the_sides_of_its_file() {
        let Parsed::Merge(merge) = parsed(":e d/.r") else {
            panic!("it is a merge rule")
        };
        let own = merge.own_exclude(Sides::Receiver).unwrap();
        assert_eq!(own.sides, Sides::Receiver);
        assert_eq!(own.pattern[..], b".r"[..]);
    }

    #[test]
    fn merge_name_splits_at_its_last_slash() {
        for (name, parent, file) in [
            (&b".r"[..], &b""[..], &b".r"[..]),
            (b"/.r", b"/", b".r"),
            (b"../.r", b"../", b".r"),
            (b"sub/.r/", b"sub/", b".r"),
            (b"/", b"/", b""),
        ] {
            let merge = Merge {
                name: name.to_vec(),
                ..Merge::default()
            };
            assert_eq!((merge.parent_part(), merge.file_name()), (parent, file));
        }
    }
}

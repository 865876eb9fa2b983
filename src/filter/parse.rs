//! Parses the text of rules and of merge files into values.
//!
//! `set` applies the values, and `pattern` defines what a pattern matches. The caller reads the files.

use std::fmt;
use std::sync::Arc;

use super::rule::{Cvs, Merge, MergeFormat, PATTERN_MAX_BYTES, Parsed, Rule, Side, Sides, Text};

/// The name of the per-directory file of `:C`.
const CVSIGNORE: &[u8] = b".cvsignore";

/// The built-in excludes of `-C`; all are perishable.
const CVS_PATTERNS: &str = "RCS SCCS CVS CVS.adm RCSLOG cvslog.* tags TAGS .make.state .nse_depinfo \
     *~ #* .#* ,* _$* *$ *.old *.bak *.BAK *.orig *.rej .del-* *.a *.olb *.o *.obj *.so *.exe *.Z \
     *.elc *.ln core .svn/ .git/ .hg/ .bzr/";

/// The reason why a rule is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// It starts with an unknown rule name.
    Unknown,
    /// Its pattern or file name is missing.
    UnexpectedEnd,
    /// Text follows a `!`.
    ClearHasMore,
    /// It specifies sides in a merge file whose rule specifies them already.
    SidesTwice,
    /// A letter after the name is not a modifier of this rule.
    Modifier {
        letter: u8,
        /// Its position in the rule, in bytes from the start.
        position: usize,
    },
}

/// Where a rule appeared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RuleSource {
    /// In an argument or an environment variable.
    Given,
    /// In this line of the file of this name. Its description is only made for a message: a file can have millions of lines.
    Line(Arc<[u8]>, usize),
    /// In a file, in rsync's format, e.g. `rules line 3`.
    File(Vec<u8>),
}

impl RuleSource {
    /// Returns the place in a file, in rsync's format.
    fn in_file(&self) -> Option<Vec<u8>> {
        match self {
            RuleSource::Given => None,
            RuleSource::Line(name, line) => Some(line_of(name, *line)),
            RuleSource::File(place) => Some(place.clone()),
        }
    }

    /// Returns how a message refers to this text of a rule.
    fn shown(&self, text: &[u8]) -> Vec<u8> {
        match self.in_file() {
            None => text.to_vec(),
            Some(place) => [b"<rule from ", &place[..], b">"].concat(),
        }
    }

    /// Returns rsync's warning about a rule with this pattern if the pattern is too long.
    fn too_long(&self, pattern: &[u8]) -> Option<Vec<u8>> {
        if pattern.len() > PATTERN_MAX_BYTES {
            Some([b"discarding over-long filter: ", &self.shown(pattern)[..]].concat())
        } else {
            None
        }
    }
}

/// A rule that cannot be parsed; the run ends with exit code 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRule {
    /// Why it is invalid.
    pub complaint: Complaint,
    rule: Vec<u8>,
    place: RuleSource,
}

impl BadRule {
    /// Returns rsync's message without a newline.
    ///
    /// It does not include the text of a rule from a file. rsync never prints that, because otherwise its error
    /// messages would reveal the contents of unreadable files.
    pub fn message(&self) -> Vec<u8> {
        let shown = self.place == RuleSource::Given;
        let mut out = match self.complaint {
            Complaint::Unknown => b"Unknown filter rule: ".to_vec(),
            Complaint::UnexpectedEnd => b"unexpected end of filter rule: ".to_vec(),
            Complaint::ClearHasMore => b"'!' rule has trailing characters: ".to_vec(),
            Complaint::SidesTwice => {
                b"specified-side merge file contains specified-side filter: ".to_vec()
            }
            Complaint::Modifier { letter, position } if shown => {
                let mut out = b"invalid modifier '".to_vec();
                out.push(letter);
                out.extend_from_slice(
                    format!("' at position {position} in filter rule: ").as_bytes(),
                );
                out
            }
            Complaint::Modifier { .. } => b"invalid modifier in filter rule: ".to_vec(),
        };
        out.extend(self.place.shown(&self.rule));
        out
    }
}

impl fmt::Display for BadRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.message()))
    }
}

impl std::error::Error for BadRule {}

/// Returns e.g. `name line 3`.
fn line_of(name: &[u8], line: usize) -> Vec<u8> {
    let mut out = name.to_vec();
    out.extend_from_slice(format!(" line {line}").as_bytes());
    out
}

/// What the rules of a merge file inherit from the rule that names it.
#[derive(Clone, Copy, Default)]
struct Inherited {
    sides: Sides,
    absolute: bool,
    perishable: bool,
}

/// The syntax of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grammar {
    /// A complete filter rule.
    Rule,
    /// A pattern, after an optional `- ` or `+ `; a lone `!` clears.
    OldStyle { include: bool },
    /// A pattern and nothing else.
    Pattern { include: bool },
    /// A pattern; a lone `!` clears.
    PatternOrClear,
}

/// Parses the text of one `--filter` option.
///
/// Empty text is allowed and results in [`Parsed::Nothing`].
pub fn parse_filter(text: &[u8]) -> Result<Parsed, BadRule> {
    parse_one(
        text,
        Grammar::Rule,
        Inherited::default(),
        &RuleSource::Given,
        None,
    )
}

/// Parses the text of one `--exclude` option, which supports a leading `- ` or `+ ` and a lone `!`.
pub fn parse_exclude(pat: &[u8]) -> Result<Parsed, BadRule> {
    parse_one(
        pat,
        Grammar::OldStyle { include: false },
        Inherited::default(),
        &RuleSource::Given,
        None,
    )
}

/// Parses the text of one `--include` option; see [`parse_exclude`].
pub fn parse_include(pat: &[u8]) -> Result<Parsed, BadRule> {
    parse_one(
        pat,
        Grammar::OldStyle { include: true },
        Inherited::default(),
        &RuleSource::Given,
        None,
    )
}

/// Parses the text of the `--exclude-from` or `--include-from` file of this name.
///
/// Lines end at LF or CR, with `from0` at NUL. Empty lines and lines that start with `#` or `;` are ignored.
pub fn parse_from(
    name: &[u8],
    text: Vec<u8>,
    include: bool,
    from0: bool,
) -> Result<Vec<Parsed>, BadRule> {
    let buffer = Arc::new(text);
    let name: Arc<[u8]> = name.into();
    lines(&buffer, from0)
        .filter(|(_, line)| is_rule_line(line))
        .map(|(number, line)| {
            let place = RuleSource::Line(name.clone(), number);
            parse_one(
                line,
                Grammar::OldStyle { include },
                Inherited::default(),
                &place,
                Some(&buffer),
            )
        })
        .collect()
}

/// Parses the text of the merge file that `merge` names.
///
/// Lines are as in [`parse_from`]. With `w` and `C`, the text consists of words between white space (and NUL, with
/// `from0`), and there are no comments. The modifier `e` adds its rule at the front.
pub fn parse_merge(text: &[u8], merge: &Merge, from0: bool) -> Result<Vec<Parsed>, BadRule> {
    let label = Label::for_merge(merge);
    let own = merge
        .own_exclude(Sides::Unsaid)
        .map(|rule| Ok(Parsed::Rule(rule)));
    own.into_iter()
        .chain(
            parse_labelled(text, merge, from0, &label)
                .into_iter()
                .map(|(_, parsed)| parsed),
        )
        .collect()
}

/// How messages refer to the rules of a file.
pub(super) enum Label {
    /// With the line number.
    Lines(Vec<u8>),
    /// Without it. The file's name comes from a file itself, so messages must not reveal much.
    Whole(Vec<u8>),
}

impl Label {
    /// Returns the label of a file that is read once.
    pub(super) fn for_merge(merge: &Merge) -> Label {
        match &merge.named_at {
            None => Label::Lines(merge.name.clone()),
            Some(place) => Label::Whole([b"a file named at ", &place[..]].concat()),
        }
    }
}

/// Does the work of [`parse_merge`] with another label in messages, and without `e`.
///
/// Returns one result per rule, with the number of its line, so that a file included before an invalid rule is read before the error is reported.
pub(super) fn parse_labelled(
    text: &[u8],
    merge: &Merge,
    from0: bool,
    label: &Label,
) -> Vec<(u32, Result<Parsed, BadRule>)> {
    let grammar = match merge.format {
        MergeFormat::Rules => Grammar::Rule,
        MergeFormat::Excludes => Grammar::Pattern { include: false },
        MergeFormat::Includes => Grammar::Pattern { include: true },
        MergeFormat::Cvs => Grammar::PatternOrClear,
    };
    let inherited = Inherited {
        sides: merge.sides,
        absolute: merge.absolute,
        perishable: merge.perishable,
    };
    let buffer = Arc::new(text.to_vec());
    if merge.word_split {
        let (Label::Lines(name) | Label::Whole(name)) = label;
        let place = RuleSource::File(name.clone());
        let mut line = 1;
        let mut counted = 0;
        let located = |word: &[u8]| {
            let at = word.as_ptr() as usize - buffer.as_ptr() as usize;
            line += buffer[counted..at].iter().filter(|&&b| b == b'\n').count();
            counted = at;
            let rule = parse_one(word, grammar, inherited, &place, Some(&buffer));
            (short(line), rule)
        };
        return words(&buffer, from0).map(located).collect();
    }
    lines(&buffer, from0)
        .filter(|(_, line)| is_rule_line(line))
        .map(|(number, line)| {
            let place = RuleSource::File(match label {
                Label::Lines(name) => line_of(name, number),
                Label::Whole(name) => name.clone(),
            });
            let rule = parse_one(line, grammar, inherited, &place, Some(&buffer));
            (short(number), rule)
        })
        .collect()
}

/// Returns the number of a line as rules store it.
fn short(line: usize) -> u32 {
    u32::try_from(line).unwrap_or(u32::MAX)
}

/// Returns the number of the line of a file that a pattern is in. It is counted anew each time, so that millions of
/// rules need not store it.
pub fn line_of_pattern(pattern: &Text, from0: bool) -> usize {
    let whole = pattern.whole();
    let begins_before = |line: &[u8]| {
        (line.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize) <= pattern.offset()
    };
    lines(whole, from0)
        .take_while(|(_, line)| begins_before(line))
        .last()
        .map_or(1, |(number, _)| number)
}

/// Returns the rules that `-C` appends: the per-directory `.cvsignore`, then the global excludes.
///
/// `home_cvsignore` is the text of `~/.cvsignore`, `env` the value of `CVSIGNORE`; both consist of words.
pub fn cvs_rules(home_cvsignore: Option<&[u8]>, env: Option<&[u8]>) -> Vec<Parsed> {
    let mut list = vec![Parsed::Merge(Box::new(cvs_merge()))];
    list.extend(
        cvs_globals(&Cvs::default(), home_cvsignore, env)
            .into_iter()
            .map(Parsed::Rule),
    );
    list
}

/// Returns the rule `:C`.
fn cvs_merge() -> Merge {
    Merge {
        name: CVSIGNORE.to_vec(),
        per_dir: true,
        format: MergeFormat::Cvs,
        no_inherit: true,
        word_split: true,
        ..Merge::default()
    }
}

/// Returns the global CVS excludes with the modifiers of a `-C` rule. A `!` among the words clears only this list,
/// including the built-in patterns.
pub fn cvs_globals(cvs: &Cvs, home: Option<&[u8]>, env: Option<&[u8]>) -> Vec<Rule> {
    let rule = |pattern: &[u8], perishable: bool| Rule {
        include: cvs.include,
        sides: cvs.sides,
        absolute: cvs.absolute,
        negate: cvs.negate,
        perishable: perishable || cvs.perishable,
        xattr: false,
        pattern: pattern.into(),
        from_file: cvs.from_file,
    };
    let mut list: Vec<Rule> = CVS_PATTERNS
        .split_ascii_whitespace()
        .map(|word| rule(word.as_bytes(), true))
        .collect();
    for word in [home, env]
        .into_iter()
        .flatten()
        .flat_map(|text| words(text, false))
    {
        if word == b"!" {
            list.clear();
        } else if word.len() <= PATTERN_MAX_BYTES {
            list.push(rule(word, false));
        }
    }
    list
}

/// Returns a warning for each word that [`cvs_globals`] leaves out because it is too long. `home_name`: the name of
/// `~/.cvsignore`.
pub fn cvs_too_long(home_name: &[u8], home: Option<&[u8]>, env: Option<&[u8]>) -> Vec<Vec<u8>> {
    let of_home = RuleSource::File(home_name.to_vec());
    let of_env = RuleSource::Given;
    let mut warnings = Vec::new();
    for (place, text) in [(of_home, home), (of_env, env)] {
        for word in words(text.unwrap_or_default(), false) {
            warnings.extend(place.too_long(word));
        }
    }
    warnings
}

/// Returns the lines of a file with their numbers, from 1. CR LF counts as one line end.
fn lines(text: &[u8], from0: bool) -> impl Iterator<Item = (usize, &[u8])> {
    let mut rest = Some(text);
    let mut number = 0;
    std::iter::from_fn(move || {
        let text = rest?;
        number += 1;
        let ends = |b: &u8| {
            if from0 {
                *b == 0
            } else {
                *b == b'\n' || *b == b'\r'
            }
        };
        let line = match text.iter().position(ends) {
            None => {
                rest = None;
                text
            }
            Some(at) => {
                let crlf = !from0 && text[at..].starts_with(b"\r\n");
                rest = Some(&text[at + 1 + usize::from(crlf)..]);
                &text[..at]
            }
        };
        Some((number, until_nul(line)))
    })
}

/// Returns the words of a file that is split at white space.
fn words(text: &[u8], from0: bool) -> impl Iterator<Item = &[u8]> {
    text.split(move |&b| is_space(b) || (from0 && b == 0))
        .map(until_nul)
        .filter(|word| !word.is_empty())
}

fn is_space(b: u8) -> bool {
    b.is_ascii_whitespace() || b == 0x0b
}

/// Truncates a rule at a NUL, because rsync stores rules as C strings.
fn until_nul(line: &[u8]) -> &[u8] {
    &line[..line.iter().position(|&b| b == 0).unwrap_or(line.len())]
}

fn is_rule_line(line: &[u8]) -> bool {
    !matches!(line.first(), None | Some(b'#' | b';'))
}

/// Parses a rule. `buffer`: what `text` is a slice of, if there is more than one rule in it.
fn parse_one(
    text: &[u8],
    grammar: Grammar,
    inherited: Inherited,
    place: &RuleSource,
    buffer: Option<&Arc<Vec<u8>>>,
) -> Result<Parsed, BadRule> {
    let part = |pattern: &[u8]| {
        buffer.map_or_else(|| pattern.into(), |buffer| Text::part_of(buffer, pattern))
    };
    let bad = |complaint| BadRule {
        complaint,
        rule: text.to_vec(),
        place: place.clone(),
    };
    if text.is_empty() {
        return Ok(Parsed::Nothing);
    }
    let (include, pattern) = match grammar {
        Grammar::Rule => return parse_rule(text, inherited, place, &part).map_err(bad),
        Grammar::OldStyle { .. } | Grammar::PatternOrClear if text == b"!" => {
            return Ok(Parsed::Clear);
        }
        Grammar::OldStyle { include } => match text {
            [b'-', b' ', pattern @ ..] => (false, pattern),
            [b'+', b' ', pattern @ ..] => (true, pattern),
            _ => (include, text),
        },
        Grammar::Pattern { include } => (include, text),
        Grammar::PatternOrClear => (false, text),
    };
    if pattern.is_empty() {
        return Err(bad(Complaint::UnexpectedEnd));
    }
    if let Some(warning) = place.too_long(pattern) {
        return Ok(Parsed::TooLong(warning.into()));
    }
    Ok(Parsed::Rule(Rule {
        include,
        sides: inherited.sides,
        absolute: inherited.absolute,
        perishable: inherited.perishable,
        pattern: part(pattern),
        from_file: *place != RuleSource::Given,
        ..Rule::default()
    }))
}

/// The names of rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RuleName {
    Exclude,
    Include,
    Merge,
    DirMerge,
    Hide,
    Show,
    Protect,
    Risk,
    Clear,
}

const NAMES: [(RuleName, u8, &[u8]); 9] = [
    (RuleName::Exclude, b'-', b"exclude"),
    (RuleName::Include, b'+', b"include"),
    (RuleName::Merge, b'.', b"merge"),
    (RuleName::DirMerge, b':', b"dir-merge"),
    (RuleName::Hide, b'H', b"hide"),
    (RuleName::Show, b'S', b"show"),
    (RuleName::Protect, b'P', b"protect"),
    (RuleName::Risk, b'R', b"risk"),
    (RuleName::Clear, b'!', b"clear"),
];

/// Returns the name that a rule starts with, and its length.
fn name_of(text: &[u8]) -> Option<(RuleName, usize)> {
    NAMES.iter().find_map(|&(name, short, long)| {
        if text.first() == Some(&short) {
            return Some((name, 1));
        }
        let rest = text.strip_prefix(long)?;
        match rest.first() {
            None | Some(b' ' | b'_' | b',') => Some((name, long.len())),
            Some(_) => None,
        }
    })
}

/// Parses a complete rule. `part` makes the text of a pattern from a part of `text`.
fn parse_rule(
    text: &[u8],
    inherited: Inherited,
    place: &RuleSource,
    part: &dyn Fn(&[u8]) -> Text,
) -> Result<Parsed, Complaint> {
    let (name, name_len) = name_of(text).ok_or(Complaint::Unknown)?;
    let mut at = name_len + usize::from(text.get(name_len) == Some(&b','));
    if name == RuleName::Clear {
        return if at == text.len() {
            Ok(Parsed::Clear)
        } else {
            Err(Complaint::ClearHasMore)
        };
    }
    let mods = Mods::parse(text, &mut at, name, inherited)?;
    let argument = text.get(at + 1..).unwrap_or_default();
    let Mods {
        absolute,
        negate,
        perishable,
        xattr,
        cvs,
        ..
    } = mods;
    let from_file = *place != RuleSource::Given;
    if mods.sides_given && inherited.sides != Sides::Unsaid {
        return Err(Complaint::SidesTwice);
    }
    let sides = if mods.sides_given {
        mods.sides
    } else {
        inherited.sides
    };
    let merges = matches!(name, RuleName::Merge | RuleName::DirMerge);
    let include = matches!(name, RuleName::Include | RuleName::Show | RuleName::Risk);
    if cvs && !merges {
        return Ok(Parsed::Cvs(Cvs {
            include,
            sides,
            absolute,
            negate,
            perishable,
            from_file,
        }));
    }
    let argument = if cvs && argument.is_empty() {
        CVSIGNORE
    } else {
        argument
    };
    if argument.is_empty() {
        return Err(Complaint::UnexpectedEnd);
    }
    if let Some(warning) = place.too_long(argument) {
        return Ok(Parsed::TooLong(warning.into()));
    }
    if !merges {
        let pattern = part(argument);
        return Ok(Parsed::Rule(Rule {
            include,
            sides,
            absolute,
            negate,
            perishable,
            xattr,
            pattern,
            from_file,
        }));
    }
    Ok(Parsed::Merge(Box::new(Merge {
        name: argument.to_vec(),
        per_dir: name == RuleName::DirMerge,
        format: mods.format,
        no_inherit: mods.no_inherit,
        word_split: mods.word_split,
        exclude_itself: mods.exclude_itself,
        sides,
        absolute,
        perishable,
        xattr,
        named_at: place.in_file(),
    })))
}

/// The modifiers of one rule.
#[derive(Default)]
struct Mods {
    sides: Sides,
    sides_given: bool,
    absolute: bool,
    negate: bool,
    perishable: bool,
    xattr: bool,
    cvs: bool,
    format: MergeFormat,
    no_inherit: bool,
    word_split: bool,
    exclude_itself: bool,
}

impl Mods {
    /// Parses the modifiers from `at` on and leaves `at` at the separator or the end.
    fn parse(
        text: &[u8],
        at: &mut usize,
        name: RuleName,
        inherited: Inherited,
    ) -> Result<Mods, Complaint> {
        let merges = matches!(name, RuleName::Merge | RuleName::DirMerge);
        let one_sided = match name {
            RuleName::Hide | RuleName::Show => Some(Side::Sender),
            RuleName::Protect | RuleName::Risk => Some(Side::Receiver),
            RuleName::Exclude
            | RuleName::Include
            | RuleName::Merge
            | RuleName::DirMerge
            | RuleName::Clear => None,
        };
        let mut mods = Mods {
            absolute: inherited.absolute,
            perishable: inherited.perishable,
            sides_given: one_sided.is_some(),
            sides: one_sided.map_or(Sides::Unsaid, |side| Sides::Unsaid.with(side)),
            ..Mods::default()
        };
        while let Some(&letter) = text.get(*at) {
            let plain = mods.format == MergeFormat::Rules;
            match letter {
                b' ' | b'_' => break,
                b'/' => mods.absolute = true,
                b'p' => mods.perishable = true,
                b'x' => mods.xattr = true,
                b'!' if !merges => mods.negate = true,
                b's' | b'r' if one_sided.is_none() => {
                    let side = if letter == b's' {
                        Side::Sender
                    } else {
                        Side::Receiver
                    };
                    mods.sides = mods.sides.with(side);
                    mods.sides_given = true;
                }
                b'C' if one_sided.is_none() && plain && !mods.cvs => {
                    mods.cvs = true;
                    if merges {
                        mods.format = MergeFormat::Cvs;
                        mods.no_inherit = true;
                        mods.word_split = true;
                    }
                }
                b'-' if merges && plain => mods.format = MergeFormat::Excludes,
                b'+' if merges && plain => mods.format = MergeFormat::Includes,
                b'e' if merges => mods.exclude_itself = true,
                b'n' if merges => mods.no_inherit = true,
                b'w' if merges => mods.word_split = true,
                _ => {
                    return Err(Complaint::Modifier {
                        letter,
                        position: *at,
                    });
                }
            }
            *at += 1;
        }
        Ok(mods)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed_text(text: &str) -> String {
        match parse_filter(text.as_bytes()) {
            Ok(parsed) => String::from_utf8_lossy(&parsed.text()).into_owned(),
            Err(bad) => bad.to_string(),
        }
    }

    #[test]
    fn rules_parse_as_in_rsync() {
        // Left: an argument of --filter. Right: the rule in rsync 3.5.0 --debug=FILTER2, or its error message.
        for (text, want) in [
            ("- foo", "- foo"),
            ("-_foo", "- foo"),
            ("-, foo", "- foo"),
            ("exclude, foo", "- foo"),
            ("exclude  foo", "-  foo"),
            ("-  ", "-  "),
            ("P q", "-r q"),
            ("P,p t", "-rp t"),
            ("-,p! c", "-!p c"),
            ("R,/px foo/", "+/xrp foo/"),
            ("H x", "-s x"),
            ("show y", "+s y"),
            ("-sr ff", "-sr ff"),
            (":C", ":C .cvsignore"),
            (":sC foo", ":Cs foo"),
            (":wn+ ff", ":nw+ ff"),
            ("merge,- x", ".- x"),
            ("exclude,C", "-C "),
            ("-C foo", "-C "),
            ("!", "!"),
            ("clear,", "!"),
            ("", ""),
            ("foo bar", "Unknown filter rule: foo bar"),
            ("excludes foo", "Unknown filter rule: excludes foo"),
            (" ", "Unknown filter rule:  "),
            ("-", "unexpected end of filter rule: -"),
            ("- ", "unexpected end of filter rule: - "),
            ("merge", "unexpected end of filter rule: merge"),
            (":e", "unexpected end of filter rule: :e"),
            ("! ", "'!' rule has trailing characters: ! "),
            ("clear,s", "'!' rule has trailing characters: clear,s"),
            (
                "-foo",
                "invalid modifier 'f' at position 1 in filter rule: -foo",
            ),
            (
                "-,,foo",
                "invalid modifier ',' at position 2 in filter rule: -,,foo",
            ),
            (
                "Hr foo",
                "invalid modifier 'r' at position 1 in filter rule: Hr foo",
            ),
            (
                "merge,foo",
                "invalid modifier 'f' at position 6 in filter rule: merge,foo",
            ),
            (
                ":-C x",
                "invalid modifier 'C' at position 2 in filter rule: :-C x",
            ),
            (
                ":CC",
                "invalid modifier 'C' at position 2 in filter rule: :CC",
            ),
            (
                "PC",
                "invalid modifier 'C' at position 1 in filter rule: PC",
            ),
            (
                ":! x",
                "invalid modifier '!' at position 1 in filter rule: :! x",
            ),
            (
                "-e foo",
                "invalid modifier 'e' at position 1 in filter rule: -e foo",
            ),
            (
                "-- foo",
                "invalid modifier '-' at position 1 in filter rule: -- foo",
            ),
            (
                "-+ foo",
                "invalid modifier '+' at position 1 in filter rule: -+ foo",
            ),
            (
                "-n foo",
                "invalid modifier 'n' at position 1 in filter rule: -n foo",
            ),
            (
                "-w foo",
                "invalid modifier 'w' at position 1 in filter rule: -w foo",
            ),
            (
                ":+- x",
                "invalid modifier '-' at position 2 in filter rule: :+- x",
            ),
            (
                ":-+ x",
                "invalid modifier '+' at position 2 in filter rule: :-+ x",
            ),
        ] {
            assert_eq!(parsed_text(text), want, "{text:?}");
        }
    }

    fn patterns(list: &[Parsed]) -> Vec<String> {
        list.iter()
            .map(|p| String::from_utf8_lossy(&p.text()).into_owned())
            .collect()
    }

    #[test]
    fn exclude_accepts_the_old_prefixes() {
        let text = |pat: &[u8]| parse_exclude(pat).map(|p| p.text());
        assert_eq!(text(b"foo").unwrap(), b"- foo");
        assert_eq!(text(b"+ foo").unwrap(), b"+ foo");
        assert_eq!(text(b"+_foo").unwrap(), b"- +_foo");
        assert_eq!(text(b"!").unwrap(), b"!");
        assert_eq!(text(b"! ").unwrap(), b"- ! ");
        assert_eq!(text(b"").unwrap(), b"");
        assert_eq!(
            parse_exclude(b"- ").unwrap_err().message(),
            b"unexpected end of filter rule: - "
        );
        assert_eq!(parse_include(b"foo").unwrap().text(), b"+ foo");
    }

    #[test]
    fn exclude_from_is_parsed_line_by_line() {
        let list = parse_from(
            b"rules",
            b"# c\n; c\r\n\r\n- a\n+ b\nc \n!\n #d".to_vec(),
            false,
            false,
        )
        .unwrap();
        assert_eq!(patterns(&list), ["- a", "+ b", "- c ", "!", "-  #d"]);
        let list = parse_from(b"rules", b"a\0#x\0b\n\0\0!".to_vec(), true, true).unwrap();
        assert_eq!(patterns(&list), ["+ a", "+ b\n", "!"]);
        let bad = parse_from(b"rules", b"a\r\n- \n".to_vec(), false, false).unwrap_err();
        assert_eq!(
            bad.message(),
            b"unexpected end of filter rule: <rule from rules line 2>"
        );
    }

    #[test]
    fn lines_of_patterns_are_found_again() {
        let lines = |list: &[Parsed]| -> Vec<usize> {
            let rules = list.iter().filter_map(|parsed| match parsed {
                Parsed::Rule(rule) => Some(line_of_pattern(&rule.pattern, false)),
                _ => None,
            });
            rules.collect()
        };
        let list = parse_from(b"rules", b"# c\n\na\r\n- b\n!\nc".to_vec(), false, false).unwrap();
        assert_eq!(lines(&list), [3, 4, 6]);
        let list = parse_merge(b"a b\n\nc", &merge(b".w- x"), false).unwrap();
        assert_eq!(lines(&list), [1, 1, 3]);
    }

    fn merge(rule: &[u8]) -> Merge {
        match parse_filter(rule).unwrap() {
            Parsed::Merge(merge) => *merge,
            other => panic!("{other:?} is no merge"),
        }
    }

    #[test]
    fn merge_file_rules_inherit_modifiers() {
        let list = parse_merge(b"a\nclear\n!\n- b", &merge(b".-/p x"), false).unwrap();
        assert_eq!(patterns(&list), ["-/p a", "-/p clear", "-/p !", "-/p - b"]);
        let list = parse_merge(b"a #x ! c\n", &merge(b":Cs"), true).unwrap();
        assert_eq!(patterns(&list), ["-s a", "-s #x", "!", "-s c"]);
        let list = parse_merge(b"- a\n: q\n-C", &merge(b".sx x"), false).unwrap();
        assert_eq!(patterns(&list), ["-s a", ":s q", "-Cs "]);
        let list = parse_merge(b"- a\nP b", &merge(b"./p x"), false).unwrap();
        assert_eq!(patterns(&list), ["-/p a", "-/rp b"]);
    }

    #[test]
    fn rules_of_files_are_marked() {
        let is_from_file = |parsed: Parsed| match parsed {
            Parsed::Rule(rule) => rule.from_file,
            other => panic!("{other:?} is no rule"),
        };
        assert!(!is_from_file(parse_exclude(b"a").unwrap()));
        for parsed in parse_from(b"rules", b"a\n+ b".to_vec(), false, false).unwrap() {
            assert!(is_from_file(parsed));
        }
    }

    #[test]
    fn errors_hide_the_text_of_rule_files() {
        let says = |text: &[u8], rule: &[u8]| {
            parse_merge(text, &merge(rule), false)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            says(b"\nsecret", b". x"),
            "Unknown filter rule: <rule from x line 2>"
        );
        assert_eq!(
            says(b"- foo", b".w x"),
            "unexpected end of filter rule: <rule from x>"
        );
        assert_eq!(
            says(b"-secret", b". x"),
            "invalid modifier in filter rule: <rule from x line 1>"
        );
        assert_eq!(
            says(b"H foo", b".s x"),
            "specified-side merge file contains specified-side filter: <rule from x line 1>"
        );
        let nested = parse_merge(b"\n. y", &merge(b". x"), false).unwrap();
        let [Parsed::Merge(nested)] = &nested[..] else {
            panic!("{nested:?}")
        };
        assert_eq!(
            parse_merge(b"\n\nbad", nested, false)
                .unwrap_err()
                .to_string(),
            "Unknown filter rule: <rule from a file named at x line 2>"
        );
        assert_eq!(
            nested.open_failure(),
            (
                b"failed to open exclude file <rule from x line 2>".to_vec(),
                false
            )
        );
    }

    /// There can be millions of rules, so what is rare is in boxes.
    #[test]
    fn parsed_lines_take_no_more_memory_than_rules() {
        assert_eq!(size_of::<Parsed>(), size_of::<Rule>());
    }

    #[test]
    fn rules_that_are_too_long_have_no_effect_but_a_warning() {
        let pattern = |len| "x".repeat(len).into_bytes();
        let warning = |shown: &[u8]| [b"discarding over-long filter: ", shown].concat();
        let too_long = |shown: &[u8]| Parsed::TooLong(warning(shown).into());
        let long = pattern(PATTERN_MAX_BYTES + 1);
        for rule in [&b"- "[..], b": ", b"-/s ", b"exclude "] {
            let parse = |pattern: &[u8]| parse_filter(&[rule, pattern].concat()).unwrap();
            let longest = parse(&pattern(PATTERN_MAX_BYTES));
            assert!(!matches!(longest, Parsed::TooLong(_)), "{longest:?}");
            assert_eq!(parse(&long), too_long(&long));
        }
        assert_eq!(parse_exclude(&long), Ok(too_long(&long)), "without a name");

        // The text of a file is not shown.
        let text = [&b"a\n- "[..], &long, b"\n"].concat();
        let list = parse_from(b"list", text, false, false).unwrap();
        assert_eq!(list[1], too_long(b"<rule from list line 2>"));
        assert_eq!(patterns(&list), ["- a", ""]);

        let env = [&long, &b" b"[..]].concat();
        assert_eq!(patterns(&cvs_rules(Some(&long), Some(&env)))[37..], ["- b"]);
        assert_eq!(
            cvs_too_long(b"home", Some(&long), Some(&env)),
            [warning(b"<rule from home>"), warning(&long)]
        );
    }

    #[test]
    fn cvsignore_can_clear_the_cvs_list() {
        let list = cvs_rules(None, Some(b"a\tb"));
        assert_eq!(list.len(), 1 + 36 + 2);
        assert_eq!(patterns(&list)[..2], [":C .cvsignore", "-p RCS"]);
        assert_eq!(list.first(), parse_filter(b":C").as_ref().ok());
        assert_eq!(patterns(&list)[36..], ["-p .bzr/", "- a", "- b"]);
        let list = cvs_rules(Some(b"x ! y"), Some(b"z"));
        assert_eq!(patterns(&list), [":C .cvsignore", "- y", "- z"]);
    }

    proptest! {
        #[test]
        fn rule_parsers_do_not_panic_on_any_bytes(text in proptest::collection::vec(any::<u8>(), 0..40), from0: bool) {
            for parsed in [parse_filter(&text), parse_exclude(&text), parse_include(&text)] {
                if let Err(bad) = parsed {
                    let _ = bad.message();
                }
            }
            let _ = parse_from(b"rules", text.clone(), true, from0);
            for rule in [&b". x"[..], b".w x", b".- x", b":C", b".s x"] {
                let _ = parse_merge(&text, &merge(rule), from0);
            }
        }

        #[test]
        fn formatted_rule_parses_to_itself(text in "[-+.:HSPR!](,)?[-+/!CenwsrpxC]{0,4}[ _]?[a-z*/!]{0,4}") {
            if let Ok(parsed) = parse_filter(text.as_bytes()) {
                prop_assert_eq!(parse_filter(&parsed.text()), Ok(parsed));
            }
        }
    }
}

//! Turns the facts about a path into a verdict with its reasons.

use super::rule_text::RuleTexts;
use crate::cli::remote_args::RemoteOperand;
use crate::filter::{FoundRule, Side};
use crate::flist::{Kind, Time};
use crate::options::{AltDest, CheckMode, Options, Recurse};
use crate::path::RelPath;
use crate::plan::explained::{DecidedFact, DecidedOutcome, Fact, Fate};
use crate::plan::planned::EntryState;
use crate::plan::{Changes, InTheWay, Reason};
use crate::report::json;
use crate::report::times::LocalTimes;
use std::collections::BTreeMap;

/// What would happen to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathVerdict {
    Copied,
    Updated,
    Linked,
    Unchanged,
    NotCopied,
    Deleted,
    Kept,
    Absent,
    Outside,
}

impl PathVerdict {
    /// Returns its name in `--json`.
    fn name(self) -> &'static str {
        match self {
            PathVerdict::Copied => "copied",
            PathVerdict::Updated => "updated",
            PathVerdict::Linked => "linked",
            PathVerdict::Unchanged => "unchanged",
            PathVerdict::NotCopied => "not_copied",
            PathVerdict::Deleted => "deleted",
            PathVerdict::Kept => "kept",
            PathVerdict::Absent => "absent",
            PathVerdict::Outside => "outside",
        }
    }

    /// Returns its words.
    fn words(self) -> &'static str {
        match self {
            PathVerdict::Copied => "copied",
            PathVerdict::Updated => "only its attributes are updated",
            PathVerdict::Linked => "becomes a hard link",
            PathVerdict::Unchanged => "unchanged",
            PathVerdict::NotCopied => "not copied",
            PathVerdict::Deleted => "deleted",
            PathVerdict::Kept => "kept",
            PathVerdict::Absent => "at neither end",
            PathVerdict::Outside => "not below SRC or DST",
        }
    }
}

/// A reason, and the end that it is known at.
pub struct Why {
    side: Side,
    /// The end, with its machine.
    end: String,
    text: Vec<u8>,
}

/// What would happen to a path, and why.
pub struct Explanation {
    pub verdict: PathVerdict,
    pub reasons: Vec<Why>,
}

impl Explanation {
    /// Appends the lines about a path.
    pub fn put(&self, out: &mut Vec<u8>, path: &[u8]) {
        out.extend_from_slice(path);
        out.extend_from_slice(format!(": {}\n", self.verdict.words()).as_bytes());
        for Why { end, text, .. } in &self.reasons {
            out.extend_from_slice(format!("  {end}: ").as_bytes());
            out.extend_from_slice(text);
            out.push(b'\n');
        }
    }

    /// Appends the line of `--json` about a path.
    pub fn put_json(&self, out: &mut Vec<u8>, path: &[u8]) {
        let reasons = self
            .reasons
            .iter()
            .map(|why| (side_name(why.side), why.text.as_slice()));
        json::put_explanation(out, path, self.verdict.name(), reasons);
    }
}

fn side_name(side: Side) -> &'static str {
    match side {
        Side::Sender => "sender",
        Side::Receiver => "receiver",
    }
}

/// Everything that sentences are made of.
pub struct Views<'a> {
    pub facts: &'a BTreeMap<Vec<u8>, Vec<Fact>>,
    pub options: &'a Options,
    pub rules: RuleTexts<'a>,
    /// The other machine, if there is one.
    pub host: Option<&'a RemoteOperand>,
    /// Something could not be read.
    pub has_failed: bool,
}

/// The facts about one path.
#[derive(Default)]
struct PathFacts<'a> {
    decided: Option<&'a DecidedFact>,
    sender_rule: Option<&'a FoundRule>,
    receiver_rule: Option<&'a FoundRule>,
    is_absent_at_source: bool,
    is_absent_at_dest: bool,
    at_dest: Option<Kind>,
    is_mount_point: bool,
    is_not_entered: bool,
    is_pruned: bool,
    has_no_room: bool,
    linked: Option<&'a [u8]>,
    fate: Option<Fate>,
}

/// What the source end does with a path.
enum AtSource<'a> {
    /// It takes part.
    Decided(&'a DecidedFact),
    /// It takes no part.
    Left(Why),
    /// The source has no such entry.
    Absent(Why),
}

/// What the destination end does with a path that takes no part.
enum AtDest {
    Absent,
    /// It is there, or inside something that is there.
    Present {
        is_deleted: bool,
        whys: Vec<Why>,
    },
    /// Its directory is not looked at.
    Unknown,
}

impl Views<'_> {
    /// Explains a path.
    pub fn explain(&self, path: &RelPath) -> Explanation {
        match self.at_source(path) {
            AtSource::Decided(decided) => self.explain_decided(path, decided),
            AtSource::Left(why) => {
                let mut reasons = vec![why];
                let mut verdict = PathVerdict::NotCopied;
                if let AtDest::Present { is_deleted, whys } = self.at_dest(path) {
                    reasons.extend(whys);
                    if is_deleted {
                        verdict = PathVerdict::Deleted;
                    }
                }
                Explanation { verdict, reasons }
            }
            AtSource::Absent(why) => {
                let mut reasons = vec![why];
                let verdict = match self.at_dest(path) {
                    AtDest::Present { is_deleted, whys } => {
                        reasons.extend(whys);
                        if is_deleted {
                            PathVerdict::Deleted
                        } else {
                            PathVerdict::Kept
                        }
                    }
                    AtDest::Absent => {
                        reasons.push(self.why(Side::Receiver, "the destination has no such entry"));
                        PathVerdict::Absent
                    }
                    AtDest::Unknown => PathVerdict::NotCopied,
                };
                Explanation { verdict, reasons }
            }
        }
    }

    /// Returns whether one end is known to have an entry of this path.
    pub fn is_entry(&self, path: &RelPath) -> bool {
        let mut facts = self.facts.get(path.as_bytes()).into_iter().flatten();
        path.is_root() || facts.any(|fact| !matches!(fact, Fact::Absent(_)))
    }

    fn why(&self, side: Side, text: impl Into<Vec<u8>>) -> Why {
        let is_far = self
            .host
            .is_some_and(|host| host.server_sends == (side == Side::Sender));
        let name = side_name(side);
        let end = match self.host {
            Some(host) if is_far && !host.host.is_empty() => {
                format!("{name} ({})", String::from_utf8_lossy(&host.host))
            }
            Some(_) | None => name.to_owned(),
        };
        Why {
            side,
            end,
            text: text.into(),
        }
    }

    fn known(&self, path: &[u8]) -> PathFacts<'_> {
        let mut known = PathFacts::default();
        for fact in self.facts.get(path).into_iter().flatten() {
            match fact {
                Fact::Rule {
                    side: Side::Sender,
                    rule,
                    ..
                } => known.sender_rule = Some(rule),
                Fact::Rule {
                    side: Side::Receiver,
                    rule,
                    ..
                } => known.receiver_rule = Some(rule),
                Fact::Absent(Side::Sender) => known.is_absent_at_source = true,
                Fact::Absent(Side::Receiver) => known.is_absent_at_dest = true,
                Fact::AtDest(kind) => known.at_dest = Some(*kind),
                Fact::MountPoint => known.is_mount_point = true,
                Fact::NotEntered => known.is_not_entered = true,
                Fact::Decided(decided) => known.decided = Some(decided),
                Fact::Pruned => known.is_pruned = true,
                Fact::NoRoom => known.has_no_room = true,
                Fact::Linked(leader) => known.linked = Some(leader),
                // What was to be done is no news after what was done.
                Fact::Extra(Fate::Doomed) if known.fate.is_some() => {}
                Fact::Extra(fate) => known.fate = Some(*fate),
            }
        }
        known
    }

    fn at_source(&self, path: &RelPath) -> AtSource<'_> {
        for above in dirs_above(path) {
            if let Some(end) = self.stops_at_source(&above, path) {
                return end;
            }
        }
        let known = self.known(path.as_bytes());
        if known.is_pruned {
            let text = "--prune-empty-dirs: nothing in it takes part";
            return AtSource::Left(self.why(Side::Receiver, text));
        }
        match known.decided {
            Some(decided) => AtSource::Decided(decided),
            None => self.left_at_source(&known, b"", path),
        }
    }

    /// Returns why a path takes no part because of a directory above it; `None`: that directory is entered.
    fn stops_at_source(&self, above: &RelPath, path: &RelPath) -> Option<AtSource<'_>> {
        let known = self.known(above.as_bytes());
        let shown = [above.as_bytes(), b"/: "].concat();
        let left = |side, text: Vec<u8>| {
            Some(AtSource::Left(self.why(side, [&shown[..], &text].concat())))
        };
        if known.is_pruned {
            let text = b"--prune-empty-dirs: nothing in it takes part".to_vec();
            return left(Side::Receiver, text);
        }
        let Some(decided) = known.decided else {
            return Some(self.left_at_source(&known, &shown, path));
        };
        if decided.source.kind != Kind::Dir {
            let text = format!("is {}, not a directory", kind_words(decided.source.kind));
            let text = [above.as_bytes(), b" ", text.as_bytes()].concat();
            return Some(AtSource::Absent(self.why(Side::Sender, text)));
        }
        if known.has_no_room {
            return left(
                Side::Receiver,
                b"it cannot be created: its name is taken".to_vec(),
            );
        }
        if let DecidedOutcome::Refuse(reason) = decided.outcome {
            let text = self.refusal(reason, decided);
            return left(Side::Receiver, text);
        }
        if known.is_mount_point {
            return left(
                Side::Sender,
                b"is on another file system (--one-file-system)".to_vec(),
            );
        }
        if known.is_not_entered {
            let text = match self.options.select.recurse {
                Recurse::Full => "its content takes no part",
                Recurse::Dirs | Recurse::No => "its content takes no part without --recursive",
            };
            return left(Side::Sender, text.into());
        }
        None
    }

    /// Returns why the source's list lacks an entry. `shown`: the entry, if it is one above `path`.
    fn left_at_source(&self, known: &PathFacts<'_>, shown: &[u8], path: &RelPath) -> AtSource<'_> {
        let why = |text: &[u8]| self.why(Side::Sender, [shown, text].concat());
        if let Some(rule) = known.sender_rule.filter(|rule| !rule.include) {
            let name = self.rules.name(Side::Sender, rule);
            return AtSource::Left(why(&[b"excluded by ", &name[..]].concat()));
        }
        if known.is_mount_point {
            return AtSource::Left(why(b"is on another file system (--one-file-system)"));
        }
        if known.is_absent_at_source {
            return AtSource::Absent(why(b"the source has no such entry"));
        }
        let select = &self.options.select;
        let text = if path.is_root() {
            "the root of the transfer is not in the list"
        } else if select.files_from.is_some() {
            "--files-from does not name it"
        } else if select.recurse == Recurse::No {
            "not in the list: without --recursive or --dirs, directories are skipped"
        } else {
            "not in the list: no source argument leads to it"
        };
        AtSource::Left(self.why(Side::Sender, text))
    }

    fn at_dest(&self, path: &RelPath) -> AtDest {
        let known = self.known(path.as_bytes());
        let mut above = dirs_above(path);
        let is_below_nothing = above.iter().any(|dir| {
            let known = self.known(dir.as_bytes());
            let has_dest_dir = known.decided.is_none_or(|decided| {
                decided
                    .dest
                    .as_ref()
                    .is_some_and(|dest| dest.kind == Kind::Dir)
            });
            known.is_absent_at_dest || !has_dest_dir
        });
        if known.is_absent_at_dest || is_below_nothing && known.at_dest.is_none() {
            return AtDest::Absent;
        }
        above.push(path.clone());
        let nearest = above.iter().rev().find_map(|dir| {
            let known = self.known(dir.as_bytes());
            Some((dir, known.fate?))
        });
        let Some((dir, fate)) = nearest else {
            return AtDest::Unknown;
        };
        let shown = if dir == path {
            Vec::new()
        } else {
            [dir.as_bytes(), b"/: "].concat()
        };
        let text = self.fate(fate, &self.known(dir.as_bytes()));
        AtDest::Present {
            is_deleted: fate == Fate::Deleted,
            whys: vec![self.why(Side::Receiver, [&shown[..], &text].concat())],
        }
    }

    fn fate(&self, fate: Fate, known: &PathFacts<'_>) -> Vec<u8> {
        let text = match fate {
            Fate::NotRequested => "kept: there is no option that deletes, such as --delete",
            Fate::NotCompared => {
                "kept: the source has not listed this directory as a whole, so nothing is deleted in it"
            }
            Fate::Protected => {
                return match known.receiver_rule.filter(|rule| !rule.include) {
                    Some(rule) => {
                        [b"protected by ", &self.rules.name(Side::Receiver, rule)[..]].concat()
                    }
                    None => b"protected".to_vec(),
                };
            }
            Fate::Doomed if self.has_failed => {
                "kept: nothing is deleted, because something could not be read"
            }
            Fate::Doomed if self.options.select.one_file_system > 0 => {
                "kept: its directory is on another file system (--one-file-system)"
            }
            Fate::Doomed => "kept: its deletion was skipped",
            Fate::Deleted if self.options.delete.when.is_some() => {
                "the transfer does not have it, and --delete removes such entries"
            }
            Fate::Deleted => "an argument of this name is missing (--delete-missing-args)",
            Fate::LimitReached => "kept: --max-delete permits no more deletions",
            Fate::OtherFileSystem => "kept: it is on another file system (--one-file-system)",
            Fate::NotEmpty => "kept: something in it stays",
        };
        let mut text = text.as_bytes().to_vec();
        if fate == Fate::Deleted && self.options.delete.excluded && known.sender_rule.is_some() {
            text = b"excluded, and --delete-excluded removes such entries".to_vec();
        }
        text
    }

    fn explain_decided(&self, path: &RelPath, decided: &DecidedFact) -> Explanation {
        let known = self.known(path.as_bytes());
        let mut reasons = Vec::new();
        if let Some(rule) = known.sender_rule.filter(|rule| rule.include) {
            let name = self.rules.name(Side::Sender, rule);
            reasons.push(self.why(Side::Sender, [b"included by ", &name[..]].concat()));
        }
        let is_refused = matches!(decided.outcome, DecidedOutcome::Refuse(_));
        if known.has_no_room {
            let text = "its name is taken by a directory that must not be deleted";
            reasons.push(self.why(Side::Receiver, text));
            return Explanation {
                verdict: PathVerdict::NotCopied,
                reasons,
            };
        }
        if let (Some(leader), false) = (known.linked, is_refused) {
            let text = [b"the same file as ", leader, b" (--hard-links)"].concat();
            reasons.push(self.why(Side::Receiver, text));
            let verdict = match decided.outcome {
                DecidedOutcome::Keep => PathVerdict::Unchanged,
                _ => PathVerdict::Linked,
            };
            return Explanation { verdict, reasons };
        }
        let verdict = match decided.outcome {
            DecidedOutcome::Keep => PathVerdict::Unchanged,
            DecidedOutcome::Adjust(_) => PathVerdict::Updated,
            DecidedOutcome::Create(_)
            | DecidedOutcome::Transfer(_)
            | DecidedOutcome::CopyAlternate(_) => PathVerdict::Copied,
            DecidedOutcome::LinkAlternate => PathVerdict::Linked,
            DecidedOutcome::Elsewhere if decided.dest.is_some() => PathVerdict::Deleted,
            DecidedOutcome::Elsewhere | DecidedOutcome::Refuse(_) => PathVerdict::NotCopied,
        };
        for text in self.comparison(decided) {
            reasons.push(self.why(Side::Receiver, text));
        }
        Explanation { verdict, reasons }
    }

    /// Returns what the comparison has found.
    fn comparison(&self, decided: &DecidedFact) -> Vec<Vec<u8>> {
        let mut texts = Vec::new();
        match decided.outcome {
            DecidedOutcome::Refuse(reason) => return vec![self.refusal(reason, decided)],
            DecidedOutcome::LinkAlternate
            | DecidedOutcome::Elsewhere
            | DecidedOutcome::CopyAlternate(_) => {
                let alternates = self.options.delta.alt_dest.as_ref();
                let option = alternates.map_or("--compare-dest", AltDest::option);
                texts.push(format!("a tree of {option} has the same").into_bytes());
                if decided.outcome == DecidedOutcome::Elsewhere && decided.dest.is_some() {
                    texts
                        .push(b"what the destination has differs from it, and is removed".to_vec());
                }
                return texts;
            }
            DecidedOutcome::Keep => {
                texts.push(self.sameness(decided.source.kind).into());
                return texts;
            }
            DecidedOutcome::Adjust(_) => {
                texts.push(self.sameness(decided.source.kind).into());
            }
            DecidedOutcome::Create(_) | DecidedOutcome::Transfer(_) => {}
        }
        let Some(dest) = &decided.dest else {
            return vec![b"the destination does not have it".to_vec()];
        };
        match decided.in_the_way {
            InTheWay::Nothing => {}
            InTheWay::Other | InTheWay::Dir => {
                return vec![
                    format!("replaces {} of the destination", kind_words(dest.kind)).into_bytes(),
                ];
            }
        }
        self.put_differences(decided, dest, &mut texts);
        texts
    }

    /// Returns why a file, or another entry, counts as the same.
    fn sameness(&self, kind: Kind) -> &'static str {
        match kind {
            Kind::File => match self.options.check.mode {
                CheckMode::Digest => "same content (--checksum)",
                CheckMode::SizeOnly => "same size (--size-only)",
                CheckMode::IgnoreTimes => "same content",
                CheckMode::Quick { .. } => "same size and time",
            },
            Kind::Dir => "a directory at both ends",
            Kind::Symlink => "same target",
            Kind::Device | Kind::Special => "same kind",
        }
    }

    fn put_differences(&self, decided: &DecidedFact, dest: &EntryState, texts: &mut Vec<Vec<u8>>) {
        let source = &decided.source;
        let changes = decided.outcome.changes();
        let is_transfer = matches!(decided.outcome, DecidedOutcome::Transfer(_));
        let mut put = |text: String| texts.push(text.into_bytes());
        if is_transfer {
            let both = |name: &str, source: String, dest: String| {
                format!("the {name} differs: {source} at the source, {dest} at the destination")
            };
            if let (Some(source), Some(dest)) = (source.len_bytes, dest.len_bytes)
                && source != dest
            {
                put(both(
                    "size",
                    format!("{source} bytes"),
                    format!("{dest} bytes"),
                ));
            } else {
                match self.options.check.mode {
                    CheckMode::Digest => put("the content differs (--checksum)".to_owned()),
                    CheckMode::IgnoreTimes => {
                        put("--ignore-times: no file counts as the same".to_owned());
                    }
                    CheckMode::SizeOnly | CheckMode::Quick { .. } => {
                        if let (Some(source), Some(dest)) = (source.mtime, dest.mtime) {
                            put(both("time", time_words(source), time_words(dest)));
                        }
                    }
                }
            }
        } else if changes.has(Changes::TIME) {
            put("the time differs".to_owned());
        }
        if source.target != dest.target && source.kind == Kind::Symlink {
            put("the target differs".to_owned());
        }
        if changes.has(Changes::PERMS) {
            put(format!(
                "the permissions differ: {:o} at the source, {:o} at the destination",
                source.mode & 0o7777,
                dest.mode & 0o7777
            ));
        }
        for (change, name) in [
            (Changes::OWNER, "owner"),
            (Changes::GROUP, "group"),
            (Changes::ACL, "ACL"),
        ] {
            if changes.has(change) {
                put(format!("the {name} differs"));
            }
        }
        if changes.has(Changes::ATIME) {
            put("the access time differs".to_owned());
        }
        if changes.has(Changes::XATTR) {
            put("the extended attributes differ".to_owned());
        }
    }

    /// Returns why an entry is left alone.
    fn refusal(&self, reason: Reason, decided: &DecidedFact) -> Vec<u8> {
        let select = &self.options.select;
        let bytes = |max: Option<u64>| max.unwrap_or_default();
        let len = decided.source.len_bytes.unwrap_or_default();
        match reason {
            Reason::NotExisting => "the destination does not have it (--existing)".to_owned(),
            Reason::Exists => "the destination has it (--ignore-existing)".to_owned(),
            Reason::Newer => match (decided.source.mtime, &decided.dest) {
                (Some(source), Some(EntryState { mtime: Some(dest), .. })) => format!(
                    "the destination's file is newer (--update): {} at the source, {} at the destination",
                    time_words(source),
                    time_words(*dest)
                ),
                _ => "the destination's file is newer (--update)".to_owned(),
            },
            Reason::TooLarge => format!(
                "{len} bytes are more than --max-size={}",
                bytes(select.max_size_bytes)
            ),
            Reason::TooSmall => format!(
                "{len} bytes are less than --min-size={}",
                bytes(select.min_size_bytes)
            ),
            Reason::NonRegular => match decided.source.kind {
                Kind::Symlink => "a symlink, and neither --links nor --copy-links is given".to_owned(),
                Kind::Device => {
                    "a device: --devices is not given, or the receiver may not create it".to_owned()
                }
                Kind::Special | Kind::File | Kind::Dir => {
                    "a special file, and --specials is not given".to_owned()
                }
            },
            Reason::UnsafeLink => "a symlink that leads out of the transfer (--safe-links)".to_owned(),
            Reason::Forbidden => "the daemon does not permit it".to_owned(),
            Reason::NothingToAppend => {
                "the destination's file is at least as long (--append)".to_owned()
            }
            Reason::InTheWay => "its name is taken by a directory that must not be deleted".to_owned(),
            Reason::Unknown => "the destination's entry cannot be examined".to_owned(),
            Reason::NotPlanned => "it is not in the plan".to_owned(),
        }
        .into_bytes()
    }
}

/// Returns the directories above a path, but for the root, the first one first.
fn dirs_above(path: &RelPath) -> Vec<RelPath> {
    let mut above: Vec<RelPath> = std::iter::successors(path.parent(), RelPath::parent)
        .filter(|dir| !dir.is_root())
        .collect();
    above.reverse();
    above
}

fn kind_words(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "a file",
        Kind::Dir => "a directory",
        Kind::Symlink => "a symlink",
        Kind::Device => "a device",
        Kind::Special => "a special file",
    }
}

fn time_words(time: Time) -> String {
    let mut out = Vec::new();
    LocalTimes::local().put(&mut out, time.secs, b' ');
    let mut words = String::from_utf8_lossy(&out).into_owned();
    if time.nanos != 0 {
        words.push_str(&format!(".{:09}", time.nanos));
    }
    words
}

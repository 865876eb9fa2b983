//! `--json`: one JSON object per line for each event of a run. docs/json-schema.json describes them.

use super::comparison::CheckCounts;
use super::escape;
use super::event::{Event, Item, Problem, Update, Weight};
use super::itemize::{DELETING, itemize};
use super::progress::ListTotal;
use super::tally::{Kinds, Tally, Traffic};
use crate::exit::Exit;
use crate::flist::Kind;
use crate::plan::changes::Changes;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use std::borrow::Cow;
use std::time::Duration;

/// One line. The field `type` names the variant.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Line<'a> {
    /// An entry was changed, or would be in a dry run. A file has its content; one that failed has only a problem.
    #[serde(skip_serializing)]
    Change(&'a Item),
    /// An entry of `--list-only`.
    #[serde(skip_serializing)]
    Entry(&'a Item),
    /// An extra entry was deleted, or would be in a dry run.
    Delete(DeleteLine<'a>),
    /// A file has taken the content of another file of the destination or of an alternate tree, or would in a dry run.
    Reused(ReusedLine<'a>),
    /// A text for the user.
    Note(NoteLine<'a>),
    /// A problem, also printed on stderr.
    Problem(Box<ProblemLine<'a>>),
    /// A file of the source was changed while it was read.
    SourceChanged(SourceChangedLine<'a>),
    /// The progress of a file or of the run.
    Progress(ProgressLine<'a>),
    /// The counts of a run that reached its end.
    Summary(Box<SummaryLine>),
    /// The last line.
    End(EndLine<'a>),
    /// A check of `sparsync doctor`.
    Check(CheckLine<'a>),
    /// A row of `sparsync bench`.
    Bench(&'a BenchLine),
    /// A file of `sparsync hash`.
    Digest(DigestLine<'a>),
    /// An entry that `sparsync check` compared.
    Compared(ComparedLine<'a>),
    /// The counts of `sparsync check`.
    Comparison(ComparisonLine),
    /// A file that `sparsync cache verify` found to have another content than its digest.
    Damaged(DamagedLine<'a>),
    /// The counts of `sparsync cache verify`.
    Verification(VerifiedCounts),
}

/// A path or another byte string.
#[derive(Serialize)]
pub(super) struct JsonText<'a> {
    /// The path; bytes that are not UTF-8 are replaced by U+FFFD.
    pub(super) path: Cow<'a, str>,
    /// All bytes in base64, if some are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) path_base64: Option<String>,
}

impl<'a> JsonText<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> JsonText<'a> {
        match std::str::from_utf8(bytes) {
            Ok(path) => JsonText {
                path: path.into(),
                path_base64: None,
            },
            Err(_) => JsonText {
                path: String::from_utf8_lossy(bytes),
                path_base64: Some(STANDARD.encode(bytes)),
            },
        }
    }
}

/// See [`Line::Delete`].
#[derive(Serialize)]
pub struct DeleteLine<'a> {
    #[serde(flatten)]
    path: JsonText<'a>,
    kind: &'static str,
    itemize: String,
}

/// See [`Line::Reused`].
#[derive(Serialize)]
pub struct ReusedLine<'a> {
    #[serde(flatten)]
    path: JsonText<'a>,
    from: JsonText<'a>,
    size_bytes: u64,
    /// `renamed`, `linked` or `copied`.
    how: &'static str,
}

/// See [`Line::Note`].
#[derive(Serialize)]
pub struct NoteLine<'a> {
    text: Cow<'a, str>,
}

/// See [`Line::Problem`].
#[derive(Serialize)]
pub struct ProblemLine<'a> {
    severity: &'static str,
    /// The line that stderr shows.
    message: Cow<'a, str>,
    /// The path that the message names.
    #[serde(flatten)]
    path: Option<JsonText<'a>>,
    /// The number of the system's error.
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<i32>,
}

/// See [`Line::SourceChanged`].
#[derive(Serialize)]
pub struct SourceChangedLine<'a> {
    #[serde(flatten)]
    path: JsonText<'a>,
}

/// See [`Line::Progress`].
#[derive(Serialize)]
pub struct ProgressLine<'a> {
    /// The file; absent under `--info=progress2`, which counts the run.
    #[serde(flatten)]
    path: Option<JsonText<'a>>,
    done_bytes: u64,
    /// The length of the file, or of all files found so far.
    total_bytes: u64,
    entries_checked: u64,
    entries_listed: u64,
    /// Whether all entries were found.
    list_is_complete: bool,
}

/// See [`Line::Summary`].
#[derive(Serialize)]
pub struct SummaryLine {
    dry_run: bool,
    listed: KindCounts,
    created: KindCounts,
    deleted: KindCounts,
    transferred_files: u64,
    total_bytes: u64,
    transferred_bytes: u64,
    /// Problems that make the exit code 23.
    errors: u64,
    /// Files of the source that were changed while they were read.
    changed_sources: u64,
    /// Files that took the content of other files of the destination.
    reused_files: u64,
    reused_bytes: u64,
    /// Files that were read back and are as they were sent.
    verified_files: u64,
    verified_bytes: u64,
    literal_bytes: u64,
    matched_bytes: u64,
    sent_bytes: u64,
    received_bytes: u64,
    elapsed_secs: f64,
}

#[derive(Serialize)]
struct KindCounts {
    files: u64,
    dirs: u64,
    symlinks: u64,
    devices: u64,
    specials: u64,
}

impl From<&Kinds> for KindCounts {
    fn from(
        &Kinds {
            files,
            dirs,
            symlinks,
            devices,
            specials,
        }: &Kinds,
    ) -> KindCounts {
        KindCounts {
            files,
            dirs,
            symlinks,
            devices,
            specials,
        }
    }
}

/// See [`Line::End`].
#[derive(Serialize)]
pub struct EndLine<'a> {
    exit_code: u8,
    /// The line that stderr shows. Absent if the exit code is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Cow<'a, str>>,
}

/// See [`Line::Check`].
#[derive(Serialize)]
pub struct CheckLine<'a> {
    /// What was checked.
    pub name: &'static str,
    /// `ok`, `warn` or `fail`.
    pub state: &'static str,
    /// The finding.
    pub finding: &'a str,
    /// The next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<&'a str>,
}

/// See [`Line::Bench`].
#[derive(Serialize)]
pub struct BenchLine {
    /// `scan`, `sync` or `hash`.
    pub action: &'static str,
    /// The shape of the tree, if it was created for the measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<&'static str>,
    /// The hash function of `hash`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<&'static str>,
    /// `warm` or `cold`.
    pub cache: &'static str,
    /// The number of worker threads.
    pub workers: usize,
    /// How many runs were measured.
    pub runs: usize,
    /// The entries of the tree; its files, if they are hashed.
    pub entries: u64,
    /// The bytes that a run copied or hashed.
    pub bytes: u64,
    /// The time of the median run.
    pub median_secs: f64,
    /// The time of the fastest run.
    pub least_secs: f64,
    /// The time of the slowest run.
    pub most_secs: f64,
    /// The mean processor time of a run in the program.
    pub user_secs: f64,
    /// The mean processor time of a run in the kernel.
    pub system_secs: f64,
    /// `processor`, `metadata`, `storage`, `network` or `unknown`.
    pub bound_by: &'static str,
}

/// See [`Line::Compared`].
#[derive(Serialize)]
pub struct ComparedLine<'a> {
    #[serde(flatten)]
    path: JsonText<'a>,
    result: &'static str,
    /// Absent if the tree was compared with a manifest, which has only files.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    /// The columns of `-i`, in the same case.
    #[serde(skip_serializing_if = "Option::is_none")]
    itemize: Option<String>,
}

/// See [`Line::Comparison`].
#[derive(Serialize)]
pub struct ComparisonLine {
    equal: u64,
    differ: u64,
    source_only: u64,
    dest_only: u64,
    unreadable: u64,
}

/// See [`Line::Damaged`].
#[derive(Serialize)]
pub struct DamagedLine<'a> {
    #[serde(flatten)]
    path: JsonText<'a>,
}

/// How many files `cache verify` found in which state. See [`Line::Verification`].
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct VerifiedCounts {
    /// They have the contents of their digests.
    pub intact: u64,
    /// They have other contents, although they seem to be the same versions.
    pub damaged: u64,
    /// No digest of their versions is stored.
    #[serde(rename = "without_digest")]
    pub unknown: u64,
    /// They cannot be read.
    pub unreadable: u64,
}

/// See [`Line::Digest`].
#[derive(Serialize)]
pub struct DigestLine<'a> {
    #[serde(flatten)]
    path: JsonText<'a>,
    size_bytes: u64,
    algorithm: &'static str,
    /// In hexadecimal digits.
    digest: String,
}

/// Returns the line of an event that needs no context; `None` for the others.
pub fn event(event: &Event) -> Option<Line<'_>> {
    match event {
        Event::Deleted {
            name,
            kind,
            mode: _,
        } => {
            let itemize = String::from_utf8_lossy(DELETING).into_owned();
            Some(Line::Delete(DeleteLine {
                path: JsonText::new(name),
                kind: kind_name(*kind),
                itemize,
            }))
        }
        Event::Reused {
            from,
            name,
            len_bytes,
            how,
        } => Some(Line::Reused(ReusedLine {
            path: JsonText::new(name),
            from: JsonText::new(from),
            size_bytes: *len_bytes,
            how: how.word(),
        })),
        Event::Note(line) => Some(note(line)),
        // A peer has printed the text of an empty one.
        Event::Problem(Problem { line, weight, .. }) if !line.is_empty() => {
            Some(problem(line, *weight))
        }
        Event::SourceChanged(name) => Some(Line::SourceChanged(SourceChangedLine {
            path: JsonText::new(name),
        })),
        Event::Problem(_)
        | Event::Item(_)
        | Event::Missing(_)
        | Event::Listed { .. }
        | Event::Checked(_)
        | Event::Begin(_)
        | Event::Verified { .. }
        | Event::Planned(_)
        | Event::Explained(_)
        | Event::Progress { .. } => None,
    }
}

/// Appends the line of `sparsync explain` about a path. `reasons`: the end, and the text.
pub fn put_explanation<'a>(
    out: &mut Vec<u8>,
    path: &[u8],
    verdict: &str,
    reasons: impl Iterator<Item = (&'static str, &'a [u8])>,
) {
    let reasons = reasons.map(|(end, text)| ReasonObject {
        end,
        text: String::from_utf8_lossy(text).into_owned(),
    });
    let line = ExplanationLine {
        r#type: "explanation",
        path: JsonText::new(path),
        verdict,
        reasons: reasons.collect(),
    };
    put_plain(out, &line);
}

#[derive(Serialize)]
struct ExplanationLine<'a> {
    r#type: &'static str,
    #[serde(flatten)]
    path: JsonText<'a>,
    verdict: &'a str,
    reasons: Vec<ReasonObject>,
}

#[derive(Serialize)]
struct ReasonObject {
    end: &'static str,
    text: String,
}

/// Appends a line.
pub fn put(out: &mut Vec<u8>, line: &Line<'_>) {
    Parts::default().put(out, line);
}

/// The parts of an entry's line that most entries of a run have in common. There can be a line for each entry of a tree, so
/// they are kept for the next one.
#[derive(Default)]
pub struct Parts {
    of: Option<(Kind, u32, Update, Changes)>,
    /// From the kind to the length.
    kind_and_mode: Vec<u8>,
    /// The columns of `-i`, how the entry was updated, and what differed.
    outcome: Vec<u8>,
}

impl Parts {
    /// Appends a line.
    pub fn put(&mut self, out: &mut Vec<u8>, line: &Line<'_>) {
        let start = out.len();
        match line {
            Line::Change(item) => {
                self.put_entry(out, b"{\"type\":\"change\",\"path\":", item);
                out.extend_from_slice(&self.outcome);
                if let Some(name) = &item.linked_to {
                    out.extend_from_slice(b",\"linked_to\":");
                    put_value(out, JsonText::new(name));
                }
                out.push(b'}');
            }
            Line::Entry(item) => {
                self.put_entry(out, b"{\"type\":\"entry\",\"path\":", item);
                out.push(b'}');
            }
            other => put_value(out, other),
        }
        escape_controls(out, start);
        out.push(b'\n');
    }

    /// Appends the fields of an entry. Deriving them costs three times as much.
    fn put_entry(&mut self, out: &mut Vec<u8>, start: &[u8], item: &Item) {
        let of = (item.kind, item.mode, item.update, item.changes);
        if self.of != Some(of) {
            self.set(item);
            self.of = Some(of);
        }
        out.extend_from_slice(start);
        if escape::is_plain(&item.name, b'"') {
            out.push(b'"');
            out.extend_from_slice(&item.name);
            out.push(b'"');
        } else {
            let JsonText { path, path_base64 } = JsonText::new(&item.name);
            put_value(out, path);
            if let Some(bytes) = path_base64 {
                put_words(out, [",\"path_base64\":\"", &bytes, "\""]);
            }
        }
        out.extend_from_slice(&self.kind_and_mode);
        put_value(out, item.len_bytes);
        out.extend_from_slice(b",\"mtime_secs\":");
        put_value(out, item.mtime.secs);
        out.extend_from_slice(b",\"mtime_nanos\":");
        put_value(out, item.mtime.nanos);
        if let Some(target) = &item.target {
            out.extend_from_slice(b",\"target\":");
            put_value(out, JsonText::new(target));
        }
    }

    fn set(&mut self, item: &Item) {
        self.kind_and_mode.clear();
        put_words(
            &mut self.kind_and_mode,
            [",\"kind\":\"", kind_name(item.kind), "\",\"mode\":\""],
        );
        // In octal, without the file type.
        self.kind_and_mode
            .extend([9, 6, 3, 0].map(|shift| b'0' + (item.mode >> shift & 7) as u8));
        put_words(&mut self.kind_and_mode, ["\",\"size_bytes\":"]);
        let update = match item.update {
            Update::Received => "received",
            Update::Sent => "sent",
            Update::Local => "local",
            Update::HardLink => "hard_link",
            Update::Attrs => "attributes",
        };
        let is_new = if item.changes.has(Changes::NEW) {
            "true"
        } else {
            "false"
        };
        self.outcome.clear();
        put_words(&mut self.outcome, [",\"itemize\":\""]);
        self.outcome
            .extend_from_slice(&itemize(item.update, item.kind, item.changes));
        put_words(
            &mut self.outcome,
            [
                "\",\"update\":\"",
                update,
                "\",\"is_new\":",
                is_new,
                ",\"changes\":[",
            ],
        );
        for (at, shown) in item.changes.shown().enumerate() {
            put_words(
                &mut self.outcome,
                [if at == 0 { "\"" } else { ",\"" }, shown.name, "\""],
            );
        }
        self.outcome.push(b']');
    }
}

fn put_value(out: &mut Vec<u8>, value: impl Serialize) {
    // Writing to a vector does not fail, and no object has a key that is not a string.
    let _ = serde_json::to_writer(out, &value);
}

/// Appends an object and a newline.
pub(super) fn put_plain(out: &mut Vec<u8>, value: &impl Serialize) {
    let start = out.len();
    put_value(out, value);
    escape_controls(out, start);
    out.push(b'\n');
}

/// Encodes a value as an object on one line.
pub fn text_of(value: &impl Serialize) -> serde_json::Result<String> {
    let mut text = serde_json::to_vec(value)?;
    escape_controls(&mut text, 0);
    // Only ASCII characters were added.
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Escapes DEL and the controls U+0080 to U+009F from a position on, which JSON permits in strings and terminals obey.
fn escape_controls(out: &mut Vec<u8>, start: usize) {
    let is_control = |pair: &[u8]| pair[0] == 0x7f || pair[0] == 0xc2 && pair[1] < 0xa0;
    // The last byte of an object is a brace.
    if !out[start..].windows(2).any(is_control) {
        return;
    }
    let text = String::from_utf8_lossy(&out[start..]).into_owned();
    out.truncate(start);
    for c in text.chars() {
        match c {
            '\u{7f}'..='\u{9f}' => out.extend_from_slice(format!("\\u{:04x}", c as u32).as_bytes()),
            c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

fn put_words<const N: usize>(out: &mut Vec<u8>, words: [&str; N]) {
    for word in words {
        out.extend_from_slice(word.as_bytes());
    }
}

/// Returns the line of a text for the user.
pub fn note(text: &[u8]) -> Line<'_> {
    Line::Note(NoteLine {
        text: String::from_utf8_lossy(text),
    })
}

/// Returns the line of a problem. The path and the error number come from rsync's form of the message,
/// `rsync: [sender] link_stat "/x" failed: No such file or directory (2)`.
pub fn problem(line: &[u8], weight: Weight) -> Line<'_> {
    let severity = match weight {
        Weight::SourceError | Weight::Failed => "error",
        Weight::Vanished => "vanished",
        Weight::Warning => "warning",
    };
    let quotes = || {
        line.iter()
            .position(|&b| b == b'"')
            .zip(line.iter().rposition(|&b| b == b'"'))
    };
    let path = quotes()
        .filter(|(first, last)| first < last)
        .map(|(first, last)| &line[first + 1..last]);
    // A message about two paths is about the first one.
    let path = path.map(|path| {
        path.windows(6)
            .position(|part| part == b"\" -> \"")
            .map_or(path, |end| &path[..end])
    });
    let number = line
        .strip_suffix(b")")
        .and_then(|line| line.rsplit(|&b| b == b'(').next());
    let errno = number.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok());
    let message = String::from_utf8_lossy(line);
    Line::Problem(Box::new(ProblemLine {
        severity,
        message,
        path: path.map(JsonText::new),
        errno,
    }))
}

/// Returns the line of a transfer's progress. `name`: the file, or `None` for the whole run.
pub fn progress(
    name: Option<&[u8]>,
    (done_bytes, total_bytes): (u64, u64),
    checked: u64,
    list: ListTotal,
) -> Line<'_> {
    Line::Progress(ProgressLine {
        path: name.map(JsonText::new),
        done_bytes,
        total_bytes,
        entries_checked: checked,
        entries_listed: list.entries,
        list_is_complete: list.complete,
    })
}

/// What a reporter counts itself, because the tally does not have it.
#[derive(Debug, Clone, Copy, Default)]
pub struct EventCounts {
    /// Files of the source that were changed while they were read.
    pub changed_sources: u64,
    /// Files that have taken the content of others, and their bytes.
    pub reused: (u64, u64),
    /// Files that were read back and are as they were sent, and how many bytes of them (`--verify`).
    pub verified: (u64, u64),
}

/// Returns the line of a run's counts.
pub fn summary(
    tally: &Tally,
    traffic: Traffic,
    elapsed: Duration,
    dry_run: bool,
    counts: EventCounts,
) -> Line<'static> {
    Line::Summary(Box::new(SummaryLine {
        dry_run,
        listed: (&tally.listed).into(),
        created: (&tally.present()).into(),
        deleted: (&tally.deleted).into(),
        transferred_files: tally.copied().0,
        total_bytes: tally.total_bytes,
        transferred_bytes: tally.copied().1,
        errors: tally.errors(),
        changed_sources: counts.changed_sources,
        reused_files: counts.reused.0,
        reused_bytes: counts.reused.1,
        verified_files: counts.verified.0,
        verified_bytes: counts.verified.1,
        literal_bytes: tally.literal_bytes,
        matched_bytes: tally.matched_bytes,
        sent_bytes: traffic.sent_bytes,
        received_bytes: traffic.received_bytes,
        elapsed_secs: elapsed.as_secs_f64(),
    }))
}

/// Returns the line of a file in a manifest.
pub fn digest<'a>(
    path: &'a [u8],
    size_bytes: u64,
    algorithm: &'static str,
    digest: &[u8],
) -> Line<'a> {
    Line::Digest(DigestLine {
        path: JsonText::new(path),
        size_bytes,
        algorithm,
        digest: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
    })
}

/// Returns the line of a file that was compared with a manifest. `result`: the name of the finding.
pub fn compared<'a>(path: &'a [u8], result: &'static str) -> Line<'a> {
    Line::Compared(ComparedLine {
        path: JsonText::new(path),
        result,
        kind: None,
        itemize: None,
    })
}

/// Returns the line of an entry that was compared; `None` for other events. `result`: the name of the finding.
pub fn compared_entry<'a>(event: &'a Event, result: &'static str) -> Option<Line<'a>> {
    let (path, kind, columns) = match event {
        Event::Item(item) => {
            let columns = itemize(item.update, item.kind, item.changes).to_vec();
            (&item.name, item.kind, columns)
        }
        Event::Deleted { name, kind, .. } => (name, *kind, DELETING.to_vec()),
        _ => return None,
    };
    Some(Line::Compared(ComparedLine {
        path: JsonText::new(path),
        result,
        kind: Some(kind_name(kind)),
        itemize: Some(String::from_utf8_lossy(&columns).into_owned()),
    }))
}

/// Returns the line of a file that a disk has changed.
pub fn damaged(path: &[u8]) -> Line<'_> {
    Line::Damaged(DamagedLine {
        path: JsonText::new(path),
    })
}

/// Returns the line of the counts of `cache verify`.
pub fn verification(counts: VerifiedCounts) -> Line<'static> {
    Line::Verification(counts)
}

/// Returns the line of the counts of a comparison.
pub fn comparison(counts: &CheckCounts) -> Line<'static> {
    let CheckCounts {
        equal,
        differ,
        source_only,
        dest_only,
        unreadable,
    } = *counts;
    Line::Comparison(ComparisonLine {
        equal,
        differ,
        source_only,
        dest_only,
        unreadable,
    })
}

/// Returns the last line. `message` is empty if the run succeeded.
pub fn end(exit: Exit, message: &[u8]) -> Line<'_> {
    let message = (!message.is_empty()).then(|| String::from_utf8_lossy(message));
    Line::End(EndLine {
        exit_code: exit.code(),
        message,
    })
}

/// Returns the name of a kind of entry.
pub(super) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Dir => "dir",
        Kind::Symlink => "symlink",
        Kind::Device => "device",
        Kind::Special => "special",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flist::Time;
    use crate::report::format::tests::item;

    fn shown(line: &Line<'_>) -> String {
        serde_json::to_string(line).expect("a line has no map with other keys than strings")
    }

    #[test]
    fn problem_shows_the_path_and_the_error_number() {
        let line = b"rsync: [sender] link_stat \"/a \"b\"\" failed: No such file or directory (2)";
        let text = shown(&problem(line, Weight::SourceError));
        assert!(text.contains(r#""severity":"error""#), "{text}");
        assert!(text.contains(r#""path":"/a \"b\"","errno":2}"#), "{text}");
        let text = shown(&problem(
            b"rsync: [receiver] rename \"/a\" -> \"b\": Is a directory (21)",
            Weight::Failed,
        ));
        assert!(text.contains(r#""path":"/a","errno":21}"#), "{text}");
        for line in [
            &b"file has vanished: \""[..],
            b"(x)",
            b"",
            b"\"\" (99999999999)",
        ] {
            let text = shown(&problem(line, Weight::Vanished));
            assert!(!text.contains("errno"), "{text}");
        }
    }

    #[test]
    fn lines_of_entries_are_json() {
        let mut item = Item {
            name: b"a\"\xff\n".to_vec(),
            update: Update::Received,
            mode: 0o104_751,
            len_bytes: u64::MAX,
            mtime: Time { secs: -1, nanos: 5 },
            changes: Changes::NEW | Changes::SIZE | Changes::TIME,
            linked_to: Some(b"b\\".to_vec()),
            ..item("")
        };
        let mut out = Vec::new();
        put(&mut out, &Line::Change(&item));
        let fields = r#""path":"a\"\ufffd\n","path_base64":"YSL/Cg==","kind":"file","mode":"4751","size_bytes":18446744073709551615,"mtime_secs":-1,"mtime_nanos":5"#;
        let fields = fields.replace("\\ufffd", "\u{fffd}");
        let rest = r#""itemize":">f+++++++++","update":"received","is_new":true,"changes":["size","mtime"],"linked_to":{"path":"b\\"}"#;
        assert_eq!(
            String::from_utf8(out).unwrap(),
            format!("{{\"type\":\"change\",{fields},{rest}}}\n")
        );
        item.target = Some(b"b".to_vec());
        let mut out = Vec::new();
        put(&mut out, &Line::Entry(&item));
        let target = r#""target":{"path":"b"}"#;
        assert_eq!(
            String::from_utf8(out).unwrap(),
            format!("{{\"type\":\"entry\",{fields},{target}}}\n")
        );

        // What is kept for the next line is not used for a different entry.
        let others = [
            Item {
                kind: Kind::Dir,
                ..item.clone()
            },
            Item {
                mode: 0,
                ..item.clone()
            },
            Item {
                update: Update::Sent,
                ..item.clone()
            },
            Item {
                changes: Changes::SIZE,
                ..item.clone()
            },
        ];
        let (mut parts, mut kept, mut out) = (Parts::default(), Vec::new(), Vec::new());
        for line in others
            .iter()
            .flat_map(|other| [&item, other, other])
            .map(Line::Change)
        {
            parts.put(&mut kept, &line);
            put(&mut out, &line);
        }
        assert_eq!(kept, out);
    }

    #[test]
    fn paths_that_are_not_utf8_have_their_bytes_in_base64() {
        let text = |name: &[u8]| {
            shown(
                &event(&Event::Deleted {
                    name: name.to_vec(),
                    kind: Kind::File,
                    mode: 0,
                })
                .expect("deletions have one"),
            )
        };
        assert!(text(b"a\xff").contains("\"path\":\"a\u{fffd}\",\"path_base64\":\"Yf8=\""));
        assert!(!text("é".as_bytes()).contains("base64"));
    }
}

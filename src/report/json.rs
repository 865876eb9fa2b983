//! `--json`: one JSON object per line for each event of a run. docs/json-schema.json describes them.

use super::event::{Event, Item, Problem, Update, Weight};
use super::itemize::{DELETING, itemize};
use super::progress::ListTotal;
use super::tally::{Kinds, Tally};
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
    /// An entry was changed, or would be in a dry run.
    Change(Box<ChangeLine<'a>>),
    /// An entry of `--list-only`.
    Entry(Box<EntryLine<'a>>),
    /// An extra entry was deleted, or would be in a dry run.
    Delete(DeleteLine<'a>),
    /// A text for the user.
    Note(NoteLine<'a>),
    /// A problem, also printed on stderr.
    Problem(Box<ProblemLine<'a>>),
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
}

/// A path or another byte string.
#[derive(Serialize)]
struct Text<'a> {
    /// The path; bytes that are not UTF-8 are replaced by U+FFFD.
    path: Cow<'a, str>,
    /// All bytes in base64, if some are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
}

impl<'a> Text<'a> {
    fn new(bytes: &'a [u8]) -> Text<'a> {
        let path = String::from_utf8_lossy(bytes);
        let path_base64 = matches!(path, Cow::Owned(_)).then(|| STANDARD.encode(bytes));
        Text { path, path_base64 }
    }
}

/// See [`Line::Entry`].
#[derive(Serialize)]
pub struct EntryLine<'a> {
    #[serde(flatten)]
    path: Text<'a>,
    kind: &'static str,
    /// In octal, without the file type.
    mode: String,
    size_bytes: u64,
    mtime_secs: i64,
    mtime_nanos: u32,
    /// The target of a symlink.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Text<'a>>,
}

impl<'a> EntryLine<'a> {
    fn new(item: &'a Item) -> EntryLine<'a> {
        EntryLine {
            path: Text::new(&item.name),
            kind: kind_name(item.kind),
            mode: format!("{:04o}", item.mode & 0o7777),
            size_bytes: item.len_bytes,
            mtime_secs: item.mtime.secs,
            mtime_nanos: item.mtime.nanos,
            target: item.target.as_deref().map(Text::new),
        }
    }
}

/// See [`Line::Change`].
#[derive(Serialize)]
pub struct ChangeLine<'a> {
    #[serde(flatten)]
    entry: EntryLine<'a>,
    /// The columns of `-i`.
    itemize: String,
    update: &'static str,
    is_new: bool,
    /// What differed.
    changes: Vec<&'static str>,
    /// The name that the entry was linked to.
    #[serde(skip_serializing_if = "Option::is_none")]
    linked_to: Option<Text<'a>>,
}

/// See [`Line::Delete`].
#[derive(Serialize)]
pub struct DeleteLine<'a> {
    #[serde(flatten)]
    path: Text<'a>,
    kind: &'static str,
    itemize: String,
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
    path: Option<Text<'a>>,
    /// The number of the system's error.
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<i32>,
}

/// See [`Line::Progress`].
#[derive(Serialize)]
pub struct ProgressLine<'a> {
    /// The file; absent under `--info=progress2`, which counts the run.
    #[serde(flatten)]
    path: Option<Text<'a>>,
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
    fn from(&Kinds { files, dirs, symlinks, devices, specials }: &Kinds) -> KindCounts {
        KindCounts { files, dirs, symlinks, devices, specials }
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
    /// `scan` or `sync`.
    pub action: &'static str,
    /// `warm` or `cold`.
    pub cache: &'static str,
    /// The number of worker threads.
    pub workers: usize,
    /// How many runs were measured.
    pub runs: usize,
    /// The entries of the tree.
    pub entries: u64,
    /// The bytes that a run copied.
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

/// Returns the line of an event that needs no context; `None` for the others.
pub fn event(event: &Event) -> Option<Line<'_>> {
    match event {
        Event::Deleted { name, kind, mode: _ } => {
            let itemize = String::from_utf8_lossy(DELETING).into_owned();
            Some(Line::Delete(DeleteLine { path: Text::new(name), kind: kind_name(*kind), itemize }))
        }
        Event::Note(line) => Some(note(line)),
        // A peer has printed the text of an empty one.
        Event::Problem(Problem { line, weight }) if !line.is_empty() => Some(problem(line, *weight)),
        Event::Problem(_)
        | Event::Item(_)
        | Event::Missing(_)
        | Event::Listed { .. }
        | Event::Checked(_)
        | Event::Begin(_)
        | Event::Progress { .. } => None,
    }
}

/// Appends a line.
pub fn put(out: &mut Vec<u8>, line: &Line<'_>) {
    // Writing to a vector does not fail, and no object has a key that is not a string.
    if serde_json::to_writer(&mut *out, line).is_ok() {
        out.push(b'\n');
    }
}

/// Returns the line of a text for the user.
pub fn note(text: &[u8]) -> Line<'_> {
    Line::Note(NoteLine { text: String::from_utf8_lossy(text) })
}

/// Returns the line of a changed entry.
pub fn change(item: &Item) -> Line<'_> {
    let update = match item.update {
        Update::Received => "received",
        Update::Sent => "sent",
        Update::Local => "local",
        Update::HardLink => "hard_link",
        Update::Attrs => "attributes",
    };
    Line::Change(Box::new(ChangeLine {
        entry: EntryLine::new(item),
        itemize: String::from_utf8_lossy(&itemize(item.update, item.kind, item.changes)).into_owned(),
        update,
        is_new: item.changes.has(Changes::NEW),
        changes: item.changes.shown().map(|shown| shown.name).collect(),
        linked_to: item.linked_to.as_deref().map(Text::new),
    }))
}

/// Returns the line of a listed entry.
pub fn entry(item: &Item) -> Line<'_> {
    Line::Entry(Box::new(EntryLine::new(item)))
}

/// Returns the line of a problem. The path and the error number come from rsync's form of the message,
/// `rsync: [sender] link_stat "/x" failed: No such file or directory (2)`.
pub fn problem(line: &[u8], weight: Weight) -> Line<'_> {
    let severity = match weight {
        Weight::SourceError | Weight::Failed => "error",
        Weight::Vanished => "vanished",
        Weight::Warning => "warning",
    };
    let quotes = || line.iter().position(|&b| b == b'"').zip(line.iter().rposition(|&b| b == b'"'));
    let path = quotes().filter(|(first, last)| first < last).map(|(first, last)| &line[first + 1..last]);
    // A message about two paths is about the first one.
    let path = path.map(|path| path.windows(6).position(|part| part == b"\" -> \"").map_or(path, |end| &path[..end]));
    let number = line.strip_suffix(b")").and_then(|line| line.rsplit(|&b| b == b'(').next());
    let errno = number.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok());
    let message = String::from_utf8_lossy(line);
    Line::Problem(Box::new(ProblemLine { severity, message, path: path.map(Text::new), errno }))
}

/// Returns the line of a transfer's progress. `name`: the file, or `None` for the whole run.
pub fn progress(name: Option<&[u8]>, (done_bytes, total_bytes): (u64, u64), checked: u64, list: ListTotal) -> Line<'_> {
    Line::Progress(ProgressLine {
        path: name.map(Text::new),
        done_bytes,
        total_bytes,
        entries_checked: checked,
        entries_listed: list.entries,
        list_is_complete: list.complete,
    })
}

/// Returns the line of a run's counts. `traffic`: bytes sent and received.
pub fn summary(
    tally: &Tally,
    (sent_bytes, received_bytes): (u64, u64),
    elapsed: Duration,
    dry_run: bool,
) -> Line<'static> {
    Line::Summary(Box::new(SummaryLine {
        dry_run,
        listed: (&tally.listed).into(),
        created: (&tally.created).into(),
        deleted: (&tally.deleted).into(),
        transferred_files: tally.transferred,
        total_bytes: tally.total_bytes,
        transferred_bytes: tally.transferred_bytes,
        literal_bytes: tally.literal_bytes,
        matched_bytes: tally.matched_bytes,
        sent_bytes,
        received_bytes,
        elapsed_secs: elapsed.as_secs_f64(),
    }))
}

/// Returns the last line. `message` is empty if the run succeeded.
pub fn end(exit: Exit, message: &[u8]) -> Line<'_> {
    let message = (!message.is_empty()).then(|| String::from_utf8_lossy(message));
    Line::End(EndLine { exit_code: exit.code(), message })
}

fn kind_name(kind: Kind) -> &'static str {
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

    fn shown(line: &Line<'_>) -> String {
        serde_json::to_string(line).expect("a line has no map with other keys than strings")
    }

    #[test]
    fn problem_shows_the_path_and_the_error_number() {
        let line = b"rsync: [sender] link_stat \"/a \"b\"\" failed: No such file or directory (2)";
        let text = shown(&problem(line, Weight::SourceError));
        assert!(text.contains(r#""severity":"error""#), "{text}");
        assert!(text.contains(r#""path":"/a \"b\"","errno":2}"#), "{text}");
        let text = shown(&problem(b"rsync: [receiver] rename \"/a\" -> \"b\": Is a directory (21)", Weight::Failed));
        assert!(text.contains(r#""path":"/a","errno":21}"#), "{text}");
        for line in [&b"file has vanished: \""[..], b"(x)", b"", b"\"\" (99999999999)"] {
            let text = shown(&problem(line, Weight::Vanished));
            assert!(!text.contains("errno"), "{text}");
        }
    }

    #[test]
    fn paths_that_are_not_utf8_have_their_bytes_in_base64() {
        let text = |name: &[u8]| {
            shown(
                &event(&Event::Deleted { name: name.to_vec(), kind: Kind::File, mode: 0 }).expect("deletions have one"),
            )
        };
        assert!(text(b"a\xff").contains("\"path\":\"a\u{fffd}\",\"path_base64\":\"Yf8=\""));
        assert!(!text("é".as_bytes()).contains("base64"));
    }
}

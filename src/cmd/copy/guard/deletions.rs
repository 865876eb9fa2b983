//! Counts what a run would delete: runs this program once more, as a dry run with `--json`, and reads its output.
//!
//! A process of its own, because a run leaves state behind in its process, such as signal handlers, the character set and
//! the user of `--copy-as`. It is a run like any other, so the count holds for every route, and also if rsync is at the
//! other end.

use crate::cli::Copy;
use crate::cmd::dir_counts::{self, DirCounts};
use crate::cmd::input_files;
use crate::env::{self, Env};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::report::event::errno_words;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};

/// The first argument of the process that counts. It is no option, and no other program passes it.
pub const COUNT_DELETIONS: &str = "--count-deletions";

/// The options of the process that counts, which take effect after those of the user.
pub const COUNTING: [&str; 5] = [
    "--dry-run",
    "--json",
    "--no-delete-guard",
    "--no-fail-if-empty",
    "--no-lock",
];

/// The maximum length of the messages of the other process that are kept.
const MESSAGES_MAX_BYTES: u64 = 64 << 10;

/// The counts of a dry run.
#[derive(Debug, Default)]
pub struct Counted {
    /// The entries of the source that take part, with the root.
    listed: u64,
    /// Those that the destination lacks.
    created: u64,
    /// The entries that the run would delete.
    pub deleted: u64,
    /// How many of them are in each directory of the destination's root.
    by_dir: DirCounts,
}

impl Counted {
    /// Returns how many entries the compared directories of the destination have.
    pub fn dest_entries(&self) -> u64 {
        self.listed.saturating_sub(self.created) + self.deleted
    }

    /// As [`Self::dest_entries`], for a destination that has the root of an empty source.
    pub fn entries_below_dest(&self) -> u64 {
        self.dest_entries().saturating_sub(1)
    }

    /// Returns whether the list of the source consists of nothing but a root. The source may have more, which options leave
    /// out.
    pub fn list_is_empty(&self) -> bool {
        self.listed <= 1
    }

    /// Returns the directories with the most deletions.
    pub fn largest(&self) -> Vec<(&[u8], u64)> {
        self.by_dir.largest()
    }

    fn delete(&mut self, path: &str) {
        let dir = match path.split_once('/') {
            Some((dir, _)) => dir.as_bytes(),
            None => dir_counts::ROOT,
        };
        self.by_dir.add(dir, 1);
    }
}

/// A line of `--json`; docs/json-schema.json describes them.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum DryRunLine<'a> {
    Delete {
        #[serde(borrow)]
        path: Cow<'a, str>,
    },
    Summary {
        listed: KindTotals,
        created: KindTotals,
        deleted: KindTotals,
    },
    #[serde(other)]
    Other,
}

/// The number of entries of each kind.
type KindTotals = HashMap<String, u64>;

fn total(kinds: &KindTotals) -> u64 {
    kinds.values().sum()
}

/// Fails if a run cannot be counted, because it reads something that can be read only once, or writes a batch file.
pub fn check_countable(wanted: &Copy) -> Result<()> {
    if wanted.options.batch.is_some() {
        return Err(cannot_count("a batch file"));
    }
    if let Some(name) = input_files::read_once(&wanted.options) {
        return Err(cannot_count(&format!(
            "a list or rules from `{}`, which can be read only once",
            name.escape_ascii()
        ))
        .with_hint("write them to a regular file"));
    }
    Ok(())
}

/// Counts what the run would delete.
pub fn count(env: &mut Env, wanted: &Copy) -> Result<Counted> {
    check_countable(wanted)?;
    if env.stderr_is_tty && !wanted.options.output.quiet {
        // A lost notice does not affect the run.
        let _ = writeln!(env.stderr, "sparsync: counting what would be deleted");
    }

    let mut child = start(env).map_err(|error| failed(&errno_words(&error)))?;
    let (counted, messages) = read(&mut child);
    let status = child.wait().map_err(|error| failed(&errno_words(&error)))?;
    match counted {
        Ok(Some(counted)) => Ok(counted),
        Ok(None) => {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            let exit = code
                .filter(|code| *code != 0)
                .and_then(Exit::of_code)
                .unwrap_or(Exit::Crashed);
            let line = [
                &messages[..],
                b"sparsync: the dry run that counts deletions failed: nothing was changed (--delete-guard)",
            ]
            .concat();
            Err(Error::new(exit, line))
        }
        Err(error) => Err(failed(&errno_words(&error))),
    }
}

fn start(env: &Env) -> std::io::Result<Child> {
    let mut words = vec![OsString::from(COUNT_DELETIONS)];
    words.extend(env.args.iter().cloned());
    env::itself(&words)
        .arg0(&env.program)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Reads the output of the other process to its end. Returns the counts, `None` if there is no summary, and its messages.
fn read(child: &mut Child) -> (std::io::Result<Option<Counted>>, Vec<u8>) {
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    std::thread::scope(|scope| {
        let messages = scope.spawn(|| stderr.map(first_messages).unwrap_or_default());
        let counted = match stdout {
            Some(stdout) => read_counts(stdout),
            None => Ok(None),
        };
        (counted, messages.join().unwrap_or_default())
    })
}

/// Reads a stream to its end, and keeps its beginning.
fn first_messages(mut stream: impl Read) -> Vec<u8> {
    let mut kept = Vec::new();
    // What cannot be read is missing in an error message, nothing else.
    let _ = stream
        .by_ref()
        .take(MESSAGES_MAX_BYTES)
        .read_to_end(&mut kept);
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
    kept
}

fn read_counts(stdout: impl Read) -> std::io::Result<Option<Counted>> {
    let mut counted = Counted::default();
    let mut has_summary = false;
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        match serde_json::from_slice(&line)? {
            DryRunLine::Delete { path } => counted.delete(&path),
            DryRunLine::Summary {
                listed,
                created,
                deleted,
            } => {
                counted.listed = total(&listed);
                counted.created = total(&created);
                counted.deleted = total(&deleted);
                has_summary = true;
            }
            DryRunLine::Other => {}
        }
    }
    Ok(if has_summary { Some(counted) } else { None })
}

fn cannot_count(what: &str) -> Error {
    Error::usage(format!(
        "sparsync: --delete-guard and --fail-if-empty cannot be used with {what}: the run is counted first"
    ))
}

fn failed(why: &[u8]) -> Error {
    let start = b"sparsync: cannot count what would be deleted: ";
    Error::new(Exit::Ipc, [&start[..], why].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_from_the_lines_of_a_dry_run() {
        let text = br#"{"type":"delete","path":"a/b","kind":"file","itemize":"*deleting  "}
{"type":"delete","path":"a/\u0000","kind":"file","itemize":"*deleting  "}
{"type":"delete","path":"c","kind":"dir","itemize":"*deleting  "}
{"type":"note","text":"x"}
{"type":"summary","dry_run":true,"listed":{"files":5,"dirs":2,"symlinks":1,"devices":0,"specials":0},"created":{"files":1,"dirs":0,"symlinks":0,"devices":0,"specials":0},"deleted":{"files":2,"dirs":1,"symlinks":0,"devices":0,"specials":0}}
{"type":"end","exit_code":0}
"#;
        let counted = read_counts(&text[..]).unwrap().expect("there is a summary");
        assert_eq!((counted.deleted, counted.dest_entries()), (3, 10));
        assert_eq!(counted.largest(), [(&b"a"[..], 2), (b".", 1)]);
        assert!(!counted.list_is_empty());
    }

    #[test]
    fn output_without_a_summary_counts_nothing() {
        assert!(
            read_counts(&b"{\"type\":\"end\",\"exit_code\":12}\n"[..])
                .unwrap()
                .is_none()
        );
        assert!(read_counts(&b"no JSON\n"[..]).is_err());
    }
}

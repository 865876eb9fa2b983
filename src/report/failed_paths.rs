//! The paths that a run could not transfer (`--failed-list`), from the lines that report them.
//!
//! The lines are rsync's, and a peer reports nothing else, whichever program it is. So they are the one source that exists
//! on every route.

use super::event::CANNOT_DELETE;
use std::collections::BTreeSet;

/// A directory or file of the transfer, as lines about its entries name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRoot {
    /// Its components. If `is_anywhere`, they follow a directory that only the peer knows.
    pub at: Vec<Vec<u8>>,
    /// The path comes from a peer and is relative to a directory there.
    pub is_anywhere: bool,
    /// The components of its path in the transfer; none for the root.
    pub relative: Vec<Vec<u8>>,
}

/// Collects the paths.
#[derive(Debug, Default)]
pub struct FailedPaths {
    /// Where the transfer is, at both ends.
    roots: Vec<FailedRoot>,
    /// The path of the whole transfer: its root, or a single file or directory in it.
    whole: Vec<u8>,
    found: BTreeSet<Vec<u8>>,
    /// How many problems name no path of the transfer.
    unnamed: u64,
    /// How many problems are about deletions.
    deletions: u64,
    /// Whether the peer prints its errors itself, so that they are not seen here.
    pub lacks_peer: bool,
}

/// How many problems a list lacks, by the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unlisted {
    /// They name no path of the transfer.
    pub unnamed: u64,
    /// Their paths have newlines, which only a list with NUL bytes can hold.
    pub newlines: u64,
    /// They are about entries that were to be deleted, which are not in the transfer.
    pub deletions: u64,
}

/// What a line names.
enum Named<'a> {
    /// A path at one of the ends.
    Full(&'a [u8]),
    /// The path of a temporary file at the receiver.
    Temporary(&'a [u8]),
    /// A path relative to the transfer.
    Relative(&'a [u8]),
    /// Something that was to be deleted, which is not in the transfer.
    Extra,
}

impl FailedPaths {
    /// Creates an empty list for a transfer from and to these places.
    pub fn new(sources: Vec<FailedRoot>, dest: Option<FailedRoot>) -> FailedPaths {
        let whole = match &sources[..] {
            [single] if !single.relative.is_empty() => single.relative.join(&b'/'),
            _ => b".".to_vec(),
        };
        FailedPaths {
            roots: sources.into_iter().chain(dest).collect(),
            whole,
            ..FailedPaths::default()
        }
    }

    /// Adds the path that the line of a problem names.
    pub fn note(&mut self, line: &[u8]) {
        let path = match named(line) {
            Some(Named::Extra) => {
                self.deletions += 1;
                return;
            }
            Some(Named::Relative(path)) => Some(components(path)),
            Some(Named::Full(path)) => self.relative(components(path)),
            Some(Named::Temporary(path)) => {
                let mut path = components(path);
                match path.pop() {
                    // The beginning of the name could be that of another file.
                    Some(name) if may_be_cut(&name) => None,
                    Some(name) => {
                        path.push(without_suffix(&name).to_vec());
                        self.relative(path)
                    }
                    None => self.relative(path),
                }
            }
            None => None,
        };
        match path {
            Some(path) if path.is_empty() => drop(self.found.insert(self.whole.clone())),
            Some(path) => drop(self.found.insert(path.join(&b'/'))),
            None => self.unnamed += 1,
        }
    }

    /// Returns the list in the form that `--files-from` reads, and how many problems it lacks. `from0`: the option that ends
    /// names with NUL bytes.
    pub fn text(&self, from0: bool) -> (Vec<u8>, Unlisted) {
        let mut text = Vec::new();
        let mut unlisted = Unlisted {
            unnamed: self.unnamed,
            newlines: 0,
            deletions: self.deletions,
        };
        for path in &self.found {
            if !from0 && path.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
                unlisted.newlines += 1;
                continue;
            }
            if path.starts_with(b"#") || path.starts_with(b";") {
                // Such a name would be a comment, with NUL bytes as well.
                text.extend_from_slice(b"./");
            }
            text.extend_from_slice(path);
            text.push(if from0 { 0 } else { b'\n' });
        }
        (text, unlisted)
    }

    /// Returns a path relative to the transfer. The deepest place that contains it decides.
    fn relative(&self, path: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
        let mut deepest: Option<(&FailedRoot, usize)> = None;
        for root in &self.roots {
            let len = root.at.len();
            let end = if root.is_anywhere {
                let place = path.windows(len.max(1)).position(|part| part == root.at);
                place.map(|start| start + len)
            } else if path.starts_with(&root.at) {
                Some(len)
            } else {
                None
            };
            if let Some(end) = end
                && deepest.is_none_or(|(_, other)| end > other)
            {
                deepest = Some((root, end));
            }
        }
        let (root, end) = deepest?;
        Some([&root.relative[..], &path[end..]].concat())
    }
}

/// Returns what a line names.
fn named(line: &[u8]) -> Option<Named<'_>> {
    for start in [&b"ERROR: "[..], b"WARNING: "] {
        if let Some(rest) = line.strip_prefix(start)
            && let Some(end) = find(rest, b" failed verification")
        {
            return Some(Named::Relative(&rest[..end]));
        }
    }
    if line.starts_with(b"could not make way for new ")
        && let Some(at) = find(line, b": ")
    {
        return Some(Named::Relative(&line[at + 2..]));
    }
    if is_about_deletion(line) {
        return Some(Named::Extra);
    }
    let open = line.iter().position(|byte| *byte == b'"')?;
    let what = &line[..open];
    let rest = &line[open + 1..];
    // The text behind the path has no quotes, except for the second path of some calls.
    let ends = [&b"\" failed: "[..], b"\": ", b"\" (in "];
    let end = ends.iter().filter_map(|end| rfind(rest, end)).max();
    let quoted = &rest[..end.unwrap_or_else(|| rfind(rest, b"\"").unwrap_or(rest.len()))];
    if what.ends_with(b"mkstemp ") {
        return Some(Named::Temporary(quoted));
    }
    if what.ends_with(b"rename ")
        && let Some(at) = find(quoted, b"\" -> \"")
    {
        return Some(Named::Relative(&quoted[at + 6..]));
    }
    let first = [&b"\" -> \""[..], b"\" => "];
    let first = first.iter().find_map(|between| find(quoted, between));
    Some(Named::Full(&quoted[..first.unwrap_or(quoted.len())]))
}

/// Returns whether a line is about an entry that was to be deleted. `rsync: [generator] delete_file: unlink(PATH) failed`
/// has no quotes.
fn is_about_deletion(line: &[u8]) -> bool {
    let of_role = line.strip_prefix(b"rsync: [");
    let what = of_role.and_then(|rest| Some(&rest[find(rest, b"] ")? + 2..]));
    what.is_some_and(|what| what.starts_with(b"delete_file: ")) || line.starts_with(CANNOT_DELETE)
}

/// Returns whether the name of a file may be cut in the name of its temporary file, which has at most 255 bytes and ends
/// with a whole character.
fn may_be_cut(temp: &[u8]) -> bool {
    temp.len() >= 252
}

/// Returns the name of the file that a temporary file `.NAME.XXXXXX` replaces.
fn without_suffix(name: &[u8]) -> &[u8] {
    const SUFFIX_LEN: usize = ".XXXXXX".len();
    match name {
        [b'.', rest @ ..] if rest.len() > SUFFIX_LEN => &rest[..rest.len() - SUFFIX_LEN],
        _ => name,
    }
}

/// Returns the components of a path, without empty ones and `.`, and with `..` resolved.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part.to_vec()),
        }
    }
    parts
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn rfind(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).rposition(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(at: &str, is_anywhere: bool, relative: &str) -> FailedRoot {
        FailedRoot {
            at: components(at.as_bytes()),
            is_anywhere,
            relative: components(relative.as_bytes()),
        }
    }

    fn listed(lines: &[&str]) -> (String, Unlisted) {
        let sources = vec![
            root("/top/src", false, ""),
            root("/top/other", false, "other"),
            root("far/in", true, ""),
        ];
        let mut paths = FailedPaths::new(sources, Some(root("/dst", false, "")));
        for line in lines {
            paths.note(line.as_bytes());
        }
        let (text, unlisted) = paths.text(false);
        (String::from_utf8(text).expect("it is ASCII"), unlisted)
    }

    #[test]
    fn names_that_are_cut_in_their_temporary_names_are_not_listed() {
        let line = |len: usize| {
            let name = "n".repeat(len);
            format!(
                r#"rsync: [receiver] mkstemp "/dst/.{name}.Ab3dEf" failed: Permission denied (13)"#
            )
        };
        let (text, unlisted) = listed(&[&line(200), &line(247)]);
        assert_eq!(text, format!("{}\n", "n".repeat(200)));
        assert_eq!(unlisted.unnamed, 1);
    }

    #[test]
    fn paths_come_from_the_lines_of_both_ends() {
        let lines = [
            r#"rsync: [sender] send_files failed to open "/top/src/d/a": Permission denied (13)"#,
            r#"rsync: [sender] opendir "/top/other/sub" failed: Permission denied (13)"#,
            r#"rsync: [sender] opendir "/top/src/." failed: Permission denied (13)"#,
            r#"rsync: [receiver] mkstemp "/dst/e/.f.g.Ab3dEf" failed: Permission denied (13)"#,
            r#"rsync: [receiver] rename "/dst/.h.Ab3dEf" -> "e/h": Is a directory (21)"#,
            r#"rsync: [generator] symlink "/dst/l" -> "/else" failed: File exists (17)"#,
            r#"rsync: [sender] send_files failed to open "/home/u/far/in/x": Permission denied (13)"#,
            r#"rsync: [sender] send_files failed to open "/top/src/y" (in mod): Permission denied (13)"#,
            "could not make way for new regular file: w: x",
            "ERROR: z/v failed verification -- update discarded.",
            r##"rsync: [sender] read errors mapping "/top/src/#c": Input/output error (5)"##,
        ];
        let wanted = "./#c\n.\nd/a\ne/f.g\ne/h\nl\nother/sub\nw: x\nx\ny\nz/v\n";
        assert_eq!(listed(&lines), (wanted.to_owned(), Unlisted::default()));
    }

    #[test]
    fn deletions_are_no_transfers_and_other_places_are_counted() {
        let lines = [
            "rsync: [generator] delete_file: unlink(gone) failed: Permission denied (13)",
            "rsync: [generator] delete_file: rmdir(\"d\") failed: Permission denied (13)",
            "rsync: [generator] delete_file: unlink(a/b) (in mod) failed: Permission denied (13)",
            r#"sparsync: cannot delete "d/e": the new file that takes its content was not placed"#,
            r#"rsync: [sender] opendir "/elsewhere/a" failed: Permission denied (13)"#,
            "rsync: no path",
            "rsync: [sender] opendir \"/top/src/a\nb\" failed: Permission denied (13)",
        ];
        let unlisted = Unlisted {
            unnamed: 2,
            newlines: 1,
            deletions: 4,
        };
        assert_eq!(listed(&lines), (String::new(), unlisted));
    }

    proptest::proptest! {
        #[test]
        fn no_line_is_too_strange(line: Vec<u8>) {
            let sources = vec![root("", true, ""), root("/", false, "")];
            let mut paths = FailedPaths::new(sources, None);
            paths.note(&line);
            paths.note(&[b"rsync: [sender] opendir \"", &line[..], b"\" failed: x"].concat());
            let _ = paths.text(true);
        }
    }
}

//! Shows where two texts or two trees differ.

use super::tree::Snapshot;

/// Lines of context around a difference.
const CONTEXT: usize = 3;

/// Compares line by line: `-` marks lines of rsync, `+` lines of the program under test. Returns `None` if equal.
pub fn lines(wanted: &str, got: &str) -> Option<String> {
    if wanted == got {
        return None;
    }
    let (wanted, got): (Vec<&str>, Vec<&str>) =
        (wanted.split('\n').collect(), got.split('\n').collect());
    let common = common_lengths(&wanted, &got);
    let (mut i, mut j) = (0, 0);
    let mut marked = Vec::new();
    while i < wanted.len() || j < got.len() {
        if i < wanted.len() && j < got.len() && wanted[i] == got[j] {
            marked.push((' ', wanted[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == got.len() || (i < wanted.len() && common[i + 1][j] >= common[i][j + 1]) {
            marked.push(('-', wanted[i]));
            i += 1;
        } else {
            marked.push(('+', got[j]));
            j += 1;
        }
    }
    Some(near_changes(&marked))
}

/// A class of lines on rsync's stdout, by the process that prints them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineClass {
    /// The sender: banners, items, summaries.
    Items,
    /// The generator, about entries that it skips or deletes.
    Remarks,
    /// Several processes, each about the files that it has completed: lines without an order.
    Confirmations,
    /// The sender, about entries that it finds while it scans ahead.
    Findings,
    /// The generator, about further names of a file: lines without an order, each after the first name.
    Links,
}

/// Lines whose position among the other lines varies.
#[derive(Clone, Copy, Default)]
pub struct Floats {
    /// Deletions, with `--delete-during`.
    pub deletions: bool,
    /// The deletion of a missing argument may even follow an item of its directory: two processes of rsync print them.
    pub missing: bool,
    /// Hard links, which wait for a file in transfer. In a dry run they do not wait.
    pub links: bool,
}

/// Compares two outputs to which several of rsync's processes contribute.
///
/// How their lines interleave varies. So only the lines of each `LineClass` must be in order. If deletions float, a
/// deletion must come before the first item of its directory, unless `missing` is set; deletions before or after the
/// transfer have a fixed place. A link that floats must come after its link target.
pub fn stdout(wanted: &str, got: &str, floats: Floats) -> Option<String> {
    let lines_in = |text: &str, class: LineClass| {
        let lines = text
            .split('\n')
            .filter(|line| kind_of_line(line, floats) == class);
        let mut lines: Vec<_> = lines.map(str::to_owned).collect();
        if matches!(class, LineClass::Confirmations | LineClass::Links) {
            lines.sort();
        }
        lines
    };
    let classes = [
        LineClass::Items,
        LineClass::Remarks,
        LineClass::Confirmations,
        LineClass::Findings,
        LineClass::Links,
    ];
    let each_agrees = classes
        .iter()
        .all(|&class| lines_in(wanted, class) == lines_in(got, class));
    let in_place = (!floats.deletions || floats.missing || deletions_precede_items(got))
        && links_come_later(got);
    if each_agrees && in_place {
        None
    } else {
        lines(wanted, got)
    }
}

fn kind_of_line(line: &str, floats: Floats) -> LineClass {
    const CONFIRMATIONS: [&str; 3] = [
        "sender removed ",
        "backed up ",
        "cannot delete non-empty directory: ",
    ];
    if CONFIRMATIONS.iter().any(|begin| line.starts_with(begin)) {
        LineClass::Confirmations
    } else if line.starts_with("copying unsafe symlink ") || line.starts_with("[sender] ") {
        LineClass::Findings
    } else if floats.links && is_link(line) {
        LineClass::Links
    } else if is_remark(line) || floats.deletions && is_deletion(line) {
        LineClass::Remarks
    } else {
        LineClass::Items
    }
}

/// Returns whether a line reports a hard link: `hf+++++++++ b => a`, `hf          b`, `b => a`.
fn is_link(line: &str) -> bool {
    line.contains(" => ") || line.starts_with('h') && line.get(11..12) == Some(" ")
}

/// Returns whether every line about a hard link comes after the line of its target.
fn links_come_later(text: &str) -> bool {
    let mut linked_to = std::collections::BTreeSet::new();
    text.split('\n').all(|line| {
        if let Some((_, leader)) = line.split_once(" => ") {
            linked_to.insert(leader);
            return true;
        }
        let name = if line.get(11..12) == Some(" ") {
            &line[12..]
        } else {
            line
        };
        !linked_to.contains(name.split(" -> ").next().unwrap_or(name))
    })
}

fn is_deletion(line: &str) -> bool {
    const BEGIN: [&str; 3] = [
        "*deleting",
        "deleting ",
        "IO error encountered -- skipping file deletion",
    ];
    BEGIN.iter().any(|word| line.starts_with(word))
}

/// Returns whether the generator prints this line about an entry that it skips.
fn is_remark(line: &str) -> bool {
    const BEGIN: [&str; 4] = [
        "[generator] ",
        "skipping non-regular file ",
        "ignoring unsafe symlink ",
        "not creating new ",
    ];
    const END: [&str; 5] = [
        " is uptodate",
        " exists",
        " is newer",
        " is over max-size",
        " is under min-size",
    ];
    BEGIN.iter().any(|word| line.starts_with(word)) || END.iter().any(|word| line.ends_with(word))
}

/// Returns whether each deletion comes before the items of its directory.
fn deletions_precede_items(text: &str) -> bool {
    let mut begun = std::collections::BTreeSet::new();
    text.split('\n').all(|line| {
        match line
            .strip_prefix("*deleting   ")
            .or_else(|| line.strip_prefix("deleting "))
        {
            Some(gone) => !begun.contains(parent(gone)),
            None if is_deletion(line)
                || kind_of_line(
                    line,
                    Floats {
                        deletions: true,
                        missing: false,
                        links: true,
                    },
                ) != LineClass::Items =>
            {
                true
            }
            None => {
                let itemized =
                    line.get(11..12) == Some(" ") && line.starts_with(['<', '>', 'c', 'h', '.']);
                let path = if itemized { &line[12..] } else { line };
                let name = path.split(" -> ").next().unwrap_or(path);
                // A directory's own line comes before its deletions. Without itemizing, a space marks a banner.
                if !name.ends_with('/') && (itemized || !name.contains(' ')) {
                    begun.insert(parent(name));
                }
                true
            }
        }
    })
}

fn parent(name: &str) -> &str {
    let name = name.trim_end_matches('/');
    name.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// Compares two trees, path by path. Returns `None` if equal.
pub fn trees(wanted: &Snapshot, got: &Snapshot) -> Option<String> {
    let mut diff = String::new();
    let mut paths: Vec<_> = wanted.keys().chain(got.keys()).collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        match (wanted.get(path), got.get(path)) {
            (Some(a), Some(b)) if a == b => {}
            (a, b) => {
                a.into_iter()
                    .for_each(|line| diff += &format!("    - {line}\n"));
                b.into_iter()
                    .for_each(|line| diff += &format!("    + {line}\n"));
            }
        }
    }
    (!diff.is_empty()).then_some(diff)
}

/// Returns a table: `table[i][j]` is the length of the longest common subsequence of `a[i..]` and `b[j..]`.
fn common_lengths(a: &[&str], b: &[&str]) -> Vec<Vec<usize>> {
    let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            table[i][j] = if a[i] == b[j] {
                table[i + 1][j + 1] + 1
            } else {
                table[i + 1][j].max(table[i][j + 1])
            };
        }
    }
    table
}

/// Keeps the changed lines and `CONTEXT` lines around each.
fn near_changes(marked: &[(char, &str)]) -> String {
    let mut diff = String::new();
    let mut gap = false;
    for (at, (mark, line)) in marked.iter().enumerate() {
        let around = &marked[at.saturating_sub(CONTEXT)..marked.len().min(at + CONTEXT + 1)];
        if around.iter().all(|(mark, _)| *mark == ' ') {
            gap = true;
            continue;
        }
        if std::mem::take(&mut gap) {
            diff += "      …\n";
        }
        diff += &format!("    {mark} {line}\n");
    }
    diff
}

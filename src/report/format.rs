//! The `%` escapes of `--out-format` and `--log-file-format`: parsed once, formatted per entry.
//!
//! An escape is `%`, then in this order, all optional: quotes for digit grouping and units, `-` for left alignment, a
//! width, quotes again; then its letter. Anything else is literal text, including the letters that only a daemon knows
//! (`%a %h %u %P`); see [`Format::of_module`].

#[cfg(test)]
pub(super) mod tests;

use super::event::Item;
use super::itemize::{Columns, DELETING, itemize};
use super::list::permissions;
use super::number::put_int;
use super::times::LocalTimes;
use crate::digest::shown_len_bytes;
use crate::flist::Kind;
use crate::options::Checksum;
use crate::path;
use crate::plan::NO_ID;
use std::io::Write;

/// The maximum width: rsync cuts its lines there.
const WIDTH_MAX: usize = 4095;

/// The longest width, its minus sign included: rsync prints an escape with a longer one as it is.
const WIDTH_MAX_CHARS: usize = 23;

/// A parsed format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    segments: Vec<Segment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Text(Vec<u8>),
    Escape(Escape),
}

/// The letters of rsync's escapes.
const LETTERS: &[u8] = b"bBcCfGilLmMnoptU%";

/// Returns the value of a letter of which a daemon knows the value.
pub type ModuleConstant<'a> = &'a dyn Fn(u8) -> Option<Vec<u8>>;

/// The values that are the same for all entries of a run.
#[derive(Debug, Clone)]
pub struct Constants {
    /// `%p`
    pub pid: u32,
    /// `%o`: `send`, or `recv` if this process receives from a peer.
    pub sends: bool,
    /// Whether owners are preserved; `%U` is 0 otherwise.
    pub keeps_owner: bool,
    /// Whether groups are preserved; `%G` is `DEFAULT` otherwise.
    pub keeps_group: bool,
    /// Whether this is a dry run; `%C` of a file that would be transferred is then zeros.
    pub dry_run: bool,
    /// Whether `%C` shows checksums, which rsync does from protocol 30 on.
    pub shows_sums: bool,
    /// The checksum that `%C` shows.
    pub sum: Checksum,
    /// The directory of a daemon's module in which it receives: `%f` shows paths in the module.
    pub dest_dir: Vec<u8>,
    /// Paths without their first slash. Names of these entries, their parents and everything below are shown with it.
    pub rooted: Vec<Vec<u8>>,
}

impl Constants {
    /// Returns the prefix of a source entry's name: a slash if its operand is absolute under `-R`.
    pub fn slash_before(&self, name: &[u8]) -> &'static [u8] {
        let leads = |dir: &[u8], to: &[u8]| {
            dir.is_empty()
                || to
                    .strip_prefix(dir)
                    .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        if self
            .rooted
            .iter()
            .any(|path| leads(path, name) || leads(name, path))
        {
            b"/"
        } else {
            b""
        }
    }
}

/// One entry with the values that a format can use.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    what: What<'a>,
    constants: &'a Constants,
    /// Seconds since 1970, for `%t`.
    now_secs: i64,
}

#[derive(Debug, Clone, Copy)]
enum What<'a> {
    Item(&'a Item),
    Deleted { name: &'a [u8], kind: Kind },
}

impl<'a> Shown<'a> {
    /// An entry that was examined.
    pub fn item(item: &'a Item, constants: &'a Constants, now_secs: i64) -> Shown<'a> {
        Shown {
            what: What::Item(item),
            constants,
            now_secs,
        }
    }

    /// An entry that was removed. As in rsync, only its name is shown; all other values are zero.
    pub fn deleted(
        name: &'a [u8],
        kind: Kind,
        constants: &'a Constants,
        now_secs: i64,
    ) -> Shown<'a> {
        Shown {
            what: What::Deleted { name, kind },
            constants,
            now_secs,
        }
    }

    fn columns(&self) -> Columns {
        match self.what {
            What::Item(item) => itemize(item.update, item.kind, item.changes),
            What::Deleted { .. } => *DELETING,
        }
    }
}

impl Format {
    /// rsync's format if none is given.
    pub const DEFAULT: &[u8] = b"%i %n%L";

    /// Parses a format. Never fails: anything that is not an escape is text.
    pub fn parse(text: &[u8]) -> Format {
        Format::of_module(text, &|_| None)
    }

    /// Parses the format of a daemon's log. `constant`: the value of a letter that is the same for the whole session.
    pub fn of_module(text: &[u8], constant: ModuleConstant<'_>) -> Format {
        let mut segments = Vec::new();
        let mut plain = Vec::new();
        let mut rest = text;
        while let Some(&byte) = rest.first() {
            let escape = (byte == b'%').then(|| parse_escape(rest)).flatten();
            let value = escape.as_ref().and_then(|escape| constant(escape.letter));
            match (escape, value) {
                (
                    Some(Escape {
                        width, left, len, ..
                    }),
                    Some(value),
                ) => {
                    let start = plain.len();
                    plain.extend(value);
                    pad(&mut plain, start, width, left);
                    rest = &rest[len..];
                }
                (Some(escape), None) if LETTERS.contains(&escape.letter) => {
                    if !plain.is_empty() {
                        segments.push(Segment::Text(std::mem::take(&mut plain)));
                    }
                    rest = &rest[escape.len..];
                    segments.push(Segment::Escape(escape));
                }
                (Some(_) | None, _) => {
                    plain.push(byte);
                    rest = &rest[1..];
                }
            }
        }
        if !plain.is_empty() {
            segments.push(Segment::Text(plain));
        }
        Format { segments }
    }

    /// Returns whether it needs values known only after the transfer of an entry: `%b`, `%c` or `%C`.
    pub fn needs_after_transfer(&self) -> bool {
        self.has(b"bcC")
    }

    /// Returns whether it has `%i`.
    pub fn has_itemize(&self) -> bool {
        self.has(b"i")
    }

    /// Returns whether it has `%o`.
    pub fn has_operation(&self) -> bool {
        self.has(b"o")
    }

    /// Returns whether it has `%f`, `%U` or `%G`.
    pub fn has_sender_fields(&self) -> bool {
        self.has(b"fUG")
    }

    /// Returns whether it has `%C`.
    pub fn has_digest(&self) -> bool {
        self.has(b"C")
    }

    /// Returns whether its lines show that an entry was removed: `%i` or `%o`.
    pub fn has_deletion(&self) -> bool {
        self.has(b"io")
    }

    /// Returns whether it formats nothing.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    fn has(&self, letters: &[u8]) -> bool {
        self.segments
            .iter()
            .any(|segment| matches!(segment, Segment::Escape(it) if letters.contains(&it.letter)))
    }

    /// Appends the line for an entry, not escaped and without newline.
    pub fn put(&self, out: &mut Vec<u8>, shown: &Shown<'_>, times: &mut LocalTimes) {
        for segment in &self.segments {
            match segment {
                Segment::Text(text) => out.extend_from_slice(text),
                Segment::Escape(escape) => {
                    let start = out.len();
                    if let Some(pads_at) = put_value(out, escape, shown, times) {
                        pad(out, start + pads_at, escape.width, escape.left);
                    }
                }
            }
        }
    }
}

/// An escape as written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Escape {
    letter: u8,
    width: usize,
    left: bool,
    human: u8,
    /// Its length in the format.
    len: usize,
}

/// Returns the escape at the beginning of `text`.
fn parse_escape(text: &[u8]) -> Option<Escape> {
    let mut at = 1;
    let mut human = 0u8;
    let quotes = |at: &mut usize, human: &mut u8| {
        while text.get(*at) == Some(&b'\'') {
            *human = human.saturating_add(1);
            *at += 1;
        }
    };
    quotes(&mut at, &mut human);
    let left = text.get(at) == Some(&b'-');
    at += usize::from(left);
    let mut width = 0usize;
    let mut len = usize::from(left);
    while let Some(digit) = text.get(at).filter(|b| b.is_ascii_digit()) {
        width = (width * 10 + usize::from(digit - b'0')).min(WIDTH_MAX);
        at += 1;
        len += 1;
    }
    if len > WIDTH_MAX_CHARS {
        return None;
    }
    quotes(&mut at, &mut human);
    Some(Escape {
        letter: *text.get(at)?,
        width,
        left,
        human,
        len: at + 1,
    })
}

/// Pads the text from `start` on to the width.
fn pad(out: &mut Vec<u8>, start: usize, width: usize, left: bool) {
    let len = out.len() - start;
    if len >= width {
        return;
    }
    out.resize(start + width, b' ');
    if !left {
        out[start..].rotate_right(width - len);
    }
}

/// Appends a value. Returns the offset in the value at which padding applies; `None` for no padding.
fn put_value(
    out: &mut Vec<u8>,
    escape: &Escape,
    shown: &Shown<'_>,
    times: &mut LocalTimes,
) -> Option<usize> {
    let (
        constants,
        &Escape {
            letter,
            width,
            human,
            ..
        },
    ) = (shown.constants, escape);
    let item = match shown.what {
        What::Item(item) => Some(item),
        What::Deleted { .. } => None,
    };
    let count = |out: &mut Vec<u8>, value: u64| {
        put_int(out, i64::try_from(value).unwrap_or(i64::MAX), human)
    };
    match letter {
        b'b' => count(out, item.map_or(0, |i| i.moved_bytes)),
        b'l' => count(out, item.map_or(0, |i| i.len_bytes)),
        // For a whole file the receiver answers with an empty checksum table: sixteen bytes. Only the sender counts.
        b'c' => {
            let transferred =
                item.filter(|item| constants.sends && item.transfer && !constants.dry_run);
            count(out, transferred.map_or(0, |item| item.sums_bytes.max(16)));
        }
        b'B' => out.extend_from_slice(&permissions(item.map_or(0, |i| i.mode))[1..]),
        b'C' => match item.and_then(|i| i.digest.as_deref()) {
            Some(digest) if constants.shows_sums => {
                for byte in digest {
                    _ = write!(out, "{byte:02x}");
                }
            }
            Some(_) | None => {
                let len_bytes = shown_len_bytes(constants.sum);
                let zeros = constants.dry_run
                    && constants.shows_sums
                    && len_bytes > 0
                    && item.is_some_and(|i| i.transfer);
                let fill = if zeros { b'0' } else { b' ' };
                // Without a checksum algorithm there are two blanks.
                out.resize(out.len() + 2 * len_bytes.max(1), fill);
                if !zeros {
                    return None;
                }
            }
        },
        b'f' => {
            let path = match shown.what {
                What::Item(item) => &item.sender_path,
                What::Deleted { name, .. } => name,
            };
            out.extend(path::join(&constants.dest_dir, path));
        }
        b'U' => {
            let uid = match item {
                Some(item) if constants.keeps_owner => item.uid,
                Some(_) | None => 0,
            };
            _ = write!(out, "{uid}");
        }
        b'G' => {
            let gid = item.map_or(0, |i| i.gid);
            if constants.keeps_group && gid != NO_ID {
                _ = write!(out, "{gid}");
            } else {
                out.extend_from_slice(b"DEFAULT");
            }
        }
        b'i' => out.extend_from_slice(&shown.columns()),
        b'L' => {
            let (arrow, value): (&[u8], &[u8]) = item.map_or((b"", b""), link_of);
            if width > 0 && arrow.is_empty() {
                out.extend_from_slice(b"    ");
            }
            out.extend_from_slice(arrow);
            out.extend_from_slice(value);
            return if width > 0 { Some(4) } else { None };
        }
        b'M' => times.put(out, item.map_or(0, |i| i.mtime.secs), b'-'),
        b'n' => match shown.what {
            What::Item(item) => {
                out.extend_from_slice(constants.slash_before(&item.name));
                put_name(out, &item.name, item.kind);
            }
            What::Deleted { name, kind } => put_name(out, name, kind),
        },
        b'o' => out.extend_from_slice(match (item, constants.sends) {
            (None, _) => b"del.",
            (Some(_), true) => b"send",
            (Some(_), false) => b"recv",
        }),
        b'p' => _ = write!(out, "{}", constants.pid),
        b't' => times.put(out, shown.now_secs, b' '),
        b'%' => out.push(b'%'),
        // `%m`: only a daemon has a module; see [`Format::of_module`].
        _ => {}
    }
    Some(0)
}

/// Appends a name as listed: directories with a trailing slash.
pub fn put_name(out: &mut Vec<u8>, name: &[u8], kind: Kind) {
    out.extend_from_slice(name);
    if kind == Kind::Dir && !name.ends_with(b"/") {
        out.push(b'/');
    }
}

/// Returns the name of an entry, with the target of a link.
pub fn name_and_link(item: &Item) -> Vec<u8> {
    let mut line = Vec::new();
    put_name(&mut line, &item.name, item.kind);
    put_link(&mut line, item);
    line
}

/// Appends the value of `%L`: ` -> target`, ` => link`, or nothing.
pub fn put_link(out: &mut Vec<u8>, item: &Item) {
    let (arrow, value) = link_of(item);
    out.extend_from_slice(arrow);
    out.extend_from_slice(value);
}

fn link_of(item: &Item) -> (&[u8], &[u8]) {
    if let Some(linked_to) = &item.linked_to {
        (b" => ", linked_to)
    } else if let Some(target) = &item.target {
        (b" -> ", target)
    } else {
        (b"", b"")
    }
}

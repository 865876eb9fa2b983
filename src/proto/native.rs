//! The native dialect: one frame per message. docs/PROTOCOL.md specifies every byte.

use super::bytes::{Reader, Writer, put_varint, varint_at, varint_len};
use super::dialect::{Dialect, Encoder, ProtocolSupport};
use super::encoding;
use super::enum_values::{Role, basis};
use super::greeting::VERSIONS;
use super::limits::{BASIS_MAX_BYTES, DATA_MAX_BYTES, FILE_MAX_BYTES, FRAME_MAX_BYTES};
use super::limits::{GRANT_MAX_BYTES, WHOLE_MAX_BYTES};
use super::message::{Basis, Lane, Message};
use super::message_kinds::{self, Row, row_of};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::flist::FileId;
use crate::report::progress::{EntryCounts, ListTotal, SourceTotals};

/// The native encoding of one protocol version.
pub struct Native {
    version: u16,
}

impl ProtocolSupport {
    /// Returns what this program supports, with these features.
    pub fn ours(features: u64) -> ProtocolSupport {
        ProtocolSupport {
            versions: VERSIONS,
            features,
            dialect: |version| Box::new(Native::new(version)),
        }
    }
}

impl Native {
    /// Creates the dialect for the version that [`super::greeting::agree`] returned.
    pub fn new(version: u16) -> Native {
        Native { version }
    }

    /// Returns the row of a kind; fails if there is none.
    fn row(&self, kind: u8) -> Result<&'static Row> {
        match row_of(kind) {
            Some(row) => Ok(row),
            None => Err(refuse(format!(
                "unknown message kind {kind}: protocol version {} is in use, {} is the newest known",
                self.version,
                VERSIONS.end()
            ))),
        }
    }
}

fn refuse(sentence: String) -> Error {
    Error::new(
        Exit::Protocol,
        format!("sparsync: protocol error: {sentence}"),
    )
}

/// Where the body of a frame begins and ends, as offsets from the start of the frame.
struct Head {
    begin: usize,
    end: usize,
}

/// Reads the head of the frame at the front of `input`; `None` if it is incomplete.
fn head(input: &[u8]) -> Result<Option<Head>> {
    let Some((&kind, rest)) = input.split_first() else {
        return Ok(None);
    };
    let (name, max) = row_of(kind).map_or(("of unknown kind", FRAME_MAX_BYTES), |row| {
        (row.name, row.max_bytes)
    });
    let bad = |why: String| refuse(format!("invalid message {name}: its length {why}"));
    let Some((len, len_len)) = varint_at(rest).map_err(|why| bad(why.to_owned()))? else {
        return Ok(None);
    };
    match usize::try_from(len) {
        Ok(len) if len <= max => Ok(Some(Head {
            begin: 1 + len_len,
            end: 1 + len_len + len,
        })),
        _ => Err(bad(format!("is {len} bytes, at most {max} are allowed"))),
    }
}

impl Encoder for Native {
    fn encode(&mut self, message: &Message, out: &mut Vec<u8>) -> Result<()> {
        let row = self.row(message_kinds::number_of(message))?;
        let start = out.len();
        let encoded = frame(message, row, out);
        if encoded.is_err() {
            out.truncate(start);
        }
        encoded
    }
}

impl Dialect for Native {
    fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Message>> {
        let Some(&kind) = input.first() else {
            return Ok(None);
        };
        // Reject an unknown kind before its length is used, or has even arrived.
        let row = self.row(kind)?;
        let Some(Head { begin, end, .. }) = head(input)? else {
            return Ok(None);
        };
        let Some(body) = input.get(begin..end) else {
            return Ok(None);
        };
        let mut reader = Reader::new(row.name, body);
        let message = get_body(kind, &mut reader)?;
        reader.end()?;
        *input = &input[end..];
        Ok(Some(message))
    }

    fn frame_len(&self, input: &[u8]) -> Result<Option<usize>> {
        Ok(head(input)?.map(|head| head.end))
    }
}

/// Appends a whole frame. On error, the caller must remove what was appended.
fn frame(message: &Message, row: &Row, out: &mut Vec<u8>) -> Result<()> {
    out.push(row.number);
    // The length precedes the body. Reserve bytes for an estimate, which is right for nearly all messages.
    let head_at = out.len();
    let room = varint_len(likely_len(message) as u64);
    out.resize(head_at + room, 0);
    let body_at = out.len();
    let mut writer = Writer::new(row.name, out);
    put_body(&mut writer, message)?;
    let len = writer.out.len() - body_at;
    if len > row.max_bytes {
        return Err(writer.refuse(
            "frame",
            format_args!("has {len} bytes, at most {} are allowed", row.max_bytes),
        ));
    }
    let mut spelled = Vec::with_capacity(10);
    put_varint(&mut spelled, len as u64);
    out.splice(head_at..body_at, spelled);
    Ok(())
}

/// Estimates the length of the body.
fn likely_len(message: &Message) -> usize {
    match message {
        Message::Whole { data, .. } => data.len() + 24,
        Message::Data { data, .. } => data.len() + 1,
        Message::Want {
            basis: Basis::Blocks(blocks),
            ..
        } => blocks.len() + 8,
        Message::Dir(listing) => 64 + 20 * listing.list.len(),
        Message::More { list, .. } => 16 + 20 * list.len(),
        Message::Digests(seen) => 18 * seen.len(),
        _ => 0,
    }
}

fn put_body(w: &mut Writer, message: &Message) -> Result<()> {
    match message {
        Message::Setup(setup) => encoding::put_setup(w, setup)?,
        Message::Roots(roots) => encoding::put_roots(w, roots)?,
        Message::Digests(seen) => encoding::put_digests(w, seen)?,
        Message::Dir(listing) => encoding::put_listing(w, listing)?,
        Message::More {
            list,
            subs,
            problems,
            notes,
            last,
        } => {
            w.flags(&[*last]);
            encoding::put_piece(w, list, subs, problems, notes)?;
        }
        Message::DirsEnd(tally) | Message::WantsEnd(tally) | Message::Bye(tally) => {
            encoding::put_tally(w, tally)
        }
        Message::Want { file, lane, basis } => {
            if *lane == Lane::Unrequested {
                return Err(w.refuse("lane", "is a lane without requests"));
            }
            put_file(w, file);
            w.number(*lane);
            put_basis(w, basis)?;
        }
        Message::Done(dir) => w.varint(*dir),
        Message::Placed(file) | Message::WantDigest(file) => put_file(w, file),
        Message::FileDigest { file, digest } => {
            put_file(w, file);
            w.flags(&[digest.is_some()]);
            if let Some(digest) = digest {
                w.content_digest(digest);
            }
        }
        Message::Whole {
            file,
            lane,
            data,
            digest,
        } => {
            check_data(data.len(), 0, WHOLE_MAX_BYTES).map_err(|why| w.refuse("data", why))?;
            put_file(w, file);
            w.number(*lane);
            w.content_digest(digest);
            w.raw(data);
        }
        Message::Begin { file, lane } => {
            put_file(w, file);
            w.number(*lane);
        }
        Message::Data { lane, data } => {
            check_data(data.len(), 1, DATA_MAX_BYTES).map_err(|why| w.refuse("data", why))?;
            w.number(*lane);
            w.raw(data);
        }
        Message::Copy {
            lane,
            offset_bytes,
            len_bytes,
        } => {
            check_range(*offset_bytes, *len_bytes).map_err(|why| w.refuse("range", why))?;
            w.number(*lane);
            w.varint(*offset_bytes);
            w.varint(*len_bytes);
        }
        Message::End { lane, digest } => {
            w.number(*lane);
            w.content_digest(digest);
        }
        Message::Unsent {
            file,
            lane,
            problem,
        } => {
            put_file(w, file);
            w.number(*lane);
            w.flags(&[problem.is_some()]);
            if let Some(problem) = problem {
                encoding::put_problem(w, problem);
            }
        }
        Message::Event(event) => encoding::put_event(w, event)?,
        Message::Grant { class, bytes } => {
            if *bytes > GRANT_MAX_BYTES {
                return Err(w.refuse("bytes", "are more than GRANT_MAX_BYTES"));
            }
            w.number(*class);
            w.varint(*bytes);
        }
        Message::Ping => {}
        Message::Fail {
            exit,
            message,
            role,
        } => {
            if *exit == Exit::Ok {
                return Err(w.refuse("exit", "is the code of success"));
            }
            w.number(*exit);
            w.number(Role(role));
            w.line(message);
        }
        Message::Meet(meeting) => encoding::put_meeting(w, meeting)?,
        Message::Blocked(class) => w.number(*class),
        Message::Plan(piece) => encoding::put_plan_piece(w, piece)?,
        Message::Totals(totals) => put_totals(w, totals),
        Message::Verdict { refused } => {
            w.flags(&[refused.is_some()]);
            if let Some(why) = refused {
                w.line(why);
            }
        }
    }
    Ok(())
}

fn get_body(kind: u8, r: &mut Reader) -> Result<Message> {
    Ok(match kind {
        message_kinds::SETUP => Message::Setup(Box::new(encoding::get_setup(r)?)),
        message_kinds::ROOTS => Message::Roots(Box::new(encoding::get_roots(r)?)),
        message_kinds::DIGESTS => Message::Digests(encoding::get_digests(r)?),
        message_kinds::DIR => Message::Dir(Box::new(encoding::get_listing(r)?)),
        message_kinds::MORE => {
            let [last] = r.flags::<1>("piece flags")?;
            let (list, subs, problems, notes) = encoding::get_piece(r)?;
            Message::More {
                list,
                subs,
                problems,
                notes,
                last,
            }
        }
        message_kinds::DIRS_END => Message::DirsEnd(Box::new(encoding::get_tally(r)?)),
        message_kinds::WANT => {
            let file = get_file(r)?;
            let lane = r.number("lane")?;
            if lane == Lane::Unrequested {
                return Err(r.refuse("lane", "is a lane without requests"));
            }
            Message::Want {
                file,
                lane,
                basis: get_basis(r)?,
            }
        }
        message_kinds::DONE => Message::Done(r.varint("directory")?),
        message_kinds::PLACED => Message::Placed(get_file(r)?),
        message_kinds::WANT_DIGEST => Message::WantDigest(get_file(r)?),
        message_kinds::FILE_DIGEST => {
            let file = get_file(r)?;
            let [has_digest] = r.flags::<1>("digest")?;
            Message::FileDigest {
                file,
                digest: r.when(has_digest, |r| r.content_digest("digest"))?,
            }
        }
        message_kinds::WANTS_END => Message::WantsEnd(Box::new(encoding::get_tally(r)?)),
        message_kinds::WHOLE => Message::Whole {
            file: get_file(r)?,
            lane: r.number("lane")?,
            digest: r.content_digest("digest")?,
            data: r.rest("data", WHOLE_MAX_BYTES)?.to_vec(),
        },
        message_kinds::BEGIN => Message::Begin {
            file: get_file(r)?,
            lane: r.number("lane")?,
        },
        message_kinds::DATA => {
            let lane = r.number("lane")?;
            check_data(r.left(), 1, DATA_MAX_BYTES).map_err(|why| r.refuse("data", why))?;
            Message::Data {
                lane,
                data: r.rest("data", DATA_MAX_BYTES)?.to_vec(),
            }
        }
        message_kinds::COPY => {
            let lane = r.number("lane")?;
            let offset_bytes = r.varint("offset")?;
            let len_bytes = r.varint("length")?;
            check_range(offset_bytes, len_bytes).map_err(|why| r.refuse("range", why))?;
            Message::Copy {
                lane,
                offset_bytes,
                len_bytes,
            }
        }
        message_kinds::END => Message::End {
            lane: r.number("lane")?,
            digest: r.content_digest("digest")?,
        },
        message_kinds::UNSENT => {
            let file = get_file(r)?;
            let lane = r.number("lane")?;
            let [has_problem] = r.flags::<1>("problem")?;
            Message::Unsent {
                file,
                lane,
                problem: r.when(has_problem, encoding::get_problem)?,
            }
        }
        message_kinds::EVENT => Message::Event(encoding::get_event(r)?),
        message_kinds::GRANT => Message::Grant {
            class: r.number("class")?,
            bytes: r.varint_up_to("bytes", GRANT_MAX_BYTES)?,
        },
        message_kinds::PING => Message::Ping,
        message_kinds::FAIL => {
            let exit = r.number("exit")?;
            if exit == Exit::Ok {
                return Err(r.refuse("exit", "is the code of success"));
            }
            let Role(role) = r.number("role")?;
            Message::Fail {
                exit,
                role,
                message: r.line("message")?,
            }
        }
        message_kinds::BYE => Message::Bye(Box::new(encoding::get_tally(r)?)),
        message_kinds::MEET => Message::Meet(encoding::get_meeting(r)?),
        message_kinds::BLOCKED => Message::Blocked(r.number("class")?),
        message_kinds::VERDICT => {
            let [is_refused] = r.flags::<1>("verdict")?;
            Message::Verdict {
                refused: r.when(is_refused, |r| r.line("reason"))?,
            }
        }
        message_kinds::PLAN => Message::Plan(encoding::get_plan_piece(r)?),
        message_kinds::TOTALS => Message::Totals(get_totals(r)?),
        number => return Err(r.unknown("kind", number)),
    })
}

/// Checks the length of a piece of data.
fn check_data(len: usize, min: usize, max: usize) -> std::result::Result<(), String> {
    if (min..=max).contains(&len) {
        Ok(())
    } else {
        Err(format!("has {len} bytes, not {min} to {max}"))
    }
}

/// Checks a range of the basis.
fn check_range(offset_bytes: u64, len_bytes: u64) -> std::result::Result<(), &'static str> {
    match offset_bytes.checked_add(len_bytes) {
        _ if len_bytes == 0 => Err("is empty"),
        Some(end) if end <= FILE_MAX_BYTES => Ok(()),
        _ => Err("ends beyond FILE_MAX_BYTES"),
    }
}

fn put_totals(w: &mut Writer, totals: &SourceTotals) {
    let SourceTotals { list, unchanged } = totals;
    w.flags(&[list.complete]);
    w.varint(list.entries);
    w.varint(list.bytes);
    w.varint(unchanged.entries);
    w.varint(unchanged.files);
    w.varint(unchanged.bytes);
}

fn get_totals(r: &mut Reader) -> Result<SourceTotals> {
    let [complete] = r.flags::<1>("totals")?;
    Ok(SourceTotals {
        list: ListTotal {
            complete,
            entries: r.varint("entries")?,
            bytes: r.varint("bytes")?,
        },
        unchanged: EntryCounts {
            entries: r.varint("unchanged entries")?,
            files: r.varint("unchanged files")?,
            bytes: r.varint("unchanged bytes")?,
        },
    })
}

fn put_file(w: &mut Writer, file: &FileId) {
    w.varint(file.dir);
    w.u32(file.entry);
}

fn get_file(r: &mut Reader) -> Result<FileId> {
    Ok(FileId {
        dir: r.varint("directory")?,
        entry: r.u32("entry")?,
    })
}

fn put_basis(w: &mut Writer, have: &Basis) -> Result<()> {
    match have {
        Basis::None => w.byte(basis::NONE),
        Basis::Blocks(blocks) => {
            check_data(blocks.len(), 0, BASIS_MAX_BYTES).map_err(|why| w.refuse("blocks", why))?;
            w.byte(basis::BLOCKS);
            w.raw(blocks);
        }
        Basis::Prefix { len_bytes, digest } => {
            if *len_bytes > FILE_MAX_BYTES {
                return Err(w.refuse("prefix", "is longer than FILE_MAX_BYTES"));
            }
            w.byte(if digest.is_some() {
                basis::VERIFIED_PREFIX
            } else {
                basis::PREFIX
            });
            w.varint(*len_bytes);
            if let Some(digest) = digest {
                w.content_digest(digest);
            }
        }
    }
    Ok(())
}

fn get_basis(r: &mut Reader) -> Result<Basis> {
    let number = r.byte("basis")?;
    Ok(match number {
        basis::NONE => Basis::None,
        basis::BLOCKS => Basis::Blocks(r.rest("blocks", BASIS_MAX_BYTES)?.to_vec()),
        basis::PREFIX | basis::VERIFIED_PREFIX => {
            let len_bytes = r.varint_up_to("prefix", FILE_MAX_BYTES)?;
            let digest = r.when(number == basis::VERIFIED_PREFIX, |r| {
                r.content_digest("digest")
            })?;
            Basis::Prefix { len_bytes, digest }
        }
        number => return Err(r.unknown("basis", number)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the body is moved once more, to make room for its length.
    #[test]
    fn estimate_takes_as_many_bytes_as_the_length() {
        let file = FileId { dir: 3, entry: 300 };
        let lane = Lane::Requested;
        for message in [
            Message::Data {
                lane,
                data: vec![1; 127],
            },
            Message::Whole {
                file,
                lane,
                data: vec![1; 3000],
                digest: [2; 20],
            },
            Message::Want {
                file,
                lane,
                basis: Basis::Blocks(vec![1; 3000]),
            },
        ] {
            let mut body = Vec::new();
            put_body(&mut Writer::new("Test", &mut body), &message).unwrap();
            let estimated = varint_len(likely_len(&message) as u64);
            assert_eq!(estimated, varint_len(body.len() as u64), "{message:?}");
        }
    }
}

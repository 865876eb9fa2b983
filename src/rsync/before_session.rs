//! What a peer sends before the session: the filter rules, and the names of `--files-from`.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::{charset, sys};
use crate::proto::rsync::decode_error::{self, broken_stream, violation};
use crate::proto::rsync::filter_list;
use crate::proto::rsync::mux::{self, Control, FrameTag};
use crate::report::TextReporter;
use crate::rsync::controls::{Input, event_of};
use crate::rsync::error::undecodable as failed;
use crate::rsync::session_terms::RsyncTerms;
use crate::transport::Link;
use std::io::{self, Read};

/// Reads with `read` what a peer sends before the session, and returns the reader at the place behind. `text`: handles a
/// line of text.
pub fn read_before_session<T>(
    mut reader: Box<dyn Read + Send>,
    has_frames: bool,
    text: &mut dyn FnMut(FrameTag, Vec<u8>) -> decode_error::Result<()>,
    read: impl FnOnce(&mut Input<'_>) -> decode_error::Result<T>,
) -> Result<(T, Box<dyn Read + Send>)> {
    let mut gave_up = None;
    let mut handle = |control: Control| match control {
        Control::KeepAlive | Control::Noop => Ok(()),
        Control::ErrorExit(code) => {
            let exit = code
                .and_then(|code| u8::try_from(code).ok())
                .and_then(Exit::of_code);
            gave_up = Some(Error::new(exit.unwrap_or(Exit::Stream), "").by(""));
            Err(broken_stream("the peer gave up"))
        }
        Control::Text(tag, line) => text(tag, line),
        Control::IoError(_)
        | Control::IoTimeout(_)
        | Control::Success(_)
        | Control::Deleted { .. }
        | Control::NoSend(_) => Err(violation("message before the file list")),
    };
    let mut input = Input::new(&mut *reader, &mut handle);
    input.set_frames(has_frames);
    let read = read(&mut input);
    let rest_bytes = input.rest_bytes();
    let found = read.map_err(|error| gave_up.unwrap_or_else(|| failed(error)))?;
    sys::note_work();
    if rest_bytes > 0 {
        reader = Box::new(io::Cursor::new(mux::data_header(rest_bytes)).chain(reader));
    }
    Ok((found, reader))
}

/// Reads the names of a list at the server, which come in frames from protocol 31 on.
pub fn names_of_server(
    link: Link,
    terms: &RsyncTerms,
    reporter: &mut TextReporter,
) -> Result<(Vec<Vec<u8>>, Link)> {
    let mut report = |tag, mut line: Vec<u8>| {
        line.pop_if(|last| *last == b'\n');
        reporter.report(&event_of(tag, line));
        Ok(())
    };
    let (names, reader) =
        read_before_session(link.reader, terms.protocol >= 31, &mut report, |input| {
            read_names(input)
        })?;
    Ok((names, Link { reader, ..link }))
}

/// Encodes the names of `--files-from`.
pub fn encode_names(listed: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for name in listed {
        filter_list::encode_name(&charset::listed_to_wire(name), &mut out);
    }
    filter_list::encode_names_end(&mut out);
    out
}

/// Reads the names of `--files-from`.
pub fn read_names(input: &mut impl Read) -> decode_error::Result<Vec<Vec<u8>>> {
    Ok(filter_list::decode_names(input)?
        .into_iter()
        .map(charset::listed_from_wire)
        .collect())
}

//! What this end sends: in frames, or as bare data before protocol 30.

use crate::exit::Exit;
use crate::fs::charset;
use crate::proto::rsync::mux::{self, Control, FrameTag};
use crate::report::event::{Event, Problem, Weight};
use crate::rsync::controls::is_reported;
use crate::rsync::session_terms::RsyncTerms;
use crate::session::connection::WireOutput;

/// An output in rsync's protocol, which reports events as text.
pub trait TextOutput: WireOutput {
    /// Appends an event. Items and deletions have messages of their own.
    fn event(&mut self, event: &Event, out: &mut Vec<u8>);
}

/// How one direction of a connection is encoded.
#[derive(Debug, Clone, Copy)]
pub struct Framing {
    has_frames: bool,
    protocol: u8,
}

impl Framing {
    /// Returns the encoding of what the client sends. A server always sends frames.
    pub fn of_client(terms: &RsyncTerms) -> Framing {
        Framing {
            has_frames: terms.client_has_frames,
            protocol: terms.protocol,
        }
    }

    /// Returns the encoding of what the server sends.
    pub fn of_server(terms: &RsyncTerms) -> Framing {
        Framing {
            has_frames: true,
            protocol: terms.protocol,
        }
    }

    /// Appends data.
    pub fn data(self, data: &[u8], out: &mut Vec<u8>) {
        if self.has_frames {
            mux::encode_data(data, out)
        } else {
            out.extend_from_slice(data)
        }
    }

    /// Appends the names of `--files-from`, which have frames only from protocol 31 on.
    pub fn names(self, names: &[u8], out: &mut Vec<u8>) {
        Framing {
            has_frames: self.has_frames && self.protocol >= 31,
            ..self
        }
        .data(names, out);
    }

    /// Appends a control message, unless it does not exist in this protocol.
    pub fn control(self, control: Control, out: &mut Vec<u8>) {
        let control = match control {
            // Older protocols have two classes of text.
            Control::Text(FrameTag::Error, text) if self.protocol < 30 => {
                Control::Text(FrameTag::ErrorXfer, text)
            }
            Control::Text(FrameTag::Warning, text) if self.protocol < 30 => {
                Control::Text(FrameTag::Info, text)
            }
            control => control,
        };
        let since = match &control {
            Control::Text(..) | Control::KeepAlive | Control::Success(_) => 0,
            Control::Deleted { .. } => 29,
            Control::IoError(_) | Control::NoSend(_) | Control::Noop => 30,
            Control::ErrorExit(_) | Control::IoTimeout(_) => 31,
        };
        if self.has_frames && self.protocol >= since {
            mux::encode_control(&control, out);
        }
    }

    /// Appends an event as text. Items and deletions have messages of their own.
    pub fn event(self, event: &Event, out: &mut Vec<u8>) {
        if let Some((tag, line)) = text_of(event) {
            self.control(
                Control::Text(tag, [&*charset::line_to_wire(line), b"\n"].concat()),
                out,
            );
        }
    }

    /// Appends the report that this end gives up, if the peer learns of it.
    pub fn exit(self, exit: Exit, out: &mut Vec<u8>) {
        if is_reported(exit) {
            self.control(Control::ErrorExit(Some(i32::from(exit.code()))), out);
        }
    }
}

/// Returns the class of text and the line that report an event to the peer, if it is reported as text.
pub fn text_of(event: &Event) -> Option<(FrameTag, &[u8])> {
    match event {
        Event::Note(line) => Some((FrameTag::Info, line)),
        // Another line has reported it.
        Event::Problem(Problem { line, .. }) if line.is_empty() => None,
        Event::Problem(Problem {
            line,
            weight: Weight::Warning | Weight::Vanished,
            ..
        }) => Some((FrameTag::Warning, line)),
        Event::Problem(Problem { line, .. }) => Some((FrameTag::ErrorXfer, line)),
        Event::Item(_)
        | Event::Reused { .. }
        | Event::Deleted { .. }
        | Event::Missing(_)
        | Event::Listed { .. }
        | Event::Checked(_)
        | Event::Begin(_)
        | Event::SourceChanged(_)
        | Event::Verified { .. }
        | Event::Planned(_)
        | Event::Explained(_)
        | Event::Progress { .. } => None,
    }
}

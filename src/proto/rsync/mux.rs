//! Multiplexing: data and control messages in one stream of frames.

use super::decode_error::{Result, broken_stream};
use super::limits::{FRAME_MAX_BYTES, FRAME_SENT_MAX_BYTES, PATH_MAX_BYTES, TEXT_MAX_BYTES};
use super::number::{ReadWire as _, WriteWire as _};
use std::io::{self, Read};

/// The number that precedes each tag on the wire.
const TAG_BASE: u8 = 7;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameTag {
    /// A piece of the data stream.
    Data = 0,
    /// An error of one file.
    ErrorXfer = 1,
    /// Information for the user.
    Info = 2,
    /// An error.
    Error = 3,
    /// A warning.
    Warning = 4,
    /// Errors while the sender reads the source.
    IoError = 22,
    /// The timeout of a daemon.
    IoTimeout = 33,
    /// The keep-alive of rsync 3.0.
    Noop = 42,
    /// The peer gives up.
    ErrorExit = 86,
    /// A transferred file is safe at the destination.
    Success = 100,
    /// An entry was deleted.
    Deleted = 101,
    /// A requested file will not be sent.
    NoSend = 102,
}

impl FrameTag {
    const ALL: [FrameTag; 12] = [
        FrameTag::Data,
        FrameTag::ErrorXfer,
        FrameTag::Info,
        FrameTag::Error,
        FrameTag::Warning,
        FrameTag::IoError,
        FrameTag::IoTimeout,
        FrameTag::Noop,
        FrameTag::ErrorExit,
        FrameTag::Success,
        FrameTag::Deleted,
        FrameTag::NoSend,
    ];
}

/// A control message: everything between two pieces of data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Text for the user, normally with its newline. The tag is one of the four for text.
    Text(FrameTag, Vec<u8>),
    /// Bits to add to the `io_error` of the run.
    IoError(i32),
    /// The timeout in seconds that a daemon demands.
    IoTimeout(i32),
    /// An empty data frame: the peer is alive.
    KeepAlive,
    /// The keep-alive of rsync 3.0, which a sender answers with an empty data frame.
    Noop,
    /// The peer gives up, with this exit code unless it only confirms.
    ErrorExit(Option<i32>),
    /// The entry with this index is safe at the destination.
    Success(i32),
    /// This path was deleted at the destination.
    Deleted {
        /// The path relative to the destination.
        path: Vec<u8>,
        /// Whether it was a directory.
        is_dir: bool,
    },
    /// The file with this index will not be sent.
    NoSend(i32),
}

/// Appends a frame. The payload must not exceed [`FRAME_MAX_BYTES`].
pub fn encode_frame(tag: FrameTag, payload: &[u8], out: &mut Vec<u8>) {
    assert!(
        payload.len() <= FRAME_MAX_BYTES,
        "the length of a frame has 24 bits"
    );
    out.put_int((i32::from(TAG_BASE + tag as u8) << 24) | payload.len() as i32);
    out.put(payload);
}

/// Returns the header of a data frame. The length must not exceed [`FRAME_MAX_BYTES`].
pub fn data_header(len_bytes: usize) -> [u8; 4] {
    assert!(
        len_bytes <= FRAME_MAX_BYTES,
        "the length of a frame has 24 bits"
    );
    ((i32::from(TAG_BASE) << 24) | len_bytes as i32).to_le_bytes()
}

/// Appends a part of the data stream as frames; none if it is empty.
pub fn encode_data(data: &[u8], out: &mut Vec<u8>) {
    for piece in data.chunks(FRAME_SENT_MAX_BYTES) {
        encode_frame(FrameTag::Data, piece, out);
    }
}

/// Appends the frames of a control message. Text is cut into frames that every peer accepts.
pub fn encode_control(control: &Control, out: &mut Vec<u8>) {
    match control {
        Control::Text(tag, text) => {
            for piece in text.chunks(TEXT_MAX_BYTES) {
                encode_frame(*tag, piece, out);
            }
        }
        Control::IoError(bits) => encode_frame(FrameTag::IoError, &bits.to_le_bytes(), out),
        Control::IoTimeout(secs) => encode_frame(FrameTag::IoTimeout, &secs.to_le_bytes(), out),
        Control::KeepAlive => encode_frame(FrameTag::Data, b"", out),
        Control::Noop => encode_frame(FrameTag::Noop, b"", out),
        Control::ErrorExit(None) => encode_frame(FrameTag::ErrorExit, b"", out),
        Control::ErrorExit(Some(code)) => {
            encode_frame(FrameTag::ErrorExit, &code.to_le_bytes(), out)
        }
        Control::Success(index) => encode_frame(FrameTag::Success, &index.to_le_bytes(), out),
        Control::Deleted { path, is_dir } => {
            let mut payload = path.clone();
            payload.extend_from_slice(if *is_dir { b"\0" } else { b"" });
            encode_frame(FrameTag::Deleted, &payload, out);
        }
        Control::NoSend(index) => encode_frame(FrameTag::NoSend, &index.to_le_bytes(), out),
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The kind of the frame.
    pub tag: FrameTag,
    /// The length of its payload.
    pub len_bytes: usize,
}

impl FrameHeader {
    /// Decodes a header and checks the length for its tag.
    pub fn decode(header: [u8; 4]) -> Result<FrameHeader> {
        let [a, b, c, number] = header;
        let len_bytes = u32::from_le_bytes([a, b, c, 0]) as usize;
        let tag = FrameTag::ALL
            .into_iter()
            .find(|&tag| TAG_BASE + tag as u8 == number);
        let Some(tag) = tag else {
            return Err(broken_stream(format!(
                "unexpected tag {}",
                i16::from(number) - i16::from(TAG_BASE)
            )));
        };
        let is_valid = match tag {
            FrameTag::Data => true,
            FrameTag::ErrorXfer | FrameTag::Info | FrameTag::Error | FrameTag::Warning => {
                len_bytes <= TEXT_MAX_BYTES
            }
            FrameTag::Noop => len_bytes == 0,
            FrameTag::ErrorExit => matches!(len_bytes, 0 | 4),
            FrameTag::IoError | FrameTag::IoTimeout | FrameTag::Success | FrameTag::NoSend => {
                len_bytes == 4
            }
            FrameTag::Deleted => len_bytes <= PATH_MAX_BYTES + 1,
        };
        if !is_valid {
            return Err(broken_stream(format!(
                "a message of kind {} with {len_bytes} bytes",
                tag as u8
            )));
        }
        Ok(FrameHeader { tag, len_bytes })
    }

    /// Decodes the payload; `None` if it is data.
    fn control(self, mut payload: Vec<u8>) -> Option<Control> {
        let number = || {
            payload
                .first_chunk()
                .map_or(0, |bytes| i32::from_le_bytes(*bytes))
        };
        Some(match self.tag {
            FrameTag::Data if self.len_bytes > 0 => return None,
            FrameTag::Data => Control::KeepAlive,
            tag @ (FrameTag::ErrorXfer | FrameTag::Info | FrameTag::Error | FrameTag::Warning) => {
                Control::Text(tag, payload)
            }
            FrameTag::IoError => Control::IoError(number()),
            FrameTag::IoTimeout => Control::IoTimeout(number()),
            FrameTag::Noop => Control::Noop,
            FrameTag::ErrorExit => Control::ErrorExit((self.len_bytes > 0).then(number)),
            FrameTag::Success => Control::Success(number()),
            FrameTag::NoSend => Control::NoSend(number()),
            FrameTag::Deleted => {
                let is_dir = payload.pop_if(|last| *last == 0).is_some();
                Control::Deleted {
                    path: payload,
                    is_dir,
                }
            }
        })
    }
}

/// Reads the data of a stream of frames, and passes control messages to a function as they arrive.
///
/// The function can end the run: its error is returned by the read. Violations are I/O errors that hold a
/// [`DecodeError`](super::decode_error::DecodeError); converting them to that type restores it.
pub struct Demultiplexer<R, H> {
    input: R,
    handle: H,
    /// Whether the stream has frames; otherwise its bytes are data.
    has_frames: bool,
    /// What is left of the current data frame.
    rest_bytes: usize,
    /// How much data was read.
    read_bytes: u64,
    /// Called with all data that is read.
    record: Option<Record>,
}

/// Records data. Its error is returned by the read.
pub type Record = Box<dyn FnMut(&[u8]) -> Result<()> + Send>;

impl<R: Read, H: FnMut(Control) -> Result<()>> Demultiplexer<R, H> {
    /// Creates a demultiplexer for a stream that has no frames yet.
    pub fn new(input: R, handle: H) -> Demultiplexer<R, H> {
        Demultiplexer {
            input,
            handle,
            has_frames: false,
            rest_bytes: 0,
            read_bytes: 0,
            record: None,
        }
    }

    /// Determines whether frames follow. Must not be called within a data frame.
    pub fn set_frames(&mut self, has_frames: bool) {
        assert_eq!(
            self.rest_bytes, 0,
            "frames begin and end at the border of a frame"
        );
        self.has_frames = has_frames;
    }

    /// Passes all data that is read from now on to `record` as well.
    pub fn record_with(&mut self, record: Record) {
        self.record = Some(record);
    }

    /// Returns the bytes that are left of the current data frame.
    pub fn rest_bytes(&self) -> usize {
        self.rest_bytes
    }

    /// Returns how many bytes of data were read.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Continues where another demultiplexer of the same stream is.
    #[cfg(test)]
    pub fn resume<S, G>(&mut self, other: &Demultiplexer<S, G>) {
        (self.has_frames, self.rest_bytes) = (other.has_frames, other.rest_bytes);
    }

    /// Reads one frame if no data is pending. Returns whether data is pending then.
    pub fn read_frame(&mut self) -> Result<bool> {
        if self.rest_bytes > 0 {
            return Ok(true);
        }
        let header = FrameHeader::decode(self.input.array()?)?;
        if header.tag == FrameTag::Data && header.len_bytes > 0 {
            self.rest_bytes = header.len_bytes;
            return Ok(true);
        }
        let payload = self.input.byte_vec(header.len_bytes)?;
        header.control(payload).map_or(Ok(()), &mut self.handle)?;
        Ok(false)
    }
}

impl<R: Read, H: FnMut(Control) -> Result<()>> Read for Demultiplexer<R, H> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        if !self.has_frames {
            let got = self.input.read(into)?;
            self.read_bytes += got as u64;
            return Ok(got);
        }
        while !self.read_frame()? {}
        let most = self.rest_bytes.min(into.len());
        let got = self.input.read(&mut into[..most])?;
        self.rest_bytes -= got;
        self.read_bytes += got as u64;
        self.record
            .as_mut()
            .map_or(Ok(()), |record| record(&into[..got]))?;
        if got == 0 {
            Err(io::ErrorKind::UnexpectedEof.into())
        } else {
            Ok(got)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode_error::DecodeError;
    use super::*;
    use proptest::prelude::*;

    fn control() -> impl Strategy<Value = Control> {
        let bytes = || proptest::collection::vec(1u8.., 1..300);
        let text = prop::sample::select(vec![
            FrameTag::ErrorXfer,
            FrameTag::Info,
            FrameTag::Error,
            FrameTag::Warning,
        ]);
        prop_oneof![
            (text, bytes()).prop_map(|(tag, text)| Control::Text(tag, text)),
            any::<i32>().prop_map(Control::IoError),
            any::<i32>().prop_map(Control::IoTimeout),
            Just(Control::KeepAlive),
            Just(Control::Noop),
            any::<Option<i32>>().prop_map(Control::ErrorExit),
            any::<i32>().prop_map(Control::Success),
            any::<i32>().prop_map(Control::NoSend),
            (bytes(), any::<bool>()).prop_map(|(path, is_dir)| Control::Deleted { path, is_dir }),
        ]
    }

    proptest! {
        #[test]
        fn data_and_messages_are_separated(
            parts in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..100), control()), 0..10),
        ) {
            let mut wire = Vec::new();
            for (data, control) in &parts {
                encode_data(data, &mut wire);
                encode_control(control, &mut wire);
            }
            encode_data(b"last", &mut wire);
            let mut controls = Vec::new();
            let mut input = Demultiplexer::new(&wire[..], |control| { controls.push(control); Ok(()) });
            input.set_frames(true);
            let wanted: Vec<u8> = parts.iter().flat_map(|(data, _)| data).chain(b"last").copied().collect();
            prop_assert_eq!(input.byte_vec(wanted.len()).unwrap(), wanted);
            prop_assert_eq!(controls, parts.into_iter().map(|(_, control)| control).collect::<Vec<_>>());
        }

        #[test]
        fn arbitrary_frames_are_read_or_rejected(wire in proptest::collection::vec(any::<u8>(), 0..200), tag in 0u8..112) {
            let wire = [&[3, 0, 0, tag][..], &wire].concat();
            let mut input = Demultiplexer::new(&wire[..], |_| Ok(()));
            input.set_frames(true);
            prop_assert!(io::copy(&mut input, &mut io::sink()).is_err(), "a stream of frames has no end");
        }
    }

    #[test]
    fn lengths_of_messages_are_limited() {
        let is_valid = |tag: FrameTag, len: usize| {
            let mut out = Vec::new();
            encode_frame(tag, &vec![b'x'; len], &mut out);
            FrameHeader::decode(*out.first_chunk().unwrap()).is_ok()
        };
        assert!(is_valid(FrameTag::Deleted, PATH_MAX_BYTES + 1));
        assert!(!is_valid(FrameTag::Deleted, PATH_MAX_BYTES + 2));
        assert!(is_valid(FrameTag::Info, TEXT_MAX_BYTES));
        assert!(!is_valid(FrameTag::Info, TEXT_MAX_BYTES + 1));
        assert!(is_valid(FrameTag::Success, 4) && !is_valid(FrameTag::Success, 3));
        let data = FrameHeader {
            tag: FrameTag::Data,
            len_bytes: 3,
        };
        assert_eq!(data.control(b"abc".to_vec()), None);
    }

    #[test]
    fn data_is_counted_and_recorded() {
        let mut wire = data_header(3).to_vec();
        wire.extend_from_slice(b"abc");
        encode_control(&Control::KeepAlive, &mut wire);
        encode_data(b"de", &mut wire);
        let wire = [b"first", &wire[..]].concat();
        let mut input = Demultiplexer::new(&wire[..], |_| Ok(()));
        let recorded = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
        let record = recorded.clone();
        input.record_with(Box::new(move |bytes| {
            record.lock().extend_from_slice(bytes);
            Ok(())
        }));
        assert_eq!(input.byte_vec(5).unwrap(), b"first");
        assert_eq!(input.read_bytes(), 5);
        input.set_frames(true);
        assert_eq!(input.byte_vec(2).unwrap(), b"ab");
        assert_eq!((input.rest_bytes(), input.read_bytes()), (1, 7));
        assert_eq!(input.byte_vec(3).unwrap(), b"cde");
        assert_eq!((input.rest_bytes(), input.read_bytes()), (0, 10));
        assert_eq!(recorded.lock()[..], b"abcde"[..]);
    }

    #[test]
    fn violations_are_kept_through_the_read_trait() {
        let mut input = Demultiplexer::new(&[0, 0, 0, 12][..], |_| Ok(()));
        input.set_frames(true);
        let error = input.byte().unwrap_err();
        assert!(matches!(&error, DecodeError::Violation { .. }), "{error:?}");
        assert_eq!(error.to_string(), "protocol error: unexpected tag 5");
        let mut ended = Demultiplexer::new(&[0, 0, 0, 93, 0, 0, 0, 7][..], |_| {
            Err(broken_stream("the peer gave up"))
        });
        ended.set_frames(true);
        assert_eq!(
            ended.byte().unwrap_err().to_string(),
            "protocol error: the peer gave up"
        );
    }
}

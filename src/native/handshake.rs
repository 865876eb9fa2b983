//! The handshake of a session: both ends greet, and the client requests a session here or at another endpoint.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::sys;
use crate::proto::limits::OPENING_MAX_BYTES;
use crate::proto::message::ACTS_AS_SUPER;
use crate::proto::{
    Dialect, Greeting, Meeting, Message, ProtocolSupport, Setup, agree, decode_greeting,
    encode_greeting,
};
use crate::session::connection::{cannot_read, lost};
use crate::transport::Link;
use std::io::{self, Read, Write};

/// The request of a client after its greeting.
pub enum Opening {
    /// A session on this link.
    Session(Box<Begun>),
    /// A session at another endpoint.
    Meeting(EndpointRequest),
}

/// A session after its handshake.
pub struct Begun {
    /// The client's request.
    pub setup: Setup,
    /// The client's greeting.
    pub theirs: Greeting,
    /// The negotiated version.
    pub version: u16,
    /// The dialect and features of this end.
    pub support: ProtocolSupport,
    /// The link behind the client's `Setup`.
    pub link: Link,
}

/// A client's request for another endpoint.
pub struct EndpointRequest {
    /// The client's key and addresses.
    pub client: Meeting,
    /// Carries only the answer. The client keeps its end open while the session lasts.
    pub link: Link,
    dialect: Box<dyn Dialect + Send>,
}

/// Greets a client and reads its request. `support` describes this end.
pub fn greet(mut link: Link, support: &ProtocolSupport) -> Result<Opening> {
    // The greeting is sent before the request is known, so it states what this process is able to do.
    let mut ours = support.greeting(sys::random());
    if sys::ids().0 == 0 {
        ours.features |= ACTS_AS_SUPER;
    }
    let mut flight = Vec::new();
    encode_greeting(&ours, &mut flight);
    send(&mut *link.writer, &flight)?;
    let (theirs, mut link) = receive_greeting(link)?;
    // Without a common version, the error cannot be sent. The client finds it out itself.
    let version = agree(&ours, &theirs)?;
    let dialect = || (support.dialect)(version);
    match receive(&mut link, &mut decoded_by(dialect())) {
        Ok(Message::Setup(setup)) => Ok(Opening::Session(Box::new(Begun {
            setup: *setup,
            theirs,
            version,
            support: support.clone(),
            link,
        }))),
        Ok(Message::Meet(client)) => Ok(Opening::Meeting(EndpointRequest {
            client,
            link,
            dialect: dialect(),
        })),
        Ok(_) => Err(refused(&mut link, &mut *dialect(), no_request())),
        Err(error) => Err(refused(&mut link, &mut *dialect(), error)),
    }
}

fn no_request() -> Error {
    Error::new(
        Exit::Protocol,
        "sparsync: protocol error: no request from the client",
    )
}

/// Sends an error to a client, which may be gone, and returns it.
fn refused(link: &mut Link, dialect: &mut dyn Dialect, error: Error) -> Error {
    let _ = send_message(link, dialect, &failure(&error));
    error
}

fn failure(error: &Error) -> Message {
    Message::Fail {
        exit: error.exit,
        message: error.text(),
        role: error.role,
    }
}

fn send_message(link: &mut Link, dialect: &mut dyn Dialect, message: &Message) -> Result<()> {
    let mut flight = Vec::new();
    dialect.encode(message, &mut flight)?;
    send(&mut *link.writer, &flight)
}

impl EndpointRequest {
    /// Sends the endpoint of the session, or the reason why there is none.
    pub fn answer(&mut self, answer: std::result::Result<Meeting, &Error>) -> Result<()> {
        let answer = answer.map_or_else(failure, Message::Meet);
        send_message(&mut self.link, &mut *self.dialect, &answer)
    }

    /// Rejects the request of a client that can only have a session here. Returns the error that was sent.
    pub fn reject(mut self) -> Error {
        refused(&mut self.link, &mut *self.dialect, no_request())
    }
}

/// Requests another endpoint from the server at the other end of a link. The returned link must stay open while the
/// session lasts.
pub fn request_other_endpoint(
    link: Link,
    support: &ProtocolSupport,
    client: Meeting,
) -> Result<(Meeting, Link)> {
    let ours = support.greeting(sys::random());
    let mut flight = Vec::new();
    encode_greeting(&ours, &mut flight);
    let (theirs, mut link) = receive_greeting(link)?;
    let version = agree(&ours, &theirs).inspect_err(|_| {
        // Send the greeting, so that the server can report the version mismatch, too.
        let _ = send(&mut *link.writer, &flight);
    })?;
    (support.dialect)(version).encode(&Message::Meet(client), &mut flight)?;
    send(&mut *link.writer, &flight)?;
    match receive(&mut link, &mut decoded_by((support.dialect)(version)))? {
        Message::Meet(place) => Ok((place, link)),
        Message::Fail {
            exit,
            message,
            role,
        } => Err(Error::of_text(exit, &message).by(role)),
        _ => Err(Error::new(
            Exit::Protocol,
            "sparsync: protocol error: no session address from the server",
        )),
    }
}

/// Sends whether the client's request was granted; `refused` is the reason if not.
pub fn send_verdict(
    link: &mut Link,
    dialect: &mut dyn Dialect,
    refused: Option<Vec<u8>>,
) -> Result<()> {
    send_message(link, dialect, &Message::Verdict { refused })
}

/// Reads whether the request was granted; returns the reason if not.
pub fn receive_verdict(
    mut link: Link,
    dialect: Box<dyn Dialect + Send>,
) -> Result<(Option<Vec<u8>>, Link)> {
    match receive(&mut link, &mut decoded_by(dialect))? {
        Message::Verdict { refused } => Ok((refused, link)),
        Message::Fail {
            exit,
            message,
            role,
        } => Err(Error::of_text(exit, &message).by(role)),
        _ => Err(Error::new(
            Exit::Protocol,
            "sparsync: protocol error: no verdict from the server",
        )),
    }
}

fn send(writer: &mut dyn Write, flight: &[u8]) -> Result<()> {
    writer
        .write_all(flight)
        .and_then(|()| writer.flush())
        .map_err(|error| lost("writing", &error))
}

/// Decodes a value from the available bytes and returns it with its length; `None` if more bytes are needed.
type Take<'t, T> = dyn FnMut(&[u8]) -> Result<Option<(T, usize)>> + 't;

/// Reads until `take` returns a value. Afterwards, the link continues behind the bytes of that value.
fn receive<T>(link: &mut Link, take: &mut Take<'_, T>) -> Result<T> {
    let mut received = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        if let Some((found, len)) = take(&received)? {
            let beyond = io::Cursor::new(received.split_off(len));
            let rest = std::mem::replace(&mut link.reader, Box::new(io::empty()));
            link.reader = Box::new(beyond.chain(rest));
            return Ok(found);
        }
        if received.len() > 2 * OPENING_MAX_BYTES {
            return Err(Error::new(
                Exit::Protocol,
                "sparsync: protocol error: first message too long",
            ));
        }
        match link.reader.read(&mut piece) {
            Ok(0) => {
                return Err(Error::new(
                    Exit::Stream,
                    "sparsync: connection unexpectedly closed",
                ));
            }
            Ok(got) => received.extend_from_slice(&piece[..got]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(cannot_read(&error)),
        }
    }
}

/// Reads the peer's greeting.
pub fn receive_greeting(mut link: Link) -> Result<(Greeting, Link)> {
    receive(&mut link, &mut decode_greeting).map(|greeting| (greeting, link))
}

/// Returns what decodes a first message.
fn decoded_by(
    mut dialect: Box<dyn Dialect + Send>,
) -> impl FnMut(&[u8]) -> Result<Option<(Message, usize)>> {
    move |bytes| {
        let mut input = bytes;
        Ok(dialect
            .decode(&mut input)?
            .map(|message| (message, bytes.len() - input.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::pipe;

    const CLIENT: [u8; 32] = [1; 32];

    fn place(pin: [u8; 32], port: u16) -> Meeting {
        Meeting {
            pin,
            port,
            addresses: vec![[192, 0, 2, 7].into()],
        }
    }

    /// Runs a client that requests another endpoint against a server with this answer.
    fn meets(answer: Result<Meeting>) -> (Result<Meeting>, Result<()>) {
        let (near, far) = pipe::pair(1 << 10);
        std::thread::scope(|scope| {
            let server = scope.spawn(move || match greet(far, &ProtocolSupport::ours(0))? {
                Opening::Meeting(mut requested) => {
                    assert_eq!(requested.client, place(CLIENT, 0));
                    requested.answer(answer.as_ref().cloned())
                }
                Opening::Session(_) => panic!("nothing was requested"),
            });
            let requested =
                request_other_endpoint(near, &ProtocolSupport::ours(0), place(CLIENT, 0))
                    .map(|(place, _)| place);
            (requested, server.join().unwrap())
        })
    }

    /// Sends a server `flight` as the first message of its client. Returns the error of the server, and what it sent.
    fn refusal_of(flight: &[u8]) -> (Error, Message) {
        let (mut near, far) = pipe::pair(1 << 10);
        std::thread::scope(|scope| {
            let server = scope.spawn(move || greet(far, &ProtocolSupport::ours(0)).err().unwrap());
            let mut greeting = Vec::new();
            encode_greeting(&ProtocolSupport::ours(0).greeting([0; 16]), &mut greeting);
            send(&mut *near.writer, &[&greeting, flight].concat()).unwrap();
            let (_, mut link) = receive_greeting(near).unwrap();
            let answer = receive(
                &mut link,
                &mut decoded_by((ProtocolSupport::ours(0).dialect)(1)),
            )
            .unwrap();
            (server.join().unwrap(), answer)
        })
    }

    #[test]
    fn client_without_a_request_receives_the_error() {
        let mut verdict = Vec::new();
        (ProtocolSupport::ours(0).dialect)(1)
            .encode(&Message::Verdict { refused: None }, &mut verdict)
            .unwrap();
        for flight in [&verdict[..], &[0xff; 64]] {
            let (error, answer) = refusal_of(flight);
            let Message::Fail { exit, message, .. } = answer else {
                panic!("{answer:?}")
            };
            assert_eq!((exit, message), (Exit::Protocol, error.text()));
        }
    }

    #[test]
    fn meet_returns_the_servers_place_or_error() {
        let endpoint = place([2; 32], 40_000);
        assert_eq!(meets(Ok(endpoint.clone())), (Ok(endpoint), Ok(())));
        let no = Error::new(Exit::SocketIo, "no port is free").by("receiver");
        assert_eq!(meets(Err(no.clone())), (Err(no), Ok(())));
    }
}

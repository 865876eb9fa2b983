//! The first words of a conversation: both greet, and the client says what it wants, or that it wants it elsewhere.

use super::line::cannot_read;
use crate::error::Error;
use crate::exit::Exit;
use crate::fs::sys;
use crate::proto::limits::OPENING_MAX_BYTES;
use crate::proto::message::{ACTS_AS_SUPER, MEETS};
use crate::proto::{Dialect, Greeting, Meeting, Message, Setup, Speech, agree, decode_greeting, encode_greeting};
use crate::transport::Link;
use std::io::{self, Read, Write};

/// What a client that was greeted wants.
pub enum Opening {
    /// A session.
    Session(Box<Begun>),
    /// A session that takes place elsewhere.
    Meeting(Asked),
}

/// A session that begins.
pub struct Begun {
    /// What the client asks for.
    pub setup: Setup,
    /// The client's greeting.
    pub theirs: Greeting,
    /// The version that both speak.
    pub version: u16,
    /// How this end spells it.
    pub speech: Speech,
    /// What the client says behind its `Setup`, and what it shall hear.
    pub link: Link,
}

/// A client that asks for another place.
pub struct Asked {
    /// What it says of itself.
    pub client: Meeting,
    /// Nothing more is said here than an answer; the client holds its end while the session lasts.
    pub link: Link,
    dialect: Box<dyn Dialect + Send>,
}

/// Greets a client and hears what it wants. `speech`: what this end speaks; with [`MEETS`] among its features the client may
/// ask for another place.
pub fn greet(mut link: Link, speech: &Speech) -> Result<Opening, Error> {
    // What this end may do, it says before it knows what it is asked for.
    let mut ours = speech.greeting(sys::random());
    if sys::ids().0 == 0 {
        ours.features |= ACTS_AS_SUPER;
    }
    let mut flight = Vec::new();
    encode_greeting(&ours, &mut flight);
    say(&mut *link.writer, &flight)?;
    let (theirs, link) = hear_greeting(link)?;
    let version = agree(&ours, &theirs)?;
    let (message, link) = hear_message(link, (speech.dialect)(version))?;
    match message {
        Message::Setup(setup) => {
            Ok(Opening::Session(Box::new(Begun { setup: *setup, theirs, version, speech: speech.clone(), link })))
        }
        Message::Meet(client) if ours.features & theirs.features & MEETS != 0 => {
            Ok(Opening::Meeting(Asked { client, link, dialect: (speech.dialect)(version) }))
        }
        _ => Err(Error::new(Exit::Protocol, "sparsync: the client does not say what it wants")),
    }
}

impl Asked {
    /// Says where the session takes place, or why it does not.
    pub fn answer(&mut self, answer: Result<Meeting, &Error>) -> Result<(), Error> {
        let answer = match answer {
            Ok(place) => Message::Meet(place),
            Err(error) => Message::Fail { exit: error.exit, message: error.message.clone(), role: error.role },
        };
        let mut flight = Vec::new();
        self.dialect.encode(&answer, &mut flight)?;
        say(&mut *self.link.writer, &flight)
    }
}

/// Asks the server at the other end of a link for another place. `None`: it knows of none, because it is older. The link
/// must be held while the session lasts.
pub fn ask_elsewhere(link: Link, speech: &Speech, client: Meeting) -> Result<Option<(Meeting, Link)>, Error> {
    let mut ours = speech.greeting(sys::random());
    ours.features |= MEETS;
    let mut flight = Vec::new();
    encode_greeting(&ours, &mut flight);
    let (theirs, mut link) = hear_greeting(link)?;
    let version = agree(&ours, &theirs).inspect_err(|_| {
        // The far end shall know as well why this ends.
        let _ = say(&mut *link.writer, &flight);
    })?;
    if theirs.features & MEETS == 0 {
        return Ok(None);
    }
    (speech.dialect)(version).encode(&Message::Meet(client), &mut flight)?;
    say(&mut *link.writer, &flight)?;
    match hear_message(link, (speech.dialect)(version))? {
        (Message::Meet(place), link) => Ok(Some((place, link))),
        (Message::Fail { exit, message, role }, _) => Err(Error::new(exit, message).by(role)),
        _ => Err(Error::new(Exit::Protocol, "sparsync: the server does not say where the session shall take place")),
    }
}

/// Says whether what a client asks for was granted, and if not, why.
pub fn say_verdict(link: &mut Link, dialect: &mut dyn Dialect, refused: Option<Vec<u8>>) -> Result<(), Error> {
    let mut flight = Vec::new();
    dialect.encode(&Message::Verdict { refused }, &mut flight)?;
    say(&mut *link.writer, &flight)
}

/// Hears whether what was asked for was granted; if not, why.
pub fn hear_verdict(link: Link, dialect: Box<dyn Dialect + Send>) -> Result<(Option<Vec<u8>>, Link), Error> {
    match hear_message(link, dialect)? {
        (Message::Verdict { refused }, link) => Ok((refused, link)),
        (Message::Fail { exit, message, role }, _) => Err(Error::new(exit, message).by(role)),
        _ => {
            Err(Error::new(Exit::Protocol, "sparsync: the server does not say whether it grants what it is asked for"))
        }
    }
}

fn say(writer: &mut dyn Write, flight: &[u8]) -> Result<(), Error> {
    writer.write_all(flight).and_then(|()| writer.flush()).map_err(|error| lost("writing", &error))
}

/// What it means that a link broke off.
pub fn lost(what: &str, error: &io::Error) -> Error {
    Error::new(Exit::Stream, format!("sparsync: connection unexpectedly closed ({what}: {error})"))
}

/// Makes something of the bytes that there are, and says how many it took; `None`: there are not enough.
type Take<'t, T> = dyn FnMut(&[u8]) -> Result<Option<(T, usize)>, Error> + 't;

/// Reads on until there is enough for `take`; returns what it made. The link then goes on behind that.
fn hear<T>(mut link: Link, take: &mut Take<'_, T>) -> Result<(T, Link), Error> {
    let mut heard = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        if let Some((found, len)) = take(&heard)? {
            let beyond = io::Cursor::new(heard.split_off(len));
            return Ok((found, Link { reader: Box::new(beyond.chain(link.reader)), ..link }));
        }
        if heard.len() > 2 * OPENING_MAX_BYTES {
            return Err(Error::new(Exit::Protocol, "sparsync: the peer begins with too much"));
        }
        match link.reader.read(&mut piece) {
            Ok(0) => return Err(Error::new(Exit::Stream, "sparsync: connection unexpectedly closed")),
            Ok(got) => heard.extend_from_slice(&piece[..got]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(cannot_read(&error)),
        }
    }
}

/// The peer's greeting.
pub fn hear_greeting(link: Link) -> Result<(Greeting, Link), Error> {
    hear(link, &mut decode_greeting)
}

fn hear_message(link: Link, mut dialect: Box<dyn Dialect + Send>) -> Result<(Message, Link), Error> {
    hear(link, &mut |bytes| {
        let mut input = bytes;
        Ok(dialect.decode(&mut input)?.map(|message| (message, bytes.len() - input.len())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Native;
    use crate::transport::pipe;

    const CLIENT: [u8; 32] = [1; 32];

    fn place(pin: [u8; 32], port: u16) -> Meeting {
        Meeting { pin, port, addresses: vec![[192, 0, 2, 7].into()] }
    }

    /// A client asks for another place; a server says this of itself and answers so.
    fn meets(features: u64, answer: Result<Meeting, Error>) -> (Result<Option<Meeting>, Error>, Result<(), Error>) {
        let (near, far) = pipe::pair(1 << 10);
        std::thread::scope(|scope| {
            let server = scope.spawn(move || match greet(far, &Speech::ours(features))? {
                Opening::Meeting(mut asked) => {
                    assert_eq!(asked.client, place(CLIENT, 0));
                    asked.answer(answer.as_ref().cloned())
                }
                Opening::Session(_) => panic!("none was asked for"),
            });
            let asked = ask_elsewhere(near, &Speech::ours(0), place(CLIENT, 0)).map(|met| met.map(|(place, _)| place));
            (asked, server.join().unwrap())
        })
    }

    #[test]
    fn a_server_that_can_says_where_or_why_not() {
        let there = place([2; 32], 40_000);
        assert_eq!(meets(MEETS, Ok(there.clone())), (Ok(Some(there)), Ok(())));
        let no = Error::new(Exit::SocketIo, "no port is free").by("receiver");
        assert_eq!(meets(MEETS, Err(no.clone())), (Err(no), Ok(())));
    }

    #[test]
    fn a_server_that_does_not_know_how_is_not_asked() {
        let (asked, server) = meets(0, Ok(place([2; 32], 1)));
        assert_eq!((asked, server.unwrap_err().exit), (Ok(None), Exit::Stream));
    }

    #[test]
    fn who_was_not_told_that_it_can_be_had_gets_no_other_place() {
        for (ours, theirs) in [(0, MEETS), (MEETS, 0)] {
            let (mut near, far) = pipe::pair(1 << 10);
            let mut flight = Vec::new();
            encode_greeting(&Greeting { features: theirs, ..Greeting::ours([3; 16]) }, &mut flight);
            Native::new(1).encode(&Message::Meet(place(CLIENT, 0)), &mut flight).unwrap();
            near.writer.write_all(&flight).unwrap();
            assert_eq!(greet(far, &Speech::ours(ours)).err().map(|error| error.exit), Some(Exit::Protocol));
        }
    }
}

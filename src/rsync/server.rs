//! The server's end of a session that an rsync has started: the client pulls from this sender, or pushes to this receiver.
//!
//! Here is what both roles share: the greeting, what the client sends before the session, reports and the log. The client
//! prints for both.

mod receiver;
mod sender;

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::filter::{self, Parsed, Rules};
use crate::options::{Checksum, Options, Recurse, StderrMode};
use crate::proto::rsync::decode_error::{self, violation};
use crate::proto::rsync::filter_list;
use crate::proto::rsync::handshake::{self, Capabilities, CompatFlags};
use crate::proto::rsync::mux::{self, Control, FrameTag};
use crate::proto::rsync::number::WriteWire as _;
use crate::report::event::{Event, Problem, Weight};
use crate::report::final_error::error_lines;
use crate::report::{Tally, TextReporter, totals_line};
use crate::rsync::before_session::{read_before_session, read_names};
use crate::rsync::controls::is_reported;
use crate::rsync::framing::{Framing, TextOutput, text_of};
use crate::rsync::link_io::{buffered, send};
use crate::rsync::negotiation::{Offer, negotiate, receive_version};
use crate::rsync::session_terms::RsyncTerms;
use crate::rsync::support::needs_whole_list;
use crate::rsync::{charset_line, older};
use crate::session::connection::{Connection, Intake, Urgency, WireOutput};
use crate::session::io_threads::{SessionIo, counted};
use crate::session::module_log::ModuleLog;
use crate::transport::{Link, LinkBytes};
use crate::walk::run_context::{Process, RunContext};
use parking_lot::Mutex;
use std::io::{self, Read, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The server's end of a copy whose client is a stock rsync.
pub struct RsyncServer<'a> {
    /// The settled options.
    pub options: &'a Options,
    /// The options on the command line.
    pub words: &'a [Vec<u8>],
    /// The source arguments, or the destination.
    pub operands: &'a [Vec<u8>],
    /// The names of a `--files-from` list on this machine.
    pub listed: Option<Vec<Vec<u8>>>,
    /// The checksums that this end supports.
    pub sums: Vec<Checksum>,
    /// What the client supports.
    pub capabilities: Capabilities,
    /// The seed of the checksums.
    pub seed: i32,
    /// Completes the rules of the client with those of this end, given the protocol.
    pub complete_rules: &'a (dyn Fn(Vec<Parsed>, u8) -> Rules + Sync),
    /// Prints a line to standard error.
    pub print_error: &'a (dyn Fn(&[u8]) + Sync),
    pub process: Process<'a>,
    /// The module, if a daemon serves the client.
    pub daemon: Option<DaemonTerms<'a>>,
    /// Writes the log of `--log-file`.
    pub log: Option<&'a Mutex<&'a mut TextReporter>>,
}

/// What differs if a daemon serves the client: nothing but the connection leads to it.
#[derive(Clone, Copy)]
pub struct DaemonTerms<'a> {
    /// The protocol version that the greetings agreed on.
    pub protocol: u8,
    /// The timeout that the client must not exceed; 0: none.
    pub timeout_secs: u32,
    /// The log of the daemon.
    pub log: &'a ModuleLog,
}

/// What a client sends first.
#[derive(Default)]
pub(in crate::rsync) struct ClientLists {
    pub(in crate::rsync) rules: Vec<Parsed>,
    listed: Option<Vec<Vec<u8>>>,
}

impl RsyncServer<'_> {
    /// Logs the error that ends a session, unless it was reported. The client of a daemon cannot learn it.
    pub(in crate::rsync) fn log_error(&self, error: Error, role: &'static str) -> Error {
        if self.daemon.is_none() && self.log.is_none() {
            return error;
        }
        let timeout_secs = self.options.connect.timeout_secs;
        let error = match error.exit {
            Exit::Timeout => Error {
                message: format!("[{role}] io timeout after {timeout_secs} seconds -- exiting")
                    .into(),
                ..error
            },
            _ => error,
        };
        if !error.message.is_empty() {
            for line in error_lines(&error, role) {
                self.log_line(&line);
            }
        }
        error
    }

    /// Begins the log. A daemon has done so. `role`: the one of this end.
    pub(in crate::rsync) fn begin_log(&self, role: &str) {
        let Some(log) = self.log else {
            return;
        };
        if self.daemon.is_some() {
            return;
        }
        if let Some(line) = charset_line(self.options, role) {
            self.log_line(&line);
        }
        log.lock().banner();
    }

    /// Adds a line to the log.
    pub(in crate::rsync) fn log_line(&self, line: &[u8]) {
        if let Some(daemon) = &self.daemon {
            (daemon.log.put)(line);
        } else if let Some(log) = self.log {
            // A quiet reporter would leave out a note.
            log.lock().error(line);
        }
    }

    /// Adds an event of this end to the log.
    pub(in crate::rsync) fn log(&self, event: &Event) {
        if let Event::Note(line) = event {
            self.log_line(line);
        } else if let Some(log) = self.log {
            log.lock().report(event);
        }
    }

    /// Adds the totals to the log.
    pub(in crate::rsync) fn end_log(&self, traffic: &LinkBytes, tally: &Tally, is_complete: bool) {
        let Some(log) = self.log else {
            return;
        };
        if self.daemon.is_some() {
            return;
        }
        let mut log = log.lock();
        log.traffic(traffic.counts());
        if is_complete {
            log.summary(tally, Duration::ZERO);
        }
        log.flush();
    }

    /// Adds the totals to the log of a daemon.
    pub(in crate::rsync) fn log_totals(&self, traffic: &LinkBytes, tally: &Tally) {
        let Some(daemon) = &self.daemon else { return };
        (daemon.log.put)(totals_line(traffic.counts(), tally.total_bytes).as_bytes());
    }

    /// Reads what the client sends first. `role`: the one of this end.
    pub(in crate::rsync) fn open(
        &self,
        link: Link,
        terms: RsyncTerms,
        reads_names: bool,
        role: &'static str,
    ) -> Result<(ClientLists, Link)> {
        let Link {
            reader,
            mut writer,
            parting,
            leave,
            moved,
        } = link;
        let framing = Framing::of_server(&terms);
        let opened = older::check(self.options, terms.protocol).and_then(|()| {
            read_opening(reader, terms.protocol, terms.client_has_frames, reads_names)
        });
        let (opening, reader) = opened.map_err(|error| {
            let mut frame = Vec::new();
            let error = match &self.daemon {
                Some(daemon) => {
                    for line in error_lines(&error, role) {
                        daemon.put(&line, framing, &mut frame);
                    }
                    Error::new(error.exit, "").by("")
                }
                None => self.print_before_exit(error, role),
            };
            framing.exit(error.exit, &mut frame);
            // The client is gone if this cannot be sent.
            let _ = writer.write_all(&frame).and_then(|()| writer.flush());
            error
        })?;
        Ok((
            opening,
            Link {
                reader,
                writer,
                parting,
                leave,
                moved,
            },
        ))
    }

    /// Returns the context of the run.
    pub(in crate::rsync) fn run_context<'t>(
        &'t self,
        rules: &'t Rules,
        interrupted: &'t AtomicBool,
    ) -> RunContext<'t> {
        RunContext {
            options: self.options,
            rules,
            process: self.process,
            repeats: false,
            interrupted,
            gauge: None,
        }
    }

    /// Completes the handshake, reports an error to the client, and ends the session. For arguments of which the client
    /// learns only then that they are not accepted.
    pub fn refuse(&self, link: Link, error: &Error) -> Result<()> {
        let (link, traffic) = counted(link);
        let (terms, mut link) = self.greet(link, true)?;
        let framing = Framing::of_server(&terms);
        let mut frames = Vec::new();
        if let Some(daemon) = &self.daemon {
            let lines = error_lines(error, "sender");
            for (at, line) in lines.iter().enumerate() {
                if at + 1 == lines.len() && error.role == "sender" {
                    self.log_totals(&traffic, &Tally::default());
                }
                daemon.put(line, framing, &mut frames);
            }
        } else {
            self.begin_log("Receiver");
            self.print_before_exit(error.clone(), "Receiver");
        }
        framing.exit(error.exit, &mut frames);
        send(&mut link, &frames)?;
        // Unread data would make the system reset the connection, and the client would lose the message.
        let mut rest = [0; 4096];
        link.parting.begin();
        while link.reader.read(&mut rest).is_ok_and(|count| count > 0) {}
        Ok(())
    }

    /// Prints an error whose exit code the client learns. It may end this process once it has learned it. Returns an
    /// error of which nothing is left to print.
    pub(in crate::rsync) fn print_before_exit(&self, error: Error, role: &'static str) -> Error {
        if !is_reported(error.exit) {
            return error;
        }
        for line in error_lines(&error, role) {
            (self.print_error)(&line);
            // A daemon has reported and logged it.
            if let Some(log) = self.log
                && self.daemon.is_none()
            {
                log.lock().error(&line);
            }
        }
        Error::new(error.exit, "").by("")
    }

    /// Reports the error that ends a session; see [`RsyncServer::print_before_exit`].
    pub(in crate::rsync) fn report_before_exit<O: TextOutput>(
        &self,
        error: Error,
        role: &'static str,
        connection: &Connection<O>,
    ) -> Error {
        if let Some(daemon) = &self.daemon
            && is_reported(error.exit)
        {
            // An older client prints warnings on standard output.
            let weight = if daemon.protocol < 30 {
                Weight::Failed
            } else {
                Weight::Warning
            };
            for line in error_lines(&error, role) {
                // The session ends with the error in any case.
                let _ = self.report(Event::Problem(Problem::new(line, weight)), connection);
            }
        }
        self.print_before_exit(error, role)
    }

    /// Returns what runs the session. Reading ends with the goodbye of the client, which then waits for this process.
    pub(in crate::rsync) fn session_io<'s, O: WireOutput>(
        &self,
        connection: &'s Arc<Connection<O>>,
        intake: Box<dyn Intake<O> + 's>,
        link: Link,
        traffic: Arc<LinkBytes>,
    ) -> SessionIo<'s, O> {
        let is_over = Arc::<AtomicBool>::default();
        let link = Link {
            reader: Box::new(EndingReader {
                inner: link.reader,
                is_over: is_over.clone(),
            }),
            ..link
        };
        let intake = Box::new(EndingIntake { intake, is_over });
        SessionIo {
            connection,
            intake,
            timeout_secs: self.options.connect.timeout_secs,
            link,
            traffic,
        }
    }

    /// Reports an event of this end: errors and warnings on standard error, which the remote shell passes on, and other
    /// lines to the client. The options can change both.
    pub(in crate::rsync) fn report<O: TextOutput>(
        &self,
        event: Event,
        connection: &Connection<O>,
    ) -> Result<()> {
        let event = match (event, &self.daemon) {
            (Event::Problem(problem), Some(daemon)) => Event::Problem(daemon.log.problem(problem)),
            (Event::Note(line), Some(daemon)) => {
                (daemon.log.put)(&line);
                Event::Note(line)
            }
            (event, None) => {
                self.log(&event);
                event
            }
            (event, Some(_)) => event,
        };
        self.print(event, connection)
    }

    /// Reports an event that is not logged.
    pub(in crate::rsync) fn print<O: TextOutput>(
        &self,
        event: Event,
        connection: &Connection<O>,
    ) -> Result<()> {
        let mode = self.options.output.stderr;
        let Some((tag, line)) = text_of(&event) else {
            return Ok(());
        };
        if mode == StderrMode::Client || mode == StderrMode::Errors && tag == FrameTag::Info {
            return connection.encode(Urgency::Report, |output, out| {
                output.event(&event, out);
                Ok(())
            });
        }
        (self.print_error)(line);
        Ok(())
    }

    /// Completes the handshake. `sends`: this end sends.
    pub(in crate::rsync) fn greet(&self, link: Link, sends: bool) -> Result<(RsyncTerms, Link)> {
        let mut link = buffered(link, sends);
        let protocol = match &self.daemon {
            Some(daemon) => daemon.protocol,
            // A daemon exchanges them in its greeting.
            None => {
                let newest = *handshake::VERSIONS.end();
                send(&mut link, &handshake::version_bytes(newest))?;
                receive_version(&mut link, newest)?
            }
        };
        let mut flags = CompatFlags::default();
        let mut first = Vec::new();
        if protocol >= 30 {
            flags = self.flags();
            flags.encode(&mut first);
        }
        let options = self.options;
        let words = self.words;
        let offer = Offer {
            protocol,
            flags,
            options,
            words,
            sums: &self.sums,
            is_server: true,
        };
        let negotiated = negotiate(&mut link, &offer, first, &mut |_| {})?;
        let mut out = Vec::new();
        out.put_int(self.seed);
        if let Some(daemon) = self
            .daemon
            .as_ref()
            .filter(|daemon| daemon.timeout_secs > 0 && protocol >= 31)
        {
            mux::encode_control(
                &Control::IoTimeout(daemon.timeout_secs.cast_signed()),
                &mut out,
            );
        }
        send(&mut link, &out)?;
        let terms = negotiated.terms(&offer, self.seed, sends);
        terms.agree_on_charset();
        Ok((terms, link))
    }

    /// Returns the compatibility flags of the session.
    fn flags(&self) -> CompatFlags {
        let select = &self.options.select;
        let is_incremental = select.recurse == Recurse::Full
            && !(select.no_inc_recursive || needs_whole_list(self.options, false));
        let lacking = if is_incremental {
            0
        } else {
            CompatFlags::INC_RECURSE.0
        };
        self.capabilities.agree(CompatFlags(ALL_FLAGS & !lacking))
    }
}

impl DaemonTerms<'_> {
    /// Logs a line, and appends the frames that report it to the client.
    fn put(&self, line: &[u8], framing: Framing, frames: &mut Vec<u8>) {
        (self.log.put)(line);
        framing.control(
            Control::Text(FrameTag::Error, [line, b"\n"].concat()),
            frames,
        );
    }
}

/// The checksums that a server supports. A client that names only "none" gets what it asks for.
pub const SERVER_SUMS: [Checksum; 7] = [
    Checksum::Xxh128,
    Checksum::Xxh3,
    Checksum::Xxh64,
    Checksum::Md5,
    Checksum::Md4,
    Checksum::Sha1,
    Checksum::None,
];

/// All compatibility flags.
const ALL_FLAGS: u32 = 0x1ff;

/// Reads the filter rules, and the names of `--files-from` if the client has them. Returns the reader at the place
/// behind.
fn read_opening(
    reader: Box<dyn Read + Send>,
    protocol: u8,
    has_frames: bool,
    reads_names: bool,
) -> Result<(ClientLists, Box<dyn Read + Send>)> {
    let mut no_text = |_, _| Err(violation("message before the file list"));
    read_before_session(reader, has_frames, &mut no_text, |input| {
        let rules = decode_rules(input, protocol)?;
        if !reads_names {
            return Ok(ClientLists {
                rules,
                listed: None,
            });
        }
        // Up to protocol 30, names have no frames.
        if protocol <= 30 && input.rest_bytes() > 0 {
            return Err(violation("more data after the filter rules"));
        }
        if protocol <= 30 {
            input.set_frames(false);
        }
        let listed = Some(read_names(input)?);
        if protocol <= 30 {
            input.set_frames(has_frames);
        }
        Ok(ClientLists { rules, listed })
    })
}

fn decode_rules(input: &mut impl Read, protocol: u8) -> decode_error::Result<Vec<Parsed>> {
    let rules = filter_list::decode(input, protocol)?
        .into_iter()
        .map(|rule| {
            let text = rule.text(*handshake::VERSIONS.end())?;
            let parsed = filter::parse_filter(&text);
            let parsed =
                parsed.map_err(|bad| violation(String::from_utf8_lossy(&bad.message())))?;
            match parsed {
                // The client reads these.
                Parsed::Merge(merge) if !merge.per_dir => {
                    Err(violation("a merge file in the filter list"))
                }
                parsed => Ok(parsed),
            }
        });
    rules.collect()
}

/// A stream that ends with the goodbye of the client, which waits then for this process to end.
struct EndingReader<R> {
    inner: R,
    is_over: Arc<AtomicBool>,
}

impl<R: Read> Read for EndingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.is_over.load(Ordering::Relaxed) {
            Ok(0)
        } else {
            self.inner.read(into)
        }
    }
}

/// Reads what a client sends until its goodbye.
struct EndingIntake<'a, O: WireOutput> {
    intake: Box<dyn Intake<O> + 'a>,
    is_over: Arc<AtomicBool>,
}

impl<O: WireOutput> Intake<O> for EndingIntake<'_, O> {
    fn read_all(&mut self, connection: &Connection<O>, reader: &mut dyn Read) -> Result<()> {
        let ended = self.intake.read_all(connection, reader);
        self.is_over.store(ended.is_ok(), Ordering::Relaxed);
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::rsync::filter_list::encode_name;
    use crate::proto::rsync::mux::Demultiplexer;
    use crate::proto::rsync::number::ReadWire as _;

    /// Returns what a client sends first, as one frame that ends with the first bytes of what follows.
    fn opening(rules: &[&str], names: &[&str]) -> Vec<u8> {
        let mut data = Vec::new();
        for rule in rules {
            data.put_int(rule.len() as i32);
            data.put(rule.as_bytes());
        }
        data.put_int(0);
        names
            .iter()
            .for_each(|name| encode_name(name.as_bytes(), &mut data));
        data.put(b"\0next");
        let mut wire = Vec::new();
        mux::encode_control(&Control::KeepAlive, &mut wire);
        mux::encode_data(&data, &mut wire);
        wire
    }

    #[test]
    fn opening_ends_within_a_frame() {
        let wire = opening(&["- *.o", ":n- .rules"], &["a", "d/b"]);
        let (opening, mut reader) =
            read_opening(Box::new(io::Cursor::new(wire)), 32, true, true).unwrap();
        assert_eq!(
            opening.rules.iter().map(Parsed::text).collect::<Vec<_>>(),
            [&b"- *.o"[..], b":n- .rules"]
        );
        assert_eq!(opening.listed, Some(vec![b"a".to_vec(), b"d/b".to_vec()]));
        let mut rest = Demultiplexer::new(&mut reader, |_| Ok(()));
        rest.set_frames(true);
        assert_eq!(rest.byte_vec(4).unwrap(), b"next");
    }

    #[test]
    fn invalid_opening_is_rejected() {
        let exit = |wire: Vec<u8>| {
            read_opening(Box::new(io::Cursor::new(wire)), 32, true, false)
                .err()
                .map(|error| error.exit)
        };
        assert_eq!(exit(opening(&["Q x"], &[])), Some(Exit::Protocol));
        assert_eq!(exit(opening(&["- "], &[])), Some(Exit::Protocol));
        let mut wire = Vec::new();
        mux::encode_control(&Control::NoSend(0), &mut wire);
        assert_eq!(exit(wire.clone()), Some(Exit::Protocol));
        wire.clear();
        mux::encode_control(&Control::ErrorExit(Some(20)), &mut wire);
        assert_eq!(exit(wire), Some(Exit::Signal));
    }
}

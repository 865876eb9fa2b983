//! The server's end of a push of a stock rsync: the client sends, and reports all items.

use super::{ClientLists, RsyncServer};
use crate::apply::facts::{ItemPrinter, SourceFacts};
use crate::apply::pipeline::EventSink;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::filter::Rules;
use crate::flist::Kind;
use crate::fs::sys;
use crate::options::{Batch, Options};
use crate::path;
use crate::report::Tally;
use crate::report::event::{Event, Item, Wants};
use crate::report::format::{self, Format};
use crate::report::line_filter::{Choice, LineKind};
use crate::report::list::{self, ListStyle};
use crate::report::times::LocalTimes;
use crate::rsync::framing::Framing;
use crate::rsync::link_io::{in_words_of_rsync, send};
use crate::rsync::rules_for_server::receiver_needs_rules;
use crate::rsync::session_terms::RsyncTerms;
use crate::rsync::source::{self, SourceEncoder, SourceInbox, UnchangedDest};
use crate::rsync::{before_session, older};
use crate::session::connection::{Connection, Urgency};
use crate::session::io_threads::{SessionIo, counted};
use crate::session::module_log::logged_name;
use crate::session::receiver::Receiver;
use crate::session::response_validation::ResponseValidator;
use crate::session::run_role::{ReceiverListener, ReceiverRun, run_receiver};
use crate::transport::{Link, LinkBytes};
use crate::walk::arg_path;
use crate::walk::run_context::{Process, RunContext};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

impl RsyncServer<'_> {
    /// Receives from the client. Problems with single entries are reported and counted in the tally; an error ends the
    /// run.
    pub fn receive(&self, link: Link, tally: &mut Tally) -> Result<()> {
        let (link, traffic) = counted(link);
        let ended = self.receive_over(link, &traffic, tally);
        let ended = ended.map_err(|error| {
            self.log_error(in_words_of_rsync(error, &traffic, "Receiver"), "Receiver")
        });
        if ended.is_ok() && tally.exit_of_server() == Exit::Ok {
            self.log_totals(&traffic, tally);
        }
        self.end_log(&traffic, tally, ended.is_ok());
        ended
    }

    fn receive_over(&self, link: Link, traffic: &Arc<LinkBytes>, tally: &mut Tally) -> Result<()> {
        let (terms, mut link) = self.greet(link, false)?;
        self.begin_log("Receiver");
        older::check(self.options, terms.protocol)?;
        if let Some(listed) = &self.listed {
            send(&mut link, &names(listed, Framing::of_server(&terms)))?;
        }
        let (ClientLists { rules, .. }, link) =
            if receiver_needs_rules(self.options, terms.protocol) {
                self.open(link, terms, false, "Receiver")?
            } else {
                (ClientLists::default(), link)
            };
        let rules = (self.complete_rules)(rules, terms.protocol);
        self.receive_with(&rules, terms, link, traffic, tally)
    }

    fn receive_with(
        &self,
        rules: &Rules,
        terms: RsyncTerms,
        link: Link,
        traffic: &Arc<LinkBytes>,
        tally: &mut Tally,
    ) -> Result<()> {
        let interrupted = AtomicBool::new(false);
        let is_left = Batch::is_only_written(self.options.batch.as_ref());
        let options = older::adjusted(self.options, terms.protocol).into_owned();
        let options = &Options {
            dry_run: self.options.dry_run || is_left,
            ..options
        };
        let run_context = self.run_context(rules, &interrupted);
        // Before protocol 29, files arrive in order, and nothing else keeps them from being written in another.
        let threads = if terms.protocol < 29 {
            1
        } else {
            run_context.process.threads
        };
        let run_context = RunContext {
            options,
            process: Process {
                threads,
                ..run_context.process
            },
            ..run_context
        };
        let wants = self.wants_of_receiver();
        let lists = self.options.select.list_only;
        let inbox = SourceInbox::new(false);
        let request = Arc::new(ResponseValidator::anything(run_context.options));
        let (encoder, intake) =
            source::directions(terms, Vec::new(), options, &inbox, request.clone());
        let dest = || self.operands.first().cloned().unwrap_or_default();
        let encoder = encoder.leaving(is_left.then(|| UnchangedDest::new(options, dest())));
        // The values of a batch that is only written are requested as well.
        let has_xattrs = options.preserve.xattrs > 0 && !self.options.dry_run;
        let encoder = encoder.serving(&terms, has_xattrs);
        intake.serve(has_xattrs);
        let connection = Arc::new(Connection::of(encoder).over(link.moved.clone()));
        let printer = ItemPrinter::Peer;
        let facts = SourceFacts {
            values_with_items: has_xattrs,
            ..terms.source_facts(printer)
        };
        let source = intake.source(run_context, &connection, facts, lists);
        let dest = if lists {
            None
        } else {
            // Wildcards may have expanded to several names; rsync uses the first.
            self.operands.first().cloned()
        };
        let receiver = Receiver {
            run_context,
            peer: &source,
            dir_reports: None,
            dest,
            request,
            wants,
            printer,
        };
        let session_io: SessionIo<'_, SourceEncoder> =
            self.session_io(&connection, Box::new(intake), link, traffic.clone());
        let times = lists.then(LocalTimes::local);
        let has_items = terms.protocol >= 29;
        let server = self;
        let connection = &*connection;
        let mut reporter = ReceiverReporter {
            server,
            connection,
            has_items,
            times,
            is_placed: false,
            lost: None,
        };
        let run = ReceiverRun {
            session_io,
            handler: &inbox,
            receiver: &receiver,
            listener: ReceiverListener::Server(&mut reporter),
        };
        run_receiver(run, tally, |error| {
            self.report_before_exit(error, "Receiver", connection)
        })
    }

    /// Returns the events that a receiver needs for its client.
    fn wants_of_receiver(&self) -> Wants {
        let output = &self.options.output;
        let is_loud = output.info.name >= 2 || output.itemize >= 2 || self.options.select.list_only;
        let logged = self.log.map(|log| log.lock().wants()).unwrap_or_default();
        Wants {
            items: true,
            unchanged: is_loud || output.requests_unchanged() || logged.unchanged,
            // Before, only the client learns of it.
            after_transfer: self.log.is_some(),
            digest: logged.digest,
            paths: logged.paths,
            ..Wants::default()
        }
    }
}

/// Returns the names of `--files-from` as they are sent.
fn names(listed: &[Vec<u8>], framing: Framing) -> Vec<u8> {
    let mut out = Vec::new();
    framing.names(&before_session::encode_names(listed), &mut out);
    out
}

/// Passes the events of a receiver to its client. The client gets the items themselves from the generator, each just before
/// its event.
struct ReceiverReporter<'a, 's> {
    server: &'a RsyncServer<'s>,
    connection: &'a Connection<SourceEncoder>,
    /// The client learns of all changes and deletions, and reports them. Otherwise it gets lines of text.
    has_items: bool,
    /// Set with `--list-only`.
    times: Option<LocalTimes>,
    /// Whether the log knows the directory of the destination.
    is_placed: bool,
    /// The exit code once events can no longer be sent.
    lost: Option<Error>,
}

impl ReceiverReporter<'_, '_> {
    fn send(&mut self, event: &Event) -> Result<()> {
        self.place_log();
        let style = ListStyle {
            human: self.server.options.output.human,
            atimes: self.server.options.preserve.atimes,
        };
        match (event, &mut self.times) {
            (Event::Item(item), Some(times)) => {
                let mut line = Vec::new();
                list::put_entry(&mut line, item, style, times);
                self.server.report(Event::Note(line), self.connection)
            }
            (Event::Item(item), None) => {
                self.log_name(item);
                self.server.log(event);
                if !self.has_items {
                    return self.print_name(item);
                }
                match (self.note_unchanged(item), self.server.log) {
                    (Some(note), None) => self.server.report(note, self.connection),
                    (Some(note), Some(_)) => self.server.print(note, self.connection),
                    (None, _) => Ok(()),
                }
            }
            (Event::Deleted { name, kind, .. }, _) => {
                self.server.log(event);
                if self.has_items {
                    return self.connection.encode(Urgency::Report, |encoder, out| {
                        encoder.deleted(name, *kind, out);
                        Ok(())
                    });
                }
                let itemizes = self.itemizes();
                let mut line = if itemizes {
                    b"*deleting   ".to_vec()
                } else {
                    b"deleting ".to_vec()
                };
                format::put_name(&mut line, name, *kind);
                if itemizes || self.server.options.output.info.del >= 1 {
                    return self.server.print(Event::Note(line), self.connection);
                }
                Ok(())
            }
            (event, _) => self.server.report(event.clone(), self.connection),
        }
    }

    /// Prints the line of an entry whose client knows only of requests, which it prints itself.
    fn print_name(&self, item: &Item) -> Result<()> {
        if item.transfer {
            return Ok(());
        }
        let output = &self.server.options.output;
        let prints_names = output.info.name >= 1 && (output.verbose >= 1 || !self.itemizes());
        if prints_names && Choice::from_output(output, false).line(item) == LineKind::Full {
            return self
                .server
                .print(Event::Note(format::name_and_link(item)), self.connection);
        }
        self.note_unchanged(item)
            .map_or(Ok(()), |note| self.server.print(note, self.connection))
    }

    /// Sets the directory of the destination in the log of a daemon. It exists once there are events.
    fn place_log(&mut self) {
        let server = self.server;
        let (Some(log), Some(dest)) = (server.log, server.operands.first()) else {
            return;
        };
        if server.daemon.is_none() {
            return;
        }
        if std::mem::replace(&mut self.is_placed, true) {
            return;
        }
        let dest = arg_path::absolute(server.process.cwd, dest);
        let is_dir = sys::stat_path(&dest, true)
            .is_ok_and(|stat| Kind::of_mode(stat.mode) == Some(Kind::Dir));
        let dir = if is_dir {
            &dest[..]
        } else {
            path::split_parent(&dest).0
        };
        let inner = dir.strip_prefix(server.process.cwd).unwrap_or(dir);
        log.lock()
            .receive_in(inner.strip_prefix(b"/").unwrap_or(inner).to_vec());
    }

    /// Logs the name of an entry. As in rsync, `-v` of the client decides, and files are not logged.
    fn log_name(&self, item: &Item) {
        let server = self.server;
        let is_logged = server.daemon.is_some() || server.log.is_some();
        if !is_logged || server.log.is_some_and(|log| log.lock().log_itemizes()) {
            return;
        }
        if let Some(line) = logged_name(item, &server.options.output) {
            server.log_line(&line);
        }
    }

    /// Returns whether the format of the client itemizes.
    fn itemizes(&self) -> bool {
        self.server
            .options
            .output
            .out_format
            .as_deref()
            .is_some_and(|format| Format::parse(format).has_itemize())
    }

    /// Unless the client itemizes, the receiver reports what is up to date.
    fn note_unchanged(&self, item: &Item) -> Option<Event> {
        let output = &self.server.options.output;
        let line = Choice::from_output(output, output.itemize > 0 || self.itemizes()).line(item);
        let slash: &[u8] = if item.kind == Kind::Dir { b"/" } else { b"" };
        (line == LineKind::UpToDate)
            .then(|| Event::Note([&item.name[..], slash, b" is uptodate"].concat()))
    }
}

impl EventSink for ReceiverReporter<'_, '_> {
    fn report(&mut self, event: &Event) {
        if let Err(error) = self.send(event) {
            self.lost.get_or_insert(Error::new(error.exit, ""));
        }
    }

    fn delivery_failure(&self) -> Option<Error> {
        self.lost.clone()
    }
}

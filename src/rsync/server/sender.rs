//! The sender of a server whose client is an rsync that pulls.

use super::RsyncServer;
use crate::error::Result;
use crate::options::FilesFrom;
use crate::report::Tally;
use crate::report::event::Event;
use crate::rsync::dest::{self, DestInbox, RsyncDest, SenderReports, ServingSender};
use crate::rsync::link_io::in_words_of_rsync;
use crate::rsync::older;
use crate::session::connection::Connection;
use crate::session::event_relay::EventQueue;
use crate::session::io_threads::counted;
use crate::session::run_role::{ReportedEvents, SenderRun, SenderSource, run_sender};
use crate::transport::{Link, LinkBytes};
use crate::walk::run_context::RunContext;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

impl RsyncServer<'_> {
    /// Sends to the client. Problems with single entries are reported and counted in the tally; an error ends the run.
    pub fn send(&self, link: Link, tally: &mut Tally) -> Result<()> {
        let (link, traffic) = counted(link);
        let ended = self.send_over(link, &traffic, tally);
        let ended = ended.map_err(|error| {
            self.log_totals(&traffic, tally);
            self.log_error(in_words_of_rsync(error, &traffic, "sender"), "sender")
        });
        if ended.is_ok() {
            self.log_totals(&traffic, tally);
        }
        self.end_log(&traffic, tally, ended.is_ok());
        ended
    }

    fn send_over(&self, link: Link, traffic: &Arc<LinkBytes>, tally: &mut Tally) -> Result<()> {
        let (terms, link) = self.greet(link, true)?;
        self.begin_log("sender");
        let options = &*older::adjusted(self.options, terms.protocol);
        let reads_names = self.options.select.files_from == Some(FilesFrom::Stdin);
        let (opening, link) = self.open(link, terms, reads_names, "sender")?;
        let listed = opening.listed.or_else(|| self.listed.clone());
        let rules = (self.complete_rules)(opening.rules, terms.protocol);
        let interrupted = AtomicBool::new(false);
        let run_context = RunContext {
            options,
            ..self.run_context(&rules, &interrupted)
        };
        let inbox = Arc::<DestInbox>::default();
        // The client reports all items. This end only logs them.
        let reports = SenderReports::new(self.options, EventQueue::new(false));
        let wants = self.log.map(|log| log.lock().wants()).unwrap_or_default();
        let (encoder, intake) =
            dest::directions(terms, Vec::new(), options, wants, reports.clone(), &inbox)?;
        let encoder = encoder.at_server(ServingSender {
            traffic: traffic.clone(),
            inbox: inbox.clone(),
            reports_matches: self.options.output.debug.deltasum >= 1,
        });
        let connection = Arc::new(Connection::of(encoder).over(link.moved.clone()));
        let report = |event: Event| {
            reports.count(&event);
            self.report(event, &connection)
        };
        let peer = RsyncDest::new(&terms, &connection, &inbox);
        let sender = peer.sender(&terms, run_context, wants, &report);
        let taken = |cost| inbox.event_taken(cost);
        let session_io = self.session_io(
            &connection,
            Box::new(intake.at_server()),
            link,
            traffic.clone(),
        );
        let run = SenderRun {
            session_io,
            handler: &*inbox,
            sender: &sender,
            source: SenderSource {
                arguments: self.operands,
                listed: listed.as_deref(),
                prefetch: None,
                sent_roots: None,
            },
            events: self.log.map(|log| ReportedEvents {
                queue: &reports.events,
                reporter: log,
                taken: &taken,
            }),
        };
        let ended = run_sender(run, tally, |error| {
            self.report_before_exit(error, "sender", &connection)
        });
        tally.merge(&reports.problems.lock());
        ended
    }
}

//! A run with both trees on this machine: walks them, decides, and applies. No peer is involved.

use crate::apply::dest_arg::{Destination, Facts};
use crate::apply::facts::{ItemPrinter, ReportTime};
use crate::apply::generator::{OnSkipped, Plans};
use crate::apply::pipeline::{EventSink, Receiving, RunStart, SourcePlans};
use crate::checksum_cache::{CacheInUse, WantedFile};
use crate::digest::{Comparison, PlainDigest};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::compare::same_bytes;
use crate::fs::ids::Ids;
use crate::fs::read::Wanted;
use crate::fs::root::Dir;
use crate::fs::sys;
use crate::options::{CheckMode, PlanUse};
use crate::path::RelPath;
use crate::plan::idmap::{IdClass, IdNames};
use crate::report::TextReporter;
use crate::report::event::{Event, Problem, Weight};
use crate::report::progress::ListTotal;
use crate::report::tally::Tally;
use crate::walk::destination::DestWalk;
use crate::walk::run_context::RunContext;
use crate::walk::source::{Contents, SourceWalk};
use crate::walk::source_args::{Gathered, Gatherer};
use crate::walk::{ComparedDest, ComparedSource, DestState, DirPlan, Scanner, Task, TaskId, Walk};
use std::io;
use std::sync::atomic::Ordering;

/// A copy between two trees on this machine.
pub struct Local<'a> {
    /// The context of the run.
    pub run_context: RunContext<'a>,
    /// The source arguments as given.
    pub sources: Vec<Vec<u8>>,
    /// The destination as given; `None`: list only.
    pub dest: Option<Vec<u8>>,
    /// The names listed by `--files-from`.
    pub listed: Option<Vec<Vec<u8>>>,
}

impl EventSink for TextReporter {
    fn report(&mut self, event: &Event) {
        TextReporter::report(self, event);
    }

    fn delivery_failure(&self) -> Option<Error> {
        if self.lines_are_lost() {
            Some(Error::new(Exit::Message, ""))
        } else {
            None
        }
    }
}

impl Local<'_> {
    /// Copies. Problems with single entries are reported and counted in the tally; an error ends the run.
    pub fn run(&self, reporter: &mut TextReporter, tally: &mut Tally) -> Result<()> {
        let gathered =
            Gatherer::new(&self.run_context).all(&self.sources, self.listed.as_deref())?;
        reporter.banner();
        report_problems(&gathered.problems, reporter, tally);
        for note in &gathered.notes {
            reporter.report(&Event::Note(note.clone()));
        }
        gathered.count(tally, false);
        let facts = Facts {
            is_empty: gathered.found == 0 && gathered.missing.is_empty(),
            single: gathered.single.clone(),
            lone_dir_is_bare: gathered
                .lone_dir
                .as_ref()
                .map(|dir| dir.is_bare(&self.run_context)),
            has_top: gathered.sends_top(false),
        };
        let to = Destination::find(&self.run_context, self.dest.as_deref(), &facts)?;
        self.sync(&gathered, &to, reporter, tally)
    }

    /// Returns whether a file of the destination has this digest, for runs that keep digests.
    fn has_digest(
        &self,
        cache: CacheInUse<'_>,
        dest: ComparedDest<'_>,
        expected: &PlainDigest,
    ) -> io::Result<bool> {
        let ComparedDest { dir, name, version } = dest;
        let spares_atime = self.run_context.options.select.open_noatime;
        let (_, plain) = cache.digest(&WantedFile {
            dir,
            name,
            version,
            open: &|| sys::open_read(dir.fd(), name, true, spares_atime),
            listed_bytes: None,
            is_over: &|| self.run_context.process.stop.load(Ordering::Relaxed),
        })?;
        Ok(plain == *expected)
    }

    fn sync(
        &self,
        gathered: &Gathered,
        to: &Destination,
        reporter: &mut TextReporter,
        tally: &mut Tally,
    ) -> Result<()> {
        let accounts = LocalAccounts { ids: Ids::new() };
        let compare = |source: ComparedSource<'_>, dest: ComparedDest<'_>| {
            let kept = self.run_context.checksum_cache();
            match (kept, source.plain_digest, source.place) {
                (Some(cache), Some(digest), _) => self.has_digest(cache, dest, digest),
                // If the source could not be read for its digest, this finds out why.
                (_, _, Some(place)) => {
                    let source = (&*place.dir()?, source.name);
                    same_content(source, (dest.dir, dest.name), &self.run_context)
                }
                (_, _, None) => Ok(false),
            }
        };
        let receiving = Receiving {
            run_context: self.run_context,
            list_only: self.dest.is_none(),
            to,
            wants: reporter.wants(),
            names: &accounts,
            compare: &compare,
            peer: None,
            printer: ItemPrinter::Us {
                when: ReportTime::Done,
            },
        };
        let mut preserve = self.run_context.options.preserve.clone();
        preserve.hard_links &= self.dest.is_some();
        self.run_context
            .with_wanted(&preserve, &|_, _| {}, |wanted| {
                let mut problems = Vec::new();
                let top = match gathered.top_entry(wanted, &mut problems)? {
                    Some(top) if gathered.sends_top(false) => Some(top),
                    Some(_) | None => None,
                };
                report_problems(&problems, reporter, tally);
                let start = RunStart {
                    top,
                    top_shown: gathered.top.as_ref().map(|(_, base)| base.shown.clone()),
                    missing: gathered.missing.clone(),
                    has_failed: problems
                        .iter()
                        .chain(&gathered.problems)
                        .any(|problem| problem.weight == Weight::SourceError),
                    reaches_source: to
                        .root
                        .as_ref()
                        .is_some_and(|root| gathered.reaches(root.dir())),
                };
                let local_source = LocalSource {
                    run_context: self.run_context,
                    wanted,
                    gathered,
                    to,
                    has_dest: self.dest.is_some(),
                    compared_by: Comparison::local(),
                };
                tally.at_peer(|tally| receiving.run(start, &local_source, reporter, tally))
            })
    }
}

/// Reports and counts problems with the source arguments.
fn report_problems(problems: &[Problem], reporter: &mut TextReporter, tally: &mut Tally) {
    for problem in problems {
        tally.problem(problem.weight);
        reporter.report(&Event::Problem(problem.clone()));
    }
}

/// A source on this machine.
struct LocalSource<'a, 'x> {
    run_context: RunContext<'a>,
    wanted: Wanted<'x>,
    gathered: &'a Gathered,
    to: &'a Destination,
    /// It is a copy, not a list.
    has_dest: bool,
    /// Makes digests of files comparable.
    compared_by: Comparison,
}

impl SourcePlans for LocalSource<'_, '_> {
    fn plans<'w>(
        &'w self,
        dest: DestWalk<'w>,
        whole_list_first: bool,
    ) -> Result<Box<dyn Plans + 'w>> {
        let options = self.run_context.options;
        let is_digested = options.plan_use != PlanUse::Free
            && options.check.mode == CheckMode::Digest
            && self.has_dest;
        let contents = match self.run_context.checksum_cache() {
            _ if is_digested => Some(Contents {
                by: &self.compared_by,
                is_over: self.run_context.process.stop,
                cache: None,
                may_read: None,
            }),
            // For a list, nothing is compared.
            Some(cache) if self.has_dest => Some(Contents {
                by: &self.compared_by,
                is_over: self.run_context.process.stop,
                cache: Some(cache),
                may_read: None,
            }),
            Some(_) | None => None,
        };
        let source = SourceWalk {
            left_out: self.to.topmost_created,
            contents,
            ..self.run_context.source_walk(self.wanted)
        };
        let dest_state = if self.to.root.is_some() {
            DestState::Present
        } else {
            DestState::Absent
        };
        let receiver_chain = dest.receiver_chain.clone();
        let task = Task {
            source: self.gathered.task(self.to.renamed.as_deref()),
            dest_state,
            receiver_chain,
        };
        let scanner = Scanner::new(Walk { source, dest }, whole_list_first);
        let root = scanner.start(task);
        Ok(Box::new(LocalPlans { scanner, root }))
    }
}

/// Plans of directories with both sides on this machine.
struct LocalPlans<'a> {
    scanner: Scanner<Walk<'a>>,
    root: TaskId,
}

impl Plans for LocalPlans<'_> {
    fn root(&self) -> TaskId {
        self.root
    }

    fn take(&self, ticket: TaskId, _path: &RelPath, _there: &DestState) -> Result<Option<DirPlan>> {
        Ok(Some(self.scanner.take(ticket)))
    }

    fn stray(&self, _below: &RelPath) -> Result<Option<DirPlan>> {
        Ok(None)
    }

    fn skip(
        &self,
        ticket: Option<TaskId>,
        _path: &RelPath,
        on_skipped: &mut OnSkipped<'_>,
    ) -> Result<()> {
        let mut tickets = Vec::from_iter(ticket);
        while let Some(ticket) = tickets.pop() {
            let mut plan = self.scanner.take(ticket);
            tickets.extend(plan.below().rev());
            on_skipped(std::mem::take(&mut plan.findings))?;
        }
        Ok(())
    }

    fn walk(&self) -> &DestWalk<'_> {
        &self.scanner.walk().dest
    }

    fn listed(&self) -> ListTotal {
        self.scanner.listed()
    }

    fn will_come(&self) -> bool {
        true
    }

    fn is_unbounded(&self) -> bool {
        self.scanner.is_unbounded()
    }

    fn work(&self) {
        self.scanner.work();
    }

    fn close(&self) {
        self.scanner.close();
    }
}

/// The user and group names of this machine, which apply to both sides.
struct LocalAccounts {
    ids: Ids,
}

impl IdNames for LocalAccounts {
    fn source_name(&self, class: IdClass, id: u32) -> Option<Vec<u8>> {
        self.ids.name(class, id).map(|name| name.to_vec())
    }

    fn name_of_zero(&self, class: IdClass) -> Option<Vec<u8>> {
        self.source_name(class, 0)
    }

    fn dest_id(&self, class: IdClass, name: &[u8]) -> Option<u32> {
        self.ids.id(class, name)
    }
}

/// Compares two files of equal length for `--checksum`. Fails if the run is being stopped.
fn same_content(
    source: (&Dir, &[u8]),
    dest: (&Dir, &[u8]),
    run_context: &RunContext<'_>,
) -> io::Result<bool> {
    use std::os::fd::AsFd;
    let spares_atime = run_context.options.select.open_noatime;
    let open = |(dir, name): (&Dir, &[u8])| sys::open_read(dir.fd(), name, true, spares_atime);
    let (source, dest) = match (open(source), open(dest)) {
        (Err(source), Err(dest))
            if is_denied(&source) && is_denied(&dest) && run_context.unreadable_is_same() =>
        {
            // As neither may be read, they count as equal.
            return Ok(true);
        }
        (source, dest) => (source?, dest?),
    };
    let len_bytes = sys::content_len(source.as_fd())?;
    Ok(sys::content_len(dest.as_fd())? == len_bytes
        && same_bytes(
            source.as_fd(),
            dest.as_fd(),
            len_bytes,
            run_context.process.stop,
        )?)
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

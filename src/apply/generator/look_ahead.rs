//! Takes plans before their turn, for what depends on later ones: hard links, files whose content new files take, and options
//! that need the whole list.

use super::plan_queue::{self, PlanPool};
use super::traversal::{report_findings, to_transfer};
use super::twin_search::{FoundTwins, TwinSearch};
use super::{Generator, ListFirst, planned_twins};
use crate::error::Result;
use crate::report::event::Event;

impl<'a> Generator<'a> {
    /// Takes plans before their turn, as many as `hold` does, and collects hard links and read errors from them.
    pub(super) fn look_ahead(
        &mut self,
        hold: impl FnOnce(&mut PlanPool<'a>, &mut plan_queue::See<'_>) -> Result<()>,
    ) -> Result<()> {
        let Generator {
            links,
            deletions,
            pool,
            search,
            list_first,
            ..
        } = self;
        // A list that is only searched changes nothing else: what could not be read stops the deletions from its directory
        // on.
        let is_search_only =
            *list_first == ListFirst::ToSearch && !self.context.policy.preserve.hard_links;
        hold(pool, &mut |plan, is_entered| {
            if !is_search_only {
                deletions.check_problems(&plan.findings.problems);
            }
            if is_entered {
                links.expect(plan);
            }
            if is_entered && let Some(search) = search {
                search.expect(plan);
            }
        })?;
        links.have_seen_all(self.pool.has_seen_all());
        Ok(())
    }

    /// Takes every plan before anything is done, for options that need the whole list.
    pub(super) fn hold_all(&mut self) -> Result<()> {
        self.look_ahead(PlanPool::hold_all)?;
        if self.context.wants.progress || self.context.wants.whole_list {
            self.out.head.push(self.pool.whole_list());
        }
        if self.context.options.select.prune_empty_dirs {
            let Generator {
                context,
                pool,
                deletions,
                out,
                ..
            } = self;
            pool.prune(&mut |findings| report_findings(context, deletions, out, findings))?;
        }
        Ok(())
    }

    /// Begins to search for files whose content new files take.
    pub(super) fn begin_search(&mut self) {
        if self.context.process.stored.is_some() {
            // The plan has what was found.
            return;
        }
        let how = self.context.options.delta.detect_renamed;
        let has_files = self.context.dest.is_some() || !self.context.alternates.is_empty();
        if let Some(how) = how
            && has_files
            && !self.context.policy.list_only
        {
            self.search = Some(TwinSearch::new(self.context, self.plans.walk(), how));
        }
    }

    /// Ends the search. All plans are held.
    pub(super) fn end_search(&mut self) -> Result<()> {
        if let Some(stored) = self.context.process.stored {
            let walk = self.plans.walk();
            let (found, problems) =
                planned_twins::settle(&mut self.pool, stored, self.context, walk)?;
            let problems = problems.into_iter().map(Event::Problem);
            self.out.head.extend(problems);
            // Files that the run changes are no twins in plans.
            self.take_twins(found, 0);
            return Ok(());
        }
        let Some(mut search) = self.search.take().filter(TwinSearch::is_useful) else {
            return Ok(());
        };
        if self.deletions.has_source_failed() {
            search.never_link();
        }
        let mut unwritten_bytes = 0_u64;
        for plan in self.pool.held_plans() {
            search.look_at(plan);
            unwritten_bytes = unwritten_bytes.saturating_add(to_transfer(plan).1);
        }
        search.look_into_alternates();
        let found = search.settle(self.pool.held_plans())?;
        self.take_twins(found, unwritten_bytes);
        Ok(())
    }

    /// Notes which files take the content of which others. `unwritten_bytes`: what the run will write at most.
    fn take_twins(&mut self, found: FoundTwins, unwritten_bytes: u64) {
        let FoundTwins {
            twins,
            has_extras,
            is_cut,
        } = found;
        if is_cut {
            let line = b"sparsync: --detect-renamed has looked at a part of the files, because they are many";
            self.out.head.push(Event::Note(line.to_vec()));
        }
        if has_extras {
            self.deletions.wait_for_end();
        }
        self.context.twins.settle(twins, unwritten_bytes);
    }
}

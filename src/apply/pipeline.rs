//! The receiving half of a run: decides and applies. Works the same for a local source and a remote one.

mod normalize_entry;
mod option_dirs;
mod worker_pool;

use self::normalize_entry::EntryNormalizer;
use crate::apply::abbreviated::WantedValues;
use crate::apply::changed_files::ChangedFiles;
use crate::apply::dest_arg::Destination;
use crate::apply::facts::ItemPrinter;
use crate::apply::generator::{ListFirst, Plans, Top};
use crate::apply::twins::Twins;
use crate::apply::{BackupDir, Chosen, ContentPeer, Context, LateRemovals, TempDir};
use crate::error::{Error, Result};
use crate::filter::{Chain, Side};
use crate::flist::Entry;
use crate::fs::copy::UnsupportedCalls;
use crate::fs::read::{EntryAt, Wanted};
use crate::fs::{acl, ids, sys};
use crate::options::{CreatedDir, Options, PeerLinks, PlanUse, RemoveSource, When};
use crate::path::RelPath;
use crate::plan::Policy;
use crate::plan::idmap::{IdMapper, IdNames, Privileges};
use crate::plan::planned::PlannedAction;
use crate::report::event::{Event, Problem, Wants, Weight};
use crate::report::tally::Tally;
use crate::walk::alternate::Alternate;
use crate::walk::destination::{DestWalk, resumes_from};
use crate::walk::run_context::RunContext;
use crate::walk::{Compare, arg_path, unreadable_or_fatal};
use crate::work::throttle::Throttle;
use parking_lot::Mutex;
use std::sync::Arc;

/// Receives the events of a run in list order.
pub trait EventSink: Send {
    /// Handles one event.
    fn report(&mut self, event: &Event);
    /// Returns the error with which the run must end because events cannot be delivered any more.
    fn delivery_failure(&self) -> Option<Error>;
}

/// Supplies the listings of the source.
pub trait SourcePlans {
    /// Returns the plans of directories, which use `walk` for the destination. With `whole_list_first`, all plans are
    /// made before the first one is carried out.
    fn plans<'w>(
        &'w self,
        walk: DestWalk<'w>,
        whole_list_first: bool,
    ) -> Result<Box<dyn Plans + 'w>>;
}

/// The receiving half of a run.
pub struct Receiving<'a> {
    /// The context of the run.
    pub run_context: RunContext<'a>,
    /// Only list entries; write nothing.
    pub list_only: bool,
    pub to: &'a Destination,
    /// The events that the client wants.
    pub wants: Wants,
    /// The user and group names of both sides.
    pub names: &'a (dyn IdNames + Sync),
    /// Compares contents for `-c`.
    pub compare: &'a Compare<'a>,
    /// The peer that has the source, if it is not on this machine.
    pub peer: Option<&'a dyn ContentPeer>,
    /// Who prints the items.
    pub printer: ItemPrinter,
}

/// Facts about the sources that the receiver needs before it begins.
pub struct RunStart {
    /// The entry of the directory whose content is the transfer's root, as the source describes it.
    pub top: Option<Entry>,
    /// See [`Top::shown`].
    pub top_shown: Option<Vec<u8>>,
    /// Names to delete at the destination.
    pub missing: Vec<RelPath>,
    /// An argument could not be read.
    pub has_failed: bool,
    /// The destination lies inside a source directory, so copies would be found there and copied again without end.
    pub reaches_source: bool,
}

/// What decisions about entries depend on, besides the options.
struct Decisions<'a> {
    policy: &'a Policy,
    is_super: bool,
    /// What to read of each entry.
    wanted: Wanted<'a>,
}

impl Receiving<'_> {
    /// Runs to the end.
    pub fn run(
        &self,
        start: RunStart,
        origin: &dyn SourcePlans,
        listener: &mut dyn EventSink,
        tally: &mut Tally,
    ) -> Result<()> {
        let preserve = &self.run_context.options.preserve;
        let is_super = preserve.super_user.unwrap_or(sys::ids().0 == 0);
        let policy = self.policy(is_super);
        let own_groups = ids::own_groups();
        let (mapper, unknown) = IdMapper::new(preserve, self.names);
        for name in unknown {
            listener.report(&Event::Problem(Problem::new(name.line(), Weight::Warning)));
        }
        let normalizer = EntryNormalizer {
            links: self.links(),
            strips_privileges: preserve.strips_privileges,
            maps: policy.preserve.owner || policy.preserve.group,
            // A receiving client reports the mapped ids.
            reports_source_ids: self.wants.paths && !self.printer.is_receiver(),
            mapper: &mapper,
            names: self.names,
            privileges: Privileges {
                is_super: is_super || preserve.fake_super,
                groups: &own_groups,
            },
        };
        let ended = self.run_context.with_wanted(
            &policy.preserve,
            &|entry, depth| normalizer.normalize(entry, depth),
            |wanted| {
                let decisions = Decisions {
                    policy: &policy,
                    is_super,
                    wanted,
                };
                self.carry_out(start, decisions, origin, listener, tally)
            },
        );
        if let Some(warning) = self
            .run_context
            .any_checksum_cache()
            .and_then(|cache| cache.end())
        {
            listener.report(&warning);
        }
        ended
    }

    /// Returns what is done about symlinks. The receiver of a local copy does not munge, and a list shows values as sent.
    fn links(&self) -> PeerLinks {
        let preserve = &self.run_context.options.preserve;
        match preserve.peer_links {
            _ if self.list_only => PeerLinks::AsSent,
            PeerLinks::AsSent if self.peer.is_some() && preserve.munge_links => PeerLinks::Munged,
            links => links,
        }
    }

    /// Returns the policy for decisions. `is_super`: this process has the rights of a super-user.
    fn policy(&self, is_super: bool) -> Policy {
        let options = self.run_context.options;
        let mut preserve = options.preserve.clone();
        // Symlinks from the source are munged when their entries are adopted.
        preserve.munge_links = false;
        // A listing shows each name in its own place.
        preserve.hard_links &= !self.list_only;
        // Owners that cannot be changed are not compared, and are reported as the source has them.
        preserve.owner &= is_super || preserve.fake_super;
        Policy {
            append: options.place.append.is_some(),
            check: options.check,
            max_size_bytes: options.select.max_size_bytes,
            min_size_bytes: options.select.min_size_bytes,
            may_make_devices: is_super || preserve.fake_super,
            same_acls: |wanted, have| {
                acl::same_access(wanted.0, have.0) && acl::same_default(wanted.1, have.1)
            },
            list_only: self.list_only,
            preserve,
        }
    }

    /// Lists, decides and applies, with everything that decisions depend on settled.
    fn carry_out(
        &self,
        start: RunStart,
        decisions: Decisions<'_>,
        origin: &dyn SourcePlans,
        listener: &mut dyn EventSink,
        tally: &mut Tally,
    ) -> Result<()> {
        let options = self.run_context.options;
        let to = self.to;
        let wants = self.wants;
        let receiver_chain = self.run_context.rules.chain(Side::Receiver, &to.path);
        let alternates = self.alternates(listener, tally);
        let walk = self.walk(
            &decisions,
            &receiver_chain,
            &alternates,
            start.top.is_some(),
        );
        let Decisions {
            policy,
            is_super,
            wanted,
        } = decisions;
        let list_first = self.list_first(&start);
        let RunStart {
            top,
            top_shown,
            missing,
            has_failed,
            ..
        } = start;
        let mut problems = Vec::new();
        let top = match top {
            Some(entry) => Some(self.top(entry, top_shown, &walk, &mut problems)?),
            None => None,
        };
        let plans = origin.plans(walk, list_first != ListFirst::No)?;
        let mut opening = self.opening();
        if top.is_none() {
            opening.extend(self.created());
        }
        opening.extend(problems.into_iter().map(Event::Problem));

        let option_dirs = self.option_dirs();
        if option_dirs.is_err() {
            // The destination was created even if the run ends here, unless it is the new name of an empty directory.
            for line in self.made() {
                listener.report(&Event::Note(line));
            }
            to.remove_if_named_anew();
        }
        let (backup, temp_dir) = option_dirs?;
        let throttle = self.throttle();
        let throttle = throttle
            .as_ref()
            .map(|throttle| move |bytes: u64| throttle.wait(bytes));
        let context = Context {
            options,
            policy,
            dest: to.root.as_ref(),
            dest_path: &to.path,
            wanted,
            backup: backup.as_ref(),
            temp_dir: temp_dir.as_ref(),
            process: self.run_context.process,
            is_super,
            wants,
            throttle: throttle.as_ref().map(|wait| wait as &(dyn Fn(u64) + Sync)),
            compare: self.compare,
            peer: self.peer,
            printer: self.printer,
            alternates: &alternates,
            unsupported_calls: UnsupportedCalls::default(),
            chosen: Chosen::default(),
            wanted_values: WantedValues::default(),
            checksum_cache: self.run_context.any_checksum_cache(),
            twins: Twins::default(),
            late: Arc::default(),
            again: Mutex::default(),
            gauge: self.run_context.gauge,
            delayed: Mutex::default(),
            late_removals: LateRemovals::default(),
            changed: ChangedFiles::new(
                self.run_context.checksum_cache(),
                if options.dry_run {
                    None
                } else {
                    to.root.as_ref()
                },
                self.run_context.process.stop,
                options.select.open_noatime,
                self.run_context.process.threads,
            ),
        };
        let unnamed = u64::from(top.is_some());
        worker_pool::run(&context, &*plans, unnamed, listener, tally, |generator| {
            if has_failed {
                generator.source_failed();
            }
            let missing = match &to.renamed {
                // A single missing argument is deleted under the name that it would have got.
                Some(new) if !missing.is_empty() => RelPath::parse(new).into_iter().collect(),
                Some(_) | None => missing,
            };
            generator.run(top, list_first, &missing, opening)?;
            generator.finish()
        })?;
        context.changed.finish();
        Ok(())
    }

    /// Returns whether the source is listed as a whole before anything is done.
    fn list_first(&self, start: &RunStart) -> ListFirst {
        let options = self.run_context.options;
        if needs_whole_list(options, self.wants) || start.reaches_source {
            ListFirst::Needed
        } else if options.delta.detect_renamed.is_some() {
            // A file can have been renamed from any place to any other.
            ListFirst::ToSearch
        } else {
            ListFirst::No
        }
    }

    /// Opens the directories of `--backup-dir` and `--temp-dir`.
    fn option_dirs(&self) -> Result<(Option<BackupDir>, Option<TempDir>)> {
        Ok((self.backup_dir()?, self.temp_dir()?))
    }

    /// Returns the limit of `--bwlimit` for a local copy. In a session, the sender has it.
    fn throttle(&self) -> Option<Throttle<'_>> {
        if self.peer.is_some() {
            return None;
        }
        let rate = self.run_context.options.connect.bwlimit_bytes_per_sec?;
        Some(Throttle::new(rate, self.run_context.process.stop))
    }

    /// Returns how the destination is listed and compared.
    fn walk<'w>(
        &'w self,
        decisions: &Decisions<'w>,
        receiver_chain: &'w Chain,
        alternates: &'w [Alternate],
        root_is_listed: bool,
    ) -> DestWalk<'w> {
        let options = self.run_context.options;
        let wants = self.wants;
        let &Decisions { policy, wanted, .. } = decisions;
        let removes = options.select.remove_source != RemoveSource::No;
        DestWalk {
            policy,
            wanted,
            reports_rules: options.output.debug.filter >= 1,
            dest: self.to.root.as_ref(),
            delete: options.delete.when.is_some(),
            deletes_later: options.delete.when == Some(When::After),
            finds_twins: options.delta.detect_renamed.is_some(),
            root_is_listed,
            receiver_chain,
            unchanged: wants.unchanged || wants.progress || removes || policy.preserve.hard_links,
            backup_suffix: options.place.suffix_beside(),
            threads: self.run_context.process.threads,
            is_dry: options.dry_run,
            alternates,
            alternate_kind: options.delta.alt_dest.as_ref().map(|alt| alt.kind),
            follows_implied: options.select.relative && options.select.no_implied_dirs,
            compare: self.compare,
            keeps_digests: self.run_context.checksum_cache().is_some(),
            resumes_from: resumes_from(options, self.peer.is_some()),
            digests_until: if options.plan_use == PlanUse::Free {
                None
            } else {
                Some(self.run_context.process.stop)
            },
            stored: self.run_context.process.stored,
            explainer: self.run_context.process.explainer,
        }
    }

    /// Returns the transfer's root: its entry from the source, and its state at the destination.
    fn top(
        &self,
        mut source: Entry,
        shown: Option<Vec<u8>>,
        walk: &DestWalk<'_>,
        problems: &mut Vec<Problem>,
    ) -> Result<Top> {
        walk.wanted.normalize(&mut source, 0);
        let examined = match &self.to.root {
            Some(root) if self.to.new_mode.is_none() => Some((root, sys::fstat(root.dir().fd()))),
            _ => None,
        };
        let Some((root, Ok(mut stat))) = examined else {
            return Ok(Top {
                source,
                existing: self.to.link.clone(),
                shown,
            });
        };
        if let Some(before) = self.to.mode_before {
            stat.mode = stat.mode & !0o7777 | before;
        }
        let mut existing = Entry::from_stat(&stat);
        let full = || root.full(b".");
        let path = || b".".to_vec();
        let at = EntryAt {
            dir: root.dir(),
            name: b".",
            stat: &stat,
            full: &full,
            path: &path,
        };
        if let Err(incomplete) = walk.wanted.complete_dest(&mut existing, &at) {
            problems.push(unreadable_or_fatal(
                "generator",
                incomplete,
                Weight::Failed,
            )?);
        }
        Ok(Top {
            source,
            existing: Some(existing),
            shown,
        })
    }

    /// Returns the lines about the destination if it was created.
    fn made(&self) -> impl Iterator<Item = Vec<u8>> {
        let is_reported = match self.run_context.options.output.created_dir {
            CreatedDir::Always => true,
            CreatedDir::AtClient => self.peer.is_none() || self.printer.is_receiver(),
            CreatedDir::Never => false,
        };
        self.to.made.iter().filter(move |_| is_reported).cloned()
    }

    /// Returns the planned creation of a destination that is not an entry of the transfer, if it is recorded or carried
    /// out.
    fn created(&self) -> Option<Event> {
        if !self.wants.planned {
            return None;
        }
        let action = PlannedAction::of_new_root(self.to.new_mode?);
        Some(Event::Planned(Box::new(action)))
    }

    /// Returns the events that precede the first entry.
    fn opening(&self) -> Vec<Event> {
        let to = self.to;
        let options = self.run_context.options;
        let output = &options.output;
        let delta: &[u8] = match options.delta.whole_file {
            Some(false) => b"delta-transmission enabled",
            None if self.peer.is_some() || options.place.append.is_some() => {
                b"delta-transmission enabled"
            }
            Some(true) | None => b"delta-transmission disabled for local transfer or --whole-file",
        };
        let mut lines: Vec<_> = self.made().collect();
        if let Some(backup) = &options.place.backup
            && let Some(dir) = &backup.dir
            && output.info.backup >= 1
            && !self.list_only
        {
            let is_new = sys::stat_path(&arg_path::absolute(&to.path, dir), true).is_err();
            let start: &[u8] = if is_new { b"(new) " } else { b"" };
            lines.push([start, b"backup_dir is ", dir].concat());
        }
        if output.debug.flist >= 1 && !output.quiet {
            lines.push(delta.to_vec());
        }
        lines.into_iter().map(Event::Note).collect()
    }
}

/// Whether the whole list must be known before anything is done.
pub fn needs_whole_list(options: &Options, wants: Wants) -> bool {
    let plans_links = options.preserve.hard_links && options.plan_use != PlanUse::Free;
    options.select.prune_empty_dirs
        || wants.whole_list
        // The names of a file are recorded, and compared, as a whole.
        || plans_links
        || matches!(options.delete.when, Some(When::Before | When::After))
        // In this mode a read error anywhere prevents all deletion, and a missing hard-linked file is created under the
        // last of its missing names.
        || (options.delete.when == Some(When::During) || options.preserve.hard_links) && options.select.no_inc_recursive
}

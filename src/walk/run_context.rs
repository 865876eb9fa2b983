//! The context of a run: the inputs that every role gets, and what to read of each entry.

use crate::checksum_cache::{CacheInUse, ChecksumCache};
use crate::filter::{Rules, Side};
use crate::flist::{Entry, Kind};
use crate::fs::read::Wanted;
use crate::fs::sys;
use crate::fs::xattr::{Who, XattrPolicy};
use crate::options::{CheckMode, Options, PeerLinks, PlanUse, Preserve, RemoveSource};
use crate::plan;
use crate::plan::explained::Explained;
use crate::plan::planned::StoredPlan;
use crate::report::explainer::Explainer;
use crate::report::{Event, Gauge};
use crate::walk::source::SourceWalk;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The process that has a role in a run.
#[derive(Clone, Copy)]
pub struct Process<'a> {
    /// The working directory, absolute.
    pub cwd: &'a [u8],
    /// The umask at the start of the process.
    pub umask: u32,
    /// Set to stop the run (a signal).
    pub stop: &'a AtomicBool,
    /// How many threads may work at once.
    pub threads: usize,
    /// The digests of earlier runs.
    pub checksum_cache: Option<&'a ChecksumCache>,
    /// The plan that a receiver of this process carries out, if there is one.
    pub stored: Option<&'a dyn StoredPlan>,
    /// Collects what this process finds out about the paths of `sparsync explain`, if it is that.
    pub explainer: Option<&'a Explainer>,
}

/// The inputs that every role of a run gets. The opener of a run makes it, and nothing changes it; only what it refers to (the
/// stop, the gauge) is set meanwhile.
#[derive(Clone, Copy)]
pub struct RunContext<'a> {
    /// The settled options.
    pub options: &'a Options,
    /// The rules of the command line.
    pub rules: &'a Rules,
    pub process: Process<'a>,
    /// If the connection is lost, the client connects again and repeats the run. Then no unfinished file may get its
    /// final name.
    pub repeats: bool,
    /// Set when the user asked the client to stop.
    pub interrupted: &'a AtomicBool,
    /// Counts for the live display of a client.
    pub gauge: Option<&'a Arc<Gauge>>,
}

impl<'a> RunContext<'a> {
    /// Whether `--checksum` treats two files as equal if access is denied at both ends, as rsync does. Not with
    /// `--remove-source-files`: the source may be the only copy.
    pub fn unreadable_is_same(&self) -> bool {
        self.options.select.remove_source == RemoveSource::No && !self.options.check.reports_unread
    }

    /// Returns the cache of digests, if this run uses it.
    pub fn checksum_cache(&self) -> Option<CacheInUse<'a>> {
        let choice = self.options.checksum_cache.as_ref()?;
        let cache = self.process.checksum_cache?;
        if self.options.check.mode == CheckMode::Digest {
            Some(CacheInUse { cache, choice })
        } else {
            None
        }
    }

    /// Returns the cache of digests, if this run uses it, or may look for equal files in it (`--detect-renamed`).
    pub fn any_checksum_cache(&self) -> Option<CacheInUse<'a>> {
        if !self.options.compares_contents() {
            return None;
        }
        let choice = self.options.checksum_cache.as_ref()?;
        let cache = self.process.checksum_cache?;
        Some(CacheInUse { cache, choice })
    }

    /// Returns the events about what this end has found out so far about the paths of `sparsync explain`.
    pub fn explained(&self) -> impl Iterator<Item = Event> {
        let explainer = self.process.explainer;
        let found = explainer.map(Explainer::take).unwrap_or_default();
        found.into_iter().flat_map(|(path, facts)| {
            facts.into_iter().map(move |fact| {
                let path = path.clone();
                Event::Explained(Box::new(Explained { path, fact }))
            })
        })
    }

    /// Calls `body` with a function that returns what to read of each entry. `preserve` has the attributes that this
    /// side preserves; `map` converts an entry of the source into what the destination should have; it
    /// also gets how many directories of the transfer lead to the entry.
    pub fn with_wanted<R>(
        &self,
        preserve: &Preserve,
        map: &(dyn Fn(&mut Entry, usize) + Sync),
        body: impl for<'x> FnOnce(Wanted<'x>) -> R,
    ) -> R {
        let lacks_fractions = self.options.connect.lacks_fractions();
        let unmunges = self.options.preserve.munge_links
            || self.options.preserve.peer_links == PeerLinks::Munged;
        let shape = |entry: &mut Entry| {
            if lacks_fractions {
                entry.mtime.nanos = 0;
            }
            if !preserve.chmod.is_empty() && entry.kind() != Kind::Symlink {
                entry.mode = plan::chmod::apply(entry.mode, entry.is_dir(), &preserve.chmod);
            }
            if unmunges
                && let Some(target) = entry.extra.as_mut().and_then(|extra| extra.target.as_mut())
                && let plain = plan::safelink::unmunge(target)
                && plain.len() < target.len()
            {
                *target = plain.into();
            }
        };
        let is_super = preserve.super_user.unwrap_or(sys::ids().0 == 0);
        let who = if preserve.fake_super {
            Who::Fake
        } else if is_super {
            Who::Root
        } else {
            Who::User
        };
        let attribute_rules =
            [Side::Sender, Side::Receiver].map(|side| self.rules.chain(side, b""));
        let has_rules = attribute_rules[0]
            .xattr_verdict(Side::Sender, b"")
            .is_some();
        let sender_rules = |name: &[u8]| {
            attribute_rules[0]
                .xattr_verdict(Side::Sender, name)
                .unwrap_or(true)
        };
        let receiver_rules = |name: &[u8]| {
            attribute_rules[1]
                .xattr_verdict(Side::Receiver, name)
                .unwrap_or(true)
        };
        let xattrs = if preserve.xattrs == 0 {
            None
        } else if has_rules {
            Some((
                XattrPolicy::sender(who, preserve.xattrs, Some(&sender_rules)),
                XattrPolicy::receiver(who, Some(&receiver_rules)),
            ))
        } else {
            Some((
                XattrPolicy::sender(who, preserve.xattrs, None),
                XattrPolicy::receiver(who, None),
            ))
        };
        body(Wanted {
            hard_links: preserve.hard_links,
            atimes: preserve.atimes,
            ctimes: self.options.plan_use != PlanUse::Free,
            xattrs,
            acls: preserve.acls,
            fake_super: preserve.fake_super,
            shape: &shape,
            map,
        })
    }

    /// Returns the walk over the source.
    pub fn source_walk<'w>(&self, wanted: Wanted<'w>) -> SourceWalk<'w>
    where
        'a: 'w,
    {
        let select = &self.options.select;
        SourceWalk {
            wanted,
            select,
            links: self.options.preserve.links,
            reports_unsafe: select.copy_unsafe_links
                && !select.copy_links
                && self.options.output.info.symsafe >= 1,
            reports_rules: self.options.output.debug.filter >= 1,
            link_owners: self.options.preserve.link_owners,
            contents: None,
            threads: self.process.threads,
            is_over: None,
            left_out: None,
            explainer: self.process.explainer,
        }
    }
}

//! Turns entries of the source into what the destination must have: ids mapped, symlinks munged or sanitized.

use crate::flist::{Entry, Kind};
use crate::fs::acl;
use crate::options::PeerLinks;
use crate::plan::idmap::{IdClass, IdMapper, IdNames, Privileges};
use crate::plan::{NO_ID, safelink};

/// Changes entries, as the source reported them, into what the destination must have.
pub(super) struct EntryNormalizer<'a> {
    /// What is done about symlinks.
    pub(super) links: PeerLinks,
    /// See [`crate::options::Preserve::strips_privileges`].
    pub(super) strips_privileges: bool,
    /// Owner or group is preserved.
    pub(super) maps: bool,
    /// Report the ids of the source, even if others are set.
    pub(super) reports_source_ids: bool,
    /// The mapping of ids.
    pub(super) mapper: &'a IdMapper,
    /// The names that both sides know.
    pub(super) names: &'a (dyn IdNames + Sync),
    /// Which ids may be set.
    pub(super) privileges: Privileges<'a>,
}

impl EntryNormalizer<'_> {
    /// Adapts an entry of the source. `depth`: how many directories of the transfer lead to it.
    pub(super) fn normalize(&self, entry: &mut Entry, depth: usize) {
        if entry.kind() == Kind::Symlink {
            let target = match self.links {
                PeerLinks::AsSent => None,
                PeerLinks::Munged => Some(safelink::munge(entry.target())),
                PeerLinks::Sanitized => Some(safelink::sanitize(entry.target(), depth)),
            };
            if let Some(target) = target {
                let extra = entry.extra_mut();
                extra.source_target = extra.target.replace(target.into());
            }
        }
        if self.strips_privileges {
            entry.strip_privileges();
        }
        // As in rsync, the ids in ACLs are mapped even if owner and group are not kept.
        self.map_acls(entry);
        if self.maps {
            self.map_ids(entry);
        }
    }

    fn map_acls(&self, entry: &mut Entry) {
        let Some(extra) = &mut entry.extra else {
            return;
        };
        for acl in [&mut extra.acl, &mut extra.default_acl]
            .into_iter()
            .flatten()
        {
            let map = |class| move |id| self.mapper.map_in_acl(class, id, self.names);
            *acl = acl::map_ids(acl, map(IdClass::User), map(IdClass::Group));
        }
    }

    fn map_ids(&self, entry: &mut Entry) {
        let sent = (entry.uid, entry.gid);
        let (uid, gid) = self
            .mapper
            .wanted(entry.uid, entry.gid, self.privileges, self.names);
        (entry.uid, entry.gid) = (uid.unwrap_or(entry.uid), gid.unwrap_or(NO_ID));
        if self.reports_source_ids && (entry.uid, entry.gid) != sent {
            entry.extra_mut().source_ids = Some(sent);
        }
    }
}

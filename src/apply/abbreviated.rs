//! Values of extended attributes that the sender has abbreviated: where an entry that needs them gets them.

use crate::apply::Context;
use crate::error::Result;
use crate::flist::abbreviated::{AbbreviatedValue, RequestedValues};
use crate::flist::{Entry, FileId};
use crate::fs::xattr::At;
use crate::plan::is_abbreviation;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Where values of an entry may be on this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalValues<'a> {
    /// The entry at the destination.
    pub dest: Option<&'a Entry>,
    /// The entry of an alternate tree.
    pub alternate: Option<At<'a>>,
}

impl LocalValues<'_> {
    /// Returns the value of an attribute if it is the abbreviated one.
    pub fn find(&self, name: &[u8], wanted: &AbbreviatedValue) -> Option<Box<[u8]>> {
        let of_dest = || value_of(self.dest, name, wanted).map(Box::from);
        let of_alternate = || {
            self.alternate?
                .get(name)
                .ok()?
                .filter(|value| is_abbreviation(wanted, value))
        };
        of_dest().or_else(|| of_alternate().map(Box::from))
    }
}

/// Returns the value that an entry of the destination has for an attribute if it is the abbreviated one.
pub fn value_of<'d>(
    dest: Option<&'d Entry>,
    name: &[u8],
    wanted: &AbbreviatedValue,
) -> Option<&'d [u8]> {
    let xattrs = dest?.xattrs();
    let at = xattrs
        .binary_search_by(|(other, _)| other.as_ref().cmp(name))
        .ok()?;
    Some(&*xattrs[at].1).filter(|value| is_abbreviation(wanted, value))
}

/// The values that the next items of entries request, until these items are submitted. A directory can have its item
/// after its listing is done.
#[derive(Debug, Default)]
pub struct WantedValues(Mutex<HashMap<FileId, RequestedValues>>);

impl WantedValues {
    /// Takes those of an entry.
    pub fn take(&self, file: FileId) -> RequestedValues {
        self.0.lock().remove(&file).unwrap_or_default()
    }
}

impl Context<'_> {
    /// Requests the values that are not here with the next item of an entry, if the peer sends values with items. Returns
    /// whether they must be awaited.
    pub fn want_xattrs(
        &self,
        file: Option<FileId>,
        source: &Entry,
        local: &LocalValues<'_>,
    ) -> bool {
        let (Some(peer), Some(file)) = (self.peer, file) else {
            return false;
        };
        if !(self.has_values_with_items() && source.has_abbreviated()) {
            return false;
        }
        let wanted = source
            .xattrs()
            .iter()
            .filter_map(|(name, value)| Some((name, AbbreviatedValue::decode(value)?)));
        let wanted = wanted.map(|(name, wanted)| (local.find(name, &wanted).is_none(), wanted));
        let mut list = 0;
        let mut missing = Vec::new();
        for (is_missing, wanted) in wanted {
            list = wanted.list;
            if is_missing && peer.xattr(&wanted).is_none() {
                missing.push(wanted.number);
            }
        }
        missing.sort_unstable();
        let is_any_missing = !missing.is_empty();
        let values = RequestedValues {
            list,
            numbers: missing,
        };
        self.wanted_values.0.lock().insert(file, values);
        is_any_missing && !self.is_dry()
    }

    /// Waits for the values that were requested with the items of an entry.
    pub fn await_xattrs(&self, file: Option<FileId>, source: &Entry) -> Result<()> {
        if !(self.has_values_with_items() && source.has_abbreviated()) {
            return Ok(());
        }
        match (self.peer, file) {
            (Some(peer), Some(file)) => peer.await_xattrs(file),
            _ => Ok(()),
        }
    }
}

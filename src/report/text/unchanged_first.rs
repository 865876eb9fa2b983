//! The order of the lines under `-vv`: those about unchanged entries come before those about changed ones.
//!
//! In rsync, the generator prints the former while it compares, and the latter are printed when the sender or the receiver
//! comes to the entry. So all of the former come first among the entries that the generator has before it waits for more of
//! the list.

use crate::flist::Kind;
use crate::path;
use crate::report::event::Item;

/// The generator of rsync has at least this many entries before it waits for the sender.
const GROUP_ENTRIES: u32 = 1000;

/// Divides the entries of a run into groups of whole directories. The lines about the changed entries of a group are
/// printed behind all others.
#[derive(Debug, Default)]
pub(super) struct UnchangedFirst {
    /// How many entries the group has.
    entries: u32,
    /// The directory of the last entry.
    dir: Vec<u8>,
}

impl UnchangedFirst {
    /// Takes the next entry. Returns whether it is the first one of a new group. `root_is_group`: the root of the transfer
    /// is a group, because the lists of other directories come later.
    pub(super) fn begins_group(&mut self, item: &Item, root_is_group: bool) -> bool {
        let dir = match item.kind {
            _ if item.name == b"." => b"",
            Kind::Dir => &item.name[..],
            _ => path::split_parent(&item.name).0,
        };
        let is_full = self.entries >= GROUP_ENTRIES
            || root_is_group && self.dir.is_empty() && self.entries > 0;
        let is_new = is_full && dir != self.dir;
        if is_new {
            self.entries = 0;
        }
        self.entries += 1;
        if dir != self.dir {
            dir.clone_into(&mut self.dir);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::format::tests::item;

    #[test]
    fn groups_are_whole_directories() {
        for root_is_group in [false, true] {
            let mut order = UnchangedFirst::default();
            let mut begun = Vec::new();
            let mut take = |name: &str, kind: Kind| {
                let item = Item { kind, ..item(name) };
                if order.begins_group(&item, root_is_group) {
                    begun.push(name.to_owned());
                }
            };
            take(".", Kind::Dir);
            take("file", Kind::File);
            for dir in 0..40 {
                take(&format!("d{dir}"), Kind::Dir);
                for file in 0..59 {
                    take(&format!("d{dir}/f{file}"), Kind::File);
                }
            }
            let wanted: &[&str] = if root_is_group {
                &["d0", "d17", "d34"]
            } else {
                &["d17", "d34"]
            };
            assert_eq!(begun, wanted);
        }
    }
}

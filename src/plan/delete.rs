//! Decides deletions: which entries of the destination are extra, what protects them, and how many may be deleted.
//!
//! Pure, like the rest of the module: `apply` removes what is decided here, at the time that the options require.

use crate::filter::{Chain, Side, Verdict};
use crate::options::Delete;
use crate::path::RelPath;

/// How many levels of an extra directory are removed. It bounds the stack. rsync removes nothing whose path has more than
/// 4,096 bytes, and so no more levels than these.
pub const LEVELS_MAX: usize = 2048;

/// Decides which entries of one directory are extra, of those that only the destination has.
pub struct Extras<'a> {
    chain: &'a Chain,
    may_delete: bool,
    prints_rules: bool,
    /// The directory's path with a slash. Scratch space for the paths of its entries.
    path: Vec<u8>,
}

impl<'a> Extras<'a> {
    /// Begins a directory. `chain`: the receiver's rules in force in it. `may_delete`: the options request deletions,
    /// and the source's listing is complete. `prints_rules`: note which rule matched (`--debug=FILTER`).
    pub fn new(
        dir: &RelPath,
        chain: &'a Chain,
        may_delete: bool,
        prints_rules: bool,
    ) -> Extras<'a> {
        let mut path = dir.as_bytes().to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        Extras {
            chain,
            may_delete,
            prints_rules,
            path,
        }
    }

    /// Returns whether an entry is extra: it may be deleted, and no rule protects it.
    pub fn contain(&mut self, name: &[u8], is_dir: bool, notes: &mut Vec<Vec<u8>>) -> bool {
        if !self.may_delete || self.chain.is_empty() {
            return self.may_delete;
        }
        let dir_len = self.path.len();
        self.path.extend_from_slice(name);
        let is_extra =
            self.chain
                .includes(self.prints_rules, Side::Receiver, &self.path, is_dir, notes);
        self.path.truncate(dir_len);
        is_extra
    }
}

/// Returns whether a rule protects an entry in a directory that is deleted. `chain`: the rules in force there, if any.
pub fn is_protected(chain: Option<&Chain>, path: &RelPath, is_dir: bool) -> bool {
    let verdict =
        |chain: &Chain| chain.verdict_in_deleted_dir(Side::Receiver, path.as_bytes(), is_dir);
    chain.is_some_and(|chain| verdict(chain) != Verdict::Include)
}

/// Returns whether `-m` may drop a directory if it has no entries; then what the destination has of it is extra.
/// `chain`: the rules of the command line.
pub fn may_prune(chain: &Chain, path: &RelPath) -> bool {
    chain.verdict(Side::Receiver, path.as_bytes(), true) == Verdict::Include
}

/// Returns whether a non-empty directory may be emptied to make room for an entry of another kind.
pub fn may_empty(options: &Delete) -> bool {
    options.when.is_some() || options.force
}

/// Returns whether extra entries are known well enough to be deleted. `source_failed`: part of the source, or a
/// directory to be deleted, could not be read.
pub fn are_extras_known(options: &Delete, source_failed: bool) -> bool {
    !source_failed || options.ignore_errors
}

/// The limit of `--max-delete`.
#[derive(Debug)]
pub struct Limit {
    /// How many entries may still be deleted; `None`: any number.
    left: Option<u64>,
    held_back: u64,
}

impl Limit {
    /// Returns the limit of a run that has deleted nothing.
    pub fn new(options: &Delete) -> Limit {
        Limit {
            left: options.max,
            held_back: 0,
        }
    }

    /// Returns whether one more entry may be deleted. If not, counts it as held back.
    pub fn permits(&mut self) -> bool {
        let permits = self.left != Some(0);
        self.held_back += u64::from(!permits);
        permits
    }

    /// Counts an entry that was deleted.
    pub fn count(&mut self) {
        self.left = self.left.map(|left| left.saturating_sub(1));
    }

    /// Returns how many entries the limit kept.
    pub fn held_back(&self) -> u64 {
        self.held_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{ChainOptions, parse_filter};
    use crate::options::When;

    fn chain(rules: &[&str]) -> Chain {
        let rules = rules
            .iter()
            .map(|rule| parse_filter(rule.as_bytes()).unwrap());
        Chain::new(rules, ChainOptions::default())
    }

    /// Returns which of the entries `a`, `b` and `c` of the directory `d` are extra.
    fn extras(rules: &[&str], may_delete: bool) -> [bool; 3] {
        let dir = RelPath::parse(b"d").unwrap();
        let chain = chain(rules);
        let mut extras = Extras::new(&dir, &chain, may_delete, false);
        [b"a", b"b", b"c"].map(|name| extras.contain(name, false, &mut Vec::new()))
    }

    #[test]
    fn entries_are_extra_unless_a_rule_protects_them() {
        assert_eq!(extras(&[], true), [true; 3]);
        assert_eq!(extras(&["P /d/b", "P /c"], true), [true, false, true]);
        assert_eq!(extras(&["P /d/b"], false), [false; 3]);
    }

    #[test]
    fn rules_protect_in_deleted_directories_unless_they_are_perishable() {
        let path = RelPath::parse(b"d/b").unwrap();
        let other = RelPath::parse(b"d/c").unwrap();
        let chain = chain(&["P b", "-p c"]);
        assert!(is_protected(Some(&chain), &path, false));
        assert!(!is_protected(Some(&chain), &other, false));
        assert!(!is_protected(None, &path, false));
    }

    #[test]
    fn directories_are_pruned_unless_a_rule_protects_them() {
        let path = RelPath::parse(b"d").unwrap();
        assert!(may_prune(&chain(&["P f"]), &path));
        assert!(!may_prune(&chain(&["P d/"]), &path));
    }

    #[test]
    fn directories_make_room_if_deletions_or_force_are_requested() {
        assert!(!may_empty(&Delete::default()));
        assert!(may_empty(&Delete {
            when: Some(When::During),
            ..Delete::default()
        }));
        assert!(may_empty(&Delete {
            force: true,
            ..Delete::default()
        }));
    }

    #[test]
    fn errors_of_the_source_stop_deletions_unless_they_are_ignored() {
        let ignoring = Delete {
            ignore_errors: true,
            ..Delete::default()
        };
        assert!(are_extras_known(&Delete::default(), false));
        assert!(!are_extras_known(&Delete::default(), true));
        assert!(are_extras_known(&ignoring, true));
    }

    #[test]
    fn limit_counts_what_it_keeps() {
        let mut limit = Limit::new(&Delete {
            max: Some(1),
            ..Delete::default()
        });
        assert!(limit.permits() && limit.permits());
        assert_eq!(limit.held_back(), 0);
        limit.count();
        assert!(!limit.permits() && !limit.permits());
        assert_eq!(limit.held_back(), 2);
        let mut unlimited = Limit::new(&Delete::default());
        unlimited.count();
        assert!(unlimited.permits());
    }
}

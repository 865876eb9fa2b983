//! The rules in force, directory by directory.
//!
//! A [`Chain`] is a list of rules and groups, with one group for each per-directory merge file. Entering a directory
//! inserts the rules of its file at the front of the group. The caller reads those files.

#[cfg(test)]
mod tests;
mod verdicts;

use std::sync::Arc;

use super::compiled_rules::{
    ChainBuilder, ChainOptions, FilterError, ReadMerge, RuleAt, RuleBlock, RuleItem, flatten, join,
    names_of, push_rule,
};
use super::rule::{Parsed, Rule, Sides};

/// The rules in force in one directory. Immutable and cheap to clone.
///
/// [`Rules::chain`](super::Rules::chain) makes the one of a tree, and [`Chain::enter`] that of a directory from that of its
/// parent. The walk keeps one per open directory, and threads share them.
#[derive(Clone, Debug)]
pub struct Chain(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: Arc<ChainOptions>,
    items: Vec<RuleItem>,
    /// The global CVS excludes, once there was a `-C` rule. The modifiers of the first one apply to all.
    cvs: Option<Arc<[Rule]>>,
    /// Whether a directory was entered. The parents are scanned with the first one.
    entered: bool,
    /// The rules of the items, flattened, in order.
    rules: Vec<Arc<RuleBlock>>,
    /// Whether one of them is about extended attributes.
    has_xattr: bool,
}

impl Chain {
    /// Creates the chain of a whole transfer, before any directory is entered.
    ///
    /// `rules` must not contain a merge file that is read once: the caller inserts its rules in its place.
    pub fn new(rules: impl IntoIterator<Item = Parsed>, mut options: ChainOptions) -> Chain {
        while options.root_abs.last() == Some(&b'/') {
            options.root_abs.pop();
        }
        let mut builder = ChainBuilder {
            options: &options,
            cvs: None,
            active: Vec::new(),
            depth: 0,
            too_long: Vec::new(),
        };
        let mut items = Vec::new();
        for parsed in rules {
            match parsed {
                Parsed::Rule(rule) => {
                    push_rule(&mut items, builder.compile(rule, None), RuleAt::RUN)
                }
                Parsed::Cvs(cvs) => builder.add_cvs(&cvs, None, &mut items),
                Parsed::Clear => {
                    items.clear();
                    builder.active.clear();
                }
                Parsed::Merge(merge) => {
                    assert!(
                        merge.per_dir,
                        "the caller reads merge files that are read once"
                    );
                    builder.add_group(*merge, Sides::Unsaid, None, RuleAt::RUN, &mut items);
                }
                Parsed::Nothing | Parsed::TooLong(_) => {}
            }
        }
        let cvs = builder.cvs;
        Chain::from_items(items, cvs, Arc::new(options), false)
    }

    fn from_items(
        items: Vec<RuleItem>,
        cvs: Option<Arc<[Rule]>>,
        options: Arc<ChainOptions>,
        entered: bool,
    ) -> Chain {
        let mut rules = Vec::with_capacity(items.len());
        flatten(&items, &mut rules);
        let has_xattr = rules
            .iter()
            .flat_map(|block| &block.rules)
            .any(|rule| rule.xattr);
        Chain(Arc::new(Inner {
            options,
            items,
            cvs,
            entered,
            rules,
            has_xattr,
        }))
    }

    /// Enters the directory `dir` and returns the chain in force inside it, and a warning for each rule in its files that is
    /// too long.
    ///
    /// Call it on the chain of the parent directory; for the first directory of the walk, on the chain from
    /// [`Chain::new`]. That first call also scans the parents of `dir` for files named with a path (`: /.rsync-filter`,
    /// `: ../.rules`).
    ///
    /// `read` receives either a bare name in `dir` or an absolute path (of a parent's file, or of a file included with
    /// `.`). It returns `None` if the file does not exist or is not a readable file; its errors become
    /// [`FilterError::Unreadable`]. If nothing changes, the result is the same chain, not a copy.
    pub fn enter(
        &self,
        dir: &[u8],
        read: &mut ReadMerge<'_>,
    ) -> Result<(Chain, Vec<Vec<u8>>), FilterError> {
        if !self.has_per_dir() {
            return Ok((self.clone(), Vec::new()));
        }
        let inner = &*self.0;
        let mut builder = ChainBuilder {
            options: &inner.options,
            cvs: inner.cvs.clone(),
            active: Vec::new(),
            depth: 0,
            too_long: Vec::new(),
        };
        names_of(&inner.items, &mut builder.active);
        let dir_abs = join(&inner.options.root_abs, dir);
        let mut permitted = |name: &[u8]| {
            if let Some(module) = &inner.options.module {
                let is_hidden = if name.starts_with(b"/") {
                    module.exclude(name, false)
                } else {
                    module.exclude_in(&dir_abs, name, false)
                };
                if is_hidden {
                    return Ok(None);
                }
            }
            read(name)
        };
        let read: &mut ReadMerge<'_> = &mut permitted;
        let mut changed = !inner.entered;
        let mut items = Vec::with_capacity(inner.items.len());
        for item in &inner.items {
            match item {
                RuleItem::Rules(block) => items.push(RuleItem::Rules(Arc::clone(block))),
                RuleItem::Group(group) => {
                    let mut group = Arc::clone(group);
                    if !inner.entered {
                        group = builder.scan_parents(group, &dir_abs, read)?;
                    }
                    let entered = builder.enter_group(&group, &dir_abs, None, read)?;
                    changed |= !Arc::ptr_eq(&entered, &group);
                    items.push(RuleItem::Group(entered));
                }
            }
        }
        let ChainBuilder { cvs, too_long, .. } = builder;
        let chain = if changed {
            Chain::from_items(items, cvs, Arc::clone(&inner.options), true)
        } else {
            self.clone()
        };
        Ok((chain, too_long))
    }

    /// Returns the chain with which to enter the directory of a further source of the same run.
    ///
    /// rsync scans the parents only of the first directory. A chain with which a directory was entered is returned as
    /// it is.
    pub fn for_further_source(&self) -> Chain {
        if self.0.entered || !self.has_per_dir() {
            return self.clone();
        }
        let Inner {
            options,
            items,
            cvs,
            ..
        } = &*self.0;
        Chain::from_items(items.clone(), cvs.clone(), Arc::clone(options), true)
    }

    /// Returns whether there are rules of a module.
    pub fn has_module_rules(&self) -> bool {
        self.0.options.module.is_some()
    }

    /// Returns whether [`Chain::enter`] can change anything.
    pub fn has_per_dir(&self) -> bool {
        self.0
            .items
            .iter()
            .any(|item| matches!(item, RuleItem::Group(_)))
    }

    /// Returns whether there are no rules and no per-directory files.
    pub fn is_empty(&self) -> bool {
        self.0.items.is_empty() && self.0.options.module.is_none()
    }

    /// Returns whether both are the same chain, not only equal ones.
    #[cfg(test)]
    fn same(&self, other: &Chain) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

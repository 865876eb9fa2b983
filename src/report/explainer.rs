//! Collects what a run finds out about the paths of `sparsync explain`.

use crate::filter::{Chain, Side};
use crate::path::RelPath;
use crate::plan::explained::{Explained, Fact};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// Collects what a run finds out about some paths, from all of its threads.
///
/// Each end has one. A server sends what it has found to the client at the end of its walk.
#[derive(Debug)]
pub struct Explainer {
    /// The names to explain in each directory, and those of the directories that lead to them.
    names: BTreeMap<RelPath, BTreeSet<Vec<u8>>>,
    paths: Vec<RelPath>,
    facts: Mutex<BTreeMap<Vec<u8>, Vec<Fact>>>,
}

/// The most facts about one path. Two ends find a few, and a peer must not send any number.
const FACTS_MAX: usize = 64;

impl Explainer {
    /// Creates the explainer of a run; `None`: there are no paths to explain.
    pub fn new(paths: &[RelPath]) -> Option<Explainer> {
        if paths.is_empty() {
            return None;
        }
        let mut names: BTreeMap<RelPath, BTreeSet<Vec<u8>>> = BTreeMap::new();
        for path in paths {
            let mut at = path.clone();
            while let Some(parent) = at.parent() {
                names
                    .entry(parent.clone())
                    .or_default()
                    .insert(at.name().to_vec());
                at = parent;
            }
        }
        Some(Explainer {
            names,
            paths: paths.to_vec(),
            facts: Mutex::default(),
        })
    }

    /// Returns the names in a directory that are to be explained, or that lead to one.
    pub fn names_in(&self, dir: &RelPath) -> impl Iterator<Item = &[u8]> {
        self.names.get(dir).into_iter().flatten().map(Vec::as_slice)
    }

    /// Returns whether a path is to be explained, or leads to one.
    pub fn asks_about(&self, path: &RelPath) -> bool {
        match path.parent() {
            Some(parent) => self
                .names
                .get(&parent)
                .is_some_and(|names| names.contains(path.name())),
            None => true,
        }
    }

    /// Returns the paths below a directory that are to be explained.
    pub fn below<'a>(&'a self, dir: &'a RelPath) -> impl Iterator<Item = &'a RelPath> {
        self.paths.iter().filter(move |path| {
            path.as_bytes()
                .strip_prefix(dir.as_bytes())
                .is_some_and(|rest| rest.starts_with(b"/"))
        })
    }

    /// Adds a fact about a path, if it is asked about. It comes after those that were found before; an equal one is
    /// replaced.
    pub fn add(&self, path: &RelPath, fact: Fact) {
        if !self.asks_about(path) {
            return;
        }
        let mut facts = self.facts.lock();
        let known = facts.entry(path.as_bytes().to_vec()).or_default();
        known.retain(|known| *known != fact);
        if known.len() < FACTS_MAX {
            known.push(fact);
        }
    }

    /// Adds the rule that decides about an entry, if it is asked about and there is one.
    pub fn add_rule(
        &self,
        chain: &Chain,
        side: Side,
        path: &RelPath,
        is_dir: bool,
        in_deleted_dir: bool,
    ) {
        if !self.asks_about(path) {
            return;
        }
        if let Some(rule) = chain.deciding_rule(side, path.as_bytes(), is_dir, in_deleted_dir) {
            self.add(path, Fact::Rule { side, is_dir, rule });
        }
    }

    /// Adds a fact of the other end.
    pub fn put(&self, explained: Explained) {
        if let Ok(path) = RelPath::parse(&explained.path) {
            self.add(&path, explained.fact);
        }
    }

    /// Takes the facts that were found so far, by path.
    pub fn take(&self) -> BTreeMap<Vec<u8>, Vec<Fact>> {
        std::mem::take(&mut self.facts.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_asked_paths_and_the_directories_above_them_are_collected() {
        let path = |text: &[u8]| RelPath::parse(text).unwrap();
        assert!(Explainer::new(&[]).is_none());
        let explainer = Explainer::new(&[path(b"a/b/c"), path(b"a/bc")]).unwrap();
        for text in [
            &b"a"[..],
            b"a/b",
            b"a/b/c",
            b"a/b/d",
            b"b",
            b"a/b/c/d",
            b"a/bc",
            b"",
        ] {
            explainer.add(&path(text), Fact::Pruned);
        }
        let found: Vec<_> = explainer.take().into_keys().collect();
        assert_eq!(found, [&b""[..], b"a", b"a/b", b"a/b/c", b"a/bc"]);
        assert_eq!(explainer.below(&path(b"a/b")).count(), 1);
        assert_eq!(explainer.names_in(&path(b"a")).count(), 2);
        assert!(explainer.take().is_empty());
    }
}

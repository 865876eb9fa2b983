//! The rules of a run, from which the chain of each tree is built.

use super::chain::Chain;
use super::compiled_rules::{ChainOptions, clean};
use super::rule::{Parsed, Side};
use std::sync::Arc;

/// The rules of a run, from which the chain of each tree is built.
#[derive(Debug)]
pub struct Rules {
    /// Empty if there is a shared chain.
    parsed: Arc<Vec<Parsed>>,
    options: ChainOptions,
    /// One chain for all trees and both sides, if no rule depends on the path of the root. This avoids copying the
    /// rules, of which there may be millions.
    shared: Option<Chain>,
}

impl Rules {
    /// Creates the rules of a run. `parsed` is as for [`Chain::new`]; `options` omit the root and the side.
    pub fn new(parsed: impl Into<Arc<Vec<Parsed>>>, options: ChainOptions) -> Rules {
        let parsed = parsed.into();
        let options = ChainOptions {
            module_abs: clean(&options.module_abs),
            ..options
        };
        let looks_up = parsed.iter().any(|parsed| match parsed {
            Parsed::Rule(rule) => rule.absolute,
            Parsed::Merge(_) => true,
            Parsed::Cvs(cvs) => cvs.absolute,
            Parsed::Clear | Parsed::Nothing | Parsed::TooLong(_) => false,
        });
        if looks_up || options.module.is_some() {
            Rules {
                parsed,
                options,
                shared: None,
            }
        } else {
            let shared = Some(Chain::new(parsed.iter().cloned(), options.clone()));
            Rules {
                parsed: Arc::default(),
                shared,
                options,
            }
        }
    }

    /// Returns the rules that have the same effect in every tree: those before the first rule that reads a file in the
    /// tree or depends on the path of its root. The chain is empty if a later rule clears the list.
    pub fn fixed(&self) -> Chain {
        if let Some(shared) = &self.shared {
            return shared.clone();
        }
        let depends = |parsed: &Parsed| match parsed {
            Parsed::Rule(rule) => rule.absolute,
            Parsed::Merge(_) | Parsed::Cvs(_) => true,
            Parsed::Clear | Parsed::Nothing | Parsed::TooLong(_) => false,
        };
        let end = self
            .parsed
            .iter()
            .position(depends)
            .unwrap_or(self.parsed.len());
        let (fixed, rest) = self.parsed.split_at(end);
        let fixed = if rest.iter().any(|parsed| matches!(parsed, Parsed::Clear)) {
            &[]
        } else {
            fixed
        };
        // None of them reads a file, so the side does not matter.
        Chain::new(fixed.iter().cloned(), self.options.clone())
    }

    /// Returns the chain of the tree at `root_abs`, before any directory is entered.
    pub fn chain(&self, side: Side, root_abs: &[u8]) -> Chain {
        if let Some(shared) = &self.shared {
            return shared.clone();
        }
        let options = ChainOptions {
            root_abs: clean(root_abs),
            side: Some(side),
            ..self.options.clone()
        };
        Chain::new(self.parsed.iter().cloned(), options)
    }
}

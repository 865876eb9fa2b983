//! Random comparisons: `sparsync check` finds what a dry run of rsync would change.

use std::fmt::{self, Display, Formatter};

use super::tree::{Dice, Entry, consistent, random, relative, smaller_trees};
use super::{add, caught, masked};
use crate::kit::{Route, Who, World};

/// What is compared, in the words of both programs.
const ATTRIBUTES: &str = "-a -a -r -rl -rlt -rlp -rlptgo -aA -aAX -aE -aH -aH";
const FILTERS: &str = "--exclude=*.o --exclude=/d/ --exclude=/a --include=*.c --filter=P_x -F -C --max-size=3k --min-size=2 \
    --safe-links --copy-links --numeric-ids --chmod=u+w -m --no-implied-dirs --modify-window=1";

/// A comparison.
#[derive(Clone)]
pub struct RandomCheck {
    trees: [Vec<Entry>; 2],
    attributes: String,
    filters: Vec<String>,
    is_one_way: bool,
    is_quick: bool,
}

impl RandomCheck {
    /// Returns the comparison of a seed.
    pub fn nth(seed: u64) -> RandomCheck {
        let mut dice = Dice(seed.wrapping_mul(0x1000_0000_01b3) ^ 2);
        let count = 1 + dice.below(16);
        let source = random(&mut dice, count);
        // Every fifth one is of equal trees.
        let dest = if dice.one_in(5) {
            source.clone()
        } else {
            relative(&mut dice, &source)
        };
        let filters = (0..dice.below(3))
            .map(|_| dice.word(FILTERS).replace('_', " "))
            .collect();
        RandomCheck {
            trees: [consistent(source), consistent(dest)],
            attributes: dice.word(ATTRIBUTES).to_owned(),
            filters,
            is_one_way: dice.one_in(5),
            is_quick: dice.one_in(5),
        }
    }

    /// Returns what differs from rsync's dry run.
    pub fn difference(&self, route: Route, name: &str) -> Option<String> {
        caught(route, || {
            let w = World::new(name, route, Who::Current);
            w.needs_acls().needs_xattrs().mask_with(masked);
            for (name, entries) in ["src", "dst"].iter().zip(&self.trees) {
                w.build(name, |tree| {
                    for entry in entries {
                        add(tree, entry);
                    }
                });
            }
            let common = [std::slice::from_ref(&self.attributes), &self.filters[..]].concat();
            let mut options = common.clone();
            let mut dry_run = common;
            dry_run.extend(["-ni", "-O"].map(str::to_owned));
            if self.is_one_way {
                options.push("--one-way".to_owned());
            } else {
                dry_run.push("--delete".to_owned());
            }
            if self.is_quick {
                options.push("--quick".to_owned());
            } else {
                dry_run.push("-c".to_owned());
            }
            w.try_checks(&options, &dry_run, &["src/", "dst/"]).err()
        })
    }

    /// Returns the comparisons that lack one part of this one.
    pub fn smaller(&self) -> Vec<RandomCheck> {
        let mut smaller = Vec::new();
        for at in 0..self.filters.len() {
            let mut one = self.clone();
            one.filters.remove(at);
            smaller.push(one);
        }
        for trees in smaller_trees(&self.trees) {
            smaller.push(RandomCheck {
                trees,
                ..self.clone()
            });
        }
        smaller
    }
}

impl Display for RandomCheck {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let names = self.trees.each_ref().map(|tree| {
            tree.iter()
                .map(|entry| entry.path.escape_ascii().to_string())
                .collect::<Vec<_>>()
        });
        let RandomCheck {
            trees: _,
            attributes,
            filters,
            is_one_way,
            is_quick,
        } = self;
        writeln!(
            f,
            "{attributes} {filters:?}, one way: {is_one_way}, quick: {is_quick}\nsrc {:?}\ndst {:?}",
            names[0], names[1]
        )
    }
}

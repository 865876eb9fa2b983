//! Random explanations: what `sparsync explain` says of each path is what a run does with it.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use super::plans::{plain, timeless_dirs};
use super::tree::{Dice, Entry, Kind, consistent, random, relative, smaller_trees};
use super::{add, caught, masked};
use crate::explain::explanations;
use crate::kit::{Route, Snapshot, Who, World};

const BASES: &str = "-a -a -a -rlt -rt -rl -rlptgoD -dt -at -aH";
const DELETIONS: &str = "--delete --delete --delete-before --delete-during --delete-delay --delete-after --delete-excluded --force";
const OPTIONS: &str = "--max-delete=1 --max-delete=3 --existing --ignore-existing -u -c -I --size-only \
    --max-size=10 --min-size=5 -m -x -O -J --exclude=*.o --exclude=/d/ --exclude=/a --include=*/ --exclude=* --filter=P_x \
    --filter=P_/d/*** --filter=H_a --filter=R_e --filter=-p_a --filter=:_.rules --filter=:n_.rules -F -C --no-perms --chmod=F600 \
    --no-inc-recursive -L -k --safe-links --modify-window=1 --no-o --ignore-times";

/// Trees and options.
#[derive(Clone)]
pub struct RandomExplanation {
    trees: [Vec<Entry>; 2],
    options: Vec<String>,
}

impl RandomExplanation {
    /// Returns the case of a seed.
    pub fn nth(seed: u64) -> RandomExplanation {
        let mut dice = Dice(seed.wrapping_mul(0x1000_0000_01b3) ^ 11);
        let count = 2 + dice.below(20);
        let mut source = random(&mut dice, count);
        for entry in &mut source {
            let is_rules = entry.path.split(|&byte| byte == b'/').next_back();
            if let (Some(b".rules"), Kind::File(text)) = (is_rules, &mut entry.kind) {
                *text = dice
                    .word("-_a -_*.o P_x +_e")
                    .replace('_', " ")
                    .into_bytes();
            }
        }
        let dest = relative(&mut dice, &source);
        let mut options = vec![dice.word(BASES).to_owned()];
        if !dice.one_in(4) {
            options.push(dice.word(DELETIONS).to_owned());
        }
        for _ in 0..dice.below(4) {
            options.push(dice.word(OPTIONS).replace('_', " "));
        }
        RandomExplanation {
            trees: [source, dest].map(|tree| consistent(plain(tree, false))),
            options,
        }
    }

    /// Returns what is wrong.
    pub fn difference(&self, route: Route, name: &str) -> Option<String> {
        caught(route, || {
            let w = World::new(name, route, Who::Current);
            w.mask_with(masked).stderr_unordered();
            for (name, entries) in ["src", "dst"].iter().zip(&self.trees) {
                w.build(name, |tree| {
                    for entry in entries {
                        add(tree, entry);
                    }
                });
            }
            self.broken_law(&w)
        })
    }

    fn broken_law(&self, w: &World) -> Option<String> {
        let mut paths = BTreeSet::from([b"nowhere".to_vec(), b"d/nowhere".to_vec()]);
        for entry in self.trees.iter().flatten() {
            let ends = entry
                .path
                .iter()
                .enumerate()
                .filter(|(_, byte)| **byte == b'/');
            paths.extend(ends.map(|(at, _)| entry.path[..at].to_vec()));
            paths.insert(entry.path.clone());
        }
        // A path that begins like an option is one, and the kit masks other bytes in what is printed.
        let paths: Vec<_> = paths
            .into_iter()
            .filter(|path| !path.starts_with(b"-") && path.iter().all(|byte| is_plain(*byte)))
            .collect();
        let explained = match w.try_explain(&paths, &self.options, &["src/", "dst/"]) {
            Ok(explained) => explained,
            Err(wrong) => return Some(wrong),
        };
        if explained.exit != 0 {
            return None;
        }
        let before = timeless_dirs(w.left_by_us());
        let (exit, after) = w.we_leave(&self.options);
        if exit != 0 {
            return None;
        }
        let after = timeless_dirs(after);
        let told = explanations(&explained.stdout);
        if told.len() != paths.len() {
            return Some(format!("{} explanations\n{}", told.len(), explained.stderr));
        }
        for (path, explanation) in paths.iter().zip(&told) {
            let verdict = &explanation.verdict;
            if let Some(wrong) = disagreement(path, verdict, &before, &after) {
                return Some(format!("{wrong}\n{explanation:?}\n{}", explained.stdout));
            }
        }
        None
    }

    /// Returns the cases that lack one part of this one.
    pub fn smaller(&self) -> Vec<RandomExplanation> {
        let mut smaller = Vec::new();
        for at in 1..self.options.len() {
            let mut one = self.clone();
            one.options.remove(at);
            smaller.push(one);
        }
        for trees in smaller_trees(&self.trees) {
            smaller.push(RandomExplanation {
                trees,
                ..self.clone()
            });
        }
        smaller
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\\\":".contains(&byte) || byte == b' '
}

/// Returns how a verdict disagrees with what a run has done.
fn disagreement(path: &[u8], verdict: &str, before: &Snapshot, after: &Snapshot) -> Option<String> {
    let was = before.get(path);
    let is = after.get(path);
    let agrees = match (was, is) {
        (None, None) => ["absent", "not_copied"].contains(&verdict),
        (None, Some(_)) => ["copied", "linked"].contains(&verdict),
        (Some(_), None) => verdict == "deleted",
        (Some(was), Some(is)) if was == is => verdict != "deleted" && verdict != "absent",
        (Some(_), Some(_)) => ["copied", "updated", "linked"].contains(&verdict),
    };
    if agrees {
        return None;
    }
    let path = path.escape_ascii();
    Some(format!(
        "{path} is explained as {verdict}\n  before {was:?}\n  after  {is:?}"
    ))
}

impl Display for RandomExplanation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let names = self.trees.each_ref().map(|tree| {
            tree.iter()
                .map(|entry| entry.path.escape_ascii().to_string())
                .collect::<Vec<_>>()
        });
        writeln!(
            f,
            "{:?}\nsrc {:?}\ndst {:?}",
            self.options, names[0], names[1]
        )
    }
}

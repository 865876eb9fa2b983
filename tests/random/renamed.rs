//! Random trees in which files and directories were renamed: with `--detect-renamed`, a run ends as without it.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::tree::{Dice, Entry, Kind, consistent, random, relative, smaller_trees};
use super::{add, caught, masked};
use crate::kit::{Route, Who, World, oracle};

const BASES: &str = "-a -a -a -a -aH -aHAX -rlt -rt -aAX -rlptgoD";
const DELETIONS: &str =
    "--delete --delete --delete --delete-before --delete-delay --delete-after --delete-excluded";
const OPTIONS: &str = "-b --suffix=.o --backup-dir=../bak --force --max-delete=1 --max-delete=3 --max-delete=0 \
    --ignore-errors --inplace --append --partial --partial-dir=.p --delay-updates --no-whole-file -W \
    --sparse --preallocate --fuzzy --existing --ignore-existing -u --size-only --max-size=10 --min-size=5 -m -x -O -J \
    --exclude=*.o --exclude=/d/ --exclude=/a --filter=P_x --filter=P_/d/*** --filter=H_a --filter=R_e --no-perms --no-times \
    --no-owner --no-group --chmod=g+w,Dg+s --chmod=F600 --fake-super --numeric-ids --remove-source-files \
    --no-inc-recursive --copy-dest=../alt --clone-dest=../alt --link-dest=../alt --compare-dest=../alt --fsync -n -z -k -L";

/// Equal contents are found whatever the times are.
const SAME: &str = "--detect-renamed";

/// Trees and options.
#[derive(Clone)]
pub struct RandomRenames {
    trees: [Vec<Entry>; 3],
    options: Vec<String>,
    own: &'static str,
    who: Who,
}

impl RandomRenames {
    /// Returns the case of a seed.
    pub fn nth(seed: u64) -> RandomRenames {
        let mut dice = Dice(seed.wrapping_mul(0x1000_0000_01b3) ^ 3);
        let count = 4 + dice.below(24);
        let source = random(&mut dice, count);
        let mut dest = relative(&mut dice, &source);
        for _ in 0..1 + dice.below(6) {
            rename_one(&mut dice, &mut dest);
        }
        if dice.one_in(2) {
            rotate_some(&mut dice, &mut dest);
        }
        let mut alternate = relative(&mut dice, &source);
        for _ in 0..dice.below(4) {
            rename_one(&mut dice, &mut alternate);
        }

        let mut options = vec![dice.word(BASES).to_owned()];
        if !dice.one_in(5) {
            options.push(dice.word(DELETIONS).to_owned());
        }
        for _ in 0..dice.below(4) {
            let option = dice.word(OPTIONS).replace('_', " ");
            // There is one kind of alternate tree in a run.
            let is_alternate = |option: &String| option.ends_with("=../alt");
            if !(is_alternate(&option) && options.iter().any(is_alternate)) {
                options.push(option);
            }
        }
        let own = match dice.below(4) {
            0 => "--detect-renamed=moved",
            1 => "--detect-renamed=quick",
            _ => SAME,
        };
        let who = if dice.one_in(4) {
            Who::User
        } else {
            Who::Current
        };
        let trees = [source, dest, alternate];
        RandomRenames {
            trees: trees.map(|tree| consistent(if own == SAME { tree } else { alike(tree) })),
            options,
            own,
            who,
        }
    }

    /// Returns what differs from a run without the option. Counts the files that have taken the content of others.
    pub fn difference(&self, route: Route, name: &str, reused: &AtomicU64) -> Option<String> {
        caught(route, || {
            // An rsync that sends its whole list at once stops all deletions if it cannot read a directory.
            let who = if route.is_stock() {
                Who::Current
            } else {
                self.who
            };
            let w = World::new(name, route, who);
            w.needs_acls().needs_xattrs().mask_with(masked);
            // A file of an alternate tree can get another name.
            w.compare_links_within();
            w.stderr_unordered().tree(".", "tmp/%777");
            for (name, entries) in ["src", "dst", "alt"].iter().zip(&self.trees) {
                w.build(name, |tree| {
                    for entry in entries {
                        add(tree, entry);
                    }
                });
            }
            w.keep_dest();
            let differs = w
                .try_agree_beside(reference(), &[self.own], &self.options)
                .err();
            if differs.is_none() {
                w.restore_dest();
                let all: Vec<_> = self.options.iter().map(String::as_str).collect();
                let count =
                    w.count_lines(&[&all[..], &[self.own, "--info=rename"]].concat(), " => ");
                reused.fetch_add(count, Ordering::Relaxed);
            }
            differs
        })
    }

    /// Returns the cases that lack one part of this one.
    pub fn smaller(&self) -> Vec<RandomRenames> {
        let mut smaller = Vec::new();
        for at in 1..self.options.len() {
            let mut one = self.clone();
            one.options.remove(at);
            smaller.push(one);
        }
        for trees in smaller_trees(&self.trees) {
            smaller.push(RandomRenames {
                trees,
                ..self.clone()
            });
        }
        smaller
    }
}

/// Returns the program under test under another name, by which the kit knows that it uses no server.
fn reference() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = oracle::under_test();
        let dir = program.parent().expect("a program is in a directory");
        let name = dir.file_name().expect("that is not the root");
        let file = program.file_name().expect("a program has a name");
        dir.join("..").join(name).join(file)
    })
}

/// Gives an entry another path, and what is in it with it, or copies it there.
pub fn rename_one(dice: &mut Dice, tree: &mut Vec<Entry>) {
    if tree.is_empty() {
        return;
    }
    let old = dice.pick(tree).path.clone();
    let dirs: Vec<Vec<u8>> = tree
        .iter()
        .filter(|entry| entry.kind == Kind::Dir)
        .map(|entry| [&entry.path[..], b"/"].concat())
        .chain([Vec::new()])
        .collect();
    let own_name = old
        .rsplit(|&b| b == b'/')
        .next()
        .unwrap_or_default()
        .to_vec();
    let name = if dice.one_in(2) {
        own_name
    } else {
        format!("r{}", dice.below(9)).into_bytes()
    };
    let new = [&dice.pick(&dirs)[..], &name].concat();
    let below = [&old[..], b"/"].concat();
    if new == old || new.starts_with(&below) || tree.iter().any(|entry| entry.path == new) {
        return;
    }
    let is_in = |path: &[u8]| path == old || path.starts_with(&below);
    let moved = |path: &[u8]| [&new[..], &path[old.len()..]].concat();
    let mut renamed = Vec::new();
    for entry in tree.iter().filter(|entry| is_in(&entry.path)) {
        let mut entry = entry.clone();
        entry.path = moved(&entry.path);
        if let Kind::HardLink(leader) = &mut entry.kind
            && is_in(leader)
        {
            *leader = moved(leader);
        }
        renamed.push(entry);
    }
    if !dice.one_in(3) {
        tree.retain(|entry| !is_in(&entry.path));
    }
    tree.extend(renamed);
    // Other names of a file must come after it.
    tree.sort_by_key(|entry| matches!(entry.kind, Kind::HardLink(_)));
    let paths: Vec<_> = tree.iter().map(|entry| entry.path.clone()).collect();
    tree.retain(|entry| match &entry.kind {
        Kind::HardLink(leader) => paths.contains(leader),
        _ => true,
    });
}

/// Gives the contents and times of two or more files to each other: a swap, or a longer cycle. As the tree of a destination,
/// it is one in which each of these files has the content that another one is to get.
fn rotate_some(dice: &mut Dice, tree: &mut [Entry]) {
    let mut files = Vec::new();
    for (at, entry) in tree.iter().enumerate() {
        if matches!(entry.kind, Kind::File(_)) {
            files.push(at);
        }
    }
    let mut count = 2 + dice.below(3);
    while files.len() > count {
        files.swap_remove(dice.below(files.len()));
    }
    count = files.len();
    for at in 1..count {
        let (one, other) = (files[at - 1], files[at]);
        let (kind, mtime) = (tree[one].kind.clone(), tree[one].mtime);
        tree[one].kind = std::mem::replace(&mut tree[other].kind, kind);
        tree[one].mtime = std::mem::replace(&mut tree[other].mtime, mtime);
    }
}

/// Makes files of equal length and time equal: the option relies on that.
pub fn alike(mut tree: Vec<Entry>) -> Vec<Entry> {
    for entry in &mut tree {
        if let Kind::File(content) = &mut entry.kind {
            let text = format!("{}.", entry.mtime);
            *content = text.bytes().cycle().take(content.len()).collect();
        }
    }
    tree
}

impl Display for RandomRenames {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let RandomRenames {
            trees,
            options,
            own,
            who,
        } = self;
        writeln!(f, "{options:?} {own} as {who:?}")?;
        for tree in trees {
            for entry in tree {
                let kind = match &entry.kind {
                    Kind::File(content) => format!("file of {}", content.len()),
                    Kind::Dir => "directory".to_owned(),
                    Kind::Symlink(target) => format!("-> {}", target.escape_ascii()),
                    Kind::HardLink(leader) => format!("== {}", leader.escape_ascii()),
                    Kind::Fifo => "fifo".to_owned(),
                };
                let path = entry.path.escape_ascii();
                writeln!(f, "  {path}: {kind} @{} {:?}", entry.mtime, entry.mode)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

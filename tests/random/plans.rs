//! Random plans: what is applied ends as the run, and nothing that has changed in between is touched.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::path::Path;

use super::renamed::{alike, rename_one};
use super::tree::{Dice, Entry, Kind, consistent, random, relative, smaller_trees};
use super::{add, caught, masked};
use crate::kit::{Recorded, Route, Snapshot, Who, World, diff};

const BASES: &str = "-a -a -a -rlt -rt -rlptgoD -rltE -dt -at";
const DELETIONS: &str = "--delete --delete --delete-before --delete-during --delete-delay --delete-after --delete-excluded --force";
const OPTIONS: &str = "--max-delete=1 --max-delete=3 --no-whole-file -W --sparse --existing -u -c -I --size-only \
    --max-size=10 --min-size=5 -m -x -O -J --exclude=*.o --exclude=/d/ --exclude=/a --filter=P_x --filter=P_/d/*** --filter=H_a \
    --filter=R_e -F -C --no-perms --no-owner --no-group --chmod=g+w,Dg+s --chmod=F600 --numeric-ids --no-inc-recursive -L -k \
    --safe-links --modify-window=1 -R --no-o --checksum --ignore-times --delay-updates --partial-dir=.part -U -X -A";

/// Trees and options, and what is changed between the plan and its use.
#[derive(Clone)]
pub struct RandomPlan {
    trees: [Vec<Entry>; 2],
    options: Vec<String>,
    changes: Vec<Change>,
}

/// A change of the trees after the plan was made.
#[derive(Clone, Debug)]
enum Change {
    /// The file of this path gets other content; one that is missing is created.
    Write(&'static str, Vec<u8>),
    /// The entry gets other permission bits.
    Mode(&'static str, Vec<u8>),
    /// A new file in this directory, or in the root.
    Add(&'static str, Vec<u8>),
    /// A file where the backup of this entry of the destination belongs.
    Taken(Vec<u8>),
}

/// Returns the option of backups of a seed. Drawn apart, too.
fn backup_of(seed: u64) -> Option<&'static str> {
    let mut dice = Dice(seed ^ 0xbac0_0000);
    if dice.one_in(3) {
        Some(dice.word("-b -b -b --backup-dir=../bak --backup-dir=../bak"))
    } else {
        None
    }
}

/// Returns the option of twins of a seed. Drawn apart, too.
fn renames_of(seed: u64) -> Option<&'static str> {
    let mut dice = Dice(seed ^ 0x4e1a_0000);
    if dice.one_in(3) {
        Some(dice.word(
            "--detect-renamed --detect-renamed --detect-renamed=quick --detect-renamed=moved",
        ))
    } else {
        None
    }
}

impl RandomPlan {
    /// Returns the case of a seed.
    pub fn nth(seed: u64) -> RandomPlan {
        let mut dice = Dice(seed.wrapping_mul(0x1000_0000_01b3) ^ 5);
        let count = 2 + dice.below(20);
        let source = random(&mut dice, count);
        let mut dest = relative(&mut dice, &source);
        let mut options = vec![dice.word(BASES).to_owned()];
        if !dice.one_in(4) {
            options.push(dice.word(DELETIONS).to_owned());
        }
        for _ in 0..dice.below(3) {
            options.push(dice.word(OPTIONS).replace('_', " "));
        }
        // Drawn apart, so that the other draws do not depend on it.
        let has_links = Dice(seed ^ 0x4c1e_3000).one_in(3);
        if has_links {
            // An rsync hangs if a directory in the way of such a name stays, and under --existing.
            let keeps = [
                "--existing",
                "--max-delete",
                "--filter=P",
                "--exclude",
                "-C",
                "-F",
            ];
            options.retain(|option| !keeps.iter().any(|start| option.starts_with(start)));
            options.extend(["-H", "--force"].map(str::to_owned));
        }
        // Rules that the run itself transfers take part in its deletions, which no plan can know.
        if options.contains(&"--delete-after".to_owned()) {
            options.retain(|option| !["-C", "-F"].contains(&option.as_str()));
        }
        // A directory that a backup beside its original keeps is in the way of a file: rsync hangs then.
        let is_possible = |backup: &&str| !has_links || backup.contains("dir");
        if let Some(backup) = backup_of(seed).filter(is_possible) {
            // The run would delete the backups.
            options.retain(|option| option != "--delete-excluded" || backup.contains("dir"));
            // A plan cannot record what these do together.
            options.retain(|option| {
                !has_links || !["-I", "--ignore-times"].contains(&option.as_str())
            });
            options.push(backup.to_owned());
        }
        let renames = renames_of(seed);
        if let Some(renames) = renames {
            let mut apart = Dice(seed ^ 0x4e1b_0000);
            for _ in 0..1 + apart.below(6) {
                rename_one(&mut apart, &mut dest);
            }
            // Under these, equal times do not stand for equal content.
            if renames.contains('=') {
                options.retain(|option| {
                    !["-c", "--checksum", "-I", "--ignore-times"].contains(&option.as_str())
                });
            }
            options.push(renames.to_owned());
        }
        let trees = [source, dest].map(|tree| {
            let plain = plain(tree, has_links);
            let tree = match renames {
                Some(renames) if renames.contains('=') => alike(plain),
                Some(_) | None => plain,
            };
            consistent(tree)
        });
        let mut changes = Vec::new();
        if dice.one_in(2) {
            for _ in 0..1 + dice.below(3) {
                let (name, tree) = if dice.one_in(3) {
                    ("src", &trees[0])
                } else {
                    ("dst", &trees[1])
                };
                if tree.is_empty() {
                    continue;
                }
                let entry = dice.pick(tree);
                let path = entry.path.clone();
                // Other rules are another run.
                let is_rules = path
                    .split(|byte| *byte == b'/')
                    .any(|name| name.starts_with(b"."));
                changes.push(match (&entry.kind, dice.below(3)) {
                    (Kind::Dir, 0 | 1) => Change::Add(name, path),
                    (Kind::File(_), 0 | 1) if !is_rules => Change::Write(name, path),
                    // Those of the source may not count.
                    (Kind::File(_) | Kind::Dir, _) if name == "dst" => Change::Mode(name, path),
                    _ => Change::Add(name, Vec::new()),
                });
            }
        }
        let replaced: Vec<_> = trees[1]
            .iter()
            .filter(|entry| entry.kind != Kind::Dir)
            .collect();
        let mut apart = Dice(seed ^ 0x7a4e_0000);
        let is_beside = options.iter().any(|option| option == "-b");
        if is_beside && !replaced.is_empty() && apart.one_in(2) {
            changes.push(Change::Taken(apart.pick(&replaced).path.clone()));
        }
        if options.iter().any(|option| option == "--delete-excluded") {
            // An excluded entry of the source takes no part.
            changes.retain(|change| !matches!(change, Change::Write("src", _)));
        }
        if !changes.is_empty() {
            // Paths at both ends are the same.
            options.retain(|option| !["-R", "-L", "-k"].contains(&option.as_str()));
        }
        RandomPlan {
            trees,
            options,
            changes,
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
            if self.changes.is_empty() {
                return w
                    .try_agree_by_plan(&self.options, &["src/", "dst/"], Recorded::Partly)
                    .err();
            }
            self.broken_law(&w)
        })
    }

    /// Returns what breaks the law about changes after the plan: each entry is as it was right before `apply`, or as the
    /// planned run leaves it; what has changed is as it was.
    fn broken_law(&self, w: &World) -> Option<String> {
        let (exit, planned_end) = w.rsync_leaves(&self.options);
        if exit != 0 {
            return None;
        }
        let tree = || linkless(timeless_dirs(w.left_by_us()));
        let planned_end = linkless(timeless_dirs(planned_end));
        let planned = w.plan(&self.options);
        // An rsync does not learn it from a daemon.
        let is_stopped = planned.exit == 25 && w.route().is_daemon();
        if is_stopped {
            return None;
        }
        // No state tells what is still to be done about such an entry.
        if planned
            .stderr
            .contains("is an entry of the source and the name of a backup")
        {
            return None;
        }
        if planned.exit != 0 {
            return Some(format!("plan: exit {}, {}\n", planned.exit, planned.stderr));
        }
        let mut touched = BTreeSet::new();
        for change in &self.changes {
            change.make(w.tested(), &mut touched);
        }
        let before = tree();
        let applied = w.apply(&[]);
        let after = tree();
        // A group of which one name has changed is left alone.
        let linked = |tree: &Vec<Entry>| {
            let mut paths = BTreeSet::new();
            for entry in tree {
                if let Kind::HardLink(leader) = &entry.kind {
                    paths.extend([leader.clone(), entry.path.clone()]);
                }
            }
            paths
        };
        let mut near = touched.clone();
        near.extend(touched.iter().map(|path| [path, &b"~"[..]].concat()));
        for change in &self.changes {
            if let Change::Taken(path) = change {
                near.insert(path.clone());
            }
        }
        for tree in &self.trees {
            near.extend(linked(tree));
        }
        // A new file is left alone if the one whose content it takes has changed.
        for (path, twin) in w.planned_twins() {
            if touched.contains(&twin) {
                near.insert(path);
            }
        }
        let wrong = self.law(&before, &planned_end, &after, [&touched, &near]);
        let told = format!(
            "touched {touched:?}\nplanned\n{}\napplied: exit {}\n{}\n{}\n",
            planned.stdout, applied.exit, applied.stdout, applied.stderr
        );
        if let Some(wrong) = wrong {
            return Some(format!("{wrong}\n{told}"));
        }
        let again = w.apply(&[]);
        if let Some(changed) = diff::trees(&after, &tree()) {
            return Some(format!("applied again: {}\n{changed}\n{told}", again.exit));
        }
        None
    }

    fn law(
        &self,
        before: &Snapshot,
        end: &Snapshot,
        after: &Snapshot,
        [touched, near]: [&BTreeSet<Vec<u8>>; 2],
    ) -> Option<String> {
        let all: BTreeSet<_> = before
            .keys()
            .chain(end.keys())
            .chain(after.keys())
            .collect();
        for path in all {
            let [was, planned, is] = [before, end, after].map(|tree| tree.get(path));
            let shown = || {
                format!(
                    "{}\n  before  {was:?}\n  planned {planned:?}\n  now     {is:?}",
                    path.escape_ascii()
                )
            };
            if touched.contains(path) && is != was {
                return Some(format!(
                    "changed after the plan, but not spared: {}",
                    shown()
                ));
            }
            if is != was && is != planned {
                return Some(format!("neither as before nor as planned: {}", shown()));
            }
            // Without a change at or below it, it is as planned.
            let below = [&path[..], b"/"].concat();
            let is_near = |other: &Vec<u8>| {
                other == path
                    || other.starts_with(&below)
                    || path.starts_with(&[&other[..], b"/"].concat())
            };
            if is != planned && !near.iter().any(is_near) {
                return Some(format!("not as planned: {}", shown()));
            }
        }
        None
    }

    /// Returns the cases that lack one part of this one.
    pub fn smaller(&self) -> Vec<RandomPlan> {
        let mut smaller = Vec::new();
        for at in 1..self.options.len() {
            let mut one = self.clone();
            one.options.remove(at);
            smaller.push(one);
        }
        for at in 0..self.changes.len() {
            if self.changes.len() > 1 {
                let mut one = self.clone();
                one.changes.remove(at);
                smaller.push(one);
            }
        }
        for trees in smaller_trees(&self.trees) {
            smaller.push(RandomPlan {
                trees,
                ..self.clone()
            });
        }
        smaller
    }
}

impl Change {
    /// Changes the trees of a world. Adds the paths at the destination that it concerns.
    fn make(&self, world: &Path, touched: &mut BTreeSet<Vec<u8>>) {
        use std::os::unix::ffi::OsStrExt as _;
        use std::os::unix::fs::PermissionsExt as _;
        if let Change::Taken(path) = self {
            let path = [path, &b"~"[..]].concat();
            let full = world.join("dst").join(std::ffi::OsStr::from_bytes(&path));
            if full.symlink_metadata().is_err() && std::fs::write(&full, "taken").is_ok() {
                touched.insert(path);
            }
            return;
        }
        let (Change::Write(tree, path) | Change::Mode(tree, path) | Change::Add(tree, path)) = self
        else {
            return;
        };
        let full = world.join(tree).join(std::ffi::OsStr::from_bytes(path));
        let is_there = full.symlink_metadata().is_ok();
        if !matches!(self, Change::Add(..)) && is_there {
            // The other names of the file.
            let top = world.join(tree);
            let found = std::process::Command::new("find")
                .arg(&top)
                .arg("-samefile")
                .arg(&full)
                .args(["-printf", "%P\\0"])
                .output()
                .expect("find can be started");
            for name in found.stdout.split(|byte| *byte == 0) {
                if !name.is_empty() {
                    touched.insert(name.to_vec());
                }
            }
        }
        match self {
            Change::Write(..) if is_there => {
                std::fs::write(&full, "changed after the plan").expect("it is ours");
                touched.insert(path.clone());
            }
            Change::Mode(..) if is_there => {
                let mode = std::fs::metadata(&full)
                    .expect("it is there")
                    .permissions()
                    .mode();
                let changed = std::fs::Permissions::from_mode(mode & 0o7777 | 0o002);
                std::fs::set_permissions(&full, changed).expect("it is ours");
                touched.insert(path.clone());
            }
            Change::Add(..) => {
                let file = full.join("added after the plan");
                if full.is_dir() && std::fs::write(&file, "new").is_ok() {
                    let mut path = path.clone();
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path.extend_from_slice(b"added after the plan");
                    touched.insert(path);
                }
            }
            Change::Write(..) | Change::Mode(..) | Change::Taken(_) => {}
        }
    }
}

/// Returns a tree without what plans do not record. `has_links`: files keep their other names.
pub fn plain(tree: Vec<Entry>, has_links: bool) -> Vec<Entry> {
    let plain = tree.into_iter().map(|entry| Entry {
        extra: super::tree::Extra::None,
        kind: match entry.kind {
            Kind::HardLink(_) if !has_links => Kind::File(b"no link".to_vec()),
            kind => kind,
        },
        ..entry
    });
    plain.collect()
}

/// Returns a tree without the numbers and names of other links, which each of them changes.
fn linkless(mut tree: Snapshot) -> Snapshot {
    for line in tree.values_mut() {
        if let Some(at) = line.find(" nlink=") {
            line.truncate(at);
        }
    }
    tree
}

/// Returns a tree without the times of directories, which their entries change.
pub fn timeless_dirs(mut tree: Snapshot) -> Snapshot {
    for line in tree.values_mut() {
        if line.starts_with('d') {
            let words = line.split(' ').enumerate();
            let rest: Vec<_> = words
                .filter(|(at, _)| *at != 3)
                .map(|(_, word)| word)
                .collect();
            *line = rest.join(" ");
        }
    }
    tree
}

impl Display for RandomPlan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let names = self.trees.each_ref().map(|tree| {
            tree.iter()
                .map(|entry| entry.path.escape_ascii().to_string())
                .collect::<Vec<_>>()
        });
        writeln!(
            f,
            "{:?}, {:?}\nsrc {:?}\ndst {:?}",
            self.options, self.changes, names[0], names[1]
        )
    }
}

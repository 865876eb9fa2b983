//! Trees that live for weeks: people change them at both ends, and a job copies them every night.
//!
//! A [`Life`] is a job and the changes before each of its nights. Changes name entries by number, so that they mean the
//! same in both twins, and still mean something when other changes are left out.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags, setxattr, utimensat};

use super::tree::Dice;
use crate::kit::{NANOS, Route, T0, Who, World};

/// A job that people run, as command lines. In words, `{N}` is the number of the night and `{P}` that of the night before.
pub struct Job {
    name: &'static str,
    who: Who,
    base: &'static str,
    /// Options that a life may add.
    further: &'static str,
    /// The runs of a night: options, source and destination.
    runs: &'static [(&'static str, &'static str, &'static str)],
    /// The trees that people change, besides the source.
    changed: &'static [&'static str],
    /// Whether files are large.
    large: bool,
}

const JOBS: [Job; 10] = [
    Job {
        name: "mirror",
        who: Who::Current,
        base: "-a --delete",
        further: "-H -X -A --delete-after --delete-delay --delete-before --exclude=*.o -c --inplace --delay-updates \
            --partial-dir=.p -S --fuzzy --delete-excluded --no-whole-file --force --numeric-ids -m",
        runs: &[("", "src/", "dst/")],
        changed: &["dst"],
        large: false,
    },
    Job {
        name: "snapshots",
        who: Who::Current,
        base: "-a --delete",
        further: "-H -X --numeric-ids -c --exclude=*.o --delete-excluded --inplace --no-whole-file --link-dest=../snap.0",
        runs: &[("--link-dest=../snap.{P}", "src/", "snap.{N}/")],
        changed: &["snap.{P}"],
        large: false,
    },
    Job {
        name: "rotation",
        who: Who::Current,
        base: "-ab --delete",
        further: "-H -X --suffix=.o --inplace --delay-updates --exclude=*.o --delete-after --fuzzy -K",
        runs: &[("--backup-dir={W}/old/{N}", "src/", "dst/")],
        changed: &["dst"],
        large: false,
    },
    Job {
        name: "rotation inside",
        who: Who::Current,
        base: "-ab --delete --exclude=/.old",
        further: "-H --suffix=.o --inplace --exclude=*.o --delete-after",
        runs: &[("--backup-dir=.old/{N}", "src/", "dst/")],
        changed: &["dst"],
        large: false,
    },
    Job {
        name: "disk images",
        who: Who::Current,
        base: "-a --inplace",
        further: "--no-whole-file -S --delete --backup-dir={W}/old/{N} -H -X -c --preallocate -B700",
        runs: &[("", "src/", "dst/")],
        changed: &["dst"],
        large: true,
    },
    Job {
        name: "two stages",
        who: Who::Current,
        base: "-au",
        further: "-H --backup-dir={W}/old/{N} -X --existing --delay-updates -O -J --modify-window=1",
        runs: &[("", "src/", "mid/"), ("--delete", "mid/", "dst/")],
        changed: &["mid", "dst"],
        large: false,
    },
    Job {
        name: "fake super-user",
        who: Who::User,
        base: "-aX --fake-super",
        further: "--delete -H --inplace --backup-dir={W}/old/{N} --numeric-ids",
        runs: &[("", "src/", "dst/")],
        changed: &["dst"],
        large: false,
    },
    Job {
        name: "links to directories",
        who: Who::Current,
        base: "-aK",
        further: "--exclude=*.o --backup-dir={W}/old/{N} -X --inplace --existing -J -O",
        runs: &[("", "src/", "dst/")],
        changed: &["dst"],
        large: false,
    },
    Job {
        name: "manifests",
        who: Who::Current,
        base: "-a --files-from=list",
        further: "-r --delete-missing-args --ignore-missing-args -H -X --backup-dir={W}/old/{N}",
        runs: &[("", "src/", "dst/")],
        changed: &["dst"],
        large: false,
    },
    Job {
        name: "moves",
        who: Who::Current,
        base: "-a --remove-source-files",
        further: "--backup-dir={W}/old/{N} -u --delay-updates -X --exclude=*.o --existing -m",
        runs: &[("", "src/", "dst/")],
        changed: &["dst"],
        large: false,
    },
];

const NAMES: &str = "a b c.c c.o d e f g.o lib sub x y core img x~ long-name";
const TARGETS: &str = "a b d sub nowhere ./e ../out";
const MODES: [u32; 11] = [
    0o600, 0o444, 0o755, 0o700, 0o664, 0o2775, 0o555, 0o1777, 0o4755, 0o6711, 0o500,
];
const CHANGES_MAX: usize = 9;

/// What somebody does to a tree. The numbers choose among the entries that it has, in order of their paths.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    /// Writes a file in a directory: directory, name, length, and a number that the content depends on.
    Write(usize, String, usize, u8),
    /// Changes some bytes in a file, appends to it or cuts it, and leaves its time if `quiet`.
    Edit {
        file: usize,
        at: usize,
        cut: bool,
        quiet: bool,
    },
    /// Makes a directory.
    Make(usize, String),
    /// Makes a symlink.
    Link(usize, String, String),
    /// Gives a file another name.
    HardLink(usize, usize, String),
    /// Moves an entry into a directory.
    Move(usize, usize, String),
    Remove(usize),
    /// Replaces an entry by a file, a directory or a symlink.
    Replace(usize, u8),
    Mode(usize, u32),
    /// Sets an extended attribute.
    Xattr(usize, u8),
    /// Gives an entry to somebody else.
    Own(usize, u32),
    /// Sets a time, in nights from the present one.
    Time(usize, i64),
    /// Moves a directory elsewhere and puts a symlink to it in its place.
    LinkDir(usize, usize, String),
}

/// The changes before a night: those of the source, then those of each other tree that people change.
#[derive(Clone, Debug, PartialEq)]
struct Night {
    changes: Vec<Vec<Change>>,
    /// The names of the manifest, by number.
    listed: Vec<usize>,
}

/// A job with its options, and its nights.
#[derive(Clone, PartialEq)]
pub struct Life {
    job: usize,
    who: Who,
    options: Vec<String>,
    nights: Vec<Night>,
}

/// A reason not to compare lives, and which lives.
type Known = (&'static str, fn(&Life, Route) -> bool);

/// Differences that docs/DIFFERENCES.md lists, and lives whose result is a matter of time.
const KNOWN: [Known; 3] = [
    (
        "a daemon without chroot does not find listed names",
        |life, on| on.is_daemon() && life.has("--files-from"),
    ),
    (
        "the backups that an ordinary user's rsync makes of read-only files are writable",
        |life, _| life.who == Who::User && (life.has("-ab") || life.has("--backup-dir")),
    ),
    (
        "different files are written to several names of one file in place",
        |life, _| life.has("--inplace") && life.links_copies(),
    ),
];

impl Life {
    /// Returns the life of a seed on a route.
    pub fn nth(seed: u64, route: Route) -> Life {
        let mut dice = Dice(seed.wrapping_mul(0x1000_0000_01b3) ^ 2);
        loop {
            let life = Life::drawn(&mut dice, seed as usize % JOBS.len());
            if life.known(route).is_none() {
                return life;
            }
        }
    }

    fn drawn(dice: &mut Dice, at: usize) -> Life {
        let job = &JOBS[at];
        let mut options: Vec<String> = job.base.split_whitespace().map(str::to_owned).collect();
        for _ in 0..dice.below(4) {
            let option = dice.word(job.further).to_owned();
            if !options.contains(&option) {
                options.push(option);
            }
        }
        let who = if dice.one_in(4) { Who::User } else { job.who };
        let count = 3 + dice.below(8);
        let nights = (0..count).map(|night| {
            let trees = 1 + job.changed.len();
            let mut changes = |tree: usize| {
                // In the first night, the source is filled, and nobody has touched the copies.
                let count = match (night, tree) {
                    (0, 0) => 12 + dice.below(15),
                    (0, _) => 0,
                    _ => dice.below(CHANGES_MAX),
                };
                (0..count)
                    .map(|_| Change::drawn(dice, job, who, night == 0, tree > 0))
                    .collect()
            };
            let changes = (0..trees).map(&mut changes).collect();
            let listed = (0..1 + dice.below(6)).map(|_| dice.below(1000)).collect();
            Night { changes, listed }
        });
        let nights = nights.collect();
        Life {
            job: at,
            who,
            options,
            nights,
        }
    }

    fn job(&self) -> &'static Job {
        &JOBS[self.job]
    }

    pub fn who(&self) -> Who {
        self.who
    }

    /// Returns whether a word begins so.
    fn has(&self, begin: &str) -> bool {
        self.options.iter().any(|word| word.starts_with(begin))
    }

    /// Returns whether the drawn changes include hard links in the copies.
    fn links_copies(&self) -> bool {
        let copies = self.nights.iter().flat_map(|night| &night.changes[1..]);
        copies
            .flatten()
            .any(|change| matches!(change, Change::HardLink(..)))
    }

    /// Returns why lives of this kind are not compared.
    pub fn known(&self, route: Route) -> Option<&'static str> {
        KNOWN
            .iter()
            .find(|(_, is_met)| is_met(self, route))
            .map(|(why, _)| *why)
    }

    /// Lives it in an empty world. Returns the first difference.
    pub fn difference(&self, w: &World) -> Option<String> {
        let job = self.job();
        w.needs_xattrs().needs_acls();
        w.no_dry_run().once().stderr_unordered();
        // rsync leaves the time of the creation to the directory in which it creates that of the backups.
        w.tree(".", "src/ out/kept old/ dst/.old/");
        for (number, night) in self.nights.iter().enumerate() {
            let named = |text: &str| {
                text.replace("{N}", &number.to_string())
                    .replace("{P}", &number.saturating_sub(1).to_string())
            };
            let trees = ["src"].iter().chain(job.changed);
            for (tree, changes) in trees.zip(&night.changes) {
                let tree = named(tree);
                w.change(|twin| change_all(&twin.join(&tree), changes, number));
            }
            if self.has("--files-from") {
                w.file("list", listed(&w.tested().join("src"), &night.listed));
            }
            for (options, source, dest) in job.runs {
                let words = self.options.iter().map(String::as_str);
                let words: Vec<_> = words.chain(options.split_whitespace()).map(named).collect();
                let operands = [source, dest].map(|operand| named(operand));
                if let Err(why) = w.try_agree(&words, &operands) {
                    return Some(format!("night {number}: {why}"));
                }
            }
        }
        None
    }

    /// Returns all lives that lack one part of this one, large parts first.
    pub fn smaller(&self) -> Vec<Life> {
        let mut lives = Vec::new();
        let mut less = |change: &dyn Fn(&mut Life)| {
            let mut life = self.clone();
            change(&mut life);
            if life != *self {
                lives.push(life);
            }
        };
        less(&|life| life.who = life.job().who);
        less(&|life| drop(life.nights.pop()));
        let fixed = self.job().base.split_whitespace().count();
        for at in fixed..self.options.len() {
            less(&|life| drop(life.options.remove(at)));
        }
        for night in 0..self.nights.len() {
            if self.nights.len() > 1 {
                less(&|life| drop(life.nights.remove(night)));
            }
            for (tree, changes) in self.nights[night].changes.iter().enumerate() {
                let len = changes.len();
                for size in [len, len.div_ceil(3), 1].map(|size| size.max(1)) {
                    for at in (0..len).step_by(size) {
                        less(&|life| {
                            drop(life.nights[night].changes[tree].drain(at..len.min(at + size)))
                        });
                    }
                }
            }
            for at in 1..self.nights[night].listed.len() {
                less(&|life| {
                    life.nights[night].listed.remove(at);
                });
            }
        }
        lives
    }
}

impl Change {
    fn drawn(dice: &mut Dice, job: &Job, who: Who, is_new: bool, is_copy: bool) -> Change {
        let pick = |dice: &mut Dice| dice.below(1000);
        let name = |dice: &mut Dice| dice.word(NAMES).to_owned();
        let kinds = if is_new { 8 } else { 22 };
        match dice.below(kinds) {
            0..4 => {
                let len = match dice.below(6) {
                    0 => 0,
                    1 if job.large => 200_000 + dice.below(400_000),
                    1 | 2 => 600 + dice.below(3_000),
                    _ => 1 + dice.below(20),
                };
                Change::Write(pick(dice), name(dice), len, dice.below(250) as u8)
            }
            4 | 5 => Change::Make(pick(dice), name(dice)),
            6 => Change::Link(pick(dice), name(dice), dice.word(TARGETS).to_owned()),
            7 => Change::HardLink(pick(dice), pick(dice), name(dice)),
            8..11 => Change::Edit {
                file: pick(dice),
                at: dice.below(300_000),
                cut: dice.one_in(4),
                quiet: dice.one_in(8),
            },
            11 => Change::Move(pick(dice), pick(dice), name(dice)),
            12 | 13 => Change::Remove(pick(dice)),
            14 => Change::Replace(pick(dice), dice.below(3) as u8),
            15 | 18 => Change::Mode(pick(dice), *dice.pick(&MODES)),
            19 => Change::Xattr(pick(dice), dice.below(4) as u8),
            16 if who != Who::User => Change::Own(pick(dice), dice.below(3) as u32 * 7),
            17 if is_copy && job.base.contains('K') => {
                Change::LinkDir(pick(dice), pick(dice), name(dice))
            }
            _ => Change::Time(pick(dice), dice.below(9) as i64 - 6),
        }
    }

    /// Does it. What the tree has no place for is left.
    fn apply(&self, root: &Path, now_secs: i64) -> std::io::Result<()> {
        let any = |_: &Metadata| true;
        let is_dir = |found: &Metadata| found.is_dir();
        let is_file = |found: &Metadata| found.is_file();
        let place = |dir: &usize, name: &str| chosen(root, *dir, is_dir).map(|dir| dir.join(name));
        let changed = match self {
            Change::Write(dir, name, len, fill) => {
                let Some(path) = place(dir, name) else {
                    return Ok(());
                };
                if path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
                    return Ok(());
                }
                std::fs::write(&path, content(*len, *fill))?;
                path
            }
            Change::Edit {
                file,
                at,
                cut,
                quiet,
            } => {
                let Some(path) = chosen(root, *file, is_file) else {
                    return Ok(());
                };
                let mut bytes = std::fs::read(&path)?;
                let before = path.metadata()?;
                let at = at % (bytes.len() + 1);
                match bytes.get_mut(at) {
                    _ if *cut => bytes.truncate(at),
                    Some(byte) => *byte ^= 1,
                    None => bytes.extend_from_slice(b"more"),
                }
                std::fs::write(&path, bytes)?;
                if *quiet {
                    return set_time(&path, before.mtime());
                }
                path
            }
            Change::Make(dir, name) => {
                let Some(path) = place(dir, name) else {
                    return Ok(());
                };
                std::fs::create_dir(&path)?;
                path
            }
            Change::Link(dir, name, target) => {
                let Some(path) = place(dir, name) else {
                    return Ok(());
                };
                symlink(target, &path)?;
                path
            }
            Change::HardLink(file, dir, name) => {
                let (Some(file), Some(path)) = (chosen(root, *file, is_file), place(dir, name))
                else {
                    return Ok(());
                };
                std::fs::hard_link(file, &path)?;
                path
            }
            Change::Move(from, dir, name) => {
                let (Some(from), Some(path)) = (chosen(root, *from, any), place(dir, name)) else {
                    return Ok(());
                };
                if from == root || path.symlink_metadata().is_ok() {
                    return Ok(());
                }
                std::fs::rename(&from, &path)?;
                set_time(from.parent().unwrap_or(root), now_secs)?;
                return set_time(path.parent().unwrap_or(root), now_secs);
            }
            Change::Remove(entry) => {
                let Some(path) = chosen(root, *entry, any).filter(|path| path != root) else {
                    return Ok(());
                };
                remove(&path)?;
                return set_time(path.parent().unwrap_or(root), now_secs);
            }
            Change::Replace(entry, kind) => {
                let Some(path) = chosen(root, *entry, any).filter(|path| path != root) else {
                    return Ok(());
                };
                remove(&path)?;
                match kind {
                    0 => std::fs::write(&path, "another kind")?,
                    1 => std::fs::create_dir(&path)?,
                    _ => symlink("../out", &path)?,
                }
                path
            }
            Change::Mode(entry, mode) => {
                let is_no_link = |found: &Metadata| !found.is_symlink();
                let Some(path) = chosen(root, *entry, is_no_link) else {
                    return Ok(());
                };
                return std::fs::set_permissions(path, PermissionsExt::from_mode(*mode));
            }
            Change::Xattr(entry, value) => {
                let is_no_link = |found: &Metadata| !found.is_symlink();
                let Some(path) = chosen(root, *entry, is_no_link) else {
                    return Ok(());
                };
                let value = [b'0' + value];
                return Ok(setxattr(path, "user.a", &value, XattrFlags::empty())?);
            }
            Change::Own(entry, id) => {
                let Some(path) = chosen(root, *entry, any) else {
                    return Ok(());
                };
                return std::os::unix::fs::lchown(path, Some(*id), Some(*id + 1));
            }
            Change::Time(entry, nights) => {
                let Some(path) = chosen(root, *entry, any) else {
                    return Ok(());
                };
                return set_time(&path, now_secs + nights * NIGHT_SECS);
            }
            Change::LinkDir(from, dir, name) => {
                let (Some(from), Some(path)) = (chosen(root, *from, is_dir), place(dir, name))
                else {
                    return Ok(());
                };
                if from == root || path.starts_with(&from) || path.symlink_metadata().is_ok() {
                    return Ok(());
                }
                std::fs::rename(&from, &path)?;
                let below = |path: &Path| path.strip_prefix(root).expect("below root").to_owned();
                let depth = below(&from).components().count() - 1;
                symlink(PathBuf::from("../".repeat(depth)).join(below(&path)), &from)?;
                set_time(path.parent().unwrap_or(root), now_secs)?;
                from
            }
        };
        set_time(&changed, now_secs)?;
        set_time(changed.parent().unwrap_or(root), now_secs)
    }
}

const NIGHT_SECS: i64 = 86_400;

/// Applies the changes of one tree before a night.
fn change_all(root: &Path, changes: &[Change], night: usize) {
    let begin = T0 + night as i64 * NIGHT_SECS;
    for (change, secs) in changes.iter().zip(begin..) {
        // What cannot be done in one twin cannot be done in the other either.
        let _ = change.apply(root, secs);
    }
}

/// Returns the entry of a tree with this number among those that are `wanted`.
fn chosen(root: &Path, number: usize, wanted: impl Fn(&Metadata) -> bool) -> Option<PathBuf> {
    let mut found = Vec::new();
    collect(root, &wanted, &mut found);
    found.sort();
    let at = number.checked_rem(found.len())?;
    Some(found.swap_remove(at))
}

fn collect(path: &Path, wanted: &impl Fn(&Metadata) -> bool, found: &mut Vec<PathBuf>) {
    let Ok(metadata) = path.symlink_metadata() else {
        return;
    };
    if wanted(&metadata) {
        found.push(path.to_owned());
    }
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            collect(&entry.path(), wanted, found);
        }
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    if path.symlink_metadata()?.is_dir() {
        std::fs::remove_dir_all(path)
    } else {
        std::fs::remove_file(path)
    }
}

fn set_time(path: &Path, secs: i64) -> std::io::Result<()> {
    let time = Timespec {
        tv_sec: secs,
        tv_nsec: NANOS,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn content(len: usize, fill: u8) -> Vec<u8> {
    (0..len)
        .map(|at| {
            if at / 4096 % 3 == 1 {
                0
            } else {
                fill ^ (at % 251) as u8
            }
        })
        .collect()
}

/// Returns the manifest of some entries of a source, and of a missing one.
fn listed(source: &Path, numbers: &[usize]) -> String {
    let name = |&number: &usize| {
        let path = chosen(source, number, |_| true)?;
        let name = path.strip_prefix(source).ok()?.to_str()?;
        Some(if name.is_empty() || number % 20 == 0 {
            "missing/name".to_owned()
        } else {
            name.to_owned()
        })
    };
    let mut names: Vec<String> = numbers.iter().filter_map(name).collect();
    // rsync reports a missing directory once for each of its names.
    names.sort();
    names.dedup();
    names.join("\n") + "\n"
}

impl std::fmt::Display for Life {
    /// Prints the nights as values.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "  {}: {:?} as {:?}",
            self.job().name,
            self.options,
            self.who
        )?;
        for night in &self.nights {
            writeln!(f, "  {night:?}")?;
        }
        Ok(())
    }
}

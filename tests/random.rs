//! Random cases: whatever a seed draws, both programs must do the same.
//!
//! `tree` and `options` draw a [`Case`] from a seed, without any file. This file runs it. `SPARSYNC_RANDOM=SEED` or
//! `=FIRST..END` chooses the seeds. A case that fails is made smaller while it fails, and is printed as code for a test
//! of its own.

mod checks;
mod explanations;
mod options;
mod plans;
mod renamed;
mod soak;
mod tree;

use std::any::Any;
use std::io::Write as _;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::kit::{Acl, Loss, Route, Shell, Who, World, oracle, run_case};
use checks::RandomCheck;
use explanations::RandomExplanation;
use options::{Case, TREES};
use plans::RandomPlan;
use renamed::RandomRenames;
use soak::Life;
use tree::{Entry, Extra, Kind, text};

/// How often a case must fail before it counts: the order of some lines of rsync is a matter of time.
const TIMES: usize = 3;
/// More than there are processors: rsync waits for much of its time.
const THREADS: usize = 6;
const SAMPLE: Range<u64> = 0..40;
const LOSSES_SAMPLE: Range<u64> = 0..20;
const LIVES_SAMPLE: Range<u64> = 0..8;
const CHECKS_SAMPLE: Range<u64> = 0..40;
const RENAMES_SAMPLE: Range<u64> = 0..60;
const PLANS_SAMPLE: Range<u64> = 0..60;
const EXPLANATIONS_SAMPLE: Range<u64> = 0..60;
/// How often a smaller case may be run until it fails: what a loss interrupts is a matter of time.
const ATTEMPTS: usize = 4;

/// Returns the seeds that `SPARSYNC_RANDOM` chooses, or the sample.
pub fn seeds(sample: Range<u64>) -> Range<u64> {
    let Some(choice) = std::env::var_os("SPARSYNC_RANDOM") else {
        return sample;
    };
    let choice = choice.to_string_lossy().into_owned();
    let seed = |text: &str| {
        text.parse()
            .unwrap_or_else(|_| panic!("SPARSYNC_RANDOM={choice}: expected SEED or FIRST..END"))
    };
    match choice.split_once("..") {
        Some((first, end)) => seed(first)..seed(end),
        None => seed(&choice)..seed(&choice) + 1,
    }
}

/// Builds the trees of a case in an empty world.
fn build(w: &World, case: &Case) {
    w.needs_acls().needs_xattrs().tree(".", "tmp/%777");
    for (name, entries) in TREES.iter().zip(&case.trees) {
        w.build(name, |tree| {
            entries.iter().for_each(|entry| add(tree, entry))
        });
    }
    w.file("rules", text(&case.rules))
        .file("list", text(&case.list));
}

fn add(tree: &crate::kit::Tree, entry: &Entry) {
    let path = &entry.path;
    let item = match &entry.kind {
        Kind::File(content) => tree.file(path, content),
        Kind::Dir => tree.dir(path),
        Kind::Symlink(target) => tree.symlink(path, target),
        Kind::Fifo => tree.fifo(path),
        Kind::HardLink(leader) => return drop(tree.hardlink(path, leader)),
    };
    let item = item.mtime(entry.mtime);
    let item = match entry.extra {
        Extra::None => item,
        Extra::Xattr => item.xattr("user.a", "v"),
        Extra::Acl => {
            let x = u16::from(entry.kind == Kind::Dir);
            item.acl(&[
                Acl::Owner(6 | x),
                Acl::User(9, 4),
                Acl::OwnGroup(4 | x),
                Acl::Mask(4 | x),
                Acl::Other(4 | x),
            ])
        }
        Extra::Owner => item.owner(7, 8),
    };
    entry
        .mode
        .into_iter()
        .fold(item, |item, mode| item.mode(mode));
}

/// Masks lines whose content or place is a matter of time.
fn masked(line: &str) -> Option<String> {
    const BEGIN: [&str; 7] = [
        "sparsync: cannot share blocks of ",
        "File list ",
        "IO error encountered -- ",
        "skipping non-regular file ",
        "total: matches=",
        "removing duplicate name ",
        "rsync: connection unexpectedly closed ",
    ];
    (!line.is_empty() && !BEGIN.iter().any(|begin| line.starts_with(begin)))
        .then(|| line.replace("--clone-dest arg", "--copy-dest arg"))
}

/// Runs a case in a new world, in this way. Returns the difference.
fn difference_of(
    route: Route,
    name: &str,
    case: &Case,
    run: impl Fn(&World, &[String]) -> Option<String>,
) -> Option<String> {
    let w = World::new(name, route, case.who);
    build(&w, case);
    w.no_dry_run().stderr_unordered().mask_with(masked);
    let mut operands = case.sources.clone();
    operands.push(case.dest_name.to_owned());
    caught(route, || run(&w, &operands))
}

/// Returns the difference that `run` finds, or with which it panics: a program that hangs, or an entry that cannot be
/// built. rsync itself hangs at times.
fn caught(route: Route, run: impl FnOnce() -> Option<String>) -> Option<String> {
    let is_oracle = format!("{} hangs: ", oracle::rsync().display());
    let failed = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(text) => Some(*text),
        Err(panic) => match panic.downcast_ref::<&str>() {
            Some(text) => Some((*text).to_owned()),
            None => resume_unwind(panic),
        },
    };
    let failed =
        |panic| failed(panic).filter(|text| route.is_served() || !text.starts_with(&is_oracle));
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(failed)
}

/// Returns the difference of a case, if there is one each time.
fn difference(route: Route, name: &str, case: &Case) -> Option<String> {
    let run = |w: &World, operands: &[String]| w.try_agree(&case.options, operands).err();
    (0..TIMES)
        .map(|_| difference_of(route, name, case, run))
        .collect::<Option<Vec<_>>>()?
        .pop()
}

/// Returns what is wrong after losses of the connection, if that happens in one of several attempts. Counts how runs end.
fn difference_by_loss(
    route: Route,
    name: &str,
    (case, losses): &(Case, Vec<Loss>),
    attempts: usize,
    ends: &Ends,
) -> Option<String> {
    let run = |w: &World, operands: &[String]| match w.try_losing(&case.options, operands, losses) {
        Ok(ended) => {
            ends[ended as usize].fetch_add(1, Ordering::Relaxed);
            None
        }
        Err(wrong) => Some(wrong),
    };
    let wrong = (0..attempts).find_map(|_| difference_of(route, name, case, run))?;
    // Otherwise it has another cause.
    difference(route, name, case).is_none().then_some(wrong)
}

/// Returns the difference of a life, if there is one each time.
fn difference_of_life(route: Route, name: &str, life: &Life) -> Option<String> {
    let attempt = |_| {
        caught(route, || {
            let w = World::new(name, route, life.who());
            w.mask_with(masked);
            life.difference(&w)
        })
    };
    (0..TIMES).map(attempt).collect::<Option<Vec<_>>>()?.pop()
}

/// How many runs ended in each way of `Ended`.
type Ends = [AtomicU64; 3];

/// Removes parts of a case as long as it fails. `smaller` returns the cases that lack one part.
fn shrunk<C>(
    mut case: C,
    mut why: String,
    smaller: impl Fn(&C) -> Vec<C>,
    difference: impl Fn(&C) -> Option<String>,
) -> (C, String) {
    'smaller: loop {
        for smaller in smaller(&case) {
            if let Some(failure) = difference(&smaller) {
                (case, why) = (smaller, failure);
                continue 'smaller;
            }
        }
        return (case, why);
    }
}

/// Returns the cases that lack one part of this one, without those that are not compared on this route.
fn smaller_cases(route: Route) -> impl Fn(&Case) -> Vec<Case> {
    move |case| {
        let mut smaller = case.smaller();
        smaller.retain(|case| case.known(route).is_none());
        smaller
    }
}

/// Returns the lives that lack one part of this one, likewise.
fn smaller_lives(route: Route) -> impl Fn(&Life) -> Vec<Life> {
    move |life| {
        let mut smaller = life.smaller();
        smaller.retain(|life| life.known(route).is_none());
        smaller
    }
}

/// Runs the chosen seeds on these routes. `fails` returns a description of what is wrong.
/// Returns how many seeds failed.
fn run_seeds(
    threads: usize,
    seeds: Range<u64>,
    routes: &[Route],
    fails: impl Fn(u64, Route, &str) -> Option<String> + Sync,
) -> u64 {
    let (next, failures) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            run_case(&format!("random::seed_{seed}"), Who::Current, routes, |w| {
                if let Some(why) = fails(seed, w.route(), w.name()) {
                    // Printed at once and not captured: thousands of seeds take minutes.
                    let _ = std::io::stderr().write_all(why.as_bytes());
                    failures.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    failures.into_inner()
}

#[test]
fn random_cases_agree() {
    let failed = run_seeds(THREADS, seeds(SAMPLE), Route::ALL, |seed, route, name| {
        let case = Case::nth(seed, route);
        let why = difference(route, name, &case)?;
        let (case, why) = shrunk(case, why, smaller_cases(route), |case| {
            difference(route, name, case)
        });
        Some(format!("{why}{case}\n"))
    });
    assert_eq!(failed, 0, "seeds that differ");
}

#[test]
fn random_checks_find_what_a_dry_run_prints() {
    let failed = run_seeds(
        THREADS,
        seeds(CHECKS_SAMPLE),
        Route::ALL,
        |seed, route, name| {
            if route.is_served() {
                return None;
            }
            let difference = |check: &RandomCheck| {
                (0..TIMES)
                    .map(|_| check.difference(route, name))
                    .collect::<Option<Vec<_>>>()?
                    .pop()
            };
            let check = RandomCheck::nth(seed);
            let why = difference(&check)?;
            let (check, why) = shrunk(check, why, RandomCheck::smaller, difference);
            Some(format!("seed {seed}: {why}{check}\n"))
        },
    );
    assert_eq!(failed, 0, "seeds that differ");
}

#[test]
fn random_renames_change_nothing_but_the_cost() {
    let reused = AtomicU64::new(0);
    let failed = run_seeds(
        THREADS,
        seeds(RENAMES_SAMPLE),
        Route::ALL,
        |seed, route, name| {
            // An rsync has no such option, but can be the sender.
            if route.is_served() || route.is_stock() && !matches!(route, Route::Pull(_)) {
                return None;
            }
            let difference = |renames: &RandomRenames| {
                (0..TIMES)
                    .map(|_| renames.difference(route, name, &reused))
                    .collect::<Option<Vec<_>>>()?
                    .pop()
            };
            let renames = RandomRenames::nth(seed);
            let why = difference(&renames)?;
            let (renames, why) = shrunk(renames, why, RandomRenames::smaller, difference);
            Some(format!("seed {seed}: {why}{renames}\n"))
        },
    );
    assert_eq!(failed, 0, "seeds that differ");
    let reused = reused.into_inner();
    assert!(reused > 0, "no file has taken the content of another");
}

#[test]
fn random_plans_end_as_the_run_and_spare_what_has_changed() {
    let failed = run_seeds(
        THREADS,
        seeds(PLANS_SAMPLE),
        Route::ALL,
        |seed, route, name| {
            if route.is_served() || route.is_stock() {
                return None;
            }
            let plan = RandomPlan::nth(seed);
            let why = plan.difference(route, name)?;
            let (plan, why) = shrunk(plan, why, RandomPlan::smaller, |plan| {
                plan.difference(route, name)
            });
            Some(format!("seed {seed}: {why}{plan}\n"))
        },
    );
    assert_eq!(failed, 0, "seeds that differ");
}

#[test]
fn random_explanations_agree_with_the_run() {
    let failed = run_seeds(
        THREADS,
        seeds(EXPLANATIONS_SAMPLE),
        Route::ALL,
        |seed, route, name| {
            if route.is_served() || route.is_stock() {
                return None;
            }
            let case = RandomExplanation::nth(seed);
            let why = case.difference(route, name)?;
            let (case, why) = shrunk(case, why, RandomExplanation::smaller, |case| {
                case.difference(route, name)
            });
            Some(format!("seed {seed}: {why}{case}\n"))
        },
    );
    assert_eq!(failed, 0, "seeds that differ");
}

#[test]
fn random_lives_agree() {
    let failed = run_seeds(
        THREADS,
        seeds(LIVES_SAMPLE),
        Route::ALL,
        |seed, route, name| {
            let life = Life::nth(seed, route);
            let why = difference_of_life(route, name, &life)?;
            let (life, why) = shrunk(life, why, smaller_lives(route), |life| {
                difference_of_life(route, name, life)
            });
            Some(format!("{why}{life}\n"))
        },
    );
    assert_eq!(failed, 0, "seeds that differ");
}

#[test]
fn random_cases_lose_their_connections() {
    let ends = Ends::default();
    let failed = run_seeds(
        2 * THREADS,
        seeds(LOSSES_SAMPLE),
        &[Route::Local],
        |seed, _, name| {
            let shell = if seed % 2 == 0 {
                Shell::Quic
            } else {
                Shell::Tls
            };
            let route = if seed / 2 % 2 == 0 {
                Route::Push(shell)
            } else {
                Route::Pull(shell)
            };
            let (case, losses) = Case::losing(seed, route);
            let fails = |case: &Case, attempts| {
                difference_by_loss(
                    route,
                    name,
                    &(case.clone(), losses.clone()),
                    attempts,
                    &ends,
                )
            };
            let why = fails(&case, 1)?;
            let (case, why) = shrunk(case, why, smaller_cases(route), |case| {
                fails(case, ATTEMPTS)
            });
            Some(format!("{why}{case}\n"))
        },
    );
    let [undisturbed, repeated, broken_off] = ends.map(AtomicU64::into_inner);
    let ends = format!(
        "random losses: {undisturbed} undisturbed, {repeated} repeated, {broken_off} broken off\n"
    );
    let _ = std::io::stderr().write_all(ends.as_bytes());
    assert_eq!(failed, 0, "seeds that differ");
    // About every third run is disturbed. A few seeds can be without any.
    let disturbed = repeated + broken_off;
    assert!(
        undisturbed + disturbed < 20 || disturbed * 10 >= undisturbed,
        "hardly a run was disturbed: {ends}"
    );
}

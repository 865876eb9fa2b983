//! The test kit: the real rsync is the oracle, sparsync has to do and say the same.
//!
//! A case builds a [`World`] and calls [`World::agree`]; what is compared, what is masked and on which
//! routes the case runs is settled here, so that no case knows about it. The parts:
//! `build` makes trees, `run` runs programs, `tree` takes snapshots, `mask` blots out what may differ,
//! `diff` shows what must not, `oracle` knows the two programs, `world` ties them together.

mod build;
mod diff;
mod mask;
pub mod oracle;
mod run;
mod tree;
mod world;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

pub use build::Acl;
pub use run::{Output, Surroundings, run};
pub use world::World;

/// How the operands of a case reach the program.
///
/// Each case runs once per route. A new route says in [`Route::argv`] how it spells a local path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Both trees on this machine, given as plain paths.
    Local,
}

impl Route {
    /// The routes on which every case runs.
    pub const ALL: &[Route] = &[Route::Local];

    /// Spells a command line for this route: options first, then the operands.
    pub fn argv(self, options: &[Vec<u8>], operands: &[Vec<u8>]) -> Vec<Vec<u8>> {
        match self {
            Route::Local => options.iter().chain(operands).cloned().collect(),
        }
    }
}

/// The user on whose behalf both programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Whoever runs the tests.
    Current,
    /// The super-user; skipped for anybody else.
    Root,
    /// An ordinary user without groups or capabilities; the world belongs to that user.
    User,
}

/// Marks a panic that is no failure: the case could not run here.
struct Skipped(String);

/// Ends the case as not run, and says why.
pub fn skip(reason: &str) -> ! {
    resume_unwind(Box::new(Skipped(reason.to_owned())))
}

/// Runs one case on every route. Called by [`synctest!`].
pub fn run_case(name: &str, who: Who, case: impl Fn(World)) {
    oracle::announce();
    for &route in Route::ALL {
        let attempt = catch_unwind(AssertUnwindSafe(|| case(World::new(name, route, who))));
        match attempt.map_err(|panic| panic.downcast::<Skipped>()) {
            Ok(()) => {}
            Err(Ok(skipped)) => tell_skip(name, &skipped.0),
            Err(Err(failure)) => resume_unwind(failure),
        }
    }
}

/// Says aloud that a case did not run and adds a line to the file that `scripts/test` counts.
pub fn tell_skip(name: &str, reason: &str) {
    let line = format!("skipped {name}: {reason}\n");
    // Past the capture of libtest, which would hide it.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(list) = std::env::var_os("SPARSYNC_SKIPS") {
        let file = std::fs::File::options().create(true).append(true).open(&list);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        assert!(written.is_ok(), "SPARSYNC_SKIPS names {list:?}, which cannot be written");
    }
}

/// Declares a test that gets a fresh [`World`] on every route.
///
/// `synctest!(name, |w: World| { … })` runs as whoever runs the tests. With `as root`, `as user` or
/// `as both` before the closure it runs as the super-user, as an ordinary user, or as each in turn.
macro_rules! synctest {
    ($name:ident, as both, $case:expr) => {
        mod $name {
            use super::*;
            crate::kit::synctest!(by_root, as root, $case);
            crate::kit::synctest!(by_a_user, as user, $case);
        }
    };
    ($name:ident, as root, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::Root, $case);
    };
    ($name:ident, as user, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::User, $case);
    };
    ($name:ident, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::Current, $case);
    };
    (@ $name:ident, $who:expr, $case:expr) => {
        #[test]
        fn $name() {
            let name = concat!(module_path!(), "::", stringify!($name));
            $crate::kit::run_case(name, $who, $case);
        }
    };
}
pub(crate) use synctest;

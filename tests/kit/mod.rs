//! The test kit: the real rsync is the oracle, sparsync has to do and say the same.
//!
//! A case builds a [`World`] and calls [`World::agree`]; what is compared, what is masked and on which
//! routes the case runs is settled here, so that no case knows about it. The parts:
//! `build` makes trees, `run` runs programs, `route` spells operands for the ways to a peer, `tree` takes snapshots,
//! `server` is our own one for the ways over the network, `mask` blots out what may differ, `diff` shows what must not, `oracle` knows the two programs, `world` ties them
//! together.

mod build;
mod diff;
mod mask;
pub mod oracle;
mod route;
mod run;
mod server;
mod tree;
mod world;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

pub use build::Acl;
pub use route::{Route, ssh};
pub use run::{Output, Request, Surroundings, interrupt, run, until};
pub use tree::{Lens, snapshot};
pub use world::World;

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

/// Runs one case on those of the routes that were chosen. Called by [`synctest!`].
pub fn run_case(name: &str, who: Who, routes: &[Route], case: impl Fn(World)) {
    oracle::announce();
    for &route in routes.iter().filter(|route| route.is_chosen(name)) {
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

/// Declares a test that gets a fresh [`World`] on every route; see [`Route`].
///
/// `synctest!(name, |w: World| { … })` runs as whoever runs the tests. With `as root`, `as user` or
/// `as both` before the closure it runs as the super-user, as an ordinary user, or as each in turn. With
/// `between machines` it runs where a peer takes part alone, and with `over ssh` through a real ssh instead.
macro_rules! synctest {
    ($name:ident, as both, $case:expr) => {
        mod $name {
            use super::*;
            crate::kit::synctest!(by_root, as root, $case);
            crate::kit::synctest!(by_a_user, as user, $case);
        }
    };
    ($name:ident, as root, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::Root, $crate::kit::Route::ALL, $case);
    };
    ($name:ident, as user, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::User, $crate::kit::Route::ALL, $case);
    };
    ($name:ident, between machines, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::Current, $crate::kit::Route::FAR, $case);
    };
    ($name:ident, over ssh, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::Current, $crate::kit::Route::SSH, $case);
    };
    ($name:ident, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::Current, $crate::kit::Route::ALL, $case);
    };
    (@ $name:ident, $who:expr, $routes:expr, $case:expr) => {
        #[test]
        fn $name() {
            let name = concat!(module_path!(), "::", stringify!($name));
            $crate::kit::run_case(name, $who, $routes, $case);
        }
    };
}
pub(crate) use synctest;

//! The test kit: the real rsync is the oracle; sparsync must have the same effects and print the same output.
//!
//! A case builds a [`World`] and calls [`World::agree`]. The kit decides what is compared, what is masked and on which
//! routes the case runs; cases do not depend on it. A test of servers, daemons or remote shells builds a [`Scene`]. The
//! parts: `build` creates trees, `run` runs programs, `route`
//! writes operands for each route to a peer, `tree` takes snapshots, `server` starts a sparsync server for the network
//! routes, `mask` hides expected differences, `diff` shows the others, `oracle` finds the two programs, `relay`
//! loses connections, `hashed_tree` runs the programs of manifests, `scene` runs servers, daemons and shells, `wait` waits for a state, `terminal` has terminals, and `world` combines them.

mod build;
pub mod diff;
pub mod golden;
mod hashed_tree;
mod mask;
pub mod oracle;
mod relay;
mod route;
mod run;
mod scene;
pub mod server;
mod terminal;
pub mod tree;
mod wait;
mod world;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

pub use build::{Acl, NANOS, T0, Tree, noise};
pub use hashed_tree::{HashedTree, run_program};
pub use relay::{Cut, Relay, Trigger};
pub use route::{Route, Shell, ssh};
pub use run::{
    Output, Request, Surroundings, USUAL_UMASK, calls_with_faults, interrupt, run, spare_port,
    tries_all_faults, until, until_idle, write_script,
};
pub use scene::{Daemon, FAKE_SSH, Scene, assert_output, field_of, port_in};
pub use terminal::{Screen, Terminal, set_size};
pub use tree::{Lens, Snapshot, files, is_temp, snapshot};
pub use world::{Loss, LossKind, Recorded, World, is_interrupted_read};

/// The user that both programs run as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The user that runs the tests.
    Current,
    /// The super-user; the case is skipped for other users.
    Root,
    /// An ordinary user without groups or capabilities, which owns the world.
    User,
}

/// A panic payload that is not a failure: the case could not run here.
struct Skipped(String);

/// Ends the case as skipped, for the given reason.
pub fn skip(reason: &str) -> ! {
    resume_unwind(Box::new(Skipped(reason.to_owned())))
}

/// Runs one case on those of `routes` that were chosen. Called by [`synctest!`].
pub fn run_case(name: &str, who: Who, routes: &[Route], case: impl Fn(World)) {
    oracle::announce();
    for &route in routes.iter().filter(|route| route.is_chosen(name, routes)) {
        if let Some(reason) = route.exclusion(name) {
            report_skip(name, &format!("{route:?}: {reason}"));
            continue;
        }
        let attempt = catch_unwind(AssertUnwindSafe(|| case(World::new(name, route, who))));
        match attempt.map_err(|panic| panic.downcast::<Skipped>()) {
            Ok(()) => {}
            Err(Ok(skipped)) => report_skip(name, &skipped.0),
            Err(Err(failure)) => resume_unwind(failure),
        }
    }
}

/// Prints that a case was skipped and adds a line to the file that `scripts/test` counts.
pub fn report_skip(name: &str, reason: &str) {
    let line = format!("skipped {name}: {reason}\n");
    // Written directly to stderr, because libtest captures and hides `eprint!`.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(list) = std::env::var_os("SPARSYNC_SKIPS") {
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&list);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        assert!(
            written.is_ok(),
            "SPARSYNC_SKIPS names {list:?}, which cannot be written"
        );
    }
}

/// Declares a test that gets a fresh [`World`] on every route; see [`Route`].
///
/// `synctest!(name, |w: World| { … })` runs as the user that runs the tests. With `as root`, `as user` or `as both`
/// before the closure it runs as the super-user, as an ordinary user, or as each in turn. With `between machines` it
/// runs only on the routes with a peer, with `over ssh` only through a real ssh, `with stock` against a stock rsync,
/// `with client` as the server of one, and `with daemon` against its daemon.
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
    ($name:ident, with stock, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::Current, $crate::kit::Route::STOCK, $case);
    };
    ($name:ident, with client, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::Current, $crate::kit::Route::SERVED, $case);
    };
    ($name:ident, as root, with client, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::Root, $crate::kit::Route::SERVED, $case);
    };
    ($name:ident, as user, with client, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::User, $crate::kit::Route::SERVED, $case);
    };
    ($name:ident, with daemon, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::Current, $crate::kit::Route::DAEMON, $case);
    };
    ($name:ident, as user, with daemon, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::User, $crate::kit::Route::DAEMON, $case);
    };
    ($name:ident, as root, with stock, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::Root, $crate::kit::Route::STOCK, $case);
    };
    ($name:ident, as user, with stock, $case:expr) => {
        crate::kit::synctest!(@ $name, $crate::kit::Who::User, $crate::kit::Route::STOCK, $case);
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

/// A source tree with an entry of each kind that an ordinary user can create.
pub const TREE: &str = "a b*70000 empty= l->a ;s d/x d/y/z d/e/";
/// A destination with older and extra entries for [`TREE`].
pub const OLD: &str = "a=old@-9 b*69000@-4 extra d/old gone/x";

/// Declares a test that copies a source onto a destination with a stock rsync or its daemon as the peer.
macro_rules! copies {
    (with $peer:ident, $name:ident, $source:expr, $dest:expr, [$($option:expr),+ $(,)?]) => {
        crate::kit::synctest!($name, with $peer, |w: World| {
            w.source($source).dest($dest);
            w.agree(&[$($option),+]);
        });
    };
}
pub(crate) use copies;

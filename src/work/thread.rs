//! Starts named threads in a scope.

use crate::error::Error;
use crate::exit::Exit;
use std::io;
use std::thread::{Builder, Scope};

/// Starts a named thread in a scope. Fails if the system cannot create another thread.
pub fn spawn<'s, 'e>(
    scope: &'s Scope<'s, 'e>,
    name: &str,
    work: impl FnOnce() + Send + 's,
) -> Result<(), Error> {
    Builder::new()
        .name(name.into())
        .spawn_scoped(scope, work)
        .map(|_| ())
        .map_err(no_thread)
}

/// Returns the error for a thread that could not be started.
pub fn no_thread(error: io::Error) -> Error {
    Error::new(
        Exit::Malloc,
        format!("rsync: could not start a thread: {error}"),
    )
}

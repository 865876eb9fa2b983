//! Hands a run over to the installed rsync, with the arguments as they were given.

use crate::env::Env;
use crate::error::Error;
use crate::exit::Exit;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Becomes the installed rsync. Returns only with the error that there is none.
pub fn run(env: &mut Env) -> Result<(), Error> {
    let Some(rsync) = find(env) else {
        let message = "sparsync: this needs an installed rsync (a remote operand, a server or a daemon), and none was found: \
                       install the package rsync, or name one in SPARSYNC_RSYNC";
        return Err(Error::new(Exit::Ipc, message));
    };
    let error = env.become_program(rsync.as_os_str(), &env.args.clone());
    Err(Error::new(Exit::Ipc, format!("sparsync: could not start {}: {error}", rsync.display())))
}

/// The rsync that `SPARSYNC_RSYNC` names, or the first in `PATH` that is not this very program.
fn find(env: &Env) -> Option<PathBuf> {
    let itself = env.own_path().and_then(|path| crate::fs::sys::identity(path.as_os_str()));
    let other = |path: &Path| {
        let identity = crate::fs::sys::identity(path.as_os_str())?;
        (Some(identity) != itself && crate::fs::sys::is_executable(path.as_os_str())).then(|| path.to_path_buf())
    };
    if let Some(named) = env.var("SPARSYNC_RSYNC").filter(|named| !named.is_empty()) {
        return other(Path::new(&named));
    }
    let path = env.var("PATH").unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"));
    std::env::split_paths(&path)
        .filter(|dir| !dir.as_os_str().is_empty())
        .find_map(|dir| other(&dir.join(OsStr::new("rsync"))))
}

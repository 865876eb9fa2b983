//! The programs that a daemon runs for a connection: `early exec`, `pre-xfer exec`, `post-xfer exec`.
//!
//! They run as the user who started the daemon, outside of the module's root. So the processes that start them are
//! split off before the connection gives that up.

use super::policy::params::{VarLookup, expand_with};
use crate::env::{self, Env};
use crate::fs::sys;
use crate::transport::shell;
use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::net::UnixStream;

/// The most output of `pre-xfer exec` that is shown to the client.
const OUTPUT_MAX_BYTES: usize = 8 << 10;
/// How long a signal can go unnoticed that comes just before a wait.
const LOOK_MS: u32 = 500;
/// The most bytes of the arguments for `pre-xfer exec`, as their encoding has them.
const ARGS_MAX_BYTES: u64 = 64 << 20;

/// Variables for a program.
pub type HookVars = Vec<(String, Vec<u8>)>;

/// Returns the command of a hook with variables expanded. The error is the line for the log.
///
/// The values of variables whose names begin with `RSYNC_` are quoted, as in rsync, whether they describe the connection or
/// come from the environment of the daemon. One that a shell could interpret is refused. Other variables belong to the
/// operator.
pub fn command(text: &[u8], own: &HookVars, vars: VarLookup<'_>) -> Result<Vec<u8>, Vec<u8>> {
    let refused = RefCell::new(None);
    let expanded = expand_with(text, &|name, out| {
        let described = own
            .iter()
            .find(|(known, _)| known.as_bytes() == name)
            .map(|(_, value)| value.clone());
        let value = described.or_else(|| vars(name))?;
        if !name.starts_with(CHECKED_NAMES) {
            out.extend_from_slice(&value);
            return Some(());
        }
        let is_special = |byte: &u8| *byte <= b' ' || *byte == 127 || SPECIAL.contains(byte);
        if value.iter().any(is_special) {
            refused.borrow_mut().get_or_insert_with(|| name.to_vec());
        }
        out.extend([b"'", &value[..], b"'"].concat());
        Some(())
    });
    match refused.into_inner() {
        Some(name) => Err([
            b"refusing to run shell hook: %",
            &name[..],
            b"% holds a shell metacharacter",
        ]
        .concat()),
        None => Ok(expanded),
    }
}

/// The beginning of the names of variables whose values clients can choose.
const CHECKED_NAMES: &[u8] = b"RSYNC_";

/// The bytes that a shell could interpret.
const SPECIAL: &[u8] = b"'\"`$\\;&|<>()*?[]#!~{}";

/// Runs a command in a shell and waits for it. Returns its raw status and the beginning of its output.
pub fn run(
    env: &Env,
    command: &[u8],
    vars: &HookVars,
    input: &[u8],
    captures: bool,
) -> io::Result<(i32, Vec<u8>)> {
    let shell = env.var("RSYNC_SHELL").unwrap_or_else(|| "sh".into());
    let vars = vars
        .iter()
        .map(|(name, value)| (OsString::from(name), OsString::from_vec(value.clone())))
        .collect();
    let most_bytes = if captures { OUTPUT_MAX_BYTES } else { 0 };
    shell::run_hook(
        &shell,
        command,
        shell::HookOptions {
            umask: env.umask,
            vars,
            input,
            most_bytes,
        },
    )
}

/// Starts a process that continues the connection, and returns in it. This one runs `post-xfer exec` when that has ended,
/// and stops it if this one is stopped.
pub fn before_post_xfer(env: &Env, command: &[u8], vars: &HookVars) -> io::Result<()> {
    env.handle_signals()?;
    env.handle_server_stop()?;
    let Some(pid) = sys::fork()? else {
        return Ok(());
    };
    // The connection ends with the other process.
    env::leave_streams(false);
    let mut is_stopped = false;
    let status = loop {
        match sys::wait_for(pid, LOOK_MS) {
            Ok(Some(status)) => break status,
            Ok(None) if env.is_stopping() && !is_stopped => {
                // Not with SIGTERM: if both processes got one, a second one would end the other at once.
                is_stopped = env::signal_session_to_stop(pid).is_ok();
            }
            Ok(None) => {}
            Err(_) => break -1,
        }
    };
    let exit = if status & 0x7f == 0 {
        (status >> 8) & 0xff
    } else {
        -1
    };
    let mut vars = vars.clone();
    vars.push(("RSYNC_RAW_STATUS".into(), status.to_string().into_bytes()));
    vars.push(("RSYNC_EXIT_STATUS".into(), exit.to_string().into_bytes()));
    // Its result changes nothing.
    let _ = run(env, command, &vars, b"", false);
    env::end_now(u8::try_from(exit).unwrap_or(1));
}

/// A process that waits for the arguments of the client and then runs `pre-xfer exec`.
pub struct PreXfer {
    socket: UnixStream,
}

impl PreXfer {
    /// Starts the process. The variables of the request are in the environment of the command; its text has none of them.
    pub fn start(env: &Env, vars: &HookVars, command: &[u8]) -> io::Result<PreXfer> {
        let (ours, theirs) = UnixStream::pair()?;
        if sys::fork()?.is_some() {
            return Ok(PreXfer { socket: ours });
        }
        drop(ours);
        env::leave_streams(false);
        let mut vars = vars.clone();
        // Without arguments, nothing is run.
        let Ok(request) = read_vars(&theirs) else {
            env::end_now(1)
        };
        vars.extend(request);
        let (status, output) = run(env, command, &vars, b"", true).unwrap_or((-1, Vec::new()));
        // If the daemon's process is gone, the connection is over.
        let _ = (&theirs).write_all(&[&status.to_le_bytes()[..], &output].concat());
        env::end_now(0);
    }

    /// Runs the command for a request. Returns the raw status and the output.
    pub fn run(mut self, request: &HookVars) -> io::Result<(i32, Vec<u8>)> {
        send_vars(&self.socket, request)?;
        let mut status = [0; 4];
        self.socket.read_exact(&mut status)?;
        let mut output = Vec::new();
        self.socket
            .take(OUTPUT_MAX_BYTES as u64)
            .read_to_end(&mut output)?;
        Ok((i32::from_le_bytes(status), output))
    }
}

/// Sends the variables of a request to a process that waits for them.
pub fn send_vars(mut socket: &UnixStream, vars: &HookVars) -> io::Result<()> {
    for (name, value) in vars {
        socket.write_all(&[name.as_bytes(), b"=", value, b"\0"].concat())?;
    }
    socket.shutdown(Shutdown::Write)
}

/// Reads what [`send_vars`] sends. Fails if it is nothing.
pub fn read_vars(mut socket: &UnixStream) -> io::Result<HookVars> {
    let mut text = Vec::new();
    (&mut socket).take(ARGS_MAX_BYTES).read_to_end(&mut text)?;
    if text.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let vars = text.split(|&byte| byte == 0).filter_map(|word| {
        let sign = word.iter().position(|&byte| byte == b'=')?;
        Some((
            String::from_utf8_lossy(&word[..sign]).into_owned(),
            word[sign + 1..].to_vec(),
        ))
    });
    Ok(vars.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_a_shell_could_interpret_are_refused() {
        let own = |value: &str| vec![("RSYNC_USER_NAME".to_owned(), value.as_bytes().to_vec())];
        let vars = |name: &[u8]| (name == b"DIR").then(|| b"/a b".to_vec());
        let expanded = |value: &str| command(b"%DIR%/h %RSYNC_USER_NAME% %%", &own(value), &vars);
        assert_eq!(expanded("joe"), Ok(b"/a b/h 'joe' %%".to_vec()));
        let inherited = |name: &[u8]| (name == b"RSYNC_X").then(|| b"a;b".to_vec());
        let error = b"refusing to run shell hook: %RSYNC_X% holds a shell metacharacter".to_vec();
        assert_eq!(command(b"%RSYNC_X%", &own("joe"), &inherited), Err(error));
        for value in [
            "a b", "$(x)", "a;b", "touc?", "~", "a\n", "`x`", "!", "{a,b}",
        ] {
            let error =
                b"refusing to run shell hook: %RSYNC_USER_NAME% holds a shell metacharacter"
                    .to_vec();
            assert_eq!(expanded(value), Err(error), "{value}");
        }
    }
}

//! The program of `name converter`: it converts names of users and groups for a session of a daemon.
//!
//! It runs as the user who started the daemon, outside of the module's root, and knows the request of the client. So the
//! process that starts it is split off before the connection gives that up, and waits for the request.

use super::hooks::{HookVars, read_vars, send_vars};
use crate::env::{self, Env};
use crate::fs::ids::NameQuery;
use crate::fs::sys;
use crate::plan::idmap::IdClass;
use crate::transport::shell;
use parking_lot::Mutex;
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The longest answer, and the longest name that is converted.
const NAME_MAX_BYTES: usize = 4096;
/// How long the program may take for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A converter that waits for the request of the client.
pub struct PendingConverter {
    request: UnixStream,
    queries: UnixStream,
}

impl PendingConverter {
    /// Starts the waiting process. `command`: the shell command that starts the program.
    pub fn start(env: &Env, vars: &HookVars, command: &[u8]) -> io::Result<PendingConverter> {
        let (request, theirs) = UnixStream::pair()?;
        let (queries, streams) = UnixStream::pair()?;
        if sys::fork()?.is_some() {
            return Ok(PendingConverter { request, queries });
        }
        drop((request, queries));
        env::leave_streams(false);
        // Without a request, the session has ended.
        let Ok(more) = read_vars(&theirs) else {
            env::end_now(1)
        };
        let vars = vars.iter().cloned().chain(more);
        let vars = vars
            .map(|(name, value)| (OsString::from(name), OsString::from_vec(value)))
            .collect();
        let shell = env.var("RSYNC_SHELL").unwrap_or_else(|| "sh".into());
        // The session learns of a failure by the end of the stream.
        let _ = shell::start_on_socket(&shell, command, streams.into(), env.umask, vars);
        env::end_now(0);
    }

    /// Starts the program for a request.
    pub fn begin(self, request: &HookVars) -> io::Result<NameConverter> {
        send_vars(&self.request, request)?;
        self.queries.set_read_timeout(Some(ANSWER_MAX))?;
        self.queries.set_write_timeout(Some(ANSWER_MAX))?;
        Ok(NameConverter {
            stream: Mutex::new(Some(BufReader::new(self.queries))),
        })
    }
}

/// A running converter.
pub struct NameConverter {
    /// `None` once it has failed.
    stream: Mutex<Option<BufReader<UnixStream>>>,
}

impl NameConverter {
    /// Returns the answer to a query; `None` if there is none. Fails if the program has ended or does not answer.
    pub fn convert(&self, query: NameQuery<'_>) -> io::Result<Option<Vec<u8>>> {
        let line = match query {
            NameQuery::Name(IdClass::User, uid) => format!("uid {uid}\n").into_bytes(),
            NameQuery::Name(IdClass::Group, gid) => format!("gid {gid}\n").into_bytes(),
            NameQuery::Id(class, name) => {
                // A client chooses the name. With a control byte, it could look like a second query, or control a
                // terminal that shows a log of the program.
                if name.len() > NAME_MAX_BYTES || name.iter().any(u8::is_ascii_control) {
                    return Ok(None);
                }
                let kind: &[u8] = if class == IdClass::User {
                    b"usr "
                } else {
                    b"grp "
                };
                [kind, name, b"\n"].concat()
            }
        };
        let mut slot = self.stream.lock();
        let mut stream = slot.take().ok_or(io::ErrorKind::BrokenPipe)?;
        stream.get_mut().write_all(&line)?;
        let mut answer = Vec::new();
        (&mut stream)
            .take(NAME_MAX_BYTES as u64 + 1)
            .read_until(b'\n', &mut answer)?;
        if answer.pop() != Some(b'\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        *slot = Some(stream);
        Ok(Some(answer).filter(|answer| !answer.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_gets_no_name_with_control_characters() {
        let (queries, program) = UnixStream::pair().unwrap();
        let converter = NameConverter {
            stream: Mutex::new(Some(BufReader::new(queries))),
        };
        for name in [&b"joe\nuid 0"[..], b"\x1b[2J", b"a\x7f"] {
            let answer = converter.convert(NameQuery::Id(IdClass::User, name));
            assert_eq!(answer.unwrap(), None);
        }
        (&program).write_all(b"7\n").unwrap();
        let answer = converter.convert(NameQuery::Id(IdClass::User, b"joe"));
        assert_eq!(answer.unwrap().as_deref(), Some(&b"7"[..]));
        drop(converter);
        let mut asked = Vec::new();
        (&program).read_to_end(&mut asked).unwrap();
        assert_eq!(asked, b"usr joe\n");
    }
}

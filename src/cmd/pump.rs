//! One client of a server and the process of its session: bytes go to and fro until one of them says nothing more.

use crate::env;
use crate::proto::decode_greeting;
use crate::transport::net::server::Guest;
use crate::work::clock::Since;
use std::io::{self, BufRead, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;
use tracing::error;

/// How long a session may take to end behind its client.
pub const LEAVING_MAX: Duration = Duration::from_secs(10);
/// How often it is looked whether a client that waits for its session has left.
const TICK: Duration = Duration::from_millis(200);
/// What a client hears where this machine has no process or thread left for it.
pub const NO_SESSION: &str = "the server cannot start a session";
/// How many bytes are handed on at once.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes from clients and to them.
#[derive(Debug, Default)]
pub struct Bytes {
    /// What they said.
    pub from_client: AtomicU64,
    /// What they were told.
    pub to_client: AtomicU64,
}

/// How a session came to say nothing more.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It said all, or nobody hears it.
    ByItself,
    /// It does not, although its client left a while ago, or there is nobody to hear it.
    Never,
}

/// Carries bytes between a client and its session until one of them says nothing more.
///
/// `may_begin` is called with the key of the client's greeting before the session gets the first byte; `false`: the session
/// ends without having done anything. A client that does not greet is left to the session, which rejects it.
pub fn carry(guest: Guest, session: &UnixStream, bytes: &Bytes, may_begin: impl Fn(RunKey) -> bool + Sync) -> Ended {
    let Guest { mut reader, writer, parting, hang_up, .. } = guest;
    let has_said_all = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let started = thread(env::GUEST).spawn_scoped(scope, || {
            let mut to_session = session;
            let (first, key) = read_greeting(&mut *reader);
            bytes.from_client.fetch_add(first.len() as u64, Ordering::Relaxed);
            if key.is_none_or(&may_begin) && to_session.write_all(&first).is_ok() {
                // Until the client has said all, or is gone: the session ends by itself when it reads the end.
                while let Ok(piece) = reader.fill_buf() {
                    let count = piece.len();
                    if count == 0 || to_session.write_all(piece).is_err() {
                        break;
                    }
                    bytes.from_client.fetch_add(count as u64, Ordering::Relaxed);
                    reader.consume(count);
                }
            }
            let _ = session.shutdown(Shutdown::Write);
            has_said_all.store(true, Ordering::Relaxed);
        });
        let ended = match started {
            Ok(_) => {
                let has_left = || has_said_all.load(Ordering::Relaxed) || hang_up.is_over();
                carry_back(session, writer, bytes, has_left)
            }
            Err(error) => {
                error!("a session ends as it begins: {error}");
                hang_up.now(NO_SESSION);
                Ended::ByItself
            }
        };
        parting.begin();
        let _ = session.shutdown(Shutdown::Both);
        ended
    })
}

/// The key in a client's greeting, which is the same in all attempts of one run.
pub type RunKey = [u8; 16];

/// Reads until a client's greeting is complete: what was read, and the key in it; `None`: it is no greeting.
fn read_greeting(reader: &mut (dyn BufRead + Send)) -> (Vec<u8>, Option<RunKey>) {
    let mut first = Vec::new();
    loop {
        match decode_greeting(&first) {
            Ok(Some((greeting, _))) => return (first, Some(greeting.key)),
            Ok(None) => {}
            Err(_) => return (first, None),
        }
        let count = match reader.fill_buf() {
            Ok(piece) if !piece.is_empty() => {
                first.extend_from_slice(piece);
                piece.len()
            }
            _ => return (first, None),
        };
        reader.consume(count);
    }
}

/// What a session says goes to its client. Once the client `has_left` nobody waits longer than [`LEAVING_MAX`] for a word.
fn carry_back(
    mut session: &UnixStream,
    mut to_client: Box<dyn Write + Send>,
    bytes: &Bytes,
    has_left: impl Fn() -> bool,
) -> Ended {
    let _ = session.set_read_timeout(Some(TICK));
    let mut piece = vec![0; PIECE_BYTES];
    let mut alone: Option<Since> = None;
    let ended = loop {
        match session.read(&mut piece) {
            Ok(0) => break Ended::ByItself,
            Ok(count) => {
                if to_client.write_all(&piece[..count]).is_err() {
                    break Ended::ByItself;
                }
                bytes.to_client.fetch_add(count as u64, Ordering::Relaxed);
                alone = None;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if has_left() && alone.get_or_insert_with(Since::now).elapsed() >= LEAVING_MAX {
                    break Ended::Never;
                }
            }
            Err(_) => break Ended::ByItself,
        }
    };
    let _ = to_client.flush();
    ended
}

/// Waits for the end of a session that has nobody to speak with any more, and kills it when it has had its `grace`.
pub fn leave(child: &Mutex<Child>, grace: Duration) -> String {
    let waits = Since::now();
    let mut is_killed = false;
    loop {
        // Nobody waits with it held: whoever ends a session takes it, too.
        let ended = lock(child).try_wait();
        match ended {
            Ok(Some(status)) => return status.to_string(),
            Ok(None) => {}
            Err(error) => return error.to_string(),
        }
        if !is_killed && waits.elapsed() >= grace {
            is_killed = true;
            let _ = lock(child).kill();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A thread that may not come about: there are as many as the system allows, and others take of them.
pub fn thread(name: &str) -> Builder {
    Builder::new().name(name.into())
}

/// Takes it, also from one that crashed with it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

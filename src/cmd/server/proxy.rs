//! Forwards bytes between a client of the server and the process of its session, until one of them closes its stream.

use crate::env;
use crate::proto::decode_greeting;
use crate::transport::net::server::{AcceptedClient, Rejection};
use crate::work::clock::Since;
use parking_lot::Mutex;
use std::io::{self, BufRead, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Builder;
use std::time::Duration;
use tracing::error;

/// How long a session may run on after its client has left.
pub const LEAVING_MAX: Duration = Duration::from_secs(10);
/// How often a wait for the session checks whether the client has left.
const TICK: Duration = Duration::from_millis(200);
/// The size of the buffer.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes received from clients and sent to them.
#[derive(Debug, Default)]
pub struct Bytes {
    /// Bytes received.
    pub from_client: AtomicU64,
    /// Bytes sent.
    pub to_client: AtomicU64,
}

/// How forwarding from a session ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ProxyEnd {
    /// The session closed its stream, or its client no longer reads.
    ByItself,
    /// The session must be killed: it still runs although its client left long ago, or forwarding has crashed.
    Never,
}

/// Forwards bytes between a client and its session until one of them closes its stream.
///
/// `may_begin` is called with the key of the client's greeting before the session receives the first byte. If it
/// returns `false`, the session ends without having done anything. The session rejects a client that sends no valid
/// greeting.
pub fn carry(
    client: AcceptedClient,
    session: &UnixStream,
    bytes: &Bytes,
    may_begin: impl Fn(RunKey) -> bool + Sync,
) -> ProxyEnd {
    let AcceptedClient {
        mut reader,
        writer,
        parting,
        hang_up,
        ..
    } = client;
    let has_said_all = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let started = thread(env::CLIENT_THREAD).spawn_scoped(scope, || {
            let mut to_session = session;
            let (first, key) = read_greeting(&mut *reader);
            bytes
                .from_client
                .fetch_add(first.len() as u64, Ordering::Relaxed);
            if key.is_none_or(&may_begin) && to_session.write_all(&first).is_ok() {
                // Ends when the client closes its stream or is gone. The session then reads the end of its input and
                // exits.
                while let Ok(piece) = reader.fill_buf() {
                    let count = piece.len();
                    if count == 0 || to_session.write_all(piece).is_err() {
                        break;
                    }
                    bytes.from_client.fetch_add(count as u64, Ordering::Relaxed);
                    reader.consume(count);
                }
            }
            // Fails only if the session is gone.
            let _ = session.shutdown(Shutdown::Write);
            has_said_all.store(true, Ordering::Relaxed);
        });
        let ended = match started {
            Ok(_) => {
                let has_left = || has_said_all.load(Ordering::Relaxed) || hang_up.is_over();
                carry_back(session, writer, bytes, has_left)
            }
            Err(error) => {
                error!("cannot start a thread for a session: {error}");
                hang_up.now(&Rejection::NoSession.to_string());
                ProxyEnd::ByItself
            }
        };
        parting.begin();
        // Fails only if both ends are shut down already.
        let _ = session.shutdown(Shutdown::Both);
        ended
    })
}

/// The key in a client's greeting, which is the same in all attempts of one run.
pub type RunKey = [u8; 16];

/// Reads a client's greeting. Returns the bytes read and the key in the greeting; `None` if it is not valid.
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

/// Forwards output of the session to its client. Once the client `has_left`, waits at most [`LEAVING_MAX`] for more.
fn carry_back(
    mut session: &UnixStream,
    mut to_client: Box<dyn Write + Send>,
    bytes: &Bytes,
    has_left: impl Fn() -> bool,
) -> ProxyEnd {
    // Fails only for a timeout of zero.
    let _ = session.set_read_timeout(Some(TICK));
    let mut piece = vec![0; PIECE_BYTES];
    let mut alone: Option<Since> = None;
    let ended = loop {
        match session.read(&mut piece) {
            Ok(0) => break ProxyEnd::ByItself,
            Ok(count) => {
                if to_client.write_all(&piece[..count]).is_err() {
                    break ProxyEnd::ByItself;
                }
                bytes.to_client.fetch_add(count as u64, Ordering::Relaxed);
                alone = None;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if has_left() && alone.get_or_insert_with(Since::now).elapsed() >= LEAVING_MAX {
                    break ProxyEnd::Never;
                }
            }
            Err(_) => break ProxyEnd::ByItself,
        }
    };
    // A client that is gone needs no more data.
    let _ = to_client.flush();
    ended
}

/// Waits for a session to exit after its client has left, and kills it after `grace`. Returns its exit status as text.
pub fn leave(child: &Mutex<Child>, grace: Duration) -> String {
    let waits = Since::now();
    let mut is_killed = false;
    loop {
        // The lock is not held while waiting: other threads need it to end the session.
        let ended = child.lock().try_wait();
        match ended {
            Ok(Some(status)) => return status.to_string(),
            Ok(None) => {}
            Err(error) => return error.to_string(),
        }
        if !is_killed && waits.elapsed() >= grace {
            is_killed = true;
            // It fails only if the process has ended, which the next turn finds.
            let _ = child.lock().kill();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns a builder for a thread whose start may fail: the system limits their number.
pub fn thread(name: &str) -> Builder {
    Builder::new().name(name.into())
}

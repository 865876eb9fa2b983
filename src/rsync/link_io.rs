//! Reads and writes the link to an rsync, and reports its end in rsync's words.

use crate::error::{Error, Result};
use crate::session::connection::lost;
use crate::transport::{Link, LinkBytes};
use std::io::{self, Write};
use std::sync::atomic::Ordering;

/// The size of a read from the peer.
pub(super) const READ_BYTES: usize = 128 << 10;

/// The size of a read of an end that sends: requests are short, and a daemon may have many clients.
const READ_REQUESTS_BYTES: usize = 32 << 10;

/// Reads the link in pieces that suit the role of this end.
pub(super) fn buffered(link: Link, sends: bool) -> Link {
    let len_bytes = if sends {
        READ_REQUESTS_BYTES
    } else {
        READ_BYTES
    };
    Link {
        reader: Box::new(io::BufReader::with_capacity(len_bytes, link.reader)),
        ..link
    }
}

pub(super) fn send(link: &mut Link, bytes: &[u8]) -> Result<()> {
    link.writer
        .write_all(bytes)
        .and_then(|()| link.writer.flush())
        .map_err(|error| lost("writing", &error))
}

/// Returns the error in rsync's words if it reports a connection that was closed too early.
pub(super) fn in_words_of_rsync(error: Error, traffic: &LinkBytes, role: &'static str) -> Error {
    if !error.message.starts_with(ENDED) {
        return error;
    }
    let received_bytes = traffic.received.load(Ordering::Relaxed);
    let words = format!(
        "rsync: connection unexpectedly closed ({received_bytes} bytes received so far) [{role}]"
    );
    Error {
        message: words.into_bytes(),
        ..error.by(role)
    }
}

/// How the error of a connection that was closed too early begins.
const ENDED: &[u8] = b"sparsync: connection unexpectedly closed";

//! The server's link over standard input and output of this process.

use super::Link;
use super::link::{BlockingWriter, Moved, Patience, PatientReader};
use crate::fs::sys;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

/// Returns a link over standard input and output. Nothing else may use them from here on.
pub fn link(patience: Patience) -> io::Result<Link> {
    let from_peer = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let to_peer = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    sys::widen_pipe(from_peer.as_fd());
    sys::widen_pipe(to_peer.as_fd());
    let parting = patience.parting.clone();
    let reader = Box::new(PatientReader::new(from_peer, patience));
    Ok(Link {
        reader,
        writer: Box::new(BlockingWriter(to_peer)),
        parting,
        leave: None,
        moved: Moved::default(),
    })
}

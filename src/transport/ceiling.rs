//! How far windows may grow at this moment: a number that a server sets for all of its sessions.
//!
//! They are processes of their own, so it stands in a file without a name that all of them have open, and whoever would let
//! a window grow reads it. Nobody has to answer, and what a session that crashed was told is nobody's any more.

use crate::fs::sys;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// The bytes that a window may have at most; 0: nor is there room for anybody new. The default is none but the limits of each
/// window.
#[derive(Debug, Clone, Default)]
pub struct Ceiling(Option<Arc<OwnedFd>>);

impl Ceiling {
    /// One that can be set. Programs that this process starts have it open by its [`Ceiling::number`].
    pub fn shared() -> io::Result<Ceiling> {
        let ceiling = Ceiling(Some(Arc::new(sys::shared_file(c"sparsync ceiling")?)));
        ceiling.set(u64::MAX)?;
        Ok(ceiling)
    }

    /// That of the process that started this one.
    pub fn inherited(number: u32) -> io::Result<Ceiling> {
        let open = sys::open_dir_path(b"/proc/self/fd")?;
        let file = sys::open_read(open.as_fd(), number.to_string().as_bytes(), true, false)?;
        Ok(Ceiling(Some(Arc::new(file))))
    }

    /// By what number processes that are started have it open; `None`: there is nothing to be had.
    pub fn number(&self) -> Option<u32> {
        self.0.as_ref().and_then(|file| u32::try_from(file.as_raw_fd()).ok())
    }

    /// From now on windows grow up to so many bytes, and those that are longer shrink as they are used.
    pub fn set(&self, bytes: u64) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |file| sys::pwrite_all(file.as_fd(), &bytes.to_le_bytes(), 0))
    }

    /// Whether there is room for nobody new.
    pub fn is_shut(&self) -> bool {
        self.bytes() == 0
    }

    /// How far a window may grow, in bytes. Whoever asks keeps to limits of its own besides: this is any number.
    pub fn bytes(&self) -> u64 {
        let mut bytes = [0; 8];
        match &self.0 {
            Some(file) if sys::pread(file.as_fd(), &mut bytes, 0).is_ok() => u64::from_le_bytes(bytes),
            _ => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_seen_by_whoever_has_it_open() {
        let none = Ceiling::default();
        none.set(7).unwrap();
        assert_eq!((none.bytes(), none.number()), (u64::MAX, None));
        let server = Ceiling::shared().unwrap();
        let session = Ceiling::inherited(server.number().unwrap()).unwrap();
        assert_eq!(session.bytes(), u64::MAX);
        server.set(9 << 20).unwrap();
        assert_eq!((server.bytes(), session.bytes()), (9 << 20, 9 << 20));
        assert!(session.set(1).is_err(), "a session only reads it");
    }
}

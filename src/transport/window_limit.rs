//! The current limit for windows, which a server sets for all of its sessions.
//!
//! Sessions are processes of their own. The limit is a number in an anonymous file that all of them have open, and a
//! session reads it before it lets a window grow. So no session has to answer, and a crashed session leaves nothing
//! behind.

use crate::fs::sys;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// The maximum size of a window in bytes; 0 means that the server also admits no new clients. The default has no limit
/// besides those of each window.
#[derive(Debug, Clone, Default)]
pub struct Ceiling(Option<Arc<OwnedFd>>);

impl Ceiling {
    /// Creates a limit that can be set. Child processes inherit it as descriptor [`Ceiling::number`].
    pub fn shared() -> io::Result<Ceiling> {
        let ceiling = Ceiling(Some(Arc::new(sys::shared_file(c"sparsync ceiling")?)));
        ceiling.set(u64::MAX)?;
        Ok(ceiling)
    }

    /// Opens the limit of the parent process.
    pub fn inherited(number: u32) -> io::Result<Ceiling> {
        let open = sys::open_dir_path(b"/proc/self/fd")?;
        let file = sys::open_read(open.as_fd(), number.to_string().as_bytes(), true, false)?;
        Ok(Ceiling(Some(Arc::new(file))))
    }

    /// Returns the descriptor number that child processes inherit; `None` without a shared limit.
    pub fn number(&self) -> Option<u32> {
        self.0
            .as_ref()
            .and_then(|file| u32::try_from(file.as_raw_fd()).ok())
    }

    /// Sets the limit in bytes. Windows grow up to it; larger ones shrink as they are used.
    pub fn set(&self, bytes: u64) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |file| {
            sys::pwrite_all(file.as_fd(), &bytes.to_le_bytes(), 0)
        })
    }

    /// Returns whether the server admits no new clients.
    pub fn is_shut(&self) -> bool {
        self.bytes() == 0
    }

    /// Returns the limit in bytes. It can be any number, so the caller also applies its own limits.
    pub fn bytes(&self) -> u64 {
        let mut bytes = [0; 8];
        match &self.0 {
            Some(file) if sys::pread(file.as_fd(), &mut bytes, 0).is_ok() => {
                u64::from_le_bytes(bytes)
            }
            _ => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_limit_is_visible_to_all_processes() {
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

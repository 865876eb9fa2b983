//! Limits of rate and time. How a peer is reached joins them with the remote routes.

use super::output::StopAt;

/// Limits of rate and time.
#[derive(Debug, Clone, Default)]
pub struct Connect {
    /// `--bwlimit`, in bytes a second; `None`: unlimited.
    pub bwlimit_bytes_per_sec: Option<u64>,
    /// `--stop-after`, `--stop-at`
    pub stop: Option<StopAt>,
}

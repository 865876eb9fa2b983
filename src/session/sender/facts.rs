//! Facts about the peer that has the destination. A sender asks for them, never for the protocol of the peer.

/// Facts about the peer that has the destination. Each has a single meaning; a session settles them once.
#[derive(Debug, Clone, Copy)]
pub struct DestFacts {
    /// It takes the content of files that it has not requested: a sparsync, if the options permit that.
    pub takes_unrequested: bool,
    /// It gets the problems and notes of this end with listings and files, and reports them: a sparsync. An rsync does not
    /// learn of them, so this end reports them.
    pub takes_problems: bool,
    /// It shows how far the run is, and wants to know how long the list is before it has all of it: a sparsync.
    pub takes_totals: bool,
    /// Its list has the transfer's root even if that gets no attributes: an rsync.
    pub lists_bare_top: bool,
    /// It rejects longer paths: an rsync.
    pub path_max_bytes: Option<usize>,
    /// Under `--append-verify`, the digest of a file covers the beginning that both ends have: an rsync.
    pub digests_prefix: bool,
    /// A file that could not be read to its end counts as transferred: by an rsync.
    pub counts_parts: bool,
    /// The most content in one message.
    pub piece_max_bytes: usize,
    /// It may be one of a hundred that a daemon serves, so one thread scans for it besides the one that sends: an rsync.
    pub is_one_of_many: bool,
}

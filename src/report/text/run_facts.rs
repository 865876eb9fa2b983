//! What the reporter knows about the run besides the options for its output.

use crate::options::Checksum;

/// How the file list is built, as the first line states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Banner {
    /// No such line: without `-r`, `-d` and `--files-from`.
    None,
    /// `-r`, unless an option needs the whole list first.
    Incremental,
    /// The whole list first: `--no-inc-recursive`, `--delete-before`, `--delete-after`, `--delay-updates`,
    /// `-m`; `-d` and `--files-from` without `-r`.
    Whole,
}

/// What the reporter needs to know about the run besides [`Output`](crate::options::Output).
#[derive(Debug, Clone)]
pub struct RunFacts {
    /// `-n`
    pub dry_run: bool,
    /// `--only-write-batch`
    pub leaves_dest: bool,
    /// `--list-only`: entries are listed as by `ls`.
    pub list_only: bool,
    /// The version of rsync's protocol, if it limits what is known.
    pub protocol: Option<u8>,
    /// `-U`: lists have a column for the access time.
    pub atimes: bool,
    /// See [`Banner`].
    pub banner: Banner,
    /// The process id for `%p` and the log file.
    pub pid: u32,
    /// Whether the locale's characters are UTF-8.
    pub utf8_locale: bool,
    /// Whether stdout is a terminal; then it is line-buffered unless `--outbuf` is given.
    pub stdout_is_tty: bool,
    /// Whether this process is the sender (also in a local copy): `%o` is `send`.
    pub log_as_sender: bool,
    /// `-o`; without it `%U` is 0.
    pub keeps_owner: bool,
    /// `-g`; without it `%G` is `DEFAULT`.
    pub keeps_group: bool,
    /// `-H`
    pub keeps_hard_links: bool,
    /// The algorithm of [`Item::digest`](crate::report::event::Item::digest), which also determines the width of an
    /// empty `%C`.
    pub sum: Checksum,
    /// Absolute operands under `-R`, without the first slash, if this process is the sender. Lines about their entries
    /// show that slash.
    pub rooted: Vec<Vec<u8>>,
    /// Only the log of a server is written. It has no entries of a dry run, and those without content only if its format
    /// has `%i`.
    pub at_server: bool,
    /// Whether the program has its own name: called as rsync, it prints only what rsync prints.
    pub is_named_ours: bool,
    /// `--detect-renamed`
    pub detects_renamed: bool,
    /// `--verify`, unless nothing is written
    pub verifies: bool,
    /// `sparsync plan`: the actions of the run are recorded.
    pub records_plan: bool,
}

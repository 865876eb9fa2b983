//! Whole files or deltas, and the alternate trees that may hold what is missing.

/// Which kind of alternate destination is in use; one kind in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AltKind {
    /// `--compare-dest`: an equal file there means nothing needs creating.
    Compare,
    /// `--copy-dest`: it is copied.
    Copy,
    /// `--link-dest`: it is hard-linked.
    Link,
}

/// The alternate destinations of a run, in the order they are searched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AltDest {
    /// What a hit means.
    pub kind: AltKind,
    /// Directories, absolute or relative to the destination; 1 to 20.
    pub dirs: Vec<Vec<u8>>,
}

/// Whole files or deltas, and alternate bases.
#[derive(Debug, Clone, Default)]
pub struct Delta {
    /// `-W` (`Some(true)`), `--no-whole-file` (`Some(false)`); `None`: as the route decides.
    pub whole_file: Option<bool>,
    /// `--compare-dest`, `--copy-dest`, `--link-dest`
    pub alt_dest: Option<AltDest>,
}

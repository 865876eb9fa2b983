//! Whole files or deltas, the alternate trees that may hold what is missing, compression.

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

/// How data is compressed on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// `--no-compress`, `--compress-choice=none`: not at all.
    No,
    /// `-z`: with what suits best.
    Auto,
    /// `--compress-choice=zstd`
    Zstd,
    /// `--compress-choice=lz4`
    Lz4,
    /// `--compress-choice=zlibx`, `--new-compress`, `-zz`
    Zlibx,
    /// `--compress-choice=zlib`, `--old-compress`
    Zlib,
}

/// What was said about compression.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Compress {
    /// `None`: nothing was said, and the route decides.
    pub choice: Option<Compression>,
    /// `--compress-level`
    pub level: Option<i32>,
    /// `--skip-compress`: suffixes without their dots; `None`: the usual ones.
    pub skip: Option<Vec<Vec<u8>>>,
}

/// Whole files or deltas, alternate bases, compression.
#[derive(Debug, Clone, Default)]
pub struct Delta {
    /// `-W` (`Some(true)`), `--no-whole-file` (`Some(false)`); `None`: as the route decides.
    pub whole_file: Option<bool>,
    /// `-B`; 0: as the file's length suggests.
    pub block_size_bytes: u64,
    /// `-y`: 1 looks for a similar name in the directory, 2 in those of `alt_dest`, too.
    pub fuzzy: u8,
    /// `--compare-dest`, `--copy-dest`, `--link-dest`
    pub alt_dest: Option<AltDest>,
    /// `-z` and what goes with it.
    pub compress: Compress,
}

//! Whole files or deltas, alternate trees that may already have a file, compression.

use super::algorithm::{Algorithm as _, list_of, no_common};

/// The kind of the alternate destinations; one kind per run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AltKind {
    /// `--compare-dest`: a file that is identical there is not created.
    Compare,
    /// `--copy-dest`, `--clone-dest`: an identical file is copied from there.
    Copy,
    /// `--link-dest`: an identical file is hard-linked.
    Link,
}

impl AltKind {
    /// Returns rsync's option for this kind.
    pub fn option(self) -> &'static str {
        match self {
            AltKind::Compare => "--compare-dest",
            AltKind::Copy => "--copy-dest",
            AltKind::Link => "--link-dest",
        }
    }
}

/// The alternate destinations of a run, in the order they are searched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AltDest {
    /// What to do with a match.
    pub kind: AltKind,
    /// `--clone-dest`: copies share blocks with what they are copied from, where the file system can do that.
    pub by_clone: bool,
    /// Directories, absolute or relative to the destination; 1 to 20.
    pub dirs: Vec<Vec<u8>>,
    /// Whether messages show relative ones as given. The path of a daemon's module must not be disclosed to clients.
    pub shown_as_given: bool,
}

impl AltDest {
    /// Returns the option that was given.
    pub fn option(&self) -> &'static str {
        AltDest::option_of(self.kind, self.by_clone)
    }

    /// Returns the option for a kind, or the one for clones.
    pub fn option_of(kind: AltKind, by_clone: bool) -> &'static str {
        if by_clone {
            return "--clone-dest";
        }
        kind.option()
    }
}

/// `--detect-renamed`: which files of the destination count as equal to a new one, so that it takes their content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DetectRenamed {
    /// Without a value: those of the same length and digest.
    Content,
    /// `moved`: those of the same length, modification time and name, in another directory.
    Moved,
    /// `quick`: those of the same length and modification time.
    Quick,
}

/// How data is compressed for the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// `--no-compress`, `--compress-choice=none`: not at all.
    No,
    /// `-z`: the method that suits the route best.
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

impl Compression {
    /// The methods that compress, in rsync's order of preference.
    pub const METHODS: [Compression; 4] = [
        Compression::Zstd,
        Compression::Lz4,
        Compression::Zlibx,
        Compression::Zlib,
    ];
}

/// The compression options of the command line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Compress {
    /// `None`: not given; the route decides.
    pub choice: Option<Compression>,
    /// `--compress-level`
    pub level: Option<i32>,
    /// The methods that this side chooses from under `-z`, best first (`RSYNC_COMPRESS_LIST`); `None`: all methods.
    pub list: Option<Vec<Compression>>,
    /// `--skip-compress`: suffixes without their dots; `None`: not given.
    pub skip: Option<Vec<Vec<u8>>>,
}

impl Compress {
    /// Negotiates with a peer that supports certain methods: returns the explicit choice, or the first method that the
    /// peer supports. Fails with rsync's message if there is none.
    pub fn agree(
        &self,
        takes: &dyn Fn(Compression) -> bool,
    ) -> Result<Option<Compression>, String> {
        match self.choice {
            Some(Compression::Auto) => {
                let ours = self.list.as_deref().unwrap_or(&Compression::METHODS);
                let found = ours.iter().copied().find(|&method| takes(method));
                found.map(Some).ok_or_else(|| {
                    let theirs = Compression::METHODS
                        .into_iter()
                        .filter(|&method| takes(method));
                    let names = ours.iter().map(|method| method.name());
                    no_common(
                        "compress",
                        &list_of(theirs.map(Compression::name)),
                        &list_of(names),
                    )
                })
            }
            Some(method) if method != Compression::No && !takes(method) => Err(format!(
                "Your --compress-choice value ({}) was refused by the server.",
                method.name()
            )),
            settled => Ok(settled),
        }
    }
}

/// Whole files or deltas, alternate bases, compression.
#[derive(Debug, Clone, Default)]
pub struct Delta {
    /// `-W` (`Some(true)`), `--no-whole-file` (`Some(false)`); `None`: the route decides.
    pub whole_file: Option<bool>,
    /// `-B`; 0: chosen from the file's length.
    pub block_size_bytes: u64,
    /// `-y`: 1 searches the directory for a similar name, 2 also those of `alt_dest`.
    pub fuzzy: u8,
    /// `--compare-dest`, `--copy-dest`, `--clone-dest`, `--link-dest`
    pub alt_dest: Option<AltDest>,
    /// `-z` and related options.
    pub compress: Compress,
    /// `--detect-renamed`
    pub detect_renamed: Option<DetectRenamed>,
}

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

impl Compression {
    /// Its name as in `--compress-choice`.
    pub fn name(self) -> &'static str {
        match self {
            Compression::No => "none",
            Compression::Auto => "auto",
            Compression::Zstd => "zstd",
            Compression::Lz4 => "lz4",
            Compression::Zlibx => "zlibx",
            Compression::Zlib => "zlib",
        }
    }
}

/// What was said about compression.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Compress {
    /// `None`: nothing was said, and the route decides.
    pub choice: Option<Compression>,
    /// `--compress-level`
    pub level: Option<i32>,
    /// What this end chooses from under `-z`, the best first (`RSYNC_COMPRESS_LIST`); `None`: all there are.
    pub list: Option<Vec<Compression>>,
    /// `--skip-compress`: suffixes without their dots; `None`: nothing was said.
    pub skip: Option<Vec<Vec<u8>>>,
}

impl Compress {
    /// What is settled with a far end that takes certain methods: the choice by name, else the first that it takes.
    /// `Err`: there is none, in rsync's words.
    pub fn agree(&self, takes: &dyn Fn(Compression) -> bool) -> Result<Option<Compression>, String> {
        // rsync's order of preference.
        const METHODS: [Compression; 4] = [Compression::Zstd, Compression::Lz4, Compression::Zlibx, Compression::Zlib];
        let names = |list: &mut dyn Iterator<Item = Compression>| {
            let names: Vec<_> = list.map(Compression::name).collect();
            if names.is_empty() { "INVALID".to_owned() } else { names.join(" ") }
        };
        match self.choice {
            Some(Compression::Auto) => {
                let ours = self.list.as_deref().unwrap_or(&METHODS);
                let found = ours.iter().copied().find(|&method| takes(method));
                found.map(Some).ok_or_else(|| {
                    let there = names(&mut METHODS.into_iter().filter(|&method| takes(method)));
                    let here = names(&mut ours.iter().copied());
                    format!("Failed to negotiate a compress choice.\nServer list: {there}\nClient list: {here}")
                })
            }
            Some(method) if method != Compression::No && !takes(method) => {
                Err(format!("Your --compress-choice value ({}) was refused by the server.", method.name()))
            }
            settled => Ok(settled),
        }
    }
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

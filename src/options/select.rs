//! Which entries take part in a run.

/// How far the tree is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recurse {
    /// Neither `-r` nor `-d`: directory arguments are skipped with a notice.
    #[default]
    No,
    /// `-d`: directories are listed without their contents, except arguments that end in `/` or `.`.
    Dirs,
    /// `-r`: everything below the arguments.
    Full,
}

/// The source of the names for `--files-from`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilesFrom {
    /// `-`: standard input.
    Stdin,
    /// A file on this machine.
    File(Vec<u8>),
    /// `:FILE`, `host:FILE`: a file on the machine of the remote operands.
    Far(Vec<u8>),
    /// The same in a push: the server sends the names.
    Sent(Vec<u8>),
}

/// One filter argument, in command-line order. `cmd::copy` reads the files that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleArg {
    /// `--filter=RULE`, and the rules that `-F` stands for.
    Filter(Vec<u8>),
    /// `--exclude=PATTERN`
    Exclude(Vec<u8>),
    /// `--include=PATTERN`
    Include(Vec<u8>),
    /// `--exclude-from=FILE` (`-` is stdin)
    ExcludeFrom(Vec<u8>),
    /// `--include-from=FILE`
    IncludeFrom(Vec<u8>),
    /// A rule that an option implies, appended at the end: `-p DIR` for a relative `--partial-dir`, `P *~` for
    /// `--backup` with `--delete`. In the syntax of `--filter`.
    Implied(Vec<u8>),
}

/// What to do about a source argument that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingArgs {
    /// An error, exit 23.
    #[default]
    Fail,
    /// `--ignore-missing-args`
    Ignore,
    /// `--delete-missing-args`: the entry of the same name at the receiver is deleted.
    Delete,
}

/// Which entries of the source, directories aside, are removed once they have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RemoveSource {
    /// None.
    #[default]
    No,
    /// `--remove-sent-files`: files that were sent, and symlinks that were created.
    Sent,
    /// `--remove-source-files`: everything that the destination now has.
    All,
}

/// Which entries take part.
#[derive(Debug, Clone, Default)]
pub struct Select {
    /// `-r`, `-d`
    pub recurse: Recurse,
    /// `-R`, or implied by `--files-from`.
    pub relative: bool,
    /// `--no-implied-dirs`: leading path components under `-R` keep the receiver's attributes.
    pub no_implied_dirs: bool,
    /// `-x` given once (1) or more often (2): mount points are empty, or excluded.
    pub one_file_system: u8,
    /// Leave out what this process may not read, as a daemon with `ignore nonreadable` does.
    pub ignore_unreadable: bool,
    /// `-L`
    pub copy_links: bool,
    /// `--copy-unsafe-links`
    pub copy_unsafe_links: bool,
    /// `-k`
    pub copy_dirlinks: bool,
    /// `--max-size`, in bytes.
    pub max_size_bytes: Option<u64>,
    /// `--min-size`, in bytes.
    pub min_size_bytes: Option<u64>,
    /// `-m`
    pub prune_empty_dirs: bool,
    /// `--files-from`
    pub files_from: Option<FilesFrom>,
    /// `-0`: lists and merge files are NUL-separated.
    pub from0: bool,
    /// `--ignore-missing-args`, `--delete-missing-args`
    pub missing_args: MissingArgs,
    /// Filter arguments in order.
    pub rules: Vec<RuleArg>,
    /// `-C`: the CVS list is appended after `rules`.
    pub cvs_exclude: bool,
    /// `--list-only`, or one source and no destination.
    pub list_only: bool,
    /// `--remove-source-files`, `--remove-sent-files`
    pub remove_source: RemoveSource,
    /// `--copy-devices`: the content of devices is read as if they were files.
    pub copy_devices: bool,
    /// `--open-noatime`
    pub open_noatime: bool,
    /// `--no-inc-recursive`, or an option that needs the whole list first. It changes messages ("building file list ...
    /// done") and counts, and a read error stops all deletions, not only later ones.
    pub no_inc_recursive: bool,
}

impl Select {
    /// Returns whether the list of a source is empty only if the source is: no option leaves out entries.
    pub fn lists_all(&self) -> bool {
        let leaves_out_by_rules = !self.rules.is_empty() || self.cvs_exclude;
        let leaves_out_by_size = self.max_size_bytes.is_some() || self.min_size_bytes.is_some();
        self.files_from.is_none()
            && !leaves_out_by_rules
            && !leaves_out_by_size
            && !self.prune_empty_dirs
    }

    /// Returns whether source files are opened through symlinks, because their targets may take part.
    pub fn opens_link_targets(&self) -> bool {
        self.copy_links || self.copy_unsafe_links
    }
}

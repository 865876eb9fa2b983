//! The command line as given: the last value of each option, before options affect each other.
//!
//! The `set` functions of the table write it; only `resolve` reads it.

use super::value::words::{DebugLevels, InfoLevels};
use crate::options::connect::TransportChoice;
use crate::options::{
    AltKind, CacheChoice, Check, Connect, DeleteGuard, DetectRenamed, Guard, Output, Place,
    Preserve, Select,
};
use crate::path::RelPath;

/// How `-r` was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recursion {
    /// Not given, or revoked.
    #[default]
    No,
    /// By `-a`; `--files-from` revokes it.
    ByArchive,
    /// `-r`
    Yes,
}

/// How `-d` was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dirs {
    /// Not given.
    #[default]
    Unsaid,
    /// `--no-dirs`
    No,
    /// `-d`
    Yes,
    /// `--old-dirs`
    Old,
}

/// Which `--delete-WHEN` options were given. More than one of them is an error.
#[derive(Debug, Clone, Copy, Default)]
pub struct GivenDelete {
    /// `--delete`, `--delete-excluded`, or any of the others.
    pub any: bool,
    /// `--delete-before`
    pub before: bool,
    /// `--del`, `--delete-during`
    pub during: bool,
    /// `--delete-delay`, unless `--delete-during` came later.
    pub delay: bool,
    /// `--delete-after`
    pub after: bool,
    /// `--delete-excluded`
    pub excluded: bool,
}

/// A user or group map and the option that set it. A second option that sets it is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenMap {
    /// Whether `--chown` set it.
    pub by_chown: bool,
    /// The text of the map.
    pub text: Vec<u8>,
}

/// The man pages of section 1: that of copies, and those of the subcommands.
pub const MAN_PAGES: [&str; 11] = [
    "sparsync", "apply", "bench", "cache", "check", "doctor", "enroll", "explain", "hash", "plan",
    "server",
];

/// A shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionShell {
    /// bash, version 4 or later.
    Bash,
    /// zsh
    Zsh,
    /// fish, version 3 or later.
    Fish,
}

/// A text to print instead of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrintRequest {
    /// `--help`
    Help,
    /// `--info=help`
    InfoHelp,
    /// `--debug=help`
    DebugHelp,
    /// `--man`: one of [`MAN_PAGES`].
    Man(&'static str),
    /// `--completions`
    Completions(CompletionShell),
}

/// The values of the options that only `check` has.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)]
pub struct CheckArgs {
    pub manifest: Option<Vec<u8>>,
    pub algorithm: Option<Vec<u8>>,
    pub list: Option<Vec<u8>>,
    pub one_way: bool,
    pub quick: bool,
}

/// The values of the options that only `plan` and `apply` have.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)]
pub struct PlanArgs {
    pub output: Option<Vec<u8>>,
    pub show: Option<Vec<u8>>,
    pub without_deletions: bool,
    pub root_changed: bool,
}

/// The command line as given.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)]
pub struct Args {
    /// Set by an option that prints a text. The rest of the command line is not read.
    pub print: Option<PrintRequest>,
    /// How often `--version` was given.
    pub version: u8,
    /// `--json`: the output of a run or of `--version` is JSON.
    pub json: bool,
    /// An option of a server or a daemon was given.
    pub is_server_side: bool,
    /// `--delete-guard`; `None`: not given.
    pub delete_guard: Option<DeleteGuard>,
    /// The other checks of the client, as given.
    pub guard: Guard,
    /// An option that only sparsync has was given incorrectly, so sparsync must report the error and not rsync.
    pub own_option_is_invalid: bool,
    /// The options that only `check` has.
    pub check_command: CheckArgs,
    /// The options that only `plan` and `apply` have.
    pub plan_command: PlanArgs,
    /// The client carries out a stored plan.
    pub replay_plan: bool,
    /// The paths that the client wants to have explained.
    pub explained: Vec<RelPath>,
    /// All arguments after the first operand are operands: POSIXLY_CORRECT is set.
    pub is_posix: bool,
    pub server: bool,
    pub sender: bool,
    pub daemon: bool,
    /// The umask of the process, which limits `--chmod=+w`.
    pub umask: u32,
    /// Seconds since 1970, for `--stop-at`.
    pub now_unix_secs: i64,

    // The policies hold the options that `resolve` takes over as given, or changes only if others require it. Their
    // other fields have their defaults.
    pub select: Select,
    pub check: Check,
    pub preserve: Preserve,
    pub place: Place,
    pub output: Output,
    pub connect: Connect,

    pub recursion: Recursion,
    pub dirs: Dirs,
    pub relative: Option<bool>,
    pub inc_recursive: Option<bool>,
    pub files_from: Option<Vec<u8>>,
    pub ignore_missing_args: bool,
    pub delete_missing_args: bool,
    /// How often `-F` was given.
    pub per_dir_filter: u32,
    pub remove_source_files: Option<&'static str>,
    pub qsort: bool,

    pub checksum: bool,
    pub size_only: bool,
    pub ignore_times: bool,
    /// `-@`; `None` means 0.
    pub modify_window_secs: Option<i32>,
    pub checksum_seed: Option<i32>,
    /// `--checksum-choice`, unchecked.
    pub checksum_choice: Option<Vec<u8>>,

    pub atimes: u8,
    pub usermap: Option<GivenMap>,
    pub groupmap: Option<GivenMap>,
    pub insecure_links: bool,
    pub copy_as: Option<Vec<u8>>,
    pub confine_root: Option<Vec<u8>>,
    pub checksum_cache: Option<CacheChoice>,
    /// `--checksum-cache-force`
    pub checksum_cache_force: bool,

    pub delete: GivenDelete,
    pub max_delete: Option<i32>,
    pub force: bool,
    pub ignore_errors: bool,

    pub append: u8,
    pub partial_dir: Option<Vec<u8>>,
    pub backup: bool,
    pub backup_dir: Option<Vec<u8>>,
    pub suffix: Option<Vec<u8>>,

    pub whole_file: Option<bool>,
    pub fuzzy: u8,
    pub detect_renamed: Option<DetectRenamed>,
    pub block_size: u64,
    /// How often `-z` was given.
    pub compress: u8,
    /// `--no-compress`, unless a later option set compression.
    pub no_compress: bool,
    /// `--compress-choice`, unchecked.
    pub compress_choice: Option<Vec<u8>>,
    pub compress_level: Option<i32>,
    pub skip_compress: Option<Vec<u8>>,
    pub alt_kind: Option<AltKind>,
    /// The directories are those of `--clone-dest`.
    pub alt_by_clone: bool,
    pub alt_dirs: Vec<Vec<u8>>,
    /// The last batch file that an option names.
    pub batch: Vec<u8>,
    pub write_batch: bool,
    pub only_write_batch: bool,
    pub read_batch: bool,

    pub verbose: u8,
    pub quiet: u8,
    pub info: InfoLevels,
    pub debug: DebugLevels,
    pub stats: bool,
    pub itemize: u8,
    pub out_format: Option<Vec<u8>>,
    pub log_file: Option<Vec<u8>>,
    pub log_file_format: Option<Vec<u8>>,
    /// How often `-h` was given; counted from -1 after `--no-h`.
    pub human: i8,
    pub dry_run: bool,

    /// `-e`; on a server's command line the text after the letter `e`, see `server`.
    pub rsh: Option<Vec<u8>>,
    pub transport: Option<TransportChoice>,
    pub port: Option<i32>,
    pub timeout: Option<i32>,
    pub contimeout: Option<i32>,
    /// `--max-alloc`, unchecked.
    pub max_alloc: Option<Vec<u8>>,
    pub secluded_args: Option<bool>,
    pub old_args: Option<u8>,
    pub protocol: Option<i32>,
    pub iconv: Option<Vec<u8>>,
    pub remote_options: Vec<Vec<u8>>,
}

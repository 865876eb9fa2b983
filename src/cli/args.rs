//! The command line as given: the last value of each option, before options affect each other.
//!
//! The `set` functions of the table write it; only `resolve` reads it.

use super::value::words::{DebugLevels, InfoLevels};
use crate::options::connect::{DaemonOptions, Family, Transport};
use crate::options::{AltKind, ModeChange, Outbuf, RuleArg, StderrMode};

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

/// A man page of section 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManPage {
    /// sparsync(1): copies.
    Sparsync,
    /// sparsync-enroll(1)
    Enroll,
    /// sparsync-server(1)
    Server,
    /// sparsync-bench(1)
    Bench,
    /// sparsync-doctor(1)
    Doctor,
}

/// A shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shell {
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
    /// `--man`
    Man(ManPage),
    /// `--completions`
    Completions(Shell),
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
    /// `--ui`: a live display on the terminal.
    pub ui: bool,
    /// An option of a server or a daemon was given.
    pub is_server_side: bool,
    /// An option that only sparsync has was given incorrectly, so sparsync must report the error and not rsync.
    pub own_option_is_invalid: bool,
    /// All arguments after the first operand are operands: POSIXLY_CORRECT is set.
    pub is_posix: bool,
    pub server: bool,
    pub sender: bool,
    pub daemon: bool,
    /// The umask of the process, which limits `--chmod=+w`.
    pub umask: u32,
    /// Seconds since 1970, for `--stop-at`.
    pub now_unix_secs: i64,

    pub recursion: Recursion,
    pub dirs: Dirs,
    pub relative: Option<bool>,
    pub no_implied_dirs: bool,
    pub inc_recursive: Option<bool>,
    pub one_file_system: u8,
    pub copy_links: bool,
    pub copy_unsafe_links: bool,
    pub copy_dirlinks: bool,
    pub max_size: Option<u64>,
    pub min_size: Option<u64>,
    pub prune_empty_dirs: bool,
    pub files_from: Option<Vec<u8>>,
    pub from0: bool,
    pub ignore_missing_args: bool,
    pub delete_missing_args: bool,
    pub rules: Vec<RuleArg>,
    /// How often `-F` was given.
    pub per_dir_filter: u32,
    pub cvs_exclude: bool,
    pub list_only: bool,
    pub remove_source_files: Option<&'static str>,
    pub copy_devices: bool,
    pub open_noatime: bool,
    pub qsort: bool,

    pub checksum: bool,
    pub size_only: bool,
    pub ignore_times: bool,
    /// `-@`; `None` means 0.
    pub modify_window_secs: Option<i32>,
    pub update: bool,
    pub existing: bool,
    pub ignore_existing: bool,
    pub checksum_seed: Option<i32>,
    /// `--checksum-choice`, unchecked.
    pub checksum_choice: Option<Vec<u8>>,

    pub links: bool,
    pub perms: bool,
    pub executability: bool,
    pub owner: bool,
    pub group: bool,
    pub times: bool,
    pub atimes: u8,
    pub omit_dir_times: bool,
    pub omit_link_times: bool,
    pub devices: bool,
    pub specials: bool,
    pub drop_devices: bool,
    pub write_devices: bool,
    pub hard_links: bool,
    pub acls: bool,
    pub xattrs: u8,
    pub chmod: Vec<ModeChange>,
    pub numeric_ids: bool,
    pub usermap: Option<GivenMap>,
    pub groupmap: Option<GivenMap>,
    pub super_user: Option<bool>,
    pub fake_super: bool,
    pub safe_links: bool,
    pub munge_links: bool,
    pub keep_dirlinks: bool,
    pub insecure_links: bool,
    pub copy_as: Option<Vec<u8>>,
    pub confine_root: Option<Vec<u8>>,

    pub delete: GivenDelete,
    pub max_delete: Option<i32>,
    pub force: bool,
    pub ignore_errors: bool,

    pub inplace: bool,
    pub append: u8,
    pub partial: bool,
    pub partial_dir: Option<Vec<u8>>,
    pub delay_updates: bool,
    pub temp_dir: Option<Vec<u8>>,
    pub backup: bool,
    pub backup_dir: Option<Vec<u8>>,
    pub suffix: Option<Vec<u8>>,
    pub sparse: bool,
    pub preallocate: bool,
    pub fsync: bool,
    pub mkpath: bool,

    pub whole_file: Option<bool>,
    pub fuzzy: u8,
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
    pub progress: bool,
    pub itemize: u8,
    pub out_format: Option<Vec<u8>>,
    pub log_file: Option<Vec<u8>>,
    pub log_file_format: Option<Vec<u8>>,
    pub metrics_file: Option<Vec<u8>>,
    /// How often `-h` was given; counted from -1 after `--no-h`.
    pub human: i8,
    pub eight_bit: bool,
    pub outbuf: Option<Outbuf>,
    pub stderr: StderrMode,
    pub dry_run: bool,

    pub bwlimit: Option<u64>,
    pub stop: Option<crate::options::output::StopAt>,
    /// `-e`; on a server's command line the text after the letter `e`, see `server`.
    pub rsh: Option<Vec<u8>>,
    pub rsync_path: Option<Vec<u8>>,
    pub transport: Option<Transport>,
    pub family: Option<Family>,
    pub address: Option<Vec<u8>>,
    pub port: Option<i32>,
    pub trust_sender: bool,
    pub timeout: Option<i32>,
    pub contimeout: Option<i32>,
    /// `--max-alloc`, unchecked.
    pub max_alloc: Option<Vec<u8>>,
    pub daemon_options: DaemonOptions,
    pub secluded_args: Option<bool>,
    pub old_args: Option<u8>,
    pub protocol: Option<i32>,
    pub iconv: Option<Vec<u8>>,
    pub remote_options: Vec<Vec<u8>>,
}

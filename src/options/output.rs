//! What is printed, and in which form.

use super::findings::PrintedFindings;
/// When a run stops by itself with exit code 30.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopAt {
    /// `--stop-after`, in minutes from the start.
    AfterMinutes(u64),
    /// `--stop-at`, as seconds since 1970.
    AtUnixSecs(i64),
}

/// `--stderr`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StderrMode {
    /// Errors go to stderr.
    #[default]
    Errors,
    /// Everything goes to stderr.
    All,
    /// The same as `Errors`: there is no second process on this route.
    Client,
}

/// When `created directory …` is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CreatedDir {
    /// Names are not printed.
    #[default]
    Never,
    /// Only by a receiver at the client: `--progress` implies names, but rsync does not send it to the server.
    AtClient,
    /// `-v`, `-i`, `--info=name`.
    Always,
}

/// `--outbuf`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outbuf {
    /// `N`
    None,
    /// `L`
    Line,
    /// `B`
    Block,
}

/// Levels of `--info`, 0 is off. `-v` sets the same levels as in rsync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Info {
    pub backup: u8,
    pub copy: u8,
    pub del: u8,
    pub flist: u8,
    pub misc: u8,
    pub mount: u8,
    pub name: u8,
    pub nonreg: u8,
    pub progress: u8,
    pub remove: u8,
    pub rename: u8,
    pub skip: u8,
    pub stats: u8,
    pub symsafe: u8,
}

/// Levels of `--debug` for the words that print lines; other words are accepted and print nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Debug {
    pub cmd: u8,
    pub connect: u8,
    pub del: u8,
    pub deltasum: u8,
    pub dup: u8,
    pub filter: u8,
    pub flist: u8,
    pub fuzzy: u8,
    pub genr: u8,
    pub hlink: u8,
    pub iconv: u8,
    pub nstr: u8,
    pub own: u8,
    pub recv: u8,
    pub send: u8,
    pub time: u8,
}

macro_rules! limited {
    ($($levels:ident: $($field:ident)*;)*) => {$(
        impl $levels {
            /// Lowers each level to the one in `most`.
            pub fn limit(&mut self, most: &$levels) {
                let $levels { $($field),* } = self;
                $(*$field = (*$field).min(most.$field);)*
            }
        }
    )*};
}

limited! {
    Info: backup copy del flist misc mount name nonreg progress remove rename skip stats symsafe;
    Debug: cmd connect del deltasum dup filter flist fuzzy genr hlink iconv nstr own recv send time;
}

/// `--log-file`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    /// The path of the log file.
    pub path: Vec<u8>,
    /// `--log-file-format`; `%i %n%L` by default. If empty, entries get no lines.
    pub format: Vec<u8>,
}

/// `--ui`: the live display on the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ui {
    /// Not given. Under our own name, a run on a terminal that prints nothing else shows it once the run takes long.
    #[default]
    Unasked,
    /// `--no-ui`. A run that cannot have a display settles on this.
    Off,
    /// `--ui`
    Live,
    /// `--ui=plain`: a line from time to time, also without a terminal.
    Plain,
}

/// What is printed, and in which form.
#[derive(Debug, Clone, Default)]
pub struct Output {
    /// How often `-v` was given.
    pub verbose: u8,
    /// `-q`
    pub quiet: bool,
    /// `--info`, including what `-v`, `--stats`, `--progress`, `-P`, `-i` and `--out-format` imply.
    pub info: Info,
    /// `--debug`
    pub debug: Debug,
    /// `-i`: 0, 1, or 2 (unchanged entries too). `--out-format` with `%i` counts as 1.
    pub itemize: u8,
    /// `sparsync check`: the findings that are printed in place of the changes of a copy. Only this end knows of it.
    pub compares: Option<PrintedFindings>,
    /// `--out-format`, or `%i %n%L` under `-i`; `None`: names only, depending on `info.name`.
    pub out_format: Option<Vec<u8>>,
    /// When to print `created directory …`. Names that only a format implies do not enable it.
    pub created_dir: CreatedDir,
    /// Whether the client prints the counts of `--stats`. Unlike `info`, a daemon does not limit it.
    pub counts_like_rsync: bool,
    /// Whether to print `ignoring unsafe symlink …`. Names that `--progress` implies enable it without `-i` and a format.
    pub unsafe_links: bool,
    /// `--log-file`
    pub log_file: Option<LogFile>,
    /// `--metrics-file`
    pub metrics_file: Option<Vec<u8>>,
    /// `--failed-list`
    pub failed_list: Option<Vec<u8>>,
    /// The level of `-h`: 0 (`--no-h`), 1 (default: digit groups), 2 (units of 1000), 3 (units of 1024).
    pub human: u8,
    /// `-8`
    pub eight_bit: bool,
    /// `--outbuf`
    pub outbuf: Option<Outbuf>,
    /// `--stderr`
    pub stderr: StderrMode,
    /// `--json`: JSON Lines on stdout instead of text.
    pub json: bool,
    /// `--ui`
    pub ui: Ui,
    /// `--progress` (per file), if `info.progress` is 1; 2 is `progress2`.
    pub progress: bool,
}

impl Output {
    /// Returns whether options request output of another kind than a live display.
    pub fn is_requested(&self) -> bool {
        self.verbose > 0
            || self.quiet
            || self.itemize > 0
            || self.out_format.is_some()
            || self.info.progress > 0
            || self.info.stats > 0
            || self.json
            || self.compares.is_some()
    }

    /// Returns whether the client of this server requests items of unchanged entries, by `%I` in its format.
    pub fn requests_unchanged(&self) -> bool {
        self.out_format
            .as_deref()
            .is_some_and(|format| format.windows(2).any(|two| two == b"%I"))
    }
}

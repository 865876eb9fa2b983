//! Which two programs are compared, and where.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The version of rsync whose behaviour sparsync promises.
pub const PROMISED: Version = Version([3, 5, 0]);

/// A version of rsync: major, minor, patch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version([u32; 3]);

impl Version {
    /// Reads the first three numbers of `text`; what is missing counts as 0.
    pub fn parse(text: &str) -> Version {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
        Version(std::array::from_fn(|_| numbers.next().unwrap_or(0)))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// The real rsync: `SPARSYNC_ORACLE`, else `rsync` on the `PATH`.
pub fn rsync() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| std::env::var_os("SPARSYNC_ORACLE").unwrap_or("rsync".into()).into())
}

/// The program under test: `SPARSYNC_UNDER_TEST`, else the one that cargo has just built.
pub fn under_test() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let built = OsString::from(env!("CARGO_BIN_EXE_sparsync"));
        let named = PathBuf::from(std::env::var_os("SPARSYNC_UNDER_TEST").unwrap_or(built));
        if open_to_all(&named) { named } else { public_copy(&named) }
    })
}

/// Tells whether an ordinary user can reach `program`, as far as permission bits tell.
fn open_to_all(program: &Path) -> bool {
    let searchable = |dir: &Path| dir.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0);
    program.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()).all(searchable)
}

/// Puts a copy of `program` where an ordinary user can start it; one for all runs of the tests.
fn public_copy(program: &Path) -> PathBuf {
    let Ok(bytes) = std::fs::read(program) else {
        return program.to_owned();
    };
    let copy = scratch().join("sparsync-under-test");
    // Written aside and renamed, so that a run beside this one never starts half a program.
    let mut fresh = tempfile::NamedTempFile::new_in(scratch()).expect("scratch can be written");
    fresh.write_all(&bytes).expect("scratch has room for the program");
    fresh.as_file().set_permissions(std::fs::Permissions::from_mode(0o755)).expect("chmod of our own file");
    fresh.persist(&copy).expect("rename inside scratch");
    copy
}

/// The version of the oracle.
pub fn version() -> Version {
    static VERSION: OnceLock<Version> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let output = Command::new(rsync()).arg("--version").output();
        let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        let text = text.unwrap_or_else(|e| panic!("the oracle {} cannot be run: {e}", rsync().display()));
        let number = text.split_whitespace().nth(2).unwrap_or_default();
        Version::parse(number)
    })
}

/// Says once per run which rsync is the measure.
pub fn announce() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let found = version();
        let warning = if found < PROMISED {
            format!("; OLDER than {PROMISED}: cases for newer behaviour are skipped")
        } else {
            String::new()
        };
        let line = format!(
            "oracle: {} {found}{warning}; under test: {}; scratch: {}\n",
            rsync().display(),
            under_test().display(),
            scratch().display()
        );
        let _ = std::io::stderr().write_all(line.as_bytes());
    });
}

/// Where scratch trees go: `SPARSYNC_TEST_DIR`, else memory, else the temporary directory.
pub fn scratch() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let named = std::env::var_os("SPARSYNC_TEST_DIR").map(PathBuf::from);
        let usable = || tempfile::tempfile_in(memory).is_ok().then(|| memory.to_owned());
        let dir = named.or_else(usable).unwrap_or_else(std::env::temp_dir);
        dir.canonicalize().unwrap_or_else(|e| panic!("no scratch directory {}: {e}", dir.display()))
    })
}

//! Locates the two programs that are compared, and the scratch directory.

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
    /// Parses the first three numbers of `text`; missing ones are 0.
    pub fn parse(text: &str) -> Version {
        let mut numbers = text
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|n| n.parse().ok());
        Version(std::array::from_fn(|_| numbers.next().unwrap_or(0)))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Returns the real rsync: `SPARSYNC_ORACLE`, otherwise `rsync` on the `PATH`.
pub fn rsync() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        std::env::var_os("SPARSYNC_ORACLE")
            .unwrap_or("rsync".into())
            .into()
    })
}

/// Returns the program under test: `SPARSYNC_UNDER_TEST`, otherwise the one that cargo has built.
pub fn under_test() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let built = OsString::from(env!("CARGO_BIN_EXE_sparsync"));
        let named = PathBuf::from(std::env::var_os("SPARSYNC_UNDER_TEST").unwrap_or(built));
        if open_to_all(&named) {
            named
        } else {
            public_copy(&named)
        }
    })
}

/// Returns whether an ordinary user can reach `program`, judging by the permission bits of its directories.
fn open_to_all(program: &Path) -> bool {
    let searchable = |dir: &Path| {
        dir.metadata()
            .is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0)
    };
    program
        .ancestors()
        .skip(1)
        .filter(|dir| !dir.as_os_str().is_empty())
        .all(searchable)
}

/// Copies `program` to where an ordinary user can start it; all test runs share the copy.
fn public_copy(program: &Path) -> PathBuf {
    let Ok(bytes) = std::fs::read(program) else {
        return program.to_owned();
    };
    let copy = scratch().join("sparsync-under-test");
    // Written under a temporary name and renamed, so that a concurrent test run never starts a partial file.
    let mut fresh = tempfile::NamedTempFile::new_in(scratch()).expect("scratch can be written");
    fresh
        .write_all(&bytes)
        .expect("the program fits into scratch");
    fresh
        .as_file()
        .set_permissions(std::fs::Permissions::from_mode(0o755))
        .expect("chmod of the test's own file");
    fresh.persist(&copy).expect("rename inside scratch");
    copy
}

/// Returns the version of the oracle.
pub fn version() -> Version {
    static VERSION: OnceLock<Version> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let output = Command::new(rsync()).arg("--version").output();
        let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        let text =
            text.unwrap_or_else(|e| panic!("the oracle {} cannot be run: {e}", rsync().display()));
        let number = text.split_whitespace().nth(2).unwrap_or_default();
        Version::parse(number)
    })
}

/// Prints once per test run which rsync is the oracle.
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

/// Returns where scratch trees go: `SPARSYNC_TEST_DIR`, otherwise memory, otherwise the temporary directory.
pub fn scratch() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let named = std::env::var_os("SPARSYNC_TEST_DIR").map(PathBuf::from);
        let usable = || {
            tempfile::tempfile_in(memory)
                .is_ok()
                .then(|| memory.to_owned())
        };
        let dir = named.or_else(usable).unwrap_or_else(std::env::temp_dir);
        dir.canonicalize()
            .unwrap_or_else(|e| panic!("no scratch directory {}: {e}", dir.display()))
    })
}

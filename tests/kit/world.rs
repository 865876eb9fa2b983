//! Twin worlds: rsync runs in one, the program under test in the other, and afterwards they must be equal.

mod loss;
mod plans;

pub use plans::Recorded;

pub use loss::{Loss, LossKind};

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Uid};

use super::build::Tree;
use super::mask::{Mask, OwnMask};
use super::route::Place;
use super::run::{
    Output, Request, Surroundings, USER, USUAL_UMASK, interrupt, run, set_usual_umask,
};
use super::server::Server;
use super::tree::{Lens, Snapshot, files, is_temp, snapshot};
use super::{Route, Who, diff, oracle, skip};

/// Coarse file times lag behind the clock. No file that a case builds is this young.
const CLOCK_SLACK_SECS: i64 = 5;

/// A scratch directory with two twins, whose names have the same length. Each has `src`, `dst` and what a case adds.
///
/// All methods that describe the case return the world, so that calls chain. Settings stay until changed.
pub struct World {
    name: String,
    route: Route,
    scratch: Option<tempfile::TempDir>,
    twins: [PathBuf; 2],
    surroundings: RefCell<Surroundings>,
    lens: Cell<Lens>,
    dry_run: Cell<bool>,
    again: Cell<bool>,
    stderr_ordered: Cell<bool>,
    stdout_in_order: Cell<bool>,
    own_mask: Cell<Option<OwnMask>>,
    /// The server of the program under test, started when first needed.
    server: RefCell<Option<Arc<Mutex<Server>>>>,
    /// File systems mounted for this case.
    mounts: RefCell<Vec<PathBuf>>,
}

/// The masked output of the real run, on which both programs agreed. Lets a case check that it tests what it claims.
pub struct Agreed {
    route: Route,
    /// Whether the expectations of the case hold for rsync on this route.
    is_as_expected: bool,
    pub stdout: String,
    pub stderr: String,
    pub exit: i32,
}

/// What `check` has printed.
pub struct Checked {
    /// The lines about entries.
    pub lines: String,
    /// The line with the counts.
    pub last: String,
    pub stderr: String,
    pub exit: i32,
}

/// The result of one program's run and the world afterwards.
struct Seen {
    stdout: String,
    stderr: String,
    exit: i32,
    tree: Snapshot,
    logs: String,
}

impl World {
    /// Creates an empty world. Cases get theirs from `synctest!`.
    pub fn new(name: &str, route: Route, who: Who) -> World {
        if who == Who::Root && !rustix::process::geteuid().is_root() {
            skip("needs the super-user");
        }
        // The kit's own files must get exactly the modes that it requests.
        set_usual_umask();
        let scratch = tempfile::Builder::new()
            .prefix("sparsync-")
            .tempdir_in(oracle::scratch());
        let scratch = scratch.expect("scratch can be written");
        let (home, twins) = (
            scratch.path().join("home"),
            ["oracle", "tested"].map(|n| scratch.path().join(n)),
        );
        for dir in twins.iter().chain([&home]) {
            std::fs::create_dir(dir).expect("a new directory can be created");
        }
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(scratch.path(), open).expect("chmod of the test's own directory");
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("it is after 1970");
        let now_secs = since_epoch.as_secs() as i64 - CLOCK_SLACK_SECS;
        World {
            name: name.to_owned(),
            route,
            scratch: Some(scratch),
            twins,
            surroundings: RefCell::new(Surroundings {
                who,
                home,
                umask: USUAL_UMASK,
                stdin: Vec::new(),
                env: Vec::new(),
            }),
            lens: Cell::new(Lens {
                blocks: false,
                atimes: false,
                links_within: false,
                now_secs,
            }),
            dry_run: Cell::new(true),
            again: Cell::new(true),
            stderr_ordered: Cell::new(true),
            stdout_in_order: Cell::new(false),
            own_mask: Cell::new(None),
            server: RefCell::default(),
            mounts: RefCell::default(),
        }
    }

    // ── content ─────────────────────────────────────────────────────────────────────────────────

    /// Adds to `src` the entries that the text describes; see `kit/build.rs` for the language.
    pub fn source(&self, text: &str) -> &Self {
        self.tree("src", text)
    }

    /// Adds to `dst` the entries that the text describes. Without a call there is no `dst`.
    pub fn dest(&self, text: &str) -> &Self {
        self.tree("dst", text)
    }

    /// Adds to the tree `name` the entries that the text describes; `.` is the world itself.
    pub fn tree(&self, name: &str, text: &str) -> &Self {
        self.build(name, |tree| tree.text(text))
    }

    /// Adds to the tree `name` what the text language cannot express.
    pub fn build(&self, name: &str, how: impl FnOnce(&Tree)) -> &Self {
        how(&Tree::open(&self.twins, name.as_bytes()));
        self
    }

    /// Changes both twins in the same way.
    pub fn change(&self, how: impl Fn(&Path)) -> &Self {
        self.twins.iter().for_each(|twin| how(twin));
        self
    }

    /// Keeps the state of `dst`, for [`World::restore_dest`].
    pub fn keep_dest(&self) -> &Self {
        for twin in &self.twins {
            let kept = twin.with_extension("kept");
            if kept.exists() {
                std::fs::remove_dir_all(&kept).expect("what was kept can be removed");
            }
            copy_tree(&twin.join("dst"), &kept);
        }
        self
    }

    /// Restores the state of `dst` that was kept. Otherwise a run finds what the one before it has copied.
    pub fn restore_dest(&self) -> &Self {
        for twin in &self.twins {
            std::fs::remove_dir_all(twin.join("dst")).expect("dst can be removed");
            copy_tree(&twin.with_extension("kept"), &twin.join("dst"));
        }
        self
    }

    /// Adds a file to the world beside the trees, for example a list or rules.
    pub fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        self.build(".", |tree| drop(tree.file(path, content)))
    }

    /// Adds a file to the home directory.
    pub fn home_file(&self, path: &str, content: &str) -> &Self {
        std::fs::write(self.surroundings.borrow().home.join(path), content)
            .expect("home can be written");
        self
    }

    /// Mounts a file system of `len_bytes` on the directory `path` of each twin; skips the case if that fails.
    pub fn mount_tmpfs(&self, path: &str, len_bytes: usize) -> &Self {
        self.mount_new(path, "tmpfs", &format!("size={len_bytes},mode=755"))
    }

    /// Mounts a file system without extended attributes on the directory `path` of each twin.
    pub fn mount_ramfs(&self, path: &str) -> &Self {
        self.mount_new(path, "ramfs", "mode=755")
    }

    fn mount_new(&self, path: &str, kind: &str, options: &str) -> &Self {
        for twin in &self.twins {
            let place = twin.join(path);
            if !mount(&["-t", kind, "-o", options, "none"], &place) {
                skip("no file system can be mounted");
            }
            self.mounts.borrow_mut().push(place);
        }
        self
    }

    /// Mounts a new file system of a kind that can share blocks on the directory `path` of the tested twin.
    pub fn mount_image(&self, path: &str, kind: &str) -> &Self {
        const IMAGE_BYTES: u64 = 320 << 20;
        let image = self.tested().with_extension("image");
        std::fs::File::create(&image)
            .and_then(|file| file.set_len(IMAGE_BYTES))
            .expect("scratch can be written");
        let made = Command::new(format!("mkfs.{kind}"))
            .arg("-q")
            .arg(&image)
            .output();
        if !made.is_ok_and(|made| made.status.success()) {
            skip(&format!("no file system of {kind} can be made"));
        }
        let place = self.tested().join(path);
        let source = image.display().to_string();
        if !mount(&["-t", kind, "-o", "loop", &source], &place) {
            skip(&format!("no file system of {kind} can be mounted"));
        }
        self.mounts.borrow_mut().push(place);
        self
    }

    /// Makes a file system mounted by [`World::mount_tmpfs`] read-only.
    pub fn remount_read_only(&self, path: &str) -> &Self {
        for twin in &self.twins {
            assert!(
                mount(&["-o", "remount,ro"], &twin.join(path)),
                "what was mounted can be remounted"
            );
        }
        self
    }

    // ── settings ────────────────────────────────────────────────────────────────────────────────

    /// Sets the standard input of both programs.
    pub fn stdin(&self, bytes: impl AsRef<[u8]>) -> &Self {
        self.surroundings.borrow_mut().stdin = bytes.as_ref().to_owned();
        self
    }

    /// Sets an environment variable for both programs. A server that runs does not have it, so the next run starts one.
    pub fn env(&self, key: &str, value: &str) -> &Self {
        drop(self.server.take());
        self.surroundings
            .borrow_mut()
            .env
            .push((key.to_owned(), value.to_owned()));
        self
    }

    /// Sets the umask of both programs; the default is 022.
    pub fn umask(&self, mask: u32) -> &Self {
        self.surroundings.borrow_mut().umask = mask;
        self
    }

    /// Sets the umask of the remote side only, which a fake remote shell or our own server starts.
    pub fn far_umask(&self, mask: u32) -> &Self {
        self.env("FAR_UMASK", &format!("{mask:o}"))
    }

    /// Omits the second, identical run.
    pub fn once(&self) -> &Self {
        self.again.set(false);
        self
    }

    /// Omits the preceding dry run.
    pub fn no_dry_run(&self) -> &Self {
        self.dry_run.set(false);
        self
    }

    /// Compares the lines of stderr as a set: for messages from several of rsync's processes.
    pub fn stderr_unordered(&self) -> &Self {
        self.stderr_ordered.set(false);
        self
    }

    /// Compares the order of all lines of stdout: for runs of one rsync in which it does not vary.
    pub fn stdout_in_order(&self) -> &Self {
        self.stdout_in_order.set(true);
        self
    }

    /// Compares the blocks that files occupy.
    pub fn compare_blocks(&self) -> &Self {
        self.lens.set(Lens {
            blocks: true,
            ..self.lens.get()
        });
        self
    }

    /// Compares which names belong to one file only within `src`, `dst` and so on.
    pub fn compare_links_within(&self) -> &Self {
        self.lens.set(Lens {
            links_within: true,
            ..self.lens.get()
        });
        self
    }

    /// Compares atimes.
    pub fn compare_atimes(&self) -> &Self {
        self.lens.set(Lens {
            atimes: true,
            ..self.lens.get()
        });
        self
    }

    /// Applies an extra mask to each line of output, after the usual ones; `None` drops the line.
    pub fn mask_with(&self, mask: OwnMask) -> &Self {
        self.own_mask.set(Some(mask));
        self
    }

    // ── reasons to skip ─────────────────────────────────────────────────────────────────────────

    /// Skips the case on routes with a peer, for this reason.
    pub fn only_local(&self, reason: &str) -> &Self {
        if self.route.is_far() {
            skip(&format!("{:?}: {reason}", self.route));
        }
        self
    }

    /// Skips the case unless the destination is on this machine and the source is not, for this reason.
    pub fn only_pulled(&self, reason: &str) -> &Self {
        if !self.is_pulled() {
            skip(&format!("{:?}: {reason}", self.route));
        }
        self
    }

    /// Skips the case if the sources are on a peer, for this reason.
    pub fn not_pulled(&self, reason: &str) -> &Self {
        if self.is_pulled() {
            skip(&format!("{:?}: {reason}", self.route));
        }
        self
    }

    /// Skips the case if the program under test serves an rsync, for this reason.
    pub fn not_served(&self, reason: &str) -> &Self {
        self.not_served_push(reason).not_served_pull(reason)
    }

    /// Skips the case if the program under test serves the push of an rsync, for this reason.
    pub fn not_served_push(&self, reason: &str) -> &Self {
        if self.route.is_served() && !self.is_pulled() {
            skip(&format!("{:?}: {reason}", self.route));
        }
        self
    }

    /// Skips the case if the program under test serves the pull of an rsync, for this reason.
    pub fn not_served_pull(&self, reason: &str) -> &Self {
        if self.route.is_served() && self.is_pulled() {
            skip(&format!("{:?}: {reason}", self.route));
        }
        self
    }

    /// Skips the case if a stock rsync is the peer of both programs, for this reason.
    pub fn not_with_stock(&self, reason: &str) -> &Self {
        if self.route.is_stock() {
            skip(&format!("{:?}: {reason}", self.route));
        }
        self
    }

    /// Skips the case if a stock rsync receives from both programs, for this reason.
    pub fn not_pushed_to_stock(&self, reason: &str) -> &Self {
        if self.is_pulled() {
            self
        } else {
            self.not_with_stock(reason)
        }
    }

    /// Skips the case if a daemon is the peer, for this reason.
    pub fn not_with_daemon(&self, reason: &str) -> &Self {
        if self.route.is_daemon() {
            skip(&format!("{:?}: {reason}", self.route));
        }
        self
    }

    /// Skips the case if the program under test pulls from its own daemon, for this reason.
    pub fn not_pulled_from_own_daemon(&self, reason: &str) -> &Self {
        if self.is_pulled() && self.route.is_daemon() && !self.route.is_stock() {
            skip(&format!("{:?}: {reason}", self.route));
        }
        self
    }

    /// Skips the case if a server is the peer, for this reason.
    pub fn not_with_server(&self, reason: &str) -> &Self {
        if self.route.is_by_server() {
            skip(&format!("{:?}: {reason}", self.route));
        }
        self
    }

    /// Returns the name of the case.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the route that the case runs on.
    pub fn route(&self) -> Route {
        self.route
    }

    /// Returns whether the sources are on a peer.
    pub fn is_pulled(&self) -> bool {
        matches!(self.route, Route::Pull(_))
    }

    /// Returns whether rsync receives from the program under test.
    fn is_received_by_rsync(&self) -> bool {
        if self.is_pulled() {
            self.route.is_served()
        } else {
            self.route.is_stock()
        }
    }

    /// Skips the case if an rsync sends to the program under test, for this reason.
    pub fn not_sent_by_rsync(&self, reason: &str) -> &Self {
        let is_sent_by_rsync = if self.is_pulled() {
            self.route.is_stock()
        } else {
            self.route.is_served()
        };
        if is_sent_by_rsync {
            skip(&format!("{:?}: {reason}", self.route));
        }
        self
    }

    /// Skips the case if the oracle is older than `version`.
    pub fn needs_rsync(&self, version: &str) -> &Self {
        let found = oracle::version();
        if found < oracle::Version::parse(version) {
            skip(&format!(
                "needs an rsync of {version} as the oracle, this is {found}"
            ));
        }
        self
    }

    /// Skips the case if the scratch file system does not store `user.*` attributes.
    pub fn needs_xattrs(&self) -> &Self {
        self.probe("user.sparsync", b"1", "extended attributes")
    }

    /// Skips the case if the scratch file system does not store ACLs.
    pub fn needs_acls(&self) -> &Self {
        // The smallest ACL: version 2, then owner, group and other.
        const MINIMAL: &[u8] =
            b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x04\0\x04\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
        self.probe("system.posix_acl_access", MINIMAL, "ACLs")
    }

    fn probe(&self, key: &str, value: &[u8], what: &str) -> &Self {
        let file = self.scratch_dir().join("probe");
        std::fs::write(&file, "").expect("scratch can be written");
        if fs::lsetxattr(&file, key, value, fs::XattrFlags::empty()).is_err() {
            skip(&format!(
                "{} does not store {what}",
                oracle::scratch().display()
            ));
        }
        self
    }

    // ── comparing ───────────────────────────────────────────────────────────────────────────────

    /// Runs both programs with `options` on `src/` and `dst/`; they must agree in everything.
    pub fn agree<A: AsRef<[u8]>>(&self, options: &[A]) -> Agreed {
        self.agree_paths(options, &["src/", "dst/"])
    }

    /// Runs both programs with `options` and operands relative to the world's directory, which is also `{W}`.
    pub fn agree_paths<A: AsRef<[u8]>, B: AsRef<[u8]>>(
        &self,
        options: &[A],
        operands: &[B],
    ) -> Agreed {
        self.try_agree(options, operands)
            .unwrap_or_else(|difference| panic!("{difference}"))
    }

    /// Does what [`World::agree_paths`] does, and returns what differs instead of failing.
    pub fn try_agree<A: AsRef<[u8]>, B: AsRef<[u8]>>(
        &self,
        options: &[A],
        operands: &[B],
    ) -> Result<Agreed, String> {
        let owned = |args: &[&[u8]]| args.iter().map(|arg| arg.to_vec()).collect::<Vec<_>>();
        let options = owned(&options.iter().map(AsRef::as_ref).collect::<Vec<_>>());
        let operands = owned(&operands.iter().map(AsRef::as_ref).collect::<Vec<_>>());
        let dry = options.iter().any(|option| is_dry(option));
        if self.dry_run.get() && !dry {
            self.compare(
                "the dry run",
                &[&[b"-n".to_vec()], &options[..]].concat(),
                &operands,
            )?;
        }
        let agreed = self.compare("the run", &options, &operands)?;
        if self.again.get() {
            self.compare("the second run", &options, &operands)?;
        }
        Ok(agreed)
    }

    /// Runs rsync with `options`, and the program under test with these and options of its `own`, on `src/` and `dst/`: a dry
    /// run, a run, and a second one. They must agree in everything but the order of lines.
    pub fn agree_beside<A: AsRef<[u8]>>(&self, own: &[&str], options: &[A]) -> Agreed {
        self.try_agree_beside(oracle::rsync(), own, options)
            .unwrap_or_else(|difference| panic!("{difference}"))
    }

    /// Does what [`World::agree_beside`] does with this program in place of rsync, and returns what differs instead of
    /// failing.
    pub fn try_agree_beside<A: AsRef<[u8]>>(
        &self,
        reference: &Path,
        own: &[&str],
        options: &[A],
    ) -> Result<Agreed, String> {
        let options: Vec<_> = options.iter().map(|it| it.as_ref().to_vec()).collect();
        let own: Vec<_> = own.iter().map(|it| it.as_bytes().to_vec()).collect();
        let operands = [b"src/".to_vec(), b"dst/".to_vec()];
        let mut phases = vec![("the run", Vec::new())];
        if self.dry_run.get() {
            phases.insert(0, ("the dry run", vec![b"-n".to_vec()]));
        }
        if self.again.get() {
            phases.push(("the second run", Vec::new()));
        }
        let mut agreed = None;
        for (phase, dry) in phases {
            self.chown_to_runner();
            let options = [&dry[..], &options].concat();
            let with_own = [&options[..], &own].concat();
            log_argv(&with_own, &operands);
            let wanted = self.see(reference, &options, &operands, 0);
            let got = self.see(oracle::under_test(), &with_own, &operands, 1);

            let lines = |text: &str| sorted(text.split('\n').collect()).join("\n");
            let exits = (wanted.exit != got.exit)
                .then(|| format!("  exit {}, rsync's {}\n", got.exit, wanted.exit));
            let differences = [
                exits,
                diff::lines(&lines(&wanted.stderr), &lines(&got.stderr)),
                diff::lines(&lines(&wanted.stdout), &lines(&got.stdout)),
                diff::trees(&wanted.tree, &got.tree),
            ];
            let differences: String = differences.into_iter().flatten().collect();
            if !differences.is_empty() {
                return Err(self.failure(phase, &with_own, &operands, &differences));
            }
            if phase == "the run" {
                agreed = Some(self.agreed(wanted.stdout, wanted.stderr, wanted.exit));
            }
        }
        Ok(agreed.expect("there is a run"))
    }

    /// Runs only the program under test with `options` on `src/` and `dst/`, for cases that rsync cannot do. It must
    /// print nothing, and afterwards `dst` must equal `src`.
    pub fn copies_all<A: AsRef<[u8]>>(&self, options: &[A]) {
        let options: Vec<Vec<u8>> = options
            .iter()
            .map(|option| option.as_ref().to_vec())
            .collect();
        let operands = [b"src/".to_vec(), b"dst/".to_vec()];
        log_argv(&options, &operands);
        let got = self.see(oracle::under_test(), &options, &operands, 1);
        assert_eq!(
            (got.exit, got.stdout + &got.stderr),
            (0, String::new()),
            "{}",
            self.name
        );
        let below = |top: &str| {
            let lines = got
                .tree
                .values()
                .filter(|line| line.contains(&format!("\"{top}/")));
            lines
                .map(|line| line.replacen(&format!("\"{top}/"), "\"", 1))
                .collect::<Vec<_>>()
        };
        assert_eq!(below("dst"), below("src"), "{}", self.name);
    }

    /// Runs only the program under test with `options` on `src/` and `dst/`, for cases where rsync hangs.
    pub fn alone<A: AsRef<[u8]>>(&self, options: &[A]) -> Agreed {
        self.alone_paths(options, &["src/", "dst/"])
    }

    /// Like [`World::alone`], with these operands.
    pub fn alone_paths<A: AsRef<[u8]>>(&self, options: &[A], operands: &[&str]) -> Agreed {
        let options: Vec<Vec<u8>> = options
            .iter()
            .map(|option| option.as_ref().to_vec())
            .collect();
        let operands: Vec<Vec<u8>> = operands
            .iter()
            .map(|operand| operand.as_bytes().to_vec())
            .collect();
        self.chown_to_runner();
        log_argv(&options, &operands);
        let Seen {
            stdout,
            stderr,
            exit,
            ..
        } = self.see(oracle::under_test(), &options, &operands, 1);
        self.agreed(stdout, stderr, exit)
    }

    /// Runs only the program under test with `options` on `src/` and `dst/`. Returns how many of its lines contain `text`.
    pub fn count_lines(&self, options: &[&str], text: &str) -> u64 {
        let options: Vec<_> = options.iter().map(|it| it.as_bytes().to_vec()).collect();
        let operands = [b"src/".to_vec(), b"dst/".to_vec()];
        let seen = self.see(oracle::under_test(), &options, &operands, 1);
        seen.stdout
            .lines()
            .filter(|line| line.contains(text))
            .count() as u64
    }

    /// Runs `sparsync check` with `options` on `src/` and `dst/`, and rsync with `dry_run`. Returns what check has printed.
    ///
    /// The lines must be those that rsync prints about entries, the exit code must be 0 only if there are none, and nothing
    /// may change on either side.
    pub fn checks<A: AsRef<[u8]>, B: AsRef<[u8]>>(&self, options: &[A], dry_run: &[B]) -> Checked {
        self.try_checks(options, dry_run, &["src/", "dst/"])
            .unwrap_or_else(|difference| panic!("{difference}"))
    }

    /// Does what [`World::checks`] does, and returns what is wrong instead of failing.
    pub fn try_checks<A: AsRef<[u8]>, B: AsRef<[u8]>, C: AsRef<[u8]>>(
        &self,
        options: &[A],
        dry_run: &[B],
        operands: &[C],
    ) -> Result<Checked, String> {
        let options: Vec<_> = options.iter().map(|it| it.as_ref().to_vec()).collect();
        let dry_run: Vec<_> = dry_run.iter().map(|it| it.as_ref().to_vec()).collect();
        let operands: Vec<_> = operands.iter().map(|it| it.as_ref().to_vec()).collect();
        self.chown_to_runner();
        let mut wanted = self.see(oracle::rsync(), &dry_run, &operands, 0);
        wanted.stdout = deletions_once(&wanted.stdout);
        let before = snapshot(&self.twins[1], self.lens.get());
        let command = [b"check".to_vec()].to_vec();
        let got = self.see_command(oracle::under_test(), &command, &options, &operands, 1);

        let (lines, last) = match got.stdout.trim_end_matches('\n').rsplit_once('\n') {
            Some((lines, last)) => (format!("{lines}\n"), last.to_owned()),
            None => (String::new(), got.stdout.trim_end().to_owned()),
        };
        // An rsync at the far end compares by its own dry run.
        let lines = deletions_once(&lines);
        let floats = floats(&dry_run, self.is_received_by_rsync());
        let is_equal = last.contains("equal, 0 differ, 0 only at the source, 0 only at the");
        let wrong = [
            diff::stdout(
                wanted.stdout.trim_end_matches('\n'),
                lines.trim_end_matches('\n'),
                floats,
            ),
            diff::trees(&before, &got.tree).map(|wrong| format!("  changed:\n{wrong}")),
            (got.exit == 0 && !(is_equal && wanted.stdout.is_empty()))
                .then(|| "  it is not equal\n".to_owned()),
            (got.exit == 1 && is_equal).then(|| "  it is equal\n".to_owned()),
            (![0, 1, 23].contains(&got.exit)).then(|| format!("  exit {}\n", got.exit)),
        ];
        let wrong: String = wrong.into_iter().flatten().collect();
        if !wrong.is_empty() {
            let told = format!(
                "{wrong}  exit {}, rsync's {}\n  stderr\n{}\n  {last}\n",
                got.exit, wanted.exit, got.stderr
            );
            return Err(self.failure("check", &options, &operands, &told));
        }
        Ok(Checked {
            lines,
            last,
            stderr: got.stderr,
            exit: got.exit,
        })
    }

    /// Runs a command of the program under test with `options` on `src/` and `dst/`. Returns what it prints on both streams,
    /// and its exit code.
    pub fn runs(&self, command: &str, options: &[&str]) -> (String, String, i32) {
        self.chown_to_runner();
        let command = [command.as_bytes().to_vec()];
        let options: Vec<_> = options.iter().map(|it| it.as_bytes().to_vec()).collect();
        let operands = [b"src/".to_vec(), b"dst/".to_vec()];
        let seen = self.see_command(oracle::under_test(), &command, &options, &operands, 1);
        (seen.stdout, seen.stderr, seen.exit)
    }

    /// Runs both programs with `options` on `src/` and `dst/` and interrupts each when `ready` returns true for its
    /// world. Both must report it and exit with 20. Returns the paths that each left, rsync's first.
    pub fn interrupt<A: AsRef<[u8]>>(
        &self,
        options: &[A],
        signal: Signal,
        ready: impl Fn(&Path) -> bool,
    ) -> [Vec<String>; 2] {
        let options: Vec<Vec<u8>> = options
            .iter()
            .map(|option| option.as_ref().to_vec())
            .collect();
        let operands = [b"src/".to_vec(), b"dst/".to_vec()];
        log_argv(&options, &operands);
        [(oracle::rsync(), 0), (oracle::under_test(), 1)].map(|(program, i)| {
            let twin = &self.twins[i];
            let argv = self.argv(program, &options, &operands, i);
            let surroundings = self.surroundings_of(program, i);
            let request = Request {
                signal,
                to_all: false,
                ready: &|| ready(twin),
                interrupted: &|| (),
            };
            let output = interrupt(program, &argv, twin, &surroundings, &request);
            let last = "rsync error: received SIGINT, SIGTERM, or SIGHUP (code 20)";
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(
                stderr.contains(last) && output.exit == 20,
                "exit {}, stderr: {stderr}",
                output.exit
            );
            snapshot(twin, self.lens.get())
                .into_keys()
                .map(|path| path.escape_ascii().to_string())
                .collect()
        })
    }

    /// Runs only the program under test with `options` on `src/` and `dst/`, and sends it a signal while it is held at
    /// the `at`-th system call on files. After `further` more calls the next one kills it.
    pub fn interrupt_at_call(
        &self,
        options: &[&str],
        signal: Signal,
        at: u64,
        further: u64,
    ) -> Output {
        let twin = &self.twins[1];
        let gate = twin.join("gate");
        let _ = std::fs::remove_file(&gate);
        fs::mknodat(fs::CWD, &gate, FileType::Fifo, 0o600.into(), 0)
            .expect("scratch supports fifos");
        let options: Vec<Vec<u8>> = options
            .iter()
            .map(|option| option.as_bytes().to_vec())
            .collect();
        let argv = self.argv(
            oracle::under_test(),
            &options,
            &[b"src/".to_vec(), b"dst/".to_vec()],
            1,
        );
        let hooked = |hooks: &[(&str, String)]| {
            let mut surroundings = self.surroundings_of(oracle::under_test(), 1);
            surroundings.env.extend(
                hooks
                    .iter()
                    .map(|(name, value)| (name.to_string(), value.clone())),
            );
            surroundings
        };
        if run(
            oracle::under_test(),
            &argv,
            twin,
            &hooked(&[("SPARSYNC_KILL_AT", "1".to_owned())]),
        )
        .exit
            == 0
        {
            skip("the program under test is a release build, which cannot be held");
        }
        let hold = format!("{at}:{}", gate.display());
        let surroundings = hooked(&[
            ("SPARSYNC_HOLD_AT", hold),
            ("SPARSYNC_KILL_AT", (at + further + 1).to_string()),
        ]);
        let held = RefCell::new(None);
        // The fifo has a reader once the program is held. Closing the write end lets the program continue.
        let ready = || {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK;
            *held.borrow_mut() = fs::openat(fs::CWD, &gate, flags, Mode::empty()).ok();
            held.borrow().is_some()
        };
        let program = oracle::under_test();
        let request = Request {
            signal,
            to_all: false,
            ready: &ready,
            interrupted: &|| drop(held.take()),
        };
        interrupt(program, &argv, twin, &surroundings, &request)
    }

    /// Returns the directory of the program under test.
    pub fn tested(&self) -> &Path {
        &self.twins[1]
    }

    /// Returns the command line on the world's route, for a program in one of the twins.
    fn argv(
        &self,
        program: &Path,
        options: &[Vec<u8>],
        operands: &[Vec<u8>],
        twin: usize,
    ) -> Vec<Vec<u8>> {
        let umask = self.surroundings.borrow().umask;
        let place = Place {
            world: &self.twins[twin],
            scratch: self.scratch_dir(),
            umask,
        };
        let options: Vec<_> = options
            .iter()
            .map(|option| match option.strip_prefix(b"--clone-dest=") {
                // An rsync has what comes next to it.
                Some(dir) if program == oracle::rsync() => [b"--copy-dest=", dir].concat(),
                Some(_) | None => option.clone(),
            })
            .collect();
        let argv = self.route.argv(program, &place, &options, operands);
        argv.iter()
            .map(|arg| put_world(arg, &self.twins[twin]))
            .collect()
    }

    /// Gives the files that the kit built to the user that runs the programs.
    fn chown_to_runner(&self) {
        if self.surroundings.borrow().who == Who::User && rustix::process::geteuid().is_root() {
            self.twins.iter().for_each(|twin| chown_to_user(twin));
        }
    }

    fn compare(
        &self,
        phase: &str,
        options: &[Vec<u8>],
        operands: &[Vec<u8>],
    ) -> Result<Agreed, String> {
        self.chown_to_runner();
        log_argv(options, operands);
        let [wanted, got] = [(oracle::rsync(), 0), (oracle::under_test(), 1)]
            .map(|(program, i)| self.see(program, options, operands, i));
        let mut differences = String::new();
        if wanted.exit != got.exit {
            differences += &format!("  exit\n    - {}\n    + {}\n", wanted.exit, got.exit);
        }
        let mut section = |title: &str, difference: Option<String>| {
            differences += &difference
                .map(|d| format!("  {title}\n{d}"))
                .unwrap_or_default();
        };
        section("stderr", diff::lines(&wanted.stderr, &got.stderr));
        let stdout = if self.stdout_in_order.get() {
            diff::lines(&wanted.stdout, &got.stdout)
        } else {
            let floats = floats(options, self.is_received_by_rsync());
            diff::stdout(&wanted.stdout, &got.stdout, floats)
        };
        section("stdout", stdout);
        section(
            "tree (kind, mode, owner, mtime, path, content, attributes, links)",
            diff::trees(&wanted.tree, &got.tree),
        );
        section("logs", diff::lines(&wanted.logs, &got.logs));
        if !differences.is_empty() {
            return Err(self.failure(phase, options, operands, &differences));
        }
        Ok(self.agreed(wanted.stdout, wanted.stderr, wanted.exit))
    }

    fn agreed(&self, stdout: String, stderr: String, exit: i32) -> Agreed {
        Agreed {
            route: self.route,
            is_as_expected: self.route.is_as_expected(&self.name),
            stdout,
            stderr,
            exit,
        }
    }

    fn see(&self, program: &Path, options: &[Vec<u8>], operands: &[Vec<u8>], i: usize) -> Seen {
        self.see_command(program, &[], options, operands, i)
    }

    /// Runs a program with these words before the options of the route.
    fn see_command(
        &self,
        program: &Path,
        command: &[Vec<u8>],
        options: &[Vec<u8>],
        operands: &[Vec<u8>],
        i: usize,
    ) -> Seen {
        let twin = &self.twins[i];
        let argv = [command, &self.argv(program, options, operands, i)].concat();
        let before = self.surroundings_of(program, i);
        let client = if self.route.is_served() {
            oracle::rsync()
        } else {
            program
        };
        let Output {
            stdout,
            stderr,
            exit,
        } = run(client, &argv, twin, &before);
        let mask = Mask {
            world: twin,
            home: &before.home,
            now_secs: self.lens.get().now_secs,
            is_far: self.route.is_far(),
            has_shell: !self.route.has_server(),
            finds_differences: options
                .iter()
                .any(|option| option == b"--no-whole-file" || option == b"--no-W"),
            own: self.own_mask.get(),
        };
        let mut stderr = mask.text(&stderr);
        let mut exit = exit;
        if self.route.is_far() {
            (stderr, exit) = one_end(&stderr, exit);
        } else if !self.stderr_ordered.get() {
            stderr = sorted(stderr.split('\n').collect()).join("\n");
        }
        Seen {
            stdout: mask.text(&stdout),
            stderr,
            exit,
            tree: snapshot(twin, self.lens.get()),
            logs: logs(twin, &mask),
        }
    }

    /// Returns how to run a program in its twin, with what leads a client to its peer.
    fn surroundings_of(&self, program: &Path, twin: usize) -> Surroundings {
        let world = &self.twins[twin];
        let surroundings = self.surroundings.borrow();
        let mut surroundings = Surroundings {
            stdin: put_world(&surroundings.stdin, world),
            ..surroundings.clone()
        };
        if self.route.is_daemon() {
            let place = Place {
                world,
                scratch: self.scratch_dir(),
                umask: surroundings.umask,
            };
            // Only root can become another user.
            let is_root = surroundings.who != Who::User && rustix::process::geteuid().is_root();
            let peer = if self.route.is_stock() {
                oracle::rsync()
            } else {
                program
            };
            surroundings.env.extend(place.daemon(peer, is_root));
        }
        if self.route.has_server() && twin == 1 {
            let server = self.server(&surroundings);
            surroundings
                .env
                .push(server.lock().expect("no panic").variable());
        }
        surroundings
    }

    /// Returns the server of this world, which is started on first use.
    fn server(&self, surroundings: &Surroundings) -> Arc<Mutex<Server>> {
        let mut server = self.server.borrow_mut();
        let start = || Arc::new(Mutex::new(Server::start(&self.twins[1], surroundings)));
        server.get_or_insert_with(start).clone()
    }

    fn failure(
        &self,
        phase: &str,
        options: &[Vec<u8>],
        operands: &[Vec<u8>],
        differences: &str,
    ) -> String {
        let argv = self.argv(oracle::rsync(), options, operands, 0);
        let Surroundings { who, umask, .. } = &*self.surroundings.borrow();
        let words: Vec<_> = argv.iter().map(|arg| quote(arg)).collect();
        let kept = match std::env::var_os("SPARSYNC_KEEP") {
            Some(_) => format!("look: {}", self.scratch_dir().display()),
            None => "SPARSYNC_KEEP=1 keeps the trees".to_owned(),
        };
        format!(
            "{}: {phase} differs (route {:?}, who {who:?}, umask {umask:03o})\n  $ rsync {}\n  - is {}, + is {}\n{differences}  {kept}\n",
            self.name,
            self.route,
            words.join(" "),
            oracle::rsync().display(),
            oracle::under_test().display(),
        )
    }

    fn scratch_dir(&self) -> &Path {
        self.scratch
            .as_ref()
            .expect("a world has its directory until it is dropped")
            .path()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for place in self.mounts.borrow().iter().rev() {
            let _ = Command::new("umount").arg(place).output();
        }
        if std::thread::panicking()
            && std::env::var_os("SPARSYNC_KEEP").is_some()
            && let Some(scratch) = self.scratch.take()
        {
            let _kept = scratch.keep();
        }
        if let Some(scratch) = &self.scratch
            && !rustix::process::geteuid().is_root()
        {
            // Directories that a case made inaccessible could not be removed.
            let _ = Command::new("chmod")
                .args(["-R", "u+rwX"])
                .arg(scratch.path())
                .output();
        }
    }
}

impl Agreed {
    /// Adapts the text that a case expects to the route: on a push items begin with `<`, and a daemon prints the path that
    /// it created; on a pull lists are received.
    fn adapted_to_route(&self, text: &str) -> String {
        match self.route {
            Route::Push(_) if self.route.is_daemon() && text.starts_with("created directory ") => {
                text.replacen("directory ", "directory {W}/", 1)
            }
            Route::Push(_) if text.starts_with('>') => text.replacen('>', "<", 1),
            Route::Pull(_) => text.replace("sending incremental", "receiving incremental"),
            Route::Push(_) | Route::Local => text.to_owned(),
        }
    }

    /// Checks the exit code on which both agreed.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert!(
            !self.is_as_expected || self.exit == code,
            "the test does not show what its name says: exit {}; stderr was:\n{}",
            self.exit,
            self.stderr
        );
        self
    }

    /// Checks that stdout contains `text`.
    #[track_caller]
    pub fn prints(self, text: &str) -> Self {
        let text = &self.adapted_to_route(text);
        assert!(
            !self.is_as_expected || self.stdout.contains(text),
            "the case does not show {text:?}; stdout was:\n{}",
            self.stdout
        );
        self
    }

    /// Checks that stdout does not contain `text`.
    #[track_caller]
    pub fn never_prints(self, text: &str) -> Self {
        let text = &self.adapted_to_route(text);
        assert!(
            !self.is_as_expected || !self.stdout.contains(text),
            "the case shows {text:?}; stdout was:\n{}",
            self.stdout
        );
        self
    }

    /// Checks that stderr contains `text`.
    #[track_caller]
    pub fn warns(self, text: &str) -> Self {
        // A daemon names the module of a path.
        let is_found = self.stderr.replace("\" (in root)", "\"").contains(text);
        assert!(
            !self.is_as_expected || is_found,
            "the case does not show {text:?}; stderr was:\n{}",
            self.stderr
        );
        self
    }
}

fn sorted(mut lines: Vec<&str>) -> Vec<&str> {
    lines.sort_unstable();
    lines
}

/// Returns whether a line is rsync's about a read that a signal interrupted.
///
/// The signal handler of rsync, which reaps the process of a connection, can change the error of an interrupted read to
/// "No child processes". rsync then reports it, at any moment and with the exit code of the run.
pub fn is_interrupted_read(line: &str) -> bool {
    line.ends_with("read error: No child processes (10)")
}

/// Normalizes the stderr of two machines, which mix in any order, and the exit code.
///
/// Both ends report the end of the run. If rsync's remote end dies with a code of its own, the local end reports that
/// the stream ended or that a write failed (12, 10), if it notices that first. The local end exits with either of the two
/// codes. Without another cause, the messages about a lost connection are compared.
fn one_end(stderr: &str, exit: i32) -> (String, i32) {
    const BROKEN_OFF: [&str; 2] = ["(code 12) at", "(code 10) at"];
    const CONSEQUENCES: [&str; 4] = [
        "connection unexpectedly closed (",
        "safe_write failed",
        "write error: Broken pipe",
        "read error: Connection reset by peer",
    ];
    let mut lines = sorted(stderr.split('\n').collect());
    lines.dedup();
    lines.retain(|line| !is_interrupted_read(line));
    let is_end = |line: &&str| line.starts_with("rsync error: ");
    let is_cause = |line: &&str| is_end(line) && !BROKEN_OFF.iter().any(|code| line.contains(code));
    let code = |line: &str| line.split_once("(code ")?.1.split(')').next()?.parse().ok();
    // A case may have masked the line with the code.
    let own = (!matches!(exit, 0 | 10 | 12)).then_some(exit);
    let Some(cause) = lines.iter().copied().find(is_cause).and_then(code).or(own) else {
        return (lines.join("\n"), exit);
    };
    let is_consequence = |line: &str| {
        line.starts_with("rsync: ") && CONSEQUENCES.iter().any(|words| line.contains(words))
    };
    lines.retain(|line| {
        if is_end(line) {
            is_cause(line)
        } else {
            !is_consequence(line)
        }
    });
    (
        lines.join("\n"),
        if matches!(exit, 10 | 12) { cause } else { exit },
    )
}

/// Returns whether an argument requests a dry run.
fn is_dry(option: &[u8]) -> bool {
    let letters = option
        .strip_prefix(b"-")
        .filter(|letters| letters.iter().all(u8::is_ascii_alphabetic));
    option == b"--dry-run" || letters.is_some_and(|letters| letters.contains(&b'n'))
}

/// Returns which lines rsync prints at varying times. `is_received_by_rsync`: also opposite the program under test.
fn floats(argv: &[Vec<u8>], is_received_by_rsync: bool) -> diff::Floats {
    let missing =
        is_received_by_rsync && argv.iter().any(|option| option == b"--delete-missing-args");
    diff::Floats {
        deletions: deletes_meanwhile(argv),
        missing,
        links: !argv.iter().any(|option| is_dry(option)),
    }
}

/// Returns whether deletions are reported between items, not before or after all of them.
fn deletes_meanwhile(argv: &[Vec<u8>]) -> bool {
    if argv.iter().any(|option| option == b"--delete-missing-args") {
        return true;
    }
    const APART: [&[u8]; 3] = [b"--delete-before", b"--delete-delay", b"--delete-after"];
    argv.iter()
        .any(|arg| arg.starts_with(b"--del") || arg == b"--force")
        && !argv.iter().any(|arg| APART.contains(&&arg[..]))
}

/// Replaces `{W}` with the path of the twin.
fn put_world(bytes: &[u8], twin: &Path) -> Vec<u8> {
    const PLACE: &[u8] = b"{W}";
    let mut put = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(PLACE.len()).position(|window| window == PLACE) {
        put.extend_from_slice(&rest[..at]);
        put.extend_from_slice(twin.as_os_str().as_encoded_bytes());
        rest = &rest[at + PLACE.len()..];
    }
    put.extend_from_slice(rest);
    put
}

/// Copies a tree with all attributes to a path that does not exist.
fn copy_tree(from: &Path, to: &Path) {
    let copied = Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status()
        .expect("cp can be started");
    assert!(copied.success(), "{} can be copied", from.display());
}

/// Runs mount(8) and returns whether it succeeded.
fn mount(args: &[&str], place: &Path) -> bool {
    Command::new("mount")
        .args(args)
        .arg(place)
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Changes everything that root owns in a world to the ordinary user; other owners stay.
fn chown_to_user(path: &Path) {
    let stat = fs::lstat(path).expect("what was built exists");
    let kind = FileType::from_raw_mode(stat.st_mode);
    if stat.st_uid == 0 {
        let (uid, gid) = (Uid::from_raw(USER), Gid::from_raw(USER));
        fs::chownat(
            fs::CWD,
            path,
            Some(uid),
            Some(gid),
            AtFlags::SYMLINK_NOFOLLOW,
        )
        .expect("root can chown");
        if kind != FileType::Symlink {
            fs::chmod(path, Mode::from_raw_mode(stat.st_mode)).expect("root can chmod");
        }
    }
    if kind == FileType::Directory {
        let entries = std::fs::read_dir(path).expect("root can read");
        entries.for_each(|entry| chown_to_user(&entry.expect("root can read").path()));
    }
}

/// The log of a server. The order of its lines varies: two processes of rsync write it.
const SERVER_LOG: &str = "far.log";

/// Returns the masked lines of all logs in a world.
fn logs(twin: &Path, mask: &Mask) -> String {
    let entries = std::fs::read_dir(twin)
        .expect("a world can be read")
        .map(|e| e.expect("a world can be read"));
    let mut paths: Vec<_> = entries
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "log"))
        .collect();
    paths.sort();
    let lines = |path: &PathBuf| {
        let text = mask.text(&std::fs::read(path).expect("a log can be read"));
        match path.ends_with(SERVER_LOG) {
            true => sorted(text.lines().collect()).join("\n"),
            false => text,
        }
    };
    paths.iter().map(lines).collect()
}

/// Logs the options of a run, for docs/OPTIONS.md.
fn log_argv(options: &[Vec<u8>], operands: &[Vec<u8>]) {
    use std::io::Write as _;
    if let Some(list) = std::env::var_os("SPARSYNC_ARGV_LOG") {
        let words: Vec<_> = options
            .iter()
            .chain(operands)
            .map(|arg| quote(arg))
            .collect();
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(list);
        let written =
            file.and_then(|mut file| file.write_all(format!("{}\n", words.join(" ")).as_bytes()));
        written.expect("SPARSYNC_ARGV_LOG can be written");
    }
}

/// Quotes an argument for bash.
fn quote(arg: &[u8]) -> String {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_./=,:%+@{}".contains(b);
    let text = arg.escape_ascii().to_string();
    if !arg.is_empty() && arg.iter().all(plain) {
        text
    } else {
        format!("$'{text}'")
    }
}

/// Returns the output without deletions that are printed again. In a dry run of rsync, a directory in the way of a hard
/// link is still there when the link is printed, and is emptied twice.
fn deletions_once(stdout: &str) -> String {
    let mut deleted = HashSet::new();
    stdout
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("*deleting") || deleted.insert(*line))
        .collect()
}

//! The routes that cases run on: how the operands of a case reach the program, and which peer is at the other end.

use super::{FAKE_SSH, skip, write_script};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// How the operands of a case reach the program.
///
/// Each case runs once per route. `SPARSYNC_TEST_ROUTES` chooses among them, separated by commas:
///
/// - `local`: both trees on this machine;
/// - `push`, `pull`: through a script in place of ssh;
/// - `quic-push`, `quic-pull`, `tls-push`, `tls-pull`: through a sparsync server;
/// - `mixed`: for each case one direction through the script and the other over QUIC, chosen by the name of the case. A
///   case that does not run over QUIC uses the script in both directions;
/// - `once-push`, `once-pull`: through an ephemeral server that the script starts for each run;
/// - `stock-push`, `stock-pull`: through the script, with rsync as the peer of both programs;
/// - `served-push`, `served-pull`: through the script, with the program under test as the peer of an rsync;
/// - `daemon-push`, `daemon-pull`: with a daemon of rsync as the peer of both programs;
/// - `own-daemon-push`, `own-daemon-pull`: with a daemon of the same program as the peer;
/// - `served-daemon-push`, `served-daemon-pull`: with the daemons of both programs as the peers of an rsync;
/// - `sshd`: through a real sshd, for the few cases that use one.
///
/// The default is `local,mixed,sshd`: options and decisions do not depend on the transport, so each case runs once in each
/// direction. `scripts/test --all-routes` runs every case on every route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Both trees on this machine, given as plain paths.
    Local,
    /// The destination is on a peer.
    Push(Shell),
    /// The sources are on a peer.
    Pull(Shell),
}

/// The transport to the peer. rsync always uses the remote shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    /// A script that drops ssh's own arguments and passes the rest to a shell, as sshd does. It stays in the directory
    /// in which it was started.
    Fake,
    /// ssh and sshd.
    Real,
    /// The program under test uses its own server, over QUIC. rsync uses the script.
    Quic,
    /// The program under test uses its own server, over TLS and TCP. rsync uses the script.
    Tls,
    /// The program under test starts an ephemeral server through the script for each run and connects to it over QUIC.
    Once,
    /// Like `Fake`, but rsync is the peer of the program under test, too.
    Stock,
    /// Like `Fake`, but rsync is the client of both programs.
    Served,
    /// A daemon, which the client starts on a socket. Its module `m` is the world.
    Module(Peer),
    /// The same daemon. Its module `root` is the root directory.
    Daemon(Peer),
}

/// The two ends of a copy with a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The daemon of both clients is an rsync.
    Stock,
    /// Both programs are their own daemons.
    Own,
    /// The client of both daemons is an rsync.
    Served,
}

/// The words of `SPARSYNC_TEST_ROUTES`.
const ROUTE_WORDS: [&str; 21] = [
    "local",
    "push",
    "pull",
    "mixed",
    "quic-push",
    "quic-pull",
    "tls-push",
    "tls-pull",
    "once-push",
    "once-pull",
    "stock-push",
    "stock-pull",
    "served-push",
    "served-pull",
    "daemon-push",
    "daemon-pull",
    "own-daemon-push",
    "own-daemon-pull",
    "served-daemon-push",
    "served-daemon-pull",
    "sshd",
];

/// Cases that do not run with a daemon as the peer, by the beginnings of their names, with the reasons.
const NOT_WITH_DAEMON: [(&str, &str); 8] = [
    ("devices::copied_device_", REFUSED_DEVICES),
    ("devices::device_content_is_backed_up", REFUSED_DEVICES),
    ("devices::device_over_device_", REFUSED_DEVICES),
    ("devices::device_that_cannot_be_opened_", REFUSED_DEVICES),
    ("devices::fake_super_device_is_copied_", REFUSED_DEVICES),
    ("devices::remove_source_files_keeps_", REFUSED_DEVICES),
    (
        "links::group_with_vv",
        "a pull gets the whole list, which the arguments show",
    ),
    (
        "place::relative_path_with_dot_dot",
        "rsync rejects the path to which its daemon resolves `..`",
    ),
];
const REFUSED_DEVICES: &str = "a daemon refuses --copy-devices and --write-devices";

/// The same for pushes to a daemon of the program under test.
const NOT_TO_OWN_DAEMON: [(&str, &str); 11] = [
    ("copy::implied_parent_that_is_no_directory_", LINKS_INSIDE),
    ("delete::max_delete_", CLIENT_EXITS),
    (
        "exit::a_usermap_without_a_colon",
        "a daemon that refuses an option exits with 4",
    ),
    (
        "itemize::info_name_twice",
        "`max verbosity` does not limit --info of a sparsync",
    ),
    ("links::keep_dirlinks_cannot_", LINKS_INSIDE),
    ("links::keep_dirlinks_rejects_", LINKS_INSIDE),
    ("links::keep_dirlinks_sets_", LINKS_INSIDE),
    ("messages::max_delete_", CLIENT_EXITS),
    (
        "place::delayed_files_cannot_wait_above",
        "the paths of options are checked from the destination",
    ),
    (
        "place::delta_against_an_unreadable_basis",
        "rsync's daemon cannot open the basis",
    ),
    (
        "trust_links::",
        "links of other users are also refused in a chroot",
    ),
];
const LINKS_INSIDE: &str = "no symlink leads out of the destination";
const CLIENT_EXITS: &str = "the client exits with 25";

/// The same for pulls from a daemon of the program under test.
const NOT_FROM_OWN_DAEMON: [(&str, &str); 3] = [
    (
        "copy::path_of_an_earlier_argument_further_on",
        "with absolute names, the counts are those of `a/d b/d a/d`",
    ),
    (
        "filter::cvs_exclude_reads_home_",
        "the rules of -C are those of the client",
    ),
    (
        "itemize::a_log_of_errors",
        "the client does not log the errors of the daemon",
    ),
];

/// Cases in which rsync does something else if it pushes to a daemon, with the reasons. Both programs must do the same.
const OTHER_TO_DAEMON: [(&str, &str); 16] = [
    ("delete::max_delete_", EXITS_0),
    ("devices::content_is_", REFUSED_DEVICES),
    ("devices::deltas_are_written_", REFUSED_DEVICES),
    ("devices::device_as_the_destination_", REFUSED_DEVICES),
    ("devices::full_device_exits_11", REFUSED_DEVICES),
    ("devices::ignore_existing_skips_devices", REFUSED_DEVICES),
    (
        "devices::update_option_does_not_skip_devices",
        REFUSED_DEVICES,
    ),
    ("links::keep_dirlinks_cannot_", OTHER_LINKS),
    ("links::keep_dirlinks_rejects_", OTHER_LINKS),
    ("links::keep_dirlinks_sets_", OTHER_LINKS),
    ("messages::max_delete_", EXITS_0),
    ("place::backup_replaced_by_a_directory_", VERBOSITY),
    (
        "place::delta_against_an_unreadable_basis",
        "rsync's daemon cannot open the basis",
    ),
    (
        "place::relative_temp_dir_may_not_climb",
        "`..` does not lead out of the module",
    ),
    ("select::skipped_file_is_reported_", VERBOSITY),
    ("trust_links::", OTHER_LINKS),
];
const EXITS_0: &str = "the client does not learn that deletions were stopped";
const OTHER_LINKS: &str = "rsync's daemon follows other links than a local rsync";
const VERBOSITY: &str = "`max verbosity` of the daemon";

impl Route {
    /// The routes that every case runs on, as far as they were chosen.
    pub const ALL: &[Route] = &[
        Route::Local,
        Route::Push(Shell::Fake),
        Route::Pull(Shell::Fake),
        Route::Push(Shell::Quic),
        Route::Pull(Shell::Quic),
        Route::Push(Shell::Tls),
        Route::Pull(Shell::Tls),
        Route::Push(Shell::Once),
        Route::Pull(Shell::Once),
        Route::Push(Shell::Stock),
        Route::Pull(Shell::Stock),
        Route::Push(Shell::Served),
        Route::Pull(Shell::Served),
        Route::Push(Shell::Daemon(Peer::Stock)),
        Route::Pull(Shell::Daemon(Peer::Stock)),
        Route::Push(Shell::Daemon(Peer::Own)),
        Route::Pull(Shell::Daemon(Peer::Own)),
        Route::Push(Shell::Daemon(Peer::Served)),
        Route::Pull(Shell::Daemon(Peer::Served)),
    ];
    /// The routes of cases that need a peer.
    pub const FAR: &[Route] = &[Route::Push(Shell::Fake), Route::Pull(Shell::Fake)];
    /// The routes of the few cases about ssh itself.
    pub const SSH: &[Route] = &[Route::Push(Shell::Real), Route::Pull(Shell::Real)];

    /// The routes of the cases about sessions with a stock rsync, which run whatever is chosen.
    pub const STOCK: &[Route] = &[Route::Push(Shell::Stock), Route::Pull(Shell::Stock)];

    /// The routes of the cases about serving a stock rsync, which run whatever is chosen.
    pub const SERVED: &[Route] = &[Route::Push(Shell::Served), Route::Pull(Shell::Served)];

    /// The routes of the cases about daemons, which run whatever is chosen.
    pub const DAEMON: &[Route] = &[
        Route::Push(Shell::Module(Peer::Stock)),
        Route::Pull(Shell::Module(Peer::Stock)),
        Route::Push(Shell::Module(Peer::Own)),
        Route::Pull(Shell::Module(Peer::Own)),
    ];

    /// Returns whether `SPARSYNC_TEST_ROUTES` chooses the route for `case`, which can run on `routes`.
    pub fn is_chosen(self, case: &str, routes: &[Route]) -> bool {
        static CHOICE: OnceLock<String> = OnceLock::new();
        let choice = CHOICE.get_or_init(|| {
            let choice = std::env::var("SPARSYNC_TEST_ROUTES").unwrap_or("local,mixed,sshd".into());
            // A word that chooses nothing would let every case pass without a run.
            let unknown = choice.split(',').find(|word| !ROUTE_WORDS.contains(word));
            assert_eq!(
                unknown,
                None,
                "SPARSYNC_TEST_ROUTES: expected {}",
                ROUTE_WORDS.join(", ")
            );
            choice
        });
        let word = match self {
            Route::Local => "local",
            Route::Push(Shell::Fake) => "push",
            Route::Pull(Shell::Fake) => "pull",
            Route::Push(Shell::Quic) => "quic-push",
            Route::Pull(Shell::Quic) => "quic-pull",
            Route::Push(Shell::Tls) => "tls-push",
            Route::Pull(Shell::Tls) => "tls-pull",
            Route::Push(Shell::Once) => "once-push",
            Route::Pull(Shell::Once) => "once-pull",
            Route::Push(Shell::Stock) => "stock-push",
            Route::Pull(Shell::Stock) => "stock-pull",
            Route::Push(Shell::Served) => "served-push",
            Route::Pull(Shell::Served) => "served-pull",
            Route::Push(Shell::Real) | Route::Pull(Shell::Real) => "sshd",
            Route::Push(Shell::Module(_)) | Route::Pull(Shell::Module(_)) => return true,
            Route::Push(Shell::Daemon(Peer::Stock)) => "daemon-push",
            Route::Pull(Shell::Daemon(Peer::Stock)) => "daemon-pull",
            Route::Push(Shell::Daemon(Peer::Own)) => "own-daemon-push",
            Route::Pull(Shell::Daemon(Peer::Own)) => "own-daemon-pull",
            Route::Push(Shell::Daemon(Peer::Served)) => "served-daemon-push",
            Route::Pull(Shell::Daemon(Peer::Served)) => "served-daemon-pull",
        };
        let mix = if case.bytes().map(u32::from).sum::<u32>() % 2 == 0 {
            [Route::Push(Shell::Fake), Route::Pull(Shell::Quic)]
        } else {
            [Route::Pull(Shell::Fake), Route::Push(Shell::Quic)]
        };
        let has_quic = routes.contains(&Route::Push(Shell::Quic));
        let is_in_mix = mix.contains(&self) || !has_quic && Route::FAR.contains(&self);
        let is_about_stock = Route::STOCK.contains(&self)
            && ["::stock::", "::protocols::"]
                .iter()
                .any(|module| case.contains(module));
        let is_about_serving = Route::SERVED.contains(&self)
            && ["::stock_server::", "::protocols::"]
                .iter()
                .any(|module| case.contains(module));
        is_about_stock
            || is_about_serving
            || choice
                .split(',')
                .any(|chosen| chosen == word || chosen == "mixed" && is_in_mix)
    }

    /// Returns why a case does not run on this route, although the route was chosen.
    pub fn exclusion(self, case: &str) -> Option<&'static str> {
        let peer = self.peer()?;
        let case = case.split_once("::").map_or(case, |(_, case)| case);
        let of_direction: &[_] = match self {
            _ if peer == Peer::Stock => &[],
            Route::Pull(_) => &NOT_FROM_OWN_DAEMON,
            _ => &NOT_TO_OWN_DAEMON,
        };
        let mut all = NOT_WITH_DAEMON.iter().chain(of_direction);
        all.find(|(begin, _)| case.starts_with(begin))
            .map(|(_, reason)| *reason)
    }

    /// Returns whether rsync itself does on this route what a case expects. Otherwise the case only compares.
    pub fn is_as_expected(self, case: &str) -> bool {
        let case = case.split_once("::").map_or(case, |(_, case)| case);
        !matches!(self, Route::Push(Shell::Daemon(_)))
            || !OTHER_TO_DAEMON
                .iter()
                .any(|(begin, _)| case.starts_with(begin))
    }

    /// Returns whether rsync is the peer of the program under test.
    pub fn is_stock(self) -> bool {
        self.shell() == Some(Shell::Stock) || self.peer() == Some(Peer::Stock)
    }

    /// Returns whether the program under test serves an rsync.
    pub fn is_served(self) -> bool {
        self.shell() == Some(Shell::Served) || self.peer() == Some(Peer::Served)
    }

    /// Returns whether a daemon is the peer.
    pub fn is_daemon(self) -> bool {
        self.peer().is_some()
    }

    fn shell(self) -> Option<Shell> {
        match self {
            Route::Local => None,
            Route::Push(shell) | Route::Pull(shell) => Some(shell),
        }
    }

    fn peer(self) -> Option<Peer> {
        match self.shell()? {
            Shell::Module(peer) | Shell::Daemon(peer) => Some(peer),
            _ => None,
        }
    }

    /// Returns whether a server is the peer: one that runs already, or one for the run.
    pub fn is_by_server(self) -> bool {
        self.has_server() || matches!(self.shell(), Some(Shell::Once))
    }

    /// Returns whether the program under test uses QUIC.
    pub fn is_by_quic(self) -> bool {
        matches!(self.shell(), Some(Shell::Quic | Shell::Once))
    }

    /// Returns whether the program under test needs a server.
    pub fn has_server(self) -> bool {
        matches!(
            self,
            Route::Push(Shell::Quic | Shell::Tls) | Route::Pull(Shell::Quic | Shell::Tls)
        )
    }

    /// Returns whether a peer takes part.
    pub fn is_far(self) -> bool {
        self != Route::Local
    }

    /// Returns the command line for this route: options, then operands. `program` runs at both ends.
    pub fn argv(
        self,
        program: &Path,
        place: &Place,
        options: &[Vec<u8>],
        operands: &[Vec<u8>],
    ) -> Vec<Vec<u8>> {
        let shell = match self {
            Route::Local => return options.iter().chain(operands).cloned().collect(),
            Route::Push(shell) | Route::Pull(shell) => shell,
        };
        let mut operands = operands.to_vec();
        let mut paths = paths_among(&mut operands);
        let dest = if paths.len() > 1 { paths.pop() } else { None };
        let far = match (self, dest) {
            (Route::Pull(_), _) => paths,
            (_, Some(dest)) => vec![dest],
            (_, None) => skip("a listing has no push"),
        };
        let is_relative = options.iter().any(|option| {
            option == b"--relative"
                || option.starts_with(b"-") && !option.starts_with(b"--") && option.contains(&b'R')
        });
        for path in far {
            let is_marked = path.windows(3).any(|part| part == b"/./");
            let before: &[u8] = match shell {
                Shell::Module(_) => b"far::m/",
                Shell::Daemon(_) if path.starts_with(b"/") || path.starts_with(b"{W}") => {
                    b"far::root"
                }
                // The directories of the world are no part of the name.
                Shell::Daemon(_) if is_relative && !is_marked => b"far::root{W}/./",
                Shell::Daemon(_) => b"far::root{W}/",
                _ => b"far:",
            };
            *path = [before, &path[..]].concat();
        }
        if self.is_daemon() {
            return options.iter().cloned().chain(operands).collect();
        }
        let own = match shell {
            Shell::Quic | Shell::Once => Some("--transport=quic"),
            Shell::Tls => Some("--transport=tls"),
            _ => None,
        };
        let own = own
            .filter(|_| program == super::oracle::under_test())
            .map(|own| own.as_bytes().to_vec());
        if shell != Shell::Once && own.is_some() {
            return own
                .into_iter()
                .chain(options.iter().cloned())
                .chain(operands)
                .collect();
        }
        let (command, before) = match shell {
            Shell::Real => {
                let before = format!(
                    "cd {} && umask {:o} && exec ",
                    place.world.display(),
                    place.umask
                );
                (sshd().command(), before)
            }
            _ => (place.fake_shell(), String::new()),
        };
        let peer = if shell == Shell::Stock {
            super::oracle::rsync()
        } else {
            program
        };
        let route = [
            format!("--rsh={command}"),
            format!("--rsync-path={before}{}", peer.display()),
        ];
        own.into_iter()
            .chain(route.into_iter().map(String::into_bytes))
            .chain(options.iter().cloned())
            .chain(operands)
            .collect()
    }
}

/// Returns the words that are paths: those after `--`, or without a leading dash.
fn paths_among(words: &mut [Vec<u8>]) -> Vec<&mut Vec<u8>> {
    let end = words.iter().position(|word| word == b"--");
    let is_path = |(at, word): &(usize, &mut Vec<u8>)| match end {
        Some(end) if *at == end => false,
        Some(end) if *at > end => true,
        _ => !word.starts_with(b"-") || word.len() == 1,
    };
    words
        .iter_mut()
        .enumerate()
        .filter(is_path)
        .map(|(_, word)| word)
        .collect()
}

/// Where a program runs.
pub struct Place<'a> {
    /// The twin, which is the working directory.
    pub world: &'a Path,
    /// The directory that holds both twins.
    pub scratch: &'a Path,
    /// The umask, which a real sshd does not pass on.
    pub umask: u32,
}

impl Place<'_> {
    /// Returns the variables that lead a client to a daemon of `program`, writing its configuration on first use.
    /// `is_root`: it serves as root.
    pub fn daemon(&self, program: &Path, is_root: bool) -> [(String, String); 2] {
        const CONFIG: &str = "log file = /dev/null\nuse chroot = no\nmunge symlinks = no\n\
            read only = no\n[m]\npath = %WORLD%\n[root]\npath = /\n";
        // As root, rsync 3.5.0 finds the files of --files-from only after chroot.
        const ROOT: &str = "use chroot = yes\nnumeric ids = no\n";
        let path = self.scratch.join("rsyncd.conf");
        let text = match is_root {
            true => ["uid = 0\ngid = 0\n", CONFIG, ROOT].concat(),
            false => CONFIG.to_owned(),
        };
        if !path.exists() {
            std::fs::write(&path, text).expect("scratch can be written");
        }
        let daemon = format!("{} --config={} --daemon", program.display(), path.display());
        let world = self.world.display().to_string();
        [
            ("RSYNC_CONNECT_PROG".to_owned(), daemon),
            ("WORLD".to_owned(), world),
        ]
    }

    /// Returns the command of the fake remote shell, writing the script on first use.
    fn fake_shell(&self) -> String {
        const SCRIPT: &str = "[ -z \"$FAR_UMASK\" ] || umask \"$FAR_UMASK\"\n\
            export SSH_CONNECTION='127.0.0.1 1 127.0.0.1 22'\nexec sh -c \"$*\"\n";
        let path = self.scratch.join("fake-ssh");
        if !path.exists() {
            write_script(&path, &[FAKE_SSH, SCRIPT].concat());
        }
        path.display().to_string()
    }
}

/// Returns an ssh command that connects to a private sshd; skips the case if there is no sshd.
pub fn ssh() -> String {
    sshd().command()
}

/// An sshd that all tests of this process reach through one ssh connection.
struct Sshd {
    dir: PathBuf,
    /// Holds the connection, which ends when the standard input of this child closes with this process.
    _master: Child,
}

/// Starts the sshd once; skips the case if that fails.
fn sshd() -> &'static Sshd {
    static SSHD: OnceLock<Result<Sshd, String>> = OnceLock::new();
    match SSHD.get_or_init(Sshd::start) {
        Ok(sshd) => sshd,
        Err(why) => skip(why),
    }
}

impl Sshd {
    /// Returns the remote shell's command.
    fn command(&self) -> String {
        format!("ssh -F {}", self.dir.join("ssh_config").display())
    }

    fn start() -> Result<Sshd, String> {
        let server = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        let server = server.ok_or("there is no sshd")?;
        if rustix::process::geteuid().is_root() {
            // As root, sshd requires this directory, which is missing on a system without a running sshd.
            let _ = std::fs::create_dir_all("/run/sshd");
        }
        // The path of a Unix socket must be short.
        let dir = tempfile::Builder::new()
            .prefix("sparsync-sshd-")
            .tempdir_in("/tmp")
            .map_err(|e| e.to_string())?;
        let dir = dir.keep();
        let shown = dir.display();
        for key in ["host", "user"] {
            let mut make = Command::new("ssh-keygen");
            let made = make
                .args(["-q", "-t", "ed25519", "-N", "", "-f", key])
                .current_dir(&dir)
                .status();
            made.ok()
                .filter(|status| status.success())
                .ok_or("ssh-keygen makes no keys")?;
        }
        let write = |name: &str, text: String| {
            std::fs::write(dir.join(name), text).expect("the test's own directory")
        };
        let public =
            |key: &str| std::fs::read_to_string(dir.join(key)).expect("ssh-keygen wrote it");
        write("known", format!("far {}", public("host.pub")));
        write("authorized", public("user.pub"));
        // An own home: the login scripts of this machine may print, and may fail when several run at the same time.
        write(
            "sshd_config",
            format!(
                "HostKey {shown}/host\nAuthorizedKeysFile {shown}/authorized\nStrictModes no\nUsePAM no\nPidFile none\n\
                 PermitRootLogin yes\nLogLevel ERROR\nPrintMotd no\nMaxSessions 100\nAcceptEnv *\n\
                 SetEnv HOME={shown}\n"
            ),
        );
        // No port: each connection starts its own sshd on the pipe of ssh's `ProxyCommand`.
        write(
            "ssh_config",
            format!(
                "Host *\nHostKeyAlias far\nUserKnownHostsFile {shown}/known\nGlobalKnownHostsFile /dev/null\n\
                 IdentityFile {shown}/user\nIdentitiesOnly yes\nIdentityAgent none\nBatchMode yes\nLogLevel ERROR\n\
                 ControlPath {shown}/socket\nSendEnv LC_* TZ SPARSYNC_* RSYNC_*\n\
                 ProxyCommand {server} -i -e -f {shown}/sshd_config\n"
            ),
        );
        // When this process ends, the connection ends and the directory is removed.
        let mut master = Command::new("ssh");
        master.arg("-F").arg(dir.join("ssh_config")).args([
            "-M",
            "far",
            &format!("echo; cat; rm -r {shown}"),
        ]);
        let mut master = master
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let child = master
            .as_mut()
            .map_err(|e| format!("ssh cannot be started: {e}"))?;
        let mut first = [0];
        let ready = child
            .stdout
            .as_mut()
            .map(|out| std::io::Read::read(out, &mut first));
        match ready {
            Some(Ok(1)) => Ok(Sshd {
                dir,
                _master: master.map_err(|e| e.to_string())?,
            }),
            _ => {
                let _ = std::fs::remove_dir_all(&dir);
                Err("sshd does not let us in".to_owned())
            }
        }
    }
}

//! Runs that lose their connection: what must hold for both trees, the output and the exit code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{World, diff, files, floats, is_temp, oracle, snapshot};
use crate::kit::server::Server;
use crate::kit::{Cut, Relay, Route, Trigger};

/// The limit for a run to end, even on a busy machine. The client reconnects for up to two minutes.
const PROMPTLY: Duration = Duration::from_secs(60);
/// The timeout of runs that notice a loss only by silence.
const TIMEOUT: &str = "--timeout=2";
/// The exit codes of runs that could not be repeated.
const BROKEN_OFF: [i32; 3] = [10, 12, 30];
/// Interrupted files of at least this length are kept for the next attempt.
const RESUMED_BYTES: usize = 1 << 20;

/// A loss of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Count the bytes towards the server, otherwise those towards the client.
    pub to_server: bool,
    /// The number of bytes that still pass, since the loss before this one.
    pub after_bytes: usize,
    /// What happens then.
    pub kind: LossKind,
}

/// What happens to the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// Its connection is lost.
    Link(Cut),
    /// Its process is killed.
    Session,
    /// The server is killed and started again.
    Server,
}

/// How a run with losses ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Before the first loss, or the client needed nothing more from the server.
    Undisturbed,
    /// As one uninterrupted run.
    Repeated,
    /// With an error.
    BrokenOff,
}

impl Loss {
    /// Returns whether only a timeout shows the client or the server that the connection is lost.
    fn is_silent(&self, route: Route) -> bool {
        match self.kind {
            LossKind::Link(Cut::ToServer | Cut::ToClient) => true,
            LossKind::Link(_) => route.is_by_quic(),
            LossKind::Session | LossKind::Server => false,
        }
    }

    fn kills(&self) -> bool {
        matches!(self.kind, LossKind::Session | LossKind::Server)
    }

    fn trigger(self, server: &Arc<Mutex<Server>>) -> Trigger {
        let Loss {
            to_server,
            after_bytes,
            kind,
        } = self;
        let server = server.clone();
        let cut = if let LossKind::Link(cut) = kind {
            cut
        } else {
            Cut::None
        };
        let then = Box::new(move || {
            let mut server = server.lock().expect("no panic");
            match kind {
                LossKind::Link(_) => return None,
                LossKind::Session => server.kill_sessions(),
                LossKind::Server => server.replace(),
            }
            Some(server.address())
        });
        Trigger {
            to_server,
            after_bytes,
            cut,
            then,
        }
    }
}

impl World {
    /// Runs rsync without and the program under test with losses of the connection. Returns what is wrong.
    ///
    /// A run that does not report a broken connection must end as rsync's. After any other run, every file must be old
    /// or new, no source may be lost, and a second run must end as rsync's from that state.
    pub fn try_losing<A: AsRef<[u8]>, B: AsRef<[u8]>>(
        &self,
        options: &[A],
        operands: &[B],
        losses: &[Loss],
    ) -> Result<Ended, String> {
        let owned = |args: &[&[u8]]| args.iter().map(|arg| arg.to_vec()).collect::<Vec<_>>();
        let options = owned(&options.iter().map(AsRef::as_ref).collect::<Vec<_>>());
        let operands = owned(&operands.iter().map(AsRef::as_ref).collect::<Vec<_>>());
        let phase = format!("the run with {losses:?}");
        self.chown_to_runner();
        let before = files(&self.twins[1]);
        let wanted = self.see(oracle::rsync(), &options, &operands, 0);
        let server = self.server(&self.surroundings.borrow());
        let address = server.lock().expect("no panic").address();
        let relay = Relay::start(address, losses.iter().map(|loss| loss.trigger(&server)));
        server.lock().expect("no panic").lead_to(relay.port);
        let is_silent = losses.iter().any(|loss| loss.is_silent(self.route));
        let timeout = is_silent.then(|| TIMEOUT.as_bytes().to_vec());
        let begun = Instant::now();
        let own_options: Vec<_> = timeout.into_iter().chain(options.clone()).collect();
        let mut got = self.see(oracle::under_test(), &own_options, &operands, 1);
        // The server keeps a session without a client for longer if the loss was silent and the timeout not known yet.
        let lasted = begun.elapsed();
        let fired = &losses[..relay.losses()];
        relay.release();
        server.lock().expect("no panic").rests();
        got.tree = snapshot(&self.twins[1], self.lens.get());
        drop(relay);
        let server = server.lock().expect("no panic");
        server.lead_to(server.address().port());
        drop(server);
        let failed = |what: String| {
            let ended = format!(
                "  exit {}, after {lasted:?}, {} losses\n  stderr\n{}\n",
                got.exit,
                fired.len(),
                got.stderr
            );
            self.failure(&phase, &options, &operands, &format!("{what}{ended}"))
        };
        if lasted > PROMPTLY || got.stderr.contains("panicked") {
            return Err(failed("  takes too long, or panics\n".to_owned()));
        }
        let has_reconnected = got.stderr.contains("reconnecting");
        if got.exit == wanted.exit && !BROKEN_OFF.contains(&got.exit) {
            let wrong = diff::trees(&wanted.tree, &got.tree).or_else(|| match has_reconnected {
                true => repeated_lines(&wanted.stdout, &got.stdout, self.is_pulled()),
                false => diff::stdout(&wanted.stdout, &got.stdout, floats(&options, false)),
            });
            let ended = if has_reconnected {
                Ended::Repeated
            } else {
                Ended::Undisturbed
            };
            return wrong.map_or(Ok(ended), |wrong| Err(failed(wrong)));
        }
        if !BROKEN_OFF.contains(&got.exit) || fired.is_empty() {
            return Err(failed(format!(
                "  exit\n    - {}\n    + {}\n",
                wanted.exit, got.exit
            )));
        }
        let places = Places {
            before: &before,
            wanted: &files(&self.twins[0]),
            now: &files(&self.twins[1]),
        };
        let wrong = [
            places.torn(&options),
            places.lost(),
            places.left_over(fired.iter().any(Loss::kills)),
        ];
        let wrong = wrong.concat();
        if !wrong.is_empty() {
            return Err(failed(wrong));
        }
        self.continue_from_tested();
        let again = self.compare("the run after the loss", &options, &operands);
        again
            .map(|_| Ended::BrokenOff)
            .map_err(|wrong| format!("{wrong}{}", failed(String::new())))
    }

    /// Gives rsync's twin the state of the other one, except temporary files.
    fn continue_from_tested(&self) {
        let [oracle, tested] = &self.twins;
        std::fs::remove_dir_all(oracle).expect("the twin can be removed");
        super::copy_tree(tested, oracle);
        for path in files(oracle).keys().filter(|path| is_temp_path(path)) {
            std::fs::remove_file(oracle.join(path)).expect("a temporary file can be removed");
        }
    }
}

/// The content of all files in a world before a run, after rsync's, and after the run under test.
struct Places<'a> {
    before: &'a BTreeMap<PathBuf, Vec<u8>>,
    wanted: &'a BTreeMap<PathBuf, Vec<u8>>,
    now: &'a BTreeMap<PathBuf, Vec<u8>>,
}

impl Places<'_> {
    /// Returns the files that are neither old nor new.
    fn torn(&self, options: &[Vec<u8>]) -> String {
        let may_tear = |option: &Vec<u8>| {
            [&b"--inplace"[..], b"--partial", b"--append"]
                .iter()
                .any(|begin| option.starts_with(begin))
                && !option.starts_with(b"--partial-dir")
        };
        if options.iter().any(may_tear) {
            return String::new();
        }
        let is_whole = |path: &PathBuf, content: &Vec<u8>| {
            [self.before, self.wanted]
                .iter()
                .any(|state| state.get(path) == Some(content))
        };
        let is_unfinished = |path: &Path| {
            is_temp_path(path)
                || path.iter().any(|part| part == ".~tmp~" || part == ".p")
                || path.starts_with("tmp")
                || path.ends_with("run.log")
        };
        let torn = self
            .now
            .iter()
            .filter(|(path, content)| !is_whole(path, content) && !is_unfinished(path));
        torn.map(|(path, _)| format!("  {} is neither old nor new\n", path.display()))
            .collect()
    }

    /// Returns the source files that are gone and were not copied.
    fn lost(&self) -> String {
        let is_copied = |state: &BTreeMap<PathBuf, Vec<u8>>, content: &Vec<u8>| {
            state.iter().any(|(path, copy)| {
                copy == content && !path.starts_with("src") && !is_temp_path(path)
            })
        };
        let is_gone = |path: &PathBuf| path.starts_with("src") && !self.now.contains_key(path);
        // rsync also removes files that it considers equal.
        let is_lost = |path: &PathBuf, content: &Vec<u8>| {
            let is_kept_by_rsync =
                self.wanted.contains_key(path) || is_copied(self.wanted, content);
            is_gone(path) && is_kept_by_rsync && !is_copied(self.now, content)
        };
        let lost = self
            .before
            .iter()
            .filter(|(path, content)| is_lost(path, content));
        lost.map(|(path, _)| format!("  {} is lost\n", path.display()))
            .collect()
    }

    /// Returns the temporary files, except those that the next attempt continues, or of a killed process.
    fn left_over(&self, was_killed: bool) -> String {
        let is_large = |name: &str| {
            let is_source = |path: &Path| {
                path.file_name()
                    .is_some_and(|file| file.to_string_lossy() == name)
            };
            self.before
                .iter()
                .any(|(path, content)| content.len() >= RESUMED_BYTES && is_source(path))
        };
        let is_leftover = |path: &&PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            is_temp(&name)
                && !self.before.contains_key(*path)
                && !is_large(&name[1..name.len() - 7])
        };
        let left = self.now.keys().filter(is_leftover).filter(|_| !was_killed);
        left.map(|path| format!("  {} is a temporary file\n", path.display()))
            .collect()
    }
}

fn is_temp_path(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| is_temp(&name.to_string_lossy()))
}

/// Returns the files whose lines one run prints and a repeated one does not, or the reverse. Lines that a server has sent
/// can be lost with the connection, and some are printed again.
fn repeated_lines(wanted: &str, got: &str, is_pulled: bool) -> Option<String> {
    fn names(text: &str) -> BTreeSet<&str> {
        let is_change =
            |line: &&str| line.starts_with(['<', '>', '*', 'h']) && line.get(11..12) == Some(" ");
        text.split('\n')
            .filter(is_change)
            .map(|line| &line[12..])
            .collect()
    }
    let (wanted, got) = (names(wanted), names(got));
    let unreported = wanted
        .difference(&got)
        .filter(|_| is_pulled)
        .map(|name| format!("    - {name}\n"));
    let invented = got
        .difference(&wanted)
        .map(|name| format!("    + {name}\n"));
    let wrong: String = unreported.chain(invented).collect();
    (!wrong.is_empty()).then(|| format!("  lines about these files\n{wrong}"))
}

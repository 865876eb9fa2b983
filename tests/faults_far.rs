//! Killed between two machines: the client, the server, or the shell between them dies at one point after the other.
//!
//! Whoever dies, what has its final name is whole, the others leave by themselves, and the next run finishes the job.
//! Client and server die at the n-th call on files (see `src/fs/sys.rs`); the shell dies, with both of the streams that it
//! carries, behind the n-th byte in one direction.

use std::time::{Duration, Instant};

use crate::faults::{Scene, Stage, both, files, is_temp};
use crate::kit::{Lens, Output, oracle, snapshot, tell_skip};

/// Who dies, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// The client, at this call on files.
    Client(u64),
    /// The server, likewise.
    Server(u64),
    /// The shell, behind so many bytes from the client to the server.
    ShellThere(u64),
    /// The shell, behind so many bytes from the server to the client.
    ShellBack(u64),
}

/// Which end has the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Push,
    Pull,
}

/// Whoever is left has noticed by then, also on a busy machine.
const PROMPTLY: Duration = Duration::from_secs(15);
const KILLED: i32 = 1000 + 9;

/// Drops what ssh would take, as sshd does.
const FAKE: &str = "#!/bin/sh\nwhile :; do case $1 in -l) shift 2;; -*) shift;; *) break;; esac; done\nshift\n";
/// Passes both directions on in processes of its own, and dies with them behind `CUT` bytes of one `DIRECTION`, byte by
/// byte. Nobody else holds the client's ends of the pipes, so they end at once.
const RELAY: &str = "top=$$; exec 3<&0
pass() { sh -c 'echo $$ >\"$0.new\"; mv \"$0.new\" \"$0\"; exec cat' pid; }
some() { dd bs=1 count=$CUT status=none; until [ -e pid ]; do :; done; kill -KILL $top $(cat pid); }
rm -f pid
case $DIRECTION in
there) some <&3 3<&- | sh -c \"$*\" 3<&- | pass 3<&-;;
back) pass <&3 3<&- | sh -c \"$*\" 3<&- | some 3<&-;;
esac
";

impl Way {
    fn operands(self) -> [&'static str; 2] {
        match self {
            Way::Push => ["src/", "far:dst/"],
            Way::Pull => ["far:src/", "dst/"],
        }
    }
}

/// Runs a scene between two machines. `None`: nobody dies.
fn copy(stage: &Stage, options: &[&str], way: Way, death: Option<Death>) -> Output {
    let script = match death {
        None | Some(Death::Client(_)) => "unset SPARSYNC_KILL_AT\nexec sh -c \"exec $*\"\n".to_owned(),
        Some(Death::Server(at)) => format!("export SPARSYNC_KILL_AT={at}\nexec sh -c \"exec $*\"\n"),
        Some(Death::ShellThere(bytes)) => format!("CUT={bytes} DIRECTION=there\n{RELAY}"),
        Some(Death::ShellBack(bytes)) => format!("CUT={bytes} DIRECTION=back\n{RELAY}"),
    };
    stage.script("shell", &[FAKE, &script].concat());
    let env = match death {
        Some(Death::Client(at)) => vec![("SPARSYNC_KILL_AT", at.to_string())],
        _ => Vec::new(),
    };
    let program = format!("--rsync-path={}", oracle::under_test().display());
    let words: Vec<&str> = [&["--rsh=./shell", &program], options].concat();
    let begun = Instant::now();
    // Its standard error is that of everybody who takes part: when that has ended, all of them are gone.
    let output = stage.run_words(oracle::under_test(), &[&words[..], &way.operands()].concat(), &env);
    assert!(begun.elapsed() < PROMPTLY, "{death:?}: somebody stayed for {:?}", begun.elapsed());
    output
}

/// Lets one die; `false`: the run ended before that.
fn dies(scene: &Scene, way: Way, death: Death) -> bool {
    let stage = Stage::new(scene);
    let before = files(&stage.top.join("dst"));
    let new = files(&stage.top.join("src"));
    let broken = copy(&stage, scene.options, way, Some(death));
    let said = |output: &Output| format!("{way:?}, {death:?}: exit {}: {}", output.exit, output.stderr.escape_ascii());
    if broken.exit == 0 {
        return false;
    }
    match death {
        Death::Client(_) => assert_eq!(broken.exit, KILLED, "{}", said(&broken)),
        // What was not told to the client, it reports as a stream that broke off.
        Death::Server(_) | Death::ShellThere(_) | Death::ShellBack(_) => {
            assert_eq!(broken.exit, 12, "{}", said(&broken));
            assert!(!broken.stderr.is_empty(), "{}", said(&broken));
        }
    }
    for (path, content) in files(&stage.top.join("dst")) {
        let name = path.file_name().expect("a file has a name").to_string_lossy();
        let is_whole = before.get(&path) == Some(&content) || new.get(&path) == Some(&content);
        assert!(is_whole || is_temp(&name), "{way:?}, {death:?}: {} is neither old nor new", path.display());
    }
    let after = copy(&stage, scene.options, way, None);
    assert_eq!((after.exit, after.stderr.escape_ascii().to_string()), (0, String::new()), "{}", said(&broken));
    let lens = Lens { blocks: false, atimes: false, now_secs: i64::MAX };
    let [wanted, got] = ["src", "dst"].map(|tree| snapshot(&stage.top.join(tree), lens));
    assert_eq!(got, wanted, "{way:?}, {death:?}, run again: the destination is not as the source");
    assert_eq!(files(&stage.top.join("src")), new, "{way:?}, {death:?}: the source has changed");
    true
}

/// Lets it die at one point after the other, until a run is too short for that; at least `points` there must be.
fn dies_at_each(way: Way, points: usize, at: impl IntoIterator<Item = Death>) {
    let scene = Scene { options: &["-aH", "--delete"], build: both, backups: &[] };
    let died = at.into_iter().take_while(|&death| dies(&scene, way, death)).count();
    if died == 0 {
        tell_skip("faults_far", "the program under test is a release build, which cannot be told to die");
        return;
    }
    assert!(died >= points, "{way:?}: only {died} points");
}

/// Lengths that grow by half: all the turns of a conversation are at its beginning.
fn growing() -> impl Iterator<Item = u64> {
    std::iter::successors(Some(20_u64), |bytes| Some(bytes + bytes / 2 + 1))
}

#[test]
fn the_client_of_a_push() {
    dies_at_each(Way::Push, 25, (1..).step_by(2).map(Death::Client));
}

#[test]
fn the_client_of_a_pull() {
    dies_at_each(Way::Pull, 40, (1..).step_by(3).map(Death::Client));
}

#[test]
fn the_server_of_a_push() {
    dies_at_each(Way::Push, 40, (1..).step_by(3).map(Death::Server));
}

#[test]
fn the_server_of_a_pull() {
    dies_at_each(Way::Pull, 25, (1..).step_by(2).map(Death::Server));
}

#[test]
fn the_shell_of_a_push() {
    dies_at_each(Way::Push, 20, growing().map(Death::ShellThere));
    dies_at_each(Way::Push, 10, growing().map(Death::ShellBack));
}

#[test]
fn the_shell_of_a_pull() {
    dies_at_each(Way::Pull, 10, growing().map(Death::ShellThere));
    dies_at_each(Way::Pull, 20, growing().map(Death::ShellBack));
}

//! Live sessions whose bytes are changed on the way: flipped, dropped, duplicated or cut off at pseudo-random positions.
//!
//! A remote shell guarantees that bytes arrive unchanged, so this must not happen. If it does, neither end may crash or
//! hang, no content may be wrong after a run that reports success, and the next run must repair everything.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::faults::{Stage, Trees, write};
use crate::kit::{FAKE_SSH, Lens, files, is_temp, oracle, snapshot, tries_all_faults, until};
use crate::random::seeds;

/// The programs of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Programs {
    /// Both are sparsync, and use its protocol.
    Ours,
    /// rsync is the remote side.
    RsyncServes,
    /// rsync is the client.
    RsyncCalls,
}

impl Programs {
    /// Returns the client and the program of the remote side.
    fn paths(self) -> [&'static Path; 2] {
        match self {
            Programs::Ours => [oracle::under_test(); 2],
            Programs::RsyncServes => [oracle::under_test(), oracle::rsync()],
            Programs::RsyncCalls => [oracle::rsync(), oracle::under_test()],
        }
    }

    /// Returns those of the exit codes of client and remote side that are sparsync's.
    fn our_exits(self, [client, server]: [i32; 2]) -> Vec<i32> {
        match self {
            Programs::Ours => vec![client, server],
            Programs::RsyncServes => vec![client],
            Programs::RsyncCalls => vec![server],
        }
    }
}

/// The options of sessions with rsync, by number.
const WITH_RSYNC: [&[&str]; 7] = [
    &[],
    &["-HAX"],
    &["-z"],
    &["-HAX", "-z", "--zc=lz4"],
    &["-c", "--no-inc-recursive"],
    &["-H", "--protocol=29"],
    &["-z", "--protocol=30", "--delay-updates"],
];

/// The data memory of each program, in KiB: no change of the bytes makes it allocate more.
const MEMORY_KIB: u32 = 200 << 10;

/// The limit for both ends to exit. A timeout ends them after a few seconds, so that only a very busy machine is slower.
const PROMPTLY: Duration = Duration::from_secs(60);

/// A change of one direction of a session.
#[derive(Debug)]
struct Mutation {
    is_push: bool,
    to_server: bool,
    /// The number of bytes that pass unchanged.
    at: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// One byte is XORed with this number.
    Flip(u8),
    /// This many bytes are dropped.
    Drop(u64),
    /// This many bytes arrive twice.
    Duplicate(u64),
    /// Nothing more arrives.
    Cut,
}

/// Runs the remote side behind the mutation, and exits as it does, as ssh would. No other process holds the client's ends
/// of the pipes. `dd` reads no more than it passes on.
const RELAY: &str = "exec 3<&0 4>&1 </dev/null >/dev/null
serve() { sh -c \"ulimit -d $MEMORY; $far\"; echo $? >code; }
mkfifo between
case $DIRECTION in
there)
    mutate <&3 >between 3<&- 4>&- &
    mutation=$!
    serve <between >&4 3<&- 4>&- &
    exec 3<&- 4>&-
    wait $!
    # A client that waits for this shell may not close its end before.
    kill $mutation 2>/dev/null ;;
back)
    mutate <between >&4 3<&- 4>&- &
    serve <&3 >between 3<&- 4>&- &
    exec 3<&- 4>&-
    wait ;;
esac
exit $(cat code)
";

impl Mutation {
    /// Returns the n-th mutation, which is always the same.
    fn nth(n: u64) -> Mutation {
        let mut state = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut below = |max: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % max
        };
        let is_push = below(2) == 0;
        // Most changes are in the direction that carries the listings and the contents.
        let to_server = (below(4) > 0) == is_push;
        let at = if to_server == is_push {
            (1 << below(17)) + below(3_000)
        } else {
            below(700)
        };
        let kind = match below(6) {
            0..3 => Kind::Flip(1 << below(8)),
            3 => Kind::Drop(1 + below(40)),
            4 => Kind::Duplicate(1 + below(40)),
            _ => Kind::Cut,
        };
        Mutation {
            is_push,
            to_server,
            at,
            kind,
        }
    }

    /// Returns the shell function that changes its input in this way.
    fn function(&self) -> String {
        let pass = |bytes: u64| format!("dd bs=1 count={bytes} status=none");
        let change = match self.kind {
            Kind::Flip(bits) => {
                let octal: String = (0..=255u8)
                    .map(|byte| format!("\\{:03o}", byte ^ bits))
                    .collect();
                format!("{} | tr '\\000-\\377' '{octal}'; exec cat", pass(1))
            }
            Kind::Drop(bytes) => format!("{} >/dev/null; exec cat", pass(bytes)),
            Kind::Duplicate(bytes) => format!("{} >twice; cat twice twice; exec cat", pass(bytes)),
            Kind::Cut => "exit".to_owned(),
        };
        format!("mutate() {{ {}; {change}; }}\n", pass(self.at))
    }
}

/// Creates files of several lengths at the source, and some old ones at the destination.
fn build(top: &Path) {
    let noise = |seed: u64, len: usize| -> String {
        let mut state = seed | 1;
        let next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            char::from(b'!' + (state >> 58) as u8)
        };
        std::iter::repeat_with(next).take(len).collect()
    };
    for n in 0..10 {
        write(
            &top.join(format!("src/d{}/f{n}", n % 3)),
            &noise(n, 1 + n as usize * 400),
            2,
        );
        if n % 2 == 0 {
            write(
                &top.join(format!("dst/d{}/f{n}", n % 3)),
                &noise(n + 20, 100),
                1,
            );
        }
    }
    let old = noise(50, 40_000);
    write(&top.join("dst/delta"), &old, 1);
    write(
        &top.join("src/delta"),
        &format!("{}{}{}", &old[..15_000], noise(51, 9_000), &old[20_000..]),
        2,
    );
    write(&top.join("src/same"), "same", 1);
    write(&top.join("dst/same"), "same", 1);
    write(&top.join("dst/gone/x"), "x", 1);
}

fn run(
    stage: &Stage,
    programs: Programs,
    is_push: bool,
    options: &[&str],
    limit_secs: u32,
) -> crate::kit::Output {
    let [client, server] = programs.paths();
    let program = format!("--rsync-path={}", server.display());
    let operands = if is_push {
        ["src/", "far:dst/"]
    } else {
        ["far:src/", "dst/"]
    };
    // If bytes are missing, both ends can wait for each other and send keepalives, as two rsyncs do. That is no failure.
    // Only the client is killed: the shell below it has to write down how the remote side exits.
    let limited =
        format!("ulimit -d {MEMORY_KIB}; exec timeout --foreground -s KILL {limit_secs} \"$@\"");
    let words = [
        &["-c", &limited, "sh", client.to_str().unwrap()],
        &["--rsh=./shell", &program, "-a", "--delete"][..],
        options,
        &operands,
    ]
    .concat();
    stage.run_words(Path::new("/bin/sh"), &words, &[])
}

/// Returns whether the run succeeded although its tree is not the source.
fn survives(mutation: &Mutation, programs: Programs, options: &[&str]) -> bool {
    let stage = Stage::new(&Trees {
        options: &[],
        build,
        backups: &[],
    });
    let [old, new] = ["dst", "src"].map(|tree| files(&stage.top.join(tree)));
    let direction = if mutation.to_server { "there" } else { "back" };
    let script = format!(
        "{FAKE_SSH}DIRECTION={direction} MEMORY={MEMORY_KIB} far=$*\n{}{RELAY}",
        mutation.function()
    );
    stage.script("shell", &script);
    let begun = Instant::now();
    // rsync measures its timeout in whole seconds, and both must live through a busy moment.
    let timeout = if programs == Programs::Ours { 1 } else { 3 };
    let timeout = format!("--timeout={timeout}");
    let output = run(
        &stage,
        programs,
        mutation.is_push,
        &[&["--no-whole-file", &timeout], options].concat(),
        if programs == Programs::Ours { 40 } else { 12 },
    );
    let is_stuck = matches!(output.exit, 137 | 1009);
    // A client that fails does not wait for the remote side.
    until(|| std::fs::read(stage.top.join("code")).is_ok_and(|code| code.ends_with(b"\n")));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let server = std::fs::read_to_string(stage.top.join("code")).expect("the server has left");
    let shown = format!(
        "{mutation:?} {programs:?} {options:?}: exit {}, the server: {}: {stderr}",
        output.exit,
        server.trim()
    );
    assert!(
        !is_stuck || programs != Programs::Ours,
        "the client hangs and was killed: {shown}"
    );
    assert!(
        begun.elapsed() < PROMPTLY,
        "after {:?}: {shown}",
        begun.elapsed()
    );
    let server: i32 = server.trim().parse().unwrap();
    // Our client exits as the remote rsync does, and our server with the code that rsync sends.
    let is_passed_on = output.exit == server
        && match programs {
            Programs::Ours => false,
            Programs::RsyncServes => true,
            Programs::RsyncCalls => server < 100,
        };
    let exits = if is_stuck || is_passed_on {
        Vec::new()
    } else {
        programs.our_exits([output.exit, server])
    };
    for exit in exits {
        assert!(
            exit != 15 && exit != 22 && exit != 101 && exit < 128 && !stderr.contains("panicked"),
            "sparsync crashed: {shown}"
        );
    }
    assert!(
        output.exit != 0 || server == 0,
        "the client hides the failure: {shown}"
    );
    assert!(
        output.exit == 0 || is_stuck || !stderr.is_empty(),
        "no word of it: {shown}"
    );
    // Content under a changed name is still whole. A file whose kind has changed, for example to a socket, has none.
    let known: BTreeSet<_> = old.values().chain(new.values()).collect();
    for (path, content) in files(&stage.top.join("dst")) {
        let kind = stage
            .top
            .join("dst")
            .join(&path)
            .symlink_metadata()
            .unwrap()
            .file_type();
        // rsync's protocol has no checksum over its lists, so a symlink can have another target.
        let has_content = kind.is_file() || kind.is_symlink() && programs == Programs::Ours;
        let is_temp = is_temp(&path.file_name().unwrap().to_string_lossy());
        // --delay-updates keeps unfinished files in this directory. The next run continues them.
        let is_kept = path.parent().is_some_and(|dir| dir.ends_with(".~tmp~"));
        let is_right = !has_content || is_temp || is_kept || known.contains(&content);
        assert!(
            is_right,
            "{} has wrong content, {} bytes: {shown}",
            path.display(),
            content.len()
        );
    }
    assert_eq!(
        files(&stage.top.join("src")),
        new,
        "the source has changed: {shown}"
    );
    let lens = Lens {
        links_within: false,
        blocks: false,
        atimes: false,
        now_secs: i64::MAX,
    };
    let trees = || ["src", "dst"].map(|tree| snapshot(&stage.top.join(tree), lens));
    let [wanted, got] = trees();
    let is_wrong = output.exit == 0 && wanted != got;
    stage.script("shell", &format!("{FAKE_SSH}exec sh -c \"exec $*\"\n"));
    // Nothing is changed, so that only a machine that stands still makes it slow.
    let again = run(&stage, programs, mutation.is_push, options, 100);
    assert_eq!(
        (again.exit, again.stderr.escape_ascii().to_string()),
        (0, String::new()),
        "run again: {shown}"
    );
    let [wanted, got] = trees();
    assert_eq!(got, wanted, "run again: {shown}");
    if is_wrong && programs == Programs::Ours {
        let _ = writeln!(
            std::io::stderr(),
            "success with wrong attributes or names: {shown}"
        );
    }
    is_wrong
}

/// Tries these changes, in some threads. A change that fails does not hide what the others do. Returns how many runs
/// report success with a wrong tree.
fn try_all(numbers: Range<u64>, attempt: impl Fn(u64) -> bool + Sync) -> u64 {
    let next = AtomicU64::new(numbers.start);
    let wrong = AtomicU64::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= numbers.end {
                        return;
                    }
                    match catch_unwind(AssertUnwindSafe(|| attempt(number))) {
                        Ok(is_wrong) => drop(wrong.fetch_add(is_wrong.into(), Ordering::Relaxed)),
                        Err(_) => failed.lock().unwrap().push(number),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(
        failed.is_empty(),
        "failed: {failed:?}; SPARSYNC_RANDOM={} runs the first one alone",
        failed[0]
    );
    wrong.into_inner()
}

/// Returns the numbers of the changes to try: those of `SPARSYNC_RANDOM`, all, or a sample.
fn numbers(sample: u64) -> Range<u64> {
    let is_whole = tries_all_faults();
    seeds(0..if is_whole { 2_000 } else { sample })
}

#[test]
fn a_session_with_changed_bytes_ends_and_leaves_no_wrong_content() {
    let numbers = numbers(40);
    let count = numbers.end - numbers.start;
    let wrong = try_all(numbers, |n| {
        survives(&Mutation::nth(n), Programs::Ours, &[])
    });
    assert!(
        wrong * 20 <= count,
        "{wrong} of {count} runs report success with a wrong tree"
    );
}

/// rsync's protocol protects only the content of files by checksums. So names and attributes may be wrong after such a
/// run, but never content.
#[test]
fn a_session_with_rsync_and_changed_bytes_ends_and_leaves_no_wrong_content() {
    try_all(numbers(28), |n| {
        let programs = if n % 2 == 0 {
            Programs::RsyncServes
        } else {
            Programs::RsyncCalls
        };
        let options = WITH_RSYNC[n as usize / 2 % WITH_RSYNC.len()];
        survives(&Mutation::nth(n + 10_000), programs, options)
    });
}

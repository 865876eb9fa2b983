//! `sparsync bench`: measures listing and copying a tree, and names what limits the speed.

use super::command_end::{print_line, write_text};
use super::{copy, metrics_file};
use crate::cli::subcommand::Bench;
use crate::cli::{self, Invocation, Request};
use crate::env::Env;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::{errno, probe, sys, trusted_path};
use crate::options::LinkOwners;
use crate::report::bench_chart;
use crate::report::event::errno_words;
use crate::report::json::{self, BenchLine};
use crate::work::clock::{self, Since};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

/// The parts of the destination: the copy, and an empty directory from which the copy is emptied with --delete.
const PARTS: [&[u8]; 2] = [b"copy", b"none"];
/// From this average length on, data rather than entries is what storage is busy with.
const LARGE_BYTES: u64 = 64 << 10;

/// Shorter measurements show no limit: the kernel counts processor time in steps of milliseconds.
const MEASURED_LEAST: Duration = Duration::from_millis(100);

/// One measured run.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    wall: Duration,
    user: Duration,
    system: Duration,
    entries: u64,
    bytes: u64,
}

/// The resource that limits the speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Processor,
    Metadata,
    Storage,
    Network,
    Unknown,
}

impl Bound {
    /// Decides from the sum of all runs. `cpus`: how many processors a run could use.
    fn of(sum: &Sample, cpus: usize, is_network: bool) -> Bound {
        let is_busy = sum.user.as_secs_f64() >= 0.5 * sum.wall.as_secs_f64() * cpus as f64;
        match sum.bytes / sum.entries.max(1) {
            _ if sum.wall < MEASURED_LEAST => Bound::Unknown,
            _ if is_busy => Bound::Processor,
            _ if is_network => Bound::Network,
            LARGE_BYTES.. => Bound::Storage,
            _ => Bound::Metadata,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Bound::Processor => "processor",
            Bound::Metadata => "metadata",
            Bound::Storage => "storage",
            Bound::Network => "network",
            Bound::Unknown => "unknown",
        }
    }
}

/// Runs the measurements and prints a row for each cache state and number of workers.
pub fn run(env: &mut Env, wanted: &Bench) -> Result<Exit> {
    let source = [&wanted.source[..], b"/"].concat();
    let trees = match &wanted.dest {
        Some(dest) => Some(DestDir::make(&wanted.source, dest)?),
        None => None,
    };
    let measured = measure(env, wanted, &source).and_then(|rows| draw(env, wanted, &rows));
    let removed = trees.map_or(Ok(()), |trees| trees.remove(env));
    measured.and(removed).map(|()| Exit::Ok)
}

/// Writes the chart, if one is requested.
fn draw(env: &Env, wanted: &Bench, rows: &[BenchLine]) -> Result<()> {
    let Some(path) = &wanted.svg else { return Ok(()) };
    let dest = wanted.dest.iter().flat_map(|dest| [b" ", &dest[..]].concat());
    let what: Vec<u8> = wanted.source.iter().copied().chain(dest).collect();
    let action = if wanted.dest.is_some() { "sync" } else { "scan" };
    let chart = bench_chart::svg(&format!("sparsync bench {action} {}", String::from_utf8_lossy(&what)), rows);
    metrics_file::put(path, LinkOwners::default(), chart.as_bytes(), env.umask).map_err(|error| {
        let message = [b"sparsync: cannot write the chart to ", &path[..], b": ", &errno_words(&error)].concat();
        Error::new(Exit::FileIo, trusted_path::with_refusal(&error, message))
    })
}

/// Measures and prints each row, and returns the rows.
fn measure(env: &mut Env, wanted: &Bench, source: &[u8]) -> Result<Vec<BenchLine>> {
    let (all, mut rows) = (copy::threads(), vec![(false, 1), (false, copy::threads())]);
    let at = wanted.dest.as_ref().unwrap_or(&wanted.source);
    let is_network = sys::open_dir_path(at)
        .and_then(|dir| probe::is_network(dir.as_fd()))
        .map_err(|error| failed("examine", at, &error))?;
    let mut note = None;
    if wanted.cold {
        match probe::drop_caches() {
            Ok(()) => rows.extend([(true, 1), (true, all)]),
            Err(error) => {
                let why = String::from_utf8_lossy(&errno_words(&error)).into_owned();
                let next = match sys::ids().0 {
                    0 => "in a container, run this on the host",
                    _ => "run this as root",
                };
                note = Some(format!("no cold runs: cannot write {}: {why}; {next}", probe::DROP_CACHES));
            }
        }
    }
    if !wanted.json {
        let head =
            "cache  workers  runs   median s    least s     most s      entries/s      MiB/s     user s   system s";
        print_line(env, head)?;
    }
    let (mut lines, mut verdicts) = (Vec::new(), Vec::new());
    for (is_cold, workers) in rows {
        // The first run fills the caches.
        if !is_cold {
            once(env, wanted, source, workers)?;
        }
        let mut samples = Vec::new();
        for _ in 0..wanted.repeats {
            if is_cold {
                probe::drop_caches().map_err(|error| failed("drop", b"the caches", &error))?;
            }
            samples.push(once(env, wanted, source, workers)?);
        }
        samples.sort_by_key(|sample| sample.wall);
        let (line, verdict) = print_row(env, wanted, &samples, (is_cold, workers), is_network)?;
        lines.push(line);
        verdicts.push(verdict);
    }
    if wanted.json {
        let mut text = Vec::new();
        note.iter().for_each(|note| json::put(&mut text, &json::note(note.as_bytes())));
        write_text(&mut env.stdout, &text)?;
    } else {
        verdicts.extend(note);
        print_line(env, &verdicts.join("\n"))?;
    }
    Ok(lines)
}

/// Prints the row of these runs, sorted by time, and returns it with the verdict in words.
fn print_row(
    env: &mut Env,
    wanted: &Bench,
    samples: &[Sample],
    (is_cold, workers): (bool, usize),
    is_network: bool,
) -> Result<(BenchLine, String)> {
    let cpus = workers.min(std::thread::available_parallelism().map_or(1, usize::from));
    let median = samples[samples.len() / 2];
    let sum = samples.iter().fold(Sample::default(), |sum, sample| Sample {
        wall: sum.wall + sample.wall,
        user: sum.user + sample.user,
        system: sum.system + sample.system,
        entries: sum.entries + sample.entries,
        bytes: sum.bytes + sample.bytes,
    });
    let bound = Bound::of(&sum, cpus, is_network);
    let mean = |time: Duration| time.div_f64(samples.len() as f64);
    let [wall, least, most, user, system] =
        [median.wall, samples[0].wall, samples[samples.len() - 1].wall, mean(sum.user), mean(sum.system)]
            .map(|time| time.as_secs_f64());
    let per_sec = |count: u64| count as f64 / wall.max(1e-9);
    let cache = if is_cold { "cold" } else { "warm" };
    let line = BenchLine {
        action: if wanted.dest.is_some() { "sync" } else { "scan" },
        cache,
        workers,
        runs: samples.len(),
        entries: median.entries,
        bytes: median.bytes,
        median_secs: wall,
        least_secs: least,
        most_secs: most,
        user_secs: user,
        system_secs: system,
        bound_by: bound.word(),
    };
    if wanted.json {
        let mut text = Vec::new();
        json::put(&mut text, &json::Line::Bench(&line));
        write_text(&mut env.stdout, &text)?;
    } else {
        let (entries, mib) = (per_sec(median.entries), per_sec(median.bytes) / f64::from(1 << 20));
        let times = format!("{wall:>10.4} {least:>10.4} {most:>10.4}");
        let runs = samples.len();
        let row = format!(
            "{cache:<5} {workers:>8} {runs:>5} {times} {entries:>14.0} {mib:>10.1} {user:>10.4} {system:>10.4}"
        );
        print_line(env, &row)?;
    }
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let start = format!("{cache}, {workers} worker{}", plural(workers));
    if bound == Bound::Unknown {
        return Ok((line, format!("{start}: the limit is unknown, because the runs are too short")));
    }
    let share = 100.0 * sum.user.as_secs_f64() / (sum.wall.as_secs_f64() * cpus as f64);
    let verdict = format!(
        "{start}: bound by {}; this program computes {share:.0} % of the time of {cpus} CPU{}, at {} bytes per entry",
        bound.word(),
        plural(cpus),
        median.bytes / median.entries.max(1)
    );
    Ok((line, verdict))
}

/// Lists or copies the tree once. A copy is removed before it is made again.
fn once(env: &mut Env, wanted: &Bench, source: &[u8], workers: usize) -> Result<Sample> {
    let Some(dest) = &wanted.dest else { return timed(env, &[b"-r", b"--list-only", b"--", source], workers) };
    empty(env, dest)?;
    timed(env, &[b"-a", b"--", source, &part(dest, 0)], workers)
}

/// Empties the copy.
fn empty(env: &mut Env, dest: &[u8]) -> Result<()> {
    timed(env, &[b"-r", b"--delete", b"--", &part(dest, 1), &part(dest, 0)], copy::threads()).map(drop)
}

fn part(dest: &[u8], at: usize) -> Vec<u8> {
    [dest, b"/", PARTS[at], b"/"].concat()
}

fn timed(env: &mut Env, words: &[&[u8]], workers: usize) -> Result<Sample> {
    let args: Vec<OsString> = words.iter().map(|word| OsString::from_vec(word.to_vec())).collect();
    let call = Invocation {
        program: OsStr::new("sparsync"),
        args: &args,
        vars: &|_| None,
        now_unix_secs: clock::now_unix().0,
        umask: env.umask,
        popt: b"",
    };
    let copy = match cli::read(&call)? {
        Request::Copy(copy) if copy.far.is_none() => copy,
        _ => return Err(Error::usage("sparsync bench: only local paths can be measured")),
    };
    let (before, since) = (sys::processor_time(), Since::now());
    let tally = copy::run_silently(env, *copy, workers)?;
    let (wall, after) = (since.elapsed(), sys::processor_time());
    if tally.exit() != Exit::Ok {
        return Err(Error::new(tally.exit(), "sparsync: cannot measure a run with errors"));
    }
    let [user, system] = [0, 1].map(|at| after[at].saturating_sub(before[at]));
    Ok(Sample { wall, user, system, entries: tally.listed.total(), bytes: tally.literal_bytes })
}

fn failed(operation: &str, path: &[u8], error: &io::Error) -> Error {
    let start = [b"sparsync: cannot ", operation.as_bytes(), b" ", path, b": "].concat();
    Error::new(Exit::FileIo, [start, errno_words(error)].concat())
}

/// The destination of the copies.
struct DestDir<'a> {
    path: &'a [u8],
    is_new: bool,
}

impl<'a> DestDir<'a> {
    /// Creates the directory and its parts. It must be missing or empty, and outside of the source.
    fn make(source: &[u8], path: &'a [u8]) -> Result<DestDir<'a>> {
        let cannot = |error: &io::Error| failed("create", path, error);
        let source = sys::open_dir_path(source).map_err(|error| failed("open", source, &error))?;
        let is_new = match sys::mkdir_path(path, 0o700) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            made => made.map(|()| true).map_err(|error| cannot(&error))?,
        };
        let dir = sys::open_dir_path(path).map_err(|error| cannot(&error))?;
        let [from, to] = [&source, &dir].map(|dir| sys::path_of(dir.as_fd()));
        let (from, to) = from.and_then(|from| Ok((from, to?))).map_err(|error| cannot(&error))?;
        let is_inside = to.strip_prefix(&from[..]).is_some_and(|rest| from == b"/" || matches!(rest, [] | [b'/', ..]));
        let mut count = 0;
        sys::list(dir.as_fd(), |_| count += 1).map_err(|error| cannot(&error))?;
        if is_inside || count > 0 {
            let why = if is_inside { "it is inside of the source" } else { "it is not empty" };
            if is_new {
                // It was created a moment ago; an error leaves an empty directory.
                let _ = remove_dir(path);
            }
            let words = [b"sparsync: cannot use ".as_slice(), path, b" for copies: ", why.as_bytes()].concat();
            return Err(Error::new(Exit::Usage, words).with_hint("name a new directory"));
        }
        PARTS.iter().try_for_each(|name| sys::mkdir(dir.as_fd(), name, 0o700)).map_err(|error| cannot(&error))?;
        Ok(DestDir { path, is_new })
    }

    /// Removes everything that was created.
    fn remove(&self, env: &mut Env) -> Result<()> {
        empty(env, self.path)?;
        let removed = sys::open_dir_path(self.path).and_then(|dir| {
            PARTS.iter().try_for_each(|name| errno::if_there(sys::rmdir(dir.as_fd(), name)).map(drop))?;
            if self.is_new { remove_dir(self.path) } else { Ok(()) }
        });
        removed.map_err(|error| failed("remove", self.path, &error))
    }
}

fn remove_dir(path: &[u8]) -> io::Result<()> {
    let path = Path::new(OsStr::from_bytes(path));
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    sys::rmdir(sys::open_dir_path(parent.as_os_str().as_bytes())?.as_fd(), name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_depends_on_processor_time_and_length_of_entries() {
        let sample = |user_ms, bytes| Sample {
            wall: Duration::from_millis(1000),
            user: Duration::from_millis(user_ms),
            system: Duration::from_millis(10),
            entries: 10,
            bytes,
        };
        for (user_ms, cpus, bytes, is_network, bound) in [
            (900, 1, 0, false, Bound::Processor),
            (900, 4, 0, false, Bound::Metadata),
            (100, 1, 10 * LARGE_BYTES, false, Bound::Storage),
            (100, 1, 10 * LARGE_BYTES - 1, false, Bound::Metadata),
            (100, 1, 0, true, Bound::Network),
            (900, 1, 0, true, Bound::Processor),
        ] {
            assert_eq!(Bound::of(&sample(user_ms, bytes), cpus, is_network), bound);
        }
        assert_eq!(Bound::of(&Sample::default(), 1, false), Bound::Unknown);
    }
}

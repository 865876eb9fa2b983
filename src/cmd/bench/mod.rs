//! `sparsync bench`: measures listing, copying and hashing a tree, and names what limits the speed.

mod hash_run;
mod tree;

use crate::cli::subcommand::{Bench, BenchTrees, Shape};
use crate::cli::{self, Invocation, Request};
use crate::cmd::command_end::{print_line, write_text};
use crate::cmd::{copy, metrics_file};
use crate::digest::HashAlgorithm;
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
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The parts of the directory in which bench works: the copy, an empty directory from which the others are emptied with
/// --delete, and the tree that bench creates.
const PARTS: [&[u8]; 3] = [COPY, EMPTY, SOURCE];
const COPY: &[u8] = b"copy";
const EMPTY: &[u8] = b"none";
const SOURCE: &[u8] = b"source";
/// Where trees are created unless a directory is named.
const TEMP_DIR: &[u8] = b"/tmp";
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
enum LimitingResource {
    Processor,
    Metadata,
    Storage,
    Network,
    Unknown,
}

impl LimitingResource {
    /// Decides from the sum of all runs. `cpus`: how many processors a run could use.
    fn from_sample(sum: &Sample, cpus: usize, is_network: bool) -> LimitingResource {
        let is_busy = sum.user.as_secs_f64() >= 0.5 * sum.wall.as_secs_f64() * cpus as f64;
        match sum.bytes / sum.entries.max(1) {
            _ if sum.wall < MEASURED_LEAST => LimitingResource::Unknown,
            _ if is_busy => LimitingResource::Processor,
            _ if is_network => LimitingResource::Network,
            LARGE_BYTES.. => LimitingResource::Storage,
            _ => LimitingResource::Metadata,
        }
    }

    fn word(self) -> &'static str {
        match self {
            LimitingResource::Processor => "processor",
            LimitingResource::Metadata => "metadata",
            LimitingResource::Storage => "storage",
            LimitingResource::Network => "network",
            LimitingResource::Unknown => "unknown",
        }
    }
}

/// A tree, and where its copies go.
struct Tree<'a> {
    shape: Option<Shape>,
    /// Its path.
    source: &'a [u8],
    /// The directory in which it is copied; `None` if it is listed or hashed.
    dest: Option<&'a [u8]>,
    /// Whether this directory, or else the tree, is on a network file system.
    is_network: bool,
}

/// What distinguishes the rows of a tree.
#[derive(Debug, Clone, Copy)]
struct Setting {
    is_cold: bool,
    workers: usize,
    /// The hash function; `None`: the tree is listed or copied.
    algorithm: Option<HashAlgorithm>,
}

/// The rows, and the sentences below them.
#[derive(Default)]
struct BenchReport {
    rows: Vec<BenchLine>,
    verdicts: Vec<String>,
}

/// Runs the measurements and prints a row for each shape, cache state and number of workers.
pub fn run(env: &mut Env, wanted: &Bench) -> Result<Exit> {
    let no_signals = |error| {
        Error::new(
            Exit::Ipc,
            format!("sparsync: cannot handle signals: {error}"),
        )
    };
    env.handle_signals().map_err(no_signals)?;
    let dir = match &wanted.trees {
        BenchTrees::Given { dest: None, .. } => None,
        BenchTrees::Given {
            source,
            dest: Some(dest),
        } => Some(WorkDir::make(Some(source), dest.clone())?),
        BenchTrees::Created { dir: Some(dir), .. } => Some(WorkDir::make(None, dir.clone())?),
        BenchTrees::Created { dir: None, .. } => {
            let base = env
                .var("TMPDIR")
                .map_or_else(|| TEMP_DIR.to_vec(), OsStringExt::into_vec);
            let name = format!("/sparsync-bench-{:016x}", u64::from_le_bytes(sys::random()));
            Some(WorkDir::make(None, [&base[..], name.as_bytes()].concat())?)
        }
    };
    let measured = measure_all(env, wanted, dir.as_ref().map_or(b"", |dir| &dir.path));
    let measured = measured.and_then(|rows| draw(env, wanted, &rows));
    let removed = dir.map_or(Ok(()), |dir| dir.remove(env));
    measured.and(removed).map(|()| Exit::Ok)
}

/// Writes the chart, if one is requested.
fn draw(env: &Env, wanted: &Bench, rows: &[BenchLine]) -> Result<()> {
    let Some(path) = &wanted.svg else {
        return Ok(());
    };
    let paths = match &wanted.trees {
        BenchTrees::Given { source, dest } => [Some(source), dest.as_ref()],
        BenchTrees::Created { dir, .. } => [None, dir.as_ref()],
    };
    let paths = paths
        .into_iter()
        .flatten()
        .map(|path| format!(" {}", String::from_utf8_lossy(path)));
    let title = format!(
        "sparsync bench {}{}",
        rows.first().map_or("", |row| row.action),
        paths.collect::<String>()
    );
    let chart = bench_chart::svg(&title, rows);
    metrics_file::put(path, LinkOwners::default(), chart.as_bytes(), env.umask).map_err(|error| {
        let message = [
            b"sparsync: cannot write the chart to ",
            &path[..],
            b": ",
            &errno_words(&error),
        ]
        .concat();
        Error::new(Exit::FileIo, trusted_path::with_refusal(&error, message))
    })
}

/// Measures all trees, prints the rows and the verdicts, and returns the rows. `dir`: the directory for copies and for
/// trees that are created.
fn measure_all(env: &mut Env, wanted: &Bench, dir: &[u8]) -> Result<Vec<BenchLine>> {
    let at = match &wanted.trees {
        BenchTrees::Given { source, dest: None } => source,
        BenchTrees::Given { dest: Some(_), .. } | BenchTrees::Created { .. } => dir,
    };
    let is_network = sys::open_dir_path(at)
        .and_then(|dir| probe::is_network(dir.as_fd()))
        .map_err(|error| failed("examine", at, &error))?;
    let note = if wanted.cold {
        probe::drop_caches().err().map(|error| no_cold_runs(&error))
    } else {
        None
    };
    let mut report = BenchReport::default();
    if !wanted.json {
        let head = "cache  workers  runs   median s    least s     most s      entries/s      MiB/s     user s   system s";
        let shape = if matches!(wanted.trees, BenchTrees::Created { .. }) {
            "shape  "
        } else {
            ""
        };
        let algorithm = if wanted.algorithms.is_empty() {
            ""
        } else {
            "hash    "
        };
        print_line(env, &format!("{shape}{algorithm}{head}"))?;
    }
    let settings = settings(wanted, wanted.cold && note.is_none());
    match &wanted.trees {
        BenchTrees::Given { source, dest } => {
            let source = [&source[..], b"/"].concat();
            let tree = Tree {
                shape: None,
                source: &source,
                dest: dest.as_deref(),
                is_network,
            };
            measure(env, wanted, &tree, &settings, &mut report)?;
        }
        BenchTrees::Created {
            shapes,
            dir: _,
            are_copied,
        } => {
            let source = part(dir, SOURCE);
            for shape in shapes {
                let opened =
                    sys::open_dir_path(&source).map_err(|error| failed("open", &source, &error))?;
                let go_on = || {
                    if env.is_stopping() {
                        Err(Error::new(Exit::Signal, ""))
                    } else {
                        Ok(())
                    }
                };
                tree::create(
                    *shape,
                    (opened.as_fd(), dir),
                    u64::from(*are_copied),
                    &go_on,
                )?;
                let dest = if *are_copied { Some(dir) } else { None };
                let tree = Tree {
                    shape: Some(*shape),
                    source: &source,
                    dest,
                    is_network,
                };
                measure(env, wanted, &tree, &settings, &mut report)?;
                [SOURCE, COPY]
                    .iter()
                    .try_for_each(|name| empty(env, dir, name))?;
            }
        }
    }
    if wanted.json {
        let mut text = Vec::new();
        if let Some(note) = note {
            json::put(&mut text, &json::note(note.as_bytes()));
        }
        write_text(&mut env.stdout, &text)?;
    } else {
        report.verdicts.extend(note);
        report.verdicts.extend(fastest(&report.rows));
        print_line(env, &report.verdicts.join("\n"))?;
    }
    Ok(report.rows)
}

fn no_cold_runs(error: &io::Error) -> String {
    let why = String::from_utf8_lossy(&errno_words(error)).into_owned();
    let next = match sys::ids().0 {
        0 => "in a container, run this on the host",
        _ => "run this as root",
    };
    format!(
        "no cold runs: cannot write {}: {why}; {next}",
        probe::DROP_CACHES
    )
}

/// Returns the rows of each tree.
fn settings(wanted: &Bench, is_cold_possible: bool) -> Vec<Setting> {
    let workers = wanted
        .workers
        .clone()
        .unwrap_or_else(|| vec![1, copy::threads()]);
    let caches = if is_cold_possible {
        &[false, true][..]
    } else {
        &[false]
    };
    let mut algorithms: Vec<_> = wanted.algorithms.iter().copied().map(Some).collect();
    if algorithms.is_empty() {
        algorithms.push(None);
    }
    let mut settings = Vec::new();
    for &is_cold in caches {
        for &algorithm in &algorithms {
            for &workers in &workers {
                settings.push(Setting {
                    is_cold,
                    workers,
                    algorithm,
                });
            }
        }
    }
    settings
}

/// Measures a tree, and prints and collects its rows.
fn measure(
    env: &mut Env,
    wanted: &Bench,
    tree: &Tree<'_>,
    settings: &[Setting],
    report: &mut BenchReport,
) -> Result<()> {
    for setting in settings {
        // The first run fills the caches.
        if !setting.is_cold {
            once(env, tree, *setting)?;
        }
        let mut samples = Vec::new();
        for _ in 0..wanted.repeats {
            if setting.is_cold {
                probe::drop_caches().map_err(|error| failed("drop", b"the caches", &error))?;
            }
            samples.push(once(env, tree, *setting)?);
        }
        samples.sort_by_key(|sample| sample.wall);
        let (row, verdict) = row(tree, &samples, *setting);
        if wanted.json {
            let mut text = Vec::new();
            json::put(&mut text, &json::Line::Bench(&row));
            write_text(&mut env.stdout, &text)?;
        } else {
            print_line(env, &shown(&row))?;
        }
        report.rows.push(row);
        report.verdicts.push(verdict);
    }
    Ok(())
}

/// Returns the row of these runs, sorted by time, and the verdict in words.
fn row(tree: &Tree<'_>, samples: &[Sample], setting: Setting) -> (BenchLine, String) {
    let Setting {
        is_cold,
        workers,
        algorithm,
    } = setting;
    let cpus = workers.min(std::thread::available_parallelism().map_or(1, usize::from));
    let median = samples[samples.len() / 2];
    let sum = samples
        .iter()
        .fold(Sample::default(), |sum, sample| Sample {
            wall: sum.wall + sample.wall,
            user: sum.user + sample.user,
            system: sum.system + sample.system,
            entries: sum.entries + sample.entries,
            bytes: sum.bytes + sample.bytes,
        });
    let bound = LimitingResource::from_sample(&sum, cpus, tree.is_network);
    let mean = |time: Duration| time.div_f64(samples.len() as f64);
    let [wall, least, most, user, system] = [
        median.wall,
        samples[0].wall,
        samples[samples.len() - 1].wall,
        mean(sum.user),
        mean(sum.system),
    ]
    .map(|time| time.as_secs_f64());
    let action = if algorithm.is_some() {
        "hash"
    } else if tree.dest.is_some() {
        "sync"
    } else {
        "scan"
    };
    let row = BenchLine {
        action,
        shape: tree.shape.map(Shape::name),
        algorithm: algorithm.map(HashAlgorithm::name),
        cache: if is_cold { "cold" } else { "warm" },
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
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let shape = tree
        .shape
        .map(|shape| format!("{}, ", shape.name()))
        .unwrap_or_default();
    let hash = row
        .algorithm
        .map(|name| format!("{name}, "))
        .unwrap_or_default();
    let start = format!(
        "{shape}{hash}{}, {workers} worker{}",
        row.cache,
        plural(workers)
    );
    if bound == LimitingResource::Unknown {
        return (
            row,
            format!("{start}: the limit is unknown, because the runs are too short"),
        );
    }
    let share = 100.0 * sum.user.as_secs_f64() / (sum.wall.as_secs_f64() * cpus as f64);
    let verdict = format!(
        "{start}: bound by {}; this program computes {share:.0} % of the time of {cpus} CPU{}, at {} bytes per entry",
        bound.word(),
        plural(cpus),
        median.bytes / median.entries.max(1)
    );
    (row, verdict)
}

/// Returns the sentence about the setting that hashed most bytes in a second with full caches, so that storage does not
/// decide, and about the best one that detects intended changes. `None`: nothing was hashed for long enough.
fn fastest(rows: &[BenchLine]) -> Option<String> {
    const AGAINST_INTENT: [HashAlgorithm; 2] = [HashAlgorithm::Blake3, HashAlgorithm::Sha256];
    let speed = |row: &BenchLine| row.bytes as f64 / row.median_secs.max(1e-9) / f64::from(1 << 20);
    let best = |is_meant: &dyn Fn(&str) -> bool| {
        let mut meant: Vec<_> = rows
            .iter()
            .filter(|row| row.cache == "warm" && row.bound_by != LimitingResource::Unknown.word())
            .filter_map(|row| Some((row.algorithm.filter(|&name| is_meant(name))?, row)))
            .collect();
        meant.sort_by(|a, b| speed(b.1).total_cmp(&speed(a.1)));
        let (name, row) = meant.first()?;
        Some(format!(
            "{name} with --workers={} at {:.0} MiB/s",
            row.workers,
            speed(row)
        ))
    };
    let all = best(&|_| true)?;
    let careful = best(&|name| AGAINST_INTENT.iter().any(|hash| hash.name() == name));
    Some(match careful {
        Some(careful) if careful != all => {
            format!("fastest: {all}; of those that detect intended changes: {careful}")
        }
        _ => format!("fastest: {all}"),
    })
}

/// Returns the line of the table.
fn shown(row: &BenchLine) -> String {
    let BenchLine {
        action: _,
        shape,
        algorithm,
        cache,
        workers,
        runs,
        entries,
        bytes,
        bound_by: _,
        ..
    } = row;
    let BenchLine {
        median_secs,
        least_secs,
        most_secs,
        user_secs,
        system_secs,
        ..
    } = row;
    let per_sec = |count: u64| count as f64 / median_secs.max(1e-9);
    let shape = shape
        .map(|shape| format!("{shape:<5}  "))
        .unwrap_or_default();
    let algorithm = algorithm
        .map(|algorithm| format!("{algorithm:<6}  "))
        .unwrap_or_default();
    let times = format!("{median_secs:>10.4} {least_secs:>10.4} {most_secs:>10.4}");
    let entries = per_sec(*entries);
    let mib = per_sec(*bytes) / f64::from(1 << 20);
    format!(
        "{shape}{algorithm}{cache:<5} {workers:>8} {runs:>5} {times} {entries:>14.0} {mib:>10.1} {user_secs:>10.4} {system_secs:>10.4}"
    )
}

/// Lists, copies or hashes the tree once. A copy is removed before it is made again.
fn once(env: &mut Env, tree: &Tree<'_>, setting: Setting) -> Result<Sample> {
    let workers = setting.workers;
    if let Some(algorithm) = setting.algorithm {
        return measured(|| hash_run::hash(env, tree.source, algorithm, workers));
    }
    let Some(dest) = tree.dest else {
        return timed(env, &[b"-r", b"--list-only", b"--", tree.source], workers);
    };
    empty(env, dest, COPY)?;
    timed(
        env,
        &[b"-a", b"--", tree.source, &part(dest, COPY)],
        workers,
    )
}

/// Empties a part of the directory.
fn empty(env: &mut Env, dir: &[u8], name: &[u8]) -> Result<()> {
    timed(
        env,
        &[
            b"-r",
            b"--delete",
            b"--",
            &part(dir, EMPTY),
            &part(dir, name),
        ],
        copy::threads(),
    )
    .map(drop)
}

fn part(dir: &[u8], name: &[u8]) -> Vec<u8> {
    [dir, b"/", name, b"/"].concat()
}

fn timed(env: &mut Env, words: &[&[u8]], workers: usize) -> Result<Sample> {
    let args: Vec<OsString> = words
        .iter()
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect();
    let call = Invocation {
        program: OsStr::new("sparsync"),
        args: &args,
        appended: &[],
        vars: &|_| None,
        now_unix_secs: clock::now_unix().0,
        umask: env.umask,
        popt: b"",
    };
    let copy = match cli::read(&call)? {
        Request::Copy(copy) if copy.far.is_none() => copy,
        _ => {
            return Err(Error::usage(
                "sparsync bench: only local paths can be measured",
            ));
        }
    };
    measured(|| {
        let tally = copy::run_silently(env, *copy, workers)?;
        if tally.exit() != Exit::Ok {
            return Err(Error::new(
                tally.exit(),
                "sparsync: cannot measure a run with errors",
            ));
        }
        Ok((tally.listed.total(), tally.literal_bytes))
    })
}

/// Measures a run that returns how many entries and bytes it had.
fn measured(run: impl FnOnce() -> Result<(u64, u64)>) -> Result<Sample> {
    let before = sys::processor_time();
    let since = Since::now();
    let (entries, bytes) = run()?;
    let wall = since.elapsed();
    let after = sys::processor_time();
    let [user, system] = [0, 1].map(|at| after[at].saturating_sub(before[at]));
    Ok(Sample {
        wall,
        user,
        system,
        entries,
        bytes,
    })
}

fn failed(operation: &str, path: &[u8], error: &io::Error) -> Error {
    let start = [
        b"sparsync: cannot ",
        operation.as_bytes(),
        b" ",
        path,
        b": ",
    ]
    .concat();
    Error::new(Exit::FileIo, [start, errno_words(error)].concat())
}

/// The directory for copies and for trees that are created.
struct WorkDir {
    path: Vec<u8>,
    is_new: bool,
}

impl WorkDir {
    /// Creates the directory and its parts. It must be missing or empty, and outside of the source.
    fn make(source: Option<&[u8]>, path: Vec<u8>) -> Result<WorkDir> {
        let cannot = |error: &io::Error| failed("create", &path, error);
        let opened = |source: &[u8]| {
            sys::open_dir_path(source).map_err(|error| failed("open", source, &error))
        };
        let source = source.map(opened).transpose()?;
        let is_new = match sys::mkdir_path(&path, 0o700) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            made => made.map(|()| true).map_err(|error| cannot(&error))?,
        };
        let dir =
            trusted_path::open_dir(&path, LinkOwners::Trusted).map_err(|error| cannot(&error))?;
        let path_of = |dir: &OwnedFd| sys::path_of(dir.as_fd()).map_err(|error| cannot(&error));
        let from = source.as_ref().map(path_of).transpose()?;
        let to = path_of(&dir)?;
        let is_inside = from.is_some_and(|from| {
            to.strip_prefix(&from[..])
                .is_some_and(|rest| from == b"/" || matches!(rest, [] | [b'/', ..]))
        });
        let mut count = 0;
        sys::list(dir.as_fd(), |_| count += 1).map_err(|error| cannot(&error))?;
        if is_inside || count > 0 {
            let why = if is_inside {
                "it is inside of the source"
            } else {
                "it is not empty"
            };
            if is_new {
                // It was created a moment ago; an error leaves an empty directory.
                let _ = remove_dir(&path);
            }
            let words = [
                b"sparsync: cannot use ".as_slice(),
                &path,
                b" for copies: ",
                why.as_bytes(),
            ]
            .concat();
            return Err(Error::new(Exit::Usage, words).with_hint("name a new directory"));
        }
        let make = |name: &&[u8]| sys::mkdir(dir.as_fd(), name, 0o700);
        PARTS
            .iter()
            .try_for_each(make)
            .map_err(|error| failed("create directories in", &path, &error))?;
        Ok(WorkDir { path, is_new })
    }

    /// Removes everything that was created, also after a signal; a second signal ends the process.
    fn remove(&self, env: &mut Env) -> Result<()> {
        (env.stop, env.stop_requested) = (Arc::default(), Arc::default());
        [COPY, SOURCE]
            .iter()
            .try_for_each(|name| empty(env, &self.path, name))?;
        let removed = trusted_path::open_dir(&self.path, LinkOwners::Trusted).and_then(|dir| {
            PARTS
                .iter()
                .try_for_each(|name| errno::if_there(sys::rmdir(dir.as_fd(), name)).map(drop))?;
            if self.is_new {
                remove_dir(&self.path)
            } else {
                Ok(())
            }
        });
        removed.map_err(|error| failed("remove", &self.path, &error))
    }
}

fn remove_dir(path: &[u8]) -> io::Result<()> {
    let path = Path::new(OsStr::from_bytes(path));
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    sys::rmdir(
        trusted_path::open_dir(parent.as_os_str().as_bytes(), LinkOwners::Trusted)?.as_fd(),
        name.as_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fastest_settings_are_named_with_the_best_one_against_intent() {
        let row = |name, cache, bytes, bound_by| BenchLine {
            action: "hash",
            shape: None,
            algorithm: Some(name),
            cache,
            workers: 2,
            runs: 1,
            entries: 1,
            bytes,
            median_secs: 1.0,
            least_secs: 1.0,
            most_secs: 1.0,
            user_secs: 0.0,
            system_secs: 0.0,
            bound_by,
        };
        let mut rows = vec![
            row("sha256", "warm", 3 << 20, "processor"),
            row("blake3", "warm", 4 << 20, "storage"),
            row("blake3", "cold", 9 << 20, "storage"),
            row("md5", "warm", 9 << 20, "unknown"),
        ];
        let blake3 = "blake3 with --workers=2 at 4 MiB/s";
        assert_eq!(fastest(&rows), Some(format!("fastest: {blake3}")));
        rows.push(row("xxh3", "warm", 5 << 20, "processor"));
        let line = format!(
            "fastest: xxh3 with --workers=2 at 5 MiB/s; of those that detect intended changes: {blake3}"
        );
        assert_eq!(fastest(&rows), Some(line));
        assert_eq!(fastest(&rows[3..4]), None);
    }

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
            (900, 1, 0, false, LimitingResource::Processor),
            (900, 4, 0, false, LimitingResource::Metadata),
            (100, 1, 10 * LARGE_BYTES, false, LimitingResource::Storage),
            (
                100,
                1,
                10 * LARGE_BYTES - 1,
                false,
                LimitingResource::Metadata,
            ),
            (100, 1, 0, true, LimitingResource::Network),
            (900, 1, 0, true, LimitingResource::Processor),
        ] {
            assert_eq!(
                LimitingResource::from_sample(&sample(user_ms, bytes), cpus, is_network),
                bound
            );
        }
        assert_eq!(
            LimitingResource::from_sample(&Sample::default(), 1, false),
            LimitingResource::Unknown
        );
    }
}

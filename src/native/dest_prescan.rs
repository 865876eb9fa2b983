//! Scans the destination for the directory digests, with bounded memory, ahead of the thread that sends them.
//!
//! A receiving client starts the scan while it still connects. It guesses from its arguments which directory to scan.
//! If the guess is wrong, only the scan is wasted.

use crate::checksum_cache::CacheInUse;
use crate::digest;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::{Chain, Side, Verdict};
use crate::flist::{DirList, Entry, Kind};
use crate::fs::ids::Ids;
use crate::fs::read::{EntryAt, Names, Wanted};
use crate::fs::root::{Dir, Root};
use crate::fs::sys::{self, FileVersion, Follow};
use crate::fs::trusted_path;
use crate::native::digest_exchange::{
    Half, Known, PredictedDigests, Rest, ScanResults, ScannedDir, ScannedLists, Survey, SurveyStep,
};
use crate::native::dir_digest::Digester;
use crate::options::Options;
use crate::path::RelPath;
use crate::proto::DestDirState;
use crate::proto::limits::GUESS_MAX_BYTES;
use crate::report::event::{ErrorRole, Problem};
use crate::walk::run_context::RunContext;
use crate::walk::{Look, Scanner, TaskId, arg_path, enter_dir};
use crate::work::parallel;
use crate::work::thread::spawn;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Scans directories of a destination without a source, and digests them.
pub struct DigestScan<'a> {
    /// Its top directory; `None` if it does not exist (dry run).
    pub root: Option<&'a Root>,
    /// What to read of each entry.
    pub wanted: Wanted<'a>,
    /// The digests of contents that earlier runs have stored, if the digests of directories cover them.
    pub cache: Option<CacheInUse<'a>>,
    /// How many threads may examine one large directory.
    pub threads: usize,
    /// Set when the results are not needed any more.
    pub is_over: Arc<AtomicBool>,
    /// Computes the digests.
    pub digester: Digester<'a>,
}

impl DigestScan<'_> {
    /// Opens a directory and lists its names. `chain` holds the rules in force in its parent. `Err` has the item to
    /// send in place of its entries.
    fn begin(&self, path: RelPath, mut chain: Chain) -> Result<Half, DestDirState> {
        let root = self.root.ok_or(DestDirState::Absent)?;
        let dir = root.open_dir(&path).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => NO_DIGEST,
            _ => DestDirState::Absent,
        })?;
        if chain.has_per_dir() {
            // Problems are reported when the directory is decided.
            let (entered, _) = enter_dir(
                &chain,
                &dir,
                &path,
                "generator",
                self.digester.options.preserve.link_owners,
            )
            .map_err(|_| NO_DIGEST)?;
            chain = entered;
        }
        let mut names = Names::default();
        let has_rules = !chain.is_empty();
        let is_listed = names
            .list_while(&dir, |count| has_rules || count <= LARGE_NAMES)
            .map_err(|_| NO_DIGEST)?;
        Ok(Half {
            path,
            chain,
            dir: Some(dir),
            names,
            is_listed,
            list: self.empty_list(),
        })
    }

    /// Returns a list that the entries of a directory can be added to.
    fn empty_list(&self) -> DirList {
        let mut list = DirList::default();
        if self.cache.is_some() {
            list.hold_digests();
        }
        list
    }

    /// Opens a directory that was closed, and starts its listing again.
    fn reopen(&self, half: &mut Half) -> Result<Dir, DestDirState> {
        let root = self.root.ok_or(DestDirState::Absent)?;
        half.names = Names::default();
        half.is_listed = false;
        half.list = self.empty_list();
        root.open_dir(&half.path).map_err(|_| NO_DIGEST)
    }

    /// Lists the remaining names until `enough` returns `true`. Returns whether the listing is complete.
    fn list(&self, half: &mut Half, enough: &dyn Fn() -> bool) -> Result<bool, DestDirState> {
        let dir = half.dir.take().map_or_else(|| self.reopen(half), Ok)?;
        if !half.is_listed {
            let wants_more = |_| !(enough() || self.is_over.load(Ordering::Relaxed));
            half.is_listed = half
                .names
                .list_while(&dir, wants_more)
                .map_err(|_| NO_DIGEST)?;
        }
        half.dir = Some(dir);
        Ok(half.is_listed)
    }

    /// Examines the entries until `enough` returns `true`. Returns whether all were examined. `Err` has the item to
    /// send in their place.
    fn go_on(&self, half: &mut Half, enough: &dyn Fn() -> bool) -> Result<bool, DestDirState> {
        let root = self.root.ok_or(DestDirState::Absent)?;
        let is_listed = self.list(half, enough)?;
        let Half {
            path,
            names,
            list,
            dir,
            ..
        } = half;
        let Some(dir) = dir else {
            return Ok(false);
        };
        if !is_listed {
            return Ok(false);
        }
        list.reserve(names.items.len() - list.len(), names.len_bytes());
        for block in names.items[list.len()..].chunks(parallel::BLOCK) {
            if self.is_over.load(Ordering::Relaxed) {
                return Err(NO_DIGEST);
            }
            if enough() {
                return Ok(false);
            }
            let looks = parallel::map(block, self.threads, |&item| {
                let name = names.name(item);
                if self.cache.is_some() {
                    sys::stat_with_birth(dir.fd(), name, false)
                } else {
                    sys::stat(dir.fd(), name, false)
                }
            });
            for (&item, looked) in block.iter().zip(looks) {
                let stat = looked.map_err(|_| NO_DIGEST)?;
                let name = names.name(item);
                let entry = list.push(name, &stat);
                let path = || path.join(name).as_bytes().to_vec();
                let full = || root.full(&path());
                let at = EntryAt {
                    dir,
                    name,
                    stat: &stat,
                    full: &full,
                    path: &path,
                };
                self.wanted
                    .complete_dest(entry, &at)
                    .map_err(|_| NO_DIGEST)?;
                let is_file = entry.kind() == Kind::File;
                if let Some(cache) = &self.cache
                    && is_file
                    && let Some(digest) = cache.stored(dir, &FileVersion::from_stat(&stat))
                {
                    list.set_plain_digest(list.len() - 1, &digest);
                }
            }
        }
        Ok(true)
    }

    /// Whether leftovers of interrupted transfers may exist, so that files must be compared one by one. `list`: the
    /// entries of the directory.
    fn may_hold_partials(&self, list: &DirList) -> bool {
        let partial_dir = self.digester.options.place.partial_dir.as_ref();
        partial_dir.is_some_and(|holder| holder.contains(&b'/') || list.find(holder).is_some())
    }

    /// Returns the result for a directory whose entries were all examined.
    fn end(&self, half: Half) -> (ScannedDir, Vec<(RelPath, Chain)>) {
        let Half {
            path,
            chain,
            mut list,
            ..
        } = half;
        list.sort();
        let takes_part = |entry: &Entry| {
            let full = || path.join(list.name(entry));
            chain.is_empty()
                || chain.verdict(Side::Receiver, full().as_bytes(), entry.is_dir())
                    == Verdict::Include
        };
        let digest = if self.may_hold_partials(&list) {
            None
        } else {
            self.digester.digest(&path, &list, &takes_part)
        };
        let (children, tasks) = self.below(&path, &chain, &list, &takes_part);
        (
            ScannedDir {
                seen: DestDirState::Dir { digest, children },
                list: Some((path, list)),
                ..with_room_for(&tasks)
            },
            tasks,
        )
    }

    /// Returns the name hashes of the subdirectories and their tasks.
    fn below(
        &self,
        path: &RelPath,
        chain: &Chain,
        list: &DirList,
        takes_part: &dyn Fn(&Entry) -> bool,
    ) -> (Vec<u32>, Vec<(RelPath, Chain)>) {
        let dirs = list
            .entries
            .iter()
            .filter(|entry| entry.is_dir() && takes_part(entry))
            .map(|entry| list.name(entry));
        dirs.map(|name| {
            (
                digest::keyed_name(&self.digester.key, name),
                (path.join(name), chain.clone()),
            )
        })
        .unzip()
    }
}

/// A directory without a digest, which the sender must list.
const NO_DIGEST: DestDirState = DestDirState::Dir {
    digest: None,
    children: Vec::new(),
};

/// A directory with more entries is not examined before its turn: the sender may not need more than their number.
/// Examining this many takes a tenth of a second if they are not cached.
pub const LARGE_NAMES: usize = 8192;

/// Creates a result with a placeholder task number for each task.
fn with_room_for<T>(tasks: &[T]) -> ScannedDir {
    ScannedDir {
        task_ids: vec![TaskId::NONE; tasks.len()],
        ..ScannedDir::bare(DestDirState::Absent)
    }
}

impl Look for DigestScan<'_> {
    type Task = (RelPath, Chain);
    type Found = ScannedDir;

    fn look(&self, (path, chain): (RelPath, Chain)) -> (ScannedDir, Vec<(RelPath, Chain)>) {
        let mut half = match self.begin(path, chain) {
            Ok(half) => Box::new(half),
            Err(DestDirState::Absent)
                if self.root.is_none() && self.may_hold_partials(&DirList::default()) =>
            {
                return (ScannedDir::bare(NO_DIGEST), Vec::new());
            }
            Err(seen) => return (ScannedDir::bare(seen), Vec::new()),
        };
        // The number of names is the number of entries only if there are no rules.
        if half.names.items.len() > LARGE_NAMES && half.chain.is_empty() {
            let seen = DestDirState::Large(half.names.items.len() as u64);
            return (
                ScannedDir {
                    half: Some(half),
                    ..ScannedDir::bare(seen)
                },
                Vec::new(),
            );
        }
        match self.go_on(&mut half, &|| false) {
            Ok(_) => self.end(*half),
            Err(seen) => (ScannedDir::bare(seen), Vec::new()),
        }
    }

    fn task_ids<'f>(&self, found: &'f mut ScannedDir) -> impl Iterator<Item = &'f mut TaskId> {
        found.task_ids.iter_mut()
    }

    fn park(&self, found: &mut ScannedDir) {
        if let Some(half) = &mut found.half {
            half.dir = None;
        }
    }

    fn size(&self, found: &ScannedDir) -> (usize, (u64, u64)) {
        let of_half = found.half.as_ref().map_or(0, |half| half.names.items.len());
        let entries = found.list.as_ref().map_or(of_half, |(_, list)| list.len());
        (entries, (entries as u64, 0))
    }
}

impl ScanResults for Scanner<DigestScan<'_>> {
    fn take(&self, task_id: TaskId) -> ScannedDir {
        Scanner::take(self, task_id)
    }

    fn list(&self, half: &mut Half, enough: &dyn Fn() -> bool) {
        // An error occurs again in the next step and is handled there.
        let _ = self.walk().list(half, enough);
    }

    fn go_on(
        &self,
        mut half: Box<Half>,
        enough: &dyn Fn() -> bool,
    ) -> Result<ScannedDir, Box<Half>> {
        match self.walk().go_on(&mut half, enough) {
            Ok(true) => {
                let (mut found, tasks) = self.walk().end(*half);
                self.add(&mut found, tasks);
                Ok(found)
            }
            Ok(false) => Err(half),
            Err(seen) => Ok(ScannedDir::bare(seen)),
        }
    }

    fn cut(&self, mut half: Box<Half>, has_none: bool) -> ScannedDir {
        // If the names do not show which of them are directories, the entries must be examined.
        let is_typed = |half: &Half| half.names.items.iter().all(|item| item.is_dir.is_some());
        if !has_none
            && (!matches!(self.walk().list(&mut half, &|| false), Ok(true)) || !is_typed(&half))
        {
            return self
                .go_on(half, &|| false)
                .unwrap_or_else(|_| ScannedDir::bare(NO_DIGEST));
        }
        let Half {
            path, chain, names, ..
        } = *half;
        let mut dirs = DirList::default();
        for &item in &names.items {
            if !has_none && item.is_dir == Some(true) {
                dirs.push_name(names.name(item), true);
            }
        }
        dirs.sort();
        let (children, tasks) = self.walk().below(&path, &chain, &dirs, &|_| true);
        let mut found = ScannedDir {
            seen: DestDirState::Dir {
                digest: None,
                children,
            },
            ..with_room_for(&tasks)
        };
        self.add(&mut found, tasks);
        found
    }

    fn forget(&self, task_ids: Vec<TaskId>) {
        Scanner::forget(self, task_ids);
    }

    fn end_early(&self) {
        Scanner::end_early(self);
    }

    fn close(&self) {
        Scanner::close(self);
    }
}

/// The parameters of a scan of the destination before the peer is known.
pub struct Guess<'a> {
    /// The context of the run.
    pub run_context: RunContext<'a>,
    /// The destination, as given.
    pub dest: &'a [u8],
    /// The guess of the one directory whose content the sender will want compared.
    pub whole: RelPath,
    /// The key of directory digests.
    pub key: [u8; 16],
    /// How long the results may be used.
    pub good_for: Duration,
}

/// Returns the name that an argument on the peer's side will have in the transfer if it is a directory. `None` if only
/// the peer knows.
pub fn guessed_name(argument: &[u8], options: &Options) -> Option<RelPath> {
    let is_known =
        !options.select.relative && !argument.iter().any(|byte| b"*?[\\~$`'\"".contains(byte));
    let name = crate::path::file_name(argument);
    match name {
        _ if !is_known || name.len() > GUESS_MAX_BYTES => None,
        // As in rsync, the content of the directory is copied.
        b"" | b"." => Some(RelPath::root()),
        b".." => None,
        name => RelPath::parse(name).ok(),
    }
}

impl Guess<'_> {
    /// Scans the destination on separate threads while `body` runs. `body` gets `None` if the destination cannot be
    /// scanned. Fails if no thread can be started.
    pub fn with_prescan<R>(
        &self,
        body: impl FnOnce(Option<DestPrescan<'_>>) -> R,
    ) -> Result<R, Error> {
        match trusted_path::open_dir(self.dest, self.run_context.options.preserve.link_owners) {
            Ok(fd) => self.look_at(Some(Dir::new(fd)), body),
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.look_at(None, body),
            // The error is reported when the session opens the destination.
            Err(_) => Ok(body(None)),
        }
    }

    /// `dir`: the destination; `None` if it does not exist.
    fn look_at<R>(
        &self,
        dir: Option<Dir>,
        body: impl FnOnce(Option<DestPrescan<'_>>) -> R,
    ) -> Result<R, Error> {
        let options = self.run_context.options;
        let path = arg_path::absolute(self.run_context.process.cwd, self.dest);
        let root = dir.map(|dir| Root::new(dir, path.clone(), Follow::Never));
        let ids = Ids::new();
        let is_over = Arc::new(AtomicBool::new(false));
        let is_super =
            options.preserve.super_user.unwrap_or(sys::ids().0 == 0) || options.preserve.fake_super;
        self.run_context
            .with_wanted(&options.preserve, &|_, _| {}, |wanted| {
                let look = DigestScan {
                    root: root.as_ref(),
                    wanted,
                    cache: self.run_context.checksum_cache(),
                    threads: self.run_context.process.threads,
                    is_over: is_over.clone(),
                    digester: Digester {
                        key: self.key,
                        options,
                        is_sender: false,
                        is_super,
                        ids: &ids,
                    },
                };
                let scanner = &Scanner::early(look);
                let first = scanner.start((
                    self.whole.clone(),
                    self.run_context.rules.chain(Side::Receiver, &path),
                ));
                let progress = SurveyProgress {
                    survey: Survey::new(first, self.key),
                    kept: ScannedLists::default(),
                };
                let progress = &Mutex::new(progress);
                let was = root
                    .as_ref()
                    .and_then(|root| sys::fstat(root.dir().fd()).ok())
                    .map(|stat| (stat.dev, stat.ino));
                let predicted = Arc::new(PredictedDigests::new(
                    (self.dest.to_vec(), was),
                    self.good_for,
                ));
                let prescan = DestPrescan {
                    guess: self,
                    root: root.as_ref(),
                    progress,
                    predicted,
                    is_over,
                    results: scanner,
                };
                if root.is_none() {
                    // There is nothing to scan, so no thread is needed.
                    progress.lock().predict_digests(scanner, &prescan.predicted);
                    return Ok(body(Some(prescan)));
                }
                std::thread::scope(|scope| {
                    let mut to_predict = Some((prescan.predicted.clone(), progress));
                    for _ in 0..self.run_context.process.threads {
                        let to_predict = to_predict.take();
                        spawn(scope, "scan", move || {
                            if let Some((predicted, progress)) = to_predict {
                                progress.lock().predict_digests(scanner, &predicted);
                            }
                            scanner.work();
                        })?;
                    }
                    Ok(body(Some(prescan)))
                })
            })
    }
}

/// The progress of the survey, and the listings kept on the way.
#[derive(Default)]
struct SurveyProgress {
    survey: Survey,
    kept: ScannedLists,
}

impl SurveyProgress {
    /// Adds the first digests to `predicted` until it is closed or full.
    fn predict_digests(&mut self, results: &dyn ScanResults, predicted: &PredictedDigests) {
        while predicted.is_open()
            && let Some(mut next) = self.survey.begin()
        {
            let seen = loop {
                let found = match next {
                    SurveyStep::Send(seen) => break seen,
                    SurveyStep::Take(task_id) => results.take(task_id),
                    SurveyStep::GoOn(half) => match results.go_on(half, &|| !predicted.is_open()) {
                        Ok(found) => found,
                        Err(half) => return self.survey.put_back(SurveyStep::GoOn(half)),
                    },
                };
                next = self
                    .survey
                    .took(found, &mut |path, list| self.kept.keep(path, list));
            };
            if let Err(seen) = predicted.push(seen) {
                return self.survey.put_back(SurveyStep::Send(seen));
            }
        }
    }
}

/// A scan of the destination in progress. Dropping it ends the scan.
pub struct DestPrescan<'l> {
    pub guess: &'l Guess<'l>,
    /// `None` if the destination does not exist.
    root: Option<&'l Root>,
    progress: &'l Mutex<SurveyProgress>,
    /// The digests that may be sent before the sender has listed its arguments.
    pub predicted: Arc<PredictedDigests>,
    is_over: Arc<AtomicBool>,
    results: &'l dyn ScanResults,
}

impl DestPrescan<'_> {
    /// Ends the prefetch phase and returns what remains to be sent about the directories `whole`. `known` is what the
    /// sender knows already. Fails if that is about another destination.
    pub fn end_prescan(
        &self,
        root: Option<&Root>,
        whole: &[RelPath],
        known: Known,
    ) -> Result<Rest<'_>, Error> {
        let inode = |root: &Root| match sys::fstat(root.dir().fd()) {
            Ok(stat) => Ok((stat.dev, stat.ino)),
            Err(error) => {
                let problem = Problem::failed(ErrorRole::MainReceiver, "stat", &root.path, &error);
                Err(Error::new(Exit::FileSelect, problem.line).by("Receiver"))
            }
        };
        let fits = match (self.root, root) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(looked_at), Some(root)) => {
                inode(root)? == inode(looked_at)? && root.path == looked_at.path
            }
        };
        let is_guessed = *whole == [self.guess.whole.clone()];
        let digests = self.predicted.close();
        if !is_guessed || !fits {
            // The results so far are not needed.
            self.is_over.store(true, Ordering::Relaxed);
        }
        if is_guessed && !fits && known.beginning {
            let line = "sparsync: the destination directory was replaced while the copy started: run the command again";
            return Err(Error::new(Exit::FileSelect, line).by("Receiver"));
        }
        let SurveyProgress { survey, kept } = std::mem::take(&mut *self.progress.lock());
        Ok(match digests {
            Some(digests) if is_guessed && fits => {
                self.results.end_early();
                let first = if known.beginning { Vec::new() } else { digests };
                Rest {
                    first,
                    survey,
                    results: Some(self.results),
                    passed: 1,
                    kept,
                }
            }
            // The sender skips what it received about a wrong guess.
            Some(_) if !is_guessed && known.beginning => Rest {
                first: survey.cut_short(),
                ..Rest::default()
            },
            _ if !is_guessed => Rest {
                first: vec![DestDirState::Absent],
                ..Rest::default()
            },
            _ => Rest::default(),
        })
    }
}

impl Drop for DestPrescan<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.predicted.close();
        self.results.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prescan_guesses_names_of_plain_arguments_only() {
        let guessed = |argument: &str, relative| {
            let mut options = Options::default();
            options.select.relative = relative;
            guessed_name(argument.as_bytes(), &options)
                .map(|path| String::from_utf8(path.as_bytes().to_vec()).unwrap())
        };
        for (argument, name) in [
            ("dir/", ""),
            ("/a/dir/.", ""),
            ("", ""),
            (".", ""),
            ("/a/dir", "dir"),
            ("dir", "dir"),
        ] {
            assert_eq!(
                guessed(argument, false).as_deref(),
                Some(name),
                "{argument}"
            );
            assert_eq!(guessed(argument, true), None, "{argument}");
        }
        for argument in [
            "a*",
            "a/..",
            "..",
            "~/a",
            "$HOME",
            "[a]/b",
            "a\\ b",
            &"n".repeat(GUESS_MAX_BYTES + 1),
        ] {
            assert_eq!(guessed(argument, false), None, "{argument}");
        }
        assert!(guessed(&"n".repeat(GUESS_MAX_BYTES), false).is_some());
    }
}

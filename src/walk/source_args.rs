//! Turns the source arguments into the first task of the walk.
//!
//! Arguments name entries of one tree, the transfer. An argument that ends in a slash stands for the content of a
//! directory, any other for an entry. Under `-R` the whole path is kept, or the part behind `/./`.

mod files_from;
mod gathered;
mod node_builder;
mod plain_args;
mod relative_args;

pub use self::gathered::Gathered;
use self::node_builder::NodeBuilder;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::filter::{Chain, Side};
use crate::flist::Kind;
use crate::flist::entry::Stat;
use crate::fs::root::Root;
use crate::fs::sys::{self, Follow};
use crate::fs::{sandbox, trusted_path};
use crate::options::{LinkOwners, Select};
use crate::path::{self, RelPath};
use crate::report::event::{ErrorRole, Problem, Weight};
use crate::walk::arg_path::{as_given, clean_dots, resolved};
use crate::walk::run_context::RunContext;
use crate::walk::source::stat_followed;
use crate::walk::source_dir::{Base, BaseRoot, enter};
use crate::work::clock::Since;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How many source directories stay open. Further ones are opened for each use.
const OPEN_BASES_MAX: usize = 1024;
/// At most one of them per this many files that the process may have open.
const OPEN_PARTS: usize = 8;

/// Gathers arguments.
pub struct Gatherer<'a> {
    run_context: RunContext<'a>,
    select: &'a Select,
    bases: HashMap<Vec<u8>, Arc<Base>>,
    /// How many of them stay open.
    open_bases_max: usize,
    tree: NodeBuilder,
    out: Gathered,
    entries: usize,
    /// The number of the argument or name under way.
    argument: usize,
    /// The base and the directories that lead to the last argument under `-R`.
    led: Option<(Arc<Base>, Vec<Vec<u8>>)>,
    /// The last directory that was entered for its per-directory rules, and the rules in force there.
    entered: Option<(Vec<Vec<u8>>, Chain)>,
    /// A name has implied the root.
    has_implied_top: bool,
    /// Missing directories that lead to missing arguments.
    absent: BTreeSet<Vec<u8>>,
    /// The prefix that is removed from paths for `%f`: the directory that the names of `--files-from` are relative to.
    unshown: Vec<u8>,
}

impl<'a> Gatherer<'a> {
    /// Creates a gatherer without arguments. `cwd` is absolute.
    pub fn new(run_context: &RunContext<'a>) -> Gatherer<'a> {
        Gatherer {
            run_context: *run_context,
            select: &run_context.options.select,
            bases: HashMap::new(),
            open_bases_max: sys::share_of_open_files(OPEN_PARTS, OPEN_BASES_MAX).max(1),
            tree: NodeBuilder::default(),
            out: Gathered::default(),
            entries: 0,
            argument: 0,
            led: None,
            entered: None,
            has_implied_top: false,
            absent: BTreeSet::new(),
            unshown: Vec::new(),
        }
    }

    /// Gathers all arguments, or the names listed by `--files-from` relative to the only argument.
    pub fn all(mut self, arguments: &[Vec<u8>], listed: Option<&[Vec<u8>]>) -> Result<Gathered> {
        let began = Since::now();
        match listed {
            Some(names) => self.listed(&arguments[0], names)?,
            None => {
                for argument in arguments {
                    self.go_on()?;
                    self.argument += 1;
                    if self.select.relative {
                        self.relative(argument)?
                    } else {
                        self.plain(argument)?
                    }
                }
            }
        }
        let mut gathered = self.finish();
        gathered.listing_ms = u64::try_from(began.elapsed().as_millis())
            .unwrap_or(u64::MAX)
            .max(1);
        Ok(gathered)
    }

    /// Fails if the run is being stopped: a list can have millions of names.
    fn go_on(&self) -> Result<()> {
        if self.run_context.process.stop.load(Ordering::Relaxed) {
            Err(Error::new(Exit::Signal, "").by("sender"))
        } else {
            Ok(())
        }
    }

    /// Returns the result.
    fn finish(mut self) -> Gathered {
        self.report_missing_parents();
        self.out.missing.retain(|path| {
            !self.tree.brings(
                path,
                &path.as_bytes().split(|&b| b == b'/').collect::<Vec<_>>(),
            )
        });
        if self.entries != 1 || self.has_implied_top {
            self.out.single = None;
        }
        if self.out.found != 1 {
            self.out.lone_dir = None;
        }
        self.out.node = Arc::new(self.tree.build());
        self.out
    }

    /// Returns whether the rules include an entry of an argument, and reports the rule that matched if that is requested.
    fn includes(&mut self, base: &Base, path: &[u8], is_dir: bool) -> bool {
        let chain = self
            .entered
            .as_ref()
            .map_or(&base.chain, |(_, chain)| chain);
        if let Some(explainer) = self.run_context.process.explainer
            && let Ok(path) = RelPath::parse(path)
        {
            explainer.add_rule(chain, Side::Sender, &path, is_dir, false);
        }
        let reports = self.run_context.options.output.debug.filter >= 1;
        chain.includes(reports, Side::Sender, path, is_dir, &mut self.out.notes)
    }

    /// Returns whether symlinks of the source are followed, if only some.
    fn follows_links(&self) -> bool {
        self.select.opens_link_targets() || self.select.copy_dirlinks
    }

    /// Returns which symlinks in the paths below a base are followed. As in rsync, the names of a list are trusted less than
    /// those on the command line. No symlink leads out of a module.
    fn follow_below_base(&self) -> Follow {
        if self.follows_links() {
            return Follow::Anywhere;
        }
        if !self.select.relative {
            return Follow::Never;
        }
        let owners = self.run_context.options.preserve.link_owners;
        let is_list = self.select.files_from.is_some();
        if is_list && owners == LinkOwners::Trusted && !sandbox::is_module() {
            Follow::Trusted
        } else {
            Follow::Anywhere
        }
    }

    /// Returns the open directory of a path. Each is opened only once.
    fn base(&mut self, dir: &[u8], shown: &[u8]) -> Result<Arc<Base>> {
        let dir = dir
            .strip_suffix(b"/.")
            .filter(|dir| !dir.is_empty())
            .unwrap_or(dir);
        let dir = if dir.is_empty() { b"." } else { dir };
        if let Some(base) = self.bases.get(dir) {
            return Ok(base.clone());
        }
        let full = resolved(self.run_context.process.cwd, dir);
        let cannot_enter = |error| {
            let problem =
                Problem::failed(ErrorRole::Sender, "change_dir", &self.given(dir), &error);
            Error::new(Exit::Partial, problem.line).by("sender")
        };
        let open = enter(dir).map_err(cannot_enter)?;
        let follow = self.follow_below_base();
        let chain = self.run_context.rules.chain(Side::Sender, &full);
        // Without `.` elements. `..` elements stay.
        let shown = clean_dots(shown.strip_prefix(&self.unshown[..]).unwrap_or(shown));
        let root = if self.bases.len() < self.open_bases_max {
            BaseRoot::Open(Root::new(open, full, follow))
        } else {
            BaseRoot::Closed {
                at: dir.to_vec(),
                id: open.id().map_err(cannot_enter)?,
                path: full,
                follow,
            }
        };
        let base = Arc::new(Base { root, shown, chain });
        self.bases.insert(dir.to_vec(), base.clone());
        Ok(base)
    }

    /// As [`Gatherer::base`], and reports the error if it fails.
    fn base_or_report(&mut self, dir: &[u8], shown: &[u8]) -> Option<Arc<Base>> {
        let base = self.base(dir, shown);
        base.map_err(|error| {
            self.out
                .problems
                .push(Problem::new(error.message, Weight::SourceError))
        })
        .ok()
    }

    /// Returns whether a name is listed as a directory, also if it is a symlink that leads to one.
    fn is_listed_as_dir(&self, stat: &Stat, base: &Base, dir: &RelPath, name: &[u8]) -> bool {
        let looks = || {
            let open = base.root.open_dir_to_search(dir)?;
            stat_followed(
                self.select,
                &open,
                name,
                dir,
                &sys::read_link(open.fd(), name)?,
            )
        };
        match Kind::of_mode(stat.mode) {
            // What cannot be examined is reported when it is listed.
            Some(Kind::Symlink) if self.select.copy_unsafe_links || self.select.copy_dirlinks => {
                looks().is_ok_and(|stat| {
                    stat.is_some_and(|stat| Kind::of_mode(stat.mode) == Some(Kind::Dir))
                })
            }
            kind => kind == Some(Kind::Dir),
        }
    }

    /// Returns whether a symlink is followed only because it is unsafe. As an argument, it is not yet a
    /// directory for the rules, nor without recursion.
    fn is_only_unsafe(&self, stat: &Stat) -> bool {
        Kind::of_mode(stat.mode) == Some(Kind::Symlink) && !self.select.copy_dirlinks
    }

    fn found(&mut self, single: Option<&[u8]>) {
        self.out.found += 1;
        self.entries += if single.is_some() { 1 } else { 2 };
        self.out.single = single.map(<[u8]>::to_vec);
    }

    /// Notes that the content of a directory is the transfer's root. The first one gives the root its attributes.
    fn top(&mut self, stat: io::Result<Stat>, base: &Arc<Base>) {
        self.out.top_is_bare = false;
        match (&self.out.top, stat) {
            (None, Ok(stat)) => self.out.top = Some((stat, base.clone())),
            (None, Err(error)) => {
                let problem =
                    Problem::failed(ErrorRole::Sender, "link_stat", base.root.path(), &error);
                self.out
                    .problems
                    .push(problem.weighing(Weight::SourceError));
            }
            (Some(_), _) => self.out.tops_more += 1,
        }
    }

    /// Reports that a directory cannot be entered. The options for missing arguments do not excuse this.
    fn cannot_enter(&mut self, dir: &[u8], error: &io::Error) -> Result<()> {
        let problem = Problem::failed(ErrorRole::Sender, "change_dir", &self.given(dir), error);
        self.out
            .problems
            .push(problem.weighing(Weight::SourceError));
        Ok(())
    }

    /// Reports that an entry cannot be examined. A missing one alone does not stop deletions.
    fn cannot_stat(&mut self, full: &[u8], error: &io::Error) {
        let weight = if error.kind() == io::ErrorKind::NotFound {
            Weight::Failed
        } else {
            Weight::SourceError
        };
        if trusted_path::is_refused(error) {
            let refusal = Problem::new(trusted_path::REFUSAL, Weight::Warning);
            self.out.problems.push(refusal);
        }
        self.out
            .problems
            .push(Problem::failed(ErrorRole::Sender, "link_stat", full, error).weighing(weight));
    }

    /// Returns the path of a directory that cannot be entered, as rsync prints it.
    fn given(&self, dir: &[u8]) -> Vec<u8> {
        match dir.strip_prefix(&self.unshown[..]) {
            Some(name) if !self.unshown.is_empty() => path::join(
                &resolved(self.run_context.process.cwd, &self.unshown),
                &clean_dots(name),
            ),
            _ => as_given(self.run_context.process.cwd, dir),
        }
    }
}

impl Gatherer<'_> {
    /// Reports, as rsync's receiver does, paths in the list whose parent directories are missing from it.
    fn report_missing_parents(&mut self) {
        if self.select.list_only {
            return;
        }
        let parents: BTreeSet<_> = self
            .out
            .missing
            .iter()
            .filter_map(RelPath::parent)
            .collect();
        let absent = parents
            .iter()
            .map(RelPath::as_bytes)
            .filter(|&dir| self.absent.contains(dir));
        self.out.problems.extend(absent.map(Problem::absent_parent));
    }
}

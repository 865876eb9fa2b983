//! Turns the source arguments into the first task of the walk.
//!
//! Arguments name entries of one tree, the transfer. An argument that ends in a slash stands for the content of a
//! directory, any other for an entry. Under `-R` the whole path is kept, or the part behind `/./`.

mod node_builder;

use self::node_builder::NodeBuilder;
use crate::error::Error;
use crate::exit::Exit;
use crate::filter::{Chain, Rules, Side, Verdict};
use crate::flist::entry::Stat;
use crate::flist::{DirList, Entry, Kind};
use crate::fs::read::Wanted;
use crate::fs::root::{Dir, Root};
use crate::fs::sys::{self, Follow};
use crate::fs::{errno, sandbox, trusted_path};
use crate::options::select::MissingArgs;
use crate::options::{LinkOwners, Recurse, Select};
use crate::path::{self, RelPath};
use crate::report::event::{ErrorRole, Problem, Weight};
use crate::report::tally::Tally;
use crate::walk::arg_path::{
    absolute, as_given, clean, clean_dots, find_marker, implies_root, resolved, split_kept, trim_slashes,
};
use crate::walk::dir_plan::report_unreadable_attribute;
use crate::walk::dir_rules::enter_dir;
use crate::walk::run_context::Terms;
use crate::walk::source::FollowedLinks;
use crate::walk::source_dir::{Base, BaseRoot, enter};
use crate::walk::source_task::{Listing, NamedContent, NamedEntry, Node, Origin, SourceTask};
use crate::work::clock::Since;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

/// The result of gathering the arguments.
#[derive(Default)]
pub struct Gathered {
    /// The tree of named entries, from the transfer's root.
    pub node: Arc<Node>,
    /// The directory whose content is the root, with its stat data.
    pub top: Option<(Stat, Arc<Base>)>,
    /// `top` is only implied, and gets no attributes (`--no-implied-dirs`): only the list for a stock rsync has it.
    pub top_is_bare: bool,
    /// How many more directories have their content as the root. Each counts in the list.
    pub tops_more: u64,
    /// How long the arguments took to be examined, in milliseconds; at least 1, as with rsync.
    pub listing_ms: u64,
    /// Problems that are reported first.
    pub problems: Vec<Problem>,
    /// Lines for stdout.
    pub notes: Vec<Vec<u8>>,
    /// The name of the only entry, if the list is one entry and that is not a directory. This includes a missing one
    /// that is to be deleted (`--delete-missing-args`). A destination that is not a directory is then its new name.
    pub single: Option<Vec<u8>>,
    /// The only argument, if it is a directory, and nothing above it is listed. If the directory is empty, the list has
    /// one entry, too.
    pub lone_dir: Option<LoneDir>,
    /// The directories that are copied completely, each relative to its base.
    pub whole: Vec<(Arc<Base>, RelPath)>,
    /// Names to delete at the destination (`--delete-missing-args`).
    pub missing: Vec<RelPath>,
    /// How many arguments were found.
    pub found: usize,
}

impl Gathered {
    /// Returns the task of the root.
    pub fn task(&self, renamed: Option<&[u8]>) -> SourceTask {
        let origins = self
            .node
            .origins
            .iter()
            .map(|(base, path, listing)| Origin {
                base: base.clone(),
                path: path.clone(),
                listing: match (renamed, listing) {
                    (Some(new), Listing::Named(names)) => Listing::Named(Arc::new(
                        // A directory is renamed only if it is known to be empty.
                        names
                            .iter()
                            .map(|named| NamedEntry {
                                renamed: Some(new.to_vec()),
                                content: NamedContent::None,
                                ..named.clone()
                            })
                            .collect(),
                    )),
                    _ => listing.clone(),
                },
                chain: base.chain.clone(),
                dev: None,
            })
            .collect();
        SourceTask { path: RelPath::root(), origins, node: Some(self.node.clone()) }
    }
}

impl Gathered {
    /// Whether the receiver gets the transfer's root. `is_stock`: it is a stock rsync.
    pub fn sends_top(&self, is_stock: bool) -> bool {
        self.top.is_some() && (is_stock || !self.top_is_bare)
    }

    /// Returns the entry of the directory whose content is the transfer's root, as the source has it; `None` if there
    /// is none, or if it cannot be read completely, which adds to `problems`.
    pub fn top_entry(&self, wanted: &Wanted<'_>, problems: &mut Vec<Problem>) -> Result<Option<Entry>, Error> {
        let Some((stat, base)) = &self.top else { return Ok(None) };
        let root = match base.root.open() {
            Ok(root) => root,
            Err(error) => {
                let problem = Problem::failed(ErrorRole::Sender, "opendir", base.root.path(), &error);
                problems.push(problem.weighing(Weight::SourceError));
                return Ok(None);
            }
        };
        let mut list = DirList::default();
        let entry = list.push(b".", stat);
        let full = || base.root.full(b".");
        let completed = wanted.complete_source(entry, stat, (root.dir(), b"."), &full, &|| b".".to_vec());
        if let Err(incomplete) = completed {
            let mut fatal = None;
            report_unreadable_attribute(problems, &mut fatal, "sender", incomplete, Weight::SourceError);
            return fatal.map_or(Ok(None), Err);
        }
        Ok(list.entries.pop())
    }

    /// Counts the list entries that are in no directory: missing arguments, and the roots beyond the first. The generator
    /// counts the first one.
    pub fn count(&self, tally: &mut Tally, is_stock: bool) {
        let is_top_missing = self.top.is_some() && !self.sends_top(is_stock);
        (0..self.tops_more + u64::from(is_top_missing)).for_each(|_| tally.list(Kind::Dir, 0, 1));
        self.missing.iter().for_each(|name| tally.list(Kind::File, 0, name.as_bytes().len()));
        tally.list_generation_ms += self.listing_ms;
    }

    /// Whether a directory lies inside one that is copied completely.
    pub fn reaches(&self, dest: &Dir) -> bool {
        let Ok(dest) = sys::path_of(dest.fd()) else { return false };
        let mut known: Option<(&Arc<Base>, Vec<u8>)> = None;
        self.whole.iter().any(|(base, path)| {
            let is_known = known.as_ref().is_some_and(|(other, _)| Arc::ptr_eq(other, base));
            if !is_known {
                known =
                    Some((base, base.root.open().and_then(|root| sys::path_of(root.dir().fd())).unwrap_or_default()));
            }
            let above = known.as_ref().map_or_else(Vec::new, |(_, top)| path::join(top, path.as_bytes()));
            dest.strip_prefix(trim_slashes(&above)).is_some_and(|rest| rest.starts_with(b"/") && rest.len() > 1)
        })
    }
}

/// The only entry of the arguments, if it is a directory.
#[derive(Debug)]
pub struct LoneDir {
    base: Arc<Base>,
    /// Its path below `base`; the root if only its content is named.
    path: RelPath,
    /// Its content takes part.
    has_content: bool,
}

impl LoneDir {
    /// Returns whether nothing in the directory takes part.
    pub fn is_bare(&self, terms: &Terms<'_>) -> bool {
        if !self.has_content {
            return true;
        }
        // A descriptor of its own, because listings go on from the current position.
        let name: &[u8] = if self.path.is_root() { b"." } else { self.path.as_bytes() };
        let opened = self.base.root.open().and_then(|root| sys::open_dir(root.dir().fd(), name, Follow::Anywhere));
        let Ok(fd) = opened else { return true };
        if terms.options.select.open_noatime {
            // If this is not permitted, the directory is read anyway.
            let _ = sys::spare_atime(fd.as_fd());
        }
        let looks = |name: &[u8]| sys::stat(fd.as_fd(), name, false).ok().and_then(|stat| Kind::of_mode(stat.mode));
        let mut any = false;
        let listed = sys::list(fd.as_fd(), |entry| {
            let is_dir = entry.is_dir.unwrap_or_else(|| looks(entry.name) == Some(Kind::Dir));
            let path = self.path.join(entry.name);
            any |= self.base.chain.verdict(Side::Sender, path.as_bytes(), is_dir) == Verdict::Include;
        });
        listed.is_ok() && !any
    }
}

/// How many source directories stay open. Further ones are opened for each use.
const OPEN_BASES_MAX: usize = 1024;
/// At most one of them per this many files that the process may have open.
const OPEN_PARTS: usize = 8;

/// Gathers arguments.
pub struct Gatherer<'a> {
    select: &'a Select,
    cwd: &'a [u8],
    rules: &'a Rules,
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
    /// rsync builds the whole list before it copies anything.
    lists_first: bool,
    /// The last directory that was entered for its per-directory rules, and the rules in force there.
    entered: Option<(Vec<Vec<u8>>, Chain)>,
    /// A name has implied the root.
    has_implied_top: bool,
    /// A root that a name implies has no attributes (`--no-implied-dirs`). The protocol cannot express that before 30.
    implies_bare_top: bool,
    /// Whose symlinks may lead to per-directory rule files.
    link_owners: LinkOwners,
    /// Report the rule that matched.
    reports_rules: bool,
    /// Missing directories that lead to missing arguments.
    absent: BTreeSet<Vec<u8>>,
    /// The prefix that is removed from paths for `%f`: the directory that the names of `--files-from` are relative to.
    unshown: Vec<u8>,
}

impl<'a> Gatherer<'a> {
    /// Creates a gatherer without arguments. `cwd` is absolute.
    pub fn new(terms: &Terms<'a>) -> Gatherer<'a> {
        let (select, cwd, rules) = (&terms.options.select, terms.cwd, terms.rules);
        Gatherer {
            select,
            cwd,
            rules,
            bases: HashMap::new(),
            open_bases_max: sys::share_of_open_files(OPEN_PARTS, OPEN_BASES_MAX).max(1),
            tree: NodeBuilder::default(),
            out: Gathered::default(),
            entries: 0,
            argument: 0,
            led: None,
            lists_first: select.no_inc_recursive,
            entered: None,
            has_implied_top: false,
            implies_bare_top: select.no_implied_dirs && terms.options.connect.protocol.is_none_or(|it| it >= 30),
            link_owners: terms.options.preserve.link_owners,
            reports_rules: terms.options.output.debug.filter >= 1,
            absent: BTreeSet::new(),
            unshown: Vec::new(),
        }
    }

    /// Adds one argument of the command line.
    fn argument(&mut self, arg: &[u8]) -> Result<(), Error> {
        self.argument += 1;
        if self.select.relative { self.relative(arg) } else { self.plain(arg) }
    }

    /// Gathers all arguments, or the names listed by `--files-from` relative to the only argument.
    pub fn all(mut self, arguments: &[Vec<u8>], listed: Option<&[Vec<u8>]>) -> Result<Gathered, Error> {
        let began = Since::now();
        match listed {
            Some(names) => self.listed(&arguments[0], names)?,
            None => {
                for argument in arguments {
                    self.argument(argument)?;
                }
            }
        }
        let mut gathered = self.finish();
        gathered.listing_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        Ok(gathered)
    }

    /// Adds the names listed by `--files-from`, which are relative to `base_arg`.
    fn listed(&mut self, base_arg: &[u8], names: &[Vec<u8>]) -> Result<(), Error> {
        let shown = trim_slashes(base_arg).to_vec();
        // Without this directory there is nothing to copy. The error shows it as it was given.
        let cannot_enter = |error: io::Error| {
            let slash: &[u8] = if base_arg.len() > 1 && base_arg.ends_with(b"/") { b"/" } else { b"" };
            let full = [&absolute(self.cwd, base_arg)[..], slash].concat();
            let problem = Problem::failed(ErrorRole::Sender, "change_dir", &full, &error);
            Error::new(Exit::FileSelect, problem.line).by("sender")
        };
        enter(if base_arg.is_empty() { b"." } else { base_arg }).map_err(cannot_enter)?;
        self.unshown = shown.clone();
        let base = self.base(base_arg, &shown)?;
        for name in names {
            self.argument += 1;
            let (cleaned, content) = clean(name);
            if trusted_path::is_confined()
                && !self.follows_links()
                && let Err(error) = check_listed(base_arg, &cleaned, content)
            {
                let dot: &[u8] = if content && !self.select.relative { b"/." } else { b"" };
                let full = resolved(self.cwd, &path::join(base_arg, &cleaned.join(&b'/')));
                let full = [&full, dot].concat();
                let problem = Problem::failed(ErrorRole::Sender, "link_stat", &full, &error);
                self.out.problems.push(problem.weighing(Weight::SourceError));
                continue;
            }
            if self.select.relative {
                let (inner, rest) = match find_marker(name) {
                    Some(at) => (&name[..at], &name[at + 3..]),
                    None => (&b""[..], name.as_slice()),
                };
                if inner.is_empty() {
                    self.imply_top(&base, rest);
                    self.insert(&base, &cleaned, content)?;
                } else {
                    let shown = path::join(&shown, inner);
                    match self.base(&path::join(base_arg, &clean(inner).0.join(&b'/')), &shown) {
                        Ok(inner_base) => {
                            let (cleaned, content) = clean(rest);
                            self.imply_top(&inner_base, rest);
                            self.insert(&inner_base, &cleaned, content)?;
                        }
                        Err(error) => self.out.problems.push(Problem::new(error.message, Weight::SourceError)),
                    }
                }
                continue;
            }
            // Without -R only the last element of the name is kept.
            let joined = path::join(base_arg, &cleaned.join(&b'/'));
            let arg = if content { path::join(&joined, b".") } else { joined };
            self.plain(&arg)?;
        }
        Ok(())
    }

    /// Returns the result.
    fn finish(mut self) -> Gathered {
        self.report_missing_parents();
        self.out
            .missing
            .retain(|path| !self.tree.brings(path, &path.as_bytes().split(|&b| b == b'/').collect::<Vec<_>>()));
        if self.entries != 1 || self.has_implied_top {
            self.out.single = None;
        }
        if self.out.found != 1 {
            self.out.lone_dir = None;
        }
        self.out.node = Arc::new(self.tree.build());
        self.out
    }

    /// Returns whether symlinks of the source are followed, if only some.
    fn follows_links(&self) -> bool {
        self.select.copy_links || self.select.copy_dirlinks || self.select.copy_unsafe_links
    }

    /// Returns the open directory of a path. Each is opened only once.
    fn base(&mut self, dir: &[u8], shown: &[u8]) -> Result<Arc<Base>, Error> {
        let dir = dir.strip_suffix(b"/.").filter(|dir| !dir.is_empty()).unwrap_or(dir);
        let dir = if dir.is_empty() { b"." } else { dir };
        if let Some(base) = self.bases.get(dir) {
            return Ok(base.clone());
        }
        let full = resolved(self.cwd, dir);
        let cannot_enter = |error| {
            let problem = Problem::failed(ErrorRole::Sender, "change_dir", &self.given(dir), &error);
            Error::new(Exit::Partial, problem.line).by("sender")
        };
        let open = enter(dir).map_err(cannot_enter)?;
        let follow = if self.follows_links() || self.select.relative { Follow::Anywhere } else { Follow::Never };
        let chain = self.rules.chain(Side::Sender, &full);
        // Without `.` elements. `..` elements stay.
        let shown = clean_dots(shown.strip_prefix(&self.unshown[..]).unwrap_or(shown)).0.join(&b'/');
        let root = match self.bases.len() < self.open_bases_max {
            true => BaseRoot::Open(Root::new(open, full, follow)),
            false => BaseRoot::Closed { at: dir.to_vec(), id: open.id().map_err(cannot_enter)?, path: full, follow },
        };
        let base = Arc::new(Base { root, shown, chain });
        self.bases.insert(dir.to_vec(), base.clone());
        Ok(base)
    }

    /// Adds an argument without `-R`.
    fn plain(&mut self, arg: &[u8]) -> Result<(), Error> {
        let (parent, name) = path::split_parent(arg);
        if matches!(name, b"" | b"." | b"..") {
            let dir = if name == b"" && !parent.is_empty() { parent } else { arg };
            return self.content_of(if arg == b"/" { b"/" } else { dir });
        }
        let parent: &[u8] = if parent.is_empty() && arg.starts_with(b"/") { b"/" } else { parent };
        let followed = self.select.copy_links;
        let stat = match sys::stat_path(arg, followed) {
            Ok(stat) => stat,
            Err(error) => return self.missing_argument(arg, name, &error),
        };
        let shown = trim_slashes(parent).to_vec();
        let base = match self.base(parent, &shown) {
            Ok(base) => base,
            Err(error) => {
                self.out.problems.push(Problem::new(error.message, Weight::SourceError));
                return Ok(());
            }
        };
        let is_listed_as_dir = self.is_listed_as_dir(&stat, &base, &RelPath::root(), name);
        let is_dir = is_listed_as_dir && !self.is_only_unsafe(&stat);
        if !base.chain.includes(self.reports_rules, Side::Sender, name, is_dir, &mut self.out.notes) {
            return Ok(());
        }
        if is_dir && self.select.recurse == Recurse::No {
            self.out.notes.push([b"skipping directory ", name].concat());
            return Ok(());
        }
        let content = if self.select.recurse == Recurse::Full { NamedContent::Full } else { NamedContent::None };
        self.tree.name(&base, &RelPath::root(), NamedEntry::of_argument(self.argument, name, content, false));
        let path = RelPath::root().join(name);
        if is_dir && content == NamedContent::Full {
            self.out.whole.push((base.clone(), path.clone()));
        }
        self.found(if is_listed_as_dir { None } else { Some(name) });
        self.out.lone_dir =
            is_listed_as_dir.then_some(LoneDir { base, path, has_content: content == NamedContent::Full });
        Ok(())
    }

    /// Returns whether a name is listed as a directory, also if it is a symlink that leads to one.
    fn is_listed_as_dir(&self, stat: &Stat, base: &Base, dir: &RelPath, name: &[u8]) -> bool {
        let Select { copy_unsafe_links, copy_dirlinks, .. } = *self.select;
        let follows = FollowedLinks { unsafe_ones: copy_unsafe_links, to_dirs: copy_dirlinks };
        let looks = || {
            let open = base.root.open_dir_to_search(dir)?;
            follows.stat(&open, name, dir, &sys::read_link(open.fd(), name)?)
        };
        match Kind::of_mode(stat.mode) {
            // What cannot be examined is reported when it is listed.
            Some(Kind::Symlink) if copy_unsafe_links || copy_dirlinks => {
                looks().is_ok_and(|stat| stat.is_some_and(|stat| Kind::of_mode(stat.mode) == Some(Kind::Dir)))
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

    /// Notes that the content of a directory is the transfer's root.
    fn top(&mut self, stat: io::Result<Stat>, base: &Arc<Base>) {
        match (&self.out.top, stat) {
            (None, Ok(stat)) => self.out.top = Some((stat, base.clone())),
            (Some(_), Ok(stat)) if self.out.top_is_bare => {
                self.out.top = Some((stat, base.clone()));
                self.out.top_is_bare = false;
                self.out.tops_more += 1;
            }
            (None, Err(error)) => {
                let problem = Problem::failed(ErrorRole::Sender, "link_stat", base.root.path(), &error);
                self.out.problems.push(problem.weighing(Weight::SourceError));
            }
            (Some(_), _) => self.out.tops_more += 1,
        }
    }

    /// Adds an argument that stands for the content of a directory.
    fn content_of(&mut self, dir: &[u8]) -> Result<(), Error> {
        let itself = dir.strip_suffix(b"/.").unwrap_or(dir);
        let stat = match sys::stat_path(dir, true) {
            Ok(stat) => stat,
            Err(error) => return self.cannot_enter(itself, &error),
        };
        if Kind::of_mode(stat.mode) != Some(Kind::Dir) {
            return self.cannot_enter(itself, &crate::fs::errno::not_a_directory());
        }
        if self.select.recurse == Recurse::No {
            self.out.notes.push(b"skipping directory .".to_vec());
            return Ok(());
        }
        let shown = trim_slashes(dir).to_vec();
        let base = match self.base(dir, &shown) {
            Ok(base) => base,
            Err(error) => {
                self.out.problems.push(Problem::new(error.message, Weight::SourceError));
                return Ok(());
            }
        };
        self.tree.all.push((base.clone(), RelPath::root(), self.select.recurse == Recurse::Full, self.argument));
        if self.select.recurse == Recurse::Full {
            self.out.whole.push((base.clone(), RelPath::root()));
        }
        self.top(Ok(stat), &base);
        self.found(None);
        self.out.lone_dir = Some(LoneDir { base, path: RelPath::root(), has_content: true });
        Ok(())
    }

    /// Reports that a directory cannot be entered. The options for missing arguments do not excuse this.
    fn cannot_enter(&mut self, dir: &[u8], error: &io::Error) -> Result<(), Error> {
        let problem = Problem::failed(ErrorRole::Sender, "change_dir", &self.given(dir), error);
        self.out.problems.push(problem.weighing(Weight::SourceError));
        Ok(())
    }

    /// Returns the path of a directory that cannot be entered, as rsync prints it.
    fn given(&self, dir: &[u8]) -> Vec<u8> {
        match dir.strip_prefix(&self.unshown[..]) {
            Some(name) if !self.unshown.is_empty() => {
                path::join(&resolved(self.cwd, &self.unshown), &clean_dots(name).0.join(&b'/'))
            }
            _ => as_given(self.cwd, dir),
        }
    }

    fn missing_argument(&mut self, arg: &[u8], name: &[u8], error: &io::Error) -> Result<(), Error> {
        let parent = path::split_parent(arg).0;
        if !parent.is_empty()
            && let Err(error) = sys::stat_path(&path::join(parent, b"."), true)
        {
            return self.cannot_enter(parent, &error);
        }
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        match self.select.missing_args {
            MissingArgs::Ignore if is_missing => return Ok(()),
            MissingArgs::Delete if is_missing => {
                self.out.missing.extend(RelPath::parse(name));
                self.entries += 1;
                self.out.single = Some(name.to_vec());
                return Ok(());
            }
            _ => {}
        }
        // A missing argument alone does not stop deletions.
        let weight = if is_missing { Weight::Failed } else { Weight::SourceError };
        let full = resolved(self.cwd, arg);
        self.out.problems.push(Problem::failed(ErrorRole::Sender, "link_stat", &full, error).weighing(weight));
        Ok(())
    }

    /// Adds an argument under `-R`, which is kept from its beginning or behind the first `/./`.
    fn relative(&mut self, arg: &[u8]) -> Result<(), Error> {
        let (base_arg, rest) = split_kept(arg);
        if rest.split(|&b| b == b'/').any(|part| part == b"..") {
            let line = [b"found \"..\" dir in relative path: ", rest].concat();
            return Err(Error::usage(line).by("sender"));
        }
        let (parts, content) = clean(rest);
        let shown = trim_slashes(base_arg).to_vec();
        let base = match self.base(base_arg, &shown) {
            Ok(base) => base,
            Err(error) => {
                self.out.problems.push(Problem::new(error.message, Weight::SourceError));
                return Ok(());
            }
        };
        self.imply_top(&base, rest);
        self.insert(&base, &parts, content)
    }

    /// Adds the root's own attributes, if the part of a name that `-R` keeps is the first to imply them. Rules apply to
    /// this root as to an entry with the name `.`.
    fn imply_top(&mut self, base: &Arc<Base>, kept: &[u8]) {
        if !implies_root(kept) || self.has_implied_top {
            return;
        }
        let chain = self.entered.as_ref().map_or(&base.chain, |(_, chain)| chain);
        if !chain.includes(self.reports_rules, Side::Sender, b".", true, &mut self.out.notes) {
            return;
        }
        self.has_implied_top = true;
        if self.select.recurse == Recurse::No {
            self.out.notes.push(b"skipping directory .".to_vec());
        } else {
            let is_first = self.out.top.is_none();
            self.top(base.root.open().and_then(|root| sys::fstat(root.dir().fd())), base);
            self.out.top_is_bare |= is_first && self.implies_bare_top;
        }
    }

    /// Adds the path `parts` below a base to the tree.
    fn insert(&mut self, base: &Arc<Base>, parts: &[Vec<u8>], content: bool) -> Result<(), Error> {
        let Some((last, leading)) = parts.split_last() else {
            if self.select.recurse == Recurse::No {
                self.out.notes.push(b"skipping directory .".to_vec());
                return Ok(());
            }
            let top = match &self.entered {
                Some((_, chain)) => Arc::new(Base { chain: chain.clone(), ..(**base).clone() }),
                None => base.clone(),
            };
            let recurses = self.select.recurse == Recurse::Full;
            self.tree.all.push((top.clone(), RelPath::root(), recurses, self.argument));
            if recurses {
                self.out.whole.push((base.clone(), RelPath::root()));
            }
            self.top(base.root.open().and_then(|root| sys::fstat(root.dir().fd())), base);
            self.found(None);
            self.out.lone_dir = Some(LoneDir { base: top, path: RelPath::root(), has_content: true });
            return Ok(());
        };
        let whole = parts.join(&b'/');
        let parent = leading.join(&b'/');
        let follow = self.select.copy_links || content;
        // A symlink that does not lead to a directory stands for itself, even if its argument ends in a slash.
        let look = |dir: &Dir, name: &[u8], follow: bool| {
            let found = sys::stat(dir.fd(), name, follow);
            let may_lead_on = match &found {
                Ok(stat) => Kind::of_mode(stat.mode) == Some(Kind::Dir),
                Err(error) => !errno::is_unreachable(error) && error.kind() != io::ErrorKind::InvalidFilename,
            };
            if !content || self.select.copy_links || may_lead_on {
                return found.map(|stat| (stat, false));
            }
            sys::stat(dir.fd(), name, false).map(|stat| (stat, true)).or_else(|_| found.map(|stat| (stat, false)))
        };
        let looked = match RelPath::parse(&parent) {
            Ok(_) if sandbox::is_hidden(&base.root.full(&whole)) => Err(errno::gone()),
            Ok(dir) => base.root.open_dir_to_search(&dir).and_then(|dir| look(&dir, last, follow)),
            Err(_) => Err(io::ErrorKind::InvalidInput.into()),
        };
        let (stat, followed) = match looked {
            Ok((stat, is_itself)) => (stat, content && !is_itself),
            Err(error) => {
                if error.kind() == io::ErrorKind::NotFound {
                    match self.select.missing_args {
                        MissingArgs::Ignore => return Ok(()),
                        MissingArgs::Delete => {
                            let is_listed = self.imply_existing(base, leading);
                            self.out.missing.extend(RelPath::parse(&whole).ok().filter(|_| is_listed));
                            self.entries += 2;
                            return Ok(());
                        }
                        MissingArgs::Fail => {}
                    }
                }
                let full = base.root.full(&whole);
                let weight = if error.kind() == io::ErrorKind::NotFound { Weight::Failed } else { Weight::SourceError };
                self.out.problems.push(Problem::failed(ErrorRole::Sender, "link_stat", &full, &error).weighing(weight));
                return Ok(());
            }
        };
        let is_listed_as_dir = RelPath::parse(&parent).is_ok_and(|dir| self.is_listed_as_dir(&stat, base, &dir, last));
        let is_dir = is_listed_as_dir && !self.is_only_unsafe(&stat);
        let chain = self.entered.as_ref().map_or(&base.chain, |(_, chain)| chain);
        if !chain.includes(self.reports_rules, Side::Sender, &whole, is_dir, &mut self.out.notes) {
            return Ok(());
        }
        if is_dir && self.select.recurse == Recurse::No {
            self.out.notes.push([b"skipping directory ", whole.as_slice()].concat());
            return Ok(());
        }
        self.enter_leading(base, leading)?;
        let is_link = Kind::of_mode(stat.mode) == Some(Kind::Symlink);
        let stays_link = is_link && !self.select.copy_dirlinks && !self.select.copy_unsafe_links;
        let what = match self.select.recurse {
            // Another argument may continue behind the symlink, which makes it a directory.
            _ if stays_link => NamedContent::None,
            Recurse::Full => NamedContent::Full,
            _ if content => NamedContent::Shallow,
            _ => NamedContent::None,
        };
        let rules = self.entered.as_ref().map(|(_, chain)| chain.clone());
        let named = NamedEntry { rules, ..NamedEntry::of_argument(self.argument, last, what, followed) };
        let (node, dir) = self.imply(base, leading);
        node.name(base, &dir, named);
        if is_dir && what == NamedContent::Full {
            self.out.whole.push((base.clone(), dir.join(last)));
        }
        self.found(if is_listed_as_dir || !leading.is_empty() { None } else { Some(last) });
        if is_listed_as_dir && leading.is_empty() && !self.has_implied_top {
            let has_content = what != NamedContent::None;
            self.out.lone_dir = Some(LoneDir { base: base.clone(), path: dir.join(last), has_content });
        }
        Ok(())
    }

    /// Enters the directories that lead to an argument, unless they are above those entered last. As in rsync without
    /// incremental recursion, an argument is checked before that, against the rules of the directory entered last.
    fn enter_leading(&mut self, base: &Arc<Base>, leading: &[Vec<u8>]) -> Result<(), Error> {
        let is_inside = self.entered.as_ref().map_or(leading.is_empty(), |(dir, _)| dir.starts_with(leading));
        if is_inside || !self.lists_first || !base.chain.has_per_dir() {
            return Ok(());
        }
        let is_first = self.entered.is_none() && self.out.whole.is_empty() && self.tree.all.is_empty();
        let mut chain = if is_first { base.chain.clone() } else { base.chain.for_further_source() };
        let mut path = RelPath::root();
        for part in leading {
            path = path.join(part);
            // What cannot be opened has no rules; that is reported when it is listed.
            if let Ok(dir) = base.root.open_dir_to_search(&path) {
                let (rules, refusals) = enter_dir(&chain, &dir, &path, "sender", self.link_owners)?;
                chain = rules;
                self.out.problems.extend(refusals);
            }
        }
        self.entered = Some((leading.to_vec(), chain));
        Ok(())
    }
}

impl Gatherer<'_> {
    /// Adds the directories that lead to an argument. As in rsync, those that the previous argument did not share are
    /// listed again; with incremental recursion only the topmost one is.
    fn imply(&mut self, base: &Arc<Base>, leading: &[Vec<u8>]) -> (&mut NodeBuilder, RelPath) {
        let is_whole = self.lists_first;
        let shared = match &self.led {
            Some((before, parts)) if is_whole || Arc::ptr_eq(before, base) => {
                let shared = parts.iter().zip(leading).take_while(|(a, b)| a == b).count();
                // rsync compares as far as the last common slash.
                let is_prefix = shared == parts.len() && shared < leading.len();
                shared.saturating_sub(usize::from(is_whole && is_prefix))
            }
            _ => 0,
        };
        if shared < leading.len() {
            self.led = Some((base.clone(), leading.to_vec()));
        }
        let counts = |depth, is_known: bool| !is_known || depth >= shared && (depth == 0 || is_whole);
        self.tree.imply((base, self.argument), leading, counts)
    }

    /// Adds the existing directories above a missing argument. Returns `false` if the argument takes no part: with
    /// incremental recursion, rsync lists it in a directory that is missing itself. See `tests/delete.rs`.
    fn imply_existing(&mut self, base: &Arc<Base>, leading: &[Vec<u8>]) -> bool {
        let existing = (1..=leading.len()).take_while(|&len| {
            let dir = RelPath::parse(&leading[..len].join(&b'/'));
            dir.is_ok_and(|dir| base.root.open_dir_to_search(&dir).is_ok())
        });
        let existing = existing.count();
        if !self.select.no_implied_dirs {
            self.imply(base, &leading[..existing]);
        }
        for len in existing + 1..=leading.len() {
            let dir = leading[..len].join(&b'/');
            let line = [b"file has vanished: \"", &base.root.full(&dir)[..], b"\""].concat();
            if !self.select.no_inc_recursive {
                self.out.problems.push(Problem::new(line, Weight::Vanished));
                return false;
            }
            if self.absent.insert(dir) {
                self.out.problems.push(Problem::new(line, Weight::Vanished));
            }
        }
        true
    }

    /// Reports, as rsync's receiver does, paths in the list whose parent directories are missing from it.
    fn report_missing_parents(&mut self) {
        if self.select.list_only {
            return;
        }
        let parents: BTreeSet<_> = self.out.missing.iter().filter_map(RelPath::parent).collect();
        let absent = parents.iter().map(RelPath::as_bytes).filter(|&dir| self.absent.contains(dir));
        self.out.problems.extend(absent.map(Problem::absent_parent));
    }
}

/// Fails if a name of `--files-from` leads out of the directory of `--confine-root`. `content`: the name stands for the
/// content of a directory.
fn check_listed(base: &[u8], parts: &[Vec<u8>], content: bool) -> io::Result<()> {
    let kept = if content { parts.len() } else { parts.len().saturating_sub(1) };
    let dir = path::join(base, &parts[..kept].join(&b'/'));
    match sys::open_dir_path_to_search(if dir.is_empty() { b"." } else { &dir }) {
        // Anything else is found out later.
        Err(_) => Ok(()),
        Ok(fd) => trusted_path::check_inside(fd.as_fd()),
    }
}

/// Whether an entry below a base exists and is included under this path of the transfer.
fn has(base: &Base, inside: &[u8], path: &RelPath) -> bool {
    let Ok(inside) = RelPath::parse(inside) else { return false };
    let dir = base.root.open_dir_to_search(&inside.parent().unwrap_or_default());
    let stat = dir.and_then(|dir| sys::stat(dir.fd(), inside.name(), false));
    stat.is_ok_and(|stat| !is_hidden(base, path.as_bytes(), Kind::of_mode(stat.mode) == Some(Kind::Dir)))
}

/// Whether the rules exclude the entry of an argument. Per-directory rules are not considered.
fn is_hidden(base: &Base, path: &[u8], is_dir: bool) -> bool {
    base.chain.verdict(Side::Sender, path, is_dir) != Verdict::Include
}

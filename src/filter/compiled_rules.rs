//! The parts of a [`Chain`](super::Chain): compiled rules, and groups of rules that per-directory files fill.

use crate::exit::Exit;
use std::io;
use std::sync::Arc;

use super::module_rules::ModuleRules;
use super::parse::{BadRule, Label, cvs_globals, parse_labelled};
use super::pattern::{Anchor, CandidatePath, Pattern};
use super::rule::{Merge, Parsed, Rule, Side, Sides, Text};

/// How deeply merge files may include each other, as in rsync. Beyond that the run ends.
pub const MERGE_DEPTH_MAX: usize = 32;

/// How many files a per-directory merge file may include, also through others. rsync has no limit there. This one bounds time
/// and memory: files that include two others each double both with each level.
pub(super) const INCLUDED_MAX: usize = 4096;

/// How deeply per-directory merge files may open each other by `:` rules. rsync has no limit there. This one bounds the
/// stack, because the owner of a directory writes these files.
pub(super) const GROUP_DEPTH_MAX: usize = 128;

/// Returns rsync's message about a merge file that would be nested deeper. `place`: the rule that names it.
pub fn too_deep(role: &str, depth_max: usize, place: &[u8]) -> Vec<u8> {
    let start =
        format!("[{role}] merge-file include depth limit ({depth_max}) exceeded at <rule from ");
    [start.as_bytes(), place, b">"].concat()
}

/// The options of a chain, apart from its rules.
#[derive(Clone, Debug, Default)]
pub struct ChainOptions {
    /// `--delete-excluded`: rules without sides apply only to the sender.
    pub delete_excluded: bool,
    /// `--from0`: rules in merge files are separated by NUL.
    pub from0: bool,
    /// The absolute path of the root of the transfer on this side, without a trailing slash. Used for rules with the
    /// modifier `/`, for the scan of parent directories, and in messages. A chain serves one tree: sender and receiver
    /// have one each.
    pub root_abs: Vec<u8>,
    /// The side that this tree belongs to; `None` if both sides are queried. A `:` rule in a per-directory file that
    /// applies only to the other side is skipped, and its files are not read.
    pub side: Option<Side>,
    /// The directory of the module that a daemon serves, without a trailing slash; otherwise empty. Absolute paths in the
    /// client's rules begin there: those of rules with the modifier `/`, and the names of per-directory files.
    pub module_abs: Vec<u8>,
    /// The text of `~/.cvsignore`, for `-C` rules.
    pub cvs_home: Option<Vec<u8>>,
    /// The value of `CVSIGNORE`, for `-C` rules.
    pub cvs_env: Option<Vec<u8>>,
    /// The rules of the module that a daemon serves. What they exclude takes no part, whatever the other rules are.
    pub module: Option<Arc<ModuleRules>>,
}

impl ChainOptions {
    /// Returns an absolute path as rules see it: there is nothing above a module.
    pub(super) fn seen<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        match path.strip_prefix(&self.module_abs[..]) {
            Some(below) if below.is_empty() || below.starts_with(b"/") => below,
            Some(_) | None => path,
        }
    }
}

/// Why the rules of a directory could not be read. This ends the run.
#[derive(Debug)]
pub enum FilterError {
    /// A rule in a file is invalid: exit code 1.
    BadRule(BadRule),
    /// A file named by another file cannot be read: exit code 11. Holds rsync's message without a newline; like rsync,
    /// it does not include the system's error.
    Unreadable(Vec<u8>),
    /// Files include each other more than this number of levels deep: exit code 11. Also holds the place of the rule that
    /// names the next one.
    TooDeep(usize, Vec<u8>),
    /// A file includes more than [`INCLUDED_MAX`] others: exit code 11. Holds the place of the rule that names the next one.
    TooMany(Vec<u8>),
}

impl FilterError {
    /// Returns rsync's message without a newline. `role`: the one of this process.
    pub fn message(&self, role: &str) -> Vec<u8> {
        match self {
            FilterError::BadRule(bad) => bad.message(),
            FilterError::Unreadable(message) => message.clone(),
            FilterError::TooDeep(depth_max, place) => too_deep(role, *depth_max, place),
            FilterError::TooMany(place) => {
                let start = format!(
                    "sparsync: [{role}] merge file limit ({INCLUDED_MAX}) exceeded at <rule from "
                );
                [start.as_bytes(), place, b">"].concat()
            }
        }
    }

    /// Returns the exit code of the run.
    pub fn exit(&self) -> Exit {
        match self {
            FilterError::BadRule(_) => Exit::Usage,
            FilterError::Unreadable(_) | FilterError::TooDeep(..) | FilterError::TooMany(_) => {
                Exit::FileIo
            }
        }
    }
}

impl From<BadRule> for FilterError {
    fn from(bad: BadRule) -> FilterError {
        FilterError::BadRule(bad)
    }
}

/// Reads a merge file; `None` if there is no file of that name. See [`Chain::enter`](super::Chain::enter).
pub type ReadMerge<'a> = dyn FnMut(&[u8]) -> io::Result<Option<Vec<u8>>> + 'a;

#[derive(Clone, Debug)]
pub(super) enum RuleItem {
    Rules(Arc<RuleBlock>),
    Group(Arc<Group>),
}

/// Rules that follow each other.
#[derive(Debug)]
pub(super) struct RuleBlock {
    pub(super) rules: Vec<Compiled>,
    /// The suffix that rsync's debug output adds to their patterns.
    pub(super) source: Box<[u8]>,
    /// The file in the tree that they come from, if there is one.
    pub(super) file: Option<Arc<Vec<u8>>>,
    /// The number of the line of each rule in that file. Empty without one: there can be millions of rules then.
    pub(super) lines: Vec<u32>,
}

/// Where a rule was read.
#[derive(Clone, Copy)]
pub(super) struct RuleAt<'a> {
    /// See [`RuleBlock::source`].
    pub(super) source: &'a [u8],
    /// The file in the tree, with the number of the line.
    pub(super) line: Option<(&'a Arc<Vec<u8>>, u32)>,
}

impl RuleAt<'_> {
    /// A rule of the whole transfer.
    pub(super) const RUN: RuleAt<'static> = RuleAt {
        source: b"",
        line: None,
    };
}

/// The suffix of the patterns that a rule `-C` stands for.
pub(super) const OF_CVS: &[u8] = b" [global CVS]";

/// The rules that the per-directory files of one `:` rule add in the current directory, deepest directory first.
///
/// Made empty by [`ChainBuilder::add_group`], where the `:` rule stands. [`ChainBuilder::enter_group`] makes a new one for
/// each directory whose file changes something; a group is never changed in place, since the chain of the parent
/// directory still uses it.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) merge: Merge,
    /// The rule that opens it is one of the whole transfer, so that the user knows the name of its files.
    pub(super) is_of_run: bool,
    pub(super) items: Vec<RuleItem>,
}

/// A compiled rule. It is small, because there can be millions.
#[derive(Debug)]
pub(super) struct Compiled {
    /// What the pattern refers to: its text, or for one from a file that text with the file's directory before it.
    pub(super) text: Text,
    pattern: Pattern,
    /// The sides that it applies to; `Unsaid`: both.
    sides: Sides,
    pub(super) include: bool,
    pub(super) absolute: bool,
    pub(super) negate: bool,
    pub(super) perishable: bool,
    pub(super) xattr: bool,
    pub(super) from_file: bool,
}

impl Compiled {
    /// Returns whether the rule applies to this side.
    pub(super) fn covers(&self, side: Side) -> bool {
        self.sides.cover(side, false)
    }

    pub(super) fn matches(&self, subject: &CandidatePath<'_>) -> bool {
        self.pattern.matches(&self.text, subject) != self.negate
    }
}

/// Lists the rules of `items` in order, with those of the groups.
pub(super) fn flatten(items: &[RuleItem], out: &mut Vec<Arc<RuleBlock>>) {
    for item in items {
        match item {
            RuleItem::Rules(block) => out.push(Arc::clone(block)),
            RuleItem::Group(group) => flatten(&group.items, out),
        }
    }
}

/// Adds a rule behind `items`.
pub(super) fn push_rule(items: &mut Vec<RuleItem>, rule: Compiled, at: RuleAt<'_>) {
    let file = at.line.map(|(file, _)| file);
    let line = at.line.map(|(_, line)| line);
    if let Some(RuleItem::Rules(last)) = items.last_mut()
        && let Some(last) = Arc::get_mut(last)
        && *last.source == *at.source
        && last.file.as_ref().map(Arc::as_ptr) == file.map(Arc::as_ptr)
    {
        last.rules.push(rule);
        last.lines.extend(line);
    } else {
        items.push(RuleItem::Rules(Arc::new(RuleBlock {
            rules: vec![rule],
            source: at.source.into(),
            file: file.cloned(),
            lines: line.into_iter().collect(),
        })));
    }
}

/// Lists the file names of all groups in `items`.
pub(super) fn names_of(items: &[RuleItem], out: &mut Vec<Vec<u8>>) {
    for item in items {
        if let RuleItem::Group(group) = item {
            out.push(group.merge.file_name().to_vec());
            names_of(&group.items, out);
        }
    }
}

/// Joins `root` and a path below it, which may be empty.
pub(super) fn join(root: &[u8], path: &[u8]) -> Vec<u8> {
    let mut out = root.to_vec();
    if !path.is_empty() {
        out.push(b'/');
        out.extend_from_slice(path);
    }
    out
}

/// Removes `.`, `..` and empty components from an absolute path, and the trailing slash.
pub(super) fn clean(path: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(path.len());
    for part in path.split(|&b| b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => out.truncate(out.iter().rposition(|&b| b == b'/').unwrap_or(0)),
            _ => {
                out.push(b'/');
                out.extend_from_slice(part);
            }
        }
    }
    out
}

/// Builds items from parsed rules.
pub(super) struct ChainBuilder<'a> {
    pub(super) options: &'a ChainOptions,
    pub(super) cvs: Option<Arc<[Rule]>>,
    /// The file names of the existing groups. Each name has only one group, the first. Kept in step with the items: who
    /// adds a group adds its name, and who removes items calls [`ChainBuilder::forget`].
    pub(super) active: Vec<Vec<u8>>,
    /// How many groups are being entered, each nested in the one before.
    pub(super) depth: usize,
    /// The warnings about rules that are too long.
    pub(super) too_long: Vec<Vec<u8>>,
}

impl ChainBuilder<'_> {
    /// Compiles a rule. `base_abs` is the directory of the merge file; `None` for a rule of the whole transfer.
    pub(super) fn compile(&self, rule: Rule, base_abs: Option<&[u8]>) -> Compiled {
        let root_abs = self.options.seen(&self.options.root_abs);
        let base_abs = base_abs.map(|base_abs| self.options.seen(base_abs));
        let Rule {
            include,
            sides,
            absolute,
            negate,
            perishable,
            xattr,
            pattern: text,
            from_file,
        } = rule;
        let (pattern, joined) = match base_abs {
            Some(base_abs) if !xattr => Pattern::compile(
                &text,
                Anchor {
                    root_abs,
                    base_abs,
                    absolute,
                },
            ),
            Some(_) | None => (Pattern::compile_global(&text, root_abs, absolute), None),
        };
        let sides = match sides {
            Sides::Unsaid if self.options.delete_excluded => Sides::Sender,
            other => other,
        };
        let text = joined.map_or(text, Text::from);
        Compiled {
            text,
            pattern,
            sides,
            include,
            absolute,
            negate,
            perishable,
            xattr,
            from_file,
        }
    }

    pub(super) fn add_cvs(
        &mut self,
        cvs: &super::Cvs,
        base_abs: Option<&[u8]>,
        items: &mut Vec<RuleItem>,
    ) {
        let options = self.options;
        let list = self.cvs.get_or_insert_with(|| {
            let home = options.cvs_home.as_deref();
            cvs_globals(cvs, home, options.cvs_env.as_deref()).into()
        });
        let list = Arc::clone(list);
        for rule in list.iter() {
            let compiled = self.compile(rule.clone(), base_abs);
            let at = RuleAt {
                source: OF_CVS,
                line: None,
            };
            push_rule(items, compiled, at);
        }
    }

    /// Adds the group of a `:` rule in a file that applies to the sides `around`, unless its file name already has a
    /// group. `at`: the place of the rule.
    pub(super) fn add_group(
        &mut self,
        merge: Merge,
        around: Sides,
        base_abs: Option<&[u8]>,
        at: RuleAt<'_>,
        items: &mut Vec<RuleItem>,
    ) {
        if let Some(rule) = merge.own_exclude(around) {
            push_rule(items, self.compile(rule, base_abs), at);
        }
        if self.active.iter().all(|name| name != merge.file_name()) {
            self.active.push(merge.file_name().to_vec());
            items.push(RuleItem::Group(Arc::new(Group {
                merge,
                is_of_run: at.line.is_none(),
                items: Vec::new(),
            })));
        }
    }

    /// Gives back the names of all groups in items that are removed.
    fn forget(&mut self, items: &[RuleItem]) {
        let mut gone = Vec::new();
        names_of(items, &mut gone);
        self.active.retain(|name| !gone.contains(name));
    }

    /// Reads the files above the first directory, from the directory that the name specifies down to the parent.
    pub(super) fn scan_parents(
        &mut self,
        group: Arc<Group>,
        dir_abs: &[u8],
        read: &mut ReadMerge<'_>,
    ) -> Result<Arc<Group>, FilterError> {
        let start = match group.merge.parent_part() {
            b"" => return Ok(group),
            part @ [b'/', ..] => clean(&join(&self.options.module_abs, part)),
            part => clean(&join(dir_abs, part)),
        };
        let dir_abs = clean(dir_abs);
        let below = match dir_abs.strip_prefix(&start[..]) {
            Some([b'/', below @ ..]) => below,
            Some(_) | None => return Ok(group),
        };
        let mut group = group;
        let mut at = start;
        for part in below.split(|&b| b == b'/') {
            let file = join(&at, group.merge.file_name());
            group = self.enter_group(&group, &at, Some(&file), read)?;
            at.push(b'/');
            at.extend_from_slice(part);
        }
        Ok(group)
    }

    /// Returns the group with the rules in force in a directory; the same group if nothing changes.
    ///
    /// `file` is the path to read if it is not the bare name.
    ///
    /// The order is rsync's, and the first rule that matches decides, so the order is what the rules mean:
    ///
    /// 1. The rules of this directory's file come before those inherited from its parents. A `!` in the file removes the
    ///    inherited ones, and those of the file before it, but nothing outside of this group.
    /// 2. A `:` rule in the file opens a group at its place. Its file is read in this directory too, after the whole list
    ///    is known: a later `!` in the list would remove the group again.
    /// 3. The inherited groups are entered last, in their places behind the new rules.
    ///
    /// A file name has one group, the first (`active`). A group that is removed gives its name back, so that a later `:`
    /// rule can open it anew; without that, the name would be dead in all directories below.
    ///
    /// `changed` must be set by anything that makes the result differ: directories without a file then share the chain of
    /// their parent, which keeps memory and time independent of their number.
    pub(super) fn enter_group(
        &mut self,
        group: &Arc<Group>,
        dir_abs: &[u8],
        file: Option<&[u8]>,
        read: &mut ReadMerge<'_>,
    ) -> Result<Arc<Group>, FilterError> {
        let merge = &group.merge;
        let mut inherited: &[RuleItem] = &group.items;
        if merge.no_inherit {
            self.forget(inherited);
            inherited = &[];
        }
        let name = file.unwrap_or(merge.file_name());
        let text = if merge.file_name().is_empty() {
            None
        } else {
            self.read(merge, name, read)?
        };
        let mut items = Vec::new();
        let mut changed = merge.no_inherit && !group.items.is_empty();
        if let Some(text) = text {
            let label = match &merge.named_at {
                None => Label::Lines(join(dir_abs, merge.file_name())),
                Some(_) => Label::Whole(b"a file read earlier".to_vec()),
            };
            let list = parse_labelled(&text, merge, self.options.from0, &label);
            let mut own = Own {
                items: Vec::new(),
                inherited,
                depth: 0,
                included: 0,
            };
            let shown = match &merge.named_at {
                Some(place) if !group.is_of_run => named_at(place),
                Some(_) | None => self.shown_file(&join(dir_abs, merge.file_name())),
            };
            self.splice(list, (merge, &Arc::new(shown)), dir_abs, &mut own, read)?;
            changed |= !own.items.is_empty() || own.inherited.len() != inherited.len();
            inherited = own.inherited;
            items = own.items;
            // Groups that the file has just opened are read in its own directory as well.
            for item in &mut items {
                if let RuleItem::Group(nested) = item {
                    let scanned = self.scan_parents(Arc::clone(nested), dir_abs, read)?;
                    *nested = self.enter_nested(&scanned, dir_abs, file, read)?;
                }
            }
        }
        for item in inherited {
            items.push(match item {
                RuleItem::Rules(block) => RuleItem::Rules(Arc::clone(block)),
                RuleItem::Group(nested) => {
                    let entered = self.enter_nested(nested, dir_abs, file, read)?;
                    changed |= !Arc::ptr_eq(&entered, nested);
                    RuleItem::Group(entered)
                }
            });
        }
        if !changed {
            return Ok(Arc::clone(group));
        }
        Ok(Arc::new(Group {
            merge: merge.clone(),
            is_of_run: group.is_of_run,
            items,
        }))
    }

    /// Returns the path of a file from the root of the transfer, so that a server does not reveal where its tree is.
    fn shown_file(&self, file: &[u8]) -> Vec<u8> {
        let mut root = self.options.root_abs.as_slice();
        let file = clean(file);
        let mut shown = Vec::new();
        loop {
            if let Some([b'/', below @ ..]) = file.strip_prefix(root) {
                shown.extend_from_slice(below);
                return shown;
            }
            shown.extend_from_slice(b"../");
            let end = root.iter().rposition(|&b| b == b'/').unwrap_or(0);
            root = &root[..end];
        }
    }

    /// Enters a group nested in another group. `file` is `Some` if the directory is one of the scanned parents.
    fn enter_nested(
        &mut self,
        nested: &Arc<Group>,
        dir_abs: &[u8],
        file: Option<&[u8]>,
        read: &mut ReadMerge<'_>,
    ) -> Result<Arc<Group>, FilterError> {
        if self.depth >= GROUP_DEPTH_MAX {
            let place = join(dir_abs, nested.merge.file_name());
            return Err(FilterError::TooDeep(
                GROUP_DEPTH_MAX,
                self.shown_file(&place),
            ));
        }
        let file = file.map(|_| join(dir_abs, nested.merge.file_name()));
        self.depth += 1;
        let entered = self.enter_group(nested, dir_abs, file.as_deref(), read);
        self.depth -= 1;
        entered
    }

    /// Adds the rules of one file to `own`. Files included with `.` are inserted at their position. `file`: the file as
    /// it is shown.
    fn splice(
        &mut self,
        list: Vec<(u32, Result<Parsed, BadRule>)>,
        (group, file): (&Merge, &Arc<Vec<u8>>),
        dir_abs: &[u8],
        own: &mut Own<'_>,
        read: &mut ReadMerge<'_>,
    ) -> Result<(), FilterError> {
        let source = source_of(group);
        // In rsync, the rules of a file that a per-directory file includes with `.` are anchored at the root of the
        // transfer. They apply to both sides, whatever sides they specify.
        let named = own.depth > 0;
        let base_abs = if named { None } else { Some(dir_abs) };
        for (line, parsed) in list {
            let at = RuleAt {
                source: &source,
                line: Some((file, line)),
            };
            match parsed? {
                Parsed::Rule(rule) => {
                    let sides = if named { Sides::Both } else { rule.sides };
                    push_rule(
                        &mut own.items,
                        self.compile(Rule { sides, ..rule }, base_abs),
                        at,
                    );
                }
                Parsed::Cvs(cvs) => self.add_cvs(&cvs, base_abs, &mut own.items),
                Parsed::Clear => {
                    self.forget(&own.items);
                    self.forget(own.inherited);
                    own.items.clear();
                    own.inherited = &[];
                }
                Parsed::Merge(merge) if merge.per_dir => {
                    let side = if named { None } else { self.options.side };
                    if side.is_none_or(|side| merge.sides.cover(side, false)) {
                        self.add_group(*merge, group.sides, base_abs, at, &mut own.items);
                    } else if let Some(rule) = merge.own_exclude(group.sides) {
                        push_rule(&mut own.items, self.compile(rule, base_abs), at);
                    }
                }
                Parsed::Merge(merge) => {
                    let unreadable = || FilterError::Unreadable(merge.open_failure().0);
                    // The file of the directory counts as well.
                    if own.depth + 1 >= MERGE_DEPTH_MAX {
                        let place = merge.named_at.as_deref().unwrap_or(&merge.name);
                        return Err(FilterError::TooDeep(MERGE_DEPTH_MAX, place.to_vec()));
                    }
                    own.included += 1;
                    if own.included > INCLUDED_MAX {
                        let place = merge.named_at.as_deref().unwrap_or(&merge.name);
                        return Err(FilterError::TooMany(place.to_vec()));
                    }
                    // rsync's working directory is the root of the transfer, so the file is opened relative to it.
                    let name = match &merge.name[..] {
                        name @ [b'/', ..] => name.to_vec(),
                        name => join(&self.options.root_abs, name),
                    };
                    let text = self.read(&merge, &name, read)?.ok_or_else(unreadable)?;
                    if let Some(rule) = merge.own_exclude(group.sides) {
                        push_rule(&mut own.items, self.compile(rule, None), at);
                    }
                    let label = Label::for_merge(&merge);
                    let list = parse_labelled(&text, &merge, self.options.from0, &label);
                    own.depth += 1;
                    let place = merge.named_at.as_deref().unwrap_or(&merge.name);
                    let file = Arc::new(named_at(place));
                    self.splice(list, (group, &file), dir_abs, own, read)?;
                    own.depth -= 1;
                }
                Parsed::Nothing => {}
                Parsed::TooLong(warning) => self.too_long.push(warning.into_vec()),
            }
        }
        Ok(())
    }

    fn read(
        &self,
        merge: &Merge,
        name: &[u8],
        read: &mut ReadMerge<'_>,
    ) -> Result<Option<Vec<u8>>, FilterError> {
        read(name).map_err(|_| {
            FilterError::Unreadable(match merge.open_failure() {
                (message, false) => message,
                (_, true) => [b"failed to open exclude file ", name].concat(),
            })
        })
    }
}

/// The rules collected from one directory's file so far.
struct Own<'a> {
    items: Vec<RuleItem>,
    inherited: &'a [RuleItem],
    /// The current nesting of files included with `.`.
    depth: usize,
    /// How many files were included with `.` so far.
    included: usize,
}

/// Returns how a file is shown that another file names. The name may be a secret of that file.
fn named_at(place: &[u8]) -> Vec<u8> {
    [b"a file named at ", place].concat()
}

/// Returns the suffix for debug output, e.g. ` [per-dir .rules]`.
fn source_of(merge: &Merge) -> Vec<u8> {
    match &merge.named_at {
        None => [b" [per-dir ", merge.file_name(), b"]"].concat(),
        Some(place) => [b" [per-dir <rule from ", &place[..], b">]"].concat(),
    }
}

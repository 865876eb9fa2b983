//! What a receiving client has requested, so that the sender cannot give it anything else.
//!
//! It rejects only what no honest sender could send. If a shell or wildcards were involved, any name is accepted. See
//! rsync(1) on `--trust-sender`.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::filter::{Chain, Side, Verdict};
use crate::options::select::{MissingArgs, Recurse};
use crate::options::{ArgStyle, FilesFrom, Options};
use crate::path;
use crate::proto::{DirListing, Roots};
use crate::walk::arg_path::implies_root;
use crate::walk::run_context::RunContext;
use std::collections::{BTreeSet, HashSet};
use std::ops::Bound;

/// The request of a client.
#[derive(Debug)]
pub struct ResponseValidator {
    reach: RequestedPaths,
    /// The sender's rules that can be checked here; `None` if there are none.
    rules: Option<Chain>,
    /// The sender may name entries to delete (`--delete-missing-args`).
    may_miss: bool,
    /// What the sender gives is not compared with the request (`--trust-sender`).
    is_trusted: bool,
}

/// The part of the transfer that the sender may use.
#[derive(Debug)]
enum RequestedPaths {
    /// Everything: the content of a directory was requested, or the names cannot be determined here.
    Anywhere,
    /// Any name, because wildcards were given. But the directory that contains the matches is not listed completely, so
    /// nothing in it may be deleted, nor in the directories that lead to all matches: this one and those above it.
    AnyName { leading: Vec<u8> },
    /// These paths, everything below those whose content was requested, and the directories that lead to them. Those are
    /// not stored: together, they can be as long as the square of a path.
    Paths {
        named: BTreeSet<Vec<u8>>,
        with_content: HashSet<Vec<u8>>,
        /// The root of the transfer is one of the directories that lead to them.
        has_root: bool,
    },
}

impl ResponseValidator {
    /// Returns the request of a server that receives: its client decides what to send.
    pub fn anything(options: &Options) -> ResponseValidator {
        let may_miss = options.select.missing_args == MissingArgs::Delete;
        ResponseValidator {
            reach: RequestedPaths::Anywhere,
            rules: None,
            may_miss,
            is_trusted: false,
        }
    }

    /// Returns the request of a client. `sources` are the arguments as given, `listed` the names from `--files-from` if
    /// that is read here. `has_remote_words`: the server gets options that this end does not interpret.
    pub fn for_request(
        run_context: &RunContext<'_>,
        sources: &[Vec<u8>],
        listed: Option<&[Vec<u8>]>,
        has_remote_words: bool,
    ) -> ResponseValidator {
        let anything = ResponseValidator::anything(run_context.options);
        let options = run_context.options;
        let rules = run_context.rules.fixed();
        let rules = if has_remote_words || rules.is_empty() {
            None
        } else {
            Some(rules)
        };
        let is_elsewhere = matches!(options.select.files_from, Some(FilesFrom::Far(_)));
        let names = listed.unwrap_or(sources);
        // A shell reads the names, and may find several in one.
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,@%:".contains(byte);
        let is_split = matches!(options.connect.args, ArgStyle::OldPaths | ArgStyle::OldAll)
            && !names.iter().flatten().all(is_plain);
        let reach = if is_elsewhere || is_split || has_remote_words {
            RequestedPaths::Anywhere
        } else {
            RequestedPaths::new(
                names,
                options.select.relative,
                listed.is_none(),
                options.select.recurse == Recurse::Full,
            )
        };
        ResponseValidator {
            reach,
            rules,
            is_trusted: options.connect.trust_sender,
            ..anything
        }
    }

    /// Rejects roots that were not requested.
    pub fn check_roots(&self, roots: &Roots) -> Result<()> {
        if let (Some(missing), false) = (roots.missing.first(), self.may_miss) {
            return Err(refuse("to remove", missing.as_bytes()));
        }
        if self.is_trusted {
            return Ok(());
        }
        for path in roots.missing.iter().chain(&roots.whole) {
            if !self.reach.holds(path.as_bytes()) {
                return Err(refuse("unrequested", path.as_bytes()));
            }
        }
        match &self.reach {
            RequestedPaths::Paths {
                has_root: false, ..
            } if roots.top.is_some() => Err(refuse("unrequested", b".")),
            RequestedPaths::AnyName { .. }
            | RequestedPaths::Anywhere
            | RequestedPaths::Paths { .. } => Ok(()),
        }
    }

    /// Returns whether the content of a directory was requested, which is only then listed completely.
    pub fn includes_content(&self, dir: &[u8]) -> bool {
        self.reach.has_content(dir)
    }

    /// Rejects a directory that was not requested, or one with entries that were not requested.
    pub fn check(&self, listing: &DirListing) -> Result<()> {
        if listing.is_named && listing.may_delete {
            return Err(refuse("to clear", listing.path.as_bytes()));
        }
        if self.is_trusted {
            return Ok(());
        }
        let dir = listing.path.as_bytes();
        let leads = !self.reach.has_content(dir);
        // Directories that lead to an argument are sent whatever the rules say.
        let is_leading = |path: &[u8]| leads && self.reach.leads_by(path);
        if leads && !(dir.is_empty() || is_leading(dir) || self.reach.holds(dir)) {
            return Err(refuse("unrequested", dir));
        }
        if leads && listing.may_delete {
            return Err(refuse("to clear", dir));
        }
        if !listing.itself.is_empty() && !is_leading(dir) {
            self.check_rules(dir, true)?;
        }
        for entry in &listing.list.entries {
            let path = path::join(dir, listing.list.name(entry));
            if is_leading(&path) && entry.is_dir() {
                continue;
            }
            if !self.reach.holds(&path) {
                return Err(refuse("unrequested", &path));
            }
            self.check_rules(&path, entry.is_dir())?;
        }
        Ok(())
    }

    fn check_rules(&self, path: &[u8], is_dir: bool) -> Result<()> {
        match &self.rules {
            Some(rules) if rules.verdict(Side::Sender, path, is_dir) != Verdict::Include => {
                Err(refuse("excluded", path))
            }
            _ => Ok(()),
        }
    }
}

impl RequestedPaths {
    /// Returns what `names` can stand for. `expands`: a shell or the server may expand them. `recurses`: a name
    /// includes everything below it, and not only if it ends in a slash.
    fn new(names: &[Vec<u8>], relative: bool, expands: bool, recurses: bool) -> RequestedPaths {
        let mut named = BTreeSet::new();
        let mut with_content = HashSet::new();
        let mut has_root = false;
        let mut is_wild = false;
        let mut leading_to_all: Option<Vec<&[u8]>> = None;
        for name in names {
            let has_wildcard =
                |part: &[u8]| expands && part.iter().any(|byte| b"*?[\\".contains(byte));
            let last = path::file_name(name);
            let marker = name.windows(3).position(|window| window == b"/./");
            let rest = match marker {
                Some(at) if relative => &name[at + 3..],
                _ => name,
            };
            let parts: Vec<&[u8]> = rest
                .split(|&b| b == b'/')
                .filter(|part| !matches!(*part, b"" | b"."))
                .collect();
            let climbs = name.split(|&b| b == b'/').any(|part| part == b"..");
            // In some shells `.*` matches `.` and `..`, too.
            let is_dotted = last.starts_with(b".") && has_wildcard(last);
            let is_home = expands && name.starts_with(b"~");
            let is_content = if relative {
                parts.is_empty() || climbs || is_home
            } else {
                matches!(last, b"" | b"." | b"..")
            };
            if is_content || is_dotted {
                return RequestedPaths::Anywhere;
            }
            let kept = if relative {
                parts.as_slice()
            } else {
                std::slice::from_ref(&last)
            };
            let above = kept.split_last().map_or(&[][..], |(_, above)| above);
            let plain = above.iter().take_while(|part| !has_wildcard(part));
            let same = |others: &Vec<&[u8]>| {
                let pairs = plain.clone().zip(others);
                pairs.take_while(|(part, other)| part == other).count()
            };
            let count = leading_to_all
                .as_ref()
                .map_or_else(|| plain.clone().count(), same);
            leading_to_all = Some(above[..count].to_vec());
            if kept.iter().any(|part| has_wildcard(part)) || is_home && last == name.as_slice() {
                is_wild = true;
                continue;
            }
            if relative && (name.starts_with(b"./") || implies_root(rest)) {
                has_root = true;
            }
            let whole = kept.join(&b'/');
            if recurses || matches!(last, b"" | b"." | b"..") {
                with_content.insert(whole.clone());
            }
            named.insert(whole);
        }
        if is_wild {
            let leading = leading_to_all.unwrap_or_default().join(&b'/');
            RequestedPaths::AnyName { leading }
        } else {
            RequestedPaths::Paths {
                named,
                with_content,
                has_root,
            }
        }
    }

    /// Whether a path is that of a directory that leads to a path which was named.
    fn leads_by(&self, path: &[u8]) -> bool {
        let RequestedPaths::Paths { named, .. } = self else {
            return false;
        };
        let start = [path, b"/"].concat();
        let mut from = named.range::<[u8], _>((Bound::Included(&start[..]), Bound::Unbounded));
        from.next().is_some_and(|next| next.starts_with(&start))
    }

    /// Whether a path may be sent.
    fn holds(&self, path: &[u8]) -> bool {
        match self {
            RequestedPaths::Anywhere => true,
            RequestedPaths::AnyName { .. } => !path.is_empty(),
            RequestedPaths::Paths { named, .. } => {
                named.contains(path)
                    || path.contains(&b'/') && self.has_content(path::split_parent(path).0)
            }
        }
    }

    /// Whether the content of a directory was requested.
    fn has_content(&self, dir: &[u8]) -> bool {
        match self {
            RequestedPaths::Anywhere => true,
            RequestedPaths::AnyName { leading } => {
                let rest = leading.strip_prefix(dir);
                let leads = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"));
                !dir.is_empty() && !leads
            }
            RequestedPaths::Paths { with_content, .. } => {
                let ends = dir
                    .iter()
                    .enumerate()
                    .filter(|(_, byte)| **byte == b'/')
                    .map(|(at, _)| at);
                ends.chain([dir.len()])
                    .any(|end| with_content.contains(&dir[..end]))
            }
        }
    }
}

fn refuse(what: &str, path: &[u8]) -> Error {
    let path = if path.is_empty() { b"." } else { path };
    let line = [
        b"ERROR: rejecting ".as_slice(),
        what.as_bytes(),
        b" file-list name: ",
        path,
    ]
    .concat();
    Error::new(Exit::Protocol, line).by("Receiver")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(names: &[&str], relative: bool) -> RequestedPaths {
        RequestedPaths::new(
            &names
                .iter()
                .map(|name| name.as_bytes().to_vec())
                .collect::<Vec<_>>(),
            relative,
            true,
            true,
        )
    }

    #[test]
    fn argument_permits_its_last_element_and_its_content() {
        let reach = reach(&["a/b", "/x/c"], false);
        assert!(reach.holds(b"b") && reach.holds(b"b/deep/er") && reach.holds(b"c"));
        assert!(!reach.holds(b"a") && !reach.holds(b"bb") && !reach.holds(b""));
    }

    #[test]
    fn relative_argument_permits_its_full_path() {
        let reach = reach(&["/top/./a//b", "c/d/"], true);
        assert!(reach.holds(b"a/b") && reach.holds(b"c/d/e"));
        assert!(!reach.holds(b"a") && !reach.holds(b"top/a/b"));
        assert!(reach.leads_by(b"a") && reach.leads_by(b"c"));
        for other in ["", "a/b", "c/d", "c/", "b", "top", "top/a"] {
            assert!(!reach.leads_by(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn non_recursive_directory_argument_excludes_its_content() {
        let names = ["a/b", "c/d/", "e/."].map(|name| name.as_bytes().to_vec());
        let reach = RequestedPaths::new(&names, true, true, false);
        assert!(
            reach.holds(b"a/b")
                && reach.holds(b"c/d")
                && reach.holds(b"c/d/f")
                && reach.holds(b"e/f")
        );
        assert!(!reach.holds(b"a/b/f") && !reach.holds(b"c/f"));
    }

    #[test]
    fn arguments_with_unknown_names_permit_any_entry() {
        for name in ["", ".", "a/", "a/.", "a/..", ".*", "a/.?"] {
            assert!(
                matches!(reach(&[name], false), RequestedPaths::Anywhere),
                "{name}"
            );
        }
        for name in ["", ".", "a/../b", "~/a", "a/./"] {
            assert!(
                matches!(reach(&[name], true), RequestedPaths::Anywhere),
                "{name}"
            );
        }
        for (name, relative) in [
            ("a*", false),
            ("~", false),
            ("~me", false),
            ("a/b?/c", true),
            ("[ab]", false),
        ] {
            assert!(
                matches!(
                    reach(&["x", name], relative),
                    RequestedPaths::AnyName { .. }
                ),
                "{name}"
            );
        }
    }

    #[test]
    fn directories_that_lead_to_all_matches_are_not_listed_completely() {
        let all = reach(&["a/b/c*", "a/b/d/e", "a/x?/y"], true);
        assert!(!all.has_content(b"a") && all.has_content(b"a/b") && all.has_content(b"a/b/c1"));
        let one = reach(&["a/b/c*/d"], true);
        assert!(!one.has_content(b"a/b") && one.has_content(b"a/b/c1"));
        // A match can be such a directory itself.
        assert!(reach(&["a/b/c*", "a*"], true).has_content(b"a"));
        assert!(reach(&["a/b/c*"], false).has_content(b"a"));
    }
}

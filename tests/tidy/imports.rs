//! The import graph of the source files, read as text: which file uses an item that another file defines.
//!
//! A path leads to the file that defines the item, not to the files that re-export it. So a `mod.rs` that only declares
//! and re-exports has no part in a circle. If a parent defines a type that its children use, and it uses items of them,
//! that is a circle like any other. The text is taken to be formatted by rustfmt.

use std::collections::{BTreeMap, BTreeSet};

/// One source file. Its paths are absolute, those of other crates as if these were items of the file.
#[derive(Default)]
struct Module {
    file: String,
    /// The paths that it uses, with their lines.
    paths: Vec<(usize, String)>,
    /// From a name in a `use` declaration to its path.
    imports: BTreeMap<String, String>,
    /// The modules of which it exports all items.
    globs: Vec<String>,
    /// The items that it defines.
    defined: BTreeSet<String>,
}

/// The use of an item that is defined in another file.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    pub from: String,
    pub to: String,
    /// The line in `from`.
    pub line: usize,
    pub path: String,
}

/// Returns the groups of files in which each file uses each other one, directly or not, with the edges within the group.
pub fn circles(edges: &[Edge]) -> BTreeMap<BTreeSet<&str>, Vec<&Edge>> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for edge in edges {
        reached.entry(&edge.from).or_default().insert(&edge.to);
    }
    for through in reached.keys().copied().collect::<Vec<_>>() {
        let further = reached[through].clone();
        reached
            .values_mut()
            .filter(|ends| ends.contains(through))
            .for_each(|ends| ends.extend(&further));
    }
    let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|ends| ends.contains(to));
    let mut circles: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for edge in edges.iter().filter(|edge| reaches(&edge.to, &edge.from)) {
        let circle = reached[&*edge.from]
            .iter()
            .copied()
            .filter(|file| reaches(file, &edge.from))
            .collect();
        circles.entry(circle).or_default().push(edge);
    }
    circles
}

/// Returns the uses of items between files, given by their names below `src` and their texts, outside of unit tests.
pub fn edges<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<Edge> {
    let modules: BTreeMap<_, _> = files
        .into_iter()
        .map(|(file, text)| read(file, text))
        .collect();
    let mut edges = BTreeSet::new();
    for (name, module) in &modules {
        for (line, path) in &module.paths {
            if let Some(end) = defining(&modules, path).filter(|end| end != name) {
                let (from, to) = (module.file.clone(), modules[&end].file.clone());
                edges.insert(Edge {
                    from,
                    to,
                    line: *line,
                    path: path.clone(),
                });
            }
        }
    }
    edges.into_iter().collect()
}

/// Returns the module that defines what `path` names; `None` if that is a module.
fn defining(modules: &BTreeMap<String, Module>, path: &str) -> Option<String> {
    let mut end = path;
    while !modules.contains_key(end) {
        end = end.rsplit_once("::")?.0;
    }
    let name = path[end.len()..].split("::").nth(1)?;
    match modules[end].imports.get(name) {
        Some(import) => defining(
            modules,
            &[import, &path[end.len() + 2 + name.len()..]].concat(),
        ),
        None => {
            let from = modules[end].globs.iter().find(|&glob| {
                modules
                    .get(glob)
                    .is_some_and(|of| of.defined.contains(name))
            });
            Some(from.map_or(end, String::as_str).to_owned())
        }
    }
}

const ITEMS: [&str; 7] = ["fn", "struct", "enum", "trait", "type", "const", "static"];

/// Returns the name of the module that a file is, and the module.
fn read(file: &str, text: &str) -> (String, Module) {
    let own = format!(
        "crate::{}",
        file.trim_end_matches(".rs")
            .trim_end_matches("/mod")
            .replace('/', "::")
    );
    let own = own.trim_end_matches("::lib");
    let mut module = Module {
        file: file.to_owned(),
        ..Module::default()
    };
    let (mut exports, mut words) = (Vec::new(), BTreeSet::new());
    let mut lines = code(text).into_iter();
    while let Some((line, code)) = lines.next() {
        let Some((visibility, tree)) = code.split_once("use ").filter(|(before, _)| {
            let before = before.trim();
            before.is_empty() || before.starts_with("pub") && !before.contains(' ')
        }) else {
            let paths = code.split(|c: char| !c.is_alphanumeric() && !['_', ':'].contains(&c));
            for path in paths.map(|path| path.trim_matches(':')) {
                words.insert(path.split("::").next().unwrap_or_default().to_owned());
                module
                    .paths
                    .extend(path.contains("::").then(|| (line, absolute(own, path))));
            }
            let words: Vec<_> = code
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .collect();
            let items = words.windows(2).filter(|pair| ITEMS.contains(&pair[0]));
            module.defined.extend(items.map(|pair| pair[1].to_owned()));
            continue;
        };
        let mut tree = tree.to_owned();
        while !tree.ends_with(';') {
            let Some((_, code)) = lines.next() else { break };
            tree.push_str(code.trim());
        }
        for (name, path) in names_of(tree.trim_end_matches(';')) {
            let path = absolute(own, &path);
            if let Some(glob) = path.strip_suffix("::*") {
                module.globs.push(glob.to_owned());
                continue;
            }
            let uses = if visibility.trim().is_empty() {
                &mut module.paths
            } else {
                &mut exports
            };
            uses.push((line, path.clone()));
            // The name of another crate would lead to itself.
            if path != format!("{own}::{name}") {
                module.imports.insert(name, path);
            }
        }
    }
    // A name that the file exports is one that it uses if it appears elsewhere.
    let is_used = |path: &str| {
        module
            .imports
            .iter()
            .any(|(name, known)| known == path && words.contains(name))
    };
    exports.retain(|(_, path)| is_used(path));
    module.paths.extend(exports);
    (own.to_owned(), module)
}

/// Returns the absolute form of a path in the module `own`.
fn absolute(own: &str, path: &str) -> String {
    let (mut module, mut rest) = (own, path.trim_start_matches("self::"));
    while let Some(further) = rest.strip_prefix("super::") {
        (module, rest) = (
            module
                .rsplit_once("::")
                .map_or(module, |(parent, _)| parent),
            further,
        );
    }
    if rest.starts_with("crate::") {
        rest.to_owned()
    } else {
        format!("{module}::{rest}")
    }
}

/// Returns the names that a `use` tree imports, with their paths.
fn names_of(tree: &str) -> Vec<(String, String)> {
    let Some((prefix, group)) = tree.split_once('{') else {
        let name = tree.rsplit("::").next().unwrap_or_default();
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, name));
        return vec![(name.to_owned(), path.to_owned())];
    };
    let items = super::top_level_items(group)
        .into_iter()
        .map(str::trim)
        .filter(|item| !item.is_empty());
    let names = items
        .flat_map(names_of)
        .map(|(name, path)| match (name.as_str(), path.as_str()) {
            // `use a::{self}` names `a`.
            ("self", _) => names_of(prefix.trim_end_matches("::")).remove(0),
            (_, "self") => (name, prefix.trim_end_matches("::").to_owned()),
            _ => (name, format!("{prefix}{path}")),
        });
    names.collect()
}

/// Returns the lines of code with their numbers, without comments and unit tests.
fn code(text: &str) -> Vec<(usize, String)> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let (mut code, mut is_in_module) = (Vec::new(), false);
    let mut lines = text.lines().zip(1..);
    while let Some((line, at)) = lines.next() {
        if line.trim() == "#[cfg(test)]" {
            lines.find(|(end, _)| indent(end) == indent(line) && end.ends_with([';', '}', ',']));
            continue;
        }
        is_in_module =
            indent(line) > 0 && is_in_module || line.ends_with('{') && line.contains("mod ");
        let line = line.split("//").next().unwrap_or_default();
        // In a module within the file, `super` is the file.
        code.push((
            at,
            if is_in_module {
                line.replacen("super::", "self::", 1)
            } else {
                line.to_owned()
            },
        ));
    }
    code
}

#[test]
fn paths_lead_to_the_file_that_defines_the_item() {
    let files = [
        (
            "lib.rs",
            "mod a;\nmod b;\n#[cfg(test)]\nmod tests {\n    use crate::b::Y;\n}",
        ),
        (
            "a.rs",
            "mod child;\npub use self::child::X;\n// crate::b::Y\n",
        ),
        (
            "a/child.rs",
            "use crate::b::{\n    self, inner::{Z, Y},\n};\npub struct X<'a>(&'a Y);\nfn f() { b::g() }",
        ),
        (
            "b/mod.rs",
            "use crate::a::X;\npub mod inner {\n    pub use super::{Y, Y as Z};\n}\npub enum Y {}\n",
        ),
    ];
    let edges = edges(files);
    let shown: Vec<_> = edges
        .iter()
        .map(|edge| format!("{}:{} {}", edge.from, edge.line, edge.to))
        .collect();
    assert_eq!(
        shown,
        [
            "a/child.rs:1 b/mod.rs",
            "a/child.rs:1 b/mod.rs",
            "a/child.rs:5 b/mod.rs",
            "b/mod.rs:1 a/child.rs"
        ]
    );
    let circles = circles(&edges);
    assert_eq!(
        circles.keys().collect::<Vec<_>>(),
        [&BTreeSet::from(["a/child.rs", "b/mod.rs"])]
    );
    assert_eq!(circles.values().map(Vec::len).collect::<Vec<_>>(), [4]);
}

//! The import graph of the source files, read as text: which file uses an item that another file defines.
//!
//! A path leads to the file that defines the item, not to the files that re-export it. So a `mod.rs` that only declares
//! and re-exports has no part in a circle. If a parent defines a type that its children use, and it uses items of them,
//! that is a circle like any other.

use std::collections::{BTreeMap, BTreeSet};

/// One source file.
struct Module {
    /// The file, relative to `src`.
    file: String,
    /// The modules that it declares, with their places in the list of modules.
    children: BTreeMap<String, usize>,
    /// The paths that it uses.
    paths: Vec<Found>,
    /// Its `use` declarations: from a name to its path.
    imports: BTreeMap<String, Vec<String>>,
    /// The modules of which it imports all names.
    globs: Vec<Vec<String>>,
    /// The items that it defines, and their parts.
    defined: BTreeSet<String>,
    /// The module that contains it.
    parent: Option<usize>,
}

/// A path in a file.
struct Found {
    line: usize,
    path: Vec<String>,
}

/// The use of an item that is defined in another file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    pub from: String,
    pub to: String,
    /// The line in `from`.
    pub line: usize,
    /// The path as written.
    pub path: String,
}

/// Returns the groups of files in which each file uses each other one, directly or not, with the edges within the group.
pub fn circles(edges: &[Edge]) -> Vec<(BTreeSet<String>, Vec<Edge>)> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for edge in edges {
        next.entry(&edge.from).or_default().insert(&edge.to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> = next.keys().map(|&file| (file, reached_from(file, &next))).collect();
    let mut circles = BTreeMap::new();
    for (file, ends) in &reached {
        let circle = ends.iter().filter(|end| reached.get(*end).is_some_and(|back| back.contains(file)));
        let circle: BTreeSet<String> = circle.map(ToString::to_string).collect();
        let within = edges.iter().filter(|edge| circle.contains(&edge.from) && circle.contains(&edge.to));
        circles.entry(circle.clone()).or_insert_with(|| within.cloned().collect());
    }
    circles.remove(&BTreeSet::new());
    circles.into_iter().collect()
}

fn reached_from<'a>(start: &str, next: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![start]);
    while let Some(file) = open.pop() {
        for &end in next.get(file).into_iter().flatten() {
            if reached.insert(end) {
                open.push(end);
            }
        }
    }
    reached
}

/// Returns the uses of items between the files that `lib.rs` declares, directly or not, outside of tests. `read` returns
/// the text of a file.
pub fn edges(read: &impl Fn(&str) -> Option<String>) -> Vec<Edge> {
    let mut modules = Vec::new();
    load("lib.rs", None, read, &mut modules);
    let mut edges = BTreeSet::new();
    for (at, module) in modules.iter().enumerate() {
        for Found { line, path } in &module.paths {
            if let Some(end) = defining(&modules, at, path, 0).filter(|&end| end != at) {
                let (from, to) = (module.file.clone(), modules[end].file.clone());
                edges.insert(Edge { from, to, line: *line, path: path.join("::") });
            }
        }
    }
    edges.into_iter().collect()
}

fn load(file: &str, parent: Option<usize>, read: &impl Fn(&str) -> Option<String>, modules: &mut Vec<Module>) -> usize {
    let tokens = without_tests(tokens(&read(file).unwrap_or_else(|| panic!("{file} cannot be read"))));
    let Content { paths, imports, globs, declared, defined } = content_of(&tokens);
    let own = modules.len();
    modules.push(Module { file: file.to_owned(), children: BTreeMap::new(), paths, imports, globs, defined, parent });
    let folder = match file {
        "lib.rs" => String::new(),
        _ => format!("{}/", file.trim_end_matches(".rs").trim_end_matches("/mod")),
    };
    for name in declared {
        let files = [format!("{folder}{name}.rs"), format!("{folder}{name}/mod.rs")];
        let child = files.into_iter().find(|file| read(file).is_some()).unwrap_or_else(|| panic!("no file of {name}"));
        let child = load(&child, Some(own), read, modules);
        modules[own].children.insert(name, child);
    }
    own
}

/// Returns the module that defines what `path` names in the module `at`; `None` if that is a module or is defined in
/// another crate.
fn defining(modules: &[Module], at: usize, path: &[String], depth: usize) -> Option<usize> {
    match end_of(modules, at, path, depth)? {
        End::Item(module) => Some(module),
        End::Module(_) => None,
    }
}

/// What a path names.
enum End {
    /// A module.
    Module(usize),
    /// An item of this module.
    Item(usize),
}

fn end_of(modules: &[Module], at: usize, path: &[String], depth: usize) -> Option<End> {
    assert!(depth < 20, "{}: {} leads nowhere", modules[at].file, path.join("::"));
    let (first, mut rest) = path.split_first()?;
    let mut end = match first.as_str() {
        "crate" => 0,
        "self" => at,
        "super" => modules[at].parent?,
        _ if modules[at].children.contains_key(first) || modules[at].imports.contains_key(first) => {
            rest = path;
            at
        }
        _ => return None,
    };
    while let Some((name, further)) = rest.split_first() {
        let module = &modules[end];
        if name == "super" {
            end = module.parent?;
        } else if let Some(&child) = module.children.get(name) {
            end = child;
        } else if let Some(import) = module.imports.get(name) {
            let path: Vec<_> = import.iter().chain(further).cloned().collect();
            return end_of(modules, end, &path, depth + 1);
        } else {
            let from_glob = || {
                module.globs.iter().find_map(|glob| match end_of(modules, end, glob, depth + 1)? {
                    End::Module(from) => modules[from].defined.contains(name).then_some(from),
                    End::Item(_) => None,
                })
            };
            let item = Some(end).filter(|_| module.defined.contains(name)).or_else(from_glob).unwrap_or(end);
            return Some(End::Item(item));
        }
        rest = further;
    }
    Some(End::Module(end))
}

/// What a file contains.
#[derive(Default)]
struct Content {
    paths: Vec<Found>,
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    declared: Vec<String>,
    defined: BTreeSet<String>,
}

const ITEMS: [&str; 7] = ["fn", "struct", "enum", "trait", "type", "const", "static"];

fn content_of(tokens: &[Token]) -> Content {
    let mut found = Content::default();
    // The names that the file only exports, unless it uses them, too.
    let mut exported: Vec<(String, Vec<String>)> = Vec::new();
    // The depths of braces at which a module within the file begins.
    let (mut at, mut depth, mut inline) = (0, 0, Vec::new());
    let word = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let mut used = BTreeMap::new();
    while at < tokens.len() {
        let line = tokens[at].line;
        match word(at) {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                if inline.last() == Some(&depth) {
                    inline.pop();
                }
            }
            "mod" if word(at + 2) == ";" => found.declared.push(word(at + 1).to_owned()),
            "mod" if word(at + 2) == "{" => inline.push(depth),
            "use" => {
                let is_export = at > 0 && ["pub", ")"].contains(&word(at - 1));
                let mut uses = Vec::new();
                at = read_use(tokens, at + 1, &mut Vec::new(), &mut uses);
                for (name, mut path) in uses {
                    leave_inline(&mut path, inline.len());
                    if name == "*" {
                        found.globs.push(path);
                        continue;
                    }
                    if is_export {
                        exported.push((name.clone(), path.clone()));
                    } else {
                        found.paths.push(Found { line, path: path.clone() });
                    }
                    // The name of another crate would lead to itself.
                    if path.len() > 1 && inline.is_empty() {
                        found.imports.insert(name, path);
                    }
                }
                continue;
            }
            first if is_name(first) && (at == 0 || ![".", "::"].contains(&word(at - 1))) => {
                let mut path = vec![first.to_owned()];
                while word(at + 1) == "::" && is_name(word(at + 2)) {
                    path.push(word(at + 2).to_owned());
                    at += 2;
                }
                leave_inline(&mut path, inline.len());
                if let Some(before) = at.checked_sub(1).filter(|&before| ITEMS.contains(&word(before))) {
                    found.defined.insert(word(before + 1).to_owned());
                }
                used.entry(path[..1].to_vec()).or_insert(line);
                if path.len() > 1 {
                    found.paths.push(Found { line, path });
                }
            }
            _ => {}
        }
        at += 1;
    }
    for (name, path) in exported {
        if let Some(&line) = used.get(&[name][..]) {
            found.paths.push(Found { line, path });
        }
    }
    found
}

/// Replaces the `super` that leads from a module within the file to the file.
fn leave_inline(path: &mut [String], depth: usize) {
    for part in path.iter_mut().take(depth).take_while(|part| *part == "super") {
        *part = "self".to_owned();
    }
}

/// Reads a `use` tree at `at`, and returns where it ends. `uses` gets the names with their paths.
fn read_use(tokens: &[Token], mut at: usize, prefix: &mut Vec<String>, uses: &mut Vec<(String, Vec<String>)>) -> usize {
    let length = prefix.len();
    loop {
        let text = tokens.get(at).map_or(";", |token| token.text.as_str());
        match text {
            "::" => {}
            "{" => {
                loop {
                    at = read_use(tokens, at + 1, prefix, uses);
                    if tokens[at].text == "}" {
                        break;
                    }
                }
                prefix.truncate(length);
                return at + 1;
            }
            "as" => {
                let name = tokens[at + 1].text.clone();
                uses.push((name, prefix.clone()));
                prefix.truncate(length);
                return at + 2;
            }
            // `use a::{self}` names `a`.
            "self" if length > 0 => {}
            "*" => {
                uses.push(("*".to_owned(), prefix.clone()));
                prefix.truncate(length);
                return at + 1;
            }
            "," | "}" | ";" => {
                if let Some(name) = prefix.last() {
                    uses.push((name.clone(), prefix.clone()));
                }
                prefix.truncate(length);
                return at;
            }
            name => prefix.push(name.to_owned()),
        }
        at += 1;
    }
}

struct Token {
    text: String,
    line: usize,
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Splits the text into names, `::` and single characters. Comments, literals and lifetimes are left out.
fn tokens(text: &str) -> Vec<Token> {
    let (mut rest, mut line, mut tokens) = (text, 1, Vec::new());
    while let Some(c) = rest.chars().next() {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let (length, is_token) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), false)
        } else if rest.starts_with("/*") {
            (rest.find("*/").map_or(rest.len(), |at| at + 2), false)
        } else if let Some(length) = literal(rest) {
            (length, false)
        } else if is_part(c) {
            (rest.find(|c| !is_part(c)).unwrap_or(rest.len()), true)
        } else if rest.starts_with("::") {
            (2, true)
        } else {
            (c.len_utf8(), !c.is_whitespace())
        };
        let (token, after) = rest.split_at(length);
        if is_token {
            tokens.push(Token { text: token.to_owned(), line });
        }
        line += token.matches('\n').count();
        rest = after;
    }
    tokens
}

/// Returns the length of the string, character or lifetime at the beginning of `text`.
fn literal(text: &str) -> Option<usize> {
    let body = text.trim_start_matches(['b', 'c']);
    let skipped = text.len() - body.len();
    if skipped > 1 {
        return None;
    }
    if let Some(raw) = body.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let inside = raw[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        return inside.find(&end).map(|at| skipped + 1 + hashes + 1 + at + end.len());
    }
    let quote = body.chars().next().filter(|c| ['"', '\''].contains(c))?;
    if quote == '\'' && !body[1..].starts_with('\\') && body.chars().nth(2) != Some('\'') {
        // A lifetime; its name is not one of an item.
        let name = body[1..].find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(body.len() - 1);
        return (skipped == 0).then_some(1 + name);
    }
    let mut escaped = false;
    for (at, c) in body.char_indices().skip(1) {
        if c == quote && !escaped {
            return Some(skipped + at + 1);
        }
        escaped = c == '\\' && !escaped;
    }
    None
}

/// Leaves out the items behind `#[cfg(test)]`.
fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        kept.push(token);
        if !kept.iter().rev().zip(TEST.iter().rev()).all(|(token, text)| token.text == *text) || kept.len() < TEST.len()
        {
            continue;
        }
        kept.truncate(kept.len() - TEST.len());
        let mut depth = 0;
        for token in tokens.by_ref() {
            match token.text.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 && [";", "}"].contains(&token.text.as_str()) {
                break;
            }
        }
    }
    kept
}

#[test]
fn paths_lead_to_the_file_that_defines_the_item() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod tests { use crate::b::Y; }"),
        ("a.rs", "mod child;\npub use self::child::X;\n// crate::b::Y\nconst S: &str = \"crate::b::Y\";"),
        ("a/child.rs", "use crate::b::{\n    self, inner::{Z, Y},\n};\npub struct X<'a>(&'a Y);\nfn f() { b::g() }"),
        ("b/mod.rs", "use crate::a::X;\npub mod inner { pub use super::{Y, Y as Z}; }\npub enum Y { A, B }"),
    ];
    let read = |file: &str| files.iter().find(|(name, _)| *name == file).map(|(_, text)| (*text).to_owned());
    let edges = edges(&read);
    let shown: Vec<_> = edges.iter().map(|edge| format!("{}:{} {}", edge.from, edge.line, edge.to)).collect();
    assert_eq!(
        shown,
        ["a/child.rs:1 b/mod.rs", "a/child.rs:1 b/mod.rs", "a/child.rs:5 b/mod.rs", "b/mod.rs:1 a/child.rs"]
    );
    let circles = circles(&edges);
    assert_eq!(circles.len(), 1);
    assert_eq!(circles[0].0.iter().map(String::as_str).collect::<Vec<_>>(), ["a/child.rs", "b/mod.rs"]);
    assert_eq!(circles[0].1.len(), 4);
}

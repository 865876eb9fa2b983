//! Checks the structure of the source: module order, forbidden words per file, a doc line per file, complete lists.
//!
//! The checks read the source as text. `lib.rs` lists the modules in dependency order: a module may name only itself
//! and earlier modules. A folder belongs to its module.

mod imports;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A word that only some files may use.
struct Fence {
    /// The whole word that must not appear in code elsewhere.
    word: &'static str,
    /// The files that may use it, as path prefixes below `src`.
    only_in: &'static [&'static str],
}

const FENCES: &[Fence] = &[
    Fence {
        word: "rcgen",
        only_in: &["trust/identity.rs"],
    },
    Fence {
        word: "rustls",
        only_in: &["trust/", "transport/net/"],
    },
    Fence {
        word: "ring::digest",
        only_in: &[
            "trust/pin.rs",
            "proto/rsync/daemon.rs",
            "proto/rsync/tests/",
            "digest/",
        ],
    },
    Fence {
        word: "base64",
        only_in: &[
            "trust/pin.rs",
            "proto/rsync/daemon.rs",
            "report/json.rs",
            "report/plan_line.rs",
        ],
    },
    Fence {
        word: "serde",
        only_in: &["trust/", "cmd/", "report/json.rs", "report/plan_line.rs"],
    },
    Fence {
        word: "serde_json",
        only_in: &["trust/", "cmd/", "report/json.rs", "report/plan_line.rs"],
    },
    Fence {
        word: "tracing::",
        only_in: &["cmd/"],
    },
    Fence {
        word: "unicode_width",
        only_in: &["report/live/terminal_text.rs"],
    },
    Fence {
        word: "toml::",
        only_in: &["trust/", "cmd/"],
    },
    Fence {
        word: "zstd::",
        only_in: &[
            "transport/compression.rs",
            "proto/rsync/tokens.rs",
            "walk/plan_store.rs",
        ],
    },
    Fence {
        word: "lz4_flex::",
        only_in: &[
            "transport/compression.rs",
            "proto/rsync/tokens.rs",
            "proto/rsync/tests/",
        ],
    },
    Fence {
        word: "flate2::",
        only_in: &["transport/compression.rs", "proto/rsync/tokens.rs"],
    },
    Fence {
        word: "unsafe",
        only_in: &["fs/sys/"],
    },
    Fence {
        word: "lexopt",
        only_in: &[
            "cli/parse.rs",
            "cli/daemon_args.rs",
            "cli/subcommand.rs",
            "cli/subcommand/word_reader.rs",
        ],
    },
    Fence {
        // The help names algorithms.
        word: "blake3",
        only_in: &["digest", "cli/subcommand/pages.rs"],
    },
    Fence {
        word: "twox_hash",
        only_in: &["digest", "proto/rsync/block_sums.rs"],
    },
    Fence {
        word: "md5",
        only_in: &[
            "digest",
            "proto/rsync/block_sums.rs",
            "cli/subcommand/pages.rs",
        ],
    },
    Fence {
        word: "md4",
        only_in: &["digest", "proto/rsync/block_sums.rs"],
    },
    Fence {
        word: "sha1",
        only_in: &["digest", "proto/rsync/block_sums.rs"],
    },
    Fence {
        word: "rustix::",
        only_in: &["fs/", "env.rs"],
    },
    Fence {
        word: "libc::",
        only_in: &["fs/", "env.rs"],
    },
    Fence {
        // The engine and the roles of a session know their peers by ports (docs/PORTS.md).
        word: "proto::rsync",
        only_in: &[
            "rsync",
            "proto/",
            "cmd/",
            "cli/",
            "transport/daemon_socket.rs",
        ],
    },
    Fence {
        // Paths that a user or an operator names are opened by fs/trusted_path.rs. These open source operands, and
        // directories in /proc.
        word: "sys::open_dir_path",
        only_in: &[
            "fs/",
            "walk/source.rs",
            "walk/source_dir.rs",
            "cmd/bench/mod.rs",
            "cmd/hash/tree_files.rs",
            "cmd/server/port_owner.rs",
            "transport/window_limit.rs",
        ],
    },
    Fence {
        word: "sys::open_dir_path_to_search",
        only_in: &[
            "fs/",
            "walk/source_dir.rs",
            "walk/source_args/files_from.rs",
        ],
    },
    Fence {
        word: "sys::read_kernel_file",
        only_in: &[
            "cmd/server/memory_limit.rs",
            "cmd/server/port_owner.rs",
            "cmd/remote_side/forced_command.rs",
        ],
    },
    Fence {
        // The directory that a chroot has confined already.
        word: "sys::change_dir",
        only_in: &[
            "cmd/rsync_daemon/session/confinement.rs",
            "cmd/rsync_daemon/mod.rs",
        ],
    },
    Fence {
        word: "dead_code",
        only_in: &[],
    },
    Fence {
        word: "unused_imports",
        only_in: &[],
    },
    Fence {
        word: "println!",
        only_in: &[],
    },
    Fence {
        word: "eprintln!",
        only_in: &[],
    },
    Fence {
        word: "Instant::now",
        only_in: &["work/clock.rs"],
    },
    Fence {
        word: "SystemTime::now",
        only_in: &["work/clock.rs"],
    },
    Fence {
        word: "async",
        only_in: &["transport/net/"],
    },
    Fence {
        word: "tokio",
        only_in: &["transport/net/"],
    },
    Fence {
        word: "quinn",
        only_in: &["transport/net/"],
    },
    Fence {
        word: "bytes::Bytes",
        only_in: &["transport/net/"],
    },
];

#[test]
fn modules_name_only_earlier_modules() {
    let order = modules_of("lib.rs");
    let mut faults = Vec::new();
    for file in sources() {
        let Some(own) = order.iter().position(|module| file.module() == *module) else {
            continue;
        };
        for (line, code) in file.code() {
            for named in paths_after(code, "crate::") {
                if order
                    .iter()
                    .position(|module| *module == named)
                    .is_some_and(|place| place > own)
                {
                    faults.push(file.fault(
                        line,
                        &format!(
                            "`{}` may not name `{named}`, which comes later",
                            file.module()
                        ),
                    ));
                }
            }
        }
    }
    report("src/lib.rs gives the order", faults);
}

#[test]
fn decisions_of_the_rsync_daemon_are_pure() {
    let order = modules_of("lib.rs");
    let system = order.iter().position(|module| module == "fs");
    let mut faults = Vec::new();
    for file in sources() {
        if !file.name.starts_with("cmd/rsync_daemon/policy/") {
            continue;
        }
        for (line, code) in file.code() {
            for named in paths_after(code, "crate::") {
                let place = order.iter().position(|module| *module == named);
                if place >= system && named != "cmd" {
                    faults.push(file.fault(line, "the caller reads files and runs programs"));
                }
            }
        }
    }
    report("src/cmd/rsync_daemon/policy/mod.rs", faults);
}

#[test]
fn parts_of_a_session_name_only_earlier_parts() {
    for module in ["session", "native"] {
        check_order_of_parts(module);
    }
}

/// Checks that each part of a module names only those that its `mod.rs` declares earlier.
fn check_order_of_parts(module: &str) {
    let order = modules_of(&format!("{module}/mod.rs"));
    let mut faults = Vec::new();
    for file in sources() {
        if file.module() != module {
            continue;
        }
        let parts: Vec<_> = file.name.trim_end_matches(".rs").split('/').collect();
        let Some(own) = parts
            .get(1)
            .and_then(|part| order.iter().position(|known| known == part))
        else {
            continue;
        };
        for (line, code) in file.code() {
            let direct = if parts.len() == 2 {
                "super::"
            } else {
                "super::super::"
            };
            let named = paths_after(code, &format!("crate::{module}::"))
                .into_iter()
                .chain(paths_after(code, direct));
            for named in named {
                if order
                    .iter()
                    .position(|known| *known == named)
                    .is_some_and(|place| place > own)
                {
                    faults.push(file.fault(
                        line,
                        &format!("`{}` may not name `{named}`, which comes later", order[own]),
                    ));
                }
            }
        }
    }
    report(
        &format!("src/{module}/mod.rs gives the order, where `super::` would hide it"),
        faults,
    );
}

/// The protocols are behind the ports of `session`, which names neither because it comes first.
#[test]
fn protocols_do_not_name_each_other() {
    let mut faults = Vec::new();
    for file in sources() {
        let other = match file.module() {
            "native" => "rsync",
            "rsync" => "native",
            _ => continue,
        };
        for (line, code) in file.code() {
            if paths_after(code, "crate::").contains(&other.to_owned()) {
                faults.push(file.fault(line, &format!("`{other}` is another protocol")));
            }
        }
    }
    report("docs/PORTS.md", faults);
}

#[test]
fn modules_are_listed_once() {
    let order = modules_of("lib.rs");
    let mut sorted = order.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(
        sorted.len(),
        order.len(),
        "src/lib.rs lists a module twice: {order:?}"
    );
}

/// How many files may use items of each other in a circle: a file and its two parts.
const CIRCLE_MAX_FILES: usize = 3;

#[test]
fn circles_of_imports_are_small() {
    let files: Vec<_> = sources()
        .into_iter()
        .filter(|file| !file.name.contains("tests"))
        .collect();
    let edges = imports::edges(files.iter().map(|file| (&*file.name, &*file.text)));
    assert!(edges.len() > 1000, "imports are recognized");
    let circles = imports::circles(&edges)
        .into_iter()
        .filter(|(files, _)| files.len() > CIRCLE_MAX_FILES);
    let faults = circles.map(|(files, edges)| {
        let edges: Vec<_> = edges
            .iter()
            .map(|edge| {
                format!(
                    "        {}:{}: {} of {}\n",
                    edge.from, edge.line, edge.path, edge.to
                )
            })
            .collect();
        format!("{} files use each other:\n{}", files.len(), edges.concat())
    });
    report(
        "move what is shared to the file that the others use",
        faults.collect(),
    );
}

#[test]
fn words_are_used_only_where_allowed() {
    let mut faults = Vec::new();
    for file in sources() {
        for Fence { word, only_in } in FENCES
            .iter()
            .filter(|fence| !fence.only_in.iter().any(|p| file.name.starts_with(p)))
        {
            for (line, code) in file.code() {
                if has_word(code, word) {
                    let places = if only_in.is_empty() {
                        "nowhere".to_owned()
                    } else {
                        format!("only in {}", only_in.join(", "))
                    };
                    faults.push(file.fault(line, &format!("`{word}` is allowed {places}")));
                }
            }
        }
    }
    report("docs/ARCHITECTURE.md: Fences", faults);
}

#[test]
fn paths_from_the_working_directory_pass_the_sandbox() {
    // Code that takes a path from the working directory calls `reach`. Other code names a descriptor through /proc.
    const ASKS: [&str; 6] = [
        "open_through(fs::CWD",
        "open_trusted(fs::CWD",
        "> {stat(fs::CWD",
        "> {mkdir(fs::CWD",
        "path.as_slice()",
        "proc_fd(",
    ];
    let mut faults = Vec::new();
    for file in sources()
        .into_iter()
        .filter(|file| file.name.starts_with("fs/") && file.name != "fs/sandbox.rs")
    {
        let code: Vec<(usize, &str)> = file.code().collect();
        for (at, &(line, _)) in code.iter().enumerate() {
            if !code[at].1.contains("fs::CWD") {
                continue;
            }
            // rustfmt puts the function and the path on the lines around a long call's first argument.
            let around = &code[at.saturating_sub(1)..code.len().min(at + 2)];
            let call: String = around.iter().map(|(_, code)| code.trim()).collect();
            if !ASKS.iter().any(|asks| call.contains(asks)) {
                faults.push(file.fault(
                    line,
                    "a path from the working directory does not go through `reach`",
                ));
            }
        }
    }
    report("src/fs/sandbox.rs: a session is confined", faults);
}

#[test]
fn every_source_file_has_a_doc_line() {
    let undocumented = sources()
        .into_iter()
        .filter(|file| !file.text.starts_with("//!"));
    report(
        "the first line is a `//!`",
        undocumented
            .map(|file| file.fault(1, "no doc line"))
            .collect(),
    );
}

/// docs/MAP.md lists every source file with the first sentence of its documentation, in the order of
/// lib.rs. `SPARSYNC_BLESS=1` writes it anew.
#[test]
fn map_is_current() {
    let path = root().join("docs/MAP.md");
    let page = std::fs::read_to_string(&path).expect("the map can be read");
    let (before, rest) = page
        .split_once("```text\n")
        .expect("the map begins with ```text");
    let (map, after) = rest.split_once("```").expect("the map ends with ```");
    let want = map_of(&sources());
    if map != want && std::env::var_os("SPARSYNC_BLESS").is_some() {
        std::fs::write(&path, format!("{before}```text\n{want}```{after}"))
            .expect("the map can be written");
        return;
    }
    assert!(
        map == want,
        "docs/MAP.md is out of date: run SPARSYNC_BLESS=1 scripts/test tidy::"
    );
}

fn map_of(sources: &[File]) -> String {
    let mut map = String::new();
    for module in modules_of("lib.rs") {
        let mut files: Vec<_> = sources
            .iter()
            .filter(|file| file.module() == module)
            .collect();
        let rank = |file: &File| match file.name.rsplit_once('/') {
            Some((folder, "mod.rs")) => format!("{folder}/"),
            _ => file.name.trim_end_matches(".rs").to_owned(),
        };
        files.sort_by_key(|file| rank(file));
        for file in files.iter().filter(|file| !file.name.contains("tests")) {
            let indent = if file.name.contains('/') && !file.name.ends_with("/mod.rs") {
                "  "
            } else {
                ""
            };
            let name = format!("{indent}{}", file.name);
            map += &format!("{name:<40} {}\n", file.purpose());
        }
    }
    map
}

#[test]
fn test_files_are_declared_and_no_test_is_ignored() {
    let declared = declarations(
        &std::fs::read_to_string(root().join("tests/main.rs")).expect("tests/main.rs can be read"),
    );
    let mut faults = Vec::new();
    for path in rust_files(&root().join("tests")) {
        let name = path
            .strip_prefix(root().join("tests"))
            .expect("it is below tests")
            .to_string_lossy()
            .into_owned();
        let file = File {
            text: std::fs::read_to_string(&path).expect("a test can be read"),
            name,
        };
        let module = file.module();
        if file.name != "main.rs" && !declared.iter().any(|known| known == module) {
            faults.push(file.fault(1, "tests/main.rs does not declare it"));
        }
        for (line, code) in file.code() {
            // Split in two, so that this line does not match itself.
            if code.contains(concat!("#[", "ignore")) {
                faults.push(file.fault(line, "a test is never ignored; it skips aloud"));
            }
        }
    }
    report("tests", faults);
}

/// A combinator in place of a statement, and how often it may still be used. The numbers may only fall.
struct Packed {
    what: &'static str,
    instead: &'static str,
    /// In the folders of the engine and the protocols, see [`ENGINE`].
    most_in_engine: usize,
    /// In all others.
    most_elsewhere: usize,
    is_in: fn(&str) -> bool,
}

const PACKED: [Packed; 5] = [
    Packed {
        what: ".for_each(",
        instead: "write a loop",
        most_in_engine: 4,
        most_elsewhere: 0,
        is_in: |code| code.contains(".for_each("),
    },
    Packed {
        what: ".filter(|_| condition)",
        instead: "use `if`, or a guard in `match`",
        most_in_engine: 0,
        most_elsewhere: 0,
        is_in: |code| code.contains(".filter(|_|"),
    },
    Packed {
        what: "condition.then_some(value)",
        instead: "use `if`",
        most_in_engine: 12,
        most_elsewhere: 2,
        is_in: |code| code.contains(".then_some("),
    },
    Packed {
        what: "match condition { true => ..., false => ... }",
        instead: "use `if`",
        most_in_engine: 0,
        most_elsewhere: 0,
        is_in: |code| {
            let code = code.trim_start();
            ["true =>", "true if ", "false =>", "false if "]
                .iter()
                .any(|arm| code.starts_with(arm))
        },
    },
    Packed {
        what: "let (a, b) = (x, y);",
        instead: "one `let` for each fact",
        most_in_engine: 1,
        most_elsewhere: 6,
        is_in: |code| {
            let code = code.trim_start();
            code.starts_with("let (")
                && code.contains(") = (")
                && !code.contains(")(")
                && code.ends_with([';', '('])
        },
    },
];

/// The modules that still use [`PACKED`] combinators.
const ENGINE: [&str; 7] = [
    "walk", "plan", "apply", "session", "native", "rsync", "proto",
];

#[test]
fn control_flow_is_written_as_statements() {
    let sources = sources();
    let files = || sources.iter().filter(|file| !file.name.contains("tests"));
    let mut faults = Vec::new();
    for packed in &PACKED {
        let mut in_engine = 0;
        let mut elsewhere = Vec::new();
        for file in files() {
            for (line, code) in file.code() {
                if !(packed.is_in)(code) {
                    continue;
                }
                if ENGINE.contains(&file.module()) {
                    in_engine += 1;
                } else {
                    elsewhere.push(file.fault(line, packed.instead));
                }
            }
        }
        if elsewhere.len() > packed.most_elsewhere {
            faults.extend(elsewhere);
        }
        if in_engine > packed.most_in_engine {
            faults.push(format!(
                "{in_engine} of `{}` in {}, at most {}: {}",
                packed.what,
                ENGINE.join(", "),
                packed.most_in_engine,
                packed.instead
            ));
        }
    }
    report("CONTRIBUTING.md: Style", faults);
}

#[test]
fn state_of_the_process_is_listed() {
    const CHANGING: [&str; 5] = ["Atomic", "OnceLock", "Mutex", "RwLock", "LazyLock"];
    let sources = sources();
    let page = sources
        .iter()
        .find(|file| file.name == "fs/mod.rs")
        .expect("fs has a page");
    let mut found = 0;
    let mut faults = Vec::new();
    for file in &sources {
        if file.name == "fs/hooks.rs" || file.name.contains("tests") {
            continue;
        }
        for (line, code) in file.code() {
            let Some((_, item)) = code.split_once("static ") else {
                continue;
            };
            let Some((name, of_type)) = item.split_once(": ") else {
                continue;
            };
            if !CHANGING.iter().any(|kind| of_type.contains(kind)) {
                continue;
            }
            found += 1;
            let is_listed = page
                .text
                .lines()
                .any(|text| text.starts_with("//!") && text.contains(&format!("`{name}`")));
            if !is_listed {
                faults.push(file.fault(line, "the page of src/fs/mod.rs does not list it"));
            }
        }
    }
    assert!(found > 8, "statics are recognized");
    report("CONTRIBUTING.md: Style", faults);
}

/// Types that may share their name, with the reason.
const SHARED_TYPE_NAMES: [(&str, &str); 5] = [
    (
        "Acl",
        "as it is in the file system, and as it is in rsync's protocol",
    ),
    (
        "Refusal",
        "why there is no session: at the client, and at a daemon",
    ),
    ("Result", "each with the error of its module"),
    (
        "Xattr",
        "as it is in our lists, and as it is in rsync's protocol",
    ),
    (
        "Xattrs",
        "as they are in our lists, and as they are in rsync's protocol",
    ),
];

#[test]
fn types_have_names_of_their_own() {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in sources().iter().filter(|file| !file.name.contains("tests")) {
        for (line, code) in file.code() {
            if let Some(name) = defined_type(code) {
                found
                    .entry(name.to_owned())
                    .or_default()
                    .push(format!("{}:{line}", file.name));
            }
        }
    }
    assert!(found.len() > 500, "types are recognized");
    let shares = |name: &str| SHARED_TYPE_NAMES.iter().any(|(known, _)| *known == name);
    let faults = found
        .iter()
        .filter(|(name, at)| (at.len() > 1) != shares(name));
    report(
        "SHARED_TYPE_NAMES",
        faults
            .map(|(name, at)| format!("{name}: {}", at.join(", ")))
            .collect(),
    );
}

/// Returns the name of the type that a line of code defines, outside of functions and traits.
fn defined_type(code: &str) -> Option<&str> {
    let rest = match code.trim_start().strip_prefix("pub") {
        Some(rest) => rest
            .trim_start_matches("(super)")
            .trim_start_matches("(crate)")
            .strip_prefix(' ')?,
        None => code,
    };
    let (kind, rest) = rest.split_once(' ')?;
    let length = rest
        .find(|c: char| !c.is_alphanumeric())
        .unwrap_or(rest.len());
    ["struct", "enum", "trait", "type"]
        .contains(&kind)
        .then_some(&rest[..length])
}

/// Words of the project's former private language. Standard terms replace them; the glossary in docs/ARCHITECTURE.md has
/// the terms.
const BANNED_WORDS: [&str; 7] = [
    "nobody",
    "whoever",
    "somebody",
    "is told",
    "are told",
    "to be had",
    "knock",
];
/// File names that cannot be guessed, in favour of the field's terms.
const BANNED_NAMES: [&str; 37] = [
    "adopt",
    "ahead",
    "beside",
    "budget",
    "ceiling",
    "crew",
    "digesting",
    "ear",
    "far",
    "fill",
    "gate",
    "handover",
    "holder",
    "introduction",
    "lanes",
    "late",
    "leaving",
    "lifeline",
    "line",
    "moment",
    "once",
    "opening",
    "operator",
    "pump",
    "remarks",
    "roam",
    "room",
    "seen",
    "sight",
    "silence",
    "similar",
    "squeeze",
    "survey",
    "talk",
    "telling",
    "terms",
    "verb",
];

#[test]
fn words_and_file_names_are_standard() {
    let mut faults = Vec::new();
    let docs = std::fs::read_dir(root().join("docs")).expect("docs can be read");
    let pages = docs.map(|entry| entry.expect("docs can be read").path());
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let texts =
        pages.chain(["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root().join(name)));
    let texts = texts.map(|path| File {
        text: std::fs::read_to_string(&path).expect("a page can be read"),
        name: path.display().to_string(),
    });
    for file in sources().into_iter().chain(texts) {
        for (at, line) in file.text.lines().enumerate() {
            // The account of that name is not meant.
            let line = line.replace("\"nobody\"", "");
            for word in BANNED_WORDS.iter().filter(|word| line.contains(**word)) {
                faults.push(file.fault(at + 1, &format!("`{word}`")));
            }
        }
        let stem = file
            .name
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .trim_end_matches(".rs");
        if BANNED_NAMES.contains(&stem) {
            faults.push(file.fault(1, "the file needs the field's term as its name"));
        }
    }
    report("docs/ARCHITECTURE.md, glossary", faults);
}

/// A Rust source file, named relative to `src` or `tests`.
struct File {
    name: String,
    text: String,
}

impl File {
    /// Returns the top-level module of the file.
    fn module(&self) -> &str {
        self.name
            .split('/')
            .next()
            .unwrap_or_default()
            .trim_end_matches(".rs")
    }

    /// Returns the first sentence of the documentation, without the full stop.
    fn purpose(&self) -> String {
        let lines = self
            .text
            .lines()
            .map_while(|line| line.strip_prefix("//!"))
            .map(str::trim);
        let paragraph = lines
            .take_while(|line| !line.is_empty())
            .collect::<Vec<_>>()
            .join(" ");
        let sentence = paragraph
            .split_once(". ")
            .map_or(paragraph.as_str(), |(first, _)| first);
        sentence.trim_end_matches('.').to_owned()
    }

    /// Returns the lines of code before the module of unit tests, with their numbers and without comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let declares = |line: &str| line.contains("mod tests") && line.ends_with('{');
        let is_inline = |at: usize| self.text[at + 1..].lines().nth(1).is_some_and(declares);
        let mut tests = self
            .text
            .match_indices("\n#[cfg(test)]\n")
            .map(|(at, _)| at);
        let tests = tests.find(|&at| is_inline(at)).unwrap_or(self.text.len());
        let lines = self.text[..tests]
            .lines()
            .enumerate()
            .map(|(at, line)| (at + 1, line));
        lines
            .map(|(at, line)| (at, line.split("//").next().unwrap_or_default()))
            .filter(|(_, line)| !line.trim().is_empty())
    }

    fn fault(&self, line: usize, what: &str) -> String {
        let text = self.text.lines().nth(line - 1).unwrap_or_default();
        format!("{}:{line}: {what}\n        {}", self.name, text.trim())
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<File> {
    let src = root().join("src");
    let files = rust_files(&src).into_iter().map(|path| File {
        text: std::fs::read_to_string(&path).expect("a source file can be read"),
        name: path
            .strip_prefix(&src)
            .expect("it is below src")
            .to_string_lossy()
            .into_owned(),
    });
    files.collect()
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).expect("the source directory can be read") {
        let path = entry.expect("the source directory can be read").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Returns the modules that a file below `src` declares, in order.
fn modules_of(file: &str) -> Vec<String> {
    declarations(
        &std::fs::read_to_string(root().join("src").join(file)).expect("lib.rs can be read"),
    )
}

fn declarations(text: &str) -> Vec<String> {
    let declared = text.split([';', '\n']).filter_map(|item| {
        let item = item
            .trim()
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub ");
        let name = item.strip_prefix("mod ")?;
        name.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_')
            .then(|| name.to_owned())
    });
    declared.collect()
}

/// Returns the names that follow `prefix` in a line of code, including in a group: `crate::{a, b::c}`.
fn paths_after(code: &str, prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        let heads = match rest.strip_prefix('{') {
            Some(group) => top_level_items(group),
            None => vec![rest],
        };
        names.extend(heads.iter().map(|head| {
            head.trim()
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect::<String>()
        }));
    }
    names
}

/// Splits the inside of a group at its top-level commas.
fn top_level_items(group: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut items) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                items.push(&group[begin..at]);
                return items;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&group[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    items.push(&group[begin..]);
    items
}

/// Returns whether `word` appears in the code as a whole word and outside of quotes.
fn has_word(code: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + word.len()..]);
        let quoted = before.matches('"').count() % 2 == 1;
        let joined =
            before.ends_with(is_part) || word.ends_with(is_part) && after.starts_with(is_part);
        !quoted && !joined
    })
}

#[track_caller]
fn report(rule: &str, faults: Vec<String>) {
    assert!(
        faults.is_empty(),
        "{} broken ({rule}):\n    {}\n",
        faults.len(),
        faults.join("\n    ")
    );
}

/// A locked package.
#[derive(serde::Deserialize)]
struct Locked {
    name: String,
    version: String,
    #[serde(default)]
    dependencies: Vec<String>,
}

fn locked(file: &str) -> Vec<Locked> {
    #[derive(serde::Deserialize)]
    struct Lock {
        package: Vec<Locked>,
    }
    let text = std::fs::read_to_string(root().join(file)).expect("a lock file can be read");
    toml::from_str::<Lock>(&text)
        .expect("a lock file is TOML")
        .package
}

#[test]
fn fuzz_targets_cover_each_family_of_decoders() {
    let read = |path: String| std::fs::read_to_string(root().join(path)).unwrap_or_default();
    let source = read("src/proto/fuzzing.rs".to_owned());
    let (_, table) = source
        .split_once("pub const FAMILIES")
        .expect("the table of families");
    let rows = table.lines().skip(1).take_while(|line| *line != "];");
    let families: Vec<_> = rows.filter_map(|row| row.split('"').nth(1)).collect();
    let manifest: toml::Table =
        toml::from_str(&read("fuzz/Cargo.toml".to_owned())).expect("the manifest is TOML");
    let bins = manifest["bin"].as_array().expect("it has targets");
    let bins: Vec<_> = bins.iter().filter_map(|bin| bin["name"].as_str()).collect();
    assert_eq!(bins, families);
    let calls = |name: &str| {
        format!("libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sparsync::fuzzing::{name}(bytes));\n")
    };
    let misses =
        |name: &&str| !read(format!("fuzz/fuzz_targets/{name}.rs")).ends_with(&calls(name));
    let faults = families
        .into_iter()
        .filter(misses)
        .map(str::to_owned)
        .collect();
    report(
        "fuzz/fuzz_targets/NAME.rs calls the decoders of that name",
        faults,
    );
}

#[test]
fn fuzz_targets_lock_the_versions_of_the_program() {
    let (program, fuzz) = (locked("Cargo.lock"), locked("fuzz/Cargo.lock"));
    let versions = |of: &Locked| -> Vec<_> {
        program
            .iter()
            .filter(|own| own.name == of.name)
            .map(|own| own.version.clone())
            .collect()
    };
    let mut faults: Vec<_> = fuzz
        .iter()
        .map(|package| (package, versions(package)))
        .filter(|(package, own)| !own.is_empty() && !own.contains(&package.version))
        .map(|(package, own)| {
            format!(
                "{} {}: Cargo.lock has {}",
                package.name,
                package.version,
                own.join(", ")
            )
        })
        .collect();
    let manifest =
        std::fs::read_to_string(root().join("Cargo.toml")).expect("the manifest can be read");
    let manifest: toml::Table = toml::from_str(&manifest).expect("the manifest is TOML");
    let listed = fuzz
        .iter()
        .find(|package| package.name == "sparsync")
        .expect("it uses the program");
    let needed = manifest["dependencies"]
        .as_table()
        .expect("the program has dependencies")
        .keys();
    // With two versions of a package, a dependency is its name and a version.
    let lists = |name: &str| {
        listed
            .dependencies
            .iter()
            .any(|of| of.split(' ').next() == Some(name))
    };
    let missing = needed.filter(|name| !lists(name));
    faults.extend(missing.map(|name| format!("{name}: missing")));
    report(
        "fuzz/Cargo.lock, which `cargo update --manifest-path fuzz/Cargo.toml` follows",
        faults,
    );
}

#[test]
fn helpers_of_this_file_parse_correctly() {
    assert_eq!(
        paths_after("use crate::{fs::Root, plan::{self, x}};", "crate::"),
        ["fs", "plan"]
    );
    assert_eq!(
        paths_after("crate::cmd::run(other_crate::fs)", "crate::"),
        ["cmd"]
    );
    assert_eq!(
        declarations("mod a;  pub mod b;   // words\npub(crate) mod c_d;\nmod inner {"),
        ["a", "b", "c_d"]
    );
    assert!(has_word("let x = unsafe { 1 };", "unsafe"));
    assert!(!has_word("let unsafe_link = \"unsafe\";", "unsafe"));
    assert!(!has_word("eprintln!(\"x\")", "println!"));
    assert_eq!(defined_type("pub struct Word<'a> {"), Some("Word"));
    assert_eq!(defined_type("    pub(super) type Word = u8;"), Some("Word"));
    assert_eq!(defined_type("enum Word {"), Some("Word"));
    assert_eq!(
        defined_type("    type Word;").or(defined_type("pub fn word() {")),
        None
    );
}

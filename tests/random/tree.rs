//! Random trees as values: a source, and others that were like it once.

/// A generator of pseudo-random numbers (splitmix64): the same seed gives the same numbers on every machine.
pub struct Dice(pub u64);

impl Dice {
    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    /// Returns true once in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Returns one of the words in a text.
    pub fn word<'a>(&mut self, text: &'a str) -> &'a str {
        let words: Vec<&str> = text.split_whitespace().collect();
        words[self.below(words.len())]
    }

    /// Returns one of the items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// An entry of a tree.
#[derive(Clone, PartialEq)]
pub struct Entry {
    pub path: Vec<u8>,
    pub kind: Kind,
    pub mode: Option<u32>,
    /// Seconds from the default mtime.
    pub mtime: i64,
    pub extra: Extra,
}

#[derive(Clone, PartialEq)]
pub enum Kind {
    File(Vec<u8>),
    Dir,
    Symlink(Vec<u8>),
    /// Another name of this file, which comes earlier.
    HardLink(Vec<u8>),
    Fifo,
}

/// What an entry has beyond mode and times.
#[derive(Clone, Copy, PartialEq)]
pub enum Extra {
    None,
    Xattr,
    Acl,
    Owner,
}

const NAMES: &[u8] = b"a|b|c.c|c.o|d|e|f|g.o|lib|sub|x|y|core|.hid|f~|x y|f*|[q]|new\nline|caf\xe9|-dash|b\\s|d.old|Z";
/// Patterns of options and of merge files.
pub const PATTERNS: &str = "a b d e x *.o *~ /a /d /d/ d/ */ /* * lib/** sub/*** **/x d/a [a-e] ? x?y f\\* /src/d *.old core **";
/// The beginnings of rules. In a `.cvsignore` they are patterns that match nothing.
const RULES: &str = "- + H P S R -! -p";
const TARGETS: &str = "a b d nowhere ./e ../out /etc/passwd sub/";
const MODES: [u32; 7] = [0o600, 0o444, 0o755, 0o700, 0o4755, 0o2775, 0o664];

/// Returns a tree of up to `count` entries, each after its directory.
pub fn random(dice: &mut Dice, count: usize) -> Vec<Entry> {
    let mut tree: Vec<Entry> = Vec::new();
    let mut dirs = vec![Vec::new()];
    let names: Vec<&[u8]> = NAMES.split(|&b| b == b'|').collect();
    for _ in 0..count {
        let dir = dice.pick(&dirs).clone();
        let name = match dice.below(16) {
            0 => &b".r"[..],
            1 if dice.one_in(2) => b".cvsignore",
            _ => dice.pick(&names),
        };
        let path = [&dir[..], name].concat();
        if tree.iter().any(|entry| entry.path == path) {
            continue;
        }
        let files: Vec<_> = tree
            .iter()
            .filter(|entry| matches!(entry.kind, Kind::File(_)))
            .collect();
        let kind = match dice.below(20) {
            _ if is_merge_file(name) => Kind::File(rules(dice)),
            0..5 if dir.iter().filter(|&&b| b == b'/').count() < 3 => Kind::Dir,
            5..7 => Kind::Symlink(dice.word(TARGETS).into()),
            7..9 if !files.is_empty() => Kind::HardLink(dice.pick(&files).path.clone()),
            9 if dice.one_in(2) => Kind::Fifo,
            _ => Kind::File(content(dice)),
        };
        if kind == Kind::Dir {
            dirs.push([&path[..], b"/"].concat());
        }
        tree.push(decorated(dice, path, kind));
    }
    tree
}

/// Returns a tree that has some entries of `tree`, some of them changed, and others that it lacks.
pub fn relative(dice: &mut Dice, tree: &[Entry]) -> Vec<Entry> {
    let mut other: Vec<Entry> = Vec::new();
    let absent = 2 + dice.below(4);
    for entry in tree {
        if dice.one_in(absent) {
            continue;
        }
        if let (Kind::File(bytes), true) = (&entry.kind, dice.one_in(8)) {
            other.push(leftover(dice, entry, bytes));
        }
        let mut entry = entry.clone();
        match dice.below(12) {
            0..4 => {}
            4 => entry.mtime -= 10,
            5 => entry.mtime += 10,
            6 => entry = decorated(dice, entry.path, entry.kind),
            7 | 8 => {
                let kind = match dice.below(4) {
                    0 => Kind::Symlink(dice.word(TARGETS).into()),
                    1 => Kind::Fifo,
                    _ if entry.kind == Kind::Dir => Kind::File(b"no dir".to_vec()),
                    _ => Kind::Dir,
                };
                entry = decorated(dice, entry.path, kind);
            }
            _ => match &mut entry.kind {
                Kind::File(bytes) if is_merge_file(&entry.path) => *bytes = rules(dice),
                Kind::File(bytes) => *bytes = changed(dice, bytes),
                _ => entry.mtime -= 10,
            },
        }
        other.push(entry);
    }
    let below_dirs: Vec<Vec<u8>> = other
        .iter()
        .filter(|e| e.kind == Kind::Dir)
        .map(|e| [&e.path[..], b"/"].concat())
        .collect();
    for _ in 0..dice.below(6) {
        let dir = if below_dirs.is_empty() || dice.one_in(3) {
            Vec::new()
        } else {
            dice.pick(&below_dirs).clone()
        };
        let extra = random(dice, 3);
        other.extend(extra.into_iter().map(|mut entry| {
            entry.path = [&dir[..], &entry.path].concat();
            if let Kind::HardLink(leader) = &mut entry.kind {
                *leader = [&dir[..], leader].concat();
            }
            entry
        }));
    }
    consistent(other)
}

/// Returns a partial or delayed file as an earlier run would have left it.
fn leftover(dice: &mut Dice, entry: &Entry, content: &[u8]) -> Entry {
    let at = entry
        .path
        .iter()
        .rposition(|&b| b == b'/')
        .map_or(0, |at| at + 1);
    let dir = dice.word(".p/ .p/ .~tmp~/").as_bytes();
    let path = [&entry.path[..at], dir, &entry.path[at..]].concat();
    let kind = Kind::File(changed(dice, content));
    decorated(dice, path, kind)
}

/// Returns copies of some trees of which one tree lacks one entry, with what is below it and its other names.
pub fn smaller_trees<const N: usize>(trees: &[Vec<Entry>; N]) -> Vec<[Vec<Entry>; N]> {
    let mut smaller = Vec::new();
    for tree in 0..N {
        for gone in trees[tree].iter().rev() {
            let below = [&gone.path[..], b"/"].concat();
            let mut entries = trees[tree].clone();
            entries.retain(|entry| entry.path != gone.path && !entry.path.starts_with(&below));
            let mut fewer = trees.clone();
            fewer[tree] = consistent(entries);
            smaller.push(fewer);
        }
    }
    smaller
}

/// Returns the entries that can be built: the first of each path, below directories only, and links to files only.
pub fn consistent(entries: Vec<Entry>) -> Vec<Entry> {
    let mut kept: Vec<Entry> = Vec::new();
    for entry in entries {
        let is_below = |path: &[u8], dir: &[u8]| {
            path.len() > dir.len() && path.starts_with(dir) && path[dir.len()] == b'/'
        };
        // The parents of an entry can be missing: they are made as needed.
        let has_place = kept.iter().all(|other| {
            other.path != entry.path
                && (entry.kind == Kind::Dir || !is_below(&other.path, &entry.path))
                && (other.kind == Kind::Dir || !is_below(&entry.path, &other.path))
        });
        let has_leader = match &entry.kind {
            Kind::HardLink(leader) => kept
                .iter()
                .any(|e| e.path == *leader && matches!(e.kind, Kind::File(_))),
            _ => true,
        };
        if has_place && has_leader {
            kept.push(entry);
        }
    }
    kept
}

fn decorated(dice: &mut Dice, path: Vec<u8>, kind: Kind) -> Entry {
    let can_have = !matches!(kind, Kind::Symlink(_) | Kind::HardLink(_));
    let extra = match dice.below(16) {
        0 if can_have && kind != Kind::Fifo => Extra::Xattr,
        1 if can_have => Extra::Acl,
        2 if can_have => Extra::Owner,
        _ => Extra::None,
    };
    let mode = (can_have && extra != Extra::Acl && dice.one_in(4)).then(|| *dice.pick(&MODES));
    let mode = if mode.is_some() && kind == Kind::Dir {
        Some(0o755 & mode.unwrap_or(0) | 0o700)
    } else {
        mode
    };
    Entry {
        path,
        kind,
        mode,
        mtime: [0, 0, 0, -5, 7][dice.below(5)],
        extra,
    }
}

fn content(dice: &mut Dice) -> Vec<u8> {
    let len = match dice.below(8) {
        0 => 0,
        1 => 40_000 + dice.below(3_000),
        2 => 700 + dice.below(3_000),
        _ => 1 + dice.below(20),
    };
    let start = dice.below(200);
    (0..len)
        .map(|at| b'!' + ((start + at * 7 + (at >> 6) * 3) % 90) as u8)
        .collect()
}

/// Returns content like `bytes`: of the same length, shorter, longer, or another.
fn changed(dice: &mut Dice, bytes: &[u8]) -> Vec<u8> {
    match dice.below(4) {
        0 if !bytes.is_empty() => {
            let mut same_length = bytes.to_vec();
            same_length[dice.below(bytes.len())] ^= 1;
            same_length
        }
        1 => bytes[..bytes.len() / 2].to_vec(),
        2 => [bytes, b"more"].concat(),
        _ => content(dice),
    }
}

/// Makes some files of the source large, and those of the same path in the other trees like them. Returns how much content
/// that is.
pub fn enlarge(dice: &mut Dice, trees: &mut [Vec<Entry>; 3]) -> usize {
    let [source, others @ ..] = trees;
    let mut all_bytes = 0;
    for entry in source
        .iter_mut()
        .filter(|entry| !is_merge_file(&entry.path))
    {
        let Kind::File(content) = &mut entry.kind else {
            continue;
        };
        if !dice.one_in(3) || all_bytes > 6_000_000 {
            continue;
        }
        let len = [300_000, 900_000, 1_200_000, 2_500_000][dice.below(4)] + dice.below(5_000);
        *content = noise(dice, len);
        all_bytes += len;
        for other in others
            .iter_mut()
            .flatten()
            .filter(|other| other.path == entry.path)
        {
            if let Kind::File(old) = &mut other.kind {
                *old = if dice.one_in(3) {
                    content.clone()
                } else {
                    changed(dice, content)
                };
            }
        }
    }
    all_bytes
}

/// Returns content that cannot be compressed.
fn noise(dice: &mut Dice, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::with_capacity(len + 4);
    while bytes.len() < len {
        bytes.extend_from_slice(&(dice.below(1 << 32) as u32).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn is_merge_file(path: &[u8]) -> bool {
    path.ends_with(b".r") || path.ends_with(b".cvsignore")
}

/// Returns the content of a merge file. Errors in merge files end rsync at a time of its own.
fn rules(dice: &mut Dice) -> Vec<u8> {
    let lines: Vec<_> = (0..1 + dice.below(3)).map(|_| rule(dice, RULES)).collect();
    text(&lines)
}

/// Returns a rule: one of the beginnings, and a pattern.
pub fn rule(dice: &mut Dice, beginnings: &str) -> Vec<u8> {
    format!("{} {}", dice.word(beginnings), dice.word(PATTERNS)).into_bytes()
}

/// Returns the content of a file of lines.
pub fn text(lines: &[Vec<u8>]) -> Vec<u8> {
    lines
        .iter()
        .flat_map(|line| [&line[..], b"\n"].concat())
        .collect()
}

impl std::fmt::Display for Entry {
    /// Prints the entry in the language of `kit/build.rs`, as far as that can express it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path.escape_ascii())?;
        match &self.kind {
            Kind::File(bytes) if bytes.len() > 60 => write!(f, "*{}", bytes.len())?,
            Kind::File(bytes) => write!(f, "={}", bytes.escape_ascii())?,
            Kind::Dir => write!(f, "/")?,
            Kind::Symlink(target) => write!(f, "->{}", target.escape_ascii())?,
            Kind::HardLink(leader) => write!(f, "=={}", leader.escape_ascii())?,
            Kind::Fifo => write!(f, "|")?,
        }
        if let Some(mode) = self.mode {
            write!(f, "%{mode:o}")?;
        }
        if self.mtime != 0 {
            write!(f, "@{}", self.mtime)?;
        }
        match self.extra {
            Extra::None => Ok(()),
            Extra::Xattr => write!(f, "(xattr)"),
            Extra::Acl => write!(f, "(ACL)"),
            Extra::Owner => write!(f, "(owner)"),
        }
    }
}

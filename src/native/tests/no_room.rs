//! Whole sessions over pipes with almost no capacity: they must not deadlock.

use super::*;
use crate::local::Local;
use crate::proto::limits::INITIAL_WINDOWS;
use crate::proto::{Class, class_of};
use crate::transport::window_limit::Ceiling;
use crate::walk::run_context::{Process, RunContext};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::MetadataExt;

/// The least capacity of a pipe, and the kernel's default.
const ROOMS_BYTES: [usize; 2] = [1, 64 << 10];

/// The trees at the source and at the destination. The text `=name` makes a hard link to that file.
#[derive(Clone, Debug, Default)]
pub struct Trees {
    source: BTreeMap<String, String>,
    dest: BTreeMap<String, String>,
}

impl Trees {
    pub fn of(source: &[(String, String)], dest: &[(String, String)]) -> Trees {
        Trees {
            source: source.iter().cloned().collect(),
            dest: dest.iter().cloned().collect(),
        }
    }

    /// Creates them in a directory.
    pub fn make(&self, top: &Path) {
        for (name, tree, secs) in [
            ("src", &self.source, 2_000_000),
            ("dst", &self.dest, 1_000_000),
        ] {
            let root = top.join(name);
            std::fs::create_dir(&root).unwrap();
            for (name, text) in tree {
                let path = root.join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                if let Some(other) = text.strip_prefix('=') {
                    std::fs::hard_link(root.join(other), path).unwrap();
                } else if let Some(target) = text.strip_prefix('>') {
                    std::os::unix::fs::symlink(target, path).unwrap();
                } else {
                    std::fs::write(&path, text).unwrap();
                    let file = std::fs::File::options().append(true).open(&path).unwrap();
                    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(secs))
                        .unwrap();
                }
            }
        }
    }
}

/// Returns everything in a tree: kinds, modes, contents, times of files, and which names are hard links of each other.
pub fn all(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut first_names = BTreeMap::new();
    let mut dirs = vec![top.to_owned()];
    while let Some(dir) = dirs.pop() {
        let mut entries: Vec<_> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        entries.sort();
        for path in entries {
            let meta = path.symlink_metadata().unwrap();
            let name = path.strip_prefix(top).unwrap().to_owned();
            let mut state = format!("{:o}", meta.mode());
            if meta.is_dir() {
                dirs.push(path);
            } else if meta.is_symlink() {
                state += &format!(" {}", std::fs::read_link(&path).unwrap().display());
            } else {
                let first = first_names
                    .entry(meta.ino())
                    .or_insert_with(|| name.clone());
                state += &format!(" {} {}", meta.mtime(), first.display());
                state += &String::from_utf8(std::fs::read(&path).unwrap()).unwrap();
            }
            found.insert(name, state);
        }
    }
    found
}

/// How `src/` is copied to `dst/`.
#[derive(Clone, Copy, Debug)]
enum CopyRoute {
    Local,
    Push(usize),
    Pull(usize),
}

/// Creates a directory in memory if that is possible.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

/// Copies, and returns the exit code and the content of both trees afterwards.
fn copy(trees: &Trees, words: &[&str], route: CopyRoute) -> (Exit, BTreeMap<PathBuf, String>) {
    let top = scratch();
    trees.make(top.path());
    let options = options(words);
    let exit = match route {
        CopyRoute::Local => {
            let (rules, umask) = (Rules::new(Vec::new(), ChainOptions::default()), 0o022);
            let cwd = top.path().as_os_str().as_bytes();
            let at = |name: &str| [cwd, b"/", name.as_bytes(), b"/"].concat();
            let (source, dest) = (at("src"), at("dst"));
            let stop = AtomicBool::new(false);
            let mut tally = Tally::default();
            let mut reporter = reporter(&options);
            let run_context = RunContext {
                options: &options,
                rules: &rules,
                process: Process {
                    cwd,
                    umask,
                    stop: &stop,
                    threads: 2,
                    checksum_cache: None,
                    stored: None,
                    explainer: None,
                },
                repeats: false,
                interrupted: &stop,
                gauge: None,
            };
            let local = Local {
                run_context,
                sources: vec![source],
                dest: Some(dest),
                listed: None,
            };
            local
                .run(&mut reporter, &mut tally)
                .map_or_else(|error| error.exit, |()| tally.exit())
        }
        CopyRoute::Push(room_bytes) | CopyRoute::Pull(room_bytes) => {
            let ours = || ProtocolSupport::ours(compression_choice::features(None));
            let is_pull = matches!(route, CopyRoute::Pull(_));
            let [near, far] = converse(top.path(), options, is_pull, room_bytes, [ours(), ours()]);
            assert_eq!(far.exit, Exit::Ok);
            near.exit
        }
    };
    (exit, all(top.path()))
}

/// Copies `src/` to `dst/` in a directory between a client and a server with these versions. Returns how each ended.
pub fn converse(
    top: &Path,
    options: Options,
    is_pull: bool,
    room_bytes: usize,
    [near, far]: [ProtocolSupport; 2],
) -> [Ended; 2] {
    let rules = || Rules::new(Vec::new(), ChainOptions::default());
    let cwd = top.as_os_str().as_bytes();
    let at = |name: &str| [cwd, b"/", name.as_bytes(), b"/"].concat();
    let (source, dest) = (at("src"), at("dst"));
    let stop = AtomicBool::new(false);
    let mut tally = Tally::default();
    let mut reporter = reporter(&options);
    let near = NativeClient {
        headway: Default::default(),
        key: crate::fs::sys::random(),
        support: near,
        client: Client {
            options: &options,
            setup: Setup {
                wants: reporter.wants(),
                ..setup(is_pull)
            },
            sources: vec![source.clone()],
            dest: is_pull.then(|| dest.clone()),
            rules: rules(),
            listed: None,
            process: Process {
                cwd,
                umask: 0o022,
                stop: &stop,
                threads: 2,
                checksum_cache: None,
                stored: None,
                explainer: None,
            },
            repeats: false,
            interrupted: &stop,
            is_net: false,
            is_local: false,
            gauge: None,
        },
    };
    let operand = if is_pull { &source } else { &dest };
    let settle = |_: &Setup| {
        Ok(SettledSetup {
            options: options.clone(),
            rules: rules(),
            operands: vec![operand.clone()],
            listed: None,
            repeats: false,
            server_stops: Default::default(),
            ceiling: Ceiling::default(),
            beyond: None,
        })
    };
    let (ours, theirs) = pipe::pair(room_bytes);
    let (ended, far) = std::thread::scope(|scope| {
        let far =
            scope.spawn(|| server_at(cwd, &AtomicBool::new(false), &settle).serve(theirs, &far));
        let ended = near.run(ours, None, None, &mut reporter, &mut tally);
        (ended, far.join().unwrap())
    });
    let (exit, sentence) = match ended {
        Ok(()) => (tally.exit(), String::new()),
        Err(error) => (
            error.exit,
            String::from_utf8_lossy(&error.message).into_owned(),
        ),
    };
    [
        Ended { exit, sentence },
        Ended {
            exit: far,
            sentence: String::new(),
        },
    ]
}

/// Copies in every way. Each copy must end, with the result of the local one.
#[track_caller]
fn agree(trees: &Trees, words: &[&str]) {
    agree_with(trees, words, &ROOMS_BYTES);
}

#[track_caller]
fn agree_with(trees: &Trees, words: &[&str], rooms_bytes: &[usize]) {
    let local = copy(trees, words, CopyRoute::Local);
    for route in rooms_bytes
        .iter()
        .flat_map(|&room_bytes| [CopyRoute::Push(room_bytes), CopyRoute::Pull(room_bytes)])
    {
        let (tx, rx) = mpsc::channel();
        let (trees, words) = (
            trees.clone(),
            words
                .iter()
                .map(|word| word.to_string())
                .collect::<Vec<_>>(),
        );
        let shown = words.join(" ");
        std::thread::spawn(move || {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let _ = tx.send(copy(&trees, &words, route));
        });
        let remote = rx
            .recv_timeout(LIMIT)
            .unwrap_or_else(|_| panic!("{route:?} {shown}: the session does not end"));
        assert_eq!(remote.0, local.0, "{route:?} {shown}");
        let differs = |(one, other): &(_, _)| one != other;
        let first = remote.1.iter().zip(&local.1).find(differs);
        assert!(
            first.is_none() && remote.1.len() == local.1.len(),
            "{route:?} {shown}: {first:?}"
        );
    }
}

pub fn text(name: &str, len_bytes: usize) -> String {
    name.bytes()
        .cycle()
        .take(len_bytes)
        .map(char::from)
        .collect()
}

fn tree(names: impl Iterator<Item = String>, len_bytes: usize) -> Vec<(String, String)> {
    names
        .map(|name| (name.clone(), text(&name, len_bytes)))
        .collect()
}

fn wide() -> Vec<(String, String)> {
    tree(
        (0..8).flat_map(|dir| (0..6).map(move |file| format!("d{dir}/f{file}"))),
        40,
    )
}

fn deep() -> Vec<(String, String)> {
    tree((1..15).map(|depth| format!("{}f", "d/".repeat(depth))), 100)
}

fn large() -> Vec<(String, String)> {
    tree(
        ["a", "d/b", "d/e/c"].into_iter().map(str::to_owned),
        400_000,
    )
}

fn other(tree: &[(String, String)]) -> Vec<(String, String)> {
    tree.iter()
        .map(|(name, text)| (name.clone(), format!("old {}", &text[..text.len() / 2])))
        .collect()
}

fn elsewhere(tree: &[(String, String)]) -> Vec<(String, String)> {
    tree.iter()
        .map(|(name, text)| (format!("gone/{name}"), text.clone()))
        .collect()
}

#[test]
fn new_files_arrive_over_narrow_links() {
    for tree in [wide(), deep()] {
        agree(&Trees::of(&tree, &[]), &["-a"]);
    }
    agree_with(&Trees::of(&large(), &[]), &["-a"], &[1000, 64 << 10]);
}

#[test]
fn changed_files_arrive_over_narrow_links() {
    for tree in [wide(), deep()] {
        agree(&Trees::of(&tree, &other(&tree)), &["-a"]);
    }
    agree_with(
        &Trees::of(&large(), &other(&large())),
        &["-a"],
        &[1000, 64 << 10],
    );
}

#[test]
fn unchanged_files_are_compared_over_narrow_links() {
    for tree in [wide(), deep()] {
        agree(&Trees::of(&tree, &tree), &["-ac"]);
        agree(&Trees::of(&tree, &tree), &["-aI"]);
    }
}

#[test]
fn deletions_work_over_narrow_links() {
    for words in [
        ["-a", "--delete"],
        ["-a", "--delete-before"],
        ["-a", "--delete-delay"],
        ["-a", "--delete-after"],
    ] {
        agree(&Trees::of(&[], &wide()), &words);
        agree(&Trees::of(&deep(), &elsewhere(&wide())), &words);
    }
}

#[test]
fn hard_links_arrive_over_narrow_links() {
    let mut tree = wide();
    let links: Vec<_> = tree
        .iter()
        .step_by(3)
        .map(|(name, _)| (format!("{name}.link"), format!("={name}")))
        .collect();
    tree.extend(links);
    agree(&Trees::of(&tree, &[]), &["-aH"]);
    agree(
        &Trees::of(&tree, &other(&wide())),
        &["-aH", "--delete-before"],
    );
}

#[test]
fn other_options_work_over_narrow_links() {
    let tree = wide();
    let grown: Vec<_> = tree
        .iter()
        .map(|(name, text)| (name.clone(), text[..text.len() / 2].to_owned()))
        .collect();
    for words in [
        &["-a", "--delay-updates"][..],
        &["-a", "--append"],
        &["-a", "--append-verify"],
        &["-a", "--inplace"],
        &["-a", "--whole-file"],
        &["-a", "--remove-source-files"],
        &["-a", "--existing"],
        &["-a", "--existing", "--delete-before"],
        &["-a", "--ignore-existing"],
        &["-a", "--backup"],
        &["-am"],
        &["-an", "--delete"],
        &["-rtc"],
    ] {
        agree_with(&Trees::of(&tree, &grown), words, &[257]);
        let mut dest = elsewhere(&tree);
        dest.extend(other(&tree).into_iter().step_by(2));
        agree_with(&Trees::of(&tree, &dest), words, &[64 << 10]);
    }
}

#[test]
fn directory_longer_than_a_window_is_transferred() {
    // Links are made faster than files.
    let name = |at: u32| format!("{at:05}{}", "x".repeat(200));
    let link = |at| {
        if at == 0 {
            String::new()
        } else {
            format!("={}", name(0))
        }
    };
    let trees = Trees::of(
        &(0..24_000)
            .map(|at| (name(at), link(at)))
            .collect::<Vec<_>>(),
        &[],
    );
    agree_with(&trees, &["-rn"], &[64 << 10]);
}

fn any_tree() -> impl Strategy<Value = BTreeMap<String, String>> {
    let text = prop_oneof![4 => "[ab]{0,30}", 1 => "[a]{100}".prop_map(|a| a.repeat(900)), 1 => ">[ab]{1,5}"];
    proptest::collection::btree_map("([DE]/){0,3}[abc]{1,2}", text, 0..25)
}

// Times are always preserved, because successive runs create files in different seconds.
proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn any_trees_agree_over_narrow_links(source in any_tree(), dest in any_tree(), room_bytes in prop_oneof![1 => Just(1), 4 => 2..2000usize], choice in 0..7usize) {
        let words: [&[&str]; 7] = [
            &["-a"], &["-a", "--delete"], &["-aH", "--delete"], &["-ac", "--delete-before"], &["-a", "-I"],
            &["-a", "--delete-after", "--delay-updates"], &["-rt", "--ignore-times", "--delete"],
        ];
        agree_with(&Trees { source, dest }, words[choice], &[room_bytes]);
    }
}

/// A sender that handles requests when the test wants.
struct SlowSender<'p> {
    peer: &'p mut Peer,
    /// Requested files that are not sent yet.
    requested: VecDeque<FileId>,
    /// Files that were requested again.
    again: VecDeque<FileId>,
    /// How much it could grant for requests, and how much data it may still send, in bytes.
    ungranted_bytes: u64,
    may_send_bytes: i64,
    is_over: bool,
}

impl SlowSender<'_> {
    fn receive_message(&mut self) {
        let message = self.peer.receive_message().expect("the session continues");
        let mut frame = Vec::new();
        Native::new(1).encode(&message, &mut frame).unwrap();
        if class_of(&message) == Some(Class::Wants) {
            self.ungranted_bytes += frame.len() as u64;
        }
        match message {
            Message::Want {
                file,
                lane: Lane::Again,
                ..
            } => self.again.push_back(file),
            Message::Want { file, .. } => self.requested.push_back(file),
            Message::Grant {
                class: Class::Requested,
                bytes,
            } => self.may_send_bytes += bytes as i64,
            Message::WantsEnd(_) => self.is_over = true,
            Message::Fail { message, .. } => {
                panic!("it ends: {}", String::from_utf8_lossy(&message))
            }
            _ => {}
        }
    }

    /// Returns the next requested file.
    fn next(&mut self) -> FileId {
        while self.requested.is_empty() {
            self.receive_message();
        }
        self.requested
            .pop_front()
            .expect("a repeated request is queued")
    }

    /// Sends a file in these pieces.
    fn send(&mut self, file: FileId, pieces: &[Vec<u8>], digest: crate::proto::ContentDigest) {
        let lane = Lane::Requested;
        let data = pieces.iter().map(|data| Message::Data {
            lane,
            data: data.clone(),
        });
        let whole = std::iter::once(Message::Begin { file, lane })
            .chain(data)
            .chain([Message::End { lane, digest }]);
        for message in whole {
            while self.may_send_bytes <= 0 {
                self.receive_message();
            }
            let mut frame = Vec::new();
            Native::new(1).encode(&message, &mut frame).unwrap();
            self.may_send_bytes -= frame.len() as i64;
            self.peer.send_message(&message);
        }
    }

    /// Handles all requests from here on, and ends the session.
    fn answer_requests(&mut self) {
        while !self.is_over {
            self.peer.send_message(&Message::Grant {
                class: Class::Wants,
                bytes: std::mem::take(&mut self.ungranted_bytes),
            });
            while let Some(file) = self.requested.pop_front() {
                self.peer.send_message(&whole(Lane::Requested, file));
            }
            self.receive_message();
        }
        self.peer.send_message(&Message::Bye(Box::default()));
    }
}

/// Runs such a sender within [`LIMIT`]. The server has a file of 3 MiB in each of some directories, and requests it
/// with blocks of the shortest length, 240 KB of them. The second argument of `play`: how many requests fill three
/// quarters of their window.
fn plays_a_slow_sender(play: impl FnOnce(&mut SlowSender<'_>, usize) + Send + 'static) {
    const FILES: usize = 30;
    let requested = (3 << 20) / 246_000;
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        let stage = Stage::new();
        let names: Vec<String> = (0..FILES).map(|dir| format!("d{dir:02}")).collect();
        for name in &names {
            stage.has(&format!("{name}/f"), "");
            let file = std::fs::File::options()
                .write(true)
                .open(stage.home().join(name).join("f"))
                .unwrap();
            file.set_len(3 << 20).unwrap();
        }
        let ended = serve(&stage, &["-r", "--block-size=64"], false, |peer| {
            peer.greet(Some(setup(false)));
            peer.receive_greeting();
            peer.send();
            let dirs: Vec<_> = names.iter().map(|name| (name.as_str(), DIR)).collect();
            peer.send_messages(&[roots_message(), dir(0, "", &dirs)]);
            for (name, id) in names.iter().zip(1..) {
                peer.send_message(&dir(id, name, &[("f", FILE)]));
            }
            peer.send_message(&dirs_end());
            let may_send_bytes = INITIAL_WINDOWS[Class::Requested as usize] as i64;
            let (requested_files, again) = Default::default();
            let mut sender = SlowSender {
                peer,
                requested: requested_files,
                again,
                ungranted_bytes: 0,
                may_send_bytes,
                is_over: false,
            };
            play(&mut sender, requested);
            sender.answer_requests();
        });
        let _ = tx.send((ended, stage.files().len()));
    });
    let (ended, files) = rx.recv_timeout(LIMIT).expect("it ends");
    assert_eq!((ended.exit, files), (Exit::Ok, FILES), "{}", ended.sentence);
}

#[test]
fn received_files_drain_while_requests_are_blocked() {
    plays_a_slow_sender(|sender, requested| {
        let files: Vec<FileId> = (0..requested).map(|_| sender.next()).collect();
        // The first one is so long that meanwhile as many files are requested as the window permits. The others exceed
        // their window, so the run ends only if a thread that has finished one file takes the next one.
        for (at, file) in files.into_iter().enumerate() {
            let pieces = vec![vec![7; 256 << 10]; if at == 0 { 64 } else { 4 }];
            sender.send(file, &pieces, crate::digest::content(&pieces.concat()));
        }
    });
}

#[test]
fn repeats_are_requested_while_requests_are_blocked() {
    plays_a_slow_sender(|sender, requested| {
        let mut files: VecDeque<FileId> = (0..requested).map(|_| sender.next()).collect();
        // As many as there are threads that receive files: each waits for the file that it requests again.
        files
            .drain(..2)
            .for_each(|file| sender.send(file, &[vec![1]], [0; 20]));
        for _ in 0..2 {
            while sender.again.is_empty() {
                sender.receive_message();
            }
            let file = sender
                .again
                .pop_front()
                .expect("a repeated request is queued");
            sender.peer.send_message(&whole(Lane::Again, file));
        }
        sender.requested.extend(files);
    });
}

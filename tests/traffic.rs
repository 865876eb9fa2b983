//! The cost of a session in messages, bytes and round trips. The numbers are pinned, so that a session that sends more
//! than necessary fails here on any machine, without measuring time.
//!
//! With `SPARSYNC_PROFILE=1`, both sides print the number of messages that they sent and received. A turn is a wait for
//! the peer: something was sent, then something was received.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::kit::{Output, Surroundings, Who, noise, oracle, report_skip, run, until, write_script};

const FILES: u64 = 1_000;
const DIRS: u64 = 10;
/// The maximum number of pulls until one has scanned its destination before the remote program answers. On a busy
/// machine the scan may be late.
const PULLS_MAX: usize = 20;

/// A remote shell that runs the command on this machine.
const SHELL: &str = "#!/bin/sh\n[ \"$1\" != -l ] || shift 2\nshift\nexec sh -c \"$*\"\n";

/// The counters of the client by their names in its profile: messages sent and received, bytes, round trips.
#[derive(Debug, Default)]
struct Cost(BTreeMap<String, u64>);

impl Cost {
    fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// Returns the bytes in both directions.
    fn bytes(&self) -> u64 {
        self.of("bytes-written") + self.of("bytes-read")
    }

    #[track_caller]
    fn pinned(&self, exactly: &[(&str, u64)]) {
        for (what, count) in exactly {
            assert_eq!(self.of(what), *count, "{what} of {self:#?}");
        }
    }
}

/// A source, and a directory for copies of it.
struct Trees(tempfile::TempDir);

impl Trees {
    /// Creates [`FILES`] files in [`DIRS`] directories.
    fn wide() -> Trees {
        let trees = Trees::empty();
        for n in 0..FILES {
            trees.put(&format!("d{}/f{n}", n % DIRS), &format!("file {n}"));
        }
        trees
    }

    fn empty() -> Trees {
        let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
        let shell = dir.path().join("shell");
        write_script(&shell, SHELL);
        fs::create_dir(dir.path().join("src")).expect("scratch can be written");
        Trees(dir)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join("src").join(path);
        fs::create_dir_all(path.parent().expect("below the source"))
            .expect("scratch can be written");
        fs::write(path, text).expect("scratch can be written");
    }

    fn run(&self, options: &[&str], operands: [&str; 2]) -> Cost {
        Cost(self.profile("profile: client ", options, operands))
    }

    /// Returns the system calls of the client by name. A release build counts none.
    fn calls(&self, options: &[&str], operands: [&str; 2]) -> BTreeMap<String, u64> {
        self.profile("profile: ", options, operands)
    }

    fn profile(
        &self,
        prefix: &str,
        options: &[&str],
        operands: [&str; 2],
    ) -> BTreeMap<String, u64> {
        let output = self.output(options, operands);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let mut counts = BTreeMap::new();
        for line in text.lines().filter_map(|line| line.strip_prefix(prefix)) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                [what, count] => {
                    counts.extend(count.parse().ok().map(|count| ((*what).to_owned(), count)))
                }
                [message, sent, _, received, ..] => {
                    for (way, count) in [("sent", sent), ("received", received)] {
                        counts.extend(
                            count
                                .parse()
                                .ok()
                                .map(|count| (format!("{way}-{message}"), count)),
                        );
                    }
                }
                _ => {}
            }
        }
        counts
    }

    /// Returns the bytes on the link in both directions, after compression.
    fn link_bytes(&self, options: &[&str], operands: [&str; 2]) -> u64 {
        let output = self.output(&[options, &["--stats", "--no-h"]].concat(), operands);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let total = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        total("Total bytes sent:").expect("the total is printed")
            + total("Total bytes received:").expect("the total is printed")
    }

    fn output(&self, options: &[&str], operands: [&str; 2]) -> Output {
        let program = oracle::under_test();
        let env = vec![("SPARSYNC_PROFILE".to_owned(), "1".to_owned())];
        let surroundings = Surroundings {
            who: Who::Current,
            home: self.0.path().to_owned(),
            umask: 0o022,
            stdin: Vec::new(),
            env,
        };
        let far = [
            format!("--rsh={}", self.0.path().join("shell").display()),
            format!("--rsync-path={}", program.display()),
        ];
        let argv = far
            .iter()
            .map(String::as_str)
            .chain(options.iter().copied())
            .chain(operands);
        let argv: Vec<_> = argv.map(|word| word.as_bytes().to_vec()).collect();
        let output = run(program, &argv, self.0.path(), &surroundings);
        assert_eq!(output.exit, 0, "{}", output.stderr.escape_ascii());
        output
    }

    fn push(&self) -> Cost {
        self.run(&["-a", "--delete"], ["src/", "far:dst"])
    }

    fn pull(&self) -> Cost {
        self.run(&["-a", "--delete"], ["far:src/", "dst"])
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.0.path().join(path)
    }
}

/// Returns the maximum number of bytes on the wire for a run without changes.
fn idle_bytes_max(dirs: u64) -> u64 {
    4 * 1024 + 20 * dirs
}

// With digests of earlier runs at both ends, an unchanged directory costs a digest under -c as well.
#[test]
fn idle_run_with_kept_digests_sends_no_listing() {
    let trees = Trees::wide();
    let options = ["-ac", "--delete", "--checksum-cache"];
    for operands in [["src/", "far:dst"], ["far:src/", "dst"]] {
        trees.run(&options, operands);
        // The files of the first run can have digests by now.
        until_settled(&trees.path("dst"));
        trees.run(&options, operands);
        let cost = trees.run(&options, operands);
        let (to_sender, from_sender) = if operands[0] == "src/" {
            ("received", "sent")
        } else {
            ("sent", "received")
        };
        cost.pinned(&[(&format!("{from_sender}-Dir"), 0)]);
        assert!(cost.of(&format!("{to_sender}-Digests")) >= 1, "{cost:#?}");
        assert!(cost.bytes() <= idle_bytes_max(DIRS + 1), "{cost:#?}");

        // A directory in which a content has changed is listed.
        let path = trees.path("dst/d3/f3");
        let mtime = fs::metadata(&path).and_then(|found| found.modified());
        fs::write(&path, "FILE 3").expect("scratch can be written");
        let file = fs::File::options().write(true).open(&path);
        file.and_then(|file| file.set_modified(mtime?))
            .expect("the owner may set the time");
        let cost = trees.run(&options, operands);
        cost.pinned(&[(&format!("{from_sender}-Dir"), 1)]);
        assert_eq!(fs::read_to_string(&path).expect("a file"), "file 3");
    }
}

/// Waits until the files of a tree have been left alone for so long that they can have digests.
fn until_settled(top: &Path) {
    let of_change = fs::metadata(top.join("d9/f999")).map(|found| found.ctime());
    let settled = of_change.expect("it was copied") + 2;
    until(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.expect("it is after 1970").as_secs() as i64 > settled
    });
}

#[test]
fn an_idle_push_is_one_exchange_after_the_greeting() {
    let trees = Trees::wide();
    trees.push();
    let cost = trees.push();
    // The receiver answers setup and roots with digests, and the end of the walk with its own end.
    cost.pinned(&[
        ("round-trips", 2),
        ("sent-Roots", 1),
        ("received-Digests", 1),
        ("sent-DirsEnd", 1),
        ("received-WantsEnd", 1),
    ]);
    cost.pinned(&[
        ("sent-Dir", 0),
        ("sent-Whole", 0),
        ("sent-Data", 0),
        ("received-Want", 0),
        ("received-Done", 0),
    ]);
    assert!(cost.bytes() <= idle_bytes_max(DIRS + 1), "{cost:#?}");
}

/// Only a directory that has an ACL costs more than its digest.
#[test]
fn an_idle_push_with_acls_and_attributes_sends_digests() {
    let trees = Trees::wide();
    for operands in [["src/", "far:dst"], ["far:src/", "dst"]] {
        trees.run(&["-aHAX", "--delete"], operands);
        let cost = trees.run(&["-aHAX", "--delete"], operands);
        cost.pinned(&[("sent-Dir", 0), ("received-Dir", 0)]);
        assert!(cost.bytes() <= idle_bytes_max(DIRS + 1), "{cost:#?}");
    }
}

/// The digest of the sender contains the ids that the receiver maps its own to.
#[test]
fn an_idle_run_with_mapped_owners_sends_digests() {
    let maps: &[&[&str]] = match rustix::process::geteuid().is_root() {
        true => &[
            &["--chown=daemon:bin"],
            &["--chown=root:0"],
            &["--chown=1001:1002", "--numeric-ids"],
            &["--usermap=root:daemon,*:4321", "--groupmap=0-9:1"],
        ],
        // The receiver maps groups, but cannot change them.
        false => &[&["--usermap=*:daemon"]],
    };
    for options in maps {
        for operands in [["src/", "far:dst"], ["far:src/", "dst"]] {
            let trees = Trees::wide();
            let options = [&["-a"], *options].concat();
            trees.run(&options, operands);
            let cost = trees.run(&options, operands);
            cost.pinned(&[("sent-Dir", 0), ("received-Dir", 0)]);
            assert!(
                cost.bytes() <= idle_bytes_max(DIRS + 1),
                "{options:?}: {cost:#?}"
            );
        }
    }
}

/// With `--link-dest` and `--compare-dest`, the receiver compares all files with the alternate directories as well.
#[test]
fn an_idle_run_with_copy_dest_sends_digests() {
    let trees = Trees::wide();
    trees.run(&["-a"], ["src/", "far:alt"]);
    for (option, dirs) in [
        ("--copy-dest=../alt", 0),
        ("--link-dest=../alt", DIRS + 1),
        ("--compare-dest=../alt", DIRS + 1),
    ] {
        let run = || trees.run(&["-a", option], ["src/", "far:dst"]);
        run();
        run().pinned(&[("sent-Dir", dirs), ("received-Want", 0)]);
    }
}

/// A directory is listed if one of its files has several names, because the receiver must know them all.
#[test]
fn an_idle_push_lists_directories_with_hard_links() {
    let trees = Trees::wide();
    for name in ["d3/f3", "d7/f7"] {
        let linked = trees.path("src").join(format!("{name}-again"));
        fs::hard_link(trees.path("src").join(name), linked).expect("scratch can be written");
    }
    fs::hard_link(trees.path("src/d3/f3"), trees.path("src/d5/f3-again"))
        .expect("scratch can be written");
    let push = || trees.run(&["-aH", "--delete"], ["src/", "far:dst"]);
    push();
    // Names that only the destination has do not matter.
    fs::hard_link(trees.path("dst/d1/f1"), trees.path("outside")).expect("scratch can be written");
    push().pinned(&[("sent-Dir", 3), ("received-Want", 0)]);
}

#[test]
fn an_idle_pull_is_one_exchange_after_the_greeting() {
    let trees = Trees::wide();
    trees.pull();
    for left in (0..PULLS_MAX).rev() {
        let cost = trees.pull();
        cost.pinned(&[
            ("received-Roots", 1),
            ("received-DirsEnd", 1),
            ("sent-WantsEnd", 1),
        ]);
        cost.pinned(&[
            ("received-Dir", 0),
            ("received-Whole", 0),
            ("received-Data", 0),
            ("sent-Want", 0),
            ("sent-Done", 0),
        ]);
        assert!(cost.bytes() <= idle_bytes_max(DIRS + 1), "{cost:#?}");
        // The sender answers setup and digests with the roots and the end of the walk, and the last message with a
        // goodbye. A client waits for the goodbye only if it prints a profile.
        if left == 0 || cost.of("sent-Digests") == 1 {
            return cost.pinned(&[("round-trips", 2), ("sent-Digests", 1)]);
        }
        // If the remote program answers before the destination is scanned, the roots arrive before the other digests.
        assert!(
            cost.of("sent-Digests") == 2 && cost.of("round-trips") <= 3,
            "{cost:#?}"
        );
    }
}

#[test]
fn wrong_guess_about_the_receivers_user_costs_no_message() {
    let trees = Trees::wide();
    trees.push();
    // Until the receiver reports whether it may change owners, the client can only guess from the login name.
    let login = if rustix::process::geteuid().is_root() {
        "somebody@far:dst"
    } else {
        "root@far:dst"
    };
    let cost = trees.run(&["-a", "--delete"], ["src/", login]);
    cost.pinned(&[("round-trips", 2), ("sent-Roots", 1), ("sent-Dir", 0)]);
}

#[test]
fn push_stats_each_entry_once() {
    let trees = Trees::wide();
    for phase in ["first", "idle"] {
        let calls = trees.calls(&["-a", "--delete"], ["src/", "far:dst"]);
        let count = |call: &str| calls.get(call).copied().unwrap_or(0);
        if count("stat") == 0 {
            return report_skip(
                "traffic::push_stats",
                "the program under test is a release build, which does not count",
            );
        }
        // Work done before the remote program answers is not repeated: one stat per entry and one for the argument.
        assert_eq!(count("stat"), FILES + DIRS + 1, "{phase}: {calls:?}");
        // Per directory, its names and the end of the list. Also whether the source has any entries, which --delete
        // examines before the run and the sender during it, and directories to work in.
        assert!(
            count("getdents") <= 2 * (DIRS + 1) + 3 && count("opendir") <= DIRS + 4,
            "{phase}: {calls:?}"
        );
    }
}

#[test]
fn compared_content_is_read_once_at_each_end() {
    let trees = Trees::wide();
    // Two and a half pieces, so three reads.
    trees.put("d0/long", &"x".repeat(320 << 10));
    trees.push();
    let reads = |options: &[&str], operands: [&str; 2], files: u64| {
        let calls = trees.calls(options, operands);
        let count = |call: &str| calls.get(call).copied().unwrap_or(0);
        if count("stat") == 0 {
            return report_skip(
                "traffic::compared_content",
                "the program under test is a release build, which does not count",
            );
        }
        let case = format!("{options:?} {operands:?}: {calls:?}");
        assert_eq!(count("read"), files + 2, "{case}");
        // In addition, files that may hold settings, and an fstat of directories after opening them.
        assert!(
            count("open") <= files + 5 && count("fstat") <= 2 * (DIRS + 3),
            "{case}"
        );
    };
    reads(&["-ac"], ["src/", "far:dst"], FILES + 1);
    reads(&["-ac"], ["far:src/", "dst"], FILES + 1);
    // The receiver does not read files that the source lacks or that differ in length.
    trees.put("d1/f1", "longer than before");
    fs::remove_file(trees.path("src/d2/f2")).expect("the file existed");
    reads(&["-acn"], ["far:src/", "dst"], FILES - 1);
}

#[test]
fn depth_of_the_tree_costs_no_round_trips() {
    let trees = Trees::empty();
    let mut path = String::new();
    for n in 0..120 {
        path += &format!("d{n}/");
        trees.put(&format!("{path}f"), "x");
    }
    trees.push();
    let cost = trees.push();
    cost.pinned(&[("round-trips", 2), ("sent-Dir", 0)]);
    assert!(cost.bytes() <= idle_bytes_max(121), "{cost:#?}");
}

#[test]
fn missing_directories_are_sent_without_requests() {
    let trees = Trees::wide();
    let cost = trees.push();
    cost.pinned(&[
        ("sent-Dir", DIRS + 1),
        ("sent-Whole", FILES),
        ("received-Want", 0),
    ]);
    let data: u64 = (0..FILES).map(|n| format!("file {n}").len() as u64).sum();
    // Per file: its entry, the header of its message, its checksum.
    assert!(
        cost.of("bytes-written") <= data + 64 * FILES + idle_bytes_max(DIRS),
        "{cost:#?}"
    );
}

#[test]
fn empty_destination_needs_no_requests() {
    for operands in [["src/", "far:dst"], ["far:src/", "dst"]] {
        let trees = Trees::empty();
        trees.put("top", "x");
        trees.put("d/below", "x");
        for exists in [false, true] {
            if exists {
                fs::remove_dir_all(trees.path("dst")).expect("it was copied");
                fs::create_dir(trees.path("dst")).expect("scratch can be written");
            }
            let cost = trees.run(&["-a"], operands);
            cost.pinned(&[("sent-Want", 0), ("received-Want", 0)]);
            assert_eq!(
                cost.of("sent-Whole") + cost.of("received-Whole"),
                2,
                "{cost:#?}"
            );
        }
        // For an existing file, the receiver requests the missing parts.
        trees.put("top", "longer than it was before");
        let cost = trees.run(&["-a"], operands);
        assert_eq!(
            cost.of("sent-Want") + cost.of("received-Want"),
            1,
            "{cost:#?}"
        );
    }
}

#[test]
fn one_changed_file_costs_its_directory() {
    let trees = Trees::wide();
    trees.push();
    trees.put("d3/f3", "longer than it was before");
    let cost = trees.push();
    cost.pinned(&[
        ("sent-Dir", 1),
        ("received-Want", 1),
        ("received-Done", 1),
        ("sent-Whole", 0),
        ("sent-Begin", 1),
    ]);
    // The digests, the request, the end. The end of the requests for the directory may take a turn of its own.
    assert!(cost.of("round-trips") <= 4, "{cost:#?}");
    // The entries of a hundred files, and the content of one file.
    assert!(
        cost.bytes() <= idle_bytes_max(DIRS + 1) + 100 * 40,
        "{cost:#?}"
    );
}

#[test]
fn deleting_an_extra_file_costs_one_listing() {
    let trees = Trees::wide();
    trees.push();
    fs::write(trees.path("dst/d7/extra"), "x").expect("scratch can be written");
    let cost = trees.push();
    cost.pinned(&[("received-Want", 0), ("sent-Whole", 0)]);
    // The directory, and its parent if its new time is in another second.
    assert!(cost.of("sent-Dir") <= 2, "{cost:#?}");
    assert!(!trees.path("dst/d7/extra").exists());
}

#[test]
fn unprinted_deletions_are_not_sent_as_events() {
    let trees = Trees::wide();
    for (options, least, most) in [
        (&["-a", "--delete"][..], 0, 50),
        (&["-av", "--delete"], 100, 150),
    ] {
        trees.run(options, ["src/", "far:dst"]);
        for n in 0..100 {
            fs::write(trees.path(&format!("dst/d{}/extra{n}", n % DIRS)), "x")
                .expect("scratch can be written");
        }
        let cost = trees.run(options, ["src/", "far:dst"]);
        // The profile lines of the remote program are events, too.
        assert!(
            (least..=most).contains(&cost.of("received-Event")),
            "{options:?}: {cost:#?}"
        );
        assert!(!trees.path("dst/d7/extra7").exists());
    }
}

#[test]
fn destination_is_scanned_again_in_every_run() {
    let trees = Trees::wide();
    trees.push();
    fs::remove_file(trees.path("dst/d1/f1")).expect("it was copied");
    trees.push();
    assert_eq!(
        fs::read(trees.path("dst/d1/f1")).expect("the file was restored"),
        b"file 1"
    );
}

/// Writes a file with a time `secs` seconds in the future, which distinguishes it from the previous version.
fn write_later(path: &Path, content: &[u8], secs: u64) {
    fs::write(path, content).expect("scratch can be written");
    let file = fs::File::options()
        .write(true)
        .open(path)
        .expect("the test's own file");
    file.set_modified(SystemTime::now() + Duration::from_secs(secs))
        .expect("the test's own file");
}

#[test]
fn changes_cost_less_than_rsync_sends() {
    let trees = Trees::empty();
    let old = noise(7, 8 << 20);
    let path = trees.path("src/big");
    fs::write(&path, &old).expect("scratch can be written");
    trees.push();
    // Changes forty scattered blocks of 4 KiB.
    let mut new = old.clone();
    for n in 0..40 {
        let at = n * 200_003;
        new[at..at + 4096].copy_from_slice(&noise(100 + n as u64, 4096));
    }
    write_later(&path, &new, 10);
    let cost = trees.push();
    assert_eq!(fs::read(trees.path("dst/big")).expect("it was copied"), new);
    // rsync uses blocks of 2,896 bytes for this file and sends two or three of them 40 times: about 300,000 bytes.
    assert!(cost.of("bytes-written") < 260_000, "{cost:#?}");
    // A file with 100 bytes prepended costs little more than these bytes.
    let longer = [&new[..100], &new[..]].concat();
    write_later(&path, &longer, 20);
    let cost = trees.push();
    assert!(cost.of("bytes-written") < 8_000, "{cost:#?}");
    assert_eq!(
        fs::read(trees.path("dst/big")).expect("it was copied"),
        longer
    );
}

#[test]
fn directory_longer_than_a_window_is_sent() {
    let trees = Trees::empty();
    // Names with little in common, longer in total than a flow control window.
    let mut state = 3u64;
    for _ in 0..24_000 {
        let mut name = String::new();
        for _ in 0..13 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            name += &format!("{state:016x}");
        }
        fs::write(trees.path("src").join(name), "").expect("scratch can be written");
    }
    let cost = trees.run(&["-an"], ["src/", "far:dst"]);
    assert!(cost.of("bytes-written") > 4 << 20, "{cost:#?}");
    cost.pinned(&[("sent-Dir", 1)]);
}

#[test]
fn change_in_each_directory_stats_each_entry_once() {
    let trees = Trees::wide();
    trees.pull();
    for n in 0..DIRS {
        trees.put(&format!("d{n}/f{n}"), "longer than it was before");
    }
    let calls = trees.calls(&["-a", "--delete"], ["far:src/", "dst"]);
    let (Some(stats), Some(lists)) = (calls.get("stat"), calls.get("getdents")) else {
        return report_skip(
            "traffic::change_in_each_directory",
            "the program under test is a release build, which does not count",
        );
    };
    // Each entry of the destination; each listed directory, and the file that is replaced in it, once or twice more.
    assert!(*stats <= FILES + DIRS + 4 * DIRS + 2, "{calls:?}");
    // Per directory, its names and the end of the list, only for the digests.
    assert!(*lists <= 2 * (DIRS + 1) + 4, "{calls:?}");
}

/// Returns the bytes on the wire of a run that copies a file of 2 MiB with a new name. The file `old` already has
/// nearly the same content.
fn cost_of_a_new_name(options: &[&str], old: &str, pull: bool) -> u64 {
    let trees = Trees::empty();
    let content = noise(11, 2 << 20);
    trees.put("d/other", "x");
    fs::write(trees.path("src/d/report-2.txt"), &content).expect("scratch can be written");
    for dir in ["dst/d", "alt/d"] {
        fs::create_dir_all(trees.path(dir)).expect("scratch can be written");
    }
    fs::write(trees.path(old), &content[100..]).expect("scratch can be written");
    let cost = trees.run(
        options,
        if pull {
            ["far:src/", "dst"]
        } else {
            ["src/", "far:dst"]
        },
    );
    assert_eq!(
        fs::read(trees.path("dst/d/report-2.txt")).expect("it was copied"),
        content
    );
    cost.bytes()
}

#[test]
fn fuzzy_basis_saves_most_of_a_new_file() {
    let (beside, elsewhere) = ("dst/d/report-1.txt", "alt/d/report-1.txt");
    let alt = "--copy-dest=../alt";
    for pull in [false, true] {
        let cost = |options: &[&str], old| cost_of_a_new_name(options, old, pull);
        let (saved, all) = (60_000, 2 << 20);
        assert!(cost(&["-ay"], beside) < saved);
        assert!(cost(&["-ayy", alt], elsewhere) < saved);
        assert!(cost(&["-ay", "--delete-after"], beside) < saved);
        assert!(cost(&["-ay", "--delete-delay"], beside) < saved);
        // No savings if the similar file is deleted first, is not searched for, or may not be used.
        for options in [
            &["-ay", "--delete-before"][..],
            &["-ay", "--delete"],
            &["-a"],
            &["-ayW"],
        ] {
            assert!(cost(options, beside) > all, "{options:?}");
        }
        assert!(cost(&["-ay", alt], elsewhere) > all);
    }
}

/// The number of files that are renamed, at most one of 1 GiB.
const RENAMED: u64 = 200;

/// Returns the bytes on the wire of a run after which `files` of the destination have other names and times, and of a run that
/// finds nothing to do.
fn cost_of_renames(trees: &Trees, how: &str, operands: [&str; 2], files: &[String]) -> [u64; 2] {
    fs::create_dir_all(trees.path("src/new")).expect("scratch can be written");
    for name in files {
        let old = trees.path(&format!("src/old/{name}"));
        let new = trees.path(&format!("src/new/{name}-renamed"));
        fs::rename(old, &new).expect("scratch can be written");
        if how == "--detect-renamed" {
            touch(&new);
        }
    }
    let options = ["-a", "--delete", how];
    let cost = trees.run(&options, operands).bytes();
    let source = noted(&trees.path("src"));
    assert_eq!(source, noted(&trees.path("dst")));
    [cost, trees.run(&options, operands).bytes()]
}

/// Returns the names of a tree.
fn noted(top: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for dir in fs::read_dir(top).expect("it is there") {
        let dir = dir.expect("it can be listed").path();
        for file in fs::read_dir(&dir).expect("it is a directory") {
            let path = file.expect("it can be listed").path();
            let path = path.strip_prefix(top).expect("it is below");
            names.push(path.display().to_string());
        }
    }
    names.sort();
    names
}

/// Gives a file another time.
fn touch(path: &Path) {
    let file = fs::File::options().write(true).open(path);
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
    file.and_then(|file| file.set_modified(time))
        .expect("scratch can be written");
}

#[test]
fn renamed_files_cost_little_more_than_their_entries() {
    for (how, most_each) in [("--detect-renamed=quick", 60), ("--detect-renamed", 100)] {
        for operands in [["src/", "far:dst"], ["far:src/", "dst"]] {
            let trees = Trees::empty();
            let mut files = Vec::new();
            for n in 0..RENAMED {
                let name = format!("photograph-{n:04}");
                // Of many files of one size, only those with equal times are compared.
                let len = 300 + n as usize;
                trees.put(&format!("old/{name}"), &format!("{n:0len$}"));
                files.push(name);
            }
            trees.run(&["-a"], operands);
            let [cost, idle] = cost_of_renames(&trees, how, operands, &files);
            let each = (cost - idle) / RENAMED;
            assert!(each < most_each, "{how} {operands:?}: {each} bytes");
        }
    }
}

#[test]
fn large_renamed_file_costs_less_than_a_kilobyte() {
    for operands in [["src/", "far:dst"], ["far:src/", "dst"]] {
        let trees = Trees::empty();
        trees.put("old/large", "end");
        let large = fs::File::options()
            .write(true)
            .open(trees.path("src/old/large"));
        large
            .and_then(|file| file.set_len(1 << 26))
            .expect("scratch can be written");
        trees.run(&["-aS"], operands);
        let files = ["large".to_owned()];
        let [cost, idle] = cost_of_renames(&trees, "--detect-renamed", operands, &files);
        assert!(cost - idle < 1024, "{operands:?}: {cost} and {idle} bytes");
    }
}

#[test]
fn same_content_is_sent_once() {
    for operands in [["src/", "far:dst"], ["far:src/", "dst"]] {
        let trees = Trees::empty();
        let content = noise(12, 1 << 20);
        for path in ["a/1", "b/2", "c/3"] {
            trees.put(path, "");
            fs::write(trees.path(&format!("src/{path}")), &content)
                .expect("scratch can be written");
        }
        let sent = trees.run(&["-a", "--detect-renamed"], operands).bytes();
        assert!((1 << 20..5 << 18).contains(&sent), "{operands:?}: {sent}");
        assert_eq!(
            fs::read(trees.path("dst/c/3")).expect("it was copied"),
            content
        );
    }
}

#[test]
fn rsync_sends_less_with_a_twin_as_basis() {
    let content = noise(13, 1 << 20);
    let cost = |holder: &str, options: &[&str]| {
        let trees = Trees::empty();
        for path in ["src/new/g", &format!("{holder}/old/f")] {
            let path = trees.path(path);
            fs::create_dir_all(path.parent().expect("it is below"))
                .expect("scratch can be written");
            fs::write(path, &content).expect("scratch can be written");
        }
        touch(&trees.path("src/new/g"));
        let rsync = format!("--rsync-path={}", oracle::rsync().display());
        let options = [&["-a", &rsync], options].concat();
        let bytes = trees.link_bytes(&options, ["far:src/", "dst"]);
        let copied = fs::read(trees.path("dst/new/g")).expect("it was copied");
        assert!(copied == content, "{options:?}: another content");
        bytes
    };

    let whole = cost("dst", &["--delete"]);
    assert!(whole > 1 << 20, "{whole} bytes without the option");
    for (holder, option) in [
        ("dst", "--delete"),
        ("alt", "--link-dest=../alt"),
        ("alt", "--copy-dest=../alt"),
    ] {
        let bytes = cost(holder, &["--detect-renamed", option]);
        assert!(bytes < 50_000, "{bytes} bytes with {option}");
    }
}

#[test]
fn fuzzy_basis_is_used_as_it_was_when_chosen() {
    for pull in [false, true] {
        let trees = Trees::empty();
        let old = noise(11, 1 << 20);
        let new = vec![b'n'; 100_000];
        // A log rotation: the old `log.1` becomes `log.2`, and `log.1` is new.
        fs::create_dir_all(trees.path("dst")).expect("scratch can be written");
        fs::write(trees.path("dst/log.1"), &old).expect("scratch can be written");
        fs::write(trees.path("src/log.1"), &new).expect("scratch can be written");
        fs::write(
            trees.path("src/log.2"),
            [&old[..], b"and one line more"].concat(),
        )
        .expect("scratch can be written");
        let cost = trees.run(
            &["-ay"],
            if pull {
                ["far:src/", "dst"]
            } else {
                ["src/", "far:dst"]
            },
        );
        assert_eq!(
            fs::read(trees.path("dst/log.1")).expect("it was copied"),
            new
        );
        assert!(cost.bytes() < 200_000, "{cost:#?}");
    }
}

/// The length of a text that each compression method reduces to a different length.
const TEXT_BYTES: u64 = 348_894;

/// Returns the bytes on the link for a push and a pull of that text as a file with this name.
fn cost_of_text(options: &[&str], name: &str) -> [u64; 2] {
    [["src/", "far:dst"], ["far:src/", "dst"]].map(|operands| {
        let trees = Trees::empty();
        let text: String = (0..60_001).map(|n| format!("{n}\n")).collect();
        trees.put(name, &text);
        let cost = trees.link_bytes(&[&["-r"], options].concat(), operands);
        assert_eq!(
            fs::read_to_string(trees.path("dst").join(name)).expect("it was copied"),
            text,
            "{options:?}"
        );
        cost
    })
}

#[test]
fn each_compression_method_reduces_the_traffic() {
    let all = TEXT_BYTES..TEXT_BYTES + 2_000;
    for (options, name, expected) in [
        (&["-z"][..], "text", 10_000..50_000),
        (&["--zc=zstd"], "text", 10_000..50_000),
        (&["--zl=3"], "text", 10_000..50_000),
        (&["--zc=zlib"], "text", 110_000..160_000),
        (&["--old-compress"], "text", 110_000..160_000),
        (&["-zz"], "text", 110_000..160_000),
        (&["--zc=lz4"], "text", 180_000..300_000),
        (
            &["--zc=lz4", "--skip-compress=gz/t[xyz]t"],
            "a.txt",
            all.clone(),
        ),
        (
            &["-z", "--skip-compress=gz/t[xyz]t"],
            "a.doc",
            10_000..50_000,
        ),
        (&["--zc=zlib", "--zl=0"], "text", all.clone()),
        (&["--zc=none"], "text", all.clone()),
        (&["-z", "--no-z"], "text", all),
    ] {
        for cost in cost_of_text(options, name) {
            assert!(
                expected.contains(&cost),
                "{options:?}: {cost}, not {expected:?}"
            );
        }
    }
}

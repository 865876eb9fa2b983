//! Devices whose content is transferred: read as files (`--copy-devices`), written as files (`--write-devices`).
//!
//! Most cases use devices without content and need only root. Cases with a device that has a length need a loop device;
//! they run only the program under test, because the two twins could not share the device.

use crate::kit::{World, noise, oracle, report_skip, synctest, write_script};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

// ── devices as sources ──────────────────────────────────────────────────────────────────────────
synctest!(copied_device_is_transferred_as_a_file_every_time, as root, |w: World| {
    w.source("f same d/g").dest("null zero=longer same gone");
    w.build("src", |t| {
        t.char_device("null", 1, 3).mode(0o640).owner(7, 8);
        t.char_device("zero", 1, 5).mode(0o600);
        t.char_device("d/null", 1, 3).mode(0o600);
        t.hardlink("d/second", "d/null");
        t.fifo("pipe");
    });
    // A second run within the same second would consider the copies up to date.
    w.once().agree(&["-aiH", "--delete", "--copy-devices"]).exits(0).prints("cS+++++++++ pipe");
});

synctest!(copied_device_is_compared_like_a_file, as root, |w: World| {
    w.source("f").build("src", |t| {
        t.char_device("null", 1, 3);
        t.char_device("zero", 1, 5);
        t.symlink("link", "null");
    });
    w.dest("null zero=longer link");
    w.agree(&["-riL", "--copy-devices", "--size-only"]).exits(0).prints(">f.sT...... zero");
    w.dest("null= zero=longer").once().agree(&["-rtic", "--copy-devices", "--existing"]).exits(0).prints(">fcst...... zero");
    w.agree_paths(&["-i", "-I", "--copy-devices"], &["src/null", "dst/new"]).exits(0);
});

synctest!(device_that_cannot_be_opened_exits_23, as root, |w: World| {
    w.source("f").dest("gone").build("src", |t| drop(t.char_device("none", 4000, 1)));
    let agreed = w.stderr_unordered().once().no_dry_run().agree(&["-ai", "--delete-after", "--copy-devices"]);
    agreed.exits(23).warns("No such device or address (6)");
});

synctest!(remove_source_files_keeps_devices, as root, |w: World| {
    w.source("f").dest("").build("src", |t| drop(t.char_device("null", 1, 3)));
    let agreed = w.stderr_unordered().once().no_dry_run().agree(&["-ai", "--remove-source-files", "--copy-devices"]);
    agreed.exits(23).warns("Skipping sender remove for changed file: null");
});

synctest!(fake_super_device_is_copied_as_a_file, as root, |w: World| {
    w.needs_xattrs().source("f").dest("");
    w.build("src", |t| drop(t.file("fake", "content").xattr("user.rsync.%stat", "20644 1,3 0:0")));
    w.once().agree(&["-ai", "--fake-super", "--copy-devices"]).exits(0).prints(">f+++++++++ fake");
});

// ── devices as destinations ─────────────────────────────────────────────────────────────────────

/// Files for which the destination has devices that accept any data.
fn over_devices(w: &World) {
    w.source("a=content%640 b=content@9 d/c=content new same")
        .dest("same");
    w.build("dst", |t| {
        t.char_device("a", 1, 3).mode(0o666).owner(7, 8);
        t.char_device("b", 1, 5);
        t.char_device("d/c", 1, 3);
    });
}

macro_rules! written {
    ($name:ident, [$($option:expr),+ $(,)?]) => {
        synctest!($name, as root, |w: World| {
            over_devices(&w);
            w.agree(&[$($option),+, "--write-devices"]).exits(0);
        });
    };
}

written!(content_is_written_to_devices, ["-ai"]);
written!(
    content_is_written_to_devices_without_times,
    ["-rci", "--stats"]
);
written!(deltas_are_written_to_devices, ["-aic", "--no-whole-file"]);
written!(content_is_appended_to_devices, ["-ai", "--append-verify"]);
written!(ignore_existing_skips_devices, ["-ai", "--ignore-existing"]);

synctest!(device_content_is_backed_up_as_a_file, as root, |w: World| {
    w.not_with_stock("rsync fails to truncate the device").not_served_pull("rsync fails to truncate the device");
    w.source("a=content%640").build("dst", |t| drop(t.char_device("a", 1, 5).mode(0o604)));
    // Not compared: rsync would back up an endless device until the disk is full, and fails to truncate the device.
    w.alone(&["-aib", "--write-devices"]).exits(0).prints(">f.s.p..... a");
    let kept = std::fs::symlink_metadata(w.tested().join("dst/a~")).unwrap();
    assert!(kept.is_file() && kept.len() == 0);
});

synctest!(update_option_does_not_skip_devices, as root, |w: World| {
    w.source("a=content@-100").build("dst", |t| drop(t.char_device("a", 1, 3)));
    w.agree(&["-aiu", "--write-devices"]).exits(0).prints(">f.st...... a");
});

synctest!(without_the_option_a_file_replaces_a_device, as root, |w: World| {
    over_devices(&w);
    w.agree(&["-ai", "--inplace", "--write-devices", "--no-write-devices"]).exits(0).prints(">f+++++++++ a");
});

synctest!(device_over_device_is_created_as_a_node, as root, |w: World| {
    for (tree, minor) in [("src", 3), ("dst", 5)] {
        w.build(tree, |t| drop(t.char_device("a", 1, minor)));
    }
    w.agree(&["-ai", "--write-devices"]).exits(0).prints("cDc");
    w.once().agree(&["-ri", "--write-devices", "--copy-devices"]).exits(0).prints(">f..T...... a");
});

synctest!(device_as_the_destination_operand, as root, |w: World| {
    w.source("f=content").build("dst", |t| drop(t.char_device("null", 1, 3)));
    w.agree_paths(&["-ti", "--write-devices"], &["src/f", "dst/null"]).exits(0).prints(">f.s....... f");
});

/// Drops the line that rsync's sender prints if its receiver exits before the sender has finished writing. Whether it
/// appears depends on the timing of the two processes.
fn without_the_pipe(line: &str) -> Option<String> {
    (!line.contains("write error: Broken pipe")).then(|| line.to_owned())
}

synctest!(full_device_exits_11, as root, |w: World| {
    w.source("full=content").build("dst", |t| drop(t.char_device("full", 1, 7)));
    w.stderr_unordered().mask_with(without_the_pipe).once().no_dry_run();
    w.agree(&["-ai", "--write-devices"]).exits(11).warns("No space left on device (28)");
});

// ── devices with content ────────────────────────────────────────────────────────────────────────

/// A disk of 1 MiB: a loop device, and a directory with its image and the trees of a test.
struct Disk {
    node: PathBuf,
    dir: tempfile::TempDir,
}

impl Disk {
    /// Attaches a loop device with this content. Returns `None` and reports a skipped test if there is none.
    fn new(test: &str, content: &[u8]) -> Option<Disk> {
        let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
        std::fs::write(dir.path().join("image"), content).unwrap();
        let attach = Command::new("losetup")
            .args(["-f", "--show", "image"])
            .current_dir(dir.path())
            .output();
        let attached = attach.ok().filter(|output| output.status.success());
        let node =
            attached.map(|output| PathBuf::from(String::from_utf8(output.stdout).unwrap().trim()));
        match node.filter(|node| {
            std::fs::symlink_metadata(node).is_ok_and(|found| found.file_type().is_block_device())
        }) {
            Some(node) => Some(Disk { node, dir }),
            None => {
                report_skip(test, "no loop devices are available");
                None
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Creates another node for the device, at a path below the directory.
    fn node(&self, name: &str) {
        let copied = Command::new("cp")
            .arg("-a")
            .arg(&self.node)
            .arg(self.path(name))
            .status();
        assert!(copied.expect("coreutils are installed").success());
    }

    fn content(&self) -> Vec<u8> {
        std::fs::read(&self.node).expect("an attached device can be read")
    }

    /// Runs the program in the directory of the image.
    fn run(&self, words: &[&str]) -> Output {
        let shell = self.path("shell");
        if !shell.exists() {
            write_script(&shell, "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
        }
        let program = oracle::under_test().display();
        let far = ["-e./shell".to_owned(), format!("--rsync-path={program}")];
        let mut command = Command::new(oracle::under_test());
        command
            .args(far)
            .args(words)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .env("LC_ALL", "C");
        command.output().expect("a program can be started")
    }

    /// Runs the program, which must succeed without errors, and returns its standard output.
    #[track_caller]
    fn output_of(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{words:?}: {output:?}"
        );
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.node).status();
    }
}

const DISK_BYTES: usize = 1 << 20;

#[test]
fn disk_content_is_copied_over_every_route() {
    let content = noise(1, DISK_BYTES);
    let Some(disk) = Disk::new("disk_content_is_copied_over_every_route", &content) else {
        return;
    };
    std::fs::create_dir(disk.path("src")).unwrap();
    disk.node("src/disk");
    for (from, to) in [
        ("src/", "local/"),
        ("src/", "far:PWD/push/"),
        ("far:PWD/src/", "pull/"),
    ] {
        let top = disk.dir.path().to_str().unwrap();
        let [from, to] = [from, to].map(|path| path.replace("PWD", top));
        let printed = disk.output_of(&["-rti", "--mkpath", "--copy-devices", &from, &to]);
        assert!(printed.contains("f+++++++++ disk"), "{printed}");
        let copy = Path::new(to.trim_start_matches("far:")).join("disk");
        assert!(
            std::fs::read(disk.path("").join(copy)).unwrap() == content,
            "{to}"
        );
        // The copy is identical byte for byte.
        assert_eq!(
            disk.output_of(&["-ric", "--copy-devices", &from, &to]),
            "",
            "{to}"
        );
    }
    assert!(
        disk.output_of(&["-r", "--copy-devices", "src/"])
            .contains("1,048,576")
    );
    let printed = disk.output_of(&[
        "-rtI",
        "--no-W",
        "--inplace",
        "--stats",
        "--copy-devices",
        "src/",
        "local/",
    ]);
    assert!(
        printed.contains("Matched data: 1,048,576 bytes"),
        "{printed}"
    );
}

#[test]
fn files_are_written_to_a_disk_over_every_route() {
    let Some(disk) = Disk::new(
        "files_are_written_to_a_disk_over_every_route",
        &noise(1, DISK_BYTES),
    ) else {
        return;
    };
    let top = disk.dir.path().to_str().unwrap();
    for dir in ["src", "dst"] {
        std::fs::create_dir(disk.path(dir)).unwrap();
    }
    disk.node("dst/disk");
    let ways = [
        ("src/disk", "dst/disk"),
        ("src/", "far:PWD/dst/"),
        ("far:PWD/src/", "dst/"),
    ];
    for (seed, (from, to)) in (2..).zip(ways) {
        let [from, to] = [from, to].map(|path| path.replace("PWD", top));
        // First the whole device, then a shorter file of which only a little is new.
        let mut content = noise(seed, DISK_BYTES);
        std::fs::write(disk.path("src/disk"), &content).unwrap();
        let printed = disk.output_of(&["-ri", "-I", "-W", "-S", "--write-devices", &from, &to]);
        assert!(printed.contains("f..T...... disk"), "{printed}");
        assert!(disk.content() == content, "{to}");
        content[300_000] ^= 1;
        std::fs::write(disk.path("src/disk"), &content[..DISK_BYTES / 2]).unwrap();
        let printed = disk.output_of(&["-rbi", "--no-W", "--stats", "--write-devices", &from, &to]);
        assert!(
            printed.contains("f.sT...... disk")
                && printed.contains("Total transferred file size: 524,288"),
            "{printed}"
        );
        let literal = printed
            .lines()
            .find_map(|line| line.strip_prefix("Literal data: "))
            .unwrap();
        let literal: usize = literal
            .trim_end_matches(" bytes")
            .replace(',', "")
            .parse()
            .unwrap();
        assert!((1..10_000).contains(&literal), "{printed}");
        assert!(
            disk.content() == content,
            "{to}: data after the file is kept"
        );
        content[300_000] ^= 1;
        assert!(
            std::fs::read(disk.path("dst/disk~")).unwrap() == content,
            "{to}: the backup"
        );
        std::fs::remove_file(disk.path("dst/disk~")).unwrap();
        // Nothing differs, so nothing is written. Then only the content differs, and `--checksum` finds that.
        std::fs::write(disk.path("src/disk"), noise(seed, DISK_BYTES)).unwrap();
        disk.output_of(&["-rt", "-I", "--write-devices", &from, &to]);
        assert_eq!(
            disk.output_of(&["-rti", "--write-devices", &from, &to]),
            "",
            "{to}"
        );
        assert_eq!(
            disk.output_of(&["-rtic", "--write-devices", &from, &to]),
            "",
            "{to}"
        );
        std::fs::write(disk.path("src/disk"), &content).unwrap();
        content[0] ^= 1;
        std::fs::write(disk.path("src/disk"), &content).unwrap();
        assert!(
            disk.output_of(&["-ric", "--write-devices", &from, &to])
                .contains("fc.T...... disk"),
            "{to}"
        );
        assert!(disk.content() == content, "{to}");
    }
    assert!(
        std::fs::symlink_metadata(disk.path("dst/disk"))
            .unwrap()
            .file_type()
            .is_block_device()
    );
    // More than the device can hold.
    std::fs::write(disk.path("src/disk"), noise(9, DISK_BYTES + 1)).unwrap();
    let output = disk.run(&["-r", "--write-devices", "src/", "dst/"]);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(11) && printed.contains("No space left on device (28)"),
        "{printed}"
    );
}

// ── devices that an ordinary user cannot make ───────────────────────────────────────────────────
synctest!(devices_that_are_left_out_are_reported_by_each_run, as user, |w: World| {
    w.source("f d/g").dest("f d/g");
    for name in ["src", "dst"] {
        w.build(name, |t| {
            t.char_device("null", 1, 3);
            t.char_device("d/zero", 1, 5);
        });
    }
    for _ in 0..2 {
        w.agree(&["-ai"]).exits(0).prints("skipping non-regular file \"d/zero\"");
    }
});

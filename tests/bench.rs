//! `sparsync bench`: its rows, and that nothing remains of its copies.

use crate::json::check_line;
use crate::kit::Scene;
use crate::kit::{oracle, report_skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::BufRead as _;
use std::process::{Command, Stdio};

/// Runs bench and returns its rows, which the schema allows.
#[track_caller]
fn rows(scene: &Scene, words: &str) -> Vec<Value> {
    let output = scene
        .command("client", &format!("bench {words} --json --repeat=2"))
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    rows.iter().for_each(check_line);
    rows
}

#[test]
fn scan_measures_one_worker_and_the_default() {
    let scene = Scene::new();
    let rows = rows(&scene, "scan in");
    let workers: Vec<_> = rows
        .iter()
        .map(|row| row["workers"].as_u64().unwrap())
        .collect();
    assert!(
        workers.len() == 2 && workers[0] == 1 && workers[1] >= 1,
        "{workers:?}"
    );
    for row in rows {
        // The directory and the file.
        assert_eq!(
            (
                row["entries"].as_u64(),
                row["bytes"].as_u64(),
                row["runs"].as_u64()
            ),
            (Some(2), Some(0), Some(2))
        );
        assert!(
            row["least_secs"].as_f64() <= row["median_secs"].as_f64(),
            "{row}"
        );
    }
    let output = scene
        .command("client", "bench scan in --repeat=1")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("cache  workers") && text.contains("\nwarm, 1 worker: "),
        "{text}"
    );
}

#[test]
fn hash_reads_all_files_by_each_algorithm_and_number_of_workers() {
    let scene = Scene::new();
    let len = std::fs::metadata(scene.path("in/f")).unwrap().len();
    let rows = rows(&scene, "hash in --algorithm=xxh3,sha256 --workers=1,2");
    let settings: Vec<_> = rows
        .iter()
        .map(|row| (row["algorithm"].as_str(), row["workers"].as_u64()))
        .collect();
    let of = |name| [(Some(name), Some(1)), (Some(name), Some(2))];
    assert_eq!(settings, [of("xxh3"), of("sha256")].concat());
    for row in rows {
        assert_eq!(row["entries"], 1, "{row}");
        assert_eq!(row["bytes"].as_u64(), Some(len), "{row}");
    }
    let output = scene
        .command("client", "bench hash in --repeat=1 --workers=1")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("hash    cache  workers"), "{text}");
    assert!(text.contains("\nsha1, warm, 1 worker: "), "{text}");
}

#[test]
fn hash_of_a_tree_that_cannot_be_read_is_an_error() {
    let scene = Scene::new();
    let output = scene
        .command("client", "bench hash absent")
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(11) && errors.starts_with("sparsync: cannot "),
        "{errors}"
    );
}

#[test]
fn chart_has_a_bar_for_each_row() {
    let scene = Scene::new();
    let rows = rows(&scene, "scan in --svg=chart.svg").len();
    let chart = std::fs::read_to_string(scene.path("chart.svg")).unwrap();
    assert!(
        chart.starts_with("<svg ") && chart.matches("<rect ").count() == rows,
        "{chart}"
    );
    let output = scene
        .command(
            "client",
            "bench sync in new --repeat=1 --svg=none/chart.svg",
        )
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        errors,
        "sparsync: cannot write the chart to none/chart.svg: No such file or directory (2)\n"
    );
    assert!(
        output.status.code() == Some(11) && !scene.path("new").exists(),
        "the copies are removed"
    );
}

#[test]
fn impossible_cold_runs_have_a_next_step() {
    let scene = Scene::new();
    // Without the superuser's rights, the caches cannot be dropped. Root in a container often lacks them too.
    let is_possible = std::fs::OpenOptions::new()
        .write(true)
        .open("/proc/sys/vm/drop_caches")
        .is_ok();
    let output = scene
        .command("client", "bench scan in --cold --repeat=1 --json")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    lines.iter().for_each(check_line);
    let cold = lines.iter().filter(|line| line["cache"] == "cold").count();
    let note = lines
        .iter()
        .find(|line| line["type"] == "note")
        .map(|line| line["text"].as_str().unwrap().to_owned());
    assert_eq!(note.is_none(), is_possible, "{text}");
    match note {
        None => assert_eq!(cold, 2, "{text}"),
        Some(note) => {
            let start = "no cold runs: cannot write /proc/sys/vm/drop_caches: ";
            let next = if rustix::process::geteuid().is_root() {
                "run this on the host"
            } else {
                "run this as root"
            };
            assert!(
                cold == 0 && note.starts_with(start) && note.ends_with(next),
                "{note}"
            );
        }
    }
}

#[test]
fn sync_copies_everything_each_time_and_removes_it() {
    let scene = Scene::new();
    let len = std::fs::metadata(scene.path("in/f")).unwrap().len();
    for (dest, existed) in [("new", false), ("empty", true)] {
        if existed {
            std::fs::create_dir(scene.path(dest)).unwrap();
        }
        for row in rows(&scene, &format!("sync in {dest}")) {
            assert_eq!(
                (row["entries"].as_u64(), row["bytes"].as_u64()),
                (Some(2), Some(len)),
                "{row}"
            );
        }
        assert_eq!(scene.path(dest).exists(), existed, "{dest}");
    }
    assert_eq!(std::fs::read_dir(scene.path("empty")).unwrap().count(), 0);
}

#[test]
fn sync_refuses_a_destination_that_is_in_use() {
    let scene = Scene::new();
    for dest in ["out", "in", "in/below"] {
        let output = scene
            .command("client", &format!("bench sync in {dest}"))
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            errors.starts_with("sparsync: cannot use ") && output.status.code() == Some(1),
            "{dest}: {errors}"
        );
    }
    assert!(!scene.path("in/below").exists());
    assert_eq!(
        std::fs::read_dir(scene.path("out")).unwrap().count(),
        1,
        "its file is still there"
    );
}

#[test]
fn shapes_are_created_measured_and_removed() {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("empty")).unwrap();
    for (words, dir) in [
        ("sync --shape=deep", "new"),
        ("scan --shape=deep,deep", "empty"),
    ] {
        let rows = rows(&scene, &format!("{words} --workers=1,3 {dir}"));
        let workers: Vec<_> = rows
            .iter()
            .map(|row| row["workers"].as_u64().unwrap())
            .collect();
        assert_eq!(
            workers,
            if dir == "new" {
                &[1, 3][..]
            } else {
                &[1, 3, 1, 3]
            }
        );
        for row in rows {
            // The files, their directories, and the root.
            let bytes = if dir == "new" { 2_000 << 10 } else { 0 };
            assert_eq!(
                (row["entries"].as_u64(), row["bytes"].as_u64()),
                (Some(3_001), Some(bytes)),
                "{row}"
            );
            assert_eq!(row["shape"], "deep", "{row}");
        }
    }
    assert!(!scene.path("new").exists());
    assert_eq!(std::fs::read_dir(scene.path("empty")).unwrap().count(), 0);

    let mut command = scene.command(
        "client",
        "bench scan --shape=deep --repeat=1 --svg=chart.svg",
    );
    let output = command.env("TMPDIR", scene.path("empty")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("shape  cache  workers") && text.contains("\ndeep   warm         1 "),
        "{text}"
    );
    assert!(text.contains("\ndeep, warm, 1 worker: "), "{text}");
    assert!(
        std::fs::read_to_string(scene.path("chart.svg"))
            .unwrap()
            .contains(">deep, warm, workers: 1<")
    );
    assert_eq!(
        std::fs::read_dir(scene.path("empty")).unwrap().count(),
        0,
        "a temporary directory remains"
    );
}

#[test]
fn shape_needs_space() {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("small")).unwrap();
    let bench = |options: &str, shape: &str| {
        let program = oracle::under_test().display();
        let script = format!(
            "mount -t tmpfs -o {options} none small && exec {program} bench scan --shape={shape} small"
        );
        Command::new("unshare")
            .args(["-rm", "sh", "-c", &script])
            .current_dir(scene.path(""))
            .output()
    };
    for (options, shape, why) in [
        ("size=1m", "large", "257 MiB are needed, 1 MiB are free"),
        ("nr_inodes=9", "deep", "3000 inodes are needed, 5 are free"),
    ] {
        let Ok(output) = bench(options, shape) else {
            return report_skip("bench", "unshare is missing");
        };
        let errors = String::from_utf8(output.stderr).unwrap();
        if errors.starts_with("unshare:") || errors.starts_with("mount:") {
            return report_skip("bench", "no file system can be mounted here");
        }
        let expected = format!("sparsync: cannot create the tree `{shape}` in small: {why}\n");
        let hint = "hint: name a directory with more space, or another shape\n";
        assert_eq!((errors, output.status.code()), (expected + hint, Some(11)));
    }
}

#[test]
fn interrupted_measurement_removes_its_trees() {
    let scene = Scene::new();
    let words =
        "bench sync --shape=deep --repeat=1 --json --workers=1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1 new";
    let mut command = Command::new(oracle::under_test());
    command
        .args(words.split(' '))
        .current_dir(scene.path(""))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().is_some_and(|line| line.is_ok()), "no row");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    lines.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(20));
    assert!(!scene.path("new").exists());
}

//! `sparsync bench`: its rows, and that nothing remains of its copies.

use crate::json::check_line;
use crate::server::Scene;
use serde_json::Value;

/// Runs bench and returns its rows, which the schema allows.
#[track_caller]
fn rows(scene: &Scene, words: &str) -> Vec<Value> {
    let output = scene.command("client", &format!("bench {words} --json --repeat=2")).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    rows.iter().for_each(check_line);
    rows
}

#[test]
fn scan_measures_one_worker_and_the_default() {
    let scene = Scene::new();
    let rows = rows(&scene, "scan in");
    let workers: Vec<_> = rows.iter().map(|row| row["workers"].as_u64().unwrap()).collect();
    assert!(workers.len() == 2 && workers[0] == 1 && workers[1] >= 1, "{workers:?}");
    for row in rows {
        // The directory and the file.
        assert_eq!((row["entries"].as_u64(), row["bytes"].as_u64(), row["runs"].as_u64()), (Some(2), Some(0), Some(2)));
        assert!(row["least_secs"].as_f64() <= row["median_secs"].as_f64(), "{row}");
    }
    let output = scene.command("client", "bench scan in --repeat=1").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("cache  workers") && text.contains("\nwarm, 1 worker: "), "{text}");
}

#[test]
fn chart_has_a_bar_for_each_row() {
    let scene = Scene::new();
    let rows = rows(&scene, "scan in --svg=chart.svg").len();
    let chart = std::fs::read_to_string(scene.path("chart.svg")).unwrap();
    assert!(chart.starts_with("<svg ") && chart.matches("<rect ").count() == rows, "{chart}");
    let output = scene.command("client", "bench sync in new --repeat=1 --svg=none/chart.svg").output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors, "sparsync: cannot write the chart to none/chart.svg: No such file or directory (2)\n");
    assert!(output.status.code() == Some(11) && !scene.path("new").exists(), "the copies are removed");
}

#[test]
fn impossible_cold_runs_have_a_next_step() {
    let scene = Scene::new();
    // Without the superuser's rights, the caches cannot be dropped. Root in a container often lacks them too.
    let output = scene.command("client", "bench scan in --cold --repeat=1 --json").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    lines.iter().for_each(check_line);
    let cold = lines.iter().filter(|line| line["cache"] == "cold").count();
    let note = lines.iter().find(|line| line["type"] == "note").map(|line| line["text"].as_str().unwrap().to_owned());
    match note {
        None => assert_eq!(cold, 2, "{text}"),
        Some(note) => {
            let start = "no cold runs: cannot write /proc/sys/vm/drop_caches: ";
            let next = if rustix::process::geteuid().is_root() { "run this on the host" } else { "run this as root" };
            assert!(cold == 0 && note.starts_with(start) && note.ends_with(next), "{note}");
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
            assert_eq!((row["entries"].as_u64(), row["bytes"].as_u64()), (Some(2), Some(len)), "{row}");
        }
        assert_eq!(scene.path(dest).exists(), existed, "{dest}");
    }
    assert_eq!(std::fs::read_dir(scene.path("empty")).unwrap().count(), 0);
}

#[test]
fn sync_refuses_a_destination_that_is_in_use() {
    let scene = Scene::new();
    for dest in ["out", "in", "in/below"] {
        let output = scene.command("client", &format!("bench sync in {dest}")).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.starts_with("sparsync: cannot use ") && output.status.code() == Some(1), "{dest}: {errors}");
    }
    assert!(!scene.path("in/below").exists());
    assert_eq!(std::fs::read_dir(scene.path("out")).unwrap().count(), 1, "its file is still there");
}

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

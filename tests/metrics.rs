//! `server metrics` and `--metrics-file`: the text has the format of OpenMetrics, and the numbers are right.

use crate::kit::{Scene, assert_output, oracle};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

/// Parses the text format of OpenMetrics strictly, as far as sparsync uses it: families of one sample, each with a type, a
/// help text and at most one label. Returns the values by the name of the sample.
#[track_caller]
fn parse(text: &str) -> BTreeMap<String, f64> {
    let is_name = |name: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        !name.is_empty()
            && name.chars().all(is_part)
            && !name.starts_with(|c: char| c.is_ascii_digit())
    };
    let body = text
        .strip_suffix("# EOF\n")
        .expect("the text ends with # EOF");
    let mut lines = body.lines();
    let mut values = BTreeMap::new();
    while let Some(line) = lines.next() {
        let (name, kind) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
            .expect(line);
        assert!(
            is_name(name) && name.starts_with("sparsync_") && ["gauge", "counter"].contains(&kind),
            "{line}"
        );
        let help = lines
            .next()
            .and_then(|line| line.strip_prefix("# HELP "))
            .expect(name);
        let (of, help) = help.split_once(' ').expect(name);
        assert!(
            of == name && !help.is_empty() && !help.contains('\\'),
            "{help}"
        );
        let sample = lines.next().expect(name);
        let (sample, value) = sample.rsplit_once(' ').expect(sample);
        let (sample, label) = sample
            .split_once('{')
            .map_or((sample, None), |(name, label)| (name, Some(label)));
        if let Some(label) = label {
            let (key, text) = label
                .strip_suffix("\"}")
                .and_then(|label| label.split_once("=\""))
                .expect(label);
            assert!(is_name(key) && !text.contains(['"', '\\']), "{label}");
        }
        let suffix = if kind == "counter" { "_total" } else { "" };
        assert_eq!(sample, format!("{name}{suffix}"));
        assert!(kind == "counter" || !name.ends_with("_total"), "{name}");
        let value: f64 = value.parse().expect(value);
        assert!(value.is_finite() && value >= 0.0, "{sample} {value}");
        assert!(
            values.insert(sample.to_owned(), value).is_none(),
            "{sample} occurs twice"
        );
    }
    values
}

#[track_caller]
fn server_metrics(scene: &Scene, code: i32) -> BTreeMap<String, f64> {
    let output = scene
        .command("server", "server metrics")
        .output()
        .expect("a program can be started");
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    parse(&String::from_utf8(output.stdout).expect("metrics are text"))
}

#[test]
fn server_counts_sessions_and_bytes() {
    let scene = Scene::new();
    assert_eq!(
        server_metrics(&scene, 3),
        BTreeMap::from([("sparsync_server_up".to_owned(), 0.0)])
    );
    scene.enroll("--root=TOP/in");
    let before = server_metrics(&scene, 0);
    assert_eq!(
        (
            before["sparsync_server_up"],
            before["sparsync_server_sessions_total"]
        ),
        (1.0, 0.0)
    );
    let output = scene
        .command("client", "-a --transport=tls src/ host:TOP/in/")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    // The session ends a moment after its client.
    crate::kit::until(|| server_metrics(&scene, 0)["sparsync_server_sessions_running"] == 0.0);
    let after = server_metrics(&scene, 0);
    for counter in [
        "sessions",
        "received_bytes",
        "sent_bytes",
        "session_seconds",
    ] {
        let name = format!("sparsync_server_{counter}_total");
        assert!(after[&name] > before[&name], "{name}: {before:?} {after:?}");
    }
    assert_eq!(
        after["sparsync_server_errors_total"],
        0.0,
        "{}",
        scene.status("errors")
    );
    for gauge in [
        "uptime_seconds",
        "draining",
        "memory_bytes",
        "memory_limit_bytes",
        "build_info",
    ] {
        assert!(
            after.contains_key(&format!("sparsync_server_{gauge}")),
            "{gauge}"
        );
    }
}

fn copy(scene: &Scene, line: &str) -> Output {
    scene
        .command("client", line)
        .output()
        .expect("a program can be started")
}

/// Returns the metrics that the last run wrote.
#[track_caller]
fn written(scene: &Scene, name: &str) -> BTreeMap<String, f64> {
    parse(&std::fs::read_to_string(scene.path(name)).expect("the run wrote it"))
}

#[test]
fn run_writes_its_metrics() {
    let scene = Scene::new();
    let output = copy(&scene, "-a --metrics-file=m.prom src/ got/");
    assert!(
        output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(),
        "{output:?}"
    );
    let metrics = written(&scene, "m.prom");
    let value = |name: &str| metrics[&format!("sparsync_run_{name}")];
    let len = "what src/new holds\n".len() as f64;
    assert_eq!(
        (
            value("exit_code"),
            value("errors"),
            value("transferred_files")
        ),
        (0.0, 0.0, 1.0)
    );
    assert_eq!(
        (
            value("transferred_bytes"),
            value("literal_bytes"),
            value("listed_bytes")
        ),
        (len, len, len)
    );
    // The directory and the file.
    assert_eq!(
        (value("listed_entries"), value("created_entries")),
        (2.0, 2.0)
    );
    assert!(value("end_timestamp_seconds") > 1e9 && value("duration_seconds") > 0.0);
    let mode = std::fs::metadata(scene.path("m.prom"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(
        mode & 0o133,
        0,
        "other users may read it, no one may execute it"
    );

    // A failed run replaces the file, and so does one that fails before it begins.
    assert_eq!(
        copy(&scene, "-a --metrics-file=m.prom src/ absent got/")
            .status
            .code(),
        Some(23)
    );
    let metrics = written(&scene, "m.prom");
    assert_eq!(
        (
            metrics["sparsync_run_exit_code"],
            metrics["sparsync_run_errors"]
        ),
        (23.0, 1.0)
    );
    assert_eq!(
        copy(
            &scene,
            "-a --metrics-file=m.prom -e TOP/missing src/ host:got/"
        )
        .status
        .code(),
        Some(14)
    );
    let metrics = written(&scene, "m.prom");
    assert_eq!(metrics["sparsync_run_exit_code"], 14.0);
    assert!(
        !metrics.contains_key("sparsync_run_errors"),
        "nothing was counted"
    );
    let names = std::fs::read_dir(scene.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert!(
        !names
            .map(|name| name.into_string().unwrap())
            .any(|name| name.starts_with(".m")),
        "no temporary file"
    );
}

/// Every name that a file can have: the temporary name is cut.
#[test]
fn metrics_file_of_any_name() {
    let scene = Scene::new();
    scene.tree("src").text("a");
    scene.file(".f.new", "of the user");
    let longest = [b'n'; 255];
    for name in [&b"f"[..], b"not \xff utf-8", &longest] {
        let name = OsStr::from_bytes(name);
        let option = [OsStr::new("--metrics-file="), name].join(OsStr::new(""));
        let output = scene
            .command("client", "-a src/ got/")
            .arg(option)
            .output()
            .expect("the program can be started");
        assert_output(&output, 0, &[]);
        assert!(scene.path("").join(name).exists(), "{name:?}");
    }
    assert!(scene.path(".f.new").exists());
}

/// As root, `--metrics-file=/dev/null` must not replace the device.
#[test]
fn what_is_no_regular_file_is_written_to() {
    let scene = Scene::new();
    scene.sh("mkfifo fifo; ln -s fifo to-fifo; echo older, longer than the metrics >file; ln -s file to-file");
    for name in ["fifo", "to-fifo"] {
        // Opened for both, so that neither end waits for the other.
        let mut fifo = std::fs::File::options()
            .read(true)
            .write(true)
            .open(scene.path("fifo"))
            .unwrap();
        let output = copy(&scene, &format!("-a --metrics-file={name} src/ got/"));
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        let mut text = [0; 64 * 1024];
        assert!(
            scene.sh("[ -p fifo ] && [ -L to-fifo ] && echo stay") == "stay\n",
            "{name} was replaced"
        );
        let len = fifo.read(&mut text).unwrap();
        assert!(text[..len].ends_with(b"# EOF\n"), "{name}");
    }
    // As with any file that cannot be written, the exit code is that of the copy. Another FIFO: programs that other tests
    // start may have this one open for a moment.
    scene.sh("mkfifo unread");
    let output = copy(&scene, "-a --metrics-file=unread src/ got/");
    let message = "sparsync: cannot write the metrics to unread: no program reads this FIFO\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), message);
    assert!(output.status.success());
    for _ in 0..2 {
        let output = copy(&scene, "-a --metrics-file=to-file src/ got/");
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        assert!(scene.path("to-file").is_symlink());
        written(&scene, "file");
    }
    // What the run prints comes first.
    scene.sh("ln -s /proc/self/fd/1 stdout");
    let output = copy(
        &scene,
        "-a --out-format=item-%n --metrics-file=stdout src/ new/",
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("item-new\n")
            && text.ends_with("# EOF\n")
            && scene.path("stdout").is_symlink(),
        "{text}"
    );
}

#[test]
fn remote_run_writes_the_traffic() {
    let scene = Scene::new();
    scene.enroll("--root=TOP/in");
    let output = copy(
        &scene,
        "-a --transport=quic --metrics-file=m src/ host:TOP/in/",
    );
    assert!(output.status.success(), "{output:?}");
    let metrics = written(&scene, "m");
    assert!(
        metrics["sparsync_run_sent_bytes"] > 0.0 && metrics["sparsync_run_received_bytes"] > 0.0,
        "{metrics:?}"
    );
    assert_eq!(metrics["sparsync_run_transferred_files"], 1.0);
}

#[test]
fn unwritable_metrics_file_does_not_change_the_exit_code() {
    let scene = Scene::new();
    for (sources, code) in [("src/", 0), ("src/ absent", 23)] {
        let output = copy(&scene, &format!("-a --metrics-file=none/m {sources} got/"));
        let log = std::process::Command::new(oracle::rsync())
            .args(["-a", "--log-file=none/l"])
            .args(sources.split(' '))
            .arg("theirs/")
            .current_dir(scene.path(""))
            .output()
            .unwrap();
        assert_eq!(
            (output.status.code(), log.status.code()),
            (Some(code), Some(code)),
            "{output:?} {log:?}"
        );
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            errors.contains(
                "sparsync: cannot write the metrics to none/m: No such file or directory (2)\n"
            ),
            "{errors}"
        );
    }
}

//! `--json`: every line is an object of docs/json-schema.json, and agrees with what rsync prints.

use crate::enroll::{enroll, shell_to_server};
use crate::kit::{Scene, World, oracle, synctest, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A source and a destination in a directory of their own.
fn trees() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    let write = |name: &[u8], text: &str| {
        let path = dir.path().join(OsStr::from_bytes(name));
        std::fs::create_dir_all(path.parent().expect("it has a parent"))
            .expect("scratch can be written");
        std::fs::write(path, text).expect("scratch can be written");
    };
    write(b"src/new", "new");
    write(b"src/sub/\xff\"x", "odd name");
    write(b"src/changed", "longer than before");
    write(b"dst/changed", "before");
    write(b"dst/extra", "extra");
    std::os::unix::fs::symlink("new", dir.path().join("src/link"))
        .expect("scratch supports symlinks");
    dir
}

fn run(program: &Path, dir: &Path, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .current_dir(dir)
        .output()
        .expect("the program can be started")
}

/// Runs sparsync with `--json` and returns its exit code and its lines, each of which the schema allows.
#[track_caller]
fn lines(dir: &Path, args: &[&str]) -> (Option<i32>, Vec<Value>) {
    let output = run(oracle::under_test(), dir, &[&["--json"], args].concat());
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    lines.iter().for_each(check_line);
    let code = lines.last().map(|line| line["exit_code"].as_i64());
    assert_eq!(code, Some(output.status.code().map(i64::from)), "{text}");
    (output.status.code(), lines)
}

/// Checks a line against docs/json-schema.json.
#[track_caller]
pub fn check_line(line: &Value) {
    let schema: Value =
        serde_json::from_str(include_str!("../docs/json-schema.json")).expect("the schema is JSON");
    let name = line["type"].as_str().expect("each line has a type");
    check(&schema, &schema["$defs"][name], line);
}

/// Checks a value against the parts of JSON Schema that the schema uses.
#[track_caller]
fn check(schema: &Value, rule: &Value, value: &Value) {
    let rule = match rule["$ref"].as_str() {
        Some(name) => &schema["$defs"][name.strip_prefix("#/$defs/").expect("a local reference")],
        None => rule,
    };
    assert!(rule.is_object(), "no rule for {value}");
    if let Some(allowed) = rule["enum"].as_array() {
        assert!(allowed.contains(value), "{value} is none of {allowed:?}");
        return;
    }
    if rule.get("const").is_some() {
        assert_eq!(&rule["const"], value);
        return;
    }
    if let Some(types) = rule["type"].as_array() {
        let is_one = |kind: &Value| match kind.as_str() {
            Some("null") => value.is_null(),
            Some("string") => value.is_string(),
            Some("integer") => value.is_u64(),
            Some("boolean") => value.is_boolean(),
            other => panic!("the schema has a type {other:?}"),
        };
        assert!(types.iter().any(is_one), "{value}");
        return;
    }
    match rule["type"].as_str() {
        Some("string") => assert!(value.is_string(), "{value}"),
        Some("integer") => assert!(value.is_i64() || value.is_u64(), "{value}"),
        Some("number") => assert!(value.is_number(), "{value}"),
        Some("boolean") => assert!(value.is_boolean(), "{value}"),
        Some("array") => {
            value
                .as_array()
                .expect("an array")
                .iter()
                .for_each(|item| check(schema, &rule["items"], item));
        }
        Some("object") => {
            let fields = value.as_object().expect("an object");
            for name in rule["required"].as_array().expect("a list of names") {
                assert!(
                    fields.contains_key(name.as_str().expect("a name")),
                    "{value} lacks {name}"
                );
            }
            for (name, field) in fields {
                let own = Some(&rule["properties"][name]).filter(|own| own.is_object());
                let other = Some(&rule["additionalProperties"]).filter(|other| other.is_object());
                check(
                    schema,
                    own.or(other)
                        .unwrap_or_else(|| panic!("the schema lacks {name}")),
                    field,
                );
            }
        }
        other => panic!("the schema has a type {other:?}"),
    }
}

/// Returns the itemized names of changes and deletions, as `-i` prints them except for the `/` after a directory.
fn itemized(lines: &[Value]) -> Vec<String> {
    let named = lines.iter().filter(|line| line.get("itemize").is_some());
    let text = |line: &Value, key: &str| line[key].as_str().expect("a string").to_owned();
    named
        .map(|line| format!("{} {}", text(line, "itemize"), text(line, "path")))
        .collect()
}

#[test]
fn changes_and_deletions_are_those_that_rsync_itemizes() {
    for args in [
        &["-a", "--delete"][..],
        &["-an", "--delete"],
        &["-aii", "--delete", "--size-only"],
    ] {
        let (ours, theirs) = (trees(), trees());
        let (code, lines) = lines(ours.path(), &[args, &["src/", "dst"]].concat());
        let rsync = run(
            oracle::rsync(),
            theirs.path(),
            &[args, &["-i", "-8", "src/", "dst"]].concat(),
        );
        assert_eq!((code, rsync.status.code()), (Some(0), Some(0)));
        let printed = String::from_utf8_lossy(&rsync.stdout)
            .replace(" -> new", "")
            .replace("/\n", "\n")
            .replace("./", ".");
        assert_eq!(
            itemized(&lines),
            printed.lines().collect::<Vec<_>>(),
            "{args:?}"
        );
        let types: Vec<&str> = lines
            .iter()
            .rev()
            .take(2)
            .filter_map(|line| line["type"].as_str())
            .collect();
        assert_eq!(types, ["end", "summary"]);
    }
}

/// Returns the value that a command prints, which the schema describes as `name`.
#[track_caller]
pub fn object(name: &str, output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text} {output:?}"));
    let schema: Value =
        serde_json::from_str(include_str!("../docs/json-schema.json")).expect("the schema is JSON");
    check(&schema, &schema["$defs"][name], &value);
    value
}

#[test]
fn enroll_and_status_print_what_the_schema_describes() {
    let scene = Scene::new();
    shell_to_server(&scene, "");
    let down = scene.at("server", "status --json");
    assert_eq!(object("status", &down)["running"], false);
    let enrolled = object("enroll", &enroll(&scene, "localhost --json --no-start"));
    assert_eq!(
        (&enrolled["result"], enrolled.get("transport")),
        (&"server_down".into(), None)
    );
    scene.well("start --port PORT");
    let status = object("status", &scene.at("server", "status --json"));
    let enrolled = object("enroll", &enroll(&scene, "localhost --json"));
    assert_eq!(
        (&enrolled["result"], &enrolled["transport"]),
        (&"enrolled".into(), &"QUIC".into())
    );
    assert_eq!(
        (&enrolled["server_pin"], &enrolled["port"]),
        (&status["pin"], &status["port"])
    );
    let enrolled = object("enroll", &enroll(&scene, "localhost --json --read-only"));
    assert_eq!(enrolled["grant_before"], "reads and writes /");
    assert_eq!(
        object("enroll", &enroll(&scene, "localhost --json"))["result"],
        "unchanged"
    );
    let hosts = object(
        "hosts",
        &scene
            .command("client", "enroll --list --json")
            .output()
            .expect("it starts"),
    );
    assert_eq!(
        (&hosts[0]["pin"], &hosts[0]["port"]),
        (&status["pin"], &status["port"])
    );
}

#[test]
fn lists_of_hosts_and_grants_are_those_of_the_schema() {
    let scene = Scene::new();
    let empty = |name, command: &str| {
        object(
            name,
            &scene
                .command("server", command)
                .output()
                .expect("it starts"),
        )
    };
    assert_eq!(
        empty("hosts", "enroll --list --json"),
        serde_json::json!([])
    );
    assert_eq!(
        empty("grants", "server grants --json"),
        serde_json::json!([])
    );
    let pin = String::from_utf8(scene.at("client", "pin").stdout).expect("a pin is ASCII");
    let grant = |rights: &str| {
        object(
            "granted",
            &scene.at("server", &format!("grant --json {rights} {pin}")),
        )
    };
    let new = grant("--name=laptop --root=TOP/in --read-only");
    assert_eq!(
        (&new["grant"], &new["server"], &new["rights_before"]),
        (&"new".into(), &"down".into(), &Value::Null)
    );
    let changed = grant("--expires=2d --root=/ --read-write");
    assert_eq!(
        (&changed["grant"], &changed["rights_before"]),
        (&"changed".into(), &new["rights"])
    );
    let grants = object("grants", &scene.at("server", "grants --json"));
    assert_eq!(
        (&grants[0]["roots"][0], &grants[0]["name"]),
        (&"/".into(), &"laptop".into())
    );
    // Fields that only some hosts have.
    let host = "[[host]]\nname = \"u@h\"\nssh = \"u@h\"\naddresses = [\"::1\"]\nport = 1\nprogram = \"/x\"\n\
                met = \"2026-01-01T00:00:00Z\"\nlast_route = \"tls\"\nlast_until = \"2026-01-02T00:00:00Z\"\n\
                is_limited = true\n";
    std::fs::write(
        scene.path("server/hosts.toml"),
        format!("{host}pin = \"{}\"\n", pin.trim()),
    )
    .expect("it is ours");
    assert_eq!(
        empty("hosts", "enroll --list --json")[0]["last_route"],
        "tls"
    );
}

#[test]
fn files_that_were_not_sent_tell_where_they_came_from() {
    let dir = trees();
    for name in ["moved", "src/copy", "src/kept", "dst/kept"] {
        let path = dir.path().join(name);
        std::fs::write(&path, if name == "moved" { "moved" } else { "copied" })
            .expect("scratch can be written");
        let file = std::fs::File::options()
            .append(true)
            .open(&path)
            .expect("it was just written");
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(86_400))
            .expect("its time can be set");
    }
    std::fs::copy(dir.path().join("moved"), dir.path().join("src/to"))
        .expect("scratch can be written");
    std::fs::rename(dir.path().join("moved"), dir.path().join("dst/from"))
        .expect("scratch can be written");
    let (code, lines) = lines(
        dir.path(),
        &["-a", "--delete", "--detect-renamed", "src/", "dst"],
    );
    assert_eq!(code, Some(0));
    let mut reused: Vec<_> = lines
        .iter()
        .filter(|line| line["type"] == "reused")
        .map(|line| {
            let [how, path] = ["how", "path"].map(|key| line[key].as_str().unwrap_or_default());
            let from = line["from"]["path"].as_str().unwrap_or_default();
            format!("{how} {from} => {path}, {}", line["size_bytes"])
        })
        .collect();
    reused.sort();
    assert_eq!(reused, ["copied kept => copy, 6", "renamed from => to, 5"]);
    let summary = lines
        .iter()
        .find(|line| line["type"] == "summary")
        .expect("the run ends with one");
    assert_eq!(
        (&summary["reused_files"], &summary["reused_bytes"]),
        (&2.into(), &11.into())
    );
}

#[test]
fn bytes_of_a_name_are_kept() {
    let dir = trees();
    let (_, lines) = lines(dir.path(), &["-r", "src/sub/", "dst"]);
    let odd = lines
        .iter()
        .find(|line| line.get("path_base64").is_some())
        .expect("one name is not UTF-8");
    // The bytes 0xff, `"` and `x`.
    assert_eq!(
        (odd["path"].as_str(), odd["path_base64"].as_str()),
        (Some("\u{fffd}\"x"), Some("/yJ4"))
    );
}

#[test]
fn problem_has_its_path_and_error_number() {
    let dir = trees();
    let (code, lines) = lines(dir.path(), &["-a", "src/new", "absent", "dst"]);
    let problem = lines
        .iter()
        .find(|line| line["type"] == "problem")
        .expect("a source is absent");
    assert_eq!(
        (
            code,
            problem["severity"].as_str(),
            problem["errno"].as_i64()
        ),
        (Some(23), Some("error"), Some(2))
    );
    assert!(
        problem["path"]
            .as_str()
            .is_some_and(|path| path.ends_with("/absent")),
        "{problem}"
    );
    let end = lines.last().expect("there is a last line");
    assert!(
        end["message"]
            .as_str()
            .is_some_and(|message| message.contains("(code 23)")),
        "{end}"
    );
}

#[test]
fn list_only_prints_entries() {
    let dir = trees();
    let (code, lines) = lines(dir.path(), &["-r", "--list-only", "src/"]);
    let entries: Vec<&str> = lines
        .iter()
        .filter(|line| line["type"] == "entry")
        .filter_map(|line| line["path"].as_str())
        .collect();
    assert_eq!(
        (code, entries),
        (
            Some(0),
            vec![".", "changed", "link", "new", "sub", "sub/\u{fffd}\"x"]
        )
    );
}

#[test]
fn progress_names_the_file() {
    let dir = trees();
    let (_, lines) = lines(dir.path(), &["-a", "--progress", "src/", "dst"]);
    let of_new = |line: &&Value| line["type"] == "progress" && line["path"] == "new";
    let last = lines
        .iter()
        .rfind(of_new)
        .expect("a small file has one line at least");
    assert_eq!(
        (last["done_bytes"].as_u64(), last["total_bytes"].as_u64()),
        (Some(3), Some(3))
    );
}

#[test]
fn errors_before_a_run_have_an_end() {
    let dir = trees();
    for (args, code) in [
        (&["--bogus", "src/", "dst"][..], 1),
        (&["-a", "--files-from=absent", "src/", "dst"], 1),
        // rsync ends with 12 instead if it notices the end of the shell first.
        (&["-a", "-e", "/no/such", "src/", "host:dst"], 14),
    ] {
        let (exit, lines) = lines(dir.path(), args);
        assert_eq!(
            (exit, lines[0]["type"].as_str()),
            (Some(code), Some("problem")),
            "{args:?}"
        );
    }
}

#[test]
fn quiet_run_prints_problems_and_the_end() {
    let dir = trees();
    let (_, lines) = lines(dir.path(), &["-aq", "src/new", "absent", "made/"]);
    let types: Vec<&str> = lines
        .iter()
        .filter_map(|line| line["type"].as_str())
        .collect();
    assert_eq!(types, ["problem", "summary", "end"]);
}

#[test]
fn run_for_the_installed_rsync_is_refused() {
    let dir = trees();
    let output = run(
        oracle::under_test(),
        dir.path(),
        &["--json", "-a", "--protocol=26", "src/", "host::module"],
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("sparsync: --protocol=26 is not supported\n"),
        "{errors}"
    );
    assert_eq!(output.status.code(), Some(4));
}

/// Creates an executable script.
fn script(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("scratch can be written");
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("it is ours");
    path.display().to_string()
}

/// Returns the values of a field of the lines of one type.
fn values<'v>(lines: &'v [Value], kind: &str, field: &str) -> Vec<&'v str> {
    let of_kind = lines.iter().filter(|line| line["type"] == kind);
    of_kind.filter_map(|line| line[field].as_str()).collect()
}

#[test]
fn lines_before_a_session_are_notes() {
    let dir = trees();
    let top = dir.path().display();
    let shell = script(dir.path(), "shell", "shift\nexec sh -c \"$*\"");
    let program = format!("--rsync-path={}", oracle::under_test().display());
    let [far_source, far_dest] = ["src/", "pushed/"].map(|path| format!("h:{top}/{path}"));
    let opening = "opening connection using: ";
    let by_shell = ["-rvv", "-e", &shell, &program];
    let stock = ["-rvv", "-e", &shell];
    run(
        oracle::under_test(),
        dir.path(),
        &["-a", "--write-batch=batch", "src/", "written/"],
    );
    let settings = ["-rlvv", "--read-batch=batch"];
    for (args, operands, start) in [
        (&by_shell[..], &["src/", &far_dest][..], opening),
        (&by_shell, &[&far_source, "pulled/"], opening),
        (&by_shell, &[&far_source], opening),
        (&stock, &["src/", &far_dest], opening),
        (&settings, &["read/"], "Setting the "),
    ] {
        let (code, lines) = lines(dir.path(), &[args, operands].concat());
        let notes = values(&lines, "note", "text");
        assert_eq!(code, Some(0), "{args:?} {operands:?}");
        assert!(
            notes.iter().any(|note| note.starts_with(start)),
            "{notes:?}"
        );
    }
}

/// A source with a file that cannot be placed, because a directory that is not empty has its name.
fn trees_with_obstacle() -> tempfile::TempDir {
    let dir = trees();
    std::fs::create_dir_all(dir.path().join("dst/new/below")).expect("scratch can be written");
    dir
}

#[test]
fn changes_are_of_entries_that_are_in_place() {
    let shell_dir = trees();
    let shell = script(shell_dir.path(), "shell", "shift\nexec sh -c \"$*\"");
    let program = format!("--rsync-path={}", oracle::under_test().display());
    for route in ["local", "push", "pull"] {
        let dir = trees_with_obstacle();
        let top = dir.path().display();
        let [source, dest] = ["src/", "dst/"].map(|path| format!("{top}/{path}"));
        let operands = match route {
            "push" => [source, format!("h:{dest}")],
            "pull" => [format!("h:{source}"), dest],
            _ => [source, dest],
        };
        let args = [
            "-rl",
            "--progress",
            "-e",
            &shell,
            &program,
            &operands[0],
            &operands[1],
        ];
        let (code, lines) = lines(dir.path(), &args);
        assert_eq!(code, Some(23), "{route}");
        let changed = values(&lines, "change", "path");
        assert_eq!(
            changed,
            ["changed", "link", "sub", "sub/\u{fffd}\"x"],
            "{route}"
        );
        let shown = values(&lines, "progress", "path");
        assert!(shown.contains(&"changed"), "{route} {shown:?}");
        assert!(!values(&lines, "problem", "message").is_empty(), "{route}");
    }
}

#[test]
fn interrupted_file_is_no_change() {
    let dir = trees();
    std::fs::write(dir.path().join("src/big"), vec![b'x'; 9_000_000])
        .expect("scratch can be written");
    let mut child = Command::new(oracle::under_test())
        .args([
            "--json",
            "-r",
            "--inplace",
            "--bwlimit=500",
            "src/",
            "stopped/",
        ])
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program can be started");
    let begun = dir.path().join("stopped/big");
    until(|| begun.metadata().is_ok_and(|big| big.len() > 0));
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    assert_eq!(child.wait().expect("it was started").code(), Some(20));
    let mut text = String::new();
    let mut stdout = child.stdout.take().expect("it is a pipe");
    stdout.read_to_string(&mut text).expect("JSON is UTF-8");
    assert!(!text.contains("\"path\":\"big\""), "{text}");
    assert!(text.contains("\"exit_code\":20"), "{text}");
}

#[test]
fn digests_that_are_not_kept_are_reported() {
    let dir = trees();
    let shell = script(dir.path(), "shell", "shift\nexec sh -c \"$*\"");
    let far = format!("h:{}/far/", dir.path().display());
    let local = ["src/", "made/"];
    let cases: [(&[&str], [&str; 2], &str); 6] = [
        (&["-a"], local, "without -c, this run compares no contents"),
        (
            &["-a", "--detect-renamed=moved"],
            local,
            "without -c, this run compares no contents",
        ),
        (
            &["-ac", "-e", &shell],
            ["src/", &far],
            "the other end is an rsync",
        ),
        (
            &["-ac", "--write-batch=B"],
            local,
            "--write-batch requires rsync's protocol",
        ),
        (&["-ac"], local, ""),
        (&["-a", "--detect-renamed"], local, ""),
    ];
    for (args, operands, cause) in cases {
        let args = [&["--checksum-cache=kept"], args, &operands].concat();
        let (code, lines) = lines(dir.path(), &args);
        let wanted = format!("sparsync: --checksum-cache is not used: {cause}");
        let warned = values(&lines, "problem", "message");
        assert_eq!(code, Some(0), "{args:?}");
        if cause.is_empty() {
            assert_eq!(warned, Vec::<&str>::new(), "{args:?}");
        } else {
            assert_eq!(warned, [wanted], "{args:?}");
        }
    }
}

// rsync counts what it begins to create, so --stats does.
synctest!(entries_that_are_not_there_do_not_count_as_created, as user, |w: World| {
    w.not_served("the client is rsync, which has no such option");
    w.not_with_daemon("a daemon of root reads what the user cannot");
    w.source("a d/b d/unread unread shut/new/c").dest("shut/x");
    // An rsync that receives does not tell which directories it could not make.
    let has_shut = !w.route().is_stock();
    if has_shut {
        w.build("dst/shut", |t| drop(t.dir(".").owner(1, 1).mode(0o555)));
    }
    w.change(|twin| {
        for path in ["src/d/unread", "src/unread"] {
            std::fs::set_permissions(twin.join(path), Permissions::from_mode(0o000)).expect("it is ours");
        }
    });
    let run = w.alone(&["-r", "--json", "--stderr=client"]).exits(23);
    let lines: Vec<Value> = run.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let summary = lines.iter().find(|line| line["type"] == "summary").expect("the run ends with one");
    let wanted = if has_shut { (2, 1) } else { (3, 2) };
    let created = &summary["created"];
    assert_eq!((created["files"].as_u64(), created["dirs"].as_u64()), (Some(wanted.0), Some(wanted.1)), "{}", run.stdout);
});

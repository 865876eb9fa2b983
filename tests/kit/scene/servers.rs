//! A server of the program under test in a scene, and its clients. The configuration of the server is `server`, that of
//! the client `client`.

use super::Scene;
use crate::kit::{oracle, until};
use std::io::Read as _;
use std::process::{Child, Command, Output, Stdio};

impl Scene {
    /// Runs a `server` subcommand with the configuration `who`.
    pub fn at(&self, who: &str, verb: &str) -> Output {
        self.command(who, &format!("server {verb}"))
            .output()
            .expect("a program can be started")
    }

    /// Runs a `server` subcommand, which must succeed, and returns its stdout.
    #[track_caller]
    pub fn well(&self, verb: &str) -> String {
        let output = self.at("server", verb);
        assert_eq!(output.status.code(), Some(0), "{verb}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a `server` subcommand that listens on a port which this process has just given up. Children that other
    /// tests start hold its sockets until they run their program.
    #[track_caller]
    pub fn well_on_freed_port(&self, verb: &str) {
        until(|| {
            let output = self.at("server", verb);
            let printed = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() || printed.contains("cannot listen on port"),
                "{verb}: {output:?}"
            );
            output.status.success()
        });
    }

    /// Runs a `server` subcommand, which must fail with `code`, and returns its stderr.
    #[track_caller]
    pub fn fails(&self, verb: &str, code: i32) -> String {
        let output = self.at("server", verb);
        assert_eq!(output.status.code(), Some(code), "{verb}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Returns a field of the status.
    pub fn status(&self, field: &str) -> String {
        field_of(
            &String::from_utf8(self.at("server", "status --json").stdout).unwrap(),
            field,
        )
    }

    /// Returns the number of sessions so far. On a busy machine it may include the loser of a connection race.
    pub fn sessions(&self) -> usize {
        self.status("sessions_total").parse().unwrap()
    }

    /// Starts the server, grants these rights to the client's key, and writes a script `shell` that connects to it.
    pub fn serve(&self, granted: &str) {
        self.well("start --port PORT");
        let known = self.status("pin");
        self.lead_to(&known);
        // `grant --json` prints the key of its own user, here that of the client.
        let printed = self.at(
            "client",
            "grant SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0 --name x --json",
        );
        let pin = field_of(&String::from_utf8(printed.stdout).unwrap(), "pin");
        if !granted.is_empty() {
            self.well(&format!("grant {pin} --name laptop {granted}"));
        }
    }

    /// Writes a script `shell` that connects to the server, whose key is `pin`.
    pub fn lead_to(&self, pin: &str) {
        self.lead_to_port(&self.status("port"), pin);
    }

    /// The same for a server at this port.
    pub fn lead_to_port(&self, port: &str, pin: &str) {
        let program = oracle::under_test().display();
        let client = self.path("client");
        let client = client.display();
        self.script(
            "shell",
            &format!("#!/bin/sh\nSPARSYNC_CONFIG_DIR={client} exec {program} server pipe 127.0.0.1:{port} {pin}\n"),
        );
    }

    /// Runs a copy through that script.
    pub fn copy(&self, line: &str) -> Output {
        self.command("client", &format!("-s -e ./shell {line}"))
            .output()
            .expect("a program can be started")
    }

    /// Runs a copy through that script, which must succeed.
    #[track_caller]
    pub fn copies(&self, line: &str) {
        let output = self.copy(line);
        assert!(output.status.success(), "{line}: {output:?}");
    }

    /// Runs a copy through that script, which must fail with these words and copy nothing.
    #[track_caller]
    pub fn is_refused(&self, line: &str, words: &str) {
        let output = self.copy(line);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && printed.contains(words),
            "{line}: {printed}"
        );
        assert!(
            !self.path("got").exists() && !self.path("in/new").exists(),
            "{line}"
        );
    }

    /// Runs a copy with an enrolled host. A remote shell beside a slow server does not win, because it would have to ask
    /// for a password.
    pub fn copy_or_ask(&self, line: &str) -> Output {
        let answers = std::fs::read_to_string(self.path("ssh")).unwrap();
        if !answers.contains("BatchMode") {
            let asks = "#!/bin/sh\ncase $* in *BatchMode*) exit 255;; esac\n";
            self.script("ssh", &answers.replace("#!/bin/sh\n", asks));
        }
        let program = oracle::under_test().display();
        let mut copy = self.command("client", &format!("{line} --rsync-path={program}"));
        let path = format!(
            "{}:{}",
            self.path("").display(),
            std::env::var("PATH").unwrap()
        );
        copy.env("PATH", path)
            .output()
            .expect("a program can be started")
    }

    /// Makes the server an enrolled host of the client, with this grant.
    pub fn enroll(&self, granted: &str) {
        self.serve(granted);
        let (port, pin) = (self.status("port"), self.status("pin"));
        let host = format!(
            "[[host]]\nname = \"host\"\nssh = \"host\"\naddresses = [\"127.0.0.1\"]\nport = {port}\npin = \"{pin}\"\n\
             met = \"2026-01-01T00:00:00Z\"\nprogram = \"{}\"\n",
            oracle::under_test().display()
        );
        std::fs::write(self.path("client/hosts.toml"), host).unwrap();
    }

    /// Kills the server and waits until it is gone.
    pub fn kill(&self) {
        assert!(
            Command::new("kill")
                .args(["-9", &self.status("pid")])
                .status()
                .unwrap()
                .success()
        );
        until(|| self.at("server", "status").status.code() == Some(3));
    }

    /// Starts a client that receives the greeting and sends nothing.
    pub fn silent_client(&self) -> Child {
        let mut command = Command::new(self.path("shell"));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut client = command.spawn().unwrap();
        client
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut [0; 8])
            .expect("the server greets");
        client
    }
}

/// Returns a field of a status in JSON.
pub fn field_of(json: &str, field: &str) -> String {
    let at = json
        .find(&format!("\"{field}\":"))
        .unwrap_or_else(|| panic!("{field} in {json}"))
        + field.len()
        + 3;
    let rest = json[at..].trim_start_matches('"');
    rest[..rest.find(['"', ',', '}', ']']).unwrap()].to_owned()
}

/// Returns the port of the only host in a list of hosts.
pub fn port_in(hosts: &str) -> String {
    hosts
        .lines()
        .find_map(|line| line.strip_prefix("port = "))
        .expect("a host has a port")
        .to_owned()
}

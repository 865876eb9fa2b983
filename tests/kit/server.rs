//! A server of the program under test for the QUIC and TLS routes: one for each world, on its own port.

use super::run::{Surroundings, USER, USUAL_UMASK, run};
use super::{Who, oracle, skip, until};
use rustix::process::{Pid, Signal};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// A running server, killed on drop. Client and server share one key, which is granted full access.
pub struct Server {
    config: tempfile::TempDir,
    world: PathBuf,
    surroundings: Surroundings,
    pid: Pid,
    port: u16,
}

impl Server {
    /// Starts a server in this directory with these environment variables.
    pub fn with(dir: &Path, env: &[(&str, String)]) -> Server {
        let env = env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        let who = Who::Current;
        Server::start(
            dir,
            &Surroundings {
                who,
                home: dir.to_owned(),
                umask: USUAL_UMASK,
                stdin: Vec::new(),
                env,
            },
        )
    }

    /// Returns the processes of its sessions.
    fn sessions(&self) -> Vec<Pid> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid.as_raw_nonzero()));
        let threads = threads.expect("the server runs").flatten();
        // A thread may end between the two looks.
        let children = threads.filter_map(|thread| {
            match std::fs::read_to_string(thread.path().join("children")) {
                Err(_) if !thread.path().exists() => None,
                children => Some(children.expect("this kernel lists the children of a thread")),
            }
        });
        let children: Vec<String> = children.collect();
        let pids = children
            .iter()
            .flat_map(|children| children.split_whitespace());
        pids.filter_map(|pid| pid.parse().ok().and_then(Pid::from_raw))
            .collect()
    }

    /// Waits until no session is left.
    pub fn rests(&self) {
        until(|| self.sessions().is_empty());
    }

    /// Kills its sessions.
    pub fn kill_sessions(&self) {
        // A session may end at this moment.
        for session in self.sessions() {
            let _ = rustix::process::kill_process(session, Signal::KILL);
        }
    }

    /// Kills the server and starts another one with the same key, on another port.
    pub fn replace(&mut self) {
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
        // The lock of its directory is free as soon as the process has ended.
        until(|| !Path::new(&format!("/proc/{}/fd/0", self.pid.as_raw_nonzero())).exists());
        let Started { pid, port, .. } = launch(self.config.path(), &self.world, &self.surroundings);
        (self.pid, self.port) = (pid, port);
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Leads clients to this port of localhost.
    pub fn lead_to(&self, port: u16) {
        let path = self.config.path().join("hosts.toml");
        let hosts = std::fs::read_to_string(&path).expect("the test's own file");
        let lines = hosts.lines().map(|line| match line.starts_with("port = ") {
            true => format!("port = {port}\n"),
            false => format!("{line}\n"),
        });
        std::fs::write(&path, lines.collect::<String>()).expect("the test's own file");
    }

    /// Starts a server as the user of `surroundings`. Relative paths start at `world`, as with the fake remote shell.
    pub fn start(world: &Path, surroundings: &Surroundings) -> Server {
        let config = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
        std::fs::set_permissions(config.path(), std::fs::Permissions::from_mode(0o700))
            .expect("the test's own directory");
        let give = |path: &Path| {
            if surroundings.who == Who::User && rustix::process::geteuid().is_root() {
                std::os::unix::fs::chown(path, Some(USER), Some(USER))
                    .expect("root gives away what it likes");
            }
        };
        give(config.path());
        let Started { pid, port, pin } = launch(config.path(), world, surroundings);
        let write = |name: &str, text: String| {
            let path = config.path().join(name);
            std::fs::write(&path, text).expect("the test's own directory");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
                .expect("the test's own file");
            give(&path);
        };
        write(
            "hosts.toml",
            format!(
                "[[host]]\nname = \"far\"\nssh = \"far\"\naddresses = [\"127.0.0.1\"]\nport = {port}\npin = \"{pin}\"\n\
                 met = \"2026-01-01T00:00:00Z\"\n"
            ),
        );
        write(
            "grants.toml",
            format!(
                "[[grant]]\npin = \"{pin}\"\nname = \"kit\"\nroots = [\"/\"]\nread_only = false\n"
            ),
        );
        Server {
            config,
            world: world.to_owned(),
            surroundings: surroundings.clone(),
            pid,
            port,
        }
    }

    /// Returns the environment variable that leads a client to this server.
    pub fn variable(&self) -> (String, String) {
        variable(self.config.path())
    }
}

struct Started {
    pid: Pid,
    port: u16,
    pin: String,
}

fn launch(config: &Path, world: &Path, surroundings: &Surroundings) -> Started {
    let mut adapted = Surroundings {
        home: world.to_owned(),
        stdin: Vec::new(),
        ..surroundings.clone()
    };
    adapted.env.push(variable(config));
    // The fake remote shell sets this umask itself; a server inherits its umask from the process that starts it.
    let far_umask = adapted.env.iter().find(|(name, _)| name == "FAR_UMASK");
    if let Some(mask) = far_umask.and_then(|(_, mask)| u32::from_str_radix(mask, 8).ok()) {
        adapted.umask = mask;
    }
    let argv: Vec<Vec<u8>> = ["server", "start", "--port", "0"]
        .map(|word| word.as_bytes().to_vec())
        .to_vec();
    let output = run(oracle::under_test(), &argv, world, &adapted);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let field = |before: &str| {
        printed
            .split_once(before)
            .and_then(|(_, rest)| rest.split([',', ' ', '\n']).next())
    };
    let (Some(pid), Some(port), Some(pin)) = (field("process "), field("port "), field("key "))
    else {
        skip(&format!(
            "no server can be started: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    };
    let pid = pid
        .parse()
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process has a number");
    Started {
        pid,
        port: port.parse().expect("a port is a number"),
        pin: pin.to_owned(),
    }
}

fn variable(config: &Path) -> (String, String) {
    (
        "SPARSYNC_CONFIG_DIR".to_owned(),
        config.display().to_string(),
    )
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
    }
}

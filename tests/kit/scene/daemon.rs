//! Daemons for clients of rsync in a scene: on a socket of the client or at a port.

use super::Scene;
use crate::kit::oracle;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

impl Scene {
    /// Writes the configuration of a daemon, and returns its path. `TOP` stands for the path of the scene.
    pub fn daemon_config(&self, text: &str) -> PathBuf {
        self.file("rsyncd.conf", &self.placed(text));
        self.path("rsyncd.conf")
    }

    /// Returns the command of a daemon with that configuration. As `RSYNC_CONNECT_PROG`, it leads a client to a daemon on
    /// a socket of the client, as under inetd. That daemon needs no port.
    pub fn daemon_command(&self, program: &Path) -> String {
        let config = self.path("rsyncd.conf");
        format!(
            "{} --daemon --config={}",
            program.display(),
            config.display()
        )
    }

    /// Starts a daemon of the program under test with that configuration at a port of its own.
    pub fn daemon(&self, options: &[&str]) -> Daemon {
        self.daemon_by(Command::new(oracle::under_test()), options)
    }

    /// The same for a command that starts the program under test.
    pub fn daemon_by(&self, mut program: Command, options: &[&str]) -> Daemon {
        let mut process = program
            .args(["--daemon", "--no-detach", "--port=0", "--address=127.0.0.1"])
            .arg(format!("--config={}", self.path("rsyncd.conf").display()))
            .args(options)
            .env("SPARSYNC_CONFIG_DIR", self.path("sparsync"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program can be started");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("it was asked for a pipe"))
            .read_line(&mut line)
            .expect("the daemon prints its port");
        let port = line
            .trim()
            .rsplit(' ')
            .next()
            .and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("a port, not {line:?}"));
        Daemon { process, port }
    }
}

/// A daemon at a port of its own, killed on drop.
pub struct Daemon {
    pub process: Child,
    pub port: u16,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Daemon {
    /// Connects, and waits for the greeting.
    pub fn connect(&self) -> BufReader<TcpStream> {
        self.connect_from(Ipv4Addr::LOCALHOST)
    }

    /// The same from another address of this machine.
    pub fn connect_from(&self, address: Ipv4Addr) -> BufReader<TcpStream> {
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            None,
        )
        .unwrap();
        rustix::net::bind(&socket, &SocketAddrV4::new(address, 0)).unwrap();
        rustix::net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.port)).unwrap();
        let stream = TcpStream::from(socket);
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert!(line.starts_with("@RSYNCD: "), "{line}");
        stream
    }

    /// Connects, sends this, and returns the connection once the module is accepted.
    pub fn request(&self, bytes: &[u8]) -> BufReader<TcpStream> {
        let mut stream = self.connect();
        stream.get_mut().write_all(bytes).unwrap();
        let mut line = String::new();
        while !line.contains("@RSYNCD: OK") {
            line.clear();
            assert!(
                stream.read_line(&mut line).unwrap() > 0,
                "the daemon has left"
            );
        }
        stream
    }

    /// Returns the processes of its connections.
    pub fn connections(&self) -> Vec<i32> {
        let pid = self.process.id();
        let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        list.split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect()
    }
}

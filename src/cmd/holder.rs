//! Who has a port, as far as /proc tells.

use crate::fs::sys;
use std::os::fd::AsFd;

const TABLES: [&str; 4] = ["/proc/net/udp6", "/proc/net/udp", "/proc/net/tcp6", "/proc/net/tcp"];
/// A table of sockets may be long, and is read whole.
const TABLE_MAX_BYTES: usize = 64 << 20;

/// The process that has a port of UDP or TCP: `name (pid)`. `None`: it belongs to somebody else, who need not tell.
pub fn of_port(port: u16) -> Option<String> {
    let inodes: Vec<Vec<u8>> = TABLES.iter().flat_map(|table| sockets_at(table, port)).collect();
    let proc = sys::open_dir_path(b"/proc").ok()?;
    let mut pids = Vec::new();
    sys::list(proc.as_fd(), |entry| {
        if entry.name.iter().all(u8::is_ascii_digit) {
            pids.push(String::from_utf8_lossy(entry.name).into_owned());
        }
    })
    .ok()?;
    let pid = pids.into_iter().find(|pid| has_one_of(pid, &inodes))?;
    let name = sys::read_path(format!("/proc/{pid}/comm").as_bytes(), 4096).unwrap_or_default();
    Some(format!("{} (process {pid})", String::from_utf8_lossy(name.trim_ascii())))
}

/// The links of the sockets that listen at a port: `socket:[123]`.
fn sockets_at(table: &str, port: u16) -> Vec<Vec<u8>> {
    let text = sys::read_path(table.as_bytes(), TABLE_MAX_BYTES).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let suffix = format!(":{port:04X}");
    let rows = text.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.get(1).is_some_and(|local| local.ends_with(&suffix)))
        .filter_map(|row| row.get(9).map(|inode| format!("socket:[{inode}]").into_bytes()))
        .collect()
}

fn has_one_of(pid: &str, sockets: &[Vec<u8>]) -> bool {
    let Ok(dir) = sys::open_dir_path(format!("/proc/{pid}/fd").as_bytes()) else {
        return false;
    };
    let mut has = false;
    let listed = sys::list(dir.as_fd(), |entry| {
        has = has || sys::read_link(dir.as_fd(), entry.name).is_ok_and(|link| sockets.contains(&link));
    });
    listed.is_ok() && has
}

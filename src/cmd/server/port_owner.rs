//! Finds the process that owns a port, in /proc.

use crate::fs::sys;
use std::os::fd::AsFd;

/// The socket tables, and the state that listening sockets have in each.
const TABLES: [(&str, &str); 4] = [
    ("/proc/net/udp6", "07"),
    ("/proc/net/udp", "07"),
    ("/proc/net/tcp6", "0A"),
    ("/proc/net/tcp", "0A"),
];
/// The most bytes of a table that are read; tables can be long and are read whole.
const TABLE_MAX_BYTES: usize = 64 << 20;

/// Returns whether a process listens on a UDP or TCP port.
pub fn is_in_use(port: u16) -> bool {
    TABLES
        .iter()
        .any(|(table, state)| !sockets_at(table, state, port).is_empty())
}

/// Returns the process that listens on a UDP or TCP port, as `name (process PID)`. `None` if there is none, or if it
/// belongs to another user, so that its descriptors cannot be read. A child that inherited the socket is younger than
/// the process that opened it, and is not returned.
pub fn of_port(port: u16) -> Option<String> {
    let inodes: Vec<Vec<u8>> = TABLES
        .iter()
        .flat_map(|(table, state)| sockets_at(table, state, port))
        .collect();
    let proc = sys::open_dir_path(b"/proc").ok()?;
    let mut pids = Vec::new();
    sys::list(proc.as_fd(), |entry| {
        if entry.name.iter().all(u8::is_ascii_digit) {
            pids.push(String::from_utf8_lossy(entry.name).into_owned());
        }
    })
    .ok()?;
    let owners = pids.into_iter().filter(|pid| has_one_of(pid, &inodes));
    let pid = owners.min_by_key(|pid| {
        let stat =
            sys::read_kernel_file(format!("/proc/{pid}/stat").as_bytes(), 4096).unwrap_or_default();
        start_time(&String::from_utf8_lossy(&stat)).unwrap_or(u64::MAX)
    })?;
    let name =
        sys::read_kernel_file(format!("/proc/{pid}/comm").as_bytes(), 4096).unwrap_or_default();
    Some(format!(
        "{} (process {pid})",
        String::from_utf8_lossy(name.trim_ascii())
    ))
}

/// Parses `/proc/PID/stat`: the time when the process started, in clock ticks since boot, is field 22. The second field
/// is the name in parentheses, which may contain anything.
fn start_time(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

/// Returns the sockets that listen on a port, in the form of links in `/proc/PID/fd`: `socket:[123]`.
fn sockets_at(table: &str, state: &str, port: u16) -> Vec<Vec<u8>> {
    let text = sys::read_kernel_file(table.as_bytes(), TABLE_MAX_BYTES).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let suffix = format!(":{port:04X}");
    let rows = text
        .lines()
        .skip(1)
        .map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| {
        row.get(1).is_some_and(|local| local.ends_with(&suffix)) && row.get(3) == Some(&state)
    })
    .filter_map(|row| {
        row.get(9)
            .map(|inode| format!("socket:[{inode}]").into_bytes())
    })
    .collect()
}

fn has_one_of(pid: &str, sockets: &[Vec<u8>]) -> bool {
    let Ok(dir) = sys::open_dir_path(format!("/proc/{pid}/fd").as_bytes()) else {
        return false;
    };
    let mut has = false;
    let listed = sys::list(dir.as_fd(), |entry| {
        has = has
            || sys::read_link(dir.as_fd(), entry.name).is_ok_and(|link| sockets.contains(&link));
    });
    listed.is_ok() && has
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    #[test]
    fn start_time_is_read_behind_any_name() {
        let fields: Vec<String> = (4..53).map(|field| field.to_string()).collect();
        let stat = format!("1 (a) S 2) S {}", fields.join(" "));
        assert_eq!(start_time(&stat), Some(22));
        assert_eq!(start_time(""), None);
        assert!(start_time(&std::fs::read_to_string("/proc/self/stat").unwrap()).is_some());
    }

    #[test]
    fn port_owner_is_the_listener_not_a_connected_socket() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let speaks = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let own = format!("(process {})", std::process::id());
        assert!(of_port(port).unwrap().contains(&own));
        let other = of_port(speaks.local_addr().unwrap().port());
        assert!(
            other.as_ref().is_none_or(|holder| !holder.contains(&own)),
            "{other:?}"
        );
    }
}

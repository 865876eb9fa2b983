//! The log of a daemon for stock clients: a file, or the system's log.

use super::policy::params::{Param, Values, VarLookup};
use crate::fs::trusted_path;
use crate::options::LinkOwners;
use crate::report::escape::{self, Charset};
use crate::report::event::errno_words;
use crate::report::times::LocalTimes;
use crate::work::clock;
use crate::zone;
use parking_lot::Mutex;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::net::UnixDatagram;

/// Where the system's log listens.
const SYSLOG_SOCKET: &str = "/dev/log";
/// The priority of all lines, as in rsync.
const PRIORITY_INFO: u32 = 6;
/// The longest line for the system's log.
const SYSLOG_LINE_MAX_BYTES: usize = 8 << 10;
/// The mode of a new log file, before the umask.
const LOG_MODE: u32 = 0o666;

/// The facilities by name, with their numbers.
const FACILITIES: [(&str, u32); 21] = [
    ("kern", 0),
    ("user", 1),
    ("mail", 2),
    ("daemon", 3),
    ("auth", 4),
    ("security", 4),
    ("syslog", 5),
    ("lpr", 6),
    ("news", 7),
    ("uucp", 8),
    ("cron", 9),
    ("authpriv", 10),
    ("ftp", 11),
    ("local0", 16),
    ("local1", 17),
    ("local2", 18),
    ("local3", 19),
    ("local4", 20),
    ("local5", 21),
    ("local6", 22),
    ("local7", 23),
];

/// Where lines go.
enum LogPlace {
    File(File),
    System {
        socket: UnixDatagram,
        priority: u32,
        tag: Vec<u8>,
    },
    Nowhere,
}

/// The log of a daemon. Opened before the process changes its root or user.
pub struct DaemonLog {
    place: LogPlace,
    times: Mutex<LocalTimes>,
}

impl DaemonLog {
    /// Opens the log that a section of the configuration names. `forced`: the file of `--log-file`.
    pub fn open(
        values: &Values,
        forced: Option<&[u8]>,
        umask: u32,
        vars: VarLookup<'_>,
    ) -> DaemonLog {
        let path = forced
            .map(<[u8]>::to_vec)
            .or_else(|| values.text(Param::LogFile, vars));
        let times = Mutex::new(LocalTimes::new(zone::local()));
        let Some(path) = path else {
            return DaemonLog {
                place: to_system(values, vars),
                times,
            };
        };
        match trusted_path::open_append(&path, LOG_MODE & !umask, LinkOwners::Trusted) {
            Ok(file) => DaemonLog {
                place: LogPlace::File(File::from(file)),
                times,
            },
            Err(error) => {
                let log = DaemonLog {
                    place: to_system(values, vars),
                    times,
                };
                let start = b"rsync: failed to open log-file ".as_slice();
                log.put(&[start, &path, b": ", &errno_words(&error)].concat());
                log.put(b"Ignoring \"log file\" setting.");
                log
            }
        }
    }

    /// Adds a line. Nothing depends on it.
    pub fn put(&self, line: &[u8]) {
        let mut text = Vec::new();
        match &self.place {
            LogPlace::Nowhere => {}
            LogPlace::File(file) => {
                self.times.lock().put(&mut text, clock::now_unix().0, b' ');
                text.extend_from_slice(format!(" [{}] ", std::process::id()).as_bytes());
                escape::put(&mut text, line, Charset::Log);
                text.push(b'\n');
                // One write, so that lines of several processes do not mix.
                let _ = (&*file).write_all(&text);
            }
            LogPlace::System {
                socket,
                priority,
                tag,
            } => {
                let head = format!("<{priority}>");
                text.extend(
                    [
                        head.as_bytes(),
                        tag,
                        format!("[{}]: ", std::process::id()).as_bytes(),
                    ]
                    .concat(),
                );
                escape::put(&mut text, line, Charset::Log);
                text.truncate(SYSLOG_LINE_MAX_BYTES);
                // A connection does not end because the system's log is gone.
                let _ = socket.send(&text);
            }
        }
    }
}

fn to_system(values: &Values, vars: VarLookup<'_>) -> LogPlace {
    let Some(facility) = facility_of(values, vars) else {
        return LogPlace::Nowhere;
    };
    let tag = values.text(Param::SyslogTag, vars).unwrap_or_default();
    let connected = UnixDatagram::unbound().and_then(|socket| {
        socket.connect(SYSLOG_SOCKET)?;
        // A log that does not read must not stop the daemon.
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    connected.map_or(LogPlace::Nowhere, |socket| LogPlace::System {
        socket,
        priority: facility * 8 + PRIORITY_INFO,
        tag,
    })
}

/// Returns the number of the facility; `None` if there is none of that name.
pub fn facility_of(values: &Values, vars: VarLookup<'_>) -> Option<u32> {
    let name = values
        .text(Param::SyslogFacility, vars)?
        .to_ascii_lowercase();
    FACILITIES
        .iter()
        .find(|(known, _)| known.as_bytes() == name)
        .map(|(_, number)| *number)
}

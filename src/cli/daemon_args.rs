//! The command line of a daemon for stock clients: `--daemon` and the options beside it.

use super::value::{Given, number};
use crate::error::{Error, Result};
use crate::options::connect::Family;
use lexopt::Arg;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

/// What the command line of a daemon requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DaemonArgs {
    /// `--help`
    pub help: bool,
    /// A client started this process through a remote shell: `--server`.
    pub by_shell: bool,
    /// `--no-detach`
    pub stays: bool,
    /// `--config`
    pub config: Option<Vec<u8>>,
    /// `--dparam`: `name=value`, in order.
    pub overrides: Vec<Vec<u8>>,
    /// `--address`
    pub address: Option<Vec<u8>>,
    /// `--port`
    pub port: Option<u16>,
    /// `--bwlimit`, in units of 1024 bytes per second; not positive for no limit.
    pub bwlimit: i32,
    /// `--log-file`
    pub log_file: Option<Vec<u8>>,
    /// `--log-file-format`
    pub log_format: Option<Vec<u8>>,
    /// `--sockopts`
    pub sockopts: Option<Vec<u8>>,
    /// `--temp-dir`
    pub temp_dir: Option<Vec<u8>>,
    /// `-4` or `-6`
    pub family: Option<Family>,
}

/// The text of `--daemon --help`.
pub const HELP: &str = "\
Usage: sparsync --daemon [OPTION]...

--daemon                 run as an rsync daemon
--address=ADDRESS        bind to the specified address
--bwlimit=RATE           limit socket I/O bandwidth
--config=FILE            specify alternate rsyncd.conf file
--dparam=OVERRIDE, -M    override global daemon config parameter
--no-detach              do not detach from the parent
--port=PORT              listen on alternate port number
--log-file=FILE          override the \"log file\" setting
--log-file-format=FMT    override the \"log format\" setting
--sockopts=OPTIONS       specify custom TCP options
--verbose, -v            increase verbosity
--ipv4, -4               prefer IPv4
--ipv6, -6               prefer IPv6
--help, -h               show this help (when used with --daemon)

See also the rsyncd.conf(5) manpage.
";

const HINT: &str = "\n(Type \"sparsync --daemon --help\" for assistance with daemon mode.)";

/// Reads the command line of a daemon.
pub fn read(words: &[OsString]) -> Result<DaemonArgs> {
    let mut args = DaemonArgs::default();
    let mut parser = lexopt::Parser::from_args(words.iter().cloned());
    let refuse = |what: &[u8], why: &str| {
        let end = format!(": {why} (in daemon mode){HINT}");
        Error::usage([b"rsync: ", what, end.as_bytes()].concat())
    };
    loop {
        let option = match parser.next() {
            Ok(None) => return Ok(args),
            // A remote shell adds a dot.
            Ok(Some(Arg::Value(_))) => continue,
            Ok(Some(Arg::Long(name))) => format!("--{name}"),
            Ok(Some(Arg::Short(letter))) => format!("-{letter}"),
            Err(_) => return Err(refuse(b"an option", "option does not take an argument")),
        };
        let mut value = || match parser.value() {
            Ok(value) => Ok(value.into_vec()),
            Err(_) => Err(refuse(option.as_bytes(), "missing argument")),
        };
        match option.as_str() {
            "--daemon" | "--verbose" | "-v" | "--no-verbose" | "--no-v" => {}
            "--detach" => args.stays = false,
            "--no-detach" => args.stays = true,
            "--server" => args.by_shell = true,
            "--help" | "-h" => args.help = true,
            "--ipv4" | "-4" => args.family = Some(Family::Ipv4),
            "--ipv6" | "-6" => args.family = Some(Family::Ipv6),
            "--config" => args.config = Some(value()?),
            "--dparam" | "-M" => {
                let text = value()?;
                if !text.contains(&b'=') {
                    let start = b"--dparam value is missing an '=': ".as_slice();
                    return Err(Error::usage([start, &text, HINT.as_bytes()].concat()));
                }
                args.overrides.push(text);
            }
            "--address" => args.address = Some(value()?),
            "--bwlimit" => {
                let text = value()?;
                let given = Given {
                    value: &text,
                    word: &[b"--bwlimit=", &text[..]].concat(),
                };
                let wrong = |error: Error| {
                    Error::usage(
                        [&error.message[..], b" (in daemon mode)", HINT.as_bytes()].concat(),
                    )
                };
                args.bwlimit = number::int(&given).map_err(wrong)?;
            }
            "--log-file" => args.log_file = Some(value()?),
            "--log-file-format" => args.log_format = Some(value()?),
            "--sockopts" => args.sockopts = Some(value()?),
            "--temp-dir" | "-T" => args.temp_dir = Some(value()?),
            "--port" => {
                let text = value()?;
                let port = str::from_utf8(&text)
                    .ok()
                    .and_then(|text| text.parse().ok());
                args.port = Some(port.ok_or_else(|| refuse(option.as_bytes(), "invalid port"))?);
            }
            _ => return Err(refuse(option.as_bytes(), "unknown option")),
        }
    }
}

/// Returns whether a command line is one of a daemon.
pub fn is_one(words: &[OsString]) -> bool {
    words
        .iter()
        .take_while(|word| *word != "--")
        .any(|word| word.as_bytes() == b"--daemon")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<DaemonArgs> {
        read(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn options_of_a_daemon_are_read() {
        let args =
            parsed("--daemon --config=c -M pidfile=p --dparam=port=3 --no-detach --port 99 -4")
                .unwrap();
        let overrides = vec![b"pidfile=p".to_vec(), b"port=3".to_vec()];
        let expected = DaemonArgs {
            stays: true,
            config: Some(b"c".to_vec()),
            overrides,
            port: Some(99),
            family: Some(Family::Ipv4),
            ..DaemonArgs::default()
        };
        assert_eq!(args, expected);
        assert!(parsed("--server --daemon .").unwrap().by_shell);
    }

    #[test]
    fn unknown_options_are_rejected() {
        for (line, words) in [
            (
                "--daemon --bogus",
                "rsync: --bogus: unknown option (in daemon mode)",
            ),
            (
                "--daemon --delete",
                "rsync: --delete: unknown option (in daemon mode)",
            ),
            (
                "--daemon --config",
                "rsync: --config: missing argument (in daemon mode)",
            ),
            (
                "--daemon --port=x",
                "rsync: --port: invalid port (in daemon mode)",
            ),
            (
                "--daemon --bwlimit=1.5m",
                "rsync: --bwlimit=1.5m: invalid numeric value (in daemon mode)",
            ),
            (
                "--daemon --dparam=x",
                "--dparam value is missing an '=': x\n(Type ",
            ),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(
                error.message.starts_with(words.as_bytes()),
                "{}",
                error.message.escape_ascii()
            );
        }
    }
}

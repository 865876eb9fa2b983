//! Reads the arguments after a subcommand, and checks the values of its options.

use super::command::{MEMORY_MIN_BYTES, Rights, is_owner};
use super::pages::PAGES;
use crate::cli::suggest::nearest;
use crate::cli::value::{Given, shell, size};
use crate::error::{Error, Result};
use lexopt::Arg::{Long, Short, Value};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The options for the rights of a key.
pub const RIGHTS: [&str; 11] = [
    "root",
    "read-only",
    "read-write",
    "expires",
    "no-expiry",
    "allow-setuid",
    "strip-setuid",
    "no-munge",
    "munge",
    "owner",
    "no-owner",
];

/// The arguments after a subcommand.
pub struct WordReader {
    pub verb: &'static str,
    pub parser: lexopt::Parser,
}

impl WordReader {
    pub fn wrong(&self, what: &str) -> Error {
        let verb = self.verb;
        Error::usage(format!("sparsync {verb}: {what}"))
            .with_hint(format!("see `sparsync {verb} --help`"))
    }

    /// Returns the error for an unknown long option, with the one that was probably meant.
    pub fn unknown_option(&self, name: &str) -> Error {
        let verb = self.verb;
        let is_its_own = |page: &str| page == verb || page.starts_with(&format!("{verb} "));
        let known = PAGES
            .into_iter()
            .filter(|(page, _)| is_its_own(page))
            .flat_map(|(_, text)| text.lines())
            .filter_map(|line| line.strip_prefix("  --")?.split([' ', '=', ',']).next());
        let error = self.wrong(&format!("unknown option --{name}"));
        match nearest(name, known) {
            Some(meant) => error.with_hint(format!(
                "did you mean `--{meant}`? See `sparsync {verb} --help`"
            )),
            None => error,
        }
    }

    pub fn next(&mut self) -> Result<Option<lexopt::Arg<'_>>> {
        // The message of lexopt ("unexpected argument ...") becomes part of the error.
        let verb = self.verb;
        self.parser.next().map_err(|error| {
            Error::usage(format!("sparsync {verb}: {error}"))
                .with_hint(format!("see `sparsync {verb} --help`"))
        })
    }

    pub fn value(&mut self, of: &str) -> Result<OsString> {
        self.parser
            .value()
            .map_err(|_| self.wrong(&format!("missing value for {of}")))
    }

    pub fn text(&mut self, of: &str) -> Result<String> {
        let value = self.value(of)?;
        value
            .into_string()
            .map_err(|_| self.wrong(&format!("the value of {of} is not UTF-8")))
    }

    pub fn port(&mut self, least: u16) -> Result<u16> {
        let text = self.text("--port")?;
        let port = text.parse().ok().filter(|port| *port >= least);
        port.ok_or_else(|| {
            self.wrong(&format!(
                "invalid --port value `{text}`: expected a number from {least} to 65535"
            ))
        })
    }

    pub fn memory(&mut self) -> Result<u64> {
        let text = self.text("--memory")?;
        let given = Given {
            value: text.as_bytes(),
            word: text.as_bytes(),
        };
        let bytes = size::size(&given, "memory", b'b', &size::ANY)
            .ok()
            .filter(|&bytes| bytes >= MEMORY_MIN_BYTES);
        bytes.ok_or_else(|| {
            self.wrong(&format!(
                "invalid --memory value `{text}`: expected a size of at least 64M, such as 4G"
            ))
        })
    }

    /// The number of an open file.
    pub fn ceiling(&mut self) -> Result<u32> {
        let text = self.text("--ceiling")?;
        text.parse().map_err(|_| {
            self.wrong(&format!(
                "invalid --ceiling value `{text}`: expected a file descriptor"
            ))
        })
    }

    pub fn root(&mut self) -> Result<Vec<u8>> {
        let root = self.value("--root")?;
        let bytes = root.as_bytes();
        let climbs = bytes.split(|&b| b == b'/').any(|part| part == b"..");
        if bytes.first() != Some(&b'/') || climbs || root.to_str().is_none() {
            let shown = root.to_string_lossy();
            return Err(self.wrong(&format!(
                "invalid --root value `{shown}`: expected an absolute path in UTF-8 without `..`"
            )));
        }
        Ok(root.into_vec())
    }

    pub fn listen(&mut self) -> Result<String> {
        let address = self.text("--listen")?;
        if address.parse::<std::net::IpAddr>().is_err() {
            let what = format!(
                "invalid --listen value `{address}`: expected an IP address, without a port"
            );
            return Err(self.wrong(&what));
        }
        Ok(address)
    }

    pub fn owner(&mut self) -> Result<String> {
        let owner = self.text("--owner")?;
        if is_owner(&owner) {
            Ok(owner)
        } else {
            Err(self.wrong(&format!(
                "invalid --owner value `{owner}`: expected USER or USER:GROUP"
            )))
        }
    }

    /// Parses one of the options for the rights of a key.
    pub fn rights(&mut self, name: &str, rights: &mut Rights) -> Result<()> {
        match name {
            "root" => rights.roots.push(self.root()?),
            "read-only" => rights.read_only = Some(true),
            "read-write" => rights.read_only = Some(false),
            "no-expiry" => rights.no_expiry = true,
            "allow-setuid" => rights.allow_setuid = Some(true),
            "strip-setuid" => rights.allow_setuid = Some(false),
            "no-munge" => rights.no_munge = Some(true),
            "munge" => rights.no_munge = Some(false),
            "owner" => rights.owner = Some(self.owner()?),
            "no-owner" => rights.no_owner = true,
            _ => rights.expires = Some(self.text("--expires")?),
        }
        if rights.no_expiry && rights.expires.is_some() {
            return Err(self.wrong("--expires cannot be used with --no-expiry"));
        }
        if rights.no_owner && rights.owner.is_some() {
            return Err(self.wrong("--owner cannot be used with --no-owner"));
        }
        Ok(())
    }

    pub fn shell(&mut self) -> Result<Vec<Vec<u8>>> {
        let text = self.value("-e")?;
        let words = shell::split(text.as_bytes())?;
        if words.is_empty() {
            Err(self.wrong("missing command for -e"))
        } else {
            Ok(words)
        }
    }

    /// Checks a host name, and returns it in the form that a remote shell expects.
    pub fn host(&self, word: &str) -> Result<String> {
        let (user, name) = word
            .rsplit_once('@')
            .map_or((None, word), |(user, name)| (Some(user), name));
        // An address may have brackets, as it has before the colon of a path. ssh accepts it only without them.
        let name = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .unwrap_or(name);
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '/';
        if name.is_empty()
            || user == Some("")
            || word.starts_with('-')
            || name.starts_with('-')
            || !word.chars().all(is_plain)
        {
            return Err(self.no_host(word, ""));
        }
        // A link-local address names its interface: fe80::1%eth0.
        let address = name
            .split_once('%')
            .filter(|(_, interface)| !interface.is_empty())
            .map_or(name, |(ip, _)| ip);
        if name.ends_with(':')
            || name.contains(':') && address.parse::<std::net::Ipv6Addr>().is_err()
        {
            return Err(self.no_host(word, ", without a colon"));
        }
        Ok(user.map_or_else(|| name.to_owned(), |user| format!("{user}@{name}")))
    }
}

impl WordReader {
    fn no_host(&self, word: &str, restriction: &str) -> Error {
        let error = self.wrong(&format!(
            "invalid host `{word}`: expected HOST or USER@HOST{restriction}"
        ));
        match word.split_once(':') {
            // The operand of a copy.
            Some((host, _)) if self.host(host).is_ok() => {
                error.with_hint(format!("name only the host: `{host}`"))
            }
            _ => error,
        }
    }
}

/// An argument that no longer borrows from the parser.
pub enum Argument {
    Long(String),
    Short(char),
    Value(OsString),
}

impl WordReader {
    pub fn word(&mut self) -> Result<Option<Argument>> {
        Ok(self.next()?.map(|arg| match arg {
            Long(name) => Argument::Long(name.to_owned()),
            Short(letter) => Argument::Short(letter),
            Value(value) => Argument::Value(value),
        }))
    }
}

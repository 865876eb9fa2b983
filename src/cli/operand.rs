//! Parses SRC and DEST: which of them is on another machine, and its path there.

/// One SRC or DEST as given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operand {
    /// A path on this machine.
    Local(Vec<u8>),
    /// A path on another machine.
    Remote(Remote),
}

/// A path on another machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// The operand as given.
    pub text: Vec<u8>,
    /// How that machine is reached.
    pub kind: RemoteKind,
    /// The text before the last `@` in front of the host; `None` without an `@`.
    pub user: Option<Vec<u8>>,
    /// The host, without brackets. Empty in `:path`, which means the host of the operand before.
    pub host: Vec<u8>,
    /// The path, as given. For a daemon, it begins with the name of a module, or is empty.
    pub path: Vec<u8>,
}

/// How another machine is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteKind {
    /// `host:path`: a remote shell.
    Shell,
    /// `host::module/path` or `rsync://[user@]host[:port]/module/path`: a daemon.
    Daemon {
        /// The port of the URL; 0: none.
        port: i32,
    },
    /// `sparsync://[user@]host[:port]/path`: a sparsync server, never a remote shell. The path is absolute; after `/~/`
    /// it is relative to the home directory.
    Server {
        /// `None`: the port known from enrollment, else the default. 0: the text in its place is not a valid port.
        port: Option<u16>,
    },
}

impl Operand {
    /// Parses one operand. Only text before the first slash can be a host, so `./a:b` is local.
    pub fn parse(text: &[u8]) -> Operand {
        match Remote::parse(text) {
            Some(remote) => Operand::Remote(remote),
            None => Operand::Local(text.to_vec()),
        }
    }

    /// Returns the text as given.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Operand::Local(text) => text,
            Operand::Remote(remote) => &remote.text,
        }
    }

    /// Returns whether it is on another machine.
    pub fn is_remote(&self) -> bool {
        matches!(self, Operand::Remote(_))
    }

    /// Returns whether it is the URL of a sparsync server.
    pub fn is_server(&self) -> bool {
        matches!(
            self,
            Operand::Remote(Remote {
                kind: RemoteKind::Server { .. },
                ..
            })
        )
    }
}

impl Remote {
    /// Returns whether it is a path in a module of a daemon.
    pub fn is_daemon(&self) -> bool {
        matches!(self.kind, RemoteKind::Daemon { .. })
    }

    fn parse(text: &[u8]) -> Option<Remote> {
        const URL: &[u8] = b"rsync://";
        if text.len() >= URL.len()
            && text[..URL.len()].eq_ignore_ascii_case(URL)
            && let Some(remote) = Remote::of_daemon_url(text, &text[URL.len()..])
        {
            return Some(remote);
        }
        const OURS: &[u8] = b"sparsync://";
        if text.len() >= OURS.len() && text[..OURS.len()].eq_ignore_ascii_case(OURS) {
            return Some(Remote::of_url(text, &text[OURS.len()..]));
        }
        let at = text.iter().position(|b| matches!(b, b':' | b'/' | b'['))?;
        let colon = match text[at] {
            b':' => at,
            b'[' => end_of_brackets(text, at)?,
            _ => return None,
        };
        let (kind, path) = match text[colon + 1..].strip_prefix(b":") {
            Some(module) => (RemoteKind::Daemon { port: 0 }, module),
            None => (RemoteKind::Shell, &text[colon + 1..]),
        };
        let (user, host) = match text[..colon].iter().rposition(|&b| b == b'@') {
            Some(sign) => (Some(text[..sign].to_vec()), &text[sign + 1..colon]),
            None => (None, &text[..colon]),
        };
        Some(Remote {
            text: text.to_vec(),
            kind,
            user,
            host: without_brackets(host).to_vec(),
            path: path.to_vec(),
        })
    }

    /// Parses the URL of a daemon; `None` if it is none, so that rsync reads it as a path on the host `rsync`. `rest`:
    /// the text after its `//`.
    fn of_daemon_url(text: &[u8], rest: &[u8]) -> Option<Remote> {
        let (place, path) =
            rest.split_at(rest.iter().position(|&b| b == b'/').unwrap_or(rest.len()));
        let (user, place) = match place.iter().rposition(|&b| b == b'@') {
            Some(sign) => (Some(place[..sign].to_vec()), &place[sign + 1..]),
            None => (None, place),
        };
        let host_len = match place.strip_prefix(b"[") {
            Some(bracketed) => bracketed.iter().position(|&b| b == b']')? + 2,
            None => place.iter().position(|&b| b == b':').unwrap_or(place.len()),
        };
        let (host, port) = place.split_at(host_len);
        let digits = port.strip_prefix(b":").unwrap_or_default();
        let has_valid_port =
            port.is_empty() || port.starts_with(b":") && digits.iter().all(u8::is_ascii_digit);
        let has_valid_user = user.as_ref().is_none_or(|user| !user.contains(&b':'));
        if !has_valid_port || !has_valid_user {
            return None;
        }
        // As in rsync, a number that is too large wraps around.
        let port = digits.iter().fold(0i32, |port, digit| {
            port.wrapping_mul(10).wrapping_add(i32::from(digit - b'0'))
        });
        let path = path.strip_prefix(b"/").unwrap_or(path).to_vec();
        let kind = RemoteKind::Daemon { port };
        Some(Remote {
            text: text.to_vec(),
            kind,
            user,
            host: without_brackets(host).to_vec(),
            path,
        })
    }

    /// Parses a URL. `rest`: the text after its `//`.
    fn of_url(text: &[u8], rest: &[u8]) -> Remote {
        let (place, path) =
            rest.split_at(rest.iter().position(|&b| b == b'/').unwrap_or(rest.len()));
        let path = if path == b"/~" {
            b""
        } else {
            path.strip_prefix(b"/~/").unwrap_or(path)
        };
        let (user, place) = match place.iter().rposition(|&b| b == b'@') {
            Some(sign) => (Some(place[..sign].to_vec()), &place[sign + 1..]),
            None => (None, place),
        };
        let colon = place
            .iter()
            .rposition(|&b| b == b':')
            .filter(|&colon| !place[colon..].contains(&b']'));
        let (host, port) = match colon {
            Some(colon) => (
                &place[..colon],
                std::str::from_utf8(&place[colon + 1..])
                    .ok()
                    .map(str::parse),
            ),
            None => (place, None),
        };
        let port = port.map(|port| port.unwrap_or(0)).or(colon.map(|_| 0));
        let kind = RemoteKind::Server { port };
        Remote {
            text: text.to_vec(),
            kind,
            user,
            host: without_brackets(host).to_vec(),
            path: path.to_vec(),
        }
    }
}

/// Returns `::1` for `[::1]`.
fn without_brackets(host: &[u8]) -> &[u8] {
    host.strip_prefix(b"[")
        .and_then(|host| host.strip_suffix(b"]"))
        .unwrap_or(host)
}

/// Returns the position of the colon in `[::1]:path` or `user@[::1]:path`. `at`: the position of the opening bracket.
fn end_of_brackets(text: &[u8], at: usize) -> Option<usize> {
    let begins = at == 0 || text[at - 1] == b'@';
    let length = text[at + 1..]
        .iter()
        .position(|b| matches!(b, b']' | b'/'))?;
    let colon = at + 1 + length + 1;
    if begins && length > 0 && text[at + 1 + length..].starts_with(b"]:") {
        Some(colon)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operand_is_remote_if_a_colon_precedes_the_first_slash() {
        for text in [
            "host:x",
            "host::mod",
            "rsync://h/m",
            "RSYNC://h",
            ":x",
            "a:",
            "[::1]:x",
            "u@[::1]:x",
            "a]:b",
            "u@h:/x",
            "rsync:/x",
        ] {
            assert!(Operand::parse(text.as_bytes()).is_remote(), "{text}");
        }
        for text in [
            "./a:b",
            "/a:b",
            "a/b:c",
            "a",
            "",
            "-",
            "[x",
            "rsync/x:y",
            "a[:b",
            "[a:b",
            "[::1]",
            "[::1]x:y",
            "a[b]:c",
            "[]:b",
            "u@[::1/x]:x",
        ] {
            assert!(!Operand::parse(text.as_bytes()).is_remote(), "{text}");
        }
    }

    #[test]
    fn remote_operand_is_split_into_its_parts() {
        for (text, user, host, path, kind) in [
            ("host:x", None, "host", "x", RemoteKind::Shell),
            ("u@host:/x:y", Some("u"), "host", "/x:y", RemoteKind::Shell),
            ("u@x@host:", Some("u@x"), "host", "", RemoteKind::Shell),
            ("@host:x", Some(""), "host", "x", RemoteKind::Shell),
            (":x", None, "", "x", RemoteKind::Shell),
            ("[::1]:x", None, "::1", "x", RemoteKind::Shell),
            ("u@[::1]:x", Some("u"), "::1", "x", RemoteKind::Shell),
            ("[h]::m/x", None, "h", "m/x", RemoteKind::Daemon { port: 0 }),
            ("::m/x", None, "", "m/x", RemoteKind::Daemon { port: 0 }),
            ("h::", None, "h", "", RemoteKind::Daemon { port: 0 }),
            ("a]:b", None, "a]", "b", RemoteKind::Shell),
            (
                "host::mod/x",
                None,
                "host",
                "mod/x",
                RemoteKind::Daemon { port: 0 },
            ),
            (
                "Rsync://u@h:9/m",
                Some("u"),
                "h",
                "m",
                RemoteKind::Daemon { port: 9 },
            ),
            (
                "rsync://u@x@[::1]:9",
                Some("u@x"),
                "::1",
                "",
                RemoteKind::Daemon { port: 9 },
            ),
            (
                "rsync://h//m",
                None,
                "h",
                "/m",
                RemoteKind::Daemon { port: 0 },
            ),
            (
                "rsync://u/x@h/m",
                None,
                "u",
                "x@h/m",
                RemoteKind::Daemon { port: 0 },
            ),
            (
                "rsync://h:/m",
                None,
                "h",
                "m",
                RemoteKind::Daemon { port: 0 },
            ),
            (
                "rsync://h:99999999999/m",
                None,
                "h",
                "m",
                RemoteKind::Daemon {
                    port: 1_215_752_191,
                },
            ),
            ("rsync:///m", None, "", "m", RemoteKind::Daemon { port: 0 }),
            ("rsync://h:x/m", None, "rsync", "//h:x/m", RemoteKind::Shell),
            (
                "rsync://[::1/m",
                None,
                "rsync",
                "//[::1/m",
                RemoteKind::Shell,
            ),
            (
                "rsync://[::1]x/m",
                None,
                "rsync",
                "//[::1]x/m",
                RemoteKind::Shell,
            ),
            (
                "rsync://u:p@h/m",
                None,
                "rsync",
                "//u:p@h/m",
                RemoteKind::Shell,
            ),
            (
                "sparsync://h/a/b",
                None,
                "h",
                "/a/b",
                RemoteKind::Server { port: None },
            ),
            (
                "Sparsync://u@h:9/~/m",
                Some("u"),
                "h",
                "m",
                RemoteKind::Server { port: Some(9) },
            ),
            (
                "sparsync://[::1]:70/",
                None,
                "::1",
                "/",
                RemoteKind::Server { port: Some(70) },
            ),
            (
                "sparsync://[::1]/~",
                None,
                "::1",
                "",
                RemoteKind::Server { port: None },
            ),
            (
                "sparsync://h:x/",
                None,
                "h",
                "/",
                RemoteKind::Server { port: Some(0) },
            ),
            (
                "sparsync://h:70000/",
                None,
                "h",
                "/",
                RemoteKind::Server { port: Some(0) },
            ),
            (
                "sparsync://h",
                None,
                "h",
                "",
                RemoteKind::Server { port: None },
            ),
        ] {
            let bytes = |text: &str| text.as_bytes().to_vec();
            let remote = Remote {
                text: bytes(text),
                kind,
                user: user.map(bytes),
                host: bytes(host),
                path: bytes(path),
            };
            assert_eq!(Operand::parse(text.as_bytes()), Operand::Remote(remote));
        }
    }
}

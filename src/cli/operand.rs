//! The text of SRC and DEST: which of them is on another machine.

/// One SRC or DEST as given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operand {
    /// A path on this machine.
    Local(Vec<u8>),
    /// `host:path`, `host::module/path` or `rsync://host/module/path`.
    Remote(Vec<u8>),
}

impl Operand {
    /// Reads one operand. Only text before the first slash can be a host, so `./a:b` is local.
    pub fn parse(text: &[u8]) -> Operand {
        if is_remote(text) { Operand::Remote(text.to_vec()) } else { Operand::Local(text.to_vec()) }
    }

    /// The text as given.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Operand::Local(text) | Operand::Remote(text) => text,
        }
    }

    /// Whether it is on another machine.
    pub fn is_remote(&self) -> bool {
        matches!(self, Operand::Remote(_))
    }
}

fn is_remote(text: &[u8]) -> bool {
    const URL: &[u8] = b"rsync://";
    if text.len() >= URL.len() && text[..URL.len()].eq_ignore_ascii_case(URL) {
        return true;
    }
    match text.iter().position(|b| matches!(b, b':' | b'/' | b'[')) {
        Some(at) if text[at] == b'[' => is_bracketed_host(text, at),
        Some(at) => text[at] == b':',
        None => false,
    }
}

/// `[::1]:path` or `user@[::1]:path`, the bracket at `at`.
fn is_bracketed_host(text: &[u8], at: usize) -> bool {
    let begins = at == 0 || text[at - 1] == b'@';
    let length = text[at + 1..].iter().position(|b| matches!(b, b']' | b'/'));
    begins && length.is_some_and(|length| length > 0 && text[at + 1 + length..].starts_with(b"]:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_before_the_first_slash_is_a_host() {
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
}

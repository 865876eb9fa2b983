//! The character set of the names on this machine, if a session converts them (`--iconv`).
//!
//! On the wire, names are UTF-8. Each end converts them where they enter or leave its side of the wire, so nothing else
//! knows of it. Like the system calls, the conversion belongs to the process: it has one peer.

use super::sys::{CharsetConverter, locale_charset};
use std::borrow::Cow;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The conversion of this process; `None` if names are not converted. See the page of [`super`].
static NAME_CHARSET: OnceLock<NameCharset> = OnceLock::new();

/// The conversion of the names of this machine.
pub struct NameCharset {
    name: Vec<u8>,
    to_wire: CharsetConverter,
    from_wire: CharsetConverter,
    converts_targets: AtomicBool,
    converts_lists: AtomicBool,
}

/// The character set of the wire.
const WIRE: &[u8] = b"UTF-8";

/// Sets the character set of the names on this machine; see [`open`]. Only the first call has an effect.
pub fn set(name: &[u8]) -> Result<(), Vec<u8>> {
    if NAME_CHARSET.get().is_none() {
        install(open(name)?);
    }
    Ok(())
}

/// Makes a conversion that of this process. Only the first call has an effect.
pub fn install(charset: NameCharset) {
    NAME_CHARSET.get_or_init(|| charset);
}

/// Opens the conversion of a character set; `.` or an empty name: that of the locale. The error is rsync's line.
pub fn open(name: &[u8]) -> Result<NameCharset, Vec<u8>> {
    let of_locale = locale_charset();
    let name = if matches!(name, b"" | b".") {
        &of_locale
    } else {
        name
    };
    let open = |from: &[u8], to: &[u8]| {
        let line = || [b"iconv_open(\"", to, b"\", \"", from, b"\") failed"].concat();
        CharsetConverter::open(from, to).map_err(|_| line())
    };
    Ok(NameCharset {
        name: name.to_vec(),
        to_wire: open(name, WIRE)?,
        from_wire: open(WIRE, name)?,
        converts_targets: AtomicBool::new(false),
        converts_lists: AtomicBool::new(false),
    })
}

/// Returns the character set of the names on this machine, if they are converted.
pub fn of_names() -> Option<&'static NameCharset> {
    NAME_CHARSET.get()
}

/// Converts a line of text for the peer. What cannot be converted stays as it is.
pub fn line_to_wire(line: &[u8]) -> Cow<'_, [u8]> {
    converted(line, |charset| charset.encode(line))
}

/// Converts a line of text of the peer. What cannot be converted stays as it is.
pub fn line_from_wire(line: Vec<u8>) -> Vec<u8> {
    match NAME_CHARSET.get().map(|charset| charset.decode(&line)) {
        Some(Ok(line)) => line,
        Some(Err(_)) | None => line,
    }
}

/// Converts a name of a `--files-from` list for the peer, if such lists are converted.
pub fn listed_to_wire(name: &[u8]) -> Cow<'_, [u8]> {
    converted(name, |charset| {
        if charset.converts_lists() {
            charset.encode(name)
        } else {
            Ok(name.to_vec())
        }
    })
}

/// Converts a name of a `--files-from` list of the peer, if such lists are converted.
pub fn listed_from_wire(name: Vec<u8>) -> Vec<u8> {
    if NAME_CHARSET.get().is_some_and(NameCharset::converts_lists) {
        line_from_wire(name)
    } else {
        name
    }
}

fn converted<'a>(
    text: &'a [u8],
    how: impl Fn(&NameCharset) -> io::Result<Vec<u8>>,
) -> Cow<'a, [u8]> {
    match NAME_CHARSET.get().map(how) {
        Some(Ok(converted)) => converted.into(),
        Some(Err(_)) | None => text.into(),
    }
}

impl NameCharset {
    /// Returns the line that names the character set. `role`: the one of this end.
    pub fn line(&self, role: &str) -> Vec<u8> {
        [b"[", role.as_bytes(), b"] charset: ", &self.name].concat()
    }

    /// Converts a name for the peer. Fails if it is not in the character set.
    pub fn encode(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        self.to_wire.convert(name)
    }

    /// Converts a name of the peer. Fails if it cannot be expressed in the character set.
    pub fn decode(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        self.from_wire.convert(name)
    }

    /// Converts the value of a symlink for the peer, if both ends do that.
    pub fn encode_target(&self, target: &[u8]) -> io::Result<Vec<u8>> {
        if self.converts_targets.load(Ordering::Relaxed) {
            self.encode(target)
        } else {
            Ok(target.to_vec())
        }
    }

    /// Converts the value of a symlink of the peer, if both ends do that.
    pub fn decode_target(&self, target: &[u8]) -> io::Result<Vec<u8>> {
        if self.converts_targets.load(Ordering::Relaxed) {
            self.decode(target)
        } else {
            Ok(target.to_vec())
        }
    }

    /// Sets whether both ends convert the values of symlinks.
    pub fn convert_targets(&self, is_agreed: bool) {
        self.converts_targets.store(is_agreed, Ordering::Relaxed);
    }

    /// Makes lists of names be converted: the arguments are, too.
    pub fn convert_lists(&self) {
        self.converts_lists.store(true, Ordering::Relaxed);
    }

    fn converts_lists(&self) -> bool {
        self.converts_lists.load(Ordering::Relaxed)
    }
}

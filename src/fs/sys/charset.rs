//! Conversion between character sets by `iconv` of the C library, which rsync uses too.

use parking_lot::Mutex;
use std::ffi::{CStr, CString};
use std::io;

/// The character set of a locale that the system does not have: plain ASCII, under the C library's name.
const OF_NO_LOCALE: &[u8] = b"ANSI_X3.4-1968";

/// Returns the name of the character set of the locale, which the environment selects.
#[allow(unsafe_code)]
pub fn locale_charset() -> Vec<u8> {
    // SAFETY: the name is a C string, and no other locale is modified. The locale is freed after its last use; the name
    // that it returns is copied before.
    unsafe {
        let locale = libc::newlocale(libc::LC_CTYPE_MASK, c"".as_ptr(), std::ptr::null_mut());
        if locale.is_null() {
            return OF_NO_LOCALE.to_vec();
        }
        let name = CStr::from_ptr(libc::nl_langinfo_l(libc::CODESET, locale))
            .to_bytes()
            .to_vec();
        libc::freelocale(locale);
        name
    }
}

/// Converts texts from one character set to another.
#[derive(Debug)]
pub struct CharsetConverter {
    /// A descriptor holds the state of one conversion.
    descriptor: Mutex<Descriptor>,
}

#[derive(Debug)]
struct Descriptor(libc::iconv_t);

// SAFETY: a descriptor is used by one thread at a time, and is bound to none.
#[allow(unsafe_code)]
unsafe impl Send for Descriptor {}

impl Drop for Descriptor {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: the descriptor is open, and is not used again.
        unsafe {
            libc::iconv_close(self.0);
        }
    }
}

impl CharsetConverter {
    /// Opens a conversion. Fails with EINVAL if the system does not have it.
    #[allow(unsafe_code)]
    pub fn open(from: &[u8], to: &[u8]) -> io::Result<CharsetConverter> {
        let from = CString::new(from)?;
        let to = CString::new(to)?;
        // SAFETY: both are C strings that outlive the call.
        let descriptor = unsafe { libc::iconv_open(to.as_ptr(), from.as_ptr()) };
        if descriptor.addr() == usize::MAX {
            return Err(io::Error::last_os_error());
        }
        Ok(CharsetConverter {
            descriptor: Mutex::new(Descriptor(descriptor)),
        })
    }

    /// Converts a text. Fails with EILSEQ or EINVAL if it is not in the first character set, or not expressible in the
    /// second one.
    #[allow(unsafe_code)]
    pub fn convert(&self, text: &[u8]) -> io::Result<Vec<u8>> {
        let descriptor = self.descriptor.lock();
        let mut out = vec![0_u8; text.len() * 2 + 16];
        let mut rest = text;
        let mut len_bytes = 0;
        let mut is_flushed = false;
        // SAFETY: null pointers reset the state.
        unsafe {
            libc::iconv(
                descriptor.0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            );
        }
        while !is_flushed {
            let mut from = rest.as_ptr().cast_mut().cast::<libc::c_char>();
            let mut from_len = rest.len();
            let mut free = out.len() - len_bytes;
            let mut to = out[len_bytes..].as_mut_ptr().cast::<libc::c_char>();
            // Once the text is converted, a call without a text writes what returns to the initial state.
            let flushes = rest.is_empty();
            let source = if flushes {
                std::ptr::null_mut()
            } else {
                &raw mut from
            };
            // SAFETY: the lengths are those of the buffers, which outlive the call. The text is only read.
            let done = unsafe {
                libc::iconv(
                    descriptor.0,
                    source,
                    &raw mut from_len,
                    &raw mut to,
                    &raw mut free,
                )
            };
            let error = io::Error::last_os_error();
            (rest, len_bytes) = (&rest[rest.len() - from_len..], out.len() - free);
            match done {
                usize::MAX if error.raw_os_error() == Some(libc::E2BIG) => {
                    out.resize(out.len() * 2, 0)
                }
                usize::MAX => return Err(error),
                _ => is_flushed = flushes,
            }
        }
        out.truncate(len_bytes);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_converted_or_rejected_whole() {
        let to_utf8 = CharsetConverter::open(b"ISO-8859-1", b"UTF-8").unwrap();
        let from_utf8 = CharsetConverter::open(b"UTF-8", b"ISO-8859-1").unwrap();
        assert_eq!(to_utf8.convert(b"\xe4.txt").unwrap(), "ä.txt".as_bytes());
        assert_eq!(from_utf8.convert("ä.txt".as_bytes()).unwrap(), b"\xe4.txt");
        let kind = |text: &[u8]| {
            from_utf8
                .convert(text)
                .map_err(|error| error.raw_os_error())
        };
        // Not in the character set, not expressible, and incomplete.
        for (text, errno) in [
            (&b"a\xff"[..], libc::EILSEQ),
            ("a€".as_bytes(), libc::EILSEQ),
            (b"a\xc3", libc::EINVAL),
        ] {
            assert_eq!(kind(text), Err(Some(errno)), "{}", text.escape_ascii());
        }
        // A failure leaves nothing behind.
        assert_eq!(from_utf8.convert(b"b").unwrap(), b"b");
        assert_eq!(from_utf8.convert(b"").unwrap(), b"");
        assert_eq!(
            CharsetConverter::open(b"no such set", b"UTF-8")
                .unwrap_err()
                .raw_os_error(),
            Some(libc::EINVAL)
        );
    }

    #[test]
    fn long_texts_and_character_sets_with_a_state_are_converted() {
        let there = CharsetConverter::open(b"UTF-8", b"ISO-2022-JP").unwrap();
        let back = CharsetConverter::open(b"ISO-2022-JP", b"UTF-8").unwrap();
        let text = "a日".repeat(500);
        let converted = there.convert(text.as_bytes()).unwrap();
        assert!(
            converted.ends_with(b"\x1b(B"),
            "the last state is the initial one"
        );
        assert_eq!(back.convert(&converted).unwrap(), text.as_bytes());
    }
}

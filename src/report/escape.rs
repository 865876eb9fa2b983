//! Escapes bytes in a line: control bytes and invalid characters become `\#ooo`.
//!
//! As in rsync, whole lines are escaped, including the literal text of formats; the newline at the end is not part of
//! the line. The caller passes the charset of the locale. rsync leaves DEL and, in a UTF-8 locale, the controls U+0080 to
//! U+009F as they are, and a script that reads names from stdout expects them. So [`put`] does the same, and
//! [`EscapedWriter`] escapes them in all that reaches a terminal or standard error.

use std::io::{self, Write};

/// Which bytes may be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charset {
    /// The C locale: bytes above 127 are escaped.
    Ascii,
    /// A UTF-8 locale: bytes above 127 are escaped except in well-formed sequences.
    Utf8,
    /// `-8`: no byte above 127 is escaped.
    EightBit,
    /// The log file, whatever the locale: of the bytes above 127, only the C1 controls 128 to 159 are escaped. DEL is
    /// escaped, too.
    Log,
}

impl Charset {
    /// Returns the charset of the terminal.
    pub fn for_locale(utf8_locale: bool, eight_bit: bool) -> Charset {
        match (eight_bit, utf8_locale) {
            (true, _) => Charset::EightBit,
            (false, true) => Charset::Utf8,
            (false, false) => Charset::Ascii,
        }
    }
}

/// Appends `line`, with invalid bytes as `\#` and three octal digits.
///
/// Tab is not escaped, and DEL only in a log. A backslash is escaped only if it would read as an escape: before `#` and three digits.
pub fn put(out: &mut Vec<u8>, line: &[u8], charset: Charset) {
    // Every charset prints most lines as they are.
    if is_plain(line, b'\\') {
        out.extend_from_slice(line);
        return;
    }
    let mut done = 0;
    let mut at = 0;
    while at < line.len() {
        let byte = line[at];
        let fits = match byte {
            b'\t' => true,
            0..0x20 => false,
            b'\\' => !reads_as_escape(&line[at..]),
            DEL => charset != Charset::Log,
            0x20..0x80 => true,
            0x80.. => match charset {
                Charset::Ascii => false,
                Charset::EightBit => true,
                Charset::Log => byte >= 0xa0,
                Charset::Utf8 => {
                    let len = sequence_len(&line[at..]);
                    if len > 0 {
                        at += len;
                        continue;
                    }
                    false
                }
            },
        };
        if !fits {
            out.extend_from_slice(&line[done..at]);
            put_escape(out, byte);
            done = at + 1;
        }
        at += 1;
    }
    out.extend_from_slice(&line[done..]);
}

fn put_escape(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(&[
        b'\\',
        b'#',
        b'0' + (byte >> 6),
        b'0' + (byte >> 3 & 7),
        b'0' + (byte & 7),
    ]);
}

const DEL: u8 = 0x7f;

/// What the writer of a text may do with the cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cursor {
    /// Return to the beginning of the line: this program, which shows progress.
    Returns,
    /// Only go to the next line: other programs, which must not hide what was printed before.
    Advances,
}

/// A stream to a terminal, or to a file that a terminal may show later: everything is passed on but control characters,
/// which are escaped. These are the bytes below 32 except tab and newline, DEL, and the controls U+0080 to U+009F in
/// UTF-8 or as single bytes.
///
/// The end of an incomplete character waits for its rest.
pub struct EscapedWriter<W> {
    out: W,
    cursor: Cursor,
    /// With `-8`, the user wants all bytes above 127.
    is_eight_bit: bool,
    waiting: Vec<u8>,
}

impl<W: Write> EscapedWriter<W> {
    /// Returns a writer that passes on to `out`.
    pub fn new(out: W, cursor: Cursor, is_eight_bit: bool) -> EscapedWriter<W> {
        EscapedWriter {
            out,
            cursor,
            is_eight_bit,
            waiting: Vec::new(),
        }
    }

    /// Returns how many bytes at the beginning of a text, which is not empty, are passed on. 0: the first is escaped.
    /// `None`: more of the text is needed.
    fn passed(&self, text: &[u8]) -> Option<usize> {
        Some(match text[0] {
            b'\t' | b'\n' => 1,
            b'\r' if self.cursor == Cursor::Returns => 1,
            b'\r' => usize::from(*text.get(1)? == b'\n'),
            0..0x20 | DEL => 0,
            0x20..DEL => 1,
            0x80.. if self.is_eight_bit => 1,
            0xc2 if (0x80..0xa0).contains(text.get(1)?) => 0,
            0x80.. => match sequence_len(text) {
                0 if is_begun(text) => return None,
                0 => usize::from(text[0] >= 0xa0),
                len => len,
            },
        })
    }
}

impl<W: Write> Write for EscapedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut text = std::mem::take(&mut self.waiting);
        text.extend_from_slice(bytes);
        let mut out = Vec::with_capacity(text.len());
        let mut rest = &text[..];
        while !rest.is_empty() {
            match self.passed(rest) {
                None => {
                    self.waiting = rest.to_vec();
                    break;
                }
                Some(0) => {
                    put_escape(&mut out, rest[0]);
                    // The second byte of a control in UTF-8 is escaped as a single one.
                    rest = &rest[1..];
                }
                Some(len) => {
                    out.extend_from_slice(&rest[..len]);
                    rest = &rest[len..];
                }
            }
        }
        self.out.write_all(&out)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Returns a text that another program wrote, for a terminal.
pub fn of_others(text: &[u8]) -> Vec<u8> {
    let mut writer = EscapedWriter::new(Vec::new(), Cursor::Advances, false);
    // Writing to a vector does not fail. What is cut off at the end is no character.
    let _ = writer.write_all(text);
    writer.out
}

/// Returns whether a text is the beginning of a well-formed sequence, which its end cuts off.
fn is_begun(text: &[u8]) -> bool {
    text.len() < 6
        && (1..6).any(|missing| {
            let whole = [text, &[0xbf; 5][..missing]].concat();
            sequence_len(&whole) == whole.len()
                || sequence_len(&[text, &[0x80; 5][..missing]].concat()) == whole.len()
        })
}

/// Returns whether there are only ASCII characters, and neither controls nor `\` nor `other` among them.
pub fn is_plain(line: &[u8], other: u8) -> bool {
    // Without a branch, many bytes are compared at once.
    let fits = |byte: u8| (0x20..DEL).contains(&byte) & (byte != b'\\') & (byte != other);
    line.iter().fold(true, |plain, &byte| plain & fits(byte))
}

fn reads_as_escape(rest: &[u8]) -> bool {
    rest.starts_with(b"\\#") && rest.len() >= 5 && rest[2..5].iter().all(u8::is_ascii_digit)
}

/// Returns the length of the well-formed sequence at the start; 0 if there is none.
///
/// As in the converters of C libraries, sequences of up to six bytes are accepted; surrogates and overlong forms are
/// not.
fn sequence_len(bytes: &[u8]) -> usize {
    let (len, second_min, second_max) = match bytes[0] {
        0xc2..=0xdf => (2, 0x80, 0xbf),
        0xe0 => (3, 0xa0, 0xbf),
        0xed => (3, 0x80, 0x9f),
        0xe1..=0xef => (3, 0x80, 0xbf),
        0xf0 => (4, 0x90, 0xbf),
        0xf1..=0xf7 => (4, 0x80, 0xbf),
        0xf8 => (5, 0x88, 0xbf),
        0xf9..=0xfb => (5, 0x80, 0xbf),
        0xfc => (6, 0x84, 0xbf),
        0xfd => (6, 0x80, 0xbf),
        _ => return 0,
    };
    let whole = bytes.len() >= len
        && (second_min..=second_max).contains(&bytes[1])
        && bytes[2..len].iter().all(|b| (0x80..=0xbf).contains(b));
    if whole { len } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put_to_vec(line: &[u8], charset: Charset) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, line, charset);
        out
    }

    fn check(charset: Charset, pairs: &[(&[u8], &[u8])]) {
        for (line, want) in pairs {
            let got = put_to_vec(line, charset);
            assert_eq!(
                got.escape_ascii().to_string(),
                want.escape_ascii().to_string(),
                "{charset:?}"
            );
        }
    }

    #[test]
    fn control_bytes_are_escaped_in_every_charset() {
        for charset in [
            Charset::Ascii,
            Charset::Utf8,
            Charset::EightBit,
            Charset::Log,
        ] {
            let del: &[u8] = if charset == Charset::Log {
                b"del\\#177x"
            } else {
                b"del\x7fx"
            };
            check(
                charset,
                &[
                    (b"del\x7fx", del),
                    (b"tab\tx", b"tab\tx"),
                    (b"nl\nx", b"nl\\#012x"),
                    (b"cr\rx", b"cr\\#015x"),
                    (b"esc\x1b[x", b"esc\\#033[x"),
                    (b"one\x01", b"one\\#001"),
                    (b"bs\\x", b"bs\\x"),
                    (b"bso\\#012x", b"bso\\#134#012x"),
                    (b"bsh\\#x", b"bsh\\#x"),
                    (b"bs\\#12x", b"bs\\#12x"),
                    (b"bs\\#1234", b"bs\\#134#1234"),
                    (b"\\#999", b"\\#134#999"),
                    (b"\\\\#012", b"\\\\#134#012"),
                ],
            );
        }
    }

    #[test]
    fn high_bytes_are_escaped_in_the_c_locale() {
        check(
            Charset::Ascii,
            &[
                (b"latin\xe4x", b"latin\\#344x"),
                (b"utf\xc3\xa4x", b"utf\\#303\\#244x"),
                (b"ff\xff", b"ff\\#377"),
            ],
        );
        check(
            Charset::EightBit,
            &[(b"latin\xe4\xc3\xa4\x80\xff", b"latin\xe4\xc3\xa4\x80\xff")],
        );
        check(
            Charset::Log,
            &[(
                b"bs\\#012x\x80\x9f\xa0\xff\x7f\t",
                b"bs\\#134#012x\\#200\\#237\xa0\xff\\#177\t",
            )],
        );
    }

    #[test]
    fn invalid_utf8_is_escaped_in_a_utf8_locale() {
        check(
            Charset::Utf8,
            &[
                (b"latin\xe4x", b"latin\\#344x"),
                (b"utf\xc3\xa4x", b"utf\xc3\xa4x"),
                (b"bad\xc3", b"bad\\#303"),
                (b"c1\xc2\x85x", b"c1\xc2\x85x"),
                (b"mix\xc3\xa4\xff\x01", b"mix\xc3\xa4\\#377\\#001"),
                (b"v\xc3\xc3\xa4", b"v\\#303\xc3\xa4"),
                (b"w\xe2\x82\xc3\xa4", b"w\\#342\\#202\xc3\xa4"),
                (b"x\xf0\x9f\xc3\xa4", b"x\\#360\\#237\xc3\xa4"),
                (b"half\xe2\x80x", b"half\\#342\\#200x"),
                (b"over\xc0\xaf", b"over\\#300\\#257"),
                (b"g\xe0\x80\x80", b"g\\#340\\#200\\#200"),
                (b"h\xe0\x9f\xbf", b"h\\#340\\#237\\#277"),
                (b"i\xe0\xa0\x80", b"i\xe0\xa0\x80"),
                (b"j\xed\x9f\xbf", b"j\xed\x9f\xbf"),
                (b"sur\xed\xa0\x80", b"sur\\#355\\#240\\#200"),
                (b"t\xef\xbf\xbe", b"t\xef\xbf\xbe"),
                (b"n\xf0\x80\x80\x80", b"n\\#360\\#200\\#200\\#200"),
                (b"p\xf0\x90\x80\x80", b"p\xf0\x90\x80\x80"),
                (b"b\xf4\x90\x80\x80", b"b\xf4\x90\x80\x80"),
                (b"c\xf7\xbf\xbf\xbf", b"c\xf7\xbf\xbf\xbf"),
                (b"d\xf8\x88\x80\x80\x80", b"d\xf8\x88\x80\x80\x80"),
                (b"e\xfc\x84\x80\x80\x80\x80", b"e\xfc\x84\x80\x80\x80\x80"),
                (b"f\xfe", b"f\\#376"),
            ],
        );
    }

    fn written(pieces: &[&[u8]], cursor: Cursor, is_eight_bit: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = EscapedWriter::new(&mut out, cursor, is_eight_bit);
        for piece in pieces {
            writer.write_all(piece).unwrap();
        }
        drop(writer);
        out
    }

    #[test]
    fn terminals_get_no_control_characters() {
        for (text, want) in [
            (
                &b"a\tb\r\n\x1b[1m\x07\x08\x7f\x00"[..],
                &b"a\tb\r\n\\#033[1m\\#007\\#010\\#177\\#000"[..],
            ),
            (
                b"\xc2\x9b2J \xc2\x85 \xc2\xa0",
                b"\\#302\\#2332J \\#302\\#205 \xc2\xa0",
            ),
            (b"\x9b2J \xe4 \xff", b"\\#2332J \xe4 \xff"),
            ("ä€😀".as_bytes(), "ä€😀".as_bytes()),
            (b"\xe2\x82x\xe2\x9b", b"\xe2\\#202x"),
            (b"\\#033 \\", b"\\#033 \\"),
        ] {
            let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
            let got = written(&[text], Cursor::Advances, false);
            assert_eq!(shown(&got), shown(want));
            let bytes: Vec<&[u8]> = text.chunks(1).collect();
            assert_eq!(
                written(&bytes, Cursor::Advances, false),
                got,
                "byte by byte"
            );
        }
        assert_eq!(written(&[b"1%\r2%\r"], Cursor::Returns, false), b"1%\r2%\r");
        assert_eq!(
            written(&[b"new\rold\r"], Cursor::Advances, false),
            b"new\\#015old"
        );
        assert_eq!(
            written(&[b"\x9b\x7f"], Cursor::Returns, true),
            b"\x9b\\#177"
        );
    }

    proptest! {
        #[test]
        fn no_control_character_reaches_a_terminal(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..9), 0..9)) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let out = written(&pieces, Cursor::Advances, false);
            let is_shown = |(at, &byte): (usize, &u8)| match byte {
                b'\t' | b'\n' => true,
                b'\r' => out.get(at + 1) == Some(&b'\n'),
                _ => byte >= 0x20 && byte != DEL,
            };
            prop_assert!(out.iter().enumerate().all(is_shown));
            let text = String::from_utf8_lossy(&out);
            let controls = text.chars().filter(|c| ('\u{80}'..'\u{a0}').contains(c)).count();
            prop_assert_eq!(controls, 0);
        }

        #[test]
        fn no_control_byte_is_left_unescaped(line: Vec<u8>) {
            for charset in [Charset::Ascii, Charset::Utf8, Charset::EightBit, Charset::Log] {
                let out = put_to_vec(&line, charset);
                prop_assert!(out.iter().all(|&b| b >= 0x20 || b == b'\t'));
            }
        }

        #[test]
        fn utf8_text_is_not_escaped_in_a_utf8_locale(line in "[^\\x00-\\x1f\\\\]*") {
            prop_assert_eq!(put_to_vec(line.as_bytes(), Charset::Utf8), line.as_bytes());
        }

        #[test]
        fn escaped_line_can_be_unescaped(line: Vec<u8>) {
            let out = put_to_vec(&line, Charset::Ascii);
            let mut back = Vec::new();
            let mut at = 0;
            while at < out.len() {
                if reads_as_escape(&out[at..]) {
                    let octal = out[at + 2..at + 5].iter().fold(0u32, |n, d| n * 8 + u32::from(d - b'0'));
                    back.push(octal as u8);
                    at += 5;
                } else {
                    back.push(out[at]);
                    at += 1;
                }
            }
            prop_assert_eq!(back, line);
        }
    }
}

//! Escapes bytes in a line: control bytes and invalid characters become `\#ooo`.
//!
//! As in rsync, whole lines are escaped, including the literal text of formats; the newline at the end is not part of
//! the line. The caller passes the charset of the locale.

/// Which bytes may be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charset {
    /// The C locale: bytes above 127 are escaped.
    Ascii,
    /// A UTF-8 locale: bytes above 127 are escaped except in well-formed sequences.
    Utf8,
    /// `-8`: no byte above 127 is escaped.
    EightBit,
    /// The log file, whatever the locale: of the bytes above 127, only the C1 controls 128 to 159 are escaped.
    Log,
}

impl Charset {
    /// Returns the charset of the terminal.
    pub fn of(utf8_locale: bool, eight_bit: bool) -> Charset {
        match (eight_bit, utf8_locale) {
            (true, _) => Charset::EightBit,
            (false, true) => Charset::Utf8,
            (false, false) => Charset::Ascii,
        }
    }
}

/// Appends `line`, with invalid bytes as `\#` and three octal digits.
///
/// Tab and DEL are not escaped. A backslash is escaped only if it would read as an escape: before `#` and three digits.
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
            out.extend_from_slice(&[
                b'\\',
                b'#',
                b'0' + (byte >> 6),
                b'0' + (byte >> 3 & 7),
                b'0' + (byte & 7),
            ]);
            done = at + 1;
        }
        at += 1;
    }
    out.extend_from_slice(&line[done..]);
}

/// Returns whether there are only ASCII characters, and neither controls nor `\` nor `other` among them.
pub fn is_plain(line: &[u8], other: u8) -> bool {
    // Without a branch, many bytes are compared at once.
    let fits = |byte: u8| (0x20..0x80).contains(&byte) & (byte != b'\\') & (byte != other);
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
            check(
                charset,
                &[
                    (b"tab\tx", b"tab\tx"),
                    (b"nl\nx", b"nl\\#012x"),
                    (b"cr\rx", b"cr\\#015x"),
                    (b"esc\x1b[x", b"esc\\#033[x"),
                    (b"del\x7fx", b"del\x7fx"),
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
                b"bs\\#134#012x\\#200\\#237\xa0\xff\x7f\t",
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

    proptest! {
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

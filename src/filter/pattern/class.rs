//! Classes of bytes in patterns: `[a-z]`, `[!x]`, `[[:alpha:]]`.

/// A set of bytes.
pub(super) type ByteSet = [u64; 4];

pub(super) fn holds(set: &ByteSet, byte: u8) -> bool {
    set[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
}

fn insert(set: &mut ByteSet, byte: u8) {
    set[usize::from(byte >> 6)] |= 1 << (byte & 63);
}

/// Parses a class. `at` moves from after its `[` to after its `]`. `None` if the class is malformed.
pub(super) fn parse_class(text: &[u8], at: &mut usize) -> Option<ByteSet> {
    let mut set = ByteSet::default();
    let negated = matches!(text.get(*at), Some(b'!' | b'^'));
    *at += usize::from(negated);
    let mut previous: Option<u8> = None;
    let mut first = true;
    loop {
        let byte = *text.get(*at)?;
        *at += 1;
        match byte {
            b']' if !first => break,
            b'[' if text.get(*at) == Some(&b':') => {
                let name_at = *at + 1;
                let length = text[name_at..].iter().position(|&b| b == b']')?;
                if length > 0 && text[name_at + length - 1] == b':' {
                    let name = &text[name_at..name_at + length - 1];
                    for byte in (0..=u8::MAX).filter(posix_class(name)?) {
                        insert(&mut set, byte);
                    }
                    *at = name_at + length + 1;
                    previous = None;
                } else {
                    // Without a closing `:]`, the bracket is literal.
                    insert(&mut set, b'[');
                    previous = Some(b'[');
                }
            }
            b'-' if previous.is_some() && text.get(*at).is_some_and(|&b| b != b']') => {
                let mut last = text[*at];
                *at += 1;
                if last == b'\\' {
                    last = *text.get(*at)?;
                    *at += 1;
                }
                for byte in previous?..=last {
                    insert(&mut set, byte);
                }
                previous = None;
            }
            b'\\' => {
                let escaped = *text.get(*at)?;
                *at += 1;
                insert(&mut set, escaped);
                previous = Some(escaped);
            }
            _ => {
                insert(&mut set, byte);
                previous = Some(byte);
            }
        }
        first = false;
    }
    if negated {
        set = set.map(|word| !word);
    }
    Some(set)
}

/// Returns the test for a class such as `[:alpha:]` in the C locale.
fn posix_class(name: &[u8]) -> Option<fn(&u8) -> bool> {
    Some(match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |b| matches!(b, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |b| matches!(b, b' '..=b'~'),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |b| b.is_ascii_whitespace() || *b == 0x0b,
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_the_members_of_the_c_locale() {
        for (name, count, samples) in [
            ("alnum", 62, "azAZ09"),
            ("alpha", 52, "azAZ"),
            ("blank", 2, " \t"),
            ("cntrl", 33, "\0\x1f\x7f"),
            ("digit", 10, "09"),
            ("graph", 94, "!~"),
            ("lower", 26, "az"),
            ("print", 95, " ~"),
            ("punct", 32, "!/:@[`{~"),
            ("space", 6, " \t\n\x0b\x0c\r"),
            ("upper", 26, "AZ"),
            ("xdigit", 22, "09afAF"),
        ] {
            let class = posix_class(name.as_bytes()).unwrap();
            assert_eq!((0..=u8::MAX).filter(class).count(), count, "{name}");
            assert!(samples.bytes().all(|byte| class(&byte)), "{name}");
        }
    }
}

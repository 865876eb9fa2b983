//! The syntax of `-e`: rsync itself splits the command of the remote shell into words.

use crate::error::{Error, Result};

/// Splits at blanks. Quotes of either kind protect blanks, and a doubled quote inside quotes stands for itself. No
/// other character is special.
pub fn split(text: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut word = None::<Vec<u8>>;
    let mut quote = None;
    let mut bytes = text.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match quote {
            Some(end) if byte == end => match bytes.next_if_eq(&end) {
                Some(doubled) => word.get_or_insert_default().push(doubled),
                None => quote = None,
            },
            Some(_) => word.get_or_insert_default().push(byte),
            None if matches!(byte, b'\'' | b'"') => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            None if byte == b' ' => words.extend(word.take()),
            None => word.get_or_insert_default().push(byte),
        }
    }
    if let Some(quote) = quote {
        return Err(Error::usage(format!(
            "Missing trailing-{} in remote-shell command.",
            char::from(quote)
        )));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_command_is_split_as_in_rsync() {
        for (text, words) in [
            ("ssh", &["ssh"][..]),
            ("  ssh   -p  22 ", &["ssh", "-p", "22"]),
            ("a 'b c' \"c'd\" g'h i'j", &["a", "b c", "c'd", "gh ij"]),
            ("'e''f' \"k\"\"l\" ''", &["e'f", "k\"l", ""]),
            ("m\\ n", &["m\\", "n"]),
            ("a\tb", &["a\tb"]),
            ("", &[]),
        ] {
            assert_eq!(
                split(text.as_bytes()).unwrap(),
                words.iter().map(|w| w.as_bytes()).collect::<Vec<_>>(),
                "{text}"
            );
        }
        assert_eq!(
            split(b"a 'b").unwrap_err().message,
            b"Missing trailing-' in remote-shell command."
        );
    }
}

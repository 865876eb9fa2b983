//! Temp names, `.name.XXXXXX`. Five of the letters are a checksum of the rest of the name, which distinguishes them from names
//! of other programs.

/// The longest file name.
const NAME_MAX: usize = 255;

/// Number of letters after the last dot of a temp name: one for the attempt, the others for the checksum.
const SUFFIX_LEN: usize = 6;
pub(super) const LETTERS: &[u8; 62] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// Returns the first temp name for `name`, for messages.
pub fn temp_name(name: &[u8]) -> Vec<u8> {
    nth_temp_name(name, 0)
}

/// Returns the temp name for `name` that is used last: no file that is being written has it, and none that is placed removes
/// it.
pub fn last_temp_name(name: &[u8]) -> Vec<u8> {
    nth_temp_name(name, LETTERS.len() - 1)
}

/// Returns a temp name for `name`, `.name.XXXXXX`. Truncates the name if it would become too long.
pub(super) fn nth_temp_name(name: &[u8], attempt: usize) -> Vec<u8> {
    let kept = cut(name, NAME_MAX - SUFFIX_LEN - 2);
    let mut out = Vec::with_capacity(kept.len() + SUFFIX_LEN + 2);
    out.push(b'.');
    out.extend_from_slice(kept);
    out.push(b'.');
    out.push(LETTERS[attempt]);
    let check = check_letters(&out);
    out.extend_from_slice(&check);
    out
}

/// Returns the required end of `.name.X`. Names of other programs match once in 900 million.
fn check_letters(start: &[u8]) -> [u8; SUFFIX_LEN - 1] {
    // FNV-1a. Any stable hash is sufficient, but it must not change, or leftovers are no longer recognized.
    let mut hash = start.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &b| {
        (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^= hash >> 32;
    std::array::from_fn(|_| {
        let letter = LETTERS[(hash % LETTERS.len() as u64) as usize];
        hash /= LETTERS.len() as u64;
        letter
    })
}

/// Returns the name under which a file of one of our commands is written, `.name` and `end`. Truncates the name if it would
/// become too long.
pub fn name_before_place(name: &[u8], end: &[u8]) -> Vec<u8> {
    [b".", cut(name, NAME_MAX - 1 - end.len()), end].concat()
}

/// Returns the beginning of a name, up to a length, without a part of a UTF-8 character at its end: some file systems
/// reject names that are not UTF-8.
fn cut(name: &[u8], max_bytes: usize) -> &[u8] {
    const CONTINUATIONS_MAX: usize = 3;
    if name.len() <= max_bytes {
        return name;
    }
    let is_continuation = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
    let continuations = name[..=max_bytes]
        .iter()
        .rev()
        .take_while(|byte| is_continuation(byte))
        .count();
    if continuations <= CONTINUATIONS_MAX {
        &name[..max_bytes - continuations]
    } else {
        &name[..max_bytes]
    }
}

/// Returns whether a name is one of our temp names. Does not access the file.
pub fn is_temp_name(name: &[u8]) -> bool {
    if name.len() < SUFFIX_LEN + 3 || name[0] != b'.' || name[name.len() - SUFFIX_LEN - 1] != b'.' {
        return false;
    }
    let (start, check) = name.split_at(name.len() - (SUFFIX_LEN - 1));
    check == check_letters(start)
}

/// Returns the name, possibly truncated, whose first temp name this is; `None` for other names.
pub fn name_of_temp(temp: &[u8]) -> Option<&[u8]> {
    let name = temp.get(1..temp.len().checked_sub(SUFFIX_LEN + 1)?)?;
    if temp_name(name) == temp {
        Some(name)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temp_names_end_with_whole_characters() {
        for character in ["a", "é", "漢", "🦀"] {
            for start in ["", "a", "ab", "abc"] {
                let name = format!("{start}{}", character.repeat(255));
                let temp = temp_name(name.as_bytes());
                assert!(str::from_utf8(&temp).is_ok(), "{name}");
                assert!(is_temp_name(&temp) && temp.len() > NAME_MAX - 4 && temp.len() <= NAME_MAX);
                let cut_name = name_of_temp(&temp).unwrap();
                assert!(name.as_bytes().starts_with(cut_name));
                assert!(str::from_utf8(&name_before_place(name.as_bytes(), b".new")).is_ok());
            }
        }
        // A name that is no text is cut anywhere.
        assert_eq!(temp_name(&[0x80; 255]).len(), NAME_MAX);
    }

    #[test]
    fn temp_names_are_recognized_by_their_checksum() {
        for name in [&b"a"[..], b".hidden", &[b'n'; 255], "ü.txt".as_bytes()] {
            let temp = temp_name(name);
            assert!(temp.len() <= NAME_MAX && is_temp_name(&temp));
            let mut other = temp.clone();
            *other.last_mut().unwrap() ^= 1;
            assert!(!is_temp_name(&other));
        }
        assert_eq!(
            name_of_temp(&temp_name(b"some.name")),
            Some(&b"some.name"[..])
        );
        assert_eq!(
            name_of_temp(&temp_name(&[b'n'; 255])),
            Some(&[b'n'; NAME_MAX - SUFFIX_LEN - 2][..])
        );
        assert_eq!(name_of_temp(b".a.XXXXXX"), None);
        assert_eq!(
            (name_of_temp(b""), name_of_temp(&nth_temp_name(b"a", 1))),
            (None, None)
        );
        assert_eq!(
            temp_name(b"a"),
            b".a.Auwq2e",
            "names written by earlier versions must be recognized"
        );
        assert!(
            !is_temp_name(b".bashrc.backup") && !is_temp_name(b".a.XXXXXX") && !is_temp_name(b".")
        );
    }
}

//! Parses `--chmod` into steps that need neither the umask nor the text any more.

use crate::options::ModeChange;

/// Parses one `--chmod` argument; `None` if rsync would reject it.
///
/// Without a class (`+w`) the bits in `umask` are left unchanged, as in chmod(1).
pub fn parse(text: &[u8], umask: u32) -> Option<Vec<ModeChange>> {
    text.split(|&b| b == b',')
        .map(|part| parse_part(part, umask))
        .collect()
}

fn parse_part(part: &[u8], umask: u32) -> Option<ModeChange> {
    let mut dirs = true;
    let mut files = true;
    let mut at = 0;
    let mut who = ChmodWho::default();
    if part
        .iter()
        .all(|b| b.is_ascii_digit() || matches!(b, b'D' | b'F'))
    {
        // Octal digits, possibly after repetitions of one prefix.
        while let Some(&letter @ (b'D' | b'F')) = part.get(at) {
            narrow(letter, &mut dirs, &mut files)?;
            at += 1;
        }
        return parse_octal(&part[at..], dirs, files);
    }
    let op = loop {
        match part.get(at)? {
            letter @ (b'D' | b'F') => narrow(*letter, &mut dirs, &mut files)?,
            b'u' => who.user = true,
            b'g' => who.group = true,
            b'o' => who.other = true,
            b'a' => {
                who = ChmodWho {
                    user: true,
                    group: true,
                    other: true,
                }
            }
            op @ (b'+' | b'-' | b'=') => break *op,
            _ => return None,
        }
        at += 1;
    };
    let unnamed = !who.any();
    let classes = if unnamed {
        ChmodWho {
            user: true,
            group: true,
            other: true,
        }
    } else {
        who
    };
    let allowed = if unnamed { 0o777 & !umask } else { 0o777 };
    let mut change = ModeChange {
        dirs,
        files,
        and: 0,
        or: 0,
        or_x: 0,
        copy_from_shift: None,
        copy_to: 0,
        copy_mask: 0o777,
        copy_removes: false,
    };
    let perms = &part[at + 1..];
    let assign = op == b'=';
    if assign {
        change.and |= classes.mask() * 0o7;
    }
    if let [class @ (b'u' | b'g' | b'o')] = perms {
        change.copy_from_shift = Some(match class {
            b'u' => 6,
            b'g' => 3,
            _ => 0,
        });
        change.copy_to = classes.mask();
        change.copy_mask = allowed;
        change.copy_removes = op == b'-';
        if assign {
            change.and |= classes.special() | if classes.other { 0o1000 } else { 0 };
        }
        return Some(change);
    }
    let mut bits = 0;
    let mut x_if_any = false;
    let mut special = 0;
    for perm in perms {
        match perm {
            b'r' => bits |= 4,
            b'w' => bits |= 2,
            b'x' => bits |= 1,
            b'X' => x_if_any = true,
            b's' => special |= who.setid(),
            b't' => special |= 0o1000,
            _ => return None,
        }
    }
    let mask = classes.mask();
    if op == b'-' {
        let bits = if x_if_any { bits | 1 } else { bits };
        change.and |= ((mask * bits) & allowed) | special;
        return Some(change);
    }
    if assign && special != 0 {
        change.and |= who.special();
    }
    if x_if_any {
        bits &= !1;
        change.or_x = mask & allowed;
    }
    change.or = ((mask * bits) & allowed) | special;
    Some(change)
}

fn narrow(letter: u8, dirs: &mut bool, files: &mut bool) -> Option<()> {
    match letter {
        b'D' if *dirs => *files = false,
        b'F' if *files => *dirs = false,
        _ => return None,
    }
    Some(())
}

fn parse_octal(digits: &[u8], dirs: bool, files: bool) -> Option<ModeChange> {
    if digits.is_empty() {
        return None;
    }
    let mut mode: u32 = 0;
    for digit in digits {
        mode = mode * 8 + char::from(*digit).to_digit(8)?;
        if mode > 0o7777 {
            return None;
        }
    }
    Some(ModeChange {
        dirs,
        files,
        and: 0o7777,
        or: mode,
        or_x: 0,
        copy_from_shift: None,
        copy_to: 0,
        copy_mask: 0o777,
        copy_removes: false,
    })
}

#[derive(Debug, Clone, Copy, Default)]
struct ChmodWho {
    user: bool,
    group: bool,
    other: bool,
}

impl ChmodWho {
    fn any(self) -> bool {
        self.user || self.group || self.other
    }

    /// Returns one bit per class; multiplied by permission bits, it gives the mode.
    fn mask(self) -> u32 {
        (u32::from(self.user) * 0o100) | (u32::from(self.group) * 0o010) | u32::from(self.other)
    }

    /// Returns the set-ID bits of the named classes.
    fn special(self) -> u32 {
        (u32::from(self.user) * 0o4000) | (u32::from(self.group) * 0o2000)
    }

    /// Returns the bits that `s` stands for. Without user or group, rsync means set-user-ID.
    fn setid(self) -> u32 {
        if self.user || self.group {
            self.special()
        } else {
            0o4000
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies the changes as the receiver does.
    fn apply(mode: u32, is_dir: bool, changes: &[ModeChange]) -> u32 {
        let any_x = mode & 0o111 != 0;
        changes
            .iter()
            .filter(|c| if is_dir { c.dirs } else { c.files })
            .fold(mode, |mode, c| {
                let copied = c
                    .copy_from_shift
                    .map_or(0, |shift| (((mode >> shift) & 7) * c.copy_to) & c.copy_mask);
                let mut mode = mode & !c.and;
                if c.copy_removes {
                    mode &= !copied;
                } else {
                    mode |= copied;
                }
                mode |= c.or;
                if is_dir || any_x { mode | c.or_x } else { mode }
            })
    }

    fn check(table: &str, umask: u32) {
        for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let octal = |text| u32::from_str_radix(text, 8).unwrap();
            let changes = parse(words[1].as_bytes(), umask).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(
                apply(octal(words[0]), words[2] == "d", &changes),
                octal(words[3]),
                "{line}"
            );
        }
    }

    #[test]
    fn chmod_results_match_rsync() {
        check(
            "0444 +w f 644\n 0444 +x f 555\n 0444 =rw f 644\n 0666 -w f 466\n 0444 go+w f 466\n 0444 u+X f 444
             0411 u+X f 511\n 0755 u+X d 755\n 0544 a-X f 444\n 0755 a-X d 644\n 0444 a=X f 0\n 0544 a=X f 111
             0444 g=rX f 444\n 0544 g=rX f 554\n 0755 u=X d 155\n 0411 a-x,u+X f 500\n 0411 a+x,a-X f 400
             7644 u=rwx f 7744\n 7644 =rwx f 7755\n 7644 a= f 7000\n 0644 o+s f 4644\n 0644 a+s f 6644\n 0644 +s f 4644
             7644 a-s f 1644\n 7755 ug=rws d 7665\n 7644 u-t f 6644\n 7644 u=t f 3044\n 7644 o=t f 7640\n 7644 =t f 7000
             7644 755 f 755\n 7755 7755 d 7755\n 7642 a=t f 1000\n 7642 g=t f 5602\n 0642 go=s f 2600\n 7642 o=s f 7640
             7642 =st f 7000\n 0642 o-s f 642\n 7642 -st f 2642\n 0642 ug=t f 1002",
            0o022,
        );
        check(
            "0444 +x f 544\n 0444 =rw f 600\n 0666 -w f 466\n 711 -X f 611\n 755 =X f 100",
            0o077,
        );
    }

    #[test]
    fn copying_permission_classes_matches_rsync() {
        check(
            "0742 u=g f 442\n 7742 u=g f 3442\n 7742 g=u f 5772\n 7742 o=u f 6747\n 0742 u+g f 742\n 7742 u-g f 7342
             7742 ug=o f 1222\n 0742 g-u f 702\n 7742 =u f 755\n 7742 +u f 7757\n 0742 -g f 302\n 7742 a=u f 777
             0742 ug-o f 542\n 0742 D+u d 757\n 0742 D+u f 742\n 0742 g=u,o=g f 777\n 7742 g=u,o=g f 4777\n 7642 u=u f 3642
             0644 a+XX f 644\n 0644 u+xX f 644\n 0100 a-x,a+X f 111\n 0644 u+x,F600,D700 d 700\n 0644 uD+x f 644",
            0o022,
        );
        check("0124 u=g f 224\n 0124 =u f 110\n 0124 +u f 134", 0o027);
    }

    #[test]
    fn invalid_chmod_is_rejected() {
        for text in [
            "", "u", "x", "u+z", "888", "17777", "D", "F", "DFu+x", "u=gr", "g=u-x", "u+x-w",
            "u+x,", ",u+x", "t", "X", "u=go", "u+rg", "Dx", "u++x", "75x", "644,", "DF644",
            "FD600", "u+Fx", "700x", "u+ux",
        ] {
            assert!(parse(text.as_bytes(), 0).is_none(), "{text}");
        }
        for text in [
            "DD755", "00755", "u+", "=", "+", "go=", "aa+x", "ua+x", "F-X",
        ] {
            assert!(parse(text.as_bytes(), 0).is_some(), "{text}");
        }
    }
}

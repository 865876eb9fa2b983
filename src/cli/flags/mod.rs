//! The table of options, one file per policy.

use super::flag::{Flag, Polarity};

pub mod check;
pub mod connect;
pub mod delete;
pub mod delta;
pub mod output;
pub mod own;
pub mod place;
pub mod preserve;
pub mod select;

/// The options by subject, in the order of `--help`.
pub static GROUPS: [(&str, &[Flag]); 9] = [
    ("Output", output::FLAGS),
    ("Selection of entries", select::FLAGS),
    ("Comparison", check::FLAGS),
    ("Attributes", preserve::FLAGS),
    ("Deletion", delete::FLAGS),
    ("Writing files", place::FLAGS),
    (
        "Deltas, alternate destinations and compression",
        delta::FLAGS,
    ),
    ("Connections and limits", connect::FLAGS),
    ("Options that rsync does not have", own::FLAGS),
];

/// Every option, in the order of `--help`.
pub fn all() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().flat_map(|(_, flags)| flags.iter())
}

/// Finds a long name, without dashes.
pub fn by_long(name: &str) -> Option<(&'static Flag, Polarity)> {
    if name.is_empty() {
        return None;
    }
    all().find_map(|flag| {
        if flag.long == name || flag.aliases.contains(&name) {
            Some((flag, Polarity::On))
        } else if flag.negations.contains(&name) {
            Some((flag, Polarity::Off))
        } else {
            None
        }
    })
}

/// Finds a letter.
pub fn by_short(letter: char) -> Option<&'static Flag> {
    all().find(|flag| flag.short == Some(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_name_finds_its_flag() {
        for flag in all() {
            if !flag.long.is_empty() {
                assert!(
                    matches!(by_long(flag.long), Some((found, Polarity::On)) if std::ptr::eq(found, flag))
                );
            }
            for name in flag.aliases {
                assert!(
                    matches!(by_long(name), Some((found, Polarity::On)) if std::ptr::eq(found, flag)),
                    "{name}"
                );
            }
            for name in flag.negations {
                assert!(
                    matches!(by_long(name), Some((found, Polarity::Off)) if std::ptr::eq(found, flag)),
                    "{name}"
                );
            }
            if let Some(letter) = flag.short {
                assert!(
                    std::ptr::eq(by_short(letter).expect("listed"), flag),
                    "-{letter}"
                );
            }
        }
    }

    #[test]
    fn option_names_are_unique() {
        let mut names: Vec<String> = Vec::new();
        for flag in all() {
            if !flag.long.is_empty() {
                names.push(flag.long.into());
            }
            names.extend(
                flag.aliases
                    .iter()
                    .chain(flag.negations)
                    .map(|name| name.to_string()),
            );
            names.extend(flag.short.map(|letter| format!("-{letter}")));
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

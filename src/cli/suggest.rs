//! Suggests the name that a misspelled word probably stands for.

/// A shorter word is not completed: too many names begin with it.
const PREFIX_LEN_MIN: usize = 3;

/// Returns the known name that a word is most similar to; `None` if it is similar to none.
///
/// A word that a name begins with stands for the shortest such name. Otherwise one edit in five letters is accepted, but
/// at least one and at most three; a transposition is one edit.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let known: Vec<&str> = known.into_iter().collect();
    let completed = known
        .iter()
        .filter(|name| word.len() >= PREFIX_LEN_MIN && name.starts_with(word))
        .min_by_key(|name| name.len());
    if let Some(name) = completed {
        return Some(name);
    }

    let edits_max = (word.len() / 5).clamp(1, 3);
    known
        .into_iter()
        .map(|name| (strsim::osa_distance(word, name), name))
        .filter(|(edits, name)| *edits <= edits_max && *edits < name.len())
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn similar_names_are_suggested_and_others_are_not() {
        let known = [
            "start",
            "status",
            "stop",
            "delete",
            "delete-after",
            "max-delete",
            "u",
        ];
        for (word, meant) in [
            ("statu", Some("status")),
            ("stat", Some("status")),
            ("strat", Some("start")),
            ("delet", Some("delete")),
            ("delete-aft", Some("delete-after")),
            ("deletes", Some("delete")),
            ("max-delte", Some("max-delete")),
            ("sto", Some("stop")),
            ("st", None),
            ("x", None),
            ("", None),
            ("foo", None),
            ("install", None),
            ("größe", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
    }
}

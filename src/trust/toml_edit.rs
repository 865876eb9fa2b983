//! Preserves the formatting of a TOML list when a program changes it: comments, blank lines, the order of keys.

use toml_edit::{ArrayOfTables, DocumentMut, Item, Table};

/// Returns the text `after`, with the formatting of `before` for everything that both contain.
///
/// Both are lists of tables in TOML; `id` is the key that matches their tables. If either text cannot be parsed,
/// `after` is returned unchanged.
pub fn kept(before: &str, after: &str, id: &str) -> String {
    let (Ok(mut doc), Ok(wanted)) = (before.parse::<DocumentMut>(), after.parse::<DocumentMut>())
    else {
        return after.to_owned();
    };
    if doc.is_empty() {
        return [before, after].concat();
    }
    let lists: Vec<String> = doc
        .iter()
        .chain(wanted.iter())
        .map(|(key, _)| key.to_owned())
        .collect();
    for key in lists {
        match wanted.get(&key).and_then(Item::as_array_of_tables) {
            Some(wanted) => {
                let old = doc
                    .get(&key)
                    .and_then(Item::as_array_of_tables)
                    .cloned()
                    .unwrap_or_default();
                doc.insert(&key, Item::ArrayOfTables(joined(&old, wanted, id)));
            }
            None => _ = doc.remove(&key),
        }
    }
    doc.to_string()
}

fn joined(old: &ArrayOfTables, wanted: &ArrayOfTables, id: &str) -> ArrayOfTables {
    let of = |table: &Table| table.get(id).and_then(Item::as_str).map(str::to_owned);
    let mut joined = ArrayOfTables::new();
    for wanted in wanted {
        joined.push(match old.iter().find(|old| of(old) == of(wanted)) {
            Some(old) => changed(old.clone(), wanted),
            None => {
                let mut new = wanted.clone();
                // Formatted like the others: after a blank line, and behind them.
                new.decor_mut()
                    .set_prefix(if joined.is_empty() { "" } else { "\n" });
                new.set_position(None);
                new
            }
        });
    }
    joined
}

/// Returns the table with these values and its own formatting.
fn changed(mut table: Table, wanted: &Table) -> Table {
    table.retain(|key, _| wanted.contains_key(key));
    for (key, item) in wanted {
        match (
            table.get_mut(key).and_then(Item::as_value_mut),
            item.as_value(),
        ) {
            (Some(old), Some(new)) if old.to_string().trim() == new.to_string().trim() => {}
            (Some(old), Some(new)) => {
                let decor = old.decor().clone();
                *old = new.clone();
                *old.decor_mut() = decor;
            }
            _ => _ = table.insert(key, item.clone()),
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "# Ours.\n\n# The box in the attic.\n[[host]]\nname = \"a\" # as in /etc/hosts\nport = 7\n# twice moved\n\
                          addresses = [\"x\", \"y\"]\n\n# Not ours.\n[[host]]\nport = 8\nname = \"b\"\n# the end\n";

    #[test]
    fn unchanged_entries_keep_their_formatting() {
        for after in [
            "[[host]]\nname = \"a\"\nport = 7\naddresses = [\"x\", \"y\"]\n\n[[host]]\nname = \"b\"\nport = 8\n",
            "[[host]]\nname = \"a\"\nport = 7\naddresses = [\n    \"x\",\n    \"y\",\n]\n\n[[host]]\nname = \"b\"\nport = 8\n",
        ] {
            assert_eq!(
                kept(BEFORE, after, "name").parse::<toml::Table>().unwrap(),
                after.parse().unwrap()
            );
        }
        let same = "[[host]]\nname = \"a\"\nport = 7\naddresses = [\"x\", \"y\"]\n\n[[host]]\nname = \"b\"\nport = 8\n";
        assert_eq!(kept(BEFORE, same, "name"), BEFORE);
    }

    #[test]
    fn changed_entries_keep_surrounding_comments() {
        let after = "[[host]]\nname = \"a\"\nport = 9\nlast = \"tls\"\n\n[[host]]\nname = \"c\"\nport = 1\n";
        assert_eq!(
            kept(BEFORE, after, "name"),
            "# Ours.\n\n# The box in the attic.\n[[host]]\nname = \"a\" # as in /etc/hosts\nport = 9\nlast = \"tls\"\n\n\
             [[host]]\nname = \"c\"\nport = 1\n# the end\n"
        );
        assert_eq!(kept("", after, "name"), after);
        assert_eq!(
            kept("# Ours.\n\n", after, "name"),
            ["# Ours.\n\n", after].concat()
        );
        assert_eq!(kept("not TOML", after, "name"), after);
        assert_eq!(
            kept(BEFORE, "", "name").parse::<toml::Table>().unwrap(),
            toml::Table::new()
        );
    }
}

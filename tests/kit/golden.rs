//! The golden file of all messages of our own, in sections. `SPARSYNC_BLESS=1` rewrites a section instead of comparing it.

use std::sync::{Mutex, PoisonError};

/// The golden file.
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/own_messages.txt");

/// Whether sections are rewritten.
pub fn is_blessing() -> bool {
    std::env::var_os("SPARSYNC_BLESS").is_some()
}

/// Returns the sections of the golden file.
pub fn sections() -> Vec<String> {
    let text = std::fs::read_to_string(PATH).unwrap_or_default();
    text.split("\n\n\n")
        .map(|part| part.trim_end().to_owned())
        .filter(|part| !part.is_empty())
        .collect()
}

/// Compares a section with the golden file, or rewrites it there. Its first line is `# NUMBER. TITLE`.
#[track_caller]
pub fn compare(section: &str) {
    static FILE: Mutex<()> = Mutex::new(());
    let title = section.lines().next().expect("a section has a title");
    let section = section.trim_end().to_owned();
    let _guard = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut sections = sections();
    let at = sections
        .iter()
        .position(|part| part.lines().next() == Some(title));
    if is_blessing() {
        match at {
            Some(at) => sections[at] = section,
            None => sections.push(section),
        }
        let number = |part: &String| {
            part[2..]
                .split('.')
                .next()
                .and_then(|number| number.parse::<u32>().ok())
        };
        sections.sort_by_key(number);
        return std::fs::write(PATH, sections.join("\n\n\n") + "\n")
            .expect("the golden file can be written");
    }
    let golden = at.map_or("", |at| &sections[at]);
    let differs = golden
        .lines()
        .zip(section.lines())
        .find(|(old, new)| old != new);
    assert!(
        golden == section,
        "SPARSYNC_BLESS=1 accepts this: {differs:?}\n{section}"
    );
}

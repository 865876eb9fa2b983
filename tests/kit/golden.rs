//! The golden files of all messages of our own, one for each area. `SPARSYNC_BLESS=1` rewrites a file instead of comparing it.

use std::path::Path;

/// The directory of the golden files.
pub const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/own_messages");

/// Whether golden files are rewritten.
pub fn is_blessing() -> bool {
    std::env::var_os("SPARSYNC_BLESS").is_some()
}

/// Compares the messages of an area with its golden file, or rewrites that file.
#[track_caller]
pub fn compare(area: &str, messages: &str) {
    let path = Path::new(DIR).join(area).with_extension("txt");
    let messages = messages.trim_end().to_owned() + "\n";
    if is_blessing() {
        return std::fs::write(path, messages).expect("a golden file can be written");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = golden
        .lines()
        .zip(messages.lines())
        .find(|(old, new)| old != new);
    assert!(
        golden == messages,
        "SPARSYNC_BLESS=1 accepts this as {}: {differs:?}\n{messages}",
        path.display()
    );
}

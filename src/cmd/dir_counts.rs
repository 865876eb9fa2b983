//! Counts by directory, and the directories with the largest ones, for messages and summaries.

use std::collections::HashMap;

/// The maximum number of directories that are counted apart. What belongs to others counts for the root.
const DIRS_MAX: usize = 100_000;
/// How many directories are shown.
const DIRS_SHOWN: usize = 3;

/// The path of the root in the counts.
pub const ROOT: &[u8] = b".";

/// Counts by directory. Memory is bounded by [`DIRS_MAX`].
#[derive(Debug, Default)]
pub struct DirCounts(HashMap<Vec<u8>, u64>);

impl DirCounts {
    /// Adds to the count of a directory.
    pub fn add(&mut self, dir: &[u8], number: u64) {
        if let Some(count) = self.0.get_mut(dir) {
            *count = count.saturating_add(number);
            return;
        }
        let counted = if self.0.len() < DIRS_MAX { dir } else { ROOT };
        let count = self.0.entry(counted.to_vec()).or_default();
        *count = count.saturating_add(number);
    }

    /// Returns the directories with the largest counts, largest first, then by path. None of them is 0.
    pub fn largest(&self) -> Vec<(&[u8], u64)> {
        let mut dirs = Vec::new();
        for (dir, count) in &self.0 {
            if *count > 0 {
                dirs.push((dir.as_slice(), *count));
            }
        }
        dirs.sort_unstable_by(|(dir, count), (other, more)| more.cmp(count).then(dir.cmp(other)));
        dirs.truncate(DIRS_SHOWN);
        dirs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_counts_come_first() {
        let mut counts = DirCounts::default();
        for (dir, number) in [("a", 1), ("b", 2), ("c", 2), ("a", 3), ("d", 0), ("e", 1)] {
            counts.add(dir.as_bytes(), number);
        }
        let wanted = [(&b"a"[..], 4), (b"b", 2), (b"c", 2)];
        assert_eq!(counts.largest(), wanted);
    }

    #[test]
    fn directories_beyond_the_maximum_count_for_the_root() {
        let mut counts = DirCounts::default();
        for dir in 0..DIRS_MAX {
            counts.add(dir.to_string().as_bytes(), 1);
        }
        counts.add(b"more", 2);
        counts.add(b"even more", 3);
        assert_eq!(counts.largest()[0], (ROOT, 5));
        assert_eq!(counts.0.len(), DIRS_MAX + 1);
    }
}

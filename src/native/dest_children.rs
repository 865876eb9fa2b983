//! The subdirectories of the receiver, against which a sender matches its own.

/// The subdirectories that the receiver has in a directory, in the receiver's order. The sender matches its own against
/// them.
pub struct Children<N> {
    in_order: Vec<N>,
    /// With their positions, sorted. Built when the sender first has a directory that is not the next one.
    by_name: Vec<(N, usize)>,
    /// How many the sender has matched or skipped.
    passed: usize,
}

impl<N: Ord + Copy> Children<N> {
    /// Creates the list with none of them matched.
    pub fn new(in_order: Vec<N>) -> Children<N> {
        Children {
            in_order,
            by_name: Vec::new(),
            passed: 0,
        }
    }

    /// Matches the next one of this name and returns how many were skipped before it. Returns `None` and changes
    /// nothing if there is none.
    pub fn pass_to(&mut self, name: N) -> Option<usize> {
        if self.in_order.get(self.passed) == Some(&name) {
            self.passed += 1;
            return Some(0);
        }
        if self.by_name.is_empty() {
            self.by_name = self.in_order.iter().copied().zip(0..).collect();
            self.by_name.sort_unstable();
        }
        let next = self
            .by_name
            .partition_point(|&child| child < (name, self.passed));
        let &(_, at) = self.by_name.get(next).filter(|(found, _)| *found == name)?;
        let ahead = at - self.passed;
        self.passed = at + 1;
        Some(ahead)
    }

    /// Returns how many are left.
    pub fn left(&self) -> usize {
        self.in_order.len() - self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::cmp::Ordering;

    thread_local!(static COMPARED: Cell<u64> = const { Cell::new(0) });

    /// A name that counts its comparisons.
    #[derive(Clone, Copy)]
    struct CountedEntries(u32);

    impl Ord for CountedEntries {
        fn cmp(&self, other: &CountedEntries) -> Ordering {
            COMPARED.set(COMPARED.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for CountedEntries {
        fn partial_cmp(&self, other: &CountedEntries) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for CountedEntries {
        fn eq(&self, other: &CountedEntries) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl Eq for CountedEntries {}

    #[test]
    fn lookup_of_missing_children_takes_logarithmic_time() {
        let many = 20_000;
        let mut children = Children::new((0..many).map(|n| CountedEntries(2 * n)).collect());
        assert!((0..many).all(|n| children.pass_to(CountedEntries(2 * n + 1)).is_none()));
        // A sort and as many searches: log2(20,000) is 14.3, and a pair takes up to two comparisons.
        let compared = COMPARED.get();
        assert!(compared < 100 * u64::from(many), "{compared} comparisons");
        assert_eq!(children.left(), many as usize);
    }

    proptest! {
        #[test]
        fn pass_to_finds_the_next_child_of_a_name(names in prop::collection::vec(0u32..6, 0..12), queried in prop::collection::vec(0u32..6, 0..12)) {
            let mut children = Children::new(names.clone());
            let mut rest = &names[..];
            for name in queried {
                let ahead = rest.iter().position(|&n| n == name);
                prop_assert_eq!(children.pass_to(name), ahead);
                rest = &rest[ahead.map_or(0, |ahead| ahead + 1)..];
                prop_assert_eq!(children.left(), rest.len());
            }
        }
    }
}

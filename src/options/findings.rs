//! The findings of `sparsync check`, and which of them are printed.

/// What was found about one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// It is the same on both sides.
    Equal,
    /// Both sides have it, but content or attributes differ.
    Differs,
    /// Only the source has it, or the manifest.
    SourceOnly,
    /// Only the destination has it, or the tree that is compared with a manifest.
    DestOnly,
}

/// All findings, in the order of the summary.
pub const ALL: [Finding; 4] = [
    Finding::Equal,
    Finding::Differs,
    Finding::SourceOnly,
    Finding::DestOnly,
];

/// What is compared, which determines the words for the findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComparisonKind {
    /// Two trees: `check SRC DST`.
    Trees,
    /// A manifest and a tree: `check --manifest=FILE TREE`.
    Manifest,
}

impl Finding {
    /// Returns its name in `--list` and in JSON.
    pub fn name(self, compared: ComparisonKind) -> &'static str {
        match (self, compared) {
            (Finding::Equal, _) => "equal",
            (Finding::Differs, _) => "differ",
            (Finding::SourceOnly, ComparisonKind::Trees) => "source-only",
            (Finding::DestOnly, ComparisonKind::Trees) => "dest-only",
            (Finding::SourceOnly, ComparisonKind::Manifest) => "missing",
            (Finding::DestOnly, ComparisonKind::Manifest) => "new",
        }
    }
}

/// The findings that are printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrintedFindings(Vec<Finding>);

impl PrintedFindings {
    /// Returns all differences, which are the default.
    pub fn differences() -> PrintedFindings {
        PrintedFindings(ALL[1..].to_vec())
    }

    /// Parses the value of `--list`; `None` if it is not a list of names.
    pub fn parse(text: &[u8], compared: ComparisonKind) -> Option<PrintedFindings> {
        let known = |name: &[u8]| {
            ALL.into_iter()
                .find(|finding| finding.name(compared).as_bytes() == name)
        };
        let named: Option<Vec<_>> = text.split(|&byte| byte == b',').map(known).collect();
        named.map(PrintedFindings)
    }

    /// Returns the names for `--list`.
    pub fn names(compared: ComparisonKind) -> String {
        ALL.map(|finding| finding.name(compared)).join(", ")
    }

    /// Returns whether a finding is printed.
    pub fn contain(&self, finding: Finding) -> bool {
        self.0.contains(&finding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_findings_are_named() {
        let parse = |text: &str, compared| PrintedFindings::parse(text.as_bytes(), compared);
        assert_eq!(
            parse("equal,dest-only", ComparisonKind::Trees),
            Some(PrintedFindings(vec![Finding::Equal, Finding::DestOnly]))
        );
        assert_eq!(parse("new", ComparisonKind::Trees), None);
        assert_eq!(parse("", ComparisonKind::Manifest), None);
        assert_eq!(
            parse(
                &PrintedFindings::names(ComparisonKind::Manifest).replace(", ", ","),
                ComparisonKind::Manifest
            ),
            Some(PrintedFindings(ALL.to_vec()))
        );
    }
}

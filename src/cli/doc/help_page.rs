//! Parses the help page of a subcommand into its parts, from which man pages and completions are made.

/// The help page of a subcommand.
pub struct HelpPage {
    /// The first line: what the subcommand does.
    pub summary: &'static str,
    /// The ways to call it.
    pub usage: Vec<&'static str>,
    /// Its parts. The first one has no title.
    pub sections: Vec<Section>,
}

/// A part of a page.
pub struct Section {
    /// The title, such as `OPTIONS`; empty for the text before the first title.
    pub title: &'static str,
    /// The lines of the section as they are, without its indentation.
    pub lines: Vec<&'static str>,
    /// Its content.
    pub blocks: Vec<Block>,
}

/// A block of text.
pub enum Block {
    /// A paragraph.
    Paragraph(String),
    /// An option, a subcommand or a file, and its description. The description may be empty.
    Entry {
        /// Its names: `--rsh=COMMAND, -e`.
        names: &'static str,
        /// What it is.
        help: String,
    },
}

impl HelpPage {
    /// Parses a page.
    pub fn parse(text: &'static str) -> HelpPage {
        let mut lines = text.lines();
        let mut page = HelpPage {
            summary: lines.next().unwrap_or_default(),
            usage: Vec::new(),
            sections: Vec::new(),
        };
        let mut section = Section {
            title: "",
            lines: Vec::new(),
            blocks: Vec::new(),
        };
        let mut is_new = true;
        for line in lines {
            let words = line.trim();
            let usage = line
                .strip_prefix("Usage: ")
                .or_else(|| line.strip_prefix("  or   "));
            if let Some(usage) = usage {
                page.usage.push(usage);
            } else if words.is_empty() {
                is_new = true;
                continue;
            } else if line.bytes().all(|b| b.is_ascii_uppercase()) {
                let next = Section {
                    title: line,
                    lines: Vec::new(),
                    blocks: Vec::new(),
                };
                page.sections.push(std::mem::replace(&mut section, next));
            } else {
                section.lines.push(line.strip_prefix("  ").unwrap_or(line));
                let is_entry = line.starts_with("  ") && !line.starts_with("   ");
                match section.blocks.last_mut() {
                    _ if is_entry => {
                        let (names, help) = words.split_once("  ").unwrap_or((words, ""));
                        section.blocks.push(Block::Entry {
                            names,
                            help: help.trim().to_owned(),
                        });
                    }
                    Some(Block::Paragraph(text) | Block::Entry { help: text, .. }) if !is_new => {
                        if !text.is_empty() {
                            text.push(' ');
                        }
                        text.push_str(words);
                    }
                    _ => section.blocks.push(Block::Paragraph(words.to_owned())),
                }
            }
            is_new = false;
        }
        page.sections.push(section);
        page
    }

    /// Returns the names and descriptions of its options.
    pub fn options(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let options = self
            .sections
            .iter()
            .filter(|section| section.title == "OPTIONS");
        options
            .flat_map(|section| &section.blocks)
            .filter_map(|block| match block {
                Block::Entry { names, help } => Some((*names, help.as_str())),
                Block::Paragraph(_) => None,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_its_parts() {
        let page = HelpPage::parse(
            "Do it.\n\nUsage: sparsync x [OPTION]\n  or   sparsync x --list\n\nOne\ntwo.\n\nThree.\n\nOPTIONS\n  \
             --long=VALUE, -l        first line;\n                          second line\n  --very-long-option\n      \
             \x20                   below\n\nAfter.\n",
        );
        assert_eq!(
            (page.summary, page.usage.as_slice()),
            ("Do it.", &["sparsync x [OPTION]", "sparsync x --list"][..])
        );
        let options: Vec<_> = page.options().collect();
        assert_eq!(
            options,
            [
                ("--long=VALUE, -l", "first line; second line"),
                ("--very-long-option", "below")
            ]
        );
        let paragraphs = page
            .sections
            .iter()
            .flat_map(|section| &section.blocks)
            .filter_map(|block| match block {
                Block::Paragraph(text) => Some(text.as_str()),
                Block::Entry { .. } => None,
            });
        assert_eq!(
            paragraphs.collect::<Vec<_>>(),
            ["One two.", "Three.", "After."]
        );
    }
}

//! The man pages in roff, with the macros of man(7).

use super::help::{OPERANDS, names};
use super::help_page::{Block, HelpPage};
use super::version::VERSION;
use crate::cli::flag::{Flag, Support};
use crate::cli::flags;
use crate::cli::subcommand;
use crate::exit::Exit;

/// The date in the footer: the last change of these texts.
const DATE: &str = "2026-11-23";

/// Returns one of [`crate::cli::args::MAN_PAGES`].
pub fn man_page(page: &str) -> String {
    let mut out = Roff(String::new());
    match page {
        "sparsync" => sparsync(&mut out),
        "server" => {
            let pages = pages_of("server");
            out.begin("sparsync-server", &pages[0].1);
            out.sections(&pages[0].1, "SH");
            for (name, page) in &pages[1..] {
                out.title("SH", &name.to_uppercase());
                out.line(page.summary);
                out.verbatim(&page.usage);
                out.sections(page, "SS");
            }
            out.examples(&pages);
            out.see_also(&[
                "sparsync(1)",
                "sparsync-enroll(1)",
                "systemctl(1)",
                "journalctl(1)",
            ]);
        }
        subcommand => single(&mut out, subcommand),
    }
    out.0
}

/// Writes the page of a subcommand without actions.
fn single(out: &mut Roff, subcommand: &str) {
    let pages = pages_of(subcommand);
    out.begin(&format!("sparsync-{subcommand}"), &pages[0].1);
    out.sections(&pages[0].1, "SH");
    out.examples(&pages);
    out.see_also(&["sparsync(1)", "sparsync-server(1)", "ssh(1)"]);
}

/// Returns the help pages of a subcommand and of its actions.
fn pages_of(subcommand: &str) -> Vec<(&'static str, HelpPage)> {
    let pages = subcommand::PAGES
        .into_iter()
        .filter(|(name, _)| name.split(' ').next() == Some(subcommand));
    pages
        .map(|(name, text)| (name, HelpPage::parse(text)))
        .collect()
}

const DESCRIPTION: [&str; 3] = [
    "sparsync copies and mirrors trees of files. It accepts the options of rsync 3.5.0 and has the same result on \
     disk, the same output and the same exit codes, in less time. It can be installed under the name `rsync`.",
    "If both trees are on this machine, sparsync copies between them. If one of them is on another machine that has \
     sparsync, the copy uses ssh, or QUIC or TLS if the host was enrolled with sparsync-enroll(1). If that machine \
     has only rsync, or is an rsync daemon, sparsync speaks rsync's protocol.",
    "`src/` means the content of the directory, `src` the directory itself. rsync(1) describes patterns, filter rules \
     and formats in full.",
];

const EXAMPLES: [&str; 6] = [
    "sparsync -ai --delete src/ /mnt/mirror/",
    "sparsync -a src/ box:dst/",
    "sparsync -a alice@box:/srv/data/ data/",
    "sparsync -ain --delete --exclude=/cache/ site/ web:/srv/site/",
    "sparsync enroll --install box",
    "sparsync -aP disk.img box:images/",
];

const ENVIRONMENT: [(&str, &str); 11] = [
    (
        "SPARSYNC_TRANSPORT",
        "The value of --transport for all runs.",
    ),
    (
        "SPARSYNC_UI",
        "If 1, every run on a terminal has a live display, as with --ui.",
    ),
    (
        "SPARSYNC_RSYNC",
        "An rsync to execute for runs that sparsync does not support.",
    ),
    (
        "SPARSYNC_CONFIG_DIR",
        "The directory for keys, hosts and grants; the state of a server goes to `state/` in it.",
    ),
    ("RSYNC_RSH", "The remote shell, as with -e."),
    (
        "RSYNC_PARTIAL_DIR",
        "The directory for partial files with --partial.",
    ),
    (
        "RSYNC_CHECKSUM_LIST, RSYNC_COMPRESS_LIST",
        "The methods to select from, the preferred one first.",
    ),
    (
        "RSYNC_PROTECT_ARGS, RSYNC_OLD_ARGS",
        "Defaults of --secluded-args and --old-args.",
    ),
    (
        "RSYNC_ICONV, RSYNC_MAX_ALLOC",
        "Defaults of --iconv and --max-alloc.",
    ),
    ("CVSIGNORE", "Patterns for -C."),
    (
        "POSIXLY_CORRECT",
        "If set, options end at the first operand.",
    ),
];

const FILES: [(&str, &str); 4] = [
    (
        "~/.config/sparsync (root: /etc/sparsync)",
        "The key, the enrolled hosts and the grants.",
    ),
    (
        "~/.local/state/sparsync (root: /var/lib/sparsync)",
        "The log and the state of a running server.",
    ),
    (
        "/etc/popt, ~/.popt",
        "Aliases for options, as lines `rsync alias NAME WORDS`.",
    ),
    ("~/.cvsignore", "Patterns for -C."),
];

fn sparsync(out: &mut Roff) {
    out.header("sparsync", "copy and mirror trees of files, a faster rsync");
    let copies = OPERANDS
        .iter()
        .map(|operands| format!("sparsync [OPTION]... {operands}"));
    let others = [
        "sparsync bench scan [OPTION]... PATH",
        "sparsync bench sync [OPTION]... SRC DST",
        "sparsync bench scan|sync --shape=LIST [OPTION]... [DIR]",
        "sparsync doctor [OPTION]... [[USER@]HOST]",
        "sparsync enroll [OPTION]... [USER@]HOST",
        "sparsync server SUBCOMMAND [OPTION]... [[USER@]HOST]",
    ];
    out.verbatim(&copies.chain(others.map(String::from)).collect::<Vec<_>>());
    out.title("SH", "DESCRIPTION");
    out.paragraphs(&DESCRIPTION);
    out.title("SH", "OPTIONS");
    for (title, flags) in &flags::GROUPS {
        out.title("SS", title);
        for flag in *flags {
            if flag.support.is_for_users() {
                option(out, flag);
            }
        }
    }
    out.title("SS", "Negations");
    out.entry(
        "--no-OPTION",
        "Disables OPTION, also if another option implies it (--no-D).",
    );
    out.title("SH", "EXIT STATUS");
    for (code, words) in Exit::meanings() {
        out.entry(&code.to_string(), words);
    }
    out.entry(
        "75",
        "another run holds the lock of this destination (--lock)",
    );
    out.title("SH", "ENVIRONMENT");
    for (names, help) in &ENVIRONMENT {
        out.entry(names, help);
    }
    out.title("SH", "FILES");
    for (names, help) in &FILES {
        out.entry(names, help);
    }
    out.title("SH", "EXAMPLES");
    out.verbatim(&EXAMPLES);
    let others = [
        "apply", "bench", "cache", "check", "doctor", "enroll", "explain", "hash", "plan", "server",
    ]
    .map(|name| format!("sparsync-{name}(1)"));
    let others: Vec<_> = others
        .iter()
        .map(String::as_str)
        .chain(["rsync(1)", "ssh(1)"])
        .collect();
    out.see_also(&others);
}

fn option(out: &mut Roff, flag: &Flag) {
    let aliases = flag.aliases.iter().map(|alias| format!(", --{alias}"));
    let mut text = vec![sentence(flag.help)];
    text.extend((!flag.man.is_empty()).then(|| flag.man.to_owned()));
    if !flag.negations.is_empty() {
        let negations: Vec<_> = flag
            .negations
            .iter()
            .map(|name| format!("`--{name}`"))
            .collect();
        let effect = if flag.help_off.is_empty() {
            "turn it off"
        } else {
            flag.help_off
        };
        text.push(format!("{}: {effect}.", negations.join(", ")));
    }
    let support = match flag.support {
        Support::Yes | Support::OverSsh | Support::ServerSide | Support::InSession => "",
        Support::NoEffect => "Accepted, without effect.",
        Support::Refused => "Rejected on Linux, as by rsync.",
    };
    text.push(support.to_owned());
    out.entry(
        &(names(flag) + &aliases.collect::<String>()),
        text.join(" ").trim_end(),
    );
}

/// Returns help text as a sentence: a capital letter, and a full stop.
fn sentence(help: &str) -> String {
    let mut letters = help.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    format!("{}{}.", first.collect::<String>(), letters.as_str())
}

/// A page that is being written.
struct Roff(String);

impl Roff {
    fn header(&mut self, name: &str, purpose: &str) {
        let title = escaped(&name.to_uppercase());
        let name = escaped(name);
        self.0 += &format!(".TH {title} 1 {DATE} \"sparsync {VERSION}\" \"User Commands\"\n");
        // Left-aligned and without hyphenation: names of options stay in one piece.
        self.0 += ".nh\n.ad l\n.SH NAME\n";
        self.0 += &format!("{name} \\- {}\n", escaped(purpose));
        self.title("SH", "SYNOPSIS");
    }

    /// Writes the header and the usage of a subcommand.
    fn begin(&mut self, name: &str, page: &HelpPage) {
        let (first, rest) = page.summary.split_at(1);
        self.header(name, (first.to_lowercase() + rest).trim_end_matches('.'));
        self.verbatim(&page.usage);
        self.title("SH", "DESCRIPTION");
        self.line(page.summary);
    }

    /// Writes the sections of a help page, except its examples. `level`: the macro of their titles.
    fn sections(&mut self, page: &HelpPage, level: &str) {
        for section in page
            .sections
            .iter()
            .filter(|section| section.title != "EXAMPLES")
        {
            if !section.title.is_empty() {
                self.title(level, section.title);
            }
            for block in &section.blocks {
                match block {
                    Block::Paragraph(text) => self.paragraphs(&[text]),
                    Block::Entry { names, help } if help.is_empty() => self.paragraphs(&[names]),
                    Block::Entry { names, help } => self.entry(names, help),
                }
            }
        }
    }

    fn examples(&mut self, pages: &[(&str, HelpPage)]) {
        let sections = pages.iter().flat_map(|(_, page)| &page.sections);
        let lines = sections
            .filter(|section| section.title == "EXAMPLES")
            .flat_map(|section| &section.lines);
        self.title("SH", "EXAMPLES");
        self.verbatim(&lines.collect::<Vec<_>>());
    }

    fn see_also(&mut self, pages: &[&str]) {
        self.title("SH", "SEE ALSO");
        self.line(&pages.join(", "));
    }

    fn title(&mut self, macro_name: &str, title: &str) {
        self.0 += &format!(".{macro_name} \"{}\"\n", escaped(title));
    }

    fn paragraphs(&mut self, paragraphs: &[impl AsRef<str>]) {
        for paragraph in paragraphs {
            self.begin_paragraph();
            self.line(paragraph.as_ref());
        }
    }

    fn begin_paragraph(&mut self) {
        let last = self.0.lines().next_back().unwrap_or_default();
        // A title begins a paragraph itself.
        if !last.starts_with(".S") {
            self.0 += ".PP\n";
        }
    }

    /// Writes an option, a file or the like, and its description.
    fn entry(&mut self, names: &str, help: &str) {
        self.0 += &format!(".TP\n.B \"{}\"\n", escaped(names));
        self.line(help);
    }

    /// Writes lines as they are.
    fn verbatim(&mut self, lines: &[impl AsRef<str>]) {
        self.begin_paragraph();
        self.0 += ".nf\n";
        for line in lines {
            self.line(line.as_ref());
        }
        self.0 += ".fi\n";
    }

    /// Writes a line of text. Backquoted words become bold.
    fn line(&mut self, text: &str) {
        for (at, part) in text.split('`').enumerate() {
            if at > 0 {
                self.0 += if at % 2 == 1 { "\\fB" } else { "\\fR" };
            }
            self.0 += &escaped(part);
        }
        // An unpaired backquote makes the rest of the line bold, not the rest of the page.
        if text.matches('`').count() % 2 == 1 {
            self.0 += "\\fR";
        }
        self.0.push('\n');
    }
}

/// Escapes text for roff: characters with a special meaning, and a control character that would begin a line.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    if text.starts_with(['.', '\'']) {
        out.push_str("\\&");
    }
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '"' => out.push_str("\\(dq"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::MAN_PAGES;
    use crate::cli::doc::help_text;

    /// Returns the options that a text names at the start of a line, or below it in a list of names.
    fn options(text: &str) -> Vec<String> {
        let lines = text
            .lines()
            .map(str::trim_start)
            .filter(|line| line.starts_with('-'));
        let names = lines.map(|line| line.split("  ").next().unwrap_or_default());
        let names = names
            .flat_map(|names| names.split([' ', ',']))
            .filter(|name| name.starts_with('-'));
        let bare = |name: &str| name.split(['=', '[']).next().unwrap_or_default().to_owned();
        names.map(bare).collect()
    }

    #[test]
    fn each_option_of_help_is_in_the_page() {
        let unescaped = |page| man_page(page).replace("\\-", "-");
        let has = |page: &str, option: &str| {
            page.match_indices(option).any(|(at, _)| {
                let (before, after) = (&page[..at], &page[at + option.len()..]);
                before.ends_with(['"', ' ', 'B'])
                    && after.starts_with(['"', ',', '=', '[', '\\', ' '])
            })
        };
        let page = unescaped("sparsync");
        let named = options(&help_text());
        assert!(
            named.len() > 200 && named.iter().any(|name| name == "-z"),
            "{named:?}"
        );
        for option in named {
            assert!(has(&page, &option), "{option}");
        }
        for verb in &MAN_PAGES[1..] {
            let page = unescaped(verb);
            for (name, text) in subcommand::PAGES
                .into_iter()
                .filter(|(name, _)| name.starts_with(verb))
            {
                let named = options(text);
                assert!(named.iter().any(|name| name == "--help"), "{name}");
                for option in named {
                    assert!(has(&page, &option), "{name} {option}");
                }
            }
        }
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(escaped(".TH"), "\\&.TH");
        assert_eq!(escaped("'br"), "\\&\\(aqbr");
        assert_eq!(
            escaped("a\\b --x \"~^\""),
            "a\\eb \\-\\-x \\(dq\\(ti\\(ha\\(dq"
        );
        let mut out = Roff(String::new());
        out.line("`-a` and `.x");
        assert_eq!(out.0, "\\fB\\-a\\fR and \\fB\\&.x\\fR\n");
    }

    #[test]
    fn pages_are_ascii() {
        for page in MAN_PAGES.map(man_page) {
            assert!(
                page.is_ascii(),
                "{:?}",
                page.lines().find(|line| !line.is_ascii())
            );
        }
    }
}

//! The words of `--info` and `--debug`: their levels, the effect of `-v`, and their help texts.

use crate::error::{Error, Result};
use crate::options::{Debug, Info};

/// The levels that `--info` or `--debug` set, by word; `None`: the level follows from `-v`.
#[derive(Debug, Clone, Copy)]
pub struct Levels<const N: usize>([Option<u8>; N]);

impl<const N: usize> Default for Levels<N> {
    fn default() -> Self {
        Levels([None; N])
    }
}

/// The levels that `--info` sets.
pub type InfoLevels = Levels<14>;
/// The levels that `--debug` sets.
pub type DebugLevels = Levels<24>;

struct Word<T> {
    name: &'static str,
    help: &'static str,
    field: Option<fn(&mut T) -> &mut u8>,
}

macro_rules! word {
    ($name:literal, $field:ident, $help:literal) => {
        Word {
            name: $name,
            help: $help,
            field: Some(|all| &mut all.$field),
        }
    };
    ($name:literal, $help:literal) => {
        Word {
            name: $name,
            help: $help,
            field: None,
        }
    };
}

const INFO: [Word<Info>; 14] = [
    word!("BACKUP", backup, "Mention files backed up"),
    word!(
        "COPY",
        copy,
        "Mention files copied locally on the receiving side"
    ),
    word!("DEL", del, "Mention deletions on the receiving side"),
    word!(
        "FLIST",
        flist,
        "Mention file-list receiving/sending (levels 1-2)"
    ),
    word!(
        "MISC",
        misc,
        "Mention miscellaneous information (levels 1-2)"
    ),
    word!("MOUNT", mount, "Mention mounts that were found or skipped"),
    word!(
        "NAME",
        name,
        "Mention 1) updated file/dir names, 2) unchanged names"
    ),
    word!(
        "NONREG",
        nonreg,
        "Mention skipped non-regular files (default 1, 0 disables)"
    ),
    word!(
        "PROGRESS",
        progress,
        "Mention 1) per-file progress or 2) total transfer progress"
    ),
    word!(
        "REMOVE",
        remove,
        "Mention files removed on the sending side"
    ),
    word!(
        "SKIP",
        skip,
        "Mention files skipped due to transfer overrides (levels 1-2)"
    ),
    word!(
        "STATS",
        stats,
        "Mention statistics at end of run (levels 1-3)"
    ),
    word!("SYMSAFE", symsafe, "Mention symlinks that are unsafe"),
    word!(
        "RENAME",
        rename,
        "Mention new files that take the content of others"
    ),
];

/// How many of the words rsync has, too. Its list, which `--info=help` prints, has no others.
const INFO_WORDS_OF_RSYNC: usize = 13;

const DEBUG: [Word<Debug>; 24] = [
    word!("ACL", "Debug extra ACL info"),
    word!("BACKUP", "Debug backup actions (levels 1-2)"),
    word!("BIND", "Debug socket bind actions"),
    word!("CHDIR", "Debug when the current directory changes"),
    word!("CONNECT", connect, "Debug connection events (levels 1-2)"),
    word!(
        "CMD",
        cmd,
        "Debug commands+options that are issued (levels 1-2)"
    ),
    word!("DEL", del, "Debug delete actions (levels 1-3)"),
    word!(
        "DELTASUM",
        deltasum,
        "Debug delta-transfer checksumming (levels 1-4)"
    ),
    word!("DUP", dup, "Debug weeding of duplicate names"),
    word!("EXIT", "Debug exit events (levels 1-3)"),
    word!("FILTER", filter, "Debug filter actions (levels 1-3)"),
    word!("FLIST", flist, "Debug file-list operations (levels 1-4)"),
    word!("FUZZY", fuzzy, "Debug fuzzy scoring (levels 1-2)"),
    word!("GENR", genr, "Debug generator functions"),
    word!("HASH", "Debug hashtable code"),
    word!("HLINK", hlink, "Debug hard-link actions (levels 1-3)"),
    word!(
        "ICONV",
        iconv,
        "Debug iconv character conversions (levels 1-2)"
    ),
    word!("IO", "Debug I/O routines (levels 1-4)"),
    word!("NSTR", nstr, "Debug negotiation strings"),
    word!(
        "OWN",
        own,
        "Debug ownership changes in users & groups (levels 1-2)"
    ),
    word!("PROTO", "Debug protocol information"),
    word!("RECV", recv, "Debug receiver functions"),
    word!("SEND", send, "Debug sender functions"),
    word!("TIME", time, "Debug setting of modified times (levels 1-2)"),
];

/// The words of `--info`.
pub const INFO_NAMES: [&str; 14] = names(&INFO);
/// The words of `--debug`.
pub const DEBUG_NAMES: [&str; 24] = names(&DEBUG);

const fn names<T, const N: usize>(words: &[Word<T>; N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = words[at].name;
        at += 1;
    }
    names
}

/// The words that each `-v` adds to `--info`. The first entry applies without `-v`.
const INFO_BY_VERBOSITY: [&str; 3] = [
    "NONREG",
    "COPY,DEL,FLIST,MISC,NAME,STATS,SYMSAFE",
    "BACKUP,MISC2,MOUNT,NAME2,REMOVE,SKIP",
];

/// The words that each `-v` adds to `--debug`. The first entry applies without `-v`.
const DEBUG_BY_VERBOSITY: [&str; 6] = [
    "",
    "",
    "BIND,CONNECT,CMD,DEL,DELTASUM,DUP,FILTER,FLIST,ICONV",
    "ACL,BACKUP,CONNECT2,DEL2,DELTASUM2,EXIT,FILTER2,FLIST2,FUZZY,GENR,OWN,RECV,SEND,TIME",
    "CMD2,DEL3,DELTASUM3,EXIT2,FLIST3,ICONV2,OWN2,PROTO,TIME2",
    "CHDIR,DELTASUM4,FLIST4,FUZZY2,HASH,HLINK",
];

/// What the argument requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordsArgument {
    /// Setting levels.
    Levels,
    /// The list of words: it contains `help`.
    Help,
}

/// Parses the argument of `--info`.
pub fn info(text: &[u8], levels: &mut InfoLevels) -> Result<WordsArgument> {
    read(text, levels, &INFO, Some("--info"))
}

/// Parses the argument of `--info` on a server. Unknown words are skipped: a newer client may have sent them.
pub fn info_of_client(text: &[u8], levels: &mut InfoLevels) -> Result<WordsArgument> {
    read(text, levels, &INFO, None)
}

/// Parses the argument of `--debug`.
pub fn debug(text: &[u8], levels: &mut DebugLevels) -> Result<WordsArgument> {
    read(text, levels, &DEBUG, Some("--debug"))
}

/// Parses the argument of `--debug` on a server, as [`info_of_client`] does.
pub fn debug_of_client(text: &[u8], levels: &mut DebugLevels) -> Result<WordsArgument> {
    read(text, levels, &DEBUG, None)
}

/// `option`: the name for errors about unknown words; `None`: they are skipped.
fn read<T, const N: usize>(
    text: &[u8],
    levels: &mut Levels<N>,
    words: &[Word<T>; N],
    option: Option<&str>,
) -> Result<WordsArgument> {
    for part in text.split(|&b| b == b',').filter(|part| !part.is_empty()) {
        let digits = part.iter().rev().take_while(|b| b.is_ascii_digit()).count();
        // A word of digits only is a name, not a level.
        let (name, digits) = part.split_at(if digits == part.len() {
            digits
        } else {
            part.len() - digits
        });
        let level = match std::str::from_utf8(digits) {
            Ok("") => 1,
            Ok(digits) => digits.parse().unwrap_or(u8::MAX),
            Err(_) => 1,
        };
        let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
        if is("help") {
            return Ok(WordsArgument::Help);
        } else if is("all") {
            levels.0 = [Some(level); N];
        } else if is("none") {
            levels.0 = [Some(0); N];
        } else if let Some(at) = words.iter().position(|word| is(word.name)) {
            levels.0[at] = Some(level);
        } else if let Some(option) = option {
            let mut message = format!("Unknown {option} item: \"").into_bytes();
            message.extend_from_slice(&super::printable(name));
            message.push(b'"');
            return Err(Error::usage(message));
        }
    }
    Ok(WordsArgument::Levels)
}

/// Returns the levels of a run: those of `-v`, raised by `more` (`FLIST2,PROGRESS`), unless `--info` sets them.
pub fn settle_info(verbose: u8, more: &str, given: &InfoLevels) -> Info {
    settle(&INFO, &INFO_BY_VERBOSITY, verbose, more, given)
}

/// Returns the levels of a run for `--debug`, as [`settle_info`] does.
pub fn settle_debug(verbose: u8, given: &DebugLevels) -> Debug {
    settle(&DEBUG, &DEBUG_BY_VERBOSITY, verbose, "", given)
}

fn settle<T: Default, const N: usize>(
    words: &[Word<T>; N],
    by_verbosity: &[&str],
    verbose: u8,
    more: &str,
    given: &Levels<N>,
) -> T {
    let mut base = Levels::<N>::default();
    for added in by_verbosity
        .iter()
        .take(usize::from(verbose) + 1)
        .chain([&more])
    {
        let mut step = Levels::<N>::default();
        // The tables above contain only known words; a test parses them all.
        let _ = read(added.as_bytes(), &mut step, words, None);
        for (level, step) in base.0.iter_mut().zip(step.0) {
            *level = (*level).max(step);
        }
    }
    let mut all = T::default();
    for ((word, base), given) in words.iter().zip(base.0).zip(given.0) {
        if let Some(field) = word.field {
            *field(&mut all) = given.or(base).unwrap_or(0);
        }
    }
    all
}

/// Returns the `--info` words that the server needs, as rsync writes them; `None` if there are none.
///
/// `push`: the server receives. Words that only the client or the other role prints are left out.
pub fn info_for_server(levels: &InfoLevels, push: bool) -> Option<String> {
    const CLIENT: [&str; 3] = ["FLIST", "PROGRESS", "RENAME"];
    const RECEIVER: [&str; 5] = ["BACKUP", "COPY", "DEL", "NONREG", "SKIP"];
    const SENDER: [&str; 1] = ["REMOVE"];
    let name = |word: &str, level: u8| {
        if level == 1 {
            word.to_string()
        } else {
            format!("{word}{level}")
        }
    };
    let mut parts = Vec::new();
    // `all` and `none` set every word, so the most frequent level is sent once for all of them.
    let all = levels.0.iter().copied().collect::<Option<Vec<u8>>>();
    let most = all.and_then(|all| {
        all.iter()
            .copied()
            .max_by_key(|level| all.iter().filter(|l| *l == level).count())
    });
    match most {
        Some(0) => parts.push("NONE".to_string()),
        Some(level) => parts.push(name("ALL", level)),
        None => {}
    }
    for (word, level) in INFO.iter().zip(levels.0) {
        let others = if push { &SENDER[..] } else { &RECEIVER[..] };
        if let Some(level) = level.filter(|level| Some(*level) != most)
            && !CLIENT.contains(&word.name)
            && !others.contains(&word.name)
        {
            parts.push(name(word.name, level));
        }
    }
    (!parts.is_empty()).then(|| parts.join(","))
}

/// Returns the text that `--info=help` prints.
pub fn info_help() -> String {
    help(&INFO[..INFO_WORDS_OF_RSYNC], &INFO_BY_VERBOSITY, "--info")
}

/// Returns the text that `--debug=help` prints.
pub fn debug_help() -> String {
    help(&DEBUG, &DEBUG_BY_VERBOSITY, "--debug")
}

fn help<T>(words: &[Word<T>], by_verbosity: &[&str], option: &str) -> String {
    let mut out = String::from(
        "Use OPT or OPT1 for level 1 output, OPT2 for level 2, etc.; OPT0 silences.\n\n",
    );
    let mut line = |name: &str, help: &str| out.push_str(&format!("{name:<10} {help}\n"));
    for word in words {
        line(word.name, word.help);
    }
    line("\nALL", &format!(" Set all {option} options (e.g. all4)"));
    line(
        "NONE",
        &format!("Silence all {option} options (same as all0)"),
    );
    line("HELP", "Output this help message");
    out.push_str("\nOptions added at each level of verbosity:\n");
    for (level, added) in by_verbosity
        .iter()
        .enumerate()
        .filter(|(_, added)| !added.is_empty())
    {
        out.push_str(&format!("{level}) {added}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbosity_tables_contain_known_words_only() {
        for added in INFO_BY_VERBOSITY {
            assert!(info(added.as_bytes(), &mut InfoLevels::default()).is_ok());
        }
        for added in DEBUG_BY_VERBOSITY {
            assert!(debug(added.as_bytes(), &mut DebugLevels::default()).is_ok());
        }
    }

    #[test]
    fn explicit_info_word_overrides_verbosity() {
        let mut given = InfoLevels::default();
        assert_eq!(
            info(b"name0,Stats2,,del3,", &mut given).unwrap(),
            WordsArgument::Levels
        );
        let all = settle_info(2, "FLIST2,NAME,PROGRESS", &given);
        assert_eq!(
            (
                all.name,
                all.stats,
                all.del,
                all.misc,
                all.flist,
                all.progress,
                all.nonreg
            ),
            (0, 2, 3, 2, 2, 1, 1)
        );
        assert_eq!(settle_info(0, "", &InfoLevels::default()).nonreg, 1);
        assert_eq!(settle_info(2, "NAME", &InfoLevels::default()).name, 2);
        info(b"none,name", &mut given).unwrap();
        let all = settle_info(2, "", &given);
        assert_eq!((all.name, all.nonreg), (1, 0));
        assert_eq!(settle_debug(3, &DebugLevels::default()).del, 2);
    }

    #[test]
    fn unknown_info_word_is_named_in_the_error() {
        for (text, name) in [
            ("x", "x"),
            ("foo2,bar", "foo"),
            ("name1x", "name1x"),
            ("name,na", "na"),
            ("2", "2"),
        ] {
            let error = info(text.as_bytes(), &mut InfoLevels::default()).unwrap_err();
            assert_eq!(
                error.message,
                format!("Unknown --info item: \"{name}\"").as_bytes()
            );
        }
        assert_eq!(
            info(b"name,HELP2,x", &mut InfoLevels::default()).unwrap(),
            WordsArgument::Help
        );
    }

    #[test]
    fn help_lists_each_word_once() {
        let text = info_help();
        assert!(text.starts_with("Use OPT or OPT1"));
        assert!(text.contains("\nBACKUP     Mention files backed up\n"));
        assert!(text.contains("\n\nALL        Set all --info options (e.g. all4)\n"));
        assert!(text.ends_with(
            "1) COPY,DEL,FLIST,MISC,NAME,STATS,SYMSAFE\n2) BACKUP,MISC2,MOUNT,NAME2,REMOVE,SKIP\n"
        ));
        assert!(debug_help().contains("\nACL        Debug extra ACL info\n"));
    }
}

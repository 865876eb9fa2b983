//! Walks the arguments of a command line as popt does.
//!
//! lexopt splits the arguments; the table defines which options take a value. The meaning of options is not known here.

use super::args::Args;
use super::flag::{Arity, Flag, Polarity, Support};
use super::flags::{all, by_long, by_short};
use super::operand::Operand;
use super::suggest::nearest;
use super::value::{Given, refuse};
use crate::error::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// An option that the user defined in a popt file: `rsync alias -Z --no-p --chmod=ugo=rwX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// `-Z` or `--mine`.
    pub name: Vec<u8>,
    /// The arguments that it stands for.
    pub words: Vec<Vec<u8>>,
}

/// Parses the aliases for rsync in the text of a popt file. Other lines are ignored.
pub fn aliases(text: &[u8]) -> Vec<Alias> {
    let mut lines: Vec<Vec<u8>> = vec![Vec::new()];
    for line in text.split(|&b| b == b'\n') {
        let (part, more) = match line.strip_suffix(b"\\") {
            Some(part) => (part, true),
            None => (line, false),
        };
        if let Some(last) = lines.last_mut() {
            last.extend_from_slice(part);
        }
        if !more {
            lines.push(Vec::new());
        }
    }
    let mut found = Vec::new();
    for line in lines {
        let mut words = split_words(&line).into_iter();
        if words.next().as_deref() != Some(b"rsync") || words.next().as_deref() != Some(b"alias") {
            continue;
        }
        let Some(name) = words.next() else { continue };
        let words: Vec<_> = words.filter(|word| !word.starts_with(b"--POPT")).collect();
        if !words.is_empty() {
            found.push(Alias { name, words });
        }
    }
    found
}

/// Splits at blanks; quotes and backslashes protect blanks, as in a shell.
fn split_words(line: &[u8]) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut word = None::<Vec<u8>>;
    let mut quote = None;
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        match quote {
            Some(end) if byte == end => quote = None,
            Some(_) => word.get_or_insert_default().push(byte),
            None if byte == b'"' || byte == b'\'' => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            None if byte == b'\\' => word.get_or_insert_default().extend(bytes.next()),
            None if byte.is_ascii_whitespace() => words.extend(word.take()),
            None => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word);
    words
}

/// One option as given, in a normal form.
pub struct GivenOption {
    /// Which option.
    pub flag: &'static Flag,
    /// Whether it was given or revoked.
    pub polarity: Polarity,
    /// Its argument; empty for a switch.
    pub value: Vec<u8>,
    /// The long name as it was given; `None` for a letter.
    pub spelling: Option<String>,
}

impl GivenOption {
    /// Returns the option as a single argument.
    pub fn word(&self) -> Vec<u8> {
        let GivenOption {
            flag,
            polarity,
            value,
            spelling: _,
        } = self;
        match (polarity, flag.negations) {
            (Polarity::Off, [first, ..]) => [b"--", first.as_bytes()].concat(),
            _ if !flag.long.is_empty() => match flag.arity {
                Arity::Switch => [b"--", flag.long.as_bytes()].concat(),
                Arity::Optional(_) if value.is_empty() => [b"--", flag.long.as_bytes()].concat(),
                Arity::Value(_) | Arity::Optional(_) => {
                    [b"--", flag.long.as_bytes(), b"=", value.as_slice()].concat()
                }
            },
            _ => {
                let letter = flag.short.map(String::from).unwrap_or_default();
                [b"-", letter.as_bytes(), value.as_slice()].concat()
            }
        }
    }
}

impl std::fmt::Debug for GivenOption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.word().escape_ascii())
    }
}

/// A command line after the walk.
#[derive(Debug)]
pub struct Walked {
    /// The values of the options.
    pub args: Args,
    /// The options that count, in order, with aliases expanded.
    pub given: Vec<GivenOption>,
    /// The arguments that are not options.
    pub operands: Vec<Operand>,
    /// The first error. Operands after it are still collected: if one is remote, the rsync that
    /// `SPARSYNC_RSYNC` names may do the run.
    pub error: Option<Error>,
    /// The long name, without dashes, for which `error` was reported; `None` if it is about something else.
    pub unknown_name: Option<String>,
}

impl Walked {
    /// Adds options that this program gives to itself, which take effect after all others. Has no effect after an error.
    pub fn append(&mut self, words: &[OsString]) {
        if words.is_empty() || self.error.is_some() {
            return;
        }
        let more = walk(words, &[], std::mem::take(&mut self.args));
        self.args = more.args;
        self.given.extend(more.given);
        self.error = more.error;
    }

    /// Adds the option that an unknown long name probably stands for to the error about it.
    /// `own`: the options of the command beside those of a copy.
    pub fn suggest(&mut self, own: &'static [Flag]) {
        let names = all()
            .chain(own)
            .filter(|flag| flag.support.is_for_users() && flag.support != Support::Refused)
            .flat_map(|flag| {
                flag.aliases
                    .iter()
                    .chain(flag.negations)
                    .chain([&flag.long])
            })
            .copied();
        let meant = self
            .unknown_name
            .as_deref()
            .and_then(|name| nearest(name, names));
        if let Some(error) = &mut self.error
            && let Some(meant) = meant
        {
            error.hint = Some(format!("did you mean `--{meant}`?"));
        }
    }
}

/// Walks the arguments after the program's name.
pub fn walk(words: &[OsString], aliases: &[Alias], args: Args) -> Walked {
    walk_with(words, aliases, args, &[])
}

/// Walks the arguments of a command that has these options beside those of a copy.
pub fn walk_with(
    words: &[OsString],
    aliases: &[Alias],
    args: Args,
    own: &'static [Flag],
) -> Walked {
    let mut walk = ArgumentWalk {
        walked: Walked {
            args,
            given: Vec::new(),
            operands: Vec::new(),
            error: None,
            unknown_name: None,
        },
        aliases,
        own,
        words: words.to_vec(),
        parser: lexopt::Parser::from_args(words.iter().cloned()),
        at: 0,
        inside: Vec::new(),
    };
    while walk.step() {}
    walk.walked
}

/// An alias that is being expanded.
struct Inside {
    name: Vec<u8>,
    /// The argument that named it, for messages.
    called: Vec<u8>,
    /// How many arguments are left after its expansion.
    left: usize,
}

struct ArgumentWalk<'a> {
    walked: Walked,
    aliases: &'a [Alias],
    own: &'static [Flag],
    /// The arguments that `parser` was made from.
    words: Vec<OsString>,
    parser: lexopt::Parser,
    /// The index of the argument that the last option came from.
    at: usize,
    inside: Vec<Inside>,
}

impl ArgumentWalk<'_> {
    /// Reads one option or operand; `false` at the end.
    fn step(&mut self) -> bool {
        if let Some(left) = self.left() {
            self.at = self.words.len() - left;
            self.inside.retain(|alias| left > alias.left);
        }
        // A long name that is not UTF-8 is returned with its bytes replaced. No option has such a name.
        let name = match self.parser.next() {
            Ok(None) => return false,
            Ok(Some(lexopt::Arg::Value(value))) => {
                self.walked.operands.push(Operand::parse(&value.into_vec()));
                return !self.walked.args.is_posix || self.take_remaining();
            }
            Ok(Some(lexopt::Arg::Short(letter))) => OptionName::Short(letter),
            Ok(Some(lexopt::Arg::Long(name))) => OptionName::Long(name.to_string()),
            Err(_) => {
                self.fail_with(b": option does not take an argument");
                return true;
            }
        };
        if self.expand(&name) {
            return true;
        }
        let found = match &name {
            OptionName::Short(letter) => by_short(*letter).map(|flag| (flag, Polarity::On)),
            OptionName::Long(name) => match self.own.iter().find(|flag| flag.long == name) {
                Some(flag) => Some((flag, Polarity::On)),
                None => by_long(name),
            },
        };
        let Some((flag, polarity)) = found else {
            if let OptionName::Long(name) = name
                && !self.silent()
            {
                self.walked.unknown_name = Some(name);
            }
            self.fail_with(b": unknown option");
            self.skip_word();
            return true;
        };
        let spelling = match name {
            OptionName::Short(_) => None,
            OptionName::Long(name) => Some(name),
        };
        let outcome = self.take(flag, polarity, spelling);
        if let Err(error) = outcome {
            self.fail(error);
        }
        true
    }

    /// Makes all remaining arguments operands. Returns `false`: the walk is over.
    fn take_remaining(&mut self) -> bool {
        let rest = self.parser.raw_args().into_iter().flatten();
        self.walked
            .operands
            .extend(rest.map(|word| Operand::parse(&word.into_vec())));
        false
    }

    fn take(
        &mut self,
        flag: &'static Flag,
        polarity: Polarity,
        spelling: Option<String>,
    ) -> Result<()> {
        let value = match flag.arity {
            _ if polarity == Polarity::Off => None,
            Arity::Switch => None,
            Arity::Optional(_) => Some(self.parser.optional_value().unwrap_or_default()),
            Arity::Value(_) => match self.parser.value() {
                Ok(value) => Some(value),
                Err(_) => return Err(refuse([&self.word()[..], b": missing argument"].concat())),
            },
        };
        if value.is_none() && spelling.is_some() && self.parser.optional_value().is_some() {
            return Err(refuse(
                [&self.word()[..], b": option does not take an argument"].concat(),
            ));
        }
        // `--server` counts wherever it stands, even after an error or `--help`.
        self.walked.args.is_server_side |= flag.support == Support::ServerSide;
        if self.silent() {
            return Ok(());
        }
        let value = value.unwrap_or_default().into_vec();
        self.walked.given.push(GivenOption {
            flag,
            polarity,
            value: value.clone(),
            spelling,
        });
        // The last argument that belongs to the option: its own, or the next one.
        let last = self
            .left()
            .map_or(self.at, |left| self.words.len() - left - 1);
        let word = self
            .words
            .get(last)
            .map_or(&b""[..], |word| word.as_bytes());
        flag.effect.record(
            &mut self.walked.args,
            polarity,
            &Given {
                value: &value,
                word,
            },
        )
    }

    /// Replaces an alias by its arguments. Returns `false` if there is no alias of that name.
    fn expand(&mut self, name: &OptionName) -> bool {
        let name = match name {
            OptionName::Short(letter) => format!("-{letter}"),
            OptionName::Long(name) => format!("--{name}"),
        };
        let Some(alias) = self
            .aliases
            .iter()
            .rev()
            .find(|alias| alias.name == name.as_bytes())
        else {
            return false;
        };
        if self.inside.iter().any(|inside| inside.name == alias.name) {
            return false;
        }
        let called = self.word();
        let mut words: Vec<OsString> = alias
            .words
            .iter()
            .cloned()
            .map(OsString::from_vec)
            .collect();
        let rest: Vec<OsString> = if name.len() > 2 && name.starts_with("--") {
            words.extend(self.parser.optional_value());
            self.parser
                .try_raw_args()
                .map(Iterator::collect)
                .unwrap_or_default()
        } else {
            // The other letters of the bundle come after the alias.
            let letters = self.parser.optional_value();
            let mut rest: Vec<OsString> = letters
                .map(|letters| [OsStr::new("-"), &letters].into_iter().collect())
                .into_iter()
                .collect();
            rest.extend(self.parser.try_raw_args().into_iter().flatten());
            rest
        };
        self.inside.push(Inside {
            name: alias.name.clone(),
            called,
            left: rest.len(),
        });
        words.extend(rest);
        self.parser = lexopt::Parser::from_args(words.iter().cloned());
        self.words = words;
        self.at = 0;
        true
    }

    /// Returns how many arguments are untouched; `None` inside a bundle or before a `=value`.
    fn left(&mut self) -> Option<usize> {
        self.parser
            .try_raw_args()
            .map(|words| words.as_slice().len())
    }

    /// Returns the argument that an error names.
    fn word(&self) -> Vec<u8> {
        match self.inside.first() {
            Some(alias) => alias.called.clone(),
            None => self
                .words
                .get(self.at)
                .map(|word| word.as_bytes().to_vec())
                .unwrap_or_default(),
        }
    }

    /// Skips the rest of an argument that contains an unknown option.
    fn skip_word(&mut self) {
        self.parser.optional_value();
    }

    /// Returns whether nothing is recorded any more: popt stops at the first error and at `--help`.
    fn silent(&self) -> bool {
        self.walked.error.is_some() || self.walked.args.print.is_some()
    }

    fn fail_with(&mut self, why: &[u8]) {
        let error = refuse([&self.word()[..], why].concat());
        self.fail(error);
    }

    fn fail(&mut self, error: Error) {
        if !self.silent() {
            self.walked.error = Some(error);
        }
    }
}

enum OptionName {
    Short(char),
    Long(String),
}

/// Returns whether `-h` requests help, which it does if it is the only argument.
pub fn lone_help(words: &[OsString], args: &Args) -> bool {
    words.len() == 1 && args.human > 0
}

#[cfg(test)]
mod tests {
    use super::super::flags;
    use super::*;

    /// Every negation that rsync 3.5.0 accepts; `--no-detach` belongs to the daemon.
    const NEGATIONS: &str = "--no-verbose --no-v --no-msgs2stderr --no-motd --no-human-readable --no-h --no-recursive --no-r \
        --no-inc-recursive --no-i-r --no-dirs --no-d --no-perms --no-p --no-acls --no-A --no-xattrs --no-X --no-times --no-t \
        --no-atimes --no-U --no-open-noatime --no-crtimes --no-N --no-omit-dir-times --no-O --no-omit-link-times --no-J --no-super \
        --no-owner --no-o --no-group --no-g --no-D --no-devices --no-write-devices --no-specials --no-drop-D --no-links --no-l \
        --no-insecure-links --no-munge-links --no-hard-links --no-H --no-relative --no-R --no-implied-dirs --no-i-d \
        --no-one-file-system --no-x --no-sparse --no-S --no-inplace --no-append --no-force --no-ignore-errors --no-whole-file --no-W \
        --no-checksum --no-c --no-fuzzy --no-y --no-compress --no-z --no-progress --no-partial --no-delay-updates \
        --no-prune-empty-dirs --no-m --no-itemize-changes --no-i --no-bwlimit --no-backup --no-from0 --no-old-args --no-secluded-args \
        --no-protect-args --no-s --no-numeric-ids --no-timeout --no-contimeout --no-iconv --no-8-bit-output --no-8 --no-mkpath \
        --no-blocking-io --no-detach";

    fn walked(line: &[&str]) -> Walked {
        walk(
            &line.iter().map(OsString::from).collect::<Vec<_>>(),
            &[],
            Args::default(),
        )
    }

    fn refusal(line: &[&str]) -> String {
        String::from_utf8(walked(line).error.expect("a mistake").message).unwrap()
    }

    fn parsed_args(line: &[&str]) -> Args {
        let walked = walked(line);
        assert!(walked.error.is_none(), "{line:?}: {:?}", walked.error);
        walked.args
    }

    #[test]
    fn all_88_negations_are_accepted() {
        let names: Vec<&str> = NEGATIONS.split_whitespace().collect();
        assert_eq!(names.len(), 88);
        for name in names {
            parsed_args(&[name]);
            assert_eq!(
                refusal(&[&format!("{name}=1")]),
                format!("rsync: {name}=1: option does not take an argument")
            );
        }
    }

    #[test]
    fn posixly_correct_stops_options_at_the_first_operand() {
        let args = Args {
            is_posix: true,
            ..Args::default()
        };
        let words = ["-a", "src", "-v", "--", "dst"].map(OsString::from);
        let walked = walk(&words, &[], args);
        assert!(
            walked.error.is_none() && walked.operands.len() == 4,
            "{walked:?}"
        );
        assert!(
            matches!(&walked.operands[1], Operand::Local(path) if path == b"-v"),
            "{walked:?}"
        );
    }

    #[test]
    fn every_option_is_accepted_in_every_spelling() {
        for flag in flags::all() {
            let value = match flag.long {
                "info" | "debug" => "all",
                "stderr" => "all",
                "outbuf" => "N",
                "chmod" => "u+x",
                "stop-at" => "23:59",
                "remote-option" => "-n",
                "transport" => "tls",
                "lock" => "wait",
                "detect-renamed" => "quick",
                "verify" => "source",
                "ui" => "plain",
                "man" => "enroll",
                "completions" => "fish",
                _ => "1",
            };
            let names = flag
                .aliases
                .iter()
                .chain(Some(&flag.long))
                .filter(|name| !name.is_empty());
            let mut lines: Vec<Vec<String>> = Vec::new();
            match flag.arity {
                Arity::Switch => {
                    lines.extend(names.map(|name| vec![format!("--{name}")]));
                    lines.extend(flag.short.map(|letter| vec![format!("-{letter}")]));
                }
                Arity::Optional(_) => {
                    for name in names {
                        // Its default is to come.
                        if flag.long != "detect-renamed" {
                            lines.push(vec![format!("--{name}")]);
                        }
                        lines.push(vec![format!("--{name}={value}")]);
                    }
                }
                Arity::Value(_) => {
                    for name in names {
                        lines.push(vec![format!("--{name}"), value.into()]);
                        lines.push(vec![format!("--{name}={value}")]);
                    }
                    if let Some(letter) = flag.short {
                        lines.push(vec![format!("-{letter}{value}")]);
                        lines.push(vec![format!("-{letter}={value}")]);
                        lines.push(vec![format!("-n{letter}"), value.into()]);
                    }
                }
            }
            for line in lines {
                let line: Vec<&str> = line.iter().map(String::as_str).chain(["src"]).collect();
                let walked = walked(&line);
                assert_eq!(
                    walked.error.is_some(),
                    flag.long == "crtimes",
                    "{line:?}: {:?}",
                    walked.error
                );
                assert_eq!(walked.operands.len(), 1, "{line:?}");
            }
        }
    }

    #[test]
    fn parse_errors_have_rsyncs_text() {
        for (line, message) in [
            (&["--bogus=1"][..], "--bogus=1: unknown option"),
            (&["-aY"], "-aY: unknown option"),
            (&["-a-b"], "-a-b: unknown option"),
            (&["--verb"], "--verb: unknown option"),
            (&["--=x"], "--=x: unknown option"),
            (&["--no-a"], "--no-a: unknown option"),
            (
                &["--archive=x"],
                "--archive=x: option does not take an argument",
            ),
            (&["-an=3"], "-an=3: option does not take an argument"),
            (&["-a="], "-a=: option does not take an argument"),
            (&["-ave"], "-ave: missing argument"),
            (&["--exclude"], "--exclude: missing argument"),
            (&["--timeout", "x"], "x: invalid numeric value"),
            (&["-n@6x"], "-n@6x: invalid numeric value"),
            (&["-n@", "6x"], "6x: invalid numeric value"),
            (
                &["--delete=x", "--bogus"],
                "--delete=x: option does not take an argument",
            ),
        ] {
            assert_eq!(refusal(line), format!("rsync: {message}"));
        }
    }

    #[test]
    fn misspelled_options_get_a_suggestion() {
        for (line, hint) in [
            (&["--delet"][..], Some("--delete")),
            (&["--excludes=*.o"], Some("--exclude")),
            (&["-a", "--max-delte", "5"], Some("--max-delete")),
            (&["--progres"], Some("--progress")),
            (&["--no-perm"], Some("--no-perms")),
            (&["--recurs"], Some("--recursive")),
            (&["--bogus"], None),
            (&["--delete=x", "--progres"], None),
            (&["-Y", "--progres"], None),
        ] {
            let mut walked = walked(line);
            assert_eq!(walked.error.as_ref().unwrap().hint, None, "{line:?}");
            walked.suggest(&[]);
            let hint = hint.map(|name| format!("did you mean `{name}`?"));
            assert_eq!(walked.error.unwrap().hint, hint, "{line:?}");
        }
    }

    #[test]
    fn clustered_and_attached_values_parse_as_in_popt() {
        let walk = walked(&[
            "-avze",
            "ssh",
            "src",
            "-n",
            "--suffix=.o",
            "-B5",
            "--exclude",
            "--",
            "dst",
            "--",
            "-r",
        ]);
        assert!(walk.error.is_none());
        assert!(walk.args.dry_run && walk.args.preserve.links);
        assert_eq!(walk.args.suffix.as_deref(), Some(&b".o"[..]));
        assert_eq!(
            walk.args.select.rules,
            [crate::options::RuleArg::Exclude(b"--".to_vec())]
        );
        let operands: Vec<_> = walk.operands.iter().map(Operand::as_bytes).collect();
        assert_eq!(operands, [b"src", b"dst", &b"-r"[..]]);
    }

    #[test]
    fn last_option_wins_and_repeats_are_counted() {
        assert!(!parsed_args(&["-a", "--no-p"]).preserve.perms);
        assert_eq!(
            parsed_args(&["--no-r", "-a"]).recursion,
            super::super::args::Recursion::ByArchive
        );
        assert_eq!(parsed_args(&["-vv", "--no-v", "-v"]).verbose, 1);
        assert_eq!(parsed_args(&["-xx"]).select.one_file_system, 2);
        assert_eq!(
            (
                parsed_args(&["-hh"]).human,
                parsed_args(&["--no-h", "-h"]).human
            ),
            (2, 0)
        );
        assert!(parsed_args(&["-UU", "--no-U"]).select.open_noatime);
        assert!(!parsed_args(&["-D", "--no-D"]).preserve.specials);
    }

    #[test]
    fn parse_error_keeps_remote_operands_and_server_mode() {
        let walk = walked(&["--bogus", "host:x", "dst"]);
        assert!(walk.error.is_some() && walk.operands[0].is_remote());
        assert!(walked(&["--bogus", "--server"]).args.is_server_side);
        assert!(walked(&["--bogus", "--config", "x"]).args.is_server_side);
    }

    #[test]
    fn popt_aliases_are_expanded() {
        let text = b"# x\nrsync alias -Z --no-p --chmod=ugo=rwX\nrsync\talias --mine -av --exclude 'a b' --suffix=\".x y\"\n\
            rsync alias --ex --exclude\nrsync alias -a -a -H\nrsync alias --multi -r \\\n -t\nother alias --foo -a\n\
            rsync alias --dd --POPTdesc=$\"hello\" -t\nrsync alias --bad --bogus\nrsync alias --loop --loop\nrsync alias -Y -e\nrsync alias --none\n";
        let aliases = aliases(text);
        let read = |line: &[&str]| {
            walk(
                &line.iter().map(OsString::from).collect::<Vec<_>>(),
                &aliases,
                Args::default(),
            )
        };
        let ok = |line: &[&str]| {
            let walked = read(line);
            assert!(walked.error.is_none(), "{line:?}: {:?}", walked.error);
            walked
        };
        let walk = ok(&["-aZv", "s", "d"]);
        assert!(
            walk.args.preserve.hard_links
                && walk.args.preserve.links
                && !walk.args.preserve.perms
                && walk.args.verbose == 1
        );
        assert_eq!(
            (walk.args.preserve.chmod.len(), walk.operands.len()),
            (1, 2)
        );
        assert_eq!(
            ok(&["--mine", "s"]).args.suffix.as_deref(),
            Some(&b".x y"[..])
        );
        for line in [&["--ex", "foo", "s"][..], &["--ex=foo", "s"]] {
            assert_eq!(
                ok(line).args.select.rules,
                [crate::options::RuleArg::Exclude(b"foo".to_vec())]
            );
        }
        assert!(ok(&["--multi"]).args.preserve.times && ok(&["--dd"]).args.preserve.times);
        assert_eq!(ok(&["-tY", "ssh", "s"]).operands.len(), 1);
        for (line, message) in [
            ("--bad", "rsync: --bad: unknown option"),
            ("--loop", "rsync: --loop: unknown option"),
            ("--foo", "rsync: --foo: unknown option"),
            ("--none", "rsync: --none: unknown option"),
        ] {
            assert_eq!(read(&[line]).error.unwrap().message, message.as_bytes());
        }
    }

    proptest::proptest! {
        #[test]
        fn parser_does_not_panic_on_any_command_line(words in proptest::collection::vec(word(), 0..8), popt in "(rsync alias (-Z|--z|-a) [-a-zZ =']{0,12}\n){0,3}") {
            let words: Vec<OsString> = words.into_iter().map(OsString::from_vec).collect();
            let none = |_: &str| None;
            let call = super::super::Invocation {
                program: OsStr::new("sparsync"),
                args: &words,
                appended: &[],
                vars: &none,
                now_unix_secs: 1_795_222_574,
                umask: 0o022,
                popt: popt.as_bytes(),
            };
            let _ = super::super::read(&call);
        }
    }

    /// Generates names of the table with odd values, bundles, and noise.
    fn word() -> impl proptest::strategy::Strategy<Value = Vec<u8>> {
        use proptest::prelude::*;
        let names: Vec<String> = flags::all()
            .flat_map(|flag| {
                flag.aliases
                    .iter()
                    .chain(flag.negations)
                    .chain(Some(&flag.long))
            })
            .map(|name| format!("--{name}"))
            .collect();
        prop_oneof![
            proptest::sample::select(names.clone()).prop_map(String::into_bytes),
            (
                proptest::sample::select(names),
                "=[-+0-9a-zA-Z:,./%T ]{0,8}"
            )
                .prop_map(|(name, value)| (name + &value).into_bytes()),
            "-[a-zA-Z0-9@=-]{0,6}".prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>().prop_filter("no NUL in argv", |&b| b != 0), 0..6),
        ]
    }
}

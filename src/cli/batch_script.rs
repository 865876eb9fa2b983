//! The script beside a batch file: the command line that reads the file.

use super::flag::Arity;
use super::flags::{by_long, by_short};

/// Options about filter rules, whose rules the script has itself, and about names.
const RULE_OPTIONS: [&str; 6] = [
    "filter",
    "exclude",
    "exclude-from",
    "include",
    "include-from",
    "files-from",
];
/// Options that name the batch file.
const BATCH_OPTIONS: [&str; 2] = ["write-batch", "only-write-batch"];
/// What the rules of the script end with.
const END_OF_RULES: &[u8] = b"#E#";
/// The oldest protocol with rules that are more than patterns.
const FILTERS_SINCE: u8 = 29;

/// Returns the script that repeats a run from its batch file. `words`: the command line without the program; `rules`: the
/// texts of its rules.
pub fn script(
    program: &[u8],
    words: &[Vec<u8>],
    dest: &[u8],
    rules: &[Vec<u8>],
    protocol: u8,
) -> Vec<u8> {
    let mut out = Vec::new();
    put_quoted(program, &mut out);
    match (rules, protocol) {
        ([], _) => {}
        (_, ..FILTERS_SINCE) => out.extend_from_slice(b" --exclude-from='-'"),
        _ => out.extend_from_slice(b" --filter='._-'"),
    }
    let mut rest = words;
    while let Some((word, behind)) = rest.split_first() {
        if word == b"--" {
            put_word(word, &mut out);
            break;
        }
        let (name, has_value_behind) = option(word);
        let (own, others) = rest.split_at(if has_value_behind {
            rest.len().min(2)
        } else {
            1
        });
        rest = if has_value_behind { others } else { behind };
        match name {
            None => {}
            Some(name)
                if RULE_OPTIONS.contains(&name) && (word.starts_with(b"--") || word == b"-f") => {}
            Some(name) if BATCH_OPTIONS.contains(&name) => {
                let mut own = own.to_vec();
                own[0].splice(..name.len() + 2, *b"--read-batch");
                put_option(&own, &mut out);
            }
            Some(_) => put_option(own, &mut out),
        }
    }
    out.extend_from_slice(b" ${1:-");
    put_quoted(dest, &mut out);
    out.push(b'}');
    if !rules.is_empty() {
        out.extend_from_slice(b" <<'#E#'\n");
        for rule in rules {
            out.extend_from_slice(rule);
            out.push(b'\n');
        }
        out.extend_from_slice(END_OF_RULES);
    }
    out.push(b'\n');
    out
}

/// Returns the name of the option that a word contains, the last one of several letters, and whether the next word is its
/// argument. The name is empty if there is none; `None` for an operand.
fn option(word: &[u8]) -> (Option<&'static str>, bool) {
    if !word.starts_with(b"-") || word == b"-" {
        return (None, false);
    }
    let takes_value = |arity: Arity| matches!(arity, Arity::Value(_));
    if let Some(long) = word.strip_prefix(b"--") {
        let name = long.split(|&byte| byte == b'=').next().unwrap_or_default();
        let found = std::str::from_utf8(name).ok().and_then(by_long);
        let is_separate =
            found.is_some_and(|(flag, _)| takes_value(flag.arity)) && name.len() == long.len();
        return (Some(found.map_or("", |(flag, _)| flag.long)), is_separate);
    }
    for (at, &letter) in word.iter().enumerate().skip(1) {
        if let Some(flag) = by_short(char::from(letter)).filter(|flag| takes_value(flag.arity)) {
            return (Some(flag.long), at + 1 == word.len());
        }
    }
    (Some(""), false)
}

fn put_option(words: &[Vec<u8>], out: &mut Vec<u8>) {
    for word in words {
        put_word(word, out);
    }
}

/// Appends a word. The name of a long option stays outside of the quotes, as rsync writes it.
fn put_word(word: &[u8], out: &mut Vec<u8>) {
    out.push(b' ');
    let name_len = match word.iter().position(|&byte| byte == b'=') {
        Some(equals) if word.starts_with(b"--") => equals + 1,
        Some(_) | None => 0,
    };
    let (name, value) = word.split_at(name_len);
    out.extend_from_slice(name);
    match word {
        b"--read-batch" => out.extend_from_slice(word),
        _ => put_quoted(value, out),
    }
}

/// Appends a text in single quotes.
fn put_quoted(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'\'');
    for &byte in text {
        match byte {
            b'\'' => out.extend_from_slice(b"'\\''"),
            byte => out.push(byte),
        }
    }
    out.push(b'\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script_of(line: &[&str], rules: &[&str], protocol: u8) -> String {
        let bytes = |words: &[&str]| {
            words
                .iter()
                .map(|word| word.as_bytes().to_vec())
                .collect::<Vec<_>>()
        };
        String::from_utf8(script(
            b"rsync",
            &bytes(line),
            b"d 3",
            &bytes(rules),
            protocol,
        ))
        .unwrap()
    }

    /// Written by rsync 3.5.0.
    #[test]
    fn script_has_the_options_that_a_reader_needs() {
        for (line, expected) in [
            (
                &["-a", "--write-batch", "W", "s/", "d3"][..],
                "'rsync' '-a' --read-batch 'W' ${1:-'d 3'}\n",
            ),
            (
                &["-av", "s/", "d3", "--write-batch=W", "--suffix=a'b"],
                "'rsync' '-av' --read-batch='W' --suffix='a'\\''b' ${1:-'d 3'}\n",
            ),
            (
                &[
                    "-av",
                    "--only-write-batch=W",
                    "-e",
                    "./rsh",
                    "-M--fsync",
                    "--",
                    "s/",
                    "-x",
                ],
                "'rsync' '-av' --read-batch='W' '-e' './rsh' '-M--fsync' '--' ${1:-'d 3'}\n",
            ),
            (
                &["-av", "--files-from", "lst", "--write-batch=W", "s/", "d3"],
                "'rsync' '-av' --read-batch='W' ${1:-'d 3'}\n",
            ),
        ] {
            assert_eq!(script_of(line, &[], 32), expected);
        }
    }

    #[test]
    fn rules_are_in_the_script() {
        let line = [
            "-a",
            "-f",
            "- zz",
            "--filter=+ x",
            "--exclude",
            "y",
            "-vf",
            "- q",
            "--write-batch=W",
            "s/",
            "d",
        ];
        let rules = "<<'#E#'\n- zz\n+ x\n#E#\n";
        let options = "'-a' '-vf' '- q' --read-batch='W' ${1:-'d 3'}";
        assert_eq!(
            script_of(&line, &["- zz", "+ x"], 32),
            format!("'rsync' --filter='._-' {options} {rules}")
        );
        assert_eq!(
            script_of(&line, &["- zz", "+ x"], 28),
            format!("'rsync' --exclude-from='-' {options} {rules}")
        );
    }
}

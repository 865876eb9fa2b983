//! Masks what differs between two correct runs: rates, traffic, clocks, process IDs, source lines.
//!
//! Everything else stays. A mask that is too broad hides errors, so each mask documents what it keeps.

use std::path::Path;

/// The start of a line in a log after masking.
const LOG_STAMP: &str = "<now> [<pid>] ";

/// A line mask supplied by a case; `None` drops the line.
pub type OwnMask = fn(&str) -> Option<String>;

/// What the masks need to know about a run.
pub struct Mask<'a> {
    /// The twin in which the program ran, replaced by `{W}`, or by `{w}` without its leading slash.
    pub world: &'a Path,
    /// The home directory, replaced by `{H}`.
    pub home: &'a Path,
    /// Times from this one on, in seconds since the epoch, are replaced by `<now>`.
    pub now_secs: i64,
    /// A peer takes part: the amount of data sent, and the process that reports the end, differ between the programs.
    pub is_far: bool,
    /// The program under test uses a remote shell, as rsync does. Without one it does not print the shell's command.
    pub has_shell: bool,
    /// Files are updated by delta. rsync finds its matches in other blocks, so the counts of literal data differ.
    pub finds_differences: bool,
    /// An extra mask of the case for one line; `None` drops the line.
    pub own: Option<OwnMask>,
}

/// Returns whether a line proposes an option in place of a misspelled one. Under its own name only, the program prints
/// it behind rsync's error.
fn is_suggestion(line: &str) -> bool {
    line.starts_with("hint: did you mean `--")
}

impl Mask<'_> {
    /// Returns whether a line is about the way to the peer and only one of the programs prints it.
    fn is_way(&self, line: &str) -> bool {
        line.starts_with("sparsync: far: using ")
            || !self.has_shell && line.starts_with("opening connection using: ")
    }

    /// Masks the output of a program. Bytes that are not printable ASCII become `\xNN`.
    pub fn text(&self, bytes: &[u8]) -> String {
        let mut text = printable(bytes);
        for (dir, name, bare) in [(self.world, "{W}", "{w}"), (self.home, "{H}", "{h}")] {
            let dir = dir.to_str().expect("scratch directories have plain names");
            // Some lines omit the leading slash, for example those with `%f`; which ones do is compared.
            text = text.replace(dir, name).replace(&dir[1..], bare);
        }
        let lines: Vec<String> = text
            .split('\n')
            .filter_map(|line| self.line(line))
            .collect();
        let lasting: Vec<&str> = lines
            .iter()
            .map(String::as_str)
            .filter(|line| !self.is_way(line) && !is_suggestion(line))
            .collect();
        lasting.join("\n")
    }

    fn line(&self, line: &str) -> Option<String> {
        let line = last_progress(line);
        let line = source_position(&line);
        let line = temp_names(&line);
        let line = self.clocks(&line);
        let (stamp, rest) = line.split_at(if line.starts_with(LOG_STAMP) {
            LOG_STAMP.len()
        } else {
            0
        });
        let line = stamp.to_owned() + &traffic(rest);
        let counts = if self.is_far || self.finds_differences {
            &DIFFERENCES[..]
        } else {
            &[]
        };
        let line = without_number(&line, counts).unwrap_or(line);
        let line = without_number(&line, &TIMES).unwrap_or(line);
        let line = if self.is_far {
            between_machines(&line)?
        } else {
            line
        };
        match self.own {
            Some(own) => own(&line),
            None => Some(line),
        }
    }

    /// Masks `2026/11/20 09:01:10` of this run and the `[pid]` after it; keeps older times.
    fn clocks(&self, line: &str) -> String {
        const LEN: usize = "2026/11/20 09:01:10".len();
        let mut masked = String::new();
        let mut at = 0;
        while at < line.len() {
            let recent = line
                .get(at..at + LEN)
                .and_then(epoch_secs)
                .is_some_and(|secs| secs >= self.now_secs);
            if !recent {
                let next = line[at..].chars().next().map_or(1, char::len_utf8);
                masked += &line[at..at + next];
                at += next;
                continue;
            }
            masked += "<now>";
            at += LEN;
            if let Some((pid, _)) = line[at..]
                .strip_prefix(" [")
                .and_then(|rest| rest.split_once(']'))
                && pid.bytes().all(|b| b.is_ascii_digit())
            {
                masked += " [<pid>]";
                at += pid.len() + 3;
            }
        }
        masked
    }
}

/// Keeps newlines, tabs and printable ASCII; a carriage return becomes the two characters `\r`.
fn printable(bytes: &[u8]) -> String {
    let shown = bytes.iter().map(|&byte| match byte {
        b'\n' | b'\t' | b' '..=b'~' => char::from(byte).to_string(),
        b'\r' => "\\r".to_owned(),
        _ => format!("\\x{byte:02x}"),
    });
    shown.collect()
}

/// The two lines of `--stats` whose numbers depend on the speed of the machine.
const TIMES: [&str; 2] = ["File list generation time: ", "File list transfer time: "];

/// Keeps only the last state of a progress line, without rate and time: the number of updates varies.
fn last_progress(line: &str) -> String {
    let Some((before, last)) = line.rsplit_once("\\r") else {
        return line.to_owned();
    };
    let name = before.split("\\r").next().unwrap_or_default();
    let Some((amount, rest)) = last.split_once('%') else {
        return line.to_owned();
    };
    let tail = rest.find(" (").map_or("", |at| &rest[at..]);
    format!("{name}<progress>{amount}% <rate> <time>{tail}")
}

/// Masks `at main.c(1394) [sender=3.5.0]`; keeps the role.
fn source_position(line: &str) -> String {
    let position = line.rsplit_once(" at ").and_then(|(head, tail)| {
        let (_, rest) = tail.split_once('(')?;
        let (number, rest) = rest.split_once(") [")?;
        let (role, version) = rest.split_once('=')?;
        let genuine = number.bytes().all(|b| b.is_ascii_digit()) && version.ends_with(']');
        genuine.then(|| format!("{head} at <file>(<line>) [{role}=<version>]"))
    });
    position.unwrap_or_else(|| line.to_owned())
}

/// Masks the six random letters of `"/d/.name.Xy12Zz"`, and of `"/temp-dir/name.Xy12Zz"`.
fn temp_names(line: &str) -> String {
    const RANDOM: usize = 6;
    // Names in the directory of `--temp-dir` have no dot.
    let calls = ["rsync: [receiver] stat ", "rsync: [receiver] mkstemp "];
    let needs_dot = !calls.iter().any(|call| line.starts_with(call));
    let mut parts: Vec<String> = line.split('"').map(str::to_owned).collect();
    let quoted = parts.iter_mut().skip(1).step_by(2);
    for path in quoted {
        let name = path.rsplit('/').next().unwrap_or_default();
        let random = name.rsplit_once('.').filter(|(head, tail)| {
            (head.starts_with('.') || !needs_dot)
                && tail.len() == RANDOM
                && tail.bytes().all(|b| b.is_ascii_alphanumeric())
        });
        if random.is_some() {
            path.replace_range(path.len() - RANDOM.., "<rand>");
        }
    }
    parts.join("\"")
}

/// Masks the bytes transferred and the rates; keeps file sizes.
fn traffic(line: &str) -> String {
    const COUNTED: [&str; 3] = [
        "File list size: ",
        "Total bytes sent: ",
        "Total bytes received: ",
    ];
    if let Some(title) = COUNTED.iter().find(|title| line.starts_with(**title)) {
        return format!("{title}<n>");
    }
    if let Some((head, tail)) = line.split_once("  speedup is ") {
        let after = tail.find(' ').map_or("", |at| &tail[at..]);
        return format!("{head}  speedup is <n>{after}");
    }
    let Some((before, _)) = line
        .split_once("sent ")
        .filter(|_| line.contains(" bytes  received "))
    else {
        return line.to_owned();
    };
    let parts = line[before.len()..]
        .split("  ")
        .map(|part| match part.split_once(' ') {
            Some((title @ ("sent" | "received"), _)) => format!("{title} <n> bytes"),
            _ if part.ends_with(" bytes/sec") => "<n> bytes/sec".to_owned(),
            _ => part.to_owned(),
        });
    before.to_owned() + &parts.collect::<Vec<_>>().join("  ")
}

/// Titles of counts of literal and matched data.
const DIFFERENCES: [&str; 3] = ["Literal data: ", "Matched data: ", "total: matches="];

/// Masks what follows one of the titles, which begins the line or, in a log, follows the time.
fn without_number(line: &str, titles: &[&str]) -> Option<String> {
    titles.iter().find_map(|title| {
        let (before, _) = line.split_once(title)?;
        (before.is_empty() || before.starts_with("<now>")).then(|| format!("{before}{title}<n>"))
    })
}

/// Masks what differs only when data goes between machines; `None` drops the line.
fn between_machines(line: &str) -> Option<String> {
    if let Some((message, _)) = line.split_once(" bytes received so far)")
        && let Some((message, _)) = message.rsplit_once(" (")
    {
        return Some(format!("{message} (<n> bytes received so far)"));
    }
    // Printed by a process that another one ended.
    if line.contains("received SIGUSR1 (code 19)") {
        return None;
    }
    if let Some(masked) = without_number(line, &["opening connection using: "]) {
        return Some(masked);
    }
    if line.starts_with("Running socket program: ") {
        return Some("Running socket program: <program>".to_owned());
    }
    // In modules, rsync puts a slash before paths in directories that it has entered.
    if let Some((start, rest)) = line
        .split_once("\"/")
        .filter(|_| line.contains("\" (in m)"))
    {
        return between_machines(&format!("{start}\"{rest}"));
    }
    if line.starts_with("sending daemon args: ") {
        return Some(line.replace("CIvuY ", "CIvu "));
    }
    // `(code 23) at <file>(<line>) [sender=<version>]`: the two ends report the same end with different roles.
    match line.split_once(" at <file>(<line>) [") {
        Some((message, _)) => Some(format!("{message} at <file>(<line>)")),
        None => Some(line.to_owned()),
    }
}

/// Parses `2026/11/20 09:01:10` or `2026/11/20-09:01:10`, in UTC.
fn epoch_secs(text: &str) -> Option<i64> {
    let shape = "dddd/dd/dd dd:dd:dd";
    let fits = text.chars().zip(shape.chars()).all(|(c, s)| match s {
        'd' => c.is_ascii_digit(),
        ' ' => c == ' ' || c == '-',
        _ => c == s,
    });
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    if !fits {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    // Days since the epoch. Years start in March, so that the leap day is the last.
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + day_of_year - 719_468;
    Some(days * 86_400 + number(11, 13)? * 3600 + number(14, 16)? * 60 + number(17, 19)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(line: &str) -> String {
        let dir = Path::new("/tmp/w/oracle");
        let home = Path::new("/tmp/w/home");
        Mask {
            world: dir,
            home,
            now_secs: 1_795_000_000,
            is_far: false,
            has_shell: true,
            finds_differences: false,
            own: None,
        }
        .text(line.as_bytes())
    }

    #[test]
    fn masks_replace_only_expected_differences() {
        assert_eq!(epoch_secs("2020/09/13 12:26:40"), Some(1_600_000_000));
        let cases = [
            (
                "sent 1,2 bytes  received 3 bytes  9.00 bytes/sec",
                "sent <n> bytes  received <n> bytes  <n> bytes/sec",
            ),
            (
                "sent 1 bytes  received 3 bytes  total size 7",
                "sent <n> bytes  received <n> bytes  total size 7",
            ),
            (
                "total size is 7  speedup is 0.05 (DRY RUN)",
                "total size is 7  speedup is <n> (DRY RUN)",
            ),
            (
                "(code 23) at main.c(1394) [sender=3.5.0]",
                "(code 23) at <file>(<line>) [sender=<version>]",
            ),
            (
                "mkstemp \"/tmp/w/oracle/.f.o.a1B2c3\" failed",
                "mkstemp \"{W}/.f.o.<rand>\" failed",
            ),
            (
                "tmp/w/oracle/a 2020/09/13-12:26:40",
                "{w}/a 2020/09/13-12:26:40",
            ),
            (
                "2026/11/21 00:41:57 [123] building",
                "<now> [<pid>] building",
            ),
            (
                "\r  1  9%  1.00kB/s    0:00:00  \r  6 100%  3.00kB/s    0:00:00 (xfr#1, to-chk=0/2)",
                "<progress>  6 100% <rate> <time> (xfr#1, to-chk=0/2)",
            ),
            ("look at me (now) [a=b", "look at me (now) [a=b"),
        ];
        for (line, wanted) in cases {
            assert_eq!(masked(line), wanted);
        }
    }
}

//! The arguments after `--server`: written as rsync writes them, and compared with what a session requests.

use super::args::{Args, Dirs};
use super::value::words;
use crate::options::select::MissingArgs;
use crate::options::{
    Append, ArgStyle, Batch, Compression, FilesFrom, Options, Recurse, StderrMode,
};
use crate::report::format::Format;

/// The letter of the capability string by which sparsync recognizes sparsync. rsync looks only for letters that it
/// knows (`iLsfxCIvu`) and ignores all others.
///
/// `Z` belonged to a client that waits for the server's greeting. A server that knows only that letter serves a client
/// with this one, which speaks first, by rsync's protocol.
pub const CAPABILITY: u8 = b'Y';

/// The capability letters that rsync 3.5.0 sends after an optional `i`. A stock rsync at the other end must see the
/// same.
const RSYNC_CAPABILITIES: &str = "LsfxCIvu";

/// The most `-v` that rsync sends.
const VERBOSE_MAX: usize = 9;

/// Returns whether the text after `e` in the short options of a server's command line comes from a sparsync.
pub fn means_us(behind_e: &[u8]) -> bool {
    // Digits before the dot are the version of a pre-release.
    let letters = behind_e
        .iter()
        .position(|&b| b == b'.')
        .map_or(&b""[..], |dot| &behind_e[dot + 1..]);
    letters.contains(&CAPABILITY)
}

const ICONV: &str = "--iconv=";

/// Returns whether these options request that names are converted.
pub fn has_charset(words: &[Vec<u8>]) -> bool {
    words.iter().any(|word| word.starts_with(ICONV.as_bytes()))
}

/// Returns how many of the words of [`words()`] are on the command line with `--secluded-args`.
pub fn unsecluded(words: &[Vec<u8>]) -> usize {
    words
        .len()
        .min(1 + usize::from(words.get(1..2).is_some_and(has_charset)))
}

/// Returns the options of the server's command line, not escaped: the short options first, then long options in rsync's
/// order. The caller adds `--server` and `--sender` before them, and the words of `--remote-option` and the operands
/// after. With `--secluded-args`, only the short options are on the command line; the client sends the others.
///
/// `push`: the server receives. Wrappers such as rrsync read this command line. The server itself, if it is a sparsync,
/// uses the options that the session sends.
pub fn words(args: &Args, options: &Options, push: bool) -> Vec<Vec<u8>> {
    let mut words = WordList {
        list: vec![letters(args, options, push)],
        args,
        options,
        push,
    };
    words.value(
        ICONV,
        options.connect.iconv.as_ref().map(|iconv| &iconv.there[..]),
    );
    words.selection();
    words.output();
    words.limits();
    words.backups_and_sums();
    if push {
        words.deletion();
    } else {
        words.value("--skip-compress=", args.skip_compress.as_deref());
    }
    words.transfer();
    if push {
        words.receiver();
    }
    words.list_and_devices();
    words.list
}

/// Removes the capability of piecewise file lists from the short options of [`words()`].
pub fn take_list_whole(letters: &mut Vec<u8>) {
    let end = letters.windows(2).rposition(|pair| pair == b".i");
    if let Some(dot) = end {
        letters.remove(dot + 1);
    }
}

/// Returns the short options of a command line, up to the capability string.
fn letters_of(words: &[Vec<u8>]) -> &[u8] {
    let is_letters = |word: &&Vec<u8>| word.starts_with(b"-") && !word.starts_with(b"--");
    let word = words
        .iter()
        .find(is_letters)
        .map_or(&b""[..], |word| &word[1..]);
    word.split(|&letter| letter == b'e')
        .next()
        .unwrap_or_default()
}

/// Returns whether the session sends the remaining arguments: `-s`.
pub fn is_secluded(words: &[Vec<u8>]) -> bool {
    letters_of(words).contains(&b's')
}

/// Removes `-s`: the arguments have come.
pub fn take_secluded(words: &mut [Vec<u8>]) {
    change_letters(words, &|letters| {
        letters.retain(|&letter| letter != b's');
    });
}

/// Removes the `-v` beyond a number of them.
pub fn limit_verbosity(words: &mut [Vec<u8>], most: usize) {
    change_letters(words, &|letters| {
        let mut count = 0;
        letters.retain(|&letter| {
            count += usize::from(letter == b'v');
            letter != b'v' || count <= most
        });
    });
}

/// Changes the short options, up to the capability string.
fn change_letters(words: &mut [Vec<u8>], change: &dyn Fn(&mut Vec<u8>)) {
    for word in words
        .iter_mut()
        .filter(|word| word.starts_with(b"-") && !word.starts_with(b"--"))
    {
        let end = word
            .iter()
            .position(|&letter| letter == b'e')
            .unwrap_or(word.len());
        let rest = word.split_off(end);
        change(word);
        word.extend(rest);
    }
}

/// Options whose value is a path on this machine. A forced command such as rrsync rewrites such a path, so the command
/// line decides.
const PATH_OPTIONS: [&[u8]; 7] = [
    b"--backup-dir",
    b"--partial-dir",
    b"--temp-dir",
    b"--link-dest",
    b"--compare-dest",
    b"--copy-dest",
    b"--files-from",
];

/// Groups words into options. Each has a key by which it is compared, without the path, and its words.
fn options_of(words: Vec<Vec<u8>>) -> Vec<(Vec<u8>, Vec<Vec<u8>>)> {
    let mut options = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        // `-` is a list that the client sends in the session, not a path on this machine.
        let is_local = word != b"--files-from=-";
        let is_path_of = |name: &&&[u8]| {
            is_local
                && word
                    .strip_prefix(**name)
                    .is_some_and(|rest| rest.is_empty() || rest[0] == b'=')
        };
        let Some(name) = PATH_OPTIONS.iter().find(is_path_of) else {
            options.push((word.clone(), vec![word]));
            continue;
        };
        let value = if word.len() == name.len() {
            words.next()
        } else {
            None
        };
        options.push((name.to_vec(), std::iter::once(word).chain(value).collect()));
    }
    options
}

/// Compares the arguments of a command line (`asked`) with those of the session followed by those of its
/// `--remote-option`. The command line must contain all of them, in the same order; paths may differ. Returns the
/// arguments that only the command line has. The error is the first argument or letter that only the session has.
pub fn agreed(
    line: &[Vec<u8>],
    session: &[Vec<u8>],
    remote: &[Vec<u8>],
) -> Result<Vec<Vec<u8>>, Vec<u8>> {
    let known = letters_of(line);
    let session_letters = letters_of(session);
    let count = |letters: &[u8], letter| letters.iter().filter(|&&other| other == letter).count();
    if let Some(&letter) = session_letters
        .iter()
        .find(|&&letter| count(session_letters, letter) > count(known, letter))
    {
        return Err(vec![b'-', letter]);
    }
    if is_secluded(line) {
        return Ok(Vec::new());
    }
    let rest = |words: &[Vec<u8>]| {
        let letters = words
            .iter()
            .position(|word| word.starts_with(b"-") && !word.starts_with(b"--"));
        let others = words
            .iter()
            .enumerate()
            .filter(|(at, _)| Some(*at) != letters);
        others.map(|(_, word)| word.clone()).collect::<Vec<_>>()
    };
    let mut more = Vec::new();
    let mut line = options_of(rest(line)).into_iter();
    for (option, words) in options_of([rest(session), remote.to_vec()].concat()) {
        loop {
            match line.next() {
                None => return Err(words[0].clone()),
                Some((same, _)) if same == option => break,
                Some((_, other)) => more.extend(other),
            }
        }
    }
    more.extend(line.flat_map(|(_, words)| words));
    Ok(more)
}

fn letters(args: &Args, options: &Options, push: bool) -> Vec<u8> {
    let full = options.select.recurse == Recurse::Full;
    let select = &options.select;
    let preserve = &options.preserve;
    let mut letters = String::from("-");
    let mut add = |letter: &str, count: usize| letters.push_str(&letter.repeat(count));
    add("s", usize::from(options.connect.args == ArgStyle::Secluded));
    add("v", usize::from(args.verbose).min(VERBOSE_MAX));
    add("q", usize::from(args.quiet > 0));
    add("b", usize::from(options.place.backup.is_some()));
    add("u", usize::from(args.check.update));
    add("n", usize::from(args.dry_run));
    add("l", usize::from(preserve.links));
    let has_dirs = args.files_from.is_none() || args.dirs == Dirs::Yes || push && args.delete.any;
    add(
        "d",
        usize::from(!full && select.recurse == Recurse::Dirs && has_dirs),
    );
    if push {
        add("K", usize::from(args.preserve.keep_dirlinks));
        add("m", usize::from(args.select.prune_empty_dirs));
        add("O", usize::from(args.preserve.omit_dir_times));
        add("J", usize::from(args.preserve.omit_link_times));
        add(
            "y",
            usize::from(args.fuzzy).min(if args.alt_kind.is_some() { 2 } else { 1 }),
        );
    } else {
        add("L", usize::from(args.select.copy_links));
        add("k", usize::from(args.select.copy_dirlinks));
    }
    add("W", usize::from(options.delta.whole_file == Some(true)));
    add("H", usize::from(args.preserve.hard_links));
    add("o", usize::from(args.preserve.owner));
    add("g", usize::from(args.preserve.group));
    add("D", usize::from(args.preserve.devices));
    add("t", usize::from(args.preserve.times));
    add("U", usize::from(args.atimes).min(2));
    add("p", usize::from(args.preserve.perms));
    add(
        "E",
        usize::from(push && args.preserve.executability && !args.preserve.perms),
    );
    add("A", usize::from(args.preserve.acls));
    add("X", usize::from(args.preserve.xattrs));
    add("r", usize::from(full));
    add("c", usize::from(args.checksum));
    add("C", usize::from(args.select.cvs_exclude));
    add("I", usize::from(args.ignore_times));
    add("R", usize::from(select.relative));
    add("x", usize::from(select.one_file_system));
    add("S", usize::from(args.place.sparse));
    let is_z = match options.delta.compress.choice {
        Some(Compression::Auto) => args.compress > 0,
        choice => choice == Some(Compression::Zlib),
    };
    add("z", usize::from(is_z));
    // A receiver that needs the whole list first signals this to the sender by leaving out `i`.
    let needs_list = args.delete.before
        || args.delete.after
        || args.place.delay_updates
        || args.select.prune_empty_dirs;
    let may_be_piecewise = full && args.inc_recursive != Some(false) && (push || !needs_list);
    letters.push_str("e.");
    letters.push_str(if may_be_piecewise { "i" } else { "" });
    letters.push_str(RSYNC_CAPABILITIES);
    if options.requires_rsync().is_none() {
        letters.push(char::from(CAPABILITY));
    }
    letters.into_bytes()
}

/// Collects the long options.
struct WordList<'a> {
    list: Vec<Vec<u8>>,
    args: &'a Args,
    options: &'a Options,
    push: bool,
}

impl WordList<'_> {
    fn word(&mut self, given: bool, word: &str) {
        if given {
            self.list.push(word.as_bytes().to_vec());
        }
    }

    fn value(&mut self, name: &str, value: Option<&[u8]>) {
        self.list
            .extend(value.map(|value| [name.as_bytes(), value].concat()));
    }

    /// Adds an option whose value is a separate argument.
    fn path(&mut self, name: &str, path: Option<&[u8]>) {
        self.list.extend(
            path.into_iter()
                .flat_map(|path| [name.as_bytes().to_vec(), path.to_vec()]),
        );
    }

    fn number(&mut self, name: &str, number: Option<impl std::fmt::Display>) {
        if let Some(number) = number {
            self.list.push(format!("{name}{number}").into_bytes());
        }
    }

    fn selection(&mut self) {
        let args = self.args;
        let options = self.options;
        self.word(args.select.list_only, "--list-only");
        let dirs_lose_extras = options.select.recurse == Recurse::Dirs && args.delete.any;
        self.word(self.push && dirs_lose_extras, "--no-r");
        self.number("--compress-level=", args.compress_level);
        self.word(
            args.preserve.devices && !args.preserve.specials,
            "--no-specials",
        );
        self.word(
            !args.preserve.devices && args.preserve.specials,
            "--specials",
        );
    }

    fn output(&mut self) {
        let output = &self.options.output;
        let format = if !self.push {
            None
        } else if output.itemize > 0 {
            Some(if self.args.itemize > 1 { "%i%I" } else { "%i" })
        } else if output
            .out_format
            .as_deref()
            .map(Format::parse)
            .is_some_and(|format| format.has_operation())
        {
            Some("%o")
        } else if self.args.verbose == 0 && output.info.name > 0 {
            Some("X")
        } else {
            None
        };
        self.number("--log-format=", format);
        match output.stderr {
            StderrMode::Errors => {}
            StderrMode::All => self.word(true, "--msgs2stderr"),
            StderrMode::Client => self.word(true, "--no-msgs2stderr"),
        }
    }

    fn limits(&mut self) {
        let delta = &self.options.delta;
        let connect = &self.options.connect;
        self.number(
            "-B",
            Some(delta.block_size_bytes).filter(|&bytes| bytes > 0),
        );
        self.number(
            "--timeout=",
            Some(connect.timeout_secs).filter(|&secs| secs > 0),
        );
        self.number(
            "--bwlimit=",
            connect.bwlimit_bytes_per_sec.map(|bytes| bytes / 1024),
        );
    }

    fn backups_and_sums(&mut self) {
        let args = self.args;
        self.path("--backup-dir", args.backup_dir.as_deref());
        let usual: &[u8] = if args.backup_dir.is_some() { b"" } else { b"~" };
        self.value(
            "--suffix=",
            args.suffix.as_deref().filter(|suffix| *suffix != usual),
        );
        let choice = args
            .checksum_choice
            .as_deref()
            .filter(|choice| !choice.eq_ignore_ascii_case(b"auto"));
        self.value("--checksum-choice=", choice);
        match self.options.delta.compress.choice {
            None | Some(Compression::Auto) => {}
            Some(Compression::Zlib) => self.word(true, "--old-compress"),
            Some(Compression::Zlibx) => self.word(true, "--new-compress"),
            Some(Compression::Zstd) => self.word(true, "--compress-choice=zstd"),
            Some(Compression::Lz4) => self.word(true, "--compress-choice=lz4"),
            // The server does not compress by default.
            Some(Compression::No) => {
                self.word(args.compress_choice.is_some(), "--compress-choice=none")
            }
        }
    }

    fn deletion(&mut self) {
        let args = self.args;
        // rsync reads no number below 1 as a count of deletions. The lowest number means no limit.
        let max = args
            .max_delete
            .filter(|&max| max != i32::MIN)
            .map(|max| if max > 0 { max } else { -1 });
        self.number("--max-delete=", max);
        self.number("--min-size=", args.select.min_size_bytes);
        self.number("--max-size=", args.select.max_size_bytes);
        let delete = args.delete;
        self.word(delete.before, "--delete-before");
        self.word(delete.delay, "--delete-delay");
        self.word(delete.during && !delete.delay, "--delete-during");
        self.word(delete.after, "--delete-after");
        self.word(delete.excluded, "--delete-excluded");
        self.word(
            delete.any && !(delete.before || delete.during || delete.after || delete.excluded),
            "--delete",
        );
        self.word(args.force, "--force");
        self.word(
            Batch::is_only_written(self.options.batch.as_ref()),
            "--only-write-batch=X",
        );
        self.word(args.preserve.super_user == Some(true), "--super");
        self.word(args.size_only, "--size-only");
        self.word(args.stats, "--stats");
    }

    fn transfer(&mut self) {
        let args = self.args;
        let place = &self.options.place;
        self.value("--max-alloc=", args.max_alloc.as_deref());
        match self.options.select.missing_args {
            MissingArgs::Delete => self.word(true, "--delete-missing-args"),
            MissingArgs::Ignore => self.word(!self.push, "--ignore-missing-args"),
            MissingArgs::Fail => {}
        }
        if self.push {
            match args.modify_window_secs {
                Some(secs) if secs < 0 => self.number("-@", Some(secs)),
                secs => self.number("--modify-window=", secs),
            }
        }
        self.number("--checksum-seed=", args.checksum_seed);
        if self.push {
            let own = !args.place.delay_updates || args.partial_dir.is_some();
            match &place.partial_dir {
                Some(dir) if own => self.path("--partial-dir", Some(dir)),
                Some(_) => {}
                None => self.word(place.partial && !place.inplace, "--partial"),
            }
            self.word(args.place.delay_updates, "--delay-updates");
        }
        self.word(args.ignore_errors, "--ignore-errors");
        self.word(args.select.copy_unsafe_links, "--copy-unsafe-links");
        self.word(args.preserve.safe_links, "--safe-links");
        self.word(args.preserve.numeric_ids, "--numeric-ids");
    }

    /// Adds the options that only a receiver needs.
    fn receiver(&mut self) {
        let args = self.args;
        self.value("--usermap=", args.usermap.as_ref().map(|map| &map.text[..]));
        self.value(
            "--groupmap=",
            args.groupmap.as_ref().map(|map| &map.text[..]),
        );
        self.word(args.check.ignore_existing, "--ignore-existing");
        self.word(args.check.existing_only, "--existing");
        self.path("--temp-dir", args.place.temp_dir.as_deref());
        self.word(args.place.fsync, "--fsync");
        // Those of --clone-dest are written as those of --copy-dest, which forced commands know and whose paths they check.
        // The session says how files are copied.
        if let Some(kind) = args.alt_kind {
            for dir in &args.alt_dirs {
                self.path(kind.option(), Some(dir));
            }
        }
    }

    fn list_and_devices(&mut self) {
        let args = self.args;
        let select = &self.options.select;
        self.value(
            "--info=",
            words::info_for_server(&args.info, self.push)
                .as_deref()
                .map(str::as_bytes),
        );
        match self.options.place.append {
            Some(append) => {
                self.word(true, "--append");
                self.word(append == Append::Verify, "--append");
            }
            None => self.word(self.options.place.inplace, "--inplace"),
        }
        match &select.files_from {
            Some(FilesFrom::Far(path) | FilesFrom::Sent(path)) => {
                self.path("--files-from", Some(path));
                self.word(args.select.from0, "--from0");
                self.word(!select.relative, "--no-relative");
            }
            Some(_) if !self.push => {
                self.word(true, "--files-from=-");
                self.word(true, "--from0");
                self.word(!select.relative, "--no-relative");
            }
            _ => {}
        }
        self.word(
            select.relative && args.select.no_implied_dirs,
            "--no-implied-dirs",
        );
        self.word(self.push && args.preserve.write_devices, "--write-devices");
        self.number("--", args.remove_source_files);
        self.word(!self.push && args.select.copy_devices, "--copy-devices");
        self.word(self.push && args.place.preallocate, "--preallocate");
        self.word(
            args.select.open_noatime && args.atimes <= 1,
            "--open-noatime",
        );
        self.word(self.push && args.place.mkpath, "--mkpath");
    }
}

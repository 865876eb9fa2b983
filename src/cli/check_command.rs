//! The command line of `check`: the options of its own, the options of a copy that it permits, and the dry run that it
//! stands for.
//!
//! Options are permitted by name. One that is not listed here could change something, or leave entries out.

use super::args::{Args, CheckArgs, Recursion};
use super::flag::{Effect, Flag, Polarity};
use super::parse::{self, GivenOption, Walked};
use super::{Copy, Invocation, Request, subcommand};
use crate::digest::HashAlgorithm;
use crate::error::{Error, Result};
use crate::options::findings::{ComparisonKind, PrintedFindings};
use crate::report::comparison::WRONG_USAGE;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

/// What `check` compares.
#[derive(Debug)]
pub enum CheckRequest {
    Manifest(ManifestCheck),
    /// `check SRC... DST`: the dry run whose items are the findings.
    Trees(Box<Copy>),
}

/// `check --manifest=FILE TREE`
#[derive(Debug)]
pub struct ManifestCheck {
    /// The manifest; `-`: standard input.
    pub manifest: Vec<u8>,
    pub tree: Vec<u8>,
    /// The algorithm of all lines, if the user has named it.
    pub algorithm: Option<HashAlgorithm>,
    pub printed: PrintedFindings,
    /// Do not look for files that the manifest does not list.
    pub one_way: bool,
    pub progress: bool,
    pub json: bool,
}

/// The options that only `check` has.
pub const FLAGS: &[Flag] = &[
    Flag::value("manifest", "FILE", "")
        .effect(Effect::Text(|args| &mut args.check_command.manifest)),
    Flag::value("algorithm", "NAME", "")
        .effect(Effect::Text(|args| &mut args.check_command.algorithm)),
    Flag::value("list", "LIST", "").effect(Effect::Text(|args| &mut args.check_command.list)),
    Flag::switch("one-way", "").effect(Effect::Switch(|args| &mut args.check_command.one_way)),
    Flag::switch("quick", "").effect(Effect::Switch(|args| &mut args.check_command.quick)),
];

/// The options of a comparison with a manifest.
const WITH_MANIFEST: [&str; 6] = [
    "manifest",
    "algorithm",
    "list",
    "one-way",
    "progress",
    "json",
];

/// The options of a copy that a comparison of trees takes over: what is compared, which entries take part, and how the
/// other machine is reached.
const OF_COPIES: [&str; 77] = [
    "8-bit-output",
    "json",
    "ui",
    "archive",
    "recursive",
    "inc-recursive",
    "dirs",
    "relative",
    "no-implied-dirs",
    "one-file-system",
    "files-from",
    "from0",
    "exclude",
    "exclude-from",
    "include",
    "include-from",
    "filter",
    "cvs-exclude",
    "max-size",
    "min-size",
    "prune-empty-dirs",
    "ignore-missing-args",
    "copy-links",
    "copy-unsafe-links",
    "copy-dirlinks",
    "open-noatime",
    "iconv",
    "checksum",
    "checksum-cache",
    "checksum-cache-force",
    "checksum-choice",
    "checksum-seed",
    "modify-window",
    "links",
    "safe-links",
    "insecure-links",
    "munge-links",
    "keep-dirlinks",
    "hard-links",
    "perms",
    "executability",
    "chmod",
    "acls",
    "xattrs",
    "owner",
    "group",
    "devices",
    "specials",
    "times",
    "omit-dir-times",
    "omit-link-times",
    "fake-super",
    "numeric-ids",
    "usermap",
    "groupmap",
    "chown",
    "delete-excluded",
    "compress",
    "compress-choice",
    "compress-level",
    "rsh",
    "rsync-path",
    "old-args",
    "secluded-args",
    "trust-sender",
    "address",
    "port",
    "sockopts",
    "password-file",
    "early-input",
    "blocking-io",
    "ipv4",
    "ipv6",
    "timeout",
    "contimeout",
    "bwlimit",
    "transport",
];
/// The same for options that are only letters.
const LETTERS_OF_COPIES: [char; 2] = ['F', 'D'];
/// Options without an effect on a comparison, which the user may be used to.
const WITHOUT_EFFECT: [&str; 4] = ["verbose", "dry-run", "itemize-changes", "human-readable"];

/// The attributes of the default. If one of them is given, only what is given is compared.
const OF_ARCHIVE: [&str; 9] = [
    "archive",
    "recursive",
    "links",
    "perms",
    "times",
    "group",
    "owner",
    "devices",
    "specials",
];

/// Reads the words after `check`.
pub fn read(call: &Invocation<'_>, words: &[OsString]) -> Result<Request> {
    read_words(call, words).map_err(|error| {
        // rsync's code for a wrong command line means here that there are differences.
        Error {
            exit: if error.exit == crate::exit::Exit::Usage {
                WRONG_USAGE
            } else {
                error.exit
            },
            ..error
        }
    })
}

fn read_words(call: &Invocation<'_>, words: &[OsString]) -> Result<Request> {
    let args = Args {
        umask: call.umask,
        now_unix_secs: call.now_unix_secs,
        ..Args::default()
    };
    let mut walked = parse::walk_with(words, &parse::aliases(call.popt), args, FLAGS);
    walked.suggest(FLAGS);
    if walked.args.print.is_some() || parse::lone_help(words, &walked.args) {
        return Ok(Request::Verb(subcommand::Verb::Help(Some("check"))));
    }
    if let Some(error) = walked.error {
        return Err(error);
    }
    let manifest = walked.args.check_command.manifest.take();
    Ok(Request::Check(match manifest {
        Some(manifest) => CheckRequest::Manifest(of_manifest(manifest, &walked)?),
        None => CheckRequest::Trees(Box::new(of_trees(call, &walked)?)),
    }))
}

fn wrong(what: &str) -> Error {
    Error::usage(format!("sparsync check: {what}")).with_hint("see `sparsync check --help`")
}

/// Returns the error for an option that a comparison does not have.
fn not_permitted(given: &GivenOption, with: &str) -> Error {
    let name = match (&given.spelling, given.flag.short) {
        (Some(name), _) => format!("--{name}"),
        (None, Some(letter)) => format!("-{letter}"),
        (None, None) => format!("--{}", given.flag.long),
    };
    wrong(&format!("{name} cannot be used{with}"))
}

fn printed(args: &CheckArgs, compared: ComparisonKind) -> Result<PrintedFindings> {
    let Some(list) = &args.list else {
        return Ok(PrintedFindings::differences());
    };
    PrintedFindings::parse(list, compared).ok_or_else(|| {
        wrong(&format!(
            "invalid --list value `{}`: expected a list of {}",
            list.escape_ascii(),
            PrintedFindings::names(compared)
        ))
    })
}

fn of_manifest(manifest: Vec<u8>, walked: &Walked) -> Result<ManifestCheck> {
    if let Some(other) = walked
        .given
        .iter()
        .find(|given| !WITH_MANIFEST.contains(&given.flag.long))
    {
        return Err(not_permitted(other, " with --manifest"));
    }
    let tree = match &walked.operands[..] {
        [tree] if !tree.as_bytes().is_empty() => tree.as_bytes().to_vec(),
        _ => return Err(wrong("expected one TREE with --manifest")),
    };
    let args = &walked.args.check_command;
    let algorithm = match &args.algorithm {
        None => None,
        Some(name) => Some(algorithm(name)?),
    };
    Ok(ManifestCheck {
        manifest,
        tree,
        algorithm,
        printed: printed(args, ComparisonKind::Manifest)?,
        one_way: args.one_way,
        progress: walked
            .given
            .iter()
            .any(|given| given.flag.long == "progress" && given.polarity == Polarity::On),
        json: walked.args.json,
    })
}

fn algorithm(name: &[u8]) -> Result<HashAlgorithm> {
    let found = HashAlgorithm::ALL
        .into_iter()
        .find(|algorithm| algorithm.name().as_bytes() == name);
    found.ok_or_else(|| {
        wrong(&format!(
            "invalid --algorithm value `{}`: expected {}",
            name.escape_ascii(),
            HashAlgorithm::ALL.map(HashAlgorithm::name).join(", ")
        ))
    })
}

fn of_trees(call: &Invocation<'_>, walked: &Walked) -> Result<Copy> {
    let mut kept = Vec::new();
    for given in &walked.given {
        let Flag { long, short, .. } = *given.flag;
        if long == "algorithm" {
            return Err(not_permitted(given, " without --manifest"));
        }
        let is_letter = long.is_empty() && short.is_some_and(|l| LETTERS_OF_COPIES.contains(&l));
        if is_letter || OF_COPIES.contains(&long) {
            kept.push(given);
        } else if !WITHOUT_EFFECT.contains(&long) && !FLAGS.iter().any(|own| own.long == long) {
            return Err(not_permitted(given, ": nothing is copied"));
        }
    }
    if walked.operands.len() < 2 {
        return Err(wrong("expected SRC and DST, or --manifest=FILE and TREE"));
    }

    let args = &walked.args.check_command;
    let names_attributes = kept.iter().any(|given| {
        given.polarity == Polarity::On
            && (OF_ARCHIVE.contains(&given.flag.long)
                || given.flag.long.is_empty() && given.flag.short == Some('D'))
    });
    let recurses = match walked.args.recursion {
        Recursion::Yes => true,
        Recursion::ByArchive => walked.args.files_from.is_none(),
        Recursion::No => !names_attributes && walked.args.files_from.is_none(),
    };
    let mut words: Vec<&[u8]> = vec![b"--dry-run", b"-ii"];
    if !names_attributes {
        words.push(b"--archive");
    }
    words.push(b"--omit-dir-times");
    if !args.quick {
        words.push(b"--checksum");
        words.push(b"--report-unread");
    }
    // Without recursion, not all that a directory of the destination contains is known to be extra.
    if recurses && !args.one_way {
        words.push(b"--delete");
    }
    let words = words
        .into_iter()
        .map(<[u8]>::to_vec)
        .chain(kept.into_iter().map(GivenOption::word))
        .chain([b"--".to_vec()])
        .chain(walked.operands.iter().map(|it| it.as_bytes().to_vec()));
    let words: Vec<OsString> = words.map(OsString::from_vec).collect();
    let dry_run = Invocation {
        program: OsStr::new("sparsync"),
        args: &words,
        appended: &[],
        vars: call.vars,
        now_unix_secs: call.now_unix_secs,
        umask: call.umask,
        popt: b"",
    };
    match super::read(&dry_run)? {
        Request::Copy(mut copy) => {
            copy.options.output.compares = Some(printed(args, ComparisonKind::Trees)?);
            Ok(*copy)
        }
        Request::Unsupported(error) => Err(error),
        _ => Err(wrong("expected SRC and DST, or --manifest=FILE and TREE")),
    }
}

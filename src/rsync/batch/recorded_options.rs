//! The options that a batch file records, and a run that takes them over.

use crate::error::{Error, Result};
use crate::options::{Append, CheckMode, Compression, Options, Recurse};
use crate::proto::rsync::batch::{BatchHeader, BatchOptions};
use crate::proto::rsync::handshake::CompatFlags;

/// The recorded options, with their names in messages.
const NAMES: [(BatchOptions, &str); 14] = [
    (BatchOptions::RECURSE, "--recurse (-r)"),
    (BatchOptions::OWNERS, "--owner (-o)"),
    (BatchOptions::GROUPS, "--group (-g)"),
    (BatchOptions::LINKS, "--links (-l)"),
    (BatchOptions::DEVICES, "--devices (-D)"),
    (BatchOptions::HARD_LINKS, "--hard-links (-H)"),
    (BatchOptions::CHECKSUM, "--checksum (-c)"),
    (BatchOptions::DIRS, "--dirs (-d)"),
    (BatchOptions::COMPRESS, "--compress (-z)"),
    (BatchOptions::ACLS, "--acls (-A)"),
    (BatchOptions::XATTRS, "--xattrs (-X)"),
    (BatchOptions::INPLACE, "--inplace"),
    (BatchOptions::APPEND, "--append"),
    (BatchOptions::APPEND_VERIFY, "--append-verify"),
];

/// Returns the options of a run that its batch file records.
pub fn recorded(options: &Options) -> BatchOptions {
    let Options {
        select,
        preserve,
        place,
        ..
    } = options;
    let compresses = options
        .delta
        .compress
        .choice
        .is_some_and(|choice| choice != Compression::No);
    [
        (select.recurse == Recurse::Full, BatchOptions::RECURSE),
        (preserve.owner, BatchOptions::OWNERS),
        (preserve.group, BatchOptions::GROUPS),
        (preserve.links, BatchOptions::LINKS),
        (preserve.devices, BatchOptions::DEVICES),
        (preserve.hard_links, BatchOptions::HARD_LINKS),
        (
            options.check.mode == CheckMode::Digest,
            BatchOptions::CHECKSUM,
        ),
        (select.recurse != Recurse::No, BatchOptions::DIRS),
        (compresses, BatchOptions::COMPRESS),
        (preserve.acls, BatchOptions::ACLS),
        (preserve.xattrs > 0, BatchOptions::XATTRS),
        (options.connect.iconv.is_some(), BatchOptions::ICONV),
        (place.inplace, BatchOptions::INPLACE),
        (place.append == Some(Append::Trust), BatchOptions::APPEND),
        (
            place.append == Some(Append::Verify),
            BatchOptions::APPEND_VERIFY,
        ),
    ]
    .into_iter()
    .fold(BatchOptions::default(), |all, (is_set, option)| {
        if is_set {
            BatchOptions(all.0 | option.0)
        } else {
            all
        }
    })
}

/// Changes the options to those of a file that is read. Adds a line for each one that changes.
pub fn take_over(
    header: &BatchHeader,
    options: &mut Options,
    lines: &mut Vec<String>,
) -> Result<()> {
    let is_incremental = header.compat.has(CompatFlags::INC_RECURSE);
    let may_be_incremental =
        options.select.recurse == Recurse::Full && !options.select.no_inc_recursive;
    let own = recorded(options);
    for (option, name) in NAMES
        .into_iter()
        .filter(|(option, _)| option.is_in(header.protocol))
    {
        let is_recorded = header.options.has(option);
        if is_recorded != own.has(option) {
            lines.push(format!(
                "{} the {name} option to match the batchfile.",
                if is_recorded { "Setting" } else { "Clearing" }
            ));
            set(option, is_recorded, options);
        }
    }
    let converts = options.connect.iconv.is_some();
    if header.options.has(BatchOptions::ICONV) != converts {
        let how = if converts { "Do not" } else { "Please" };
        return Err(Error::usage(format!(
            "{how} specify the --iconv option to use this batch file."
        ))
        .by("Receiver"));
    }
    if is_incremental && !may_be_incremental {
        let words = "Incompatible options specified for inc-recursive batch file.";
        return Err(Error::usage(words).by("Receiver"));
    }
    options.select.no_inc_recursive = !is_incremental;
    if options.place.inplace {
        // No command line has these with --inplace. What is written in place is neither staged nor kept elsewhere.
        options.place.delay_updates = false;
        options.place.partial_dir = None;
    }
    Ok(())
}

fn set(option: BatchOptions, is_set: bool, options: &mut Options) {
    let Options {
        select,
        preserve,
        place,
        check,
        delta,
        ..
    } = options;
    match option {
        BatchOptions::RECURSE if is_set => select.recurse = Recurse::Full,
        BatchOptions::RECURSE => select.recurse = Recurse::Dirs,
        BatchOptions::DIRS if is_set && select.recurse == Recurse::No => {
            select.recurse = Recurse::Dirs
        }
        BatchOptions::DIRS if is_set => {}
        BatchOptions::DIRS => select.recurse = Recurse::No,
        BatchOptions::OWNERS => preserve.owner = is_set,
        BatchOptions::GROUPS => preserve.group = is_set,
        BatchOptions::LINKS => preserve.links = is_set,
        BatchOptions::DEVICES => preserve.devices = is_set,
        BatchOptions::HARD_LINKS => preserve.hard_links = is_set,
        BatchOptions::CHECKSUM if is_set => check.mode = CheckMode::Digest,
        BatchOptions::CHECKSUM => check.mode = CheckMode::Quick { window_secs: 0 },
        BatchOptions::COMPRESS => delta.compress.choice = is_set.then_some(Compression::Zlib),
        BatchOptions::ACLS => preserve.acls = is_set,
        BatchOptions::XATTRS => preserve.xattrs = u8::from(is_set),
        BatchOptions::INPLACE => place.inplace = is_set,
        BatchOptions::APPEND => set_append(&mut place.append, Append::Trust, is_set),
        BatchOptions::APPEND_VERIFY => set_append(&mut place.append, Append::Verify, is_set),
        _ => {}
    }
}

/// Sets or clears one of the two variants of `--append`. Clearing one leaves the other.
fn set_append(append: &mut Option<Append>, variant: Append, is_set: bool) {
    if is_set {
        *append = Some(variant);
    } else if *append == Some(variant) {
        *append = None;
    }
}

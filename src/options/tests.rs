//! The small decisions of the settled options, case by case.

use super::algorithm::{Algorithm as _, no_common};
use super::plan_use::unrecorded;
use super::*;

/// Changes one option of a run.
type Change = fn(&mut Options);

fn options_with(change: Change) -> Options {
    let mut options = Options::default();
    change(&mut options);
    options
}

#[test]
fn algorithms_have_the_names_of_rsync() {
    assert_eq!(Checksum::Xxh64.name(), "xxh64");
    assert_eq!(Checksum::None.name(), "none");
    assert_eq!(Compression::Zlibx.name(), "zlibx");
    assert_eq!(Compression::Auto.name(), "auto");
    assert_eq!(Checksum::named(b"XXHash"), Some(Checksum::Xxh64));
    assert_eq!(Compression::named(b"gzip"), None);
}

#[test]
fn failed_negotiation_is_reported_as_by_rsync() {
    assert_eq!(
        no_common("checksum", "md5 md4", "xxh128"),
        "Failed to negotiate a checksum choice.\nServer list: md5 md4\nClient list: xxh128"
    );
}

#[test]
fn explicit_compression_must_be_known_to_the_peer() {
    let agreed = |choice, list: Option<Vec<Compression>>, taken: &'static [Compression]| {
        let compress = Compress {
            choice,
            list,
            ..Compress::default()
        };
        compress.agree(&|method| taken.contains(&method))
    };
    let zstd = Some(Compression::Zstd);
    let auto = Some(Compression::Auto);
    let no = Some(Compression::No);
    assert_eq!(agreed(zstd, None, &[Compression::Zstd]), Ok(zstd));
    assert_eq!(
        agreed(zstd, None, &[Compression::Lz4]),
        Err("Your --compress-choice value (zstd) was refused by the server.".to_owned())
    );
    assert_eq!(agreed(no, None, &[]), Ok(no));
    assert_eq!(agreed(None, None, &[]), Ok(None));
    assert_eq!(
        agreed(auto, None, &[Compression::Zlib, Compression::Lz4]),
        Ok(Some(Compression::Lz4))
    );
    let preferred = vec![Compression::Zlib, Compression::Lz4];
    assert_eq!(
        agreed(
            auto,
            Some(preferred),
            &[Compression::Zlib, Compression::Lz4]
        ),
        Ok(Some(Compression::Zlib))
    );
    assert_eq!(
        agreed(auto, Some(vec![Compression::Zstd]), &[Compression::Zlib]),
        Err(no_common("compress", "zlib", "zstd"))
    );
}

#[test]
fn only_an_option_that_writes_the_batch_alone_keeps_the_destination() {
    let write = |only| Batch::Write {
        path: b"batch".to_vec(),
        only,
    };
    assert!(Batch::is_only_written(Some(&write(true))));
    assert!(!Batch::is_only_written(Some(&write(false))));
    assert!(!Batch::is_only_written(Some(&Batch::Read(
        b"batch".to_vec()
    ))));
    assert!(!Batch::is_only_written(None));
}

#[test]
fn listed_checksum_is_shown_under_checksum() {
    let mut check = Check {
        sums: Checksums {
            transfer: Checksum::Md5,
            listed: Checksum::Sha1,
        },
        ..Check::default()
    };
    assert_eq!(check.shown_sum(), Checksum::Md5);
    check.mode = CheckMode::Digest;
    assert_eq!(check.shown_sum(), Checksum::Sha1);
}

#[test]
fn options_are_named_that_require_the_protocol_of_rsync() {
    let batch = |only| {
        Some(Batch::Write {
            path: b"batch".to_vec(),
            only,
        })
    };
    let cases: [(Change, Option<&str>); 9] = [
        (|_| {}, None),
        (|o| o.batch = Some(Batch::Read(b"batch".to_vec())), None),
        (
            |o| o.select.files_from = Some(FilesFrom::Sent(b"list".to_vec())),
            Some("--files-from with a remote list"),
        ),
        (
            |o| o.select.files_from = Some(FilesFrom::Far(b"list".to_vec())),
            None,
        ),
        (
            |o| o.connect.protocol = Some(30),
            Some("--protocol below 31"),
        ),
        (|o| o.connect.protocol = Some(31), None),
        (|o| o.connect.protocol = Some(32), None),
        (
            |o| o.connect.server_log = true,
            Some("--remote-option=--log-file"),
        ),
        (
            |o| {
                o.connect.iconv = Some(Iconv {
                    here: b".".to_vec(),
                    there: b"latin1".to_vec(),
                });
            },
            Some("--iconv"),
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(options_with(change).requires_rsync(), expected);
    }
    for (only, expected) in [(false, "--write-batch"), (true, "--only-write-batch")] {
        let options = Options {
            batch: batch(only),
            ..Options::default()
        };
        assert_eq!(options.requires_rsync(), Some(expected));
    }
}

#[test]
fn alternate_trees_are_named_by_their_option() {
    let named = |kind, by_clone| {
        let tree = AltDest {
            kind,
            by_clone,
            dirs: Vec::new(),
            shown_as_given: true,
        };
        tree.option()
    };
    assert_eq!(named(AltKind::Compare, false), "--compare-dest");
    assert_eq!(named(AltKind::Copy, false), "--copy-dest");
    assert_eq!(named(AltKind::Link, false), "--link-dest");
    assert_eq!(named(AltKind::Copy, true), "--clone-dest");
}

#[test]
fn any_option_that_prints_requests_output() {
    let requesting: [fn(&mut Output); 8] = [
        |o| o.verbose = 1,
        |o| o.quiet = true,
        |o| o.itemize = 1,
        |o| o.out_format = Some(b"%n".to_vec()),
        |o| o.info.progress = 1,
        |o| o.info.stats = 1,
        |o| o.json = true,
        |o| o.compares = Some(findings::PrintedFindings::differences()),
    ];
    assert!(!Output::default().is_requested());
    for (at, request) in requesting.into_iter().enumerate() {
        let mut output = Output::default();
        request(&mut output);
        assert!(output.is_requested(), "case {at}");
    }
}

#[test]
fn unchanged_entries_are_requested_by_the_format() {
    let requests = |format: Option<&[u8]>| {
        let output = Output {
            out_format: format.map(<[u8]>::to_vec),
            ..Output::default()
        };
        output.requests_unchanged()
    };
    assert!(requests(Some(b"%I %n%L")));
    assert!(!requests(Some(b"%i %n%L")));
    assert!(!requests(None));
}

#[test]
fn suffix_matters_only_beside_the_file() {
    let suffix = |dir: Option<&[u8]>, suffix: &[u8]| {
        let backup = Backup {
            dir: dir.map(<[u8]>::to_vec),
            suffix: suffix.to_vec(),
        };
        let place = Place {
            backup: Some(backup),
            ..Place::default()
        };
        place.suffix_beside().map(<[u8]>::to_vec)
    };
    assert_eq!(suffix(None, b"~"), Some(b"~".to_vec()));
    assert_eq!(suffix(None, b""), None);
    assert_eq!(suffix(Some(b"old"), b"~"), None);
    assert_eq!(Place::default().suffix_beside(), None);
}

#[test]
fn relative_partial_directories_are_excluded() {
    let rule = |dir: &[u8]| Place::partials_rule(Some(dir));
    assert_eq!(rule(b".parts"), Some(b"-p .parts/".to_vec()));
    assert_eq!(rule(b".parts/"), Some(b"-p .parts/".to_vec()));
    assert_eq!(rule(b"/var/parts"), None);
    assert_eq!(Place::partials_rule(None), None);
}

#[test]
fn options_are_named_whose_effect_no_plan_records() {
    let cases: [(Change, Option<&str>); 6] = [
        (|_| {}, None),
        (|o| o.preserve.keep_dirlinks = true, Some("--keep-dirlinks")),
        (|o| o.place.partial = true, Some("--partial")),
        (
            |o| {
                o.place.partial = true;
                o.place.partial_dir = Some(b".parts".to_vec());
            },
            None,
        ),
        (
            |o| o.select.remove_source = RemoveSource::Sent,
            Some("--remove-source-files"),
        ),
        (|o| o.select.copy_devices = true, Some("--copy-devices")),
    ];
    for (change, expected) in cases {
        assert_eq!(unrecorded(&options_with(change)), expected);
    }
}

#[test]
fn targets_of_links_are_opened_if_they_are_copied() {
    let opens = |change: Change| options_with(change).select.opens_link_targets();
    assert!(!opens(|_| {}));
    assert!(opens(|o| o.select.copy_links = true));
    assert!(opens(|o| o.select.copy_unsafe_links = true));
}

#[test]
fn only_named_findings_are_printed() {
    let printed = findings::PrintedFindings::differences();
    assert!(printed.contain(findings::Finding::Differs));
    assert!(!printed.contain(findings::Finding::Equal));
}

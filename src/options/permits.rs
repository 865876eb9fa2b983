//! Which shortcuts the options of a run permit in its session, and whether they permit to repeat the run after a lost
//! connection.
//!
//! This file names every option, so that a new one does not compile until its effect on these has been considered.

use super::{
    AltKind, Check, CheckMode, Connect, Delete, Delta, Options, Output, Place, PlanUse, Preserve,
    Recurse, RemoveSource, Select, When,
};

/// What the options of a run permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permits {
    /// Digests of directories can replace listings. This requires that nothing is done or reported for equal entries, and
    /// that each side can compute its digest without the other.
    pub compare: bool,
    /// The sender may send the content of files in a directory that the receiver lacks before it is requested.
    pub unrequested: bool,
    /// The option (or the missing option) because of which a second attempt could end differently from one uninterrupted
    /// run; `None`: the client may repeat the run by itself after a lost connection.
    ///
    /// The second attempt starts from whatever state the first one left, and the user is not asked. So it must end exactly
    /// as one run: same trees, same exit code, no side effect twice. Files and symlinks get their final names complete and
    /// with all attributes, so the second attempt treats what the first one finished as unchanged.
    pub forbids_repeat: Option<&'static str>,
}

impl Permits {
    const ALL: Permits = Permits {
        compare: true,
        unrequested: true,
        forbids_repeat: None,
    };

    /// Returns what the options permit. `reads_dest_rules`: the receiver reads filter files in the destination.
    pub fn new(options: &Options, reads_dest_rules: bool) -> Permits {
        let Options {
            select,
            check,
            preserve,
            delete,
            place,
            delta,
            output,
            connect,
            dry_run,
            plan_use,
            explained,
            batch,
            copy_as: _,
            // A rule file outside of the directory counts as empty here, for the digest as well.
            confine_root: _,
            // See `by_check`.
            checksum_cache,
        } = options;
        let by_run = Permits {
            // The state of an action that was done already shows only in the listings of its directory.
            // So does each fact that explains a path.
            compare: *plan_use != PlanUse::Replay && explained.is_empty(),
            unrequested: !dry_run && *plan_use != PlanUse::Replay,
            forbids_repeat: first_given([
                // The user repeats it.
                (*plan_use == PlanUse::Replay, "sparsync apply"),
                // It changes nothing, but would print all lines twice.
                (*dry_run, "--dry-run"),
                (batch.is_some(), "--write-batch"),
            ]),
        };
        let by_policies = [
            by_select(select),
            by_check(check, preserve, checksum_cache.is_some()),
            by_preserve(preserve, select),
            by_delete(delete, reads_dest_rules),
            by_place(place),
            by_delta(delta),
            by_output(output),
            by_connect(connect),
        ];
        by_policies.into_iter().fold(by_run, |one, other| Permits {
            compare: one.compare && other.compare,
            unrequested: one.unrequested && other.unrequested,
            forbids_repeat: one.forbids_repeat.or(other.forbids_repeat),
        })
    }
}

/// Returns the first option of those that are given.
fn first_given<const N: usize>(options: [(bool, &'static str); N]) -> Option<&'static str> {
    let given = options.into_iter().find(|(is_given, _)| *is_given);
    given.map(|(_, name)| name)
}

fn by_select(select: &Select) -> Permits {
    let Select {
        recurse,
        remove_source,
        max_size_bytes,
        min_size_bytes,
        list_only,
        // See `apply::pipeline::needs_whole_list`.
        prune_empty_dirs: _,
        no_inc_recursive: _,
        // Both ends know which entries take part before they compute a digest. A second attempt reads the source again and
        // decides the same.
        relative: _,
        no_implied_dirs: _,
        one_file_system: _,
        ignore_unreadable: _,
        copy_links: _,
        copy_unsafe_links: _,
        copy_dirlinks: _,
        files_from: _,
        from0: _,
        missing_args: _,
        rules: _,
        cvs_exclude: _,
        copy_devices: _,
        open_noatime: _,
    } = select;
    let removes = *remove_source != RemoveSource::No;
    Permits {
        compare: *recurse == Recurse::Full && !removes,
        unrequested: max_size_bytes.is_none() && min_size_bytes.is_none(),
        forbids_repeat: first_given([
            // The list would be printed twice.
            (*list_only, "--list-only"),
            // A second attempt sees a source without the files that the first one removed: arguments are missing, and
            // directories have new times.
            (removes, "--remove-source-files"),
        ]),
    }
}

/// `keeps_digests`: `--checksum-cache`.
fn by_check(check: &Check, preserve: &Preserve, keeps_digests: bool) -> Permits {
    let Check {
        mode,
        sums: _,
        window_secs,
        update,
        existing_only,
        ignore_existing,
        // What is reported is left alone, in each attempt.
        reports_unread: _,
    } = check;

    let covers_content = match mode {
        // The digest of a directory covers those of its files if both ends keep them.
        CheckMode::Digest => keeps_digests,
        CheckMode::IgnoreTimes => false,
        CheckMode::SizeOnly | CheckMode::Quick { .. } => true,
    };
    Permits {
        // `--update` and `--ignore-existing` only concern entries that differ.
        compare: covers_content && *window_secs <= 0,
        unrequested: !existing_only,
        forbids_repeat: first_given([
            // An entry in the way is removed before the new one is created; a second attempt would then skip the new one.
            (*existing_only, "--existing"),
            // A second attempt would skip the first name of a file, and its other names depend on that one.
            (
                *ignore_existing && preserve.hard_links,
                "--ignore-existing with --hard-links",
            ),
            // Without the source's time a complete file counts as newer, with the same effect on its other names.
            (
                *update && preserve.hard_links && !preserve.times,
                "--update with --hard-links",
            ),
        ]),
    }
}

fn by_preserve(preserve: &Preserve, select: &Select) -> Permits {
    let Preserve {
        // Only one of several names of a file is requested. A directory with such a file has no digest.
        hard_links,
        perms,
        atimes,
        write_devices,
        keep_dirlinks,
        munge_links,
        // A directory with an ACL has no digest.
        acls: _,
        // The digest covers these attributes, or the sender applies the option before it computes the digest. A second
        // attempt compares them again and sets them if they differ.
        links: _,
        executability: _,
        owner: _,
        group: _,
        times: _,
        omit_dir_times: _,
        omit_link_times: _,
        devices: _,
        specials: _,
        drop_devices: _,
        xattrs: _,
        chmod: _,
        numeric_ids: _,
        usermap: _,
        groupmap: _,
        super_user: _,
        fake_super: _,
        safe_links: _,
        strips_privileges: _,
        // Only a session in rsync's protocol has any.
        required_modes: _,
        peer_links: _,
        link_owners: _,
    } = preserve;

    Permits {
        compare: !atimes && !keep_dirlinks && !munge_links,
        unrequested: !hard_links,
        forbids_repeat: first_given([
            // A directory just created does not have its final mode yet, and a second attempt keeps the mode of existing
            // ones.
            (!perms, "--no-perms"),
            // The first attempt changes access times by reading; the second one copies them.
            (
                *atimes && !select.open_noatime,
                "--atimes without --open-noatime",
            ),
            (*write_devices, "--write-devices"),
        ]),
    }
}

fn by_delete(delete: &Delete, reads_dest_rules: bool) -> Permits {
    // Which entries are extra does not depend on the others, and a directory with extra entries has another digest.
    let Delete {
        when,
        is_default_time: _,
        excluded: _,
        max,
        // The error comes before the first change, and would come again.
        refuses_empty_source: _,
        force: _,
        ignore_errors: _,
    } = delete;
    let is_early = matches!(when, Some(When::Before | When::During | When::Delay));
    Permits {
        compare: !matches!(when, Some(When::Before | When::After)),
        forbids_repeat: first_given([
            // The number of entries that the first attempt deleted is unknown.
            (max.is_some(), "--max-delete"),
            // Filter files replaced by the first attempt protect different entries. After a transfer they are read again
            // anyway.
            (
                is_early && reads_dest_rules,
                "--delete with per-directory filter files",
            ),
        ]),
        ..Permits::ALL
    }
}

fn by_place(place: &Place) -> Permits {
    let Place {
        inplace,
        append,
        backup,
        // How a file is written does not matter if none is, and unrequested files are new.
        partial: _,
        partial_dir: _,
        temp_dir: _,
        temp_dir_climbs: _,
        delay_updates: _,
        sparse: _,
        preallocate: _,
        fsync: _,
        verify: _,
        mkpath: _,
    } = place;
    Permits {
        unrequested: append.is_none(),
        forbids_repeat: first_given([
            // A partially written file has the current time and may have the length of its source.
            (append.is_some(), "--append"),
            (*inplace, "--inplace"),
            // A second attempt could treat a file that the first one finished as the old one, and overwrite the backup.
            (backup.is_some(), "--backup"),
        ]),
        ..Permits::ALL
    }
}

fn by_delta(delta: &Delta) -> Permits {
    let Delta {
        alt_dest,
        whole_file: _,
        block_size_bytes: _,
        fuzzy: _,
        compress: _,
        // A second attempt finds what the first one has renamed complete, under its new name. Files in directories that are
        // not listed because their digests are equal are not looked at.
        detect_renamed,
    } = delta;
    // A file that the destination has is replaced by a link to an identical one, or removed, except by `--copy-dest`.
    let compare = alt_dest
        .as_ref()
        .is_none_or(|alt| alt.kind == AltKind::Copy);
    Permits {
        compare,
        unrequested: alt_dest.is_none() && detect_renamed.is_none(),
        ..Permits::ALL
    }
}

fn by_output(output: &Output) -> Permits {
    let Output {
        // It reports every entry that a rule excludes.
        debug,
        // What is printed does not change the result. See `Wants` for the shortcuts.
        verbose: _,
        quiet: _,
        info: _,
        itemize: _,
        out_format: _,
        json: _,
        compares: _,
        ui: _,
        created_dir: _,
        counts_like_rsync: _,
        unsafe_links: _,
        log_file: _,
        metrics_file: _,
        failed_list: _,
        human: _,
        eight_bit: _,
        outbuf: _,
        stderr: _,
        progress: _,
    } = output;
    Permits {
        compare: debug.filter == 0,
        ..Permits::ALL
    }
}

/// How the peer is reached does not matter.
fn by_connect(connect: &Connect) -> Permits {
    let Connect {
        transport: _,
        shell_was_given: _,
        shell: _,
        program: _,
        args: _,
        family: _,
        trust_sender: _,
        address: _,
        daemon: _,
        port: _,
        protocol: _,
        max_alloc_bytes: _,
        timeout_secs: _,
        contimeout_secs: _,
        bwlimit_bytes_per_sec: _,
        iconv: _,
        server_log: _,
        stop: _,
    } = connect;
    Permits::ALL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{AltDest, Append, Backup, CacheChoice, CheckMode, DetectRenamed};
    use crate::path::RelPath;

    fn archive() -> Options {
        let preserve = Preserve {
            perms: true,
            times: true,
            owner: true,
            group: true,
            ..Preserve::default()
        };
        Options {
            preserve,
            ..Options::default()
        }
    }

    /// Returns what forbids repeating a run of `-a` with a change.
    fn with(change: impl FnOnce(&mut Options)) -> Option<&'static str> {
        let mut options = archive();
        change(&mut options);
        Permits::new(&options, false).forbids_repeat
    }

    #[test]
    fn runs_that_replace_files_atomically_may_repeat() {
        assert_eq!(with(|_| {}), None);
        assert_eq!(with(|o| o.delete.when = Some(When::During)), None);
        assert_eq!(with(|o| o.place.partial = true), None);
        assert_eq!(with(|o| o.place.delay_updates = true), None);
        assert_eq!(with(|o| o.check.ignore_existing = true), None);
        assert_eq!(with(|o| o.check.update = true), None);
        assert_eq!(with(|o| o.check.mode = CheckMode::IgnoreTimes), None);
        assert_eq!(with(|o| o.preserve.hard_links = true), None);
    }

    #[test]
    fn runs_with_lasting_side_effects_may_not_repeat() {
        assert_eq!(with(|o| o.place.inplace = true), Some("--inplace"));
        assert_eq!(
            with(|o| o.place.append = Some(Append::Verify)),
            Some("--append")
        );
        assert_eq!(
            with(|o| o.place.backup = Some(Backup {
                dir: None,
                suffix: b"~".to_vec()
            })),
            Some("--backup")
        );
        assert_eq!(
            with(|o| o.select.remove_source = RemoveSource::All),
            Some("--remove-source-files")
        );
        assert_eq!(with(|o| o.delete.max = Some(7)), Some("--max-delete"));
        assert_eq!(with(|o| o.dry_run = true), Some("--dry-run"));
        assert_eq!(with(|o| o.check.existing_only = true), Some("--existing"));
        assert_eq!(with(|o| o.preserve.perms = false), Some("--no-perms"));
    }

    /// Changes one option of a run.
    type Change = fn(&mut Options);

    /// Returns whether directories may be compared, and whether content may be sent unrequested, in a run of `-a`.
    fn shortcuts(change: Change) -> (bool, bool) {
        let mut options = archive();
        options.select.recurse = Recurse::Full;
        change(&mut options);
        let permits = Permits::new(&options, false);
        (permits.compare, permits.unrequested)
    }

    fn alternate(kind: AltKind) -> Option<AltDest> {
        Some(AltDest {
            kind,
            by_clone: false,
            dirs: vec![b"alt".to_vec()],
            shown_as_given: true,
        })
    }

    #[test]
    fn options_that_need_each_entry_forbid_digests_of_directories() {
        let cases: [(&str, Change, bool); 22] = [
            ("-a", |_| {}, true),
            ("-d", |o| o.select.recurse = Recurse::Dirs, false),
            (
                "--remove-sent-files",
                |o| o.select.remove_source = RemoveSource::Sent,
                false,
            ),
            ("-c", |o| o.check.mode = CheckMode::Digest, false),
            (
                "-c --checksum-cache",
                |o| {
                    o.check.mode = CheckMode::Digest;
                    o.checksum_cache = Some(CacheChoice::default());
                },
                true,
            ),
            ("-I", |o| o.check.mode = CheckMode::IgnoreTimes, false),
            ("--size-only", |o| o.check.mode = CheckMode::SizeOnly, true),
            ("-@0", |o| o.check.window_secs = 0, true),
            ("-@-1", |o| o.check.window_secs = -1, true),
            ("-@1", |o| o.check.window_secs = 1, false),
            ("-U", |o| o.preserve.atimes = true, false),
            ("-K", |o| o.preserve.keep_dirlinks = true, false),
            ("--munge-links", |o| o.preserve.munge_links = true, false),
            (
                "--delete-before",
                |o| o.delete.when = Some(When::Before),
                false,
            ),
            (
                "--delete-during",
                |o| o.delete.when = Some(When::During),
                true,
            ),
            (
                "--delete-delay",
                |o| o.delete.when = Some(When::Delay),
                true,
            ),
            (
                "--delete-after",
                |o| o.delete.when = Some(When::After),
                false,
            ),
            (
                "--compare-dest",
                |o| o.delta.alt_dest = alternate(AltKind::Compare),
                false,
            ),
            (
                "--copy-dest",
                |o| o.delta.alt_dest = alternate(AltKind::Copy),
                true,
            ),
            ("--debug=filter", |o| o.output.debug.filter = 1, false),
            ("apply", |o| o.plan_use = PlanUse::Replay, false),
            ("explain", |o| o.explained = vec![RelPath::root()], false),
        ];
        for (name, change, may_compare) in cases {
            assert_eq!(shortcuts(change).0, may_compare, "{name}");
        }
    }

    #[test]
    fn options_that_may_spare_a_new_file_forbid_to_send_it_unrequested() {
        let cases: [(&str, Change, bool); 11] = [
            ("-a", |_| {}, true),
            ("--max-size", |o| o.select.max_size_bytes = Some(1), false),
            ("--min-size", |o| o.select.min_size_bytes = Some(1), false),
            ("--existing", |o| o.check.existing_only = true, false),
            ("-H", |o| o.preserve.hard_links = true, false),
            ("--append", |o| o.place.append = Some(Append::Trust), false),
            (
                "--copy-dest",
                |o| o.delta.alt_dest = alternate(AltKind::Copy),
                false,
            ),
            (
                "--detect-renamed",
                |o| o.delta.detect_renamed = Some(DetectRenamed::Quick),
                false,
            ),
            ("--delete", |o| o.delete.when = Some(When::During), true),
            ("-n", |o| o.dry_run = true, false),
            ("apply", |o| o.plan_use = PlanUse::Replay, false),
        ];
        for (name, change, may_send) in cases {
            assert_eq!(shortcuts(change).1, may_send, "{name}");
        }
    }

    #[test]
    fn repeat_is_forbidden_by_options_that_only_matter_together() {
        let linked: Change = |o| o.preserve.hard_links = true;
        let cases: [(Change, Option<&str>); 6] = [
            (
                |o| o.check.ignore_existing = true,
                Some("--ignore-existing with --hard-links"),
            ),
            (|o| o.check.update = true, None),
            (
                |o| {
                    o.check.update = true;
                    o.preserve.times = false;
                },
                Some("--update with --hard-links"),
            ),
            (|o| o.preserve.times = false, None),
            (
                |o| o.preserve.atimes = true,
                Some("--atimes without --open-noatime"),
            ),
            (
                |o| {
                    o.preserve.atimes = true;
                    o.select.open_noatime = true;
                },
                None,
            ),
        ];
        for (change, expected) in cases {
            let found = with(|options| {
                linked(options);
                change(options);
            });
            assert_eq!(found, expected);
        }
        assert_eq!(with(|o| o.check.update = true), None);
        let without_links = with(|o| {
            o.check.update = true;
            o.preserve.times = false;
        });
        assert_eq!(without_links, None);
        assert_eq!(
            with(|o| o.preserve.write_devices = true),
            Some("--write-devices")
        );
        assert_eq!(with(|o| o.select.list_only = true), Some("--list-only"));
        assert_eq!(
            with(|o| o.plan_use = PlanUse::Replay),
            Some("sparsync apply")
        );
        let batch = crate::options::Batch::Read(b"batch".to_vec());
        assert_eq!(with(|o| o.batch = Some(batch)), Some("--write-batch"));
    }

    #[test]
    fn per_dir_filters_forbid_repeat_unless_deleting_after() {
        for (when, forbidden) in [
            (When::Before, true),
            (When::During, true),
            (When::Delay, true),
            (When::After, false),
        ] {
            let options = Options {
                delete: Delete {
                    when: Some(when),
                    ..Delete::default()
                },
                ..archive()
            };
            assert_eq!(
                Permits::new(&options, true).forbids_repeat.is_some(),
                forbidden,
                "{when:?}"
            );
        }
    }
}

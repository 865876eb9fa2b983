//! Whether the client may repeat a run by itself after a lost connection.
//!
//! The second attempt starts from whatever state the first one left. It may run without asking the user only if it ends
//! exactly as one uninterrupted run: same trees, same exit code, no side effect twice. Files and symlinks get their
//! final names complete and with all attributes, so the second attempt treats what the first one finished as unchanged.
//! This file lists the options that break this. It names every option, so that a new one does not compile until its
//! effect on a second attempt has been considered.

use super::{Check, Connect, Delete, Delta, Options, Output, Place, Preserve, RemoveSource, Select, When};

/// Returns the option (or the missing option) because of which a second attempt could end differently from one
/// uninterrupted run. Returns `None` if the run may be repeated. `reads_dest_rules`: the receiver reads filter files in
/// the destination.
pub fn forbids_repeat(options: &Options, reads_dest_rules: bool) -> Option<&'static str> {
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
        batch,
        copy_as: _,
        confine_root: _,
    } = options;
    // A dry run changes nothing, but would print all lines twice.
    let by_output = dry_run.then_some("--dry-run");
    let by_batch = || batch.is_some().then_some("--write-batch");
    by_output
        .or_else(by_batch)
        .or_else(|| by_select(select))
        .or_else(|| by_check(check, preserve))
        .or_else(|| by_preserve(preserve, select))
        .or_else(|| by_delete(delete, reads_dest_rules))
        .or_else(|| by_place(place))
        .or_else(|| by_rest(delta, output, connect))
}

fn by_select(select: &Select) -> Option<&'static str> {
    let Select {
        // The second attempt reads the source again and decides the same.
        recurse: _,
        relative: _,
        no_implied_dirs: _,
        one_file_system: _,
        ignore_unreadable: _,
        copy_links: _,
        copy_unsafe_links: _,
        copy_dirlinks: _,
        max_size_bytes: _,
        min_size_bytes: _,
        prune_empty_dirs: _,
        files_from: _,
        from0: _,
        missing_args: _,
        rules: _,
        cvs_exclude: _,
        copy_devices: _,
        open_noatime: _,
        no_inc_recursive: _,
        list_only,
        remove_source,
    } = select;
    // The list would be printed twice.
    let listed = list_only.then_some("--list-only");
    // The second attempt sees a source without the files that the first one removed: arguments are missing, and
    // directories have new times.
    listed.or_else(|| (*remove_source != RemoveSource::No).then_some("--remove-source-files"))
}

fn by_check(check: &Check, preserve: &Preserve) -> Option<&'static str> {
    let Check { mode: _, sums: _, window_secs: _, update, existing_only, ignore_existing } = check;
    // An entry in the way is removed before the new one is created; the second attempt would then skip the new one.
    let existing = existing_only.then_some("--existing");
    // The second attempt would skip the first name of a file, and its other names depend on that one.
    let links = || (*ignore_existing && preserve.hard_links).then_some("--ignore-existing with --hard-links");
    // Without the source's time a complete file counts as newer, with the same effect on its other names.
    let newer = || (*update && preserve.hard_links && !preserve.times).then_some("--update with --hard-links");
    existing.or_else(links).or_else(newer)
}

fn by_preserve(preserve: &Preserve, select: &Select) -> Option<&'static str> {
    let Preserve {
        // The second attempt compares these again and sets them if they differ.
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
        hard_links: _,
        acls: _,
        xattrs: _,
        chmod: _,
        numeric_ids: _,
        usermap: _,
        groupmap: _,
        super_user: _,
        fake_super: _,
        safe_links: _,
        munge_links: _,
        strips_privileges: _,
        peer_links: _,
        keep_dirlinks: _,
        link_owners: _,
        perms,
        atimes,
        write_devices,
    } = preserve;
    // A directory just created does not have its final mode yet, and the second attempt keeps the mode of existing
    // ones.
    let modes = (!perms).then_some("--no-perms");
    // The first attempt changes access times by reading; the second one copies them.
    let reads = || (*atimes && !select.open_noatime).then_some("--atimes without --open-noatime");
    modes.or_else(reads).or_else(|| write_devices.then_some("--write-devices"))
}

fn by_delete(delete: &Delete, reads_dest_rules: bool) -> Option<&'static str> {
    let Delete { when, is_default_time: _, excluded: _, max, force: _, ignore_errors: _ } = delete;
    // The number of entries that the first attempt deleted is unknown.
    let limited = max.map(|_| "--max-delete");
    // Filter files replaced by the first attempt protect different entries. After a transfer they are read again
    // anyway.
    let rules = || {
        let is_early = matches!(when, Some(When::Before | When::During | When::Delay));
        (is_early && reads_dest_rules).then_some("--delete with per-directory filter files")
    };
    limited.or_else(rules)
}

fn by_place(place: &Place) -> Option<&'static str> {
    let Place {
        inplace,
        append,
        partial: _,
        partial_dir: _,
        temp_dir: _,
        temp_dir_climbs: _,
        delay_updates: _,
        backup,
        sparse: _,
        preallocate: _,
        fsync: _,
        mkpath: _,
    } = place;
    // A partially written file has the current time and may have the length of its source.
    let appended = append.map(|_| "--append");
    let inplace = || inplace.then_some("--inplace");
    // The second attempt could treat a file that the first one finished as the old one, and overwrite the backup.
    appended.or_else(inplace).or_else(|| backup.as_ref().map(|_| "--backup"))
}

fn by_rest(delta: &Delta, output: &Output, connect: &Connect) -> Option<&'static str> {
    // How data is transferred and what is printed do not change the result.
    let Delta { whole_file: _, block_size_bytes: _, fuzzy: _, alt_dest: _, compress: _ } = delta;
    let Output {
        verbose: _,
        quiet: _,
        info: _,
        debug: _,
        itemize: _,
        out_format: _,
        json: _,
        ui: _,
        created_dir: _,
        unsafe_links: _,
        log_file: _,
        metrics_file: _,
        human: _,
        eight_bit: _,
        outbuf: _,
        stderr: _,
        progress: _,
    } = output;
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
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Append, Backup, CheckMode};

    fn archive() -> Options {
        let preserve = Preserve { perms: true, times: true, owner: true, group: true, ..Preserve::default() };
        Options { preserve, ..Options::default() }
    }

    /// Returns what forbids repeating a run of `-a` with a change.
    fn with(change: impl FnOnce(&mut Options)) -> Option<&'static str> {
        let mut options = archive();
        change(&mut options);
        forbids_repeat(&options, false)
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
        assert_eq!(with(|o| o.place.append = Some(Append::Verify)), Some("--append"));
        assert_eq!(with(|o| o.place.backup = Some(Backup { dir: None, suffix: b"~".to_vec() })), Some("--backup"));
        assert_eq!(with(|o| o.select.remove_source = RemoveSource::All), Some("--remove-source-files"));
        assert_eq!(with(|o| o.delete.max = Some(7)), Some("--max-delete"));
        assert_eq!(with(|o| o.dry_run = true), Some("--dry-run"));
        assert_eq!(with(|o| o.check.existing_only = true), Some("--existing"));
        assert_eq!(with(|o| o.preserve.perms = false), Some("--no-perms"));
    }

    #[test]
    fn per_dir_filters_forbid_repeat_unless_deleting_after() {
        for (when, forbidden) in [(When::Before, true), (When::During, true), (When::Delay, true), (When::After, false)]
        {
            let options = Options { delete: Delete { when: Some(when), ..Delete::default() }, ..archive() };
            assert_eq!(forbids_repeat(&options, true).is_some(), forbidden, "{when:?}");
        }
    }
}

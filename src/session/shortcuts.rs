//! The shortcuts of a session: comparing directory digests instead of listings, and sending content without a request.
//!
//! Both depend on the options. This file names every option, so that a new one does not compile until its effect on the
//! shortcuts has been considered.

use crate::apply::pipeline::needs_whole_list;
use crate::options::{
    Check, CheckMode, Connect, Delete, Delta, Options, Output, Place, Preserve, Recurse, RemoveSource, Select, When,
};
use crate::report::event::Wants;

/// Which shortcuts are permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortcuts {
    /// Digests can replace listings. This requires that nothing is done or reported for equal entries, and that each
    /// side can compute its digest without the other.
    pub compare: bool,
    /// The sender may send the content of files in a directory that the receiver lacks before it is requested.
    pub unrequested: bool,
}

impl Shortcuts {
    const ALL: Shortcuts = Shortcuts { compare: true, unrequested: true };

    /// Returns the shortcuts that the options and the requested reports permit.
    pub fn of(options: &Options, wants: Wants) -> Shortcuts {
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
            batch: _,
            copy_as: _,
            // A rule file outside of the directory counts as empty here, for the digest as well.
            confine_root: _,
        } = options;
        let whole_list = needs_whole_list(options, wants);
        let by_run = Shortcuts {
            compare: !(whole_list || wants.unchanged || wants.progress),
            unrequested: !(whole_list || *dry_run),
        };
        let by_policies = [
            by_select(select),
            by_check(check),
            by_preserve(preserve),
            by_delete(delete),
            by_place(place),
            by_delta(delta),
            by_output(output),
            by_connect(connect),
        ];
        by_policies.into_iter().fold(by_run, |one, other| Shortcuts {
            compare: one.compare && other.compare,
            unrequested: one.unrequested && other.unrequested,
        })
    }
}

fn by_select(select: &Select) -> Shortcuts {
    let Select {
        recurse,
        remove_source,
        max_size_bytes,
        min_size_bytes,
        // See `needs_whole_list`.
        prune_empty_dirs: _,
        no_inc_recursive: _,
        // Both ends know which entries take part before they compute a digest.
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
        // A listing has no receiver.
        list_only: _,
    } = select;
    Shortcuts {
        compare: *recurse == Recurse::Full && *remove_source == RemoveSource::No,
        unrequested: max_size_bytes.is_none() && min_size_bytes.is_none(),
    }
}

fn by_check(check: &Check) -> Shortcuts {
    // `--update` and `--ignore-existing` only concern entries that differ.
    let Check { mode, window_secs, existing_only, sums: _, update: _, ignore_existing: _ } = check;
    Shortcuts {
        compare: !matches!(mode, CheckMode::Digest | CheckMode::IgnoreTimes) && *window_secs <= 0,
        unrequested: !existing_only,
    }
}

fn by_preserve(preserve: &Preserve) -> Shortcuts {
    let Preserve {
        // Only one of several names of a file is requested. A directory with such a file has no digest.
        hard_links,
        atimes,
        usermap,
        groupmap,
        keep_dirlinks,
        munge_links,
        // A directory with an ACL has no digest.
        acls: _,
        // The digest covers these attributes, or the sender applies the option before it computes the digest.
        links: _,
        perms: _,
        executability: _,
        owner: _,
        group: _,
        times: _,
        omit_dir_times: _,
        omit_link_times: _,
        devices: _,
        specials: _,
        drop_devices: _,
        write_devices: _,
        xattrs: _,
        chmod: _,
        numeric_ids: _,
        super_user: _,
        fake_super: _,
        safe_links: _,
        strips_privileges: _,
        peer_links: _,
        link_owners: _,
    } = preserve;
    Shortcuts {
        compare: !atimes && usermap.is_empty() && groupmap.is_empty() && !keep_dirlinks && !munge_links,
        unrequested: !hard_links,
    }
}

fn by_delete(delete: &Delete) -> Shortcuts {
    // Which entries are extra does not depend on these, and a directory with extra entries has another digest.
    let Delete { when, is_default_time: _, excluded: _, max: _, force: _, ignore_errors: _ } = delete;
    Shortcuts { compare: !matches!(when, Some(When::Before | When::After)), ..Shortcuts::ALL }
}

fn by_place(place: &Place) -> Shortcuts {
    let Place {
        append,
        // How a file is written does not matter if none is, and unrequested files are new.
        inplace: _,
        partial: _,
        partial_dir: _,
        temp_dir: _,
        temp_dir_climbs: _,
        delay_updates: _,
        backup: _,
        sparse: _,
        preallocate: _,
        fsync: _,
        mkpath: _,
    } = place;
    Shortcuts { unrequested: append.is_none(), ..Shortcuts::ALL }
}

fn by_delta(delta: &Delta) -> Shortcuts {
    let Delta { alt_dest, whole_file: _, block_size_bytes: _, fuzzy: _, compress: _ } = delta;
    Shortcuts { compare: alt_dest.is_none(), unrequested: alt_dest.is_none() }
}

fn by_output(output: &Output) -> Shortcuts {
    let Output {
        // It reports every entry that a rule excludes.
        debug,
        // See `Wants`.
        verbose: _,
        quiet: _,
        info: _,
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
    Shortcuts { compare: debug.filter == 0, ..Shortcuts::ALL }
}

/// How the peer is reached does not matter.
fn by_connect(connect: &Connect) -> Shortcuts {
    let Connect {
        transport: _,
        shell_was_given: _,
        shell: _,
        program: _,
        args: _,
        family: _,
        trust_sender: _,
        address: _,
        port: _,
        protocol: _,
        daemon: _,
        max_alloc_bytes: _,
        timeout_secs: _,
        contimeout_secs: _,
        bwlimit_bytes_per_sec: _,
        iconv: _,
        server_log: _,
        stop: _,
    } = connect;
    Shortcuts::ALL
}

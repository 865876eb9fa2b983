//! Options that require the installed rsync in a run with a stock rsync.
//!
//! This file names every option, so that a new one does not compile until it has been considered.

use crate::options::select::MissingArgs;
use crate::options::{Batch, Check, Connect, Delete, Delta, FilesFrom, Options, Output, Place, Preserve, Select};

/// Returns whether a list must not be sent piecewise, although the protocol permits it. `receives`: this end receives.
pub fn needs_whole_list(options: &Options, receives: bool) -> bool {
    let Select { missing_args, relative, .. } = &options.select;
    // The names of a file are looked for ahead, and a stock rsync would list no more before earlier files have arrived.
    // An rsync that reads a batch waits for the end of the list, and does not read on for it.
    let looks_ahead = options.preserve.hard_links && (receives || matches!(options.batch, Some(Batch::Write { .. })));
    // The order of converted names can differ from that in which the sender lists directories.
    let converts = receives && options.connect.iconv.is_some();
    // What is deleted must be known at the beginning, also below the first list.
    looks_ahead || converts || *missing_args == MissingArgs::Delete && *relative
}

/// Returns the first option that requires the installed rsync in a run with a stock rsync; `None` if there is none.
pub fn unsupported(options: &Options, server_sends: bool) -> Option<&'static str> {
    // The others are handled locally, or are on the command line of the remote rsync, or both.
    let Options {
        preserve,
        select,
        check,
        place,
        delta,
        connect,
        delete,
        output,
        dry_run: _,
        batch: _,
        copy_as: _,
        confine_root: _,
    } = options;
    let Preserve {
        write_devices: _,
        acls: _,
        xattrs: _,
        fake_super: _,
        links: _,
        perms: _,
        executability: _,
        owner: _,
        group: _,
        times: _,
        atimes: _,
        omit_dir_times: _,
        omit_link_times: _,
        devices: _,
        specials: _,
        drop_devices: _,
        hard_links: _,
        chmod: _,
        numeric_ids: _,
        usermap: _,
        groupmap: _,
        super_user: _,
        safe_links: _,
        munge_links: _,
        strips_privileges: _,
        peer_links: _,
        keep_dirlinks: _,
        link_owners: _,
    } = preserve;
    let Select {
        files_from,
        missing_args: _,
        copy_devices: _,
        recurse: _,
        relative: _,
        no_implied_dirs: _,
        one_file_system: _,
        copy_links: _,
        copy_unsafe_links: _,
        copy_dirlinks: _,
        max_size_bytes: _,
        min_size_bytes: _,
        prune_empty_dirs: _,
        from0: _,
        rules: _,
        cvs_exclude: _,
        list_only: _,
        remove_source: _,
        open_noatime: _,
        no_inc_recursive: _,
    } = select;
    let Check { mode: _, sums: _, window_secs: _, update: _, existing_only: _, ignore_existing: _ } = check;
    let Place {
        append: _,
        inplace: _,
        partial: _,
        partial_dir: _,
        temp_dir: _,
        delay_updates: _,
        backup: _,
        sparse: _,
        preallocate: _,
        fsync: _,
        mkpath: _,
    } = place;
    let Delta { compress: _, whole_file: _, block_size_bytes: _, fuzzy: _, alt_dest: _ } = delta;
    let Connect {
        args: _,
        transport: _,
        shell_was_given: _,
        shell: _,
        program: _,
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
    let Delete { when: _, is_default_time: _, excluded: _, max: _, force: _, ignore_errors: _ } = delete;
    let Output {
        verbose: _,
        quiet: _,
        info: _,
        debug: _,
        itemize: _,
        out_format: _,
        created_dir: _,
        unsafe_links: _,
        log_file: _,
        metrics_file: _,
        human: _,
        eight_bit: _,
        outbuf: _,
        stderr: _,
        json: _,
        ui: _,
        progress: _,
    } = output;
    let lists_there = !server_sends && matches!(files_from, Some(FilesFrom::Far(_)));
    lists_there.then_some("--files-from on the remote host")
}

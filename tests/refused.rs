//! System calls that a kernel, a file system, a container or a security profile refuses: the result is as without that.
//!
//! Debug builds have the kernel refuse calls if `SPARSYNC_REFUSE=CALL:ERROR` is set (see `src/fs/hooks.rs`), so the
//! calls of libraries are refused as well. rsync, the oracle, is not affected.

use crate::kit::{World, noise, synctest};
use rustix::process::Signal;
use std::path::Path;

/// The answers to a call that is not available.
const ERRORS: [&str; 5] = ["EPERM", "ENOSYS", "EOPNOTSUPP", "EINVAL", "EXDEV"];

/// Content of which a part is equal to that of the destination, and zeros.
fn build(w: &World) {
    let mut content = noise(1, 300_000);
    content.extend(vec![0; 200_000]);
    content.extend(noise(2, 50_000));
    w.source("new=new set-id=x@3#4755 d/new=in d/y/z=deep equal l->new");
    w.dest("equal d/old extra");
    w.build("src", |tree| {
        tree.file("large", &content).mtime(5).xattr("user.a", "b");
        tree.file("changed", &content).mtime(5);
    });
    content[70_000..70_010].fill(1);
    content[320_000..480_000].fill(2);
    w.build("dst", |tree| drop(tree.file("changed", &content).mtime(-5)));
    w.keep_dest().no_dry_run();
}

/// Copies under each of `options` while `call` is refused with each of these errors.
fn copies(w: &World, call: &str, errors: &[&str], options: &[&[&str]]) {
    build(w);
    for error in errors {
        w.env("SPARSYNC_REFUSE", &format!("{call}:{error}"));
        for options in options {
            w.restore_dest();
            w.agree(options).exits(0);
        }
    }
}

const WHOLE: &[&str] = &["-ai", "--delete"];
const DELTA: &[&str] = &["-ai", "--no-whole-file"];
const IN_PLACE: &[&str] = &["-aiS", "--inplace", "--no-whole-file"];

macro_rules! refused {
    ($name:ident, $call:expr, $errors:expr, $options:expr) => {
        synctest!($name, |w: World| copies(&w, $call, $errors, $options));
    };
}

refused!(links, "linkat", &ERRORS, &[WHOLE, DELTA]);
refused!(unnamed_files, "tmpfile", &ERRORS[..4], &[WHOLE]);
refused!(confined_opening, "openat2", &ERRORS[..4], &[WHOLE]);
refused!(kernel_copies, "copy_file_range", &ERRORS, &[WHOLE]);
refused!(block_sharing, "ficlone", &ERRORS, &[WHOLE]);
refused!(holes, "fallocate", &ERRORS[..4], &[IN_PLACE]);
refused!(hole_punching, "punch", &ERRORS[..4], &[IN_PLACE]);
refused!(data_search, "seek_data", &["EINVAL"], &[IN_PLACE]);
refused!(statx, "statx", &["ENOSYS", "EPERM"], &[WHOLE]);
refused!(chmod_of_names, "fchmodat2", &["ENOSYS"], &[WHOLE]);
refused!(hints, "fadvise", &["ENOSYS"], &[WHOLE]);
refused!(cached_reads, "preadv2", &["ENOSYS", "EOPNOTSUPP"], &[WHOLE]);

synctest!(locks, |w: World| {
    w.not_with_server("a server locks a file against a second one");
    copies(&w, "flock", &["ENOSYS", "EOPNOTSUPP"], &[WHOLE]);
});

// Attributes of a file that had no name are those of its copy, which has one.
synctest!(links_of_files_with_attributes, as root, |w: World| {
    w.needs_xattrs().needs_acls();
    w.source("a b=set-id#6755");
    w.build("src", |tree| {
        tree.file("c", noise(3, 200_000)).owner(7, 8).xattr("user.k", "v").mtime_ns(9, 123_456_789);
        tree.file("e", vec![0; 400_000]).owner(9, 10).mode(0o640);
    });
    w.env("SPARSYNC_REFUSE", "linkat:EPERM");
    w.agree(&["-aXAi"]).exits(0);
});

// Hard links are the one thing that needs the call.
synctest!(hard_links_that_are_refused_are_reported, |w: World| {
    w.not_served_pull("the rsync that receives is not refused the call");
    w.source("a=1");
    w.build("src", |tree| drop(tree.hardlink("z", "a")));
    w.env("SPARSYNC_REFUSE", "linkat:EPERM");
    w.alone(&["-aH"]).exits(23).warns("link \"");
    let places = ["dst/a", "dst/z"].map(|file| w.tested().join(file));
    let names: Vec<_> = places.iter().filter(|file| file.exists()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
});

synctest!(
    symlinks_to_directories_without_confined_opening,
    |w: World| {
        w.source("l/f k/g out/f")
            .dest("real/ d/ l->real k->d/../real out->../elsewhere");
        std::fs::create_dir(w.tested().join("elsewhere")).expect("scratch can be written");
        w.env("SPARSYNC_REFUSE", "openat2:ENOSYS");
        w.only_local("rsync's messages come from other processes with a peer");
        w.alone(&["-aiK", "--exclude=/out"])
            .exits(0)
            .prints("l/f\n")
            .prints("k/g\n");
        w.alone(&["-aiK"]).exits(23);
        assert!(!w.tested().join("elsewhere/f").exists());
    }
);

// A partial file gets its name without replacing another. The copy has a temporary name from the start, so that its
// growth can be seen: a file without a name would appear at the end only.
synctest!(renames_without_replacing, |w: World| {
    w.source("big*12000000");
    w.env("SPARSYNC_REFUSE", "renameat2:EINVAL,tmpfile:EOPNOTSUPP");
    let begun = |twin: &Path| {
        let files = std::fs::read_dir(twin.join("dst"))
            .into_iter()
            .flatten()
            .flatten();
        let mut lens = files.map(|file| file.metadata().map_or(0, |meta| meta.len()));
        lens.any(|len| len > 0)
    };
    let options = ["-a", "--partial", "--bwlimit=600"];
    for left in w.interrupt(&options, Signal::INT, begun) {
        assert!(left.iter().any(|path| path == "dst/big"), "{left:?}");
    }
});

//! Makes a new file another name of its twin in a tree of `--link-dest` (`--detect-renamed`).

use crate::apply::job::Job;
use crate::apply::partial;
use crate::apply::twins::Twin;
use crate::flist::Entry;
use crate::fs::leftover::remove_stale_unseen;
use crate::fs::read::EntryAt;
use crate::fs::root::Dir;
use crate::fs::temp_name::temp_name;
use crate::fs::xattr::At;
use crate::fs::{acl, sys};
use crate::plan::alternate::{Candidate, Similarity};
use crate::plan::{self, Subject};

/// Returns whether [`make`] would make the link, as far as that can be known.
pub(super) fn would_be_made(job: &Job<'_>, twin: &Twin) -> bool {
    twin.open_dir(job.context)
        .is_some_and(|from| is_equal(job, twin, &from))
}

/// Links a new file to its twin. Returns `false` if that is not possible, or if their attributes differ: then the file is
/// copied, and what prevents that is reported.
pub(super) fn make(job: &Job<'_>, twin: &Twin) -> bool {
    let Some(dir) = &job.dest_dir.dir else {
        return false;
    };
    let Some(from) = twin.open_dir(job.context) else {
        return false;
    };
    if !is_equal(job, twin, &from) {
        return false;
    }

    job.dest_dir.last.touch();
    // What has got the name meanwhile is handled as for any other file.
    if sys::link(from.fd(), twin.path.name(), dir.fd(), job.name()).is_err() {
        return false;
    }
    if job.context.resumes(twin.len_bytes) {
        remove_stale_unseen(dir, &temp_name(job.name()));
    }
    partial::forget(job, dir);
    true
}

/// Returns whether a twin is still the file that was found, and has all attributes that a copy of the source would have.
fn is_equal(job: &Job<'_>, twin: &Twin, from: &Dir) -> bool {
    let context = job.context;
    let preserve = &context.policy.preserve;
    if !preserve.times || preserve.fake_super {
        return false;
    }
    let name = twin.path.name();
    let Ok(stat) = sys::stat(from.fd(), name, false) else {
        return false;
    };
    // A dry run may lack the directory of the new file.
    let gets_ids = match &job.dest_dir.dir {
        Some(dir) => job.gets_ids_of_new_file(dir, &stat).unwrap_or(false),
        None => true,
    };
    let has_mode = stat.mode & 0o7777 == job.wanted_mode() & 0o7777;
    if !twin.is(&stat) || !gets_ids || !has_mode || has_others_attributes(job, from, name) {
        return false;
    }

    let mut entry = Entry::from_stat(&stat);
    let at = EntryAt {
        dir: from,
        name,
        stat: &stat,
        full: &|| twin.shown(context),
        path: &|| twin.path.as_bytes().to_vec(),
    };
    // What cannot be read may differ.
    if context.wanted.complete_dest(&mut entry, &at).is_err() {
        return false;
    }
    let decision = plan::decide(
        job.source(),
        Some(&entry),
        Some(true),
        Subject::Included,
        context.policy,
    );
    Candidate::for_action(decision.action)
        .is_some_and(|candidate| candidate.similarity == Similarity::All)
}

/// Returns whether a twin may have extended attributes or an ACL that are not compared, or whether a copy would inherit an
/// ACL.
fn has_others_attributes(job: &Job<'_>, from: &Dir, name: &[u8]) -> bool {
    let preserve = &job.context.policy.preserve;
    if !preserve.acls && job.dest_dir.default_acl().is_some() {
        return true;
    }
    let at = At::Name {
        dir: from.fd(),
        name,
    };
    let names = match at.names() {
        Ok(names) => names.unwrap_or_default(),
        Err(_) => return true,
    };
    names.split(|&byte| byte == 0).any(|name| {
        let is_compared = if name == acl::ACCESS {
            preserve.acls
        } else {
            preserve.xattrs > 0
        };
        !name.is_empty() && !is_compared
    })
}

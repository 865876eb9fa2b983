//! Reads the merge files of a directory, on behalf of the role that enters it.

use crate::error::Error;
use crate::filter::Chain;
use crate::fs::root::Dir;
use crate::fs::{errno, read, trusted_path};
use crate::options::LinkOwners;
use crate::path::RelPath;
use crate::report::event::{Problem, Weight};

/// Returns the rules in force in a directory, given those of its parent, and a problem for each merge file that is
/// skipped because a symlink of an untrusted user leads to it, and for each rule that is too long.
pub fn enter_dir(
    chain: &Chain,
    dir: &Dir,
    path: &RelPath,
    role: &'static str,
    owners: LinkOwners,
) -> Result<(Chain, Vec<Problem>), Error> {
    let mut problems = Vec::new();
    let mut text_of = |name: &[u8]| {
        match read::rules_file(dir, name, owners) {
            Err(error) if trusted_path::is_refused(&error) => {
                problems.push(Problem::new(trusted_path::REFUSAL, Weight::Warning));
                Ok(None)
            }
            // As in rsync, a file that cannot be read counts as empty.
            Err(error) if errno::is_unreachable(&error) || errno::is_no_text(&error) => Ok(None),
            text => text,
        }
    };
    match chain.enter(path.as_bytes(), &mut text_of) {
        Ok((chain, too_long)) => {
            for warning in too_long {
                problems.push(Problem::new(warning, Weight::Warning));
            }
            Ok((chain, problems))
        }
        Err(error) => Err(Error::new(error.exit(), error.message(role)).by(role)),
    }
}

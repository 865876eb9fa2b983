//! What the options mean in older protocols.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::options::delta::AltDest;
use crate::options::{Append, Options, When};
use std::borrow::Cow;

/// Fails if the protocol lacks what the options require.
pub fn check(options: &Options, protocol: u8) -> Result<()> {
    let Options {
        preserve,
        select,
        place,
        delta,
        ..
    } = options;
    let alternates = delta.alt_dest.as_ref();
    let alternate = alternates.map_or("", AltDest::option);
    let several = alternates.is_some_and(|alt| alt.dirs.len() > 1);
    let required = [
        (30, preserve.acls, "--acls".to_owned()),
        (30, preserve.xattrs > 0, "--xattrs".to_owned()),
        (29, delta.fuzzy > 0, "--fuzzy".to_owned()),
        (
            29,
            place.inplace && alternates.is_some(),
            format!("{alternate} with --inplace"),
        ),
        (
            29,
            several,
            format!("Using more than one {alternate} option"),
        ),
        (29, select.prune_empty_dirs, "--prune-empty-dirs".to_owned()),
    ];
    match required
        .into_iter()
        .find(|(since, is_wanted, _)| *is_wanted && protocol < *since)
    {
        Some((since, _, what)) => {
            let words =
                format!("{what} requires protocol {since} or higher (negotiated {protocol}).");
            Err(Error::new(Exit::Protocol, words))
        }
        None => Ok(()),
    }
}

/// Returns the options as the protocol carries them out.
pub fn adjusted(options: &Options, protocol: u8) -> Cow<'_, Options> {
    if protocol >= 30 {
        return Cow::Borrowed(options);
    }
    let mut options = options.clone();
    options.select.no_inc_recursive = true;
    if options.delete.is_default_time && options.delete.when.is_some() {
        options.delete.when = Some(When::Before);
    }
    if options.place.append.is_some() {
        options.place.append = Some(Append::Verify);
    }
    Cow::Owned(options)
}

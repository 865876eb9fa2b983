//! A stock rsync as the receiver: the listings of the sender become its file lists, and its items become requests.
//!
//! The list is sent whole, or piecewise: then each listing is one list, and each directory gets one, in the order of the
//! walk. The receiver returns an item for each entry that it changes; the sender returns them all, with the content of
//! those that request it.

mod encoder;
mod inbox;
mod intake;
mod lists;
mod progress;
mod reports;
mod rsync_dest;
mod shared;

pub(super) use self::encoder::{DestEncoder, DestRecorder, ServingSender};
pub use self::inbox::DestInbox;
pub(super) use self::intake::DestIntake;
pub(super) use self::reports::SenderReports;
pub use self::rsync_dest::RsyncDest;
use self::shared::DestConnectionState;
use crate::error::Result;
use crate::options::Options;
use crate::report::event::Wants;
use crate::report::format::Format;
use crate::rsync::session_terms::RsyncTerms;
use std::sync::Arc;

/// Returns the two directions of a session with an rsync that has the destination. `opening` is sent first.
pub(super) fn directions<'a>(
    terms: RsyncTerms,
    opening: Vec<u8>,
    options: &'a Options,
    wants: Wants,
    reports: Arc<SenderReports>,
    inbox: &'a DestInbox,
) -> Result<(DestEncoder, DestIntake<'a>)> {
    let state = Arc::<DestConnectionState>::default();
    let encoder = DestEncoder::new(
        terms,
        opening,
        options,
        wants,
        reports.clone(),
        state.clone(),
    )?;
    let format = options.output.out_format.as_deref().map(Format::parse);
    let format_itemizes = format.is_some_and(|format| format.has_itemize());
    Ok((
        encoder,
        DestIntake {
            terms,
            is_server: false,
            options,
            wants,
            format_itemizes,
            state,
            reports,
            inbox,
        },
    ))
}

//! The shortcuts of a session: comparing directory digests instead of listings, and sending content without a request.

use crate::apply::pipeline::needs_whole_list;
use crate::options::Options;
use crate::options::permits::Permits;
use crate::report::event::Wants;

/// Which shortcuts are permitted; see [`Permits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortcuts {
    /// Digests can replace listings.
    pub compare: bool,
    /// Content may be sent before it is requested.
    pub unrequested: bool,
}

impl Shortcuts {
    /// Returns the shortcuts that the options and the requested reports permit.
    pub fn for_run(options: &Options, wants: Wants) -> Shortcuts {
        let Permits {
            compare,
            unrequested,
            ..
        } = Permits::new(options, false);
        let whole_list = needs_whole_list(options, wants);
        Shortcuts {
            compare: compare && !(whole_list || wants.unchanged || wants.progress),
            unrequested: unrequested && !whole_list,
        }
    }
}

//! What a sparsync is to the roles of a session: the facts about it, and how both ends digest contents.

use crate::apply::facts::{ItemOrder, SourceFacts};
use crate::digest::{By, Comparison};
use crate::native::block_sums::Signatures;
use crate::proto::limits::DATA_MAX_BYTES;
use crate::session::checksums::SessionChecksums;
use crate::session::sender::DestFacts;
use std::sync::Arc;

/// Returns the checksums of two sparsyncs. `key`: that of the client. `keeps_plain`: both ends keep plain digests of their
/// files (`--checksum-cache`). `has_plan`: the digests are recorded in a plan, or come from one.
pub fn native_checksums(key: &[u8; 16], keeps_plain: bool, has_plan: bool) -> SessionChecksums {
    let compared_by = if has_plan {
        Comparison::for_plans()
    } else if keeps_plain {
        Comparison::keyed_plain(key)
    } else {
        Comparison::keyed(key)
    };
    SessionChecksums {
        plain_by: By::Xxh3,
        blocks_by: By::Blake3,
        compared_by,
        block_sums: Arc::new(Signatures),
    }
}

/// Returns the facts about a sparsync that has the source.
pub fn source_facts(checksums: &SessionChecksums) -> SourceFacts {
    SourceFacts {
        order: ItemOrder::Requests,
        answers_unreadable: true,
        values_with_items: false,
        rereads_basis: false,
        digests_prefix: false,
        presumes_backup: false,
        lists_in_turn: false,
        digests: true,
        names_zero: true,
        block_sums: checksums.block_sums.clone(),
        compared_by: checksums.compared_by.clone(),
    }
}

/// Returns the facts about a sparsync that has the destination. `takes_unrequested`: the options permit to send it content that it
/// has not requested. `takes_totals`: it is the client and has a display.
pub fn dest_facts(takes_unrequested: bool, takes_totals: bool) -> DestFacts {
    DestFacts {
        takes_unrequested,
        takes_problems: true,
        takes_totals,
        lists_bare_top: false,
        path_max_bytes: None,
        digests_prefix: false,
        counts_parts: false,
        piece_max_bytes: DATA_MAX_BYTES,
        is_one_of_many: false,
    }
}

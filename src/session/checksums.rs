//! The checksums of a session: how both ends digest and compare contents.

use crate::apply::facts::{BlockSums, ItemOrder, SourceFacts};
use crate::digest::{By, Comparison};

/// What both ends use to digest and compare contents.
pub struct SessionChecksums {
    /// The key of directory digests.
    pub key: [u8; 16],
    /// How to digest contents that are sent without the blocks of a basis.
    pub plain_by: By,
    /// How to digest contents that are sent with blocks of a basis.
    pub blocks_by: By,
    /// How to compare contents that both ends have.
    pub compared_by: Comparison,
    /// The sums of the blocks of a basis.
    pub block_sums: BlockSums,
}

impl SessionChecksums {
    /// Returns those of two sparsyncs. `key`: that of the client.
    /// `keeps_plain`: both ends keep plain digests of their files (`--checksum-cache`).
    pub fn native(key: [u8; 16], keeps_plain: bool) -> SessionChecksums {
        let compared_by = if keeps_plain {
            Comparison::keyed_plain(&key)
        } else {
            Comparison::keyed(&key)
        };
        SessionChecksums {
            key,
            plain_by: By::Xxh3,
            blocks_by: By::Blake3,
            compared_by,
            block_sums: BlockSums::Native,
        }
    }

    /// Returns the facts about a sparsync that has the source.
    pub fn source_facts(&self) -> SourceFacts {
        SourceFacts {
            order: ItemOrder::Requests,
            answers_unreadable: true,
            values_with_items: false,
            rereads_basis: false,
            digests_prefix: false,
            presumes_backup: false,
            lists_in_turn: false,
            digests: true,
            sums: self.block_sums,
            compared_by: self.compared_by.clone(),
        }
    }
}

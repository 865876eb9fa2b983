//! The checksums of a session: how both ends digest and compare contents.

use crate::apply::facts::BlockSums;
use crate::digest::{By, Comparison};

/// What both ends use to digest and compare contents.
pub struct SessionChecksums {
    /// How to digest contents that are sent without the blocks of a basis.
    pub plain_by: By,
    /// How to digest contents that are sent with blocks of a basis.
    pub blocks_by: By,
    /// How to compare contents that both ends have.
    pub compared_by: Comparison,
    /// The sums of the blocks of a basis.
    pub block_sums: BlockSums,
}

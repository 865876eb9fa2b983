//! The checksums of a session: how both ends digest and compare contents.

use crate::apply::block_sums::BlockSums;
use crate::digest::{By, Comparison};
use std::sync::Arc;

/// What both ends use to digest and compare contents.
pub struct SessionChecksums {
    /// How to digest contents that are sent without the blocks of a basis.
    pub plain_by: By,
    /// How to digest contents that are sent with blocks of a basis.
    pub blocks_by: By,
    /// How to compare contents that both ends have.
    pub compared_by: Comparison,
    /// The sums of the blocks of a basis.
    pub block_sums: Arc<dyn BlockSums>,
}

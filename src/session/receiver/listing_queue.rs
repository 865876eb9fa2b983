//! The listings that a receiver has got and not taken yet, with their counts.

use crate::proto::limits::INITIAL_WINDOWS;
use crate::proto::{Class, DirListing};
use std::collections::VecDeque;

/// Listings that were received and not taken, in order, each with its cost. The thread that reads appends to it, and the
/// generator takes from it.
#[derive(Default)]
pub struct ListingQueue {
    listings: VecDeque<(Box<DirListing>, u64)>,
    /// Their total cost.
    pub cost: u64,
    /// Their entries.
    pub entries: u64,
    /// The entries of all listings that have come, and the total length of their files and symlinks.
    pub listed: (u64, u64),
}

impl ListingQueue {
    /// Appends a listing.
    pub fn push(&mut self, listing: Box<DirListing>, cost: u64) {
        let (entries, bytes) = listing.list.totals();
        self.cost += cost;
        self.entries += entries;
        self.listed = (self.listed.0 + entries, self.listed.1.wrapping_add(bytes));
        self.listings.push_back((listing, cost));
    }

    /// Iterates over the listings, in order.
    pub fn iter(&self) -> impl Iterator<Item = &DirListing> {
        self.listings.iter().map(|(listing, _)| &**listing)
    }

    /// Takes the first listing.
    pub fn pop(&mut self) -> Option<(Box<DirListing>, u64)> {
        let (listing, cost) = self.listings.pop_front()?;
        self.cost -= cost;
        self.entries -= listing.list.len() as u64;
        Some((listing, cost))
    }

    /// Returns the first listing.
    pub fn first(&self) -> Option<&DirListing> {
        self.listings.front().map(|(listing, _)| &**listing)
    }

    /// Returns whether there are this many entries, or so much data that the sender may have to wait.
    pub fn are_ahead(&self, entries: u64) -> bool {
        self.cost >= INITIAL_WINDOWS[Class::Dirs as usize] / 2 || self.entries >= entries
    }
}

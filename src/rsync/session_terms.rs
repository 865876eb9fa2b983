//! What the two ends of a session in rsync's protocol have agreed on, and what follows from it.

use super::block_sums::RsyncBlockSums;
use crate::apply::facts::{ItemOrder, ItemPrinter, SourceFacts};
use crate::digest::Comparison;
use crate::fs::charset;
use crate::options::select::MissingArgs;
use crate::options::{CheckMode, Checksum, Compression, Options};
use crate::proto::rsync::batch::{BatchHeader, BatchOptions};
use crate::proto::rsync::block_sums::{Sums, digest_len_bytes};
use crate::proto::rsync::file_list::ListOptions;
use crate::proto::rsync::handshake::{self, CompatFlags};
use crate::session::checksums::SessionChecksums;
use std::sync::Arc;

/// What both ends have agreed on.
#[derive(Debug, Clone, Copy)]
pub struct RsyncTerms {
    /// The protocol version, one of [`handshake::VERSIONS`].
    pub protocol: u8,
    /// The compatibility flags, decided by the server.
    pub flags: CompatFlags,
    /// The checksums of blocks and of transferred files.
    pub sums: Sums,
    /// The checksum in the file list (`-c`).
    pub listed: Checksum,
    /// The compression of file content.
    pub compression: Compression,
    /// The client sends frames, not bare data.
    pub client_has_frames: bool,
    /// The command line has `--numeric-ids`, so lists have no names. The parameter of a module does not change them.
    pub numeric_ids: bool,
}

impl RsyncTerms {
    /// Returns the terms of a batch file, whose algorithms are fixed.
    pub fn of_batch(header: &BatchHeader, numeric_ids: bool) -> RsyncTerms {
        let BatchHeader {
            options,
            protocol,
            compat: flags,
            seed,
        } = *header;
        let checksum = handshake::default_checksum(protocol);
        let is_seed_first = flags.has(CompatFlags::CHKSUM_SEED_FIX);
        let compression = if options.has(BatchOptions::COMPRESS) {
            Compression::Zlib
        } else {
            Compression::No
        };
        RsyncTerms {
            protocol,
            flags,
            sums: Sums {
                checksum,
                seed,
                is_seed_first,
                is_implied: protocol < 30,
            },
            listed: checksum,
            compression,
            client_has_frames: true,
            numeric_ids,
        }
    }

    /// Settles whether the values of symlinks are converted (`--iconv`).
    pub fn agree_on_charset(&self) {
        if let Some(charset) = charset::of_names() {
            charset.convert_targets(self.flags.has(CompatFlags::SYMLINK_ICONV));
        }
    }

    /// Returns whether items of hard links never have a part about extended attributes.
    pub fn has_xattr_shortcut(&self) -> bool {
        self.protocol >= 31 && !self.flags.has(CompatFlags::AVOID_XATTR_OPTIM)
    }

    /// Returns what the file lists of a run contain.
    pub fn list_options(&self, options: &Options) -> ListOptions {
        let Options {
            preserve,
            select,
            check,
            ..
        } = options;
        ListOptions {
            protocol: self.protocol,
            compat: self.flags,
            owners: preserve.owner,
            groups: preserve.group,
            links: preserve.links,
            devices: preserve.devices,
            specials: preserve.specials,
            hard_links: preserve.hard_links,
            atimes: preserve.atimes,
            numeric_ids: self.numeric_ids,
            relative: select.relative,
            acls: preserve.acls,
            xattrs: preserve.xattrs > 0,
            missing_args: select.missing_args == MissingArgs::Delete,
            digest_len_bytes: if check.mode == CheckMode::Digest {
                digest_len_bytes(self.listed)
            } else {
                0
            },
            // rsync has no option for these on this platform.
            ..ListOptions::default()
        }
    }

    /// Returns the sums of blocks.
    pub fn block_sums(&self) -> RsyncBlockSums {
        RsyncBlockSums {
            sums: self.sums,
            protocol: self.protocol,
        }
    }

    /// Returns how both ends digest and compare contents.
    pub fn checksums(&self) -> SessionChecksums {
        SessionChecksums {
            plain_by: self.sums.digested_by(),
            blocks_by: self.sums.digested_by(),
            compared_by: Comparison::Negotiated(self.listed),
            block_sums: Arc::new(self.block_sums()),
        }
    }

    /// Returns the facts about an rsync that has the source. `printer`: who prints the items, which is the rsync if it is the
    /// client.
    pub fn source_facts(&self, printer: ItemPrinter) -> SourceFacts {
        let checksums = self.checksums();
        let is_client = printer == ItemPrinter::Peer;
        SourceFacts {
            order: if printer.is_peer() {
                ItemOrder::List
            } else {
                ItemOrder::Requests
            },
            answers_unreadable: !is_client || self.protocol >= 29,
            // A receiver that needs them sets this.
            values_with_items: false,
            rereads_basis: true,
            digests_prefix: true,
            presumes_backup: self.protocol < 29,
            lists_in_turn: true,
            digests: false,
            names_zero: self.flags.has(CompatFlags::ID0_NAMES),
            block_sums: checksums.block_sums,
            compared_by: checksums.compared_by,
        }
    }
}

#[cfg(test)]
impl RsyncTerms {
    /// Returns terms with piecewise lists and without names.
    pub fn of_tests() -> RsyncTerms {
        RsyncTerms {
            protocol: 32,
            flags: CompatFlags(CompatFlags::INC_RECURSE.0 | CompatFlags::VARINT_FLIST_FLAGS.0),
            sums: Sums {
                checksum: Checksum::Md5,
                seed: 0,
                is_seed_first: true,
                is_implied: false,
            },
            listed: Checksum::Md5,
            compression: Compression::No,
            client_has_frames: true,
            numeric_ids: true,
        }
    }
}

/// Returns how many phases a receiver ends after the lists: retries, from protocol 29 on delayed updates, from protocol
/// 31 on deletions, and the session.
pub fn phases(protocol: u8) -> usize {
    match protocol {
        ..29 => 2,
        29..31 => 3,
        31.. => 4,
    }
}

/// The phase in which the receiver has deleted everything.
pub const PHASE_DELETED: usize = 3;

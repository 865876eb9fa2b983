//! The handshake of both ends: the version of the protocol, its flags, and the algorithms.

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::options::algorithm::{Algorithm, no_common};
use crate::options::{Batch, Checksum, Checksums, Compress, Compression, Options, RemoveSource};
use crate::proto::rsync::block_sums::Sums;
use crate::proto::rsync::handshake::{self, CompatFlags};
use crate::proto::rsync::number::{ReadWire as _, WriteWire as _};
use crate::rsync::error::undecodable as failed;
use crate::rsync::link_io::send;
use crate::rsync::older;
use crate::rsync::session_terms::RsyncTerms;
use crate::session::compression;
use crate::transport::Link;

/// Completes the handshake that begins with the server's version, unless the ends have agreed on one. The version of
/// this end has been sent. `words`: the options on the server's command line, which decide whether the ends negotiate
/// algorithms. `receives`: this end receives. `note` prints lines of `--debug=nstr`.
pub(super) fn greet(
    link: &mut Link,
    agreed: Option<u8>,
    options: &Options,
    receives: bool,
    words: &[Vec<u8>],
    note: &mut dyn FnMut(Vec<u8>),
) -> Result<RsyncTerms> {
    let protocol = agreed.map_or_else(|| receive_version(link, newest_version(options)), Ok)?;
    // The server checks the same, and may leave before it sends anything more.
    older::check(options, protocol)?;
    let mut reader = &mut *link.reader;
    let flags = if protocol < 30 {
        CompatFlags::default()
    } else {
        CompatFlags::decode(&mut reader).map_err(failed)?
    };
    let offer = Offer {
        protocol,
        flags,
        options,
        words,
        sums: &SUMS,
        is_server: false,
    };
    let mut note_list = |line| {
        if options.output.debug.nstr >= 2 {
            note(line)
        }
    };
    let negotiated = negotiate(link, &offer, Vec::new(), &mut note_list)?;
    if options.output.debug.nstr > 0 {
        for line in negotiated.lines(&offer) {
            note(line);
        }
    }
    let seed = (&mut *link.reader).int().map_err(failed)?;
    Ok(negotiated.terms(&offer, seed, receives))
}

/// Returns the newest version of rsync's protocol that a client announces.
pub fn newest_version(options: &Options) -> u8 {
    options
        .connect
        .protocol
        .unwrap_or(*handshake::VERSIONS.end())
}

/// Reads the version of the peer, which has that of this end. Returns the version of the connection.
pub(super) fn receive_version(link: &mut Link, newest: u8) -> Result<u8> {
    let theirs = (&mut *link.reader).int().map_err(failed)?;
    handshake::choose_version(newest, theirs)
        .map_err(|_| Error::new(Exit::Protocol, handshake::VERSION_MISMATCH))
}

/// The option that names the checksums.
const SUM_CHOICE: &[u8] = b"--checksum-choice=";

/// The checksums that are offered. "none" would leave damaged files undetected.
const SUMS: [Checksum; 6] = [
    Checksum::Xxh128,
    Checksum::Xxh3,
    Checksum::Xxh64,
    Checksum::Md5,
    Checksum::Md4,
    Checksum::Sha1,
];

/// The algorithms of a session.
pub(super) struct Negotiated {
    transfer: Checksum,
    listed: Checksum,
    /// The user named the checksums.
    is_named: bool,
    compression: Compression,
}

impl Negotiated {
    /// `client_receives`: the server sends.
    pub(super) fn terms(self, offer: &Offer<'_>, seed: i32, client_receives: bool) -> RsyncTerms {
        let Negotiated {
            transfer,
            listed,
            is_named,
            compression,
        } = self;
        let Offer {
            protocol,
            flags,
            options,
            words,
            ..
        } = *offer;
        let is_seed_first = is_named || flags.has(CompatFlags::CHKSUM_SEED_FIX);
        let sums = Sums {
            checksum: transfer,
            seed,
            is_seed_first,
            is_implied: protocol < 30 && !is_named,
        };
        // Only with frames can a receiver report which files the sender may remove.
        let removes = client_receives && options.select.remove_source != RemoveSource::No;
        let numeric_ids = words.iter().any(|word| word == b"--numeric-ids");
        let client_has_frames = protocol >= 30 || removes;
        RsyncTerms {
            protocol,
            flags,
            sums,
            listed,
            compression,
            client_has_frames,
            numeric_ids,
        }
    }

    /// Returns the lines of a client about its algorithms (`--debug=nstr`).
    fn lines(&self, offer: &Offer<'_>) -> Vec<Vec<u8>> {
        let has_lists = offer.flags.has(CompatFlags::VARINT_FLIST_FLAGS);
        let name = self.transfer.name().as_bytes();
        let checksum = match offer.sum_choice() {
            None if has_lists => [b"Client negotiated checksum: ", name].concat(),
            choice => [b"Client checksum: ", choice.unwrap_or(name)].concat(),
        };
        let Compress { choice, level, .. } = offer.options.delta.compress;
        let (given, settled) = match choice {
            Some(Compression::Auto) if has_lists => (choice, Some(self.compression)),
            Some(Compression::Auto) => (None, Some(self.compression)),
            choice => (None, choice),
        };
        let compression = compression::line(given, settled, level);
        [Some(checksum), compression.map(String::into_bytes)]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// What one end brings to the negotiation of algorithms.
pub(super) struct Offer<'a> {
    pub(super) protocol: u8,
    pub(super) flags: CompatFlags,
    pub(super) options: &'a Options,
    /// The options on the server's command line.
    pub(super) words: &'a [Vec<u8>],
    /// The checksums that it supports.
    pub(super) sums: &'a [Checksum],
    pub(super) is_server: bool,
}

impl Offer<'_> {
    /// Returns the checksums that the user has named. Only if all are "auto", they are negotiated.
    fn sum_choice(&self) -> Option<&[u8]> {
        let choice = self
            .words
            .iter()
            .find_map(|word| word.strip_prefix(SUM_CHOICE));
        let is_auto = |name: &[u8]| name.eq_ignore_ascii_case(b"auto");
        choice.filter(|choice| !choice.split(|&byte| byte == b',').all(is_auto))
    }
}

/// Exchanges lists of algorithms if both ends support that, and chooses from them. `first` is sent before the lists,
/// which `note_list` prints.
pub(super) fn negotiate(
    link: &mut Link,
    offer: &Offer<'_>,
    first: Vec<u8>,
    note_list: &mut dyn FnMut(Vec<u8>),
) -> Result<Negotiated> {
    let Offer {
        protocol,
        flags,
        options,
        sums: supported,
        is_server,
        ..
    } = *offer;
    let is_named = offer.sum_choice().is_some();
    let Checksums { transfer, listed } = options.check.sums;
    let chosen = match (options.delta.compress.choice, options.delta.compress.level) {
        // This level turns zlib off.
        (Some(Compression::Zlib | Compression::Zlibx), Some(0)) => Compression::No,
        (choice, _) => choice.unwrap_or(Compression::No),
    };
    let negotiates_compression = chosen == Compression::Auto;
    let mut sums = Negotiated {
        transfer,
        listed,
        is_named,
        compression: chosen,
    };
    // The environment may restrict the choice to one. A batch file names no algorithms.
    let is_recorded = matches!(options.batch, Some(Batch::Write { .. }));
    let one = if is_recorded {
        [Checksum::Md5]
    } else {
        [transfer]
    };
    let offered_sums = if transfer == Checksum::default() && !is_recorded {
        supported
    } else {
        &one
    };
    let requested_methods = options.delta.compress.list.as_deref();
    let offered_methods = if is_recorded {
        &[Compression::Zlib]
    } else {
        requested_methods.unwrap_or(&Compression::METHODS)
    };
    let our_sums = (!is_named).then(|| handshake::offer(offered_sums));
    let our_methods = negotiates_compression.then(|| handshake::offer(offered_methods));
    let has_lists = flags.has(CompatFlags::VARINT_FLIST_FLAGS);
    let mut out = first;
    for (what, ours) in [("checksum", &our_sums), ("compress", &our_methods)] {
        let Some(ours) = ours else { continue };
        note_list(list_line("Client", what, ours.as_bytes()));
        if has_lists {
            out.put_vstring(ours.as_bytes());
        }
    }
    send(link, &out)?;
    if !has_lists {
        if our_sums.is_some() {
            let sum = handshake::default_checksum(protocol);
            note_list(list_line("Server", "checksum", sum.name().as_bytes()));
            (sums.transfer, sums.listed) = (sum, sum);
        }
        if our_methods.is_some() {
            note_list(list_line(
                "Server",
                "compress",
                Compression::Zlib.name().as_bytes(),
            ));
            sums.compression = Compression::Zlib;
        }
        return Ok(sums);
    }
    if let Some(ours) = our_sums {
        let sum = choose(link, "checksum", ours.as_bytes(), is_server, note_list)?;
        (sums.transfer, sums.listed) = (sum, sum);
    }
    if let Some(ours) = our_methods {
        sums.compression = choose(link, "compress", ours.as_bytes(), is_server, note_list)?;
    }
    Ok(sums)
}

/// Returns the line of a client about a list of algorithms (`--debug=nstr2`).
fn list_line(end: &str, what: &str, list: &[u8]) -> Vec<u8> {
    [
        end.as_bytes(),
        b" ",
        what.as_bytes(),
        b" list (on client): ",
        list,
    ]
    .concat()
}

/// Reads the list of the other end, and chooses from it and from ours.
fn choose<A: Algorithm>(
    link: &mut Link,
    what: &str,
    ours: &[u8],
    is_server: bool,
    note_list: &mut dyn FnMut(Vec<u8>),
) -> Result<A> {
    let theirs = &*handshake::decode_offer(&mut link.reader).map_err(failed)?;
    note_list(list_line("Server", what, theirs));
    let (client, server) = if is_server {
        (theirs, ours)
    } else {
        (ours, theirs)
    };
    handshake::choose(client, server).ok_or_else(|| {
        let [server, client] =
            [server, client].map(|list| String::from_utf8_lossy(list).replace('\n', "\\#012"));
        Error::new(Exit::Unsupported, no_common(what, &server, &client))
    })
}

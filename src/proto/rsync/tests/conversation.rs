//! Decodes whole conversations and encodes them again.

use super::super::attributes::{
    decode_xattr_answer, decode_xattr_request, encode_xattr_answer, encode_xattr_request,
};
use super::super::batch::{BatchHeader, BatchOptions};
use super::super::block_sums::{Sums, digest_len_bytes};
use super::super::daemon::{self, AuthDigest, DaemonGreeting, DaemonLine};
use super::super::file_list::{FileEntry, ListDecoder, ListEncoder, ListItem, ListOptions};
use super::super::filter_list;
use super::super::handshake::{self, Capabilities, CompatFlags};
use super::super::item::{BlockSum, ItemFlags, ItemHead, SumHead};
use super::super::mux::{Control, Demultiplexer, FrameTag};
use super::super::number::{Ndx, NdxDecoder, NdxEncoder, ReadWire as _, WriteWire as _};
use super::super::sort;
use super::super::stats::{DeletionCounts, Stats};
use super::super::tokens::{Token, TokenDecoder, TokenEncoder};
use super::captures;
use crate::digest::ContentHasher;
use crate::flist::Kind;
use crate::options::algorithm::Algorithm;
use crate::options::{Checksum, Compression};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::rc::Rc;

/// The bytes of one direction, with a position that tests can look at.
#[derive(Clone)]
struct Bytes<'a> {
    all: &'a [u8],
    at: Rc<Cell<usize>>,
}

impl Read for Bytes<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = (&self.all[self.at.get()..]).read(into)?;
        self.at.set(self.at.get() + got);
        Ok(got)
    }
}

/// A direction as a stream of data, which keeps what has been read.
struct Direction<'a> {
    bytes: Bytes<'a>,
    demux:
        Demultiplexer<Bytes<'a>, Box<dyn FnMut(Control) -> super::super::decode_error::Result<()>>>,
    controls: Rc<RefCell<Vec<Control>>>,
    seen: Vec<u8>,
}

impl<'a> Direction<'a> {
    fn new(all: &'a [u8]) -> Direction<'a> {
        let bytes = Bytes {
            all,
            at: Rc::default(),
        };
        let controls = Rc::<RefCell<Vec<Control>>>::default();
        let sink = controls.clone();
        let handle = Box::new(move |control| {
            sink.borrow_mut().push(control);
            Ok(())
        });
        Direction {
            demux: Demultiplexer::new(bytes.clone(), handle),
            bytes,
            controls,
            seen: Vec::new(),
        }
    }

    /// Reads control messages up to the next data or the end, and returns whether this is the end.
    fn is_at_end(&mut self, has_frames: bool) -> bool {
        loop {
            if self.bytes.at.get() == self.bytes.all.len() {
                return self.demux.rest_bytes() == 0;
            }
            if !has_frames || self.demux.read_frame().unwrap() {
                return false;
            }
        }
    }

    /// Compares what has been read with its encoding.
    fn agree(&mut self, encoded: &[u8], what: &str) {
        let seen = std::mem::take(&mut self.seen);
        let differs = seen
            .iter()
            .zip(encoded)
            .position(|(a, b)| a != b)
            .unwrap_or(seen.len().min(encoded.len()));
        let shown = |bytes: &[u8]| {
            bytes[differs.min(bytes.len())..]
                .iter()
                .take(24)
                .copied()
                .collect::<Vec<_>>()
        };
        assert!(
            seen == encoded,
            "{what}, at byte {differs}: {:x?} encoded as {:x?}",
            shown(&seen),
            shown(encoded)
        );
    }
}

impl Read for Direction<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.demux.read(into)?;
        self.seen.extend_from_slice(&into[..got]);
        Ok(got)
    }
}

/// The server's command line, as far as it determines the conversation.
struct Command {
    words: Vec<String>,
    letters: String,
    capabilities: Option<String>,
}

impl Command {
    fn new(line: &str) -> Command {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let bundle = words
            .iter()
            .find(|word| word.starts_with('-') && !word.starts_with("--"))
            .cloned();
        let bundle = bundle.unwrap_or_default();
        let (letters, capabilities) = match bundle.split_once('e') {
            Some((letters, capabilities)) => (letters.to_owned(), Some(capabilities.to_owned())),
            None => (bundle, None),
        };
        Command {
            words,
            letters,
            capabilities,
        }
    }

    fn has(&self, letter: char) -> bool {
        self.letters.contains(letter)
    }

    fn has_word(&self, begin: &str) -> bool {
        self.words.iter().any(|word| word.starts_with(begin))
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.words.iter().find_map(|word| word.strip_prefix(name))
    }

    fn server_sends(&self) -> bool {
        self.has_word("--sender")
    }
}

/// What a handshake has settled.
#[derive(Clone, Copy)]
struct Settled {
    protocol: u8,
    compat: CompatFlags,
    sums: Sums,
    compression: Compression,
}

impl Settled {
    fn list_options(&self, command: &Command) -> ListOptions {
        let has = |letter| command.has(letter);
        ListOptions {
            protocol: self.protocol,
            compat: self.compat,
            owners: has('o'),
            groups: has('g'),
            links: has('l'),
            devices: has('D'),
            specials: has('D'),
            hard_links: has('H'),
            atimes: has('U'),
            crtimes: has('N'),
            acls: has('A'),
            xattrs: has('X'),
            numeric_ids: command.has_word("--numeric-ids"),
            relative: has('R'),
            missing_args: command.has_word("--delete-missing-args"),
            digest_len_bytes: if has('c') {
                digest_len_bytes(self.sums.checksum)
            } else {
                0
            },
        }
    }
}

/// Decodes the handshake from step 2 on, or from step 1 if no version is given.
fn handshake<'a>(
    command: &Command,
    version: Option<u8>,
    client: &mut Direction<'a>,
    server: &mut Direction<'a>,
) -> Settled {
    let protocol = version.unwrap_or_else(|| {
        let (ours, peer) = (client.int().unwrap(), server.int().unwrap());
        handshake::choose_version(u8::try_from(ours).unwrap(), peer).unwrap()
    });
    let mut compat = CompatFlags::default();
    let mut encoded = Vec::new();
    if protocol >= 30 {
        server.seen.clear();
        compat = CompatFlags::decode(server).unwrap();
        compat.encode(&mut encoded);
        server.agree(&encoded, "compatibility flags");
        let capabilities = command.capabilities.as_deref().unwrap_or_default();
        let agreed = Capabilities::parse(capabilities.as_bytes()).agree(CompatFlags(0x1ff));
        assert!(agreed.has(compat), "{compat:x?} is more than {agreed:x?}");
    }
    let named = |name: &str| command.value(name).map(str::as_bytes);
    let explicit = named("--checksum-choice=").map(|name| Algorithm::named(name).unwrap());
    let mut checksum = explicit.unwrap_or(handshake::default_checksum(protocol));
    let mut compression = Compression::No;
    let asks = command.has('z')
        && !command.has_word("--old-compress")
        && !command.has_word("--new-compress");
    if command.has_word("--old-compress") || command.has('z') {
        compression = Compression::Zlib;
    }
    if command.has_word("--new-compress") {
        compression = Compression::Zlibx;
    }
    if let Some(name) = named("--compress-choice=") {
        compression = Algorithm::named(name).unwrap();
    }
    if compat.has(CompatFlags::VARINT_FLIST_FLAGS) {
        if explicit.is_none() {
            let lists = [&mut *client, &mut *server].map(offer::<Checksum>);
            checksum = handshake::choose(&lists[0], &lists[1]).unwrap();
        }
        if asks {
            let lists = [&mut *client, &mut *server].map(offer::<Compression>);
            compression = handshake::choose(&lists[0], &lists[1]).unwrap();
        }
    }
    let seed = server.int().unwrap();
    let is_seed_first = compat.has(CompatFlags::CHKSUM_SEED_FIX) || explicit == Some(Checksum::Md5);
    let sums = Sums {
        checksum,
        seed,
        is_seed_first,
        is_implied: protocol < 30 && explicit.is_none(),
    };
    (client.seen, server.seen) = (Vec::new(), Vec::new());
    Settled {
        protocol,
        compat,
        sums,
        compression,
    }
}

/// Reads an algorithm list and checks that ours would be the same.
fn offer<A: Algorithm>(side: &mut Direction<'_>) -> Vec<u8> {
    side.seen.clear();
    let list = handshake::decode_offer(side).unwrap();
    let names: Vec<A> = list
        .split(|&byte| byte == b' ')
        .map(|name| A::named(name).unwrap())
        .collect();
    let mut encoded = Vec::new();
    encoded.put_vstring(handshake::offer(&names).as_bytes());
    side.agree(&encoded, "a list of algorithms");
    list
}

/// The lists of a conversation.
#[derive(Default)]
struct Lists {
    count: u32,
    by_index: HashMap<i32, FileEntry>,
    is_iconv: bool,
    /// Release 2.6.0 sets other flags than later ones for the same fields.
    is_old_sender: bool,
}

impl Lists {
    /// Decodes a list, and encodes it again.
    fn read(
        &mut self,
        decoder: &mut ListDecoder,
        encoder: &mut ListEncoder,
        protocol: u8,
        input: &mut Direction<'_>,
        out: &mut Vec<u8>,
    ) {
        let start = decoder.next_index();
        let mut entries = Vec::new();
        loop {
            match decoder.next(input).unwrap() {
                ListItem::Entry(entry) => {
                    encoder.entry(&entry, out);
                    if self.is_old_sender {
                        input.seen.clear();
                    } else {
                        input.agree(out, &format!("entry {}", entry.path.escape_ascii()));
                    }
                    out.clear();
                    entries.push(*entry);
                }
                ListItem::End { io_error, ids } => {
                    encoder.end(io_error, &ids, out);
                    break;
                }
            }
        }
        input.agree(out, "the end of a list");
        out.clear();
        let mut places = sort::sorted(&entries, protocol);
        if self.is_iconv {
            places.sort_unstable();
        }
        self.by_index.extend(
            (start..)
                .zip(places)
                .map(|(index, at)| (index, entries[at as usize].clone())),
        );
        self.count += 1;
    }

    fn name(&self, index: i32) -> &[u8] {
        self.by_index.get(&index).map_or(b"", |entry| &entry.path)
    }
}

/// Returns the content of the receiver's file with a name.
type Basis = fn(&[u8]) -> Vec<u8>;

/// A conversation after the handshake.
struct Walk<'c> {
    command: &'c Command,
    settled: Settled,
    /// The files of the receiver, if they are known.
    bases: Option<Basis>,
    lists: Lists,
    /// Batch files and a sending server have statistics.
    has_stats: bool,
}

/// How often each direction has reached the end of a phase.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    done: u32,
    transfers: u32,
}

impl Walk<'_> {
    fn has_xattrs(&self, head: &ItemHead) -> bool {
        let has_shortcut =
            self.settled.protocol >= 31 && !self.settled.compat.has(CompatFlags::AVOID_XATTR_OPTIM);
        self.command.has('X') && !self.command.has('n') && head.has_xattrs(has_shortcut)
    }

    fn transfers(&self, head: &ItemHead) -> bool {
        head.flags.has(ItemFlags::TRANSFER) && !self.command.has('n')
    }

    fn basis(&self, index: i32, head: &ItemHead) -> Option<Vec<u8>> {
        self.bases
            .map(|basis| basis(head.name.as_deref().unwrap_or(self.lists.name(index))))
    }

    /// Decodes the sender's direction.
    fn sender(&mut self, input: &mut Direction<'_>, has_frames: bool) -> Counts {
        let Settled {
            protocol,
            sums,
            compression,
            ..
        } = self.settled;
        let options = self.settled.list_options(self.command);
        let (mut decoder, mut encoder) = (ListDecoder::new(options), ListEncoder::new(options));
        let (mut indices, mut out_indices) = (NdxDecoder::new(protocol), NdxEncoder::new(protocol));
        let mut tokens = TokenDecoder::new(compression, protocol).unwrap();
        let (mut counts, mut out, mut answered) = (Counts::default(), Vec::new(), HashSet::new());
        if input.is_at_end(has_frames) {
            return counts;
        }
        self.lists
            .read(&mut decoder, &mut encoder, protocol, input, &mut out);
        while !input.is_at_end(has_frames) {
            let ndx = indices.decode(input).unwrap();
            out_indices.encode(ndx, &mut out);
            match ndx {
                Ndx::List(_) => {
                    input.agree(&out, "the index of a list");
                    out.clear();
                    self.lists
                        .read(&mut decoder, &mut encoder, protocol, input, &mut out);
                }
                Ndx::ListsEnd => {}
                Ndx::Deletions => DeletionCounts::decode(input).unwrap().encode(&mut out),
                Ndx::Done => {
                    counts.done += 1;
                    let is_final = counts.done
                        == if protocol >= 29 {
                            self.lists.count + 2
                        } else {
                            2
                        };
                    if is_final && self.has_stats {
                        Stats::decode(input, protocol)
                            .unwrap()
                            .encode(protocol, &mut out);
                    }
                }
                Ndx::Entry(index) => {
                    let head = ItemHead::decode(input, protocol).unwrap();
                    head.encode(protocol, &mut out);
                    if self.has_xattrs(&head) {
                        let values = decode_xattr_answer(input, 1000).unwrap();
                        encode_xattr_answer(
                            values.iter().map(|(number, value)| (*number, &value[..])),
                            &mut out,
                        );
                    }
                    if self.transfers(&head) {
                        counts.transfers += 1;
                        assert_eq!(self.lists.by_index[&index].kind(), Kind::File, "{index}");
                        let sum_head = SumHead::decode(input, protocol).unwrap();
                        sum_head.encode(&mut out);
                        input.agree(&out, "an answer");
                        out.clear();
                        let is_appended =
                            answered.insert(index) && self.command.has_word("--append");
                        let basis = self.basis(index, &head).unwrap_or_default();
                        let content = self.content(&basis, &sum_head, &mut tokens, input);
                        self.compare(
                            index,
                            if is_appended {
                                sum_head.basis_len_bytes()
                            } else {
                                0
                            },
                            content,
                            input,
                        );
                        let digest = input.byte_vec(sums.digest_len_bytes()).unwrap();
                        out.put(&digest);
                    }
                }
            }
            input.agree(&out, "an item");
            out.clear();
        }
        counts
    }

    /// Decodes the data of a file.
    fn content(
        &self,
        basis: &[u8],
        sum_head: &SumHead,
        tokens: &mut TokenDecoder,
        input: &mut Direction<'_>,
    ) -> Vec<u8> {
        let Settled {
            protocol,
            compression,
            ..
        } = self.settled;
        let (mut content, mut all) = (Vec::new(), Vec::new());
        while all.last() != Some(&Token::End) {
            let token = tokens.next(input).unwrap();
            match &token {
                Token::Literal(data) => content.extend_from_slice(data),
                Token::Block(number) => {
                    let (offset, len) = sum_head.block(*number).expect("the basis has this block");
                    let block = &basis[offset as usize..offset as usize + len];
                    tokens.see_block(block).unwrap();
                    content.extend_from_slice(block);
                }
                Token::End => {}
            }
            all.push(token);
        }
        if compression == Compression::No {
            let (mut encoder, mut out) = (
                TokenEncoder::new(compression, None, protocol).unwrap(),
                Vec::new(),
            );
            for token in &all {
                match token {
                    Token::Literal(data) => encoder.literal(data, &mut out).unwrap(),
                    Token::Block(number) => encoder.block(*number, b"", &mut out).unwrap(),
                    Token::End => encoder.end(&mut out).unwrap(),
                }
            }
            input.agree(&out, "tokens");
        }
        input.seen.clear();
        content
    }

    /// Compares the data of a file from an offset on with its source, if that is known, and with the digest that is
    /// next in the stream.
    fn compare(&self, index: i32, offset: u64, content: Vec<u8>, input: &Direction<'_>) {
        let (name, sums) = (self.lists.name(index), self.settled.sums);
        let content = match self.bases {
            Some(_) => {
                let source = captures::source(name).expect("a file of the sender");
                assert_eq!(
                    content,
                    source[offset as usize..],
                    "{}",
                    name.escape_ascii()
                );
                source
            }
            None => content,
        };
        let mut digest = ContentHasher::new(sums.digested_by());
        digest.update(&content);
        let len_bytes = sums.digest_len_bytes();
        assert_eq!(
            digest.finish()[..len_bytes],
            *input.peek(len_bytes),
            "the digest of {}",
            name.escape_ascii()
        );
    }

    /// Decodes the direction of the receiving side.
    fn receiver(&self, input: &mut Direction<'_>, has_frames: bool) -> Counts {
        let protocol = self.settled.protocol;
        let (mut indices, mut out_indices) = (NdxDecoder::new(protocol), NdxEncoder::new(protocol));
        let (mut counts, mut out, mut requested) =
            (Counts::default(), Vec::new(), HashMap::<i32, u32>::new());
        while !input.is_at_end(has_frames) {
            let ndx = indices.decode(input).unwrap();
            out_indices.encode(ndx, &mut out);
            match ndx {
                Ndx::List(_) | Ndx::ListsEnd => panic!("{ndx:?} of a receiver"),
                Ndx::Deletions => DeletionCounts::decode(input).unwrap().encode(&mut out),
                Ndx::Done => counts.done += 1,
                Ndx::Entry(index) => {
                    let head = ItemHead::decode(input, protocol).unwrap();
                    head.encode(protocol, &mut out);
                    if self.has_xattrs(&head) {
                        let numbers = decode_xattr_request(input, 1000).unwrap();
                        encode_xattr_request(&numbers, &mut out);
                    }
                    if self.transfers(&head) {
                        counts.transfers += 1;
                        let tries = requested.entry(index).or_default();
                        *tries += 1;
                        let sum_head = SumHead::decode(input, protocol).unwrap();
                        sum_head.encode(&mut out);
                        if *tries > 1 || !self.command.has_word("--append") {
                            self.block_sums(index, &head, &sum_head, *tries > 1, input, &mut out);
                        }
                    }
                }
            }
            input.agree(&out, "a request");
            out.clear();
        }
        counts
    }

    fn block_sums(
        &self,
        index: i32,
        head: &ItemHead,
        sum_head: &SumHead,
        is_retry: bool,
        input: &mut Direction<'_>,
        out: &mut Vec<u8>,
    ) {
        let basis = self.basis(index, head);
        if let Some(basis) = &basis {
            let ours = SumHead::of_basis(
                basis.len() as u64,
                None,
                &self.settled.sums,
                self.settled.protocol,
                is_retry,
            );
            assert_eq!(
                &ours.unwrap(),
                sum_head,
                "{}",
                self.lists.name(index).escape_ascii()
            );
        }
        for number in 0..sum_head.count {
            let sum = BlockSum::decode(input, sum_head).unwrap();
            sum.encode(sum_head, out);
            if let Some(basis) = &basis {
                let (offset, len) = sum_head.block(number.cast_unsigned()).unwrap();
                let block = &basis[offset as usize..offset as usize + len];
                assert_eq!(
                    BlockSum::of_block(block, sum_head, &self.settled.sums),
                    sum,
                    "block {number}"
                );
            }
        }
    }
}

impl Direction<'_> {
    /// Returns the next data bytes without consuming them.
    fn peek(&self, len: usize) -> Vec<u8> {
        let bytes = Bytes {
            all: self.bytes.all,
            at: Rc::new(Cell::new(self.bytes.at.get())),
        };
        let mut demux = Demultiplexer::new(bytes, |_| Ok(()));
        demux.resume(&self.demux);
        demux.byte_vec(len).unwrap()
    }
}

/// Decodes a conversation completely. Returns its control messages: those of the client, then those of the server.
fn walk(name: &str, command: &str) -> (Vec<Control>, Vec<Control>) {
    let (client, server) = captures::both_directions(name);
    let (mut client, mut server) = (Direction::new(&client), Direction::new(&server));
    let command = Command::new(command);
    if command.has('s') && !name.starts_with("d-") {
        secluded(&mut client);
    }
    let settled = handshake(&command, None, &mut client, &mut server);
    converse(name, &command, settled, client, server)
}

fn secluded(client: &mut Direction<'_>) {
    let args = daemon::decode_args(client, 0).unwrap();
    let mut out = Vec::new();
    daemon::encode_args(args.iter().map(Vec::as_slice), 0, &mut out);
    client.agree(&out, "secluded arguments");
}

fn converse(
    name: &str,
    command: &Command,
    settled: Settled,
    mut client: Direction<'_>,
    mut server: Direction<'_>,
) -> (Vec<Control>, Vec<Control>) {
    let protocol = settled.protocol;
    let client_frames = protocol >= 30;
    server.demux.set_frames(true);
    client.demux.set_frames(client_frames);
    let server_sends = command.server_sends();
    if (server_sends || command.has_word("--delete")) && !client.is_at_end(client_frames) {
        let rules = filter_list::decode(&mut client, protocol).unwrap();
        let mut out = Vec::new();
        rules
            .iter()
            .for_each(|rule| filter_list::encode_rule(rule, protocol, &mut out).unwrap());
        filter_list::encode_rules_end(&mut out);
        client.agree(&out, "the filter list");
    }
    if command.has_word("--files-from=-") {
        client.demux.set_frames(protocol >= 31);
        let mut out = Vec::new();
        while let Some(name) = filter_list::decode_name(&mut client).unwrap() {
            filter_list::encode_name(&name, &mut out);
        }
        filter_list::encode_names_end(&mut out);
        client.agree(&out, "the names of --files-from");
        client.demux.set_frames(client_frames);
    }
    let bases: Option<Basis> = match name {
        _ if name.contains("append") => Some(captures::appended),
        _ if name.contains("delta") || name.contains("fuzzy") => Some(captures::basis),
        _ => None,
    };
    let (is_iconv, is_old_sender) = (command.has_word("--iconv"), name.contains("old260"));
    let lists = Lists {
        is_iconv,
        is_old_sender,
        ..Lists::default()
    };
    let mut walk = Walk {
        command,
        settled,
        bases,
        lists,
        has_stats: server_sends,
    };
    let (sent, requested) = if server_sends {
        let sent = walk.sender(&mut server, true);
        (sent, walk.receiver(&mut client, client_frames))
    } else {
        let sent = walk.sender(&mut client, client_frames);
        (sent, walk.receiver(&mut server, true))
    };
    let gave_up = |side: &Direction<'_>| {
        side.controls
            .borrow()
            .iter()
            .any(|control| matches!(control, Control::ErrorExit(_)))
    };
    // A daemon that refuses the arguments closes the connection.
    let is_refused = walk.lists.count == 0;
    if !gave_up(&client) && !gave_up(&server) && !is_refused {
        assert_eq!(
            (requested.done, sent.done),
            done_counts(protocol, walk.lists.count),
            "{name}"
        );
        let refused = [&client, &server].map(|side| {
            side.controls
                .borrow()
                .iter()
                .filter(|control| matches!(control, Control::NoSend(_)))
                .count() as u32
        });
        assert_eq!(
            requested.transfers,
            sent.transfers + refused[0] + refused[1],
            "{name}"
        );
    }
    (client.controls.take(), server.controls.take())
}

/// Declares a test for each conversation over a remote shell, with the command line of its server.
macro_rules! conversations {
    ($($test:ident: $file:literal, $command:literal;)*) => {
        $(#[test]
        fn $test() {
            walk(concat!($file, ".cap"), $command);
        })*
    };
}

conversations! {
    pull27: "pull27-aH", "--server --sender -lHogDtpr . src/";
    pull28: "pull28-aH", "--server --sender -lHogDtpr . src/";
    pull29: "pull29-aH", "--server --sender -lHogDtpr . src/";
    pull30: "pull30-aH", "--server --sender -lHogDtpre.iLsfxCIvu . src/";
    pull31: "pull31-aH", "--server --sender -lHogDtpre.iLsfxCIvu . src/";
    pull32: "pull32-aH", "--server --sender -lHogDtpre.iLsfxCIvu . src/";
    push27_with_checksums: "push27-aHc", "--server -lHogDtprc . dst/";
    push29_with_checksums: "push29-aHc", "--server -lHogDtprc . dst/";
    pull30_with_attributes: "pull30-aHAXc", "--server --sender -lHogDtpAXrce.iLsfxCIvu . src/";
    push32_with_attributes: "push32-aHAX", "--server -lHogDtpAXre.iLsfxCIvu . dst/";
    push32_in_one_list: "push32-noinc-aHAXc", "--server -lHogDtpAXrce.LsfxCIvu . dst/";
    pull32_with_access_times: "pull32-numeric-U", "--server --sender -logDtUpre.iLsfxCIvu --numeric-ids . src/";
    pull32_of_changed_attributes: "pull32-AX-update", "--server --sender -logDtpAXre.iLsfxCIvu . src/";
    pull27_of_deltas: "pull27-delta", "--server --sender -logDtpr . dsrc/";
    push30_of_deltas_with_zlib: "push30-delta-z", "--server -logDtprze.iLsfxCIvu --old-compress . dst/";
    pull32_of_deltas: "pull32-delta-none", "--server --sender -logDtpre.iLsfxCIvu --compress-choice=none . dsrc/";
    pull32_of_deltas_with_zlib: "pull32-delta-zlib", "--server --sender -logDtprze.iLsfxCIvu --old-compress . dsrc/";
    pull32_of_deltas_with_zlibx: "pull32-delta-zlibx", "--server --sender -logDtpre.iLsfxCIvu --new-compress . dsrc/";
    pull32_of_deltas_with_zstd: "pull32-delta-zstd", "--server --sender -logDtpre.iLsfxCIvu --compress-choice=zstd . dsrc/";
    pull32_of_deltas_with_lz4: "pull32-delta-lz4", "--server --sender -logDtpre.iLsfxCIvu --compress-choice=lz4 . dsrc/";
    push32_of_deltas_with_a_seed: "push32-delta-seed", "--server -logDtpre.iLsfxCIvu --checksum-choice=xxh64 --checksum-seed=-9 . dst/";
    push32_of_similar_files: "push32-fuzzy", "--server -lyogDtpre.iLsfxCIvu . dst/";
    push32_of_a_dry_run: "push32-dry", "--server -nlogDtpre.iLsfxCIvu --log-format=%i . dst/";
    pull32_of_names: "pull32-files-from", "--server --sender -logDtpRe.LsfxCIvu --files-from=- --from0 . src";
    pull30_of_names: "pull30-files-from", "--server --sender -logDtpRe.LsfxCIvu --files-from=- --from0 . src";
    pull32_with_secluded_arguments: "pull32-secluded", "--server --sender -slogDtpre.iLsfxCIvu";
    pull28_in_its_order: "pull28-sort", "--server --sender -logDtpr . sort/";
    pull32_in_its_order: "pull32-sort", "--server --sender -logDtpre.LsfxCIvu . sort/";
    pull32_in_its_order_piecewise: "pull32-sort-inc", "--server --sender -logDtpre.iLsfxCIvu . sort/";
    pull32_in_the_order_of_sending: "pull32-iconv", "--server --sender -logDtpre.iLsfxCIvu --iconv=latin1 . sort/";
    pull27_of_release_2_6_0: "pull27-old260", "--server --sender -lHogDtpre.iLsfxCIvu --numeric-ids . src/";
    push30_to_release_3_0_0: "push30-old300", "--server -lHogDtpAXre.iLsfxCIvu --numeric-ids . dst/";
}

fn texts(controls: &[Control]) -> String {
    let texts = controls.iter().filter_map(|control| match control {
        Control::Text(_, text) => Some(String::from_utf8_lossy(text)),
        _ => None,
    });
    texts.collect()
}

#[test]
fn deletions_are_reported() {
    let (_, server) = walk(
        "push32-delete.cap",
        "--server -logDtpre.iLsfxCIvu --delete . dst/",
    );
    let mut deleted: Vec<_> = server
        .into_iter()
        .filter_map(|control| match control {
            Control::Deleted { path, is_dir } => Some((String::from_utf8(path).unwrap(), is_dir)),
            _ => None,
        })
        .collect();
    deleted.sort();
    let wanted = [
        ("g", false),
        ("sub/h", false),
        ("x", true),
        ("x/f", false),
        ("x/y", true),
    ];
    assert_eq!(
        deleted,
        wanted.map(|(path, is_dir)| (path.to_owned(), is_dir))
    );
}

#[test]
fn transferred_files_are_confirmed() {
    let (_, server) = walk(
        "push32-remove-source.cap",
        "--server -logDtpre.iLsfxCIvu --remove-source-files . dst/",
    );
    assert_eq!(
        server
            .iter()
            .filter(|control| matches!(control, Control::Success(_)))
            .count(),
        3
    );
}

#[test]
fn an_append_is_retried_with_sums() {
    let (_, server) = walk(
        "pull32-append-redo.cap",
        "--server --sender -logDtpre.iLsfxCIvu --append --append . dsrc/text",
    );
    assert_eq!(texts(&server), "");
}

#[test]
fn unreadable_files_are_refused() {
    for name in ["pull30-unreadable.cap", "pull32-unreadable.cap"] {
        let (_, server) = walk(name, "--server --sender -logDtpre.iLsfxCIvu . usrc/");
        assert!(
            server
                .iter()
                .any(|control| matches!(control, Control::NoSend(_))),
            "{name}"
        );
    }
}

/// openrsync encodes names and file lists in another way than rsync, so only the frames are compared.
#[test]
fn frames_of_openrsync_are_decoded() {
    for (name, success, data_bytes) in [
        ("push27-openrsync.cap", &[1, 3][..], 52),
        ("pull27-R-openrsync.cap", &[], 290),
    ] {
        let (client, server) = captures::both_directions(name);
        assert_eq!(
            (&client[..4], &server[..4]),
            (&[32, 0, 0, 0][..], &[27, 0, 0, 0][..])
        );
        let controls = RefCell::new(Vec::new());
        let mut demux = Demultiplexer::new(&server[8..], |control| {
            controls.borrow_mut().push(control);
            Ok(())
        });
        demux.set_frames(true);
        let mut data = Vec::new();
        // A connection that ends without an error frame is lost, even between two frames.
        let end = demux.read_to_end(&mut data).unwrap_err();
        assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof, "{name}");
        assert_eq!(data.len(), data_bytes, "{name}");
        drop(demux);
        let reported: Vec<_> = success
            .iter()
            .map(|&index| Control::Success(index))
            .collect();
        assert_eq!(controls.into_inner(), reported, "{name}");
    }
}

#[test]
fn a_failing_server_gives_up() {
    let (_, server) = walk(
        "push32-error.cap",
        "--server -logDtpre.iLsfxCIvu . nodir/nodir2/",
    );
    assert!(server.contains(&Control::ErrorExit(Some(11))), "{server:?}");
}

/// Reads the lines of both sides up to the arguments, and decodes what follows. Returns the last line of the daemon.
fn daemon_walk(name: &str, command: &str) -> (DaemonLine, Vec<Control>) {
    let (client, server) = captures::both_directions(name);
    let (mut client, mut server) = (Direction::new(&client), Direction::new(&server));
    let greetings = [&mut client, &mut server].map(|side| {
        let greeting = DaemonGreeting::parse(&daemon::read_line(side).unwrap()).unwrap();
        side.agree(&greeting.line(), "a greeting");
        greeting
    });
    let protocol = greetings[0].agree(&greetings[1]);
    daemon::ClientLine::parse(&daemon::read_line(&mut client).unwrap()).unwrap();
    let last = loop {
        match DaemonLine::parse(&daemon::read_line(&mut server).unwrap()) {
            DaemonLine::Text(_) => {}
            DaemonLine::AuthRequired(challenge) => {
                let lists = greetings
                    .each_ref()
                    .map(|greeting| greeting.digests.as_deref());
                let digest = AuthDigest::choose(lists[0], lists[1], protocol).unwrap();
                let line = daemon::read_line(&mut client).unwrap();
                let response = digest.response(b"pw", &challenge);
                assert_eq!(
                    daemon::parse_credentials(&line),
                    Some((&b"joe"[..], &response[..]))
                );
            }
            last => break last,
        }
    };
    if last != DaemonLine::Ok {
        assert!(client.is_at_end(false) && server.is_at_end(false), "{name}");
        return (last, Vec::new());
    }
    client.seen.clear();
    let args = daemon::decode_args(&mut client, daemon::args_end(protocol)).unwrap();
    let mut out = Vec::new();
    daemon::encode_args(
        args.iter().map(Vec::as_slice),
        daemon::args_end(protocol),
        &mut out,
    );
    client.agree(&out, "arguments");
    let words: Vec<_> = args
        .iter()
        .map(|arg| String::from_utf8_lossy(arg))
        .collect();
    let words = words.join(" ");
    let mut command = Command::new(if command.is_empty() { &words } else { command });
    if command.has('s') {
        let args = daemon::decode_args(&mut client, 0).unwrap();
        let words: Vec<_> = args
            .iter()
            .map(|arg| String::from_utf8_lossy(arg))
            .collect();
        let mut out = Vec::new();
        daemon::encode_args(args.iter().map(Vec::as_slice), 0, &mut out);
        client.agree(&out, "secluded arguments");
        command
            .words
            .extend(words.iter().map(|word| word.to_string()));
    }
    let settled = handshake(&command, Some(protocol), &mut client, &mut server);
    let (_, controls) = converse(name, &command, settled, client, server);
    (last, controls)
}

#[test]
fn conversations_with_daemons_are_decoded() {
    for name in [
        "d-auth27",
        "d-auth32-sha512",
        "d-pull31-z-secluded",
        "d-push29",
    ] {
        let (last, _) = daemon_walk(&format!("{name}.cap"), "");
        assert_eq!(last, DaemonLine::Ok, "{name}");
    }
    let (_, controls) = daemon_walk("d-timeout.cap", "");
    assert!(controls.contains(&Control::IoTimeout(77)), "{controls:?}");
}

#[test]
fn refusals_of_daemons_are_decoded() {
    assert_eq!(daemon_walk("d-list32.cap", "").0, DaemonLine::Exit);
    assert!(
        matches!(daemon_walk("d-unknown.cap", "").0, DaemonLine::Error(text) if text.starts_with(b"@ERROR: Unknown module"))
    );
    let (_, controls) = daemon_walk("d-readonly.cap", "");
    assert!(
        texts(&controls).contains("module is read only"),
        "{controls:?}"
    );
    // The daemon has not seen the capabilities when it refuses.
    let (_, controls) = daemon_walk("d-refused.cap", "--server --sender -logDtprc .");
    assert!(
        matches!(
            &controls[0],
            Control::Text(FrameTag::Error | FrameTag::ErrorXfer, _)
        ),
        "{controls:?}"
    );
}

/// Decodes a batch file completely.
fn batch(name: &str, letters: &str, bases: Option<Basis>) -> BatchHeader {
    let bytes = captures::file(name);
    let mut input = Direction::new(&bytes);
    let header = BatchHeader::decode(&mut input, 32).unwrap();
    let mut out = Vec::new();
    header.encode(&mut out);
    input.agree(&out, "the header");
    let BatchHeader {
        protocol,
        compat,
        seed,
        options,
    } = header;
    let checksum = handshake::default_checksum(protocol);
    let is_seed_first = compat.has(CompatFlags::CHKSUM_SEED_FIX);
    let sums = Sums {
        checksum,
        seed,
        is_seed_first,
        is_implied: protocol < 30,
    };
    let compression = if options.has(BatchOptions::COMPRESS) {
        Compression::Zlib
    } else {
        Compression::No
    };
    let settled = Settled {
        protocol,
        compat,
        sums,
        compression,
    };
    let command = Command::new(letters);
    let mut walk = Walk {
        command: &command,
        settled,
        bases,
        lists: Lists::default(),
        has_stats: true,
    };
    let counts = walk.sender(&mut input, false);
    // The goodbye of the receiving side is recorded too.
    assert!(
        counts.done >= done_counts(protocol, walk.lists.count).1,
        "{counts:?}"
    );
    header
}

#[test]
fn batch_files_are_decoded() {
    let new = batch("batch32.batch", "-lHogDtpr", None);
    assert!(
        new.protocol == 32
            && new.options.has(BatchOptions::HARD_LINKS)
            && !new.options.has(BatchOptions::COMPRESS)
    );
    let old = batch("batch29-z.batch", "-logDtprz", Some(captures::basis));
    assert!(
        old.protocol == 29
            && old.options.has(BatchOptions::COMPRESS)
            && !old.options.has(BatchOptions::CHECKSUM)
    );
}

#[test]
fn every_capture_is_decoded() {
    let dir = format!("{}/tests/captures", env!("CARGO_MANIFEST_DIR"));
    let text = include_str!("conversation.rs");
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let stem = name.split('.').next().unwrap();
        assert!(
            name == "INDEX.md" || text.contains(&format!("\"{stem}")),
            "{name} has no test"
        );
    }
}

/// How often each side writes [`Ndx::Done`] in a connection with this number of lists: the
/// receiver's side and the sender. The last one of the receiver's side is its goodbye.
fn done_counts(protocol: u8, lists: u32) -> (u32, u32) {
    match protocol {
        31.. => (lists + 4, lists + 3),
        29 | 30 => (lists + 3, lists + 2),
        _ => (3, 2),
    }
}

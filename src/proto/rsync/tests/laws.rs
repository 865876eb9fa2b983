//! Properties of lists and token streams for arbitrary values and bytes.

use super::super::file_list::{
    FileEntry, HardLink, IdLists, ListDecoder, ListEncoder, ListItem, ListOptions,
};
use super::super::handshake::CompatFlags;
use super::super::limits::LITERAL_MAX_BYTES;
use super::super::tokens::{Token, TokenDecoder, TokenEncoder, skip};
use crate::flist::Kind;
use crate::options::Compression;
use proptest::collection::vec;
use proptest::prelude::*;

const METHODS: [Compression; 5] = [
    Compression::No,
    Compression::Lz4,
    Compression::Zstd,
    Compression::Zlibx,
    Compression::Zlib,
];

/// A connection that transfers everything that its version has.
fn options() -> impl Strategy<Value = ListOptions> {
    (27u8..33, any::<[bool; 12]>(), 0u32..512).prop_map(|(protocol, switches, flags)| {
        let [
            owners,
            groups,
            links,
            devices,
            specials,
            hard_links,
            atimes,
            crtimes,
            acls,
            xattrs,
            numeric_ids,
            sums,
        ] = switches;
        ListOptions {
            protocol,
            compat: CompatFlags(if protocol >= 30 { flags } else { 0 }),
            owners,
            groups,
            links,
            devices,
            specials,
            hard_links,
            // At protocol 27, the flag of an equal access time does not fit.
            atimes: atimes && protocol >= 28,
            crtimes: crtimes && protocol >= 30,
            acls: acls && protocol >= 30,
            xattrs: xattrs && protocol >= 30,
            numeric_ids,
            relative: false,
            digest_len_bytes: if sums { 16 } else { 0 },
            missing_args: true,
        }
    })
}

fn entry() -> impl Strategy<Value = FileEntry> {
    let modes = vec![
        0, 0o100_644, 0o100_755, 0o040_755, 0o120_777, 0o020_600, 0o060_600, 0o010_644, 0o140_755,
    ];
    let path = prop_oneof!["[a-c]{1,3}(/[a-c]{1,3}){0,3}", "[x]{250,600}"];
    let numbers = (
        0i64..1 << 40,
        -5_000_000_000i64..5_000_000_000,
        0u32..1_000_000_000,
        0u32..3,
        0u32..3,
    );
    (
        path,
        prop::sample::select(modes),
        numbers,
        any::<(u32, u8, bool, bool)>(),
        0usize..4,
    )
        .prop_map(
            |(
                path,
                mode,
                (size, mtime, nanos, uid, gid),
                (minor, major, is_top_dir, has_content),
                link,
            )| FileEntry {
                size,
                mtime,
                mtime_nanos: nanos,
                atime: mtime + 1,
                crtime: mtime - i64::from(uid),
                uid,
                gid,
                user: (uid > 0).then(|| format!("user{uid}").into_bytes()),
                group: (gid > 0).then(|| format!("group{gid}").into_bytes()),
                rdev: (major.into(), minor & 0xfffff),
                target: b"target".to_vec(),
                digest: vec![7; 16],
                hard_link: match link {
                    0 => HardLink::First,
                    1 => HardLink::Inode {
                        dev: i64::from(gid),
                        inode: size,
                    },
                    2 => HardLink::Member(0),
                    _ => HardLink::None,
                },
                is_top_dir,
                has_content,
                ..FileEntry::new(path, mode)
            },
        )
}

/// Removes what a connection does not transfer, so that the rest must be equal.
fn transferred(
    mut entry: FileEntry,
    options: &ListOptions,
    first_of_group: Option<(i32, &FileEntry)>,
) -> FileEntry {
    let (mut kind, protocol) = (entry.kind(), options.protocol);
    let is_new = protocol >= 30;
    let can_link = options.hard_links && kind != Kind::Dir;
    entry.hard_link = match entry.hard_link {
        HardLink::First if is_new && can_link => HardLink::First,
        HardLink::Member(_) if is_new && can_link => {
            first_of_group.map_or(HardLink::None, |(at, _)| HardLink::Member(at))
        }
        HardLink::Inode { dev, inode } if matches!(protocol, 28 | 29) && can_link => {
            HardLink::Inode { dev, inode }
        }
        HardLink::Inode { dev, inode } if protocol == 27 && can_link && kind == Kind::File => {
            HardLink::Inode { dev, inode }
        }
        _ if protocol == 27 && can_link && kind == Kind::File => {
            HardLink::Inode { dev: 0, inode: 0 }
        }
        _ => HardLink::None,
    };
    if let (HardLink::Member(_), Some((_, first))) = (entry.hard_link, first_of_group) {
        entry = FileEntry {
            path: entry.path,
            hard_link: entry.hard_link,
            ..first.clone()
        };
        kind = entry.kind();
    }
    if !is_new {
        entry.mtime = i64::from(entry.mtime as u32);
        entry.has_content = true;
    }
    let keep = |is_kept: bool, number: u32| if is_kept { number } else { 0 };
    entry.mtime_nanos = keep(protocol >= 31, entry.mtime_nanos);
    entry.uid = keep(options.owners, entry.uid);
    entry.gid = keep(options.groups, entry.gid);
    entry.atime = if options.atimes && kind != Kind::Dir {
        entry.atime
    } else {
        0
    };
    entry.crtime = if options.crtimes { entry.crtime } else { 0 };
    if kind != Kind::Device || !options.devices {
        entry.rdev = (0, 0);
    }
    if kind != Kind::Symlink || !options.links {
        entry.target.clear();
    }
    if kind != Kind::File || options.digest_len_bytes == 0 {
        entry.digest.clear();
    }
    if kind != Kind::Dir {
        (entry.is_top_dir, entry.has_content) = (false, true);
    }
    (entry.user, entry.group) = (None, None);
    entry
}

proptest! {
    #[test]
    fn lists_are_decoded_as_they_were_encoded(
        options in options(), lists in vec(vec(entry(), 0..12), 1..4), io_error in 0i32..8, name in "[a-z]{1,9}",
    ) {
        let (mut encoder, mut decoder, mut out) = (ListEncoder::new(options), ListDecoder::new(options), Vec::new());
        let has_lists = !options.compat.has(CompatFlags::INC_RECURSE) && !options.numeric_ids;
        let mut ids = IdLists::default();
        if has_lists && (options.owners || options.acls) {
            ids.users.push((7, name.clone().into_bytes()));
        }
        let mut wanted: Vec<Vec<FileEntry>> = Vec::new();
        for list in lists {
            let (mut first, mut kept): (Option<(i32, FileEntry)>, Vec<FileEntry>) = (None, Vec::new());
            for entry in list {
                let index = encoder.next_index();
                let names = (entry.user.clone(), entry.group.clone());
                let entry = transferred(entry, &options, first.as_ref().map(|(at, entry)| (*at, entry)));
                if entry.hard_link == HardLink::First {
                    first = Some((index, entry.clone()));
                }
                let (user, group) = if matches!(entry.hard_link, HardLink::Member(_)) { (None, None) } else { names };
                encoder.entry(&FileEntry { user, group, ..entry.clone() }, &mut out);
                kept.push(entry);
            }
            encoder.end(io_error, &ids, &mut out);
            wanted.push(kept);
        }
        let mut input = &out[..];
        for list in wanted {
            for entry in list {
                match decoder.next(&mut input).unwrap() {
                    ListItem::Entry(decoded) => {
                        let FileEntry { access_acl, default_acl, xattrs, .. } = (*decoded).clone();
                        prop_assert_eq!(access_acl.is_some(), options.acls && entry.kind() != Kind::Symlink);
                        prop_assert_eq!((default_acl.is_some(), xattrs.is_some()), (options.acls && entry.is_dir(), options.xattrs));
                        let decoded = FileEntry { access_acl: None, default_acl: None, xattrs: None, user: None, group: None, ..*decoded };
                        prop_assert_eq!(decoded, entry);
                    }
                    end => panic!("{end:?}"),
                }
            }
            let has_error = options.protocol != 30 || options.compat.0 & (CompatFlags::SAFE_FLIST.0 | CompatFlags::VARINT_FLIST_FLAGS.0) != 0;
            let io_error = if has_error { io_error } else { 0 };
            prop_assert_eq!(decoder.next(&mut input).unwrap(), ListItem::End { io_error, ids: ids.clone() });
        }
        prop_assert!(input.is_empty());
    }

    #[test]
    fn changed_lists_are_decoded_or_rejected(
        options in options(), list in vec(entry(), 1..6), at: prop::sample::Index, byte: u8,
    ) {
        let (mut encoder, mut out) = (ListEncoder::new(options), Vec::new());
        list.iter().for_each(|entry| encoder.entry(&transferred(entry.clone(), &options, None), &mut out));
        encoder.end(0, &IdLists::default(), &mut out);
        let at = at.index(out.len());
        out[at] = byte;
        let (mut decoder, mut input) = (ListDecoder::new(options), &out[..]);
        while decoder.next(&mut input).is_ok() {}
    }
}

/// The parts of a file: literal data, or a block of the basis.
#[derive(Debug, Clone)]
enum Part {
    Literal(Vec<u8>),
    Block(u32),
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let noise = |len| vec(any::<u8>(), 1..len).prop_map(Part::Literal);
    let text = (1usize..200_000, 0u8..4)
        .prop_map(|(len, step)| Part::Literal((0..len).map(|n| (n as u8 / 3) & step).collect()));
    vec(
        prop_oneof![
            noise(300),
            text,
            (0u32..300).prop_map(Part::Block),
            (0u32..3).prop_map(Part::Block)
        ],
        0..12,
    )
}

/// The content of a block of the basis; some are longer than a piece of history.
fn block(number: u32) -> Vec<u8> {
    let len = if number.is_multiple_of(7) {
        131_072
    } else {
        700
    };
    (0..len)
        .map(|n: u32| (n.wrapping_mul(number + 3) >> 4) as u8)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn tokens_are_decoded_as_they_were_encoded(files in vec(parts(), 1..4), method in 0usize..5, protocol in 27u8..33, level in 1i32..10) {
        let method = METHODS[method];
        let mut encoder = TokenEncoder::new(method, Some(level), protocol).unwrap();
        let mut decoder = TokenDecoder::new(method, protocol).unwrap();
        let mut out = Vec::new();
        for file in &files {
            for part in file {
                match part {
                    Part::Literal(data) => encoder.literal(data, &mut out).unwrap(),
                    Part::Block(number) => encoder.block(*number, &block(*number), &mut out).unwrap(),
                }
            }
            encoder.end(&mut out).unwrap();
        }
        let mut skipped = &out[..];
        for file in &files {
            let has_blocks = file.iter().any(|part| matches!(part, Part::Block(_)));
            prop_assert_eq!(skip(&mut skipped, method != Compression::No).unwrap(), has_blocks);
        }
        prop_assert!(skipped.is_empty());
        // What an end defers is decoded by another decoder for each file.
        let (mut input, mut compressed) = (&out[..], &out[..]);
        let mut deferring = TokenDecoder::new(method, protocol).unwrap().deferring();
        for file in &files {
            let wanted: Vec<u8> = file.iter().flat_map(|part| match part {
                Part::Literal(data) => data.clone(),
                Part::Block(number) => block(*number),
            }).collect();
            let blocks = file.iter().filter(|part| matches!(part, Part::Block(_))).count();
            let (mut content, mut seen_blocks) = (Vec::new(), 0);
            loop {
                match decoder.next(&mut input).unwrap() {
                    Token::Literal(data) => {
                        prop_assert!(data.len() <= LITERAL_MAX_BYTES);
                        content.extend(data);
                    }
                    Token::Block(number) => {
                        seen_blocks += 1;
                        decoder.see_block(&block(number)).unwrap();
                        content.extend(block(number));
                    }
                    Token::End => break,
                }
            }
            prop_assert_eq!(seen_blocks, blocks);
            prop_assert!(content == wanted, "{:?}", method);
            let mut decoder = TokenDecoder::new(method, protocol).unwrap();
            let mut content = Vec::new();
            loop {
                match deferring.next(&mut compressed).unwrap() {
                    Token::Literal(packed) if method == Compression::Zlib => {
                        decoder.unpack(packed);
                        let pieces = std::iter::repeat_with(|| decoder.unpacked().unwrap());
                        content.extend(pieces.take_while(|piece| !piece.is_empty()).flatten());
                    }
                    Token::Literal(data) => content.extend(data),
                    Token::Block(number) => {
                        decoder.see_block(&block(number)).unwrap();
                        content.extend(block(number));
                    }
                    Token::End => break,
                }
            }
            prop_assert!(content == wanted, "{:?}", method);
        }
        prop_assert!(input.is_empty());
    }

    #[test]
    fn arbitrary_tokens_are_decoded_or_rejected(bytes in vec(any::<u8>(), 0..300), method in 0usize..5) {
        let mut decoder = TokenDecoder::new(METHODS[method], 32).unwrap();
        let framed = [&[0x40, bytes.len().min(255) as u8][..], &bytes].concat();
        for mut input in [&bytes[..], &framed] {
            // Each token uses input or is one of a run, which has a bounded length.
            for _ in 0..10_000 {
                if decoder.next(&mut input).is_err() {
                    break;
                }
            }
        }
    }
}

#[test]
fn blocks_are_written_in_runs() {
    let mut encoder = TokenEncoder::new(Compression::Zlibx, None, 32).unwrap();
    let mut out = Vec::new();
    for number in [0, 1, 2, 65, 200, 201, 150] {
        encoder.block(number, b"", &mut out).unwrap();
    }
    encoder.end(&mut out).unwrap();
    assert_eq!(
        out,
        [
            0xc0,
            2,
            0,
            0x80 | 63,
            0x21,
            200,
            0,
            0,
            0,
            1,
            0,
            0x20,
            150,
            0,
            0,
            0,
            0
        ]
    );
    let mut longest = Vec::new();
    let mut encoder = TokenEncoder::new(Compression::Lz4, None, 32).unwrap();
    (0..65_537).for_each(|number| encoder.block(number, b"", &mut longest).unwrap());
    encoder.end(&mut longest).unwrap();
    assert_eq!(longest, [0xc0, 0xff, 0xff, 0x81, 0]);
}

#[test]
fn an_lz4_block_that_grows_beyond_the_limit_is_rejected() {
    let packed = lz4_flex::block::compress(&vec![7; LITERAL_MAX_BYTES + 1]);
    let framed = [
        &[0x40 | (packed.len() >> 8) as u8, packed.len() as u8][..],
        &packed,
    ]
    .concat();
    let mut decoder = TokenDecoder::new(Compression::Lz4, 32).unwrap();
    assert!(decoder.next(&mut &framed[..]).is_err());
}

#[test]
fn modes_of_no_file_are_rejected() {
    let options = ListOptions {
        protocol: 32,
        compat: CompatFlags::VARINT_FLIST_FLAGS,
        ..ListOptions::default()
    };
    for (mode, is_valid) in [
        (0o107_777, true),
        (0, false),
        (0o644, false),
        (0o300_644, false),
    ] {
        let mut out = Vec::new();
        ListEncoder::new(options).entry(&FileEntry::new("a", mode), &mut out);
        assert_eq!(
            ListDecoder::new(options).next(&mut &out[..]).is_ok(),
            is_valid,
            "{mode:o}"
        );
    }
}

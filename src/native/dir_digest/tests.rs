//! Tests: if two digests are equal, comparing the entries would find nothing to do.

use super::*;
use crate::digest::PLAIN_LEN_BYTES;
use crate::flist::entry::{Inode, Stat, Time};
use crate::flist::join::{Join, Pair};
use crate::native::shortcuts::Shortcuts;
use crate::options::{AltDest, AltKind, CacheChoice, Recurse};
use crate::plan::alternate::{Use, may_use};
use crate::plan::idmap::{IdMapper, IdNames, Privileges};
use crate::plan::{Action, Policy, Subject, decide};
use crate::report::event::Wants;
use proptest::prelude::*;
use std::sync::Arc;

/// How many users and groups there are.
const IDS: u32 = 4;
const NAMES: [&[u8]; 3] = [b"a", b"b", b"root"];

/// The users and groups of a machine. Some names lead to another id than the one that has the name.
fn machine() -> impl Strategy<Value = Ids> {
    let name = prop_oneof![1 => Just(None), 3 => (0..NAMES.len()).prop_map(Some)];
    let id = prop_oneof![8 => Just(None), 1 => (0..IDS).prop_map(Some)];
    let of_class = move || {
        (
            prop::collection::vec(name.clone(), IDS as usize),
            prop::collection::vec(id.clone(), NAMES.len()),
        )
    };
    (of_class(), of_class()).prop_map(|classes| {
        let classes = [classes.0, classes.1];
        let name = |at: usize| Name::from(NAMES[at]);
        let names = classes.clone().map(|(names, _)| {
            (0..)
                .zip(names)
                .map(|(id, at)| (id, at.map(name)))
                .collect()
        });
        let ids = classes.map(|(names, ids)| {
            let known = |at| (0..IDS).find(|&id| names[id as usize] == Some(at));
            (0..NAMES.len())
                .map(|at| (name(at), ids[at].or_else(|| known(at))))
                .collect()
        });
        Ids::knowing(names, ids)
    })
}

fn id_maps() -> impl Strategy<Value = Vec<IdMap>> {
    let pattern = prop::sample::select(vec!["a", "b", "root", "", "*", "[ab]"]);
    let from = prop_oneof![
        (0..IDS, 0..IDS).prop_map(|(low, high)| IdFrom::Range(low, high)),
        pattern.prop_map(|pattern| IdFrom::Name(pattern.into())),
    ];
    let to = prop_oneof![
        (0..IDS).prop_map(IdTo::Id),
        prop::sample::select(NAMES.to_vec()).prop_map(|name| IdTo::Name(name.into())),
    ];
    let map = (from, to).prop_map(|(from, to)| IdMap { from, to });
    prop_oneof![Just(Vec::new()), prop::collection::vec(map, 1..4)]
}

/// The names of both machines.
struct BothIds<'a> {
    source: &'a Ids,
    dest: &'a Ids,
    /// The sender has `--numeric-ids` and sends no names.
    is_nameless: bool,
}

impl IdNames for BothIds<'_> {
    fn source_name(&self, class: IdClass, id: u32) -> Option<Vec<u8>> {
        self.source
            .name(class, id)
            .filter(|_| !self.is_nameless)
            .map(|name| name.to_vec())
    }

    fn name_of_zero(&self, class: IdClass) -> Option<Vec<u8>> {
        self.source_name(class, 0)
    }

    fn dest_id(&self, class: IdClass, name: &[u8]) -> Option<u32> {
        self.dest.id(class, name)
    }
}

fn entry() -> impl Strategy<Value = Entry> {
    const MODES: [u32; 10] = [
        0o104755, 0o100644, 0o100755, 0o100600, 0o100000, 0o040755, 0o120777, 0o060600, 0o010644,
        0o140644,
    ];
    let numbers = (0..IDS, 0..IDS, 0..2i64, 0..2u32, 1..3u64, 0..2u64);
    (0..MODES.len(), numbers, 0..3u8, any::<[bool; 2]>()).prop_map(
        |(mode, (uid, gid, secs, nanos, len_bytes, rdev), target, [has_xattr, has_acl])| {
            let mtime = Time { secs, nanos };
            let stat = Stat {
                mode: MODES[mode],
                uid,
                gid,
                mtime,
                len_bytes,
                nlink: 1,
                ..Stat::default()
            };
            let mut entry = Entry::from_stat(&stat);
            let extra = entry.extra_mut();
            extra.rdev = rdev;
            extra.target = Some(vec![b'a' + target].into());
            let name = if target == 0 {
                &b"security.x"[..]
            } else {
                b"user.x"
            };
            extra.xattrs = has_xattr.then(|| Arc::new(vec![(name.into(), b"1"[..].into())]));
            extra.acl = (has_acl && target == 2).then(|| vec![1, 2].into());
            entry
        },
    )
}

/// An entry, and the content that it has if it is a file.
type FileEntry = (Entry, u8);

/// Two entries that differ in at most two attributes, so that their digests are often equal.
fn pair() -> impl Strategy<Value = (FileEntry, FileEntry)> {
    let inode = || {
        prop::bool::weighted(0.05).prop_map(|is_linked| {
            is_linked.then(|| {
                Box::new(Inode {
                    dev: 1,
                    ino: 1,
                    nlink: 2,
                })
            })
        })
    };
    (
        entry(),
        entry(),
        0..9,
        0..9,
        0..12u32,
        inode(),
        inode(),
        (0..3u8, 0..3u8),
    )
        .prop_map(
            |(
                mut source,
                other,
                first,
                second,
                bit,
                of_source,
                of_dest,
                (content, other_content),
            )| {
                let mut dest = source.clone();
                let mut dest_content = content;
                for attribute in [first, second] {
                    match attribute {
                        0 => dest.mode = other.mode,
                        1 => dest.uid = other.uid,
                        2 => dest.gid = other.gid,
                        3 => dest.mtime = other.mtime,
                        4 => dest.len_bytes = other.len_bytes,
                        5 => dest.extra.clone_from(&other.extra),
                        6 => dest.mode ^= 1u32 << bit,
                        7 => dest_content = other_content,
                        _ => {}
                    }
                }
                (source.inode, dest.inode) = (of_source, of_dest);
                ((source, content), (dest, dest_content))
            },
        )
}

fn push(list: &mut DirList, name: &[u8], (entry, content): FileEntry) {
    list.push_entry(name, entry);
    // The third content cannot be read.
    if content < 2 {
        list.set_plain_digest(list.len() - 1, &[content + 1; PLAIN_LEN_BYTES]);
    }
}

/// Two listings: in most, all names are on both sides.
fn listings() -> impl Strategy<Value = (DirList, DirList)> {
    let side =
        prop_oneof![20 => Just((true, true)), 1 => Just((true, false)), 1 => Just((false, true))];
    prop::collection::vec((pair(), side), 1..4).prop_map(|entries| {
        let mut source = DirList::default();
        let mut dest = DirList::default();
        source.hold_digests();
        dest.hold_digests();
        for (at, ((source_entry, dest_entry), (in_source, in_dest))) in
            entries.into_iter().enumerate()
        {
            let name = [b'a' + at as u8];
            if in_source {
                push(&mut source, &name, source_entry);
            }
            if in_dest {
                push(&mut dest, &name, dest_entry);
            }
        }
        source.sort();
        dest.sort();
        (source, dest)
    })
}

fn options() -> impl Strategy<Value = Options> {
    let rare = || prop::bool::weighted(0.05);
    let kinds = prop::sample::select(vec![AltKind::Compare, AltKind::Copy, AltKind::Link]);
    let alternates = prop::option::weighted(0.1, kinds);
    let kept = || prop::bool::weighted(0.9);
    let kept = (kept(), kept(), kept());
    let modes = |window_secs| {
        [
            CheckMode::Quick { window_secs },
            CheckMode::SizeOnly,
            CheckMode::Digest,
            CheckMode::Quick { window_secs },
        ]
    };
    let check = (-1..1i64)
        .prop_flat_map(move |window| (Just(window), prop::sample::select(modes(window).to_vec())));
    let all = (
        any::<[bool; 12]>(),
        kept,
        check,
        rare(),
        rare(),
        alternates,
        (id_maps(), id_maps()),
        prop::option::weighted(0.7, Just(CacheChoice::default())),
    );
    all.prop_map(
        |(
            on,
            kept,
            (window_secs, mode),
            atimes,
            keep_dirlinks,
            alternates,
            (usermap, groupmap),
            cache,
        )| {
            let mut options = Options::default();
            options.select.recurse = Recurse::Full;
            let preserve = &mut options.preserve;
            (preserve.links, preserve.devices, preserve.specials) = kept;
            [
                preserve.perms,
                preserve.executability,
                preserve.owner,
                preserve.group,
                preserve.times,
                preserve.omit_dir_times,
                preserve.omit_link_times,
                preserve.acls,
                preserve.numeric_ids,
                preserve.hard_links,
                _,
                _,
            ] = on;
            preserve.xattrs = u8::from(on[10]);
            preserve.strips_privileges = on[11];
            (preserve.usermap, preserve.groupmap) = (usermap, groupmap);
            // No digests are used under these options.
            (preserve.atimes, preserve.keep_dirlinks) = (atimes, keep_dirlinks);
            options.delta.alt_dest = alternates.map(|kind| AltDest {
                by_clone: false,
                kind,
                dirs: vec![b"../alt".to_vec()],
                shown_as_given: true,
            });
            options.check.window_secs = window_secs;
            options.check.mode = mode;
            options.checksum_cache = cache;
            options
        },
    )
}

/// Options of a sender, and those of a receiver, which may have others: `--remote-option`.
fn both_options() -> impl Strategy<Value = (Options, Options)> {
    (options(), options(), 0..16u8).prop_map(|(options, other, which)| {
        let mut receiver = options.clone();
        let to = &mut receiver.preserve;
        let from = other.preserve.clone();
        match which {
            0 => (to.usermap, to.groupmap) = (from.usermap, from.groupmap),
            1 => to.numeric_ids = from.numeric_ids,
            2 => (to.perms, to.executability) = (from.perms, from.executability),
            3 => to.times = from.times,
            4 => {
                (to.omit_dir_times, to.omit_link_times) =
                    (from.omit_dir_times, from.omit_link_times)
            }
            5 => (to.owner, to.group) = (from.owner, from.group),
            6 => (to.acls, to.xattrs) = (from.acls, from.xattrs),
            7 => receiver.check = other.check,
            8 => receiver.delta.alt_dest = other.delta.alt_dest,
            9 => receiver = other,
            _ => {}
        }
        (options, receiver)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16_384))]

    /// The law of the shortcut: if two digests are equal, comparing the entries would find nothing to do.
    #[test]
    fn equal_digests_imply_that_every_decision_is_keep(
        ((source, mut dest), follows) in (listings(), any::<bool>()),
        (options, dest_options) in both_options(),
        (source_ids, dest_ids, same_ids) in (machine(), machine(), any::<bool>()),
        owners in any::<bool>(),
    ) {
        let source_ids = if same_ids { &dest_ids } else { &source_ids };
        let names = BothIds { source: source_ids, dest: &dest_ids, is_nameless: options.preserve.numeric_ids };
        let (mapper, _) = IdMapper::new(&dest_options.preserve, &names);
        let privileges = Privileges { is_super: owners, groups: &Vec::from_iter(0..IDS) };
        let mapped = |entry: &Entry| {
            let (uid, gid) = mapper.wanted(entry.uid, entry.gid, privileges, &names);
            let mut entry = entry.clone();
            (entry.uid, entry.gid) = (uid.unwrap_or(entry.uid), gid.unwrap_or(entry.gid));
            if dest_options.preserve.strips_privileges {
                entry.strip_privileges();
            }
            entry
        };
        // Otherwise hardly any mapped ids would be equal.
        for entry in dest.entries.iter_mut().filter(|_| follows) {
            *entry = mapped(entry);
        }
        let digest = |list: &DirList, is_sender| {
            let (options, ids) = if is_sender { (&options, source_ids) } else { (&dest_options, &dest_ids) };
            let digester = Digester { key: [7; 16], options, is_sender, is_super: owners, ids };
            digester.digest(&RelPath::root(), list, &|_| true)
        };
        let one = digest(&source, true);
        let other = digest(&dest, false);
        if one.is_none() || one != other {
            return Ok(());
        }
        // An ordinary user cannot change owners, so the receiver does not compare them.
        let preserve = Preserve { owner: dest_options.preserve.owner && owners, ..dest_options.preserve.clone() };
        let policy = Policy {
            check: dest_options.check,
            preserve,
            append: false,
            max_size_bytes: None,
            min_size_bytes: None,
            list_only: false,
            may_make_devices: owners,
            same_acls: |one, other| one == other,
        };
        let mut join = Join::default();
        while let Some(pair) = join.next(&source, &dest, |at| dest.entries[at].is_dir()) {
            let Pair::Both(at, dest_at) = pair else {
                return Err(TestCaseError::fail(format!("{pair:?} in {source:?} and {dest:?}")));
            };
            let content = source.plain_digest(&source.entries[at]);
            let dest_content = dest.plain_digest(&dest.entries[dest_at]);
            let source = &mapped(&source.entries[at]);
            let dest = &dest.entries[dest_at];
            prop_assert!(!options.preserve.hard_links || source.inode.is_none(), "{source:?} has other names");
            let has_same_content = content.is_some() && content == dest_content;
            let asked = decide(source, Some(dest), None, Subject::Entry, &policy);
            let decision = if asked.action == Action::AskDigest {
                decide(source, Some(dest), Some(has_same_content), Subject::Entry, &policy)
            } else {
                asked
            };
            prop_assert!(decision.action == Action::Keep, "{decision:?} for {source:?} and {dest:?}");
            let alternates = dest_options.delta.alt_dest.as_ref().map(|alt| alt.kind);
            let used = alternates.map(|kind| may_use(source, Some(dest), decision, kind, &policy));
            prop_assert!(matches!(used, None | Some(Use::Nothing)), "{used:?} for {source:?} and {dest:?}");
        }
    }

    /// The options for which the digest does not cover what is compared use no digests.
    #[test]
    fn options_beyond_the_digest_use_no_digests(options in options()) {
        let preserve = &options.preserve;
        let alternates = options.delta.alt_dest.as_ref().map(|alt| alt.kind);
        let is_beyond = preserve.atimes || preserve.keep_dirlinks
            || matches!(alternates, Some(AltKind::Compare | AltKind::Link));
        let is_compared = Shortcuts::for_run(&options, Wants::default()).compare;
        let lacks_contents = options.check.mode == CheckMode::Digest && options.checksum_cache.is_none();
        prop_assert_eq!(is_compared, !is_beyond && !lacks_contents);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40_000))]

    #[test]
    fn equal_texts_of_ids_imply_that_one_is_mapped_to_the_other(
        maps in id_maps(),
        other_maps in id_maps(),
        // Whether the receiver has the sender's maps, and `--numeric-ids` at each end: see `--remote-option`.
        (same_maps, numeric_ids) in (prop::bool::weighted(0.7), any::<[bool; 2]>()),
        (source_ids, dest_ids) in (machine(), machine()),
        (id, dest_id) in (0..IDS, 0..IDS),
    ) {
        let options_of = |maps: &[IdMap], numeric_ids| {
            let preserve = Preserve { owner: true, numeric_ids, usermap: maps.to_vec(), ..Preserve::default() };
            Options { preserve, ..Options::default() }
        };
        let options = options_of(&maps, numeric_ids[0]);
        let dest_options = options_of(if same_maps { &maps } else { &other_maps }, numeric_ids[1]);
        let text = |options, ids, is_sender, id| {
            let mut text = Vec::new();
            let digester = Digester { key: [7; 16], options, is_sender, is_super: true, ids };
            digester.put_maps(&mut text, IdClass::User);
            (text, digester.id_text(IdClass::User, id))
        };
        if text(&options, &source_ids, true, id) == text(&dest_options, &dest_ids, false, dest_id) {
            let names = BothIds { source: &source_ids, dest: &dest_ids, is_nameless: numeric_ids[0] };
            let (mapper, _) = IdMapper::new(&dest_options.preserve, &names);
            prop_assert_eq!(mapper.map(IdClass::User, id, &names), dest_id);
        }
    }
}

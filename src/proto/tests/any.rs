//! Proptest strategies for valid messages of every kind, with all optional parts.

use crate::exit::Exit;
use crate::filter::{Cvs, FoundRule, Merge, MergeFormat, Parsed, Rule, RulePlace, Side, Sides};
use crate::flist::entry::Stat;
use crate::flist::{DirList, Entry, Extra, Inode, Kind, Time, Xattrs, order};
use crate::path::RelPath;
use crate::plan::explained::{DecidedFact, DecidedOutcome, Explained, Fact, Fate};
use crate::plan::planned::{
    AttributeState, EntryState, HardLinks, NameSet, PlannedAct, PlannedAction, PlannedBackup,
    PlannedTwin, SharedFile, TwinUse,
};
use crate::plan::{Changes, InTheWay, Reason};
use crate::proto::limits::{
    ADDRESSES_MAX, COUNT_MAX, FILE_MAX_BYTES, GRANT_MAX_BYTES, ROLES, TOTAL_MAX_BYTES, UMASK_MAX,
};
use crate::proto::{
    Basis, Class, ContentDigest, DestDirState, DirListing, FileId, IdName, Lane, Meeting, Message,
    PlanPiece, Roots, Setup, SubdirFlags,
};
use crate::report::Tally;
use crate::report::event::{Event, Item, Problem, ReusedBy, Update, Wants, Weight};
use crate::report::progress::{EntryCounts, ListTotal, SourceTotals};
use crate::report::tally::Kinds;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use std::sync::Arc;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

/// Names with common prefixes, and names of arbitrary bytes.
fn name() -> impl Strategy<Value = Vec<u8>> {
    let likely = "[ab]{1,4}([-.x][0-9]{0,3})?".prop_map(String::into_bytes);
    let any = vec(
        select((1..=u8::MAX).filter(|b| *b != b'/').collect::<Vec<u8>>()),
        1..=255,
    );
    prop_oneof![8 => likely, 1 => any]
        .prop_filter("no element", |name| name != b"." && name != b"..")
}

fn path() -> impl Strategy<Value = RelPath> {
    vec(name(), 0..4)
        .prop_map(|names| RelPath::parse(&names.join(&b'/')).expect("names make a path"))
}

fn time() -> impl Strategy<Value = Time> {
    let secs = prop_oneof![any::<i64>(), 1_700_000_000i64..1_700_000_100, Just(0)];
    let nanos = prop_oneof![0u32..1_000_000_000, Just(0)];
    (secs, nanos).prop_map(|(secs, nanos)| Time { secs, nanos })
}

fn xattrs() -> impl Strategy<Value = Arc<Xattrs>> {
    let name = vec(1..=u8::MAX, 1..20);
    btree_map(name, bytes(), 0..4).prop_map(|all| {
        Arc::new(
            all.into_iter()
                .map(|(name, value)| (name.into_boxed_slice(), value.into_boxed_slice()))
                .collect(),
        )
    })
}

/// A digest that the protocol can transfer.
fn digest() -> impl Strategy<Value = ContentDigest> {
    any::<[u8; 16]>().prop_map(|digest| crate::digest::padded(&digest))
}

fn extra() -> impl Strategy<Value = Extra> {
    let boxed = || option::of(bytes().prop_map(Vec::into_boxed_slice));
    // Only a few different sets of attributes, so that neighbours share theirs.
    let sets = vec![
        Arc::new(vec![(b"user.a"[..].into(), b"1"[..].into())]),
        Arc::new(Vec::new()),
    ];
    let xattrs = option::of(prop_oneof![select(sets), xattrs()]);
    let numbers = (any::<u64>(), option::of(time()));
    (
        boxed(),
        boxed(),
        boxed(),
        numbers,
        xattrs,
        option::of(digest()),
        any::<bool>(),
    )
        .prop_map(
            |(target, acl, default_acl, (rdev, atime), xattrs, digest, is_mount_point)| Extra {
                ctime: None,
                target,
                rdev,
                atime,
                xattrs,
                acl,
                default_acl,
                digest,
                is_mount_point,
                source_ids: None,
                source_target: None,
                takes_content: false,
                has_abbreviated: false,
                is_unsettled: false,
            },
        )
}

fn entry() -> impl Strategy<Value = Entry> {
    let kinds = vec![
        0o100000, 0o100000, 0o040000, 0o120000, 0o020000, 0o060000, 0o010000, 0o140000,
    ];
    let modes = prop_oneof![0u32..=0o7777, Just(0o644)];
    let ids = || prop_oneof![Just(0), Just(1000), any::<u32>()];
    let lens = prop_oneof![0u64..10, 0..=FILE_MAX_BYTES];
    let origin = prop_oneof![9 => Just(0), 1 => any::<u16>()];
    let inode =
        any::<(u64, u64, u32)>().prop_map(|(dev, ino, nlink)| Box::new(Inode { dev, ino, nlink }));
    let more = (option::weighted(0.3, inode), option::weighted(0.3, extra()));
    (
        select(kinds),
        modes,
        ids(),
        ids(),
        time(),
        lens,
        origin,
        more,
    )
        .prop_map(
            |(kind, mode, uid, gid, mtime, len_bytes, origin, (inode, extra))| {
                let stat = Stat {
                    mode: kind | mode,
                    uid,
                    gid,
                    mtime,
                    len_bytes,
                    ..Stat::default()
                };
                let mut entry = Entry::from_stat(&stat);
                (entry.origin, entry.inode) = (origin, inode);
                // An empty extra is the same as none.
                entry.extra = extra
                    .filter(|extra| *extra != Extra::default())
                    .map(Box::new);
                entry
            },
        )
}

/// A sorted list of at most `max` entries.
pub fn list(max: usize) -> impl Strategy<Value = DirList> {
    btree_map(name(), entry(), 0..=max).prop_map(|named| {
        let mut named: Vec<(Vec<u8>, Entry)> = named.into_iter().collect();
        named.sort_by(|a, b| order::compare((&a.0, a.1.is_dir()), (&b.0, b.1.is_dir())));
        let mut list = DirList::default();
        named
            .into_iter()
            .for_each(|(name, entry)| list.push_entry(&name, entry));
        list
    })
}

fn itself() -> impl Strategy<Value = DirList> {
    entry().prop_map(|mut entry| {
        entry.mode = 0o040000 | entry.mode & 0o7777;
        let mut list = DirList::default();
        list.push_entry(b".", entry);
        list
    })
}

/// A list with the flags of its subdirectories.
fn described(max: usize) -> impl Strategy<Value = (DirList, Vec<SubdirFlags>)> {
    (list(max), any::<u64>()).prop_map(|(list, random)| {
        let dirs = list.entries.iter().filter(|entry| entry.is_dir()).count();
        let bit = |at: usize| random >> (at % 64) & 1 == 1;
        let subs = (0..dirs)
            .map(|at| SubdirFlags {
                is_walked: bit(2 * at),
                is_implied: bit(2 * at + 1),
                ..SubdirFlags::default()
            })
            .collect();
        (list, subs)
    })
}

fn problem() -> impl Strategy<Value = Problem> {
    let weights = select(vec![
        Weight::SourceError,
        Weight::Failed,
        Weight::Vanished,
        Weight::Warning,
    ]);
    (bytes(), weights).prop_map(|(line, weight)| Problem {
        line,
        weight,
        is_of_peer: true,
    })
}

fn id_names() -> impl Strategy<Value = Vec<IdName>> {
    vec(
        (any::<bool>(), any::<u32>(), name()).prop_map(|(is_group, id, name)| IdName {
            is_group,
            id,
            name,
        }),
        0..3,
    )
}

fn tally() -> impl Strategy<Value = Box<Tally>> {
    let kinds = || {
        [0..=COUNT_MAX, 0..=9, 0..=9, 0..=300, 0..=9].prop_map(
            |[files, dirs, symlinks, devices, specials]| Kinds {
                files,
                dirs,
                symlinks,
                devices,
                specials,
            },
        )
    };
    let counts = proptest::array::uniform6(0..=COUNT_MAX);
    let bytes = proptest::array::uniform5(0..=TOTAL_MAX_BYTES);
    (kinds(), kinds(), kinds(), counts, bytes, any::<bool>()).prop_map(
        |(listed, created, deleted, counts, bytes, delete_limit_reached)| {
            Box::new(Tally {
                listed,
                created,
                absent: Kinds::default(),
                deleted,
                transferred: counts[0],
                unsent: 0,
                unsent_bytes: 0,
                total_bytes: bytes[0],
                transferred_bytes: bytes[1],
                literal_bytes: bytes[2],
                matched_bytes: bytes[3],
                name_bytes: bytes[4],
                list_generation_ms: counts[1],
                list_transfer_ms: counts[2],
                source_errors: counts[3],
                failed: 0,
                failed_at_peer: counts[4],
                vanished: counts[5],
                delete_limit_reached,
            })
        },
    )
}

fn sides() -> impl Strategy<Value = Sides> {
    select(vec![
        Sides::Unsaid,
        Sides::Sender,
        Sides::Receiver,
        Sides::Both,
    ])
}

fn parsed() -> impl Strategy<Value = Parsed> {
    let rule = (any::<[bool; 6]>(), sides(), bytes()).prop_map(|(flags, sides, pattern)| {
        let [include, absolute, negate, perishable, xattr, from_file] = flags;
        Parsed::Rule(Rule {
            include,
            sides,
            absolute,
            negate,
            perishable,
            xattr,
            pattern: pattern.into(),
            from_file,
        })
    });
    let formats = select(vec![
        MergeFormat::Rules,
        MergeFormat::Excludes,
        MergeFormat::Includes,
        MergeFormat::Cvs,
    ]);
    let merge = (
        any::<[bool; 6]>(),
        formats,
        sides(),
        bytes(),
        option::of(bytes()),
    )
        .prop_map(|(flags, format, sides, name, named_at)| {
            let [
                no_inherit,
                word_split,
                exclude_itself,
                absolute,
                perishable,
                xattr,
            ] = flags;
            Parsed::Merge(Box::new(Merge {
                name,
                per_dir: true,
                format,
                no_inherit,
                word_split,
                exclude_itself,
                sides,
                absolute,
                perishable,
                xattr,
                named_at,
            }))
        });
    let cvs = (any::<[bool; 5]>(), sides()).prop_map(|(flags, sides)| {
        let [include, absolute, negate, perishable, from_file] = flags;
        Parsed::Cvs(Cvs {
            include,
            sides,
            absolute,
            negate,
            perishable,
            from_file,
        })
    });
    prop_oneof![rule, merge, cvs, Just(Parsed::Clear), Just(Parsed::Nothing)]
}

fn setup() -> impl Strategy<Value = Setup> {
    let words = || vec(bytes(), 0..4);
    let wants = any::<[bool; 11]>().prop_map(|wants| {
        let [
            items,
            unchanged,
            after_transfer,
            progress,
            whole_list,
            begin,
            digest,
            paths,
            source_changes,
            reused,
            planned,
        ] = wants;
        Wants {
            items,
            unchanged,
            after_transfer,
            progress,
            whole_list,
            begin,
            digest,
            paths,
            source_changes,
            reused,
            planned,
        }
    });
    let texts = (
        option::of(bytes()),
        option::of(bytes()),
        option::of(words()),
    );
    (
        any::<[bool; 2]>(),
        words(),
        words(),
        vec(parsed(), 0..4),
        texts,
        words(),
        (wants, 0..=UMASK_MAX),
    )
        .prop_map(
            |(
                [server_sends, profile],
                words,
                remote_words,
                rules,
                (cvs_home, cvs_env, listed),
                operands,
                (wants, umask),
            )| Setup {
                server_sends,
                words,
                remote_words,
                rules: rules.into(),
                cvs_home,
                cvs_env,
                listed,
                operands,
                wants,
                profile,
                umask,
            },
        )
}

fn roots() -> impl Strategy<Value = Roots> {
    let single = option::of(path().prop_filter("a name", |path| !path.is_root()));
    let head = (
        0..=COUNT_MAX,
        single,
        option::of(any::<bool>()),
        option::of(itself()),
        bytes(),
    );
    let lists = (
        vec(path(), 0..3),
        vec(path(), 0..3),
        vec(problem(), 0..3),
        vec(bytes(), 0..3),
        id_names(),
    );
    (head, lists).prop_map(
        |(
            (found, single, lone_dir_is_bare, top, top_shown),
            (missing, whole, problems, notes, ids),
        )| Roots {
            found,
            single: single.map(|path| path.as_bytes().to_vec()),
            lone_dir_is_bare,
            top,
            top_shown,
            missing,
            whole,
            problems,
            notes,
            ids,
        },
    )
}

fn seen() -> impl Strategy<Value = DestDirState> {
    let dir = (option::of(any::<[u8; 12]>()), vec(any::<u32>(), 0..4));
    prop_oneof![
        Just(DestDirState::Absent),
        (0..=COUNT_MAX).prop_map(DestDirState::Large),
        dir.prop_map(|(digest, children)| DestDirState::Dir { digest, children })
    ]
}

/// A directory listing with at most `max` entries.
pub fn listing(max: usize) -> impl Strategy<Value = DirListing> {
    let itself = prop_oneof![Just(DirList::default()), itself()];
    let flags = any::<[bool; 4]>();
    let lists = (
        vec(problem(), 0..3),
        vec(bytes(), 0..3),
        id_names(),
        vec(bytes(), 0..3),
    );
    (
        any::<u64>(),
        path(),
        itself,
        described(max),
        flags,
        lists,
        option::of(name()),
    )
        .prop_map(
            |(
                id,
                path,
                itself,
                (list, subs),
                flags,
                (problems, notes, ids, shown),
                renamed_from,
            )| {
                let [may_delete, is_named, with_data, more] = flags;
                DirListing {
                    id,
                    path,
                    itself,
                    list: list.into(),
                    subs,
                    may_delete,
                    is_named,
                    with_data,
                    more,
                    problems,
                    notes,
                    ids,
                    shown,
                    renamed_from,
                }
            },
        )
}

fn file() -> impl Strategy<Value = FileId> {
    any::<(u64, u32)>().prop_map(|(dir, entry)| FileId { dir, entry })
}

fn lane() -> impl Strategy<Value = Lane> {
    select(vec![Lane::Unrequested, Lane::Requested, Lane::Again])
}

fn basis() -> impl Strategy<Value = Basis> {
    let prefix = (0..=FILE_MAX_BYTES, option::of(digest()));
    prop_oneof![
        Just(Basis::None),
        bytes().prop_map(Basis::Blocks),
        prefix.prop_map(|(len_bytes, digest)| Basis::Prefix { len_bytes, digest }),
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    select(vec![
        Kind::File,
        Kind::Dir,
        Kind::Symlink,
        Kind::Device,
        Kind::Special,
    ])
}

fn item() -> impl Strategy<Value = Item> {
    let updates = vec![
        Update::Received,
        Update::Sent,
        Update::Local,
        Update::HardLink,
        Update::Attrs,
    ];
    let changes =
        (0u16..1 << 11).prop_map(|bits| Changes::from_bits(bits).expect("there are eleven bits"));
    let names = (bytes(), bytes(), option::of(bytes()), option::of(bytes()));
    let lens = [0..=FILE_MAX_BYTES, 0..=FILE_MAX_BYTES];
    let numbers = (any::<[u32; 3]>(), time(), option::of(time()), lens);
    (
        names,
        kind(),
        select(updates),
        changes,
        numbers,
        option::of(bytes()),
        any::<bool>(),
    )
        .prop_map(
            |(
                (name, sender_path, target, linked_to),
                kind,
                update,
                changes,
                numbers,
                digest,
                transfer,
            )| {
                let ([mode, uid, gid], mtime, atime, [len_bytes, moved_bytes]) = numbers;
                Item {
                    name,
                    sender_path,
                    kind,
                    update,
                    changes,
                    target,
                    linked_to,
                    source_target: None,
                    mode,
                    uid,
                    gid,
                    mtime,
                    atime,
                    len_bytes,
                    moved_bytes,
                    sums_bytes: 0,
                    digest,
                    transfer,
                    file: None,
                }
            },
        )
}

fn entry_state() -> impl Strategy<Value = EntryState> {
    (
        select(vec![
            0o100644, 0o040755, 0o120777, 0o020600, 0o060600, 0o010600, 0o140600,
        ]),
        [option::of(any::<u32>()), option::of(any::<u32>())],
        [option::of(any::<u64>()), option::of(any::<u64>())],
        option::of(time()),
        option::of(bytes()),
    )
        .prop_map(
            |(mode, [uid, gid], [len_bytes, rdev], mtime, target)| EntryState {
                kind: Kind::of_mode(mode).expect("it is that of a kind"),
                mode,
                uid,
                gid,
                len_bytes,
                mtime,
                target,
                rdev,
                ctime: None,
                digest: None,
                attributes: Vec::new(),
            },
        )
}

/// A state with what only plans have.
fn planned_state() -> impl Strategy<Value = EntryState> {
    let attribute =
        (bytes(), any::<[u8; 16]>()).prop_map(|(name, digest)| AttributeState { name, digest });
    let digest = option::of(any::<[u8; 16]>());
    (
        entry_state(),
        option::of(time()),
        digest,
        vec(attribute, 0..3),
    )
        .prop_map(|(state, ctime, digest, attributes)| EntryState {
            ctime,
            digest,
            attributes,
            ..state
        })
}

fn planned_twin() -> impl Strategy<Value = PlannedTwin> {
    let its_path = || {
        path()
            .prop_map(|path| path.as_bytes().to_vec())
            .prop_filter("not empty", |path| !path.is_empty())
    };
    let found = (
        select(TwinUse::ALL.to_vec()),
        option::of(any::<u32>()),
        its_path(),
        planned_state().prop_filter("a file", |state| state.kind == Kind::File),
    );
    prop_oneof![
        found.prop_map(|(twin_use, tree, path, before)| PlannedTwin::Found {
            twin_use,
            tree: if twin_use == TwinUse::Renamed {
                None
            } else {
                tree
            },
            path,
            before: Box::new(before),
        }),
        (its_path(), any::<[u8; 16]>())
            .prop_map(|(path, digest)| PlannedTwin::New { path, digest }),
    ]
}

fn name_set() -> impl Strategy<Value = NameSet> {
    any::<(u32, [u8; 16])>().prop_map(|(count, digest)| NameSet { count, digest })
}

fn planned() -> impl Strategy<Value = PlannedAction> {
    let path = prop_oneof![
        Just(b".".to_vec()),
        path().prop_map(|path| path.as_bytes().to_vec())
    ];
    (
        path.prop_filter("not empty", |path| !path.is_empty()),
        select(PlannedAct::ALL.to_vec()),
        0..=0x7ff_u16,
        option::of(planned_state()),
        [planned_state(), planned_state()],
        (
            bytes(),
            [name_set(), name_set()],
            any::<bool>(),
            option::of(any::<(u64, u64)>()),
        ),
        option::of((bytes(), option::of(planned_state()))),
        option::of(planned_twin().boxed()),
        option::of(bytes()),
    )
        .prop_map(
            |(path, act, changes, before, [other, after], links, backup, twin, heir)| {
                let backup = backup.map(|(path, before)| PlannedBackup { path, before });
                let (first, [names, taken], has_links, file) = links;
                let links = HardLinks {
                    first,
                    names,
                    taken,
                };
                let is_deletion = act == PlannedAct::Delete;
                let before = if is_deletion { Some(other) } else { before };
                let has_original = before
                    .as_ref()
                    .is_some_and(|before| before.kind != Kind::Dir);
                let links = if has_links || act == PlannedAct::HardLink {
                    Some(links)
                } else {
                    None
                };
                let is_new = act == PlannedAct::Transfer && before.is_none() && links.is_none();
                let is_file = before
                    .as_ref()
                    .is_some_and(|before| before.kind == Kind::File);
                PlannedAction {
                    path,
                    act,
                    changes: Changes::from_bits(changes).expect("all bits are known"),
                    before,
                    after: if is_deletion { None } else { Some(after) },
                    file: file.map(|(dev, ino)| SharedFile { dev, ino }),
                    links,
                    backup: if has_original { backup } else { None },
                    twin: if is_new { twin.map(Box::new) } else { None },
                    heir: if is_deletion && is_file { heir } else { None },
                }
            },
        )
}

fn side() -> impl Strategy<Value = Side> {
    select(vec![Side::Sender, Side::Receiver])
}

fn found_rule() -> impl Strategy<Value = FoundRule> {
    let place = prop_oneof![
        Just(RulePlace::Run),
        Just(RulePlace::Cvs),
        (bytes(), any::<u32>()).prop_map(|(file, line)| RulePlace::Dir { file, line }),
    ];
    (any::<[bool; 4]>(), bytes(), place).prop_map(
        |([include, absolute, negate, perishable], pattern, place)| FoundRule {
            include,
            absolute,
            negate,
            perishable,
            pattern,
            place,
        },
    )
}

fn outcome() -> impl Strategy<Value = DecidedOutcome> {
    let changes = || (0..=0x7ff_u16).prop_map(|bits| Changes::from_bits(bits).expect("known"));
    let reasons = vec![
        Reason::NotExisting,
        Reason::Exists,
        Reason::Newer,
        Reason::TooLarge,
        Reason::TooSmall,
        Reason::NonRegular,
        Reason::UnsafeLink,
        Reason::Forbidden,
        Reason::NothingToAppend,
        Reason::InTheWay,
        Reason::Unknown,
        Reason::NotPlanned,
    ];
    prop_oneof![
        select(vec![
            DecidedOutcome::Keep,
            DecidedOutcome::LinkAlternate,
            DecidedOutcome::Elsewhere
        ]),
        changes().prop_map(DecidedOutcome::Adjust),
        changes().prop_map(DecidedOutcome::Create),
        changes().prop_map(DecidedOutcome::Transfer),
        changes().prop_map(DecidedOutcome::CopyAlternate),
        select(reasons).prop_map(DecidedOutcome::Refuse),
    ]
}

fn decided() -> impl Strategy<Value = DecidedFact> {
    let state = || {
        entry_state().prop_map(|state| EntryState {
            len_bytes: state.len_bytes.map(|len| len.min(FILE_MAX_BYTES)),
            ..state
        })
    };
    let in_the_way = select(vec![InTheWay::Nothing, InTheWay::Other, InTheWay::Dir]);
    (outcome(), in_the_way, state(), option::of(state())).prop_map(
        |(outcome, in_the_way, source, dest)| DecidedFact {
            outcome,
            in_the_way,
            source,
            dest,
        },
    )
}

fn explained() -> impl Strategy<Value = Explained> {
    let fact = prop_oneof![
        (side(), any::<bool>(), found_rule()).prop_map(|(side, is_dir, rule)| Fact::Rule {
            side,
            is_dir,
            rule
        }),
        side().prop_map(Fact::Absent),
        kind().prop_map(Fact::AtDest),
        select(vec![
            Fact::MountPoint,
            Fact::NotEntered,
            Fact::Pruned,
            Fact::NoRoom
        ]),
        decided().prop_map(|decided| Fact::Decided(Box::new(decided))),
        bytes().prop_map(Fact::Linked),
        select(Fate::ALL.to_vec()).prop_map(Fact::Extra),
    ];
    (bytes(), fact).prop_map(|(path, fact)| Explained { path, fact })
}

fn event() -> impl Strategy<Value = Event> {
    let listed = ([0..=COUNT_MAX, 0..=TOTAL_MAX_BYTES], any::<bool>());
    let reused_by = select(vec![ReusedBy::Copy, ReusedBy::Rename, ReusedBy::Link]);
    prop_oneof![
        item().prop_map(|item| Event::Item(Box::new(item))),
        (bytes(), kind(), any::<u32>()).prop_map(|(name, kind, mode)| Event::Deleted {
            name,
            kind,
            mode
        }),
        (bytes(), bytes(), 0..=FILE_MAX_BYTES, reused_by).prop_map(
            |(from, name, len_bytes, how)| Event::Reused {
                from,
                name,
                len_bytes,
                how
            }
        ),
        bytes().prop_map(Event::Note),
        problem().prop_map(Event::Problem),
        bytes().prop_map(Event::Missing),
        listed.prop_map(|([entries, bytes], complete)| Event::Listed {
            entries,
            bytes,
            complete
        }),
        (0..=COUNT_MAX).prop_map(Event::Checked),
        bytes().prop_map(Event::Begin),
        bytes().prop_map(Event::SourceChanged),
        (0..=FILE_MAX_BYTES).prop_map(|len_bytes| Event::Verified { len_bytes }),
        // On the stack of a test, it would be too large together with the others.
        planned()
            .prop_map(|action| Event::Planned(Box::new(action)))
            .boxed(),
        explained().prop_map(|explained| Event::Explained(Box::new(explained))),
        [0..=FILE_MAX_BYTES, 0..=FILE_MAX_BYTES].prop_map(|[done_bytes, len_bytes]| {
            Event::Progress {
                done_bytes,
                len_bytes,
            }
        }),
    ]
}

fn exit() -> impl Strategy<Value = Exit> {
    select((1..=u8::MAX).filter_map(Exit::of_code).collect::<Vec<_>>())
}

/// Any message; every kind is equally likely.
pub fn message() -> BoxedStrategy<Message> {
    let requested_lane = prop_oneof![Just(Lane::Requested), Just(Lane::Again)];
    let more = (
        described(9),
        vec(problem(), 0..3),
        vec(bytes(), 0..3),
        any::<bool>(),
    );
    let kinds: Vec<BoxedStrategy<Message>> = vec![
        setup()
            .prop_map(|setup| Message::Setup(Box::new(setup)))
            .boxed(),
        roots()
            .prop_map(|roots| Message::Roots(Box::new(roots)))
            .boxed(),
        vec(seen(), 0..5).prop_map(Message::Digests).boxed(),
        listing(9)
            .prop_map(|listing| Message::Dir(Box::new(listing)))
            .boxed(),
        more.prop_map(|((list, subs), problems, notes, last)| Message::More {
            list,
            subs,
            problems,
            notes,
            last,
        })
        .boxed(),
        tally().prop_map(Message::DirsEnd).boxed(),
        (file(), requested_lane, basis())
            .prop_map(|(file, lane, basis)| Message::Want { file, lane, basis })
            .boxed(),
        any::<u64>().prop_map(Message::Done).boxed(),
        file().prop_map(Message::Placed).boxed(),
        file().prop_map(Message::WantDigest).boxed(),
        (file(), option::of(digest()))
            .prop_map(|(file, digest)| Message::FileDigest { file, digest })
            .boxed(),
        tally().prop_map(Message::WantsEnd).boxed(),
        (file(), lane(), bytes(), digest())
            .prop_map(|(file, lane, data, digest)| Message::Whole {
                file,
                lane,
                data,
                digest,
            })
            .boxed(),
        (file(), lane())
            .prop_map(|(file, lane)| Message::Begin { file, lane })
            .boxed(),
        (lane(), vec(any::<u8>(), 1..200))
            .prop_map(|(lane, data)| Message::Data { lane, data })
            .boxed(),
        (lane(), 0u64..1 << 62, 1u64..1 << 62)
            .prop_map(|(lane, offset_bytes, len_bytes)| Message::Copy {
                lane,
                offset_bytes,
                len_bytes,
            })
            .boxed(),
        (lane(), digest())
            .prop_map(|(lane, digest)| Message::End { lane, digest })
            .boxed(),
        (file(), lane(), option::of(problem()))
            .prop_map(|(file, lane, problem)| Message::Unsent {
                file,
                lane,
                problem,
            })
            .boxed(),
        event().prop_map(Message::Event).boxed(),
        (select(Class::ALL.to_vec()), 0u64..=GRANT_MAX_BYTES)
            .prop_map(|(class, bytes)| Message::Grant { class, bytes })
            .boxed(),
        Just(Message::Ping).boxed(),
        select(Class::ALL.to_vec())
            .prop_map(Message::Blocked)
            .boxed(),
        (any::<bool>(), any::<[u64; 5]>())
            .prop_map(
                |(complete, [entries, bytes, passed, files, passed_bytes])| {
                    Message::Totals(SourceTotals {
                        list: ListTotal {
                            entries,
                            bytes,
                            complete,
                        },
                        unchanged: EntryCounts {
                            entries: passed,
                            files,
                            bytes: passed_bytes,
                        },
                    })
                },
            )
            .boxed(),
        option::of(bytes())
            .prop_map(|refused| Message::Verdict { refused })
            .boxed(),
        (vec(planned(), 0..4), any::<[bool; 2]>())
            .prop_map(|(actions, [creates_dest, is_last])| {
                Message::Plan(PlanPiece {
                    actions,
                    creates_dest,
                    is_last,
                })
            })
            .boxed(),
        (exit(), bytes(), select(ROLES.to_vec()))
            .prop_map(|(exit, message, role)| Message::Fail {
                exit,
                message,
                role,
            })
            .boxed(),
        tally().prop_map(Message::Bye).boxed(),
        (
            any::<[u8; 32]>(),
            any::<u16>(),
            vec(any::<std::net::IpAddr>(), 0..=ADDRESSES_MAX),
        )
            .prop_map(|(pin, port, addresses)| {
                Message::Meet(Meeting {
                    pin,
                    port,
                    addresses,
                })
            })
            .boxed(),
    ];
    proptest::strategy::Union::new(kinds).boxed()
}

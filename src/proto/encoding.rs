//! Encoding of the larger message parts: setup, roots, directory listings, problems. One pair of functions for each.

mod events;
mod rules;

pub(super) use self::events::{
    get_event, get_plan_piece, get_tally, put_event, put_plan_piece, put_tally,
};
use self::rules::{get_rules, put_parsed};
use super::bytes::{Reader, Writer};
use super::enum_values::seen;
use super::limits::{
    ADDRESSES_MAX, COUNT_MAX, CVS_MAX_BYTES, DIGESTS_MAX, IDS_MAX, LINES_MAX, PATH_MAX_BYTES,
    UMASK_MAX, WORD_MAX_BYTES, WORDS_MAX,
};
use super::list::{self, EntryNames};
use super::message::{DestDirState, DirListing, IdName, Meeting, Roots, Setup, SubdirFlags};
use crate::error::Result;
use crate::flist::DirList;
use crate::report::event::{Problem, Wants};
use std::net::IpAddr;

/// The longest address (IPv6).
const ADDRESS_MAX_BYTES: usize = 16;
/// The minimum encoded length of an address: length field and IPv4 address.
const ADDRESS_MIN_BYTES: usize = 5;
/// The minimum encoded length of a problem: weight and an empty line.
const PROBLEM_MIN_BYTES: usize = 2;
/// The minimum encoded length of a named id: user or group, number, length of the name, one byte of it.
const ID_NAME_MIN_BYTES: usize = 4;

pub(super) fn put_setup(w: &mut Writer, setup: &Setup) -> Result<()> {
    let Setup {
        server_sends,
        words,
        remote_words,
        rules,
        cvs_home,
        cvs_env,
        listed,
        operands,
        wants,
        profile,
        umask,
    } = setup;
    w.flags(&[
        *server_sends,
        cvs_home.is_some(),
        cvs_env.is_some(),
        listed.is_some(),
        *profile,
        wants.source_changes,
        wants.reused,
        wants.planned,
    ]);
    put_wants(w, wants);
    w.strings("words", words, WORDS_MAX, WORD_MAX_BYTES)?;
    w.strings("remote words", remote_words, WORDS_MAX, WORD_MAX_BYTES)?;
    w.many("rules", rules, WORDS_MAX, put_parsed)?;
    if let Some(text) = cvs_home {
        w.bytes(".cvsignore", text, CVS_MAX_BYTES)?;
    }
    if let Some(text) = cvs_env {
        w.bytes("CVSIGNORE", text, CVS_MAX_BYTES)?;
    }
    if let Some(listed) = listed {
        w.strings("listed names", listed, WORDS_MAX, WORD_MAX_BYTES)?;
    }
    w.strings("operands", operands, WORDS_MAX, WORD_MAX_BYTES)?;
    w.amount(u64::from(*umask), u64::from(UMASK_MAX));
    Ok(())
}

pub(super) fn get_setup(r: &mut Reader) -> Result<Setup> {
    let [
        server_sends,
        has_cvs_home,
        has_cvs_env,
        has_listed,
        profile,
        source_changes,
        reused,
        planned,
    ] = r.flags::<8>("setup flags")?;
    Ok(Setup {
        server_sends,
        wants: Wants {
            source_changes,
            reused,
            planned,
            ..get_wants(r)?
        },
        words: r.strings("words", WORDS_MAX, WORD_MAX_BYTES)?,
        remote_words: r.strings("remote words", WORDS_MAX, WORD_MAX_BYTES)?,
        rules: get_rules(r)?.into(),
        cvs_home: r.when(has_cvs_home, |r| r.owned(".cvsignore", CVS_MAX_BYTES))?,
        cvs_env: r.when(has_cvs_env, |r| r.owned("CVSIGNORE", CVS_MAX_BYTES))?,
        listed: r.when(has_listed, |r| {
            r.strings("listed names", WORDS_MAX, WORD_MAX_BYTES)
        })?,
        operands: r.strings("operands", WORDS_MAX, WORD_MAX_BYTES)?,
        umask: r.varint_up_to("umask", u64::from(UMASK_MAX))? as u32,
        profile,
    })
}

pub(super) fn put_meeting(w: &mut Writer, meeting: &Meeting) -> Result<()> {
    let Meeting {
        pin,
        port,
        addresses,
    } = meeting;
    w.raw(pin);
    w.u32((*port).into());
    w.many(
        "addresses",
        addresses,
        ADDRESSES_MAX,
        |w, address| match address {
            IpAddr::V4(address) => w.bytes("address", &address.octets(), ADDRESS_MAX_BYTES),
            IpAddr::V6(address) => w.bytes("address", &address.octets(), ADDRESS_MAX_BYTES),
        },
    )
}

pub(super) fn get_meeting(r: &mut Reader) -> Result<Meeting> {
    Ok(Meeting {
        pin: r.array("pin")?,
        port: r.varint_up_to("port", u16::MAX.into())? as u16,
        addresses: r.many("addresses", ADDRESSES_MAX, ADDRESS_MIN_BYTES, get_address)?,
    })
}

fn get_address(r: &mut Reader) -> Result<IpAddr> {
    let bytes = r.bytes("address", ADDRESS_MAX_BYTES)?;
    let of_ipv4 = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let of_ipv6 = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    of_ipv4(bytes).or_else(|_| of_ipv6(bytes)).map_err(|_| {
        r.refuse(
            "address",
            format_args!("has {} bytes, not 4 or 16", bytes.len()),
        )
    })
}

fn put_wants(w: &mut Writer, wants: &Wants) {
    let Wants {
        items,
        unchanged,
        after_transfer,
        progress,
        whole_list,
        begin,
        digest,
        paths,
        // Flags of the setup: this byte is full.
        source_changes: _,
        reused: _,
        planned: _,
    } = *wants;
    w.flags(&[
        items,
        unchanged,
        after_transfer,
        progress,
        whole_list,
        begin,
        digest,
        paths,
    ]);
}

fn get_wants(r: &mut Reader) -> Result<Wants> {
    let [
        items,
        unchanged,
        after_transfer,
        progress,
        whole_list,
        begin,
        digest,
        paths,
    ] = r.flags::<8>("wants")?;
    Ok(Wants {
        items,
        unchanged,
        after_transfer,
        progress,
        whole_list,
        begin,
        digest,
        paths,
        source_changes: false,
        reused: false,
        planned: false,
    })
}

pub(super) fn put_roots(w: &mut Writer, roots: &Roots) -> Result<()> {
    let Roots {
        found,
        single,
        lone_dir_is_bare,
        top,
        top_shown,
        missing,
        whole,
        problems,
        notes,
        ids,
    } = roots;
    w.amount(*found, COUNT_MAX);
    let bare = lone_dir_is_bare.unwrap_or(false);
    w.flags(&[
        single.is_some(),
        lone_dir_is_bare.is_some(),
        bare,
        top.is_some(),
    ]);
    if let Some(single) = single {
        w.bytes("single name", single, PATH_MAX_BYTES)?;
    }
    if let Some(top) = top {
        put_itself(w, top, true)?;
    }
    w.bytes("shown top", top_shown, PATH_MAX_BYTES)?;
    w.many("missing", missing, WORDS_MAX, |w, path| {
        w.path("missing", path)
    })?;
    w.many("whole", whole, WORDS_MAX, |w, path| w.path("whole", path))?;
    put_problems(w, problems, notes)?;
    put_ids(w, ids)
}

pub(super) fn get_roots(r: &mut Reader) -> Result<Roots> {
    let found = r.varint_up_to("found", COUNT_MAX)?;
    let [has_single, has_bare, bare, has_top] = r.flags::<4>("roots flags")?;
    if bare && !has_bare {
        return Err(r.refuse("roots flags", "mark a missing directory as bare"));
    }
    let single = r.when(has_single, get_single)?;
    let top = r.when(has_top, |r| get_itself(r, true))?;
    let top_shown = r.owned("shown top", PATH_MAX_BYTES)?;
    let missing = r.many("missing", WORDS_MAX, 1, |r| r.path("missing"))?;
    let whole = r.many("whole", WORDS_MAX, 1, |r| r.path("whole"))?;
    let (problems, notes) = get_problems(r)?;
    let lone_dir_is_bare = if has_bare { Some(bare) } else { None };
    Ok(Roots {
        found,
        single,
        lone_dir_is_bare,
        top,
        top_shown,
        missing,
        whole,
        problems,
        notes,
        ids: get_ids(r)?,
    })
}

/// Reads a path of one element or, under `-R`, several.
fn get_single(r: &mut Reader) -> Result<Vec<u8>> {
    let path = r.path("single name")?;
    if path.is_root() {
        return Err(r.refuse("single name", "is empty"));
    }
    Ok(path.as_bytes().to_vec())
}

/// Writes a list with the one entry `.`, or an empty list.
fn put_itself(w: &mut Writer, list: &DirList, is_needed: bool) -> Result<()> {
    if is_needed && list.is_empty() {
        return Err(w.refuse("directory itself", "is missing"));
    }
    list::put(w, list, EntryNames::Itself)
}

fn get_itself(r: &mut Reader, is_needed: bool) -> Result<DirList> {
    let list = list::get(r, EntryNames::Itself)?;
    if is_needed && list.is_empty() {
        return Err(r.refuse("directory itself", "is missing"));
    }
    Ok(list)
}

fn put_ids(w: &mut Writer, ids: &[IdName]) -> Result<()> {
    w.many("ids", ids, IDS_MAX, |w, IdName { is_group, id, name }| {
        w.flags(&[*is_group]);
        w.u32(*id);
        w.id_name("name of an id", name)
    })
}

fn get_ids(r: &mut Reader) -> Result<Vec<IdName>> {
    r.many("ids", IDS_MAX, ID_NAME_MIN_BYTES, |r| {
        let [is_group] = r.flags::<1>("kind of an id")?;
        Ok(IdName {
            is_group,
            id: r.u32("id")?,
            name: r.id_name("name of an id")?.to_vec(),
        })
    })
}

fn put_problems(w: &mut Writer, problems: &[Problem], notes: &[Vec<u8>]) -> Result<()> {
    w.many("problems", problems, LINES_MAX, |w, problem| {
        put_problem(w, problem);
        Ok(())
    })?;
    w.many("notes", notes, LINES_MAX, |w, note| {
        w.line(note);
        Ok(())
    })
}

fn get_problems(r: &mut Reader) -> Result<(Vec<Problem>, Vec<Vec<u8>>)> {
    let problems = r.many("problems", LINES_MAX, PROBLEM_MIN_BYTES, get_problem)?;
    Ok((problems, r.many("notes", LINES_MAX, 1, |r| r.line("note"))?))
}

pub(super) fn put_problem(w: &mut Writer, problem: &Problem) {
    w.number(problem.weight);
    w.line(&problem.line);
}

pub(super) fn get_problem(r: &mut Reader) -> Result<Problem> {
    Ok(Problem {
        weight: r.number("weight of a problem")?,
        line: r.line("line of a problem")?,
        is_of_peer: true,
    })
}

pub(super) fn put_digests(w: &mut Writer, all: &[DestDirState]) -> Result<()> {
    w.many("directories", all, DIGESTS_MAX, |w, one| {
        let (digest, children) = match one {
            DestDirState::Absent => {
                w.byte(seen::ABSENT);
                return Ok(());
            }
            DestDirState::Large(entries) => {
                w.byte(seen::LARGE);
                w.amount(*entries, COUNT_MAX);
                return Ok(());
            }
            DestDirState::Dir { digest, children } => (digest, children),
        };
        match digest {
            Some(digest) => {
                w.byte(seen::DIGEST);
                w.raw(digest);
            }
            None => w.byte(seen::UNCOMPARED),
        }
        // The frame length bounds their number: each takes four bytes.
        w.many("children", children, usize::MAX, |w, child| {
            w.raw(&child.to_le_bytes());
            Ok(())
        })
    })
}

pub(super) fn get_digests(r: &mut Reader) -> Result<Vec<DestDirState>> {
    r.many("directories", DIGESTS_MAX, 1, |r| {
        let digest = match r.byte("directory")? {
            seen::ABSENT => return Ok(DestDirState::Absent),
            seen::LARGE => {
                return Ok(DestDirState::Large(
                    r.varint_up_to("entries of a directory", COUNT_MAX)?,
                ));
            }
            seen::UNCOMPARED => None,
            seen::DIGEST => Some(r.array("digest")?),
            number => return Err(r.unknown("directory", number)),
        };
        let children = r.many("children", usize::MAX, 4, |r| {
            Ok(u32::from_le_bytes(r.array("children")?))
        })?;
        Ok(DestDirState::Dir { digest, children })
    })
}

pub(super) fn put_listing(w: &mut Writer, listing: &DirListing) -> Result<()> {
    let DirListing {
        id,
        path,
        itself,
        list,
        subs,
        may_delete,
        is_named,
        with_data,
        more,
        ..
    } = listing;
    let DirListing {
        problems,
        notes,
        ids,
        shown,
        renamed_from,
        ..
    } = listing;
    w.flags(&[
        *may_delete,
        *is_named,
        *with_data,
        *more,
        renamed_from.is_some(),
    ]);
    w.varint(*id);
    w.path("path", path)?;
    put_itself(w, itself, false)?;
    if let Some(name) = renamed_from {
        w.bytes("earlier name", name, PATH_MAX_BYTES)?;
    }
    put_ids(w, ids)?;
    w.strings("shown", shown, LINES_MAX, PATH_MAX_BYTES)?;
    put_piece(w, list, subs, problems, notes)
}

pub(super) fn get_listing(r: &mut Reader) -> Result<DirListing> {
    let [may_delete, is_named, with_data, more, is_renamed] = r.flags::<5>("directory flags")?;
    let id = r.varint("id")?;
    let path = r.path("path")?;
    let itself = get_itself(r, false)?;
    let renamed_from = r.when(is_renamed, |r| r.owned("earlier name", PATH_MAX_BYTES))?;
    let ids = get_ids(r)?;
    let shown = r.strings("shown", LINES_MAX, PATH_MAX_BYTES)?;
    let (list, subs, problems, notes) = get_piece(r)?;
    let list = list.into();
    let listing = DirListing {
        id,
        path,
        itself,
        list,
        subs,
        may_delete,
        is_named,
        with_data,
        more,
        ..DirListing::default()
    };
    Ok(DirListing {
        problems,
        notes,
        ids,
        shown,
        renamed_from,
        ..listing
    })
}

/// Writes entries of a directory, the flags of each subdirectory among them, and problems and notes.
pub(super) fn put_piece(
    w: &mut Writer,
    list: &DirList,
    subs: &[SubdirFlags],
    problems: &[Problem],
    notes: &[Vec<u8>],
) -> Result<()> {
    list::put(w, list, EntryNames::Elements)?;
    let dirs = dirs_of(list);
    if subs.len() != dirs {
        let what = format_args!("are {} for {dirs} directories in the list", subs.len());
        return Err(w.refuse("subdirectories", what));
    }
    for SubdirFlags {
        is_walked,
        is_implied,
        is_named: _,
        is_repeated,
    } in subs
    {
        w.flags(&[*is_walked, *is_implied, *is_repeated]);
    }
    put_problems(w, problems, notes)
}

/// The values that [`put_piece`] writes.
type Piece = (DirList, Vec<SubdirFlags>, Vec<Problem>, Vec<Vec<u8>>);

pub(super) fn get_piece(r: &mut Reader) -> Result<Piece> {
    let list = list::get(r, EntryNames::Elements)?;
    let mut subs = Vec::with_capacity(dirs_of(&list));
    for _ in 0..dirs_of(&list) {
        let [is_walked, is_implied, is_repeated] = r.flags::<3>("subdirectories")?;
        subs.push(SubdirFlags {
            is_walked,
            is_implied,
            is_repeated,
            is_named: false,
        });
    }
    let (problems, notes) = get_problems(r)?;
    Ok((list, subs, problems, notes))
}

/// Returns the number of directories in a sorted list; they are at its end.
fn dirs_of(list: &DirList) -> usize {
    list.len() - list.entries.partition_point(|entry| !entry.is_dir())
}

//! Encoding of the larger message parts: setup, roots, directory listings, rules, events, tallies. One pair of
//! functions for each.

use super::bytes::{Reader, Writer};
use super::enum_values::{event, rule, seen};
use super::explained_fact;
use super::limits::{
    ADDRESSES_MAX, COUNT_MAX, CVS_MAX_BYTES, DIGESTS_MAX, FILE_MAX_BYTES, IDS_MAX, LINES_MAX,
    PATH_MAX_BYTES, PLAN_ACTIONS_MAX, PLANNED_MAX_BYTES,
};
use super::limits::{TARGET_MAX_BYTES, TOTAL_MAX_BYTES, UMASK_MAX, WORD_MAX_BYTES, WORDS_MAX};
use super::list::{self, EntryNames};
use super::message::{
    DestDirState, DirListing, IdName, Meeting, PlanPiece, Roots, Setup, SubdirFlags,
};
use crate::error::Result;
use crate::filter::{Cvs, Merge, Parsed, Rule, Text};
use crate::flist::DirList;
use crate::plan::Changes;
use crate::plan::planned::PlannedAction;
use crate::report::Tally;
use crate::report::event::{Event, Item, Problem, Wants};
use crate::report::plan_line::{self, PlanLine};
use crate::report::tally::Kinds;
use std::net::IpAddr;

/// The longest address (IPv6).
const ADDRESS_MAX_BYTES: usize = 16;
/// The minimum encoded length of an address: length field and IPv4 address.
const ADDRESS_MIN_BYTES: usize = 5;
/// The longest digest that `%C` prints.
const SHOWN_DIGEST_MAX_BYTES: usize = 64;
/// The minimum encoded length of an action of a plan: length field and the braces of a line.
const PLANNED_MIN_BYTES: usize = 3;
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
        w.strings("listed names", listed, WORDS_MAX, PATH_MAX_BYTES)?;
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
            r.strings("listed names", WORDS_MAX, PATH_MAX_BYTES)
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

fn put_parsed(w: &mut Writer, parsed: &Parsed) -> Result<()> {
    match parsed {
        Parsed::Rule(Rule {
            include,
            sides,
            absolute,
            negate,
            perishable,
            xattr,
            pattern,
            from_file,
        }) => {
            w.byte(rule::RULE);
            w.flags(&[
                *include,
                *absolute,
                *negate,
                *perishable,
                *xattr,
                *from_file,
            ]);
            w.number(*sides);
            w.bytes("pattern", pattern, WORD_MAX_BYTES)
        }
        Parsed::Clear => {
            w.byte(rule::CLEAR);
            Ok(())
        }
        Parsed::Merge(merge) => {
            let Merge {
                name,
                per_dir,
                format,
                no_inherit,
                word_split,
                ..
            } = &**merge;
            let Merge {
                exclude_itself,
                sides,
                absolute,
                perishable,
                xattr,
                named_at,
                ..
            } = &**merge;
            w.byte(rule::MERGE);
            w.flags(&[
                *per_dir,
                *no_inherit,
                *word_split,
                *exclude_itself,
                *absolute,
                *perishable,
                *xattr,
                named_at.is_some(),
            ]);
            w.number(*format);
            w.number(*sides);
            w.bytes("name of a merge file", name, WORD_MAX_BYTES)?;
            match named_at {
                Some(place) => w.bytes("place of a merge file", place, WORD_MAX_BYTES),
                None => Ok(()),
            }
        }
        Parsed::Cvs(Cvs {
            include,
            sides,
            absolute,
            negate,
            perishable,
            from_file,
        }) => {
            w.byte(rule::CVS);
            w.flags(&[*include, *absolute, *negate, *perishable, *from_file]);
            w.number(*sides);
            Ok(())
        }
        Parsed::Nothing => {
            w.byte(rule::NOTHING);
            Ok(())
        }
    }
}

/// How many rules share a text.
const SHARING_RULES: usize = 1024;

fn get_rules(r: &mut Reader) -> Result<Vec<Parsed>> {
    let count = r.count("rules", WORDS_MAX, 1)?;
    let mut rules = Vec::new();
    while rules.len() < count {
        let start = rules.len();
        for _ in 0..SHARING_RULES.min(count - start) {
            rules.push(get_parsed(r)?);
        }
        Text::share(&mut rules[start..]);
    }
    Ok(rules)
}

fn get_parsed(r: &mut Reader) -> Result<Parsed> {
    Ok(match r.byte("rule")? {
        rule::RULE => {
            let [include, absolute, negate, perishable, xattr, from_file] =
                r.flags::<6>("rule flags")?;
            let sides = r.number("sides")?;
            let pattern = r.owned("pattern", WORD_MAX_BYTES)?.into();
            Parsed::Rule(Rule {
                include,
                sides,
                absolute,
                negate,
                perishable,
                xattr,
                pattern,
                from_file,
            })
        }
        rule::CLEAR => Parsed::Clear,
        rule::MERGE => {
            let [
                per_dir,
                no_inherit,
                word_split,
                exclude_itself,
                absolute,
                perishable,
                xattr,
                has_place,
            ] = r.flags::<8>("merge flags")?;
            if !per_dir {
                return Err(r.refuse("rule", "is a merge file that the client reads"));
            }
            Parsed::Merge(Box::new(Merge {
                per_dir,
                no_inherit,
                word_split,
                exclude_itself,
                absolute,
                perishable,
                xattr,
                format: r.number("merge format")?,
                sides: r.number("sides")?,
                name: r.owned("name of a merge file", WORD_MAX_BYTES)?,
                named_at: r.when(has_place, |r| {
                    r.owned("place of a merge file", WORD_MAX_BYTES)
                })?,
            }))
        }
        rule::CVS => {
            let [include, absolute, negate, perishable, from_file] = r.flags::<5>("rule flags")?;
            Parsed::Cvs(Cvs {
                include,
                sides: r.number("sides")?,
                absolute,
                negate,
                perishable,
                from_file,
            })
        }
        rule::NOTHING => Parsed::Nothing,
        number => return Err(r.unknown("rule", number)),
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

fn put_kinds(w: &mut Writer, kinds: &Kinds) {
    let Kinds {
        files,
        dirs,
        symlinks,
        devices,
        specials,
    } = *kinds;
    for count in [files, dirs, symlinks, devices, specials] {
        w.amount(count, COUNT_MAX);
    }
}

fn get_kinds(r: &mut Reader) -> Result<Kinds> {
    let mut next = || r.varint_up_to("count of a kind", COUNT_MAX);
    Ok(Kinds {
        files: next()?,
        dirs: next()?,
        symlinks: next()?,
        devices: next()?,
        specials: next()?,
    })
}

pub(super) fn put_tally(w: &mut Writer, tally: &Tally) {
    let Tally {
        listed,
        created,
        deleted,
        transferred,
        total_bytes,
        transferred_bytes,
        literal_bytes,
        ..
    } = tally;
    let Tally {
        matched_bytes,
        name_bytes,
        list_generation_ms,
        list_transfer_ms,
        source_errors,
        ..
    } = tally;
    let Tally {
        failed,
        failed_at_peer,
        vanished,
        delete_limit_reached,
        ..
    } = tally;
    w.flags(&[*delete_limit_reached]);
    for kinds in [listed, created, deleted] {
        put_kinds(w, kinds);
    }
    w.amount(*transferred, COUNT_MAX);
    for bytes in [
        total_bytes,
        transferred_bytes,
        literal_bytes,
        matched_bytes,
        name_bytes,
    ] {
        w.amount(*bytes, TOTAL_MAX_BYTES);
    }
    let failed = failed.saturating_add(*failed_at_peer);
    for count in [
        *list_generation_ms,
        *list_transfer_ms,
        *source_errors,
        failed,
        *vanished,
    ] {
        w.amount(count, COUNT_MAX);
    }
}

pub(super) fn get_tally(r: &mut Reader) -> Result<Tally> {
    let [delete_limit_reached] = r.flags::<1>("tally flags")?;
    let listed = get_kinds(r)?;
    let created = get_kinds(r)?;
    let deleted = get_kinds(r)?;
    let transferred = r.varint_up_to("count", COUNT_MAX)?;
    let mut bytes = || r.varint_up_to("count of bytes", TOTAL_MAX_BYTES);
    let total_bytes = bytes()?;
    let transferred_bytes = bytes()?;
    let literal_bytes = bytes()?;
    let matched_bytes = bytes()?;
    let name_bytes = bytes()?;
    let mut count = || r.varint_up_to("count", COUNT_MAX);
    Ok(Tally {
        listed,
        created,
        absent: Kinds::default(),
        deleted,
        transferred,
        unsent: 0,
        unsent_bytes: 0,
        total_bytes,
        transferred_bytes,
        literal_bytes,
        matched_bytes,
        name_bytes,
        list_generation_ms: count()?,
        list_transfer_ms: count()?,
        source_errors: count()?,
        failed: 0,
        failed_at_peer: count()?,
        vanished: count()?,
        delete_limit_reached,
    })
}

pub(super) fn put_event(w: &mut Writer, event: &Event) -> Result<()> {
    match event {
        Event::Item(item) => {
            w.byte(event::ITEM);
            return put_item(w, item);
        }
        Event::Deleted { name, kind, mode } => {
            w.byte(event::DELETED);
            w.number(*kind);
            w.u32(*mode);
            w.shown_path(name);
        }
        Event::Reused {
            from,
            name,
            len_bytes,
            how,
        } => {
            w.byte(event::REUSED);
            w.number(*how);
            w.shown_path(from);
            w.shown_path(name);
            w.amount(*len_bytes, FILE_MAX_BYTES);
        }
        Event::Note(line) => {
            w.byte(event::NOTE);
            w.line(line);
        }
        Event::Problem(problem) => {
            w.byte(event::PROBLEM);
            put_problem(w, problem);
        }
        Event::Missing(name) => {
            w.byte(event::MISSING);
            w.shown_path(name);
        }
        Event::Listed {
            entries,
            bytes,
            complete,
        } => {
            w.byte(event::LISTED);
            w.flags(&[*complete]);
            w.amount(*entries, COUNT_MAX);
            w.amount(*bytes, TOTAL_MAX_BYTES);
        }
        Event::Checked(entries) => {
            w.byte(event::CHECKED);
            w.amount(*entries, COUNT_MAX);
        }
        Event::Begin(name) => {
            w.byte(event::BEGIN);
            w.shown_path(name);
        }
        Event::SourceChanged(name) => {
            w.byte(event::SOURCE_CHANGED);
            w.shown_path(name);
        }
        Event::Verified { len_bytes } => {
            w.byte(event::VERIFIED);
            w.amount(*len_bytes, FILE_MAX_BYTES);
        }
        Event::Planned(action) => {
            w.byte(event::PLANNED);
            put_planned(w, action)?;
        }
        Event::Explained(explained) => {
            w.byte(event::EXPLAINED);
            return explained_fact::put(w, explained);
        }
        Event::Progress {
            done_bytes,
            len_bytes,
        } => {
            w.byte(event::PROGRESS);
            w.amount(*done_bytes, FILE_MAX_BYTES);
            w.amount(*len_bytes, FILE_MAX_BYTES);
        }
    }
    Ok(())
}

pub(super) fn get_event(r: &mut Reader) -> Result<Event> {
    Ok(match r.byte("event")? {
        event::ITEM => Event::Item(Box::new(get_item(r)?)),
        event::DELETED => Event::Deleted {
            kind: r.number("kind")?,
            mode: r.u32("mode")?,
            name: r.owned("name", PATH_MAX_BYTES)?,
        },
        event::REUSED => {
            let how = r.number("kind of reuse")?;
            Event::Reused {
                from: r.owned("earlier name", PATH_MAX_BYTES)?,
                name: r.owned("name", PATH_MAX_BYTES)?,
                len_bytes: r.varint_up_to("length", FILE_MAX_BYTES)?,
                how,
            }
        }
        event::NOTE => Event::Note(r.line("note")?),
        event::PROBLEM => Event::Problem(get_problem(r)?),
        event::MISSING => Event::Missing(r.owned("name", PATH_MAX_BYTES)?),
        event::LISTED => {
            let [complete] = r.flags::<1>("list flags")?;
            let entries = r.varint_up_to("entries", COUNT_MAX)?;
            Event::Listed {
                entries,
                bytes: r.varint_up_to("bytes", TOTAL_MAX_BYTES)?,
                complete,
            }
        }
        event::CHECKED => Event::Checked(r.varint_up_to("entries", COUNT_MAX)?),
        event::BEGIN => Event::Begin(r.owned("name", PATH_MAX_BYTES)?),
        event::PLANNED => Event::Planned(Box::new(get_planned(r)?)),
        event::EXPLAINED => Event::Explained(Box::new(explained_fact::get(r)?)),
        event::SOURCE_CHANGED => Event::SourceChanged(r.owned("name", PATH_MAX_BYTES)?),
        event::VERIFIED => Event::Verified {
            len_bytes: r.varint_up_to("length", FILE_MAX_BYTES)?,
        },
        event::PROGRESS => Event::Progress {
            done_bytes: r.varint_up_to("bytes done", FILE_MAX_BYTES)?,
            len_bytes: r.varint_up_to("length", FILE_MAX_BYTES)?,
        },
        number => return Err(r.unknown("event", number)),
    })
}

/// Puts an action of a plan, as a line of a plan.
fn put_planned(w: &mut Writer, action: &PlannedAction) -> Result<()> {
    let mut line = Vec::new();
    plan_line::put(&mut line, &PlanLine::Action(Box::new(action.clone())));
    w.bytes("planned action", &line, PLANNED_MAX_BYTES)
}

fn get_planned(r: &mut Reader) -> Result<PlannedAction> {
    let line = r.bytes("planned action", PLANNED_MAX_BYTES)?;
    match plan_line::parse(line) {
        Ok(PlanLine::Action(action)) => Ok(*action),
        Ok(_) | Err(_) => Err(r.refuse("planned action", format_args!("is not one of a plan"))),
    }
}

pub(super) fn put_plan_piece(w: &mut Writer, piece: &PlanPiece) -> Result<()> {
    let PlanPiece {
        actions,
        creates_dest,
        is_last,
    } = piece;
    w.flags(&[*creates_dest, *is_last]);
    w.many("planned actions", actions, PLAN_ACTIONS_MAX, put_planned)
}

pub(super) fn get_plan_piece(r: &mut Reader) -> Result<PlanPiece> {
    let [creates_dest, is_last] = r.flags::<2>("flags of a plan")?;
    Ok(PlanPiece {
        actions: r.many(
            "planned actions",
            PLAN_ACTIONS_MAX,
            PLANNED_MIN_BYTES,
            get_planned,
        )?,
        creates_dest,
        is_last,
    })
}

fn put_item(w: &mut Writer, item: &Item) -> Result<()> {
    let Item {
        name,
        sender_path,
        kind,
        update,
        changes,
        target,
        linked_to,
        mode,
        uid,
        gid,
        ..
    } = item;
    let Item {
        mtime,
        atime,
        len_bytes,
        moved_bytes,
        digest,
        transfer,
        source_target,
        ..
    } = item;
    let target = source_target.as_ref().or(target.as_ref());
    w.flags(&[
        target.is_some(),
        linked_to.is_some(),
        atime.is_some(),
        digest.is_some(),
        *transfer,
    ]);
    w.number(*kind);
    w.number(*update);
    w.varint(u64::from(changes.bits()));
    w.shown_path(name);
    w.shown_path(sender_path);
    if let Some(target) = target {
        w.bytes("target", target, ITEM_TARGET_MAX_BYTES)?;
    }
    if let Some(linked_to) = linked_to {
        w.shown_path(linked_to);
    }
    w.u32(*mode);
    w.u32(*uid);
    w.u32(*gid);
    w.time("mtime", *mtime)?;
    if let Some(atime) = atime {
        w.time("atime", *atime)?;
    }
    w.amount(*len_bytes, FILE_MAX_BYTES);
    w.amount(*moved_bytes, FILE_MAX_BYTES);
    match digest {
        Some(digest) => w.bytes("digest", digest, SHOWN_DIGEST_MAX_BYTES),
        None => Ok(()),
    }
}

/// A target that a sender shows may be munged, so it can be longer than the target in a listing.
const ITEM_TARGET_MAX_BYTES: usize = 2 * TARGET_MAX_BYTES;

fn get_item(r: &mut Reader) -> Result<Item> {
    let [has_target, is_linked, has_atime, has_digest, transfer] = r.flags::<5>("item flags")?;
    let kind = r.number("kind")?;
    let update = r.number("update")?;
    let bits = r.u16("changes")?;
    let Some(changes) = Changes::from_bits(bits) else {
        return Err(r.refuse("changes", format_args!("have unknown bits ({bits:#06x})")));
    };
    let name = r.owned("name", PATH_MAX_BYTES)?;
    let sender_path = r.owned("path at the sender", PATH_MAX_BYTES)?;
    let target = r.when(has_target, |r| r.owned("target", ITEM_TARGET_MAX_BYTES))?;
    let linked_to = r.when(is_linked, |r| r.owned("linked name", PATH_MAX_BYTES))?;
    let mode = r.u32("mode")?;
    let uid = r.u32("uid")?;
    let gid = r.u32("gid")?;
    let mtime = r.time("mtime")?;
    let atime = r.when(has_atime, |r| r.time("atime"))?;
    let len_bytes = r.varint_up_to("length", FILE_MAX_BYTES)?;
    let moved_bytes = r.varint_up_to("bytes moved", FILE_MAX_BYTES)?;
    let digest = r.when(has_digest, |r| r.owned("digest", SHOWN_DIGEST_MAX_BYTES))?;
    Ok(Item {
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
    })
}

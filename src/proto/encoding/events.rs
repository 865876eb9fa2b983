//! Encoding of what a run reports: events, tallies, and the actions of plans.

use super::{get_problem, put_problem};
use crate::error::Result;
use crate::plan::Changes;
use crate::plan::planned::PlannedAction;
use crate::proto::bytes::{Reader, Writer};
use crate::proto::enum_values::event;
use crate::proto::explained_fact;
use crate::proto::limits::{
    COUNT_MAX, FILE_MAX_BYTES, PATH_MAX_BYTES, PLAN_ACTIONS_MAX, PLANNED_MAX_BYTES,
    TARGET_MAX_BYTES, TOTAL_MAX_BYTES,
};
use crate::proto::message::PlanPiece;
use crate::report::Tally;
use crate::report::event::{Event, Item};
use crate::report::plan_line::{self, PlanLine};
use crate::report::tally::Kinds;

/// The longest digest that `%C` prints.
const SHOWN_DIGEST_MAX_BYTES: usize = 64;
/// The minimum encoded length of an action of a plan: length field and the braces of a line.
const PLANNED_MIN_BYTES: usize = 3;
/// A target that a sender shows may be munged, so it can be longer than the target in a listing.
const ITEM_TARGET_MAX_BYTES: usize = 2 * TARGET_MAX_BYTES;

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

pub(in crate::proto) fn put_tally(w: &mut Writer, tally: &Tally) {
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

pub(in crate::proto) fn get_tally(r: &mut Reader) -> Result<Tally> {
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

pub(in crate::proto) fn put_event(w: &mut Writer, event: &Event) -> Result<()> {
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

pub(in crate::proto) fn get_event(r: &mut Reader) -> Result<Event> {
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

pub(in crate::proto) fn put_plan_piece(w: &mut Writer, piece: &PlanPiece) -> Result<()> {
    let PlanPiece {
        actions,
        creates_dest,
        is_last,
    } = piece;
    w.flags(&[*creates_dest, *is_last]);
    w.many("planned actions", actions, PLAN_ACTIONS_MAX, put_planned)
}

pub(in crate::proto) fn get_plan_piece(r: &mut Reader) -> Result<PlanPiece> {
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

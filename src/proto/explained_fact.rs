//! Encoding of what one end has found out about a path, for the event `explained`.

use super::bytes::{Reader, Writer};
use super::enum_values::{fact, outcome, place};
use super::limits::{
    FILE_MAX_BYTES, LINE_MAX_BYTES, PATH_MAX_BYTES, TARGET_MAX_BYTES, WORD_MAX_BYTES,
};
use crate::error::Result;
use crate::filter::{FoundRule, RulePlace};
use crate::flist::Kind;
use crate::plan::Changes;
use crate::plan::explained::{DecidedFact, DecidedOutcome, Explained, Fact};
use crate::plan::planned::EntryState;

pub(super) fn put(w: &mut Writer, explained: &Explained) -> Result<()> {
    let Explained { path, fact } = explained;
    w.bytes("path", path, PATH_MAX_BYTES)?;
    match fact {
        Fact::Rule { side, is_dir, rule } => {
            w.byte(fact::RULE);
            w.number(*side);
            put_rule(w, *is_dir, rule)
        }
        Fact::Absent(side) => {
            w.byte(fact::ABSENT);
            w.number(*side);
            Ok(())
        }
        Fact::AtDest(kind) => {
            w.byte(fact::AT_DEST);
            w.number(*kind);
            Ok(())
        }
        Fact::MountPoint => plain(w, fact::MOUNT_POINT),
        Fact::NotEntered => plain(w, fact::NOT_ENTERED),
        Fact::Decided(decided) => {
            w.byte(fact::DECIDED);
            put_decided(w, decided)
        }
        Fact::Pruned => plain(w, fact::PRUNED),
        Fact::NoRoom => plain(w, fact::NO_ROOM),
        Fact::Linked(leader) => {
            w.byte(fact::LINKED);
            w.bytes("linked name", leader, PATH_MAX_BYTES)
        }
        Fact::Extra(fate) => {
            w.byte(fact::EXTRA);
            w.number(*fate);
            Ok(())
        }
    }
}

fn plain(w: &mut Writer, number: u8) -> Result<()> {
    w.byte(number);
    Ok(())
}

pub(super) fn get(r: &mut Reader) -> Result<Explained> {
    let path = r.owned("path", PATH_MAX_BYTES)?;
    let fact = match r.byte("fact")? {
        fact::RULE => {
            let side = r.number("side")?;
            let (is_dir, rule) = get_rule(r)?;
            Fact::Rule { side, is_dir, rule }
        }
        fact::ABSENT => Fact::Absent(r.number("side")?),
        fact::AT_DEST => Fact::AtDest(r.number("kind")?),
        fact::MOUNT_POINT => Fact::MountPoint,
        fact::NOT_ENTERED => Fact::NotEntered,
        fact::DECIDED => Fact::Decided(Box::new(get_decided(r)?)),
        fact::PRUNED => Fact::Pruned,
        fact::NO_ROOM => Fact::NoRoom,
        fact::LINKED => Fact::Linked(r.owned("linked name", PATH_MAX_BYTES)?),
        fact::EXTRA => Fact::Extra(r.number("fate")?),
        number => return Err(r.unknown("fact", number)),
    };
    Ok(Explained { path, fact })
}

fn put_rule(w: &mut Writer, is_dir: bool, rule: &FoundRule) -> Result<()> {
    let FoundRule {
        include,
        absolute,
        negate,
        perishable,
        pattern,
        place,
    } = rule;
    w.flags(&[is_dir, *include, *absolute, *negate, *perishable]);
    w.bytes("pattern", pattern, WORD_MAX_BYTES)?;
    match place {
        RulePlace::Run => w.byte(place::RUN),
        RulePlace::Cvs => w.byte(place::CVS),
        RulePlace::Dir { file, line } => {
            w.byte(place::DIR);
            w.bytes("rule file", file, LINE_MAX_BYTES)?;
            w.u32(*line);
        }
    }
    Ok(())
}

fn get_rule(r: &mut Reader) -> Result<(bool, FoundRule)> {
    let [is_dir, include, absolute, negate, perishable] = r.flags::<5>("rule flags")?;
    let pattern = r.owned("pattern", WORD_MAX_BYTES)?;
    let place = match r.byte("place of a rule")? {
        place::RUN => RulePlace::Run,
        place::CVS => RulePlace::Cvs,
        place::DIR => RulePlace::Dir {
            file: r.owned("rule file", LINE_MAX_BYTES)?,
            line: r.u32("line")?,
        },
        number => return Err(r.unknown("place of a rule", number)),
    };
    let rule = FoundRule {
        include,
        absolute,
        negate,
        perishable,
        pattern,
        place,
    };
    Ok((is_dir, rule))
}

fn put_decided(w: &mut Writer, decided: &DecidedFact) -> Result<()> {
    let DecidedFact {
        outcome,
        in_the_way,
        source,
        dest,
    } = decided;
    let number = match outcome {
        DecidedOutcome::Keep => outcome::KEEP,
        DecidedOutcome::Adjust(_) => outcome::ADJUST,
        DecidedOutcome::Create(_) => outcome::CREATE,
        DecidedOutcome::Transfer(_) => outcome::TRANSFER,
        DecidedOutcome::LinkAlternate => outcome::LINK_ALTERNATE,
        DecidedOutcome::CopyAlternate(_) => outcome::COPY_ALTERNATE,
        DecidedOutcome::Elsewhere => outcome::ELSEWHERE,
        DecidedOutcome::Refuse(_) => outcome::REFUSE,
    };
    w.byte(number);
    match outcome {
        DecidedOutcome::Adjust(changes)
        | DecidedOutcome::Create(changes)
        | DecidedOutcome::Transfer(changes)
        | DecidedOutcome::CopyAlternate(changes) => w.varint(u64::from(changes.bits())),
        DecidedOutcome::Refuse(reason) => w.number(*reason),
        DecidedOutcome::Keep | DecidedOutcome::LinkAlternate | DecidedOutcome::Elsewhere => {}
    }
    w.number(*in_the_way);
    w.flags(&[dest.is_some()]);
    put_state(w, source)?;
    dest.as_ref().map_or(Ok(()), |dest| put_state(w, dest))
}

fn get_decided(r: &mut Reader) -> Result<DecidedFact> {
    let outcome = match r.byte("outcome")? {
        outcome::KEEP => DecidedOutcome::Keep,
        outcome::ADJUST => DecidedOutcome::Adjust(get_changes(r)?),
        outcome::CREATE => DecidedOutcome::Create(get_changes(r)?),
        outcome::TRANSFER => DecidedOutcome::Transfer(get_changes(r)?),
        outcome::LINK_ALTERNATE => DecidedOutcome::LinkAlternate,
        outcome::COPY_ALTERNATE => DecidedOutcome::CopyAlternate(get_changes(r)?),
        outcome::ELSEWHERE => DecidedOutcome::Elsewhere,
        outcome::REFUSE => DecidedOutcome::Refuse(r.number("reason")?),
        number => return Err(r.unknown("outcome", number)),
    };
    let in_the_way = r.number("what is in the way")?;
    let [has_dest] = r.flags::<1>("flags of a decision")?;
    Ok(DecidedFact {
        outcome,
        in_the_way,
        source: get_state(r)?,
        dest: r.when(has_dest, get_state)?,
    })
}

fn get_changes(r: &mut Reader) -> Result<Changes> {
    let bits = r.varint_up_to("changes", u64::from(u16::MAX))? as u16;
    Changes::from_bits(bits)
        .ok_or_else(|| r.refuse("changes", format_args!("have the unknown bits {bits:#x}")))
}

fn put_state(w: &mut Writer, state: &EntryState) -> Result<()> {
    let EntryState {
        // A part of the mode.
        kind: _,
        mode,
        uid,
        gid,
        len_bytes,
        mtime,
        target,
        rdev,
        // Only plans have them.
        ctime: _,
        digest: _,
        attributes: _,
    } = state;
    w.flags(&[
        uid.is_some(),
        gid.is_some(),
        len_bytes.is_some(),
        mtime.is_some(),
        target.is_some(),
        rdev.is_some(),
    ]);
    w.u32(*mode);
    for id in [uid, gid].into_iter().flatten() {
        w.u32(*id);
    }
    if let Some(len_bytes) = len_bytes {
        w.amount(*len_bytes, FILE_MAX_BYTES);
    }
    if let Some(mtime) = mtime {
        w.time("mtime", *mtime)?;
    }
    if let Some(target) = target {
        w.bytes("target", target, TARGET_MAX_BYTES)?;
    }
    if let Some(rdev) = rdev {
        w.varint(*rdev);
    }
    Ok(())
}

fn get_state(r: &mut Reader) -> Result<EntryState> {
    let [has_uid, has_gid, has_len, has_mtime, has_target, has_rdev] =
        r.flags::<6>("flags of a state")?;
    let mode = r.u32("mode")?;
    let kind = Kind::of_mode(mode)
        .ok_or_else(|| r.refuse("mode", format_args!("{mode:o} is not one of an entry")))?;
    Ok(EntryState {
        kind,
        mode,
        uid: r.when(has_uid, |r| r.u32("uid"))?,
        gid: r.when(has_gid, |r| r.u32("gid"))?,
        len_bytes: r.when(has_len, |r| r.varint_up_to("length", FILE_MAX_BYTES))?,
        mtime: r.when(has_mtime, |r| r.time("mtime"))?,
        target: r.when(has_target, |r| r.owned("target", TARGET_MAX_BYTES))?,
        rdev: r.when(has_rdev, |r| r.varint("device"))?,
        ctime: None,
        digest: None,
        attributes: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::InTheWay;

    #[test]
    fn facts_without_values_are_decoded_as_they_were_encoded() {
        for fact in [
            Fact::MountPoint,
            Fact::NotEntered,
            Fact::Pruned,
            Fact::NoRoom,
        ] {
            let explained = Explained {
                path: b"a".to_vec(),
                fact,
            };
            let mut out = Vec::new();
            put(&mut Writer::new("Test", &mut out), &explained).unwrap();
            let decoded = get(&mut Reader::new("Test", &out)).unwrap();
            assert_eq!(format!("{decoded:?}"), format!("{explained:?}"));
        }
    }

    #[test]
    fn changes_of_a_decision_are_decoded_as_they_were_encoded() {
        let changes = Changes::NEW | Changes::TIME;
        for outcome in [
            DecidedOutcome::Adjust(changes),
            DecidedOutcome::Create(changes),
            DecidedOutcome::Transfer(changes),
            DecidedOutcome::CopyAlternate(changes),
        ] {
            let explained = Explained {
                path: b"a".to_vec(),
                fact: Fact::Decided(Box::new(DecidedFact {
                    outcome,
                    in_the_way: InTheWay::Other,
                    source: EntryState {
                        kind: Kind::File,
                        mode: 0o100_644,
                        uid: None,
                        gid: None,
                        len_bytes: Some(300),
                        mtime: None,
                        target: None,
                        rdev: None,
                        ctime: None,
                        digest: None,
                        attributes: Vec::new(),
                    },
                    dest: None,
                })),
            };
            let mut out = Vec::new();
            put(&mut Writer::new("Test", &mut out), &explained).unwrap();
            let decoded = get(&mut Reader::new("Test", &out)).unwrap();
            assert_eq!(format!("{decoded:?}"), format!("{explained:?}"));
        }
    }
}

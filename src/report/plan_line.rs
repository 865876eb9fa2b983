//! The lines of a stored plan: JSON Lines, which docs/json-schema.json describes.

use super::itemize::{DELETING, itemize};
use super::json::{JsonText, kind_name};
use crate::exit::Exit;
use crate::flist::{Kind, Time};
use crate::path::RelPath;
use crate::plan::Changes;
use crate::plan::planned::{
    AttributeState, EntryState, HardLinks, NameSet, PlanGap, PlannedAct, PlannedAction,
    PlannedBackup, PlannedTwin, SharedFile, TwinUse,
};
use crate::report::event::Update;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// The version of the format. A plan of another version is refused.
pub const VERSION: u32 = 6;

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanHeader {
    /// The program that made the plan.
    pub program: String,
    /// When, in seconds since 1970.
    pub made_unix_secs: i64,
    /// The options of the run.
    pub options: Vec<Vec<u8>>,
    /// The operands as given.
    pub operands: Vec<Vec<u8>>,
    /// The working directory, from which relative operands start.
    pub cwd: Vec<u8>,
}

/// A line of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum PlanLine {
    Header(PlanHeader),
    Action(Box<PlannedAction>),
    /// The last line but one: what the plan lacks, if its dry run did not end with 0.
    Outcome(Option<PlanGap>),
    /// The last line: the number of actions, and the BLAKE3 digest of all lines above in hexadecimal digits.
    End {
        actions: u64,
        digest: String,
    },
}

/// A text that may have bytes that are not UTF-8.
#[derive(Serialize, Deserialize)]
struct WordText {
    text: String,
    /// All bytes in base64, if some are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    text_base64: Option<String>,
}

impl WordText {
    fn new(bytes: &[u8]) -> WordText {
        let JsonText { path, path_base64 } = JsonText::new(bytes);
        WordText {
            text: path.into_owned(),
            text_base64: path_base64,
        }
    }

    fn bytes(self) -> Option<Vec<u8>> {
        bytes_of(self.text, self.text_base64)
    }
}

/// A path, in the form of `--json`.
#[derive(Serialize, Deserialize)]
struct PathText {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    path_base64: Option<String>,
}

impl PathText {
    fn new(bytes: &[u8]) -> PathText {
        let JsonText { path, path_base64 } = JsonText::new(bytes);
        PathText {
            path: path.into_owned(),
            path_base64,
        }
    }

    fn bytes(self) -> Option<Vec<u8>> {
        bytes_of(self.path, self.path_base64)
    }
}

fn bytes_of(text: String, base64: Option<String>) -> Option<Vec<u8>> {
    match base64 {
        Some(encoded) => STANDARD.decode(encoded).ok(),
        None => Some(text.into_bytes()),
    }
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum StoredLine {
    Plan(HeaderLine),
    Action(Box<ActionLine>),
    PlanOutcome(OutcomeLine),
    PlanEnd(PlanEndLine),
}

#[derive(Serialize, Deserialize)]
struct HeaderLine {
    version: u32,
    program: String,
    made_unix_secs: i64,
    options: Vec<WordText>,
    operands: Vec<PathText>,
    cwd: PathText,
}

#[derive(Serialize, Deserialize)]
struct OutcomeLine {
    exit_code: u8,
    /// Why the plan is incomplete, for people.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    incomplete: Option<String>,
}

impl OutcomeLine {
    fn new(gap: Option<PlanGap>) -> OutcomeLine {
        let exit = gap.map_or(Exit::Ok, PlanGap::exit);
        OutcomeLine {
            exit_code: exit.code(),
            incomplete: gap.map(|gap| gap.reason().to_owned()),
        }
    }

    fn outcome(&self) -> Option<PlanLine> {
        let exit = Exit::of_code(self.exit_code)?;
        let gap = PlanGap::of_exit(exit).ok()?;
        Some(PlanLine::Outcome(gap))
    }
}

#[derive(Serialize, Deserialize)]
struct PlanEndLine {
    actions: u64,
    digest: String,
}

#[derive(Serialize, Deserialize)]
struct ActionLine {
    action: String,
    #[serde(flatten)]
    path: PathText,
    /// The columns of `-i`, for people.
    itemize: String,
    /// What differs, in the bits of the protocol.
    changes: u16,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    before: Option<StateObject>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    after: Option<StateObject>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    shared_file: Option<SharedFileObject>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    hard_links: Option<HardLinksObject>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    backup: Option<BackupObject>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    twin: Option<TwinObject>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    heir: Option<PathText>,
}

/// The word for the use of a twin that is a new file itself.
const COPIED_WHEN_NEW: &str = "copied_when_new";

#[derive(Serialize, Deserialize)]
struct TwinObject {
    #[serde(rename = "use")]
    twin_use: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    tree: Option<u32>,
    #[serde(flatten)]
    path: PathText,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    before: Option<StateObject>,
    /// In hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    digest: Option<String>,
}

impl TwinObject {
    fn new(twin: &PlannedTwin) -> TwinObject {
        match twin {
            PlannedTwin::Found {
                twin_use,
                tree,
                path,
                before,
            } => TwinObject {
                twin_use: twin_use.name().to_owned(),
                tree: *tree,
                path: PathText::new(path),
                before: Some(StateObject::new(before)),
                digest: None,
            },
            PlannedTwin::New { path, digest } => TwinObject {
                twin_use: COPIED_WHEN_NEW.to_owned(),
                tree: None,
                path: PathText::new(path),
                before: None,
                digest: Some(hex_of(*digest)),
            },
        }
    }

    fn twin(self) -> Option<PlannedTwin> {
        let path = self.path.bytes()?;
        if path.is_empty() || RelPath::parse(&path).is_err() {
            return None;
        }
        match (self.before, self.digest) {
            (Some(before), None) => {
                let twin_use = TwinUse::ALL
                    .into_iter()
                    .find(|it| it.name() == self.twin_use)?;
                let before = before.state()?;
                let is_renamed = twin_use == TwinUse::Renamed;
                if before.kind != Kind::File || is_renamed && self.tree.is_some() {
                    return None;
                }
                Some(PlannedTwin::Found {
                    twin_use,
                    tree: self.tree,
                    path,
                    before: Box::new(before),
                })
            }
            (None, Some(digest)) if self.twin_use == COPIED_WHEN_NEW && self.tree.is_none() => {
                Some(PlannedTwin::New {
                    path,
                    digest: digest_of(&digest)?,
                })
            }
            (_, _) => None,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct BackupObject {
    #[serde(flatten)]
    path: PathText,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    before: Option<StateObject>,
}

impl BackupObject {
    fn new(backup: &PlannedBackup) -> BackupObject {
        BackupObject {
            path: PathText::new(&backup.path),
            before: backup.before.as_ref().map(StateObject::new),
        }
    }

    fn backup(self) -> Option<PlannedBackup> {
        let before = match self.before {
            Some(object) => Some(object.state()?),
            None => None,
        };
        Some(PlannedBackup {
            path: self.path.bytes()?,
            before,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct SharedFileObject {
    device: u64,
    inode: u64,
}

#[derive(Serialize, Deserialize)]
struct HardLinksObject {
    first: PathText,
    names: u32,
    /// In hexadecimal digits.
    digest: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    taken: Option<NameSetObject>,
}

#[derive(Serialize, Deserialize)]
struct NameSetObject {
    names: u32,
    /// In hexadecimal digits.
    digest: String,
}

impl NameSetObject {
    fn names(&self) -> Option<NameSet> {
        Some(NameSet {
            count: self.names,
            digest: digest_of(&self.digest)?,
        })
    }
}

impl HardLinksObject {
    fn new(links: &HardLinks) -> HardLinksObject {
        HardLinksObject {
            first: PathText::new(&links.first),
            names: links.names.count,
            digest: hex_of(links.names.digest),
            taken: if links.taken == NameSet::default() {
                None
            } else {
                Some(NameSetObject {
                    names: links.taken.count,
                    digest: hex_of(links.taken.digest),
                })
            },
        }
    }

    fn links(self) -> Option<HardLinks> {
        let names = NameSet {
            count: self.names,
            digest: digest_of(&self.digest)?,
        };
        Some(HardLinks {
            first: self.first.bytes()?,
            names,
            taken: match self.taken {
                Some(object) => object.names()?,
                None => NameSet::default(),
            },
        })
    }
}

fn hex_of(digest: [u8; 16]) -> String {
    let digest = u128::from_be_bytes(digest);
    format!("{digest:032x}")
}

fn digest_of(hex: &str) -> Option<[u8; 16]> {
    let digest = u128::from_str_radix(hex, 16).ok()?;
    Some(digest.to_be_bytes())
}

#[derive(Serialize, Deserialize)]
struct StateObject {
    kind: String,
    /// In octal, with the file type.
    mode: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    gid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    size_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    mtime_secs: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    mtime_nanos: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    target: Option<PathText>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    device: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    ctime_secs: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    ctime_nanos: Option<u32>,
    /// In hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    attributes: Vec<AttributeObject>,
}

#[derive(Serialize, Deserialize)]
struct AttributeObject {
    #[serde(flatten)]
    name: WordText,
    /// In hexadecimal digits.
    digest: String,
}

impl AttributeObject {
    fn new(state: &AttributeState) -> AttributeObject {
        AttributeObject {
            name: WordText::new(&state.name),
            digest: hex_of(state.digest),
        }
    }

    fn state(self) -> Option<AttributeState> {
        Some(AttributeState {
            name: self.name.bytes()?,
            digest: digest_of(&self.digest)?,
        })
    }
}

/// Returns a time; `Err`: its parts do not belong together.
fn time_of(secs: Option<i64>, nanos: Option<u32>) -> Result<Option<Time>, ()> {
    match (secs, nanos) {
        (Some(secs), Some(nanos)) if nanos < 1_000_000_000 => Ok(Some(Time { secs, nanos })),
        (None, None) => Ok(None),
        _ => Err(()),
    }
}

impl StateObject {
    fn new(state: &EntryState) -> StateObject {
        StateObject {
            kind: kind_name(state.kind).to_owned(),
            mode: format!("{:06o}", state.mode),
            uid: state.uid,
            gid: state.gid,
            size_bytes: state.len_bytes,
            mtime_secs: state.mtime.map(|time| time.secs),
            mtime_nanos: state.mtime.map(|time| time.nanos),
            target: state.target.as_deref().map(PathText::new),
            device: state.rdev,
            ctime_secs: state.ctime.map(|time| time.secs),
            ctime_nanos: state.ctime.map(|time| time.nanos),
            digest: state.digest.map(hex_of),
            attributes: state.attributes.iter().map(AttributeObject::new).collect(),
        }
    }

    fn state(self) -> Option<EntryState> {
        let mode = u32::from_str_radix(&self.mode, 8).ok()?;
        let kind = Kind::of_mode(mode)?;
        let mtime = time_of(self.mtime_secs, self.mtime_nanos).ok()?;
        let ctime = time_of(self.ctime_secs, self.ctime_nanos).ok()?;
        let attributes = self.attributes.into_iter().map(AttributeObject::state);
        let attributes = attributes.collect::<Option<Vec<_>>>()?;
        let target = match self.target {
            Some(target) => Some(target.bytes()?),
            None => None,
        };
        let digest = match self.digest {
            Some(hex) => Some(digest_of(&hex)?),
            None => None,
        };
        if kind_name(kind) != self.kind {
            return None;
        }
        Some(EntryState {
            kind,
            mode,
            uid: self.uid,
            gid: self.gid,
            len_bytes: self.size_bytes,
            mtime,
            target,
            rdev: self.device,
            ctime,
            digest,
            attributes,
        })
    }
}

/// Returns the columns of `-i` for an action.
pub fn columns(action: &PlannedAction) -> Vec<u8> {
    let update = match action.act {
        PlannedAct::Delete | PlannedAct::Vacate => return DELETING.to_vec(),
        PlannedAct::Create | PlannedAct::Copy => Update::Local,
        PlannedAct::Transfer => Update::Received,
        PlannedAct::Adjust => Update::Attrs,
        PlannedAct::Link | PlannedAct::HardLink => Update::HardLink,
    };
    itemize(update, action.kind(), action.changes).to_vec()
}

/// Appends a line with its newline.
pub fn put(out: &mut Vec<u8>, line: &PlanLine) {
    let line = match line {
        PlanLine::Header(header) => StoredLine::Plan(HeaderLine {
            version: VERSION,
            program: header.program.clone(),
            made_unix_secs: header.made_unix_secs,
            options: header
                .options
                .iter()
                .map(|word| WordText::new(word))
                .collect(),
            operands: header
                .operands
                .iter()
                .map(|path| PathText::new(path))
                .collect(),
            cwd: PathText::new(&header.cwd),
        }),
        PlanLine::Action(action) => StoredLine::Action(Box::new(ActionLine {
            action: action.act.name().to_owned(),
            path: PathText::new(&action.path),
            itemize: String::from_utf8_lossy(&columns(action)).into_owned(),
            changes: action.changes.bits(),
            before: action.before.as_ref().map(StateObject::new),
            after: action.after.as_ref().map(StateObject::new),
            shared_file: action.file.map(|SharedFile { dev, ino }| SharedFileObject {
                device: dev,
                inode: ino,
            }),
            hard_links: action.links.as_ref().map(HardLinksObject::new),
            backup: action.backup.as_ref().map(BackupObject::new),
            twin: action.twin.as_deref().map(TwinObject::new),
            heir: action.heir.as_deref().map(PathText::new),
        })),
        PlanLine::Outcome(gap) => StoredLine::PlanOutcome(OutcomeLine::new(*gap)),
        PlanLine::End { actions, digest } => StoredLine::PlanEnd(PlanEndLine {
            actions: *actions,
            digest: digest.clone(),
        }),
    };
    super::json::put_plain(out, &line);
}

/// Parses a line. `Err`: what is wrong with it.
pub fn parse(line: &[u8]) -> Result<PlanLine, String> {
    match serde_json::from_slice(line) {
        Ok(StoredLine::Plan(header)) if header.version != VERSION => {
            Err(other_version(header.version))
        }
        Ok(StoredLine::Plan(header)) => header_of(header).ok_or_else(damaged),
        Ok(StoredLine::Action(action)) => {
            let action = action_of(*action).ok_or_else(damaged)?;
            Ok(PlanLine::Action(Box::new(action)))
        }
        Ok(StoredLine::PlanOutcome(line)) => line.outcome().ok_or_else(damaged),
        Ok(StoredLine::PlanEnd(PlanEndLine { actions, digest })) => {
            Ok(PlanLine::End { actions, digest })
        }
        Err(_) => Err(match serde_json::from_slice(line) {
            // The fields of another version may be different ones.
            Ok(VersionOnly { version }) if version != VERSION => other_version(version),
            _ => damaged(),
        }),
    }
}

/// The field of the first line that every version has.
#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

fn other_version(version: u32) -> String {
    format!("it has version {version} of the format, and this program reads version {VERSION}")
}

fn damaged() -> String {
    "a line is not one of a plan".to_owned()
}

fn header_of(header: HeaderLine) -> Option<PlanLine> {
    let options: Option<Vec<_>> = header.options.into_iter().map(WordText::bytes).collect();
    let operands: Option<Vec<_>> = header.operands.into_iter().map(PathText::bytes).collect();
    Some(PlanLine::Header(PlanHeader {
        program: header.program,
        made_unix_secs: header.made_unix_secs,
        options: options?,
        operands: operands?,
        cwd: header.cwd.bytes()?,
    }))
}

fn action_of(line: ActionLine) -> Option<PlannedAction> {
    let state = |object: Option<StateObject>| match object {
        Some(object) => object.state().map(Some),
        None => Some(None),
    };
    let act = PlannedAct::ALL
        .into_iter()
        .find(|act| act.name() == line.action)?;
    let path = line.path.bytes()?;
    let is_below = !path.is_empty() && RelPath::parse(&path).is_ok();
    if !is_below && path != b"." {
        return None;
    }
    let action = PlannedAction {
        path,
        act,
        changes: Changes::from_bits(line.changes)?,
        before: state(line.before)?,
        after: state(line.after)?,
        file: line.shared_file.map(|object| SharedFile {
            dev: object.device,
            ino: object.inode,
        }),
        links: match line.hard_links {
            Some(object) => Some(object.links()?),
            None => None,
        },
        backup: match line.backup {
            Some(object) => Some(object.backup()?),
            None => None,
        },
        twin: match line.twin {
            Some(object) => Some(Box::new(object.twin()?)),
            None => None,
        },
        heir: match line.heir {
            Some(path) => Some(path.bytes()?),
            None => None,
        },
    };
    let is_deletion = act == PlannedAct::Delete;
    let has_states =
        is_deletion == action.after.is_none() && (!is_deletion || action.before.is_some());
    let has_names = action.links.is_some() || act != PlannedAct::HardLink;
    // A directory has no backup, only what is in it.
    let has_original = action.backup.is_none()
        || action
            .before
            .as_ref()
            .is_some_and(|before| before.kind != Kind::Dir);
    // Only the content of a new file comes from another one, and only a file is renamed.
    let is_new_file =
        act == PlannedAct::Transfer && action.before.is_none() && action.links.is_none();
    let has_twin = action.twin.is_none() || is_new_file;
    let has_heir = action.heir.is_none() || is_deletion && action.kind() == Kind::File;
    if has_states && has_names && has_original && has_twin && has_heir {
        Some(action)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action() -> PlannedAction {
        let state = EntryState {
            kind: Kind::File,
            mode: 0o100_640,
            uid: Some(1),
            gid: None,
            len_bytes: Some(u64::MAX),
            mtime: Some(Time {
                secs: -1,
                nanos: 999_999_999,
            }),
            target: None,
            rdev: None,
            ctime: Some(Time { secs: 7, nanos: 8 }),
            digest: Some([2; 16]),
            attributes: vec![AttributeState {
                name: b"user.\xff".to_vec(),
                digest: [1; 16],
            }],
        };
        let link = EntryState {
            kind: Kind::Symlink,
            mode: 0o120_777,
            len_bytes: None,
            target: Some(b"\xffx".to_vec()),
            ..state.clone()
        };
        let older = EntryState {
            len_bytes: Some(1),
            ..state.clone()
        };
        PlannedAction {
            path: b"d/a\xfe\n".to_vec(),
            act: PlannedAct::Transfer,
            changes: Changes::SIZE | Changes::TIME,
            before: Some(link),
            after: Some(state),
            file: Some(SharedFile {
                dev: u64::MAX,
                ino: 5,
            }),
            links: Some(HardLinks {
                first: b"d/\xfe".to_vec(),
                names: NameSet {
                    count: 2,
                    digest: [7; 16],
                },
                taken: NameSet {
                    count: 1,
                    digest: [6; 16],
                },
            }),
            backup: Some(PlannedBackup {
                path: b"../old/d/a\xfe\n~".to_vec(),
                before: Some(older),
            }),
            twin: None,
            heir: None,
        }
    }

    /// Returns a new file that takes the content of another one.
    fn heir(twin: PlannedTwin) -> PlannedAction {
        PlannedAction {
            before: None,
            links: None,
            backup: None,
            twin: Some(Box::new(twin)),
            ..action()
        }
    }

    fn found_twin(twin_use: TwinUse, tree: Option<u32>) -> PlannedTwin {
        PlannedTwin::Found {
            twin_use,
            tree,
            path: b"d/\xff".to_vec(),
            before: Box::new(action().after.expect("it has one")),
        }
    }

    fn new_twin() -> PlannedTwin {
        PlannedTwin::New {
            path: b"d/new".to_vec(),
            digest: [9; 16],
        }
    }

    /// Returns the deletion of a twin that is renamed.
    fn passed_on() -> PlannedAction {
        PlannedAction {
            act: PlannedAct::Delete,
            before: action().after,
            after: None,
            links: None,
            backup: None,
            heir: Some(b"d/\xfe".to_vec()),
            ..action()
        }
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        let header = PlanHeader {
            program: "sparsync 1".to_owned(),
            made_unix_secs: 5,
            options: vec![b"-a".to_vec(), b"--exclude=\xff".to_vec()],
            operands: vec![b"a\xff/".to_vec(), b"b".to_vec()],
            cwd: b"/".to_vec(),
        };
        let end = PlanLine::End {
            actions: 1,
            digest: "00".to_owned(),
        };
        for line in [
            PlanLine::Header(header),
            PlanLine::Action(Box::new(action())),
            PlanLine::Action(Box::new(heir(found_twin(TwinUse::Renamed, None)))),
            PlanLine::Action(Box::new(heir(found_twin(TwinUse::Linked, Some(1))))),
            PlanLine::Action(Box::new(heir(new_twin()))),
            PlanLine::Action(Box::new(passed_on())),
            PlanLine::Outcome(None),
            PlanLine::Outcome(Some(PlanGap::Failed)),
            PlanLine::Outcome(Some(PlanGap::Vanished)),
            PlanLine::Outcome(Some(PlanGap::DeletionsStopped)),
            end,
        ] {
            let mut out = Vec::new();
            put(&mut out, &line);
            assert_eq!(out.pop(), Some(b'\n'));
            assert!(!out.contains(&b'\n'));
            assert_eq!(parse(&out), Ok(line));
        }
    }

    #[test]
    fn other_versions_and_wrong_lines_are_refused_with_the_reason() {
        assert_eq!(
            parse(br#"{"type":"plan","version":7,"new_field":[]}"#),
            Err(other_version(7))
        );
        let mut deletion = action();
        deletion.act = PlannedAct::Delete;
        let mut link = action();
        link.act = PlannedAct::HardLink;
        link.links = None;
        let mut backup = action();
        backup.before = None;
        let not_new = PlannedAction {
            before: action().before,
            ..heir(new_twin())
        };
        let of_dir = PlannedAction {
            before: action().after.map(|state| EntryState {
                kind: Kind::Dir,
                mode: 0o040_755,
                ..state
            }),
            ..passed_on()
        };
        let elsewhere = heir(found_twin(TwinUse::Renamed, Some(0)));
        let nowhere = heir(PlannedTwin::New {
            path: b"../d".to_vec(),
            digest: [9; 16],
        });
        let twins = [not_new, of_dir, elsewhere, nowhere];
        for wrong in [deletion, link, backup].into_iter().chain(twins) {
            let mut out = Vec::new();
            put(&mut out, &PlanLine::Action(Box::new(wrong)));
            assert_eq!(parse(&out), Err(damaged()));
        }
        let no_plan = &br#"{"type":"plan_outcome","exit_code":20}"#[..];
        for line in [no_plan, b"{}", b"x", b""] {
            assert_eq!(parse(line), Err(damaged()));
        }
    }
}

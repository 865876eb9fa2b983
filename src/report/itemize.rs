//! The eleven columns of itemized output: `>f.st......`.

use super::event::Update;
use crate::flist::Kind;
use crate::plan::changes::Changes;

/// The columns of `%i`, always eleven.
pub type Columns = [u8; 11];

/// The columns for a removed entry.
pub const DELETING: &Columns = b"*deleting  ";

/// Returns the columns that show how an entry was updated, its kind, and what differed.
///
/// A new entry has `+` in every attribute column. Without any change these columns are blank, or dots if data was
/// transferred nevertheless (`-I`).
pub fn itemize(update: Update, kind: Kind, changes: Changes) -> Columns {
    let how = match update {
        Update::Received => b'>',
        Update::Sent => b'<',
        Update::Local => b'c',
        Update::HardLink => b'h',
        Update::Attrs => b'.',
    };
    let fill = if changes.has(Changes::UNKNOWN) {
        b'?'
    } else if changes.has(Changes::NEW) {
        b'+'
    } else if changes.is_none() && !matches!(update, Update::Received | Update::Sent) {
        b' '
    } else {
        b'.'
    };
    let mut columns = [fill; 11];
    columns[0] = how;
    columns[1] = kind.letter();
    if fill == b'.' {
        for shown in changes.shown() {
            columns[shown.column] = shown.letter;
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn itemize_columns_match_rsync() {
        use Update::*;
        let new = Changes::NEW;
        let cases: &[(Update, Kind, Changes, &[u8; 11])] = &[
            (Local, Kind::Dir, new, b"cd+++++++++"),
            (Received, Kind::File, new, b">f+++++++++"),
            (Local, Kind::Special, new, b"cS+++++++++"),
            (Local, Kind::Symlink, new, b"cL+++++++++"),
            (Local, Kind::Device, new, b"cD+++++++++"),
            (
                HardLink,
                Kind::File,
                new | Changes::TIME | Changes::SIZE,
                b"hf+++++++++",
            ),
            (Sent, Kind::File, Changes::SIZE, b"<f.s......."),
            (Received, Kind::File, Changes::CHECKSUM, b">fc........"),
            (
                Received,
                Kind::File,
                Changes::SIZE | Changes::TIME_NOW,
                b">f.sT......",
            ),
            (Received, Kind::File, Changes::NONE, b">f........."),
            (Attrs, Kind::File, Changes::PERMS, b".f...p....."),
            (
                Attrs,
                Kind::File,
                Changes::ATIME | Changes::XATTR,
                b".f......u.x",
            ),
            (Attrs, Kind::File, Changes::ACL, b".f.......a."),
            (
                Attrs,
                Kind::File,
                Changes::OWNER | Changes::GROUP,
                b".f....og...",
            ),
            (Attrs, Kind::Dir, Changes::NONE, b".d         "),
            (HardLink, Kind::File, Changes::NONE, b"hf         "),
            (Local, Kind::File, Changes::NONE, b"cf         "),
            (
                Local,
                Kind::Symlink,
                Changes::CHECKSUM | Changes::TIME,
                b"cLc.t......",
            ),
            (Local, Kind::File, Changes::PERMS, b"cf...p....."),
            (
                Sent,
                Kind::File,
                Changes::UNKNOWN | Changes::NEW,
                b"<f?????????",
            ),
        ];
        for (update, kind, changes, want) in cases {
            let got = itemize(*update, *kind, *changes);
            assert_eq!(
                got.escape_ascii().to_string(),
                want.escape_ascii().to_string()
            );
        }
    }
}

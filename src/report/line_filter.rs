//! Chooses the line, if any, for an entry. Pure; other modules format the line.

use super::event::{Item, Update};
use crate::flist::Kind;
use crate::options::Output;

/// The options that determine the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The level of `--info=name`.
    pub name: u8,
    /// Whether `--out-format` (including the one that `-i` implies) has `%i`.
    pub itemizes: bool,
    /// `-ii` or `--info=name2`: unchanged entries get a line too.
    pub unchanged: bool,
}

/// The line for an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineKind {
    /// None.
    Nothing,
    /// The line of the format; without a format `name`, ` -> target`, ` => link`.
    Full,
    /// Only the name, whatever the format: for changed attributes of an entry that is not a directory, at `name2`.
    Name,
    /// `name is uptodate`, whatever the format.
    UpToDate,
}

impl Choice {
    /// Extracts the relevant options. `itemizes`: whether the format has `%i`.
    pub fn from_output(output: &Output, itemizes: bool) -> Choice {
        Choice {
            name: output.info.name,
            itemizes,
            unchanged: output.itemize >= 2 || output.info.name >= 2,
        }
    }

    /// Returns the line for an entry.
    pub fn line(self, item: &Item) -> LineKind {
        self.line_for(
            item.update,
            item.kind,
            !item.changes.is_none(),
            item.transfer,
            item.linked_to.is_some(),
        )
    }

    /// Returns whether unchanged entries can get a line.
    pub fn shows_unchanged(self) -> bool {
        if self.itemizes {
            self.unchanged
        } else {
            self.name >= 2
        }
    }

    /// Returns whether notes about unchanged entries are printed, which are no lines of a format.
    pub fn prints_notes(self) -> bool {
        !self.itemizes && self.name >= 2
    }

    fn line_for(
        self,
        update: Update,
        kind: Kind,
        changed: bool,
        transfer: bool,
        linked: bool,
    ) -> LineKind {
        let is_local = matches!(update, Update::Local | Update::HardLink);
        let dir = kind == Kind::Dir;
        // A new hard link gets a line although nothing differs: its first name was replaced.
        let done = transfer || linked && update == Update::HardLink;
        if done || changed && (self.itemizes || is_local || dir) || self.itemizes && self.unchanged
        {
            LineKind::Full
        } else if self.itemizes || self.name < 2 {
            LineKind::Nothing
        } else if changed {
            LineKind::Name
        } else if dir && !is_local {
            LineKind::Nothing
        } else {
            LineKind::UpToDate
        }
    }

    /// Returns whether the entry gets a line in the log file. The rule is that of stdout without `-q`, with two
    /// exceptions: a dry run does not log transfers, and an unchanged entry also needs a `%i` in the log's format.
    pub fn logs(self, item: &Item, dry_run: bool, log_itemizes: bool) -> bool {
        if self.line(item) != LineKind::Full {
            return false;
        }
        if item.transfer {
            return !dry_run;
        }
        log_itemizes || !item.changes.is_none() || item.linked_to.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LineKind::*;

    /// The columns: -v, -vv (name2), -i, -ii, --out-format=%n, --out-format=%n with name2, --info=name0.
    const MODES: [Choice; 7] = [
        Choice {
            name: 1,
            itemizes: false,
            unchanged: false,
        },
        Choice {
            name: 2,
            itemizes: false,
            unchanged: true,
        },
        Choice {
            name: 0,
            itemizes: true,
            unchanged: false,
        },
        Choice {
            name: 0,
            itemizes: true,
            unchanged: true,
        },
        Choice {
            name: 0,
            itemizes: false,
            unchanged: false,
        },
        Choice {
            name: 2,
            itemizes: false,
            unchanged: true,
        },
        Choice {
            name: 0,
            itemizes: false,
            unchanged: false,
        },
    ];

    /// The case; update, kind, changed, transfer, linked; the line in each mode.
    type Row = (&'static str, Update, Kind, bool, bool, bool, [LineKind; 7]);

    #[test]
    fn printed_lines_per_mode_match_rsync() {
        use Update::*;
        let file = Kind::File;
        let dir = Kind::Dir;
        let link = Kind::Symlink;
        let dev = Kind::Device;
        #[rustfmt::skip]
        let rows: &[Row] = &[
            // what                 update    kind  changed transfer linked   -v       -vv       -i       -ii    %n       %n+name2  name0
            ("new file",            Received, file, true,  true,  false, [Full,    Full,     Full,    Full, Full,    Full,     Full]),
            ("changed data",        Received, file, true,  true,  false, [Full,    Full,     Full,    Full, Full,    Full,     Full]),
            ("same, -I",            Received, file, false, true,  false, [Full,    Full,     Full,    Full, Full,    Full,     Full]),
            ("attrs of a file",     Attrs,    file, true,  false, false, [Nothing, Name,     Full,    Full, Nothing, Name,     Nothing]),
            ("same file",           Attrs,    file, false, false, false, [Nothing, UpToDate, Nothing, Full, Nothing, UpToDate, Nothing]),
            ("new directory",       Local,    dir,  true,  false, false, [Full,    Full,     Full,    Full, Full,    Full,     Full]),
            ("attrs of a directory",Attrs,    dir,  true,  false, false, [Full,    Full,     Full,    Full, Full,    Full,     Full]),
            ("same directory",      Attrs,    dir,  false, false, false, [Nothing, Nothing,  Nothing, Full, Nothing, Nothing,  Nothing]),
            ("alt-dest directory",  Local,    dir,  false, false, false, [Nothing, UpToDate, Nothing, Full, Nothing, UpToDate, Nothing]),
            ("new symlink",         Local,    link, true,  false, false, [Full,    Full,     Full,    Full, Full,    Full,     Full]),
            ("symlink's time",      Attrs,    link, true,  false, false, [Nothing, Name,     Full,    Full, Nothing, Name,     Nothing]),
            ("same symlink",        Attrs,    link, false, false, false, [Nothing, UpToDate, Nothing, Full, Nothing, UpToDate, Nothing]),
            ("new device",          Local,    dev,  true,  false, false, [Full,    Full,     Full,    Full, Full,    Full,     Full]),
            ("attrs of a device",   Attrs,    dev,  true,  false, false, [Nothing, Name,     Full,    Full, Nothing, Name,     Nothing]),
            ("same device",         Attrs,    dev,  false, false, false, [Nothing, UpToDate, Nothing, Full, Nothing, UpToDate, Nothing]),
            ("new hard link",       HardLink, file, true,  false, true,  [Full,    Full,     Full,    Full, Full,    Full,     Full]),
            ("relinked, -I",        HardLink, file, false, false, true,  [Full,    Full,     Full,    Full, Full,    Full,     Full]),
            ("still linked",        HardLink, file, false, false, false, [Nothing, UpToDate, Nothing, Full, Nothing, UpToDate, Nothing]),
            ("alt-dest copy, attrs",Local,    file, true,  false, false, [Full,    Full,     Full,    Full, Full,    Full,     Full]),
            ("alt-dest copy, same", Local,    file, false, false, false, [Nothing, UpToDate, Nothing, Full, Nothing, UpToDate, Nothing]),
        ];
        for (what, update, kind, changed, transfer, linked, want) in rows {
            for (mode, want) in MODES.iter().zip(want) {
                assert_eq!(
                    mode.line_for(*update, *kind, *changed, *transfer, *linked),
                    *want,
                    "{what}, {mode:?}"
                );
            }
        }
    }
}

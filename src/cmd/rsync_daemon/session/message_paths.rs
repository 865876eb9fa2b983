//! How the messages of a session name the files of its module.

use crate::cmd::rsync_daemon::policy::module_path;
use crate::options::Options;

/// How a module's messages name its files.
pub(super) struct MessagePlace {
    /// The module's directory.
    pub(super) dir: Vec<u8>,
    /// The directories in the module in which rsync works.
    pub(super) bases: Vec<Vec<u8>>,
    /// The module's name.
    pub(super) module: Vec<u8>,
    /// Whether the session has the module's directory as its root.
    pub(super) is_chroot: bool,
}

impl MessagePlace {
    /// Changes a message as a daemon prints it: paths begin at the module, whose name comes behind them. Those below a
    /// directory in which rsync works begin with a slash.
    pub(super) fn in_module(&self, line: Vec<u8>) -> Vec<u8> {
        let starts = [
            &b"rsync: ["[..],
            b"file has vanished: ",
            b"symlink has no referent: ",
            b"uid ",
            b"gid ",
        ];
        let is_about_file = starts.into_iter().any(|start| line.starts_with(start));
        if !is_about_file {
            return line;
        }
        let Some(begin) = line.iter().position(|&byte| byte == b'"') else {
            return line;
        };
        let Some(end) = end_of_path(&line, begin) else {
            return line;
        };
        let shown = self.shown(&line[begin + 1..end], &line);
        // rsync names the call. In a root of its own, it has no need of an open file, and calls by path.
        let call = &line[..begin];
        let call = match call.strip_suffix(b"fsetxattr(") {
            Some(start) if self.is_chroot => [start, b"lsetxattr("].concat(),
            Some(_) | None => call.to_vec(),
        };
        [
            &call,
            &b"\""[..],
            shown,
            b"\" (in ",
            &self.module,
            b")",
            &line[end + 1..],
        ]
        .concat()
    }

    /// Returns the name that a message has for a path.
    fn shown<'p>(&self, path: &'p [u8], line: &[u8]) -> &'p [u8] {
        match path.strip_prefix(&self.dir[..]) {
            _ if self.dir == b"/" => path,
            Some(rest) if rest.starts_with(b"/") => {
                let is_below = |base: &Vec<u8>| {
                    rest[1..]
                        .strip_prefix(&base[..])
                        .is_some_and(|name| name.starts_with(b"/"))
                };
                // rsync reports as `Receiver` only before it has entered the destination.
                let is_inside = !line.starts_with(b"rsync: [Receiver] ");
                if is_inside && self.bases.iter().any(is_below) {
                    rest
                } else {
                    &rest[1..]
                }
            }
            Some(b"") => b".",
            _ => path,
        }
    }
}

/// Returns the directories in the module in which rsync works, by the operands of the session.
pub(super) fn working_dirs(operands: &[Vec<u8>], sends: bool, options: &Options) -> Vec<Vec<u8>> {
    let dirs = operands.iter().flat_map(|operand| {
        let whole = operand.strip_suffix(b"/").unwrap_or(operand);
        let parent = crate::path::split_parent(whole).0;
        match (sends, module_path::split_marker(operand)) {
            // If the source is a single file, the destination may be its new name: then rsync works in the parent.
            (false, _) => vec![whole, parent],
            (true, Some(marker)) if options.select.relative => vec![&operand[..marker]],
            (true, None) if options.select.files_from.is_some() => vec![whole],
            (true, None) if options.select.relative => Vec::new(),
            (true, None) if operand.ends_with(b"/") => vec![whole],
            (true, _) => vec![parent],
        }
    });
    dirs.filter(|dir| !dir.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// Returns where the quote behind a message's path is, if the path begins behind the quote at `begin`.
fn end_of_path(line: &[u8], begin: usize) -> Option<usize> {
    let ends = [
        &b"\" -> "[..],
        b"\" (from ",
        b"\" failed: ",
        b"\") failed: ",
        b"\", continuing: ",
        b"\": ",
    ];
    let last = |end: &[u8]| line.windows(end.len()).rposition(|window| window == end);
    let is_about_attribute = line[..begin].ends_with(b"xattr(");
    // The name of an extended attribute follows the path.
    let before_attribute = if is_about_attribute {
        last(b"\",\"")
    } else {
        None
    };
    let end = before_attribute
        .or_else(|| ends.into_iter().find_map(last))
        .or_else(|| line.len().checked_sub(1))?;
    let is_quote = end > begin && line[end] == b'"';
    if is_quote { Some(end) } else { None }
}

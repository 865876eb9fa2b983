//! Relative paths in bytes, and the small operations on them that every floor needs.
//!
//! A path of a tree is a byte string without leading or trailing slash; the root is empty. It may
//! name nothing: the file system is not asked here.

/// A path inside a tree: relative, in bytes, never leading outside.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RelPath(Box<[u8]>);

/// Why bytes are not a path inside a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadPath {
    /// Begins with a slash.
    Absolute,
    /// Has a `..` element.
    Climbs,
    /// Has an empty or `.` element, or a NUL byte.
    Malformed,
}

impl RelPath {
    /// The tree's root.
    pub fn root() -> RelPath {
        RelPath::default()
    }

    /// Accepts bytes from outside. The only door besides [`RelPath::join`], so holding a `RelPath`
    /// is proof of the checks.
    pub fn parse(bytes: &[u8]) -> Result<RelPath, BadPath> {
        if bytes.is_empty() {
            return Ok(RelPath::root());
        }
        if bytes[0] == b'/' {
            return Err(BadPath::Absolute);
        }
        for part in bytes.split(|&b| b == b'/') {
            match part {
                b"" | b"." => return Err(BadPath::Malformed),
                b".." => return Err(BadPath::Climbs),
                part if part.contains(&0) => return Err(BadPath::Malformed),
                _ => {}
            }
        }
        Ok(RelPath(bytes.into()))
    }

    /// The path of `name` in this directory. `name` is one element, as a directory lists it.
    pub fn join(&self, name: &[u8]) -> RelPath {
        debug_assert!(!name.contains(&b'/') && name != b".." && name != b"." && !name.is_empty());
        if self.0.is_empty() {
            return RelPath(name.into());
        }
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        bytes.extend_from_slice(&self.0);
        bytes.push(b'/');
        bytes.extend_from_slice(name);
        RelPath(bytes.into())
    }

    /// The bytes; empty for the root.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The last element; empty for the root.
    pub fn name(&self) -> &[u8] {
        file_name(&self.0)
    }

    /// The directory that holds it; `None` for the root.
    pub fn parent(&self) -> Option<RelPath> {
        if self.0.is_empty() {
            return None;
        }
        Some(RelPath(split_parent(&self.0).0.into()))
    }
}

/// The bytes after the last slash.
pub fn file_name(path: &[u8]) -> &[u8] {
    split_parent(path).1
}

/// A path cut at its last slash: directory (without the slash) and last element.
pub fn split_parent(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// `dir/name`, or the one that is not empty.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        return name.to_vec();
    }
    if name.is_empty() {
        return dir.to_vec();
    }
    let mut out = Vec::with_capacity(dir.len() + 1 + name.len());
    out.extend_from_slice(dir);
    if !dir.ends_with(b"/") {
        out.push(b'/');
    }
    out.extend_from_slice(name);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_from_outside_cannot_climb() {
        assert_eq!(RelPath::parse(b"/etc"), Err(BadPath::Absolute));
        assert_eq!(RelPath::parse(b"a/../b"), Err(BadPath::Climbs));
        assert_eq!(RelPath::parse(b"a//b"), Err(BadPath::Malformed));
        assert_eq!(RelPath::parse(b"a/./b"), Err(BadPath::Malformed));
        assert_eq!(RelPath::parse(b"a\0b"), Err(BadPath::Malformed));
        assert!(RelPath::parse(b"a/..b/...").is_ok());
    }

    #[test]
    fn joins_and_parents_are_inverse() {
        let path = RelPath::root().join(b"a").join(b"b");
        assert_eq!(path.as_bytes(), b"a/b");
        assert_eq!(path.name(), b"b");
        assert_eq!(path.parent(), Some(RelPath::root().join(b"a")));
        assert_eq!(RelPath::root().parent(), None);
    }

    #[test]
    fn splitting_keeps_both_ends() {
        assert_eq!(split_parent(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split_parent(b"c"), (&b""[..], &b"c"[..]));
        assert_eq!(join(b"", b"c"), b"c");
        assert_eq!(join(b"/", b"c"), b"/c");
        assert_eq!(join(b"a", b""), b"a");
    }
}

//! Relative paths as bytes, and the small operations on them that every layer needs.
//!
//! A path inside a tree is a byte string without leading or trailing slash; the root is empty.
//! This module does not access the file system, so the path may not exist.

/// A relative path inside a tree, as bytes. It never leads outside the tree.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RelPath(Box<[u8]>);

/// Why bytes are not a path inside a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadPath {
    /// Begins with a slash.
    Absolute,
    /// Contains a `..` element.
    Climbs,
    /// Contains an empty or `.` element, or a NUL byte.
    Malformed,
}

impl RelPath {
    /// Returns the root of the tree.
    pub fn root() -> RelPath {
        RelPath::default()
    }

    /// Parses untrusted bytes. A `RelPath` is created only here and by [`RelPath::join`], so holding one proves that
    /// the checks passed.
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

    /// Returns the path of `name` in this directory. `name` is a single element, as a directory lists it.
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

    /// Returns the number of elements.
    pub fn depth(&self) -> usize {
        if self.is_root() {
            0
        } else {
            self.0.iter().filter(|&&byte| byte == b'/').count() + 1
        }
    }

    /// Returns the bytes; empty for the root.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the last element; empty for the root.
    pub fn name(&self) -> &[u8] {
        file_name(&self.0)
    }

    /// Returns the parent directory; `None` for the root.
    pub fn parent(&self) -> Option<RelPath> {
        if self.0.is_empty() {
            return None;
        }
        Some(RelPath(split_parent(&self.0).0.into()))
    }
}

/// Returns the bytes after the last slash.
pub fn file_name(path: &[u8]) -> &[u8] {
    split_parent(path).1
}

/// Splits a path at its last slash into the directory, without the slash, and the last element.
pub fn split_parent(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Returns whether a relative path may lead out of its starting directory.
pub fn climbs(path: &[u8]) -> bool {
    !path.starts_with(b"/") && path.split(|&b| b == b'/').any(|part| part == b"..")
}

/// Removes each `..` of an absolute path together with the element before it, and each `.` and empty element. Takes the
/// elements for directories.
pub fn without_climbing(path: &[u8]) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    for part in path.split(|&b| b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(kept.pop()),
            part => kept.push(part),
        }
    }
    let mut out = Vec::with_capacity(path.len());
    for part in kept {
        out.push(b'/');
        out.extend_from_slice(part);
    }
    out
}

/// Returns `dir/name`; if one of them is empty, returns the other.
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
    fn parse_rejects_absolute_climbing_and_malformed_paths() {
        assert_eq!(RelPath::parse(b"/etc"), Err(BadPath::Absolute));
        assert_eq!(RelPath::parse(b"a/../b"), Err(BadPath::Climbs));
        assert_eq!(RelPath::parse(b"a//b"), Err(BadPath::Malformed));
        assert_eq!(RelPath::parse(b"a/./b"), Err(BadPath::Malformed));
        assert_eq!(RelPath::parse(b"a\0b"), Err(BadPath::Malformed));
        assert!(RelPath::parse(b"a/..b/...").is_ok());
    }

    #[test]
    fn climbing_elements_are_removed_with_what_precedes_them() {
        for (path, wanted) in [
            ("/a/b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/b/../../c", "/c"),
            ("/../a//./b/", "/a/b"),
            ("/a/..", ""),
        ] {
            assert_eq!(
                without_climbing(path.as_bytes()),
                wanted.as_bytes(),
                "{path}"
            );
        }
    }

    #[test]
    fn join_and_parent_are_inverse() {
        let path = RelPath::root().join(b"a").join(b"b");
        assert_eq!(path.as_bytes(), b"a/b");
        assert_eq!(path.name(), b"b");
        assert_eq!(path.parent(), Some(RelPath::root().join(b"a")));
        assert_eq!(RelPath::root().parent(), None);
    }

    #[test]
    fn split_parent_and_join_are_inverse() {
        assert_eq!(split_parent(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split_parent(b"c"), (&b""[..], &b"c"[..]));
        assert_eq!(join(b"", b"c"), b"c");
        assert_eq!(join(b"/", b"c"), b"/c");
        assert_eq!(join(b"a", b""), b"a");
    }
}

//! The paths of a request: which part of the file system a module is, and what a client's paths mean in it.

use crate::path;
use crate::plan::safelink;

/// Where a module is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModulePath {
    /// The directory that becomes the root of the process; `None` without chroot.
    pub chroot: Option<Vec<u8>>,
    /// The module's directory: within the new root, else absolute.
    pub dir: Vec<u8>,
}

impl ModulePath {
    /// Splits the value of `path`. With chroot, `/outer/./inner` has its root at `/outer`.
    pub fn parse(value: &[u8], use_chroot: bool) -> ModulePath {
        if !use_chroot {
            let dir = [
                b"/",
                elements(value).collect::<Vec<_>>().join(&b'/').as_slice(),
            ]
            .concat();
            return ModulePath { chroot: None, dir };
        }
        let (outer, inner) = match split_marker(value) {
            Some(at) => (&value[..at], &value[at + 3..]),
            None => (value, &b""[..]),
        };
        let clean = |path: &[u8]| {
            [
                b"/",
                elements(path).collect::<Vec<_>>().join(&b'/').as_slice(),
            ]
            .concat()
        };
        ModulePath {
            chroot: Some(clean(outer)),
            dir: clean(inner),
        }
    }

    /// Returns the absolute path of the module's directory for a process outside of the chroot.
    pub fn outside_of_chroot(&self) -> Vec<u8> {
        match &self.chroot {
            Some(root) if self.is_whole_root() => root.clone(),
            Some(root) => path::join(root, &self.dir[1..]),
            None => self.dir.clone(),
        }
    }

    /// Returns whether the module is all that the process can see, so that no path can lead out of it.
    pub fn is_whole_root(&self) -> bool {
        self.dir == b"/"
    }

    /// Returns a destination as its messages show it: with chroot, it begins at the root. `inner`: relative.
    pub fn dest(&self, inner: &[u8]) -> Vec<u8> {
        match (self.is_whole_root(), inner) {
            (true, b"." | b"./") => b"/".to_vec(),
            (true, inner) => path::join(b"/", inner),
            (false, inner) => inner.to_vec(),
        }
    }
}

/// Returns the position of `/./`.
pub fn split_marker(value: &[u8]) -> Option<usize> {
    value.windows(3).position(|window| window == b"/./")
}

/// Returns the elements of a path without `.`. Those of the administrator may contain `..`.
fn elements(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/')
        .filter(|part| !matches!(*part, b"" | b"."))
}

/// Returns the path in a module that a client's path argument names. It is relative to the module, and cannot leave it
/// by `..`. A slash at the end stays, as it has a meaning, and so does the marker `/./` of `-R`.
///
/// `is_relative`: with `-R`, if the module is not the root of this process. A marker at the beginning then means that the
/// module's directory takes part.
pub fn path_in_module(arg: &[u8], module: &[u8], is_relative: bool) -> Vec<u8> {
    let rest = match arg.strip_prefix(module) {
        Some(b"") => b"/",
        Some(rest) if rest.starts_with(b"/") => rest,
        _ => arg,
    };
    let inner = sanitized(rest);
    let begin = rest.iter().position(|&byte| byte != b'/').unwrap_or(0);
    let has_dot = rest[begin..].starts_with(b"./") && split_marker(&rest[begin..]).is_none();
    let is_marked = is_relative && has_dot && !inner.starts_with(b".");
    if is_marked {
        [b"./", &inner[..]].concat()
    } else {
        inner
    }
}

/// Returns a path without the elements that lead above its start. It is relative.
pub fn sanitized(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let stripped = path
        .iter()
        .position(|&byte| byte != b'/')
        .map_or(&b""[..], |at| &path[at..]);
    for part in stripped.split(|&byte| byte == b'/') {
        match part {
            b"" => {}
            // A marker stays; a dot at the beginning means nothing.
            b"." if parts.is_empty() => {}
            b".." => {
                // A marker is no directory.
                while parts.pop_if(|last| *last == b".").is_some() {}
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let is_dir = path.ends_with(b"/") || path.ends_with(b"/..") || path == b"..";
    let mut clean = if parts.is_empty() {
        b".".to_vec()
    } else {
        parts.join(&b'/')
    };
    if is_dir {
        clean.push(b'/');
    }
    clean
}

/// Splits the path arguments of clients that separate several paths by a blank in one argument: at ` MODULE/`.
pub fn split_arg(arg: &[u8], module: &[u8]) -> Vec<Vec<u8>> {
    let separator = [b" ", module, b"/"].concat();
    let mut found = Vec::new();
    let mut rest = arg;
    while let Some(at) = rest
        .windows(separator.len())
        .position(|window| window == separator)
    {
        found.push(rest[..at].to_vec());
        rest = &rest[at + 1..];
    }
    found.push(rest.to_vec());
    found
}

/// Returns a path that an option names in a module: an absolute one begins at the module. `depth`: how many directories
/// a relative one may climb.
pub fn option_path(value: &[u8], dir: &[u8], depth: usize) -> Vec<u8> {
    let inner = sanitized(value);
    if value.starts_with(b"/") {
        return if inner == b"./" || inner == b"." {
            dir.to_vec()
        } else {
            path::join(dir, &inner)
        };
    }
    if depth == 0 {
        inner
    } else {
        safelink::sanitize(value, depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn module_paths_are_split_for_chroot() {
        let of = |value: &str, chroot| {
            let ModulePath { chroot, dir } = ModulePath::parse(value.as_bytes(), chroot);
            (
                chroot.map(|path| String::from_utf8(path).unwrap()),
                String::from_utf8(dir).unwrap(),
            )
        };
        assert_eq!(of("/a//b/", true), (Some("/a/b".into()), "/".into()));
        assert_eq!(of("/a/./b/c/", true), (Some("/a".into()), "/b/c".into()));
        assert_eq!(of("/a/./b/", false), (None, "/a/b".into()));
        assert_eq!(of("/", true), (Some("/".into()), "/".into()));
    }

    #[test]
    fn arguments_stay_in_the_module() {
        let inside =
            |arg: &str| String::from_utf8(path_in_module(arg.as_bytes(), b"m", false)).unwrap();
        for (arg, path) in [
            ("m", "./"),
            ("m/", "./"),
            ("m/f", "f"),
            ("m/d/", "d/"),
            ("m/../out/", "out/"),
            ("m/../../etc/passwd", "etc/passwd"),
            ("m/d/../../../f", "f"),
            ("m/..", "./"),
            ("m//etc/passwd", "etc/passwd"),
            ("m/a/./b", "a/./b"),
            ("m/a/./../b", "b"),
            ("m/./f", "f"),
            ("other/f", "other/f"),
            ("mm/f", "mm/f"),
        ] {
            assert_eq!(inside(arg), path, "{arg}");
        }
        for (arg, path) in [
            ("m/./f", "./f"),
            ("m/././f", "f"),
            ("m/.//./d/./f", "d/./f"),
            ("m/.", "."),
            ("m/./", "./"),
            ("m/a/./b", "a/./b"),
        ] {
            assert_eq!(
                path_in_module(arg.as_bytes(), b"m", true),
                path.as_bytes(),
                "{arg}"
            );
        }
        assert_eq!(option_path(b"/x/../../y", b"/mod", 2), b"/mod/y");
        assert_eq!(option_path(b"../y", b"/mod", 0), b"y");
        assert_eq!(option_path(b"../../../y", b"/mod", 2), b"../../y");
        assert_eq!(option_path(b"/", b"/mod", 0), b"/mod");
        assert_eq!(
            split_arg(b"m/a m/b c m/d", b"m"),
            [b"m/a".to_vec(), b"m/b c".to_vec(), b"m/d".to_vec()]
        );
    }

    proptest! {
        #[test]
        fn no_argument_leads_above_the_module(arg in "[a./]{0,24}") {
            let inside = sanitized(arg.as_bytes());
            prop_assert!(!inside.starts_with(b"/"));
            prop_assert!(inside.split(|&byte| byte == b'/').all(|part| part != b".."));
            prop_assert_eq!(sanitized(&inside), inside);
        }
    }
}

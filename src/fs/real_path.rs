//! The one name of a directory: its path without symlinks, `.` and `..`, also before it exists.

use super::sys;
use crate::path;
use std::os::fd::AsFd as _;

/// Returns the path to which an absolute path leads. The kernel resolves its longest part that is a directory; what
/// follows is appended as text.
pub fn real_path(path: &[u8]) -> Vec<u8> {
    let (dir, rest) = longest_dir(path);
    let whole = path::without_climbing(&[&dir[..], b"/", rest].concat());
    if whole.is_empty() {
        b"/".to_vec()
    } else {
        whole
    }
}

/// Returns the real path of the longest part that is a directory, and what follows it. If the kernel resolves nothing, all
/// follows the root.
fn longest_dir(path: &[u8]) -> (Vec<u8>, &[u8]) {
    let slashes = path.iter().enumerate().rev();
    let ends = slashes.filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    for end in std::iter::once(path.len()).chain(ends) {
        // The slash at the end follows a symlink, and is the root itself in front of the first name.
        let part = [&path[..end], b"/"].concat();
        let opened = sys::open_dir_path_to_search(&part);
        if let Ok(real) = opened.and_then(|dir| sys::path_of(dir.as_fd())) {
            return (real, &path[end..]);
        }
    }
    (Vec::new(), path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;

    #[test]
    fn spellings_of_a_directory_have_one_path() {
        let scratch = tempfile::tempdir().expect("scratch can be written");
        let top = real_path(scratch.path().as_os_str().as_bytes());
        for dir in ["d", "d/e", "other"] {
            std::fs::create_dir(scratch.path().join(dir)).expect("scratch can be written");
        }
        std::fs::write(scratch.path().join("file"), "").expect("scratch can be written");
        for (target, link) in [
            ("d/e", "to_e"),
            ("file", "to_file"),
            ("missing", "dangling"),
        ] {
            std::os::unix::fs::symlink(target, scratch.path().join(link))
                .expect("scratch supports symlinks");
        }
        for (given, wanted) in [
            ("d", "d"),
            ("./d//", "d"),
            ("d/.", "d"),
            ("other/../d/", "d"),
            ("to_e", "d/e"),
            ("to_e/..", "d"),
            ("to_e/new/x", "d/e/new/x"),
            ("new/../d/./new//", "d/new"),
            ("d/new/../../x", "x"),
            ("to_file", "to_file"),
            ("dangling", "dangling"),
        ] {
            let path = [&top, given.as_bytes()].join(&b'/');
            let wanted = [&top, wanted.as_bytes()].join(&b'/');
            assert_eq!(
                real_path(&path).escape_ascii().to_string(),
                wanted.escape_ascii().to_string(),
                "{given}"
            );
        }
        assert_eq!(real_path(b"/"), b"/");
        assert_eq!(real_path(b"/no-such-dir/../.."), b"/");
    }
}

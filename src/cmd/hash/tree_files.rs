//! The files of a tree, in the order of the bytes of their paths.

use crate::flist::Kind;
use crate::fs::errno;
use crate::fs::read::{ListedName, Names};
use crate::fs::root::{Dir, ParkedDir, Root};
use crate::fs::sys::{self, Follow};
use crate::path::RelPath;
use crate::work::ordered_pool;
use std::cmp::Ordering;
use std::io;

/// What the walk finds.
pub enum TreeEntry {
    /// An entry that is no directory: its directory, and its path below the top.
    Entry(Dir, RelPath),
    /// A directory that cannot be listed, or an entry of unknown type that cannot be examined.
    Unreadable(RelPath, io::Error),
}

/// Returns how many entries may wait for the threads that read them. Each can keep a directory open, and the walk and the
/// threads need descriptors, too.
pub fn waiting_max() -> usize {
    let quarter = usize::try_from(sys::open_files_max() / 4).unwrap_or(usize::MAX);
    quarter.clamp(1, ordered_pool::WAITING_MAX)
}

/// Walks a tree, one entry after the other. Follows no symlinks below its top. It holds the names of the directories that
/// lead to the current entry, and one open directory.
pub struct TreeFiles {
    root: Root,
    /// The directories from the top to the current one, whose names are not all passed on.
    levels: Vec<WalkLevel>,
    /// The last of them, if it is open.
    open: Option<Dir>,
}

struct WalkLevel {
    path: RelPath,
    /// How to open it again, once the walk has been in a directory below.
    parked: ParkedDir,
    names: Names,
    next: usize,
}

impl TreeFiles {
    /// Opens a tree. `path`: the top as the user named it, which may be a symlink.
    pub fn open(path: &[u8]) -> io::Result<TreeFiles> {
        let dir = Dir::new(sys::open_dir_path(path)?);
        let shown = path.strip_suffix(b"/").unwrap_or(path).to_vec();
        let mut files = TreeFiles {
            root: Root::new(dir.clone(), shown, Follow::Never),
            levels: Vec::new(),
            open: None,
        };
        files.enter(RelPath::root(), dir)?;
        Ok(files)
    }

    /// Lists a directory and goes on in it.
    fn enter(&mut self, path: RelPath, dir: Dir) -> io::Result<()> {
        let mut names = Names::default();
        names.list(&dir)?;
        let parked = dir.parked(path.clone())?;
        // The type of most entries is known from the listing. Only those of the others are looked up.
        let items = std::mem::take(&mut names.items);
        for item in items {
            let is_dir = match item.is_dir {
                Some(is_dir) => is_dir,
                None => match errno::if_there(sys::stat(dir.fd(), names.name(item), false))? {
                    Some(stat) => Kind::of_mode(stat.mode) == Some(Kind::Dir),
                    None => continue,
                },
            };
            let mut known = item;
            known.is_dir = Some(is_dir);
            names.items.push(known);
        }
        let mut items = std::mem::take(&mut names.items);
        items.sort_unstable_by(|&a, &b| {
            by_path((names.name(a), is_dir(a)), (names.name(b), is_dir(b)))
        });
        // A file system may list a name twice.
        items.dedup_by(|later, earlier| names.name(*later) == names.name(*earlier));
        names.items = items;
        self.levels.push(WalkLevel {
            path,
            parked,
            names,
            next: 0,
        });
        self.open = Some(dir);
        Ok(())
    }

    /// Returns the directory that the walk is in, which is opened again if it is closed.
    fn current_dir(&mut self) -> io::Result<Dir> {
        if let Some(dir) = &self.open {
            return Ok(dir.clone());
        }
        let level = self.levels.last().expect("the walk is in a directory");
        let dir = self.root.reopen_dir(&level.parked)?;
        self.open = Some(dir.clone());
        Ok(dir)
    }
}

impl Iterator for TreeFiles {
    type Item = TreeEntry;

    fn next(&mut self) -> Option<TreeEntry> {
        loop {
            let level = self.levels.last_mut()?;
            let Some(&item) = level.names.items.get(level.next) else {
                self.levels.pop();
                self.open = None;
                continue;
            };
            level.next += 1;
            let name = level.names.name(item).to_vec();
            let path = level.path.join(&name);

            let dir = match self.current_dir() {
                Ok(dir) => dir,
                Err(error) => {
                    // It was moved away. Its other entries cannot be reached either.
                    let gone = self.levels.pop()?;
                    return Some(TreeEntry::Unreadable(gone.path, error));
                }
            };
            if !is_dir(item) {
                return Some(TreeEntry::Entry(dir, path));
            }
            let entered = sys::open_dir(dir.fd(), &name, Follow::Never)
                .and_then(|below| self.enter(path.clone(), Dir::new(below)));
            match entered {
                Ok(()) => {}
                // It was removed since its parent was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Some(TreeEntry::Unreadable(path, error)),
            }
        }
    }
}

fn is_dir(item: ListedName) -> bool {
    item.is_dir == Some(true)
}

/// Compares entries of a directory so that the paths of all files, also below directories, are in the order of their
/// bytes: a directory stands where its name with a slash would.
fn by_path((a, a_is_dir): (&[u8], bool), (b, b_is_dir): (&[u8], bool)) -> Ordering {
    let common = a.len().min(b.len());
    let after = |name: &[u8], is_dir: bool| match name.get(common) {
        Some(&byte) => Some(byte),
        None if is_dir => Some(b'/'),
        None => None,
    };
    a[..common]
        .cmp(&b[..common])
        .then_with(|| after(a, a_is_dir).cmp(&after(b, b_is_dir)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn files_come_in_the_order_of_the_bytes_of_their_paths() {
        let top = tempfile::tempdir().unwrap();
        let wanted = [
            "a!", "a-/z", "a.b", "a/b/c", "a/b.c", "a/b0", "a0", "ab", "b/c/d", "b/x", "c",
        ];
        let mut sorted = wanted.to_vec();
        sorted.sort();
        for path in wanted {
            let path = top.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        std::fs::create_dir(top.path().join("empty")).unwrap();
        let files = TreeFiles::open(top.path().as_os_str().as_bytes()).unwrap();
        let found: Vec<_> = files
            .map(|found| match found {
                TreeEntry::Entry(_, path) => String::from_utf8(path.as_bytes().to_vec()).unwrap(),
                TreeEntry::Unreadable(path, error) => panic!("{path:?}: {error}"),
            })
            .collect();
        assert_eq!(found, sorted);
    }

    proptest::proptest! {
        #[test]
        fn order_of_entries_is_that_of_their_paths(a in "[!./0a]{1,3}", b in "[!./0a]{1,3}", dirs: [bool; 2]) {
            let [a, b] = [a, b].map(|name| name.replace('/', "_"));
            proptest::prop_assume!(a != b);
            let key = |name: &str, is_dir: bool| if is_dir { format!("{name}/") } else { name.to_owned() };
            proptest::prop_assert_eq!(
                by_path((a.as_bytes(), dirs[0]), (b.as_bytes(), dirs[1])),
                key(&a, dirs[0]).cmp(&key(&b, dirs[1]))
            );
        }
    }
}

//! The trees that `sparsync bench --shape` creates.

use crate::cli::subcommand::Shape;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::fs::probe;
use crate::fs::sys::{self, Follow};
use crate::report::event::errno_words;
use std::os::fd::{AsFd, BorrowedFd};

/// The smallest space that a file system gives to a file or directory, for the estimate.
const BLOCK_BYTES: u64 = 4096;

/// Chains of directories, each with the same files.
struct Layout {
    chains: u64,
    /// The directories of a chain, one in the other.
    depth: u64,
    /// The lengths of the files in each directory.
    lens: Vec<u64>,
}

impl Layout {
    fn for_shape(shape: Shape) -> Layout {
        let (chains, depth, lens) = match shape {
            Shape::Many => (100, 1, vec![1 << 10; 100]),
            Shape::Large => (1, 1, vec![64 << 20; 4]),
            Shape::Deep => (20, 50, vec![1 << 10; 2]),
            Shape::Mixed => (50, 1, (10..=20).map(|bits| 1 << bits).collect()),
        };
        Layout {
            chains,
            depth,
            lens,
        }
    }

    /// Returns the number of files and directories, and the space that they need, in bytes.
    fn needs(&self) -> (u64, u64) {
        let dirs = self.chains * self.depth;
        let files: u64 = self
            .lens
            .iter()
            .map(|len| len.next_multiple_of(BLOCK_BYTES))
            .sum();
        (
            dirs * (1 + self.lens.len() as u64),
            dirs * (BLOCK_BYTES + files),
        )
    }
}

/// Creates the tree in `dir`, whose path is `path`. `copies`: how many copies of it there will be in the file system.
/// `go_on` is called before each file.
pub fn create(
    shape: Shape,
    (dir, path): (BorrowedFd<'_>, &[u8]),
    copies: u64,
    go_on: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let layout = Layout::for_shape(shape);
    let failed = |why: &[u8]| {
        let start = format!("sparsync: cannot create the tree `{}` in ", shape.name());
        let hint = "name a directory with more space, or another shape";
        Error::new(Exit::FileIo, [start.as_bytes(), path, b": ", why].concat()).with_hint(hint)
    };
    let broken = |error: std::io::Error| failed(&errno_words(&error));
    let space = probe::space(dir).map_err(broken)?;
    let (entries, bytes) = layout.needs();
    let entries = entries * (copies + 1);
    let bytes = bytes * (copies + 1);
    if space.free_bytes < bytes {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let why = format!(
            "{} MiB are needed, {} MiB are free",
            mib(bytes),
            space.free_bytes >> 20
        );
        return Err(failed(why.as_bytes()));
    }
    if space.total_inodes > 0 && space.free_inodes < entries {
        let why = format!(
            "{entries} inodes are needed, {} are free",
            space.free_inodes
        );
        return Err(failed(why.as_bytes()));
    }
    let mut noise = Noise(u64::from_le_bytes(sys::random()));
    for chain in 0..layout.chains {
        let mut below = Vec::new();
        for level in 0..layout.depth {
            let parent = sys::open_dir(dir, &below, Follow::Never).map_err(broken)?;
            let name = if level == 0 {
                format!("dir{chain}")
            } else {
                format!("sub{level}")
            };
            sys::mkdir(parent.as_fd(), name.as_bytes(), 0o755).map_err(broken)?;
            below.extend_from_slice(if level == 0 { b"" } else { b"/" });
            below.extend_from_slice(name.as_bytes());
            let made = sys::open_dir(dir, &below, Follow::Never).map_err(broken)?;
            for (at, len) in layout.lens.iter().enumerate() {
                go_on()?;
                put_file(
                    made.as_fd(),
                    format!("file{at}").as_bytes(),
                    *len,
                    &mut noise,
                )
                .map_err(broken)?;
            }
        }
    }
    Ok(())
}

fn put_file(
    dir: BorrowedFd<'_>,
    name: &[u8],
    len_bytes: u64,
    noise: &mut Noise,
) -> std::io::Result<()> {
    let file = sys::create(dir, name, 0o644)?;
    let mut buffer = vec![0; len_bytes.min(1 << 20) as usize];
    let mut left = len_bytes as usize;
    while left > 0 {
        let part = left.min(buffer.len());
        noise.fill(&mut buffer[..part]);
        sys::write_all(file.as_fd(), &buffer[..part])?;
        left -= part;
    }
    Ok(())
}

/// Bytes that no file system can compress or deduplicate (splitmix64).
struct Noise(u64);

impl Noise {
    fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_the_size_that_the_help_states() {
        let sizes = Shape::ALL.map(|shape| {
            let layout = Layout::for_shape(shape);
            let dirs = layout.chains * layout.depth;
            (
                dirs * layout.lens.len() as u64,
                (dirs * layout.lens.iter().sum::<u64>()) >> 20,
                layout.needs().0,
            )
        });
        assert_eq!(
            sizes,
            [
                (10_000, 9, 10_100),
                (4, 256, 5),
                (2_000, 1, 3_000),
                (550, 99, 600)
            ]
        );
    }

    #[test]
    fn noise_does_not_repeat() {
        let mut noise = Noise(1);
        let (mut first, mut second) = ([0; 20], [0; 20]);
        noise.fill(&mut first);
        noise.fill(&mut second);
        assert!(first != second && first[..8] != first[8..16]);
    }
}

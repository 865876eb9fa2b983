//! Tests: each way to copy gives the whole content.

use super::*;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;

fn copied(content: &[u8], how: impl Fn(u64) -> CopyMethod) -> (Vec<u8>, u64) {
    let mut from = tempfile::tempfile().unwrap();
    from.write_all(content).unwrap();
    from.seek(SeekFrom::Start(0)).unwrap();
    let mut to = tempfile::tempfile().unwrap();
    let unsupported_calls = UnsupportedCalls::default();
    let mut step = |_| true;
    let mut copier = Copier::new(Vec::new(), &unsupported_calls, &mut step);
    let n = copier
        .copy(from.as_fd(), to.as_fd(), how(content.len() as u64))
        .unwrap();
    let mut got = Vec::new();
    to.seek(SeekFrom::Start(0)).unwrap();
    to.read_to_end(&mut got).unwrap();
    (got, n)
}

fn plain(len_bytes: u64) -> CopyMethod {
    CopyMethod {
        len_bytes,
        sparse: false,
        by_hand: false,
        start_bytes: 0,
        from_device: false,
        fresh: true,
    }
}

#[test]
fn every_copy_method_copies_the_whole_file() {
    for len in [
        0,
        1,
        4096,
        SMALL_BYTES,
        SMALL_BYTES + 1,
        3 * SMALL_BYTES + 17,
    ] {
        let content: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        for how in [
            &plain as &dyn Fn(u64) -> CopyMethod,
            &|n| CopyMethod {
                by_hand: true,
                ..plain(n)
            },
            &|n| CopyMethod {
                sparse: true,
                ..plain(n)
            },
        ] {
            let (got, n) = copied(&content, how);
            assert!(got == content && n == len as u64, "{len}");
        }
    }
}

#[test]
fn file_resized_after_listing_is_copied_in_full() {
    let content = vec![7u8; 300_000];
    for listed in [0, 10, 299_999, 300_001, 1 << 30] {
        let (got, n) = copied(&content, |_| plain(listed));
        assert!(got == content && n == 300_000, "{listed}");
    }
}

#[test]
fn device_is_copied_up_to_its_length() {
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    assert_eq!(sys::content_len(zeros.as_fd()).unwrap(), 0);
    let unsupported_calls = UnsupportedCalls::default();
    for (len_bytes, sparse) in [(0, false), (300_000, false), (300_000, true)] {
        let to = tempfile::tempfile().unwrap();
        let mut step = |_| true;
        let how = CopyMethod {
            from_device: true,
            sparse,
            ..plain(len_bytes)
        };
        let mut copier = Copier::new(Vec::new(), &unsupported_calls, &mut step);
        assert_eq!(
            copier.copy(zeros.as_fd(), to.as_fd(), how).unwrap(),
            len_bytes
        );
        assert_eq!(to.metadata().unwrap().len(), len_bytes);
    }
    // A device that ends too early is not accepted as complete.
    let (null, to) = (
        std::fs::File::open("/dev/null").unwrap(),
        tempfile::tempfile().unwrap(),
    );
    let mut step = |_| true;
    let mut copier = Copier::new(Vec::new(), &unsupported_calls, &mut step);
    let copied = copier.copy(
        null.as_fd(),
        to.as_fd(),
        CopyMethod {
            from_device: true,
            ..plain(1)
        },
    );
    assert!(matches!(copied, Err(CopyError::Read(_))));
}

#[test]
fn zeros_become_holes() {
    let mut content = vec![0u8; 2_000_000];
    content[1_000_000] = 1;
    let (got, _) = copied(&content, |n| CopyMethod {
        sparse: true,
        ..plain(n)
    });
    assert_eq!(got, content);
}

#[test]
fn copy_changed_writes_only_differing_blocks() {
    let mut content: Vec<u8> = (0..3 * SMALL_BYTES as u32 + 4000)
        .flat_map(u32::to_le_bytes)
        .collect();
    let zeros = content.len() - 20_000;
    content[zeros..].fill(0);
    let mut other = content.clone();
    other[10] ^= 1;
    other[5 * BLOCK_BYTES..7 * BLOCK_BYTES].fill(0);
    let mut longer = content.clone();
    longer.extend([1; 9000]);
    let shorter = &content[..content.len() - 5000];
    // The last block of the shorter file is incomplete, and the rest is missing.
    let len = content.len() as u64;
    let missing = len - (len - 5000) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    for (old, written_bytes) in [
        (&content[..], 0),
        (&other, 3 * BLOCK_BYTES as u64),
        (&longer, 0),
        (shorter, missing),
        (b"".as_slice(), len),
    ] {
        for sparse in [false, true] {
            let [mut from, mut to] = [(); 2].map(|()| tempfile::tempfile().unwrap());
            from.write_all(&content).unwrap();
            to.write_all(old).unwrap();
            let unsupported_calls = UnsupportedCalls::default();
            let mut step = |_| true;
            let mut copier = Copier::new(Vec::new(), &unsupported_calls, &mut step);
            let changed = copier
                .copy_changed(
                    from.as_fd(),
                    to.as_fd(),
                    CopyMethod {
                        sparse,
                        fresh: false,
                        ..plain(len)
                    },
                )
                .unwrap();
            assert_eq!(
                changed,
                Changed {
                    written_bytes,
                    same_bytes: len - written_bytes
                }
            );
            let mut got = Vec::new();
            to.seek(SeekFrom::Start(0)).unwrap();
            to.read_to_end(&mut got).unwrap();
            assert!(got.starts_with(&content));
        }
    }
}

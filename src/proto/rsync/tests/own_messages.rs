//! The messages about rejected bytes of an rsync, compared with their golden file.

use crate::proto::fuzzing::FAMILIES;
use crate::proto::rsync::handshake::choose_version;
use crate::proto::rsync::limits::{DAEMON_ARGS_MAX, DAEMON_LINE_MAX_BYTES};
use crate::proto::tests::{compare, section};

/// Returns the n-th input, always the same. It contains many small numbers, numbers of four bytes and names.
fn nth_input(n: u64) -> Vec<u8> {
    let mut state = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut below = |max: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % max
    };
    let mut bytes: Vec<u8> = (0..4).map(|_| below(256) as u8).collect();
    for _ in 0..below(40) {
        match below(12) {
            0..4 => bytes.push(below(5) as u8),
            4 => bytes.push(below(256) as u8),
            5 => bytes.extend((below(40) as i32 - 8).to_le_bytes()),
            6 => bytes.extend((below(1 << 32) as u32).to_le_bytes()),
            7 => bytes.extend((0o40_755u32 << (below(2) * 3)).to_le_bytes()),
            8 => bytes.extend([0xff; 5]),
            _ => bytes.extend(&b"ab\0.\0user.a\0"[below(4) as usize..][..1 + below(7) as usize]),
        }
    }
    bytes
}

/// Inputs that random bytes rarely hit.
fn rare_inputs() -> Vec<Vec<u8>> {
    // A list of protocol 30 with one entry, whose attributes `chosen` selects.
    let listed = |chosen: [u8; 2], mode: u32, rest: &[u8]| {
        [
            &[15, 0, chosen[0], chosen[1], 0x80, 1, b'a', 0, 0, 0][..],
            &mode.to_le_bytes(),
            rest,
        ]
        .concat()
    };
    let (symlink, file) = (0o120_777, 0o100_644);
    // Varints of rsync: 5000, 65,537 and 128 MiB.
    const MANY: [u8; 2] = [0x93, 0x88];
    const MORE: [u8; 3] = [0xc1, 1, 0];
    const HUGE: [u8; 4] = [0xe8, 0, 0, 0];
    let huge_attribute = [&[2][..], &HUGE, b"a\0", &[0; 16]].concat();
    vec![
        listed([8, 0], symlink, &[0]),
        listed([8, 0], symlink, &MANY),
        listed([0, 2], file, &[0, 1, 9]),
        listed([0, 2], file, &[&[0, 16][..], &MORE].concat()),
        listed([0, 2], file, &[0, 16, 1, 0, 40]),
        listed([0, 4], file, &[&[0][..], &MORE].concat()),
        listed([0, 4], file, &[&[0, 1][..], &MANY].concat()),
        listed([0, 4], file, &[0, 1, 1, 0, b'a']),
        listed(
            [0, 4],
            file,
            &[&[0, 9][..], &huge_attribute.repeat(9)].concat(),
        ),
        // The second entry is a hard link to the first one, or to none.
        listed([0x40, 0], file, &[0x86, 2, 1, b'b', 0]),
        listed([0x40, 0], file, &[0x86, 2, 1, b'b', 9]),
        // A second of nanoseconds.
        vec![
            20, 0, 0, 0, 0x84, 0x20, 1, b'a', 0, 0, 0, 0xf0, 0, 0xca, 0x9a, 0x3b,
        ],
        // A block of no length.
        vec![0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
        // Data after the last block of a zlib stream.
        vec![3, 0x40, 6, 1, 0, 0, 0xff, 0xff, 0],
        // An lz4 block that copies from before its start.
        vec![1, 0x40, 3, 0x10, 0xff, 0xff],
        b"#early_input=9999\n".to_vec(),
    ]
}

#[test]
fn messages_about_rejected_bytes_are_in_the_golden_file() {
    let long = [
        vec![b'a'; DAEMON_LINE_MAX_BYTES + 1],
        b"a\0".repeat(DAEMON_ARGS_MAX + 1),
    ];
    for bytes in (0..3000).map(nth_input).chain(long).chain(rare_inputs()) {
        FAMILIES.iter().for_each(|(_, decode)| decode(&bytes));
    }
    choose_version(32, 99).expect_err("no rsync has this version");
    let title = "# Errors of rsync's protocol; N is a number";
    compare("rsync_protocol", &section(title));
}

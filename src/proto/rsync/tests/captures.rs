//! The recorded conversations and the contents of their trees, see tests/captures/INDEX.md.

use ring::digest::{SHA256, digest};

/// Reads a file of tests/captures.
pub fn file(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/captures/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the bytes of the client and of the server.
pub fn both_directions(name: &str) -> (Vec<u8>, Vec<u8>) {
    let bytes = file(name);
    let (mut client, mut server, mut rest) = (Vec::new(), Vec::new(), &bytes[..]);
    while let Some((head, after)) = rest.split_first_chunk::<5>() {
        let (piece, after) =
            after.split_at(u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize);
        if head[0] == b'C' {
            &mut client
        } else {
            &mut server
        }
        .extend_from_slice(piece);
        rest = after;
    }
    assert!(rest.is_empty(), "{name}");
    (client, server)
}

fn noise(tag: &str, len: usize) -> Vec<u8> {
    let blocks = (0..).flat_map(|n| {
        digest(&SHA256, format!("{tag}{n}").as_bytes())
            .as_ref()
            .to_vec()
    });
    blocks.take(len).collect()
}

fn lines(from: usize, to: usize) -> Vec<u8> {
    (from..to)
        .flat_map(|n| format!("line {n} of the text\n").into_bytes())
        .collect()
}

/// The files of the receiver before a run that sends deltas.
pub fn basis(name: &[u8]) -> Vec<u8> {
    match name {
        b"swap" | b"swap.old" => noise("swap", 70_000),
        b"text" => lines(0, 1500),
        b"zeros" => vec![0; 5000],
        b"trunc" => noise("t", 2000),
        _ => Vec::new(),
    }
}

/// The file of the receiver after it has appended to a file with a wrong beginning.
pub fn appended(name: &[u8]) -> Vec<u8> {
    let mut content = source(name).expect("it is a file of the sender");
    content[100..104].copy_from_slice(b"XXXX");
    content
}

/// The files of the sender, as far as the tests look at their contents.
pub fn source(name: &[u8]) -> Option<Vec<u8>> {
    let (a, t) = (noise("swap", 70_000), lines(0, 1500));
    Some(match name {
        b"swap" => [
            &a[49_000..56_000],
            &noise("ins", 900),
            &a[..21_000],
            &a[2100..2800],
            b"tail",
        ]
        .concat(),
        b"text" => [
            &t[..12_000],
            &b"INSERTED ".repeat(10),
            &t[12_000..20_000],
            &t[5000..6000],
            &t[21_000..],
        ]
        .concat(),
        b"zeros" => [&[0; 2000][..], b"x", &[0; 3000]].concat(),
        b"trunc" => Vec::new(),
        b"emptyold" => lines(0, 60),
        b"newtext" => lines(7, 120),
        b"newnoise" => noise("q", 1000),
        _ => return None,
    })
}

//! Messages about clients that break the protocol or request what they may not have.

use super::compare;
use crate::hostile::{
    chunk, chunks, dir, entry, frame, greeting, plain_setup, roots, setup, setup_with_listed_name,
};
use crate::kit::{oracle, until};
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

// Kinds of messages.
const DIGESTS: u8 = 3;
const DIRS_END: u8 = 6;
const WANT: u8 = 7;
const PLACED: u8 = 9;
const WHOLE: u8 = 11;
const BEGIN: u8 = 12;
const DATA: u8 = 13;
const UNSENT: u8 = 16;
const GRANT: u8 = 18;

/// Flags of a directory.
const WITH_DATA: u8 = 4;

/// What a client sends, and for which bytes from the server it waits before.
type Step = (Vec<u8>, Vec<u8>);

/// Runs the program with these arguments in a directory with a tree of one file, and sends it these bytes. The input
/// stays open. Returns the messages in its output.
fn answer(line: &str, steps: &[Step]) -> String {
    let top = tempfile::tempdir_in(oracle::scratch()).expect("scratch can be written");
    std::fs::create_dir(top.path().join("tree")).expect("scratch can be written");
    std::fs::write(top.path().join("tree/known"), "content\n").expect("scratch can be written");
    let top = top.path().to_str().expect("scratch is UTF-8");
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "20"]).arg(oracle::under_test());
    command.args(line.split_whitespace().map(|word| word.replace("TOP", top)));
    command.current_dir(top).env("LC_ALL", "C");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let has =
        |wanted: &[u8], received: &[u8]| received.windows(wanted.len()).any(|part| part == wanted);
    let received = Arc::new(Mutex::new(Vec::new()));
    let buffer = received.clone();
    let reader = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(got @ 1..) = stdout.read(&mut piece) {
            buffer.lock().unwrap().extend_from_slice(&piece[..got]);
        }
    });
    for (awaited, sent) in steps {
        until(|| awaited.is_empty() || has(awaited, &received.lock().unwrap()));
        // It may have closed its input because of an earlier step.
        let _ = stdin.write_all(sent);
    }
    // It has ended, or has sent its message and waits only for the end of the input.
    until(|| reader.is_finished() || has(b"sparsync: ", &received.lock().unwrap()));
    drop(stdin);
    reader.join().unwrap();
    let output = child.wait_with_output().unwrap();
    let received = String::from_utf8_lossy(&received.lock().unwrap()).into_owned();
    let sent = received
        .rfind("sparsync: ")
        .map_or("", |at| &received[at..]);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = sent
        .lines()
        .chain(printed.lines())
        .map(|line| format!("! {}\n", line.replace(top, "TOP")));
    format!(
        "[{}]\n{}",
        output.status.code().unwrap_or(-1),
        lines.collect::<String>()
    )
}

/// Adds what the program answers.
fn note(section: &mut String, title: &str, answer: &str) {
    *section += &format!("\n$ {title}\n{answer}");
}

const RECEIVER: &str = "--server -re.iLsfxCIvuY . tree/";
const SENDER: &str = "--server --sender -re.iLsfxCIvuY . tree/";

fn now(bytes: Vec<u8>) -> Step {
    (Vec::new(), bytes)
}

/// A list of one file.
fn one_file() -> Vec<u8> {
    [&[1][..], &entry(b"new", 0o100_644)].concat()
}

#[test]
fn messages_about_senders() {
    let mut section = "# Senders that break the protocol\n".to_owned();
    let tally = [0; 27];
    let early = || dir(WITH_DATA, 0, b"", &one_file());
    let no_file = || dir(0, 0, b"", &[0]);
    let named = |name| [entry(name, 0o040_755)].concat();
    let two_dirs = || {
        dir(
            0,
            0,
            b"",
            &[&[2][..], &named(b"a"), &named(b"b"), &[1, 1]].concat(),
        )
    };
    let begin = || frame(BEGIN, &[0, 0, 0]);
    for (title, frames) in [
        ("a directory before the arguments", vec![no_file()]),
        (
            "a directory with a wrong number",
            vec![roots(), dir(0, 5, b"", &[0])],
        ),
        (
            "a directory before the data of another one",
            vec![roots(), early(), dir(0, 1, b"x", &[0])],
        ),
        (
            "the end before the data of the last directory",
            vec![roots(), early(), frame(DIRS_END, &tally)],
        ),
        (
            "directories out of order",
            vec![
                roots(),
                two_dirs(),
                dir(0, 1, b"b", &[0]),
                dir(0, 2, b"a", &one_file()),
                frame(DIRS_END, &tally),
            ],
        ),
        (
            "a directory without a parent",
            vec![
                roots(),
                no_file(),
                dir(0, 1, b"x/y", &one_file()),
                frame(DIRS_END, &tally),
            ],
        ),
        (
            "a file that was not requested",
            vec![roots(), no_file(), frame(BEGIN, &[0, 0, 1])],
        ),
        (
            "data without a file",
            vec![roots(), no_file(), frame(DATA, &[0, b'x'])],
        ),
        (
            "a file inside of another one",
            vec![roots(), early(), begin(), begin()],
        ),
        (
            "a whole file inside of another one",
            vec![roots(), early(), begin(), frame(WHOLE, &[0; 19])],
        ),
        (
            "the end of a file without its beginning",
            vec![roots(), early(), begin(), frame(UNSENT, &[0, 1, 0, 0])],
        ),
        ("a request", vec![roots(), frame(WANT, &[0, 0, 1, 0])]),
        (
            "a grant of bytes that were not sent",
            vec![frame(GRANT, &[0, 0x80, 0x80, 0x80, 0x80, 8])],
        ),
        ("an unknown message", vec![vec![99, 0]]),
        ("a message that ends early", vec![frame(BEGIN, &[])]),
    ] {
        let sent = [greeting(), plain_setup(false), chunks(&frames.concat())].concat();
        note(&mut section, title, &answer(RECEIVER, &[now(sent)]));
    }
    for (title, sent) in [
        ("a chunk of an unknown type", chunk(9, b"x")),
        ("a chunk that is too long", chunk(0, &vec![0; 1 << 20])),
        ("invalid zstd data", chunk(1, b"hello")),
        ("invalid lz4 data", chunk(2, &[0xff; 8])),
        ("invalid zlib data", chunk(3, &[0xff; 8])),
        (
            "data after the end of a zlib stream",
            chunk(3, &[1, 0, 0, 0xff, 0xff, 0]),
        ),
        (
            "two methods of compression",
            [chunk(3, &[0, 0, 0, 0xff, 0xff]), chunk(1, b"hello")].concat(),
        ),
    ] {
        let sent = [greeting(), plain_setup(false), sent].concat();
        note(&mut section, title, &answer(RECEIVER, &[now(sent)]));
    }
    let session = "server session --root=/";
    let setup = |words: &[u8]| setup(false, [words, &[0], &[0], &[1, 1, b'x']]);
    let unrequested = [
        greeting(),
        setup(&[1, 3, b'-', b'r', b'n']),
        chunks(&[roots(), early()].concat()),
    ]
    .concat();
    note(
        &mut section,
        "unrequested data with --dry-run",
        &answer(session, &[now(unrequested)]),
    );
    let words = [&[2, 2, b'-', b'r', 11][..], b"--timeout=1"].concat();
    note(
        &mut section,
        "nothing with --timeout=1",
        &answer(session, &[now([greeting(), setup(&words)].concat())]),
    );
    compare("senders", &section);
}

#[test]
fn messages_about_receivers() {
    let mut section = "# Receivers that break the protocol\n".to_owned();
    let blocks = |bytes: &[u8]| frame(WANT, &[&[0, 0, 1, 1][..], bytes].concat());
    let basis = |block: u32, len: u64, tag: u8| {
        [&block.to_le_bytes()[..], &len.to_le_bytes(), &[tag]].concat()
    };
    for (title, sent) in [
        (
            "a request from an unknown directory",
            frame(WANT, &[9, 0, 1, 0]),
        ),
        ("a request for an unknown file", frame(WANT, &[0, 9, 1, 0])),
        (
            "a removal from an unknown directory",
            frame(PLACED, &[9, 0]),
        ),
        ("a removal of an unknown file", frame(PLACED, &[0, 9])),
        (
            "a removal without --remove-source-files",
            frame(PLACED, &[0, 0]),
        ),
        (
            "a large directory that does not grow",
            frame(DIGESTS, &[2, 3, 5, 3, 5]),
        ),
        ("a listing", roots()),
        (
            "more digests than the window",
            frame(
                DIGESTS,
                &[&[1, 1, 0x80, 0x80, 0x40][..], &vec![0; 4 << 20]].concat(),
            )
            .repeat(3),
        ),
        ("blocks that end early", blocks(&[0])),
        ("blocks of a wrong length", blocks(&basis(1, 0, 5))),
        (
            "blocks with a wrong length of tags",
            blocks(&basis(348, 0, 99)),
        ),
        ("too many blocks", blocks(&basis(348, u64::MAX, 5))),
        (
            "fewer blocks than the length has",
            blocks(&basis(348, 348, 5)),
        ),
    ] {
        // The listing shows that the session has begun.
        let steps = [
            now([greeting(), plain_setup(true), frame(DIGESTS, &[1, 1, 0])].concat()),
            (b"known".to_vec(), sent),
        ];
        note(&mut section, title, &answer(SENDER, &steps));
    }
    compare("receivers", &section);
}

#[test]
fn messages_about_requests() {
    let mut section = "# Requests that are rejected\n".to_owned();
    let word = |word: &str| [&[1, word.len() as u8][..], word.as_bytes()].concat();
    let with = |sends: bool, words: &str, remote: &str, operands: &[u8]| {
        let remote = if remote.is_empty() {
            vec![0]
        } else {
            word(remote)
        };
        setup(sends, [&word(words), &remote, &[0], operands])
    };
    for (line, title, sent) in [
        (
            RECEIVER,
            "the other direction",
            [greeting(), plain_setup(true)].concat(),
        ),
        (
            RECEIVER,
            "other paths",
            [greeting(), with(false, "-r", "", &[1, 1, b'x'])].concat(),
        ),
        (
            "--server --sender -re.iLsfxCIvuY . tree/",
            "a list of names",
            [greeting(), setup_with_listed_name(b"-r", b"link/secret")].concat(),
        ),
        (
            RECEIVER,
            "another option",
            [greeting(), with(false, "-ro", "", &[0])].concat(),
        ),
        (
            "--server -re.iLsfxCIvuY --inplace . tree/",
            "a plan",
            [greeting(), with(false, "--replay-plan", "", &[0])].concat(),
        ),
        (
            "--server -re.iLsfxCIvuY --dry-run . tree/",
            "a plan",
            [greeting(), with(false, "--replay-plan", "", &[0])].concat(),
        ),
        (
            RECEIVER,
            "--insecure-links",
            [greeting(), with(false, "--insecure-links", "", &[0])].concat(),
        ),
        (
            "server session --root=/",
            "-M--chmod",
            [greeting(), with(false, "-r", "--chmod=a+x", &[1, 1, b'x'])].concat(),
        ),
        (
            "server session --root=/",
            "no path",
            [greeting(), with(true, "-r", "", &[0])].concat(),
        ),
        (
            "server session --root=/",
            "--insecure-links",
            [
                greeting(),
                with(true, "--insecure-links", "", &[1, 1, b'x']),
            ]
            .concat(),
        ),
        (
            "server session --root=/",
            "-M--copy-as",
            [
                greeting(),
                with(true, "-r", "--copy-as=root", &[1, 1, b'x']),
            ]
            .concat(),
        ),
        (
            "server session --root=TOP",
            "--write-devices",
            [
                greeting(),
                with(false, "--write-devices", "", &[1, 1, b'x']),
            ]
            .concat(),
        ),
        (
            "server session --root=TOP --read-only",
            "a push",
            [greeting(), with(false, "-r", "", &[1, 1, b'x'])].concat(),
        ),
        (
            "server session --root=/ --memory=64M --too-large",
            "a copy",
            [greeting(), with(true, "-r", "", &[1, 1, b'x'])].concat(),
        ),
        (
            "server session --root=/ --owner=no-such-user",
            "a copy",
            [greeting(), with(true, "-r", "", &[1, 1, b'x'])].concat(),
        ),
    ] {
        note(
            &mut section,
            &format!("sparsync {line}: {title}"),
            &answer(line, &[now(sent)]),
        );
    }
    compare("requests", &section);
}

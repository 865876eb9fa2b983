//! The other machine of a copy: which operands name it, and which options are sent to it.

use super::args::{Args, Dirs};
use super::flag::FlagScope;
use super::operand::{Operand, Remote, RemoteKind};
use super::parse::GivenOption;
use crate::error::{Error, Result};
use crate::options::algorithm::Algorithm as _;
use crate::options::{Checksums, FilesFrom, Options, Preserve};

/// The other machine of a copy, and the options for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Far {
    pub operand: RemoteOperand,
    /// Whether the server is a process that this one starts without a remote shell: a local copy in which only the
    /// receiver has some options (`--remote-option`). The host is empty.
    pub is_child: bool,
    /// The options that concern both sides, as arguments; see [`super::settle`].
    pub words: Vec<Vec<u8>>,
    /// The options for the remote side only: those of a local copy that both processes have ([`inherited`]), then the
    /// arguments of `--remote-option`.
    pub remote_words: Vec<Vec<u8>>,
    /// The options on the server's command line, as rsync writes them; see [`super::server_args::words`].
    pub server_words: Vec<Vec<u8>>,
}

/// The operands, sorted.
#[derive(Debug)]
pub struct PlacedOperands {
    /// The sources, on either machine.
    pub sources: Vec<Vec<u8>>,
    /// The destination; `None` lists the sources.
    pub dest: Option<Vec<u8>>,
    /// The other machine that holds the sources or the destination, if there is one.
    pub peer: Option<RemoteOperand>,
}

/// The other machine, as the operands name it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RemoteOperand {
    /// The user that the remote shell logs in as.
    pub user: Option<Vec<u8>>,
    /// The host, as the remote shell knows it.
    pub host: Vec<u8>,
    /// `Some` if a sparsync:// URL named the host, so that no remote shell is used. Holds the port if the URL has one.
    pub server: Option<Option<u16>>,
    /// `Some` if the operands name a daemon. Holds the port of the URL; 0: none.
    pub daemon: Option<i32>,
    /// Whether the server sends (a pull): the sources are there, else the destination is.
    pub server_sends: bool,
}

impl RemoteOperand {
    /// Returns whether the destination is in a module of a daemon, or stands for the list of its modules.
    pub fn has_daemon_dest(&self) -> bool {
        self.daemon.is_some() && !self.server_sends
    }

    /// Returns the role that rsync's client names in errors before it forks.
    pub fn role(peer: Option<&RemoteOperand>) -> &'static str {
        if peer.is_some_and(|peer| peer.server_sends) {
            "Receiver"
        } else {
            "sender"
        }
    }
}

/// Sorts the operands. The last of several is the destination.
pub fn place(mut operands: Vec<Operand>) -> Result<PlacedOperands> {
    let dest = if operands.len() > 1 {
        operands.pop()
    } else {
        None
    };
    let first = match operands.first() {
        Some(Operand::Remote(first)) => first.clone(),
        _ => return place_push(operands, dest),
    };
    let fail = |words: Vec<u8>| Err(Error::usage(words).by("Receiver"));
    let dest = match dest {
        Some(Operand::Remote(_)) => {
            return fail(b"The source and destination cannot both be remote.".to_vec());
        }
        Some(Operand::Local(path)) => Some(path),
        None => None,
    };
    let mut sources = Vec::new();
    for operand in operands {
        match operand {
            Operand::Local(path) => {
                let hint = b"\nIf arg is a remote file/dir, prefix it with a colon (:).";
                return fail([b"Unexpected local arg: ", &path[..], hint].concat());
            }
            Operand::Remote(remote) if remote.is_daemon() != first.is_daemon() => {
                return fail(b"All source args must use the same hostspec format.".to_vec());
            }
            Operand::Remote(Remote {
                user,
                host,
                path,
                kind,
                ..
            }) => {
                if let (RemoteKind::Daemon { port }, RemoteKind::Daemon { port: first }) =
                    (kind, first.kind)
                    && port != 0
                    && port != first
                {
                    return fail(b"All source args must use the same port number.".to_vec());
                }
                // `:path` is on the same host as the first one.
                let is_same_kind = kind == first.kind || first.is_daemon();
                let is_same = host == first.host && user == first.user && is_same_kind;
                let is_unnamed = host.is_empty() && user.is_none();
                if !(is_same || is_unnamed) {
                    return fail(b"All source args must come from the same machine.".to_vec());
                }
                sources.push(path_or_home(path, kind));
            }
        }
    }
    Ok(PlacedOperands {
        sources,
        dest,
        peer: Some(peer(first, true)?),
    })
}

/// Returns the operands of a run whose source is a batch file: the last one is the destination.
pub fn place_beside_batch(mut operands: Vec<Operand>) -> Result<PlacedOperands> {
    match operands.pop() {
        Some(Operand::Local(dest)) => Ok(PlacedOperands {
            sources: Vec::new(),
            dest: Some(dest),
            peer: None,
        }),
        _ => {
            Err(Error::usage("remote destination is not allowed with --read-batch").by("Receiver"))
        }
    }
}

fn place_push(operands: Vec<Operand>, dest: Option<Operand>) -> Result<PlacedOperands> {
    let mut sources = Vec::new();
    for operand in operands {
        match operand {
            Operand::Local(path) => sources.push(path),
            Operand::Remote(remote) => {
                return Err(
                    Error::usage([b"Unexpected remote arg: ", &remote.text[..]].concat())
                        .by("sender"),
                );
            }
        }
    }
    match dest {
        Some(Operand::Remote(remote)) => {
            let dest = path_or_home(remote.path.clone(), remote.kind);
            Ok(PlacedOperands {
                sources,
                dest: Some(dest),
                peer: Some(peer(remote, false)?),
            })
        }
        Some(Operand::Local(path)) => Ok(PlacedOperands {
            sources,
            dest: Some(path),
            peer: None,
        }),
        None => Ok(PlacedOperands {
            sources,
            dest: None,
            peer: None,
        }),
    }
}

/// Replaces the empty path of `host:` by the directory in which the remote shell starts.
fn path_or_home(path: Vec<u8>, kind: RemoteKind) -> Vec<u8> {
    let is_module = matches!(kind, RemoteKind::Daemon { .. });
    if path.is_empty() && !is_module {
        b".".to_vec()
    } else {
        path
    }
}

fn peer(remote: Remote, server_sends: bool) -> Result<RemoteOperand> {
    let (server, daemon) = match remote.kind {
        RemoteKind::Server { port } => (Some(port), None),
        RemoteKind::Daemon { port } => (None, Some(port)),
        RemoteKind::Shell => (None, None),
    };
    let peer = RemoteOperand {
        user: remote.user,
        host: remote.host,
        server,
        daemon,
        server_sends,
    };
    if server == Some(Some(0)) || server.is_some() && peer.host.is_empty() {
        let words = [
            b"sparsync: ",
            &remote.text[..],
            b": a URL is sparsync://[USER@]HOST[:PORT]/PATH",
        ]
        .concat();
        return Err(Error::usage(words).by(RemoteOperand::role(Some(&peer))));
    }
    if peer.host.starts_with(b"-") && daemon.is_none() {
        return Err(invalid_host().by(RemoteOperand::role(Some(&peer))));
    }
    Ok(peer)
}

/// Returns the error for a host that a remote shell would take for an option.
pub fn invalid_host() -> Error {
    Error::usage("Invalid remote host: hostnames may not start with '-'.")
}

/// Returns whether an operand names a daemon.
pub fn names_a_daemon(operands: &[Operand]) -> bool {
    operands
        .iter()
        .any(|operand| matches!(operand, Operand::Remote(remote) if remote.is_daemon()))
}

/// Returns where `--files-from` reads its list when the operands are on `peer`.
pub fn files_from(name: Vec<u8>, peer: Option<&RemoteOperand>) -> Result<FilesFrom> {
    match (Operand::parse(&name), peer) {
        (Operand::Local(_), _) if name == b"-" => Ok(FilesFrom::Stdin),
        (Operand::Local(_), _) => Ok(FilesFrom::File(name)),
        (Operand::Remote(remote), _) if remote.path == b"-" => {
            Err(Error::usage("rsync: Invalid --files-from remote filename"))
        }
        (Operand::Remote(_), None) => Err(Error::usage(
            "--files-from cannot be remote when the transfer is local",
        )
        .by("sender")),
        (Operand::Remote(remote), Some(peer))
            if remote.host.is_empty() || remote.host == peer.host =>
        {
            Ok(FilesFrom::Far(remote.path))
        }
        (Operand::Remote(_), Some(peer)) => {
            let words = "--files-from hostname is not the same as the transfer hostname";
            Err(Error::usage(words).by(RemoteOperand::role(Some(peer))))
        }
    }
}

/// Returns the options that are sent to the server.
///
/// Options whose files or variables only the client reads are replaced by their result: a list of files by `-`, a
/// directory from the environment by the option. `sums`: the chosen checksums, from an option or the environment.
pub fn words(
    given: &[GivenOption],
    args: &Args,
    options: &Options,
    sums: Option<Checksums>,
    server_sends: bool,
) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = given
        .iter()
        .filter(|given| given.flag.reach == FlagScope::Both)
        .map(GivenOption::word)
        .collect();
    // As rsync does: send --super if it is in force, and never --no-super; --executability only without --perms, which
    // --remote-option may revoke. A list of files implies --dirs at the server.
    let is_super = args.preserve.super_user == Some(true);
    let implies_dirs = args.dirs == Dirs::No && options.select.files_from.is_some();
    // A sender only includes the maps in its digests. Two of a kind are an error, so those of --remote-option replace them.
    let is_map = |word: &Vec<u8>| {
        ["--usermap", "--groupmap", "--chown"]
            .iter()
            .any(|map| word.starts_with(map.as_bytes()))
    };
    let has_own_maps = server_sends && args.remote_options.iter().any(is_map);
    words.retain(|word| match &word[..] {
        _ if has_own_maps && is_map(word) => false,
        b"--no-super" => false,
        b"--super" => is_super,
        b"--dirs" | b"--old-dirs" | b"--no-dirs" => !implies_dirs,
        b"--executability" => !args.preserve.perms,
        _ => true,
    });
    if args.json {
        // It implies --itemize-changes, and is not sent.
        words.retain(|word| !matches!(&word[..], b"--itemize-changes" | b"--no-itemize-changes"));
        for _ in 0..args.itemize {
            words.push(b"--itemize-changes".to_vec());
        }
    }
    let is_whole_by_default = !given.iter().any(|given| given.flag.long == "whole-file");
    if is_whole_by_default && args.whole_file == Some(true) {
        words.push(b"--whole-file".to_vec());
    }
    let mut add = |word: &[u8], value: &[u8]| words.push([word, value].concat());
    match &options.select.files_from {
        Some(FilesFrom::Far(path) | FilesFrom::Sent(path)) => add(b"--files-from=", path),
        Some(FilesFrom::File(_) | FilesFrom::Stdin) => add(b"--files-from=-", b""),
        None => {}
    }
    if options.select.list_only && !args.select.list_only {
        add(b"--list-only", b"");
    }
    let from_environment = args.partial_dir.is_none() && !args.place.delay_updates;
    if from_environment && let Some(dir) = &options.place.partial_dir {
        add(b"--partial-dir=", dir);
    }
    if args.checksum_choice.is_none()
        && let Some(sums) = sums
    {
        add(b"--checksum-choice=", sums.transfer.name().as_bytes());
    }
    words
}

/// Returns the options that a client does not send to a server, but that both processes of a local copy have.
pub fn inherited(args: &Args) -> Vec<Vec<u8>> {
    let Preserve {
        super_user,
        fake_super,
        drop_devices,
        executability,
        ..
    } = args.preserve;
    let options = [
        (fake_super, "--fake-super"),
        (super_user == Some(false), "--no-super"),
        (drop_devices, "--drop-D"),
        (args.insecure_links, "--insecure-links"),
        (executability, "--executability"),
    ];
    options
        .into_iter()
        .filter(|(is_set, _)| *is_set)
        .map(|(_, option)| option.into())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Copy, Invocation, Request, Serve, read, settle, settle_session};
    use super::*;
    use crate::exit::Exit;
    use crate::options::{ArgStyle, Compression, LinkOwners, Recurse};
    use std::ffi::{OsStr, OsString};

    fn request(line: &str, vars: &[(&str, &str)]) -> Result<Request> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let vars = |name: &str| {
            vars.iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| OsString::from(value))
        };
        read(&Invocation {
            program: OsStr::new("sparsync"),
            args: &words,
            appended: &[],
            vars: &vars,
            now_unix_secs: 0,
            umask: 0o022,
            popt: b"rsync alias --mine -av --exclude=x\n",
        })
    }

    fn copy(line: &str) -> Copy {
        match request(line, &[]) {
            Ok(Request::Copy(copy)) => *copy,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn text(words: &[Vec<u8>]) -> String {
        String::from_utf8(words.join(&b' ')).unwrap()
    }

    #[test]
    fn push_and_pull_determine_the_remote_side() {
        let push = copy("-a a b u@host:c");
        assert_eq!(
            (text(&push.sources), push.dest),
            ("a b".into(), Some(b"c".to_vec()))
        );
        let far = push.far.unwrap();
        assert_eq!(
            (far.operand.user, far.operand.host, far.operand.server_sends),
            (Some(b"u".to_vec()), b"host".to_vec(), false)
        );
        let pull = copy("-a host:a :b host: d");
        assert_eq!(
            (text(&pull.sources), pull.dest),
            ("a b .".into(), Some(b"d".to_vec()))
        );
        assert!(pull.far.unwrap().operand.server_sends);
        let list = copy("-r host:a");
        assert!(list.options.select.list_only && list.dest.is_none());
        assert_eq!(text(&list.far.unwrap().words), "--recursive --list-only");
    }

    #[test]
    fn daemon_operands_are_sorted() {
        let copy = |line: &str| match request(line, &[("RSYNC_RSH", "x")]) {
            Ok(Request::Copy(copy)) => *copy,
            other => panic!("{line}: {other:?}"),
        };
        for (line, sources, dest, daemon) in [
            ("rsync://u@h:9/m/a ::m/b d", "m/a m/b", Some("d"), 9),
            ("a h::m", "a", Some("m"), 0),
            ("h::", "", None, 0),
            ("a rsync://h", "a", Some(""), 0),
            ("--contimeout=3 --password-file=x h::m d", "m", Some("d"), 0),
        ] {
            let copy = copy(line);
            let far = copy.far.unwrap();
            let dest = dest.map(|dest| dest.as_bytes().to_vec());
            assert_eq!(
                (text(&copy.sources), copy.dest, far.operand.daemon),
                (sources.into(), dest, Some(daemon)),
                "{line}"
            );
            assert!(
                copy.options.connect.shell.is_empty(),
                "a daemon ignores RSYNC_RSH"
            );
        }
        assert_eq!(copy("-e y h::m d").options.connect.shell, [b"y"]);
        for (line, message) in [
            (
                "h::m/a h:b d",
                "All source args must use the same hostspec format.",
            ),
            (
                "rsync://h:1/m rsync://h:2/m d",
                "All source args must use the same port number.",
            ),
            (
                "h::a o::b d",
                "All source args must come from the same machine.",
            ),
            (
                "-e y -- -h::m d",
                "Invalid remote host: hostnames may not start with '-'.",
            ),
            (
                "-e y --contimeout=3 h::m d",
                "The --contimeout option may only be used when connecting to an rsync daemon.",
            ),
        ] {
            let error = request(line, &[]).expect_err(line);
            assert_eq!(
                (String::from_utf8(error.message).unwrap(), error.exit),
                (message.into(), Exit::Usage)
            );
        }
    }

    #[test]
    fn server_is_sent_the_options_that_it_needs() {
        for (line, words) in [
            ("-avze ssh s h:d", "--archive --verbose --compress"),
            ("--mine --no-p s h:d", "--archive --verbose --no-perms"),
            (
                "-F -f P_x --include=a --exclude-from=b -C -0 s h:d",
                "--cvs-exclude --from0",
            ),
            (
                "-P -@-1 --link-dest=../x s h:d",
                "-P --modify-window=-1 --link-dest=../x",
            ),
            ("--files-from=list s h:d", "--files-from=-"),
            ("--files-from=:list h:s d", "--files-from=list"),
            (
                "--fake-super --super --munge-links --chmod=u+x s h:d",
                "--super --chmod=u+x",
            ),
            (
                "--log-file=x --log-file-format=%n -i --out-format=%n --stop-after=3 s h:d",
                "--itemize-changes --out-format=%n",
            ),
            ("--json -rP s h:d", "--recursive -P --itemize-changes"),
            (
                "--json -rii s h:d",
                "--recursive --itemize-changes --itemize-changes",
            ),
            ("--json -i --no-i s h:d", "--itemize-changes"),
            (
                "--rsync-path=x -4 -s --timeout=3 --bwlimit=5 --protocol=31 s h:d",
                "--timeout=3 --bwlimit=5",
            ),
        ] {
            assert_eq!(text(&copy(line).far.unwrap().words), words, "{line}");
        }
        let Ok(Request::Copy(copy)) = request("--partial s h:d", &[("RSYNC_PARTIAL_DIR", "pp")])
        else {
            panic!()
        };
        assert_eq!(text(&copy.far.unwrap().words), "--partial --partial-dir=pp");
    }

    #[test]
    fn server_settles_the_same_options_as_the_client() {
        for line in [
            "-aHAXxS --numeric-ids --delete-after --delete-excluded -vvi --stats --progress s h:d",
            "-d --files-from=list --no-R -@5 --size-only -uW --max-size=1.5m --min-size=3 s h:d",
            "-rb --backup-dir=x --suffix=.o --partial-dir=a//b/ --delay-updates --fsync --mkpath s h:d",
            "--append-verify --copy-dest=x --copy-dest=/y --usermap=0:1 --chown=:2 -B700 -zz --zl=3 s h:d",
            "-nqI --existing --ignore-existing --max-delete=0 --force --ignore-errors -OJK --safe-links s h:d",
            "-rlptgoDmLk --copy-unsafe-links --no-implied-dirs -R --remove-sent-files h:s d",
            "-r --copy-devices --write-devices --remove-source-files --delete s h:d",
            "-r --copy-devices --write-devices --remove-source-files --delete h:s d",
        ] {
            let mut copy = copy(line);
            let far = copy.far.unwrap();
            let mut options = settle(&far.words, &far.remote_words, 0o022, 0).unwrap();
            let serve = Serve {
                sends: far.operand.server_sends,
                words: far.server_words.clone(),
                operands: Vec::new(),
                timeout_secs: 0,
            };
            settle_session(&serve, &far.words, &far.remote_words, 0o022, 0).unwrap_or_else(
                |error| {
                    panic!(
                        "{line}: {}: {}",
                        text(&far.server_words),
                        error.message.escape_ascii()
                    );
                },
            );
            // Only the client has the rules and knows where its list comes from.
            for options in [&mut copy.options, &mut options] {
                options.select.rules.clear();
                options.select.files_from =
                    options.select.files_from.take().map(|_| FilesFrom::Stdin);
                // A bound of the client alone.
                options.delete.refuses_empty_source = false;
            }
            assert_eq!(
                format!("{options:?}"),
                format!("{:?}", copy.options),
                "{line}"
            );
        }
    }

    #[test]
    fn insecure_links_at_the_server_requires_its_command_line() {
        let settled = |line: &str| {
            let far = copy(line).far.unwrap();
            let words = [&far.server_words[..], &far.remote_words].concat();
            let serve = Serve {
                sends: far.operand.server_sends,
                words,
                operands: Vec::new(),
                timeout_secs: 0,
            };
            settle_session(&serve, &far.words, &far.remote_words, 0o022, 0)
                .unwrap()
                .preserve
                .link_owners
        };
        assert_eq!(settled("-a --insecure-links s h:d"), LinkOwners::Trusted);
        assert_eq!(settled("-a -M--insecure-links s h:d"), LinkOwners::Anyone);
        let far = copy("-a s h:d").far.unwrap();
        let serve = Serve {
            sends: false,
            words: far.server_words,
            operands: Vec::new(),
            timeout_secs: 0,
        };
        let word = [b"--insecure-links".to_vec()];
        for (words, remote_words) in [(&word[..], &[][..]), (&[], &word)] {
            let error = settle_session(&serve, words, remote_words, 0o022, 0).unwrap_err();
            assert_eq!(error.exit, Exit::Protocol);
        }
    }

    /// The words of --remote-option cannot hide an error that stops the comparison with the command line, and no option
    /// passes for the value of another one.
    #[test]
    fn session_cannot_exceed_its_command_line() {
        let list = |words: &str| {
            words
                .split_whitespace()
                .map(|word| word.as_bytes().to_vec())
                .collect::<Vec<_>>()
        };
        for (sends, line, words, remote_words) in [
            (
                false,
                "-r",
                "-r --append --whole-file",
                "--no-whole-file --delete",
            ),
            (
                true,
                "-r",
                "-r --append --whole-file",
                "--no-whole-file --remove-source-files",
            ),
            (
                false,
                "-r",
                "-r --append --whole-file",
                "--no-whole-file --backup-dir=/",
            ),
            (false, "-r", "-r --suffix", "--delete --write-devices"),
            (
                true,
                "-r --suffix --copy-devices --numeric-ids",
                "-r",
                "--copy-devices",
            ),
            (
                true,
                "-r --suffix --remove-source-files",
                "-r",
                "--remove-source-files",
            ),
            (
                true,
                "-r --suffix --insecure-links",
                "-r",
                "--insecure-links",
            ),
            (
                false,
                "-r --suffix --write-devices",
                "-r",
                "--write-devices",
            ),
            (false, "-r --suffix --delete", "-r", "--delete"),
            (
                false,
                "-r --suffix --link-dest . --stats",
                "-r --link-dest=/",
                "",
            ),
            (
                false,
                "-r --suffix --copy-dest . --stats",
                "-r --copy-dest=/",
                "",
            ),
            (
                false,
                "-rb --suffix --backup-dir . --stats",
                "-rb --backup-dir=/",
                "",
            ),
            (
                false,
                "-r --suffix --partial-dir . --stats",
                "-r --partial-dir=/",
                "",
            ),
            (
                false,
                "-r --suffix --temp-dir . --stats",
                "-r --temp-dir=/",
                "",
            ),
            (
                true,
                "-r --suffix --files-from . --stats",
                "-r --files-from=/",
                "",
            ),
            (
                true,
                "-r --suffix --files-from=- --stats",
                "-r --files-from=-",
                "",
            ),
        ] {
            let serve = Serve {
                sends,
                words: list(line),
                operands: Vec::new(),
                timeout_secs: 0,
            };
            let settled = settle_session(&serve, &list(words), &list(remote_words), 0o022, 0);
            assert!(settled.is_err(), "{line}, {words}, {remote_words}");
        }
    }

    /// A forced command may rewrite the paths of its client.
    #[test]
    fn paths_of_a_session_are_those_of_its_command_line() {
        let settled = |sends, line: &[&str], words: &[&str]| {
            let list = |words: &[&str]| {
                let words = words.iter().map(|word| word.as_bytes().to_vec());
                words.collect::<Vec<_>>()
            };
            let serve = Serve {
                sends,
                words: list(line),
                operands: Vec::new(),
                timeout_secs: 0,
            };
            settle_session(&serve, &list(words), &[], 0o022, 0).unwrap()
        };
        let listed = settled(
            true,
            &["-r", "--files-from", "/jail/list", "--no-relative"],
            &["-r", "--files-from=/list", "--no-relative"],
        );
        assert_eq!(
            listed.select.files_from,
            Some(FilesFrom::File(b"/jail/list".to_vec()))
        );
        let received = settled(
            false,
            &[
                "-rb",
                "--backup-dir",
                "/jail/b",
                "--partial-dir",
                "/jail/p",
                "--temp-dir",
                "/jail/t",
                "--link-dest",
                "/jail/l",
            ],
            &[
                "-rb",
                "--backup-dir=/b",
                "--partial-dir=/p",
                "--temp-dir=/t",
                "--link-dest=/l",
            ],
        );
        let place = received.place;
        let paths = [
            place.backup.unwrap().dir,
            place.partial_dir,
            place.temp_dir,
            received.delta.alt_dest.unwrap().dirs.pop(),
        ];
        let expected = ["/jail/b", "/jail/p", "/jail/t", "/jail/l"];
        assert_eq!(paths, expected.map(|path| Some(path.as_bytes().to_vec())));
    }

    #[test]
    fn remote_options_apply_only_at_the_server() {
        let copy = copy("-a -M--fake-super -M--no-times s h:d");
        let far = copy.far.unwrap();
        assert!(!copy.options.preserve.fake_super && copy.options.preserve.times);
        let options = settle(&far.words, &far.remote_words, 0, 0).unwrap();
        assert!(options.preserve.fake_super && !options.preserve.times && options.preserve.perms);
        let refusal = |word: &str| {
            settle(&[], &[word.as_bytes().to_vec()], 0, 0)
                .unwrap_err()
                .message
        };
        assert_eq!(
            refusal("--foo"),
            b"rsync: on remote machine: --foo: unknown option"
        );
        let later = settle(&[b"--foo".to_vec()], &[], 0, 0).unwrap_err();
        let words = "rsync: on remote machine: --foo: unknown option (the sparsync there is older: upgrade it)";
        assert_eq!((later.exit, later.message), (Exit::Protocol, words.into()));
        for word in [
            "--daemon", "--help", "--json", "--man", "operand", "--server",
        ] {
            refusal(word);
        }
    }

    #[test]
    fn connect_options_are_settled() {
        let style = |line: &str, vars: &[(&str, &str)]| match request(line, vars) {
            Ok(Request::Copy(copy)) => copy.options.connect.args,
            other => panic!("{line}: {other:?}"),
        };
        let (old, protect) = (("RSYNC_OLD_ARGS", "1"), ("RSYNC_PROTECT_ARGS", "1"));
        assert_eq!(style("s h:d", &[]), ArgStyle::Escaped);
        assert_eq!(style("-s s h:d", &[old]), ArgStyle::Secluded);
        assert_eq!(style("s h:d", &[protect]), ArgStyle::Secluded);
        assert_eq!(style("--no-s s h:d", &[protect]), ArgStyle::Escaped);
        assert_eq!(style("s h:d", &[old, protect]), ArgStyle::OldPaths);
        assert_eq!(style("--old-args s h:d", &[protect]), ArgStyle::OldPaths);
        assert_eq!(style("--old-args --old-args s h:d", &[]), ArgStyle::OldAll);
        assert_eq!(style("s h:d", &[("RSYNC_OLD_ARGS", "2")]), ArgStyle::OldAll);
        assert_eq!(style("--no-old-args s h:d", &[old]), ArgStyle::Escaped);
        let shell = |line: &str| text(&copy(line).options.connect.shell);
        assert_eq!(
            (shell("s h:d"), shell("--rsh=a s h:d -e b")),
            (String::new(), "b".into())
        );
        let choice = |line: &str| copy(&format!("{line} s h:d")).options.delta.compress.choice;
        for (line, wanted) in [
            ("", None),
            ("-z", Some(Compression::Auto)),
            ("-zz", Some(Compression::Zlibx)),
            ("-z --no-z", Some(Compression::No)),
            ("--zc=LZ4 --no-z", Some(Compression::No)),
            ("--no-z --zc=LZ4", Some(Compression::Lz4)),
            ("--zc=auto", None),
            ("-zz --old-compress", Some(Compression::Zlib)),
            ("-z --zc=none", Some(Compression::No)),
        ] {
            assert_eq!(choice(line), wanted, "{line}");
        }
    }

    #[test]
    fn contimeout_applies_to_a_server_url() {
        let secs = |line: &str| copy(line).options.connect.contimeout_secs;
        assert_eq!(
            (
                secs("--contimeout=3 a sparsync://h/b"),
                secs("sparsync://h/a b")
            ),
            (3, 0)
        );
        assert_eq!(
            text(
                &copy("-a --contimeout=3 sparsync://h/a b")
                    .far
                    .unwrap()
                    .words
            ),
            "--archive"
        );
    }

    #[test]
    fn invalid_operands_have_rsyncs_errors() {
        for (line, message, role) in [
            (
                "h:a o:b d",
                "All source args must come from the same machine.",
                "Receiver",
            ),
            (
                "u@h:a h:b d",
                "All source args must come from the same machine.",
                "Receiver",
            ),
            (
                "h:a b d",
                "Unexpected local arg: b\nIf arg is a remote file/dir, prefix it with a colon (:).",
                "Receiver",
            ),
            ("a h:b h:c", "Unexpected remote arg: h:b", "sender"),
            (
                "h:a h:b",
                "The source and destination cannot both be remote.",
                "Receiver",
            ),
            (
                "a -- u@-h:b",
                "Invalid remote host: hostnames may not start with '-'.",
                "sender",
            ),
            (
                "--files-from=o:l a h:b",
                "--files-from hostname is not the same as the transfer hostname",
                "sender",
            ),
            (
                "-e 'x a h:b",
                "Missing trailing-' in remote-shell command.",
                "sender",
            ),
            (
                "--contimeout=3 a h:b",
                "The --contimeout option may only be used when connecting to an rsync daemon.",
                "sender",
            ),
        ] {
            let error = request(line, &[]).expect_err(line);
            assert_eq!(
                (String::from_utf8(error.message).unwrap(), error.role),
                (message.into(), role),
                "{line}"
            );
        }
        for line in ["--bogus a h:b", "--protocol=26 a h:b"] {
            assert!(
                matches!(request(line, &[]), Ok(Request::Unsupported(_))),
                "{line}"
            );
        }
        // rsync does not know --transport, so sparsync reports the error.
        let refusal = request("-a --transport=foo a h:b", &[]).unwrap_err();
        assert_eq!(
            refusal.message,
            b"sparsync: invalid --transport value `foo`: expected auto, quic, tls or ssh"
        );
        // rsync does not know such a URL.
        for line in [
            "--bogus a sparsync://h/b",
            "--config=x sparsync://h/b .",
            "h::m sparsync://h/b",
        ] {
            assert!(request(line, &[]).is_err(), "{line}");
        }
        let refusal = request("--protocol=26 a sparsync://h/b", &[]).unwrap_err();
        assert_eq!(refusal.exit, crate::exit::Exit::Unsupported);
        assert_eq!(refusal.message, b"sparsync: --protocol=26 is not supported");
        assert!(matches!(
            request("-M--log-file-format=%n a h:b", &[]),
            Ok(Request::Copy(_))
        ));
    }

    #[test]
    fn capability_letter_identifies_a_sparsync_client() {
        let serve = |line: &str| match request(line, &[]).unwrap() {
            Request::Serve(serve) => Some((serve.sends, text(&serve.operands), serve.timeout_secs)),
            Request::ServeRsync(_) | Request::Daemon(_) => None,
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(
            serve("--server -logDtpre.iLsfxCIvuY --timeout=5 . a:b -- -c"),
            Some((false, "a:b -c".into(), 5))
        );
        assert_eq!(
            serve("--server --sender -e.LsfxCIvuY --temp-dir . --foo . x"),
            Some((true, "x".into(), 0))
        );
        assert_eq!(
            serve("--server -se.LsfxCIvuY"),
            Some((false, String::new(), 0))
        );
        for line in [
            "--server -logDtpre.iLsfxCIvu . x",
            "--server -logDtpre.iLsfxCIvuZ . x",
            "--server --sender -vlogDtpYre . x",
            "--server --daemon -e.Y .",
            "--server . x",
        ] {
            assert_eq!(serve(line), None, "{line}");
        }
        let copy = copy("-a s h:d");
        assert_eq!(copy.options.select.recurse, Recurse::Full);
        assert_eq!(
            text(&copy.far.unwrap().server_words),
            "-logDtpre.iLsfxCIvuY"
        );
    }
}

//! Options that rsync does not have.

use crate::cli::args::{CompletionShell, MAN_PAGES, PrintRequest};
use crate::cli::flag::{Effect, Flag, Support};
use crate::cli::flags::delta::add_alt;
use crate::error::Error;
use crate::options::connect::TransportChoice;
use crate::options::output::Ui;
use crate::options::{AltKind, CacheChoice, DeleteGuard, DetectRenamed, Lock, Verify};
use crate::path::RelPath;

/// The arguments of `--transport`.
pub const TRANSPORTS: [&str; 4] = ["auto", "quic", "tls", "ssh"];

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag::value("transport", "WAY", "select the transport: auto, quic, tls or ssh")
        .words(&TRANSPORTS)
        .effect(Effect::Argument(|args, given| {
            let transport = transport(given.value, "--transport");
            args.own_option_is_invalid |= transport.is_err();
            args.transport = Some(transport?);
            Ok(())
        }))
        .local()
        .support(Support::OverSsh)
        .man("rsync has no such option. By default, sparsync reaches an enrolled host over QUIC, over TLS if UDP is \
              blocked, or over ssh otherwise. ssh is also used for paths outside the grant of an enrolled host, and \
              for any other host. With `quic`, sparsync uses ssh to start a server for this run on a host that is not \
              enrolled. On a short path without loss, a bulk transfer that began over QUIC continues over TLS, but \
              not with `--transport=quic`. `-e` and RSYNC_RSH select the remote shell as the transport unless this \
              option is given. SPARSYNC_TRANSPORT sets the default for all runs."),
    Flag::switch("json", "print one JSON object per event, or for --version")
        .effect(Effect::Switch(|args| &mut args.json))
        .local()
        .man("Each line of standard output is an object: a change with the columns of -i, a listed entry, a deletion, a \
              problem, a note, the progress (with --progress or --info=progress2), a summary, and at last the exit code. \
              docs/json-schema.json describes them. Problems are also printed on standard error. -ii reports \
              unchanged entries too. With --version, the keys differ from rsync's, which -VV prints."),
    Flag::switch("report-unread", "with -c, report files that cannot be read to compare them")
        .effect(Effect::Switch(|args| &mut args.check.reports_unread))
        .man("Without it, as with rsync, a file that only one end can read is copied, and one that no end can read is \
              left alone. With it, the file is reported and left alone, and the exit code is 23. An rsync that \
              receives does not tell which files it cannot read. `sparsync check` sets the option."),
    Flag::optional("checksum-cache", "DIR", "with -c, keep digests of contents for later runs")
        .negations(&["no-checksum-cache"])
        .effect(Effect::Revocable(
            |args, given| {
                let dir = if given.value.is_empty() { None } else { Some(given.value.to_vec()) };
                args.checksum_cache = Some(CacheChoice { dir, force: false });
                Ok(())
            },
            |args| args.checksum_cache = None,
        ))
        .man("A file whose content was read for -c, or by `sparsync check`, is not read again until it changes: its \
              digest is kept with its device, inode, length and times, and valid as long as all of them stay the same. \
              As no program can set the time of the last change (ctime), an unchanged one stands for unchanged \
              content. What the run itself writes is read at its end. Both ends keep digests, each of its own files, in \
              the state directory of the user. DIR is another directory for those of this end; only the user may be \
              able to write to it. Files that were changed in the last 50 ms are read each time, and so are those on \
              network file systems, file systems in user space and others that are not known to keep such times; see \
              --checksum-cache-force. What programs store through a mapping of a file that has unwritten changes \
              already, what a disk changes by itself, and what a power failure leaves of a file that was being \
              overwritten has no new time and is not seen; `sparsync cache verify` reads everything. If the digests \
              cannot be read or stored, the run goes on without them and warns once. The oldest ones go when they take \
              512 MiB. Nothing is kept by a run without -c that is neither a `sparsync check` nor has --detect-renamed \
              without a value, and between an rsync and sparsync: then a warning says so."),
    Flag::switch("checksum-cache-force", "with --checksum-cache, trust the times of any file system")
        .effect(Effect::Switch(|args| &mut args.checksum_cache_force))
        .man("A file system that reports old times for seconds, or those of another clock, can hide a change: NFS, SMB, \
              FUSE. Then a file that differs is not copied. Only for file systems of which you know that each change \
              of a file shows in its ctime at once. Both ends trust theirs."),
    Flag::switch("replay-plan", "the client is `sparsync apply`")
        .effect(Effect::Switch(|args| &mut args.replay_plan))
        .support(Support::InSession),
    Flag::value("explained", "PATH", "the client is `sparsync explain`, and asks about this path")
        .effect(Effect::Argument(|args, given| {
            let path = RelPath::parse(given.value);
            let path = path.map_err(|_| Error::usage("--explained: not a path of a transfer"))?;
            args.explained.push(path);
            Ok(())
        }))
        .support(Support::InSession),
    Flag::optional("detect-renamed", "HOW", "take files from equal files of the destination")
        .words(&["moved", "quick"])
        .negations(&["no-detect-renamed"])
        .effect(Effect::Revocable(
            |args, given| {
                let how = detect_renamed(given.value);
                args.own_option_is_invalid |= how.is_err();
                args.detect_renamed = Some(how?);
                Ok(())
            },
            |args| args.detect_renamed = None,
        ))
        .man("A regular file that is new at the destination takes the content of an equal file there, or in a tree of \
              --link-dest, --copy-dest, --clone-dest or --compare-dest, so that it is not sent. So does a file that \
              has changed, except with --append: if files were swapped or rotated, each takes what another one had. \
              Without a value, files are equal if they have the same size and content: both ends read the files that \
              can be equal, of more than 8 of one size only those with equal times. Then new files that are equal to \
              each other are sent once, too. With `moved`, files are equal if they have the same size, modification \
              time and name, in different directories; with `quick`, the name may differ. Then contents are not \
              compared: as with any quick check, an unchanged size and time stand for an unchanged file. So the \
              source of such a file is not opened, and one that cannot be read is not reported. If the equal file \
              would be deleted in this run, it is renamed; this needs -t, and neither --backup nor, unless deletions \
              come at the end, --max-delete. Otherwise it is copied, by sharing its blocks if the file system can. If \
              this run changes the equal file, its old content stays under a temporary name, for which --inplace \
              copies it, until the files that take it are complete; if one of them fails, until the next run. If \
              there is no room for that, they are sent. But of a file in a tree of --link-dest, the new one becomes \
              another name, if it has all attributes that the new one must have, and as long as no two files of the \
              destination become names of one file by that; so a snapshot of renamed files needs no space for them. \
              Files in these trees are never renamed. The result is that of a run without the option, except for such \
              links. But the whole list is held in memory, no content is sent before it is requested, and if a file \
              is to be renamed, deletions wait for the end of the run. Files in directories that are the same at both \
              ends are not looked at between machines. An rsync can be the sender, but not the receiver; it sends no \
              digests, so without a value an equal or similar file of the same size is the basis of a delta, unless \
              with --whole-file. With --checksum-cache, digests are kept for later runs. --info=rename prints where \
              files came from."),
    Flag::value("clone-dest", "DIR", "copy files from DIR if they are identical there, by sharing their blocks")
        .effect(Effect::Argument(|args, given| add_alt(args, AltKind::Copy, true, given.value)))
        .man("Like --copy-dest, but a copy of a file in DIR shares the blocks of that file, on a file system that can do that: \
              btrfs, and XFS. So it needs no space until one of both is changed. A file that is sent as the differences from a \
              basis is written over a clone of the basis, whatever that is: a file in DIR, an older version at the \
              destination, or a similar file of --fuzzy. Then only the blocks that differ need space. Local copies do so with \
              --no-whole-file. Where blocks cannot be shared, files are copied as with --copy-dest, and one warning says so. \
              With --sparse, --preallocate and --verify no blocks are shared, and with --inplace none of a changed file that \
              is new at the destination. Files of --detect-renamed share the blocks of those whose content they take. An rsync can \
              be the sender, but not the receiver. On the command line of a server, the option is --copy-dest, for forced \
              commands. Cannot be used with --write-batch, or with --copy-dest, --compare-dest or --link-dest."),
    Flag::optional("verify", "source", "read files back before they get their names, and compare")
        .words(&["source"])
        .negations(&["no-verify"])
        .effect(Effect::Revocable(
            |args, given| {
                args.place.verify = Some(match given.value {
                    b"" => Verify::Written,
                    b"source" => Verify::WrittenAndSource,
                    other => {
                        args.own_option_is_invalid = true;
                        let other = other.escape_ascii();
                        let words = format!("sparsync: invalid --verify value `{other}`: expected source, or no value");
                        return Err(Error::usage(words));
                    }
                });
                Ok(())
            },
            |args| args.place.verify = None,
        ))
        .man("Each file that is written is synced, its pages are dropped from the cache, and it is read back from the medium.               If it is not what the sender sent, this is an error of the file (exit 23): what was written is removed, and an               old version stays. With --inplace and --append, a file is read back after it was written, and a damaged one               keeps its content with the current time, so that the next run copies it again. With `source`, the sender reads the file again, too, as from the medium. A               file that differs then counts as unreadable and is sent once more; if it differs again, it is not copied. --stats and --json count               what was verified. Not verified are attributes, backups, hard links, links of --link-dest, renamed files of               --detect-renamed, and files that were not written. A local copy shares no blocks with its source, and a file system in memory has               no medium. A disk with a cache of its own may read from that. An rsync can be the sender, except with `source`, but not the receiver. Cannot be used with               --write-devices, --write-batch, and with `source` also not with --copy-devices and --read-batch."),
    Flag::value("metrics-file", "FILE", "write metrics of the run to FILE at its end")
        .effect(Effect::Text(|args| &mut args.output.metrics_file))
        .local()
        .man("The text format is that of OpenMetrics and Prometheus. node_exporter's textfile collector reads FILE if its \
              name ends in .prom. FILE is replaced as a whole, also if the run fails, except for a mistake on the command \
              line. A device, a FIFO or a symlink is written to. A FILE that cannot be written is reported and does not change the exit code."),
    Flag::value("failed-list", "FILE", "write the paths that could not be transferred to FILE")
        .effect(Effect::Text(|args| &mut args.output.failed_list))
        .local()
        .man("FILE lists the files and directories with an error that makes the exit code 23, relative to the transfer, each \
              with a newline at its end, or a NUL with --from0. It is replaced as a whole at the end of the run, also \
              after a signal or a lost connection, has mode 0600, and is empty if nothing failed. A run that ends before it \
              begins to copy leaves it alone. Entries that were to be deleted, and files that vanished, are not listed; \
              sparsync says how many deletions failed. \
              If the source is one directory with a slash at its end, or with --files-from, the same command line with \
              -r and --files-from=FILE tries again what is listed. The paths come from the error messages of both ends; if \
              one names no path of the transfer, sparsync says so. An rsync at the other end of a remote shell sends its \
              messages only with --stderr=client, which rsync 3.1 and openrsync do not know. If FILE cannot \
              be written, the exit code is 11 in place of 0."),
    Flag::optional("ui", "plain", "show a live display of the run on a terminal")
        .words(&["plain"])
        .negations(&["no-ui"])
        .help_off("show no live display")
        .effect(Effect::Revocable(
            |args, given| {
                args.output.ui = match given.value {
                    b"" => Ui::Live,
                    b"plain" => Ui::Plain,
                    other => {
                        args.own_option_is_invalid = true;
                        let other = other.escape_ascii();
                        let words = format!("sparsync: invalid --ui value `{other}`: expected plain, or no value");
                        return Err(Error::usage(words));
                    }
                };
                Ok(())
            },
            |args| args.output.ui = Ui::Off,
        ))
        .local()
        .man("The display shows the entries and bytes done, the rate, the remaining time, the largest files in progress, \
              the last error, and the route. A summary of three lines remains. Lines of -v and errors appear above the \
              display, which replaces the lines of --progress and --info=progress2. Unless standard output and standard \
              error are terminals, and with -q, --json or --list-only, the option has no effect. With -n, the summary \
              describes what would be done. Unless it is called as rsync, sparsync shows the display of a run that takes \
              longer than half a second by itself, if no option requests other output (-v, -i, --out-format, --progress, \
              --stats, -q, --json). `--ui=plain` prints a line on standard error every 10 seconds in place of the display, \
              without a terminal, too. SPARSYNC_UI=1, 0 or plain sets the default for all runs."),
    Flag::value("delete-guard", "N|N%", "change nothing if more than N entries would be deleted")
        .negations(&["no-delete-guard"])
        .help_off("empty a destination even if the source is empty")
        .effect(Effect::Revocable(
            |args, given| {
                let guard = delete_guard(given.value);
                args.own_option_is_invalid |= guard.is_err();
                args.delete_guard = Some(guard?);
                Ok(())
            },
            |args| args.delete_guard = Some(DeleteGuard::Off),
        ))
        .local()
        .man("Before the run, a dry run counts the entries that would be deleted. If they are more than N, or more than \
              N percent of the entries in the compared directories of the destination, nothing is changed and the exit \
              code is 25. Otherwise the run deletes at most that many, as with --max-delete, even if the trees change in \
              between. Contents of deleted directories count. So the source is walked twice, and a remote shell is \
              started twice; lists and rules must be regular files, and a batch file cannot be used. A run that has lost \
              its connection is not repeated by itself. Without this option, and unless it is called as rsync, sparsync \
              with --delete refuses only to empty a destination of more than 20 entries from empty local source \
              directories, if that can be counted, or from a single remote source that has no entries. \
              --no-delete-guard permits it."),
    Flag::value("require-mount", "PATH", "change nothing unless a file system is mounted on PATH")
        .effect(Effect::Argument(|args, given| {
            args.guard.mounts.push(given.value.to_vec());
            Ok(())
        }))
        .local()
        .man("PATH is a directory of this machine, usually the source or the destination of a backup to a disk that is not \
              always there. Otherwise the exit code is 3. The option can be given several times."),
    Flag::switch("fail-if-empty", "change nothing if the source has no entries")
        .negations(&["no-fail-if-empty"])
        .effect(Effect::Switch(|args| &mut args.guard.fail_if_empty))
        .local()
        .man("The source is empty if all source arguments are directories without entries. Then the exit code is 3. \
              A remote source is examined by a dry run, as with --delete-guard, and counts as empty only if no option \
              leaves out entries: --exclude, --max-size, -m and the like."),
    Flag::optional("lock", "wait", "let one run at a time copy to this destination")
        .words(&["wait"])
        .negations(&["no-lock"])
        .effect(Effect::Revocable(
            |args, given| {
                let lock = match given.value {
                    b"" => Lock::Refuse,
                    b"wait" => Lock::Wait,
                    other => {
                        args.own_option_is_invalid = true;
                        let other = other.escape_ascii();
                        let words = format!("sparsync: invalid --lock value `{other}`: expected wait, or no value");
                        return Err(Error::usage(words));
                    }
                };
                args.guard.lock = Some(lock);
                Ok(())
            },
            |args| args.guard.lock = None,
        ))
        .local()
        .man("The lock is a file in the state directory of the user, so it is for the runs of one user on one machine. Its \
              name is derived from the destination: its absolute path without symlinks and `..`, or user, host and path as \
              given. So it is the same for all spellings of a local path, but not for two names of a host, or for a \
              symlink, a `..` or a relative path at another machine. If another run holds the lock, the exit code is 75. \
              With `wait`, the run waits for the other one to end."),
    Flag::optional("man", "PAGE", "print the man page of sparsync or a command")
        .words(&MAN_PAGES)
        .effect(Effect::Argument(|args, given| {
            let wanted = if given.value.is_empty() { b"sparsync" } else { given.value };
            let Some(page) = MAN_PAGES.into_iter().find(|page| page.as_bytes() == wanted) else {
                args.own_option_is_invalid = true;
                let other = wanted.escape_ascii();
                let words = format!(
                    "sparsync: invalid --man value `{other}`: expected sparsync, apply, bench, cache, check, doctor, enroll, explain, hash, plan or server"
                );
                return Err(Error::usage(words));
            };
            args.print = Some(PrintRequest::Man(page));
            Ok(())
        }))
        .local()
        .man("The page is in roff format. `sparsync --man | man -l -` displays it."),
    Flag::value("completions", "SHELL", "print shell completions for bash, zsh or fish")
        .words(&["bash", "zsh", "fish"])
        .effect(Effect::Argument(|args, given| {
            args.print = Some(PrintRequest::Completions(match given.value {
                b"bash" => CompletionShell::Bash,
                b"zsh" => CompletionShell::Zsh,
                b"fish" => CompletionShell::Fish,
                other => {
                    args.own_option_is_invalid = true;
                    let other = other.escape_ascii();
                    let words = format!("sparsync: invalid --completions value `{other}`: expected bash, zsh or fish");
                    return Err(Error::usage(words));
                }
            }));
            Ok(())
        }))
        .local(),
];

/// Parses the argument of `--detect-renamed`.
fn detect_renamed(value: &[u8]) -> crate::error::Result<DetectRenamed> {
    match value {
        b"moved" => Ok(DetectRenamed::Moved),
        b"quick" => Ok(DetectRenamed::Quick),
        b"" => Ok(DetectRenamed::Content),
        other => {
            let other = other.escape_ascii();
            Err(Error::usage(format!(
                "sparsync: invalid --detect-renamed value `{other}`: expected moved or quick, or no value"
            )))
        }
    }
}

/// Parses the argument of `--delete-guard`: a number of entries, or a percentage from 0 to 100.
fn delete_guard(value: &[u8]) -> crate::error::Result<DeleteGuard> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let guard = match text.strip_suffix('%') {
        Some(percent) => percent
            .parse()
            .ok()
            .filter(|percent| *percent <= 100)
            .map(DeleteGuard::Percent),
        None => text.parse().ok().map(DeleteGuard::Entries),
    };
    guard.ok_or_else(|| {
        let value = value.escape_ascii();
        Error::usage(format!(
            "sparsync: invalid --delete-guard value `{value}`: expected a number of entries, or a percentage such as 10%"
        ))
    })
}

/// Parses the name of a transport. `given_by`: the option or variable that it comes from.
pub fn transport(name: &[u8], given_by: &str) -> crate::error::Result<TransportChoice> {
    Ok(match name {
        b"auto" => TransportChoice::Auto,
        b"quic" => TransportChoice::Quic,
        b"tls" => TransportChoice::Tls,
        b"ssh" => TransportChoice::Shell,
        _ => {
            let words = format!(
                "sparsync: invalid {given_by} value `{}`: expected auto, quic, tls or ssh",
                name.escape_ascii()
            );
            return Err(Error::usage(words));
        }
    })
}

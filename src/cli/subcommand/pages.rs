//! The help pages of the subcommands.
//!
//! They leave out what users do not need: `session`, --ceiling, --too-large, --detached and --or-other-port, which the
//! server uses itself, --default-name, which `enroll` uses, and `pipe`, a remote shell for tests and troubleshooting.

/// The subcommands.
pub const COMMANDS: [&str; 11] = [
    "server", "enroll", "doctor", "bench", "check", "hash", "cache", "plan", "apply", "explain",
    "help",
];

/// The actions of `server` that users need, in the order of its help.
pub const USER_ACTIONS: [&str; 10] = [
    "start", "stop", "restart", "status", "metrics", "install", "grants", "grant", "revoke", "pin",
];

/// The actions of `server`. The last two are for programs.
pub const ACTIONS: [&str; 12] = [
    "start", "stop", "restart", "status", "metrics", "install", "grants", "grant", "revoke", "pin",
    "session", "pipe",
];

/// The subcommands that users need, and the actions of `server`, with their help.
pub const PAGES: [(&str, &str); 20] = [
    ("apply", APPLY),
    ("bench", BENCH),
    ("cache", CACHE),
    ("check", CHECK),
    ("doctor", DOCTOR),
    ("enroll", ENROLL),
    ("explain", EXPLAIN),
    ("hash", HASH),
    ("plan", PLAN),
    ("server", SERVER),
    ("server start", START),
    ("server stop", STOP),
    ("server restart", RESTART),
    ("server status", STATUS),
    ("server metrics", METRICS),
    ("server install", INSTALL),
    ("server grants", GRANTS),
    ("server grant", GRANT),
    ("server revoke", REVOKE),
    ("server pin", PIN),
];

/// Returns the name of the page of an action of `server`; that of `server` itself if the action has none of its own.
pub fn page_of(action: Option<&str>) -> &'static str {
    let is_it = |name: &&str| {
        name.strip_prefix("server ")
            .is_some_and(|known| action == Some(known))
    };
    PAGES
        .into_iter()
        .map(|(name, _)| name)
        .find(is_it)
        .unwrap_or("server")
}

/// Returns the text of a page; `None`: the help of the whole program, which `all` creates.
pub fn page(name: Option<&str>, all: impl FnOnce() -> String) -> String {
    let text = |name| {
        PAGES
            .into_iter()
            .find(|(known, _)| *known == name)
            .map(|(_, text)| text.to_owned())
    };
    name.and_then(text).unwrap_or_else(all)
}

/// The help of `server`.
const SERVER: &str = "\
Manage the server of this account: it accepts QUIC and TLS connections from keys that have a grant.

Usage: sparsync server SUBCOMMAND [OPTION]... [[USER@]HOST]

With a HOST the subcommand runs there, over ssh.

SUBCOMMANDS
  start                   start the server in the background
  stop                    stop the server after its sessions have ended
  restart                 stop and start the server with the same settings
  status                  show whether the server runs, and its sessions
  metrics                 print metrics for Prometheus
  install                 write a systemd unit that starts the server
  grants                  list the keys that have a grant
  grant PIN               add or change the grant of a key (`sparsync enroll` does this)
  revoke NAME|PIN         remove a grant and end its sessions
  pin                     print the fingerprint of this user's key

`sparsync server SUBCOMMAND --help` lists the options of a subcommand.

OPTIONS
  --rsh=COMMAND, -e       with HOST: the remote shell
  --rsync-path=PROGRAM    with HOST: the path of sparsync there
  --help, -h              print this help

EXAMPLES
  sparsync server start                 start the server of this account
  sparsync server status box            show the status of the server on box
  sparsync server install               let systemd start the server at boot
  sparsync server revoke laptop         remove the grant of laptop

FILES
  ~/.config/sparsync (root: /etc/sparsync)
                          the key, the enrolled hosts and the grants
  ~/.local/state/sparsync (root: /var/lib/sparsync)
                          the log and the state of a running server
  SPARSYNC_CONFIG_DIR replaces both directories.
";

const START: &str = "\
Start the server of this account in the background.

Usage: sparsync server start [OPTION]... [[USER@]HOST]

Succeeds if the server is already running with these settings. If an old server is still stopping,
start waits for it. Where logind ends the processes of a login (KillUserProcesses=yes), the server
ends with the login; `sparsync server install` avoids that.

OPTIONS
  --port=PORT             UDP and TCP port; default: the last port used, at first 28792; 0: any free
                          port
  --listen=ADDRESS        listen on this IP address only; may be repeated; default: the last ones
                          given, at first all addresses; --listen=:: means all
  --memory=SIZE           memory limit of the server and its sessions together, such as 4G; default:
                          half of the memory of this machine. At three quarters, new clients are
                          rejected; above the limit, the session that uses the most is ended
  --foreground            run in this process, for supervisors; log to standard error
  --rsh=COMMAND, -e       with HOST: the remote shell
  --rsync-path=PROGRAM    with HOST: the path of sparsync there
  --help, -h              print this help

EXAMPLES
  sparsync server start
  sparsync server start --port=4433 --listen=192.0.2.7
  sparsync server start box
";

const STOP: &str = "\
Stop the server of this account: reject new clients, wait for running sessions, then exit.

Usage: sparsync server stop [OPTION]... [[USER@]HOST]

OPTIONS
  --now                   end running sessions instead of waiting for them
  --rsh=COMMAND, -e       with HOST: the remote shell
  --rsync-path=PROGRAM    with HOST: the path of sparsync there
  --help, -h              print this help

EXAMPLES
  sparsync server stop
  sparsync server stop --now box
";

const RESTART: &str = "\
Stop the server of this account and start it again.

Usage: sparsync server restart [OPTION]... [[USER@]HOST]

Settings that are not given stay as they are.

OPTIONS
  --now                   end running sessions instead of waiting for them; their clients reconnect
  --port=PORT             UDP and TCP port; 0: any free port
  --listen=ADDRESS        listen on this IP address only; may be repeated
  --memory=SIZE           memory limit of the server and its sessions together, such as 4G
  --rsh=COMMAND, -e       with HOST: the remote shell
  --rsync-path=PROGRAM    with HOST: the path of sparsync there
  --help, -h              print this help

EXAMPLES
  sparsync server restart --now
  sparsync server restart --memory=8G box
";

const STATUS: &str = "\
Show the state of the server of this account: its addresses, sessions, traffic and recent errors.
Running daemons for rsync clients (--daemon) are shown as well.

Usage: sparsync server status [OPTION]... [[USER@]HOST]

The exit code is 0 if the server is running, 3 if it is not.

OPTIONS
  --json                  print JSON
  --rsh=COMMAND, -e       with HOST: the remote shell
  --rsync-path=PROGRAM    with HOST: the path of sparsync there
  --help, -h              print this help

EXAMPLES
  sparsync server status
  sparsync server status --json box
";

const METRICS: &str = "\
Print metrics of the server of this account in the text format of OpenMetrics.

Usage: sparsync server metrics [OPTION]... [[USER@]HOST]

Counters begin at 0 when the server starts. Files are not counted: the server only forwards the
bytes of sessions. A copy counts them with --metrics-file. The exit code is 0 if the server is
running, 3 if it is not; then the only metric is sparsync_server_up.

OPTIONS
  --rsh=COMMAND, -e       with HOST: the remote shell
  --rsync-path=PROGRAM    with HOST: the path of sparsync there
  --help, -h              print this help

EXAMPLES
  sparsync server metrics
  sparsync server metrics box
";

const INSTALL: &str = "\
Write a systemd unit that starts the server, and print the commands that enable it.

Usage: sparsync server install [OPTION]... [[USER@]HOST]

OPTIONS
  --system                write a unit for the machine, run by root; the default for root
  --user                  write a unit for this user; the default for other users
  --dry-run, -n           print the unit instead of writing it
  --port=PORT             UDP and TCP port
  --listen=ADDRESS        listen on this IP address only; may be repeated
  --memory=SIZE           memory limit of the server and its sessions together, such as 4G
  --rsh=COMMAND, -e       with HOST: the remote shell
  --rsync-path=PROGRAM    with HOST: the path of sparsync there
  --help, -h              print this help

EXAMPLES
  sparsync server install --dry-run
  sparsync server install --port=4433
  sparsync server install root@box
";

const GRANTS: &str = "\
List the keys that may copy to and from this account, with their rights.

Usage: sparsync server grants [OPTION]... [[USER@]HOST]

OPTIONS
  --json                  print JSON
  --rsh=COMMAND, -e       with HOST: the remote shell
  --rsync-path=PROGRAM    with HOST: the path of sparsync there
  --help, -h              print this help

EXAMPLES
  sparsync server grants
  sparsync server grants --json box
";

const GRANT: &str = "\
Add or change the grant of a key.

Usage: sparsync server grant [OPTION]... PIN [[USER@]HOST]

PIN is the fingerprint that `sparsync server pin` prints for the user of the client. Rights that are
not given stay as they are; a new grant permits everything that this account may do. A change takes
effect within a second. `sparsync enroll HOST` runs this command on HOST.

OPTIONS
  --name=NAME             the name of the client; required for a new grant
  --root=DIR              permit only paths below DIR; may be repeated; --root=/ permits all paths
  --read-only             permit reading only
  --read-write            permit writing again
  --expires=WHEN          end the grant on a date (2026-12-31, until its end in UTC), at a time
                          (2026-12-31T18:00:00Z) or after a duration (30d, 12h)
  --no-expiry             remove the expiry date
  --allow-setuid          with --root: permit set-ID bits and security.* attributes
  --strip-setuid          remove them again
  --no-munge              with --root and a server of root: store symlinks unchanged, even if they
                          lead outside; default: store them as rsync's --munge-links does
  --munge                 munge symlinks again
  --owner=USER[:GROUP]    with a server of root: run the sessions of the key as USER, with GROUP or
                          the primary group of USER; all that the client writes belongs to them
  --no-owner              run them as the user of the server again
  --start                 start the server if it is not running
  --port=PORT             with --start: UDP and TCP port; default: as for `server start`, or the
                          next free port if that one is in use
  --listen=ADDRESS        with --start: listen on this IP address only; may be repeated
  --memory=SIZE           with --start: memory limit of the server
  --json                  print JSON
  --rsh=COMMAND, -e       with HOST: the remote shell
  --rsync-path=PROGRAM    with HOST: the path of sparsync there
  --help, -h              print this help

EXAMPLES
  sparsync server grant SHA256:... --name=laptop --root=/srv/backup --expires=90d
  sparsync server grant SHA256:... --read-only --no-expiry
";

const REVOKE: &str = "\
Remove a grant. Sessions of its key end within a second.

Usage: sparsync server revoke [OPTION]... NAME|PIN [[USER@]HOST]

The exit code is 6 if no grant has this name or fingerprint.

OPTIONS
  --stop-unused           stop the server if no grants are left, unless systemd started it
  --rsh=COMMAND, -e       with HOST: the remote shell
  --rsync-path=PROGRAM    with HOST: the path of sparsync there
  --help, -h              print this help

EXAMPLES
  sparsync server revoke laptop
  sparsync server revoke SHA256:... box
";

const PIN: &str = "\
Print the fingerprint of this user's key. Creates the key if there is none.

Usage: sparsync server pin [OPTION]... [[USER@]HOST]

The same key identifies the server of this user and its client.

OPTIONS
  --rsh=COMMAND, -e       with HOST: the remote shell
  --rsync-path=PROGRAM    with HOST: the path of sparsync there
  --help, -h              print this help

EXAMPLES
  sparsync server pin
  sparsync server pin box
";

/// The help of `enroll`.
const ENROLL: &str = "\
Exchange keys with a host over ssh, so that copies to and from it use QUIC or TLS.

Usage: sparsync enroll [OPTION]... [USER@]HOST
  or   sparsync enroll --list
  or   sparsync enroll --revoke=HOST

Enrolling adds a grant for this machine's key on HOST, starts the server there, and tests the
connection. Copies use the same command lines as before, and fall back to ssh when the server cannot
be reached. Enrolling again changes only the options that are given.

OPTIONS
  --root=DIR              permit this machine only paths below DIR on HOST; repeatable; default:
                          all paths that the ssh login can access; --root=/ permits all paths again
  --read-only             permit reading only
  --read-write            permit writing again
  --expires=WHEN          end the grant on a date (2026-12-31, until its end in UTC), at a time
                          (2026-12-31T18:00:00Z) or after a duration (30d, 12h)
  --no-expiry             remove the expiry date
  --allow-setuid          with --root: permit set-ID bits and security.* attributes
  --strip-setuid          remove them again
  --no-munge              with --root: store symlinks unchanged; see `sparsync server grant --help`
  --munge                 munge symlinks again
  --owner=USER[:GROUP]    with a server of root: sessions run as USER, and all that this machine
                          writes belongs to USER
  --no-owner              remove that
  --name=NAME             the name of this machine on HOST; default: USER@HOSTNAME
  --port=PORT             the port of the server, if it is not running; default: its last port, at
                          first 28792, or the next free port if that one is in use
  --listen=ADDRESS        the address that the server listens on, if it is not running; may be
                          repeated; default: the last ones given, at first all addresses
  --no-start              do not start the server
  --install               copy this program to ~/.local/bin on HOST if sparsync is missing there
  --dry-run, -n           only print what would be done
  --list                  list the enrolled hosts
  --json                  print the result, or with --list the hosts, as JSON
  --revoke=HOST           remove HOST here and the grant of this machine's key there; stop the
                          server there if it has no other grants, unless systemd started it
  --rsh=COMMAND, -e       the remote shell
  --rsync-path=PROGRAM    the path of sparsync on HOST
  --help, -h              print this help

These limits apply to QUIC and TLS. An ssh login keeps all rights of its user.

EXAMPLES
  sparsync enroll box                   copies to and from box use QUIC or TLS from now on
  sparsync enroll --install box         copy sparsync to box first
  sparsync enroll --root=/srv/backup --name=laptop backup@box
                                        limit this machine to one directory
  sparsync enroll --list                list the enrolled hosts
  sparsync enroll --revoke=box          remove box, and the grant there
";

/// The help of `doctor`.
const DOCTOR: &str = "\
Check what works on this machine, and with HOST also the ways to that machine.

Usage: sparsync doctor [OPTION]... [[USER@]HOST]

Each line is one check: `ok`, `warn` (a restriction) or `fail` (something does not work), its name,
and the finding; a line `hint:` is the next step. Nothing is changed. With HOST, the ssh login must
work without a password, and a login is ended after 20 seconds. The exit code is 1 if a check fails.

OPTIONS
  --path=DIR              examine the file system of this directory; default: the working directory
  --json                  print one JSON object per check
  --rsh=COMMAND, -e       with HOST: the remote shell
  --rsync-path=PROGRAM    with HOST: the path of sparsync there
  --help, -h              print this help

EXAMPLES
  sparsync doctor
  sparsync doctor --path=/mnt/backup
  sparsync doctor box                   also check ssh, QUIC, TLS and the grant on box
";

/// The help of `bench`.
const BENCH: &str = "\
Measure how fast a tree is listed, copied or hashed on this machine, and what limits the speed.

Usage: sparsync bench scan [OPTION]... PATH
  or   sparsync bench sync [OPTION]... SRC DST
  or   sparsync bench hash [OPTION]... PATH
  or   sparsync bench scan|sync|hash --shape=LIST [OPTION]... [DIR]

scan lists the entries of PATH. sync copies the content of SRC with -a into a directory below DST,
which must be missing or empty; what was copied is removed afterwards. hash reads the files of PATH
and computes their digests, as `sparsync hash` does. The first run fills the caches and is not
counted. Each row is for one number of workers, and for one algorithm of hash.

With --shape, bench creates the trees and removes them afterwards, in DIR, which must be missing or
empty, or in a new directory in TMPDIR or /tmp. The shapes are many (10,000 files of 1 KiB in 100
directories), large (4 files of 64 MiB), deep (2,000 files of 1 KiB in directories of up to 50
levels) and mixed (550 files of 1 KiB to 1 MiB, 100 MiB together).

The verdict is `processor` if this program computes for half of the available processor time or
more. Otherwise it waits for the kernel: for `network` on a network file system (not seen through
FUSE), for `storage` if the entries have 64 KiB of data on average, or else for `metadata`. Runs
that take less than 0.1 s together have no verdict. For hash, `processor` means that the algorithm
is the limit, and the last line names the fastest setting.

OPTIONS
  --repeat=N              measure N runs for each row; default: 5
  --workers=LIST          measure these numbers of workers, such as 1,2,8; default: one, and the
                          number of a copy
  --algorithm=LIST        with hash: measure these algorithms, such as blake3,xxh3; default: those
                          of `check --manifest`, xxh64 and xxh3, but not xxh128
  --shape=LIST            create trees of these shapes, such as many,deep
  --cold                  also measure with empty caches; only root may do this, and it drops the
                          caches of the whole machine
  --json                  print one JSON object per row
  --svg=FILE              also write the rows to FILE as a chart
  --help, -h              print this help

EXAMPLES
  sparsync bench scan /srv/data
  sparsync bench sync /srv/data /mnt/backup/test
  sparsync bench sync --shape=many,large --workers=1,4 /mnt/backup/test
  sparsync bench hash --algorithm=blake3,xxh3 /srv/data
";

/// The help of `hash`.
const HASH: &str = "\
Write a manifest of a tree: the digest and the path of each file.

Usage: sparsync hash [OPTION]... TREE

The manifest has a line for each regular file, in the order of the bytes of the paths, which are
relative to TREE. Symlinks are not followed. Several files are hashed at once. The programs of the
formats verify a manifest in the directory TREE:

  blake3     b3sum --check
  sha256     sha256sum --check
  md5        md5sum --check
  xxh128     xxhsum --check

The exit code is 23 if a file cannot be read, or if the format cannot represent its name: b3sum's
requires UTF-8, xxhsum's cannot contain a newline. Such a file is reported and left out. A manifest
that is written into TREE does not contain itself.

OPTIONS
  --algorithm=NAME        blake3, sha256, md5 or xxh128; default: blake3. Only blake3 and sha256
                          detect intended changes
  --output=FILE, -o       write to FILE, which is replaced when the manifest is complete; default:
                          standard output
  --progress              show the number of files and bytes on standard error
  --json                  write one JSON object per file
  --workers=N             hash with N threads; default: as many as a copy uses
  --help, -h              print this help

EXAMPLES
  sparsync hash /srv/data > data.b3
  sparsync hash --algorithm=sha256 -o SHA256SUMS release/
";

/// The help of `cache`.
const CACHE: &str = "\
Show, verify or remove the digests that --checksum-cache has stored.

Usage: sparsync cache stat [OPTION]...
  or   sparsync cache verify [OPTION]... TREE
  or   sparsync cache clear [OPTION]...

  stat      print how many digests there are, and the space that they take
  verify    read all files of TREE from their disks. A file is damaged if its content is not that of
            its digest, although its length and all its times are: a disk has changed it, or a
            program that stored through a mapping
  clear     remove all digests. The next run with --checksum-cache reads everything

verify prints a line for each damaged file, and at last the counts:

  45,601 intact, 1 damaged, 2 without a digest, 0 unreadable

A file that was changed since its digest was stored has none. Nothing is stored. The exit code is 0
if no file is damaged, 1 if one is, 2 for a wrong command line, and 23 if not everything could be
read.

OPTIONS
  --checksum-cache=DIR    the directory of the digests; default: that of this user
  --checksum-cache-force  verify: trust the times of any file system
  --progress              verify: show the number of files and bytes on standard error
  --json                  verify: print one JSON object for each damaged or unreadable file, and at
                          last the counts and the exit code
  --help, -h              print this help

EXAMPLES
  sparsync cache stat
  sparsync cache verify /srv/data
";

/// The help of `check`.
const CHECK: &str = "\
Compare two trees, or a tree with a manifest, without copying.

Usage: sparsync check [OPTION]... SRC... DST
  or   sparsync check --manifest=FILE [OPTION]... TREE

SRC and DST are operands of a copy: on this machine, [USER@]HOST:PATH, a module of a daemon, or a
sparsync:// URL. The run is the dry run of a copy with --checksum and --delete. The content of all
files is read at both ends, and nothing is changed. By default, all attributes that -a preserves are
compared, but not the times of directories.

Each difference is a line with the columns of -i: an entry of which every attribute is new is only
at the source, `*deleting` stands before one that is only at the destination. An entry that is
another kind at the destination counts as only at the source. The last line has the counts:

  45,601 equal, 1 differs, 2 only at the source, 3 only at the destination, 0 unreadable

With --manifest, TREE is compared with the digests in FILE, which `sparsync hash`, b3sum, sha256sum,
sha1sum, md5sum or xxhsum have written, also with --tag; `-` is standard input. Only regular files
take part. The manifest is kept in memory, about 100 bytes for each line.

The exit code is 0 if all is equal, 1 if there are differences, 2 for a wrong command line or
manifest, and 23 if not everything could be read; otherwise that of a copy. An rsync that has SRC
on another machine reports a directory that it cannot list by itself: it is not counted.

OPTIONS
  --list=LIST             print the entries with these findings: equal, differ, source-only,
                          dest-only (with --manifest: equal, differ, missing, new); default: all but
                          equal
  --one-way               do not look for entries that only DST, or TREE, has
  --quick                 compare size and time of files instead of reading them
  --json                  print one JSON object for each line
  --manifest=FILE         compare TREE with this manifest
  --algorithm=NAME        with --manifest: the algorithm of FILE; default: found out from the length
                          of the digests, and by trying
  --progress              with --manifest: show the number of files and bytes on standard error
  --help                  print this help

Other options are those of a copy that select entries (--exclude, --files-from, -R and the like),
attributes (-rlptgoDHAXE, --chmod, --chown, --numeric-ids and the like) or the way to a host (-e,
--rsync-path, --transport and the like). If one of -rlptgoD is given, only the attributes that are
given are compared. Options that change how a copy writes are rejected.

EXAMPLES
  sparsync check /srv/data/ box:/backup/data/
  sparsync check -aHAX --exclude=/cache/ site/ web:/srv/site/
  sparsync check --manifest=data.b3 /srv/data
  ssh box sparsync hash /srv/data | sparsync check --manifest=- /backup/data
";

/// The help of `explain`.
const EXPLAIN: &str = "\
Say why a copy transfers, skips, deletes or keeps a path. Nothing is changed.

Usage: sparsync explain [--json] PATH... -- [OPTION]... SRC... DST

What follows `--` is the command line of the copy. It is made as a dry run, and for each PATH, this
is printed: what would happen to it, and why, with the end that decides it:

  the filter rule         its option, or its file and line; also of rule files in the trees
  the comparison          such as `same size and time`, or what differs: size, time, attributes
  the option              that deletes it, protects it, leaves it out or limits the copy

PATH is a path below SRC or DST, as their operands spell it, or one relative to the transfer, as
-i prints it. If there are entries of both, both are explained, and the one below SRC or DST is
shown with `./` in front; a PATH that begins with `./` stands only for that one. It may exist at
both ends, at one, or at none. If a directory above it is the reason, that directory is named.

Of a rule in a file of the trees, only the place is printed, because a server may read files that
its user cannot read.

If the run would change nothing at all, because --delete-guard, --require-mount or --fail-if-empty
refuses it, its error is printed on standard error after that.

Options that only print or log are ignored. An rsync at the other end is not enough: both ends must
be a sparsync.

OPTIONS
  --json                  print one JSON object for each PATH
  --help                  print this help

The exit code is 0 if each PATH was explained, 2 if the command line is wrong, 23 if something could
not be read, and otherwise that of the copy.

EXAMPLES
  sparsync explain cache/a.o -- -a --exclude='*.o' site/ web:/srv/site/
  sparsync explain old/report.pdf -- -a --delete --filter=': .rules' docs/ /mnt/backup/docs/
";

/// The help of `plan`.
const PLAN: &str = "\
Record what a copy would do, without doing it, so that `sparsync apply` can do exactly that.

Usage: sparsync plan [OPTION]... SRC... DST --output=FILE
  or   sparsync plan --show FILE [-v | --json]

The run is a dry run. FILE records the options, the operands and the working directory, and for
each action the state of the entry before and after: kind, permission bits, owner and group as far
as they are preserved, digests of extended attributes and ACLs with -X and -A, and of files also
size and time; with -H also the set of names that a file has; with --backup also the path of the
backup and what is there before; with -c also the digests of the contents that were read to be
compared; with --detect-renamed also the file whose content a new file takes, with its state, and
whether it is renamed, linked or copied. It is compressed JSON Lines: `zstd -dc FILE` prints them,
and docs/json-schema.json describes them. FILE is only readable by its owner, because it holds the
names of files. It gets its name when it is complete.

The summary has the counts of the actions, the bytes of the files that are transferred, and the
directories with the most bytes, renames and deletions. A file that is renamed does not count as
deleted.

If part of the source cannot be read, the plan lacks it, and the exit code is 23. --show says so,
and `sparsync apply` ends with that code, even if all actions succeed.

OPTIONS
  --output=FILE, -o       write the plan to FILE, which must be a regular file if it exists. -o is
                          --owner only beside other letters
  --show=FILE             print the summary of a plan
  --verbose, -v           print each action with the columns of -i, too
  --json                  print the lines of the plan instead
  --help                  print this help

Other options are those of a copy: which entries take part (-r, -d, -R, -x, --exclude, --filter,
--files-from and the like), how they are compared (-c, -I, --size-only, -u, --existing and the
like), attributes (-lptgoDEAXUH, --fake-super, --chmod, --chown and the like), deletions (--delete
and the like, with --max-delete and --delete-missing-args), other trees (--link-dest, --copy-dest,
--clone-dest, --compare-dest), backups (--backup, --backup-dir, --suffix), and how data is sent,
written and the other machine is reached (--fuzzy, --detect-renamed, --partial-dir, --temp-dir,
--delay-updates and the like). --times, which -a implies, is required. With -H, the whole list is
read before the first action.

Some options are rejected. --inplace, --append and --partial: an interruption leaves a file that no
plan knows. --remove-source-files: no action records what the source loses. -K: an entry of the
destination is reached by two paths. --iconv: both ends have other paths. -H with --link-dest and
the other trees, --existing, --ignore-existing, or -I and --backup: what an interruption has left
would decide about the other names. --backup with --delete-excluded, unless --backup-dir names
another directory: the run would delete the backups. With --backup, the source cannot have an entry
with the name of a backup beside its original, such as `a~` beside an `a` that is replaced: the run
would make that backup and then replace it.

A plan is made only if the run may begin: if --delete-guard, --require-mount or --fail-if-empty
refuses that, there is no plan. So a source without entries gives none that empties a destination of
more than 20 entries, unless --no-delete-guard permits it. `sparsync apply` has no guard: it does
what the plan shows.

Files that options name, such as that of --exclude-from, are read again by `sparsync apply`. An
rsync at the other end is not enough: both ends must be a sparsync.

EXAMPLES
  sparsync plan -a --delete photos/ box:photos/ --output=photos.plan
  sparsync plan --show photos.plan -v
  sparsync apply photos.plan
";

/// The help of `apply`.
const APPLY: &str = "\
Carry out a plan of `sparsync plan`: exactly its actions, and only where nothing has changed.

Usage: sparsync apply [OPTION]... FILE
  or   sparsync apply --root-changed [OPTION]... FILE SRC... DST

For each action, both ends are compared with what FILE recorded:

  the state before        the action is carried out
  the state after         nothing is done: a plan can be applied again, also after an interruption
  anything else           the entry is left alone and reported, and the exit code is 23

Nothing happens that is not in the plan. A file has changed if its kind, size, time, or an attribute
that is compared differs, or at the destination, if it has only one name, the time of its last
change of any kind (ctime). If the plan was made with -c, so has a file of the source whose content
differs, and one of the destination that had the same size. A directory has no size and no time.
Access times, devices and inodes do not count, so a file system may be mounted again. A directory is
only deleted if it is empty after the planned deletions in it. A directory, symlink or special file
that exists as planned, but with other attributes, counts as begun: it gets them. Without --perms, a
new directory may keep other bits after an interruption, as after one of a copy.

With -H, the names of a file belong together. Only the planned names are linked. If the source has
other names of the file now, or one of its names has changed at either end, all of them are left
alone.

With --detect-renamed, the files whose content new files take are those of the plan: none is
searched for. If one of them has changed, the new file is left alone. A file that an interruption
has left with attributes of its new name is renamed. Without the deletions, files are copied, not
renamed. A file that several new ones have in common is transferred once; if it is not as planned at
the end, the content comes from the source. So does that of files with several names under -H.

With --backup, an entry is left alone, too, if there is another entry than before where its backup
belongs, or a directory, also of older backups. A backup that an interruption has left is completed,
and none is made again. If --backup-dir is in the destination, it should be excluded: otherwise
deletions may take part of it.

A plan whose making ended with 23, 24 or 25 lacks a part of the run: something could not be read,
files vanished, or --max-delete stopped deletions. A warning says so at the start, and the exit code
is not 0: if nothing worse happens, it is the one of `sparsync plan`.

With --delete-after, rule files that the run itself brings (-C, -F, dir-merge) can protect an entry
whose deletion is planned. It is left alone, too.

A plan of another version, one that was changed, and one that is truncated are refused before
anything is changed. So is a plan with relative paths in another working directory, and one whose
destination existed and is gone. About 20 bytes of memory are needed for each action. In a push, the
plan is sent to the other end, which keeps it in memory: about 60 bytes for each action, at most
512 MiB. An older sparsync there refuses it, before anything is changed.

OPTIONS
  --without-deletions     delete nothing
  --root-changed          use the plan although its paths lead elsewhere: in another working
                          directory, with a destination that is gone, or with SRC and DST
  --dry-run, -n           only print what would be done
  --verbose, -v           print the name of each entry that is changed
  --itemize-changes, -i   print each change
  --json                  print one JSON object for each event, as a copy does
  --help                  print this help

Also --quiet, --out-format, --human-readable, --progress, --stats, --info, --ui, --bwlimit,
--log-file, --metrics-file and --failed-list, as in a copy.

EXAMPLES
  sparsync apply photos.plan
  sparsync apply -v --without-deletions photos.plan
  sparsync apply --root-changed photos.plan photos/ /mnt/restored/photos/
";

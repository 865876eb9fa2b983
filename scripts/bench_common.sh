# What the benchmarks share: the programs, a scratch directory, trees, the clock, medians, an sshd. Sourced, not run.
# It moves to the top of the repository. Whoever sources it may have set RUNS, ARGS, SPARSYNC, RSYNC, BENCH_DIR, COLD.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C
me=$(basename "$0")

RUNS=${RUNS:-5}
RSYNC=${RSYNC-rsync}
USR=${USR:-/usr/share}
MANY_DIRS=${MANY_DIRS:-1000}
MANY_FILES=${MANY_FILES:-100}
LARGE_MIB=${LARGE_MIB:-2048}
# Words, which take part as such.
# shellcheck disable=SC2034 # used where this is sourced
read -ra ARGS <<<"${ARGS:--a --delete}"

die() {
    echo "$me: $*" >&2
    exit 1
}

# Sees to it that a program is there: root on Debian gets it installed.
need() { # program, Debian package
    PATH=$PATH:/usr/sbin:/usr/local/sbin
    if ! command -v "$1" >/dev/null; then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            echo "$me: this machine lacks $2; installing with apt-get" >&2
            export DEBIAN_FRONTEND=noninteractive
            # By old lists an old rsync would be the measure.
            { apt-get update -q; apt-get install -y -q --no-install-recommends "$2"; } >&2
        fi
        command -v "$1" >/dev/null || die "needs $1 (Debian: apt-get install $2)"
    fi
}

# Settles which programs are measured, as absolute paths: they are called from other directories, too.
programs() {
    if [ -z "${SPARSYNC-}" ]; then
        cargo build --release --locked --quiet
        SPARSYNC=${CARGO_TARGET_DIR:-target}/release/sparsync
    fi
    [ -x "$SPARSYNC" ] || die "SPARSYNC: $SPARSYNC is not a program"
    SPARSYNC=$(realpath "$SPARSYNC")
    if [ -n "$RSYNC" ]; then
        need "$RSYNC" rsync
        RSYNC=$(command -v "$RSYNC")
    fi
    export SPARSYNC RSYNC
}

versions() {
    printf '%s; %s' "$("$SPARSYNC" --version | sed -n 's/.*\(sparsync [0-9.]*\).*/\1/p' | head -n 1)" \
        "$("$RSYNC" --version | sed -n '1{s/  */ /g;p}')"
}

# The machine and the moment: what a reader of the figures must know.
surroundings() {
    printf '%s processors, load %s; %s, %s cache' "$(nproc)" "$(cut -d ' ' -f 1 /proc/loadavg)" \
        "$(stat -f -c %T "$work")" "$([ "${COLD-}" = 1 ] && echo cold || echo warm)"
}

# Makes the directory $work, which is gone at the end, as are the processes whose ids are in `started`.
started=()
scratch=()
make_work() {
    work=$(mktemp -d "${BENCH_DIR:-${TMPDIR:-/tmp}}/sparsync-bench.XXXXXX")
    scratch+=("$work")
}
stop_started() {
    # The last first: a connection before its server.
    local at
    for ((at = ${#started[@]} - 1; at >= 0; at--)); do
        kill "${started[at]}" 2>/dev/null && wait "${started[at]}" 2>/dev/null
    done
    started=()
}
clean_up() {
    stop_started || true
    [ ${#scratch[@]} = 0 ] || rm -rf "${scratch[@]}"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# --- trees ---

# Small files of random bytes in directories, and large ones.
random_files() { # directories, files in each, their length; large files, their length
    perl -e '
        my ($top, $dirs, $files, $len, $large, $large_len) = @ARGV;
        open(my $random, "<", "/dev/urandom") or die; binmode $random;
        sub put {
            my ($path, $left) = @_;
            open(my $f, ">", $path) or die "$path: $!";
            while ($left > 0) {
                my $got = read($random, my $bytes, $left < 1 << 20 ? $left : 1 << 20) or die "/dev/urandom: $!";
                print $f $bytes; $left -= $got;
            }
            close $f or die "$path: $!";
        }
        mkdir "$top/small"; mkdir "$top/large";
        for my $d (0 .. $dirs - 1) {
            mkdir "$top/small/dir_$d";
            put("$top/small/dir_$d/file_$_.bin", $len) for 0 .. $files - 1;
        }
        put("$top/large/chunk_$_.bin", $large_len) for 0 .. $large - 1;' "$work/src" "$@"
}

# Files of 1 KiB, each of other bytes.
kib_files() { # directories, files in each
    perl -e '
        my ($top, $dirs, $files) = @ARGV;
        for my $d (0 .. $dirs - 1) {
            mkdir "$top/dir_$d";
            for my $n (0 .. $files - 1) {
                open(my $f, ">", "$top/dir_$d/file_$n") or die "$top/dir_$d/file_$n: $!";
                print $f "$d $n\n" . ("x" x (1024 - length "$d $n\n")); close $f or die;
            }
        }' "$work/src" "$@"
}

# Directories get a time that is not of this second: rsync leaves it alone if only the part of the second differs.
age_directories() {
    find "$work/src" -type d -exec touch -d '2001-02-03 04:05:06.789' {} +
}

# The first small files, of as many as the argument says, are those that change.
change_first() {
    find "$work/src/small" -type f | sort -V | awk -v n="$1" 'NR <= n' >"$work/changing"
}

# Makes the tree $work/src of a data set, and says in $work/changing which of its files change.
build() { # data set
    mkdir "$work/src"
    case $1 in
    mission)
        random_files 10 100 4096 8 2097152
        change_first 100
        ;;
    many) kib_files "$MANY_DIRS" "$MANY_FILES" ;;
    usr) cp -a "$USR/." "$work/src/" ;;
    large)
        head -c "$((LARGE_MIB * 1048576))" /dev/urandom >"$work/src/large.bin"
        echo "$work/src/large.bin" >"$work/changing"
        ;;
    *) die "no data set is called $1" ;;
    esac
    age_directories
    # One in a hundred of the others.
    case $1 in many | usr) find "$work/src" -type f | sort | awk 'NR % 100 == 1' >"$work/changing" ;; esac
}

# Appends a line to each of the files that change.
change() {
    perl -ne 'chomp; open(my $f, ">>", $_) or die "$_: $!"; print $f "one more line\n"; close $f' "$work/changing"
}

listing() {
    (cd "$1" && find . -type d -printf '%p d %m %U %G %T@\n' -o -printf '%p %y %m %U %G %s %T@ %l\n' | sort)
}

# Ends the benchmark if the destination is not the source: names, types, modes, owners, lengths, times to the
# nanosecond, targets of symlinks, contents.
compare() { # who made it
    if ! diff <(listing "$work/src") <(listing "$work/dst") >"$work/differences" ||
        ! diff -rq --no-dereference "$work/src" "$work/dst" >"$work/differences" 2>&1; then
        echo "$me: the tree that $1 made is not the source:" >&2
        head -n 20 "$work/differences" >&2
        exit 1
    fi
}

# Puts a finished destination aside. It is removed only later, by remove_old: for seconds after a large deletion
# ext4 makes new files ten times slower, whoever makes them. Memory has no such trouble, and less room.
put_away() {
    if [ "$(stat -f -c %T "$work")" = tmpfs ]; then
        rm -rf "$work/dst"
    else
        mkdir -p "$work/old"
        mv "$work/dst" "$work/old/$((aside += 1))"
    fi
}
aside=0
remove_old() { rm -rf "$work/old"; }

# --- time ---

# Runs a command and adds its microseconds to the file of a key.
clock() { # key, command...
    local key=$1
    shift
    sync -f "$work"
    [ "${COLD-}" != 1 ] || echo 3 >/proc/sys/vm/drop_caches
    local begin=$EPOCHREALTIME
    "$@"
    local end=$EPOCHREALTIME
    note "$key" "$((${end/./} - ${begin/./}))"
}

note() { # key, number
    echo "$2" >>"$work/noted.$1"
}

# The median of what was noted, with decimals; `-` where nothing was.
median() { # key, what one is (1000: milliseconds of microseconds), decimals
    [ -e "$work/noted.$1" ] || { echo -; return; }
    sort -n "$work/noted.$1" | awk -v one="${2:-1000}" -v decimals="${3:-1}" '
        { t[NR] = $1 }
        END { m = NR % 2 ? t[(NR + 1) / 2] : (t[NR / 2] + t[NR / 2 + 1]) / 2; printf "%.*f\n", decimals, m / one }'
}

# Calculates with medians: awk's expression over a, b, c and d; `-` where one is missing.
calculate() { # expression, decimals, a, b, c, d
    case " ${*:3} " in *' - '*) echo -; return ;; esac
    awk -v a="${3-}" -v b="${4-}" -v c="${5-}" -v d="${6-}" "BEGIN { printf \"%.$2f\\n\", $1 }"
}

ratio() { # of two medians
    calculate a/b 2 "$@"
}

# --- ssh ---

# Writes keys and the configurations of an sshd of our own: nothing of the user's is read or written, and no rights
# are needed. Another home keeps the shell from the user's .bashrc, which may take longer than the copy.
# `ssh -F $ssh_dir/fresh far` then opens a connection, and with $ssh_dir/master one that is open is used.
write_ssh() { # address, port
    local key connection
    need sshd openssh-server
    need ssh openssh-client
    sshd=$(command -v sshd)
    # A socket's path must be short.
    if [ -z "${ssh_dir-}" ]; then
        ssh_dir=$(mktemp -d /tmp/sparsync-bench-ssh.XXXXXX)
        scratch+=("$ssh_dir")
        for key in host user; do ssh-keygen -q -t ed25519 -N '' -f "$ssh_dir/$key"; done
        sed 's/^/far /' "$ssh_dir/host.pub" >"$ssh_dir/known"
    fi
    cat >"$ssh_dir/sshd_config" <<END
ListenAddress $1
Port $2
HostKey $ssh_dir/host
AuthorizedKeysFile $ssh_dir/user.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin yes
PrintMotd no
LogLevel ERROR
SetEnv HOME=$ssh_dir SPARSYNC_CONFIG_DIR=$ssh_dir/server
END
    for connection in fresh master; do
        cat >"$ssh_dir/$connection" <<END
Host far
HostName $1
Port $2
User $(id -un)
HostKeyAlias far
UserKnownHostsFile $ssh_dir/known
GlobalKnownHostsFile /dev/null
IdentityFile $ssh_dir/user
IdentitiesOnly yes
IdentityAgent none
BatchMode yes
ConnectTimeout 10
LogLevel ERROR
ControlPath $([ $connection = master ] && echo "$ssh_dir/socket" || echo none)
END
    done
    # As root it insists on this directory, which a system without a running one lacks.
    [ "$(id -u)" != 0 ] || mkdir -p /run/sshd
}

free_port() {
    perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1")->sockport'
}

# Starts a server on a free port of loopback: on another one if that has been taken meanwhile. Gives up after 10 s.
serve() { # a function that starts it in the background on a port, one that tells whether it is reached
    local port limit=$((SECONDS + 10))
    while [ $SECONDS -lt $limit ]; do
        port=$(free_port)
        "$1" "$port"
        while kill -0 "$!" 2>/dev/null && [ $SECONDS -lt $limit ]; do
            if "$2"; then
                started+=("$!")
                return
            fi
            sleep 0.05
        done
        kill "$!" 2>/dev/null || true
    done
    return 1
}

start_sshd() { # port
    write_ssh 127.0.0.1 "$1"
    "$sshd" -D -e -f "$ssh_dir/sshd_config" 2>"$ssh_dir/log" </dev/null &
}
reaches_sshd() { ssh -F "$ssh_dir/fresh" far true >"$ssh_dir/trouble" 2>&1 </dev/null; }

raise_sshd() {
    serve start_sshd reaches_sshd || die "sshd does not let us in and run \`true\`: $(cat "$ssh_dir/log" "$ssh_dir/trouble")"
}

# Opens the connection that $ssh_dir/master uses.
raise_master() {
    ssh -F "$ssh_dir/master" -M -N far </dev/null &
    started+=("$!")
    local patience
    for ((patience = 200; patience > 0; patience--)); do
        ! ssh -F "$ssh_dir/master" -O check far 2>/dev/null || return 0
        sleep 0.05
    done
    die "no master connection comes about"
}

# A copy by ssh, told to count. What it says is in $work/out.
copy_by_ssh() { # tool; push or pull; fresh or master; a program in front of the far end's, or nothing
    local program
    case $1 in
    sparsync) program=$SPARSYNC ;;
    rsync) program=$RSYNC ;;
    esac
    local from=$work/src/ to=far:$work/dst/
    [ "$2" = push ] || from=far:$work/src/ to=$work/dst/
    # shellcheck disable=SC2154 # write_ssh sets it
    "$program" "${ARGS[@]}" --stats -e "ssh -F $ssh_dir/$3" --rsync-path="${4:-$program}" "$from" "$to" >"$work/out"
}

floor_of_ssh() { # fresh or master
    ssh -F "$ssh_dir/$1" far true </dev/null
}

# As many bytes by ssh as the files in $work/bytes have, and no files: what a first copy cannot do without.
bytes_by_ssh() { # push or pull; fresh or master
    case $1 in
    push) ssh -F "$ssh_dir/$2" far 'cat >/dev/null' <"$work/bytes" ;;
    pull) ssh -F "$ssh_dir/$2" far "cat '$work/bytes'" </dev/null | cat >/dev/null ;;
    esac
}

# What --stats says in $work/out went over, both ways, before ssh made it its own.
wire_bytes() {
    sed -n 's/^Total bytes \(sent\|received\): //p' "$work/out" | tr -d , | awk '{ n += $1 } END { printf "%d\n", n }'
}

# --- a server of ours ---

# Starts a server on a free port and enrols `far` by ssh: copies to it go by QUIC and TLS then. What both sides keep of
# that is in $ssh_dir.
raise_server() {
    local told
    export SPARSYNC_CONFIG_DIR=$ssh_dir/client
    # As it is started by a login: relative paths are those of the home directory.
    told=$(HOME=$ssh_dir SPARSYNC_CONFIG_DIR=$ssh_dir/server "$SPARSYNC" server start --port 0) || die "no server can be started"
    told=${told#*process }
    started+=("${told%%,*}")
    "$SPARSYNC" enroll far -e "ssh -F $ssh_dir/fresh" --rsync-path="$SPARSYNC" >"$work/enrolled" || die "far cannot be enrolled"
}

copy_by_server() { # quic, tls or auto; push or pull
    local from=$work/src/ to=far:$work/dst/
    [ "$2" = push ] || from=far:$work/src/ to=$work/dst/
    "$SPARSYNC" "${ARGS[@]}" --stats --transport="$1" "$from" "$to" >"$work/out"
}

# --- a slow link ---

# Finds linkem, the link emulator, in the folder LINKEM, and builds it if there is no program yet. LINKEM is the program
# then, as linkem-run wants it, and linkem_folder where linkem-run is. Behind make_work.
find_linkem() {
    [ -n "${LINKEM-}" ] || die "LINKEM is not set: it names the folder of linkem, the link emulator"
    [ -f "$LINKEM/linkem-run" ] || die "there is no linkem: LINKEM=$LINKEM is no folder with linkem-run in it"
    [ "$(id -u)" = 0 ] || die "needs root, for network namespaces"
    need ip iproute2
    linkem_folder=$(realpath "$LINKEM")
    for LINKEM in "$linkem_folder/linkem" "$linkem_folder/target/release/linkem" "$work/linkem/release/linkem"; do
        [ ! -x "$LINKEM" ] || break
    done
    [ -x "$LINKEM" ] ||
        cargo build --release --locked --quiet --manifest-path "$linkem_folder/Cargo.toml" --target-dir "$work/linkem"
    export LINKEM
}

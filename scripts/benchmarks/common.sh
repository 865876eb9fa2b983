# Shared by the benchmarks: the programs, a scratch directory, trees, timing, medians, an sshd. Sourced, not run.
# Changes to the top of the repository. The caller may set RUNS, ARGS, SPARSYNC, RSYNC, BENCH_DIR, COLD, JSON.
# shellcheck shell=bash
set -euo pipefail
[ -z "${JSON-}" ] || JSON=$(realpath -m "$JSON")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export LC_ALL=C
me=$(basename "$0")

RUNS=${RUNS:-5}
RSYNC=${RSYNC-rsync}
USR=${USR:-/usr/share}
MANY_DIRS=${MANY_DIRS:-1000}
MANY_FILES=${MANY_FILES:-100}
LARGE_MIB=${LARGE_MIB:-2048}
# Split at spaces.
# shellcheck disable=SC2034 # used by scripts that source this file
read -ra ARGS <<<"${ARGS:--a --delete}"

die() {
    echo "$me: $*" >&2
    exit 1
}

# Checks that a program is available. As root on Debian, installs it.
need() { # program, Debian package
    PATH=$PATH:/usr/sbin:/usr/local/sbin
    if ! command -v "$1" >/dev/null; then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            echo "$me: this machine lacks $2; installing with apt-get" >&2
            export DEBIAN_FRONTEND=noninteractive
            # Old package lists could install an old rsync.
            { apt-get update -q; apt-get install -y -q --no-install-recommends "$2"; } >&2
        fi
        command -v "$1" >/dev/null || die "needs $1 (Debian: apt-get install $2)"
    fi
}

# Finds or builds the measured programs. Their paths are absolute, because they are called from other directories too.
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

# Prints the conditions of a measurement: processors, load, file system, cache.
surroundings() {
    printf '%s processors, load %s; %s, %s cache' "$(nproc)" "$(cut -d ' ' -f 1 /proc/loadavg)" \
        "$(stat -f -c %T "$work")" "$([ "${COLD-}" = 1 ] && echo cold || echo warm)"
}

# Creates the directory $work. On exit it is removed, and the processes whose IDs are in `started` are killed.
started=()
scratch=()
make_work() {
    work=$(mktemp -d "${BENCH_DIR:-${TMPDIR:-/tmp}}/sparsync-bench.XXXXXX")
    scratch+=("$work")
}
stop_started() {
    # In reverse order: a connection ends before its server.
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

# Creates small files of random bytes in directories, and large ones.
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

# Creates files of 1 KiB with different contents.
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

# Gives the directories an old time. rsync does not update times that differ only within the second.
age_directories() {
    find "$work/src" -type d -exec touch -d '2001-02-03 04:05:06.789' {} +
}

# Selects the first N small files as those that change; N is the argument.
change_first() {
    find "$work/src/small" -type f | sort -V | awk -v n="$1" 'NR <= n' >"$work/changing"
}

# Creates the tree $work/src of a data set, and lists in $work/changing the files that change.
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
    *) die "unknown data set $1" ;;
    esac
    age_directories
    # In these data sets one file in a hundred changes.
    case $1 in many | usr) find "$work/src" -type f | sort | awk 'NR % 100 == 1' >"$work/changing" ;; esac
}

# Appends a line to each file that changes.
change() {
    perl -ne 'chomp; open(my $f, ">>", $_) or die "$_: $!"; print $f "one more line\n"; close $f' "$work/changing"
}

listing() {
    (cd "$1" && find . -type d -printf '%p d %m %U %G %T@\n' -o -printf '%p %y %m %U %G %s %T@ %l\n' | sort)
}

# Ends the benchmark if the destination differs from the source in names, types, modes, owners, lengths, times to the
# nanosecond, symlink targets, or contents.
compare() { # the program that made it
    if ! diff <(listing "$work/src") <(listing "$work/dst") >"$work/differences" ||
        ! diff -rq --no-dereference "$work/src" "$work/dst" >"$work/differences" 2>&1; then
        echo "$me: the tree made by $1 differs from the source:" >&2
        head -n 20 "$work/differences" >&2
        exit 1
    fi
}

# Moves a finished destination away; remove_old removes it later. For seconds after a large deletion ext4 creates new
# files ten times slower. tmpfs does not, and has less space, so there it is removed at once.
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

# Runs a command and adds its time in microseconds to the file of a key.
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

# Prints the median of the noted numbers, or `-` if there are none.
median() { # key, divisor (1000: microseconds to milliseconds), decimals
    [ -e "$work/noted.$1" ] || { echo -; return; }
    sort -n "$work/noted.$1" | awk -v one="${2:-1000}" -v decimals="${3:-1}" '
        { t[NR] = $1 }
        END { m = NR % 2 ? t[(NR + 1) / 2] : (t[NR / 2] + t[NR / 2 + 1]) / 2; printf "%.*f\n", decimals, m / one }'
}

# Prints the value of an awk expression over the medians a, b, c and d, or `-` if one is missing.
calculate() { # expression, decimals, a, b, c, d
    case " ${*:3} " in *' - '*) echo -; return ;; esac
    awk -v a="${3-}" -v b="${4-}" -v c="${5-}" -v d="${6-}" "BEGIN { printf \"%.$2f\\n\", $1 }"
}

ratio() { # of two medians
    calculate a/b 2 "$@"
}

# Appends medians to the file JSON, if it is set. scripts/charts draws such records.
record() { # route, data set, phase (first, none, changed), milliseconds of sparsync and of rsync
    [ -n "${JSON-}" ] || return 0
    case " $4 $5 " in *' - '*) return 0 ;; esac
    local phase=$3
    case $phase in
    first | initial) phase='first copy' ;;
    none) phase='no change' ;;
    esac
    printf '{"route":"%s","data_set":"%s","phase":"%s","sparsync_ms":%s,"rsync_ms":%s}\n' \
        "$1" "$2" "$phase" "$4" "$5" >>"$JSON"
}

# --- ssh ---

# Writes keys and configurations of a private sshd, which needs no rights and does not use the user's files. A separate
# home directory keeps the shell from reading the user's .bashrc, which may take longer than the copy.
# `ssh -F $ssh_dir/fresh far` then opens a new connection; with $ssh_dir/master it uses an open one.
write_ssh() { # address, port
    local key connection
    need sshd openssh-server
    need ssh openssh-client
    sshd=$(command -v sshd)
    # The path of a Unix socket must be short.
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
Subsystem sftp internal-sftp
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
    # As root, sshd requires this directory, which is missing on a system without a running sshd.
    [ "$(id -u)" != 0 ] || mkdir -p /run/sshd
}

free_port() {
    perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1")->sockport'
}

# Starts a server on a free port of loopback, or on another one if that port has been taken meanwhile. Gives up after
# 10 s.
serve() { # a function that starts it in the background on a port, a function that checks whether it answers
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
    serve start_sshd reaches_sshd || die "cannot run \`true\` through sshd: $(cat "$ssh_dir/log" "$ssh_dir/trouble")"
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
    die "cannot open the master connection"
}

# Copies over ssh with --stats. The output is in $work/out. PAIR=client: the remote end of sparsync is an rsync;
# PAIR=server: it is the remote end of an rsync.
copy_by_ssh() { # tool; push or pull; fresh or master; the remote program if it is not the tool itself
    local near far
    case $1.${PAIR-} in
    sparsync.) near=$SPARSYNC far=$SPARSYNC ;;
    sparsync.client) near=$SPARSYNC far=$RSYNC ;;
    sparsync.server) near=$RSYNC far=$SPARSYNC ;;
    rsync.*) near=$RSYNC far=$RSYNC ;;
    *) die "PAIR: expected client or server, got $PAIR" ;;
    esac
    local from=$work/src/ to=far:$work/dst/
    [ "$2" = push ] || from=far:$work/src/ to=$work/dst/
    # shellcheck disable=SC2154 # write_ssh sets it
    "$near" "${ARGS[@]}" --stats -e "ssh -F $ssh_dir/$3" --rsync-path="${4:-$far}" "$from" "$to" >"$work/out"
}

floor_of_ssh() { # fresh or master
    ssh -F "$ssh_dir/$1" far true </dev/null
}

# Sends as many bytes over ssh as the file $work/bytes has, without creating files: the minimum of a first copy.
bytes_by_ssh() { # push or pull; fresh or master
    case $1 in
    push) ssh -F "$ssh_dir/$2" far 'cat >/dev/null' <"$work/bytes" ;;
    pull) ssh -F "$ssh_dir/$2" far "cat '$work/bytes'" </dev/null | cat >/dev/null ;;
    esac
}

# Prints the bytes in both directions that --stats reports in $work/out, before encryption by ssh.
wire_bytes() {
    sed -n 's/^Total bytes \(sent\|received\): //p' "$work/out" | tr -d , | awk '{ n += $1 } END { printf "%.0f\n", n }'
}

# --- a sparsync server ---

# Starts a server on a free port and enrolls `far` over ssh, so that copies to it use QUIC and TLS. The configurations
# of both sides are in $ssh_dir.
raise_server() {
    local told
    export SPARSYNC_CONFIG_DIR=$ssh_dir/client
    # As from a login: relative paths start in the home directory.
    told=$(HOME=$ssh_dir SPARSYNC_CONFIG_DIR=$ssh_dir/server "$SPARSYNC" server start --port 0) || die "cannot start a server"
    told=${told#*process }
    started+=("${told%%,*}")
    "$SPARSYNC" enroll far -e "ssh -F $ssh_dir/fresh" --rsync-path="$SPARSYNC" >"$work/enrolled" || die "cannot enroll far"
}

copy_by_server() { # quic, tls or auto; push or pull
    local from=$work/src/ to=far:$work/dst/
    [ "$2" = push ] || from=far:$work/src/ to=$work/dst/
    "$SPARSYNC" "${ARGS[@]}" --stats --transport="$1" "$from" "$to" >"$work/out"
}

# --- a slow link ---

# Finds linkem, the link emulator, in the directory LINKEM, and builds it if necessary. Afterwards LINKEM is the
# program, as linkem-run requires, and linkem_folder the directory of linkem-run. Call make_work first.
find_linkem() {
    [ -n "${LINKEM-}" ] || die "LINKEM is not set; it must name the directory of linkem, the link emulator"
    [ -f "$LINKEM/linkem-run" ] || die "LINKEM=$LINKEM does not contain linkem-run"
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

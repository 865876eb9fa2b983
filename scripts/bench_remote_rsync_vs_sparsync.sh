#!/bin/bash
# Measures pushes of small and large files to a remote machine by sparsync and rsync: initial, no change, changed.
#
#   scripts/bench_remote_rsync_vs_sparsync.sh                            one run of each, over ssh
#   RSYNC_TRANSPORT=daemon scripts/bench_remote_rsync_vs_sparsync.sh     rsync to its own daemon, unencrypted
#   scripts/bench_remote_rsync_vs_sparsync_median.sh                     medians of 5 runs
#
# The remote machine is this one: the script starts a private sshd and rsync daemon on free ports of loopback. Both
# programs get the same options, including metadata and deletion, and the trees are compared after each run. "Changed"
# means one line appended to each of CHANGED_FILES small files.
#
#   RUNS             runs of each program (1); with more, medians are printed, and the order changes from run to run
#   TRANSPORTS       the transports of sparsync: some of ssh, quic, tls, auto (ssh)
#   RSYNC_TRANSPORT  the transport of rsync: ssh, or daemon, which does not encrypt
#   SMALL_DIRS (10) of SMALL_FILES_PER_DIR (100) files of SMALL_FILE_SIZE (4096) bytes
#   LARGE_FILES (8) of LARGE_FILE_SIZE (2097152) bytes
#   CHANGED_FILES    number of small files that change (100)
#   JSON             append the medians to this file, as of the data set DATA_SET (custom)
#   RSYNC_ARGS       the options of both (-a --delete)
#   SPARSYNC         the program (default: built from this repository); RSYNC: the rsync program
#   BENCH_DIR        directory of the trees (the temporary directory); COLD=1: drop the page cache each time (root only)
RUNS=${RUNS:-1}
ARGS=${RSYNC_ARGS:--a --delete}
# shellcheck source=scripts/bench_common.sh
. "$(dirname "$0")/bench_common.sh"

TRANSPORTS=${TRANSPORTS:-ssh}
RSYNC_TRANSPORT=${RSYNC_TRANSPORT:-ssh}
SMALL_DIRS=${SMALL_DIRS:-10}
SMALL_FILES_PER_DIR=${SMALL_FILES_PER_DIR:-100}
SMALL_FILE_SIZE=${SMALL_FILE_SIZE:-4096}
LARGE_FILES=${LARGE_FILES:-8}
LARGE_FILE_SIZE=${LARGE_FILE_SIZE:-2097152}
CHANGED_FILES=${CHANGED_FILES:-100}
DATA_SET=${DATA_SET:-custom}
for transport in $TRANSPORTS; do
    case $transport in
    ssh | quic | tls | auto) ;;
    *) die "TRANSPORTS: unknown transport $transport; expected ssh, quic, tls or auto" ;;
    esac
done
case $RSYNC_TRANSPORT in
ssh | daemon) ;;
*) die "RSYNC_TRANSPORT: expected ssh or daemon, got $RSYNC_TRANSPORT" ;;
esac

programs
make_work

start_daemon() { # port
    cat >"$work/rsyncd.conf" <<END
[bench]
path = $work
read only = no
use chroot = no
$([ "$(id -u)" != 0 ] || printf 'uid = 0\ngid = 0\n')
END
    daemon=rsync://127.0.0.1:$1/bench
    "$RSYNC" --daemon --no-detach --config="$work/rsyncd.conf" --address=127.0.0.1 --port="$1" </dev/null >"$work/log" 2>&1 &
}
reaches_daemon() { "$RSYNC" "$daemon/" >"$work/trouble" 2>&1; }

raise_sshd
[ "$RSYNC_TRANSPORT" = ssh ] || serve start_daemon reaches_daemon ||
    die "cannot reach the rsync daemon: $(cat "$work/log" "$work/trouble")"

case " $TRANSPORTS " in *' quic '* | *' tls '* | *' auto '*) raise_server ;; esac

copy() { # program and transport
    case $1 in
    sparsync.ssh) copy_by_ssh sparsync push fresh ;;
    sparsync.quic | sparsync.tls | sparsync.auto) copy_by_server "${1#*.}" push ;;
    rsync.ssh) copy_by_ssh rsync push fresh ;;
    rsync.daemon) "$RSYNC" "${ARGS[@]}" --stats "$work/src/" "$daemon/dst/" >"$work/out" ;;
    esac
}

# Prints the name of a route in records.
route() { # transport of sparsync
    local name=$1 against='rsync over ssh'
    [ "$1" != auto ] || name=QUIC/TLS
    [ "$RSYNC_TRANSPORT" = ssh ] || against="rsync's unencrypted daemon"
    echo "$name against $against"
}

mkdir "$work/src"
random_files "$SMALL_DIRS" "$SMALL_FILES_PER_DIR" "$SMALL_FILE_SIZE" "$LARGE_FILES" "$LARGE_FILE_SIZE"
change_first "$CHANGED_FILES"
age_directories

rsync=rsync.$RSYNC_TRANSPORT
contenders=("$rsync")
for transport in $TRANSPORTS; do contenders+=("sparsync.$transport"); done
count=${#contenders[@]}
for ((run = 0; run < RUNS; run++)); do
    for contender in "${contenders[@]:run % count}" "${contenders[@]:0:run % count}"; do
        clock "$contender.initial" copy "$contender"
        clock "$contender.none" copy "$contender"
        change
        clock "$contender.changed" copy "$contender"
        compare "$contender"
        put_away
    done
done

printf '%s; %s; %s, medians of %s\n' "$(versions)" "$(surroundings)" "${ARGS[*]}" "$RUNS"
printf '%s files of %s bytes in %s directories, %s of %s bytes; a line appended to %s\n\n' \
    "$((SMALL_DIRS * SMALL_FILES_PER_DIR))" "$SMALL_FILE_SIZE" "$SMALL_DIRS" "$LARGE_FILES" "$LARGE_FILE_SIZE" \
    "$(wc -l <"$work/changing")"
printf '| sparsync by | rsync by | phase | sparsync ms | rsync ms | ratio |\n|---|---|---|--:|--:|--:|\n'
for transport in $TRANSPORTS; do
    for phase in initial none changed; do
        ours=$(median "sparsync.$transport.$phase") theirs=$(median "$rsync.$phase")
        record "$(route "$transport")" "$DATA_SET" "$phase" "$ours" "$theirs"
        [ $phase != none ] || phase='no change'
        printf '| %s | %s | %s | %s | %s | %s |\n' "$transport" "$RSYNC_TRANSPORT" "$phase" "$ours" "$theirs" \
            "$(ratio "$ours" "$theirs")"
    done
done
if [ "$RSYNC_TRANSPORT" = daemon ]; then
    printf '\nThe rsync daemon does not encrypt and starts no shell, so rsync does less work here than sparsync.\n'
fi

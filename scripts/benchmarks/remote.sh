#!/bin/bash
# Measures pushes over QUIC and ssh, beside rsync over ssh or to its daemon.
# The files are small and large, in any number; the phases are initial, no change, changed.
#
#   scripts/bench remote                                        one run of each, rsync over ssh
#   TRANSPORTS=daemon scripts/bench remote                      rsync to its own daemon, which does not encrypt
#   RUNS=3 TRANSPORTS=ssh scripts/bench_remote_rsync_vs_sparsync_median.sh     medians of 3 runs
#
# The remote machine is this one: the script starts a private sshd, sparsync server and rsync daemon on free ports of
# loopback. Both programs get the same options, including metadata and deletion, and the trees are compared after each
# run. "Changed" means one line appended to each of CHANGED_FILES small files.
#
#   RUNS             runs of each program (1); with more, medians are printed, and the order changes from run to run
#   TRANSPORTS       the transports of rsync: some of ssh, daemon (RSYNC_TRANSPORT, or ssh)
#   SPARSYNC_TRANSPORTS   those of sparsync beside it: some of quic, ssh, tls, auto (quic ssh)
#   SMALL_DIRS (10) of SMALL_FILES_PER_DIR (100) files of SMALL_FILE_SIZE (4096) bytes
#   LARGE_FILES (8) of LARGE_FILE_SIZE (2097152) bytes
#   CHANGED_FILES    number of small files that change (100)
#   JSON             append the medians to this file, as of the data set DATA_SET (custom)
#   RSYNC_ARGS       the options of both (-a --delete)
#   SPARSYNC_BIN     the program (SPARSYNC, or built from this repository); RSYNC: the rsync program
#   SPARSYNC_FIRST_COLD   0 or 1, without an effect: sparsync examines the destination in every run
#   BENCH_DIR        directory of the trees (the temporary directory); COLD=1: drop the page cache each time (root only)
RUNS=${RUNS:-1}
ARGS=${RSYNC_ARGS:--a --delete}
SPARSYNC=${SPARSYNC_BIN:-${SPARSYNC-}}
# shellcheck source=scripts/benchmarks/common.sh
. "$(dirname "$0")/common.sh"

TRANSPORTS=${TRANSPORTS:-${RSYNC_TRANSPORT:-ssh}}
SPARSYNC_TRANSPORTS=${SPARSYNC_TRANSPORTS:-quic ssh}
SMALL_DIRS=${SMALL_DIRS:-10}
SMALL_FILES_PER_DIR=${SMALL_FILES_PER_DIR:-100}
SMALL_FILE_SIZE=${SMALL_FILE_SIZE:-4096}
LARGE_FILES=${LARGE_FILES:-8}
LARGE_FILE_SIZE=${LARGE_FILE_SIZE:-2097152}
CHANGED_FILES=${CHANGED_FILES:-100}
DATA_SET=${DATA_SET:-custom}
for transport in $TRANSPORTS; do
    case $transport in
    ssh | daemon) ;;
    *) die "TRANSPORTS: unknown transport $transport of rsync; expected ssh or daemon" ;;
    esac
done
for transport in $SPARSYNC_TRANSPORTS; do
    case $transport in
    ssh | quic | tls | auto) ;;
    *) die "SPARSYNC_TRANSPORTS: unknown transport $transport of sparsync; expected quic, ssh, tls or auto" ;;
    esac
done
case ${SPARSYNC_FIRST_COLD:-0} in
0) ;;
1) echo "$me: SPARSYNC_FIRST_COLD=1 has no effect: sparsync examines the destination in every run" >&2 ;;
*) die "SPARSYNC_FIRST_COLD: expected 0 or 1, got $SPARSYNC_FIRST_COLD" ;;
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
case " $TRANSPORTS " in
*' daemon '*)
    serve start_daemon reaches_daemon || die "cannot reach the rsync daemon: $(cat "$work/log" "$work/trouble")"
    ;;
esac
case " $SPARSYNC_TRANSPORTS " in *' quic '* | *' tls '* | *' auto '*) raise_server ;; esac

copy() { # program and transport
    case $1 in
    sparsync.ssh) copy_by_ssh sparsync push fresh ;;
    sparsync.quic | sparsync.tls | sparsync.auto) copy_by_server "${1#*.}" push ;;
    rsync.ssh) copy_by_ssh rsync push fresh ;;
    rsync.daemon) "$RSYNC" "${ARGS[@]}" --stats "$work/src/" "$daemon/dst/" >"$work/out" ;;
    esac
}

# Prints the name of a route in records.
route() { # transport of sparsync, transport of rsync
    local name=$1 against='rsync over ssh'
    [ "$1" != auto ] || name=QUIC/TLS
    [ "$2" = ssh ] || against="rsync's unencrypted daemon"
    echo "$name against $against"
}

mkdir "$work/src"
random_files "$SMALL_DIRS" "$SMALL_FILES_PER_DIR" "$SMALL_FILE_SIZE" "$LARGE_FILES" "$LARGE_FILE_SIZE"
change_first "$CHANGED_FILES"
age_directories

contenders=()
for transport in $TRANSPORTS; do contenders+=("rsync.$transport"); done
for transport in $SPARSYNC_TRANSPORTS; do contenders+=("sparsync.$transport"); done
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
# Prints the name of a contender for the head of a column.
column() { # contender
    case $1 in
    rsync.daemon) echo "rsync, its daemon" ;;
    *.auto) echo "sparsync, QUIC then TLS" ;;
    *.quic | *.tls) echo "sparsync over $(tr '[:lower:]' '[:upper:]' <<<"${1#*.}")" ;;
    *) echo "${1%.*} over ${1#*.}" ;;
    esac
}

# The programs side by side, then each sparsync divided by each rsync.
printf '| phase, ms |'
for contender in "${contenders[@]}"; do printf ' %s |' "$(column "$contender")"; done
printf '\n|---|'
for contender in "${contenders[@]}"; do printf -- '--:|'; done
echo
for phase in initial none changed; do
    printf '| %s |' "${phase/none/no change}"
    for contender in "${contenders[@]}"; do printf ' %s |' "$(median "$contender.$phase")"; done
    echo
done

printf '\n| ratio | initial | no change | changed |\n|---|--:|--:|--:|\n'
for theirs in $TRANSPORTS; do
    for ours in $SPARSYNC_TRANSPORTS; do
        printf '| %s / %s |' "$(column "sparsync.$ours")" "$(column "rsync.$theirs")"
        for phase in initial none changed; do
            our_ms=$(median "sparsync.$ours.$phase")
            their_ms=$(median "rsync.$theirs.$phase")
            record "$(route "$ours" "$theirs")" "$DATA_SET" "$phase" "$our_ms" "$their_ms"
            printf ' %s |' "$(ratio "$our_ms" "$their_ms")"
        done
        echo
    done
done
case " $TRANSPORTS " in
*' daemon '*)
    printf '\nThe rsync daemon does not encrypt and starts no shell, so it does less work here than sparsync.\n'
    ;;
esac

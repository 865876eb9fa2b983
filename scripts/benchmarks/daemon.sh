#!/bin/bash
# Measures copies with rsync daemons, of rsync and of sparsync, by either client.
# Prints medians and ratios to rsync with its own daemon.
#
#   scripts/bench daemon                        pulls and pushes of the default data sets
#   CLIENTS=100 DATASETS= scripts/bench daemon  memory of both daemons while so many clients pull at once
#
# Both daemons listen at free ports of loopback, with the same configuration. Four pairs copy in turn: rsync with its
# daemon (the reference), rsync with sparsync's daemon, sparsync with rsync's daemon, and sparsync with its own. The
# phases are those of scripts/bench ssh. After each run, the trees are compared; a difference ends the benchmark.
#
#   RUNS        runs of each pair and phase (5); the order changes from run to run
#   DATASETS    mission many
#   WAYS        pull push
#   CLIENTS     how many clients pull at once for the measurement of memory (0: none)
#   ARGS        options of both (-a --delete)
#   SPARSYNC    the program (default: built from this repository); RSYNC: the rsync program
# shellcheck source=scripts/benchmarks/common.sh
. "$(dirname "$0")/common.sh"

DATASETS=${DATASETS-mission many}
WAYS=${WAYS:-pull push}
CLIENTS=${CLIENTS:-0}
PAIRS=(rsync.rsync rsync.sparsync sparsync.rsync sparsync.sparsync)

programs
make_work

write_config() {
    cat >"$work/rsyncd.conf" <<END
use chroot = no
max connections = 0
[bench]
path = $work
read only = no
$([ "$(id -u)" != 0 ] || printf 'uid = 0\ngid = 0\n')
END
}

start_daemon() { # port
    "$daemon_program" --daemon --no-detach --config="$work/rsyncd.conf" --address=127.0.0.1 --port="$1" \
        </dev/null >"$work/log" 2>&1 &
    url=rsync://127.0.0.1:$1/bench
}
answers() { "$RSYNC" "$url/" >/dev/null 2>"$work/trouble"; }

write_config
declare -A daemon_url daemon_pid
for daemon in rsync sparsync; do
    if [ $daemon = rsync ]; then daemon_program=$RSYNC; else daemon_program=$SPARSYNC; fi
    serve start_daemon answers || die "the daemon of $daemon does not answer: $(cat "$work/log" "$work/trouble")"
    daemon_url[$daemon]=$url
    daemon_pid[$daemon]=${started[-1]}
done

copy() { # client.daemon, way
    local client=$RSYNC at=${daemon_url[${1#*.}]}
    [ "${1%.*}" = rsync ] || client=$SPARSYNC
    local from=$work/src/ to=$at/dst/
    [ "$2" = push ] || from=$at/src/ to=$work/dst/
    "$client" "${ARGS[@]}" "$from" "$to"
}

three_phases() { # data set, way
    local key=$1.$2 run pair phase
    for ((run = 0; run < RUNS; run++)); do
        for pair in "${PAIRS[@]:run % 4}" "${PAIRS[@]:0:run % 4}"; do
            for phase in first none changed; do
                [ $phase != changed ] || change
                clock "$key.$phase.$pair" copy "$pair" "$2"
            done
            compare "$pair"
            put_away
        done
    done
    for phase in first none changed; do
        local reference served client own
        reference=$(median "$key.$phase.rsync.rsync")
        served=$(median "$key.$phase.rsync.sparsync")
        client=$(median "$key.$phase.sparsync.rsync")
        own=$(median "$key.$phase.sparsync.sparsync")
        printf '| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n' "$1" "$2" "$phase" "$reference" "$served" \
            "$(ratio "$served" "$reference")" "$client" "$(ratio "$client" "$reference")" "$own" "$(ratio "$own" "$reference")"
    done
    remove_old
}

# Prints the memory of a daemon and its processes in KiB: the sum of their proportional shares.
memory_of() { # process
    local pid pids=("$1") at
    for ((at = 0; at < ${#pids[@]}; at++)); do
        mapfile -t -O ${#pids[@]} pids < <(pgrep -P "${pids[at]}")
    done
    # A process may have ended meanwhile.
    for pid in "${pids[@]}"; do awk '/^Pss:/ { print $2 }' "/proc/$pid/smaps_rollup" 2>/dev/null || true; done |
        awk '{ kib += $1 } END { print kib + 0 }'
}

# Measures the peak memory of a daemon while many clients pull slowly.
many_clients() { # daemon
    local n peak=0 now clients=()
    for ((n = 0; n < CLIENTS; n++)); do
        "$RSYNC" -a --bwlimit=200 "${daemon_url[$1]}/src/" "$work/copies/$n/" >/dev/null 2>&1 &
        clients+=("$!")
    done
    for ((n = 0; n < 15; n++)); do
        sleep 0.5
        now=$(memory_of "${daemon_pid[$1]}")
        [ "$now" -le "$peak" ] || peak=$now
    done
    kill "${clients[@]}" 2>/dev/null || true
    wait "${clients[@]}" 2>/dev/null || true
    rm -rf "$work/copies"
    printf '| %s | %s |\n' "$1" "$(calculate a/1024 1 "$peak")"
}

printf '%s; %s; %s, medians of %s\n\n' "$(versions)" "$(surroundings)" "${ARGS[*]}" "$RUNS"
if [ -n "$DATASETS" ]; then
    printf '| data set | way | phase | rsync, its daemon ms | rsync, sparsync daemon ms | ratio | sparsync, rsync daemon ms | ratio | both sparsync ms | ratio |\n'
    printf '|---|---|---|--:|--:|--:|--:|--:|--:|--:|\n'
fi
for set in $DATASETS; do
    build "$set"
    for way in $WAYS; do three_phases "$set" "$way"; done
    rm -rf "$work/src"
done
if [ "$CLIENTS" -gt 0 ]; then
    build mission
    printf '\nPeak memory of the daemon with %s clients that pull:\n\n| daemon | MiB |\n|---|--:|\n' "$CLIENTS"
    for daemon in rsync sparsync; do
        mkdir "$work/copies"
        many_clients $daemon
    done
fi

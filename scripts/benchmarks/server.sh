#!/bin/bash
# Measures the peak memory of a server with many concurrent sessions.
# It is the sum of the PSS of its process and theirs.
#
#   scripts/bench server
#   MEMORY=1G WAYS=frozen LINKEM=../linkem LINK=delay=20ms,rate=4gbit,queue=64m scripts/bench server
#
#   WAYS        push pull; frozen: pushes to a disk that is frozen after a while (needs root)
#   SESSIONS    number of concurrent sessions (64)
#   SIZE_MIB    size of the file that each session copies (64)
#   MEMORY      the server's --memory (its default)
#   TRANSPORTS  quic; also tls
#   SECS        time in seconds until the disk is frozen (12); copies are ended after five times that
#   LINKEM, LINK   the directory of linkem, and the link to emulate; see `linkem --help` (loopback)
#   SPARSYNC, BENCH_DIR   as in scripts/bench ssh; BENCH_DIR needs SESSIONS * SIZE_MIB
inside=
if [ "${1-}" = --inside ]; then
    inside=1 work=$2
fi
RSYNC=
# shellcheck source=scripts/benchmarks/common.sh
. "$(dirname "$0")/common.sh"
SESSIONS=${SESSIONS:-64}
SIZE_MIB=${SIZE_MIB:-64}
SECS=${SECS:-12}
read -ra ways <<<"${WAYS:-push pull}"
read -ra transports <<<"${TRANSPORTS:-quic}"

if [ -z "$inside" ]; then
    programs
    make_work
    port=$(perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1")->sockport')
    export SPARSYNC_CONFIG_DIR=$work/config
    mkdir -m 700 "$work/config"
    mkdir "$work/disk" "$work/src"
    head -c "$((SIZE_MIB << 20))" /dev/urandom >"$work/src/f"
    server="$SPARSYNC server start --foreground --port=$port ${MEMORY:+--memory=$MEMORY}"
    if [[ " ${ways[*]} " = *" frozen "* ]]; then
        truncate -s "$(((SESSIONS + 1) * SIZE_MIB + 256))M" "$work/image"
        mkfs.ext4 -q "$work/image"
        mount -o loop "$work/image" "$work/disk"
        # shellcheck disable=SC2317 # the trap calls it
        unmount() {
            stop_started || true
            umount "$work/disk"
            clean_up
        }
        trap unmount EXIT
    fi
    printf '%s; %s sessions of %s MiB, --memory=%s, %s\n\n' "$(surroundings)" "$SESSIONS" "$SIZE_MIB" "${MEMORY:-}" "${LINK:-loopback}"
    printf '| way | by | sessions | server MiB | all MiB | largest session MiB |\n|---|---|--:|--:|--:|--:|\n'
    if [ -n "${LINKEM-}" ]; then
        find_linkem
        bash "$linkem_folder/linkem-run" --both "$LINK" --server "exec $server 2>$work/log" --wait "tcp:$port" -- \
            env ADDRESS=10.77.0.1 "$PWD/scripts/benchmarks/$me" --inside "$work"
    else
        $server 2>"$work/log" &
        started+=($!)
        until "$SPARSYNC" server status >"$work/status"; do sleep 0.1; done
        ADDRESS=127.0.0.1 "scripts/benchmarks/$me" --inside "$work"
    fi
    exit
fi

# The outer process cleans up, except for the clients.
scratch=()
status() { # field
    "$SPARSYNC" server status --json | sed -n "s/.*\"$1\":\"\?\([^\",]*\).*/\1/p"
}
pid=$(status pid) pin=$(status pin)
umask 077
printf '[[host]]\nname = "far"\nssh = "far"\naddresses = ["%s"]\nport = %s\npin = "%s"\nmet = "2026-01-01T00:00:00Z"\n' \
    "$ADDRESS" "$(status port)" "$pin" >"$SPARSYNC_CONFIG_DIR/hosts.toml"
"$SPARSYNC" server grant "$pin" --name bench --root / >/dev/null 2>&1

# Prints the PSS of the server and of each of its sessions in KiB, on one line.
held() {
    local each
    for each in "$pid" $(pgrep -P "$pid"); do
        awk '/^Pss:/ { printf "%d ", $2 }' "/proc/$each/smaps_rollup" 2>/dev/null || true
    done
    echo
}

for transport in "${transports[@]}"; do
    for way in "${ways[@]}"; do
        for ((n = 0; n < SESSIONS; n++)); do
            from="$work/src/f" to="far:$work/disk/$n"
            [ "$way" != pull ] || from="far:$work/src/f" to="$work/disk/$n"
            "$SPARSYNC" -t -W --transport="$transport" "$from" "$to" 2>>"$work/trouble" &
            started+=($!)
        done
        began=$SECONDS frozen=
        : >"$work/held"
        while [ -n "$(jobs -r)" ] && [ $((SECONDS - began)) -lt $((5 * SECS)) ]; do
            held >>"$work/held"
            if [ "$way" = frozen ] && [ -z "$frozen" ] && [ $((SECONDS - began)) -ge "$SECS" ]; then
                fsfreeze -f "$work/disk"
                frozen=1 began=$((SECONDS - 5 * SECS + 10))
            fi
            sleep 0.2
        done
        [ -z "$frozen" ] || fsfreeze -u "$work/disk"
        # All at once, because each takes a moment to exit.
        kill "${started[@]}" 2>/dev/null || true
        wait "${started[@]}" || true
        started=()
        awk -v way="$way" -v transport="$transport" '
            NF { all = 0; for (i = 1; i <= NF; i++) all += $i; if (i > 2) for (i = 2; i <= NF; i++) if ($i > one) one = $i
                 if (all > most) { most = all; own = $1; count = NF - 1 } }
            END { printf "| %s | %s | %d | %.0f | %.0f | %.0f |\n", way, transport, count, own / 1024, most / 1024, one / 1024 }' "$work/held"
        while [ "$("$SPARSYNC" server status | sed -n 's/^sessions *\([0-9]*\) now.*/\1/p')" != 0 ]; do sleep 0.5; done
        rm -f "$work"/disk/[0-9]* "$work"/disk/.[0-9]*
    done
done

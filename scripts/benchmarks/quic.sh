#!/bin/bash
# Measures pushes over QUIC and TLS, beside rsync over ssh and to its daemon.
#
#   scripts/bench quic                               all data sets
#   BENCH_DIR=/dev/shm RUNS=5 scripts/bench quic     in memory
#   DATASETS=mission scripts/bench quic              one of them
#
# Runs `scripts/bench remote` with SPARSYNC_TRANSPORTS="auto quic tls", once for each transport of rsync; see there.
# The server is enrolled through a private sshd. `large` also prints the time of bare rustls for as many bytes over TCP
# on loopback, without files (examples/bare_tls.rs).
#
#   RUNS        runs of each (5)
#   DATASETS    mission (1,008 files), many (100,000 files of 1 KiB), large (one file of 1 GiB)
#   SPARSYNC_TRANSPORTS  auto quic tls
#   JSON        append the medians to this file
set -eu
here=$(dirname "$0")
export RUNS="${RUNS:-5}" SPARSYNC_TRANSPORTS="${SPARSYNC_TRANSPORTS:-auto quic tls}"
for set in ${DATASETS:-mission many large}; do
    for way in ssh daemon; do
        printf '\n### %s, rsync by %s\n\n' "$set" "$way"
        export DATA_SET=$set TRANSPORTS=$way
        case $set in
        mission) "$here/remote.sh" ;;
        many)
            SMALL_DIRS=1000 SMALL_FILES_PER_DIR=100 SMALL_FILE_SIZE=1024 LARGE_FILES=0 CHANGED_FILES=1000 \
                "$here/remote.sh"
            ;;
        large)
            SMALL_DIRS=1 SMALL_FILES_PER_DIR=1 LARGE_FILES=1 LARGE_FILE_SIZE=1073741824 CHANGED_FILES=1 \
                "$here/remote.sh"
            printf '\nBare rustls, ms for 1 GiB:'
            for ((run = 0; run < RUNS; run++)); do
                printf ' %s' "$(cd "$here/../.." && cargo run --quiet --release --locked --example bare_tls -- 1024)"
            done
            echo
            ;;
        *) echo "quic.sh: unknown data set $set; expected mission, many or large" >&2 && exit 1 ;;
        esac
    done
done

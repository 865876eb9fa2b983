#!/bin/bash
# Measures runs without changes: `-ac --checksum-cache` beside `-a` and `-ac`, of sparsync and of rsync.
# The runs take turns; the order changes from round to round.
#
#   scripts/bench cache
#   ROUTES="local push" RUNS=21 scripts/bench cache
#
#   ROUTES     local push pull quic-push quic-pull; push and pull are over ssh, each run with a new connection. rsync takes
#              ssh where sparsync takes QUIC
#   RUNS       runs of each (5)
#   DIRS, FILES, FILE_BYTES   directories (200), files in each (100), their length (1024)
#   TOOLS      quick cached read rsync-quick rsync-read: the runs. The first two do not read contents, so they can be
#              measured with many GiB
#   SPARSYNC, RSYNC, BENCH_DIR   as in scripts/bench local
#
# The goal is 1.2 times `-a`. `least` is the shortest of all runs, which other programs on the machine disturb less than
# the median.
# shellcheck source=scripts/benchmarks/common.sh
# The backquotes are Markdown.
# shellcheck disable=SC2016
. "$(dirname "$0")/common.sh"
read -ra routes <<<"${ROUTES:-local push pull quic-push quic-pull}"
DIRS=${DIRS:-200}
FILES=${FILES:-100}
FILE_BYTES=${FILE_BYTES:-1024}
programs
make_work
export SPARSYNC_CONFIG_DIR=$work/config
case " ${routes[*]} " in *push* | *pull*) raise_sshd ;; esac
case " ${routes[*]} " in *quic*) raise_server ;; esac

# Runs one of the programs. Fails if it copies anything.
run_without_changes() { # quick, cached, read, rsync-quick or rsync-read; route
    local from=$work/src/ to=$work/dst/ program=$SPARSYNC options=()
    case $1 in
    quick | rsync-quick) options=(-a) ;;
    cached) options=(-ac --checksum-cache) ;;
    read | rsync-read) options=(-ac) ;;
    esac
    case $1 in rsync-*) program=$RSYNC ;; esac
    case $2 in
    *push) to=far:$to ;;
    *pull) from=far:$from ;;
    esac
    case $2.$program in
    local.*) ;;
    quic-*."$SPARSYNC") options+=(--transport=quic) ;;
    *) options+=(-e "ssh -F $ssh_dir/fresh" --rsync-path="$program") ;;
    esac
    "$program" "${options[@]}" --stats "$from" "$to" >"$work/out" || die "$1 failed on route $2"
    grep -q '^Number of regular files transferred: 0$' "$work/out" || die "$1 copied files on route $2"
}

least() { # key
    sort -n "$work/noted.$1" | awk 'NR == 1 { printf "%.1f\n", $1 / 1000 }'
}

mkdir "$work/src"
if [ "$FILE_BYTES" = 1024 ]; then
    kib_files "$DIRS" "$FILES"
else
    random_files "$DIRS" "$FILES" "$FILE_BYTES" 0 0
fi
age_directories
cp -a "$work/src" "$work/dst"
sleep 0.1 # So that no ctime is too new.
printf '%s; %s; %s runs, %s files of %s bytes in %s directories\n\n' "$(versions)" "$(surroundings)" "$RUNS" \
    "$((DIRS * FILES))" "$FILE_BYTES" "$DIRS"
printf '| route | run | ms | by `-a` | least, ms | by `-a` |\n|---|---|--:|--:|--:|--:|\n'
read -ra tools <<<"${TOOLS:-quick cached read rsync-quick rsync-read}"
for route in "${routes[@]}"; do
    rm -f "$work"/noted.*
    # The first round fills the caches and is not counted.
    for ((run = 0; run <= RUNS; run++)); do
        for ((at = 0; at < ${#tools[@]}; at++)); do
            tool=${tools[(run + at) % ${#tools[@]}]}
            key=$tool
            [ "$run" != 0 ] || key=warm-up
            clock "$key" run_without_changes "$tool" "$route"
        done
    done
    for tool in "${tools[@]}"; do
        case $tool in
        quick) shown='`-a`' ;;
        cached) shown='`-ac --checksum-cache`' ;;
        read) shown='`-ac`' ;;
        rsync-quick) shown='`rsync -a`' ;;
        rsync-read) shown='`rsync -ac`' ;;
        esac
        printf '| %s | %s | %s | %s | %s | %s |\n' "$route" "$shown" "$(median "$tool")" \
            "$(ratio "$(median "$tool")" "$(median quick)")" "$(least "$tool")" \
            "$(ratio "$(least "$tool")" "$(least quick)")"
    done
done

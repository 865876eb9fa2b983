#!/bin/bash
# Measures comparisons of two equal trees: `sparsync check`, `rsync -anc --delete`, b3sum over both trees, and
# `rclone check` if it is installed.
# The programs take turns; the order changes from run to run.
#
#   scripts/bench check
#   DATASETS="usr large" ROUTES=local RUNS=11 scripts/bench check
#
#   DATASETS  usr many large (see scripts/bench local)
#   ROUTES    local push pull quic-push quic-pull; push and pull are over ssh, each run with a new connection. rsync takes
#             ssh where sparsync takes QUIC
#   RUNS      runs of each (5)
#   COLD      1: empties the page cache before each run (as root)
#   SPARSYNC, RSYNC, BENCH_DIR, USR, MANY_DIRS, MANY_FILES, LARGE_MIB   as in scripts/bench local
#
# b3sum reads both trees with all processors, one tree after the other, and compares nothing. rclone compares MD5 of both
# trees, and no attributes. They are measured locally only. rclone drops the pages of what it has read: it runs after the
# others, and both trees are read before each of its runs.
# shellcheck source=scripts/benchmarks/common.sh
. "$(dirname "$0")/common.sh"
read -ra routes <<<"${ROUTES:-local push pull quic-push quic-pull}"
programs
need b3sum b3sum
make_work
export SPARSYNC_CONFIG_DIR=$work/config
case " ${routes[*]} " in *push* | *pull*) raise_sshd ;; esac
case " ${routes[*]} " in *quic*) raise_server ;; esac

# Compares the two trees with a program. Fails if it finds a difference.
compare_by() { # program, route
    local from=$work/src/ to=$work/dst/ program=$SPARSYNC by=()
    [ "$1" != rsync ] || program=$RSYNC
    case $2 in
    *push) to=far:$to ;;
    *pull) from=far:$from ;;
    esac
    case $2.$1 in
    local.*) ;;
    quic-*.sparsync) by=(--transport=quic) ;;
    *) by=(-e "ssh -F $ssh_dir/fresh" --rsync-path="$program") ;;
    esac
    case $1 in
    sparsync) "$SPARSYNC" check "${by[@]}" "$from" "$to" >"$work/out" ;;
    rsync) "$RSYNC" -anc --delete "${by[@]}" "$from" "$to" >"$work/out" ;;
    rclone) rclone check --links "$from" "$to" 2>"$work/out" ;;
    b3sum)
        for tree in "$work/src" "$work/dst"; do
            find "$tree" -type f -print0 | xargs -0 b3sum >"$work/out"
        done
        ;;
    esac || die "$1 found a difference: $(tail -n 3 "$work/out")"
}

printf '%s; %s; %s runs\n\n' "$(versions)" "$(surroundings)" "$RUNS"
printf '| route | data set | sparsync check, ms | rsync -anc --delete, ms | ratio | b3sum, ms | ratio | rclone check, ms | ratio |\n'
printf '|---|---|--:|--:|--:|--:|--:|--:|--:|\n'
for set in ${DATASETS:-usr many large}; do
    build "$set"
    cp -a "$work/src" "$work/dst"
    for route in "${routes[@]}"; do
        tools=(sparsync rsync)
        [ "$route" != local ] || tools+=(b3sum)
        rm -f "$work"/noted.*
        # The first round fills the caches and is not counted.
        for ((run = 0; run <= RUNS; run++)); do
            for ((at = 0; at < ${#tools[@]}; at++)); do
                tool=${tools[(run + at) % ${#tools[@]}]}
                key=$tool
                [ "$run" != 0 ] || key=warm-up
                clock "$key" compare_by "$tool" "$route"
            done
        done
        if [ "$route" = local ] && command -v rclone >/dev/null; then
            for ((run = 1; run <= RUNS; run++)); do
                compare_by b3sum local
                clock rclone compare_by rclone local
            done
        fi
        own=$(median sparsync)
        rsyncs=$(median rsync)
        b3sums=$(median b3sum)
        rclones=$(median rclone)
        printf '| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n' "$route" "$set" "$own" "$rsyncs" \
            "$(ratio "$own" "$rsyncs")" "$b3sums" "$(ratio "$own" "$b3sums")" "$rclones" "$(ratio "$own" "$rclones")"
    done
    rm -rf "$work/src" "$work/dst"
done

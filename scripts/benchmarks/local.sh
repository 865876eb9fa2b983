#!/bin/bash
# Measures local copies by sparsync, rsync and `cp -a`.
# The programs do the same work in turn. Prints medians and ratios.
#
#   scripts/bench local                             all data sets, in the temporary directory
#   BENCH_DIR=/dev/shm scripts/bench local          in memory (in a new directory, which is removed)
#   RUNS=7 DATASETS="mission many" scripts/bench local
#
# Three phases for each tool and run: first (the destination does not exist), none (nothing changed), changed. `cp -a`
# takes part only in the first phase. Afterwards the trees are compared: names, types, modes, owners, lengths, times to
# the nanosecond, symlink targets, and contents. A difference ends the benchmark.
#
#   RUNS        runs of each tool and phase (5); the order of the tools changes from run to run
#   JSON        append the medians of sparsync and rsync to this file
#   DATASETS    mission many usr large
#   ARGS        options of sparsync and rsync (-a --delete)
#   SPARSYNC    the program (default: built from this repository); RSYNC, CP: the other programs
#   COLD=1      drop the page cache before each measurement (root only)
#   LARGE_MIB   length of the file of `large` (2048); MANY_DIRS (1000) of MANY_FILES (100) files in `many`
#   USR         the tree of `usr` (/usr/share)
# shellcheck source=scripts/benchmarks/common.sh
. "$(dirname "$0")/common.sh"

DATASETS=${DATASETS:-mission many usr large}
CP=${CP:-cp}
programs
make_work

copy() { # tool
    case $1 in
    sparsync) "$SPARSYNC" "${ARGS[@]}" "$work/src/" "$work/dst/" ;;
    rsync) "$RSYNC" "${ARGS[@]}" "$work/src/" "$work/dst/" ;;
    cp) "$CP" -a "$work/src/." "$work/dst/" ;;
    esac
}

printf '%s; %s; %s, %s runs\n\n' "$(versions)" "$(surroundings)" "${ARGS[*]}" "$RUNS"
printf '| data set | phase | sparsync ms | rsync ms | cp -a ms | by rsync | by cp |\n|---|---|--:|--:|--:|--:|--:|\n'
for set in $DATASETS; do
    build "$set"
    tools=(sparsync rsync cp)
    for ((run = 0; run < RUNS; run++)); do
        for tool in "${tools[@]:run % 3}" "${tools[@]:0:run % 3}"; do
            [ "$tool" != cp ] || mkdir "$work/dst"
            clock "$set.first.$tool" copy "$tool"
            if [ "$tool" != cp ]; then
                clock "$set.none.$tool" copy "$tool"
                change
                clock "$set.changed.$tool" copy "$tool"
            else
                # The destination directory was created above, without the attributes of the source.
                touch -r "$work/src" "$work/dst" && chmod --reference="$work/src" "$work/dst"
            fi
            compare "$tool"
            # Removing one large file is fast and frees space.
            if [ "$set" = large ]; then rm -rf "$work/dst"; else put_away; fi
        done
    done
    for phase in first none changed; do
        ours=$(median "$set.$phase.sparsync") theirs=$(median "$set.$phase.rsync") cps=$(median "$set.$phase.cp")
        printf '| %s | %s | %s | %s | %s | %s | %s |\n' "$set" $phase "$ours" "$theirs" "$cps" \
            "$(ratio "$ours" "$theirs")" "$(ratio "$ours" "$cps")"
        record 'local copy' "$set" $phase "$ours" "$theirs"
    done
    rm -rf "$work/src"
    remove_old
done

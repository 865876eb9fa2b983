#!/bin/bash
# Measures local copies: sparsync, rsync and `cp -a` in turn, the same work for each, medians and ratios.
#
#   scripts/bench_local.sh                             all data sets, below the temporary directory
#   BENCH_DIR=/dev/shm scripts/bench_local.sh          in memory (a new directory is made in it, and removed)
#   RUNS=7 DATASETS="mission many" scripts/bench_local.sh
#
# Three phases for each tool and run: first (the destination does not exist), none (nothing changed), changed.
# `cp -a` takes part in the first only. Afterwards the trees are compared: names, types, modes, owners, lengths, times to
# the nanosecond, targets of symlinks, and contents; a difference ends the benchmark.
#
#   RUNS        runs of each tool and phase (5); the order of the tools changes from run to run
#   DATASETS    mission many usr large
#   ARGS        options of sparsync and rsync (-a --delete)
#   SPARSYNC    the program (default: it is built); RSYNC, CP likewise
#   COLD=1      drop the page cache before each measurement (root only)
#   LARGE_MIB   length of the file of `large` (2048); MANY_DIRS (1000) of MANY_FILES (100) files in `many`
#   USR         the tree of `usr` (/usr/share)
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

RUNS=${RUNS:-5}
DATASETS=${DATASETS:-mission many usr large}
read -ra ARGS <<<"${ARGS:--a --delete}"
RSYNC=${RSYNC:-rsync}
CP=${CP:-cp}
LARGE_MIB=${LARGE_MIB:-2048}
MANY_DIRS=${MANY_DIRS:-1000}
MANY_FILES=${MANY_FILES:-100}
USR=${USR:-/usr/share}
if [ -z "${SPARSYNC-}" ]; then
    cargo build --release --locked --quiet
    SPARSYNC=${CARGO_TARGET_DIR:-target}/release/sparsync
fi
SPARSYNC=$(realpath "$SPARSYNC")

work=$(mktemp -d "${BENCH_DIR:-${TMPDIR:-/tmp}}/sparsync-bench.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Makes the tree $work/src of a data set.
build() {
    mkdir "$work/src"
    case $1 in
    mission)
        perl -e '
            my ($top) = @ARGV;
            open(my $random, "<", "/dev/urandom") or die; binmode $random;
            sub put { my ($path, $len) = @_; read($random, my $bytes, $len) == $len or die;
                      open(my $f, ">", $path) or die "$path: $!"; print $f $bytes; close $f; }
            mkdir "$top/small"; mkdir "$top/large";
            for my $d (0 .. 9) { mkdir "$top/small/dir_$d"; put("$top/small/dir_$d/file_$_.bin", 4096) for 0 .. 99; }
            put("$top/large/chunk_$_.bin", 2 << 20) for 0 .. 7;' "$work/src"
        ;;
    many)
        perl -e '
            my ($top, $dirs, $files) = @ARGV;
            for my $d (0 .. $dirs - 1) {
                mkdir "$top/dir_$d";
                for my $n (0 .. $files - 1) {
                    open(my $f, ">", "$top/dir_$d/file_$n") or die; print $f "$d $n\n" . ("x" x (1024 - length "$d $n\n")); close $f;
                }
            }' "$work/src" "$MANY_DIRS" "$MANY_FILES"
        ;;
    usr) cp -a "$USR/." "$work/src/" ;;
    large) head -c "$((LARGE_MIB * 1048576))" /dev/urandom >"$work/src/large.bin" ;;
    *)
        echo "bench_local.sh: no data set is called $1: mission, many, usr or large" >&2
        exit 1
        ;;
    esac
    # Not of this second: rsync leaves a directory's time alone if only the part of the second differs.
    find "$work/src" -type d -exec touch -d '2001-02-03 04:05:06.789' {} +
    # Which files change: 100 of mission, one in a hundred of the others.
    case $1 in
    mission) find "$work/src/small/dir_0" -type f ;;
    large) echo "$work/src/large.bin" ;;
    *) find "$work/src" -type f | sort | awk 'NR % 100 == 1' ;;
    esac >"$work/changing"
}

change() {
    perl -ne 'chomp; open(my $f, ">>", $_) or die "$_: $!"; print $f "one more line\n"; close $f' "$work/changing"
}

listing() {
    (cd "$1" && find . -type d -printf '%p d %m %U %G %T@\n' -o -printf '%p %y %m %U %G %s %T@ %l\n' | sort)
}

compare() { # tool
    if ! diff <(listing "$work/src") <(listing "$work/dst") >"$work/differences" ||
        ! diff -rq --no-dereference "$work/src" "$work/dst" >"$work/differences" 2>&1; then
        echo "bench_local.sh: the tree that $1 made is not the source:" >&2
        head -n 20 "$work/differences" >&2
        exit 1
    fi
}

copy() { # tool
    case $1 in
    sparsync) "$SPARSYNC" "${ARGS[@]}" "$work/src/" "$work/dst/" ;;
    rsync) "$RSYNC" "${ARGS[@]}" "$work/src/" "$work/dst/" ;;
    cp) "$CP" -a "$work/src/." "$work/dst/" ;;
    esac
}

# Puts a finished destination aside. It is removed only after all runs: for seconds after a large deletion ext4
# makes new files ten times slower, whoever makes them. One large file does not matter, and takes room.
put_away() { # data set
    if [ "$1" = large ]; then
        rm -rf "$work/dst"
    else
        mkdir -p "$work/old"
        mv "$work/dst" "$work/old/$((aside += 1))"
    fi
}
aside=0

# Runs a copy and adds its milliseconds to the file of its data set, phase and tool.
measure() { # data set, phase, tool
    sync -f "$work"
    [ "${COLD-}" != 1 ] || echo 3 >/proc/sys/vm/drop_caches
    local begin=$EPOCHREALTIME
    copy "$3"
    local end=$EPOCHREALTIME
    echo "$((${end/./} - ${begin/./}))" >>"$work/times.$1.$2.$3"
}

# The median in milliseconds, with one decimal; `-` where nothing was measured.
median() { # data set, phase, tool
    [ -e "$work/times.$1.$2.$3" ] || { echo -; return; }
    sort -n "$work/times.$1.$2.$3" |
        awk '{ t[NR] = $1 } END { m = NR % 2 ? t[(NR + 1) / 2] : (t[NR / 2] + t[NR / 2 + 1]) / 2; printf "%.1f\n", m / 1000 }'
}

ratio() { # of two medians
    if [ "$1" = - ] || [ "$2" = - ]; then echo -; else awk "BEGIN { printf \"%.2f\\n\", $1 / $2 }"; fi
}

printf '%s; %s; %s processors; %s, %s cache; %s, %s runs\n\n' "$("$SPARSYNC" --version | sed -n 's/.*\(sparsync [0-9.]*\).*/\1/p' | head -n 1)" \
    "$("$RSYNC" --version | head -n 1 | sed 's/  */ /g')" "$(nproc)" "$(stat -f -c %T "$work")" \
    "$([ "${COLD-}" = 1 ] && echo cold || echo warm)" "${ARGS[*]}" "$RUNS"
printf '| data set | phase | sparsync ms | rsync ms | cp -a ms | by rsync | by cp |\n|---|---|--:|--:|--:|--:|--:|\n'
for set in $DATASETS; do
    build "$set"
    tools=(sparsync rsync cp)
    for ((run = 0; run < RUNS; run++)); do
        for tool in "${tools[@]:run % 3}" "${tools[@]:0:run % 3}"; do
            [ "$tool" != cp ] || mkdir "$work/dst"
            measure "$set" first "$tool"
            if [ "$tool" != cp ]; then
                measure "$set" none "$tool"
                change
                measure "$set" changed "$tool"
            else
                # Its directory was made by hand above.
                touch -r "$work/src" "$work/dst" && chmod --reference="$work/src" "$work/dst"
            fi
            compare "$tool"
            put_away "$set"
        done
    done
    for phase in first none changed; do
        ours=$(median "$set" $phase sparsync) theirs=$(median "$set" $phase rsync) cps=$(median "$set" $phase cp)
        printf '| %s | %s | %s | %s | %s | %s | %s |\n' "$set" $phase "$ours" "$theirs" "$cps" \
            "$(ratio "$ours" "$theirs")" "$(ratio "$ours" "$cps")"
    done
    rm -rf "$work/src" "$work/old"
done

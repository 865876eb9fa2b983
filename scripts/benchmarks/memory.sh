#!/bin/bash
# Measures peak memory with a million files.
# They are in 10,000 directories, then in one; first copy, then no change.
#
#   scripts/bench memory
#   FILES=100000 BENCH_DIR=/dev/shm scripts/bench memory
#
#   FILES       number of files (1000000); they are empty, because memory per entry does not depend on content
#   PER_DIR     files in each directory of the first shape (100)
#   SHAPES      wide (many directories) and flat (one)
#   ARGS        options (-a --delete); SPARSYNC, RSYNC: the programs; an empty RSYNC= omits rsync
#   BENCH_DIR   directory of the trees (the temporary directory); it needs 2 * FILES inodes
# shellcheck source=scripts/benchmarks/common.sh
. "$(dirname "$0")/common.sh"

FILES=${FILES:-1000000}
PER_DIR=${PER_DIR:-100}
SHAPES=${SHAPES:-wide flat}
need /usr/bin/time time
programs
make_work

build_empty() { # shape
    mkdir "$work/src"
    perl -e '
        my ($top, $files, $per_dir) = @ARGV;
        my $dir = $top;
        for my $n (0 .. $files - 1) {
            if ($per_dir && $n % $per_dir == 0) { $dir = "$top/dir_" . int($n / $per_dir); mkdir $dir; }
            open(my $f, ">", "$dir/file_$n") or die "$dir/file_$n: $!"; close $f;
        }' "$work/src" "$FILES" "$([ "$1" = wide ] && echo "$PER_DIR" || echo 0)"
}

# Prints the peak memory of the largest process in MiB, and the time in seconds.
measure() { # program
    /usr/bin/time -v -o "$work/report" "$1" "${ARGS[@]}" "$work/src/" "$work/dst/"
    awk -F': ' '/Maximum resident/ { kib = $2 } /Elapsed/ { n = split($2, t, ":"); s = t[n] + 60 * t[n - 1] + (n > 2 ? 3600 * t[1] : 0) }
                END { printf "%.1f | %.1f", kib / 1024, s }' "$work/report"
}

printf '%s files; %s; %s\n\n| shape | phase | program | peak MiB | s |\n|---|---|---|--:|--:|\n' "$FILES" "${ARGS[*]}" "$(stat -f -c %T "$work")"
for shape in $SHAPES; do
    build_empty "$shape"
    for program in "$SPARSYNC" ${RSYNC:+"$RSYNC"}; do
        for phase in first none; do
            printf '| %s | %s | %s | %s |\n' "$shape" "$phase" "$(basename "$program")" "$(measure "$program")"
        done
        rm -rf "$work/dst"
    done
    rm -rf "$work/src"
done

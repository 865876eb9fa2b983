#!/bin/bash
# Measures copies over ssh by sparsync and rsync.
# The programs do the same work in turn. Prints medians, ratios and bytes on the wire.
#
#   scripts/bench ssh                               pushes of the default data sets, fresh and master
#   BENCH_DIR=/dev/shm scripts/bench ssh            in memory (in a new directory, which is removed)
#   PULL=1 RUNS=3 DATASETS="mission delta" scripts/bench ssh
#   DATASETS=million MASTER=0 scripts/bench ssh     a million files: no change, and the memory of both ends
#   PAIR=client PULL=1 scripts/bench ssh            sparsync here and rsync there, compared with two rsyncs
#   PAIR=server PULL=1 scripts/bench ssh            rsync here and sparsync there, compared with two rsyncs
#
# Starts a private sshd on a free port of loopback, with its own keys and configurations; the user's files are not used.
# Each copy uses a new connection (fresh) and an open one (master, a ControlMaster). The remote program is the same one,
# called by its path. ssh alone is measured as the lower bound: `ssh far true`, and for first copies `cat` over ssh of
# as many bytes as the files have.
#
# Three phases for each tool and run: first (the destination does not exist), none (nothing changed), changed. `delta`
# has three kinds of change to one file instead. `few` copies three new files, without --delete, to a destination with
# many others: a tree (USR) or one directory (with as many files as `many`). Afterwards the trees are compared: names,
# types, modes, owners, lengths, times to the nanosecond, symlink targets, and contents. A difference ends the
# benchmark. Bytes are those that --stats reports, sent and received, before ssh encrypts them.
#
#   RUNS        runs of each tool and phase (5); the order changes from run to run
#   JSON        append the medians of both programs to this file
#   DATASETS    mission many usr delta; also few and million
#   ARGS        options of both (-a --delete)
#   PULL=1      also measure pulls; PULL=only: no pushes
#   MASTER      1: only through a ControlMaster; 0: only new connections; both by default
#   SPARSYNC    the program (default: built from this repository); RSYNC: the rsync program
#   COLD=1      drop the page cache before each measurement (root only)
#   MANY_DIRS   (1000) of MANY_FILES (100) files in `many`; USR: the tree of `usr` (/usr/share)
#   MILLION_DIRS  (10000) of MILLION_FILES (100) files in `million`
#   DELTA_MIB   length of the file of `delta` (1024); DELTA_KINDS: scatter (4 KiB overwritten at 2,600 places per GiB),
#               front (1 MiB inserted in front), insert (100 bytes inserted at 100 places)
# shellcheck source=scripts/benchmarks/common.sh
. "$(dirname "$0")/common.sh"

DATASETS=${DATASETS:-mission many usr delta}
MILLION_DIRS=${MILLION_DIRS:-10000}
MILLION_FILES=${MILLION_FILES:-100}
DELTA_MIB=${DELTA_MIB:-1024}
DELTA_KINDS=${DELTA_KINDS:-scatter front insert}
case ${MASTER-} in
1) connections=(master) ;;
0) connections=(fresh) ;;
'') connections=(fresh master) ;;
*) die "MASTER: expected 1 or 0, or unset for both" ;;
esac
case ${PULL-} in
1) ways=(push pull) ;;
only) ways=(pull) ;;
'' | 0) ways=(push) ;;
*) die "PULL: expected 0, 1 or only" ;;
esac

programs
make_work
raise_sshd
case " ${connections[*]} " in *' master '*) raise_master ;; esac

# Measures a copy or the lower bound, and notes the bytes on the wire.
measure() { # key, tool, way, connection, the remote program if it is not the tool itself
    if [ "$2" = floor ]; then
        clock "$1.floor" floor_of_ssh "$4"
    else
        clock "$1.$2" copy_by_ssh "$2" "$3" "$4" "${5-}"
        note "$1.$2.wire" "$(wire_bytes)"
    fi
}

# Prints the three tools, with another one first in each run.
in_turn() { # run
    local tools=(sparsync rsync floor)
    echo "${tools[@]:$1 % 3}" "${tools[@]:0:$1 % 3}"
}

row() { # data set, phase, way, connection, key
    local ours theirs floor
    ours=$(median "$5.sparsync") theirs=$(median "$5.rsync") floor=$(median "$5.floor")
    printf '| %s | %s, %s | %s | %s | %s | %s | %s | %s | %s | %s |\n' "$1" "$3" "$4" "$2" "$ours" "$theirs" \
        "$(ratio "$ours" "$theirs")" "$floor" "$(calculate a-b 1 "$ours" "$floor")" \
        "$(median "$5.sparsync.wire" 1 0)" "$(median "$5.rsync.wire" 1 0)"
    record "$(route "$3" "$4")" "$1" "$2" "$ours" "$theirs"
}

# Prints the name of a route in records.
route() { # way, connection
    local name
    case $2 in
    fresh) name='ssh with a new connection' ;;
    master) name='ssh through a ControlMaster' ;;
    esac
    [ "$1" = push ] || name="$name, $1"
    echo "$name${PAIR:+, PAIR=$PAIR}"
}

three_phases() { # data set, way, connection
    local key=$1.$2.$3 run tool phase
    find "$work/src" -type f -exec cat {} + >"$work/bytes"
    for ((run = 0; run < RUNS; run++)); do
        for tool in $(in_turn "$run"); do
            if [ "$tool" = floor ]; then
                measure "$key.none" floor "$2" "$3"
                clock "$key.first.floor" bytes_by_ssh "$2" "$3"
                continue
            fi
            measure "$key.first" "$tool" "$2" "$3"
            measure "$key.none" "$tool" "$2" "$3"
            change
            measure "$key.changed" "$tool" "$2" "$3"
            compare "$tool"
            put_away
        done
    done
    for phase in first none changed; do row "$1" $phase "$2" "$3" "$key.$phase"; done
    rm "$work/bytes"
    remove_old
}

# Creates a file of random bytes and a changed version of it. The seed is fixed, so the places of the changes are too.
build_delta() { # kind
    rm -rf "$work/src" "$work/before"
    mkdir "$work/src" "$work/before"
    perl -e '
        my ($kind, $mib, $before, $after) = @ARGV;
        srand 1;
        open(my $random, "<", "/dev/urandom") or die; binmode $random;
        sub bytes { read($random, my $bytes, $_[0]) == $_[0] or die "/dev/urandom: $!"; $bytes }
        open(my $old, ">", $before) or die; open(my $new, ">", $after) or die;
        my $len = $mib << 20;
        my %at;   # where something changes
        if ($kind eq "scatter") { $at{int(rand($len >> 12)) << 12} = 1 for 1 .. 2600 * $mib / 1024; }
        if ($kind eq "insert") { $at{int rand $len} = 1 while keys %at < 100; }
        my @at = sort { $a <=> $b } keys %at;
        print $new bytes(1 << 20) if $kind eq "front";
        for my $n (0 .. $mib - 1) {
            my ($begin, $chunk) = ($n << 20, bytes(1 << 20));
            print $old $chunk;
            my @here; push @here, shift(@at) - $begin while @at && $at[0] < $begin + (1 << 20);
            # From the end, so that earlier offsets stay valid.
            for my $place (reverse @here) { substr($chunk, $place, $kind eq "scatter" ? 4096 : 0) = bytes($kind eq "scatter" ? 4096 : 100); }
            print $new $chunk;
        }
        close $old or die; close $new or die;' "$1" "$DELTA_MIB" "$work/before/data.bin" "$work/src/data.bin"
    touch -d '2001-02-03 04:05:06.789' "$work/before/data.bin"
    touch -d '2002-02-03 04:05:06.789' "$work/src/data.bin"
    age_directories
}

one_delta() { # kind, way, connection
    local key=delta.$1.$2.$3 run tool
    for ((run = 0; run < RUNS; run++)); do
        for tool in $(in_turn "$run"); do
            if [ "$tool" != floor ]; then
                rm -rf "$work/dst"
                cp -a "$work/before" "$work/dst"
            fi
            measure "$key" "$tool" "$2" "$3"
            [ "$tool" = floor ] || compare "$tool"
        done
    done
    row "delta, $DELTA_MIB MiB" "$1" "$2" "$3" "$key"
    rm -rf "$work/dst"
}

# Creates the destination, and the three files to copy.
build_few() { # kind
    mkdir "$work/src"
    case $1 in
    tree) cp -a "$USR" "$work/dst" ;;
    flat)
        kib_files 1 $((MANY_DIRS * MANY_FILES))
        mv "$work/src/dir_0" "$work/dst"
        ;;
    esac
    touch -d '2001-02-03 04:05:06.789' "$work/src/"{one,two,three}.new
    age_directories
}

# Copies three new files to a destination with many others.
few_into_much() { # kind, way, connection
    local key=few.$1.$2.$3 run tool ARGS=(-a)
    for ((run = 0; run < RUNS; run++)); do
        for tool in $(in_turn "$run"); do
            rm -f "$work/dst/"*.new
            measure "$key" "$tool" "$2" "$3"
            [ "$tool" = floor ] || diff <(cd "$work/src" && listing . | tail -n +2) \
                <(cd "$work/dst" && find . -name '*.new' -printf '%p %y %m %U %G %s %T@ %l\n' | sort) ||
                die "$tool did not copy the files correctly"
        done
    done
    row "few, into a $1" first "$2" "$3" "$key"
}

# Measures a run without changes, and the peak memory of the largest process at each end. At the local end that may be
# ssh, a child process, which has less than 10 MiB.
idle_with_memory() { # way, connection
    local key=million.$1.$2 run tool
    for ((run = 0; run < RUNS; run++)); do
        for tool in $(in_turn "$run"); do
            if [ "$tool" = floor ]; then
                measure "$key" floor "$1" "$2"
                continue
            fi
            clock "$key.$tool" with_memory "$tool" "$1" "$2"
            note "$key.$tool.wire" "$(wire_bytes)"
            for end in near far; do
                note "$key.$tool.$end" "$(awk -F ': ' '/Maximum resident/ { print $2 }' "$work/$end.report")"
            done
        done
    done
    compare "one of the two"
    row million none "$1" "$2" "$key"
    for tool in sparsync rsync; do
        printf '| %s, %s | %s | %s | %s |\n' "$1" "$2" $tool "$(median "$key.$tool.near" 1024)" "$(median "$key.$tool.far" 1024)" \
            >>"$work/memory"
    done
}
with_memory() { # tool, way, connection
    local program=$RSYNC
    [ "$1" != sparsync ] || program=$SPARSYNC
    printf '#!/bin/sh\nexec /usr/bin/time -v -o "%s" "%s" "$@"\n' "$work/far.report" "$program" >"$work/far"
    chmod +x "$work/far"
    # The local wrapper takes the place of the program.
    printf '#!/bin/sh\nexec /usr/bin/time -v -o "%s" "%s" "$@"\n' "$work/near.report" "$program" >"$work/near"
    chmod +x "$work/near"
    SPARSYNC=$work/near RSYNC=$work/near copy_by_ssh "$1" "$2" "$3" "$work/far"
}

printf '%s; %s; %s; %s, %s runs\n\n' "$(versions)" "$(ssh -V 2>&1 | cut -d ' ' -f 1 | tr -d ,)" "$(surroundings)" "${ARGS[*]}" "$RUNS"
printf '| data set | way | phase | sparsync ms | rsync ms | by rsync | ssh true ms | over it | sparsync bytes | rsync bytes |\n'
printf '|---|---|---|--:|--:|--:|--:|--:|--:|--:|\n'
for set in $DATASETS; do
    case $set in
    delta)
        for kind in $DELTA_KINDS; do
            case $kind in scatter | front | insert) ;; *) die "unknown kind of change $kind" ;; esac
            build_delta "$kind"
            for way in "${ways[@]}"; do
                for connection in "${connections[@]}"; do one_delta "$kind" "$way" "$connection"; done
            done
        done
        rm -rf "$work/before"
        ;;
    few)
        for kind in tree flat; do
            build_few $kind
            for way in "${ways[@]}"; do
                for connection in "${connections[@]}"; do few_into_much $kind "$way" "$connection"; done
            done
            rm -rf "$work/dst" "$work/src"
        done
        ;;
    million)
        need /usr/bin/time time
        mkdir "$work/src"
        kib_files "$MILLION_DIRS" "$MILLION_FILES"
        age_directories
        cp -a "$work/src" "$work/dst"
        for way in "${ways[@]}"; do
            for connection in "${connections[@]}"; do idle_with_memory "$way" "$connection"; done
        done
        rm -rf "$work/dst"
        ;;
    *)
        build "$set"
        for way in "${ways[@]}"; do
            for connection in "${connections[@]}"; do three_phases "$set" "$way" "$connection"; done
        done
        ;;
    esac
    rm -rf "$work/src"
done
if [ -e "$work/memory" ]; then
    printf '\nPeak memory of the largest process, %s files, no change:\n\n' "$((MILLION_DIRS * MILLION_FILES))"
    printf '| way | program | local end MiB | remote end MiB |\n|---|---|--:|--:|\n'
    cat "$work/memory"
fi

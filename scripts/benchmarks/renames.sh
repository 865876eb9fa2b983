#!/bin/bash
# Measures copies of a tree in which a directory was renamed: --detect-renamed beside rsync --fuzzy --delete-after.
# The programs take turns; the order changes from run to run.
#
#   scripts/bench renames
#   ROUTES="local push" RUNS=7 scripts/bench renames
#
# The destination has 6,247 files. At the source, the directory with a third of them has another name, and 30 files are new.
#
#   ROUTES     local push pull quic-push quic-pull; push and pull are over ssh, each run with a new connection. rsync takes
#              ssh where sparsync takes QUIC
#   RUNS       runs of each (5)
#   FILE_BYTES length of each file (16384)
#   SPARSYNC, RSYNC, BENCH_DIR   as in scripts/bench local
#
# `idle` is a run of sparsync without changes; bytes are those of --stats in both directions.
# shellcheck source=scripts/benchmarks/common.sh
. "$(dirname "$0")/common.sh"
read -ra routes <<<"${ROUTES:-local push pull quic-push quic-pull}"
FILE_BYTES=${FILE_BYTES:-16384}
programs
make_work
case " ${routes[*]} " in *push* | *pull*) raise_sshd ;; esac
case " ${routes[*]} " in *quic*) raise_server ;; esac

# Creates the tree of the destination, and the source with its renamed directory and its new files.
build_renamed() {
    local n
    mkdir -p "$work/before/kept" "$work/before/moving"
    head -c "$FILE_BYTES" /dev/urandom >"$work/pattern"
    for ((n = 0; n < 6247; n++)); do
        local dir=kept
        [ $((n % 3)) != 0 ] || dir=moving
        # Different contents of the same length.
        { printf '%08d' "$n"; tail -c +9 "$work/pattern"; } >"$work/before/$dir/file_$n"
    done
    find "$work/before" -exec touch -d '2001-02-03 04:05:06.789' {} +
    cp -a "$work/before" "$work/src"
    mv "$work/src/moving" "$work/src/moved"
    mkdir "$work/src/new"
    for ((n = 0; n < 30; n++)); do
        { printf '%08d' "$((n + 10000))"; tail -c +9 "$work/pattern"; } >"$work/src/new/file_$n"
    done
}

# Copies the source to the destination.
copy_by() { # idle, moved, plain or rsync; route
    local options=(-a --delete --stats) from=$work/src/ to=$work/dst/
    case $2 in
    *push) to=far:$to ;;
    *pull) from=far:$from ;;
    esac
    case $2 in
    quic-*) [ "$1" = rsync ] && options+=(-e "ssh -F $ssh_dir/fresh") || options+=(--transport=quic) ;;
    push | pull)
        options+=(-e "ssh -F $ssh_dir/fresh")
        [ "$1" = rsync ] || options+=(--rsync-path="$SPARSYNC")
        ;;
    esac
    case $1 in
    rsync) "$RSYNC" "${options[@]}" --fuzzy --fuzzy --delete-after "$from" "$to" >"$work/out" ;;
    moved) "$SPARSYNC" "${options[@]}" --detect-renamed=moved "$from" "$to" >"$work/out" ;;
    *) "$SPARSYNC" "${options[@]}" "$from" "$to" >"$work/out" ;;
    esac
}

build_renamed
printf '%s; %s; %s runs, files of %s bytes\n\n' "$(versions)" "$(surroundings)" "$RUNS" "$FILE_BYTES"
printf '| route | run | ms | by idle | by rsync | bytes |\n|---|---|--:|--:|--:|--:|\n'
tools=(moved plain rsync)
for route in "${routes[@]}"; do
    rm -f "$work"/noted.*
    for ((run = 0; run < RUNS; run++)); do
        for ((at = 0; at < ${#tools[@]}; at++)); do
            tool=${tools[(run + at) % ${#tools[@]}]}
            cp -a "$work/before" "$work/dst"
            clock "$tool" copy_by "$tool" "$route"
            note "bytes-$tool" "$(wire_bytes)"
            compare "$tool"
            clock idle copy_by idle "$route"
            note bytes-idle "$(wire_bytes)"
            put_away
        done
    done
    remove_old
    for tool in idle "${tools[@]}"; do
        shown=$tool
        case $tool in
        moved) shown='--detect-renamed=moved' ;;
        plain) shown='without the option' ;;
        rsync) shown='rsync --fuzzy --fuzzy --delete-after' ;;
        esac
        ms=$(median "$tool")
        printf '| %s | %s | %s | %s | %s | %s |\n' "$route" "$shown" "$ms" "$(ratio "$ms" "$(median idle)")" \
            "$(ratio "$ms" "$(median rsync)")" "$(median "bytes-$tool" 1 0)"
    done
done

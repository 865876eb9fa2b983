#!/bin/bash
# Measures copies of a tree in which files were renamed: --detect-renamed beside rsync --fuzzy and rclone --track-renames.
# The programs take turns; the order changes from run to run.
#
#   scripts/bench renames
#   ROUTES="local push" RUNS=7 scripts/bench renames
#   DATASETS=large scripts/bench renames
#   LINKEM=../linkem ROUTES="wan-push wan-quic-push" scripts/bench renames
#
# `many`: the destination has 6,247 files. At the source, the directory with a third of them has another name, and 30 files
# are new. `large`: one file has another name, in another directory.
#
#   ROUTES      local push pull quic-push quic-pull, also wan-push wan-pull wan-quic-push wan-quic-pull; push and pull are
#               over ssh, each run with a new connection. rsync and rclone (sftp) take ssh where sparsync takes QUIC. The
#               routes with wan go over the preset `wan` of linkem, which needs root; LINKEM is its directory
#   DATASETS    many large
#   RUNS        runs of each (5)
#   FILE_BYTES  length of each file of `many` (16384)
#   LARGE_MIB   length of the file of `large` (1024)
#   RCLONE      rclone; RCLONE= leaves it out
#   SPARSYNC, RSYNC, BENCH_DIR   as in scripts/bench local
#
# `idle` is a run of sparsync without changes, `new` one in which only the 30 files are new, each without the option.
# Processor time is that of the near end. Bytes are those of --stats in both directions; "a file" are those for each renamed
# file, more than in `new`.
inside=
if [ "${1-}" = --inside ]; then
    # The local side of a link: this script starts itself in the client's namespace, see below.
    inside=1 work=$2 ssh_dir=$3
fi
# shellcheck source=scripts/benchmarks/common.sh
. "$(dirname "$0")/common.sh"
read -ra routes <<<"${ROUTES:-local push pull quic-push quic-pull}"
read -ra datasets <<<"${DATASETS:-many large}"
FILE_BYTES=${FILE_BYTES:-16384}
LARGE_MIB=${LARGE_MIB:-1024}
RCLONE=${RCLONE-rclone}
tools=(new moved digests plain rsync ${RCLONE:+rclone})
IN_MANY=6247 RENAMED=2083

# Creates the tree of the destination, and the source with what was renamed and what is new.
build_renamed() { # data set
    local n
    rm -rf "$work/before" "$work/src"
    mkdir -p "$work/before/kept" "$work/before/moving"
    if [ "$1" = large ]; then
        head -c "$((LARGE_MIB << 20))" /dev/urandom >"$work/before/moving/large"
    else
        head -c "$FILE_BYTES" /dev/urandom >"$work/pattern"
        for ((n = 0; n < IN_MANY; n++)); do
            local dir=kept
            [ $((n % 3)) != 0 ] || dir=moving
            # Different contents of the same length.
            { printf '%08d' "$n"; tail -c +9 "$work/pattern"; } >"$work/before/$dir/file_$n"
        done
    fi
    find "$work/before" -exec touch -d '2001-02-03 04:05:06.789' {} +
    cp -a "$work/before" "$work/src"
    mv "$work/src/moving" "$work/src/moved"
    [ "$1" != large ] || return 0
    mkdir "$work/src/new"
    for ((n = 0; n < 30; n++)); do
        { printf '%08d' "$((n + 10000))"; tail -c +9 "$work/pattern"; } >"$work/src/new/file_$n"
    done
}

# Creates the destination before a run.
build_dest() { # data set, tool
    if [ "$2" = new ]; then
        cp -a "$work/src" "$work/dst"
        rm -rf "$work/dst/new"
    else
        cp -a "$work/before" "$work/dst"
    fi
}

# Copies the source to the destination.
copy_by() { # idle or a tool; route
    local options=(-a --delete --stats) from=$work/src/ to=$work/dst/
    if [ "$1" = rclone ]; then
        # As --detect-renamed=moved: time and name.
        options=(sync --config /dev/null --track-renames --track-renames-strategy "modtime,leaf")
        local far
        # shellcheck disable=SC2154 # write_ssh sets ssh_dir
        far=":sftp,host=$far_host,port=$far_port,user=$(id -un),key_file=$ssh_dir/user:"
        case $2 in
        *push) to=$far$to ;;
        *pull) from=$far$from ;;
        esac
        "$RCLONE" "${options[@]}" "$from" "$to" >"$work/out" 2>&1 ||
            die "rclone failed: $(tail -n 3 "$work/out")"
        return
    fi
    case $2 in
    *push) to=far:$to ;;
    *pull) from=far:$from ;;
    esac
    case $2 in
    *quic-*) [ "$1" = rsync ] && options+=(-e "ssh -F $ssh_dir/fresh") || options+=(--transport=quic) ;;
    *push | *pull)
        options+=(-e "ssh -F $ssh_dir/fresh")
        [ "$1" = rsync ] || options+=(--rsync-path="$SPARSYNC")
        ;;
    esac
    case $1 in
    rsync) "$RSYNC" "${options[@]}" --fuzzy --fuzzy --delete-after "$from" "$to" >"$work/out" ;;
    moved) "$SPARSYNC" "${options[@]}" --detect-renamed=moved "$from" "$to" >"$work/out" ;;
    digests) "$SPARSYNC" "${options[@]}" --detect-renamed "$from" "$to" >"$work/out" ;;
    *) "$SPARSYNC" "${options[@]}" "$from" "$to" >"$work/out" ;;
    esac
}

# Measures one run.
measure() { # idle or a tool; route
    clock "$1" copy_in_time "$1" "$2"
    note "cpu-$1" "$(awk '{ printf "%d\n", ($1 + $2) * 1000000 }' "$work/cpu")"
    [ "$1" = rclone ] || note "bytes-$1" "$(wire_bytes)"
}

# Does what copy_by does, and writes its processor time in seconds.
copy_in_time() { # idle or a tool; route
    local TIMEFORMAT='%U %S'
    { time copy_by "$1" "$2" 2>&3; } 3>&2 2>"$work/cpu"
}

show() { # route, run, tool
    local ms bytes each=-
    ms=$(median "$3")
    bytes=$(median "bytes-$3" 1 0)
    case $1.$3 in
    local.*) bytes=- ;;
    *.moved | *.digests | *.rsync) each=$(calculate '(a-b)/c' 0 "$bytes" "$(median bytes-new 1 0)" "$renamed") ;;
    esac
    printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' "$1" "$2" "$ms" "$(median "cpu-$3")" "$(ratio "$ms" "$(median new)")" \
        "$(ratio "$ms" "$(median rsync)")" "$bytes" "$each"
}

measure_route() { # data set, route
    local run at tool
    rm -f "$work"/noted.*
    for ((run = 0; run < RUNS; run++)); do
        for ((at = 0; at < ${#tools[@]}; at++)); do
            tool=${tools[(run + at) % ${#tools[@]}]}
            build_dest "$1" "$tool"
            measure "$tool" "$2"
            if [ "$tool" = rclone ]; then
                # It does not keep the times of directories.
                diff -rq "$work/src" "$work/dst" >"$work/differences" || die "rclone: $(head -n 3 "$work/differences")"
            else
                compare "$tool"
                measure idle "$2"
            fi
            [ "$1" != large ] || rm -rf "$work/dst"
            [ "$1" = large ] || put_away
        done
    done
    remove_old
    for tool in idle "${tools[@]}"; do
        case $tool in
        new) show "$2" 'new files only' new ;;
        moved) show "$2" '--detect-renamed=moved' moved ;;
        digests) show "$2" --detect-renamed digests ;;
        plain) show "$2" 'without the option' plain ;;
        rsync) show "$2" 'rsync --fuzzy --fuzzy --delete-after' rsync ;;
        rclone) show "$2" 'rclone --track-renames' rclone ;;
        *) show "$2" 'no change' idle ;;
        esac
    done
}

measure_all() { # routes
    local dataset route
    for dataset in "${datasets[@]}"; do
        renamed=$RENAMED
        [ "$dataset" != large ] || renamed=1
        build_renamed "$dataset"
        printf '\n%s; load %s\n\n| route | run | ms | processor ms | by new | by rsync | bytes | a file |\n|---|---|--:|--:|--:|--:|--:|--:|\n' \
            "$dataset" "$(cut -d ' ' -f 1 /proc/loadavg)"
        for route in "$@"; do
            measure_route "$dataset" "$route"
        done
    done
}

if [ -n "$inside" ]; then
    # The outer process cleans up.
    scratch=()
    far_host=10.77.0.1 far_port=$4
    export SPARSYNC_CONFIG_DIR=$ssh_dir/client
    reaches_sshd || die "cannot log in to sshd over the link: $(cat "$ssh_dir/trouble")"
    # This also starts the server. sshd and the server end when linkem-run removes their namespace.
    "$SPARSYNC" enroll far -e "ssh -F $ssh_dir/fresh" --rsync-path="$SPARSYNC" >"$work/enrolled" 2>&1 ||
        die "cannot enroll far: $(cat "$work/enrolled")"
    measure_all "${routes[@]}"
    exit
fi

programs
[ -z "$RCLONE" ] || need "$RCLONE" rclone
make_work
near=() emulated=()
for route in "${routes[@]}"; do
    case $route in
    wan-*) emulated+=("$route") ;;
    *) near+=("$route") ;;
    esac
done
printf '%s; %s; %s; %s runs, files of %s bytes\n' "$(versions)" "$(${RCLONE:-true} version | head -n 1)" "$(surroundings)" "$RUNS" \
    "$FILE_BYTES"
case " ${near[*]-} " in *push* | *pull*) raise_sshd ;; esac
case " ${near[*]-} " in *quic*) raise_server ;; esac
if [ ${#near[@]} != 0 ]; then
    far_host=127.0.0.1 far_port=$([ -z "${ssh_dir-}" ] || sed -n 's/^Port //p' "$ssh_dir/sshd_config")
    measure_all "${near[@]}"
fi
if [ ${#emulated[@]} != 0 ]; then
    stop_started
    find_linkem
    # The namespaces have no other servers, so any port is free. linkem sets the address.
    port=$(free_port)
    write_ssh 10.77.0.1 "$port"
    ROUTES=${emulated[*]} DATASETS=${datasets[*]} bash "$linkem_folder/linkem-run" --preset wan \
        --server "exec $sshd -D -e -f $ssh_dir/sshd_config" --wait "tcp:$port" -- \
        "$PWD/scripts/benchmarks/$me" --inside "$work" "$ssh_dir" "$port"
fi

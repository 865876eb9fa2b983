#!/bin/bash
# Measures copies over emulated links: sparsync over its server, rsync over ssh.
# The programs take turns; each rsync has a new ssh connection.
#
#   LINKEM=../linkem scripts/bench links
#   LINKEM=../linkem LINKS=wifi WAYS=push TRANSPORTS="auto quic tls" RUNS=5 scripts/bench links
#
# Each link is a preset of linkem, which joins two network namespaces, so this needs root and Linux. LINKEM is the
# directory of linkem (linkem-run and its source, which is built if necessary). The remote side has a private sshd and a
# server that the local side has enrolled. The data set `mission` is copied, copied again, and copied again with 100
# files changed; bulk is one file of random bytes.
#
#   LINKS       wan wifi lte; `linkem presets` lists others
#   WAYS        push pull
#   TRANSPORTS  quic; also auto and tls
#   RUNS        runs of each (3); the order changes from run to run
#   BULK_MIB    size of the bulk file (100; 24 if the link has less than 50 Mbit/s both ways)
#   ARGS, SPARSYNC, RSYNC, BENCH_DIR   as in scripts/bench ssh
#
# "% of the rate" is the size of the files, divided by the time and the rate of the link. A QUIC packet of 1,500 bytes
# holds at most 1,436 bytes of data, so the maximum is 95.7 %; a TCP packet holds up to 1,448. Bytes are IP bytes in
# both directions.

# Subshells set `work` on purpose: a copy has its own directory.
# shellcheck disable=SC2030,SC2031
inside=
if [ "${1-}" = --inside ]; then
    # The local side: this script starts itself in the client's namespace, see below.
    inside=1 work=$2 ssh_dir=$3 link=$4
fi
RUNS=${RUNS:-3}
# shellcheck source=scripts/benchmarks/common.sh
. "$(dirname "$0")/common.sh"
read -ra links <<<"${LINKS:-wan wifi lte}"
read -ra ways <<<"${WAYS:-push pull}"
read -ra transports <<<"${TRANSPORTS:-quic}"

# Prints the rate of a preset in Mbit/s.
rate_of() { # link, way
    # A preset has a line with its name, then a line for each direction.
    "$LINKEM" presets | awk -v link="$1" -v way="$([ "$2" = push ] && echo c2s || echo s2c)" '
        /^[^ ]/ { here = $1 == link }
        here && $1 == way && match($2, /rate=[0-9.]+[a-z]/) {
            n = substr($2, RSTART + 5, RLENGTH - 6)
            print n * (substr($2, RSTART + RLENGTH - 1, 1) == "g" ? 1000 : 1)
        }'
}

if [ -z "$inside" ]; then
    programs
    make_work
    find_linkem
    # The namespaces have no other servers, so any port is free. linkem sets the address.
    port=$(free_port)
    write_ssh 10.77.0.1 "$port"
    mission=$work/mission
    mkdir "$mission"
    (work=$mission && build mission)
    printf '%s; %s; %s, %s runs\n\n' "$(versions)" "$(surroundings)" "${ARGS[*]}" "$RUNS"
    printf '| link | way | phase | program | ms | by rsync | %% of the rate | bytes | load |\n|---|---|---|---|--:|--:|--:|--:|--:|\n'
    for link in "${links[@]}"; do
        bash "$linkem_folder/linkem-run" --preset "$link" --server "exec $sshd -D -e -f $ssh_dir/sshd_config" --wait "tcp:$port" -- \
            "$PWD/scripts/benchmarks/$me" --inside "$work" "$ssh_dir" "$link"
    done
    exit
fi

# The outer process cleans up.
scratch=()
export SPARSYNC_CONFIG_DIR=$ssh_dir/client
reaches_sshd || die "cannot log in to sshd over the link: $(cat "$ssh_dir/trouble")"
# This also starts the server. sshd and the server end when linkem-run removes their namespace.
"$SPARSYNC" enroll far -e "ssh -F $ssh_dir/fresh" --rsync-path="$SPARSYNC" >"$work/enrolled" 2>&1 ||
    die "cannot enroll far: $(cat "$work/enrolled")"

carried() {
    "$LINKEM" ctl "$LINKEM_CTL" stats | grep -o '"bytes_in":[0-9]*' | awk -F: '{ n += $2 } END { printf "%d\n", n }'
}

# The time limit of a copy in seconds. On links with high loss some copies hung.
COPY_MAX=300
in_time() {
    timeout "$COPY_MAX" "$@" || die "$link: failed or timed out after $COPY_MAX s: $*"
}

# Measures one copy in a directory with src and dst.
copy() { # key, tool, way, folder
    local before after options from=$4/src/ to=far:$4/dst/
    [ "$3" = push ] || from=far:$4/src/ to=$4/dst/
    options=(-e "ssh -F $ssh_dir/fresh")
    before=$(carried)
    case $2 in
    rsync) clock "$1.rsync" in_time "$RSYNC" "${ARGS[@]}" "${options[@]}" --rsync-path="$RSYNC" "$from" "$to" ;;
    *) clock "$1.$2" in_time "$SPARSYNC" "${ARGS[@]}" "${options[@]}" --rsync-path="$SPARSYNC" --transport="$2" "$from" "$to" ;;
    esac
    after=$(carried)
    note "$1.$2.bytes" $((after - before))
}

check_copy() { # tool, folder
    local work=$2
    compare "$1"
    rm -rf "$work/dst"
}

for way in "${ways[@]}"; do
    rate=$(rate_of "$link" "$way")
    [ -n "$rate" ] || die "linkem has no preset $link with a rate"
    slow=$(calculate 'a < 50 && b < 50' 0 "$(rate_of "$link" push)" "$(rate_of "$link" pull)")
    bulk_mib=${BULK_MIB:-$([ "$slow" = 1 ] && echo 24 || echo 100)}
    rm -rf "$work/bulk"
    mkdir -p "$work/bulk/src"
    head -c $((bulk_mib << 20)) /dev/urandom >"$work/bulk/src/bulk.bin"
    tools=("${transports[@]}" rsync)
    for ((run = 0; run < RUNS; run++)); do
        for ((at = 0; at < ${#tools[@]}; at++)); do
            tool=${tools[(at + run) % ${#tools[@]}]}
            key=$link.$way
            copy "$key.first" "$tool" "$way" "$work/mission"
            copy "$key.none" "$tool" "$way" "$work/mission"
            (work=$work/mission && change)
            copy "$key.changed" "$tool" "$way" "$work/mission"
            check_copy "$tool" "$work/mission"
            copy "$key.bulk" "$tool" "$way" "$work/bulk"
            check_copy "$tool" "$work/bulk"
        done
    done
    for phase in first none changed bulk; do
        bytes=
        case $phase in first) bytes=$work/mission ;; bulk) bytes=$work/bulk ;; esac
        [ -z "$bytes" ] || bytes=$(find "$bytes/src" -type f -printf '%s\n' | awk '{ n += $1 } END { print n }')
        for tool in "${tools[@]}"; do
            took=$(median "$link.$way.$phase.$tool")
            printf '| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n' "$link" "$way" "$phase" "$tool" "$took" \
                "$(ratio "$took" "$(median "$link.$way.$phase.rsync")")" \
                "$([ -z "$bytes" ] || calculate '100*a*8/(b*1000)/c' 1 "$bytes" "$rate" "$took")" \
                "$(median "$link.$way.$phase.$tool.bytes" 1 0)" "$(cut -d ' ' -f 1 /proc/loadavg)"
        done
    done
done

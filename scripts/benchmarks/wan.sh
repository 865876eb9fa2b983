#!/bin/bash
# Measures copies over ssh on a slow link: first copy and no change.
# sparsync and rsync copy the data set `mission` in turn.
#
#   LINKEM=../linkem scripts/bench wan
#   LINKEM=../linkem PULL=only UP_MBIT=250 RUNS=5 scripts/bench wan
#
# linkem emulates the link between two network namespaces, so this needs root and Linux. LINKEM is the directory of
# linkem (linkem-run and its source, which is built if necessary). The remote side has a private sshd.
#
#   RUNS        runs of each tool and phase (3); the order changes from run to run
#   RTT_MS      round-trip time of the link (38); UP_MBIT (40), DOWN_MBIT (250): its rates; pushes go up
#   PULL        only: no pushes; 0: no pulls; both by default
#   MASTER      1: only through a ControlMaster; 0: only new connections; both by default
#   ARGS, SPARSYNC, RSYNC, BENCH_DIR   as in scripts/bench ssh
#
# "extra RTTs" is how much longer a run without changes took than `ssh far true`, divided by RTT_MS; it includes the
# work of the programs. "of the rate" is the size of the files divided by the time and the rate of the link; "without
# ssh" is the same after the time of `ssh far true` is subtracted.
inside=
if [ "${1-}" = --inside ]; then
    # The local side: this script starts itself in the client's namespace, see below.
    inside=1 work=$2 ssh_dir=$3
fi
RUNS=${RUNS:-3}
# shellcheck source=scripts/benchmarks/common.sh
. "$(dirname "$0")/common.sh"

export RTT_MS=${RTT_MS:-38} UP_MBIT=${UP_MBIT:-40} DOWN_MBIT=${DOWN_MBIT:-250}
case ${PULL-} in
only) ways=(pull) ;;
0) ways=(push) ;;
*) ways=(push pull) ;;
esac
case ${MASTER-} in
1) connections=(master) ;;
0) connections=(fresh) ;;
*) connections=(fresh master) ;;
esac

if [ -z "$inside" ]; then
    programs
    make_work
    find_linkem
    # The namespaces have no other servers, so any port is free. linkem sets the address.
    port=$(free_port)
    write_ssh 10.77.0.1 "$port"
    half=$(calculate a/2 3 "$RTT_MS")
    build mission
    bash "$linkem_folder/linkem-run" --preset wan \
        --c2s "delay=${half}ms,rate=${UP_MBIT}mbit" --s2c "delay=${half}ms,rate=${DOWN_MBIT}mbit" \
        --server "exec $sshd -D -e -f $ssh_dir/sshd_config" --wait "tcp:$port" -- \
        "$PWD/scripts/benchmarks/$me" --inside "$work" "$ssh_dir"
    exit
fi

reaches_sshd || die "cannot log in to sshd over the link: $(cat "$ssh_dir/trouble")"
case " ${connections[*]} " in *' master '*) raise_master ;; esac
bytes=$(find "$work/src" -type f -printf '%s\n' | awk '{ n += $1 } END { print n }')

printf '%s; %s; %s, %s runs; %s ms, %s Mbit/s up, %s down\n\n' "$(versions)" "$(surroundings)" "${ARGS[*]}" "$RUNS" \
    "$RTT_MS" "$UP_MBIT" "$DOWN_MBIT"
printf '| way | program | ssh true ms | no change ms | by rsync | extra RTTs | first ms | by rsync | of the rate | without ssh |\n'
printf '|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n'
for way in "${ways[@]}"; do
    rate=$UP_MBIT
    [ "$way" = push ] || rate=$DOWN_MBIT
    for connection in "${connections[@]}"; do
        key=$way.$connection
        for ((run = 0; run < RUNS; run++)); do
            tools=(sparsync rsync floor)
            for tool in "${tools[@]:run % 3}" "${tools[@]:0:run % 3}"; do
                if [ "$tool" = floor ]; then
                    clock "$key.floor" floor_of_ssh "$connection"
                    continue
                fi
                clock "$key.first.$tool" copy_by_ssh "$tool" "$way" "$connection"
                clock "$key.none.$tool" copy_by_ssh "$tool" "$way" "$connection"
                compare "$tool"
                put_away
            done
        done
        floor=$(median "$key.floor")
        for tool in sparsync rsync; do
            none=$(median "$key.none.$tool") first=$(median "$key.first.$tool")
            printf '| %s, %s | %s | %s | %s | %s | %s | %s | %s | %s %% | %s %% |\n' "$way" "$connection" $tool "$floor" \
                "$none" "$(ratio "$none" "$(median "$key.none.rsync")")" \
                "$(calculate '(a-b)/c' 1 "$none" "$floor" "$RTT_MS")" \
                "$first" "$(ratio "$first" "$(median "$key.first.rsync")")" \
                "$(calculate '100*a*8/(b*1000)/c' 0 "$bytes" "$rate" "$first")" \
                "$(calculate '100*a*8/(b*1000)/(c-d)' 0 "$bytes" "$rate" "$first" "$floor")"
        done
        remove_old
    done
done

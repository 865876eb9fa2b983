#!/bin/bash
# Measures copies by ssh over a slow link: sparsync and rsync in turn, the data set `mission`, first copy and no change.
#
#   LINKEM=../linkem scripts/bench_wan.sh
#   LINKEM=../linkem PULL=only UP_MBIT=250 RUNS=5 scripts/bench_wan.sh
#
# The link is linkem's, which joins two network namespaces, so this needs root and Linux. LINKEM is linkem's folder
# (linkem-run and its source, which is built if there is no program yet). An sshd of our own is the far end.
#
#   RUNS        runs of each tool and phase (3); the order changes from run to run
#   RTT_MS      round trip of the link (38); UP_MBIT (40), DOWN_MBIT (250): its rates, up being where pushes go
#   PULL        only: no pushes; 0: no pulls; both unless said
#   MASTER      1: only through a ControlMaster; 0: only by fresh connections; both unless said
#   ARGS, SPARSYNC, RSYNC, BENCH_DIR   as in bench_ssh.sh
#
# Round trips are how much longer an idle run took than `ssh far true`, by RTT_MS; what the programs do themselves is
# in there. The share of the rate is the bytes of the files by the rate, by the time: first of the whole run, then without
# what `ssh far true` takes.
inside=
if [ "${1-}" = --inside ]; then
    # The near end: below, this script starts itself in the client's namespace.
    inside=1 work=$2 ssh_dir=$3
fi
RUNS=${RUNS:-3}
# shellcheck source=scripts/bench_common.sh
. "$(dirname "$0")/bench_common.sh"

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
    # The namespaces have no other servers: any port is free. The address is linkem's.
    port=$(free_port)
    write_ssh 10.77.0.1 "$port"
    half=$(calculate a/2 3 "$RTT_MS")
    build mission
    bash "$linkem_folder/linkem-run" --preset wan \
        --c2s "delay=${half}ms,rate=${UP_MBIT}mbit" --s2c "delay=${half}ms,rate=${DOWN_MBIT}mbit" \
        --server "exec $sshd -D -e -f $ssh_dir/sshd_config" --wait "tcp:$port" -- \
        "$PWD/scripts/$me" --inside "$work" "$ssh_dir"
    exit
fi

reaches_sshd || die "sshd does not let us in over the link: $(cat "$ssh_dir/trouble")"
case " ${connections[*]} " in *' master '*) raise_master ;; esac
bytes=$(find "$work/src" -type f -printf '%s\n' | awk '{ n += $1 } END { print n }')

printf '%s; %s; %s, %s runs; %s ms, %s Mbit/s up, %s down\n\n' "$(versions)" "$(surroundings)" "${ARGS[*]}" "$RUNS" \
    "$RTT_MS" "$UP_MBIT" "$DOWN_MBIT"
printf '| way | program | ssh true ms | no change ms | by rsync | round trips more | first ms | by rsync | of the rate | without ssh |\n'
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

#!/bin/bash
# Measures the cost of automatic compression on a link that is too fast for it.
# Pushes with and without --no-compress take turns: incompressible bytes and text, over ssh (a ControlMaster), QUIC and
# TLS.
#
#   scripts/bench compress
#   BENCH_DIR=/dev/shm RUNS=9 scripts/bench compress   in memory
#
# Both ends are this machine; a server is enrolled through a private sshd. "CPU ms" is the CPU time of the processes of
# both ends without ssh. On a busy machine it is more reliable than the elapsed time.
#
#   RUNS        runs of each (5)
#   MIB         length of the file (400)
#   DATA        random text
#   TRANSPORTS  ssh quic tls
#   SPARSYNC    the program (default: built from this repository)
# shellcheck source=scripts/benchmarks/common.sh
RSYNC=
. "$(dirname "$0")/common.sh"
MIB=${MIB:-400}

programs
need /usr/bin/time time
make_work
raise_sshd
raise_master
raise_server
server=${started[-1]}

# Creates the file to send. Text is that of C headers, Perl modules and copyright files, repeated.
make_source() { # kind
    rm -rf "$work/src"
    mkdir "$work/src"
    case $1 in
    random) head -c "${MIB}M" /dev/urandom >"$work/src/f" ;;
    text)
        find /usr/include /usr/share/perl /usr/share/doc -type f \( -name '*.h' -o -name '*.p[lm]' -o -name copyright \) \
            -exec cat {} + 2>/dev/null | perl -e '
                my ($left, $path) = @ARGV;
                read(STDIN, my $text, 32 << 20) or die "no text in /usr/include, /usr/share/perl and /usr/share/doc\n";
                1 while <STDIN>;
                open(my $f, ">", $path) or die "$path: $!";
                for (; $left > 0; $left -= length $text) { print $f substr($text, 0, $left) }
                close $f or die "$path: $!";' "$((MIB << 20))" "$work/src/f"
        ;;
    *) die "unknown data $1" ;;
    esac
}

ticks() { awk '{ print $14 + $15 + $16 + $17 }' "/proc/$server/stat"; }

# Copies, and notes the CPU time of both ends in milliseconds.
copy() { # transport, key, option or nothing
    local before words=(-a --transport="$1")
    [ "$1" != ssh ] || words=(-a -e "ssh -F $ssh_dir/master" --rsync-path="/usr/bin/time -o $work/far -f '%U %S' $SPARSYNC")
    rm -rf "$work/dst"
    before=$(ticks)
    clock "$2" /usr/bin/time -o "$work/near" -f '%U %S' "$SPARSYNC" "${words[@]}" ${3:+"$3"} "$work/src/" far:"$work/dst/"
    # The session ends after its client.
    sleep 0.2
    [ "$1" = ssh ] || echo "$((($(ticks) - before) * 10))" >"$work/far"
    note "$2.cpu" "$(awk -v ms="$1" 'FNR == 1 && NR != FNR && ms != "ssh" { sum += $1; next }
        { sum += ($1 + $2) * 1000 } END { printf "%d", sum }' "$work/near" "$work/far")"
    cmp "$work/src/f" "$work/dst/f"
}

printf '%s; %s; %s MiB, %s runs\n\n' "$("$SPARSYNC" --version | sed -n 's/.*\(sparsync [0-9.]*\).*/\1/p' | head -n 1)" "$(surroundings)" "$MIB" "$RUNS"
printf '| data | by | auto ms | --no-compress ms | ratio | auto CPU ms | --no-compress CPU ms | ratio |\n'
printf '|---|---|--:|--:|--:|--:|--:|--:|\n'
for data in ${DATA:-random text}; do
    make_source "$data"
    for transport in ${TRANSPORTS:-ssh quic tls}; do
        key=$data.$transport
        for ((run = 0; run < RUNS; run++)); do
            for turn in $((run % 2)) $(((run + 1) % 2)); do
                if [ "$turn" = 0 ]; then
                    copy "$transport" "$key.auto"
                else
                    copy "$transport" "$key.none" --no-compress
                fi
            done
        done
        auto=$(median "$key.auto") none=$(median "$key.none")
        auto_cpu=$(median "$key.auto.cpu" 1 0) none_cpu=$(median "$key.none.cpu" 1 0)
        printf '| %s | %s | %s | %s | %s | %s | %s | %s |\n' "$data" "$transport" "$auto" "$none" "$(ratio "$auto" "$none")" \
            "$auto_cpu" "$none_cpu" "$(ratio "$auto_cpu" "$none_cpu")"
    done
done

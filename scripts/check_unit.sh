#!/bin/bash
# Boots systemd in a container and checks the unit that `sparsync server install` writes for root: readiness, copies
# over QUIC and TLS under its limits, stopping a server with a session, restarting a killed server, and a server that
# was started by hand. Leaves nothing behind on this machine.
#
#   scripts/check_unit.sh [SPARSYNC]      the program to check; default target/release/sparsync
#
# Needs root, rsync, and the Debian packages systemd-container, acl and attr. Takes about 15 s.
set -eu
program=$(realpath "${1:-"$(dirname "$0")/../target/release/sparsync"}")
for need in systemd-nspawn nsenter setfacl setfattr rsync; do
    command -v $need >/dev/null || { echo "check_unit: $need is not installed"; exit 1; }
done
top=$(mktemp -d)
root=$top/root
nspawn=
# shellcheck disable=SC2329 # called by trap
leave() {
    [ -z "$nspawn" ] || { kill "$nspawn"; wait "$nspawn" || true; } 2>/dev/null
    umount "$root" && rm -rf "$top"
}
mkdir "$top/up" "$top/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$top/up,workdir=$top/work" "$root"
trap leave EXIT

install -m 755 "$program" "$root/usr/local/bin/sparsync"
# The container must not start services of this machine.
rm -rf "$root"/etc/systemd/system/*.wants "$root"/etc/sparsync "$root"/var/lib/sparsync
rm -f "$root/etc/machine-id" && : >"$root/etc/machine-id"
SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn --quiet -D "$root" --boot --register=no --keep-unit --private-network \
    --link-journal=no --resolv-conf=off --console=pipe --machine=box </dev/null >"$top/boot.log" 2>&1 &
nspawn=$!

init=
for _ in $(seq 100); do
    init=$(pgrep -P "$nspawn" -x systemd | head -1) || true
    [ -z "$init" ] || ! nsenter -t "$init" -a systemctl is-active --quiet multi-user.target 2>/dev/null || break
    sleep 0.2
done
[ -n "$init" ] || { cat "$top/boot.log"; exit 1; }

# The rest runs in the container. The remote host is the container itself; rsh only starts a local shell.
nsenter -t "$init" -a env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LC_ALL=C bash -eu <<'INSIDE'
cd /root
say() { printf '== %s\n' "$*"; }
fails() { printf 'check_unit: FAILED: %s\n' "$*"; journalctl -u sparsync --no-pager -n 20; exit 1; }
is() { [ "$2" = "$3" ] || fails "$1: expected \`$3\`, got \`$2\`"; }
main() { systemctl show sparsync -p MainPID --value; }
becomes() { for _ in $(seq 100); do [ "$(systemctl is-active sparsync)" != "$1" ] || return 0; sleep 0.1; done; fails "the unit did not become $1"; }

cat >rsh <<'RSH'
#!/bin/sh
shift
unset SPARSYNC_CONFIG_DIR
cd && exec sh -c "$*"
RSH
chmod +x rsh
client() { SPARSYNC_CONFIG_DIR=/root/client sparsync "$@"; }

say 'an enabled server admits clients'
sparsync server install >/dev/null
systemctl daemon-reload
systemctl enable --now --quiet sparsync
sparsync server status | grep -q 'started by systemd' || fails 'status'
client enroll -e /root/rsh 127.0.0.1 | grep reached

say "copies keep all attributes, below root's home"
mkdir -p src/d && echo text >src/d/f && ln src/d/f src/hard && ln -s /nowhere src/link
mknod src/null c 1 3 && mkfifo src/fifo && truncate -s 1M src/hole && cp /bin/true src/suid && chown 7:8 src/suid
chmod 6755 src/suid && setfacl -m u:9:r src/d/f && setfattr -n user.a -v b src/d
setfattr -n trusted.a -v b src/d 2>/dev/null || say 'the file system does not support trusted attributes'
for way in quic tls; do
    client -aHAXS --transport=$way src/ "127.0.0.1:by-$way/"
    client -aHAXS --transport=$way "127.0.0.1:by-$way/" back/
    for copy in by-$way back; do is "$way" "$(rsync -naiHAX --delete src/ /root/$copy/)" ''; done
done

say 'stop waits for a session'
head -c 8000000 /dev/urandom >big
client --bwlimit=4000 --transport=quic big 127.0.0.1:stopped &
until sparsync server status | grep -q 'over QUIC'; do sleep 0.1; done
systemctl stop sparsync
wait $! || fails 'the copy'
cmp big stopped
is state "$(systemctl show sparsync -p Result --value)" success

say 'a killed server restarts, and the copy continues'
systemctl start sparsync
client --bwlimit=4000 --transport=quic big 127.0.0.1:killed &
until sparsync server status | grep -q 'over QUIC'; do sleep 0.1; done
before=$(main)
kill -9 "$before"
wait $! || fails 'the copy'
cmp big killed
[ "$(main)" != "$before" ] || fails 'the process is still the same'

say 'a server stopped by its own command stays stopped'
sparsync server stop
becomes inactive

say 'a server that was started by hand is reported, and then replaced'
sparsync server start >/dev/null
! systemctl start sparsync 2>/dev/null || fails 'it started beside another server'
journalctl -u sparsync --no-pager --since=-1min -o cat | grep 'sparsync server stop' || fails 'the journal does not contain the reason'
sparsync server stop
becomes active
say 'all checks passed'
INSIDE

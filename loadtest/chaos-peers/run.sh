#!/bin/sh
# Starts a peer proxy in the foreground before two engines, for `loadtest chaos`:
#
#     loadtest chaos --proxy-cmd 'loadtest/chaos-peers/run.sh nginx {listen} {upstream1} {upstream2}'
#
# Needs nginx or haproxy. What it writes goes to a new folder under ${TMPDIR:-/tmp}, removed at the end.
set -eu

usage() {
    echo "usage: run.sh nginx|haproxy IP:PORT URL URL" >&2
    exit 2
}

[ $# -eq 4 ] || usage
peer=$1
here=$(dirname "$0")
dir=$(mktemp -d "${TMPDIR:-/tmp}/chaos-peer.XXXXXX")
# The worker of nginx may run as another user.
chmod 755 "$dir"
PATH=$PATH:/usr/sbin:/usr/local/sbin

fill() {
    sed -e "s|\${listen}|$2|g" -e "s|\${upstream1}|${3#http://}|g" -e "s|\${upstream2}|${4#http://}|g" \
        -e "s|\${dir}|$dir|g" "$1" >"$dir/conf"
}

case $peer in
nginx)
    fill "$here/nginx.conf.template" "$2" "$3" "$4"
    nginx -c "$dir/conf" -e "$dir/error.log" &
    ;;
haproxy)
    fill "$here/haproxy.cfg.template" "$2" "$3" "$4"
    haproxy -db -f "$dir/conf" &
    ;;
*)
    rmdir "$dir"
    usage
    ;;
esac
proxy=$!
trap 'kill "$proxy" 2>/dev/null || true' TERM INT
# The first wait ends with the signal or the proxy, the second with the proxy.
status=0
wait "$proxy" || status=$?
wait "$proxy" 2>/dev/null || true
rm -rf "$dir"
exit "$status"

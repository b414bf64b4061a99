#!/bin/sh
# Starts a proxy in the foreground before two engines, for `loadtest chaos` (see chaos-table.py, which does it for all):
#
#     loadtest chaos --proxy-cmd 'loadtest/chaos-peers/run.sh nginx {listen} {upstream1} {upstream2}'
#
# Needs the proxy on PATH, or its path in NGINX, HAPROXY, KINFERENCE, SGLANG_ROUTER or VLLM_ROUTER. What it writes goes to a
# new folder under ${TMPDIR:-/tmp}, removed at the end.
set -eu

usage() {
    echo "usage: run.sh nginx|haproxy|kinference-io_uring|kinference-epoll|sglang-router:POLICY|vllm-router:POLICY IP:PORT URL URL" >&2
    exit 2
}

[ $# -eq 4 ] || usage
peer=$1 listen=$2 upstream1=$3 upstream2=$4
here=$(dirname "$0")
PATH=$PATH:/usr/sbin:/usr/local/sbin

# Set up as well as their own means allow: retries enough to reach the other engine, breakers and health checks as quick as nginx's
# and HAProxy's here, loads that count from the third request on, the same limit for bodies. One thread, as the others.
router() {
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    export TOKIO_WORKER_THREADS=1 RAYON_NUM_THREADS=1
    exec "$@" --host "${listen%:*}" --port "${listen##*:}" --policy "${peer#*:}" --prometheus-port "$port" --log-level error \
        --worker-startup-check-interval 1 --max-payload-size 33554432 \
        --retry-max-retries 5 --retry-initial-backoff-ms 10 --retry-max-backoff-ms 100 \
        --cb-failure-threshold 2 --cb-success-threshold 1 --cb-timeout-duration-secs 2 \
        --health-check-interval-secs 1 --health-check-timeout-secs 1 --health-failure-threshold 2 --health-success-threshold 1 \
        --balance-abs-threshold 2 --balance-rel-threshold 1.1 --worker-urls "$upstream1" "$upstream2"
}

case $peer in
kinference-*)
    exec "${KINFERENCE:-kinference}" serve --listen "$listen" --driver "${peer#kinference-}" --threads 1 --admin 127.0.0.1:0 \
        --access-log "" "$upstream1" "$upstream2"
    ;;
sglang-router:?*) router "${SGLANG_ROUTER:-sglang-router}" launch ;;
vllm-router:?*) router "${VLLM_ROUTER:-vllm-router}" ;;
nginx | haproxy) ;;
*) usage ;;
esac

dir=$(mktemp -d "${TMPDIR:-/tmp}/chaos-peer.XXXXXX")
# The worker of nginx may run as another user.
chmod 755 "$dir"

fill() {
    sed -e "s|\${listen}|$listen|g" -e "s|\${upstream1}|${upstream1#http://}|g" -e "s|\${upstream2}|${upstream2#http://}|g" \
        -e "s|\${dir}|$dir|g" "$1" >"$dir/conf"
}

case $peer in
nginx)
    fill "$here/nginx.conf.template"
    "${NGINX:-nginx}" -c "$dir/conf" -e "$dir/error.log" &
    ;;
haproxy)
    fill "$here/haproxy.cfg.template"
    "${HAPROXY:-haproxy}" -db -f "$dir/conf" &
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

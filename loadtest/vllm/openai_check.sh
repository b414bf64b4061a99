#!/usr/bin/env bash
# usage: openai_check.sh KINFERENCE_BINARY
# Runs openai_check.py with the unmodified `openai` package against `kinference demo`: the gateway in
# front of simulated engines. The package goes into a small environment of its own
# (OPENAI_VENV, default .openai beside this file), made on the first run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=${1:?usage: openai_check.sh KINFERENCE_BINARY}
venv=${OPENAI_VENV:-$here/.openai}
if ! "$venv/bin/python" -c 'import openai' 2>/dev/null; then
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$(grep '^openai==' "$here/requirements.txt")"
fi
read -r port admin_port < <(python3 -c '
import socket
s = [socket.socket(), socket.socket()]
for x in s: x.bind(("127.0.0.1", 0))
print(*(x.getsockname()[1] for x in s))')
log=$(mktemp)
"$binary" demo --listen "127.0.0.1:$port" --admin "127.0.0.1:$admin_port" >"$log" 2>&1 &
demo=$!
trap 'kill "$demo" 2>/dev/null || true; wait "$demo" 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 100); do
  python3 -c "import sys, urllib.request as u; u.urlopen('http://127.0.0.1:$admin_port/readyz', timeout=1)" 2>/dev/null && break
  kill -0 "$demo" 2>/dev/null || { cat "$log" >&2; echo "the demo ended" >&2; exit 1; }
  sleep 0.1
done
"$venv/bin/python" "$here/openai_check.py" --base-url "http://127.0.0.1:$port/v1" --admin "127.0.0.1:$admin_port" ||
  { cat "$log" >&2; exit 1; }

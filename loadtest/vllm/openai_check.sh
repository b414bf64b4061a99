#!/usr/bin/env bash
# usage: openai_check.sh KINFERENCE_BINARY [LOADTEST_BINARY]
# Runs openai_check.py with the unmodified `openai` package against `kinference demo`: the gateway in
# front of simulated engines; with LOADTEST_BINARY also against a gateway in front of a hosted provider: a
# simulated engine that speaks HTTPS with an authority of its own, under another model name. The package goes into
# a small environment of its own (OPENAI_VENV, default .openai beside this file), made on the first run.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=${1:?usage: openai_check.sh KINFERENCE_BINARY [LOADTEST_BINARY]}
loadtest=${2:-}
venv=${OPENAI_VENV:-$here/.openai}
if ! "$venv/bin/python" -c 'import openai' 2>/dev/null; then
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$(grep '^openai==' "$here/requirements.txt")"
fi
folder=$(mktemp -d)
log=$folder/log
started=()
end() {
  for process in "${started[@]}"; do kill "$process" 2>/dev/null || true; wait "$process" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap end EXIT

free_ports() {
  python3 -c '
import socket, sys
s = [socket.socket() for _ in range(int(sys.argv[1]))]
for x in s: x.bind(("127.0.0.1", 0))
print(*(x.getsockname()[1] for x in s))' "$1"
}

# ready PROCESS ADMIN_PORT
ready() {
  for _ in $(seq 100); do
    python3 -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$2/readyz', timeout=1)" 2>/dev/null && return
    kill -0 "$1" 2>/dev/null || { cat "$log" >&2; echo "the gateway ended" >&2; exit 1; }
    sleep 0.1
  done
}

# check PORT FURTHER-ARGUMENTS
check() {
  "$venv/bin/python" "$here/openai_check.py" --base-url "http://127.0.0.1:$1/v1" "${@:2}" || { cat "$log" >&2; exit 1; }
}

read -r port admin_port < <(free_ports 2)
"$binary" demo --listen "127.0.0.1:$port" --admin "127.0.0.1:$admin_port" >"$log" 2>&1 &
started+=($!)
ready $! "$admin_port"
check "$port" --admin "127.0.0.1:$admin_port"
[ -n "$loadtest" ] || exit 0

read -r port admin_port engine_port < <(free_ports 3)
cd "$folder"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=authority \
  -addext keyUsage=critical,keyCertSign -keyout ca.key -out ca.crt 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost -keyout tls.key -out tls.csr 2>/dev/null
printf 'subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n' >leaf.ext
openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 1 -extfile leaf.ext -out tls.crt 2>/dev/null
"$loadtest" engine --listen "127.0.0.1:$engine_port" --model hosted-name --tls-cert tls.crt --tls-key tls.key >/dev/null &
started+=($!)
cat >resources.yaml <<YAML
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceProvider
metadata: { name: hosted }
spec:
  type: OpenAI
  baseURL: https://localhost:$engine_port/v1
  tls: { caFile: ca.crt }
  auth: { bearer: { fromEnv: HOSTED_TOKEN } }
  models: [{ name: asked-name, upstreamName: hosted-name }]
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: { name: out }
spec: { rules: [{ name: out, route: { select: [{ type: External }] } }] }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePool
metadata: { name: pool }
spec: { destinations: [{ kind: InferenceProvider, name: hosted }], policyRef: [{ name: out }] }
YAML
cat >kinference.yaml <<YAML
listeners: [{ address: 127.0.0.1:$port }]
admin: { address: 127.0.0.1:$admin_port }
resources: [./resources.yaml]
accessLog: { path: "" }
YAML
HOSTED_TOKEN=secret "$binary" serve --config kinference.yaml >"$log" 2>&1 &
started+=($!)
ready $! "$admin_port"
SSL_CERT_FILE=$folder/ca.crt check "$port" --model asked-name --engine "https://localhost:$engine_port"

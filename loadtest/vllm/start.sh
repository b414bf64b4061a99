#!/usr/bin/env bash
# usage: [VENV=DIR] [MODEL=tiny|slow] [CORE=0] [KV_GB=1] [KV_EVENTS=ENDPOINT] start.sh PORT [EXTRA ARGS]
# One vLLM OpenAI server on 127.0.0.1:PORT in the foreground (TERM stops it). VENV: made by setup.sh
# (default: .vllm beside this file). Extra arguments win over the defaults below. CORE: the core of
# the compute thread. KV_EVENTS: where to publish KV events, e.g. ipc:///path (the server binds) or
# tcp://127.0.0.1:5557 (the server connects to a SUB socket that is bound there). KV_REPLAY: where they can be asked for again.
set -euo pipefail
port=$1; shift
venv=$(cd "${VENV:-$(dirname "$0")/.vllm}" && pwd)
model=${MODEL:-tiny}
events=()
if [ -n "${KV_EVENTS:-}" ]; then
  replay=${KV_REPLAY:+",\"replay_endpoint\":\"$KV_REPLAY\""}
  events=(--kv-events-config "{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"$KV_EVENTS\",\"topic\":\"kv@127.0.0.1:$port@$model\"$replay}")
fi
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export VLLM_CPU_KVCACHE_SPACE=${KV_GB:-1} VLLM_CPU_OMP_THREADS_BIND=${CORE:-0}
exec "$venv/bin/python" -m vllm.entrypoints.openai.api_server \
  --model "$venv/models/$model" --served-model-name "$model" --dtype bfloat16 \
  --host 127.0.0.1 --port "$port" --enforce-eager --enable-prefix-caching --block-size 32 \
  --max-model-len 16384 --max-num-seqs 4 "${events[@]}" "$@"

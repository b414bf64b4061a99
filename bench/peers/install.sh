#!/bin/sh
# Installs the LLM routers that are compared, from PyPI, each into an environment of its own:
#
#     bench/peers/install.sh DIR
#     bench/side-by-side.py --sglang-router DIR/sglang-router/bin/sglang-router --vllm-router DIR/vllm-router/bin/vllm-router
#
# Needs python3 with venv; wheels only, nothing is compiled. About 300 MB. Other versions: SGLANG_ROUTER=0.3.1 and so on.
set -eu

[ $# -eq 1 ] || { echo "usage: install.sh DIR" >&2; exit 2; }
mkdir -p "$1"

install() {
    python3 -m venv "$1/$2"
    "$1/$2/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "$2==$3"
    echo "$1/$2/bin/$2 $3"
}

install "$1" sglang-router "${SGLANG_ROUTER:-0.3.2}"
install "$1" vllm-router "${VLLM_ROUTER:-0.1.17}"

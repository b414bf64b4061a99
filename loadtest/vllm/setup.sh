#!/usr/bin/env bash
# usage: setup.sh [VENV]   (default: .vllm beside this file)
# Installs the CPU build of vLLM without the CUDA packages, and makes two model folders of random
# weights: VENV/models/tiny and VENV/models/slow. Needs bash, python3 (3.11) and pip; on the machine
# libnuma.so.1 (Debian: libnuma1). About 0.8 GB to download, 2.7 GB on disk. May be run again.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-$here/.vllm}
python3 -c 'import sys; assert sys.version_info[:2] == (3, 11), "requirements.txt is for Python 3.11"'
python3 -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' || { echo "install libnuma1 first" >&2; exit 1; }
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# --no-deps: the list is the whole closure; the declared torch==2.13.0+cpu is not on PyPI, and the
# plain torch would pull in several GB of CUDA libraries.
"$venv/bin/python" -m pip install --quiet --no-deps --disable-pip-version-check -r "$here/requirements.txt"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$venv/bin/python" "$here/torch_cpu_stubs.py" "$site"
"$venv/bin/python" -c 'import torch; assert not torch.cuda.is_available(); print("torch", torch.__version__)'
for m in tiny slow; do
  d="$venv/models/$m"
  mkdir -p "$d"
  cp "$here/model/generation_config.json" "$here/model/tokenizer_config.json" \
     "$here/model/chat_template.jinja" "$d/"
  cp "$here/model/config.$m.json" "$d/config.json"
  "$venv/bin/python" "$here/make_weights.py" "$d"
done
[ -s "$venv/models/tiny/tokenizer.json" ] || "$venv/bin/python" "$here/make_tokenizer.py" "$venv/models/tiny"
cp "$venv/models/tiny/tokenizer.json" "$venv/models/slow/"
echo "ready: start a server with VENV=$venv $here/start.sh 8101, or run $here/verify.py"

"""Exact mode against a real server: the same token ids, and the same count in the answers to requests that went through.

The server is given a chat template with tools and reasoning (the one that the tokenizer's own tests use) in place of the plain
one of the model, so that every kind of message comes out as text.
"""
import http.client
import json
import re
import subprocess
import time
from pathlib import Path

from chats import chats, prompts
from client import fetch
from stack import GATEWAY_START_S_MAX, MODEL, POLL_S, SERVER_START_S_MAX, free_ports, server_yaml

TEMPLATE = Path(__file__).resolve().parents[2] / "predictor/tokenizer/tests/data/chatml/chat_template.jinja"
SERVER_ARGS = ("--chat-template", TEMPLATE)
CHATS, PROMPTS, SENT = 500, 100, 20
REFUSED_MAX = 25             # requests that the server itself refuses; the generator means to make none


def compare(report, kinference, engine, model_folder, folder, seed):
    """500 chats and 100 prompts: the ids of `kinfctl tokenize` are those of the server's /tokenize."""
    bodies = [*chats(seed, CHATS), *({"prompt": text} for text in prompts(seed, PROMPTS))]
    file = folder / "requests.jsonl"
    file.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    out = subprocess.run([kinference, "ctl", "tokenize", "--tokenizer", model_folder, "--chat-template", TEMPLATE, file],
                         check=True, capture_output=True, text=True).stdout
    ours = [json.loads(line) for line in out.splitlines()]
    theirs = [asked(engine.address, body) for body in bodies]
    refused = [i for i, ids in enumerate(theirs) if ids is None]
    differ = [i for i, ids in enumerate(theirs) if ids is not None and ids != ours[i].get("tokens")]
    places = "".join(f"; number {i} at id {first_difference(ours[i].get('tokens') or [], theirs[i])}" for i in differ[:3])
    count = sum(len(ids) for ids in theirs if ids is not None)
    report.check(f"{CHATS} chats and {PROMPTS} prompts have the token ids of /tokenize", not differ and len(refused) <= REFUSED_MAX,
                 f"{len(bodies) - len(refused) - len(differ)} equal, {len(differ)} differ{places}, {len(refused)} refused by the"
                 f" server; {count} ids")
    return [body for i, body in enumerate(bodies[:CHATS]) if i not in refused and len(theirs[i]) < 4000]


def first_difference(ours, theirs):
    return next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))


def asked(address, body):
    """The server's own ids; None where it refuses the request."""
    status, answer = post(address, "/tokenize", {"model": MODEL, **body})
    return json.loads(answer)["tokens"] if status == 200 else None


def post(address, path, body):
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def through_the_gateway(report, stack, kinference, engine, model_folder, bodies):
    """Chats sent through a gateway in exact mode: the engine counts the tokens that the gateway counted before it sent them."""
    port, admin = free_ports(2)
    resources = stack.folder / "exact"
    resources.mkdir()
    host, engine_port = engine.address.rsplit(":", 1)
    (resources / "exact.yaml").write_text(f"""\
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceWorkerSet
metadata: {{ name: exact, namespace: default }}
spec:
  model: {{ name: {MODEL} }}
  tokenizer: {{ file: "{model_folder}", chatTemplateFile: "{TEMPLATE}" }}
  endpoints: [{{ address: {host}, port: {engine_port} }}]
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePool
metadata: {{ name: local, namespace: default }}
spec:
  destinations: [{{ kind: InferenceWorkerSet, name: exact }}]
""")
    server_file = stack.folder / "exact.yaml"
    server_file.write_text(server_yaml(f"127.0.0.1:{port}", f"127.0.0.1:{admin}", resources, stack.folder / "exact.jsonl"))
    process = stack.start("kinference-exact", [kinference, "serve", "--config", server_file])
    process.wait_ready(f"127.0.0.1:{admin}", "/readyz", GATEWAY_START_S_MAX)
    limit = time.monotonic() + SERVER_START_S_MAX
    while value(admin, 'kinference_tokenizer_in_force{worker_set="exact"}') != 1 and time.monotonic() < limit:
        time.sleep(POLL_S)
    # Twice: a machine that runs the model on the same cores may be late with what it has not tokenized before.
    for body in bodies[:SENT] * 2:
        post(f"127.0.0.1:{port}", "/v1/chat/completions",
             {"model": MODEL, "max_tokens": 1, **body, **({"tool_choice": "none"} if "tools" in body else {})})
    equal, different = (value(admin, f'kinference_prompts_tokenized_checked_total{{result="{r}"}}') for r in ("equal", "different"))
    late = value(admin, 'kinference_prompts_tokenized_total{outcome="late"}') or 0
    report.check("the engine counts the tokens that the gateway counted", equal >= SENT / 2 and different == 0,
                 f"of {2 * SENT} requests {equal:.0f} equal, {different:.0f} different; {late:.0f} too late to be counted")
    process.stop()


def value(admin, sample):
    """A sample of the gateway's metrics; None when it is not there."""
    page = fetch(f"127.0.0.1:{admin}", "/metrics")[1].decode()
    found = re.search("^" + re.escape(sample) + r" (\S+)", page, re.MULTILINE)
    return float(found[1]) if found else None

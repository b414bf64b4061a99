#!/usr/bin/env python3
"""What a prompt of 1 MB that is read by the classifiers costs other requests of the same data thread.

    bench/long-prompt.py [--seconds 10] [--binaries target/release] [--driver io_uring] [--prompts text messages escapes chinese]

One data thread, a policy that refuses personal data. One client asks for /v1/models over and over (the gateway answers that itself) and
notes how long each answer takes; first alone, then while another client sends one prompt of 1 MB after another, with a card number at its
end, so that each is read to the end and refused: one text, thousands of short messages, a text full of escapes, Chinese. Printed are the times of all runs and the difference of their 99th percentiles, which is
to stay within 1 ms. Clients are on the other core, and those that send long prompts run only when nobody else wants it. Exit status 1 when it does not. Needs the release binaries (cargo build --release -p lb -p loadtest) and Python 3.9. Use
an otherwise idle machine: whatever else the core does is in the numbers.
"""
import argparse
import http.client
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time

from measure import HERE, LOAD_CORE, MODEL, PROXY_CORE, Started, free_port, wait_for

EXTRA_MS_MAX = 1.0
KINDS = ["text", "messages", "escapes", "chinese"]
SENTENCE = "The committee met again and read what the others had written, and nothing was decided. "
DOCUMENTS = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceWorkerSet
metadata: {{ name: workers, namespace: default }}
spec:
  model: {{ name: {model} }}
  endpoints: [{{ address: 127.0.0.1, port: {engine} }}]
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceClassifier
metadata: {{ name: pii, namespace: default }}
spec: {{ type: PII }}
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: {{ name: personal, namespace: default }}
spec:
  rules:
    - name: refused
      matches: [{{ tags: [pii] }}]
      deny: {{ status: 403, code: personal, message: "Not here." }}
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePool
metadata: {{ name: pool, namespace: default }}
spec:
  destinations: [{{ kind: InferenceWorkerSet, name: workers }}]
  policyRef: [{{ name: personal }}]
"""
SERVER = """
listeners: [{{ address: "127.0.0.1:{port}" }}]
admin: {{ address: "127.0.0.1:0" }}
dataThreads: 1
resources: [{folder}/resources]
accessLog: {{ path: "" }}
"""


def asked(port, until):
    """Times of answers in ms, in order of size."""
    times = []
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    while time.monotonic() < until:
        begun = time.perf_counter()
        client.request("GET", "/v1/models")
        client.getresponse().read()
        times.append((time.perf_counter() - begun) * 1e3)
        time.sleep(0.001)
    return sorted(times)


def prompt(kind):
    """About 1 MB of a body, `@` where a number makes it another one each time."""
    text = SENTENCE * (1_000_000 // len(SENTENCE))
    card = "4111 1111 1111 1111"
    if kind == "messages":
        turns = [{"role": ("user", "assistant")[at % 2], "content": SENTENCE} for at in range(1_000_000 // (len(SENTENCE) + 40))]
        return {"model": MODEL, "messages": [{"role": "user", "content": "@"}, *turns, {"role": "user", "content": card}]}
    if kind == "escapes":
        text = 'He said "no".\n\t' * (1_000_000 // 19)
    if kind == "chinese":
        text = "委员会再次开会,阅读了其他人所写的内容,但没有作出任何决定。" * (1_000_000 // 93)
    return {"model": MODEL, "messages": [{"role": "user", "content": f"@ {text} {card}"}]}


def send_long(kind, port, until, statuses):
    """In a process of its own: what an interpreter does for one of its threads, it does not do for the other one that measures."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    before, after = (part.encode() for part in json.dumps(prompt(kind), ensure_ascii=False).split("@"))
    number, sent = 0, []
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while time.monotonic() < until:
        number += 1
        # Another text each time: one that was read before costs nothing.
        body = before + str(number).encode() + after
        client.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer = client.getresponse()
        answer.read()
        sent.append(answer.status)
    statuses.put(sent)


def shown(name, times):
    at = lambda share: times[min(len(times) - 1, int(len(times) * share))]
    print(f"{name:28} {len(times):6} answers  p50 {at(.5):7.3f} ms  p99 {at(.99):7.3f} ms  max {times[-1]:7.3f} ms", flush=True)
    return at(.99)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--binaries", type=pathlib.Path, default=HERE.parent / "target/release")
    parser.add_argument("--driver", default="io_uring")
    parser.add_argument("--prompts", nargs="*", choices=KINDS, default=KINDS)
    options = parser.parse_args()
    with Started() as started, tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        _, (engine,) = started.engines(options.binaries, [], count=1)
        (folder / "resources").mkdir()
        (folder / "resources/all.yaml").write_text(DOCUMENTS.format(model=MODEL, engine=engine))
        port = free_port()
        (folder / "kinference.yaml").write_text(SERVER.format(port=port, folder=folder))
        started.start(PROXY_CORE, [str(options.binaries / "kinference"), "serve", "--config", str(folder / "kinference.yaml"),
                                   "--driver", options.driver])
        wait_for(port)
        os.sched_setaffinity(0, {int(LOAD_CORE)})
        alone = shown("alone", asked(port, time.monotonic() + options.seconds))
        return max([beside(kind, port, alone, options.seconds) for kind in options.prompts])


def beside(kind, port, alone, seconds):
    """1 where too many answers come too late while long prompts of this kind are read."""
    statuses, until = multiprocessing.Queue(), time.monotonic() + seconds
    sender = multiprocessing.Process(target=send_long, args=(kind, port, until, statuses), daemon=True)
    sender.start()
    later = shown(f"beside 1 MB of {kind}", asked(port, until)) - alone
    sent = statuses.get(timeout=60)
    sender.join()
    refused = sum(status == 403 for status in sent)
    print(f"{len(sent)} long prompts, {refused} refused; 99 of 100 answers came {later:.3f} ms later (at most {EXTRA_MS_MAX} ms)", flush=True)
    return 0 if sent and refused == len(sent) and later <= EXTRA_MS_MAX else 1


if __name__ == "__main__":
    sys.exit(main())

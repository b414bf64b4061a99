#!/usr/bin/env python3
"""Does it last: many open streams, a million clients that leave, every change of configuration and process under load.

    bench/endurance.py streams [--streams 10000] [--minutes 5]
    bench/endurance.py cancels [--requests 1000000]
    bench/endurance.py changes [--rate 2000] [--seconds 60]

`streams`: slow streams opened at once and kept open; memory and descriptors of the gateway are sampled every 5 s from when all are open, and
the gaps between events are compared with the same streams straight from the engines.
`cancels`: clients that close their connection at a random moment; afterwards everything that the gateway counts must be back at zero, its
descriptors back where they were, its memory no larger than after the first tenth.
`changes`: a constant rate of requests while the policy is replaced every second, the certificate of a TLS listener every five (with TLS
clients that come all the time; needs the openssl command), and twice a new process takes over the ports and the old one gets SIGTERM. Not one
request may fail.

Exit status 1 when something did not hold. Needs the release binaries (cargo build --release -p lb -p loadtest) and Python 3.9; `--driver`
chooses io_uring (the default here) or epoll. Use an otherwise idle machine for the times.
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from measure import HERE, MODEL, Started, free_port, resident_kb, wait_for

FAULTS = []


def expect(holds, what):
    print(f"  {'ok  ' if holds else 'FAIL'} {what}", flush=True)
    if not holds:
        FAULTS.append(what)


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def metrics(admin):
    """Sum of all samples by metric name."""
    sums = {}
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            found = re.match(r"([a-z_:]+)(?:\{.*\})? (\S+)$", line)
            if found:
                sums[found[1]] = sums.get(found[1], 0) + float(found[2])
    return sums


def load_command(a, target, *more):
    return [str(a.bin / "loadtest"), "run", "--target", target, "--model", MODEL, "--quiet", *map(str, more)]


def run_load(a, started, folder, target, *more):
    report = folder / f"report-{time.monotonic_ns()}.json"
    load = started.start(None, [*load_command(a, target, *more), "--json", str(report)])
    load.wait()
    if not report.exists():
        sys.exit(f"the load ended with {load.returncode} and no report: {load.args}")
    return json.loads(report.read_text())


def start_engines(a, started, count, *arguments):
    ports = [free_port() for _ in range(count)]
    listen = [x for port in ports for x in ("--listen", f"127.0.0.1:{port}")]
    started.start(None, [str(a.bin / "loadtest"), "engine", *listen, "--model", MODEL, "--records", "0", *map(str, arguments)])
    for port in ports:
        wait_for(port)
    return [f"http://127.0.0.1:{port}" for port in ports]


def start_gateway(a, started, engines):
    port, admin = free_port(), free_port()
    gateway = started.start(None, [str(a.bin / "kinference"), "serve", "--driver", a.driver, "--listen", f"127.0.0.1:{port}", "--admin",
                                   f"127.0.0.1:{admin}", "--access-log", "", *engines])
    ready(admin, len(engines))
    return gateway, f"http://127.0.0.1:{port}", admin


def ready(admin, endpoints):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{admin}/readyz", timeout=5) as answer:
                if json.load(answer).get("endpointsReady", 0) >= endpoints:
                    return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit("the gateway is not ready after 20 s")


def settled(admin, seconds=15):
    """Waits until nothing is open, and tells what still is."""
    names = ["kinference_requests_open", "kinference_downstream_connections_open", "kinference_endpoint_in_flight",
             "kinference_request_bodies_bytes"]
    end = time.monotonic() + seconds
    while True:
        seen = metrics(admin)
        missing = [name for name in names if name not in seen]
        if missing:
            sys.exit(f"no such metrics: {missing}; there are {sorted(seen)}")
        left = {name: seen[name] for name in names if seen[name]}
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.1)


def streams(a, started, folder):
    step_us = 2_000_000
    tokens = int(a.minutes * 60 / (step_us / 1e6))
    engine = ["--base-us", step_us, "--decode-us", 0, "--kv-token-us", 0, "--prefill-token-us", 0, "--attention-pair-us", 0,
              "--max-num-seqs", 100_000, "--max-num-batched-tokens", 10_000_000, "--num-gpu-blocks", 10_000_000]
    engines = start_engines(a, started, 20, *engine)
    ask = ["--concurrency", a.streams, "--requests", a.streams, "--connections", a.streams, "--stream-share", 1, "--prompt-tokens", 16,
           "--timeout", "3600s", "--duration", "3600s"]
    straight = []
    for url in engines:
        straight += ["--target", url]
    direct = run_load(a, started, folder, engines[0], *straight, *ask, "--output-tokens", 15)
    gateway, url, admin = start_gateway(a, started, engines)
    before = descriptors(gateway.pid)
    report = folder / "streams.json"
    load = started.start(None, [*load_command(a, url, *ask, "--output-tokens", tokens), "--json", str(report)])
    samples = []
    while load.poll() is None:
        time.sleep(5)
        if load.poll() is None:
            samples.append((metrics(admin)["kinference_requests_open"], resident_kb(gateway.pid), descriptors(gateway.pid)))
    full = [s for s in samples if s[0] >= a.streams * 0.999]
    through = json.loads(report.read_text())
    print(f"{a.streams} streams for {a.minutes} minutes, one event every {step_us / 1e6:.0f} s in each")
    expect(through["requests"] == {"ok": a.streams}, f"every stream is whole: {through['requests']}")
    expect(len(full) > 2, f"all were open at once in {len(full)} samples of {len(samples)}")
    if full:
        rss, fds = [s[1] for s in full], [s[2] for s in full]
        expect(max(rss) <= min(rss) * 1.02 + 1024, f"memory is flat: {min(rss)} to {max(rss)} KiB, {max(rss) / a.streams:.2f} KiB a stream in all")
        expect(max(fds) == min(fds), f"descriptors are flat: {min(fds)} to {max(fds)}")
    for name in ("p50_us", "p99_us", "p999_us", "max_us"):
        d, t = direct["gap"][name], through["gap"][name]
        print(f"       gap between events, {name[:-3]}: straight {d / 1e3:.1f} ms, through {t / 1e3:.1f} ms, added {(t - d) / 1e3:.1f} ms")
    expect(through["gap"]["max_us"] < 2 * step_us, "no stream stalled")
    left = settled(admin)
    expect(not left, f"nothing is left open: {left or 'none'}")
    time.sleep(6)
    expect(descriptors(gateway.pid) <= before + 4, f"descriptors before and after: {before}, {descriptors(gateway.pid)}")


def cancels(a, started, folder):
    engines = start_engines(a, started, 2, "--base-us", 2000, "--max-num-seqs", 1000)
    gateway, url, admin = start_gateway(a, started, engines)
    ask = ["--concurrency", 256, "--connections", 256, "--abandon-share", 1, "--abandon-within", "20ms", "--stream-share", 0.5,
           "--prompt-tokens", "16..400", "--output-tokens", 200, "--duration", "36000s"]
    run_load(a, started, folder, url, *ask, "--requests", 1000)
    settled(admin)
    time.sleep(6)
    fds = descriptors(gateway.pid)
    first = run_load(a, started, folder, url, *ask, "--requests", a.requests // 10)
    settled(admin)
    rss = resident_kb(gateway.pid)
    rest = run_load(a, started, folder, url, *ask, "--requests", a.requests - a.requests // 10)
    total = sum(first["requests"].values()) + sum(rest["requests"].values())
    gone = first["requests"].get("abandoned", 0) + rest["requests"].get("abandoned", 0)
    print(f"{total} requests, {gone} abandoned, {gone / (first['elapsed_s'] + rest['elapsed_s']):.0f} a second")
    odd = {k: v for r in (first, rest) for k, v in r["requests"].items() if k not in ("abandoned", "ok")}
    expect(not odd, f"nothing but answers and clients that left: {odd or 'none else'}")
    left = settled(admin)
    expect(not left, f"everything is back at zero: {left or 'nothing open'}")
    time.sleep(6)
    expect(descriptors(gateway.pid) <= fds + 4, f"descriptors before and after: {fds}, {descriptors(gateway.pid)}")
    after = resident_kb(gateway.pid)
    expect(after <= rss * 1.1 + 2048, f"memory after a tenth and at the end: {rss}, {after} KiB")
    for engine in engines:
        with urllib.request.urlopen(engine + "/metrics", timeout=10) as answer:
            busy = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", answer.read().decode(), re.M)
        expect(busy and not any(map(float, busy)), f"the engine has stopped working on them: running and waiting {busy}")


RESOURCES = """apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceWorkerSet
metadata: {{ name: engines }}
spec:
  model: {{ name: {model} }}
  endpoints: [{endpoints}]
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePool
metadata: {{ name: pool }}
spec:
  destinations: [{{ kind: InferenceWorkerSet, name: engines }}]
  policyRef: [{{ name: policy }}]
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: {{ name: policy }}
spec:
  rules:
    - name: rule-{generation}
      route: {{ select: [{{ type: Local, minimize: PredictedTTFT }}] }}
"""


def certificate(folder, name):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                    f"/CN={name}", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(folder / "new.key"), "-out",
                    str(folder / "new.pem")], check=True, capture_output=True)
    os.replace(folder / "new.key", folder / "tls.key")
    os.replace(folder / "new.pem", folder / "tls.pem")


class TlsClients(threading.Thread):
    """New TLS connections all the time, one request on each."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.done, self.failed, self.names, self.ended = port, 0, [], set(), threading.Event()

    def run(self):
        body = json.dumps({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]})
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        while not self.ended.is_set():
            try:
                client = http.client.HTTPSConnection("localhost", self.port, timeout=20, context=trust)
                client.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
                answer = client.getresponse()
                answer.read()
                if answer.status != 200:
                    self.failed.append(f"status {answer.status}")
                client.close()
                self.done += 1
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(repr(error))


def changes(a, started, folder):
    engines = start_engines(a, started, 2, "--instant")
    port, tls_port = free_port(), free_port()
    endpoints = ", ".join(f"{{ address: 127.0.0.1, port: {url.rsplit(':', 1)[1]} }}" for url in engines)
    resources = folder / "resources"
    resources.mkdir()
    with_tls = shutil.which("openssl") is not None

    def write(generation):
        (folder / "new.yaml").write_text(RESOURCES.format(model=MODEL, endpoints=endpoints, generation=generation))
        os.replace(folder / "new.yaml", resources / "all.yaml")

    def start():
        admin = free_port()
        tls = f", {{ address: 127.0.0.1:{tls_port}, tls: {{ certFile: tls.pem, keyFile: tls.key }} }}" if with_tls else ""
        (folder / f"server-{admin}.yaml").write_text(
            f"listeners: [{{ address: 127.0.0.1:{port} }}{tls}]\nadmin: {{ address: 127.0.0.1:{admin} }}\n"
            f"resources: [./resources]\naccessLog: {{ path: /dev/null }}\n")
        gateway = started.start(None, [str(a.bin / "kinference"), "serve", "--driver", a.driver, "--config", str(folder / f"server-{admin}.yaml")])
        ready(admin, len(engines))
        return gateway, admin

    write(0)
    if with_tls:
        certificate(folder, "first")
    gateway, admin = start()
    tls_clients = TlsClients(tls_port)
    if with_tls:
        tls_clients.start()
    report = folder / "changes.json"
    load = started.start(None, [*load_command(a, f"http://127.0.0.1:{port}", "--rate", a.rate, "--arrivals", "constant", "--stream-share", 0.5,
                                              "--prompt-tokens", 100, "--output-tokens", 8, "--duration", f"{a.seconds}s"), "--json", str(report)])
    begun = time.monotonic()
    generation = certificates = handovers = 0
    reloads = 0.0
    while load.poll() is None:
        time.sleep(1)
        generation += 1
        write(generation)
        if with_tls and generation % 5 == 0:
            certificates += 1
            certificate(folder, f"next-{certificates}")
        if handovers < 2 and time.monotonic() - begun > (handovers + 1) * a.seconds / 3:
            handovers += 1
            reloads += metrics(admin)["kinference_config_generation"]
            old, (gateway, admin) = gateway, start()
            old.send_signal(signal.SIGTERM)
            old.wait(timeout=30)
            expect(old.returncode == 0, f"process {handovers} ended by itself after SIGTERM: {old.returncode}")
    tls_clients.ended.set()
    seen = json.loads(report.read_text())
    reloads += metrics(admin)["kinference_config_generation"]
    total = sum(seen["requests"].values())
    print(f"{total} requests at {a.rate}/s; {generation} policies written, {certificates} certificates, {handovers} processes replaced")
    expect(seen["requests"] == {"ok": total}, f"not one request failed: {seen['requests']} ({seen['resent']} sent again on a new connection)")
    expect(reloads >= generation * 0.9, f"the policies came into force: {reloads:.0f} generations")
    if with_tls:
        tls_clients.join(timeout=30)
        expect(tls_clients.done > 10 and not tls_clients.failed, f"TLS: {tls_clients.done} connections, failed: {tls_clients.failed[:3] or 'none'}")
    else:
        print("       no openssl command: certificates were not changed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["streams", "cancels", "changes"])
    parser.add_argument("--bin", type=pathlib.Path, default=HERE.parent / "target" / "release", help="folder of the release binaries")
    parser.add_argument("--driver", choices=["io_uring", "epoll"], default="io_uring")
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=60)
    a = parser.parse_args()
    needed = 2 * a.streams + 200 if a.what == "streams" else 4096
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(needed, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    except (ValueError, OSError) as error:
        sys.exit(f"{needed} open files are needed: {error} (ulimit -Hn)")
    with Started() as started, tempfile.TemporaryDirectory() as temporary:
        {"streams": streams, "cancels": cancels, "changes": changes}[a.what](a, started, pathlib.Path(temporary))
    if FAULTS:
        sys.exit(f"{len(FAULTS)} of the above did not hold")


if __name__ == "__main__":
    main()

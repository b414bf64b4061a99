#!/usr/bin/env python3
"""CPU and latency of proxies side by side: same machine, same run, same simulated engines, same load.

    bench/side-by-side.py [--bin DIR] [--rounds 3] [--seconds 4] [--only NAME...] [--peers NAME...] [--json FILE]

Each proxy runs one thread pinned to the first core; engines and the load generator share the second. Rounds alternate between
proxies. CPU is the kernel's accounting of the proxy's processes (utime + stime from /proc), divided by the answers or events
of the load; a peer that is not installed is left out and said so. Needs the release binaries
(cargo build --release -p lb -p loadtest) and Python 3.9; nginx and haproxy where they are to be compared.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")
PROXY_CORE, LOAD_CORE = "0", "1"

# name, what one unit of work is, engine arguments, load arguments
WORK = [
    ("small request, saturated", "answer", ["--instant"],
     ["--concurrency", "32", "--no-stream", "--prompt-tokens", "200", "--output-tokens", "4"]),
    ("small request, 2,000/s", "answer", ["--instant"],
     ["--rate", "2000", "--no-stream", "--prompt-tokens", "200", "--output-tokens", "4"]),
    ("SSE chunk, 128 streams at 200 chunks/s", "event",
     ["--base-us", "5000", "--decode-us", "0", "--kv-token-us", "0", "--prefill-token-us", "0", "--attention-pair-us", "0",
      "--max-num-seqs", "256"],
     ["--concurrency", "128", "--stream-share", "1", "--prompt-tokens", "50", "--output-tokens", "400"]),
    ("128 KB prompt", "answer", ["--instant", "--max-model-len", "200000"],
     ["--concurrency", "8", "--no-stream", "--prompt-tokens", "32768", "--output-tokens", "4"]),
]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(port, deadline_s=20):
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        try:
            with socket.create_connection(("127.0.0.1", port), 0.5):
                return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"nothing listens on 127.0.0.1:{port}")


def cpu_us(pid):
    """(user, system) CPU of a process and its children, in microseconds."""
    user = system = 0
    todo = [pid]
    while todo:
        p = todo.pop()
        try:
            fields = pathlib.Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()
            user += int(fields[11]) * TICK_US
            system += int(fields[12]) * TICK_US
            for task in pathlib.Path(f"/proc/{p}/task").iterdir():
                todo += [int(c) for c in (task / "children").read_text().split()]
        except FileNotFoundError:
            pass
    return user, system


class Started:
    """Processes that end with the run."""

    def __init__(self):
        self.all = []

    def start(self, core, command, **kw):
        p = subprocess.Popen(["taskset", "-c", core, *command], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, start_new_session=True, **kw)
        self.all.append(p)
        return p

    def stop(self, p):
        # The whole group: a worker that outlives its master would answer in the place of the next proxy.
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()
        if p in self.all:
            self.all.remove(p)

    def stop_all(self):
        for p in list(self.all):
            self.stop(p)


def proxies(binaries, folder, engines, port):
    """name -> command in front of the engines, for the proxies that are installed."""
    urls = [f"http://127.0.0.1:{e}" for e in engines]
    ours = [str(binaries / "kinference"), "serve", "--listen", f"127.0.0.1:{port}", "--threads", "1", "--admin", "127.0.0.1:0",
            "--access-log", str(folder / "access.log")]
    table = {"kinference io_uring": [*ours, "--driver", "io_uring", *urls], "kinference epoll": [*ours, "--driver", "epoll", *urls]}
    if shutil.which("nginx"):
        servers = " ".join(f"server 127.0.0.1:{e};" for e in engines)
        table["nginx"] = ["nginx", "-p", str(folder), "-c", write(folder, "nginx.conf", servers, port)]
    if shutil.which("haproxy"):
        servers = "\n".join(f"  server e{i} 127.0.0.1:{e}" for i, e in enumerate(engines))
        table["haproxy"] = ["haproxy", "-db", "-f", write(folder, "haproxy.cfg", servers, port)]
    return table


def write(folder, name, servers, port):
    text = (HERE / "peers" / name).read_text()
    for key, value in (("@DIR@", str(folder)), ("@SERVERS@", servers), ("@PORT@", str(port))):
        text = text.replace(key, value)
    path = folder / name
    path.write_text(text)
    return str(path)


def load(binaries, target, args, seconds, core, report):
    command = ["taskset", "-c", core, str(binaries / "loadtest"), "run", "--target", target, "--model", "tiny", *args,
               "--duration", f"{seconds}s", "--threads", "1", "--quiet", "--json", str(report)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return json.loads(report.read_text())


def ready(port, engines, seconds=20):
    """Waits until a request goes through."""
    body = json.dumps({"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}).encode()
    end = time.monotonic() + seconds
    while True:
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=5):
                return
        except OSError as error:
            if time.monotonic() > end:
                sys.exit(f"no answer through 127.0.0.1:{port}: {error}")
            time.sleep(0.1)


def measure(started, binaries, work, peers, rounds, seconds):
    name, unit, engine_args, load_args = work
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        engines = [free_port(), free_port()]
        listen = [x for e in engines for x in ("--listen", f"127.0.0.1:{e}")]
        engine = started.start(LOAD_CORE, [str(binaries / "loadtest"), "engine", *listen, "--model", "tiny", "--records", "0", *engine_args])
        for e in engines:
            wait_for(e)
        for peer in [peer for _ in range(rounds) for peer in proxies(binaries, folder, engines, 0)]:
            if peers and peer not in peers:
                continue
            port = free_port()
            command = proxies(binaries, folder, engines, port)[peer]
            proxy = started.start(PROXY_CORE, command)
            wait_for(port)
            ready(port, engines)
            load(binaries, f"http://127.0.0.1:{port}", load_args, 1, LOAD_CORE, folder / "warm.json")
            before = cpu_us(proxy.pid)
            report = load(binaries, f"http://127.0.0.1:{port}", load_args, seconds, LOAD_CORE, folder / "report.json")
            after = cpu_us(proxy.pid)
            if proxy.poll() is not None:
                sys.exit(f"{peer} has ended by itself; try: {' '.join(command)}")
            started.stop(proxy)
            bad = {k: v for k, v in report["requests"].items() if k != "ok"}
            if bad:
                print(f"  {peer}: {bad}", file=sys.stderr)
            ok = report["requests"].get("ok", 0)
            units = ok if unit == "answer" else round(report["events_per_s"] * report["elapsed_s"])
            user, system = ((a - b) / max(units, 1) for a, b in zip(after, before))
            results.setdefault(peer, []).append({
                "cpu_us": user + system, "user_us": user, "per_s": units / report["elapsed_s"],
                "p50_us": report["duration"]["p50_us"], "p99_us": report["duration"]["p99_us"]})
        started.stop(engine)
    return results


def table(name, unit, results):
    base = statistics.median(r["cpu_us"] for r in results["nginx"]) if "nginx" in results else None
    print(f"\n{name} (CPU us per {unit}, medians of {len(next(iter(results.values())))} rounds)")
    print(f"| {'proxy':<20} | CPU us | user us | over nginx | {unit}s/s | p50 us | p99 us |")
    print(f"|{'-' * 22}|-------:|--------:|-----------:|--------:|-------:|-------:|")
    for peer, rows in results.items():
        mid = {k: statistics.median(r[k] for r in rows) for k in rows[0]}
        ratio = f"{mid['cpu_us'] / base:.2f}" if base else "-"
        print(f"| {peer:<20} | {mid['cpu_us']:6.1f} | {mid['user_us']:7.1f} | {ratio:>10} | {mid['per_s']:7.0f} | {mid['p50_us']:6.0f} | {mid['p99_us']:6.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=HERE.parent / "target" / "release", help="folder of the release binaries")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of workloads")
    parser.add_argument("--peers", nargs="*", default=[])
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    for binary in ("kinference", "loadtest"):
        if not (arguments.bin / binary).exists():
            sys.exit(f"{arguments.bin / binary} is missing: cargo build --release -p lb -p loadtest")
    started = Started()
    everything = {}
    try:
        for work in WORK:
            if arguments.only and not any(part in work[0] for part in arguments.only):
                continue
            everything[work[0]] = measure(started, arguments.bin, work, arguments.peers, arguments.rounds, arguments.seconds)
            table(work[0], work[1], everything[work[0]])
    finally:
        started.stop_all()
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()

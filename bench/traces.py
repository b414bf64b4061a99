#!/usr/bin/env python3
"""Time to first token over real sockets: traces against simulated engines in real time, behind each balancer in turn.

    bench/traces.py --bin DIR [--sglang-router PATH] [--vllm-router PATH] [--load 0.85] [--pods 8] TRACE...

DIR holds kinference and loadtest of one release build. For each trace, `loadtest simulate` tells by how much its times are squeezed for the
load asked; then for each balancer fresh engines start, the trace is sent through it, and the times of its clients are taken. Every
balancer has one thread on a core of its own. Rows are times of this gateway over those of the other: below 1 it is ahead.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request

from measure import Ahead, MODEL, Started, free_port, haproxy, kinference, nginx, router


def squeeze(binaries, trace, pods, load, engine):
    """What the times of the trace are divided by for this load, from the simulation."""
    command = [str(binaries / "loadtest"), "simulate", str(trace), "--pods", str(pods), "--load", str(load), "--strategy", "oracle",
               "--json", "-", *engine]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)[0]["squeeze"]


# What is spread: prompt tokens asked, tokens computed (prompt tokens not cached, and generated ones), and requests running at a time.
LOADS = {
    "prompt": {"prompt_tokens_total": 1},
    "computed": {"prompt_tokens_total": 1, "prompt_tokens_cached_total": -1, "generation_tokens_total": 1},
    "running": {"request_inference_time_seconds_sum": 1},
}


def spread(ports):
    """By each measure of load: that of the busiest engine over the mean of all."""
    pages = []
    for port in ports:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            pages.append(dict(re.findall(r"^vllm:(\w+){[^}]*} ([0-9.e+-]+)$", page.read().decode(), re.M)))
    found = {}
    for load, counters in LOADS.items():
        each = [sum(float(page[name]) * sign for name, sign in counters.items()) for page in pages]
        found[load] = max(each) * len(each) / max(sum(each), 1e-9)
    return found


def play(started, folder, binaries, peer, trace, pods, factor, engine):
    """One run; the report of the load generator, and how the work was spread."""
    engines, ports = started.engines(binaries, engine, pods)
    port = free_port()
    proxy = peer.start(started, folder, ports, port)
    command = ["taskset", "-c", "1", str(binaries / "loadtest"), "run", "--target", f"http://127.0.0.1:{port}", "--model", MODEL, "--trace",
               str(trace), "--squeeze", f"{factor:.4f}", "--duration", "30m", "--timeout", "300s", "--json", "-", "--quiet"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    report["spread"] = spread(ports)
    for process in (proxy, engines):
        started.stop(process)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path, nargs="+")
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--sglang-router", type=pathlib.Path)
    parser.add_argument("--vllm-router", type=pathlib.Path)
    parser.add_argument("--load", type=float, default=0.85)
    parser.add_argument("--pods", type=int, default=8)
    parser.add_argument("--rows", type=int, default=10**9, help="rows of each trace at most")
    parser.add_argument("--engine", default="", help="further arguments of the simulated engines, for simulation and sockets alike")
    parser.add_argument("--threads", type=int, nargs="*", help="compare this gateway with so many data threads, and no others")
    parser.add_argument("--ahead", nargs=0, action=Ahead, help="run ahead of the other programs of the machine")
    args = parser.parse_args()
    peers = [kinference(args.bin, "io_uring"), nginx(), haproxy()]
    for name, path in (("sglang-router", args.sglang_router), ("vllm-router", args.vllm_router)):
        if path:
            peers.append(router(name, path, "cache_aware"))
    if args.threads:
        peers = [kinference(args.bin, "io_uring", threads=threads) for threads in args.threads]
        for peer, threads in zip(peers, args.threads):
            peer.name = f"kinference, {threads} threads"
    engine = args.engine.split()
    print("| trace | balancer | mean s | p90 s | cached | busiest engine over the mean: prompt tokens, computed, running | not answered | first one's mean / p90 over its |\n|---|---|---|---|---|---|---|---|")
    failed = False
    cut = tempfile.TemporaryDirectory()
    for whole in args.trace:
        trace = pathlib.Path(cut.name) / whole.name
        trace.write_text("".join(whole.read_text().splitlines(keepends=True)[: args.rows]))
        factor = squeeze(args.bin, trace, args.pods, args.load, engine)
        ours = None
        for peer in peers:
            with Started() as started, tempfile.TemporaryDirectory() as folder:
                report = play(started, pathlib.Path(folder), args.bin, peer, trace, args.pods, factor, engine)
            mean, p90 = report["first_token"]["mean_us"] / 1e6, report["first_token"]["p90_us"] / 1e6
            lost = sum(count for outcome, count in report["requests"].items() if outcome != "ok")
            cached = report["cached_tokens"] / max(report["prompt_tokens"], 1)
            ours = ours or (mean, p90)
            failed |= lost > 0 and peer is peers[0]
            print(f"| {trace.stem} | {peer.name} | {mean:.3f} | {p90:.3f} | {cached:.1%} | {', '.join(f'{load:.3f}' for load in report['spread'].values())} | {lost} | {ours[0] / mean:.2f} / {ours[1] / p90:.2f} |", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

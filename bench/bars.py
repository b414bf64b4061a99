#!/usr/bin/env python3
"""The bars of speed and memory: each measured, printed beside its bar, met or missed.

    bench/bars.py [--bin DIR] [--rounds 3] [--seconds 4] [--connections 2000] [--rate N] [--only NAME...] [--json FILE]

    cpu        CPU of a small request (saturated, 2,000/s), of an SSE chunk and of a 128 KB prompt over nginx's; user CPU of a chunk
    latency    latency that the gateway adds at half load (4,000/s at most), p50 and p99 over a direct connection
    memory     resident memory of each open idle stream and each idle kept connection
    syscalls   system calls of the data thread per small request, io_uring (perf; strace where there is none)
    decision   time of a decision among 100 endpoints for a prompt of 8,000 tokens, p99 (cargo run -p bench)

Same machine and arrangement as bench/side-by-side.py: one data thread on the first core, engines and load on the second. Medians of the
rounds. Exit status 1 when a bar is missed. Needs the release binaries of lb, loadtest and bench
(cargo build --release -p lb -p loadtest -p bench); nginx for `cpu`; perf or strace, as root, for `syscalls`.
"""
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import measure

# Engine and load generator share a core: above this, they wait for each other's time slices.
RATE_MAX = 4000
# A direct exchange that takes longer than this has waited for other programs.
DIRECT_US_MAX = {"p50_us": 300, "p99_us": 2000}
PARTS = ("cpu", "latency", "memory", "syscalls", "decision")


class Board:
    """What was found, printed as it comes."""

    def __init__(self):
        self.rows = []

    def begin(self):
        print("| what | bar | measured | |\n|---|---:|---:|---|", flush=True)

    def note(self, what, unit, bar, values):
        """`bar` is the most that is allowed; None where there is none."""
        found = statistics.median(values)
        verdict = "" if bar is None else "met" if found <= bar else "MISSED"
        self.rows.append({"what": what, "unit": unit, "bar": bar, "measured": found, "rounds": values, "verdict": verdict})
        limit = "" if bar is None else f"<= {bar:g} {unit}".rstrip()
        print(f"| {what} | {limit} | {found:.3g} {unit}".rstrip() + f" | {verdict} |", flush=True)

    def missing(self, what, why):
        self.rows.append({"what": what, "verdict": "not measured", "why": why})
        print(f"| {what} | | | not measured: {why} |", flush=True)


def cpu(board, started, arguments, peer):
    if not measure.installed("nginx"):
        return board.missing("CPU over nginx", "nginx is not installed")
    bars = ((measure.SATURATED, 0.75), (measure.STEADY, 0.9), (measure.CHUNKS, 0.9), (measure.LONG, 0.75))
    for work, bar in bars:
        results = measure.side_by_side(started, arguments.bin, work, [peer, measure.nginx()], arguments.rounds, arguments.seconds)
        ratios = [ours["cpu_us"] / theirs["cpu_us"] for ours, theirs in zip(results[peer.name], results["nginx"])]
        board.note(f"CPU over nginx: {work[0]}", "", bar, ratios)
        if work is measure.CHUNKS:
            board.note("user CPU of an SSE chunk", "us", 0.6, [row["user_us"] for row in results[peer.name]])


def latency(board, started, arguments, peer):
    """Half load is half of what a closed loop of 32 gets through the gateway, or what the other core carries without making requests wait
    if that is less. The same rate goes to the engines alone and through the gateway, in turns; latencies count from the time a
    request was due, so the load generator's own lateness is in both."""
    shape = measure.SATURATED[3][2:]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        engine, engines = started.engines(arguments.bin, measure.SATURATED[2])
        port = measure.free_port()
        proxy = peer.start(started, folder, engines, port)
        def run(to, args, seconds):
            return measure.load(arguments.bin, to, args, seconds, folder / "report.json")
        most = run([port], measure.SATURATED[3], 2)
        rate = arguments.rate or min(most["requests"]["ok"] / most["elapsed_s"] / 2, RATE_MAX)
        args = ["--rate", f"{rate:.0f}", *shape]
        rounds = [(run(engines, args, arguments.seconds)["duration"], run([port], args, arguments.seconds)["duration"])
                  for _ in range(arguments.rounds)]
        started.stop(proxy)
        started.stop(engine)
    direct = {key: statistics.median(alone[key] for alone, _ in rounds) for key in DIRECT_US_MAX}
    slow = [f"{key.removesuffix('_us')} {found:.0f} us" for key, found in direct.items() if found > DIRECT_US_MAX[key]]
    for key, bar in (("p50_us", 60), ("p99_us", 300)):
        what = f"added latency at {rate:.0f}/s, {key.removesuffix('_us')}"
        if slow:
            board.missing(what, f"the machine is too busy: {', '.join(slow)} without the gateway")
        else:
            board.note(what, "us", bar, [through[key] - alone[key] for alone, through in rounds])


def memory(board, started, arguments, peer):
    for what, name, bar in (("stream", "an open idle stream", 4.0), ("connection", "an idle kept connection", None)):
        each = [measure.memory_each(started, arguments.bin, peer, arguments.connections, what) / 1024 for _ in range(arguments.rounds)]
        board.note(f"resident memory of {name} ({arguments.connections} open)", "KB", bar, each)


def data_thread(pid):
    """The kernel's number of the data thread."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().startswith("data-"):
            return int(task.name)
    sys.exit(f"process {pid} has no data thread")


def count_syscalls(tid, while_running):
    """System calls of a thread while something runs, and with what they were counted. perf counts in the kernel and does not slow the
    thread down; strace stops it at each call, so that more is done with one."""
    if measure.installed("perf"):
        command = ["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter", "-t", str(tid)]
        found = re.compile(r"^(\d+),", re.MULTILINE)
    elif measure.installed("strace"):
        command, found = ["strace", "-c", "-p", str(tid)], re.compile(r"^100\.00 +\S+ +(?:\S+ +)?(\d+) .*total$", re.MULTILINE)
    else:
        return None, "neither perf nor strace is installed"
    with tempfile.TemporaryFile("w+") as told:
        counter = subprocess.Popen(command, stdout=told, stderr=told)
        try:
            time.sleep(0.3)
            while_running()
        finally:
            counter.send_signal(2)
            counter.wait()
        told.seek(0)
        text = told.read()
    number = found.search(text)
    return (int(number.group(1)) if number else None), (command[0] if number else text.strip().splitlines()[-1:] or "no count")


def syscalls(board, started, arguments, peer):
    for work, bar in ((measure.SATURATED, 0.5), (measure.STEADY, None)):
        each = []
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            engine, engines = started.engines(arguments.bin, work[2])
            port = measure.free_port()
            proxy = peer.start(started, folder, engines, port)
            measure.load(arguments.bin, port, work[3], 1, folder / "warm.json")
            for _ in range(arguments.rounds):
                report = {}
                count, how = count_syscalls(data_thread(proxy.pid),
                                            lambda: report.update(measure.load(arguments.bin, port, work[3], 2, folder / "report.json")))
                if count is None:
                    break
                each.append(count / report["requests"]["ok"])
            started.stop(proxy)
            started.stop(engine)
        if each:
            board.note(f"system calls of a {work[0]} ({how})", "", bar, each)
        else:
            board.missing(f"system calls of a {work[0]}", how)


def decision(board, _started, arguments, _peer):
    binary = arguments.bin / "bench"
    if not binary.exists():
        return board.missing("decision", f"{binary} is missing: cargo build --release -p bench")
    done = subprocess.run(["taskset", "-c", measure.PROXY_CORE, str(binary), "decision"], capture_output=True, text=True)
    found = re.findall(r"p99 +([0-9.]+) us", done.stdout)
    if not found:
        return board.missing("decision", (done.stderr.strip() or "no p99 in its output")[:200])
    board.note("decision, 100 endpoints, 8,000 tokens, p99", "us", 50, [float(value) for value in found])


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--rate", type=float, help="requests a second for `latency`, in place of half load")
    parser.add_argument("--connections", type=int, default=2000, help="for the memory")
    parser.add_argument("--driver", default="io_uring", choices=("io_uring", "epoll"))
    arguments = parser.parse_args()
    measure.check_binaries(arguments.bin)
    peer = measure.kinference(arguments.bin, arguments.driver)
    board = Board()
    board.begin()
    with measure.Started() as started:
        for part in PARTS:
            if measure.wanted(part, arguments.only):
                globals()[part](board, started, arguments, peer)
    if arguments.json:
        arguments.json.write_text(json.dumps(board.rows, indent=1))
    return 1 if any(row["verdict"] == "MISSED" for row in board.rows) else 0


if __name__ == "__main__":
    sys.exit(main())

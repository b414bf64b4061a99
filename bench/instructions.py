#!/usr/bin/env python3
"""Counted instructions per small request, by valgrind's callgrind: the same on every run to about one in a hundred, whatever else the
machine does, so that a change of a few per cent can be seen.

    bench/instructions.py [--bin DIR] [--requests 2000] [--max N] [--top 25] [--out FILE] [--chunks]

The gateway runs on its epoll driver (valgrind knows no io_uring) with its access log on. Counting is switched on after a warm-up and off
after the load; only the data thread's instructions in user space count, the kernel's do not. `--chunks` counts an SSE event in place of a
request. `--top` prints the functions with the most instructions of their own; `--out` keeps the profile for callgrind_annotate. With
`--max`, more instructions than that are exit status 1. Needs valgrind and release binaries (which have line tables).
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import measure

# valgrind is some fifty times slower; a load that lasts longer than this is cut, and counted as far as it came.
LOAD_SECONDS_MAX = 300


def control(pid, *what):
    done = subprocess.run(["callgrind_control", *what, str(pid)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"callgrind_control {' '.join(what)}: {done.stderr or done.stdout}")


def profile_of_data_thread(folder):
    """(instructions, file) of the data thread: the one of all threads with the most, since the load is on it alone."""
    found = [(total(path), path) for path in folder.glob("profile.*") if re.search(r"-\d+$", path.name)]
    if not found:
        sys.exit("callgrind has written no profile")
    return max(found)


def total(path):
    """Instructions in a profile."""
    counts = [int(m.group(1)) for m in re.finditer(r"^(?:totals|summary): (\d+)", path.read_text(), re.MULTILINE)]
    return max(counts, default=0)


def top(profile, units, count):
    """Functions by their own instructions, per unit."""
    done = subprocess.run(["callgrind_annotate", "--auto=no", "--threshold=95", str(profile)], capture_output=True, text=True)
    rows = re.findall(r"^ *([0-9,]+) \([ 0-9.]+%\) +(\S.*)$", done.stdout, re.MULTILINE)
    for number, name in rows[1:count + 1]:
        name = re.sub(r"^[^:]*:(?=\S)", "", re.sub(r" \[[^]]*\]$", "", name))
        print(f"  {int(number.replace(',', '')) / units:8.0f}  {name[:130]}")


def count(started, arguments, folder):
    """(instructions of the data thread, units of work, their name, profile)."""
    _, engines = started.engines(arguments.bin, measure.PATIENT)
    port = measure.free_port()
    # Other threads would be waited for spinning: one core, in turn.
    callgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes", "--fair-sched=yes",
                 f"--callgrind-out-file={folder / 'profile'}"]
    ours = measure.kinference(arguments.bin, "epoll")
    peer = measure.Peer("kinference", lambda *where: [*callgrind, *ours.command(*where)])
    gateway = peer.start(started, folder, engines, port)
    requests, shape = arguments.requests, ["--no-stream", "--output-tokens", "4"]
    if arguments.chunks:
        requests, shape = max(requests // 20, 20), ["--output-tokens", "100"]

    def load(number):
        args = ["--concurrency", "8", "--prompt-tokens", "200", "--requests", str(number), *shape]
        return measure.load(arguments.bin, port, args, LOAD_SECONDS_MAX, folder / "report.json")

    load(max(requests // 4, 20))
    control(gateway.pid, "-i", "on")
    report = load(requests)
    control(gateway.pid, "-i", "off")
    control(gateway.pid, "-d")
    instructions, profile = profile_of_data_thread(folder)
    if arguments.chunks:
        return instructions, round(report["events_per_s"] * report["elapsed_s"]), "event", profile
    return instructions, report["requests"]["ok"], "request", profile


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=measure.HERE.parent / "target" / "release", help="folder of the release binaries")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--max", type=float, help="instructions of a unit at most")
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--chunks", action="store_true")
    arguments = parser.parse_args()
    measure.check_binaries(arguments.bin)
    for program in ("valgrind", "callgrind_control", "callgrind_annotate"):
        if not measure.installed(program):
            sys.exit(f"{program} is not installed")
    with tempfile.TemporaryDirectory() as temporary, measure.Started() as started:
        instructions, units, unit, profile = count(started, arguments, pathlib.Path(temporary))
        each = instructions / max(units, 1)
        missed = arguments.max is not None and each > arguments.max
        verdict = "" if arguments.max is None else f", bar {arguments.max:.0f}: {'MISSED' if missed else 'met'}"
        print(f"{each:.0f} instructions per {unit} ({units} {unit}s, epoll driver, user space of the data thread){verdict}")
        top(profile, units, arguments.top)
        if arguments.out:
            shutil.copy(profile, arguments.out)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

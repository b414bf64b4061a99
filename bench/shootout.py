#!/usr/bin/env python3
"""One protocol core on several I/O drivers, side by side, nginx as the base.

    bench/shootout.py [--bin DIR] [--rounds 3] [--seconds 4] [--streams 2000] [--only NAME...] [--drivers NAME...] [--json FILE]

The core (bench/shootout/src/relay.rs) is the same code in each; only reading, writing and waking differ, so the differences are the
drivers'. Same engines, load and accounting as bench/side-by-side.py: one proxy thread on the first core, the rest on the second,
rounds that alternate. Also the resident memory of each open idle stream. Builds bench/shootout (a package of its own) when that is needed;
the load generator is the workspace's (cargo build --release -p loadtest).
"""
import json
import pathlib
import subprocess
import sys

import measure

DRIVERS = ("monoio-io_uring", "monoio-epoll", "glommio", "ring")
PACKAGE = measure.HERE / "shootout"
# Kept connections must outlive the pause between two loads: the core does not ask whether one has been closed.
WORK = [(name, unit, [*engine_args, "--keep-alive", "600s"], load_args)
        for name, unit, engine_args, load_args in (measure.SATURATED, measure.STEADY, measure.CHUNKS)]


def build():
    """The binary of the package, made when it is out of date."""
    command = ["cargo", "build", "--release", "--manifest-path", str(PACKAGE / "Cargo.toml"), "--message-format", "json-render-diagnostics"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("bench/shootout does not build")
    made = [json.loads(line).get("executable") for line in done.stdout.splitlines()]
    return pathlib.Path(next(path for path in made if path))


def driver(binary, name):
    def command(_folder, engines, port):
        return [str(binary), name, f"127.0.0.1:{port}", *(f"127.0.0.1:{e}" for e in engines)]
    return measure.Peer(name, command)


def memory(started, arguments, peers):
    results = {}
    for _ in range(arguments.rounds):
        for peer in peers:
            each = measure.memory_each(started, arguments.bin, peer, arguments.streams, "stream")
            results.setdefault(peer.name, []).append({"bytes": each})
    print(f"\nresident memory per open idle stream ({arguments.streams} streams, median of {arguments.rounds} rounds)")
    print("| driver               |   KB |\n|----------------------|-----:|")
    for name, rows in results.items():
        print(f"| {name:<20} | {measure.medians(rows)['bytes'] / 1024:4.1f} |", flush=True)
    return results


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--streams", type=int, default=2000, help="open idle streams for the memory")
    parser.add_argument("--drivers", nargs="*", default=list(DRIVERS), choices=DRIVERS)
    parser.add_argument("--shootout", type=pathlib.Path, help="its binary, if it is not to be built")
    arguments = parser.parse_args()
    measure.check_binaries(arguments.bin, ["loadtest"])
    binary = arguments.shootout or build()
    peers = [driver(binary, name) for name in arguments.drivers]
    if measure.installed("nginx"):
        peers.insert(0, measure.nginx())
    everything = {}
    with measure.Started() as started:
        for work in WORK:
            if measure.wanted(work[0], arguments.only):
                everything[work[0]] = measure.side_by_side(started, arguments.bin, work, peers, arguments.rounds, arguments.seconds)
                measure.print_table(work[0], work[1], everything[work[0]])
        if measure.wanted("memory", arguments.only):
            everything["memory"] = memory(started, arguments, peers)
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""CPU and latency of proxies side by side: same machine, same run, same simulated engines, same load.

    bench/side-by-side.py [--bin DIR] [--rounds 3] [--seconds 4] [--only NAME...] [--peers NAME...] [--json FILE]
                          [--sglang-router PATH] [--vllm-router PATH]

Each proxy runs one thread pinned to the first core; engines and the load generator share the second. Rounds alternate between
proxies. CPU is the kernel's accounting of the proxy's processes (utime + stime from /proc), divided by the answers or events
of the load; a peer that is not installed is left out and said so. Needs the release binaries
(cargo build --release -p lb -p loadtest) and Python 3.9; nginx and haproxy where they are to be compared, and for the routers
bench/peers/install.sh.
"""
import json
import pathlib
import sys

import measure

WORK = [measure.SATURATED, measure.STEADY, measure.CHUNKS, measure.LONG]


def found(arguments):
    """The peers that are there and asked for."""
    peers = [measure.kinference(arguments.bin, "io_uring"), measure.kinference(arguments.bin, "epoll")]
    missing = []
    for name, peer in (("nginx", measure.nginx), ("haproxy", measure.haproxy)):
        if measure.installed(name):
            peers.append(peer())
        else:
            missing.append(name)
    for name, policies in measure.ROUTERS.items():
        path = getattr(arguments, name.replace("-", "_")) or measure.installed(name)
        if path:
            peers += [measure.router(name, path, policy) for policy in policies]
        else:
            missing.append(name)
    if missing:
        print(f"not installed, left out: {', '.join(missing)}", file=sys.stderr)
    peers = [peer for peer in peers if not arguments.peers or any(peer.name.startswith(name) for name in arguments.peers)]
    if not peers:
        sys.exit("none of --peers is there")
    return peers


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--peers", nargs="*", default=[], help="names as in the table, or their begins; all that are installed when not given")
    for name in measure.ROUTERS:
        parser.add_argument(f"--{name}", type=pathlib.Path, help="its launcher; looked for on PATH when not given")
    arguments = parser.parse_args()
    measure.check_binaries(arguments.bin)
    peers = found(arguments)
    everything = {}
    with measure.Started() as started:
        for work in WORK:
            if measure.wanted(work[0], arguments.only):
                everything[work[0]] = measure.side_by_side(started, arguments.bin, work, peers, arguments.rounds, arguments.seconds)
                measure.print_table(work[0], work[1], everything[work[0]])
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()

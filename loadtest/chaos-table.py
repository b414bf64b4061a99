#!/usr/bin/env python3
"""The named faults against several proxies, as one table of scenario x proxy (Markdown).

    loadtest/chaos-table.py [--loadtest FILE] [--kinference FILE] [--sglang-router FILE] [--vllm-router FILE]
                            [--proxies NAME...] [--only SCENARIO...] [--repeat N] [--join FILE] [--details] [--out FILE] [--json FILE]

Each proxy is started anew for each scenario by chaos-peers/run.sh; one that is not installed is left out and said so. A whole run of
all eight takes a quarter of an hour, most of it the routers' starts. With --repeat, a scenario that passed in some runs and failed in
others shows how often it passed, and does not count as passed; --join counts the runs of an earlier --json too. Standard library only; it ends
what it has started.
"""
import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
RUN = HERE / "chaos-peers" / "run.sh"
# Column, name for run.sh, program, how it tells its version.
PROXIES = [
    ("kinference io_uring", "kinference-io_uring", "kinference", ["--version"]),
    ("kinference epoll", "kinference-epoll", "kinference", ["--version"]),
    ("nginx", "nginx", "nginx", ["-v"]),
    ("haproxy", "haproxy", "haproxy", ["-v"]),
    ("sglang-router cache_aware", "sglang-router:cache_aware", "sglang-router", None),
    ("sglang-router power_of_two", "sglang-router:power_of_two", "sglang-router", None),
    ("vllm-router cache_aware", "vllm-router:cache_aware", "vllm-router", None),
    ("vllm-router power_of_two", "vllm-router:power_of_two", "vllm-router", None),
]
WORDS = {"pass": "pass", "fail": "**FAIL**", "n/a": "n/a"}
# A run without failures takes half a minute; each start of a router takes two seconds, each failure up to its patience.
RUN_MAX_S = 600


def version(program, path, ask):
    """What the program says of itself; of a Python package, what is beside its launcher."""
    if ask is None:
        python = pathlib.Path(path).parent / "python3"
        code = f"import importlib.metadata as m; print(m.version({program!r}))"
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True)
    else:
        done = subprocess.run([str(path), *ask], capture_output=True, text=True)
    found = re.search(r"\d+\.\d+[^\s]*", done.stdout + done.stderr)
    return found.group(0) if found else "of unknown version"


def programs(arguments):
    """program -> (path, version) of those that are installed."""
    found = {}
    for _, _, program, ask in PROXIES:
        given = getattr(arguments, program.replace("-", "_"), None)
        path = given or shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
        if path and pathlib.Path(path).exists():
            found.setdefault(program, (pathlib.Path(path).resolve() if ask else pathlib.Path(path).absolute(), version(program, path, ask)))
    return found


def end(pid):
    """Kills a process and all that descend from it: the proxy is in a group of its own."""
    try:
        children = [c for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in children:
        end(int(child))


def judge(loadtest, peer, environment, only):
    """The rows of one proxy in one run; None when it did not start."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        command = [str(loadtest), "chaos", "--proxy-cmd", f"{RUN} {peer} {{listen}} {{upstream1}} {{upstream2}}",
                   "--run-max", f"{RUN_MAX_S}s", "--json", str(report)]
        running = subprocess.Popen([*command, *(["--only", *only] if only else [])], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   text=True, env={**os.environ, **environment})
        try:
            _, told = running.communicate(timeout=RUN_MAX_S + 120)
        finally:
            if running.poll() is None:
                end(running.pid)
        if not report.exists():
            print(f"{peer}: {told[-2000:]}", file=sys.stderr)
            return None
        return json.loads(report.read_text())["rows"]


def settled(runs):
    """One row for each scenario out of several runs: the verdict of those that could judge, a count where they differ."""
    rows = []
    for same in zip(*runs):
        judged = [row for row in same if row["verdict"] != "n/a"]
        passed = sum(row["verdict"] == "pass" for row in judged)
        row = dict(next((row for row in judged if row["verdict"] != "pass"), (judged or same)[0]))
        if 0 < passed < len(judged):
            row["verdict"] = f"{passed} of {len(judged)}"
        rows.append(row)
    return rows


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;").replace("`", "'").replace("\n", " ")


def markdown(columns, details):
    """columns: name -> rows. The table, and with `details` why each one failed or was not judged."""
    names = list(columns)
    lines = ["| fault | scenario | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for index, row in enumerate(columns[names[0]]):
        numbers = " ".join(str(number) for number in row["faults"])
        verdicts = " | ".join(WORDS.get(columns[name][index]["verdict"], columns[name][index]["verdict"]) for name in names)
        lines.append(f"| {numbers} | {cell(row['name'])}: {cell(row['rule'])} | {verdicts} |")
    def count(rows):
        counts = [sum(row["verdict"] == word for row in rows) for word in ("pass", "n/a")]
        return f"{counts[0]} / {len(rows) - sum(counts)} / {counts[1]}"
    lines.append("| | **pass / not always / n/a** | " + " | ".join(f"**{count(columns[name])}**" for name in names) + " |")
    for name in names if details else []:
        missed = [row for row in columns[name] if row["verdict"] != "pass"]
        lines += ["", f"**{name}**", ""] + [f"- {row['name']} ({row['verdict']}): {cell(row['detail'])[:240]}" for row in missed]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    release = HERE.parent / "target" / "release"
    parser.add_argument("--loadtest", type=pathlib.Path, default=release / "loadtest")
    parser.add_argument("--kinference", type=pathlib.Path, default=release / "kinference")
    for program in ("nginx", "haproxy", "sglang-router", "vllm-router"):
        parser.add_argument(f"--{program}", type=pathlib.Path, help="looked for on PATH when not given")
    parser.add_argument("--proxies", nargs="*", default=[], help="columns to make, by parts of their names")
    parser.add_argument("--only", nargs="*", default=[], help="names of scenarios")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--join", type=pathlib.Path)
    parser.add_argument("--details", action="store_true", help="also why each one failed or was not judged")
    parser.add_argument("--out", type=pathlib.Path, help="write the table here and not to standard output")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    # Told to end, it ends what runs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not arguments.loadtest.exists():
        sys.exit(f"{arguments.loadtest} is missing: cargo build --release -p loadtest")
    there = programs(arguments)
    environment = {program.replace("-", "_").upper(): str(path) for program, (path, _) in there.items()}
    runs, versions = {}, {}
    if arguments.join:
        earlier = json.loads(arguments.join.read_text())
        runs, versions = earlier["runs"], earlier["versions"]
    for name, peer, program, _ in PROXIES:
        if arguments.proxies and not any(part in name for part in arguments.proxies):
            continue
        if program not in there:
            print(f"{name} is not installed, left out", file=sys.stderr)
            continue
        begun = time.monotonic()
        judged = [judge(arguments.loadtest, peer, environment, arguments.only) for _ in range(arguments.repeat)]
        runs.setdefault(name, []).extend(rows for rows in judged if rows)
        versions[program] = there[program][1]
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    columns = {name: settled(runs[name]) for name, *_ in PROXIES if runs.get(name)}
    if not columns:
        sys.exit("no proxy to judge")
    told = ", ".join(f"{program} {number}" for program, number in versions.items())
    most = max(len(of) for of in runs.values())
    times = "one run" if most == 1 else f"{most} runs"
    text = f"{time.strftime('%Y-%m-%d')}, Linux {platform.release().split('-')[0]}, {times}: {told}.\n\n{markdown(columns, arguments.details)}\n"
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text, end="")
    if arguments.json:
        arguments.json.write_text(json.dumps({"versions": versions, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()

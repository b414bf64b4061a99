"""What the measurements of this folder share: start things on a core and end them, find the peers, load them, count their CPU.

Standard library only. One proxy thread on one core, simulated engines and the load generator on the other. CPU is the kernel's
accounting of the proxy's processes. Every process is the head of its own group and ends with the run, whatever happens.
"""
import argparse
import json
import os
import pathlib
import random
import re
import resource
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
MODEL = "tiny"
# Routers that are written for many threads get one, as the others have. (Both are tokio programs under a Python launcher.)
ONE_THREAD = {"TOKIO_WORKER_THREADS": "1", "RAYON_NUM_THREADS": "1"}
# cache_aware is what this gateway does too. vllm-router's asks the engines to tokenize each prompt; power_of_two shows it without.
ROUTERS = {"sglang-router": ["cache_aware"], "vllm-router": ["cache_aware", "power_of_two"]}


def free_port():
    """A port that nothing listens on, below those that the kernel gives to clients: there, one could be taken before it is used."""
    for _ in range(1000):
        port = random.randrange(15_000, 32_000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    sys.exit("no free port between 15,000 and 32,000")


def wait_for(port, deadline_s=20):
    """Waits until something listens."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        try:
            with socket.create_connection(("127.0.0.1", port), 0.5):
                return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"nothing listens on 127.0.0.1:{port}")


def family(pid):
    """A process and all that descend from it."""
    found, todo = [], [pid]
    while todo:
        p = todo.pop()
        try:
            children = [c for task in pathlib.Path(f"/proc/{p}/task").iterdir() for c in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.append(p)
        todo += [int(c) for c in children]
    return found


def cpu_us(pid):
    """(user, system) CPU of a process and its children, in microseconds."""
    user = system = 0
    for p in family(pid):
        try:
            fields = pathlib.Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        user += int(fields[11]) * TICK_US
        system += int(fields[12]) * TICK_US
    return user, system


def resident_kb(pid):
    """Resident memory of a process and its children, in KiB; pages they share count for each."""
    total = 0
    for p in family(pid):
        try:
            status = pathlib.Path(f"/proc/{p}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return total


class Ahead(argparse.Action):
    """Lets this session, and those of what it starts, run ahead of the other programs of the machine."""

    asked = False

    def __call__(self, *_):
        Ahead.asked = True
        Ahead.put(os.getpid())

    @staticmethod
    def put(pid):
        """Schedulers with autogroups weigh sessions, and a process's own niceness only within its session."""
        try:
            pathlib.Path(f"/proc/{pid}/autogroup").write_text("-19")
        except OSError as error:
            sys.exit(f"--ahead: {error} (it needs root, and a kernel with autogroups)")


class Started:
    """Processes that end with the run. A context manager."""

    def __init__(self):
        self.all = []

    def __enter__(self):
        # A run that is told to end ends what it has started.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return self

    def __exit__(self, *_):
        for p in list(self.all):
            self.stop(p)

    def start(self, core, command, env=None, **kw):
        """Starts a command on a core, or on any when that is None."""
        kw.setdefault("stdout", subprocess.DEVNULL)
        kw.setdefault("stderr", subprocess.DEVNULL)
        pinned = [] if core is None else ["taskset", "-c", core]
        p = subprocess.Popen([*pinned, *command], start_new_session=True, env={**os.environ, **(env or {})}, **kw)
        self.all.append(p)
        if Ahead.asked:
            Ahead.put(p.pid)
        return p

    def stop(self, p, how=signal.SIGKILL):
        # The whole group: a worker that outlives its master would answer in the place of the next proxy.
        try:
            os.killpg(p.pid, how)
        except ProcessLookupError:
            pass
        p.wait()
        if p in self.all:
            self.all.remove(p)

    def engines(self, binaries, args, count=2):
        """Simulated engines in one process; (process, ports)."""
        ports = [free_port() for _ in range(count)]
        listen = [x for port in ports for x in ("--listen", f"127.0.0.1:{port}")]
        process = self.start(LOAD_CORE, [str(binaries / "loadtest"), "engine", *listen, "--model", MODEL, "--records", "0", *args])
        for port in ports:
            wait_for(port)
        return process, ports


class Peer:
    """A proxy: how it is started. `command` takes (folder for its files, ports of the engines, port to listen on)."""

    def __init__(self, name, command, env=None):
        self.name, self.command, self.env = name, command, env or {}

    def start(self, started, folder, engines, port, core=PROXY_CORE):
        process = started.start(core, self.command(folder, engines, port), env=self.env)
        wait_for(port)
        answers(port)
        return process


def kinference(binaries, driver, log=True, threads=1):
    def command(folder, engines, port):
        return [str(binaries / "kinference"), "serve", "--listen", f"127.0.0.1:{port}", "--threads", str(threads), "--admin", "127.0.0.1:0",
                "--access-log", str(folder / "access.log") if log else "", "--driver", driver, *urls(engines)]
    return Peer(f"kinference {driver}", command)


def nginx():
    def command(folder, engines, port):
        servers = " ".join(f"server 127.0.0.1:{e};" for e in engines)
        return ["nginx", "-p", str(folder), "-c", fill(folder, "nginx.conf", servers, port)]
    return Peer("nginx", command)


def haproxy():
    def command(folder, engines, port):
        servers = "\n".join(f"  server e{i} 127.0.0.1:{e}" for i, e in enumerate(engines))
        return ["haproxy", "-db", "-f", fill(folder, "haproxy.cfg", servers, port)]
    return Peer("haproxy", command)


def router(name, path, policy):
    """sglang-router or vllm-router with a policy and its other defaults."""
    def command(_folder, engines, port):
        launch = [str(path), "launch"] if name == "sglang-router" else [str(path)]
        return [*launch, "--host", "127.0.0.1", "--port", str(port), "--policy", policy, "--prometheus-port", str(free_port()),
                "--worker-startup-check-interval", "1", "--log-level", "error", "--worker-urls", *urls(engines)]
    return Peer(f"{name} {policy}", command, ONE_THREAD)


def urls(engines):
    return [f"http://127.0.0.1:{e}" for e in engines]


def fill(folder, name, servers, port):
    text = (HERE / "peers" / name).read_text()
    for key, value in (("@DIR@", str(folder)), ("@SERVERS@", servers), ("@PORT@", str(port))):
        text = text.replace(key, value)
    path = folder / name
    path.write_text(text)
    return str(path)


def arguments(description, **defaults):
    """A parser with the arguments that all measurements take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=HERE.parent / "target" / "release", help="folder of the release binaries")
    parser.add_argument("--rounds", type=int, default=defaults.get("rounds", 3))
    parser.add_argument("--seconds", type=int, default=defaults.get("seconds", 4))
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of what is measured")
    parser.add_argument("--json", type=pathlib.Path, help="also write every round here")
    parser.add_argument("--ahead", action=Ahead, nargs=0, help="run ahead of the machine's other programs, as root: for one that is shared")
    return parser


def check_binaries(folder, names=("kinference", "loadtest")):
    for name in names:
        if not (folder / name).exists():
            sys.exit(f"{folder / name} is missing: cargo build --release -p lb -p loadtest")


def wanted(name, only):
    return not only or any(part in name for part in only)


def load(binaries, ports, args, seconds, report, core=LOAD_CORE):
    """One run of the load generator against a port, or several in turn; its report."""
    ports = [ports] if isinstance(ports, int) else ports
    targets = [x for port in ports for x in ("--target", f"http://127.0.0.1:{port}")]
    command = ["taskset", "-c", core, str(binaries / "loadtest"), "run", *targets, "--model", MODEL, *args,
               "--duration", f"{seconds}s", "--threads", "1", "--quiet", "--json", str(report)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return json.loads(report.read_text())


def answers(port, deadline_s=30):
    """Waits until a request goes through."""
    body = json.dumps({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}).encode()
    end = time.monotonic() + deadline_s
    while True:
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=5):
                return
        except OSError as error:
            if time.monotonic() > end:
                sys.exit(f"no answer through 127.0.0.1:{port}: {error}")
            time.sleep(0.1)


# What is measured side by side: name, what one unit of work is, engine arguments, load arguments.
SATURATED = ("small request, saturated", "answer", ["--instant"],
             ["--concurrency", "32", "--no-stream", "--prompt-tokens", "200", "--output-tokens", "4"])
STEADY = ("small request, 2,000/s", "answer", ["--instant"],
          ["--rate", "2000", "--no-stream", "--prompt-tokens", "200", "--output-tokens", "4"])
CHUNKS = ("SSE chunk, 128 streams at 200 chunks/s", "event",
          ["--base-us", "5000", "--decode-us", "0", "--kv-token-us", "0", "--prefill-token-us", "0", "--attention-pair-us", "0",
           "--max-num-seqs", "256"],
          ["--concurrency", "128", "--stream-share", "1", "--prompt-tokens", "50", "--output-tokens", "400"])
LONG = ("128 KB prompt", "answer", ["--instant", "--max-model-len", "200000"],
        ["--concurrency", "8", "--no-stream", "--prompt-tokens", "32768", "--output-tokens", "4"])


def side_by_side(started, binaries, work, peers, rounds, seconds):
    """name of peer -> a row for each round; rounds alternate between the peers."""
    _, unit, engine_args, load_args = work
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        engine, engines = started.engines(binaries, engine_args)
        for peer in [peer for _ in range(rounds) for peer in peers]:
            port = free_port()
            proxy = peer.start(started, folder, engines, port)
            load(binaries, port, load_args, 1, folder / "warm.json")
            before = cpu_us(proxy.pid)
            report = load(binaries, port, load_args, seconds, folder / "report.json")
            after = cpu_us(proxy.pid)
            if proxy.poll() is not None:
                sys.exit(f"{peer.name} has ended by itself; try: {' '.join(peer.command(folder, engines, port))}")
            started.stop(proxy)
            bad = {k: v for k, v in report["requests"].items() if k != "ok"}
            if bad:
                print(f"  {peer.name}: {bad}", file=sys.stderr)
            units = report["requests"].get("ok", 0) if unit == "answer" else round(report["events_per_s"] * report["elapsed_s"])
            user, system = ((a - b) / max(units, 1) for a, b in zip(after, before))
            results.setdefault(peer.name, []).append({
                "cpu_us": user + system, "user_us": user, "per_s": units / report["elapsed_s"],
                "p50_us": report["duration"]["p50_us"], "p99_us": report["duration"]["p99_us"]})
        started.stop(engine)
    return results


def raise_descriptors():
    """As many open files as the system allows, for this process and what it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# Engines that leave connections open between two requests for longer than a measurement, and run any number of them.
PATIENT = ["--instant", "--keep-alive", "600s", "--max-num-seqs", "8192"]


def chat(stream):
    """A small request as bytes. Prompts differ, as those of different users do."""
    chat.number += 1
    body = json.dumps({"model": MODEL, "stream": stream, "max_tokens": 16, "messages": [{"role": "user", "content": f"{chat.number:08d} " * 20}]})
    return f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


chat.number = 0


def exchange(port, stream, reader):
    """Opens a connection, sends one request and reads until `reader` has seen enough; the open socket."""
    s = socket.create_connection(("127.0.0.1", port), 10)
    s.sendall(chat(stream))
    seen = b""
    while not reader(seen):
        more = s.recv(65536)
        if not more:
            sys.exit(f"127.0.0.1:{port} has closed after {seen[:300]!r}")
        seen += more
    return s


def two_events(seen):
    return seen.count(b"data: ") >= 2


def whole_answer(seen):
    """A whole document, by its length, or in chunks."""
    head, blank, body = seen.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
    return bool(blank) and (len(body) >= int(length.group(1)) if length else body.endswith(b"0\r\n\r\n"))


def memory_each(started, binaries, peer, count, what):
    """Resident bytes of the proxy for each of `count` open idle streams or idle kept connections, after a warm-up. The kernel's own
    memory (sockets) is not in it."""
    raise_descriptors()
    stream, reader = (True, two_events) if what == "stream" else (False, whole_answer)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        engine, engines = started.engines(binaries, PATIENT)
        port = free_port()
        proxy = peer.start(started, folder, engines, port)
        load(binaries, port, ["--concurrency", "32", "--prompt-tokens", "50", "--output-tokens", "16"], 2, folder / "warm.json")
        if stream:
            # Each stream sends two events and then nothing.
            fault(engines, "hang-mid-stream=2")
        time.sleep(0.5)
        before = resident_kb(proxy.pid)
        opened = [exchange(port, stream, reader) for _ in range(count)]
        time.sleep(1)
        after = resident_kb(proxy.pid)
        for s in opened:
            s.close()
        started.stop(proxy)
        started.stop(engine)
    return (after - before) * 1024 / count


def fault(engines, name):
    """A standing fault of the engines, for requests that run the model."""
    for port in engines:
        body = json.dumps({"fault": name}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/fault", body, {"content-type": "application/json"})):
            pass


def medians(rows):
    return {k: statistics.median(r[k] for r in rows) for k in rows[0]}


def print_table(name, unit, results, base="nginx"):
    base_us = medians(results[base])["cpu_us"] if base in results else None
    print(f"\n{name} (CPU us per {unit}, medians of {len(next(iter(results.values())))} rounds)")
    print(f"| {'proxy':<25} | CPU us | user us | over {base} | {unit}s/s | p50 us | p99 us |")
    print(f"|{'-' * 27}|-------:|--------:|-----------:|--------:|-------:|-------:|")
    for peer, rows in results.items():
        mid = medians(rows)
        ratio = f"{mid['cpu_us'] / base_us:.2f}" if base_us else "-"
        print(f"| {peer:<25} | {mid['cpu_us']:6.1f} | {mid['user_us']:7.1f} | {ratio:>10} | {mid['per_s']:7.0f} | {mid['p50_us']:6.0f} | {mid['p99_us']:6.0f} |",
              flush=True)


def installed(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")

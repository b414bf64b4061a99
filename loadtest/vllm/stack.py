"""The processes under test: vLLM servers, the gateway, and the files they are given.

Every process runs in a group of its own, so that ending it ends what it started (a vLLM server is
three processes). `Stack.close` ends all of them, in reverse order, whatever happened before.
"""
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from client import fetch

HERE = Path(__file__).resolve().parent
SERVER_START_S_MAX = 400.0    # two at once took 90 s on two quiet cores; a busy machine takes longer
GATEWAY_START_S_MAX = 20.0
STOP_S_MAX = 20.0
POLL_S = 0.05
MODEL = "tiny"
ALIAS = "house-model"         # a name that only the policy decides where to send
LOG_TAIL_LINES = 15
# In bfloat16 one answer in ten changed with how its request was batched, on one server with itself;
# in float32 none of 200 did, so a difference is somebody's fault.
DTYPE = "float32"


class Failed(Exception):
    """The run cannot go on; the message says why."""


def free_ports(count):
    """Loopback ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


class Process:
    """A program in its own process group, its output in a file."""

    def __init__(self, name, argv, log, env=None):
        self.name = name
        self.log = log
        with open(log, "ab") as out:
            self.popen = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=out,
                                          stderr=subprocess.STDOUT, env=env, start_new_session=True)

    def alive(self):
        return self.popen.poll() is None

    def group_alive(self):
        """True while any process of the group is left, the first one's children included."""
        try:
            os.killpg(self.popen.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def signal_group(self, number):
        try:
            os.killpg(self.popen.pid, number)
        except ProcessLookupError:
            pass

    def kill(self):
        """SIGKILL to the whole group: no goodbye on any socket but the kernel's own. Returns when."""
        left_over = shared_memory(self.popen.pid)
        at = time.monotonic()
        self.signal_group(signal.SIGKILL)
        self.popen.wait()
        for path in left_over:
            path.unlink(missing_ok=True)
        return at

    def stop(self):
        """SIGTERM, then SIGKILL for what is left. Returns the exit status of the first process."""
        if self.alive():
            self.popen.terminate()
        limit = time.monotonic() + STOP_S_MAX
        while time.monotonic() < limit and (self.alive() or self.group_alive()):
            time.sleep(POLL_S)     # the last of the group removes its shared memory
        if self.group_alive():
            print(f"{self.name} did not stop in {STOP_S_MAX:.0f} s; killed", flush=True)
            self.kill()
        return self.popen.wait()

    def tail(self):
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"  | {line}" for line in lines[-LOG_TAIL_LINES:])

    def wait_ready(self, address, path, limit_s):
        """Waits for 200 on `path`; raises if the process ends or the limit passes."""
        limit = time.monotonic() + limit_s
        while fetch(address, path)[0] != 200:
            if not self.alive():
                raise Failed(f"{self.name} ended with {self.popen.returncode}:\n{self.tail()}")
            if time.monotonic() > limit:
                raise Failed(f"{self.name} was not ready in {limit_s:.0f} s:\n{self.tail()}")
            time.sleep(POLL_S)


def shared_memory(group):
    """Files in /dev/shm that processes of a group hold: killed, they cannot remove them themselves."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == group:
                found |= set(re.findall(r" (/dev/shm/\S+)$", (process / "maps").read_text(), re.MULTILINE))
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            continue
    return [Path(name) for name in found]


class Engine:
    """One vLLM server at an address that outlives its process."""

    def __init__(self, address, process=None, core=0):
        self.address = address
        self.process = process     # None: somebody else's, not to be ended here
        self.core = core

    def url(self):
        return f"http://{self.address}"


class Stack:
    """What this run started, and the folder with its files and logs."""

    def __init__(self, venv):
        self.venv = venv
        self.folder = Path(tempfile.mkdtemp(prefix="kinference-vllm-"))
        self.resources = self.folder / "resources"
        self.resources.mkdir()
        self._processes = []

    def start(self, name, argv, env=None):
        process = Process(name, argv, self.folder / f"{name}.log", env)
        self._processes.append(process)
        return process

    def end_all(self):
        """Ends every process that runs."""
        for process in reversed(self._processes):
            process.stop()

    def close(self):
        """Ends everything. A second Ctrl-C while it does so is not heard, so nothing is left over."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for process in reversed(self._processes):
            if process.alive():
                process.popen.terminate()
        for process in reversed(self._processes):
            process.stop()

    def start_engine(self, engine, extra=(), env=None):
        """Starts the server of `engine`, with further arguments and variables; does not wait for it."""
        port = engine.address.rsplit(":", 1)[1]
        env = {**os.environ, "VENV": str(self.venv), "MODEL": MODEL, "CORE": str(engine.core), **(env or {})}
        argv = [HERE / "start.sh", port, "--enable-prompt-tokens-details", "--dtype", DTYPE, *extra]
        engine.process = self.start(f"vllm-{port}", argv, env)

    def start_engines(self, count, extra=()):
        """`count` ready servers, each with a core of its own as far as there are cores."""
        engines = [Engine(f"127.0.0.1:{port}", core=i % os.cpu_count())
                   for i, port in enumerate(free_ports(count))]
        for engine in engines:
            self.start_engine(engine, extra)
        for engine in engines:
            engine.process.wait_ready(engine.address, "/health", SERVER_START_S_MAX)
        return engines


class Gateway:
    """`kinference serve` in front of two engines, with a resource folder that can be rewritten."""

    def __init__(self, stack, binary, engines, fields=("", "")):
        """`fields`: further lines of the two worker sets."""
        self.stack = stack
        port, admin_port = free_ports(2)
        self.address, self.admin = f"127.0.0.1:{port}", f"127.0.0.1:{admin_port}"
        self.access_log = AccessLog(stack.folder / "access.jsonl")
        self.policy_file = stack.resources / "policy.yaml"
        (stack.resources / "fleet.yaml").write_text(fleet_yaml(engines, fields))
        self.write_policy(redirect_policy("house-to-left", "left"))
        server_file = stack.folder / "kinference.yaml"
        server_file.write_text(server_yaml(self.address, self.admin, stack.resources, self.access_log.path))
        self.process = stack.start("kinference", [binary, "serve", "--config", server_file])
        self.process.wait_ready(self.admin, "/readyz", GATEWAY_START_S_MAX)

    def write_policy(self, text):
        """Replaces the policy file in one step, as an editor does; returns the time of the change."""
        fresh = self.policy_file.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, self.policy_file)
        return time.monotonic()

    def overwrite_policy(self, text):
        """Writes over the policy file in place, as `cat >` does; returns the time of the change."""
        self.policy_file.write_text(text)
        return time.monotonic()

    def refusals(self):
        """Every (line, column) that /config or the log names for the policy file."""
        places = {(int(a), int(b)) for a, b in re.findall(
            re.escape(self.policy_file.name) + r":(\d+):(\d+)", self.process.log.read_text(errors="replace"))}
        status, body = fetch(self.admin, "/config")
        if status == 200:
            text = body.decode(errors="replace")
            places |= {(int(a), int(b))
                       for a, b in re.findall(re.escape(self.policy_file.name) + r":(\d+):(\d+)", text)}
            places |= set(positions(json.loads(text), self.policy_file.name))
        return places


def positions(value, file_name):
    """(line, column) of every object in a JSON value that names `file_name` as its file."""
    if isinstance(value, list):
        for item in value:
            yield from positions(item, file_name)
    elif isinstance(value, dict):
        if str(value.get("file", "")).endswith(file_name) and "line" in value and "column" in value:
            yield int(value["line"]), int(value["column"])
        for item in value.values():
            yield from positions(item, file_name)


class AccessLog:
    """The gateway's JSON lines, found again by request id."""

    def __init__(self, path):
        self.path = path

    def lines(self):
        """request id -> the line's object. Half-written last lines are left for the next call."""
        try:
            text = self.path.read_text(errors="replace")
        except FileNotFoundError:
            return {}
        found = {}
        for line in text[:text.rfind("\n") + 1].splitlines():
            entry = json.loads(line)
            found[entry.get("id", entry.get("request_id"))] = entry
        return found

    def of(self, ids, limit_s=5.0):
        """The lines of `ids`, waiting a little for the last ones to be written."""
        limit = time.monotonic() + limit_s
        while True:
            lines = self.lines()
            if all(i in lines for i in ids) or time.monotonic() > limit:
                return {i: lines[i] for i in ids if i in lines}
            time.sleep(POLL_S)


def server_yaml(address, admin, resources, access_log):
    return f"""\
listeners:
  - address: {address}
admin: {{ address: "{admin}" }}
resources: ["{resources}"]
accessLog: {{ path: "{access_log}" }}
decisionHeaders: Shown
drainTimeout: 10s
"""


def fleet_yaml(engines, fields=("", "")):
    """Two worker sets of one model, one server each, so that a policy can tell them apart."""
    documents = []
    for side, engine, more in zip(("left", "right"), engines, fields, strict=True):
        host, port = engine.address.rsplit(":", 1)
        aliases = f"{side}-model" + (f", {ALIAS}" if side == "left" else "")
        documents.append(f"""\
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceWorkerSet
metadata: {{ name: {side}-vllm, namespace: default }}
spec:
  model: {{ name: {MODEL}, aliases: [{aliases}], contextWindow: 16384 }}
  endpoints: [{{ address: {host}, port: {port} }}]
{more}""")
    documents.append("""\
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePool
metadata: { name: local, namespace: default }
spec:
  destinations:
    - { kind: InferenceWorkerSet, name: left-vllm }
    - { kind: InferenceWorkerSet, name: right-vllm }
  policyRef: [{ name: redirect }]
""")
    return "---\n".join(documents)


def redirect_policy(rule, side):
    """The policy that sends ALIAS to one of the two worker sets."""
    return f"""\
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePolicy
metadata: {{ name: redirect, namespace: default }}
spec:
  rules:
    - name: {rule}
      matches: [{{ model: {ALIAS} }}]
      route:
        consider:
          - models: {{ names: [{side}-model] }}
        select: [{{ type: Local, minimize: PredictedTTFT }}]
"""

"""A real kube-apiserver with its etcd, gateways beside it and what is applied: what real_apiserver.py tries things with."""

import base64
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GROUP = "kinference.buoyant.io"
VERSION = f"{GROUP}/v1alpha1"
KINDS = {
    "InferencePolicy": "inferencepolicies",
    "InferencePool": "inferencepools",
    "InferenceWorkerSet": "inferenceworkersets",
    "InferenceProvider": "inferenceproviders",
    "InferenceTenant": "inferencetenants",
    "InferenceClassifier": "inferenceclassifiers",
}
# Anything that must happen does so within this; only a failing run waits so long.
PATIENCE_S = 30
# From a change to its effect (docs/kubernetes.md: "within a second").
EFFECT_S = 1.0
MODEL = "real/model"
KEY = "alice's own"


class Failed(Exception):
    """Something is not as it should be."""


def expect(condition, message):
    if not condition:
        raise Failed(message)


def eventually(what, look, within=PATIENCE_S):
    """Looks until there is something; what it is, and after how many seconds."""
    began = time.monotonic()
    said = None
    while time.monotonic() - began < within:
        try:
            found = look()
            if found:
                return found, time.monotonic() - began
        except (OSError, http.client.HTTPException, KeyError, IndexError, TypeError, ValueError) as error:
            said = error
        time.sleep(0.01)
    raise Failed(f"not within {within} s: {what}{f' ({said})' if said else ''}")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    """A child whose output goes to a file."""

    def __init__(self, name, command, folder, env=None, cwd=None):
        # A gateway of a later part has the name of an earlier one, and a log of its own.
        self.log = next(log for number in range(1_000) if not (log := folder / f"{name}.{number}.log").exists())
        self.command, self.env, self.cwd = [str(c) for c in command], env, cwd
        self.child = None
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            env = {**os.environ, **(self.env or {})}
            self.child = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, cwd=self.cwd)

    def text(self):
        return self.log.read_text(errors="replace")

    def kill(self):
        self.child.kill()
        self.child.wait()

    def end(self, within=20):
        """As a kubelet ends it; its exit code."""
        self.child.terminate()
        return self.child.wait(within)


class Api:
    """The API server as its administrator sees it."""

    def __init__(self, port, token, ca):
        self.port, self.token = port, token
        self.ca = ca

    def ask(self, method, path, body=None, media="application/json", token=None):
        tls = ssl.create_default_context(cafile=str(self.ca))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=15, context=tls)
        headers = {"authorization": f"Bearer {token or self.token}", "content-type": media}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, json.loads(text) if text.startswith("{") else text

    def get(self, path):
        status, body = self.ask("GET", path)
        expect(status == 200, f"GET {path}: {status} {body}")
        return body


class Rig:
    """etcd, kube-apiserver, engines and what is made for one run."""

    def __init__(self, folder, arguments):
        self.folder, self.arguments = folder, arguments
        self.processes = []
        self.engine_port = None
        tools = {name: os.environ.get(name, default) for name, default in [
            ("KUBE_APISERVER", "kube-apiserver"), ("ETCD", "etcd"), ("ETCDCTL", "etcdctl"), ("KUBECTL", "kubectl"),
        ]}
        for name, tool in tools.items():
            if not shutil.which(tool):
                sys.exit(f"{name}={tool} is not there; see the head of deploy/check/real_apiserver.py")
        self.tools = tools

    def start(self):
        """Starts etcd and kube-apiserver, and waits until they are ready."""
        self.etcd_url = f"http://127.0.0.1:{free_port()}"
        self.port = free_port()
        self.secrets()
        self.start_etcd()
        self.apiserver = self.start_apiserver()
        self.api = Api(self.port, self.admin, self.folder / "certs/apiserver.crt")
        eventually("kube-apiserver is ready", self.is_ready, 120)
        self.version = self.api.get("/version")["gitVersion"]
        self.minor = int(re.match(r"v1\.(\d+)", self.version).group(1))
        self.kubeconfig = self.write_kubeconfig("admin", f"token: {self.admin}")

    def secrets(self):
        self.admin = base64.urlsafe_b64encode(os.urandom(24)).decode().rstrip("=")
        (self.folder / "tokens.csv").write_text(f"{self.admin},admin,admin,system:masters\n")
        subprocess.run(["openssl", "genrsa", "-out", self.folder / "accounts.key", "2048"], check=True, capture_output=True)

    def start_etcd(self):
        peers = f"http://127.0.0.1:{free_port()}"
        command = [self.tools["ETCD"], "--data-dir", self.folder / "etcd", "--listen-client-urls", self.etcd_url]
        command += ["--advertise-client-urls", self.etcd_url, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        command += ["--initial-cluster", f"default={peers}", "--unsafe-no-fsync" if self.etcd_has("unsafe-no-fsync") else "--log-level=warn"]
        self.processes.append(Process("etcd", command, self.folder))

    def etcd_has(self, flag):
        said = subprocess.run([self.tools["ETCD"], "--help"], capture_output=True, text=True, check=False)
        return flag in said.stdout + said.stderr

    def start_apiserver(self):
        command = [self.tools["KUBE_APISERVER"], "--etcd-servers", self.etcd_url, "--bind-address=127.0.0.1", f"--secure-port={self.port}"]
        command += ["--cert-dir", self.folder / "certs", "--token-auth-file", self.folder / "tokens.csv", "--authorization-mode=RBAC"]
        command += ["--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={self.folder}/accounts.key"]
        command += [f"--service-account-signing-key-file={self.folder}/accounts.key", "--service-cluster-ip-range=10.0.0.0/24"]
        # There is no controller manager to give each namespace its account, and nobody to be told of another address.
        command += ["--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none"]
        process = Process("kube-apiserver", command, self.folder, cwd=self.folder)
        self.processes.append(process)
        return process

    def is_ready(self):
        status, _ = self.api.ask("GET", "/readyz")
        # The roles of the system come a moment after the first answer.
        return status == 200 and self.api.ask("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin")[0] == 200

    def write_kubeconfig(self, name, user, namespace="default"):
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(
            f"apiVersion: v1\nkind: Config\ncurrent-context: c\n"
            f"clusters: [{{ name: c, cluster: {{ server: 'https://127.0.0.1:{self.port}', certificate-authority: {self.folder}/certs/apiserver.crt }} }}]\n"
            f"users: [{{ name: u, user: {{ {user} }} }}]\n"
            f"contexts: [{{ name: c, context: {{ cluster: c, user: u, namespace: {namespace} }} }}]\n"
        )
        return path

    def kubectl(self, *arguments, text=None, fails=False):
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.folder)}
        said = subprocess.run([self.tools["KUBECTL"], *arguments], input=text, capture_output=True, text=True, env=env, check=False)
        expect((said.returncode != 0) == fails, f"kubectl {' '.join(arguments)}: {said.returncode} {said.stdout}{said.stderr}")
        return said.stderr if fails else said.stdout

    def apply(self, text):
        return self.kubectl("apply", "-f", "-", text=text)

    def start_engines(self, count=2):
        self.engine_port = free_port()
        command = [self.arguments.loadtest, "engine", "--model", MODEL, "--base-us", "10000"]
        for number in range(count):
            command += ["--listen", f"127.0.0.{number + 2}:{self.engine_port}"]
        self.processes.append(Process("engines", command, self.folder))

    def close(self):
        for process in reversed(self.processes):
            if process.child.poll() is None:
                process.child.terminate()
        for process in reversed(self.processes):
            try:
                process.child.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


class Gateway:
    """One gateway, as its pod would run it: with the token of its account and its rights alone."""

    def __init__(self, rig, name="gateway-0", namespaces=(), account=None):
        self.rig, self.name = rig, name
        self.token = (account or rig.folder) / ("token" if account else f"{name}.token")
        self.rotate()
        source = {"enabled": True, "namespaces": list(namespaces)}
        if not account:
            source["kubeconfig"] = str(rig.write_kubeconfig(name, f"tokenFile: {self.token}"))
        file = rig.folder / f"{name}.yaml"
        file.write_text(json.dumps({
            "listeners": [{"address": "127.0.0.1:0"}], "admin": {"address": "127.0.0.1:0"}, "dataThreads": 1, "accessLog": {"path": ""},
            "kubernetes": source, "drainTimeout": "10s",
        }))
        env = {"POD_NAME": name, "POD_NAMESPACE": "kinference"}
        command = [rig.arguments.binary, "serve", "--config", file]
        if account:
            # The account where a kubelet mounts it, in a view of the file system of its own.
            env |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(rig.port), "KUBECONFIG": "", "HOME": "/"}
            place = "/run/secrets/kubernetes.io/serviceaccount"
            mounts = f"mount -t tmpfs none /run && mkdir -p {place} && mount --bind {account} {place} && exec \"$@\""
            command = ["unshare", "--mount", "sh", "-c", mounts, "sh", *command]
        self.process = Process(name, command, rig.folder, env)
        rig.processes.append(self.process)
        self.address = self.find(r'msg=listening address=(\S+)')
        self.admin = self.find(r'msg="admin server listening" address=(\S+)')

    def rotate(self):
        """A new token, as the kubelet would put it in place of the old one."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
        path = "/api/v1/namespaces/kinference/serviceaccounts/kinference/token"
        status, answer = self.rig.api.ask("POST", path, body)
        expect(status == 201, f"no token: {status} {answer}")
        new = self.token.with_suffix(".new")
        new.write_text(answer["status"]["token"])
        new.replace(self.token)

    def find(self, pattern):
        return eventually(pattern, lambda: re.search(pattern, self.process.text()))[0].group(1)

    def wait_for_line(self, *words, within=PATIENCE_S):
        found = lambda: next((line for line in self.process.text().splitlines() if all(w in line for w in words)), None)
        return eventually(f"a line with {words}", found, within)[0]

    def get(self, path):
        connection = http.client.HTTPConnection(self.admin, timeout=5)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def config(self):
        return json.loads(self.get("/config")[1])

    def readyz(self):
        status, body = self.get("/readyz")
        return status, json.loads(body)

    def metric(self, name):
        found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return float(found.group(1)) if found else None

    def chat(self, model="real", key=None, tokens=1, timeout=20):
        """Status and body of one request."""
        connection = http.client.HTTPConnection(self.address, timeout=timeout)
        body = {"model": model, "max_tokens": tokens, "messages": [{"role": "user", "content": "hello"}]}
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def endpoints(self):
        """By name; those of pods are called `POD:PORT`."""
        return {e["name"]: e for e in json.loads(self.get("/endpoints")[1])["endpoints"]}

    def ready_pods(self):
        return sorted(name for name, e in self.endpoints().items() if name.startswith("vllm-") and e["readiness"] == "ready")


class Load:
    """Clients that ask without a pause, and count what does not go well."""

    def __init__(self, gateway, clients=4, key=None):
        self.gateway, self.key = gateway, key
        self.bad, self.good, self.over = [], 0, False
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def run(self):
        while not self.over:
            try:
                status, body = self.gateway.chat(key=self.key)
                if status == 200:
                    self.good += 1
                else:
                    self.bad.append(f"{status} {body[:200]}")
            except (OSError, http.client.HTTPException) as error:
                self.bad.append(repr(error))

    def more(self, count=50):
        """Waits until so many more have gone well."""
        before = self.good
        eventually("requests go on", lambda: self.good >= before + count)

    def finish(self):
        self.over = True
        for thread in self.threads:
            thread.join(30)
        expect(not self.bad, f"{len(self.bad)} requests failed: {self.bad[:5]}")
        return self.good


# ---- what is applied ----


def document(kind, name, spec, namespace="default"):
    """One object, as JSON, which is YAML too."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def yaml_of(*documents):
    return "".join(f"---\n{json.dumps(d)}\n" for d in documents)


def workers(name="workers", alias="real", **more):
    spec = {"model": {"name": MODEL, "aliases": [alias]}, "selector": {"matchLabels": {"app": "vllm"}}, "metrics": {"interval": "100ms"}}
    return document("InferenceWorkerSet", name, {**spec, **more})


def pool(*destinations, name="pool", **more):
    listed = [{"kind": kind, "name": destination} for kind, destination in destinations or [("InferenceWorkerSet", "workers")]]
    return document("InferencePool", name, {"destinations": listed, **more})


def six_kinds(rig, alias="real"):
    """One of each, that need each other."""
    provider = {"type": "OpenAI", "baseURL": "http://127.0.0.1:9/v1", "models": [{"name": "big"}]}
    tenant = {"apiKeys": [{"sha256": hashlib.sha256(KEY.encode()).hexdigest()}]}
    rule = {"name": "here", "matches": [{"tags": {"none": ["greeting"]}}], "route": {"select": [{"type": "Local"}]}}
    greeting = {"name": "greeted", "route": {"select": [{"type": "Local"}, {"type": "External"}]}}
    return [
        workers(alias=alias, port=rig.engine_port),
        document("InferenceProvider", "hosted", provider),
        document("InferenceClassifier", "words", {"type": "Keywords", "tags": [{"tag": "greeting", "any": ["hello"]}]}),
        document("InferenceTenant", "alice", tenant),
        document("InferencePolicy", "local", {"rules": [rule, greeting]}),
        pool(("InferenceWorkerSet", "workers"), ("InferenceProvider", "hosted"), policyRef=[{"name": "local"}]),
    ]


def run_pod(rig, number):
    """A pod whose server is an engine, ready as its kubelet would say."""
    spec = {"nodeName": "node-1", "containers": [{"name": "vllm", "image": "vllm"}], "automountServiceAccountToken": False}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"vllm-{number}", "labels": {"app": "vllm"}}, "spec": spec}
    status, answer = rig.api.ask("POST", "/api/v1/namespaces/default/pods", pod)
    expect(status == 201, f"no pod: {status} {answer}")
    ready = {"type": "Ready", "status": "True"}
    status, answer = rig.api.ask(
        "PATCH", f"/api/v1/namespaces/default/pods/vllm-{number}/status",
        {"status": {"phase": "Running", "podIP": f"127.0.0.{number + 2}", "conditions": [ready]}}, "application/strategic-merge-patch+json",
    )
    expect(status == 200, f"no status: {status} {answer}")


def clean(rig):
    """Nothing of ours is left."""
    for plural in KINDS.values():
        rig.api.ask("DELETE", f"/apis/{VERSION}/namespaces/default/{plural}")
    pods = rig.api.get("/api/v1/namespaces/default/pods")["items"]
    for found in pods:
        rig.api.ask("DELETE", f"/api/v1/namespaces/default/pods/{found['metadata']['name']}", {"gracePeriodSeconds": 0})


def stored(rig, kind, name):
    return rig.api.get(f"/apis/{VERSION}/namespaces/default/{KINDS[kind]}/{name}")


def condition(found, name):
    listed = found.get("status", {}).get("conditions", [])
    return next((c for c in listed if c["type"] == name), {"status": "", "reason": "", "message": ""})


def wait_for_condition(rig, kind, name, what, status, *words, within=PATIENCE_S):
    def look():
        found = stored(rig, kind, name)
        c = condition(found, what)
        current = c.get("observedGeneration") == found["metadata"]["generation"]
        return c if current and c["status"] == status and all(w in c["message"] for w in words) else None
    return eventually(f"{kind} {name}: {what} is {status} with {words}; it is {condition(stored(rig, kind, name), what)}", look, within)[0]


def pods_and_resources(rig, gateway, key=None):
    """Two engines as pods, and all six kinds; from then on requests are answered."""
    for number in range(2):
        run_pod(rig, number)
    rig.apply(yaml_of(*six_kinds(rig)))
    wait_for_pods(gateway, 2)
    eventually("requests are answered", lambda: gateway.chat(key=KEY)[0] == 200)


def wait_for_pods(gateway, count):
    eventually(f"{count} pods are ready", lambda: len(gateway.ready_pods()) == count)


def access(rig):
    """Namespace, account and rights of the rendered manifest, and nothing else of it."""
    wanted = {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    documents = re.split(r"^---$", (ROOT / "deploy/manifests/deployment.yaml").read_text(), flags=re.MULTILINE)
    kept = [d for d in documents if (found := re.search(r"^kind: (\w+)$", d, re.MULTILINE)) and found.group(1) in wanted]
    if not any("kind: Namespace" in d for d in kept):
        kept.insert(0, "\napiVersion: v1\nkind: Namespace\nmetadata: { name: kinference }\n")
    return "---".join(kept)

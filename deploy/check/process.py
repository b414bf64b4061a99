"""Runs the binary: as a rendering says, in a folder of its own and on ports of its own; as the demo; over a server with a name."""

import http.client
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading

import yaml

# Stands in for the documents that a cluster would have; nobody listens there.
DOCUMENTS = """
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferenceWorkerSet
metadata: { name: chat, namespace: models }
spec: { model: { name: m }, endpoints: [{ address: 127.0.0.1, port: 1 }] }
---
apiVersion: kinference.buoyant.io/v1alpha1
kind: InferencePool
metadata: { name: chat, namespace: models }
spec: { destinations: [{ kind: InferenceWorkerSet, name: chat }] }
"""
# An API server that is away, in place of the pod's account.
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{ name: c, cluster: { server: "http://127.0.0.1:1" } }]
users: [{ name: u, user: {} }]
contexts: [{ name: x, context: { cluster: c, user: u } }]
current-context: x
"""
WITHIN_S = 20


class Running:
    """A process whose log is read, and that is ended with the `with` block, or after a while."""

    def __init__(self, command, env=None):
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
        )
        self.said = ""
        self.addresses = []
        self.stop = threading.Timer(WITHIN_S, self.process.kill)

    def __enter__(self):
        self.stop.start()
        return self

    def __exit__(self, *_):
        self.stop.cancel()
        self.process.kill()
        self.process.wait()

    def until(self, *words):
        """Reads the log up to a line with one of the words; the line, or None when the process has ended."""
        for line in self.process.stderr:
            self.said += line
            self.addresses += re.findall(r'msg=(?:listening|"admin server listening") address=(\S+)', line)
            if any(word in line for word in words):
                return line
        return None

    def end(self):
        """Ends it as a kubelet does, and reads what is left. How it ended; -31 is a call that the seccomp profile lacks."""
        self.process.terminate()
        self.said += self.process.communicate()[1]
        return self.process.returncode


def get(address, path):
    connection = http.client.HTTPConnection(address, timeout=5)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def certificate(folder, name):
    """A certificate for itself, for tests alone."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-keyout", folder / "tls.key", "-out", folder / "tls.crt"]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "ca.crt").write_bytes((folder / "tls.crt").read_bytes())


def put_files(folder, server, found):
    """The files that the pod would have mounted, and the server's file that names them, on free ports of loopback."""
    resources = folder / "resources"
    resources.mkdir()
    documents = [o["data"] for o in found if o["kind"] == "ConfigMap" and o["metadata"]["name"].endswith("-resources")]
    for name, text in (documents[0] if documents else {"chat.yaml": DOCUMENTS}).items():
        (resources / name).write_text(text)
    for listener in server["listeners"]:
        listener["address"] = "127.0.0.1:0"
        for field, path in listener.get("tls", {}).items():
            target = pathlib.Path(path.replace("/etc/kinference", str(folder)))
            if not target.parent.exists():
                target.parent.mkdir(parents=True)
                certificate(target.parent, "gateway.test")
            listener["tls"][field] = str(target)
    server["admin"]["address"] = "127.0.0.1:0"
    if "balancers" in server:
        server["balancers"] |= {"address": "127.0.0.1:0", "peers": ["127.0.0.1:1"]}
    if "resources" in server:
        server["resources"] = [str(resources)]
    file = folder / "kinference.yaml"
    file.write_text(yaml.safe_dump(server))
    (folder / "kubeconfig").write_text(KUBECONFIG)
    return file


def run_rendering(name, found, template, server_text, command, expect):
    """Starts it, asks what the kubelet would ask, ends it. What to print of it."""
    (container,) = template["spec"]["containers"]
    live, ready = (container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe"))
    server = yaml.safe_load(server_text)
    # Nobody is there to be routed to, and no API server to say so.
    reason = "no configuration is in force yet" if "kubernetes" in server else "no endpoint is ready"
    with tempfile.TemporaryDirectory() as folder:
        file = put_files(pathlib.Path(folder), server, found)
        arguments = [str(file) if a == "/etc/kinference/kinference.yaml" else a for a in container["args"]]
        env = {"POD_NAME": "kinference-0", "POD_NAMESPACE": "kinference", "KUBECONFIG": f"{folder}/kubeconfig", "KINFERENCE_BALANCERS": "0123456789abcdef"}
        with Running([*command, *arguments], env) as running:
            if running.until("configuration in force", "API server does not answer"):
                address = running.addresses[-1]
                expect(get(address, live)[0] == 200, f"{name}: {live} does not answer 200")
                status, body = get(address, ready)
                expect(status == 503 and reason in body, f"{name}: {ready} answers {status} {body}")
            code = running.end()
            expect(code == 0, f"{name}: it ends with {code}: {running.said}")
    return f"; ran with {' '.join(container['args'])}"


def demo(binary, before=(), driver="auto"):
    """Runs the demo, perhaps under another command, and asks it one thing. What it logged, its /metrics, and how it ended."""
    command = [*before, binary, "demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--driver", driver]
    with Running(command) as running:
        metrics = ""
        if running.until('msg="endpoint ready"'):
            gateway, admin = running.addresses
            body = {"model": "demo", "stream": True, "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}
            connection = http.client.HTTPConnection(gateway, timeout=5)
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            if connection.getresponse().read().decode().rstrip().endswith("[DONE]"):
                metrics = get(admin, "/metrics")[1]
        code = running.end()
        return running.said, metrics, code


def find_name(binary, before, name):
    """Runs it over one server with a name. What it says against the name; empty when the name has an address."""
    with Running([*before, binary, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", f"http://{name}:1"]) as running:
        # Nobody listens there: what has an address is refused, what has none is not looked up.
        line = running.until(f"server={name}:1") or running.said
        return "" if "Connection refused" in line else line

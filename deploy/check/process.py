"""Runs the binary as a rendering says, in a folder of its own and on ports of its own."""

import http.client
import json
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
WITHIN_S = 20


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
    # There is no API server here; all else of the file is as rendered.
    server.pop("kubernetes", None)
    server["resources"] = [str(resources)]
    file = folder / "kinference.yaml"
    file.write_text(yaml.safe_dump(server))
    return file


def get(address, path):
    connection = http.client.HTTPConnection(address, timeout=5)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def run_rendering(name, found, template, server_text, command, expect):
    """Starts it, asks what the kubelet would ask, ends it. What to print of it."""
    (container,) = template["spec"]["containers"]
    with tempfile.TemporaryDirectory() as folder:
        file = put_files(pathlib.Path(folder), yaml.safe_load(server_text), found)
        arguments = [str(file) if a == "/etc/kinference/kinference.yaml" else a for a in container["args"]]
        process = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        stop = threading.Timer(WITHIN_S, process.kill)
        stop.start()
        try:
            said, address = [], None
            for line in process.stderr:
                said.append(line)
                found_address = re.search(r'msg="admin server listening" address=(\S+)', line)
                address = found_address.group(1) if found_address else address
                if 'msg="configuration in force"' in line:
                    break
            else:
                expect(False, f"{name}: the process ends with {process.wait()} (-31: a call that the seccomp profile lacks): {''.join(said)}")
                return ""
            live, ready = (container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe"))
            expect(get(address, live)[0] == 200, f"{name}: {live} does not answer 200")
            status, body = get(address, ready)
            expect(status == 503 and "no endpoint is ready" in body, f"{name}: {ready} answers {status} {body}")
            process.terminate()
            process.communicate()
            expect(process.returncode == 0, f"{name}: SIGTERM ends it with {process.returncode}")
            return f"; ran with {' '.join(container['args'])}"
        finally:
            stop.cancel()
            process.kill()
            process.wait()


def demo(binary, before=(), driver="auto"):
    """Runs the demo, perhaps under another command, and asks it one thing. What it logged, its /metrics, and how it ended."""
    command = [*before, binary, "demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--driver", driver]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    stop = threading.Timer(WITHIN_S, process.kill)
    stop.start()
    try:
        addresses, said = [], []
        for line in process.stderr:
            said.append(line)
            addresses += re.findall(r'msg=(?:listening|"admin server listening") address=(\S+)', line)
            if 'msg="endpoint ready"' in line:
                break
        else:
            return "".join(said), "", process.wait()
        gateway, admin = addresses
        body = {"model": "demo", "stream": True, "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}
        connection = http.client.HTTPConnection(gateway, timeout=5)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse().read().decode()
        metrics = get(admin, "/metrics")[1] if answer.rstrip().endswith("[DONE]") else ""
        process.terminate()
        said.append(process.communicate()[1])
        return "".join(said), metrics, process.returncode
    finally:
        stop.cancel()
        process.kill()
        process.wait()


def find_name(binary, before, name):
    """Runs it over one server with a name. What it says against the name; empty when the name has an address."""
    command = [*before, binary, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", f"http://{name}:1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    stop = threading.Timer(WITHIN_S, process.kill)
    stop.start()
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            # Nobody listens there: what has an address is refused, what has none is not looked up.
            if f"server={name}:1" in line:
                return "" if "Connection refused" in line else line
        return "".join(said)
    finally:
        stop.cancel()
        process.kill()
        process.wait()

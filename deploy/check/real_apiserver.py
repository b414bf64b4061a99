#!/usr/bin/env python3
"""Runs the gateway beside a real kube-apiserver and etcd, and holds it to what docs/kubernetes.md says.

Not a part of .ci/run: no package registry has a kube-apiserver that runs, so whoever has one runs this by hand, before a release and
after a change of config/src/source/kube or of the definitions:

    KUBE_APISERVER=/path/kube-apiserver deploy/check/real_apiserver.py --binary target/debug/kinference --loadtest target/debug/loadtest

Debian's source package `kubernetes` builds one (1.20, see docs/testing.md); `setup-envtest` and Kubernetes's own releases have newer ones.

    KUBE_APISERVER   kube-apiserver, 1.20 or later
    ETCD, ETCDCTL    of 3.4 or later (Debian: etcd-server, etcd-client)          [etcd, etcdctl]
    KUBECTL          (Debian: kubernetes-client)                                 [kubectl]
    ONLY             parts to run, by a piece of their name, separated by commas [all]
    KEEP             keep the folder with logs

Everything listens on 127.0.0.1, on free ports, and ends with the script; keys and tokens are made for the run. Engines are simulated; pods
are objects whose status the script writes, as a kubelet would. Needs Python 3.9 and openssl. Exits 1 when something is not as it should be.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from real_cluster import (
    EFFECT_S,
    GROUP,
    KEY,
    KINDS,
    MODEL,
    ROOT,
    VERSION,
    Failed,
    Gateway,
    Load,
    Rig,
    access,
    clean,
    condition,
    document,
    eventually,
    expect,
    pods_and_resources,
    pool,
    run_pod,
    six_kinds,
    stored,
    wait_for_condition,
    wait_for_pods,
    workers,
    yaml_of,
)

# ---- the parts; each leaves what it found ----


def part_a_start_without_definitions(rig, say):
    gateway = Gateway(rig)
    gateway.wait_for_line("CustomResourceDefinitions are not installed", "kubectl apply")
    status, body = gateway.readyz()
    expect(status == 503 and any("kubectl apply" in reason for reason in body["reasons"]), f"/readyz: {status} {body}")
    say(f"/readyz without definitions: {status} {body['reasons']}")
    said = rig.kubectl("apply", *(["--validate=false"] if rig.minor < 25 else []), "-f", str(ROOT / "crds/yaml"))
    began = time.monotonic()
    expect(len(said.splitlines()) == len(KINDS), said)
    gateway.wait_for_line("configuration in force")
    say(f"definitions applied; the waiting gateway went on after {time.monotonic() - began:.2f} s")
    rig.kubectl("wait", "--for=condition=Established", "--timeout=20s", *[f"crd/{plural}.{GROUP}" for plural in KINDS.values()])
    for plural in KINDS.values():
        conditions = rig.api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{GROUP}")["status"]["conditions"]
        wrong = [c for c in conditions if c["type"] == "NonStructuralSchema" or c["status"] != "True"]
        expect(not wrong, f"{plural}: {wrong}")
    expect(gateway.process.end() == 0, "it ends with an error")


BAD = [
    ("InferencePool", "p", {"destinations": [{"kind": "InferenceWorkerSets", "name": "w"}]}, "spec.destinations[0].kind", 16),
    ("InferencePool", "p", {"destinations": []}, "spec.destinations", 16),
    ("InferenceWorkerSet", "w", {"model": {}}, "spec.model.name", 16),
    ("InferenceWorkerSet", "w", {"model": {"name": "m"}, "port": 70000, "selector": {"matchLabels": {"a": "b"}}}, "spec.port", 16),
    ("InferencePolicy", "p", {"rules": [{"name": "r", "route": {}, "deny": {"status": 403}}]}, "spec.rules[0]", 25),
    ("InferenceTenant", "t", {"apiKeys": [{"sha256": "short"}]}, "spec.apiKeys[0].sha256", 16),
    ("InferenceProvider", "p", {"type": "Azure", "baseURL": "http://x/v1", "models": [{"name": "m"}]}, "spec.type", 16),
    ("InferenceClassifier", "c", {"type": "PII", "kinds": ["Nothing"]}, "spec.kinds[0]", 16),
]


def part_b_bad_objects_are_refused_by_their_field(rig, say):
    for kind, name, spec, field, minor in BAD:
        if rig.minor < minor:
            say(f"passed over with {rig.version}: {kind} {field} (its rule is CEL, from 1.{minor} on)")
            continue
        said = rig.kubectl("apply", "-f", "-", text=yaml_of(document(kind, name, spec)), fails=True)
        # Older servers leave the index of an item out.
        plain, (above, name) = re.sub(r"\[\d+\]", "", field), field.rsplit(".", 1)
        # kubectl itself tells of what is missing where the server does not validate fields (before 1.25).
        missing = above in said and f'missing required field "{name}"' in said
        expect(field in said or plain in said or missing, f"{kind}: the refusal does not name {field}: {said}")
    unknown = yaml_of(workers(prt=1))
    said = rig.kubectl("apply", "-f", "-", text=unknown, fails=True)
    expect("prt" in said, f"an unknown field: {said}")
    say(f"{len(BAD) + 1} bad objects are refused, each by its field")
    said = rig.kubectl("explain", "inferenceworkerset.spec.metrics.interval")
    expect("Default: `1s`" in said, said)


def part_c_six_kinds(rig, say):
    gateway = Gateway(rig)
    for number in range(2):
        run_pod(rig, number)
    times = {}

    def effect(what, look):
        times[what] = eventually(what, look)[1]
        expect(times[what] < EFFECT_S, f"{what} took {times[what]:.2f} s")

    rig.apply(yaml_of(*six_kinds(rig)))
    effect("applied", lambda: "real" in json.dumps(gateway.config()["pools"]))
    wait_for_pods(gateway, 2)
    expect(gateway.chat(key=KEY)[0] == 200, "no answer")
    expect(gateway.chat()[0] == 401, "a stranger is let in")
    rig.apply(yaml_of(*six_kinds(rig, "renamed")))
    effect("changed", lambda: gateway.chat("renamed", KEY)[0] == 200 and gateway.chat("real", KEY)[0] == 404)
    for found in six_kinds(rig):
        kind, name = found["kind"], found["metadata"]["name"]
        for what in ("Accepted", "ResolvedRefs", "Programmed"):
            wait_for_condition(rig, kind, name, what, "True")
    counted = lambda: [stored(rig, k, n)["status"].get("readyEndpoints") for k, n in [("InferenceWorkerSet", "workers"), ("InferencePool", "pool")]]
    eventually("endpoints are counted", lambda: counted()[0] == 2 and counted()[1] >= 2)
    table = rig.kubectl("get", "kinference", "-A", "-o", "wide")
    expect(table.count("True") >= 12, table)
    say("kubectl get kinference -A -o wide\n" + table)
    for found in six_kinds(rig):
        found["metadata"]["annotations"] = {"touched": "yes"}
        rig.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=yaml_of(found))
    table = rig.kubectl("get", "iws", "workers")
    versions = {k: stored(rig, k, n)["metadata"]["resourceVersion"] for k, n in [("InferencePool", "pool"), ("InferenceTenant", "alice")]}
    time.sleep(3)
    for kind, name in [("InferencePool", "pool"), ("InferenceTenant", "alice")]:
        expect(stored(rig, kind, name)["metadata"]["resourceVersion"] == versions[kind], f"{kind} {name} is written again and again")
    rig.kubectl("delete", "ipool", "pool")
    effect("deleted", lambda: gateway.chat("real", KEY)[0] == 404)
    for kind, name in [("ipol", "local"), ("icls", "words"), ("iprov", "hosted"), ("iws", "workers"), ("iten", "alice")]:
        rig.kubectl("delete", kind, name)
    effect("all deleted", lambda: not gateway.config()["pools"] and not gateway.endpoints())
    say("from the answer of kubectl to the effect: " + ", ".join(f"{what} {took * 1e3:.0f} ms" for what, took in times.items()))
    finish(gateway)


def part_d_what_only_the_gateway_sees_is_told_in_the_status(rig, say):
    gateway = Gateway(rig)
    pods_and_resources(rig, gateway)
    # The schema lets it in, the gateway does not: the last good version stays, and everything else goes on.
    rig.apply(yaml_of(workers(alias="same", port=rig.engine_port, model={"name": MODEL, "aliases": ["same", "same"]})))
    bad = wait_for_condition(rig, "InferenceWorkerSet", "workers", "Accepted", "False", "same", "spec.model.aliases")
    programmed = wait_for_condition(rig, "InferenceWorkerSet", "workers", "Programmed", "False", "stays in force")
    say(f"Accepted=False: {bad['message']}\nProgrammed=False: {programmed['message']}")
    expect(gateway.chat(key=KEY)[0] == 200, "the last good version does not stay")
    events = lambda: rig.api.get("/api/v1/namespaces/default/events")["items"]
    eventually("the refusal is an Event", lambda: [e for e in events() if e["reason"] == "Refused" and e["involvedObject"]["name"] == "workers"])
    described = rig.kubectl("describe", "iws", "workers")
    expect("Refused" in described and "same" in described, described)
    rig.apply(yaml_of(pool(("InferenceWorkerSet", "workers"), ("InferenceWorkerSet", "missing"), policyRef=[{"name": "local"}])))
    missing = wait_for_condition(rig, "InferencePool", "pool", "ResolvedRefs", "False", "spec.destinations[1].name", "missing")
    say(f"ResolvedRefs=False: {missing['message']}")
    expect(gateway.chat(key=KEY)[0] == 200, "a destination that is not there takes the others with it")
    # A new object that is bad from the start is left out alone.
    rig.apply(yaml_of(workers("broken", "broken", model={"name": "b", "aliases": ["x", "x"]})))
    wait_for_condition(rig, "InferenceWorkerSet", "broken", "Programmed", "False")
    expect(gateway.chat(key=KEY)[0] == 200, "a bad object takes the others with it")
    rig.apply(yaml_of(*six_kinds(rig)))
    wait_for_condition(rig, "InferenceWorkerSet", "workers", "Programmed", "True")
    finish(gateway)


def part_e_a_pod_that_is_deleted(rig, say):
    gateway = Gateway(rig)
    run_pod(rig, 0)
    rig.apply(yaml_of(*six_kinds(rig)))
    wait_for_pods(gateway, 1)
    answers = []
    long = threading.Thread(target=lambda: answers.append(gateway.chat(key=KEY, tokens=400, timeout=60)))
    long.start()
    eventually("the long one has begun", lambda: any(e["inFlight"] for e in gateway.endpoints().values()))
    run_pod(rig, 1)
    wait_for_pods(gateway, 2)
    rig.kubectl("delete", "pod", "vllm-0", "--wait=false")
    took = eventually("it gets no new work", lambda: "being deleted" in gateway.get("/endpoints")[1])[1]
    expect(rig.api.get("/api/v1/namespaces/default/pods/vllm-0")["metadata"]["deletionTimestamp"], "it is gone at once")
    expect(took < EFFECT_S, f"it took {took:.2f} s")
    for _ in range(6):
        expect(gateway.chat(key=KEY)[0] == 200, "no answer")
    long.join(60)
    expect(answers and answers[0][0] == 200, f"the long one: {answers}")
    rig.kubectl("delete", "pod", "vllm-0", "--grace-period=0", "--force")
    gateway.wait_for_line("endpoint removed", "vllm-0")
    say(f"no new work {took * 1e3:.0f} ms after kubectl delete; the long answer was finished")
    finish(gateway)


def part_f_the_api_server_is_killed(rig, say):
    gateway = Gateway(rig)
    pods_and_resources(rig, gateway)
    load = Load(gateway, key=KEY)
    load.more()
    rig.apiserver.kill()
    gateway.wait_for_line("the API server does not answer")
    eventually("the metric says so", lambda: gateway.metric("kinference_kubernetes_connected") == 0)
    load.more(200)
    status, body = gateway.readyz()
    expect((status, len(gateway.ready_pods())) == (200, 2), f"/readyz: {status} {body}")
    generation = gateway.config()["generation"]
    rig.apiserver.start()
    eventually("kube-apiserver is back", rig.is_ready, 120)
    took = eventually("the gateway is back", lambda: gateway.metric("kinference_kubernetes_connected") == 1)[1]
    load.more()
    rig.apply(yaml_of(*six_kinds(rig, "again")))
    effect = eventually("a change after it", lambda: gateway.chat("again", KEY)[0] == 200)[1]
    rig.apply(yaml_of(*six_kinds(rig)))
    eventually("and back", lambda: gateway.chat("real", KEY)[0] == 200)
    # Requests for the name that was away for a moment are 404: that is what was applied.
    bad = [b for b in load.bad if "model_not_found" not in b]
    load.bad = bad
    say(f"{load.finish()} requests, none failed; back {took:.2f} s after the server, a change in force {effect * 1e3:.0f} ms after kubectl; generation was {generation}")
    finish(gateway, refusals=True)


def part_g_versions_that_are_compacted(rig, say):
    gateway = Gateway(rig)
    pods_and_resources(rig, gateway)
    load = Load(gateway, key=KEY)
    rig.apiserver.kill()
    etcdctl = lambda *a: subprocess.run([rig.tools["ETCDCTL"], "--endpoints", rig.etcd_url, *a], check=True, capture_output=True, text=True, env={**os.environ, "ETCDCTL_API": "3"}).stdout
    for number in range(20):
        etcdctl("put", f"/elsewhere/{number}", "x")
    revision = json.loads(etcdctl("get", "/elsewhere/0", "-w", "json"))["header"]["revision"]
    etcdctl("compact", str(revision))
    rig.apiserver.start()
    eventually("kube-apiserver is back", rig.is_ready, 120)
    rig.kubectl("label", "pod", "vllm-1", "app=other", "--overwrite")
    wait_for_pods(gateway, 1)
    rig.kubectl("label", "pod", "vllm-1", "app=vllm", "--overwrite")
    wait_for_pods(gateway, 2)
    say(f"compacted at {revision}; {load.finish()} requests, none failed")
    finish(gateway, refusals=True)


def part_h_tokens_are_rotated(rig, say):
    gateway = Gateway(rig)
    pods_and_resources(rig, gateway)
    load = Load(gateway, key=KEY, clients=2)
    # Another account of the same name: no token from before is good. The file has a new one, as from a kubelet.
    old = gateway.token.read_text()
    rig.kubectl("-n", "kinference", "delete", "serviceaccount", "kinference")
    rig.kubectl("apply", "-f", "-", text=access(rig))
    gateway.rotate()
    eventually("the old token is refused", lambda: rig.api.ask("GET", f"/apis/{VERSION}/inferencepools", token=old)[0] == 401)
    alias = f"rotated-{int(time.time())}"
    rig.apply(yaml_of(workers(alias=alias, port=rig.engine_port, model={"name": MODEL, "aliases": ["real", alias]})))
    seen = eventually("a change is seen", lambda: gateway.chat(alias, KEY)[0] == 200, 90)[1]
    began = time.monotonic()
    wait_for_condition(rig, "InferenceWorkerSet", "workers", "Programmed", "True", within=90)
    written = time.monotonic() - began
    say(f"with the old token void: a change was in force after {seen:.1f} s, its status there after {written:.1f} s; {load.finish()} requests, none failed")
    finish(gateway, refusals=True)


def part_i_the_lease(rig, say):
    lease = lambda: rig.api.get("/apis/coordination.k8s.io/v1/namespaces/kinference/leases/kinference-status")["spec"]
    holder = lambda: lease().get("holderIdentity") or ""
    first = Gateway(rig, "gateway-1")
    eventually("the first holds it", lambda: holder().startswith("gateway-1_"), 40)
    second = Gateway(rig, "gateway-2")
    pods_and_resources(rig, second)
    expect(first.process.end() == 0, "it ends with an error")
    expect(holder() == "" or holder().startswith("gateway-2_"), f"{holder()} holds it after its end")
    took = eventually("the second takes it", lambda: holder().startswith("gateway-2_"))[1]
    rig.apply(yaml_of(workers("late", "late", port=rig.engine_port)))
    wait_for_condition(rig, "InferenceWorkerSet", "late", "Programmed", "True")
    third = Gateway(rig, "gateway-3")
    second.process.kill()
    died = eventually("the third takes it", lambda: holder().startswith("gateway-3_"), 60)[1]
    say(f"given back at the end and taken after {took:.1f} s; taken {died:.1f} s after its holder was killed; transitions {lease()['leaseTransitions']}")
    finish(third)


def part_j_secrets_by_name_alone(rig, say):
    gateway = Gateway(rig)
    provider = {"type": "OpenAI", "baseURL": f"http://127.0.0.2:{rig.engine_port}/v1", "models": [{"name": MODEL}]}
    provider["auth"] = {"bearer": {"secretRef": {"name": "hosted", "key": "token"}}}
    policy = {"rules": [{"name": "out", "route": {"select": [{"type": "External"}]}}]}
    rig.kubectl("create", "secret", "generic", "hosted", "--from-literal=token=s3cret-of-hosted")
    rig.apply(yaml_of(document("InferenceProvider", "hosted", provider), document("InferencePolicy", "out", policy)))
    rig.apply(yaml_of(pool(("InferenceProvider", "hosted"), policyRef=[{"name": "out"}])))
    refused = wait_for_condition(rig, "InferenceProvider", "hosted", "ResolvedRefs", "False", "hosted")
    gateway.wait_for_line("Secret default/hosted", "cannot list")
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "kinference-secrets", "namespace": "default"}}
    role["rules"] = [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["hosted"], "verbs": ["list", "watch"]}]
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": role["metadata"]}
    binding["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "kinference-secrets"}
    binding["subjects"] = [{"kind": "ServiceAccount", "name": "kinference", "namespace": "kinference"}]
    rig.kubectl("apply", "-f", "-", text=yaml_of(role, binding))
    took = eventually("the provider is used", lambda: gateway.chat(MODEL)[0] == 200)[1]
    wait_for_condition(rig, "InferenceProvider", "hosted", "ResolvedRefs", "True")
    expect("s3cret" not in gateway.process.text() + gateway.get("/config")[1] + gateway.get("/endpoints")[1], "the secret is shown")
    rig.kubectl("delete", "secret", "hosted")
    wait_for_condition(rig, "InferenceProvider", "hosted", "ResolvedRefs", "False", "hosted")
    rig.kubectl("delete", "role,rolebinding", "kinference-secrets")
    say(f"without the right: {refused['message']}\nwith it in use after {took:.1f} s")
    finish(gateway, refusals=True)


def part_k_long_lists_come_in_pages(rig, say):
    count = 1_100
    for number in range(count):
        digest = hashlib.sha256(f"key {number}".encode()).hexdigest()
        tenant = document("InferenceTenant", f"tenant-{number}", {"apiKeys": [{"sha256": digest}]})
        status, answer = rig.api.ask("POST", f"/apis/{VERSION}/namespaces/default/{KINDS['InferenceTenant']}", tenant)
        expect(status == 201, f"{status} {answer}")
    gateway = Gateway(rig)
    pods_and_resources(rig, gateway)
    for number in (0, 499, 500, 999, count - 1):
        expect(gateway.chat(key=f"key {number}")[0] == 200, f"tenant {number} is not known")
    listed = lambda: rig.api.get(f"/apis/{VERSION}/namespaces/default/{KINDS['InferenceTenant']}")["items"]
    began = time.monotonic()
    eventually("each has its status", lambda: all(condition(t, "Programmed")["status"] == "True" for t in listed()), 120)
    say(f"{count} tenants are known; the statuses of all were there {time.monotonic() - began:.1f} s after the first request")
    finish(gateway)


def part_l_a_right_is_taken_away(rig, say):
    gateway = Gateway(rig)
    pods_and_resources(rig, gateway)
    load = Load(gateway, key=KEY, clients=2)
    rig.kubectl("delete", "clusterrolebinding", "kinference")
    gateway.wait_for_line("cannot", within=90)
    load.more(100)
    rig.kubectl("apply", "-f", "-", text=access(rig))
    alias = "allowed-again"
    rig.apply(yaml_of(workers(port=rig.engine_port, model={"name": MODEL, "aliases": ["real", alias]})))
    took = eventually("a change is seen", lambda: gateway.chat(alias, KEY)[0] == 200, 90)[1]
    say(f"rights taken away under load and given back; a change was in force after {took:.1f} s; {load.finish()} requests, none failed")
    finish(gateway, refusals=True)


def part_m_a_definition_is_deleted_and_comes_back(rig, say):
    gateway = Gateway(rig)
    pods_and_resources(rig, gateway)
    rig.kubectl("delete", "crd", f"inferencepools.{GROUP}")
    eventually("its objects are gone", lambda: not gateway.config()["pools"])
    rig.kubectl("apply", *(["--validate=false"] if rig.minor < 25 else []), "-f", str(ROOT / "crds/yaml/inferencepools.yaml"))
    eventually("its objects can be applied", lambda: rig.api.ask("GET", f"/apis/{VERSION}/namespaces/default/inferencepools")[0] == 200)
    rig.apply(yaml_of(six_kinds(rig)[-1]))
    took = eventually("requests are answered", lambda: gateway.chat(key=KEY)[0] == 200)[1]
    say(f"a definition deleted and applied again; its pool in force {took:.1f} s after it was applied")
    finish(gateway, refusals=True)


def part_n_in_a_pod(rig, say):
    if os.geteuid() != 0:
        return say("passed over: it takes root to mount an account where a kubelet does")
    account = rig.folder / "account"
    account.mkdir()
    shutil.copy(rig.folder / "certs/apiserver.crt", account / "ca.crt")
    (account / "namespace").write_text("kinference")
    gateway = Gateway(rig, account=account)
    pods_and_resources(rig, gateway)
    for found in six_kinds(rig):
        wait_for_condition(rig, found["kind"], found["metadata"]["name"], "Programmed", "True")
    # The token of the pod is nobody's credential.
    provider = {"type": "OpenAI", "baseURL": f"http://127.0.0.2:{rig.engine_port}/v1", "models": [{"name": "thief"}]}
    provider["auth"] = {"bearer": {"fromFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}}
    rig.apply(yaml_of(document("InferenceProvider", "thief", provider)))
    refused = wait_for_condition(rig, "InferenceProvider", "thief", "ResolvedRefs", "False", "this process's own")
    say(f"by the account that is mounted; its token as a credential: {refused['message']}")
    finish(gateway)


def part_o_one_namespace_by_a_role_of_its_own(rig, say):
    rig.kubectl("delete", "clusterrolebinding", "kinference")
    rules = rig.api.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/kinference")["rules"]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "kinference", "namespace": "default"}, "rules": rules}
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": role["metadata"]}
    binding["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "kinference"}
    binding["subjects"] = [{"kind": "ServiceAccount", "name": "kinference", "namespace": "kinference"}]
    rig.kubectl("apply", "-f", "-", text=yaml_of(role, binding))
    denied = Gateway(rig, "gateway-9")
    denied.wait_for_line("nothing is in force yet", "cannot list")
    reasons = denied.readyz()[1]["reasons"]
    expect(any("at the cluster scope" in reason for reason in reasons), f"/readyz: {reasons}")
    denied.process.end()
    gateway = Gateway(rig, namespaces=["default"])
    pods_and_resources(rig, gateway)
    for found in six_kinds(rig):
        wait_for_condition(rig, found["kind"], found["metadata"]["name"], "Programmed", "True")
    rig.kubectl("delete", "role,rolebinding", "kinference")
    rig.kubectl("apply", "-f", "-", text=access(rig))
    say("a Role in the namespace is enough; without `namespaces` /readyz says: " + next(r for r in reasons if "cluster scope" in r)[:160])
    finish(gateway)


def part_p_an_api_server_that_hangs(rig, say):
    gateway = Gateway(rig)
    pods_and_resources(rig, gateway)
    load = Load(gateway, key=KEY, clients=2)
    rig.apiserver.child.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        gateway.wait_for_line("the API server does not answer", within=120)
        noticed = time.monotonic() - began
        load.more(100)
        expect(gateway.readyz()[0] == 200, "it is not ready any more")
    finally:
        rig.apiserver.child.send_signal(signal.SIGCONT)
    eventually("the gateway is back", lambda: gateway.metric("kinference_kubernetes_connected") == 1, 90)
    rig.apply(yaml_of(workers(port=rig.engine_port, model={"name": MODEL, "aliases": ["real", "thawed"]})))
    took = eventually("a change is seen", lambda: gateway.chat("thawed", KEY)[0] == 200, 90)[1]
    say(f"told of after {noticed:.0f} s of silence; a change after it in force in {took:.1f} s; {load.finish()} requests, none failed")
    finish(gateway, refusals=True)


def finish(gateway, refusals=False):
    """Ends it as a kubelet does; nothing it asked for went beyond its rights."""
    code = gateway.process.end()
    expect(code == 0, f"it ends with {code}")
    lines = [l for l in gateway.process.text().splitlines() if "forbidden" in l or "cannot be written" in l or "panic" in l]
    expect(refusals or not lines, f"beyond its rights: {lines[:3]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, type=pathlib.Path, help="kinference")
    parser.add_argument("--loadtest", required=True, type=pathlib.Path, help="loadtest, for its engines")
    arguments = parser.parse_args()
    arguments.binary, arguments.loadtest = arguments.binary.resolve(), arguments.loadtest.resolve()
    only = [word for word in os.environ.get("ONLY", "").split(",") if word]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kinference-real-"))
    rig, failed = Rig(folder, arguments), []
    try:
        rig.start()
        print(f"kube-apiserver {rig.version}, kubectl {json.loads(rig.kubectl('version', '--client', '-o', 'json'))['clientVersion']['gitVersion']}", flush=True)
        rig.kubectl("apply", "-f", "-", text=access(rig))
        rig.start_engines()
        parts = [(name, part) for name, part in sorted(globals().items()) if name.startswith("part_")]
        for name, part in parts:
            if only and not any(word in name for word in only) and not name.startswith("part_a_"):
                continue
            print(f"== {name[7:].replace('_', ' ')}", flush=True)
            began = time.monotonic()
            try:
                part(rig, lambda text: print("   " + text.replace("\n", "\n   "), flush=True))
                print(f"   ok, {time.monotonic() - began:.1f} s", flush=True)
            except Failed as why:
                failed.append(name)
                print(f"   FAILED: {why}", flush=True)
            for process in rig.processes:
                if process.log.name.startswith("gateway") and process.child.poll() is None:
                    process.kill()
            if not name.startswith("part_a_"):
                clean(rig)
    finally:
        rig.close()
        if failed or os.environ.get("KEEP"):
            print(f"logs are in {folder}")
        else:
            shutil.rmtree(folder)
    print(f"{len(failed)} parts failed" if failed else "all parts as they should be")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

"""Checks what stands in deploy/: the chart, the manifests, the rules, the dashboard, the unit and the profile.

`deploy/check/run` installs what is needed and calls this. `UPDATE=1` writes the manifests anew. With `--binary PATH` every
rendering is also run: the process must take the arguments and the file, answer the probes, and know every metric that is asked for.
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import helm_python
import kubernetes_validate
import yaml

from process import demo, find_name, run_rendering

DEPLOY = pathlib.Path(__file__).resolve().parent.parent
CHART = DEPLOY / "helm" / "kinference"
# The chart with its links resolved, as a package holds it; Helm tells of every link that it follows.
UNPACKED = pathlib.Path(tempfile.mkdtemp(prefix="kinference-chart-")) / "kinference"
# The oldest that the chart allows, and the newest that there are schemas for.
KUBERNETES = ["1.30.0", "1.37.0"]
# Of Helm alone; plain manifests are nobody's release.
HELM_LABELS = re.compile(r"^ *(app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*)\n", re.MULTILINE)
KINDS = ["policies", "pools", "workersets", "providers", "tenants", "classifiers"]

failures = []


def expect(condition, message):
    """Notes a failure; the check goes on."""
    if not condition:
        failures.append(message)


def render(values):
    """The files of the chart, rendered by Helm with these values over its defaults."""
    with helm_python.Chart.load(UNPACKED) as chart:
        chart.validate_schema(values)
        return chart.render(values, name="kinference", namespace="kinference")


def objects(rendered):
    """The objects of a rendering."""
    texts = [text for name, text in sorted(rendered.items()) if not name.endswith("NOTES.txt")]
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


def named(found):
    """How a person calls an object."""
    return f"{found['kind']} {found['metadata'].get('namespace', '')}/{found['metadata']['name']}"


# ---- the chart ----


def merged(base, over):
    """Helm's merge of values: mappings are merged, all else is replaced."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {key: merged(base[key], over[key]) if key in base and key in over else over.get(key, base.get(key)) for key in {**base, **over}}


def renderings():
    """Name and values of every rendering that is checked."""
    all_options = yaml.safe_load((DEPLOY / "check/all-options.yaml").read_text())
    variants = {"default": {}, "all options": all_options}
    variants["all options, Deployment"] = merged(all_options, {"kind": "Deployment"})
    variants["all options, Files"] = merged(
        all_options,
        {"crds": {"install": False}, "resources": {"source": "Files", "existingConfigMap": "documents", "namespaces": [], "secrets": []}},
    )
    node_port = {"service": {"type": "NodePort"}, "serviceAccount": {"create": False}, "rbac": {"create": False}, "podDisruptionBudget": {"enabled": False}}
    variants["NodePort without account"] = node_port
    for file in sorted((DEPLOY / "manifests/values").glob("*.yaml")):
        variants[f"manifests/{file.name}"] = yaml.safe_load(file.read_text())
    return variants


def check_every_value_is_tried():
    """all-options.yaml sets what values.yaml has, the schema has what both have."""
    default = yaml.safe_load((CHART / "values.yaml").read_text())
    tried = yaml.safe_load((DEPLOY / "check/all-options.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def walk(path, default, tried, schema):
        names = set(schema.get("properties", {})) - {"global"}
        if not names or path == "server":
            return
        expect(set(default) <= names, f"values.yaml {path} has {set(default) - names} that the schema does not know")
        for name in sorted(names):
            below = f"{path}.{name}".lstrip(".")
            expect(name in tried, f"all-options.yaml does not try {below}")
            if isinstance(default.get(name), dict) and isinstance(tried.get(name), dict):
                walk(below, default[name], tried[name], schema["properties"][name])

    walk("", default, tried, schema)
    listed = set(schema["properties"]["server"].get("properties", {}))
    expect(listed == set(tried["server"]), f"all-options.yaml tries {sorted(tried['server'])} of the server's fields {sorted(listed)}")


# What must be refused, and a word of the reason.
REFUSED = [
    ({"kind": "StatefulSet"}, "kind"),
    ({"replica": 3}, "replica"),
    ({"runAsUser": 0}, "runAsUser"),
    ({"listeners": []}, "listeners"),
    ({"listeners": [{"name": "http", "port": 80, "servicePort": 80}]}, "port"),
    ({"listeners": [{"name": "admin", "port": 8080, "servicePort": 80}]}, "name"),
    ({"listeners": [{"name": "http", "port": 8080, "servicePort": 80, "clientCaSecret": "ca"}]}, "tlsSecret"),
    ({"server": {"listener": []}}, "listener"),
    ({"server": {"dataThreads": "many"}}, "dataThreads"),
    ({"server": {"limits": {"requestBody": "32 megabytes"}}}, "requestBody"),
    ({"server": {"drainTimeout": "1m"}}, "drainTimeout"),
    ({"resources": {"source": "Files"}}, "documents"),
    ({"resources": {"source": "Files", "documents": {"a.json": "{}"}}}, "a.json"),
    ({"resources": {"source": "Files", "documents": {"a.yaml": "x"}, "existingConfigMap": "b"}}, "both"),
    ({"resources": {"secrets": [{"namespace": "default"}]}}, "names"),
    ({"seccompProfile": {"type": "Localhost"}}, "localhostProfile"),
    ({"hostNetwork": True}, "firewall"),
    ({"podMonitor": {"enabled": True}}, "networkPolicy.monitoring"),
    ({"hostNetwork": True, "networkPolicy": {"enabled": False}, "sysctls": [{"name": "a", "value": "b"}]}, "node"),
    ({"image": {"digest": "sha256:abc"}}, "digest"),
    ({"balancers": {"enabled": True}}, "balancers.secret.name"),
    ({"server": {"balancers": {}}}, "balancers"),
    ({"address": "10.0.0.1"}, "address"),
    ({"admin": {"loopbackOnly": True}}, "kubelet"),
    (
        {"hostNetwork": True, "networkPolicy": {"enabled": False}, "admin": {"loopbackOnly": True}, "podMonitor": {"enabled": True}},
        "Prometheus",
    ),
]


def check_refusals():
    for values, word in REFUSED:
        try:
            render(values)
            expect(False, f"the chart accepts {values}")
        except helm_python.HelmError as error:
            expect(word in str(error), f"the refusal of {values} does not say {word!r}: {error}")


def check_lint():
    for name, values in renderings().items():
        report = helm_python.lint(UNPACKED, values, strict=True, namespace="kinference")
        worst = [m for m in report["messages"] if m["severity"] > 1] + report["errors"]
        expect(not worst, f"lint, {name}: {worst}")


# ---- the objects ----


def check_schemas(name, found, node_modules):
    """Every object against the schemas of Kubernetes, and those of Prometheus's operator."""
    operators = [o for o in found if o["apiVersion"].startswith("monitoring.coreos.com/")]
    for o in found:
        if o in operators:
            continue
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(o, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                expect(False, f"{name}: {named(o)} with Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}")
    if operators:
        script = f"""
            import * as models from "{node_modules.resolve().as_uri()}/@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/index.js";
            import {{ readFileSync }} from "node:fs";
            for (const object of JSON.parse(readFileSync(0, "utf8"))) {{
                try {{ new models[object.kind](object).validate(); }} catch (error) {{ console.log(`${{object.kind}}: ${{error.message}}`); }}
            }}
        """
        command = ["node", "--input-type=module", "-e", script]
        said = subprocess.run(command, input=json.dumps(operators), stdout=subprocess.PIPE, text=True, check=True)
        expect(not said.stdout, f"{name}: {said.stdout}")
    return len(found)


def pod_of(found):
    """The workload and its pod template."""
    workload = next(o for o in found if o["kind"] in ("Deployment", "DaemonSet"))
    return workload, workload["spec"]["template"]


def check_pod(name, found):
    """What a schema cannot say of the pod."""
    workload, template = pod_of(found)
    pod, labels = template["spec"], template["metadata"]["labels"]
    (container,) = pod["containers"]
    tcp = {port["name"]: port["containerPort"] for port in container["ports"] if port.get("protocol") != "UDP"}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    expect(len(set(ports.values())) == len(container["ports"]), f"{name}: two ports are the same: {ports}")
    selectors = [workload["spec"]["selector"]["matchLabels"]]
    selectors += [o["spec"]["selector"] for o in found if o["kind"] == "Service"]
    selectors += [o["spec"]["selector"]["matchLabels"] for o in found if o["kind"] in ("PodDisruptionBudget", "PodMonitor")]
    selectors += [o["spec"]["podSelector"]["matchLabels"] for o in found if o["kind"] == "NetworkPolicy"]
    for selector in selectors:
        expect(selector.items() <= labels.items(), f"{name}: {selector} does not select the pod with {labels}")
    for o in found:
        if o["kind"] == "Service":
            expect(all(p["targetPort"] in ports for p in o["spec"]["ports"]), f"{name}: the Service asks for ports that are not in {ports}")
        if o["kind"] == "PodMonitor":
            expect(all(e["port"] in ports for e in o["spec"]["podMetricsEndpoints"]), f"{name}: the PodMonitor asks for another port than {ports}")
    admin = yaml.safe_load(server_file(found))["admin"]["address"]
    for probe in ("livenessProbe", "readinessProbe"):
        asks = container[probe]["httpGet"]
        expect(asks["port"] in ports, f"{name}: {probe} asks a port that is not there")
        loopback = (asks.get("host"), admin.rsplit(":", 1)[0], pod.get("hostNetwork")) == ("127.0.0.1", "127.0.0.1", True)
        expect(loopback or admin.startswith(("0.0.0.0:", "[::]:")) and "host" not in asks, f"{name}: {probe} does not reach {admin}")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    expect(mounts == set(volumes), f"{name}: volumes {sorted(volumes)} and mounts {sorted(mounts)} differ")
    maps = {o["metadata"]["name"] for o in found if o["kind"] == "ConfigMap"} | {"documents", "tokenizers"}
    for volume in volumes.values():
        expect(volume.get("configMap", {}).get("name", "documents") in maps, f"{name}: the ConfigMap of {volume} is not there")

    security, of_pod = container["securityContext"], pod["securityContext"]
    expect(security == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}, f"{name}: {security}")
    expect(of_pod["runAsNonRoot"] and of_pod["runAsUser"] > 0, f"{name}: may run as root")
    expect(of_pod["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost"), f"{name}: no seccomp profile")

    server = yaml.safe_load(server_file(found))
    seconds = int(server["drainTimeout"].removesuffix("s"))
    waits = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = pod["terminationGracePeriodSeconds"]
    expect(grace > seconds + waits, f"{name}: {grace} s of grace do not hold {waits} s of waiting and {seconds} s of draining")
    listening = sorted(int(x["address"].rsplit(":", 1)[1]) for x in [*server["listeners"], server["admin"]])
    expect(listening == sorted(tcp.values()), f"{name}: the process listens on {listening}, the pod says {ports}")
    check_balancers(name, found, server, container, ports)
    expect(pod["automountServiceAccountToken"] == ("kubernetes" in server), f"{name}: a token is mounted where none is needed, or not where one is")
    used = {*container["args"], *[m["mountPath"] for m in container["volumeMounts"]]}
    files = re.findall(r"/etc/kinference[^\s\"]*", server_file(found))
    for file in files:
        expect(any(file == mount or file.startswith(f"{mount}/") for mount in used), f"{name}: {file} is mounted nowhere")


def check_balancers(name, found, server, container, ports):
    """What balancers tell each other goes from pod to pod, and is signed."""
    balancers = server.get("balancers")
    headless = [o for o in found if o["kind"] == "Service" and o["spec"].get("clusterIP") == "None"]
    expect(bool(balancers) == bool(headless) == ("balancers" in ports), f"{name}: balancers are set up by half")
    if not balancers:
        return
    (service,) = headless
    of_service = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc:{service['spec']['ports'][0]['port']}"
    expect(balancers["peers"] == [of_service], f"{name}: {balancers['peers']} is not {of_service}")
    expect(int(balancers["address"].rsplit(":", 1)[1]) == ports["balancers"], f"{name}: {balancers['address']} is not the pod's port")
    expect(any(e["name"] == balancers["secret"]["fromEnv"] for e in container["env"]), f"{name}: the secret of balancers is not in the environment")
    for policy in (o for o in found if o["kind"] == "NetworkPolicy"):
        let_in = [port for rule in policy["spec"]["ingress"] for port in rule["ports"]]
        expect({"protocol": "UDP", "port": ports["balancers"]} in let_in, f"{name}: the NetworkPolicy shuts balancers out")


def server_file(found):
    """The text of the server's own file."""
    return next(o["data"]["kinference.yaml"] for o in found if o["kind"] == "ConfigMap" and "kinference.yaml" in o["data"])


def check_access(name, found, values):
    """Access to the API server: what is needed, and nothing beside it."""
    roles = {(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]): o for o in found if o["kind"] in ("Role", "ClusterRole")}
    for o in found:
        if o["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            role = (o["roleRef"]["kind"], o["metadata"].get("namespace"), o["roleRef"]["name"])
            expect(role in roles, f"{name}: {named(o)} binds {role}, which is not there")
            accounts = {(a["metadata"]["namespace"], a["metadata"]["name"]) for a in found if a["kind"] == "ServiceAccount"} | {("kinference", "default")}
            expect(all((s["namespace"], s["name"]) in accounts for s in o["subjects"]), f"{name}: {named(o)} is for an account that is not there")
    rules = [(key, rule) for key, role in roles.items() for rule in role["rules"]]
    for key, rule in rules:
        everything = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        expect("*" not in everything, f"{name}: {key} has a wildcard")
        verbs, resources = set(rule["verbs"]), set(rule["resources"])
        if "secrets" in resources:
            expect(key[0] == "Role" and rule.get("resourceNames") and verbs == {"list", "watch"}, f"{name}: {key} reads more of Secrets than those it names")
        elif rule["apiGroups"] == ["kinference.buoyant.io"]:
            status = {f"inference{kind}/status" for kind in KINDS}
            plain = {f"inference{kind}" for kind in KINDS}
            allowed = {"list", "watch"} if resources == plain else {"patch"} if resources == status else None
            expect(verbs == allowed, f"{name}: {key}: {sorted(resources)} {sorted(verbs)}")
        elif verbs - {"list", "watch"}:
            expect(resources <= {"leases", "events"}, f"{name}: {key} writes {sorted(resources)}")
    needed = values.get("resources", {}).get("source", "Kubernetes") == "Kubernetes" and values.get("rbac", {}).get("create", True)
    expect(bool(rules) == needed, f"{name}: rules are there or missing against the source of the resources")
    namespaces = values.get("resources", {}).get("namespaces", [])
    if needed:
        expect(bool([k for k in roles if k[0] == "ClusterRole"]) == (not namespaces), f"{name}: a ClusterRole although namespaces are named, or none")


# ---- the rest ----


def check_manifests():
    """The committed manifests are what the chart renders."""
    for file in sorted((DEPLOY / "manifests/values").glob("*.yaml")):
        rendered = render(yaml.safe_load(file.read_text()))
        # The namespace first: kubectl applies in the order written.
        order = sorted((name for name in rendered if not name.endswith("NOTES.txt")), key=lambda n: ("namespace" not in n, "rbac" not in n, n))
        about = "".join(line for line in file.read_text().splitlines(True) if line.startswith("# "))[: -1].splitlines()[0]
        parts = [text.strip().removeprefix("---").strip() for text in (rendered[name] for name in order)]
        body = "\n---\n".join(part for part in parts if part)
        text = f"{about}\n# Rendered from the chart; do not edit. `UPDATE=1 deploy/check/run` renders it anew.\n---\n{HELM_LABELS.sub('', body)}\n"
        target = DEPLOY / "manifests" / file.name
        if os.environ.get("UPDATE") == "1":
            target.write_text(text)
        same = target.exists() and target.read_text() == text
        expect(same, f"{target.relative_to(DEPLOY.parent)} is not what the chart renders: run `UPDATE=1 deploy/check/run`")


def promtool(*arguments):
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)


def check_rules():
    """The alert rules, their tests, and that there is a test of each."""
    rules, tests = DEPLOY / "prometheus/alerts.yaml", DEPLOY / "prometheus/alerts_test.yaml"
    for said in (promtool("check", "rules", rules), promtool("test", "rules", tests)):
        expect(said.returncode == 0, f"promtool: {said.stdout}{said.stderr}")
    alerts = [rule["alert"] for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]]
    cases = [case for test in yaml.safe_load(tests.read_text())["tests"] for case in test["alert_rule_test"]]
    fired = {case["alertname"] for case in cases if case["exp_alerts"]}
    expect(set(alerts) == fired, f"alerts without a test in which they fire: {sorted(set(alerts) - fired)}")
    return [rule["expr"] for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]]


def check_dashboard():
    """Every query of the dashboard is PromQL."""
    dashboard = json.loads((DEPLOY / "grafana/kinference.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    expect(len(ids) == len(set(ids)), "two panels of the dashboard have the same id")
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    queries += [note["expr"] for note in dashboard["annotations"]["list"]]
    plain = [q.replace("$__rate_interval", "1m").replace("$model", ".*").replace("$destination", ".*") for q in queries]
    rules = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(plain)]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
        file.flush()
        said = promtool("check", "rules", file.name)
    expect(said.returncode == 0, f"queries of the dashboard: {said.stdout}{said.stderr}")
    return queries


def check_metrics(queries, metrics):
    """Every name in the queries is a metric or a label of the process."""
    families = re.findall(r"^# TYPE (\S+) (\S+)$", metrics, re.MULTILINE)
    known = {name for name, _ in families} | {f"{n}_{end}" for n, kind in families if kind == "histogram" for end in ("bucket", "sum", "count")}
    labels = set(re.findall(r"[{,]([a-z_]+)=\"", metrics))
    for query in queries:
        for word in re.findall(r"\b(?:kinference|gen_ai|process)_\w+", re.sub(r'"[^"]*"', "", query)):
            expect(word in known | labels, f"there is no metric {word}, which is asked for in: {query}")


# Exposure by `systemd-analyze security`, 0 to 100: nothing may make the unit less safe unseen.
UNIT_EXPOSURE_MAX = 15


def check_unit():
    unit = DEPLOY / "systemd/kinference.service"
    said = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={UNIT_EXPOSURE_MAX}", str(unit)], capture_output=True, text=True
    )
    expect(said.returncode == 0, f"systemd-analyze security: {said.stdout.splitlines()[-1:]}{said.stderr}")
    return said.stdout.strip().splitlines()[-1] if said.stdout else ""


PROFILE = DEPLOY / "seccomp/kinference.json"
# What the default profiles of container runtimes refuse.
IO_URING = ["io_uring_enter", "io_uring_register", "io_uring_setup"]
# Runs what follows under the profile; a call that it does not allow kills.
UNDER_PROFILE = [sys.executable, DEPLOY / "check/seccomp.py", PROFILE]


def check_profile(binary):
    """The seccomp profile: names that exist; the process needs no call beside them; without io_uring it runs on epoll."""
    profile = json.loads(PROFILE.read_text())
    names = [name for group in profile["syscalls"] for name in group["names"]]
    expect(len(names) == len(set(names)), "the seccomp profile names a call twice")
    lib = ctypes.CDLL("libseccomp.so.2")
    # -1 is no call of any architecture; other negative numbers are calls of another one.
    unknown = [name for name in names if lib.seccomp_syscall_resolve_name(name.encode()) == -1]
    expect(not unknown, f"the seccomp profile names calls that do not exist: {unknown}")
    if not binary:
        return "not run, for want of --binary"
    refuse = [word for name in IO_URING for word in ("--refuse", name)]
    cases = [(UNDER_PROFILE, "auto", "io_uring"), ([*UNDER_PROFILE, *refuse], "auto", "epoll"), (UNDER_PROFILE, "epoll", "epoll")]
    for before, driver, runs_on in cases:
        said, metrics, code = demo(binary, [*before, "--"], driver)
        expect(code == 0 and metrics, f"under the seccomp profile the demo ends with {code}: {said}")
        expect(f"driver={runs_on}" in said, f"under the seccomp profile it does not run on {runs_on}: {said}")
    return f"{len(names)} calls are enough for io_uring and for epoll; where io_uring is refused, epoll is used"


def check_dockerfile():
    said = subprocess.run(
        [pathlib.Path(sys.executable).with_name("hadolint"), "--no-color", DEPLOY / "docker/Dockerfile"], capture_output=True, text=True
    )
    expect(said.returncode == 0, f"hadolint: {said.stdout}{said.stderr}")


def check_image(binary):
    """What the image holds is enough: the demo runs with it as its root, as the image's user, and finds names in files."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "root"
        subprocess.run([DEPLOY / "docker/rootfs", binary, root], check=True)
        root.chmod(0o755)
        pathlib.Path(folder).chmod(0o755)
        # The kubelet brings this file.
        (root / "etc/hosts").write_text("127.0.0.1 engine.test\n")
        within = ["chroot", "--userspec=65532:65532", root] if os.geteuid() == 0 else ["unshare", "--map-root-user", "chroot", root]
        said, metrics, code = demo("/usr/local/bin/kinference", within)
        expect(code == 0 and metrics, f"in the image the demo ends with {code}: {said}")
        missing = find_name("/usr/local/bin/kinference", within, "engine.test")
        expect(not missing, f"in the image a name of /etc/hosts is not found: {missing}")
        size = sum(file.stat().st_size for file in root.rglob("*") if file.is_file() and not file.is_symlink())
        return f"{size >> 20} MiB, runs as its user"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--node", type=pathlib.Path, required=True, help="a node_modules folder with the models of Prometheus's operator")
    parser.add_argument("--binary", type=pathlib.Path, help="the kinference binary: every rendering is run with it")
    options = parser.parse_args()

    shutil.copytree(CHART, UNPACKED, symlinks=False)
    try:
        return check_all(options)
    finally:
        shutil.rmtree(UNPACKED.parent)


def check_all(options):
    check_every_value_is_tried()
    check_refusals()
    print(f"chart: Helm {helm_python.helm_sdk_version()}, {len(REFUSED)} wrong sets of values refused with a reason")
    check_lint()
    for name, values in renderings().items():
        found = objects(render(values))
        count = check_schemas(name, found, options.node)
        check_pod(name, found)
        check_access(name, found, values)
        ran = ""
        if options.binary:
            ran = run_rendering(name, found, pod_of(found)[1], server_file(found), [*UNDER_PROFILE, "--", options.binary], expect)
        print(f"  {name}: {count} objects, valid with Kubernetes {' and '.join(KUBERNETES)}{ran}")
    check_manifests()
    print("manifests: as rendered" if os.environ.get("UPDATE") != "1" else "manifests: written")
    queries = [*check_rules(), *check_dashboard()]
    print(f"alerts and dashboard: {len(queries)} queries are PromQL")
    if options.binary:
        check_metrics(queries, demo(options.binary)[1])
        print("alerts and dashboard: every metric is one of the process")
    print(f"unit: {check_unit()}")
    check_dockerfile()
    if options.binary:
        print(f"image: {check_image(options.binary)}")
    print(f"seccomp profile: {check_profile(options.binary)}")
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    print(f"{'failed' if failures else 'passed'}: deploy")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

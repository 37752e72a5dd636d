# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper check` against an API server whose objects a test lists: what it finds, and the few things it writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from slicekeeper import names
from slicekeeper.cli.check import command as module
from slicekeeper.cli.check.rights import ALWAYS
from slicekeeper.cli.main import cli
from slicekeeper.config.settings import Classes
from slicekeeper.gpu import inventory, machine
from slicekeeper.gpu.machine import Machine
from slicekeeper.kube import break_glass_record

ROOT = Path(__file__).parents[4]
DEPLOYMENTS = "/apis/apps/v1/namespaces/slicekeeper-system/deployments"
ALL_DEPLOYMENTS = "/apis/apps/v1/deployments"
AGENTS = "/apis/apps/v1/namespaces/slicekeeper-system/daemonsets/nodeagent"
ARBITERS = "/apis/apps/v1/namespaces/slicekeeper-system/daemonsets/arbiter"
TRUSTED = "/api/v1/namespaces/slicekeeper-system/configmaps/slicekeeper-ca.crt"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
RIGHTS = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
OUR_PODS = "/api/v1/namespaces/slicekeeper-system/pods"
TIMEKEEPERS_API = f"/apis/{names.API}"
API_SERVICE = f"/apis/apiregistration.k8s.io/v1/apiservices/{names.API_SERVICE}"
PODS, NODES = "/api/v1/pods", "/api/v1/nodes"


def selected(objects: list[Any], path: str) -> list[Any]:
    """Return those of some objects that a request's query asks for."""
    managed = f"{names.MANAGED_LABEL}%3D" in path or f"{names.MANAGED_LABEL}=" in path
    return [obj for obj in objects if not managed or obj["metadata"].get("labels")]


def asked_for(review: Any) -> tuple[str, str, str]:
    """Return account, verb, and resource with its subresource of a SubjectAccessReview."""
    asked = review["spec"]["resourceAttributes"]
    what = "/".join(filter(None, (asked["resource"], asked.get("subresource", ""))))
    return review["spec"]["user"].rpartition(":")[2], asked["verb"], what


class Server:
    """Objects by path; lists under their collection's path; patches are kept, and may be answered with an error."""

    def __init__(self) -> None:
        version = {"gitVersion": "v1.36.3+k3s1"}
        collections = (PODS, NODES, ALL_DEPLOYMENTS, LEASES, STORAGE_CLASSES, OUR_PODS)
        self.objects: dict[str, Any] = {"/version": version, **{path: [] for path in collections}}
        self.patches: list[tuple[str, Any]] = []
        self.patch_status = 200
        self.refused: set[tuple[str, str, str]] = set()
        """What accounts may not do: account, verb, resource with its subresource."""
        self.created: list[tuple[str, Any]] = []
        self.errors: dict[str, tuple[int, str]] = {}
        """By path, what the API server answers to whoever asks there, in place of an object."""
        known = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                found = known.objects.get(path)
                if path in known.errors:
                    status, message = known.errors[path]  # as of an API that another serves and that it does not reach
                    self.send(status, "text/plain; charset=utf-8", f"{message}\n".encode())
                elif found is None:
                    self.answer(404, {"message": "not found", "reason": "NotFound"})
                elif isinstance(found, list):
                    self.answer(200, {"metadata": {"resourceVersion": "1"}, "items": selected(found, self.path)})
                else:
                    self.answer(200, found)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/apis/authorization.k8s.io/v1/subjectaccessreviews":
                    self.answer(201, {**body, "status": {"allowed": asked_for(body) not in known.refused}})
                elif self.path in known.errors:
                    status, message = known.errors[self.path]
                    self.answer(status, {"kind": "Status", "code": status, "message": message})
                else:
                    known.created.append((self.path, body))
                    self.answer(201, body)

            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                known.patches.append((self.path, body))
                self.answer(known.patch_status, {"message": "as told", "reason": "Conflict", "metadata": {}})

            def answer(self, status: int, body: Any) -> None:
                self.send(status, "application/json", json.dumps(body).encode())

            def send(self, status: int, kind: str, data: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def install(self) -> None:
        for part in ("certificates", "timekeeper", "webhook", "scheduler"):
            metadata = {"name": part, "namespace": "slicekeeper-system", "labels": {"app.kubernetes.io/part-of": "x"}}
            self.objects[f"{DEPLOYMENTS}/{part}"] = {"metadata": metadata, "status": {"readyReplicas": 1}}
            self.objects[ALL_DEPLOYMENTS].append(self.objects[f"{DEPLOYMENTS}/{part}"])
        for agents in (AGENTS, ARBITERS):
            self.objects[agents] = {"status": {"desiredNumberScheduled": 2, "numberReady": 2}}
        self.objects[TRUSTED] = {"data": {"ca.crt": "x"}}
        for known in (Classes().in_budget, Classes().over_budget):
            made = {"metadata": {"name": known.name}, "value": known.value, "preemptionPolicy": known.preemption_policy}
            self.objects[f"{PRIORITY_CLASSES}/{known.name}"] = made
        for kind in ("mutating", "validating"):
            hooks = {"webhooks": [{"clientConfig": {"caBundle": "eA=="}}]}
            self.objects[f"{ADMISSION}/{kind}webhookconfigurations/slicekeeper"] = hooks
        for guard in module._GUARD_NAMES:
            binding = {"metadata": {"name": guard}, "spec": {"validationActions": ["Deny", "Audit"]}}
            self.objects[f"{ADMISSION}/validatingadmissionpolicybindings/{guard}"] = binding
            self.objects[f"{ADMISSION}/validatingadmissionpolicies/{guard}"] = {"metadata": {"name": guard}}
        self.objects[API_SERVICE] = {"status": {"conditions": [{"type": "Available", "status": "True"}]}}
        gpus = inventory.encode([inventory.Gpu("g", "A100", 81920)])
        self.objects[NODES].append({"metadata": {"name": "n", "annotations": {names.NODE_GPUS: gpus}}})

    def install_manifests(self, change: Callable[[str], str] = lambda text: text) -> None:
        """Install what manifests/install.yaml has, its text changed as a test says."""
        self.install()
        self.objects[ALL_DEPLOYMENTS].clear()
        for obj in yaml.safe_load_all(change((ROOT / "manifests/install.yaml").read_text())):
            name, plural = obj["metadata"]["name"], f"{obj['kind'].lower()}s"
            if plural.startswith("validatingadmissionpolicy"):
                plural = plural.replace("policys", "policies")
            ready = {"readyReplicas": 1, "desiredNumberScheduled": 1, "numberReady": 1}
            for hook in obj.get("webhooks") or []:
                hook["clientConfig"]["caBundle"] = "eA=="
            in_ours = f"/namespaces/slicekeeper-system/{plural}/{name}"
            if obj["kind"] in ("Deployment", "DaemonSet"):
                self.objects[f"/apis/apps/v1{in_ours}"] = {**obj, "status": ready}
                self.objects[ALL_DEPLOYMENTS].append(obj)
            elif obj["kind"] == "ConfigMap":
                self.objects[f"/api/v1{in_ours}"] = obj
            elif obj["kind"] == "PriorityClass":
                self.objects[f"{PRIORITY_CLASSES}/{name}"] = obj
            elif obj["apiVersion"].startswith("admissionregistration"):
                self.objects[f"{ADMISSION}/{plural}/{name}"] = obj

    def uninstall(self) -> None:
        """Take the Deployments away; what else is there stays, as after an uninstallation that was cut short."""
        self.objects = {k: v for k, v in self.objects.items() if not k.startswith(DEPLOYMENTS)}
        self.objects[ALL_DEPLOYMENTS] = []

    def pod(self, name: str, limits: dict[str, str], **metadata: Any) -> None:
        self.objects[PODS].append(
            {
                "metadata": {
                    "name": name,
                    "namespace": "team",
                    "uid": f"{name}-uid",
                    "resourceVersion": "7",
                    **metadata,
                },
                "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"limits": limits}}]},
                "status": {"phase": "Running"},
            }
        )

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


def check(server: Server, *arguments: str, **settings: str) -> Result:
    environ = {"SLICEKEEPER_KUBERNETES_SERVER": server.url, **settings}
    return CliRunner().invoke(cli, ["check", *arguments], env=environ)


FRACTION = {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "8"}
MARKS = {"labels": {names.MANAGED_LABEL: names.MANAGED_VALUE}, "finalizers": ["other/one", names.FINALIZER]}


def test_a_whole_installation_is_in_order(server: Server) -> None:
    server.install()
    server.pod("admitted", FRACTION, **MARKS)
    server.pod("plain", {"cpu": "1"})
    done = check(server)
    assert (done.exit_code, done.output) == (0, "nothing is missing, nothing is unmetered\n")
    assert server.patches == []


def test_an_api_that_is_not_available_is_named_for_what_it_holds_up(server: Server) -> None:
    server.install()
    condition = {"type": "Available", "status": "False", "reason": "MissingEndpoints", "message": "no endpoints"}
    server.objects[API_SERVICE] = {"status": {"conditions": [condition]}}
    done = check(server)
    assert done.exit_code == 1
    assert "is not available, so no namespace in the cluster can be deleted: no endpoints" in done.output


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (f"{DEPLOYMENTS}/webhook", "deployment webhook is missing"),
        (f"{PRIORITY_CLASSES}/gpu-lower-priority", "PriorityClass gpu-lower-priority is miss"),
        (f"{ADMISSION}/validatingwebhookconfigurations/slicekeeper", "validatingwebhookconfigurations slicekeeper is"),
        (
            f"{ADMISSION}/validatingadmissionpolicybindings/slicekeeper-bindings",
            "guard slicekeeper-bindings is missing",
        ),
        (f"{ADMISSION}/validatingadmissionpolicies/slicekeeper-nodes", "guard slicekeeper-nodes is missing"),
        (AGENTS, "daemonset nodeagent is missing"),
        (ARBITERS, "daemonset arbiter is missing"),
        (API_SERVICE, f"apiservice {names.API_SERVICE} is missing"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(server: Server, path: str, told: str) -> None:
    server.install()
    del server.objects[path]
    done = check(server)
    assert done.exit_code == 1
    assert told in done.output
    assert "kubectl apply -k" in done.output


def test_parts_that_are_not_ready_and_nodes_without_gpus_are_named(server: Server) -> None:
    server.install()
    server.objects[f"{DEPLOYMENTS}/scheduler"] = {"status": {}}
    server.objects[f"{ADMISSION}/mutatingwebhookconfigurations/slicekeeper"]["webhooks"][0]["clientConfig"] = {}
    server.objects[NODES][0]["metadata"]["annotations"] = {}
    server.objects[AGENTS]["status"]["numberReady"] = 1
    del server.objects[TRUSTED]
    server.objects[f"{ADMISSION}/validatingadmissionpolicybindings/slicekeeper-nodes"]["spec"] = {}
    told = check(server).output
    assert "daemonset nodeagent is ready on 1 of 2 nodes" in told
    assert "configmap slicekeeper-ca.crt is missing" in told
    assert "guard slicekeeper-nodes denies nothing" in told
    assert "deployment scheduler has no ready pod" in told
    assert "mutatingwebhookconfigurations slicekeeper trusts no CA" in told
    assert "no node shows GPUs" in told


def test_pods_from_before_are_found_and_shown(server: Server) -> None:
    server.install()
    server.pod("share", FRACTION)
    server.pod("whole", {"nvidia.com/gpu": "2"})
    server.pod("odd", {"tencent.com/vcuda-core": "250"})
    done = check(server, "-o", "json")
    assert done.exit_code == 1
    found = {f["problem"]: f["remedy"] for f in json.loads(done.stdout)}
    for name in ("share", "whole"):
        assert "check --adopt" in found[f"pod team/{name} uses GPUs unmetered"]
    [odd] = [problem for problem in found if "team/odd" in problem]
    assert "cannot be charged" in odd
    assert "tencent.com/vcuda-core" in odd
    assert server.patches == []


def test_pods_of_namespaces_that_a_gpu_policy_exempts_are_not_looked_for(server: Server) -> None:
    server.install()
    server.pod("whole", {"nvidia.com/gpu": "2"})
    for spec in ({"match": ["team"], "nvidiaGpu": "ignored"}, {"match": ["t*"], "mode": "off"}):
        metadata = {"name": "p", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
        server.objects["/apis/slicekeeper.io/v1alpha1/gpupolicies"] = [{"metadata": metadata, "spec": spec}]
        assert check(server).exit_code == 0


def test_adopting_marks_what_can_be_charged_and_nothing_else(server: Server) -> None:
    server.install()
    server.pod("share", FRACTION, finalizers=["other/one"])
    server.pod("whole", {"nvidia.com/gpu": "2"})
    server.pod("odd", {"tencent.com/vcuda-core": "250"})
    server.pod("going", FRACTION, deletionTimestamp="2026-01-01T00:00:00Z")
    done = check(server, "--adopt")
    assert done.exit_code == 1
    assert "team/odd" in done.stdout
    assert "team/going uses GPUs unmetered, and cannot be charged: it is" in done.stdout
    written = {path: body["metadata"] for path, body in server.patches}
    assert set(written) == {f"/api/v1/namespaces/team/pods/{name}" for name in ("share", "whole")}
    share = written["/api/v1/namespaces/team/pods/share"]
    assert share["finalizers"] == ["other/one", names.FINALIZER]
    assert share["labels"] == {names.MANAGED_LABEL: names.MANAGED_VALUE}
    assert share["annotations"][names.ADOPTED_AT].endswith("Z")
    assert share["resourceVersion"] == "7"


def test_a_pod_that_changed_meanwhile_is_told_and_left(server: Server) -> None:
    server.install()
    server.pod("share", FRACTION)
    server.patch_status = 409
    done = check(server, "--adopt")
    assert done.exit_code == 1
    assert "team/share has changed in the meantime" in done.output


def test_what_is_left_behind_is_named_and_taken_away(server: Server) -> None:
    server.install()
    server.uninstall()
    server.pod("held", FRACTION, **MARKS)
    told = check(server).output
    assert "pod team/held still has our finalizer, and nothing will remove it" in told
    assert "node n shows GPUs, and nothing will remove it" in told
    assert server.patches == []
    done = check(server, "--repair")
    assert done.exit_code == 0
    assert "2 things removed" in done.output
    patches = dict(server.patches)
    assert patches["/api/v1/namespaces/team/pods/held"] == [
        {"op": "test", "path": "/metadata/uid", "value": "held-uid"},
        {"op": "test", "path": "/metadata/finalizers/1", "value": names.FINALIZER},
        {"op": "remove", "path": "/metadata/finalizers/1"},
    ]
    gone = {names.NODE_GPUS: None, names.NODE_AGENT: None, names.NODE_MACHINE: None}
    assert patches["/api/v1/nodes/n/status"]["metadata"] == {"annotations": gone}


@pytest.mark.parametrize("namespace", ["slicekeeper-system", "typo"])
def test_repair_takes_nothing_from_an_installation_that_is_there(server: Server, namespace: str) -> None:
    server.install()
    server.pod("held", FRACTION, **MARKS)
    done = check(server, "--repair", "-n", namespace)
    assert (done.exit_code, server.patches) == (0, [])
    assert "0 things removed" in done.output


def test_another_namespace_than_the_installations_is_told(server: Server) -> None:
    server.install()
    done = check(server, "-n", "typo")
    assert done.exit_code == 1
    assert "slicekeeper check -n slicekeeper-system, which has one" in done.output


def test_a_pod_that_waits_behind_our_gate_is_let_go_and_told(server: Server) -> None:
    server.pod("waits", FRACTION)
    spec = server.objects[PODS][0]["spec"]
    del spec["nodeName"]
    spec |= {"schedulerName": "slicekeeper-scheduler", "schedulingGates": [{"name": "a/b"}, {"name": names.GATE}]}
    done = check(server, "--repair")
    assert [path for path, _ in server.patches] == ["/api/v1/namespaces/team/pods/waits"]
    assert server.patches[0][1] == [
        {"op": "test", "path": "/metadata/uid", "value": "waits-uid"},
        {"op": "test", "path": "/spec/schedulingGates/1/name", "value": names.GATE},
        {"op": "remove", "path": "/spec/schedulingGates/1"},
    ]
    assert done.exit_code == 1
    assert "team/waits waits for slicekeeper-scheduler, which is gone" in done.output
    assert "kubectl delete pod -n team waits" in done.output


def test_what_changed_while_it_was_repaired_is_told(server: Server) -> None:
    server.pod("held", FRACTION, **MARKS)
    server.patch_status = 422
    done = check(server, "--repair")
    assert done.exit_code == 1
    assert "0 things removed" in done.output
    assert "pod team/held still has our finalizer, and nothing will remove it" in done.output


def test_nothing_is_adopted_without_a_timekeeper(server: Server) -> None:
    server.pod("share", FRACTION)
    done = check(server, "--adopt")
    assert done.exit_code != 0
    assert "no timekeeper is installed" in str(done.exception)
    assert server.patches == []


def test_after_uninstalling_nobody_is_told_to_adopt(server: Server) -> None:
    server.pod("whole", {"nvidia.com/gpu": "1"})
    done = check(server, "--repair")
    assert (done.exit_code, done.stdout) == (0, "nothing is missing, nothing is unmetered\n")


def problems(done: Result) -> list[str]:
    return [finding["problem"] for finding in json.loads(done.stdout)]


def with_registry(text: str) -> str:
    """Return the manifests as `slicekeeper config manifests` makes them for a registry."""
    text = text.replace("    webhook:\n", "    images: {registry: registry.example}\n    webhook:\n", 1)
    return text.replace("slicekeeper.invalid/", "registry.example/")


def test_the_manifests_are_as_their_settings_say_and_only_a_registry_is_missing(server: Server) -> None:
    server.install_manifests()
    [told] = problems(check(server, "-o", "json"))
    assert told.startswith("images.registry is not set: slicekeeper.invalid is no registry")
    server.install_manifests(with_registry)
    assert problems(check(server, "-o", "json")) == []


def test_images_that_are_not_those_of_the_settings_are_named(server: Server) -> None:
    def change(text: str) -> str:
        return with_registry(text).replace("registry.example/timekeeper:", "elsewhere.example/timekeeper:")

    server.install_manifests(change)
    [told] = problems(check(server, "-o", "json"))
    assert told.startswith("deployment timekeeper has the image elsewhere.example/timekeeper:")
    assert "the settings say registry.example/timekeeper:" in told


def test_settings_that_were_renamed_without_the_manifests_are_named_place_by_place(server: Server) -> None:
    def change(text: str) -> str:
        renamed = "    resources: {core: gpu.example/percent, device: nvidia.com/gpu}\n    webhook:\n"
        return with_registry(text).replace("    webhook:\n", renamed, 1)

    server.install_manifests(change)
    server.pod("share", {"gpu.example/percent": "50", "tencent.com/vcuda-memory": "8"})
    told = problems(check(server, "-o", "json"))
    for place in (
        "mutatingwebhookconfigurations slicekeeper, webhook pods.mutate.slicekeeper.io, is asked about",
        "validatingwebhookconfigurations slicekeeper, webhook cronjobs.validate.slicekeeper.io, is asked about",
    ):
        [line] = [line for line in told if line.startswith(place)]
        assert "tencent.com/vcuda-core, nvidia.com/gpu.shared, nvidia.com/mig-*, which the settings do not name" in line
        assert line.endswith("but not gpu.example/percent")
    assert any(
        line.startswith("guard slicekeeper-nodes guards the capacity of tencent.com/vcuda-core") for line in told
    )
    assert any("the extender is asked about tencent.com/vcuda-core" in line for line in told)
    assert "pod team/share uses GPUs unmetered" in told, "pods are looked for by the installed names"


def test_settings_given_to_the_command_are_compared_with_the_installed_ones(server: Server) -> None:
    server.install_manifests(with_registry)
    done = check(server, "-o", "json", SLICEKEEPER_RESOURCES_MEMORY="gpu.example/blocks")
    told = problems(done)
    assert told[0] == (
        "configmap slicekeeper-config has resources.memory tencent.com/vcuda-memory, "
        "and this command was given gpu.example/blocks"
    )
    assert any("webhook jobs" in line or "webhook workloads" in line for line in told)
    assert problems(check(server, "-o", "json", SLICEKEEPER_RESOURCES_MEMORY="tencent.com/vcuda-memory")) == []


def test_another_schedulers_name_is_told(server: Server) -> None:
    server.install_manifests(
        lambda text: with_registry(text).replace("- schedulerName: slicekeeper-s", "- schedulerName: s")
    )
    assert problems(check(server, "-o", "json")) == [
        "configmap slicekeeper-kube-scheduler has the scheduler scheduler, and webhook.schedulerName is "
        "slicekeeper-scheduler"
    ]


def test_a_shard_without_a_scheduler_is_told(server: Server) -> None:
    server.install_manifests(
        lambda text: with_registry(text).replace("    scheduler:\n", "    scheduler:\n      shards: [b]\n")
    )
    assert problems(check(server, "-o", "json")) == ["deployment scheduler-b is missing"]
    first = server.objects[f"{DEPLOYMENTS}/scheduler"]
    server.objects[f"{DEPLOYMENTS}/scheduler-b"] = {**first, "metadata": {**first["metadata"], "name": "scheduler-b"}}
    assert problems(check(server, "-o", "json")) == []


def test_namespaces_classes_and_audience_that_are_not_the_settings_are_named_place_by_place(server: Server) -> None:
    changed = (
        "    policy:\n      exemptNamespaces: [kube-system, kube-public, infra, 'infra-*']\n",
        "    timekeeper:\n      audience: budgets\n",
    )

    def change(text: str) -> str:
        text = with_registry(text).replace("preemptionPolicy: Never\nvalue: -100", "preemptionPolicy: Never\nvalue: -5")
        for one in changed:
            text = text.replace(f"{one.partition(chr(10))[0]}\n", one, 1)
        return text.replace("    webhook:\n", f"    {IN_BUDGET}\n    webhook:\n", 1)

    server.install_manifests(change)
    told = problems(check(server, "-o", "json"))
    differs = "kube-node-lease, which the settings do not name, but not infra"
    for place in (
        "mutatingwebhookconfigurations slicekeeper, webhook pods.mutate.slicekeeper.io, leaves out",
        "validatingwebhookconfigurations slicekeeper, webhook cronjobs.validate.slicekeeper.io, leaves out",
        "guard slicekeeper-scheduler keeps the scheduler from pods of",
        "guard slicekeeper-other-namespaces keeps evictions from pods of",
    ):
        assert f"{place} {differs}" in told
    assert (
        "guard slicekeeper-scheduler compares priorities with 0, and the settings say classes.inBudget.value 7" in told
    )
    assert "PriorityClass gpu-default-priority has value 0, and the settings say 7" in told
    assert "PriorityClass gpu-lower-priority has value -5, and the settings say -100" in told
    assert "deployment webhook has a token for the audience timekeeper, and timekeeper.audience is budgets" in told
    assert len(told) == len(set(told))


IN_BUDGET = "classes: {inBudget: {name: gpu-default-priority, value: 7, preemptionPolicy: PreemptLowerPriority}}"


@pytest.mark.parametrize(
    ("ours", "fits"), [("v1.34.9", False), ("v1.35.0", True), ("v1.36.3", True), ("v1.37.1", False)]
)
def test_a_kube_scheduler_that_does_not_fit_the_api_server_is_named(server: Server, ours: str, fits: bool) -> None:
    tag = "kube-scheduler:v1.36.3"
    server.install_manifests(lambda text: with_registry(text).replace(tag, tag.replace("v1.36.3", ours)))
    found = json.loads(check(server, "-o", "json").stdout)
    assert bool(found) is not fits
    for one in found:
        assert f"kube-scheduler is {ours[:5]}, the API server v1.36:" in one["problem"]
        assert "newTag in manifests/base/kustomization.yaml" in one["remedy"]


def test_what_helm_installed_is_mended_by_helm(server: Server) -> None:
    def by_helm(text: str) -> str:
        return text.replace("apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  labels:\n", HELM)

    server.install_manifests(by_helm)
    server.objects[API_SERVICE] = None
    del server.objects[ARBITERS]
    found = {one["problem"]: one["remedy"] for one in json.loads(check(server, "-o", "json").stdout)}
    upgrade = "helm upgrade gpus manifests/chart -n slicekeeper-system --reset-then-reuse-values"
    assert {remedy for problem, remedy in found.items() if "is missing" in problem} == {upgrade}
    [registry] = [remedy for problem, remedy in found.items() if "images.registry is not set" in problem]
    assert registry == f"{upgrade} --set images.registry=REGISTRY"
    server.install_manifests(lambda text: by_helm(with_registry(text)).replace("  mode: enforce", "  audit: evict"))
    server.refused.add(("nodeagent", "create", "pods/eviction"))
    [missed] = json.loads(check(server, "-o", "json").stdout)
    assert missed["remedy"] == f"{upgrade} --set components.auditEvictions=true"


HELM = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  annotations: {meta.helm.sh/release-name: gpus}
  labels:
    app.kubernetes.io/managed-by: Helm
"""


def test_what_is_left_from_an_older_release_is_named_with_the_command_that_removes_it(server: Server) -> None:
    server.install()
    server.objects[f"{RIGHTS}/clusterrolebindings/slicekeeper-kube-scheduler"] = {"metadata": {}}
    [found] = json.loads(check(server, "-o", "json").stdout)
    assert "clusterrolebinding slicekeeper-kube-scheduler is left from an older release" in found["problem"]
    assert found["remedy"] == "kubectl delete clusterrolebinding slicekeeper-kube-scheduler"


def test_records_that_wait_for_the_timekeeper_are_named(server: Server) -> None:
    server.install()
    pods = [{"metadata": {"name": "a", "namespace": "team", "uid": "u", "resourceVersion": "1"}, "spec": {}}]
    [(record, _)] = break_glass_record.records(pods, {"team": "uid"}, {})
    server.objects["/api/v1/namespaces/slicekeeper-system/configmaps"] = [record]
    [told] = problems(check(server, "-o", "json"))
    name = record["metadata"]["name"]
    assert told == f"1 pods were released by --break-glass and are not charged yet (configmap {name})"


def test_breaking_glass_with_nothing_to_let_go_writes_nothing(server: Server) -> None:
    server.objects["/api/v1/namespaces"] = [{"metadata": {"name": "team", "uid": "uid"}}]
    server.pod("runs", FRACTION, **MARKS)
    done = check(server, "--break-glass")
    assert (done.exit_code, server.patches) == (0, [])
    assert "0 pods released" in done.output


@pytest.mark.parametrize(
    ("ours", "capacity", "labels", "told"),
    [
        (0, {"nvidia.com/gpu": "4"}, {}, "node n has nvidia.com/gpu of another plugin, so Slicekeeper offers none"),
        (2, {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu.count": "4"}, ""),
        (2, {"nvidia.com/gpu": "3"}, {"nvidia.com/gpu.count": "4"}, "node n has 4 GPUs: Slicekeeper offers 2 of them"),
        (2, {"nvidia.com/gpu": "8"}, {"nvidia.com/gpu.count": "4", "nvidia.com/gpu.replicas": "4"}, ""),
        (
            2,
            {"nvidia.com/gpu": "16"},
            {"nvidia.com/gpu.count": "4", "nvidia.com/gpu.replicas": "4"},
            "nvidia.com/gpu offers 4",
        ),
        (2, {"nvidia.com/gpu": "4"}, {}, ""),
        (0, {"nvidia.com/gpu": "0"}, {}, ""),
    ],
)
def test_gpus_that_another_plugin_gives_out_too_are_named(
    server: Server, ours: int, capacity: dict[str, str], labels: dict[str, str], told: str
) -> None:
    server.install()
    gpus = inventory.encode([inventory.Gpu(f"g{index}", "A100", 81920) for index in range(ours)])
    metadata = {"name": "n", "annotations": {names.NODE_GPUS: gpus}, "labels": labels}
    server.objects[NODES].append({"metadata": metadata, "status": {"capacity": capacity}})
    found = [problem for problem in problems(check(server, "-o", "json")) if problem.startswith("node n")]
    assert len(found) == bool(told)
    assert told in "".join(found)


@pytest.mark.parametrize(
    ("old", "new", "right", "component"),
    [
        (
            "  mode: enforce",
            "  mode: enforce\n      budget: {enforcement: hard}",
            ("timekeeper", "create", "pods/eviction"),
            "hard-budgets",
        ),
        (
            "  mode: enforce",
            "  mode: enforce\n      audit: evict",
            ("nodeagent", "create", "pods/eviction"),
            "audit-evictions",
        ),
        (
            "    webhook:\n",
            "    timekeeper: {weight: quota}\n    webhook:\n",
            ("timekeeper", "list", "resourcequotas"),
            "quota-weight",
        ),
    ],
)
def test_rights_that_a_policy_needs_are_missed(
    server: Server, old: str, new: str, right: tuple[str, str, str], component: str
) -> None:
    def change(text: str) -> str:
        text = with_registry(text)
        assert old in text
        if "weight" in new:
            return text.replace("    timekeeper:\n", "    timekeeper:\n      weight: quota\n", 1)
        return text.replace(old, new, 1)

    server.install_manifests(change)
    assert problems(check(server, "-o", "json")) == []
    server.refused.add(right)
    [found] = json.loads(check(server, "-o", "json").stdout)
    assert "and the {} may not {} {}".format(*right) in found["problem"]
    assert component in found["remedy"]


GPU_LABEL = {"slicekeeper.io/gpus": "true"}


def node(name: str, found: Machine | None = None, runtime: str = "containerd://2.1.4", **more: Any) -> dict[str, Any]:
    """Return a GPU node with what its agent found."""
    annotations = {} if found is None else {names.NODE_MACHINE: machine.encode(found)}
    info = {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": runtime, **more}
    metadata = {"name": name, "labels": GPU_LABEL, "annotations": annotations}
    return {"metadata": metadata, "status": {"nodeInfo": info}}


def found_on(server: Server, name: str) -> list[tuple[str, str]]:
    """Return what `check` finds of one node, each with its remedy."""
    found = json.loads(check(server, "-o", "json").stdout)
    return [(one["problem"], one["remedy"]) for one in found if one["problem"].startswith(f"node {name}")]


@pytest.mark.parametrize(
    "told",
    [
        Machine(driver="550.54.14", cdi_read=True),
        Machine(driver="418.81.07"),
        Machine(driver="unknown", cdi_read=None),
    ],
)
def test_a_node_that_lacks_nothing_is_not_named(server: Server, told: Machine) -> None:
    server.install()
    server.objects[NODES] += [node("one", told), node("two", told, "cri-o://1.36.1")]
    server.objects[NODES].append({"metadata": {"name": "no-gpus"}, "status": {"nodeInfo": {"kubeletVersion": "v1.1"}}})
    assert problems(check(server, "-o", "json")) == []


@pytest.mark.parametrize(
    ("told", "problem", "remedy"),
    [
        (Machine(driver_trouble="Driver Not Loaded"), "no NVIDIA driver that answers: Driver Not", "modprobe nvidia"),
        (
            Machine(driver_trouble="NVML Shared Library Not Found"),
            "no NVIDIA driver that answers: NVML Shared Library Not Found",
            "add manifests/components/nvidia-runtime to your overlay",
        ),
        (
            Machine(driver_trouble="Driver/library version mismatch"),
            "no NVIDIA driver that answers: Driver/library version mismatch",
            "drain the node and reboot it",
        ),
        (Machine(driver="390.157"), "NVIDIA's driver 390.157: it must be 418.81 or newer", "install a newer driver"),
        (
            Machine(driver="550.54.14", device_trouble="no CDI specification; make one by `nvidia-ctk cdi generate`"),
            "cannot give GPUs to containers: no CDI specification; make one by `nvidia-ctk cdi generate`",
            "run that on the node",
        ),
    ],
)
def test_a_nodes_driver_and_devices_are_told_in_the_agents_words(
    server: Server, told: Machine, problem: str, remedy: str
) -> None:
    server.install()
    server.objects[NODES].append(node("one", told))
    [(found, mended)] = found_on(server, "one")
    assert problem in found
    assert remedy in mended


def test_a_node_whose_gpus_cannot_be_read_is_named_and_hides_nothing_else(server: Server) -> None:
    server.install()
    broken, shared = node("broken"), node("shared", Machine(driver="390.157"))
    broken["metadata"]["annotations"][names.NODE_GPUS] = '[{"uuid": 1}]'
    broken["status"]["capacity"] = {"nvidia.com/gpu": "1"}
    server.objects[NODES] += [broken, shared]
    (problem, remedy), *_ = found_on(server, "broken")
    assert "annotation slicekeeper.io/gpus: Expected `str`, got `int`" in problem
    assert remedy == "kubectl annotate node broken slicekeeper.io/gpus-; its agent writes it again"
    assert found_on(server, "shared")


def test_nvidias_runtime_class_is_not_recommended_to_who_has_it(server: Server) -> None:
    server.install()
    server.objects[AGENTS]["spec"] = {"template": {"spec": {"runtimeClassName": "nvidia"}}}
    server.objects[NODES].append(node("one", Machine(driver_trouble="NVML Shared Library Not Found")))
    [(_, remedy)] = found_on(server, "one")
    assert remedy == "install NVIDIA's driver on the node, until nvidia-smi works there"


@pytest.mark.parametrize(
    ("runtime", "setting", "remedy"),
    [
        (
            "containerd://1.7.27",
            "enable_cdi or cdi_spec_dirs",
            "nvidia-ctk runtime configure --runtime=containerd --cdi",
        ),
        ("containerd://2.1.4-k3s1", "cdi_spec_dirs", "systemctl restart containerd"),
        ("cri-o://1.34.2", "cdi_spec_dirs", "systemctl restart crio"),
    ],
)
def test_a_runtime_that_reads_no_cdi_folder_is_told_with_its_own_setting(
    server: Server, runtime: str, setting: str, remedy: str
) -> None:
    server.install()
    server.objects[NODES].append(node("one", Machine(driver="550.54.14", cdi_read=False), runtime))
    [(problem, mended)] = found_on(server, "one")
    assert f"{runtime} reads no CDI specification in /var/run/cdi ({setting} of its configuration)" in problem
    assert "put /var/run/cdi into cdi_spec_dirs" in mended
    assert remedy in mended


@pytest.mark.parametrize(
    ("runtime", "read", "told"),
    [
        ("containerd://1.7.27", None, True),
        ("containerd://1.7.27", True, False),
        ("containerd://2.1.4", None, False),
        ("cri-o://1.34.2", None, False),
    ],
)
def test_containerd_of_which_cdi_may_be_off_is_named_until_it_was_seen_to_be_on(
    server: Server, runtime: str, read: bool | None, told: bool
) -> None:
    server.install()
    server.objects[NODES].append(node("one", Machine(driver="550.54.14", cdi_read=read), runtime))
    found = found_on(server, "one")
    assert [("CDI is off unless" in problem, "grep enable_cdi" in remedy) for problem, remedy in found] == (
        [(True, True)] if told else []
    )


@pytest.mark.parametrize(
    ("runtime", "kubelet", "problem"),
    [
        ("containerd://1.6.36", "v1.36.3", "containerd 1.6.36, which has no CDI: it must be 1.7 or newer"),
        ("docker://28.1.0", "v1.36.3", "the container runtime docker://28.1.0: it must be containerd or CRI-O"),
        ("containerd://2.1.4", "v1.29.14", "kubelet v1.29.14: it must be v1.30 or newer"),
    ],
)
def test_versions_that_are_too_old_are_named(server: Server, runtime: str, kubelet: str, problem: str) -> None:
    server.install()
    server.objects[NODES].append(node("one", runtime=runtime, kubeletVersion=kubelet))
    [(found, remedy)] = found_on(server, "one")
    assert problem in found
    assert "kubectl label node one slicekeeper.io/gpus-" in remedy


def test_an_api_server_that_is_too_old_is_named(server: Server) -> None:
    server.install()
    server.objects["/version"] = {"gitVersion": "v1.29.9-eks-1"}
    assert "the API server is v1.29.9-eks-1: it must be v1.30 or newer" in problems(check(server, "-o", "json"))


def lease(name: str, renewed: str, written: str, manager: str = "kubelet") -> dict[str, Any]:
    """Return a node's Lease as the API server keeps it: the instant of the write is in managedFields."""
    fields = {"f:holderIdentity": {}, "f:leaseDurationSeconds": {}, "f:renewTime": {}}
    entries = [
        {
            "manager": "kubectl",
            "operation": "Update",
            "time": "2026-01-01T00:00:00Z",
            "fieldsV1": {"f:metadata": {"f:labels": {}}},
        },
        {"manager": manager, "operation": "Update", "time": written, "fieldsV1": {"f:spec": fields}},
    ]
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renewed}
    return {"metadata": {"name": name, "namespace": "kube-node-lease", "managedFields": entries}, "spec": spec}


@pytest.mark.parametrize(
    ("renewed", "told"),
    [
        ("2026-11-20T10:00:00.734000Z", ""),
        ("2026-11-20T10:00:09.900000Z", ""),
        ("2026-11-20T09:59:51.000000Z", ""),
        ("2026-11-20T10:00:12.400000Z", "its clock is 12 s ahead of the API server's"),
        ("2026-11-20T09:55:00.000000Z", "its clock is 300 s behind the API server's"),
        ("2027-11-20T10:00:00.000000Z", "its clock is 31536000 s ahead of the API server's"),
    ],
)
def test_a_clock_that_is_not_the_api_servers_is_named(server: Server, renewed: str, told: str) -> None:
    server.install()
    server.objects[LEASES] += [
        lease("one", renewed, "2026-11-20T10:00:00Z"),
        lease("two", "2026-11-20T08:00:00.000000Z", "2026-11-20T08:00:00Z", manager="k3s"),
        {"metadata": {"name": "three"}, "spec": {"renewTime": "1999-01-01T00:00:00Z"}},
    ]
    found = found_on(server, "")
    assert [problem.startswith(f"node one: {told}") for problem, _ in found] == ([True] if told else [])
    assert all("chronyc makestep" in remedy for _, remedy in found)


def test_rights_that_the_parts_always_need_are_missed(server: Server) -> None:
    server.install()
    for lost in (ALWAYS, ALWAYS[:1]):
        server.refused = {(right.account, right.verb, right.resource) for right in lost}
        found = json.loads(check(server, "-o", "json").stdout)
        wanted = [f"the {right}: its role or its binding is missing or was changed" for right in lost]
        assert [one["problem"] for one in found] == wanted
        assert all("kubectl apply -k" in one["remedy"] for one in found)


def test_a_webhook_that_the_api_server_does_not_reach_is_told_in_its_words(server: Server) -> None:
    server.install()
    path = "/api/v1/namespaces/default/pods?dryRun=All"
    why = 'failed calling webhook "pods.validate.slicekeeper.io": tls: failed to verify certificate: x509: expired'
    server.errors[path] = (500, f"Internal error occurred: {why}")
    [found] = json.loads(check(server, "-o", "json").stdout)
    assert found["problem"].endswith(why)
    assert "x509 or tls: kubectl logs -n slicekeeper-system deployment/certificates" in found["remedy"]
    for refusal in (
        (422, "tencent.com/vcuda-core: refused"),
        (403, "exceeded quota"),
        (403, "may not create pods"),
        (500, 'Internal error occurred: failed calling webhook "images.example.com": connection refused'),
    ):
        server.errors[path] = refusal
        assert problems(check(server, "-o", "json")) == [], "it was asked, or nobody came as far"


def test_the_webhook_is_asked_by_a_pod_that_is_never_made(server: Server) -> None:
    server.install()
    check(server)
    [(path, pod)] = server.created
    assert path == "/api/v1/namespaces/default/pods?dryRun=All"
    assert pod["spec"]["containers"][0]["resources"] == {"limits": {"tencent.com/vcuda-core": "100"}}


def test_a_timekeeper_that_the_api_server_does_not_reach_is_told_in_its_words(server: Server) -> None:
    server.install()
    server.errors[TIMEKEEPERS_API] = (
        503,
        "error trying to reach service: x509: certificate signed by unknown authority",
    )
    [found] = json.loads(check(server, "-o", "json").stdout)
    assert "the API server gets no answer from the timekeeper" in found["problem"]
    assert "unknown authority" in found["problem"]
    assert "let the control plane reach port 8444" in found["remedy"]
    server.errors[TIMEKEEPERS_API] = (503, "service unavailable")
    assert problems(check(server, "-o", "json")) == [], "its APIService tells why"


def waiting_pod(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"app.kubernetes.io/name": "webhook"}}, "status": status}


@pytest.mark.parametrize(
    ("pods", "status", "problem", "remedy"),
    [
        (
            [waiting_pod("w-1", conditions=[
                {"type": "PodScheduled", "status": "False", "message": "pod has unbound PersistentVolumeClaims"},
            ])],
            {},
            ": pod w-1: pod has unbound PersistentVolumeClaims",
            "kubectl describe pod -n slicekeeper-system w-1",
        ),
        (
            [waiting_pod("w-1", containerStatuses=[
                {"name": "webhook", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
            ])],
            {},
            ": pod w-1: ImagePullBackOff: no such image",
            "kubectl describe pod -n slicekeeper-system w-1; docs/install.md#images",
        ),
        (
            [waiting_pod("w-1", containerStatuses=[{"name": "webhook", "state": {"waiting": {
                "reason": "CrashLoopBackOff", "message": "back-off"}}}])],
            {},
            "",
            "kubectl logs -n slicekeeper-system deployment/webhook",
        ),
        (
            [],
            {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "insufficient quota to match"}]},
            ": no pod can be created: insufficient quota to match",
            "docs/install.md#platforms lists the requirements of platforms",
        ),
    ],
)  # fmt: skip
def test_why_a_part_is_not_ready_is_told(
    server: Server, pods: list[Any], status: dict[str, Any], problem: str, remedy: str
) -> None:
    server.install()
    server.objects[f"{DEPLOYMENTS}/webhook"]["status"] = status
    server.objects[OUR_PODS] += pods
    found = json.loads(check(server, "-o", "json").stdout)
    assert found == [{"problem": f"deployment webhook has no ready pod{problem}", "remedy": remedy}]
    assert server.created == [], "nobody is asked who is known to be away"


@pytest.mark.parametrize("operator", ["objects", "sharepods"])
def test_an_operator_is_looked_at_where_it_is_installed(server: Server, operator: str) -> None:
    server.install()
    server.objects[f"{DEPLOYMENTS}/{operator}"] = {"metadata": {"name": operator}, "status": {}}
    assert problems(check(server, "-o", "json")) == [f"deployment {operator} has no ready pod"]


def test_before_the_installation_the_cluster_is_looked_at(server: Server) -> None:
    bare = {"metadata": {"name": "gpu-1", "labels": {"feature.node.kubernetes.io/pci-10de.present": "true"}}}
    server.objects[NODES] += [bare, {"metadata": {"name": "cpu-1"}}]
    found = {one["problem"]: one["remedy"] for one in json.loads(check(server, "-o", "json").stdout)}
    storage, label, nothing = sorted(found)
    assert nothing == "nothing is installed in namespace slicekeeper-system"
    assert found[nothing].startswith("helm install slicekeeper manifests/chart -n slicekeeper-system")
    assert storage.startswith("no StorageClass is the default")
    assert label.startswith("no node shows GPUs, and none has the label slicekeeper.io/gpus=true")
    assert found[label] == "kubectl label node gpu-1 slicekeeper.io/gpus=true"
    server.objects[NODES] = [node("gpu-1", runtime="containerd://1.7.27")]
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    server.objects[STORAGE_CLASSES] = [{"metadata": {"name": "standard", "annotations": default}}]
    told = problems(check(server, "-o", "json"))
    assert not any("StorageClass" in problem for problem in told)
    assert any("containerd 1.7.27, in which CDI is off unless" in problem for problem in told)

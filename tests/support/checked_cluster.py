# SPDX-License-Identifier: Apache-2.0
"""An API server whose objects a test lists, for tests of `slicekeeper check`: what it finds, and what it writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result
from support.quiet_handler import QuietHandler

from slicekeeper import names
from slicekeeper.cli.check import webhooks_and_guards
from slicekeeper.cli.main import cli
from slicekeeper.config.settings import Classes
from slicekeeper.gpu import inventory, node_setup
from slicekeeper.gpu.node_setup import NodeSetup

ROOT = Path(__file__).parents[2]
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
FRACTION = {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "8"}
MARKS = {"labels": {names.MANAGED_LABEL: names.MANAGED_VALUE}, "finalizers": ["other/one", names.FINALIZER]}
GPU_LABEL = {"slicekeeper.io/gpus": "true"}


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
        version = {"gitVersion": "v1.37.2+k3s1"}
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

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                found = known.objects.get(path)
                if path in known.errors:
                    status, message = known.errors[path]  # as of an API that another serves and that it does not reach
                    self.send(f"{message}\n".encode(), status, {"Content-Type": "text/plain; charset=utf-8"})
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
                self.send(json.dumps(body).encode(), status, {"Content-Type": "application/json"})

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def install(self) -> None:
        for part in ("certificates", "timekeeper", "timekeeper-forwarder", "webhook", "scheduler"):
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
        for guard in webhooks_and_guards._GUARD_NAMES:
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


def check(server: Server, *arguments: str, **settings: str) -> Result:
    environ = {"SLICEKEEPER_KUBERNETES_SERVER": server.url, "COLUMNS": "1000", **settings}
    return CliRunner().invoke(cli, ["check", *arguments], env=environ)


def problems(done: Result) -> list[str]:
    return [finding["problem"] for finding in json.loads(done.stdout)]


def with_registry(text: str) -> str:
    """Return the manifests as the chart makes them for a registry."""
    text = text.replace("    webhook:\n", "    images: {registry: registry.example}\n    webhook:\n", 1)
    return text.replace("slicekeeper.invalid/", "registry.example/")


def node(name: str, found: NodeSetup | None = None, runtime: str = "containerd://2.1.4", **more: Any) -> dict[str, Any]:
    """Return a GPU node with what its agent found."""
    annotations = {} if found is None else {names.NODE_MACHINE: node_setup.encode(found)}
    info = {"kubeletVersion": "v1.37.2", "containerRuntimeVersion": runtime, **more}
    metadata = {"name": name, "labels": GPU_LABEL, "annotations": annotations}
    return {"metadata": metadata, "status": {"nodeInfo": info}}


def found_on(server: Server, name: str) -> list[tuple[str, str]]:
    """Return what `check` finds of one node, each with its remedy."""
    found = json.loads(check(server, "-o", "json").stdout)
    return [(one["problem"], one["remedy"]) for one in found if one["problem"].startswith(f"node {name}")]

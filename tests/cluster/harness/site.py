# SPDX-License-Identifier: Apache-2.0
"""A cluster with Slicekeeper in it, as tests use it: namespaces of their own, pods, the timekeeper's REST interface."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cluster.harness.cluster import Cluster, living
from cluster.harness.images import SHELL_IMAGE
from cluster.harness.install import NAMESPACE, ROOT
from cluster.harness.kubectl import Kubectl, Object, Refused, wait_for
from cluster.harness.role_bindings import role_binding, service_account

from slicekeeper import names
from slicekeeper.config.settings import KubernetesSettings, TimekeeperClientSettings
from slicekeeper.errors import Unavailable
from slicekeeper.kube.client import KubeClient
from slicekeeper.net.json_client import JsonClient
from slicekeeper.net.timekeeper_client import TimekeeperClient
from slicekeeper.wire.timekeeper import Workload

CORE, MEMORY, SEAT = "tencent.com/vcuda-core", "tencent.com/vcuda-memory", "slicekeeper.io/seat"
MANAGER = "suite"
_CONFIGURATIONS = "mutatingwebhookconfiguration,validatingwebhookconfiguration"


class NoForward(Exception):
    """kubectl forwards no port; the message is what it said."""


@dataclass
class Site:
    """One cluster under test. `cluster` is None if the cluster is not one of the harness."""

    kubectl: Kubectl
    folder: Path
    cluster: Cluster | None
    namespaces: list[str] = field(default_factory=list)

    def namespace(self, kind: str = "team", labels: dict[str, str] | None = None) -> str:
        """Make a namespace of its own for a test; its policy goes by the kind."""
        name = f"{kind}-{secrets.token_hex(3)}"
        self.kubectl.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}}
        )
        self.namespaces.append(name)
        account = ("get", "serviceaccount", "default", "-n", name, "--ignore-not-found", "-o", "name")
        wait_for(lambda: self.kubectl(*account), "service account", pause=0.05)
        return name

    def clear(self) -> None:
        """Delete the namespaces made so far, without waiting for their end."""
        for name in self.namespaces:
            try:
                self.kubectl("delete", "pods", "--all", "-n", name, "--grace-period=1", "--wait=false", timeout=300)
                self.kubectl("delete", "namespace", name, "--wait=false")
            except Refused:
                pass  # the test deleted it
        self.namespaces.clear()

    def client(self, token: str) -> KubeClient:
        """Return our own parts' API client for a user with only a token."""
        there = yaml.safe_load(self.kubectl.kubeconfig.read_text())["clusters"][0]["cluster"]
        ca = self.folder / "ca.crt"
        ca.write_bytes(base64.b64decode(there["certificate-authority-data"]))
        return KubeClient(
            KubernetesSettings(server=there["server"], ca_file=str(ca), token_file=self._token_file(token))
        )

    def _token_file(self, token: str) -> str:
        file = self.folder / f"{secrets.token_hex(4)}.token"
        file.touch(mode=0o600)
        file.write_text(token)
        return str(file)

    def pod_token(self, pod: Object, audience: str = "timekeeper") -> str:
        """Return a token like the one that kubelet projects into a pod."""
        metadata = pod["metadata"]
        account = pod["spec"]["serviceAccountName"]
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={metadata['name']}")
        uid = f"--bound-object-uid={metadata['uid']}"
        namespace = metadata["namespace"]
        return self.kubectl("create", "token", account, "-n", namespace, *bound, uid, f"--audience={audience}").strip()

    def part(self, name: str) -> Object:
        """Wait for a running pod of one of our parts; return it."""

        def look() -> Object | None:
            pods = self.pods(NAMESPACE, f"app.kubernetes.io/name={name}")
            stays = (pod for pod in pods if "deletionTimestamp" not in pod["metadata"])
            return next((pod for pod in stays if pod["status"].get("phase") == "Running"), None)

        return wait_for(look, f"running pod of {name}") or {}

    def manager_token(self) -> str:
        """Return the token of a user who may manage budgets, with the timekeeper's audience."""
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": MANAGER, "namespace": NAMESPACE}}
        role = "slicekeeper-budget-manager"
        binding = role_binding(f"slicekeeper-{MANAGER}", role, service_account(MANAGER, NAMESPACE), everywhere=True)
        self.kubectl.apply(account, binding)
        return self.kubectl("create", "token", MANAGER, "-n", NAMESPACE, "--audience=timekeeper").strip()

    def timekeeper_ca(self) -> str:
        """Return a file with the CAs that are trusted in the whole cluster."""
        file = self.folder / "timekeeper-ca.crt"
        file.write_text(self.kubectl.get("configmap", names.CA_CONFIG_MAP, NAMESPACE)["data"][names.CA_KEY])
        return str(file)

    @contextmanager
    def timekeeper_url(self) -> Iterator[str]:
        """Forward a port of this machine to the timekeeper."""
        command = self.kubectl.command("port-forward", "-n", NAMESPACE, "service/timekeeper", ":8444")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as forward:
            try:
                assert forward.stdout is not None
                line = forward.stdout.readline()
                found = re.search(r"127\.0\.0\.1:(\d+)", line)
                if found is None:
                    raise NoForward(f"kubectl port-forward said {line!r}")
                yield f"https://localhost:{found[1]}"
            finally:
                forward.terminate()

    @contextmanager
    def timekeeper(self) -> Iterator[TimekeeperClient]:
        """Send a request to the timekeeper as a user who may manage budgets."""
        token = self._token_file(self.manager_token())
        with self.timekeeper_url() as url:
            yield TimekeeperClient(TimekeeperClientSettings(url=url, ca_file=self.timekeeper_ca(), token_file=token))

    @contextmanager
    def raw_timekeeper(self, token: str) -> Iterator[JsonClient]:
        """Speak to the timekeeper with any token."""
        with self.timekeeper_url() as url:
            yield JsonClient(url, ca_file=self.timekeeper_ca(), token_file=self._token_file(token))

    def heard(self, pod: Object) -> dict[int, int]:
        """Return what the timekeeper has taken of a pod's sidecar: its newest report's number, by epoch."""
        script = (
            "import json, sqlite3, sys\n"
            "books = sqlite3.connect('/var/lib/timekeeper/timekeeper.sqlite')\n"
            "rows = books.execute('select epoch, seq from watermark where pod_uid = ?', sys.argv[1:])\n"
            "print(json.dumps(rows.fetchall()))"
        )
        read = ("--", "/usr/local/bin/python3", "-c", script, pod["metadata"]["uid"])
        return dict(json.loads(self.kubectl("exec", "deployment/timekeeper", "-n", NAMESPACE, *read)))

    def workloads(self, namespace: str) -> dict[str, Workload]:
        """Return what the ledger has of a namespace's pods, by their UID.

        A timekeeper that a starved kubelet does not reach, or that has just been started, is asked again.
        """

        def look() -> list[dict[str, Workload]]:
            try:
                with self.timekeeper() as client:
                    return [{workload.pod_uid: workload for workload in client.workloads(namespace)}]
            except (Unavailable, NoForward):
                return []

        return wait_for(look, "the timekeeper's workloads")[0]

    def pods(self, namespace: str, selector: str = "") -> list[Object]:
        """Return a namespace's pods."""
        return self.kubectl.list("pods", namespace, selector)

    def pod(self, namespace: str, name: str) -> Object:
        """Return one pod."""
        return self.kubectl.get("pod", name, namespace)

    def wait_phase(self, namespace: str, name: str, *phases: str, seconds: float = 180.0) -> Object:
        """Wait until a pod is in one of the phases; return it."""

        def look() -> Object | None:
            pod = self.pod(namespace, name)
            return pod if pod["status"].get("phase") in phases else None

        return wait_for(look, f"pod {namespace}/{name} in {' or '.join(phases)}", seconds)

    def events(self, namespace: str, reason: str) -> list[Object]:
        """Return a namespace's events of one reason."""
        return [event for event in self.kubectl.list("events", namespace) if event.get("reason") == reason]

    def check(self, *arguments: str) -> tuple[int, str]:
        """Run `slicekeeper check`; return its exit code and all that it said."""
        return self.slicekeeper("check", *arguments)

    def slicekeeper(self, *arguments: str) -> tuple[int, str]:
        """Run a command as the cluster's administrator; return its exit code and all that it said."""
        environ = {"PATH": os.environ["PATH"], "KUBECONFIG": str(self.kubectl.kubeconfig), "PYTHONPATH": str(ROOT)}
        environ["COLUMNS"] = "1000"  # no line is wrapped
        done = subprocess.run(
            [sys.executable, "-c", "from slicekeeper.cli.main import main; main()", *arguments],
            env=environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.returncode, done.stdout + done.stderr

    @contextmanager
    def without_webhook(self) -> Iterator[None]:
        """Take our webhook configurations away, as if they had not been installed yet, and put them back."""
        saved = self.kubectl("get", _CONFIGURATIONS, "slicekeeper", "-o", "yaml")
        self.kubectl("delete", _CONFIGURATIONS, "slicekeeper")
        try:
            yield
        finally:
            self.kubectl("create", "-f", "-", stdin=re.sub(r"\n\s+(resourceVersion|uid): .*", "", saved))

    def shown_by_webhook(self) -> bytes:
        """Return the certificate that kubelet has brought into the webhook's pod."""
        read = ("/usr/local/bin/python3", "-c", "print(open('/etc/slicekeeper/tls/tls.crt').read(), end='')")
        return self.kubectl("exec", "deployment/webhook", "-n", NAMESPACE, "--", *read).encode()

    def leftovers(self) -> set[str]:
        """Return every object of the cluster that is called as ours are, but for what a manager of the suite needs."""
        ignored = {"events", "events.events.k8s.io", "persistentvolumes", "pods.metrics.k8s.io"}
        kinds = set(self.kubectl("api-resources", "--verbs=list", "-o", "name").split()) - ignored
        listed = self.kubectl("get", ",".join(sorted(kinds)), "-A", "-o", "name", "--ignore-not-found")
        found = {line for line in listed.splitlines() if "slicekeeper" in line or "gpu-" in line}
        return found - {f"clusterrolebinding.rbac.authorization.k8s.io/slicekeeper-{MANAGER}"}

    def rollout(self, workload: str, replicas: int | None = None) -> None:
        """Scale a part, or restart it, and wait until it is so."""
        if replicas is None:
            self.kubectl("rollout", "restart", workload, "-n", NAMESPACE)
        else:
            self.kubectl("scale", workload, "-n", NAMESPACE, f"--replicas={replicas}")
        self.kubectl.rollout(workload, NAMESPACE)


def gpu_container(name: str = "train", script: str = "sleep 600", core: int = 20, blocks: int | None = 16) -> Object:
    """Return a container that requests GPUs; `blocks` of 256 MiB of memory, None to state none."""
    limits = {CORE: str(core), **({} if blocks is None else {MEMORY: str(blocks)})}
    return {**plain_container(name, script), "resources": {"limits": limits}}


@contextmanager
def playground() -> Iterator[tuple[Site, Cluster]]:
    """Yield the cluster of `python -m cluster.harness up` that KUBECONFIG names, for a program that measures on it."""
    found = next(one for one in living() if str(one.kubeconfig) == os.environ["KUBECONFIG"])
    with tempfile.TemporaryDirectory() as folder:
        yield Site(Kubectl(found.kubectl, found.kubeconfig), Path(folder), found), found


def plain_container(name: str = "main", script: str = "sleep 600") -> Object:
    """Return a container that asks for nothing."""
    return {"name": name, "image": SHELL_IMAGE, "command": ["sh", "-c", script]}


def pod(name: str, *containers: Object, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    """Return a pod that ends when its containers do."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": template(*containers, **spec)["spec"],
    }


def template(*containers: Object, **spec: Any) -> Object:
    """Return a pod template."""
    return {
        "metadata": {"labels": {"app": "test"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": list(containers),
            **spec,
        },
    }


def job(name: str, *containers: Object, count: int = 1, **spec: Any) -> Object:
    """Return a Job of `count` pods that run side by side."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completions": count,
            "parallelism": count,
            "backoffLimit": 0,
            "template": template(*containers, **spec),
        },
    }


def deployment(name: str, *containers: Object, count: int = 1) -> Object:
    """Return a Deployment."""
    made = template(*containers, restartPolicy="Always")
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": count, "selector": {"matchLabels": {"app": "test"}}, "template": made},
    }

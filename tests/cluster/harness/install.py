# SPDX-License-Identifier: Apache-2.0
"""Installs Slicekeeper as its documentation says, into a cluster of our own or into a person's."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from cluster.harness import images
from cluster.harness.binaries import KUBERNETES, NEWEST
from cluster.harness.cluster import Cluster
from cluster.harness.kubectl import Kubectl, Object, Refused, wait_for

from slicekeeper.config import manifests
from slicekeeper.config.settings import Images

ROOT = Path(__file__).resolve().parents[3]
NAMESPACE = "slicekeeper-system"
PLAYGROUND = ROOT / "manifests/overlays/playground"
SUITE = ROOT / "tests/cluster/overlay"
WORKLOADS = (
    "deployment/certificates",
    "deployment/timekeeper",
    "deployment/webhook",
    "deployment/scheduler",
    "daemonset/nodeagent",
    "daemonset/arbiter",
)
IMAGES = Images(registry="slicekeeper.test")
"""The images as the node has them: a name of its own, so that `slicekeeper check` finds a whole installation."""
_LIMITS = {"tencent.com/vcuda-core": "10", "tencent.com/vcuda-memory": "4"}
_GPU_POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "asks"},
    "spec": {"containers": [{"name": "asks", "image": "asks", "resources": {"limits": _LIMITS}}]},
}
"""A pod that both webhooks are asked about."""


def load_images(cluster: Cluster) -> None:
    """Give the node every image."""
    archive = cluster.folder / "images.tar"
    images.make(archive, IMAGES)
    cluster.load(archive)
    archive.unlink()


def give_storage(cluster: Cluster, kubectl: Kubectl) -> None:
    """Give the cluster what every real one has: a default storage class, with one volume in it."""
    folder = "/var/lib/slicekeeper/volume-1"
    cluster.run("install", "-d", "-o", "65532", "-g", "65532", folder)
    kubectl.apply(*_storage(folder))


@cache
def _named(more: str) -> Path:
    """Return a copy of the checkout's manifests for our registry and with more settings, made as users make it."""
    copy = Path(tempfile.mkdtemp(prefix="slicekeeper-manifests-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    for folder in ("manifests", "tests/cluster"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("*.py", "build", "__pycache__"))
    config = copy / "manifests/base/config/config.yaml"
    config.write_text(f"{config.read_text()}images: {{registry: {IMAGES.registry}}}\n{more}")
    manifests.write(copy / "manifests")
    base = copy / "manifests/base/kustomization.yaml"
    base.write_text(base.read_text().replace(NEWEST.version, KUBERNETES.version))
    return copy


def named(overlay: Path, more: str = "") -> str:
    """Return an overlay of the checkout as it is installed here."""
    return str(_named(more) / overlay.relative_to(ROOT))


def install(kubectl: Kubectl, overlay: Path = SUITE, more: str = "") -> None:
    """Install with one command, and wait until everything is ready; `more` are lines of settings."""
    kubectl("apply", "-k", named(overlay, more))
    for workload in WORKLOADS:
        kubectl.rollout(workload, NAMESPACE)
    # A test that had put the configurations back by `apply` has them lose their CA by the next one.
    wait_for_webhooks(kubectl)


def wait_for_webhooks(kubectl: Kubectl) -> None:
    """Wait until the API server trusts and reaches our webhooks: a new one has no CA and no way from kube-proxy yet."""
    wait_for(lambda: all(map(_ca, _webhooks(kubectl))), "CA of the webhooks")
    with suppress(TimeoutError):
        wait_for(lambda: _admits(kubectl), "admission")
    kubectl.create(_GPU_POD, namespace="default", dry_run=True)  # says what is wrong, if anything still is


def _admits(kubectl: Kubectl) -> bool:
    try:
        kubectl.create(_GPU_POD, namespace="default", dry_run=True)
    except Refused:
        return False
    return True


def _webhooks(kubectl: Kubectl) -> list[Object]:
    kinds = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
    return [hook for kind in kinds for hook in kubectl.get(kind, "slicekeeper")["webhooks"]]


def _ca(hook: Object) -> str:
    return str(hook["clientConfig"].get("caBundle", ""))


def _storage(folder: str) -> list[Object]:
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": "node",
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": "kubernetes.io/no-provisioner",
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "volume-1"},
            "spec": {
                "storageClassName": "node",
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": folder},
            },
        },
    ]

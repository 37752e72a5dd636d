# SPDX-License-Identifier: Apache-2.0
"""Installs Slicekeeper as its documentation says, into a cluster of our own or into a person's."""

from __future__ import annotations

from pathlib import Path

from cluster.harness import images
from cluster.harness.cluster import Cluster
from cluster.harness.kubectl import Kubectl, Object, wait_for

ROOT = Path(__file__).resolve().parents[3]
NAMESPACE = "slicekeeper-system"
PLAYGROUND = ROOT / "manifests/overlays/playground"
SUITE = ROOT / "tests/cluster/overlay"
WORKLOADS = ("deployment/certificates", "deployment/timekeeper", "deployment/webhook", "deployment/scheduler",
             "daemonset/nodeagent")  # fmt: skip
ROLLOUT_SECONDS = 120


def load_images(cluster: Cluster) -> None:
    """Give the node every image."""
    archive = cluster.folder / "images.tar"
    images.make(archive)
    cluster.load(archive)
    archive.unlink()


def give_storage(cluster: Cluster, kubectl: Kubectl) -> None:
    """Give the cluster what every real one has: a default storage class, with one volume in it."""
    folder = "/var/lib/slicekeeper/volume-1"
    cluster.run("install", "-d", "-o", "65532", "-g", "65532", folder)
    kubectl.apply(*_storage(folder))


def install(kubectl: Kubectl, overlay: Path = SUITE) -> None:
    """Install with one command, and wait until everything is ready."""
    kubectl("apply", "-k", str(overlay))
    for workload in WORKLOADS:
        kubectl(
            "rollout",
            "status",
            workload,
            "-n",
            NAMESPACE,
            f"--timeout={ROLLOUT_SECONDS}s",
            timeout=ROLLOUT_SECONDS + 10,
        )
    # A test that had put the configurations back by `apply` has them lose their CA by the next one.
    wait_for("CA of the webhooks", lambda: all(map(_ca, _webhooks(kubectl))))


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

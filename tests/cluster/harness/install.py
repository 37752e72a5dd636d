# SPDX-License-Identifier: Apache-2.0
"""Installs Slicekeeper as its documentation says, into a cluster of our own or into a person's."""

from __future__ import annotations

from pathlib import Path

from cluster.harness import images
from cluster.harness.cluster import Cluster
from cluster.harness.kubectl import Kubectl, Object

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

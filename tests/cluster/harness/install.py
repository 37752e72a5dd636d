# SPDX-License-Identifier: Apache-2.0
"""Installs Slicekeeper as its documentation says, into a cluster of our own or into a person's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from cluster.harness import binaries, images
from cluster.harness.binaries import HELM, KUBERNETES
from cluster.harness.cluster import Cluster
from cluster.harness.kubectl import Kubectl, Object, Refused, wait_for
from support import chart

from slicekeeper.config.settings import Images

ROOT = Path(__file__).resolve().parents[3]
NAMESPACE = "slicekeeper-system"
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
Values = Mapping[str, Any]
PLAYGROUND: Values = {
    "images": {"registry": IMAGES.registry},
    "mode": "enforce",
    "components": {"fakeGpus": True, "single": True, "objects": True},
}
"""One machine without GPUs, as the documentation installs it."""

SUITE: Values = {
    "images": {"registry": IMAGES.registry},
    "mode": "enforce",
    "components": {"fakeGpus": True, "single": True, "auditEvictions": True, "hardBudgets": True},
    "policy": yaml.safe_load((ROOT / "tests/cluster/policy.yaml").read_text()),
    # A test has the resource of NVIDIA's plugin on the node as well: only a list divides a node between the two.
    "config": {"nodeAgent": {"gpus": ["0", "1", "2", "3"]}},
}
"""The playground with a policy for the suite's namespaces. A file of tests adds the objects."""

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


def suite(**components: bool) -> Values:
    """Return the suite's values with other components."""
    return {**SUITE, "components": {**SUITE["components"], **components}}


def rendered(values: Values = SUITE) -> str:
    """Return the chart as Helm renders it for the cluster's version, to be applied or deleted by kubectl."""
    return _rendered(json.dumps(values))


@cache
def _rendered(values: str) -> str:
    binaries.build(HELM)
    return chart.render(HELM.bin / "helm", json.loads(values), KUBERNETES.version)


def uninstall(kubectl: Kubectl, values: Values = SUITE, *more: str) -> None:
    """Delete all that was installed, and wait until it is gone."""
    kubectl("delete", "--wait=true", "--timeout=240s", *more, "-f", "-", stdin=rendered(values), timeout=250)


def install(kubectl: Kubectl, values: Values = SUITE) -> None:
    """Install with one command, and wait until everything is ready."""
    kubectl("apply", "-f", "-", stdin=rendered(values))
    wait_until_ready(kubectl)


def wait_until_ready(kubectl: Kubectl) -> None:
    """Wait until every part is rolled out, and the webhooks are reached."""
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

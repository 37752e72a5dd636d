# SPDX-License-Identifier: Apache-2.0
"""Count how many pods their disruption budgets allow to be evicted together: a dry run tests each pod alone."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.node_fit import selects
from scheduler.pods import KnownPod
from slicekeeper.errors import NotFound
from slicekeeper.kube.client import DISRUPTION_BUDGETS, PODS, KubeClient, Object
from slicekeeper.untyped_json import as_list, as_map


def not_allowed_together(client: KubeClient, pods: Sequence[KnownPod]) -> list[KnownPod]:
    """Return those of `pods` that may be evicted alone, but not after the others.

    Raises ServiceError.
    """
    found: list[KnownPod] = []
    for namespace in sorted({pod.namespace for pod in pods}):
        together = [pod for pod in pods if pod.namespace == namespace]
        budgets = _budgets(client, namespace) if len(together) > 1 else []
        objects = [(pod, client.find(PODS, pod.name, namespace, uid=pod.uid)) for pod in together if budgets]
        for budget in budgets:
            covered = [pod for pod, obj in objects if obj is not None and _counts(budget, obj)]
            found += covered[as_map(budget.get("status")).get("disruptionsAllowed") or 0 :]
    return found


def _budgets(client: KubeClient, namespace: str) -> list[Object]:
    try:
        return client.list(DISRUPTION_BUDGETS, namespace=namespace)[0]
    except NotFound:  # local mode has no such objects
        return []


def _counts(budget: Object, pod: Object) -> bool:
    """Whether a pod's eviction counts against a budget: it covers the pod, and the pod is ready."""
    selector = as_map(budget.get("spec")).get("selector")
    conditions = map(as_map, as_list(as_map(pod.get("status")).get("conditions")))
    is_ready = any((of.get("type"), of.get("status")) == ("Ready", "True") for of in conditions)
    return is_ready and selector is not None and selects(as_map(selector), as_map(pod["metadata"].get("labels")))

# SPDX-License-Identifier: Apache-2.0
"""Reasons why a workload of ours has too few ready pods, for `slicekeeper check`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from slicekeeper.cli.check.remedies import APPLY, Finding
from slicekeeper.kube.client import PODS, KubeClient, Object
from slicekeeper.untyped_json import as_list, as_map

_NO_IMAGE: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")


def not_ready(client: KubeClient, name: str, workload: Object | None, namespace: str) -> Iterator[Finding]:
    """Yield that a workload is missing or has too few ready pods; `name` is its kind and name, with a space between."""
    status, agents = as_map(as_map(workload).get("status")), name.startswith("daemonset")
    if workload is None:
        yield f"{name} is missing{': no GPU pod can start' if agents else ''}", APPLY
        return
    wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
    if (wanted <= ready) if agents else status.get("readyReplicas"):
        return
    short = f"{name} is ready on {ready} of {wanted} nodes" if agents else f"{name} has no ready pod"
    refused = _condition(status, "ReplicaFailure", "True")
    pods, _ = client.list(PODS, namespace=namespace, label_selector=f"app.kubernetes.io/name={name.partition(' ')[2]}")
    held = sorted(filter(None, (_held(pod) for pod in pods if pod["metadata"].get("deletionTimestamp") is None)))
    if refused:
        yield (
            f"{short}: no pod can be created: {refused}",
            "docs/install.md#platforms lists the requirements of platforms",
        )
    elif held:
        pod, why, image = held[0]
        remedy = f"kubectl describe pod -n {namespace} {pod}"
        yield f"{short}: pod {pod}: {why}", f"{remedy}; docs/install.md#images" if image else remedy
    else:
        yield short, f"kubectl logs -n {namespace} {name.replace(' ', '/')}"


def _held(pod: Object) -> tuple[str, str, bool] | None:
    """Return name, why the pod does not run, and whether its image is the reason; None if its logs say more."""
    name, status = str(pod["metadata"]["name"]), as_map(pod.get("status"))
    unplaced = _condition(status, "PodScheduled", "False")
    if unplaced:
        return name, unplaced, False
    for container in (*as_list(status.get("initContainerStatuses")), *as_list(status.get("containerStatuses"))):
        waiting = as_map(as_map(as_map(container).get("state")).get("waiting"))
        reason = str(waiting.get("reason", ""))
        if reason not in ("", "PodInitializing", "ContainerCreating", "CrashLoopBackOff"):
            return name, f"{reason}: {waiting.get('message', '')}".rstrip(": "), reason in _NO_IMAGE
    return None


def _condition(status: object, kind: str, value: str) -> str:
    """Return the message of a condition that has a value, empty if there is none."""
    for condition in map(as_map, as_list(as_map(status).get("conditions"))):
        if (condition.get("type"), condition.get("status")) == (kind, value):
            return str(condition.get("message") or condition.get("reason") or kind)
    return ""

# SPDX-License-Identifier: Apache-2.0
"""How we read and change pods: how long they hold their GPUs, and how our finalizer and gate are removed.

Scheduler, node agent and timekeeper use it to decide how long GPUs are held: exactly that time is charged.

kubelet frees a pod's devices, and kube-scheduler its requests, when the pod's phase is terminal, and not before: a
container that has ended keeps its slice while any other container of the pod runs, or may start again. Counting by
container would let a pod hold GPUs that it does not pay for (`docs/timekeeper.md`, "When").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.units import MS_PER_SECOND, Instant, as_instant
from slicekeeper.untyped_json import as_list, as_map
from slicekeeper.wire.json_patch import JsonPatch

KUBELET_MS: Final = 300_000
"""How long after a deletion's grace period kubelet may still report when the containers ended."""

LONGEST_GRACE_SECONDS: Final = 3_600
"""A pod with a longer grace period is not about to leave, and gets this one if it is evicted: its owner chose the grace
period, and may ignore the request to stop until that is over."""

_TERMINAL: Final = ("Succeeded", "Failed")
_OVERFLOW_SECONDS: Final = 2**63 // 10**9
"""The API server adds a grace to the present in nanoseconds of 64 bits. A longer one overflows: `deletionTimestamp` may
then be past at once, while kubelet's limit for stopping a container overflows too, so the pod runs on."""


def full_name(obj: Mapping[str, Any]) -> str:
    """Return the namespace and the name of a pod, or of another object, in the usual form."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Whether all of a pod has finally ended, according to kubelet or the control plane."""
    return as_map(pod.get("status")).get("phase") in _TERMINAL


def controller_of(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the owner reference of the controller that created the pod, None if none did."""
    owners = map(as_map, as_list(as_map(pod.get("metadata")).get("ownerReferences")))
    return next((owner for owner in owners if owner.get("controller") is True), None)


def is_bound(pod: Mapping[str, Any]) -> bool:
    """Whether the pod was ever bound to a node."""
    return bool(as_map(pod.get("spec")).get("nodeName"))


def holds_gpus(pod: Mapping[str, Any]) -> bool:
    """Whether a pod holds the GPUs that it requests: from its binding until all of it has ended."""
    return is_bound(pod) and not has_ended(pod)


def has_finalizer(pod: Mapping[str, Any]) -> bool:
    """Whether the pod cannot be gone before we remove our finalizer."""
    return names.FINALIZER in as_list(as_map(pod.get("metadata")).get("finalizers"))


def deletion_due_at(pod: Mapping[str, Any]) -> Instant | None:
    """Return when a deleted pod's grace ends; None if the pod was not deleted, or if its grace overflows."""
    metadata = as_map(pod.get("metadata"))
    return None if _grace_seconds(metadata) > _OVERFLOW_SECONDS else as_instant(metadata.get("deletionTimestamp"))


def deletion_requested_at(pod: Mapping[str, Any]) -> Instant | None:
    """Return when the pod's deletion was requested; None if it was not, or if its grace overflows.

    That is `deletionTimestamp` less the grace. The timestamp changes if the grace period is shortened, as kubelet does
    in its final delete; this does not.
    """
    due = deletion_due_at(pod)
    return None if due is None else Instant(due - _grace_seconds(pod["metadata"]) * MS_PER_SECOND)


def is_leaving(pod: Mapping[str, Any]) -> bool:
    """Whether a pod was deleted, and ends within an hour."""
    metadata = as_map(pod.get("metadata"))
    return bool(metadata.get("deletionTimestamp")) and _grace_seconds(metadata) <= LONGEST_GRACE_SECONDS


def has_long_grace(pod: Mapping[str, Any]) -> bool:
    """Whether a pod may run on for more than an hour after it is deleted."""
    own = as_map(pod.get("spec")).get("terminationGracePeriodSeconds")
    longest = max(own if isinstance(own, int) else 0, _grace_seconds(as_map(pod.get("metadata"))))
    return longest > LONGEST_GRACE_SECONDS


def _grace_seconds(metadata: Mapping[str, Any]) -> int:
    seconds = metadata.get("deletionGracePeriodSeconds")
    return max(seconds, 0) if isinstance(seconds, int) else 0


def gate_index(pod: Mapping[str, Any]) -> int | None:
    """Return where our scheduling gate is in the pod's list, None if it has none."""
    gates = as_list(as_map(pod.get("spec")).get("schedulingGates"))
    return next((index for index, gate in enumerate(gates) if as_map(gate).get("name") == names.GATE), None)


def without_finalizer(pod: Mapping[str, Any]) -> JsonPatch:
    """Return the patch that removes our finalizer, if it is still where it was seen in this very pod."""
    path = f"/metadata/finalizers/{as_list(pod['metadata'].get('finalizers')).index(names.FINALIZER)}"
    return guarded(pod, {"op": "test", "path": path, "value": names.FINALIZER}, {"op": "remove", "path": path})


def without_gate(pod: Mapping[str, Any]) -> JsonPatch:
    """Return the patch that removes our scheduling gate, if it is still where it was seen in this very pod."""
    path = f"/spec/schedulingGates/{gate_index(pod)}"
    return guarded(pod, {"op": "test", "path": f"{path}/name", "value": names.GATE}, {"op": "remove", "path": path})


def guarded(pod: Mapping[str, Any], *operations: dict[str, Any]) -> JsonPatch:
    """Return a patch that the API server refuses for another pod of the same name."""
    return [{"op": "test", "path": "/metadata/uid", "value": pod["metadata"]["uid"]}, *operations]

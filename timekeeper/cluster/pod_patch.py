# SPDX-License-Identifier: Apache-2.0
"""The timekeeper's changes of pods: remove our finalizer, remove our gate, set the budget state and our label.

The JSON patches first test the pod's UID and what they replace. If the name belongs to another pod by now, or a list
has changed, the API server refuses them, and the controller looks again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.errors import NotFound
from slicekeeper.kube import events
from slicekeeper.kube.client import JSON_PATCH, PODS, KubeClient, Object
from slicekeeper.kube.pod import guarded, without_finalizer, without_gate
from slicekeeper.kube.pod_manifest import annotations_of
from slicekeeper.untyped_json import as_map
from slicekeeper.wire.json_patch import JsonPatch, escape

REPORTER = "slicekeeper-timekeeper"

Each = Callable[[list[Object], Callable[[Object], None]], None]
"""A function that acts on pods concurrently; an error with one does not affect the others."""


def release(client: KubeClient, pod: Object) -> None:
    """Remove our finalizer.

    Raises ServiceError if that did not happen; a pod that is gone needs nothing.
    """
    _patch(client, pod, without_finalizer(pod))


def label(client: KubeClient, pod: Object) -> None:
    """Restore our label, on which all watches select.

    Raises ServiceError if it was not written.
    """
    _patch(client, pod, guarded(pod, _member(pod, "labels", names.MANAGED_LABEL, names.MANAGED_VALUE)))


def lift(client: KubeClient, clock: Clock, pod: Object, why: str) -> None:
    """Remove our scheduling gate, with an event that says why.

    Raises ServiceError if that did not happen.
    """
    _patch(client, pod, without_gate(pod))
    say(client, clock, pod, kind="Normal", reason="GpuTimeReserved", action="LiftGate", note=why)


def say(client: KubeClient, clock: Clock, pod: Object, *, kind: str, reason: str, action: str, note: str) -> None:
    """Write an event in the timekeeper's name."""
    events.write(client, clock, pod, kind=kind, reason=reason, action=action, note=note, reporter=REPORTER)


def state_of(pod: Object) -> str:
    """Return the budget state that is written on a pod; empty if none is."""
    value = annotations_of(pod).get(names.BUDGET_STATE, "")
    return value if isinstance(value, str) else ""


def flip(client: KubeClient, clock: Clock, pod: Object, state: str, why: str) -> None:
    """Write the budget state, and an event that says why.

    Raises ServiceError if it was not written.
    """
    _patch(client, pod, guarded(pod, _member(pod, "annotations", names.BUDGET_STATE, state)))
    over = state == names.OVER_BUDGET
    say(
        client,
        clock,
        pod,
        kind="Warning" if over else "Normal",
        reason="BudgetExhausted" if over else "BudgetAvailable",
        action="SetBudgetState",
        note=why,
    )


def _member(pod: Object, field: str, key: str, value: str) -> dict[str, Any]:
    """Return the operation that sets a label or an annotation; a pod may have none of its kind yet."""
    if as_map(pod["metadata"].get(field)):
        return {"op": "add", "path": f"/metadata/{field}/{escape(key)}", "value": value}
    return {"op": "add", "path": f"/metadata/{field}", "value": {key: value}}


def _patch(client: KubeClient, pod: Object, patch: JsonPatch) -> None:
    metadata = pod["metadata"]
    try:
        client.patch(PODS, metadata["name"], patch, metadata["namespace"], content_type=JSON_PATCH)
    except NotFound:
        return

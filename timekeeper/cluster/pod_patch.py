# SPDX-License-Identifier: Apache-2.0
"""The marks that the timekeeper writes on pods: our finalizer goes, our gate goes, the budget state flips.

JSON patches that first test the pod's UID and what they replace: a pod of the same name, or a list that somebody
changed meanwhile, makes the API server refuse, and the controller looks again.
"""

from __future__ import annotations

from typing import Any

from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.errors import NotFound
from slicekeeper.kube import events
from slicekeeper.kube.client import JSON_PATCH, PODS, KubeClient, Object
from slicekeeper.request import annotations_of, as_list, as_map

REPORTER = "slicekeeper-timekeeper"


def holds_finalizer(pod: Object) -> bool:
    """Whether the pod waits for us."""
    return names.FINALIZER in as_list(pod["metadata"].get("finalizers"))


def release(client: KubeClient, pod: Object) -> None:
    """Remove our finalizer.

    Raises ServiceError where that did not happen; a pod that is gone needs nothing.
    """
    index = as_list(pod["metadata"].get("finalizers")).index(names.FINALIZER)
    path = f"/metadata/finalizers/{index}"
    _patch(client, pod, [{"op": "test", "path": path, "value": names.FINALIZER}, {"op": "remove", "path": path}])


def label(client: KubeClient, pod: Object) -> None:
    """Put our label back, by which all parts watch.

    Raises ServiceError if it was not written.
    """
    if as_map(pod["metadata"].get("labels")):
        path, value = f"/metadata/labels/{_escaped(names.MANAGED_LABEL)}", names.MANAGED_VALUE
        change: dict[str, Any] = {"op": "add", "path": path, "value": value}
    else:
        change = {"op": "add", "path": "/metadata/labels", "value": {names.MANAGED_LABEL: names.MANAGED_VALUE}}
    _patch(client, pod, [change])


def gate_index(pod: Object) -> int | None:
    """Return where our scheduling gate stands in the pod's list; None where it bears none."""
    gates = as_list(as_map(pod.get("spec")).get("schedulingGates"))
    return next((index for index, gate in enumerate(gates) if as_map(gate).get("name") == names.GATE), None)


def lift(client: KubeClient, clock: Clock, pod: Object, why: str) -> None:
    """Remove our scheduling gate, with an event that says why.

    Raises ServiceError where that did not happen.
    """
    path = f"/spec/schedulingGates/{gate_index(pod)}"
    _patch(client, pod, [{"op": "test", "path": f"{path}/name", "value": names.GATE}, {"op": "remove", "path": path}])
    say(client, clock, pod, kind="Normal", reason="GpuTimeReserved", action="LiftGate", note=why)


def say(client: KubeClient, clock: Clock, pod: Object, *, kind: str, reason: str, action: str, note: str) -> None:
    """Write an event in the timekeeper's name."""
    events.tell(client, clock, pod, kind=kind, reason=reason, action=action, note=note, reporter=REPORTER)


def state_of(pod: Object) -> str:
    """Return the budget state that the pod bears, empty where it has none."""
    value = annotations_of(pod).get(names.BUDGET_STATE, "")
    return value if isinstance(value, str) else ""


def flip(client: KubeClient, clock: Clock, pod: Object, state: str, why: str) -> None:
    """Write the budget state, and an event that says why.

    Raises ServiceError where it was not written.
    """
    if annotations_of(pod):
        path = f"/metadata/annotations/{_escaped(names.BUDGET_STATE)}"
        change: dict[str, Any] = {"op": "add", "path": path, "value": state}
    else:
        change = {"op": "add", "path": "/metadata/annotations", "value": {names.BUDGET_STATE: state}}
    _patch(client, pod, [change])
    over = state == names.OVER_BUDGET
    say(
        client, clock, pod,
        kind="Warning" if over else "Normal",
        reason="BudgetExhausted" if over else "BudgetAvailable",
        action="SetBudgetState", note=why,
    )  # fmt: skip


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _patch(client: KubeClient, pod: Object, operations: list[dict[str, Any]]) -> None:
    metadata = pod["metadata"]
    test = {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]}
    try:
        client.patch(PODS, metadata["name"], [test, *operations], metadata["namespace"], content_type=JSON_PATCH)
    except NotFound:
        return

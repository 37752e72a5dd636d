# SPDX-License-Identifier: Apache-2.0
"""End `slicekeeper local --once`: delete everything, print the table, and check the ledger.

The check compares the ledger, over its REST interface, with itself and with the cluster: every pod that was bound is
there and closed, and what the pods were charged is what the budgets lost.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from simulator.local import LocalCluster
from simulator.narrator import SHORT
from simulator.story import StoryFailed, ending
from simulator.submit import SubmitOutcome
from slicekeeper import names
from slicekeeper.cli.output import table
from slicekeeper.kube.client import DEPLOYMENTS, JOBS, PODS, Object
from slicekeeper.kube.pod import full_name
from slicekeeper.kube.pod_manifest import annotations_of
from slicekeeper.units import format_duration
from slicekeeper.wire.timekeeper import Budget, Workload

DRAIN_SECONDS: Final = 120.0
"""Maximum time that this takes on a busy machine."""

DENIED: Final = " denied the request: "
"""The end of what the API server writes before a webhook's message."""


class Row(msgspec.Struct, frozen=True, rename="camel"):
    """One pod's, or one refused manifest's, line of the table."""

    namespace: str
    name: str
    decision: str
    priority_class: str = ""
    node: str = ""
    gpus: str = ""
    end: str = ""
    charged_ms: int | None = None
    over_budget_ms: int | None = None


def drain(local: LocalCluster) -> None:
    """Delete all workloads and pods, and wait until they are charged and gone. Raises StoryFailed if one stays."""
    store = local.cluster.store
    for resource in (DEPLOYMENTS, JOBS, PODS):
        for obj in store.collection(resource)[0]:
            store.delete(resource, obj["metadata"]["name"], obj["metadata"]["namespace"])
    deadline = time.monotonic() + DRAIN_SECONDS
    while left := store.collection(PODS)[0]:
        local.go_on()
        if time.monotonic() > deadline:
            remaining = ", ".join(f"{p['metadata']['name']} {p['metadata'].get('finalizers')}" for p in left)
            raise StoryFailed(f"pods are not released {DRAIN_SECONDS:.0f} s after their deletion: {remaining}")
        store.wait(store.version, 0.2)


def rows(local: LocalCluster, outcomes: list[SubmitOutcome]) -> list[Row]:
    """Return a row for every pod that existed, and for every manifest that was refused."""
    workloads = {w.pod_uid: w for w in local.timekeeper_client().workloads()}
    found = [_row(pod, workloads.get(pod["metadata"]["uid"])) for pod in local.cluster.store.removed_pods]
    found += [
        Row(o.namespace, o.name, f"refused: {o.message.partition(DENIED)[2] or o.message}")
        for o in outcomes
        if not o.admitted
    ]
    return sorted(found, key=lambda row: (row.namespace, row.name))


def _row(pod: Object, workload: Workload | None) -> Row:
    metadata, spec = pod["metadata"], pod["spec"]
    chosen = [str(value) for key, value in annotations_of(pod).items() if key.startswith(names.GPU_PREFIX)]
    gpus = [uuid[:SHORT] for value in chosen for uuid in value.split(",")]
    return Row(
        metadata["namespace"],
        metadata["name"],
        "admitted",
        str(spec.get("priorityClassName", "")),
        str(spec.get("nodeName", "")),
        ",".join(dict.fromkeys(gpus)),
        ending(pod),
        workload.charged_ms if workload else None,
        workload.over_budget_ms if workload else None,
    )


def show(found: list[Row]) -> str:
    """Return the table."""
    head = ("NAMESPACE", "NAME", "DECISION", "CLASS", "NODE", "GPU", "END", "CHARGED", "OVER-BUDGET")
    return table(
        head,
        [
            (
                r.namespace,
                r.name,
                _cut(r.decision),
                r.priority_class or "-",
                r.node or "-",
                r.gpus or "-",
                r.end or "-",
                _time(r.charged_ms),
                _time(r.over_budget_ms),
            )
            for r in found
        ],
    )


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


def _time(ms: int | None) -> str:
    return "-" if ms is None else format_duration(ms)


def check(local: LocalCluster) -> list[str]:
    """Return how the ledger disagrees with itself or with the cluster; empty if it does not."""
    client = local.timekeeper_client()
    workloads = {w.pod_uid: w for w in client.workloads()}
    wrong: list[str] = []
    bound = [pod for pod in local.cluster.store.removed_pods if names.BOUND_AT in annotations_of(pod)]
    for pod in bound:
        name = full_name(pod)
        workload = workloads.get(pod["metadata"]["uid"])
        if workload is None:
            wrong.append(f"{name} held a GPU and is not in the ledger")
        elif workload.state != "closed":
            wrong.append(f"{name} is gone but still runs in the ledger")
    for budget in client.budgets(Budget):
        own = [w for w in workloads.values() if w.namespace == budget.namespace]
        for what, charged, booked in (
            ("charged", sum(w.charged_ms for w in own), budget.used_ms),
            ("over budget", sum(w.over_budget_ms for w in own), budget.over_budget_ms),
        ):
            if charged != booked:
                wrong.append(f"{budget.namespace}: pods were {what} {charged} ms, its budget says {booked} ms")
    return wrong

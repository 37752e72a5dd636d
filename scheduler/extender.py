# SPDX-License-Identifier: Apache-2.0
"""The extender's verbs on a state, without HTTP: filter, prioritize, preempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson

from scheduler.extender_requests import BadRequest, decode_names, filter_result
from scheduler.gangs import Gangs
from scheduler.node_fit import has_preferences
from scheduler.placement.ranking import scores
from scheduler.placement.reasons import Why, explain
from scheduler.pods import KnownPod, read_pod
from scheduler.reclaim.victim_choice import rank_of
from scheduler.scheduler_state import SchedulerState
from slicekeeper.kube.pod_manifest import asks_for
from slicekeeper.names import IN_BUDGET
from slicekeeper.untyped_json import as_map
from slicekeeper.wire.extender import MetaVictims, PreemptionResult

UNMANAGED: Final = (
    "the pod asks for GPUs but has not passed Slicekeeper's webhook (label slicekeeper.io/managed); "
    "create it again in a namespace where the webhook is on"
)


def filter_nodes(
    state: SchedulerState, gangs: Gangs, pod: KnownPod | None, names: bytes, *, best_alone: bool = False
) -> bytes:
    """Return the answer to a filter call: the nodes on which the pod fits, and the reasons for the others.

    With `best_alone` it has only the best of them, so that kube-scheduler has nothing to score; for a pod with
    preferences, which kube-scheduler scores, all that are as good as the best. `pod` is None if it is not ours to
    place. `names` and the answer are JSON.
    """
    if pod is None:
        return filter_result(orjson.dumps(decode_names(names)))
    refusal = placeable(pod)
    if refusal:
        return filter_result(b"[]", unresolvable=orjson.dumps(dict.fromkeys(decode_names(names), refusal)))
    if pod.gang is not None and not gangs.has_started(pod):
        node, reason = gangs.place(pod, names)
        others = [name for name in decode_names(names) if name != node]
        said = reason or f"gang {pod.gang.name} keeps a place elsewhere for this pod"
        return filter_result(orjson.dumps([node] if node else []), orjson.dumps(dict.fromkeys(others, said)))
    state.end_former_groups(pod)
    prefers = has_preferences(pod.waiting or {})
    if best_alone and not prefers:
        best = state.best(pod, names)
        if best:
            return filter_result(orjson.dumps([best]))
    found = state.find(pod, names)
    if best_alone and found.best is not None:
        left = found.equals if prefers else [found.best]
        return filter_result(found.roster.write_list(found.rows[left]))
    why = found.evaluation.why[found.rows]
    failed = b""
    unresolvable = orjson.dumps({name: explain(why, pod.demand) for name, why in found.others.items()})[1:-1]
    unresolvable += b"," if found.others else b""
    for code in np.unique(why[~found.fits]).tolist():
        encoded = found.roster.write(found.rows[why == code], b":%b," % orjson.dumps(explain(code, pod.demand)))
        if code >= Why.UUID:
            unresolvable += encoded
        else:
            failed += encoded
    fitting = found.roster.write_list(found.rows[found.fits])
    return filter_result(fitting, b"{%b}" % failed[:-1], b"{%b}" % unresolvable[:-1])


def prioritize_nodes(state: SchedulerState, gangs: Gangs, pod: KnownPod | None, names: bytes) -> bytes:
    """Return the answer to a prioritize call: a score for each node, 10 if there is only one.

    kube-scheduler would choose at random among equals. An omitted node has no points (`prioritizeNodes` adds the listed
    ones), so nodes without points are omitted.
    """
    if pod is None or placeable(pod):
        return b"[]"
    if pod.gang is not None and not gangs.has_started(pod):
        return b"[]"  # `filter` has returned one node
    found = state.find(pod, names, again=True)
    given = scores(found.fits, found.price, found.best)
    scored = given > 0
    return found.roster.write_scores(found.rows[scored], given[scored])


def preempt(
    state: SchedulerState, gangs: Gangs, pod: KnownPod | None, nodes: Mapping[str, MetaVictims]
) -> PreemptionResult:
    """Return those of `nodes` on which kube-scheduler's victims may be evicted, and make room on single GPUs.

    kube-scheduler counts whole nodes: its victims may be on GPUs on which their removal does not help, or be in budget.
    Such a node is left out. Other victims are not proposed instead: choosing them is the reclaimer's job, which honours
    disruption budgets and keeps the place. Nothing is evicted for a pod whose place the reclaimer is clearing, or for a
    single pod of a gang.
    """
    if pod is None:
        return PreemptionResult(NodeNameToMetaVictims=dict(nodes))
    helped: dict[str, MetaVictims] = {}
    alone = pod.gang is None or gangs.has_started(pod)
    if alone and not placeable(pod) and pod.budget_state == IN_BUDGET and not state.is_reserved(pod.uid):
        for node, listed in nodes.items():
            uids = {victim["UID"] for victim in listed["Pods"]}
            ours = [victim for victim in map(state.pod, uids) if victim is not None]
            if all(rank_of(v, pod.priority) is not None for v in ours) and state.fits_without(pod, node, uids):
                helped[node] = listed
    return PreemptionResult(NodeNameToMetaVictims=helped)


def gpu_pod(state: SchedulerState, obj: Mapping[str, Any]) -> KnownPod | None:
    """Return the pod if it requests our GPUs; None if it is not ours to place."""
    resources = state.resources
    if not asks_for(obj, (resources.core, resources.memory)):
        return None
    metadata = as_map(obj.get("metadata"))
    seen, version = state.pod(str(metadata.get("uid"))), metadata.get("resourceVersion")
    if version and seen is not None and as_map((seen.waiting or {}).get("metadata")).get("resourceVersion") == version:
        return seen  # as the watch has shown it
    pod = read_pod(obj, resources)
    if pod is None:
        raise BadRequest("Pod.metadata.uid is missing")
    return pod


def placeable(pod: KnownPod) -> str:
    """Return why the pod cannot be placed on any node; empty if it can."""
    if pod.refusal:
        return pod.refusal
    if not pod.managed:
        return UNMANAGED
    return "" if pod.demand.pieces else "the pod asks for no GPU in any container that can hold one"

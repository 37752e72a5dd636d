# SPDX-License-Identifier: Apache-2.0
"""The extender's verbs on a state, without HTTP: filter, prioritize, preempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from scheduler.picture import rank_of
from scheduler.placement import Survey, Why, explain
from scheduler.pods import Pod, read_pod
from scheduler.state import Found, State
from scheduler.wire import BadRequest, filter_result
from slicekeeper.names import IN_BUDGET
from slicekeeper.request import asks_for
from slicekeeper.wire.extender import MAX_SCORE, FilterResult, HostPriority, MetaVictims, PreemptionResult

UNMANAGED: Final = (
    "the pod asks for GPUs but has not passed Slicekeeper's webhook (label slicekeeper.io/managed); "
    "create it anew in a namespace where the webhook is on"
)


def filter_nodes(state: State, obj: Mapping[str, Any], names: list[str]) -> FilterResult:
    """Return the nodes on which the pod fits, and for the others why it does not."""
    pod = gpu_pod(state, obj)
    if pod is None:
        return filter_result(names, {}, {})
    refusal = placeable(pod)
    if refusal:
        return filter_result([], {}, dict.fromkeys(names, refusal))
    found = state.find(pod, names)
    if not found.others and bool(found.survey.fits.all()):
        return filter_result(names, {}, {})
    texts = {why: explain(why, pod.demand) for why in Why}
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    fitting = []
    for name, code in zip(found.names, found.survey.why.tolist(), strict=True):
        if code == Why.FITS:
            fitting.append(name)
        else:
            (unresolvable if code >= Why.UUID else failed)[name] = texts[code]
    for name, why in found.others.items():
        unresolvable[name] = texts[why]
    return filter_result(fitting, failed, unresolvable)


def prioritize_nodes(state: State, obj: Mapping[str, Any], names: list[str]) -> list[HostPriority]:
    """Return a score for each node, 10 for one alone: kube-scheduler would choose at random among equals."""
    pod = gpu_pod(state, obj)
    if pod is None or placeable(pod):
        return [{"Host": name, "Score": 0} for name in names]
    found = state.find(pod, names)
    given = dict(zip(found.names, scores(found), strict=True))
    return [{"Host": name, "Score": given.get(name, 0)} for name in names]


def preempt(state: State, obj: Mapping[str, Any], nodes: Mapping[str, MetaVictims]) -> PreemptionResult:
    """Return those of `nodes` on which what kube-scheduler proposes may be done, and makes room on single GPUs.

    kube-scheduler counts whole nodes: its victims may sit on GPUs where their leaving does not help, or be in budget.
    Such a node is left out. Other victims are not named in their place: that is the reclaimer's, which honours
    disruption budgets and keeps the place. Nor is anybody evicted for a pod whose place the reclaimer is clearing.
    """
    pod = gpu_pod(state, obj)
    if pod is None:
        return PreemptionResult(NodeNameToMetaVictims=dict(nodes))
    helped: dict[str, MetaVictims] = {}
    if not placeable(pod) and pod.budget_state == IN_BUDGET and not state.is_reserved(pod.uid):
        for node, listed in nodes.items():
            uids = {victim["UID"] for victim in listed["Pods"]}
            ours = [victim for victim in map(state.pod, uids) if victim is not None]
            if all(rank_of(v, pod.priority) is not None for v in ours) and state.fits_without(pod, node, uids):
                helped[node] = listed
    return PreemptionResult(NodeNameToMetaVictims=helped)


def scores(found: Found) -> list[int]:
    """Return each node's score: 10 for the best alone, 9 to 0 for the others that fit by their price."""
    result: Survey = found.survey
    if found.best is None:
        return [0] * len(found.names)
    prices = result.price[result.fits]
    least, span = int(prices.min()), int(prices.max() - prices.min())
    second = MAX_SCORE - 1
    graded = second - (result.price - least) * second // max(span, 1)
    graded = np.where(result.fits, graded, 0)
    graded[found.best] = MAX_SCORE
    listed: list[int] = graded.tolist()
    return listed


def gpu_pod(state: State, obj: Mapping[str, Any]) -> Pod | None:
    """Return the pod if it asks for GPUs of ours, None where it is none of our business."""
    resources = state.resources
    if not asks_for(obj, (resources.core, resources.memory)):
        return None
    pod = read_pod(obj, resources)
    if pod is None:
        raise BadRequest("Pod.metadata.uid is missing")
    return pod


def placeable(pod: Pod) -> str:
    """Return why the pod can be placed on no node whatever, empty where it may be."""
    if pod.refusal:
        return pod.refusal
    if not pod.managed:
        return UNMANAGED
    return "" if pod.demand.slices else "the pod asks for no GPU in any container that can hold one"

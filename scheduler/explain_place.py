# SPDX-License-Identifier: Apache-2.0
"""Explain why a pod got its place: what chose the node, and what was free on the GPUs before.

`slicekeeper explain` shows this text, which the Binding writes on the pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from scheduler.held_places import HoldKind, Place
from scheduler.pods import Hold, KnownPod, gpu_rows
from slicekeeper.gpu.inventory import Gpu, is_slice


def why_node(pod: KnownPod, node: str, places: Iterable[Place], policy: str, *, is_equal: Callable[[str], bool]) -> str:
    """Return why a pod is placed on a node.

    `places` are those that were held for it. `is_equal` returns whether the policy found another node equally good.
    """
    for place in places:
        there = place.hold.node
        if place.kind is HoldKind.RESERVED and there == node:
            return f"{policy}, for all pods of its gang together" if pod.gang else "room was made or kept for it"
        if place.kind is not HoldKind.TENTATIVE:
            continue
        if there == node:
            return (
                f"{policy}, the cheapest of {place.among} nodes with room"
                if place.among > 1
                else "the only node with room"
            )
        if is_equal(there):
            return f"{policy}, as good as node {there}; kube-scheduler chose between them"
        return f"kube-scheduler's own rules; {policy} would have taken node {there}"
    return "kube-scheduler's own rules"


def free_before(hold: Hold, gpus: Iterable[Gpu], others: Iterable[Hold]) -> str:
    """Return what was free on the GPUs of `hold`; `gpus` are the node's, and `others` what other pods hold there."""
    uuids = {share.uuid for share in hold.shares}
    if any(map(is_slice, uuids)):
        return "the smallest slices that fit" if len(uuids) > 1 else "the smallest slice that fits"
    found = Counter(
        "idle" if gpu.idle else f"{gpu.core} percent and {gpu.memory} MiB free"
        for gpu in gpu_rows([gpu for gpu in gpus if gpu.uuid in uuids], others)
    )
    return "GPU before: " + ", ".join(f"{n} times {text}" if n > 1 else text for text, n in found.items())

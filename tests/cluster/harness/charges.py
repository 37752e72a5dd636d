# SPDX-License-Identifier: Apache-2.0
"""What a pod is charged, worked out from its last record alone, without a line of the timekeeper's code."""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction
from math import floor

from cluster.harness.kubectl import Object
from cluster.harness.site import CORE, MEMORY

GPU_MIB = 81920
"""Memory of the playground's GPUs."""


def charge_of(pod: Object, core: str = CORE, memory: str = MEMORY) -> int:
    """Return the GPU-milliseconds of a pod that has ended, each GPU container of which held one GPU or a share of one.

    It held them until its last container had ended, whichever that was.
    """
    per_gpu: dict[str, list[Fraction]] = {}
    for container in pod["spec"]["containers"]:
        limits = container["resources"].get("limits", {})
        if core not in limits:
            continue
        gpu = pod["metadata"]["annotations"][f"gpu.slicekeeper.io/{container['name']}"]
        share = per_gpu.setdefault(gpu, [Fraction(0), Fraction(0)])
        share[0] += Fraction(int(limits[core]), 100)
        share[1] += Fraction(int(limits.get(memory, 0)) * 256, GPU_MIB)
    begin = _instant(pod["metadata"]["annotations"]["slicekeeper.io/bound-at"])
    statuses = [*pod["status"].get("initContainerStatuses", ()), *pod["status"]["containerStatuses"]]
    ends = [_instant(status["state"]["terminated"]["finishedAt"]) for status in statuses]
    held = max(max(ends) - begin, 0)
    return floor(held * sum(map(max, per_gpu.values()), Fraction(0)) + Fraction(1, 2))


def _instant(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)

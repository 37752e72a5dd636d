# SPDX-License-Identifier: Apache-2.0
"""Warn about a request that no GPU of the cluster can satisfy today: its pod waits until a node with more is added.

Refusing it would be wrong: an autoscaler may add that node because the pod waits.
"""

from __future__ import annotations

from collections.abc import Iterator

from slicekeeper import names
from slicekeeper.gpu.inventory import is_wanted
from slicekeeper.gpu.request import PodRequest
from slicekeeper.wire.timekeeper import ClusterGpus


def warnings(request: PodRequest, gpus: ClusterGpus) -> Iterator[str]:
    """Yield what nothing in the cluster matches, with what there is; nothing if its GPUs are not known."""
    if not gpus.memory_mib or not request.requests:
        return
    there = ", ".join(f"{model} with {mib} MiB" for model, mib in gpus.memory_mib.items())
    wanted = {model: mib for model, mib in gpus.memory_mib.items() if is_wanted(model, request.gpu_models)}
    if not wanted:
        models = ", ".join(request.gpu_models)
        yield f"{names.GPU_MODEL} is {models}, which no GPU of the cluster is; there are {there}; the pod will wait"
        return
    largest = max(wanted.values())
    for asked in request.requests:
        each = -(-asked.memory_mib // asked.gpus)
        if each > largest:
            yield (
                f"container {asked.container} asks for {each} MiB of one GPU, which no GPU of the cluster that it may "
                f"use has; there are {there}; the pod will wait"
            )
        if not asked.is_fraction and asked.gpus > gpus.most_on_node:
            yield (
                f"container {asked.container} asks for {asked.gpus} whole GPUs, but no node of the cluster has more "
                f"than {gpus.most_on_node}; the pod will wait"
            )

# SPDX-License-Identifier: Apache-2.0
"""How long a pod holds its GPUs. Scheduler, node agent and timekeeper ask here: what is held is paid, and no more.

kubelet frees a pod's devices, and kube-scheduler its requests, when the pod's phase is terminal, and not before: a
container that has ended keeps its slice while any other container of the pod runs, or may start again. Counting by
container would let a pod hold GPUs that it does not pay for (`docs/timekeeper.md`, "When").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slicekeeper.request import as_map

_TERMINAL: Final = ("Succeeded", "Failed")


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Whether all of a pod has ended for good, as kubelet or the control plane says."""
    return as_map(pod.get("status")).get("phase") in _TERMINAL


def is_bound(pod: Mapping[str, Any]) -> bool:
    """Whether the pod was ever given to a node."""
    return bool(as_map(pod.get("spec")).get("nodeName"))


def holds_gpus(pod: Mapping[str, Any]) -> bool:
    """Whether a pod holds the GPUs that it asks for: from its binding until all of it has ended."""
    return is_bound(pod) and not has_ended(pod)

# SPDX-License-Identifier: Apache-2.0
"""Which pods are checked and changed at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slicekeeper import names
from slicekeeper.gpu.pod_manifest import asks_for
from slicekeeper.kube.pod import gate_index
from slicekeeper.untyped_json import as_list, as_map
from webhook import reserved_names
from webhook.review_inputs import Case, ClusterContext


def is_relevant(pod: Mapping[str, Any], case: Case, cluster: ClusterContext) -> bool:
    """Whether the rules apply to a pod; if not, it is neither checked nor changed."""
    return case.policy.mode != "off" and not reserved_names.is_mirror(pod) and _looks_ours(pod, case, cluster)


def forges_mirror(pod: Mapping[str, Any], case: Case, cluster: ClusterContext) -> bool:
    """Whether a GPU pod, or a template of one, says that it mirrors a static pod, as only a kubelet's pods do."""
    return reserved_names.is_mirror(pod) and _looks_ours(pod, case, cluster)


def is_gpu_pod(pod: Mapping[str, Any], case: Case, cluster: ClusterContext) -> bool:
    """Whether a pod asks for GPUs that are ours, or metered."""
    return asks_for(pod, _asked(case, cluster))


def _looks_ours(pod: Mapping[str, Any], case: Case, cluster: ClusterContext) -> bool:
    """Whether a pod asks for GPUs, or carries a name that only GPU pods have."""
    if asks_for(pod, (*_asked(case, cluster), cluster.resources.seat)):
        return True
    metadata = as_map(pod.get("metadata"))
    return (
        names.MANAGED_LABEL in as_map(metadata.get("labels"))
        or names.FINALIZER in as_list(metadata.get("finalizers"))
        or gate_index(pod) is not None
        or any(reserved_names.is_written_by_us(key) for key in as_map(metadata.get("annotations")))
    )


def _asked(case: Case, cluster: ClusterContext) -> tuple[str, ...]:
    return cluster.ours if case.policy.nvidia_gpu == "ignored" else cluster.asked

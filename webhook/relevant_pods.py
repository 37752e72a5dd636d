# SPDX-License-Identifier: Apache-2.0
"""Which pods are checked and changed at all."""

from __future__ import annotations

from slicekeeper import names
from slicekeeper.kube.objects import Pod, PodSpec, ResourceAmounts
from webhook import reserved_names
from webhook.review_inputs import Case, ClusterContext


def is_relevant(pod: Pod, case: Case, cluster: ClusterContext) -> bool:
    """Whether the rules apply to a pod; if not, it is neither checked nor changed."""
    return case.policy.mode != "off" and not reserved_names.is_mirror(pod.metadata) and _looks_ours(pod, case, cluster)


def forges_mirror(pod: Pod, case: Case, cluster: ClusterContext) -> bool:
    """Whether a GPU pod, or a template of one, says that it mirrors a static pod, as only a kubelet's pods do."""
    return reserved_names.is_mirror(pod.metadata) and _looks_ours(pod, case, cluster)


def asks_for_gpus(spec: PodSpec | ResourceAmounts, case: Case, cluster: ClusterContext) -> bool:
    """Whether a pod, or one container's resources, ask for GPUs that are ours, or metered."""
    return spec.names_any(_asked(case, cluster))


def _looks_ours(pod: Pod, case: Case, cluster: ClusterContext) -> bool:
    """Whether a pod asks for GPUs, or carries a name that only GPU pods have."""
    if pod.spec.names_any((*_asked(case, cluster), cluster.resources.seat)):
        return True
    return (
        names.MANAGED_LABEL in pod.metadata.labels
        or names.FINALIZER in pod.metadata.finalizers
        or pod.spec.is_gated
        or any(map(reserved_names.is_written_by_us, pod.metadata.annotations))
    )


def _asked(case: Case, cluster: ClusterContext) -> tuple[str, ...]:
    return cluster.ours if case.policy.nvidia_gpu == "ignored" else cluster.asked

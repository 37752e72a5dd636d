# SPDX-License-Identifier: Apache-2.0
"""What the user of an admitted GPU pod, or of the template of one, should know, whatever its budget."""

from __future__ import annotations

from collections.abc import Iterator

from slicekeeper.gpu.request import PodRequest
from slicekeeper.kube.objects import Pod
from webhook import impossible_request, node_platform, reserved_names, sidecar_amounts
from webhook.review_inputs import Case, ClusterContext


def of_pod(pod: Pod, request: PodRequest, case: Case, cluster: ClusterContext) -> Iterator[str]:
    """Yield all warnings about a pod that breaks no rule."""
    yield from reserved_names.unknown_annotations(pod.metadata)
    yield from impossible_request.warnings(request, case.gpus)
    if request.requests:
        yield from node_platform.warnings(pod.spec)
    limits = cluster.limit_ranges.of(case.namespace)
    if limits and request.requests:
        yield from sidecar_amounts.warnings(pod.spec, cluster.sidecar(case.policy.sidecar, ""), limits)

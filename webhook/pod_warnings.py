# SPDX-License-Identifier: Apache-2.0
"""What the user of an admitted GPU pod, or of the template of one, should know, whatever its budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slicekeeper.gpu.request import PodRequest
from slicekeeper.untyped_json import as_map
from webhook import impossible_request, node_platform, reserved_names, sidecar_amounts
from webhook.review_inputs import Case, ClusterContext


def of_pod(pod: Mapping[str, Any], request: PodRequest, case: Case, cluster: ClusterContext) -> Iterator[str]:
    """Yield all warnings about a pod that breaks no rule."""
    yield from reserved_names.unknown_annotations(pod)
    yield from impossible_request.warnings(request, case.gpus)
    if request.requests:
        yield from node_platform.warnings(as_map(pod.get("spec")))
    limits = cluster.limit_ranges.of(case.namespace)
    if limits and request.requests:
        yield from sidecar_amounts.warnings(as_map(pod.get("spec")), cluster.sidecar(case.policy.sidecar, ""), limits)

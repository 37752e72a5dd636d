# SPDX-License-Identifier: Apache-2.0
"""Evicts a pod as it was seen, through `pods/eviction`, so that disruption budgets hold."""

from __future__ import annotations

from typing import Final

from slicekeeper.kube.client import PODS, KubeClient, Object

TOO_MANY_REQUESTS: Final = 429
"""Status of an eviction that a disruption budget does not allow now."""


def evict(client: KubeClient, pod: Object) -> None:
    """Evict a pod if it is still the one that was seen, at that very version.

    Raises ServiceError where it is not evicted: Conflict where it has changed, NotFound where it is gone, one of the
    status `TOO_MANY_REQUESTS` where a disruption budget protects it.
    """
    metadata = pod["metadata"]
    seen = {"uid": metadata["uid"], "resourceVersion": metadata.get("resourceVersion", "")}
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "deleteOptions": {"preconditions": {key: value for key, value in seen.items() if value}},
    }
    client.create(PODS, eviction, metadata["namespace"], name=metadata["name"], subresource="eviction")

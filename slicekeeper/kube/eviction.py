# SPDX-License-Identifier: Apache-2.0
"""Evict a pod in the version that was seen, through `pods/eviction`, so that disruption budgets apply."""

from __future__ import annotations

from typing import Final

from slicekeeper.kube.client import PODS, KubeClient, Object
from slicekeeper.kube.pod import LONGEST_GRACE_SECONDS, has_long_grace

TOO_MANY_REQUESTS: Final = 429
"""Status of an eviction that a disruption budget does not allow now."""


def evict(client: KubeClient, pod: Object, *, dry_run: bool = False) -> None:
    """Evict a pod if it still has the version that was seen; `dry_run` only checks whether that is allowed.

    It gets its own grace period, but at most `LONGEST_GRACE_SECONDS`.
    Raises ServiceError if it is not evicted: Conflict if it has changed, NotFound if it is gone, and an error with
    status `TOO_MANY_REQUESTS` if a disruption budget protects it.
    """
    metadata = pod["metadata"]
    seen = {"uid": metadata["uid"], "resourceVersion": metadata.get("resourceVersion", "")}
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "deleteOptions": {
            "preconditions": {key: value for key, value in seen.items() if value},
            **({"gracePeriodSeconds": LONGEST_GRACE_SECONDS} if has_long_grace(pod) else {}),
            **({"dryRun": ["All"]} if dry_run else {}),
        },
    }
    client.create(PODS, eviction, metadata["namespace"], name=metadata["name"], subresource="eviction")
